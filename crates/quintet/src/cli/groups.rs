//! `quintet groups`: the shards of a cluster whose keys are divided.
//!
//! ```text
//!   admin addresses (--admin, or a demo's directory) ──GET /status──► one row per shard
//! ```

use crate::cli::status::Asked;
use clap::{Args, Subcommand};
use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format, number},
};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Show the shards of a cluster whose keys are divided among groups
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet demo --layout layout.toml                       a demo whose keys are divided
  quintet groups status                                   its shards
  quintet groups status --admin http://127.0.0.1:7101,http://127.0.0.1:7102
  quintet groups status -o json | jq '.[] | {name, state, leader}'")]
pub struct Groups {
    #[command(subcommand)]
    command: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    Status(Shown),
}

/// List the shards with their members and how they are
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet groups status                                   the demo in ./quintet-demo
  quintet groups status --admin http://127.0.0.1:7101,http://127.0.0.1:7102

A shard is 'served' when more than half of its members answer and vote, 'no quorum' when they do not,
'halted' when a member cannot continue, 'lost' when the view has too few members with its log. Exit
code 5 when one is not served, 3 when no replica answers.")]
struct Shown {
    #[command(flatten)]
    asked: Asked,
}

/// A shard as its members that answered see it together.
#[derive(Debug, PartialEq, Serialize)]
struct Row {
    group: u64,
    name: String,
    state: &'static str,
    protocol: String,
    durability: String,
    members: Vec<u64>,
    /// The view that names them, where members follow the views.
    #[serde(skip_serializing_if = "Option::is_none")]
    view: Option<u64>,
    #[serde(skip)]
    is_lost: bool,
    /// The reason why a lost one waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    lacks: Option<String>,
    /// The members that answered and vote.
    voting: Vec<u64>,
    leader: Option<u64>,
    committed: u64,
    entries: u64,
    /// Why members cannot continue.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    halted: BTreeMap<u64, String>,
}

impl Groups {
    /// The password to send to the replicas.
    pub fn password(&self) -> Option<&str> {
        let Which::Status(shown) = &self.command;
        shown.asked.password.as_deref()
    }

    /// Prints the shards.
    pub fn run(self) -> Outcome {
        let Which::Status(shown) = self.command;
        let answers = shown.asked.statuses()?;
        let (found, errors): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        let found: Vec<Value> = found.into_iter().flatten().collect();
        if found.is_empty() {
            let errors: Vec<_> = errors.into_iter().filter_map(Result::err).collect();
            let text = format!("no replica answers ({})", errors.join("; "));
            return Err(Failure::new(Exit::Unreachable, text));
        }
        let rows = rows(&found);
        if rows.is_empty() {
            return Err(Failure::usage("the keys of this cluster are not divided").help(
                "'quintet demo --layout FILE' starts a cluster whose keys are divided among groups",
            ));
        }
        match shown.asked.output {
            Format::Json => output::print_json(&rows)?,
            Format::Table => print(&rows)?,
        }
        let unwell: Vec<_> = rows.iter().filter(|row| row.state != "served").collect();
        let line = |row: &&Row| format!("{}: {}", row.name, row.state);
        match unwell.as_slice() {
            [] => Ok(()),
            some => {
                let lines: Vec<_> = some.iter().map(line).collect();
                Err(Failure::new(Exit::Unhealthy, lines.join("; ")))
            }
        }
    }
}

/// One row per shard, from what replicas answered.
fn rows(answers: &[Value]) -> Vec<Row> {
    let mut rows: BTreeMap<u64, Row> = BTreeMap::new();
    for answer in answers {
        let id = answer["id"].as_u64().unwrap_or_default();
        for group in answer["groups"].as_array().into_iter().flatten() {
            let text = |name: &str| group[name].as_str().unwrap_or_default().to_owned();
            let count = |name: &str| group[name].as_u64().unwrap_or_default();
            let members = group["members"].as_array().into_iter().flatten();
            let row = rows.entry(count("group")).or_insert_with(|| Row {
                group: count("group"),
                name: text("name"),
                state: "no quorum",
                protocol: text("protocol"),
                durability: text("durability"),
                members: members.filter_map(Value::as_u64).collect(),
                view: None,
                is_lost: false,
                lacks: None,
                voting: Vec::new(),
                leader: None,
                committed: 0,
                entries: 0,
                halted: BTreeMap::new(),
            });
            let view = group["view"].as_u64();
            if view.is_some() && view >= row.view {
                let members = group["members"].as_array().into_iter().flatten();
                row.view = view;
                row.members = members.filter_map(Value::as_u64).collect();
                row.is_lost = group["state"] == "lost";
                row.lacks = group["lacks"].as_str().map(str::to_owned);
            }
            if group["voting"] == true {
                row.voting.push(id);
            }
            row.leader = group["leader"].as_u64().or(row.leader);
            row.committed = row.committed.max(count("committed"));
            row.entries = row.entries.max(count("entries"));
            if let Some(why) = group["halted"].as_str() {
                row.halted.insert(id, why.to_owned());
            }
        }
    }
    for row in rows.values_mut() {
        row.voting.sort_unstable();
        row.voting.retain(|id| row.members.contains(id));
        row.state = match row.voting.len() > row.members.len() / 2 {
            true if row.halted.is_empty() && !row.is_lost => "served",
            _ if !row.halted.is_empty() => "halted",
            _ if row.is_lost => "lost",
            _ => "no quorum",
        };
    }
    rows.into_values().collect()
}

fn print(rows: &[Row]) -> Outcome {
    let mut table = output::table(&[
        "shard",
        "state",
        "members",
        "voting",
        "leader",
        "protocol",
        "durability",
        "committed",
        "keys",
    ]);
    for row in rows {
        let list = |ids: &[u64]| {
            let ids: Vec<_> = ids.iter().map(u64::to_string).collect();
            ids.join(" ")
        };
        let leader = row.leader.map_or("-".to_owned(), |id| id.to_string());
        table.add_row(vec![
            row.name.clone().into(),
            row.state.into(),
            list(&row.members).into(),
            list(&row.voting).into(),
            leader.into(),
            row.protocol.clone().into(),
            row.durability.clone().into(),
            number(row.committed.to_string()),
            number(row.entries.to_string()),
        ]);
    }
    output::print_table(table)?;
    for row in rows {
        if let Some(lacks) = &row.lacks {
            output::print_line(&format!("{}: {lacks}", row.name))?;
        }
        for (id, why) in &row.halted {
            output::print_line(&format!("{} at replica {id}: {why}", row.name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shard_is_served_while_more_than_half_of_its_members_vote() {
        let group = |voting: bool, leader: Option<u64>| {
            json!({"group": 1, "name": "store/0",
            "members": [0, 1, 2], "voting": voting, "leader": leader, "committed": 7, "entries": 3})
        };
        let answer = |id: u64, group: Value| json!({"id": id, "groups": [group]});
        let two = [
            answer(0, group(true, Some(1))),
            answer(1, group(true, None)),
        ];
        let found = rows(&two);
        assert_eq!((found[0].state, found[0].leader), ("served", Some(1)));
        assert_eq!(found[0].voting, [0, 1]);
        let one = [answer(0, group(true, None)), answer(1, group(false, None))];
        assert_eq!(rows(&one)[0].state, "no quorum");
        let mut halted = group(true, None);
        halted["halted"] = json!("the disk is full");
        let halted = [answer(0, group(true, None)), answer(1, halted)];
        assert_eq!(rows(&halted)[0].state, "halted");
        assert!(rows(&[json!({"id": 0})]).is_empty());
    }
}

//! `quintet member`: who the members of a running cluster are, fewer, and how one is added.
//!
//! ```text
//!   list, remove ──► any replica
//!   add, replace ──► the line for the new replica's machine, which asks the cluster itself
//!     └ --wait ────► any replica, until the new one is a member and has the state
//! ```

use crate::cli::{
    change::At,
    progress::{LOOK, Progress},
};
use clap::{Args, Subcommand};
use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format},
    units,
};
use quintet_runtime::{ChangeReport, ChangeRequest, MemberReport};
use serde::Serialize;
use std::{
    fmt::Write,
    thread,
    time::{Duration, Instant},
};

/// Show the members of a running cluster, add, replace or remove one
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet member list                        the demo in ./quintet-demo
  quintet member add                         the line that starts one more
  quintet member replace 2 --wait            the line that starts another one in the place of 2
  quintet member remove 1                    any one; the others keep their numbers

A new replica asks for its membership itself, because only its own directory knows who it is: 'add'
and 'replace' print the line to be run on its machine, and wait for it if they are told to.")]
pub struct Member {
    #[command(subcommand)]
    command: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    List(List),
    Add(Add),
    Replace(Replace),
    Remove(Remove),
}

/// List the members with their identities and addresses
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet member list                                      the demo in ./quintet-demo
  quintet member list --admin http://127.0.0.1:7101
  quintet member list -o json | jq -r '.[].node'

'state' is 'no' of a member that has not got the state yet: until it has, it counts in no quorum. A
'learner' becomes a 'voter' by itself once it has caught up.")]
struct List {
    #[command(flatten)]
    at: At,
}

/// Print the line that starts one more replica
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet member add                                       the demo in ./quintet-demo
  quintet member add --wait --timeout 30m                  and wait until it serves
  quintet member add --admin http://127.0.0.1:7101 -o json | jq -r .command")]
struct Add {
    #[command(flatten)]
    wait: Wait,

    #[command(flatten)]
    at: At,
}

/// Print the line that starts a replica in the place of a lost one
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet member replace 2                                 the demo in ./quintet-demo
  quintet member replace 2 --wait                          and wait until it serves
  quintet member replace 2 --admin http://127.0.0.1:7101")]
struct Replace {
    /// The number of the lost member, see 'quintet member list'
    id: u16,

    #[command(flatten)]
    wait: Wait,

    #[command(flatten)]
    at: At,
}

// No documentation comment: clap would print it in place of a command's.
#[derive(Args, Debug)]
struct Wait {
    /// Wait until the new replica votes and has the state, and list the members then
    #[arg(long)]
    wait: bool,

    /// How long to wait, such as 2m
    #[arg(long, value_name = "TIME", default_value = "10m", requires = "wait", value_parser = units::duration)]
    timeout: Duration,
}

/// Remove members, be they alive or dead
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet member remove 1                                  the demo in ./quintet-demo
  quintet member remove 1 3                                two at once
  quintet member remove 4 --admin http://127.0.0.1:7101

The cluster continues without them in another epoch; of the members that stay, more than half must be
connected and have the data. They keep their numbers, and the next new member gets the first that is
free. A removed replica stops when it is told, with exit code 7, and is refused when it is started
again; its data directory can be removed.")]
struct Remove {
    /// Their numbers, see 'quintet member list'
    #[arg(required = true, value_name = "ID")]
    ids: Vec<u16>,

    #[command(flatten)]
    at: At,
}

/// A line to be run, for `-o json`.
#[derive(Serialize)]
struct Line<'a> {
    command: &'a str,
}

impl Member {
    const fn at(&self) -> &At {
        match &self.command {
            Which::List(list) => &list.at,
            Which::Add(add) => &add.at,
            Which::Replace(replace) => &replace.at,
            Which::Remove(remove) => &remove.at,
        }
    }

    /// The password to send to the replicas.
    pub fn password(&self) -> Option<&str> {
        self.at().password.as_deref()
    }

    /// Asks and prints.
    pub fn run(self) -> Outcome {
        let at = self.at();
        match &self.command {
            Which::List(_) => print(at, &at.ask(None)?),
            Which::Add(add) => start(at, None, &add.wait),
            Which::Replace(replace) => start(at, Some(replace.id), &replace.wait),
            Which::Remove(remove) => {
                let request = ChangeRequest {
                    remove: remove.ids.clone(),
                    ..ChangeRequest::default()
                };
                print(at, &at.ask(Some(&request))?)
            }
        }
    }
}

/// Tells how a new replica is started, and waits for it.
fn start(at: &At, place: Option<u16>, wait: &Wait) -> Outcome {
    let before = at.ask(None)?;
    let line = before.join_line(place).map_err(Failure::usage)?;
    let what = "On the new machine, with the cluster's secret in QUINTET_SECRET, run";
    if !wait.wait {
        return match at.output {
            Format::Json => output::print_json(&Line { command: &line }),
            Format::Table => output::print(&format!("{what}\n  {line}\n")),
        };
    }
    eprintln!("{what}\n  {line}");
    let until = Instant::now() + wait.timeout;
    let mut progress = Progress::default();
    let mut last = "no replica has asked to become a member yet".to_owned();
    while Instant::now() < until {
        // One that does not answer now may do so in a moment.
        if let Ok(report) = at.ask(None) {
            match newcomer(&before, &report, place) {
                Some(member) if member.role == "voter" && member.has_state == Some(true) => {
                    return print(at, &report);
                }
                Some(member) => {
                    let (id, peer, role) = (member.id, &member.peer, &member.role);
                    last = format!("replica {id} at {peer} is a {role} and fetches the state");
                }
                None if report.change != "none" => {
                    last = format!("a change is {} in epoch {}", report.change, report.epoch);
                }
                None => {}
            }
            progress.tell(&last);
        }
        thread::sleep(LOOK);
    }
    Err(Failure::new(
        Exit::Failed,
        format!(
            "not done within {}: {last}",
            humantime::format_duration(wait.timeout)
        ),
    )
    .help("it may still come: 'quintet member list'"))
}

/// The member that was none before: in this place, or in any that was not there.
fn newcomer<'a>(
    before: &ChangeReport,
    now: &'a ChangeReport,
    place: Option<u16>,
) -> Option<&'a MemberReport> {
    let known = |node: &str| before.members.iter().any(|it| it.node == node);
    let mut news = now.members.iter().filter(|it| !known(&it.node));
    news.find(|it| match place {
        Some(id) => it.id == id,
        None => before.members.iter().all(|other| other.id != it.id),
    })
}

fn print(at: &At, report: &ChangeReport) -> Outcome {
    if at.output == Format::Json {
        return output::print_json(&report.members);
    }
    let mut text = format!(
        "{:>2}  {:<16}  {:<7}  {:<5}  {:<21}  redis\n",
        "id", "node", "role", "state", "peer"
    );
    for member in &report.members {
        let redis = member.redis.as_deref().unwrap_or("unknown");
        let state = match member.has_state {
            Some(true) => "yes",
            Some(false) => "no",
            None => "?",
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:>2}  {:<16}  {:<7}  {state:<5}  {:<21}  {redis}",
            member.id, member.node, member.role, member.peer
        );
    }
    output::print(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(nodes: &[&str]) -> ChangeReport {
        let member = |(id, node): (usize, &&str)| MemberReport {
            id: id as u16,
            node: (*node).to_owned(),
            ..MemberReport::default()
        };
        ChangeReport {
            members: nodes.iter().enumerate().map(member).collect(),
            ..ChangeReport::default()
        }
    }

    #[test]
    fn newcomer_is_found_in_its_place_only() {
        let before = report(&["a", "b", "c"]);
        let found = |now: &[&str], place| {
            let now = report(now);
            newcomer(&before, &now, place).map(|it| it.node.clone())
        };
        assert_eq!(found(&["a", "b", "c"], None), None);
        assert_eq!(found(&["a", "b", "c", "d"], None).as_deref(), Some("d"));
        assert_eq!(found(&["a", "b", "c", "d"], Some(1)), None);
        assert_eq!(found(&["a", "d", "c"], Some(1)).as_deref(), Some("d"));
        assert_eq!(found(&["a", "d", "c"], None), None);
    }
}

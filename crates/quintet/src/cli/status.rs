//! `quintet status`: how a cluster is.
//!
//! ```text
//!   admin addresses (--admin, or a demo's directory) ──GET /status, /readyz──► one row per replica
//! ```

use crate::cli::{
    demo::{self, Marker, Ports},
    password::Password,
};
use clap::Args;
use quintet_cli::output::ContentArrangement;
use quintet_cli::{
    Exit, Failure, Outcome, http,
    output::{self, Format, number},
};
use serde::Serialize;
use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf, thread, time::Duration};

const TIMEOUT: Duration = Duration::from_secs(3);

/// Show how each replica of a cluster is
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet status                                          the demo in ./quintet-demo
  quintet status --admin http://127.0.0.1:7101,http://127.0.0.1:7102
  QUINTET_PASSWORD=… quintet status --admin http://10.0.0.1:7101
  quintet status -o json | jq '.[] | {id, role, lag}'

Clock: what is added to the system's clock (or that something disciplines it), its standard
deviation and its bound, by what the replicas' clocks show of each other.
Positions: accepted here, committed (decided), executed here, stable (final here). Lag is how many
decided slots are not yet executed here. Exit code 5 when a replica does not answer or is not ready,
3 when none answers.")]
pub struct Status {
    #[command(flatten)]
    asked: Asked,
}

// No documentation comment: clap would print it in place of a command's.
#[derive(Args, Debug)]
pub struct Asked {
    /// The replicas' admin addresses
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = http::authority)]
    admin: Vec<String>,

    #[command(flatten)]
    pub password: Password,

    /// A demo's directory, to ask all its replicas
    #[arg(long, value_name = "DIR", default_value = demo::DIRECTORY, conflicts_with = "admin")]
    dir: PathBuf,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

impl Asked {
    /// The addresses, with the replicas' numbers where a demo's directory tells them.
    fn addresses(&self) -> Outcome<Vec<(Option<u16>, String)>> {
        Ok(match self.admin.as_slice() {
            [] => {
                let replicas = replicas_of_demo(&self.dir)?.into_iter();
                replicas.map(|(id, at)| (Some(id), at)).collect()
            }
            given => given.iter().map(|at| (None, at.clone())).collect(),
        })
    }

    /// The status of each replica, or why there is none.
    ///
    /// # Errors
    /// When the directory is not a demo's, or this program fails.
    pub fn statuses(&self) -> Outcome<Vec<Result<Value, String>>> {
        let answered = ask_each(self.addresses()?)?.into_iter();
        let of = |it: Answered| {
            it.status
                .map_err(|error| format!("{}: {error}", it.address))
        };
        Ok(answered.map(of).collect())
    }
}

/// The admin addresses of a demo's replicas.
///
/// # Errors
/// When the directory is not a demo's.
pub fn addresses_of_demo(directory: &std::path::Path) -> Outcome<Vec<String>> {
    let replicas = replicas_of_demo(directory)?.into_iter();
    Ok(replicas.map(|(_, address)| address).collect())
}

/// The same with the replicas' numbers.
fn replicas_of_demo(directory: &std::path::Path) -> Outcome<Vec<(u16, String)>> {
    let Some(marker) = Marker::read(directory)? else {
        return Err(
            Failure::usage(format!("{}: no demo's directory", directory.display())).help(
                "name the replicas with --admin http://127.0.0.1:7101,… or the demo with --dir",
            ),
        );
    };
    let address = |id| format!("127.0.0.1:{}", Ports::of(marker.base_port, id).admin);
    Ok(marker.ids().map(|id| (id, address(id))).collect())
}

/// The answer of one replica.
#[derive(Debug)]
struct Answered {
    address: String,
    /// Its id, where a demo's directory tells it.
    id: Option<usize>,
    status: Result<Value, String>,
    ready: bool,
}

#[derive(Serialize)]
struct Silent<'a> {
    admin: &'a str,
    error: &'a str,
}

fn ask(address: String, id: Option<usize>) -> Answered {
    let status = http::get(&address, "/status", TIMEOUT)
        .map_err(|error| error.to_string())
        .and_then(|answer| match answer.code {
            200 => serde_json::from_slice(&answer.body)
                .map_err(|_| "the answer is not a status".to_owned()),
            401 => Err("it needs the password (QUINTET_PASSWORD or --password)".to_owned()),
            429 => Err("too many wrong passwords from this address, try again later".to_owned()),
            code => Err(format!("HTTP {code}")),
        });
    let ready = status.is_ok()
        && http::get(&address, "/readyz", TIMEOUT).is_ok_and(|answer| answer.code == 200);
    Answered {
        address,
        id,
        status,
        ready,
    }
}

/// Asks all of them at once.
fn ask_each(addresses: Vec<(Option<u16>, String)>) -> Outcome<Vec<Answered>> {
    let asked: Vec<_> = addresses
        .into_iter()
        .map(|(id, address)| thread::spawn(move || ask(address, id.map(usize::from))))
        .collect();
    let answered = asked.into_iter().map(|one| {
        let answered = one.join();
        answered.map_err(|_| Failure::new(Exit::Failed, "asking failed"))
    });
    answered.collect()
}

impl Status {
    /// The password to send to the replicas.
    pub fn password(&self) -> Option<&str> {
        self.asked.password.as_deref()
    }

    /// Asks and prints.
    pub fn run(self) -> Outcome {
        let replicas = ask_each(self.asked.addresses()?)?;
        match self.asked.output {
            Format::Json => print_json(&replicas)?,
            Format::Table => print_table(&replicas)?,
        }
        verdict(&replicas)
    }
}

fn print_json(replicas: &[Answered]) -> Outcome {
    let mut rows = Vec::new();
    for replica in replicas {
        rows.push(match &replica.status {
            Ok(status) => {
                let mut row = status.clone();
                if let Some(fields) = row.as_object_mut() {
                    fields.insert("ready".to_owned(), replica.ready.into());
                    fields.insert(
                        "admin".to_owned(),
                        format!("http://{}", replica.address).into(),
                    );
                }
                row
            }
            Err(error) => {
                let admin = format!("http://{}", replica.address);
                let silent = Silent {
                    admin: &admin,
                    error,
                };
                serde_json::to_value(silent).map_err(anyhow::Error::from)?
            }
        });
    }
    output::print_json(&rows)
}

fn print_table(replicas: &[Answered]) -> Outcome {
    let mut table = output::table(&[
        "replica",
        "state",
        "role",
        "protocol",
        "epoch",
        "accepted",
        "committed",
        "executed",
        "stable",
        "lag",
        "durability",
        "uptime",
        "clock",
        "redis",
        "admin",
    ]);
    // A row that a narrow terminal folds reads better than folded cells.
    table.set_content_arrangement(ContentArrangement::Disabled);
    for replica in replicas {
        let Ok(status) = &replica.status else {
            let id = replica.id.map_or("?".to_owned(), |id| id.to_string());
            let mut row = vec![id, "no answer".to_owned()];
            row.resize(14, String::new());
            row.push(replica.address.clone());
            table.add_row(row);
            continue;
        };
        let text = |name: &str| match &status[name] {
            Value::String(text) => text.clone(),
            Value::Null => "-".to_owned(),
            other => other.to_string(),
        };
        let uptime = status["uptime_seconds"]
            .as_u64()
            .map_or("-".to_owned(), output::uptime);
        let mut row = vec![
            text("id").into(),
            if replica.ready {
                "ready".into()
            } else {
                "not ready".into()
            },
            text("role").into(),
            text("protocol").into(),
        ];
        let numbers = [
            "epoch",
            "accepted",
            "committed",
            "executed",
            "stable",
            "lag",
        ];
        row.extend(numbers.map(|name| number(text(name))));
        row.extend([
            text("durability").into(),
            number(uptime),
            clock(status).into(),
            text("redis").into(),
            replica.address.as_str().into(),
        ]);
        table.add_row(row);
    }
    output::print_table(table)?;
    for replica in replicas {
        if let Some(text) = replica.status.as_ref().ok().and_then(differ) {
            output::print_line(&text)?;
        }
    }
    let answers: Vec<_> = replicas
        .iter()
        .filter_map(|it| it.status.as_ref().ok())
        .collect();
    if let Some(line) = leader(&answers, replicas.len()) {
        output::print_line(&line)?;
    }
    if let Some(line) = route(&answers) {
        output::print_line(&line)?;
    }
    for line in answers.iter().filter_map(|status| transfer(status)) {
        output::print_line(&line)?;
    }
    for line in silences(&answers) {
        output::print_line(&line)?;
    }
    Ok(())
}

/// How far a replica has come that fetches a peer's state.
pub fn transfer(status: &Value) -> Option<String> {
    let transfer = status["transfer"].as_object()?;
    let number = |name: &str| transfer.get(name).and_then(Value::as_u64);
    let (id, donor) = (&status["id"], number("donor")?);
    let phase = match transfer.get("phase")?.as_str()? {
        "asking" => format!("waits for a snapshot of replica {donor}"),
        "receiving" => format!("receives the state of replica {donor}"),
        "following" => format!("receives what replica {donor} has executed since"),
        "saving" => format!("saves the state of replica {donor}"),
        "restoring" => format!("restores the state of replica {donor}"),
        other => format!("{other} (replica {donor})"),
    };
    let mut line = format!("replica {id}: {phase}");
    let (bytes, total) = (number("bytes")?, number("total")?);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    if total > 0 {
        let percent = bytes as f64 / total as f64 * 100.0;
        line += &format!(
            ", {:.1} of {:.1} MiB ({percent:.0} %)",
            mib(bytes),
            mib(total)
        );
    } else if bytes > 0 && transfer["phase"] == "asking" {
        line += &format!(", which has written {:.1} MiB of it", mib(bytes));
    } else if bytes > 0 {
        line += &format!(", {:.1} MiB", mib(bytes));
    }
    if let (Some(slot), Some(position)) = (number("slot"), number("position")) {
        let committed = status["committed"].as_u64().unwrap_or_default();
        let goal = committed.max(number("wanted")?);
        line += &format!(
            ", snapshot at slot {slot} (position {position}), reaches slot {} of {goal}",
            number("reached")?
        );
    }
    if let Some(ms) = number("left_ms") {
        line += &format!(", {} left", output::uptime(ms.div_ceil(1_000)));
    }
    Some(line)
}

/// From this silence on a replica tells clients that a member does not answer
/// (`quintet_runtime`'s event loop has the same figure), in milliseconds.
const SILENT_MS: u64 = 3_000;

/// One line for each replica that answering replicas do not hear: the longest silence, and those
/// that told it. One that was never heard and has no link counts, too.
fn silences(answers: &[&Value]) -> Vec<String> {
    let mut silent: BTreeMap<u64, (Option<u64>, Vec<String>)> = BTreeMap::new();
    for status in answers {
        for peer in status["peers"].as_array().into_iter().flatten() {
            let Some(id) = peer["id"].as_u64() else {
                continue;
            };
            let ms = peer["silent_ms"].as_u64();
            if ms.map_or(peer["connected"] == false, |ms| ms >= SILENT_MS) {
                let (longest, told_by) = silent.entry(id).or_default();
                *longest = ms.max(*longest);
                told_by.push(status["id"].to_string());
            }
        }
    }
    let line = |(id, (longest, told_by)): (u64, (Option<u64>, Vec<String>))| {
        let time = longest.map_or("ever since they started".to_owned(), |ms| {
            format!("for {}", output::uptime(ms / 1_000))
        });
        format!("replica {id}: not heard {time} by {}", told_by.join(", "))
    };
    silent.into_iter().map(line).collect()
}

/// The leader as the newest view has it, for protocols that have one, and whether it answered;
/// `asked` is the number of replicas that were asked.
fn leader(answers: &[&Value], asked: usize) -> Option<String> {
    let newest = answers
        .iter()
        .filter(|status| !status["leader"].is_null())
        .max_by_key(|status| status["view"].as_u64());
    let view = |status: &Value| status["view"].as_u64().unwrap_or_default();
    match newest {
        Some(status) => {
            let leader = status["leader"].as_u64()?;
            let all = asked as u64 >= status["members"].as_u64().unwrap_or_default();
            let missing = match (answered(answers, leader), all) {
                (true, _) => "",
                (false, true) => {
                    ", which did not answer: the others elect another unless it returns"
                }
                (false, false) => ", which did not answer or was not asked",
            };
            Some(format!(
                "leader: replica {leader} (view {}){missing}",
                view(status)
            ))
        }
        None if answers.iter().any(|status| elects(status)) => {
            Some("leader: none known, an election is in progress".to_owned())
        }
        None => None,
    }
}

/// Whether the replica plays a part that only protocols with leaders have.
fn elects(status: &Value) -> bool {
    matches!(status["role"].as_str(), Some("follower" | "candidate"))
}

fn answered(answers: &[&Value], id: u64) -> bool {
    answers
        .iter()
        .any(|status| status["id"].as_u64() == Some(id))
}

/// The report of a replica about states that differ.
fn differ(status: &Value) -> Option<String> {
    let text = status["digests"]["differ"]["text"].as_str()?;
    Some(format!("replica {}: {text}", status["id"]))
}

/// The synchronised clock: what is added to the system's one (none when something disciplines it),
/// its standard deviation, and its bound.
fn clock(status: &Value) -> String {
    let clock = &status["clock"];
    let Some(bound) = clock["bound_ns"].as_u64() else {
        return "-".to_owned();
    };
    let correction = match clock["disciplined"].as_bool() {
        Some(true) => "disciplined".to_owned(),
        _ => {
            let by = clock["correction_ns"].as_i64().unwrap_or_default();
            let sign = if by < 0 { '-' } else { '+' };
            format!("{sign}{}", duration(by.unsigned_abs()))
        }
    };
    let deviation = clock["deviation_ns"].as_u64();
    let deviation = deviation.map_or_else(|| "?".to_owned(), duration);
    format!("{correction} σ {deviation} ± {}", duration(bound))
}

fn duration(nanoseconds: u64) -> String {
    match nanoseconds {
        0..1_000 => format!("{nanoseconds} ns"),
        1_000..1_000_000 => format!("{:.1} µs", nanoseconds as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanoseconds as f64 / 1e6),
        _ => format!("{:.1} s", nanoseconds as f64 / 1e9),
    }
}

/// The route of messages as the newest view has it, for protocols that have one: from the first
/// member to the last, with those that are left out and those that did not answer.
fn route(answers: &[&Value]) -> Option<String> {
    let view = |status: &&&Value| (status["view"].as_u64(), status["committed"].as_u64());
    let newest = answers
        .iter()
        .filter(|status| {
            status["route"]
                .as_array()
                .is_some_and(|route| !route.is_empty())
        })
        .max_by_key(view)?;
    let route: Vec<u64> = newest["route"]
        .as_array()?
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    let list = |ids: Vec<u64>| {
        let words: Vec<_> = ids.iter().map(u64::to_string).collect();
        words.join(", ")
    };
    let words: Vec<String> = route.iter().map(u64::to_string).collect();
    let mut line = format!("route: {}", words.join(" ─► "));
    let rows = newest["rows"].as_array();
    let voters = rows
        .into_iter()
        .flatten()
        .filter(|row| row["role"] == "voter");
    let ids = voters.filter_map(|row| row["id"].as_u64());
    let out: Vec<u64> = ids.filter(|id| !route.contains(id)).collect();
    if !out.is_empty() {
        line.push_str(&format!("   left out: {}", list(out)));
    }
    let silent: Vec<u64> = route
        .into_iter()
        .filter(|id| answers.len() > 1 && !answered(answers, *id))
        .collect();
    if !silent.is_empty() {
        line.push_str(&format!("   did not answer: {}", list(silent)));
    }
    Some(line)
}

fn verdict(replicas: &[Answered]) -> Outcome {
    let silent: Vec<_> = replicas
        .iter()
        .filter_map(|replica| {
            let error = replica.status.as_ref().err()?;
            Some(format!("{}: {error}", replica.address))
        })
        .collect();
    if silent.len() == replicas.len() {
        return Err(Failure::new(
            Exit::Unreachable,
            format!("no replica answers ({})", silent.join("; ")),
        )
        .help("is the cluster running? 'quintet demo' starts one on this machine"));
    }
    if !silent.is_empty() {
        return Err(Failure::new(
            Exit::Unhealthy,
            format!("no answer: {}", silent.join("; ")),
        ));
    }
    let waiting: Vec<_> = replicas
        .iter()
        .filter(|replica| !replica.ready)
        .map(|replica| replica.address.as_str())
        .collect();
    match waiting.as_slice() {
        [] => Ok(()),
        some => Err(Failure::new(
            Exit::Unhealthy,
            format!("not ready: {}", some.join(", ")),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn clock_is_shown_with_its_correction_deviation_and_bound() {
        let of = |told: Value| clock(&json!({ "clock": told }));
        let free = json!({"disciplined": false, "correction_ns": -1_500, "deviation_ns": 900,
                          "bound_ns": 250_000});
        assert_eq!(of(free), "-1.5 µs σ 900 ns ± 250.0 µs");
        let good = json!({"disciplined": true, "correction_ns": 0, "deviation_ns": null,
                          "bound_ns": 2_000_000_000u64});
        assert_eq!(of(good), "disciplined σ ? ± 2.0 s");
        assert_eq!(clock(&json!({"id": 1})), "-", "an older replica tells none");
    }

    #[test]
    fn states_that_differ_are_told() {
        let told = json!({"id": 2, "digests": {"differ": {"text": "at position 7"}}});
        assert_eq!(differ(&told).as_deref(), Some("replica 2: at position 7"));
        assert_eq!(differ(&json!({"id": 2, "digests": {"differ": null}})), None);
        assert_eq!(
            differ(&json!({"id": 2})),
            None,
            "an older replica tells none"
        );
    }

    #[test]
    fn silent_replicas_are_named_with_their_listeners() {
        let peer = |id: u64, connected: bool, silent: Option<u64>| json!({"id": id, "connected": connected, "silent_ms": silent});
        let first = json!({"id": 0, "peers": [peer(1, true, Some(40)), peer(2, false, Some(5_200)), peer(3, false, None)]});
        let second = json!({"id": 1, "peers": [peer(0, true, Some(2_999)), peer(2, true, Some(65_000)), peer(3, false, None)]});
        assert_eq!(
            silences(&[&first, &second]),
            [
                "replica 2: not heard for 1m5s by 0, 1",
                "replica 3: not heard ever since they started by 0, 1"
            ]
        );
        assert!(silences(&[&json!({"id": 0})]).is_empty(), "no peers told");
    }

    #[test]
    fn route_of_newest_view_names_members_left_out_and_silent() {
        let rows: Vec<_> = (0..4)
            .map(|id| json!({"id": id, "role": "voter"}))
            .collect();
        let old = json!({"id": 1, "view": 1, "committed": 9, "rows": rows, "route": [0, 1, 2, 3]});
        let new = json!({"id": 2, "view": 2, "committed": 7, "rows": rows, "route": [2, 3, 0]});
        let other = json!({"id": 3, "view": 5, "committed": 7, "rows": rows, "route": []});
        assert_eq!(
            route(&[&old, &new, &other]).as_deref(),
            Some("route: 2 ─► 3 ─► 0   left out: 1   did not answer: 0")
        );
        assert_eq!(route(&[&other]), None);
    }

    #[test]
    fn transfer_line_shows_how_much_the_donor_has_written() {
        let asking = |bytes: u64| {
            let transfer = json!({"phase": "asking", "donor": 1, "wanted": 7, "slot": null, "position": null, "reached": 0, "bytes": bytes, "total": 0, "elapsed_ms": 5, "left_ms": null});
            super::transfer(&json!({"id": 2, "committed": 9, "transfer": transfer}))
        };
        let waits = "replica 2: waits for a snapshot of replica 1";
        assert_eq!(asking(0).as_deref(), Some(waits));
        let written = format!("{waits}, which has written 3.0 MiB of it");
        assert_eq!(asking(3 << 20), Some(written));
    }

    #[test]
    fn leader_line_says_when_the_leader_did_not_answer() {
        let one = json!({"id": 1, "view": 1, "leader": 0, "role": "follower", "members": 3});
        let two = json!({"id": 2, "view": 4, "leader": 1, "role": "follower", "members": 3});
        assert_eq!(
            leader(&[&one, &two], 3).as_deref(),
            Some("leader: replica 1 (view 4)")
        );
        let silent = leader(&[&one], 3).unwrap();
        assert!(
            silent.contains("which did not answer: the others"),
            "{silent}"
        );
        let unasked = leader(&[&one], 1).unwrap();
        assert!(unasked.ends_with("or was not asked"), "{unasked}");
        let lost = json!({"id": 2, "view": 4, "leader": null, "role": "candidate"});
        assert!(leader(&[&lost], 1).unwrap().contains("election"));
        let leaderless = json!({"id": 2, "view": 4, "leader": null, "role": "proposer"});
        assert_eq!(leader(&[&leaderless], 1), None);
    }
}

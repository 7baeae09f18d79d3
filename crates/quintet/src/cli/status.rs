//! `quintet status`: how a cluster is.
//!
//! ```text
//!   admin addresses (--admin, or a demo's directory) ──GET /status, /readyz──► one row per replica
//! ```

use crate::cli::{
    demo::{self, Marker, Ports},
    failure::{Exit, Failure, Outcome},
    http,
    output::{self, Format, number},
};
use clap::Args;
use comfy_table::ContentArrangement;
use serde::Serialize;
use serde_json::Value;
use std::{path::PathBuf, thread, time::Duration};

const PATIENCE: Duration = Duration::from_secs(3);

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
    /// The replicas' admin addresses
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = http::authority)]
    admin: Vec<String>,

    /// The cluster's password; better given by the environment, where others do not see it
    #[arg(
        long,
        env = "QUINTET_PASSWORD",
        value_name = "PASSWORD",
        hide_env_values = true
    )]
    password: Option<String>,

    /// A demo's directory, to ask all its replicas
    #[arg(long, value_name = "DIR", default_value = demo::DIRECTORY, conflicts_with = "admin")]
    dir: PathBuf,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// The admin addresses of a demo's replicas.
///
/// # Errors
/// When the directory is not a demo's.
pub fn addresses_of_demo(directory: &std::path::Path) -> Outcome<Vec<String>> {
    let Some(marker) = Marker::read(directory)? else {
        return Err(
            Failure::usage(format!("{}: no demo's directory", directory.display())).help(
                "name the replicas with --admin http://127.0.0.1:7101,… or the demo with --dir",
            ),
        );
    };
    let ids = 0..marker.replicas;
    Ok(ids
        .map(|id| format!("127.0.0.1:{}", Ports::of(marker.base_port, id).admin))
        .collect())
}

/// What one replica answered.
#[derive(Debug)]
struct Answered {
    address: String,
    status: Result<Value, String>,
    ready: bool,
}

#[derive(Serialize)]
struct Silent<'a> {
    admin: &'a str,
    error: &'a str,
}

fn ask(address: String) -> Answered {
    let status = http::get(&address, "/status", PATIENCE)
        .map_err(|error| error.to_string())
        .and_then(|answer| match answer.code {
            200 => serde_json::from_slice(&answer.body)
                .map_err(|_| "the answer is not a status".to_owned()),
            401 => Err("it needs the password (QUINTET_PASSWORD or --password)".to_owned()),
            429 => Err("too many wrong passwords from this address, try again later".to_owned()),
            code => Err(format!("HTTP {code}")),
        });
    let ready = status.is_ok()
        && http::get(&address, "/readyz", PATIENCE).is_ok_and(|answer| answer.code == 200);
    Answered {
        address,
        status,
        ready,
    }
}

impl Status {
    /// What the replicas are to be given.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Asks and prints.
    pub fn run(self) -> Outcome {
        let addresses = match self.admin.is_empty() {
            true => addresses_of_demo(&self.dir)?,
            false => self.admin,
        };
        let asked: Vec<_> = addresses
            .into_iter()
            .map(|address| thread::spawn(|| ask(address)))
            .collect();
        let mut replicas = Vec::new();
        for one in asked {
            let answered = one.join();
            replicas.push(answered.map_err(|_| Failure::new(Exit::Failed, "asking failed"))?);
        }
        match self.output {
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
        "admin",
    ]);
    // A row that a narrow terminal folds reads better than folded cells.
    table.set_content_arrangement(ContentArrangement::Disabled);
    for replica in replicas {
        let Ok(status) = &replica.status else {
            let mut row = vec!["?", "no answer"];
            row.resize(13, "");
            row.push(&replica.address);
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
            replica.address.as_str().into(),
        ]);
        table.add_row(row);
    }
    output::print_table(table)?;
    if let Some(picture) = picture(replicas.iter().filter_map(|it| it.status.as_ref().ok())) {
        output::print_line(&picture)?;
    }
    Ok(())
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

/// The way of messages as the newest view has it, for protocols that have one: from the first to
/// the last, and who is left out.
fn picture<'a>(statuses: impl Iterator<Item = &'a Value>) -> Option<String> {
    let view = |status: &&Value| (status["view"].as_u64(), status["committed"].as_u64());
    let newest = statuses
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
    let words: Vec<String> = route.iter().map(u64::to_string).collect();
    let mut picture = format!("route: {}", words.join(" ─► "));
    let members = newest["members"].as_u64().unwrap_or_default();
    let out: Vec<String> = (0..members)
        .filter(|id| !route.contains(id))
        .map(|id| id.to_string())
        .collect();
    if !out.is_empty() {
        picture.push_str(&format!("   left out: {}", out.join(", ")));
    }
    Some(picture)
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
    fn a_clock_is_shown_with_its_correction_deviation_and_bound() {
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
    fn the_route_of_the_newest_view_is_drawn_and_who_is_left_out() {
        let old = json!({"view": 1, "committed": 9, "members": 4, "route": [0, 1, 2, 3]});
        let new = json!({"view": 2, "committed": 7, "members": 4, "route": [2, 3, 0]});
        let silent = json!({"view": 5, "committed": 7, "members": 4, "route": []});
        let all = [old, new, silent.clone()];
        assert_eq!(
            picture(all.iter()).as_deref(),
            Some("route: 2 ─► 3 ─► 0   left out: 1")
        );
        assert_eq!(picture([silent].iter()), None);
    }
}

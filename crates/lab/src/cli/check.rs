//! `quintet check`: could one perfect machine have given these answers?
//!
//! ```text
//!   history, JSON lines ──► linearizability ──► linearizable                          exit 0
//!                                          ├──► impossible: the answers that collide  exit 6
//!                                          └──► neither found within the limits       exit 1
//! ```

use clap::Args;
use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format, grouped},
};
use quintet_simulator::{
    checkers::linearizability::{Limits, Report, Verdict, check},
    recording::{self, Recording, RecordingError},
};
use serde_json::json;
use std::{
    fs::File,
    io::{BufReader, stdin},
    path::PathBuf,
    time::Instant,
};

/// Check a recorded history of clients for linearizability
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet check history.jsonl           the verdict, and on a violation the answers that collide
  quintet check - < history.jsonl       from standard input
  quintet check history.jsonl --output json

A line of the file is one operation, for example
  {\"client\":\"c1\",\"invoked\":100,\"completed\":250,\"command\":[\"SET\",\"k\",\"v\"],\"reply\":\"OK\"}
  {\"client\":\"c2\",\"invoked\":120,\"command\":[\"INCR\",\"n\"]}
of which the second was never answered. docs/design/histories.md describes the format and the commands.

Exit code 0 when the history is linearizable, 6 when it is not, 1 when neither was found within the
limits, 2 when the file is invalid.")]
pub struct Check {
    /// The history, one JSON object per line; '-' for standard input
    file: PathBuf,

    /// Give up after this many million steps for keys that belong together
    #[arg(long, value_name = "MILLIONS", default_value_t = Limits::default().steps / 1_000_000)]
    steps: u64,

    /// Give up when this much memory is needed for keys that belong together, in MiB
    #[arg(long, value_name = "MIB", default_value_t = Limits::default().memory >> 20)]
    memory: usize,

    /// How to print: 'table' for people, 'json' for programs
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Check {
    /// Reads and checks the file.
    pub fn run(self) -> Outcome {
        let Recording {
            operations, lines, ..
        } = self.read()?;
        if operations.is_empty() {
            let name = self.file.display();
            return Err(Failure::usage(format!("{name} holds no operation")).help(
                "an empty history proves nothing; docs/design/histories.md describes the format",
            ));
        }
        let began = Instant::now();
        let limits = Limits {
            steps: self.steps.saturating_mul(1_000_000),
            memory: self.memory.saturating_mul(1 << 20),
            ..Limits::default()
        };
        let report = check(&operations, &limits);
        let seconds = began.elapsed().as_secs_f64();
        let told = match &report.verdict {
            Verdict::Impossible(evidence) => {
                evidence.describe(&operations, |index| format!("line {}", lines[index]))
            }
            Verdict::Unknown(why) => why.clone(),
            Verdict::Linearizable => String::new(),
        };
        match self.output {
            Format::Table => output::print(&shown(&report, seconds))?,
            Format::Json => output::print_json_line(&as_json(&report, &lines, seconds))?,
        }
        match report.verdict {
            Verdict::Linearizable => Ok(()),
            Verdict::Impossible(_) => Err(Failure::new(Exit::Violated, told)),
            Verdict::Unknown(_) => Err(Failure::new(Exit::Failed, told).help(
                "an unknown verdict is no pass; raise --steps or --memory, or record fewer \
                       operations per key at the same time",
            )),
        }
    }

    fn read(&self) -> Outcome<Recording> {
        let name = self.file.display();
        let read = match self.file.as_os_str() == "-" {
            true => recording::read(stdin().lock()),
            false => File::open(&self.file)
                .map_err(RecordingError::from)
                .and_then(|file| recording::read(BufReader::new(file))),
        };
        read.map_err(|error| {
            let failure = Failure::usage(format!("{name}: {error}"));
            match error {
                RecordingError::Line { .. } => {
                    failure.help("docs/design/histories.md describes the format")
                }
                RecordingError::Io(_) => failure,
            }
        })
    }
}

fn shown(report: &Report, seconds: f64) -> String {
    let verdict = match report.verdict {
        Verdict::Linearizable => "linearizable",
        Verdict::Impossible(_) => "NOT linearizable",
        Verdict::Unknown(_) => "unknown",
    };
    format!(
        "{verdict}: {} operations ({} answered, {} of unknown outcome) on {} keys in {seconds:.1} s\n",
        grouped(report.operations as u64),
        grouped(report.answered as u64),
        grouped(report.unknown as u64),
        grouped(report.keys as u64),
    )
}

fn as_json(report: &Report, lines: &[usize], seconds: f64) -> serde_json::Value {
    let mut value = json!({
        "verdict": match report.verdict {
            Verdict::Linearizable => "linearizable",
            Verdict::Impossible(_) => "impossible",
            Verdict::Unknown(_) => "unknown",
        },
        "operations": report.operations,
        "answered": report.answered,
        "unknown": report.unknown,
        "keys": report.keys,
        "components": report.components,
        "largest": report.largest,
        "steps": report.steps,
        "seconds": seconds,
    });
    match &report.verdict {
        Verdict::Impossible(evidence) => {
            value["lines"] = evidence.core.iter().map(|index| lines[*index]).collect();
            value["others"] = evidence.others.into();
        }
        Verdict::Unknown(why) => value["why"] = why.as_str().into(),
        Verdict::Linearizable => {}
    }
    value
}

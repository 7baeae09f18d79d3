//! `quintet journal`: look into the data directory of a stopped replica, and check it.
//!
//! ```text
//!   inspect DIR ──► whose it is, segments, snapshots, promises; every record with --records
//!   verify DIR  ──► exit code 0: the replica starts and loses nothing
//!                             7: what is wrong, in which segment, at which offset, what to do
//! ```

use clap::{Args, Subcommand};
use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format, grouped, number},
};
use quintet_runtime::inspect::{InspectError, RecordInfo, Remedy, Report, inspect};
use serde::Serialize;
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

/// Look into the files of a stopped replica, and check them
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet journal verify /var/lib/quintet              would this replica start, and lose nothing?
  quintet journal inspect quintet-demo/replica-0/data  segments, snapshots, promises
  quintet journal inspect --records -o json DIR        every record, one JSON object per line")]
pub struct Journal {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Inspect(Inspect),
    Verify(Verify),
}

impl Journal {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        match self.command {
            Command::Inspect(command) => command.run(),
            Command::Verify(command) => command.run(),
        }
    }
}

/// Show what is in a replica's data directory
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet journal inspect /var/lib/quintet
  quintet journal inspect --records /var/lib/quintet | less")]
struct Inspect {
    /// The data directory; nothing in it is changed
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Also list every record of the journal
    #[arg(long)]
    records: bool,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Check every checksum, and say what the next start would do
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet journal verify /var/lib/quintet && quintet serve --config replica.toml")]
struct Verify {
    /// The data directory; nothing in it is changed
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// A record as one line of JSON.
#[derive(Serialize)]
struct Record {
    segment: u64,
    offset: u64,
    sequence: u64,
    durable: u64,
    slot: u64,
    group: u32,
    epoch: u64,
    bytes: u64,
}

impl From<&RecordInfo> for Record {
    fn from(info: &RecordInfo) -> Self {
        Self {
            segment: info.segment,
            offset: info.offset,
            sequence: info.sequence,
            durable: info.durable,
            slot: info.slot.0,
            group: info.group.0,
            epoch: info.epoch.0,
            bytes: info.length,
        }
    }
}

fn look(directory: &Path, record: impl FnMut(&RecordInfo)) -> Outcome<Report> {
    inspect(directory, record).map_err(|error| {
        let exit = match error {
            InspectError::Refused { .. } => Exit::Refused,
            InspectError::Failed { .. } => Exit::Storage,
        };
        let failure = Failure::new(exit, error);
        // A demo's replica keeps its configuration beside its data.
        let data = directory.join("data");
        match data.join("identity").exists() {
            true => failure.help(format!("did you mean {}?", data.display())),
            false => failure,
        }
    })
}

impl Inspect {
    fn run(self) -> Outcome {
        let mut broken = Ok(());
        if self.records && self.output == Format::Table {
            output::print_line(
                "SEGMENT      OFFSET    SEQUENCE     DURABLE        SLOT     BYTES",
            )?;
        }
        let report = look(&self.directory, |info| {
            if !self.records || broken.is_err() {
                return;
            }
            let record = Record::from(info);
            broken = match self.output {
                Format::Json => output::print_json_line(&record),
                Format::Table => output::print_line(&format!(
                    "{:>7} {:>11} {:>11} {:>11} {:>11} {:>9}",
                    record.segment,
                    record.offset,
                    record.sequence,
                    record.durable,
                    record.slot,
                    record.bytes
                )),
            };
        })?;
        broken?;
        match (self.output, self.records) {
            (Format::Json, true) => output::print_json_line(&report),
            (Format::Json, false) => output::print_json(&report),
            (Format::Table, _) => show(&report),
        }
    }
}

fn show(report: &Report) -> Outcome {
    let mut text = String::new();
    let written = |bytes: Option<u64>| bytes.map_or_else(|| "none".to_owned(), grouped);
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{}\n\n  cluster      {}\n  replica      {} ({} durability)\n  incarnation  {}, \
         boot {}{}\n  promises     {} and {} (numbers of the two copies)\n  durable up to \
         record {}{}\n",
        report.directory.display(),
        report.cluster,
        report.replica,
        report.durability,
        report.incarnation,
        report.boot,
        if report.repairing {
            ", being repaired from the peers"
        } else {
            ""
        },
        written(report.promises[0].map(|copy| copy.number)),
        written(report.promises[1].map(|copy| copy.number)),
        written(report.durable),
        if report.torn {
            "; an unfinished write follows, as a crash leaves it"
        } else {
            ""
        },
    );
    output::print(&text)?;
    let mut table = output::table(&["segment", "bytes", "first", "records", "slots", "used"]);
    for segment in &report.segments {
        let slots = match (segment.slot_min, segment.slot_max) {
            (Some(low), Some(high)) => format!("{low}..{high}"),
            _ => String::new(),
        };
        table.add_row(vec![
            number(segment.segment),
            number(segment.bytes),
            number(
                segment
                    .first
                    .map_or_else(|| "?".to_owned(), |first| first.to_string()),
            ),
            number(segment.records),
            number(slots),
            number(segment.end),
        ]);
    }
    output::print_table(table)?;
    let mut table = output::table(&["snapshot", "position", "bytes", "from", "state"]);
    for snapshot in &report.snapshots {
        table.add_row(vec![
            number(snapshot.slot),
            number(snapshot.position),
            number(snapshot.bytes),
            output::Cell::new(if snapshot.fetched { "a peer" } else { "here" }),
            output::Cell::new(if snapshot.problem.is_some() {
                "DAMAGED"
            } else {
                "whole"
            }),
        ]);
    }
    output::print_line("")?;
    output::print_table(table)?;
    for problem in &report.problems {
        output::print_line(&format!("\n{}: {}", meaning(problem.remedy), problem.what))?;
    }
    Ok(())
}

const fn meaning(remedy: Remedy) -> &'static str {
    match remedy {
        Remedy::Repaired => "repaired at the next start",
        Remedy::RepairedFromPeers => "DAMAGED",
        Remedy::Refused => "REFUSED",
    }
}

impl Verify {
    fn run(self) -> Outcome {
        let report = look(&self.directory, |_| {})?;
        if self.output == Format::Json {
            output::print_json(&report)?;
        }
        if report.is_sound() {
            if self.output == Format::Table {
                for problem in &report.problems {
                    output::print_line(&format!("{}: {}", meaning(problem.remedy), problem.what))?;
                }
                let records: u64 = report.segments.iter().map(|s| s.records).sum();
                output::print_line(&format!(
                    "{}: sound: {} records in {} segments, {} snapshots",
                    report.directory.display(),
                    grouped(records),
                    report.segments.len(),
                    report.snapshots.len()
                ))?;
            }
            return Ok(());
        }
        let serious = report
            .problems
            .iter()
            .filter(|p| p.remedy != Remedy::Repaired);
        let what: Vec<&str> = serious.clone().map(|p| p.what.as_str()).collect();
        let help = if serious
            .clone()
            .all(|p| p.remedy == Remedy::RepairedFromPeers)
        {
            "in a cluster of three or more, start the replica: it is repaired from the others, as \
             long as a majority is undamaged. Alone or one of two, it will not start"
        } else {
            "the replica will not start on this directory"
        };
        let failure = Failure::new(
            Exit::Refused,
            format!("{}: {}", report.directory.display(), what.join("; ")),
        );
        Err(failure.help(help))
    }
}

//! `quintet bench reconfigure`: how long clients wait when a running cluster changes.
//!
//! ```text
//!   disk, memory ──► quintet_lab::reconfigure ──► a row per ordered pair of protocols ──► a table
//! ```

use super::measuring::Promise;
use clap::Args;
use quintet_cli::{
    Failure, Outcome,
    output::{self, Cell, Format, number},
    programs, protocols, units,
};
use quintet_lab::{
    figures::median,
    reconfigure::{Asked, Row, measure},
};
use quintet_replica::Durability;
use std::{path::PathBuf, time::Duration};

/// Measure how long clients wait when a running cluster changes its protocol or its members
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet bench reconfigure                                  all ordered pairs, disk and memory
  quintet bench reconfigure --protocol multipaxos --protocol nezha --durability memory
  quintet bench reconfigure --rounds 3 -o json

Three replicas run on this machine, and clients write in closed loops. A pair of the same protocol is
a change of one option; 'add' and 'remove' are a fourth member. A client's pause is its longest
request that overlaps the change; p99 is that of all requests in the calm before it. The median and
the worst pause are over all clients.")]
pub struct Reconfigure {
    /// A protocol [default: all of them]
    #[arg(short, long = "protocol", value_name = "NAME")]
    protocols: Vec<String>,

    /// The promise of an acknowledgement [default: one after the other]
    #[arg(long, value_enum, value_name = "DURABILITY")]
    durability: Option<Promise>,

    /// How often each change is made
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Clients, divided among the replicas
    #[arg(short, long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,

    /// Bytes per value
    #[arg(short = 'd', long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    value_size: u32,

    /// How long nothing changes before and after each change
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = units::duration)]
    calm: Duration,

    /// Change no members
    #[arg(long)]
    no_members: bool,

    /// Where the replicas keep their data
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,

    /// The first port; 300 are used
    #[arg(long, value_name = "PORT", default_value_t = 27_600)]
    base_port: u16,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Reconfigure {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        let named = self.protocols.iter().map(|name| protocols::find(name));
        let mut entries: Vec<_> = named.collect::<Result<_, _>>()?;
        if entries.is_empty() {
            entries.extend(quintet_protocols::PROTOCOLS.iter());
        }
        let names = entries.iter().map(|entry| entry.info.name.to_owned());
        let names: Vec<String> = names.collect();
        let durabilities = match self.durability {
            None => vec![Durability::Disk, Durability::Memory],
            Some(durability) => vec![durability.into()],
        };
        let mut rows = Vec::new();
        for durability in durabilities {
            let asked = Asked {
                program: programs::find(programs::QUINTET)?,
                durability,
                protocols: names.clone(),
                rounds: self.rounds as usize,
                clients: self.clients as usize,
                value_size: self.value_size as usize,
                calm: self.calm,
                members: !self.no_members,
                parent: self.dir.clone(),
                base_port: self.base_port,
            };
            let name = durability.name();
            let bar = output::bar(1, "{msg} [{bar:30}] {pos}/{len} changes, {eta} left");
            bar.set_message(name);
            let found = measure(&asked, |done, all| {
                bar.set_length(all as u64);
                bar.set_position(done as u64);
            });
            bar.finish_and_clear();
            rows.extend(found?);
        }
        match self.output {
            Format::Json => output::print_json(&rows)?,
            Format::Table => show(&rows)?,
        }
        let errors: usize = rows.iter().map(|row| row.errors).sum();
        match errors {
            0 => Ok(()),
            count => Err(Failure::failed(format!("{count} commands failed"))),
        }
    }
}

fn show(rows: &[Row]) -> Outcome {
    let mut table = output::table(&[
        "durability",
        "change",
        "from",
        "to",
        "took ms",
        "pause median ms",
        "pause worst ms",
        "commit p99 ms",
        "median / p99",
    ]);
    for row in rows {
        let texts = [row.durability, row.change, &row.from, &row.to];
        let mut cells: Vec<Cell> = texts.map(Cell::new).into();
        let numbers = [
            row.took_max_ms,
            row.pause_median_ms,
            row.pause_max_ms,
            row.commit_p99_ms,
            row.ratio(),
        ];
        cells.extend(numbers.map(|value| number(format!("{value:.1}"))));
        table.add_row(cells);
    }
    output::print_table(table)?;
    for (durability, change) in kinds(rows) {
        let of = |row: &&Row| (row.durability, row.change) == (durability, change);
        let own: Vec<&Row> = rows.iter().filter(of).collect();
        let all = |value: fn(&Row) -> f64| own.iter().map(|row| value(row)).collect::<Vec<f64>>();
        output::print_line(&format!(
            "{durability}, {change}, {} rows: median of the median pauses {:.1} ms, {:.1} of the p99 \
             of a commit; worst pause {:.1} ms",
            own.len(),
            median(&all(|row| row.pause_median_ms)),
            median(&all(Row::ratio)),
            all(|row| row.pause_max_ms).into_iter().fold(0.0, f64::max)
        ))?;
    }
    Ok(())
}

/// The kinds of changes in these rows, each once, as they come.
fn kinds(rows: &[Row]) -> Vec<(&'static str, &'static str)> {
    let mut kinds = Vec::new();
    for row in rows {
        let kind = (row.durability, row.change);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

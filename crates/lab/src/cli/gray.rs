//! `quintet lab gray`: what failures short of a crash leave.
//!
//! ```text
//!   protocols x failures x replicas ──► quintet_lab::gray ──► one row each
//! ```

use super::measuring::Promise;
use clap::Args;
use quintet_cli::{
    Exit, Failure as Failed, Outcome,
    output::{self, Format, number},
};
use quintet_lab::gray::{Asked, Failure, Row, Times, table};

/// Show what slow and hung disks and links leave of the throughput, in virtual time
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab gray                                       every failure at every replica
  quintet lab gray --protocol nezha --failure hung-disk
  quintet lab gray --protocol derecho --durability memory --replicas 5
  quintet lab gray --kept-min 0.7 -o json                exit code 1 when anything keeps less

Failures:
  slow-disk  each synchronisation of the disk takes 50 ms longer
  hung-disk  no synchronisation of the disk ends
  slow-link  all that the replica sends and is sent comes 20 ms late
  one-link   what it sends to the next replica, and nothing else, comes 20 ms late
  one-way    nothing of what it sends arrives; it hears all others
  pause      the process stands still
  full-link  5 Mbit/s to and from each member

Clients are at all other replicas and wait for each answer. Two seconds are calm, then the failure
lasts; after five seconds of it three are counted, and the last two and a half of five behind it. KEPT is
what is left to all clients, ELSEWHERE to those at no end of the one slow link.")]
pub struct Gray {
    /// A protocol [default: all of them]
    #[arg(short, long = "protocol", value_name = "NAME")]
    protocols: Vec<String>,

    /// A failure [default: all of them]
    #[arg(long = "failure", value_name = "KIND", value_parser = failure)]
    failures: Vec<Failure>,

    /// An option of the protocols
    #[arg(long, value_name = "OPTION=VALUE")]
    set: Vec<String>,

    /// How many replicas
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(3..=99))]
    replicas: u16,

    /// The promise of an acknowledgement
    #[arg(long, value_enum, value_name = "DURABILITY", default_value = "disk")]
    durability: Promise,

    /// Clients, at all replicas but the failing one
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    clients: u32,

    /// Bytes per value
    #[arg(long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    value_size: u32,

    /// Draws everything
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// End with exit code 1 when a row keeps a smaller part of the throughput than this
    #[arg(long, value_name = "PART")]
    kept_min: Option<f64>,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

fn failure(name: &str) -> Result<Failure, String> {
    let known = Failure::ALL.into_iter().find(|kind| kind.name() == name);
    known.ok_or_else(|| {
        let names = Failure::ALL.map(Failure::name);
        format!("accepted are {}", names.join(", "))
    })
}

impl Gray {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        let asked = self.asked()?;
        let most = asked.protocols.len() * asked.failures.len() * usize::from(asked.replicas);
        let bar = output::bar(most as u64, "[{bar:30}] {pos}/{len}, {eta} left");
        let rows = table(&asked, || bar.inc(1));
        bar.finish_and_clear();
        match self.output {
            Format::Json => output::print_json(&rows)?,
            Format::Table => show(&rows)?,
        }
        if let Some(row) = rows.iter().find(|row| row.broken.is_some()) {
            let why = row.broken.as_deref().unwrap_or_default();
            return Err(Failed::new(
                Exit::Failed,
                format!("{}: {why}", row.protocol),
            ));
        }
        let least = self.kept_min.unwrap_or(0.0);
        let below = rows.iter().filter(|row| row.kept < least).count();
        if below > 0 {
            let text = format!("{below} of {} rows keep less than {least}", rows.len());
            return Err(Failed::new(Exit::Failed, text));
        }
        Ok(())
    }

    fn asked(&self) -> Result<Asked, Failed> {
        let usage = |text: String| Failed::new(Exit::Usage, text);
        let mut options = Vec::new();
        for given in &self.set {
            let pair = given.split_once('=');
            let (name, value) =
                pair.ok_or_else(|| usage(format!("--set: '{given}' is not OPTION=VALUE")))?;
            options.push((name.to_owned(), value.to_owned()));
        }
        let mut protocols = Vec::new();
        for entry in quintet_protocols::PROTOCOLS {
            if self.protocols.is_empty() {
                protocols.push((entry, options.clone()));
            }
        }
        for name in &self.protocols {
            let entry = quintet_protocols::find(name).map_err(|error| usage(error.to_string()))?;
            protocols.push((entry, options.clone()));
        }
        for (entry, options) in &protocols {
            (entry.check)(options).map_err(|error| usage(error.to_string()))?;
        }
        let failures = match self.failures.is_empty() {
            true => Failure::ALL.to_vec(),
            false => self.failures.clone(),
        };
        Ok(Asked {
            protocols,
            failures,
            replicas: self.replicas,
            durability: self.durability.into(),
            clients: self.clients as usize,
            value_size: self.value_size as usize,
            times: Times::default(),
            seed: self.seed,
        })
    }
}

fn show(rows: &[Row]) -> Outcome {
    let mut table = output::table(&[
        "protocol",
        "failure",
        "replica",
        "before /s",
        "failing /s",
        "kept",
        "elsewhere",
        "after /s",
        "longest silence s",
    ]);
    for row in rows {
        let mut cells = vec![
            output::Cell::new(row.protocol),
            output::Cell::new(row.failure.name()),
        ];
        let numbers = [
            row.replica.to_string(),
            format!("{:.0}", row.before),
            format!("{:.0}", row.failing),
            format!("{:.2}", row.kept),
            format!("{:.2}", row.kept_elsewhere),
            format!("{:.0}", row.after),
            format!("{:.2}", row.silent_s),
        ];
        cells.extend(numbers.into_iter().map(number));
        table.add_row(cells);
    }
    output::print_table(table)
}

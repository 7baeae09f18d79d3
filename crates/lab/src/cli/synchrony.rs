//! `quintet lab synchrony`: how synchronous a system is, and which rounds fit it.
//!
//! ```text
//!   profile, delays ──► quintet_lab::synchrony ──► a table, DIR/report.html
//!   --admin URLs ─────► two looks at each replica ──► a table
//! ```

use clap::Args;
use quintet_cli::{
    Outcome, http,
    output::{self, Format, number},
    signals,
};
use quintet_lab::{
    profile,
    synchrony::{Found, HEADER, QUANTILES, Question, Seen, best, measure, running, us},
};
use std::{path::PathBuf, time::Duration};

/// Measure how synchronous a system is, and which length of Chora's rounds fits it
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab synchrony                              Figs. 5 and 9 of Chora's paper, in virtual time
  quintet lab synchrony --delays-ns 0,50000 --lengths-ns 1000,20000,50000,100000
  quintet lab synchrony --admin http://127.0.0.1:7101,http://127.0.0.1:7102 --seconds 10

Efficiency (α) is how long a round must last at least, divided by how long rounds last; effectiveness
(β) is how many rounds the proposals take at least, divided by how many they took. αβ is the
throughput as a part of what it would be without any variation, κ the greatest αβ of all lengths. A
running cluster is looked at twice and must be under load meanwhile; only the messages between its
replicas count as their work.")]
pub struct Synchrony {
    /// The replicas' admin addresses, to look at a running cluster
    #[arg(long, value_name = "URL", value_delimiter = ',', value_parser = http::authority)]
    admin: Vec<String>,

    /// How long a running cluster is watched
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// How many replicas
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=128), conflicts_with = "admin")]
    replicas: u16,

    /// The simulated machine: a profile that comes with the program, or a file
    #[arg(
        long,
        value_name = "PROFILE",
        default_value = "chora",
        conflicts_with = "admin"
    )]
    profile: String,

    /// Delays vary evenly between nothing and each of these, in nanoseconds
    #[arg(
        long,
        value_name = "NS",
        value_delimiter = ',',
        default_value = "10,3000,6000",
        conflicts_with = "admin"
    )]
    delays_ns: Vec<u64>,

    /// Lengths of rounds that are tried, in nanoseconds
    #[arg(
        long,
        value_name = "NS",
        value_delimiter = ',',
        default_value = "600,800,1000,1200,1500,2000,2500,3000,4000,6000,8000,12000",
        value_parser = clap::value_parser!(u64).range(100..=1_000_000_000),
        conflicts_with = "admin"
    )]
    lengths_ns: Vec<u64>,

    /// The length whose distribution is shown, in nanoseconds
    #[arg(long, value_name = "NS", default_value_t = 1050, value_parser = clap::value_parser!(u64).range(100..=1_000_000_000), conflicts_with = "admin")]
    shown_ns: u64,

    /// Clients at all replicas, one request each
    #[arg(long, value_name = "N", default_value_t = 192, value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "admin")]
    clients: u32,

    /// How long each run is measured, in milliseconds of virtual time
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=60_000), conflicts_with = "admin")]
    measured_ms: u64,

    /// Draws everything
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1,
        conflicts_with = "admin"
    )]
    seed: u64,

    /// Where the page is written
    #[arg(
        long,
        value_name = "DIR",
        default_value = "./quintet-lab/synchrony",
        conflicts_with = "admin"
    )]
    out: PathBuf,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

impl Synchrony {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        if !self.admin.is_empty() {
            let seen = running(&self.admin, Duration::from_secs(self.seconds))?;
            return match self.output {
                Format::Json => output::print_json(&seen),
                Format::Table => show_running(&seen),
            };
        }
        let (file, machine) = profile::load(&self.profile)?;
        let nanos = |all: &[u64]| all.iter().copied().map(Duration::from_nanos).collect();
        let question = Question {
            replicas: self.replicas.into(),
            profile: machine,
            delays: nanos(&self.delays_ns),
            lengths: nanos(&self.lengths_ns),
            shown: Duration::from_nanos(self.shown_ns),
            clients: self.clients as usize,
            measured: Duration::from_millis(self.measured_ms),
            seed: self.seed,
        };
        let (_sender, stops) = signals::channel_of_stops(signals::Hangup::Stops)?;
        let bar = output::bar(1, "[{bar:30}] {pos}/{len}, {eta} left");
        let found = measure(&question, |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            stops.try_recv().is_err()
        });
        bar.finish_and_clear();
        let found = found?;
        match self.output {
            Format::Json => output::print_json(&found)?,
            Format::Table => show(&found)?,
        }
        let facts = [
            ("machine".to_owned(), file.machine),
            ("replicas".to_owned(), self.replicas.to_string()),
            ("clients".to_owned(), self.clients.to_string()),
            ("ideal round".to_owned(), format!("{} us", us(found.ideal))),
            ("seed".to_owned(), self.seed.to_string()),
        ];
        found.write(&facts, &self.out)?;
        eprintln!("{}", self.out.join("report.html").display());
        Ok(())
    }
}

fn show(found: &Found) -> Outcome {
    let mut table = output::table(&HEADER);
    for row in found.rows() {
        table.add_row(row.into_iter().map(number));
    }
    output::print_table(table)?;
    output::print_line(&format!(
        "\nideal: rounds of {} us, {:.2} million commands a second\n",
        us(found.ideal),
        found.throughput / 1e6
    ))?;
    let header = [
        "delays up to, us",
        "S90",
        "κ",
        "round_us",
        "κ, early exit",
        "round_us",
    ];
    let mut table = output::table(&header);
    for system in &found.systems {
        let mut row = vec![
            us(system.delays as f64),
            format!("{:.2}", system.coefficient),
        ];
        for trials in [&system.whole, &system.early] {
            let Some(best) = best(trials) else { continue };
            row.push(format!("{:.3}", best.relative()));
            row.push(us(best.length as f64));
        }
        table.add_row(row.into_iter().map(number));
    }
    output::print_table(table)?;
    output::print_line("")?;
    let quantiles = QUANTILES.map(|percent| format!("p{percent}, us"));
    let mut header = vec!["early exit", "round, us", "mean, us"];
    header.extend(quantiles.iter().map(String::as_str));
    let mut table = output::table(&header);
    for one in &found.shown {
        let ends = if one.early_exit { "yes" } else { "no" };
        let mut row = vec![
            ends.to_owned(),
            us(one.length as f64),
            us(one.measured.mean()),
        ];
        row.extend(one.measured.lengths.map(|length| us(length as f64)));
        table.add_row(row.into_iter().map(number));
    }
    output::print_table(table)
}

fn show_running(seen: &[Seen]) -> Outcome {
    let header = [
        "id",
        "mode",
        "round",
        "mean, us",
        "in time",
        "handling, us",
        "p99",
        "above the mean, p90",
        "p99",
        "S90",
        "α",
        "β",
        "αβ",
    ];
    let mut table = output::table(&header);
    for one in seen {
        let measured = &one.measured;
        let [handling, _, handling_tail] = measured.processing.map(|it| us(it as f64));
        let [above, above_tail] = measured.deviation.map(|it| us(it as f64));
        let cells = [
            one.id.to_string(),
            one.mode.clone(),
            one.length.clone(),
            us(measured.mean()),
            format!("{:.3}", measured.in_time()),
            handling,
            handling_tail,
            above,
            above_tail,
            format!("{:.3}", one.coefficient),
            format!("{:.3}", one.efficiency),
            format!("{:.3}", one.effectiveness),
            format!("{:.3}", one.efficiency * one.effectiveness),
        ];
        table.add_row(cells.into_iter().map(number));
    }
    output::print_table(table)?;
    let proposed = seen.iter().map(|one| one.proposed).max().unwrap_or(0);
    output::print_line(&format!("\n--set round_us={}", us(proposed as f64)))
}

//! `quintet lab reordering`: what deadline-ordered multicast does about reordering.
//!
//! ```text
//!   links ──► quintet_lab::reordering ──► three tables, DIR/report.html
//! ```

use clap::Args;
use quintet_cli::{Outcome, output};
use quintet_lab::reordering::{figures, write};
use quintet_replica::links::{Jitter, Links, Model};
use std::{path::PathBuf, time::Duration};

/// Measure how often messages overtake each other, and what Nezha's deadlines do about it
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab reordering                     the links of the scenarios nezha-…
  quintet lab reordering --jitter-us 50      links that vary more

Two receivers, senders that send at random moments; a message counts as reordered when one that the
first receiver let go later was let go before it by the second, or when one of them never did.")]
pub struct Reordering {
    /// Delay of each message, in microseconds
    #[arg(long, value_name = "US", default_value_t = 40, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    delay_us: u64,

    /// Additional delay, exponentially distributed with this mean, in microseconds
    #[arg(long, value_name = "US", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    jitter_us: u64,

    /// Draws everything
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Where the page is written
    #[arg(long, value_name = "DIR", default_value = "./quintet-lab/reordering")]
    out: PathBuf,
}

impl Reordering {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        let links = Links {
            other: Model {
                delay: Duration::from_micros(self.delay_us),
                jitter: Jitter::Exponential(Duration::from_micros(self.jitter_us)),
                ..Model::default()
            },
            seed: self.seed,
            ..Links::default()
        };
        let found = figures(&links);
        for figure in &found {
            output::print_line(figure.title)?;
            let mut table = output::table(&figure.header());
            for row in figure.rows() {
                table.add_row(row.into_iter().map(output::number));
            }
            output::print_table(table)?;
        }
        let facts = [
            ("way".to_owned(), format!("{} us", self.delay_us)),
            (
                "jitter".to_owned(),
                format!("exponential, {} us in the mean", self.jitter_us),
            ),
            ("seed".to_owned(), self.seed.to_string()),
        ];
        write(&found, &facts, &self.out)?;
        eprintln!("{}", self.out.join("report.html").display());
        Ok(())
    }
}

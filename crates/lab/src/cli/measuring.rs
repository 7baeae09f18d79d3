//! Shared by the commands that run scenarios.
//!
//! ```text
//!   flags ──► Ground ──► Options ──► measure, with a bar ──► Ran ──► complete?
//! ```

use clap::{Args, ValueEnum};
use quintet_cli::{Exit, Failure, Outcome, output, programs};
use quintet_lab::{
    results::Results,
    run::{Options, Ran, run},
    scenario::Scenario,
};
use quintet_replica::Durability;
use std::{path::PathBuf, sync::mpsc::Receiver};

/// The promise of an acknowledgement, as flags name it.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Promise {
    Disk,
    Memory,
}

impl From<Promise> for Durability {
    fn from(promise: Promise) -> Self {
        match promise {
            Promise::Disk => Self::Disk,
            Promise::Memory => Self::Memory,
        }
    }
}

/// Where real replicas live, and what counts of earlier runs.
#[derive(Args, Debug)]
pub struct Ground {
    /// Measure all again, also what an earlier run has measured
    #[arg(long)]
    fresh: bool,

    /// Where real replicas keep their data
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,

    /// The first port of real replicas; 300 are used
    #[arg(long, value_name = "PORT", default_value_t = 27_600)]
    base_port: u16,
}

impl Ground {
    /// How a scenario is run as it is, with results in `out`.
    ///
    /// # Errors
    /// When this program cannot tell where it is.
    pub fn options(&self, out: PathBuf) -> Result<Options, Failure> {
        let words: Vec<String> = std::env::args().skip(1).collect();
        Ok(Options {
            quick: false,
            repetitions: None,
            backend: None,
            profile: None,
            program: programs::find(programs::QUINTET)?,
            data: self.dir.clone(),
            base_port: self.base_port,
            namespaces: false,
            threads: 1,
            out,
            fresh: self.fresh,
            command: format!("quintet {}", words.join(" ")),
        })
    }
}

/// Runs a scenario behind a bar until it is done or the user interrupts it; `named` stands before
/// the bar's text.
///
/// # Errors
/// Those of the run.
pub fn measure(
    scenario: &Scenario,
    options: &Options,
    named: &str,
    stops: &Receiver<()>,
) -> Result<Ran, Failure> {
    let bar = output::bar(1, "[{bar:30}] {pos}/{len} {msg}, {eta} left");
    let found = run(scenario, options, |step| {
        bar.set_length(step.all as u64);
        bar.set_position(step.done as u64);
        bar.set_message(format!("{named}{}", step.now));
        stops.try_recv().is_err()
    });
    bar.finish_and_clear();
    found
}

/// Refuses results that are not all there.
///
/// # Errors
/// Says how to continue.
pub fn complete(results: &Results) -> Outcome {
    if results.is_complete {
        return Ok(());
    }
    Err(
        Failure::new(Exit::Failed, "stopped before all was measured")
            .help("the same command continues from here"),
    )
}

//! `quintet lab calibrate`: a profile of this machine for the simulated backend.
//!
//! ```text
//!   sockets, files, one real cell ──► quintet_lab::calibrate ──► PROFILE.toml
//! ```

use clap::Args;
use quintet_cli::{Outcome, output, programs, signals};
use quintet_lab::{
    calibrate::{Options, calibrate, text},
    fit::fit,
    profile,
};
use std::{fs, path::PathBuf, time::Duration};

/// Measure this machine and write a profile for the simulated backend
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab calibrate
  quintet lab calibrate --out mine.toml && quintet lab run replicas --profile mine.toml
  quintet lab calibrate --fit chora --out chora.toml

Measures wake-ups, socket calls, synchronised writes, and one real cell: three replicas, values of
128 bytes, under two loads: the clients given and a sixteenth of them. The costs of replicas and of
the load generator are fitted to that cell and then frozen; every other cell is a prediction. The
machine must be quiet. Takes about half a minute.

With --fit nothing is measured here: the costs of a profile are scaled, all by one factor, until its
[baseline], a cell that a paper shows, is met in virtual time.")]
pub struct Calibrate {
    /// Where to write the profile
    #[arg(long, value_name = "FILE", default_value = "./quintet-profile.toml")]
    out: PathBuf,

    /// Fit this profile to its baseline instead: a name, or a file
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["clients", "seconds", "dir", "base_port"])]
    fit: Option<String>,

    /// Clients of the cell that is fitted, under the greater load
    #[arg(short, long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,

    /// How long each load is measured
    #[arg(short, long, value_name = "SECONDS", default_value = "5", value_parser = super::bench::seconds)]
    seconds: Duration,

    /// A directory on the disk that is measured
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    dir: PathBuf,

    /// The first port of real replicas; 300 are used
    #[arg(long, value_name = "PORT", default_value_t = 27_600)]
    base_port: u16,
}

impl Calibrate {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        let (_sender, stops) = signals::channel_of_stops(signals::Hangup::Stops)?;
        if let Some(name) = &self.fit {
            let (file, _) = profile::load(name)?;
            let bar = output::bar(1, "{msg}");
            let found = fit(&file, |now| {
                bar.set_message(now.to_owned());
                stops.try_recv().is_err()
            });
            bar.finish_and_clear();
            let found = found?;
            let text = toml::to_string(&found.file).map_err(anyhow::Error::from)?;
            fs::write(&self.out, text)?;
            output::print_line(&format!(
                "{:.0}/s with all costs times {:.3}",
                found.throughput, found.factor
            ))?;
            eprintln!("{}", self.out.display());
            return Ok(());
        }
        let options = Options {
            program: programs::find(programs::QUINTET)?,
            data: self.dir,
            base_port: self.base_port,
            clients: self.clients as usize,
            measured: self.seconds,
        };
        let bar = output::bar(5, "[{bar:20}] {msg}");
        let found = calibrate(&options, |what| {
            bar.inc(1);
            bar.set_message(what.to_owned());
            stops.try_recv().is_err()
        });
        bar.finish_and_clear();
        let found = found?;
        fs::write(&self.out, text(&found)?)?;
        for note in &found.notes {
            output::print_line(note)?;
        }
        eprintln!("{}", self.out.display());
        Ok(())
    }
}

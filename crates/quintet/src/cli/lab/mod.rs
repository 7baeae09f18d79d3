//! `quintet lab`: measuring, beside others and in virtual time.
//!
//! ```text
//!   lab list, run, report ──► quintet_lab::{scenario, run, report} ──► a page, CSV, JSON, a table
//!   lab attack            ──► the same, from the command line, with an adversary
//!   lab gray              ──► quintet_lab::gray ──► what failures short of a crash leave
//!   lab hybrid            ──► the same, for a table of when RACS changes the way of its batches
//!   lab reordering        ──► quintet_lab::reordering ──► what deadlines do about it
//!   lab synchrony         ──► quintet_lab::synchrony ──► which rounds fit a network
//!   lab calibrate         ──► quintet_lab::calibrate ──► a profile of this machine
//!   lab compare           ──► quintet_lab::compare ──► a table, results.json
//! ```

mod attack;
mod calibrate;
mod compare;
mod gray;
mod hybrid;
mod measuring;
mod reordering;
mod scenarios;
mod synchrony;

use crate::cli::failure::Outcome;
use clap::{Args, Subcommand};

/// Measure protocols and systems beside each other
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab list                                   what can be measured
  quintet lab run wan-five-sites --bed simulated     one scenario, in virtual time
  quintet lab compare --quick                        Quintet beside etcd, ZooKeeper and Redis
  quintet lab compare quintet/memory redis/memory    only these two, on the same load")]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    List(scenarios::List),
    Run(Box<scenarios::Run>),
    Report(scenarios::Report),
    Calibrate(calibrate::Calibrate),
    Compare(Box<compare::Compare>),
    Attack(Box<attack::Attack>),
    Gray(gray::Gray),
    Hybrid(hybrid::Hybrid),
    Reordering(reordering::Reordering),
    Synchrony(synchrony::Synchrony),
}

impl Lab {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        match self.command {
            Command::List(command) => command.run(),
            Command::Run(command) => command.run(),
            Command::Report(command) => command.run(),
            Command::Calibrate(command) => command.run(),
            Command::Compare(command) => command.run(),
            Command::Attack(command) => command.run(),
            Command::Gray(command) => command.run(),
            Command::Hybrid(command) => command.run(),
            Command::Reordering(command) => command.run(),
            Command::Synchrony(command) => command.run(),
        }
    }
}

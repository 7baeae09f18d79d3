//! The command line of `quintet-lab`.
//!
//! ```text
//!   simulate, check       ──► quintet_simulator ──► verdicts, replay files
//!   torture               ──► quintet_lab::torture ──► the same, of real replicas
//!   bench                 ──► quintet_lab::load ──► throughput and latency of what runs already
//!   bench reconfigure     ──► quintet_lab::reconfigure ──► pauses when a cluster changes
//!   list, run, report     ──► quintet_lab::{scenario, run, report} ──► a page, CSV, JSON, a table
//!   attack                ──► the same, from the command line, with an adversary
//!   gray                  ──► quintet_lab::gray ──► what failures short of a crash leave
//!   hybrid                ──► the same, for a table of when RACS changes the way of its batches
//!   reordering            ──► quintet_lab::reordering ──► what deadlines do about it
//!   synchrony             ──► quintet_lab::synchrony ──► which rounds fit a network
//!   calibrate             ──► quintet_lab::calibrate ──► a profile of this machine
//!   compare               ──► quintet_lab::compare ──► a table, results.json
//! ```

mod attack;
mod bench;
mod calibrate;
mod check;
mod compare;
mod gray;
mod hybrid;
mod measuring;
mod reconfigure;
mod reordering;
mod scenarios;
mod simulate;
mod synchrony;
mod torture;

use clap::{Parser, Subcommand};
use quintet_cli::{EXIT_CODES, Outcome, STYLES, http};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  quintet simulate --seeds 0..100                    a protocol under faults, in virtual time
  quintet torture --seconds 60                       real replicas under real faults
  quintet lab list                                   what can be measured
  quintet lab run wan-five-sites --backend simulated     one scenario, in virtual time
  quintet lab compare --quick                        Quintet beside etcd, ZooKeeper and Redis
  quintet lab compare quintet/memory redis/memory    only these two, on the same load";

/// Simulate, test and measure protocols and systems; `quintet` runs it
#[derive(Debug, Parser)]
#[command(name = "quintet-lab", version, styles = STYLES, max_term_width = 100)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
struct Program {
    /// Log levels on standard error: error, warn, info, debug, trace, or per module
    #[arg(
        long,
        global = true,
        env = "QUINTET_LOG",
        value_name = "FILTER",
        default_value = "warn",
        hide_env_values = true
    )]
    log: String,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Bench),
    Simulate(simulate::Simulate),
    Check(check::Check),
    Torture(Box<torture::Torture>),
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

impl Command {
    fn run(self) -> Outcome {
        match self {
            Self::Bench(command) => command.run(),
            Self::Simulate(command) => command.run(),
            Self::Check(command) => command.run(),
            Self::Torture(command) => command.run(),
            Self::List(command) => command.run(),
            Self::Run(command) => command.run(),
            Self::Report(command) => command.run(),
            Self::Calibrate(command) => command.run(),
            Self::Compare(command) => command.run(),
            Self::Attack(command) => command.run(),
            Self::Gray(command) => command.run(),
            Self::Hybrid(command) => command.run(),
            Self::Reordering(command) => command.run(),
            Self::Synchrony(command) => command.run(),
        }
    }
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    // Wrong arguments end the process here with exit code 2, --help and --version with 0.
    let program = Program::parse();
    // For the admin HTTP of what is measured.
    if let Some(password) = std::env::var("QUINTET_PASSWORD")
        .ok()
        .filter(|password| !password.is_empty())
    {
        http::use_password(password);
    }
    quintet_cli::run(&program.log, || program.command.run())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use quintet_cli::programs::{LAB_COMMAND, LAB_COMMANDS};

    #[test]
    fn command_line_is_consistent() {
        Program::command().debug_assert();
    }

    #[test]
    fn quintet_names_and_explains_the_commands_as_they_are_here() {
        let own = Program::command();
        for (name, about) in LAB_COMMANDS {
            if name != LAB_COMMAND {
                let command = own.find_subcommand(name).unwrap();
                assert_eq!(command.get_about().unwrap().to_string(), about, "{name}");
            }
        }
    }

    #[test]
    fn every_command_explains_itself() {
        for command in Program::command().get_subcommands() {
            quintet_cli::explained(command).unwrap();
        }
    }
}

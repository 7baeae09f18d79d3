//! `quintet lab`: measuring, beside others and in virtual time.
//!
//! ```text
//!   lab compare ──► quintet_lab::compare ──► table, results.json
//! ```

mod compare;

use crate::cli::failure::Outcome;
use clap::{Args, Subcommand};

/// Measure protocols and systems beside each other
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet lab compare --quick                        Quintet beside etcd, ZooKeeper and Redis
  quintet lab compare quintet/memory redis/memory    only these two, on the same load")]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compare(Box<compare::Compare>),
}

impl Lab {
    /// Runs to the end.
    pub fn run(self) -> Outcome {
        match self.command {
            Command::Compare(command) => command.run(),
        }
    }
}

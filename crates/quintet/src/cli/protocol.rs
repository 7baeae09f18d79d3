//! `quintet protocol`: which protocol a running cluster works with, and another one.
//!
//! ```text
//!   show    ──GET /change──► any replica
//!   switch  ──POST /change──► any replica ──► the cluster continues in the next epoch
//! ```

use crate::cli::change::At;
use clap::{Args, Subcommand};
use quintet_cli::{
    Outcome,
    output::{self, Format},
    protocols,
};
use quintet_runtime::{ChangeReport, ChangeRequest};
use std::fmt::Write;

/// Show or change the protocol and the options of a running cluster
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet protocol show                      the demo in ./quintet-demo
  quintet protocol switch nezha              continue with another protocol, while clients work")]
pub struct Protocol {
    #[command(subcommand)]
    command: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    Show(Show),
    Switch(Switch),
}

/// Show with which protocol and options a cluster works
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet protocol show                                    the demo in ./quintet-demo
  quintet protocol show --admin http://127.0.0.1:7101
  quintet protocol show -o json | jq .options")]
struct Show {
    #[command(flatten)]
    at: At,
}

/// Continue with another protocol, other options, or another durability
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet protocol switch nezha                            the demo in ./quintet-demo
  quintet protocol switch multipaxos --set heartbeat_ms=50
  quintet protocol switch chain_paxos --admin http://127.0.0.1:7101
  quintet protocol switch multipaxos --durability memory

The cluster orders the change as it orders a command; each replica continues by itself in the next
epoch over the data that it has. Clients stay connected and wait for a moment. Options that are not
named keep their values; those of another protocol have their defaults. It may be asked for again
after an interruption: what is so already changes nothing.

With --durability disk, every replica has the data on its disk before it continues. With memory, what
is written from then on is lost when a majority of the replicas stops at a time.")]
struct Switch {
    /// The protocol's name, see 'quintet protocols'
    name: String,

    /// An option of the protocol; may be repeated
    #[arg(long, value_name = "OPTION=VALUE", value_parser = protocols::assignment)]
    set: Vec<(String, String)>,

    /// The durability from then on: acknowledged is what a majority has on disk, or in memory
    #[arg(long, value_parser = ["disk", "memory"])]
    durability: Option<String>,

    #[command(flatten)]
    at: At,
}

impl Protocol {
    /// The password to send to the replicas.
    pub fn password(&self) -> Option<&str> {
        let at = match &self.command {
            Which::Show(show) => &show.at,
            Which::Switch(switch) => &switch.at,
        };
        at.password.as_deref()
    }

    /// Asks and prints.
    pub fn run(self) -> Outcome {
        match self.command {
            Which::Show(show) => {
                let report = show.at.ask(None)?;
                print(&show.at, &report, "works with")
            }
            Which::Switch(switch) => {
                protocols::find(&switch.name)?;
                let request = ChangeRequest {
                    protocol: Some(switch.name),
                    options: switch.set.into_iter().collect(),
                    durability: switch.durability,
                    remove: Vec::new(),
                };
                let report = switch.at.ask(Some(&request))?;
                print(&switch.at, &report, "continues with")
            }
        }
    }
}

/// Tells how the cluster works.
fn print(at: &At, report: &ChangeReport, verb: &str) -> Outcome {
    if at.output == Format::Json {
        return output::print_json(report);
    }
    let mut text = format!(
        "The cluster {verb} {} in epoch {}, durability {}.\n",
        report.protocol, report.epoch, report.durability
    );
    for (name, value) in &report.options {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name} = {value}");
    }
    output::print(&text)
}

//! `quintet protocol`: which protocol a running cluster works with, and another one.
//!
//! ```text
//!   show    ──GET /change──► any replica
//!   switch  ──POST /change──► any replica ──► the cluster goes on in the next epoch
//! ```

use crate::cli::{demo, password::Password, status};
use clap::{Args, Subcommand};
use quintet_cli::{
    Exit, Failure, Outcome, http,
    output::{self, Format},
    protocols,
};
use quintet_runtime::{ChangeReport, ChangeRequest};
use std::{fmt::Write, path::PathBuf, time::Duration};

/// Longer than a replica waits for a change.
const PATIENCE: Duration = Duration::from_secs(70);

/// Show or change the protocol and the options of a running cluster
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet protocol show                      the demo in ./quintet-demo
  quintet protocol switch nezha              go on with another protocol, while clients work")]
pub struct Protocol {
    #[command(subcommand)]
    command: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    Show(Show),
    Switch(Switch),
}

#[derive(Args, Debug)]
struct At {
    /// The admin address of any replica
    #[arg(long, value_name = "URL", value_parser = http::authority)]
    admin: Option<String>,

    #[command(flatten)]
    password: Password,

    /// A demo's directory, to ask one of its replicas
    #[arg(long, value_name = "DIR", default_value = demo::DIRECTORY, conflicts_with = "admin")]
    dir: PathBuf,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
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

/// Go on with another protocol, or with other options of this one
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet protocol switch nezha                            the demo in ./quintet-demo
  quintet protocol switch multipaxos --set heartbeat_ms=50
  quintet protocol switch chain_paxos --admin http://127.0.0.1:7101

The cluster orders the change as it orders a command; each replica goes on by itself in the next
epoch over the data that it has. Clients stay connected and wait for a moment. Options that are not
named keep their values; those of another protocol have their defaults. It may be asked for again
after an interruption: what is so already changes nothing.")]
struct Switch {
    /// The protocol's name, see 'quintet protocols'
    name: String,

    /// An option of the protocol; may be repeated
    #[arg(long, value_name = "OPTION=VALUE", value_parser = protocols::assignment)]
    set: Vec<(String, String)>,

    #[command(flatten)]
    at: At,
}

impl Protocol {
    /// What the replicas are to be given.
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
                let report = show.at.ask("GET", None)?;
                show.at.print(&report, "works with")
            }
            Which::Switch(switch) => {
                protocols::find(&switch.name)?;
                let request = ChangeRequest {
                    protocol: Some(switch.name),
                    options: switch.set.into_iter().collect(),
                };
                let report = switch.at.ask("POST", Some(&request))?;
                switch.at.print(&report, "goes on with")
            }
        }
    }
}

impl At {
    /// Asks the replicas that are known until one answers.
    fn ask(&self, method: &str, request: Option<&ChangeRequest>) -> Outcome<ChangeReport> {
        let addresses = match &self.admin {
            Some(address) => vec![address.clone()],
            None => status::addresses_of_demo(&self.dir)?,
        };
        let body = request.map(|request| serde_json::to_string(request).unwrap_or_default());
        let mut last = String::new();
        for address in &addresses {
            let body = body.as_deref().unwrap_or_default();
            let answer = match http::request_with(method, address, "/change", body, PATIENCE) {
                Ok(answer) => answer,
                Err(error) => {
                    last = format!("{address}: {error}");
                    continue;
                }
            };
            let text = String::from_utf8_lossy(&answer.body).trim().to_owned();
            return match answer.code {
                200 => serde_json::from_slice(&answer.body)
                    .map_err(|error| Failure::new(Exit::Failed, format!("{address}: {error}"))),
                401 => Err(Failure::usage(format!("{address}: it needs the password"))
                    .help("set QUINTET_PASSWORD or --password")),
                404 => Err(Failure::new(
                    Exit::Refused,
                    format!("{address}: it is of a version that changes no protocol"),
                )),
                _ => Err(Failure::new(Exit::Failed, format!("{address}: {text}"))),
            };
        }
        Err(Failure::new(Exit::Unreachable, last)
            .help("name a replica that runs with --admin http://127.0.0.1:7101"))
    }

    fn print(&self, report: &ChangeReport, verb: &str) -> Outcome {
        if self.output == Format::Json {
            return output::print_json(report);
        }
        let mut text = format!(
            "The cluster {verb} {} in epoch {}.\n",
            report.protocol, report.epoch
        );
        for (name, value) in &report.options {
            // Writing to a string does not fail.
            let _ = writeln!(text, "  {name} = {value}");
        }
        output::print(&text)
    }
}

//! `quintet member`: who the members of a running cluster are, and one less.

use crate::cli::change::At;
use clap::{Args, Subcommand};
use quintet_cli::{
    Outcome,
    output::{self, Format},
};
use quintet_runtime::ChangeRequest;
use std::fmt::Write;

/// Show the members of a running cluster, or remove one
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet member list                        the demo in ./quintet-demo
  quintet member remove 4                    the one with the highest number

One more member, or another one in the place of one that is lost, is started with 'quintet join'.")]
pub struct Member {
    #[command(subcommand)]
    command: Which,
}

#[derive(Debug, Subcommand)]
enum Which {
    List(List),
    Remove(Remove),
}

/// List the members with their identities and addresses
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet member list                                      the demo in ./quintet-demo
  quintet member list --admin http://127.0.0.1:7101
  quintet member list -o json | jq -r '.[].node'")]
struct List {
    #[command(flatten)]
    at: At,
}

/// Remove the member with the highest number
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet member remove 4                                  the demo in ./quintet-demo
  quintet member remove 4 --admin http://127.0.0.1:7101

The cluster goes on without it in another epoch; the members that stay must be a quorum of theirs.
The removed replica stops when it is told, with exit code 7; its data directory can be removed. Any
other member is replaced instead, see 'quintet join'.")]
struct Remove {
    /// Its number, see 'quintet member list'
    id: u16,

    #[command(flatten)]
    at: At,
}

impl Member {
    fn at(&self) -> &At {
        match &self.command {
            Which::List(list) => &list.at,
            Which::Remove(remove) => &remove.at,
        }
    }

    /// What the replicas are to be given.
    pub fn password(&self) -> Option<&str> {
        self.at().password.as_deref()
    }

    /// Asks and prints.
    pub fn run(self) -> Outcome {
        let at = self.at();
        let report = match &self.command {
            Which::List(_) => at.ask("GET", None)?,
            Which::Remove(remove) => {
                let request = ChangeRequest {
                    remove: Some(remove.id),
                    ..ChangeRequest::default()
                };
                at.ask("POST", Some(&request))?
            }
        };
        if at.output == Format::Json {
            return output::print_json(&report.members);
        }
        let mut text = format!(
            "{:>2}  {:<16}  {:<5}  {:<21}  redis\n",
            "id", "node", "role", "peer"
        );
        for member in &report.members {
            let redis = member.redis.as_deref().unwrap_or("unknown");
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{:>2}  {:<16}  {:<5}  {:<21}  {redis}",
                member.id, member.node, member.role, member.peer
            );
        }
        output::print(&text)
    }
}

//! `quintet config`: show, check and write configurations.

use crate::cli::settings::{self, Overrides, schema};
use clap::{Args, Subcommand};
use quintet_cli::{
    Failure, Outcome,
    output::{self, Format},
    units,
};
use serde::Serialize;
use std::{fmt::Write, path::PathBuf};

/// Show, check or write a replica's configuration
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet config show --config replica-0.toml --origin   every key, its value, where it came from
  quintet config check --config replica-0.toml           exit code 2 if it would be refused
  quintet config new --id 0 --members a:7201,b:7201,c:7201 > replica-0.toml

Every key can stand in the file, in the environment (QUINTET_CLIENTS_MAX) and on the command line
(--clients-max); the later one wins.")]
pub struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print every key with the value that a replica would use
    Show(Box<Show>),
    /// Check a configuration without starting anything
    Check(Box<Source>),
    /// Print a commented configuration file for a new cluster
    New(New),
}

#[derive(Args, Debug)]
struct Source {
    /// The configuration file
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    overrides: Overrides,
}

#[derive(Args, Debug)]
struct Show {
    #[command(flatten)]
    source: Source,

    /// Say where each value came from: default, file and line, variable or flag
    #[arg(long)]
    origin: bool,

    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Args, Debug)]
struct New {
    /// The new file's place among the members, from 0
    #[arg(long, default_value_t = 0)]
    id: u16,

    /// The members' addresses for each other, in the order of their ids
    #[arg(
        long,
        value_name = "HOST:PORT,…",
        value_delimiter = ',',
        required = true
    )]
    members: Vec<String>,

    /// The cluster's identity, to write a further member's file [default: a new one]
    #[arg(long, value_name = "HEX")]
    cluster: Option<String>,

    /// The members' common secret, to write a further member's file [default: a new one]
    #[arg(
        long,
        value_name = "HEX",
        env = "QUINTET_SECRET",
        hide_env_values = true
    )]
    secret: Option<String>,
}

#[derive(Serialize)]
struct Row<'a> {
    key: &'a str,
    value: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
}

impl Config {
    /// Runs the subcommand.
    pub fn run(self) -> Outcome {
        match self.command {
            Command::Show(show) => show.run(),
            Command::Check(source) => {
                let loaded = settings::load(source.config.as_deref(), &source.overrides)?;
                let config = loaded.config;
                output::print_line(&format!(
                    "ok: replica {} of {}, protocol {}, durability {}",
                    config.id.0,
                    config.members.len(),
                    config.protocol,
                    config.durability.name()
                ))
            }
            Command::New(new) => new.run(),
        }
    }
}

impl Show {
    fn run(self) -> Outcome {
        let source = &self.source;
        let loaded = settings::load_to_show(source.config.as_deref(), &source.overrides)?;
        let rows = loaded.rows();
        if self.output == Format::Json {
            let rows: Vec<_> = rows
                .iter()
                .map(|(key, value, origin)| Row {
                    key,
                    value,
                    origin: self.origin.then(|| origin.to_string()),
                })
                .collect();
            return output::print_json(&rows);
        }
        let header: &[&str] = if self.origin {
            &["key", "value", "origin"]
        } else {
            &["key", "value"]
        };
        let mut table = output::table(header);
        for (key, value, origin) in rows {
            let mut cells = vec![key, value];
            if self.origin {
                cells.push(origin.to_string());
            }
            table.add_row(cells);
        }
        output::print_table(table)
    }
}

impl New {
    fn run(self) -> Outcome {
        let cluster = match self.cluster {
            Some(cluster) => cluster,
            None => units::hex_of_bytes(&units::random_bytes::<16>()?),
        };
        let secret = match self.secret {
            Some(secret) => secret,
            None => units::hex_of_bytes(&units::random_bytes::<32>()?),
        };
        let mut config = settings::blank();
        config.data = format!("data-{}", self.id).into();
        let own = self
            .members
            .get(usize::from(self.id))
            .cloned()
            .ok_or_else(|| {
                let last = self.members.len() - 1;
                Failure::usage(format!(
                    "--id: {} is not a member; accepted are 0 to {last}",
                    self.id
                ))
            })?;
        // Rejects here what `config check` would reject in the file. The members' names may be
        // unknown on this machine, so no address of theirs is looked up.
        settings::from_flags(&[
            ("cluster", &cluster),
            ("secret", &secret),
            ("id", &self.id.to_string()),
            ("members", &self.members.join(",")),
            ("data", "data"),
            ("peer_listen", "127.0.0.1:0"),
        ])?;
        let mut text = String::from("# One replica. Start it with: quintet serve --config FILE\n");
        let mut section = "";
        for key in schema::KEYS {
            let (of, name) = key.name.rsplit_once('.').unwrap_or(("", key.name));
            if of != section {
                section = of;
                // Writing to a string does not fail.
                let _ = write!(text, "\n[{section}]\n");
            }
            let (given, value) = match key.name {
                "cluster" => (true, quoted(&cluster)),
                "secret" => (true, quoted(&secret)),
                "id" => (true, self.id.to_string()),
                "members" => {
                    let members: Vec<_> = self
                        .members
                        .iter()
                        .map(|member| quoted(member.trim()))
                        .collect();
                    (true, format!("[{}]", members.join(", ")))
                }
                "data" => (true, quoted(&(key.get)(&config))),
                "redis_listen" => (true, quoted("127.0.0.1:7001")),
                "admin_listen" => (true, quoted("127.0.0.1:7101")),
                "peer_listen" => (false, quoted(own.trim())),
                _ => (false, quoted(&(key.get)(&config))),
            };
            let mark = if given { "" } else { "# " };
            let _ = write!(text, "\n# {}\n{mark}{name} = {value}\n", key.help);
        }
        text.push_str("\n# The protocol's options, see 'quintet protocols'\n# [options]\n");
        output::print(&text)
    }
}

/// Text as a TOML string.
pub fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

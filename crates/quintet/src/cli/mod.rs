//! The command line.
//!
//! ```text
//!   arguments ──► Program (clap) ──► logs ──► one file per command ──► Outcome ──► exit code
//! ```

mod bench;
mod check;
mod completions;
mod config;
mod demo;
mod failure;
mod journal;
mod lab;
mod logs;
mod origin;
mod output;
mod protocols;
mod proxy;
mod serve;
mod settings;
mod signals;
mod simulate;
mod snapshot;
mod status;
mod suggest;
mod torture;

use clap::{Parser, Subcommand, builder::styling};
use failure::{EXIT_CODES, Outcome};
use quintet_lab::http;
use std::{
    net::{SocketAddr, ToSocketAddrs},
    process::ExitCode,
};

/// The address that a text names; a host's name is looked up.
fn resolve(text: &str) -> Option<SocketAddr> {
    text.to_socket_addrs().ok()?.next()
}

const STYLES: styling::Styles = styling::Styles::styled()
    .header(styling::AnsiColor::Green.on_default().bold())
    .usage(styling::AnsiColor::Green.on_default().bold())
    .literal(styling::AnsiColor::Cyan.on_default().bold())
    .placeholder(styling::AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  quintet demo                          three replicas on this machine, in one command
  redis-cli -p 7001 set greeting hello  write at one replica …
  redis-cli -p 7003 get greeting        … read it at another
  quintet status                        who leads, how far everybody is
  quintet bench --clients 50            measure the demo
  quintet simulate --seeds 0..100       the same code under faults, in virtual time";

/// A strongly consistent, fault-tolerant store that speaks the Redis protocol: one replica, many
/// replication protocols.
#[derive(Debug, Parser)]
#[command(name = "quintet", version, styles = STYLES, max_term_width = 100)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
#[command(arg_required_else_help = true)]
struct Program {
    /// What to log on standard error: error, warn, info, debug, trace, or per module
    /// (quintet_runtime=debug) [default: info for serve, else warn]
    #[arg(
        long,
        global = true,
        env = "QUINTET_LOG",
        value_name = "FILTER",
        hide_env_values = true
    )]
    log: Option<String>,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Serve(Box<serve::Serve>),
    Proxy(Box<proxy::Proxy>),
    Status(status::Status),
    Protocols(protocols::Protocols),
    Bench(bench::Bench),
    Lab(lab::Lab),
    Simulate(simulate::Simulate),
    Check(check::Check),
    Torture(Box<torture::Torture>),
    Snapshot(snapshot::Snapshot),
    Journal(journal::Journal),
    Config(config::Config),
    Completions(completions::Completions),
}

impl Command {
    const fn log_default(&self) -> &'static str {
        match self {
            Self::Serve(_) | Self::Proxy(_) => "info",
            _ => "warn",
        }
    }

    /// What admin HTTP is to be given, if it asks for it.
    fn password(&self) -> Option<String> {
        let given = match self {
            Self::Status(command) => command.password().map(str::to_owned),
            Self::Snapshot(command) => command.password().map(str::to_owned),
            // What these start has it from the environment, too.
            _ => std::env::var("QUINTET_PASSWORD").ok(),
        };
        given.filter(|password| !password.is_empty())
    }

    fn run(self) -> Outcome {
        match self {
            Self::Demo(command) => command.run(),
            Self::Serve(command) => command.run(),
            Self::Proxy(command) => command.run(),
            Self::Status(command) => command.run(),
            Self::Protocols(command) => command.run(),
            Self::Bench(command) => command.run(),
            Self::Lab(command) => command.run(),
            Self::Simulate(command) => command.run(),
            Self::Check(command) => command.run(),
            Self::Torture(command) => command.run(),
            Self::Snapshot(command) => command.run(),
            Self::Journal(command) => command.run(),
            Self::Config(command) => command.run(),
            Self::Completions(command) => command.run(),
        }
    }
}

/// The store that a replica of this configuration serves.
pub fn store(config: &quintet_runtime::Config) -> Box<dyn quintet_replica::StateMachine> {
    Box::new(quintet_store::Store::new(quintet_store::StoreOptions {
        max_key_bytes: config.limits.key_bytes_max,
        max_value_bytes: config.limits.value_bytes_max,
        max_reply_bytes: quintet_replica::limits::reply_bytes_max(config.limits.value_bytes_max),
        ..quintet_store::StoreOptions::default()
    }))
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    // Wrong arguments end the process here with exit code 2, --help and --version with 0.
    let program = Program::parse();
    if let Some(password) = program.command.password() {
        http::use_password(password);
    }
    let result = logs::start(
        program
            .log
            .as_deref()
            .unwrap_or(program.command.log_default()),
    )
    .and_then(|()| program.command.run());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Program::command().debug_assert();
    }

    #[test]
    fn help_documents_every_exit_code_and_gives_examples() {
        let help = Program::command().render_long_help().to_string();
        for code in 0..=8 {
            assert!(help.contains(&format!("\n  {code}  ")), "exit code {code}");
        }
        assert!(help.contains("quintet demo"));
    }

    #[test]
    fn every_command_explains_itself() {
        for command in Program::command().get_subcommands() {
            let name = command.get_name();
            assert!(command.get_about().is_some(), "{name} says what it does");
            let examples = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(examples.contains("Example"), "{name} gives an example");
            for argument in command.get_arguments() {
                let id = argument.get_id();
                assert!(
                    argument.get_help().is_some() || argument.is_hide_set(),
                    "{name} {id}"
                );
            }
        }
    }
}

//! The command line.
//!
//! ```text
//!   arguments ──► Program (clap) ──► logs ──► one file per command ──► Outcome ──► exit code
//!                     └─ a command of the lab ──► exec quintet-lab
//! ```

mod change;
mod completions;
mod config;
mod demo;
mod diff;
mod groups;
mod join;
mod journal;
mod layout;
mod member;
#[cfg(target_os = "linux")]
mod mount;
mod origin;
mod password;
mod progress;
mod protocol;
mod protocols;
mod proxy;
mod resp;
mod serve;
mod settings;
mod snapshot;
mod status;

use clap::{Arg, ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use quintet_cli::{EXIT_CODES, Outcome, STYLES, http, programs};
use std::{
    ffi::{OsStr, OsString},
    net::{SocketAddr, ToSocketAddrs},
    process::ExitCode,
};

/// The address that a text names; a host's name is looked up.
fn resolve(text: &str) -> Option<SocketAddr> {
    text.to_socket_addrs().ok()?.next()
}

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
    /// Log levels on standard error: error, warn, info, debug, trace, or per module
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
    Join(Box<join::Join>),
    Member(member::Member),
    Status(status::Status),
    Groups(groups::Groups),
    Protocols(protocols::Protocols),
    Protocol(protocol::Protocol),
    Snapshot(snapshot::Snapshot),
    Diff(diff::Diff),
    #[cfg(target_os = "linux")]
    Mount(mount::Mount),
    Journal(journal::Journal),
    Config(config::Config),
    Completions(completions::Completions),
}

impl Command {
    const fn log_default(&self) -> &'static str {
        match self {
            Self::Serve(_) | Self::Proxy(_) | Self::Join(_) => "info",
            _ => "warn",
        }
    }

    /// The password for admin HTTP, if it requires one.
    fn password(&self) -> Option<String> {
        let given = match self {
            Self::Status(command) => command.password().map(str::to_owned),
            Self::Groups(command) => command.password().map(str::to_owned),
            Self::Snapshot(command) => command.password().map(str::to_owned),
            Self::Protocol(command) => command.password().map(str::to_owned),
            Self::Member(command) => command.password().map(str::to_owned),
            Self::Diff(command) => command.password().map(str::to_owned),
            #[cfg(target_os = "linux")]
            Self::Mount(command) => command.password().map(str::to_owned),
            // The programs that these start read it from the environment, too.
            _ => std::env::var("QUINTET_PASSWORD").ok(),
        };
        given.filter(|password| !password.is_empty())
    }

    fn run(self) -> Outcome {
        match self {
            Self::Demo(command) => command.run(),
            Self::Serve(command) => command.run(),
            Self::Proxy(command) => command.run(),
            Self::Join(command) => command.run(),
            Self::Member(command) => command.run(),
            Self::Status(command) => command.run(),
            Self::Groups(command) => command.run(),
            Self::Protocols(command) => command.run(),
            Self::Protocol(command) => command.run(),
            Self::Snapshot(command) => command.run(),
            Self::Diff(command) => command.run(),
            #[cfg(target_os = "linux")]
            Self::Mount(command) => command.run(),
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

/// The command line with the commands of the lab, whose arguments `quintet-lab` reads.
fn program() -> clap::Command {
    let of_lab = programs::LAB_COMMANDS.iter().map(|(name, about)| {
        let arguments = Arg::new(LAB_ARGUMENTS)
            .help("See 'quintet COMMAND --help'")
            .num_args(0..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .value_parser(clap::value_parser!(OsString));
        clap::Command::new(*name)
            .about(*about)
            .disable_help_flag(true)
            .arg(arguments)
    });
    Program::command().subcommands(of_lab)
}

const LAB_ARGUMENTS: &str = "arguments";

/// The arguments for `quintet-lab`, when the command is one of its own.
fn of_lab(matches: &ArgMatches) -> Option<(&str, Vec<OsString>)> {
    let (name, given) = matches.subcommand()?;
    if !is_of_lab(name.as_ref()) {
        return None;
    }
    let arguments = given.get_many::<OsString>(LAB_ARGUMENTS);
    Some((name, arguments.unwrap_or_default().cloned().collect()))
}

/// `quintet help COMMAND …` as `quintet COMMAND … --help`, which `quintet-lab` can answer.
fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if let [_, help, command, ..] = arguments.as_slice()
        && help == "help"
        && is_of_lab(command)
    {
        arguments.remove(1);
        arguments.push("--help".into());
    }
    arguments
}

fn is_of_lab(command: &OsStr) -> bool {
    programs::LAB_COMMANDS
        .iter()
        .any(|(name, _)| command == *name)
}

/// Runs the command that the arguments name.
pub fn main() -> ExitCode {
    // Wrong arguments end the process here with exit code 2, --help and --version with 0.
    let matches = program().get_matches_from(arguments());
    if let Some((command, arguments)) = of_lab(&matches) {
        let log = matches.get_one::<String>("log").map(String::as_str);
        return programs::become_lab(command, &arguments, log).report();
    }
    let program = match Program::from_arg_matches(&matches) {
        Ok(program) => program,
        Err(error) => error.exit(),
    };
    if let Some(password) = program.command.password() {
        http::use_password(password);
    }
    let log_default = program.command.log_default();
    quintet_cli::run(program.log.as_deref().unwrap_or(log_default), || {
        program.command.run()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        program().debug_assert();
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
            quintet_cli::explained(command).unwrap();
        }
    }

    #[test]
    fn arguments_of_the_lab_are_handed_on_as_they_are() {
        let given = [
            "quintet", "--log", "info", "simulate", "--seeds", "0..9", "--help",
        ];
        let matches = program().get_matches_from(given);
        let (command, arguments) = of_lab(&matches).unwrap();
        assert_eq!(command, "simulate");
        assert_eq!(arguments, ["--seeds", "0..9", "--help"]);
        let own = program().get_matches_from(["quintet", "protocols"]);
        assert_eq!(of_lab(&own), None);
    }
}

//! Shared by the programs `quintet` and `quintet-lab`: how a command reads its arguments, prints
//! and ends.
//!
//! ```text
//!   arguments ──► units, protocols, links ──► a command ──► output ──► stdout
//!                                                  └─ Failure ──► stderr, exit code
//!   quintet simulate … ──► programs ──► quintet-lab simulate …
//! ```

#![forbid(unsafe_code)]

mod failure;
pub mod http;
pub mod links;
pub mod logs;
pub mod output;
pub mod programs;
pub mod protocols;
pub mod signals;
pub mod suggest;
pub mod toml_error;
pub mod units;

pub use failure::{EXIT_CODES, Exit, Failure, Outcome};

use clap::builder::styling;
use std::process::ExitCode;

/// The colours of `--help`.
pub const STYLES: styling::Styles = styling::Styles::styled()
    .header(styling::AnsiColor::Green.on_default().bold())
    .usage(styling::AnsiColor::Green.on_default().bold())
    .literal(styling::AnsiColor::Cyan.on_default().bold())
    .placeholder(styling::AnsiColor::Cyan.on_default());

/// Runs a command with logs let through by `log`; its failure is printed.
pub fn run(log: &str, command: impl FnOnce() -> Outcome) -> ExitCode {
    match logs::start(log).and_then(|()| command()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Checks that a command says what it does, gives an example and explains each argument.
///
/// # Errors
/// With what is missing.
pub fn explained(command: &clap::Command) -> Result<(), String> {
    let name = command.get_name();
    if command.get_about().is_none() {
        return Err(format!("{name} does not say what it does"));
    }
    let examples = command.get_after_help().map(ToString::to_string);
    if !examples.is_some_and(|text| text.contains("Example")) {
        return Err(format!("{name} gives no example"));
    }
    let unexplained = command
        .get_arguments()
        .find(|argument| argument.get_help().is_none() && !argument.is_hide_set());
    match unexplained {
        Some(argument) => Err(format!("{name}: {} is not explained", argument.get_id())),
        None => Ok(()),
    }
}

//! Logs: one short line each, on standard error.

use crate::{Failure, Outcome};
use std::{
    io::{self, IsTerminal},
    time::SystemTime,
};
use tracing_subscriber::{
    EnvFilter,
    fmt::{format::Writer, time::FormatTime},
};

struct Clock;

impl FormatTime for Clock {
    fn format_time(&self, out: &mut Writer<'_>) -> std::fmt::Result {
        write!(
            out,
            "{}",
            humantime::format_rfc3339_millis(SystemTime::now())
        )
    }
}

/// Lets everything that `filter` names through.
///
/// # Errors
/// When it is not a filter.
pub fn start(filter: &str) -> Outcome {
    let filter = EnvFilter::builder().parse(filter).map_err(|error| {
        Failure::usage(format!("--log '{filter}': {error}"))
            .help("use error, warn, info, debug, trace, or module=level, separated by commas")
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_timer(Clock)
        .with_target(false)
        .init();
    Ok(())
}

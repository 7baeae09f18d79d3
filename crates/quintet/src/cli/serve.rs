//! `quintet serve`: one replica in this process.
//!
//! ```text
//!   file, environment, flags ──► Config ──► Replica::start ──► … ──► ExitReason ──► exit code
//!                              SIGTERM, SIGINT ──► stop: hand leadership over, flush, leave
//! ```

use crate::cli::settings::{self, Overrides};
use clap::Args;
use quintet_cli::{Exit, Failure, Outcome, links, signals};
use quintet_runtime::{
    Config, Emulation, ExitReason, Handle, Listeners, Replica, Running, StartError,
};
use std::{
    ffi::OsString,
    fs,
    io::Read,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
    sync::mpsc::Receiver,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Run one replica of a cluster in this process
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet config new --members 127.0.0.1:7201 > one.toml && quintet serve --config one.toml
  quintet serve --config replica-0.toml --log debug
  QUINTET_PASSWORD=… quintet serve --config replica-0.toml --redis-listen 0.0.0.0:7001

SIGTERM and Ctrl-C stop it gracefully: it hands leadership over, finishes what is in progress, and
exits with 0. It exits with 2 when a setting is wrong or a port is taken, 7 when the data directory
is refused, 8 when the storage failed.")]
pub struct Serve {
    /// The configuration file (TOML); see 'quintet config new'
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Start a 'memory' cluster again after the memories of a majority were lost; what they held
    /// is gone
    #[arg(long)]
    bootstrap_again: bool,

    /// Make the links between replicas slower or worse than the network is, as this file says
    /// (see docs/guide/scenarios.md); for measuring and for trying out
    #[arg(long, value_name = "FILE")]
    links: Option<PathBuf>,

    /// From when on changes of links count, in milliseconds since the Unix epoch [default: now]
    #[arg(long, value_name = "MS", hide = true)]
    links_began: Option<u64>,

    #[command(flatten)]
    process: Process,
}

/// Flags of every long-running process of a cluster.
#[derive(Args, Debug)]
pub struct Process {
    /// Set this process's clock wrong by that many microseconds, for measuring and for trying out
    #[arg(
        long,
        value_name = "US",
        hide = true,
        allow_negative_numbers = true,
        default_value_t = 0
    )]
    clock_skew_us: i64,

    /// Stop when standard input ends: the process that started this one is gone
    #[arg(long, hide = true)]
    stop_with_stdin: bool,

    #[command(flatten)]
    pub overrides: Overrides,
}

impl Process {
    /// The configuration with the clock set as asked for.
    pub fn with_clock(&self, config: Config) -> Config {
        Config {
            clock_skew: self.clock_skew_us.saturating_mul(1000),
            ..config
        }
    }
}

impl Serve {
    /// Runs until stopped.
    pub fn run(self) -> Outcome {
        let (_sender, stops) = signals::channel_of_stops(signals::Hangup::Ignored)?;
        let loaded = settings::load(self.config.as_deref(), &self.process.overrides)?;
        let config = Config {
            bootstrap_again: self.bootstrap_again,
            emulation: self.emulation(loaded.config.members.len())?,
            ..self.process.with_clock(loaded.config)
        };
        serve(config, stops, &self.process, |_| Ok(()))
    }

    fn emulation(&self, members: usize) -> Outcome<Option<Emulation>> {
        let Some(path) = &self.links else {
            return Ok(None);
        };
        let file = path.display().to_string();
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("--links: {file}: {error}")))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let began = self.links_began.map(Duration::from_millis);
        Ok(Some(Emulation {
            links: links::parse_links(&text, &file, members)?,
            began: began.unwrap_or(now.unwrap_or_default()),
        }))
    }
}

/// An address as a URL.
pub fn shown(address: Option<std::net::SocketAddr>, scheme: &str) -> String {
    address.map_or_else(|| "none".to_owned(), |it| format!("{scheme}://{it}"))
}

/// Runs a replica until it is stopped; `watch` is handed it when it begins.
///
/// # Errors
/// When it cannot start, or ended otherwise.
pub fn serve(
    config: Config,
    stops: Receiver<()>,
    process: &Process,
    watch: impl FnOnce(Handle) -> Outcome,
) -> Outcome {
    let (id, members) = (config.id.0, config.members.len());
    let store = config.clone();
    let machine = move |_| crate::cli::store(&store);
    let running = Replica::start_divided(config, machine, Listeners::default()).map_err(refusal)?;
    let addresses = running.addresses();
    tracing::info!(
        "replica {id} of {members} serves {}, admin {}, peers {}",
        shown(addresses.redis, "redis"),
        shown(addresses.admin, "http"),
        addresses.peer
    );
    watch(running.handle())?;
    attend(running, &format!("replica {id}"), stops, process)
}

/// Waits until what runs has ended, and stops it when asked.
///
/// # Errors
/// When it ended otherwise.
pub fn attend(running: Running, name: &str, stops: Receiver<()>, process: &Process) -> Outcome {
    if process.stop_with_stdin {
        stop_with_stdin(running.handle())?;
    }
    let handle = running.handle();
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if stops.recv().is_ok() {
                // The replica logs that it stops.
                handle.stop();
            }
            if stops.recv().is_ok() {
                tracing::warn!("asked twice to stop: leaving at once");
                std::process::exit(Exit::Failed as i32);
            }
        })?;
    match running.join() {
        ExitReason::Stopped => {
            tracing::info!("stopped");
            Ok(())
        }
        ExitReason::StartAgain(reason) => {
            tracing::warn!(reason, "this process begins again");
            let mut arguments = std::env::args_os();
            let name = arguments.next().unwrap_or_default();
            let mut again = Command::new(std::env::current_exe()?);
            let arguments = arguments_again(arguments);
            Err(again.arg0(name).args(arguments).exec().into())
        }
        reason => Err(Failure::new(
            Exit::from_code(i32::from(reason.exit_code())),
            format!("{name} {reason}"),
        )),
    }
}

/// The arguments of a process that starts again by itself: what its operator gave up with
/// `--bootstrap-again` was given up once, and not what the others have had since.
fn arguments_again(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    arguments.filter(|argument| argument != "--bootstrap-again")
}

/// Why it cannot start, with the setting that would help.
pub fn refusal(error: StartError) -> Failure {
    let exit = Exit::from_code(i32::from(error.exit_code()));
    let failure = Failure::new(exit, &error);
    match &error {
        StartError::PortInUse { setting, .. } | StartError::Listen { setting, .. } => {
            match settings::schema::find(setting) {
                Some(key) => {
                    let (flag, variable) = (key.flag(), key.variable());
                    failure.help(format!(
                        "set another address with --{flag}, {variable} or '{setting}' in the file"
                    ))
                }
                None => failure,
            }
        }
        _ => failure,
    }
}

/// The process that holds the other end of the pipe wants no replica to outlive it.
fn stop_with_stdin(handle: Handle) -> Outcome {
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || {
            let mut bytes = [0; 64];
            let mut input = std::io::stdin().lock();
            loop {
                match input.read(&mut bytes) {
                    Ok(read) if read > 0 => {}
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    _ => break,
                }
            }
            tracing::info!("the process that started this replica is gone");
            handle.stop();
        })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_starts_again_gives_up_nothing_more() {
        let given = [
            "serve",
            "--config",
            "one.toml",
            "--bootstrap-again",
            "--log=debug",
        ];
        let again: Vec<_> = arguments_again(given.iter().map(OsString::from)).collect();
        assert_eq!(again, ["serve", "--config", "one.toml", "--log=debug"]);
    }
}

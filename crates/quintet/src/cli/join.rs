//! `quintet join`: a new replica of a running cluster, one more or in the place of a lost one.
//!
//! ```text
//!   seed: a member ◄── "in the place of replica 2" ── join ──► serves as replica 2
//! ```

use crate::cli::{
    progress::{LOOK, Progress, line_of},
    serve::{Process, refusal, serve},
    settings,
};
use clap::Args;
use quintet_cli::{Failure, Outcome, signals};
use quintet_replica::ReplicaId;
use quintet_runtime::{Config, Handle, Join as Wanted, MemberReport};
use std::{
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// The longest wait until the cluster has the new member.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Between two lines about the state that is fetched.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Run a new replica of a running cluster: one more, or in the place of one that is lost
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet join --seed 10.0.0.1:7201 --dir /var/lib/quintet --peer-listen 10.0.0.9:7201
  quintet join --seed 10.0.0.1:7201 --replace 2 --dir /var/lib/quintet --peer-listen 10.0.0.9:7201
  quintet join --dir /var/lib/quintet --peer-listen 10.0.0.9:7201      start it again

The cluster continues in another epoch, in which this replica is a member; it takes protocol, options,
limits and members from there, fetches the state, and serves as 'quintet serve' does. One more
replica has no vote until it has caught up; in the place of a lost one it has it at once. One that
is replaced is no member any more: should its directory be found again, it is refused. The same
command may be given again after an interruption: the directory knows who it is. Like all members it
needs the cluster's secret (QUINTET_SECRET).")]
pub struct Join {
    /// The peer address of a member to ask; may be repeated
    #[arg(long, value_name = "HOST:PORT")]
    seed: Vec<String>,

    /// The number of a lost member whose place it takes, see 'quintet member list'; without it,
    /// the cluster has one member more
    #[arg(long, value_name = "ID", requires = "seed")]
    replace: Option<u16>,

    /// The data directory: empty at first
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// Where the other members reach this replica [default: --peer-listen]
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,

    /// A configuration file (TOML) with what is this replica's own
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    process: Process,
}

/// Refuses addresses that are taken before the cluster has this member.
fn can_listen(config: &Config) -> Outcome {
    let addresses = [
        ("peer-listen", Some(config.peer_listen)),
        ("redis-listen", config.redis_listen),
        ("admin-listen", config.admin_listen),
    ];
    for (flag, address) in addresses {
        if let Some(address) = address
            && let Err(error) = TcpListener::bind(address)
        {
            return Err(Failure::usage(format!("--{flag}: {address}: {error}")));
        }
    }
    Ok(())
}

impl Join {
    /// Runs until stopped.
    pub fn run(self) -> Outcome {
        let file = self.config.as_deref();
        let loaded = settings::load_to_join(file, &self.process.overrides, &self.dir, |config| {
            config.peer_announce = match &self.advertise {
                Some(address) => Some(address.clone()),
                None if config.peer_listen.ip().is_unspecified() => None,
                None => Some(config.peer_listen.to_string()),
            };
            let wanted = (!self.seed.is_empty()).then(|| Wanted {
                seeds: self.seed.clone(),
                replaces: self.replace.map(ReplicaId),
                timeout: TIMEOUT,
            });
            let host = config
                .peer_announce
                .as_deref()
                .map(str::parse::<SocketAddr>);
            let nowhere = matches!(host, Some(Ok(address)) if address.ip().is_unspecified());
            if wanted.is_some() && (config.peer_announce.is_none() || nowhere) {
                return Err(Failure::usage(
                    "no other member reaches 0.0.0.0: where is this replica?",
                )
                .help("name its address with --advertise HOST:PORT"));
            }
            can_listen(config)?;
            let machine = crate::cli::store(config);
            quintet_runtime::join(config, &*machine, wanted.as_ref()).map_err(refusal)
        })?;
        let (_sender, stops) = signals::channel_of_stops(signals::Hangup::Ignored)?;
        let config = self.process.with_clock(loaded.config);
        serve(config, stops, &self.process, follow)
    }
}

/// Logs how the replica comes to have the state.
fn follow(handle: Handle) -> Outcome {
    let follow = move || {
        let mut progress = Progress::default();
        let mut next = Instant::now();
        loop {
            let status = handle.status();
            let own = status.rows.iter().find(|row| row.id == status.id);
            if status.stopping {
                return;
            }
            let votes = |row: &MemberReport| row.role == "voter" && row.has_state == Some(true);
            if own.is_some_and(votes) && !status.fetching {
                tracing::info!("replica {} votes and has the state", status.id);
                return;
            }
            let line = serde_json::to_value(&status).ok();
            if let Some(line) = line.as_ref().and_then(line_of)
                && Instant::now() >= next
                && progress.is_new(&line)
            {
                tracing::info!("{line}");
                next = Instant::now() + TELL_EVERY;
            }
            thread::sleep(LOOK);
        }
    };
    thread::Builder::new()
        .name("progress".to_owned())
        .spawn(follow)?;
    Ok(())
}

//! `quintet proxy`: serves clients of a cluster and is no member of it.
//!
//! ```text
//!   redis clients ──► proxy ──requests──► every replica
//!                       ▲                     │
//!                       └── replies, counted ─┘
//! ```

use crate::cli::{
    serve::{Process, attend, refusal, shown},
    settings,
};
use clap::Args;
use quintet_cli::{Outcome, signals};
use std::path::PathBuf;

/// Serve clients of a cluster from a process that is no member of it
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet proxy --config replica-0.toml --redis-listen 127.0.0.1:7901 --admin-listen 127.0.0.1:7911
  quintet status --admin http://127.0.0.1:7911        a proxy is shown as a replica is

It needs the cluster's part of a member's file (cluster, secret, members, protocol, options,
durability, limits, session_lifetime) and addresses of its own. It keeps nothing: run as many as you like, and let clients go
to another one when theirs has died. It takes from replicas and clients alike the work of sending
requests to all and of counting replies, and with Nezha it is where deadlines are given.")]
pub struct Proxy {
    /// The configuration file (TOML) of any member; its id and data directory do not count
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    process: Process,
}

impl Proxy {
    /// Runs until stopped.
    pub fn run(self) -> Outcome {
        let (_sender, stops) = signals::channel_of_stops(signals::Hangup::Ignored)?;
        let loaded = settings::load_for_proxy(self.config.as_deref(), &self.process.overrides)?;
        let config = self.process.with_clock(loaded.config);
        let machine = crate::cli::store(&config);
        let running = quintet_runtime::Proxy::start(&config, &*machine).map_err(refusal)?;
        let addresses = running.addresses();
        tracing::info!(
            "proxy of {} members serves {}, admin {}",
            config.members.len(),
            shown(addresses.redis, "redis"),
            shown(addresses.admin, "http"),
        );
        attend(running, "proxy", stops, &self.process)
    }
}

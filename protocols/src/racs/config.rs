//! Options of RACS.

use crate::sadl::{self, Way};
use alloc::{format, string::String};
use core::time::Duration;
use quintet_replica::number_option;

/// How batches reach the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dissemination {
    /// Always this way.
    Fixed(Way),
    /// As the leader finds better while it works; in its messages at the beginning.
    Hybrid,
}

impl Dissemination {
    fn parse(value: &str) -> Result<Self, String> {
        if value == "hybrid" {
            return Ok(Self::Hybrid);
        }
        let way = Way::named(value).map(Self::Fixed);
        way.ok_or_else(|| format!("'{value}' is not direct, sadl or hybrid"))
    }
}

/// Milliseconds, or zero for what is measured.
fn timeout(value: &str) -> Result<Duration, String> {
    let timeout = number_option(value, 0, 600_000, "milliseconds")?;
    if (1..10).contains(&timeout) {
        return Err(format!(
            "{timeout} is not 0 or from 10 to 600000 milliseconds"
        ));
    }
    Ok(Duration::from_millis(timeout))
}

quintet_replica::options! {
    /// Options of RACS; what stands above each is what `quintet protocols` prints.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub struct Config {
        /// how long a view may show no progress, in milliseconds, before a replica turns to
        /// the asynchronous mode; 0: four measured round trips, not below
        /// view_timeout_min_ms, up to eight times as long as views fail, and up to four
        /// times as long as asynchronous modes take (0, or 10 to 600000)
        view_timeout as "view_timeout_ms": parsed(Duration, timeout) = "0",
        /// the least that a measured view_timeout_ms may be, in milliseconds
        view_timeout_min: millis(10..=600_000) = 400,
        /// how often an idle leader is heard, in milliseconds; below a third of the view's
        /// timeout
        heartbeat: millis(1..=60_000) = 80,
        /// the most blocks that a leader proposes before they are decided
        window: count(1..=4096, "blocks") = 64,
        /// the most bytes proposed before they are decided
        window_bytes: bytes(65_536..=1_073_741_824) = 8_388_608,
        /// the most bytes of batches in one block, unless a single batch is larger
        batch_bytes_max: bytes(4096..=67_108_864) = 1_048_576,
        /// the most bytes of requests that a replica keeps for its clients before it
        /// answers that it is busy
        queue_bytes: bytes(65_536..=4_294_967_296) = 67_108_864,
        /// the most bytes of decided blocks kept in memory for replicas that lag;
        /// those further behind receive a snapshot
        log_memory_bytes: bytes(1024..=17_179_869_184) = 67_108_864,
        /// how the batches of a replica's clients reach the others: direct, in the leader's
        /// messages; sadl, from each replica to all before they are ordered; hybrid, as
        /// the leader finds better, by hybrid_latency_ms and hybrid_throughput
        dissemination: parsed(Dissemination, Dissemination::parse) = "direct",
        /// with dissemination=hybrid: the median latency of clients, in milliseconds, from
        /// which on the direct way counts as full; 'quintet lab hybrid' finds it
        hybrid_latency: millis(1..=600_000) = 300,
        /// with dissemination=hybrid: below that many commands per second the direct way is
        /// enough; 'quintet lab hybrid' finds it
        hybrid_throughput: number(1..=1_000_000_000, "commands per second") = 100_000,
        /// with dissemination=hybrid: how long a way is kept at least, in milliseconds; up
        /// to 16 times as long after changes that followed each other soon
        hybrid_hold: millis(1000..=3_600_000) = 10_000,
        /// the most batches that a replica disseminates before they are executed, and at most
        /// window_bytes of them
        sadl_window: number(1..=65_536, "batches") = 256,
        /// with dissemination=sadl: to whom a replica sends its batches before they are ordered:
        /// all; majority, the half of the others that answers soonest, while the rest fetch them
        /// when they are ordered
        sadl_spread: parsed(sadl::Spread, sadl::Spread::parse) = "all",
        injected: super::bug::Injected,
    }
    impl Options {
        const DRAWN: &'static [(&'static str, &'static [&'static str])] = &[
            ("batch_bytes_max", &["4096", "1048576"]),
            ("window", &["1", "64"]),
            ("sadl_spread", &["all", "majority"]),
        ];

        fn check(&self) -> Result<(), String> {
            let (name, timeout) = if self.view_timeout.is_zero() {
                ("view_timeout_min_ms", self.view_timeout_min)
            } else {
                ("view_timeout_ms", self.view_timeout)
            };
            if timeout >= self.heartbeat * 3 {
                return Ok(());
            }
            Err(format!("{name} must be at least three times heartbeat_ms"))
        }
    }
}

impl Config {
    /// Whether the leader chooses the way of the batches while it works.
    pub(super) const fn is_hybrid(&self) -> bool {
        matches!(self.dissemination, Dissemination::Hybrid)
    }
}

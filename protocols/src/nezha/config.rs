//! Options of Nezha.

use super::dom::Estimation;
use alloc::{format, string::String};
use quintet_replica::{check_longer, parse_option};

fn switch(value: &str) -> Result<bool, String> {
    parse_option(value, "true or false")
}

/// Whether the leader checks quorums, and not who sent a batch.
fn by_leader(value: &str) -> Result<bool, String> {
    match value {
        "sender" => Ok(false),
        "leader" => Ok(true),
        _ => Err(format!("'{value}' is neither sender nor leader")),
    }
}

quintet_replica::options! {
    /// Options of Nezha; what stands above each is what `quintet protocols` prints.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub struct Config {
        /// silence of the leader, in milliseconds, after which followers suspect it; each
        /// draws from one to one and a half times this
        suspect_timeout: millis(10..=600_000) = 500,
        /// how often an idle leader is heard, in milliseconds; below a third of
        /// suspect_timeout_ms
        heartbeat: millis(1..=60_000) = 50,
        /// which of the measured delays from a frontend becomes its latency bound, in
        /// percent: more means fewer late requests, and longer waits
        percentile: number(1..=100, "percent") = 50,
        /// how many of the newest delays are looked at
        delay_window: count(1..=10_000, "delays") = 200,
        /// how many times the deviations of both clocks are added to the bound
        beta: number(0..=100, "deviations") = 3,
        /// what takes the place of a bound that is not between 0 and this, in
        /// microseconds; the leader shortens what lies further ahead
        bound_max: micros(1..=60_000_000) = 10_000,
        /// the bound before anything was measured, in microseconds
        bound_first: micros(0..=60_000_000) = 200,
        /// let requests that touch different keys pass each other
        commutativity: flag = true,
        /// let senders multicast requests with deadlines; else the leader puts them in the
        /// order of their arrival and sends them on, and there is no fast path (true or
        /// false; for comparisons)
        multicast: parsed(bool, switch) = "true",
        /// who finds out that a request is committed: its sender, or the leader, which
        /// then hears every follower for every request (sender or leader; for comparisons)
        leader_checks as "quorum_checks": parsed(bool, by_leader) = "sender",
        /// how long a follower waits for a request that the leader placed before it asks
        /// for it, in microseconds
        fetch_after: micros(1..=60_000_000) = 2000,
        /// how long a frontend waits for a quorum before it sends again, in milliseconds,
        /// doubling up to sixteen times this
        retry: millis(1..=60_000) = 200,
        /// the most slots that a leader fills beyond the commit point
        window: number(16..=65_536, "slots") = 16_384,
        /// the most bytes of requests in the early buffer and in the late one; a leader
        /// whose early buffer is full answers that it is busy
        buffer_bytes: bytes(65_536..=4_294_967_296) = 67_108_864,
        injected: super::bug::Injected,
    }
    impl Options {
        const ALIASES: &'static [(&'static str, &'static str)] =
            &[("suspect_after_ms", "suspect_timeout_ms")];

        fn check(&self) -> Result<(), String> {
            let heartbeat = ("heartbeat_ms", self.heartbeat);
            check_longer(("suspect_timeout_ms", self.suspect_timeout), 3, heartbeat)
        }
    }
}

impl Config {
    /// How senders' latency bounds are estimated.
    pub(super) const fn estimation(&self) -> Estimation {
        Estimation {
            percentile: self.percentile as u8,
            window: self.delay_window,
            beta: self.beta,
            bound_max: self.bound_max.as_nanos() as u64,
        }
    }
}

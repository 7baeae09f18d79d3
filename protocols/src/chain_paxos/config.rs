//! Options of ChainPaxos.

use alloc::{
    format,
    string::{String, ToString},
};
use quintet_replica::check_longer;

/// How linearizable reads are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadsBy {
    /// From the local state, once a round of the chain has shown that it is new enough.
    Local,
    /// By an entry of the log for all reads of a turn: the paper's comparison.
    Chain,
}

impl ReadsBy {
    fn parse(value: &str) -> Result<Self, String> {
        match value {
            "local" => Ok(Self::Local),
            "chain" => Ok(Self::Chain),
            _ => Err(format!("'{value}' is neither 'local' nor 'chain'")),
        }
    }
}

quintet_replica::options! {
    /// Options of ChainPaxos; what stands above each is what `quintet protocols` prints.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub struct Config {
        /// silence of the leader, in milliseconds, after which a replica stands for
        /// election; each draws from one to two times this
        election_timeout: millis(10..=600_000) = 500,
        /// how often an idle leader is heard and neighbours in the chain hear each other,
        /// in milliseconds; below half of suspect_timeout_ms
        heartbeat: millis(1..=60_000) = 100,
        /// silence of the next replica in the chain, in milliseconds, after which its
        /// removal is asked for; at most election_timeout_ms
        suspect_timeout: millis(5..=600_000) = 300,
        /// ask a majority before standing, so that a returning replica does not depose
        /// a good leader
        pre_vote: flag = true,
        /// the most Accept messages that wait for a decision
        window: count(1..=4096, "messages") = 64,
        /// while an Accept message waits for a decision, the next one follows after this
        /// many microseconds at the earliest, or after the time of a loop divided by the
        /// window if that is longer
        window_gap: micros(0..=1_000_000) = 0,
        /// the most bytes that wait for a decision
        window_bytes: bytes(65_536..=1_073_741_824) = 8_388_608,
        /// the most bytes in one message between replicas, unless a single batch is
        /// larger
        batch_bytes_max: bytes(4096..=67_108_864) = 1_048_576,
        /// the most bytes of requests that a replica keeps for its clients before it
        /// answers that it is busy
        queue_bytes: bytes(65_536..=4_294_967_296) = 67_108_864,
        /// the most bytes of executed entries kept in memory for replicas that lag;
        /// those further behind receive a snapshot
        log_memory_bytes: bytes(65_536..=17_179_869_184) = 67_108_864,
        /// how linearizable reads are served: 'local', from each replica's own state, or
        /// 'chain', with an entry of the log for all reads of a turn
        reads: parsed(ReadsBy, ReadsBy::parse) = "local",
        /// a local read that has waited longer than this, in milliseconds, is ordered
        /// instead
        read_timeout: millis(1..=60_000) = 250,
        injected: super::bug::Injected,
    }
    impl Options {
        const ALIASES: &'static [(&'static str, &'static str)] =
            &[("read_patience_ms", "read_timeout_ms")];

        fn check(&self) -> Result<(), String> {
            let heartbeat = ("heartbeat_ms", self.heartbeat);
            check_longer(("suspect_timeout_ms", self.suspect_timeout), 2, heartbeat)?;
            if self.election_timeout < self.suspect_timeout {
                return Err("election_timeout_ms must be at least suspect_timeout_ms".to_string());
            }
            Ok(())
        }
    }
}

//! Options of Multi-Paxos.

use crate::sadl::{self, Way};
use alloc::string::String;
use quintet_replica::check_longer;

quintet_replica::options! {
    /// Options of Multi-Paxos; what stands above each is what `quintet protocols` prints.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub struct Config {
        /// silence of the leader, in milliseconds, after which a replica stands for
        /// election; each draws from one to two times this
        election_timeout: millis(10..=600_000) = 500,
        /// how often an idle leader is heard, in milliseconds; below half of
        /// election_timeout_ms
        heartbeat: millis(1..=60_000) = 100,
        /// ask a majority before standing, so that a returning replica does not depose
        /// a good leader
        pre_vote: flag = true,
        /// after this many microseconds a leader tells followers what is decided, if no
        /// Accept message did before; those whose clients wait hear it at once
        commit_notice: micros(0..=1_000_000) = 2000,
        /// the most Accept messages that wait for a majority
        window: count(1..=4096, "messages") = 64,
        /// while an Accept message waits for a majority, the next one follows after this
        /// many microseconds at the earliest, or after the round trip divided by the
        /// window if that is longer
        window_gap: micros(0..=1_000_000) = 0,
        /// the most bytes that wait for a majority
        window_bytes: bytes(65_536..=1_073_741_824) = 8_388_608,
        /// the most bytes in one message between replicas, unless a single batch is
        /// larger
        batch_bytes_max: bytes(4096..=67_108_864) = 1_048_576,
        /// the most slots in one Accept message; 1 turns batching between replicas off,
        /// which is slower and only serves to compare
        slots_max: count(1..=1_000_000, "slots") = 1_000_000,
        /// the most bytes of requests that a replica keeps for its clients before it
        /// answers that it is busy
        queue_bytes: bytes(65_536..=4_294_967_296) = 67_108_864,
        /// the most bytes of executed entries kept in memory for replicas that lag;
        /// those further behind receive a snapshot
        log_memory_bytes: bytes(1024..=17_179_869_184) = 67_108_864,
        /// how the batches of a replica's clients reach the others: direct, in the leader's
        /// messages; sadl, from each replica to all before they are ordered
        dissemination: parsed(Way, Way::parse) = "direct",
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
        fn check(&self) -> Result<(), String> {
            let heartbeat = ("heartbeat_ms", self.heartbeat);
            check_longer(("election_timeout_ms", self.election_timeout), 2, heartbeat)
        }
    }
}

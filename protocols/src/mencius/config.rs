//! Options of Mencius.

use alloc::string::String;
use quintet_replica::check_longer;

quintet_replica::options! {
    /// Options of Mencius; what stands above each is what `quintet protocols` prints.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub struct Config {
        /// silence of a replica, in milliseconds, after which others decide that its slots
        /// hold nothing
        suspect_timeout: millis(1..=600_000) = 500,
        /// how often an idle replica is heard, in milliseconds; below half of
        /// suspect_timeout_ms
        heartbeat: millis(1..=600_000) = 100,
        /// after this many milliseconds without progress a replica asks for what it lacks,
        /// and repeats its own suggestions
        coordination: millis(1..=600_000) = 20,
        /// the most own suggestions that are not yet decided
        window: count(1..=1024, "suggestions") = 64,
        /// the most bytes of values in one message, unless a single one is larger
        batch_bytes_max: bytes(4096..=67_108_864) = 1_048_576,
        /// the most bytes of requests that a replica keeps for its clients before it
        /// answers that it is busy
        queue_bytes: bytes(65_536..=4_294_967_296) = 67_108_864,
        /// the most bytes of executed entries kept in memory for replicas that lag;
        /// those further behind receive a snapshot
        log_memory_bytes: bytes(1024..=17_179_869_184) = 67_108_864,
        /// the most suggestions, votes or decisions that one message names
        slots_max: count(1..=1024, "slots") = 1024,
        injected: super::bug::Injected,
    }
    impl Options {
        const ALIASES: &'static [(&'static str, &'static str)] =
            &[("suspect_ms", "suspect_timeout_ms")];

        fn check(&self) -> Result<(), String> {
            let heartbeat = ("heartbeat_ms", self.heartbeat);
            check_longer(("suspect_timeout_ms", self.suspect_timeout), 2, heartbeat)
        }
    }
}

//! Options of Derecho.

use super::{bug::Injected, schedule::Schedule};
use alloc::{
    format,
    string::{String, ToString},
};
use quintet_replica::{Layout, check_longer};

/// When a member executes what it has received (§3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// When all members hold it and everything before it: atomic multicast in memory durability,
    /// durable delivery on disk.
    Ordered,
    /// At once, in the order of its sender.
    Raw,
}

impl Delivery {
    fn parse(value: &str) -> Result<Self, String> {
        match value {
            "ordered" => Ok(Self::Ordered),
            "raw" => Ok(Self::Raw),
            _ => Err(format!("'{value}' is neither ordered nor raw")),
        }
    }
}

/// Which schedule all large messages follow; by size and fan-out when there is none.
fn schedule(value: &str) -> Result<Option<Schedule>, String> {
    let named = Schedule::ALL.into_iter().find(|kind| kind.name() == value);
    if named.is_none() && value != "auto" {
        return Err(format!(
            "'{value}' is no schedule: auto, sequential, tree, chain or binomial"
        ));
    }
    Ok(named)
}

quintet_replica::options! {
    /// Options of Derecho; what stands above each is what `quintet protocols` prints.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub struct Config {
        /// how often members of the view hear each other, in milliseconds; below half of
        /// suspect_timeout_ms
        heartbeat: millis(1..=60_000) = 50,
        /// silence of a member, in milliseconds, after which it is suspected and the next
        /// view continues without it
        suspect_timeout: millis(5..=600_000) = 300,
        /// when no member was active for that many milliseconds, a majority of the last view
        /// restarts the group from its logs; at least suspect_timeout_ms
        restart_timeout: millis(10..=600_000) = 1000,
        /// slots of a sender's ring: the most of its messages that not all members have
        /// taken
        window: count(1..=1024, "slots") = 16,
        /// the largest message, in bytes, that travels in a slot of the ring; larger ones
        /// use the lane for bulk
        smc_bytes_max: bytes(64..=65_536) = 1024,
        /// messages larger than this, in bytes, go in blocks that members forward
        rdmc_bytes_min: bytes(64..=67_108_864) = 65_536,
        /// the length of those blocks; longer when a message would have more than 1024
        rdmc_block_bytes: bytes(64..=16_777_216) = 131_072,
        /// the most blocks in progress from one member to another
        rdmc_credits: count(1..=1024, "blocks") = 8,
        /// how they spread: sequential, tree, chain, binomial, or auto for what takes the
        /// fewest steps
        rdmc_schedule: parsed(Option<Schedule>, schedule) = "auto",
        /// the most bytes of a sender's larger messages that not all members have taken,
        /// unless a single one is larger
        bulk_window_bytes: bytes(65_536..=4_294_967_296) = 33_554_432,
        /// the most bytes of batches in one message, unless a single batch is larger
        batch_bytes_max: bytes(4096..=67_108_864) = 1_048_576,
        /// the most bytes of requests that a replica keeps for its clients before it
        /// answers that it is busy
        queue_bytes: bytes(65_536..=4_294_967_296) = 67_108_864,
        /// the most bytes of delivered entries kept in memory for replicas that join,
        /// twice as many while one does; those further behind receive a snapshot
        log_memory_bytes: bytes(1024..=17_179_869_184) = 67_108_864,
        /// how many slots a replica may lack when it is let into a view; the view waits
        /// for it to fetch them
        join_lag: number(1..=1_000_000, "slots") = 256,
        /// a member for which alone everybody waits most of the time, and longer than this,
        /// in milliseconds, with most messages, is left out of the next views; 0 for never
        slow_member: millis(0..=60_000) = 20,
        /// ordered; or raw: each member executes what it receives at once, in the order of
        /// its sender only, and keeps nothing. For services that allow it, and measuring
        delivery: parsed(Delivery, Delivery::parse) = "ordered",
        /// groups besides the first, as 'store groups=1-2 nodes=0-4 members=2..3 durability=disk;
        /// log groups=3 pin=0,1,2'; empty for none
        layout: parsed(Layout, str::parse) = "",
        injected: Injected,
    }
    impl Options {
        // Small limits, so that small messages continue every way that large ones do.
        const DRAWN: &'static [(&'static str, &'static [&'static str])] = &[
            ("smc_bytes_max", &["64", "256"]),
            ("rdmc_bytes_min", &["64", "65536"]),
            ("rdmc_block_bytes", &["64", "256"]),
        ];
        const ALIASES: &'static [(&'static str, &'static str)] =
            &[("sluggish_ms", "slow_member_ms")];

        fn check(&self) -> Result<(), String> {
            let heartbeat = ("heartbeat_ms", self.heartbeat);
            check_longer(("suspect_timeout_ms", self.suspect_timeout), 2, heartbeat)?;
            if self.restart_timeout < self.suspect_timeout {
                return Err("restart_timeout_ms must be at least suspect_timeout_ms".to_string());
            }
            Ok(())
        }

        fn layout(&self) -> Option<&Layout> {
            Some(&self.layout).filter(|layout| !layout.is_empty())
        }

        fn unordered(&self) -> bool {
            self.delivery == Delivery::Raw
        }
    }
}

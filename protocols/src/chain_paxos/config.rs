//! Options of ChainPaxos.

use alloc::{
    format,
    string::{String, ToString},
};
use core::time::Duration;
use quintet_replica::{OptionSpec, Options, number_option, parse_option};

/// How linearizable reads are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadsBy {
    /// From the local state, once a round of the chain has shown that it is new enough.
    Local,
    /// By an entry of the log for all reads of a turn: the paper's comparison.
    Chain,
}

/// See [`Config::SPECS`] for what each means; `quintet protocols` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Silence of the leader after which a replica stands, before randomisation.
    pub election_timeout: Duration,
    /// How often an idle leader is heard, and how often neighbours hear each other.
    pub heartbeat: Duration,
    /// Silence of the successor after which it is suspected.
    pub suspect_timeout: Duration,
    /// Whether a replica asks before it stands.
    pub pre_vote: bool,
    /// The most Accept messages without a quorum's votes.
    pub window: usize,
    /// The shortest time between two Accept messages while one is undecided.
    pub window_gap: Duration,
    /// The most bytes proposed and not yet decided.
    pub window_bytes: usize,
    /// The most bytes of entries in one message.
    pub batch_bytes_max: usize,
    /// The most bytes of requests that a replica keeps for its own frontends.
    pub queue_bytes: usize,
    /// The most bytes of executed entries kept in memory for replicas that lag.
    pub log_memory_bytes: usize,
    /// How linearizable reads are served.
    pub reads: ReadsBy,
    /// A local read that has waited for so long is ordered instead.
    pub read_patience: Duration,
    /// A planted bug.
    pub(super) planted: super::plant::Planted,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            election_timeout: Duration::from_millis(500),
            heartbeat: Duration::from_millis(100),
            suspect_timeout: Duration::from_millis(300),
            pre_vote: true,
            window: 64,
            window_gap: Duration::ZERO,
            window_bytes: 8 << 20,
            batch_bytes_max: 1 << 20,
            queue_bytes: 64 << 20,
            log_memory_bytes: 64 << 20,
            reads: ReadsBy::Local,
            read_patience: Duration::from_millis(250),
            planted: super::plant::Planted::default(),
        }
    }
}

fn millis(value: &str, low: u64, high: u64) -> Result<Duration, String> {
    number_option(value, low, high, "milliseconds").map(Duration::from_millis)
}

fn size(value: &str, low: u64, high: u64) -> Result<usize, String> {
    let bytes = number_option(value, low, high, "bytes")?;
    usize::try_from(bytes).map_err(|_| format!("{bytes} bytes do not fit this machine"))
}

impl Options for Config {
    const SPECS: &'static [OptionSpec] = &[
        OptionSpec {
            name: "election_timeout_ms",
            default: "500",
            help: "silence of the leader, in milliseconds, after which a replica stands for \
                   election; each draws from one to two times this (10 to 600000)",
        },
        OptionSpec {
            name: "heartbeat_ms",
            default: "100",
            help: "how often an idle leader is heard and neighbours in the chain hear each other, \
                   in milliseconds; below half of suspect_timeout_ms (1 to 60000)",
        },
        OptionSpec {
            name: "suspect_timeout_ms",
            default: "300",
            help: "silence of the next replica in the chain, in milliseconds, after which its \
                   removal is asked for; at most election_timeout_ms (5 to 600000)",
        },
        OptionSpec {
            name: "pre_vote",
            default: "true",
            help: "ask a majority before standing, so that a returning replica does not depose \
                   a good leader (true or false)",
        },
        OptionSpec {
            name: "window",
            default: "64",
            help: "the most Accept messages that wait for a decision (1 to 4096)",
        },
        OptionSpec {
            name: "window_gap_us",
            default: "0",
            help: "while an Accept message waits for a decision, the next one follows after this \
                   many microseconds at the earliest, or after the time of a loop divided by the \
                   window if that is longer (0 to 1000000)",
        },
        OptionSpec {
            name: "window_bytes",
            default: "8388608",
            help: "the most bytes that wait for a decision (65536 to 1073741824)",
        },
        OptionSpec {
            name: "batch_bytes_max",
            default: "1048576",
            help: "the most bytes in one message between replicas, unless a single batch is \
                   larger (4096 to 67108864)",
        },
        OptionSpec {
            name: "queue_bytes",
            default: "67108864",
            help: "the most bytes of requests that a replica keeps for its clients before it \
                   answers that it is busy (65536 to 4294967296)",
        },
        OptionSpec {
            name: "log_memory_bytes",
            default: "67108864",
            help: "the most bytes of executed entries kept in memory for replicas that lag; \
                   those further behind receive a snapshot (65536 to 17179869184)",
        },
        OptionSpec {
            name: "reads",
            default: "local",
            help: "how linearizable reads are served: 'local', from each replica's own state, or \
                   'chain', with an entry of the log for all reads of a turn",
        },
        OptionSpec {
            name: "read_timeout_ms",
            default: "250",
            help: "a local read that has waited longer than this, in milliseconds, is ordered \
                   instead (1 to 60000)",
        },
        #[cfg(feature = "plant")]
        super::plant::Planted::SPEC,
    ];

    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("read_patience_ms", "read_timeout_ms")];

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "election_timeout_ms" => self.election_timeout = millis(value, 10, 600_000)?,
            "heartbeat_ms" => self.heartbeat = millis(value, 1, 60_000)?,
            "suspect_timeout_ms" => self.suspect_timeout = millis(value, 5, 600_000)?,
            "pre_vote" => self.pre_vote = parse_option(value, "true or false")?,
            "window" => self.window = number_option(value, 1, 4096, "messages")? as usize,
            "window_gap_us" => {
                self.window_gap =
                    Duration::from_micros(number_option(value, 0, 1_000_000, "microseconds")?);
            }
            "window_bytes" => self.window_bytes = size(value, 64 << 10, 1 << 30)?,
            "batch_bytes_max" => self.batch_bytes_max = size(value, 4 << 10, 64 << 20)?,
            "queue_bytes" => self.queue_bytes = size(value, 64 << 10, 4 << 30)?,
            "log_memory_bytes" => self.log_memory_bytes = size(value, 64 << 10, 16 << 30)?,
            "reads" => {
                self.reads = match value {
                    "local" => ReadsBy::Local,
                    "chain" => ReadsBy::Chain,
                    _ => return Err(format!("'{value}' is neither 'local' nor 'chain'")),
                }
            }
            "read_timeout_ms" => self.read_patience = millis(value, 1, 60_000)?,
            #[cfg(feature = "plant")]
            "plant" => self.planted = super::plant::Planted::parse(value)?,
            _ => return Err(format!("there is no option '{name}'")),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.suspect_timeout <= self.heartbeat * 2 {
            return Err("suspect_timeout_ms must be more than twice heartbeat_ms".to_string());
        }
        if self.election_timeout < self.suspect_timeout {
            return Err("election_timeout_ms must be at least suspect_timeout_ms".to_string());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_in_the_table_is_the_default() {
        crate::group::assert_defaults::<Config>();
    }

    #[test]
    fn values_outside_their_range_and_timeouts_out_of_order_are_refused() {
        let mut config = Config::default();
        let error = config.set("window", "0").expect_err("out of range");
        assert!(error.contains("from 1 to 4096"), "{error}");
        assert!(config.set("reads", "tail").is_err());
        config
            .set("suspect_timeout_ms", "150")
            .expect("in its range");
        assert!(config.check().is_err(), "too near the heartbeat");
        config
            .set("suspect_timeout_ms", "700")
            .expect("in its range");
        assert!(config.check().is_err(), "longer than the election timeout");
    }
}

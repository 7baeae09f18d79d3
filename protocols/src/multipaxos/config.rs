//! Options of Multi-Paxos.

use crate::sadl::{self, Way};
use alloc::{
    format,
    string::{String, ToString},
};
use core::time::Duration;
use quintet_replica::{OptionSpec, Options, number_option, parse_option};

/// See [`Config::SPECS`] for what each means; `quintet protocols` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Silence of the leader after which a replica stands, before randomisation.
    pub election_timeout: Duration,
    /// How often an idle leader is heard.
    pub heartbeat: Duration,
    /// Whether a replica asks before it stands.
    pub pre_vote: bool,
    /// How long a leader waits for an Accept to tell a follower what is decided.
    pub commit_notice: Duration,
    /// The most Accept messages without a majority's answer.
    pub window: usize,
    /// The shortest time between two Accept messages while one is unanswered.
    pub window_gap: Duration,
    /// The most bytes proposed without a majority's answer.
    pub window_bytes: usize,
    /// The most bytes of entries in one message.
    pub batch_bytes_max: usize,
    /// The most slots in one message.
    pub slots_max: usize,
    /// The most bytes of requests that a replica keeps for its own frontends.
    pub queue_bytes: usize,
    /// The most bytes of executed entries kept in memory for followers that lag.
    pub log_memory_bytes: usize,
    /// How batches reach the others.
    pub dissemination: Way,
    /// The most batches disseminated and not yet executed.
    pub sadl_window: u64,
    /// To whom they go.
    pub sadl_spread: sadl::Spread,
    /// A planted bug.
    pub(super) planted: super::plant::Planted,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            election_timeout: Duration::from_millis(500),
            heartbeat: Duration::from_millis(100),
            pre_vote: true,
            commit_notice: Duration::from_millis(2),
            window: 64,
            window_gap: Duration::ZERO,
            window_bytes: 8 << 20,
            batch_bytes_max: 1 << 20,
            slots_max: 1_000_000,
            queue_bytes: 64 << 20,
            log_memory_bytes: 64 << 20,
            dissemination: Way::Direct,
            sadl_window: 256,
            sadl_spread: sadl::Spread::All,
            planted: super::plant::Planted::default(),
        }
    }
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
            help: "how often an idle leader is heard, in milliseconds; below half of \
                   election_timeout_ms (1 to 60000)",
        },
        OptionSpec {
            name: "pre_vote",
            default: "true",
            help: "ask a majority before standing, so that a returning replica does not depose \
                   a good leader (true or false)",
        },
        OptionSpec {
            name: "commit_notice_us",
            default: "2000",
            help: "after this many microseconds a leader tells followers what is decided, if no \
                   Accept message did before; those whose clients wait hear it at once (0 to \
                   1000000)",
        },
        OptionSpec {
            name: "window",
            default: "64",
            help: "the most Accept messages that wait for a majority (1 to 4096)",
        },
        OptionSpec {
            name: "window_gap_us",
            default: "0",
            help: "while an Accept message waits for a majority, the next one follows after this \
                   many microseconds at the earliest, or after the round trip divided by the \
                   window if that is longer (0 to 1000000)",
        },
        OptionSpec {
            name: "window_bytes",
            default: "8388608",
            help: "the most bytes that wait for a majority (65536 to 1073741824)",
        },
        OptionSpec {
            name: "batch_bytes_max",
            default: "1048576",
            help: "the most bytes in one message between replicas, unless a single batch is \
                   larger (4096 to 67108864)",
        },
        OptionSpec {
            name: "slots_max",
            default: "1000000",
            help: "the most slots in one Accept message; 1 turns batching between replicas off, \
                   which is slower and only serves to compare (1 to 1000000)",
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
                   those further behind receive a snapshot (1024 to 17179869184)",
        },
        OptionSpec {
            name: "dissemination",
            default: "direct",
            help: sadl::WAY_HELP,
        },
        OptionSpec {
            name: "sadl_window",
            default: "256",
            help: sadl::WINDOW_HELP,
        },
        OptionSpec {
            name: "sadl_spread",
            default: "all",
            help: sadl::SPREAD_HELP,
        },
        #[cfg(feature = "plant")]
        super::plant::Planted::SPEC,
    ];

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "election_timeout_ms" => {
                self.election_timeout =
                    Duration::from_millis(number_option(value, 10, 600_000, "milliseconds")?);
            }
            "heartbeat_ms" => {
                self.heartbeat =
                    Duration::from_millis(number_option(value, 1, 60_000, "milliseconds")?);
            }
            "pre_vote" => self.pre_vote = parse_option(value, "true or false")?,
            "commit_notice_us" => {
                self.commit_notice =
                    Duration::from_micros(number_option(value, 0, 1_000_000, "microseconds")?);
            }
            "window" => self.window = number_option(value, 1, 4096, "messages")? as usize,
            "window_gap_us" => {
                self.window_gap =
                    Duration::from_micros(number_option(value, 0, 1_000_000, "microseconds")?);
            }
            "window_bytes" => self.window_bytes = size(value, 64 << 10, 1 << 30)?,
            "batch_bytes_max" => self.batch_bytes_max = size(value, 4 << 10, 64 << 20)?,
            "slots_max" => self.slots_max = number_option(value, 1, 1_000_000, "slots")? as usize,
            "queue_bytes" => self.queue_bytes = size(value, 64 << 10, 4 << 30)?,
            "log_memory_bytes" => self.log_memory_bytes = size(value, 1 << 10, 16 << 30)?,
            "dissemination" => {
                self.dissemination =
                    Way::named(value).ok_or_else(|| format!("'{value}' is not direct or sadl"))?;
            }
            "sadl_spread" => self.sadl_spread = sadl::Spread::parse(value)?,
            "sadl_window" => self.sadl_window = number_option(value, 1, 65_536, "batches")?,
            #[cfg(feature = "plant")]
            "plant" => self.planted = super::plant::Planted::parse(value)?,
            _ => return Err(format!("there is no option '{name}'")),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.election_timeout > self.heartbeat * 2 {
            return Ok(());
        }
        Err("election_timeout_ms must be more than twice heartbeat_ms".to_string())
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
    fn values_outside_their_range_name_the_range() {
        let mut config = Config::default();
        let error = config.set("window", "0").expect_err("out of range");
        assert!(error.contains("from 1 to 4096"), "{error}");
        assert!(config.set("pre_vote", "yes").is_err());
    }
}

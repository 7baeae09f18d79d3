//! Options of Derecho.

use super::{plant::Planted, schedule::Schedule};
use alloc::{
    format,
    string::{String, ToString},
};
use core::time::Duration;
use quintet_replica::{OptionSpec, Options, number_option};

/// See [`Config::SPECS`] for what each means; `quintet protocols` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How often members hear each other.
    pub heartbeat: Duration,
    /// Silence of a member after which it is suspected.
    pub suspect_timeout: Duration,
    /// Silence of the whole group after which those left inspect each other's logs.
    pub restart_timeout: Duration,
    /// Slots of a sender's ring: the most messages that not all members have taken.
    pub window: usize,
    /// The largest message that travels in a slot of the ring.
    pub smc_bytes_max: usize,
    /// How large messages go in blocks.
    pub rdmc: RdmcConfig,
    /// The most bytes of own messages besides the ring that not all members have taken.
    pub bulk_window_bytes: usize,
    /// The most bytes of batches in one message.
    pub batch_bytes_max: usize,
    /// The most bytes of requests that a replica keeps for its own frontends.
    pub queue_bytes: usize,
    /// The most bytes of delivered entries kept in memory for replicas that join; twice as many
    /// while one does.
    pub log_memory_bytes: usize,
    /// How many slots a replica may lack when it is let in.
    pub join_lag: u64,
    /// How long a message waits for one member alone before that one counts as sluggish; zero for
    /// never.
    pub sluggish: Duration,
    /// When a member executes what it has received.
    pub delivery: Delivery,
    /// A planted bug.
    pub(super) planted: Planted,
}

/// How large messages go in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RdmcConfig {
    /// Messages above this do.
    pub bytes_min: usize,
    /// The length of a block.
    pub block_bytes: usize,
    /// The most blocks in progress to one member.
    pub credits: usize,
    /// Which schedule all of them follow; by size and fan-out when there is none.
    pub schedule: Option<Schedule>,
}

/// When a member executes what it has received (§3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// When all members hold it and everything before it: atomic multicast in memory durability,
    /// durable delivery on disk.
    Ordered,
    /// At once, in the order of its sender.
    Raw,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(50),
            suspect_timeout: Duration::from_millis(300),
            restart_timeout: Duration::from_millis(1000),
            window: 16,
            smc_bytes_max: 1024,
            rdmc: RdmcConfig {
                bytes_min: 64 << 10,
                block_bytes: 128 << 10,
                credits: 8,
                schedule: None,
            },
            bulk_window_bytes: 32 << 20,
            batch_bytes_max: 1 << 20,
            queue_bytes: 64 << 20,
            log_memory_bytes: 64 << 20,
            join_lag: 256,
            sluggish: Duration::from_millis(20),
            delivery: Delivery::Ordered,
            planted: Planted::default(),
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
    // Small limits, so that small messages continue every way that large ones do.
    const DRAWN: &'static [(&'static str, &'static [&'static str])] = &[
        ("smc_bytes_max", &["64", "256"]),
        ("rdmc_bytes_min", &["64", "65536"]),
        ("rdmc_block_bytes", &["64", "256"]),
    ];
    const SPECS: &'static [OptionSpec] = &[
        OptionSpec {
            name: "heartbeat_ms",
            default: "50",
            help: "how often members of the view hear each other, in milliseconds; below half of \
                   suspect_timeout_ms (1 to 60000)",
        },
        OptionSpec {
            name: "suspect_timeout_ms",
            default: "300",
            help: "silence of a member, in milliseconds, after which it is suspected and the next \
                   view continues without it (5 to 600000)",
        },
        OptionSpec {
            name: "restart_timeout_ms",
            default: "1000",
            help: "when nobody was active for that many milliseconds, a majority of the last view \
                   restarts the group from its logs; at least suspect_timeout_ms (10 to 600000)",
        },
        OptionSpec {
            name: "window",
            default: "16",
            help: "slots of a sender's ring: the most of its messages that not all members have \
                   taken (1 to 1024)",
        },
        OptionSpec {
            name: "smc_bytes_max",
            default: "1024",
            help: "the largest message, in bytes, that travels in a slot of the ring; larger ones \
                   go on the lane for bulk (64 to 65536)",
        },
        OptionSpec {
            name: "rdmc_bytes_min",
            default: "65536",
            help: "messages larger than this, in bytes, go in blocks that members pass on \
                   (64 to 67108864)",
        },
        OptionSpec {
            name: "rdmc_block_bytes",
            default: "131072",
            help: "the length of those blocks; longer when a message would have more than 1024 \
                   (64 to 16777216)",
        },
        OptionSpec {
            name: "rdmc_credits",
            default: "8",
            help: "the most blocks in progress from one member to another (1 to 1024)",
        },
        OptionSpec {
            name: "rdmc_schedule",
            default: "auto",
            help: "how they spread: sequential, tree, chain, binomial, or auto for what takes the \
                   fewest steps",
        },
        OptionSpec {
            name: "bulk_window_bytes",
            default: "33554432",
            help: "the most bytes of a sender's larger messages that not all members have taken, \
                   unless a single one is larger (65536 to 4294967296)",
        },
        OptionSpec {
            name: "batch_bytes_max",
            default: "1048576",
            help: "the most bytes of batches in one message, unless a single batch is larger \
                   (4096 to 67108864)",
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
            help: "the most bytes of delivered entries kept in memory for replicas that join, \
                   twice as many while one does; those further behind receive a snapshot \
                   (1024 to 17179869184)",
        },
        OptionSpec {
            name: "join_lag",
            default: "256",
            help: "how many slots a replica may lack when it is let into a view; the view waits \
                   for it to fetch them (1 to 1000000)",
        },
        OptionSpec {
            name: "slow_member_ms",
            default: "20",
            help: "a member for which alone everybody waits most of the time, and longer than this, \
                   in milliseconds, with most messages, is left out of the next views; 0 for never \
                   (0 to 60000)",
        },
        OptionSpec {
            name: "delivery",
            default: "ordered",
            help: "ordered; or raw: each member executes what it receives at once, in the order of \
                   its sender only, and keeps nothing. For services that allow it, and measuring",
        },
        #[cfg(feature = "plant")]
        Planted::SPEC,
    ];

    const ALIASES: &'static [(&'static str, &'static str)] = &[("sluggish_ms", "slow_member_ms")];

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "heartbeat_ms" => self.heartbeat = millis(value, 1, 60_000)?,
            "suspect_timeout_ms" => self.suspect_timeout = millis(value, 5, 600_000)?,
            "restart_timeout_ms" => self.restart_timeout = millis(value, 10, 600_000)?,
            "window" => self.window = number_option(value, 1, 1024, "slots")? as usize,
            "smc_bytes_max" => self.smc_bytes_max = size(value, 64, 64 << 10)?,
            "rdmc_bytes_min" => self.rdmc.bytes_min = size(value, 64, 64 << 20)?,
            "rdmc_block_bytes" => self.rdmc.block_bytes = size(value, 64, 16 << 20)?,
            "rdmc_credits" => self.rdmc.credits = number_option(value, 1, 1024, "blocks")? as usize,
            "rdmc_schedule" => {
                let named = Schedule::ALL.into_iter().find(|kind| kind.name() == value);
                if named.is_none() && value != "auto" {
                    return Err(format!(
                        "'{value}' is no schedule: auto, sequential, tree, chain or binomial"
                    ));
                }
                self.rdmc.schedule = named;
            }
            "bulk_window_bytes" => self.bulk_window_bytes = size(value, 64 << 10, 4 << 30)?,
            "batch_bytes_max" => self.batch_bytes_max = size(value, 4 << 10, 64 << 20)?,
            "queue_bytes" => self.queue_bytes = size(value, 64 << 10, 4 << 30)?,
            "log_memory_bytes" => self.log_memory_bytes = size(value, 1 << 10, 16 << 30)?,
            "join_lag" => self.join_lag = number_option(value, 1, 1_000_000, "slots")?,
            "slow_member_ms" => self.sluggish = millis(value, 0, 60_000)?,
            "delivery" => {
                self.delivery = match value {
                    "ordered" => Delivery::Ordered,
                    "raw" => Delivery::Raw,
                    _ => return Err(format!("'{value}' is neither ordered nor raw")),
                };
            }
            #[cfg(feature = "plant")]
            "plant" => self.planted = Planted::parse(value)?,
            _ => return Err(format!("there is no option '{name}'")),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.suspect_timeout <= self.heartbeat * 2 {
            return Err("suspect_timeout_ms must be more than twice heartbeat_ms".to_string());
        }
        if self.restart_timeout < self.suspect_timeout {
            return Err("restart_timeout_ms must be at least suspect_timeout_ms".to_string());
        }
        Ok(())
    }

    fn unordered(&self) -> bool {
        self.delivery == Delivery::Raw
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
        assert!(error.contains("from 1 to 1024"), "{error}");
        config
            .set("suspect_timeout_ms", "90")
            .expect("in its range");
        assert!(config.check().is_err(), "too near the heartbeat");
        config
            .set("suspect_timeout_ms", "2000")
            .expect("in its range");
        assert!(config.check().is_err(), "longer than the restart timeout");
    }
}

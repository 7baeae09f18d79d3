//! Options of RACS.

use crate::sadl::{self, Way};
use alloc::{format, string::String};
use core::time::Duration;
use quintet_replica::{OptionSpec, Options, number_option};

/// See [`Config::SPECS`] for what each means; `quintet protocols` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// How long a view may show no progress; zero: measured.
    pub view_timeout: Duration,
    /// The same when it is measured: at least this.
    pub view_timeout_min: Duration,
    /// How often an idle leader is heard.
    pub heartbeat: Duration,
    /// The most blocks proposed and not yet decided.
    pub window: usize,
    /// The most bytes proposed and not yet decided.
    pub window_bytes: usize,
    /// The most bytes of batches in one block.
    pub batch_bytes_max: usize,
    /// The most bytes of requests that a replica keeps for its own frontends.
    pub queue_bytes: usize,
    /// The most bytes of executed entries kept in memory for followers that lag.
    pub log_memory_bytes: usize,
    /// How batches reach the others; where the leader chooses, at the beginning.
    pub dissemination: Way,
    /// The leader chooses while it works.
    pub hybrid: bool,
    /// When it chooses another way.
    pub switching: Switching,
    /// The most batches disseminated and not yet executed.
    pub sadl_window: u64,
    /// To whom they go.
    pub sadl_spread: sadl::Spread,
    /// A planted bug.
    pub(super) planted: super::plant::Planted,
}

/// When the leader chooses another way of the batches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Switching {
    /// From this median latency on the direct way is full.
    pub latency: Duration,
    /// Below this number of commands per second the direct way is enough.
    pub throughput: u64,
    /// How long a way is kept at least.
    pub hold: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            view_timeout: Duration::ZERO,
            view_timeout_min: Duration::from_millis(400),
            heartbeat: Duration::from_millis(80),
            window: 64,
            window_bytes: 8 << 20,
            batch_bytes_max: 1 << 20,
            queue_bytes: 64 << 20,
            log_memory_bytes: 64 << 20,
            dissemination: Way::Direct,
            hybrid: false,
            switching: Switching {
                latency: Duration::from_millis(300),
                throughput: 100_000,
                hold: Duration::from_secs(10),
            },
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
    const DRAWN: &'static [(&'static str, &'static [&'static str])] = &[
        ("batch_bytes_max", &["4096", "1048576"]),
        ("window", &["1", "64"]),
        ("sadl_spread", &["all", "majority"]),
    ];
    const SPECS: &'static [OptionSpec] = &[
        OptionSpec {
            name: "view_timeout_ms",
            default: "0",
            help: "how long a view may show no progress, in milliseconds, before a replica turns to \
                   the asynchronous mode; 0: four measured round trips, not below \
                   view_timeout_min_ms, up to eight times as long as views fail, and up to four \
                   times as long as asynchronous modes take (0, or 10 to 600000)",
        },
        OptionSpec {
            name: "view_timeout_min_ms",
            default: "400",
            help: "the least that a measured view_timeout_ms may be, in milliseconds (10 to 600000)",
        },
        OptionSpec {
            name: "heartbeat_ms",
            default: "80",
            help: "how often an idle leader is heard, in milliseconds; below a third of the view's \
                   timeout (1 to 60000)",
        },
        OptionSpec {
            name: "window",
            default: "64",
            help: "the most blocks that a leader proposes before they are decided (1 to 4096)",
        },
        OptionSpec {
            name: "window_bytes",
            default: "8388608",
            help: "the most bytes proposed before they are decided (65536 to 1073741824)",
        },
        OptionSpec {
            name: "batch_bytes_max",
            default: "1048576",
            help: "the most bytes of batches in one block, unless a single batch is larger \
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
            help: "the most bytes of decided blocks kept in memory for replicas that lag; \
                   those further behind receive a snapshot (1024 to 17179869184)",
        },
        OptionSpec {
            name: "dissemination",
            default: "direct",
            help: "how the batches of a replica's clients reach the others: direct, in the leader's \
                   messages; sadl, from each replica to all before they are ordered; hybrid, as \
                   the leader finds better, by hybrid_latency_ms and hybrid_throughput",
        },
        OptionSpec {
            name: "hybrid_latency_ms",
            default: "300",
            help: "with dissemination=hybrid: the median latency of clients, in milliseconds, from \
                   which on the direct way counts as full; 'quintet lab hybrid' finds it (1 to \
                   600000)",
        },
        OptionSpec {
            name: "hybrid_throughput",
            default: "100000",
            help: "with dissemination=hybrid: below that many commands per second the direct way is \
                   enough; 'quintet lab hybrid' finds it (1 to 1000000000)",
        },
        OptionSpec {
            name: "hybrid_hold_ms",
            default: "10000",
            help: "with dissemination=hybrid: how long a way is kept at least, in milliseconds; up \
                   to 16 times as long after changes that followed each other soon (1000 to \
                   3600000)",
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
            "view_timeout_ms" => {
                let timeout = number_option(value, 0, 600_000, "milliseconds")?;
                if (1..10).contains(&timeout) {
                    return Err(format!(
                        "{timeout} is not 0 or from 10 to 600000 milliseconds"
                    ));
                }
                self.view_timeout = Duration::from_millis(timeout);
            }
            "view_timeout_min_ms" => {
                self.view_timeout_min =
                    Duration::from_millis(number_option(value, 10, 600_000, "milliseconds")?);
            }
            "heartbeat_ms" => {
                self.heartbeat =
                    Duration::from_millis(number_option(value, 1, 60_000, "milliseconds")?);
            }
            "window" => self.window = number_option(value, 1, 4096, "blocks")? as usize,
            "window_bytes" => self.window_bytes = size(value, 64 << 10, 1 << 30)?,
            "batch_bytes_max" => self.batch_bytes_max = size(value, 4 << 10, 64 << 20)?,
            "queue_bytes" => self.queue_bytes = size(value, 64 << 10, 4 << 30)?,
            "log_memory_bytes" => self.log_memory_bytes = size(value, 1 << 10, 16 << 30)?,
            "dissemination" => {
                self.hybrid = value == "hybrid";
                let way = if self.hybrid {
                    Some(Way::Direct)
                } else {
                    Way::named(value)
                };
                self.dissemination =
                    way.ok_or_else(|| format!("'{value}' is not direct, sadl or hybrid"))?;
            }
            "hybrid_latency_ms" => {
                self.switching.latency =
                    Duration::from_millis(number_option(value, 1, 600_000, "milliseconds")?);
            }
            "hybrid_throughput" => {
                self.switching.throughput =
                    number_option(value, 1, 1_000_000_000, "commands per second")?;
            }
            "hybrid_hold_ms" => {
                self.switching.hold =
                    Duration::from_millis(number_option(value, 1_000, 3_600_000, "milliseconds")?);
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
        assert!(config.set("view_timeout_ms", "5").is_err());
        config.set("view_timeout_ms", "100").expect("in range");
        assert!(config.check().is_err(), "too near the heartbeat");
    }
}

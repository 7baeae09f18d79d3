//! Options of Nezha.

use super::dom::Estimation;
use alloc::{
    format,
    string::{String, ToString},
};
use core::time::Duration;
use quintet_replica::{OptionSpec, Options, number_option, parse_option};

/// See [`Config::SPECS`] for what each means; `quintet protocols` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Silence of the leader after which a follower suspects it, before randomisation.
    pub suspect_after: Duration,
    /// How often an idle leader is heard.
    pub heartbeat: Duration,
    /// How senders' latency bounds are estimated.
    pub estimation: Estimation,
    /// The latency bound before anything was measured.
    pub bound_first: Duration,
    /// Whether batches that commute may be put in either order.
    pub commutativity: bool,
    /// Whether senders multicast batches with deadlines; else the leader orders what reaches it
    /// and sends it on.
    pub multicast: bool,
    /// Whether the leader checks quorums, and not who sent a batch.
    pub leader_checks: bool,
    /// How long a follower waits for a batch that the leader placed before it asks for it.
    pub fetch_after: Duration,
    /// How long a frontend waits before it sends again.
    pub retry: Duration,
    /// The most slots that a leader fills beyond the commit point.
    pub window: u64,
    /// The most bytes of requests in each of the two buffers.
    pub buffer_bytes: usize,
    /// A planted bug.
    pub(super) planted: super::plant::Planted,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            suspect_after: Duration::from_millis(500),
            heartbeat: Duration::from_millis(50),
            estimation: Estimation {
                percentile: 50,
                window: 200,
                beta: 3,
                bound_max: 10_000_000,
            },
            bound_first: Duration::from_micros(200),
            commutativity: true,
            multicast: true,
            leader_checks: false,
            fetch_after: Duration::from_millis(2),
            retry: Duration::from_millis(200),
            window: 16_384,
            buffer_bytes: 64 << 20,
            planted: super::plant::Planted::default(),
        }
    }
}

impl Options for Config {
    const SPECS: &'static [OptionSpec] = &[
        OptionSpec {
            name: "suspect_timeout_ms",
            default: "500",
            help: "silence of the leader, in milliseconds, after which followers suspect it; each \
                   draws from one to one and a half times this (10 to 600000)",
        },
        OptionSpec {
            name: "heartbeat_ms",
            default: "50",
            help: "how often an idle leader is heard, in milliseconds; below a third of \
                   suspect_timeout_ms (1 to 60000)",
        },
        OptionSpec {
            name: "percentile",
            default: "50",
            help: "which of the measured delays from a frontend becomes its latency bound, in \
                   percent: more means fewer late requests, and longer waits (1 to 100)",
        },
        OptionSpec {
            name: "delay_window",
            default: "200",
            help: "how many of the newest delays are looked at (1 to 10000)",
        },
        OptionSpec {
            name: "beta",
            default: "3",
            help: "how many times the deviations of both clocks are added to the bound (0 to 100)",
        },
        OptionSpec {
            name: "bound_max_us",
            default: "10000",
            help: "what takes the place of a bound that is not between 0 and this, in \
                   microseconds; the leader shortens what lies further ahead (1 to 60000000)",
        },
        OptionSpec {
            name: "bound_first_us",
            default: "200",
            help: "the bound before anything was measured, in microseconds (0 to 60000000)",
        },
        OptionSpec {
            name: "commutativity",
            default: "true",
            help: "let requests that touch different keys pass each other (true or false)",
        },
        OptionSpec {
            name: "multicast",
            default: "true",
            help: "let senders multicast requests with deadlines; else the leader puts them in the \
                   order of their arrival and sends them on, and there is no fast path (true or \
                   false; for comparisons)",
        },
        OptionSpec {
            name: "quorum_checks",
            default: "sender",
            help: "who finds out that a request is committed: its sender, or the leader, which \
                   then hears every follower for every request (sender or leader; for comparisons)",
        },
        OptionSpec {
            name: "fetch_after_us",
            default: "2000",
            help: "how long a follower waits for a request that the leader placed before it asks \
                   for it, in microseconds (1 to 60000000)",
        },
        OptionSpec {
            name: "retry_ms",
            default: "200",
            help: "how long a frontend waits for a quorum before it sends again, in milliseconds, \
                   doubling up to sixteen times this (1 to 60000)",
        },
        OptionSpec {
            name: "window",
            default: "16384",
            help: "the most slots that a leader fills beyond the commit point (16 to 65536)",
        },
        OptionSpec {
            name: "buffer_bytes",
            default: "67108864",
            help: "the most bytes of requests in the early buffer and in the late one; a leader \
                   whose early buffer is full answers that it is busy (65536 to 4294967296)",
        },
        #[cfg(feature = "plant")]
        super::plant::Planted::SPEC,
    ];

    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("suspect_after_ms", "suspect_timeout_ms")];

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let micros = |low| number_option(value, low, 60_000_000, "microseconds");
        match name {
            "suspect_timeout_ms" => {
                self.suspect_after =
                    Duration::from_millis(number_option(value, 10, 600_000, "milliseconds")?);
            }
            "heartbeat_ms" => {
                self.heartbeat =
                    Duration::from_millis(number_option(value, 1, 60_000, "milliseconds")?);
            }
            "percentile" => {
                self.estimation.percentile = number_option(value, 1, 100, "percent")? as u8
            }
            "delay_window" => {
                self.estimation.window = number_option(value, 1, 10_000, "delays")? as usize;
            }
            "beta" => self.estimation.beta = number_option(value, 0, 100, "deviations")?,
            "bound_max_us" => self.estimation.bound_max = micros(1)? * 1000,
            "bound_first_us" => self.bound_first = Duration::from_micros(micros(0)?),
            "commutativity" => self.commutativity = parse_option(value, "true or false")?,
            "multicast" => self.multicast = parse_option(value, "true or false")?,
            "quorum_checks" => {
                self.leader_checks = match value {
                    "sender" => false,
                    "leader" => true,
                    other => return Err(format!("'{other}' is neither sender nor leader")),
                };
            }
            "fetch_after_us" => self.fetch_after = Duration::from_micros(micros(1)?),
            "retry_ms" => {
                self.retry =
                    Duration::from_millis(number_option(value, 1, 60_000, "milliseconds")?);
            }
            "window" => self.window = number_option(value, 16, 65_536, "slots")?,
            "buffer_bytes" => {
                let bytes = number_option(value, 64 << 10, 4 << 30, "bytes")?;
                self.buffer_bytes = usize::try_from(bytes)
                    .map_err(|_| format!("{bytes} bytes do not fit this machine"))?;
            }
            #[cfg(feature = "plant")]
            "plant" => self.planted = super::plant::Planted::parse(value)?,
            _ => return Err(format!("there is no option '{name}'")),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.suspect_after > self.heartbeat * 3 {
            return Ok(());
        }
        Err("suspect_timeout_ms must be more than three times heartbeat_ms".to_string())
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
        let error = config.set("window", "1").expect_err("out of range");
        assert!(error.contains("from 16 to 65536"), "{error}");
        assert!(config.set("commutativity", "yes").is_err());
        config.set("heartbeat_ms", "400").expect("in range");
        assert!(config.check().is_err());
    }
}

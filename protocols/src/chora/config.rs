//! Options of Chora.

use alloc::{
    format,
    string::{String, ToString},
};
use core::time::Duration;
use quintet_replica::{OptionSpec, Options, number_option, parse_option};

/// What drives a replica to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Drive {
    /// Whichever the network allows, by what was measured.
    Auto,
    /// Always rounds.
    Pulsing,
    /// Always requests and messages.
    Responsive,
}

/// Which live replicas propose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proposers {
    /// That many; 0 is all of them.
    Count(usize),
    /// Those that bring a part of the load.
    Loaded,
}

/// See [`Config::SPECS`] for what each means; `quintet protocols` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// What drives a replica to send.
    pub mode: Drive,
    /// Which replicas propose.
    pub proposers: Proposers,
    /// The length of a round; zero is by measurement.
    pub round: Duration,
    /// Whether a round ends once every live peer has been heard.
    pub early_exit: bool,
    /// Silence of a live replica after which the others change the view.
    pub suspect: Duration,
    /// How often an idle replica is heard.
    pub heartbeat: Duration,
    /// After this long without progress a replica asks for what it lacks.
    pub coordination: Duration,
    /// Whether only the proposer of a slot repeats its proposal.
    pub accountable: bool,
    /// The most batches in one proposal; 0 is as many as are there.
    pub batches_max: usize,
    /// The most bytes of batches in one proposal.
    pub batch_bytes_max: usize,
    /// The most own proposals that are not yet committed.
    pub window: usize,
    /// The most bytes of requests that a replica keeps for its own frontends.
    pub queue_bytes: usize,
    /// The most bytes of executed entries kept in memory for replicas that lag.
    pub log_memory_bytes: usize,
    /// A planted bug.
    pub(super) planted: super::plant::Planted,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Drive::Auto,
            proposers: Proposers::Loaded,
            round: Duration::ZERO,
            early_exit: true,
            suspect: Duration::from_millis(500),
            heartbeat: Duration::from_millis(100),
            coordination: Duration::from_millis(20),
            accountable: true,
            batches_max: 0,
            batch_bytes_max: 1 << 20,
            window: 64,
            queue_bytes: 64 << 20,
            log_memory_bytes: 64 << 20,
            planted: super::plant::Planted::default(),
        }
    }
}

fn count(value: &str, low: u64, high: u64, unit: &str) -> Result<usize, String> {
    let number = number_option(value, low, high, unit)?;
    usize::try_from(number).map_err(|_| format!("{number} {unit} do not fit this machine"))
}

fn millis(value: &str, low: u64) -> Result<Duration, String> {
    Ok(Duration::from_millis(number_option(
        value,
        low,
        600_000,
        "milliseconds",
    )?))
}

/// Microseconds with at most three decimals: rounds on fast networks are that short.
fn micros(value: &str) -> Result<Duration, String> {
    let refused =
        || format!("'{value}' is not auto, or a number of microseconds from 0.1 to 1000000");
    let (whole, part) = value.split_once('.').unwrap_or((value, "0"));
    if part.len() > 3 {
        return Err(refused());
    }
    let nanos = |digits: &str, unit: u64| {
        let digits = digits
            .bytes()
            .all(|it| it.is_ascii_digit())
            .then_some(digits)?;
        digits.parse::<u64>().ok()?.checked_mul(unit)
    };
    let unit = 10_u64.pow(3 - part.len() as u32);
    let length = nanos(whole, 1000)
        .zip(nanos(part, unit))
        .and_then(|(whole, part)| whole.checked_add(part))
        .filter(|nanos| (100..=1_000_000_000).contains(nanos));
    length.map(Duration::from_nanos).ok_or_else(refused)
}

impl Options for Config {
    const DRAWN: &'static [(&'static str, &'static [&'static str])] = &[
        ("mode", &["pulsing", "responsive"]),
        ("proposers", &["0", "1", "2"]),
    ];
    const SPECS: &'static [OptionSpec] = &[
        OptionSpec {
            name: "mode",
            default: "auto",
            help: "what drives a replica to send: pulsing (rounds), responsive (requests and \
                   messages), or auto, which begins responsive and follows what it measures",
        },
        OptionSpec {
            name: "proposers",
            default: "auto",
            help: "which replicas propose: auto is those that bring a part of the writes and do not \
                   make the others wait, 0 all that are live, 1 a single leader (auto, or 0 to 128)",
        },
        OptionSpec {
            name: "round_us",
            default: "auto",
            help: "the length of a round in microseconds, or auto for what the measured delays \
                   allow (auto, or 0.1 to 1000000)",
        },
        OptionSpec {
            name: "early_exit",
            default: "true",
            help: "whether a round ends as soon as every live replica has been heard; false is for \
                   measuring what that brings (true or false)",
        },
        OptionSpec {
            name: "suspect_timeout_ms",
            default: "500",
            help: "silence of a replica, in milliseconds, after which the others continue without it \
                   (1 to 600000)",
        },
        OptionSpec {
            name: "heartbeat_ms",
            default: "100",
            help: "how often an idle replica is heard, in milliseconds; below half of \
                   suspect_timeout_ms (1 to 600000)",
        },
        OptionSpec {
            name: "coordination_ms",
            default: "20",
            help: "after this many milliseconds without progress a replica asks for proposals that \
                   it lacks, and repeats its own (1 to 600000)",
        },
        OptionSpec {
            name: "accountable",
            default: "true",
            help: "only the proposer of a slot repeats its proposal, unless the view is new or the \
                   proposer stays silent (true or false)",
        },
        OptionSpec {
            name: "batches_max",
            default: "0",
            help: "the most batches in one proposal; 0 takes all that wait (0 to 65536)",
        },
        OptionSpec {
            name: "batch_bytes_max",
            default: "1048576",
            help: "the most bytes in one proposal, unless a single batch is larger \
                   (4096 to 67108864)",
        },
        OptionSpec {
            name: "window",
            default: "64",
            help: "the most own proposals that are not yet committed (1 to 1024)",
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
        #[cfg(feature = "plant")]
        super::plant::Planted::SPEC,
    ];

    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("suspect_ms", "suspect_timeout_ms")];

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "mode" => {
                self.mode = match value {
                    "auto" => Drive::Auto,
                    "pulsing" => Drive::Pulsing,
                    "responsive" => Drive::Responsive,
                    _ => return Err(format!("'{value}' is not auto, pulsing or responsive")),
                }
            }
            "proposers" if value == "auto" => self.proposers = Proposers::Loaded,
            "proposers" => self.proposers = Proposers::Count(count(value, 0, 128, "replicas")?),
            "round_us" if value == "auto" => self.round = Duration::ZERO,
            "round_us" => self.round = micros(value)?,
            "early_exit" => self.early_exit = parse_option(value, "true or false")?,
            "suspect_timeout_ms" => self.suspect = millis(value, 1)?,
            "heartbeat_ms" => self.heartbeat = millis(value, 1)?,
            "coordination_ms" => self.coordination = millis(value, 1)?,
            "accountable" => self.accountable = parse_option(value, "true or false")?,
            "batches_max" => self.batches_max = count(value, 0, 1 << 16, "batches")?,
            "batch_bytes_max" => {
                self.batch_bytes_max = count(value, 4 << 10, 64 << 20, "bytes")?;
            }
            "window" => self.window = count(value, 1, 1024, "proposals")?,
            "queue_bytes" => self.queue_bytes = count(value, 64 << 10, 4 << 30, "bytes")?,
            "log_memory_bytes" => self.log_memory_bytes = count(value, 1 << 10, 16 << 30, "bytes")?,
            #[cfg(feature = "plant")]
            "plant" => self.planted = super::plant::Planted::parse(value)?,
            _ => return Err(format!("there is no option '{name}'")),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.suspect > self.heartbeat * 2 {
            return Ok(());
        }
        Err("suspect_timeout_ms must be more than twice heartbeat_ms".to_string())
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
        assert!(error.contains("from 1 to 1024"), "{error}");
        assert!(config.set("mode", "sometimes").is_err());
        for refused in [
            "", ".", "0.05", "1.0001", "-1", "+1", "1e3", "1000001", "fast",
        ] {
            assert!(config.set("round_us", refused).is_err(), "{refused}");
        }
        config.set("round_us", "1.05").expect("in range");
        assert_eq!(config.round, Duration::from_nanos(1050));
        config.set("suspect_timeout_ms", "150").expect("in range");
        assert!(config.check().is_err(), "too near the heartbeat");
    }
}

//! Options of Mencius.

use alloc::{
    format,
    string::{String, ToString},
};
use core::time::Duration;
use quintet_replica::{OptionSpec, Options, number_option};

/// See [`Config::SPECS`] for what each means; `quintet protocols` prints them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Silence of a replica after which its slots are revoked.
    pub suspect: Duration,
    /// How often an idle replica is heard.
    pub heartbeat: Duration,
    /// After this long without progress what is missing is asked for, and repeated.
    pub coordination: Duration,
    /// The most own suggestions that are not yet decided.
    pub window: usize,
    /// The most bytes of values in one message.
    pub batch_bytes_max: usize,
    /// The most bytes of requests that a replica keeps for its own frontends.
    pub queue_bytes: usize,
    /// The most bytes of executed entries kept in memory for replicas that lag.
    pub log_memory_bytes: usize,
    /// The most suggestions, votes or decisions that one message names.
    pub slots_max: usize,
    /// A planted bug.
    pub(super) planted: super::plant::Planted,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            suspect: Duration::from_millis(500),
            heartbeat: Duration::from_millis(100),
            coordination: Duration::from_millis(20),
            window: 64,
            batch_bytes_max: 1 << 20,
            queue_bytes: 64 << 20,
            log_memory_bytes: 64 << 20,
            slots_max: 1024,
            planted: super::plant::Planted::default(),
        }
    }
}

fn count(value: &str, low: u64, high: u64, unit: &str) -> Result<usize, String> {
    let number = number_option(value, low, high, unit)?;
    usize::try_from(number).map_err(|_| format!("{number} {unit} do not fit this machine"))
}

fn millis(value: &str) -> Result<Duration, String> {
    let number = number_option(value, 1, 600_000, "milliseconds")?;
    Ok(Duration::from_millis(number))
}

impl Options for Config {
    const SPECS: &'static [OptionSpec] = &[
        OptionSpec {
            name: "suspect_timeout_ms",
            default: "500",
            help: "silence of a replica, in milliseconds, after which others decide that its slots \
                   hold nothing (1 to 600000)",
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
            help: "after this many milliseconds without progress a replica asks for what it lacks, \
                   and repeats its own suggestions (1 to 600000)",
        },
        OptionSpec {
            name: "window",
            default: "64",
            help: "the most own suggestions that are not yet decided (1 to 1024)",
        },
        OptionSpec {
            name: "batch_bytes_max",
            default: "1048576",
            help: "the most bytes of values in one message, unless a single one is larger \
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
            help: "the most bytes of executed entries kept in memory for replicas that lag; \
                   those further behind receive a snapshot (1024 to 17179869184)",
        },
        OptionSpec {
            name: "slots_max",
            default: "1024",
            help: "the most suggestions, votes or decisions that one message names (1 to 1024)",
        },
        #[cfg(feature = "plant")]
        super::plant::Planted::SPEC,
    ];

    const ALIASES: &'static [(&'static str, &'static str)] =
        &[("suspect_ms", "suspect_timeout_ms")];

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "suspect_timeout_ms" => self.suspect = millis(value)?,
            "heartbeat_ms" => self.heartbeat = millis(value)?,
            "coordination_ms" => self.coordination = millis(value)?,
            "window" => self.window = count(value, 1, 1024, "suggestions")?,
            "batch_bytes_max" => self.batch_bytes_max = count(value, 4 << 10, 64 << 20, "bytes")?,
            "queue_bytes" => self.queue_bytes = count(value, 64 << 10, 4 << 30, "bytes")?,
            "log_memory_bytes" => self.log_memory_bytes = count(value, 1 << 10, 16 << 30, "bytes")?,
            "slots_max" => self.slots_max = count(value, 1, 1024, "slots")?,
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
        let mut config = Config::default();
        for spec in Config::SPECS {
            config.set(spec.name, spec.default).expect(spec.name);
        }
        assert_eq!(config, Config::default());
        assert_eq!(config.check(), Ok(()));
        assert!(config.set("window", "0").is_err());
        config.set("suspect_timeout_ms", "150").expect("in range");
        assert!(config.check().is_err(), "too near the heartbeat");
    }
}

//! Options of Chora.

use alloc::{format, string::String};
use core::time::Duration;
use quintet_replica::{check_longer, size_option};

/// The event that makes a replica send.
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

impl Drive {
    fn parse(value: &str) -> Result<Self, String> {
        match value {
            "auto" => Ok(Self::Auto),
            "pulsing" => Ok(Self::Pulsing),
            "responsive" => Ok(Self::Responsive),
            _ => Err(format!("'{value}' is not auto, pulsing or responsive")),
        }
    }
}

impl Proposers {
    fn parse(value: &str) -> Result<Self, String> {
        match value {
            "auto" => Ok(Self::Loaded),
            _ => size_option(value, 0, 128, "replicas").map(Self::Count),
        }
    }
}

/// Microseconds with at most three decimals: rounds on fast networks are that short.
fn micros(value: &str) -> Result<Duration, String> {
    if value == "auto" {
        return Ok(Duration::ZERO);
    }
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

quintet_replica::options! {
    /// Options of Chora; what stands above each is what `quintet protocols` prints.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    pub struct Config {
        /// what drives a replica to send: pulsing (rounds), responsive (requests and
        /// messages), or auto, which begins responsive and follows what it measures
        mode: parsed(Drive, Drive::parse) = "auto",
        /// which replicas propose: auto is those that bring a part of the writes and do not
        /// make the others wait, 0 all that are live, 1 a single leader (auto, or 0 to 128)
        proposers: parsed(Proposers, Proposers::parse) = "auto",
        /// the length of a round in microseconds, or auto for what the measured delays
        /// allow (auto, or 0.1 to 1000000)
        round as "round_us": parsed(Duration, micros) = "auto",
        /// whether a round ends as soon as every live replica has been heard; false is for
        /// measuring what that brings
        early_exit: flag = true,
        /// silence of a replica, in milliseconds, after which the others continue without it
        suspect_timeout: millis(1..=600_000) = 500,
        /// how often an idle replica is heard, in milliseconds; below half of
        /// suspect_timeout_ms
        heartbeat: millis(1..=600_000) = 100,
        /// after this many milliseconds without progress a replica asks for proposals that
        /// it lacks, and repeats its own
        coordination: millis(1..=600_000) = 20,
        /// only the proposer of a slot repeats its proposal, unless the view is new or the
        /// proposer stays silent
        accountable: flag = true,
        /// the most batches in one proposal; 0 takes all that wait
        batches_max: count(0..=65_536, "batches") = 0,
        /// the most bytes in one proposal, unless a single batch is larger
        batch_bytes_max: bytes(4096..=67_108_864) = 1_048_576,
        /// the most own proposals that are not yet committed
        window: count(1..=1024, "proposals") = 64,
        /// the most bytes of requests that a replica keeps for its clients before it
        /// answers that it is busy
        queue_bytes: bytes(65_536..=4_294_967_296) = 67_108_864,
        /// the most bytes of executed entries kept in memory for replicas that lag;
        /// those further behind receive a snapshot
        log_memory_bytes: bytes(1024..=17_179_869_184) = 67_108_864,
        injected: super::bug::Injected,
    }
    impl Options {
        const DRAWN: &'static [(&'static str, &'static [&'static str])] = &[
            ("mode", &["pulsing", "responsive"]),
            ("proposers", &["0", "1", "2"]),
        ];
        const ALIASES: &'static [(&'static str, &'static str)] =
            &[("suspect_ms", "suspect_timeout_ms")];

        fn check(&self) -> Result<(), String> {
            let heartbeat = ("heartbeat_ms", self.heartbeat);
            check_longer(("suspect_timeout_ms", self.suspect_timeout), 2, heartbeat)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::Options;

    #[test]
    fn length_of_a_round_may_have_three_decimals() {
        let mut config = Config::default();
        for refused in [
            "", ".", "0.05", "1.0001", "-1", "+1", "1e3", "1000001", "fast",
        ] {
            assert!(config.set("round_us", refused).is_err(), "{refused}");
        }
        config.set("round_us", "1.05").expect("in range");
        assert_eq!(config.round, Duration::from_nanos(1050));
    }
}

//! The performance table of RACS's hybrid dissemination (RACS §5.5): one scenario, both ways of the
//! batches, rate by rate.
//!
//! ```text
//!   Results: racs, racs/sadl × rates ──► PerformanceTable ──► a file
//!                                          ├─► saturation median: leave the direct way
//!                                          └─► threshold: return to it
//! ```

use crate::results::{Line, Results};
use quintet_cli::{Failure, Outcome};
use serde::{Deserialize, Serialize};

/// The result of one mode at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Commands per second.
    pub throughput: f64,
    /// Median latency in milliseconds.
    pub median_ms: f64,
}

/// Both ways at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Commands per second that clients ask for.
    pub rate: u64,
    /// Batches in the leader's messages.
    pub direct: Found,
    /// Batches disseminated before.
    pub sadl: Found,
}

/// The result of a calibration run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PerformanceTable {
    /// The scenario, and where it ran.
    pub source: String,
    /// From this median latency on the direct way counts as full: `hybrid_latency_ms`.
    pub hybrid_latency_ms: u64,
    /// Below that many commands per second it is enough: `hybrid_throughput`.
    pub hybrid_throughput: u64,
    /// Rate by rate, ascending.
    pub rates: Vec<Rate>,
}

/// A way keeps up with a rate when it answers this part of it.
const KEEPS_UP: f64 = 0.95;
/// And as long as it is not that many times as slow as with the least rate, and slower than the
/// other.
const SLOW: f64 = 2.0;
/// Of what the direct way can do, it must be this part at most before it is returned to.
const RETURN: f64 = 0.8;

fn found(line: &Line) -> Found {
    Found {
        throughput: line.throughput.median.round(),
        median_ms: (line.p50.median / 10.0).round() / 100.0,
    }
}

impl PerformanceTable {
    /// The table of a run of the protocols `direct` and `sadl`, swept by rate.
    ///
    /// # Errors
    /// When one of them is not there, or the direct way is never full: nothing could be chosen.
    pub fn of(results: &Results, direct: &str, sadl: &str) -> Outcome<Self> {
        let line = |protocol: &str, value: u64| {
            let is_it = |line: &&Line| line.protocol == protocol && line.value == value;
            results.lines.iter().find(is_it)
        };
        let mut values: Vec<u64> = results.lines.iter().map(|line| line.value).collect();
        values.sort_unstable();
        values.dedup();
        let both = |rate: u64| {
            Some(Rate {
                rate,
                direct: found(line(direct, rate)?),
                sadl: found(line(sadl, rate)?),
            })
        };
        let rates: Vec<Rate> = values.into_iter().filter_map(both).collect();
        Self::from_rates(format!("{}: {}", results.name, results.profile), rates)
    }

    fn from_rates(source: String, rates: Vec<Rate>) -> Outcome<Self> {
        let idle = rates.first().map_or(0.0, |one| one.direct.median_ms);
        let keeps_up = |one: &Rate| {
            let Rate { rate, direct, sadl } = *one;
            let slow = direct.median_ms > sadl.median_ms && direct.median_ms > SLOW * idle;
            direct.throughput >= KEEPS_UP * rate as f64 && !slow
        };
        let full = rates.iter().position(|one| !keeps_up(one));
        let refuse = |why: &str| {
            Failure::usage(format!("{source}: {why}"))
                .help("sweep the rate from what is easy for the direct way to what is too much")
        };
        let Some(full) = full else {
            return Err(refuse("the direct way keeps up with every rate"));
        };
        let Some(last) = full.checked_sub(1).and_then(|index| rates.get(index)) else {
            return Err(refuse("the direct way keeps up with no rate"));
        };
        // Between what it takes when it just keeps up and what it takes when it does not.
        let (low, high) = (last.direct.median_ms, rates[full].direct.median_ms);
        // Where nothing that was due was answered in time there is no median.
        let high = if high > low { high } else { low * SLOW * SLOW };
        let median = (low * high).sqrt();
        Ok(Self {
            hybrid_latency_ms: (median.round() as u64).max(1),
            hybrid_throughput: ((last.direct.throughput * RETURN).round() as u64).max(1),
            source,
            rates,
        })
    }

    /// As a file.
    #[must_use]
    pub fn text(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(rate: u64, direct: (f64, f64)) -> Rate {
        Rate {
            rate,
            direct: Found {
                throughput: direct.0,
                median_ms: direct.1,
            },
            sadl: Found {
                throughput: rate as f64,
                median_ms: 200.0,
            },
        }
    }

    #[test]
    fn direct_mode_is_left_at_saturation_and_resumed_below() {
        let rates = vec![
            rate(1_000, (1_000.0, 50.0)),
            rate(2_000, (1_990.0, 60.0)),
            rate(4_000, (2_500.0, 960.0)),
        ];
        let table = PerformanceTable::from_rates("here".to_owned(), rates).expect("one is full");
        assert_eq!(
            (table.hybrid_latency_ms, table.hybrid_throughput),
            (240, 1_592)
        );
        let read: PerformanceTable = toml::from_str(&table.text()).expect("as it was written");
        assert_eq!(read, table);
    }

    #[test]
    fn slower_mode_is_full_and_silent_one_has_no_median() {
        let found = |rates| PerformanceTable::from_rates("here".to_owned(), rates).expect("full");
        let slow = vec![rate(1_000, (1_000.0, 50.0)), rate(2_000, (2_000.0, 800.0))];
        assert_eq!(found(slow).hybrid_latency_ms, 200);
        let dead = vec![rate(1_000, (1_000.0, 50.0)), rate(2_000, (0.0, 0.0))];
        assert_eq!(found(dead).hybrid_latency_ms, 100);
    }

    #[test]
    fn without_rate_too_much_or_one_not_there_is_nothing_to_choose() {
        for rates in [
            vec![rate(1_000, (1_000.0, 50.0))],
            vec![rate(1_000, (100.0, 50.0))],
            Vec::new(),
        ] {
            assert!(PerformanceTable::from_rates("here".to_owned(), rates).is_err());
        }
    }
}

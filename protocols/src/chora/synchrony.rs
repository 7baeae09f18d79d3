//! A replica's measurements of its network, the length of a round, and the mode that pays.
//!
//! ```text
//!   pulse: sender's stamp, arrival here ──► delay up to a constant ──► deviation from its mean
//!   turn's work per message             ──► processing time              │ p90, p99
//!   rounds: early, timed out, NACKs     ──► mode, with hysteresis        ▼
//!   rounds: how long they took   ──► mean and quantiles of their lengths
//!                       round ≥ p99(propagation) − mean(propagation) + p99(processing) · peers
//! ```
//!
//! The bound on a round (Chora, Eq. 4) needs only how far a delay lies above its mean, and that is
//! the same whatever the two clocks show: no common time is asked for. The coefficient is Eq. 5
//! with the sign of the propagation's terms as in Eq. 4: printed the other way, it would rise with
//! the tail. Where the paper's round waits for the slowest replica, this one is as long as the links
//! to the quickest majority need: a majority commits, and what comes later counts in a later round.

use alloc::{
    collections::VecDeque,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::{fmt::Write, time::Duration};
use quintet_replica::{ReplicaId, Time};

/// How many samples a figure rests on.
const SAMPLES: usize = 128;
/// How many rounds the quantiles of their lengths rest on.
const LENGTHS: usize = 512;
/// After that many pulses the figures are worked out again; the first time after fewer. Sorting
/// costs more than handling a message does.
const FIGURES: u32 = 256;
const FIGURES_FIRST: u32 = 32;
/// After that many rounds the mode is thought over.
const ROUNDS: u32 = 64;
const ROUND_MIN: Duration = Duration::from_micros(50);
const ROUND_MAX: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, Default, Hash)]
struct Link {
    /// The smallest difference of the two clocks seen lately; what it means is unknown.
    delays: VecDeque<i64>,
}

/// The statistics of the samples.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Figures {
    deviation_p90: Duration,
    deviation_p99: Duration,
    processing_mean: Duration,
    processing_p90: Duration,
    processing_p99: Duration,
    /// Of the lengths of rounds, what [`QUANTILES`] name.
    lengths: [Duration; QUANTILES.len()],
}

/// Which quantiles of the lengths of rounds are shown, per cent.
const QUANTILES: [usize; 5] = [10, 25, 50, 90, 99];

/// See the module.
#[derive(Clone, Debug, Hash)]
pub(super) struct Synchrony {
    links: Vec<Link>,
    processing: VecDeque<u32>,
    figures: Figures,
    /// Pulses that came since the figures were worked out, and how many it takes.
    unseen: u32,
    unseen_max: u32,
    /// Rounds since the mode was thought over: those in which all were heard, and the others.
    in_time: u32,
    timed_out: u32,
    nacks: u32,
    lengths: VecDeque<u32>,
    /// All rounds so far, those of them in which all were heard, and their lengths together.
    rounds: u64,
    rounds_in_time: u64,
    rounds_took: Duration,
    /// In the mode that was asked about last.
    pub pulsing: bool,
}

/// Of samples in any order, the one that `percent` of them do not exceed. Puts them in another.
fn percentile(samples: &mut [i64], percent: usize) -> i64 {
    match samples.len() {
        0 => 0,
        count => {
            let at = (count * percent / 100).min(count - 1);
            *samples.select_nth_unstable(at).1
        }
    }
}

/// Adds a sample to the newest `most`.
fn keep(samples: &mut VecDeque<u32>, most: usize, took: Duration) {
    if samples.len() == most {
        samples.pop_front();
    }
    samples.push_back(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
}

fn mean(samples: &[i64]) -> i64 {
    let sum: i128 = samples.iter().map(|sample| i128::from(*sample)).sum();
    (sum / (samples.len().max(1) as i128)) as i64
}

impl Synchrony {
    pub fn new(members: usize, pulsing: bool) -> Self {
        Self {
            links: vec![Link::default(); members],
            processing: VecDeque::new(),
            figures: Figures::default(),
            unseen: 0,
            unseen_max: FIGURES_FIRST,
            in_time: 0,
            timed_out: 0,
            nacks: 0,
            lengths: VecDeque::new(),
            rounds: 0,
            rounds_in_time: 0,
            rounds_took: Duration::ZERO,
            pulsing,
        }
    }

    /// A pulse that left when the sender's clock showed `stamp` arrived here.
    pub fn arrived(&mut self, from: ReplicaId, stamp: u64, arrived: Time) {
        let delays = &mut self.links[from.index()].delays;
        if delays.len() == SAMPLES {
            delays.pop_front();
        }
        delays.push_back(arrived.0.wrapping_sub(stamp) as i64);
        self.unseen += 1;
        if self.unseen >= self.unseen_max {
            self.unseen = 0;
            self.unseen_max = FIGURES;
            self.work_out();
        }
    }

    /// Another run of the peer: its clock has nothing to do with the one before.
    pub fn forget(&mut self, peer: ReplicaId) {
        self.links[peer.index()].delays.clear();
    }

    /// A message took so long to be processed.
    pub fn processed(&mut self, took: Duration) {
        keep(&mut self.processing, SAMPLES, took);
    }

    fn work_out(&mut self) {
        let mut figures = Figures::default();
        let nanos = |it: i64| Duration::from_nanos(u64::try_from(it).unwrap_or(0));
        let mut samples = Vec::with_capacity(SAMPLES);
        // How far delays lie above their mean, on each link.
        let mut links: Vec<(Duration, Duration)> = Vec::with_capacity(self.links.len());
        for link in self.links.iter().filter(|link| link.delays.len() >= 16) {
            samples.clear();
            samples.extend(link.delays.iter().copied());
            let mean = mean(&samples);
            let mut above = |percent| nanos(percentile(&mut samples, percent).saturating_sub(mean));
            links.push((above(99), above(90)));
        }
        // A round is as long as a majority needs, this replica among it. One narrow link would make
        // it longer for all; and a slow member, which proposes nothing, sends so few pulses that
        // its old samples count for minutes after its link is well again.
        links.sort_unstable();
        let quorum = (self.links.len() / 2).saturating_sub(1);
        if let Some((p99, p90)) = links.get(quorum).or(links.last()) {
            (figures.deviation_p99, figures.deviation_p90) = (*p99, *p90);
        }
        samples.clear();
        samples.extend(self.processing.iter().map(|it| i64::from(*it)));
        figures.processing_mean = nanos(mean(&samples));
        figures.processing_p90 = nanos(percentile(&mut samples, 90));
        figures.processing_p99 = nanos(percentile(&mut samples, 99));
        samples.clear();
        samples.extend(self.lengths.iter().map(|it| i64::from(*it)));
        figures.lengths = QUANTILES.map(|percent| nanos(percentile(&mut samples, percent)));
        self.figures = figures;
    }

    /// How far the delay of nine in ten messages lies above the mean, on the links to the quickest
    /// majority.
    pub const fn deviation(&self) -> Duration {
        self.figures.deviation_p90
    }

    /// The coefficient of synchrony for nine in ten messages, in thousandths.
    pub fn coefficient(&self) -> u64 {
        let figures = &self.figures;
        let bound = (figures.deviation_p90 + figures.processing_p90)
            .as_nanos()
            .max(1);
        u64::try_from(figures.processing_mean.as_nanos() * 1000 / bound).unwrap_or(u64::MAX)
    }

    /// How long a round with that many peers should be.
    pub fn round(&self, peers: usize) -> Duration {
        let peers = u32::try_from(peers.max(1)).unwrap_or(u32::MAX);
        let tail = self.figures.processing_p99.saturating_mul(peers);
        self.figures
            .deviation_p99
            .saturating_add(tail)
            .clamp(ROUND_MIN, ROUND_MAX)
    }

    /// A round is over that lasted so long; `in_time` when all were heard in it.
    pub fn ended(&mut self, in_time: bool, lasted: Duration) {
        if in_time {
            self.in_time += 1;
            self.rounds_in_time += 1;
        } else {
            self.timed_out += 1;
        }
        self.rounds += 1;
        self.rounds_took = self.rounds_took.saturating_add(lasted);
        keep(&mut self.lengths, LENGTHS, lasted);
    }

    /// The measurements, for people and for `quintet lab synchrony`: whole numbers, times in
    /// nanoseconds. The first three count from the start; differences between two looks tell of the
    /// time in between.
    pub fn details(&self) -> [(&'static str, String); 6] {
        let row = |times: &[Duration]| {
            let mut text = String::new();
            for time in times {
                let space = if text.is_empty() { "" } else { " " };
                // Writing to a string does not fail.
                let _ = write!(text, "{space}{}", time.as_nanos());
            }
            text
        };
        let it = &self.figures;
        let processing = [it.processing_mean, it.processing_p90, it.processing_p99];
        [
            ("rounds_ended", self.rounds.to_string()),
            ("rounds_in_time", self.rounds_in_time.to_string()),
            ("rounds_took_ns", self.rounds_took.as_nanos().to_string()),
            ("round_p10_p25_p50_p90_p99_ns", row(&it.lengths)),
            ("processing_mean_p90_p99_ns", row(&processing)),
            (
                "deviation_p90_p99_ns",
                row(&[it.deviation_p90, it.deviation_p99]),
            ),
        ]
    }

    pub const fn nacked(&mut self) {
        self.nacks += 1;
    }

    /// Thinks the mode over when enough rounds have been seen: rounds are kept while at most half
    /// of them time out and a quarter bring a NACK, and begun when it is a tenth and a twentieth.
    pub fn reconsider(&mut self) -> Option<bool> {
        let rounds = self.in_time + self.timed_out;
        if rounds < ROUNDS {
            return None;
        }
        let (timed_out, nacks) = (self.timed_out, self.nacks);
        (self.in_time, self.timed_out, self.nacks) = (0, 0, 0);
        let pulsing = if self.pulsing {
            timed_out * 2 <= rounds && nacks * 4 <= rounds
        } else {
            timed_out * 10 <= rounds && nacks * 20 <= rounds
        };
        (pulsing != self.pulsing).then(|| {
            self.pulsing = pulsing;
            pulsing
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_offsets_do_not_matter_and_tails_lengthen_rounds() {
        let measured = |offset: u64, tail: u64| {
            let mut synchrony = Synchrony::new(2, false);
            for sample in 0..600u64 {
                let delay = 50_000 + if sample % 8 == 0 { tail } else { 0 };
                let stamp = sample * 1_000_000;
                let arrived = Time((stamp + delay).wrapping_add(offset));
                synchrony.processed(Duration::from_micros(10));
                synchrony.arrived(ReplicaId(1), stamp, arrived);
            }
            synchrony
        };
        let near = measured(0, 1_000_000);
        assert_eq!(near.round(1), measured(1 << 40, 1_000_000).round(1));
        assert!(near.round(1) > measured(0, 0).round(1));
        assert!(near.round(4) > near.round(2), "more peers, more to process");
        assert!(near.coefficient() < measured(0, 0).coefficient());
    }

    #[test]
    fn one_narrow_link_makes_rounds_no_longer() {
        let measured = |narrow: &[u16]| {
            let mut synchrony = Synchrony::new(5, false);
            for sample in 0..600u64 {
                for id in 1..5 {
                    let late = narrow.contains(&id) && sample % 8 == 0;
                    let delay = 50_000 + if late { 1_500_000 } else { 0 };
                    let stamp = sample * 1_000_000;
                    synchrony.arrived(ReplicaId(id), stamp, Time(stamp + delay));
                }
            }
            synchrony.round(4)
        };
        let even = measured(&[]);
        assert_eq!((measured(&[4]), measured(&[1, 3])), (even, even));
        assert!(measured(&[1, 2, 3]) > even, "a majority needs it");
    }

    #[test]
    fn mode_changes_with_hysteresis() {
        let mut synchrony = Synchrony::new(3, false);
        let mut window = |in_time: u32, timed_out: u32| {
            (0..in_time).for_each(|_| synchrony.ended(true, Duration::ZERO));
            (0..timed_out).for_each(|_| synchrony.ended(false, Duration::ZERO));
            synchrony.reconsider()
        };
        assert_eq!(window(44, 20), None, "too many time out to begin");
        assert_eq!(window(63, 1), Some(true));
        assert_eq!(window(40, 24), None, "good enough to stay");
        assert_eq!(window(20, 44), Some(false));
    }

    #[test]
    fn lengths_of_rounds_are_told_by_their_quantiles_and_their_sum() {
        let mut synchrony = Synchrony::new(2, true);
        for round in 1..=100 {
            synchrony.ended(round % 4 != 0, Duration::from_nanos(round * 10));
        }
        for sample in 0..u64::from(FIGURES_FIRST) {
            synchrony.arrived(ReplicaId(1), sample, Time(sample));
        }
        let details = synchrony.details();
        let told = |name: &str| {
            let found = details.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.as_str())
        };
        assert_eq!(told("rounds_ended"), Some("100"));
        assert_eq!(told("rounds_in_time"), Some("75"));
        assert_eq!(told("rounds_took_ns"), Some("50500"));
        let quantiles = told("round_p10_p25_p50_p90_p99_ns");
        assert_eq!(quantiles, Some("110 260 510 910 1000"));
    }
}

//! What a replica measures of its network, how long a round should be, and which mode pays.
//!
//! ```text
//!   pulse: sender's stamp, arrival here ──► delay up to a constant ──► deviation from its mean
//!   turn's work per message             ──► processing time              │ p90, p99
//!   rounds: early, timed out, NACKs     ──► mode, with hysteresis        ▼
//!                       round ≥ p99(propagation) − mean(propagation) + p99(processing) · peers
//! ```
//!
//! The bound on a round (Chora, Eq. 4) needs only how far a delay lies above its mean, and that is
//! the same whatever the two clocks show: no common time is asked for. The coefficient is Eq. 5 with
//! the sign of the propagation's terms as in Eq. 4: printed the other way, it would rise with the
//! tail.

use alloc::{collections::VecDeque, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, Time};

/// How many samples a figure rests on.
const SAMPLES: usize = 128;
/// After so many rounds the mode is thought over.
const ROUNDS: u32 = 64;
const ROUND_MIN: Duration = Duration::from_micros(50);
const ROUND_MAX: Duration = Duration::from_millis(20);

#[derive(Clone, Debug, Default, Hash)]
struct Link {
    /// The smallest difference of the two clocks seen lately; what it means is unknown.
    delays: VecDeque<i64>,
}

/// See the module.
#[derive(Clone, Debug, Hash)]
pub(super) struct Synchrony {
    links: Vec<Link>,
    processing: VecDeque<u32>,
    early: u32,
    timed_out: u32,
    nacks: u32,
    /// In the mode that was asked about last.
    pub pulsing: bool,
}

/// Of sorted samples, the one that `percent` of them do not exceed.
fn percentile(sorted: &[i64], percent: usize) -> i64 {
    match sorted.len() {
        0 => 0,
        count => sorted[(count * percent / 100).min(count - 1)],
    }
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
            early: 0,
            timed_out: 0,
            nacks: 0,
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
    }

    /// Another run of the peer: its clock has nothing to do with the one before.
    pub fn forget(&mut self, peer: ReplicaId) {
        self.links[peer.index()].delays.clear();
    }

    /// A message took so long to be processed.
    pub fn processed(&mut self, took: Duration) {
        if self.processing.len() == SAMPLES {
            self.processing.pop_front();
        }
        let nanos = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        self.processing.push_back(nanos);
    }

    /// How far the delay of `percent` of the messages lies above the mean, on the worst link.
    pub fn deviation(&self, percent: usize) -> Duration {
        let links = self.links.iter().filter(|link| link.delays.len() >= 16);
        let deviation = |link: &Link| {
            let mut sorted: Vec<i64> = link.delays.iter().copied().collect();
            sorted.sort_unstable();
            percentile(&sorted, percent).saturating_sub(mean(&sorted))
        };
        let worst = links.map(deviation).max().unwrap_or(0);
        Duration::from_nanos(u64::try_from(worst).unwrap_or(0))
    }

    fn processing(&self, percent: usize) -> (Duration, Duration) {
        let mut sorted: Vec<i64> = self.processing.iter().map(|it| i64::from(*it)).collect();
        sorted.sort_unstable();
        let nanos = |it: i64| Duration::from_nanos(u64::try_from(it).unwrap_or(0));
        (nanos(mean(&sorted)), nanos(percentile(&sorted, percent)))
    }

    /// The coefficient of synchrony for `percent` of the messages, in thousandths.
    pub fn coefficient(&self, percent: usize) -> u64 {
        let (mean, tail) = self.processing(percent);
        let bound = (self.deviation(percent) + tail).as_nanos().max(1);
        u64::try_from(mean.as_nanos() * 1000 / bound).unwrap_or(u64::MAX)
    }

    /// How long a round with so many peers should be.
    pub fn round(&self, peers: usize) -> Duration {
        let (_, tail) = self.processing(99);
        let peers = u32::try_from(peers.max(1)).unwrap_or(u32::MAX);
        (self.deviation(99) + tail * peers).clamp(ROUND_MIN, ROUND_MAX)
    }

    pub const fn ended(&mut self, early: bool) {
        if early {
            self.early += 1;
        } else {
            self.timed_out += 1;
        }
    }

    pub const fn nacked(&mut self) {
        self.nacks += 1;
    }

    /// Thinks the mode over when enough rounds have been seen: rounds are kept while at most half of
    /// them time out and a quarter bring a NACK, and begun when it is a tenth and a twentieth.
    pub fn reconsider(&mut self) -> Option<bool> {
        let rounds = self.early + self.timed_out;
        if rounds < ROUNDS {
            return None;
        }
        let (timed_out, nacks) = (self.timed_out, self.nacks);
        (self.early, self.timed_out, self.nacks) = (0, 0, 0);
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
    fn clocks_that_differ_do_not_matter_and_tails_make_rounds_longer() {
        let measured = |offset: u64, tail: u64| {
            let mut synchrony = Synchrony::new(2, false);
            for sample in 0..100u64 {
                let delay = 50_000 + if sample % 20 == 0 { tail } else { 0 };
                let stamp = sample * 1_000_000;
                let arrived = Time((stamp + delay).wrapping_add(offset));
                synchrony.arrived(ReplicaId(1), stamp, arrived);
                synchrony.processed(Duration::from_micros(10));
            }
            synchrony
        };
        let near = measured(0, 1_000_000);
        assert_eq!(near.round(1), measured(1 << 40, 1_000_000).round(1));
        assert!(near.round(1) > measured(0, 0).round(1));
        assert!(near.round(4) > near.round(2), "more peers, more to process");
        assert!(near.coefficient(99) < measured(0, 0).coefficient(99));
    }

    #[test]
    fn the_mode_changes_with_hysteresis() {
        let mut synchrony = Synchrony::new(3, false);
        let mut window = |early: u32, timed_out: u32| {
            (0..early).for_each(|_| synchrony.ended(true));
            (0..timed_out).for_each(|_| synchrony.ended(false));
            synchrony.reconsider()
        };
        assert_eq!(window(44, 20), None, "too many time out to begin");
        assert_eq!(window(63, 1), Some(true));
        assert_eq!(window(40, 24), None, "good enough to stay");
        assert_eq!(window(20, 44), Some(false));
    }
}

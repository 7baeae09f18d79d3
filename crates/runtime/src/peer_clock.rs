//! The peers' clocks as exchanges over the links show them, and the correction of this one.
//!
//! ```text
//!   this side                      peer
//!     sent ─────── Probe ────────► came          offset     = ((came − sent) + (left − back)) / 2
//!     back ◄─────── Echo ───────── left          round trip =  (back − sent) − (left − came)
//!
//!   samples of one peer ──► the shortest round trips ──► Standing: offset, deviation, bound
//!   standings of all    ──► agree ──► Agreement: by how much this clock is to be corrected
//! ```
//!
//! Each side measures for itself, by the clocks as the operating systems show them, uncorrected:
//! what one replica corrects moves no measurement of another. Nothing here is needed for safety.

use quintet_replica::Time;
use std::{collections::VecDeque, time::Duration};

/// Samples kept of each peer.
const SAMPLES_MAX: usize = 64;
/// Of this many samples one of the shortest round trips is looked at for the deviation.
const SHARE: usize = 4;
/// Nanoseconds that two clocks may drift apart in a second.
const DRIFT: u64 = 100_000;
/// A peer that has told nothing for so long no longer counts.
const AGE_MAX: Duration = Duration::from_secs(60);
/// No exchange that took longer tells anything.
const ROUND_MAX: u64 = 1_000_000_000;

/// One exchange, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Time,
    /// The peer's clock minus this one.
    offset: i64,
    round: u64,
}

impl Sample {
    /// How far the offset may be off at `now`.
    fn bound(&self, now: Time) -> u64 {
        let age = now.since(self.at).as_nanos() as u64;
        self.round / 2 + age / 1_000_000_000 * DRIFT + age % 1_000_000_000 * DRIFT / 1_000_000_000
    }
}

/// The four readings of an exchange, in nanoseconds since the Unix epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readings {
    /// By this clock.
    pub sent: u64,
    /// By the peer's.
    pub came: u64,
    /// By the peer's.
    pub left: u64,
    /// By this clock.
    pub back: u64,
    /// How long it all took by this side's monotonic clock.
    pub took: u64,
}

/// How a peer's clock stands to this one, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The peer's minus this one.
    pub offset: i64,
    /// Standard deviation of that estimate.
    pub deviation: u64,
    /// The offset is off by no more than this.
    pub bound: u64,
    /// Something better than its own crystal disciplines the peer's clock.
    pub disciplined: bool,
    /// How far the peer's clock says that it may be off.
    pub error: u64,
}

/// The samples of one peer's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerClock {
    samples: VecDeque<Sample>,
    disciplined: bool,
    error: u64,
}

impl PeerClock {
    /// Takes an exchange; `disciplined` and `error` are what the peer says of its clock. False
    /// when it tells nothing.
    pub fn add(&mut self, at: Time, of: Readings, disciplined: bool, error: u64) -> bool {
        let difference = |a: u64, b: u64| i128::from(a) - i128::from(b);
        let there = difference(of.left, of.came);
        let round = difference(of.back, of.sent) - there;
        // Either clock was set while the exchange was in progress.
        let strayed = difference(of.back, of.sent) - i128::from(of.took);
        let Ok(round) = u64::try_from(round) else {
            return false;
        };
        if round > ROUND_MAX || there < 0 || strayed.unsigned_abs() > 50_000 {
            return false;
        }
        let offset = (difference(of.came, of.sent) + difference(of.left, of.back)) / 2;
        let Ok(offset) = i64::try_from(offset) else {
            return false;
        };
        let sample = Sample { at, offset, round };
        // A sample that contradicts the newest exchange is from before a clock was set.
        let bound = sample.bound(at);
        self.samples.retain(|older| {
            let apart = older.offset.abs_diff(offset);
            apart <= bound.saturating_add(older.bound(at)).saturating_add(1_000)
        });
        if self.samples.len() >= SAMPLES_MAX {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        self.disciplined = disciplined;
        self.error = error;
        true
    }

    /// The result of the samples now; `None` before the first and when the last is too old.
    pub fn standing(&self, now: Time) -> Option<Standing> {
        let newest = self.samples.back()?;
        if now.since(newest.at) > AGE_MAX {
            return None;
        }
        let mut samples: Vec<&Sample> = self.samples.iter().collect();
        samples.sort_by_key(|sample| (sample.bound(now), core::cmp::Reverse(sample.at)));
        let best = samples.first()?;
        let bound = best.bound(now);
        let share = &samples[..samples.len() / SHARE];
        let deviation = match share.len() {
            // Too few to tell: as if the offset lay anywhere within its bound.
            0 | 1 => bound,
            count => {
                let off = |sample: &&Sample| {
                    let off = sample.offset.abs_diff(best.offset).min(1 << 40);
                    u128::from(off) * u128::from(off)
                };
                let squares: u128 = share.iter().map(off).sum();
                u64::try_from((squares / (count as u128 - 1)).isqrt()).unwrap_or(u64::MAX)
            }
        };
        Some(Standing {
            offset: best.offset,
            deviation,
            bound,
            disciplined: self.disciplined,
            error: self.error,
        })
    }

    /// Nothing of what was measured counts any more: this side's clock was set.
    pub fn forget(&mut self) {
        self.samples.clear();
    }
}

/// The agreed correction, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// The addition to this clock.
    pub correction: i64,
    /// How far, as a standard deviation, the corrected clocks are apart.
    pub deviation: u64,
    /// The corrected clock is no further off than this from those it follows, and from the true
    /// time when something disciplines them.
    pub bound: u64,
}

/// The clocks to follow: itself and its disciplined peers when something disciplines it,
/// disciplined peers when there are some, else the one in the middle, at which all others arrive,
/// too. `None` when no peer has told anything that counts.
pub(crate) fn agree(disciplined: bool, peers: &[Standing]) -> Option<Agreement> {
    let followed: Vec<&Standing> = peers.iter().filter(|peer| peer.disciplined).collect();
    let (followed, own) = match (disciplined, followed.is_empty()) {
        (true, _) => (followed, true),
        (false, false) => (followed, false),
        (false, true) => (peers.iter().collect(), true),
    };
    if followed.is_empty() {
        return None;
    }
    let mut offsets: Vec<i64> = followed.iter().map(|peer| peer.offset).collect();
    if own {
        offsets.push(0);
    }
    let noise = followed.iter().map(|peer| peer.deviation).max()?;
    let correction = match disciplined {
        true => 0,
        false => beyond(middle(&mut offsets), noise.saturating_mul(2)),
    };
    // A disciplined clock stays where it is, so the rest of the offset stays, too.
    let stays = followed.iter().any(|peer| peer.disciplined);
    let left = |peer: &&Standing| match stays {
        true => peer.offset.abs_diff(correction),
        false => 0,
    };
    let error = |peer: &&Standing| if peer.disciplined { peer.error } else { 0 };
    let deviation = |peer: &&Standing| peer.deviation.max(left(peer));
    let bound = |peer: &&Standing| {
        let off = peer.bound.saturating_add(left(peer));
        off.saturating_add(error(peer))
    };
    Some(Agreement {
        correction,
        deviation: followed.iter().map(deviation).max()?,
        bound: followed.iter().map(bound).max()?,
    })
}

/// The part of an offset beyond random error: clocks of one machine, measured while it is busy,
/// must not be corrected apart.
fn beyond(offset: i64, chance: u64) -> i64 {
    let left = i64::try_from(offset.unsigned_abs().saturating_sub(chance)).unwrap_or(i64::MAX);
    if offset < 0 { -left } else { left }
}

fn middle(numbers: &mut [i64]) -> i64 {
    numbers.sort_unstable();
    let half = numbers.len() / 2;
    if numbers.len() % 2 == 1 {
        return numbers[half];
    }
    // Rounded down on all sides alike.
    let sum = i128::from(numbers[half - 1]) + i128::from(numbers[half]);
    i64::try_from(sum.div_euclid(2)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const BEGAN: u64 = 1_700_000_000_000_000_000;

    /// An exchange that begins at `at`, with a peer whose clock is ahead by `offset`.
    fn exchange(at: u64, offset: i64, there: u64, back: u64) -> Readings {
        let sent = BEGAN + at;
        let came = (sent + there).saturating_add_signed(offset);
        Readings {
            sent,
            came,
            left: came + 10,
            back: sent + there + 10 + back,
            took: there + 10 + back,
        }
    }

    fn add(clock: &mut PeerClock, at: u64, offset: i64, there: u64, back: u64) -> bool {
        let readings = exchange(at, offset, there, back);
        clock.add(Time(at), readings, false, 0)
    }

    #[test]
    fn true_offset_lies_within_bound_whatever_ways_there_and_back() {
        let mut clock = PeerClock::default();
        assert_eq!(clock.standing(Time(0)), None);
        for (turn, (there, back)) in [(300, 90), (50, 2_000), (60, 50), (900, 900), (70, 900)]
            .into_iter()
            .enumerate()
        {
            let at = turn as u64 * 500 * MS;
            assert!(add(&mut clock, at, -7_000_000, there * 1000, back * 1000));
            let standing = clock.standing(Time(at)).expect("measured");
            assert!(standing.offset.abs_diff(-7_000_000) <= standing.bound);
        }
        let standing = clock.standing(Time(2_000 * MS)).expect("measured");
        // The shortest round trip counts, and not the last one.
        assert!(
            standing.offset.abs_diff(-7_000_000) <= 10_000,
            "{standing:?}"
        );
        let few = standing.deviation == standing.bound;
        assert!(few, "five tell no deviation: {standing:?}");
        let later = clock.standing(Time(12_000 * MS)).expect("measured");
        assert!(later.bound > standing.bound, "clocks drift");
        assert_eq!(clock.standing(Time(70_000 * MS)), None, "too old");
    }

    #[test]
    fn deviation_is_that_of_the_shortest_round_trips() {
        let mut clock = PeerClock::default();
        for turn in 0..40 {
            // Every other one is slow, and each by another way.
            let slow = (turn % 2) * (5 * MS + turn * 100_000);
            let jitter = turn % 3 * 1_000;
            add(&mut clock, turn * MS, 500, 50_000 + jitter + slow, 50_000);
        }
        let standing = clock.standing(Time(40 * MS)).expect("measured");
        assert!(standing.offset.abs_diff(500) < 2_000);
        assert!(standing.deviation < 2_000, "{standing:?}");
    }

    #[test]
    fn clock_that_was_set_is_believed_at_once() {
        let mut clock = PeerClock::default();
        for turn in 0..20 {
            add(&mut clock, turn * MS, 0, 50_000, 50_000);
        }
        add(&mut clock, 20 * MS, 1_000_000_000, 80_000, 50_000);
        let standing = clock.standing(Time(20 * MS)).expect("measured");
        assert!(standing.offset.abs_diff(1_000_000_000) <= standing.bound);
    }

    #[test]
    fn invalid_exchanges_are_left_out() {
        let mut clock = PeerClock::default();
        let good = exchange(0, 0, 50_000, 50_000);
        let bad = [
            // This clock was set back, or forth, in between.
            Readings {
                back: good.sent - 1,
                ..good
            },
            Readings {
                back: good.back + MS,
                ..good
            },
            // The peer's answer left before the question came.
            Readings {
                left: good.came - 1,
                ..good
            },
            Readings {
                came: 0,
                left: u64::MAX,
                ..good
            },
            Readings { sent: 0, ..good },
            exchange(0, 0, 2_000 * MS, 0),
        ];
        for readings in bad {
            assert!(!clock.add(Time(0), readings, false, 0), "{readings:?}");
        }
        assert_eq!(clock.standing(Time(0)), None);
        assert!(clock.add(Time(0), good, false, 0));
        clock.forget();
        assert_eq!(clock.standing(Time(0)), None);
    }

    fn standing(offset: i64, disciplined: bool) -> Standing {
        Standing {
            offset,
            deviation: 5,
            bound: 50,
            disciplined,
            error: 7,
        }
    }

    #[test]
    fn clocks_that_nothing_disciplines_meet_in_the_middle() {
        // Three clocks, told by their differences to the first.
        let clocks = [0i64, 4_000, -1_000];
        let meet: Vec<i64> = clocks
            .iter()
            .map(|own| {
                let others = clocks.iter().filter(|other| *other != own);
                let peers: Vec<_> = others.map(|other| standing(other - own, false)).collect();
                let agreement = agree(false, &peers).expect("a peer told");
                assert_eq!((agreement.deviation, agreement.bound), (5, 50));
                own + agreement.correction
            })
            .collect();
        // But for what may be chance.
        assert_eq!(meet, [0, 10, -10]);
        assert_eq!(agree(false, &[]), None);
        let alone = |offset| agree(false, &[standing(offset, false)]).map(|it| it.correction);
        assert_eq!([99, -99, 19, -19].map(alone), [39, -40, 0, 0].map(Some));
    }

    #[test]
    fn disciplined_clock_is_followed_and_follows_no_other() {
        let peers = [standing(1_000, true), standing(-70_000, false)];
        let follows = agree(false, &peers).expect("a peer told");
        assert_eq!((follows.correction, follows.deviation), (990, 10));
        let stays = agree(true, &peers).expect("a peer told");
        assert_eq!(
            (stays.correction, stays.deviation, stays.bound),
            (0, 1_000, 1_057)
        );
        assert_eq!(agree(true, &peers[1..]), None, "no peer to compare with");
    }
}

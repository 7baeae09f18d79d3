//! Whether the tail answers in time, and when another replica answers besides it.
//!
//! ```text
//!   a round ─► … ─► middle ──Ack──► leader   first ┐ of one round at a time:
//!                     └─► … tail ──Ack──► leader   ┘ how much later?
//! ```
//!
//! A leader that hears of decisions from the tail alone cannot tell a late tail from a long way:
//! its clients wait for both, and so ask for no more than the tail's link carries. So when rounds
//! take long, and when a replica was let in at the end, the middle answers as well for a trial, and
//! the two are compared. A late tail delays no client while the middle answers.

use core::time::Duration;
use quintet_replica::Time;

/// Late is a tail whose answer takes that many times as long as the first one to a round, and so
/// much longer. A round that takes no longer than this is worth no trial.
const TIMES: u32 = 8;
const LEAST: Duration = Duration::from_millis(5);
/// The middle answers no more after this many beats in a row in which the tail was in time. Each
/// time that it was late this becomes twice as much.
const CALM_MIN: u32 = 10;
const CALM_MAX: u32 = 320;
/// Between two trials that found nothing, and twice that the next time.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(320);

/// A round whose answers are compared.
#[derive(Hash)]
struct Sample {
    number: u64,
    made_at: Time,
    first: Option<Duration>,
}

/// See the module.
#[derive(Hash)]
pub(super) struct Tail {
    doubted: bool,
    sample: Option<Sample>,
    /// It was late since the last beat; since the trial began.
    late: bool,
    proven: bool,
    calm: u32,
    calm_min: u32,
    trial_from: Time,
    pause: Duration,
}

impl Default for Tail {
    fn default() -> Self {
        Self {
            doubted: false,
            sample: None,
            late: false,
            proven: false,
            calm: 0,
            calm_min: CALM_MIN,
            trial_from: Time(0),
            pause: PAUSE_MIN,
        }
    }
}

impl Tail {
    /// Whether the middle is to answer, too.
    pub const fn is_doubted(&self) -> bool {
        self.doubted
    }

    /// It may be late: it is new, or rounds take long.
    pub fn doubt(&mut self) {
        self.doubted = true;
        self.sample = None;
        self.calm = 0;
    }

    /// A round was made.
    pub fn made(&mut self, number: u64, now: Time) {
        if self.doubted && self.sample.is_none() {
            self.sample = Some(Sample {
                number,
                made_at: now,
                first: None,
            });
        }
    }

    /// A round was answered, by the tail or another one.
    pub fn answered(&mut self, number: u64, by_tail: bool, now: Time) {
        let Some(sample) = &mut self.sample else {
            return;
        };
        if number < sample.number {
            return;
        }
        let took = now.since(sample.made_at);
        let first = *sample.first.get_or_insert(took);
        if by_tail {
            self.late |= is_late(took, first);
            self.sample = None;
        }
    }

    /// A beat; rounds take so long.
    pub fn beat(&mut self, round_trip: Duration, now: Time) {
        if !self.doubted {
            if round_trip > LEAST && now >= self.trial_from {
                self.doubt();
            }
            return;
        }
        // One that has not answered yet may be late already.
        if let Some(sample) = &self.sample
            && let Some(first) = sample.first
        {
            self.late |= is_late(now.since(sample.made_at), first);
        }
        let late = core::mem::take(&mut self.late);
        self.proven |= late;
        self.calm = if late { 0 } else { self.calm + 1 };
        if self.calm < self.calm_min {
            return;
        }
        self.doubted = false;
        if core::mem::take(&mut self.proven) {
            self.calm_min = (self.calm_min * 2).min(CALM_MAX);
            self.pause = PAUSE_MIN;
            self.trial_from = now;
        } else {
            self.trial_from = now + self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }
}

fn is_late(took: Duration, first: Duration) -> bool {
    took > first * TIMES && took > first + LEAST
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MS: Duration = Duration::from_millis(1);
    const BEAT: Duration = Duration::from_millis(100);

    struct Beats {
        tail: Tail,
        now: Time,
        round: u64,
    }

    impl Beats {
        fn new() -> Self {
            Self {
                tail: Tail::default(),
                now: Time(0),
                round: 0,
            }
        }

        /// Beats of rounds that the middle answers after `first` and the tail after `last`, until
        /// the middle is, or is not, to answer.
        fn until(&mut self, doubted: bool, first: Duration, last: Duration) -> u32 {
            for beats in 0..10_000 {
                if self.tail.is_doubted() == doubted {
                    return beats;
                }
                let made = self.now;
                self.round += 1;
                self.tail.made(self.round, made);
                if self.tail.is_doubted() {
                    self.tail.answered(self.round, false, made + first);
                }
                if last < BEAT {
                    self.tail.answered(self.round, true, made + last);
                }
                self.now = made + BEAT;
                let loops = if self.tail.is_doubted() { first } else { last };
                self.tail.beat(loops, self.now);
            }
            10_000
        }
    }

    #[test]
    fn late_tail_is_found_when_rounds_take_long() {
        let mut beats = Beats::new();
        assert_eq!(beats.until(true, MS / 5, MS * 20), 1);
        assert_eq!(beats.until(false, MS / 5, MS * 20), 10_000, "it is late");
        assert_eq!(beats.until(false, MS / 5, BEAT * 9), 10_000, "very late");
        beats.tail.answered(beats.round, true, beats.now);
        let calm = beats.until(false, MS / 5, MS / 4);
        assert!((CALM_MIN..CALM_MIN + 2).contains(&calm), "{calm}");
        assert_eq!(beats.until(true, MS / 5, MS * 20), 1, "and again");
        let calm = beats.until(false, MS / 5, MS / 4);
        assert_eq!(calm, CALM_MIN * 2, "longer, as it was late before");
    }

    #[test]
    fn long_way_is_tried_seldom() {
        let mut beats = Beats::new();
        let mut pauses = Vec::new();
        for _ in 0..3 {
            pauses.push(beats.until(true, MS * 150, MS * 99));
            assert_eq!(beats.until(false, MS * 60, MS * 99), CALM_MIN);
        }
        assert_eq!(pauses, [1, 100, 200]);
        assert_eq!(Beats::new().until(true, MS, MS * 4), 10_000, "near");
    }

    #[test]
    fn new_tail_is_tried_at_once() {
        let mut beats = Beats::new();
        beats.tail.doubt();
        assert_eq!(beats.until(false, MS / 5, MS / 4), CALM_MIN);
        beats.tail.doubt();
        assert_eq!(beats.until(false, MS / 5, MS * 20), 10_000);
    }
}

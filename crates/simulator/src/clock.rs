//! The clocks of one process: monotonic time for timers, and a synchronised clock with errors.
//!
//! ```text
//!   virtual time ──► × rate (drift) ──► monotonic Time, from 0 at each boot
//!               └──► + offset (and steps) ──► ClockReading, nanoseconds since the Unix epoch
//! ```

use quintet_replica::{ClockReading, Time};

/// Virtual time 0 as nanoseconds since the Unix epoch.
const EPOCH: i64 = 1_700_000_000_000_000_000;
const MILLION: i128 = 1_000_000;

/// See the module. All times are nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// Virtual time at which the monotonic clock stood at `local`.
    since: u64,
    local: u64,
    /// Parts per million that the clock runs too fast.
    drift: i64,
    /// How far the synchronised clock is off.
    offset: i64,
}

impl Clock {
    /// The monotonic clock starts over.
    pub fn boot(&mut self, now: u64) {
        self.since = now;
        self.local = 0;
    }

    pub fn now(&self, now: u64) -> Time {
        let past = i128::from(now - self.since);
        Time(self.local + (past + past * i128::from(self.drift) / MILLION) as u64)
    }

    /// The first virtual time, not before `now`, at which the monotonic clock shows `local`.
    pub fn when(&self, local: Time, now: u64) -> u64 {
        if local == Time::NEVER {
            return u64::MAX;
        }
        let ahead = i128::from(local.0.saturating_sub(self.local));
        let rate = MILLION + i128::from(self.drift);
        let past = (ahead * MILLION + rate - 1) / rate;
        let mut at = self.since.saturating_add(past as u64).max(now);
        // Rounding may leave it a nanosecond short, or past.
        while self.now(at) < local {
            at += 1;
        }
        while at > now && self.now(at - 1) >= local {
            at -= 1;
        }
        at
    }

    pub fn reading(&self, now: u64) -> ClockReading {
        let clock = (EPOCH + now as i64 + self.offset) as u64;
        let error = 1_000_000 + self.offset.unsigned_abs();
        ClockReading {
            earliest: clock - error,
            now: clock,
            latest: clock + error,
            deviation: error / 3,
        }
    }

    /// The virtual time at which the synchronised clock shows `clock`, not before `now`.
    pub fn when_clock(&self, clock: u64, now: u64) -> u64 {
        let at = i128::from(clock) - i128::from(EPOCH) - i128::from(self.offset);
        u64::try_from(at).unwrap_or(0).max(now)
    }

    /// The monotonic clock runs `drift` parts per million too fast from now on.
    pub fn set_drift(&mut self, drift: i64, now: u64) {
        self.local = self.now(now).0;
        self.since = now;
        self.drift = drift;
    }

    /// The synchronised clock jumps by `by`.
    pub fn step(&mut self, by: i64) {
        self.offset += by;
    }

    /// The synchronised clock is right again.
    pub fn synchronise(&mut self) {
        self.offset = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_fires_when_the_drifting_clock_shows_it() {
        for drift in [-50_000, -3, 0, 7, 50_000] {
            let mut clock = Clock::default();
            clock.boot(1_000);
            clock.set_drift(drift, 500_000);
            for local in [1, 499_000, 777_777, 123_456_789_123] {
                let at = clock.when(Time(local), 500_000);
                assert!(clock.now(at) >= Time(local));
                assert!(
                    at == 500_000 || clock.now(at - 1) < Time(local),
                    "drift {drift}"
                );
            }
        }
    }

    #[test]
    fn a_step_moves_the_synchronised_clock_only() {
        let mut clock = Clock::default();
        let (before, local) = (clock.reading(10).now, clock.now(10));
        clock.step(-5);
        assert_eq!(clock.reading(10).now, before - 5);
        assert_eq!(clock.now(10), local);
        assert_eq!(clock.when_clock(before, 10), 15);
    }
}

//! The clocks of one process: monotonic time for timers, and a synchronised clock with errors.
//!
//! ```text
//!   virtual time ──► × rate (drift) ──► monotonic Time, from 0 at each boot
//!               └──► + offset (and steps) ──► at most its limit ──► ClockReading, nanoseconds
//!                                                                  since the Unix epoch
//! ```

use quintet_replica::{ClockLimit, ClockReading, Time};

/// In nanoseconds.
pub(crate) const MILLISECOND: u64 = 1_000_000;
/// In nanoseconds.
pub(crate) const SECOND: u64 = 1000 * MILLISECOND;
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
    /// It stands still since this virtual time.
    stopped: Option<u64>,
    /// It says that it is right, whatever it shows.
    lies: bool,
    /// By how much it says at least that it may be off.
    pub uncertainty: u64,
    /// How far the synchronised clock is believed.
    pub limit: ClockLimit,
}

impl Clock {
    /// The monotonic clock starts over.
    pub fn boot(&mut self, now: u64) {
        self.set_drift(self.drift, now);
        self.local = 0;
        self.limit = ClockLimit::default();
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

    /// How far the synchronised clock is off now; it drifts as the monotonic one does.
    fn off(&self, now: u64) -> i64 {
        let past = i128::from(now.saturating_sub(self.since));
        let stood = self.stopped.map_or(0, |since| now - since) as i64;
        self.offset + (past * i128::from(self.drift) / MILLION) as i64 - stood
    }

    /// The reading of the synchronised clock by itself.
    pub fn raw(&self, now: u64) -> u64 {
        (EPOCH + now as i64 + self.off(now)) as u64
    }

    /// Whether it shows more than is believed.
    pub fn is_ahead(&self, now: u64) -> bool {
        self.raw(now) > self.limit.at(self.now(now))
    }

    /// The reading that the replica gets.
    pub fn reading(&self, now: u64) -> ClockReading {
        let (off, clock) = (self.off(now), self.raw(now));
        let error = if self.lies { 0 } else { off.unsigned_abs() } + self.uncertainty;
        ClockReading {
            earliest: clock - error,
            now: clock,
            latest: clock + error,
            deviation: error / 3,
        }
        .at_most(self.limit.at(self.now(now)))
    }

    /// The virtual time at which the synchronised clock shows `clock`, not before `now`.
    pub fn when_clock(&self, clock: u64, now: u64) -> u64 {
        if self.stopped.is_some() {
            return u64::MAX;
        }
        let ahead = i128::from(clock) - i128::from(EPOCH) - i128::from(self.offset);
        let past = (ahead - i128::from(self.since)) * MILLION / (MILLION + i128::from(self.drift));
        let mut at = u64::try_from(i128::from(self.since) + past).unwrap_or(0);
        at = at.max(now).max(self.when(self.limit.when(clock), now));
        // Rounding may leave it a nanosecond short.
        while self.reading(at).now < clock {
            at += 1;
        }
        at
    }

    /// The monotonic clock runs `drift` parts per million too fast from now on.
    pub fn set_drift(&mut self, drift: i64, now: u64) {
        self.local = self.now(now).0;
        let stood = self.stopped.map_or(0, |since| now - since) as i64;
        self.offset = self.off(now) + stood;
        self.since = now;
        self.drift = drift;
    }

    /// The synchronised clock stands still from now on, or continues from where it stood.
    pub fn stop(&mut self, stop: bool, now: u64) {
        if stop {
            self.stopped.get_or_insert(now);
        } else if let Some(since) = self.stopped.take() {
            self.offset -= (now - since) as i64;
        }
    }

    /// It no longer tells how far it may be off, or does so again.
    pub const fn lie(&mut self, lies: bool) {
        self.lies = lies;
    }

    /// The synchronised clock jumps by `by`.
    pub fn step(&mut self, by: i64) {
        self.offset += by;
    }

    /// The synchronised clock is right again.
    pub fn synchronise(&mut self) {
        self.offset = 0;
        self.stopped = None;
        self.lies = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_fires_when_the_drifting_clock_shows_it() {
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
    fn stopped_clock_continues_and_false_clock_hides_error() {
        let mut clock = Clock::default();
        let before = clock.reading(0).now;
        clock.stop(true, 10);
        let reading = clock.reading(1_000_000_010);
        assert_eq!(reading.now, before + 10);
        assert!(reading.latest >= before + 1_000_000_010);
        clock.lie(true);
        assert!(clock.reading(1_000_000_010).latest < before + 1_000_000_010);
        assert_eq!(clock.when_clock(before + 11, 1_000_000_010), u64::MAX);
        clock.stop(false, 1_000_000_010);
        assert_eq!(clock.reading(1_000_000_020).now, before + 20);
    }

    #[test]
    fn drifting_clock_strays_and_tells_so() {
        let mut clock = Clock::default();
        clock.set_drift(50_000, 0);
        let reading = clock.reading(1_000_000_000);
        assert_eq!(reading.now, EPOCH as u64 + 1_050_000_000);
        assert!(reading.earliest <= EPOCH as u64 + 1_000_000_000);
        let at = clock.when_clock(EPOCH as u64 + 2_100_000_000, 1_000_000_000);
        assert!(at.abs_diff(2_000_000_000) < 10_000, "{at}");
        clock.set_drift(0, 1_000_000_000);
        assert_eq!(clock.reading(1_000_000_000), reading);
    }

    #[test]
    fn clock_beyond_its_limit_shows_the_limit_and_its_timers_wait() {
        let mut clock = Clock::default();
        clock.boot(0);
        let right = clock.reading(0).now;
        clock.step(3_600 * SECOND as i64);
        clock
            .limit
            .note(Time(0), &mut [right, right, clock.raw(0)], 3);
        assert!(clock.is_ahead(0));
        let shown = clock.reading(5 * MILLISECOND).now;
        assert_eq!(shown, right + SECOND + 5 * MILLISECOND);
        let at = clock.when_clock(shown + 70, 5 * MILLISECOND);
        assert_eq!(at, 5 * MILLISECOND + 70);
    }

    #[test]
    fn step_moves_the_synchronised_clock_only() {
        let mut clock = Clock::default();
        let (before, local) = (clock.reading(10).now, clock.now(10));
        clock.step(-5);
        assert_eq!(clock.reading(10).now, before - 5);
        assert_eq!(clock.now(10), local);
        assert_eq!(clock.when_clock(before, 10), 15);
    }
}

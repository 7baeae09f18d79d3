//! The real clocks: monotonic time for timers, the system's synchronised time for agreement on
//! "when".

use quintet_replica::{ClockReading, Time};
use std::{
    cell::Cell,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How long the kernel's estimate of its own error is taken for granted.
const ESTIMATE_AGE_MAX: Duration = Duration::from_secs(1);

/// The kernel's estimate of its clock's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Estimate {
    /// No further off than this, in nanoseconds.
    bound: u64,
    /// Standard deviation in nanoseconds; `u64::MAX` when nothing disciplines the clock.
    deviation: u64,
}

/// Reads both clocks. Belongs to one thread.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    estimate: Cell<(Time, Estimate)>,
}

impl Clock {
    pub fn new() -> Self {
        let estimate = kernel_estimate();
        Self {
            started: Instant::now(),
            estimate: Cell::new((Time(0), estimate)),
        }
    }

    pub fn now(&self) -> Time {
        Time(nanoseconds(self.started.elapsed()))
    }

    pub fn reading(&self) -> ClockReading {
        let (read_at, mut estimate) = self.estimate.get();
        let monotonic = self.now();
        if monotonic.since(read_at) > ESTIMATE_AGE_MAX {
            estimate = kernel_estimate();
            self.estimate.set((monotonic, estimate));
        }
        let now = unix_time();
        ClockReading {
            earliest: now.saturating_sub(estimate.bound),
            now,
            latest: now.saturating_add(estimate.bound),
            deviation: estimate.deviation,
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds since the Unix epoch by the system's clock.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, nanoseconds)
}

#[cfg(target_os = "linux")]
fn kernel_estimate() -> Estimate {
    // SAFETY: timex is a plain C structure of integers, for which all zeros is a valid value;
    // with `modes` zero the call only fills it in and changes nothing.
    let (state, timex) = unsafe {
        let mut timex: libc::timex = core::mem::zeroed();
        (libc::ntp_adjtime(&mut timex), timex)
    };
    let microseconds = |value: libc::c_long| u64::try_from(value).unwrap_or(0).saturating_mul(1000);
    let synchronised =
        (0..libc::TIME_ERROR).contains(&state) && timex.status & libc::STA_UNSYNC == 0;
    Estimate {
        bound: microseconds(timex.maxerror),
        deviation: if synchronised {
            microseconds(timex.esterror)
        } else {
            u64::MAX
        },
    }
}

#[cfg(not(target_os = "linux"))]
fn kernel_estimate() -> Estimate {
    Estimate {
        bound: 1_000_000_000,
        deviation: u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_go_on_and_the_reading_holds_its_own_bounds() {
        let clock = Clock::new();
        let (first, reading) = (clock.now(), clock.reading());
        assert!(clock.now() >= first);
        assert!(reading.earliest <= reading.now && reading.now <= reading.latest);
    }
}

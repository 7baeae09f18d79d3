//! The real clocks: monotonic time for timers, and synchronised time for agreement on "when".
//!
//! ```text
//!   the system's clock ──┬─► what the kernel says of it (chrony, ptp4l) ──┐
//!                        └─► what exchanges with the peers say of it ─────┴─► ClockReading
//! ```
//!
//! A clock that something disciplines is left as it is; its peers only tell how good it is. One
//! that nothing disciplines is corrected by what its peers tell: small corrections are slewed, so
//! that time never goes back, large ones are a step.

use crate::peer_clock::{Agreement, Standing};
use quintet_replica::{ClockLimit, ClockReading, CommandTime, Time};
use std::{
    cell::Cell,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How long the kernel's estimate of its own error is taken for granted.
const ESTIMATE_AGE_MAX: Duration = Duration::from_secs(1);
/// A correction that is off by more is a step.
const STEP: u64 = 100_000_000;
/// A smaller one changes by no more than one part in this many.
const SLEW: u64 = 20;
/// The system's clock was set when it and the monotonic one differ by more than this.
const SET: u64 = 10_000_000;

/// The kernel's estimate of its clock's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Estimate {
    /// No further off than this, in nanoseconds.
    bound: u64,
    /// Standard deviation in nanoseconds; `u64::MAX` when nothing disciplines the clock.
    deviation: u64,
}

/// A correction on its way to where it is wanted.
#[derive(Clone, Copy, Debug, Default)]
struct Correction {
    at: Time,
    applied: i64,
    wanted: i64,
}

impl Correction {
    fn pass(&mut self, now: Time) {
        let apart = i128::from(self.wanted) - i128::from(self.applied);
        let most = i128::from(now.since(self.at).as_nanos() as u64 / SLEW);
        self.applied = match apart.unsigned_abs() > u128::from(STEP) {
            true => self.wanted,
            false => (i128::from(self.applied) + apart.clamp(-most, most)) as i64,
        };
        self.at = now;
    }
}

/// The state of a clock for users, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClockState {
    pub disciplined: bool,
    /// The addition to the system's clock.
    pub correction: i64,
    /// `u64::MAX` when nothing tells it.
    pub deviation: u64,
    pub bound: u64,
}

/// Reads both clocks. Belongs to one thread.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// How far the system's clock is set wrong on purpose, in nanoseconds.
    skew: i64,
    estimate: Cell<(Time, Estimate)>,
    correction: Cell<Correction>,
    agreement: Cell<Option<Agreement>>,
    /// Both clocks as they last stood together.
    together: Cell<(Time, u64)>,
    /// How far it is believed.
    limit: Cell<ClockLimit>,
}

/// Monotonic time as a [`Clock`] shows it, for other threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticker(Instant);

impl Ticker {
    pub fn now(&self) -> Time {
        Time(nanoseconds(self.0.elapsed()))
    }
}

impl Clock {
    /// A clock that shows the system's time, and `skew` nanoseconds more.
    pub fn new(skew: i64) -> Self {
        let estimate = kernel_estimate();
        Self {
            started: Instant::now(),
            skew,
            estimate: Cell::new((Time(0), estimate)),
            correction: Cell::default(),
            agreement: Cell::default(),
            together: Cell::new((Time(0), skewed(skew))),
            limit: Cell::default(),
        }
    }

    pub fn now(&self) -> Time {
        self.ticker().now()
    }

    /// The same monotonic time for another thread.
    pub const fn ticker(&self) -> Ticker {
        Ticker(self.started)
    }

    /// The kernel's estimate, hardly older than a second.
    fn estimate(&self, now: Time) -> Estimate {
        let (read_at, mut estimate) = self.estimate.get();
        if now.since(read_at) > ESTIMATE_AGE_MAX {
            estimate = kernel_estimate();
            self.estimate.set((now, estimate));
        }
        estimate
    }

    fn correction(&self, now: Time) -> i64 {
        let mut correction = self.correction.get();
        correction.pass(now);
        self.correction.set(correction);
        correction.applied
    }

    pub fn reading(&self) -> ClockReading {
        let now = self.now();
        let state = self.state_at(now);
        let clock = skewed(self.skew).saturating_add_signed(state.correction);
        let reading = ClockReading {
            earliest: clock.saturating_sub(state.bound),
            now: clock,
            latest: clock.saturating_add(state.bound),
            deviation: state.deviation,
        };
        reading.at_most(self.limit.get().at(now))
    }

    /// The log stands there, and perhaps nothing is known of the members' clocks.
    pub fn begin_log(&self, log: CommandTime, members: usize) {
        let mut limit = self.limit.get();
        limit.begin(self.now(), log, members);
        self.limit.set(limit);
    }

    /// Whether a majority's clocks are still to be learnt after a restart.
    pub fn waits_for_peers(&self) -> bool {
        self.limit.get().waits()
    }

    /// How the clocks of those members that are known stand to this one. Gives by how much this one
    /// is further ahead of a majority than is believed.
    pub fn limit(&self, peers: &[Standing], members: usize) -> Duration {
        let (now, own) = (self.now(), skewed(self.skew));
        let known = peers
            .iter()
            .map(|peer| own.saturating_add_signed(peer.offset));
        let mut clocks: Vec<u64> = known.chain([own]).collect();
        let mut limit = self.limit.get();
        limit.note(now, &mut clocks, members);
        self.limit.set(limit);
        let corrected = own.saturating_add_signed(self.correction(now));
        Duration::from_nanos(corrected.saturating_sub(limit.at(now)))
    }

    fn state_at(&self, now: Time) -> ClockState {
        let estimate = self.estimate(now);
        let agreement = self.agreement.get();
        ClockState {
            disciplined: disciplined(estimate),
            correction: self.correction(now),
            deviation: agreement.map_or(estimate.deviation, |agreement| agreement.deviation),
            bound: match agreement {
                Some(agreement) if !disciplined(estimate) => agreement.bound,
                _ => estimate.bound,
            },
        }
    }

    /// The state for users.
    pub fn state(&self) -> ClockState {
        self.state_at(self.now())
    }

    /// Whether something disciplines the system's clock, and how far it may be off.
    pub fn discipline(&self) -> (bool, u64) {
        let estimate = self.estimate(self.now());
        (disciplined(estimate), estimate.bound)
    }

    /// From now on it follows what is agreed; `None` leaves the correction as it is, and the
    /// deviation to the kernel.
    pub fn follow(&self, agreement: Option<Agreement>) {
        let mut correction = self.correction.get();
        correction.pass(self.now());
        if let Some(agreement) = agreement {
            correction.wanted = agreement.correction;
        }
        self.correction.set(correction);
        self.agreement.set(agreement);
    }

    /// Whether the system's clock was set since this was last asked.
    pub fn was_set(&self) -> bool {
        let (now, clock) = (self.now(), skewed(self.skew));
        let (then, showed) = self.together.replace((now, clock));
        let passed = nanoseconds(now.since(then));
        // A disciplined clock may run up to 500 parts per million off.
        let strayed = showed.saturating_add(passed).abs_diff(clock);
        strayed > SET.saturating_add(passed / 1000)
    }
}

const fn disciplined(estimate: Estimate) -> bool {
    estimate.deviation != u64::MAX
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

/// The same by a clock that is set wrong on purpose.
pub(crate) fn skewed(skew: i64) -> u64 {
    unix_time().saturating_add_signed(skew)
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
    fn both_clocks_advance_and_reading_stays_within_bounds() {
        let clock = Clock::new(0);
        let (first, reading) = (clock.now(), clock.reading());
        assert!(clock.now() >= first);
        assert!(reading.earliest <= reading.now && reading.now <= reading.latest);
    }

    #[test]
    fn small_corrections_are_slewed_and_large_ones_are_a_step() {
        let wanted = 50_000_000;
        let mut correction = Correction {
            wanted,
            ..Correction::default()
        };
        correction.pass(Time(100_000_000));
        assert_eq!(correction.applied, 5_000_000);
        correction.wanted = -wanted;
        correction.pass(Time(200_000_000));
        assert_eq!(correction.applied, 0);
        correction.pass(Time(5_000_000_000));
        assert_eq!(correction.applied, -wanted, "it has arrived");
        correction.wanted = 1_000_000_000;
        correction.pass(Time(5_000_000_000));
        assert_eq!(correction.applied, 1_000_000_000);
    }

    #[test]
    fn it_is_noticed_once_that_the_systems_clock_was_set() {
        let clock = Clock::new(0);
        // As if both had last been read when the system's clock showed this much more, or less.
        for apart in [1_000_000_000, -1_000_000_000i64] {
            let (then, showed) = (clock.now(), unix_time().saturating_add_signed(apart));
            clock.together.set((then, showed));
            assert!(clock.was_set());
            assert!(!clock.was_set(), "once");
        }
        // The permitted steps of a disciplined clock.
        let showed = unix_time().saturating_add(1_000_000);
        clock.together.set((clock.now(), showed));
        assert!(!clock.was_set());
    }

    #[test]
    fn clock_follows_what_is_agreed_and_tells_how_good_that_is() {
        let clock = Clock::new(1_000_000_000);
        let agreement = Agreement {
            correction: -1_000_000_000,
            deviation: 7,
            bound: 1_000,
        };
        assert!(clock.reading().now.abs_diff(unix_time()) > 500_000_000);
        clock.follow(Some(agreement));
        let reading = clock.reading();
        assert!(
            reading.now.abs_diff(unix_time()) < 500_000_000,
            "skew and all"
        );
        assert_eq!(reading.deviation, 7);
        clock.follow(None);
        assert_eq!(clock.state().correction, -1_000_000_000, "it continues");
        assert_eq!(clock.state().deviation, kernel_estimate().deviation);
    }
}

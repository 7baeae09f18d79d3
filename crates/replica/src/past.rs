//! Reads of the past: which time they ask for, and how that time is closed.
//!
//! ```text
//!   closed: no command to come gets a time as early as t        ◄── t is below the log's clock
//!
//!   asked for t ──► read here ──► closed here: the answer, permanently equal at all replicas
//!                      │ not yet
//!                      ▼
//!               this clock has passed t? ── no ──► wait, or give up
//!                      │ yes
//!                      ▼
//!               order a tick ──► executing it moves the log's clock to its orderer's, and a little
//!                      │
//!                      ▼
//!               linearizable read ──► closed ── not yet: the orderer's clock is behind; wait
//! ```
//!
//! The log's clock never goes back, so a replica that has executed up to a clock T has all commands with
//! times before T, and all replicas have the same. Clocks of replicas play no part in the answer:
//! only in how long it takes. A tick cannot move the log's clock further than its orderer's, because
//! one clock that is far ahead must not end everybody's sessions.

use crate::{CommandTime, Level, RequestStatus};
use alloc::vec::Vec;

/// The payload of a [`RequestKind::Tick`](crate::RequestKind::Tick) behind whose batch the log's
/// clock is later than the time of all that came before.
pub const CLOSING_TICK: &[u8] = b"close";

/// The newest time that is closed where the read is answered.
pub const NEWEST: CommandTime = CommandTime(u64::MAX);

/// The payload of a [`RequestKind::Past`](crate::RequestKind::Past): the time, then the command.
#[must_use]
pub fn payload(time: CommandTime, command: &[u8]) -> Vec<u8> {
    let mut payload = Vec::with_capacity(8 + command.len());
    payload.extend_from_slice(&time.0.to_le_bytes());
    payload.extend_from_slice(command);
    payload
}

/// The time and the command in such a payload.
#[must_use]
pub fn parts(payload: &[u8]) -> Option<(CommandTime, &[u8])> {
    let (time, command) = payload.split_first_chunk()?;
    Some((CommandTime(u64::from_le_bytes(*time)), command))
}

/// The next step of a read of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Submit the read at this level.
    Read(Level),
    /// Order a [`CLOSING_TICK`].
    Tick,
    /// Wait until the own clock is past the time, or a little: this many nanoseconds.
    Wait(u64),
    /// Nothing: what is asked for is not there.
    Missing,
}

/// How far a read of the past has come: the same for servers, the library and the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asking {
    time: CommandTime,
    /// The answer is to show all that was acknowledged before it was asked for.
    fresh: bool,
    ticked: bool,
    /// The replica that is asked is to answer, and no other.
    here: bool,
}

/// A tick that did not move the log's clock far enough is ordered again after this, in nanoseconds.
const TICK_AGAIN: u64 = 50_000_000;
/// A replica whose state lags is asked again after this.
const HERE_AGAIN: u64 = 1_000_000;

impl Asking {
    /// A read as of `time`; or of the newest state, which is one that has all that was acknowledged
    /// before.
    #[must_use]
    pub fn new(time: CommandTime) -> Self {
        Self {
            time,
            fresh: time == NEWEST,
            ticked: false,
            here: false,
        }
    }

    /// A read of something that the newest state knows already, like a version that was told.
    #[must_use]
    pub const fn known() -> Self {
        Self {
            time: NEWEST,
            fresh: false,
            ticked: false,
            here: false,
        }
    }

    /// The same, answered by the replica that is asked: it waits until its own state knows it.
    #[must_use]
    pub const fn here() -> Self {
        let mut asking = Self::known();
        asking.here = true;
        asking
    }

    /// The time to be put into the request.
    #[must_use]
    pub const fn time(&self) -> CommandTime {
        self.time
    }

    /// Whether the read has been tried behind a tick of its own: all that was acknowledged before
    /// is in what it saw.
    #[must_use]
    pub const fn ticked(&self) -> bool {
        self.ticked
    }

    /// The first step.
    #[must_use]
    pub const fn begin(&self) -> Step {
        match self.fresh {
            true => Step::Tick,
            false => Step::Read(Level::Stale),
        }
    }

    /// The step after a tick was executed.
    pub const fn on_tick(&mut self) -> Step {
        self.ticked = true;
        Step::Read(Level::Linearizable)
    }

    /// The step after a read was answered that the time is not closed; `None` when the status is
    /// another, and so the answer. `clock` is this process's, in nanoseconds since the Unix epoch.
    #[must_use]
    pub fn on_read(&self, status: RequestStatus, clock: u64) -> Option<Step> {
        if status != RequestStatus::NotYet {
            return None;
        }
        if self.here {
            return Some(Step::Wait(HERE_AGAIN));
        }
        if self.time == NEWEST {
            return Some(match self.ticked {
                true => Step::Missing,
                false => Step::Tick,
            });
        }
        if self.time.0 >= clock {
            return Some(Step::Wait(self.time.0 - clock + 1));
        }
        Some(match self.ticked {
            // The clock of the replica that orders is behind this one.
            true => Step::Wait(TICK_AGAIN),
            false => Step::Tick,
        })
    }

    /// The step after a wait.
    pub const fn on_waited(&mut self, clock: u64) -> Step {
        if self.here {
            return Step::Read(Level::Stale);
        }
        self.ticked = false;
        match self.time {
            NEWEST => Step::Tick,
            time if time.0 < clock => Step::Tick,
            time => Step::Wait(time.0 - clock + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_time_is_read_without_a_tick() {
        let asking = Asking::new(CommandTime(5));
        assert_eq!(asking.begin(), Step::Read(Level::Stale));
        assert_eq!(asking.on_read(RequestStatus::Done, 9), None);
    }

    #[test]
    fn time_that_is_not_closed_is_ticked_when_the_clock_is_past_it() {
        let mut asking = Asking::new(CommandTime(50));
        let not_yet = RequestStatus::NotYet;
        assert_eq!(asking.on_read(not_yet, 40), Some(Step::Wait(11)));
        assert_eq!(asking.on_waited(45), Step::Wait(6));
        assert_eq!(asking.on_waited(51), Step::Tick);
        assert_eq!(asking.on_tick(), Step::Read(Level::Linearizable));
        assert_eq!(asking.on_read(not_yet, 52), Some(Step::Wait(TICK_AGAIN)));
    }

    #[test]
    fn newest_state_is_read_behind_a_tick() {
        let mut asking = Asking::new(NEWEST);
        assert_eq!(asking.begin(), Step::Tick);
        assert_eq!(asking.on_tick(), Step::Read(Level::Linearizable));
        assert!(asking.ticked());
        assert_eq!(Asking::known().begin(), Step::Read(Level::Stale));
        let mut here = Asking::here();
        let not_yet = here.on_read(RequestStatus::NotYet, 1);
        assert_eq!(not_yet, Some(Step::Wait(HERE_AGAIN)));
        assert_eq!(here.on_waited(2), Step::Read(Level::Stale));
    }

    #[test]
    fn payload_is_read_back() {
        let payload = payload(CommandTime(7), b"GET");
        assert_eq!(parts(&payload), Some((CommandTime(7), &b"GET"[..])));
        assert_eq!(parts(&payload[..7]), None);
    }
}

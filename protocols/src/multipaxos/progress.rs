//! What a leader knows of each follower, and how much it lets run ahead.
//!
//! ```text
//!   Probe ──(AcceptOk tells what it holds)──► Replicate ──(needs trimmed slots)──► Fetching
//!     ▲                                          │ ▲                                  │
//!     └───────────(link lost, new life)──────────┘ └──(holds what the log begins with)┘
//! ```

use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{Incarnation, Slot, Time};

/// How a leader sends to a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Flow {
    /// It is not known what the follower holds: heartbeats ask.
    Probe,
    /// Slots go out as they are proposed, before earlier ones are acknowledged.
    Replicate,
    /// The follower needs slots that are no longer kept, and fetches a snapshot.
    Fetching,
}

/// A leader's view of one follower, for one ballot.
#[derive(Clone, Debug, Hash)]
pub(super) struct Progress {
    pub flow: Flow,
    /// The next slot to send.
    pub next: Slot,
    /// What it holds without gaps.
    pub held: Slot,
    /// What it voted for.
    pub durable: Slot,
    pub executed: Slot,
    pub confirm: u64,
    /// The life whose votes count.
    pub incarnation: Incarnation,
    pub heard_at: Time,
    pub commit_sent: Slot,
    pub confirm_sent: u64,
    /// The stamp of the last message with proposals for it.
    pub sent_stamp: u64,
    pub round_trip: Duration,
    flight: VecDeque<(Slot, usize)>,
    pub flight_bytes: usize,
    /// The link is down: nothing but heartbeats is sent.
    pub down: bool,
    /// It has passed on requests that are still queued.
    pub forwarded: bool,
    /// Up to here its clients wait for what is decided: for requests that it passed on, and for
    /// reads.
    pub waits: Slot,
}

impl Progress {
    pub fn new(incarnation: Incarnation, now: Time) -> Self {
        Self {
            flow: Flow::Probe,
            next: Slot(1),
            held: Slot(0),
            durable: Slot(0),
            executed: Slot(0),
            confirm: 0,
            incarnation,
            heard_at: now,
            commit_sent: Slot(0),
            confirm_sent: 0,
            sent_stamp: 0,
            round_trip: Duration::ZERO,
            flight: VecDeque::new(),
            flight_bytes: 0,
            down: false,
            forwarded: false,
            waits: Slot(0),
        }
    }

    /// All that was queued up to now stands at or below `last`.
    pub fn proposed(&mut self, last: Slot, more: bool) {
        if self.forwarded {
            self.waits = last;
            self.forwarded = more;
        }
    }

    pub fn sent(&mut self, last: Slot, bytes: usize, stamp: u64, committed: Slot) {
        self.next = last.next();
        self.flight.push_back((last, bytes));
        self.flight_bytes += bytes;
        self.sent_stamp = stamp;
        self.commit_sent = self.commit_sent.max(committed);
    }

    pub fn landed(&mut self, held: Slot) {
        self.held = self.held.max(held);
        while let Some((last, bytes)) = self.flight.front().copied() {
            if last > held {
                break;
            }
            self.flight.pop_front();
            self.flight_bytes -= bytes;
        }
    }

    /// Sends again from the slot after `held`.
    pub fn rewind(&mut self, held: Slot) {
        self.flow = Flow::Replicate;
        self.held = held;
        self.next = held.next();
        self.flight.clear();
        self.flight_bytes = 0;
    }

    pub fn probe(&mut self) {
        self.flow = Flow::Probe;
        self.flight.clear();
        self.flight_bytes = 0;
    }

    /// A new life: nothing that an earlier one said of undecided slots counts any more.
    pub fn replace(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        self.held = Slot(0);
        self.durable = Slot(0);
        self.confirm = 0;
        self.executed = Slot(0);
        self.probe();
    }

    pub fn measured(&mut self, sample: Duration) {
        self.round_trip = if self.round_trip.is_zero() {
            sample
        } else {
            (self.round_trip * 7 + sample) / 8
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_life_takes_back_what_the_old_one_said() {
        let mut progress = Progress::new(Incarnation(1), Time(0));
        progress.rewind(Slot(0));
        progress.sent(Slot(5), 100, 1, Slot(0));
        progress.landed(Slot(5));
        progress.durable = Slot(5);
        progress.replace(Incarnation(2));
        assert_eq!((progress.durable, progress.flow), (Slot(0), Flow::Probe));
    }
}

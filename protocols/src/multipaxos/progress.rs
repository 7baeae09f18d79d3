//! A leader's view of each follower, and how far it lets each run ahead.
//!
//! ```text
//!   Probe ──(AcceptOk tells what it holds)──► Replicate ──(needs trimmed slots)──► Fetching
//!     ▲                                          │ ▲                                  │
//!     └────────(link lost, new incarnation)──────┘ └──(holds what the log begins with)┘
//! ```

use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{Incarnation, Slot, Time};

/// How a leader sends to a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Flow {
    /// It is not known what the follower holds: heartbeats ask.
    Probe,
    /// Slots go out as they are proposed, before earlier ones are acknowledged.
    Replicate,
    /// The follower needs slots that are no longer kept, and fetches a snapshot.
    Fetching,
}

/// Messages with proposals that are not acknowledged.
#[derive(Clone, Debug, Default, Hash)]
struct Flight {
    sent: VecDeque<(Slot, usize)>,
    bytes: usize,
}

impl Flight {
    fn push(&mut self, last: Slot, bytes: usize) {
        self.sent.push_back((last, bytes));
        self.bytes += bytes;
    }

    fn landed(&mut self, held: Slot) {
        while let Some((last, bytes)) = self.sent.front().copied() {
            if last > held {
                break;
            }
            self.sent.pop_front();
            self.bytes -= bytes;
        }
    }
}

/// The claims of a follower in an `AcceptOk`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub held: Slot,
    pub durable: Slot,
    pub executed: Slot,
    pub confirm: u64,
    pub stamp: u64,
}

/// A leader's view of one follower, for one ballot.
#[derive(Clone, Debug, Hash)]
pub(super) struct Progress {
    flow: Flow,
    /// The next slot to send.
    next: Slot,
    /// The slot up to which it holds entries without gaps.
    held: Slot,
    /// The slot up to which it voted.
    durable: Slot,
    executed: Slot,
    confirm: u64,
    /// The incarnation whose votes count.
    incarnation: Incarnation,
    received_at: Time,
    /// The commit point and the round of read confirmation that it was sent last.
    told: (Slot, u64),
    /// The stamp of the last message with proposals for it.
    sent_stamp: u64,
    round_trip: Duration,
    flight: Flight,
    /// The link is down: nothing but heartbeats is sent.
    down: bool,
    /// It has forwarded requests that are still queued.
    forwarded: bool,
    /// Up to here its clients wait for what is decided: for requests that it forwarded, and for
    /// reads.
    waits: Slot,
}

impl Progress {
    /// A follower of which nothing is known. Its clients may wait for all up to `waits`.
    pub fn new(incarnation: Incarnation, waits: Slot, now: Time) -> Self {
        Self {
            flow: Flow::Probe,
            next: Slot(1),
            held: Slot(0),
            durable: Slot(0),
            executed: Slot(0),
            confirm: 0,
            incarnation,
            received_at: now,
            told: (Slot(0), 0),
            sent_stamp: 0,
            round_trip: Duration::ZERO,
            flight: Flight::default(),
            down: false,
            forwarded: false,
            waits,
        }
    }

    /// The next slot to send.
    pub const fn next(&self) -> Slot {
        self.next
    }

    pub const fn held(&self) -> Slot {
        self.held
    }

    /// The slot up to which it voted.
    pub const fn durable(&self) -> Slot {
        self.durable
    }

    pub const fn executed(&self) -> Slot {
        self.executed
    }

    /// The newest round of read confirmation that it echoed.
    pub const fn confirm(&self) -> u64 {
        self.confirm
    }

    pub const fn round_trip(&self) -> Duration {
        self.round_trip
    }

    pub const fn received_at(&self) -> Time {
        self.received_at
    }

    pub const fn is_down(&self) -> bool {
        self.down
    }

    /// Whether proposals are sent to it.
    pub fn replicates(&self) -> bool {
        self.flow == Flow::Replicate && !self.down
    }

    pub fn fetches(&self) -> bool {
        self.flow == Flow::Fetching
    }

    /// Whether its votes are those of this incarnation.
    pub fn is(&self, incarnation: Incarnation) -> bool {
        self.incarnation == incarnation
    }

    /// Whether it has not been sent this commit point.
    pub fn lacks_commit(&self, committed: Slot) -> bool {
        self.told.0 < committed && self.replicates()
    }

    /// Whether its clients wait for a commit point.
    pub fn waits_for_commit(&self) -> bool {
        self.told.0 < self.waits
    }

    /// Whether it has been sent this round of read confirmation.
    pub const fn was_asked(&self, confirm: u64) -> bool {
        self.told.1 >= confirm
    }

    /// Whether these bytes are too many besides those on their way.
    pub const fn is_full(&self, bytes: usize, bytes_max: usize) -> bool {
        self.flight.bytes > 0 && self.flight.bytes + bytes > bytes_max
    }

    /// It has forwarded requests, or asks for names.
    pub const fn forwarded(&mut self) {
        self.forwarded = true;
    }

    /// Its clients wait until this slot is decided.
    pub fn waits_for(&mut self, slot: Slot) {
        self.waits = self.waits.max(slot);
    }

    /// All that was queued up to now stands at or below `last`.
    pub fn proposed(&mut self, last: Slot, more: bool) {
        if self.forwarded {
            self.waits = last;
            self.forwarded = more;
        }
    }

    pub fn sent(&mut self, last: Slot, bytes: usize, stamp: u64) {
        self.next = last.next();
        self.flight.push(last, bytes);
        self.sent_stamp = stamp;
    }

    /// It was sent a commit point and a round of read confirmation.
    pub fn told(&mut self, committed: Slot, confirm: u64) {
        self.told = (self.told.0.max(committed), confirm);
    }

    /// It needs slots that are no longer kept.
    pub const fn fetch(&mut self) {
        self.flow = Flow::Fetching;
    }

    /// Sends again from the slot after `held`.
    pub fn rewind(&mut self, held: Slot) {
        self.flow = Flow::Replicate;
        self.held = held;
        self.next = held.next();
        self.flight = Flight::default();
    }

    fn probe(&mut self) {
        self.flow = Flow::Probe;
        self.flight = Flight::default();
    }

    /// Something may be lost: its next answer shows what.
    pub fn link_up(&mut self) {
        self.down = false;
        self.probe();
    }

    pub fn link_down(&mut self) {
        self.down = true;
        self.probe();
    }

    /// It is there, although none of its messages is complete.
    pub const fn arriving(&mut self, now: Time) {
        self.received_at = now;
    }

    /// A new incarnation: claims of an earlier one about undecided slots no longer count.
    pub fn replace(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        self.held = Slot(0);
        self.durable = Slot(0);
        self.confirm = 0;
        self.executed = Slot(0);
        self.probe();
    }

    /// Its answer has come; `first` is the first slot that the log keeps. True when proposals were
    /// lost and are sent again.
    pub fn on_claim(&mut self, claim: Claim, first: Slot, now: Time) -> bool {
        self.received_at = now;
        self.down = false;
        if claim.stamp > 0 {
            self.measured(now.since(Time(claim.stamp)));
        }
        self.durable = self.durable.max(claim.durable.min(claim.held));
        self.executed = self.executed.max(claim.executed);
        self.confirm = self.confirm.max(claim.confirm);
        let held = claim.held;
        match self.flow {
            Flow::Probe => self.rewind(held),
            Flow::Fetching if held.next() >= first => self.rewind(held),
            Flow::Fetching => {}
            // The answer came after everything that was sent, and some of it is missing there.
            Flow::Replicate if claim.stamp >= self.sent_stamp && held.next() < self.next => {
                self.rewind(held);
                return true;
            }
            Flow::Replicate => {
                self.held = self.held.max(held);
                self.flight.landed(held);
            }
        }
        false
    }

    fn measured(&mut self, sample: Duration) {
        self.round_trip = if self.round_trip.is_zero() {
            sample
        } else {
            (self.round_trip * 7 + sample) / 8
        };
    }

    /// Counts votes that were not given; for injected bugs.
    pub const fn assume_durable(&mut self, upto: Slot) {
        self.durable = upto;
    }

    pub fn assert_invariants(&self, end: Slot) {
        assert!(
            self.durable < end && self.held < end,
            "votes are for what was proposed"
        );
        assert!(self.next <= end, "nothing is sent beyond the log");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_incarnation_withdraws_votes() {
        let mut progress = Progress::new(Incarnation(1), Slot(0), Time(0));
        progress.rewind(Slot(0));
        progress.sent(Slot(5), 100, 1);
        assert!(progress.is_full(1, 100));
        let claim = Claim {
            held: Slot(5),
            durable: Slot(5),
            executed: Slot(0),
            confirm: 0,
            stamp: 0,
        };
        assert!(!progress.on_claim(claim, Slot(1), Time(1)));
        assert!(!progress.is_full(1, 100));
        assert_eq!((progress.durable(), progress.replicates()), (Slot(5), true));
        progress.replace(Incarnation(2));
        assert_eq!(
            (progress.durable(), progress.replicates()),
            (Slot(0), false)
        );
    }
}

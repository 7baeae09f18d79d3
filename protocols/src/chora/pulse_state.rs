//! The contents of the next pulse, and its time; see `pulse.rs`.

use super::{Pulse, Rounds, synchrony::Synchrony};
use alloc::collections::BTreeMap;
use core::time::Duration;
use quintet_replica::{ReplicaId, ReplicaSet, Slot, parts::Timing};

/// How long a round lasts before anything is measured.
const ROUND_FIRST: Duration = Duration::from_millis(1);
/// One of this number of messages is timed.
const TIMED: u64 = 16;

/// See the module.
#[derive(Hash)]
pub(super) struct PulseState {
    pub rounds: Rounds<Pulse>,
    /// The measurements affect only times, but for the mode that they led to.
    pub synchrony: Timing<Synchrony>,
    /// The mode where `mode` is `auto`.
    auto_pulsing: bool,
    /// How long a round lasts, and how many rounds in a row had nothing to tell.
    round_length: Timing<Duration>,
    quiet: Timing<u32>,
    ack_sent: Slot,
    /// Up to here it was looked whether another replica waits for the acknowledgement, and whether
    /// one does.
    ack_looked: Slot,
    ack_wanted: bool,
    nack: Option<(Slot, Slot)>,
    /// The slots to send again, and the replicas that lack them.
    recover: BTreeMap<Slot, ReplicaSet>,
    due: bool,
    messages: Timing<u64>,
}

impl PulseState {
    pub fn new(members: usize) -> Self {
        Self {
            rounds: Rounds::new(ROUND_FIRST),
            synchrony: Timing(Synchrony::new(members, false)),
            auto_pulsing: false,
            round_length: Timing(ROUND_FIRST),
            quiet: Timing(0),
            ack_sent: Slot(0),
            ack_looked: Slot(0),
            ack_wanted: false,
            nack: None,
            recover: BTreeMap::new(),
            due: false,
            messages: Timing(0),
        }
    }

    /// Another view begins: nothing of an earlier one is sent any more.
    pub fn enter_view(&mut self) {
        self.unacknowledge();
        self.ack_wanted = false;
        self.nack = None;
        self.recover.clear();
        self.rounds.rest();
    }

    /// Nothing is acknowledged in this view yet.
    pub const fn unacknowledge(&mut self) {
        self.ack_sent = Slot(0);
        self.ack_looked = Slot(0);
    }

    /// Whether this message is one of those that are timed.
    pub fn is_timed(&mut self) -> bool {
        *self.messages += 1;
        self.messages.is_multiple_of(TIMED)
    }

    pub const fn is_auto_pulsing(&self) -> bool {
        self.auto_pulsing
    }

    pub const fn set_auto_pulsing(&mut self, pulsing: bool) {
        self.auto_pulsing = pulsing;
    }

    pub fn round_length(&self) -> Duration {
        *self.round_length
    }

    pub fn set_round_length(&mut self, length: Duration) {
        *self.round_length = length;
        if *self.quiet == 0 {
            self.rounds.set_timeout(length);
        }
    }

    /// The next round lasts longer the more rounds in a row had nothing to tell, up to `most`.
    pub fn set_timeout(&mut self, most: Duration) {
        let length = self.round_length.saturating_mul(1 << (*self.quiet).min(8));
        self.rounds
            .set_timeout(length.min(most.max(*self.round_length)));
    }

    /// There is something to tell, or there is not.
    pub fn note(&mut self, quiet: bool) {
        if quiet {
            *self.quiet += 1;
        } else {
            *self.quiet = 0;
        }
    }

    /// The next turn sends a pulse to everyone, whether there is anything new or not.
    pub const fn want(&mut self) {
        self.due = true;
    }

    pub const fn is_wanted(&self) -> bool {
        self.due
    }

    pub fn take_wanted(&mut self) -> bool {
        core::mem::take(&mut self.due)
    }

    /// The next slot up to `ack` that was not looked at, from `from` on.
    pub fn look(&mut self, from: Slot, ack: Slot) -> Option<Slot> {
        self.ack_looked = self.ack_looked.max(from).min(ack);
        if self.ack_looked == ack {
            return None;
        }
        self.ack_looked = self.ack_looked.next();
        Some(self.ack_looked)
    }

    /// Another replica waits for the acknowledgement, if `wanted`.
    pub const fn want_ack(&mut self, wanted: bool) {
        self.ack_wanted |= wanted;
    }

    pub const fn ack_sent(&self) -> Slot {
        self.ack_sent
    }

    /// The acknowledgement is sent.
    pub const fn acknowledged(&mut self, ack: Slot) {
        self.ack_sent = ack;
        self.ack_wanted = false;
    }

    /// Whether another replica waits for an acknowledgement, a question or a repetition.
    pub fn has_news(&self) -> bool {
        self.ack_wanted || self.nack.is_some() || !self.recover.is_empty()
    }

    /// These slots are missing here.
    pub const fn ask(&mut self, first: Slot, last: Slot) {
        self.nack = Some((first, last));
    }

    pub const fn take_nack(&mut self) -> Option<(Slot, Slot)> {
        self.nack.take()
    }

    /// A replica lacks this slot.
    pub fn repeat(&mut self, slot: Slot, to: ReplicaId) {
        self.recover.entry(slot).or_default().insert(to);
    }

    pub fn take_repeated(&mut self) -> Option<(Slot, ReplicaSet)> {
        self.recover.pop_first()
    }

    /// Drops the last slot when there are more than `most`; true when it did.
    pub fn drop_repeated(&mut self, most: usize) -> bool {
        self.recover.len() > most && self.recover.pop_last().is_some()
    }
}

//! Messages from the senders of the view, until they have their places in the order.

use super::message::{Body, Message};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use quintet_replica::{Bytes, ReplicaId, ReplicaSet};

/// A message or nulls from a sender, without a place in the order yet.
#[derive(Debug, Hash)]
pub(super) enum Item {
    Nulls(u64),
    Body(Body),
}

/// Messages received from one sender.
#[derive(Debug, Default, Hash)]
pub(super) struct Sender {
    /// Slots of its ring taken.
    slots: u64,
    /// Messages received, nulls included.
    received: u64,
    /// Slots with nulls taken since something was said of it.
    unsaid: usize,
    queue: VecDeque<Item>,
    /// Large messages that came ahead of their slot.
    bulk: BTreeMap<u64, Bytes>,
}

impl Sender {
    /// The next slot of its ring.
    pub const fn next_slot(&self) -> u64 {
        self.slots
    }

    pub const fn received(&self) -> u64 {
        self.received
    }

    /// A slot with this many messages is taken.
    pub const fn take_slot(&mut self, count: u64, nulls: bool) {
        self.slots += 1;
        self.received += count;
        self.unsaid += nulls as usize;
    }

    /// Own messages need no slot.
    pub const fn take_own(&mut self, count: u64) {
        self.received += count;
    }

    pub fn push(&mut self, item: Item) {
        self.queue.push_back(item);
    }

    /// The item at the next place of this sender; of a run of nulls, one.
    pub fn pop(&mut self) -> Option<Item> {
        if let Item::Nulls(count) = self.queue.front_mut()?
            && *count > 1
        {
            *count -= 1;
            return Some(Item::Nulls(1));
        }
        self.queue.pop_front()
    }

    /// Nulls are acknowledged by the way, but before they fill their sender's ring.
    pub const fn must_acknowledge(&mut self, waited_for: bool, window: usize) -> bool {
        let must = waited_for || self.unsaid * 2 >= window;
        if must {
            self.unsaid = 0;
        }
        must
    }

    /// Whether a large message is here, or was.
    pub fn has(&self, index: u64) -> bool {
        index < self.received || self.bulk.contains_key(&index)
    }

    /// A large message is here, ahead of its slot.
    pub fn take_bulk(&mut self, index: u64, body: Bytes) {
        self.bulk.insert(index, body);
    }

    pub fn may_take_bulk(&self, index: u64, window: usize) -> bool {
        index >= self.received && self.bulk.len() < window
    }

    /// The large message that stands in the next slot.
    pub fn next_bulk(&mut self) -> Option<Bytes> {
        self.bulk.remove(&self.received)
    }
}

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Incoming {
    senders: Vec<Sender>,
    /// The members whose rings may hold something that was not taken.
    fresh: ReplicaSet,
    /// Large messages, and blocks of them, of the next view, whose senders are ahead.
    early: VecDeque<(ReplicaId, u64, Message)>,
}

impl Incoming {
    pub fn new(members: usize) -> Self {
        Self {
            senders: (0..members).map(|_| Sender::default()).collect(),
            ..Self::default()
        }
    }

    /// A view begins. Gives what came of it before.
    pub fn begin(&mut self, view: u64, peers: ReplicaSet) -> Vec<(ReplicaId, Message)> {
        self.senders.fill_with(Sender::default);
        self.fresh = peers;
        let early = core::mem::take(&mut self.early).into_iter();
        let early = early.filter(|(_, of, _)| *of == view);
        early.map(|(from, _, message)| (from, message)).collect()
    }

    /// The number of senders.
    pub const fn senders(&self) -> usize {
        self.senders.len()
    }

    pub fn from(&self, sender: ReplicaId) -> &Sender {
        &self.senders[sender.index()]
    }

    pub fn sender(&mut self, sender: ReplicaId) -> &mut Sender {
        &mut self.senders[sender.index()]
    }

    /// Something of a sender came.
    pub const fn came(&mut self, from: ReplicaId) {
        self.fresh.insert(from);
    }

    pub const fn take_fresh(&mut self) -> ReplicaSet {
        core::mem::replace(&mut self.fresh, ReplicaSet::EMPTY)
    }

    /// Takes a message of a view that is not at work here yet to wait until it is; none of views
    /// before `present` waits, and no more than `most` do.
    pub fn wait_for_view(
        &mut self,
        from: ReplicaId,
        (view, message): (u64, Message),
        present: u64,
        most: usize,
    ) {
        self.early.retain(|(_, of, _)| *of >= present);
        if self.early.len() < most {
            self.early.push_back((from, view, message));
        }
    }
}

//! State that only a leader keeps.

use super::{Proposal, Value, confirmations::Confirmations, progress::Progress};
use crate::sadl::{Heads, Name, Range};
use alloc::{boxed::Box, collections::VecDeque, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Incarnation, ReplicaId, Slot, Time,
    parts::{RequestQueue, Transfer, Window, digest},
};
use smallvec::SmallVec;

/// The most names that wait for the leader's window.
const NAMED_MAX: usize = 4096;

/// The disseminated batches that a leader is to order.
#[derive(Hash)]
pub(super) struct Naming {
    names: VecDeque<Name>,
    /// How far each member's batches have come with what is in the log and in `names`.
    heads: Heads,
}

impl Naming {
    pub const fn new(heads: Heads) -> Self {
        let names = VecDeque::new();
        Self { names, heads }
    }

    /// How many further names may wait.
    pub fn space(&self) -> usize {
        NAMED_MAX.saturating_sub(self.names.len())
    }

    pub const fn heads(&self) -> &Heads {
        &self.heads
    }

    /// These batches are to be ordered.
    pub fn extend(&mut self, range: Range) {
        self.names.extend(range.names());
        self.heads[range.first.creator.index()] = range.head();
    }
}

/// See the module.
#[derive(Hash)]
pub(super) struct LeaderState {
    /// Own element unused.
    pub peers: Vec<Progress>,
    pub window: Window<Slot>,
    pub queue: RequestQueue,
    pub naming: Box<Naming>,
    pub reads: Confirmations,
    /// All that a predecessor may have decided lies at or below this slot: reads wait for it.
    ready_at: Slot,
    stamp: u64,
    /// Leadership is being transferred since then.
    pub transfer: Transfer,
    /// Since when something is decided that a follower has not been sent.
    unsent_since: Option<Time>,
    /// Reused from message to message.
    scratch: Vec<Proposal>,
    committed_before: Slot,
}

impl LeaderState {
    /// A leader whose log is held up to `ready_at`, and decided up to `committed`.
    pub fn new(
        peers: Vec<Progress>,
        queue: RequestQueue,
        heads: Heads,
        (ready_at, committed): (Slot, Slot),
    ) -> Self {
        Self {
            window: Window::default(),
            queue,
            naming: Box::new(Naming::new(heads)),
            reads: Confirmations::new(peers.len()),
            peers,
            ready_at,
            stamp: 0,
            transfer: Transfer::default(),
            unsent_since: None,
            scratch: Vec::new(),
            committed_before: committed,
        }
    }

    pub const fn ready_at(&self) -> Slot {
        self.ready_at
    }

    /// The peer was started again.
    pub fn replaced(&mut self, peer: ReplicaId, incarnation: Incarnation) {
        self.peers[peer.index()].replace(incarnation);
        self.reads.replace(peer, None);
    }

    /// The round trip to the slowest member of the fastest majority.
    pub fn round_trip(&self, majority: usize) -> Duration {
        let mut trips: SmallVec<[Duration; 8]> = self
            .peers
            .iter()
            .map(Progress::round_trip)
            .filter(|trip| !trip.is_zero())
            .collect();
        trips.sort_unstable();
        let wanted = majority
            .saturating_sub(2)
            .min(trips.len().saturating_sub(1));
        trips.get(wanted).copied().unwrap_or_default()
    }

    /// Whether something is to be proposed.
    pub fn waiting(&self) -> bool {
        !self.queue.is_empty() || !self.naming.names.is_empty()
    }

    /// The next value to propose, if it has no more bytes than that.
    pub fn next_value(&mut self, bytes_max: usize) -> Option<Value> {
        let names = &mut self.naming.names;
        if !names.is_empty() && Name::SIZE <= bytes_max {
            return names.pop_front().map(Value::Named);
        }
        if self.queue.peek()?.len() > bytes_max {
            return None;
        }
        self.queue.pop().map(Value::Batch)
    }

    /// A number above all before it, by which followers' answers are told apart and measured.
    pub fn next_stamp(&mut self, now: Time) -> u64 {
        self.stamp = now.0.max(self.stamp + 1);
        self.stamp
    }

    /// Whether a message with this stamp was sent.
    pub const fn has_sent(&self, stamp: u64) -> bool {
        stamp <= self.stamp
    }

    /// An empty list that was used before.
    pub fn take_scratch(&mut self) -> Vec<Proposal> {
        core::mem::take(&mut self.scratch)
    }

    /// Keeps a list for the next message.
    pub fn give_scratch(&mut self, mut proposals: Vec<Proposal>) {
        proposals.clear();
        self.scratch = proposals;
    }

    pub const fn is_transferring(&self) -> bool {
        self.transfer.has_begun()
    }

    /// Another replica is asked to lead. The owners of queued requests send them to it.
    pub fn hand_over(&mut self, now: Time) {
        self.transfer.begin(now);
        self.queue.drop_waiting();
    }

    /// Something is decided that a follower has not been sent; gives since when.
    pub fn unsent_since(&mut self, now: Time) -> Time {
        *self.unsent_since.get_or_insert(now)
    }

    /// Everything that is decided is being sent.
    pub const fn all_sent(&mut self) {
        self.unsent_since = None;
    }

    /// All up to here is decided.
    pub fn committed(&mut self, upto: Slot) {
        assert!(
            self.committed_before <= upto,
            "a commit point never goes back"
        );
        self.committed_before = upto;
        self.window.answered(upto);
    }

    pub fn digest(&self) -> u64 {
        let own = [self.reads.number(), self.queue.bytes() as u64];
        let peers = self.peers.iter();
        let peers = peers.flat_map(|peer| [peer.next().0, peer.durable().0]);
        digest(own.into_iter().chain(peers))
    }

    pub fn assert_invariants(&self, members: usize, end: Slot) {
        assert!(self.peers.len() == members);
        for peer in &self.peers {
            peer.assert_invariants(end);
        }
        self.reads.assert_invariants(members);
    }
}

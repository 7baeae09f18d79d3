//! State that only a view's leader keeps.

use super::{BlockId, Config, Mark, view_timing::known};
use crate::sadl::Way;
use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Bytes, ReplicaId, ReplicaSet, Time,
    parts::{RequestQueue, Window, digest},
};

/// See the module.
#[derive(Hash)]
pub(super) struct LeaderState {
    /// A quorum of new-views has come: it may propose (R6).
    pub open: bool,
    pub queue: RequestQueue,
    /// Reads that the next block is to mark.
    pub marks: BTreeMap<ReplicaId, Mark>,
    /// The blocks proposed and not yet decided, by round.
    pub window: Window<u64>,
    /// The next block changes the way of the batches.
    pub switch: Option<Way>,
    /// The highest round of this view that each member voted for.
    votes: Vec<Option<u64>>,
    /// Members that said that they timed out in this view, and have come as far as the others.
    stopped: ReplicaSet,
    /// Since when they have been missed.
    short_since: Option<Time>,
    /// Measured with each member.
    round_trips: Vec<Duration>,
    /// The block that the members were last told to be decided.
    told: BlockId,
    stamp: u64,
}

impl LeaderState {
    pub fn new(members: usize, queue: RequestQueue) -> Self {
        Self {
            open: false,
            queue,
            marks: BTreeMap::new(),
            window: Window::default(),
            switch: None,
            votes: vec![None; members],
            stopped: ReplicaSet::EMPTY,
            short_since: None,
            round_trips: vec![Duration::ZERO; members],
            told: BlockId::GENESIS,
            stamp: 0,
        }
    }

    /// Opens the view; these wait, besides what the queue has.
    pub fn open(&mut self, mut queue: RequestQueue) {
        self.open = true;
        for (key, batch) in self.queue.waiting() {
            queue.push(key, batch.clone());
        }
        self.queue = queue;
    }

    /// Whether it may propose, and has nothing to.
    pub fn is_idle(&self) -> bool {
        self.open && self.queue.is_empty()
    }

    /// How long a block that is not full waits behind the newest one. Half of those that may be
    /// in progress go at once; the others are spread over a round trip, because with all of them
    /// in progress what comes next waits for an answer.
    pub fn gap(&self, config: &Config, round_trip: Duration) -> Duration {
        let half = config.window / 2;
        if self.window.len() < half || self.queue.bytes() >= config.batch_bytes_max {
            return Duration::ZERO;
        }
        round_trip / u32::try_from(half).unwrap_or(u32::MAX).max(1)
    }

    /// The batches of the next block: not more bytes than that, unless a single one is longer.
    pub fn take_batches(&mut self, bytes_max: usize) -> Vec<Bytes> {
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while let Some(batch) = self.queue.peek() {
            bytes += batch.len() + 4;
            if !batches.is_empty() && bytes > bytes_max {
                break;
            }
            let Some(batch) = self.queue.pop() else { break };
            batches.push(batch);
        }
        batches
    }

    /// Whether the members have not been told that this is decided.
    pub fn is_news(&self, decided: BlockId) -> bool {
        self.open && self.told != decided
    }

    /// Tells them; gives a number above all before it, to be echoed.
    pub fn tell(&mut self, decided: BlockId, now: Time) -> u64 {
        self.told = decided;
        self.stamp = now.0.max(self.stamp + 1);
        self.stamp
    }

    /// A member voted for all up to this round.
    pub fn on_vote(&mut self, from: ReplicaId, round: u64) {
        let vote = &mut self.votes[from.index()];
        *vote = (*vote).max(Some(round));
    }

    /// The peer was started again.
    pub fn forget(&mut self, peer: ReplicaId) {
        self.votes[peer.index()] = None;
    }

    /// A member echoes a number: gives the round trip to the slowest member of the fastest quorum.
    pub fn on_echo(
        &mut self,
        from: ReplicaId,
        stamp: u64,
        quorum: usize,
        now: Time,
    ) -> Option<Duration> {
        if stamp == 0 || stamp > self.stamp {
            return None;
        }
        let trip = now.since(Time(stamp));
        let measured = &mut self.round_trips[from.index()];
        *measured = if measured.is_zero() {
            trip
        } else {
            (*measured * 7 + trip) / 8
        };
        let trips = known(&self.round_trips);
        let wanted = quorum.saturating_sub(2).min(trips.len().saturating_sub(1));
        trips.get(wanted).copied().or(Some(Duration::ZERO))
    }

    /// The round that a quorum has voted for.
    pub fn quorum_round(&self, quorum: usize) -> Option<u64> {
        let mut rounds: Vec<u64> = self.votes.iter().flatten().copied().collect();
        rounds.sort_unstable_by(|a, b| b.cmp(a));
        rounds.get(quorum.checked_sub(1)?).copied()
    }

    /// A member has timed out in this view alone.
    pub const fn on_stopped(&mut self, from: ReplicaId) {
        self.stopped = self.stopped.with(from);
    }

    /// Since when no more members than a quorum vote, although others would if the view were
    /// another one. A member votes as long as it is not this number of rounds behind.
    pub fn short_since(&mut self, quorum: usize, rounds: usize, now: Time) -> Option<Time> {
        let highest = self.votes.iter().flatten().max().copied().unwrap_or(0);
        let keeps_up = |vote: &&u64| **vote + rounds as u64 >= highest;
        let voting = self.votes.iter().flatten().filter(keeps_up).count();
        if self.open && !self.stopped.is_empty() && highest > 0 && voting <= quorum {
            return Some(*self.short_since.get_or_insert(now));
        }
        self.short_since = None;
        None
    }

    pub fn digest(&self) -> u64 {
        let votes = self.votes.iter().flatten().sum::<u64>();
        digest([self.queue.bytes() as u64, votes, u64::from(self.open)])
    }

    pub fn assert_invariants(&self, members: usize, view: u64, high: BlockId) {
        assert!(self.votes.len() == members);
        // The block elected by the coin may have replaced the own blocks, when others told of it.
        let own = high.view == view && high.level == 0;
        let mut votes = self.votes.iter().flatten();
        assert!(
            !own || votes.all(|round| *round <= high.round),
            "votes are for what was proposed"
        );
    }
}

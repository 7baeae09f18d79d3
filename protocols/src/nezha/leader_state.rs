//! A leader's knowledge of its followers, and what it has told them.

use super::appended::Appended;
use alloc::{collections::VecDeque, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{Bytes, FrontendId, ReplicaId, ReplicaSet, Slot, Time, Wake, parts::Member};
use smallvec::SmallVec;

/// The most stamps in one message.
pub(super) const STAMPS_MAX: u64 = 1024;
/// The most reads that wait for a confirmation.
const READS_MAX: usize = 65_536;
/// This many times in a round trip to a majority a leader tells its log; what is on the fast path
/// does not wait for it, and what is not waits no longer than a part of what it takes anyway.
const GAPS: u32 = 8;
/// A round trip that took longer says nothing of the next one.
const TRIP_MAX: Duration = Duration::from_millis(8);

/// A read that waits until the leader is known to lead.
#[derive(Hash)]
pub(super) struct Read {
    round: u64,
    pub slot: Slot,
    pub frontend: FrontendId,
    pub batch: Bytes,
}

/// A follower as its leader sees it.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Follower {
    sync: Slot,
    round: u64,
    /// Its sync-point at the last tick: without progress it is told again.
    sync_before: Slot,
    /// It has said something in this view, and when it did last.
    heard: bool,
    heard_at: Time,
    /// The end of the page that was sent again last; 0 when none was.
    again: Slot,
}

/// See the module.
#[derive(Hash)]
pub(super) struct LeaderState {
    own: ReplicaId,
    majority: usize,
    followers: Vec<Follower>,
    /// All up to here has been told once.
    told: Slot,
    /// When it was told last, and how long what comes then waits for company.
    told_at: Time,
    gap: Duration,
    /// A slot, and when it was told: until a majority has it.
    timed: Option<(Slot, Time)>,
    round: u64,
    round_due: bool,
    reads: VecDeque<Read>,
    /// Batches that followers appended, where the leader checks quorums.
    pub appended: Appended,
}

impl LeaderState {
    /// Of a leader whose log ends at `sync`.
    pub fn new(me: &Member, sync: Slot) -> Self {
        Self {
            own: me.id(),
            majority: me.majority(),
            followers: vec![Follower::default(); me.members()],
            told: sync,
            told_at: Time(0),
            gap: Duration::ZERO,
            timed: None,
            round: 0,
            round_due: true,
            reads: VecDeque::new(),
            appended: Appended::default(),
        }
    }

    pub const fn told(&self) -> Slot {
        self.told
    }

    pub const fn round(&self) -> u64 {
        self.round
    }

    pub const fn want_round(&mut self) {
        self.round_due = true;
    }

    /// The first slot that is told now, by a log that ends at `sync`; or how long it waits. News
    /// wait a part of a round trip for company, unless they are told `at_once`.
    pub fn tell(&mut self, sync: Slot, at_once: bool, now: Time) -> Result<Slot, Wake> {
        if !self.round_due && self.told >= sync {
            return Err(Wake::Sleep);
        }
        let due = self.told_at + self.gap;
        if self.round_due {
            self.round_due = false;
            self.round += 1;
        } else if now < due && !at_once {
            return Err(Wake::At(due));
        }
        self.told_at = now;
        if self.told < sync && self.timed.is_none() {
            self.timed = Some((sync, now));
        }
        let first = self.told.next();
        self.told = sync;
        Ok(first)
    }

    /// A tick: gives the followers that made no progress since the last one, and what they lack.
    pub fn behind(&mut self, others: ReplicaSet) -> Vec<(ReplicaId, Slot)> {
        let mut behind = Vec::new();
        for id in others.iter() {
            let follower = &mut self.followers[id.index()];
            let stands = follower.sync == follower.sync_before;
            if follower.heard && follower.sync < self.told && stands {
                follower.again = Slot(follower.sync.0 + STAMPS_MAX);
                behind.push((id, follower.sync.next()));
            }
            follower.sync_before = follower.sync;
        }
        behind
    }

    /// A follower agrees up to `sync`. Gives the first slot that it is sent again now, for it went
    /// through a page of those and the log here begins at `kept`.
    pub fn on_status(
        &mut self,
        from: ReplicaId,
        (sync, round): (Slot, u64),
        kept: Slot,
        at: Time,
    ) -> Option<Slot> {
        let follower = &mut self.followers[from.index()];
        follower.sync = follower.sync.max(sync);
        follower.round = follower.round.max(round.min(self.round));
        follower.heard = true;
        follower.heard_at = at;
        let more = follower.again > Slot(0) && follower.sync >= follower.again;
        let first = follower.sync.next();
        if first > self.told {
            follower.again = Slot(0);
        } else if more && first >= kept {
            follower.again = Slot(follower.sync.0 + STAMPS_MAX);
            return Some(first);
        }
        None
    }

    /// The slot up to which a majority has synced, with the own log durable up to `own`.
    pub fn commit_point(&self, own: Slot) -> Slot {
        self.majoritys(own, |known| known.sync)
    }

    /// The highest value that a majority has reached.
    fn majoritys<T: Ord>(&self, own: T, of: impl Fn(&Follower) -> T) -> T {
        let mut all: SmallVec<[T; 9]> = self.followers.iter().map(of).collect();
        all[self.own.index()] = own;
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.swap_remove(self.majority - 1)
    }

    /// All up to here is committed: measures how long that takes.
    pub fn committed(&mut self, commit: Slot, now: Time) {
        if let Some((_, at)) = self.timed.take_if(|(slot, _)| *slot <= commit) {
            let trip = now.since(at).min(TRIP_MAX);
            self.gap = (self.gap * 3 + trip / GAPS) / 4;
        }
    }

    /// A read waits until a round that begins now is confirmed. False when too many do.
    pub fn push_read(&mut self, slot: Slot, frontend: FrontendId, batch: Bytes) -> bool {
        if self.reads.len() >= READS_MAX {
            return false;
        }
        self.reads.push_back(Read {
            round: self.round + 1,
            slot,
            frontend,
            batch,
        });
        self.round_due = true;
        true
    }

    /// The reads that came before a round which a majority has echoed by now.
    pub fn take_confirmed(&mut self) -> Vec<Read> {
        if self.reads.is_empty() {
            return Vec::new();
        }
        let confirmed = self.majoritys(self.round, |known| known.round);
        let ready = self.reads.partition_point(|read| read.round <= confirmed);
        self.reads.drain(..ready).collect()
    }

    /// Whether a follower agrees up to this slot.
    pub fn has_synced(&self, id: ReplicaId, slot: Slot) -> bool {
        self.followers[id.index()].sync >= slot
    }

    /// Whether a follower was heard of late.
    pub fn is_heard(&self, id: ReplicaId, within: Duration, now: Time) -> bool {
        let known = &self.followers[id.index()];
        known.heard && now.since(known.heard_at) < within
    }

    /// Whether it has most of the log.
    pub fn keeps_up(&self, id: ReplicaId) -> bool {
        self.followers[id.index()].sync.0 + STAMPS_MAX >= self.told.0
    }

    /// A follower is in another incarnation: nothing is known of it.
    pub fn restarted(&mut self, id: ReplicaId) {
        self.followers[id.index()] = Follower::default();
    }
}

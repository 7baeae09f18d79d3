//! A learner: a replica that has the state and no vote. It is given what the voters have executed,
//! so that it has the state when it becomes one of them.
//!
//! ```text
//!   state fetched ──► Learning ── Follow{after} ──► a voter, which keeps batches as long as it is asked
//!                        │ ▲  ◄─ Batches(Feed) ──
//!              executes ─┘ └─ Gone, by all: the state is fetched again
//!                        ▼
//!        the end of the epoch is among the batches ──► enters the next one as all do: as a voter
//! ```
//!
//! A learner is a member, and none of the voters. It is part of no quorum, and the
//! voters wait for it only at the end of an epoch, for a moment. It writes nothing down of what it executes: what it
//! had is of no use to a voter before it has entered an epoch, and then its first state is durable.

use super::{between::Between, *};
use crate::{Fed, Feed};

/// A learner whose last answer had at most this many bytes has caught up.
const NEAR: usize = 256 << 10;
/// It has for this long, unless the next answer comes.
const NEAR_FOR: Duration = Duration::from_secs(1);

/// The progress of a learner.
#[derive(Debug, Default)]
pub(super) struct Learning {
    /// It has been given everything up to this slot.
    after: Slot,
    donor: Option<ReplicaId>,
    /// When the donor was asked for what it has not given yet.
    asked_at: Option<Time>,
    /// Bytes of the answer so far.
    given: usize,
    near: bool,
    /// When it was last given something, be it nothing new.
    answered_at: Time,
    /// Voters that do not answer, or do not have it any more.
    left: ReplicaSet,
    /// One of them said so.
    gone: bool,
}

impl Learning {
    pub fn after(after: Slot) -> Self {
        Self {
            after,
            ..Self::default()
        }
    }

    fn leave_donor(&mut self) {
        self.asked_at = None;
        if let Some(donor) = self.donor.take() {
            self.left.insert(donor);
        }
    }
}

/// The stand-in for the protocol of a learner.
pub(super) fn without_protocol(executed: Slot) -> Box<dyn Replica> {
    Box::new(Between::new("learning", executed, Vec::new()))
}

impl Node {
    /// Whether this replica has no vote in its epoch.
    #[must_use]
    pub const fn is_learner(&self) -> bool {
        !self.votes(self.id)
    }

    /// Whether a member has a vote in this epoch.
    pub(super) const fn votes(&self, member: ReplicaId) -> bool {
        self.voters.contains(member)
    }

    /// The member that has none, if there is one.
    pub(super) fn learner(&self) -> Option<ReplicaId> {
        self.members.iter().find(|id| !self.votes(*id))
    }

    /// Whether this is a learner that has all that was executed until lately.
    #[must_use]
    pub fn has_caught_up(&self, now: Time) -> bool {
        let learning = &self.succession.learning;
        let is_new = now < learning.answered_at + NEAR_FOR;
        self.succession.is_learning() && learning.near && is_new && self.deferred.is_empty()
    }

    /// The state of the epoch is here.
    pub(super) fn begin_to_learn(
        &mut self,
        open: Vec<Submission>,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let progress = self.executor.progress();
        self.replica = without_protocol(progress);
        self.events.extend(open.into_iter().map(Event::Submit));
        self.executed_told = progress;
        self.succession.begin_to_learn(progress);
        out.push(Output::Recovered);
        out.push(Output::Mark("learning"));
        self.tell_epoch(self.peers(), true, out);
        self.learn(world, out);
        self.arm_succession(world, out);
    }

    /// Asks for what has been executed since.
    pub(super) fn learn(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        if !self.deferred.is_empty() {
            // The batches given before are not executed yet.
            return;
        }
        let now = world.now();
        let learning = &mut self.succession.learning;
        match learning.asked_at {
            Some(at) if now < at + transfer::RETRY => return,
            Some(_) => learning.leave_donor(),
            None => {}
        }
        if learning.donor.is_none() {
            let linked = self.voters_of(self.linked());
            let left = self.succession.learning.left;
            let fits = |id: &ReplicaId| {
                let has_it = self.succession.runs(*id) && !self.succession.is_empty(*id);
                has_it && !left.contains(*id)
            };
            // The one that gave the state has kept what follows it.
            let last = self
                .donor_last
                .filter(|id| linked.contains(*id) && fits(id));
            let donor = last.or_else(|| linked.iter().find(fits));
            self.succession.learning.donor = donor;
        }
        let learning = &mut self.succession.learning;
        let Some(donor) = learning.donor else {
            learning.left = ReplicaSet::EMPTY;
            if core::mem::take(&mut learning.gone) {
                out.push(Output::Mark("learner fetches the state again"));
                self.executor.forget();
                self.executed_told = self.executor.progress();
                self.succession.follow_again();
                self.tell_epoch(self.peers(), false, out);
                self.fetch_first_state(self.peers(), world, out);
            }
            return;
        };
        (learning.asked_at, learning.given) = (Some(now), 0);
        let after = learning.after;
        let question = TransferMessage::Follow { after, end: false };
        self.send_transfer(donor, Lane::Control, &question, out);
    }

    /// There is something to be had that others wait for.
    pub(super) fn learn_at_once(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        if self.succession.is_learning() {
            self.learn(world, out);
        }
    }

    pub(super) fn on_learned(
        &mut self,
        from: ReplicaId,
        feed: Feed,
        more: bool,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let learning = &mut self.succession.learning;
        if learning.donor != Some(from) || feed.after != learning.after {
            return;
        }
        learning.given += feed.bytes();
        learning.after = feed.upto;
        learning.left = ReplicaSet::EMPTY;
        let execute = |fed: Fed| Effect::Execute {
            slot: fed.slot,
            time: fed.time,
            batch: fed.batch,
            reply: None,
        };
        self.effects.extend(feed.batches.into_iter().map(execute));
        if more {
            learning.asked_at = Some(world.now());
            return;
        }
        learning.asked_at = None;
        learning.near = learning.given <= NEAR;
        learning.answered_at = world.now();
        if !learning.near {
            self.learn(world, out);
        }
    }

    /// A donor keeps no more what this learner needs next.
    pub(super) fn on_nothing_to_learn(
        &mut self,
        from: ReplicaId,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let learning = &mut self.succession.learning;
        if learning.donor != Some(from) {
            return;
        }
        learning.gone = true;
        learning.leave_donor();
        self.learn(world, out);
    }
}

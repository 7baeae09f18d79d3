//! The view that a replica knows, its part in it, and what it has promised about its end.

use super::message::{Ballot, Held, Member, Promised, Proposal, ShardView, View};
use alloc::{collections::VecDeque, vec::Vec};
use quintet_replica::{
    Context, Incarnation, PersistId, Protocol, ReplicaId, ReplicaSet, Slot, parts,
};

/// How many past views are kept for the replica that has missed some.
const VIEWS_MAX: usize = 32;
/// How many views one answer carries.
const VIEWS_SENT_MAX: usize = 16;

/// How a replica stands to its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// This start is being counted.
    Starting,
    /// Not active: not a member, on its way to be complete, or it has left.
    Out,
    /// Complete, and the view is being written down.
    Activating,
    /// A member at work.
    Active,
}

/// The consequence of a durable promise.
#[derive(Clone, Debug, Hash)]
pub(super) enum Act {
    /// The start is counted.
    Begin,
    /// Echo a proposal in the own row.
    Echo(Proposal),
    /// Answer an inspector's phase 1.
    Promise { to: ReplicaId, ballot: Ballot },
    /// Answer an inspector's phase 2.
    Accepted { to: ReplicaId, ballot: Ballot },
    /// Take part in this view.
    Activate(u64),
    /// Take part in a shard, whose log is held, in this view.
    Held(usize, u64),
}

/// See the module.
#[derive(Hash)]
pub(super) struct Membership {
    id: ReplicaId,
    incarnation: Incarnation,
    promise: Promised,
    acts: VecDeque<(PersistId, Act)>,
    phase: Phase,
    /// Has left the view in this incarnation: never acts in it again.
    left: bool,
    state_lost: bool,
    /// The view in which it lost what it had acknowledged; 0 for none.
    lost_in: u64,
    /// The newest views, ascending, for those that have missed some.
    views: VecDeque<View>,
    /// The newest view whose members have been told to the world.
    route_told: u64,
    suspected: ReplicaSet,
    /// No message of the view is sent or taken any more.
    wedging: bool,
    /// The rank whose proposal was accepted in the view, as one above it.
    proposing: u64,
}

impl Membership {
    pub fn new(me: &parts::Member, shards: Vec<ShardView>) -> Self {
        let held = shards.iter().map(|shard| Held {
            complete: shard.active_in == 0 || shard.members.contains(me.id()),
            sure: Slot(0),
        });
        let held = held.collect();
        let members = (0..me.members()).map(|id| Member {
            id: ReplicaId(id as u16),
            starts: 1,
            incarnation: Incarnation(1),
        });
        Self {
            id: me.id(),
            incarnation: me.incarnation(),
            promise: Promised {
                starts: 1,
                view: View {
                    number: 1,
                    members: members.collect(),
                    base: Slot(0),
                    shards,
                },
                complete: true,
                promised: Ballot::default(),
                accepted: None,
                sure: Slot(0),
                shards: held,
            },
            acts: VecDeque::new(),
            phase: Phase::Starting,
            left: false,
            state_lost: false,
            lost_in: 0,
            views: VecDeque::new(),
            route_told: 0,
            suspected: ReplicaSet::EMPTY,
            wedging: false,
            proposing: 0,
        }
    }

    pub const fn view(&self) -> &View {
        &self.promise.view
    }

    /// The view's number.
    pub const fn number(&self) -> u64 {
        self.promise.view.number
    }

    /// The members of the view.
    pub fn set(&self) -> ReplicaSet {
        self.promise.view.set()
    }

    /// The members of the view besides this one.
    pub fn peers(&self) -> ReplicaSet {
        self.set().without(self.id)
    }

    /// The members that are not suspected.
    pub fn live(&self) -> ReplicaSet {
        ReplicaSet(self.set().0 & !self.suspected.0)
    }

    /// Those of them besides this one.
    pub fn live_peers(&self) -> ReplicaSet {
        self.live().without(self.id)
    }

    /// Whether those that are not suspected may decide for the view.
    pub fn has_quorum(&self) -> bool {
        self.view().has_quorum(self.live())
    }

    /// This replica as a member.
    pub const fn member(&self) -> Member {
        Member {
            id: self.id,
            starts: self.promise.starts,
            incarnation: self.incarnation,
        }
    }

    /// A member of the view in this incarnation, which it has not left.
    pub fn belongs(&self) -> bool {
        !self.left && self.view().starts(self.id) == Some(self.promise.starts)
    }

    pub const fn phase(&self) -> Phase {
        self.phase
    }

    pub const fn is_active(&self) -> bool {
        matches!(self.phase, Phase::Active)
    }

    pub const fn is_out(&self) -> bool {
        matches!(self.phase, Phase::Out)
    }

    /// Holds everything up to the view's base, and above that only what is of this view.
    pub const fn is_complete(&self) -> bool {
        self.promise.complete
    }

    pub const fn state_lost(&self) -> bool {
        self.state_lost
    }

    /// Its state is lost, and not copied from others yet.
    pub const fn lacks_state(&self) -> bool {
        self.state_lost && !self.promise.complete
    }

    /// Whether this replica holds a complete log of a shard, see `shards.rs`.
    pub fn is_held(&self, shard: usize) -> bool {
        self.promise.shards[shard].complete
    }

    pub fn set_held(&mut self, shard: usize, complete: bool) {
        self.promise.shards[shard].complete = complete;
    }

    /// The last slot of a shard that is delivered, by the disk.
    pub fn sure_in(&self, shard: usize) -> Slot {
        self.promise.shards[shard].sure
    }

    /// Whether what was restored is of this number of shards.
    pub const fn has_shards(&self, shards: usize) -> bool {
        self.promise.view.shards.len() == shards && self.promise.shards.len() == shards
    }

    // ------------------------------------------------------------------------------ promises

    /// Writes the promise; what `act` says follows when it is durable.
    pub fn save<P: Protocol<Promise = Promised>>(
        &mut self,
        act: Act,
        sure: Slot,
        shards: impl Iterator<Item = Slot>,
        ctx: &mut Context<'_, P>,
    ) {
        self.promise.sure = sure;
        for (held, sure) in self.promise.shards.iter_mut().zip(shards) {
            held.sure = sure;
        }
        let id = ctx.persist_promise(&self.promise);
        self.acts.push_back((id, act));
    }

    /// The next consequence of the promises that are durable.
    pub fn next_act(&mut self, upto: PersistId) -> Option<Act> {
        self.acts.front().filter(|(id, _)| *id <= upto)?;
        self.acts.pop_front().map(|(_, act)| act)
    }

    /// Whether all promises are durable.
    pub fn is_durable(&self) -> bool {
        self.acts.is_empty()
    }

    /// Whether a vote for this rank, or a higher one, is on its way to the disk.
    pub fn is_vote_unlogged(&self, shown: u64) -> bool {
        let next = self.number() + 1;
        self.acts.iter().any(|(_, act)| match act {
            Act::Echo(proposal) => {
                proposal.view.number == next && shown >= proposal.ballot.proposer
            }
            _ => false,
        })
    }

    pub const fn promised(&self) -> Ballot {
        self.promise.promised
    }

    pub const fn accepted(&self) -> Option<&Proposal> {
        self.promise.accepted.as_ref()
    }

    /// Promises an inspector to accept nothing below its ballot, and never acts in the view again.
    pub const fn promise(&mut self, ballot: Ballot) {
        self.promise.promised = ballot;
        self.left = true;
    }

    /// An inspector asks for a vote: the view is left, whatever comes of it.
    pub const fn set_left(&mut self) {
        self.left = true;
    }

    /// Accepts what an inspector proposes.
    pub fn accept(&mut self, proposal: Proposal) {
        self.promise.promised = proposal.ballot;
        self.promise.accepted = Some(proposal);
    }

    /// Accepts what a member proposes.
    pub fn accept_in_view(&mut self, proposal: Proposal) {
        self.proposing = proposal.ballot.proposer;
        self.promise.accepted = Some(proposal);
    }

    // --------------------------------------------------------------------- the end of a view

    pub const fn suspected(&self) -> ReplicaSet {
        self.suspected
    }

    /// Suspects a member. True when that is new.
    pub const fn suspect(&mut self, id: ReplicaId) -> bool {
        self.suspected.insert(id)
    }

    /// Takes over the suspicions of a member. True when some are new.
    pub fn suspect_all(&mut self, theirs: ReplicaSet) -> bool {
        let new = ReplicaSet(theirs.0 & self.set().0 & !self.suspected.0);
        self.suspected = ReplicaSet(self.suspected.0 | new.0);
        !new.is_empty()
    }

    pub const fn wedging(&self) -> bool {
        self.wedging
    }

    pub const fn wedge(&mut self) {
        self.wedging = true;
    }

    pub const fn proposing(&self) -> u64 {
        self.proposing
    }

    /// The lowest rank that is not suspected.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.live().iter().next()
    }

    pub fn leads(&self) -> bool {
        self.leader() == Some(self.id)
    }

    /// The number under which a member proposes; 0 for none.
    pub fn proposer(&self, id: ReplicaId) -> u64 {
        self.view().rank(id).map_or(0, |rank| rank as u64 + 1)
    }

    /// Whether the proposer with this number is not suspected here.
    pub fn trusts(&self, proposer: u64) -> bool {
        let rank = proposer.checked_sub(1).map(|rank| rank as usize);
        let member = rank.and_then(|rank| self.view().members.get(rank));
        member.is_some_and(|member| !self.suspected.contains(member.id))
    }

    // ----------------------------------------------------------------------------- the next

    /// This start is counted.
    pub const fn begin(&mut self) {
        self.phase = Phase::Out;
    }

    /// Stops taking part in this view permanently; the way back is a new one.
    pub const fn leave(&mut self) {
        self.phase = Phase::Out;
        self.left = true;
    }

    /// A vote for this next view was accepted, or all of the present view is here.
    pub fn holds(&self, next: &View) -> bool {
        self.promise.complete || self.accepted().is_some_and(|vote| vote.view == *next)
    }

    /// Enters a view that was agreed, and is `complete` in it or not.
    pub fn enter(&mut self, view: View, complete: bool) {
        let accepted = self.promise.accepted.take();
        let accepted = accepted.filter(|proposal| proposal.view == view);
        // A vote for what follows the view goes over into it: a member that has given it never acts
        // there.
        let follows = accepted.and_then(|Proposal { ballot, then, .. }| {
            let (view, then) = (then?, None);
            Some(Proposal { ballot, view, then })
        });
        // Suspicions of this view go over to the next; who restarts the group trusts all again.
        let (old, was_active) = (&self.promise.view, self.is_active());
        let stays = |id: &ReplicaId| {
            let starts = old.starts(*id);
            was_active && *id != self.id && starts.is_some() && starts == view.starts(*id)
        };
        self.suspected = self.suspected.iter().filter(stays).collect();
        self.views.push_back(view.clone());
        if self.views.len() > VIEWS_MAX {
            self.views.pop_front();
        }
        self.promise.view = view;
        self.promise.complete = complete;
        self.promise.promised = follows
            .as_ref()
            .map_or_else(Ballot::default, |to| to.ballot);
        self.left = follows.is_some();
        self.promise.accepted = follows;
        self.phase = Phase::Out;
    }

    /// All up to `sure` is delivered: perhaps that is everything up to the base. A replica that
    /// lost its state may have acknowledged more in the view in which it did: it counts from the
    /// next one on. True when it is complete since now.
    pub fn completes(&mut self, sure: Slot) -> bool {
        let view = &self.promise.view;
        let completes = !self.promise.complete && sure >= view.base && view.number > self.lost_in;
        self.promise.complete |= completes;
        completes
    }

    /// Complete in the view: a member at work as soon as that is on disk (B.4).
    pub const fn activate(&mut self) {
        self.phase = Phase::Activating;
    }

    /// That is on disk. True when this replica is a member at work from now on.
    pub fn activated(&mut self, view: u64) -> bool {
        let activated = self.phase == Phase::Activating && self.number() == view;
        if activated {
            self.phase = Phase::Active;
            self.wedging = false;
            self.proposing = 0;
        }
        activated
    }

    /// Its state is copied. True when it was lost before.
    pub const fn recovered(&mut self) -> bool {
        core::mem::replace(&mut self.state_lost, false)
    }

    /// Whether a view's members are to be told to the world, which has not happened yet.
    pub const fn tells_route(&mut self) -> bool {
        let news = self.route_told < self.number();
        if news {
            self.route_told = self.number();
        }
        news
    }

    /// The newest views after this one, as many as one answer carries, without a gap if possible.
    pub fn views_after(&self, after: u64) -> Vec<View> {
        let newer = self.views.iter().filter(|view| view.number > after);
        let follows = |view: &View| view.number == after + 1;
        let skip = match newer.clone().next() {
            Some(view) if follows(view) => 0,
            _ => newer.clone().count().saturating_sub(VIEWS_SENT_MAX),
        };
        newer.skip(skip).take(VIEWS_SENT_MAX).cloned().collect()
    }

    #[cfg(test)]
    pub fn views(&self) -> impl Iterator<Item = &View> {
        self.views.iter()
    }

    // ----------------------------------------------------------------------------- restoring

    /// Takes back what the disk holds. True when that is anything: this is another start.
    pub fn restore(&mut self, promise: Option<Promised>, state_lost: bool) -> bool {
        let Some(promise) = promise else {
            return false;
        };
        self.promise = promise;
        self.promise.starts += 1;
        self.state_lost = state_lost;
        if state_lost {
            self.promise.complete = false;
            self.lost_in = self.number();
        }
        true
    }

    /// The operator begins again with what there is up to this slot, whatever was lost.
    pub fn bootstrap(&mut self, end: Slot) {
        self.promise.complete = true;
        self.promise.view.base = self.promise.view.base.min(end);
    }

    /// The last slot that is delivered, by the disk.
    pub const fn sure(&self) -> Slot {
        self.promise.sure
    }

    /// The disk is read. Another start is another member, but for an injected bug.
    pub fn restored(&mut self, again: bool, as_member: bool) {
        self.left = again && !as_member;
        if again && as_member {
            self.promise.starts -= 1;
        }
        self.views.push_back(self.promise.view.clone());
    }
}

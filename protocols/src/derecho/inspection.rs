//! An inspector's work: what members answered, and the view that follows from it (B.4, B.6).

use super::{
    message::{Ballot, Member, Message, Proposal, View},
    reshape,
};
use alloc::{collections::BTreeMap, vec::Vec};
use core::{cmp::Reverse, time::Duration};
use quintet_replica::{Context, Layout, Protocol, ReplicaId, ReplicaSet, Slot, Time};

/// The answer of one member to an inspector.
#[derive(Clone, Debug, Hash)]
pub(super) struct Answer {
    pub member: Member,
    pub complete: bool,
    pub end: Slot,
    pub accepted: Option<Proposal>,
}

impl Answer {
    /// Whether it holds the state that it has voted for.
    fn holds(&self) -> bool {
        let base = self.accepted.as_ref().map(|accepted| accepted.view.base);
        base.is_none_or(|base| base <= self.end)
    }
}

/// See the module.
#[derive(Debug, Hash)]
pub(super) struct Inspection {
    ballot: Ballot,
    since: Time,
    answers: BTreeMap<ReplicaId, Answer>,
    proposal: Option<(Proposal, ReplicaId)>,
    accepted: ReplicaSet,
}

impl Inspection {
    pub const fn new(ballot: Ballot, now: Time) -> Self {
        Self {
            ballot,
            since: now,
            answers: BTreeMap::new(),
            proposal: None,
            accepted: ReplicaSet::EMPTY,
        }
    }

    pub const fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// The proposal, and a member that holds the log that it needs.
    pub const fn proposal(&self) -> Option<&(Proposal, ReplicaId)> {
        self.proposal.as_ref()
    }

    /// Whether another one is to begin: nothing comes of this one, or a higher ballot was seen.
    pub fn is_stale(&self, limit: Duration, seen: Ballot, now: Time) -> bool {
        now.since(self.since) > limit || self.ballot < seen
    }

    /// The members that have not done what they were asked for.
    pub fn missing(&self, members: ReplicaSet) -> ReplicaSet {
        let done = match self.proposal {
            Some(_) => self.accepted,
            None => self.answers.keys().copied().collect(),
        };
        ReplicaSet(members.0 & !done.0)
    }

    pub fn on_answer(&mut self, answer: Answer) {
        self.answers.insert(answer.member.id, answer);
    }

    /// A member has accepted the proposal. Gives it when it is agreed: a majority has, and, around
    /// a view, enough of its members never to act in it.
    pub fn on_accepted(&mut self, from: ReplicaId, view: &View) -> Option<Proposal> {
        self.accepted.insert(from);
        let (proposal, _) = self.proposal.as_ref()?;
        let blocked = proposal.then.is_none() || proposal.view.can_block(self.accepted);
        let agreed = view.has_quorum(self.accepted) && blocked;
        agreed.then(|| proposal.clone())
    }

    /// A majority has answered, and all that are there: the end of the view is what they may have
    /// agreed on already, else their longest log (B.4, B.6: any log of the view that is complete
    /// holds all that was delivered, because all members had to persist that). It waits for the
    /// answers of those that are there for so long, and by an injected bug for all logs. True when
    /// there is a proposal since now.
    pub fn choose<P: Protocol<Message = Message>>(
        &mut self,
        view: &View,
        present: ReplicaSet,
        (wait_max, for_all, layout): (Duration, bool, &Layout),
        ctx: &mut Context<'_, P>,
    ) -> bool {
        let members: ReplicaSet = self.answers.keys().copied().collect();
        if self.proposal.is_some()
            || !view.has_quorum(members)
            || present.0 & !members.0 != 0 && ctx.now().since(self.since) < wait_max
        {
            return false;
        }
        let all = || self.answers.values();
        // A vote whose reason was lost no longer binds when a majority without it has not voted so:
        // it was not agreed, and cannot be any more. No member could ever follow it.
        let holding = all().filter(|answer| answer.holds());
        let enough = view.has_quorum(holding.map(|answer| answer.member.id).collect());
        let answers = all().filter(|answer| !enough || answer.holds());
        let ballot = |answer: &&Answer| answer.accepted.as_ref().map(|proposal| proposal.ballot);
        let accepted = answers.clone().filter(|answer| answer.accepted.is_some());
        let whole = answers.filter(|answer| answer.complete);
        let longest = whole.max_by_key(|answer| (answer.end, Reverse(answer.member.id)));
        // The member that accepted a proposal holds everything up to its base.
        let complete = all().filter(|answer| answer.complete);
        let complete: ReplicaSet = complete.map(|answer| answer.member.id).collect();
        // Where they are a majority, complete logs continue by themselves: delivery waits for all
        // members, and one that lacks its log would make them wait for its whole state.
        let without = view.has_quorum(complete) && !for_all;
        if without && complete != members {
            ctx.mark("restart without an incomplete log");
        }
        let answered = all().filter(|answer| answer.complete || !without);
        let answered: Vec<Member> = answered.map(|answer| answer.member).collect();
        let (next, then, source) = match (accepted.max_by_key(ballot), longest) {
            (
                Some(Answer {
                    accepted: Some(proposal),
                    member,
                    ..
                }),
                _,
            ) => {
                let next = &proposal.view;
                // None of those who answer has ever acted in it: they do not know that it is
                // agreed.
                let around = !next.has_quorum(members) && next.can_block(members);
                let then = proposal.then.clone().or_else(|| {
                    around.then(|| View {
                        number: next.number + 1,
                        shards: reshape::lost(next, layout, &answered),
                        members: answered.clone(),
                        base: next.base,
                    })
                });
                if then.is_some() {
                    ctx.mark("restart around a view");
                }
                (next.clone(), then, member.id)
            }
            (_, Some(longest)) => {
                let next = View {
                    number: view.number + 1,
                    shards: reshape::lost(view, layout, &answered),
                    members: answered,
                    base: longest.end,
                };
                (next, None, longest.member.id)
            }
            _ => {
                ctx.mark("no complete log to restart from");
                return false;
            }
        };
        let proposal = Proposal {
            ballot: self.ballot,
            view: next,
            then,
        };
        self.proposal = Some((proposal, source));
        true
    }
}

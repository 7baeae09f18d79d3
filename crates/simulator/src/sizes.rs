//! Epochs with more members, or fewer, in worlds that draw it.
//!
//! ```text
//!   r0 r1 r2 │ r3 r4           members, and places of those that may become members
//!      a learner is offered ──► the epoch begins somewhere ──► r3 starts with an empty disk
//!      a vote for it is offered, when it has caught up or whenever ──► r3 votes
//!      one less is offered ──► it begins ──► r3 is told, once a majority is in it, and stops
//! ```
//!
//! The member with the highest number comes last and goes first; now and then it votes at once.
//! Until a majority is in the new epoch, the old one must be able to continue, too: faults leave both as
//! many voters as they need. A learner is needed by nobody, and anything may happen to it.

use crate::{
    clock::MILLISECOND,
    world::{Phase, World},
};
use quintet_replica::{Descriptor, Link, MemberRole, MemberRow, Node, NodeState};
use std::cmp::Ordering;

/// Of a thousand offers, those with another number of members, where there are places for them.
const SHARE: u64 = 400;
/// The same where a learner waits for its vote.
const LEARNER_SHARE: u64 = 800;
/// And of those, the ones with a member more.
const MORE: u64 = 600;
/// And of those, the ones that vote at once, or though they have not caught up.
const HASTY: u64 = 250;
/// No fewer voters than these.
const LEAST: usize = 3;

impl World {
    /// Perhaps a member more, or one less.
    pub(crate) fn draw_members(&mut self, offers: usize, next: &mut Descriptor) {
        let (now, voters) = (next.members.len(), next.voters());
        let learns = now > voters;
        let share = if learns { LEARNER_SHARE } else { SHARE };
        if self.replicas_max() == self.setup.replicas || !self.ending_random.chance(share) {
            return;
        }
        let more = self.ending_random.chance(MORE);
        let hasty = self.ending_random.chance(HASTY);
        let (members, voters) = match (learns, more) {
            (true, true) if hasty || self.has_caught_up(voters) => (now, now),
            (true, true) => return,
            (true, false) => (voters, voters),
            (false, true) => (now + 1, if hasty { now + 1 } else { now }),
            (false, false) => (now - 1, now - 1),
        };
        let least = self.protocols.iter().map(|entry| entry.info.replicas_min);
        let least = least.max().unwrap_or(LEAST).max(LEAST);
        let fits = voters >= least && members <= self.replicas_max() && offers < voters;
        // One change of the number after the other, so that both epochs can lose some.
        let follows = next.number.0 == self.epoch_begun.0 + 1;
        let settled = follows && self.sizes.is_empty() && self.all_have(self.voters);
        let waits = (self.processes.iter()).any(|process| process.replaced_in.is_some());
        if !fits || !settled || waits || !self.is_size_viable(voters, &self.all_states()) {
            return;
        }
        self.sizes.push(voters);
        next.members.truncate(members);
        if members > now {
            next.members.push(MemberRow {
                node: self.new_node(now),
                role: MemberRole::Learner,
                peer: format!("r{now}"),
            });
        }
        if members == voters {
            let last = next.members.last_mut();
            last.expect("there are members").role = MemberRole::Voter;
        }
        self.trace.say(self.now, || {
            format!("there are to be {members} members, {voters} of them with votes")
        });
    }

    /// Whether a replica is a learner that has the state.
    fn has_caught_up(&self, index: usize) -> bool {
        let process = &self.processes[index];
        let now = process.clock.now(self.now);
        let node = process.node.as_ref();
        node.is_some_and(|node| node.has_caught_up(now))
    }

    /// An epoch with these members is the newest that has begun.
    pub(crate) fn begin_size(&mut self, descriptor: &Descriptor) {
        let (members, voters) = (descriptor.members.len(), descriptor.voters());
        let what = match (members.cmp(&self.members), voters.cmp(&self.voters)) {
            (Ordering::Equal, Ordering::Equal) => None,
            (Ordering::Greater, Ordering::Equal) => Some("learner added"),
            (Ordering::Less, Ordering::Equal) => Some("learner removed"),
            (Ordering::Equal, _) => Some("learner votes"),
            (Ordering::Greater, _) => Some("member added"),
            (Ordering::Less, _) => Some("member removed"),
        };
        if let Some(what) = what {
            *self.branches.entry(what).or_default() += 1;
        }
        (self.members, self.voters) = (members, voters);
        self.sizes.clear();
        if self.phase == Phase::Liveness {
            let core = &mut self.healing.core;
            core.retain(|node| *node < members);
            self.healing.last_reads.retain(|(node, _)| *node < members);
        }
    }

    /// Whether epochs that were offered with another number of voters can continue, should one come
    /// next.
    pub(crate) fn sizes_offered_are_viable(&self, states: &[NodeState]) -> bool {
        let mut sizes = self.sizes.iter();
        sizes.all(|voters| self.is_size_viable(*voters, states))
    }

    fn is_size_viable(&self, voters: usize, states: &[NodeState]) -> bool {
        let mut states = states[..voters].to_vec();
        // A new member has nothing at first, nor has a learner that is lost until then.
        for state in states.iter_mut().skip(self.voters) {
            (state.up, state.forgot) = (false, true);
        }
        let mut protocols = self.protocols.iter();
        protocols.all(|entry| (entry.viable_in)(voters, &states, &[]))
    }

    /// How many members there are by what a replica knows, and how many of them vote.
    pub(crate) fn members_known(&self, index: usize) -> (usize, usize) {
        let shown = self.processes[index].descriptor.clone();
        let known = Descriptor::decode(shown);
        let first = (self.setup.replicas, self.setup.replicas);
        known.map_or(first, |known| (known.members.len(), known.voters()))
    }

    /// A replica has begun an epoch: it makes links to new members, and drops those to members that
    /// are none any more.
    pub(crate) fn link_members(&mut self, index: usize, before: usize, now: usize) {
        for other in before.min(now)..before.max(now) {
            if other != index && !self.break_link(index, other, Link::Reset) {
                let at = self.now + self.random.between(1, 20) * MILLISECOND;
                self.network.connect_at(index, other, at, &mut self.queue);
            }
        }
    }

    /// Whether two replicas are members by what each of them knows: only then they are linked. One
    /// that is none any more asks, and is told so when the others do not need it.
    pub(crate) fn know_each_other(&mut self, a: usize, b: usize) -> bool {
        let pairs = [(a, b), (b, a)];
        let is_stranger = |(at, peer): &(usize, usize)| {
            *peer >= self.members_known(*at).0 || self.belongs(*at, *peer) == Some(false)
        };
        let Some((at, peer)) = pairs.into_iter().find(is_stranger) else {
            return true;
        };
        self.network.refuse(a, b);
        let later = self.processes[at].epoch() > self.processes[peer].epoch();
        let (members, voters) = self.members_known(at);
        let settled = |node: &Node| {
            let holders = node.holders().iter();
            let holders = holders.filter(|id| id.index() < voters).count();
            !node.is_between_epochs() && holders + 1 > voters / 2
        };
        if later && self.processes[at].node.as_ref().is_some_and(settled) {
            self.trace
                .say(self.now, || format!("r{peer} is told that it is no member"));
            let what = match peer >= members {
                true => "removed member told",
                false => "replaced member told",
            };
            *self.branches.entry(what).or_default() += 1;
            self.crash(peer);
            return false;
        }
        let again = self.now + self.random.between(20, 100) * MILLISECOND;
        self.network.connect_at(a, b, again, &mut self.queue);
        false
    }
}

#[cfg(test)]
mod tests {
    use crate::{Campaign, run};
    use std::collections::BTreeSet;

    #[test]
    fn members_come_and_go_beside_other_faults() {
        let mut campaign = Campaign {
            replicas: 5,
            faults: "all,ended".parse().expect("faults"),
            ..Campaign::default()
        };
        let mut seen = BTreeSet::new();
        for seed in 0..60 {
            campaign.seeds = seed..seed + 1;
            let report = run(&campaign, |_| ()).expect("it runs");
            assert!(report.is_clean(), "{:?}", report.failures);
            seen.extend(report.branches.into_keys());
            let all = [
                "member added",
                "learner added",
                "learner votes",
                "learner removed",
                "removed member told",
            ];
            if all.iter().all(|it| seen.contains(*it)) {
                return;
            }
        }
        panic!("not in 60 seeds: {seen:?}");
    }
}

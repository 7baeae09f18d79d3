//! Epochs with more members, or fewer, in worlds that draw it.
//!
//! ```text
//!   r0 r1 r2 │ r3 r4           members, and places of those that may become members
//!      a learner is offered ──► the epoch begins somewhere ──► r3 starts with an empty disk
//!      a vote for it is offered, when it has caught up or whenever ──► r3 votes
//!      one less is offered ──► it begins ──► r1 is told, once a majority is in it, and stops
//!      one more is offered ──► another r1 starts with an empty disk
//! ```
//!
//! Any voters go, one or two, leaders and those that are down among them, and the others keep their
//! numbers; a new one takes the first that is free, and now and then it votes at once. Until a
//! majority is in the new epoch, the old one must be able to continue, too: faults leave both as
//! many voters as they need. No voter needs a learner, and anything may happen to it.

use crate::{
    clock::MILLISECOND,
    routes::are_viable,
    world::{Phase, World},
};
use quintet_replica::{
    Descriptor, Link, MemberRole, MemberRow, Node, NodeState, ReplicaId, ReplicaSet, Voters,
};
use std::cmp::Ordering;

/// Of a thousand offers, those with another number of members, where there are places for them.
const SHARE: u64 = 400;
/// The same where a learner waits for its vote.
const LEARNER_SHARE: u64 = 800;
/// And of those, the ones with a member more, and where several may go.
const MORE: u64 = 600;
const MORE_OF_MANY: u64 = 350;
/// And of those, the ones that vote at once, or though they have not caught up.
const HASTY: u64 = 250;
/// Of a thousand offers with fewer members, those with two fewer.
const TWO: u64 = 250;
/// No fewer voters than these.
const LEAST: usize = 3;

impl World {
    /// Perhaps a member more, or fewer.
    pub(crate) fn draw_members(&mut self, offers: usize, next: &mut Descriptor) {
        let (all, voters) = (next.all(), next.voters());
        let learner = all.iter().find(|id| !voters.contains(*id));
        let share = match learner {
            Some(_) => LEARNER_SHARE,
            None => SHARE,
        };
        if self.replicas_max() == self.setup.replicas || !self.ending_random.chance(share) {
            return;
        }
        let many = voters.len() > LEAST + 1;
        let more = if many { MORE_OF_MANY } else { MORE };
        let more = self.ending_random.chance(more);
        let hasty = self.ending_random.chance(HASTY);
        let mut drawn = next.clone();
        match learner {
            Some(learner) if more && (hasty || self.has_caught_up(learner.index())) => {
                drawn.members[learner.index()].role = MemberRole::Voter;
            }
            Some(_) if more => return,
            Some(learner) => drawn.vacate(ReplicaSet::EMPTY.with(learner)),
            None if more => {
                let row = drawn.row_for_new();
                let member = MemberRow {
                    node: self.new_node(row),
                    role: match hasty {
                        true => MemberRole::Voter,
                        false => MemberRole::Learner,
                    },
                    peer: format!("r{row}"),
                };
                drawn.place(row, member);
            }
            None => {
                let mut order: Vec<ReplicaId> = voters.set().iter().collect();
                order.retain(|id| id.index() != offers);
                self.ending_random.shuffle(&mut order);
                let two = many && self.ending_random.chance(TWO);
                order.truncate(if two { 2 } else { 1 });
                drawn.vacate(order.into_iter().collect());
            }
        }
        let least = self.protocols.iter().map(|entry| entry.info.replicas_min);
        let least = least.max().unwrap_or(LEAST).max(LEAST);
        let voters = drawn.voters();
        let fits = voters.len() >= least && drawn.members.len() <= self.replicas_max();
        let stays = voters.contains(ReplicaId(offers as u16));
        // One change of the number after the other, so that both epochs can lose some.
        let follows = next.number.0 == self.epoch_begun.0 + 1;
        let settled = follows && self.sizes.is_empty() && self.all_have(self.voters);
        let waits = (self.processes.iter()).any(|process| process.replaced_in.is_some());
        let states = self.all_states();
        if !fits || !stays || !settled || waits || !self.is_size_viable(voters, &states) {
            return;
        }
        self.sizes.push(voters);
        *next = drawn;
        self.trace.say(self.now, || {
            let members: Vec<u16> = next.all().iter().map(|id| id.0).collect();
            format!(
                "there are to be members {members:?}, {} of them with votes",
                voters.len()
            )
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
        let (all, voters) = (descriptor.all(), descriptor.voters());
        let counts = (
            all.len().cmp(&self.all.len()),
            voters.len().cmp(&self.voters.len()),
        );
        let what = match counts {
            (Ordering::Equal, Ordering::Equal) => None,
            (Ordering::Greater, Ordering::Equal) => Some("learner added"),
            (Ordering::Less, Ordering::Equal) => Some("learner removed"),
            (Ordering::Equal, _) => Some("learner votes"),
            (Ordering::Greater, _) => Some("member added"),
            (Ordering::Less, _) if voters.len() + 1 < self.voters.len() => {
                Some("two members removed")
            }
            (Ordering::Less, _) => Some("member removed"),
        };
        if !voters.is_dense() {
            *self.branches.entry("epoch with vacant rows").or_default() += 1;
        }
        if let Some(what) = what {
            *self.branches.entry(what).or_default() += 1;
        }
        (self.all, self.voters) = (all, voters);
        self.members = descriptor.members.len();
        self.sizes.clear();
        if self.phase == Phase::Liveness {
            let core = &mut self.healing.core;
            core.retain(|node| all.contains(ReplicaId(*node as u16)));
            let reads = &mut self.healing.last_reads;
            reads.retain(|(node, _)| all.contains(ReplicaId(*node as u16)));
        }
    }

    /// Whether epochs that were offered with other voters can continue, should one come next.
    pub(crate) fn sizes_offered_are_viable(&self, states: &[NodeState]) -> bool {
        let mut sizes = self.sizes.iter();
        sizes.all(|voters| self.is_size_viable(*voters, states))
    }

    fn is_size_viable(&self, voters: Voters, states: &[NodeState]) -> bool {
        let mut states = states.to_vec();
        // A new member has nothing at first, nor has a learner that is lost until then.
        for state in &mut states {
            if !self.voters.contains(state.id) {
                (state.up, state.state_lost) = (false, true);
            }
        }
        let mut protocols = self.protocols.iter();
        protocols.all(|entry| are_viable(entry, voters, &states, &[]))
    }

    /// The members by what a replica knows, and those of them that vote.
    pub(crate) fn members_known(&self, index: usize) -> (ReplicaSet, Voters) {
        let shown = self.processes[index].descriptor.clone();
        let known = Descriptor::decode(shown);
        let first = Voters::dense(self.setup.replicas);
        known.map_or((first.set(), first), |known| (known.all(), known.voters()))
    }

    /// A replica has begun an epoch: it makes links to new members, and drops those to members that
    /// are none any more.
    pub(crate) fn link_members(&mut self, index: usize, before: ReplicaSet, now: ReplicaSet) {
        let changed = ReplicaSet(before.0 ^ now.0);
        for other in changed.iter().map(ReplicaId::index) {
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
            !(self.members_known(*at).0).contains(ReplicaId(*peer as u16))
                || self.belongs(*at, *peer) == Some(false)
        };
        let Some((at, peer)) = pairs.into_iter().find(is_stranger) else {
            return true;
        };
        self.network.refuse(a, b);
        let later = self.processes[at].epoch() > self.processes[peer].epoch();
        let (members, voters) = self.members_known(at);
        let me = ReplicaId(at as u16);
        let settled =
            |node: &Node| !node.is_between_epochs() && voters.is_majority(node.holders().with(me));
        if later && self.processes[at].node.as_ref().is_some_and(settled) {
            self.trace
                .say(self.now, || format!("r{peer} is told that it is no member"));
            let what = match members.contains(ReplicaId(peer as u16)) {
                false => "removed member told",
                true => "replaced member told",
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
        for seed in 0..90 {
            campaign.seeds = seed..seed + 1;
            let report = run(&campaign, |_| ()).expect("it runs");
            assert!(report.is_clean(), "{:?}", report.failures);
            seen.extend(report.branches.into_keys());
            let all = [
                "member added",
                "learner added",
                "learner votes",
                "learner removed",
                "member removed",
                "two members removed",
                "epoch with vacant rows",
                "removed member told",
            ];
            if all.iter().all(|it| seen.contains(*it)) {
                return;
            }
        }
        panic!("not in 90 seeds: {seen:?}");
    }
}

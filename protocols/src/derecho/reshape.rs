//! The shards of the next view: which members they have, and where their logs end.
//!
//! ```text
//!   who is there ──► layout: targets ──┐
//!   those that stay ───────────────────┴─► members: near an active shard's log, or holders of a
//!   logs of wedged rows, of Holds ─────┐            lost one's; from another shard one by one
//!                                      └─► base: smallest end of the members' logs
//! ```
//!
//! The proposer of a view computes this alone, and all others look at what they know of it.

use super::{
    Derecho,
    message::{Holding, Member, ShardView, View},
    shards::{Bug, both, less},
};
use alloc::vec::Vec;
use quintet_replica::{
    Assigned, Assignment, Candidate, Durability, Layout, ReplicaId, ReplicaSet, Slot,
};

/// The targets of a view as what an assignment begins with.
fn targets(view: &View) -> Assignment {
    let shards = view.shards.iter().map(|shard| Assigned {
        members: shard.targets,
        ..Assigned::default()
    });
    let shards = shards.collect();
    Assignment { shards }
}

/// Whether a replica has nothing of a shard's log.
fn is_empty(told: &Holding) -> bool {
    told.sure.max(told.end) == Slot(0)
}

/// The shards of the first view, in which all hold all that there is: nothing.
pub(super) fn first(layout: &Layout, members: usize) -> Vec<ShardView> {
    let all = (0..members as u16).map(|id| Candidate::new(ReplicaId(id)));
    let assigned = layout.assign(&Assignment::default(), &all.collect::<Vec<_>>());
    let shards = assigned.shards.iter().map(|assigned| {
        let active = assigned.missing == 0;
        ShardView {
            members: assigned.members,
            senders: assigned.senders,
            targets: assigned.members,
            active_in: u64::from(active),
            before: 0,
            base: Slot(0),
            generation: 0,
            among: ReplicaSet::all(members),
        }
    });
    shards.collect()
}

/// The shards of a view that an inspector proposes: lost, all of them.
pub(super) fn lost(before: &View, layout: &Layout, members: &[Member]) -> Vec<ShardView> {
    let present = members.iter().map(|member| Candidate::new(member.id));
    let assigned = layout.assign(&targets(before), &present.collect::<Vec<_>>());
    let shards = before.shards.iter().zip(&assigned.shards);
    let lost = shards.map(|(shard, assigned)| ShardView {
        targets: assigned.members,
        ..shard.clone()
    });
    lost.collect()
}

/// Members of shards while they are chosen, by shard.
struct Choice<'a> {
    layout: &'a Layout,
    /// The fewest that a shard orders with.
    min: Vec<usize>,
    /// Those that hold a shard's log.
    holders: Vec<ReplicaSet>,
    members: Vec<ReplicaSet>,
}

impl Choice<'_> {
    fn same(&self, a: usize, b: usize) -> bool {
        let shards = self.layout.shards();
        shards[a].subgroup == shards[b].subgroup
    }

    /// The other shard of its subgroup that a replica is a member of.
    fn other(&self, shard: usize, id: ReplicaId) -> Option<usize> {
        let mut others = (0..self.members.len()).filter(|other| *other != shard);
        others.find(|other| self.same(*other, shard) && self.members[*other].contains(id))
    }

    /// Lets these into a shard one after the other, as far as it has room: a member of another one
    /// only while that can do without it; into a lost shard all, or none if it stays below its minimum.
    fn let_in(&mut self, shard: usize, ready: ReplicaSet, is_lost: bool) {
        let room = self.layout.subgroup(shard).max;
        let mut moved = Vec::new();
        for id in ready.iter() {
            if self.members[shard].len() >= room {
                break;
            }
            let from = self.other(shard, id);
            if let Some(from) = from {
                let rest = both(self.members[from], self.holders[from]).without(id);
                if rest.len() < self.min[from] {
                    continue;
                }
                self.members[from] = self.members[from].without(id);
            }
            self.members[shard].insert(id);
            moved.push((id, from));
        }
        if !is_lost || self.members[shard].len() >= self.min[shard] {
            return;
        }
        for (id, from) in moved {
            self.members[shard] = self.members[shard].without(id);
            if let Some(from) = from {
                self.members[from].insert(id);
            }
        }
    }
}

impl Derecho {
    /// The members of the view that hold a shard's log, durably, and up to where. Of one that is begun
    /// again with nothing these are all that have nothing: no copy is needed of that.
    pub(super) fn holders(&self, shard: usize, there: ReplicaSet) -> Vec<(ReplicaId, Slot)> {
        let (view, stream) = (self.membership.view(), &self.shards[shard]);
        let live = both(there, self.membership.live());
        if view.is_active(shard) {
            let end = self.sst.layout.end(stream.block.unwrap_or(0));
            let members = both(live, view.shards[shard].members);
            let holds = members.iter().filter(|id| self.shows_log(*id, shard));
            return holds.map(|id| (id, Slot(self.sst.read(id, end)))).collect();
        }
        let begins = self.begins_again(shard, there);
        let holder = |id: ReplicaId| {
            let told = self.told(id, shard)?;
            let holds = match begins {
                true => told.begun_again || is_empty(&told),
                false => told.complete && !told.begun_again,
            };
            holds.then_some((id, told.end))
        };
        let mut holders: Vec<_> = live.iter().filter_map(holder).collect();
        if !begins {
            // A log without what another one knows to be delivered is none that was copied: its
            // replica alone began again.
            let told = live.iter().filter_map(|id| self.told(id, shard));
            let least = told.map(|told| told.sure).max();
            holders.retain(|(_, end)| Some(*end) >= least);
        }
        holders
    }

    /// Whether a shard is begun again with nothing: all members of the view have told what they hold,
    /// no replica holds its log, and those that begin it again are a majority of those among whom it
    /// was last active.
    pub(super) fn begins_again(&self, shard: usize, there: ReplicaSet) -> bool {
        let view = self.membership.view();
        if view.is_active(shard) || self.shards[shard].durability == Durability::Disk {
            return false;
        }
        let live = both(there, self.membership.live());
        let of = |id: &ReplicaId| self.told(*id, shard).filter(|told| told.complete);
        let again = |id: &ReplicaId| of(id).is_some_and(|told| told.begun_again);
        let holds = |id: &ReplicaId| of(id).is_some_and(|told| !told.begun_again);
        let again: ReplicaSet = live.iter().filter(again).collect();
        let among = match view.shards[shard].among {
            ReplicaSet::EMPTY => ReplicaSet::all(self.me.members()),
            among => among,
        };
        // One that comes into the next view has a word in that one, and may hold the log.
        let joins = !less(there, self.membership.set()).is_empty();
        let said = |id: ReplicaId| self.holdings.of(id, view.number, shard).is_some();
        let mut others = live.iter().filter(|id| *id != self.me.id());
        both(again, among).len() * 2 > among.len()
            && !joins
            && !live.iter().any(|id| holds(&id))
            && !self.me.others().iter().any(|id| holds(&id))
            && others.all(said)
    }

    /// Whether a replica has a part of a log of which no replica has all, while the shard is begun
    /// again.
    pub(super) fn has_useless_part(&self, id: ReplicaId, shard: usize) -> bool {
        let part = |told: Holding| !told.complete && !is_empty(&told);
        self.told(id, shard).is_some_and(part) && self.begins_again(shard, self.membership.set())
    }

    /// How much a replica has of a shard's log, by its own word in this view.
    pub(super) fn told(&self, id: ReplicaId, shard: usize) -> Option<Holding> {
        match id == self.me.id() {
            true => Some(self.holding(shard)),
            false => (self.holdings.of(id, self.membership.number(), shard)).copied(),
        }
        .filter(|told| self.is_present(told))
    }

    /// Whether this is a log of the shard as it is now, and not of before it was begun again.
    pub(super) fn is_present(&self, told: &Holding) -> bool {
        let shard = &self.membership.view().shards[told.shard as usize];
        told.generation == shard.generation
    }

    /// Whether a replica that fetches an active shard's log lacks little of it.
    fn is_near(&self, id: ReplicaId, shard: usize) -> bool {
        let Some(theirs) = self.told(id, shard) else {
            return false;
        };
        // One whose disk stands still would come in and hold nothing.
        let has = theirs.sure.min(theirs.end);
        let Some(sure) = self.sure_of_members(shard) else {
            return false;
        };
        let is_kept = |of: Holding| theirs.sure.next() >= of.first;
        has.0 + self.config.join_lag >= self.shards[shard].catch_up.lately.before(sure).0
            && self.members_told(shard).all(is_kept)
    }

    /// The word of each member of a shard on its log.
    fn members_told(&self, shard: usize) -> impl Iterator<Item = Holding> {
        let members = self.membership.view().shards[shard].members;
        members.iter().filter_map(move |id| self.told(id, shard))
    }

    /// How much of a shard's log is delivered, as its members have told.
    fn sure_of_members(&self, shard: usize) -> Option<Slot> {
        self.members_told(shard).map(|of| of.sure).max()
    }

    /// A beat: notes how far the shards are.
    pub(super) fn note_shards(&mut self) {
        for shard in 0..self.shards.len() {
            let sure = self.sure_of_members(shard);
            self.shards[shard].catch_up.lately.on_beat(sure);
        }
    }

    /// Those of these replicas that may come into an active shard.
    fn near(&self, shard: usize, of: ReplicaSet) -> ReplicaSet {
        let comes = |id| (self.coming.as_ref()).is_some_and(|to| to[shard].contains(id));
        let near = |id: &ReplicaId| comes(*id) || self.is_near(*id, shard);
        of.iter().filter(near).collect()
    }

    /// The shards of the next view, with these members.
    pub(super) fn next_shards(&self, next: &[Member]) -> Vec<ShardView> {
        let (view, layout) = (self.membership.view(), &self.config.layout);
        let there: ReplicaSet = next.iter().map(|member| member.id).collect();
        let holders: Vec<_> = (0..view.shards.len())
            .map(|shard| self.holders(shard, there))
            .collect();
        let present: Vec<Candidate> = (next.iter())
            .map(|member| {
                let id = member.id;
                let holds = |shard: &usize| {
                    let told = self.told(id, *shard).filter(|_| id != self.me.id());
                    holders[*shard].iter().any(|(of, _)| *of == id)
                        || told.is_some_and(|told| told.complete)
                };
                let holds = (0..view.shards.len()).filter(holds).collect();
                let unfit = |shard: &usize| self.has_old_log(*member, *shard);
                let unfit = (0..view.shards.len()).filter(unfit).collect();
                Candidate { id, holds, unfit }
            })
            .collect();
        let assigned = layout.assign(&targets(view), &present);
        let min = |shard: usize| match self.injected(Bug::ActiveBelowMinimum) {
            true => 1,
            false => layout.subgroup(shard).min,
        };
        let set = |holders: &Vec<(ReplicaId, Slot)>| holders.iter().map(|(id, _)| *id).collect();
        let live = both(there, self.membership.live());
        let stay = view.shards.iter().enumerate().map(|(shard, of)| {
            let active = view.is_active(shard);
            both(of.members, if active { live } else { ReplicaSet::EMPTY })
        });
        let mut choice = Choice {
            layout,
            min: (0..view.shards.len()).map(min).collect(),
            holders: holders.iter().map(set).collect(),
            members: stay.collect(),
        };
        for shard in 0..view.shards.len() {
            let wanted = less(assigned.shards[shard].members, choice.members[shard]);
            let wanted = both(wanted, live);
            let active = view.is_active(shard);
            let ready = match active {
                true => self.near(shard, wanted),
                false => both(wanted, choice.holders[shard]),
            };
            choice.let_in(shard, ready, !active);
        }
        let members = choice.members;
        let number = view.number + 1;
        let mut first_base = None;
        let shards = view.shards.iter().enumerate().map(|(shard, of)| {
            let targets = assigned.shards[shard].members;
            let holding = (holders[shard].iter()).filter(|(id, _)| members[shard].contains(*id));
            if self.injected(Bug::LostShardBeginsEmpty)
                && holders[shard].is_empty()
                && targets.len() >= min(shard)
            {
                return ShardView {
                    members: targets,
                    senders: targets,
                    targets,
                    active_in: number,
                    before: of.active_in,
                    base: Slot(0),
                    among: there,
                    ..of.clone()
                };
            }
            let base = holding.clone().map(|(_, end)| *end).min();
            let Some(base) = base.filter(|_| holding.clone().count() >= min(shard)) else {
                return ShardView {
                    targets,
                    ..of.clone()
                };
            };
            let one_for_all = self.injected(Bug::BaseOfOneShardForAll);
            let base = if one_for_all {
                *first_base.get_or_insert(base)
            } else {
                base
            };
            ShardView {
                members: members[shard],
                senders: layout.senders(shard, &members),
                targets,
                active_in: number,
                before: of.active_in,
                base,
                generation: of.generation + u64::from(self.begins_again(shard, there)),
                among: there,
            }
        });
        shards.collect()
    }

    /// Looks whether a view change would take up a lost shard, let a member into one, or give one
    /// other targets that is lost, or has one that cannot follow it. Members that it would let in come
    /// in then, however near they are by that time: else one that is near now and then would make one
    /// view change after another.
    pub(super) fn look_at_shards(&mut self) {
        let view = self.membership.view();
        if self.membership.wedging() {
            return;
        }
        self.coming = None;
        if !self.membership.leads() {
            return;
        }
        let live = self.membership.live();
        let members = view.members.iter();
        let members: Vec<Member> = (members.filter(|it| live.contains(it.id)).copied()).collect();
        let next = self.next_shards(&members);
        let view = self.membership.view();
        let mut pairs = view.shards.iter().zip(&next).enumerate();
        let gains = pairs.any(|(shard, (old, next))| {
            let active = next.active_in == view.number + 1;
            let comes = active && !less(next.members, old.members).is_empty();
            let lost = !view.is_active(shard);
            let unfit = |of: &&Member| old.targets.contains(of.id) && self.has_old_log(**of, shard);
            let waits = lost || view.members.iter().any(|member| unfit(&member));
            comes || lost && active || waits && old.targets != next.targets
        });
        let members = next.iter().map(|shard| shard.members);
        self.coming = gains.then(|| members.collect());
    }

    /// Whether this member can follow the shards of a proposal.
    pub(super) fn shards_fit(&self, next: &View) -> bool {
        let (view, layout, own) = (self.membership.view(), &self.config.layout, self.me.id());
        if next.shards.len() != view.shards.len() {
            return false;
        }
        let active = |shard: &ShardView| shard.active_in == next.number;
        let assigned = next.shards.iter().map(|shard| match active(shard) {
            true => Assigned {
                members: shard.members,
                senders: shard.senders,
                missing: 0,
            },
            false => Assigned::default(),
        });
        let shards = assigned.collect();
        if layout.problem(&Assignment { shards }, next.set()).is_some() {
            return false;
        }
        let fits = |(shard, of): (usize, &ShardView)| {
            let (log, old) = (&self.shards[shard].log, &view.shards[shard]);
            if !active(of) {
                let targets = of.targets;
                return *of
                    == ShardView {
                        targets,
                        ..old.clone()
                    };
            }
            // Everything delivered here is below the base, and the holders that stay hold all up to it.
            let held = self.sst.layout.held(self.shards[shard].block.unwrap_or(0));
            let counts =
                view.is_active(shard) && old.members.contains(own) && self.sst.own(held) > 0;
            let stays = counts && of.members.contains(own);
            let again = of.generation.wrapping_sub(old.generation);
            // A log of an earlier generation is none, and a part of one counts no more when all that
            // were complete are gone.
            let is_old = self.shards[shard].catch_up.old.is_some()
                || again == 1 && !self.membership.is_held(shard);
            let covers = of.base >= log.sure() || is_old;
            of.before == old.active_in && again <= 1 && covers && (!stays || of.base <= log.end())
        };
        next.shards.iter().enumerate().all(fits) || self.injected(Bug::BaseOfOneShardForAll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn set(ids: &[u16]) -> ReplicaSet {
        ids.iter().copied().map(ReplicaId).collect()
    }

    fn choice<'a>(layout: &'a Layout, members: [&[u16]; 2], holders: [&[u16]; 2]) -> Choice<'a> {
        Choice {
            layout,
            min: vec![2, 2],
            holders: holders.map(set).to_vec(),
            members: members.map(set).to_vec(),
        }
    }

    fn layout(text: &str) -> Layout {
        text.parse().expect("a layout")
    }

    #[test]
    fn member_comes_from_shard_that_does_without_it() {
        let layout = layout("a groups=1-2 nodes=0-7 members=2..4");
        let mut choice = choice(&layout, [&[0, 1, 2, 3], &[]], [&[0, 2, 3], &[2, 3]]);
        choice.let_in(1, set(&[2, 3]), true);
        assert_eq!(choice.members, [set(&[0, 1, 2, 3]), set(&[])]);
        choice.let_in(1, set(&[2, 5, 3]), true);
        assert_eq!(choice.members, [set(&[0, 1, 3]), set(&[2, 5])]);
    }

    #[test]
    fn shard_without_room_takes_no_member() {
        let layout = layout("a groups=1-2 nodes=0-7 members=2..3");
        let mut choice = choice(&layout, [&[0, 1, 2], &[4, 5]], [&[0, 1, 2], &[4, 5]]);
        choice.let_in(1, set(&[2, 6]), false);
        assert_eq!(choice.members, [set(&[0, 1]), set(&[2, 4, 5])]);
        choice.let_in(0, set(&[5]), false);
        assert_eq!(choice.members[1], set(&[2, 4, 5]), "2 does not hold it yet");
    }

    #[test]
    fn lost_shard_below_its_minimum_takes_no_member() {
        let layout = layout("a groups=1-2 nodes=0-7 members=2..4");
        let mut choice = choice(&layout, [&[0, 1, 2], &[]], [&[0, 1, 2], &[2]]);
        choice.let_in(1, set(&[2]), true);
        assert_eq!(choice.members, [set(&[0, 1, 2]), set(&[])]);
    }
}

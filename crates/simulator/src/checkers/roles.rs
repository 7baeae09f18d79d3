//! The shards of a view: who is a member of which, from where on, and what they have delivered.
//!
//! ```text
//!   views as replicas know them ──► one assignment, one base per shard ─┐ the same at all
//!   members of an active shard ───► disjoint, enough, with its log      ├──► or a violation
//!   slots delivered by members ───► not above the base of a later view ─┘
//! ```

use super::Violation;
use quintet_replica::{Assigned, Assignment, Layout, ReplicaId, ReplicaSet, Slot, Status};
use std::collections::BTreeMap;

const PROPERTY: &str = "roles";

/// A shard in a view, as one replica knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardSeen {
    /// Its members when it was last active.
    pub members: ReplicaSet,
    /// Those of them that sent.
    pub senders: ReplicaSet,
    /// Those that should be.
    pub targets: ReplicaSet,
    /// The view in which it was last active.
    pub active_in: u64,
    /// The last slot before the order of that view.
    pub base: Slot,
    /// How often it was begun again with nothing.
    pub generation: u64,
}

/// A replica's part in a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stand {
    /// It holds a complete log.
    pub complete: bool,
    /// Those whose messages it orders, while it takes part.
    pub ordered_from: ReplicaSet,
}

/// One shard in all views.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Shard {
    /// By view in which it was active: members and base.
    active: BTreeMap<u64, ShardSeen>,
    /// By such a view: the last slot that a member delivered in it. Views of earlier generations are
    /// left out.
    delivered: BTreeMap<u64, Slot>,
    /// Views in which some member has begun.
    begun: BTreeMap<u64, ReplicaSet>,
}

fn ids(text: &str) -> ReplicaSet {
    let ids = text.split_whitespace().filter_map(|id| id.parse().ok());
    ids.map(ReplicaId).collect()
}

/// A shard by its status, and the replica's part in it.
pub fn read(status: &Status) -> (ShardSeen, Stand) {
    let detail = |name: &str| {
        let mut details = status.details.iter();
        let found = details.find(|(of, _)| *of == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let seen = ShardSeen {
        members: ids(detail("members")),
        senders: ids(detail("senders")),
        targets: ids(detail("targets")),
        active_in: detail("active_in").parse().expect("a number"),
        base: Slot(detail("base")[1..].parse().expect("a slot")),
        generation: detail("generation").parse().expect("a number"),
    };
    let stand = Stand {
        complete: detail("complete") == "true",
        ordered_from: ids(detail("ordered from")),
    };
    (seen, stand)
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Roles {
    layout: Layout,
    /// By view: its shards.
    views: BTreeMap<u64, Vec<ShardSeen>>,
    shards: Vec<Shard>,
}

fn bad(what: String) -> Result<(), Violation> {
    Err(Violation::new(PROPERTY, what))
}

impl Roles {
    /// Nothing is known of the shards of this layout.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            shards: layout.shards().iter().map(|_| Shard::default()).collect(),
            layout,
            views: BTreeMap::new(),
        }
    }

    /// The newest view that some replica knows.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.views.keys().last().copied().unwrap_or(0)
    }

    /// Replica `by` knows a view.
    ///
    /// # Errors
    /// When another replica knows it otherwise, or it is none that may be.
    pub fn saw(&mut self, by: u16, view: u64, seen: &[ShardSeen]) -> Result<(), Violation> {
        if let Some(known) = self.views.get(&view) {
            if known == seen {
                return Ok(());
            }
            return bad(format!("view {view} is {seen:?} at {by}, was {known:?}"));
        }
        self.views.insert(view, seen.to_vec());
        let active = |shard: &ShardSeen| shard.active_in == view;
        let assigned = seen.iter().map(|of| match active(of) {
            true => Assigned {
                members: of.members,
                senders: of.senders,
                missing: 0,
            },
            false => Assigned::default(),
        });
        let shards = assigned.collect();
        let all = ReplicaSet::all(128);
        if let Some(problem) = self.layout.problem(&Assignment { shards }, all) {
            return bad(format!("view {view}: {problem}: {seen:?}"));
        }
        let members: Vec<ReplicaSet> = seen.iter().map(|of| of.members).collect();
        for (shard, of) in seen.iter().enumerate().filter(|(_, of)| active(of)) {
            let senders = self.layout.senders(shard, &members);
            // Where another subgroup's members send, those of its shard at this view's proposal.
            let follows = self.layout.subgroup(shard).senders_from.is_some();
            if of.senders != senders && !follows {
                let group = self.layout.shards()[shard].group;
                let has = of.senders;
                return bad(format!(
                    "{group} has senders {has:?} in view {view}, for {senders:?}"
                ));
            }
            let (min, group) = (
                self.layout.subgroup(shard).min,
                self.layout.shards()[shard].group,
            );
            if of.members.len() < min {
                let has = of.members.len();
                return bad(format!(
                    "{group} is active in view {view} with {has} of {min} members"
                ));
            }
            let known = &mut self.shards[shard];
            let mut before = known.active.range(..view).rev();
            if before
                .next()
                .is_some_and(|(_, before)| before.generation < of.generation)
            {
                // Its slots are others.
                known.delivered.clear();
            }
            let delivered = known.delivered.range(..view);
            if let Some((before, slot)) = delivered.max_by_key(|(_, slot)| **slot)
                && *slot > of.base
            {
                return bad(format!(
                    "{group} begins view {view} behind {}, and {slot} was delivered in view {before}",
                    of.base
                ));
            }
            known.active.insert(view, of.clone());
        }
        Ok(())
    }

    /// Replica `by` takes part in a shard in a view and orders what these send. `held`: which of the
    /// members have the shard's log up to a slot on their disks; none where it is in memory.
    ///
    /// # Errors
    /// When it is no member there, others send, or too few hold what is before.
    pub fn begins(
        &mut self,
        by: u16,
        shard: usize,
        view: u64,
        from: ReplicaSet,
        held: Option<&dyn Fn(ReplicaId, Slot) -> bool>,
    ) -> Result<(), Violation> {
        let group = self.layout.shards()[shard].group;
        let known = &mut self.shards[shard];
        let Some(of) = known.active.get(&view) else {
            return bad(format!(
                "{by} takes part in {group} in view {view}, in which it is lost"
            ));
        };
        if !of.members.contains(ReplicaId(by)) {
            let members = of.members;
            return bad(format!(
                "{by} takes part in {group} in view {view}, whose members are {members:?}"
            ));
        }
        if from != of.senders {
            let senders = of.senders;
            return bad(format!(
                "{by} orders what {from:?} send in {group} in view {view}, whose senders are \
                 {senders:?}"
            ));
        }
        let begun = known.begun.entry(view).or_default();
        let first = begun.is_empty();
        begun.insert(ReplicaId(by));
        let min = self.layout.subgroup(shard).min;
        if let Some(held) = held.filter(|_| first) {
            let hold = of.members.iter().filter(|id| held(*id, of.base)).count();
            if hold < min {
                return bad(format!(
                    "{group} is active in view {view}, and {hold} of {min} members hold its log up to {}",
                    of.base
                ));
            }
        }
        Ok(())
    }

    /// A member that takes part in this view has delivered everything up to a slot.
    ///
    /// # Errors
    /// When a later view began without it.
    pub fn delivered(
        &mut self,
        by: u16,
        shard: usize,
        view: u64,
        slot: Slot,
    ) -> Result<(), Violation> {
        let known = &mut self.shards[shard];
        let generation = |of: &ShardSeen| of.generation;
        let newest = known.active.values().last().map(generation);
        if known.active.get(&view).map(generation) != newest {
            let group = self.layout.shards()[shard].group;
            return bad(format!(
                "{by} delivers {slot} of {group} in view {view}, and it was begun again since"
            ));
        }
        let highest = known.delivered.entry(view).or_default();
        if slot <= *highest {
            return Ok(());
        }
        *highest = slot;
        let mut later = known.active.range(view + 1..);
        match later.find(|(_, of)| of.base < slot) {
            None => Ok(()),
            Some((later, of)) => {
                let group = self.layout.shards()[shard].group;
                bad(format!(
                    "{by} delivers {slot} of {group} in view {view}, and view {later} begins behind {}",
                    of.base
                ))
            }
        }
    }

    /// A shard in the newest view.
    #[must_use]
    pub fn present(&self, shard: usize) -> Option<&ShardSeen> {
        self.views.values().last()?.get(shard)
    }

    /// Whether a shard is active in the newest view.
    #[must_use]
    pub fn is_active(&self, shard: usize) -> bool {
        let newest = self.newest();
        self.present(shard)
            .is_some_and(|of| of.active_in == newest && newest > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[u16]) -> ReplicaSet {
        ids.iter().copied().map(ReplicaId).collect()
    }

    fn roles() -> Roles {
        let layout = "a groups=1-2 nodes=0-4 members=2..2";
        Roles::new(layout.parse().expect("a layout"))
    }

    fn shard(members: &[u16], active_in: u64, base: u64) -> ShardSeen {
        ShardSeen {
            members: set(members),
            senders: set(members),
            targets: set(members),
            active_in,
            base: Slot(base),
            generation: 0,
        }
    }

    #[test]
    fn view_is_one_and_its_shards_are_disjoint_and_large_enough() {
        let good = [shard(&[0, 2], 1, 0), shard(&[1, 3], 1, 0)];
        assert_eq!(roles().saw(0, 1, &good), Ok(()));
        let mut seen = roles();
        seen.saw(0, 1, &good).expect("a view");
        let other = [shard(&[0, 2], 1, 5), shard(&[1, 3], 1, 0)];
        assert!(seen.saw(1, 1, &other).is_err(), "two bases");
        let shared = [shard(&[0, 2], 1, 0), shard(&[0, 3], 1, 0)];
        assert!(roles().saw(0, 1, &shared).is_err());
        let short = [shard(&[0], 1, 0), shard(&[1, 3], 1, 0)];
        assert!(roles().saw(0, 1, &short).is_err());
        let lost = [shard(&[0], 1, 0), shard(&[0], 1, 0)];
        assert_eq!(
            roles().saw(0, 2, &lost),
            Ok(()),
            "their members do not count"
        );
    }

    #[test]
    fn base_covers_what_was_delivered_before() {
        let mut seen = roles();
        let first = [shard(&[0, 2], 1, 0), shard(&[1, 3], 1, 0)];
        seen.saw(0, 1, &first).expect("a view");
        assert_eq!(seen.delivered(0, 0, 1, Slot(7)), Ok(()));
        let next = |base| [shard(&[0, 4], 2, base), shard(&[1, 3], 2, 0)];
        let mut early = roles();
        early.saw(0, 1, &first).expect("a view");
        early.delivered(0, 0, 1, Slot(7)).expect("as far");
        assert!(early.saw(1, 2, &next(6)).is_err());
        assert_eq!(seen.saw(1, 2, &next(7)), Ok(()));
        assert!(
            seen.delivered(2, 0, 1, Slot(8)).is_err(),
            "it stayed behind"
        );
        assert_eq!(seen.delivered(4, 0, 2, Slot(8)), Ok(()));
    }

    #[test]
    fn only_senders_send() {
        let layout = "a groups=1 nodes=0-2 members=2..3 senders=1";
        let mut seen = Roles::new(layout.parse().expect("a layout"));
        let mut view = [shard(&[0, 1], 1, 0)];
        assert!(
            seen.clone().saw(0, 1, &view).is_err(),
            "0 is to send nothing"
        );
        view[0].senders = set(&[1]);
        seen.saw(0, 1, &view).expect("a view");
        assert!(seen.clone().begins(0, 0, 1, set(&[0, 1]), None).is_err());
        assert_eq!(seen.begins(0, 0, 1, set(&[1]), None), Ok(()));
    }

    #[test]
    fn slots_of_an_earlier_generation_are_others() {
        let first = [shard(&[0, 2], 1, 0), shard(&[1, 3], 1, 0)];
        let mut again = [shard(&[0, 4], 2, 0), shard(&[1, 3], 2, 0)];
        again[0].generation = 1;
        let mut seen = roles();
        seen.saw(0, 1, &first).expect("a view");
        assert_eq!(seen.delivered(0, 0, 1, Slot(7)), Ok(()));
        assert_eq!(seen.saw(4, 2, &again), Ok(()), "it begins with nothing");
        assert_eq!(seen.delivered(4, 0, 2, Slot(1)), Ok(()));
        assert!(seen.delivered(2, 0, 1, Slot(8)).is_err(), "it is over");
    }

    #[test]
    fn member_takes_part_and_enough_hold_the_log() {
        let mut seen = roles();
        let view = [shard(&[0, 2], 3, 4), shard(&[1, 3], 1, 0)];
        seen.saw(0, 3, &view).expect("a view");
        let both = |_: ReplicaId, slot: Slot| slot == Slot(4);
        let one = |id: ReplicaId, _: Slot| id == ReplicaId(0);
        assert!(
            seen.begins(1, 0, 3, set(&[0, 2]), None).is_err(),
            "not a member"
        );
        assert!(seen.begins(1, 1, 3, set(&[1, 3]), None).is_err(), "lost");
        assert!(
            seen.begins(0, 0, 3, set(&[0, 2]), Some(&one)).is_err(),
            "too few"
        );
        let mut seen = roles();
        seen.saw(0, 3, &view).expect("a view");
        assert_eq!(seen.begins(0, 0, 3, set(&[0, 2]), Some(&both)), Ok(()));
        assert_eq!(
            seen.begins(2, 0, 3, set(&[0, 2]), Some(&one)),
            Ok(()),
            "counted once"
        );
    }
}

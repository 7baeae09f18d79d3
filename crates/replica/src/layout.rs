//! Which groups a protocol serves that serves several, and who should be a member of which.
//!
//! ```text
//!   store groups=1-2 nodes=0-4 members=2..3 ; log groups=3 pin=0,1,2 durability=memory
//!   └ subgroup: its shards are the groups 1 and 2, disjoint in their members
//!   both groups=8-9 union=store,cache senders_from=store
//!   └ its shard 1 has the members of shard 1 of store and of cache
//!
//!   assign: members before, nodes present ──► per shard members, senders, how many lack
//! ```
//!
//! The proposer of a view computes the assignment, which is then a part of the view.

use crate::{Durability, GroupId, ReplicaId, ReplicaSet};
use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::{fmt, str::FromStr};

/// The most shards.
const SHARDS_MAX: usize = 1024;

/// Candidates for the shards of a subgroup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// These nodes, each in one shard at most.
    Among(ReplicaSet),
    /// For each shard, exactly these.
    Pinned(Vec<ReplicaSet>),
    /// For each shard, the members of the same shard of these subgroups, which stand before.
    Union(Vec<String>),
}

/// Groups of one kind, disjoint in their members.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Subgroup {
    /// Its name.
    pub name: String,
    /// One for each shard; the first group of a cluster is none of them.
    pub groups: Vec<GroupId>,
    /// The candidates.
    pub place: Place,
    /// With fewer members a shard orders nothing.
    pub min: usize,
    /// No shard gets more.
    pub max: usize,
    /// The members that send; all of them where none of these is one, or none are named.
    pub senders: ReplicaSet,
    /// The members of the same shard of this subgroup send, instead of those named.
    pub senders_from: Option<String>,
    /// The promise of an acknowledgement.
    pub durability: Durability,
}

/// One shard of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardPlace {
    /// Its group.
    pub group: GroupId,
    /// The place of its subgroup in the layout.
    pub subgroup: usize,
    /// The candidates.
    pub nodes: ReplicaSet,
}

/// All subgroups; none where a protocol serves one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    subgroups: Vec<Subgroup>,
    shards: Vec<ShardPlace>,
}

/// Members that one shard should have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Assigned {
    /// The members.
    pub members: ReplicaSet,
    /// Those of them that send.
    pub senders: ReplicaSet,
    /// How many lack for the shard to order anything.
    pub missing: usize,
}

/// Members that all shards should have, in the order of [`Layout::shards`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// One for each shard.
    pub shards: Vec<Assigned>,
}

/// A node that can be a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Which.
    pub id: ReplicaId,
    /// The shards, by their places in the layout, of which it has what a member needs.
    pub holds: Vec<usize>,
    /// The shards that it cannot be a member of for now.
    pub unfit: Vec<usize>,
}

impl Candidate {
    /// One that holds nothing yet.
    #[must_use]
    pub const fn new(id: ReplicaId) -> Self {
        Self {
            id,
            holds: Vec::new(),
            unfit: Vec::new(),
        }
    }
}

fn intersection(a: ReplicaSet, b: ReplicaSet) -> ReplicaSet {
    ReplicaSet(a.0 & b.0)
}

impl Layout {
    /// A layout of these.
    ///
    /// # Errors
    /// The rule that one of them breaks.
    pub fn new(mut subgroups: Vec<Subgroup>) -> Result<Self, String> {
        complete_unions(&mut subgroups)?;
        let mut shards: Vec<ShardPlace> = Vec::new();
        for (subgroup, of) in subgroups.iter().enumerate() {
            let name = &of.name;
            let earlier = &subgroups[..subgroup];
            if subgroups[..subgroup]
                .iter()
                .any(|other| other.name == *name)
            {
                return Err(format!("there are two subgroups '{name}'"));
            }
            if of.min == 0 || of.min > of.max || of.max > 128 {
                return Err(format!(
                    "members of '{name}': from 1 up to a maximum of 128 at most, as 2..3"
                ));
            }
            if let Some(from) = &of.senders_from {
                let found = earlier.iter().find(|other| other.name == *from);
                if !of.senders.is_empty()
                    || found.is_none_or(|it| it.groups.len() != of.groups.len())
                {
                    return Err(format!(
                        "senders_from={from} of '{name}': accepted is an earlier subgroup with as many \
                         shards, and no senders beside it"
                    ));
                }
            }
            let mut taken = ReplicaSet::EMPTY;
            for (shard, group) in of.groups.iter().enumerate() {
                if *group == GroupId(0) || shards.iter().any(|other| other.group == *group) {
                    return Err(format!("group {group} of '{name}' is another's"));
                }
                let nodes = match &of.place {
                    Place::Among(nodes) => *nodes,
                    Place::Pinned(pins) => {
                        let Some(nodes) = pins.get(shard).copied() else {
                            return Err(format!("shard {shard} of '{name}' has no nodes"));
                        };
                        nodes
                    }
                    Place::Union(parents) => {
                        let part = |name: &String| place_of(&subgroups, &shards, name, shard);
                        let parts = parents.iter().filter_map(part);
                        ReplicaSet(parts.fold(0, |all, at| all | shards[at].nodes.0))
                    }
                };
                let is_disjoint = intersection(taken, nodes).is_empty();
                taken = ReplicaSet(taken.0 | nodes.0);
                if matches!(of.place, Place::Pinned(_)) && !is_disjoint {
                    return Err(format!("two shards of '{name}' share a node"));
                }
                shards.push(ShardPlace {
                    group: *group,
                    subgroup,
                    nodes,
                });
            }
            let enough = |shard: &ShardPlace| shard.nodes.len() >= of.min;
            if of.groups.is_empty() || !shards.iter().all(|s| s.subgroup != subgroup || enough(s)) {
                return Err(format!(
                    "'{name}' has too few groups, or nodes for its minimum"
                ));
            }
        }
        if shards.len() > SHARDS_MAX {
            return Err(format!("there are more than {SHARDS_MAX} groups"));
        }
        Ok(Self { subgroups, shards })
    }

    /// Whether a protocol serves its own group only.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// The subgroups.
    #[must_use]
    pub fn subgroups(&self) -> &[Subgroup] {
        &self.subgroups
    }

    /// All shards, in the order of subgroups.
    #[must_use]
    pub fn shards(&self) -> &[ShardPlace] {
        &self.shards
    }

    /// The subgroup that a shard is of.
    #[must_use]
    pub fn subgroup(&self, shard: usize) -> &Subgroup {
        &self.subgroups[self.shards[shard].subgroup]
    }

    /// Which shard a group is.
    #[must_use]
    pub fn shard(&self, group: GroupId) -> Option<usize> {
        self.shards.iter().position(|shard| shard.group == group)
    }

    /// The groups, with what they promise.
    #[must_use]
    pub fn groups(&self) -> Vec<(GroupId, Durability)> {
        let shards = self.shards.iter();
        let group = |shard: &ShardPlace| (shard.group, self.subgroups[shard.subgroup].durability);
        shards.map(group).collect()
    }

    /// Whether this number of voters is enough for all nodes that are named.
    ///
    /// # Errors
    /// With the subgroup that names a node beyond them.
    pub fn check(&self, members: usize) -> Result<(), String> {
        let all = ReplicaSet::all(members);
        let outside = |shard: &&ShardPlace| shard.nodes.0 & !all.0 != 0;
        match self.shards.iter().find(outside) {
            None => Ok(()),
            Some(shard) => Err(format!(
                "'{}' names nodes beyond the {members} that there are",
                self.subgroups[shard.subgroup].name
            )),
        }
    }

    /// The same shard of another subgroup.
    fn sibling(&self, shard: usize, name: &str) -> Option<usize> {
        let subgroup = self.shards[shard].subgroup;
        let before = self.shards[..shard].iter();
        let number = before.filter(|it| it.subgroup == subgroup).count();
        place_of(&self.subgroups, &self.shards, name, number)
    }

    /// The senders of a shard, where these are the members of all shards.
    #[must_use]
    pub fn senders(&self, shard: usize, members: &[ReplicaSet]) -> ReplicaSet {
        let of = self.subgroup(shard);
        let from = of.senders_from.as_ref();
        let from = from.and_then(|name| self.sibling(shard, name));
        let named = from.map_or(of.senders, |from| members[from]);
        let named = intersection(named, members[shard]);
        if named.is_empty() {
            members[shard]
        } else {
            named
        }
    }

    /// Distributes the nodes: members stay, holders of the log of a shard below its minimum go
    /// there, the others fill up by their numbers. A shard below its minimum takes from one above
    /// it.
    #[must_use]
    pub fn assign(&self, previous: &Assignment, present: &[Candidate]) -> Assignment {
        let there: ReplicaSet = present.iter().map(|it| it.id).collect();
        let mut members = vec![ReplicaSet::EMPTY; self.shards.len()];
        let mut first = 0;
        for of in &self.subgroups {
            let shards = first..first + of.groups.len();
            first = shards.end;
            let is = |id, which: &dyn Fn(&Candidate) -> bool| {
                present.iter().any(|it| it.id == id && which(it))
            };
            let fits = |id, shard| !is(id, &|it| it.unfit.contains(&shard));
            let fitting = |nodes: ReplicaSet, shard: usize| -> ReplicaSet {
                nodes.iter().filter(|id| fits(*id, shard)).collect()
            };
            let may = |shard: usize| intersection(self.shards[shard].nodes, there);
            match &of.place {
                Place::Among(_) => {}
                Place::Pinned(_) => {
                    shards.for_each(|shard| members[shard] = fitting(may(shard), shard));
                    continue;
                }
                Place::Union(parents) => {
                    for shard in shards {
                        let parts = parents.iter().filter_map(|name| self.sibling(shard, name));
                        let all = parts.fold(0, |all, part| all | members[part].0);
                        members[shard] = fitting(ReplicaSet(all), shard);
                    }
                    continue;
                }
            }
            let mut free = may(shards.start);
            for shard in shards.clone() {
                let before = previous
                    .shards
                    .get(shard)
                    .map_or(ReplicaSet::EMPTY, |it| it.members);
                let stay = fitting(intersection(before, free), shard);
                members[shard] = stay.iter().take(of.max).collect();
                free = ReplicaSet(free.0 & !members[shard].0);
            }
            let holds = |id, shard| is(id, &|it| it.holds.contains(&shard));
            for shard in shards.clone() {
                let holders = free.iter().filter(|id| holds(*id, shard));
                for id in holders.filter(|id| fits(*id, shard)) {
                    if members[shard].len() < of.min {
                        members[shard].insert(id);
                        free = free.without(id);
                    }
                }
            }
            for most in [of.min, of.max] {
                // Shards for which no node is left.
                let mut done = Vec::new();
                let fewest = |members: &[ReplicaSet], done: &[usize]| {
                    let open =
                        |shard: &usize| members[*shard].len() < most && !done.contains(shard);
                    let open = shards.clone().filter(open);
                    open.min_by_key(|shard| members[*shard].len())
                };
                while let Some(shard) = fewest(&members, &done) {
                    let from = |members: &[ReplicaSet]| {
                        let gives = |it: &usize| {
                            let more = members[*it].len() > of.min;
                            more && !fitting(members[*it], shard).is_empty()
                        };
                        let more = shards.clone().filter(gives);
                        more.max_by_key(|it| members[*it].len())
                    };
                    let id = if let Some(id) = fitting(free, shard).iter().next() {
                        free = free.without(id);
                        id
                    } else if let Some(from) = from(&members).filter(|_| most == of.min)
                        && let Some(id) = fitting(members[from], shard).iter().last()
                    {
                        members[from] = members[from].without(id);
                        id
                    } else {
                        done.push(shard);
                        continue;
                    };
                    members[shard].insert(id);
                }
            }
        }
        let assigned = members.iter().enumerate();
        let assigned = assigned.map(|(shard, of)| Assigned {
            members: *of,
            senders: self.senders(shard, &members),
            missing: self.subgroup(shard).min.saturating_sub(of.len()),
        });
        Assignment {
            shards: assigned.collect(),
        }
    }

    /// The fault of proposed members and senders, if there is one: a member that is absent, or in
    /// two shards of a subgroup, or a sender that is no member.
    #[must_use]
    pub fn problem(&self, assignment: &Assignment, present: ReplicaSet) -> Option<String> {
        if assignment.shards.len() != self.shards.len() {
            return Some("another number of shards".to_string());
        }
        let mut taken = vec![ReplicaSet::EMPTY; self.subgroups.len()];
        for (place, assigned) in self.shards.iter().zip(&assignment.shards) {
            let (group, taken) = (place.group, &mut taken[place.subgroup]);
            let Assigned {
                members, senders, ..
            } = *assigned;
            if members.0 & !(present.0 & place.nodes.0) != 0 {
                return Some(format!("a member of {group} that may not be one"));
            }
            if !intersection(*taken, members).is_empty() {
                return Some(format!("a member of {group} is one of another shard"));
            }
            if senders.0 & !members.0 != 0 || senders.is_empty() != members.is_empty() {
                return Some(format!("a sender of {group} that is no member"));
            }
            taken.0 |= members.0;
        }
        None
    }
}

/// The place of a subgroup's shard with this number among all shards.
fn place_of(
    subgroups: &[Subgroup],
    shards: &[ShardPlace],
    name: &str,
    number: usize,
) -> Option<usize> {
    let of = |at: &usize| subgroups[shards[*at].subgroup].name == name;
    (0..shards.len()).filter(of).nth(number)
}

/// Gives subgroups that are unions their numbers of members, and checks that no node is in two of
/// their shards.
fn complete_unions(subgroups: &mut [Subgroup]) -> Result<(), String> {
    for at in 0..subgroups.len() {
        let (earlier, rest) = subgroups.split_at_mut(at);
        let of = &mut rest[0];
        let Place::Union(names) = &of.place else {
            continue;
        };
        let name = &of.name;
        let find = |part: &String| earlier.iter().find(|other| other.name == *part);
        let found: Vec<&Subgroup> = names.iter().filter_map(find).collect();
        let same = |it: &&Subgroup| {
            it.groups.len() == of.groups.len() && !matches!(it.place, Place::Union(_))
        };
        let twice = (1..names.len()).any(|at| names[..at].contains(&names[at]));
        if twice || found.len() != names.len() || found.len() < 2 || !found.iter().all(same) {
            return Err(format!(
                "'{name}' is a union of two or more earlier subgroups, which are none themselves and have \
                 as many shards as it has"
            ));
        }
        let candidates = |of: &Subgroup, shard: usize| match &of.place {
            Place::Among(nodes) => *nodes,
            Place::Pinned(pins) => pins.get(shard).copied().unwrap_or_default(),
            Place::Union(_) => ReplicaSet::EMPTY,
        };
        for (one, other) in (0..found.len()).flat_map(|at| (0..at).map(move |by| (by, at))) {
            let (one, other) = (found[one], found[other]);
            let shards = 0..of.groups.len();
            let mut pairs = shards
                .clone()
                .flat_map(|a| shards.clone().map(move |b| (a, b)));
            let meet = |(a, b): (usize, usize)| {
                a != b && !intersection(candidates(one, a), candidates(other, b)).is_empty()
            };
            if pairs.any(meet) {
                let (one, other) = (&one.name, &other.name);
                return Err(format!(
                    "a node could be in two shards of '{name}': '{one}' and '{other}' need nodes of their \
                     own, or pins in which a node has the same shard of both"
                ));
            }
        }
        let most = found
            .iter()
            .fold(0_usize, |all, it| all.saturating_add(it.max));
        if (of.min, of.max) == UNSAID {
            of.min = found.iter().map(|it| it.min).max().unwrap_or(1);
            of.max = most.min(128);
        } else if of.min > most || of.max < most.min(128) {
            // All members of its parts are its own, no fewer and no more.
            return Err(format!(
                "'{name}' has at most the {most} members of its parts: say max = {most} and a min up to \
                 that, or leave its members away"
            ));
        }
    }
    Ok(())
}

/// The members of a union that says nothing of them.
const UNSAID: (usize, usize) = (0, 0);

/// Numbers and ranges of them: `0,2,5-7`.
fn numbers(text: &str, most: u32) -> Result<Vec<u32>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let number = text.parse::<u32>().ok();
            number.filter(|number| *number < most)
        };
        let (Some(from), Some(to)) = (number(from), number(to)) else {
            return Err(format!(
                "'{part}' is no number below {most}, nor a range of them"
            ));
        };
        if all.len() + (to.saturating_sub(from) as usize) >= SHARDS_MAX {
            return Err(format!("'{text}' are more than {SHARDS_MAX}"));
        }
        all.extend(from..=to);
    }
    Ok(all)
}

fn nodes(text: &str) -> Result<ReplicaSet, String> {
    let numbers = numbers(text, 128)?.into_iter();
    Ok(numbers.map(|number| ReplicaId(number as u16)).collect())
}

impl FromStr for Subgroup {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default().to_string();
        if name.is_empty() || name.contains('=') {
            return Err(format!("'{}' begins without a name", text.trim()));
        }
        let (mut groups, mut place, mut members) = (Vec::new(), None, None);
        let (mut senders, mut durability) = (ReplicaSet::EMPTY, Durability::Disk);
        let mut senders_from = None;
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "groups" => {
                    groups = numbers(value, 65_536)?.into_iter().map(GroupId).collect();
                }
                "nodes" => place = Some(Place::Among(nodes(value)?)),
                "pin" => {
                    let pins = value.split('|').map(nodes);
                    place = Some(Place::Pinned(pins.collect::<Result<_, _>>()?));
                }
                "union" => {
                    let names = value.split(',').map(ToString::to_string);
                    place = Some(Place::Union(names.collect()));
                }
                "members" => {
                    let (min, max) = value.split_once("..").unwrap_or((value, value));
                    members = min.parse().ok().zip(max.parse().ok());
                    if members.is_none() {
                        return Err(format!("'{value}' is no range as 2..3"));
                    }
                }
                "senders" if value == "all" => senders = ReplicaSet::EMPTY,
                "senders" => senders = nodes(value)?,
                "senders_from" => senders_from = Some(value.to_string()),
                "durability" => durability = value.parse()?,
                _ => {
                    return Err(format!(
                        "'{word}' is none of groups=, nodes=, pin=, union=, members=, senders=, \
                         senders_from=, durability="
                    ));
                }
            }
        }
        let place = place.ok_or_else(|| format!("'{name}' has none of nodes=, pin=, union="))?;
        let pinned = match &place {
            Place::Among(_) => None,
            Place::Union(_) => Some(UNSAID),
            Place::Pinned(pins) => {
                let sizes = pins.iter().map(|nodes| nodes.len());
                Some((1, sizes.max().unwrap_or(1)))
            }
        };
        let (min, max) = members.or(pinned).unwrap_or((1, 3));
        Ok(Self {
            name,
            groups,
            place,
            min,
            max,
            senders,
            senders_from,
            durability,
        })
    }
}

impl FromStr for Layout {
    type Err = String;
    /// Subgroups separated by `;`; nothing for no groups besides the first.
    fn from_str(text: &str) -> Result<Self, String> {
        let subgroups = text.split(';').filter(|text| !text.trim().is_empty());
        Self::new(subgroups.map(str::parse).collect::<Result<_, _>>()?)
    }
}

fn list(f: &mut fmt::Formatter<'_>, numbers: impl Iterator<Item = u32>) -> fmt::Result {
    for (place, number) in numbers.enumerate() {
        let comma = if place == 0 { "" } else { "," };
        write!(f, "{comma}{number}")?;
    }
    Ok(())
}

impl fmt::Display for Layout {
    /// As it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = |set: ReplicaSet| set.iter().map(|id| u32::from(id.0)).collect::<Vec<_>>();
        for (place, of) in self.subgroups.iter().enumerate() {
            let between = if place == 0 { "" } else { ";" };
            write!(f, "{between}{} groups=", of.name)?;
            list(f, of.groups.iter().map(|group| group.0))?;
            match &of.place {
                Place::Among(nodes) => {
                    f.write_str(" nodes=")?;
                    list(f, ids(*nodes).into_iter())?;
                }
                Place::Pinned(pins) => {
                    f.write_str(" pin=")?;
                    for (place, nodes) in pins.iter().enumerate() {
                        f.write_str(if place == 0 { "" } else { "|" })?;
                        list(f, ids(*nodes).into_iter())?;
                    }
                }
                Place::Union(names) => write!(f, " union={}", names.join(","))?,
            }
            write!(f, " members={}..{}", of.min, of.max)?;
            if !of.senders.is_empty() {
                f.write_str(" senders=")?;
                list(f, ids(of.senders).into_iter())?;
            }
            if let Some(from) = &of.senders_from {
                write!(f, " senders_from={from}")?;
            }
            write!(f, " durability={}", of.durability.name())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(text: &str) -> Layout {
        text.parse().expect("a layout")
    }

    fn set(ids: &[u16]) -> ReplicaSet {
        ids.iter().copied().map(ReplicaId).collect()
    }

    fn present(ids: &[u16]) -> Vec<Candidate> {
        let candidates = ids.iter().map(|id| Candidate::new(ReplicaId(*id)));
        candidates.collect()
    }

    fn members(assignment: &Assignment) -> Vec<ReplicaSet> {
        let shards = assignment.shards.iter();
        shards.map(|assigned| assigned.members).collect()
    }

    #[test]
    fn layout_reads_back_as_it_is_shown() {
        for text in [
            "",
            "store groups=1,2 nodes=0,1,2,3,4 members=2..3 durability=disk",
            "a groups=7 pin=0,1 members=1..2 senders=1 durability=memory;b groups=1,2 pin=0|3,4 \
             members=1..2 durability=disk",
            "a groups=1,2 nodes=0,1,2 members=2..2 durability=disk;b groups=3,4 nodes=3,4 \
             members=1..3 durability=disk;c groups=5,6 union=a,b members=2..5 senders_from=a \
             durability=memory",
        ] {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let read = layout(&text);
            assert_eq!(read.to_string(), text);
            assert_eq!(layout(&read.to_string()), read);
        }
        let read = layout(" x  groups=3-5 nodes=0-6 ; ");
        assert_eq!((read.shards().len(), read.shard(GroupId(5))), (3, Some(2)));
        assert_eq!(read.check(7), Ok(()));
        assert!(read.check(6).is_err());
    }

    #[test]
    fn layouts_that_cannot_be_are_refused() {
        for text in [
            "groups=1 nodes=0",
            "x groups=0 nodes=0",
            "x groups=1,1 nodes=0",
            "x groups=1 nodes=0;x groups=2 nodes=0",
            "x groups=1 nodes=0;y groups=1 nodes=0",
            "x groups=1 nodes=128",
            "x groups=1-2000 nodes=0",
            "x nodes=0",
            "x groups=1",
            "x groups=1 nodes=0 members=2..3",
            "x groups=1 nodes=0-2 members=3..2",
            "x groups=1 nodes=0-2 members=0..2",
            "x groups=1,2 pin=0,1|1,2",
            "x groups=1,2 pin=0,1",
            "x groups=1 nodes=0 durability=paper",
            "x groups=1 nodes=0 colour=red",
            "x groups=5-2 nodes=0",
            "a groups=1 nodes=0;b groups=2 union=a,c",
            "a groups=1 nodes=0;b groups=2 union=a",
            "a groups=1 union=b,c;b groups=2 nodes=0;c groups=3 nodes=1",
            "a groups=1-2 nodes=0-3;b groups=3 nodes=4;c groups=5 union=a,b",
            "a groups=1-2 nodes=0-3;b groups=3-4 nodes=3-5;c groups=5-6 union=a,b",
            "a groups=1-2 pin=0|1;b groups=3-4 pin=1|2;c groups=5-6 union=a,b",
            "a groups=1 nodes=0;b groups=2 nodes=0 senders_from=c",
            "a groups=1 nodes=0;b groups=2 nodes=0 senders=0 senders_from=a",
            "a groups=1-2 nodes=0,1;b groups=3 nodes=0 senders_from=a",
        ] {
            assert!(text.parse::<Layout>().is_err(), "{text}");
        }
    }

    #[test]
    fn shards_are_filled_evenly_and_members_stay() {
        let layout = layout("x groups=1-2 nodes=0-4 members=2..3");
        let first = layout.assign(&Assignment::default(), &present(&[0, 1, 2, 3, 4]));
        assert_eq!(members(&first), [set(&[0, 2, 4]), set(&[1, 3])]);
        assert_eq!(first, layout.assign(&first, &present(&[0, 1, 2, 3, 4])));
        // 3 is gone: of the shard that has one more than it needs, one moves over.
        let second = layout.assign(&first, &present(&[0, 1, 2, 4]));
        assert_eq!(members(&second), [set(&[0, 2]), set(&[1, 4])]);
        let third = layout.assign(&second, &present(&[0, 1, 2]));
        assert_eq!(members(&third), [set(&[0, 2]), set(&[1])]);
        let missing: Vec<usize> = third.shards.iter().map(|shard| shard.missing).collect();
        assert_eq!(missing, [0, 1]);
    }

    #[test]
    fn holder_of_a_lost_shard_goes_back_to_it() {
        let layout = layout("x groups=1-2 nodes=0-3 members=2");
        let first = layout.assign(&Assignment::default(), &present(&[0, 1, 2, 3]));
        assert_eq!(members(&first), [set(&[0, 2]), set(&[1, 3])]);
        let both_gone = layout.assign(&first, &present(&[0, 2]));
        let mut back = present(&[0, 2]);
        back.push(Candidate {
            id: ReplicaId(3),
            holds: [1].into(),
            unfit: Vec::new(),
        });
        let back = layout.assign(&both_gone, &back);
        assert_eq!(members(&back), [set(&[0, 2]), set(&[3])]);
    }

    #[test]
    fn unfit_nodes_leave_their_places_to_others() {
        let mut nodes = present(&[0, 1, 2, 3]);
        nodes[0].unfit = [0].into();
        let after = |text, before: Option<&Assignment>, nodes: &[Candidate]| {
            let before = before.cloned().unwrap_or_default();
            let layout = layout(text);
            let assigned = layout.assign(&before, nodes);
            (members(&assigned), assigned)
        };
        let two = "x groups=1-2 nodes=0-3 members=1..2";
        let (all, before) = after(two, None, &present(&[0, 1, 2, 3]));
        assert_eq!(all, [set(&[0, 2]), set(&[1, 3])]);
        let (all, _) = after(two, Some(&before), &nodes);
        assert_eq!(all, [set(&[2]), set(&[1, 3])], "the other shard is full");
        let (all, _) = after(two, None, &nodes);
        assert_eq!(all, [set(&[1, 2]), set(&[0, 3])]);
        let (all, _) = after("x groups=1-2 pin=0,1|2,3", None, &nodes);
        assert_eq!(all, [set(&[1]), set(&[2, 3])]);
        nodes[0].unfit = [1].into();
        let (all, _) = after("x groups=1-2 nodes=0-3 members=2..2", None, &nodes[..3]);
        assert_eq!(all, [set(&[0, 2]), set(&[1])]);
        nodes[0].unfit = [2].into();
        let both = "a groups=1 pin=0;b groups=2 pin=1,2;c groups=3 union=a,b";
        let (all, _) = after(both, None, &nodes);
        assert_eq!(all[2], set(&[1, 2]), "of a union alone");
        // Of a shard with more than it needs one comes that can.
        let mut before = before;
        (before.shards[0].members, before.shards[1].members) = (set(&[2, 3]), set(&[]));
        nodes[3].unfit = [1].into();
        let (all, _) = after(two, Some(&before), &nodes[2..]);
        assert_eq!(all, [set(&[3]), set(&[2])]);
        nodes[2].unfit = [1].into();
        let (all, _) = after(two, Some(&before), &nodes[2..]);
        assert_eq!(all, [set(&[2, 3]), set(&[])]);
    }

    #[test]
    fn senders_are_members_and_all_of_them_where_none_is_named() {
        let layout = layout("x groups=1 nodes=0-3 members=1..4 senders=1,2");
        assert_eq!(layout.senders(0, &[set(&[0, 1])]), set(&[1]));
        assert_eq!(layout.senders(0, &[set(&[0, 3])]), set(&[0, 3]));
    }

    #[test]
    fn union_has_the_members_of_its_parts_and_their_senders() {
        let layout = layout(
            "a groups=1-2 nodes=0-3 members=1..2;b groups=3-4 nodes=4-6 members=2;\
             c groups=5-6 union=a,b senders_from=a",
        );
        let first = layout.assign(&Assignment::default(), &present(&[0, 1, 2, 3, 4, 5, 6]));
        let both =
            |shard: usize| ReplicaSet(members(&first)[shard].0 | members(&first)[shard + 2].0);
        assert_eq!(members(&first)[4..], [both(0), both(1)]);
        assert_eq!(first.shards[4].senders, first.shards[0].members);
        assert_eq!(layout.problem(&first, ReplicaSet::all(7)), None);
        let of = layout.subgroup(5);
        assert_eq!((of.min, of.max), (2, 4));
        // Of the second part's second shard one lacks; all of the first part are gone.
        let few = layout.assign(&first, &present(&[4, 5]));
        assert_eq!(members(&few)[4..], [members(&few)[2], members(&few)[3]]);
        assert_eq!(few.shards[4].senders, few.shards[4].members);
        let aligned = "a groups=1-2 pin=0,1|2;b groups=3-4 pin=1|2,3;c groups=5-6 union=a,b";
        assert!(aligned.parse::<Layout>().is_ok());
    }

    #[test]
    fn problems_of_an_assignment_are_named() {
        let layout = layout("x groups=1-2 nodes=0-3 members=1..2;y groups=3 nodes=0-3 members=1");
        let good = layout.assign(&Assignment::default(), &present(&[0, 1, 2, 3]));
        let all = ReplicaSet::all(4);
        assert_eq!(layout.problem(&good, all), None);
        assert!(
            layout.problem(&good, set(&[0, 1, 2])).is_some(),
            "not there"
        );
        let mut shared = good.clone();
        shared.shards[0].members.insert(ReplicaId(1));
        assert!(layout.problem(&shared, all).is_some(), "in two shards");
        let mut sender = good.clone();
        sender.shards[2].senders.insert(ReplicaId(3));
        assert!(layout.problem(&sender, all).is_some(), "no member");
        let mut short = good;
        short.shards.pop();
        assert!(layout.problem(&short, all).is_some(), "a shard is missing");
    }
}

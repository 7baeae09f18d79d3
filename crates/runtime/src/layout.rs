//! How the keys of a cluster are divided among groups, and which replicas each group has.
//!
//! ```text
//!   layout ──► subgroup "store": keys that begin with no other subgroup's prefix
//!                 shard store/0 = group 1: replicas 0 1 2     slots     0 ..  8,191
//!                 shard store/1 = group 2: replicas 1 2 3     slots 8,192 .. 16,383
//!              subgroup "cache": keys that begin with "cache:"
//!                 shard cache/0 = group 3: replicas 0 2 3
//! ```
//!
//! A shard is a group of its own: another log, another state, by the protocol and in the durability
//! of its subgroup. Group 0 has all replicas as its members and holds no keys. A key's slot is that
//! of Redis Cluster: CRC-16 of the key, or of what stands between its first `{` and the next `}`.
//!
//! A layout is fixed when a cluster begins. It is part of what the members must have in common.

use quintet_replica::{Durability, GROUPS_MAX, GroupId, ReplicaId, ReplicaSet, Voters};
use serde::Deserialize;
use std::{collections::BTreeMap, fmt::Write, path::PathBuf};

/// How many slots keys fall into.
pub const SLOTS: usize = 16_384;
/// The most shards of a layout.
pub const SHARDS_MAX: usize = 128;
const _: () = assert!(SHARDS_MAX < GROUPS_MAX as usize && SHARDS_MAX <= SLOTS);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// In the order in which their shards are numbered.
    pub subgroups: Vec<Subgroup>,
}

/// Shards of one kind, which divide keys among themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subgroup {
    /// Its name; its shards are called NAME/0, NAME/1, ….
    pub name: String,
    /// It has the keys that begin with this; the longest prefix counts.
    pub prefix: String,
    /// The service that its shards run, by name; without one they have keys of the Redis store.
    pub service: Option<String>,
    /// The subgroups that its shards hand calls off to.
    pub hands_off_to: Vec<String>,
    /// The subgroups whose shards queries of its shards read, each the one with its own number.
    pub reads: Vec<String>,
    /// The members of each shard, ascending; the candidates where members follow the view.
    pub shards: Vec<Vec<ReplicaId>>,
    /// The cluster's protocol serves these shards, too, and its views say which members they have.
    pub view: Option<Range>,
    /// The subgroups whose shards' members those of the same shard are here.
    pub union_of: Vec<String>,
    /// The members that send, where members follow the view.
    pub senders: Senders,
    /// The protocol of its shards.
    pub protocol: String,
    /// The protocol's options.
    pub options: Vec<(String, String)>,
    /// The promise of an acknowledgement.
    pub durability: Durability,
}

/// Which members of a shard send; all of them where none of those named is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Senders {
    /// All of them.
    #[default]
    All,
    /// Those of these replicas.
    Named(Vec<ReplicaId>),
    /// Those of the same shard of this subgroup.
    Of(String),
}

/// One shard of a layout.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'a> {
    /// Its group: 1, 2, … in the order of the layout.
    pub group: GroupId,
    /// The subgroup that it is a shard of.
    pub subgroup: &'a Subgroup,
    /// Its number there, from 0.
    pub number: usize,
}

impl Shard<'_> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.subgroup.name, self.number)
    }

    /// Its members.
    #[must_use]
    pub fn members(&self) -> ReplicaSet {
        self.subgroup.shards[self.number].iter().copied().collect()
    }

    /// Its members as voters of its protocol.
    #[must_use]
    pub fn voters(&self) -> Voters {
        Voters::of(self.members())
    }
}

/// A layout as its author writes it: [`Self::layout`] completes it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutFile {
    /// Where it was read from.
    #[serde(skip)]
    pub path: PathBuf,
    /// The subgroups.
    #[serde(default)]
    pub subgroup: Vec<SubgroupFile>,
}

/// A subgroup as its author writes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubgroupFile {
    /// As [`Subgroup::name`].
    pub name: String,
    /// As [`Subgroup::prefix`].
    #[serde(default)]
    pub prefix: String,
    /// As [`Subgroup::service`].
    pub service: Option<String>,
    /// As [`Subgroup::hands_off_to`].
    #[serde(default)]
    pub hands_off_to: Vec<String>,
    /// As [`Subgroup::reads`].
    #[serde(default)]
    pub reads: Vec<String>,
    /// How many shards; as many as `pin` has, or else one.
    pub shards: Option<usize>,
    /// How many members each shard has: three, or all replicas where there are fewer. With a minimum
    /// and a maximum the members follow the views of the cluster's protocol.
    pub members: Option<MembersFile>,
    /// The replicas that shards are spread over, in turn; all unless it says otherwise.
    pub nodes: Option<Vec<u16>>,
    /// The members of each shard, one list per shard, instead of `members` and `nodes`. Beside a
    /// minimum and a maximum: the replicas that may be members of it.
    pub pin: Option<Vec<Vec<u16>>>,
    /// As [`Subgroup::union_of`], instead of `shards` and the three above.
    #[serde(default)]
    pub union_of: Vec<String>,
    /// The members that send: "all", or a list of replicas.
    pub senders: Option<SendersFile>,
    /// The subgroup whose members send, instead of `senders`.
    pub senders_from: Option<String>,
    /// The protocol; the cluster's unless it says otherwise.
    pub protocol: Option<String>,
    /// The protocol's options.
    #[serde(default)]
    pub options: BTreeMap<String, serde_json::Value>,
    /// `disk` or `memory`; the cluster's unless it says otherwise.
    pub durability: Option<String>,
}

/// A number of members as its author writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum MembersFile {
    /// Exactly this number, which do not change.
    Fixed(usize),
    /// As the view has them.
    Viewed(Range),
}

/// Senders as their author writes them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum SendersFile {
    /// All members, by the word "all".
    All(String),
    /// These replicas.
    Named(Vec<u16>),
}

/// The members of a shard that follow the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// With fewer it orders nothing.
    pub min: usize,
    /// It gets no more.
    pub max: usize,
}

/// The values of a cluster that a layout falls back on.
#[derive(Clone, Copy, Debug)]
pub struct Defaults<'a> {
    /// How many replicas there are.
    pub replicas: usize,
    /// The cluster's protocol.
    pub protocol: &'a str,
    /// Its options.
    pub options: &'a [(String, String)],
    /// The cluster's durability.
    pub durability: Durability,
}

impl LayoutFile {
    /// The layout for a cluster.
    ///
    /// # Errors
    /// The fault, with the accepted values.
    pub fn layout(&self, cluster: &Defaults<'_>) -> Result<Layout, String> {
        let mut subgroups = Vec::new();
        for file in &self.subgroup {
            let subgroup = file.subgroup(&subgroups, cluster)?;
            subgroups.push(subgroup);
        }
        let layout = Layout { subgroups };
        layout.check(cluster.replicas)?;
        let of_view: Result<quintet_replica::Layout, _> = layout.of_the_view().parse();
        of_view?;
        Ok(layout)
    }
}

impl SubgroupFile {
    fn subgroup(&self, earlier: &[Subgroup], cluster: &Defaults<'_>) -> Result<Subgroup, String> {
        let durability = match &self.durability {
            Some(name) => name.parse().map_err(|_| {
                let of = &self.name;
                format!("subgroup '{of}': durability '{name}' is none; accepted are disk, memory")
            })?,
            None => cluster.durability,
        };
        let text = |value: &serde_json::Value| match value {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let own = self.options.iter();
        let own: Vec<_> = own
            .map(|(name, value)| (name.clone(), text(value)))
            .collect();
        let (protocol, options) = match &self.protocol {
            Some(protocol) => (protocol.clone(), own),
            None if own.is_empty() => {
                let options = cluster.options.iter();
                let own = options.filter(|(name, _)| name != "layout");
                (cluster.protocol.to_owned(), own.cloned().collect())
            }
            None => (cluster.protocol.to_owned(), own),
        };
        Ok(Subgroup {
            name: self.name.clone(),
            prefix: self.prefix.clone(),
            service: self.service.clone(),
            hands_off_to: self.hands_off_to.clone(),
            reads: self.reads.clone(),
            shards: match self.union_of.is_empty() {
                true => self.members_of_shards(cluster.replicas)?,
                false => self.members_of_union(earlier)?,
            },
            view: match self.members {
                Some(MembersFile::Viewed(range)) => Some(range),
                _ if self.union_of.is_empty() => None,
                _ => Some(self.range_of_union(earlier)),
            },
            senders: self.senders(earlier)?,
            union_of: self.union_of.clone(),
            protocol,
            options,
            durability,
        })
    }

    fn senders(&self, earlier: &[Subgroup]) -> Result<Senders, String> {
        let name = &self.name;
        let ids = |ids: &[u16]| ids.iter().copied().map(ReplicaId).collect();
        let senders = match (&self.senders, &self.senders_from) {
            (Some(_), Some(_)) => Err("leave one of 'senders' and 'senders_from' away".to_owned()),
            (_, Some(of)) if earlier.iter().any(|it| it.name == *of) => Ok(Senders::Of(of.clone())),
            (_, Some(of)) => Err(format!(
                "senders_from names '{of}', which is no earlier subgroup"
            )),
            (None, None) => return Ok(Senders::All),
            (Some(SendersFile::All(all)), _) if all == "all" => return Ok(Senders::All),
            (Some(SendersFile::Named(named)), _) if !named.is_empty() => {
                Ok(Senders::Named(ids(named)))
            }
            _ => Err("senders: accepted are \"all\" and a list of replicas".to_owned()),
        };
        let viewed = matches!(self.members, Some(MembersFile::Viewed(_)));
        let senders = match viewed || !self.union_of.is_empty() {
            true => senders,
            false => Err(
                "senders are chosen where members follow the view: write members = { min \
                          = 1, max = 2 }"
                    .to_owned(),
            ),
        };
        senders.map_err(|why| format!("subgroup '{name}': {why}"))
    }

    /// Whether the shards of these replicas can have such members: no replica is in two of them.
    fn check_pins(&self, pinned: &[Vec<ReplicaId>], range: Range) -> Result<(), String> {
        let (name, Range { min, max }) = (&self.name, range);
        let mut taken = ReplicaSet::EMPTY;
        for (number, ids) in pinned.iter().enumerate() {
            if min == 0 || min > max || ids.len() < min {
                return Err(format!(
                    "shard {name}/{number}: members = {{ min = {min}, max = {max} }} among the {} \
                     replicas of its 'pin'; accepted are 1 <= min <= max, and min replicas at least",
                    ids.len()
                ));
            }
            if let Some(id) = ids.iter().find(|id| !taken.insert(**id)) {
                return Err(format!(
                    "shard {name}/{number}: 'pin' has replica {} twice; where members follow the \
                     view, no replica is in two shards of a subgroup",
                    id.0
                ));
            }
        }
        Ok(())
    }

    /// The subgroups that this is a union of.
    fn parts<'a>(&self, earlier: &'a [Subgroup]) -> impl Iterator<Item = &'a Subgroup> {
        let names = self.union_of.clone();
        earlier.iter().filter(move |it| names.contains(&it.name))
    }

    fn members_of_union(&self, earlier: &[Subgroup]) -> Result<Vec<Vec<ReplicaId>>, String> {
        let name = &self.name;
        let fixed = matches!(self.members, Some(MembersFile::Fixed(_)));
        if self.pin.is_some() || self.nodes.is_some() || self.shards.is_some() || fixed {
            return Err(format!(
                "subgroup '{name}': a union has the shards and members of its parts; leave 'shards', \
                 'nodes' and 'pin' away"
            ));
        }
        for part in &self.union_of {
            let found = earlier.iter().find(|it| it.name == *part);
            if found.is_none_or(|it| it.view.is_none()) {
                return Err(format!(
                    "subgroup '{name}': union_of names '{part}', which is no earlier subgroup with \
                     members = {{ min = …, max = … }}"
                ));
            }
        }
        let shards = self.parts(earlier).map(|it| it.shards.len()).min();
        let of = |shard: usize| {
            let all = self.parts(earlier).flat_map(|it| &it.shards[shard]);
            let all: ReplicaSet = all.copied().collect();
            all.iter().collect()
        };
        Ok((0..shards.unwrap_or(0)).map(of).collect())
    }

    /// A union keeps as many copies as the part that keeps most.
    fn range_of_union(&self, earlier: &[Subgroup]) -> Range {
        let ranges = || self.parts(earlier).filter_map(|it| it.view);
        Range {
            min: ranges().map(|it| it.min).max().unwrap_or(1),
            max: ranges()
                .fold(0_usize, |all, it| all.saturating_add(it.max))
                .min(SHARDS_MAX),
        }
    }

    fn members_of_shards(&self, replicas: usize) -> Result<Vec<Vec<ReplicaId>>, String> {
        let name = &self.name;
        let ids = |ids: &[u16]| {
            let mut ids: Vec<_> = ids.iter().copied().map(ReplicaId).collect();
            ids.sort_unstable();
            ids
        };
        if let Some(pin) = &self.pin {
            if self.nodes.is_some() || matches!(self.members, Some(MembersFile::Fixed(_))) {
                return Err(format!(
                    "subgroup '{name}': 'pin' names the members of each shard; leave 'nodes' away, \
                     and 'members' unless it is {{ min = …, max = … }}"
                ));
            }
            if self.shards.is_some_and(|shards| shards != pin.len()) {
                let (said, pinned) = (self.shards.unwrap_or_default(), pin.len());
                return Err(format!(
                    "subgroup '{name}': 'pin' has {pinned} lists of members for {said} shards"
                ));
            }
            let pinned: Vec<_> = pin.iter().map(|members| ids(members)).collect();
            if let Some(MembersFile::Viewed(range)) = self.members {
                self.check_pins(&pinned, range)?;
            }
            return Ok(pinned);
        }
        let all = || (0..replicas as u16).collect();
        let nodes: Vec<u16> = self.nodes.clone().unwrap_or_else(all);
        let shards = self.shards.unwrap_or(1);
        let members = match self.members {
            Some(MembersFile::Fixed(members)) => members,
            None => nodes.len().min(3),
            Some(MembersFile::Viewed(Range { min, max })) => {
                // No replica is in two of them.
                let least = min.saturating_mul(shards);
                if min == 0 || min > max || shards > SHARDS_MAX || least > nodes.len() {
                    return Err(format!(
                        "subgroup '{name}': members = {{ min = {min}, max = {max} }} of {shards} shards \
                         among {} replicas; accepted are 1 <= min <= max, and min replicas for each \
                         shard at least",
                        nodes.len()
                    ));
                }
                return Ok(vec![ids(&nodes); shards]);
            }
        };
        if members == 0 || members > nodes.len() {
            return Err(format!(
                "subgroup '{name}': a shard of {members} members among {} replicas is none; \
                 accepted are 1 to {}",
                nodes.len(),
                nodes.len()
            ));
        }
        if shards > SHARDS_MAX {
            return Err(format!(
                "subgroup '{name}': at most {SHARDS_MAX} shards are accepted"
            ));
        }
        let of = |shard: usize| {
            let places = shard * members..(shard + 1) * members;
            let chosen: Vec<_> = places.map(|place| nodes[place % nodes.len()]).collect();
            ids(&chosen)
        };
        Ok((0..shards).map(of).collect())
    }
}

/// The shard of a service that has this key, of `shards` ones: CRC-32C modulo their number, the same
/// in every language.
///
/// # Panics
/// When there are none.
#[must_use]
pub fn shard_of(key: &[u8], shards: usize) -> usize {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, key);
    (crc % shards as u64) as usize
}

/// The slot of a key.
#[must_use]
pub fn slot(key: &[u8]) -> usize {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        Some(&rest[..close]).filter(|tag| !tag.is_empty())
    });
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc16Xmodem, tag.unwrap_or(key));
    crc as usize % SLOTS
}

impl Layout {
    /// All shards, in the order of their groups.
    pub fn shards(&self) -> impl Iterator<Item = Shard<'_>> {
        let all = self.subgroups.iter().flat_map(|subgroup| {
            let numbers = 0..subgroup.shards.len();
            numbers.map(move |number| (subgroup, number))
        });
        let groups = (1..).map(GroupId);
        all.zip(groups).map(|((subgroup, number), group)| Shard {
            group,
            subgroup,
            number,
        })
    }

    /// The most shards that one replica can be a member of at a time: it is in one shard at most of a
    /// subgroup whose members follow the view.
    #[must_use]
    pub fn shards_of_a_member_max(&self) -> usize {
        let of = |id: ReplicaId| {
            let shards = self.subgroups.iter().map(|subgroup| {
                let has = subgroup
                    .shards
                    .iter()
                    .filter(|ids| ids.contains(&id))
                    .count();
                if subgroup.view.is_some() {
                    has.min(1)
                } else {
                    has
                }
            });
            shards.sum()
        };
        let all = self
            .subgroups
            .iter()
            .flat_map(|it| it.shards.iter().flatten());
        all.map(|id| of(*id)).max().unwrap_or(1).max(1)
    }

    /// The shards whose members follow the view, as the protocol's option `layout` has them.
    #[must_use]
    pub fn of_the_view(&self) -> String {
        let mut parts = Vec::new();
        for (nth, subgroup) in self.subgroups.iter().enumerate() {
            let Some(Range { min, max }) = subgroup.view else {
                continue;
            };
            let before: usize = self.subgroups[..nth].iter().map(|it| it.shards.len()).sum();
            let (first, last) = (before + 1, before + subgroup.shards.len());
            let list = |ids: &[ReplicaId]| {
                let ids: Vec<_> = ids.iter().map(|id| id.0.to_string()).collect();
                ids.join(",")
            };
            let nodes = &subgroup.shards[0];
            let place = if !subgroup.union_of.is_empty() {
                format!("union={}", subgroup.union_of.join(","))
            } else if subgroup.shards.iter().all(|ids| ids == nodes) {
                format!("nodes={}", list(nodes))
            } else {
                let pins: Vec<_> = subgroup.shards.iter().map(|ids| list(ids)).collect();
                format!("pin={}", pins.join("|"))
            };
            let senders = match &subgroup.senders {
                Senders::All => String::new(),
                Senders::Named(ids) => format!(" senders={}", list(ids)),
                Senders::Of(other) => format!(" senders_from={other}"),
            };
            parts.push(format!(
                "{} groups={first}-{last} {place} members={min}..{max}{senders} durability={}",
                subgroup.name,
                subgroup.durability.name()
            ));
        }
        parts.join(" ; ")
    }

    /// Whether it is sound for a cluster of this size.
    ///
    /// # Errors
    /// The fault, with the accepted values.
    pub fn check(&self, replicas: usize) -> Result<(), String> {
        if self.subgroups.is_empty() {
            return Err("it has no subgroup; write at least one [[subgroup]]".to_owned());
        }
        let shards = self
            .subgroups
            .iter()
            .map(|it| it.shards.len())
            .sum::<usize>();
        if shards > SHARDS_MAX {
            return Err(format!(
                "it has {shards} shards; at most {SHARDS_MAX} are accepted"
            ));
        }
        for (nth, subgroup) in self.subgroups.iter().enumerate() {
            let earlier = &self.subgroups[..nth];
            subgroup.check(replicas)?;
            let name = &subgroup.name;
            if earlier.iter().any(|it| it.name == *name) {
                return Err(format!("two subgroups are called '{name}'"));
            }
            if subgroup.service.is_some() {
                if !subgroup.prefix.is_empty() {
                    return Err(format!(
                        "subgroup '{name}': the caller of a service names the shard: leave 'prefix' \
                         away"
                    ));
                }
                continue;
            }
            let mut earlier = earlier.iter().filter(|it| it.service.is_none());
            if let Some(other) = earlier.find(|it| it.prefix == subgroup.prefix) {
                let (prefix, other) = (&subgroup.prefix, &other.name);
                return Err(format!(
                    "subgroups '{other}' and '{name}' have the same prefix '{prefix}': give one of \
                     them another"
                ));
            }
        }
        self.check_hand_offs()?;
        self.check_reads()?;
        let mut of_keys = self.subgroups.iter().filter(|it| it.service.is_none());
        let (first, has_rest) = (of_keys.next(), of_keys.any(|it| it.prefix.is_empty()));
        if first.is_some_and(|first| !first.prefix.is_empty() && !has_rest) {
            return Err(
                "every subgroup has a prefix, so that keys with another one belong nowhere: leave \
                 the prefix of one of them away"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// Hand-offs lead to services, and never back: two full outboxes could refuse each other.
    fn check_hand_offs(&self) -> Result<(), String> {
        let find = |name: &String| self.subgroups.iter().find(|it| it.name == *name);
        for subgroup in &self.subgroups {
            let name = &subgroup.name;
            let mut ahead: Vec<&String> = subgroup.hands_off_to.iter().collect();
            if subgroup.service.is_none() && !ahead.is_empty() {
                return Err(format!("subgroup '{name}': only services hand calls off"));
            }
            let mut seen = Vec::new();
            while let Some(next) = ahead.pop() {
                let Some(to) = find(next).filter(|to| to.service.is_some()) else {
                    return Err(format!(
                        "subgroup '{name}': hands_off_to names '{next}', which is no subgroup with a \
                         service"
                    ));
                };
                if next == name {
                    return Err(format!(
                        "subgroup '{name}': its hand-offs lead back to itself; accepted are hand-offs \
                         without cycles"
                    ));
                }
                if !seen.contains(&next) {
                    seen.push(next);
                    ahead.extend(&to.hands_off_to);
                }
            }
        }
        Ok(())
    }

    /// Queries read the shard with the same number of another service, at the member that answers: one
    /// of them, and of the other, at least.
    fn check_reads(&self) -> Result<(), String> {
        for subgroup in &self.subgroups {
            let name = &subgroup.name;
            for next in &subgroup.reads {
                let read = self.subgroups.iter().find(|it| it.name == *next);
                let Some(read) = read.filter(|it| it.service.is_some() && *next != *name) else {
                    return Err(format!(
                        "subgroup '{name}': reads names '{next}', which is no other subgroup with a \
                         service"
                    ));
                };
                if subgroup.service.is_none() || read.shards.len() != subgroup.shards.len() {
                    return Err(format!(
                        "subgroup '{name}': it has a service, and as many shards as '{next}', which it \
                         reads"
                    ));
                }
                let pairs = subgroup.shards.iter().zip(&read.shards).zip(0..);
                for ((members, others), number) in pairs {
                    if !members.iter().any(|id| others.contains(id)) {
                        return Err(format!(
                            "shard {name}/{number} has no member that is one of {next}/{number}, \
                             which it reads"
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// All of it in one line, as members compare it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for shard in self.shards() {
            let of = shard.subgroup;
            let members: Vec<_> = shard.members().iter().map(|id| id.0.to_string()).collect();
            let (name, members) = (shard.name(), members.join(","));
            let (protocol, durability) = (&of.protocol, of.durability.name());
            // Nothing fails to write to a string.
            let _ = write!(text, "{name}={members}:{protocol}:{durability}");
            for (option, value) in &of.options {
                let _ = write!(text, ":{option}={value}");
            }
            if let Some(Range { min, max }) = of.view {
                let _ = write!(text, ":{min}..{max}");
            }
            if !of.union_of.is_empty() {
                let _ = write!(text, ":union={}", of.union_of.join("+"));
            }
            match &of.senders {
                Senders::All => {}
                Senders::Named(ids) => {
                    let ids: Vec<_> = ids.iter().map(|id| id.0.to_string()).collect();
                    let _ = write!(text, ":senders={}", ids.join(","));
                }
                Senders::Of(other) => {
                    let _ = write!(text, ":senders={other}");
                }
            }
            if let Some(service) = &of.service {
                let _ = write!(text, ":service={service}");
            }
            for to in &of.hands_off_to {
                let _ = write!(text, ":to={to}");
            }
            for read in &of.reads {
                let _ = write!(text, ":reads={read}");
            }
            let _ = write!(text, ":{};", of.prefix);
        }
        text
    }
}

impl Subgroup {
    fn check(&self, replicas: usize) -> Result<(), String> {
        let name = &self.name;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
            return Err(format!(
                "subgroup '{name}': a name has 1 to 64 letters, digits, '-', '_' or '.'"
            ));
        }
        if self.shards.is_empty() {
            return Err(format!("subgroup '{name}' has no shards"));
        }
        for (number, members) in self.shards.iter().enumerate() {
            if let Some(id) = members.iter().find(|id| id.index() >= replicas) {
                return Err(format!(
                    "shard {name}/{number}: there is no replica {}; the cluster has 0 to {}",
                    id.0,
                    replicas - 1
                ));
            }
            if members.is_empty() {
                return Err(format!("shard {name}/{number} has no members"));
            }
            if members.windows(2).any(|two| two[0] >= two[1]) {
                return Err(format!("shard {name}/{number} names a replica twice"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subgroup(name: &str, prefix: &str, shards: &[&[u16]]) -> Subgroup {
        let members = |ids: &&[u16]| ids.iter().copied().map(ReplicaId).collect();
        Subgroup {
            name: name.to_owned(),
            prefix: prefix.to_owned(),
            service: None,
            hands_off_to: Vec::new(),
            reads: Vec::new(),
            shards: shards.iter().map(members).collect(),
            view: None,
            union_of: Vec::new(),
            senders: Senders::All,
            protocol: "multipaxos".to_owned(),
            options: Vec::new(),
            durability: Durability::Disk,
        }
    }

    #[test]
    fn slots_are_those_of_redis_cluster() {
        // As CLUSTER KEYSLOT of Redis 7 answers them.
        for (key, expected) in [
            ("", 0),
            ("foo", 12_182),
            ("somekey", 11_058),
            ("foo{hash_tag}", 2_515),
            ("bar{hash_tag}", 2_515),
            ("123456789", 12_739),
        ] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(slot(b"{user}.a"), slot(b"user"));
        assert_ne!(slot(b"{}a"), slot(b"{}b"), "an empty tag is none");
    }

    #[test]
    fn unsound_layout_is_refused_with_the_reason() {
        let layout = |subgroups: &[Subgroup]| Layout {
            subgroups: subgroups.to_vec(),
        };
        let good = layout(&[
            subgroup("store", "", &[&[0, 1], &[1, 2]]),
            subgroup("cache", "cache:", &[&[2]]),
        ]);
        assert_eq!(good.check(3), Ok(()));
        let groups: Vec<_> = good.shards().map(|it| (it.group.0, it.name())).collect();
        let expected = [(1, "store/0"), (2, "store/1"), (3, "cache/0")];
        assert_eq!(
            groups,
            expected.map(|(group, name)| (group, name.to_owned()))
        );
        for (bad, why) in [
            (vec![], "no subgroup"),
            (vec![subgroup("", "", &[&[0]])], "a name has"),
            (vec![subgroup("a b", "", &[&[0]])], "a name has"),
            (vec![subgroup("a", "", &[])], "no shards"),
            (vec![subgroup("a", "", &[&[]])], "no members"),
            (vec![subgroup("a", "", &[&[3]])], "no replica 3"),
            (vec![subgroup("a", "", &[&[1, 1]])], "twice"),
            (vec![subgroup("a", "x", &[&[0]])], "belong nowhere"),
            (
                vec![subgroup("a", "", &[&[0]]), subgroup("a", "x", &[&[0]])],
                "two subgroups",
            ),
            (
                vec![subgroup("a", "", &[&[0]]), subgroup("b", "", &[&[0]])],
                "same prefix",
            ),
            (
                vec![subgroup("a", "", &[&[0][..]; SHARDS_MAX + 1])],
                "at most",
            ),
        ] {
            let refused = layout(&bad).check(3).expect_err(why);
            assert!(refused.contains(why), "{refused}");
        }
    }

    fn read(file: &str) -> Result<Layout, String> {
        let file: LayoutFile = serde_json::from_str(file).map_err(|error| error.to_string())?;
        file.layout(&Defaults {
            replicas: 5,
            protocol: "nezha",
            options: &[],
            durability: Durability::Memory,
        })
    }

    #[test]
    fn file_is_completed_by_the_cluster() {
        let spread = read(r#"{"subgroup": [{"name": "a", "shards": 5}]}"#).expect("sound");
        let of = &spread.subgroups[0];
        let members: Vec<Vec<u16>> = of
            .shards
            .iter()
            .map(|it| it.iter().map(|id| id.0).collect())
            .collect();
        let expected: [&[u16]; 5] = [&[0, 1, 2], &[0, 3, 4], &[1, 2, 3], &[0, 1, 4], &[2, 3, 4]];
        assert_eq!(members, expected);
        assert_eq!(spread.shards_of_a_member_max(), 3);
        assert_eq!(
            (&of.protocol[..], of.durability),
            ("nezha", Durability::Memory)
        );
        let pinned = r#"{"subgroup": [{"name": "a", "pin": [[2, 0]], "protocol": "racs",
            "durability": "disk", "options": {"x": 1, "y": "z"}}]}"#;
        let pinned = read(pinned).expect("sound");
        assert_eq!(pinned.text(), "a/0=0,2:racs:disk:x=1:y=z:;");
    }

    #[test]
    fn shards_of_the_view_are_told_to_the_clusters_protocol() {
        let layout = r#"{"subgroup": [{"name": "a", "members": 2},
            {"name": "b", "prefix": "b", "shards": 2, "members": {"min": 1, "max": 2},
             "nodes": [4, 1, 2], "durability": "disk"},
            {"name": "c", "prefix": "c", "members": {"min": 2, "max": 3}}]}"#;
        let layout = read(layout).expect("sound");
        let told = "b groups=2-3 nodes=1,2,4 members=1..2 durability=disk ; \
                    c groups=4-4 nodes=0,1,2,3,4 members=2..3 durability=memory";
        assert_eq!(layout.of_the_view(), told);
        let parsed: quintet_replica::Layout = told.parse().expect("the protocol's form");
        assert_eq!(parsed.shards().len(), 3);
    }

    #[test]
    fn pinned_shards_follow_the_view_among_their_own() {
        let read = |members: &str| {
            let members = format!(
                r#"{{"subgroup": [{{"name": "a", "pin": [[3, 0], [2, 1]], "members": {members}}}]}}"#
            );
            read(&members).expect("sound")
        };
        let layout = read(r#"{"min": 1, "max": 2}"#);
        let told = "a groups=1-2 pin=0,3|1,2 members=1..2 durability=memory";
        assert_eq!(layout.of_the_view(), told);
        assert!(told.parse::<quintet_replica::Layout>().is_ok());
        assert_eq!(
            layout.shards().map(|it| it.members().len()).sum::<usize>(),
            4
        );
        assert_eq!(layout.shards_of_a_member_max(), 1);
    }

    const PARTS: &str = r#"{"name": "a", "shards": 2, "members": {"min": 1, "max": 2},
            "nodes": [0, 1], "senders": [1]},
        {"name": "b", "prefix": "b", "shards": 2, "members": {"min": 1, "max": 1},
            "nodes": [2, 3], "senders": "all"}"#;

    #[test]
    fn unions_and_senders_are_told_to_the_clusters_protocol() {
        let union = r#"{"name": "c", "prefix": "c", "union_of": ["a", "b"], "senders_from": "b"}"#;
        let layout = read(&format!(r#"{{"subgroup": [{PARTS}, {union}]}}"#)).expect("sound");
        let told = "a groups=1-2 nodes=0,1 members=1..2 senders=1 durability=memory ; \
                    b groups=3-4 nodes=2,3 members=1..1 durability=memory ; \
                    c groups=5-6 union=a,b members=1..3 senders_from=b durability=memory";
        assert_eq!(layout.of_the_view(), told);
        assert_eq!(layout.subgroups[2].shards[1].len(), 4);
        for (bad, why) in [
            (r#""union_of": ["a", "x"]"#, "names 'x'"),
            (r#""union_of": ["a"]"#, "two or more"),
            (r#""union_of": ["a", "a"]"#, "two or more"),
            (
                r#""union_of": ["a", "b"], "members": {"min": 1, "max": 2}"#,
                "say max = 3",
            ),
            (
                r#""union_of": ["a", "b"], "members": {"min": 4, "max": 4}"#,
                "say max = 3",
            ),
            (
                r#""union_of": ["a", "b"], "senders_from": "a ; x""#,
                "no earlier subgroup",
            ),
            (r#""union_of": ["a", "b"], "shards": 2"#, "leave 'shards'"),
            (
                r#""members": {"min": 1, "max": 2}, "senders": "some""#,
                "accepted are",
            ),
            (
                r#""members": {"min": 1, "max": 2}, "senders": []"#,
                "accepted are",
            ),
            (r#""members": 2, "senders": [1]"#, "follow the view"),
            (
                r#""members": {"min": 1, "max": 2}, "senders": [1], "senders_from": "a""#,
                "leave one of",
            ),
            (
                r#""members": {"min": 1, "max": 2}, "senders_from": "a""#,
                "as many shards",
            ),
        ] {
            let bad = format!(r#"{{"name": "c", "prefix": "c", {bad}}}"#);
            let refused = read(&format!(r#"{{"subgroup": [{PARTS}, {bad}]}}"#)).expect_err(why);
            assert!(refused.contains(why), "{refused}");
        }
        let other = PARTS.replace("[2, 3]", "[1, 2]");
        let refused = read(&format!(r#"{{"subgroup": [{other}, {union}]}}"#));
        let refused = refused.expect_err("a node in two shards");
        assert!(refused.contains("in two shards of 'c'"), "{refused}");
    }

    #[test]
    fn file_with_a_fault_is_refused_with_the_reason() {
        for (bad, why) in [
            (
                r#"{"name": "a", "pin": [[0]], "members": 2}"#,
                "leave 'nodes' away",
            ),
            (
                r#"{"name": "a", "pin": [[0]], "nodes": [0], "members": {"min": 1, "max": 1}}"#,
                "leave 'nodes' away",
            ),
            (
                r#"{"name": "a", "pin": [[0, 1], [2]], "members": {"min": 2, "max": 2}}"#,
                "shard a/1: members",
            ),
            (
                r#"{"name": "a", "pin": [[0, 1], [1]], "members": {"min": 1, "max": 2}}"#,
                "replica 1 twice",
            ),
            (r#"{"name": "a", "pin": [[0]], "shards": 2}"#, "1 lists"),
            (r#"{"name": "a", "members": 6}"#, "1 to 5"),
            (r#"{"name": "a", "members": 0}"#, "1 to 5"),
            (r#"{"name": "a", "nodes": [1, 2], "members": 3}"#, "1 to 2"),
            (r#"{"name": "a", "nodes": [1, 9]}"#, "no replica 9"),
            (r#"{"name": "a", "nodes": [1, 1]}"#, "twice"),
            (r#"{"name": "a", "shards": 0}"#, "no shards"),
            (
                r#"{"name": "a", "shards": 18446744073709551615}"#,
                "at most",
            ),
            (
                r#"{"name": "a", "durability": "tape"}"#,
                "accepted are disk, memory",
            ),
            (r#"{"name": "a", "color": "red"}"#, "color"),
        ] {
            let refused = read(&format!(r#"{{"subgroup": [{bad}]}}"#)).expect_err(why);
            assert!(refused.contains(why), "{refused}");
        }
        assert!(read("{}").expect_err("empty").contains("no subgroup"));
    }

    #[test]
    fn text_of_a_layout_tells_every_difference() {
        let base = Layout {
            subgroups: vec![subgroup("store", "", &[&[0, 1], &[1, 2]])],
        };
        let mut texts = vec![base.text()];
        let mut with = |change: &dyn Fn(&mut Subgroup)| {
            let mut layout = base.clone();
            change(&mut layout.subgroups[0]);
            texts.push(layout.text());
        };
        with(&|it| it.name = "other".to_owned());
        with(&|it| it.prefix = "x".to_owned());
        with(&|it| it.shards.swap(0, 1));
        with(&|it| it.protocol = "racs".to_owned());
        with(&|it| it.durability = Durability::Memory);
        with(&|it| it.senders = Senders::Named(vec![ReplicaId(0)]));
        with(&|it| it.senders = Senders::Of("other".to_owned()));
        with(&|it| it.union_of.push("other".to_owned()));
        with(&|it| it.options.push(("a".to_owned(), "1".to_owned())));
        let distinct: std::collections::BTreeSet<_> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len(), "{texts:?}");
    }
}

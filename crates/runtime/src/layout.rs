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
use std::fmt::Write;

/// How many slots keys fall into.
pub const SLOTS: usize = 16_384;
/// The most shards of a layout.
pub const SHARDS_MAX: usize = 1024;
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
    /// The members of each shard, ascending.
    pub shards: Vec<Vec<ReplicaId>>,
    /// The protocol of its shards.
    pub protocol: String,
    /// The protocol's options.
    pub options: Vec<(String, String)>,
    /// The promise of an acknowledgement.
    pub durability: Durability,
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
            if let Some(other) = earlier.iter().find(|it| it.prefix == subgroup.prefix) {
                let (prefix, other) = (&subgroup.prefix, &other.name);
                return Err(format!(
                    "subgroups '{other}' and '{name}' have the same prefix '{prefix}': give one of \
                     them another"
                ));
            }
        }
        if self.subgroups.iter().all(|it| !it.prefix.is_empty()) {
            return Err(
                "every subgroup has a prefix, so that keys with another one belong nowhere: leave \
                 the prefix of one of them away"
                    .to_owned(),
            );
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
            shards: shards.iter().map(members).collect(),
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
        with(&|it| it.options.push(("a".to_owned(), "1".to_owned())));
        let distinct: std::collections::BTreeSet<_> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len(), "{texts:?}");
    }
}

//! Which of a gateway's groups a command is for.
//!
//! ```text
//!   key ──longest prefix──► subgroup ──slot──► shard: its place among the gateway's groups
//! ```

use super::{
    connection::Connection,
    gateway::Gateway,
    pipeline::{DISK_FULL, Flow},
};
use crate::layout::{Layout, SLOTS, slot};
use quintet_replica::{Durability, GroupId, ReplicaId};
use quintet_store::{ArgsBuffer, CommandSpec, Footprint, Kind, Op, lookup};

const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot, and their shards differ: \
                          name keys of one shard ({tag} in their names keeps them together)";

/// Keys with one prefix.
#[derive(Clone, Debug)]
struct Range {
    prefix: Vec<u8>,
    /// The place of its first shard.
    first: usize,
    count: usize,
}

#[derive(Clone, Debug)]
struct Place {
    group: GroupId,
    /// This replica keeps it on its disk.
    is_kept: bool,
    name: String,
    members: String,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct KeyShards {
    /// Longer prefixes first.
    ranges: Vec<Range>,
    places: Vec<Place>,
    /// The most shards of one replica: its memory is divided into this number of parts.
    parts: u64,
}

impl KeyShards {
    /// The shards of a layout that is sound, at this replica.
    #[must_use]
    pub fn of(layout: &Layout, me: ReplicaId) -> Self {
        let mut first = 0;
        let mut ranges = Vec::new();
        for subgroup in &layout.subgroups {
            let count = subgroup.shards.len();
            let prefix = subgroup.prefix.clone().into_bytes();
            ranges.push(Range {
                prefix,
                first,
                count,
            });
            first += count;
        }
        ranges.sort_by_key(|range| std::cmp::Reverse(range.prefix.len()));
        let places = layout.shards().map(|shard| {
            let members: Vec<_> = shard.members().iter().map(|id| id.0.to_string()).collect();
            Place {
                group: shard.group,
                is_kept: shard.members().contains(me)
                    && shard.subgroup.durability == Durability::Disk,
                name: shard.name(),
                members: members.join(", "),
            }
        });
        Self {
            ranges,
            places: places.collect(),
            parts: layout.shards_of_a_member_max() as u64,
        }
    }

    /// How much memory each shard may take, for a process to take no more than this.
    #[must_use]
    pub const fn memory_max(&self, of_process: u64) -> u64 {
        match of_process {
            0 => 0,
            all => {
                let part = all / self.parts;
                if part == 0 { 1 } else { part }
            }
        }
    }

    /// The groups, in the order of their places.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupId> {
        self.places.iter().map(|place| place.group).collect()
    }

    /// The place of the group that a key belongs to.
    #[must_use]
    pub fn of_key(&self, key: &[u8]) -> usize {
        let range = self.ranges.iter().find(|it| key.starts_with(&it.prefix));
        // One has no prefix.
        range.map_or(0, |it| it.first + slot(key) * it.count / SLOTS)
    }

    /// Whether this replica keeps the shard on its disk.
    fn is_kept(&self, group: usize) -> bool {
        self.places[group].is_kept
    }

    /// The error while the shard has no quorum.
    #[must_use]
    pub fn no_quorum(&self, group: usize) -> String {
        let Place { name, members, .. } = &self.places[group];
        format!(
            "CLUSTERDOWN no agreement in time in shard {name} (replicas {members}); the command was \
             not executed, retry"
        )
    }

    /// The shard of a command, or why it has none: nothing for one that names no keys and needs none.
    fn of_command(&self, spec: &CommandSpec, args: &[&[u8]]) -> Result<Option<usize>, String> {
        // Its keys belong to the command that it reads the past with.
        if spec.op == Op::QuintetAt {
            return match args.get(1).and_then(|name| lookup(name)) {
                Some(inner) if inner.op != Op::QuintetAt => self.of_command(inner, &args[2..]),
                _ => Ok(None),
            };
        }
        let mut found = None;
        let mut differ = false;
        spec.keys(args, |index| {
            let place = self.of_key(args[index]);
            differ |= *found.get_or_insert(place) != place;
        });
        match found {
            _ if differ => Err(CROSS_SLOT.to_owned()),
            None if spec.footprint == Footprint::Everything || spec.op == Op::QuintetDiff => {
                let (name, count) = (spec.name.to_ascii_uppercase(), self.places.len());
                Err(format!(
                    "NOTOFFERED '{name}' concerns the keys of all {count} shards: it is refused where a \
                     layout divides them"
                ))
            }
            found => Ok(found),
        }
    }
}

impl Gateway {
    /// Chooses the group of the command that the parser has found. Gives what to do with it instead
    /// of taking it into the request: it is for another group than the commands before it, or for
    /// none.
    #[cold]
    pub(super) fn choose_group(
        &mut self,
        connection: &mut Connection,
        offset: usize,
        spec: &'static CommandSpec,
    ) -> Option<Flow> {
        let shards = self.config.shards.as_ref()?;
        let (input, parser) = (&connection.input[offset..], &connection.parser);
        let args: ArgsBuffer<'_> = (1..parser.len())
            .map(|index| parser.argument(input, index))
            .collect();
        let chosen = shards.of_command(spec, &args);
        drop(args);
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(text) => return Some(self.refuse_group(connection, &text)),
        };
        let queues = connection.transaction.is_some();
        if queues && spec.op == Op::Watch {
            // It is refused whatever its keys are.
            return None;
        }
        if queues || spec.op == Op::Watch {
            let before = connection.transaction_group;
            if chosen.is_some() && before.is_some() && chosen != before {
                return Some(self.refuse_group(connection, CROSS_SLOT));
            }
        }
        if let Some(group) = chosen
            && spec.kind == Kind::Write
            && self.read_only
            && self
                .config
                .shards
                .as_ref()
                .is_some_and(|it| it.is_kept(group))
        {
            self.counters.errors_disk_full += 1;
            return Some(self.refuse_group(connection, DISK_FULL));
        }
        if queues {
            connection.transaction_group = connection.transaction_group.or(chosen);
            return None;
        }
        let spreads = matches!(spec.kind, Kind::Read | Kind::Write) && !self.parts.is_bound();
        self.enter_group(connection, chosen, spreads)
    }

    fn refuse_group(&mut self, connection: &mut Connection, text: &str) -> Flow {
        self.counters.commands += 1;
        self.refuse(connection, text)
    }

    /// The next command is for this group. If it `spreads`, it is in progress together with the ones
    /// before it that are for other groups; else there must be none.
    fn enter_group(
        &mut self,
        connection: &mut Connection,
        group: Option<usize>,
        spreads: bool,
    ) -> Option<Flow> {
        if !spreads && group.is_some() && self.parts.are_several() {
            return Some(Flow::Cut);
        }
        if let Some(group) = group.filter(|group| *group != connection.group) {
            match self.builder.is_empty() {
                true => {}
                false if spreads => {
                    (self.parts).turn(&mut self.builder, connection.group, group);
                }
                false => return Some(Flow::Cut),
            }
            connection.group = group;
        }
        None
    }

    /// The same for a transaction that is to be executed.
    pub(super) fn enter_group_of_transaction(
        &mut self,
        connection: &mut Connection,
    ) -> Option<Flow> {
        if self.parts.are_several() {
            return Some(Flow::Cut);
        }
        let cut = self.enter_group(connection, connection.transaction_group, false);
        if cut.is_none() {
            self.parts.bind();
            connection.transaction_group = None;
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Subgroup;

    fn shards() -> KeyShards {
        let subgroup = |name: &str, prefix: &str, count: usize| Subgroup {
            name: name.to_owned(),
            prefix: prefix.to_owned(),
            service: None,
            hands_off_to: Vec::new(),
            reads: Vec::new(),
            union_of: Vec::new(),
            senders: crate::layout::Senders::All,
            shards: vec![vec![ReplicaId(0)]; count],
            view: None,
            protocol: "multipaxos".to_owned(),
            options: Vec::new(),
            durability: Durability::Disk,
        };
        KeyShards::of(
            &Layout {
                subgroups: vec![
                    subgroup("store", "", 4),
                    subgroup("cache", "cache:", 1),
                    subgroup("hot", "cache:hot:", 2),
                ],
            },
            ReplicaId(0),
        )
    }

    #[test]
    fn key_belongs_to_the_longest_prefix_and_its_slot() {
        let shards = shards();
        assert_eq!(shards.groups().len(), 7);
        assert_eq!(shards.of_key(b"cache:1"), 4);
        assert!((5..7).contains(&shards.of_key(b"cache:hot:1")));
        let mut seen = [0; 4];
        for number in 0..4000 {
            seen[shards.of_key(format!("key:{number}").as_bytes())] += 1;
        }
        assert!(seen.iter().all(|count| *count > 800), "{seen:?}");
        assert_eq!(shards.of_key(b"{a}1"), shards.of_key(b"{a}2"));
    }

    #[test]
    fn command_over_keys_of_several_shards_is_refused() {
        let shards = shards();
        let of = |name: &[u8], args: &[&[u8]]| {
            let spec = lookup(name).expect("a command");
            shards.of_command(spec, args)
        };
        assert_eq!(of(b"mget", &[b"{x}a", b"{x}b"]), of(b"get", &[b"x"]));
        let refused = of(b"mset", &[b"a", b"1", b"cache:b", b"2"]).expect_err("two shards");
        assert!(refused.starts_with("CROSSSLOT "), "{refused}");
        let refused = of(b"dbsize", &[]).expect_err("all shards");
        assert!(refused.contains("all 7 shards"), "{refused}");
        assert_eq!(of(b"ping", &[]), Ok(None));
    }
}

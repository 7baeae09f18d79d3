//! The groups of a seed's world.

use crate::random::Random;
use quintet_protocols::PROTOCOLS;
use quintet_replica::{Durability, Entry, GroupId, Layout};

/// Which worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worlds {
    /// Groups whose members are fixed, of any protocol.
    Pinned,
    /// Shards whose members follow one view, with some groups whose members are fixed.
    Shards,
    /// Of both kinds, whose groups run services that hand calls off to one another.
    Services,
}

/// How a group is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// By a protocol of its own.
    Own,
    /// By that, which serves all shards, too.
    Top,
    /// By the first group's protocol, as this shard of its layout.
    Shard(usize),
}

/// A group before the world begins.
pub(super) struct Drawn {
    pub id: GroupId,
    pub part: Part,
    pub entry: &'static Entry,
    pub durability: Durability,
    /// The processes that have a node of it.
    pub members: Vec<usize>,
}

/// All groups, and the options of the first one.
pub(super) struct Groups {
    pub all: Vec<Drawn>,
    pub layout: Layout,
    pub options: Vec<(String, String)>,
}

fn pinned(id: u32, count: usize, random: &mut Random) -> Drawn {
    let size = [1, 2, 3, 3, 3, 5][random.index(6)];
    let mut members: Vec<usize> = (0..count).collect();
    random.shuffle(&mut members);
    members.truncate(size);
    members.sort_unstable();
    // A single member would lose all at its first crash.
    let durability = match size >= 3 && random.chance(350) {
        true => Durability::Memory,
        false => Durability::Disk,
    };
    Drawn {
        id: GroupId(id),
        part: Part::Own,
        entry: &PROTOCOLS[random.index(PROTOCOLS.len())],
        durability,
        members,
    }
}

/// Groups with fixed members among this number of processes.
pub(super) fn fixed(count: usize, random: &mut Random) -> Groups {
    let groups = random.between(2, 4) as usize;
    let ids = [0, 7, 3, 40].into_iter().take(groups);
    Groups {
        all: ids.map(|id| pinned(id, count, random)).collect(),
        layout: Layout::default(),
        options: Vec::new(),
    }
}

fn list(ids: &[usize]) -> String {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    ids.join(",")
}

/// A subgroup as a layout's text has it; its shards are the groups from `first` on.
fn subgroup(number: usize, first: u32, count: usize, random: &mut Random) -> (String, u32) {
    let shards = random.between(1, 4).min(count as u64 / 2) as usize;
    let last = first + shards as u32 - 1;
    let in_memory = random.chance(200);
    let most = random.between(1, 3) as usize;
    // One member in memory is lost with its process.
    let least = if in_memory { 2 } else { 1 };
    let max = most.min(count / shards).max(least);
    let min = random.between(least as u64, max as u64) as usize;
    let mut nodes: Vec<usize> = (0..count).collect();
    random.shuffle(&mut nodes);
    let named = nodes[..random.index(count)].to_vec();
    let place = if random.chance(200) {
        let pins = (0..shards).map(|shard| list(&nodes[shard * max..(shard + 1) * max]));
        format!("pin={}", pins.collect::<Vec<_>>().join("|"))
    } else {
        let spares = random.below((count - shards * min) as u64 + 1) as usize;
        let spares = spares.max((count - shards * min).min(1));
        format!("nodes={}", list(&nodes[..shards * min + spares]))
    };
    let senders = match random.chance(300) && !named.is_empty() {
        true => list(&named),
        false => "all".to_owned(),
    };
    let durability = if in_memory { "memory" } else { "disk" };
    let text = format!(
        "s{number} groups={first}-{last} {place} members={min}..{max} senders={senders} \
         durability={durability}"
    );
    (text, last + 1)
}

fn options(random: &mut Random) -> Vec<(String, String)> {
    let mut options = Vec::new();
    let mut set = |name: &str, value: &str| options.push((name.to_owned(), value.to_owned()));
    // Without these, views are those of a product: few in the time of a seed.
    let times = [
        ("50", "300", "1000"),
        ("20", "80", "250"),
        ("10", "50", "150"),
    ];
    let (heartbeat, suspect, restart) = times[random.index(3)];
    set("heartbeat_ms", heartbeat);
    set("suspect_timeout_ms", suspect);
    set("restart_timeout_ms", restart);
    if random.chance(400) {
        set("log_memory_bytes", "1024");
    }
    if random.chance(300) {
        set("join_lag", "2");
    }
    if random.chance(400) {
        set("smc_bytes_max", "64");
    }
    if random.chance(300) {
        set("rdmc_bytes_min", "64");
        set("rdmc_block_bytes", "64");
    }
    if random.chance(300) {
        set("window", "2");
    }
    options
}

/// The label of the stream that unions are drawn from.
const UNION: u64 = 0x0075_6e69_6f6e;

/// A union of two subgroups, each with nodes of its own, from group `first` on.
fn union(first: u32, count: usize, random: &mut Random) -> String {
    let shards = if count >= 8 {
        random.between(1, 2) as usize
    } else {
        1
    };
    let mut nodes: Vec<usize> = (0..count).collect();
    random.shuffle(&mut nodes);
    let (one, other) =
        nodes.split_at(random.between(shards as u64 * 2, (count / 2) as u64) as usize);
    let part = |name: &str, place: usize, nodes: &[usize]| {
        let first = first as usize + place * shards;
        let (last, nodes) = (first + shards - 1, list(nodes));
        format!("{name} groups={first}-{last} nodes={nodes} members=1..2 ; ")
    };
    let (begin, end) = (first as usize + 2 * shards, first as usize + 3 * shards - 1);
    let senders = ["", " senders_from=u0", " senders_from=u1"][random.index(3)];
    let union = format!("u2 groups={begin}-{end} union=u0,u1{senders}");
    part("u0", 0, one) + &part("u1", 1, other) + &union
}

/// Shards that follow a view of all processes, and groups with fixed members.
pub(super) fn shards(count: usize, random: &mut Random) -> Groups {
    let everybody: Vec<usize> = (0..count).collect();
    let (mut text, mut next) = (Vec::new(), 1);
    for number in 0..random.between(1, 3) as usize {
        let (subgroup, first) = subgroup(number, next, count, random);
        text.push(subgroup);
        next = first;
    }
    // Other seeds stay the worlds that they were.
    let mut apart = random.fork(UNION);
    if apart.chance(250) {
        text.push(union(next, count, &mut apart));
    }
    let layout: Layout = text.join(";").parse().expect("a layout");
    let mut options = options(random);
    options.push(("layout".to_owned(), layout.to_string()));
    let entry = quintet_protocols::find("derecho").expect("a protocol");
    let of = |id, part, durability| Drawn {
        id,
        part,
        entry,
        durability,
        members: everybody.clone(),
    };
    let mut all = vec![of(GroupId(0), Part::Top, Durability::Disk)];
    for (shard, (group, durability)) in layout.groups().into_iter().enumerate() {
        all.push(of(group, Part::Shard(shard), durability));
    }
    let beside = [0, 0, 1, 1, 2][random.index(5)];
    all.extend((0..beside).map(|number| pinned(100 + number, count, random)));
    Groups {
        all,
        layout,
        options,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_can_be_and_all_kinds_are_drawn() {
        let mut seen = [false; 7];
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let count = random.between(5, 9) as usize;
            let drawn = shards(count, &mut random);
            assert_eq!(drawn.layout.check(count), Ok(()));
            let shown = drawn.layout.to_string();
            let has = [
                drawn.layout.subgroups().len() == 3,
                shown.contains("union=u0,u1") && shown.contains("senders_from=u1"),
                shown.contains("pin="),
                shown.contains("memory"),
                shown.contains("senders="),
                drawn.all.last().is_some_and(|last| last.part == Part::Own),
                drawn
                    .layout
                    .subgroups()
                    .iter()
                    .any(|of| of.groups.len() == 4),
            ];
            for (seen, has) in seen.iter_mut().zip(has) {
                *seen |= has;
            }
        }
        assert_eq!(seen, [true; 7]);
    }
}

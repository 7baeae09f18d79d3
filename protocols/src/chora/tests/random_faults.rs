//! Groups under random loss, duplication, delay, cuts and crashes; then healed, and complete.

use super::group::{Group, MS, assert_converged};
use crate::chora::{Config, Drive};
use alloc::{string::ToString, vec::Vec};
use core::time::Duration;
use quintet_replica::{BatchId, Control, Durability, Event, Level, Replica};

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

fn config(random: &mut Random, members: u64) -> Config {
    Config {
        mode: [Drive::Auto, Drive::Pulsing, Drive::Responsive][random.below(3) as usize],
        proposers: random.below(members + 1) as usize,
        round: Duration::from_millis(1 + random.below(5)),
        accountable: random.below(3) > 0,
        batches_max: random.below(3) as usize,
        batch_bytes_max: 256 << random.below(4),
        window: 1 + random.below(8) as usize,
        log_memory_bytes: 4096 << random.below(4),
        ..Config::default()
    }
}

pub fn life(seed: u64, durability: Durability, change: impl Fn(&mut Config)) -> Group {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..8 {
        random.below(2);
    }
    let members = [3, 3, 5][random.below(3) as usize];
    let mut config = config(&mut random, members);
    change(&mut config);
    let mut group = Group::new(members as usize, durability, config);
    let mut written: Vec<(u16, BatchId)> = Vec::new();
    let mut down: Vec<u16> = Vec::new();
    for _ in 0..600 {
        let id = random.below(members) as u16;
        match random.below(100) {
            0..20 => {
                let level = [Level::Ordered, Level::Ordered, Level::Linearizable];
                let level = level[random.below(3) as usize];
                if group.members[usize::from(id)].driver.is_some() {
                    let batch = group.submit(id, level);
                    if level == Level::Ordered {
                        written.push((id, batch));
                    }
                }
            }
            20..22 if down.len() < (members as usize - 1) / 2 => {
                group.crash(id);
                if !down.contains(&id) {
                    down.push(id);
                }
            }
            22..25 => {
                if let Some(id) = down.pop() {
                    group.start(id);
                    if durability == Durability::Memory {
                        // A second loss of memory before the first is mended may be too many.
                        group.heal();
                        group
                            .members
                            .iter_mut()
                            .for_each(|member| member.slow_disk = false);
                        group.run(MS * 6000);
                        let voting = |id: u16| {
                            let driver = &group.members[usize::from(id)].driver;
                            driver.as_ref().is_some_and(|it| it.status().voting)
                        };
                        assert!(voting(id), "{id} counts again: {:#?}", describe(&group));
                    }
                }
            }
            25..27 => group.isolate(id),
            27..29 => {
                let other = random.below(members) as u16;
                group.cut.insert((id, other));
            }
            29..34 => group.heal(),
            34 => group.event(id, Event::Control(Control::CheckpointDue)),
            35 => group.event(id, Event::Control(Control::HandOff)),
            36 => group.members[usize::from(id)].slow_disk = true,
            37..40 => group.members[usize::from(id)].slow_disk = false,
            40 => {
                let (name, value) = match random.below(4) {
                    0 => ("proposers", random.below(members + 1).to_string()),
                    1 => ("mode", "pulsing".to_string()),
                    2 => ("mode", "responsive".to_string()),
                    _ => ("mode", "auto".to_string()),
                };
                let name = name.to_string();
                group.event(id, Event::Control(Control::Option { name, value }));
            }
            41..46 => group.run(MS * (1 + random.below(900) as u32)),
            _ => {
                group.clock.now = group.clock.now + MS / 10;
                group.idle(id);
                if random.below(2) == 0 && !group.members[usize::from(id)].slow_disk {
                    group.sync(id);
                }
                for _ in 0..random.below(12) {
                    let waiting = group.network.len() as u64;
                    if waiting == 0 {
                        break;
                    }
                    let at = random.below(waiting.min(5)) as usize;
                    let packet = group.network.remove(at).expect("within the queue");
                    match random.below(20) {
                        0 => {}
                        1 => {
                            group.network.push_back(packet.clone());
                            group.deliver(packet);
                        }
                        _ => group.deliver(packet),
                    }
                }
            }
        }
    }
    group.heal();
    for id in 0..members as u16 {
        group.members[usize::from(id)].slow_disk = false;
        if group.members[usize::from(id)].driver.is_none() {
            group.start(id);
        }
    }
    group.run(MS * 12_000);
    let last = group.write(0);
    group.run(MS * 3000);
    assert!(
        group.answered(0, last),
        "a healed group goes on: {:#?}",
        describe(&group)
    );
    let executed = |id: u16| group.members[usize::from(id)].executed;
    assert!(
        (1..members as u16).all(|id| executed(id) == executed(0)),
        "all have come as far: {:#?}",
        describe(&group)
    );
    assert_converged(&group, 1);
    let held = group.batches(0);
    for (at, batch) in written {
        assert!(
            !group.answered(at, batch) || held.contains(&batch),
            "{batch} was acknowledged"
        );
    }
    group
}

/// Where everybody stands.
fn describe(group: &Group) -> Vec<alloc::string::String> {
    let of = |id: u16| {
        let member = &group.members[usize::from(id)];
        if member.driver.is_none() {
            return alloc::format!("{id} is down: {:?}", member.halted);
        }
        let status = group.status(id);
        let replica = group.replica(id);
        let peers: Vec<_> = replica
            .peers
            .iter()
            .map(|peer| (peer.acked.0, peer.committed.0, peer.view, peer.fitness))
            .collect();
        alloc::format!(
            "{} {} view {} executed {} committed {} last {} verified {} durable {} latest {} \
             next {:?} init {:?} buffer {:?} fetching {:?} {peers:?}",
            id,
            status.role,
            status.view,
            replica.executed,
            replica.committed,
            replica.last_append(),
            replica.verified,
            replica.durable,
            replica.latest,
            replica.next_propose,
            replica.init,
            replica.buffer.keys().map(|slot| slot.0).collect::<Vec<_>>(),
            replica.fetching,
        )
    };
    (0..group.members.len() as u16).map(of).collect()
}

fn campaign(seeds: core::ops::Range<u64>, durability: Durability, rare: &[&str]) {
    let mut marks = alloc::collections::BTreeMap::new();
    for seed in seeds {
        std::println!("seed {seed}");
        let group = life(seed, durability, |_| ());
        for (mark, count) in group.marks {
            *marks.entry(mark).or_insert(0) += count;
        }
    }
    for branch in rare {
        assert!(
            marks.contains_key(branch),
            "{branch} never happened: {marks:?}"
        );
    }
    std::println!("{marks:#?}");
}

#[test]
fn nothing_acknowledged_is_lost_on_disk() {
    let rare = [
        "asks for missing proposals",
        "candidate's log is older",
        "proposals sent again",
        "suffix of an old view replaced",
        "view change: a proposer was restarted",
        "view change: a replica comes back",
        "view change: another number of proposers",
    ];
    campaign(0..150, Durability::Disk, &rare);
}

#[test]
fn nothing_acknowledged_is_lost_in_memory() {
    campaign(1000..1150, Durability::Memory, &["recovered"]);
}

//! Groups under random loss, duplication, delay, cuts and crashes; then healed, and complete.

use super::group::{Group, MS, assert_converged};
use crate::racs::Config;
use alloc::vec::Vec;
use quintet_replica::{BatchId, Control, Durability, Event, Level};

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

fn config(random: &mut Random) -> Config {
    Config {
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
    let mut config = config(&mut random);
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
            40..45 => group.run(MS * (1 + random.below(900) as u32)),
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
    group.run(MS * 8000);
    let id = group.leaders().first().copied().expect("somebody leads");
    let last = group.write(id);
    group.run(MS * 1000);
    assert!(group.answered(id, last), "a healed group goes on");
    assert_converged(&group, 1);
    let held = group.batches(id);
    for (at, batch) in written {
        assert!(
            !group.answered(at, batch) || held.contains(&batch),
            "{batch} was acknowledged"
        );
    }
    group
}

fn campaign(seeds: core::ops::Range<u64>, durability: Durability) {
    let mut marks = alloc::collections::BTreeMap::new();
    for seed in seeds {
        std::println!("seed {seed}");
        let group = life(seed, durability, |_| ());
        for (mark, count) in group.marks {
            *marks.entry(mark).or_insert(0) += count;
        }
    }
    for rare in [
        "another level 1 taken over",
        "asynchronous mode",
        "coin elects nobody",
        "exit by another's certificate",
        "leadership handed off",
        "missing block asked for",
    ] {
        assert!(marks.contains_key(rare), "{rare} never happened: {marks:?}");
    }
}

#[test]
fn nothing_acknowledged_is_lost_on_disk() {
    campaign(100..260, Durability::Disk);
}

#[test]
fn nothing_acknowledged_is_lost_in_memory() {
    campaign(1000..1150, Durability::Memory);
}

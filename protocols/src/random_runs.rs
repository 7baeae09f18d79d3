//! Random runs of groups of any protocol under random loss, duplication, delay, cuts and crashes;
//! then healed, and complete.
//!
//! ```text
//!   seed ──► configuration, 3 or 5 members ──► 600 turns: submit · crash · start · isolate · cut
//!                                                         · heal · slow disk · hand off · deliver
//!        ──► healed ──► a write is answered, all hold the same, nothing acknowledged is missing
//! ```

use crate::group::{Group, MS, assert_converged};
use alloc::{
    collections::BTreeMap,
    string::{String, ToString},
    vec::Vec,
};
use core::ops::Range;
use quintet_replica::{
    BatchId, Control, Durability, Event, GroupId, Level, Protocol, Replica, ReplicaSet,
};
#[cfg(feature = "bugs")]
use std::panic;

/// Chance from one number.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.below(2);
        }
        random
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

/// Draws an option and its value, for that many members.
pub type DrawOption = fn(&mut Random, u64) -> (&'static str, String);

/// A protocol's part in the random runs of its groups.
pub trait RandomRun: Protocol {
    /// A configuration with limits so small that they are reached.
    fn draw(random: &mut Random, members: u64) -> Self::Options;

    /// Draws what changes while the group runs.
    const OPTION: Option<DrawOption> = None;

    /// Whether its members may be told that some are slow.
    const BYPASSES_SLOW: bool = false;

    /// Invariants between the replicas that run, checked now and then.
    ///
    /// # Panics
    /// When something does not hold.
    fn claims(_replicas: &[&Self]) {}

    /// Where a replica stands, for who reads a failure.
    fn describe(&self) -> String {
        String::new()
    }
}

/// The run of one seed, in a configuration that `change` had a hand in.
///
/// # Panics
/// When something does not hold.
pub fn random_run<P: RandomRun>(
    seed: u64,
    durability: Durability,
    change: impl Fn(&mut P::Options),
) -> Group<P> {
    let mut random = Random::new(seed);
    let members = [3, 3, 5][random.below(3) as usize];
    let mut config = P::draw(&mut random, members);
    change(&mut config);
    let mut group: Group<P> = Group::new(members as usize, durability, config);
    let mut written: Vec<(u16, BatchId)> = Vec::new();
    let mut down: Vec<u16> = Vec::new();
    for step in 0..600 {
        let id = random.below(members) as u16;
        turn(&mut group, &mut random, id, &mut written, &mut down);
        if step % 8 == 0 {
            claims(&group);
        }
    }
    healed(&mut group, &written);
    claims(&group);
    group
}

fn claims<P: RandomRun>(group: &Group<P>) {
    let running = |id: &u16| group.members[usize::from(*id)].driver.is_some();
    let ids = (0..group.members.len() as u16).filter(running);
    let replicas: Vec<&P> = ids.map(|id| group.replica(id)).collect();
    P::claims(&replicas);
}

fn turn<P: RandomRun>(
    group: &mut Group<P>,
    random: &mut Random,
    id: u16,
    written: &mut Vec<(u16, BatchId)>,
    down: &mut Vec<u16>,
) {
    let members = group.members.len() as u64;
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
                if group.durability == Durability::Memory {
                    // A second loss of memory before the first is repaired may be too many.
                    group.heal();
                    (group.members.iter_mut()).for_each(|member| member.slow_disk = false);
                    group.run(MS * 6000);
                    let voting = |id: u16| {
                        let driver = &group.members[usize::from(id)].driver;
                        driver
                            .as_ref()
                            .is_some_and(|it| it.status(GroupId(0)).voting)
                    };
                    assert!(voting(id), "{id} counts again: {:#?}", describe(group));
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
        40 if P::OPTION.is_some() => {
            if let Some(draw) = P::OPTION {
                let (name, value) = draw(random, members);
                let name = name.to_string();
                group.event(id, Event::Control(Control::Option { name, value }));
            }
        }
        41 if P::BYPASSES_SLOW => {
            let slow = ReplicaSet(u128::from(random.below(1 << members)));
            group.event(id, Event::Control(Control::SlowMembers(slow)));
        }
        40..45 => group.run(MS * (1 + random.below(900) as u32)),
        _ => churn(group, random, id),
    }
}

/// A replica that continues, and a network that delivers late, twice or never.
fn churn<P: RandomRun>(group: &mut Group<P>, random: &mut Random, id: u16) {
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

fn healed<P: RandomRun>(group: &mut Group<P>, written: &[(u16, BatchId)]) {
    group.heal();
    for id in 0..group.members.len() as u16 {
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
        "a healed group continues: {:#?}",
        describe(group)
    );
    let executed = |id: usize| group.members[id].executed;
    assert!(
        (1..group.members.len()).all(|id| executed(id) == executed(0)),
        "all have come as far: {:#?}",
        describe(group)
    );
    assert_converged(group, 1);
    let held = group.batches(0);
    for (at, batch) in written {
        assert!(
            !group.answered(*at, *batch) || held.contains(batch),
            "{batch} was acknowledged"
        );
    }
}

/// Where everybody stands.
fn describe<P: RandomRun>(group: &Group<P>) -> Vec<String> {
    let of = |id: u16| {
        let member = &group.members[usize::from(id)];
        if member.driver.is_none() {
            return alloc::format!("{id} is down: {:?}", member.halted);
        }
        let status = group.status(id);
        alloc::format!(
            "{id} {} view {} executed {} {}",
            status.role,
            status.view,
            member.executed,
            group.replica(id).describe()
        )
    };
    (0..group.members.len() as u16).map(of).collect()
}

/// The runs of all `seeds`, in which each of the `rare` branches must have been taken.
///
/// # Panics
/// When something does not hold; the seed is the last one printed.
pub fn random_runs<P: RandomRun>(seeds: Range<u64>, durability: Durability, rare: &[&str]) {
    random_runs_with::<P>(seeds, durability, rare, |_, _| ());
}

/// The same, in configurations that `change` had a hand in, which is given the seed.
pub fn random_runs_with<P: RandomRun>(
    seeds: Range<u64>,
    durability: Durability,
    rare: &[&str],
    change: impl Fn(u64, &mut P::Options),
) {
    let mut marks = BTreeMap::new();
    for seed in seeds {
        std::println!("seed {seed}");
        let group = random_run::<P>(seed, durability, |config| change(seed, config));
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
}

/// For each injected bug the first of `seeds` in whose run something does not hold with it.
#[cfg(feature = "bugs")]
pub fn detecting<P: RandomRun, B: Copy>(
    bugs: &[B],
    seeds: Range<u64>,
    durability: impl Fn(B) -> Durability,
    inject: impl Fn(B, &mut P::Options),
) -> Vec<(B, Option<u64>)> {
    let quiet = panic::take_hook();
    panic::set_hook(std::boxed::Box::new(|_| ()));
    let detects = |bug: B, seed: u64| {
        let injected = |config: &mut P::Options| inject(bug, config);
        let run = || random_run::<P>(seed, durability(bug), injected);
        panic::catch_unwind(panic::AssertUnwindSafe(run)).is_err()
    };
    let found = (bugs.iter())
        .map(|bug| (*bug, seeds.clone().find(|seed| detects(*bug, *seed))))
        .collect();
    panic::set_hook(quiet);
    found
}

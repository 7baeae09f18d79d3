//! Tests of handlers and of small groups over a scripted network.

mod failures;
mod random_faults;
mod reads;
mod steady;
mod wire;

use super::{ChainPaxos, Config};
use alloc::vec::Vec;
use core::time::Duration;
use quintet_replica::Durability;

pub use crate::group::{MS, assert_converged};
pub type Group = crate::group::Group<ChainPaxos>;

/// Small limits, so that tests reach them.
pub fn small() -> Config {
    Config {
        batch_bytes_max: 4096,
        log_memory_bytes: 64 << 10,
        ..Config::default()
    }
}

/// A group in which the first leader leads.
pub fn group(members: usize, durability: Durability) -> Group {
    let mut group = Group::new(members, durability, Config::default());
    group.run(MS * 20);
    assert_eq!(group.leaders(), [0]);
    group
}

/// The chain as a replica sees it.
pub fn chain(group: &Group, id: u16) -> Vec<u16> {
    group.members[usize::from(id)].route.clone()
}

/// Writes at a replica and lets time pass until it is answered.
pub fn write_within(group: &mut Group, id: u16, time: Duration) -> bool {
    let write = group.write(id);
    for _ in 0..50 {
        if group.answered(id, write) {
            return true;
        }
        group.run(time / 50);
    }
    group.answered(id, write)
}

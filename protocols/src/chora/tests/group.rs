//! Groups of this protocol.

use crate::chora::{Chora, Config, Drive};
pub use crate::group::{MS, assert_converged};
use core::time::Duration;

pub type Group = crate::group::Group<Chora>;
pub type Packet = crate::group::Packet<Chora>;

pub fn mode(mode: Drive) -> Config {
    Config {
        mode,
        round: Duration::from_millis(1),
        ..Config::default()
    }
}

/// Replicas that may propose now.
pub fn proposers(group: &Group) -> usize {
    let live = group.members.iter().filter(|it| it.driver.is_some());
    live.filter(|it| {
        let replica = it.driver.as_ref().expect("it runs").replica();
        replica.may_propose()
    })
    .count()
}

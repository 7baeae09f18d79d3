//! Groups of this protocol.

pub use crate::group::{MS, assert_converged};
use crate::racs::{Config, Message, Racs};
use alloc::vec::Vec;

pub type Group = crate::group::Group<Racs>;
pub type Packet = crate::group::Packet<Racs>;

/// Small limits, so that tests reach them.
pub fn small() -> Config {
    Config {
        batch_bytes_max: 4096,
        log_memory_bytes: 64 << 10,
        ..Config::default()
    }
}

/// Delivers what `pass` lets through until nothing of it is left; the rest stays on its way.
pub fn pump(group: &mut Group, pass: impl Fn(&Packet, &Message) -> bool) {
    let mut held = Vec::new();
    // A write becomes durable in one turn and is spoken of in the next.
    let mut quiet = 0;
    while quiet < 4 {
        for id in 0..group.members.len() as u16 {
            if group.members[usize::from(id)].driver.is_some() {
                group.sync(id);
                group.idle(id);
            }
        }
        quiet = if group.network.is_empty() {
            quiet + 1
        } else {
            0
        };
        while let Some(packet) = group.network.pop_front() {
            if pass(&packet, &packet.message()) {
                group.deliver(packet);
            } else {
                held.push(packet);
            }
        }
    }
    group.network.extend(held);
}

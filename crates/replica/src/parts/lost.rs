//! The remedy when too many replicas have lost their state.

use crate::Durability;
use alloc::{format, string::String};

/// Why replicas stop that can no longer find out what was acknowledged, and what to do about it: a
/// majority of the `members` has lost its state. For [`crate::Context::halt`].
#[must_use]
pub fn too_many_lost_state(members: usize, durability: Durability) -> String {
    match durability {
        Durability::Memory => format!(
            "too many of the {members} replicas have lost their memory: what they acknowledged \
             cannot be recovered. To start again without it, start every replica once with \
             --bootstrap-again"
        ),
        Durability::Disk => format!(
            "the journals of too many of the {members} replicas are damaged: what they \
             acknowledged cannot be recovered from the others. Restore a backup, or what an \
             undamaged replica still holds (quintet snapshot save), into a new cluster"
        ),
    }
}

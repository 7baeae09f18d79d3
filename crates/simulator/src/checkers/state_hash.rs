//! State hash: replicas that executed equally far hold the same state.
//!
//! ```text
//!   before position p    every replica's machine hash, taken when the batch begins
//!   after slot s         every replica's hash over machine and sessions, when it stops there
//! ```

use super::Violation;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quintet_replica::EpochNumber;

/// The first hash seen at each place.
#[derive(Debug, Default)]
pub struct StateHash {
    machines: Vec<Option<(u16, u128)>>,
    whole: HashMap<(EpochNumber, u64), (u16, u128), FixedState>,
}

fn compare(
    place: &str,
    at: u64,
    (first, agreed): (u16, u128),
    by: u16,
    hash: u128,
) -> Option<Violation> {
    (agreed != hash).then(|| {
        Violation::new(
            "state_hash",
            format!("{place} {at} replica {by} has state {hash:x}, replica {first} {agreed:x}"),
        )
    })
}

impl StateHash {
    /// The machine's hash on replica `by` before it executed `position`.
    ///
    /// # Errors
    /// When another replica had another state there.
    pub fn before(&mut self, by: u16, position: u64, hash: u128) -> Result<(), Violation> {
        let index = position as usize;
        if index >= self.machines.len() {
            self.machines.resize(index + 1, None);
        }
        let agreed = *self.machines[index].get_or_insert((by, hash));
        compare("before position", position, agreed, by, hash).map_or(Ok(()), Err)
    }

    /// The machine's hash before `position`, and who had it first.
    #[must_use]
    pub fn machine_before(&self, position: u64) -> Option<(u16, u128)> {
        *self.machines.get(position as usize)?
    }

    /// The hash over machine and sessions on replica `by` after `slot`, in an epoch: the state that
    /// one begins with is not the one that the last ended with.
    ///
    /// # Errors
    /// When another replica had another state there.
    pub fn after(
        &mut self,
        by: u16,
        epoch: EpochNumber,
        slot: u64,
        hash: u128,
    ) -> Result<(), Violation> {
        let agreed = *self.whole.entry((epoch, slot)).or_insert((by, hash));
        compare("after slot", slot, agreed, by, hash).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_state_at_the_same_place_is_seen() {
        let mut states = StateHash::default();
        assert_eq!(states.before(0, 3, 7), Ok(()));
        assert_eq!(states.before(1, 3, 7), Ok(()));
        assert!(states.before(2, 3, 8).is_err());
        assert_eq!(states.after(0, EpochNumber(1), 9, 1), Ok(()));
        assert!(states.after(1, EpochNumber(1), 9, 2).is_err());
    }
}

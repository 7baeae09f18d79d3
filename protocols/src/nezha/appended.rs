//! Answers of followers about batches, where the leader checks quorums.

use super::{LogHash, dom::Name};
use alloc::{collections::BTreeMap, vec::Vec};
use quintet_replica::ReplicaId;

/// The most batches whose followers are counted; others wait for the commit point.
const CHECKED_MAX: usize = 65_536;

/// Answers of followers about one batch.
#[derive(Debug, Default, Hash)]
struct Check {
    appended: Vec<(ReplicaId, LogHash)>,
    answered: bool,
}

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Appended(BTreeMap<Name, Check>);

impl Appended {
    /// A follower has appended a batch. False when too many are counted.
    pub fn add(&mut self, from: ReplicaId, name: Name, hash: LogHash) -> bool {
        if self.0.len() >= CHECKED_MAX && !self.0.contains_key(&name) {
            return false;
        }
        let check = self.0.entry(name).or_default();
        check.appended.retain(|(known, _)| *known != from);
        check.appended.push((from, hash));
        true
    }

    /// How many followers hold a batch as the leader does: over the same log, or in its slot.
    /// None when it is answered, or nothing was said of it.
    pub fn holders(
        &self,
        name: Name,
        own: LogHash,
        has_synced: impl Fn(ReplicaId) -> bool,
    ) -> Option<usize> {
        let check = self.0.get(&name).filter(|check| !check.answered)?;
        let same =
            |(id, hash): &&(ReplicaId, LogHash)| (hash.known && *hash == own) || has_synced(*id);
        Some(check.appended.iter().filter(same).count())
    }

    pub fn answered(&mut self, name: Name) {
        if let Some(check) = self.0.get_mut(&name) {
            check.answered = true;
        }
    }

    /// A batch is committed. True when it was answered before.
    pub fn committed(&mut self, name: Name) -> bool {
        self.0.remove(&name).is_some_and(|check| check.answered)
    }
}

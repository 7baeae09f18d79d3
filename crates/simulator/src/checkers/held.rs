//! Acknowledged is held: at the moment at which a client is told that its command is done, that
//! many disks hold it durably that no set of replicas without it could continue.
//!
//! ```text
//!   record handed to a disk ──► which commands are in it ──(synced)──► held by that disk
//!   crash ──► what a restart reads back is held, nothing else
//!   acknowledged ──► held here, there: could the others continue alone? ──yes──► violation
//! ```
//!
//! A command is found in a record by its id, which no encoding changes: a batch is one blob from
//! the client's server to the journal. This detects at once what `durable` sees only when the
//! right replicas crash at the right time.

use super::Violation;
use foldhash::fast::FixedState;
use hashbrown::HashSet;
use quintet_replica::{CommandId, PersistId, SessionId};
use std::collections::VecDeque;

/// The contents of one disk.
#[derive(Debug, Default)]
struct Disk {
    durable: HashSet<CommandId, FixedState>,
    pending: VecDeque<(PersistId, Vec<CommandId>)>,
}

/// The clients' requests on each disk.
#[derive(Debug)]
pub struct Held {
    disks: Vec<Disk>,
    owners: HashSet<u64, FixedState>,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Held {
    /// Empty disks.
    #[must_use]
    pub fn new(replicas: usize) -> Self {
        Self {
            disks: (0..replicas).map(|_| Disk::default()).collect(),
            owners: HashSet::default(),
        }
    }

    /// A command is sent under this id; from now on it can be found.
    pub fn sent(&mut self, id: CommandId) {
        self.owners.insert(id.session.owner);
    }

    /// The ids in a record's bytes.
    fn ids(&self, record: &[u8]) -> Vec<CommandId> {
        let mut ids = Vec::new();
        for at in 0..record.len().saturating_sub(23) {
            let Some(owner) = u64_at(record, at).filter(|owner| self.owners.contains(owner)) else {
                continue;
            };
            if let (Some(number), Some(sequence)) =
                (u64_at(record, at + 8), u64_at(record, at + 16))
            {
                let session = SessionId { owner, number };
                ids.push(CommandId { session, sequence });
            }
        }
        ids
    }

    /// Replica `by` hands a record to its disk.
    pub fn written(&mut self, by: usize, id: PersistId, record: &[u8]) {
        let ids = self.ids(record);
        if !ids.is_empty() {
            self.disks[by].pending.push_back((id, ids));
        }
    }

    /// All that replica `by` wrote up to this is durable.
    pub fn synced(&mut self, by: usize, upto: PersistId) {
        let disk = &mut self.disks[by];
        while disk.pending.front().is_some_and(|(id, _)| *id <= upto) {
            if let Some((_, ids)) = disk.pending.pop_front() {
                disk.durable.extend(ids);
            }
        }
    }

    /// Replica `by` starts and reads these records.
    pub fn recovered<'a>(&mut self, by: usize, records: impl Iterator<Item = &'a [u8]>) {
        let durable = records.flat_map(|record| self.ids(record)).collect();
        self.disks[by] = Disk {
            durable,
            pending: VecDeque::new(),
        };
    }

    /// A client is told that `id`, executed at `position`, is done. `snapshots` gives the position
    /// of each disk's newest snapshot; `viable` says whether replicas could continue by themselves.
    ///
    /// # Errors
    /// When those that do not hold it could.
    pub fn acknowledged(
        &self,
        id: CommandId,
        position: u64,
        snapshots: &[u64],
        viable: impl FnOnce(&[usize]) -> bool,
    ) -> Result<(), Violation> {
        let holds = |by: &usize| {
            snapshots.get(*by).is_some_and(|covers| *covers >= position)
                || self.disks[*by].durable.contains(&id)
        };
        let (with, without): (Vec<usize>, Vec<usize>) = (0..self.disks.len()).partition(holds);
        if !viable(&without) {
            return Ok(());
        }
        Err(Violation::new(
            "held",
            format!(
                "{id:?} at position {position} was acknowledged; only the disks of {with:?} hold it, \
                 and {without:?} could continue without it"
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::{BatchBuilder, BatchId, FrontendId, Level, RequestKind};

    const ID: CommandId = CommandId {
        session: SessionId {
            owner: 77,
            number: 3,
        },
        sequence: 9,
    };

    fn record() -> Vec<u8> {
        let mut batch = BatchBuilder::new();
        batch.push(ID, RequestKind::Command, 0, b"something");
        let blob = batch.finish(FrontendId(1), BatchId(1), Level::Ordered);
        [b"abc", &blob[..], b"tail"].concat()
    }

    fn majority(without: &[usize]) -> bool {
        without.len() > 1
    }

    #[test]
    fn majority_of_disks_must_hold_what_was_acknowledged() {
        let mut held = Held::new(3);
        held.sent(ID);
        let check = |held: &Held| held.acknowledged(ID, 5, &[0, 0, 0], majority);
        held.written(0, PersistId(1), &record());
        held.written(1, PersistId(1), &record());
        held.synced(0, PersistId(1));
        assert!(check(&held).is_err());
        held.synced(1, PersistId(1));
        assert_eq!(check(&held), Ok(()));
        // A restart that does not find it again holds it no more.
        held.recovered(1, std::iter::empty());
        assert!(check(&held).is_err());
        held.recovered(1, [&record()[..]].into_iter());
        assert_eq!(check(&held), Ok(()));
    }

    #[test]
    fn snapshot_holds_what_it_covers() {
        let held = Held::new(3);
        assert!(held.acknowledged(ID, 5, &[5, 4, 4], majority).is_err());
        assert_eq!(held.acknowledged(ID, 5, &[5, 4, 5], majority), Ok(()));
    }
}

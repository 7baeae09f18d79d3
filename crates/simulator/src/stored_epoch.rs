//! The epoch that a replica is in, as its disk has it, and what starts from it.

use quintet_replica::{
    Bytes, Descriptor, Durability, Entry, Epoch, EpochNumber, Executed, SnapshotHeader,
    snapshot_header,
};

/// The files `epoch`: a descriptor, and where that epoch began; none in the first.
pub(crate) type StoredEpoch = Option<(Descriptor, Executed)>;

pub(crate) fn number(stored: &StoredEpoch) -> EpochNumber {
    let stored = stored.as_ref();
    stored.map_or(EpochNumber(1), |(descriptor, _)| descriptor.number)
}

/// Its durability; `first` in the first epoch.
pub(crate) fn durability(stored: &StoredEpoch, first: Durability) -> Durability {
    let stored = stored.as_ref();
    stored.map_or(first, |(descriptor, _)| descriptor.durability)
}

fn header(bytes: &Bytes) -> Option<SnapshotHeader> {
    snapshot_header(|offset| Some(bytes.slice((offset as usize).min(bytes.len())..)))
}

/// Whether a snapshot of this name leads into a later epoch, which never began here.
pub(crate) fn leads_away(stored: &StoredEpoch, id: Executed, bytes: &Bytes) -> bool {
    let of = header(bytes).filter(|header| header.executed != id);
    of.is_some_and(|header| header.epoch >= number(stored))
}

/// A crash may have come between the first state of an epoch and its file: the newest snapshot
/// tells of the later one then.
pub(crate) fn find_newer(stored: &mut StoredEpoch, newest: Option<&Bytes>) {
    let header = newest.and_then(header);
    if let Some(header) = header
        && header.epoch > number(stored)
        && let Ok(descriptor) = Descriptor::decode(header.descriptor)
    {
        *stored = Some((descriptor, header.base));
    }
}

/// A later epoch as a node is told of it. A bug that is injected stays.
pub(crate) fn later(descriptor: &Descriptor, first: &Epoch) -> Epoch {
    let mut epoch = descriptor.epoch(first.secret);
    epoch.inject_bugs_of(&first.options);
    epoch
}

/// The protocol of an epoch, where the first one's was this. (The simulator's own toy is in no
/// registry.)
pub(crate) fn protocol(descriptor: &Descriptor, first: Entry) -> Entry {
    let same = descriptor.protocol == first.info.name;
    let found = quintet_protocols::find(&descriptor.protocol).ok();
    found.filter(|_| !same).copied().unwrap_or(first)
}

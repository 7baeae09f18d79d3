//! A batch in the log, and where a batch may be.

use super::{
    Placed,
    conflict::Footprint,
    dom::{Name, Stamp},
};
use alloc::vec::Vec;
use quintet_replica::{BatchView, Bytes, Context, PersistId, Protocol, Slot};

/// About how many bytes of batches go into one message.
const PAGE_BYTES: usize = 1 << 20;

/// A batch in the log.
#[derive(Clone, Debug, Hash)]
pub(super) struct Entry {
    pub stamp: Stamp,
    pub batch: Bytes,
    pub footprint: Footprint,
    /// The words of a fast reply about the log as it was when this was appended: base, hash, known.
    pub hash: (Slot, u128, bool),
    /// The slot under which the journal holds it.
    pub journal: Slot,
    /// The write that makes it durable.
    pub written: PersistId,
}

impl Entry {
    /// A batch that is about to be appended.
    pub const fn new(stamp: Stamp, batch: Bytes, footprint: Footprint) -> Self {
        Self {
            stamp,
            batch,
            footprint,
            hash: (Slot(0), 0, false),
            journal: Slot(0),
            written: PersistId(0),
        }
    }

    /// A batch with this deadline; `None` when the bytes are no batch.
    pub fn read<P: Protocol>(
        deadline: u64,
        batch: Bytes,
        commutativity: bool,
        ctx: &Context<'_, P>,
    ) -> Option<Self> {
        let name = name_of(&batch)?;
        let footprint = footprint(&batch, commutativity, ctx);
        Some(Self::new(Stamp { deadline, name }, batch, footprint))
    }

    /// As it is sent and written.
    pub fn placed(&self) -> Placed {
        Placed {
            deadline: self.stamp.deadline,
            batch: self.batch.clone(),
        }
    }
}

/// Where a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Slot(Slot),
    Unsynced(Stamp),
    Early(Stamp),
    Late,
}

/// A batch's name; `None` when the bytes are no batch.
pub(super) fn name_of(batch: &Bytes) -> Option<Name> {
    let view = BatchView::checked(batch).ok()?;
    Some(Name {
        frontend: view.frontend(),
        batch: view.id(),
    })
}

/// The footprint of a batch, as far as this configuration looks.
pub(super) fn footprint<P: Protocol>(
    batch: &Bytes,
    commutativity: bool,
    ctx: &Context<'_, P>,
) -> Footprint {
    if !commutativity {
        return Footprint::of_everything();
    }
    let mut footprint = Footprint::default();
    ctx.footprint(batch, &mut footprint);
    footprint
}

/// As many of these as go into one message, and their bytes.
pub(super) fn page<T>(items: impl Iterator<Item = T>, batch: fn(&T) -> &Bytes) -> (Vec<T>, usize) {
    let (mut page, mut bytes) = (Vec::new(), 0);
    for item in items {
        let more = batch(&item).len();
        if !page.is_empty() && bytes + more > PAGE_BYTES {
            break;
        }
        bytes += more;
        page.push(item);
    }
    (page, bytes)
}

//! An event of a world.
//!
//! ```text
//!   network, processes, clients, faults ──schedule──► Queue<Event> ──next──► World
//! ```

use crate::{faults::Kind, holding::Step, orphan};
use quintet_replica::{Bytes, Executed, Link, TimerKey};

/// More events than this in one world: something runs in circles.
pub(crate) const EVENTS_MAX: u64 = 3_000_000;

/// The next event.
#[derive(Debug)]
pub(crate) enum Event {
    /// A replica handles what is in its inbox.
    Step { node: u16, boot: u32 },
    /// A replica asked to be called at this time although its inbox may be empty.
    IdleWake { node: u16, boot: u32, at: u64 },
    /// A frame comes to its end.
    Deliver {
        from: u16,
        to: u16,
        session: u32,
        frame: Bytes,
    },
    /// A connection is tried.
    Connect { a: u16, b: u16 },
    /// A place learns that a connection broke, or that something long is coming by it.
    LinkTold { at: u16, peer: u16, link: Link },
    /// A timer may be due.
    Timer {
        place: u16,
        boot: u32,
        key: TimerKey,
    },
    /// A sync of a journal is done.
    Synced { node: u16, boot: u32 },
    /// Bytes of a snapshot are written.
    SnapshotWritten { node: u16, boot: u32, bytes: u64 },
    /// A snapshot is durable.
    SnapshotSaved { node: u16, boot: u32, id: Executed },
    /// A replica that was asked to stop has stopped, and stays down for so long.
    Stopped { node: u16, boot: u32, down: u64 },
    /// A replica crashes, if it still is where the crash was meant for.
    CrashNow {
        node: u16,
        boot: u32,
        kind: Kind,
        down: u64,
    },
    /// An operator asks for a snapshot.
    SnapshotWanted { node: u16 },
    /// An attack chooses other victims.
    AttackMoves { moves: u64, ends: u64 },
    /// Syncs that are held come to their next step.
    HoldingMoves { injection: u16, step: Step },
    /// A leader that replicas are to hear no more comes to its next step.
    OrphanMoves { injection: u16, step: orphan::Step },
    /// A replica stands still until a time.
    StandStill { node: u16, until: u64 },
    /// A crashed replica starts again.
    Restart { node: u16 },
    /// A client may invoke operations.
    Turn { client: u16 },
    /// A client continues with a read of the past.
    Past { client: u16, ask: u32 },
    /// A client sends operations again that it does not know the outcome of.
    Resubmit { client: u16 },
    /// A fault of the plan begins.
    Injection { injection: u16, tries: u8 },
    /// It ends.
    InjectionEnds { injection: u16 },
    /// A replica offers the end of the epoch.
    OfferEnd,
    /// The world looks whether its phase is over.
    Look,
    /// The replicas learn how their clocks stand to each other.
    CompareClocks,
}

//! State transfer: a replica that is too far behind the log obtains a peer's snapshot.
//!
//! ```text
//!   fetcher ── Ask{at_least, snapshot?, offset} ──► donor      one piece per request: the pace is
//!           ◄─ Piece{snapshot, total, offset, bytes} ──        the fetcher's, memory is bounded
//!           ◄─ NotYet{coming} ── (donor takes a snapshot first, or is behind itself) ──
//! ```
//!
//! The donor keeps no state. A lost message is asked for again by a timer; a donor that stays
//! silent is left for the next one, and a snapshot that has gone meanwhile starts over.

use crate::{
    Bytes, DecodeError, Executed, Position, Reader, ReplicaId, ReplicaSet, RestoreError, Slot,
    SnapshotReader, Time, Wire, Writer,
};
use core::time::Duration;

/// Bytes per piece.
pub(crate) const PIECE: usize = 256 * 1024;
pub(crate) const RETRY: Duration = Duration::from_millis(300);
/// A donor that has not answered this often in a row is left for the next.
const TRIES: u32 = 3;
/// So many promises of a snapshot and none that came.
const PROMISES: u32 = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransferMessage {
    Ask {
        at_least: Slot,
        snapshot: Option<Executed>,
        offset: u64,
    },
    Piece {
        snapshot: Executed,
        total: u64,
        offset: u64,
        bytes: Bytes,
    },
    /// No snapshot covers it. One is `coming` if the donor itself has come that far.
    NotYet { coming: bool },
}

fn encode_executed(executed: Executed, writer: &mut Writer<'_>) {
    writer.u64(executed.slot.0);
    writer.u64(executed.position.0);
}

fn decode_executed(reader: &mut Reader) -> Result<Executed, DecodeError> {
    Ok(Executed {
        slot: reader.slot("snapshot slot")?,
        position: Position(reader.number("snapshot position")?),
    })
}

impl Wire for TransferMessage {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Ask {
                at_least,
                snapshot,
                offset,
            } => {
                writer.u8(0);
                writer.u64(at_least.0);
                writer.bool(snapshot.is_some());
                encode_executed(snapshot.unwrap_or_default(), writer);
                writer.u64(*offset);
            }
            Self::Piece {
                snapshot,
                total,
                offset,
                bytes,
            } => {
                writer.u8(1);
                encode_executed(*snapshot, writer);
                writer.u64(*total);
                writer.u64(*offset);
                writer.blob(bytes);
            }
            Self::NotYet { coming } => {
                writer.u8(2);
                writer.bool(*coming);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("transfer message")? {
            0 => {
                let at_least = reader.slot("at least")?;
                let known = reader.bool("snapshot known")?;
                let snapshot = decode_executed(reader)?;
                let offset = reader.number("offset")?;
                Self::Ask {
                    at_least,
                    snapshot: known.then_some(snapshot),
                    offset,
                }
            }
            1 => Self::Piece {
                snapshot: decode_executed(reader)?,
                total: reader.number("total")?,
                offset: reader.number("offset")?,
                bytes: reader.blob("piece")?,
            },
            2 => Self::NotYet {
                coming: reader.bool("coming")?,
            },
            _ => return Err(DecodeError::Bad("transfer message")),
        })
    }
}

/// A snapshot being fetched.
#[derive(Debug)]
pub(crate) struct Fetch {
    from: ReplicaSet,
    donor: ReplicaId,
    pub at_least: Slot,
    /// Which snapshot, once a donor has named one.
    pub snapshot: Option<Executed>,
    pub offset: u64,
    /// Checks the stream as it comes.
    pub reader: SnapshotReader,
    tries: u32,
    /// How often the donor said that its snapshot is coming.
    promised: u32,
    pub retry_at: Time,
}

impl Fetch {
    pub fn new(from: ReplicaSet, at_least: Slot, now: Time) -> Option<Self> {
        let donor = from.iter().next()?;
        Some(Self {
            from,
            donor,
            at_least,
            snapshot: None,
            offset: 0,
            reader: SnapshotReader::default(),
            tries: 0,
            promised: 0,
            retry_at: now,
        })
    }

    pub fn ask(&mut self, now: Time) -> (ReplicaId, TransferMessage) {
        self.retry_at = now + RETRY;
        let (at_least, snapshot, offset) = (self.at_least, self.snapshot, self.offset);
        (
            self.donor,
            TransferMessage::Ask {
                at_least,
                snapshot,
                offset,
            },
        )
    }

    /// The donor was silent: ask it again, or the next one from the start.
    pub fn on_silence(&mut self) {
        self.tries += 1;
        if self.tries >= TRIES {
            self.leave_donor();
        }
    }

    /// Turns to the next donor and starts from the beginning.
    pub fn leave_donor(&mut self) {
        self.tries = 0;
        self.promised = 0;
        let next = self.from.iter().find(|id| *id > self.donor);
        self.donor = next
            .or_else(|| self.from.iter().next())
            .unwrap_or(self.donor);
        self.snapshot = None;
        self.offset = 0;
    }

    /// Checks the next bytes of the stream.
    pub fn check(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.reader.feed(bytes);
        while self.reader.next_chunk()?.is_some() {}
        Ok(())
    }

    pub fn is_from(&self, from: ReplicaId) -> bool {
        self.donor == from
    }

    pub const fn on_answer(&mut self) {
        self.tries = 0;
        self.promised = 0;
    }

    /// The donor says that a snapshot is coming. One of what was executed before it was final may
    /// never become final, so that others are asked after a while; a large one is there by the time
    /// that its donor has its turn again.
    pub fn on_promise(&mut self) {
        self.tries = 0;
        self.promised += 1;
        if self.promised >= PROMISES {
            self.leave_donor();
        }
    }
}

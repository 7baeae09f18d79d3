//! State transfer: a replica that is too far behind the log obtains a peer's snapshot.
//!
//! ```text
//!   fetcher ── Ask{at_least, snapshot?, offset} ──► donor      one piece per request: the pace is
//!           ◄─ Piece{snapshot, total, offset, bytes} ──        the fetcher's, memory is bounded
//!           ◄─ NotYet{written} ── (donor takes a snapshot first, or is behind itself) ──
//! ```
//!
//! A log may be shorter than a transfer under load. Whoever needs a state a second time asks for one
//! with what is executed meanwhile: the donor takes a new snapshot and keeps the batches that follow
//! it, bounded, as long as it is asked.
//!
//! ```text
//!   fetcher ── AskFed … ──► donor       as above, of a snapshot from which on it keeps batches
//!           ── Follow{after} ──►
//!           ◄─ Batches(Feed) ──         part by part; the last with the summary of a checkpoint
//!           ◄─ Gone ──                  no longer kept: the snapshot alone must do
//! ```
//!
//! The donor keeps no other state. A lost message is asked for again by a timer; a donor that stays
//! silent is left for the next one, and a snapshot that has gone meanwhile starts over.

use crate::{
    Bytes, DecodeError, Executed, Feed, Position, Reader, ReplicaId, ReplicaSet, RestoreError,
    Slot, SnapshotReader, Time, Wire, Writer,
};
use alloc::vec::Vec;
use core::time::Duration;

/// Bytes per piece.
pub(crate) const PIECE: usize = 256 * 1024;
pub(crate) const RETRY: Duration = Duration::from_millis(300);
/// A donor that has not answered this often in a row is left for the next.
const TRIES: u32 = 3;
/// So many promises of a snapshot and none that came.
const PROMISES: u32 = 20;

/// Between two questions for batches when there was nothing to be had.
pub(crate) const FOLLOW_PAUSE: Duration = Duration::from_millis(20);
/// A donor whose protocol has not summed up its state this often gives the snapshot alone.
const FOLLOWS: u32 = 100;
/// A state that is wanted so soon after another one is fetched with what is executed meanwhile.
pub(crate) const LATELY: Duration = Duration::from_secs(60);
/// The donor keeps batches for so long after a question.
pub(crate) const FEED_KEPT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransferMessage {
    Ask {
        at_least: Slot,
        snapshot: Option<Executed>,
        offset: u64,
        /// What is executed after the snapshot is wanted, too.
        fed: bool,
    },
    Piece {
        snapshot: Executed,
        total: u64,
        offset: u64,
        bytes: Bytes,
    },
    /// No snapshot covers it. If the donor itself has come that far one is coming, of which so many
    /// bytes have been written.
    NotYet {
        written: Option<u64>,
    },
    /// Give the batches after this slot, and a summary if that is all.
    Follow {
        after: Slot,
    },
    Batches(Feed),
    /// They are no longer kept.
    Gone,
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
                fed,
            } => {
                writer.u8(if *fed { 3 } else { 0 });
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
            Self::NotYet { written } => {
                writer.u8(2);
                writer.bool(written.is_some());
                writer.u64(written.unwrap_or_default());
            }
            Self::Follow { after } => {
                writer.u8(4);
                writer.u64(after.0);
            }
            Self::Batches(feed) => {
                writer.u8(5);
                feed.encode(writer);
            }
            Self::Gone => writer.u8(6),
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("transfer message")? {
            kind @ (0 | 3) => {
                let at_least = reader.slot("at least")?;
                let known = reader.bool("snapshot known")?;
                let snapshot = decode_executed(reader)?;
                let offset = reader.number("offset")?;
                Self::Ask {
                    at_least,
                    snapshot: known.then_some(snapshot),
                    offset,
                    fed: kind == 3,
                }
            }
            1 => Self::Piece {
                snapshot: decode_executed(reader)?,
                total: reader.number("total")?,
                offset: reader.number("offset")?,
                bytes: reader.blob("piece")?,
            },
            2 => {
                let coming = reader.bool("coming")?;
                let written = reader.number("written")?;
                Self::NotYet {
                    written: coming.then_some(written),
                }
            }
            4 => Self::Follow {
                after: reader.slot("after")?,
            },
            5 => Self::Batches(Feed::decode(reader)?),
            6 => Self::Gone,
            _ => return Err(DecodeError::Bad("transfer message")),
        })
    }
}

/// The batches behind a snapshot that has been fetched.
#[derive(Debug)]
pub(crate) struct Following {
    pub after: Slot,
    /// As they go behind the state.
    pub parts: Vec<Bytes>,
    pub bytes: u64,
    /// How often there was nothing new and no end.
    pauses: u32,
}

impl Following {
    pub const fn new(after: Slot) -> Self {
        Self {
            after,
            parts: Vec::new(),
            bytes: 0,
            pauses: 0,
        }
    }

    /// Nothing new has come; false when that is so too often.
    pub const fn pause(&mut self) -> bool {
        self.pauses += 1;
        self.pauses < FOLLOWS
    }
}

/// A snapshot being fetched.
#[derive(Debug)]
pub(crate) struct Fetch {
    from: ReplicaSet,
    donor: ReplicaId,
    /// What is wanted, with what follows the snapshot.
    pub at_least: Slot,
    /// What the snapshot must cover by itself.
    pub floor: Slot,
    /// Which snapshot, once a donor has named one.
    pub snapshot: Option<Executed>,
    pub offset: u64,
    /// Checks the stream as it comes.
    pub reader: SnapshotReader,
    /// What is executed meanwhile is wanted, too.
    pub fed: bool,
    /// The snapshot is whole but for its end, and is followed by what was executed since.
    pub following: Option<Following>,
    /// The snapshot that is being saved is followed by what was executed up to this slot.
    pub fed_upto: Slot,
    tries: u32,
    /// How often the donor said that its snapshot is coming, which was no longer then.
    promised: u32,
    /// How long it was.
    promised_bytes: u64,
    pub retry_at: Time,
}

impl Fetch {
    pub fn new(from: ReplicaSet, at_least: Slot, fed: bool, now: Time) -> Option<Self> {
        let donor = from.iter().next()?;
        Some(Self {
            from,
            donor,
            at_least,
            floor: at_least,
            snapshot: None,
            offset: 0,
            reader: SnapshotReader::default(),
            fed,
            following: None,
            fed_upto: Slot(0),
            tries: 0,
            promised: 0,
            promised_bytes: 0,
            retry_at: now,
        })
    }

    pub fn ask(&mut self, now: Time) -> (ReplicaId, TransferMessage) {
        self.retry_at = now + RETRY;
        if let Some(following) = &self.following {
            let after = following.after;
            return (self.donor, TransferMessage::Follow { after });
        }
        let (at_least, snapshot, offset) = (self.floor, self.snapshot, self.offset);
        let message = TransferMessage::Ask {
            at_least,
            snapshot,
            offset,
            fed: self.fed,
        };
        (self.donor, message)
    }

    /// Less is wanted from now on; or more, where what follows the snapshot brings it.
    pub fn want(&mut self, at_least: Slot) {
        self.at_least = at_least;
        self.floor = self.floor.min(at_least);
    }

    /// Up to where the snapshot by this name, just saved, brings the state.
    pub fn reach(&self, id: Executed) -> Slot {
        match self.snapshot == Some(id) {
            true => id.slot.max(self.fed_upto),
            false => id.slot,
        }
    }

    /// Starts from the beginning.
    pub fn begin_again(&mut self) {
        self.snapshot = None;
        self.offset = 0;
        self.following = None;
        self.fed_upto = Slot(0);
    }

    /// The donor was silent while batches were asked for; false when it is left alone.
    pub const fn keeps_following(&mut self) -> bool {
        self.tries += 1;
        self.tries < TRIES
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
        self.on_answer();
        let next = self.from.iter().find(|id| *id > self.donor);
        self.donor = next
            .or_else(|| self.from.iter().next())
            .unwrap_or(self.donor);
        self.begin_again();
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
        self.promised_bytes = 0;
    }

    /// The donor says that a snapshot is coming, of which so many bytes have been written. One of
    /// what was executed before it was final may never become final, so that others are asked when
    /// it has not grown for a while.
    pub fn on_promise(&mut self, written: u64) {
        self.tries = 0;
        self.promised += 1;
        if written > self.promised_bytes {
            self.promised = 0;
            self.promised_bytes = written;
        }
        if self.promised >= PROMISES {
            // An older snapshot may be there.
            self.fed = false;
            self.floor = self.at_least;
            self.leave_donor();
        }
    }
}

//! What travels, and what is kept on disk.

use super::{
    conflict::{Marks, SetHash},
    dom::{Name, Stamp},
};
use alloc::vec::Vec;
use quintet_replica::{
    BatchId, Bytes, DecodeError, FrontendId, Level, Reader, Slot, Wire, Writer, parts::Taken,
};
use smallvec::SmallVec;

/// More than a page has besides its batches.
pub(super) const PART_BYTES: usize = 64 << 10;

/// The lives that a replica knows all members to be in: the paper's crash vector.
pub type Lives = SmallVec<[u64; 9]>;

/// What a fast quorum compares, besides the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LogHash {
    /// A hash of the lives that the sender knows.
    pub lives: u64,
    /// Slots up to here are left out: committed, and so the same everywhere.
    pub base: Slot,
    /// Of the batch and of all above the base that it does not commute with; 0 with
    /// `known` false when the sender cannot tell.
    pub hash: u128,
    /// Whether `hash` means anything.
    pub known: bool,
}

impl LogHash {
    /// What an entry with this base, hash and knowledge of it tells, and with it these lives.
    pub(super) const fn of((base, hash, known): (Slot, u128, bool), lives: u64) -> Self {
        Self {
            lives,
            base,
            hash,
            known,
        }
    }
}

impl Wire for LogHash {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.lives);
        writer.u64(self.base.0);
        writer.u128(self.hash);
        writer.bool(self.known);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            lives: reader.u64("lives")?,
            base: reader.slot("hash base")?,
            hash: reader.u128("hash")?,
            known: reader.bool("hash known")?,
        })
    }
}

/// What the leader adds to results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReplyHeader {
    /// The view in which the batch has its slot.
    pub view: u64,
    /// Its slot; 0 for reads, which are final as they come.
    pub slot: Slot,
    /// The log's hash when it was appended.
    pub hash: LogHash,
    /// The latency bound that this replica asks for, in nanoseconds; 0 when it knows none.
    pub bound: u64,
}

impl Wire for ReplyHeader {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.view);
        writer.u64(self.slot.0);
        self.hash.encode(writer);
        writer.u64(self.bound);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            view: reader.number("view")?,
            slot: reader.slot("slot")?,
            hash: LogHash::decode(reader)?,
            bound: reader.u64("bound")?,
        })
    }
}

/// A batch with its place in the order of deadlines.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Placed {
    /// Its deadline.
    pub deadline: u64,
    /// Its bytes, which hold its name.
    pub batch: Bytes,
}

impl Wire for Placed {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.deadline);
        writer.blob(&self.batch);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            deadline: reader.u64("deadline")?,
            batch: reader.blob("batch")?,
        })
    }
}

/// A replica's log as it tells it to a new leader.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Vote {
    /// The last view in which it took part.
    pub view_normal: u64,
    /// All up to here is committed.
    pub commit: Slot,
    /// The first slot that it still keeps.
    pub kept: Slot,
    /// The slot of the first of `synced`.
    pub first: Slot,
    /// What is in slots that agree with the leader's, without gaps.
    pub synced: Vec<Stamp>,
    /// What it appended beyond that, in the order of deadlines.
    pub unsynced: Vec<Stamp>,
}

impl Vote {
    /// The last slot that agrees with the leader's.
    #[must_use]
    pub const fn sync(&self) -> Slot {
        Slot((self.first.0 + self.synced.len() as u64).saturating_sub(1))
    }
}

/// How a replica that is asked for recovery stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing {
    /// It takes part in the view that it names.
    Normal,
    /// It is between views.
    Changing,
    /// It has forgotten, too.
    Forgot,
}

/// A message between replicas, without what all of them carry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The leader's log, from slot `first` on; also its heartbeat.
    LogModification {
        /// The slot of the first stamp.
        first: Slot,
        /// What stands there and behind.
        stamps: Vec<Stamp>,
        /// All up to here is committed.
        commit: Slot,
        /// Echoed by followers: confirms that the sender still leads.
        round: u64,
    },
    /// A follower agrees with the leader durably up to `sync`.
    LogStatus {
        /// How far.
        sync: Slot,
        /// The newest round heard.
        round: u64,
    },
    /// The stamps of these slots did not come, those of later slots did.
    Lacks {
        /// The first slot.
        first: Slot,
        /// The last one.
        upto: Slot,
    },
    /// Which batches are missing here.
    Fetch(Vec<Name>),
    /// Batches that somebody asked for.
    Bodies(Vec<Bytes>),
    /// The leader's log from this slot on, to join its view.
    GetLog(Slot),
    /// A page of it.
    LogPage {
        /// The slot of the first one.
        first: Slot,
        /// Consecutive slots.
        entries: Vec<Placed>,
        /// The log's last slot when it was sent.
        end: Slot,
    },
    /// Slots below this one are no longer kept here.
    Trimmed(Slot),
    /// The leader is not heard any more.
    Suspect,
    /// A new view begins; the sender's commit point.
    ViewChange(Slot),
    /// To the new leader.
    Vote(Vote),
    /// A replica that forgot asks how things stand.
    Recover(u64),
    /// The answer to the question with this number.
    RecoverOk(u64, Standing),
    /// A follower's fast reply, where the leader checks quorums.
    Appended(Name, LogHash),
}

/// Between replicas, and between frontends and replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A frontend multicasts a batch.
    Request {
        /// When, by its clock.
        sent: u64,
        /// The latency bound: its deadline is `sent + bound`.
        bound: u64,
        /// The deviation of its clock's offset.
        deviation: u64,
        /// What the batch needs.
        level: Level,
        /// Its bytes.
        batch: Bytes,
    },
    /// A follower appended batches: a fast reply to each, those of a turn together.
    FastReplies {
        /// In this view.
        view: u64,
        /// As in [`ReplyHeader`].
        bound: u64,
        /// Which, and with which log.
        appended: Vec<(BatchId, LogHash)>,
    },
    /// A follower agrees with its leader up to a slot: stands for a slow reply to each batch.
    SlowReply {
        /// In this view.
        view: u64,
        /// The lives it knows.
        lives: u64,
        /// How far.
        sync: Slot,
        /// As in [`ReplyHeader`].
        bound: u64,
    },
    /// What became of a batch that was not appended.
    Taken {
        /// Which.
        batch: BatchId,
        /// Why.
        taken: Taken,
        /// The sender's view, so that its leader is found.
        view: u64,
    },
    /// Between replicas.
    Between {
        /// The sender's view.
        view: u64,
        /// The lives it knows; its own among them.
        lives: Lives,
        /// What it says.
        part: Part,
    },
    /// An embedded frontend tells its replica how many batches it committed so far, by path.
    Paths {
        /// By a fast quorum.
        fast: u64,
        /// By a slow one.
        slow: u64,
    },
}

fn encode_list<T: Wire>(list: &[T], writer: &mut Writer<'_>) {
    writer.length(list.len());
    for item in list {
        item.encode(writer);
    }
}

fn decode_list<T: Wire>(
    reader: &mut Reader,
    size_min: usize,
    field: &'static str,
) -> Result<Vec<T>, DecodeError> {
    let length = reader.length(size_min, field)?;
    (0..length).map(|_| T::decode(reader)).collect()
}

impl Wire for Name {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.frontend.0);
        writer.u64(self.batch.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            frontend: FrontendId(reader.u64("frontend")?),
            batch: BatchId(reader.u64("batch id")?),
        })
    }
}

impl Wire for Vote {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.view_normal);
        writer.u64(self.commit.0);
        writer.u64(self.kept.0);
        writer.u64(self.first.0);
        encode_list(&self.synced, writer);
        encode_list(&self.unsynced, writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            view_normal: reader.number("last view")?,
            commit: reader.slot("commit point")?,
            kept: first_slot(reader)?,
            first: first_slot(reader)?,
            synced: decode_list(reader, 24, "synced")?,
            unsynced: decode_list(reader, 24, "unsynced")?,
        })
    }
}

/// A slot that a list begins with: from 1.
fn first_slot(reader: &mut Reader) -> Result<Slot, DecodeError> {
    match reader.slot("first slot")? {
        Slot(0) => Err(DecodeError::Bad("first slot")),
        slot => Ok(slot),
    }
}

impl Wire for Part {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::LogModification {
                first,
                stamps,
                commit,
                round,
            } => {
                writer.u8(0);
                writer.u64(first.0);
                encode_list(stamps, writer);
                writer.u64(commit.0);
                writer.u64(*round);
            }
            Self::LogStatus { sync, round } => {
                writer.u8(1);
                writer.u64(sync.0);
                writer.u64(*round);
            }
            Self::Lacks { first, upto } => {
                writer.u8(13);
                writer.u64(first.0);
                writer.u64(upto.0);
            }
            Self::Fetch(names) => {
                writer.u8(2);
                encode_list(names, writer);
            }
            Self::Bodies(batches) => {
                writer.u8(3);
                writer.length(batches.len());
                for batch in batches {
                    writer.blob(batch);
                }
            }
            Self::GetLog(from) => {
                writer.u8(4);
                writer.u64(from.0);
            }
            Self::LogPage {
                first,
                entries,
                end,
            } => {
                writer.u8(5);
                writer.u64(first.0);
                encode_list(entries, writer);
                writer.u64(end.0);
            }
            Self::Trimmed(below) => {
                writer.u8(6);
                writer.u64(below.0);
            }
            Self::Suspect => writer.u8(7),
            Self::ViewChange(commit) => {
                writer.u8(8);
                writer.u64(commit.0);
            }
            Self::Vote(vote) => {
                writer.u8(9);
                vote.encode(writer);
            }
            Self::Recover(nonce) => {
                writer.u8(10);
                writer.u64(*nonce);
            }
            Self::Appended(name, hash) => {
                writer.u8(12);
                name.encode(writer);
                hash.encode(writer);
            }
            Self::RecoverOk(nonce, standing) => {
                writer.u8(11);
                writer.u64(*nonce);
                writer.u8(match standing {
                    Standing::Normal => 0,
                    Standing::Changing => 1,
                    Standing::Forgot => 2,
                });
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("part")? {
            0 => Self::LogModification {
                first: first_slot(reader)?,
                stamps: decode_list(reader, 24, "stamps")?,
                commit: reader.slot("commit point")?,
                round: reader.u64("round")?,
            },
            1 => Self::LogStatus {
                sync: reader.slot("sync point")?,
                round: reader.u64("round")?,
            },
            2 => Self::Fetch(decode_list(reader, 16, "names")?),
            3 => {
                let length = reader.length(4, "bodies")?;
                let bodies = (0..length).map(|_| reader.blob("body"));
                Self::Bodies(bodies.collect::<Result<_, _>>()?)
            }
            4 => Self::GetLog(first_slot(reader)?),
            5 => Self::LogPage {
                first: first_slot(reader)?,
                entries: decode_list(reader, 12, "entries")?,
                end: reader.slot("end")?,
            },
            6 => Self::Trimmed(first_slot(reader)?),
            7 => Self::Suspect,
            8 => Self::ViewChange(reader.slot("commit point")?),
            9 => Self::Vote(Vote::decode(reader)?),
            10 => Self::Recover(reader.u64("nonce")?),
            11 => Self::RecoverOk(
                reader.u64("nonce")?,
                match reader.u8("standing")? {
                    0 => Standing::Normal,
                    1 => Standing::Changing,
                    2 => Standing::Forgot,
                    _ => return Err(DecodeError::Bad("standing")),
                },
            ),
            13 => Self::Lacks {
                first: first_slot(reader)?,
                upto: reader.slot("end of a gap")?,
            },
            12 => Self::Appended(Name::decode(reader)?, LogHash::decode(reader)?),
            _ => return Err(DecodeError::Bad("part")),
        })
    }
}

fn decode_lives(reader: &mut Reader) -> Result<Lives, DecodeError> {
    let count = reader.u8("lives")?.into();
    (0..reader.one_per_member(count, "lives")?)
        .map(|_| reader.u64("life"))
        .collect()
}

impl Wire for Message {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Request {
                sent,
                bound,
                deviation,
                level,
                batch,
            } => {
                writer.u8(0);
                writer.u64(*sent);
                writer.u64(*bound);
                writer.u64(*deviation);
                writer.u8(*level as u8);
                writer.blob(batch);
            }
            Self::FastReplies {
                view,
                bound,
                appended,
            } => {
                writer.u8(1);
                writer.u64(*view);
                writer.u64(*bound);
                writer.length(appended.len());
                for (batch, hash) in appended {
                    writer.u64(batch.0);
                    hash.encode(writer);
                }
            }
            Self::SlowReply {
                view,
                lives,
                sync,
                bound,
            } => {
                writer.u8(2);
                writer.u64(*view);
                writer.u64(*lives);
                writer.u64(sync.0);
                writer.u64(*bound);
            }
            Self::Taken { batch, taken, view } => {
                writer.u8(3);
                writer.u64(batch.0);
                writer.u8(match taken {
                    Taken::Accepted => 0,
                    Taken::Refused => 1,
                    Taken::Busy => 2,
                });
                writer.u64(*view);
            }
            Self::Between { view, lives, part } => {
                writer.u8(4);
                writer.u64(*view);
                writer.u8(lives.len() as u8);
                for life in lives {
                    writer.u64(*life);
                }
                part.encode(writer);
            }
            Self::Paths { fast, slow } => {
                writer.u8(5);
                writer.u64(*fast);
                writer.u64(*slow);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("message")? {
            0 => Self::Request {
                sent: reader.u64("sending time")?,
                bound: reader.u64("latency bound")?,
                deviation: reader.u64("deviation")?,
                level: Level::from_byte(reader.u8("level")?).ok_or(DecodeError::Bad("level"))?,
                batch: reader.blob("batch")?,
            },
            1 => {
                let (view, bound) = (reader.number("view")?, reader.u64("bound")?);
                let count = reader.length(41, "fast replies")?;
                let one = |_| Ok((BatchId(reader.u64("batch id")?), LogHash::decode(reader)?));
                Self::FastReplies {
                    view,
                    bound,
                    appended: (0..count).map(one).collect::<Result<_, _>>()?,
                }
            }
            2 => Self::SlowReply {
                view: reader.number("view")?,
                lives: reader.u64("lives")?,
                sync: reader.slot("sync point")?,
                bound: reader.u64("bound")?,
            },
            3 => Self::Taken {
                batch: BatchId(reader.u64("batch id")?),
                taken: match reader.u8("taken")? {
                    0 => Taken::Accepted,
                    1 => Taken::Refused,
                    2 => Taken::Busy,
                    _ => return Err(DecodeError::Bad("taken")),
                },
                view: reader.number("view")?,
            },
            4 => {
                let view = reader.number("view")?;
                Self::Between {
                    view,
                    lives: decode_lives(reader)?,
                    part: Part::decode(reader)?,
                }
            }
            5 => Self::Paths {
                fast: reader.u64("fast")?,
                slow: reader.u64("slow")?,
            },
            _ => return Err(DecodeError::Bad("message")),
        })
    }
}

/// What must survive a crash in every durability.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Promised {
    /// The highest view entered.
    pub view: u64,
    /// The last view in which it took part.
    pub view_normal: u64,
    /// The lives known.
    pub lives: Lives,
}

impl Wire for Promised {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.view);
        writer.u64(self.view_normal);
        writer.u8(self.lives.len() as u8);
        for life in &self.lives {
            writer.u64(*life);
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (view, view_normal) = (reader.number("view")?, reader.number("last view")?);
        Ok(Self {
            view,
            view_normal,
            lives: decode_lives(reader)?,
        })
    }
}

/// What the journal keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A batch was appended: in this slot, or (0) beyond what agrees with the leader.
    Entry(Slot, Placed),
    /// A batch that an earlier record holds stands in this slot, with this deadline.
    Moved(Slot, Stamp),
    /// A view began: behind slot `keep` the log is this, and nothing else.
    Begin {
        /// Which view.
        view: u64,
        /// The last slot that stays as it is.
        keep: Slot,
        /// The slots behind it.
        entries: Vec<Placed>,
    },
}

impl Wire for Record {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Entry(slot, placed) => {
                writer.u8(0);
                writer.u64(slot.0);
                placed.encode(writer);
            }
            Self::Moved(slot, stamp) => {
                writer.u8(1);
                writer.u64(slot.0);
                stamp.encode(writer);
            }
            Self::Begin {
                view,
                keep,
                entries,
            } => {
                writer.u8(2);
                writer.u64(*view);
                writer.u64(keep.0);
                encode_list(entries, writer);
            }
        }
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("record")? {
            0 => Self::Entry(reader.slot("slot")?, Placed::decode(reader)?),
            1 => Self::Moved(reader.slot("slot")?, Stamp::decode(reader)?),
            2 => Self::Begin {
                view: reader.number("view")?,
                keep: reader.slot("slot")?,
                entries: decode_list(reader, 12, "entries")?,
            },
            _ => return Err(DecodeError::Bad("record")),
        })
    }
}

/// What a snapshot carries for the protocol: what bars batches behind it, and what their fast
/// replies must tell of the log before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The watermarks of the log up to the snapshot.
    pub marks: Marks,
    /// The hashes of the log up to the snapshot.
    pub hash: SetHash,
}

impl Wire for Summary {
    fn encode(&self, writer: &mut Writer<'_>) {
        self.marks.encode(writer);
        self.hash.encode(writer);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            marks: Marks::decode(reader)?,
            hash: SetHash::decode(reader)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamps(count: u64) -> Vec<Stamp> {
        let stamp = |n| Stamp {
            deadline: n,
            name: Name {
                frontend: FrontendId(n),
                batch: BatchId(n + 1),
            },
        };
        (0..count).map(stamp).collect()
    }

    fn round_trip<T: Wire + PartialEq + core::fmt::Debug>(value: &T) {
        let bytes = value.encode_to_bytes();
        assert_eq!(T::decode_all(bytes.clone()).as_ref(), Ok(value));
        for length in 0..bytes.len() {
            assert!(T::decode_all(bytes.slice(..length)).is_err(), "{value:?}");
        }
    }

    #[test]
    fn everything_is_read_as_it_was_written_and_no_part_of_it_is() {
        let placed = || Placed {
            deadline: 5,
            batch: Bytes::from_static(b"batch"),
        };
        let vote = Vote {
            view_normal: 3,
            commit: Slot(4),
            kept: Slot(2),
            first: Slot(5),
            synced: stamps(2),
            unsynced: stamps(3),
        };
        assert_eq!(vote.sync(), Slot(6));
        let parts = [
            Part::LogModification {
                first: Slot(1),
                stamps: stamps(2),
                commit: Slot(9),
                round: 8,
            },
            Part::LogStatus {
                sync: Slot(3),
                round: 1,
            },
            Part::Lacks {
                first: Slot(3),
                upto: Slot(4),
            },
            Part::Fetch(stamps(2).iter().map(|stamp| stamp.name).collect()),
            Part::Bodies(alloc::vec![placed().batch, Bytes::new()]),
            Part::GetLog(Slot(7)),
            Part::LogPage {
                first: Slot(7),
                entries: alloc::vec![placed(), placed()],
                end: Slot(9),
            },
            Part::Trimmed(Slot(3)),
            Part::Suspect,
            Part::ViewChange(Slot(0)),
            Part::Vote(vote),
            Part::Recover(77),
            Part::RecoverOk(77, Standing::Changing),
        ];
        for part in parts {
            round_trip(&Message::Between {
                view: 6,
                lives: Lives::from_slice(&[1, 2, 3]),
                part,
            });
        }
        let hash = LogHash {
            lives: 1,
            base: Slot(2),
            hash: 3,
            known: true,
        };
        round_trip(&Message::FastReplies {
            view: 2,
            bound: 9,
            appended: alloc::vec![(BatchId(1), hash), (BatchId(3), LogHash::default())],
        });
        round_trip(&Message::SlowReply {
            view: 2,
            lives: 7,
            sync: Slot(1),
            bound: 9,
        });
        round_trip(&Message::Taken {
            batch: BatchId(3),
            taken: Taken::Busy,
            view: 2,
        });
        round_trip(&Message::Request {
            sent: 1,
            bound: 2,
            deviation: 3,
            level: Level::Linearizable,
            batch: placed().batch,
        });
        round_trip(&Message::Paths { fast: 1, slow: 2 });
        round_trip(&Record::Entry(Slot(0), placed()));
        round_trip(&Record::Moved(Slot(2), stamps(1)[0]));
        round_trip(&Record::Begin {
            view: 1,
            keep: Slot(3),
            entries: alloc::vec![placed()],
        });
        round_trip(&Promised {
            view: 4,
            view_normal: 3,
            lives: Lives::from_slice(&[1]),
        });
        round_trip(&ReplyHeader {
            view: 1,
            slot: Slot(2),
            hash,
            bound: 4,
        });
    }

    #[test]
    fn lists_that_begin_nowhere_are_refused() {
        let part = Part::GetLog(Slot(0));
        assert!(Part::decode_all(part.encode_to_bytes()).is_err());
        let part = Part::GetLog(Slot(u64::MAX));
        assert!(Part::decode_all(part.encode_to_bytes()).is_err());
    }
}

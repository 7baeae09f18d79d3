//! The batches executed after a snapshot, as they follow the state in a fetched snapshot's stream.

use super::{Executor, Sealed, stream::Before};
use crate::{
    Bytes, CommandTime, DecodeError, Executed, Position, Reader, RestoreError, Slot, Wire, Writer,
    limits::FEED_PART,
};
use alloc::{
    format,
    vec::{self, Vec},
};

/// A batch that has been executed and is final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fed {
    /// Where it was decided.
    pub slot: Slot,
    /// Its time.
    pub time: CommandTime,
    /// Its bytes.
    pub batch: Bytes,
}

/// Where a feed ends: what a checkpoint there would say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedEnd {
    /// How far execution has come by then.
    pub executed: Executed,
    /// The log's clock there.
    pub time: CommandTime,
    /// The protocol's state to continue from there.
    pub summary: Bytes,
}

/// A part of the batches executed after a snapshot, in the order of their slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// It continues behind this slot.
    pub after: Slot,
    /// It covers everything up to this slot; slots without a batch in it had nothing in them.
    pub upto: Slot,
    /// The batches.
    pub batches: Vec<Fed>,
    /// Set in the last part.
    pub end: Option<FeedEnd>,
}

impl Feed {
    /// Takes batches, which ascend, until there are enough for one part. `upto` is what they and
    /// all later ones cover.
    pub(crate) fn part<'a>(
        after: Slot,
        upto: Slot,
        batches: impl Iterator<Item = &'a Fed>,
    ) -> Self {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        let mut covered = upto;
        for fed in batches.take_while(|fed| fed.slot <= upto) {
            if bytes >= FEED_PART {
                covered = fed.slot.previous();
                break;
            }
            bytes += fed.batch.len() + Self::FED_MIN;
            taken.push(fed.clone());
        }
        Self {
            after,
            upto: covered,
            batches: taken,
            end: None,
        }
    }

    /// About how long it is.
    pub(crate) fn bytes(&self) -> usize {
        let batches = self.batches.iter();
        batches.map(|fed| fed.batch.len() + Self::FED_MIN).sum()
    }

    /// Bytes of slot, time and length.
    const FED_MIN: usize = 8 + 8 + 4;
}

/// A part of the feed that is being executed.
#[derive(Debug)]
pub(super) struct FedPart {
    batches: vec::IntoIter<Fed>,
    upto: Slot,
    end: Option<FeedEnd>,
}

impl FedPart {
    /// Batches of this replica's own, up to a slot.
    pub(super) fn new(batches: Vec<Fed>, upto: Slot) -> Self {
        Self {
            batches: batches.into_iter(),
            upto,
            end: None,
        }
    }
}

/// Once long commands and results among them have taken this many steps, the other batches wait for
/// the next turn.
const FED_STEPS: u64 = 1 << 20;

impl Executor {
    /// How many bytes of the snapshot that is being restored have been read.
    #[must_use]
    pub const fn restored_bytes(&self) -> u64 {
        self.restoring.offset
    }

    /// How long the state was that was restored last, without what followed it.
    #[must_use]
    pub const fn state_bytes(&self) -> u64 {
        self.state_bytes
    }

    /// All chunks of the state are there.
    pub(super) fn finish_state(&mut self) -> Result<(), RestoreError> {
        self.machine.finish_restore()?;
        // The batches behind the state are executed, and count for the next snapshot.
        self.bytes_since = 0;
        self.state_bytes = self.restoring.state_end;
        if let Some(header) = &self.restoring.header {
            self.base = header.base;
            self.sealed = Sealed::restored(header);
            let sealed = self.sealed.as_ref();
            self.executed = sealed.map_or(header.executed, |sealed| sealed.seal.base);
            self.time = header.time;
        }
        Ok(())
    }

    /// Takes a part of what followed the state where the snapshot comes from, to be executed.
    pub(super) fn take_feed(&mut self, feed: Feed) -> Result<(), RestoreError> {
        if self.restoring.before.is_none() {
            self.restoring.before = Some(Before {
                executed: self.executed,
                sealed: self.sealed.take(),
            });
            self.finish_state()?;
        }
        self.restoring.fed = Some(FedPart {
            batches: feed.batches.into_iter(),
            upto: feed.upto,
            end: feed.end,
        });
        Ok(())
    }

    /// Whether batches that have been taken wait to be executed.
    #[must_use]
    pub const fn has_fed(&self) -> bool {
        self.restoring.fed.is_some()
    }

    /// Executes batches of the part that was taken, as many as `left` bytes of them; it goes down.
    /// Peers must not take a replica that has much to execute for a dead one.
    pub(super) fn execute_fed(&mut self, left: &mut usize) -> Result<(), RestoreError> {
        let begun = self.work();
        let Some(mut part) = self.restoring.fed.take() else {
            return Ok(());
        };
        while let Some(fed) = part.batches.as_slice().first() {
            let worked = self.work() - begun >= FED_STEPS;
            if *left == 0 || worked {
                *left = 0;
                self.restoring.fed = Some(part);
                return Ok(());
            }
            *left = left.saturating_sub(fed.batch.len() + Feed::FED_MIN);
            if let Some(fed) = part.batches.next() {
                self.execute(fed.slot, fed.time, &fed.batch, None);
            }
        }
        self.set_reached(part.upto);
        let came = self.covered();
        let (Some(end), Some(header)) = (part.end, &mut self.restoring.header) else {
            return Ok(());
        };
        if end.executed != came || end.time != self.time {
            return Err(RestoreError(format!(
                "the batches behind its state lead to {:?} at {}, not to {:?} at {} as they did \
                 where it comes from",
                came, self.time.0, end.executed, end.time.0
            )));
        }
        header.executed = end.executed;
        header.time = end.time;
        header.summary = end.summary;
        Ok(())
    }
}

impl Wire for Feed {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.after.0);
        writer.u64(self.upto.0);
        writer.length(self.batches.len());
        for fed in &self.batches {
            writer.u64(fed.slot.0);
            writer.u64(fed.time.0);
            writer.blob(&fed.batch);
        }
        writer.bool(self.end.is_some());
        if let Some(end) = &self.end {
            writer.u64(end.executed.position.0);
            writer.u64(end.time.0);
            writer.blob(&end.summary);
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (after, upto) = (reader.slot("feed after")?, reader.slot("feed up to")?);
        if upto < after {
            return Err(DecodeError::Bad("feed up to"));
        }
        let count = reader.length(Self::FED_MIN, "feed batches")?;
        let (mut batches, mut last) = (Vec::with_capacity(count), after);
        for _ in 0..count {
            let fed = Fed {
                slot: reader.slot("fed slot")?,
                time: CommandTime(reader.u64("fed time")?),
                batch: reader.blob("fed batch")?,
            };
            if fed.slot <= last || fed.slot > upto {
                return Err(DecodeError::Bad("fed slot"));
            }
            last = fed.slot;
            batches.push(fed);
        }
        let end = match reader.bool("feed ends")? {
            false => None,
            true => Some(FeedEnd {
                executed: Executed {
                    slot: upto,
                    position: Position(reader.number("fed position")?),
                },
                time: CommandTime(reader.u64("fed time")?),
                summary: reader.blob("fed summary")?,
            }),
        };
        Ok(Self {
            after,
            upto,
            batches,
            end,
        })
    }
}

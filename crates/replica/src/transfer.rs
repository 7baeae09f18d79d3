//! State transfer: a replica that is too far behind the log obtains a peer's snapshot.
//!
//! ```text
//!   fetcher ── Ask{at_least, snapshot?, offset} ──► donor      one piece per request, a window of
//!           ◄─ Piece{snapshot, total, offset, bytes} ──        requests: the pace is the fetcher's
//!           ◄─ NotYet{written} ── (donor takes a snapshot first, or is behind itself) ──
//! ```
//!
//! A log may be shorter than a transfer under load. A replica that needs a state a second time asks
//! for one with what is executed meanwhile: the donor takes a new snapshot and keeps the batches
//! that follow it, bounded, as long as it is asked.
//!
//! ```text
//!   fetcher ── Ask{fed} ──► donor       as above, of a snapshot from which on it keeps batches
//!           ── Follow{after, end} ──►
//!           ◄─ Batches(Feed) … ──       a few parts at a time
//!           ◄─ Gone ──                  no longer kept: the snapshot alone must do
//! ```
//!
//! The parts are appended to the file of the state, behind it, so that neither side keeps them in
//! memory. Meanwhile the state is restored from that file, and then what follows it is executed:
//! the feed continues all the time. Only when that has come near its end does the fetcher ask for
//! an end, the summary of a checkpoint at the donor's last slot; the protocol continues from there,
//! a few round trips later. A feed that breaks off before leaves the state, which stands alone
//! then.
//!
//! The donor keeps no other state. A lost message is asked for again by a timer; a donor that stays
//! silent is left for the next one. Received parts stay, across a restart of the fetcher, too: a
//! donor that has the same file, as its origin tells, continues from there. One that has not gives
//! its own from the beginning, and only then is the old part thrown away.

use crate::{
    Bytes, DecodeError, Executed, Feed, Position, Reader, ReplicaId, ReplicaSet, RestoreError,
    Slot, SnapshotHeader, SnapshotLeft, SnapshotReader, Time, Wire, Writer,
};
use alloc::collections::BTreeMap;
use core::time::Duration;
use smallvec::SmallVec;

/// Those that are asked for a state, in this order.
pub(crate) type Donors = SmallVec<[ReplicaId; 8]>;

/// Bytes per piece.
pub(crate) const PIECE: usize = 256 * 1024;
pub(crate) const RETRY: Duration = Duration::from_millis(300);
/// A donor that has not answered this often in a row is left for the next …
const TRIES: u32 = 3;
/// … but once more for this many bytes that it has given, as these are lost then …
const TRY_BYTES: u64 = 8 << 20;
/// … and no more than this in all: for so long donors keep a snapshot that is asked for.
const TRIES_MAX: u32 = 30;
/// This many bytes are asked for at once at first, and by one piece more whenever one has come …
const WINDOW_MIN: u64 = 1 << 20;
/// … up to this many: half of what 1 Gbit/s carries in 100 ms, and room for the bursts of others.
pub(crate) const WINDOW_MAX: u64 = 8 << 20;
/// A donor gives pieces ahead of others only where the link has room for this many bytes.
pub(crate) const AHEAD_ROOM: usize = 4 * PIECE;
/// A world keeps a snapshot readable for so long after it was read last, though newer ones have
/// replaced it, as peers that fetch it ask again by then …
pub const SNAPSHOT_OPEN_FOR: Duration = Duration::from_secs(15);
/// … and of these no more than this: the disk space of others is given back. A node remembers the
/// origins of as many.
pub const SNAPSHOTS_OPEN_MAX: usize = 4;
/// This many promises of a snapshot and none that came.
const PROMISES: u32 = 20;

/// A state that could not be saved is asked for again after this pause, which doubles each time …
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// … up to this one.
const FAILED_PAUSE_MAX: Duration = Duration::from_secs(4);
/// Between two questions for batches when there was nothing to be had.
pub(crate) const FOLLOW_PAUSE: Duration = Duration::from_millis(20);
/// An end is asked for when this many turns do what is left to be restored and executed: before the
/// log of others has gone on far.
pub(crate) const END_NEAR: u64 = 8;
/// A state is followed by no more than this many times its own length, or than a donor keeps.
pub(crate) const FEED_TIMES: u64 = 4;
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
        snapshot: Option<SnapshotFile>,
        offset: u64,
        /// The batches executed after the snapshot are wanted, too.
        fed: bool,
        /// Pieces before this one are on their way: it may be dropped where the link is full.
        ahead: bool,
    },
    Piece {
        snapshot: SnapshotFile,
        /// Its length, or 0.
        total: u64,
        offset: u64,
        bytes: Bytes,
        /// The donor executes commands besides.
        busy: bool,
    },
    /// No snapshot covers it. If the donor itself has come that far one is coming, of which this
    /// many bytes have been written; what is executed after it may be kept, too.
    NotYet { written: Option<u64>, kept: bool },
    /// Give the batches after this slot.
    Follow {
        after: Slot,
        /// And a summary, if that is all.
        end: bool,
    },
    Batches {
        feed: Feed,
        /// The next part follows without being asked for.
        more: bool,
    },
    /// They are no longer kept.
    Gone,
}

/// Which snapshot, byte by byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotFile {
    pub id: Executed,
    /// See [`SnapshotHeader::origin`].
    pub origin: u64,
}

fn encode_file(file: SnapshotFile, writer: &mut Writer<'_>) {
    writer.u64(file.id.slot.0);
    writer.u64(file.id.position.0);
    writer.u64(file.origin);
}

fn decode_file(reader: &mut Reader) -> Result<SnapshotFile, DecodeError> {
    let id = Executed {
        slot: reader.slot("snapshot slot")?,
        position: Position(reader.number("snapshot position")?),
    };
    let origin = reader.u64("snapshot origin")?;
    Ok(SnapshotFile { id, origin })
}

impl Wire for TransferMessage {
    fn encode(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Ask {
                at_least,
                snapshot,
                offset,
                fed,
                ahead,
            } => {
                writer.u8(0);
                writer.bool(*fed);
                writer.bool(*ahead);
                writer.u64(at_least.0);
                writer.bool(snapshot.is_some());
                encode_file(snapshot.unwrap_or_default(), writer);
                writer.u64(*offset);
            }
            Self::Piece {
                snapshot,
                total,
                offset,
                bytes,
                busy,
            } => {
                writer.u8(1);
                encode_file(*snapshot, writer);
                writer.u64(*total);
                writer.u64(*offset);
                writer.bool(*busy);
                writer.blob(bytes);
            }
            Self::NotYet { written, kept } => {
                writer.u8(2);
                writer.bool(*kept);
                writer.bool(written.is_some());
                writer.u64(written.unwrap_or_default());
            }
            Self::Follow { after, end } => {
                writer.u8(4);
                writer.bool(*end);
                writer.u64(after.0);
            }
            Self::Batches { feed, more } => {
                writer.u8(5);
                writer.bool(*more);
                feed.encode(writer);
            }
            Self::Gone => writer.u8(6),
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match reader.u8("transfer message")? {
            0 => {
                let (fed, ahead) = (reader.bool("fed")?, reader.bool("ahead")?);
                let at_least = reader.slot("at least")?;
                let known = reader.bool("snapshot known")?;
                let snapshot = decode_file(reader)?;
                let offset = reader.number("offset")?;
                Self::Ask {
                    at_least,
                    snapshot: known.then_some(snapshot),
                    offset,
                    fed,
                    ahead,
                }
            }
            1 => Self::Piece {
                snapshot: decode_file(reader)?,
                total: reader.number("total")?,
                offset: reader.number("offset")?,
                busy: reader.bool("busy")?,
                bytes: reader.blob("piece")?,
            },
            2 => {
                let kept = reader.bool("kept")?;
                let coming = reader.bool("coming")?;
                let written = reader.number("written")?;
                Self::NotYet {
                    written: coming.then_some(written),
                    kept,
                }
            }
            4 => Self::Follow {
                end: reader.bool("end")?,
                after: reader.slot("after")?,
            },
            5 => Self::Batches {
                more: reader.bool("more")?,
                feed: Feed::decode(reader)?,
            },
            6 => Self::Gone,
            _ => return Err(DecodeError::Bad("transfer message")),
        })
    }
}

/// The batches behind a snapshot that has been fetched.
#[derive(Debug)]
pub(crate) struct Following {
    pub after: Slot,
    /// Where they begin in the file.
    pub begin: u64,
    /// Bytes of those that have come.
    pub bytes: u64,
    /// An end was asked for with the next part.
    pub end_asked: bool,
    /// How often one was asked for that the donor did not have.
    pauses: u32,
    /// No more is asked for until then.
    paused_until: Time,
}

impl Following {
    pub const fn new(after: Slot, begin: u64) -> Self {
        Self {
            after,
            begin,
            bytes: 0,
            end_asked: false,
            pauses: 0,
            paused_until: Time(0),
        }
    }

    /// Nothing new has come, or all that there is and no end that was asked for.
    pub fn pause(&mut self, now: Time, counts: bool) {
        self.pauses += u32::from(counts && self.end_asked);
        self.paused_until = now + FOLLOW_PAUSE;
    }

    /// False when the donor has had no end too often.
    pub const fn continues(&self) -> bool {
        self.pauses < FOLLOWS
    }
}

/// How many bytes per second may be asked for; 0 for any number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub max: u64,
    /// Of a donor that executes commands besides.
    pub busy: u64,
}

impl Rates {
    pub const fn of_limits(limits: &crate::ExecutorLimits) -> Self {
        Self {
            max: limits.transfer_rate_max,
            busy: limits.transfer_rate_busy,
        }
    }

    const fn of(self, busy: bool) -> u64 {
        match (busy, self.busy, self.max) {
            (false, _, max) | (true, 0, max) => max,
            (true, busy, max) if max == 0 || busy < max => busy,
            (true, _, max) => max,
        }
    }
}

/// A snapshot being fetched.
#[derive(Debug)]
pub(crate) struct Fetch {
    /// Those that may give it, whom to ask first at the front.
    donors: Donors,
    donor: usize,
    /// The wanted slot, with the batches behind the snapshot.
    pub at_least: Slot,
    /// The slot that the snapshot must cover by itself.
    pub floor: Slot,
    /// Which snapshot, once a donor has named one.
    pub snapshot: Option<SnapshotFile>,
    pub offset: u64,
    /// The pieces begin there.
    base: u64,
    /// Its length, once it is known; 0 also when another donor is asked for the rest.
    total: u64,
    /// It has been asked for up to here …
    asked: u64,
    /// … which may be so far ahead of `offset`.
    window: u64,
    /// Pieces that came before one that they follow.
    early: BTreeMap<u64, Bytes>,
    rates: Rates,
    /// The donor executes commands besides.
    pub busy: bool,
    /// The next piece may be asked for then.
    paced_at: Time,
    /// How long to wait when the state cannot be saved.
    failed_pause: Duration,
    /// When it was named, or the fetch began.
    pub begun: Time,
    /// Checks the stream as it comes.
    pub reader: SnapshotReader,
    /// The batches executed meanwhile are wanted, too.
    pub fed: bool,
    /// It was wanted, and kept the snapshot from being given.
    stands_alone: bool,
    /// The next part of what follows has been asked for.
    follow_asked: bool,
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
    pub fn new(donors: Donors, at_least: Slot, fed: bool, rates: Rates, now: Time) -> Option<Self> {
        (!donors.is_empty()).then(|| Self {
            donors,
            donor: 0,
            at_least,
            floor: at_least,
            snapshot: None,
            offset: 0,
            base: 0,
            total: 0,
            asked: 0,
            window: WINDOW_MIN,
            early: BTreeMap::new(),
            rates,
            busy: false,
            paced_at: now,
            failed_pause: FAILED_PAUSE,
            begun: now,
            reader: SnapshotReader::default(),
            fed,
            stands_alone: false,
            follow_asked: false,
            following: None,
            fed_upto: Slot(0),
            tries: 0,
            promised: 0,
            promised_bytes: 0,
            retry_at: now,
        })
    }

    /// How much of the snapshot that the donor takes first it has written.
    pub const fn promised(&self) -> u64 {
        self.promised_bytes
    }

    /// The next question, if there is one now. This many bytes of the snapshot have been written
    /// here: what comes must not gather in memory where the disk is slower.
    pub fn next_ask(&mut self, written: u64, now: Time) -> Option<TransferMessage> {
        if self.following.is_some() {
            return None;
        }
        while self.early.contains_key(&self.asked) {
            self.asked += PIECE as u64;
        }
        let ahead = self.asked > self.offset;
        // Until the donor has named the snapshot there is one question.
        let within = match self.total > 0 {
            true => self.asked < self.total && self.asked < self.offset + self.window,
            false => !ahead,
        };
        let keeps_up = self.asked < written + WINDOW_MAX + WINDOW_MIN;
        if !within || !keeps_up || now < self.paced_at {
            return None;
        }
        let rate = self.rates.of(self.busy);
        if let Some(pause) = (PIECE as u64 * 1_000_000_000).checked_div(rate) {
            // Requests that were not sent while none could be are not made up for.
            let since = self.paced_at.max(now);
            self.paced_at = since + Duration::from_nanos(pause);
        }
        let message = TransferMessage::Ask {
            at_least: self.floor,
            snapshot: self.snapshot,
            offset: self.asked,
            fed: self.fed,
            ahead,
        };
        self.asked += PIECE as u64;
        Some(message)
    }

    /// The next question for batches, if there is one now; `end`: an end of them is wanted, too.
    pub fn next_follow(&mut self, written: u64, end: bool, now: Time) -> Option<TransferMessage> {
        let following = self.following.as_mut()?;
        let keeps_up = following.begin + following.bytes < written + WINDOW_MAX;
        let due = keeps_up && now >= following.paused_until;
        if !due || core::mem::replace(&mut self.follow_asked, true) {
            return None;
        }
        following.end_asked = end;
        let after = following.after;
        Some(TransferMessage::Follow { after, end })
    }

    /// Requests without an answer are sent again.
    pub fn ask_again(&mut self) {
        self.asked = self.offset;
        self.follow_asked = false;
        self.window = WINDOW_MIN;
    }

    /// The next part of the feed can be asked for.
    pub const fn ask_on(&mut self) {
        self.follow_asked = false;
    }

    /// When to look after it again: an answer is late, or the next piece may be asked for.
    pub fn look_at(&mut self, now: Time) -> Time {
        self.retry_at = now + RETRY;
        let following = self.following.as_ref();
        let next = following.map_or(self.paced_at, |following| following.paused_until);
        match next > now {
            true => self.retry_at.min(next),
            false => self.retry_at,
        }
    }

    /// Whether the donor owes an answer.
    pub const fn is_waiting(&self) -> bool {
        self.follow_asked || self.asked > self.offset
    }

    /// The donor has named a snapshot.
    pub fn begin(&mut self, snapshot: SnapshotFile, total: u64, now: Time) {
        self.begin_again();
        self.snapshot = Some(snapshot);
        self.total = total;
        self.asked = PIECE as u64;
        self.begun = now;
        self.reader = SnapshotReader::default();
    }

    /// The beginning of a snapshot is here from an earlier run: the rest of it is asked for, and
    /// what was executed since if that is wanted.
    pub fn resume(&mut self, left: &SnapshotLeft) {
        let SnapshotHeader {
            executed, origin, ..
        } = left.header;
        self.snapshot = Some(SnapshotFile {
            id: executed,
            origin,
        });
        self.fed |= executed.slot < self.at_least;
        self.offset = left.length;
        self.base = left.length;
        self.asked = left.length;
        self.reader = SnapshotReader::within_state(left.header.clone());
    }

    /// Its length, once a donor has told it.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The donor has the snapshot whose beginning is here; false when there is no more of it.
    pub fn proceed(&mut self, snapshot: SnapshotFile, total: u64, now: Time) -> bool {
        if self.total == 0 {
            if total <= self.offset {
                return false;
            }
            self.total = total;
            self.begun = now;
            self.floor = self.floor.min(snapshot.id.slot);
        }
        true
    }

    /// Whether these are the bounds of one of the pieces that are asked for: nothing else is kept.
    pub fn is_piece(&self, offset: u64, length: usize) -> bool {
        let left = self.total.saturating_sub(offset);
        let of_one =
            (offset.checked_sub(self.base)).is_some_and(|at| at.is_multiple_of(PIECE as u64));
        of_one && length as u64 == left.min(PIECE as u64)
    }

    /// A piece came; kept, if its turn has not come.
    pub fn is_next(&mut self, offset: u64, bytes: &Bytes) -> bool {
        if offset > self.offset && offset < self.asked {
            self.early.insert(offset, bytes.clone());
        }
        offset == self.offset
    }

    /// Takes note of this many bytes; gives the next ones if they are here.
    pub fn advance(&mut self, bytes: u64) {
        self.offset += bytes;
        self.asked = self.asked.max(self.offset);
        self.window = (self.window + PIECE as u64).min(WINDOW_MAX);
    }

    /// The piece whose turn it is, if it came early.
    pub fn take_early(&mut self) -> Option<Bytes> {
        let next = self.early.remove(&self.offset);
        while self
            .early
            .first_key_value()
            .is_some_and(|(at, _)| *at < self.offset)
        {
            self.early.pop_first();
        }
        next
    }

    /// Less is wanted from now on; or more, where what follows the snapshot brings it.
    pub fn want(&mut self, at_least: Slot) {
        self.at_least = at_least;
        self.floor = self.floor.min(at_least);
    }

    /// Up to where the snapshot by this name, just saved, brings the state.
    pub fn reach(&self, id: Executed) -> Slot {
        match self.snapshot.is_some_and(|file| file.id == id) {
            true => id.slot.max(self.fed_upto),
            false => id.slot,
        }
    }

    /// Starts from the beginning, with a snapshot that covers more than this.
    pub fn begin_above(&mut self, slot: Slot) {
        self.begin_again();
        self.floor = self.floor.max(slot.next()).min(self.at_least);
    }

    /// Starts from the beginning.
    pub fn begin_again(&mut self) {
        self.snapshot = None;
        self.offset = 0;
        self.base = 0;
        self.total = 0;
        self.early.clear();
        self.ask_again();
        self.following = None;
        self.fed_upto = Slot(0);
    }

    /// The received state could not be saved. There may be no room, so that the next try needs
    /// time; and so do the others, from whom all of it must come again.
    pub fn on_failed(&mut self, now: Time) {
        self.begin_again();
        self.paced_at = self.paced_at.max(now + self.failed_pause);
        self.failed_pause = (self.failed_pause * 2).min(FAILED_PAUSE_MAX);
    }

    /// The donor was silent; false when it is to be left: the sooner, the less it has given.
    pub fn waits_on(&mut self) -> bool {
        self.tries += 1;
        let followed = self.following.as_ref().map_or(0, |it| it.bytes);
        let given = self.offset.min(self.total) + followed;
        let more = u32::try_from(given / TRY_BYTES).unwrap_or(TRIES_MAX);
        self.tries < TRIES.saturating_add(more).min(TRIES_MAX)
    }

    /// The donor was silent: ask it again, or the next one from the start.
    pub fn on_silence(&mut self) {
        if !self.waits_on() {
            self.leave_donor();
        }
        self.ask_again();
    }

    /// Turns to the next donor, which may have the rest of what has come.
    pub fn leave_donor(&mut self) {
        self.on_answer();
        self.donor = (self.donor + 1) % self.donors.len();
        let is_known = self.snapshot.is_some_and(|file| file.origin != 0);
        if !is_known || self.following.is_some() {
            return self.begin_again();
        }
        self.base = self.offset;
        self.total = 0;
        self.early.clear();
        self.ask_again();
    }

    /// Turns to the next donor and starts from the beginning.
    pub fn leave_file(&mut self) {
        self.leave_donor();
        self.begin_again();
    }

    /// Whether the donor is being asked for the rest of what another one gave, or for anything.
    pub const fn is_new_to_donor(&self) -> bool {
        self.total == 0
    }

    /// Checks the next bytes of the stream.
    pub fn check(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.reader.feed(bytes);
        while self.reader.next_chunk()?.is_some() {}
        Ok(())
    }

    /// These have what is wanted, too: they are asked when those before them do not answer.
    pub fn also_from(&mut self, others: ReplicaSet) {
        for other in others.iter() {
            if !self.donors.contains(&other) {
                self.donors.push(other);
            }
        }
    }

    pub fn donor(&self) -> ReplicaId {
        self.donors[self.donor]
    }

    pub fn is_from(&self, from: ReplicaId) -> bool {
        self.donor() == from
    }

    pub const fn on_answer(&mut self) {
        self.tries = 0;
        self.promised = 0;
        self.promised_bytes = 0;
    }

    /// The donor takes a snapshot for this and keeps what it executes from there on: that is wanted,
    /// too, as the log is trimmed past the snapshot before it is here.
    pub const fn follow_too(&mut self) {
        self.fed |= self.snapshot.is_none() && !self.stands_alone;
    }

    /// The donor says that a snapshot is coming, of which this many bytes have been written. One of
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
            self.stands_alone = true;
            self.floor = self.at_least;
            self.leave_donor();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fetch() -> Fetch {
        let donors = [ReplicaId(1), ReplicaId(2)].into_iter().collect();
        let mut fetch = Fetch::new(donors, Slot(5), false, Rates::default(), Time(0))
            .expect("there are donors");
        let file = SnapshotFile {
            origin: 7,
            ..SnapshotFile::default()
        };
        fetch.begin(file, 1 << 30, Time(0));
        fetch
    }

    #[test]
    fn silent_donor_is_left_later_when_it_has_given_much() {
        let (mut little, mut much) = (fetch(), fetch());
        much.advance(100 << 20);
        for _ in 0..TRIES {
            little.on_silence();
            much.on_silence();
        }
        assert_eq!((little.donor(), little.offset), (ReplicaId(2), 0));
        assert_eq!((much.donor(), much.offset), (ReplicaId(1), 100 << 20));
        for _ in TRIES..TRIES + 12 {
            much.on_silence();
        }
        assert_eq!((much.donor(), much.offset), (ReplicaId(2), 100 << 20));
        for _ in 0..TRIES {
            much.on_silence();
        }
        assert_eq!(much.donor(), ReplicaId(1), "the first is asked again soon");
        assert_eq!(much.offset, 100 << 20);
        assert!(much.proceed(much.snapshot.expect("known"), 1 << 30, Time(0)));
        let next = much.next_ask(100 << 20, Time(0));
        assert!(matches!(next, Some(TransferMessage::Ask { offset, .. }) if offset == 100 << 20));
    }

    #[test]
    fn file_without_origin_is_not_continued_at_other_donor() {
        let mut fetch = fetch();
        fetch.begin(SnapshotFile::default(), 1 << 30, Time(0));
        fetch.advance(100 << 20);
        fetch.leave_donor();
        assert_eq!((fetch.snapshot, fetch.offset), (None, 0));
    }

    #[test]
    fn later_donors_are_asked_when_the_first_does_not_answer() {
        let donors = [ReplicaId(3)].into_iter().collect();
        let mut fetch = Fetch::new(donors, Slot(5), false, Rates::default(), Time(0))
            .expect("there are donors");
        fetch.also_from(ReplicaSet::EMPTY.with(ReplicaId(2)).with(ReplicaId(3)));
        for _ in 0..TRIES {
            assert_eq!(fetch.donor(), ReplicaId(3));
            fetch.on_silence();
        }
        assert_eq!(fetch.donor(), ReplicaId(2));
        fetch.leave_donor();
        assert_eq!(fetch.donor(), ReplicaId(3), "no donor is named twice");
    }

    #[test]
    fn no_more_is_asked_for_when_the_disk_is_behind() {
        let mut fetch = fetch();
        let mut asked = 0;
        while fetch.next_ask(0, Time(0)).is_some() {
            asked += PIECE as u64;
            fetch.advance(PIECE as u64);
            assert!(asked < 2 * WINDOW_MAX, "without a bound");
        }
        assert!(fetch.next_ask(fetch.offset, Time(0)).is_some());
    }

    #[test]
    fn less_is_asked_for_while_the_donor_is_busy() {
        let mut fetch = fetch();
        fetch.rates = Rates {
            max: 0,
            busy: 100 << 20,
        };
        let asked = |fetch: &mut Fetch| {
            let mut asked = 0;
            for half_milli in 0..2_000 {
                while asked < 1 << 29
                    && let Some(_) = fetch.next_ask(fetch.offset, Time(half_milli * 500_000))
                {
                    asked += PIECE as u64;
                    fetch.advance(PIECE as u64);
                }
            }
            asked
        };
        assert_eq!(asked(&mut fetch), 1 << 29, "the donor is idle");
        fetch.busy = true;
        let bytes = asked(&mut fetch);
        assert!((90 << 20..=101 << 20).contains(&bytes), "{bytes}");
    }

    #[test]
    fn lower_limit_counts() {
        let of = |max, busy| [false, true].map(|it| Rates { max, busy }.of(it));
        assert_eq!(of(0, 0), [0, 0]);
        assert_eq!(of(0, 7), [0, 7]);
        assert_eq!(of(5, 0), [5, 5]);
        assert_eq!(of(5, 7), [5, 5]);
        assert_eq!(of(9, 7), [9, 7]);
    }
}

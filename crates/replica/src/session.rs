//! Sessions: how a command is executed exactly once however often it is sent.
//!
//! ```text
//!   Open(owner, number) ──ordered──► session, nothing executed
//!   sequence = executed + 1 ───────► execute, keep the reply
//!   sequence ≤ executed ───────────► the kept reply, or "reply lost" once acknowledged
//!   sequence > executed + 1 ───────► "out of order": an earlier one is still missing
//!   owner silent for the lifetime ─► all its sessions end, by the log's clock on every replica
//! ```
//!
//! A session that ended is never made again: numbers are used once per owner, and an owner that
//! the log's clock has outlived cannot open anything.

use crate::{
    CommandTime, DecodeError, Reader, RequestStatus, Writer,
    bug::{Bug, Injected},
};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec::Vec,
};
use core::time::Duration;
use foldhash::fast::FixedState;
use hashbrown::{
    HashMap,
    hash_map::{Entry, OccupiedEntry},
};

mod digest;

use digest::SessionDigest;

/// A client's session: its owner (one per server process or client library) and the owner's
/// number for it, ascending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// Its owner's number, drawn at random when the owner starts.
    pub owner: u64,
    /// The owner's number for it, from 1; never used twice.
    pub number: u64,
}

/// The most requests that a session may have in progress.
pub const SESSION_WINDOW_MAX: u16 = 1024;
/// This many numbers of an owner are remembered as opened above one that is not. An owner that
/// opens sessions for all its clients at once has that many requests to open in progress, in
/// batches that overtake each other; an opening that comes after the window is refused permanently.
pub const OPENED_ABOVE_MAX: usize = 1 << 14;
/// The most sessions of a cluster.
pub const SESSIONS_MAX: usize = 1 << 20;
/// A reply buffer larger than this is not kept for reuse.
const REUSE_MAX: usize = 4 * 1024;
/// The assumed memory of a session besides its replies, for the limit of memory.
const SESSION_WEIGHT: usize = 128;

/// How much of the replies is kept for requests that come again. Part of what replicas must agree
/// on: what is not kept is answered "executed, and its reply is lost".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptReplies {
    /// No longer reply is kept.
    pub reply_bytes_max: usize,
    /// All sessions keep no more than this together. Beyond it the sessions with the largest
    /// replies lose theirs, until half of this is left.
    pub bytes_max: usize,
}

impl Default for KeptReplies {
    fn default() -> Self {
        Self {
            reply_bytes_max: 4 << 20,
            bytes_max: 256 << 20,
        }
    }
}

#[derive(Debug, Default)]
struct Session {
    /// Invariant: every sequence number up to this one has been executed, none above it.
    executed: u64,
    /// Replies not yet acknowledged, ascending by sequence.
    replies: VecDeque<(u64, Vec<u8>)>,
    /// A spent buffer, so that a steady session allocates nothing.
    spare: Vec<u8>,
    /// The last digest that need not look at this session any more.
    mark: u32,
}

impl Session {
    fn kept_bytes(&self) -> usize {
        self.replies.iter().map(|(_, reply)| reply.len()).sum()
    }
}

#[derive(Debug, Default)]
struct Owner {
    renewed: CommandTime,
    /// Every number up to this one has been opened.
    opened_floor: u64,
    /// Numbers above the floor that have been opened.
    opened_above: BTreeSet<u64>,
    sessions: HashMap<u64, Session, FixedState>,
}

impl Owner {
    fn was_opened(&self, number: u64) -> bool {
        number <= self.opened_floor || self.opened_above.contains(&number)
    }

    fn mark_opened(&mut self, number: u64) {
        self.opened_above.insert(number);
        while self.opened_above.remove(&(self.opened_floor + 1)) {
            self.opened_floor += 1;
        }
        // Numbers that an owner skipped permanently must not pile up.
        while self.opened_above.len() > OPENED_ABOVE_MAX {
            if let Some(lowest) = self.opened_above.pop_first() {
                self.opened_floor = lowest;
            }
        }
    }
}

fn in_nanoseconds(lifetime: Duration) -> u64 {
    u64::try_from(lifetime.as_nanos()).unwrap_or(u64::MAX)
}

/// The answer to a command that is not executed.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It has been executed; this was the reply.
    Replay(&'a [u8]),
    /// It is rejected.
    Refuse(RequestStatus),
}

/// The next command of its session, to be executed now.
#[derive(Debug)]
#[must_use]
pub struct Admitted<'a> {
    session: &'a mut Session,
    sequence: u64,
    kept: KeptReplies,
    kept_bytes: &'a mut usize,
}

impl Admitted<'_> {
    /// The command was executed with this reply; `None` when its reply was dropped. True when all
    /// sessions keep too much now: `Sessions::drop_largest` must follow.
    #[inline]
    #[must_use]
    pub fn executed(self, reply: Option<&[u8]>) -> bool {
        let session = self.session;
        session.executed = session.executed.max(self.sequence);
        let Some(reply) = reply.filter(|reply| reply.len() <= self.kept.reply_bytes_max) else {
            return false;
        };
        let mut buffer = core::mem::take(&mut session.spare);
        buffer.clear();
        buffer.extend_from_slice(reply);
        session.replies.push_back((self.sequence, buffer));
        *self.kept_bytes += reply.len();
        *self.kept_bytes > self.kept.bytes_max
    }
}

const fn is_outlived(renewed: CommandTime, lifetime: u64, time: CommandTime) -> bool {
    renewed.0.saturating_add(lifetime) < time.0
}

/// Ends all sessions of an owner. The `totals` count open sessions, and the bytes they keep.
#[cold]
fn remove_found(
    owner: OccupiedEntry<'_, u64, Owner, FixedState>,
    totals: (&mut usize, &mut usize),
    digest: &mut Option<SessionDigest>,
) {
    let (id, mut owner) = owner.remove_entry();
    if let Some(digest) = digest {
        digest.add_all(id, &mut owner);
    }
    *totals.0 -= owner.sessions.len();
    let kept = owner.sessions.values().map(Session::kept_bytes);
    *totals.1 -= kept.sum::<usize>();
}

/// All sessions of a group. Part of the replicated state.
#[derive(Debug)]
pub struct Sessions {
    owners: HashMap<u64, Owner, FixedState>,
    lifetime: u64,
    count: usize,
    /// Owners that began before it open nothing: in an earlier epoch they could have been outlived.
    opens_from: CommandTime,
    kept: KeptReplies,
    /// The bytes of all replies that are kept.
    kept_bytes: usize,
    injected: Injected,
    digest: Option<SessionDigest>,
    digest_mark: u32,
}

impl Sessions {
    /// No sessions; an owner's sessions end when it is silent for `lifetime`.
    #[must_use]
    pub fn new(lifetime: Duration) -> Self {
        let lifetime = in_nanoseconds(lifetime);
        Self {
            owners: HashMap::default(),
            lifetime,
            opens_from: CommandTime(0),
            count: 0,
            kept: KeptReplies::default(),
            kept_bytes: 0,
            injected: Injected::default(),
            digest: None,
            digest_mark: 0,
        }
    }

    /// An epoch begins at this time of the log, with this lifetime. An owner that has not been
    /// outlived by then counts as renewed, as a shorter lifetime would end all at once. An owner
    /// that has been, or could have been, does not come back under a longer one: a copy of a
    /// request that was answered may still be in progress.
    pub fn enter_epoch(&mut self, lifetime: Duration, kept: KeptReplies, base: CommandTime) {
        self.remove_outlived(base);
        let outlived = CommandTime(base.0.saturating_sub(self.lifetime));
        self.opens_from = self.opens_from.max(outlived);
        for owner in self.owners.values_mut() {
            owner.renewed = owner.renewed.max(base);
        }
        self.lifetime = in_nanoseconds(lifetime);
        self.kept = kept;
        // A digest in progress would be of neither epoch.
        self.digest = None;
    }

    /// The same with other bounds on what is kept.
    #[must_use]
    pub const fn keeping(mut self, kept: KeptReplies) -> Self {
        self.kept = kept;
        self
    }

    /// The bytes of all replies that are kept.
    #[must_use]
    pub const fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }

    /// An estimate of the memory that sessions and their replies take, in bytes.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.kept_bytes + self.count * SESSION_WEIGHT
    }

    pub(crate) fn with_bug(mut self, injected: Injected) -> Self {
        self.injected = injected;
        self
    }

    /// Of an injected bug.
    pub(crate) fn forget_replies(&mut self, id: SessionId) {
        let owner = self.owners.get_mut(&id.owner);
        if let Some(session) = owner.and_then(|owner| owner.sessions.get_mut(&id.number)) {
            self.kept_bytes -= session.kept_bytes();
            session.replies.clear();
        }
    }

    /// How many sessions are open.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether none is open.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    const fn outlived(&self, renewed: CommandTime, time: CommandTime) -> bool {
        is_outlived(renewed, self.lifetime, time)
    }

    /// The owner if it has sessions and has not outlived them; renewed.
    fn owner(&mut self, owner: u64, time: CommandTime) -> Option<&mut Owner> {
        let renewed = self.owners.get(&owner)?.renewed;
        if self.outlived(renewed, time) {
            self.remove_owner(owner);
            return None;
        }
        let found = self.owners.get_mut(&owner)?;
        found.renewed = found.renewed.max(time);
        Some(found)
    }

    fn remove_owner(&mut self, owner: u64) {
        if let Entry::Occupied(found) = self.owners.entry(owner) {
            let totals = (&mut self.count, &mut self.kept_bytes);
            remove_found(found, totals, &mut self.digest);
        }
    }

    fn remove_outlived(&mut self, time: CommandTime) {
        let gone: Vec<u64> = (self.owners.iter())
            .filter(|(_, owner)| self.outlived(owner.renewed, time))
            .map(|(id, _)| *id)
            .collect();
        for id in gone {
            self.remove_owner(id);
        }
    }

    /// Opens a session. `started` is the log's time when its owner began, as far as it knew.
    pub fn open(
        &mut self,
        id: SessionId,
        started: CommandTime,
        time: CommandTime,
    ) -> RequestStatus {
        self.remove_outlived(time);
        if id.owner == 0 || id.number == 0 {
            return RequestStatus::Malformed;
        }
        if self.owner(id.owner, time).is_none() {
            // An owner that could have been here before and been outlived must not come back: its
            // old requests may still be in progress somewhere.
            let late = self.outlived(started, time) || started < self.opens_from;
            if late || self.count >= SESSIONS_MAX {
                return RequestStatus::OpenRefused;
            }
            self.owners.insert(
                id.owner,
                Owner {
                    renewed: time,
                    ..Owner::default()
                },
            );
        }
        let ahead = self.outlived(time, started);
        if ahead || self.count >= SESSIONS_MAX {
            return RequestStatus::OpenRefused;
        }
        let Some(owner) = self.owners.get_mut(&id.owner) else {
            return RequestStatus::OpenRefused;
        };
        // An owner whose clock is ahead of the log's stays until its start is too old to open:
        // outlived sooner, it could be opened again by a copy of this very request.
        owner.renewed = owner.renewed.max(started);
        if owner.was_opened(id.number) {
            return match owner.sessions.contains_key(&id.number) {
                true => RequestStatus::Done,
                false => RequestStatus::SessionUnknown,
            };
        }
        owner.mark_opened(id.number);
        let session = Session {
            mark: self.digest_mark,
            ..Session::default()
        };
        owner.sessions.insert(id.number, session);
        self.count += 1;
        RequestStatus::Done
    }

    /// Ends a session; one that is not there has ended already.
    pub fn close(&mut self, id: SessionId, time: CommandTime) {
        self.before_change(id);
        let Some(owner) = self.owner(id.owner, time) else {
            return;
        };
        owner.mark_opened(id.number.max(1));
        if let Some(session) = owner.sessions.remove(&id.number) {
            self.count -= 1;
            self.kept_bytes -= session.kept_bytes();
        }
    }

    /// Keeps an owner's sessions alive.
    pub fn renew(&mut self, owner: u64, time: CommandTime) -> RequestStatus {
        self.remove_outlived(time);
        match self.owner(owner, time) {
            Some(_) => RequestStatus::Done,
            None => RequestStatus::SessionUnknown,
        }
    }

    /// Whether command `sequence` of a session is its next one; `open` as in
    /// [`crate::RequestView`].
    ///
    /// # Errors
    /// The answer of a command that is not to be executed.
    #[inline]
    pub fn admit(
        &mut self,
        id: SessionId,
        sequence: u64,
        open: u16,
        time: CommandTime,
    ) -> Result<Admitted<'_>, Verdict<'_>> {
        if open > SESSION_WINDOW_MAX || sequence == 0 {
            return Err(Verdict::Refuse(RequestStatus::Malformed));
        }
        if self.injected.is(Bug::UnknownSessionIsRemade) {
            self.remake(id, sequence, time);
        }
        let disorder = self.injected.is(Bug::SessionOrderIgnored);
        let session = match self.owners.entry(id.owner) {
            Entry::Occupied(found) if is_outlived(found.get().renewed, self.lifetime, time) => {
                let totals = (&mut self.count, &mut self.kept_bytes);
                remove_found(found, totals, &mut self.digest);
                None
            }
            Entry::Occupied(found) => {
                let owner = found.into_mut();
                owner.renewed = owner.renewed.max(time);
                owner.sessions.get_mut(&id.number)
            }
            Entry::Vacant(_) => None,
        };
        let Some(session) = session else {
            return Err(Verdict::Refuse(RequestStatus::SessionUnknown));
        };
        if let Some(digest) = &mut self.digest {
            digest.add(id, session);
        }
        let keep_from = sequence.saturating_sub(u64::from(open));
        while session
            .replies
            .front()
            .is_some_and(|(at, _)| *at < keep_from)
        {
            if let Some((_, buffer)) = session.replies.pop_front() {
                self.kept_bytes -= buffer.len();
                if buffer.capacity() <= REUSE_MAX {
                    session.spare = buffer;
                }
            }
        }
        let is_next = sequence == session.executed + 1;
        if is_next || disorder && session.replies.iter().all(|(at, _)| *at != sequence) {
            return Ok(Admitted {
                session,
                sequence,
                kept: self.kept,
                kept_bytes: &mut self.kept_bytes,
            });
        }
        if sequence > session.executed {
            return Err(Verdict::Refuse(RequestStatus::OutOfOrder));
        }
        let kept = session.replies.iter().find(|(at, _)| *at == sequence);
        Err(match kept {
            Some((_, reply)) => Verdict::Replay(reply),
            None => Verdict::Refuse(RequestStatus::ReplyLost),
        })
    }

    /// Of an injected bug.
    fn remake(&mut self, id: SessionId, sequence: u64, time: CommandTime) {
        let known = self.owner(id.owner, time);
        if known.is_some_and(|owner| owner.sessions.contains_key(&id.number)) {
            return;
        }
        let owner = self.owners.entry(id.owner).or_default();
        owner.renewed = owner.renewed.max(time);
        owner.mark_opened(id.number);
        let executed = sequence - 1;
        owner.sessions.insert(
            id.number,
            Session {
                executed,
                mark: self.digest_mark,
                ..Session::default()
            },
        );
        self.count += 1;
    }

    /// The reply of a command that was executed before.
    ///
    /// # Errors
    /// The status that stands for the reply when there is none.
    pub fn reply(&self, id: SessionId, sequence: u64) -> Result<&[u8], RequestStatus> {
        let session = (self.owners.get(&id.owner))
            .and_then(|owner| owner.sessions.get(&id.number))
            .ok_or(RequestStatus::SessionUnknown)?;
        if sequence > session.executed {
            return Err(RequestStatus::OutOfOrder);
        }
        let kept = session.replies.iter().find(|(at, _)| *at == sequence);
        kept.map(|(_, reply)| &reply[..])
            .ok_or(RequestStatus::ReplyLost)
    }

    /// Whether the session is open.
    #[must_use]
    pub fn contains(&self, id: SessionId) -> bool {
        let owner = self.owners.get(&id.owner);
        owner.is_some_and(|owner| owner.sessions.contains_key(&id.number))
    }

    /// Drops replies of the sessions that keep most, until half of the bound is left: rare enough
    /// that looking at all sessions costs little. The order is one that all replicas have.
    #[cold]
    pub(crate) fn drop_largest(&mut self) {
        let mut keepers: Vec<(usize, u64, u64)> = (self.owners.iter())
            .flat_map(|(owner, of)| of.sessions.iter().map(|session| (*owner, session)))
            .map(|(owner, (number, session))| (session.kept_bytes(), owner, *number))
            .filter(|(bytes, ..)| *bytes > 0)
            .collect();
        keepers.sort_unstable_by(|one, other| other.cmp(one));
        for (bytes, owner, number) in keepers {
            if self.kept_bytes <= self.kept.bytes_max / 2 {
                return;
            }
            self.before_change(SessionId { owner, number });
            let owner = self.owners.get_mut(&owner);
            if let Some(session) = owner.and_then(|owner| owner.sessions.get_mut(&number)) {
                session.replies = VecDeque::new();
                self.kept_bytes -= bytes;
            }
        }
    }

    /// Appends all sessions, in an order of their own.
    pub fn encode(&self, writer: &mut Writer<'_>) {
        let owners: BTreeMap<_, _> = self.owners.iter().collect();
        writer.length(owners.len());
        for (id, owner) in owners {
            writer.u64(*id);
            writer.u64(owner.renewed.0);
            writer.u64(owner.opened_floor);
            writer.length(owner.opened_above.len());
            for number in &owner.opened_above {
                writer.u64(*number);
            }
            let sessions: BTreeMap<_, _> = owner.sessions.iter().collect();
            writer.length(sessions.len());
            for (number, session) in sessions {
                writer.u64(*number);
                writer.u64(session.executed);
                writer.length(session.replies.len());
                for (sequence, reply) in &session.replies {
                    writer.u64(*sequence);
                    writer.slice(reply);
                }
            }
        }
        // Of a first epoch it is as earlier builds have it.
        if self.opens_from > CommandTime(0) {
            writer.u64(self.opens_from.0);
        }
    }

    /// Reads what [`Self::encode`] wrote, in place of what is here.
    ///
    /// # Errors
    /// On any other bytes.
    pub fn decode(&mut self, reader: &mut Reader) -> Result<(), DecodeError> {
        self.digest = None;
        self.owners.clear();
        self.count = 0;
        self.kept_bytes = 0;
        for _ in 0..reader.length(32, "session owners")? {
            let id = reader.u64("owner")?;
            let mut owner = Owner {
                renewed: CommandTime(reader.u64("renewed")?),
                opened_floor: reader.number("opened floor")?,
                ..Owner::default()
            };
            for _ in 0..reader.length(8, "opened")? {
                owner.opened_above.insert(reader.u64("opened")?);
            }
            for _ in 0..reader.length(20, "sessions")? {
                let number = reader.u64("session")?;
                let mut session = Session {
                    executed: reader.number("executed")?,
                    ..Session::default()
                };
                for _ in 0..reader.length(12, "replies")? {
                    let sequence = reader.number("sequence")?;
                    let reply = reader.blob("reply")?.to_vec();
                    self.kept_bytes += reply.len();
                    session.replies.push_back((sequence, reply));
                }
                owner.sessions.insert(number, session);
            }
            self.count += owner.sessions.len();
            self.owners.insert(id, owner);
        }
        self.opens_from = match reader.remaining() {
            0 => CommandTime(0),
            _ => CommandTime(reader.u64("opens from")?),
        };
        Ok(())
    }
}

#[cfg(test)]
impl Sessions {
    /// Executes a command, if it is the next one, with this reply.
    pub(crate) fn execute(
        &mut self,
        id: SessionId,
        sequence: u64,
        time: CommandTime,
        reply: Option<&[u8]>,
    ) -> bool {
        let Ok(admitted) = self.admit(id, sequence, 0, time) else {
            return false;
        };
        if admitted.executed(reply) {
            self.drop_largest();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: SessionId = SessionId {
        owner: 5,
        number: 1,
    };

    fn sessions() -> Sessions {
        let mut sessions = Sessions::new(Duration::from_secs(60));
        assert_eq!(
            sessions.open(ID, CommandTime(0), CommandTime(10)),
            RequestStatus::Done
        );
        sessions
    }

    fn at(seconds: u64) -> CommandTime {
        CommandTime(seconds * 1_000_000_000)
    }

    #[test]
    fn retry_gets_the_first_reply_and_nothing_runs_twice() {
        let mut sessions = sessions();
        assert!(sessions.execute(ID, 1, at(1), Some(b"one")));
        assert_eq!(
            sessions.admit(ID, 1, 0, at(1)).err(),
            Some(Verdict::Replay(b"one"))
        );
        assert_eq!(
            sessions.admit(ID, 3, 1, at(1)).err(),
            Some(Verdict::Refuse(RequestStatus::OutOfOrder))
        );
        assert!(sessions.execute(ID, 2, at(1), Some(b"two")));
        assert_eq!(
            sessions.admit(ID, 1, 0, at(1)).err(),
            Some(Verdict::Refuse(RequestStatus::ReplyLost))
        );
    }

    #[test]
    fn ended_session_is_never_made_again() {
        let mut sessions = sessions();
        sessions.close(ID, at(1));
        assert_eq!(
            sessions.open(ID, at(0), at(1)),
            RequestStatus::SessionUnknown
        );
        assert_eq!(
            sessions.admit(ID, 1, 0, at(1)).err(),
            Some(Verdict::Refuse(RequestStatus::SessionUnknown))
        );
    }

    #[test]
    fn outlived_owner_cannot_open_again_under_its_old_start() {
        let mut sessions = sessions();
        assert_eq!(sessions.renew(5, at(100)), RequestStatus::SessionUnknown);
        assert_eq!(sessions.len(), 0);
        assert_eq!(
            sessions.open(ID, at(0), at(100)),
            RequestStatus::OpenRefused
        );
        assert_eq!(sessions.open(ID, at(90), at(100)), RequestStatus::Done);
    }

    #[test]
    fn owner_whose_clock_is_ahead_is_not_opened_twice() {
        let mut sessions = Sessions::new(Duration::from_secs(60));
        assert_eq!(sessions.open(ID, at(40), at(1)), RequestStatus::Done);
        assert!(sessions.execute(ID, 1, at(1), Some(b"one")));
        assert_eq!(sessions.open(ID, at(40), at(90)), RequestStatus::Done);
        assert_eq!(
            sessions.admit(ID, 1, 0, at(90)).err(),
            Some(Verdict::Replay(b"one"))
        );
        assert_eq!(
            sessions.open(ID, at(40), at(200)),
            RequestStatus::OpenRefused
        );
        let ahead = SessionId {
            owner: 6,
            number: 1,
        };
        assert_eq!(
            sessions.open(ahead, at(300), at(200)),
            RequestStatus::OpenRefused
        );
    }

    #[test]
    fn longer_lifetime_of_next_epoch_revives_no_expired_owner() {
        let mut sessions = sessions();
        assert!(sessions.execute(ID, 1, at(1), Some(b"one")));
        let kept = KeptReplies::default();
        sessions.enter_epoch(Duration::from_secs(1000), kept, at(100));
        for _ in 0..2 {
            // Its old requests may still be in progress.
            let again = sessions.open(ID, at(0), at(101));
            assert_eq!(again, RequestStatus::OpenRefused);
            let other = SessionId {
                owner: 6,
                number: 1,
            };
            let unknown = sessions.open(other, at(39), at(101));
            assert_eq!(unknown, RequestStatus::OpenRefused, "it may have been here");
            assert_eq!(sessions.open(other, at(40), at(101)), RequestStatus::Done);
            // As who restores it has it, also after another epoch.
            let mut scratch = bytes::BytesMut::new();
            let mut writer = Writer::new(&mut scratch);
            sessions.encode(&mut writer);
            let mut copy = Sessions::new(Duration::from_secs(1000));
            copy.decode(&mut Reader::new(writer.finish().into_bytes()))
                .expect("decodes");
            sessions = copy;
            sessions.close(other, at(101));
            sessions.remove_owner(6);
            sessions.enter_epoch(Duration::from_secs(1000), kept, at(101));
        }
    }

    #[test]
    fn shorter_lifetime_of_the_next_epoch_counts_from_its_beginning() {
        let mut sessions = sessions();
        sessions.enter_epoch(Duration::from_secs(5), KeptReplies::default(), at(50));
        assert_eq!(sessions.renew(5, at(55)), RequestStatus::Done);
        assert_eq!(sessions.renew(5, at(61)), RequestStatus::SessionUnknown);
    }

    /// Random events of the sessions of a few owners, each with its own start.
    #[derive(Clone, Debug)]
    enum Step {
        /// The request to open it, or a copy, and its first command behind it.
        Try(u64, u64),
        Close(u64, u64),
        Pass(u64),
        Enter(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (1u64..4, 1u64..4).prop_map(|(owner, number)| Step::Try(owner, number)),
            1 => (1u64..4, 1u64..4).prop_map(|(owner, number)| Step::Close(owner, number)),
            2 => (1u64..60).prop_map(Step::Pass),
            1 => (1u64..100).prop_map(Step::Enter),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn no_command_runs_twice_whatever_lifetimes_epochs_have(
            starts in prop::array::uniform3(0u64..200),
            steps in prop::collection::vec(step(), 1..60),
        ) {
            let mut sessions = Sessions::new(Duration::from_nanos(20));
            let mut time = CommandTime(50);
            let mut ran = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Try(owner, number) => {
                        let id = SessionId { owner, number };
                        let started = CommandTime(starts[owner as usize - 1]);
                        sessions.open(id, started, time);
                        if sessions.execute(id, 1, time, Some(b"done")) {
                            prop_assert!(ran.insert(id), "{id:?} runs twice");
                        }
                    }
                    Step::Close(owner, number) => {
                        sessions.close(SessionId { owner, number }, time);
                    }
                    Step::Pass(nanoseconds) => time.0 += nanoseconds,
                    Step::Enter(lifetime) => {
                        let lifetime = Duration::from_nanos(lifetime);
                        sessions.enter_epoch(lifetime, KeptReplies::default(), time);
                    }
                }
            }
        }
    }

    #[test]
    fn open_that_arrives_late_does_not_reopen() {
        let mut sessions = sessions();
        let second = SessionId {
            owner: 5,
            number: 3,
        };
        assert_eq!(sessions.open(second, at(0), at(1)), RequestStatus::Done);
        let late = SessionId {
            owner: 5,
            number: 2,
        };
        assert_eq!(sessions.open(late, at(0), at(1)), RequestStatus::Done);
        sessions.close(late, at(1));
        assert_eq!(
            sessions.open(late, at(0), at(2)),
            RequestStatus::SessionUnknown
        );
    }

    #[test]
    fn open_may_arrive_last_and_is_rejected_beyond_window() {
        let of = |number| SessionId { owner: 5, number };
        for (behind, expected) in [
            (10_000, RequestStatus::Done),
            (OPENED_ABOVE_MAX as u64 + 1, RequestStatus::SessionUnknown),
        ] {
            let mut sessions = sessions();
            for number in 3..3 + behind {
                assert_eq!(sessions.open(of(number), at(0), at(1)), RequestStatus::Done);
            }
            assert_eq!(sessions.open(of(2), at(0), at(1)), expected);
        }
    }

    #[test]
    fn sessions_survive_a_snapshot() {
        let mut sessions = sessions();
        assert!(sessions.execute(ID, 1, at(1), Some(b"one")));
        let mut scratch = bytes::BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        sessions.encode(&mut writer);
        let mut copy = Sessions::new(Duration::from_secs(60));
        copy.decode(&mut Reader::new(writer.finish().into_bytes()))
            .expect("decodes");
        assert_eq!(
            copy.admit(ID, 1, 0, at(1)).err(),
            Some(Verdict::Replay(b"one"))
        );
        assert_eq!(copy.len(), 1);
    }

    fn kept(reply_bytes_max: usize, bytes_max: usize) -> Sessions {
        Sessions::new(Duration::from_secs(60)).keeping(KeptReplies {
            reply_bytes_max,
            bytes_max,
        })
    }

    #[test]
    fn kept_replies_are_bounded_each_and_together() {
        let mut sessions = kept(10, 50);
        let of = |number| SessionId { owner: 5, number };
        let mut execute = |number: u64, reply: &[u8]| {
            let id = of(number);
            assert_eq!(sessions.open(id, at(0), at(1)), RequestStatus::Done);
            assert!(sessions.execute(id, 1, at(1), Some(reply)));
            assert!(sessions.kept_bytes() <= 50);
        };
        execute(1, &[1; 11]);
        execute(2, &[2; 10]);
        execute(3, &[3; 1]);
        for number in 4..8 {
            execute(number, &[4; 9]);
        }
        assert_eq!(sessions.kept_bytes(), 47);
        let mut execute = |number: u64, reply: &[u8]| {
            let id = of(number);
            assert_eq!(sessions.open(id, at(0), at(1)), RequestStatus::Done);
            assert!(sessions.execute(id, 1, at(1), Some(reply)));
        };
        // Beyond the bound: the largest go first, among equals those with the highest number.
        execute(8, &[5; 9]);
        assert_eq!(sessions.kept_bytes(), 19);
        let left = [1, 2, 3, 4, 5, 6, 7, 8].map(|number| sessions.reply(of(number), 1).is_ok());
        assert_eq!(left, [false, false, true, true, true, false, false, false]);
        // A dropped, closed, outlived, or acknowledged reply is counted no more.
        sessions.close(of(4), at(1));
        assert_eq!(sessions.kept_bytes(), 10);
        assert!(sessions.execute(of(5), 2, at(1), None));
        assert_eq!(sessions.kept_bytes(), 1);
        let again = sessions.admit(of(5), 2, 0, at(1)).err();
        assert_eq!(
            again,
            Some(Verdict::Refuse(RequestStatus::ReplyLost)),
            "it was executed, and its reply is lost"
        );
        assert_eq!(sessions.renew(5, at(100)), RequestStatus::SessionUnknown);
        assert_eq!((sessions.kept_bytes(), sessions.memory()), (0, 0));
    }
}

//! The replicated object: a deterministic state machine.
//!
//! ```text
//!   ordered batch ──► executor ──► apply(at, command) ──► reply        every replica, same order
//!   local read    ──► executor ──► query(at, command) ──► reply        one replica, changes nothing
//!   checkpoint    ──► executor ──► begin_snapshot, then snapshot_chunk … between batches
//!   state transfer ─► executor ──► begin_restore, restore_chunk …, finish_restore
//! ```
//!
//! The same commands in the same order must give the same replies and the same state on every
//! replica: no clock, no randomness, no hash-map order of one's own. Time and a random seed come
//! with the command ([`At`]).

use crate::{DigestBegun, Position, Slot};
use alloc::{boxed::Box, string::String, vec::Vec};

/// Time of the log: nanoseconds since the Unix epoch, chosen by the replica that orders the
/// command. Never goes back between two commands that touch the same key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandTime(pub u64);

impl CommandTime {
    /// Whole milliseconds since the Unix epoch.
    #[must_use]
    pub const fn milliseconds(self) -> u64 {
        self.0 / 1_000_000
    }
}

/// Which command it is: the same on every replica and on every retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CommandId {
    /// The session that sent it.
    pub session: crate::SessionId,
    /// Its place in that session.
    pub sequence: u64,
}

impl CommandId {
    /// 64 well-mixed bits of this id, never 0: a seed for a command that needs chance, and a
    /// version for what the command changed.
    #[must_use]
    pub const fn mixed(&self, salt: u64) -> u64 {
        let mut x = self.session.owner.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ self
                .session
                .number
                .rotate_left(32)
                .wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
            ^ self.sequence.wrapping_mul(0x1656_67b1_9e37_79f9)
            ^ salt.wrapping_mul(0xd6e8_feb8_6659_fd93);
        x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^= x >> 32;
        if x == 0 { 1 } else { x }
    }
}

/// Where and when a command is executed. The reply must not depend on the position, which two
/// protocols may number differently: use it for diagnosis only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// Place in the executed order.
    pub position: Position,
    /// Time of the command; equal on all replicas.
    pub time: CommandTime,
    /// Which command; equal on all replicas and retries.
    pub id: CommandId,
}

/// How a command uses a key, see [`StateMachine::footprint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It only looks.
    Read,
    /// It may change it.
    Write,
}

/// The answer of a state machine to a read of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PastAnswer {
    /// The reply is there; it may be an error of the machine's own.
    Done,
    /// It asks for something that is not in the state yet.
    NotYet,
    /// The machine keeps no versions.
    NotKept,
}

/// Told by a state machine which keys a command touches.
pub trait FootprintVisitor {
    /// The command touches the key with this hash.
    fn key(&mut self, hash: u64, access: Access);
    /// The command conflicts with every other (DBSIZE, FLUSHALL, a change of limits).
    fn everything(&mut self, access: Access);
}

/// How far a snapshot has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotProgress {
    /// Call again.
    More,
    /// The last byte has been written to `out`.
    Done,
}

/// Bytes of a snapshot that are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("snapshot refused: {0}")]
pub struct RestoreError(pub String);

/// Reads a state that a snapshot holds and keeps none of it: what [`StateMachine::restore_chunk`]
/// would refuse, this refuses before anything relies on the snapshot. On a thread of its own.
pub trait StateCheck: Send {
    /// A state follows; what was read of another is dropped.
    fn begin(&mut self);

    /// Its next bytes, cut anywhere.
    ///
    /// # Errors
    /// When the bytes cannot be a state.
    fn chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError>;

    /// All bytes have been given.
    ///
    /// # Errors
    /// When the state is not whole.
    fn finish(&mut self) -> Result<(), RestoreError>;
}

/// A replicated service. `apply`, `query` and the snapshot methods are what it takes; the rest
/// has defaults.
///
/// It must be deterministic (see the module). `query` changes nothing that another command could
/// see. Nothing here panics on any bytes that a client could send.
pub trait StateMachine: Send + 'static {
    /// Executes one ordered command and appends its reply to `reply`.
    fn apply(&mut self, at: &At, command: &[u8], reply: &mut Vec<u8>);

    /// Executes a read and appends its reply to `reply`. `at.position` and the state are those of
    /// the last applied command; `at.time` is this replica's clock, never before that command.
    fn query(&self, at: &At, command: &[u8], reply: &mut Vec<u8>);

    /// Executes a read as of an earlier time and appends its reply to `reply`: for machines that
    /// keep versions. `at.time` is closed: commands to come have later times, and the answer, if it
    /// is [`PastAnswer::Done`], is permanently the same, here and at all replicas. It may depend on the
    /// commands with times up to `at.time` only, never on those behind it that the state already has.
    ///
    /// The default keeps no versions.
    fn query_at(&self, at: &At, command: &[u8], reply: &mut Vec<u8>) -> PastAnswer {
        let _ = (at, command, reply);
        PastAnswer::NotKept
    }

    /// These commands are about to be applied or queried, in this order: a machine with more state
    /// than fits into a cache may look at what they will touch, all at once, so that waiting for
    /// memory overlaps. Must change nothing. The default looks at none.
    fn warm(&self, commands: &mut dyn Iterator<Item = &[u8]>) {
        let _ = commands;
    }

    /// The version of its behaviour: a build whose commands, replies or footprints differ from
    /// another's has another one. Replicas of different versions refuse each other.
    fn semantics(&self) -> u32 {
        1
    }

    /// The numbers that its replies or its state depend on, by name: equal at all replicas, and
    /// compared before they work together.
    fn terms(&self) -> crate::Terms {
        Vec::new()
    }

    /// Seeds the hash tables whose keys clients choose: the same at all replicas, unknown to
    /// clients. Called before anything is applied or restored, if at all.
    fn set_hash_seed(&mut self, seed: u64) {
        let _ = seed;
    }

    /// Starts a snapshot of the state as it is now. A snapshot that was in progress is dropped.
    ///
    /// The default keeps nothing and suits machines whose [`Self::snapshot_chunk`] writes all of
    /// a small state in its first call.
    fn begin_snapshot(&mut self) {}

    /// Appends the next part of the snapshot to `out`, about `budget` bytes, and says whether
    /// there is more. Commands are applied between two calls; the snapshot must still be that of
    /// [`Self::begin_snapshot`]. The first call comes before any further command, so a machine
    /// with a small state may write it whole there.
    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, budget: usize) -> SnapshotProgress;

    /// Forgets the snapshot in progress, if there is one.
    fn abandon_snapshot(&mut self) {}

    /// Empties the state: a restore follows. The default does nothing, for machines that replace
    /// all in [`Self::finish_restore`].
    fn begin_restore(&mut self) {}

    /// The next bytes of a snapshot, cut anywhere.
    ///
    /// # Errors
    /// When the bytes cannot be a snapshot. The state is then undefined until the next
    /// [`Self::begin_restore`].
    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError>;

    /// All bytes have been given.
    ///
    /// # Errors
    /// When the snapshot is not whole.
    fn finish_restore(&mut self) -> Result<(), RestoreError>;

    /// The reader that reads a saved snapshot's state back before the log behind it is trimmed. The
    /// default: only the stream's checksums are read back.
    fn state_check(&self) -> Option<Box<dyn StateCheck>> {
        None
    }

    /// Which keys `command` touches. The default: it conflicts with everything.
    fn footprint(&self, command: &[u8], visit: &mut dyn FootprintVisitor) {
        let _ = command;
        visit.everything(Access::Write);
    }

    /// Whether commands may come in another order, or not at all, at other replicas: for those who
    /// want what a group was sent rather than one state, and for measuring. Not so unless told.
    fn takes_unordered(&self) -> bool {
        false
    }

    /// The earliest time at which the state changes by itself (a key expires). The runtime then
    /// orders an empty batch with a time at or after it, and more of them, a little apart, as long
    /// as the deadline stays. `None`: never.
    fn next_deadline(&self) -> Option<CommandTime> {
        None
    }

    /// Time has come to `at.time` although no command needs it: what expired by then may go.
    /// Called for every ordered batch before its commands, so it must be cheap.
    fn tick(&mut self, at: &At) {
        let _ = at;
    }

    /// Reads of one batch follow. A machine that bounds the work of a batch begins to count.
    fn begin_reads(&self) {}

    /// The work of all commands so far that take long, in steps of about 20 to 50 ns: after some
    /// of it the replica does other things before it executes the next batch. The default: no
    /// command takes long.
    fn steps(&self) -> u64 {
        0
    }

    /// The name and the steps of the longest command since this was last asked. For the log.
    fn take_longest(&self) -> Option<(&'static str, u64)> {
        None
    }

    /// A hash of the whole state, equal on replicas that executed the same commands. For checks;
    /// may be slow.
    fn digest(&self) -> u128;

    /// Replicas compare digests of their states now and then: starts one of the state as it is now.
    /// One in progress is dropped. It must be the same on all replicas that executed the same
    /// commands, on every machine and in every build; [`crate::StateSum`] helps.
    ///
    /// The default: nothing is compared. A machine with a small state gives
    /// `DigestBegun::Done(self.digest())` if that digest is such a one.
    fn begin_digest(&mut self) -> DigestBegun {
        DigestBegun::Unsupported
    }

    /// Continues with the digest for about `budget` bytes of the state, less than a millisecond's
    /// work, and gives it at the end. Commands are applied between two calls; the digest must
    /// still be that of [`Self::begin_digest`], and no copy of the state should be made for it.
    fn digest_step(&mut self, budget: usize) -> Option<u128> {
        let _ = budget;
        None
    }

    /// Drops the digest in progress, if there is one.
    fn abandon_digest(&mut self) {}

    /// An estimate of the memory that the state takes, in bytes. For metrics and limits.
    fn memory(&self) -> u64 {
        0
    }

    /// How many entries the state holds. For status only.
    fn entries(&self) -> u64 {
        0
    }

    /// Whether the state says that commands which need memory are refused.
    fn refuses_writes(&self) -> bool {
        false
    }
}

/// Keeps nothing and answers nothing, in whatever order: to measure what replication itself costs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nothing;

impl StateMachine for Nothing {
    fn apply(&mut self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn query(&self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn takes_unordered(&self) -> bool {
        true
    }
    fn snapshot_chunk(&mut self, _: &mut Vec<u8>, _: usize) -> SnapshotProgress {
        SnapshotProgress::Done
    }
    fn restore_chunk(&mut self, _: &[u8]) -> Result<(), RestoreError> {
        Ok(())
    }
    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        Ok(())
    }
    fn digest(&self) -> u128 {
        0
    }
}

/// A position together with the protocol slot that it was executed from. In the order of positions
/// first: these only ascend, in whatever epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Executed {
    /// The executor's position.
    pub position: Position,
    /// The protocol's slot.
    pub slot: Slot,
}

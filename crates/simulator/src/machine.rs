//! The state machine that worlds replicate: registers, counters and lists by key, made so that a
//! history of it can be checked fast.
//!
//! ```text
//!   command = operation number u64 | kind u8 | key u32 | a u64 | b u64
//!   reply   = tag u8 | a u64 | b u64
//! ```
//!
//! The operation number makes every command's bytes unique, so that one applied twice is seen.
//! [`Recorder`] sits around any state machine and writes down what is executed, for the checkers.

use quintet_replica::{
    Access, At, CommandId, CommandTime, DigestBegun, FootprintVisitor, PastAnswer, RestoreError,
    SnapshotProgress, StateMachine, Terms,
};
use std::sync::{Arc, Mutex, PoisonError};

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Look at the value.
    Read,
    /// Replace a register's value.
    Write(u64),
    /// Replace a register's value if it is `expected`.
    CompareAndSet {
        /// The value that must be there.
        expected: u64,
        /// The value to put there.
        new: u64,
    },
    /// Append to a list.
    Append(u64),
    /// Add to a counter.
    Add(u64),
}

/// A client's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The value read: a register or counter as `(0, value)`, a list as `(length, hash)`.
    Value(u64, u64),
    /// Written.
    Written,
    /// Whether the comparison held.
    Swapped(bool),
    /// The list's new length.
    Length(u64),
    /// The counter's new value.
    Sum(u64),
}

/// Bytes of an encoded command.
pub const COMMAND_BYTES: usize = 29;

/// Encodes a command.
#[must_use]
pub fn encode_command(number: u64, key: u32, operation: Operation) -> [u8; COMMAND_BYTES] {
    let (kind, a, b) = match operation {
        Operation::Read => (0, 0, 0),
        Operation::Write(value) => (1, value, 0),
        Operation::CompareAndSet { expected, new } => (2, expected, new),
        Operation::Append(value) => (3, value, 0),
        Operation::Add(by) => (4, by, 0),
    };
    let mut out = [0; COMMAND_BYTES];
    out[..8].copy_from_slice(&number.to_le_bytes());
    out[8] = kind;
    out[9..13].copy_from_slice(&key.to_le_bytes());
    out[13..21].copy_from_slice(&a.to_le_bytes());
    out[21..].copy_from_slice(&b.to_le_bytes());
    out
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The operation number that a command begins with.
#[must_use]
pub fn command_number(command: &[u8]) -> Option<u64> {
    u64_at(command, 0)
}

fn decode_command(bytes: &[u8]) -> Option<(u32, Operation)> {
    let key = u32::from_le_bytes(*bytes.get(9..)?.first_chunk()?);
    let (a, b) = (u64_at(bytes, 13)?, u64_at(bytes, 21)?);
    let operation = match bytes[8] {
        0 => Operation::Read,
        1 => Operation::Write(a),
        2 => Operation::CompareAndSet {
            expected: a,
            new: b,
        },
        3 => Operation::Append(a),
        4 => Operation::Add(a),
        _ => return None,
    };
    Some((key, operation))
}

fn encode_reply(reply: Reply, out: &mut Vec<u8>) {
    let (tag, a, b) = match reply {
        Reply::Value(a, b) => (0u8, a, b),
        Reply::Written => (1, 0, 0),
        Reply::Swapped(yes) => (2, u64::from(yes), 0),
        Reply::Length(length) => (3, length, 0),
        Reply::Sum(sum) => (4, sum, 0),
    };
    out.push(tag);
    out.extend_from_slice(&a.to_le_bytes());
    out.extend_from_slice(&b.to_le_bytes());
}

/// Reads a reply.
#[must_use]
pub fn decode_reply(bytes: &[u8]) -> Option<Reply> {
    let (a, b) = (u64_at(bytes, 1)?, u64_at(bytes, 9)?);
    Some(match bytes[0] {
        0 => Reply::Value(a, b),
        1 => Reply::Written,
        2 => Reply::Swapped(a != 0),
        3 => Reply::Length(a),
        4 => Reply::Sum(a),
        _ => return None,
    })
}

/// A hash of a reply; of none, 0.
#[must_use]
pub fn reply_hash(reply: Option<Reply>) -> u128 {
    let mut bytes = Vec::new();
    if let Some(reply) = reply {
        encode_reply(reply, &mut bytes);
    }
    u128::from(hash_bytes(&bytes))
}

/// Mixes two words into one; a bijection of `b` for each `a`.
#[must_use]
pub const fn mix(a: u64, b: u64) -> u64 {
    let mut x = b ^ a.rotate_left(29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ (x >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 32)
}

/// A key's value: `(0, value)` for registers and counters, `(length, hash)` for lists. Also the
/// state of the sequential model that histories are checked against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Elements of a list.
    pub length: u64,
    /// The value, or a hash over a list's elements in order.
    pub value: u64,
}

impl Cell {
    /// Carries out an operation.
    pub const fn apply(&mut self, operation: Operation) -> Reply {
        match operation {
            Operation::Read => Reply::Value(self.length, self.value),
            Operation::Write(value) => {
                self.value = value;
                Reply::Written
            }
            Operation::CompareAndSet { expected, new } => {
                let holds = self.value == expected;
                if holds {
                    self.value = new;
                }
                Reply::Swapped(holds)
            }
            Operation::Append(value) => {
                self.length += 1;
                self.value = mix(self.value, value);
                Reply::Length(self.length)
            }
            Operation::Add(by) => {
                self.value = self.value.wrapping_add(by);
                Reply::Sum(self.value)
            }
        }
    }

    const fn hash(self, key: u64) -> u64 {
        mix(mix(key, self.length), self.value)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Registers {
    cells: Vec<Cell>,
    /// Xor of all cells' hashes, kept up to date.
    digest: u64,
    /// Bytes added to every snapshot, so that its transfer takes several pieces.
    padding: usize,
    /// The longest chunk of a snapshot.
    chunk_max: usize,
    snapshot: Vec<u8>,
    snapshot_at: usize,
    restoring: Vec<u8>,
}

impl Registers {
    /// `keys` empty cells; `padding` and `chunk_max` shape the snapshots.
    #[must_use]
    pub fn new(keys: u32, padding: usize, chunk_max: usize) -> Self {
        let mut machine = Self {
            cells: vec![Cell::default(); keys as usize],
            digest: 0,
            padding,
            chunk_max,
            snapshot: Vec::new(),
            snapshot_at: 0,
            restoring: Vec::new(),
        };
        machine.digest = machine.whole_digest();
        machine
    }

    fn whole_digest(&self) -> u64 {
        self.cells
            .iter()
            .enumerate()
            .fold(0, |sum, (key, cell)| sum ^ cell.hash(key as u64))
    }
}

impl StateMachine for Registers {
    fn apply(&mut self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
        let Some((key, operation)) = decode_command(command) else {
            return;
        };
        let Some(cell) = self.cells.get_mut(key as usize) else {
            return;
        };
        self.digest ^= cell.hash(key.into());
        encode_reply(cell.apply(operation), reply);
        self.digest ^= cell.hash(key.into());
    }

    fn query(&self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
        let Some((key, Operation::Read)) = decode_command(command) else {
            return;
        };
        let Some(cell) = self.cells.get(key as usize) else {
            return;
        };
        encode_reply(Reply::Value(cell.length, cell.value), reply);
    }

    fn begin_snapshot(&mut self) {
        self.snapshot_at = 0;
        self.snapshot.clear();
        for cell in &self.cells {
            self.snapshot.extend_from_slice(&cell.length.to_le_bytes());
            self.snapshot.extend_from_slice(&cell.value.to_le_bytes());
        }
        self.snapshot
            .resize(self.snapshot.len() + self.padding, 0x5a);
    }

    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, budget: usize) -> SnapshotProgress {
        let end = self
            .snapshot
            .len()
            .min(self.snapshot_at + budget.min(self.chunk_max));
        out.extend_from_slice(&self.snapshot[self.snapshot_at..end]);
        self.snapshot_at = end;
        if end == self.snapshot.len() {
            SnapshotProgress::Done
        } else {
            SnapshotProgress::More
        }
    }

    fn abandon_snapshot(&mut self) {
        self.snapshot_at = 0;
        self.snapshot.clear();
    }

    fn begin_restore(&mut self) {
        self.restoring.clear();
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        self.restoring.extend_from_slice(chunk);
        Ok(())
    }

    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        if self.restoring.len() != self.cells.len() * 16 + self.padding {
            return Err(RestoreError(
                "its length is not that of the cells".to_string(),
            ));
        }
        for (cell, bytes) in self.cells.iter_mut().zip(self.restoring.chunks_exact(16)) {
            cell.length = u64_at(bytes, 0).unwrap_or_default();
            cell.value = u64_at(bytes, 8).unwrap_or_default();
        }
        self.restoring.clear();
        self.digest = self.whole_digest();
        Ok(())
    }

    fn footprint(&self, command: &[u8], visit: &mut dyn FootprintVisitor) {
        match decode_command(command) {
            Some((key, Operation::Read)) => visit.key(key.into(), Access::Read),
            Some((key, _)) => visit.key(key.into(), Access::Write),
            None => visit.everything(Access::Write),
        }
    }

    fn digest(&self) -> u128 {
        u128::from(self.digest)
    }

    fn begin_digest(&mut self) -> DigestBegun {
        DigestBegun::Done(self.digest())
    }

    fn entries(&self) -> u64 {
        self.cells.len() as u64
    }
}

/// The executions of a replica, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// A batch begins.
    Batch {
        /// Where it stands.
        position: u64,
        /// Its time.
        time: CommandTime,
        /// The state's hash before it.
        digest: u128,
    },
    /// A command of the batch was applied (not one whose kept reply was given again).
    Command {
        /// Which.
        id: CommandId,
        /// The operation number that it begins with.
        number: u64,
        /// A hash of its bytes.
        hash: u64,
    },
}

/// The records that checkers have not read yet.
pub type Record = Arc<Mutex<Vec<Executed>>>;

/// A read that a replica's executor answered from its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queried {
    /// Which, as the client numbered it.
    pub id: CommandId,
    /// All up to this position had been executed.
    pub position: u64,
    /// The time it was given.
    pub time: CommandTime,
    /// Its reply.
    pub reply: Vec<u8>,
}

/// The reads that checkers have not looked at yet.
pub type Queries = Arc<Mutex<Vec<Queried>>>;

/// Writes down what the machine inside executes.
pub struct Recorder {
    inner: Box<dyn StateMachine>,
    record: Record,
    queries: Option<Queries>,
    /// The longest piece of a snapshot.
    chunk_max: usize,
    /// Of an injected bug.
    twice: bool,
}

impl Recorder {
    /// Records what `inner` executes into `record`.
    #[must_use]
    pub fn new(inner: Box<dyn StateMachine>, record: Record) -> Self {
        Self {
            inner,
            record,
            queries: None,
            chunk_max: usize::MAX,
            twice: false,
        }
    }

    /// Records reads, too, and cuts snapshots into pieces of `chunk_max` bytes at most.
    #[must_use]
    pub fn with(mut self, queries: Queries, chunk_max: usize) -> Self {
        (self.queries, self.chunk_max) = (Some(queries), chunk_max);
        self
    }

    /// Of an injected bug: some commands are applied twice.
    #[must_use]
    pub(crate) fn applying_twice(mut self, twice: bool) -> Self {
        self.twice = twice;
        self
    }

    fn write(&self, executed: Executed) {
        self.record
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(executed);
    }
}

/// A hash of a command's bytes.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash, u64::from_le_bytes(word));
    }
    hash
}

impl StateMachine for Recorder {
    fn apply(&mut self, at: &At, command: &[u8], reply: &mut Vec<u8>) {
        let number = command_number(command).unwrap_or(u64::MAX);
        self.write(Executed::Command {
            id: at.id,
            number,
            hash: hash_bytes(command),
        });
        self.inner.apply(at, command, reply);
        if self.twice && at.position.0.is_multiple_of(16) {
            self.inner.apply(at, command, &mut Vec::new());
        }
    }

    fn query(&self, at: &At, command: &[u8], reply: &mut Vec<u8>) {
        let from = reply.len();
        self.inner.query(at, command, reply);
        if let Some(queries) = &self.queries {
            let queried = Queried {
                id: at.id,
                position: at.position.0,
                time: at.time,
                reply: reply[from..].to_vec(),
            };
            let mut queries = queries.lock().unwrap_or_else(PoisonError::into_inner);
            queries.push(queried);
        }
    }

    fn query_at(&self, at: &At, command: &[u8], reply: &mut Vec<u8>) -> PastAnswer {
        self.inner.query_at(at, command, reply)
    }

    fn semantics(&self) -> u32 {
        self.inner.semantics()
    }

    fn terms(&self) -> Terms {
        self.inner.terms()
    }

    fn set_hash_seed(&mut self, seed: u64) {
        self.inner.set_hash_seed(seed);
    }

    fn begin_snapshot(&mut self) {
        self.inner.begin_snapshot();
    }

    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, budget: usize) -> SnapshotProgress {
        self.inner.snapshot_chunk(out, budget.min(self.chunk_max))
    }

    fn abandon_snapshot(&mut self) {
        self.inner.abandon_snapshot();
    }

    fn begin_restore(&mut self) {
        self.inner.begin_restore();
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        self.inner.restore_chunk(chunk)
    }

    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        self.inner.finish_restore()
    }

    fn footprint(&self, command: &[u8], visit: &mut dyn FootprintVisitor) {
        self.inner.footprint(command, visit);
    }

    fn next_deadline(&self) -> Option<CommandTime> {
        self.inner.next_deadline()
    }

    fn tick(&mut self, at: &At) {
        let (position, digest) = (at.position.0, self.inner.digest());
        self.write(Executed::Batch {
            position,
            time: at.time,
            digest,
        });
        self.inner.tick(at);
    }

    fn digest(&self) -> u128 {
        self.inner.digest()
    }

    fn begin_digest(&mut self) -> DigestBegun {
        self.inner.begin_digest()
    }

    fn digest_step(&mut self, budget: usize) -> Option<u128> {
        self.inner.digest_step(budget.min(self.chunk_max))
    }

    fn abandon_digest(&mut self) {
        self.inner.abandon_digest();
    }

    fn memory(&self) -> u64 {
        self.inner.memory()
    }

    fn entries(&self) -> u64 {
        self.inner.entries()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_replies_read_back() {
        for operation in [
            Operation::Read,
            Operation::Write(7),
            Operation::CompareAndSet {
                expected: 1,
                new: 2,
            },
            Operation::Append(9),
            Operation::Add(3),
        ] {
            let bytes = encode_command(41, 5, operation);
            assert_eq!(decode_command(&bytes), Some((5, operation)));
            assert_eq!(command_number(&bytes), Some(41));
        }
        for reply in [
            Reply::Value(1, 2),
            Reply::Written,
            Reply::Swapped(true),
            Reply::Length(3),
            Reply::Sum(4),
        ] {
            let mut bytes = Vec::new();
            encode_reply(reply, &mut bytes);
            assert_eq!(decode_reply(&bytes), Some(reply));
        }
        assert_eq!(decode_command(&[0; 28]), None);
    }

    #[test]
    fn snapshot_in_small_chunks_is_that_of_its_beginning() {
        let mut machine = Registers::new(4, 100, 7);
        let mut reply = Vec::new();
        let at = At::default();
        machine.apply(&at, &encode_command(1, 2, Operation::Append(5)), &mut reply);
        let digest = machine.digest();
        machine.begin_snapshot();
        machine.apply(&at, &encode_command(2, 3, Operation::Write(6)), &mut reply);
        assert_ne!(machine.digest(), digest);
        let mut copy = Registers::new(4, 100, 7);
        copy.begin_restore();
        loop {
            let mut chunk = Vec::new();
            let progress = machine.snapshot_chunk(&mut chunk, 1000);
            copy.restore_chunk(&chunk).unwrap();
            if progress == SnapshotProgress::Done {
                break;
            }
        }
        copy.finish_restore().unwrap();
        assert_eq!(copy.digest(), digest);
    }
}

//! The service that the performance model replicates: it stores nothing and answers with as many
//! bytes as a store would.
//!
//! ```text
//!   0 … key value   a write ──► 5 bytes        1 length key   a read ──► that many bytes
//! ```
//!
//! Each says when it was submitted, so that it can be seen which were executed behind one that was
//! submitted later.

use quintet_replica::{Access, At, FootprintVisitor, RestoreError, SnapshotProgress, StateMachine};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// The work of the service, for the code that charges for it.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub commands: AtomicU64,
    pub bytes: AtomicU64,
    /// When the newest ordered command so far was submitted.
    newest: AtomicU64,
    /// Ordered commands that were executed behind one that was submitted later.
    overtaken: AtomicU64,
    ordered: AtomicU64,
}

impl Done {
    /// Which part of the ordered commands was executed behind one that was submitted later.
    pub fn overtaken(&self) -> f64 {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        load(&self.overtaken) / load(&self.ordered).max(1.0)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Service {
    pub done: Arc<Done>,
    applied: u64,
}

const WRITE: u8 = 0;
const READ: u8 = 1;
/// Where the key stands.
const KEY: usize = 16;
/// Where it stands when it was submitted.
const SUBMITTED: usize = KEY + 8;
/// The overhead of a key and a command's name.
const OVERHEAD: usize = 40;

/// A write's or a read's payload; the key 0 is everything.
pub(super) fn payload(read: bool, key: u64, value_size: usize, submitted: u64) -> Vec<u8> {
    let mut out = if read {
        let mut out = vec![READ];
        out.extend_from_slice(&(value_size as u64).to_le_bytes());
        out.resize(OVERHEAD, 0);
        out
    } else {
        vec![WRITE; OVERHEAD + value_size]
    };
    out[KEY..SUBMITTED].copy_from_slice(&key.to_le_bytes());
    out[SUBMITTED..SUBMITTED + 8].copy_from_slice(&submitted.to_le_bytes());
    out
}

fn number(command: &[u8], at: usize) -> u64 {
    let bytes = command.get(at..at + 8);
    bytes.map_or(0, |bytes| {
        bytes
            .iter()
            .rev()
            .fold(0, |all, byte| all << 8 | u64::from(*byte))
    })
}

impl Service {
    pub const fn new(done: Arc<Done>) -> Self {
        Self { done, applied: 0 }
    }

    fn answer(&self, command: &[u8], reply: &mut Vec<u8>) {
        let before = reply.len();
        let length = command.get(1..9).and_then(|bytes| bytes.try_into().ok());
        match (command.first(), length) {
            (Some(&READ), Some(length)) => {
                let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(0);
                reply.resize(before + length.min(1 << 20), b'x');
            }
            _ => reply.extend_from_slice(b"+OK\r\n"),
        }
        let bytes = command.len() + reply.len() - before;
        self.done.commands.fetch_add(1, Ordering::Relaxed);
        self.done.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl StateMachine for Service {
    fn apply(&mut self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
        self.applied += 1;
        let submitted = number(command, SUBMITTED);
        let newest = self.done.newest.fetch_max(submitted, Ordering::Relaxed);
        let overtaken = u64::from(submitted < newest);
        self.done.overtaken.fetch_add(overtaken, Ordering::Relaxed);
        self.done.ordered.fetch_add(1, Ordering::Relaxed);
        self.answer(command, reply);
    }

    fn query(&self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
        self.answer(command, reply);
    }

    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, _: usize) -> SnapshotProgress {
        out.extend_from_slice(&self.applied.to_le_bytes());
        SnapshotProgress::Done
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        if let Ok(bytes) = chunk.try_into() {
            self.applied = u64::from_le_bytes(bytes);
        }
        Ok(())
    }

    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        Ok(())
    }

    fn footprint(&self, command: &[u8], visit: &mut dyn FootprintVisitor) {
        let access = match command.first() {
            Some(&READ) => Access::Read,
            _ => Access::Write,
        };
        match number(command, KEY) {
            0 => visit.everything(Access::Write),
            key => visit.key(key, access),
        }
    }

    fn takes_unordered(&self) -> bool {
        true
    }

    fn digest(&self) -> u128 {
        self.applied.into()
    }
}

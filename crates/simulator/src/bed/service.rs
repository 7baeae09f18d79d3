//! The service that the bed replicates: it stores nothing and answers with as many bytes as a
//! store would.
//!
//! ```text
//!   0 … key value   a write ──► 5 bytes        1 length key   a read ──► that many bytes
//! ```

use quintet_replica::{Access, At, FootprintVisitor, RestoreError, SnapshotProgress, StateMachine};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What the service has done, for whoever charges for it.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub commands: AtomicU64,
    pub bytes: AtomicU64,
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
/// What a key and a command's name take.
const OVERHEAD: usize = 40;

/// A write's or a read's payload; the key 0 is everything.
pub(super) fn payload(read: bool, key: u64, value_size: usize) -> Vec<u8> {
    let mut out = if read {
        let mut out = vec![READ];
        out.extend_from_slice(&(value_size as u64).to_le_bytes());
        out.resize(OVERHEAD, 0);
        out
    } else {
        vec![WRITE; OVERHEAD + value_size]
    };
    out[KEY..KEY + 8].copy_from_slice(&key.to_le_bytes());
    out
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
        let key = command
            .get(KEY..KEY + 8)
            .and_then(|key| key.try_into().ok());
        match key.map_or(0, u64::from_le_bytes) {
            0 => visit.everything(Access::Write),
            key => visit.key(key, access),
        }
    }

    fn digest(&self) -> u128 {
        self.applied.into()
    }
}

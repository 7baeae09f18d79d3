//! State machines whose whole state fits into one buffer.
//!
//! ```text
//!   begin_snapshot ──► encode() ──► snapshot_chunk … (by the caller's budget)
//!   restore_chunk … ──► one buffer ──► finish_restore ──► decode()
//! ```

use quintet_replica::{
    At, DigestBegun, RestoreError, SnapshotProgress, StateMachine, digest::hash_wide,
};

/// A state machine with a small state: what it takes is to apply, to query, and to turn the state
/// into bytes and back. For more (time, chance, large states, commands that do not conflict)
/// implement [`StateMachine`].
///
/// The same commands in the same order must give the same replies and the same
/// [`encode`](Self::encode) on every replica. So the machine reads no clock, no randomness and no
/// order of a hash map, and no bytes make it panic.
pub trait SmallStateMachine: Clone + Send + 'static {
    /// Executes a command and gives its reply.
    fn apply(&mut self, command: &[u8]) -> Vec<u8>;

    /// Answers a read.
    fn query(&self, command: &[u8]) -> Vec<u8>;

    /// The whole state as bytes.
    fn encode(&self) -> Vec<u8>;

    /// The state that [`encode`](Self::encode) wrote; `None` when the bytes are not one.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// A [`StateMachine`] around a [`SmallStateMachine`].
#[derive(Clone, Debug)]
pub struct Small<M> {
    machine: M,
    snapshot: Vec<u8>,
    written: usize,
    restored: Vec<u8>,
}

impl<M: SmallStateMachine> Small<M> {
    /// Around `machine`.
    pub const fn new(machine: M) -> Self {
        Self {
            machine,
            snapshot: Vec::new(),
            written: 0,
            restored: Vec::new(),
        }
    }
}

impl<M: SmallStateMachine> StateMachine for Small<M> {
    fn apply(&mut self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(&self.machine.apply(command));
    }

    fn query(&self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(&self.machine.query(command));
    }

    fn begin_snapshot(&mut self) {
        self.snapshot = self.machine.encode();
        self.written = 0;
    }

    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, budget: usize) -> SnapshotProgress {
        let end = (self.written + budget.max(1)).min(self.snapshot.len());
        out.extend_from_slice(&self.snapshot[self.written..end]);
        self.written = end;
        if end < self.snapshot.len() {
            return SnapshotProgress::More;
        }
        self.abandon_snapshot();
        SnapshotProgress::Done
    }

    fn abandon_snapshot(&mut self) {
        self.snapshot = Vec::new();
        self.written = 0;
    }

    fn begin_restore(&mut self) {
        self.restored.clear();
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        self.restored.extend_from_slice(chunk);
        Ok(())
    }

    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        let bytes = std::mem::take(&mut self.restored);
        self.machine = M::decode(&bytes).ok_or_else(|| {
            RestoreError(format!(
                "its {} bytes of state cannot be decoded",
                bytes.len()
            ))
        })?;
        Ok(())
    }

    fn digest(&self) -> u128 {
        hash_wide(&self.machine.encode())
    }

    fn begin_digest(&mut self) -> DigestBegun {
        DigestBegun::Done(self.digest())
    }

    fn memory(&self) -> u64 {
        self.machine.encode().len() as u64
    }
}

/// Tells the compiler which of the two traits a type implements.
pub mod kind {
    /// It implements [`SmallStateMachine`](crate::SmallStateMachine).
    #[derive(Debug)]
    pub enum Small {}
    /// It implements [`StateMachine`](crate::StateMachine).
    #[derive(Debug)]
    pub enum Whole {}
}

/// A state machine that a cluster can replicate: a [`SmallStateMachine`], or a [`StateMachine`]
/// that can be cloned. Every replica gets a copy. A type that implements both must be wrapped in
/// [`Small`] or left with one.
pub trait Replicated<Kind>: Clone {
    /// The machine of one replica.
    fn machine(&self) -> Box<dyn StateMachine>;
}

impl<M: SmallStateMachine> Replicated<kind::Small> for M {
    fn machine(&self) -> Box<dyn StateMachine> {
        Box::new(Small::new(self.clone()))
    }
}

impl<M: StateMachine + Clone> Replicated<kind::Whole> for M {
    fn machine(&self) -> Box<dyn StateMachine> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Default, PartialEq)]
    struct Log(Vec<u8>);

    impl SmallStateMachine for Log {
        fn apply(&mut self, command: &[u8]) -> Vec<u8> {
            self.0.extend_from_slice(command);
            self.encode()
        }
        fn query(&self, _: &[u8]) -> Vec<u8> {
            self.encode()
        }
        fn encode(&self) -> Vec<u8> {
            self.0.clone()
        }
        fn decode(bytes: &[u8]) -> Option<Self> {
            (bytes != b"broken").then(|| Self(bytes.to_vec()))
        }
    }

    fn applied(machine: &mut Small<Log>, command: &[u8]) {
        machine.apply(&At::default(), command, &mut Vec::new());
    }

    #[test]
    fn snapshot_is_of_the_state_when_it_began_in_parts_of_any_size() {
        for budget in [0, 1, 2, 3, 100] {
            let mut original = Small::new(Log::default());
            applied(&mut original, b"abcde");
            original.begin_snapshot();
            applied(&mut original, b"later");
            let mut copy = Small::new(Log::default());
            copy.begin_restore();
            loop {
                let mut chunk = Vec::new();
                let progress = original.snapshot_chunk(&mut chunk, budget);
                copy.restore_chunk(&chunk).unwrap();
                if progress == SnapshotProgress::Done {
                    break;
                }
            }
            copy.finish_restore().unwrap();
            assert_eq!(copy.machine, Log(b"abcde".to_vec()));
            assert_ne!(copy.digest(), original.digest());
            applied(&mut copy, b"later");
            assert_eq!(copy.digest(), original.digest());
        }
    }

    #[test]
    fn bytes_that_are_no_state_are_refused() {
        let mut machine = Small::new(Log::default());
        machine.begin_restore();
        machine.restore_chunk(b"bro").unwrap();
        machine.restore_chunk(b"ken").unwrap();
        assert!(
            machine
                .finish_restore()
                .unwrap_err()
                .to_string()
                .contains("6 bytes")
        );
    }
}

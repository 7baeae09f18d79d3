//! The clients' requests and the observed answers, in the order in which they saw them.
//!
//! ```text
//!   invoke ──► number + ordinal ──► sent … answered ──► ordinal + fate
//! ```
//!
//! Ordinals come from one counter that all clients share: an operation whose answer was seen
//! before another was invoked has the smaller ordinals, whatever the clocks say.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// A text: a command's name, an argument, a value.
pub type Text = Box<[u8]>;

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing there.
    Nil,
    /// A number.
    Number(i64),
    /// A text; `OK` too.
    Text(Text),
    /// Several: a transaction's.
    List(Vec<Answer>),
    /// An error that is an answer: the command was executed, and this is its result.
    Error(String),
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Answered.
    Done(Answer),
    /// Certainly not executed.
    Failed,
    /// The outcome is unknown.
    Uncertain,
}

/// One operation of a client: a command, or several as one transaction.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Which client.
    pub client: u32,
    /// At which replica.
    pub replica: u16,
    /// Its commands, each with its name first.
    pub commands: Vec<Vec<Text>>,
    /// Whether the commands stood between MULTI and EXEC.
    pub transaction: bool,
    /// The ordinal of its invocation.
    pub invoked: u64,
    /// The ordinal of its end.
    pub ended: u64,
    /// When it was asked, in nanoseconds of the run.
    pub began_at: u64,
    /// When it ended.
    pub ended_at: u64,
    /// How it ended.
    pub fate: Fate,
}

/// A text from a string.
#[must_use]
pub fn text(value: impl AsRef<[u8]>) -> Text {
    value.as_ref().into()
}

/// All operations of a run.
#[derive(Debug, Default)]
pub struct Recording {
    ordinal: AtomicU64,
    acknowledged: AtomicU64,
    ended: Mutex<Vec<Operation>>,
}

impl Recording {
    /// The next ordinal.
    #[must_use]
    pub fn ordinal(&self) -> u64 {
        // One total order that agrees with each thread's own is all that is asked of it, and
        // what two clients tell each other goes through sockets and the kernel.
        self.ordinal.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// An operation has ended.
    pub fn end(&self, operation: Operation) {
        if matches!(operation.fate, Fate::Done(_)) {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        self.operations().push(operation);
    }

    /// How many operations were answered so far.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    fn operations(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that has ended, by order of invocation; the recording is empty afterwards.
    #[must_use]
    pub fn take(&self) -> Vec<Operation> {
        let mut operations = std::mem::take(&mut *self.operations());
        operations.sort_by_key(|operation| operation.invoked);
        operations
    }
}

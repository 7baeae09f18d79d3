//! The clients' observations: every operation with the times of its invocation and its end.
//!
//! ```text
//!   invoke ──► Open ──┬─► Done(reply)      happened between invocation and completion
//!                     ├─► Failed           certainly never happens
//!                     └─► Uncertain        may happen at any time after invocation, or never
//! ```
//!
//! Times are ordinals of the recording itself, so that no two are equal.

use crate::{
    machine::{Operation, Reply},
    model::Call,
};
use quintet_replica::CommandId;

/// The operations of a replicated machine.
pub trait Asked {
    /// Whether it changes nothing.
    fn is_read(&self) -> bool;
}

impl Asked for Operation {
    fn is_read(&self) -> bool {
        *self == Self::Read
    }
}

impl Asked for Call {
    fn is_read(&self) -> bool {
        Self::is_read(self)
    }
}

/// How an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate<R = Reply> {
    /// In progress.
    Open,
    /// Answered at this ordinal.
    Done(u64, R),
    /// The client was told that it was not executed.
    Failed,
    /// The outcome remains unknown.
    Uncertain,
}

/// One operation of a client.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<O = Operation, R = Reply> {
    /// Which client.
    pub client: u16,
    /// On which key; 0 when the operation names its keys itself.
    pub key: u32,
    /// The operation.
    pub operation: O,
    /// The ordinal of its invocation.
    pub invoked: u64,
    /// How it stands.
    pub fate: Fate<R>,
    /// Its place in a session, once it was sent as an ordered command.
    pub id: Option<CommandId>,
}

/// All operations of a world; an operation's index is its number.
#[derive(Debug)]
pub struct History<O = Operation, R = Reply> {
    operations: Vec<Recorded<O, R>>,
    ordinal: u64,
    /// How many were answered.
    pub acknowledged: u64,
}

impl<O, R> Default for History<O, R> {
    fn default() -> Self {
        Self {
            operations: Vec::new(),
            ordinal: 0,
            acknowledged: 0,
        }
    }
}

impl<O, R: PartialEq> History<O, R> {
    /// Records an invocation and gives the operation's number.
    pub fn invoke(&mut self, client: u16, key: u32, operation: O) -> usize {
        self.ordinal += 1;
        let invoked = self.ordinal;
        self.operations.push(Recorded {
            client,
            key,
            operation,
            invoked,
            fate: Fate::Open,
            id: None,
        });
        self.operations.len() - 1
    }

    /// Records the place in a session under which the operation is sent.
    pub fn sent(&mut self, number: usize, id: CommandId) {
        self.operations[number].id = Some(id);
    }

    /// Records an answer; one that comes after the operation was given up says nothing new.
    pub fn done(&mut self, number: usize, reply: R) -> bool {
        if self.operations[number].fate != Fate::Open {
            return false;
        }
        self.ordinal += 1;
        self.acknowledged += 1;
        self.operations[number].fate = Fate::Done(self.ordinal, reply);
        true
    }

    /// The operation's end without an answer.
    pub fn end(&mut self, number: usize, fate: Fate<R>) -> bool {
        let open = self.operations[number].fate == Fate::Open;
        if open {
            self.operations[number].fate = fate;
        }
        open
    }

    /// The machine begins again with nothing. Gives the operations so far; those may still be executed
    /// by what begins, and it answers for none of them.
    pub fn begin_again(&mut self) -> Vec<Recorded<O, R>>
    where
        O: Clone,
        R: Clone,
    {
        let before = self.operations.clone();
        for operation in &mut self.operations {
            operation.fate = Fate::Uncertain;
        }
        before
    }

    /// An operation.
    #[must_use]
    pub fn get(&self, number: usize) -> &Recorded<O, R> {
        &self.operations[number]
    }

    /// All operations by number.
    #[must_use]
    pub fn operations(&self) -> &[Recorded<O, R>] {
        &self.operations
    }
}

//! Where an answer is put and waited for.

use super::CallError;
use quintet_runtime::SubmitError;
use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

#[derive(Debug, Default)]
pub(super) enum State {
    #[default]
    Open,
    Awaited(Waker),
    Answered(Result<Vec<u8>, CallError>),
    Taken,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    pub told: Condvar,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that gives the answer.
pub(super) struct Answering(pub Arc<Shared>);

impl Answering {
    pub fn answer(self, answer: Result<Vec<u8>, CallError>) {
        let before = std::mem::replace(&mut *self.0.lock(), State::Answered(answer));
        self.0.told.notify_all();
        if let State::Awaited(waker) = before {
            waker.wake();
        }
    }
}

/// The error of a call that a member did not take.
pub(super) fn not_taken(error: SubmitError, shard: &str) -> CallError {
    match error {
        SubmitError::NoQuorum => CallError::NoQuorum {
            shard: shard.to_owned(),
        },
        SubmitError::Uncertain => CallError::Uncertain,
        SubmitError::Busy => CallError::Busy,
        SubmitError::TooLarge { bytes, bytes_max } => CallError::TooLarge { bytes, bytes_max },
        SubmitError::DiskFull => CallError::DiskFull,
        SubmitError::Stopped => CallError::Stopped,
        SubmitError::NotYet => CallError::NotYet,
        SubmitError::NotKept => CallError::NotKept,
    }
}

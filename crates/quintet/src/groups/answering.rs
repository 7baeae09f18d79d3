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
    Answered(Answer),
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

    /// Has the task that awaits the answer look again.
    pub fn wake(&self) {
        let state = self.lock();
        if let State::Awaited(waker) = &*state {
            let waker = waker.clone();
            drop(state);
            waker.wake();
        }
    }
}

pub(super) use quintet_groups::at_members::Answer;

/// The end that gives the answer.
pub(super) enum Answering {
    /// To a caller that waits.
    Caller(Arc<Shared>),
    /// To the next step, which must not block.
    Next(Box<dyn FnOnce(Answer) + Send>),
}

impl Answering {
    pub fn next(step: impl FnOnce(Answer) + Send + 'static) -> Self {
        Self::Next(Box::new(step))
    }

    pub fn answer(self, answer: Answer) {
        let shared = match self {
            Self::Caller(shared) => shared,
            Self::Next(step) => return step(answer),
        };
        let before = std::mem::replace(&mut *shared.lock(), State::Answered(answer));
        shared.told.notify_all();
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

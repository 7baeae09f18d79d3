//! Where an answer is put and waited for.

use super::CallError;
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

//! Answers that are on their way: waited for by a thread, or awaited by a task.

use super::{CallError, Done, call};
use serde::de::DeserializeOwned;
use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

#[derive(Debug, Default)]
enum State {
    #[default]
    Open,
    Awaited(Waker),
    Answered(Result<Vec<u8>, CallError>),
    Taken,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    told: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The end that gives the answer.
pub(super) struct Answering(Arc<Shared>);

impl Answering {
    pub fn answer(self, answer: Result<Vec<u8>, CallError>) {
        let before = std::mem::replace(&mut *self.0.lock(), State::Answered(answer));
        self.0.told.notify_all();
        if let State::Awaited(waker) = before {
            waker.wake();
        }
    }
}

/// The answer to a call that has been sent. Wait for it with [`wait`](Self::wait) or `.await`.
/// Dropping it gives up the answer, not the command.
#[must_use = "the call is on its way: wait for its answer, or drop it on purpose"]
#[derive(Debug)]
pub struct Pending<R> {
    shared: Arc<Shared>,
    shard: Arc<str>,
    timeout: Duration,
    /// Whether the command may have been executed when the deadline passes.
    is_ordered: bool,
    answer: PhantomData<fn() -> R>,
}

impl<R: DeserializeOwned> Pending<R> {
    pub(super) fn new(shard: Arc<str>, timeout: Duration, is_ordered: bool) -> (Self, Answering) {
        let shared = Arc::new(Shared::default());
        let pending = Self {
            shared: shared.clone(),
            shard,
            timeout,
            is_ordered,
            answer: PhantomData,
        };
        (pending, Answering(shared))
    }

    /// Waits no longer than this, instead of a little longer than the group's own deadline.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.timeout = deadline;
        self
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(self) -> Result<R, CallError> {
        self.done().map(|done| done.value)
    }

    /// Waits for the answer and tells at which version it was given.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn done(self) -> Result<Done<R>, CallError> {
        if call::is_inside() {
            return Err(CallError::InsideHandler);
        }
        let ends = Instant::now() + self.timeout;
        let mut state = self.shared.lock();
        loop {
            if let State::Answered(_) = &*state {
                let taken = std::mem::replace(&mut *state, State::Taken);
                let State::Answered(answer) = taken else {
                    return Err(CallError::Uncertain);
                };
                return call::read_answer(&answer?, &self.shard);
            }
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(match self.is_ordered {
                    true => CallError::Uncertain,
                    false => CallError::NoQuorum {
                        shard: self.shard.to_string(),
                    },
                });
            }
            let waited = self.shared.told.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The answer, if it has come. It is given once.
    pub fn try_get(&mut self) -> Option<Result<R, CallError>> {
        let mut state = self.shared.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Answered(Ok(bytes)) => {
                let read = call::read_answer(&bytes, &self.shard);
                Some(read.map(|done: Done<R>| done.value))
            }
            State::Answered(Err(error)) => Some(Err(error)),
            other => {
                *state = other;
                None
            }
        }
    }
}

impl<R: DeserializeOwned> Future for Pending<R> {
    type Output = Result<R, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(answer) = self.try_get() {
            return Poll::Ready(answer);
        }
        let mut state = self.shared.lock();
        match &*state {
            // It came in between.
            State::Answered(_) => context.waker().wake_by_ref(),
            _ => *state = State::Awaited(context.waker().clone()),
        }
        Poll::Pending
    }
}

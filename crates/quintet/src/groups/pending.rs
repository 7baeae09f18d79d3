//! Answers that are on their way: waited for by a thread, or awaited by a task.

use super::{
    CallError, Done,
    answering::{Answering, Shared, State},
    call,
    calls::{Calls, Source, To},
    remote::Wanted,
};
use quintet_replica::Level;
use serde::de::DeserializeOwned;
use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

/// The end of a time from now on.
pub(super) fn end_of(timeout: Duration) -> Instant {
    const LONG: Duration = Duration::from_secs(1 << 30);
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + LONG)
}

/// Pauses between looks, each twice as long as the one before.
pub(super) struct Pauses {
    next: Duration,
    max: Duration,
}

impl Pauses {
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { next: first, max }
    }

    /// The length of the next one.
    pub fn next(&mut self) -> Duration {
        let next = self.next;
        self.next = (next * 2).min(self.max);
        next
    }

    /// Makes the next one, no longer than this.
    pub fn make(&mut self, longest: Duration) {
        thread::sleep(self.next().min(longest));
    }
}

/// The answer to a call that has been sent. Wait for it with [`wait`](Self::wait) or `.await`.
/// Dropping it gives up the answer, not the command.
///
/// Within a handler it gives [`CallError::InsideHandler`], also one that was made elsewhere and has its
/// answer: members would differ by what they were told when.
#[must_use = "the call is on its way: wait for its answer, or drop it on purpose"]
#[derive(Debug)]
pub struct Pending<R> {
    shared: Arc<Shared>,
    pub(super) calls: Arc<Calls>,
    /// The shard that is asked.
    pub(super) source: Source,
    pub(super) timeout: Duration,
    /// Whether the command may have been executed when the deadline passes.
    is_ordered: bool,
    answer: PhantomData<fn() -> R>,
}

impl<R: DeserializeOwned> Pending<R> {
    /// Sends a call.
    pub(super) fn send(calls: &Arc<Calls>, to: To, wanted: Wanted, payload: Vec<u8>) -> Self {
        let (pending, answering) = Self::of(calls, &to.source, wanted);
        calls.send(to, wanted, payload, answering);
        pending
    }

    /// An answer that is to come, and the end that gives it.
    pub(super) fn of(calls: &Arc<Calls>, source: &Source, wanted: Wanted) -> (Self, Answering) {
        let shared = Arc::new(Shared::default());
        let pending = Self {
            shared: shared.clone(),
            calls: calls.clone(),
            source: source.clone(),
            timeout: calls.timeout(),
            is_ordered: wanted == Wanted::Level(Level::Ordered),
            answer: PhantomData,
        };
        (pending, Answering::Caller(shared))
    }

    /// [`wait`](Self::wait), [`done`](Self::done) and [`handed_off`](Self::handed_off) wait no longer
    /// than this, instead of a little longer than the group's own deadline.
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
        let shard = self.source.name.clone();
        call::read_answer(&self.bytes()?, &shard)
    }

    /// The answer as it travels.
    pub(super) fn bytes(self) -> Result<Vec<u8>, CallError> {
        if call::is_inside() {
            return Err(CallError::InsideHandler);
        }
        let ends = end_of(self.timeout);
        let mut state = self.shared.lock();
        loop {
            if let State::Answered(_) = &*state {
                let taken = std::mem::replace(&mut *state, State::Taken);
                let State::Answered(answer) = taken else {
                    return Err(CallError::Uncertain);
                };
                return answer;
            }
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(match self.is_ordered {
                    true => CallError::Uncertain,
                    false => CallError::NoQuorum {
                        shard: self.source.name.to_string(),
                    },
                });
            }
            let waited = self.shared.told.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The answer, if it has come. It is given once.
    pub fn try_get(&mut self) -> Option<Result<R, CallError>> {
        if call::is_inside() {
            return Some(Err(CallError::InsideHandler));
        }
        let mut state = self.shared.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Answered(Ok(bytes)) => {
                let read = call::read_answer(&bytes, &self.source.name);
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

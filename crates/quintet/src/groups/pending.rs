//! Answers that are on their way: waited for by a thread, or awaited by a task.

use super::{CallError, Done, call, calls::Calls, courier::Source};
use serde::de::DeserializeOwned;
use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

/// Hand-offs that have not been executed are looked for again after this.
const LOOKS_AGAIN: Duration = Duration::from_millis(5);

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
    /// The shard of an ordered call.
    source: Option<(Arc<Calls>, Source)>,
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
            source: None,
            answer: PhantomData,
        };
        (pending, Answering(shared))
    }

    pub(super) fn of(mut self, calls: Arc<Calls>, source: Source) -> Self {
        self.source = Some((calls, source));
        self
    }

    /// Waits until all that the call has handed off has been executed, too.
    ///
    /// # Errors
    /// See [`CallError`]: of the call, or [`CallError::NotHandedOff`] where the call was executed and
    /// its hand-offs have not been within the deadline. They will be.
    pub fn handed_off(self) -> Result<R, CallError> {
        let ends = Instant::now() + self.timeout;
        let (source, shard) = (self.source.clone(), self.shard.clone());
        let answer = self.bytes()?;
        let done = call::read_answer(&answer, &shard)?;
        let mut made = call::hand_offs_of(&answer);
        while let (false, Some((calls, source))) = (made.is_empty(), &source) {
            if let Ok(left) = calls.deliver(source) {
                made.retain(|one| left.contains(one));
            }
            if made.is_empty() {
                break;
            }
            // A courier elsewhere delivers, or a shard cannot be reached.
            std::thread::sleep(LOOKS_AGAIN);
            if Instant::now() >= ends {
                return Err(CallError::NotHandedOff {
                    shards: made.into_iter().map(|(shard, _)| shard).collect(),
                });
            }
        }
        Ok(done.value)
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
        let shard = self.shard.clone();
        call::read_answer(&self.bytes()?, &shard)
    }

    /// The answer as it travels.
    pub(super) fn bytes(self) -> Result<Vec<u8>, CallError> {
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
                return answer;
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

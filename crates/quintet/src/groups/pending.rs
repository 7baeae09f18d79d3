//! Answers that are on their way: waited for by a thread, or awaited by a task.

use super::{
    CallError, Done,
    answering::{Answering, Shared, State},
    call,
    calls::{Calls, Source, To},
    remote::Wanted,
};
use quintet_replica::Level;
use quintet_runtime::alarms::{Alarm, alarms};
use serde::de::DeserializeOwned;
use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

/// The end of a time from now on.
pub(super) fn end_of(timeout: Duration) -> Instant {
    const LONG: Duration = Duration::from_secs(1 << 30);
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + LONG)
}

/// The end of what a task awaits, from its first look on.
#[derive(Debug, Default)]
pub(super) struct Limit {
    ends: Option<Instant>,
    alarm: Option<Alarm>,
}

impl Limit {
    /// When it passes.
    pub fn ends(&mut self, timeout: Duration) -> Instant {
        *self.ends.get_or_insert_with(|| end_of(timeout))
    }

    /// Whether it has passed; `wake` is called when it does, so look only behind having left a waker.
    pub fn has_passed(&mut self, timeout: Duration, wake: impl FnOnce() + Send + 'static) -> bool {
        let ends = self.ends(timeout);
        if self.alarm.is_none() {
            self.alarm = alarms().map(|it| it.set(ends, wake));
        }
        // Without an alarm it would be awaited without an end.
        self.alarm.is_none() || ends <= Instant::now()
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
    limit: Limit,
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
            limit: Limit::default(),
            is_ordered: wanted == Wanted::Level(Level::Ordered),
            answer: PhantomData,
        };
        (pending, Answering::Caller(shared))
    }

    /// [`wait`](Self::wait), [`done`](Self::done), [`handed_off`](Self::handed_off) and `.await` wait no
    /// longer than this from where they begin, instead of a little longer than the group's own deadline.
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
                return Err(self.late());
            }
            let waited = self.shared.told.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The error of an answer that has not come in time.
    fn late(&self) -> CallError {
        match self.is_ordered {
            true => CallError::Uncertain,
            false => CallError::NoQuorum {
                shard: self.source.name.to_string(),
            },
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
        let this = &mut *self;
        let mut state = this.shared.lock();
        match &*state {
            // It came in between.
            State::Answered(_) => context.waker().wake_by_ref(),
            _ => *state = State::Awaited(context.waker().clone()),
        }
        drop(state);
        let shared = this.shared.clone();
        match this.limit.has_passed(this.timeout, move || shared.wake()) {
            true => Poll::Ready(Err(this.late())),
            false => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::replies::Replies;
    use quintet_replica::GroupId;
    use std::{future::poll_fn, pin::pin, sync::mpsc, task::Wake, thread};

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let waker = Arc::new(Unpark(thread::current())).into();
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            match future.as_mut().poll(&mut context) {
                Poll::Ready(ready) => return ready,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// A group of two members that nothing is known of, and a shard of it.
    fn silent() -> (Arc<Calls>, Source) {
        let source = Source {
            name: "store/0".into(),
            group: GroupId(1),
            number: 0,
            reads: Arc::default(),
        };
        let all = vec![source.clone()];
        let calls = Calls::new(vec![None, None], all, Duration::from_secs(1));
        (calls, source)
    }

    fn no_quorum() -> CallError {
        let shard = "store/0".to_owned();
        CallError::NoQuorum { shard }
    }

    #[test]
    fn awaited_answer_that_does_not_come_ends_in_time() {
        let (calls, source) = silent();
        for (level, error) in [
            (Level::Ordered, CallError::Uncertain),
            (Level::Linearizable, no_quorum()),
        ] {
            let (pending, answering) = Pending::<u64>::of(&calls, &source, Wanted::Level(level));
            let ended = block_on(pending.deadline(Duration::from_millis(20)));
            assert_eq!(ended, Err(error));
            answering.answer(Ok(call::answer_of(&7u64)));
        }
    }

    #[test]
    fn awaited_answer_comes_before_its_deadline() {
        let (calls, source) = silent();
        let wanted = Wanted::Level(Level::Stale);
        let (mut pending, answering) = Pending::<u64>::of(&calls, &source, wanted);
        let (polled, is_polled) = mpsc::channel();
        let answers = thread::spawn(move || {
            is_polled.recv().expect("it is awaited");
            answering.answer(Ok(call::answer_of(&7u64)));
        });
        let answer = block_on(poll_fn(|context| {
            let poll = Pin::new(&mut pending).poll(context);
            // The thread that answers needs it once.
            let _ = polled.send(());
            poll
        }));
        assert_eq!(answer, Ok(7));
        answers.join().expect("it answered");
    }

    #[test]
    fn awaited_replies_of_silent_members_are_errors_in_time() {
        let (calls, source) = silent();
        let (replies, arrivals) = Replies::<u64>::new(&calls, &source);
        let mut replies = replies.deadline(Duration::from_millis(20));
        arrivals.expect(&[0, 1]);
        arrivals.put(1, Ok(call::answer_of(&7u64)));
        let mut came = Vec::new();
        while let Some(next) = block_on(replies.next()) {
            came.push(next);
        }
        assert_eq!(came, [(1, Ok(7)), (0, Err(no_quorum()))]);
        arrivals.put(0, Ok(call::answer_of(&8u64)));
        assert_eq!(block_on(replies.next()), None, "it is too late");
    }
}

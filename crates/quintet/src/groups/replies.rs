//! The replies of several members, as they come.

use super::{
    CallError,
    answering::Answer,
    call,
    calls::{Calls, Source},
    pending::Limit,
};
use serde::de::DeserializeOwned;
use std::{
    collections::VecDeque,
    future::poll_fn,
    marker::PhantomData,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

#[derive(Debug, Default)]
struct State {
    came: VecDeque<(usize, Answer)>,
    /// The members that have not replied; unknown as long as none was asked.
    waiting: Option<Vec<usize>>,
    /// A handler has asked for replies: it gets an error from each member, once.
    ended_inside: bool,
    waker: Option<Waker>,
}

/// Where replies are put and waited for.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    state: Mutex<State>,
    told: Condvar,
}

impl Arrivals {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = self.lock();
            change(&mut state);
            state.waker.take()
        };
        self.told.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// These members are asked.
    pub fn expect(&self, members: &[u16]) {
        let members = members.iter().copied().map(usize::from).collect();
        self.change(|state| state.waiting = Some(members));
    }

    /// A member has replied.
    pub fn put(&self, member: u16, answer: Answer) {
        let member = usize::from(member);
        self.change(|state| {
            let waiting = state.waiting.get_or_insert_default();
            // A reply behind the deadline is of no use.
            if let Some(at) = waiting.iter().position(|it| *it == member) {
                waiting.remove(at);
                state.came.push_back((member, answer));
            }
        });
    }

    /// None of these members will reply.
    pub fn fail(&self, members: &[u16], error: &CallError) {
        self.expect(members);
        for member in members {
            self.put(*member, Err(error.clone()));
        }
    }
}

impl State {
    /// The next reply; `Ok(None)` at the end, and `Err` while it is waited for.
    fn next(&mut self) -> Result<Option<(usize, Answer)>, ()> {
        match (self.came.pop_front(), &self.waiting) {
            (Some(next), _) => Ok(Some(next)),
            (None, Some(waiting)) if waiting.is_empty() => Ok(None),
            _ => Err(()),
        }
    }

    /// The deadline has passed: those that have not replied do not.
    fn give_up(&mut self, all: &[u16], shard: &str) {
        let late = self.waiting.replace(Vec::new());
        let late = late.unwrap_or_else(|| all.iter().copied().map(usize::from).collect());
        let shard = shard.to_owned();
        let error = CallError::NoQuorum { shard };
        let failed = late.into_iter().map(|it| (it, Err(error.clone())));
        self.came.extend(failed);
    }
}

/// The replies to a call that each member of a shard answers. Iterate over them, or await
/// [`next`](Self::next).
///
/// The members are those that the asked process knows of; one that has stopped, or is no member any
/// more, replies with an error. No reply is kept: dropping this gives up those that have not come.
#[must_use = "the call is on its way: read its replies, or drop it on purpose"]
#[derive(Debug)]
pub struct Replies<R> {
    arrivals: Arc<Arrivals>,
    calls: Arc<Calls>,
    shard: Arc<str>,
    timeout: Duration,
    limit: Limit,
    answer: PhantomData<fn() -> R>,
}

impl<R> Replies<R> {
    pub(super) fn new(calls: &Arc<Calls>, source: &Source) -> (Self, Arc<Arrivals>) {
        let arrivals = Arc::new(Arrivals::default());
        let replies = Self {
            arrivals: arrivals.clone(),
            calls: calls.clone(),
            shard: source.name.clone(),
            timeout: calls.timeout(),
            limit: Limit::default(),
            answer: PhantomData,
        };
        (replies, arrivals)
    }

    /// No reply is waited for longer than this from the first look at any, instead of a little longer
    /// than the group's own deadline: those that have not come are errors then.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.timeout = deadline;
        self
    }

    /// Where this thread executes a handler, there are no replies.
    fn end_inside(&self) {
        let all = self.calls.all();
        let mut state = self.arrivals.lock();
        if std::mem::replace(&mut state.ended_inside, true) {
            return;
        }
        state.waiting = Some(Vec::new());
        let error = || Err(CallError::InsideHandler);
        state.came = all.iter().map(|it| (usize::from(*it), error())).collect();
    }

    /// Waits for the next reply as it travels.
    pub(super) fn next_bytes(&self, ends: Instant) -> Option<(usize, Answer)> {
        if call::is_inside() {
            self.end_inside();
        }
        let mut state = self.arrivals.lock();
        loop {
            if let Ok(next) = state.next() {
                return next;
            }
            let left = ends.saturating_duration_since(Instant::now());
            if left.is_zero() {
                state.give_up(&self.calls.all(), &self.shard);
                continue;
            }
            let waited = self.arrivals.told.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn ends(&mut self) -> Instant {
        self.limit.ends(self.timeout)
    }
}

impl<R: DeserializeOwned> Replies<R> {
    fn read(&self, answer: Answer) -> Result<R, CallError> {
        call::read_answer(&answer?, &self.shard).map(|done| done.value)
    }

    /// The next reply and the member that gave it, as they come; `None` behind the last. A member that
    /// is silent has an error when the deadline has passed ([`Self::deadline`]).
    pub async fn next(&mut self) -> Option<(usize, Result<R, CallError>)> {
        if call::is_inside() {
            self.end_inside();
        }
        let Self {
            arrivals,
            calls,
            shard,
            timeout,
            limit,
            ..
        } = self;
        let next = poll_fn(|context| {
            let mut state = arrivals.lock();
            if let Ok(next) = state.next() {
                return Poll::Ready(next);
            }
            state.waker = Some(context.waker().clone());
            drop(state);
            let wakes = arrivals.clone();
            match limit.has_passed(*timeout, move || wakes.change(|_| {})) {
                true => {
                    let mut state = arrivals.lock();
                    state.give_up(&calls.all(), shard);
                    Poll::Ready(state.next().unwrap_or(None))
                }
                false => Poll::Pending,
            }
        });
        let (member, answer) = next.await?;
        Some((member, self.read(answer)))
    }

    /// Waits for the first reply that is no error.
    ///
    /// # Errors
    /// That of the last member, where all gave one.
    pub fn first(self) -> Result<R, CallError> {
        let mut failed = CallError::Stopped;
        for (_, reply) in self {
            match reply {
                Ok(value) => return Ok(value),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Waits for the replies of all members, in the order of their numbers.
    ///
    /// # Errors
    /// The first one of any member.
    pub fn all(self) -> Result<Vec<(usize, R)>, CallError> {
        let replies = self.into_iter().map(|(member, reply)| Ok((member, reply?)));
        let mut all = replies.collect::<Result<Vec<_>, CallError>>()?;
        all.sort_by_key(|(member, _)| *member);
        Ok(all)
    }
}

impl<R: DeserializeOwned> IntoIterator for Replies<R> {
    type Item = (usize, Result<R, CallError>);
    type IntoIter = IntoIter<R>;

    fn into_iter(mut self) -> IntoIter<R> {
        let ends = self.ends();
        IntoIter {
            replies: self,
            ends,
        }
    }
}

/// Waits for the replies, one after the other.
#[derive(Debug)]
pub struct IntoIter<R> {
    replies: Replies<R>,
    ends: Instant,
}

impl<R: DeserializeOwned> Iterator for IntoIter<R> {
    type Item = (usize, Result<R, CallError>);

    fn next(&mut self) -> Option<Self::Item> {
        let (member, answer) = self.replies.next_bytes(self.ends)?;
        Some((member, self.replies.read(answer)))
    }
}

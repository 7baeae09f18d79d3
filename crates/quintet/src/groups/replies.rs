//! The replies of several members, as they come.

use super::{
    CallError,
    answering::Answer,
    call,
    calls::{Calls, Source},
    pending::Limit,
};
use quintet_groups::at_members::Inbox;
use serde::de::DeserializeOwned;
use std::{
    future::poll_fn,
    marker::PhantomData,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

#[derive(Debug, Default)]
struct State {
    inbox: Inbox,
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
        self.change(|state| state.inbox.expect(members));
    }

    /// A member has replied.
    pub fn put(&self, member: u16, answer: Answer) {
        self.change(|state| state.inbox.put(member, answer));
    }

    /// None of these members will reply.
    pub fn fail(&self, members: &[u16], error: &CallError) {
        self.change(|state| {
            state.inbox.expect(members);
            state.inbox.give_up(members, error);
        });
    }
}

impl State {
    /// The deadline has passed: those that have not replied do not.
    fn give_up(&mut self, all: &[u16], shard: &str) {
        let shard = shard.to_owned();
        self.inbox.give_up(all, &CallError::NoQuorum { shard });
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
        state.inbox = Inbox::default();
        state.inbox.give_up(&all, &CallError::InsideHandler);
    }

    /// Waits for the next reply as it travels.
    pub(super) fn next_bytes(&self, ends: Instant) -> Option<(u16, Answer)> {
        if call::is_inside() {
            self.end_inside();
        }
        let mut state = self.arrivals.lock();
        loop {
            if let Some(next) = state.inbox.next_reply() {
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
            if let Some(next) = state.inbox.next_reply() {
                return Poll::Ready(next);
            }
            state.waker = Some(context.waker().clone());
            drop(state);
            let wakes = arrivals.clone();
            match limit.has_passed(*timeout, move || wakes.change(|_| {})) {
                true => {
                    let mut state = arrivals.lock();
                    state.give_up(&calls.all(), shard);
                    Poll::Ready(state.inbox.next_reply().flatten())
                }
                false => Poll::Pending,
            }
        });
        let (member, answer) = next.await?;
        Some((member.into(), self.read(answer)))
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
        Some((member.into(), self.replies.read(answer)))
    }
}

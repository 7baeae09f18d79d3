//! A frontend that hands its batches to one replica at a time and takes the first results: the
//! client's half of every protocol whose replicas forward and answer by themselves.
//!
//! ```text
//!   submit ──► Request ──► replica ──(orders, executes)──► results ──► done
//!                 ▲           │ Refused: no leader known, queue full
//!                 └── retry ──┘ (the same bytes; sessions see the duplicate)
//! ```
//!
//! A frontend in the replica's own process is told when requests are taken again, and one elsewhere
//! tries again and again.

use crate::{
    BatchId, Bytes, DecodeError, Field, Frontend, FrontendContext, FrontendSetup, Level, Link,
    Outcome, Protocol, Reader, ReplicaId, ReplicaSet, Reply, Submission, Time, Writer,
    outcome_at_deadline,
};
use alloc::{collections::BTreeMap, vec::Vec};
use core::{
    hash::{Hash, Hasher},
    time::Duration,
};

/// How a replica took a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Taken {
    /// It will see to it; silence from now on means "uncertain".
    Accepted,
    /// It could not pass it on (no leader known); it has not kept it.
    Refused,
    /// Its queue is full; it has not kept it.
    Busy,
}

/// A frontend's request, as its message has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The consistency that its requests need.
    pub level: Level,
    /// The batch.
    pub batch: Bytes,
}

/// A replica's word on a request that it could not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// Which batch.
    pub batch: BatchId,
    /// Why.
    pub taken: Taken,
}

crate::wire! { struct Request { level, batch } }
crate::wire! { struct Receipt { batch, taken } }

/// The protocol messages that an [`AttachedFrontend`] needs.
pub trait RequestMessage: Sized {
    /// A frontend's request.
    fn request(request: Request) -> Self;
    /// A replica's word on one.
    fn receipt(receipt: Receipt) -> Self;
    /// The request, if this message is one.
    fn into_request(self) -> Option<Request>;
    /// The word on one, if this message is one.
    fn as_receipt(&self) -> Option<Receipt>;
}

/// Lets a frontend of this kind speak a protocol's messages: those have variants
/// `Request(Request)` and `Taken(Receipt)`.
#[macro_export]
macro_rules! request_message {
    ($message:ty) => {
        impl $crate::parts::RequestMessage for $message {
            fn request(request: $crate::parts::Request) -> Self {
                Self::Request(request)
            }
            fn receipt(receipt: $crate::parts::Receipt) -> Self {
                Self::Taken(receipt)
            }
            fn into_request(self) -> Option<$crate::parts::Request> {
                match self {
                    Self::Request(request) => Some(request),
                    _ => None,
                }
            }
            fn as_receipt(&self) -> Option<$crate::parts::Receipt> {
                match self {
                    Self::Taken(receipt) => Some(*receipt),
                    _ => None,
                }
            }
        }
    };
}

impl Field for Taken {
    const SIZE_MIN: usize = 1;
    fn put(&self, writer: &mut Writer<'_>) {
        writer.u8(*self as u8);
    }
    fn get(reader: &mut Reader, field: &'static str) -> Result<Self, DecodeError> {
        match reader.u8(field)? {
            0 => Ok(Self::Accepted),
            1 => Ok(Self::Refused),
            2 => Ok(Self::Busy),
            _ => Err(DecodeError::Bad(field)),
        }
    }
}

#[derive(Hash)]
struct Open {
    submission: Submission,
    /// A replica may have ordered it.
    sent: bool,
    /// The replica's last word on it was that it does not keep it.
    refused: bool,
    retry_at: Time,
    retry_after: Duration,
    /// How often it was sent again without an answer to the one before.
    repeated: u32,
    /// Since when its answer is awaited; `None` when that says nothing about the next one's.
    since: Option<Time>,
}

/// How long results take: where sites are far apart, or a service slow, a request is not sent
/// again before its answer can be there (Jacobson's estimate, as TCP's).
#[derive(Default)]
struct Answers {
    usual: Duration,
    spread: Duration,
    /// How long requests were waited for without effect since an answer last told something. While
    /// all of them are repeated no answer tells which of its copies it is to, and a frontend that
    /// continued repeating the next ones as soon would fill the links with copies permanently (Karn's
    /// rule).
    unanswered: Duration,
}

/// By what they come to: all else never tells states apart.
impl Hash for Answers {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.timeout().hash(hasher);
    }
}

impl Answers {
    fn took(&mut self, time: Duration) {
        self.unanswered = Duration::ZERO;
        if self.usual.is_zero() {
            (self.usual, self.spread) = (time, time / 2);
        } else {
            self.spread = (self.spread * 3 + self.usual.abs_diff(time)) / 4;
            self.usual = (self.usual * 7 + time) / 8;
        }
    }

    /// Without an answer for so long, a request is sent again.
    fn timeout(&self) -> Duration {
        let estimate = self.usual + self.spread * 4;
        estimate
            .max(self.unanswered)
            .clamp(RETRY_FIRST, TIMEOUT_MAX)
    }
}

/// See the module. One timer serves all retries.
pub struct AttachedFrontend<P: Protocol> {
    replicas: u16,
    to: ReplicaId,
    /// It sends to the replica that it is embedded in.
    embedded: bool,
    home: Option<ReplicaId>,
    /// Of a group whose members change: those that take requests to be ordered.
    senders: Option<ReplicaSet>,
    /// The replica that it is embedded in takes none that are to be ordered, but answers reads.
    reads_at_home: bool,
    /// Others than the replica that it is embedded in may have what it sends.
    moved: bool,
    open: BTreeMap<BatchId, Open>,
    answers: Answers,
    /// Something that the replica here refused waits for its next try.
    refused: bool,
    timer_at: Time,
    marker: core::marker::PhantomData<fn() -> P>,
}

// Derived, it would ask for protocols that have a hash, which not every protocol has.
impl<P: Protocol> Hash for AttachedFrontend<P> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self {
            replicas,
            to,
            embedded,
            home,
            senders,
            reads_at_home,
            moved,
            open,
            answers,
            refused,
            timer_at,
            marker: _,
        } = self;
        (replicas, to, embedded, home, senders, reads_at_home, moved).hash(hasher);
        (open, answers, refused, timer_at).hash(hasher);
    }
}

/// A refused request is offered again after this.
const RETRY_REFUSED: Duration = Duration::from_millis(10);
/// A request without results is sent again after this, or later where results usually take longer,
/// doubling up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_millis(400);
const RETRY_MAX: Duration = Duration::from_millis(3200);
/// However long results usually take, a request is sent again after this.
const TIMEOUT_MAX: Duration = Duration::from_secs(10);
const TIMER: u32 = 0;

impl<P: Protocol> AttachedFrontend<P>
where
    P::Message: RequestMessage,
{
    /// Another replica is asked from here on.
    fn next(&mut self) {
        let next = |id: ReplicaId| ReplicaId((id.0 + 1) % self.replicas);
        let mut to = next(self.to);
        for _ in 0..self.replicas {
            if self.senders.is_none_or(|senders| senders.contains(to)) {
                break;
            }
            to = next(to);
        }
        self.to = to;
    }

    fn send(&self, submission: &Submission, ctx: &mut FrontendContext<'_, P>) {
        let home = self.home.filter(|_| self.reads_at_home);
        let home = home.filter(|_| submission.level != Level::Ordered);
        ctx.send(
            home.unwrap_or(self.to),
            P::Message::request(Request {
                level: submission.level,
                batch: submission.batch.clone(),
            }),
        );
    }

    fn arm(&mut self, at: Time, ctx: &mut FrontendContext<'_, P>) {
        if at < self.timer_at {
            self.timer_at = at;
            ctx.set_timer(TIMER, at);
        }
    }

    fn finish(&mut self, batch: BatchId, outcome: Outcome, ctx: &mut FrontendContext<'_, P>) {
        if self.open.remove(&batch).is_some() {
            ctx.done(batch, outcome);
        }
    }
}

impl<P: Protocol> Frontend<P> for AttachedFrontend<P>
where
    P::Message: RequestMessage,
{
    fn new(setup: FrontendSetup<P::Options>) -> Self {
        let replicas =
            u16::try_from(setup.epoch.members).expect("an epoch has at most 128 members");
        let first = ReplicaId((setup.id.0 % u64::from(replicas.max(1))) as u16);
        Self {
            replicas,
            to: setup.embedded.unwrap_or(first),
            embedded: setup.embedded.is_some(),
            home: setup.embedded,
            senders: None,
            reads_at_home: false,
            moved: false,
            open: BTreeMap::new(),
            answers: Answers::default(),
            refused: false,
            timer_at: Time::NEVER,
            marker: core::marker::PhantomData,
        }
    }

    fn submit(&mut self, submission: Submission, ctx: &mut FrontendContext<'_, P>) {
        let (now, retry_after) = (ctx.now(), self.answers.timeout());
        let retry_at = now + retry_after;
        self.send(&submission, ctx);
        self.arm(retry_at.min(submission.deadline), ctx);
        let open = Open {
            submission,
            sent: true,
            refused: false,
            retry_at,
            retry_after,
            repeated: 0,
            since: Some(now),
        };
        self.open.insert(open.submission.id, open);
    }

    fn on_message(
        &mut self,
        _from: ReplicaId,
        message: P::Message,
        ctx: &mut FrontendContext<'_, P>,
    ) {
        let Some(Receipt { batch, taken }) = message.as_receipt() else {
            return;
        };
        let now = ctx.now();
        let Some(open) = self.open.get_mut(&batch) else {
            return;
        };
        match taken {
            Taken::Accepted => (open.sent, open.refused) = (true, false),
            Taken::Refused | Taken::Busy => {
                // Only the very first try can be known to have gone nowhere, and only inside one
                // process: a network may have delivered it twice, and the other copy was kept.
                open.since = None;
                if self.embedded && !self.moved && open.repeated == 0 {
                    open.sent = false;
                    if taken == Taken::Busy {
                        return self.finish(batch, Outcome::Busy, ctx);
                    }
                }
                self.refused |= self.embedded && taken == Taken::Refused;
                open.refused = true;
                open.retry_at = now + RETRY_REFUSED;
                let at = open.retry_at.min(open.submission.deadline);
                self.arm(at, ctx);
            }
        }
    }

    fn on_reply(
        &mut self,
        _from: ReplicaId,
        reply: Reply<P::ReplyHeader>,
        ctx: &mut FrontendContext<'_, P>,
    ) {
        let Some(open) = self.open.remove(&reply.batch) else {
            return;
        };
        if let Some(since) = open.since {
            self.answers.took(ctx.now().since(since));
        }
        ctx.done(reply.batch, Outcome::Results(reply.results));
    }

    fn on_timer(&mut self, _timer: u32, ctx: &mut FrontendContext<'_, P>) {
        let now = ctx.now();
        self.timer_at = Time::NEVER;
        let overdue = self
            .open
            .values()
            .any(|open| open.sent && open.retry_at <= now);
        if overdue && !self.embedded {
            self.next();
        }
        let due: alloc::vec::Vec<BatchId> = self
            .open
            .iter()
            .filter(|(_, open)| open.retry_at.min(open.submission.deadline) <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let Some(open) = self.open.get_mut(&id) else {
                continue;
            };
            if open.submission.deadline <= now {
                let outcome = outcome_at_deadline(open.submission.level, open.sent);
                self.finish(id, outcome, ctx);
                continue;
            }
            if open.sent {
                self.answers.unanswered = self.answers.unanswered.max(open.retry_after);
                open.retry_after = (open.retry_after * 2).min(RETRY_MAX.max(open.retry_after));
                open.repeated += 1;
                // Once, it may only have been slow; the answer to a second is to a loss.
                open.since = open.since.filter(|_| open.repeated == 1);
            }
            (open.sent, open.refused) = (true, false);
            open.retry_at = now + open.retry_after;
            let submission = open.submission.clone();
            self.send(&submission, ctx);
        }
        let next = self
            .open
            .values()
            .map(|open| open.retry_at.min(open.submission.deadline))
            .min();
        if let Some(at) = next {
            self.arm(at, ctx);
        }
    }

    fn on_link(&mut self, replica: ReplicaId, link: Link, ctx: &mut FrontendContext<'_, P>) {
        if replica == self.to && !self.embedded && matches!(link, Link::Reset | Link::Down) {
            let now = ctx.now();
            self.next();
            for open in self.open.values_mut() {
                open.retry_at = now;
            }
            if !self.open.is_empty() {
                self.arm(now, ctx);
            }
        }
    }

    fn is_refused(&self) -> bool {
        self.refused
    }

    fn offer_again(&mut self, ctx: &mut FrontendContext<'_, P>) {
        self.refused = false;
        let now = ctx.now();
        for open in self.open.values_mut().filter(|open| open.refused) {
            open.retry_at = now;
        }
        self.on_timer(TIMER, ctx);
    }

    fn members_are(
        &mut self,
        members: ReplicaSet,
        senders: ReplicaSet,
        ctx: &mut FrontendContext<'_, P>,
    ) {
        self.senders = Some(senders);
        let Some(home) = self.home else {
            return;
        };
        self.embedded = senders.contains(home);
        let read_at_home = self.reads_at_home;
        self.reads_at_home = !self.embedded && members.contains(home);
        self.moved |= !self.embedded;
        let before = core::mem::replace(&mut self.to, home);
        if !self.embedded {
            self.refused = false;
            self.next();
        }
        let moves = self.to != before || self.reads_at_home != read_at_home;
        if moves && !self.open.is_empty() {
            let now = ctx.now();
            let open = self.open.values_mut();
            open.for_each(|open| open.retry_at = now);
            self.arm(now, ctx);
        }
    }

    fn open(&self) -> usize {
        self.open.len()
    }

    fn take_open(&mut self) -> Vec<Submission> {
        let open = core::mem::take(&mut self.open);
        open.into_values().map(|open| open.submission).collect()
    }

    fn fingerprint(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        core::hash::Hash::hash(self, &mut hasher);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn timeout_follows_what_answers_take_between_its_bounds() {
        let mut answers = Answers::default();
        assert_eq!(answers.timeout(), RETRY_FIRST);
        (0..50).for_each(|_| answers.took(MS));
        assert_eq!(answers.timeout(), RETRY_FIRST);
        (0..50).for_each(|_| answers.took(MS * 700));
        let far = answers.timeout();
        assert!(far > MS * 690 && far < MS * 1000, "{far:?}");
        (0..50).for_each(|_| answers.took(MS * 12_000));
        assert_eq!(answers.timeout(), TIMEOUT_MAX);
        (0..60).for_each(|_| answers.took(MS));
        assert_eq!(answers.timeout(), RETRY_FIRST);
    }

    #[test]
    fn retry_interval_is_kept_until_unambiguous_reply() {
        let mut answers = Answers::default();
        answers.took(MS);
        answers.unanswered = RETRY_MAX;
        assert_eq!(answers.timeout(), RETRY_MAX);
        answers.took(MS);
        assert_eq!(answers.timeout(), RETRY_FIRST);
    }
}

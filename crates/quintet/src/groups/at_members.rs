//! Calls that depend on the member that answers: steps, each taken where the one before was answered.
//!
//! ```text
//!   gather   members? ──► mark, ordered ──► each member: the method as of the mark ──► Replies
//!   query    members? ──► siblings of one member lend their states ──► the method there ──► Pending
//!                              └─ no member of all of them ──► the next member
//! ```
//!
//! Replies of different members differ, so they are no part of the replicated state and of no session:
//! the mark is, and it changes nothing.

use super::{
    CallError, When,
    answering::{Answer, Answering},
    call::{self, Around, Call, Kind, Loan, Placed},
    calls::{Calls, Source},
    remote::Wanted,
    replies::Arrivals,
};
use quintet_replica::{Level, past::Asking};
use std::{collections::hash_map::RandomState, hash::BuildHasher, sync::Arc};

/// A method with its arguments.
#[derive(Clone, Debug)]
pub(super) struct Method {
    pub number: u32,
    pub arguments: Vec<u8>,
    /// Whether its service answers as of earlier versions.
    pub is_versioned: bool,
}

impl Method {
    fn call(&self, kind: Kind) -> Vec<u8> {
        let write = |out: &mut Vec<u8>| out.extend_from_slice(&self.arguments);
        Call::encode_with(kind, self.number, write)
    }
}

/// These members, or the one of them that is asked for.
fn chosen(members: &[u16], only: Option<usize>) -> Vec<u16> {
    let is_asked = |member: &u16| only.is_none_or(|it| usize::from(*member) == it);
    members.iter().copied().filter(is_asked).collect()
}

fn members_in(answer: Answer, source: &Source) -> Result<Vec<u16>, CallError> {
    call::read_answer(&answer?, &source.name).map(|done| done.value)
}

impl Calls {
    /// Has each member of a shard, or one of them, answer as of one place of the order.
    pub fn gather(
        self: &Arc<Self>,
        source: &Source,
        only: Option<usize>,
        method: Method,
        arrivals: Arc<Arrivals>,
    ) {
        let gathering = Gathering {
            calls: self.clone(),
            source: source.clone(),
            method,
            arrivals,
        };
        let on_members = move |answer| gathering.on_members(answer, only);
        let to = self.to(source, None);
        self.send(to, Wanted::Members, Vec::new(), Answering::next(on_members));
    }

    /// Asks one member, with the states of the siblings there.
    pub fn ask_at_place(
        self: &Arc<Self>,
        source: &Source,
        only: Option<usize>,
        (when, is_stale): (Option<When>, bool),
        method: Method,
        done: Answering,
    ) {
        let (kind, wanted) = match when {
            None if is_stale => (Kind::Query, Wanted::Level(Level::Stale)),
            None => (Kind::Query, Wanted::Level(Level::Linearizable)),
            Some(When::Time(time)) => (Kind::QueryAtTime, Wanted::Past(Asking::new(time.0))),
            Some(When::Version(_)) if !source.reads.is_empty() => {
                let shard = source.name.to_string();
                return done.answer(Err(CallError::NoCommonVersion { shard }));
            }
            Some(When::Version(version)) => (
                Kind::QueryAtVersion(version.0),
                Wanted::Past(Asking::here()),
            ),
        };
        let siblings = source.reads.iter().map(|subgroup| {
            let name = format!("{subgroup}/{}", source.number);
            let mut shards = self.shards.iter();
            shards.find(|it| *it.name == *name).cloned()
        });
        let Some(siblings) = siblings.collect::<Option<Vec<_>>>() else {
            let shard = source.name.to_string();
            return done.answer(Err(CallError::Schema { shard }));
        };
        let placing = Placing {
            calls: self.clone(),
            source: source.clone(),
            siblings,
            members: Vec::new(),
            all: Vec::new(),
            left: Vec::new(),
            rounds: ROUNDS,
            kind,
            wanted,
            method,
            failed: CallError::Stopped,
        };
        if call::is_inside() {
            // It could begin on a thread that executes no handler.
            return done.answer(Err(CallError::InsideHandler));
        }
        if placing.siblings.is_empty() {
            return placing.begin(only, done);
        }
        let bytes = placing.method.arguments.len();
        self.turns.take(bytes, move |turn| {
            let Some(turn) = turn else {
                return done.answer(Err(CallError::Busy));
            };
            let done = Answering::next(move |answer| {
                drop(turn);
                done.answer(answer);
            });
            placing.begin(only, done);
        });
    }
}

/// A call that all members of a shard are to answer.
struct Gathering {
    calls: Arc<Calls>,
    source: Source,
    method: Method,
    arrivals: Arc<Arrivals>,
}

impl Gathering {
    fn on_members(self, answer: Answer, only: Option<usize>) {
        let members = match members_in(answer, &self.source) {
            Ok(members) => members,
            Err(error) => return self.arrivals.fail(&self.calls.all(), &error),
        };
        let asks = chosen(&members, only);
        if let (Some(member), true) = (only, asks.is_empty()) {
            let shard = self.source.name.to_string();
            let error = CallError::NotThere { shard, member };
            let member = u16::try_from(member).unwrap_or(u16::MAX);
            return self.arrivals.fail(&[member], &error);
        }
        self.arrivals.expect(&asks);
        let mark = Call::encode_with(Kind::Mark(self.calls.seen()), 0, |_| {});
        let calls = self.calls.clone();
        let to = calls.to(&self.source, None);
        let on_mark = move |answer| self.on_mark(answer, &asks, &members);
        let wanted = Wanted::Level(Level::Ordered);
        calls.send(to, wanted, mark, Answering::next(on_mark));
    }

    fn on_mark(self, answer: Answer, asks: &[u16], members: &[u16]) {
        let mark = answer.and_then(|bytes| {
            call::open_answer(&bytes, &self.source.name).map(|done| done.version.0)
        });
        let version = match mark {
            Ok(version) => version,
            Err(error) => return self.arrivals.fail(asks, &error),
        };
        let kind = match self.method.is_versioned {
            true => Kind::QueryAtVersion(version),
            // There is no earlier state: one that has what the mark has, and perhaps more.
            false => Kind::QueryFrom(version),
        };
        let call = self.method.call(kind);
        for member in asks.iter().copied() {
            let placed = Placed {
                member,
                members: members.to_vec(),
                shard: self.source.number as u32,
                ticket: 0,
            };
            let to = self.calls.to(&self.source, Some(member.into()));
            let arrivals = self.arrivals.clone();
            let put = move |answer| arrivals.put(member, answer);
            self.calls.send(
                to,
                Wanted::Past(Asking::here()),
                Around::Placed(placed).put(&call),
                Answering::next(put),
            );
        }
    }
}

/// A query that is on its way to a member at which all shards are that it reads.
struct Placing {
    calls: Arc<Calls>,
    source: Source,
    siblings: Vec<Source>,
    members: Vec<u16>,
    /// Those that may be asked.
    all: Vec<u16>,
    /// The members that have not been tried.
    left: Vec<u16>,
    rounds: u32,
    kind: Kind,
    wanted: Wanted,
    method: Method,
    failed: CallError,
}

/// Where all members keep too many states already, they are asked once more so often.
const ROUNDS: u32 = 3;

impl Placing {
    fn begin(self, only: Option<usize>, done: Answering) {
        let (calls, to) = (self.calls.clone(), self.calls.to(&self.source, None));
        let on_members = move |answer| self.on_members(answer, only, done);
        calls.send(to, Wanted::Members, Vec::new(), Answering::next(on_members));
    }

    fn on_members(mut self, answer: Answer, only: Option<usize>, done: Answering) {
        match members_in(answer, &self.source) {
            Ok(members) => self.members = members,
            Err(error) => return done.answer(Err(error)),
        }
        self.all = chosen(&self.members, only);
        self.left.clone_from(&self.all);
        if let Some(member) = only {
            let shard = self.source.name.to_string();
            self.failed = CallError::NotThere { shard, member };
        }
        // Another one first each time.
        let first = self.calls.turn() % self.left.len().max(1);
        self.left.rotate_left(first);
        // The last is asked first.
        self.left.sort_by_key(|it| !self.calls.rests((*it).into()));
        self.next_member(done);
    }

    fn next_member(mut self, done: Answering) {
        match self.left.pop() {
            None if self.failed == CallError::Busy && self.rounds > 0 => {
                self.rounds -= 1;
                self.left.clone_from(&self.all);
                self.next_member(done);
            }
            None => done.answer(Err(self.failed)),
            Some(member) => {
                // A number that no other process draws.
                let ticket = match self.siblings.is_empty() {
                    true => 0,
                    false => RandomState::new().hash_one(member).max(1),
                };
                self.lend(member, ticket, 0, done);
            }
        }
    }

    fn lend(self, member: u16, ticket: u64, nth: usize, done: Answering) {
        let Some(sibling) = self.siblings.get(nth).cloned() else {
            return self.ask(member, ticket, done);
        };
        let subgroup = sibling.name.rsplit_once('/').map_or("", |(name, _)| name);
        let loan = Around::Lent(Loan {
            member,
            ticket,
            subgroup,
        });
        let payload = loan.put(&Call::encode_with(self.kind, 0, |_| {}));
        let calls = self.calls.clone();
        let to = calls.to(&sibling, Some(member.into()));
        let (wanted, name) = (self.wanted, sibling.name.clone());
        let lent = move |answer: Answer| {
            let opened = answer.and_then(|bytes| call::open_answer(&bytes, &name).map(drop));
            match opened {
                Ok(()) => self.lend(member, ticket, nth + 1, done),
                Err(error) => {
                    if nth > 0 {
                        self.give_back(member, ticket);
                    }
                    self.elsewhere(error, done);
                }
            }
        };
        calls.send(to, wanted, payload, Answering::next(lent));
    }

    /// The query does not come to this member: the states that were lent to it there would wait.
    fn give_back(&self, member: u16, ticket: u64) {
        let Some(sibling) = self.siblings.first() else {
            return;
        };
        let call = Call::encode_with(Kind::Query, 0, |_| {});
        let payload = Around::Returned(member, ticket).put(&call);
        let to = self.calls.to(sibling, Some(member.into()));
        let wanted = Wanted::Level(Level::Stale);
        // One that does not arrive ends with its time.
        let sent = Answering::next(drop);
        self.calls.send(to, wanted, payload, sent);
    }

    fn ask(self, member: u16, ticket: u64, done: Answering) {
        let placed = Around::Placed(Placed {
            member,
            members: self.members.clone(),
            shard: self.source.number as u32,
            ticket,
        });
        let payload = placed.put(&self.method.call(self.kind));
        let calls = self.calls.clone();
        let to = calls.to(&self.source, Some(member.into()));
        let wanted = self.wanted;
        let asked = move |answer: Answer| {
            let fault = answer.as_ref().map_or_else(
                |error| Some(error.clone()),
                |bytes| call::open_answer(bytes, &self.source.name).err(),
            );
            if answer.is_err() || fault.as_ref().is_some_and(may_differ) {
                self.give_back(member, ticket);
            }
            match fault {
                Some(error) if may_differ(&error) => self.elsewhere(error, done),
                _ => done.answer(answer),
            }
        };
        calls.send(to, wanted, payload, Answering::next(asked));
    }

    /// Tries the next member, where that can help.
    fn elsewhere(mut self, error: CallError, done: Answering) {
        if !may_differ(&error) {
            return done.answer(Err(error));
        }
        self.failed = error;
        self.next_member(done);
    }
}

/// Whether another member may have another answer.
const fn may_differ(error: &CallError) -> bool {
    matches!(
        error,
        CallError::NotThere { .. }
            | CallError::NoWay { .. }
            | CallError::Stopped
            | CallError::NoQuorum { .. }
            | CallError::Busy
    )
}

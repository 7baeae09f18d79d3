//! Calls that depend on the member that answers: steps, each taken where the one before was answered.
//!
//! ```text
//!   gather   members? ──► mark, ordered ──► each member: the method as of the mark ──► Inbox
//!   query    members? ──► siblings of one member lend their states ──► the method there ──► its answer
//!                              └─ no member of all of them ──► the next member
//!
//!   the caller: Ask ──► to the shard or a sibling, at any member or one ──► answer ──► the next step
//! ```
//!
//! Replies of different members differ, so they are no part of the replicated state and of no session:
//! the mark is, and it changes nothing.

use crate::{
    CallError, When,
    call::{self, Around, Call, Kind, Loan, Placed},
};
use quintet_replica::{Bug, Injected, Level, past::Asking};
use std::collections::VecDeque;

/// Which state a call is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// That of the level.
    Level(Level),
    /// One of the past.
    Past(Asking),
    /// None of it: its members.
    Members,
}

/// A question to a shard.
#[derive(Debug)]
pub struct Ask {
    /// To this one of the siblings, instead of the shard itself.
    pub sibling: Option<usize>,
    /// Only this member answers it.
    pub member: Option<u16>,
    /// For this state.
    pub wanted: Wanted,
    /// The call; nothing where members are asked for.
    pub payload: Vec<u8>,
}

impl Ask {
    const fn members() -> Self {
        Self {
            sibling: None,
            member: None,
            wanted: Wanted::Members,
            payload: Vec::new(),
        }
    }
}

/// An answer as it travels, or why there is none.
pub type Answer = Result<Vec<u8>, CallError>;

/// The shard whose members are asked.
#[derive(Clone, Debug)]
pub struct Target {
    /// SUBGROUP/NUMBER.
    pub name: String,
    /// Its number in its subgroup.
    pub number: u32,
    /// The one member that is asked for.
    pub only: Option<usize>,
}

impl Target {
    fn members_in(&self, answer: Answer) -> Result<Vec<u16>, CallError> {
        call::read_answer(&answer?, &self.name).map(|done| done.value)
    }

    /// These members, or the one of them that is asked for.
    fn chosen(&self, members: &[u16]) -> Vec<u16> {
        let is_asked = |member: &u16| self.only.is_none_or(|it| usize::from(*member) == it);
        members.iter().copied().filter(is_asked).collect()
    }

    fn not_there(&self, member: usize) -> CallError {
        let shard = self.name.clone();
        CallError::NotThere { shard, member }
    }
}

/// A method with its arguments.
#[derive(Clone, Debug)]
pub struct Method {
    /// Its number.
    pub number: u32,
    /// As encoded by the macro's code.
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

/// A call that all members of a shard are to answer.
#[derive(Debug)]
pub struct Gather {
    target: Target,
    method: Method,
    members: Vec<u16>,
    /// The members that are asked, once they are known.
    asked: Vec<u16>,
    /// The mark is on its way.
    marks: bool,
}

/// The next step of a gather.
#[derive(Debug)]
pub enum GatherStep {
    /// A question; its answer goes to the next step.
    Ask(Ask),
    /// A question to each member; the answers are replies.
    Parts(Vec<(u16, Ask)>),
    /// None of those replies that were asked; if none was, no member does.
    Fail(CallError),
}

impl Gather {
    /// With the first question.
    #[must_use]
    pub const fn begin(target: Target, method: Method) -> (Self, Ask) {
        let this = Self {
            target,
            method,
            members: Vec::new(),
            asked: Vec::new(),
            marks: false,
        };
        (this, Ask::members())
    }

    /// The members that reply.
    #[must_use]
    pub fn asked(&self) -> &[u16] {
        &self.asked
    }

    /// Takes the next step. `seen`: the highest time that the caller was told.
    pub fn on_answer(&mut self, answer: Answer, seen: u64) -> GatherStep {
        let next = match self.marks {
            false => self.on_members(answer, seen).map(GatherStep::Ask),
            true => self.on_mark(answer).map(GatherStep::Parts),
        };
        next.unwrap_or_else(GatherStep::Fail)
    }

    fn on_members(&mut self, answer: Answer, seen: u64) -> Result<Ask, CallError> {
        self.members = self.target.members_in(answer)?;
        self.asked = self.target.chosen(&self.members);
        if let (Some(member), true) = (self.target.only, self.asked.is_empty()) {
            self.asked = vec![u16::try_from(member).unwrap_or(u16::MAX)];
            return Err(self.target.not_there(member));
        }
        self.marks = true;
        Ok(Ask {
            wanted: Wanted::Level(Level::Ordered),
            payload: Call::encode_with(Kind::Mark(seen), 0, |_| {}),
            ..Ask::members()
        })
    }

    fn on_mark(&self, answer: Answer) -> Result<Vec<(u16, Ask)>, CallError> {
        let bytes = answer?;
        let mark = call::open_answer(&bytes, &self.target.name)?.version.0;
        let kind = match self.method.is_versioned {
            true => Kind::QueryAtVersion(mark),
            // There is no earlier state: one that has what the mark has, and perhaps more.
            false => Kind::QueryFrom(mark),
        };
        let call = self.method.call(kind);
        let part = |member: &u16| {
            let placed = Placed {
                member: *member,
                members: self.members.clone(),
                shard: self.target.number,
                ticket: 0,
            };
            let ask = Ask {
                sibling: None,
                member: Some(*member),
                wanted: Wanted::Past(Asking::here()),
                payload: Around::Placed(placed).put(&call),
            };
            (*member, ask)
        };
        Ok(self.asked.iter().map(part).collect())
    }
}

/// The replies to a gather: one of each member that was asked.
#[derive(Debug, Default)]
pub struct Inbox {
    came: VecDeque<(u16, Answer)>,
    /// The members that have not replied; unknown as long as none was asked.
    waiting: Option<Vec<u16>>,
    injected: Injected,
}

impl Inbox {
    /// With a bug for the checkers to find.
    #[must_use]
    pub fn with_injected(injected: Injected) -> Self {
        Self {
            injected,
            ..Self::default()
        }
    }

    /// These members are asked.
    pub fn expect(&mut self, members: &[u16]) {
        self.waiting = Some(members.to_vec());
    }

    /// A member has replied; once, and only one that was asked. A reply behind the deadline is of no use.
    pub fn put(&mut self, member: u16, answer: Answer) {
        let waiting = self.waiting.get_or_insert_default();
        if let Some(at) = waiting.iter().position(|it| *it == member) {
            waiting.remove(at);
            self.came.push_back((member, answer));
        }
    }

    /// Those that have not replied do not, for this reason; where none was asked, all of these.
    pub fn give_up(&mut self, all: &[u16], error: &CallError) {
        let late = self.waiting.replace(Vec::new());
        let mut late = late.unwrap_or_else(|| all.to_vec());
        if self.injected.is(Bug::GatherForgetsSilent) {
            late.clear();
        }
        let failed = late.into_iter().map(|it| (it, Err(error.clone())));
        self.came.extend(failed);
    }

    /// The next reply; `Some(None)` behind the last, and `None` while it is waited for.
    pub fn next_reply(&mut self) -> Option<Option<(u16, Answer)>> {
        match (self.came.pop_front(), &self.waiting) {
            (Some(next), _) => Some(Some(next)),
            (None, Some(waiting)) if waiting.is_empty() => Some(None),
            _ => None,
        }
    }
}

/// A query that is on its way to a member at which all shards are that it reads.
#[derive(Debug)]
pub struct AtPlace {
    target: Target,
    /// The names of the shards that it reads.
    siblings: Vec<String>,
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
    waits: Waits,
    injected: Injected,
}

/// The answer that a query at a place waits for.
#[derive(Clone, Copy, Debug)]
enum Waits {
    Members,
    /// To the state of this sibling.
    Loan {
        member: u16,
        ticket: u64,
        nth: usize,
    },
    Query {
        member: u16,
        ticket: u64,
    },
}

/// Where all members keep too many states already, they are asked once more so often.
const ROUNDS: u32 = 3;

/// The next step of a query at a place.
#[derive(Debug)]
pub struct PlaceStep {
    /// A question whose answer is of no interest: states that were lent are given back.
    pub aside: Option<Ask>,
    /// The next question, or the answer of all.
    pub next: Result<Ask, Answer>,
}

/// Knowledge and draws of the caller of a query at a place.
pub trait Caller {
    /// A number that no other caller draws, and no other time.
    fn number(&mut self) -> u64;
    /// How many such queries it has made.
    fn turn(&mut self) -> usize;
    /// Whether others are asked before this member.
    fn rests(&self, member: u16) -> bool;
}

impl AtPlace {
    /// With the first question. `siblings`: the names of the shards that it reads.
    ///
    /// # Errors
    /// [`CallError::NoCommonVersion`] where it asks for a version of several shards.
    pub fn begin(
        target: Target,
        siblings: Vec<String>,
        (when, is_stale): (Option<When>, bool),
        method: Method,
    ) -> Result<(Self, Ask), CallError> {
        let (kind, wanted) = match when {
            None if is_stale => (Kind::Query, Wanted::Level(Level::Stale)),
            None => (Kind::Query, Wanted::Level(Level::Linearizable)),
            Some(When::Time(time)) => (Kind::QueryAtTime, Wanted::Past(Asking::new(time.0))),
            Some(When::Version(_)) if !siblings.is_empty() => {
                let shard = target.name;
                return Err(CallError::NoCommonVersion { shard });
            }
            Some(When::Version(version)) => (
                Kind::QueryAtVersion(version.0),
                Wanted::Past(Asking::here()),
            ),
        };
        let failed = target
            .only
            .map_or(CallError::Stopped, |member| target.not_there(member));
        let this = Self {
            target,
            siblings,
            members: Vec::new(),
            all: Vec::new(),
            left: Vec::new(),
            rounds: ROUNDS,
            kind,
            wanted,
            method,
            failed,
            waits: Waits::Members,
            injected: Injected::default(),
        };
        Ok((this, Ask::members()))
    }

    /// The same with a bug for the checkers to find.
    #[must_use]
    pub const fn with_injected(mut self, injected: Injected) -> Self {
        self.injected = injected;
        self
    }

    /// Takes the next step.
    pub fn on_answer(&mut self, answer: Answer, caller: &mut impl Caller) -> PlaceStep {
        match self.waits {
            Waits::Members => self.on_members(answer, caller),
            Waits::Loan {
                member,
                ticket,
                nth,
            } => self.on_loan((member, ticket, nth), answer, caller),
            Waits::Query { member, ticket } => self.on_query((member, ticket), answer, caller),
        }
    }

    fn on_members(&mut self, answer: Answer, caller: &mut impl Caller) -> PlaceStep {
        match self.target.members_in(answer) {
            Ok(members) => self.members = members,
            Err(error) => return PlaceStep::ask(Err(Err(error))),
        }
        self.all = self.target.chosen(&self.members);
        // Another one first each time; the last is asked first.
        let mut left = self.all.clone();
        let first = caller.turn() % left.len().max(1);
        left.rotate_left(first);
        let (rest, left): (Vec<_>, Vec<_>) = left.iter().partition(|it| caller.rests(**it));
        self.left = rest;
        self.left.extend(left);
        PlaceStep::ask(self.next_member(caller))
    }

    fn next_member(&mut self, caller: &mut impl Caller) -> Result<Ask, Answer> {
        if self.left.is_empty() && self.failed == CallError::Busy && self.rounds > 0 {
            self.rounds -= 1;
            self.left.clone_from(&self.all);
        }
        let member = self.left.pop().ok_or_else(|| Err(self.failed.clone()))?;
        let ticket = match self.siblings.is_empty() {
            true => 0,
            false => caller.number().max(1),
        };
        Ok(self.lend(member, ticket, 0))
    }

    /// The state of the next sibling; or the query itself.
    fn lend(&mut self, member: u16, ticket: u64, nth: usize) -> Ask {
        let Some(sibling) = self.siblings.get(nth) else {
            return self.query(member, ticket);
        };
        let subgroup = sibling.rsplit_once('/').map_or("", |(name, _)| name);
        let loan = Around::Lent(Loan {
            member,
            ticket,
            subgroup,
        });
        self.waits = Waits::Loan {
            member,
            ticket,
            nth,
        };
        Ask {
            sibling: Some(nth),
            member: Some(member),
            wanted: match self.injected.is(Bug::LendsStale) {
                true => Wanted::Level(Level::Stale),
                false => self.wanted,
            },
            payload: loan.put(&Call::encode_with(self.kind, 0, |_| {})),
        }
    }

    fn query(&mut self, member: u16, ticket: u64) -> Ask {
        let placed = Around::Placed(Placed {
            member,
            members: self.members.clone(),
            shard: self.target.number,
            ticket,
        });
        self.waits = Waits::Query { member, ticket };
        Ask {
            sibling: None,
            member: Some(member),
            wanted: self.wanted,
            payload: placed.put(&self.method.call(self.kind)),
        }
    }

    fn on_loan(
        &mut self,
        (member, ticket, nth): (u16, u64, usize),
        answer: Answer,
        caller: &mut impl Caller,
    ) -> PlaceStep {
        let name = &self.siblings[nth];
        let opened = answer.and_then(|bytes| call::open_answer(&bytes, name).map(drop));
        match opened {
            Ok(()) => PlaceStep::ask(Ok(self.lend(member, ticket, nth + 1))),
            Err(error) => PlaceStep {
                aside: (nth > 0).then(|| self.give_back(member, ticket)).flatten(),
                next: self.elsewhere(error, caller),
            },
        }
    }

    fn on_query(
        &mut self,
        (member, ticket): (u16, u64),
        answer: Answer,
        caller: &mut impl Caller,
    ) -> PlaceStep {
        let fault = answer.as_ref().map_or_else(
            |error| Some(error.clone()),
            |bytes| call::open_answer(bytes, &self.target.name).err(),
        );
        let continues = fault.as_ref().is_some_and(may_differ);
        let aside = match answer.is_err() || continues {
            true => self.give_back(member, ticket),
            false => None,
        };
        let next = match fault {
            Some(error) if continues => self.elsewhere(error, caller),
            _ => Err(answer),
        };
        PlaceStep { aside, next }
    }

    /// The query does not come to this member: the states that were lent to it there would wait. A
    /// question that does not arrive ends with its time.
    fn give_back(&self, member: u16, ticket: u64) -> Option<Ask> {
        let call = Call::encode_with(Kind::Query, 0, |_| {});
        (!self.siblings.is_empty()).then(|| Ask {
            sibling: Some(0),
            member: Some(member),
            wanted: Wanted::Level(Level::Stale),
            payload: Around::Returned(member, ticket).put(&call),
        })
    }

    /// Tries the next member, where that can help.
    fn elsewhere(&mut self, error: CallError, caller: &mut impl Caller) -> Result<Ask, Answer> {
        if !may_differ(&error) {
            return Err(Err(error));
        }
        self.failed = error;
        self.next_member(caller)
    }
}

impl PlaceStep {
    const fn ask(next: Result<Ask, Answer>) -> Self {
        Self { aside: None, next }
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

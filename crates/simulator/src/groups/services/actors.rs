//! Callers and couriers: one request at a time each, asked again until it is answered.

use super::{
    checks::When,
    courier::Courier,
    ledger::{Content, Ledger},
    notices::Following,
    places::{Beside, Gathering},
    shard, subgroup,
    views::Herald,
};
use crate::{
    checkers::Violation,
    groups::{
        clients::{RETRY, Session, Who},
        world::{AFTERWARDS, Event, MILLISECOND, SECOND, World},
    },
    random::Random,
};
use quintet::{
    CallError, Done, Methods,
    call::{Call, Kind, read_answer, time_of},
};
use quintet_replica::{
    BatchBuilder, CommandId, CommandTime, Level, Outcome, RequestKind, RequestStatus, Results,
    SessionId,
    past::{self, Asking, Step},
};
use std::collections::{BTreeMap, VecDeque};

/// How far back a cut goes.
const BACK: u64 = 2 * SECOND;
/// Faults let an actor pass by a request that is not answered after this many tries.
const TRIES_MAX: u64 = 40;
/// A member that one step of a call depends on is silent after this number.
const SILENT_AFTER: u64 = 5;

/// The way of a request to its answer.
#[derive(Clone, Copy, Debug)]
enum Way {
    Order,
    Query,
    /// A read of the past; whether its tick is on the way.
    Past(Asking, bool),
}

/// A request.
#[derive(Debug)]
pub(super) struct Asked {
    place: usize,
    /// The process that is asked; any, where there is none.
    at: Option<usize>,
    way: Way,
    payload: Vec<u8>,
    /// The level of the next read.
    level: Level,
    invoked: u64,
    /// The number of the try before its first.
    first_try: u64,
    /// The highest time that its actor had been told.
    floor: u64,
    what: What,
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A courier or a herald knows.
    Delivery,
    Payment,
    Content,
    ContentAt(u64),
    Cut,
    Mark,
    /// Of a gather, by this member.
    Part(u16),
    /// Of a query that reads siblings.
    Place,
    Notices,
}

impl Asked {
    fn new(place: usize, way: Way, payload: Vec<u8>) -> Self {
        Self {
            place,
            at: None,
            way,
            payload,
            level: Level::Stale,
            invoked: 0,
            first_try: 0,
            floor: 0,
            what: What::Delivery,
        }
    }

    pub fn query(place: usize, payload: Vec<u8>) -> Self {
        Self::read(place, Level::Linearizable, payload)
    }

    pub fn read(place: usize, level: Level, payload: Vec<u8>) -> Self {
        Self {
            level,
            ..Self::new(place, Way::Query, payload)
        }
    }

    pub fn past(place: usize, asking: Asking, payload: Vec<u8>) -> Self {
        Self::new(place, Way::Past(asking, false), payload)
    }

    pub fn order(place: usize, payload: Vec<u8>) -> Self {
        Self::new(place, Way::Order, payload)
    }

    pub const fn of(mut self, what: What) -> Self {
        self.what = what;
        self
    }

    /// Whether a member that is silent ends it.
    const fn depends_on_member(&self) -> bool {
        matches!(self.what, What::Part(_) | What::Place)
    }

    /// Asked of this member only.
    pub fn at(mut self, member: u16) -> Self {
        self.at = Some(member.into());
        self
    }
}

/// The content of several shards at one time.
#[derive(Debug)]
struct Cut {
    time: u64,
    left: VecDeque<usize>,
    seen: BTreeMap<usize, Content>,
    /// Behind all that was handed off.
    is_last: bool,
}

#[derive(Debug)]
enum Role {
    Caller,
    Courier(Courier),
    Herald(Herald),
}

/// A caller's knowledge of a shard.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    version: u64,
    time: u64,
    /// Its last payment, and how many were acknowledged.
    payment: u64,
    pub acknowledged: u64,
    afterwards: u64,
    /// How many hand-offs it had received.
    pub received: u64,
}

/// A program that calls.
pub(in crate::groups) struct Actor {
    role: Role,
    sessions: BTreeMap<usize, Session>,
    asked: Option<Asked>,
    /// Never the same again.
    tries: u64,
    /// The highest time that it was told.
    pub(super) seen: u64,
    pub(super) known: BTreeMap<usize, Known>,
    pub(super) gather: Option<Gathering>,
    pub(super) beside: Option<Beside>,
    /// Never the same again.
    pub(super) tickets: u64,
    pub(super) following: BTreeMap<usize, Following>,
    /// How many notices each of its payments leaves.
    notices: u64,
    cut: Option<Cut>,
    /// It has made the last cut.
    ended: bool,
}

impl Actor {
    fn new(role: Role) -> Self {
        Self {
            role,
            sessions: BTreeMap::new(),
            asked: None,
            tries: 0,
            seen: 0,
            known: BTreeMap::new(),
            gather: None,
            beside: None,
            tickets: 0,
            following: BTreeMap::new(),
            notices: 1,
            cut: None,
            ended: false,
        }
    }

    /// The actors of a world with services.
    pub fn draw(random: &mut Random) -> Vec<Self> {
        let callers = random.between(3, 6);
        let couriers = random.between(1, 3);
        let heralds = random.between(1, 3);
        // With the higher number some are not kept.
        let notices = if random.chance(250) { 60 } else { 2 };
        let callers = (0..callers).map(|_| Self {
            notices,
            ..Self::new(Role::Caller)
        });
        let couriers = (0..couriers).map(|_| Self::new(Role::Courier(Courier::default())));
        let heralds = (0..heralds).map(|_| Self::new(Role::Herald(Herald::default())));
        callers.chain(couriers).chain(heralds).collect()
    }

    pub(super) fn herald(&mut self) -> Option<&mut Herald> {
        match &mut self.role {
            Role::Herald(herald) => Some(herald),
            Role::Caller | Role::Courier(_) => None,
        }
    }

    fn has_called(&self, places: &[usize]) -> bool {
        let enough = |place: &usize| {
            let known = self.known.get(place);
            known.is_some_and(|known| known.afterwards >= AFTERWARDS)
        };
        !matches!(self.role, Role::Caller) || places.iter().all(enough)
    }

    pub fn is_done(&self) -> bool {
        self.ended || !matches!(self.role, Role::Caller)
    }
}

pub(super) fn number_of(method: &str) -> u32 {
    let mut methods = Ledger::METHODS.iter();
    let found = methods.find(|it| it.name == method);
    found.expect("a method of the ledger").number
}

impl World {
    /// Behind the last fault: every caller has called every shard, and no hand-off has waited since.
    fn is_quiet(&mut self, places: &[usize]) -> bool {
        if !self.actors.iter().all(|actor| actor.has_called(places)) {
            return false;
        }
        let since = *self.answers.called_at.get_or_insert(self.now);
        let emptied = |place: &usize| {
            let at = self.answers.emptied.get(place);
            at.is_some_and(|at| *at > since)
        };
        (places.iter()).all(|place| self.destinations_of(*place).is_empty() || emptied(place))
    }

    /// An actor may begin something.
    pub(in crate::groups) fn act(&mut self, actor: usize) {
        let this = &self.actors[actor];
        if this.asked.is_some() || this.ended {
            return;
        }
        let places = self.service_places();
        let asked = match this.role {
            Role::Courier(_) => self.begin_round(actor, &places),
            Role::Herald(_) => self.begin_telling(actor, &places),
            Role::Caller => self.begin_call(actor, &places),
        };
        match asked {
            Some(asked) => self.send_asked(actor, asked),
            None => self.rest(actor),
        }
    }

    fn rest(&mut self, actor: usize) {
        let after = self.random.between(100_000, 10 * MILLISECOND);
        self.queue.push(self.now + after, Event::Act(actor));
    }

    fn begin_round(&mut self, actor: usize, places: &[usize]) -> Option<Asked> {
        let sources: Vec<usize> = (places.iter().copied())
            .filter(|place| !self.destinations_of(*place).is_empty())
            .collect();
        if sources.is_empty() {
            return None;
        }
        let source = sources[self.random.index(sources.len())];
        let Role::Courier(courier) = &mut self.actors[actor].role else {
            return None;
        };
        Some(courier.begin(source))
    }

    fn begin_call(&mut self, actor: usize, places: &[usize]) -> Option<Asked> {
        if self.calm && self.actors[actor].has_called(places) {
            return match self.is_quiet(places) {
                true => self.begin_cut(actor, places, true),
                false => None,
            };
        }
        let place = places[self.random.index(places.len())];
        let known = self.actors[actor].known.get(&place).copied();
        match self.random.below(14) {
            4 => self.begin_gather(actor, place),
            5 => self.begin_beside(actor, place),
            6 => Some(self.begin_following(actor, place)),
            0 | 1 => self.begin_cut(actor, places, false),
            2 => Some(Asked::query(place, content()).of(What::Content)),
            3 => {
                let newest = known.unwrap_or_default().version;
                let version = newest - self.random.below(newest.min(20) + 1);
                let kind = Kind::QueryAtVersion(version);
                let payload = Call::encode(kind, number_of("content"), &());
                let way = Way::Past(Asking::known(), false);
                Some(Asked::new(place, way, payload).of(What::ContentAt(version)))
            }
            _ => Some(self.payment(actor, place)),
        }
    }

    fn payment(&mut self, actor: usize, place: usize) -> Asked {
        let destinations = self.destinations_of(place);
        let to = match destinations.is_empty() || self.random.chance(400) {
            true => String::new(),
            false => subgroup(destinations[self.random.index(destinations.len())]),
        };
        let this = &mut self.actors[actor];
        let known = this.known.entry(place).or_default();
        known.payment += 1;
        let number = known.payment;
        let arguments = (actor as u64, number, shard(place), to, this.notices);
        let kind = Kind::Ordered(this.seen);
        let payload = Call::encode(kind, number_of("pay"), &arguments);
        Asked::order(place, payload).of(What::Payment)
    }

    fn begin_cut(&mut self, actor: usize, places: &[usize], is_last: bool) -> Option<Asked> {
        let mut left = places.to_vec();
        self.random.shuffle(&mut left);
        let seen = self.actors[actor].seen;
        let time = match self.random.below(4) {
            // Behind all clocks, so that every effect has an earlier time.
            _ if is_last => self.now.max(seen) + SECOND,
            0 | 1 => self.now.max(seen),
            2 => self.now.saturating_sub(self.random.below(BACK)),
            _ => self.now + self.random.below(5 * MILLISECOND),
        };
        self.actors[actor].cut = Some(Cut {
            time,
            left: left.into(),
            seen: BTreeMap::new(),
            is_last,
        });
        self.continue_cut(actor)
    }

    fn continue_cut(&mut self, actor: usize) -> Option<Asked> {
        let cut = self.actors[actor].cut.as_mut()?;
        let place = cut.left.pop_front()?;
        let time = CommandTime(cut.time);
        let payload = Call::encode(Kind::QueryAtTime, number_of("content"), &());
        let way = Way::Past(Asking::new(time), false);
        Some(Asked::new(place, way, payload).of(What::Cut))
    }

    fn send_asked(&mut self, actor: usize, mut asked: Asked) {
        let this = &mut self.actors[actor];
        (asked.invoked, asked.floor) = (self.now, this.seen);
        if let Way::Order = asked.way {
            this.sessions.entry(asked.place).or_default().sequence += 1;
        }
        asked.first_try = this.tries;
        let step = match &asked.way {
            Way::Past(asking, _) => Some(asking.begin()),
            Way::Order | Way::Query => None,
        };
        this.asked = Some(asked);
        match step {
            Some(step) => self.take_step(actor, step),
            None => self.submit_asked(actor),
        }
    }

    fn take_step(&mut self, actor: usize, step: Step) {
        let this = &mut self.actors[actor];
        let Some(asked) = &mut this.asked else {
            return;
        };
        let Way::Past(_, ticks) = &mut asked.way else {
            return;
        };
        match step {
            Step::Read(level) => (asked.level, *ticks) = (level, false),
            Step::Tick => *ticks = true,
            Step::Wait(time) => {
                this.tries += 1;
                let event = Event::Waited(actor, this.tries);
                return self.queue.push(self.now + time, event);
            }
            Step::Missing => return self.give_up(actor),
        }
        self.submit_asked(actor);
    }

    /// An actor has waited until a time is over.
    pub(in crate::groups) fn waited(&mut self, actor: usize, tries: u64) {
        let this = &mut self.actors[actor];
        let Some(asked) = this.asked.as_mut().filter(|_| this.tries == tries) else {
            return;
        };
        if let Way::Past(asking, _) = &mut asked.way {
            let step = asking.on_waited(self.now);
            self.take_step(actor, step);
        }
    }

    fn give_up(&mut self, actor: usize) {
        let this = &mut self.actors[actor];
        let is_silent = |asked: &mut Asked| asked.depends_on_member();
        if let Some(silent) = this.asked.take_if(is_silent) {
            // Its caller continues without the answer.
            let next = match silent.what {
                What::Part(_) => self.next_part(actor),
                _ => self.on_silence(actor),
            };
            return match next {
                Ok(Some(next)) => self.send_asked(actor, next),
                Ok(None) => self.rest(actor),
                Err(violation) => self.violate(violation),
            };
        }
        if let Some(Asked {
            way: Way::Order,
            place,
            ..
        }) = &this.asked
        {
            // Its number may or may not have been executed.
            this.sessions.entry(*place).or_default().end();
        }
        (this.asked, this.cut) = (None, None);
        (this.gather, this.beside) = (None, None);
        if let Role::Courier(courier) = &mut this.role {
            *courier = Courier::Rests;
        }
        self.rest(actor);
    }

    /// Whether the one process that is asked has a node of that group.
    fn takes_part(&self, asked: &Asked) -> bool {
        asked.at.is_none_or(|at| {
            let process = &self.processes[at];
            process
                .place(&self.ids, self.ids[asked.place])
                .is_some_and(|here| process.hosts[here].node.is_some())
        })
    }

    /// Nothing has come for a while.
    pub(in crate::groups) fn act_again(&mut self, actor: usize, tries: u64) {
        let this = &self.actors[actor];
        let Some(asked) = this.asked.as_ref().filter(|_| this.tries == tries) else {
            return;
        };
        // Couriers and heralds may stop anywhere, and a reader may leave; a payer wants to know.
        // Of a mark it must be known whether it was executed, too.
        let pays = matches!(asked.what, What::Payment | What::Mark);
        let tried = tries - asked.first_try;
        let is_helper = !matches!(this.role, Role::Caller);
        let stops = is_helper && self.random.chance(200);
        let leaves = match asked.depends_on_member() {
            // Some callers wait for a member less long than others.
            true => !self.takes_part(asked) || tried > SILENT_AFTER || self.random.chance(200),
            false => !self.calm && (stops || tried > TRIES_MAX),
        };
        if !pays && leaves {
            self.count("left without an answer");
            return self.give_up(actor);
        }
        self.submit_asked(actor);
    }

    fn submit_asked(&mut self, actor: usize) {
        let this = &mut self.actors[actor];
        this.tries += 1;
        let tries = this.tries;
        self.queue
            .push(self.now + RETRY, Event::ActAgain(actor, tries));
        let Some(asked) = &this.asked else {
            return;
        };
        let place = asked.place;
        let group = &self.groups[place];
        let any = group.members[self.random.index(group.members.len())];
        let at = asked.at.unwrap_or(any);
        let mut batch = BatchBuilder::of(group.id);
        let anonymous = CommandId {
            session: SessionId::default(),
            sequence: tries,
        };
        let level = match asked.way {
            Way::Order => {
                let session = this.sessions.entry(place).or_default();
                session.put(2_000 + actor as u64, &mut batch, &asked.payload, self.now);
                self.answers.sent(&asked.payload);
                Level::Ordered
            }
            Way::Query => {
                batch.push(anonymous, RequestKind::Command, 0, &asked.payload);
                asked.level
            }
            Way::Past(_, true) => {
                batch.push(anonymous, RequestKind::Tick, 0, past::CLOSING_TICK);
                Level::Ordered
            }
            Way::Past(asking, false) => {
                let payload = past::payload(asking.time(), &asked.payload);
                batch.push(anonymous, RequestKind::Past, 0, &payload);
                asked.level
            }
        };
        self.submit_to(at, place, Who::Actor(actor), tries, level, batch);
    }

    /// Submits a read whose answer is of no interest.
    pub(super) fn submit_aside(&mut self, actor: usize, asked: Asked) {
        let Some(at) = asked.at else {
            return;
        };
        let mut batch = BatchBuilder::of(self.groups[asked.place].id);
        let anonymous = CommandId {
            session: SessionId::default(),
            sequence: 0,
        };
        batch.push(anonymous, RequestKind::Command, 0, &asked.payload);
        // No actor waits for this number.
        self.submit_to(at, asked.place, Who::Actor(actor), 0, asked.level, batch);
    }

    /// A batch of an actor has an outcome.
    pub(in crate::groups) fn actor_done(&mut self, actor: usize, tries: u64, outcome: &Outcome) {
        let this = &mut self.actors[actor];
        let Outcome::Results(bytes) = outcome else {
            return;
        };
        let (Some(asked), true) = (&mut this.asked, this.tries == tries) else {
            return;
        };
        let place = asked.place;
        let mut answer = None;
        for (status, reply) in Results::new(bytes) {
            match (&mut asked.way, status) {
                (Way::Order, status) => {
                    let session = this.sessions.entry(place).or_default();
                    match session.on_result(status) {
                        Ok(false) => {}
                        Ok(true) => answer = Some(Ok(reply)),
                        Err(()) => answer = Some(Err(())),
                    }
                }
                (Way::Query | Way::Past(_, false), RequestStatus::Done) => {
                    answer = Some(Ok(reply));
                }
                (Way::Past(asking, true), RequestStatus::Done) => {
                    let step = asking.on_tick();
                    return self.take_step(actor, step);
                }
                (Way::Past(asking, false), status) => {
                    let step = asking.on_read(status, self.now);
                    return match step {
                        Some(step) => self.take_step(actor, step),
                        None => self.give_up(actor),
                    };
                }
                (Way::Query | Way::Past(_, true), _) => {}
            }
        }
        let Some(answer) = answer else {
            return;
        };
        let Some(asked) = this.asked.take() else {
            return;
        };
        match answer {
            Ok(reply) => self.on_answer(actor, &asked, reply),
            Err(()) => {
                // Perhaps executed: its session has ended.
                self.count("session lost with a payment");
                self.give_up(actor);
            }
        }
    }

    fn on_answer(&mut self, actor: usize, asked: &Asked, reply: &[u8]) {
        let this = &mut self.actors[actor];
        this.seen = this.seen.max(time_of(reply).unwrap_or_default());
        let next = match &mut this.role {
            Role::Courier(courier) => {
                let delivers = courier.delivers().filter(|_| time_of(reply).is_some());
                let (next, emptied) = courier.on_answer(reply);
                if let Some(source) = emptied {
                    self.answers.emptied.insert(source, asked.invoked);
                }
                if let Some((source, to, number)) = delivers {
                    let known = self.answers.delivered.entry((source, to)).or_default();
                    *known = number.max(*known);
                }
                next
            }
            Role::Herald(herald) => {
                match read_answer::<()>(reply, "") {
                    Ok(_) => {
                        if let Some(told) = herald.on_told() {
                            self.on_view_told(told);
                        }
                    }
                    Err(CallError::Busy) => self.count("view refused"),
                    Err(error) => {
                        let violation = Violation::new("results", format!("a view: {error}"));
                        self.violate(violation);
                    }
                }
                None
            }
            Role::Caller => self.on_caller_answer(actor, asked, reply),
        };
        match next {
            Some(next) => self.send_asked(actor, next),
            None => self.rest(actor),
        }
    }

    fn on_caller_answer(&mut self, actor: usize, asked: &Asked, reply: &[u8]) -> Option<Asked> {
        let place = asked.place;
        let checked = match asked.what {
            What::Delivery => Ok(()),
            What::Payment => self.on_payment(actor, asked, reply),
            What::Content => self.on_content(actor, asked, reply).map(|_| ()),
            What::ContentAt(version) => {
                let when = When::Version(version);
                self.answers.past(place, when, reply);
                match read_answer::<Content>(reply, "") {
                    Ok(done) if done.version.0 == version => Ok(()),
                    Err(CallError::Trimmed { .. }) => Ok(()),
                    other => Err(Violation::new("history", format!("{when:?}: {other:?}"))),
                }
            }
            What::Notices => self.on_notices(actor, place, reply),
            What::Cut | What::Mark | What::Part(_) | What::Place => {
                let next = match asked.what {
                    What::Mark => self.on_mark(actor, reply),
                    What::Part(member) => self.on_part(actor, member, reply),
                    What::Place => self.on_place(actor, Ok(reply.to_vec())),
                    _ => self.on_part_of_cut(actor, asked, reply),
                };
                match next {
                    Ok(next) => return next,
                    Err(violation) => Err(violation),
                }
            }
        };
        self.demand(checked);
        None
    }

    fn on_payment(&mut self, actor: usize, asked: &Asked, reply: &[u8]) -> Result<(), Violation> {
        let calm = self.calm;
        let this = &mut self.actors[actor];
        let session = this.sessions.entry(asked.place).or_default();
        let id = session.id(2_000 + actor as u64);
        let known = this.known.entry(asked.place).or_default();
        match read_answer::<()>(reply, "") {
            Ok(Done { version, time, .. }) => {
                if time.0.0 <= asked.floor || version.0 <= known.version || time.0.0 < known.time {
                    let what = format!(
                        "payment of {actor} in {}: version {version}, time {}; it knew {known:?}, \
                         and was to be later than {}",
                        asked.place, time.0.0, asked.floor
                    );
                    return Err(Violation::new("floors", what));
                }
                (known.version, known.time) = (version.0, time.0.0);
                known.acknowledged += 1;
                known.afterwards += u64::from(calm);
                self.answers.ordered(asked.place, id, reply);
                Ok(())
            }
            Err(CallError::Busy | CallError::ClockSkew { .. }) => {
                self.count("payment refused");
                Ok(())
            }
            Err(error) => {
                let what = format!("payment of {actor} in {}: {error}", asked.place);
                Err(Violation::new("results", what))
            }
        }
    }

    /// Checks a content that is to be no older than the last one the caller was told.
    fn on_content(
        &mut self,
        actor: usize,
        asked: &Asked,
        reply: &[u8],
    ) -> Result<Content, Violation> {
        let place = asked.place;
        let wrong =
            |what: String| Violation::new("cuts", format!("caller {actor}, {place}: {what}"));
        let done = read_answer::<Content>(reply, "").map_err(|error| wrong(error.to_string()))?;
        let known = self.actors[actor].known.entry(place).or_default();
        let paid = done.value.paid.get(&(actor as u64));
        let paid = paid.map_or(0, |(_, count)| *count);
        let received = done.value.receipts();
        // Marks make no version: of the same one, an earlier time may be told.
        let is_newer = done.version.0 > known.version;
        if done.version.0 < known.version
            || is_newer && done.time.0.0 < known.time
            || paid < known.acknowledged
            || received < known.received
        {
            return Err(wrong(format!("{done:?} though it knew {known:?}")));
        }
        if done.value.disorder > 0 {
            let what = format!("caller {actor}, shard {place}: {:?}", done.value);
            return Err(Violation::new("handoffs", what));
        }
        known.version = done.version.0;
        known.time = known.time.max(done.time.0.0);
        known.received = received;
        let views = &done.value.views;
        if done.value.late_views > 0 {
            let what = format!("caller {actor}, shard {place}: late views, {views:?}");
            return Err(Violation::new("views", what));
        }
        self.answers.views.check(place, views)?;
        Ok(done.value)
    }

    fn on_part_of_cut(
        &mut self,
        actor: usize,
        asked: &Asked,
        reply: &[u8],
    ) -> Result<Option<Asked>, Violation> {
        let place = asked.place;
        let Some(mut cut) = self.actors[actor].cut.take() else {
            return Ok(None);
        };
        self.answers.past(place, When::Time(cut.time), reply);
        let done = match read_answer::<Content>(reply, "") {
            Ok(done) => done,
            Err(CallError::Trimmed { .. }) => return Ok(None),
            Err(error) => return Err(Violation::new("cuts", error.to_string())),
        };
        if done.time.0.0 > cut.time {
            let what = format!("at {}: a version of {}", cut.time, done.time);
            return Err(Violation::new("cuts", what));
        }
        // All that it was told with a time up to the cut's is in it.
        let known = self.actors[actor].known.entry(place).or_default();
        let content = match known.time <= cut.time {
            true => self.on_content(actor, asked, reply)?,
            false => done.value,
        };
        cut.seen.insert(place, content);
        if !cut.left.is_empty() {
            self.actors[actor].cut = Some(cut);
            return Ok(self.continue_cut(actor));
        }
        self.count("cut");
        cut.check()?;
        self.actors[actor].ended = cut.is_last;
        Ok(None)
    }
}

impl Cut {
    /// No effect without its cause; behind all that was handed off, every effect.
    fn check(&self) -> Result<(), Violation> {
        for (to, content) in &self.seen {
            for (from, sender) in &self.seen {
                let received = content.received.get(&shard(*from)).copied();
                let sent = sender.sent.get(&subgroup(*to)).copied();
                let (received, sent) = (received.unwrap_or_default(), sent.unwrap_or_default());
                if received > sent || self.is_last && received < sent {
                    let what = format!(
                        "at {}: shard {to} has received {received} of shard {from}, which has sent \
                         {sent}",
                        self.time
                    );
                    return Err(Violation::new("handoffs", what));
                }
            }
        }
        Ok(())
    }
}

/// The query that asks for the newest content.
pub(super) fn content() -> Vec<u8> {
    Call::encode(Kind::Query, number_of("content"), &())
}

/// The query that asks for the content then, and the time that it is asked at.
pub(super) fn question(when: When, end: CommandTime) -> (Vec<u8>, CommandTime) {
    let (kind, time) = match when {
        When::Time(time) => (Kind::QueryAtTime, CommandTime(time)),
        When::Version(version) => (Kind::QueryAtVersion(version), end),
    };
    (Call::encode(kind, number_of("content"), &()), time)
}

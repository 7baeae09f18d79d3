//! A service as a state machine: dispatch, versions and their times, the past, snapshots.
//!
//! ```text
//!   ordered call ──► handler ──► fields changed? ── yes ──► version + 1, with the command's time
//!   call at t    ──► last version with a time ≤ t ──► fork, rewound ──► the same handler
//!   snapshot     ──► fork ──► header │ times of versions │ records of each field │ hand-offs │ notices
//!                                                                                │ view
//! ```
//!
//! The time of a version is the log's clock, but no earlier than that of the version before, and later
//! than the caller has seen anywhere (its floor): no cut over shards at one time shows an effect without
//! its cause. The log's clock closes times all the same, since it bounds the times of later commands
//! from below.
//!
//! [`Retention`] bounds the past. It is the same at every member, so the horizon and the content of
//! snapshots are, too.

use crate::{
    archive::{Archive, NoArchive},
    call::{self, Around, Call, Delivery, Fault, Kind, Made, Told},
    context::CallContext,
    encoding,
    fields::{AnyField, FieldCursor, Held},
    hand_off::{Destinations, HandOff, HandOffs, Numbers},
    look::{Look, Looked},
    notices::{Notice, Notices},
    past,
    place::{Lending, Place},
    service::{Methods, compared, terms_of},
    view::{self, ShardView},
};
use quintet_replica::{
    At, Bug, DigestBegun, Injected, PastAnswer, RestoreError, SnapshotProgress, StateMachine,
    StateSum,
};
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// How much of the past a shard keeps, whichever ends first. The newest version is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Versions before the newest.
    pub versions: u64,
    /// Bytes that only past versions need, as they are encoded, with a little for each.
    pub bytes: u64,
    /// How old a version may be when the next one is made, by the log's clock.
    pub age: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            versions: 10_000,
            bytes: 256 << 20,
            age: None,
        }
    }
}

/// A caller's time may be ahead of the log's clock by this many nanoseconds.
const AHEAD_MAX: u64 = 1_000_000_000;
/// Arguments of a service that hands calls off are not longer, so that they can be handed off.
const ARGUMENTS_MAX: usize = 16 << 20;
/// The methods of a service with more than this are compared together.
const METHODS_NAMED: usize = 32;
/// One command drops no more versions than this beside its own.
const TRIMMED_PER_COMMAND: usize = 64;
/// The times of versions go into snapshots in parts of this many.
const TIMES_PER_RECORD: usize = 1024;
/// A record of a snapshot is not longer.
const RECORD_MAX: u32 = 1 << 30;
/// The first format had no notifications. The third one has views, and is that of services that are
/// told of them.
const FORMATS: std::ops::RangeInclusive<u32> = 1..=3;

const fn format_of<S: Methods>() -> u32 {
    if S::VIEW.is_some() { 3 } else { 2 }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Header {
    format: u32,
    version: u64,
    horizon: u64,
    /// That of the last command, whether it made a version or not.
    time: u64,
    stopped: Option<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Header,
    Times,
    Field,
    Numbers,
    HandOff,
    Notices,
    Notice,
    View,
    End,
}

/// Where a machine runs: no part of its state.
#[derive(Clone, Debug)]
pub struct Here {
    /// The number of the member.
    pub member: u16,
    /// Shared by the machines of all shards there.
    pub lending: Arc<Lending>,
    /// Where past values go that are not kept in memory.
    pub archive: Arc<dyn Archive>,
}

impl Default for Here {
    fn default() -> Self {
        Self {
            member: 0,
            lending: Arc::default(),
            archive: Arc::new(NoArchive),
        }
    }
}

/// A service around which the rest of Quintet is built.
pub struct ServiceMachine<S> {
    service: S,
    retention: Retention,
    destinations: Destinations,
    /// Which member this is, and what the shards there lend each other.
    here: Here,
    hand_offs: HandOffs,
    notices: Notices,
    /// The last one that was told.
    view: view::Told,
    header: Header,
    /// Of the versions from the horizon on.
    times: VecDeque<u64>,
    injected: Injected,
    snapshot: Option<Copying<S>>,
    digest: Option<(Copying<S>, StateSum)>,
    restored: Vec<u8>,
    ended: bool,
}

impl<S: Methods> ServiceMachine<S> {
    /// A shard at its beginning.
    #[must_use]
    pub fn new(retention: Retention) -> Self {
        let mut service = S::default();
        // A program whose services cannot be kept does not start.
        service.each_mut(&mut |_, field| drop(field.settle()));
        Self {
            service,
            retention,
            destinations: Destinations::default(),
            here: Here::default(),
            hand_offs: HandOffs::default(),
            notices: Notices::default(),
            view: view::Told::default(),
            header: Header {
                format: format_of::<S>(),
                ..Header::default()
            },
            times: VecDeque::from([0]),
            injected: Injected::default(),
            snapshot: None,
            digest: None,
            restored: Vec::new(),
            ended: false,
        }
    }

    /// The same where it may hand calls off.
    pub fn handing_off_to(mut self, destinations: Destinations) -> Self {
        self.destinations = destinations;
        self
    }

    /// The same with a bug, where the build has them.
    #[must_use]
    pub fn with_injected(mut self, injected: Injected) -> Self {
        self.injected = injected;
        self
    }

    /// The same at this member.
    #[must_use]
    pub fn at_member(mut self, here: Here) -> Self {
        self.here = here;
        self
    }

    fn time_of(&self, version: u64) -> Option<u64> {
        let place = version.checked_sub(self.header.horizon)?;
        self.times.get(usize::try_from(place).ok()?).copied()
    }

    /// The last version with a time up to this one.
    fn version_at(&self, time: u64) -> Option<u64> {
        let later = self.times.partition_point(|at| *at <= time) as u64;
        Some(self.header.horizon + later.checked_sub(1)?)
    }

    /// Whether the service can be kept as it begins.
    ///
    /// # Errors
    /// Why not.
    pub fn check() -> Result<(), String> {
        let mut checked = Ok(());
        S::default().each_mut(&mut |_, field| {
            let settled = field.settle();
            if checked.is_ok() {
                checked = settled.map_err(|why| format!("service {}: {why}", S::NAME));
            }
        });
        checked
    }

    fn fault(&self, fault: Fault) -> Fault {
        self.header.stopped.clone().unwrap_or(fault)
    }

    /// Executes a command of any kind.
    fn order(&mut self, at: &At, call: Call<'_>, reply: &mut Vec<u8>) -> Result<(), Fault> {
        if let (Some(fault), false) = (&self.header.stopped, call.kind == Kind::Settle) {
            return Err(fault.clone());
        }
        match call.kind {
            Kind::Ordered(floor) => self.execute_call(at, floor, call, reply),
            Kind::Deliver => {
                let delivery: Option<Delivery<'_>> = encoding::decode(call.arguments);
                let it = delivery.ok_or(Fault::Schema)?;
                let executed = self.hand_offs.executed(it.source);
                if it.number <= executed && !self.injected.is(Bug::HandOffExecutedTwice) {
                    self.answer(reply, |_| {});
                    return Ok(());
                }
                if it.number > executed + 1 {
                    return Err(Fault::Early { executed });
                }
                let call = Call {
                    arguments: it.arguments,
                    ..call
                };
                let cause = match self.injected.is(Bug::EffectBeforeItsCause) {
                    true => 0,
                    false => it.time,
                };
                self.execute_call(at, cause, call, reply)?;
                self.hand_offs.set_executed(it.source, it.number);
                Ok(())
            }
            Kind::Settle => {
                let settled: Option<(&str, u64)> = encoding::decode(call.arguments);
                let (destination, upto) = settled.ok_or(Fault::Schema)?;
                let early = u64::from(self.injected.is(Bug::HandOffSettledEarly));
                self.hand_offs.settle(destination, upto + early);
                self.answer(reply, |_| {});
                Ok(())
            }
            Kind::Mark(floor) => {
                self.header.time = self.time_at(at, floor)?;
                // The state behind it is known by its version, also where changes make none.
                if !S::VERSIONED {
                    self.add_version();
                }
                self.answer(reply, |_| {});
                Ok(())
            }
            Kind::View => {
                let told: Option<view::Told> = encoding::decode(call.arguments);
                self.order_view(at, told.ok_or(Fault::Schema)?, reply)
            }
            _ => Err(Fault::Schema),
        }
    }

    /// The time of a command whose caller has seen this one.
    fn time_at(&self, at: &At, floor: u64) -> Result<u64, Fault> {
        let ahead = floor.saturating_sub(at.time.0);
        if ahead > AHEAD_MAX {
            return Err(Fault::ClockSkew { ahead });
        }
        Ok(at.time.0.max(floor.saturating_add(1)).max(self.header.time))
    }

    /// The last command has made a version.
    fn add_version(&mut self) {
        self.header.version += 1;
        self.times.push_back(self.header.time);
        self.trim(self.header.time);
    }

    /// Answers with what `write` appends, as of now.
    fn answer(&self, reply: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        let answer = call::begin_answer(reply);
        write(reply);
        answer.end(reply, self.header.version, self.header.time, &Made::new());
    }

    /// Tells the service of a view that is later than the last one.
    fn order_view(&mut self, at: &At, told: view::Told, reply: &mut Vec<u8>) -> Result<(), Fault> {
        let method = S::VIEW.ok_or(Fault::Schema)?.number;
        let is_later = told.number > self.view.number || self.injected.is(Bug::ViewsInAnyOrder);
        if is_later && told.members != self.view.members {
            if self.hand_offs.is_full() {
                return Err(Fault::Busy);
            }
            let view = ShardView::new(&told, &self.view);
            self.execute(at, 0, method, reply, |service, context, _| {
                service.call_view(context, &view);
                Some(())
            })?;
        } else {
            self.answer(reply, |_| {});
        }
        if is_later {
            self.view = told;
        }
        Ok(())
    }

    fn execute_call(
        &mut self,
        at: &At,
        floor: u64,
        call: Call<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        if self.hand_offs.is_full() {
            return Err(Fault::Busy);
        }
        let length = call.arguments.len();
        if !self.destinations.0.is_empty() && length > ARGUMENTS_MAX {
            return Err(Fault::TooLarge {
                bytes: length as u64,
                bytes_max: ARGUMENTS_MAX as u64,
            });
        }
        let floor = match self.injected.is(Bug::FloorIgnored) && call.kind != Kind::Deliver {
            true => 0,
            false => floor,
        };
        let (method, arguments) = (call.method, call.arguments);
        self.execute(at, floor, method, reply, |service, context, reply| {
            service.call_ordered(context, method, arguments, reply)
        })
    }

    /// Executes a handler; `None` when there is none.
    fn execute(
        &mut self,
        at: &At,
        floor: u64,
        method: u32,
        reply: &mut Vec<u8>,
        handler: impl FnOnce(&mut S, &mut CallContext<'_>, &mut Vec<u8>) -> Option<()>,
    ) -> Result<(), Fault> {
        let time = self.time_at(at, floor)?;
        let mut context = CallContext::new(*at, time, self.header.version, &self.destinations);
        let answer = call::begin_answer(reply);
        let service = &mut self.service;
        let ended = call::guarded(|| {
            handler(service, &mut context, reply)?;
            let mut changed = false;
            service.each_mut(&mut |_, field| match field.changed() {
                Ok(is_so) => changed |= is_so,
                Err(why) => panic!("{why}"),
            });
            Some(changed)
        });
        let changed = match ended {
            Ok(Some(changed)) => changed,
            Ok(None) => return Err(Fault::Schema),
            Err(message) => {
                let fault = self.panicked(method, message, true);
                self.service.each_mut(&mut |_, field| field.undo());
                self.header.stopped = Some(fault.clone());
                return Err(fault);
            }
        };
        let (makes_version, wanted) = context.into_parts();
        let changed = changed || makes_version;
        let made = self.hand_offs.add(wanted.hand_offs, time);
        self.header.time = time;
        let version = self.header.version + u64::from(changed);
        let archive = &*self.here.archive;
        self.service
            .each_mut(&mut |_, field| field.commit(version, archive));
        if changed {
            self.add_version();
        }
        self.notices.add(wanted.notices, version, time);
        answer.end(reply, version, time, &made);
        Ok(())
    }

    fn panicked(&self, method: u32, message: String, stopped: bool) -> Fault {
        let method = compared::<S>().find(|it| it.number == method);
        Fault::Panicked {
            method: method.map_or_else(String::new, |it| it.name.to_owned()),
            version: self.header.version,
            message,
            stopped,
        }
    }

    fn past_bytes(&self) -> u64 {
        let mut bytes = 0;
        self.service
            .each(&mut |_, field| bytes += field.past_bytes());
        bytes
    }

    fn trim(&mut self, now: u64) {
        let age = self.retention.age.map(nanoseconds);
        for _ in 0..TRIMMED_PER_COMMAND {
            let kept = self.header.version - self.header.horizon;
            // A version is needed until the next one is too old.
            let next = self.time_of(self.header.horizon + 1);
            let too_old =
                age.is_some_and(|age| next.is_some_and(|next| next.saturating_add(age) < now));
            let too_many = kept > self.retention.versions;
            if kept == 0 || !(too_old || too_many || self.past_bytes() > self.retention.bytes) {
                break;
            }
            self.header.horizon += 1;
            self.times.pop_front();
            let horizon = self.header.horizon;
            let archive = &*self.here.archive;
            self.service
                .each_mut(&mut |_, field| field.trim(horizon, archive));
        }
    }

    fn ask(
        &self,
        service: &S,
        (around, call): (Around<'_>, Call<'_>),
        (version, time): (u64, u64),
        reply: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let there = |member| match member == self.here.member {
            true => Ok(()),
            false => Err(Fault::NotThere { member }),
        };
        let place = match around {
            Around::Nothing => None,
            Around::Placed(placed) => {
                there(placed.member)?;
                let loans = match placed.ticket {
                    0 => Vec::new(),
                    ticket => self.here.lending.take(ticket).ok_or(Fault::NotLent)?,
                };
                let member = placed.member;
                Some(Place::new(&placed, loans).ok_or(Fault::NotThere { member })?)
            }
            Around::Lent(loan) => {
                there(loan.member)?;
                let state = Box::new(service.fork());
                if !self.here.lending.put(loan.ticket, loan.subgroup, state) {
                    return Err(Fault::NotLent);
                }
                call::begin_answer(reply).end(reply, version, time, &Made::new());
                return Ok(());
            }
            Around::Returned(member, ticket) => {
                there(member)?;
                self.here.lending.take(ticket);
                call::begin_answer(reply).end(reply, version, time, &Made::new());
                return Ok(());
            }
            Around::Look => return self.look(call, (version, time), None, reply),
        };
        let answer = call::begin_answer(reply);
        let asked = self.read(call.method, || {
            service.call_query(place.as_ref(), call.method, call.arguments, reply)
        })?;
        asked.ok_or(Fault::Schema)?;
        answer.end(reply, version, time, &Made::new());
        Ok(())
    }

    /// Reads of a state: by a handler, or of a past value that was put away and may be damaged. A panic
    /// is the read's fault alone.
    fn read<T>(&self, method: u32, read: impl FnOnce() -> T) -> Result<T, Fault> {
        let (read, is_too_much) = past::bounded(|| call::guarded(read));
        read.map_err(|message| match is_too_much {
            true => Fault::TooMuchPast,
            false => self.panicked(method, message, false),
        })
    }

    /// Reads a field by its number.
    fn read_field<T>(
        &self,
        number: u32,
        read: impl Fn(&dyn AnyField) -> Option<T>,
    ) -> Result<T, Fault> {
        let found = self.read(number, || {
            let mut found = None;
            self.service.each(&mut |it, field| {
                if it == number {
                    found = read(field);
                }
            });
            found
        });
        found?.ok_or(Fault::Schema)
    }

    /// Version and time of a value: that at the horizon was made before it.
    fn made_at(&self, since: u64) -> (u64, u64) {
        let since = since.max(self.header.horizon);
        (since, self.time_of(since).unwrap_or_default())
    }

    /// Shows a field as it is, or as of a version.
    fn look(
        &self,
        call: Call<'_>,
        (version, time): (u64, u64),
        as_of: Option<u64>,
        reply: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let look: Option<Look<'_>> = encoding::decode(call.arguments);
        let look = look.ok_or(Fault::Schema)?;
        let mut looked = match look {
            Look::Version => Looked::Nothing,
            look => self.read_field(call.method, |field| field.look(&look, as_of))?,
        };
        if let Looked::Value {
            version: made,
            time: at,
            ..
        } = &mut looked
        {
            let told = made.map(|made| self.made_at(made));
            (*made, *at) = told.map_or((None, time), |(made, at)| (Some(made), at));
        }
        let answer = call::begin_answer(reply);
        encoding::append(&looked, reply);
        answer.end(reply, version, time, &Made::new());
        Ok(())
    }

    fn history(&self, call: Call<'_>, reply: &mut Vec<u8>) -> Result<(), Fault> {
        let asked: Option<(Option<Vec<u8>>, u64)> = encoding::decode(call.arguments);
        let (key, limit) = asked.ok_or(Fault::Schema)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let found = self.read_field(call.method, |field| field.history(key.as_deref(), limit))?;
        let told = found.into_iter().map(|Held { since, value }| {
            let (version, time) = self.made_at(since);
            (version, time, value)
        });
        let told: Vec<Told> = told.collect();
        self.answer(reply, |out| encoding::append(&told, out));
        Ok(())
    }

    /// The hand-offs that wait, the first ones.
    fn outbox(&self, call: Call<'_>, reply: &mut Vec<u8>) -> Result<(), Fault> {
        let of: Option<&str> = encoding::decode(call.arguments).ok_or(Fault::Schema)?;
        self.answer(reply, |out| match of {
            None => encoding::append(&self.hand_offs.first_numbers(), out),
            Some(destination) => encoding::append(&self.hand_offs.first_of(destination), out),
        });
        Ok(())
    }

    fn follow(&self, call: Call<'_>, reply: &mut Vec<u8>) -> Result<(), Fault> {
        let asked: Option<(&str, u64)> = encoding::decode(call.arguments);
        let (name, from) = asked.ok_or(Fault::Schema)?;
        let skips = from > 0 && self.injected.is(Bug::FollowerSkipsOne);
        let told = self.notices.told(name, from + u64::from(skips));
        self.answer(reply, |out| encoding::append(&told, out));
        Ok(())
    }

    fn copying(&self) -> Copying<S> {
        Copying {
            service: self.service.fork(),
            header: self.header.clone(),
            times: self.times.clone(),
            hand_offs: self.hand_offs.clone(),
            notices: self.notices.clone(),
            view: self.view.clone(),
            stage: Stage::Header,
        }
    }

    fn read_record(&mut self, kind: Record, field: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        let broken = || RestoreError("a record cannot be decoded".to_owned());
        if self.ended {
            return Err(RestoreError("there is more behind its end".to_owned()));
        }
        match kind {
            Record::Header => {
                self.header = encoding::decode(bytes).ok_or_else(broken)?;
                let format = std::mem::replace(&mut self.header.format, format_of::<S>());
                if !FORMATS.contains(&format) {
                    return Err(RestoreError(format!(
                        "its format is {format}; this build reads up to {}",
                        FORMATS.end()
                    )));
                }
                self.times.clear();
            }
            Record::Times => {
                let times: Vec<u64> = encoding::decode(bytes).ok_or_else(broken)?;
                self.times.extend(times);
            }
            Record::Field => {
                let archive = &*self.here.archive;
                let mut read = Ok(());
                // A field that the service has no more is left out.
                self.service.each_mut(&mut |number, it| {
                    if number == field {
                        read = it.read_record(bytes, archive);
                    }
                });
                read?;
            }
            Record::Numbers => {
                let numbers: Option<Numbers> = encoding::decode(bytes);
                self.hand_offs.restore_numbers(numbers.ok_or_else(broken)?);
            }
            Record::HandOff => {
                let hand_off: Option<HandOff> = encoding::decode(bytes);
                let hand_off = hand_off.ok_or_else(broken)?;
                if !self.injected.is(Bug::HandOffsNotInSnapshot) {
                    self.hand_offs.restore(hand_off)?;
                }
            }
            Record::Notices => {
                let last: Option<u64> = encoding::decode(bytes);
                self.notices.restore_last(last.ok_or_else(broken)?);
            }
            Record::Notice => {
                let notice: Option<Notice> = encoding::decode(bytes);
                self.notices.restore(notice.ok_or_else(broken)?)?;
            }
            Record::View => {
                let view: Option<view::Told> = encoding::decode(bytes);
                self.view = view.ok_or_else(broken)?;
            }
            Record::End => self.ended = true,
        }
        Ok(())
    }
}

/// A state as it was when the copy began, which is being written.
struct Copying<S> {
    service: S,
    header: Header,
    times: VecDeque<u64>,
    hand_offs: HandOffs,
    notices: Notices,
    view: view::Told,
    stage: Stage,
}

enum Stage {
    Header,
    Times(usize),
    Field(usize, FieldCursor),
    Numbers,
    HandOffs(Option<(String, u64)>),
    Notices,
    Notice(usize),
    View,
    End,
    Over,
}

impl<S: Methods> Copying<S> {
    /// Appends the next record; false when there is none.
    fn next_record(&mut self, out: &mut Vec<u8>) -> bool {
        match &mut self.stage {
            Stage::Header => {
                put_record(Record::Header, 0, out, |out| {
                    encoding::append(&self.header, out);
                });
                self.stage = Stage::Times(0);
            }
            Stage::Times(from) if *from < self.times.len() => {
                let upto = (*from + TIMES_PER_RECORD).min(self.times.len());
                let times: Vec<u64> = self.times.range(*from..upto).copied().collect();
                put_record(Record::Times, 0, out, |out| encoding::append(&times, out));
                self.stage = Stage::Times(upto);
            }
            Stage::Times(_) => {
                self.stage = Stage::Field(0, FieldCursor::default());
                return self.next_record(out);
            }
            Stage::Field(place, cursor) => {
                let (mut at, mut is_there, mut wrote) = (0, false, false);
                self.service.each(&mut |number, field: &dyn AnyField| {
                    if at == *place {
                        is_there = true;
                        put_record_if(number, out, |out| {
                            wrote = field.next_record(cursor, out);
                            wrote
                        });
                    }
                    at += 1;
                });
                if !wrote {
                    self.stage = match is_there {
                        true => Stage::Field(*place + 1, FieldCursor::default()),
                        false => Stage::Numbers,
                    };
                    return self.next_record(out);
                }
            }
            Stage::Numbers => {
                put_record(Record::Numbers, 0, out, |out| {
                    encoding::append(self.hand_offs.numbers(), out);
                });
                self.stage = Stage::HandOffs(None);
            }
            Stage::HandOffs(last) => {
                let Some(next) = self.hand_offs.behind(last.as_ref()) else {
                    self.stage = Stage::Notices;
                    return self.next_record(out);
                };
                put_record(Record::HandOff, 0, out, |out| encoding::append(next, out));
                *last = Some((next.destination.clone(), next.number));
            }
            Stage::Notices => {
                put_record(Record::Notices, 0, out, |out| {
                    encoding::append(&self.notices.last(), out);
                });
                self.stage = Stage::Notice(0);
            }
            Stage::Notice(place) => {
                let Some(next) = self.notices.at(*place) else {
                    self.stage = match S::VIEW {
                        Some(_) => Stage::View,
                        None => Stage::End,
                    };
                    return self.next_record(out);
                };
                put_record(Record::Notice, 0, out, |out| encoding::append(next, out));
                *place += 1;
            }
            Stage::View => {
                put_record(Record::View, 0, out, |out| {
                    encoding::append(&self.view, out);
                });
                self.stage = Stage::End;
            }
            Stage::End => {
                put_record(Record::End, 0, out, |_| {});
                self.stage = Stage::Over;
            }
            Stage::Over => return false,
        }
        true
    }
}

fn nanoseconds(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX - 1)
}

fn put_record(kind: Record, field: u32, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let tag = match kind {
        Record::Header => 0,
        Record::Times => 1,
        Record::Field => 2,
        Record::End => 3,
        Record::Numbers => 4,
        Record::HandOff => 5,
        Record::Notices => 6,
        Record::Notice => 7,
        Record::View => 8,
    };
    out.push(tag);
    out.extend_from_slice(&field.to_le_bytes());
    let head = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let length = (out.len() - head - 4) as u32;
    out[head..head + 4].copy_from_slice(&length.to_le_bytes());
}

fn put_record_if(field: u32, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> bool) {
    let begins = out.len();
    let mut wrote = false;
    put_record(Record::Field, field, out, |out| wrote = write(out));
    if !wrote {
        out.truncate(begins);
    }
}

/// Of the format of calls and answers; methods are compared by name.
pub const SEMANTICS: u32 = 2;

/// Tag, field and length of a record.
const RECORD_HEAD: usize = 9;

impl<S: Methods> StateMachine for ServiceMachine<S> {
    fn apply(&mut self, at: &At, command: &[u8], reply: &mut Vec<u8>) {
        self.here.lending.end_old();
        let begins = reply.len();
        let executed = match Call::decode(command) {
            Some(call) => self.order(at, call, reply),
            None => Err(self.fault(Fault::Schema)),
        };
        end_answer(executed, begins, reply);
    }

    fn query(&self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
        let now = (self.header.version, self.header.time);
        let begins = reply.len();
        let asked = match Around::take(command) {
            Some((_, call)) if call.kind == Kind::Outbox => self.outbox(call, reply),
            Some((_, call)) if call.kind == Kind::History => self.history(call, reply),
            Some((_, call)) if call.kind == Kind::Follow => self.follow(call, reply),
            Some((_, call)) if call.kind == Kind::LastView => {
                self.answer(reply, |out| encoding::append(&self.view.number, out));
                Ok(())
            }
            // Where a handler panicked, a field with a past is as in the last version.
            Some((around, call))
                if call.kind == Kind::Query
                    && (self.header.stopped.is_none() || matches!(around, Around::Look)) =>
            {
                self.ask(&self.service, (around, call), now, reply)
            }
            _ => Err(self.fault(Fault::Schema)),
        };
        end_answer(asked, begins, reply);
    }

    fn query_at(&self, at: &At, command: &[u8], reply: &mut Vec<u8>) -> PastAnswer {
        let begins = reply.len();
        let Some((around, call)) = Around::take(command) else {
            end_answer(Err(Fault::Schema), begins, reply);
            return PastAnswer::Done;
        };
        if let Kind::QueryFrom(version) = call.kind {
            if version > self.header.version {
                return PastAnswer::NotYet;
            }
            let now = (self.header.version, self.header.time);
            let asked = match &self.header.stopped {
                Some(fault) => Err(fault.clone()),
                None => self.ask(&self.service, (around, call), now, reply),
            };
            end_answer(asked, begins, reply);
            return PastAnswer::Done;
        }
        if !S::VERSIONED {
            return PastAnswer::NotKept;
        }
        let version = match call.kind {
            Kind::QueryAtTime => self.version_at(at.time.0),
            Kind::QueryAtVersion(version) if version > self.header.version => {
                return PastAnswer::NotYet;
            }
            Kind::QueryAtVersion(version) => Some(version),
            _ => None,
        };
        let asked = match version.and_then(|version| Some((version, self.time_of(version)?))) {
            // A look reads no other field, and of its own one value at most.
            Some((version, time)) if around == Around::Look => {
                let as_of = (!self.injected.is(Bug::PastWithoutRewind)).then_some(version);
                self.look(call, (version, time), as_of, reply)
            }
            Some((version, time)) => {
                let is_part = matches!(around, Around::Placed(_));
                let at_newest = self.injected.is(Bug::PastWithoutRewind)
                    || is_part && self.injected.is(Bug::GatherAtNewest);
                let rewound = self.read(call.method, || {
                    let mut past = self.service.fork();
                    if !at_newest {
                        past.each_mut(&mut |_, field| field.rewind(version));
                    }
                    past
                });
                rewound.and_then(|past| self.ask(&past, (around, call), (version, time), reply))
            }
            None if matches!(call.kind, Kind::QueryAtTime | Kind::QueryAtVersion(_)) => {
                Err(Fault::Trimmed {
                    version: self.header.horizon,
                    time: self.times.front().copied().unwrap_or_default(),
                })
            }
            None => Err(Fault::Schema),
        };
        end_answer(asked, begins, reply);
        PastAnswer::Done
    }

    fn semantics(&self) -> u32 {
        SEMANTICS
    }

    fn terms(&self) -> quintet_replica::Terms {
        let number = |method: crate::service::Method| {
            let name = format!("{}.{}", S::NAME, method.name);
            (name, u64::from(method.terms))
        };
        let mut terms = vec![(format!("{}: fields", S::NAME), u64::from(S::FIELDS))];
        match S::METHODS.len() <= METHODS_NAMED {
            true => terms.extend(compared::<S>().map(number)),
            false => terms.push((format!("{}: methods", S::NAME), u64::from(terms_of::<S>()))),
        }
        // None is not the same as a moment.
        let age = self.retention.age.map(nanoseconds);
        let age = age.map_or(0, |age| age.saturating_add(1));
        terms.extend([
            (
                format!("{}: retained versions", S::NAME),
                self.retention.versions,
            ),
            (format!("{}: retained bytes", S::NAME), self.retention.bytes),
            (format!("{}: retained nanoseconds", S::NAME), age),
        ]);
        terms
    }

    fn begin_snapshot(&mut self) {
        self.snapshot = Some(self.copying());
    }

    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, budget: usize) -> SnapshotProgress {
        if self.snapshot.is_none() {
            self.begin_snapshot();
        }
        let begins = out.len();
        if let Some(copying) = &mut self.snapshot {
            while out.len() - begins < budget.max(1) {
                if !copying.next_record(out) {
                    self.snapshot = None;
                    return SnapshotProgress::Done;
                }
            }
        }
        SnapshotProgress::More
    }

    fn abandon_snapshot(&mut self) {
        self.snapshot = None;
    }

    fn begin_restore(&mut self) {
        let destinations = std::mem::take(&mut self.destinations);
        let injected = self.injected;
        *self = Self::new(self.retention)
            .handing_off_to(destinations)
            .with_injected(injected)
            .at_member(self.here.clone());
        self.service.each_mut(&mut |_, field| field.empty());
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        self.restored.extend_from_slice(chunk);
        let bytes = std::mem::take(&mut self.restored);
        let mut rest = &bytes[..];
        while let Some((head, behind)) = rest.split_at_checked(RECORD_HEAD) {
            let kind = match head[0] {
                0 => Record::Header,
                1 => Record::Times,
                2 => Record::Field,
                3 => Record::End,
                4 => Record::Numbers,
                5 => Record::HandOff,
                6 => Record::Notices,
                7 => Record::Notice,
                8 => Record::View,
                tag => return Err(RestoreError(format!("{tag} is no kind of record"))),
            };
            let number = |at: usize| {
                let bytes = head[at..at + 4].try_into();
                u32::from_le_bytes(bytes.expect("four bytes"))
            };
            let length = number(5);
            if length > RECORD_MAX {
                return Err(RestoreError(format!("a record of {length} bytes")));
            }
            let Some((record, behind)) = behind.split_at_checked(length as usize) else {
                break;
            };
            self.read_record(kind, number(1), record)?;
            rest = behind;
        }
        self.restored = rest.to_vec();
        Ok(())
    }

    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        let kept = self.header.version.checked_sub(self.header.horizon);
        if !self.ended || !self.restored.is_empty() {
            return Err(RestoreError("it ends in the middle".to_owned()));
        }
        if kept.and_then(|kept| kept.checked_add(1)) != Some(self.times.len() as u64) {
            return Err(RestoreError(
                "its versions have other times than it has".to_owned(),
            ));
        }
        self.service.each_mut(&mut |_, field| field.finish_read());
        Ok(())
    }

    fn digest(&self) -> u128 {
        let (mut copying, mut sum) = (self.copying(), StateSum::default());
        while add_record(&mut copying, &mut sum) {}
        sum.finish()
    }

    fn begin_digest(&mut self) -> DigestBegun {
        self.digest = Some((self.copying(), StateSum::default()));
        DigestBegun::Steps
    }

    fn digest_step(&mut self, budget: usize) -> Option<u128> {
        let (copying, sum) = self.digest.as_mut()?;
        let upto = sum.work().saturating_add(budget);
        let ended = call::guarded(|| {
            while sum.work() < upto {
                if !add_record(copying, sum) {
                    return Some(sum.finish());
                }
            }
            None
        });
        let digest = ended.unwrap_or_else(|message| {
            // A past value that cannot be read is no part of the state: the others' digests differ.
            let mut sum = StateSum::default();
            sum.begin_part().extend_from_slice(message.as_bytes());
            sum.end_part();
            Some(sum.finish())
        });
        if digest.is_some() {
            self.digest = None;
        }
        digest
    }

    fn abandon_digest(&mut self) {
        self.digest = None;
    }

    fn memory(&self) -> u64 {
        let mut bytes = 8 * self.times.len() as u64 + self.hand_offs.bytes();
        bytes += self.notices.bytes();
        self.service.each(&mut |_, field| bytes += field.bytes());
        bytes
    }

    fn entries(&self) -> u64 {
        self.header.version
    }
}

/// Puts a fault in the place of an answer that is none, or that is too long to travel.
fn end_answer(ended: Result<(), Fault>, begins: usize, reply: &mut Vec<u8>) {
    let length = reply.len() - begins;
    let ended = ended.and(match length <= call::ANSWER_BYTES_MAX {
        true => Ok(()),
        false => Err(Fault::LongAnswer {
            bytes: length as u64,
            bytes_max: call::ANSWER_BYTES_MAX as u64,
        }),
    });
    if let Err(fault) = ended {
        reply.truncate(begins);
        call::put_fault(reply, &fault);
    }
}

fn add_record<S: Methods>(copying: &mut Copying<S>, sum: &mut StateSum) -> bool {
    let part = sum.begin_part();
    let wrote = copying.next_record(part);
    if wrote {
        sum.end_part();
    }
    wrote
}

#[cfg(test)]
mod tests;

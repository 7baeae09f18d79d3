//! A service as a state machine: dispatch, versions and their times, the past, snapshots.
//!
//! ```text
//!   ordered call ──► handler ──► fields changed? ── yes ──► version + 1, with the command's time
//!   call at t    ──► last version with a time ≤ t ──► fork, rewound ──► the same handler
//!   snapshot     ──► fork ──► header │ times of versions │ records of each field
//! ```
//!
//! The time of a version is the log's clock, but no earlier than that of the version before, and later
//! than the caller has seen anywhere (its floor): no cut over shards at one time shows an effect without
//! its cause. The log's clock closes times all the same, since it bounds the times of later commands
//! from below.
//!
//! [`Retention`] bounds the past. It is the same at every member, so the horizon and the content of
//! snapshots are, too.

use super::{
    call::{self, Call, CallContext, Fault, Kind, Told},
    encoding,
    fields::{AnyField, FieldCursor, Held},
    service::Methods,
};
use quintet_replica::{
    At, DigestBegun, PastAnswer, RestoreError, SnapshotProgress, StateMachine, StateSum,
};
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, time::Duration};

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
/// One command drops no more versions than this beside its own.
const TRIMMED_PER_COMMAND: usize = 64;
/// The times of versions go into snapshots in parts of this many.
const TIMES_PER_RECORD: usize = 1024;
/// A record of a snapshot is not longer.
const RECORD_MAX: u32 = 1 << 30;
const FORMAT: u32 = 1;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Header {
    format: u32,
    version: u64,
    horizon: u64,
    stopped: Option<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Header,
    Times,
    Field,
    End,
}

/// A service around which the rest of Quintet is built.
pub(super) struct ServiceMachine<S> {
    service: S,
    retention: Retention,
    header: Header,
    /// Of the versions from the horizon on.
    times: VecDeque<u64>,
    snapshot: Option<Copying<S>>,
    digest: Option<(Copying<S>, StateSum)>,
    restored: Vec<u8>,
    ended: bool,
}

impl<S: Methods> ServiceMachine<S> {
    pub fn new(retention: Retention) -> Self {
        Self {
            service: S::default(),
            retention,
            header: Header {
                format: FORMAT,
                ..Header::default()
            },
            times: VecDeque::from([0]),
            snapshot: None,
            digest: None,
            restored: Vec::new(),
            ended: false,
        }
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

    fn newest_time(&self) -> u64 {
        self.times.back().copied().unwrap_or_default()
    }

    fn fault(&self, fault: Fault) -> Fault {
        self.header.stopped.clone().unwrap_or(fault)
    }

    fn execute(&mut self, at: &At, call: Call<'_>, reply: &mut Vec<u8>) -> Result<(), Fault> {
        if let Some(fault) = &self.header.stopped {
            return Err(fault.clone());
        }
        let Kind::Ordered(floor) = call.kind else {
            return Err(Fault::Schema);
        };
        if let Some(ahead) = floor.checked_sub(at.time.0.saturating_add(AHEAD_MAX))
            && ahead > 0
        {
            let ahead = floor - at.time.0;
            return Err(Fault::ClockSkew { ahead });
        }
        let time = at
            .time
            .0
            .max(floor.saturating_add(1))
            .max(self.newest_time());
        let mut context = CallContext::new(*at, time, self.header.version);
        let answer = call::begin_answer(reply);
        let service = &mut self.service;
        let ended = call::guarded(|| {
            service.call_ordered(&mut context, call.method, call.arguments, reply)
        });
        match ended {
            Ok(Some(())) => {}
            Ok(None) => return Err(Fault::Schema),
            Err(message) => {
                let fault = self.panicked::<S>(call.method, message, true);
                self.service.each_mut(&mut |_, field| field.undo());
                self.header.stopped = Some(fault.clone());
                return Err(fault);
            }
        }
        let mut changed = context.makes_version;
        self.service
            .each_mut(&mut |_, field| changed |= field.changed());
        let version = self.header.version + u64::from(changed);
        self.service.each_mut(&mut |_, field| field.commit(version));
        if changed {
            self.header.version = version;
            self.times.push_back(time);
            self.trim(time);
        }
        answer.end(reply, version, time);
        Ok(())
    }

    fn panicked<M: Methods>(&self, method: u32, message: String, stopped: bool) -> Fault {
        let method = M::METHODS.iter().find(|it| it.number == method);
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
        let age = self.retention.age.map(|age| age.as_nanos() as u64);
        for _ in 0..TRIMMED_PER_COMMAND {
            let kept = self.header.version - self.header.horizon;
            // A version is needed until the next one is too old.
            let next = self.time_of(self.header.horizon + 1);
            let too_old = age.is_some_and(|age| {
                next.is_some_and(|next| next.saturating_add(age) < now) && kept > 0
            });
            let too_many = kept > self.retention.versions;
            if kept == 0 || !(too_old || too_many || self.past_bytes() > self.retention.bytes) {
                break;
            }
            self.header.horizon += 1;
            self.times.pop_front();
            let horizon = self.header.horizon;
            self.service.each_mut(&mut |_, field| field.trim(horizon));
        }
    }

    fn ask(
        &self,
        service: &S,
        call: Call<'_>,
        (version, time): (u64, u64),
        reply: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let answer = call::begin_answer(reply);
        let ended = call::guarded(|| service.call_query(call.method, call.arguments, reply));
        match ended {
            Ok(Some(())) => {
                answer.end(reply, version, time);
                Ok(())
            }
            Ok(None) => Err(Fault::Schema),
            Err(message) => Err(self.panicked::<S>(call.method, message, false)),
        }
    }

    fn history(&self, call: Call<'_>, reply: &mut Vec<u8>) -> Result<(), Fault> {
        let asked: Option<(Option<Vec<u8>>, u64)> = encoding::decode(call.arguments);
        let (key, limit) = asked.ok_or(Fault::Schema)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut found = None;
        self.service.each(&mut |number, field| {
            if number == call.method {
                found = field.history(key.as_deref(), limit);
            }
        });
        let oldest = self.header.horizon;
        let told = found.ok_or(Fault::Schema)?.into_iter().map(|held| {
            let Held { since, value } = held;
            // The value at the horizon was made before it.
            let since = since.max(oldest);
            (since, self.time_of(since).unwrap_or_default(), value)
        });
        let told: Vec<Told> = told.collect();
        let answer = call::begin_answer(reply);
        encoding::append(&told, reply);
        answer.end(reply, self.header.version, self.newest_time());
        Ok(())
    }

    fn copying(&self) -> Copying<S> {
        Copying {
            service: self.service.fork(),
            header: self.header.clone(),
            times: self.times.clone(),
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
                if self.header.format != FORMAT {
                    let format = self.header.format;
                    return Err(RestoreError(format!(
                        "its format is {format}; this build reads {FORMAT}"
                    )));
                }
                self.times.clear();
            }
            Record::Times => {
                let times: Vec<u64> = encoding::decode(bytes).ok_or_else(broken)?;
                self.times.extend(times);
            }
            Record::Field => {
                let mut read = Ok(());
                // A field that the service has no more is left out.
                self.service.each_mut(&mut |number, it| {
                    if number == field {
                        read = it.read_record(bytes);
                    }
                });
                read?;
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
    stage: Stage,
}

enum Stage {
    Header,
    Times(usize),
    Field(usize, FieldCursor),
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
                        false => Stage::End,
                    };
                    return self.next_record(out);
                }
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

fn put_record(kind: Record, field: u32, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let tag = match kind {
        Record::Header => 0,
        Record::Times => 1,
        Record::Field => 2,
        Record::End => 3,
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

/// Tag, field and length of a record.
const RECORD_HEAD: usize = 9;

impl<S: Methods> StateMachine for ServiceMachine<S> {
    fn apply(&mut self, at: &At, command: &[u8], reply: &mut Vec<u8>) {
        let begins = reply.len();
        let executed = match Call::decode(command) {
            Some(call) => self.execute(at, call, reply),
            None => Err(self.fault(Fault::Schema)),
        };
        put_fault_of(executed, begins, reply);
    }

    fn query(&self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
        let now = (self.header.version, self.newest_time());
        let begins = reply.len();
        let asked = match Call::decode(command) {
            _ if self.header.stopped.is_some() => Err(self.fault(Fault::Schema)),
            Some(call) if call.kind == Kind::Query => self.ask(&self.service, call, now, reply),
            Some(call) if call.kind == Kind::History => self.history(call, reply),
            _ => Err(Fault::Schema),
        };
        put_fault_of(asked, begins, reply);
    }

    fn query_at(&self, at: &At, command: &[u8], reply: &mut Vec<u8>) -> PastAnswer {
        let begins = reply.len();
        if !S::VERSIONED {
            return PastAnswer::NotKept;
        }
        let Some(call) = Call::decode(command) else {
            put_fault_of(Err(Fault::Schema), begins, reply);
            return PastAnswer::Done;
        };
        let version = match call.kind {
            Kind::QueryAtTime => self.version_at(at.time.0),
            Kind::QueryAtVersion(version) if version > self.header.version => {
                return PastAnswer::NotYet;
            }
            Kind::QueryAtVersion(version) => Some(version),
            _ => None,
        };
        let asked = match version.and_then(|version| Some((version, self.time_of(version)?))) {
            Some((version, time)) => {
                let mut past = self.service.fork();
                past.each_mut(&mut |_, field| field.rewind(version));
                self.ask(&past, call, (version, time), reply)
            }
            None if matches!(call.kind, Kind::QueryAtTime | Kind::QueryAtVersion(_)) => {
                Err(Fault::Trimmed {
                    version: self.header.horizon,
                    time: self.times.front().copied().unwrap_or_default(),
                })
            }
            None => Err(Fault::Schema),
        };
        put_fault_of(asked, begins, reply);
        PastAnswer::Done
    }

    fn semantics(&self) -> u32 {
        // Of the format of calls and answers; methods are compared by name.
        1
    }

    fn terms(&self) -> quintet_replica::Terms {
        let number = |method: &super::service::Method| {
            let name = format!("{}.{}", S::NAME, method.name);
            (name, u64::from(method.terms))
        };
        let mut terms: Vec<_> = S::METHODS.iter().map(number).collect();
        let age = self.retention.age.map_or(0, |age| age.as_nanos() as u64);
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
        *self = Self::new(self.retention);
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
        while sum.work() < upto {
            if !add_record(copying, sum) {
                let digest = sum.finish();
                self.digest = None;
                return Some(digest);
            }
        }
        None
    }

    fn abandon_digest(&mut self) {
        self.digest = None;
    }

    fn memory(&self) -> u64 {
        let mut bytes = 8 * self.times.len() as u64;
        self.service.each(&mut |_, field| bytes += field.bytes());
        bytes
    }

    fn entries(&self) -> u64 {
        self.header.version
    }
}

/// A fault in the place of an answer that begins here.
fn put_fault_of(ended: Result<(), Fault>, begins: usize, reply: &mut Vec<u8>) {
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
mod tests {
    use super::*;
    use crate::groups::{
        CallError, Done, Persistent, PersistentMap, Service, Version, VolatileMap, service,
    };
    use proptest::prelude::*;
    use quintet_replica::{CommandTime, Position};
    use std::collections::BTreeMap;

    #[derive(Default, Service)]
    struct Ledger {
        total: Persistent<i64>,
        accounts: PersistentMap<String, i64>,
    }

    #[service]
    impl Ledger {
        #[ordered]
        fn put(&mut self, name: &str, amount: i64) -> Option<i64> {
            let before = self.accounts.get(name).copied();
            *self.total += amount - before.unwrap_or_default();
            self.accounts.insert(name.to_owned(), amount);
            before
        }
        #[ordered]
        fn close(&mut self, name: &str) -> bool {
            *self.total -= self.accounts.get(name).copied().unwrap_or_default();
            self.accounts.remove(name)
        }
        #[ordered]
        fn touch(&mut self, context: &mut CallContext) -> Version {
            context.version()
        }
        #[ordered]
        fn fail(&mut self, text: String) {
            *self.total += 1;
            panic!("{text}");
        }
        #[query]
        fn all(&self) -> (i64, Vec<(String, i64)>, usize) {
            let accounts = self.accounts.iter().map(|(name, it)| (name.clone(), *it));
            (*self.total, accounts.collect(), self.accounts.len())
        }
        #[query]
        fn since(&self, name: &str) -> Option<Version> {
            self.accounts.get_versioned(name).map(|(since, _)| since)
        }
        #[query]
        fn divide(&self, by: i64) -> i64 {
            *self.total / by
        }
    }

    #[derive(Default, Service)]
    struct Cache {
        newest: VolatileMap<u8, u8>,
    }

    #[service]
    impl Cache {
        #[ordered]
        fn set(&mut self, key: u8, value: u8) {
            self.newest.insert(key, value);
        }
        #[query]
        fn get(&self, key: u8) -> Option<u8> {
            self.newest.get(&key).copied()
        }
    }

    fn number<S: Methods>(name: &str) -> u32 {
        let mut methods = S::METHODS.iter();
        methods.find(|it| it.name == name).expect("a method").number
    }

    struct Rig<S> {
        machine: ServiceMachine<S>,
        time: u64,
    }

    type All = (i64, Vec<(String, i64)>, usize);

    impl<S: Methods> Rig<S> {
        fn new(retention: Retention) -> Self {
            Self {
                machine: ServiceMachine::new(retention),
                time: 100,
            }
        }

        fn at(&self) -> At {
            At {
                position: Position(1),
                time: CommandTime(self.time),
                ..At::default()
            }
        }

        fn ordered<R: serde::de::DeserializeOwned>(
            &mut self,
            name: &str,
            arguments: &impl Serialize,
        ) -> Result<Done<R>, CallError> {
            self.after(0, name, arguments)
        }

        /// By a caller that has seen this time.
        fn after<R: serde::de::DeserializeOwned>(
            &mut self,
            floor: u64,
            name: &str,
            arguments: &impl Serialize,
        ) -> Result<Done<R>, CallError> {
            let call = Call::encode(Kind::Ordered(floor), number::<S>(name), arguments);
            let mut reply = vec![7];
            self.machine.apply(&self.at(), &call, &mut reply);
            call::read_answer(&reply[1..], "it/0")
        }

        fn query<R: serde::de::DeserializeOwned>(
            &self,
            name: &str,
            arguments: &impl Serialize,
        ) -> Result<R, CallError> {
            let call = Call::encode(Kind::Query, number::<S>(name), arguments);
            let mut reply = Vec::new();
            self.machine.query(&self.at(), &call, &mut reply);
            call::read_answer(&reply, "it/0").map(|done| done.value)
        }

        fn past<R: serde::de::DeserializeOwned>(
            &self,
            kind: Kind,
            time: u64,
            name: &str,
        ) -> (PastAnswer, Result<Done<R>, CallError>) {
            let call = Call::encode(kind, number::<S>(name), &());
            let at = At {
                time: CommandTime(time),
                ..self.at()
            };
            let mut reply = Vec::new();
            let answer = self.machine.query_at(&at, &call, &mut reply);
            (answer, call::read_answer(&reply, "it/0"))
        }

        /// The same state by way of a snapshot, cut by this budget.
        fn copied(&mut self, budget: usize) -> Self {
            let mut copy = Self::new(self.machine.retention);
            copy.time = self.time;
            self.machine.begin_snapshot();
            copy.machine.begin_restore();
            loop {
                let mut chunk = Vec::new();
                let progress = self.machine.snapshot_chunk(&mut chunk, budget);
                for part in chunk.chunks(3 + budget % 7) {
                    copy.machine.restore_chunk(part).expect("a snapshot");
                }
                if progress == SnapshotProgress::Done {
                    break;
                }
            }
            copy.machine.finish_restore().expect("all of it");
            copy
        }
    }

    fn stepped(machine: &mut ServiceMachine<Ledger>, budget: usize) -> u128 {
        assert_eq!(machine.begin_digest(), DigestBegun::Steps);
        loop {
            if let Some(digest) = machine.digest_step(budget) {
                return digest;
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(u8, i64),
        Close(u8),
        Touch,
        Time(u64),
        Copy(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0u8..4, 0i64..3).prop_map(|(name, amount)| Step::Put(name, amount)),
            2 => (0u8..4).prop_map(Step::Close),
            1 => Just(Step::Touch),
            3 => (0u64..5).prop_map(Step::Time),
            1 => (1usize..60).prop_map(Step::Copy),
        ]
    }

    proptest! {
        /// A model keeps every state with its time; the machine must answer the same for each version
        /// and time that it keeps, also behind a snapshot.
        #[test]
        fn every_kept_version_answers_as_it_did(
            steps in proptest::collection::vec(step(), 1..60),
            versions in 0u64..12,
            bytes in prop_oneof![Just(u64::MAX), 0u64..900],
            age in prop_oneof![Just(None), (0u64..8).prop_map(Some)],
        ) {
            let age = age.map(Duration::from_nanos);
            let mut rig = Rig::<Ledger>::new(Retention { versions, bytes, age });
            let mut now: BTreeMap<String, i64> = BTreeMap::new();
            let seen = |now: &BTreeMap<String, i64>| -> All {
                let all = now.iter().map(|(name, it)| (name.clone(), *it)).collect();
                (now.values().sum(), all, now.len())
            };
            let mut states = vec![(0, seen(&now))];
            for step in steps {
                let before = now.clone();
                let mut makes = false;
                match step {
                    Step::Put(name, amount) => {
                        let name = name.to_string();
                        let put = rig.ordered::<Option<i64>>("put", &(&name, amount));
                        prop_assert_eq!(put.expect("executed").value, now.insert(name, amount));
                        makes = true;
                    }
                    Step::Close(name) => {
                        let name = name.to_string();
                        let closed = rig.ordered::<bool>("close", &(&name,)).expect("executed");
                        prop_assert_eq!(closed.value, now.remove(&name).is_some());
                    }
                    Step::Touch => {
                        let made = rig.ordered::<Version>("touch", &()).expect("executed");
                        prop_assert_eq!(made.value, made.version);
                        makes = true;
                    }
                    Step::Time(by) => rig.time += by,
                    Step::Copy(budget) => {
                        let copy = rig.copied(budget);
                        prop_assert_eq!(copy.machine.digest(), rig.machine.digest());
                        rig = copy;
                    }
                }
                if makes || now != before {
                    states.push((rig.time, seen(&now)));
                }
                prop_assert_eq!(rig.machine.header.version, states.len() as u64 - 1);
                prop_assert_eq!(rig.query::<All>("all", &()).expect("told"), seen(&now));
                let horizon = rig.machine.header.horizon;
                let kept = rig.machine.header.version - horizon;
                prop_assert!(kept <= versions);
                prop_assert!(rig.machine.past_bytes() <= bytes);
                if age.is_none() && bytes == u64::MAX {
                    prop_assert_eq!(kept, versions.min(rig.machine.header.version));
                }
                for (version, (time, state)) in (0..).zip(&states) {
                    let newest = states.last().map_or(0, |(time, _)| *time);
                    let (answer, told) =
                        rig.past::<All>(Kind::QueryAtVersion(version), newest, "all");
                    prop_assert_eq!(answer, PastAnswer::Done);
                    if version < horizon {
                        let trimmed = matches!(told, Err(CallError::Trimmed { oldest, .. })
                            if oldest.0 == horizon);
                        prop_assert!(trimmed);
                        continue;
                    }
                    let told = told.expect("kept");
                    prop_assert_eq!(&told.value, state);
                    prop_assert_eq!((told.version.0, told.time.0.0), (version, *time));
                    let last = states.iter().rposition(|(at, _)| at <= time).expect("itself");
                    let (_, told) = rig.past::<All>(Kind::QueryAtTime, *time, "all");
                    prop_assert_eq!(&told.expect("kept").value, &states[last].1);
                }
            }
            let whole = rig.machine.digest();
            prop_assert_eq!(stepped(&mut rig.machine, 1), whole);
            prop_assert_eq!(stepped(&mut rig.machine, 10_000), whole);
        }
    }

    #[test]
    fn version_that_is_to_come_is_not_there_yet() {
        let mut rig = Rig::<Ledger>::new(Retention::default());
        rig.ordered::<Option<i64>>("put", &("a", 1))
            .expect("executed");
        let answer = |version| rig.past::<All>(Kind::QueryAtVersion(version), 100, "all").0;
        assert_eq!(answer(1), PastAnswer::Done);
        assert_eq!(answer(2), PastAnswer::NotYet);
    }

    #[test]
    fn time_far_ahead_of_the_log_is_refused() {
        let mut rig = Rig::<Ledger>::new(Retention::default());
        let latest = rig.time + AHEAD_MAX;
        let touched = rig.after::<Version>(latest, "touch", &()).expect("in time");
        assert_eq!(touched.time.0.0, latest + 1);
        let refused = rig.after::<Version>(latest + 1, "touch", &());
        assert!(matches!(refused, Err(CallError::ClockSkew { .. })));
        assert_eq!(rig.machine.header.version, 1);
    }

    proptest! {
        /// Clients of two shards whose clocks differ: what a client does later, it does at a later time,
        /// so a state at any time that has an effect has its causes.
        #[test]
        fn cut_at_any_time_has_the_causes_of_all_that_it_has(
            steps in proptest::collection::vec(
                (0usize..2, 0usize..3, any::<bool>(), 0u64..40), 1..80),
            skew in 0u64..500,
        ) {
            let mut shards = [(); 2].map(|()| Rig::<Ledger>::new(Retention::default()));
            shards[1].time += skew;
            // Per client: the highest time and the version of each shard that it has seen.
            let mut clients = [(0u64, [0u64; 2]); 3];
            let mut effects = Vec::new();
            for (shard, client, writes, passes) in steps {
                for rig in &mut shards {
                    rig.time += passes;
                }
                let (floor, seen) = &mut clients[client];
                let rig = &mut shards[shard];
                if writes {
                    let done = rig.after::<Version>(*floor, "touch", &()).expect("in time");
                    effects.push((shard, done.version.0, *seen));
                    (*floor, seen[shard]) = (done.time.0.0.max(*floor), done.version.0);
                } else {
                    let machine = &rig.machine;
                    seen[shard] = machine.header.version;
                    *floor = machine.newest_time().max(*floor);
                }
            }
            let times = shards.iter().flat_map(|rig| rig.machine.times.iter().copied());
            for time in times.collect::<Vec<_>>() {
                let cut = [0, 1].map(|it: usize| shards[it].machine.version_at(time));
                let cut = cut.map(|version| version.expect("kept"));
                for (shard, version, causes) in &effects {
                    if *version <= cut[*shard] {
                        prop_assert!(causes[0] <= cut[0] && causes[1] <= cut[1], "at {time}");
                    }
                }
            }
        }
    }

    #[test]
    fn command_that_changes_no_field_makes_no_version() {
        let mut rig = Rig::<Ledger>::new(Retention::default());
        let closed = rig.ordered::<bool>("close", &("none",)).expect("executed");
        assert_eq!((closed.value, closed.version), (false, Version(0)));
        let put = rig
            .ordered::<Option<i64>>("put", &("a", 1))
            .expect("executed");
        assert_eq!(put.version, Version(1));
        assert_eq!(rig.query("since", &("a",)), Ok(Some(Version(1))));
    }

    #[test]
    fn panicking_handler_stops_the_shard_but_not_its_past() {
        let mut rig = Rig::<Ledger>::new(Retention::default());
        rig.ordered::<Option<i64>>("put", &("a", 5))
            .expect("executed");
        let divided: Result<i64, _> = rig.query("divide", &(0i64,));
        assert!(matches!(
            divided,
            Err(CallError::Panicked { stopped: false, .. })
        ));
        let failed = rig
            .ordered::<()>("fail", &("no such account",))
            .expect_err("it panics");
        let expected = CallError::Panicked {
            shard: "it/0".to_owned(),
            method: "fail".to_owned(),
            version: Version(1),
            message: "no such account".to_owned(),
            stopped: true,
        };
        assert_eq!(failed, expected);
        let mut copy = rig.copied(10);
        assert_eq!(
            copy.ordered::<bool>("close", &("a",))
                .expect_err("it has stopped"),
            expected
        );
        assert_eq!(
            copy.query::<All>("all", &()).expect_err("it has stopped"),
            expected
        );
        let (_, told) = copy.past::<All>(Kind::QueryAtVersion(1), 100, "all");
        assert_eq!(told.expect("the past is there").value.0, 5);
        assert_eq!(copy.machine.digest(), rig.machine.digest());
    }

    #[test]
    fn bytes_that_are_no_call_change_nothing() {
        let mut rig = Rig::<Ledger>::new(Retention::default());
        rig.ordered::<Option<i64>>("put", &("a", 5))
            .expect("executed");
        let digest = rig.machine.digest();
        let put = Call::encode(Kind::Ordered(0), number::<Ledger>("put"), &("b", 1i64));
        let mut longer = put.clone();
        longer.push(0);
        let query = Call::encode(Kind::Query, number::<Ledger>("all"), &());
        let unknown = Call::encode(Kind::Ordered(0), 12345, &());
        for bytes in [
            &[][..],
            &[9],
            &put[..put.len() - 1],
            &longer,
            &query,
            &unknown,
        ] {
            let mut reply = Vec::new();
            rig.machine.apply(&At::default(), bytes, &mut reply);
            let answer = call::read_answer::<()>(&reply, "it/0");
            assert!(matches!(answer, Err(CallError::Schema { .. })), "{bytes:?}");
            let mut reply = Vec::new();
            rig.machine.query_at(&At::default(), bytes, &mut reply);
            assert!(
                call::read_answer::<()>(&reply, "it/0").is_err(),
                "{bytes:?}"
            );
        }
        assert_eq!(rig.machine.digest(), digest);
    }

    #[test]
    fn broken_snapshot_is_refused() {
        let mut rig = Rig::<Ledger>::new(Retention::default());
        for amount in 0..20 {
            rig.ordered::<Option<i64>>("put", &("a", amount))
                .expect("executed");
        }
        rig.machine.begin_snapshot();
        let mut snapshot = Vec::new();
        while rig.machine.snapshot_chunk(&mut snapshot, 100) == SnapshotProgress::More {}
        let refused = |bytes: &[u8]| {
            let mut machine = ServiceMachine::<Ledger>::new(Retention::default());
            machine.begin_restore();
            let read = machine.restore_chunk(bytes);
            read.and_then(|()| machine.finish_restore()).is_err()
        };
        assert!(!refused(&snapshot));
        for length in 0..snapshot.len() {
            assert!(refused(&snapshot[..length]), "cut at {length}");
        }
        let doubled = [&snapshot[..], &snapshot].concat();
        assert!(refused(&doubled));
        // Bytes that differ may be another state, but no panic.
        for at in 0..snapshot.len() {
            let mut other = snapshot.clone();
            other[at] ^= 0x41;
            refused(&other);
        }
    }

    #[test]
    fn service_without_versions_has_no_past() {
        let mut rig = Rig::<Cache>::new(Retention::default());
        let set = rig.ordered::<()>("set", &(1u8, 2u8)).expect("executed");
        assert_eq!(set.version, Version(0));
        assert_eq!(rig.query("get", &(1u8,)), Ok(Some(2u8)));
        assert_eq!(rig.copied(5).query("get", &(1u8,)), Ok(Some(2u8)));
        let (answer, _) = rig.past::<()>(Kind::QueryAtTime, 100, "get");
        assert_eq!(answer, PastAnswer::NotKept);
    }
}

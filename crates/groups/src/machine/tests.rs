//! A model beside the machine: versions, cuts, hand-offs, snapshots, bad bytes.

use super::*;
use crate::{
    CallError, Done, Persistent, PersistentMap, Service, Version, Volatile, VolatileMap,
    archive::{Archived, Encode, Put, WhimsicalArchive},
    service,
};
use proptest::prelude::*;
use quintet_replica::{CommandTime, Position};
use std::collections::BTreeMap;

mod formats;
mod look;
mod views;

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
        Self::with_archive(retention, Arc::new(NoArchive))
    }

    fn with_archive(retention: Retention, archive: Arc<dyn Archive>) -> Self {
        let here = Here {
            archive,
            ..Here::default()
        };
        Self {
            machine: ServiceMachine::new(retention).at_member(here),
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
        let archive = self.machine.here.archive.clone();
        let mut copy = Self::with_archive(self.machine.retention, archive);
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
        in_memory in prop_oneof![Just(None), (0u64..20).prop_map(Some)],
    ) {
        let age = age.map(Duration::from_nanos);
        let archive: Arc<dyn Archive> = match in_memory {
            Some(bytes) => Arc::new(WhimsicalArchive::new(bytes)),
            None => Arc::new(NoArchive),
        };
        let retention = Retention { versions, bytes, age };
        let mut rig = Rig::<Ledger>::with_archive(retention, archive);
        let mut other = Rig::<Ledger>::new(retention);
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
                    let _ = other.ordered::<Option<i64>>("put", &(&name, amount));
                    prop_assert_eq!(put.expect("executed").value, now.insert(name, amount));
                    makes = true;
                }
                Step::Close(name) => {
                    let name = name.to_string();
                    let closed = rig.ordered::<bool>("close", &(&name,)).expect("executed");
                    let _ = other.ordered::<bool>("close", &(&name,));
                    prop_assert_eq!(closed.value, now.remove(&name).is_some());
                }
                Step::Touch => {
                    let made = rig.ordered::<Version>("touch", &()).expect("executed");
                    let _ = other.ordered::<Version>("touch", &());
                    prop_assert_eq!(made.value, made.version);
                    makes = true;
                }
                Step::Time(by) => {
                    rig.time += by;
                    other.time += by;
                }
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
        prop_assert_eq!(other.machine.digest(), whole, "wherever the past is");
        prop_assert!(rig.machine.memory() <= other.machine.memory());
        prop_assert_eq!(stepped(&mut rig.machine, 1), whole);
        prop_assert_eq!(stepped(&mut rig.machine, 10_000), whole);
    }
}

/// Takes all, and gives other bytes back once it is damaged.
#[derive(Debug, Default)]
struct Damaged(Arc<std::sync::atomic::AtomicBool>);

#[derive(Debug)]
struct Rotten(Vec<u8>, Arc<std::sync::atomic::AtomicBool>);

impl Archive for Damaged {
    fn in_memory(&self) -> u64 {
        0
    }
    fn takes(&self, length: u64) -> bool {
        length > 0
    }
    fn put(&self, _: u64, encode: Encode<'_>, _: bool) -> Put {
        Put::Away(Arc::new(Rotten(encode(), self.0.clone())))
    }
}

impl Archived for Rotten {
    fn read(&self) -> std::io::Result<bytes::Bytes> {
        let mut bytes = self.0.clone();
        bytes[0] ^= u8::from(self.1.load(std::sync::atomic::Ordering::Relaxed));
        Ok(bytes.into())
    }
}

#[test]
fn damaged_past_value_is_an_error_and_never_an_answer() {
    let archive = Damaged::default();
    let is_damaged = archive.0.clone();
    let mut rig = Rig::<Ledger>::with_archive(Retention::default(), Arc::new(archive));
    for amount in 1..4 {
        rig.ordered::<Option<i64>>("put", &("a", amount))
            .expect("executed");
    }
    let (_, told) = rig.past::<All>(Kind::QueryAtVersion(1), 100, "all");
    assert_eq!(told.expect("kept").value.0, 1);
    // Of each of two fields two values of a byte; all of them were put away.
    let mut all_in_memory = Rig::<Ledger>::new(Retention::default());
    for amount in 1..4 {
        all_in_memory
            .ordered::<Option<i64>>("put", &("a", amount))
            .expect("executed");
    }
    let memory = all_in_memory.machine.memory();
    // The total's first value, which no command made, is one more.
    assert_eq!(memory - rig.machine.memory(), 5);
    is_damaged.store(true, std::sync::atomic::Ordering::Relaxed);
    let (_, told) = rig.past::<All>(Kind::QueryAtVersion(1), 100, "all");
    let Err(CallError::Panicked { message, .. }) = told else {
        panic!("{told:?}");
    };
    assert!(message.contains("restart the member"), "{message}");
    let asked = (None::<Vec<u8>>, 10u64);
    let call = Call::encode(Kind::History, Ledger::TOTAL.number(), &asked);
    let mut reply = Vec::new();
    rig.machine.query(&rig.at(), &call, &mut reply);
    let told = call::read_answer::<Vec<Told>>(&reply, "it/0");
    assert!(
        matches!(told, Err(CallError::Panicked { stopped: false, .. })),
        "{told:?}"
    );
    assert_eq!(rig.query::<All>("all", &()).expect("the present").0, 3);
    // The digest is another one than that of the other members, and comes.
    let whole = stepped(&mut all_in_memory.machine, 1);
    assert_ne!(stepped(&mut rig.machine, 1), whole);
    is_damaged.store(false, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(stepped(&mut rig.machine, 1), whole);
}

#[test]
fn read_of_too_much_past_is_refused_and_narrower_ones_are_not() {
    let retention = Retention {
        versions: u64::MAX,
        ..Retention::default()
    };
    let mut rig = Rig::<Ledger>::with_archive(retention, Arc::new(Damaged::default()));
    let keys = past::VALUES_MAX;
    for round in 1..3 {
        for key in 0..=keys {
            let put = rig.ordered::<Option<i64>>("put", &(key.to_string(), round));
            put.expect("executed");
        }
    }
    let all = |version| rig.past::<All>(Kind::QueryAtVersion(version), 100, "all").1;
    let shard = "it/0".to_owned();
    assert_eq!(all(keys + 1), Err(CallError::TooMuchPast { shard }));
    // One key has its last value there.
    let (_, entries, _) = all(keys + 2).expect("told").value;
    assert_eq!(entries.len() as u64, keys + 1);
    assert_eq!(
        rig.query::<All>("all", &()).expect("the present").2 as u64,
        keys + 1
    );
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
                *floor = machine.header.time.max(*floor);
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
    // Nor its fields, which are those of the last version.
    let looked = look::value(&copy, Kind::Query, "accounts", Some("a"));
    let (version, _, text) = looked.expect("there is one");
    assert_eq!((version, &*text), (Some(1), "5\n"));
}

#[test]
fn answer_that_is_too_long_is_an_error() {
    let answered = |length: usize| -> Result<Done<()>, CallError> {
        let mut reply = vec![7; 3];
        let answer = call::begin_answer(&mut reply);
        reply.resize(reply.len() + length, 0);
        answer.end(&mut reply, 1, 2, &Made::new());
        end_answer(Ok(()), 3, &mut reply);
        assert_eq!(reply[..3], [7; 3], "of others");
        call::read_answer(&reply[3..], "it/0")
    };
    assert!(answered(0).is_ok());
    let refused = answered(call::ANSWER_BYTES_MAX).expect_err("too long");
    assert!(
        matches!(refused, CallError::LongAnswer { bytes, bytes_max } if bytes > bytes_max),
        "{refused:?}"
    );
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

#[derive(Default, Service)]
struct Account {
    total: Persistent<u64>,
    order: Persistent<Vec<u64>>,
}

#[service]
impl Account {
    #[ordered]
    fn pay(&mut self, context: &mut CallContext, shards: Vec<usize>, amount: u64) {
        *self.total += amount;
        for shard in shards {
            context.then("account", shard, Account::calls().receive(amount));
        }
    }
    #[ordered]
    fn receive(&mut self, amount: u64) {
        *self.total += amount;
        self.order.push(amount);
    }
    #[query]
    fn order(&self) -> Vec<u64> {
        self.order.clone()
    }
}

fn payer() -> Rig<Account> {
    let mut rig = Rig::<Account>::new(Retention::default());
    let destinations = Destinations(vec![crate::hand_off::Destination {
        subgroup: "account".to_owned(),
        service: "Account",
        shards: 2,
    }]);
    rig.machine = rig.machine.handing_off_to(destinations);
    rig
}

impl Rig<Account> {
    fn order<R: serde::de::DeserializeOwned>(&mut self, call: &[u8]) -> Result<R, CallError> {
        let mut reply = Vec::new();
        self.machine.apply(&self.at(), call, &mut reply);
        call::read_answer(&reply, "it/0").map(|done| done.value)
    }

    fn told<R: serde::de::DeserializeOwned>(&self, of: Option<&str>) -> R {
        let mut reply = Vec::new();
        let call = Call::encode(Kind::Outbox, 0, &of);
        self.machine.query(&self.at(), &call, &mut reply);
        let done = call::read_answer(&reply, "it/0");
        done.map(|done| done.value).expect("told")
    }

    fn outbox(&self) -> Vec<HandOff> {
        let first: Made = self.told(None);
        let of = |(destination, number): &(String, u64)| {
            let waiting: Vec<HandOff> = self.told(Some(destination));
            assert_eq!(waiting[0].number, *number);
            waiting.into_iter().take(3).collect::<Vec<_>>()
        };
        first.iter().flat_map(of).collect()
    }

    fn deliver(&mut self, source: &str, hand_off: &HandOff) -> Result<(), CallError> {
        let delivery = Delivery {
            source,
            number: hand_off.number,
            time: hand_off.time,
            arguments: &hand_off.arguments,
        };
        let call = Call::encode(Kind::Deliver, hand_off.method, &delivery);
        let _: call::Anything = self.order(&call)?;
        Ok(())
    }
}

proptest! {
    /// Couriers deliver what they know in any order, again and again, and settle what was executed;
    /// source and destinations move to other members: each hand-off is executed once, in order.
    #[test]
    fn hand_offs_are_executed_once_and_in_order(
        steps in proptest::collection::vec((0u8..6, 0usize..8), 1..120),
    ) {
        let mut source = payer();
        let mut shards = [(); 2].map(|()| Rig::<Account>::new(Retention::default()));
        let mut expected = [Vec::new(), Vec::new()];
        let mut known: Vec<HandOff> = Vec::new();
        let mut amount = 0;
        for (step, which) in steps {
            match step {
                0 => {
                    amount += 1;
                    let to = [vec![0], vec![1], vec![0, 1], vec![1, 1], vec![]];
                    let to = &to[which % to.len()];
                    source.time += 1;
                    source.ordered::<()>("pay", &(to, amount)).expect("executed");
                    to.iter().for_each(|shard| expected[*shard].push(amount));
                }
                1 => known.extend(source.outbox()),
                2 if !known.is_empty() => {
                    let at = which % known.len();
                    let hand_off = known[at].clone();
                    let number = usize::from(hand_off.destination == "account/1");
                    let shard = &mut shards[number];
                    let executed = shard.deliver("payer/0", &hand_off).is_ok();
                    let made = shard.machine.header.time;
                    prop_assert!(!executed || made > hand_off.time);
                    if executed && which % 2 == 0 {
                        known.remove(at);
                    }
                }
                3 => {
                    let number = which % 2;
                    for number in [number, 1 - number] {
                        let upto = shards[number].machine.hand_offs.executed("payer/0");
                        let name = format!("account/{number}");
                        let call = Call::encode(Kind::Settle, 0, &(name, upto));
                        let _: call::Anything = source.order(&call).expect("settled");
                    }
                }
                4 => {
                    let mut copy = source.copied(1 + which * 20);
                    copy.machine.destinations = source.machine.destinations.clone();
                    prop_assert_eq!(copy.machine.digest(), source.machine.digest());
                    source = copy;
                }
                5 => shards[which % 2] = shards[which % 2].copied(1 + which * 20),
                _ => {}
            }
            for (shard, expected) in shards.iter().zip(&expected) {
                let order: Vec<u64> = shard.query("order", &()).expect("told");
                prop_assert!(expected.starts_with(&order), "{order:?} of {expected:?}");
            }
        }
        // A courier that continues delivers the rest.
        loop {
            let waiting = source.outbox();
            for hand_off in &waiting {
                let number = usize::from(hand_off.destination == "account/1");
                shards[number].deliver("payer/0", hand_off).expect("in order");
                let settled = (&hand_off.destination, hand_off.number);
                let call = Call::encode(Kind::Settle, 0, &settled);
                let _: call::Anything = source.order(&call).expect("settled");
            }
            if waiting.is_empty() {
                break;
            }
        }
        for (shard, expected) in shards.iter().zip(&expected) {
            let order: Vec<u64> = shard.query("order", &()).expect("told");
            prop_assert_eq!(&order, expected);
        }
    }
}

#[test]
fn full_outbox_refuses_commands_before_their_handlers_run() {
    let mut source = payer();
    let to = vec![0usize; 1000];
    for _ in 0..5 {
        source.ordered::<()>("pay", &(&to, 1u64)).expect("executed");
    }
    let digest = source.machine.digest();
    let refused = source.ordered::<()>("pay", &(&to, 1u64));
    assert_eq!(refused.expect_err("full"), CallError::Busy);
    assert_eq!(source.machine.digest(), digest);
    let call = Call::encode(Kind::Settle, 0, &("account/0", 1000u64));
    let _: call::Anything = source.order(&call).expect("settled");
    source
        .ordered::<()>("pay", &(&to, 1u64))
        .expect("there is room");
    let mut undeclared = Rig::<Account>::new(Retention::default());
    let failed = undeclared.ordered::<()>("pay", &(vec![0usize], 1u64));
    let failed = failed.expect_err("it panics").to_string();
    assert!(failed.contains("hands_off_to"), "{failed}");
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

/// A service that does not begin empty.
#[derive(Service)]
struct Filled {
    count: Persistent<u64>,
    names: PersistentMap<String, u8>,
}

impl Default for Filled {
    fn default() -> Self {
        let (mut count, mut names) = (Persistent::default(), PersistentMap::default());
        *count = 5;
        names.insert("a".to_owned(), 1);
        Self { count, names }
    }
}

#[service]
impl Filled {
    #[ordered]
    fn remove(&mut self, name: &str) -> bool {
        self.names.remove(name)
    }
    #[ordered]
    fn count(&mut self) -> u64 {
        *self.count += 1;
        *self.count
    }
    #[query]
    fn has(&self, name: &str) -> (bool, u64) {
        (self.names.contains_key(name), *self.count)
    }
}

#[test]
fn service_with_content_at_first_is_the_same_behind_snapshot() {
    let mut rig = Rig::<Filled>::new(Retention::default());
    assert_eq!(rig.machine.header.version, 0);
    let mut early = rig.copied(7);
    for rig in [&mut rig, &mut early] {
        assert_eq!(rig.query("has", &("a",)), Ok((true, 5u64)));
        assert!(
            rig.ordered::<bool>("remove", &("a",))
                .expect("executed")
                .value
        );
    }
    let mut late = rig.copied(7);
    for rig in [&mut rig, &mut early, &mut late] {
        assert_eq!(rig.query("has", &("a",)), Ok((false, 5u64)));
        let counted = rig.ordered::<u64>("count", &()).expect("executed");
        assert_eq!((counted.value, counted.version), (6, Version(2)));
        let (_, told) = rig.past::<()>(Kind::QueryAtVersion(0), 100, "count");
        assert!(told.is_err(), "it is no query");
    }
    assert_eq!(rig.machine.digest(), early.machine.digest());
    assert_eq!(rig.machine.digest(), late.machine.digest());
    assert_eq!(rig.machine.memory(), early.machine.memory());
    assert_eq!(rig.machine.memory(), late.machine.memory());
}

/// Values that this format cannot write, or not read back.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u64),
    Text(String),
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct Flat {
    #[serde(flatten)]
    rest: BTreeMap<String, u64>,
}

#[derive(Default, Service)]
struct Strange {
    kept: PersistentMap<u8, Untagged>,
    flat: PersistentMap<u8, Flat>,
    count: Persistent<u64>,
}

#[service]
impl Strange {
    #[ordered]
    fn put(&mut self, number: u64) {
        *self.count += 1;
        self.kept.insert(1, Untagged::Number(number));
        self.kept.insert(2, Untagged::Text(String::new()));
    }
    #[ordered]
    fn flat(&mut self) {
        *self.count += 1;
        self.flat.insert(1, Flat::default());
    }
    #[ordered]
    fn count(&mut self) -> u64 {
        *self.count += 1;
        *self.count
    }
    #[query]
    fn counted(&self) -> u64 {
        *self.count
    }
}

#[test]
fn value_that_cannot_be_kept_stops_its_shard_and_no_replica() {
    for (method, text) in [
        ("put", "cannot be read back"),
        ("flat", "cannot be written"),
    ] {
        let mut rig = Rig::<Strange>::new(Retention::default());
        rig.ordered::<u64>("count", &()).expect("executed");
        let refused = match method {
            "put" => rig.ordered::<()>("put", &(7u64,)),
            _ => rig.ordered::<()>("flat", &()),
        };
        let refused = refused.expect_err("it cannot be kept").to_string();
        assert!(refused.contains(text), "{refused}");
        let copy = rig.copied(10);
        assert_eq!(copy.machine.digest(), rig.machine.digest());
        let (_, told) = copy.past::<u64>(Kind::QueryAtVersion(1), 100, "counted");
        assert_eq!(told.expect("the past is there").value, 1);
    }
}

#[test]
fn stopped_source_still_settles_and_tells_its_outbox() {
    let mut source = payer();
    source
        .ordered::<()>("pay", &(&vec![0usize, 1], 1u64))
        .expect("executed");
    let failed = source.ordered::<()>("pay", &(&vec![9usize], 1u64));
    assert!(matches!(
        failed,
        Err(CallError::Panicked { stopped: true, .. })
    ));
    assert_eq!(source.outbox().len(), 2);
    let call = Call::encode(Kind::Settle, 0, &("account/0", 1u64));
    let _: call::Anything = source.order(&call).expect("settled");
    assert_eq!(source.outbox().len(), 1);
}

#[test]
fn command_without_a_version_moves_time_all_the_same() {
    let mut rig = Rig::<Cache>::new(Retention::default());
    let floor = rig.time + 50;
    let set = rig
        .after::<()>(floor, "set", &(1u8, 2u8))
        .expect("executed");
    assert!(set.time.0.0 > floor);
    let call = Call::encode(Kind::Query, number::<Cache>("get"), &(1u8,));
    let mut reply = Vec::new();
    rig.machine.query(&rig.at(), &call, &mut reply);
    assert_eq!(
        call::time_of(&reply),
        Some(set.time.0.0),
        "what it shows is as late"
    );
}

/// Tells, and has no past.
#[derive(Default, Service)]
struct Teller {
    told: Volatile<u64>,
}

#[service]
impl Teller {
    #[ordered]
    fn tell(&mut self, context: &mut CallContext, text: &str, times: u64) {
        *self.told += times;
        for _ in 0..times {
            context.notify("news", text);
        }
    }
    #[gather]
    fn rank(&self, place: &Place) -> (usize, u64) {
        let other = place.sibling::<Teller>("other").map(|it| *it.told);
        (place.rank(), other.unwrap_or(*self.told))
    }
}

#[test]
fn notifications_are_bounded_state_in_the_order_of_commands() {
    let mut rig = Rig::<Teller>::new(Retention::default());
    let tell = |rig: &mut Rig<Teller>, text: &str, times: u64| {
        rig.ordered::<()>("tell", &(text, times))
            .map(|done| done.version)
    };
    let told = |rig: &Rig<Teller>, from: u64| rig.machine.notices.told("news", from);
    for number in 1..=3 {
        tell(&mut rig, &number.to_string(), 2).expect("executed");
    }
    let all = told(&rig, 2);
    let texts: Vec<_> = all
        .notices
        .iter()
        .map(|it| (it.number, &*it.text))
        .collect();
    assert_eq!(texts, [(2, "1"), (3, "2"), (4, "2"), (5, "3"), (6, "3")]);
    assert_eq!((all.oldest, all.next), (1, 7));
    assert_eq!(rig.machine.notices.told("other", 2).notices, []);
    assert_eq!(told(&rig, 0).next, 7);
    // A lagging member has not made the one that is asked for.
    assert_eq!(told(&rig, 9).next, 9);
    let long = "x".repeat(16 << 10);
    for _ in 0..70 {
        tell(&mut rig, &long, 1).expect("executed");
    }
    assert!(rig.machine.notices.bytes() <= 1 << 20);
    let some = told(&rig, 70);
    assert!(some.notices.len() < 7 && some.next < 76, "a part at once");
    assert_eq!(told(&rig, some.next).notices[0].number, some.next);
    let mut copy = rig.copied(5);
    assert_eq!(copy.machine.digest(), rig.machine.digest());
    assert_eq!(told(&copy, 1), told(&rig, 1));
    tell(&mut copy, "other", 1).expect("executed");
    assert_ne!(copy.machine.digest(), rig.machine.digest());
    tell(&mut copy, &long, 65).expect_err("too many");
    assert_eq!(copy.machine.notices.last(), 77);
}

#[test]
fn gather_is_answered_at_its_mark_by_the_member_asked() {
    let mut rig = Rig::<Teller>::new(Retention::default());
    let here = Here {
        member: 5,
        ..Here::default()
    };
    rig.machine = ServiceMachine::new(Retention::default()).at_member(here.clone());
    rig.ordered::<()>("tell", &("a", 3u64)).expect("executed");
    let mut reply = Vec::new();
    let mark = Call::encode_with(Kind::Mark(0), 0, |_| {});
    rig.machine.apply(&rig.at(), &mark, &mut reply);
    let version = call::open_answer(&reply, "it/0").expect("marked").version;
    assert_eq!(version.0, 1, "its changes make none");
    let asked = |rig: &Rig<Teller>, member: u16, kind: Kind, ticket: u64| {
        let placed = Around::Placed(call::Placed {
            member,
            members: vec![2, 5],
            shard: 0,
            ticket,
        });
        let call = Call::encode(kind, number::<Teller>("rank"), &());
        let mut reply = Vec::new();
        let answer = rig
            .machine
            .query_at(&rig.at(), &placed.put(&call), &mut reply);
        let read = call::read_answer::<(usize, u64)>(&reply, "it/0");
        (answer, read.map(|done| done.value))
    };
    let (answer, told) = asked(&rig, 5, Kind::QueryFrom(1), 0);
    assert_eq!((answer, told), (PastAnswer::Done, Ok((1, 3))));
    assert_eq!(asked(&rig, 5, Kind::QueryFrom(2), 0).0, PastAnswer::NotYet);
    let shard = "it/0".to_owned();
    let not_there = Err(CallError::NotThere { shard, member: 2 });
    assert_eq!(asked(&rig, 2, Kind::QueryFrom(1), 0).1, not_there);
    // A sibling lends its state.
    assert_eq!(
        asked(&rig, 5, Kind::QueryFrom(1), 9).1,
        Err(CallError::Busy)
    );
    let mut other = Rig::<Teller>::new(Retention::default());
    other.machine = ServiceMachine::new(Retention::default()).at_member(here);
    other.ordered::<()>("tell", &("b", 7u64)).expect("executed");
    let lend = |member: u16| {
        let loan = Around::Lent(call::Loan {
            member,
            ticket: 9,
            subgroup: "other",
        });
        let call = Call::encode_with(Kind::Query, 0, |_| {});
        let mut reply = Vec::new();
        let machine = &other.machine;
        machine.query(&other.at(), &loan.put(&call), &mut reply);
        call::open_answer(&reply, "other/0").is_ok()
    };
    assert!(!lend(2) && lend(5));
    assert_eq!(asked(&rig, 5, Kind::QueryFrom(1), 9).1, Ok((1, 7)));
    // The query goes elsewhere, and says so to the member where it does not come.
    let give_back = |member: u16| {
        let call = Call::encode_with(Kind::Query, 0, |_| {});
        let (returned, mut reply) = (Around::Returned(member, 9), Vec::new());
        let machine = &other.machine;
        machine.query(&other.at(), &returned.put(&call), &mut reply);
        call::open_answer(&reply, "other/0").is_ok()
    };
    assert!(lend(5) && !give_back(2) && give_back(5));
    assert!(other.machine.here.lending.take(9).is_none());
    let plain = rig.query::<(usize, u64)>("rank", &());
    let shard = "it/0".to_owned();
    assert_eq!(plain, Err(CallError::Schema { shard }), "without a place");
}

#[test]
fn query_with_a_place_is_another_method_than_one_without() {
    mod one {
        use super::*;
        #[derive(Default, Service)]
        pub struct Same {
            value: Persistent<u64>,
        }
        #[service]
        impl Same {
            #[query]
            fn get(&self) -> u64 {
                *self.value
            }
        }
    }
    mod other {
        use super::*;
        #[derive(Default, Service)]
        pub struct Same {
            value: Persistent<u64>,
        }
        #[service]
        impl Same {
            #[query]
            fn get(&self, place: &Place) -> u64 {
                *self.value + place.rank() as u64
            }
        }
    }
    let one = ServiceMachine::<one::Same>::new(Retention::default()).terms();
    let other = ServiceMachine::<other::Same>::new(Retention::default()).terms();
    let differ = one.iter().zip(&other).filter(|(one, other)| one != other);
    let names: Vec<_> = differ.map(|(one, _)| one.0.clone()).collect();
    assert_eq!(names, ["Same.get"]);
}

//! Calls that depend on the member that answers: gathers, queries that are told their place, calls to
//! members in other processes.

use quintet::groups::{
    CallContext, CallError, CallServer, Client, Followed, Group, Persistent, PersistentMap, Place,
    Service, Version, Volatile, VolatileMap, service,
};
use quintet::runtime::resp_client::{Reply, command, read};
use std::{
    collections::BTreeSet,
    future::Future,
    io::{BufReader, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake},
    thread::Thread,
    time::Duration,
};

const LONG: Duration = Duration::from_secs(30);

/// Numbers, in which each member searches a part.
#[derive(Default, Service)]
struct Numbers {
    all: PersistentMap<u64, u64>,
    sum: Persistent<u64>,
}

#[service]
impl Numbers {
    #[ordered]
    fn add(&mut self, number: u64) -> u64 {
        *self.sum += number;
        self.all.insert(number, number);
        *self.sum
    }
    /// The rank of this member, the sum of its part, and the sum of all.
    #[gather]
    fn part(&self, place: &Place, from: u64) -> (usize, u64, u64) {
        let count = place.members().len() as u64;
        let mine = |it: &&u64| **it >= from && **it % count == place.rank() as u64;
        let part = self.all.iter().map(|(it, _)| it).filter(mine).sum();
        (place.rank(), part, *self.sum)
    }
    #[gather]
    fn fails_at(&self, place: &Place, rank: usize) -> usize {
        assert_ne!(place.rank(), rank, "this one");
        place.rank()
    }
    #[query]
    fn member(&self, place: &Place) -> (usize, u64) {
        (place.member(), *self.sum)
    }
}

/// The same without a past.
#[derive(Default, Service)]
struct Newest {
    value: Volatile<u64>,
}

#[service]
impl Newest {
    #[ordered]
    fn set(&mut self, value: u64) {
        *self.value = value;
    }
    #[gather]
    fn value(&self, place: &Place) -> (usize, u64) {
        (place.member(), *self.value)
    }
}

#[test]
fn members_answer_a_gather_at_one_version_with_their_ranks() {
    for protocol in quintet::protocols() {
        let group = Group::local(3).protocol(protocol);
        let group = group.one::<Numbers>("numbers").start().expect("it starts");
        group.wait_ready(LONG).expect("it answers");
        let numbers = group.shard::<Numbers>("numbers", 0).expect("there is one");
        for number in 1..=20 {
            numbers.ordered().add(number).wait().expect("added");
        }
        let stops = Arc::new(AtomicBool::new(false));
        let writer = {
            let (numbers, stops) = (numbers.clone(), stops.clone());
            std::thread::spawn(move || {
                for number in 21.. {
                    if stops.load(Ordering::Relaxed) {
                        break;
                    }
                    // One that is not acknowledged is of no interest here.
                    drop(numbers.ordered().add(number).wait());
                }
            })
        };
        let mut sum = 0;
        for _ in 0..10 {
            let replies = numbers.gather().part(1).all().expect(protocol);
            let ranks: Vec<_> = replies.iter().map(|(at, it)| (*at, it.0)).collect();
            assert_eq!(ranks, [(0, 0), (1, 1), (2, 2)], "{protocol}");
            let whole: BTreeSet<_> = replies.iter().map(|(_, it)| it.2).collect();
            assert_eq!(whole.len(), 1, "{protocol}: {replies:?}");
            let parts: u64 = replies.iter().map(|(_, it)| it.1).sum();
            assert!(whole.contains(&parts), "{protocol}: {replies:?}");
            assert!(parts >= sum, "{protocol}");
            sum = numbers.ordered().add(0).wait().expect("added");
        }
        stops.store(true, Ordering::Relaxed);
        writer.join().expect("no panic");
    }
}

#[test]
fn state_without_versions_answers_with_what_was_set_before() {
    for protocol in quintet::protocols() {
        let group = Group::local(3).protocol(protocol);
        let group = group.one::<Newest>("newest").start().expect("it starts");
        group.wait_ready(LONG).expect("it answers");
        let newest = group.shard::<Newest>("newest", 0).expect("there is one");
        for value in 1..=20 {
            newest.ordered().set(value).wait().expect("set");
            let replies = newest.gather().value().all().expect(protocol);
            let expected: Vec<_> = (0..3).map(|member| (member, (member, value))).collect();
            assert_eq!(replies, expected, "{protocol}");
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn member_that_fails_or_has_stopped_is_named_by_a_gather() {
    let group = Group::local(3).one::<Numbers>("numbers");
    let group = group.start().expect("it starts");
    group.wait_ready(LONG).expect("it answers");
    let numbers = group.shard::<Numbers>("numbers", 0).expect("there is one");
    let mut failed = 0;
    for (member, reply) in numbers.gather().fails_at(1) {
        match reply {
            Ok(rank) => assert_eq!(rank, member),
            Err(error) => {
                assert_eq!(member, 1);
                assert!(error.to_string().contains("this one"), "{error}");
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 1);
    // The shard has not stopped for that.
    assert_eq!(numbers.ordered().add(5).wait(), Ok(5));
    let first = numbers.gather().fails_at(1).first().expect("some do not");
    assert_ne!(first, 1);
    group.stop_member(2);
    let mut replies = numbers.gather().part(1);
    let mut told = Vec::new();
    while let Some((member, reply)) = block_on(replies.next()) {
        told.push((member, reply.map(|it| it.2)));
    }
    told.sort_by_key(|(member, _)| *member);
    let stopped = Err(CallError::Stopped);
    assert_eq!(told, [(0, Ok(5)), (1, Ok(5)), (2, stopped.clone())]);
    let one = numbers.member(1).gather().part(1).all();
    assert_eq!(one, Ok(vec![(1, (1, 0, 5))]));
    assert_eq!(
        numbers.member(2).query().member().wait(),
        Err(CallError::Stopped)
    );
    let none = numbers.member(7).query().member().wait();
    let shard = "numbers/0".to_owned();
    assert_eq!(none, Err(CallError::NotThere { shard, member: 7 }));
    assert_eq!(
        numbers.member(7).ordered().add(1).wait(),
        Err(CallError::NoSuchMember { member: 7 })
    );
    drop(group);
    assert_eq!(
        numbers.gather().part(1).first(),
        Err(CallError::Stopped),
        "the members have stopped"
    );
}

#[derive(Default, Service)]
struct Store {
    items: PersistentMap<String, u64>,
}

#[service]
impl Store {
    #[ordered]
    fn put(&mut self, context: &mut CallContext, shard: usize, key: String, value: u64) -> Version {
        let version = context.version();
        let changed = Notice::calls().changed(key.clone(), version);
        context.then("notice", shard, changed);
        self.items.insert(key, value);
        version
    }
    #[query]
    fn get(&self, key: &str) -> Option<(Version, u64)> {
        let (version, value) = self.items.get_versioned(key)?;
        Some((version, *value))
    }
}

#[derive(Default, Service)]
struct Notice {
    newest: VolatileMap<String, Version>,
}

#[service]
impl Notice {
    #[ordered]
    fn changed(&mut self, key: String, version: Version) {
        self.newest.insert(key, version);
    }
}

#[derive(Default, Service)]
struct Cache {
    filled: VolatileMap<String, (Version, u64)>,
}

#[service]
impl Cache {
    #[ordered]
    fn fill(&mut self, key: String, version: Version, value: u64) {
        self.filled.insert(key, (version, value));
    }
    #[query]
    fn get(&self, place: &Place, key: &str) -> Option<u64> {
        let (version, value) = self.filled.get(key)?;
        let newest = place.sibling::<Notice>("notice").expect("it is read");
        assert!(
            place.sibling::<Store>("notice").is_none(),
            "of another type"
        );
        assert!(place.sibling::<Store>("store").is_none(), "it is not read");
        let newest = newest.newest.get(key);
        newest
            .is_none_or(|newest| newest <= version)
            .then_some(*value)
    }
    #[query]
    fn shard(&self, place: &Place) -> (usize, usize) {
        (place.shard(), place.member())
    }
}

const WAREHOUSE: &str = r#"
[[subgroup]]
name = "store"
service = "Store"
shards = 2
members = { min = 1, max = 2 }
nodes = [0, 1]
hands_off_to = ["notice"]

[[subgroup]]
name = "notice"
service = "Notice"
shards = 2
pin = [[1, 2, 3], [1, 2, 4]]

[[subgroup]]
name = "cache"
service = "Cache"
pin = [[0, 1, 2], [1, 2, 4]]
reads = ["notice"]
"#;

fn warehouse(directory: &Path) -> Group {
    let group = Group::local(5).layout(WAREHOUSE).directory(directory);
    let group = group.serve::<Store>().serve::<Notice>().serve::<Cache>();
    let group = group.start().expect("it starts");
    group.wait_ready(LONG).expect("all answer");
    group
}

/// Reads through the cache, as a balancer does.
fn through_cache(group: &Group, shard: usize, key: &str) -> Result<Option<u64>, CallError> {
    let cache = group.shard::<Cache>("cache", shard)?;
    if let Some(value) = cache.query().get(key).wait()? {
        return Ok(Some(value));
    }
    let store = group.shard::<Store>("store", shard)?;
    let Some((version, value)) = store.query().get(key).wait()? else {
        return Ok(None);
    };
    cache
        .ordered()
        .fill(key.to_owned(), version, value)
        .wait()?;
    Ok(Some(value))
}

/// The notices are at the members of both, and only those of the store send.
const UNION: &str = r#"
[[subgroup]]
name = "store"
service = "Store"
members = { min = 1, max = 2 }
nodes = [0, 1]
hands_off_to = ["notice"]

[[subgroup]]
name = "cache"
service = "Cache"
members = { min = 1, max = 2 }
nodes = [2, 3, 4]
reads = ["notice"]

[[subgroup]]
name = "notice"
service = "Notice"
union_of = ["store", "cache"]
senders_from = "store"
"#;

#[test]
fn query_reads_a_union_at_members_that_do_not_send() {
    let group = Group::local(5).layout(UNION).serve::<Store>();
    let group = group.serve::<Notice>().serve::<Cache>();
    let group = group.start().expect("it starts");
    group.wait_ready(LONG).expect("all answer");
    let store = group.shard::<Store>("store", 0).expect("there is one");
    for round in 1..=20u64 {
        let put = store.ordered().put(0, "a".to_owned(), round);
        put.handed_off().expect("the notice has it");
        assert_eq!(through_cache(&group, 0, "a"), Ok(Some(round)));
        let cache = group.shard::<Cache>("cache", 0).expect("there is one");
        assert_eq!(cache.query().get("a").wait(), Ok(Some(round)));
    }
}

#[test]
fn query_reads_a_sibling_with_all_that_was_handed_off_to_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let group = warehouse(directory.path());
    for round in 1..=30u64 {
        let shard = (round % 2) as usize;
        let store = group.shard::<Store>("store", shard).expect("there is one");
        let put = store.ordered().put(shard, "a".to_owned(), round);
        put.handed_off().expect("the notice has it");
        // From the store, and from the cache.
        assert_eq!(through_cache(&group, shard, "a"), Ok(Some(round)));
        assert_eq!(through_cache(&group, shard, "a"), Ok(Some(round)));
        let cache = group.shard::<Cache>("cache", shard).expect("there is one");
        assert_eq!(cache.query().get("a").wait(), Ok(Some(round)));
    }
    let cache = group.shard::<Cache>("cache", 0).expect("there is one");
    let places = (0..6).map(|_| cache.query().shard().wait().expect("told"));
    let places: BTreeSet<_> = places.collect();
    assert_eq!(
        places,
        BTreeSet::from([(0, 1), (0, 2)]),
        "both, and only those"
    );
    let not_there = cache.member(0).query().get("a").wait();
    let shard = "notice/0".to_owned();
    assert_eq!(not_there, Err(CallError::NotThere { shard, member: 0 }));
    assert!(cache.stale().get("a").wait().is_ok());
    group.stop_member(2);
    group.wait_ready(LONG).expect("the others suffice");
    assert_eq!(cache.query().get("a").wait(), Ok(Some(30)));
    assert_eq!(
        cache.query().shard().wait(),
        Ok((0, 1)),
        "the one that is left"
    );
}

/// Sends a command as clients of Redis do; the answer is a text, a number or an error.
fn redis(stream: &mut TcpStream, words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|it| it.as_bytes()).collect();
    stream.write_all(&command(&words)).expect("sent");
    match read(&mut BufReader::new(stream), 1 << 20).expect("answered") {
        Reply::Text(bytes) => String::from_utf8(bytes).expect("UTF-8"),
        Reply::Error(text) => text,
        other => format!("{other:?}"),
    }
}

fn free_addresses(count: usize) -> Vec<String> {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let listeners: Vec<_> = listeners.collect();
    let address = |it: &TcpListener| it.local_addr().expect("bound").to_string();
    listeners.iter().map(address).collect()
}

#[test]
fn members_in_other_processes_are_called_where_they_serve_calls() {
    let directory = tempfile::tempdir().expect("a directory");
    let addresses = free_addresses(6);
    let (peers, calls) = addresses.split_at(3);
    let member = |id: u16, calls: &[String]| {
        let data = directory.path().join(format!("{}-{id}", calls.len()));
        let group = Group::member("numbers", id, peers, data);
        let group = group.calls_at(calls).one::<Numbers>("numbers");
        group.start().expect("it starts")
    };
    let start = |calls: &[String]| -> Vec<Group> {
        let groups: Vec<_> = (0..3).map(|id| member(id, calls)).collect();
        for group in &groups {
            group.wait_ready(LONG).expect("it answers");
        }
        groups
    };
    let groups = start(&[]);
    let numbers = groups[0].shard::<Numbers>("numbers", 0).expect("one");
    assert_eq!(numbers.ordered().add(5).wait(), Ok(5));
    assert_eq!(numbers.member(0).query().member().wait(), Ok((0, 5)));
    assert_eq!(
        numbers.member(2).query().member().wait(),
        Err(CallError::NoWay { member: 2 })
    );
    let replies: Vec<_> = numbers.gather().part(1).into_iter().collect();
    assert!(replies.contains(&(0, Ok((0, 0, 5)))), "{replies:?}");
    assert!(replies.contains(&(1, Err(CallError::NoWay { member: 1 }))));
    drop(groups);
    let groups = start(calls);
    let numbers = groups[0].shard::<Numbers>("numbers", 0).expect("one");
    assert_eq!(numbers.ordered().add(6).wait(), Ok(6));
    for member in 0..3 {
        let told = numbers.member(member).query().member().wait();
        assert_eq!(told, Ok((member, 6)));
    }
    let expected = vec![(0, (0, 6, 6)), (1, (1, 0, 6)), (2, (2, 0, 6))];
    assert_eq!(numbers.gather().part(1).all(), Ok(expected.clone()));
    // A client asks one server, which asks the others.
    let client = Client::connect(&calls[1..2]).expect("it answers");
    let theirs = client.shard::<Numbers>("numbers", 0).expect("one");
    assert_eq!(theirs.gather().part(1).all(), Ok(expected));
    assert_eq!(theirs.member(2).query().member().wait(), Ok((2, 6)));
    let wrong = Group::local(3).calls_at(calls).one::<Numbers>("numbers");
    let wrong = wrong.start().expect_err("no processes").to_string();
    assert!(wrong.contains("all members run in this process"), "{wrong}");
}

#[test]
fn clients_elsewhere_gather_and_read_siblings() {
    let directory = tempfile::tempdir().expect("a directory");
    let group = warehouse(directory.path());
    let server: CallServer = group.serve_calls("127.0.0.1:0").expect("it listens");
    let client = Client::connect(&[server.address().to_string()]).expect("it answers");
    let store = client.shard::<Store>("store", 1).expect("there is one");
    let cache = client.shard::<Cache>("cache", 1).expect("there is one");
    let fill = cache.ordered().fill("a".to_owned(), Version(1), 7);
    fill.wait().expect("filled");
    assert_eq!(cache.query().get("a").wait(), Ok(Some(7)));
    for value in [7, 8] {
        let put = store.ordered().put(1, "a".to_owned(), value);
        put.handed_off().expect("the notice has it");
    }
    assert_eq!(cache.query().get("a").wait(), Ok(None));
    let mut stream = TcpStream::connect(server.address()).expect("it answers");
    let mut ask = |words: &[&str]| redis(&mut stream, words);
    assert_eq!(ask(&["QUINTET.CALL", "cache/1", "get", r#"["a"]"#]), "null");
    let place = ask(&["QUINTET.CALL", "cache/1", "shard"]);
    assert!(["[1,1]", "[1,2]", "[1,4]"].contains(&&*place), "{place}");
    let refused = ask(&["QUINTET.RAW", "1", "members@x", ""]);
    assert!(refused.starts_with("ERR"), "{refused}");
}

#[test]
fn clients_of_redis_gather_replies_in_json() {
    let group = Group::local(2).one::<Numbers>("numbers");
    let group = group.start().expect("it starts");
    group.wait_ready(LONG).expect("it answers");
    let server = group.serve_calls("127.0.0.1:0").expect("it listens");
    let mut stream = TcpStream::connect(server.address()).expect("it answers");
    let mut ask = |words: &[&str]| redis(&mut stream, words);
    assert_eq!(ask(&["QUINTET.CALL", "numbers/0", "add", "[3]"]), "3");
    assert_eq!(
        ask(&["QUINTET.CALL", "numbers/0", "part", "[1]"]),
        r#"[{"member":0,"value":[0,0,3]},{"member":1,"value":[1,3,3]}]"#
    );
    let failed = ask(&["QUINTET.CALL", "numbers/0", "fails_at", "[0]"]);
    assert!(
        failed.contains(r#"{"member":0,"error":"method 'fails_at'"#),
        "{failed}"
    );
    assert!(failed.contains(r#"{"member":1,"value":1}"#), "{failed}");
}

#[test]
fn layout_with_unreadable_shards_is_refused_by_name() {
    let start = |cache: &str| {
        let layout = format!(
            "[[subgroup]]\nname = 'notice'\nservice = 'Notice'\npin = [[0], [1]]\n\
             [[subgroup]]\nname = 'cache'\nservice = 'Cache'\n{cache}"
        );
        let group = Group::local(3).protocol("multipaxos").layout(layout);
        let group = group.serve::<Notice>().serve::<Cache>();
        group.start().expect_err(cache).to_string()
    };
    for (cache, why) in [
        ("reads = ['notice']", "as many shards as 'notice'"),
        ("reads = ['none']", "no other subgroup"),
        ("reads = ['cache']", "no other subgroup"),
        (
            "reads = ['notice']\npin = [[0, 1], [0, 2]]",
            "shard cache/1 has no member",
        ),
    ] {
        let refused = start(cache);
        assert!(refused.contains(why), "{cache}: {refused}");
    }
}

/// Tells of every number, and of the even ones by another name.
#[derive(Default, Service)]
struct Teller {
    last: Persistent<u64>,
}

#[service]
impl Teller {
    #[ordered]
    fn tell(&mut self, context: &mut CallContext, number: u64) {
        *self.last = number;
        if number.is_multiple_of(2) {
            context.notify("even", number.to_string());
        }
        context.notify("all", format!("number {number}"));
    }
    #[ordered]
    fn fail(&mut self, context: &mut CallContext) {
        context.notify("all", "never");
        panic!("told");
    }
}

const TELLERS: &str = "[[subgroup]]\nname = 'teller'\nservice = 'Teller'\nshards = 2";

fn text(followed: Result<Option<Followed>, CallError>) -> String {
    match followed.expect("told").expect("in time") {
        Followed::Told(told) => format!("{} {} {}", told.shard, told.number, told.text),
        Followed::Missed { shard, first, last } => format!("{shard} missed {first} to {last}"),
    }
}

#[test]
fn follower_is_told_what_commands_told_in_their_order() {
    for protocol in quintet::protocols() {
        let group = Group::local(3).protocol(protocol).layout(TELLERS);
        let group = group.serve::<Teller>().start().expect("it starts");
        group.wait_ready(LONG).expect("all answer");
        let tellers = group.all::<Teller>("teller").expect("there are two");
        let tell = |shard: usize, number| tellers[shard].ordered().tell(number).wait();
        tell(0, 2).expect("told before it follows");
        let mut all = group.follow("all").expect("they answer");
        let mut even = group.follow("even").expect("they answer");
        let nothing = all.next_within(Duration::ZERO);
        assert_eq!(nothing, Ok(None), "{protocol}");
        let mut expected = [Vec::new(), Vec::new()];
        for number in 3..=20 {
            let shard = (number % 3 % 2) as usize;
            tell(shard, number).expect(protocol);
            expected[shard].push(format!("number {number}"));
            if number == 10 {
                group.stop_member(0);
            }
        }
        let mut told = [Vec::new(), Vec::new()];
        for _ in 3..=20 {
            match all.next_within(LONG).expect("told").expect("in time") {
                Followed::Told(it) => told[usize::from(it.shard == "teller/1")].push(it.text),
                missed @ Followed::Missed { .. } => panic!("{protocol}: {missed:?}"),
            }
        }
        assert_eq!(told, expected, "{protocol}");
        assert_eq!(all.next_within(Duration::ZERO), Ok(None), "{protocol}");
        let number = |told: String| told.split(' ').next_back()?.parse::<u64>().ok();
        let first = number(text(even.next_within(LONG)));
        // Another one continues where this one was.
        let mut positions: Vec<_> = even.positions().collect();
        positions.sort();
        drop(even);
        let mut even = group.follow("even").expect("they answer");
        for (shard, number) in positions {
            even = even.from(&shard, number);
        }
        let rest = (0..8).map(|_| number(text(even.next_within(LONG))));
        let numbers: BTreeSet<_> = rest.chain([first]).flatten().collect();
        assert_eq!(numbers, (4..=20).step_by(2).collect(), "{protocol}");
    }
}

#[test]
fn follower_that_is_late_is_told_what_it_missed() {
    let group = Group::local(1).one::<Teller>("teller");
    let group = group.start().expect("it starts");
    group.wait_ready(LONG).expect("it answers");
    let teller = group.shard::<Teller>("teller", 0).expect("there is one");
    let calls: Vec<_> = (1..=1100).map(|_| teller.ordered().tell(1)).collect();
    for call in calls {
        call.wait().expect("told");
    }
    let follower = group.follow("all").expect("it answers");
    let mut follower = follower.from("teller/0", 1);
    assert_eq!(text(follower.next_within(LONG)), "teller/0 missed 1 to 76");
    assert_eq!(text(follower.next_within(LONG)), "teller/0 77 number 1");
    let server = group.serve_calls("127.0.0.1:0").expect("it listens");
    let client = Client::connect(&[server.address().to_string()]).expect("it answers");
    let mut theirs = client.follow("all").expect("it answers");
    let mut stream = TcpStream::connect(server.address()).expect("it answers");
    let mut ask = |words: &[&str]| {
        let mut all = vec!["QUINTET.FOLLOW"];
        all.extend(words);
        redis(&mut stream, &all)
    };
    let list =
        |next: u64, missed: u64| format!("List([Number({next}), Number({missed}), List([])])");
    assert_eq!(ask(&["teller/0", "all"]), list(1101, 0));
    assert_eq!(ask(&["teller/0", "none", "FROM", "1"]), list(1101, 76));
    teller.ordered().tell(3).wait().expect("told");
    let told = ask(&["teller/0", "all", "from", "1101", "wait", "5000"]);
    assert!(
        told.starts_with("List([Number(1102), Number(0), List([List([Number(1101)"),
        "{told}"
    );
    assert_eq!(text(theirs.next_within(LONG)), "teller/0 1101 number 3");
    for wrong in [
        &["teller/0"][..],
        &["teller/0", "all", "FROM"],
        &["teller/0", "all", "FROM", "0"],
        &["teller/0", "all", "WAIT", "long"],
    ] {
        assert!(ask(wrong).contains("usage"), "{wrong:?}");
    }
    assert!(ask(&["teller/9", "all"]).contains("there is no shard"));
    teller.ordered().fail().wait().expect_err("it panics");
    let mut last = group
        .follow("all")
        .expect("its past is there")
        .from("teller/0", 1101);
    assert_eq!(text(last.next_within(LONG)), "teller/0 1101 number 3");
    assert_eq!(last.next_within(Duration::ZERO), Ok(None));
    drop((server, group));
    assert_eq!(last.next(), None, "the group has stopped");
}

//! Groups of services as a program uses them: calls, versions, failures, restarts.

use quintet::groups::{
    CallContext, CallError, CallServer, Client, Done, Group, Pending, Persistent, PersistentMap,
    Retention, Service, Shard, Version, VolatileMap, When, service,
};
use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake},
    thread::Thread,
    time::{Duration, SystemTime},
};

#[derive(Default, Service)]
struct Store {
    items: PersistentMap<String, Vec<u8>>,
    seen: VolatileMap<String, u64>,
    writes: Persistent<u64>,
}

#[service]
impl Store {
    /// Puts a value under a key and tells the version that it made.
    #[ordered]
    fn put(&mut self, context: &mut CallContext, key: String, value: &[u8]) -> Version {
        *self.writes += 1;
        self.seen.insert(key.clone(), context.chance());
        self.items.insert(key, value.to_vec());
        context.version()
    }
    #[ordered]
    fn fail(&mut self, text: &str) -> u64 {
        *self.writes += 1;
        assert!(text.is_empty(), "{text}");
        *self.writes
    }
    #[query]
    fn chance_of(&self, key: &str) -> Option<u64> {
        self.seen.get(key).copied()
    }
}

/// The same without a field that has no past.
#[derive(Default, Service)]
struct Counter {
    value: Persistent<u64>,
}

#[service]
impl Counter {
    #[ordered]
    fn add(&mut self, by: u64) -> u64 {
        *self.value += by;
        *self.value
    }
    #[query]
    fn value(&self) -> u64 {
        *self.value
    }
}

fn counter(group: &Group) -> Shard<Counter> {
    group.shard("counter", 0).expect("there is one")
}

#[test]
fn every_protocol_executes_calls_once_and_keeps_versions() {
    for protocol in quintet::protocols() {
        let group = Group::local(3).protocol(protocol);
        let group = group.one::<Counter>("counter").start().expect("it starts");
        let counter = counter(&group);
        let mut made: Vec<Done<u64>> = Vec::new();
        for by in 1..=10 {
            made.push(counter.ordered().add(by).done().expect(protocol));
        }
        group.stop_member(0);
        let expected: Vec<u64> = (1..=10).map(|upto| upto * (upto + 1) / 2).collect();
        assert_eq!(counter.query().value().wait(), Ok(55), "{protocol}");
        for (done, value) in made.iter().zip(expected) {
            assert_eq!(done.value, value);
            let counter = &counter;
            let ask = |when: When| counter.at(when).value().wait();
            assert_eq!(ask(done.version.into()), Ok(value), "{protocol}");
            assert_eq!(ask(done.time.into()), Ok(value), "{protocol}");
        }
        let history = counter.history(Counter::VALUE, 3).expect(protocol);
        let values: Vec<_> = history.iter().map(|it| (it.version.0, it.value)).collect();
        assert_eq!(values, [(10, 55), (9, 45), (8, 36)], "{protocol}");
    }
}

#[test]
fn group_started_again_in_its_directory_has_its_past() {
    let directory = tempfile::tempdir().expect("a directory");
    let start = || {
        let group = Group::local(3).directory(directory.path());
        group.one::<Counter>("counter").start().expect("it starts")
    };
    let group = start();
    let first = counter(&group).ordered().add(3).done().expect("added");
    counter(&group).ordered().add(4).wait().expect("added");
    drop(group);
    let group = start();
    assert_eq!(counter(&group).query().value().wait(), Ok(7));
    assert_eq!(counter(&group).at(first.version).value().wait(), Ok(3));
    assert_eq!(counter(&group).at(first.time).value().wait(), Ok(3));
}

/// A value that is kept with all its versions.
#[derive(Default, Service)]
struct Document {
    text: Persistent<Vec<u8>>,
}

#[service]
impl Document {
    #[ordered]
    fn set(&mut self, text: &[u8]) {
        *self.text = text.to_vec();
    }
    #[query]
    fn first(&self) -> (Option<u8>, usize) {
        (self.text.first().copied(), self.text.len())
    }
}

/// Files of past values in a directory: they have no names.
#[cfg(target_os = "linux")]
fn unnamed_files_in(directory: &std::path::Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("there");
    let open = open.filter_map(|it| std::fs::read_link(it.ok()?.path()).ok());
    let is_one = |path: &std::path::PathBuf| {
        path.parent() == Some(directory) && path.to_string_lossy().ends_with("(deleted)")
    };
    open.filter(is_one).count()
}

#[cfg(target_os = "linux")]
#[test]
fn past_larger_than_its_memory_is_on_disk_and_answers() {
    const LENGTH: usize = 512 << 10;
    let directory = tempfile::tempdir().expect("a directory");
    let start = || {
        let group = Group::local(2).directory(directory.path());
        let group = group.one::<Document>("document");
        group.start().expect("it starts")
    };
    let document = |group: &Group| -> Shard<Document> { group.shard("document", 0).expect("one") };
    let check = |group: &Group| {
        for version in 1..=100u8 {
            let told = document(group).at(Version(version.into())).first().wait();
            assert_eq!(told, Ok((Some(version), LENGTH)));
        }
        assert!(
            unnamed_files_in(directory.path()) >= 2,
            "one of each member"
        );
    };
    let group = start();
    for version in 1..=100u8 {
        document(&group)
            .ordered()
            .set(&vec![version; LENGTH])
            .wait()
            .expect("set");
    }
    check(&group);
    drop(group);
    assert_eq!(unnamed_files_in(directory.path()), 0);
    check(&start());
}

mod other {
    use super::*;

    /// The same name and state, with another method.
    #[derive(Default, Service)]
    pub struct Counter {
        value: Persistent<u64>,
    }

    #[service]
    impl Counter {
        #[ordered]
        fn add(&mut self, by: u64) -> u64 {
            *self.value += by;
            *self.value
        }
        #[query]
        fn value(&self) -> i64 {
            *self.value as i64
        }
    }
}

#[test]
fn directory_of_a_service_with_other_methods_is_refused_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let local = || Group::local(1).directory(directory.path());
    drop(
        local()
            .one::<Counter>("counter")
            .start()
            .expect("it starts"),
    );
    let refused = local().one::<other::Counter>("counter").start();
    let refused = refused.expect_err("another service").to_string();
    assert!(refused.contains("Counter.value"), "{refused}");
}

#[test]
fn time_that_is_now_is_waited_for_and_its_answer_stays() {
    let group = Group::local(3)
        .one::<Counter>("counter")
        .start()
        .expect("it starts");
    let counter = counter(&group);
    counter.ordered().add(1).wait().expect("added");
    let now = SystemTime::now() + Duration::from_millis(30);
    let at = |time: SystemTime| counter.at(time).value().wait();
    assert_eq!(at(now), Ok(1));
    counter.ordered().add(1).wait().expect("added");
    assert_eq!(at(now), Ok(1));
    assert_eq!(at(SystemTime::UNIX_EPOCH), Ok(0));
    assert_eq!(
        counter.at(Version(9)).value().wait(),
        Err(CallError::NotYet)
    );
    let tomorrow = SystemTime::now() + Duration::from_secs(86_400);
    assert_eq!(at(tomorrow), Err(CallError::NotYet));
    assert!(When::time("yesterday").is_err());
    let when = When::time("2026-01-01T00:00:00Z").expect("a time");
    assert_eq!(counter.at(when).value().wait(), Ok(0));
}

#[test]
fn trimmed_version_is_refused_with_the_oldest_one() {
    let retention = Retention {
        versions: 2,
        ..Retention::default()
    };
    let group = Group::local(1).retain(retention).one::<Counter>("counter");
    let group = group.start().expect("it starts");
    let counter = counter(&group);
    let done: Vec<_> = (0..5)
        .map(|_| counter.ordered().add(1).done().expect("added"))
        .collect();
    let oldest = &done[2];
    let refused = CallError::Trimmed {
        shard: "counter/0".to_owned(),
        oldest: oldest.version,
        time: oldest.time,
    };
    assert_eq!(counter.at(Version(2)).value().wait(), Err(refused.clone()));
    assert_eq!(counter.at(done[0].time).value().wait(), Err(refused));
    assert_eq!(counter.at(oldest.version).value().wait(), Ok(3));
}

#[test]
fn panicking_handler_stops_its_shard_at_every_member() {
    let group = Group::local(3)
        .one::<Store>("store")
        .start()
        .expect("it starts");
    let store = group.shard::<Store>("store", 0).expect("there is one");
    let put = store
        .ordered()
        .put("a".to_owned(), b"1")
        .done()
        .expect("put");
    assert_eq!(put.value, put.version);
    let failed = store
        .ordered()
        .fail("no room")
        .wait()
        .expect_err("it panics");
    assert!(
        failed
            .to_string()
            .contains("no room; the shard has stopped"),
        "{failed}"
    );
    for member in 0..3 {
        let refused = store.member(member).query().chance_of("a").wait();
        assert_eq!(refused, Err(failed.clone()));
    }
}

#[test]
fn chance_is_the_same_at_each_member() {
    let group = Group::local(3)
        .one::<Store>("store")
        .start()
        .expect("it starts");
    let store = group.shard::<Store>("store", 0).expect("there is one");
    store
        .ordered()
        .put("a".to_owned(), &[0; 100_000])
        .wait()
        .expect("put");
    let chances = (0..3).map(|member| store.member(member).query().chance_of("a").wait());
    let chances: Vec<_> = chances
        .map(|it| it.expect("told").expect("it is there"))
        .collect();
    assert!(chances.iter().all(|it| *it == chances[0]), "{chances:?}");
    let history = store
        .history_of(Store::ITEMS, &"a".to_owned(), 5)
        .expect("told");
    assert_eq!(history[0].value.as_deref(), Some(&[0; 100_000][..]));
}

#[test]
fn call_to_another_service_or_a_stopped_group_is_refused() {
    let group = Group::local(2)
        .one::<Counter>("counter")
        .start()
        .expect("it starts");
    let missing = group
        .shard::<Store>("counter", 0)
        .expect_err("another service");
    assert_eq!(
        missing.to_string(),
        "there is no shard 'counter/0' of service 'Store' in this group"
    );
    assert!(group.shard::<Counter>("counter", 1).is_err());
    let counter = counter(&group);
    let pending = counter.ordered().add(1).deadline(Duration::ZERO);
    assert_eq!(pending.wait(), Err(CallError::Uncertain));
    drop(group);
    assert_eq!(counter.ordered().add(1).wait(), Err(CallError::Stopped));
    assert_eq!(
        counter.at(Version(0)).value().wait(),
        Err(CallError::Stopped)
    );
}

/// Calls itself, which would wait without end.
#[derive(Default, Service)]
struct Nested {
    value: Persistent<u64>,
}

static OTHER: std::sync::OnceLock<Shard<Counter>> = std::sync::OnceLock::new();
/// A call that was made outside of the handler that looks at it.
static ELSEWHERE: std::sync::Mutex<Option<Pending<u64>>> = std::sync::Mutex::new(None);

#[service]
impl Nested {
    #[query]
    fn value(&self) -> Option<u64> {
        let asked = OTHER.get()?.query().value().wait();
        assert_eq!(asked, Err(CallError::InsideHandler));
        Some(*self.value)
    }
    #[ordered]
    fn add(&mut self) -> u64 {
        *self.value += 1;
        if let Some(other) = OTHER.get() {
            let asked = other.ordered().add(1).wait();
            assert_eq!(asked, Err(CallError::InsideHandler));
            let asked = other.ordered().add(1).handed_off();
            assert_eq!(asked, Err(CallError::InsideHandler));
            // It is not waited for, and not sent either.
            drop(other.ordered().add(1));
        }
        if let Some(mut elsewhere) = ELSEWHERE.lock().expect("no panic").take() {
            let inside = Err(CallError::InsideHandler);
            assert_eq!(elsewhere.try_get(), Some(inside.clone()));
            assert_eq!(elsewhere.wait(), inside);
        }
        *self.value
    }
}

#[test]
fn handler_that_waits_is_told_that_it_must_not() {
    let group = Group::local(1)
        .one::<Counter>("counter")
        .start()
        .expect("it starts");
    OTHER.set(counter(&group)).expect("once");
    let nested = Group::local(1)
        .one::<Nested>("nested")
        .start()
        .expect("it starts");
    let nested = nested.shard::<Nested>("nested", 0).expect("there is one");
    assert_eq!(nested.query().value().wait(), Ok(Some(0)));
    assert_eq!(nested.ordered().add().wait(), Ok(1));
    *ELSEWHERE.lock().expect("no panic") = Some(counter(&group).query().value());
    assert_eq!(nested.ordered().add().wait(), Ok(2));
    assert_eq!(
        counter(&group).query().value().wait(),
        Ok(0),
        "nothing sent"
    );
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<R>(pending: Pending<R>) -> Result<R, CallError>
where
    Pending<R>: Future<Output = Result<R, CallError>>,
{
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let (mut pending, mut context) = (pin!(pending), Context::from_waker(&waker));
    loop {
        match pending.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn answers_can_be_awaited() {
    let group = Group::local(3)
        .one::<Counter>("counter")
        .start()
        .expect("it starts");
    let counter = counter(&group);
    let calls: Vec<_> = (0..100).map(|_| counter.ordered().add(1)).collect();
    let mut values: Vec<_> = calls
        .into_iter()
        .map(|call| block_on(call).expect("added"))
        .collect();
    values.sort_unstable();
    assert_eq!(values, (1..=100).collect::<Vec<_>>());
    assert_eq!(block_on(counter.query().value()), Ok(100));
    let mut pending = counter.query().value();
    let told = loop {
        if let Some(told) = pending.try_get() {
            break told;
        }
        std::thread::yield_now();
    };
    assert_eq!(told, Ok(100));
}

/// Sends a command as clients of Redis do, and reads one line or one bulk string of the answer.
fn redis(stream: &mut std::net::TcpStream, command: &[&str]) -> String {
    use std::io::{BufRead, BufReader, Write};
    let mut bytes = format!("*{}\r\n", command.len());
    for word in command {
        bytes += &format!("${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(bytes.as_bytes()).expect("sent");
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).expect("answered");
        line.trim_end().to_owned()
    };
    let head = line();
    match head.split_at(1) {
        ("$", _) => line(),
        ("*", count) => {
            let count: usize = count.parse().expect("a count");
            let all = (0..count).map(|_| {
                let head = line();
                if head.starts_with('$') { line() } else { head }
            });
            all.collect::<Vec<_>>().join(" ")
        }
        _ => head,
    }
}

#[test]
fn clients_of_redis_call_services() {
    let directory = tempfile::tempdir().expect("a directory");
    let group = divided(directory.path());
    let server = group.serve_calls("127.0.0.1:0").expect("it listens");
    let mut stream = std::net::TcpStream::connect(server.address()).expect("it answers");
    let mut ask = |command: &[&str]| redis(&mut stream, command);
    assert_eq!(ask(&["PING"]), "+PONG");
    assert_eq!(ask(&["QUINTET.CALL", "counter/1", "add", "[5]"]), "5");
    assert_eq!(ask(&["quintet.call", "counter/1", "add", "[2]"]), "7");
    assert_eq!(ask(&["QUINTET.CALL", "counter/1", "value"]), "7");
    assert_eq!(
        ask(&["QUINTET.CALL", "counter/1", "value", "AT", "v:1"]),
        "5"
    );
    assert_eq!(
        ask(&["QUINTET.CALL", "counter/1", "value", "at", "now"]),
        "7"
    );
    let done = ask(&["QUINTET.CALL", "counter/1", "value", "[]", "DONE"]);
    assert!(done.starts_with("7 :2 :"), "{done}");
    let put = [
        "QUINTET.CALL",
        "store:any",
        "put",
        r#"["a \"key\"", "bytes"]"#,
    ];
    assert_eq!(ask(&put), "1");
    assert_eq!(
        ask(&["QUINTET.CALL", "store/0", "put", r#"["b", [1, 255]]"#]),
        "2"
    );
    let methods = ask(&["QUINTET.METHODS", "counter/0"]);
    assert_eq!(methods, "ordered add(u64) -> u64 query value() -> u64");
    for (command, why) in [
        (
            &["QUINTET.CALL", "counter/1", "add", "[-5]"][..],
            "arguments of 'ordered add(u64)",
        ),
        (
            &["QUINTET.CALL", "counter/1", "value", "[1]"],
            "arguments of 'query value()",
        ),
        (
            &["QUINTET.CALL", "counter/1", "sub", "[5]"],
            "it has add, value",
        ),
        (
            &["QUINTET.CALL", "counter/2", "value"],
            "there is no shard 'counter/2'",
        ),
        (
            &["QUINTET.CALL", "none:a", "value"],
            "there is no shard 'none:a'",
        ),
        (
            &["QUINTET.CALL", "counter/1", "add", "[5]", "AT", "v:1"],
            "'add' is ordered",
        ),
        (
            &["QUINTET.CALL", "counter/1", "value", "AT", "yesterday"],
            "is not a time",
        ),
        (
            &["QUINTET.CALL", "counter/1", "value", "AT", "v:9"],
            "-NOTYET",
        ),
        (
            &[
                "QUINTET.CALL",
                "store/0",
                "chance_of",
                r#"["a"]"#,
                "AT",
                "v:1",
            ],
            "-NOHISTORY",
        ),
        (&["QUINTET.CALL", "counter/1"], "usage"),
        (&["GET", "a"], "unknown command"),
        (
            &["QUINTET.RAW", "1", "ordered", "\u{5}\0\0\0\0"],
            "no call of a client",
        ),
        (
            &["QUINTET.RAW", "1", "ordered", "\u{6}\0\0\0\0"],
            "no call of a client",
        ),
        (&["QUINTET.RAW", "1", "ordered", "?"], "no call of a client"),
        (&["QUINTET.RAW", "9", "ordered", ""], "no such group"),
        (&["QUINTET.RAW", "1", "often", ""], "no such group"),
    ] {
        let refused = ask(command);
        assert!(
            refused.starts_with('-') && refused.contains(why),
            "{command:?}: {refused}"
        );
    }
    assert_eq!(ask(&["QUIT"]), "+OK");
    let mut stream = std::net::TcpStream::connect(server.address()).expect("it answers");
    let failed = redis(
        &mut stream,
        &["QUINTET.CALL", "store/0", "fail", r#"["no room"]"#],
    );
    assert!(
        failed.contains("no room; the shard has stopped"),
        "{failed}"
    );
    drop(server);
    assert_eq!(
        std::io::Read::read(&mut stream, &mut [0; 8]).unwrap_or(0),
        0
    );
}

#[test]
fn clients_elsewhere_have_the_same_handles_as_members() {
    let directory = tempfile::tempdir().expect("a directory");
    let group = Group::local(5).layout(FRONT).directory(directory.path());
    let group = group.serve::<Counter>().serve::<Front>();
    let group = group.start().expect("it starts");
    group
        .wait_ready(Duration::from_secs(30))
        .expect("all answer");
    let mut servers = (0..2).map(|_| group.serve_calls("127.0.0.1:0").expect("it listens"));
    let (first, second) = (servers.next(), servers.next());
    let address = |server: &Option<CallServer>| {
        let server = server.as_ref().expect("it runs");
        server.address().to_string()
    };
    let client = Client::connect(&[address(&first), address(&second)]).expect("both answer");
    let front = client.shard::<Front>("front", 0).expect("there is one");
    assert!(client.shard::<Store>("front", 0).is_err());
    assert!(
        client.shard::<other::Counter>("counter", 0).is_err(),
        "other methods"
    );
    for by in 1..=6 {
        front
            .ordered()
            .tell(by)
            .handed_off()
            .expect("executed there, too");
    }
    let now = client.now();
    let counters = client.all::<Counter>("counter").expect("there are two");
    let values: Vec<_> = counters
        .iter()
        .map(|it| it.at(now).value().wait())
        .collect();
    assert_eq!(values, [Ok(12), Ok(9)]);
    // Many at once, answered in whatever order the shards have.
    let calls: Vec<_> = (0..2000).map(|_| counters[0].ordered().add(1)).collect();
    let mut sums: Vec<_> = calls
        .into_iter()
        .map(|it| it.wait().expect("added"))
        .collect();
    sums.sort_unstable();
    assert_eq!(sums, (13..=2012).collect::<Vec<_>>());
    let history = counters[0].history(Counter::VALUE, 1).expect("told");
    assert_eq!(history[0].value, 2012);
    drop(first);
    for _ in 0..4 {
        assert_eq!(counters[0].query().value().wait(), Ok(2012));
    }
    drop(second);
    assert_eq!(counters[0].query().value().wait(), Err(CallError::Stopped));
    assert!(Client::connect(&["127.0.0.1:1"]).is_err());
}

const SHARDS: &str = r#"
[[subgroup]]
name = "counter"
service = "Counter"
shards = 2
members = { min = 1, max = 2 }

[[subgroup]]
name = "store"
service = "Store"
pin = [[0, 1, 2]]
protocol = "multipaxos"
"#;

/// Hands what it is told off to a counter.
#[derive(Default, Service)]
struct Front {
    told: Persistent<u64>,
}

#[service]
impl Front {
    #[ordered]
    fn tell(&mut self, context: &mut CallContext, by: u64) -> u64 {
        *self.told += by;
        context.then("counter", (by % 2) as usize, Counter::calls().add(by));
        *self.told
    }
    #[query]
    fn told(&self) -> u64 {
        *self.told
    }
}

const FRONT: &str = r#"
[[subgroup]]
name = "front"
service = "Front"
members = { min = 1, max = 2 }
hands_off_to = ["counter"]

[[subgroup]]
name = "counter"
service = "Counter"
shards = 2
members = { min = 1, max = 2 }
"#;

#[test]
fn hand_offs_are_executed_once_while_members_stop_and_return() {
    let directory = tempfile::tempdir().expect("a directory");
    let start = || {
        let group = Group::local(5).layout(FRONT).directory(directory.path());
        let group = group.serve::<Counter>().serve::<Front>();
        let group = group.start().expect("it starts");
        group
            .wait_ready(Duration::from_secs(30))
            .expect("all answer");
        group
    };
    let group = start();
    let totals = |group: &Group| {
        let counters = group.all::<Counter>("counter").expect("two");
        let now = group.now();
        let values = counters.iter().map(|it| it.at(now).value());
        let values: Vec<_> = values
            .collect::<Vec<_>>()
            .into_iter()
            .map(Pending::wait)
            .collect();
        (
            values[0].clone().expect("told"),
            values[1].clone().expect("told"),
        )
    };
    let front = group.shard::<Front>("front", 0).expect("one");
    let mut expected = [0, 0];
    for by in 1..=20 {
        front
            .ordered()
            .tell(by)
            .handed_off()
            .expect("executed there, too");
        expected[(by % 2) as usize] += by;
        assert_eq!(totals(&group), (expected[0], expected[1]));
        if by % 4 == 0 {
            let member = (by / 4 - 1) as usize;
            group.stop_member(member);
            let told = front.ordered().tell(2).wait();
            // A call that is uncertain was perhaps executed: ask.
            let told = told.or_else(|_| {
                group.wait_ready(Duration::from_secs(30))?;
                front.query().told().wait()
            });
            let sum = expected[0] + expected[1];
            expected[0] += told.expect("told") - sum;
            group
                .wait_ready(Duration::from_secs(30))
                .expect("the others suffice");
            group.restart_member(member).expect("it starts");
            group
                .wait_ready(Duration::from_secs(30))
                .expect("all answer");
        }
    }
    // A hand-off that its caller did not wait for is delivered all the same, also by the next process.
    front.ordered().tell(1).wait().expect("executed");
    drop(group);
    let group = start();
    let front = group.shard::<Front>("front", 0).expect("one");
    front
        .ordered()
        .tell(1)
        .handed_off()
        .expect("executed there, too");
    assert_eq!(totals(&group), (expected[0], expected[1] + 2));
}

/// Takes no call any more once it was told to fail.
#[derive(Default, Service)]
struct Fragile {
    value: Persistent<u64>,
}

#[service]
impl Fragile {
    #[ordered]
    fn add(&mut self, by: u64) {
        assert!(by > 0, "nothing to add");
        *self.value += by;
    }
}

#[derive(Default, Service)]
struct Many {
    value: Persistent<u64>,
}

#[service]
impl Many {
    #[ordered]
    fn tell(&mut self, context: &mut CallContext, to: usize, count: u64) {
        for _ in 0..count {
            context.then("fragile", to, Fragile::calls().add(1));
        }
    }
}

#[test]
fn hand_offs_to_a_stopped_shard_are_reported_and_delay_no_other() {
    let layout = r#"
        [[subgroup]]
        name = "many"
        service = "Many"
        hands_off_to = ["fragile"]
        [[subgroup]]
        name = "fragile"
        service = "Fragile"
        shards = 2
    "#;
    let group = Group::local(3).protocol("multipaxos").layout(layout);
    let group = group
        .serve::<Many>()
        .serve::<Fragile>()
        .start()
        .expect("it starts");
    group
        .wait_ready(Duration::from_secs(30))
        .expect("all answer");
    let fragile = group.shard::<Fragile>("fragile", 0).expect("there is one");
    fragile.ordered().add(0).wait().expect_err("it panics");
    let many = group.shard::<Many>("many", 0).expect("there is one");
    many.ordered().tell(0, 200).wait().expect("executed");
    let waits = many
        .ordered()
        .tell(0, 1)
        .deadline(Duration::from_millis(300))
        .handed_off();
    let shards = vec!["fragile/0".to_owned()];
    assert_eq!(waits, Err(CallError::NotHandedOff { shards }));
    many.ordered()
        .tell(1, 300)
        .handed_off()
        .expect("the other one executes them");
}

#[test]
fn group_of_many_shards_starts_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let start = || {
        let layout = "[[subgroup]]\nname = 'counter'\nservice = 'Counter'\nshards = 60";
        let group = Group::local(1).protocol("multipaxos").layout(layout);
        let group = group.directory(directory.path()).serve::<Counter>();
        group.start().expect("it starts")
    };
    let add = |group: &Group| {
        let last = group.shard::<Counter>("counter", 59).expect("there is one");
        last.ordered().add(1).wait()
    };
    assert_eq!(add(&start()), Ok(1));
    assert_eq!(add(&start()), Ok(2));
}

fn divided(directory: &std::path::Path) -> Group {
    let group = Group::local(5).layout(SHARDS).directory(directory);
    let group = group.serve::<Counter>().serve::<Store>();
    let group = group.start().expect("it starts");
    group
        .wait_ready(Duration::from_secs(30))
        .expect("all answer");
    group
}

#[test]
fn shards_of_two_services_outlive_members() {
    let directory = tempfile::tempdir().expect("a directory");
    let group = divided(directory.path());
    let counters = group.all::<Counter>("counter").expect("there are two");
    let store = group
        .shard_of::<Store>("store", "any")
        .expect("there is one");
    let mut made = Vec::new();
    for (counter, by) in counters.iter().zip(1..) {
        made.push(counter.ordered().add(by).done().expect("added"));
    }
    store
        .ordered()
        .put("a".to_owned(), b"1")
        .wait()
        .expect("put");
    for member in 0..5 {
        group.stop_member(member);
        group
            .wait_ready(Duration::from_secs(30))
            .expect("the others suffice");
        for (counter, by) in counters.iter().zip(1..) {
            assert_eq!(counter.ordered().add(0).wait(), Ok(by), "without {member}");
        }
        let put = store.ordered().put("a".to_owned(), &[member as u8]).wait();
        put.expect("the others suffice");
        group.restart_member(member).expect("it starts");
        group
            .wait_ready(Duration::from_secs(30))
            .expect("all answer");
    }
    drop(group);
    let group = divided(directory.path());
    let counters = group.all::<Counter>("counter").expect("there are two");
    for ((counter, made), by) in counters.iter().zip(made).zip(1..) {
        for member in 0..5 {
            let counter = counter.member(member);
            assert_eq!(counter.query().value().wait(), Ok(by));
            assert_eq!(counter.at(made.version).value().wait(), Ok(by));
            assert_eq!(counter.at(made.time).value().wait(), Ok(by));
            assert_eq!(counter.at(Version(0)).value().wait(), Ok(0));
        }
    }
}

#[test]
fn shard_below_its_minimum_is_named_and_loses_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let layout = r#"
        [[subgroup]]
        name = "counter"
        service = "Counter"
        shards = 2
        members = { min = 2, max = 2 }
        nodes = [0, 1, 2, 3]
    "#;
    let group = Group::local(5).layout(layout).directory(directory.path());
    let group = group
        .deadline(Duration::from_secs(3))
        .serve::<Counter>()
        .start()
        .expect("it starts");
    let long = Duration::from_secs(30);
    group.wait_ready(long).expect("all answer");
    let counters = group.all::<Counter>("counter").expect("there are two");
    for counter in &counters {
        assert_eq!(counter.ordered().add(5).wait(), Ok(5));
    }
    group.stop_member(0);
    let lost = loop {
        let told: Vec<_> = counters
            .iter()
            .map(|it| it.ordered().add(0).wait())
            .collect();
        match &told[..] {
            [Err(CallError::NoQuorum { .. }), Ok(5)] => break 0,
            [Ok(5), Err(CallError::NoQuorum { .. })] => break 1,
            // The view without it is not there yet.
            _ => {}
        }
    };
    let shard = format!("counter/{lost}");
    let refused = counters[lost].query().value().wait();
    assert_eq!(
        refused,
        Err(CallError::NoQuorum {
            shard: shard.clone()
        })
    );
    let not_ready = group.wait_ready(Duration::from_secs(5));
    assert_eq!(not_ready, Err(CallError::NotReady { shards: shard }));
    group.restart_member(0).expect("it starts");
    group.wait_ready(long).expect("all answer");
    for counter in &counters {
        assert_eq!(counter.ordered().add(1).wait(), Ok(6), "nothing is lost");
    }
}

#[test]
fn keys_are_spread_over_shards_and_always_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    let group = divided(directory.path());
    let of = |key: &str| format!("{:?}", group.shard_of::<Counter>("counter", key));
    let mut seen = std::collections::BTreeSet::new();
    for number in 0..50 {
        let key = format!("key {number}");
        assert_eq!(of(&key), of(&key));
        seen.insert(of(&key));
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn layout_that_does_not_fit_the_services_is_refused() {
    let start = |layout: &str| {
        let group = Group::local(3).layout(layout).serve::<Counter>();
        group.start().expect_err("it is refused").to_string()
    };
    for (layout, why) in [
        ("[[subgroup]]", "missing field `name`"),
        ("[[subgroup]]\nname = 'a'", "names no service"),
        (
            "[[subgroup]]\nname = 'a'\nservice = 'Store'",
            "it has Counter",
        ),
        (
            "[[subgroup]]\nname = 'a'\nservice = 'Counter'\nprefix = 'a'",
            "leave 'prefix' away",
        ),
        (
            "[[subgroup]]\nname = 'a'\nservice = 'Counter'\npin = [[7]]",
            "there is no replica 7",
        ),
    ] {
        let refused = start(layout);
        assert!(refused.contains(why), "{layout}: {refused}");
    }
    let none = Group::local(3)
        .start()
        .expect_err("nothing to run")
        .to_string();
    assert!(none.contains("one service"), "{none}");
}

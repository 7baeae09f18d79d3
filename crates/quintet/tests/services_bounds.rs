//! Many calls at once: bounded ones wait their turn, and keep no others away.

use quintet::groups::{CallContext, Group, Persistent, Place, Service, Time, service};
use quintet::runtime::resp_client::{Reply, command, read};
use std::{
    io::{BufReader, Write},
    net::TcpStream,
    time::{Duration, Instant, SystemTime},
};

const LONG: Duration = Duration::from_secs(30);

#[derive(Default, Service)]
struct Counter {
    value: Persistent<u64>,
}

#[service]
impl Counter {
    #[ordered]
    fn add(&mut self, context: &mut CallContext, by: u64) -> u64 {
        *self.value += by;
        context.notify("added", by.to_string());
        *self.value
    }
    #[query]
    fn value(&self) -> u64 {
        *self.value
    }
    #[query]
    fn beside(&self, place: &Place) -> u64 {
        let other = place.sibling::<Self>("other").expect("it is lent");
        *self.value + *other.value
    }
}

const TWO: &str = r#"
[[subgroup]]
name = "counter"
service = "Counter"
pin = [[0, 1]]
reads = ["other"]

[[subgroup]]
name = "other"
service = "Counter"
pin = [[0, 1]]
"#;

#[test]
fn many_queries_that_read_a_sibling_are_all_answered() {
    let group = Group::local(2).layout(TWO).serve::<Counter>();
    let group = group.start().expect("it starts");
    group.wait_ready(LONG).expect("all answer");
    let counter = group.shard::<Counter>("counter", 0).expect("one");
    let other = group.shard::<Counter>("other", 0).expect("one");
    counter.ordered().add(1).wait().expect("added");
    other.ordered().add(2).wait().expect("added");
    let asked: Vec<_> = (0..1_500).map(|_| counter.query().beside()).collect();
    for pending in asked {
        assert_eq!(pending.wait(), Ok(3));
    }
}

#[test]
fn many_reads_of_a_time_to_come_are_all_answered() {
    let group = Group::local(2).one::<Counter>("counter").start();
    let group = group.expect("it starts");
    group.wait_ready(LONG).expect("it answers");
    let counter = group.shard::<Counter>("counter", 0).expect("one");
    counter.ordered().add(1).wait().expect("added");
    let soon = Time::from(SystemTime::now() + Duration::from_millis(700));
    let asked: Vec<_> = (0..1_500).map(|_| counter.at(soon).value()).collect();
    for pending in asked {
        assert_eq!(pending.wait(), Ok(1));
    }
}

/// A client of Redis that sends several commands at once.
struct Redis(BufReader<TcpStream>);

impl Redis {
    fn send(&mut self, commands: &[&[&str]]) {
        let bytes: Vec<u8> = (commands.iter())
            .flat_map(|words| {
                let words: Vec<_> = words.iter().map(|it| it.as_bytes()).collect();
                command(&words)
            })
            .collect();
        self.0.get_mut().write_all(&bytes).expect("sent");
    }

    fn answer(&mut self) -> Reply {
        read(&mut self.0, 1 << 20).expect("answered")
    }

    /// The next number to ask from, and how many were told.
    fn followed(&mut self) -> (u64, usize) {
        match self.answer() {
            Reply::List(parts) => match &parts[..] {
                [Reply::Number(next), _, Reply::List(told)] => (*next as u64, told.len()),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn pipelined_followers_keep_their_place_and_hold_nothing_back() {
    let group = Group::local(3).one::<Counter>("counter").start();
    let group = group.expect("it starts");
    group.wait_ready(LONG).expect("it answers");
    let server = group.serve_calls("127.0.0.1:0").expect("it listens");
    let stream = TcpStream::connect(server.address()).expect("it accepts");
    stream.set_read_timeout(Some(LONG)).expect("set");
    let mut redis = Redis(BufReader::new(stream));
    let follow = ["QUINTET.FOLLOW", "counter/0", "added"];
    let add = ["QUINTET.CALL", "counter/0", "add", "[1]"];
    for round in 0..50 {
        redis.send(&[&follow, &add, &add, &follow, &add]);
        let numbers: Vec<u64> = [true, false, false, true, false]
            .into_iter()
            .filter_map(|follows| match follows {
                true => Some(redis.followed().0),
                false => {
                    redis.answer();
                    None
                }
            })
            .collect();
        assert_eq!(numbers, [3 * round + 1, 3 * round + 3]);
    }
    // Each could wait for ten seconds.
    let far = [
        "QUINTET.FOLLOW",
        "counter/0",
        "added",
        "FROM",
        "100000",
        "WAIT",
        "10000",
    ];
    let mut all = vec![&far[..]; 2_000];
    all.push(&["PING"]);
    redis.send(&all);
    let ends = Instant::now() + 2 * LONG;
    for _ in 0..2_000 {
        assert_eq!(redis.followed(), (100_000, 0));
        assert!(Instant::now() < ends, "they wait");
    }
    assert!(matches!(redis.answer(), Reply::Text(text) if text == b"PONG"));
}

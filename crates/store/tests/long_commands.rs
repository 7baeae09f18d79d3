//! Commands that take long are bounded: alone, with those sent together with them, and with those
//! of other clients that are ordered together with them; equally on every replica.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use quintet_replica::{At, CommandId, CommandTime, Position, SessionId, StateMachine};
use quintet_store::{Mode, RequestBuilder, Store, StoreOptions, Value, lookup, sealed_dump};

struct One {
    store: Store,
    sequence: u64,
}

impl One {
    fn new() -> Self {
        Self {
            store: Store::new(StoreOptions::default()),
            sequence: 0,
        }
    }

    fn at(&mut self) -> At {
        self.sequence += 1;
        At {
            position: Position(self.sequence),
            time: CommandTime(self.sequence),
            id: CommandId {
                session: SessionId::default(),
                sequence: self.sequence,
            },
        }
    }

    /// The replies to requests that are ordered together.
    fn batch(&mut self, requests: &[Vec<&[&[u8]]>]) -> Vec<String> {
        let at = self.at();
        self.store.tick(&at);
        let mut replies = Vec::new();
        for request in requests {
            let at = self.at();
            let mut reply = Vec::new();
            self.store.apply(&at, &encoded(request), &mut reply);
            replies.push(String::from_utf8_lossy(&reply).into_owned());
        }
        replies
    }

    fn one(&mut self, command: &[&[u8]]) -> String {
        self.batch(&[vec![command]]).remove(0)
    }

    fn fill(&mut self, set: &str, from: usize, members: usize) {
        let end = from + members;
        for begin in (from..end).step_by(10_000) {
            let names: Vec<_> = (begin..end.min(begin + 10_000))
                .map(|n| n.to_string())
                .collect();
            let mut command = vec![&b"SADD"[..], set.as_bytes()];
            command.extend(names.iter().map(|name| name.as_bytes()));
            self.one(&command);
        }
    }
}

fn encoded(commands: &[&[&[u8]]]) -> Vec<u8> {
    let mut builder = RequestBuilder::new();
    for command in commands {
        builder.command(lookup(command[0]).unwrap(), Mode::default(), &command[1..]);
    }
    builder.into_bytes()
}

#[test]
fn long_commands_of_a_request_are_cut_when_they_are_many() {
    let mut one = One::new();
    let text = vec![b'a'; 2000];
    one.one(&[b"SET", b"a", &text]);
    let lcs: &[&[u8]] = &[b"LCS", b"a", b"a", b"LEN"];
    let get: &[&[u8]] = &[b"STRLEN", b"a"];
    let mut request = vec![lcs; 1023];
    request.push(get);
    let reply = one.batch(&[request]).remove(0);
    let done = reply.matches(":2000\r\n").count();
    assert!((2..20).contains(&done), "{done}");
    assert!(reply.ends_with(":2000\r\n"), "short commands are executed");
    assert_eq!(reply.matches("send fewer at once").count(), 1024 - done);
    // The same as reads, and again in the next batch.
    let mut reply = Vec::new();
    let at = one.at();
    one.store.begin_reads();
    one.store.query(&at, &encoded(&vec![lcs; 1024]), &mut reply);
    let reply = String::from_utf8_lossy(&reply);
    assert_eq!(reply.matches(":2000\r\n").count(), done - 1);
    assert_eq!(one.one(lcs), ":2000\r\n");
}

#[test]
fn command_that_is_too_long_alone_is_refused() {
    let mut one = One::new();
    let text = vec![b'a'; 7000];
    one.one(&[b"SET", b"a", &text]);
    let refused = one.one(&[b"LCS", b"a", b"a"]);
    assert!(refused.starts_with("-ERR 'lcs' would take "), "{refused}");
    assert_eq!(one.store.steps(), 0);
}

#[test]
fn batch_executes_short_commands_when_long_ones_exceed_limit() {
    let mut one = One::new();
    one.fill("big", 0, 300_000);
    one.fill("small", 0, 10);
    let union: &[&[u8]] = &[b"SUNIONSTORE", b"target", b"big", b"big"];
    let short: &[&[u8]] = &[b"SINTERCARD", b"2", b"big", b"small"];
    let set: &[&[u8]] = &[b"SET", b"k", b"v"];
    let mut requests = vec![vec![union]; 30];
    requests.push(vec![short, set]);
    let replies = one.batch(&requests);
    let busy = "-BUSY too many long commands at once: not executed; try again\r\n";
    let done = replies
        .iter()
        .filter(|reply| *reply == ":300000\r\n")
        .count();
    assert!((8..20).contains(&done), "{done}");
    assert_eq!(
        replies.iter().filter(|reply| *reply == busy).count(),
        30 - done
    );
    assert_eq!(replies[30], ":10\r\n+OK\r\n");
    assert_eq!(one.one(union), ":300000\r\n");
    let (name, _) = one.store.take_longest().unwrap();
    assert_eq!(name, "sunionstore");
}

#[test]
fn intersection_costs_what_its_smallest_set_does() {
    let mut one = One::new();
    one.fill("big", 0, 200_000);
    one.one(&[b"SADD", b"small", b"1", b"2", b"x"]);
    let before = one.store.steps();
    let inter: &[&[u8]] = &[b"SINTERCARD", b"2", b"big", b"small"];
    let reply = one.batch(&[vec![inter; 1024]]).remove(0);
    assert_eq!(reply, ":2\r\n".repeat(1024));
    assert!(one.store.steps() - before < 10_000);
}

#[test]
fn search_costs_what_its_cells_hold() {
    let mut one = One::new();
    let (longitude, latitude) = (&b"15.1"[..], &b"37.1"[..]);
    for hundred in 0..100 {
        let names: Vec<_> = (0..1000)
            .map(|n| format!("{hundred}:{n}").into_bytes())
            .collect();
        let mut command = vec![&b"GEOADD"[..], b"places"];
        for name in &names {
            command.extend([longitude, latitude, name]);
        }
        one.one(&command);
    }
    let near: &[&[u8]] = &[
        b"GEOSEARCH",
        b"places",
        b"FROMLONLAT",
        longitude,
        latitude,
        b"BYRADIUS",
        b"1",
        b"m",
        b"COUNT",
        b"1",
    ];
    let far: &[&[u8]] = &[
        b"GEOSEARCH",
        b"places",
        b"FROMLONLAT",
        b"-15",
        latitude,
        b"BYRADIUS",
        b"1",
        b"km",
    ];
    let replies = one.batch(&[vec![near; 50], vec![far; 50]]);
    assert!(
        replies[0].contains("send fewer at once"),
        "{}",
        &replies[0][..200]
    );
    assert_eq!(replies[1], "*0\r\n".repeat(50));
}

#[test]
fn replicas_refuse_the_same_when_one_reads_in_between() {
    let (mut one, mut other) = (One::new(), One::new());
    let text = vec![b'a'; 3000];
    let lcs: &[&[u8]] = &[b"LCS", b"a", b"a", b"LEN"];
    let set: &[&[u8]] = &[b"SET", b"x", b"1"];
    for replica in [&mut one, &mut other] {
        replica.one(&[b"SET", b"a", &text]);
    }
    let request = vec![set, lcs, lcs, lcs, lcs, lcs, lcs, lcs];
    let first = one.batch(&vec![request.clone(); 4]);
    // Reads of its own clients, between two batches.
    other.store.begin_reads();
    for _ in 0..5 {
        let at = At::default();
        other
            .store
            .query(&at, &encoded(&[lcs, lcs]), &mut Vec::new());
    }
    assert_eq!(other.batch(&vec![request; 4]), first);
    assert_eq!(one.store.digest(), other.store.digest());
}

const SECOND: u64 = 1_000_000_000;
const BACKLOG: usize = 20_000;

/// A store where many keys have expired, of which few are deleted yet, beside two that stay.
fn with_backlog() -> One {
    let mut one = One::new();
    for begin in (0..BACKLOG).step_by(500) {
        let keys: Vec<_> = (begin..begin + 500).map(|n| format!("k{n}")).collect();
        let commands: Vec<[&[u8]; 5]> = (keys.iter())
            .map(|key| [&b"SET"[..], key.as_bytes(), b"v", b"PX", b"1000"])
            .collect();
        one.batch(&[commands.iter().map(|command| &command[..]).collect()]);
    }
    one.one(&[b"MSET", b"a", b"1", b"b", b"2"]);
    assert_eq!(one.one(&[b"DBSIZE"]), format!(":{}\r\n", BACKLOG + 2));
    one.sequence = 2 * SECOND;
    one
}

#[test]
fn keys_that_have_expired_are_passed_once_by_what_is_ordered() {
    for walk in [
        &[&b"SCAN"[..], b"0"][..],
        &[b"KEYS", b"*"],
        &[b"RANDOMKEY"],
        &[b"DBSIZE"],
    ] {
        let (mut one, mut other) = (with_backlog(), with_backlog());
        let at = one.at();
        one.store.tick(&at);
        let before = one.store.memory();
        let mut reply = Vec::new();
        let at = one.at();
        one.store.apply(&at, &encoded(&[walk]), &mut reply);
        let reply = String::from_utf8(reply).unwrap();
        let expected = match walk[0] {
            b"DBSIZE" => ":2\r\n",
            b"RANDOMKEY" => "$1\r\n",
            _ => "*2\r\n",
        };
        assert!(reply.starts_with(expected), "{reply}");
        // The other replica has deleted all of them before.
        for _ in 0..30 {
            let at = other.at();
            other.store.tick(&at);
        }
        other.sequence = 2 * SECOND;
        assert_eq!(other.one(walk), reply);
        assert_eq!(one.store.digest(), other.store.digest());
        assert_eq!(one.store.memory(), before, "ticks delete");
        if walk[0] == b"SCAN" || walk[0] == b"KEYS" {
            let scan: &[&[u8]] = &[b"SCAN", b"0"];
            let read = |one: &mut One| {
                let (at, before) = (one.at(), one.store.steps());
                one.store.begin_reads();
                one.store.query(&at, &encoded(&[scan]), &mut Vec::new());
                one.store.steps() - before
            };
            assert_eq!(read(&mut one), read(&mut other), "nothing is left to pass");
        }
        for _ in 0..30 {
            let at = one.at();
            one.store.tick(&at);
        }
        assert_eq!(one.store.memory(), other.store.memory());
        assert_eq!(one.one(&[b"DBSIZE"]), ":2\r\n");
        assert_eq!(one.store.steps(), other.store.steps(), "steps are the same");
    }
}

#[test]
fn read_pays_for_the_expired_keys_that_it_passes() {
    let mut one = with_backlog();
    one.one(&[b"DBSIZE"]);
    let scan: &[&[u8]] = &[b"SCAN", b"0"];
    let at = one.at();
    one.store.begin_reads();
    let before = one.store.steps();
    let mut reply = Vec::new();
    one.store
        .query(&at, &encoded(&vec![scan; 1024]), &mut reply);
    let reply = String::from_utf8_lossy(&reply);
    let refused = reply.matches("send fewer at once").count();
    assert!((700..1000).contains(&refused), "{refused}");
    assert!(reply.starts_with("*2\r\n$1\r\n0\r\n*2\r\n"));
    assert!(one.store.steps() - before <= 4 << 20);
    // Counting them does not walk them.
    let dbsize: &[&[u8]] = &[b"DBSIZE"];
    let before = one.store.steps();
    let mut reply = Vec::new();
    one.store.begin_reads();
    one.store
        .query(&at, &encoded(&vec![dbsize; 1024]), &mut reply);
    assert_eq!(reply, b":2\r\n".repeat(1024));
    assert_eq!(one.store.steps(), before);
}

#[test]
fn elements_are_counted_however_they_come() {
    let mut one = One::new();
    // A list of a million empty elements takes a byte each.
    let mut list = vec![3, 0xc0, 0x84, 0x3d];
    list.resize(4 + 1_000_000, 0);
    assert!(Value::deserialize(&list).is_ok());
    assert_eq!(Value::elements_announced(&list), 1_000_000);
    let payload = sealed_dump(&list);
    let before = one.store.steps();
    assert_eq!(one.one(&[b"RESTORE", b"l", b"0", &payload]), "+OK\r\n");
    assert_eq!(one.store.steps() - before, 2_000_000);
    let longer = {
        let mut list = vec![3, 0xc0, 0x8d, 0xb7, 0x01];
        list.resize(5 + 3_000_000, 0);
        sealed_dump(&list)
    };
    let refused = one.one(&[b"RESTORE", b"m", b"0", &longer]);
    assert!(
        refused.starts_with("-ERR 'restore' would take 6000000 steps"),
        "{refused}"
    );
    // So are arguments and draws.
    let mut add = vec![&b"SADD"[..], b"s"];
    add.resize(2 + 2_200_000, b"x");
    let refused = one.one(&add);
    assert!(refused.starts_with("-ERR 'sadd' would take "), "{refused}");
    add.truncate(2 + 1000);
    let before = one.store.steps();
    assert_eq!(one.one(&add), ":1\r\n");
    assert_eq!(one.store.steps() - before, 2002);
    let refused = one.one(&[b"SRANDMEMBER", b"s", b"-9000000"]);
    assert!(
        refused.starts_with("-ERR 'srandmember' would take 9000000 steps"),
        "{refused}"
    );
    let before = one.store.steps();
    one.one(&[b"SRANDMEMBER", b"s", b"-100"]);
    assert_eq!(one.store.steps() - before, 100);
    assert_eq!(one.one(&[b"SRANDMEMBER", b"none", b"-9000000"]), "*0\r\n");
}

#[test]
fn transactions_of_many_bytes_are_cut_when_they_are_many() {
    let mut one = One::new();
    let value = vec![b'v'; 1 << 20];
    let mut queued = RequestBuilder::new();
    let set = lookup(b"SET").unwrap();
    for _ in 0..60 {
        queued.command(set, Mode::default(), &[b"k", &value]);
    }
    let mut exec = RequestBuilder::new();
    exec.transaction(Mode::default(), &[], &queued);
    let at = one.at();
    one.store.tick(&at);
    let mut replies = Vec::new();
    for _ in 0..6 {
        let (at, mut reply) = (one.at(), Vec::new());
        one.store.apply(&at, exec.as_bytes(), &mut reply);
        replies.push(reply);
    }
    let done = replies
        .iter()
        .filter(|reply| reply.starts_with(b"*60"))
        .count();
    assert_eq!(done, 3);
    assert!(replies[3..].iter().all(|reply| reply.starts_with(b"-BUSY")));
}

//! Commands that take long are bounded: alone, with those sent together with them, and with those
//! of other clients that are ordered together with them; equally on every replica.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use quintet_replica::{At, CommandId, CommandTime, Position, SessionId, StateMachine};
use quintet_store::{Mode, RequestBuilder, Store, StoreOptions, lookup};

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
fn batch_of_many_clients_executes_short_commands_when_long_ones_are_too_many() {
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

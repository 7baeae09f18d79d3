//! The memory of connections besides their input: transactions, names, requests that wait.

use super::rig::Rig;
use crate::server::{ConnectionId, GatewayConfig};
use quintet_replica::Outcome;
use std::time::Duration;

const KIB: usize = 1 << 10;
const FULL: &str = "-BUSY memory for unfinished commands is full";

fn set(bytes: usize) -> Vec<u8> {
    let value = "v".repeat(bytes);
    format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${bytes}\r\n{value}\r\n").into_bytes()
}

/// All clients together may hold two of the longest commands.
fn small() -> Rig {
    Rig::with(GatewayConfig {
        value_bytes_max: 100 * KIB,
        command_bytes_max: 110 * KIB,
        inputs_bytes_max: 0,
        ..GatewayConfig::default()
    })
}

fn begin(rig: &mut Rig, bytes: usize) -> ConnectionId {
    let id = rig.connect();
    assert_eq!(rig.say(id, "MULTI"), "+OK\\r\\n");
    let queued = rig.ask(id, set(bytes));
    assert!(queued.starts_with("+QUEUED") || queued.starts_with("-BUSY"));
    id
}

#[test]
fn names_have_a_longest() {
    let mut rig = Rig::new();
    let id = rig.connect();
    let (fits, long) = ("n".repeat(KIB), "n".repeat(KIB + 1));
    for command in [
        "CLIENT SETNAME",
        "CLIENT SETINFO lib-name",
        "CLIENT SETINFO lib-ver",
    ] {
        assert_eq!(rig.say(id, &format!("{command} {fits}")), "+OK\\r\\n");
        let refused = rig.say(id, &format!("{command} {long}"));
        assert!(refused.ends_with("may have at most 1024 bytes, this one has 1025\\r\\n"));
    }
    let refused = rig.say(id, &format!("HELLO 3 SETNAME {long}"));
    assert!(refused.starts_with("-ERR client names may have at most"));
    assert!(rig.say(id, "CLIENT GETNAME").contains(&fits));
    let wrong = rig.say(id, &format!("CLIENT SETINFO {} x", "o".repeat(9000)));
    assert!(wrong.starts_with("-ERR Unrecognized option") && wrong.len() < 1100);
}

#[test]
fn transaction_takes_no_more_replies_made_here_than_arguments() {
    let mut rig = small();
    let name = "n".repeat(KIB);
    for _ in 0..40 {
        let id = rig.connect();
        assert_eq!(rig.say(id, &format!("CLIENT SETNAME {name}")), "+OK\\r\\n");
    }
    let id = rig.connect();
    assert_eq!(rig.say(id, "MULTI"), "+OK\\r\\n");
    assert_eq!(rig.say(id, "SET x 1"), "+QUEUED\\r\\n");
    assert_eq!(rig.say(id, "CLIENT LIST"), "+QUEUED\\r\\n");
    for _ in 0..2 {
        rig.say(id, "CLIENT LIST");
    }
    let refused = rig.say(id, "EXEC");
    assert!(refused.starts_with("-EXECABORT"), "{refused}");
    assert_eq!(rig.say(id, "GET x"), "$-1\\r\\n");
    // One that fits is answered as always.
    let answers = rig.ask(id, "MULTI\r\nSET x 1\r\nCLIENT LIST\r\nEXEC\r\n");
    assert!(answers.starts_with("+OK\\r\\n+QUEUED\\r\\n+QUEUED\\r\\n*2\\r\\n+OK\\r\\n$"));
}

#[test]
fn request_longer_than_any_batch_is_refused_and_goes_no_further() {
    let mut rig = Rig::new();
    rig.gateway.request_bytes_max = 1000;
    let (id, other) = (rig.connect(), rig.connect());
    let refused = rig.ask(id, set(2000));
    assert!(
        refused.starts_with("-ERR request exceeds 1000 bytes"),
        "{refused}"
    );
    assert!(rig.gateway.should_close(id) && rig.submitted.len() <= 1);
    assert_eq!(rig.ask(other, set(10)), "+OK\\r\\n");
}

#[test]
fn largest_open_transaction_is_dropped_when_memory_is_full() {
    let mut rig = small();
    let (one, two) = (begin(&mut rig, 90 * KIB), begin(&mut rig, 100 * KIB));
    assert!(!rig.gateway.should_close(two));
    let three = begin(&mut rig, 50 * KIB);
    assert!(rig.gateway.should_close(two));
    assert!(rig.output(two).starts_with(FULL));
    assert_eq!(rig.gateway.counters().connections_dropped, 1);
    // Its memory is free again, and so is that of an executed transaction.
    for id in [one, three] {
        assert_eq!(rig.say(id, "EXEC"), "*1\\r\\n+OK\\r\\n");
    }
    let more = [begin(&mut rig, 100 * KIB), begin(&mut rig, 100 * KIB)];
    assert!(more.iter().all(|id| !rig.gateway.should_close(*id)));
    for id in [one, two, three, more[0], more[1]] {
        rig.gateway.on_closed(id);
    }
    assert_eq!(rig.gateway.shares.inputs, 0);
}

#[test]
fn refused_transaction_holds_nothing() {
    let mut rig = small();
    let id = begin(&mut rig, 100 * KIB);
    assert!(rig.gateway.shares.inputs > 100 * KIB);
    assert!(rig.say(id, "SET a").starts_with("-ERR wrong number"));
    assert_eq!(rig.ask(id, set(100 * KIB)), "+QUEUED\\r\\n");
    assert_eq!(rig.gateway.shares.inputs, 0);
    assert!(rig.say(id, "EXEC").starts_with("-EXECABORT"));
}

#[test]
fn requests_that_wait_for_room_count_until_they_are_answered() {
    let mut rig = small();
    let clients = [rig.connect(), rig.connect(), rig.connect()];
    // The owner is registered.
    assert_eq!(rig.say(clients[0], "SET b 1"), "+OK\\r\\n");
    for (id, bytes) in clients.iter().zip([90, 100, 50]) {
        rig.push(*id, set(bytes * KIB));
        while let [submission, ..] = &rig.collect()[..] {
            rig.done(submission, Outcome::Busy);
        }
    }
    let dropped = clients.map(|id| rig.gateway.should_close(id));
    assert_eq!(dropped, [false, true, false]);
    assert!(rig.output(clients[1]).starts_with(FULL));
    // A client that has left holds its request until it is answered.
    rig.gateway.on_closed(clients[0]);
    assert!(rig.gateway.shares.inputs > 130 * KIB);
    rig.pass(Duration::from_millis(10));
    rig.run();
    assert_eq!(rig.output(clients[2]), "+OK\\r\\n");
    assert_eq!(rig.gateway.shares.inputs, 0);
}

#[test]
fn transaction_of_many_small_commands_is_a_large_request() {
    let mut rig = Rig::new();
    let (large, small) = (rig.connect(), rig.connect());
    rig.say(small, "SET b 1");
    rig.say(large, "MULTI");
    for _ in 0..5 {
        assert_eq!(rig.ask(large, set(1 << 20)), "+QUEUED\\r\\n");
    }
    rig.push(large, "EXEC\r\n");
    rig.push(small, "SET c 1\r\n");
    let batches = rig.collect();
    let lengths: Vec<bool> = batches.iter().map(|it| it.batch.len() > 5 << 20).collect();
    assert_eq!(lengths, [false, true], "it stands in a batch of its own");
    assert!(rig.gateway.shares.in_flight > 5 << 20);
    for submission in batches {
        let outcome = rig.execute(&submission);
        rig.done(&submission, outcome);
    }
    assert!(rig.output(large).starts_with("*5\\r\\n+OK"));
    assert_eq!(
        (rig.output(small), rig.gateway.shares.in_flight),
        ("+OK\\r\\n".into(), 0)
    );
}

#[test]
fn ended_sessions_above_limit_lapse_with_their_owner() {
    let mut rig = Rig::with(GatewayConfig {
        connections_max: 1 << 17,
        per_address_max: Some(0),
        ..GatewayConfig::default()
    });
    let clients: Vec<_> = (0..=1 << 16).map(|_| rig.connect()).collect();
    for id in &clients {
        rig.push(*id, "SET a 1\r\n");
    }
    rig.run();
    let owner = rig.gateway.groups[0].owner.id;
    for id in clients {
        rig.gateway.on_closed(id);
    }
    assert_ne!(rig.gateway.groups[0].owner.id, owner);
    assert!(rig.gateway.groups[0].closes.is_empty() && rig.gateway.groups[0].owner.open == 0);
    let id = rig.connect();
    assert_eq!(rig.say(id, "SET a 2"), "+OK\\r\\n");
}

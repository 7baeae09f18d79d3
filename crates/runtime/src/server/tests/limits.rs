//! Bounds: what clients may send, how much is kept for them, how long they may be silent.

use super::rig::Rig;
use crate::server::GatewayConfig;
use proptest::prelude::*;
use quintet_replica::{Outcome, Time};
use std::time::Duration;

#[test]
fn too_many_clients_are_told_so() {
    let mut rig = Rig::with(GatewayConfig {
        connections_max: 1,
        ..GatewayConfig::default()
    });
    let id = rig.connect();
    let peer = "127.0.0.1:1".parse().unwrap();
    let refused = rig.gateway.connect(rig.now, peer);
    assert_eq!(
        refused,
        Err(b"-ERR max number of clients reached\r\n".to_vec())
    );
    rig.gateway.on_closed(id);
    assert!(rig.gateway.connect(rig.now, peer).is_ok());
}

#[test]
fn unsupported_command_is_rejected_by_name() {
    let mut rig = Rig::new();
    let id = rig.connect();
    for line in [
        "DEBUG SLEEP 0",
        "REPLICAOF a 1",
        "SAVE",
        "BGSAVE",
        "SHUTDOWN",
    ] {
        let name = line.split(' ').next().unwrap();
        let expected = format!("-ERR '{name}' is not supported in a replicated store\\r\\n");
        assert_eq!(rig.say(id, line), expected);
    }
    assert_eq!(
        rig.say(id, "SUBSCRIBE c"),
        "-ERR 'SUBSCRIBE' is not supported yet\\r\\n"
    );
    assert!(rig.say(id, "MULTI").starts_with("+OK"));
    assert_eq!(
        rig.say(id, "BLPOP a 0"),
        "-ERR 'BLPOP' is not supported yet\\r\\n"
    );
    assert!(rig.say(id, "EXEC").starts_with("-EXECABORT"));
}

#[test]
fn too_long_value_is_rejected_and_connection_continues() {
    let mut rig = Rig::with(GatewayConfig {
        value_bytes_max: 100,
        ..GatewayConfig::default()
    });
    let id = rig.connect();
    let mut bytes = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$101\r\n".to_vec();
    bytes.resize(bytes.len() + 101, b'v');
    bytes.extend_from_slice(b"\r\nPING\r\n");
    let refused = "-ERR value exceeds limits.value_bytes_max (101 > 100)\\r\\n";
    assert_eq!(rig.ask(id, &bytes), format!("{refused}+PONG\\r\\n"));
    assert_eq!(rig.say(id, "MULTI"), "+OK\\r\\n");
    assert_eq!(rig.ask(id, &bytes), format!("{refused}+QUEUED\\r\\n"));
    assert!(rig.say(id, "EXEC").starts_with("-EXECABORT"));
}

#[test]
fn huge_count_costs_nothing_and_its_silence_ends_the_connection() {
    let mut rig = Rig::new();
    let id = rig.connect();
    assert_eq!(rig.ask(id, "*1000000000\r\n$500000\r\n"), "");
    assert!(rig.gateway.input(id).capacity() < 4096);
    let limit = rig.now + Duration::from_secs(60);
    assert!(rig.gateway.next_deadline() <= limit);
    while rig.now < limit {
        assert!(!rig.gateway.should_close(id));
        rig.now = rig.gateway.next_deadline();
        rig.run();
    }
    assert!(rig.gateway.should_close(id));
}

#[test]
fn whole_command_does_not_make_a_silent_client_suspect() {
    let mut rig = Rig::new();
    let id = rig.connect();
    rig.push(id, "*1\r\n$4\r\nPI");
    rig.run();
    rig.pass(Duration::from_secs(30));
    assert_eq!(rig.ask(id, "NG\r\n"), "+PONG\\r\\n");
    rig.pass(Duration::from_secs(3600));
    rig.run();
    assert!(!rig.gateway.should_close(id));
    assert_eq!(rig.gateway.next_deadline(), Time::NEVER);
}

#[test]
fn idle_client_is_closed_when_the_operator_wants_it() {
    let idle_max = Duration::from_secs(10);
    let mut rig = Rig::with(GatewayConfig {
        idle_max,
        ..GatewayConfig::default()
    });
    let (one, other) = (rig.connect(), rig.connect());
    rig.pass(Duration::from_secs(6));
    rig.say(one, "PING");
    while !rig.gateway.should_close(other) {
        rig.now = rig.gateway.next_deadline();
        rig.run();
    }
    assert_eq!(rig.now, Time(1_000_000_000) + idle_max);
    assert!(!rig.gateway.should_close(one));
}

#[test]
fn client_that_does_not_read_is_not_read_from() {
    let config = GatewayConfig {
        output_bytes_soft: 1000,
        output_bytes_max: 5000,
        ..Default::default()
    };
    let mut rig = Rig::with(config);
    let id = rig.connect();
    let value = "v".repeat(900);
    rig.say(id, &format!("SET a {value}"));
    rig.push(id, "GET a\r\n".repeat(2));
    rig.run();
    assert!(!rig.gateway.wants_read(id));
    rig.push(id, "GET a\r\nPING\r\n");
    rig.run();
    let before = rig.gateway.output(id).len();
    assert!(before < 2000);
    assert!(rig.output(id).ends_with("\\r\\n"));
    assert!(rig.gateway.wants_read(id));
    rig.run();
    assert!(rig.output(id).ends_with("+PONG\\r\\n"));
    // One request may ask for more than the client may owe.
    let whole = "GET a\r\n".repeat(6);
    rig.push(id, format!("MULTI\r\n{whole}EXEC\r\n"));
    rig.run();
    assert!(rig.gateway.should_close(id));
    assert_eq!(rig.output(id), "");
    assert_eq!(rig.gateway.counters().connections_dropped, 1);
}

#[test]
fn suppressed_replies_are_made_in_turns() {
    let mut rig = Rig::with(GatewayConfig {
        output_bytes_soft: 64 << 10,
        ..GatewayConfig::default()
    });
    let (silent, other) = (rig.connect(), rig.connect());
    let commands = format!("CLIENT REPLY OFF\r\n{}", "INFO\r\n".repeat(10_000));
    rig.push(silent, commands);
    rig.push(other, "PING\r\n");
    assert_eq!(rig.collect(), []);
    assert_eq!(rig.output(other), "+PONG\\r\\n");
    let left = rig.gateway.input(silent).len();
    assert!(left > 50_000, "{left}");
    rig.run();
    for _ in 0..10_000 {
        if rig.gateway.input(silent).is_empty() {
            break;
        }
        rig.run();
    }
    assert!(rig.gateway.input(silent).is_empty(), "all are answered");
    assert_eq!(rig.output(silent), "");
}

#[test]
fn commands_answered_here_take_a_bounded_number_of_arguments() {
    let mut rig = Rig::new();
    let id = rig.connect();
    let names = " get".repeat(2000);
    let refused = "-ERR 'command' takes at most 1024 arguments\\r\\n";
    assert_eq!(rig.say(id, &format!("COMMAND INFO{names}")), refused);
    let pattern = "*".repeat(300);
    assert_eq!(rig.say(id, &format!("CONFIG GET {pattern}")), "*0\\r\\n");
    assert_eq!(rig.say(id, "PING"), "+PONG\\r\\n");
}

#[test]
fn client_with_largest_output_is_dropped_above_limit() {
    let value = "v".repeat(2 << 20);
    let mut rig = Rig::with(GatewayConfig {
        output_bytes_soft: 1000,
        outputs_bytes_max: 9 << 20,
        ..GatewayConfig::default()
    });
    let clients: Vec<_> = (0..3).map(|_| rig.connect()).collect();
    let set = format!(
        "*3\r\n$3\r\nSET\r\n$1\r\na\r\n${}\r\n{value}\r\n",
        value.len()
    );
    assert_eq!(rig.ask(clients[0], set), "+OK\\r\\n");
    rig.push(clients[0], "GET a\r\n");
    let thrice = "GET a\r\n".repeat(3);
    rig.push(clients[1], format!("MULTI\r\n{thrice}EXEC\r\n"));
    rig.run();
    assert!(!clients.iter().any(|id| rig.gateway.should_close(*id)));
    rig.push(clients[2], "GET a\r\n");
    rig.run();
    let closed = clients.iter().map(|id| rig.gateway.should_close(*id));
    assert!(closed.eq([false, true, false]));
    assert_eq!(rig.gateway.output(clients[1]).len(), 0);
    assert!(rig.output(clients[2]).ends_with("v\\r\\n"));
}

#[test]
fn client_that_sends_ahead_is_held_back() {
    let mut rig = Rig::new();
    let id = rig.connect();
    rig.say(id, "SET a 0");
    rig.push(id, "INCR a\r\n");
    let submission = rig.collect().remove(0);
    assert!(rig.gateway.wants_read(id));
    rig.push(id, "INCR a\r\n".repeat(40_000));
    assert!(!rig.gateway.wants_read(id));
    let outcome = rig.execute(&submission);
    rig.done(&submission, outcome);
    rig.run();
    assert!(rig.gateway.wants_read(id));
    assert!(rig.output(id).ends_with(":40001\\r\\n"));
    // No request was larger than it may be.
    assert!(rig.ordered() >= 40_000 / 1024);
}

#[test]
fn command_larger_than_what_may_wait_is_let_in() {
    let mut rig = Rig::new();
    let id = rig.connect();
    let length = 3 << 20;
    rig.push(id, format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n${length}\r\n"));
    let piece = vec![b'v'; 64 << 10];
    for _ in 0..length / piece.len() {
        rig.run();
        assert!(rig.gateway.wants_read(id));
        rig.push(id, &piece);
    }
    assert_eq!(rig.ask(id, "\r\n"), "+OK\\r\\n");
    assert_eq!(rig.say(id, "STRLEN a"), format!(":{length}\\r\\n"));
}

#[test]
fn too_many_bytes_in_flight_stop_intake() {
    let config = GatewayConfig {
        in_flight_bytes_max: 100,
        ..GatewayConfig::default()
    };
    let mut rig = Rig::with(config);
    let (one, other) = (rig.connect(), rig.connect());
    rig.say(one, "SET a 0");
    rig.say(other, "SET a 0");
    rig.push(one, format!("SET a {}\r\n", "v".repeat(200)));
    let submission = rig.collect().remove(0);
    rig.push(other, "SET a 2\r\n");
    assert_eq!(rig.collect(), []);
    let outcome = rig.execute(&submission);
    rig.done(&submission, outcome);
    rig.run();
    assert_eq!(rig.output(other), "+OK\\r\\n");
}

proptest! {
    #[test]
    fn no_bytes_from_clients_make_it_panic(
        pieces in prop::collection::vec(
            (0..3usize, prop_oneof![
                prop::collection::vec(any::<u8>(), 0..60),
                prop::sample::select(vec![
                    "MULTI\r\n", "EXEC\r\n", "SET a 1\r\n", "GET a\r\n", "WATCH a b\r\n", "INFO\r\n",
                    "DISCARD\r\n", "HELLO 3\r\n", "RESET\r\n", "SELECT 3\r\n", "CLIENT LIST\r\n",
                    "COMMAND\r\n", "*2\r\n$3\r\nGET\r\n", "$1\r\na\r\n", "UNWATCH\r\n", "QUIT\r\n",
                    "CLIENT KILL TYPE normal\r\n", "MSET a 1 b\r\n", "AUTH x\r\n", "WAIT 1 1\r\n",
                ]).prop_map(|text| text.as_bytes().to_vec()),
            ]),
            0..40,
        ),
    ) {
        let mut rig = Rig::new();
        let mut ids = [rig.connect(), rig.connect(), rig.connect()];
        for (index, bytes) in pieces {
            rig.push(ids[index], bytes);
            rig.run();
            if rig.gateway.should_close(ids[index]) {
                rig.gateway.on_closed(ids[index]);
                ids[index] = rig.connect();
            }
            for id in ids {
                rig.output(id);
            }
        }
        for id in ids {
            rig.gateway.on_closed(id);
        }
        rig.run();
        prop_assert!(rig.gateway.idle());
        prop_assert_eq!(rig.gateway.counters().connections_open, 0);
    }
}

fn set(key: &str, bytes: usize) -> Vec<u8> {
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${bytes}\r\n", key.len());
    let mut out = head.into_bytes();
    out.resize(out.len() + bytes, b'v');
    out.extend_from_slice(b"\r\n");
    out
}

#[test]
fn large_requests_go_alone_and_after_small_ones() {
    let mut rig = Rig::new();
    let (one, other, small) = (rig.connect(), rig.connect(), rig.connect());
    rig.say(small, "SET a 0");
    rig.push(one, set("one", 12 << 20));
    rig.push(other, set("other", 12 << 20));
    rig.push(small, "INCR a\r\n");
    let first = rig.collect();
    let lengths: Vec<_> = first.iter().map(|it| it.batch.len() >> 20).collect();
    assert_eq!(lengths, [0, 12]);
    assert!(!rig.gateway.wants_read(other));
    // The second large one waits for the first, and small ones for neither.
    rig.done(&first[0], Outcome::Busy);
    rig.pass(Duration::from_millis(5));
    assert_eq!(rig.collect(), [], "it may gather company");
    rig.pass(Duration::from_millis(5));
    let again = rig.collect();
    assert_eq!(again.len(), 1);
    let outcome = rig.execute(&again[0]);
    rig.done(&again[0], outcome);
    assert_eq!(rig.output(small), ":1\\r\\n");
    assert_eq!(rig.collect(), []);
    let outcome = rig.execute(&first[1]);
    rig.done(&first[1], outcome);
    assert_eq!(rig.output(one), "+OK\\r\\n");
    assert!(rig.gateway.next_deadline() <= rig.now);
    rig.run();
    assert_eq!(rig.output(other), "+OK\\r\\n");
    assert!(rig.gateway.idle());
}

#[test]
fn pipeline_of_long_replies_is_cut_into_short_requests() {
    let mut rig = Rig::new();
    let (id, other) = (rig.connect(), rig.connect());
    rig.ask(id, set("a", 1 << 20));
    rig.output(id);
    rig.push(id, "GET a\r\n".repeat(300));
    rig.push(other, "PING\r\nGET b\r\n");
    rig.run();
    let owed = rig.gateway.output(id).len();
    assert!(
        owed < 20 << 20,
        "{owed} bytes for one client that reads nothing"
    );
    assert_eq!(rig.output(other), "+PONG\\r\\n$-1\\r\\n");
    // Reading continues.
    let mut bytes = 0;
    loop {
        let came = rig.gateway.output(id).take().len();
        bytes += came;
        if came == 0 {
            break;
        }
        rig.run();
    }
    assert_eq!(bytes, 300 * ((1 << 20) + "$1048576\r\n\r\n".len()));
    // Short replies make requests long again.
    let before = rig.submitted.len();
    rig.push(id, "GET b\r\n".repeat(4096));
    rig.run();
    assert!(rig.submitted.len() - before < 20);
}

#[test]
fn largest_unfinished_command_is_dropped_when_memory_is_full() {
    let mut rig = Rig::with(GatewayConfig {
        value_bytes_max: 1 << 20,
        command_bytes_max: (1 << 20) + 1024,
        inputs_bytes_max: 0,
        ..GatewayConfig::default()
    });
    let half = |bytes: usize| {
        let mut half = set("a", 1 << 20);
        half.truncate(bytes);
        half
    };
    let (one, two, three) = (rig.connect(), rig.connect(), rig.connect());
    rig.push(one, half(700 << 10));
    rig.push(two, half(900 << 10));
    rig.run();
    assert!(!rig.gateway.should_close(two));
    rig.push(three, half(800 << 10));
    rig.run();
    assert!(rig.gateway.should_close(two));
    assert!(
        rig.output(two)
            .starts_with("-BUSY memory for unfinished commands is full")
    );
    assert!(!rig.gateway.should_close(one) && !rig.gateway.should_close(three));
    rig.gateway.on_closed(two);
    rig.gateway.on_closed(one);
    let rest = set("a", 1 << 20).split_off(800 << 10);
    assert_eq!(rig.ask(three, rest), "+OK\\r\\n");
    assert_eq!(rig.gateway.counters().connections_dropped, 1);
}

#[test]
fn large_requests_leave_others_their_share_of_time() {
    for others in [0, 3] {
        let mut rig = Rig::new();
        let large = rig.connect();
        let small: Vec<_> = (0..others).map(|_| rig.connect()).collect();
        rig.say(large, "INCR a");
        rig.pass(Duration::from_secs(2));
        for id in &small {
            rig.say(*id, "INCR a");
        }
        rig.push(large, set("b", 12 << 20));
        let first = rig.collect();
        rig.push(large, set("b", 12 << 20));
        rig.pass(Duration::from_millis(100));
        let outcome = rig.execute(&first[0]);
        rig.done(&first[0], outcome);
        assert_eq!(rig.output(large), "+OK\\r\\n");
        let at_once = rig.collect();
        if others == 0 {
            assert_eq!(at_once.len(), 1, "no other client wants the time");
            let outcome = rig.execute(&at_once[0]);
            rig.done(&at_once[0], outcome);
        } else {
            assert_eq!(at_once, []);
            let begins = rig.gateway.next_deadline();
            assert_eq!(begins, rig.now + Duration::from_millis(300));
            // Small ones do not wait meanwhile.
            assert_eq!(rig.say(small[0], "GET c"), "$-1\\r\\n");
            rig.pass(Duration::from_millis(300));
            rig.run();
        }
        assert_eq!(rig.output(large), "+OK\\r\\n");
    }
}

#[test]
fn clients_of_large_requests_are_no_others() {
    let mut rig = Rig::new();
    let both = [rig.connect(), rig.connect()];
    rig.say(both[0], "INCR a");
    for round in 0..4 {
        rig.pass(Duration::from_secs(1));
        for id in both {
            rig.say(id, "GET c");
            rig.push(id, set("b", 12 << 20));
            if round < 2 {
                rig.pass(Duration::from_millis(300));
            }
            let submitted = rig.collect();
            assert_eq!(submitted.len(), 1, "round {round}");
            rig.pass(Duration::from_millis(100));
            let outcome = rig.execute(&submitted[0]);
            rig.done(&submitted[0], outcome);
            assert_eq!(rig.output(id), "+OK\\r\\n");
        }
    }
}

#[test]
fn buffer_of_a_long_command_grows_in_few_steps() {
    let mut rig = Rig::new();
    let id = rig.connect();
    let bytes = set("a", 12 << 20);
    let mut capacities = Vec::new();
    for piece in bytes[..bytes.len() - 1].chunks(64 << 10) {
        rig.push(id, piece);
        // The room for a read.
        rig.gateway.input(id).reserve(1);
        rig.run();
        let capacity = rig.gateway.input(id).capacity();
        assert!(capacity <= (2 << 20) + 8 * rig.gateway.input(id).len());
        capacities.push(capacity);
    }
    assert!(*capacities.last().unwrap() < bytes.len() + (128 << 10));
    capacities.dedup();
    assert!(capacities.len() < 8, "{capacities:?}");
    assert_eq!(
        rig.ask(id, &bytes[bytes.len() - 1..]),
        "+OK\\r\\n",
        "the last byte"
    );
}

#[test]
fn others_are_counted_at_every_member() {
    let mut rig = Rig::with(GatewayConfig {
        members: 3,
        ..GatewayConfig::default()
    });
    let (large, small) = (rig.connect(), rig.connect());
    rig.say(large, "INCR a");
    rig.pass(Duration::from_secs(2));
    rig.say(small, "INCR a");
    rig.push(large, set("b", 12 << 20));
    let first = rig.collect();
    rig.push(large, set("b", 12 << 20));
    rig.pass(Duration::from_millis(100));
    let outcome = rig.execute(&first[0]);
    rig.done(&first[0], outcome);
    assert_eq!(rig.collect(), []);
    let begins = rig.gateway.next_deadline();
    assert_eq!(begins, rig.now + Duration::from_millis(300));
}

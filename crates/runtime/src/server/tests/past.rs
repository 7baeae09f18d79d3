//! Reads of the past through the gateway.

use super::rig::{BEGIN, Rig};
use crate::server::{GatewayConfig, NodeView};
use quintet_replica::{Level, Outcome, RequestKind};
use std::time::Duration;

/// A gateway whose store keeps the past, and a client.
fn keeping() -> (Rig, crate::server::ConnectionId) {
    let mut rig = Rig::new();
    let id = rig.connect();
    assert_eq!(
        rig.say(id, "QUINTET.RETAIN SECONDS 100 BYTES 1000000"),
        "+OK\\r\\n"
    );
    (rig, id)
}

/// The rig's clock now, in microseconds.
fn micros(rig: &Rig) -> u64 {
    rig.log_clock() / 1000
}

#[test]
fn closed_time_is_read_here_and_an_open_one_behind_a_tick() {
    let (mut rig, id) = keeping();
    rig.say(id, "SET a 1");
    let then = micros(&rig);
    rig.pass(Duration::from_secs(1));
    rig.say(id, "SET a 2");
    rig.submitted.clear();
    let at = format!("QUINTET.AT us:{then} GET a");
    assert_eq!(rig.say(id, &at), "$1\\r\\n1\\r\\n");
    assert_eq!(rig.submitted, [(Level::Stale, vec![RequestKind::Past])]);
    rig.pass(Duration::from_millis(1));
    rig.submitted.clear();
    let at = format!("QUINTET.AT us:{} GET a", micros(&rig) - 1);
    assert_eq!(rig.say(id, &at), "$1\\r\\n2\\r\\n");
    assert_eq!(
        rig.submitted,
        [
            (Level::Stale, vec![RequestKind::Past]),
            (Level::Ordered, vec![RequestKind::Tick]),
            (Level::Linearizable, vec![RequestKind::Past]),
        ]
    );
}

#[test]
fn newest_state_is_read_behind_a_tick() {
    let (mut rig, id) = keeping();
    rig.say(id, "SET a 1");
    rig.submitted.clear();
    assert_eq!(rig.say(id, "QUINTET.AT now GET a"), "$1\\r\\n1\\r\\n");
    let levels: Vec<Level> = rig.submitted.iter().map(|(level, _)| *level).collect();
    assert_eq!(levels, [Level::Ordered, Level::Linearizable]);
    assert_eq!(rig.say(id, "QUINTET.AT v:0 EXISTS a"), ":0\\r\\n");
    assert_eq!(rig.say(id, "QUINTET.AT v:1 EXISTS a"), ":1\\r\\n");
    assert!(
        rig.say(id, "QUINTET.AT v:2 GET a")
            .starts_with("-NOTYET that version")
    );
    assert!(
        rig.say(id, "QUINTET.HISTORY a")
            .starts_with("*1\\r\\n*4\\r\\n:1\\r\\n")
    );
    let diff = rig.say(id, "QUINTET.DIFF v:0 now");
    assert_eq!(
        diff,
        "*2\\r\\n$1\\r\\n0\\r\\n*1\\r\\n*2\\r\\n$1\\r\\na\\r\\n$7\\r\\ncreated\\r\\n"
    );
}

#[test]
fn time_to_come_is_waited_for_until_the_clients_deadline() {
    let (mut rig, id) = keeping();
    let soon = format!("QUINTET.AT us:{} GET a", micros(&rig) + 300_000);
    assert_eq!(rig.say(id, &soon), "", "not yet");
    let wakes = rig.gateway.next_deadline();
    assert!(wakes > rig.now && wakes.since(rig.now) <= Duration::from_millis(301));
    rig.say(id, "SET a 1");
    assert_eq!(rig.output(id), "", "one command after the other");
    rig.pass(Duration::from_millis(301));
    rig.run();
    assert_eq!(rig.output(id), "$-1\\r\\n+OK\\r\\n");
    let far = format!("QUINTET.AT us:{} GET a", micros(&rig) + 3_600_000_000);
    assert!(rig.say(id, &far).starts_with("-NOTYET that time is 3"));
    assert_eq!(rig.say(id, "GET a"), "$1\\r\\n1\\r\\n");
}

#[test]
fn orderer_whose_clock_is_behind_is_waited_for() {
    let (mut rig, id) = keeping();
    // This server's clock is two seconds ahead of the log's.
    rig.behind = -2_000_000_000;
    let now = format!("QUINTET.AT us:{} EXISTS a", micros(&rig) + 1_000_000);
    assert_eq!(rig.say(id, &now), "");
    for _ in 0..30 {
        rig.pass(Duration::from_millis(50));
        rig.run();
    }
    assert_eq!(rig.output(id), ":0\\r\\n");
}

#[test]
fn read_of_the_past_is_alone_in_its_request() {
    let (mut rig, id) = keeping();
    let then = micros(&rig);
    rig.pass(Duration::from_secs(1));
    let text = format!(
        "SET a 1\r\nQUINTET.AT us:{then} GET a\r\nGET a\r\nQUINTET.AT now GET a\r\nPING\r\n"
    );
    assert_eq!(
        rig.ask(id, text),
        "+OK\\r\\n$-1\\r\\n$1\\r\\n1\\r\\n$1\\r\\n1\\r\\n+PONG\\r\\n"
    );
}

#[test]
fn bad_reads_of_the_past_are_refused_at_once() {
    let (mut rig, id) = keeping();
    rig.submitted.clear();
    for (line, error) in [
        (
            "QUINTET.AT",
            "-ERR wrong number of arguments for 'quintet.at' command",
        ),
        (
            "QUINTET.AT now",
            "-ERR wrong number of arguments for 'quintet.at' command",
        ),
        ("QUINTET.AT yesterday GET a", "-ERR invalid time"),
        ("QUINTET.AT -5 GET a", "-ERR invalid time"),
        ("QUINTET.AT now NOPE a", "-ERR unknown command 'NOPE'"),
        (
            "QUINTET.AT now GET",
            "-ERR wrong number of arguments for 'get' command",
        ),
        (
            "QUINTET.AT now SET a 1",
            "-ERR 'SET' cannot be asked of the past",
        ),
        (
            "QUINTET.AT now KEYS *",
            "-ERR 'KEYS' cannot be asked of the past",
        ),
        (
            "QUINTET.AT now QUINTET.AT now GET a",
            "-ERR 'QUINTET.AT' cannot be asked",
        ),
        (
            "QUINTET.AT now MULTI",
            "-ERR 'MULTI' cannot be asked of the past",
        ),
        ("QUINTET.HISTORY a LIMIT 0", "-ERR LIMIT must be"),
        ("QUINTET.HISTORY a LIMIT 10001", "-ERR LIMIT must be"),
        ("QUINTET.HISTORY a NOPE", "-ERR syntax error"),
        (
            "QUINTET.DIFF now",
            "-ERR wrong number of arguments for 'quintet.diff' command",
        ),
        ("QUINTET.DIFF v:0 now CURSOR x", "-ERR invalid cursor"),
        ("QUINTET.DIFF v:0 now MATCH", "-ERR syntax error"),
    ] {
        let reply = rig.say(id, line);
        assert!(reply.starts_with(error), "{line}: {reply}");
    }
    assert_eq!(rig.submitted, []);
    rig.say(id, "MULTI");
    let reply = rig.say(id, "QUINTET.AT now GET a");
    assert_eq!(reply, "-ERR Command not allowed inside a transaction\\r\\n");
    assert!(rig.say(id, "EXEC").starts_with("-EXECABORT"));
    assert!(
        rig.say(id, "QUINTET.RETAIN SECONDS")
            .starts_with("-ERR syntax error")
    );
    assert!(
        rig.say(id, "QUINTET.RETAIN BYTES -1")
            .starts_with("-ERR a limit is not negative")
    );
    assert!(
        rig.say(id, "QUINTET.RETAIN BYTES x")
            .starts_with("-ERR value is not an integer")
    );
    assert!(
        rig.say(id, "QUINTET.RETAIN")
            .contains("seconds\\r\\n:100\\r\\n")
    );
}

#[test]
fn past_that_is_not_kept_is_said() {
    let mut rig = Rig::new();
    let id = rig.connect();
    assert!(
        rig.say(id, "QUINTET.AT now GET a")
            .starts_with("-NOHISTORY the past is not kept")
    );
    rig.pass(Duration::from_secs(1));
    rig.say(id, "QUINTET.RETAIN BYTES 1000");
    let before = (BEGIN + 1_000_000_000) / 1000;
    let reply = rig.say(id, &format!("QUINTET.AT us:{before} GET a"));
    assert!(
        reply.starts_with("-NOHISTORY the past is kept since us:"),
        "{reply}"
    );
    rig.say(id, "QUINTET.RETAIN BYTES 0");
    assert!(
        rig.say(id, "QUINTET.HISTORY a")
            .starts_with("-NOHISTORY the past is not kept")
    );
}

#[test]
fn retain_beyond_the_memory_limit_is_refused() {
    let mut rig = Rig::with(GatewayConfig {
        memory_max: 1 << 20,
        ..GatewayConfig::default()
    });
    let id = rig.connect();
    let reply = rig.say(id, "QUINTET.RETAIN SECONDS 5 BYTES 1048577");
    assert!(reply.starts_with("-ERR BYTES exceeds"), "{reply}");
    assert_eq!(
        rig.say(id, "QUINTET.RETAIN SECONDS 5 BYTES 1048576"),
        "+OK\\r\\n"
    );
}

#[test]
fn full_disk_refuses_what_needs_a_tick_and_the_client_continues() {
    let (mut rig, id) = keeping();
    rig.say(id, "SET a 1");
    let then = micros(&rig);
    rig.pass(Duration::from_secs(1));
    rig.say(id, "SET a 2");
    rig.gateway.set_view(NodeView {
        disk_state: "full",
        ..NodeView::default()
    });
    rig.pass(Duration::from_millis(1));
    let not_closed = format!("QUINTET.AT us:{} GET a", micros(&rig) - 1);
    for line in ["QUINTET.AT now GET a", "QUINTET.HISTORY a", &not_closed] {
        let reply = rig.ask(id, format!("{line}\r\nPING\r\n"));
        let refused = reply.starts_with("-MISCONF") && reply.ends_with("\\r\\n+PONG\\r\\n");
        assert!(refused, "{line}: {reply}");
    }
    let closed = format!("QUINTET.AT us:{then} GET a");
    assert_eq!(rig.say(id, &closed), "$1\\r\\n1\\r\\n");
}

#[test]
fn failed_read_of_the_past_is_tried_again_or_answered() {
    let (mut rig, id) = keeping();
    rig.push(id, "QUINTET.AT now EXISTS a\r\n");
    let tick = rig.collect().remove(0);
    rig.done(&tick, Outcome::Busy);
    assert_eq!(rig.output(id), "");
    rig.pass(Duration::from_millis(6));
    rig.run();
    assert_eq!(rig.output(id), ":0\\r\\n");
    rig.push(id, "QUINTET.AT now EXISTS a\r\nPING\r\n");
    let tick = rig.collect().remove(0);
    rig.done(&tick, Outcome::Uncertain);
    rig.run();
    let reply = rig.output(id);
    assert!(
        reply.starts_with("-CLUSTERDOWN") && reply.ends_with("+PONG\\r\\n"),
        "{reply}"
    );
}

#[test]
fn client_that_leaves_during_a_read_leaves_nothing_behind() {
    let (mut rig, id) = keeping();
    let far = format!("QUINTET.AT us:{} GET a\r\n", micros(&rig) + 2_000_000);
    rig.push(id, far);
    rig.run();
    rig.gateway.on_closed(id);
    rig.run();
    assert!(rig.gateway.idle());
    let other = rig.connect();
    rig.push(other, "QUINTET.AT now EXISTS a\r\n");
    let tick = rig.collect().remove(0);
    rig.gateway.on_closed(other);
    let outcome = rig.execute(&tick);
    rig.done(&tick, outcome);
    rig.run();
    assert!(rig.gateway.idle());
    assert_eq!(rig.connect(), id);
}

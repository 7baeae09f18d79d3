//! A gateway whose keys are divided among groups.

use super::rig::Rig;
use crate::{
    layout::{Layout, Subgroup},
    server::{ConnectionId, GatewayConfig, KeyShards, NodeView},
};
use quintet_replica::{Durability, Level, Outcome, ReplicaId, group_of};

/// Two shards of a store, and a cache of one, with a client.
fn divided() -> (Rig, ConnectionId) {
    divided_in(Durability::Memory, 0)
}

fn divided_in(durability: Durability, me: u16) -> (Rig, ConnectionId) {
    let subgroup = |name: &str, prefix: &str, count| Subgroup {
        name: name.to_owned(),
        prefix: prefix.to_owned(),
        service: None,
        hands_off_to: Vec::new(),
        shards: vec![vec![ReplicaId(0), ReplicaId(2)]; count],
        view: None,
        protocol: "multipaxos".to_owned(),
        options: Vec::new(),
        durability,
    };
    let layout = Layout {
        subgroups: vec![subgroup("store", "", 2), subgroup("cache", "cache:", 1)],
    };
    let mut rig = Rig::with(GatewayConfig {
        shards: Some(KeyShards::of(&layout, ReplicaId(me))),
        ..GatewayConfig::default()
    });
    let id = rig.connect();
    (rig, id)
}

/// A key of each of the two shards of the store.
const KEYS: [&str; 2] = ["b", "a"];

#[test]
fn keys_go_to_the_log_of_their_shard() {
    let (mut rig, id) = divided();
    for key in [KEYS[0], KEYS[1], "cache:a"] {
        assert_eq!(rig.say(id, &format!("SET {key} 1")), "+OK\\r\\n");
    }
    let held = |executor: &quintet_replica::Executor| executor.machine().entries();
    assert_eq!(held(&rig.executor), 1);
    assert_eq!(rig.others.iter().map(held).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(rig.say(id, "GET cache:a"), "$1\\r\\n1\\r\\n");
    assert_eq!(rig.gateway.counters().sessions_open, 3);
}

#[test]
fn pipeline_over_shards_is_answered_in_order() {
    let (mut rig, id) = divided();
    let [first, second] = KEYS;
    let lines = [
        format!("SET {first} 1\r\nINCR {second}\r\nPING\r\nINCR {second}\r\n"),
        format!("GET {first}\r\nMGET {first} {second}\r\nGET {second}\r\nDBSIZE\r\n"),
    ];
    rig.push(id, lines.concat());
    rig.run();
    let output = rig.output(id);
    let (answers, refused) = output.split_at(output.find("-CROSSSLOT").expect("MGET is refused"));
    assert_eq!(
        answers,
        "+OK\\r\\n:1\\r\\n+PONG\\r\\n:2\\r\\n$1\\r\\n1\\r\\n"
    );
    assert!(refused.contains("$1\\r\\n2\\r\\n-ERR 'DBSIZE' concerns the keys of all 3 shards"));
    assert_eq!(rig.say(id, "MSET {x}1 1 {x}2 2"), "+OK\\r\\n");
}

#[test]
fn transaction_is_of_one_shard() {
    let (mut rig, id) = divided();
    let [first, second] = KEYS;
    rig.say(id, "MULTI");
    assert_eq!(rig.say(id, &format!("SET {first} 1")), "+QUEUED\\r\\n");
    assert!(
        rig.say(id, &format!("SET {second} 1"))
            .starts_with("-CROSSSLOT ")
    );
    assert!(rig.say(id, "EXEC").starts_with("-EXECABORT "));
    // The refused transaction has left nothing behind.
    for key in KEYS {
        assert_eq!(rig.say(id, &format!("WATCH {key}")), "+OK\\r\\n");
        rig.say(id, "MULTI");
        rig.say(id, &format!("INCR {key}"));
        assert_eq!(rig.say(id, "EXEC"), "*1\\r\\n:1\\r\\n", "{key}");
    }
    // A watched key binds the transaction to its shard.
    assert_eq!(rig.say(id, &format!("WATCH {first}")), "+OK\\r\\n");
    assert!(
        rig.say(id, &format!("WATCH {second}"))
            .starts_with("-CROSSSLOT ")
    );
    rig.say(id, "MULTI");
    assert!(
        rig.say(id, &format!("SET {second} 1"))
            .starts_with("-CROSSSLOT ")
    );
    rig.say(id, "DISCARD");
    rig.say(id, "UNWATCH");
    let both = format!("GET {first}\r\nMULTI\r\nINCR {second}\r\nEXEC\r\nGET {first}\r\n");
    rig.push(id, both);
    rig.run();
    let expected = "$1\\r\\n1\\r\\n+OK\\r\\n+QUEUED\\r\\n*1\\r\\n:2\\r\\n$1\\r\\n1\\r\\n";
    assert_eq!(rig.output(id), expected);
}

#[test]
fn failed_watch_and_watch_inside_a_transaction_bind_nothing() {
    let (mut rig, id) = divided();
    let [first, second] = KEYS;
    rig.push(id, format!("WATCH {first}\r\n"));
    for submission in rig.collect() {
        rig.done(&submission, Outcome::NoQuorum);
    }
    assert!(rig.output(id).starts_with("-CLUSTERDOWN "));
    rig.say(id, "MULTI");
    assert_eq!(rig.say(id, &format!("INCR {second}")), "+QUEUED\\r\\n");
    let refused = rig.say(id, &format!("WATCH {first}"));
    assert!(refused.starts_with("-ERR WATCH inside MULTI"), "{refused}");
    assert_eq!(rig.say(id, &format!("INCR {second}")), "+QUEUED\\r\\n");
    assert_eq!(rig.say(id, "EXEC"), "*2\\r\\n:1\\r\\n:2\\r\\n");
}

#[test]
fn full_disk_refuses_writes_only_to_shards_that_are_kept_on_it() {
    let (mut rig, id) = divided();
    rig.gateway.set_view(NodeView {
        disk_state: "full",
        ..NodeView::default()
    });
    // All shards here are in memory.
    assert_eq!(rig.say(id, "SET a 1"), "+OK\\r\\n");
    let (mut rig, id) = divided_in(Durability::Disk, 0);
    rig.gateway.set_view(NodeView {
        disk_state: "full",
        ..NodeView::default()
    });
    assert!(rig.say(id, "SET a 1").starts_with("-MISCONF "));
    assert_eq!(rig.say(id, "GET a"), "$-1\\r\\n");
    // No member of them.
    let (mut rig, id) = divided_in(Durability::Disk, 1);
    rig.gateway.set_view(NodeView {
        disk_state: "full",
        ..NodeView::default()
    });
    assert_eq!(rig.say(id, "SET a 1"), "+OK\\r\\n");
}

#[test]
fn shard_without_quorum_fails_alone_and_is_named() {
    let (mut rig, id) = divided();
    let other = rig.connect();
    let clients = [(id, KEYS[0]), (other, KEYS[1])];
    for (id, key) in clients {
        rig.say(id, &format!("SET {key} 1"));
    }
    for (id, key) in clients {
        rig.push(id, format!("INCR {key}\r\n"));
    }
    for submission in rig.collect() {
        assert_eq!(submission.level, Level::Ordered);
        let outcome = match group_of(&submission.batch).0 {
            1 => Outcome::NoQuorum,
            _ => rig.execute(&submission),
        };
        rig.done(&submission, outcome);
    }
    let failed = rig.output(id);
    let expected = "-CLUSTERDOWN no agreement in time in shard store/0 (replicas 0, 2)";
    assert!(failed.starts_with(expected), "{failed}");
    assert_eq!(rig.output(other), ":2\\r\\n");
    // The next write of the first client opens another session there.
    assert_eq!(rig.say(id, &format!("INCR {}", KEYS[0])), ":2\\r\\n");
}

//! A gateway whose keys are divided among groups.

use super::rig::Rig;
use crate::{
    layout::{Layout, Subgroup},
    server::{ConnectionId, GatewayConfig, KeyShards, NodeView, ShardLoad},
};
use quintet_replica::{
    BatchView, Durability, Level, Outcome, ReplicaId, RequestKind, Submission, group_of,
};
use quintet_store::{ArgsBuffer, Commands};
use std::time::Duration;

/// Two shards of a store, and a cache of one, with a client.
fn divided() -> (Rig, ConnectionId) {
    divided_in(Durability::Memory, 0)
}

fn divided_in(durability: Durability, me: u16) -> (Rig, ConnectionId) {
    divided_with(durability, me, 0)
}

fn divided_with(durability: Durability, me: u16, memory_max: u64) -> (Rig, ConnectionId) {
    let subgroup = |name: &str, prefix: &str, count| Subgroup {
        name: name.to_owned(),
        prefix: prefix.to_owned(),
        service: None,
        hands_off_to: Vec::new(),
        reads: Vec::new(),
        union_of: Vec::new(),
        senders: crate::layout::Senders::All,
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
        memory_max,
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
fn shard_above_its_part_of_the_memory_refuses_alone() {
    // A process is in three shards.
    let (mut rig, id) = divided_with(Durability::Memory, 0, 3000);
    let [first, second] = KEYS;
    for key in KEYS {
        assert_eq!(rig.say(id, &format!("SET {key} 1")), "+OK\\r\\n");
    }
    let load = |memory, leads| ShardLoad {
        leads,
        memory,
        refuses: false,
    };
    let mut view = NodeView {
        leads: true,
        shards: vec![load(1200, true), load(1500, false), load(100, true)],
        ..NodeView::default()
    };
    rig.gateway.set_view(view.clone());
    rig.run();
    let of_first = rig.say(id, &format!("SET {first} 2"));
    assert!(
        of_first.starts_with("-OOM command not allowed"),
        "{of_first}"
    );
    assert_eq!(
        rig.say(id, &format!("SET {second} 2")),
        "+OK\\r\\n",
        "another one leads it"
    );
    view.shards[1].leads = true;
    rig.gateway.set_view(view.clone());
    rig.run();
    assert!(rig.say(id, &format!("SET {second} 2")).starts_with("-OOM"));
    view.shards[0].memory = 900;
    for shard in &mut view.shards[..2] {
        shard.refuses = true;
    }
    rig.pass(Duration::from_secs(1));
    rig.gateway.set_view(view);
    rig.run();
    assert_eq!(rig.say(id, &format!("SET {first} 2")), "+OK\\r\\n");
    assert!(rig.say(id, &format!("SET {second} 2")).starts_with("-OOM"));
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
    assert!(
        refused.contains("$1\\r\\n2\\r\\n-NOTOFFERED 'DBSIZE' concerns the keys of all 3 shards")
    );
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

/// The same with a session in each shard and a connection that may send many commands at once.
fn busy() -> (Rig, ConnectionId) {
    let (mut rig, id) = divided();
    for _ in 0..4 {
        for key in KEYS {
            rig.push(id, format!("SET {key} 0\r\n").repeat(8));
        }
        rig.run();
    }
    rig.output(id);
    (rig, id)
}

/// Commands `INCR` for the keys, by their places.
fn increments(places: &[usize]) -> String {
    let of = |place: &usize| format!("INCR {}\r\n", KEYS[*place]);
    places.iter().map(of).collect()
}

/// The shards of the batches.
fn groups(submissions: &[Submission]) -> Vec<u32> {
    let of = |submission: &Submission| group_of(&submission.batch).0;
    submissions.iter().map(of).collect()
}

#[test]
fn pipeline_is_in_progress_in_all_its_shards_at_once() {
    let (mut rig, id) = busy();
    rig.push(
        id,
        increments(&[0, 1, 0, 0, 1]) + "PING\r\n" + &increments(&[0]),
    );
    let submissions = rig.collect();
    assert_eq!(groups(&submissions), [1, 2]);
    // The last one ends first, and nothing is answered before those it stands behind.
    for submission in submissions.iter().rev() {
        assert_eq!(rig.output(id), "");
        let outcome = rig.execute(submission);
        rig.done(submission, outcome);
    }
    let expected = ":1\\r\\n:1\\r\\n:2\\r\\n:3\\r\\n:2\\r\\n+PONG\\r\\n:4\\r\\n";
    assert_eq!(rig.output(id), expected);
    // Replies of several lines, and reads beside writes.
    let [first, second] = KEYS;
    rig.push(
        id,
        format!(
            "RPUSH {{{first}}}l a b\r\nGET {second}\r\nLRANGE {{{first}}}l 0 -1\r\n\
             MGET {second} {{{second}}}x\r\nLLEN {{{first}}}l\r\n"
        ),
    );
    let submissions = rig.collect();
    let levels: Vec<_> = submissions.iter().map(|it| it.level).collect();
    assert_eq!(levels, [Level::Ordered, Level::Linearizable]);
    for submission in &submissions {
        let outcome = rig.execute(submission);
        rig.done(submission, outcome);
    }
    assert_eq!(
        rig.output(id),
        ":2\\r\\n$1\\r\\n2\\r\\n*2\\r\\n$1\\r\\na\\r\\n$1\\r\\nb\\r\\n\
         *2\\r\\n$1\\r\\n2\\r\\n$-1\\r\\n:2\\r\\n"
    );
}

#[test]
fn pipeline_fails_only_at_the_commands_of_the_shard_that_fails() {
    let (mut rig, id) = busy();
    rig.push(id, increments(&[0, 1, 1, 0]));
    for submission in rig.collect() {
        let outcome = match group_of(&submission.batch).0 {
            1 => rig.execute(&submission),
            _ => Outcome::Uncertain,
        };
        rig.done(&submission, outcome);
    }
    let uncertain = "-UNCERTAIN may or may not have been applied\\r\\n";
    let expected = format!(":1\\r\\n{uncertain}{uncertain}:2\\r\\n");
    assert_eq!(rig.output(id), expected);
    // Only the shard that failed has another session.
    rig.push(id, increments(&[0, 1]));
    let opens = |submission: &Submission| {
        let view = BatchView::checked(&submission.batch).expect("a batch");
        view.requests().any(|it| it.kind == RequestKind::Open)
    };
    let submissions = rig.collect();
    assert_eq!(groups(&submissions), [1, 2]);
    let opens: Vec<_> = submissions.iter().map(opens).collect();
    assert_eq!(opens, [false, true]);
}

#[test]
fn pipeline_waits_for_a_busy_shard_and_executes_all_once() {
    let (mut rig, id) = busy();
    rig.push(id, increments(&[0, 1, 0]));
    for submission in rig.collect() {
        let outcome = match group_of(&submission.batch).0 {
            1 => Outcome::Busy,
            _ => rig.execute(&submission),
        };
        rig.done(&submission, outcome);
    }
    // Later commands wait, too.
    rig.push(id, increments(&[1]));
    assert!(rig.collect().is_empty());
    assert_eq!(rig.output(id), "");
    rig.pass(std::time::Duration::from_millis(5));
    let submissions = rig.collect();
    assert_eq!(groups(&submissions), [1]);
    // The answer to the first attempt is lost on the way, so the replica sends the batch again.
    rig.execute(&submissions[0]);
    let outcome = rig.execute(&submissions[0]);
    rig.done(&submissions[0], outcome);
    rig.run();
    assert_eq!(rig.output(id), ":1\\r\\n:1\\r\\n:2\\r\\n:2\\r\\n");
}

#[test]
fn transaction_has_its_shards_to_itself_in_a_pipeline() {
    let (mut rig, id) = busy();
    let [first, second] = KEYS;
    let lines = [
        increments(&[0, 1]),
        format!("MULTI\r\nINCR {first}\r\nEXEC\r\n"),
        increments(&[0, 1]),
        format!("WATCH {second}\r\nGET {first}\r\n"),
    ];
    rig.push(id, lines.concat());
    let mut seen = Vec::new();
    loop {
        let submissions = rig.collect();
        if submissions.is_empty() {
            break;
        }
        seen.push(groups(&submissions));
        for submission in submissions {
            let outcome = rig.execute(&submission);
            rig.done(&submission, outcome);
        }
    }
    // EXEC with the command of its own shard that follows, then the other shard's, WATCH, and GET.
    assert_eq!(seen, [vec![1, 2], vec![1], vec![2], vec![2], vec![1]]);
    assert_eq!(
        rig.output(id),
        ":1\\r\\n:1\\r\\n+OK\\r\\n+QUEUED\\r\\n*1\\r\\n:2\\r\\n:3\\r\\n:2\\r\\n+OK\\r\\n$1\\r\\n3\\r\\n"
    );
}

#[test]
fn slot_of_a_client_that_left_is_free_after_all_answers() {
    let (mut rig, id) = busy();
    rig.push(id, increments(&[0, 1]));
    let submissions = rig.collect();
    rig.gateway.on_closed(id);
    for submission in &submissions {
        assert_ne!(rig.connect(), id, "a request of it is in progress");
        let outcome = rig.execute(submission);
        rig.done(submission, outcome);
    }
    assert_eq!(rig.connect(), id);
    assert!(rig.gateway.idle());
}

/// How many commands of clients a batch has.
fn commands_of(submission: &Submission) -> usize {
    let view = BatchView::checked(&submission.batch).expect("a batch");
    let requests = view.requests().filter(|it| it.kind == RequestKind::Command);
    let commands = requests.map(|request| {
        let mut commands = Commands::new(request.payload).expect("a request");
        let mut args = ArgsBuffer::new();
        std::iter::from_fn(|| commands.next(&mut args).expect("a command")).count()
    });
    commands.sum()
}

#[test]
fn pipeline_over_shards_is_bounded_like_any_other() {
    let (mut rig, id) = busy();
    let places: Vec<_> = (0..4000).map(|nth| nth % 2).collect();
    rig.push(id, increments(&places));
    let mut most = 0;
    loop {
        let submissions = rig.collect();
        if submissions.is_empty() {
            break;
        }
        let commands = submissions.iter().map(commands_of).sum::<usize>();
        most = most.max(commands);
        for submission in submissions {
            let outcome = rig.execute(&submission);
            rig.done(&submission, outcome);
        }
    }
    assert_eq!(most, GatewayConfig::default().request_commands_max);
    let output = rig.output(id);
    let last = ":1999\\r\\n:2000\\r\\n:2000\\r\\n";
    assert!(output.ends_with(last), "{}", &output[output.len() - 50..]);
    assert_eq!(output.matches(':').count(), 4000);
}

#[test]
fn sessions_of_all_groups_are_renewed_and_closed_in_time() {
    let (mut rig, id) = divided();
    let keys = [KEYS[0], KEYS[1], "cache:a"];
    for key in keys {
        rig.say(id, &format!("SET {key} 1"));
    }
    let quarter = GatewayConfig::default().session_lifetime / 4;
    let count = |rig: &Rig, wanted: RequestKind| {
        let kinds = rig.submitted.iter().flat_map(|(_, kinds)| kinds);
        kinds.filter(|kind| **kind == wanted).count()
    };
    for round in 1..=3 {
        assert!(rig.gateway.next_deadline() <= rig.now + quarter);
        rig.pass(quarter);
        rig.run();
        assert_eq!(count(&rig, RequestKind::Renew), keys.len() * round);
    }
    rig.gateway.on_closed(id);
    assert!(rig.gateway.next_deadline() <= rig.now + quarter);
    rig.pass(quarter);
    rig.run();
    assert_eq!(count(&rig, RequestKind::Close), keys.len());
    assert_eq!(rig.gateway.counters().sessions_open, 0);
}

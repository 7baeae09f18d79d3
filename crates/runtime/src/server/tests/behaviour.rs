//! How connections, sessions and batches go together.

use super::rig::Rig;
use crate::server::{Gateway, GatewayConfig, NodeView};
use quintet_replica::{FrontendId, Level, ReplicaId, RequestKind, Time};
use std::time::Duration;

#[test]
fn follower_submits_no_ticks() {
    let mut rig = Rig::new();
    let id = rig.connect();
    for line in [
        "PING",
        "ECHO x",
        "SELECT 1",
        "CLIENT ID",
        "CONFIG GET *",
        "INFO",
        "COMMAND",
    ] {
        assert!(!rig.say(id, line).starts_with('-'), "{line}");
    }
    assert!(rig.say(id, "MULTI").starts_with("+OK"));
    assert!(rig.say(id, "SET a 1").starts_with("+QUEUED"));
    assert!(rig.say(id, "DISCARD").starts_with("+OK"));
    rig.gateway.on_closed(id);
    rig.pass(Duration::from_secs(500));
    rig.run();
    assert_eq!(rig.submitted, []);
    assert_eq!(rig.gateway.next_deadline(), Time::NEVER);
}

#[test]
fn reads_are_linearizable_and_need_no_session() {
    let mut rig = Rig::new();
    let id = rig.connect();
    assert_eq!(rig.ask(id, "GET a\r\nPING\r\n"), "$-1\\r\\n+PONG\\r\\n");
    assert_eq!(
        rig.submitted,
        [(Level::Linearizable, vec![RequestKind::Command])]
    );
    assert_eq!(rig.executor.sessions(), 0);
}

#[test]
fn readonly_client_reads_local_state_until_readwrite_or_reset() {
    let mut rig = Rig::new();
    let (id, other) = (rig.connect(), rig.connect());
    rig.say(id, "SET a 1");
    rig.submitted.clear();
    // Each change waits for the reads before it.
    let lines = [
        "GET a",
        "READONLY",
        "GET a",
        "GET b",
        "READWRITE",
        "GET a",
        "",
    ];
    let replies = rig.ask(id, lines.join("\r\n"));
    assert!(replies.starts_with("$1\\r\\n1\\r\\n+OK"), "{replies}");
    rig.say(other, "GET a");
    for line in ["READONLY", "GET a", "RESET", "GET a"] {
        rig.say(id, line);
    }
    let levels: Vec<Level> = rig.submitted.iter().map(|(level, _)| *level).collect();
    let (new, stale) = (Level::Linearizable, Level::Stale);
    assert_eq!(levels, [new, stale, new, new, stale, new]);
    let counters = rig.gateway.counters();
    let batches = (counters.batches_linearizable, counters.batches_stale);
    assert_eq!(batches, (4, 2));
}

#[test]
fn readonly_does_not_weaken_writes_and_watches() {
    let mut rig = Rig::new();
    let id = rig.connect();
    rig.say(id, "READONLY");
    assert!(rig.say(id, "CLIENT INFO").contains(" flags=r "));
    rig.say(id, "SET a 1");
    rig.submitted.clear();
    rig.say(id, "WATCH a");
    rig.say(id, "MULTI");
    rig.say(id, "INCR a");
    assert_eq!(rig.say(id, "EXEC"), "*1\\r\\n:2\\r\\n");
    rig.ask(id, "MULTI\r\nGET a\r\nEXEC\r\n");
    let levels: Vec<Level> = rig.submitted.iter().map(|(level, _)| *level).collect();
    assert_eq!(levels, [Level::Linearizable, Level::Ordered, Level::Stale]);
}

#[test]
fn first_write_opens_session_and_end_of_connection_closes_it() {
    let mut rig = Rig::new();
    let id = rig.connect();
    assert_eq!(
        rig.ask(id, "SET a 1\r\nGET a\r\n"),
        "+OK\\r\\n$1\\r\\n1\\r\\n"
    );
    // The owner's own session registers it.
    assert_eq!(rig.executor.sessions(), 2);
    assert_eq!(
        rig.submitted,
        [
            (Level::Ordered, vec![RequestKind::Open]),
            (
                Level::Ordered,
                vec![RequestKind::Open, RequestKind::Command]
            ),
        ]
    );
    assert_eq!(rig.say(id, "SET a 2"), "+OK\\r\\n");
    assert_eq!(
        rig.submitted[2],
        (Level::Ordered, vec![RequestKind::Command])
    );
    rig.gateway.on_closed(id);
    rig.run();
    assert_eq!(rig.submitted.len(), 3, "it waits for company first");
    rig.now = rig.gateway.next_deadline();
    rig.run();
    assert_eq!(rig.submitted[3], (Level::Ordered, vec![RequestKind::Close]));
    assert_eq!(rig.executor.sessions(), 1);
}

#[test]
fn all_connections_of_a_turn_share_one_batch_of_each_kind() {
    let mut rig = Rig::new();
    let first = rig.connect();
    rig.say(first, "SET a 0");
    rig.submitted.clear();
    let ids: Vec<_> = (0..6).map(|_| rig.connect()).collect();
    for (index, id) in ids.iter().enumerate() {
        rig.push(
            *id,
            if index % 2 == 0 {
                "INCR a\r\n"
            } else {
                "GET a\r\n"
            },
        );
    }
    let submissions = rig.collect();
    let (open, command) = (RequestKind::Open, RequestKind::Command);
    assert_eq!(
        rig.submitted,
        [
            (
                Level::Ordered,
                vec![open, command, open, command, open, command]
            ),
            (Level::Linearizable, vec![command; 3]),
        ]
    );
    for submission in submissions {
        let outcome = rig.execute(&submission);
        rig.done(&submission, outcome);
    }
    let replies: Vec<_> = ids.iter().map(|id| rig.output(*id)).collect();
    assert_eq!(replies[0], ":1\\r\\n");
    assert_eq!(replies[4], ":3\\r\\n");
    assert_eq!(replies[5], "$1\\r\\n3\\r\\n");
}

#[test]
fn connection_has_one_request_in_flight_and_ordered_replies() {
    let mut rig = Rig::new();
    let id = rig.connect();
    rig.say(id, "SET a 0");
    rig.push(id, "INCR a\r\n");
    let first = rig.collect();
    rig.push(id, "INCR a\r\nPING\r\nGET a\r\n");
    assert_eq!(rig.collect(), []);
    assert_eq!(rig.output(id), "");
    let outcome = rig.execute(&first[0]);
    rig.done(&first[0], outcome);
    rig.run();
    assert_eq!(rig.output(id), ":1\\r\\n:2\\r\\n+PONG\\r\\n$1\\r\\n2\\r\\n");
}

#[test]
fn long_reply_waits_for_the_commands_before_it() {
    let mut rig = Rig::new();
    let id = rig.connect();
    let reply = rig.ask(id, "SET a 1\r\nCONFIG GET databases\r\nGET a\r\n");
    assert_eq!(
        reply,
        "+OK\\r\\n*2\\r\\n$9\\r\\ndatabases\\r\\n$2\\r\\n16\\r\\n$1\\r\\n1\\r\\n"
    );
    assert_eq!(rig.ordered(), 2);
}

#[test]
fn batch_in_flight_lets_next_one_go_along() {
    let mut rig = Rig::new();
    let ids: Vec<_> = (0..3).map(|_| rig.connect()).collect();
    ids.iter().for_each(|id| drop(rig.say(*id, "SET a 0")));
    rig.push(ids[0], "INCR a\r\n");
    let in_progress = rig.collect();
    assert_eq!(in_progress.len(), 1);
    rig.push(ids[1], "INCR a\r\n");
    assert_eq!(rig.collect(), [], "it waits for company");
    rig.push(ids[2], "INCR a\r\n");
    assert_eq!(rig.collect(), []);
    let until = rig.gateway.next_deadline();
    assert!(until > rig.now && until <= rig.now + Duration::from_millis(5));
    rig.now = until;
    let next = rig.collect();
    assert_eq!(next.len(), 1, "it does not wait forever");
    for submission in in_progress.iter().chain(&next) {
        let outcome = rig.execute(submission);
        rig.done(submission, outcome);
    }
    assert_eq!(rig.output(ids[2]), ":3\\r\\n");
}

#[test]
fn sessions_are_renewed_while_nothing_is_written() {
    let mut rig = Rig::new();
    let id = rig.connect();
    rig.say(id, "SET a 1");
    rig.submitted.clear();
    for _ in 0..10 {
        let next = rig.gateway.next_deadline();
        assert!(next > rig.now && next <= rig.now + Duration::from_secs(30));
        rig.now = next;
        rig.run();
    }
    assert_eq!(
        rig.submitted,
        vec![(Level::Ordered, vec![RequestKind::Renew]); 10]
    );
    assert_eq!(rig.say(id, "INCR a"), ":2\\r\\n");
    assert_eq!(
        rig.submitted[10],
        (Level::Ordered, vec![RequestKind::Command])
    );
}

#[test]
fn session_that_has_lapsed_unused_is_replaced_unseen() {
    let mut rig = Rig::new();
    let id = rig.connect();
    rig.say(id, "SET a 1");
    // The process was stopped for an hour: nothing was renewed.
    rig.pass(Duration::from_secs(3600));
    assert_eq!(rig.say(id, "INCR a"), ":2\\r\\n");
    assert_eq!(rig.gateway.counters().errors, 0);
}

#[test]
fn server_whose_clock_is_wrong_opens_its_sessions_all_the_same() {
    for behind in [3_600_000_000_000, -3_600_000_000_000, 1, -1] {
        let mut rig = Rig::new();
        rig.behind = behind;
        let (id, other) = (rig.connect(), rig.connect());
        assert_eq!(rig.say(other, "SET b 1"), "+OK\\r\\n");
        rig.pass(Duration::from_secs(2000));
        assert_eq!(rig.ask(id, "INCR a\r\nINCR a\r\n"), ":1\\r\\n:2\\r\\n");
        assert_eq!(rig.say(other, "INCR b"), ":2\\r\\n");
    }
}

#[test]
fn closed_connection_s_slot_waits_for_its_request() {
    let mut rig = Rig::new();
    let id = rig.connect();
    rig.say(id, "SET a 1");
    rig.push(id, "INCR a\r\n");
    let submissions = rig.collect();
    rig.gateway.on_closed(id);
    let other = rig.connect();
    assert_ne!(other, id);
    let outcome = rig.execute(&submissions[0]);
    rig.done(&submissions[0], outcome);
    assert_eq!(rig.connect(), id);
    assert_eq!(rig.output(id), "");
    assert_eq!(rig.say(other, "GET a"), "$1\\r\\n2\\r\\n");
}

#[test]
fn event_loop_is_told_what_has_changed() {
    let mut rig = Rig::new();
    let (one, other) = (rig.connect(), rig.connect());
    let mut dirty = Vec::new();
    rig.push(one, "PING\r\nSET a 1\r\n");
    rig.collect();
    rig.gateway.take_dirty(&mut dirty);
    assert_eq!(dirty, [one]);
    rig.run();
    dirty.clear();
    rig.gateway.take_dirty(&mut dirty);
    assert_eq!(dirty, []);
    rig.push(other, "QUIT\r\n");
    rig.run();
    rig.gateway.take_dirty(&mut dirty);
    assert_eq!(dirty, [other]);
    assert!(rig.gateway.should_close(other) && !rig.gateway.wants_read(other));
    assert!(!rig.gateway.should_close(one) && rig.gateway.wants_read(one));
}

#[test]
fn clients_are_listed_and_killed() {
    let mut rig = Rig::new();
    let (one, other) = (rig.connect(), rig.connect());
    rig.say(one, "CLIENT SETNAME one");
    rig.say(other, "CLIENT SETINFO lib-name redis-rs");
    let list = rig.say(one, "CLIENT LIST");
    assert!(list.contains("id=1 ") && list.contains("id=2 ") && list.contains("name=one"));
    assert!(list.contains("lib-name=redis-rs"));
    assert_eq!(rig.say(one, "CLIENT KILL ID 2"), ":1\\r\\n");
    assert!(rig.gateway.should_close(other) && !rig.gateway.should_close(one));
    assert_eq!(rig.say(one, "CLIENT KILL ID 1 SKIPME no"), ":1\\r\\n");
    assert!(rig.gateway.should_close(one));
}

#[test]
fn info_has_its_sections() {
    let mut rig = Rig::new();
    let id = rig.connect();
    let all = rig.say(id, "INFO");
    for expected in [
        "# Server",
        "redis_version:7.0.15",
        "# Quintet",
        "role:master",
        "disk_state:ok",
    ] {
        assert!(all.contains(expected), "{expected}");
    }
    let some = rig.say(id, "INFO clients memory");
    assert!(some.contains("connected_clients:1") && !some.contains("# Server"));
}

/// The view that a node of the rig's store gives.
fn view_of(rig: &Rig, leads: bool, memory: u64) -> NodeView {
    let mut view = NodeView {
        leads,
        ..NodeView::default()
    };
    view.node.memory = memory;
    view.node.refuses_writes = rig.executor.machine().refuses_writes();
    view
}

/// A view comes, long after the last one.
fn look(rig: &mut Rig, leads: bool, memory: u64) {
    rig.pass(Duration::from_secs(1));
    let view = view_of(rig, leads, memory);
    rig.gateway.set_view(view);
    rig.run();
}

fn limited(memory_max: u64) -> Rig {
    Rig::with(GatewayConfig {
        memory_max,
        ..Default::default()
    })
}

#[test]
fn memory_limit_is_switched_by_the_leader_alone() {
    let mut rig = limited(1000);
    let id = rig.connect();
    rig.say(id, "SET a 1");
    look(&mut rig, false, 2000);
    assert_eq!(rig.say(id, "SET a 2"), "+OK\\r\\n");
    let view = view_of(&rig, true, 2000);
    rig.gateway.set_view(view);
    assert_eq!(rig.gateway.next_deadline(), Time(0));
    rig.run();
    assert!(
        rig.say(id, "SET a 3")
            .starts_with("-OOM command not allowed")
    );
    assert_eq!(rig.say(id, "DEL a"), ":1\\r\\n");
    look(&mut rig, true, 990);
    assert!(
        rig.say(id, "SET a 3").starts_with("-OOM"),
        "not at the first byte below"
    );
    look(&mut rig, true, 900);
    assert_eq!(rig.say(id, "SET a 3"), "+OK\\r\\n");
}

#[test]
fn store_without_keys_is_told_to_take_writes_again() {
    let mut rig = limited(1000);
    let id = rig.connect();
    rig.say(id, "SET a 1");
    look(&mut rig, true, 2000);
    assert!(rig.say(id, "SET a 2").starts_with("-OOM"));
    assert_eq!(rig.say(id, "FLUSHALL"), "+OK\\r\\n");
    look(&mut rig, true, 0);
    assert_eq!(rig.say(id, "SET a 3"), "+OK\\r\\n");
}

#[test]
fn refusal_in_a_snapshot_ends_at_a_leader_without_limit() {
    for memory_max in [0, 1000] {
        let mut rig = limited(1000);
        let id = rig.connect();
        rig.say(id, "SET a 1");
        look(&mut rig, true, 2000);
        rig.say(id, "DEL a");
        // Another server, whose store has it from a snapshot.
        let config = GatewayConfig {
            memory_max,
            ..Default::default()
        };
        rig.gateway = Gateway::new(config, FrontendId(7), 2);
        let id = rig.connect();
        assert!(rig.say(id, "SET a 2").starts_with("-OOM"));
        look(&mut rig, true, 0);
        assert_eq!(rig.say(id, "SET a 3"), "+OK\\r\\n");
    }
}

#[test]
fn store_that_needs_no_telling_of_its_memory_is_told_nothing() {
    for memory_max in [0, 1000] {
        let mut rig = limited(memory_max);
        look(&mut rig, true, 900);
        assert_eq!(rig.submitted.len(), 0);
    }
}

#[test]
fn limit_is_not_told_twice_while_the_view_is_old() {
    let mut rig = limited(1000);
    look(&mut rig, true, 2000);
    let told = rig.submitted.len();
    let mut view = view_of(&rig, true, 2000);
    view.node.refuses_writes = false;
    rig.gateway.set_view(view);
    rig.run();
    look(&mut rig, true, 2000);
    assert_eq!(rig.submitted.len(), told);
}

#[test]
fn shutdown_finishes_requests_in_flight() {
    let mut rig = Rig::new();
    let (one, other) = (rig.connect(), rig.connect());
    rig.say(one, "SET a 1");
    rig.push(one, "INCR a\r\nINCR a\r\n");
    let submissions = rig.collect();
    rig.gateway.begin_shutdown();
    assert!(rig.gateway.should_close(other) && !rig.gateway.should_close(one));
    assert!(!rig.gateway.idle());
    let outcome = rig.execute(&submissions[0]);
    rig.done(&submissions[0], outcome);
    assert!(!rig.gateway.idle(), "the reply is not yet written");
    assert_eq!(rig.output(one), ":2\\r\\n:3\\r\\n");
    assert!(rig.gateway.idle() && rig.gateway.should_close(one));
    assert!(
        rig.gateway
            .connect(rig.now, "127.0.0.1:1".parse().unwrap())
            .is_err()
    );
}

#[test]
fn requests_before_end_of_input_are_answered() {
    let mut rig = Rig::new();
    let id = rig.connect();
    rig.push(id, "SET a 1\r\nCONFIG GET save\r\nINCR a\r\n*2\r\n$3\r\nGE");
    rig.gateway.on_input_ended(id, rig.now);
    assert!(!rig.gateway.should_close(id) && !rig.gateway.wants_read(id));
    rig.run();
    assert!(rig.gateway.should_close(id));
    let reply = rig.output(id);
    assert!(
        reply.starts_with("+OK\\r\\n*2") && reply.ends_with(":2\\r\\n"),
        "{reply}"
    );
    let silent = rig.connect();
    rig.gateway.on_input_ended(silent, rig.now);
    rig.run();
    assert!(rig.gateway.should_close(silent));
}

#[test]
fn preferred_replica_is_the_master_and_the_others_its_replicas() {
    let mut rig = Rig::new();
    let id = rig.connect();
    let peer = |id: u16, address: &str, linked: bool| (ReplicaId(id), address.to_owned(), linked);
    let view = NodeView {
        leads: true,
        preferred: Some(ReplicaId(0)),
        peers: vec![
            peer(1, "10.0.0.2:7001", true),
            peer(2, "[fd00::3]:7001", true),
            peer(3, "10.0.0.4:7001", false),
            peer(4, "", true),
        ],
        ..NodeView::default()
    };
    rig.gateway.set_view(view.clone());
    let info = rig.say(id, "INFO replication");
    for line in [
        "role:master\\r\\nconnected_slaves:2\\r\\n",
        "slave0:ip=10.0.0.2,port=7001,state=online,offset=0,lag=0\\r\\n",
        "slave1:ip=fd00::3,port=7001,state=online,offset=0,lag=0\\r\\n",
    ] {
        assert!(info.contains(line), "{line}: {info}");
    }
    assert_eq!(
        rig.say(id, "ROLE"),
        "*3\\r\\n$6\\r\\nmaster\\r\\n:0\\r\\n*2\\r\\n\
         *3\\r\\n$8\\r\\n10.0.0.2\\r\\n$4\\r\\n7001\\r\\n$1\\r\\n0\\r\\n\
         *3\\r\\n$7\\r\\nfd00::3\\r\\n$4\\r\\n7001\\r\\n$1\\r\\n0\\r\\n"
    );
    for (preferred, linked, status, state) in [
        (1, "10.0.0.2", "up", "connected"),
        (3, "10.0.0.4", "down", "connect"),
    ] {
        rig.gateway.set_view(NodeView {
            leads: false,
            preferred: Some(ReplicaId(preferred)),
            ..view.clone()
        });
        let info = rig.say(id, "INFO replication");
        let told = format!(
            "role:slave\\r\\nmaster_host:{linked}\\r\\nmaster_port:7001\\r\\n\
             master_link_status:{status}\\r\\n"
        );
        assert!(info.contains(&told), "{info}");
        assert_eq!(
            rig.say(id, "ROLE"),
            format!(
                "*5\\r\\n$5\\r\\nslave\\r\\n$8\\r\\n{linked}\\r\\n:7001\\r\\n${}\\r\\n{state}\\r\\n\
                 :0\\r\\n",
                state.len()
            )
        );
    }
    // A replica whose clients' address is unknown is no master, and every replica takes writes.
    rig.gateway.set_view(NodeView {
        leads: false,
        preferred: Some(ReplicaId(4)),
        ..view
    });
    assert!(rig.say(id, "INFO replication").contains("role:master"));
}

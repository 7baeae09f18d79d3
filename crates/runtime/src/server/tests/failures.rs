//! The replies to clients when there are no results, and the effects on the sessions.

use super::rig::{BEGIN, Rig};
use crate::server::{ConnectionId, GatewayConfig, NodeView};
use quintet_replica::{Level, Outcome, RequestKind, RequestStatus, ResultsBuilder, Submission};
use std::time::Duration;

const NO_QUORUM: &str = "-CLUSTERDOWN no quorum (2 of 5 reachable)\\r\\n";
const UNCERTAIN: &str = "-UNCERTAIN may or may not have been applied\\r\\n";

fn rig() -> (Rig, ConnectionId) {
    let mut rig = Rig::with(GatewayConfig {
        members: 5,
        ..GatewayConfig::default()
    });
    rig.gateway.set_view(NodeView {
        reachable: 2,
        ..NodeView::default()
    });
    let id = rig.connect();
    assert_eq!(rig.say(id, "SET a 0"), "+OK\\r\\n");
    rig.submitted.clear();
    (rig, id)
}

fn submit(rig: &mut Rig, id: ConnectionId, bytes: &str) -> Submission {
    rig.push(id, bytes);
    let mut submissions = rig.collect();
    assert_eq!(submissions.len(), 1);
    submissions.remove(0)
}

fn statuses(all: &[(RequestStatus, &[u8])]) -> Outcome {
    let mut builder = ResultsBuilder::default();
    builder.clear();
    all.iter()
        .for_each(|(status, reply)| builder.push(*status, reply));
    Outcome::Results(builder.finish())
}

#[test]
fn each_command_gets_its_error_and_what_was_answered_here_stays() {
    let (mut rig, id) = rig();
    // Its requests may have a few commands now.
    rig.say(id, "GET b\r\nGET b");
    for (outcome, error) in [
        (Outcome::NoQuorum, NO_QUORUM),
        (Outcome::Uncertain, UNCERTAIN),
    ] {
        let submission = submit(
            &mut rig,
            id,
            "INCR a\r\nPING\r\nMULTI\r\nINCR a\r\nEXEC\r\n",
        );
        rig.done(&submission, outcome);
        assert_eq!(
            rig.output(id),
            format!("{error}+PONG\\r\\n+OK\\r\\n+QUEUED\\r\\n{error}")
        );
        assert!(!rig.gateway.should_close(id));
    }
    assert_eq!(rig.say(id, "INCR a"), ":1\\r\\n");
    let counters = rig.gateway.counters();
    assert_eq!(
        (counters.errors_no_quorum, counters.errors_uncertain),
        (2, 2)
    );
}

#[test]
fn long_request_has_more_time_than_a_short_one() {
    let (mut rig, id) = rig();
    let begun = rig.now;
    let short = submit(&mut rig, id, "SET a 1\r\n");
    assert_eq!(short.deadline, begun + Duration::from_secs(5));
    let outcome = rig.execute(&short);
    rig.done(&short, outcome);
    assert_eq!(rig.output(id), "+OK\\r\\n");
    let long = format!(
        "*3\r\n$3\r\nSET\r\n$1\r\na\r\n${0}\r\n{1}\r\n",
        12 << 20,
        "v".repeat(12 << 20)
    );
    let mut sent = submit(&mut rig, id, &long);
    assert_eq!(sent.deadline, begun + Duration::from_secs(8));
    // As long as it may be offered again, too.
    for _ in 0..7 {
        rig.done(&sent, Outcome::Busy);
        rig.pass(Duration::from_secs(1));
        sent = submit(&mut rig, id, "");
    }
    rig.pass(Duration::from_secs(1));
    rig.done(&sent, Outcome::Busy);
    assert!(rig.output(id).starts_with("-BUSY "));
}

#[test]
fn quorum_is_not_called_missing_when_it_answers() {
    let (mut rig, id) = rig();
    rig.gateway.set_view(NodeView {
        reachable: 3,
        ..NodeView::default()
    });
    let submission = submit(&mut rig, id, "GET a\r\n");
    rig.done(&submission, Outcome::NoQuorum);
    assert_eq!(
        rig.output(id),
        "-CLUSTERDOWN no agreement in time (3 of 5 reachable); the command was not executed, \
         retry\\r\\n"
    );
}

#[test]
fn read_without_an_answer_is_certain_not_to_have_happened() {
    let (mut rig, id) = rig();
    let submission = submit(&mut rig, id, "GET a\r\n");
    rig.done(&submission, Outcome::Uncertain);
    assert_eq!(rig.output(id), NO_QUORUM);
    let submission = submit(&mut rig, id, "WATCH a\r\n");
    rig.done(&submission, Outcome::Uncertain);
    assert_eq!(rig.output(id), NO_QUORUM);
    assert_eq!(
        rig.ask(id, "MULTI\r\nGET a\r\nEXEC\r\n"),
        "+OK\\r\\n+QUEUED\\r\\n*1\\r\\n$1\\r\\n0\\r\\n"
    );
}

#[test]
fn uncertain_request_can_not_be_executed_later() {
    let (mut rig, id) = rig();
    let late = submit(&mut rig, id, "INCR a\r\n");
    rig.done(&late, Outcome::Uncertain);
    assert_eq!(rig.output(id), UNCERTAIN);
    assert_eq!(rig.say(id, "GET a"), "$1\\r\\n0\\r\\n");
    // The next write opens another session and ends the old one.
    assert_eq!(rig.say(id, "INCR a"), ":1\\r\\n");
    let last = &rig.submitted.last().unwrap().1;
    assert_eq!(
        last[..],
        [RequestKind::Open, RequestKind::Command, RequestKind::Close]
    );
    rig.execute(&late);
    assert_eq!(rig.say(id, "GET a"), "$1\\r\\n1\\r\\n");
}

#[test]
fn request_waits_for_room_when_the_queue_is_full() {
    let (mut rig, id) = rig();
    let submission = submit(&mut rig, id, "INCR a\r\n");
    rig.done(&submission, Outcome::Busy);
    assert_eq!(rig.output(id), "");
    assert_eq!(rig.collect(), [], "not at once");
    rig.pass(Duration::from_millis(5));
    assert!(rig.gateway.next_deadline() <= rig.now);
    rig.run();
    assert_eq!(rig.output(id), ":1\\r\\n");
    assert_eq!(rig.submitted.last().unwrap().1, [RequestKind::Command]);
    // Also when the session was to be opened by what was refused.
    let other = rig.connect();
    let submission = submit(&mut rig, other, "INCR a\r\n");
    rig.done(&submission, Outcome::Busy);
    rig.pass(Duration::from_millis(5));
    rig.run();
    assert_eq!(rig.output(other), ":2\\r\\n");
}

#[test]
fn request_is_refused_when_the_queue_stays_full() {
    let (mut rig, id) = rig();
    rig.say(id, "GET b\r\nGET b");
    let deadline = rig.now + Duration::from_secs(5);
    rig.push(id, "INCR a\r\nPING\r\nMULTI\r\nINCR a\r\nEXEC\r\n");
    while rig.now < deadline {
        for submission in rig.collect() {
            rig.done(&submission, Outcome::Busy);
        }
        assert_eq!(rig.output(id), "");
        rig.pass(Duration::from_millis(100));
        rig.gateway.on_time(rig.now);
    }
    let busy = "-BUSY request queue is full; the command was not executed, retry\\r\\n";
    assert_eq!(
        rig.output(id),
        format!("{busy}+PONG\\r\\n+OK\\r\\n+QUEUED\\r\\n{busy}")
    );
    assert_eq!(rig.gateway.counters().errors_busy, 2);
    assert_eq!(rig.say(id, "INCR a"), ":1\\r\\n");
}

#[test]
fn request_is_refused_with_disk_as_reason_while_disk_hangs() {
    let (mut rig, id) = rig();
    rig.gateway.set_view(NodeView {
        disk_state: "hung",
        ..NodeView::default()
    });
    rig.push(id, "INCR a\r\n");
    for submission in rig.collect() {
        rig.done(&submission, Outcome::Busy);
    }
    rig.pass(Duration::from_secs(6));
    rig.gateway.on_time(rig.now);
    let hung = "-BUSY the disk of this replica does not respond; the command was not executed, retry at another\\r\\n";
    assert_eq!(rig.output(id), hung);
}

#[test]
fn without_a_quorum_the_first_write_ever_fails_in_time() {
    let mut rig = Rig::with(GatewayConfig {
        members: 5,
        ..GatewayConfig::default()
    });
    rig.gateway.set_view(NodeView {
        reachable: 2,
        ..NodeView::default()
    });
    let (one, other) = (rig.connect(), rig.connect());
    let register = submit(&mut rig, one, "INCR a\r\n");
    rig.pass(Duration::from_secs(2));
    rig.push(other, "INCR a\r\nPING\r\n");
    assert_eq!(rig.collect(), []);
    rig.pass(Duration::from_secs(3));
    rig.gateway.on_time(rig.now);
    assert_eq!(rig.output(one), NO_QUORUM);
    assert_eq!(rig.output(other), "");
    rig.done(&register, Outcome::Uncertain);
    assert_eq!(rig.output(other), format!("{NO_QUORUM}+PONG\\r\\n"));
    assert_eq!(rig.say(one, "INCR a"), ":1\\r\\n");
}

#[test]
fn session_lost_under_a_request_leaves_it_uncertain() {
    let (mut rig, id) = rig();
    let submission = submit(&mut rig, id, "INCR a\r\nINCR a\r\n");
    rig.done(
        &submission,
        statuses(&[(RequestStatus::SessionUnknown, b"")]),
    );
    assert_eq!(rig.output(id), format!("{UNCERTAIN}{UNCERTAIN}"));
    assert_eq!(rig.say(id, "INCR a"), ":1\\r\\n");
    let submission = submit(&mut rig, id, "INCR a\r\n");
    rig.done(&submission, statuses(&[(RequestStatus::ReplyLost, b"")]));
    assert_eq!(
        rig.output(id),
        "-UNCERTAIN was applied, but its reply has been lost\\r\\n"
    );
    assert_eq!(rig.say(id, "INCR a"), ":2\\r\\n");
}

#[test]
fn too_many_sessions_are_no_uncertainty() {
    let (mut rig, _) = rig();
    let id = rig.connect();
    let submission = submit(&mut rig, id, "INCR a\r\n");
    let clock = (BEGIN + rig.now.0).to_le_bytes();
    let refused = [
        (RequestStatus::OpenRefused, &clock[..]),
        (RequestStatus::SessionUnknown, b""),
    ];
    rig.done(&submission, statuses(&refused));
    assert_eq!(rig.output(id), "-ERR max number of sessions reached\\r\\n");
    assert_eq!(rig.say(id, "INCR a"), ":1\\r\\n");
}

#[test]
fn when_the_log_s_clock_leaps_new_sessions_are_opened() {
    let (mut rig, id) = rig();
    let other = rig.connect();
    let submission = submit(&mut rig, other, "INCR a\r\n");
    let clock = (BEGIN + rig.now.0 + 3_600_000_000_000).to_le_bytes();
    let refused = [
        (RequestStatus::OpenRefused, &clock[..]),
        (RequestStatus::SessionUnknown, b""),
    ];
    rig.done(&submission, statuses(&refused));
    assert_eq!(rig.output(other), UNCERTAIN);
    assert_eq!(rig.say(other, "INCR a"), ":1\\r\\n");
    assert_eq!(rig.say(id, "INCR a"), ":2\\r\\n");
}

#[test]
fn request_that_did_not_fit_its_batch_is_sent_again_at_once() {
    let (mut rig, id) = rig();
    let not_executed = || statuses(&[(RequestStatus::NotExecuted, b"")]);
    let submission = submit(&mut rig, id, "INCR a\r\n");
    rig.done(&submission, not_executed());
    assert_eq!(rig.output(id), "");
    rig.run();
    assert_eq!(rig.output(id), ":1\\r\\n");
    // A read, too, and neither before nor after what the client sends meanwhile.
    let submission = submit(&mut rig, id, "GET a\r\n");
    assert_eq!(submission.level, Level::Linearizable);
    rig.push(id, "INCR a\r\n");
    rig.done(&submission, not_executed());
    rig.run();
    assert_eq!(rig.output(id), "$1\\r\\n1\\r\\n:2\\r\\n");
}

#[test]
fn results_cut_short_are_uncertain() {
    let (mut rig, id) = rig();
    let submission = submit(&mut rig, id, "INCR a\r\n");
    rig.done(&submission, Outcome::Results(Default::default()));
    assert_eq!(rig.output(id), UNCERTAIN);
}

#[test]
fn unknown_batch_is_ignored() {
    let (mut rig, id) = rig();
    let submission = submit(&mut rig, id, "INCR a\r\n");
    let outcome = rig.execute(&submission);
    rig.done(&submission, outcome.clone());
    rig.done(&submission, outcome);
    assert_eq!(rig.output(id), ":1\\r\\n");
}

#[test]
fn renewal_that_finds_nothing_replaces_all_sessions_unseen() {
    let (mut rig, id) = rig();
    rig.now = rig.gateway.next_deadline();
    rig.gateway.on_time(rig.now);
    let renewal = rig.collect().remove(0);
    rig.done(&renewal, statuses(&[(RequestStatus::SessionUnknown, b"")]));
    assert_eq!(rig.say(id, "INCR a"), ":1\\r\\n");
}

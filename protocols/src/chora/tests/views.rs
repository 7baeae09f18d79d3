//! View changes, recovery, return, and what must not be believed.

use super::group::{Group, MS, Packet, assert_converged, mode, proposers};
use crate::chora::{
    Config, Drive, Message, Promised, Proposers, Pulse, Record, Timer, Value, view_state::Role,
};
use alloc::vec::Vec;
use core::time::Duration;
use quintet_replica::{
    Control, Durability, Event, Incarnation, Level, Outcome, ReplicaId, ReplicaSet, Slot, Wire,
};

fn disk(members: usize) -> Group {
    let mut group = Group::new(members, Durability::Disk, mode(Drive::Responsive));
    group.run(MS * 10);
    group
}

#[test]
fn silent_replica_is_excluded_and_readmitted() {
    for drive in [Drive::Pulsing, Drive::Responsive] {
        for members in [3, 5] {
            let mut group = Group::new(members, Durability::Disk, mode(drive));
            group.run(MS * 10);
            group.write(0);
            group.run(MS * 20);
            let all: Vec<u16> = (0..members as u16).collect();
            assert_eq!(group.view(&all), ReplicaSet::all(members));
            group.crash(1);
            group.run(MS * 2000);
            assert_eq!(proposers(&group), members - 1);
            let rest: Vec<u16> = all.iter().copied().filter(|id| *id != 1).collect();
            assert_eq!(group.view(&rest).len(), members - 1);
            let batch = group.write(0);
            group.run(MS * 50);
            assert!(group.answered(0, batch));
            group.start(1);
            group.run(MS * 4000);
            assert_eq!(proposers(&group), members, "{drive:?}");
            assert_eq!(group.view(&all), ReplicaSet::all(members));
            assert_converged(&group, 2);
        }
    }
}

#[test]
fn replica_that_crashes_in_a_loop_is_taken_in_more_rarely() {
    // In memory each start needs a view change to take part in any majority again, and one that is
    // let in late costs no further one.
    for (durability, most) in [(Durability::Disk, 20), (Durability::Memory, 30)] {
        for down in [MS * 20, MS * 700] {
            let mut group = Group::new(3, durability, mode(Drive::Responsive));
            group.run(MS * 10);
            group.write(0);
            group.run(MS * 50);
            let before = group.status(0).view;
            group.crash_in_a_loop(1, (MS * 1000 - down, down), |_| true);
            let changes = group.status(0).view - before;
            assert!(
                changes <= most,
                "{changes} views in 30 s: {durability:?}, {down:?}"
            );
            group.start(1);
            let batch = group.write(0);
            group.run(MS * 1000);
            assert!(group.answered(0, batch));
            group.run(MS * 40_000);
            assert_eq!(proposers(&group), 3, "{durability:?}, {down:?}");
            assert_converged(&group, 2);
        }
    }
}

/// Replica 1 has crashed often, is up again, and waits to rejoin.
fn crashed_often(members: usize) -> Group {
    let mut group = disk(members);
    for _ in 0..8 {
        group.crash(1);
        group.run(MS * 700);
        group.start(1);
        while proposers(&group) < members {
            group.run(MS * 20);
        }
    }
    group.crash(1);
    group.run(MS * 700);
    group.start(1);
    group.run(MS * 300);
    assert_eq!(proposers(&group), members - 1, "it waits");
    group
}

#[test]
fn replica_that_was_needed_stays_in_the_next_view() {
    let mut group = crashed_often(3);
    group.crash(2);
    group.run(MS * 2000);
    let batch = group.write(0);
    group.run(MS * 500);
    assert!(group.answered(0, batch), "{:?}", group.status(0));
    group.start(2);
    group.run(MS * 3000);
    assert_eq!(proposers(&group), 3);
}

#[test]
fn leaving_initiator_does_not_count_itself() {
    let mut group = crashed_often(5);
    group.crash(2);
    while !group.replica(0).election.is_set() {
        group.run(MS);
    }
    group.event(0, Event::Control(Control::HandOff));
    group.fire(0, Timer::Stand);
    group.settle();
    let init = group.replica(0).view.init().cloned().expect("a view");
    assert_eq!(init.initiator, ReplicaId(0));
    let ids = |ids: &[u16]| ids.iter().map(|id| ReplicaId(*id)).collect();
    assert_eq!(init.live, ids(&[1, 3, 4]));
}

#[test]
fn restarted_proposer_proposes_in_a_new_view_only() {
    let mut group = disk(3);
    group.write(0);
    group.run(MS * 20);
    group.crash(1);
    group.start(1);
    group.idle(1);
    assert!(
        !group.replica(1).may_propose(),
        "it may have proposed before"
    );
    group.run(MS * 2000);
    assert!(group.replica(1).may_propose());
    assert!(group.marked("view change: a proposer was restarted") > 0);
    assert_converged(&group, 1);
}

#[test]
fn number_of_proposers_changes_while_running() {
    let mut group = disk(3);
    for (wanted, expected) in [("1", 1), ("2", 2), ("0", 3)] {
        for id in 0..3 {
            use alloc::string::ToString;
            let (name, value) = ("proposers".to_string(), wanted.to_string());
            let control = quintet_replica::Control::Option { name, value };
            group.event(id, quintet_replica::Event::Control(control));
        }
        group.run(MS * 4000);
        assert_eq!(proposers(&group), expected);
        let batch = group.write(2);
        group.run(MS * 100);
        assert!(group.answered(2, batch));
    }
}

/// The proposers in a replica's present view.
fn proposing(group: &Group, at: u16) -> Vec<ReplicaId> {
    let init = group.replica(at).view.init();
    init.expect("in its view").proposers.clone()
}

#[test]
fn those_propose_who_bring_load_and_stray_write_changes_nothing() {
    for members in [3, 5] {
        let config = Config {
            proposers: Proposers::Loaded,
            ..mode(Drive::Responsive)
        };
        let mut group = Group::new(members, Durability::Disk, config);
        let load = |group: &mut Group, from: &[u16], times: usize| {
            for _ in 0..times {
                for id in from {
                    let batch = group.write(*id);
                    group.run(MS * 20);
                    assert!(group.answered(*id, batch), "{batch} of {id}");
                }
            }
        };
        group.run(MS * 3000);
        assert_eq!(proposers(&group), members, "no member has brought load");
        load(&mut group, &[1], 150);
        assert_eq!(proposing(&group, 0), [ReplicaId(1)], "a single leader");
        let view = group.status(0).view;
        for _ in 0..4 {
            load(&mut group, &[2], 1);
            load(&mut group, &[1], 60);
        }
        assert_eq!(group.status(0).view, view, "a stray write is forwarded");
        load(&mut group, &[1, 2], 100);
        assert_eq!(proposing(&group, 0), [ReplicaId(1), ReplicaId(2)]);
        load(&mut group, &[2], 150);
        assert_eq!(proposing(&group, 0), [ReplicaId(2)]);
        let view = group.status(0).view;
        group.run(MS * 10_000);
        assert_eq!(group.status(0).view, view, "without load nothing changes");
        group.crash(2);
        group.run(MS * 3000);
        load(&mut group, &[0, 1], 100);
        assert_eq!(proposing(&group, 0), [ReplicaId(0), ReplicaId(1)]);
    }
}

/// How long until a write of each of these replicas is answered that they all ask for at once.
fn round(group: &mut Group, from: &[u16]) -> Duration {
    let batches: Vec<_> = from.iter().map(|id| (*id, group.write(*id))).collect();
    let began = group.clock.now;
    for _ in 0..10_000 {
        if batches
            .iter()
            .all(|(id, batch)| group.answered(*id, *batch))
        {
            return group.clock.now.since(began);
        }
        group.run(MS);
    }
    panic!("no answer");
}

#[test]
fn slow_proposer_stops_until_it_is_quick_again() {
    for (members, drive, slow) in [
        (3, Drive::Responsive, 2),
        (3, Drive::Pulsing, 0),
        (5, Drive::Responsive, 0),
        (5, Drive::Pulsing, 3),
    ] {
        let config = Config {
            proposers: Proposers::Loaded,
            ..mode(drive)
        };
        let mut group = Group::new(members, Durability::Disk, config);
        group.run(MS * 10);
        let all: Vec<u16> = (0..members as u16).collect();
        let quick: Vec<u16> = all.iter().copied().filter(|id| *id != slow).collect();
        let others = |group: &Group| !proposing(group, quick[0]).contains(&ReplicaId(slow));
        let even = round(&mut group, &all);
        group.far.insert(slow, MS * 20);
        let rounds = (0..4).map(|_| round(&mut group, &quick));
        let before = rounds.max().expect("four");
        assert!(before >= MS * 20 && even < MS * 5, "{before:?}, {even:?}");
        for _ in 0..200 {
            round(&mut group, &all);
        }
        assert!(others(&group), "the others need not wait for it");
        let rounds = (0..4).map(|_| round(&mut group, &quick));
        let after = rounds.max().expect("four");
        assert!(after < MS * 5, "{after:?}");
        assert!(
            round(&mut group, &[slow]) >= MS * 40,
            "the way to them and back"
        );
        group.far.clear();
        for _ in 0..50 {
            round(&mut group, &all);
        }
        assert!(others(&group), "not yet");
        for _ in 0..1500 {
            round(&mut group, &all);
            group.run(MS * 20);
        }
        assert!(!others(&group), "it is tried again");
        let again = round(&mut group, &all);
        assert!(again < MS * 5, "{again:?}");
    }
}

#[test]
fn one_of_two_candidates_stands_again_when_other_has_had_time() {
    let mut group = disk(3);
    group.write(0);
    group.run(MS * 50);
    group.crash(2);
    group.run(MS * 300);
    // For a while these two do not know that they do not hear each other.
    group.isolate(0);
    let is_candidate = |group: &Group, id| {
        let replica = group.replica(id);
        replica.view.number() == 1 && matches!(replica.view.role(), Role::Candidate(_))
    };
    let both_stand = |group: &Group| is_candidate(group, 0) && is_candidate(group, 1);
    for _ in 0..450 {
        if !both_stand(&group) {
            group.run(MS);
        }
    }
    assert!(both_stand(&group));
    group.heal();
    let batch = group.write(1);
    let mut waited = Duration::ZERO;
    while group.marked("view change: votes were split") == 0 && waited < MS * 1000 {
        group.run(MS);
        waited += MS;
    }
    let half = Config::default().suspect_timeout / 2;
    assert!(waited > half, "the other may be elected until then");
    group.run(MS * 100);
    assert!(group.replica(0).established() && group.replica(1).established());
    assert!(group.answered(1, batch));
    assert_eq!(group.marked("view change: votes were split"), 1);
}

/// Replica 2 is dead and the others are between two views, their votes not yet on disk.
fn between_views(config: Config) -> Group {
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 10);
    group.crash(2);
    for _ in 0..10_000 {
        if !group.replica(0).established() {
            return group;
        }
        (0..2).for_each(|id| group.members[id].slow_disk = true);
        group.run(MS);
    }
    panic!("the view does not change");
}

#[test]
fn requests_in_view_change_are_answered_when_view_begins() {
    for level in [Level::Ordered, Level::Linearizable] {
        let mut group = between_views(mode(Drive::Responsive));
        let batch = group.submit(0, level);
        group.run(MS);
        assert!(!group.answered(0, batch));
        assert_eq!(group.marked("request waits for the view"), 1);
        (0..2).for_each(|id| group.members[id].slow_disk = false);
        // Time stands still: a refused request would be offered again 10 ms later.
        group.settle();
        assert!(group.replica(0).established());
        assert!(group.answered(0, batch), "{level:?}");
    }
}

#[test]
fn requests_above_limit_in_view_change_are_rejected() {
    let config = Config {
        queue_bytes: 400,
        ..mode(Drive::Responsive)
    };
    let mut group = between_views(config);
    let batches: Vec<_> = (0..40).map(|_| group.write(0)).collect();
    let waited = group.marked("request waits for the view");
    assert!((1..40).contains(&waited), "{waited}");
    assert!(group.replica(0).relay.waiting_bytes() <= 400);
    (0..2).for_each(|id| group.members[id].slow_disk = false);
    group.run(MS * 1000);
    let waited = waited as usize;
    assert!(batches[..waited].iter().all(|it| group.answered(0, *it)));
    // The same bound holds for those that are proposed: of the others some find no room again.
    assert!(batches.iter().all(|it| group.done.contains_key(&(0, *it))));
}

#[test]
fn requests_do_not_wait_for_a_view_that_does_not_begin() {
    let mut group = between_views(mode(Drive::Responsive));
    group.isolate(0);
    let batch = group.write(0);
    assert_eq!(group.marked("request waits for the view"), 1);
    group.run(MS * 60_001);
    // Refused before it was asked for twice: certainly not executed.
    let outcome = group.done.get(&(0, batch));
    assert!(matches!(outcome, Some(Outcome::NoQuorum)), "{outcome:?}");
    assert!(!group.replica(0).relay.is_waiting());
}

#[test]
fn leaving_member_is_excluded_and_readmitted_if_it_stays() {
    let mut group = disk(3);
    group.event(
        0,
        quintet_replica::Event::Control(quintet_replica::Control::HandOff),
    );
    group.run(MS * 600);
    assert_eq!(proposers(&group), 2);
    let batch = group.write(1);
    group.run(MS * 50);
    assert!(group.answered(1, batch));
    group.run(MS * 6000);
    assert_eq!(proposers(&group), 3);
}

#[test]
fn replica_without_state_votes_only_in_later_view() {
    for members in [3, 5] {
        let mut group = Group::new(members, Durability::Memory, mode(Drive::Responsive));
        group.run(MS * 10);
        for _ in 0..20 {
            group.write(1);
            group.run(MS);
        }
        group.crash(2);
        group.start(2);
        assert_eq!(group.status(2).role, "recovering");
        assert!(!group.status(2).voting);
        assert_eq!(group.replica(2).ack(), Slot(0));
        // The view in which it lost its state is the others' view still: its log is of no use for
        // votes.
        group.run(MS * 30);
        assert_eq!(
            group.replica(0).view.number(),
            group.replica(2).view.number()
        );
        assert_eq!(group.replica(2).ack(), Slot(0));
        group.run(MS * 5000);
        assert!(group.status(2).voting);
        assert_eq!(proposers(&group), members);
        assert_converged(&group, 20);
    }
}

#[test]
fn majority_without_state_gets_a_remedy() {
    let mut group = Group::new(3, Durability::Memory, mode(Drive::Responsive));
    group.write(0);
    group.run(MS * 5);
    (0..3).for_each(|id| group.crash(id));
    (0..3).for_each(|id| group.start(id));
    group.run(MS * 20_000);
    for member in &group.members {
        let told = member.halted.as_ref();
        assert!(told.is_some_and(|why| why.contains("--bootstrap-again")));
    }
}

#[test]
fn trimmed_entries_come_as_snapshot() {
    for durability in [Durability::Disk, Durability::Memory] {
        let config = Config {
            log_memory_bytes: 16 << 10,
            proposers: Proposers::Count(0),
            ..mode(Drive::Responsive)
        };
        let mut group = Group::new(3, durability, config);
        group.run(MS * 10);
        group.crash(2);
        group.run(MS * 1500);
        for _ in 0..600 {
            group.write(0);
            group.run(MS);
        }
        group.start(2);
        group.run(MS * 6000);
        assert!(group.marked("state installed") > 0);
        assert_eq!(proposers(&group), 3);
        assert_converged(&group, 600);
    }
}

#[test]
fn lost_state_is_not_awaited() {
    let config = Config {
        log_memory_bytes: 16 << 10,
        proposers: Proposers::Count(0),
        ..mode(Drive::Responsive)
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 10);
    group.isolate(2);
    group.run(MS * 1500);
    for _ in 0..600 {
        group.write(0);
        group.run(MS);
    }
    // The message comes from a log that went further, and the replica that kept that log is gone.
    let trimmed = Message::Trimmed {
        view: group.replica(2).view.number(),
        first: Slot(5000),
        executed: Slot(5000),
    };
    group.deliver(Packet::new(0, 2, &trimmed));
    assert_eq!(
        group.replica(2).catch_up.fetching().asked(),
        Some(Slot(5000))
    );
    group.heal();
    group.run(MS * 6000);
    assert!(group.marked("state installed") > 0);
    assert_eq!(proposers(&group), 3);
    assert_converged(&group, 600);
}

/// A pulse of replica `from` as it might have left in an old view.
fn acknowledgement(view: u64, ack: u64) -> Message {
    Message::Pulse(Pulse {
        view,
        incarnation: Incarnation(1),
        ack: Slot(ack),
        ..Pulse::default()
    })
}

#[test]
fn acknowledgement_of_another_view_does_not_count() {
    let mut group = disk(5);
    let batch = group.write(0);
    group.isolate(0);
    group.idle(0);
    group.sync(0);
    let view = group.status(0).view;
    for from in [1, 2] {
        let late = acknowledgement(view.wrapping_sub(1).min(view), 9);
        if view == 0 {
            // A view below 0 does not exist; the next view is not this one either.
            continue;
        }
        group.deliver(Packet::new(from, 0, &late));
    }
    assert!(!group.answered(0, batch));
    for from in [1, 2] {
        group.deliver(Packet::new(from, 0, &acknowledgement(view, 1)));
    }
    assert!(group.answered(0, batch), "those of the view do");
}

/// Replica 0 has an acknowledgement of replica 1 and then enters view 7.
pub fn acknowledged_before_the_view_changed(config: Config) -> Group {
    let mut group = Group::new(5, Durability::Disk, config);
    group.run(MS * 10);
    group.isolate(0);
    group.write(0);
    group.idle(0);
    group.sync(0);
    group.deliver(Packet::new(1, 0, &acknowledgement(0, 1)));
    assert_eq!(group.replica(0).peers[1].acked(), Slot(1));
    group.fire(0, crate::chora::Timer::Heartbeat);
    let request = Message::ViewRequest {
        view: 7,
        incarnation: Incarnation(1),
        last_slot: Slot(5),
        last_view: 3,
    };
    group.deliver(Packet::new(2, 0, &request));
    assert_eq!(group.status(0).view, 7);
    group
}

#[test]
fn acknowledgements_are_dropped_when_view_changes() {
    let group = acknowledged_before_the_view_changed(mode(Drive::Responsive));
    assert_eq!(group.replica(0).peers[1].acked(), Slot(0));
}

/// Replica 0 has a suffix of view 0 and is told of a view 3 that holds other things there.
pub fn slept_through_views(config: Config) -> Group {
    // Replica 0 slept through views: its log ends in a suffix of view 0 that lost against view 1.
    let config = Config {
        proposers: Proposers::Count(1),
        ..config
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 10);
    group.isolate(0);
    for _ in 0..4 {
        group.write(0);
        group.idle(0);
    }
    group.sync(0);
    let stale = group.replica(0).log.last();
    let before = (group.replica(0).log.last_view(), stale);
    assert_eq!(before, (0, Slot(4)));
    // The initiator of view 3 names a base behind it and holds other things before.
    let init = crate::chora::ViewInit {
        view: 3,
        initiator: ReplicaId(1),
        base: stale.next(),
        proposers: alloc::vec![ReplicaId(1), ReplicaId(2)],
        live: quintet_replica::ReplicaSet(0b110),
    };
    let runs = alloc::vec![(Slot(0), 0), (Slot(1), 1)];
    group.deliver(Packet::new(1, 0, &Message::Init { init, runs }));
    group.sync(0);
    assert_eq!(group.replica(0).view.number(), 3);
    group
}

#[test]
fn view_init_waits_outside_the_log_until_its_prefix_is_verified() {
    let group = slept_through_views(mode(Drive::Responsive));
    let replica = group.replica(0);
    assert!(replica.view.init().is_none(), "staged");
    assert_eq!(
        (replica.log.last_view(), replica.log.last()),
        (0, Slot(4)),
        "it is not more up to date than before"
    );
    assert_eq!(replica.ack(), Slot(0), "and acknowledges nothing");
}

#[test]
fn quorum_is_of_all_members_however_few_are_live() {
    let mut group = disk(5);
    group.crash(4);
    group.run(MS * 2000);
    group.crash(3);
    group.run(MS * 2000);
    assert_eq!(proposers(&group), 3);
    group.crash(2);
    let batch = group.write(0);
    group.run(MS * 5000);
    assert!(!group.answered(0, batch), "two of five decide nothing");
    group.start(2);
    group.run(MS * 5000);
    assert!(group.answered(0, batch));
}

#[test]
fn candidate_with_an_older_log_gets_no_vote() {
    let mut group = disk(3);
    group.isolate(2);
    let batch = group.write(0);
    group.run(MS * 5);
    assert!(group.answered(0, batch));
    let view = group.status(1).view;
    let request = Message::ViewRequest {
        view: view + 1,
        incarnation: Incarnation(1),
        last_slot: Slot(0),
        last_view: 0,
    };
    group.deliver(Packet::new(2, 1, &request));
    group.sync(1);
    assert_eq!(group.marked("vote given"), 0);
    assert!(!matches!(group.replica(1).view.role(), Role::Initiator));
}

/// Replica 1 was asked for its vote, and its disk is slow.
pub fn asked_for_a_vote(config: Config) -> Group {
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 10);
    group.members[1].slow_disk = true;
    let request = Message::ViewRequest {
        view: 1,
        incarnation: Incarnation(1),
        last_slot: Slot(9),
        last_view: 0,
    };
    group.network.clear();
    group.deliver(Packet::new(0, 1, &request));
    group.idle(1);
    group
}

/// Votes in progress.
pub fn votes(group: &Group) -> usize {
    let vote = |packet: &&Packet| matches!(packet.message(), Message::Vote { .. });
    group.network.iter().filter(vote).count()
}

#[test]
fn vote_is_on_disk_before_it_is_given() {
    let mut group = asked_for_a_vote(mode(Drive::Responsive));
    assert_eq!(votes(&group), 0);
    group.sync(1);
    assert_eq!(votes(&group), 1);
    let promise = group.members[1].disk.promise.clone().expect("written");
    let promised = Promised::decode_all(promise).expect("readable");
    assert_eq!(promised.voted_for, Some(ReplicaId(0)));
}

/// Replica 0 starts from a journal in which a slot was cleared.
pub fn restarted_with_a_cleared_suffix(config: Config) -> Group {
    // Slots 1 and 2 were written in view 2; then slot 1 was cleared and written in view 1, as the
    // initiator of view 3 has it, and the replica crashed.
    let record = |view, before| Record {
        view,
        before,
        committed: Slot(0),
        value: Value::Noop,
    };
    let mut group = Group::unstarted(3, Durability::Disk, config);
    let disk = &mut group.members[0].disk;
    disk.used = true;
    let promised = Promised {
        view: 3,
        voted_for: None,
    };
    disk.promise = Some(promised.encode_to_bytes());
    for (slot, record) in [(1, record(2, 0)), (2, record(2, 2)), (1, record(1, 0))] {
        disk.records.push((Slot(slot), record.encode_to_bytes()));
    }
    group.start(0);
    group
}

#[test]
fn records_of_a_cleared_suffix_are_not_taken_for_the_log() {
    let group = restarted_with_a_cleared_suffix(mode(Drive::Responsive));
    assert_eq!(group.replica(0).log.last(), Slot(1));
    assert_eq!(group.replica(0).log.last_view(), 1);
}

/// Replica 1 gave its vote in view 1 to replica 0, restarted, and is asked by replica 2.
pub fn asked_again_after_a_restart(config: Config) -> Group {
    let mut group = asked_for_a_vote(config);
    group.sync(1);
    group.members[1].slow_disk = false;
    group.crash(1);
    group.network.clear();
    group.start(1);
    group.network.clear();
    let request = Message::ViewRequest {
        view: 1,
        incarnation: Incarnation(1),
        last_slot: Slot(9),
        last_view: 0,
    };
    group.deliver(Packet::new(2, 1, &request));
    group.sync(1);
    group
}

#[test]
fn vote_survives_a_restart() {
    let group = asked_again_after_a_restart(mode(Drive::Responsive));
    assert_eq!(group.replica(1).view.number(), 1);
    assert_eq!(votes(&group), 0, "it was given to another");
}

/// Replica 2 has lost its memory and is asked for its vote before it has anybody's log.
pub fn asked_without_state(config: Config) -> Group {
    let mut group = Group::new(3, Durability::Memory, config);
    group.run(MS * 10);
    group.write(0);
    group.run(MS * 20);
    group.crash(2);
    group.isolate(2);
    group.start(2);
    group.heal();
    group.network.clear();
    let request = Message::ViewRequest {
        view: 1,
        incarnation: Incarnation(1),
        last_slot: Slot(0),
        last_view: 0,
    };
    group.deliver(Packet::new(1, 2, &request));
    group.sync(2);
    group
}

#[test]
fn replica_without_state_gives_no_vote() {
    let group = asked_without_state(mode(Drive::Responsive));
    assert_eq!(votes(&group), 0, "it does not know what it acknowledged");
}

/// Replica 0 is cut off, the others continued without it, and it is asked to read.
pub fn cut_off_and_read(config: Config) -> bool {
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 10);
    group.isolate(0);
    group.run(MS * 3000);
    let batch = group.write(1);
    group.run(MS * 50);
    assert!(group.answered(1, batch), "the others continue");
    let read = group.submit(0, quintet_replica::Level::Linearizable);
    group.run(MS * 50);
    group.answered(0, read)
}

#[test]
fn isolated_replica_answers_no_reads() {
    assert!(!cut_off_and_read(mode(Drive::Responsive)));
}

#[test]
fn replica_halts_when_view_has_two_values_for_one_slot() {
    // In the log, and in what waits for the slots before it.
    for ahead in [0, 3] {
        let mut group = disk(3);
        group.write(0);
        group.idle(0);
        let pulses = group
            .network
            .iter()
            .filter_map(|packet| match packet.message() {
                Message::Pulse(pulse) if pulse.proposal.is_some() => Some(pulse),
                _ => None,
            });
        let mut pulse = pulses.last().expect("it proposes");
        let (slot, value) = pulse.proposal.take().expect("looked for");
        let slot = Slot(slot.0 + ahead);
        pulse.proposal = Some((slot, value));
        group.deliver(Packet::new(0, 1, &Message::Pulse(pulse.clone())));
        pulse.proposal = Some((slot, Value::Noop));
        let reason = group.contradicts(&Packet::new(0, 1, &Message::Pulse(pulse)));
        assert!(reason.contains("two values for slot"), "{reason}");
    }
}

#[test]
fn member_from_which_something_long_comes_stays_in_the_view() {
    let mut group = Group::new(3, Durability::Disk, mode(Drive::Responsive));
    group.run(MS * 100);
    assert!(group.wait_behind_bulk(0, MS * 5000));
    let batch = group.write(1);
    group.run(MS * 1000);
    assert!(group.answered(1, batch));
}

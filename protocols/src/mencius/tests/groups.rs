//! Groups of this protocol, step by step.

use crate::group::Packet;
pub use crate::group::{MS, assert_converged};
use crate::mencius::{Config, Mencius, Message, Range, Record, Value, replica::USED_MAX};
use alloc::{string::String, vec::Vec};
use quintet_replica::{
    Bytes, CommandTime, Control, Durability, Event, Level, Protocol, Recovered, ReplicaId, Slot,
    parts::Ballot,
};

pub(super) type Group = crate::group::Group<Mencius>;

pub(super) fn group(members: usize, durability: Durability) -> Group {
    with(members, durability, Config::default())
}

fn with(members: usize, durability: Durability, config: Config) -> Group {
    let mut group = Group::new(members, durability, config);
    group.run(MS * 10);
    group
}

#[test]
fn every_replica_suggests_and_all_execute_the_same() {
    for members in [1, 2, 3, 5, 7] {
        for durability in [Durability::Disk, Durability::Memory] {
            let mut group = group(members, durability);
            let mut written = alloc::vec::Vec::new();
            for turn in 0..30u16 {
                let id = turn % members as u16;
                written.push((id, group.write(id)));
                group.run(MS);
            }
            group.run(MS * 500);
            for (id, batch) in written {
                assert!(
                    group.answered(id, batch),
                    "{members} members, {durability:?}"
                );
            }
            assert_converged(&group, 30);
            assert_eq!(group.marked("revokes slots"), 0);
        }
    }
}

#[test]
fn votes_reach_the_owner_when_entries_find_no_room() {
    let mut group = group(3, Durability::Memory);
    group.write(1);
    group.idle(1);
    let suggested = core::mem::take(&mut group.network);
    for packet in suggested.into_iter().filter(|packet| packet.to.0 == 0) {
        group.deliver(packet);
    }
    group.write(0);
    // Room for a message without its entries.
    group.clock.room = 256 + 8 * 3 + 16 * 1024;
    group.idle(0);
    let votes = group.network.iter().any(|packet| match packet.message() {
        Message::Said(said) => {
            packet.to.0 == 1 && !said.votes.is_empty() && said.entries.is_empty()
        }
        _ => false,
    });
    assert!(votes, "{:?}", group.network.len());
}

#[test]
fn idle_replicas_skip_what_lies_before_a_suggestion() {
    let mut group = group(3, Durability::Disk);
    for _ in 0..5 {
        let batch = group.write(1);
        group.run(MS * 5);
        assert!(
            group.answered(1, batch),
            "no member waits for the idle ones"
        );
    }
    assert!(group.marked("skips own slots") > 0);
}

#[test]
fn silent_owner_continues_behind_its_revoked_slots() {
    for members in [3, 5] {
        let mut group = group(members, Durability::Disk);
        group.write(1);
        group.run(MS * 20);
        group.crash(1);
        let batch = group.write(0);
        group.run(MS * 3000);
        assert!(group.answered(0, batch));
        for turn in 0..200 {
            let batch = group.write(0);
            group.run(MS * 10);
            let last: Vec<String> = (0..members as u16)
                .filter(|id| *id != 1)
                .map(|id| crate::random_runs::RandomRun::describe(group.replica(id)))
                .collect();
            assert!(
                group.answered(0, batch),
                "revoked before needed, {turn}: {last:#?}"
            );
        }
        group.start(1);
        group.run(MS * 2000);
        let batch = group.write(1);
        group.run(MS * 500);
        assert!(group.answered(1, batch));
        assert_converged(&group, 203);
    }
}

#[test]
fn owner_taken_for_dead_suggests_lost_batches_again() {
    let mut group = group(3, Durability::Disk);
    group.isolate(2);
    let lost = group.write(2);
    group.write(0);
    group.write(0);
    group.run(MS * 3000);
    assert!(!group.answered(2, lost));
    group.heal();
    group.run(MS * 3000);
    assert!(group.answered(2, lost));
    assert!(group.marked("suggestion lost its slot") > 0);
    assert_converged(&group, 3);
}

#[test]
fn progress_of_a_peer_is_what_it_says_since_it_was_started() {
    let config = Config {
        log_memory_bytes: 4096,
        ..Config::default()
    };
    let mut group = with(3, Durability::Memory, config);
    for _ in 0..200 {
        group.write(1);
        group.run(MS * 5);
    }
    group.run(MS * 500);
    let known = |group: &Group| group.replica(1).peers.committed(ReplicaId(2));
    let before = known(&group);
    assert!(before > Slot(100));
    group.event(1, Event::Control(Control::CheckpointDue));
    group.crash(2);
    group.members[2].slow_state = true;
    group.start(2);
    group.run(MS * 100);
    assert!(known(&group) < before, "{:?}", known(&group));
    group.members[2].slow_state = false;
    group.run(MS * 5000);
    assert!(known(&group) >= before);
}

#[test]
fn late_answer_reports_no_progress_of_a_restarted_peer() {
    let mut group = group(3, Durability::Memory);
    group.write(0);
    group.run(MS * 500);
    let late = Message::Known {
        committed: group.replica(2).log.committed(),
        values: Vec::new(),
    };
    group.crash(2);
    group.members[2].slow_state = true;
    group.cut.extend([(0, 2), (1, 2)]);
    group.start(2);
    group.run(MS * 20);
    let known = |group: &Group| group.replica(1).peers.committed(ReplicaId(2));
    assert_eq!(known(&group), Slot(0), "it has lost its state");
    group.deliver(Packet::new(2, 1, &late));
    assert_eq!(known(&group), Slot(0));
}

#[test]
fn cluster_does_not_wait_for_owner_that_fetches_state() {
    let config = Config {
        window: 1024,
        log_memory_bytes: 4096,
        ..Config::default()
    };
    for laggard in [0, 2] {
        let mut group = with(3, Durability::Disk, config.clone());
        group.write(1);
        group.run(MS * 50);
        group.crash(laggard);
        while group.replica(1).log.committed().0 < USED_MAX + 1000 {
            let mut last = None;
            for _ in 0..1024 {
                last = Some(group.write(1));
            }
            group.run(MS * 1000);
            assert!(last.is_some_and(|last| group.answered(1, last)));
        }
        group.event(1, Event::Control(Control::CheckpointDue));
        group.members[usize::from(laggard)].slow_state = true;
        group.start(laggard);
        group.run(MS * 100);
        for turn in 0..20 {
            let batch = group.write(1);
            group.run(MS * 50);
            assert!(group.answered(1, batch), "{laggard}: {turn}");
            for _ in 0..10 {
                group.write(1);
            }
            group.run(MS * 10);
        }
        assert!(!group.status(laggard).voting, "it fetches");
        group.members[usize::from(laggard)].slow_state = false;
        group.run(MS * 5000);
        let batch = group.write(laggard);
        group.run(MS * 500);
        assert!(group.answered(laggard, batch));
        assert_converged(&group, USED_MAX);
    }
}

#[test]
fn isolated_replica_answers_no_reads() {
    let mut group = group(3, Durability::Disk);
    group.isolate(2);
    let read = group.submit(2, Level::Linearizable);
    group.write(0);
    group.run(MS * 3000);
    assert!(!group.answered(2, read));
    group.heal();
    group.run(MS * 3000);
    assert!(group.answered(2, read));
}

#[test]
fn suggestion_is_accepted_in_its_owners_slots_only() {
    let mut group = group(3, Durability::Disk);
    let said = crate::mencius::Said {
        incarnation: group.members[1].incarnation,
        entries: alloc::vec![(Slot(3), Value::Noop)],
        ..Default::default()
    };
    group.deliver(Packet::new(1, 0, &Message::Said(said)));
    assert_eq!(group.replica(0).turns.owner(Slot(3)), ReplicaId(2));
    assert!(group.replica(0).log.get(Slot(3)).is_none());
}

#[test]
fn majority_without_state_gets_a_remedy() {
    let mut group = group(3, Durability::Memory);
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
fn damaged_journal_decides_no_overwritten_record() {
    let record = |committed: u64| Record {
        ballot: Ballot::default(),
        decided: false,
        committed: Slot(committed),
        value: Value::Noop,
    };
    for (state_lost, decided) in [(false, true), (true, false)] {
        let group = Group::unstarted(3, Durability::Disk, Config::default());
        let mut replica = Mencius::new(group.setup(1));
        let recovered = Recovered {
            first_boot: false,
            state_lost,
            promise: None,
            checkpoint: None,
            records: alloc::vec![(Slot(1), record(0)), (Slot(2), record(1))],
        };
        assert!(replica.restore(recovered));
        let first = replica.log.get(Slot(1)).expect("it was kept");
        assert_eq!(first.decided, decided, "state lost: {state_lost}");
    }
}

#[test]
fn message_that_names_one_slot_of_each_kind_loses_none() {
    let config = Config {
        slots_max: 1,
        ..Config::default()
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 10);
    let batches: Vec<_> = (0..30)
        .map(|turn| (turn % 3, group.write(turn % 3)))
        .collect();
    group.run(MS * 100);
    for (id, batch) in batches {
        assert!(group.answered(id, batch));
    }
    assert_eq!(group.marked("suggestions sent again"), 0);
    assert_converged(&group, 30);
}

#[test]
fn slow_promise_reports_no_dropped_votes() {
    let config = Config {
        log_memory_bytes: 1024,
        ..Config::default()
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 10);
    group.write(0);
    group.run(MS * 50);
    let committed = group.replica(2).log.committed();
    let first = group.replica(2).turns.slot_of(ReplicaId(0), committed);
    group.members[2].slow_disk = true;
    let range = Range {
        owner: ReplicaId(0),
        ballot: Ballot::default().next(ReplicaId(1)),
        first,
        last: Slot(first.0 + 30),
    };
    group.deliver(Packet::new(1, 2, &Message::Prepare(range)));
    for _ in 0..20 {
        group.write(0);
        group.run(MS * 100);
    }
    assert!(group.replica(2).log.first() > first, "it has trimmed");
    group.members[2].slow_disk = false;
    group.run(MS * 100);
    assert!(group.marked("promise came too late") > 0);
    assert_converged(&group, 21);
}

#[test]
fn owner_passes_over_slots_that_others_decided_without_it() {
    let mut group = group(3, Durability::Disk);
    let (from, me) = (ReplicaId(0), ReplicaId(1));
    let mine = group.replica(1).own.next();
    let later = group.replica(1).turns.slot_of(me, mine);
    let known = Message::Known {
        committed: Slot(0),
        values: alloc::vec![(later, Value::Noop)],
    };
    group.deliver(Packet::new(from.0, me.0, &known));
    group.write(1);
    group.write(1);
    group.run(MS * 100);
    let replica = group.replica(1);
    assert!(replica.own.is_empty() && replica.log.is_decided(later));
}

/// An owner's suggestion reaches one other, who forgets it and comes back with the help of three
/// that never saw it; afterwards one of these votes for it. Whether the owner takes that, with the
/// lost vote, for a majority.
pub(super) fn counted_with_a_lost_vote(config: Config) -> bool {
    let mut group = with(5, Durability::Memory, config);
    group.cut.extend([(0, 2), (0, 3), (0, 4)]);
    let batch = group.write(0);
    group.run(MS * 5);
    let lacks_vote_of = |id| group.replica(0).own.lacks_vote_of(ReplicaId(id));
    assert_eq!(
        [0, 1, 2, 3, 4].map(lacks_vote_of),
        [false, false, true, true, true]
    );
    group.cut.extend([(0, 1), (1, 0), (2, 0), (3, 0), (4, 0)]);
    group.crash(1);
    group.start(1);
    group.run(MS * 150);
    assert!(group.replica(1).recovery.is_none(), "others have answered");
    group.cut.remove(&(0, 2));
    group.cut.remove(&(2, 0));
    group.run(MS * 150);
    group.answered(0, batch)
}

#[test]
fn vote_of_an_earlier_incarnation_decides_nothing() {
    assert!(!counted_with_a_lost_vote(Config::default()));
}

/// An owner's suggestion reaches one other and not its own disk; it restarts and suggests again.
/// The next own slots after the two suggestions.
pub(super) fn suggested_before_and_after_a_restart(config: Config) -> (Slot, Slot) {
    let mut group = with(3, Durability::Disk, config);
    group.isolate(2);
    group.members[0].slow_disk = true;
    group.write(0);
    group.run(MS);
    let before = group.replica(0).own.next();
    group.crash(0);
    group.members[0].slow_disk = false;
    group.isolate(0);
    group.start(0);
    group.run(MS);
    group.write(0);
    group.run(MS);
    (before, group.replica(0).own.next())
}

#[test]
fn restarted_owner_suggests_in_no_slot_that_it_may_have_used() {
    let (before, after) = suggested_before_and_after_a_restart(Config::default());
    assert!(after > before);
}

#[test]
fn replica_halts_when_decided_slot_has_another_value() {
    let mut group = group(3, Durability::Disk);
    group.write(1);
    group.run(MS * 50);
    let (owner, ballot) = (ReplicaId(1), Ballot::default());
    // The slots before it are not decided: no replica executes it.
    let slot = group.replica(0).turns.slot_of(owner, Slot(30));
    let learn = |value| {
        let (first, last) = (slot, slot);
        let range = Range {
            owner,
            ballot,
            first,
            last,
        };
        let values = [(slot, value)].into();
        Packet::new(1, 0, &Message::Learn { range, values })
    };
    let (time, batch) = (CommandTime(1), Bytes::from_static(b"a batch"));
    group.deliver(learn(Value::Command { time, batch }));
    let reason = group.contradicts(&learn(Value::Noop));
    assert!(reason.contains("two decisions for slot"), "{reason}");
}

#[test]
fn promise_with_long_values_waits_for_room() {
    let mut group = group(3, Durability::Disk);
    group.submit_long(1, Level::Ordered, 64 << 10);
    group.idle(1);
    for packet in core::mem::take(&mut group.network) {
        group.deliver(packet);
    }
    group.crash(1);
    // As if what answered an earlier question were still queued.
    let room = core::mem::replace(&mut group.clock.room, 32 << 10);
    let batch = group.write(0);
    group.run(MS * 3000);
    assert!(group.marked("a promise waits for room") > 1);
    group.clock.room = room;
    group.run(MS * 3000);
    assert!(group.answered(0, batch));
}

#[test]
fn slots_of_owner_that_sends_long_frame_are_not_revoked() {
    let mut group = group(3, Durability::Disk);
    group.run(MS * 100);
    let batch = group.write(1);
    assert!(group.wait_behind_bulk(0, MS * 5000));
    assert_eq!(group.marked("revokes slots"), 0);
    group.run(MS * 1000);
    assert!(group.answered(1, batch));
}

//! The failure cases of §3.4 and Appendix A.

use super::{Group, MS, assert_converged, chain, group, small, write_within};
use crate::chain_paxos::{Config, Entry, Message, Op, Summary, Timer, replica::Role};
use crate::group::Packet;
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    BatchId, CommandTime, Control, Durability, Event, Incarnation, Level, ReplicaId, ReplicaSet,
    Slot, Wire,
    parts::{Ballot, Decisions, ElectionMessage as Election},
};

const BOTH: [Durability; 2] = [Durability::Disk, Durability::Memory];

/// Loses `lost` under load, expects the rest to continue as `rest`, then lets the lost come back.
fn lose(members: usize, lost: &[u16], rest: &[u16]) {
    for durability in BOTH {
        let mut group = group(members, durability);
        for id in 0..members as u16 {
            group.write(id);
        }
        group.run(MS * 5);
        for id in 0..members as u16 {
            group.write(id);
            group.idle(id);
        }
        for id in lost {
            group.crash(*id);
        }
        let survivor = rest[rest.len() - 1];
        assert!(
            write_within(&mut group, survivor, MS * 4000),
            "{members} members without {lost:?}, {durability:?}"
        );
        group.run(MS * 2000);
        let mut now = chain(&group, survivor);
        now.sort_unstable();
        let mut expected = rest.to_vec();
        expected.sort_unstable();
        assert_eq!(now, expected, "{members} members without {lost:?}");
        for id in lost {
            group.start(*id);
        }
        group.run(MS * 6000);
        for id in 0..members as u16 {
            assert!(
                write_within(&mut group, id, MS * 1000),
                "at {id} after {lost:?} came back, {durability:?}"
            );
        }
        group.run(MS * 1000);
        assert_eq!(chain(&group, survivor).len(), members, "all are back");
        assert_converged(&group, members as u64);
    }
}

#[test]
fn member_that_crashes_in_a_loop_is_let_in_more_rarely() {
    // A member without its state waits only if the chain has more members than a quorum.
    for (members, durability) in [(3, Durability::Disk), (5, Durability::Memory)] {
        for up in [MS * 200, MS * 1000] {
            let mut group = group(members, durability);
            group.write(0);
            group.run(MS * 50);
            group.crash_in_a_loop(1, (up, MS * 50), |group| chain(group, 0).contains(&1));
            let lost = group.marked("removal proposed");
            let again = group.marked("re-admission proposed");
            assert!(
                lost.max(again) <= 20,
                "{lost}, {again}: {durability:?}, {up:?}"
            );
            group.start(1);
            group.run(MS * 40_000);
            assert_eq!(chain(&group, 0).len(), members, "{durability:?}, {up:?}");
            assert!(write_within(&mut group, 1, MS * 1000));
            assert_converged(&group, 1);
        }
    }
}

/// Three members, of which member 1 has failed often and has just been started again. `away` is how
/// long it was down each time.
fn failed_often(durability: Durability, config: Config, away: Duration) -> Group {
    let mut group = Group::new(3, durability, config);
    group.run(MS * 20);
    group.write(0);
    group.run(MS * 50);
    for _ in 0..7 {
        group.crash(1);
        group.run(away);
        group.start(1);
        while !chain(&group, 0).contains(&1) || !group.replica(1).catch_up.is_voting() {
            group.run(MS * 20);
        }
    }
    group.crash(1);
    group.run(away);
    group.start(1);
    group
}

/// The leader hears that these have been started again without their state, in one turn.
fn restarted(group: &mut Group, ids: &[u16]) {
    for id in ids {
        let leader = group.replica(0);
        let alive = Message::Alive {
            ballot: leader.ballots.promised(),
            incarnation: Incarnation(leader.peers.incarnations().of(ReplicaId(*id)).0 + 1),
            whole: false,
            able: false,
            held: Slot(0),
            round: 0,
        };
        group.deliver(Packet::new(*id, 0, &alive));
    }
    group.settle();
    group.run(MS);
}

#[test]
fn stay_ends_once_when_another_member_is_removed_meanwhile() {
    let mut group = group(7, Durability::Memory);
    group.write(0);
    group.run(MS * 50);
    restarted(&mut group, &[4]);
    restarted(&mut group, &[4]);
    // The third failure of 4 removes it, while the first failure of 3 is known.
    restarted(&mut group, &[4, 3]);
    assert!(!chain(&group, 0).contains(&4));
    restarted(&mut group, &[3]);
    assert!(chain(&group, 0).contains(&3), "its first short stay");
}

fn waits(group: &Group) -> bool {
    group.status(1).role == "out" && !chain(group, 0).contains(&1)
}

#[test]
fn often_crashed_member_is_admitted_at_once_when_needed() {
    for (lost, survivor) in [(2, 0), (0, 2)] {
        let mut group = failed_often(Durability::Disk, Config::default(), MS * 1000);
        group.run(MS * 100);
        assert!(waits(&group));
        group.crash(lost);
        assert!(
            write_within(&mut group, survivor, MS * 4000),
            "without {lost}"
        );
    }
}

#[test]
fn waiting_member_is_let_in_when_link_of_chain_breaks_one_way() {
    let mut group = failed_often(Durability::Disk, Config::default(), MS * 1000);
    group.run(MS * 100);
    assert!(waits(&group));
    group.cut.insert((0, 2));
    assert!(write_within(&mut group, 0, MS * 5000));
}

#[test]
fn member_without_state_joins_at_once_in_a_group_of_three() {
    for away in [MS * 50, MS * 1000] {
        let mut group = failed_often(Durability::Memory, Config::default(), away);
        group.run(MS * 300);
        group.crash(0);
        assert!(write_within(&mut group, 2, MS * 6000), "{away:?}");
        group.start(0);
        group.run(MS * 6000);
        assert!(write_within(&mut group, 0, MS * 1000), "{away:?}");
        group.run(MS * 1000);
        assert_converged(&group, 3);
    }
}

#[test]
fn waiting_member_follows_the_leader_and_serves_clients() {
    let mut group = failed_often(Durability::Disk, Config::default(), MS * 1000);
    group.run(MS * 3000);
    assert_eq!(
        group.status(1).leader,
        Some(ReplicaId(0)),
        "nothing is written"
    );
    assert!(write_within(&mut group, 1, MS * 500));
    let read = group.submit(1, Level::Linearizable);
    group.run(MS * 500);
    assert!(group.answered(1, read));
    assert!(waits(&group));
    assert_eq!(group.marked("leader stepped down"), 0);
    assert_converged(&group, 2);
}

#[test]
fn waiting_member_gets_the_state_when_the_log_is_trimmed() {
    let mut group = failed_often(Durability::Disk, small(), MS * 1000);
    group.crash(1);
    for _ in 0..1200 {
        group.write(0);
        group.run(MS);
    }
    group.start(1);
    assert!(group.replica(0).log.first() > group.replica(1).log.held().next());
    group.run(MS * 1000);
    assert!(waits(&group));
    assert_converged(&group, 1200);
}

#[test]
fn leader_raises_its_ballot_for_a_waiting_member() {
    let mut group = failed_often(Durability::Disk, Config::default(), MS * 1000);
    group.run(MS * 300);
    let ballot = group.replica(0).ballots.promised().next(ReplicaId(2));
    let from = Slot(1);
    group.deliver(Packet::new(
        2,
        1,
        &Message::Election(Election::Prepare { ballot, from }),
    ));
    group.network.clear();
    // It lacks an entry now, which it would reject under the old ballot.
    assert!(write_within(&mut group, 0, MS * 500));
    group.run(MS * 500);
    assert!(waits(&group));
    assert_eq!(group.leaders(), [0]);
    assert_eq!(group.status(1).leader, Some(ReplicaId(0)));
    assert_eq!(group.marked("ignored: old ballot"), 0);
    assert!(write_within(&mut group, 1, MS * 500));
}

#[test]
fn pending_removal_is_not_counted_again() {
    let mut group = group(3, Durability::Disk);
    group.isolate(2);
    group.run(MS * 100);
    // The suspect timeout passes before the leader's next heartbeat.
    group.clock.now = group.clock.now + MS * 2000;
    let ballot = group.replica(0).ballots.promised();
    let about = ReplicaId(2);
    for _ in 0..2 {
        group.deliver(Packet::new(1, 0, &Message::Suspect { ballot, about }));
    }
    assert_eq!(group.marked("removal proposed"), 1);
    assert_eq!(group.marked("removal would leave no quorum"), 0);
    group.settle();
    assert_eq!(chain(&group, 0), [0, 1]);
}

#[test]
fn tail_fails() {
    lose(3, &[2], &[0, 1]);
    lose(5, &[4], &[0, 1, 2, 3]);
}

#[test]
fn middle_fails() {
    lose(3, &[1], &[0, 2]);
    lose(5, &[2], &[0, 1, 3, 4]);
}

#[test]
fn head_fails() {
    lose(3, &[0], &[1, 2]);
    lose(5, &[0], &[1, 2, 3, 4]);
}

#[test]
fn heads_own_successor_fails() {
    lose(4, &[1], &[0, 2, 3]);
}

#[test]
fn adjacent_failures_of_middles() {
    lose(5, &[1, 2], &[0, 3, 4]);
    lose(7, &[2, 3, 4], &[0, 1, 5, 6]);
}

#[test]
fn adjacent_failures_with_the_tail() {
    lose(5, &[3, 4], &[0, 1, 2]);
}

#[test]
fn head_and_successor_fail() {
    lose(5, &[0, 1], &[2, 3, 4]);
}

#[test]
fn head_and_middle_fail() {
    lose(5, &[0, 2], &[1, 3, 4]);
}

#[test]
fn head_and_tail_fail() {
    lose(5, &[0, 4], &[1, 2, 3]);
}

#[test]
fn chain_of_two_waits_for_its_other_half() {
    let mut group = group(2, Durability::Disk);
    assert!(write_within(&mut group, 1, MS * 10));
    group.crash(1);
    let write = group.write(0);
    group.run(MS * 3000);
    assert!(!group.answered(0, write), "one of two decides nothing");
    assert_eq!(
        group.replica(0).chain.decided().members.len(),
        2,
        "and removes no member"
    );
    group.start(1);
    group.run(MS * 3000);
    assert!(write_within(&mut group, 0, MS * 2000));
    group.crash(0);
    group.run(MS * 1000);
    group.start(0);
    group.run(MS * 4000);
    assert!(write_within(&mut group, 1, MS * 2000), "the head came back");
    assert_converged(&group, 3);
}

#[test]
fn returning_replica_is_added_before_removal_below_quorum() {
    // Three members, one removed: the chain has two. The second fails; the first comes back.
    let mut group = group(3, Durability::Disk);
    group.crash(2);
    assert!(write_within(&mut group, 0, MS * 2000));
    group.run(MS * 500);
    assert_eq!(chain(&group, 0), [0, 1]);
    group.crash(1);
    let write = group.write(0);
    group.run(MS * 1000);
    assert!(!group.answered(0, write));
    assert!(group.marked("removal would leave no quorum") > 0);
    group.start(2);
    group.run(MS * 3000);
    assert!(group.answered(0, write), "added, then the dead one removed");
    group.run(MS * 1000);
    assert_eq!(chain(&group, 0), [0, 2]);
    group.start(1);
    group.run(MS * 2000);
    assert_eq!(chain(&group, 0), [0, 2, 1]);
    assert_converged(&group, 2);
}

#[test]
fn removed_head_leads_again_when_no_other_can() {
    // The head is removed and comes back; then the others go, but one.
    let mut group = group(3, Durability::Disk);
    group.isolate(0);
    assert!(write_within(&mut group, 1, MS * 4000));
    group.run(MS * 1000);
    let leader = group.leaders().into_iter().find(|id| *id != 0);
    let leader = leader.expect("another leads");
    group.heal();
    group.crash(leader);
    group.run(MS * 8000);
    assert!(write_within(&mut group, 0, MS * 4000));
    group.start(leader);
    group.run(MS * 4000);
    assert_eq!(chain(&group, 0).len(), 3);
    assert_converged(&group, 2);
}

#[test]
fn node_marked_by_an_undecided_entry_is_back_under_a_new_leader() {
    // RemoveNode(3) reaches the next one only; then the head is gone.
    let mut group = group(5, Durability::Memory);
    group.cut.extend([(1, 2)]);
    let remove = Message::Suspect {
        ballot: group.replica(0).ballots.promised(),
        about: ReplicaId(3),
    };
    group.members[0].timers.clear();
    for _ in 0..5 {
        group.clock.now = group.clock.now + MS * 200;
        group.deliver(crate::group::Packet::new(2, 0, &remove));
    }
    group.idle(0);
    group.settle();
    let marked: Vec<_> = (0..5)
        .filter(|id| !chain(&group, *id).contains(&3))
        .collect();
    assert_eq!(marked, [0, 1], "the entry got no further");
    group.crash(0);
    group.heal();
    group.run(MS * 6000);
    assert!(write_within(&mut group, 3, MS * 2000));
    let decided = group.replica(3).chain.decided();
    assert!(decided.contains(ReplicaId(3)), "it takes part again");
    assert!(!decided.contains(ReplicaId(0)));
}

#[test]
fn removed_node_gets_the_entry_that_removes_it_and_asks_back_in() {
    let mut group = group(5, Durability::Memory);
    // The link from 1 to 2 is broken, both ways; the head hears both.
    group.cut.extend([(1, 2), (2, 1)]);
    assert!(write_within(&mut group, 4, MS * 6000));
    group.run(MS * 4000);
    assert!(group.marked("removed although it is heard") > 0);
    assert!(
        write_within(&mut group, 2, MS * 3000),
        "it is in the chain again"
    );
    let now = chain(&group, 0);
    let at = |id| now.iter().position(|it| *it == id);
    assert_eq!(now.len(), 5);
    assert_ne!(at(1).map(|at| at + 1), at(2), "elsewhere: {now:?}");
    assert_eq!(group.leaders(), [0], "no replica had to stand");
}

#[test]
fn members_are_told_when_one_is_removed_and_returns() {
    for durability in [Durability::Disk, Durability::Memory] {
        let mut group = group(3, durability);
        assert_eq!(group.view(&[0, 1, 2]), ReplicaSet::all(3));
        group.crash(2);
        assert!(write_within(&mut group, 0, MS * 2000));
        group.run(MS * 500);
        assert_eq!(group.view(&[0, 1]), ReplicaSet::all(2));
        group.start(2);
        group.run(MS * 4000);
        assert_eq!(group.view(&[0, 1, 2]), ReplicaSet::all(3));
    }
}

#[test]
fn decided_removal_below_quorum_has_no_effect() {
    let mut group = group(3, Durability::Memory);
    group.crash(2);
    assert!(write_within(&mut group, 0, MS * 2000));
    group.run(MS * 500);
    let before = group.replica(0).chain.decided().clone();
    assert_eq!(before.members.len(), 2);
    let mut chain = before.clone();
    assert!(!chain.apply(Slot(99), &Op::Remove { id: ReplicaId(1) }, 2));
    assert_eq!(chain, before);
}

#[test]
fn forwarding_after_removal_begins_at_first_unknown_entry() {
    // Replica 1 takes entries and passes nothing on; then it is removed.
    let mut group = group(5, Durability::Memory);
    assert!(write_within(&mut group, 4, MS * 10));
    let before = group.replica(2).log.held();
    group.cut.extend([(1, 2)]);
    for _ in 0..3 {
        group.write(0);
        group.run(MS);
    }
    assert_eq!(group.replica(2).log.held(), before, "nothing came through");
    group.crash(1);
    group.run(MS * 1500);
    assert!(
        group.replica(2).log.executed() >= Slot(before.0 + 4),
        "three and the removal"
    );
    assert_eq!(
        group.marked("gap in the chain"),
        0,
        "in order, without asking"
    );
    assert_converged(&group, before.0 + 4);
}

#[test]
fn late_slot_in_gap_is_not_committed() {
    let mut group = group(3, Durability::Disk);
    assert!(write_within(&mut group, 0, MS * 100));
    // A head that is cut off holds an entry of its own where the others decide another.
    group.isolate(0);
    group.write(0);
    group.idle(0);
    let slot = group.replica(0).log.held();
    assert!(write_within(&mut group, 1, MS * 6000));
    let [leader] = group.leaders()[..] else {
        panic!("one leads");
    };
    let of = group.replica(leader);
    let (ballot, base, chain) = (
        of.ballots.promised(),
        of.log.committed(),
        of.chain.decided().clone(),
    );
    let entry = of.log.get(slot).expect("it is kept").entry.clone();
    assert_ne!(
        group.replica(0).log.get(slot).expect("its own").entry,
        entry
    );
    let header = of.header();
    // Back, it is told by one to continue ahead, and gets from another what it had asked for.
    let skip = Message::Skip {
        ballot,
        base,
        chain,
        decisions: Decisions::default(),
    };
    let late = Message::Accept {
        header,
        first: slot,
        entries: vec![entry],
    };
    group.deliver(Packet::new(leader, 0, &skip));
    group.deliver(Packet::new(leader, 0, &late));
    assert_eq!(group.replica(0).log.committed(), base);
    group.heal();
    group.run(MS * 6000);
    assert_converged(&group, base.0);
}

#[test]
fn state_of_one_in_the_middle_decides_nothing_that_is_held_here() {
    for sender in [0, 1] {
        let mut group = group(3, Durability::Disk);
        assert!(write_within(&mut group, 0, MS * 100));
        group.settle();
        let of = group.replica(1);
        let (ballot, chain) = (of.ballots.promised(), of.chain.decided().clone());
        let (header, first) = (of.header(), of.log.held().next());
        assert_eq!(group.replica(2).log.executed(), first.previous());
        // An entry that no quorum has, and then a state that covers its slot. Had 1 fetched that
        // from a replica under a higher ballot, another value would be decided there; the leader
        // steps down when it gets such a state.
        group.isolate(2);
        let (time, op) = (CommandTime(1), Op::Nothing);
        let entry = Message::Accept {
            header,
            first,
            entries: vec![Entry { time, op }],
        };
        group.deliver(Packet::new(1, 2, &entry));
        group.idle(2);
        assert_eq!(group.replica(2).log.held(), first);
        let base = first.next();
        let skip = Message::Skip {
            ballot,
            base,
            chain,
            decisions: Decisions::default(),
        };
        group.deliver(Packet::new(sender, 2, &skip));
        group.idle(2);
        let skipped = group.replica(2);
        assert!(skipped.hollow() && skipped.log.committed() == base);
        let executed = if sender == 0 { first } else { first.previous() };
        assert_eq!(skipped.log.executed(), executed, "told by {sender}");
        assert!(skipped.log.get(first).is_some(), "candidates hear of it");
    }
}

#[test]
fn state_of_a_higher_ballot_decides_nothing_down_the_chain() {
    let mut group = group(7, Durability::Disk);
    for _ in 0..20 {
        group.write(0);
        group.run(MS);
    }
    group.run(MS * 500);
    // All restart, 0 with a snapshot: 1, behind it in the chain, waits for a state, because the
    // snapshot says nothing of ballots, like those of earlier versions.
    group.event(0, Event::Control(Control::CheckpointDue));
    group.settle();
    let (_, summary) = group.members[0].disk.checkpoint.as_mut().expect("taken");
    let told = Summary::decode_all(summary.clone()).expect("its own");
    *summary = Summary {
        decisions: Decisions::default(),
        ..told
    }
    .encode_to_bytes();
    (0..7).for_each(|id| group.crash(id));
    group.members[1].slow_state = true;
    (0..7).for_each(|id| group.start(id));
    for _ in 0..200 {
        group.fire(0, Timer::Election);
        group.run(MS * 10);
        if group.leaders() == [0] {
            break;
        }
    }
    group.run(MS * 500);
    assert!(group.replica(1).hollow() && !group.replica(2).hollow());
    assert!(write_within(&mut group, 0, MS * 1000));
    group.run(MS * 300);
    // The first three are cut off with an entry of theirs, the others elect a leader and decide.
    for (a, b) in (0..3).flat_map(|a| (3..7).map(move |b| (a, b))) {
        group.cut.extend([(a, b), (b, a)]);
    }
    group.write(0);
    let mut other = None;
    for _ in 0..1000 {
        group.run(MS * 5);
        other = group.leaders().into_iter().find(|id| *id > 2);
        if other.is_some() {
            break;
        }
    }
    let other = other.expect("they are a majority");
    for _ in 0..4 {
        group.write(other);
    }
    group.run(MS * 5);
    let ballot = |group: &Group, id| group.replica(id).ballots.promised();
    assert!(ballot(&group, 2) == ballot(&group, 1) && ballot(&group, 1) < ballot(&group, other));
    let held = group.replica(2).log.held();
    let (_, donor) = (3..7_u16)
        .map(|id| (group.members[usize::from(id)].executed, id))
        .max()
        .expect("there are four");
    // The state comes to 1 from one of them, before anything of the higher ballot does.
    group.event(donor, Event::Control(Control::CheckpointDue));
    let donor = &group.members[usize::from(donor)];
    let (slot, summary) = donor.disk.checkpoint.clone().expect("just taken");
    assert!(slot > held && held > group.replica(2).log.executed());
    let state = donor.state[..slot.0 as usize].to_vec();
    let behind = &mut group.members[1];
    (behind.state, behind.executed) = (state, slot);
    behind.disk.checkpoint = Some((slot, summary.clone()));
    group.event(1, Event::Installed { slot, summary });
    group.settle();
    group.heal();
    group.run(MS * 6000);
    assert_converged(&group, slot.0);
}

#[test]
fn incarnation_without_state_vouches_only_for_fetched_entries() {
    // 0 and 1 decide without 2, and 0 trims what it decided.
    let mut group = Group::new(3, Durability::Memory, small());
    group.run(MS * 20);
    group.isolate(2);
    for _ in 0..1200 {
        group.write(0);
        group.run(MS * 2);
    }
    // 1 forgets, and is let in again ahead of a state that does not come.
    group.members[1].slow_state = true;
    group.members[2].slow_state = true;
    group.crash(1);
    group.start(1);
    group.run(MS * 2000);
    assert!(group.replica(1).catch_up.is_voting() && group.replica(1).hollow());
    // Cut off is not dead: 1 and 2 have a quorum, and only 0 knows what was decided.
    group.heal();
    group.isolate(0);
    group.run(MS * 8000);
    assert_eq!(group.replica(2).log.executed(), Slot(0));
    group.heal();
    group.members[1].slow_state = false;
    group.members[2].slow_state = false;
    group.run(MS * 6000);
    assert!(write_within(&mut group, 2, MS * 2000));
    group.run(MS * 1000);
    assert_converged(&group, 1200);
}

#[test]
fn candidate_waiting_for_lost_state_takes_available_one() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 20);
    group.isolate(2);
    for _ in 0..1200 {
        group.write(0);
        group.run(MS * 2);
    }
    // It stands, and is refused by one whose log begins further up; then that one is gone.
    let asked = |group: &mut Group| {
        group.fire(2, Timer::Election);
        let asks = |packet: &Packet<_>| match packet.message() {
            Message::Election(Election::PreVote { ballot, .. }) => Some(ballot),
            _ => None,
        };
        group.network.iter().find_map(asks)
    };
    group.cut.remove(&(2, 1));
    group.cut.remove(&(1, 2));
    let ballot = asked(&mut group).expect("no replica led for long");
    group.network.clear();
    let refused = Message::Election(Election::PreVoteOk {
        ballot,
        granted: false,
        promised: group.replica(0).ballots.promised(),
        first: Slot(5000),
        decisions: Decisions::default(),
    });
    group.deliver(Packet::new(0, 2, &refused));
    assert_eq!(group.replica(2).catch_up.fetching().asked(), None);
    group.deliver(Packet::new(1, 2, &refused));
    assert_eq!(
        group.replica(2).catch_up.fetching().asked(),
        Some(Slot(4999)),
        "too many refuse it"
    );
    // The next one that refuses it has less, and that is what there is.
    asked(&mut group).expect("it still may stand");
    group.settle();
    asked(&mut group);
    group.settle();
    assert!(group.marked("state installed") > 0);
    assert!(group.replica(2).log.executed() >= Slot(1000));
    assert_eq!(group.replica(2).catch_up.fetching().asked(), None);
}

#[test]
fn candidate_soon_asks_again_above_the_promise_that_refuses_it() {
    let mut group = group(3, Durability::Disk);
    group.run(MS * 20);
    group.isolate(1);
    group.run(MS * 1500);
    group.fire(1, Timer::Election);
    let asks = |group: &Group, ballot| match &group.replica(1).role {
        Role::Candidate(candidate, _) => candidate.asks(ballot),
        _ => false,
    };
    let ask = group.replica(1).ballots.promised().next(ReplicaId(1));
    assert!(asks(&group, ask));
    let promised = Ballot {
        round: 9,
        owner: ReplicaId(2),
    };
    let refused = Message::Election(Election::PreVoteOk {
        ballot: ask,
        granted: false,
        promised,
        first: Slot(1),
        decisions: Decisions::default(),
    });
    group.deliver(Packet::new(2, 1, &refused));
    group.run(Config::default().heartbeat * 3);
    assert!(asks(&group, promised.next(ReplicaId(1))));
}

#[test]
fn handed_off_head_is_followed_at_once() {
    use quintet_replica::{Control, Event};
    let mut group = group(3, Durability::Disk);
    assert!(write_within(&mut group, 2, MS * 10));
    group.event(0, Event::Control(Control::HandOff));
    group.settle();
    assert_eq!(
        group.leaders(),
        [1],
        "the next in the chain, without waiting for any timer"
    );
    assert!(write_within(&mut group, 0, MS * 100));
    assert_eq!(chain(&group, 1), [1, 2, 0]);
}

#[test]
fn leadership_goes_past_a_member_that_lacks_the_state() {
    use quintet_replica::{Control, Event};
    let mut group = group(3, Durability::Disk);
    assert!(write_within(&mut group, 0, MS * 10));
    let leader = group.replica(0);
    let alive = Message::Alive {
        ballot: leader.ballots.promised(),
        incarnation: leader.peers.incarnations().of(ReplicaId(1)),
        whole: true,
        able: false,
        held: leader.log.held(),
        round: 0,
    };
    group.deliver(Packet::new(1, 0, &alive));
    group.event(0, Event::Control(Control::HandOff));
    group.settle();
    assert_eq!(group.leaders(), [2]);
    assert!(write_within(&mut group, 0, MS * 100));
}

#[test]
fn broken_link_is_avoided_for_a_while_only() {
    use quintet_replica::ReplicaId;
    let mut group = group(3, Durability::Disk);
    group.cut.insert((1, 2));
    group.run(MS * 3000);
    let avoids = |group: &Group| match &group.replica(0).role {
        crate::chain_paxos::replica::Role::Leader(lead) => {
            lead.links.avoids(ReplicaId(1), ReplicaId(2))
        }
        _ => panic!("0 leads"),
    };
    assert!(avoids(&group));
    group.heal();
    group.run(MS * 40_000);
    assert!(!avoids(&group));
}

#[test]
fn too_many_lost_memories_halt_with_the_remedy() {
    let mut group = Group::new(3, Durability::Memory, Config::default());
    group.run(MS * 20);
    assert!(write_within(&mut group, 0, MS * 10));
    for id in 0..2 {
        group.crash(id);
        group.start(id);
    }
    group.run(MS * 20_000);
    let halted = group.members[0].halted.clone().expect("it cannot continue");
    assert!(halted.contains("--bootstrap-again"), "{halted}");
}

#[test]
fn majority_ahead_of_lost_state_reads_its_logs_again() {
    let mut group = group(3, Durability::Disk);
    assert!(write_within(&mut group, 0, MS * 100));
    for _ in 0..10 {
        group.write(0);
    }
    group.settle();
    let of = group.replica(0);
    let (base, chain) = (of.log.executed(), of.chain.decided().clone());
    assert_eq!(base, Slot(11));
    // Both have what was decided on their disks, and no longer know that it is. Leading again, 0
    // tells them to continue ahead of its state.
    let ballot = of.ballots.promised().next(ReplicaId(0));
    group.isolate(0);
    for id in [1, 2] {
        group.crash(id);
        group.start(id);
        group.members[usize::from(id)].slow_state = true;
        let from = base.next();
        let chain = chain.clone();
        group.deliver(Packet::new(
            0,
            id,
            &Message::Election(Election::Prepare { ballot, from }),
        ));
        group.sync(id);
        let skip = Message::Skip {
            ballot,
            base,
            chain,
            decisions: Decisions::default(),
        };
        group.deliver(Packet::new(0, id, &skip));
        let ahead = group.replica(id);
        assert!(ahead.hollow() && ahead.log.committed() == base && ahead.log.executed() < base);
    }
    // No replica has that state any more. A candidate still shows how much was decided.
    group.crash(0);
    group.heal();
    for id in [1_usize, 2] {
        group.members[id].slow_disk = true;
    }
    group.run(MS * 10_000);
    assert!(group.marked("stands without the state that it waits for") > 0);
    for id in [1_u16, 2] {
        assert!(group.status(id).committed >= base);
        group.members[usize::from(id)].slow_disk = false;
    }
    group.run(MS * 10_000);
    let [leader] = group.leaders()[..] else {
        panic!("one leads");
    };
    assert!(write_within(&mut group, leader, MS * 2000));
    for id in [1_u16, 2] {
        group.members[usize::from(id)].slow_state = false;
    }
    group.start(0);
    group.run(MS * 6000);
    assert_converged(&group, 12);
}

/// Writes of two thousand bytes at replica 0; gives those that were answered.
fn write_much(group: &mut Group, count: usize) -> Vec<BatchId> {
    let mut answered = Vec::new();
    for _ in 0..count {
        let batch = group.submit_long(0, Level::Ordered, 2000);
        group.run(MS);
        if group.answered(0, batch) {
            answered.push(batch);
        }
    }
    answered
}

#[test]
fn votes_given_ahead_of_the_state_are_kept_until_it_has_come() {
    for durability in [Durability::Memory, Durability::Disk] {
        let mut group = Group::new(3, durability, small());
        group.run(MS * 20);
        // 2 is away while the others decide more than they keep, and continues ahead of a state
        // that takes long.
        group.isolate(2);
        group.run(MS * 2000);
        let mut answered = write_much(&mut group, 100);
        assert_eq!(answered.len(), 100);
        group.members[2].slow_state = true;
        group.heal();
        group.run(MS * 2000);
        assert_eq!(chain(&group, 0), [0, 1, 2]);
        assert!(group.replica(2).hollow());
        // Then 1 is away: what is decided now, 0 executes, and 2 alone has besides.
        group.isolate(1);
        group.run(MS * 2000);
        answered.extend(write_much(&mut group, 400));
        assert!(answered.len() > 110, "its votes count");
        // The only failure: 0 does not come back.
        group.crash(0);
        group.members[2].slow_state = false;
        group.heal();
        group.run(MS * 20_000);
        let [leader] = group.leaders()[..] else {
            panic!("one leads");
        };
        let executed = group.batches(leader);
        assert!(answered.iter().all(|batch| executed.contains(batch)));
        assert!(write_within(&mut group, leader, MS * 2000));
    }
}

#[test]
fn waiting_replica_forwards_entries_that_it_does_not_vote_for() {
    let mut group = Group::new(5, Durability::Memory, small());
    group.run(MS * 20);
    group.isolate(1);
    group.run(MS * 2000);
    assert_eq!(write_much(&mut group, 100).len(), 100);
    group.members[1].slow_state = true;
    group.heal();
    group.run(MS * 2000);
    assert!(group.replica(1).hollow() && chain(&group, 0).contains(&1));
    assert_eq!(write_much(&mut group, 600).len(), 600, "others vote");
    let ahead = group.replica(1);
    assert!(ahead.log.has_stopped_votes() && ahead.hollow());
    assert!(ahead.log.bytes() < 7 * small().log_memory_bytes);
    group.members[1].slow_state = false;
    group.run(MS * 2000);
    assert!(!group.replica(1).log.has_stopped_votes());
    assert_eq!(write_much(&mut group, 10).len(), 10);
    group.run(MS * 100);
    assert_converged(&group, 711);
}

#[test]
fn votes_on_this_side_of_a_long_gap_are_told_to_candidates() {
    let mut group = group(3, Durability::Disk);
    for _ in 0..10 {
        group.write(0);
    }
    group.settle();
    let of = group.replica(0);
    let (first, chain) = (of.log.first(), of.chain.decided().clone());
    let ballot = of.ballots.promised().next(ReplicaId(0));
    let base = Slot(1 << 20);
    group.crash(1);
    group.start(1);
    group.isolate(1);
    group.members[1].slow_state = true;
    let prepare = |ballot| {
        Message::Election(Election::Prepare {
            ballot,
            from: first,
        })
    };
    group.deliver(Packet::new(0, 1, &prepare(ballot)));
    group.sync(1);
    let executed = group.replica(1).log.executed();
    assert!(executed < Slot(10), "the last decisions it does not know");
    let skip = Message::Skip {
        ballot,
        base,
        chain,
        decisions: Decisions::default(),
    };
    group.deliver(Packet::new(2, 1, &skip));
    let told = |group: &mut Group| {
        let ballot = group.replica(1).ballots.promised().next(ReplicaId(0));
        group.heal();
        group.deliver(Packet::new(0, 1, &prepare(ballot)));
        group.sync(1);
        let promise = |packet: &Packet<_>| match packet.message() {
            Message::Election(Election::Promise { page, .. }) => {
                Some((page.first, page.accepted.len() as u64))
            }
            _ => None,
        };
        let promise = group.network.iter().rev().find_map(promise);
        group.network.clear();
        group.isolate(1);
        promise.expect("it promises")
    };
    let kept = 10 - executed.0;
    let (first, accepted) = told(&mut group);
    assert!(first <= executed.next() && accepted >= kept, "{accepted}");
    group.crash(1);
    group.start(1);
    assert!(group.replica(1).hollow());
    let (first, accepted) = told(&mut group);
    assert!(first <= executed.next() && accepted >= kept, "{accepted}");
}

#[test]
fn restart_of_all_needs_no_state_for_what_all_journals_have() {
    for (members, ahead, stands) in [(3, 0, 0), (3, 1, 2), (3, 2, 2), (5, 0, 0), (5, 4, 4)] {
        let mut group = group(members, Durability::Disk);
        for leader in [0, 1] {
            for _ in 0..10 {
                group.write(leader);
                group.run(MS);
            }
            group.crash(0);
            group.run(MS * 2000);
            group.start(0);
            group.run(MS * 2000);
        }
        // One journal has the last decision.
        group.event(ahead, Event::Control(Control::CheckpointDue));
        group.settle();
        let executed = group.members[usize::from(ahead)].executed;
        group.restart_all_without_states();
        group.elect(stands, Timer::Election);
        group.run(MS * 5000);
        assert_eq!(
            group.marked("state transfer chosen"),
            0,
            "{members} {ahead}"
        );
        // Another candidate may win by the votes of the others.
        let counted = group.marked("decided as accepted under an earlier ballot") > 0;
        assert!(counted || ahead != stands, "{members} {ahead} {stands}");
        assert!(write_within(&mut group, 0, MS * 1000));
        group.run(MS * 1000);
        assert_converged(&group, executed.0 + 1);
    }
}

/// The pages that the leader sends to replica 2 when that one says that it holds so much.
fn pages(group: &mut Group, held: Slot) -> Vec<(Slot, Slot)> {
    let leader = group.replica(0);
    let alive = Message::Alive {
        ballot: leader.ballots.promised(),
        incarnation: leader.peers.incarnations().of(ReplicaId(2)),
        whole: true,
        able: true,
        held,
        round: 0,
    };
    group.network.clear();
    group.deliver(Packet::new(2, 0, &alive));
    let page = |packet: &Packet<_>| match packet.message() {
        Message::Accept { first, entries, .. } => {
            Some((first, Slot(first.0 + entries.len() as u64 - 1)))
        }
        _ => None,
    };
    let sent = (group.network.iter()).filter(|packet| packet.to == ReplicaId(2));
    sent.filter_map(page).collect()
}

#[test]
fn joiner_gets_page_again_only_when_it_was_lost() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 20);
    group.crash(2);
    group.run(MS * 2000);
    assert_eq!(chain(&group, 0), [0, 1]);
    let held = group.replica(0).log.held();
    for _ in 0..200 {
        group.write(0);
        group.run(MS);
    }
    let [(first, last)] = pages(&mut group, held)[..] else {
        panic!("one page")
    };
    assert_eq!(first, held.next());
    // The message to deliver now was sent before the page came.
    let [(second, second_last)] = pages(&mut group, held)[..] else {
        panic!("one page")
    };
    assert_eq!(second, last.next());
    let [(third, _)] = pages(&mut group, last)[..] else {
        panic!("one page")
    };
    assert_eq!(third, second_last.next());
    group.run(MS * 1000);
    let [(again, _)] = pages(&mut group, last)[..] else {
        panic!("one page")
    };
    assert_eq!(again, last.next(), "nothing has come for a while");
}

#[test]
fn entry_that_adds_a_replica_beyond_the_epoch_is_refused() {
    let mut group = group(3, Durability::Memory);
    let stranger = ReplicaId(100);
    for op in [
        Op::Add {
            id: stranger,
            incarnation: Incarnation(1),
            after: ReplicaId(1),
        },
        Op::Add {
            id: ReplicaId(1),
            incarnation: Incarnation(1),
            after: stranger,
        },
        Op::Read {
            by: stranger,
            stamp: 1,
        },
    ] {
        let message = Message::Accept {
            header: group.replica(0).header(),
            first: group.replica(1).log.held().next(),
            entries: alloc::vec![Entry {
                time: CommandTime(1),
                op,
            }],
        };
        let packet = Packet::new(0, 1, &message);
        let refused = group.offer(&packet);
        group.run(MS * 100);
        assert!(refused.is_err(), "{message:?}");
    }
    assert!(write_within(&mut group, 0, MS * 500));
}

/// The first proposal on its way from the leader to its successor.
fn proposal(group: &mut Group) -> Message {
    group.write(0);
    group.idle(0);
    let messages = group.network.iter().map(Packet::message);
    let proposes = |message: &Message| match message {
        Message::Accept { entries, .. } => !entries.is_empty(),
        _ => false,
    };
    messages.into_iter().find(proposes).expect("it proposes")
}

#[test]
fn replica_halts_when_ballot_has_two_values_for_one_slot() {
    let mut group = group(3, Durability::Disk);
    let mut message = proposal(&mut group);
    group.run(MS * 50);
    let Message::Accept { entries, .. } = &mut message else {
        unreachable!("it is a proposal")
    };
    entries[0].op = Op::Nothing;
    let reason = group.contradicts(&Packet::new(0, 1, &message));
    assert!(reason.contains("two values for slot"), "{reason}");
}

#[test]
fn replica_halts_when_decided_slot_has_another_value() {
    let mut group = group(3, Durability::Disk);
    let mut message = proposal(&mut group);
    group.run(MS * 50);
    let Message::Accept {
        header, entries, ..
    } = &mut message
    else {
        unreachable!("it is a proposal")
    };
    header.ballot.round += 1;
    entries[0].op = Op::Nothing;
    let reason = group.contradicts(&Packet::new(0, 1, &message));
    assert!(reason.contains("two decisions for slot"), "{reason}");
}

#[test]
fn leader_stays_while_something_long_comes_from_it() {
    let mut group = group(3, Durability::Disk);
    group.run(MS * 100);
    assert!(group.wait_behind_bulk(0, MS * 5000));
    let batch = group.write(1);
    group.run(MS * 1000);
    assert!(group.answered(1, batch));
}

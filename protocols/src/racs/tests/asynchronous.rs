//! The asynchronous mode by hand: what each message that is lost or late leads to.

use super::group::{Group, MS, Packet, assert_converged, pump, small};
use crate::racs::{BlockId, Config, Message, Timer};
use alloc::vec::Vec;
use quintet_replica::{Control, Durability, Event, Link, Peer, ReplicaId, parts::request_key};

/// Three replicas in view 1, led by replica 0, of which these say that it is gone.
fn timed_out(who: &[u16]) -> Group {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 100);
    assert_eq!(group.leaders(), [0]);
    for id in who {
        let control = Control::ReportFailure(ReplicaId(0));
        group.event(*id, Event::Control(control));
    }
    group
}

#[test]
fn view_of_a_leader_whose_links_are_broken_is_passed_over() {
    let mut group = Group::new(5, Durability::Disk, small());
    group.run(MS * 100);
    group.write(0);
    group.run(MS * 100);
    let before = group.status(0).view;
    let leader = group.status(0).leader.expect("a leader").0;
    let next = (leader + 1) % 5;
    group.crash(next);
    let peer = Peer::Replica(ReplicaId(next));
    for id in (0..5).filter(|id| *id != next) {
        group.event(id, Event::Link(peer, Link::Down));
    }
    group.run(MS * 50);
    assert_eq!(group.status(leader).view, before);
    group.event(leader, Event::Control(Control::HandOff));
    // Far less than a view's timeout.
    group.run(MS * 100);
    assert!(group.marked("view passed over: its leader is down") > 0);
    let batch = group.write(leader);
    group.run(MS * 100);
    assert!(group.answered(leader, batch));
    assert_eq!(group.status(leader).view, before + 2);
    assert_converged(&group, 2);
}

#[test]
fn leader_is_waited_for_as_long_as_an_asynchronous_mode_takes() {
    let mut group = timed_out(&[1, 2]);
    let calm = group.replica(0).timeout();
    pump(&mut group, |_, message| {
        matches!(message, Message::Timeout { .. })
    });
    assert!((0..3).all(|id| group.status(id).role == "asynchronous"));
    // Votes for blocks take so long as chance would have it.
    let took = calm * 2;
    group.clock.now = group.clock.now + took;
    group.run(MS * 400);
    let batch = group.write(0);
    group.run(MS * 400);
    assert!(group.answered(0, batch));
    assert!((0..3).all(|id| group.replica(id).timeout() >= took));
    // Long ago: a leader that dies is missed as soon as before.
    group.run(took * 100);
    group.write(0);
    group.run(MS * 400);
    assert!((0..3).all(|id| group.replica(id).timeout() == calm));
}

#[test]
fn replica_left_behind_in_asynchronous_mode_gets_certificate() {
    let mut group = timed_out(&[1, 2]);
    // No completion reaches replica 2; the others leave the view.
    pump(&mut group, |packet, message| {
        let to_2 = packet.to == ReplicaId(2);
        !(to_2 && matches!(message, Message::Complete { .. } | Message::Propose { .. }))
    });
    assert_eq!(group.status(2).role, "asynchronous");
    assert!(group.status(0).view > 1 && group.status(1).view > 1);
    // The leader of the new view, which could have told, is gone with all that was on its way.
    group.crash(1);
    group.network.clear();
    group.run(MS * 4000);
    assert!(group.marked("exit by another's certificate") > 0);
    let batch = group.write(2);
    group.run(MS * 2000);
    assert!(group.answered(2, batch), "two of three continue");
    group.start(1);
    group.run(MS * 4000);
    assert_converged(&group, 1);
}

/// No client asks the old leader for anything, so it does not time out, and two of the three that
/// are left wait for it in a later view. It has learnt of a block that was elected after its view.
#[test]
fn idle_leader_enters_a_later_view_that_others_timed_out_in() {
    let mut group = Group::new(5, Durability::Disk, small());
    group.run(MS * 100);
    assert_eq!(group.leaders(), [0]);
    group.write(3);
    group.run(MS * 100);
    group.isolate(0);
    group.crash(1);
    while group.status(3).view < 3 {
        group.run(MS * 10);
    }
    group.crash(2);
    group.run(MS * 2000);
    assert_eq!((group.status(0).view, group.leaders()), (1, alloc::vec![0]));
    assert_eq!((group.status(3).view, group.status(4).view), (3, 3));
    group.heal();
    // Its last word is lost: it hears the others before they hear it again.
    group.fire(3, Timer::Repeat);
    pump(&mut group, |packet, message| {
        packet.from != ReplicaId(0) || !matches!(message, Message::Propose { .. })
    });
    group.network.clear();
    group.run(MS * 3000);
    let batch = group.write(3);
    group.run(MS * 1000);
    assert!(group.answered(3, batch), "{:?}", group.status(0));
}

/// Its followers have timed out without it, and two of them die in the asynchronous mode: those that
/// are left need the old leader, which no client asks for anything.
#[test]
fn idle_leader_joins_the_asynchronous_mode_of_its_view() {
    let mut group = Group::new(5, Durability::Disk, small());
    group.run(MS * 100);
    assert_eq!(group.leaders(), [0]);
    group.isolate(0);
    for id in 1..5 {
        let control = Control::ReportFailure(ReplicaId(0));
        group.event(id, Event::Control(control));
    }
    pump(&mut group, |_, message| {
        !matches!(message, Message::VoteAsync { .. })
    });
    group.network.clear();
    assert!((1..5).all(|id| group.status(id).role == "asynchronous"));
    group.crash(3);
    group.crash(4);
    assert_eq!((group.status(0).view, group.leaders()), (1, alloc::vec![0]));
    group.heal();
    group.run(MS * 3000);
    let batch = group.write(1);
    group.run(MS * 1000);
    assert!(group.answered(1, batch), "{:?}", group.status(0));
}

#[test]
fn votes_for_superseded_level_1_have_no_effect() {
    let mut group = timed_out(&[1, 2]);
    let coin = group.replica(0).view.elected(1).0;
    let behind = if coin == 2 { 1 } else { 2 };
    let other = 3 - behind;
    // The others decide what the coin elects; this one hears neither of it nor of its own votes.
    let kept_from_it = |message: &Message| match message {
        Message::ProposeAsync { block, .. } => block.id.level == 2,
        Message::VoteAsync { .. }
        | Message::Complete { .. }
        | Message::Exit { .. }
        | Message::NewView { .. }
        | Message::Propose { .. } => true,
        _ => false,
    };
    let pass = |packet: &Packet, message: &Message| {
        packet.to != ReplicaId(behind) || !kept_from_it(message)
    };
    pump(&mut group, pass);
    assert!(group.status(0).view > 1 && group.status(other).view > 1);
    assert_eq!(group.status(behind).role, "asynchronous");
    assert_eq!(group.status(behind).view, 1);
    // It learns what is decided, and not how its view ended.
    group.clock.now = group.clock.now + MS * 20_000;
    group.fire(0, Timer::View);
    pump(&mut group, pass);
    assert_eq!(group.status(behind).view, group.status(0).view);
    assert_eq!(
        group.members[usize::from(behind)].executed,
        group.members[0].executed
    );
    let votes = |_: &Packet, message: &Message| matches!(message, Message::VoteAsync { .. });
    pump(&mut group, votes);
    group.run(MS * 6000);
    assert_converged(&group, 1);
}

#[test]
fn replica_that_timed_out_votes_again_in_the_next_view() {
    let mut group = timed_out(&[2]);
    let work = |group: &mut Group, turns: u64| {
        for _ in 0..turns {
            let batch = group.write(2);
            group.run(MS * 100);
            assert!(group.answered(2, batch) || group.status(0).view > 1);
        }
    };
    work(&mut group, 5);
    assert_eq!(group.status(2).role, "timed out");
    work(&mut group, 45);
    assert_ne!(group.status(2).role, "timed out");
    let view = group.status(0).view;
    assert_eq!(view, group.status(2).view);
    // It counts again: another may fail.
    let leader = group.replica(0).view.leader_of(view).0;
    group.crash((0..2).find(|id| *id != leader).expect("of two"));
    let batch = group.write(2);
    group.run(MS * 3000);
    assert!(group.answered(2, batch));
}

#[test]
fn views_end_ever_more_rarely_when_one_times_out_again() {
    let mut group = timed_out(&[2]);
    for _ in 0..600 {
        let view = group.status(2).view;
        let leader = group.replica(2).view.leader_of(view);
        if leader != ReplicaId(2) {
            let control = Control::ReportFailure(leader);
            group.event(2, Event::Control(control));
        }
        group.write(0);
        group.run(MS * 100);
    }
    let view = group.status(0).view;
    assert!((3..16).contains(&view), "view {view} after a minute");
}

#[test]
fn timed_out_replica_votes_no_more_and_serves_clients() {
    let mut group = timed_out(&[2]);
    group.settle();
    let batch = group.write(2);
    pump(&mut group, |packet, message| {
        let vote = matches!(message, Message::Vote { .. });
        assert!(!vote || packet.from != ReplicaId(2), "{message:?}");
        true
    });
    group.run(MS * 500);
    assert!(group.answered(2, batch));
    assert_eq!(
        (group.status(2).role, group.status(2).view),
        ("timed out", 1)
    );
}

#[test]
fn elected_block_contains_block_decided_before_timeout() {
    // Replica 1 votes for a block, which decides it, and times out afterwards; replica 2 never
    // saw the block.
    let mut group = timed_out(&[2]);
    let batch = group.write(0);
    pump(&mut group, |packet, _| packet.to != ReplicaId(2));
    assert!(group.answered(0, batch), "decided by replicas 0 and 1");
    group.event(1, Event::Control(Control::ReportFailure(ReplicaId(0))));
    group.crash(0);
    group.network.retain(|packet| packet.from != ReplicaId(0));
    group.run(MS * 5000);
    assert!(group.batches(1).contains(&batch) && group.batches(2).contains(&batch));
    group.start(0);
    group.run(MS * 5000);
    assert_converged(&group, 1);
}

#[test]
fn leader_without_a_quorum_of_new_views_proposes_nothing() {
    let mut group = timed_out(&[1, 2]);
    pump(&mut group, |_, message| {
        !matches!(message, Message::NewView { .. })
    });
    assert!(group.leaders().is_empty(), "no replica opened a view");
    let proposed = |packet: &Packet| match packet.message() {
        Message::Propose { blocks, .. } => !blocks.is_empty(),
        _ => false,
    };
    assert!(!group.network.iter().any(proposed));
    group.run(MS * 2000);
    assert_eq!(group.leaders().len(), 1, "they are said again");
}

#[test]
fn commands_of_blocks_that_lost_are_ordered_once_all_the_same() {
    for silent in 0..3u16 {
        let mut group = timed_out(&[1, 2]);
        // Each replica has a command of its own in its own blocks.
        let batches: Vec<_> = (0..3).map(|id| (id, group.write(id))).collect();
        pump(&mut group, |packet, message| {
            !(packet.from == ReplicaId(silent) && matches!(message, Message::Complete { .. }))
        });
        group.run(MS * 4000);
        let held = group.batches(0);
        for (id, batch) in batches {
            assert!(group.answered(id, batch), "{batch} at {id}");
            assert_eq!(
                held.iter().filter(|held| **held == batch).count(),
                1,
                "{batch}"
            );
        }
        assert_converged(&group, 1);
    }
}

#[test]
fn missing_block_is_fetched_before_votes_upon_it() {
    let mut group = timed_out(&[]);
    group.write(0);
    // The first block does not reach replica 2, the second does.
    pump(&mut group, |packet, message| {
        let proposal = matches!(message, Message::Propose { .. });
        !(packet.to == ReplicaId(2) && proposal)
    });
    group.network.clear();
    group.write(0);
    pump(&mut group, |packet, message| {
        let fetch = matches!(message, Message::Fetch { .. });
        let vote = matches!(message, Message::Vote { tip, .. } if *tip != BlockId::GENESIS);
        assert!(
            !(vote && packet.from == ReplicaId(2)),
            "not before it has the first"
        );
        !fetch
    });
    group.run(MS * 500);
    assert!(group.marked("missing block asked for") > 0);
    assert_converged(&group, 2);
}

#[test]
fn restart_in_the_asynchronous_mode_shows_the_same_blocks_again() {
    let mut group = timed_out(&[1, 2]);
    let own = |group: &Group, id: u16| -> Vec<BlockId> {
        let shown = |packet: &Packet| match packet.message() {
            Message::ProposeAsync { block, .. } if packet.from == ReplicaId(id) => Some(block.id),
            _ => None,
        };
        group.network.iter().filter_map(shown).collect()
    };
    group.write(1);
    pump(&mut group, |_, message| {
        !matches!(message, Message::ProposeAsync { .. })
    });
    let before = own(&group, 1);
    assert!(!before.is_empty());
    let blocks: Vec<Packet> = group.network.iter().cloned().collect();
    group.crash(1);
    group.network.clear();
    group.start(1);
    group.write(1);
    pump(&mut group, |_, message| {
        !matches!(message, Message::ProposeAsync { .. })
    });
    let content = |packets: &[Packet]| -> Vec<Message> {
        let from_1 = packets.iter().filter(|packet| packet.from == ReplicaId(1));
        let of = from_1.map(Packet::message);
        of.filter(|message| matches!(message, Message::ProposeAsync { .. }))
            .collect()
    };
    let after: Vec<Packet> = group.network.iter().cloned().collect();
    for message in content(&after) {
        assert!(
            content(&blocks).contains(&message),
            "another block under one name"
        );
    }
    group.run(MS * 4000);
    assert_converged(&group, 1);
}

const fn proposes(message: &Message) -> bool {
    matches!(message, Message::ProposeAsync { .. })
}

#[test]
fn one_asynchronous_mode_orders_what_clients_of_all_wait_for() {
    let mut group = timed_out(&[1, 2]);
    let coin = ReplicaId(group.replica(0).view.elected(1).0);
    let asked: Vec<_> = (0..3).map(|id| (id, group.write(id))).collect();
    // All complete before any leaves, and there is no leader again: the coin alone decides.
    pump(&mut group, |_, message| {
        !matches!(message, Message::Complete { .. })
    });
    pump(&mut group, |packet, message| {
        packet.from == coin && matches!(message, Message::Complete { .. })
    });
    pump(&mut group, |_, message| {
        !matches!(message, Message::Propose { .. })
    });
    for (id, batch) in asked {
        assert!(group.answered(id, batch), "{batch} at {id}");
    }
    assert!((0..3).all(|id| group.replica(id).timing.fallbacks() == 1));
}

#[test]
fn unproposed_requests_of_leader_stand_in_its_level_1() {
    let mut group = Group::new(
        3,
        Durability::Disk,
        Config {
            window: 1,
            ..small()
        },
    );
    group.run(MS * 100);
    let no_vote = |_: &Packet, message: &Message| !matches!(message, Message::Vote { .. });
    group.write(0);
    pump(&mut group, no_vote);
    let waiting = group.write(1);
    pump(&mut group, no_vote);
    group.network.clear();
    for id in [1, 2] {
        let control = Control::ReportFailure(ReplicaId(0));
        group.event(id, Event::Control(control));
    }
    pump(&mut group, |_, message| {
        matches!(message, Message::Timeout { .. })
    });
    let of_0 = |packet: &&Packet| packet.from == ReplicaId(0);
    let has = |message: Message| match message {
        Message::ProposeAsync { block, .. } => {
            let ids = block.batches.iter().filter_map(|batch| request_key(batch));
            ids.map(|(_, id)| id).any(|id| id == waiting)
        }
        _ => false,
    };
    let mut shown = group.network.iter().filter(of_0).map(Packet::message);
    assert!(shown.any(has));
}

#[test]
fn view_begins_with_what_the_clients_of_all_wait_for() {
    let mut group = timed_out(&[1, 2]);
    // The asynchronous mode is over but for its completions when clients ask.
    pump(&mut group, |_, message| {
        !matches!(message, Message::Complete { .. })
    });
    let asked: Vec<_> = (0..3).map(|id| group.write(id)).collect();
    pump(&mut group, |_, message| {
        !matches!(message, Message::Propose { .. })
    });
    // No replica has heard the leader yet.
    let proposed = group.network.iter().map(Packet::message);
    let batches = proposed.filter_map(|message| match message {
        Message::Propose { blocks, .. } => Some(blocks),
        _ => None,
    });
    let batches = batches.flatten().flat_map(|block| block.batches.clone());
    let ids: Vec<_> = batches
        .filter_map(|batch| request_key(&batch).map(|(_, id)| id))
        .collect();
    assert!(asked.iter().all(|id| ids.contains(id)), "{ids:?}");
}

/// How often replica 1's blocks are on their way to replica 2.
fn shown_again(group: &mut Group, repeats: u32) -> usize {
    group.network.clear();
    for _ in 0..repeats {
        group.fire(1, Timer::Repeat);
        group.idle(1);
    }
    let shown = |packet: &&Packet| packet.to == ReplicaId(2) && proposes(&packet.message());
    let of_1 = group
        .network
        .iter()
        .filter(|packet| packet.from == ReplicaId(1));
    of_1.filter(shown).count()
}

#[test]
fn blocks_without_loss_are_repeated_ever_more_rarely() {
    let mut group = timed_out(&[1, 2]);
    // Replica 2 takes part and sees no block; replica 1 is not told how the view ends.
    pump(&mut group, |packet, message| {
        packet.to != ReplicaId(2) && !matches!(message, Message::Complete { .. })
            || matches!(message, Message::Timeout { .. })
    });
    assert_eq!(group.status(1).role, "asynchronous");
    assert_eq!(shown_again(&mut group, 3), 0, "it is on its way");
    group.reset(1, 2);
    assert_eq!(shown_again(&mut group, 1), 1, "it may be lost");
    let often = shown_again(&mut group, 60);
    assert!((2..8).contains(&often), "{often}");
    group.run(MS * 6000);
    assert_converged(&group, 0);
}

/// Whether this shows the level of that maker.
fn shows(packet: &Packet, level: u8, maker: u16) -> bool {
    let of = packet.from == ReplicaId(maker);
    of && matches!(packet.message(), Message::ProposeAsync { block, .. } if block.id.level == level)
}

#[test]
fn level_2_quotes_sent_batches_and_is_complete_for_others() {
    let mut group = timed_out(&[1, 2]);
    let asked: Vec<_> = (0..3).map(|id| (id, group.write(id))).collect();
    // Replica 0 is never sent the level 1 of replica 2; replica 1 has it before its own goes out.
    for own in [false, true] {
        pump(&mut group, |packet, _| {
            let lost = packet.to == ReplicaId(0) && shows(packet, 1, 2);
            let level_2 = shows(packet, 2, 2) || shows(packet, 2, 1);
            !lost && !level_2 && !shows(packet, 1, 0) && (own || !shows(packet, 1, 1))
        });
    }
    let quoting = |packet: &Packet| match packet.message() {
        Message::ProposeAsync { block, quotes } => (block.batches.len(), quotes.len()),
        _ => (0, 0),
    };
    let to_0 = |packet: &&Packet| packet.to == ReplicaId(0) && shows(packet, 2, 1);
    let shown = group.network.iter().find(to_0).map(quoting);
    assert_eq!(shown, Some((0, 1)), "the own request stands below it");
    let level_1 = |packet: &Packet| packet.to == ReplicaId(0) && shows(packet, 1, 2);
    group.network.retain(|packet| !level_1(packet));
    pump(&mut group, |_, message| {
        !matches!(message, Message::Complete { .. } | Message::Fetch { .. })
    });
    let kept = group.replica(0).peers.quoting(1).pop();
    assert!(kept.is_some(), "it cannot be made whole");
    group.fire(0, Timer::Repeat);
    pump(&mut group, |_, message| {
        !matches!(message, Message::Complete { .. })
    });
    assert!(group.marked("quoted block missing") > 0);
    let held = kept.and_then(|id| group.replica(0).tree.get(id).cloned());
    assert_eq!(held.map(|block| block.batches.len()), Some(1), "whole");
    group.run(MS * 4000);
    for (id, batch) in asked {
        assert!(group.answered(id, batch), "{batch} at {id}");
    }
    assert_converged(&group, 3);
}

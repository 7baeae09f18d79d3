//! Cases that chance does not reach: each weaker rule breaks in one of them, and the rule as it is
//! does not.
//!
//! ```text
//!   view whose coin elects the one that is wanted ──► messages one by one, most of them held
//!     ──► two replicas execute different things, or nothing any more
//! ```

use super::group::{Group, MS, Packet, assert_converged, pump, small};
use crate::{
    racs::{Bug, Config, Dissemination, Message},
    sadl::{self, Way},
};
use alloc::vec::Vec;
use quintet_replica::{Control, Durability, Event, Options};
use std::panic;

fn with(bug: Option<Bug>, mut config: Config) -> Config {
    if let Some(bug) = bug {
        config.set("bug", bug.name()).expect("its own name");
    }
    // No view ends while messages are held back.
    config.view_timeout = MS * 20_000;
    config
}

/// Whether the case breaks with the bug; without one it must not.
fn detects(bug: Bug, case: fn(Option<Bug>)) {
    case(None);
    let quiet = panic::take_hook();
    panic::set_hook(std::boxed::Box::new(|_| ()));
    let breaks = panic::catch_unwind(|| case(Some(bug))).is_err();
    panic::set_hook(quiet);
    assert!(breaks, "{bug:?}");
}

fn gives_up(group: &mut Group, id: u16) {
    let leader = group.replica(id).view.leader_of(group.status(id).view);
    group.event(id, Event::Control(Control::ReportFailure(leader)));
}

/// A calm group in a view in which the leader and whom the coin will elect are as wanted: the
/// place of that one behind the leader.
fn in_a_view(members: u16, config: Config, elected: u16) -> (Group, u16) {
    let mut group = Group::new(usize::from(members), Durability::Disk, config);
    group.run(MS * 100);
    for _ in 0..60 {
        let view = group.status(0).view;
        let leader = group.replica(0).view.leader_of(view).0;
        let coin = group.replica(0).view.elected(view).0;
        let calm =
            group.leaders() == [leader] && (0..members).all(|id| group.status(id).view == view);
        if calm && (leader + elected) % members == coin {
            return (group, leader);
        }
        for id in 0..members {
            gives_up(&mut group, id);
        }
        group.run(MS * 3000);
    }
    panic!("no such view");
}

fn is_level_2(message: &Message) -> bool {
    matches!(message, Message::ProposeAsync { block, .. } if block.id.level == 2)
}

const fn fetching(message: &Message) -> bool {
    matches!(message, Message::Fetch { .. } | Message::Blocks { .. })
}

/// Between these two, in both directions.
fn between(packet: &Packet, a: u16, b: u16) -> bool {
    [(a, b), (b, a)].contains(&(packet.from.0, packet.to.0))
}

/// R1: who said that it timed out votes for one more block, which decides it; the other quorum of
/// timeouts knows nothing of that block.
fn a_vote_after_a_timeout(bug: Option<Bug>) {
    let (mut group, leader) = in_a_view(3, with(bug, small()), 1);
    let (elected, voter) = ((leader + 1) % 3, (leader + 2) % 3);
    gives_up(&mut group, voter);
    pump(&mut group, |_, message| {
        !matches!(message, Message::Timeout { .. })
    });
    group.write(leader);
    // The voter does not hear that its vote decided the block.
    pump(&mut group, |packet, message| match message {
        Message::Timeout { .. } => false,
        Message::Propose { blocks, .. } => between(packet, leader, voter) && !blocks.is_empty(),
        _ => between(packet, leader, voter),
    });
    gives_up(&mut group, elected);
    group
        .network
        .retain(|packet| !matches!(packet.message(), Message::Propose { .. }));
    pump(&mut group, |packet, _| between(packet, elected, voter));
    group.run(MS * 6000);
    assert_converged(&group, 1);
}

#[test]
fn vote_after_a_timeout_loses_a_decided_block() {
    detects(Bug::KeepMaxAndRank, a_vote_after_a_timeout);
}

/// R15: a leader has blocks that no other replica has seen; the coin's block is decided elsewhere,
/// and the leader leaves the view without having voted for it.
fn suffix_without_witness(bug: Option<Bug>) {
    let (mut group, leader) = in_a_view(3, with(bug, small()), 2);
    let (next, elected) = ((leader + 1) % 3, (leader + 2) % 3);
    for _ in 0..3 {
        group.write(leader);
        pump(&mut group, |_, _| false);
    }
    group.network.clear();
    group.write(elected);
    group.network.clear();
    for id in 0..3 {
        gives_up(&mut group, id);
    }
    // All are in the asynchronous mode; the leader receives none of the elected one's blocks, and
    // no replica receives completions.
    pump(&mut group, |packet, message| match message {
        Message::Timeout { .. } => true,
        Message::Complete { .. } => false,
        _ => packet.from.0 != elected && packet.to.0 != elected || between(packet, elected, next),
    });
    assert!((0..3).all(|id| group.status(id).role == "asynchronous"));
    // The elected one and the next leader: decided. The leader and the next leader: the view ends.
    pump(&mut group, |packet, message| {
        let complete = matches!(message, Message::Complete { .. });
        complete && packet.from.0 == next
    });
    assert!(!group.members[usize::from(elected)].state.is_empty());
    pump(&mut group, |packet, message| {
        let complete = matches!(message, Message::Complete { .. });
        between(packet, leader, next) && (complete || fetching(message))
    });
    group
        .network
        .retain(|packet| packet.from.0 != elected && packet.to.0 != elected);
    group.isolate(elected);
    group.write(next);
    group.run(MS * 1000);
    group.heal();
    group.run(MS * 60_000);
    assert_converged(&group, 1);
}

#[test]
fn elected_block_outranks_what_its_views_leader_alone_has() {
    detects(Bug::KeepMaxAndStop, suffix_without_witness);
}

/// R2: one leaves the view by completions without the elected block, and answers one that had
/// voted for it.
fn an_exit_for_a_voter(bug: Option<Bug>) {
    let (mut group, leader) = in_a_view(3, with(bug, small()), 1);
    let (elected, ignorant) = ((leader + 1) % 3, (leader + 2) % 3);
    let voter = leader;
    group.write(elected);
    group.network.clear();
    for id in 0..3 {
        gives_up(&mut group, id);
    }
    // The voter exchanges blocks with both, these two nothing with each other.
    pump(&mut group, |packet, message| {
        let apart = between(packet, elected, ignorant);
        matches!(message, Message::Timeout { .. })
            || !apart && !matches!(message, Message::Complete { .. })
    });
    // Both hear that the voter completed; the voter hears nothing.
    pump(&mut group, |packet, message| {
        matches!(message, Message::Complete { .. }) && packet.from.0 == voter
    });
    assert_eq!(group.status(voter).role, "asynchronous");
    assert!(
        !group.members[usize::from(elected)].state.is_empty(),
        "decided"
    );
    group.network.clear();
    group.isolate(elected);
    group.run(MS * 100_000);
    group.write(ignorant);
    group.run(MS * 100_000);
    group.heal();
    group.run(MS * 100_000);
    assert_converged(&group, 1);
}

#[test]
fn replica_helped_out_of_view_keeps_its_votes() {
    detects(Bug::ExitByHigh, an_exit_for_a_voter);
}

fn disseminating() -> Config {
    Config {
        dissemination: Dissemination::Fixed(Way::Sadl),
        ..small()
    }
}

/// Three replicas of which the creator's batch reaches the voter only; its disk is slow. The
/// leader orders what it hears to be completed. Gives the group with the order decided where it
/// may be, and nothing executed at the leader.
fn ordered_unseen(bug: Option<Bug>, durability: Durability, slow: bool) -> Group {
    let mut group = Group::new(3, durability, with(bug, disseminating()));
    group.run(MS * 100);
    assert_eq!(group.leaders(), [0]);
    group.members[2].slow_disk = slow;
    group.write(1);
    for _ in 0..40 {
        for id in 0..3 {
            if !group.members[usize::from(id)].slow_disk {
                group.sync(id);
            }
            group.idle(id);
        }
        for _ in 0..group.network.len() {
            let packet = group.network.pop_front().expect("counted");
            let (from, to) = (packet.from.0, packet.to.0);
            let passes = match packet.message() {
                Message::Sadl(sadl::Message::New { batches, .. }) => to == 2 || batches.is_empty(),
                Message::Sadl(sadl::Message::Found { .. } | sadl::Message::Fetch { .. }) => false,
                // The creator votes for the order, and does not hear that it is decided.
                Message::Propose { blocks, .. } => from == 0 && to == 1 && !blocks.is_empty(),
                _ => true,
            };
            if passes {
                group.deliver(packet);
            }
        }
    }
    assert!(group.batches(0).is_empty() && group.batches(1).is_empty());
    group
}

/// S6: a vote for a batch that is not on disk, and the creator dies.
fn a_batch_voted_for_too_early(bug: Option<Bug>) {
    let mut group = ordered_unseen(bug, Durability::Disk, true);
    group.crash(2);
    group.members[2].slow_disk = false;
    group.network.clear();
    group.start(2);
    group.crash(1);
    group.run(MS * 60_000);
    let batch = group.write(0);
    group.run(MS * 60_000);
    assert!(group.answered(0, batch), "two of three continue");
}

#[test]
fn batch_is_on_disk_before_it_is_voted_for() {
    detects(Bug::BatchVoteNotDurable, a_batch_voted_for_too_early);
}

/// A voter forgets the batch; the others still have to give it what they hold.
fn batch_lost_by_its_voter(bug: Option<Bug>) {
    let mut group = ordered_unseen(bug, Durability::Memory, false);
    group.crash(2);
    group.network.clear();
    group.start(2);
    let give = |message: &Message| matches!(message, Message::Sadl(sadl::Message::Found { .. }));
    for _ in 0..400 {
        for id in 0..3 {
            group.sync(id);
            group.idle(id);
        }
        if group.network.is_empty() {
            group.clock.now = group.clock.now + MS * 60;
            group.fire(2, crate::racs::Timer::Repeat);
        }
        for _ in 0..group.network.len() {
            let packet = group.network.pop_front().expect("counted");
            let shown = matches!(packet.message(), Message::Sadl(sadl::Message::New { .. }));
            if !give(&packet.message()) && !shown {
                group.deliver(packet);
            }
        }
        if group.status(2).voting {
            break;
        }
    }
    assert!(!group.status(2).voting, "it lacks what it voted for");
    group.run(MS * 6000);
    assert!(group.status(2).voting);
    group.crash(1);
    group.run(MS * 60_000);
    let batch = group.write(0);
    group.run(MS * 60_000);
    assert!(group.answered(0, batch), "two of three continue");
}

#[test]
fn replica_without_state_counts_once_it_has_voted_batches() {
    detects(Bug::BatchesNotRecovered, batch_lost_by_its_voter);
}

/// R4: a block voted for in one view's asynchronous mode is taken for one of the next view's, whose
/// coin elects its maker; it stands beside what the first view elected.
fn a_vote_of_the_view_before(bug: Option<Bug>) {
    let config = with(bug, small());
    let mut group = Group::new(5, Durability::Disk, config);
    group.run(MS * 100);
    // The coin elects the next view's leader, and there the one that leads now.
    let mut found = None;
    for _ in 0..400 {
        let view = group.status(0).view;
        let leader = group.replica(0).view.leader_of(view).0;
        let coins = [view, view + 1].map(|view| group.replica(0).view.elected(view).0);
        let next = (leader + 1) % 5;
        let calm = group.leaders() == [leader] && (0..5).all(|id| group.status(id).view == view);
        if calm && coins == [next, leader] {
            found = Some((leader, next));
            break;
        }
        for id in 0..5 {
            gives_up(&mut group, id);
        }
        group.run(MS * 1000);
    }
    let (leader, elected) = found.expect("such a view");
    let others: Vec<u16> = (0..5)
        .filter(|id| ![leader, elected].contains(id))
        .collect();
    // The leader has blocks that no other replica saw: its own block of level 2 is the highest of
    // all.
    for _ in 0..3 {
        group.write(leader);
        pump(&mut group, |_, _| false);
    }
    group.network.clear();
    group.write(elected);
    group.network.clear();
    for id in 0..5 {
        gives_up(&mut group, id);
    }
    // The elected one has the votes of two others, the leader those of all three.
    let ignorant = others[2];
    pump(&mut group, |packet, message| match message {
        Message::Timeout { .. } => true,
        Message::Complete { .. } => false,
        // Or it would put its own upon another's block of level 1.
        _ if packet.to.0 == leader && is_level_2(message) => false,
        _ => {
            let own = packet.from.0 == elected || packet.to.0 == elected;
            let outside = |id: u16| id == leader || id == ignorant;
            !own || !outside(packet.from.0) && !outside(packet.to.0)
        }
    });
    // The elected one decides and falls silent; the three leave without its completion.
    pump(&mut group, |packet, message| {
        let voter = packet.from.0 == others[0] || packet.from.0 == others[1];
        matches!(message, Message::Complete { .. }) && voter && packet.to.0 == elected
    });
    assert!(
        !group.members[usize::from(elected)].state.is_empty(),
        "decided"
    );
    group
        .network
        .retain(|packet| packet.from.0 != elected && packet.to.0 != elected);
    group.isolate(elected);
    pump(&mut group, |packet, message| {
        matches!(message, Message::Complete { .. }) && packet.to.0 != leader
    });
    // The next view has no leader, and the three leave it without the leader of this one.
    group.network.clear();
    group.isolate(leader);
    group.run(MS * 100_000);
    group.write(others[0]);
    group.run(MS * 60_000);
    group.heal();
    group.run(MS * 100_000);
    assert_converged(&group, 1);
}

#[test]
fn vote_of_one_view_counts_in_no_other() {
    detects(Bug::FallKept, a_vote_of_the_view_before);
}

//! Losses are asked for, and dropped batches are told, without waiting for a timer.

use super::logs::{Host, pair, stamp};
use crate::nezha::{Config, Message, Part, Timer, Vote};
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{BatchId, Control, Event, Link, Peer, ReplicaId, Slot, parts::Taken};

fn lacked(host: &Host) -> Vec<(u64, u64)> {
    let of = |message: &Message| match message {
        Message::Between {
            part: Part::Lacks { first, upto },
            ..
        } => Some((first.0, upto.0)),
        _ => None,
    };
    host.said.iter().filter_map(of).collect()
}

#[test]
fn follower_asks_at_once_for_what_was_lost_before_a_slot() {
    let (mut leader, mut follower) = pair(&Config::default());
    for number in 1..=3 {
        leader.request(number, number * 10, b"wa");
        follower.request(number, number * 10, b"wa");
        leader.at(number * 10 + 5);
        follower.at(number * 10 + 5);
    }
    let part = |first, stamps| Part::LogModification {
        first: Slot(first),
        stamps,
        commit: Slot(0),
        round: 1,
    };
    follower.hear(0, 0, &[1, 1, 0], part(3, vec![stamp(30, 3)]));
    follower.idle();
    assert_eq!(lacked(&follower), [(1, 2)]);
    follower.hear(0, 0, &[1, 1, 0], part(3, vec![stamp(30, 3)]));
    assert_eq!(lacked(&follower).len(), 1, "once");
    leader.said.clear();
    let (first, upto) = (Slot(1), Slot(2));
    leader.hear(1, 0, &[1, 1, 0], Part::Lacks { first, upto });
    assert_eq!(leader.placed(), [stamp(10, 1), stamp(20, 2)]);
    let placed = leader.placed();
    follower.follows(placed);
    let agreed = follower.said.iter().any(|message| match message {
        Message::Between {
            part: Part::LogStatus { sync, .. },
            ..
        } => *sync == Slot(3),
        _ => false,
    });
    assert!(agreed, "{:?}", follower.said);
}

#[test]
fn gap_is_asked_for_after_a_barred_batch_was_placed_over() {
    let (_, mut follower) = pair(&Config::default());
    for number in 1..=3 {
        follower.request(number, number * 10, b"wa");
        follower.at(number * 10 + 5);
    }
    // The first of them leaves the log for the second, and the third follows at once.
    follower.follows(vec![stamp(20, 2), stamp(30, 3)]);
    let part = Part::LogModification {
        first: Slot(4),
        stamps: vec![stamp(50, 5)],
        commit: Slot(0),
        round: 1,
    };
    follower.hear(0, 0, &[1, 1, 0], part);
    follower.idle();
    assert_eq!(lacked(&follower), [(3, 3)]);
}

#[test]
fn request_is_refused_at_once_while_the_view_changes() {
    let mut next = Host::new(1, 3, &Config::default());
    next.hear(2, 1, &[1, 1, 1], Part::ViewChange(Slot(0)));
    next.request(1, 10, b"wa");
    let refused = next.replied.iter().any(|message| match message {
        Message::Taken { batch, taken, .. } => *batch == BatchId(1) && *taken == Taken::Refused,
        _ => false,
    });
    assert!(refused, "{:?}", next.replied);
}

#[test]
fn new_leader_tells_senders_of_batches_that_it_dropped() {
    let mut new = Host::new(1, 3, &Config::default());
    new.request(1, 10, b"wa");
    new.at(12);
    new.request(2, 9_000_000, b"wb");
    new.hear(2, 1, &[1, 1, 1], Part::ViewChange(Slot(0)));
    let vote = Vote {
        view_normal: 0,
        commit: Slot(0),
        kept: Slot(1),
        first: Slot(1),
        synced: Vec::new(),
        unsynced: Vec::new(),
    };
    new.hear(2, 1, &[1, 1, 1], Part::Vote(vote));
    assert!(new.marks.contains(&"view changed"));
    let told: Vec<BatchId> = (new.replied.iter())
        .filter_map(|message| match message {
            Message::Taken {
                batch,
                taken: Taken::Refused,
                view: 1,
            } => Some(*batch),
            _ => None,
        })
        .collect();
    assert_eq!(told, [BatchId(1), BatchId(2)]);
}

#[test]
fn leadership_goes_past_a_silent_member_and_one_that_lags() {
    let status = |sync| Part::LogStatus {
        sync: Slot(sync),
        round: 1,
    };
    let next_view = |heard: &[(u16, u64)]| {
        let mut leader = Host::new(0, 5, &Config::default());
        for number in 1..=1100 {
            leader.request(number, number, b"wa");
        }
        leader.at(2000);
        leader.idle();
        for (id, sync) in heard {
            leader.hear(*id, 0, &[1; 5], status(*sync));
        }
        leader.said.clear();
        leader.event(Event::Control(Control::HandOff));
        let views = leader.said.iter().filter_map(|message| match message {
            Message::Between {
                view,
                part: Part::ViewChange(_),
                ..
            } => Some(*view),
            _ => None,
        });
        views.max()
    };
    assert_eq!(next_view(&[(1, 1100), (2, 1100)]), Some(1));
    assert_eq!(next_view(&[(2, 1100), (3, 1100)]), Some(2));
    assert_eq!(next_view(&[(1, 10), (3, 1100)]), Some(3));
    assert_eq!(next_view(&[(2, 10)]), Some(2), "no voter has more");
    assert_eq!(next_view(&[]), Some(1));
}

#[test]
fn vote_lists_committed_slots_only_when_the_leader_lacks_them() {
    let mut voter = Host::new(2, 3, &Config::default());
    for number in 1..=4 {
        voter.request(number, number * 10, b"wa");
    }
    voter.at(45);
    let placed = (1..=4).map(|number| stamp(number * 10, number)).collect();
    let part = Part::LogModification {
        first: Slot(1),
        stamps: placed,
        commit: Slot(3),
        round: 1,
    };
    voter.hear(0, 0, &[1, 0, 1], part);
    voter.idle();
    let listed = |voter: &mut Host| {
        voter.idle();
        let votes = core::mem::take(&mut voter.said).into_iter();
        let slots = votes.filter_map(|message| match message {
            Message::Between {
                part: Part::Vote(vote),
                ..
            } => Some((vote.first, vote.synced.len())),
            _ => None,
        });
        slots.last()
    };
    // Another one than the next leader says that the view changes.
    voter.hear(0, 1, &[1, 1, 1], Part::ViewChange(Slot(3)));
    assert_eq!(listed(&mut voter), Some((Slot(4), 1)));
    voter.hear(1, 1, &[1, 1, 1], Part::ViewChange(Slot(1)));
    assert_eq!(listed(&mut voter), Some((Slot(2), 3)));
}

#[test]
fn pages_of_the_log_and_batches_wait_for_room() {
    let (mut leader, _) = pair(&Config::default());
    leader.request(1, 10, b"wa");
    leader.at(20);
    let asks = |leader: &mut Host| {
        leader.said.clear();
        let name = stamp(10, 1).name;
        for part in [Part::GetLog(Slot(1)), Part::Fetch(vec![name])] {
            leader.hear(1, 0, &[1, 1, 0], part);
        }
        leader.said.len()
    };
    // As if what answered an earlier question were still queued.
    let room = core::mem::replace(&mut leader.clock.room, 4);
    assert_eq!(asks(&mut leader), 0);
    leader.clock.room = room;
    assert_eq!(asks(&mut leader), 2);
}

#[test]
fn leader_is_not_suspected_while_something_long_comes_from_it() {
    let config = Config::default();
    for comes in [true, false] {
        let (_, mut follower) = pair(&config);
        follower.said.clear();
        for _ in 0..250 {
            follower.clock.now = follower.clock.now + Duration::from_millis(20);
            if comes {
                let leader = Peer::Replica(ReplicaId(0));
                follower.event(Event::Link(leader, Link::Arriving));
            }
            follower.wakes(Timer::Tick);
        }
        let suspects = |message: &Message| {
            let Message::Between { part, .. } = message else {
                return false;
            };
            matches!(part, Part::Suspect)
        };
        assert_eq!(follower.said.iter().any(suspects), !comes);
    }
}

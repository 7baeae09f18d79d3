//! A replica whose peers or own clock are out of reach, and the replies when the leader checks
//! quorums.

use super::logs::{BASE, Host, batch, pair, stamp};
use crate::nezha::{Config, Message, Part, Timer};
use alloc::vec::Vec;
use quintet_replica::{GroupId, Level, Options, Replica as _, ReplicaId, Slot, Time};

fn asked(host: &mut Host, turns: usize) -> Vec<u16> {
    host.asked_of.clear();
    for _ in 0..turns {
        host.wakes(Timer::Fetch);
    }
    host.asked_of.iter().map(|id| id.0).collect()
}

#[test]
fn missing_batch_is_requested_of_leader_then_of_others() {
    let (_, mut follower) = pair(&Config::default());
    follower.follows([stamp(10, 1), stamp(20, 2)].to_vec());
    assert_eq!(
        asked(&mut follower, 6),
        [0, 2, 0, 2],
        "its own turn belongs to no other"
    );
    // A replica that had one is not left before it has been asked for the next.
    let bodies = Part::Bodies([batch(1, b"wa", Level::Ordered)].to_vec());
    follower.hear(2, 0, &[1, 1, 0], bodies);
    assert_eq!(asked(&mut follower, 1), [0], "the leader has all of them");
    let bodies = Part::Bodies([batch(2, b"wa", Level::Ordered)].to_vec());
    follower.hear(2, 0, &[1, 1, 0], bodies);
    assert_eq!(follower.driver.status(GroupId(0)).accepted, Slot(2));
    assert!(asked(&mut follower, 2).is_empty(), "nothing is missing");
}

#[test]
fn leader_whose_clock_was_set_back_continues_where_its_log_is() {
    let (mut leader, _) = pair(&Config::default());
    leader.request(1, 10, b"wa");
    leader.at(10);
    assert_eq!(leader.executed.len(), 1);
    leader.clock.now = Time(BASE / 2);
    // One that conflicts, one that does not; senders whose clocks are right.
    leader.request(2, 20, b"wa");
    leader.request(3, 30, b"wb");
    let slots: Vec<u64> = leader.executed.iter().map(|(slot, _)| slot.0).collect();
    assert_eq!(slots, [1, 2, 3]);
}

fn checked_by_the_leader() -> Config {
    let mut config = Config::default();
    config.set("quorum_checks", "leader").expect("an option");
    config
}

#[test]
fn quorum_checking_leader_answers_once_a_quorum_holds_batch() {
    let (mut leader, mut follower) = pair(&checked_by_the_leader());
    for host in [&mut leader, &mut follower] {
        host.request(1, 10, b"wa");
        host.at(10);
    }
    assert!(leader.headers.is_empty() && leader.replayed.is_empty());
    let said = follower.said.iter().find_map(|message| match message {
        Message::Between {
            part: Part::Appended(name, hash),
            ..
        } => Some((*name, *hash)),
        _ => None,
    });
    let (name, hash) = said.expect("it tells the leader");
    assert!(follower.replied.is_empty(), "and to no other");
    let incarnations = [1, 1, 0];
    leader.hear(1, 0, &incarnations, Part::Appended(name, hash));
    leader.hear(1, 0, &incarnations, Part::Appended(name, hash));
    assert!(leader.replayed.is_empty(), "of three all must hold it");
    leader.hear(2, 0, &incarnations, Part::Appended(name, hash));
    assert_eq!(leader.replayed.len(), 1, "a fast quorum");
    let status = |sync| Part::LogStatus {
        sync: Slot(sync),
        round: 1,
    };
    leader.hear(1, 0, &incarnations, status(1));
    assert_eq!(leader.replayed.len(), 1, "committed, and answered before");
    leader.request(2, 20, b"wa");
    leader.at(20);
    assert_eq!(leader.replayed.len(), 1);
    leader.hear(1, 0, &incarnations, status(2));
    assert_eq!(leader.replayed.len(), 2, "a slow quorum");
}

#[test]
fn leader_does_not_take_other_log_for_its_own() {
    let (mut leader, mut follower) = pair(&checked_by_the_leader());
    leader.request(1, 5, b"wa");
    for host in [&mut leader, &mut follower] {
        host.request(2, 10, b"wa");
        host.at(10);
    }
    let said = follower.said.iter().find_map(|message| match message {
        Message::Between {
            part: part @ Part::Appended(..),
            ..
        } => Some(part.clone()),
        _ => None,
    });
    for from in [1, 2] {
        leader.hear(
            from,
            0,
            &[1, 1, 0],
            said.clone().expect("it tells the leader"),
        );
    }
    assert!(leader.replayed.is_empty());
}

#[test]
fn without_multicast_leader_sends_batches_ahead_of_their_places() {
    let mut config = Config::default();
    config.set("multicast", "false").expect("an option");
    let (mut leader, mut follower) = pair(&config);
    follower.request(1, 10, b"wa");
    assert!(
        matches!(follower.replied[..], [Message::Taken { .. }]),
        "it leaves it to the leader"
    );
    leader.said.clear();
    leader.request(1, u64::MAX / 4, b"wa");
    leader.idle();
    assert_eq!(leader.executed.len(), 1, "at once, whatever its deadline");
    for message in leader.said.clone() {
        if let Message::Between { part, .. } = message {
            follower.hear(0, 0, &[1, 1, 0], part);
        }
    }
    follower.idle();
    assert_eq!(follower.driver.status(GroupId(0)).accepted, Slot(1));
    assert_eq!(asked(&mut follower, 1), Vec::<u16>::new(), "it was here");
    assert_eq!(
        follower.driver.status(GroupId(0)).leader,
        Some(ReplicaId(0))
    );
}

/// How often the leader has told what stands in its log.
fn told(host: &Host) -> usize {
    let tells = |message: &&Message| match message {
        Message::Between {
            part: Part::LogModification { stamps, .. },
            ..
        } => !stamps.is_empty(),
        _ => false,
    };
    host.said.iter().filter(tells).count()
}

#[test]
fn leader_sends_its_log_few_times_per_round_trip() {
    let (mut leader, _) = pair(&Config::default());
    let micros = |micros: u64| micros * 1_000;
    leader.request(1, 10, b"wa");
    leader.at(10);
    assert_eq!(told(&leader), 1, "at once, before any round trip is known");
    // A majority has it after 3.2 ms: an eighth of that counts for a quarter.
    leader.clock.now = Time(BASE + micros(3_200));
    let status = Part::LogStatus {
        sync: Slot(1),
        round: 1,
    };
    leader.hear(1, 0, &[1, 1, 0], status);
    leader.request(2, micros(3_200) + 10, b"wa");
    leader.at(micros(3_200) + 10);
    assert_eq!(told(&leader), 2, "the last time was long ago");
    leader.request(3, micros(3_200) + 20, b"wa");
    leader.at(micros(3_200) + 20);
    assert_eq!(leader.executed.len(), 3, "executed and answered at once");
    leader.request(4, micros(3_250), b"wb");
    leader.at(micros(3_250));
    assert_eq!(told(&leader), 2, "it waits for company");
    leader.at(micros(3_301));
    assert_eq!(told(&leader), 3, "of both");
    assert_eq!(leader.placed().len(), 1);
}

#[test]
fn follower_reports_appends_of_one_turn_in_one_message() {
    let (_, mut follower) = pair(&Config::default());
    for number in 1..=3 {
        follower.request(number, 10 * number, b"wa");
    }
    follower.at(40);
    let told: Vec<usize> = (follower.replied.iter())
        .map(|message| match message {
            Message::FastReplies { appended, .. } => appended.len(),
            _ => 0,
        })
        .collect();
    assert_eq!(told, [3]);
}

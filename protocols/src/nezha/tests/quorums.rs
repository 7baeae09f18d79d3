//! When a frontend calls a batch committed.

use super::epoch;
use crate::{
    group::Clock,
    nezha::{Config, LogHash, Message, Nezha, ReplyHeader},
};
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    BatchBuilder, BatchId, Bytes, Client, ClientDriver, CommandId, Deadline, Durability, Effect,
    FrontendId, FrontendSetup, Level, Outcome, ReplicaId, RequestKind, SessionId, Slot, Submission,
    Time, Wire, parts::Taken,
};

struct Case {
    driver: ClientDriver<Nezha>,
    clock: Clock,
    effects: Vec<Effect>,
}

const HASH: LogHash = LogHash {
    incarnations: 5,
    base: Slot(0),
    hash: 77,
    known: true,
};

impl Case {
    /// A frontend of that many replicas that has sent batch 1.
    fn new(members: usize) -> Self {
        Self::with(members, &Config::default())
    }

    fn with(members: usize, config: &Config) -> Self {
        let id = FrontendId(9);
        let setup = FrontendSetup {
            id,
            embedded: None,
            epoch: epoch(members),
            durability: Durability::Memory,
            options: config.clone(),
        };
        let clock = Clock {
            now: Time(1_000_000),
            room: 1 << 20,
        };
        let mut case = Self {
            driver: ClientDriver::new(setup, 1),
            clock,
            effects: Vec::new(),
        };
        let mut builder = BatchBuilder::new();
        let session = SessionId {
            owner: 1,
            number: 1,
        };
        let request = CommandId {
            session,
            sequence: 1,
        };
        builder.push(request, RequestKind::Command, 0, b"x");
        let submission = Submission {
            id: BatchId(1),
            level: Level::Ordered,
            batch: builder.finish(id, BatchId(1), Level::Ordered),
            deadline: Time(60_000_000_000),
        };
        case.driver
            .submit(submission, &case.clock, &mut case.effects);
        case
    }

    fn results(&mut self, view: u64, slot: u64, hash: LogHash) {
        let header = ReplyHeader {
            view,
            slot: Slot(slot),
            hash,
            bound: 0,
        };
        let leader = ReplicaId(view as u16);
        let reply = (header.encode_to_bytes(), Bytes::from_static(b"done"));
        self.driver
            .on_reply(leader, BatchId(1), reply, &self.clock, &mut self.effects)
            .expect("well-formed");
    }

    fn say(&mut self, from: u16, message: &Message) {
        let bytes = message.encode_to_bytes();
        self.driver
            .on_message(ReplicaId(from), bytes, &self.clock, &mut self.effects)
            .expect("well-formed");
    }

    fn fast(&mut self, from: u16, view: u64, hash: LogHash) {
        let message = Message::FastReplies {
            view,
            bound: 0,
            appended: vec![(BatchId(1), hash)],
        };
        self.say(from, &message);
    }

    fn slow(&mut self, from: u16, view: u64, incarnations: u64, sync: u64) {
        let message = Message::SlowReply {
            view,
            incarnations,
            sync: Slot(sync),
            bound: 0,
        };
        self.say(from, &message);
    }

    /// When it will send the batch again, or look at it again.
    fn wakes_at(&self) -> Option<Time> {
        let set = self.effects.iter().rev().find_map(|effect| match effect {
            Effect::SetTimer { at, .. } => Some(*at),
            _ => None,
        });
        match set? {
            Deadline::At(at) => Some(at),
            Deadline::Clock(_) => None,
        }
    }

    fn committed(&self) -> bool {
        self.effects.iter().any(|effect| {
            matches!(
                effect,
                Effect::Done {
                    outcome: Outcome::Results(_),
                    ..
                }
            )
        })
    }
}

#[test]
fn fast_quorum_is_the_leader_and_enough_followers_with_its_hash() {
    let mut case = Case::new(5);
    for follower in 1..=4 {
        case.fast(follower, 0, HASH);
    }
    assert!(!case.committed(), "only the leader has results");
    case.results(0, 1, HASH);
    assert!(case.committed());

    let mut case = Case::new(5);
    case.results(0, 1, HASH);
    case.fast(1, 0, HASH);
    case.fast(2, 0, HASH);
    case.fast(2, 0, HASH);
    assert!(!case.committed(), "a majority is not enough, nor one twice");
    case.fast(3, 0, HASH);
    assert!(case.committed(), "f + ⌈f/2⌉ + 1 = 4");
}

#[test]
fn other_log_view_or_incarnation_does_not_count() {
    let other = |change: fn(&mut LogHash)| {
        let mut hash = HASH;
        change(&mut hash);
        hash
    };
    let hashes = [
        other(|hash| hash.hash += 1),
        other(|hash| hash.base = Slot(4096)),
        other(|hash| hash.incarnations += 1),
        other(|hash| hash.known = false),
    ];
    for hash in hashes {
        let mut case = Case::new(3);
        case.results(0, 1, HASH);
        case.fast(1, 0, HASH);
        case.fast(2, 0, hash);
        assert!(!case.committed(), "{hash:?}");
        case.fast(2, 1, HASH);
        assert!(!case.committed(), "of another view");
        case.fast(2, 0, HASH);
        assert!(case.committed());
    }
}

#[test]
fn slow_quorum_is_majority_synced_in_same_view() {
    let mut case = Case::new(5);
    case.results(1, 7, HASH);
    case.slow(2, 1, 5, 6);
    case.slow(3, 0, 5, 9);
    case.slow(4, 1, 6, 9);
    assert!(
        !case.committed(),
        "too short, another view, another incarnation"
    );
    case.slow(2, 1, 5, 7);
    assert!(!case.committed(), "two of five");
    case.slow(4, 1, 5, 8);
    assert!(case.committed());
}

#[test]
fn slow_reply_stands_in_for_fast_one_and_never_other_way_round() {
    let mut case = Case::new(5);
    case.results(0, 3, HASH);
    case.fast(1, 0, HASH);
    case.fast(2, 0, HASH);
    case.slow(3, 0, 5, 3);
    assert!(case.committed(), "the leader, two fast replies, one slow");

    let mut case = Case::new(5);
    case.results(0, 3, HASH);
    case.slow(1, 0, 5, 3);
    case.fast(2, 0, HASH);
    assert!(!case.committed(), "a fast reply is no slow one");
}

#[test]
fn results_of_deposed_leader_are_dropped() {
    let mut case = Case::new(3);
    case.results(0, 1, HASH);
    case.fast(1, 0, HASH);
    case.results(1, 4, HASH);
    case.fast(2, 0, HASH);
    assert!(!case.committed(), "two views, a part of a quorum in each");
    case.results(0, 1, HASH);
    case.slow(2, 1, 5, 4);
    assert!(case.committed(), "by the later one");
}

/// Of five, the leader and two followers hold the same log.
pub fn three_of_five_commit(config: &Config) -> bool {
    let mut case = Case::with(5, config);
    case.results(0, 1, HASH);
    case.fast(1, 0, HASH);
    case.fast(2, 0, HASH);
    case.committed()
}

/// Of three, a follower has lost its state since it said what it held.
pub fn another_incarnation_counts(config: &Config) -> bool {
    let mut case = Case::with(3, config);
    case.results(
        0,
        1,
        LogHash {
            incarnations: 6,
            ..HASH
        },
    );
    case.fast(1, 0, HASH);
    case.fast(2, 0, HASH);
    case.committed()
}

/// Of five, one has synced and another has only appended.
pub fn a_fast_reply_is_a_slow_one(config: &Config) -> bool {
    let mut case = Case::with(5, config);
    case.results(0, 3, HASH);
    case.slow(1, 0, 5, 3);
    case.fast(2, 0, HASH);
    case.committed()
}

#[test]
fn less_than_a_quorum_never_commits() {
    let config = Config::default();
    assert!(!three_of_five_commit(&config));
    assert!(!another_incarnation_counts(&config));
    assert!(!a_fast_reply_is_a_slow_one(&config));
}

#[test]
fn batch_is_sent_again_soon_when_a_follower_has_restarted() {
    for (fast, slow) in [(true, false), (false, true)] {
        let mut case = Case::new(3);
        let retry = case.clock.now + Config::default().retry;
        assert_eq!(case.wakes_at(), Some(retry));
        // The leader answered before it heard of the restart; only another answer can fit.
        case.results(0, 1, HASH);
        if fast {
            case.fast(
                1,
                0,
                LogHash {
                    incarnations: 6,
                    ..HASH
                },
            );
        }
        if slow {
            case.slow(1, 0, 6, 1);
        }
        let soon = case.clock.now + Duration::from_millis(10);
        assert_eq!(case.wakes_at(), Some(soon));
    }
}

#[test]
fn batch_is_sent_again_soon_when_a_later_leader_refuses_it() {
    let mut case = Case::new(3);
    case.results(0, 1, HASH);
    let refused = |view| Message::Taken {
        batch: BatchId(1),
        taken: Taken::Refused,
        view,
    };
    case.say(0, &refused(0));
    let retry = case.clock.now + Config::default().retry;
    assert_eq!(case.wakes_at(), Some(retry), "it has answered itself");
    case.say(1, &refused(1));
    let soon = case.clock.now + Duration::from_millis(10);
    assert_eq!(case.wakes_at(), Some(soon));
}

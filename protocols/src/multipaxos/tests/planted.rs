//! Old bugs come back, and the random faults find them. Those that show only in what clients see
//! (stale reads) or after rarer accidents are the simulator's to find, with the option `plant`.

use super::group::{Group, MS, Packet};
use crate::{
    life::convicting,
    multipaxos::{Config, Message, MultiPaxos, Plant, replica::Timer},
};
use alloc::vec::Vec;
use quintet_replica::{
    Durability, Event, Link, Options, Peer, ReplicaId,
    parts::{Ballot, ElectionMessage as Election},
};

const FOUND_HERE: [Plant; 6] = [
    Plant::MinorityCommits,
    Plant::LowestBallotWins,
    Plant::HeldSurvivesBallot,
    Plant::BallotReused,
    Plant::RecoverySkipped,
    Plant::VoteNotDurable,
];

#[test]
fn planted_bugs_that_break_agreement_are_found() {
    let durability = |plant| match plant {
        Plant::RecoverySkipped => Durability::Memory,
        _ => Durability::Disk,
    };
    let found = convicting::<MultiPaxos, _>(&FOUND_HERE, 0..3000, durability, |plant, config| {
        config.set("plant", plant.name()).expect("its own name");
    });
    std::println!("{found:?}");
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}

/// Who leads after the only answer to a candidate of three was a refusal.
fn leaders_after_a_refusal(plant: Option<Plant>) -> Vec<u16> {
    let mut config = Config {
        pre_vote: false,
        ..Config::default()
    };
    if let Some(plant) = plant {
        config.set("plant", plant.name()).expect("its own name");
    }
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 20);
    group.isolate(0);
    group.isolate(2);
    group.event(1, Event::Link(Peer::Replica(ReplicaId(0)), Link::Down));
    group.fire(1, Timer::Election);
    group.settle();
    let ballot = group.replica(1).ballots.promised();
    assert_eq!(ballot.owner, ReplicaId(1), "it stands");
    let promised = Ballot {
        round: ballot.round + 1,
        owner: ReplicaId(2),
    };
    let refusal = Message::Election(Election::Reject { ballot, promised });
    group.deliver(Packet::new(2, 1, &refusal));
    group.settle();
    group.leaders()
}

#[test]
fn refusal_is_no_promise() {
    assert_eq!(leaders_after_a_refusal(None), [0], "who does not know yet");
    let with = leaders_after_a_refusal(Some(Plant::RefusalCounts));
    assert_eq!(with, [0, 1], "the injected bug makes a leader of one vote");
}

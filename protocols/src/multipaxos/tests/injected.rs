//! Old bugs come back, and the random faults find them. Those that show only in what clients see
//! (stale reads) or after rarer accidents are the simulator's to find, with the option `bug`.

use super::group::{Group, MS, Packet};
use crate::{
    multipaxos::{Bug, Config, Message, MultiPaxos, replica::Timer},
    random_runs::detecting,
};
use alloc::vec::Vec;
use quintet_replica::{
    Durability, Event, Link, Options, Peer, ReplicaId,
    parts::{Ballot, ElectionMessage as Election},
};

const FOUND_HERE: [Bug; 6] = [
    Bug::MinorityCommits,
    Bug::LowestBallotWins,
    Bug::HeldSurvivesBallot,
    Bug::BallotReused,
    Bug::RecoverySkipped,
    Bug::VoteNotDurable,
];

#[test]
fn injected_bugs_that_break_agreement_are_found() {
    let durability = |bug| match bug {
        Bug::RecoverySkipped => Durability::Memory,
        _ => Durability::Disk,
    };
    let found = detecting::<MultiPaxos, _>(&FOUND_HERE, 0..3000, durability, |bug, config| {
        config.set("bug", bug.name()).expect("its own name");
    });
    std::println!("{found:?}");
    assert!(found.iter().all(|(_, seed)| seed.is_some()), "{found:?}");
}

/// The leaders after the only answer to a candidate of three was a rejection.
fn leaders_after_a_refusal(bug: Option<Bug>) -> Vec<u16> {
    let mut config = Config {
        pre_vote: false,
        ..Config::default()
    };
    if let Some(bug) = bug {
        config.set("bug", bug.name()).expect("its own name");
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
    let with = leaders_after_a_refusal(Some(Bug::RefusalCounts));
    assert_eq!(with, [0, 1], "the injected bug makes a leader of one vote");
}

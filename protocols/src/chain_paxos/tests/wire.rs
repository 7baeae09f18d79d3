//! Encodings.

use crate::{
    chain_paxos::{
        Chain, Entry, Header, Member, Message, Op, Promised, Record, Round, Summary, Vote, Votes,
    },
    group::Encodings,
};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, CommandTime, Incarnation, ReplicaId, ReplicaSet, Slot, Wire,
    parts::{Ballot, Decisions, ElectionMessage as Election, Held, PromisePage},
};

fn entries() -> Vec<Entry> {
    let (id, after) = (ReplicaId(2), ReplicaId(1));
    let ops = [
        Op::Batch(Bytes::from_static(b"a batch")),
        Op::Nothing,
        Op::Add {
            id,
            incarnation: Incarnation(3),
            after,
        },
        Op::Remove { id },
        Op::Read { by: id, stamp: 7 },
    ];
    let time = CommandTime(9);
    ops.into_iter().map(|op| Entry { time, op }).collect()
}

fn messages() -> Vec<Message> {
    let ballot = Ballot {
        round: 7,
        owner: ReplicaId(2),
    };
    let (slot, batch) = (Slot(5), Bytes::from_static(b"a batch"));
    let vote = Vote {
        incarnation: Incarnation(1),
        upto: slot,
    };
    let header = Header {
        ballot,
        committed: slot,
        everywhere: Slot(3),
        loop_micros: 250,
        turn: Some(ReplicaId(2)),
        round: Round {
            number: 8,
            end: slot,
            path: ReplicaSet(5),
            looped: 6,
            looped_by: ReplicaSet(7),
            asked: [(ReplicaId(1), 11)].into_iter().collect(),
        },
        votes: Votes([vote; 3].into_iter().collect()),
    };
    let (chain, decisions) = (chain(), decisions());
    alloc::vec![
        Message::Forward {
            batches: alloc::vec![batch.clone(), Bytes::new(), batch]
        },
        Message::Accept {
            header: header.clone(),
            first: slot,
            entries: entries()
        },
        Message::Ack { header, held: slot },
        Message::Skip {
            ballot,
            base: slot,
            chain,
            decisions: decisions.clone()
        },
        Message::Missing { ballot, held: slot },
        Message::Alive {
            ballot,
            incarnation: Incarnation(2),
            whole: true,
            able: false,
            held: slot,
            round: 9
        },
        Message::Suspect {
            ballot,
            about: ReplicaId(1)
        },
        Message::Ask {
            stamp: 9,
            ordered: true
        },
        Message::Election(Election::Reject {
            ballot,
            promised: ballot
        }),
        Message::Election(Election::PreVote {
            ballot,
            committed: slot
        }),
        Message::Election(Election::PreVoteOk {
            ballot,
            granted: true,
            promised: ballot,
            first: slot,
            decisions
        }),
        Message::Election(Election::Prepare { ballot, from: slot }),
        promise(),
        Message::Election(Election::Stand { ballot }),
        Message::Ping { stamp: 7 },
        Message::Pong { stamp: 7 },
    ]
}

fn decisions() -> Decisions {
    let mut decisions = Decisions::default();
    for round in [3, 7] {
        let owner = ReplicaId(2);
        decisions.learn(Ballot { round, owner }, Slot(round));
    }
    decisions
}

fn chain() -> Chain {
    let member = |id| Member {
        id: ReplicaId(id),
        incarnation: Incarnation(1),
    };
    Chain {
        members: [member(2), member(0)].into_iter().collect(),
        slot: Slot(4),
    }
}

fn promise() -> Message {
    let ballot = Ballot {
        round: 7,
        owner: ReplicaId(2),
    };
    let held = |entry| Held { ballot, entry };
    let page = PromisePage {
        from: Slot(5),
        until: Some(Slot(9)),
        committed: Slot(4),
        first: Slot(1),
        decisions: decisions(),
        accepted: [Slot(5), Slot(6)]
            .into_iter()
            .zip(entries().into_iter().map(held))
            .collect(),
    };
    Message::Election(Election::Promise {
        ballot,
        incarnation: Incarnation(1),
        page,
    })
}

#[test]
fn encodings_stay_as_they_are() {
    let mut encodings = Encodings::default();
    encodings.check_client_messages::<Message>(b"a batch", 3);
    messages()
        .iter()
        .for_each(|message| encodings.check(message));
    let ballot = Ballot {
        round: 7,
        owner: ReplicaId(2),
    };
    for entry in entries() {
        encodings.check(&Record::Entry {
            ballot,
            committed: Slot(4),
            entry,
        });
    }
    encodings.check(&Record::Skip {
        from: Slot(3),
        chain: chain(),
    });
    encodings.check(&Promised(ballot));
    let earlier = Summary {
        time: CommandTime(5),
        chain: chain(),
        decisions: Decisions::default(),
    };
    encodings.check(&earlier);
    let decisions = decisions();
    encodings.read_back(&Summary {
        decisions,
        ..earlier
    });
    assert_eq!(
        encodings.hash(),
        58_745_470_074_269_211_418_436_670_180_281_203_659
    );
}

#[test]
fn chain_with_a_replica_twice_is_refused() {
    let mut twice = chain();
    twice.members[1] = twice.members[0];
    assert!(Chain::decode_all(twice.encode_to_bytes()).is_err());
}

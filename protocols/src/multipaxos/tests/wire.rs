//! Encodings.

use crate::{
    group::Encodings,
    multipaxos::message::{Message, Part, Promised, Proposal, Record, Summary, Value},
    sadl::{self, Head, Name, Range},
};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, CommandTime, Incarnation, ReplicaId, Slot, Wire,
    parts::{Ballot, Decisions, ElectionMessage as Election, Held, PromisePage},
};

fn every_kind() -> Vec<Message> {
    let ballot = Ballot {
        round: 7,
        owner: ReplicaId(2),
    };
    let (batch, slot) = (Bytes::from_static(b"a batch"), Slot(5));
    let mut decisions = Decisions::default();
    decisions.learn(ballot, Slot(4));
    let proposal = Proposal {
        time: CommandTime(9),
        value: Value::Batch(batch.clone()),
    };
    let first = Name {
        creator: ReplicaId(1),
        chain: 2,
        round: 3,
    };
    let range = Range { first, last: 4 };
    let named = Proposal {
        time: CommandTime(9),
        value: Value::Named(first),
    };
    let held = Held {
        ballot,
        entry: proposal.clone(),
    };
    let page = PromisePage {
        from: slot,
        until: Some(Slot(6)),
        committed: Slot(4),
        first: Slot(1),
        decisions: decisions.clone(),
        accepted: alloc::vec![(slot, held)],
    };
    let mut all = alloc::vec![
        Message::Forward {
            batches: alloc::vec![batch.clone(), Bytes::new(), batch]
        },
        Message::Accept {
            ballot,
            first: slot,
            committed: Slot(4),
            confirm: 1,
            stamp: 2,
            everywhere: Slot(3),
            proposals: alloc::vec![proposal.clone(), named, proposal],
        },
        Message::Commit {
            ballot,
            committed: slot,
            confirm: 1,
            stamp: 2,
            everywhere: Slot(3),
            round_trip: 4,
            answer: true,
        },
        Message::AcceptOk {
            ballot,
            incarnation: Incarnation(1),
            held: slot,
            durable: Slot(4),
            executed: Slot(3),
            confirm: 2,
            stamp: 1,
        },
        Message::Election(Election::Reject {
            ballot,
            promised: ballot
        }),
        Message::Trimmed {
            ballot,
            first: slot,
            decisions: decisions.clone()
        },
        Message::Election(Election::PreVote {
            ballot,
            committed: slot
        }),
        Message::Election(Election::PreVoteOk {
            ballot,
            granted: true,
            promised: ballot,
            first: slot,
            decisions: decisions.clone()
        }),
        Message::Election(Election::Prepare { ballot, from: slot }),
        Message::Election(Election::Promise {
            ballot,
            incarnation: Incarnation(1),
            page,
        }),
        Message::Election(Election::Stand { ballot }),
        Message::ReadIndex { round: 8 },
        Message::ReadIndexOk {
            round: 8,
            index: slot
        },
        Message::Recover {
            incarnation: Incarnation(2),
            nonce: 6,
            promised: ballot
        },
        Message::Sadl(sadl::Message::Fetch { range }),
        Message::RecoverOk {
            nonce: 6,
            promised: ballot,
            part: Part::Intact,
            held: alloc::vec![range],
        },
    ];
    for part in [Part::Recovering, Part::Intact, Part::Leader { end: slot }] {
        all.push(Message::RecoverOk {
            nonce: 6,
            promised: ballot,
            part,
            held: Vec::new(),
        });
    }
    all
}

#[test]
fn encodings_without_dissemination_are_unchanged() {
    let mut encodings = Encodings::default();
    encodings.check_client_messages::<Message>(b"a batch", 3);
    every_kind()
        .iter()
        .for_each(|message| encodings.check(message));
    let ballot = Ballot {
        round: 7,
        owner: ReplicaId(2),
    };
    let name = Name {
        creator: ReplicaId(1),
        chain: 2,
        round: 3,
    };
    for chain in [0, 5] {
        let promised = Promised { ballot, chain };
        let bytes = encodings.read_back(&promised);
        assert_eq!(bytes.len() == ballot.encode_to_bytes().len(), chain == 0);
    }
    let batch = Bytes::from_static(b"a batch");
    let records = [Value::Batch(batch.clone()), Value::Named(name)]
        .map(|value| Record::Accepted {
            ballot,
            committed: Slot(4),
            proposal: Proposal {
                time: CommandTime(9),
                value,
            },
        })
        .into_iter()
        .chain([Record::Batch { name, batch }]);
    for record in records {
        encodings.check(&record);
    }
    let time = CommandTime(9);
    let none = Summary {
        time,
        ..Summary::default()
    };
    assert_eq!(none.encode_to_bytes().len(), 8);
    let some = Summary {
        time,
        heads: alloc::vec![Head { chain: 1, round: 2 }, Head::default()],
        ..Summary::default()
    };
    let mut decided = [none.clone(), some.clone()];
    for summary in &mut decided {
        summary.decisions.learn(ballot, Slot(7));
    }
    for summary in [none, some].into_iter().chain(decided) {
        encodings.read_back(&summary);
    }
    assert_eq!(
        encodings.hash(),
        260_901_642_721_366_765_267_314_261_401_666_372_616
    );
    assert_eq!(size_of::<Value>(), size_of::<Bytes>(), "names take no room");
}

//! Encodings.

use crate::{
    group::Encodings,
    mencius::message::{DECIDED, Message, Promised, Range, Record, Said, Summary, Value},
};
use alloc::vec::Vec;
use quintet_replica::{Bytes, CommandTime, Incarnation, ReplicaId, Slot, parts::Ballot};

fn every_kind() -> Vec<Message> {
    let batch = Bytes::from_static(b"a batch");
    let time = CommandTime(9);
    let command = Value::Command {
        time,
        batch: batch.clone(),
    };
    let ballot = Ballot::default().next(ReplicaId(2));
    let range = Range {
        owner: ReplicaId(1),
        ballot,
        first: Slot(2),
        last: Slot(8),
    };
    let values = alloc::vec![(Slot(2), command.clone()), (Slot(5), Value::Noop)];
    let incarnations = alloc::vec![Incarnation(1), Incarnation(3)];
    let said = Said {
        incarnation: Incarnation(3),
        incarnations: incarnations.clone(),
        state_lost: true,
        latest: Slot(9),
        committed: Slot(4),
        skip: Some((Slot(5), Slot(8))),
        entries: values.clone(),
        votes: alloc::vec![Slot(6)],
        learnt: alloc::vec![Slot(2)],
    };
    let incarnation = Incarnation(3);
    alloc::vec![
        Message::Said(said),
        Message::Said(Said::default()),
        Message::Prepare(range),
        Message::Promise {
            range,
            accepted: alloc::vec![(Slot(2), DECIDED, command), (Slot(5), ballot, Value::Noop)],
        },
        Message::Accept {
            range,
            values: values.clone()
        },
        Message::Voted {
            range,
            incarnation,
            incarnations
        },
        Message::Learn {
            range,
            values: values.clone()
        },
        Message::Refused {
            owner: ReplicaId(1),
            ballot,
            until: Slot(8)
        },
        Message::Fetch { first: Slot(3) },
        Message::Known {
            committed: Slot(3),
            values
        },
        Message::Trimmed { first: Slot(3) },
        Message::Recover {
            incarnation,
            nonce: 5
        },
        Message::RecoverOk {
            nonce: 5,
            last: Slot(7)
        },
        Message::Forward {
            batches: alloc::vec![batch, Bytes::new()]
        },
        Message::ReadAsk { round: 6 },
        Message::ReadAt {
            round: 6,
            slot: Slot(7)
        },
    ]
}

#[test]
fn encodings_stay_as_they_are() {
    let mut encodings = Encodings::default();
    encodings.check_client_messages::<Message>(b"a batch", 4);
    every_kind()
        .iter()
        .for_each(|message| encodings.check(message));
    let record = Record {
        ballot: Ballot::default().next(ReplicaId(1)),
        decided: true,
        committed: Slot(3),
        value: Value::Noop,
    };
    encodings.check(&record);
    let promised = Promised {
        leases: alloc::vec![(Ballot::default(), Slot(0)), (Ballot::default(), Slot(7))],
        reserved: Slot(90),
    };
    encodings.check(&promised);
    let summary = Summary {
        time: CommandTime(5),
    };
    encodings.check(&summary);
    assert_eq!(
        encodings.hash(),
        28_290_165_002_245_145_488_803_410_399_153_455_934
    );
}

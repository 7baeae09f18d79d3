//! Encodings.

use crate::{
    chora::message::{Fitness, Message, Promised, Pulse, Record, Summary, Value, ViewInit},
    group::Encodings,
};
use alloc::{boxed::Box, vec::Vec};
use quintet_replica::{Bytes, CommandTime, Incarnation, ReplicaId, ReplicaSet, Slot};

fn init() -> ViewInit {
    ViewInit {
        view: 3,
        initiator: ReplicaId(1),
        base: Slot(10),
        proposers: alloc::vec![ReplicaId(1), ReplicaId(2)],
        live: ReplicaSet(0b110),
    }
}

fn every_kind() -> Vec<Message> {
    let batch = Bytes::from_static(b"a batch");
    let commands = Value::Commands {
        time: CommandTime(9),
        batches: smallvec::smallvec![batch.clone(), Bytes::new()],
    };
    let pulse = Pulse {
        view: 3,
        incarnation: Incarnation(2),
        round: 7,
        stamp: 8,
        ack: Slot(11),
        committed: Slot(10),
        latest: Slot(12),
        fitness: Fitness::Recovering,
        loaded: true,
        slow: ReplicaSet(0b101),
        skip: Some((Slot(12), Slot(14))),
        proposal: Some((Slot(11), commands.clone())),
        nack: Some((Slot(12), Slot(12))),
        recover: alloc::vec![(Slot(11), commands.clone()), (Slot(13), Value::Noop)],
    };
    alloc::vec![
        Message::Forward {
            batches: alloc::vec![batch.clone(), Bytes::new(), batch]
        },
        Message::Pulse(pulse),
        Message::Pulse(Pulse::default()),
        Message::ViewRequest {
            view: 4,
            incarnation: Incarnation(1),
            last_slot: Slot(11),
            last_view: 3
        },
        Message::Vote {
            view: 4,
            incarnation: Incarnation(1)
        },
        Message::Init {
            init: init(),
            runs: alloc::vec![(Slot(1), 0), (Slot(5), 2)]
        },
        Message::Fetch {
            view: 4,
            from: Slot(2)
        },
        Message::Entries {
            view: 4,
            first: Slot(2),
            before: 0,
            init: Some(init()),
            committed: Slot(1),
            last: Slot(4),
            entries: alloc::vec![
                (0, Value::Noop),
                (3, Value::Init(Box::new(init()))),
                (3, commands)
            ],
        },
        Message::Trimmed {
            view: 4,
            first: Slot(9),
            executed: Slot(5)
        },
        Message::ReadAsk { view: 4, round: 8 },
        Message::ReadOk {
            round: 8,
            executed: Slot(5)
        },
    ]
}

#[test]
fn slots_are_dealt_out_behind_base_and_every_slot_has_one_owner() {
    let init = init();
    assert_eq!(init.owner(Slot(10)), None, "the base holds VIEW-INIT");
    assert_eq!(init.owner(Slot(11)), Some(ReplicaId(1)));
    assert_eq!(init.owner(Slot(12)), Some(ReplicaId(2)));
    assert_eq!(init.next_slot(ReplicaId(2), Slot(0)), Some(Slot(12)));
    assert_eq!(init.next_slot(ReplicaId(2), Slot(12)), Some(Slot(14)));
    assert_eq!(init.next_slot(ReplicaId(2), Slot(13)), Some(Slot(14)));
    assert_eq!(init.next_slot(ReplicaId(0), Slot(13)), None);
    for slot in 11..40 {
        let owner = init.owner(Slot(slot)).expect("assigned");
        assert_eq!(init.next_slot(owner, Slot(slot - 1)), Some(Slot(slot)));
    }
}

#[test]
fn encodings_stay_as_they_are() {
    let mut encodings = Encodings::default();
    encodings.check_client_messages::<Message>(b"a batch", 3);
    every_kind()
        .iter()
        .for_each(|message| encodings.check(message));
    let record = Record {
        view: 3,
        before: 2,
        committed: Slot(4),
        value: Value::Init(Box::new(init())),
    };
    encodings.check(&record);
    for voted_for in [None, Some(ReplicaId(2))] {
        encodings.check(&Promised { view: 5, voted_for });
    }
    let summary = Summary {
        slot: Slot(11),
        view: 3,
        time: CommandTime(1),
        init: init(),
    };
    encodings.check(&summary);
    assert_eq!(
        encodings.hash(),
        158_416_823_373_773_389_785_929_789_101_560_316_972
    );
}

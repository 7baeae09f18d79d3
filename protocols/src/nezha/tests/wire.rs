//! Encodings.

use crate::{
    group::Encodings,
    nezha::{
        conflict::{Marks, SetHash},
        dom::{Name, Stamp},
        message::{
            Incarnations, LogHash, Message, Part, Placed, Promised, Record, ReplyHeader, Standing,
            Summary, Vote,
        },
    },
};
use alloc::vec::Vec;
use quintet_replica::{BatchId, Bytes, FrontendId, Level, Slot, Wire, parts::Taken};

fn stamps(count: u64) -> Vec<Stamp> {
    let stamp = |n| Stamp {
        deadline: n,
        name: Name {
            frontend: FrontendId(n),
            batch: BatchId(n + 1),
        },
    };
    (0..count).map(stamp).collect()
}

#[test]
fn encodings_stay_as_they_are() {
    let mut encodings = Encodings::default();
    let placed = || Placed {
        deadline: 5,
        batch: Bytes::from_static(b"batch"),
    };
    let vote = Vote {
        view_normal: 3,
        commit: Slot(4),
        kept: Slot(2),
        first: Slot(5),
        synced: stamps(2),
        unsynced: stamps(3),
    };
    assert_eq!(vote.sync(), Slot(6));
    let parts = [
        Part::LogModification {
            first: Slot(1),
            stamps: stamps(2),
            commit: Slot(9),
            round: 8,
        },
        Part::LogStatus {
            sync: Slot(3),
            round: 1,
        },
        Part::Lacks {
            first: Slot(3),
            upto: Slot(4),
        },
        Part::Fetch(stamps(2).iter().map(|stamp| stamp.name).collect()),
        Part::Bodies(alloc::vec![placed().batch, Bytes::new()]),
        Part::GetLog(Slot(7)),
        Part::LogPage {
            first: Slot(7),
            entries: alloc::vec![placed(), placed()],
            end: Slot(9),
        },
        Part::Trimmed(Slot(3)),
        Part::Suspect,
        Part::ViewChange(Slot(0)),
        Part::Vote(vote),
        Part::Recover(77),
        Part::RecoverOk(77, Standing::Changing),
        Part::Appended(stamps(1)[0].name, LogHash::default()),
    ];
    for part in parts {
        encodings.check(&Message::Between {
            view: 6,
            incarnations: Incarnations::from_slice(&[1, 2, 3]),
            part,
        });
    }
    let hash = LogHash {
        incarnations: 1,
        base: Slot(2),
        hash: 3,
        known: true,
    };
    encodings.check(&Message::FastReplies {
        view: 2,
        bound: 9,
        appended: alloc::vec![(BatchId(1), hash), (BatchId(3), LogHash::default())],
    });
    encodings.check(&Message::SlowReply {
        view: 2,
        incarnations: 7,
        sync: Slot(1),
        bound: 9,
    });
    encodings.check(&Message::Taken {
        batch: BatchId(3),
        taken: Taken::Busy,
        view: 2,
    });
    encodings.check(&Message::Request {
        sent: 1,
        bound: 2,
        deviation: 3,
        level: Level::Linearizable,
        batch: placed().batch,
    });
    encodings.check(&Message::Paths { fast: 1, slow: 2 });
    encodings.check(&Record::Entry(Slot(0), placed()));
    encodings.check(&Record::Moved(Slot(2), stamps(1)[0]));
    encodings.check(&Record::Begin {
        view: 1,
        keep: Slot(3),
        entries: alloc::vec![placed()],
    });
    encodings.check(&Promised {
        view: 4,
        view_normal: 3,
        incarnations: Incarnations::from_slice(&[1]),
    });
    encodings.check(&ReplyHeader {
        view: 1,
        slot: Slot(2),
        hash,
        bound: 4,
    });
    encodings.check(&Summary {
        marks: Marks::default(),
        hash: SetHash::default(),
    });
    assert_eq!(
        encodings.hash(),
        160_955_175_224_045_990_313_089_399_705_429_347_096
    );
}

#[test]
fn lists_that_begin_nowhere_are_refused() {
    let part = Part::GetLog(Slot(0));
    assert!(Part::decode_all(part.encode_to_bytes()).is_err());
    let part = Part::GetLog(Slot(u64::MAX));
    assert!(Part::decode_all(part.encode_to_bytes()).is_err());
}

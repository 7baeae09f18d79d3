//! Encodings.

use crate::{
    derecho::message::{
        Ballot, Body, Entry, Held, Holding, Join, Large, Member, Message, Promised, Proposal,
        ShardView, Summary, View,
    },
    derecho::schedule::Schedule,
    group::Encodings,
};
use alloc::{vec, vec::Vec};
use quintet_replica::{Bytes, CommandTime, Frame, Incarnation, ReplicaId, ReplicaSet, Slot, Wire};

fn member(id: u16) -> Member {
    Member {
        id: ReplicaId(id),
        starts: 2,
        incarnation: Incarnation(7),
    }
}

fn view(number: u64) -> View {
    View {
        number,
        members: vec![member(0), member(2)],
        base: Slot(5),
        shards: Vec::new(),
    }
}

fn ballot() -> Ballot {
    Ballot {
        round: 3,
        proposer: 1,
    }
}

fn proposal(then: Option<View>) -> Proposal {
    Proposal {
        ballot: ballot(),
        view: view(4),
        then,
    }
}

fn messages() -> Vec<Message> {
    let batch = Bytes::from_static(b"a batch");
    let entry = Entry {
        view: 4,
        time: CommandTime(9),
        batch: batch.clone(),
    };
    let promise = |accepted| Message::Promise {
        view: 4,
        ballot: ballot(),
        member: member(1),
        complete: true,
        end: Slot(8),
        accepted,
    };
    vec![
        Message::Bulk {
            view: 4,
            index: 6,
            body: Frame::from(batch.clone()),
        },
        Message::Block {
            view: 4,
            number: 6,
            large: Large {
                index: 3,
                sender: ReplicaId(2),
                length: 10,
                size: 7,
                schedule: Schedule::Binomial,
            },
            block: 0,
            bytes: batch,
        },
        Message::Join(Join {
            starts: 2,
            incarnation: Incarnation(7),
            view: 4,
            coming: true,
            complete: false,
            state_lost: true,
            sure: Slot(6),
        }),
        Message::Views {
            views: vec![view(3), view(4)],
            active: true,
        },
        Message::Fetch {
            view: 4,
            have: Slot(3),
            upto: Slot(9),
        },
        Message::Tail {
            view: 4,
            first: Slot(3),
            sure: Slot(2),
            entries: vec![entry.clone(), entry],
        },
        Message::Behind { at_least: Slot(7) },
        Message::Prepare {
            view: 4,
            ballot: ballot(),
        },
        promise(None),
        promise(Some(proposal(None))),
        Message::Accept {
            view: 4,
            proposal: proposal(Some(view(5))),
            source: ReplicaId(1),
        },
        Message::Accepted {
            view: 4,
            ballot: ballot(),
        },
    ]
}

#[test]
fn encodings_stay_as_they_are() {
    let mut encodings = Encodings::default();
    encodings.check_client_messages::<Message>(b"a batch", 3);
    messages()
        .iter()
        .for_each(|message| encodings.check(message));
    encodings.check(&Body {
        time: CommandTime(4),
        batches: vec![Bytes::from_static(b"one"), Bytes::new()],
    });
    for accepted in [None, Some(proposal(None)), Some(proposal(Some(view(5))))] {
        encodings.check(&Promised {
            starts: 2,
            view: view(3),
            complete: true,
            promised: ballot(),
            accepted,
            sure: Slot(5),
            shards: Vec::new(),
        });
    }
    encodings.check(&Summary {
        time: CommandTime(4),
    });
    assert_eq!(
        encodings.hash(),
        141_019_152_854_262_318_518_225_670_165_111_416_576
    );
}

#[test]
fn promise_of_version_1_has_no_view_behind_its_proposal() {
    let promised = |accepted| Promised {
        starts: 2,
        view: view(3),
        complete: true,
        promised: ballot(),
        accepted,
        sure: Slot(5),
        shards: Vec::new(),
    };
    let mut old = promised(Some(proposal(None))).encode_to_bytes().to_vec();
    // Before the slot that ends it stands that nothing follows the proposal.
    let at = old.len() - 9;
    assert_eq!((old[0], old.remove(at)), (2, 0));
    old[0] = 1;
    let read = Promised::decode_all(Bytes::from(old));
    assert_eq!(read, Ok(promised(Some(proposal(None)))));
}

#[test]
fn views_and_blocks_out_of_order_are_rejected() {
    let mut unsorted = view(3);
    unsorted.members.reverse();
    assert!(View::decode_all(unsorted.encode_to_bytes()).is_err());
    let apart = proposal(Some(view(6)));
    assert!(Proposal::decode_all(apart.encode_to_bytes()).is_err());
    for message in messages() {
        let Message::Block { block, .. } = &message else {
            continue;
        };
        assert_eq!(*block, 0);
        let mut bytes = message.encode_to_bytes().to_vec();
        // The block's number stands before its length and its seven bytes.
        let at = bytes.len() - 7 - 4 - 4;
        bytes[at] = 1;
        assert!(Message::decode_all(Bytes::from(bytes)).is_err());
    }
}

#[test]
fn encodings_of_shards_stay_as_they_are() {
    let mut encodings = Encodings::default();
    let set = |ids: [u16; 2]| ids.into_iter().map(ReplicaId).collect();
    let shard = ShardView {
        members: set([0, 2]),
        senders: set([0, 0]),
        targets: set([1, 2]),
        active_in: 3,
        before: 1,
        base: Slot(7),
        generation: 2,
        among: set([0, 1]),
    };
    let mut sharded = view(4);
    sharded.shards = vec![shard];
    encodings.check(&sharded);
    let held = Held {
        complete: true,
        sure: Slot(8),
    };
    encodings.check(&Promised {
        starts: 2,
        view: sharded,
        complete: true,
        promised: ballot(),
        accepted: None,
        sure: Slot(5),
        shards: vec![held],
    });
    let log = Holding {
        shard: 0,
        complete: true,
        begun_again: false,
        generation: 2,
        first: Slot(2),
        sure: Slot(8),
        end: Slot(9),
    };
    let (view, end) = (4, Slot(9));
    encodings.check(&Message::Holds {
        view,
        logs: vec![log],
    });
    encodings.check(&Message::Whole { view, end });
    let (number, shards) = (3, vec![0, 2]);
    encodings.check(&Message::Keep {
        view,
        number,
        shards: shards.clone(),
    });
    encodings.check(&Message::Kept {
        view,
        number,
        shards,
    });
    assert_eq!(
        encodings.hash(),
        89_041_338_259_492_329_729_288_299_316_316_802_404
    );
}

#[test]
fn view_of_an_earlier_version_has_shards_of_no_generation() {
    let set = |ids: [u16; 2]| ids.into_iter().map(ReplicaId).collect();
    let mut sharded = view(4);
    sharded.shards = vec![ShardView {
        members: set([0, 2]),
        senders: set([0, 2]),
        targets: set([1, 2]),
        active_in: 3,
        before: 1,
        base: Slot(7),
        generation: 0,
        among: ReplicaSet::EMPTY,
    }];
    let mut old = sharded.encode_to_bytes().to_vec();
    // The number of members says how shards are written; the last two fields are new.
    let flag = &mut old[19];
    assert_eq!(*flag, 0xc0);
    *flag = 0x80;
    old.truncate(old.len() - 24);
    assert_eq!(View::decode_all(Bytes::from(old)), Ok(sharded.clone()));
    let mut neither = sharded.encode_to_bytes().to_vec();
    neither[19] = 0x40;
    assert!(View::decode_all(Bytes::from(neither)).is_err());
}

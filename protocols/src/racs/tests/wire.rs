//! Encodings.

use crate::{
    group::Encodings,
    racs::{
        Block, BlockId, Course, Mark,
        message::{Answer, Certificate, Message, Promised, Record, Summary, Why},
        quotes::{Quote, shortened},
    },
    sadl::{self, Head, Name, Range},
};
use alloc::{sync::Arc, vec, vec::Vec};
use quintet_replica::{Bytes, CommandTime, Incarnation, ReplicaId, Slot, Wire};

fn id(view: u64, level: u8, round: u64) -> BlockId {
    BlockId {
        view,
        level,
        round,
        owner: ReplicaId(2),
    }
}

fn range() -> Range {
    let first = Name {
        creator: ReplicaId(1),
        chain: 2,
        round: 3,
    };
    Range { first, last: 5 }
}

fn block() -> Arc<Block> {
    let mark = Mark {
        replica: ReplicaId(1),
        run: 9,
        sequence: 4,
    };
    Arc::new(Block {
        id: id(3, 1, 8),
        parent: id(3, 0, 7),
        first: Slot(12),
        time: CommandTime(5),
        marks: vec![mark],
        batches: vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")],
        ranges: vec![range()],
        switch: Some(sadl::Way::Sadl),
    })
}

#[test]
fn encodings_stay_as_they_are() {
    let mut encodings = Encodings::default();
    encodings.check_client_messages::<Message>(b"b", 4);
    let certificate = Certificate {
        view: 3,
        completed: vec![id(3, 2, 9)],
    };
    let mark = block().marks[0];
    let incarnations = vec![Incarnation(1), Incarnation(7)];
    let messages = [
        Message::Forward {
            mark: Some(mark),
            batches: vec![Bytes::from_static(b"x")],
        },
        Message::Propose {
            view: 3,
            tip: id(3, 0, 7),
            decided: id(2, 0, 5),
            stamp: 6,
            round_trip: 7,
            answer: true,
            blocks: vec![block()],
        },
        Message::Vote {
            view: 3,
            tip: id(3, 0, 7),
            stamp: 8,
            incarnations: incarnations.clone(),
            median: 9,
        },
        Message::Timeout {
            view: 3,
            high: id(3, 0, 7),
            decided: id(2, 0, 5),
            leaving: true,
            mark: None,
        },
        Message::ProposeAsync {
            block: quoting(),
            quotes: vec![quote(4, 0, 3), quote(4, 5, 1), quote(5, 0, 1)],
        },
        Message::VoteAsync {
            block: id(3, 2, 9),
            incarnations,
        },
        Message::Complete { block: id(3, 2, 9) },
        Message::NewView {
            view: 4,
            high: id(3, 2, 9),
            certificate: Some(certificate.clone()),
        },
        Message::Exit {
            certificate,
            decided: id(2, 0, 5),
        },
        Message::Fetch {
            tip: id(3, 0, 7),
            have: vec![id(3, 0, 4), id(2, 0, 3)],
        },
        Message::Blocks {
            tip: id(3, 0, 7),
            blocks: vec![block(), block()],
            decided: id(2, 0, 3),
        },
        Message::Trimmed { slot: Slot(3) },
        Message::Recover {
            incarnation: Incarnation(2),
            nonce: 5,
            above: Some(3),
        },
        Message::RecoverOk {
            nonce: 5,
            answer: Answer {
                state_lost: false,
                view: 3,
                high: id(3, 0, 7),
                fall: vec![id(3, 2, 9)],
                decided: id(2, 0, 5),
                held: vec![range()],
            },
        },
        Message::Sadl(sadl::Message::Fetch { range: range() }),
    ];
    messages.iter().for_each(|message| encodings.check(message));
    for block in [None, Some(block())] {
        encodings.check(&Record::Block {
            why: Why::Own,
            id: id(3, 1, 8),
            block,
            quotes: Vec::new(),
        });
    }
    encodings.check(&Record::Batch {
        name: range().first,
        batch: Bytes::from_static(b"b"),
    });
    encodings.check(&Promised {
        view: 3,
        stopped: Some(id(3, 0, 7)),
        asynchronous: true,
        high: id(3, 0, 7),
        certificate: None,
        chain: 8,
    });
    encodings.check(&Summary {
        decided: id(3, 0, 7),
        time: CommandTime(7),
        heads: vec![Head { chain: 1, round: 2 }],
        course: Course::default(),
    });
    assert_eq!(
        encodings.hash(),
        306_977_329_695_256_175_202_962_160_867_556_588_788
    );
}

fn quoting() -> Arc<Block> {
    Arc::new(Block {
        id: id(3, 2, 9),
        parent: id(3, 1, 8),
        ..(*block()).clone()
    })
}

fn quote(round: u64, first: u32, count: u32) -> Quote {
    let of = id(3, 1, round);
    Quote { of, first, count }
}

#[test]
fn quotes_name_each_batch_once_in_level_2_only() {
    let refused = |block: Arc<Block>, quotes: Vec<Quote>| {
        let message = Message::ProposeAsync { block, quotes };
        Message::decode_all(message.encode_to_bytes()).is_err()
    };
    assert!(refused(block(), vec![quote(4, 0, 1)]), "in level 1");
    assert!(refused(quoting(), vec![quote(4, 0, 0)]), "nothing");
    assert!(refused(quoting(), vec![quote(4, u32::MAX, 1)]), "too far");
    let again = vec![quote(4, 0, 3), quote(4, 2, 1)];
    assert!(refused(quoting(), again), "one of them twice");
    let backwards = vec![quote(5, 0, 1), quote(4, 0, 1)];
    assert!(refused(quoting(), backwards));
    let mut other = quote(4, 0, 1);
    other.of.view = 2;
    assert!(refused(quoting(), vec![other]), "of another view");
}

#[test]
fn record_of_a_quoting_block_leaves_out_what_it_quotes() {
    let quotes = vec![quote(4, 0, 1)];
    let record = |block: Arc<Block>| Record::Block {
        why: Why::Fall,
        id: block.id,
        block: Some(block),
        quotes: quotes.clone(),
    };
    let bytes = record(quoting()).encode_to_bytes();
    let short = record(shortened(&quoting(), &quotes));
    assert_eq!(Record::decode_all(bytes.clone()), Ok(short));
    for cut in 0..bytes.len() {
        assert!(Record::decode_all(bytes.slice(..cut)).is_err());
    }
}

#[test]
fn blocks_whose_parent_cannot_be_theirs_are_refused() {
    let good = block();
    for bad in [
        Block {
            parent: id(3, 0, 6),
            ..(*good).clone()
        },
        Block {
            parent: id(4, 0, 7),
            ..(*good).clone()
        },
        Block {
            parent: id(3, 2, 7),
            ..(*good).clone()
        },
        Block {
            id: id(3, 2, 8),
            ..(*good).clone()
        },
        Block {
            first: Slot(0),
            ..(*good).clone()
        },
    ] {
        assert!(Block::decode_all(bad.encode_to_bytes()).is_err(), "{bad:?}");
    }
}

#[test]
fn certificate_names_each_maker_once() {
    let twice = Certificate {
        view: 3,
        completed: vec![id(3, 2, 9), id(3, 2, 10)],
    };
    assert!(Certificate::decode_all(twice.encode_to_bytes()).is_err());
}

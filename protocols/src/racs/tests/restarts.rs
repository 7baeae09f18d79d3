//! Restarts from what a crash leaves when a checkpoint came while the highest block had lost.
//!
//! ```text
//!   genesis ─┬─ d                 decided, with something above it that has not come yet
//!            └─ x1 ── x2 ── x3    voted for here in a later view, and lost
//! ```

use super::group::{Group, MS, Packet, assert_converged, pump, small};
use crate::racs::{
    Block, BlockId, Message, Quote, Record, Summary,
    message::{Promised, Why},
    replica::Mode,
};
use crate::sadl::Dissemination;
use alloc::{sync::Arc, vec, vec::Vec};
use quintet_replica::{Bytes, CommandTime, Control, Durability, Event, ReplicaId, Slot, Wire};

const fn id(view: u64, level: u8, round: u64, owner: u16) -> BlockId {
    let owner = ReplicaId(owner);
    BlockId {
        view,
        level,
        round,
        owner,
    }
}

/// A block without batches takes one slot, one with two takes two.
fn block(id: BlockId, parent: BlockId, first: u64, batches: usize) -> Arc<Block> {
    Arc::new(Block {
        id,
        parent,
        first: Slot(first),
        time: CommandTime(0),
        marks: Vec::new(),
        batches: vec![Bytes::new(); batches],
        ranges: Vec::new(),
        switch: None,
    })
}

const DECIDED: BlockId = id(1, 0, 1, 0);
const LOST: [BlockId; 3] = [id(2, 0, 1, 1), id(2, 0, 2, 1), id(2, 0, 3, 1)];

fn told(group: &mut Group, from: u16, message: &Message) {
    group.deliver(Packet::new(from, 2, message));
    for _ in 0..3 {
        group.sync(2);
        group.idle(2);
    }
    group.network.clear();
}

/// Replica 2 in view 2 with its vote for three blocks of that view's leader.
fn voted() -> Group {
    let mut group = Group::new(3, Durability::Disk, small());
    group.isolate(2);
    let parents = [BlockId::GENESIS, LOST[0], LOST[1]];
    let lost = LOST.iter().zip(parents).zip(1..);
    let propose = Message::Propose {
        view: 2,
        tip: LOST[2],
        decided: BlockId::GENESIS,
        stamp: 1,
        round_trip: 1000,
        answer: false,
        blocks: lost
            .map(|((id, parent), first)| block(*id, parent, first, 0))
            .collect(),
    };
    told(&mut group, 1, &propose);
    assert_eq!(group.replica(2).tree.high(), LOST[2]);
    group
}

/// One page of what was elected comes: a block beside those, decided; and a checkpoint there.
fn checkpoint_between_pages(group: &mut Group, batches: usize) {
    let page = Message::Blocks {
        tip: DECIDED,
        blocks: vec![block(DECIDED, BlockId::GENESIS, 1, batches)],
        decided: DECIDED,
    };
    told(group, 0, &page);
    assert_eq!(group.replica(2).tree.high(), DECIDED);
    group.event(2, Event::Control(Control::CheckpointDue));
    group.sync(2);
    group.idle(2);
    group.sync(2);
}

fn assert_restarts(group: &mut Group) {
    for _ in 0..2 {
        group.crash(2);
        group.start(2);
        assert_eq!(group.members[2].halted, None);
        group.sync(2);
        group.idle(2);
        group.sync(2);
        let replica = group.replica(2);
        assert_eq!(replica.tree.high(), DECIDED);
        let stopped = replica
            .view
            .stopped()
            .expect("it had said that it timed out");
        assert_eq!(stopped, DECIDED, "others could not count what is lost");
    }
}

#[test]
fn restart_works_when_the_highest_block_lost() {
    for batches in [0, 2] {
        let mut group = voted();
        checkpoint_between_pages(&mut group, batches);
        assert_restarts(&mut group);
        assert!(group.marked("highest block lost at restart") > 0);
    }
}

#[test]
fn restart_works_when_the_block_of_a_timeout_lost() {
    for batches in [0, 2] {
        let mut group = voted();
        group.event(2, Event::Control(Control::ReportFailure(ReplicaId(1))));
        group.sync(2);
        group.idle(2);
        assert_eq!(group.status(2).role, "timed out");
        checkpoint_between_pages(&mut group, batches);
        assert_restarts(&mut group);
    }
}

/// Its highest block was decided in a later view, and nothing in the journal says that it is
/// decided.
#[test]
fn restart_follows_the_highest_block_into_its_view() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.isolate(2);
    let later = id(2, 0, 2, 1);
    group.crash(2);
    let promised = Promised {
        view: 1,
        stopped: Some(later),
        asynchronous: false,
        high: later,
        certificate: None,
        chain: 0,
    };
    let disk = &mut group.members[2].disk;
    disk.promise = Some(promised.encode_to_bytes());
    for (first, id, parent) in [(1, DECIDED, BlockId::GENESIS), (2, later, DECIDED)] {
        let record = Record::Block {
            why: Why::High,
            id,
            block: Some(block(id, parent, first, 0)),
            quotes: Vec::new(),
        };
        disk.records.push((Slot(first), record.encode_to_bytes()));
    }
    for _ in 0..2 {
        group.start(2);
        assert_eq!(group.members[2].halted, None);
        group.sync(2);
        group.idle(2);
        let replica = group.replica(2);
        assert_eq!((replica.view.number(), replica.tree.high()), (2, later));
        quintet_replica::Protocol::assert_invariants(replica);
        group.crash(2);
    }
}

/// It takes part again in a later view. Before the promise of that view is durable it may not count
/// as one that has lost nothing: the promise before it does not tell of its earlier timeouts.
#[test]
fn recovered_replica_stays_lost_until_its_new_view_is_durable() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 100);
    group.crash(2);
    group.damage(2);
    group.start(2);
    // It hears what it asks for, and of no later view yet.
    pump(&mut group, |_, message| {
        matches!(
            message,
            Message::Recover { above: None, .. } | Message::RecoverOk { .. }
        )
    });
    assert!(group.replica(2).view.is_out());
    group.sync(2);
    group.members[2].slow_disk = true;
    group.run(MS * 2000);
    assert_eq!(group.marked("recovered"), 1);
    group.crash(2);
    group.members[2].slow_disk = false;
    group.start(2);
    group.run(MS * 4000);
    assert_eq!(group.marked("recovered"), 2);
    assert_converged(&group, 0);
}

/// It proposed in the asynchronous mode upon what lost. A second block of the same level and view
/// could have the first one's id, and others hold that.
#[test]
fn restart_proposes_no_second_block_when_the_first_lost() {
    for batches in [0, 4] {
        let mut group = voted();
        group.event(2, Event::Control(Control::ReportFailure(ReplicaId(1))));
        let timeout = Message::Timeout {
            view: 2,
            high: LOST[2],
            decided: BlockId::GENESIS,
            leaving: false,
            mark: None,
        };
        told(&mut group, 1, &timeout);
        assert_eq!(group.status(2).role, "asynchronous");
        let own = id(2, 1, 4, 2);
        assert!(group.replica(2).tree.get(own).is_some());
        checkpoint_between_pages(&mut group, batches);
        assert_restarts(&mut group);
        group.heal();
        group.clock.now = group.clock.now + MS * 500;
        group.idle(2);
        let tree = &group.replica(2).tree;
        assert!((0..4).all(|round| tree.get(id(2, 1, round, 2)).is_none()));
        assert_eq!(group.status(2).role, "asynchronous");
    }
}

const FIRST: [BlockId; 2] = [id(2, 1, 3, 1), id(2, 1, 2, 0)];
const SECOND: BlockId = id(2, 2, 4, 1);

/// Replica 2 in view 2 with its vote for a block of level 2 that quotes one of level 1 beside it,
/// whose slot is lower.
fn voted_for_quoting() -> Group {
    let mut group = voted();
    group.event(2, Event::Control(Control::ReportFailure(ReplicaId(1))));
    let timeout = Message::Timeout {
        view: 2,
        high: LOST[2],
        decided: BlockId::GENESIS,
        leaving: false,
        mark: None,
    };
    told(&mut group, 1, &timeout);
    assert_eq!(group.status(2).role, "asynchronous");
    let quotes = vec![Quote {
        of: FIRST[1],
        first: 0,
        count: 1,
    }];
    let shown = [
        (block(FIRST[0], LOST[1], 3, 1), Vec::new()),
        (block(FIRST[1], LOST[0], 2, 1), Vec::new()),
        (block(SECOND, FIRST[0], 4, 0), quotes),
    ];
    for (block, quotes) in shown {
        let maker = block.id.owner.0;
        told(&mut group, maker, &Message::ProposeAsync { block, quotes });
    }
    group
}

/// How many batches stand in the journal's records of this block, and whether one says complete.
fn written(group: &Group, of: BlockId) -> (usize, bool) {
    let records = group.members[2].disk.records.iter();
    let records = records.map(|(_, record)| Record::decode_all(record.clone()).expect("a record"));
    records.fold((0, false), |(batches, complete), record| match record {
        Record::Block {
            id,
            block: Some(block),
            quotes,
            ..
        } if id == of => (batches + block.batches.len(), complete || quotes.is_empty()),
        _ => (batches, complete),
    })
}

fn assert_holds_vote(group: &Group) {
    let replica = group.replica(2);
    let held = replica.tree.get(SECOND).expect("it was voted for");
    assert_eq!(held.batches.len(), 1, "with what it quotes");
    let Mode::Asynchronous(fallback) = &replica.mode else {
        panic!("it is in the asynchronous mode");
    };
    assert_eq!(fallback.fall().get(&ReplicaId(1)), Some(&SECOND));
}

#[test]
fn restart_completes_block_that_journal_holds_by_its_quotes() {
    let mut group = voted_for_quoting();
    assert_holds_vote(&group);
    assert_eq!(written(&group, SECOND), (0, false), "no batch twice");
    for _ in 0..2 {
        group.crash(2);
        group.start(2);
        assert_holds_vote(&group);
    }
}

#[test]
fn restart_finds_vote_when_checkpoint_trims_what_block_quotes() {
    let mut group = voted_for_quoting();
    let decided = Message::Blocks {
        tip: LOST[1],
        blocks: Vec::new(),
        decided: LOST[1],
    };
    told(&mut group, 1, &decided);
    assert_eq!(group.replica(2).tree.root().id, LOST[1]);
    group.event(2, Event::Control(Control::CheckpointDue));
    for _ in 0..2 {
        group.sync(2);
        group.idle(2);
    }
    assert_eq!(written(&group, FIRST[1]), (0, false), "it is trimmed");
    assert_eq!(written(&group, SECOND), (1, true));
    group.crash(2);
    group.start(2);
    assert_holds_vote(&group);
}

/// A state from a peer is saved before the protocol hears of it, and a crash may come in between.
#[test]
fn second_restart_finds_vote_after_fetched_state() {
    let mut group = voted_for_quoting();
    let summary = Summary {
        decided: LOST[1],
        time: CommandTime(0),
        heads: group.replica(2).sadl.heads().to_vec(),
        course: group.replica(2).hybrid.course(),
    };
    let slot = Slot(2);
    group.members[2].disk.checkpoint = Some((slot, summary.encode_to_bytes()));
    for _ in 0..2 {
        group.crash(2);
        group.start(2);
        group.sync(2);
        group.event(2, Event::Checkpointed(slot));
        assert_eq!(written(&group, FIRST[1]), (0, false), "it is trimmed");
        assert_holds_vote(&group);
    }
}

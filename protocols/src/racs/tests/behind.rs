//! Replicas that are far behind, while the others continue.

use super::group::{Group, MS, Packet, assert_converged, small};
use crate::racs::{Block, BlockId, Config, Dissemination, Message, Timer};
use crate::sadl::Way;
use alloc::{sync::Arc, vec::Vec};
use quintet_replica::{CommandTime, Control, Durability, Event, ReplicaId, Slot};

/// The largest size of a page in these groups.
const PAGE: usize = 4096;

/// One turn of everybody: what is on the way arrives, nothing else does. Messages of the others to
/// `lagging` that `lost` selects are lost. Gives how many blocks were sent to it when asked for.
fn turn(group: &mut Group, lagging: u16, lost: impl Fn(&Message) -> bool) -> usize {
    let mut sent = 0;
    for _ in 0..group.network.len() {
        let packet = group.network.pop_front().expect("counted");
        let message = packet.message();
        if packet.to == ReplicaId(lagging) {
            if lost(&message) {
                continue;
            }
            if let Message::Blocks { blocks, .. } = &message {
                let bytes: usize = blocks.iter().map(|block| block.bytes()).sum();
                assert!(bytes <= PAGE, "a page has {bytes} bytes");
                sent += blocks.len();
            }
        }
        group.deliver(packet);
    }
    for id in 0..group.members.len() as u16 {
        group.sync(id);
        group.transfer(id);
        group.idle(id);
    }
    group.clock.now = group.clock.now + MS;
    sent
}

/// Replica 0 dies with much in its journal and comes back while the others continue: that many
/// blocks before, and meanwhile. Gives the group when it has caught up, and how many blocks it was
/// sent.
fn comes_back(config: &Config, before: u64, meanwhile: u64) -> (Group, usize) {
    let mut group = Group::new(3, Durability::Disk, config.clone());
    group.run(MS * 100);
    for _ in 0..before {
        group.write(0);
        group.settle();
    }
    assert_eq!(group.leaders(), [0]);
    group.crash(0);
    group.run(MS * 3000);
    for _ in 0..meanwhile {
        group.write(1);
        group.settle();
    }
    group.start(0);
    let (mut sent, mut turns) = (0, 0);
    loop {
        // As fast as the others can: one block in flight all the time.
        group.write(1);
        sent += turn(&mut group, 0, |_| false);
        turns += 1;
        let slots = |id: usize| group.members[id].executed.0;
        if slots(0) + 8 >= slots(1) {
            return (group, sent);
        }
        assert!(
            turns < before + meanwhile,
            "after {turns} turns replica 0 is at slot {}, replica 1 at {}",
            slots(0),
            slots(1)
        );
    }
}

#[test]
fn replica_with_long_journal_gets_only_missing_entries() {
    let (mut group, sent) = comes_back(&small(), 200, 150);
    let missed = 150;
    assert!(sent < 2 * missed, "{sent} blocks were sent");
    group.run(MS * 1000);
    assert_converged(&group, 350);
}

#[test]
fn state_is_the_same_with_dissemination() {
    let config = Config {
        dissemination: Dissemination::Fixed(Way::Sadl),
        ..small()
    };
    let (mut group, _) = comes_back(&config, 200, 150);
    group.run(MS * 1000);
    assert_converged(&group, 350);
}

#[test]
fn replica_missing_trimmed_batches_continues_from_state() {
    let config = Config {
        log_memory_bytes: 8 << 10,
        ..small()
    };
    let (mut group, _) = comes_back(&config, 100, 300);
    assert!(group.marked("needs trimmed blocks") > 0);
    group.run(MS * 1000);
    assert_converged(&group, 400);
}

#[test]
fn replica_without_requested_batches_keeps_few_new_ones() {
    let config = Config {
        window: 4,
        ..small()
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 100);
    let lost = |message: &Message| matches!(message, Message::Blocks { .. });
    group.isolate(2);
    group.write(0);
    group.settle();
    group.heal();
    for _ in 0..100 {
        group.write(0);
        turn(&mut group, 2, lost);
    }
    let held = |name: &str| -> usize {
        let details = group.status(2).details;
        let found = details.iter().find(|(of, _)| *of == name);
        found.expect("told").1.parse().expect("a number")
    };
    assert_eq!(group.members[2].executed, Slot(0));
    assert!(held("blocks_held") <= 16, "{}", held("blocks_held"));
    let asked: Vec<Message> = group
        .network
        .iter()
        .filter(|packet| packet.from == ReplicaId(2))
        .map(super::group::Packet::message)
        .filter(|message| matches!(message, Message::Fetch { .. }))
        .collect();
    assert!(asked.len() <= 1, "{asked:?}");
    group.run(MS * 1000);
    assert_converged(&group, 101);
}

/// A block of a view's synchronous mode, the first upon nothing.
fn first_block(view: u64, owner: u16) -> Arc<Block> {
    Arc::new(Block {
        id: BlockId {
            view,
            level: 0,
            round: 1,
            owner: ReplicaId(owner),
        },
        parent: BlockId::GENESIS,
        first: Slot(1),
        time: CommandTime(1),
        marks: Vec::new(),
        batches: Vec::new(),
        ranges: Vec::new(),
        switch: None,
    })
}

#[test]
fn decided_block_may_lie_beside_superseded_highest_block() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 100);
    // View 4's leader proposes blocks that are not decided; a block of view 2 is decided with one
    // of view 4's asynchronous mode, and is all of it that comes.
    let (lost, decided) = (first_block(4, 0), first_block(2, 1));
    let propose = Message::Propose {
        view: 4,
        tip: lost.id,
        decided: BlockId::GENESIS,
        stamp: 1,
        round_trip: 1000,
        answer: true,
        blocks: alloc::vec![lost.clone()],
    };
    let page = Message::Blocks {
        tip: decided.id,
        blocks: alloc::vec![decided.clone()],
        decided: decided.id,
    };
    for (from, message) in [(0, propose), (1, page)] {
        group.deliver(Packet::new(from, 2, &message));
        for _ in 0..4 {
            group.sync(2);
            group.idle(2);
        }
    }
    assert_eq!(group.marked("highest block lost"), 1);
    assert_eq!(group.members[2].executed, Slot(1));
    assert_eq!(group.status(2).role, "timed out", "no vote in that view");
    group.crash(2);
    group.start(2);
    group.sync(2);
    group.idle(2);
    assert_eq!(group.status(2).view, 4);
}

#[test]
fn page_that_is_here_already_leads_to_the_next_one() {
    let config = Config {
        window: 64,
        ..small()
    };
    let mut group = Group::new(3, Durability::Disk, config);
    group.run(MS * 100);
    // Replica 2 receives names of blocks, and not the blocks; they are not decided.
    group.isolate(1);
    group.isolate(2);
    for _ in 0..60 {
        group.write(0);
        for _ in 0..3 {
            group.sync(0);
            group.idle(0);
        }
    }
    let tip = group.replica(0).tree.high();
    assert_eq!(tip.round, 60);
    // It votes for nothing that comes.
    let control = Control::ReportFailure(ReplicaId(0));
    group.event(2, Event::Control(control));
    group.idle(2);
    let fetch = Message::Fetch {
        tip,
        have: alloc::vec![BlockId::GENESIS],
    };
    group.network.clear();
    group.heal();
    group.deliver(Packet::new(2, 0, &fetch));
    group.idle(0);
    // The first page comes although it was not asked for, as one does that was asked for before.
    let page = |packet: &Packet| matches!(packet.message(), Message::Blocks { .. });
    let first = group.network.iter().find(|packet| page(packet)).cloned();
    group.deliver(first.expect("a page"));
    group.idle(2);
    assert!(!group.replica(2).tree.connected(tip), "there are more");
    group.network.clear();
    let timeout = Message::Timeout {
        view: 1,
        high: tip,
        decided: BlockId::GENESIS,
        leaving: false,
        mark: None,
    };
    group.deliver(Packet::new(0, 2, &timeout));
    for _ in 0..20 {
        group.fire(2, Timer::Fetch);
        for id in [2, 0, 2] {
            group.sync(id);
            group.idle(id);
            let packets: Vec<Packet> = group.network.drain(..).collect();
            let fetching = |packet: &Packet| {
                matches!(
                    packet.message(),
                    Message::Fetch { .. } | Message::Blocks { .. }
                )
            };
            for packet in packets
                .into_iter()
                .filter(|packet| packet.to != ReplicaId(1))
            {
                if fetching(&packet) {
                    group.deliver(packet);
                }
            }
        }
    }
    assert!(group.replica(2).tree.connected(tip), "page by page");
}

/// A group that has decided something, its leader, and what was decided.
fn decided() -> (Group, u16, BlockId) {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 100);
    let leader = group.leaders()[0];
    group.write(leader);
    group.run(MS * 100);
    let follower = (leader + 1) % 3;
    let root = group.replica(follower).tree.root().id;
    assert!(root.round > 0, "{root}");
    (group, leader, root)
}

#[test]
fn replica_halts_when_round_has_two_decided_blocks() {
    let (mut group, leader, root) = decided();
    let owner = ReplicaId((root.owner.0 + 1) % 3);
    let message = Message::Timeout {
        view: root.view,
        high: root,
        decided: BlockId { owner, ..root },
        leaving: false,
        mark: None,
    };
    let reason = group.contradicts(&Packet::new(leader, (leader + 1) % 3, &message));
    assert!(reason.contains("of the same round here"), "{reason}");
}

#[test]
fn replica_halts_when_decided_block_extends_another_branch() {
    let (mut group, leader, root) = decided();
    let id = BlockId {
        round: root.round + 1,
        ..root
    };
    let block = Block {
        id,
        parent: BlockId {
            owner: ReplicaId((root.owner.0 + 1) % 3),
            ..root
        },
        first: Slot(2),
        time: CommandTime(1),
        marks: Vec::new(),
        batches: Vec::new(),
        ranges: Vec::new(),
        switch: None,
    };
    let message = Message::Propose {
        view: group.status(leader).view,
        tip: id,
        decided: id,
        stamp: 1,
        round_trip: 1,
        answer: false,
        blocks: [Arc::new(block)].into(),
    };
    let reason = group.contradicts(&Packet::new(leader, (leader + 1) % 3, &message));
    assert!(reason.contains("does not stand upon"), "{reason}");
}

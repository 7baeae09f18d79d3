//! Raw delivery: each sender's messages in its order, and nothing else.

use super::super::{Config, Derecho, config::Delivery};
use crate::group::{Group, MS};
use alloc::vec::Vec;
use quintet_replica::{BatchId, Control, Durability, Event, ReplicaId};

fn group(members: usize, change: impl FnOnce(&mut Config)) -> Group<Derecho> {
    let mut config = Config {
        delivery: Delivery::Raw,
        smc_bytes_max: 64,
        ..Config::default()
    };
    change(&mut config);
    Group::new(members, Durability::Memory, config)
}

/// The batches of one sender that a member has executed.
fn of(group: &Group<Derecho>, id: u16, sender: &[BatchId]) -> Vec<BatchId> {
    let mut all = group.batches(id);
    all.retain(|batch| sender.contains(batch));
    all
}

#[test]
fn message_is_executed_on_receipt_without_waiting() {
    let mut group = group(3, |_| {});
    let mut sent = [const { Vec::new() }; 3];
    for round in 0..40 {
        for (id, sent) in sent.iter_mut().enumerate() {
            // The last one is always far ahead.
            if id == 2 || round % 4 == 0 {
                let batch = group.write(id as u16);
                group.idle(id as u16);
                sent.push(batch);
            }
        }
        if round % 8 == 0 {
            group.settle();
        }
    }
    assert!(group.answered(0, sent[0][0]) && group.batches(1) != group.batches(2));
    group.settle();
    for id in 0..3 {
        for sent in &sent {
            assert_eq!(of(&group, id, sent), *sent, "replica {id}");
        }
        assert_eq!(group.batches(id).len(), 60, "replica {id}: each once");
    }
    assert_eq!(group.marked("nulls sent"), 0);
    let orders: Vec<_> = (0..3).map(|id| group.batches(id)).collect();
    assert!(
        orders[0] != orders[2],
        "what is written first is executed first where it is written"
    );
}

#[test]
fn sender_waits_for_members_that_do_not_take_what_it_sends() {
    let mut group = group(3, |config| config.window = 4);
    group.settle();
    group.isolate(2);
    let batches: Vec<_> = (0..20)
        .map(|_| {
            let batch = group.write(0);
            group.idle(0);
            batch
        })
        .collect();
    group.settle();
    assert_eq!(of(&group, 1, &batches), batches[..4], "as the window says");
    // Without it they continue, and it is let in again with nothing of what it missed.
    group.run(MS * 1000);
    assert_eq!(of(&group, 1, &batches), batches);
    assert!(group.answered(0, batches[19]));
    group.heal();
    group.run(MS * 3000);
    assert_eq!(group.status(2).role, "member", "{:?}", group.status(2));
    let later = group.write(1);
    group.run(MS * 10);
    assert_eq!(group.batches(2).last(), Some(&later));
    assert!(of(&group, 2, &batches).len() < 20);
}

#[test]
fn view_change_repeats_nothing() {
    let mut group = group(5, |_| {});
    let batches: Vec<_> = (0..5).map(|id| group.write(id)).collect();
    for id in 0..5 {
        group.idle(id);
    }
    group.crash(4);
    group.event(1, Event::Control(Control::ReportFailure(ReplicaId(4))));
    group.run(MS * 1000);
    let last = group.write(3);
    group.run(MS * 10);
    for id in 0..4 {
        let mut all = group.batches(id);
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "replica {id}: none twice");
        assert!(all.contains(&last) && of(&group, id, &batches[..4]).len() <= 4);
    }
}

//! The table alone.

use crate::derecho::{
    Ballot, Member, Proposal, View,
    sst::{HEAD, Layout, PERSISTED, Table, VIEW},
};
use alloc::vec::Vec;
use quintet_replica::{Incarnation, ReplicaId, Slot};

const ME: ReplicaId = ReplicaId(0);
const PEER: ReplicaId = ReplicaId(1);

fn table(view: u64) -> Table {
    let mut table = Table::new(3, Layout::new(3, 4, 64));
    table.begin(ME, view);
    table
}

fn proposal(proposer: u64, base: u64) -> Proposal {
    let member = |id| Member {
        id: ReplicaId(id),
        starts: base,
        incarnation: Incarnation(base),
    };
    Proposal {
        ballot: Ballot { round: 0, proposer },
        view: View {
            number: 8,
            members: [member(0), member(2)].into(),
            base: Slot(base),
            shards: Vec::new(),
        },
        then: None,
    }
}

#[test]
fn row_counts_only_between_its_two_guards_and_never_goes_back() {
    let mut table = table(7);
    let area = table.layout.area(7);
    table.merge(PEER, area + HEAD, &[7]);
    table.merge(PEER, area + PERSISTED, &[5]);
    assert!(!table.valid(PEER));
    assert_eq!(table.read(PEER, PERSISTED), 0, "not whole yet");
    table.merge(PEER, area + VIEW, &[7]);
    assert_eq!(table.read(PEER, PERSISTED), 5);
    let merged = table.merge(PEER, area + PERSISTED, &[4]);
    assert_eq!((merged.refused, table.read(PEER, PERSISTED)), (1, 5));
    // The peer continues to view 9, in the same area: nothing of it is read as view 7.
    table.merge(PEER, area + HEAD, &[9]);
    table.merge(PEER, area + PERSISTED, &[2]);
    assert_eq!(table.read(PEER, PERSISTED), 0);
    let outside = table.merge(PEER, 1 << 20, &[1]);
    assert_eq!(outside.refused, 1);
}

#[test]
fn put_is_refused_when_its_offset_ends_the_range() {
    let mut table = table(7);
    let outside = table.merge(PEER, u32::MAX, &[1, 2]);
    assert_eq!((outside.refused, outside.dirty), (1, 0));
}

#[test]
#[should_panic(expected = "only rises")]
fn own_row_is_asserted_to_rise() {
    let mut table = table(7);
    table.set(ME, PERSISTED, 3);
    table.set(ME, PERSISTED, 2);
}

/// Word by word, as shared memory may show it: a reader that sees a proposal's guard sees all of
/// it.
#[test]
fn put_torn_at_any_word_shows_no_guard_before_what_it_guards() {
    let mut writer = table(7);
    writer.set_proposal(ME, &proposal(1, 10));
    let first: Vec<(u32, Vec<u64>)> = owned(writer.own_ranges(ME).to_vec());
    writer.set_proposal(ME, &proposal(2, 20));
    let column = writer.layout.proposed();
    let second = owned(writer.dirty_ranges(ME, &[column]));
    let words = second.iter().map(|(_, words)| words.len()).sum::<usize>();
    for torn in 0..=words {
        let mut reader = table(7);
        let area = reader.layout.area(7);
        for (offset, words) in &first {
            reader.merge(PEER, *offset, words);
        }
        reader.merge(PEER, area + HEAD, &[7]);
        reader.merge(PEER, area + VIEW, &[7]);
        let mut left = torn;
        for (offset, words) in &second {
            for (index, word) in (*offset..).zip(words).take(left) {
                reader.merge(PEER, index, &[*word]);
            }
            left = left.saturating_sub(words.len());
        }
        if reader.proposed(PEER) == 2 {
            assert_eq!(
                reader.proposal(PEER),
                Some(proposal(2, 20)),
                "torn after {torn}"
            );
        }
    }
}

fn owned(ranges: Vec<(u32, &[u64])>) -> Vec<(u32, Vec<u64>)> {
    let own = |(offset, words): (u32, &[u64])| (offset, words.to_vec());
    ranges.into_iter().map(own).collect()
}

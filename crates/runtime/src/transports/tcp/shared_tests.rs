use super::super::tests::{Side, pair, until};
use super::*;
use crate::transports::memory::{SEGMENT_WORDS, TABLE_AT};
use proptest::prelude::*;
use quintet_replica::put_ranges;
use std::time::Duration;

const BULK: usize = Lane::Bulk as usize;

fn together(root: &std::path::Path) -> (Side, Side) {
    let (mut a, mut b) = pair(root, |_| {});
    a.tcp.use_memory();
    b.tcp.use_memory();
    until("memory is shared", &mut [&mut a, &mut b], |s| {
        s[0].tcp.by_memory(ReplicaId(1)) && s[1].tcp.by_memory(ReplicaId(0))
    });
    (a, b)
}

fn put(side: &mut Side, to: u16, ranges: &[(u32, &[u64])]) {
    let to = [ReplicaId(to)].into_iter().collect();
    let now = side.now();
    let left = side.tcp.put(to, &put_ranges(ranges), now);
    assert!(left.is_empty(), "not by memory");
}

#[test]
fn frames_of_all_sizes_arrive_in_order_through_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = together(directory.path());
    let lengths = [1, 40, 5_000, 70_000, 3_000_000, 2, 300_000];
    let frames =
        || lengths.map(|length: usize| -> Vec<u8> { (0..length).map(|i| i as u8).collect() });
    for lane in [Lane::Control, Lane::Bulk] {
        a.frames.clear();
        b.frames.clear();
        for frame in frames() {
            a.send(1, lane, &frame);
            b.send(0, lane, &frame);
        }
        until("all are there", &mut [&mut a, &mut b], |s| {
            s.iter().all(|s| s.frames.len() == lengths.len())
        });
        for side in [&a, &b] {
            for (got, sent) in side.frames.iter().zip(frames()) {
                assert!(got.1 == sent);
            }
        }
    }
    for side in [&a, &b] {
        let counted = side.tcp.memory_counters();
        assert_eq!((counted.frames_in, counted.frames_out), (14, 14));
        assert_eq!(side.links.len(), 1, "{:?}", side.links);
    }
}

#[test]
fn newest_word_wins_and_arrives_before_later_frame() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = together(directory.path());
    for value in 1..=1000 {
        put(&mut a, 1, &[(5, &[value, value + 1]), (9, &[value])]);
    }
    a.send(1, Lane::Control, b"after it");
    until("the frame is there", &mut [&mut a, &mut b], |s| {
        !s[1].frames.is_empty()
    });
    let [(from, ranges)] = &b.puts[..] else {
        panic!("{} puts", b.puts.len());
    };
    assert_eq!(*from, ReplicaId(0));
    let newest = put_ranges(&[(5, &[1000, 1001]), (9, &[1000])]);
    assert!(ranges.chunks(newest.len()).all(|range| range == newest));
}

#[test]
fn peer_without_shared_memory_uses_tcp() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    a.tcp.use_memory();
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
    a.send(1, Lane::Bulk, b"by tcp");
    b.send(0, Lane::Control, b"by tcp");
    until("there", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| s.frames.len() == 1)
    });
    let to = [ReplicaId(1)].into_iter().collect();
    let now = a.now();
    assert_eq!(a.tcp.put(to, &put_ranges(&[(0, &[1])]), now), to);
    assert!(!a.tcp.by_memory(ReplicaId(1)));
}

#[test]
fn row_that_is_longer_than_table_goes_in_frames_from_then_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, _b) = together(directory.path());
    put(&mut a, 1, &[(0, &[1])]);
    let to = [ReplicaId(1)].into_iter().collect();
    let now = a.now();
    assert_eq!(a.tcp.put(to, &put_ranges(&[(u32::MAX, &[1])]), now), to);
    assert_eq!(a.tcp.put(to, &put_ranges(&[(0, &[2])]), now), to);
}

#[test]
fn sleeper_is_woken_once_and_misses_no_item() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = together(directory.path());
    until("quiet", &mut [&mut a, &mut b], |s| !s[1].tcp.busy());
    assert!(b.tcp.park());
    for _ in 0..2 {
        a.send(1, Lane::Control, b"good morning");
        let now = a.now();
        a.tcp.flush(now);
    }
    assert_eq!(a.tcp.memory_counters().wakes, 1);
    assert!(!b.tcp.park(), "there is something");
    b.tcp.awake();
    put(&mut a, 1, &[(0, &[1])]);
    let now = a.now();
    a.tcp.flush(now);
    assert_eq!(a.tcp.memory_counters().wakes, 1, "no thread sleeps");
    // The writer sleeps, too, until there is room in the ring.
    b.turn();
    b.frames.clear();
    for _ in 0..40 {
        a.send(1, Lane::Bulk, &[1; LENT_MIN - 1]);
    }
    let now = a.now();
    a.tcp.flush(now);
    assert!(a.tcp.park(), "the ring is full");
    b.turn();
    let wakes = b.tcp.memory_counters().wakes;
    assert!(wakes > 0);
    until("all of it", &mut [&mut a, &mut b], |s| {
        s[1].frames.len() == 40
    });
    // Or until so much of what it has lent has been read that protocols may continue.
    b.frames.clear();
    for _ in 0..40 {
        a.send(1, Lane::Bulk, &vec![1; 1 << 20]);
    }
    let now = a.now();
    a.tcp.flush(now);
    assert_eq!(a.tcp.queued_in_memory(ReplicaId(1), Lane::Bulk) >> 20, 40);
    assert!(a.tcp.park(), "nothing has been read");
    b.turn();
    assert_eq!(b.tcp.memory_counters().wakes, wakes + 1);
    assert!(!a.tcp.park(), "something has");
    until("all of it", &mut [&mut a, &mut b], |s| {
        s[1].frames.len() == 40 && !s[0].tcp.busy()
    });
    let now = a.now();
    a.tcp.flush(now);
    assert_eq!(a.tcp.queued_in_memory(ReplicaId(1), Lane::Bulk), 0);
}

#[test]
fn remote_large_payloads_are_intact_or_link_breaks() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = together(directory.path());
    let sent: Vec<Vec<u8>> = (0..5u8)
        .map(|i| vec![i; (1 << 20) * usize::from(i) + 200_000])
        .collect();
    for frame in &sent {
        a.send(1, Lane::Bulk, frame);
        a.send(1, Lane::Bulk, b"behind it");
    }
    until("all are there", &mut [&mut a, &mut b], |s| {
        s[1].frames.len() == 10
    });
    for (pair, sent) in b.frames.chunks(2).zip(&sent) {
        assert!(pair[0].1 == *sent && pair[1].1 == b"behind it"[..]);
    }
    let counted = b.tcp.memory_counters();
    assert_eq!((counted.frames_in, counted.borrowed), (10, 5));
    assert!(a.tcp.memory_counters().bytes_out < 1000);

    // The writer's link breaks while the reader is in the middle of one.
    b.frames.clear();
    a.send(1, Lane::Bulk, &vec![7; 9 << 20]);
    let now = a.now();
    a.tcp.flush(now);
    b.turn();
    assert!(b.frames.is_empty() && b.tcp.busy(), "in the middle");
    a.tcp.drop_memory(1);
    until("the other has noticed", &mut [&mut a, &mut b], |s| {
        s[1].tcp.counters().frames_bad == 1
    });
    assert!(b.frames.is_empty(), "nothing of it was handed on");
}

#[test]
fn mad_writer_costs_its_link_which_comes_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = together(directory.path());
    for (round, at) in [TABLE_AT, RingPlace::of(Lane::Bulk).head]
        .into_iter()
        .enumerate()
    {
        let memories = a.tcp.memories.as_ref().expect("in use");
        let outbound = memories.ways[1].outbound.as_ref().expect("open");
        outbound
            .memory
            .word(at + usize::from(at == TABLE_AT))
            .store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
        until("it comes back", &mut [&mut a, &mut b], |s| {
            let up = |side: &Side| {
                side.links
                    .iter()
                    .filter(|(_, link)| matches!(link, Link::Up { .. }))
                    .count()
            };
            s.iter().all(|s| up(s) == round + 2) && s[0].tcp.by_memory(ReplicaId(1))
        });
        assert_eq!(b.tcp.counters().frames_bad, round as u64 + 1);
    }
    a.ahead += Duration::from_secs(1);
    a.send(1, Lane::Control, b"well again");
    until("there", &mut [&mut a, &mut b], |s| s[1].frames.len() == 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Any contents of the memory give an error or bytes, never a panic, and never an endless loop.
    #[test]
    fn any_memory_is_read(words in prop::collection::vec((0..SEGMENT_WORDS, word()), 1..40)) {
        let (memory, _file, token) = Segment::create(77).expect("memory");
        let mut outbound = Outbound::new(Segment::open(token).expect("opens"), _file, token);
        let mut inbound = Inbound::new(memory, token.number, None);
        inbound.open = [true; 2];
        for (at, word) in words {
            // The words that count something more often than the others.
            let at = if at % 2 == 0 { at % 256 } else { at };
            inbound.memory.word(at).store(word, std::sync::atomic::Ordering::Relaxed);
            let _ = inbound.may_read();
            let _ = inbound.table.poll();
            for lane in super::super::LANES {
                if let Ok(ready) = inbound.rings[lane as usize].ready() {
                    let _ = inbound.read(lane, ready, |_, _| {});
                }
            }
            outbound.queues[BULK].push_raw(&[7; 100]);
            let _ = outbound.table.put(&put_ranges(&[(3, &[1, 2])]));
            let _ = outbound.write();
        }
    }
}

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![0..20u64, 0..1_000_000u64, any::<u64>()]
}

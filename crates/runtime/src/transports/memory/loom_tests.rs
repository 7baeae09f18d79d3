//! The same code in every order that the memory model allows, up to a number of preemptions:
//! `LOOM_MAX_PREEMPTIONS`, 2 here and more in `just loom`. Weakened orders must be found out.

use super::{
    Lender, TableReader, TableWriter,
    lent::{give_back, withdraw},
};
use super::{Memory, Poll, Put, RingPlace, RingReader, RingWriter, SharedWaker, TablePlace, Word};
use bytes::{BufMut, Bytes, BytesMut};
use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicU64, fence},
    },
    thread,
};
use quintet_replica::{Lane, put_ranges};
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// The memory orders that a test leaves out of the code's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weaker {
    Nothing,
    /// Stores that hand something over.
    Stores,
    /// Loads that take it.
    Loads,
    Fences,
}

struct ModelWord(AtomicU64, Weaker);

impl Word for ModelWord {
    fn load(&self, order: Ordering) -> u64 {
        let weak = self.1 == Weaker::Loads && order == Acquire;
        self.0.load(if weak { Relaxed } else { order })
    }

    fn store(&self, value: u64, order: Ordering) {
        let weak = self.1 == Weaker::Stores && order == Release;
        self.0.store(value, if weak { Relaxed } else { order });
    }
}

#[derive(Clone)]
struct Model(Arc<(Vec<ModelWord>, Vec<UnsafeCell<u8>>, Weaker)>);

impl Model {
    fn new(words: usize, bytes: usize, weaker: Weaker) -> Self {
        let word = |_| ModelWord(AtomicU64::new(0), weaker);
        let words = (0..words).map(word).collect();
        let bytes = (0..bytes).map(|_| UnsafeCell::new(0)).collect();
        Self(Arc::new((words, bytes, weaker)))
    }
}

impl Memory for Model {
    type Word = ModelWord;

    fn word(&self, index: usize) -> &ModelWord {
        &self.0.0[index]
    }

    fn copy_in(&self, at: usize, bytes: &[u8]) {
        for (cell, byte) in self.0.1[at..].iter().zip(bytes) {
            // SAFETY: loom reports another access at the same time.
            cell.with_mut(|cell| unsafe { *cell = *byte });
        }
    }

    fn copy_out(&self, at: usize, length: usize, buffer: &mut BytesMut) {
        for cell in &self.0.1[at..at + length] {
            // SAFETY: as above.
            buffer.put_u8(cell.with(|cell| unsafe { *cell }));
        }
    }

    fn fence(&self, order: Ordering) {
        if self.0.2 != Weaker::Fences {
            fence(order);
        }
    }
}

fn every_order(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = model.preemption_bound.or(Some(2));
    model.check(run);
}

const RING: RingPlace = RingPlace {
    head: 0,
    tail: 1,
    bytes_at: 0,
    bytes: 2,
    piece: 2,
};

fn ring(weaker: Weaker) {
    every_order(move || {
        let memory = Model::new(2, 2, weaker);
        let mut writer = RingWriter::new(memory.clone(), RING);
        let mut reader = RingReader::new(memory, RING);
        let writes = thread::spawn(move || {
            let mut next = 0;
            for _ in 0..2 {
                let left: Vec<u8> = (next + 1..4).collect();
                next += writer.push(&left).expect("a sane reader") as u8;
            }
        });
        let mut got = BytesMut::new();
        for _ in 0..3 {
            let ready = reader.ready().expect("a sane writer");
            reader.pop(ready, &mut got);
        }
        assert!([1, 2, 3].starts_with(&got), "{got:?}");
        writes.join().expect("it has written");
    });
}

#[test]
fn ring_hands_over_what_was_written_and_only_that() {
    ring(Weaker::Nothing);
}

#[test]
#[should_panic]
fn ring_whose_stores_hand_nothing_over_is_found_out() {
    ring(Weaker::Stores);
}

#[test]
#[should_panic]
fn ring_whose_loads_take_nothing_over_is_found_out() {
    ring(Weaker::Loads);
}

/// A vector of two words, guarded by the one after it.
fn table(weaker: Weaker) {
    const TABLE: TablePlace = TablePlace {
        begun: 0,
        done: 1,
        taken: 2,
        log: (3, 4),
        row: (7, 3),
    };
    every_order(move || {
        let memory = Model::new(10, 0, weaker);
        let mut writer = TableWriter::new(memory.clone(), TABLE);
        let mut reader = TableReader::new(memory, TABLE);
        let writes = thread::spawn(move || {
            for value in 1..=2 {
                let ranges = put_ranges(&[(0, &[value, value]), (2, &[value])]);
                assert_eq!(writer.put(&ranges), Ok(Put::Done));
            }
        });
        let mut row = [0; 3];
        for _ in 0..2 {
            if let Poll::Put(put) = reader.poll().expect("a sane writer") {
                for (offset, words) in super::table::ranges(&put) {
                    for (word, bytes) in row[offset..].iter_mut().zip(words.as_chunks().0) {
                        *word = u64::from_le_bytes(*bytes);
                    }
                }
                let [low, high, guard] = row;
                assert!(low == high && low == guard, "torn: {row:?}");
            }
        }
        writes.join().expect("it has written");
    });
}

#[test]
fn guarded_vector_is_never_seen_torn() {
    table(Weaker::Nothing);
}

#[test]
#[should_panic(expected = "torn")]
fn vector_whose_guards_are_not_kept_apart_from_it_is_seen_torn() {
    table(Weaker::Fences);
}

#[test]
#[should_panic]
fn vector_whose_guard_hands_nothing_over_is_found_out() {
    table(Weaker::Stores);
}

fn waker(weaker: Weaker) {
    every_order(move || {
        let memory = Model::new(3, 2, weaker);
        let waker = SharedWaker(2);
        let mut writer = RingWriter::new(memory.clone(), RING);
        let reader = RingReader::new(memory.clone(), RING);
        let other = memory.clone();
        let writes = thread::spawn(move || {
            assert_eq!(writer.push(&[1]), Ok(1));
            waker.wanted(&other)
        });
        waker.listen(&memory);
        let sleeps = reader.ready() == Ok(0);
        let woken = writes.join().expect("it has written");
        assert!(woken || !sleeps, "slept over it");
    });
}

#[test]
fn no_reader_sleeps_after_write() {
    waker(Weaker::Nothing);
}

#[test]
#[should_panic(expected = "slept over it")]
fn waker_without_fences_misses_wakeup() {
    waker(Weaker::Fences);
}

/// The payload is a word of the model that the writer changes as soon as it may.
fn lending(weaker: Weaker, withdraws: bool) {
    const PAYLOAD: usize = super::LENT_TAKEN_AT + 2;
    every_order(move || {
        let memory = Model::new(PAYLOAD + 1, 2, weaker);
        let other = memory.clone();
        let mut lender = Lender::new(memory.clone(), Lane::Control);
        let mut writer = RingWriter::new(memory.clone(), RING);
        memory.word(PAYLOAD).store(1, Relaxed);
        lender.keep(Bytes::from_static(b"the payload"));
        let writes = thread::spawn(move || {
            writer.push(&[1]).expect("a sane reader");
            if withdraws {
                withdraw(&memory);
            } else {
                lender.let_go().expect("a sane reader");
            }
            if withdraws || lender.bytes() == 0 {
                memory.word(PAYLOAD).store(2, Relaxed);
            }
        });
        let reader = RingReader::new(other.clone(), RING);
        if reader.ready() == Ok(1) {
            let read = other.word(PAYLOAD).load(Relaxed);
            if give_back(&other, super::LENT_TAKEN_AT, 1).is_ok() {
                assert_eq!(read, 1, "not what was lent");
            }
        }
        writes.join().expect("it has written");
    });
}

#[test]
fn lent_payload_stays_until_read() {
    lending(Weaker::Nothing, false);
}

#[test]
fn read_after_withdrawal_does_not_count() {
    lending(Weaker::Nothing, true);
}

#[test]
#[should_panic(expected = "not what was lent")]
fn withdrawal_without_fences_is_overlooked() {
    lending(Weaker::Fences, true);
}

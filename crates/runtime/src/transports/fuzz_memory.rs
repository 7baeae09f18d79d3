//! For fuzzing: the ends of rings, table and loans in memory that anybody has written to.

use super::{
    memory::{
        Lender, Loan, Memory, Poll, RingPlace, RingReader, RingWriter, Segment, TablePlace,
        TableReader, TableWriter, Word,
    },
    queue::Incoming,
};
use quintet_replica::{Bytes, Lane, Reader};
use std::sync::{Arc, atomic::Ordering};

/// A writer of shared memory that has lost its way, or was stopped in the middle of something: the
/// bytes say what stands in the words and when the other ends look. A reader and a writer beside it
/// accept valid words, and report an error for everything else.
pub(crate) fn run(bytes: &[u8]) {
    let Ok((segment, _file, _token)) = Segment::create(1) else {
        return;
    };
    let memory = Arc::new(segment);
    let mut rest = bytes;
    let mut byte = move || {
        let (first, behind) = rest.split_first()?;
        rest = behind;
        Some(*first)
    };
    let place = RingPlace::of(Lane::Control);
    let table = TablePlace::SEGMENT;
    let mut ring = RingReader::new(memory.clone(), place);
    let mut writer = RingWriter::new(memory.clone(), RingPlace::of(Lane::Bulk));
    let mut row = TableReader::new(memory.clone(), table);
    let mut own_row = TableWriter::new(memory.clone(), table);
    let mut lender = Lender::new(memory.clone(), Lane::Bulk);
    let mut incoming = Incoming::of_memory();
    let _ = Loan::new(Bytes::copy_from_slice(bytes), 1 << 20, 1 << 10);
    while let (Some(op), Some(value)) = (byte(), byte()) {
        let number = match value % 8 {
            0 => u64::from(value / 8),
            1 => place.bytes as u64 + u64::from(value / 8),
            2 => u64::MAX - u64::from(value / 8),
            3 => table.log.1 as u64 + u64::from(value / 8),
            4 => (table.row.1 as u64) << 32 | u64::from(value / 8),
            5 => u64::from(value / 8) << 32 | table.row.1 as u64,
            6 => u64::from(value / 8) << 32 | u64::from(value / 8),
            _ => 1 << (value / 8),
        };
        let words = [
            place.head,
            place.tail,
            RingPlace::of(Lane::Bulk).head,
            RingPlace::of(Lane::Bulk).tail,
            table.begun,
            table.done,
            table.taken,
            table.log.0,
            table.log.0 + 1,
            table.row.0,
            table.row.0 + table.row.1 - 1,
        ];
        let sensible = match op % 8 {
            0 | 1 => {
                let word = words[usize::from(op / 8) % words.len()];
                Word::store(memory.word(word), number, Ordering::Release);
                true
            }
            2 => {
                let at = place.bytes_at + usize::from(value) * 64;
                memory.copy_in(at, &bytes[..bytes.len().min(64)]);
                true
            }
            3 => match ring.ready() {
                Ok(ready) => {
                    let (buffer, wanted) = incoming.wants();
                    let before = buffer.len();
                    let count = ring.pop(wanted.min(ready), buffer);
                    assert!(count <= ready && buffer.len() == before + count);
                    incoming.next(Lane::Control).is_ok()
                }
                Err(_) => false,
            },
            4 => writer.push(bytes).is_ok(),
            5 => match row.poll() {
                Ok(Poll::Put(ranges)) => {
                    let mut reader = Reader::new(ranges);
                    while reader.remaining() > 0 {
                        let offset = reader.u32("offset").expect("whole") as usize;
                        let count = reader.length(8, "count").expect("whole");
                        assert!(offset + count <= table.row.1, "within the row");
                        reader.raw(8 * count, "words").expect("whole");
                    }
                    true
                }
                polled => polled.is_ok(),
            },
            6 => {
                let words = [number, 7];
                let ranges = quintet_replica::put_ranges(&[(u32::from(value), &words)]);
                own_row.put(&ranges).is_ok()
            }
            _ => {
                lender.keep(Bytes::from_static(b"lent"));
                lender.let_go().is_ok()
            }
        };
        if !sensible {
            // The link is given up.
            return;
        }
    }
}

/// Scripts to begin from: what is written is read.
pub(crate) fn samples() -> Vec<Vec<u8>> {
    let fill = |word: u8, value: u8| [8 * word, value];
    vec![
        [&[2, 0][..], &fill(0, 120), &[3, 0, 3, 0, 3, 0]].concat(),
        [
            &fill(7, 38)[..],
            &fill(4, 8),
            &fill(5, 8),
            &[5, 0, 6, 1, 5, 0],
        ]
        .concat(),
        [&[4, 0][..], &fill(3, 16), &[4, 0, 7, 0, 7, 0]].concat(),
    ]
}

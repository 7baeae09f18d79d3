//! How long the store takes for a command, without any socket.
//!
//! ```text
//!   cargo run --release -p quintet-store --example speed
//! ```

use quintet_replica::{At, CommandId, CommandTime, Position, SessionId, StateMachine};
use quintet_store::{Mode, RequestBuilder, Store, lookup};
use std::time::Instant;

const KEYS: u64 = 10_000;
const ROUNDS: u64 = 2_000_000;
const VALUE: [u8; 128] = [b'x'; 128];

fn at(sequence: u64) -> At {
    At {
        position: Position(sequence),
        time: CommandTime(1_800_000_000_000_000_000 + sequence),
        id: CommandId {
            session: SessionId {
                owner: 1,
                number: 1,
            },
            sequence,
        },
    }
}

/// A key that the sequence number draws at random.
fn key(sequence: u64) -> Vec<u8> {
    let drawn = sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    format!("key:{:012}", drawn % KEYS).into_bytes()
}

fn measure(name: &str, store: &mut Store, pipeline: u64, line: &dyn Fn(u64) -> Vec<Vec<u8>>) {
    let requests: Vec<Vec<u8>> = (0..20_000)
        .map(|number| {
            let mut request = RequestBuilder::new();
            for place in 0..pipeline {
                let words = line(number * pipeline + place);
                let args: Vec<&[u8]> = words[1..].iter().map(Vec::as_slice).collect();
                if let Some(spec) = lookup(&words[0]) {
                    request.command(spec, Mode::default(), &args);
                }
            }
            request.into_bytes()
        })
        .collect();
    let mut reply = Vec::new();
    let mut best = f64::MAX;
    for _ in 0..3 {
        let started = Instant::now();
        let mut executed = 0;
        for request in requests.iter().cycle() {
            if executed >= ROUNDS {
                break;
            }
            executed += pipeline;
            reply.clear();
            let at = at(executed);
            store.tick(&at);
            store.apply(&at, request, &mut reply);
        }
        best = best.min(started.elapsed().as_nanos() as f64 / executed as f64);
    }
    println!("{name:24} pipeline {pipeline:3}  {best:7.1} ns a command");
}

fn words(words: &[&[u8]]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.to_vec()).collect()
}

fn main() {
    let mut store = Store::default();
    for pipeline in [1, 16] {
        measure("SET of 128 bytes", &mut store, pipeline, &|number| {
            words(&[b"SET", &key(number), &VALUE])
        });
        measure("GET of 128 bytes", &mut store, pipeline, &|number| {
            words(&[b"GET", &key(number)])
        });
        measure("SET with an expiry", &mut store, pipeline, &|number| {
            words(&[b"SET", &key(number), &VALUE, b"EX", b"1000"])
        });
        measure("INCR", &mut store, pipeline, &|number| {
            words(&[b"INCR", &[b"n", key(number).as_slice()].concat()])
        });
        measure("HSET", &mut store, pipeline, &|number| {
            words(&[b"HSET", b"hash", &key(number), &VALUE])
        });
        measure("ZADD", &mut store, pipeline, &|number| {
            words(&[
                b"ZADD",
                b"sorted",
                (number % 997).to_string().as_bytes(),
                &key(number),
            ])
        });
        measure("RPUSH, LPOP", &mut store, pipeline, &|number| {
            if number % 2 == 0 {
                words(&[b"RPUSH", b"list", &VALUE])
            } else {
                words(&[b"LPOP", b"list"])
            }
        });
    }
    large_keyspace();
}

/// Filling a large store and taking a snapshot of it: the longest single pause counts.
fn large_keyspace() {
    let mut store = Store::default();
    let mut reply = Vec::new();
    let mut request = RequestBuilder::new();
    let mut longest = 0;
    let count = 2_000_000u64;
    let started = Instant::now();
    let Some(set) = lookup(b"set") else { return };
    for number in 0..count {
        request.clear();
        request.command(
            set,
            Mode::default(),
            &[format!("key:{number}").as_bytes(), &VALUE],
        );
        reply.clear();
        let before = Instant::now();
        store.apply(&at(number), request.as_bytes(), &mut reply);
        longest = longest.max(before.elapsed().as_micros());
    }
    let each = started.elapsed().as_nanos() as u64 / count;
    println!(
        "{count} new keys: {each} ns each, longest {longest} us, {} MB",
        store.memory() >> 20
    );
    let started = Instant::now();
    store.begin_snapshot();
    let (mut bytes, mut longest) = (0, 0);
    let mut chunk = Vec::new();
    loop {
        chunk.clear();
        let before = Instant::now();
        let progress = store.snapshot_chunk(&mut chunk, 256 << 10);
        longest = longest.max(before.elapsed().as_micros());
        bytes += chunk.len();
        if progress == quintet_replica::SnapshotProgress::Done {
            break;
        }
    }
    let total = started.elapsed().as_millis();
    println!(
        "snapshot of {} MB: {total} ms, longest chunk {longest} us",
        bytes >> 20
    );
}

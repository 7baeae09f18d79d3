//! The cost of keeping the past: a SET, and an HSET of a large hash, with and without it; and a GET
//! and an HGET of an earlier time.
//!
//! ```text
//!   cargo bench -p quintet-store --bench past_cost [-- KEYS VERSIONS]
//! ```

#![allow(clippy::unwrap_used, reason = "a failure here is a failed run")]

use quintet_replica::{At, CommandId, CommandTime, PastAnswer, Position, SessionId, StateMachine};
use quintet_store::{Mode, Random, RequestBuilder, Store, lookup};
use std::time::Instant;

const BASE: u64 = 1_800_000_000_000_000_000;
const VALUE: [u8; 128] = [b'v'; 128];
/// Requests of a batch, which share a tick.
const BATCH: u64 = 50;
const MODE: Mode = Mode {
    resp3: false,
    database: 0,
};

fn at(sequence: u64) -> At {
    At {
        position: Position(sequence),
        time: CommandTime(BASE + sequence / BATCH * 1_000_000),
        id: CommandId {
            session: SessionId {
                owner: 9,
                number: 3,
            },
            sequence,
        },
    }
}

fn run(store: &mut Store, sequence: u64, words: &[&[u8]], reply: &mut Vec<u8>) {
    let mut request = RequestBuilder::new();
    request.command(lookup(words[0]).unwrap(), MODE, &words[1..]);
    let at = at(sequence);
    if sequence.is_multiple_of(BATCH) {
        store.tick(&at);
    }
    reply.clear();
    store.apply(&at, request.as_bytes(), reply);
}

fn key(number: u64) -> String {
    format!("key:{number:012}")
}

/// Sets random keys; nanoseconds of each.
fn sets(store: &mut Store, keys: u64, from: u64, count: u64) -> f64 {
    let mut random = Random::new(from);
    let mut reply = Vec::new();
    let begun = Instant::now();
    for sequence in from..from + count {
        let key = key(random.bits() % keys);
        run(
            store,
            sequence,
            &[b"SET", key.as_bytes(), &VALUE],
            &mut reply,
        );
    }
    begun.elapsed().as_nanos() as f64 / count as f64
}

/// The hash with all keys as its fields.
const HASH: &[u8] = b"hash";

/// Sets random fields of one hash; nanoseconds of each.
fn hash_sets(store: &mut Store, keys: u64, from: u64, count: u64) -> f64 {
    let mut random = Random::new(from);
    let mut reply = Vec::new();
    let begun = Instant::now();
    for sequence in from..from + count {
        let field = key(random.bits() % keys);
        let words: [&[u8]; 4] = [b"HSET", HASH, field.as_bytes(), &VALUE];
        run(store, sequence, &words, &mut reply);
    }
    begun.elapsed().as_nanos() as f64 / count as f64
}

/// Microseconds of reads of random keys, or fields, at random times from one request on.
fn reads(store: &Store, keys: u64, begun: u64, next: u64, is_field: bool) -> (f64, f64) {
    let mut random = Random::new(7);
    let mut reply = Vec::new();
    let mut times: Vec<f64> = (0..20_000)
        .map(|_| {
            let when = at(begun + random.bits() % (next - begun)).time.0 / 1_000_000;
            let (when, key) = (when.to_string(), key(random.bits() % keys));
            let mut request = RequestBuilder::new();
            let words: [&[u8]; 4] = [when.as_bytes(), b"HGET", HASH, key.as_bytes()];
            let get: [&[u8]; 3] = [when.as_bytes(), b"GET", key.as_bytes()];
            let words = if is_field { &words[..] } else { &get[..] };
            request.command(lookup(b"QUINTET.AT").unwrap(), MODE, words);
            reply.clear();
            let closed = at(next + BATCH);
            store.begin_reads();
            let begun = Instant::now();
            let answer = store.query_at(&closed, request.as_bytes(), &mut reply);
            let told = reply.starts_with(b"$128");
            assert!(answer == PastAnswer::Done && told, "{reply:?}");
            begun.elapsed().as_nanos() as f64 / 1000.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn main() {
    let numbers: Vec<u64> = std::env::args()
        .filter_map(|arg| arg.parse().ok())
        .collect();
    let keys = numbers.first().copied().unwrap_or(100_000);
    let versions = numbers.get(1).copied().unwrap_or(10);
    let mut store = Store::default();
    let mut reply = Vec::new();
    for number in 0..keys {
        let key = key(number);
        run(
            &mut store,
            number + 1,
            &[b"SET", key.as_bytes(), &VALUE],
            &mut reply,
        );
    }
    let count = 1_000_000;
    let mut next = keys + 1;
    let retain = |store: &mut Store, next: u64, bytes: u64| {
        let bytes = bytes.to_string();
        let words: [&[u8]; 3] = [b"QUINTET.RETAIN", b"BYTES", bytes.as_bytes()];
        run(store, next, &words, &mut Vec::new());
    };
    for round in 0..3 {
        retain(&mut store, next, 0);
        let off = sets(&mut store, keys, next + 1, count);
        next += count + 1;
        retain(&mut store, next, 100 << 20);
        let on = sets(&mut store, keys, next + 1, count);
        next += count + 1;
        println!("round {round}: SET {off:.0} ns without the past, {on:.0} ns with it");
    }
    let memory = store.memory();
    retain(&mut store, next, 0);
    retain(&mut store, next + 1, 1 << 40);
    next += 2;
    let begun = next;
    sets(&mut store, keys, next, keys * versions);
    next += keys * versions;
    println!(
        "{} MB with 100 MiB of the past; {} MB with {} changes",
        memory >> 20,
        store.memory() >> 20,
        keys * versions
    );
    let (median, high) = reads(&store, keys, begun, next, false);
    println!(
        "QUINTET.AT t GET k: {median:.1} us at the median, {high:.1} us at the 99th percentile"
    );
    retain(&mut store, next, 0);
    for number in 0..keys {
        let field = key(number);
        let words: [&[u8]; 4] = [b"HSET", HASH, field.as_bytes(), &VALUE];
        run(&mut store, next + number, &words, &mut reply);
    }
    next += keys;
    for round in 0..3 {
        let off = hash_sets(&mut store, keys, next + 1, 300_000);
        retain(&mut store, next + 300_001, 100 << 20);
        next += 300_001;
        let on = hash_sets(&mut store, keys, next + 1, 300_000);
        println!(
            "round {round}: HSET of {keys} fields {off:.0} ns without the past, {on:.0} ns with it"
        );
        next += 300_001;
        if round < 2 {
            retain(&mut store, next, 0);
        }
    }
    for changes in [1000, 30_000] {
        let begun = next;
        hash_sets(&mut store, keys, begun + 1, changes);
        next += changes + 1;
        let (median, high) = reads(&store, keys, begun, next, true);
        println!(
            "QUINTET.AT t HGET k f, up to {changes} changes ago: {median:.1} us at the median, \
             {high:.1} us at the 99th percentile"
        );
    }
}

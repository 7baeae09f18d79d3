//! Digests of the store taken in steps: what a step costs, and what changes meanwhile.
//!
//! ```text
//!   begin_digest ── step ── SET, APPEND, FLUSHALL … ── step ──► digest of the beginning
//! ```

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use quintet_replica::{
    At, CommandId, CommandTime, DigestBegun, Position, SessionId, SnapshotProgress, StateMachine,
};
use quintet_store::{Mode, RequestBuilder, Store, lookup};

fn run(store: &mut Store, sequence: u64, words: &[&[u8]]) {
    let mut request = RequestBuilder::new();
    let mode = Mode {
        resp3: false,
        database: 0,
    };
    let spec = lookup(words[0]).unwrap();
    request.command(spec, mode, &words[1..]);
    let at = At {
        position: Position(sequence),
        time: CommandTime(1_800_000_000_000_000_000),
        id: CommandId {
            session: SessionId {
                owner: 9,
                number: 3,
            },
            sequence,
        },
    };
    store.tick(&at);
    store.apply(&at, request.as_bytes(), &mut Vec::new());
}

fn filled(keys: u64, value: &[u8]) -> Store {
    let mut store = Store::default();
    for key in 0..keys {
        run(
            &mut store,
            key + 1,
            &[b"SET", format!("key:{key:012}").as_bytes(), value],
        );
    }
    store
}

fn finish(store: &mut Store, budget: usize) -> u128 {
    loop {
        if let Some(digest) = store.digest_step(budget) {
            return digest;
        }
    }
}

#[test]
fn long_string_is_hashed_in_pieces_and_at_once_when_it_changes() {
    let long: Vec<u8> = (0..1_000_000u32).map(|at| (at / 7) as u8).collect();
    let mut store = filled(3, b"v");
    run(&mut store, 10, &[b"SET", b"long", &long]);
    let whole = store.digest();
    store.begin_digest();
    let steps = (1..).find(|_| store.digest_step(100_000) == Some(whole));
    assert!(steps.is_some_and(|steps| steps >= 8), "{steps:?}");
    for changed_after in 0..7 {
        let mut store = filled(3, b"v");
        run(&mut store, 10, &[b"SET", b"long", &long]);
        store.begin_digest();
        for _ in 0..changed_after {
            assert_eq!(store.digest_step(100_000), None);
        }
        run(&mut store, 11, &[b"APPEND", b"long", b"more"]);
        assert_eq!(finish(&mut store, 100_000), whole);
        assert_ne!(store.digest(), whole);
    }
}

#[test]
fn snapshot_and_digest_share_a_database_that_is_emptied() {
    let mut store = filled(2000, b"value");
    let whole = store.digest();
    let mut bytes = Vec::new();
    store.begin_snapshot();
    assert_eq!(
        store.snapshot_chunk(&mut bytes, 10_000),
        SnapshotProgress::More
    );
    store.begin_digest();
    assert_eq!(store.digest_step(1000), None);
    run(&mut store, 5000, &[b"FLUSHALL"]);
    run(&mut store, 5001, &[b"SET", b"new", b"value"]);
    let mut digest = None;
    while store.snapshot_chunk(&mut bytes, 10_000) == SnapshotProgress::More {
        digest = digest.or_else(|| store.digest_step(10_000));
    }
    let digest = digest.unwrap_or_else(|| finish(&mut store, 10_000));
    assert_eq!(digest, whole);
    let mut copy = Store::default();
    copy.begin_restore();
    copy.restore_chunk(&bytes).unwrap();
    copy.finish_restore().unwrap();
    assert_eq!(copy.digest(), whole);
    assert_eq!(copy.entries(), 2000);
}

#[test]
fn abandoned_digest_leaves_nothing_behind() {
    let mut store = filled(2000, b"value");
    store.begin_digest();
    assert_eq!(store.digest_step(1000), None);
    run(&mut store, 5000, &[b"FLUSHALL"]);
    store.abandon_digest();
    assert_eq!(store.digest_step(1 << 30), None);
    let empty = store.digest();
    assert_eq!(store.begin_digest(), DigestBegun::Steps);
    assert_eq!(finish(&mut store, 1), empty);
}

#[test]
fn large_collections_are_hashed_in_steps_or_at_once_on_change() {
    let fill = |store: &mut Store| {
        for at in 0..5000u64 {
            let member = format!("member:{at}");
            let score = at.to_string();
            run(store, at + 1, &[b"SADD", b"set", member.as_bytes()]);
            run(store, at + 1, &[b"RPUSH", b"list", member.as_bytes()]);
            run(store, at + 1, &[b"HSET", b"hash", member.as_bytes(), b"v"]);
            let zadd: [&[u8]; 4] = [b"ZADD", b"sorted", score.as_bytes(), member.as_bytes()];
            run(store, at + 1, &zadd);
        }
    };
    let mut store = Store::default();
    fill(&mut store);
    let whole = store.digest();
    store.begin_digest();
    let steps = (1..).find(|_| store.digest_step(4000) == Some(whole));
    let steps = steps.unwrap();
    assert!(steps > 100, "{steps} steps");
    let changes: [&[&[u8]]; 4] = [
        &[b"SADD", b"set", b"another"],
        &[b"LSET", b"list", b"0", b"another"],
        &[b"HSET", b"hash", b"member:4999", b"another"],
        &[b"ZADD", b"sorted", b"7", b"member:0"],
    ];
    for change in changes {
        let mut digests = vec![whole];
        for after in [0, steps / 8, steps * 3 / 8, steps * 5 / 8, steps * 7 / 8] {
            let mut store = Store::default();
            fill(&mut store);
            store.begin_digest();
            for _ in 0..after {
                assert_eq!(store.digest_step(4000), None);
            }
            run(&mut store, 6000, change);
            assert_eq!(finish(&mut store, 4000), whole);
            digests.push(store.digest());
        }
        assert_ne!(digests[1], whole);
        assert!(digests[1..].iter().all(|digest| *digest == digests[1]));
    }
}

//! Measures how long an ordered walk over expired keys holds a replica's loop, compared with one
//! over live keys.
//!
//! ```text
//!   cargo bench -p quintet-store --bench expired_walk
//! ```

use quintet_replica::{At, CommandId, CommandTime, Position, SessionId, StateMachine};
use quintet_store::{Mode, RequestBuilder, Store, lookup};
use std::time::{Duration, Instant};

const BEGIN: u64 = 1_800_000_000_000_000_000;
const SECOND: u64 = 1_000_000_000;

fn call(store: &mut Store, sequence: u64, time: u64, command: &[&[u8]]) -> Vec<u8> {
    let mut request = RequestBuilder::new();
    let mode = Mode {
        resp3: false,
        database: 0,
    };
    let spec = lookup(command[0]).expect("it is a command");
    request.command(spec, mode, &command[1..]);
    let at = At {
        position: Position(sequence),
        time: CommandTime(time),
        id: CommandId {
            session: SessionId {
                owner: 9,
                number: 3,
            },
            sequence,
        },
    };
    let mut reply = Vec::new();
    store.apply(&at, request.as_bytes(), &mut reply);
    reply
}

/// How long the walk takes while all keys live, then when all have expired, and then once more.
fn walks(keys: u64, value: &[u8], with_snapshot: bool) -> [Duration; 3] {
    let mut store = Store::default();
    for key in 0..keys {
        let name = format!("key:{key:012}");
        let command: &[&[u8]] = &[b"SET", name.as_bytes(), value, b"PX", b"1000"];
        call(&mut store, key + 1, BEGIN, command);
    }
    if with_snapshot {
        store.begin_snapshot();
    }
    let late = BEGIN + 2 * SECOND;
    [BEGIN, late, late].map(|time| {
        let began = Instant::now();
        let reply = call(&mut store, keys + 1, time, &[b"KEYS", b"nothing"]);
        let took = began.elapsed();
        assert_eq!(reply, b"*0\r\n");
        took
    })
}

fn main() {
    let long = [7; 200];
    for (keys, value, with_snapshot) in [
        (1_000_000, &long[..16], false),
        (1_000_000, &long, false),
        (1_000_000, &long[..16], true),
        (4_000_000, &long[..16], false),
    ] {
        let rounds = [(); 3].map(|()| walks(keys, value, with_snapshot));
        let shortest = |walk: usize| rounds.iter().map(|round| round[walk]).min();
        let [alive, expired, again] = [0, 1, 2].map(|walk| shortest(walk).unwrap_or_default());
        let (length, snapshot) = (value.len(), if with_snapshot { ", snapshot" } else { "" });
        println!(
            "{keys} keys, {length} bytes each{snapshot}: alive {alive:?}, expired {expired:?}, \
             again {again:?}"
        );
    }
}

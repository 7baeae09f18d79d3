//! Measures the cost of a digest of the whole state, and the duration of one step of it.
//!
//! ```text
//!   cargo bench -p quintet-store --bench digest_cost
//! ```

use quintet_replica::{At, CommandId, CommandTime, Position, SessionId, StateMachine};
use quintet_store::{Mode, RequestBuilder, Store, lookup};
use std::time::{Duration, Instant};

/// As a node steps.
const BUDGET: usize = 256 * 1024;

fn set(store: &mut Store, sequence: u64, key: &[u8], value: &[u8]) {
    let mut request = RequestBuilder::new();
    let mode = Mode {
        resp3: false,
        database: 0,
    };
    let spec = lookup(b"SET").expect("there is SET");
    request.command(spec, mode, &[key, value]);
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
    store.apply(&at, request.as_bytes(), &mut Vec::new());
}

fn main() {
    let states = [
        (1_000_000, 16),
        (1_000_000, 128),
        (100_000, 4096),
        (40, 16 << 20),
    ];
    for (keys, length) in states {
        let mut store = Store::default();
        for key in 0..keys {
            let name = format!("key:{key:012}");
            set(&mut store, key + 1, name.as_bytes(), &vec![7; length]);
        }
        store.begin_digest();
        let (mut steps, mut longest, mut total) = (0, Duration::ZERO, Duration::ZERO);
        loop {
            let began = Instant::now();
            let done = store.digest_step(BUDGET);
            let took = began.elapsed();
            (steps, longest, total) = (steps + 1, longest.max(took), total + took);
            if done.is_some() {
                break;
            }
        }
        let mean = total / steps;
        println!(
            "{keys} keys, {length} bytes each: {total:?} in {steps} steps, {mean:?} each, at most {longest:?}"
        );
    }
}

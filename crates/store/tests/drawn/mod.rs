//! Random requests, and a store that executes them as the executor does.

#![allow(dead_code, reason = "every test file uses a part of it")]

use proptest::prelude::*;
use quintet_replica::{
    At, CommandId, CommandTime, Position, RestoreError, SessionId, StateMachine,
};
use quintet_store::{Mode, RequestBuilder, Store, lookup};

pub const BASE: u64 = 1_800_000_000_000;

/// One request as the tests draw it.
#[derive(Clone, Debug)]
pub struct Step {
    /// Milliseconds since the step before.
    pub later: u64,
    pub database: u8,
    pub resp3: bool,
    pub transaction: bool,
    pub commands: Vec<Vec<String>>,
}

pub fn at(sequence: u64, milliseconds: u64) -> At {
    At {
        position: Position(sequence),
        time: CommandTime(milliseconds * 1_000_000),
        id: CommandId {
            session: SessionId {
                owner: 9,
                number: 3,
            },
            sequence,
        },
    }
}

pub fn add(builder: &mut RequestBuilder, mode: Mode, words: &[String]) {
    let spec = lookup(words[0].as_bytes()).unwrap();
    let args: Vec<&[u8]> = words[1..].iter().map(|word| word.as_bytes()).collect();
    if spec.arity_fits(args.len()) {
        builder.command(spec, mode, &args);
    }
}

pub fn payload(step: &Step) -> Vec<u8> {
    let mode = Mode {
        resp3: step.resp3,
        database: step.database,
    };
    let mut request = RequestBuilder::new();
    let mut queued = RequestBuilder::new();
    let into = if step.transaction {
        &mut queued
    } else {
        &mut request
    };
    for words in &step.commands {
        add(into, mode, words);
    }
    if step.transaction {
        request.transaction(mode, &[], &queued);
    }
    request.into_bytes()
}

/// Executes a step as the executor does: first the tick, then the request.
pub fn execute(store: &mut Store, sequence: u64, now: u64, step: &Step) -> Vec<u8> {
    let at = at(sequence, now);
    let mut reply = Vec::new();
    store.tick(&at);
    store.apply(&at, &payload(step), &mut reply);
    reply
}

pub fn restore(bytes: &[u8], cuts: usize) -> Store {
    let mut store = Store::default();
    store.begin_restore();
    for chunk in bytes.chunks(cuts.max(1)) {
        store.restore_chunk(chunk).unwrap();
    }
    store.finish_restore().unwrap();
    read_back(bytes, cuts).unwrap();
    store
}

/// Reads a state without keeping it.
pub fn read_back(bytes: &[u8], cuts: usize) -> Result<(), RestoreError> {
    let mut check = Store::default().state_check().unwrap();
    check.begin();
    for chunk in bytes.chunks(cuts.max(1)) {
        check.chunk(chunk)?;
    }
    check.finish()
}

pub fn word(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(words).prop_map(str::to_owned)
}

pub fn key() -> impl Strategy<Value = String> {
    word(&[
        "a",
        "b",
        "c",
        "d",
        "e",
        "a key that is longer than what is kept in place",
    ])
}

pub fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        (-20i64..20).prop_map(|number| number.to_string()),
        "[a-f]{0,6}",
        Just("x".repeat(100)),
        Just("y".repeat(600)),
    ]
}

/// Longer than a slot of the log that holds the past.
pub fn long_text() -> impl Strategy<Value = String> {
    (60_000usize..200_000).prop_map(|length| "z".repeat(length))
}

pub fn command() -> impl Strategy<Value = Vec<String>> {
    let time =
        || prop_oneof![Just("1"), Just("20"), Just("300"), Just("5000")].prop_map(str::to_owned);
    let one = word(&[
        "GET",
        "TTL",
        "PTTL",
        "TYPE",
        "DEL",
        "INCR",
        "DECR",
        "GETDEL",
        "GETEX",
        "PERSIST",
        "LLEN",
        "LPOP",
        "RPOP",
        "SMEMBERS",
        "SPOP",
        "SRANDMEMBER",
        "SCARD",
        "HGETALL",
        "HLEN",
        "ZCARD",
        "ZPOPMIN",
        "ZPOPMAX",
        "DUMP",
        "EXPIRETIME",
        "HRANDFIELD",
        "ZRANDMEMBER",
        "STRLEN",
    ]);
    let two = word(&[
        "SETNX",
        "GETSET",
        "APPEND",
        "INCRBY",
        "LPUSH",
        "RPUSH",
        "SADD",
        "SREM",
        "SISMEMBER",
        "HGET",
        "HDEL",
        "ZSCORE",
        "ZREM",
        "SPOP",
        "SRANDMEMBER",
        "BITCOUNT",
        "INCRBYFLOAT",
    ]);
    let moves = word(&[
        "RENAME",
        "RENAMENX",
        "COPY",
        "RPOPLPUSH",
        "SINTERSTORE",
        "SUNIONSTORE",
        "SDIFFSTORE",
    ]);
    prop_oneof![
        4 => (key(), text()).prop_map(|(key, text)| vec!["SET".into(), key, text]),
        1 => (key(), long_text()).prop_map(|(key, text)| vec!["SET".into(), key, text]),
        2 => (key(), text(), time()).prop_map(|(key, text, time)| {
            vec!["SET".into(), key, text, "PX".into(), time]
        }),
        2 => (word(&["PEXPIRE"]), key(), time()).prop_map(|(name, key, time)| vec![name, key, time]),
        6 => (one, key()).prop_map(|(name, key)| vec![name, key]),
        8 => (two, key(), text()).prop_map(|(name, key, text)| vec![name, key, text]),
        2 => (moves, key(), key()).prop_map(|(name, one, other)| vec![name, one, other]),
        2 => (key(), text(), text()).prop_map(|(key, field, text)| {
            vec!["HSET".into(), key, field, text]
        }),
        2 => (key(), -5i64..5, text()).prop_map(|(key, score, member)| {
            vec!["ZADD".into(), key, score.to_string(), member]
        }),
        1 => (key(), 0u32..200).prop_map(|(key, bit)| {
            vec!["SETBIT".into(), key, bit.to_string(), "1".into()]
        }),
        1 => (key(), word(&["0", "1"])).prop_map(|(key, database)| {
            vec!["MOVE".into(), key, database]
        }),
        1 => (key(), key()).prop_map(|(key, target)| {
            vec!["SORT".into(), key, "ALPHA".into(), "STORE".into(), target]
        }),
        1 => word(&["DBSIZE", "RANDOMKEY", "PING", "TIME"]).prop_map(|name| vec![name]),
        1 => word(&["SCAN 0", "KEYS *", "SWAPDB 0 1", "FLUSHDB", "FLUSHALL", "SCAN 0 COUNT 2"])
            .prop_map(|line| line.split(' ').map(str::to_owned).collect()),
    ]
}

pub fn step() -> impl Strategy<Value = Step> {
    let commands = prop::collection::vec(command(), 1..5);
    (
        0u64..200,
        0u8..2,
        any::<bool>(),
        prop::bool::weighted(0.2),
        commands,
    )
        .prop_map(|(later, database, resp3, transaction, commands)| Step {
            later,
            database,
            resp3,
            transaction,
            commands,
        })
}

/// How many bytes of the past are kept, if any.
pub fn kept() -> impl Strategy<Value = Option<u32>> {
    prop::option::of(prop_oneof![Just(1 << 30), 100u32..3000])
}

/// The same steps, but the first has the past kept.
pub fn keeping(steps: &[Step], kept: Option<u32>) -> Vec<Step> {
    let mut steps = steps.to_vec();
    if let Some(bytes) = kept {
        let words = ["QUINTET.RETAIN", "BYTES", &bytes.to_string()];
        let first = Step {
            later: 1,
            database: 0,
            resp3: false,
            transaction: false,
            commands: vec![words.map(str::to_owned).to_vec()],
        };
        steps.insert(0, first);
    }
    steps
}

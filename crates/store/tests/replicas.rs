//! Replicas that execute the same commands hold the same state and give the same replies,
//! whatever one of them goes through meanwhile.
//!
//! ```text
//!   commands ──► plain store ─────────────────────────────────────────► digest, replies
//!           └──► store ── begin_snapshot … chunks between commands       equal
//!              │          begin_digest … steps between commands ──► digest of the beginning
//!                              └──► restored store ── later commands ──► digest, replies
//! ```

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use proptest::prelude::*;
use quintet_replica::{
    Access, CommandTime, DigestBegun, FootprintVisitor, SnapshotProgress, StateMachine,
};
use quintet_store::{
    COMMANDS_COUNT, CommandSpec, Kind, Mode, RequestBuilder, Store, StoreOptions, Watched,
    key_hash, lookup,
};

mod drawn;
use drawn::*;

/// Its record is longer than what reading back holds at once; what follows it is read.
#[test]
fn state_with_a_very_long_record_is_read_back_but_for_that() {
    let mut store = Store::default();
    let mut request = RequestBuilder::new();
    let mode = Mode {
        resp3: false,
        database: 0,
    };
    let long = vec![b'v'; 20 << 20];
    request.command(lookup(b"SET").unwrap(), mode, &[b"long", &long]);
    request.command(lookup(b"SET").unwrap(), mode, &[b"short", b"value"]);
    store.apply(&at(1, BASE), request.as_bytes(), &mut Vec::new());
    let mut bytes = Vec::new();
    store.begin_snapshot();
    while store.snapshot_chunk(&mut bytes, 1 << 20) == SnapshotProgress::More {}
    read_back(&bytes, 1 << 20).unwrap();
    read_back(&bytes, 999).unwrap();
    assert!(read_back(&bytes[..10 << 20], 1 << 20).is_err(), "cut in it");
    assert!(read_back(&bytes[..bytes.len() - 1], 1 << 20).is_err());
    let short = bytes.windows(5).rposition(|word| word == b"short").unwrap();
    // The length of its key.
    bytes[short - 1] ^= 0x40;
    assert!(read_back(&bytes, 1 << 20).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn replica_made_from_a_snapshot_continues_like_the_others(
        steps in prop::collection::vec(step(), 1..60),
        begin in 0usize..60,
        budget in 1usize..300,
        cuts in 1usize..50,
        every in 1usize..4,
        hash_begin in 0usize..60,
        hash_budget in 1usize..3000,
        kept in kept(),
    ) {
        let steps = keeping(&steps, kept);
        let begin = begin % steps.len();
        let hash_begin = hash_begin % steps.len();
        let (mut hash_then, mut hashed) = (0, None);
        let (mut plain, mut busy) = (Store::default(), Store::default());
        let mut now = BASE;
        let mut snapshot = Vec::new();
        let mut more = false;
        let mut digest_then = 0;
        for (number, step) in steps.iter().enumerate() {
            now += step.later;
            if number == begin {
                busy.begin_snapshot();
                digest_then = busy.digest();
                more = true;
            }
            if number == hash_begin {
                hash_then = busy.digest();
                prop_assert_eq!(busy.begin_digest(), DigestBegun::Steps);
            }
            let reply = execute(&mut plain, number as u64 + 1, now, step);
            prop_assert_eq!(&execute(&mut busy, number as u64 + 1, now, step), &reply);
            if more && number % every == 0 {
                let progress = busy.snapshot_chunk(&mut snapshot, budget);
                more = progress == SnapshotProgress::More;
            }
            if number >= hash_begin && hashed.is_none() {
                hashed = busy.digest_step(hash_budget);
            }
            // A snapshot in progress still needs what the others have dropped of the past.
            prop_assert!(kept.is_some() || busy.memory() == plain.memory());
        }
        while hashed.is_none() {
            hashed = busy.digest_step(hash_budget);
        }
        prop_assert_eq!(hashed, Some(hash_then));
        while more {
            more = busy.snapshot_chunk(&mut snapshot, budget) == SnapshotProgress::More;
        }
        prop_assert_eq!(busy.digest(), plain.digest());

        let mut restored = restore(&snapshot, cuts);
        prop_assert_eq!(restored.digest(), digest_then);
        let mut now = BASE + steps[..begin].iter().map(|step| step.later).sum::<u64>();
        let mut again = Store::default();
        let mut early = BASE;
        for (number, step) in steps.iter().enumerate() {
            if number < begin {
                early += step.later;
                execute(&mut again, number as u64 + 1, early, step);
                continue;
            }
            now += step.later;
            let reply = execute(&mut again, number as u64 + 1, now, step);
            prop_assert_eq!(execute(&mut restored, number as u64 + 1, now, step), reply);
        }
        prop_assert_eq!(restored.digest(), plain.digest());
        prop_assert_eq!(restored.entries(), plain.entries());
        prop_assert_eq!(restored.next_deadline(), plain.next_deadline());
    }

    /// How many of the expired keys a replica has deleted is its own affair.
    #[test]
    fn replica_that_deletes_late_answers_like_the_others(
        steps in prop::collection::vec((step(), prop::bool::weighted(0.1)), 1..60),
        begin in 0usize..60,
        budget in 1usize..300,
        every in 1usize..4,
        hash_begin in 0usize..60,
        hash_budget in 1usize..3000,
    ) {
        let (begin, hash_begin) = (begin % steps.len(), hash_begin % steps.len());
        let (mut prompt, mut late) = (Store::default(), Store::default());
        let (mut snapshot, mut more) = (Vec::new(), false);
        let (mut hash_then, mut hashed) = (0, None);
        let (mut digest_then, mut replies, mut now) = (0, Vec::new(), BASE);
        for (number, (step, ticks)) in steps.iter().enumerate() {
            let sequence = number as u64 + 1;
            if number == begin {
                late.begin_snapshot();
                (digest_then, more) = (prompt.digest(), true);
            }
            if number == hash_begin {
                hash_then = prompt.digest();
                prop_assert_eq!(late.begin_digest(), DigestBegun::Steps);
            }
            now += step.later;
            let expected = execute(&mut prompt, sequence, now, step);
            let (at, mut reply) = (at(sequence, now), Vec::new());
            if *ticks {
                late.tick(&at);
            }
            late.apply(&at, &payload(step), &mut reply);
            prop_assert_eq!(&reply, &expected);
            prop_assert_eq!(late.entries(), prompt.entries());
            prop_assert_eq!(late.digest(), prompt.digest());
            replies.push((sequence, now, step, expected));
            if more && number % every == 0 {
                let progress = late.snapshot_chunk(&mut snapshot, budget);
                more = progress == SnapshotProgress::More;
            }
            if number >= hash_begin && hashed.is_none() {
                hashed = late.digest_step(hash_budget);
            }
        }
        while hashed.is_none() {
            hashed = late.digest_step(hash_budget);
        }
        prop_assert_eq!(hashed, Some(hash_then));
        while more {
            more = late.snapshot_chunk(&mut snapshot, budget) == SnapshotProgress::More;
        }
        let mut restored = restore(&snapshot, 50);
        prop_assert_eq!(restored.digest(), digest_then);
        for (sequence, now, step, expected) in replies.drain(begin..) {
            prop_assert_eq!(execute(&mut restored, sequence, now, step), expected);
        }
        prop_assert_eq!(restored.digest(), prompt.digest());
        late.tick(&at(0, now));
        prop_assert_eq!(late.memory(), prompt.memory());
        prop_assert_eq!(late.next_deadline(), prompt.next_deadline());
    }

    /// Two commands whose footprints do not meet may be executed in either order.
    #[test]
    fn commands_on_different_keys_commute(
        before in prop::collection::vec(step(), 0..20),
        one in step(),
        other in step(),
    ) {
        let (mut first, mut second) = (Store::default(), Store::default());
        let mut now = BASE;
        for (number, step) in before.iter().enumerate() {
            now += step.later;
            execute(&mut first, number as u64 + 1, now, step);
            execute(&mut second, number as u64 + 1, now, step);
        }
        let (one, other) = (payload(&one), payload(&other));
        let (here, there) = (Touched::of(&first, &one), Touched::of(&first, &other));
        prop_assume!(!here.conflicts(&there));
        let run = |store: &mut Store, sequence: u64, request: &[u8]| {
            let mut reply = Vec::new();
            store.apply(&at(sequence, now), request, &mut reply);
            reply
        };
        let replies = (run(&mut first, 100, &one), run(&mut first, 101, &other));
        let swapped = (run(&mut second, 101, &other), run(&mut second, 100, &one));
        prop_assert_eq!(replies, (swapped.1, swapped.0));
        prop_assert_eq!(first.digest(), second.digest());
    }

    /// No bytes make the store panic, and a query changes nothing.
    #[test]
    fn hostile_payloads_are_answered(
        steps in prop::collection::vec(step(), 1..5),
        patches in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut store = Store::new(StoreOptions {
            max_value_bytes: 10_000,
            ..StoreOptions::default()
        });
        for (number, step) in steps.iter().enumerate() {
            let mut request = payload(step);
            for (place, byte) in &patches {
                let place = place.index(request.len());
                request[place] = *byte;
            }
            request.truncate(cut.index(request.len() + 1));
            let at = at(number as u64 + 1, BASE);
            store.footprint(&request, &mut Touched::default());
            let mut reply = Vec::new();
            let before = store.digest();
            store.query(&at, &request, &mut reply);
            prop_assert_eq!(store.digest(), before);
            store.apply(&at, &request, &mut reply);
        }
    }

    /// Neither do any arguments to any command.
    #[test]
    fn odd_arguments_are_answered(
        calls in prop::collection::vec(
            (1..=COMMANDS_COUNT as u16, prop::collection::vec(odd_word(), 0..7)),
            1..40,
        ),
    ) {
        let mut store = Store::new(StoreOptions {
            max_value_bytes: 100_000,
            max_reply_bytes: 100_000,
            ..StoreOptions::default()
        });
        for (number, (id, args)) in calls.iter().enumerate() {
            let spec = CommandSpec::by_id(*id).unwrap();
            let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            if !spec.arity_fits(args.len()) || spec.kind == Kind::Transaction {
                continue;
            }
            let mut request = RequestBuilder::new();
            request.command(spec, Mode { resp3: number % 2 == 0, database: 0 }, &args);
            let mut reply = Vec::new();
            store.query(&at(number as u64, BASE), request.as_bytes(), &mut reply);
            reply.clear();
            store.apply(&at(number as u64, BASE), request.as_bytes(), &mut reply);
            prop_assert!(reply.ends_with(b"\r\n") || spec.kind == Kind::Internal);
        }
    }

    /// A snapshot that is damaged anywhere, or cut short, is refused.
    #[test]
    fn damaged_snapshots_are_refused(
        steps in prop::collection::vec(step(), 1..20),
        place in any::<prop::sample::Index>(),
        bit in 0u8..8,
        cut in any::<bool>(),
    ) {
        let mut store = Store::default();
        let mut now = BASE;
        for (number, step) in steps.iter().enumerate() {
            now += step.later;
            execute(&mut store, number as u64 + 1, now, step);
        }
        let mut bytes = Vec::new();
        store.begin_snapshot();
        while store.snapshot_chunk(&mut bytes, 1000) == SnapshotProgress::More {}
        let place = place.index(bytes.len());
        if cut {
            bytes.truncate(place);
        } else {
            bytes[place] ^= 1 << bit;
        }
        let mut target = Store::default();
        target.begin_restore();
        prop_assert!(target.restore_chunk(&bytes).and_then(|()| target.finish_restore()).is_err());
        prop_assert!(read_back(&bytes, 77).is_err());
    }
}

fn odd_word() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => word(&["a", "b", "c"]).prop_map(String::into_bytes),
        3 => word(&[
            "0", "1", "-1", "2", "9223372036854775807", "-9223372036854775808", "1e308", "inf",
            "-inf", "nan", "4294967295", "18446744073709551615", "99999", "(1", "[a", "-", "+", "#1",
            "u8", "i64", "1.5", "",
        ]).prop_map(String::into_bytes),
        3 => word(&[
            "COUNT", "MATCH", "LIMIT", "BY", "GET", "SET", "STORE", "WITHSCORES", "EX", "PX", "NX",
            "XX", "GT", "LT", "CH", "INCR", "BYSCORE", "BYLEX", "REV", "WEIGHTS", "AGGREGATE", "SUM",
            "LEFT", "RIGHT", "BEFORE", "AFTER", "RANK", "MAXLEN", "REPLACE", "DB", "IDX", "ALPHA",
            "DESC", "WITHVALUES", "INCRBY", "OVERFLOW", "SAT", "BIT", "AND", "NOT", "USAGE",
            "ENCODING", "GETEX", "PERSIST", "KEEPTTL", "a*", "*->f", "w*", "MIN", "MAX",
        ]).prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ]
}

#[derive(Default, Debug)]
struct Touched {
    keys: Vec<(u64, Access)>,
    all: Option<Access>,
}

impl Touched {
    fn of(store: &Store, request: &[u8]) -> Self {
        let mut touched = Self::default();
        store.footprint(request, &mut touched);
        touched
    }

    fn conflicts(&self, other: &Self) -> bool {
        if self.all.is_some() || other.all.is_some() {
            return true;
        }
        self.keys.iter().any(|(hash, access)| {
            other.keys.iter().any(|(hash_other, access_other)| {
                hash == hash_other && (*access == Access::Write || *access_other == Access::Write)
            })
        })
    }
}

impl FootprintVisitor for Touched {
    fn key(&mut self, hash: u64, access: Access) {
        self.keys.push((hash, access));
    }
    fn everything(&mut self, access: Access) {
        self.all = Some(access);
    }
}

fn call(store: &mut Store, sequence: u64, now: u64, line: &str) -> String {
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    let step = Step {
        later: 0,
        database: 0,
        resp3: false,
        transaction: false,
        commands: vec![words],
    };
    String::from_utf8(execute(store, sequence, now, &step)).unwrap()
}

fn versions(store: &Store, now: u64, keys: &[&[u8]]) -> Vec<u64> {
    let mut request = RequestBuilder::new();
    request.watch_versions(Mode::default(), keys);
    let mut reply = Vec::new();
    store.query(&at(0, now), request.as_bytes(), &mut reply);
    let text = String::from_utf8(reply).unwrap();
    text.split("\r\n")
        .filter(|line| line.len() == 16)
        .map(|line| u64::from_str_radix(line, 16).unwrap())
        .collect()
}

fn exec(store: &mut Store, sequence: u64, watched: &[Watched<'_>], lines: &[&str]) -> String {
    let mut queued = RequestBuilder::new();
    for line in lines {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        add(&mut queued, Mode::default(), &words);
    }
    let mut request = RequestBuilder::new();
    request.transaction(Mode::default(), watched, &queued);
    let mut reply = Vec::new();
    store.apply(&at(sequence, BASE), request.as_bytes(), &mut reply);
    String::from_utf8(reply).unwrap()
}

#[test]
fn transaction_runs_only_while_its_watched_keys_stay() {
    let mut store = Store::default();
    call(&mut store, 1, BASE, "SET a 1");
    let seen = versions(&store, BASE, &[b"a", b"missing"]);
    assert_ne!(seen[0], 0);
    assert_eq!(seen[1], 0);
    let watched = [
        Watched {
            database: 0,
            version: seen[0],
            key: b"a",
        },
        Watched {
            database: 0,
            version: 0,
            key: b"missing",
        },
    ];
    let lines = ["INCR a", "LPUSH a x", "GET a", "SET b 2"];
    let reply = exec(&mut store, 2, &watched, &lines);
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n";
    assert_eq!(reply, format!("*4\r\n:2\r\n{wrong}$1\r\n2\r\n+OK\r\n"));
    assert_eq!(exec(&mut store, 3, &watched, &lines), "*-1\r\n");
    assert_eq!(call(&mut store, 4, BASE, "GET a"), "$1\r\n2\r\n");
    assert_eq!(exec(&mut store, 5, &[], &[]), "*0\r\n");
    call(&mut store, 6, BASE, "SET missing x");
    let watched = [Watched {
        database: 0,
        version: 0,
        key: b"missing",
    }];
    assert_eq!(exec(&mut store, 7, &watched, &["GET a"]), "*-1\r\n");
    // A command that finds nothing to do leaves the version alone.
    let before = versions(&store, BASE, &[b"a"]);
    call(&mut store, 8, BASE, "SETNX a 5");
    call(&mut store, 9, BASE, "PERSIST a");
    assert_eq!(versions(&store, BASE, &[b"a"]), before);
    call(&mut store, 10, BASE, "EXPIRE a 100");
    assert_ne!(versions(&store, BASE, &[b"a"]), before);
}

#[test]
fn keys_expire_by_the_time_of_commands_alone() {
    let mut store = Store::default();
    call(&mut store, 1, BASE, "SET a 1 PX 100");
    assert_eq!(
        store.next_deadline(),
        Some(CommandTime((BASE + 100) * 1_000_000))
    );
    let mut request = RequestBuilder::new();
    request.command(lookup(b"get").unwrap(), Mode::default(), &[b"a"]);
    request.command(lookup(b"pttl").unwrap(), Mode::default(), &[b"a"]);
    let mut reply = Vec::new();
    // A replica's own clock makes no key disappear: others might still have answered with it.
    store.query(&at(0, BASE + 1000), request.as_bytes(), &mut reply);
    assert_eq!(reply, b"$1\r\n1\r\n:0\r\n");
    assert_eq!(call(&mut store, 2, BASE + 99, "PTTL a"), ":1\r\n");
    store.tick(&at(0, BASE + 100));
    reply.clear();
    store.query(&at(0, BASE), request.as_bytes(), &mut reply);
    assert_eq!(reply, b"$-1\r\n:-2\r\n");
    assert_eq!(store.next_deadline(), None);
    assert_eq!(store.entries(), 0);
}

#[test]
fn tick_deletes_bounded_number_and_rest_is_gone_all_same() {
    let mut store = Store::default();
    for number in 0..2500 {
        call(
            &mut store,
            number + 1,
            BASE,
            &format!("SET key{number} v PX 10"),
        );
    }
    assert_eq!(store.entries(), 2500);
    store.tick(&at(0, BASE + 10));
    assert!(store.next_deadline().is_some());
    assert_eq!(store.entries(), 0);
    assert_eq!(store.digest(), {
        let mut empty = Store::default();
        empty.tick(&at(0, BASE + 10));
        empty.digest()
    });
    store.tick(&at(0, BASE + 10));
    store.tick(&at(0, BASE + 10));
    assert_eq!(store.next_deadline(), None);
    assert_eq!(store.memory(), 0);
}

#[test]
fn scan_returns_what_is_there_all_the_time_exactly_once() {
    let mut store = Store::default();
    for number in 0..1000 {
        call(
            &mut store,
            number + 1,
            BASE,
            &format!("SET stays{number} v"),
        );
    }
    let mut seen = Vec::new();
    let mut cursor = "0".to_owned();
    let mut sequence = 2000;
    loop {
        let reply = call(
            &mut store,
            sequence,
            BASE,
            &format!("SCAN {cursor} COUNT 7"),
        );
        let mut lines = reply
            .split("\r\n")
            .filter(|line| !line.starts_with(['*', '$']));
        cursor = lines.next().unwrap().to_owned();
        seen.extend(
            lines
                .filter(|line| line.starts_with("stays"))
                .map(str::to_owned),
        );
        for extra in 0..20 {
            sequence += 1;
            let line = format!("SET other{} v", sequence * 31 + extra);
            call(&mut store, sequence, BASE, &line);
            if extra % 2 == 0 {
                sequence += 1;
                call(
                    &mut store,
                    sequence,
                    BASE,
                    &line.replace(" v", "").replace("SET", "DEL"),
                );
            }
        }
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 1000);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 1000);
}

#[test]
fn limits_are_answered_and_hold() {
    let mut store = Store::new(StoreOptions {
        max_key_bytes: 10,
        max_value_bytes: 20,
        max_reply_bytes: 100,
        max_request_reply_bytes: 1000,
        databases: 2,
        hash_seed: 1,
    });
    let long_key = "k".repeat(11);
    let long = "v".repeat(21);
    for (line, answer) in [
        (
            format!("SET k {long}"),
            "-ERR value exceeds limits.value_bytes_max (21 > 20)\r\n",
        ),
        (
            format!("SET {long_key} v"),
            "-ERR key exceeds limits.key_bytes_max (11 > 10)\r\n",
        ),
        (
            format!("RPUSH k {long}"),
            "-ERR value exceeds limits.value_bytes_max (21 > 20)\r\n",
        ),
        ("SET k 01234567890123456789".into(), "+OK\r\n"),
        (
            "APPEND k x".into(),
            "-ERR value exceeds limits.value_bytes_max (21 > 20)\r\n",
        ),
        (
            "SETRANGE k 20 x".into(),
            "-ERR value exceeds limits.value_bytes_max (21 > 20)\r\n",
        ),
        (
            "SETBIT k 160 1".into(),
            "-ERR value exceeds limits.value_bytes_max (21 > 20)\r\n",
        ),
        (
            "BITFIELD k SET u8 160 1".into(),
            "-ERR value exceeds limits.value_bytes_max (21 > 20)\r\n",
        ),
        ("STRLEN k".into(), ":20\r\n"),
        (
            "MGET k k k k k k".into(),
            "-ERR reply exceeds what limits.value_bytes_max allows (100)\r\n",
        ),
        ("GET k".into(), "$20\r\n01234567890123456789\r\n"),
    ] {
        assert_eq!(call(&mut store, 1, BASE, &line), answer, "{line}");
    }
    let mut request = RequestBuilder::new();
    request.command(
        lookup(b"get").unwrap(),
        Mode {
            resp3: false,
            database: 2,
        },
        &[b"k"],
    );
    let mut reply = Vec::new();
    store.apply(&at(1, BASE), request.as_bytes(), &mut reply);
    assert_eq!(reply, b"-ERR DB index is out of range\r\n");
}

#[test]
fn writes_that_need_memory_are_refused_when_ordered_so() {
    let mut store = Store::default();
    let mut limit = |refuse| {
        let mut request = RequestBuilder::new();
        request.memory_limit(refuse);
        assert!(Touched::of(&store, request.as_bytes()).all == Some(Access::Write));
        let mut reply = Vec::new();
        store.apply(&at(1, BASE), request.as_bytes(), &mut reply);
        assert_eq!(reply, b"+OK\r\n");
        let set = call(&mut store, 2, BASE, "SET a 1");
        (set, call(&mut store, 3, BASE, "DEL b"), store.digest())
    };
    let oom = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    let (set, del, off) = limit(true);
    assert_eq!((set.as_str(), del.as_str()), (oom, ":0\r\n"));
    let (set, _, on) = limit(false);
    assert_eq!(set, "+OK\r\n");
    assert_ne!(off, on);
}

#[test]
fn dump_is_restored() {
    let mut store = Store::default();
    call(&mut store, 1, BASE, "RPUSH l a b c");
    let mut request = RequestBuilder::new();
    request.command(lookup(b"dump").unwrap(), Mode::default(), &[b"l"]);
    let mut reply = Vec::new();
    store.query(&at(1, BASE), request.as_bytes(), &mut reply);
    let start = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let dump = reply[start..reply.len() - 2].to_vec();
    for (place, expected) in [
        (None, &b"+OK\r\n"[..]),
        (
            Some(1),
            b"-ERR DUMP payload version or checksum are wrong\r\n",
        ),
    ] {
        let mut dump = dump.clone();
        if let Some(place) = place {
            dump[place] ^= 1;
        }
        let mut request = RequestBuilder::new();
        let args: [&[u8]; 4] = [b"copy", b"5000", &dump, b"REPLACE"];
        request.command(lookup(b"restore").unwrap(), Mode::default(), &args);
        reply.clear();
        store.apply(&at(2, BASE), request.as_bytes(), &mut reply);
        assert_eq!(reply, expected);
    }
    assert_eq!(
        call(&mut store, 3, BASE, "LRANGE copy 0 -1"),
        "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"
    );
    assert_eq!(call(&mut store, 4, BASE, "PTTL copy"), ":5000\r\n");
}

#[test]
fn literals_keep_their_place_in_a_pipeline() {
    let mut store = Store::default();
    let mut request = RequestBuilder::new();
    request.command(lookup(b"set").unwrap(), Mode::default(), &[b"a", b"1"]);
    request.literal(b"-ERR unknown command\r\n");
    request.command(lookup(b"ping").unwrap(), Mode::default(), &[]);
    request.command(lookup(b"get").unwrap(), Mode::default(), &[b"a"]);
    let mut reply = Vec::new();
    store.apply(&at(1, BASE), request.as_bytes(), &mut reply);
    assert_eq!(
        reply,
        b"+OK\r\n-ERR unknown command\r\n+PONG\r\n$1\r\n1\r\n"
    );
}

fn touched(lines: &[&str]) -> Touched {
    let mut request = RequestBuilder::new();
    for line in lines {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        add(&mut request, Mode::default(), &words);
    }
    Touched::of(&Store::default(), request.as_bytes())
}

#[test]
fn footprints_name_the_keys() {
    let seed = StoreOptions::default().hash_seed;
    let key = |name: &str| key_hash(seed, 0, name.as_bytes());
    let read = |name| (key(name), Access::Read);
    let write = |name| (key(name), Access::Write);
    for (line, keys) in [
        ("GET a", vec![read("a")]),
        ("SET a 1", vec![write("a")]),
        ("MSET a 1 b 2", vec![write("a"), write("b")]),
        (
            "ZUNIONSTORE d 2 a b",
            vec![write("d"), write("a"), write("b")],
        ),
        ("SINTERCARD 2 a b", vec![read("a"), read("b")]),
        ("OBJECT ENCODING a", vec![read("a")]),
        ("PING", vec![]),
    ] {
        assert_eq!(touched(&[line]).keys, keys, "{line}");
        assert!(touched(&[line]).all.is_none(), "{line}");
    }
    for line in [
        "DBSIZE",
        "SCAN 0",
        "FLUSHALL",
        "KEYS *",
        "RANDOMKEY",
        "SORT a",
        "COPY a b DB 1",
    ] {
        assert!(touched(&[line]).all.is_some(), "{line}");
    }
    let mut queued = RequestBuilder::new();
    add(
        &mut queued,
        Mode::default(),
        &["INCR".to_owned(), "a".to_owned()],
    );
    let mut request = RequestBuilder::new();
    let watched = Watched {
        database: 0,
        version: 1,
        key: b"w",
    };
    request.transaction(Mode::default(), &[watched], &queued);
    let keys = Touched::of(&Store::default(), request.as_bytes()).keys;
    assert_eq!(keys, [read("w"), write("a")]);
}

/// Keys that all have one hash under a seed that is known: the first word makes a factor zero.
fn colliding_keys(seed: u64, count: u64) -> Vec<Vec<u8>> {
    let hash = |first: u64, free: u64| {
        let mut key = first.to_le_bytes().to_vec();
        key.extend_from_slice(&free.to_le_bytes());
        key.extend_from_slice(&[7; 16]);
        key
    };
    let first = seed ^ 0x9e37_79b9_7f4a_7c15 ^ 32u64.wrapping_mul(0x8bb8_4b93_962e_acc9);
    let first = first ^ 0xd1b5_4a32_d192_ed03;
    (0..count).map(|free| hash(first, free)).collect()
}

#[test]
fn keys_that_collide_under_a_known_seed_do_not_under_another() {
    let known = StoreOptions::default().hash_seed;
    let keys = colliding_keys(known, 10_000);
    assert_eq!(keys[0][..8], *b"\x36\x7c\x68\x1f\x97\x28\xfe\x49");
    let hashes = |store: &Store| {
        let mut seen = std::collections::BTreeSet::new();
        for key in &keys {
            let mut request = RequestBuilder::new();
            request.command(lookup(b"GET").expect("there"), Mode::default(), &[key]);
            let keys = Touched::of(store, request.as_bytes()).keys;
            seen.extend(keys.into_iter().map(|(hash, _)| hash));
        }
        seen.len()
    };
    assert_eq!(hashes(&Store::default()), 1, "the family collides");
    let mut store = Store::default();
    store.set_hash_seed(0x1234_5678_9abc_def0);
    assert_eq!(hashes(&store), keys.len());
    // The seed outlives a restore.
    let mut snapshot = Vec::new();
    store.begin_snapshot();
    while store.snapshot_chunk(&mut snapshot, 1 << 20) == SnapshotProgress::More {}
    store.begin_restore();
    store.restore_chunk(&snapshot).expect("whole");
    store.finish_restore().expect("whole");
    assert_eq!(hashes(&store), keys.len());
}

#[test]
fn seed_of_the_hash_changes_the_order_and_nothing_else() {
    let mut stores = [1, 2].map(|hash_seed| {
        Store::new(StoreOptions {
            hash_seed,
            ..StoreOptions::default()
        })
    });
    let mut orders = Vec::new();
    for store in &mut stores {
        for number in 0..50 {
            call(store, number + 1, BASE, &format!("SET key{number} v"));
        }
        orders.push(call(store, 100, BASE, "KEYS *"));
    }
    assert_ne!(orders[0], orders[1]);
    assert_eq!(stores[0].digest(), stores[1].digest());
}

//! The past of a store is what was seen then, at each replica that has executed the same commands.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod drawn;

use drawn::*;
use proptest::prelude::*;
use quintet_replica::{PastAnswer, SnapshotProgress, StateMachine};
use quintet_store::{Mode, RequestBuilder, Store};

/// The reply to a read of the past, given that all times up to this one are closed.
fn read_past(store: &Store, closed: u64, database: u8, words: &[String]) -> (PastAnswer, String) {
    let mut request = RequestBuilder::new();
    let mode = Mode {
        resp3: false,
        database,
    };
    add(&mut request, mode, words);
    let mut reply = Vec::new();
    let answer = store.query_at(&at(0, closed), request.as_bytes(), &mut reply);
    (answer, String::from_utf8_lossy(&reply).into_owned())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

const LOOKED_AT: [&str; 6] = [
    "a",
    "b",
    "c",
    "d",
    "e",
    "a key that is longer than what is kept in place",
];

/// Commands that show a key to a client.
const LOOKS: [&str; 8] = [
    "DUMP @",
    "PEXPIRETIME @",
    "TYPE @",
    "OBJECT ENCODING @",
    "HMGET @ a 1 -2 cc 1",
    "SMISMEMBER @ a 1 -2 cc 1",
    "ZMSCORE @ a 1 -2 cc 1",
    "ZRANGE @ 0 -1 WITHSCORES",
];

/// The words of a look at a key.
fn look_words(look: &str, key: &str) -> Vec<String> {
    let words = look
        .split(' ')
        .map(|word| if word == "@" { key } else { word });
    words.map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn past_is_what_was_seen_then(
        steps in prop::collection::vec(step(), 1..60),
        kept in prop_oneof![Just(1u32 << 30), 200u32..6000],
        restored_at in 0usize..60,
        pairs in prop::collection::vec((0usize..60, 0usize..60), 4),
    ) {
        let steps = keeping(&steps, Some(kept));
        let mut store = Store::default();
        let mut now = BASE;
        // Time, then for each database and key its looks.
        let mut seen: Vec<(u64, Vec<String>)> = Vec::new();
        let mut swaps = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            now += step.later;
            execute(&mut store, number as u64 + 1, now, step);
            if step.commands.iter().any(|command| command[0] == "SWAPDB") {
                swaps.push(now);
            }
            if number == restored_at % steps.len() {
                let mut bytes = Vec::new();
                store.begin_snapshot();
                while store.snapshot_chunk(&mut bytes, 1000) == SnapshotProgress::More {}
                store = restore(&bytes, 77);
            }
            let mut looks = Vec::new();
            for database in 0..2 {
                for (key, look) in LOOKED_AT.iter().flat_map(|key| LOOKS.map(|look| (key, look))) {
                    let mut request = RequestBuilder::new();
                    let mode = Mode { resp3: false, database };
                    add(&mut request, mode, &look_words(look, key));
                    let mut reply = Vec::new();
                    store.query(&at(0, now), request.as_bytes(), &mut reply);
                    looks.push(String::from_utf8_lossy(&reply).into_owned());
                }
            }
            seen.retain(|(time, _)| *time < now);
            seen.push((now, looks));
        }
        now += 1;
        let mut told = 0;
        for (time, looks) in &seen {
            let mut looks = looks.iter();
            for database in 0..2 {
                for (key, look) in LOOKED_AT.iter().flat_map(|key| LOOKS.map(|look| (key, look))) {
                    let mut command = words(&["QUINTET.AT", &time.to_string()]);
                    command.extend(look_words(look, key));
                    let (answer, reply) = read_past(&store, now, database, &command);
                    prop_assert_eq!(answer, PastAnswer::Done);
                    let then = looks.next().unwrap();
                    if !reply.starts_with("-NOHISTORY") {
                        prop_assert_eq!(&reply, then, "{} {} at {}", look, key, time);
                        told += 1;
                    } else {
                        prop_assert!(told == 0 || kept < 1 << 30);
                    }
                }
            }
        }
        prop_assert!(told > 0, "the newest time is known");
        for (one, other) in pairs {
            let (one, other) = (one % seen.len(), other % seen.len());
            let ((from, before), (to, after)) = (&seen[one.min(other)], &seen[one.max(other)]);
            if swaps.iter().any(|swap| (from + 1..=*to).contains(swap)) {
                continue;
            }
            for database in 0..2usize {
                let command = words(&["QUINTET.DIFF", &from.to_string(), &to.to_string()]);
                let (_, reply) = read_past(&store, now, database as u8, &command);
                if reply.starts_with("-NOHISTORY") {
                    prop_assert!(kept < 1 << 30);
                    continue;
                }
                for (place, key) in LOOKED_AT.iter().enumerate() {
                    let at = (database * LOOKED_AT.len() + place) * LOOKS.len();
                    let gone = |looks: &[String]| looks[at].starts_with("$-1");
                    let same = before[at] == after[at] && before[at + 1] == after[at + 1];
                    let how = match (gone(before), gone(after)) {
                        (true, true) => None,
                        (true, false) => Some("created"),
                        (false, true) => Some("deleted"),
                        (false, false) if same => None,
                        (false, false) => Some("changed"),
                    };
                    let line = |how: &str| {
                        let (lengths, end) = ((key.len(), how.len()), "\r\n");
                        format!("${}{end}{key}{end}${}{end}{how}{end}", lengths.0, lengths.1)
                    };
                    if reply.contains(&line("unknown")) {
                        prop_assert!(kept < 1 << 30 && !gone(before) && !gone(after));
                        continue;
                    }
                    for other in ["created", "changed", "deleted"] {
                        prop_assert_eq!(
                            reply.contains(&line(other)), how == Some(other),
                            "{} {:?} from {} to {} in {}: {}", key, how, from, to, database, reply
                        );
                    }
                }
            }
        }
    }
}

fn run(store: &mut Store, sequence: u64, now: u64, commands: &[&[&str]]) {
    let step = Step {
        later: 0,
        database: 0,
        resp3: false,
        transaction: false,
        commands: commands.iter().map(|command| words(command)).collect(),
    };
    execute(store, sequence, now, &step);
}

fn copy_of(store: &mut Store) -> Store {
    let mut bytes = Vec::new();
    store.begin_snapshot();
    while store.snapshot_chunk(&mut bytes, 10_000) == SnapshotProgress::More {}
    restore(&bytes, 9999)
}

/// Executes the same on both and compares the whole states.
fn both(one: &mut Store, other: &mut Store, sequence: u64, now: u64, commands: &[&[&str]]) {
    run(one, sequence, now, commands);
    run(other, sequence, now, commands);
    assert_eq!(one.digest(), other.digest(), "at {sequence}");
}

#[test]
fn restored_replica_drops_as_much_of_the_past_as_others() {
    let mut live = Store::default();
    run(&mut live, 1, BASE, &[&["QUINTET.RETAIN", "SECONDS", "60"]]);
    let many = |from: usize, count: usize| -> Vec<String> {
        let keys = (from..from + count).flat_map(|n| [format!("k{n}"), n.to_string()]);
        ["MSET".to_owned()].into_iter().chain(keys).collect()
    };
    for round in 0..5 {
        let step = many(2000 * round, 2000);
        let step: Vec<&str> = step.iter().map(String::as_str).collect();
        run(&mut live, 2 + round as u64, BASE + 1, &[&step]);
    }
    let step = many(0, 2000);
    let step: Vec<&str> = step.iter().map(String::as_str).collect();
    run(&mut live, 10, BASE + 60_000, &[&step]);
    let mut restored = copy_of(&mut live);
    for later in 0..5 {
        let now = BASE + 60_010 + later;
        both(
            &mut live,
            &mut restored,
            11 + later,
            now,
            &[&["SET", "a", "1"]],
        );
    }
}

#[test]
fn restored_replica_keeps_expired_keys_when_others_do() {
    let mut live = Store::default();
    run(&mut live, 1, BASE, &[&["QUINTET.RETAIN", "SECONDS", "60"]]);
    for n in 0..5000u64 {
        let key = format!("early{n}");
        run(&mut live, n + 2, BASE, &[&["SET", &key, "v", "PX", "10"]]);
    }
    for n in 0..3000u64 {
        let key = format!("later{n}");
        run(
            &mut live,
            n + 6000,
            BASE,
            &[&["SET", &key, "v", "PX", "11"]],
        );
    }
    // A walk over all keys takes those that have expired out of the index.
    run(
        &mut live,
        10_000,
        BASE + 10,
        &[&["SET", "a", "1"], &["KEYS", "*"], &["SET", "b", "1"]],
    );
    let mut restored = copy_of(&mut live);
    for later in 0..10 {
        let now = BASE + 12 + later;
        both(
            &mut live,
            &mut restored,
            10_001 + later,
            now,
            &[&["SET", "a", "2"]],
        );
    }
}

/// The answer for `k` behind a version.
fn at_version(store: &Store, version: u64) -> String {
    let version = format!("v:{version}");
    let command = words(&["QUINTET.AT", &version, "GET", "k"]);
    read_past(store, BASE + 1_000_000, 0, &command).1
}

#[test]
fn version_of_which_a_part_was_dropped_is_not_told() {
    let mut store = Store::default();
    let value = "v".repeat(300);
    run(&mut store, 1, BASE, &[&["QUINTET.RETAIN", "BYTES", "1000"]]);
    run(
        &mut store,
        2,
        BASE + 1,
        &[&["MSET", "k", &value, "b", &value, "c", &value]],
    );
    run(
        &mut store,
        3,
        BASE + 2,
        &[&["MSET", "k", "2", "b", "2", "c", "2"]],
    );
    let first = at_version(&store, 1);
    assert!(first.contains(&value));
    run(&mut store, 4, BASE + 3, &[&["SET", "d", &value]]);
    run(&mut store, 5, BASE + 4, &[&["SET", "d", "4"]]);
    run(&mut store, 6, BASE + 5, &[&["SET", "e", "5"]]);
    let now = at_version(&store, 1);
    assert!(now == first || now.starts_with("-NOHISTORY"), "{now}");
    assert!(at_version(&store, 0).starts_with("-NOHISTORY"));
    assert!(at_version(&store, 4).contains("2"));
}

#[test]
fn past_that_begins_again_tells_no_version_of_the_one_before() {
    let mut store = Store::default();
    run(
        &mut store,
        1,
        BASE,
        &[&["QUINTET.RETAIN", "BYTES", "1000"], &["SET", "k", "1"]],
    );
    assert_eq!(at_version(&store, 1), "$1\r\n1\r\n");
    run(
        &mut store,
        2,
        BASE + 1,
        &[&["QUINTET.RETAIN", "BYTES", "0"], &["SET", "k", "2"]],
    );
    run(
        &mut store,
        3,
        BASE + 2,
        &[&["QUINTET.RETAIN", "BYTES", "1000"]],
    );
    assert!(at_version(&store, 1).starts_with("-NOHISTORY"));
    assert_eq!(at_version(&store, 2), "$1\r\n2\r\n");
}

#[test]
fn database_too_large_for_the_past_ends_it_for_all_databases() {
    let mut store = Store::default();
    run(
        &mut store,
        1,
        BASE,
        &[&["QUINTET.RETAIN", "BYTES", "1000000000"]],
    );
    for n in 0..110u64 {
        let keys = (0..1000).flat_map(|m| [format!("k{n}:{m}"), "v".to_owned()]);
        let step: Vec<String> = ["MSET".to_owned()].into_iter().chain(keys).collect();
        let step: Vec<&str> = step.iter().map(String::as_str).collect();
        run(&mut store, n + 2, BASE, &[&step]);
    }
    run(&mut store, 200, BASE + 1, &[&["SET", "k", "1"]]);
    run(&mut store, 201, BASE + 2, &[&["FLUSHALL"]]);
    assert!(at_version(&store, 111).starts_with("-NOHISTORY"));
    assert_eq!(at_version(&store, 112), "$-1\r\n");
}

#[test]
fn one_batch_copies_a_bounded_amount_of_long_values() {
    let mut store = Store::default();
    let long = "v".repeat(1 << 20);
    run(
        &mut store,
        1,
        BASE,
        &[
            &["QUINTET.RETAIN", "BYTES", "1000000000"],
            &["SET", "k", &long],
        ],
    );
    let append: Vec<&[&str]> = vec![&["APPEND", "k", "x"]; 1000];
    run(&mut store, 2, BASE + 1, &append);
    assert!(store.memory() < 100 << 20, "{}", store.memory());
    assert!(at_version(&store, 2).len() > 1 << 20);
    assert!(at_version(&store, 500).starts_with("-NOHISTORY a string of"));
    run(&mut store, 3, BASE + 2, &[&["SET", "k", "1"]]);
    assert!(
        at_version(&store, 1001).len() > 1 << 20,
        "the next batch copies again"
    );
}

#[test]
fn reads_of_the_past_are_bounded() {
    let mut store = Store::default();
    run(
        &mut store,
        1,
        BASE,
        &[
            &["QUINTET.RETAIN", "BYTES", "1000000000"],
            &["SET", "k", "1"],
        ],
    );
    run(&mut store, 2, BASE + 1, &[&["SET", "k", "2"]]);
    let mut many = words(&["QUINTET.AT", "v:1", "EXISTS"]);
    many.extend(vec!["k".to_owned(); 1000]);
    assert_eq!(read_past(&store, BASE + 9, 0, &many).1, ":1000\r\n");
    many.push("k".to_owned());
    assert!(
        read_past(&store, BASE + 9, 0, &many)
            .1
            .starts_with("-ERR QUINTET.AT names at most")
    );
    let memory = words(&["QUINTET.AT", "v:1", "MEMORY", "USAGE", "k"]);
    assert!(
        read_past(&store, BASE + 9, 0, &memory)
            .1
            .contains("cannot be asked of the past")
    );
}

/// Executes one command with a digit in place of each `#`, as a request of its own.
fn numbered(store: &mut Store, sequence: u64, command: &[&str], number: u64) {
    let text = number.to_string();
    let command: Vec<String> = command
        .iter()
        .map(|word| word.replace('#', &text))
        .collect();
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    run(store, sequence, BASE + sequence, &[&command]);
}

#[test]
fn large_collection_is_told_by_steps_that_undo_its_changes() {
    let kinds: [(&[&str], &[&str], &str); 4] = [
        (
            &["HSET", "k", "f#", "v#"],
            &["HSET", "k", "f1", "now#"],
            "HGETALL @",
        ),
        (
            &["ZADD", "k", "#", "m#"],
            &["ZADD", "k", "#.5", "m1"],
            "DUMP @",
        ),
        (&["SADD", "k", "m#"], &["SADD", "k", "n#"], "SMEMBERS @"),
        (
            &["RPUSH", "k", "e#"],
            &["LSET", "k", "7", "now#"],
            "LRANGE @ 0 -1",
        ),
    ];
    for (fill, alter, look) in kinds {
        let mut store = Store::default();
        run(
            &mut store,
            1,
            BASE,
            &[&["QUINTET.RETAIN", "BYTES", "100000000"]],
        );
        for number in 0..3000 {
            numbered(&mut store, number + 2, fill, number);
        }
        let used = store.memory();
        let mut seen = Vec::new();
        for number in 0..40 {
            numbered(&mut store, 3002 + number, alter, number);
            let now = BASE + 3002 + number;
            let mut request = RequestBuilder::new();
            add(
                &mut request,
                Mode {
                    resp3: false,
                    database: 0,
                },
                &look_words(look, "k"),
            );
            let mut reply = Vec::new();
            store.query(&at(0, now), request.as_bytes(), &mut reply);
            seen.push((now, String::from_utf8_lossy(&reply).into_owned()));
        }
        let each = (store.memory() - used) / 40;
        assert!(each < 2000, "{look}: {each} bytes for each change");
        run(&mut store, 4000, BASE + 4000, &[&["DEL", "k"]]);
        run(&mut store, 4001, BASE + 4001, &[&["RPUSH", "k", "another"]]);
        for (time, then) in seen {
            let mut command = words(&["QUINTET.AT", &time.to_string()]);
            command.extend(look_words(look, "k"));
            assert_eq!(
                read_past(&store, BASE + 9000, 0, &command).1,
                then,
                "{look}"
            );
        }
    }
}

#[test]
fn collection_that_changes_often_is_copied_now_and_then() {
    let mut store = Store::default();
    run(
        &mut store,
        1,
        BASE,
        &[&["QUINTET.RETAIN", "BYTES", "1000000000"]],
    );
    let text = "v".repeat(500);
    run(
        &mut store,
        2,
        BASE + 1,
        &[&["HSET", "k", "f", &text], &["HSET", "k", "g", &text]],
    );
    // The steps of all these changes have more bytes than are looked at.
    for number in 3..60_003 {
        numbered(
            &mut store,
            number,
            &["HSET", "k", "f", &format!("#{text}")],
            number,
        );
    }
    let used = store.memory();
    assert!(
        used < 120 << 20,
        "copies take as much as steps at most: {used}"
    );
    for number in [3, 30_000, 60_000] {
        let time = (BASE + number).to_string();
        let (_, reply) = read_past(
            &store,
            BASE + 90_000,
            0,
            &words(&["QUINTET.AT", &time, "HGET", "k", "f"]),
        );
        assert!(reply.contains(&format!("{number}vvv")), "{}", &reply[..60]);
        let (_, reply) = read_past(
            &store,
            BASE + 90_000,
            0,
            &words(&["QUINTET.AT", &time, "HGETALL", "k"]),
        );
        assert!(reply.contains(&format!("{number}vvv")), "{}", &reply[..60]);
    }
}

#[test]
fn fields_are_told_of_a_collection_too_large_to_be_made_again() {
    let mut store = Store::default();
    run(
        &mut store,
        1,
        BASE,
        &[&["QUINTET.RETAIN", "BYTES", "1000000000"]],
    );
    let text = "v".repeat(1 << 20);
    for number in 0..70 {
        numbered(&mut store, number + 2, &["HSET", "k", "f#", &text], number);
    }
    numbered(&mut store, 100, &["HSET", "k", "f3", "short"], 0);
    let past = |store: &Store, command: &[&str]| {
        let mut all = words(&["QUINTET.AT", &(BASE + 99).to_string()]);
        all.extend(words(command));
        read_past(store, BASE + 900, 0, &all).1
    };
    assert!(past(&store, &["HGET", "k", "f3"]).len() > 1 << 20);
    assert_eq!(past(&store, &["HMGET", "k", "f99"]), "*1\r\n$-1\r\n");
    assert_eq!(
        past(&store, &["HLEN", "k"]),
        "-NOHISTORY a hash of 70 elements takes too much to be made again: ask for single fields \
         or members, for a later time, or for fewer keys\r\n"
    );
    run(&mut store, 200, BASE + 200, &[&["DEL", "k"]]);
    assert_eq!(
        past(&store, &["HGET", "k", "f3"]),
        "-NOHISTORY a hash of 70 elements was too large to be kept when it changed\r\n"
    );
    let history = words(&["QUINTET.HISTORY", "k", "LIMIT", "2"]);
    let (_, reply) = read_past(&store, BASE + 900, 0, &history);
    assert!(
        reply.contains("none") && reply.contains("hash") && reply.contains(":70"),
        "{reply}"
    );
}

#[test]
fn past_ended_twice_is_the_same_while_a_snapshot_is_made() {
    let mut stores = [Store::default(), Store::default()];
    for (place, store) in stores.iter_mut().enumerate() {
        let on: &[&str] = &["QUINTET.RETAIN", "BYTES", "1000000"];
        let off: &[&str] = &["QUINTET.RETAIN", "BYTES", "0"];
        run(
            store,
            1,
            BASE,
            &[on, &["SET", "k", "1"], &["SET", "k", "2"]],
        );
        if place == 0 {
            store.begin_snapshot();
        }
        run(store, 2, BASE + 1, &[off, &["SET", "k", "3"]]);
        run(store, 3, BASE + 2, &[off, on, &["SET", "k", "4"]]);
    }
    assert_eq!(stores[0].digest(), stores[1].digest());
}

#[test]
fn making_a_collection_again_is_bounded_in_memory_and_work() {
    let mut store = Store::default();
    run(
        &mut store,
        1,
        BASE,
        &[&["QUINTET.RETAIN", "BYTES", "1000000000"]],
    );
    let long = "y".repeat(50_000);
    let fill: Vec<&str> = [&["RPUSH", "base", "x"][..], &vec![&long[..]; 1000][..]].concat();
    run(&mut store, 2, BASE + 1, &[&fill]);
    for number in 0..20 {
        numbered(&mut store, 3 + number, &["COPY", "base", "k#"], number);
    }
    for number in 0..20 {
        numbered(&mut store, 30 + number, &["LREM", "k#", "0", &long], number);
    }
    let past = |store: &Store, time: u64, command: &[&str]| {
        let mut all = words(&["QUINTET.AT", &(BASE + time).to_string()]);
        all.extend(words(command));
        read_past(store, BASE + 900_000, 0, &all).1
    };
    assert_eq!(past(&store, 29, &["LLEN", "k7"]), ":1001\r\n");
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    let mut all = vec!["EXISTS"];
    all.extend(keys.iter().map(String::as_str));
    let reply = past(&store, 29, &all);
    assert!(reply.starts_with("-NOHISTORY a list of 1001"), "{reply}");

    // A short step that undoes a long way: what it cost when it was taken, it costs again.
    let fill: Vec<&str> = [&["RPUSH", "queue"][..], &["e"; 100_000][..]].concat();
    run(&mut store, 100, BASE + 100, &[&fill]);
    for number in 0..2000 {
        numbered(
            &mut store,
            101 + 2 * number,
            &["LINSERT", "queue", "BEFORE", "e", "y"],
            0,
        );
        numbered(
            &mut store,
            102 + 2 * number,
            &["LREM", "queue", "1", "y"],
            0,
        );
    }
    let reply = past(&store, 100, &["LLEN", "queue"]);
    assert!(reply.starts_with("-NOHISTORY a list of 100000"), "{reply}");
    assert_eq!(past(&store, 4000, &["LLEN", "queue"]), ":100000\r\n");

    // Each field is looked for once, in one pass over the steps.
    for number in 0..20_000 {
        numbered(
            &mut store,
            10_000 + number,
            &["HSET", "hash", "f#", "v"],
            number,
        );
    }
    for number in 0..100_000 {
        numbered(
            &mut store,
            40_000 + number,
            &["HSET", "hash", "f1", "v#"],
            number,
        );
    }
    let mut all = vec!["HMGET", "hash"];
    let fields: Vec<String> = (0..100_000).map(|field| format!("a{field}")).collect();
    all.extend(fields.iter().map(String::as_str));
    all.push("f1");
    assert!(past(&store, 39_999, &all).ends_with("$1\r\nv\r\n"));

    // Reads of one batch share what they may do: none is free because another was refused.
    store.begin_reads();
    let busy = (0..200).filter(|_| past(&store, 40_001, &["HLEN", "hash"]).starts_with("-BUSY"));
    assert!(busy.count() > 100);
    assert!(past(&store, 40_001, &["EXISTS", "hash"]).starts_with("-BUSY"));
    store.begin_reads();
    assert_eq!(past(&store, 40_001, &["HLEN", "hash"]), ":20000\r\n");
}

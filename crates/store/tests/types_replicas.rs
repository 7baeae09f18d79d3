//! Replicas agree: whatever happened before, whether a store lived through it or was restored
//! from a snapshot, the same commands give the same replies and the same state.

#![allow(
    clippy::unwrap_used,
    reason = "a test that panics has failed, as it should"
)]

mod types_support;

use quintet_replica::StateMachine;
use quintet_store::Random;
use types_support::words::{HASHES, LISTS, NAMES, SETS, SORTED_SETS, Words};
use types_support::{Reply, Session};

/// Commands whose reply depends on randomness, or on an order that Redis does not define.
const CHANCE: &[&str] = &[
    "SPOP S",
    "SPOP S C",
    "SRANDMEMBER S C",
    "SRANDMEMBER S",
    "HRANDFIELD H C WITHVALUES|",
    "ZRANDMEMBER Z C WITHSCORES|",
    "HGETALL H",
    "SMEMBERS S",
    "SINTER S S",
    "SUNION S S",
    "ZSCAN Z 0",
];

fn templates() -> Vec<&'static str> {
    [HASHES, LISTS, SETS, SORTED_SETS, NAMES, CHANCE, CHANCE].concat()
}

fn steps(sessions: &mut [&mut Session], words: &mut Words, count: usize) {
    let templates = templates();
    for _ in 0..count {
        let command = words.any(&templates);
        let parts: Vec<&[u8]> = command.iter().map(String::as_bytes).collect();
        let mut replies = sessions.iter_mut().map(|session| session.run(&parts));
        let first = replies.next().unwrap();
        for reply in replies {
            assert_eq!(
                reply.escape_ascii().to_string(),
                first.escape_ascii().to_string(),
                "{}",
                command.join(" ")
            );
        }
    }
}

#[test]
fn restored_replica_continues_like_the_others() {
    for seed in 0..40 {
        let mut words = Words(Random::new(seed));
        let mut one = Session::new();
        steps(&mut [&mut one], &mut words, 400);
        let mut other = one.restored(|_| {});
        assert_eq!(one.store.digest(), other.store.digest());
        assert_eq!(one.store.memory(), other.store.memory());
        steps(&mut [&mut one, &mut other], &mut words, 400);
        assert_eq!(one.store.digest(), other.store.digest());
        assert_eq!(one.store.memory(), other.store.memory());
    }
}

#[test]
fn snapshot_is_of_the_moment_it_was_begun() {
    let mut pieces = 0;
    for seed in 0..40 {
        let mut words = Words(Random::new(100 + seed));
        let mut session = Session::new();
        steps(&mut [&mut session], &mut words, 300);
        let before = session.store.digest();
        let restored = session.restored(|session| {
            steps(&mut [session], &mut words, 5);
            pieces += 1;
        });
        assert_eq!(restored.store.digest(), before);
    }
    assert!(pieces > 40, "commands must have come in between");
}

#[test]
fn memory_is_given_back_to_the_last_byte() {
    for seed in 0..20 {
        let mut words = Words(Random::new(200 + seed));
        let mut session = Session::new();
        steps(&mut [&mut session], &mut words, 500);
        for key in [
            "h1", "h2", "h3", "l1", "l2", "l3", "s1", "s2", "s3", "z1", "z2", "z3", "z4", "n", "m",
        ] {
            session.run(&[b"DEL", key.as_bytes()]);
        }
        assert_eq!(session.store.memory(), 0);
        assert_eq!(session.store.entries(), 0);
    }
}

#[test]
fn last_member_takes_the_key_with_it() {
    for (fill, empty) in [
        ("HSET k a 1", "HDEL k a"),
        ("RPUSH k a b", "LTRIM k 5 9"),
        ("RPUSH k a a", "LREM k 0 a"),
        ("RPUSH k a", "RPOPLPUSH k other"),
        ("RPUSH k a b", "LMPOP 1 k LEFT COUNT 9"),
        ("SADD k a", "SREM k a"),
        ("SADD k a b", "SPOP k 5"),
        ("SADD k a", "SMOVE k other2 a"),
        ("SADD k a", "SINTERSTORE k k nothing"),
        ("ZADD k 1 a", "ZREM k a"),
        ("ZADD k 1 a", "ZPOPMAX k"),
        ("ZADD k 1 a 2 b", "ZREMRANGEBYRANK k 0 -1"),
        ("ZADD k 1 a 2 b", "ZREMRANGEBYSCORE k -inf inf"),
        ("ZADD k 1 a", "ZDIFFSTORE k 2 k k"),
        ("ZADD k 1 a", "ZRANGESTORE k k 5 9"),
    ] {
        let mut session = Session::new();
        session.line(fill);
        assert_eq!(session.line("EXISTS k").text(), ":1", "{fill}");
        session.line(empty);
        assert_eq!(session.line("EXISTS k").text(), ":0", "{empty}");
        assert_eq!(session.line("TYPE k").text(), "+none", "{empty}");
    }
}

#[test]
fn failed_command_leaves_no_key() {
    let mut session = Session::new();
    for command in [
        "HINCRBY k f x",
        "HINCRBYFLOAT k f x",
        "HSET k f",
        "ZADD k x m",
        "ZADD k XX 1 m",
        "ZINCRBY k nan m",
        "LPUSHX k a",
        "SMOVE nothing k a",
        "ZUNIONSTORE k 1 nothing",
    ] {
        session.line(command);
        assert_eq!(session.line("EXISTS k").text(), ":0", "{command}");
    }
    assert_eq!(session.store.memory(), 0);
}

#[test]
fn rotating_a_list_of_one_keeps_its_expiry() {
    let mut session = Session::new();
    session.line("RPUSH k a");
    session.line("EXPIRE k 1000");
    assert_eq!(session.line("LMOVE k k LEFT RIGHT").text(), "a");
    assert_eq!(session.line("TTL k").text(), ":1000");
    session.line("SADD s a");
    session.line("EXPIRE s 1000");
    assert_eq!(session.line("SUNIONSTORE s s").text(), ":1");
    assert_eq!(session.line("TTL s").text(), ":-1");
}

/// Walks a collection from cursor 0 to cursor 0.
fn walk(session: &mut Session, command: &str, options: &str) -> (Vec<String>, usize) {
    let (mut found, mut calls, mut cursor) = (Vec::new(), 0, "0".to_owned());
    loop {
        let line = format!("{command} {cursor} {options}");
        let mut items = session.line(line.trim_end()).items().into_iter();
        cursor = items.next().unwrap().text();
        found.extend(items.next().unwrap().items().iter().map(Reply::text));
        calls += 1;
        if cursor == "0" {
            return (found, calls);
        }
    }
}

#[test]
fn walk_in_pieces_sees_everything_once() {
    let mut session = Session::new();
    let mut expected = Vec::new();
    for number in 0..1000 {
        session.line(&format!("SADD s m{number}"));
        session.line(&format!("HSET h m{number} {number}"));
        session.line(&format!("ZADD z {number} m{number}"));
        expected.push(format!("m{number}"));
    }
    expected.sort();
    for (command, width) in [("SSCAN s", 1), ("HSCAN h", 2), ("ZSCAN z", 2)] {
        let (found, calls) = walk(&mut session, command, "COUNT 7");
        assert_eq!(calls, 143);
        let mut names: Vec<_> = found.chunks(width).map(|entry| entry[0].clone()).collect();
        names.sort();
        assert_eq!(names, expected);
        assert!(
            found
                .chunks(width)
                .all(|entry| width == 1 || entry[0] == format!("m{}", entry[1]))
        );
        let (found, _) = walk(&mut session, command, "MATCH m99?");
        assert_eq!(found.len(), 10 * width);
    }
    // A collection that Redis keeps compact is returned whole, as there.
    session.line("HSET small a 1 b 2 c 3");
    assert_eq!(walk(&mut session, "HSCAN small", "COUNT 1").1, 1);
}

#[test]
fn every_member_may_be_chosen_and_none_twice() {
    let mut session = Session::new();
    for number in 0..20 {
        session.line(&format!("SADD s {number}"));
        session.line(&format!("HSET h {number} v"));
        session.line(&format!("ZADD z 1 {number}"));
    }
    for command in ["SRANDMEMBER s", "HRANDFIELD h", "ZRANDMEMBER z"] {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..400 {
            seen.insert(session.line(command).text());
        }
        assert_eq!(seen.len(), 20, "{command}");
        for count in [1, 3, 15, 20] {
            let items = session.line(&format!("{command} {count}")).items();
            let different: std::collections::BTreeSet<_> = items.iter().collect();
            assert_eq!((items.len(), different.len()), (count, count), "{command}");
        }
        assert_eq!(session.line(&format!("{command} 100")).items().len(), 20);
        assert_eq!(session.line(&format!("{command} -100")).items().len(), 100);
    }
    let mut popped = std::collections::BTreeSet::new();
    for _ in 0..10 {
        popped.insert(session.line("SPOP s").text());
    }
    popped.extend(session.line("SPOP s 10").items().iter().map(Reply::text));
    assert_eq!(popped.len(), 20);
    assert_eq!(session.line("EXISTS s").text(), ":0");
}

#[test]
fn boundless_reply_is_cut_off() {
    use quintet_store::{Store, StoreOptions};
    let mut session = Session::new();
    session.store = Store::new(StoreOptions {
        max_reply_bytes: 10_000,
        ..StoreOptions::default()
    });
    session.line("SADD s member");
    session.line("HSET h f v");
    session.line("ZADD z 1 m");
    for command in ["SRANDMEMBER s", "HRANDFIELD h", "ZRANDMEMBER z"] {
        let reply = session
            .line(&format!("{command} -9223372036854775807"))
            .text();
        assert_eq!(
            reply,
            "-ERR reply exceeds what limits.value_bytes_max allows (10000)"
        );
    }
}

#[test]
fn removal_is_limited_to_largest_reply() {
    use quintet_store::{Store, StoreOptions};
    let mut session = Session::new();
    session.store = Store::new(StoreOptions {
        max_reply_bytes: 10_000,
        ..StoreOptions::default()
    });
    for number in 0..1000 {
        session.line(&format!("SADD s {number:050}"));
        session.line(&format!("RPUSH l {number:050}"));
        session.line(&format!("ZADD z 1 {number:050}"));
    }
    let digest = session.store.digest();
    for command in [
        "SPOP s 500",
        "LPOP l 500",
        "RPOP l 500",
        "LMPOP 1 l LEFT COUNT 500",
        "ZPOPMIN z 500",
        "ZMPOP 1 z MAX COUNT 500",
    ] {
        let reply = session.line(command).text();
        assert_eq!(
            reply,
            "-ERR reply exceeds what limits.value_bytes_max allows (10000)"
        );
    }
    assert_eq!(session.store.digest(), digest);
    assert_eq!(session.line("SPOP s 50").items().len(), 50);
    assert_eq!(session.line("SCARD s").text(), ":950");
}

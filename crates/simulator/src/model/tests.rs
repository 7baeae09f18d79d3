//! The specification against what Redis answers, command by command.

use super::*;

/// Runs commands on one fresh machine and compares the answers.
fn conversation(steps: &[(&[&str], Answer)]) {
    let mut keys = Keys::default();
    let mut states = vec![KeyState::default(); 16];
    for (words, expected) in steps {
        let call = compile(&Call::of(words), &mut keys).unwrap();
        let answer = call.groups[0].apply(&mut states);
        assert!(
            answer.agrees(expected),
            "{words:?}: {answer}, not {expected}"
        );
    }
}

fn n(number: i64) -> Answer {
    Answer::Number(number)
}

fn t(text: &str) -> Answer {
    Answer::text(text)
}

fn l(texts: &[&str]) -> Answer {
    Answer::List(texts.iter().map(|text| t(text)).collect())
}

fn wrong() -> Answer {
    Answer::Error("WRONGTYPE".to_owned())
}

fn err() -> Answer {
    Answer::Error("ERR".to_owned())
}

#[test]
fn texts() {
    conversation(&[
        (&["GET", "k"], Answer::Nil),
        (&["SET", "k", "v", "XX"], Answer::Nil),
        (&["SET", "k", "v"], t("OK")),
        (&["set", "k", "w", "nx"], Answer::Nil),
        (&["SET", "k", "w", "GET"], t("v")),
        (&["SETNX", "k", "x"], n(0)),
        (&["GETSET", "k", "x"], t("w")),
        (&["APPEND", "k", "yz"], n(3)),
        (&["STRLEN", "k"], n(3)),
        (&["INCR", "k"], err()),
        (&["CAS", "k", "xyz", "7"], n(1)),
        (&["CAS", "k", "xyz", "8"], n(0)),
        (&["INCRBY", "k", "-9"], n(-2)),
        (&["DECR", "k"], n(-3)),
        (&["SET", "k", "007"], t("OK")),
        (&["INCR", "k"], err()),
        (&["SET", "k", "9223372036854775807"], t("OK")),
        (&["INCR", "k"], err()),
        (&["TYPE", "k"], t("string")),
        (&["GETDEL", "k"], t("9223372036854775807")),
        (&["GETDEL", "k"], Answer::Nil),
        (&["DECRBY", "k", "2"], n(-2)),
        (&["MSET", "a", "1", "b", "2"], t("OK")),
        (&["RPUSH", "c", "1"], n(1)),
        (
            &["MGET", "a", "c", "d", "b"],
            Answer::List(vec![t("1"), Answer::Nil, Answer::Nil, t("2")]),
        ),
        (&["EXISTS", "a", "a", "d"], n(2)),
        (&["DEL", "a", "c", "d"], n(2)),
        (&["TYPE", "a"], t("none")),
    ]);
}

#[test]
fn deadlines() {
    conversation(&[
        (&["EXPIRE", "k", "10"], n(0)),
        (&["TTL", "k"], n(-2)),
        (&["SET", "k", "v", "EX", "10"], t("OK")),
        (&["TTL", "k"], n(0)),
        (&["PERSIST", "k"], n(1)),
        (&["PERSIST", "k"], n(0)),
        (&["TTL", "k"], n(-1)),
        (&["PEXPIRE", "k", "10"], n(1)),
        (&["APPEND", "k", "w"], n(2)),
        (&["TTL", "k"], n(0)),
        (&["SET", "k", "v", "KEEPTTL"], t("OK")),
        (&["TTL", "k"], n(0)),
        (&["SET", "k", "v"], t("OK")),
        (&["TTL", "k"], n(-1)),
        (&["EXPIRE", "k", "-1"], n(1)),
        (&["GET", "k"], Answer::Nil),
    ]);
}

#[test]
fn hashes() {
    conversation(&[
        (&["HSET", "h", "b", "1", "a", "2"], n(2)),
        (&["HSET", "h", "b", "3"], n(0)),
        (&["HGET", "h", "b"], t("3")),
        (&["HGET", "h", "x"], Answer::Nil),
        (&["HGETALL", "h"], l(&["a", "2", "b", "3"])),
        (&["HINCRBY", "h", "b", "-5"], n(-2)),
        (&["HSETNX", "h", "b", "9"], n(0)),
        (&["HSETNX", "h", "c", "x"], n(1)),
        (&["HINCRBY", "h", "c", "1"], err()),
        (&["HEXISTS", "h", "c"], n(1)),
        (&["HLEN", "h"], n(3)),
        (&["GET", "h"], wrong()),
        (&["SET", "h", "x", "GET"], wrong()),
        (&["HDEL", "h", "a", "b", "c", "d"], n(3)),
        (&["EXISTS", "h"], n(0)),
    ]);
}

#[test]
fn lists_and_sets() {
    conversation(&[
        (&["RPUSH", "l", "a", "b"], n(2)),
        (&["LPUSH", "l", "c", "d"], n(4)),
        (&["LRANGE", "l", "0", "-1"], l(&["d", "c", "a", "b"])),
        (&["LRANGE", "l", "1", "2"], l(&["c", "a"])),
        (&["LRANGE", "l", "-2", "9"], l(&["a", "b"])),
        (&["LRANGE", "l", "3", "1"], l(&[])),
        (&["LRANGE", "l", "5", "-9"], l(&[])),
        (&["LINDEX", "l", "-1"], t("b")),
        (&["LINDEX", "l", "-9"], Answer::Nil),
        (&["LPOP", "l"], t("d")),
        (&["RPOP", "l"], t("b")),
        (&["LLEN", "l"], n(2)),
        (&["SADD", "l", "x"], wrong()),
        (&["RPOP", "l"], t("a")),
        (&["RPOP", "l"], t("c")),
        (&["RPOP", "l"], Answer::Nil),
        (&["TYPE", "l"], t("none")),
        (&["SADD", "s", "b", "a", "b"], n(2)),
        (&["SMEMBERS", "s"], l(&["a", "b"])),
        (&["SISMEMBER", "s", "b"], n(1)),
        (&["SREM", "s", "b", "z"], n(1)),
        (&["SCARD", "s"], n(1)),
        (&["SREM", "s", "a"], n(1)),
        (&["EXISTS", "s"], n(0)),
    ]);
}

#[test]
fn unspecified_command_is_rejected_by_name() {
    let call = |words: &[&str]| {
        let words = words
            .iter()
            .map(|word| Bytes::copy_from_slice(word.as_bytes()));
        Call::new(words.collect())
    };
    assert_eq!(
        call(&["ZADD", "k"]),
        Err(CallError::Unknown("ZADD".to_owned()))
    );
    assert_eq!(call(&["PING"]), Err(CallError::Unknown("PING".to_owned())));
    assert_eq!(call(&["GET"]), Err(CallError::Arguments("GET".to_owned())));
    assert_eq!(
        call(&["SET", "k"]),
        Err(CallError::Arguments("SET".to_owned()))
    );
    assert_eq!(
        call(&["INCRBY", "k", "x"]),
        Err(CallError::Arguments("INCRBY".to_owned()))
    );
    assert_eq!(
        call(&["MSET", "k"]),
        Err(CallError::Arguments("MSET".to_owned()))
    );
    assert_eq!(call(&[]), Err(CallError::Empty));
    let watch = vec![vec![Bytes::from_static(b"WATCH"), Bytes::from_static(b"k")]];
    assert!(Call::transaction(watch).is_err());
    assert!(Call::of(&["MGET", "a"]).is_read() && !Call::of(&["INCR", "a"]).is_read());
}

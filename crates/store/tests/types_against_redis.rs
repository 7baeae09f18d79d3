//! Random commands on collections, given to this store and to a real Redis 7.0: the replies must be
//! the same bytes, but for the order where order means nothing.
//!
//! Where there is no `redis-server` of that version, there is nothing to compare with and the test
//! says so; the recorded transcripts are compared everywhere.

#![allow(
    clippy::unwrap_used,
    reason = "a test that panics has failed, as it should"
)]

mod types_support;

use quintet_store::Random;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use types_support::words::{HASHES, LISTS, NAMES, SETS, SORTED_SETS, Words};
use types_support::{Reply, Session, is_unordered};

struct Redis {
    process: Child,
    stream: UnixStream,
    directory: PathBuf,
}

impl Redis {
    fn start(name: &str) -> Option<Self> {
        let version = Command::new("redis-server")
            .arg("--version")
            .output()
            .ok()?;
        if !String::from_utf8_lossy(&version.stdout).contains("v=7.0.") {
            return None;
        }
        let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).ok()?;
        let socket = directory.join("socket");
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&directory)
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        let mut redis = loop {
            if let Ok(stream) = UnixStream::connect(&socket) {
                break Self {
                    process,
                    stream,
                    directory,
                };
            }
            std::thread::yield_now();
        };
        assert_eq!(redis.run(&[b"PING"]), b"+PONG\r\n");
        Some(redis)
    }

    fn run(&mut self, command: &[&[u8]]) -> Vec<u8> {
        let mut request = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&request).unwrap();
        let mut reply = Vec::new();
        let mut piece = [0; 65536];
        loop {
            let length = self.stream.read(&mut piece).unwrap();
            assert!(length > 0, "Redis closed the connection");
            reply.extend_from_slice(&piece[..length]);
            if Reply::parse_one(&mut reply.as_slice()).is_some() {
                return reply;
            }
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn compare(name: &str, templates: &[&str], rounds: u64) {
    let Some(mut redis) = Redis::start(&format!("quintet-store-{name}")) else {
        eprintln!("no redis-server 7.0 here: nothing to compare with");
        return;
    };
    for round in 0..rounds {
        redis.run(&[b"FLUSHALL"]);
        let mut session = Session::new();
        session.resp3 = round % 2 == 1;
        redis.run(&[b"HELLO", if session.resp3 { b"3" } else { b"2" }]);
        let mut words = Words(Random::new(round));
        let mut history = Vec::new();
        for _ in 0..200 {
            let template = words.one(templates);
            let command = words.expand(template);
            let parts: Vec<&[u8]> = command.iter().map(String::as_bytes).collect();
            let (ours, theirs) = (session.run(&parts), redis.run(&parts));
            let (mut ours, mut theirs) = (Reply::parse(&ours), Reply::parse(&theirs));
            history.push(command.join(" "));
            if is_unordered(&command[0]) || (command[0] == "SPOP" && command.len() == 3) {
                (ours, theirs) = (ours.sorted(), theirs.sorted());
            }
            assert_eq!(
                ours,
                theirs,
                "round {round}, ours and Redis's differ after\n{}",
                history.join("\n")
            );
        }
    }
}

/// WATCH must see a change where Redis's does, and nowhere else.
#[test]
fn watched_keys_change_as_in_redis() {
    const KEYS: &[&str] = &[
        "h1", "h2", "l1", "l2", "s1", "s2", "z1", "z2", "z3", "n", "m",
    ];
    let Some(mut redis) = Redis::start("quintet-store-watch") else {
        eprintln!("no redis-server 7.0 here: nothing to compare with");
        return;
    };
    let mut other = UnixStream::connect(redis.directory.join("socket")).unwrap();
    let templates = [HASHES, LISTS, SETS, SORTED_SETS, NAMES].concat();
    let mut seen = [0, 0];
    for round in 0..30 {
        redis.run(&[b"FLUSHALL"]);
        let mut session = Session::new();
        let mut words = Words(Random::new(1000 + round));
        let mut history = Vec::new();
        for _ in 0..150 {
            let command = words.any(&templates);
            let parts: Vec<&[u8]> = command.iter().map(String::as_bytes).collect();
            let named: Vec<&str> = KEYS
                .iter()
                .copied()
                .filter(|key| command.iter().any(|word| word == key))
                .collect();
            let key = words
                .one(if named.is_empty() { KEYS } else { &named })
                .as_bytes();
            redis.run(&[b"WATCH", key]);
            std::mem::swap(&mut redis.stream, &mut other);
            redis.run(&parts);
            std::mem::swap(&mut redis.stream, &mut other);
            redis.run(&[b"MULTI"]);
            let theirs = redis.run(&[b"EXEC"]) == b"*-1\r\n";
            let before = session.version(key);
            session.run(&parts);
            let ours = session.version(key) != before;
            history.push(command.join(" "));
            seen[usize::from(ours)] += 1;
            assert_eq!(
                ours,
                theirs,
                "round {round}: {} changed (ours, Redis's) after\n{}",
                key.escape_ascii(),
                history.join("\n")
            );
        }
    }
    assert!(
        seen[0] > 100 && seen[1] > 100,
        "both must have happened: {seen:?}"
    );
}

/// Collections beyond Redis's compact forms, and long replies.
#[test]
fn large_collections_answer_as_redis_does() {
    let Some(mut redis) = Redis::start("quintet-store-large") else {
        eprintln!("no redis-server 7.0 here: nothing to compare with");
        return;
    };
    let mut session = Session::new();
    let mut random = Random::new(5);
    let mut both = |command: &[&[u8]]| {
        let name = String::from_utf8_lossy(command[0]).into_owned();
        let ours = Reply::parse(&session.run(command));
        let theirs = Reply::parse(&redis.run(command));
        if is_unordered(&name) {
            assert_eq!(ours.sorted(), theirs.sorted(), "{name}");
        } else {
            assert_eq!(ours, theirs, "{}", command.join(&b' ').escape_ascii());
        }
    };
    for step in 0..6000 {
        let member = random.below(3000).to_string().into_bytes();
        let score = (random.below(40) as f64 / 4.0).to_string().into_bytes();
        both(&[b"ZADD", b"z", &score, &member]);
        both(&[b"ZADD", b"n", b"0", &member]);
        both(&[b"HSET", b"h", &member, &score]);
        both(&[b"SADD", b"s", &member]);
        both(&[b"RPUSH", b"l", &member]);
        if step % 3 == 0 {
            let other = random.below(3000).to_string().into_bytes();
            both(&[b"ZREM", b"z", &other]);
            both(&[b"ZREM", b"n", &other]);
            both(&[b"HDEL", b"h", &other]);
            both(&[b"SREM", b"s", &other]);
            both(&[b"LPOP", b"l"]);
        }
        if step % 60 == 0 {
            let from = random.below(2500).to_string().into_bytes();
            let to = random.below(2500).to_string().into_bytes();
            let low = (random.below(40) as f64 / 4.0).to_string().into_bytes();
            let open = [&b"("[..], &score].concat();
            let first = [&b"["[..], &from].concat();
            let last = [&b"("[..], &to].concat();
            both(&[b"ZRANGE", b"z", &from, &to, b"WITHSCORES"]);
            both(&[b"ZREVRANGE", b"z", &from, &to]);
            both(&[b"ZRANK", b"z", &member]);
            both(&[b"ZREVRANK", b"z", &from]);
            both(&[b"ZCOUNT", b"z", &low, &open]);
            both(&[b"ZRANGEBYSCORE", b"z", &low, &open, b"LIMIT", b"20", b"30"]);
            both(&[
                b"ZREVRANGEBYSCORE",
                b"z",
                &open,
                &low,
                b"LIMIT",
                b"5",
                b"-1",
            ]);
            both(&[b"ZRANGEBYLEX", b"n", &first, &last]);
            both(&[b"ZREVRANGEBYLEX", b"n", &last, &first, b"LIMIT", b"3", b"9"]);
            both(&[b"ZLEXCOUNT", b"n", &first, &last]);
            both(&[b"LRANGE", b"l", &from, &to]);
            both(&[b"LPOS", b"l", &member, b"COUNT", b"0"]);
            both(&[b"LINDEX", b"l", &from]);
            both(&[b"HGETALL", b"h"]);
            both(&[b"SMEMBERS", b"s"]);
        }
    }
    both(&[
        b"ZUNIONSTORE",
        b"u",
        b"2",
        b"z",
        b"s",
        b"WEIGHTS",
        b"2",
        b"3",
    ]);
    both(&[b"ZRANGE", b"u", b"0", b"-1", b"WITHSCORES"]);
    both(&[b"ZINTERSTORE", b"u", b"2", b"z", b"n"]);
    both(&[b"ZRANGE", b"u", b"0", b"-1", b"WITHSCORES"]);
    both(&[b"ZREMRANGEBYRANK", b"z", b"100", b"900"]);
    both(&[b"ZREMRANGEBYSCORE", b"z", b"(3", b"7"]);
    both(&[b"ZREMRANGEBYLEX", b"n", b"[1", b"(2"]);
    both(&[b"ZRANGE", b"z", b"0", b"-1", b"WITHSCORES"]);
    both(&[b"ZRANGE", b"n", b"0", b"-1"]);
    both(&[b"ZPOPMIN", b"z", b"300"]);
    both(&[b"ZPOPMAX", b"n", b"300"]);
    both(&[b"LTRIM", b"l", b"50", b"-70"]);
    both(&[b"LRANGE", b"l", b"0", b"-1"]);
    both(&[b"OBJECT", b"ENCODING", b"z"]);
    both(&[b"OBJECT", b"ENCODING", b"h"]);
    both(&[b"OBJECT", b"ENCODING", b"s"]);
}

#[test]
fn hashes_answer_as_redis_does() {
    compare("hashes", HASHES, 60);
}

#[test]
fn lists_answer_as_redis_does() {
    compare("lists", LISTS, 60);
}

#[test]
fn sets_answer_as_redis_does() {
    compare("sets", SETS, 60);
}

#[test]
fn sorted_sets_answer_as_redis_does() {
    compare("sorted-sets", SORTED_SETS, 120);
}

#[test]
fn ranges_of_names_answer_as_redis_does() {
    compare("names", NAMES, 60);
}

#[test]
fn all_types_answer_as_redis_does() {
    let all = [HASHES, LISTS, SETS, SORTED_SETS, NAMES].concat();
    compare("all", &all, 60);
}

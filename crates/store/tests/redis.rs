//! Compares the store's replies byte by byte with the replies of Redis 7.0.15.
//!
//! ```text
//!   tests/redis/*.txt     > SET k v          a command, quoted as redis-cli takes it
//!                         +OK\r\n            the recorded reply, escaped, on one line
//! ```
//!
//! A `~` in place of `>`: the order of the elements is Redis's own affair. `! resp3` and `! resp2`
//! switch the protocol. SELECT switches the database. Every file begins with empty databases.
//!
//! With `REDIS_ADDRESS=127.0.0.1:PORT` in the environment the replies are recorded again, and
//! `REDIS_SCRIPTS` names another folder of scripts.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use quintet_replica::{At, CommandId, CommandTime, Position, SessionId, StateMachine};
use quintet_store::{Kind, Mode, RequestBuilder, Store, lookup};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

fn words(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut bytes = line.bytes().peekable();
    loop {
        while bytes.next_if(|byte| *byte == b' ').is_some() {}
        let Some(first) = bytes.next() else {
            return words;
        };
        let mut word = Vec::new();
        if first == b'"' {
            while let Some(byte) = bytes.next() {
                match byte {
                    b'"' => break,
                    b'\\' => match bytes.next().unwrap() {
                        b'n' => word.push(b'\n'),
                        b'r' => word.push(b'\r'),
                        b't' => word.push(b'\t'),
                        b'x' => {
                            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                            let digits = std::str::from_utf8(&digits).unwrap().to_owned();
                            word.push(u8::from_str_radix(&digits, 16).unwrap());
                        }
                        other => word.push(other),
                    },
                    other => word.push(other),
                }
            }
        } else {
            word.push(first);
            while let Some(byte) = bytes.next_if(|byte| *byte != b' ') {
                word.push(byte);
            }
        }
        words.push(word);
    }
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            b'\r' => text.push_str("\\r"),
            b'\n' => text.push_str("\\n"),
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(*byte)),
            other => write!(text, "\\x{other:02x}").unwrap(),
        }
    }
    text
}

/// Splits a reply into its head and its elements.
fn elements(reply: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut reader = BufReader::new(reply);
    let mut head = Vec::new();
    reader.read_until(b'\n', &mut head).unwrap();
    let mut elements = Vec::new();
    while !reader.fill_buf().unwrap().is_empty() {
        elements.push(read_reply(&mut reader));
    }
    (head, elements)
}

fn read_reply(reader: &mut impl BufRead) -> Vec<u8> {
    let mut reply = Vec::new();
    reader.read_until(b'\n', &mut reply).unwrap();
    let text = String::from_utf8_lossy(&reply[1..]).trim().to_owned();
    let number = text.parse::<i64>().unwrap_or(0).max(0) as usize;
    match reply.first() {
        Some(b'$' | b'=') if text != "-1" => {
            let start = reply.len();
            reply.resize(start + number + 2, 0);
            reader.read_exact(&mut reply[start..]).unwrap();
        }
        Some(b'*' | b'~' | b'>') => {
            for _ in 0..number {
                reply.extend(read_reply(reader));
            }
        }
        Some(b'%') => {
            for _ in 0..2 * number {
                reply.extend(read_reply(reader));
            }
        }
        _ => {}
    }
    reply
}

/// Equal, or equal but for the order of the elements.
fn same(one: &[u8], other: &[u8], any_order: bool) -> bool {
    if one == other || !any_order {
        return one == other;
    }
    let ((head_one, mut one), (head_other, mut other)) = (elements(one), elements(other));
    one.sort();
    other.sort();
    head_one == head_other && one == other
}

struct Redis {
    stream: BufReader<TcpStream>,
}

impl Redis {
    fn call(&mut self, words: &[Vec<u8>]) -> Vec<u8> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request).unwrap();
        read_reply(&mut self.stream)
    }
}

struct Ours {
    store: Store,
    mode: Mode,
    sequence: u64,
}

impl Ours {
    fn new() -> Self {
        Self {
            store: Store::default(),
            mode: Mode::default(),
            sequence: 0,
        }
    }

    /// Executes a command as an ordered one, and before that as a query if it is a read.
    fn call(&mut self, words: &[Vec<u8>]) -> Vec<u8> {
        let name = String::from_utf8_lossy(&words[0]).into_owned();
        let spec = lookup(&words[0]).unwrap_or_else(|| panic!("no command {name}"));
        let args: Vec<&[u8]> = words[1..].iter().map(Vec::as_slice).collect();
        if !spec.arity_fits(args.len()) {
            return format!("-{}\r\n", spec.arity_error()).into_bytes();
        }
        let mut request = RequestBuilder::new();
        request.command(spec, self.mode, &args);
        self.sequence += 1;
        let at = At {
            position: Position(self.sequence),
            time: CommandTime(1_800_000_000_000_000_000),
            id: CommandId {
                session: SessionId {
                    owner: 7,
                    number: 1,
                },
                sequence: self.sequence,
            },
        };
        let mut queried = Vec::new();
        self.store.tick(&at);
        self.store.query(&at, request.as_bytes(), &mut queried);
        let mut reply = Vec::new();
        self.store.apply(&at, request.as_bytes(), &mut reply);
        if spec.kind == Kind::Read && !name.to_ascii_lowercase().contains("rand") {
            assert_eq!(escape(&reply), escape(&queried), "{name} as a query");
        }
        if name.eq_ignore_ascii_case("select") && reply == b"+OK\r\n" {
            self.mode.database = std::str::from_utf8(args[0]).unwrap().parse().unwrap();
        }
        reply
    }
}

fn scripts() -> Vec<PathBuf> {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redis");
    let folder = std::env::var("REDIS_SCRIPTS").map_or(default, PathBuf::from);
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

fn is_command(line: &str) -> bool {
    line.starts_with("> ") || line.starts_with("~ ")
}

fn record(path: &Path, address: &str) {
    let mut redis = Redis {
        stream: BufReader::new(TcpStream::connect(address).unwrap()),
    };
    redis.call(&words("FLUSHALL"));
    let mut out = String::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        if is_command(line) {
            let reply = redis.call(&words(&line[2..]));
            writeln!(out, "{line}\n{}", escape(&reply)).unwrap();
        } else if line.is_empty() || line.starts_with('#') || line.starts_with('!') {
            if let Some(resp) = line.strip_prefix("! resp") {
                redis.call(&words(&format!("HELLO {resp}")));
            }
            writeln!(out, "{line}").unwrap();
        }
    }
    fs::write(path, out).unwrap();
}

fn unescape(text: &str) -> Vec<u8> {
    words(&format!("\"{}\"", text.replace('"', "\\\"")))
        .pop()
        .unwrap_or_default()
}

#[test]
fn answers_are_those_of_redis() {
    let mut wrong = String::new();
    let mut compared = 0;
    for path in scripts() {
        if let Ok(address) = std::env::var("REDIS_ADDRESS") {
            record(&path, &address);
        }
        let mut ours = Ours::new();
        let text = fs::read_to_string(&path).unwrap();
        let mut lines = text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            if let Some(resp) = line.strip_prefix("! resp") {
                ours.mode.resp3 = resp == "3";
            }
            if !is_command(line) {
                continue;
            }
            let expected = unescape(lines.next().map_or("", |(_, line)| line));
            let reply = ours.call(&words(&line[2..]));
            compared += 1;
            if !same(&expected, &reply, line.starts_with('~')) {
                let file = path.file_name().unwrap().to_string_lossy();
                let (expected, reply) = (escape(&expected), escape(&reply));
                writeln!(
                    wrong,
                    "{file}:{} {line}\n  redis {expected}\n  store {reply}",
                    number + 1
                )
                .unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(compared > 0);
}

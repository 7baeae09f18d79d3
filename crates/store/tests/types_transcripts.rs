//! The store gives the replies of Redis 7.0 to these commands, byte for byte.
//!
//! ```text
//!   # a comment        @3  from here on in RESP3
//!   > HSET h a 1       a command, words separated by single blanks, "" for an empty word
//!   :1\r\n             the recorded reply
//! ```

#![allow(
    clippy::unwrap_used,
    reason = "a test that panics has failed, as it should"
)]

mod types_support;

use types_support::{Reply, Session, is_unordered};

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next() {
                Some(b'r') => b'\r',
                Some(b'n') => b'\n',
                other => other.expect("something is escaped"),
            },
            byte => byte,
        });
    }
    bytes
}

fn replay(transcript: &str) {
    let mut session = Session::new();
    let mut lines = transcript.lines();
    let mut compared = 0;
    while let Some(line) = lines.next() {
        if let Some(version) = line.strip_prefix('@') {
            session.resp3 = version == "3";
        } else if let Some(command) = line.strip_prefix("> ") {
            let words: Vec<&[u8]> = command
                .split(' ')
                .map(|word| {
                    if word == "\"\"" {
                        &b""[..]
                    } else {
                        word.as_bytes()
                    }
                })
                .collect();
            let expected = unescape(lines.next().expect("a reply follows every command"));
            let given = session.run(&words);
            let name = command.split(' ').next().unwrap();
            if is_unordered(name) {
                assert_eq!(
                    Reply::parse(&given).sorted(),
                    Reply::parse(&expected).sorted(),
                    "{command}"
                );
            } else {
                assert_eq!(
                    given.escape_ascii().to_string(),
                    expected.escape_ascii().to_string(),
                    "{command}"
                );
            }
            compared += 1;
        } else {
            assert!(line.is_empty() || line.starts_with('#'), "{line}");
        }
    }
    assert!(compared > 90, "the transcript was read to its end");
}

#[test]
fn hashes() {
    replay(include_str!("types_transcripts/hashes.txt"));
}

#[test]
fn lists() {
    replay(include_str!("types_transcripts/lists.txt"));
}

#[test]
fn sets() {
    replay(include_str!("types_transcripts/sets.txt"));
}

#[test]
fn sorted_sets() {
    replay(include_str!("types_transcripts/sorted_sets.txt"));
}

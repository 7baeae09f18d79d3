//! ZooKeeper's own client protocol, as far as reading and writing nodes needs it.
//!
//! ```text
//!   length ┬ ConnectRequest                          length ┬ ConnectResponse: the session
//!          └ number, operation, path, data …                └ number, position, error, data …
//! ```
//!
//! Everything is big-endian and begins with its length. A session answers in the order of its
//! requests. Keys are nodes right below the root, made by the filling, written with any version;
//! a read is the server's own (ordered, not linearizable), as ZooKeeper's are, unless a `sync` is
//! sent before it: then its member has what the leader had when that passed by.

use super::dialect::{Dialect, Ended, Kind, Request};
use std::collections::VecDeque;

/// How long a session outlives its connection.
const TIMEOUT_MS: i32 = 30_000;
const CREATE: i32 = 1;
const GET: i32 = 4;
const SET: i32 = 5;
const SYNC: i32 = 9;
/// Every right, in a node's access list.
const ALL: i32 = 31;
const NODE_EXISTS: i32 = -110;
/// No answer to these requests is longer.
const ANSWER_MAX: usize = 1 << 24;

/// One session.
#[derive(Debug)]
pub struct Session {
    is_open: bool,
    issued: u32,
    ended: u64,
    sync: bool,
    /// Of each answer to come: whether it is that to a `sync`.
    expected: VecDeque<bool>,
    /// The error of the `sync` whose read has not been answered.
    refused: Option<String>,
}

impl Session {
    /// A session that was not yet asked for.
    pub const fn new(sync: bool) -> Self {
        Self {
            is_open: false,
            issued: 0,
            ended: 0,
            sync,
            expected: VecDeque::new(),
            refused: None,
        }
    }
}

impl Session {
    /// The next request's number; below zero they mean other things.
    const fn number(&mut self) -> i32 {
        let number = (self.issued & 0x7fff_ffff) as i32;
        self.issued = self.issued.wrapping_add(1);
        number
    }
}

fn int(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    int(out, i32::try_from(value.len()).unwrap_or(i32::MAX));
    out.extend_from_slice(value);
}

/// Appends a packet whose content `write` appends.
fn packet(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    int(out, 0);
    write(out);
    let length = i32::try_from(out.len() - start - 4).unwrap_or(i32::MAX);
    out[start..start + 4].copy_from_slice(&length.to_be_bytes());
}

fn int_at(input: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(input.get(at..at + 4)?.try_into().ok()?))
}

impl Dialect for Session {
    fn greet(&mut self, out: &mut Vec<u8>) {
        packet(out, |out| {
            int(out, 0);
            out.extend_from_slice(&0u64.to_be_bytes());
            int(out, TIMEOUT_MS);
            out.extend_from_slice(&0u64.to_be_bytes());
            bytes(out, &[0; 16]);
            out.push(0);
        });
    }

    fn request(&mut self, request: &Request, value: &[u8], out: &mut Vec<u8>) {
        let mut path = [0; 17];
        path[0] = b'/';
        path[1..].copy_from_slice(&request.key);
        if self.sync && request.kind == Kind::Read {
            let number = self.number();
            self.expected.push_back(true);
            packet(out, |out| {
                int(out, number);
                int(out, SYNC);
                bytes(out, &path);
            });
        }
        let number = self.number();
        self.expected.push_back(false);
        packet(out, |out| {
            int(out, number);
            match request.kind {
                Kind::Read => {
                    int(out, GET);
                    bytes(out, &path);
                    out.push(0);
                }
                Kind::Write => {
                    int(out, SET);
                    bytes(out, &path);
                    bytes(out, value);
                    int(out, -1);
                }
                Kind::Create => {
                    int(out, CREATE);
                    bytes(out, &path);
                    bytes(out, value);
                    int(out, 1);
                    int(out, ALL);
                    bytes(out, b"world");
                    bytes(out, b"anyone");
                    int(out, 0);
                }
            }
        });
    }

    fn digest(&mut self, input: &[u8], _: &mut Vec<u8>, ended: &mut Vec<Ended>) -> Option<usize> {
        let mut consumed = 0;
        loop {
            let rest = &input[consumed..];
            let Some(length) = int_at(rest, 0) else {
                return Some(consumed);
            };
            let length = usize::try_from(length).ok()?;
            if length > ANSWER_MAX {
                return None;
            }
            let Some(answer) = rest.get(4..4 + length) else {
                return Some(consumed);
            };
            consumed += 4 + length;
            if !self.is_open {
                // A time-out of 0 refuses the session.
                if int_at(answer, 4)? <= 0 {
                    return None;
                }
                self.is_open = true;
                continue;
            }
            let number = int_at(answer, 0)?;
            if number < 0 {
                continue;
            }
            let error = match int_at(answer, 12)? {
                0 | NODE_EXISTS => None,
                code => Some(format!("error{code}")),
            };
            if self.expected.pop_front().unwrap_or(false) {
                self.refused = error;
                continue;
            }
            let error = self.refused.take().or(error);
            let number = self.ended;
            self.ended += 1;
            ended.push(Ended { number, error });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(number: i32, error: i32, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        packet(&mut out, |out| {
            int(out, number);
            out.extend_from_slice(&7u64.to_be_bytes());
            int(out, error);
            out.extend_from_slice(data);
        });
        out
    }

    #[test]
    fn session_opens_and_then_its_answers_come_in_order() {
        let mut session = Session::new(false);
        let (mut out, mut ended) = (Vec::new(), Vec::new());
        session.greet(&mut out);
        assert_eq!(out.len(), 4 + 45);
        let key = *b"key:000000000000";
        for kind in [Kind::Write, Kind::Read, Kind::Create] {
            session.request(&Request { kind, key }, b"value", &mut out);
        }
        let mut input = Vec::new();
        packet(&mut input, |out| {
            int(out, 0);
            int(out, TIMEOUT_MS);
            out.extend_from_slice(&1u64.to_be_bytes());
            bytes(out, &[0; 16]);
            out.push(0);
        });
        input.extend(answer(0, 0, b"stat"));
        input.extend(answer(-1, 0, b"a watch"));
        input.extend(answer(1, -101, b""));
        input.extend(answer(2, NODE_EXISTS, b""));
        for cut in 0..input.len() {
            let mut session = Session::new(false);
            let mut ended = Vec::new();
            let consumed = session.digest(&input[..cut], &mut out, &mut ended).unwrap();
            session.digest(&input[consumed..], &mut out, &mut ended);
            assert_eq!(ended.len(), 3, "cut at {cut}");
        }
        assert_eq!(
            session.digest(&input, &mut out, &mut ended),
            Some(input.len())
        );
        let errors: Vec<_> = ended.iter().map(|one| one.error.as_deref()).collect();
        assert_eq!(errors, [None, Some("error-101"), None]);
        assert_eq!(ended[2].number, 2);
    }

    #[test]
    fn sync_goes_before_each_read_and_the_two_are_one_request() {
        let mut session = Session::new(true);
        let (mut out, mut ended) = (Vec::new(), Vec::new());
        session.is_open = true;
        let key = *b"key:000000000000";
        for kind in [Kind::Read, Kind::Write, Kind::Read] {
            session.request(&Request { kind, key }, b"value", &mut out);
        }
        let mut operations = Vec::new();
        let mut rest = out.as_slice();
        while let Some(length) = int_at(rest, 0) {
            operations.push((int_at(rest, 4).unwrap(), int_at(rest, 8).unwrap()));
            rest = &rest[4 + length as usize..];
        }
        assert_eq!(
            operations,
            [(0, SYNC), (1, GET), (2, SET), (3, SYNC), (4, GET)]
        );
        let mut input = Vec::new();
        for (number, error) in [(0, 0), (1, 0), (2, 0), (3, -4), (4, 0)] {
            input.extend(answer(number, error, b""));
        }
        let consumed = session.digest(&input, &mut out, &mut ended);
        assert_eq!(consumed, Some(input.len()));
        let errors: Vec<_> = ended.iter().map(|one| one.error.as_deref()).collect();
        assert_eq!(errors, [None, None, Some("error-4")]);
    }

    #[test]
    fn refused_session_and_nonsense_end_the_connection() {
        let mut out = Vec::new();
        let refused = [0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        let digest = |input: &[u8], out: &mut Vec<u8>| {
            Session::new(false).digest(input, out, &mut Vec::new())
        };
        assert_eq!(digest(&refused, &mut out), None);
        assert_eq!(digest(b"HTTP/1.1 400", &mut out), None);
        assert_eq!(digest(&[0, 0, 0], &mut out), Some(0));
    }
}

//! etcd's version 3 API: as much of gRPC, HTTP/2 and protocol buffers as `Put` and `Range` need.
//!
//! ```text
//!   request  ──► HEADERS (method, path …) + DATA (flag, length, message, END_STREAM)   stream 1, 3, 5 …
//!   answer   ◄── HEADERS + DATA (message) + HEADERS (grpc-status, END_STREAM)
//!   an error ◄── HEADERS (grpc-status, END_STREAM), no DATA
//! ```
//!
//! A message longer than a frame goes in several, and no more of it than etcd says that it has room
//! for (WINDOW_UPDATE, on the stream and on the connection); the rest waits.
//!
//! Streams share a connection, and their answers come in any order. Headers are written by the
//! first request of each kind as entries of the connection's header table and from then on as one
//! byte each, as gRPC's own libraries do. Answers' headers need not be read: a call was answered
//! well exactly if a message came.

use super::dialect::{Dialect, Ended, Kind, Request};
use std::collections::VecDeque;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const HEADER_LENGTH: usize = 9;
/// No frame may be longer: the length that HTTP/2 begins with.
const FRAME_MAX: usize = 16_384;
/// How much may come before this side says that it has room for more.
const WINDOW: u32 = (1 << 31) - 1;
const WINDOW_FIRST: u32 = 65_535;
/// The setting of how much may be sent on a stream at first.
const INITIAL_WINDOW_SIZE: u16 = 4;
/// The first index of the header table that connections fill themselves.
const DYNAMIC: usize = 62;

/// The state of a call.
#[derive(Clone, Copy, Debug, Default)]
struct Call {
    has_message: bool,
    has_ended: bool,
}

/// The unsent part of a message, and the remaining window of its stream.
#[derive(Debug)]
struct Unsent {
    stream: u32,
    message: Vec<u8>,
    sent: usize,
    room: i64,
}

/// One HTTP/2 connection.
#[derive(Debug)]
pub struct Channel {
    linearizable: bool,
    issued: u64,
    /// The calls from number `first` on.
    calls: VecDeque<Call>,
    first: u64,
    /// Names of what was entered into the header table, oldest first.
    entered: Vec<&'static str>,
    /// Bytes received since the last word that there is room for more.
    received: u32,
    /// How many bytes the other side has room for, on all streams together and on a new one.
    room: i64,
    room_of_stream: i64,
    /// Messages that there was no room for, oldest first.
    unsent: VecDeque<Unsent>,
}

impl Channel {
    /// A connection that was not yet greeted.
    pub const fn new(linearizable: bool) -> Self {
        Self {
            linearizable,
            issued: 0,
            calls: VecDeque::new(),
            first: 0,
            entered: Vec::new(),
            received: 0,
            room: WINDOW_FIRST as i64,
            room_of_stream: WINDOW_FIRST as i64,
            unsent: VecDeque::new(),
        }
    }

    /// Sends what there is room for of what waits.
    fn send_unsent(&mut self, out: &mut Vec<u8>) {
        for unsent in &mut self.unsent {
            loop {
                let left = &unsent.message[unsent.sent..];
                let room = self.room.min(unsent.room).clamp(0, FRAME_MAX as i64);
                let length = left.len().min(room as usize);
                if length == 0 {
                    break;
                }
                let flags = if length == left.len() { END_STREAM } else { 0 };
                frame(out, DATA, flags, unsent.stream, |out| {
                    out.extend_from_slice(&left[..length]);
                });
                unsent.sent += length;
                unsent.room -= length as i64;
                self.room -= length as i64;
            }
        }
        self.unsent
            .retain(|unsent| unsent.sent < unsent.message.len());
    }

    /// The other side has room for more.
    fn widen(&mut self, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
        let Ok(more) = payload.try_into().map(u32::from_be_bytes) else {
            return;
        };
        let more = i64::from(more & 0x7fff_ffff);
        if stream == 0 {
            self.room += more;
        } else if let Some(unsent) = self.unsent.iter_mut().find(|it| it.stream == stream) {
            unsent.room += more;
        }
        self.send_unsent(out);
    }

    /// The other side has said how much may be sent on a stream at first; what was begun counts too.
    fn settle(&mut self, payload: &[u8], out: &mut Vec<u8>) {
        for setting in payload.chunks_exact(6) {
            if setting[..2] == INITIAL_WINDOW_SIZE.to_be_bytes() {
                let room = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
                let more = i64::from(room) - self.room_of_stream;
                self.room_of_stream += more;
                self.unsent.iter_mut().for_each(|it| it.room += more);
            }
        }
        frame(out, SETTINGS, ACK, 0, |_| {});
        self.send_unsent(out);
    }

    /// Appends one header: by its place in the table, or with its words, which enters it there.
    fn header(
        &mut self,
        out: &mut Vec<u8>,
        known: Option<u8>,
        name: &'static str,
        value: &'static str,
    ) {
        if let Some(at) = self.entered.iter().position(|entered| *entered == value) {
            // Fewer than 60 entries: the index fits into its seven bits.
            let index = DYNAMIC + self.entered.len() - 1 - at;
            out.push(0x80 | index as u8);
            return;
        }
        match known {
            Some(index) => out.push(0x40 | index),
            None => {
                out.push(0x40);
                text(out, name);
            }
        }
        text(out, value);
        self.entered.push(value);
    }

    fn call(&mut self, index: u64) -> Option<&mut Call> {
        let index = usize::try_from(index.checked_sub(self.first)?).ok()?;
        self.calls.get_mut(index)
    }

    fn end(&mut self, number: u64, error: Option<&str>, ended: &mut Vec<Ended>) {
        let Some(call) = self.call(number).filter(|call| !call.has_ended) else {
            return;
        };
        call.has_ended = true;
        let error = error.or((!call.has_message).then_some("grpc-status"));
        let error = error.map(str::to_owned);
        ended.push(Ended { number, error });
        while self.calls.front().is_some_and(|call| call.has_ended) {
            self.calls.pop_front();
            self.first += 1;
        }
    }
}

/// A string of fewer than 127 bytes, as headers have them.
fn text(out: &mut Vec<u8>, value: &str) {
    out.push(value.len() as u8);
    out.extend_from_slice(value.as_bytes());
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    write(out);
    let length = (out.len() - start - HEADER_LENGTH) as u32;
    out[start..start + 3].copy_from_slice(&length.to_be_bytes()[1..]);
}

fn varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field of bytes in a protocol buffer.
fn field(out: &mut Vec<u8>, number: u8, value: &[u8]) {
    out.push(number << 3 | 2);
    varint(out, value.len());
    out.extend_from_slice(value);
}

impl Dialect for Channel {
    fn greet(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(PREFACE);
        frame(out, SETTINGS, 0, 0, |out| {
            out.extend_from_slice(&INITIAL_WINDOW_SIZE.to_be_bytes());
            out.extend_from_slice(&WINDOW.to_be_bytes());
        });
        frame(out, WINDOW_UPDATE, 0, 0, |out| {
            out.extend_from_slice(&(WINDOW - WINDOW_FIRST).to_be_bytes());
        });
    }

    fn request(&mut self, request: &Request, value: &[u8], out: &mut Vec<u8>) {
        let stream = (self.issued * 2 + 1) as u32 & 0x7fff_ffff;
        self.issued += 1;
        self.calls.push_back(Call::default());
        let path = match request.kind {
            Kind::Read => "/etcdserverpb.KV/Range",
            Kind::Write | Kind::Create => "/etcdserverpb.KV/Put",
        };
        frame(out, HEADERS, END_HEADERS, stream, |out| {
            // POST and http are entries of everybody's table.
            out.extend_from_slice(&[0x83, 0x86]);
            self.header(out, Some(4), ":path", path);
            self.header(out, Some(1), ":authority", "localhost");
            self.header(out, Some(31), "content-type", "application/grpc");
            self.header(out, None, "te", "trailers");
        });
        let mut message = vec![0; 5];
        field(&mut message, 1, &request.key);
        match request.kind {
            Kind::Read if self.linearizable => {}
            Kind::Read => message.extend_from_slice(&[7 << 3, 1]),
            Kind::Write | Kind::Create => field(&mut message, 2, value),
        }
        let length = (message.len() - 5) as u32;
        message[1..5].copy_from_slice(&length.to_be_bytes());
        self.unsent.push_back(Unsent {
            stream,
            message,
            sent: 0,
            room: self.room_of_stream,
        });
        self.send_unsent(out);
    }

    fn digest(&mut self, input: &[u8], out: &mut Vec<u8>, ended: &mut Vec<Ended>) -> Option<usize> {
        let mut consumed = 0;
        while let Some(head) = input.get(consumed..consumed + HEADER_LENGTH) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            if length > FRAME_MAX {
                return None;
            }
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
            let begin = consumed + HEADER_LENGTH;
            let Some(payload) = input.get(begin..begin + length) else {
                break;
            };
            consumed = begin + length;
            let number = u64::from(stream.saturating_sub(1) / 2);
            match kind {
                DATA => {
                    self.received += length as u32;
                    if let Some(call) = self.call(number) {
                        call.has_message |= length > 0;
                    }
                    if flags & END_STREAM != 0 {
                        self.end(number, None, ended);
                    }
                }
                HEADERS if flags & END_STREAM != 0 => self.end(number, None, ended),
                RST_STREAM => self.end(number, Some("RST_STREAM"), ended),
                SETTINGS if flags & ACK == 0 => self.settle(payload, out),
                WINDOW_UPDATE => self.widen(stream, payload, out),
                PING if flags & ACK == 0 => {
                    frame(out, PING, ACK, 0, |out| out.extend_from_slice(payload));
                }
                GOAWAY => return None,
                _ => {}
            }
        }
        if self.received > WINDOW / 2 {
            let received = std::mem::take(&mut self.received);
            frame(out, WINDOW_UPDATE, 0, 0, |out| {
                out.extend_from_slice(&received.to_be_bytes());
            });
        }
        Some(consumed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(kind: Kind) -> Request {
        Request {
            kind,
            key: *b"key:000000000000",
        }
    }

    #[test]
    fn headers_are_written_once_and_then_named_by_their_place() {
        let mut channel = Channel::new(true);
        let mut sizes = Vec::new();
        for kind in [
            Kind::Write,
            Kind::Write,
            Kind::Read,
            Kind::Read,
            Kind::Write,
        ] {
            let mut out = Vec::new();
            channel.request(&request(kind), b"", &mut out);
            sizes.push((usize::from(out[2]), out[HEADER_LENGTH + 2]));
        }
        // POST, http, then :path: whole the first time, later as its place in the table.
        assert!(sizes[0].0 > 60);
        assert_eq!(sizes[1], (6, 0x80 | 65));
        assert_eq!(sizes[3], (6, 0x80 | 62));
        assert_eq!(sizes[4], (6, 0x80 | 66));
        assert!(sizes[2].0 > 20);
    }

    #[test]
    fn put_is_a_message_with_key_and_value() {
        let mut out = Vec::new();
        Channel::new(true).request(&request(Kind::Write), &[b'v'; 200], &mut out);
        let data = HEADER_LENGTH + usize::from(out[2]);
        assert_eq!(
            &out[data + 3..data + HEADER_LENGTH],
            [DATA, END_STREAM, 0, 0, 0, 1]
        );
        let message = &out[data + HEADER_LENGTH..];
        assert_eq!(message[..5], [0, 0, 0, 0, (18 + 3 + 200) as u8]);
        assert_eq!(message[5..7], [0x0a, 16]);
        assert_eq!(message[23..26], [0x12, 0xc8, 0x01]);
    }

    #[test]
    fn long_message_goes_in_frames_as_there_is_room_for_it() {
        let mut channel = Channel::new(true);
        let (mut out, mut ended) = (Vec::new(), Vec::new());
        channel.request(&request(Kind::Write), &vec![b'v'; 200_000], &mut out);
        channel.request(&request(Kind::Write), b"short", &mut out);
        let mut sent = [0; 2];
        let mut last = [false; 2];
        let mut take = |out: &mut Vec<u8>| {
            let mut at = 0;
            while at < out.len() {
                let length = usize::from(out[at + 1]) << 8 | usize::from(out[at + 2]);
                assert!(out[at] == 0 || length == FRAME_MAX, "no longer frame");
                if out[at + 3] == DATA {
                    let stream = usize::from(out[at + 8]) / 2;
                    sent[stream] += length;
                    last[stream] = out[at + 4] & END_STREAM != 0;
                }
                at += HEADER_LENGTH + length;
            }
            out.clear();
            (sent, last)
        };
        assert_eq!(take(&mut out), ([65_535, 0], [false; 2]), "no room is left");
        let mut say = |stream: u32, more: u32, channel: &mut Channel| {
            let (mut input, mut out) = (Vec::new(), Vec::new());
            frame(&mut input, WINDOW_UPDATE, 0, stream, |out| {
                out.extend_from_slice(&more.to_be_bytes());
            });
            channel.digest(&input, &mut out, &mut ended).unwrap();
            out
        };
        let mut out = say(0, 100_000, &mut channel);
        assert_eq!(take(&mut out), ([65_535, 30], [false, true]), "the other");
        let mut out = say(1, 50_000, &mut channel);
        assert_eq!(take(&mut out), ([115_535, 30], [false, true]));
        let mut out = say(1, 200_000, &mut channel);
        assert_eq!(take(&mut out).0, [165_505, 30]);
        let mut out = say(0, 200_000, &mut channel);
        assert_eq!(take(&mut out), ([200_027, 30], [true; 2]));
        assert!(channel.unsent.is_empty());
    }

    #[test]
    fn calls_end_in_any_order_and_without_a_message_they_are_errors() {
        let mut channel = Channel::new(true);
        let (mut out, mut ended) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            channel.request(&request(Kind::Read), b"", &mut out);
        }
        out.clear();
        let mut input = Vec::new();
        frame(&mut input, SETTINGS, 0, 0, |_| {});
        frame(&mut input, HEADERS, END_HEADERS, 3, |out| out.push(0x88));
        frame(&mut input, DATA, 0, 3, |out| out.extend_from_slice(&[0; 5]));
        frame(&mut input, HEADERS, END_HEADERS | END_STREAM, 3, |out| {
            out.push(0x88)
        });
        frame(&mut input, PING, 0, 0, |out| {
            out.extend_from_slice(b"12345678")
        });
        frame(&mut input, HEADERS, END_HEADERS | END_STREAM, 1, |out| {
            out.push(0x88)
        });
        frame(&mut input, RST_STREAM, 0, 5, |out| {
            out.extend_from_slice(&[0; 4])
        });
        let mut at = 0;
        for end in 0..=input.len() {
            at += channel
                .digest(&input[at..end], &mut out, &mut ended)
                .unwrap();
        }
        assert_eq!(at, input.len());
        let shown: Vec<_> = ended
            .iter()
            .map(|one| (one.number, one.error.as_deref()))
            .collect();
        let expected = [(1, None), (0, Some("grpc-status")), (2, Some("RST_STREAM"))];
        assert_eq!(shown, expected);
        assert!(channel.calls.is_empty());
        assert_eq!(out.len(), HEADER_LENGTH + HEADER_LENGTH + 8);
        assert_eq!(
            channel.digest(b"HTTP/1.1 400 Bad", &mut out, &mut ended),
            None
        );
    }
}

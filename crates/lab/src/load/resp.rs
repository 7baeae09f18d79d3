//! The client's side of the Redis protocol, as far as the load generator needs it.
//!
//! ```text
//!   encode(["SET", key, value]) ──► bytes ──► socket ──► scan(bytes) ──► one reply's length and kind
//! ```

use super::dialect::{Dialect, Ended, Kind, Request};
use quintet_replica::Level;
use std::collections::VecDeque;

/// Where a Redis server is, as `redis://[:password@]host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// `host:port`.
    pub authority: String,
    /// The password to authenticate with.
    pub password: Option<String>,
}

impl Url {
    /// Reads a URL.
    ///
    /// # Errors
    /// With what is accepted.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refuse = || format!("'{text}' is not a URL like redis://127.0.0.1:7001");
        let rest = match text.split_once("://") {
            Some(("redis", rest)) => rest,
            Some(_) => return Err(refuse()),
            None => text,
        };
        let rest = rest.trim_end_matches('/');
        let (credentials, authority) = match rest.rsplit_once('@') {
            Some((credentials, authority)) => (Some(credentials), authority),
            None => (None, rest),
        };
        let host = authority
            .rsplit_once(':')
            .filter(|(_, port)| port.parse::<u16>().is_ok());
        if host.is_none_or(|(host, _)| host.is_empty()) {
            return Err(refuse());
        }
        let password = credentials.map(|credentials| {
            credentials
                .split_once(':')
                .map_or(credentials, |(_, password)| password)
                .to_owned()
        });
        Ok(Self {
            authority: authority.to_owned(),
            password,
        })
    }
}

/// Appends a command.
pub fn encode(out: &mut Vec<u8>, words: &[&[u8]]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// A reply as it stands in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// Anything that is not an error.
    Value,
    /// An error: its text without the `-`.
    Error(&'a [u8]),
}

/// The item at the beginning of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan<'a> {
    /// A whole reply and its length.
    Whole(usize, Reply<'a>),
    /// A part of one.
    Partial,
    /// Nothing that this client understands.
    Nonsense,
}

const NESTING_MAX: usize = 8;

/// Finds the first reply in `bytes`.
pub fn scan(bytes: &[u8]) -> Scan<'_> {
    match end(bytes, 0, NESTING_MAX) {
        Some(Ok(length)) if bytes[0] == b'-' => {
            Scan::Whole(length, Reply::Error(&bytes[1..length - 2]))
        }
        Some(Ok(length)) => Scan::Whole(length, Reply::Value),
        None => Scan::Partial,
        Some(Err(())) => Scan::Nonsense,
    }
}

/// Where the reply that begins at `at` ends; `None` when that is not yet known.
fn end(bytes: &[u8], at: usize, depth: usize) -> Option<Result<usize, ()>> {
    let kind = *bytes.get(at)?;
    if depth == 0 {
        return Some(Err(()));
    }
    let line = bytes[at..].iter().position(|byte| *byte == b'\n')?;
    let next = at + line + 1;
    if line < 2 || bytes[next - 2] != b'\r' {
        return Some(Err(()));
    }
    let count = || {
        std::str::from_utf8(&bytes[at + 1..next - 2])
            .ok()?
            .parse::<i64>()
            .ok()
    };
    match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' => Some(Ok(next)),
        b'$' | b'*' => match (count(), kind) {
            (Some(-1), _) => Some(Ok(next)),
            (Some(length), b'$') if (0..=1 << 30).contains(&length) => {
                let last = next + usize::try_from(length).ok()? + 2;
                (bytes.len() >= last).then_some(Ok(last))
            }
            (Some(items), b'*') if (0..=1 << 20).contains(&items) => {
                let mut last = next;
                for _ in 0..items {
                    match end(bytes, last, depth - 1)? {
                        Ok(after) => last = after,
                        Err(()) => return Some(Err(())),
                    }
                }
                Some(Ok(last))
            }
            _ => Some(Err(())),
        },
        _ => Some(Err(())),
    }
}

/// The request that the next reply on a connection answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    /// The greeting: no request.
    Greeting,
    /// A request.
    Request,
    /// A write that ends with the `WAIT` behind it.
    Waiting,
    /// That `WAIT`.
    Wait,
}

/// A connection to a Redis server.
#[derive(Debug)]
pub struct Resp {
    password: Option<String>,
    wait: Option<u32>,
    reads: Level,
    expected: VecDeque<Expected>,
    ended: u64,
    /// The error of the write whose `WAIT` has not been answered.
    refused: Option<String>,
}

impl Resp {
    /// A connection that was not yet greeted.
    pub const fn new(password: Option<String>, wait: Option<u32>, reads: Level) -> Self {
        Self {
            password,
            wait,
            reads,
            expected: VecDeque::new(),
            ended: 0,
            refused: None,
        }
    }

    fn end(&mut self, error: Option<String>, ended: &mut Vec<Ended>) {
        let number = self.ended;
        self.ended += 1;
        ended.push(Ended { number, error });
    }
}

fn first_word(text: &[u8]) -> String {
    let word = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    String::from_utf8_lossy(word).into_owned()
}

impl Dialect for Resp {
    fn greet(&mut self, out: &mut Vec<u8>) {
        if let Some(password) = &self.password {
            encode(out, &[b"AUTH", password.as_bytes()]);
            self.expected.push_back(Expected::Greeting);
        }
        if self.reads == Level::Stale {
            encode(out, &[b"READONLY"]);
            self.expected.push_back(Expected::Greeting);
        }
    }

    fn request(&mut self, request: &Request, value: &[u8], out: &mut Vec<u8>) {
        if request.kind == Kind::Read {
            // GETEX without options reads like GET, and counts as a write.
            out.extend_from_slice(match self.reads {
                Level::Ordered => b"*2\r\n$5\r\nGETEX\r\n$16\r\n".as_slice(),
                _ => b"*2\r\n$3\r\nGET\r\n$16\r\n",
            });
            out.extend_from_slice(&request.key);
            out.extend_from_slice(b"\r\n");
            self.expected.push_back(Expected::Request);
            return;
        }
        out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$16\r\n");
        out.extend_from_slice(&request.key);
        out.extend_from_slice(b"\r\n$");
        write_number(value.len(), out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
        match self.wait {
            None => self.expected.push_back(Expected::Request),
            Some(replicas) => {
                encode(out, &[b"WAIT", replicas.to_string().as_bytes(), b"1000"]);
                self.expected.extend([Expected::Waiting, Expected::Wait]);
            }
        }
    }

    fn digest(&mut self, input: &[u8], _: &mut Vec<u8>, ended: &mut Vec<Ended>) -> Option<usize> {
        let mut consumed = 0;
        loop {
            let (length, reply) = match scan(&input[consumed..]) {
                Scan::Partial => return Some(consumed),
                Scan::Nonsense => return None,
                Scan::Whole(length, reply) => (length, reply),
            };
            let text = &input[consumed..consumed + length];
            consumed += length;
            let error = match reply {
                Reply::Error(text) => Some(first_word(text)),
                Reply::Value => None,
            };
            match self.expected.pop_front()? {
                Expected::Greeting if error.is_none() => {}
                Expected::Greeting => return None,
                Expected::Request => self.end(error, ended),
                Expected::Waiting => self.refused = error,
                Expected::Wait => {
                    let held = std::str::from_utf8(&text[1..length - 2])
                        .ok()
                        .and_then(|text| text.parse().ok());
                    let enough = held.is_some_and(|held: u32| Some(held) >= self.wait);
                    let late = (!enough).then(|| "WAIT".to_owned());
                    let error = self.refused.take().or(error).or(late);
                    self.end(error, ended);
                }
            }
        }
    }
}

fn write_number(number: usize, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut left = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let url = |text| Url::parse(text).map(|url| (url.authority, url.password));
        let plain = || ("127.0.0.1:7001".to_owned(), None);
        assert_eq!(url("redis://127.0.0.1:7001"), Ok(plain()));
        assert_eq!(url("127.0.0.1:7001"), Ok(plain()));
        let secret = ("h:1".to_owned(), Some("p@:w".to_owned()));
        assert_eq!(url("redis://:p@:w@h:1/"), Ok(secret));
        for wrong in ["redis://", "http://h:1", "h", ":1", "h:port"] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn commands() {
        let mut out = Vec::new();
        encode(&mut out, &[b"GET", b"k\n"]);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$2\r\nk\n\r\n");
    }

    #[test]
    fn reply_is_found_whole_or_not_at_all() {
        let whole: [&[u8]; 6] = [
            b"+OK\r\n",
            b":12\r\n",
            b"$-1\r\n",
            b"$3\r\na\r\n\r\n",
            b"*2\r\n$1\r\nx\r\n:1\r\n",
            b"*0\r\n",
        ];
        for reply in whole {
            for cut in 0..reply.len() {
                assert_eq!(scan(&reply[..cut]), Scan::Partial, "{reply:?} cut at {cut}");
            }
            let mut more = reply.to_vec();
            more.extend_from_slice(b"+next\r\n");
            assert_eq!(scan(&more), Scan::Whole(reply.len(), Reply::Value));
        }
        assert_eq!(
            scan(b"-ERR no\r\n"),
            Scan::Whole(9, Reply::Error(b"ERR no"))
        );
    }

    #[test]
    fn nonsense_is_told_from_what_is_missing() {
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"$x\r\n",
            b"$-7\r\n",
            b"+a\n",
            b"*9999999\r\n",
        ] {
            assert_eq!(scan(bytes), Scan::Nonsense, "{bytes:?}");
        }
        assert_eq!(scan(&b"*1\r\n".repeat(50)), Scan::Nonsense);
    }

    fn request(kind: Kind) -> Request {
        Request {
            kind,
            key: *b"key:000000000000",
        }
    }

    #[test]
    fn requests_are_what_the_server_reads() {
        let mut out = Vec::new();
        let mut line = Resp::new(None, None, Level::Linearizable);
        line.request(&request(Kind::Write), b"xxx", &mut out);
        line.request(&request(Kind::Read), b"xxx", &mut out);
        line.request(&request(Kind::Create), b"", &mut out);
        let mut expected = Vec::new();
        encode(&mut expected, &[b"SET", b"key:000000000000", b"xxx"]);
        encode(&mut expected, &[b"GET", b"key:000000000000"]);
        encode(&mut expected, &[b"SET", b"key:000000000000", b""]);
        assert_eq!(out, expected);
        out.clear();
        let mut line = Resp::new(None, None, Level::Ordered);
        line.request(&request(Kind::Read), b"", &mut out);
        expected.clear();
        encode(&mut expected, &[b"GETEX", b"key:000000000000"]);
        assert_eq!(out, expected);
    }

    #[test]
    fn greeting_is_no_request_and_errors_are_named() {
        let mut line = Resp::new(Some("secret".to_owned()), None, Level::Stale);
        let (mut out, mut ended) = (Vec::new(), Vec::new());
        line.greet(&mut out);
        line.request(&request(Kind::Read), b"", &mut out);
        line.request(&request(Kind::Read), b"", &mut out);
        let answers = b"+OK\r\n+OK\r\n$-1\r\n-CLUSTERDOWN no quorum\r\n+rest";
        let consumed = line.digest(answers, &mut out, &mut ended);
        assert_eq!(consumed, Some(answers.len() - 5));
        assert_eq!(
            ended[0],
            Ended {
                number: 0,
                error: None
            }
        );
        let error = Some("CLUSTERDOWN".to_owned());
        assert_eq!(ended[1], Ended { number: 1, error });
        assert_eq!(line.digest(b"+more\r\n", &mut out, &mut ended), None);
    }

    #[test]
    fn write_that_waits_ends_when_enough_replicas_have_it() {
        let mut line = Resp::new(None, Some(1), Level::Linearizable);
        let (mut out, mut ended) = (Vec::new(), Vec::new());
        line.request(&request(Kind::Write), b"x", &mut out);
        line.request(&request(Kind::Write), b"x", &mut out);
        assert_eq!(line.digest(b"+OK\r\n", &mut out, &mut ended), Some(5));
        assert!(ended.is_empty());
        line.digest(b":1\r\n+OK\r\n:0\r\n", &mut out, &mut ended);
        assert_eq!(ended[0].error, None);
        assert_eq!(ended[1].error, Some("WAIT".to_owned()));
    }
}

//! The client's side of the Redis protocol, as far as the load generator needs it.
//!
//! ```text
//!   encode(["SET", key, value]) ──► bytes ──► socket ──► scan(bytes) ──► one reply's length and kind
//! ```

/// Where a Redis server is, as `redis://[:password@]host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// `host:port`.
    pub authority: String,
    /// What to authenticate with.
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

/// What stands at the beginning of a buffer.
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
    fn a_reply_is_found_whole_or_not_at_all() {
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
}

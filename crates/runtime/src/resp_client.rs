//! Reading Redis's protocol as a client does: replies in RESP2.

use std::io::{self, BufRead, Read};

/// Replies within replies.
const DEPTH_MAX: usize = 8;

/// A reply in RESP2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A bulk string, or a status line.
    Text(Vec<u8>),
    /// An error with its code.
    Error(String),
    /// A whole number.
    Number(i64),
    /// Nothing.
    Nil,
    /// An array.
    List(Vec<Self>),
}

fn malformed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "it does not speak the Redis protocol",
    )
}

/// A command as it is sent.
#[must_use]
pub fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut command = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        command.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        command.extend_from_slice(word);
        command.extend_from_slice(b"\r\n");
    }
    command
}

/// Reads a reply of which no part is longer than `length_max` bytes, or has more elements.
///
/// # Errors
/// When the connection ends, or the reply is malformed.
pub fn read(from: &mut impl BufRead, length_max: usize) -> io::Result<Reply> {
    read_within(from, length_max, 0)
}

fn read_within(from: &mut impl BufRead, length_max: usize, depth: usize) -> io::Result<Reply> {
    let mut line = Vec::new();
    from.take(64 << 10).read_until(b'\n', &mut line)?;
    let line = line.strip_suffix(b"\r\n").ok_or_else(malformed)?;
    let (kind, rest) = line.split_first().ok_or_else(malformed)?;
    let text = std::str::from_utf8(rest).map_err(|_| malformed());
    let number = || text.as_ref().ok()?.parse::<i64>().ok();
    let length = |number: i64| {
        let length = usize::try_from(number).ok();
        length
            .filter(|length| *length <= length_max)
            .ok_or_else(malformed)
    };
    Ok(match (kind, number()) {
        (b'+', _) => Reply::Text(rest.to_vec()),
        (b'-', _) => Reply::Error(text?.to_owned()),
        (b':', Some(number)) => Reply::Number(number),
        (b'$' | b'*', Some(-1)) => Reply::Nil,
        (b'$', Some(number)) => {
            let mut bytes = Vec::new();
            let wanted = length(number)? + 2;
            from.take(wanted as u64).read_to_end(&mut bytes)?;
            if bytes.len() < wanted {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes.truncate(wanted - 2);
            Reply::Text(bytes)
        }
        (b'*', Some(number)) if depth < DEPTH_MAX => {
            let replies = (0..length(number)?).map(|_| read_within(from, length_max, depth + 1));
            Reply::List(replies.collect::<io::Result<_>>()?)
        }
        _ => return Err(malformed()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(bytes: &[u8]) -> io::Result<Reply> {
        read(&mut io::Cursor::new(bytes), 1 << 20)
    }

    #[test]
    fn replies_are_read_and_malformed_ones_refused() {
        let list = read_all(b"*3\r\n$1\r\n0\r\n:7\r\n*1\r\n$-1\r\n").unwrap();
        let expected = [
            Reply::Text(b"0".to_vec()),
            Reply::Number(7),
            Reply::List(vec![Reply::Nil]),
        ];
        assert_eq!(list, Reply::List(expected.to_vec()));
        assert_eq!(
            read_all(b"-ERR no\r\n").unwrap(),
            Reply::Error("ERR no".to_owned())
        );
        for bytes in [
            &b""[..],
            b"$5\r\nabc",
            b"$999999999999\r\n",
            b"$-2\r\n",
            b"HTTP/1.1 400 Bad Request\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        ] {
            assert!(read_all(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }
}

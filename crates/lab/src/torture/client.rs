//! A connection that speaks RESP, one deadline per wait.
//!
//! ```text
//!   words ──► encode ──► socket ──► Connection::reply ──► Value
//! ```

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const NESTING_MAX: usize = 8;
const LENGTH_MAX: i64 = 64 << 20;

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `+…`.
    Simple(String),
    /// `-…`.
    Error(String),
    /// `:…`.
    Number(i64),
    /// `$…`.
    Bulk(Vec<u8>),
    /// `*…`.
    Array(Vec<Value>),
    /// `$-1`, `*-1` or `_`.
    Nil,
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

/// A client's connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    at: usize,
    stop: Option<Arc<AtomicBool>>,
}

/// How often a connection that may be told to stop looks whether it was.
const STOP_LOOK: Duration = Duration::from_millis(100);

impl Connection {
    /// From now on waits for replies end with `TimedOut` when this becomes true.
    pub fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// Connects and authenticates.
    ///
    /// # Errors
    /// When no server answers in time.
    pub fn open(address: SocketAddr, password: &str, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        let mut connection = Self {
            stream,
            buffer: Vec::new(),
            at: 0,
            stop: None,
        };
        let mut out = Vec::new();
        encode(&mut out, &[b"AUTH", password.as_bytes()]);
        connection.send(&out)?;
        match connection.reply(Instant::now() + timeout)? {
            Value::Simple(_) => Ok(connection),
            other => Err(io::Error::other(format!("AUTH was answered {other:?}"))),
        }
    }

    /// Sends encoded commands.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream
            .set_write_timeout(Some(Duration::from_secs(10)))?;
        self.stream.write_all(bytes)
    }

    /// Breaks the connection so that the other side sees a reset.
    pub fn reset(self) {
        // Closed otherwise, which is as good.
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    /// The next reply.
    ///
    /// # Errors
    /// `TimedOut` after the deadline; others when the connection is broken or talks nonsense.
    pub fn reply(&mut self, deadline: Instant) -> io::Result<Value> {
        self.value(deadline, NESTING_MAX)
    }

    fn value(&mut self, deadline: Instant, depth: usize) -> io::Result<Value> {
        if depth == 0 {
            return Err(nonsense("nested too deeply"));
        }
        let line = self.line(deadline)?;
        let text = std::str::from_utf8(&line).map_err(|_| nonsense("not text"))?;
        let mut characters = text.chars();
        let kind = characters.next();
        let rest = characters.as_str();
        let number = || rest.parse::<i64>().map_err(|_| nonsense(text));
        match kind {
            Some('+') => Ok(Value::Simple(rest.to_owned())),
            Some('-') => Ok(Value::Error(rest.to_owned())),
            Some(':') => Ok(Value::Number(number()?)),
            Some('_') => Ok(Value::Nil),
            Some('$') => match number()? {
                -1 => Ok(Value::Nil),
                length @ 0..=LENGTH_MAX => {
                    let length = length as usize;
                    let bytes = self.take(length + 2, deadline)?;
                    Ok(Value::Bulk(bytes[..length].to_vec()))
                }
                _ => Err(nonsense(text)),
            },
            Some('*') => match number()? {
                -1 => Ok(Value::Nil),
                count @ 0..=LENGTH_MAX => {
                    let items = (0..count).map(|_| self.value(deadline, depth - 1));
                    items.collect::<io::Result<_>>().map(Value::Array)
                }
                _ => Err(nonsense(text)),
            },
            _ => Err(nonsense(text)),
        }
    }

    fn line(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut looked = self.at;
        loop {
            if let Some(end) = self.buffer[looked..].iter().position(|byte| *byte == b'\n') {
                let end = looked + end;
                let line = self.buffer[self.at..end].to_vec();
                self.at = end + 1;
                return match line.strip_suffix(b"\r") {
                    Some(line) => Ok(line.to_vec()),
                    None => Err(nonsense("a line without CR")),
                };
            }
            looked = self.buffer.len();
            let moved = self.fill(deadline)?;
            looked -= moved;
        }
    }

    fn take(&mut self, length: usize, deadline: Instant) -> io::Result<Vec<u8>> {
        while self.buffer.len() - self.at < length {
            self.fill(deadline)?;
        }
        let bytes = self.buffer[self.at..self.at + length].to_vec();
        self.at += length;
        Ok(bytes)
    }

    /// Reads more; gives how far the buffer's content moved to the front.
    fn fill(&mut self, deadline: Instant) -> io::Result<usize> {
        let moved = self.at;
        self.buffer.drain(..moved);
        self.at = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let stop = self.stop.as_ref();
            let stopped = stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
            if left.is_zero() || stopped {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let step = stop.map_or(left, |_| left.min(STOP_LOOK));
            self.stream.set_read_timeout(Some(step))?;
            let mut chunk = [0; 16 << 10];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    self.buffer.extend_from_slice(&chunk[..read]);
                    return Ok(moved);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A read that outlives its limit says WouldBlock.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not RESP: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};

    #[test]
    fn replies_in_pieces_are_put_together() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut chunk = [0; 1024];
            assert!(stream.read(&mut chunk).unwrap() > 0);
            for piece in [
                "+O",
                "K\r\n*3\r\n:7\r",
                "\n$3\r\na\r",
                "b\r\n$-1\r\n-ERR no\r\n",
            ] {
                stream.write_all(piece.as_bytes()).unwrap();
            }
        });
        let timeout = Duration::from_secs(10);
        let mut connection = Connection::open(address, "x", timeout).unwrap();
        let deadline = Instant::now() + timeout;
        let array = Value::Array(vec![
            Value::Number(7),
            Value::Bulk(b"a\rb".to_vec()),
            Value::Nil,
        ]);
        assert_eq!(connection.reply(deadline).unwrap(), array);
        let error = Value::Error("ERR no".to_owned());
        assert_eq!(connection.reply(deadline).unwrap(), error);
        server.join().unwrap();
        let end = connection.reply(deadline).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }
}

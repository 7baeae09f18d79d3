//! A connection that keeps to no protocol: arbitrary bytes out and in.

use super::super::cluster::PASSWORD;
use crate::torture::client::encode;
use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

const CONNECT: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(200);

/// The bytes that came back in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// That many bytes.
    pub bytes: u64,
    /// The other side closed, or reset.
    pub closed: bool,
    /// The first byte.
    pub first: Option<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
}

impl Raw {
    /// Connects and says nothing.
    ///
    /// # Errors
    /// When no server accepts.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, CONNECT)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream })
    }

    /// Writes until all is out, the other side closes, time is over or it is told to stop; gives
    /// how much went out.
    pub fn write(&mut self, bytes: &[u8], time: Duration, stop: &AtomicBool) -> usize {
        let end = Instant::now() + time;
        // A socket without a timeout would only make stopping slower.
        let _ = self.stream.set_write_timeout(Some(STEP));
        let mut out = 0;
        while out < bytes.len() && Instant::now() < end && !stop.load(Ordering::Relaxed) {
            match self.stream.write(&bytes[out..]) {
                Ok(0) => break,
                Ok(written) => out += written,
                Err(error) if waits(&error) => {}
                Err(_) => break,
            }
        }
        out
    }

    /// Reads and forgets until that many bytes came, the other side closes, time is over or it is
    /// told to stop.
    pub fn read(&mut self, most: u64, time: Duration, stop: &AtomicBool) -> Came {
        let end = Instant::now() + time;
        let _ = self.stream.set_read_timeout(Some(STEP));
        let mut came = Came::default();
        let mut chunk = vec![0; 256 << 10];
        while came.bytes < most && Instant::now() < end && !stop.load(Ordering::Relaxed) {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    came.closed = true;
                    break;
                }
                Ok(read) => {
                    came.first.get_or_insert(chunk[0]);
                    came.bytes += read as u64;
                }
                Err(error) if waits(&error) => {}
                Err(_) => {
                    came.closed = true;
                    break;
                }
            }
        }
        came
    }
}

fn waits(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// AUTH with the right password.
#[must_use]
pub fn auth() -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, &[b"AUTH", PASSWORD.as_bytes()]);
    out
}

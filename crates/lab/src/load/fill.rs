//! Writing every key once, before anything is measured.

use super::{
    dialect::{Kind, Request},
    worker::Target,
    workload::name_of,
};
use std::{
    io::{self, Error, ErrorKind, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

/// Bytes in progress at once: no server's buffers need more.
const STEP_BYTES: usize = 32 << 10;
const STEP_MAX: u64 = 128;
const READ_STEP: usize = 16 << 10;

/// Creates `keys` keys with values of `value_size` bytes, or writes those that are there. `told`
/// hears how many are written.
///
/// # Errors
/// When the server is gone, refuses, or needs longer than `timeout` for a few of them.
pub fn fill(
    target: &Target,
    keys: u64,
    value_size: usize,
    timeout: Duration,
    mut told: impl FnMut(u64),
) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&target.address, timeout)?;
    // Only speed depends on it.
    let _ = stream.set_nodelay(true);
    let mut dialect = target.language.dialect();
    let value = vec![b'x'; value_size];
    let step = ((STEP_BYTES / (value_size + 64)) as u64).clamp(1, STEP_MAX);
    let (mut out, mut input, mut ended) = (Vec::new(), Vec::new(), Vec::new());
    let mut chunk = vec![0; READ_STEP];
    dialect.greet(&mut out);
    let mut key = 0;
    while key < keys {
        let last = (key + step).min(keys);
        let mut left = last - key;
        for key in key..last {
            let request = Request {
                kind: Kind::Create,
                key: name_of(key),
            };
            dialect.request(&request, &value, &mut out);
        }
        key = last;
        let deadline = Instant::now() + timeout;
        while left > 0 {
            stream.write_all(&out)?;
            out.clear();
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(rest))?;
            match stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => input.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let digested = dialect.digest(&input, &mut out, &mut ended);
            let consumed =
                digested.ok_or(Error::new(ErrorKind::InvalidData, "the answer is invalid"))?;
            input.drain(..consumed);
            for one in ended.drain(..) {
                if let Some(error) = one.error {
                    return Err(Error::other(format!("a write was refused: {error}")));
                }
                left = left.saturating_sub(1);
            }
        }
        told(key);
    }
    Ok(())
}

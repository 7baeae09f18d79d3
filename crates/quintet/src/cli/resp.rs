//! A client of the Redis protocol, as small as the program's own commands need.

pub use quintet_runtime::resp_client::Reply;

use quintet_runtime::resp_client::{command, read};
use std::{
    io::{self, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

/// No reply that is read here is longer, or has more elements.
const LENGTH_MAX: usize = 64 << 20;

/// A connection.
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects to `HOST:PORT`; every answer must come within `timeout`.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn connect(address: &str, timeout: Duration) -> io::Result<Self> {
        let stream = quintet_cli::http::connect(address, timeout)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a command and reads its reply.
    ///
    /// # Errors
    /// When the connection ends, or the reply is malformed.
    pub fn ask(&mut self, words: &[&[u8]]) -> io::Result<Reply> {
        self.stream.get_mut().write_all(&command(words))?;
        read(&mut self.stream, LENGTH_MAX)
    }
}

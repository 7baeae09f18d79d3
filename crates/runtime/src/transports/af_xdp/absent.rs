//! A stand-in for AF_XDP in a build without the cargo feature `af-xdp`: nothing.
//!
//! ```text
//!   Bypass::open ──► an error that says which feature is missing
//! ```

use super::datagrams::Malformed;
use bytes::BytesMut;
use mio::{Registry, Token};
use std::{io, net::SocketAddr};

/// No datagram is longer.
pub(crate) const DATAGRAM_MAX: usize = super::datagrams::BYTES_MAX;

/// A way past the kernel's sockets, of which this build has none.
#[derive(Debug)]
pub(crate) enum Bypass {}

impl Bypass {
    /// # Errors
    /// Always.
    pub fn open(_: SocketAddr, _: &Registry, _: Token) -> io::Result<Self> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "transport: 'af-xdp' needs a build with the cargo feature af-xdp \
             (cargo build --release --features af-xdp)",
        ))
    }

    pub const fn send(&mut self, _: SocketAddr, _: &[u8]) -> bool {
        match *self {}
    }

    pub const fn flush(&mut self) {
        match *self {}
    }

    pub const fn look_again(&mut self) {
        match *self {}
    }

    pub const fn receive(&mut self, _: &mut BytesMut, _: usize) -> Option<Result<(), Malformed>> {
        match *self {}
    }
}

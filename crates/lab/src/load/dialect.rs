//! How one system is spoken to.
//!
//! ```text
//!   connect ──greet──► bytes        request ──► bytes, and its number on this connection
//!   bytes received ──digest──► which requests ended, and how; bytes to send back
//! ```

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads a key.
    Read,
    /// Writes a key that is there already.
    Write,
    /// Writes a key that may not be there yet.
    Create,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its kind.
    pub kind: Kind,
    /// The key's name.
    pub key: [u8; 16],
}

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which one: requests are counted from 0 on each connection.
    pub number: u64,
    /// The first word of the error, if it was one.
    pub error: Option<String>,
}

/// The state of one connection in one system's protocol.
pub trait Dialect: Send {
    /// Appends what a connection begins with.
    fn greet(&mut self, out: &mut Vec<u8>);

    /// Appends a request; requests are numbered from 0 in the order of these calls.
    fn request(&mut self, request: &Request, value: &[u8], out: &mut Vec<u8>);

    /// Takes the complete answers out of `input` and returns their length, or `None` when they are
    /// invalid. Bytes to send back are appended to `out`.
    fn digest(&mut self, input: &[u8], out: &mut Vec<u8>, ended: &mut Vec<Ended>) -> Option<usize>;
}

//! How one system is spoken to.
//!
//! ```text
//!   connect ──greet──► bytes        request ──► bytes, and its number on this connection
//!   bytes received ──digest──► which requests ended, and how; bytes to send back
//! ```

use super::{etcd, resp, zookeeper};
use quintet_replica::Level;

/// What a request does.
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
    /// What it does.
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

    /// Takes the whole answers out of `input` and gives their length, or `None` when they make no
    /// sense. What must be sent back is appended to `out`.
    fn digest(&mut self, input: &[u8], out: &mut Vec<u8>, ended: &mut Vec<Ended>) -> Option<usize>;
}

/// Which protocol a system speaks, with what has to be said in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Language {
    /// The Redis protocol.
    Resp {
        /// What to authenticate with.
        password: Option<String>,
        /// Follow each write with `WAIT n`, and count it when that many replicas have it.
        wait: Option<u32>,
        /// `Stale`: say `READONLY` first, reads are of the state of whoever is asked, however old.
        /// `Ordered`: read with a command that counts as a write.
        reads: Level,
    },
    /// ZooKeeper's own protocol; every connection is a session.
    ZooKeeper {
        /// A `sync` goes before each read, so that its member is as new as the leader was.
        sync: bool,
    },
    /// etcd's version 3 API over gRPC.
    Etcd {
        /// Whether reads are linearizable, etcd's default.
        linearizable: bool,
    },
}

impl Language {
    /// The Redis protocol without any extras.
    pub const fn resp() -> Self {
        Self::Resp {
            password: None,
            wait: None,
            reads: Level::Linearizable,
        }
    }

    /// A new connection's state.
    pub fn dialect(&self) -> Box<dyn Dialect> {
        match self {
            Self::Resp {
                password,
                wait,
                reads,
            } => Box::new(resp::Resp::new(password.clone(), *wait, *reads)),
            Self::ZooKeeper { sync } => Box::new(zookeeper::Session::new(*sync)),
            Self::Etcd { linearizable } => Box::new(etcd::Channel::new(*linearizable)),
        }
    }
}

//! The languages that systems are spoken to in.
//!
//! ```text
//!   Language ──dialect──► resp, zookeeper or etcd: one connection's state
//! ```

use super::{dialect::Dialect, etcd, resp, zookeeper};
use quintet_replica::Level;

/// Which protocol a system speaks, with what has to be said in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Language {
    /// The Redis protocol.
    Resp {
        /// The password to authenticate with.
        password: Option<String>,
        /// Follow each write with `WAIT n`, and count it when that many replicas have it.
        wait: Option<u32>,
        /// `Stale`: say `READONLY` first, reads are of the state of the replica that is asked,
        /// however old. `Ordered`: read with a command that counts as a write.
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

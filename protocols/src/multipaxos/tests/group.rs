//! Groups of this protocol.

pub use crate::group::{MS, assert_converged};
use crate::multipaxos::{Config, MultiPaxos};

pub type Group = crate::group::Group<MultiPaxos>;
pub type Packet = crate::group::Packet<MultiPaxos>;

/// Small limits, so that tests reach them.
pub fn small() -> Config {
    Config {
        batch_bytes_max: 4096,
        log_memory_bytes: 64 << 10,
        ..Config::default()
    }
}

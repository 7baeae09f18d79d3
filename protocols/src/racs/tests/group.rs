//! Groups of this protocol.

pub use crate::group::{MS, assert_converged};
use crate::racs::{Config, Racs};

pub type Group = crate::group::Group<Racs>;
pub type Packet = crate::group::Packet<Racs>;

/// Small limits, so that tests reach them.
pub fn small() -> Config {
    Config {
        batch_bytes_max: 4096,
        log_memory_bytes: 64 << 10,
        ..Config::default()
    }
}

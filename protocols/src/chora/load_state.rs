//! The measurements that decide which replicas propose.

use super::{demand::Demand, drag::Drag};

/// See the module.
#[derive(Hash)]
pub(super) struct Load {
    /// The part of the load that comes from here.
    pub demand: Demand,
    /// Proposers that make the others wait.
    pub drag: Drag,
}

impl Load {
    pub fn new(members: usize) -> Self {
        Self {
            demand: Demand::default(),
            drag: Drag::new(members),
        }
    }
}

//! What can be said without a whole cluster: when a frontend calls a batch committed, what stands
//! in logs, and what a new leader keeps. Clusters are the simulator's.

mod alone;
mod clocks;
mod logs;
mod merge;
#[cfg(feature = "plant")]
mod planted;
mod quorums;
mod repair;

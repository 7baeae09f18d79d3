//! What can be said without a whole cluster: when a frontend calls a batch committed, and what a
//! new leader keeps. Clusters are the simulator's.

mod merge;
mod quorums;

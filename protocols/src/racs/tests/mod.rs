//! Tests of handlers and of small groups over a scripted network.

mod asynchronous;
mod asynchrony;
mod behind;
#[cfg(feature = "bugs")]
mod by_hand;
mod group;
mod hybrid;
#[cfg(feature = "bugs")]
mod injected;
mod random_faults;
mod restarts;
mod spread;
mod steady;
mod wire;

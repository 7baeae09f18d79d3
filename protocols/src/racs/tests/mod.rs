//! Tests of handlers and of small groups over a scripted network.

mod asynchronous;
mod behind;
mod group;
#[cfg(feature = "plant")]
mod planted;
mod random_faults;
mod steady;

//! Tests of handlers and of small groups over a scripted network.

mod disseminated;
mod elections;
mod equal;
mod group;
mod memory;
#[cfg(feature = "plant")]
mod planted;
mod random_faults;
mod reads;
mod steady;
mod wire;

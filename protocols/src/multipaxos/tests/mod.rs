//! Tests of handlers and of small groups over a scripted network.

mod disseminated;
mod elections;
mod equal;
mod group;
#[cfg(feature = "bugs")]
mod injected;
mod memory;
mod random_faults;
mod reads;
mod steady;
mod wire;

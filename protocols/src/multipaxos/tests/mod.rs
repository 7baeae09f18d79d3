//! Tests of handlers and of small groups over a scripted network.

mod elections;
mod group;
mod memory;
mod random_faults;
mod reads;
mod steady;

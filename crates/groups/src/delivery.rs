//! The messages of a courier. See [`hand_off`](crate::hand_off).
//!
//! ```text
//!   courier ── waiting ──► source     ◄── the first number for each destination
//!           ── first_of ─► source     ◄── hand-offs 7, 8, 9 for one of them
//!           ── deliver ──► destination, each, in order     ◄── executed, or executed before
//!           ── settle ───► source: those up to 9 need not be kept
//! ```
//!
//! Several couriers may do the same at once, and one may stop anywhere: a destination executes each
//! number once, from any courier.

use crate::{
    call::{Call, Delivery, Kind},
    hand_off::HandOff,
};

/// Asks which destinations have hand-offs that wait; answered with a `Vec<(String, u64)>`.
#[must_use]
pub fn waiting() -> Vec<u8> {
    Call::encode(Kind::Outbox, 0, &None::<&str>)
}

/// Asks for the first hand-offs that wait for this one; answered with a `Vec<HandOff>`.
#[must_use]
pub fn first_of(destination: &str) -> Vec<u8> {
    Call::encode(Kind::Outbox, 0, &Some(destination))
}

/// The command that executes a hand-off of the shard `source` at its destination.
#[must_use]
pub fn deliver(source: &str, hand_off: &HandOff) -> Vec<u8> {
    let delivery = Delivery {
        source,
        number: hand_off.number,
        time: hand_off.time,
        arguments: &hand_off.arguments,
    };
    Call::encode(Kind::Deliver, hand_off.method, &delivery)
}

/// The command by which a shard forgets what it has handed off to this destination, up to this number.
#[must_use]
pub fn settle(destination: &str, upto: u64) -> Vec<u8> {
    Call::encode(Kind::Settle, 0, &(destination, upto))
}

//! The collections that a key can hold.

pub mod extended;
pub mod geohash;
pub mod hash;
pub(crate) mod journal;
pub mod list;
pub mod pattern;
pub mod ranking;
pub mod score;
pub mod set;
pub mod sorted_set;
pub mod table;
pub mod wire;

//! "Did you mean …?", as everywhere in this program.

pub use quintet_lab::suggest::{nearest, remedy};

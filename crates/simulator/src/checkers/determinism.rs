//! Determinism: two runs of one seed are one world.
//!
//! ```text
//!   seed ──┬─► run ──► trace hash, events ──┐
//!          └─► run ──► trace hash, events ──┴─► the same, or chance comes from elsewhere
//! ```

use super::Violation;

/// The traces of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// A hash over all that happened.
    pub hash: u64,
    /// How many events there were.
    pub events: u64,
}

/// Compares two runs of a seed.
///
/// # Errors
/// When they differ.
pub fn check(first: Trace, second: Trace) -> Result<(), Violation> {
    if first == second {
        return Ok(());
    }
    Err(Violation::new(
        "determinism",
        format!(
            "two runs of the seed differ: {} events with trace {:016x}, then {} with {:016x}",
            first.events, first.hash, second.events, second.hash
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_differ_are_seen() {
        let one = Trace { hash: 1, events: 2 };
        assert_eq!(check(one, one), Ok(()));
        assert!(check(one, Trace { hash: 3, ..one }).is_err());
        assert!(check(one, Trace { events: 3, ..one }).is_err());
    }
}

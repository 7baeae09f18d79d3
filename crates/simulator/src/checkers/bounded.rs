//! Bounded queues: nothing in a world may grow without limit.
//!
//! ```text
//!   link ──► bytes in progress ≤ capacity    embedded frontend ──► batches in progress
//!   journal ──► records after trimming         executor ──► (its own assertion)
//! ```

use super::Violation;

/// The bounds of a world.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes in progress on one link.
    pub link_bytes: usize,
    /// Records in one journal.
    pub journal_records: usize,
    /// Batches in progress in one embedded frontend.
    pub batches_open: usize,
}

/// The largest sizes seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Largest {
    /// Bytes in progress on one link.
    pub link_bytes: usize,
    /// Records in one journal.
    pub journal_records: usize,
    /// Batches in progress in one embedded frontend.
    pub batches_open: usize,
}

/// Compares what was seen with the bounds.
///
/// # Errors
/// When one is exceeded.
pub fn check(largest: Largest, bounds: Bounds) -> Result<(), Violation> {
    let pairs = [
        (
            "bytes in progress on a link",
            largest.link_bytes,
            bounds.link_bytes,
        ),
        (
            "records in a journal",
            largest.journal_records,
            bounds.journal_records,
        ),
        (
            "batches in progress",
            largest.batches_open,
            bounds.batches_open,
        ),
    ];
    for (what, seen, bound) in pairs {
        if seen > bound {
            return Err(Violation::new(
                "bounded",
                format!("{seen} {what}, at most {bound} may be"),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_bound_is_seen() {
        let bounds = Bounds {
            link_bytes: 10,
            journal_records: 10,
            batches_open: 10,
        };
        assert_eq!(
            check(
                Largest {
                    link_bytes: 10,
                    ..Largest::default()
                },
                bounds
            ),
            Ok(())
        );
        assert!(
            check(
                Largest {
                    batches_open: 11,
                    ..Largest::default()
                },
                bounds
            )
            .is_err()
        );
    }
}

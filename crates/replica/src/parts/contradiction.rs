//! The report when members contradict each other.

use alloc::{format, string::String};
use core::fmt;

/// How the reason of every halt begins that [`crate::Context::contradicted`] asks for. In tests
/// and in the simulator it is a failure of the run: correct members never come to it.
pub const CONTRADICTION: &str = "members contradict each other";

/// Why a replica stops that was told what contradicts something it knows for certain: two values
/// for one slot in one ballot, or two decisions for one slot. Crashes and losses do not explain
/// that, and no protocol here tolerates more than those; to continue with either of the two would
/// spread the wrong one.
#[must_use]
pub(crate) fn contradiction(what: fmt::Arguments<'_>) -> String {
    format!(
        "{CONTRADICTION}: {what}. The memory, disk or program of a member is faulty, and it may \
         be this one. Compare their versions and logs; stop the faulty one, delete 'journal' and \
         'snapshots' in its data directory and nothing else, and start it, then this one, again"
    )
}

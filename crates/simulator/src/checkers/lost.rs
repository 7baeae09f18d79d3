//! A shard that is short of members acknowledges nothing and answers no linearizable read.
//!
//! ```text
//!   members that take part    0 ════════════╡                0 ═════════════
//!     in views of the shard    2 ═════════════╡                4 ═════════
//!   commands                    ├──────────────────┤ fine
//!                                            ├──────────────┤ not before enough have begun
//! ```
//!
//! An answer is from a time at which some member took part, and a command's from one at which as many
//! had begun as the shard needs. When a member has left is known a little late here, and never too early.

use super::Violation;
use quintet_replica::{ReplicaId, ReplicaSet};
use std::collections::BTreeMap;

const PROPERTY: &str = "lost";

/// A view in which a shard is active.
#[derive(Debug, Default)]
struct Active {
    begun: ReplicaSet,
    inside: ReplicaSet,
    /// When a member was last seen in it, of those that have left.
    left: u64,
}

/// One shard in all views.
#[derive(Debug)]
pub struct Lost {
    least: usize,
    views: BTreeMap<u64, Active>,
}

impl Lost {
    /// A shard that needs this number of members.
    #[must_use]
    pub const fn new(least: usize) -> Self {
        let views = BTreeMap::new();
        Self { least, views }
    }

    /// Replica `by` takes part in the shard in a view.
    pub fn begins(&mut self, by: ReplicaId, view: u64) {
        let active = self.views.entry(view).or_default();
        active.begun.insert(by);
        active.inside.insert(by);
    }

    /// It takes no part in that view any more.
    pub fn ends(&mut self, by: ReplicaId, view: u64, now: u64) {
        if let Some(active) = self.views.get_mut(&view) {
            active.left = active.left.max(now);
            active.inside = active.inside.without(by);
        }
    }

    /// A command, or a linearizable read, that was invoked at a time is answered.
    ///
    /// # Errors
    /// When no member can have known the answer.
    pub fn answered(&self, invoked: u64, is_command: bool) -> Result<(), Violation> {
        let mut views = self.views.values();
        let could = views.any(|view| {
            let there = !view.inside.is_empty() || view.left >= invoked;
            there && (!is_command || view.begun.len() >= self.least)
        });
        if could {
            return Ok(());
        }
        let what = if is_command { "command" } else { "read" };
        let what = format!("a {what} is answered while its shard is lost: {self:?}");
        Err(Violation::new(PROPERTY, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_members_that_take_part_answer_and_enough_of_them_order() {
        let (a, b) = (ReplicaId(0), ReplicaId(1));
        let mut shard = Lost::new(2);
        assert!(shard.answered(1, false).is_err(), "no member has begun");
        shard.begins(a, 1);
        assert_eq!(shard.answered(1, false), Ok(()));
        assert!(shard.answered(1, true).is_err(), "too few have begun");
        shard.begins(b, 1);
        assert_eq!(shard.answered(1, true), Ok(()));
        shard.ends(a, 1, 5);
        assert_eq!(shard.answered(6, true), Ok(()), "the other one is there");
        shard.ends(b, 1, 8);
        assert_eq!(shard.answered(7, true), Ok(()), "it was ordered before");
        assert!(shard.answered(9, true).is_err());
        assert!(shard.answered(9, false).is_err());
        shard.begins(b, 3);
        assert!(shard.answered(9, true).is_err(), "one is not enough");
    }
}

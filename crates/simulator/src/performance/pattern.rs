//! Shards of one size among all members, as Derecho's evaluation has them (§4.2).
//!
//! ```text
//!   disjoint, size 2:      0 1 | 2 3 | 4 5               one subgroup
//!   overlapping, size 2:   0 1 | 2 3 | 4 5, 1 2 | 3 4 | 5 0     as many subgroups as a shard has members
//! ```

use std::fmt::Write;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The members of each shard.
    pub size: usize,
    /// Each member is in that many shards, each shifted by one; otherwise it is in one.
    pub overlapping: bool,
}

impl Pattern {
    /// Whether n members can be divided like this.
    #[must_use]
    pub const fn fits(self, members: usize) -> bool {
        members >= self.size && members.is_multiple_of(self.size)
    }

    const fn subgroups(self) -> usize {
        if self.overlapping { self.size } else { 1 }
    }

    /// How many members all shards have, each counted once in each of its shards.
    #[must_use]
    pub const fn memberships(self, members: usize) -> usize {
        self.subgroups() * members
    }

    /// The shards among n members, in memory, as a protocol's option has them.
    #[must_use]
    pub fn layout(self, members: usize) -> String {
        let (size, shards) = (self.size, members / self.size);
        let mut text = String::new();
        for subgroup in 0..self.subgroups() {
            let first = 1 + subgroup * shards;
            let last = first + shards - 1;
            let between = if subgroup == 0 { "" } else { "; " };
            let _ = write!(text, "{between}s{subgroup} groups={first}-{last} pin=");
            for shard in 0..shards {
                let member = |rank| (shard * size + subgroup + rank) % members;
                let ids: Vec<String> = (0..size).map(|rank| member(rank).to_string()).collect();
                let between = if shard == 0 { "" } else { "|" };
                let _ = write!(text, "{between}{}", ids.join(","));
            }
            let _ = write!(text, " members={size} durability=memory");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::Layout;

    #[test]
    fn patterns_are_those_of_the_paper() {
        let pattern = |size, overlapping| Pattern { size, overlapping };
        let shown = |pattern: Pattern, members| {
            let layout: Layout = pattern.layout(members).parse().expect("a layout");
            layout.check(members).expect("of these members");
            let shards = layout.shards().iter();
            let all: usize = shards.map(|shard| shard.nodes.len()).sum();
            assert_eq!(all, pattern.memberships(members));
            layout.to_string()
        };
        assert_eq!(
            shown(pattern(2, false), 4),
            "s0 groups=1,2 pin=0,1|2,3 members=2..2 durability=memory"
        );
        assert_eq!(
            shown(pattern(3, true), 6),
            "s0 groups=1,2 pin=0,1,2|3,4,5 members=3..3 durability=memory;\
             s1 groups=3,4 pin=1,2,3|0,4,5 members=3..3 durability=memory;\
             s2 groups=5,6 pin=2,3,4|0,1,5 members=3..3 durability=memory"
        );
        assert!(pattern(3, true).fits(63) && !pattern(3, true).fits(64));
        assert!(!pattern(3, false).fits(0));
    }
}

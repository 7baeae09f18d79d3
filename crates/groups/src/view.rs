//! Views: the members of a shard, as its `#[view]` method is told of them.
//!
//! ```text
//!   a member sees view 7: 1, 4 ──► View(7, [1, 4]), ordered ──► 7 > 5 ──► #[view] at every member
//!   another one, too           ──► View(7, [1, 4]), ordered ──► 7 = 7 ──► nothing
//!   one that is late           ──► View(6, [1])   , ordered ──► 6 < 7 ──► nothing
//! ```
//!
//! The last view is part of the state, and only later ones count. So it does not matter how often, and
//! by whom, a view is told of: each is executed once at most, in ascending order, at one place of the
//! order that is the same for all. Members that come later have it by log or snapshot.
//!
//! The paper calls its handlers when a member installs a view, beside the order. Here the place of a view
//! is one in the shard's own order, since the state must be the same at all members, and any protocol can
//! order a command. So the place is somewhat behind the beginning of the view, and a view that is
//! followed at once by another one may be left out.

use crate::call::{Call, Kind};
use serde::{Deserialize, Serialize};

/// A view as it is ordered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The epoch, and the number in it: later views have higher ones.
    pub number: (u64, u64),
    /// The members, ascending.
    pub members: Vec<u16>,
}

/// The command that tells a shard of its members.
#[must_use]
pub fn tell(view: &Told) -> Vec<u8> {
    Call::encode(Kind::View, 0, view)
}

/// Asks for the number of the last view that was told; answered with a `(u64, u64)`.
#[must_use]
pub fn last() -> Vec<u8> {
    Call::encode(Kind::LastView, 0, &())
}

/// The members of a shard, for its `#[view]` method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardView {
    number: (u64, u64),
    members: Vec<usize>,
    before: Vec<usize>,
}

impl ShardView {
    /// A view, and the members before it.
    pub(crate) fn new(view: &Told, before: &Told) -> Self {
        let members = |of: &Told| of.members.iter().copied().map(usize::from).collect();
        Self {
            number: view.number,
            members: members(view),
            before: members(before),
        }
    }

    /// Its number: higher than that of any view before in the same epoch. Numbers have gaps. It is 0
    /// where the protocol does not change the members.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number.1
    }

    /// The epoch of the group, from 1.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.number.0
    }

    /// The members of the shard, by their numbers in the group, ascending.
    #[must_use]
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// The members that were none in the view that was told before.
    pub fn joined(&self) -> impl Iterator<Item = usize> {
        let is_new = |it: &usize| !self.before.contains(it);
        self.members.iter().copied().filter(is_new)
    }

    /// The members of the view that was told before that are none now.
    pub fn left(&self) -> impl Iterator<Item = usize> {
        let has_left = |it: &usize| !self.members.contains(it);
        self.before.iter().copied().filter(has_left)
    }
}

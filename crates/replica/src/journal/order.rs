//! Maps the writes of several groups to those of their one journal, and back.
//!
//! ```text
//!   group 0: w1 w2    ──┐                          ┌──► group 0: w2
//!   group 1: w1       ──┼──► journal: w1 … w4 ─────┼──► group 1: w1
//!   group 0: w3       ──┘    durable up to w3      └    (w4 is group 0's w3)
//! ```
//!
//! With one group the numbers are the same, and nothing is kept.

use crate::{GroupIndex, Injected, PersistId, bug::Bug};
use alloc::collections::VecDeque;
use smallvec::{SmallVec, smallvec};

/// Writes of a group that follow one another in its numbers and in the journal's.
#[derive(Clone, Copy, Debug)]
struct Run {
    group: GroupIndex,
    /// The first one, as the group numbers it.
    own: u64,
    /// The first and the last one, as the journal numbers them.
    first: u64,
    last: u64,
}

/// Maps the numbers of several groups' writes to those of their journal, and back. It keeps at most
/// one entry for each write that waits for the disk: the bound of those is its bound.
#[derive(Clone, Debug)]
pub struct JournalOrder {
    groups: u16,
    /// The last number of the journal.
    last: u64,
    /// Everything up to here is durable.
    durable: u64,
    waiting: VecDeque<Run>,
    injected: Injected,
}

impl JournalOrder {
    /// For this number of groups.
    ///
    /// # Panics
    /// When it is above the 65,536 groups that a process may have.
    #[must_use]
    pub fn new(groups: usize) -> Self {
        Self {
            groups: GroupIndex::new(groups).0,
            last: 0,
            durable: 0,
            waiting: VecDeque::new(),
            injected: Injected::default(),
        }
    }

    /// With one of the injected bugs where the build has them.
    #[must_use]
    pub fn with_injected(mut self, bug: Injected) -> Self {
        self.injected = bug;
        self
    }

    /// Another group comes in, behind the others.
    pub fn join(&mut self) {
        if self.groups == 1 && self.last > self.durable {
            let (own, first) = (self.durable + 1, self.durable + 1);
            self.waiting.push_back(Run {
                group: GroupIndex(0),
                own,
                first,
                last: self.last,
            });
        }
        self.groups += 1;
    }

    /// The journal's number for a write of a group. A group's numbers ascend.
    pub fn assign(&mut self, group: GroupIndex, id: PersistId) -> PersistId {
        if self.groups == 1 {
            self.last = id.0;
            return id;
        }
        self.last += 1;
        match self.waiting.back_mut() {
            Some(run) if run.group == group && run.own + (self.last - run.first) == id.0 => {
                run.last = self.last;
            }
            _ => self.waiting.push_back(Run {
                group,
                own: id.0,
                first: self.last,
                last: self.last,
            }),
        }
        PersistId(self.last)
    }

    /// The journal is durable up to this number. Gives the newest durable write of each group for
    /// which this is news.
    pub fn durable(&mut self, upto: PersistId) -> SmallVec<[(GroupIndex, PersistId); 4]> {
        self.durable = self.durable.max(upto.0);
        if self.groups == 1 {
            return smallvec![(GroupIndex(0), upto)];
        }
        let mut told: SmallVec<[(GroupIndex, PersistId); 4]> = SmallVec::new();
        while let Some(run) = self.waiting.front_mut()
            && run.first <= upto.0
        {
            let last = run.last.min(upto.0);
            let own = PersistId(run.own + (last - run.first));
            match told.iter_mut().find(|(group, _)| *group == run.group) {
                Some((_, newest)) => *newest = own,
                None => told.push((run.group, own)),
            }
            if last == run.last {
                self.waiting.pop_front();
            } else {
                (run.own, run.first) = (own.0 + 1, last + 1);
            }
        }
        if self.injected.is(Bug::PersistedOfAnotherDriver) {
            for run in self.waiting.drain(..) {
                told.push((run.group, PersistId(run.own + (run.last - run.first))));
            }
        }
        told
    }

    /// Whether nothing waits for the disk.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.durable >= self.last
    }
}

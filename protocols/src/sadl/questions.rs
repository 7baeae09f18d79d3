//! Batches that are missing here and asked for.

use super::{Chains, Name, Range};
use alloc::{collections::BTreeMap, vec::Vec};
use core::time::Duration;
use quintet_replica::ReplicaId;

/// The most ranges that are asked for at a time, each of another chain.
const WANTED_MAX: usize = 64;
/// The time until a question is repeated is doubled at most so often.
const TRIES_MAX: u32 = 3;

/// Batches that are asked for.
#[derive(Clone, Copy, Debug, Hash)]
struct Asked {
    range: Range,
    /// Whom last.
    from: ReplicaId,
    tries: u32,
}

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Questions {
    /// By creator and chain.
    wanted: BTreeMap<(ReplicaId, u64), Asked>,
    armed: bool,
    /// How often questions have been repeated since something came.
    tries: u32,
}

const fn key(name: Name) -> (ReplicaId, u64) {
    (name.creator, name.chain)
}

impl Questions {
    /// Whether batches of this one's chain are asked for.
    pub fn concern(&self, name: Name) -> bool {
        self.wanted.contains_key(&key(name))
    }

    /// Whether something of this chain may be asked for, too.
    pub fn may_ask(&self, name: Name) -> bool {
        self.wanted.len() < WANTED_MAX && !self.concern(name)
    }

    /// These are asked for.
    pub fn ask(&mut self, range: Range, from: ReplicaId) {
        let tries = 0;
        let asked = Asked { range, from, tries };
        self.wanted.insert(key(range.first), asked);
    }

    /// Whether this many batches from this one on were asked for.
    pub fn fits(&self, first: Name, count: usize) -> bool {
        self.wanted.get(&key(first)).is_some_and(|asked| {
            asked.range.first.round <= first.round
                && first.round + count as u64 <= asked.range.last + 1
        })
    }

    /// Drops questions of which something was answered, or that were asked more than so often: the
    /// host looks again at what it needs. True when there were any.
    pub fn drop_found(&mut self, chains: &Chains, tries_max: u32) -> bool {
        let before = self.wanted.len();
        self.wanted.retain(|_, asked| {
            let left = chains.missing(asked.range);
            asked.tries <= tries_max && left.is_some_and(|left| left == asked.range)
        });
        self.wanted.len() < before
    }

    /// They were for something that is over.
    pub fn clear(&mut self) {
        self.wanted.clear();
    }

    /// The time until the timer fires, if it is to be set.
    pub fn arm(&mut self, round_trip: Duration) -> Option<Duration> {
        if self.armed || self.wanted.is_empty() {
            return None;
        }
        self.armed = true;
        let pause = Duration::from_millis(40).max(round_trip * 2);
        Some(pause * (1 << self.tries.min(TRIES_MAX)))
    }

    /// Something came: the others are repeated soon.
    pub const fn answered(&mut self) {
        self.tries = 0;
        self.armed = false;
    }

    /// The timer has fired.
    pub const fn fired(&mut self) {
        self.armed = false;
        self.tries = self.tries.saturating_add(1);
    }

    /// All questions, each to the member after the one that was asked last.
    pub fn repeat(&mut self, next: impl Fn(ReplicaId) -> ReplicaId) -> Vec<(ReplicaId, Range)> {
        if self.wanted.is_empty() {
            self.tries = 0;
        }
        let again = self.wanted.values_mut().map(|asked| {
            asked.from = next(asked.from);
            asked.tries += 1;
            (asked.from, asked.range)
        });
        again.collect()
    }
}

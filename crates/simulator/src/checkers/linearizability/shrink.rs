//! The smallest part of a history that cannot be explained.
//!
//! ```text
//!   all operations ──► those before the first moment at which no order is left
//!        └──► answer by answer: forget it (the operation may or may not have happened, at any time);
//!             when there is still no order, the answer was not needed
//! ```
//!
//! Forgetting an answer only makes a history easier to explain, so what is left is a contradiction
//! of its own. Dropping an operation whole would not do: others may need what it wrote.

use super::{
    Evidence,
    prepare::{Component, Prepared, number_unknown},
    search::{Found, Limits, Search},
};

/// Of what all tries together may cost, one part in that many is for each; one that is given up
/// keeps what it wanted to forget.
const TRIES: u64 = 100;
/// The same for looking for the first hopeless moment.
const PREFIXES: u64 = 4;
const MEMORY: usize = 256 << 20;

struct Shrinker<'a> {
    operations: &'a [Prepared],
    keys: usize,
    steps: u64,
    steps_max: u64,
}

impl Shrinker<'_> {
    /// The history up to `end`, without the answers that are not in `kept`.
    fn part(&self, end: u64, kept: &[bool]) -> Vec<Prepared> {
        let mut part = Vec::new();
        for (index, operation) in self.operations.iter().enumerate() {
            let answered = kept[index] && operation.returned.is_some_and(|at| at <= end);
            if operation.invoked > end || (!answered && is_read(operation)) {
                continue;
            }
            let mut operation = operation.clone();
            operation.same_before = u32::MAX;
            operation.looks &= answered;
            if !answered {
                (operation.returned, operation.expected) = (None, None);
            }
            part.push(operation);
        }
        number_unknown(&mut part);
        part
    }

    fn is_impossible(&mut self, end: u64, kept: &[bool], share: u64) -> bool {
        if self.steps > self.steps_max {
            return false;
        }
        let limits = Limits {
            steps: (self.steps_max / share).max(1000),
            memory: MEMORY,
            evidence: 0,
        };
        let part = self.part(end, kept);
        let mut search = Search::new(&part, self.keys);
        let found = search.run(&limits);
        self.steps += search.steps();
        matches!(found, Found::Nothing(_))
    }
}

fn is_read(operation: &Prepared) -> bool {
    let mut parts = operation.call.groups.iter().flat_map(|group| &group.parts);
    operation.watched.is_empty()
        && operation.watches.is_none()
        && parts.all(|part| part.act.only_reads())
}

/// Shrinks a component that has no order.
pub(super) fn evidence(component: &Component, furthest: usize, steps_max: u64) -> Evidence {
    let operations = &component.operations[..];
    let mut shrinker = Shrinker {
        operations,
        keys: component.keys,
        steps: 0,
        steps_max,
    };
    let mut kept: Vec<bool> = operations
        .iter()
        .map(|one| one.returned.is_some())
        .collect();
    let mut ends: Vec<u64> = operations.iter().filter_map(|one| one.returned).collect();
    ends.sort_unstable();
    // A history without an explanation up to a time has none later either.
    let (mut low, mut high) = (0, ends.len().saturating_sub(1));
    while low < high {
        let middle = low.midpoint(high);
        match shrinker.is_impossible(ends[middle], &kept, PREFIXES) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    let mut end = ends.get(high).copied().unwrap_or(u64::MAX);
    shrinker.steps = 0;
    if !shrinker.is_impossible(end, &kept, PREFIXES) {
        end = ends.last().copied().unwrap_or(u64::MAX);
    }
    for (index, operation) in operations.iter().enumerate() {
        kept[index] &= operation.returned.is_some_and(|at| at <= end);
    }
    forget(&mut shrinker, end, &mut kept);
    let mut core: Vec<usize> = (0..operations.len()).filter(|index| kept[*index]).collect();
    if core.is_empty() {
        core.push(furthest);
    }
    core.sort_by_key(|index| operations[*index].invoked);
    let others = shrinker.part(end, &kept).len() - core.len();
    Evidence {
        core: core
            .into_iter()
            .map(|index| operations[index].number as usize)
            .collect(),
        others,
    }
}

/// Forgets answers in ever smaller chunks, the oldest first.
fn forget(shrinker: &mut Shrinker<'_>, end: u64, kept: &mut [bool]) {
    let mut left: Vec<usize> = (0..kept.len()).filter(|index| kept[*index]).collect();
    left.sort_by_key(|index| shrinker.operations[*index].invoked);
    let mut size = left.len().div_ceil(2);
    while size > 0 && left.len() > 1 {
        let mut at = 0;
        let mut shrunk = false;
        while at < left.len() {
            let chunk: Vec<usize> = left[at..left.len().min(at + size)].to_vec();
            chunk.iter().for_each(|index| kept[*index] = false);
            if chunk.len() < left.len() && shrinker.is_impossible(end, kept, TRIES) {
                left.drain(at..at + chunk.len());
                shrunk = true;
            } else {
                chunk.iter().for_each(|index| kept[*index] = true);
                at += size;
            }
        }
        size = match (size, shrunk) {
            (1, true) => 1,
            (1, false) => 0,
            _ => size.div_ceil(2),
        };
    }
}

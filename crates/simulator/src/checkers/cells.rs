//! Linearizability of a history, key by key.
//!
//! ```text
//!   calls and returns in order   c1 c2 r2 c3 r1 r3        (an uncertain operation has no return)
//!        │ candidates: the calls before the first return that the model allows here
//!        ▼
//!   one only looks? ──► take it at once: no order could be corrupted by that
//!   otherwise choose, in the order of the hints: take call and return out, begin again
//!        │ no candidate is left: take the last choice back
//!        ▼
//!   done when no return is left; seen (set of chosen, state) pairs are not tried again
//! ```
//!
//! The search is that of Wing and Gong with Lowe's memory of visited configurations. Keys are
//! independent because linearizability is local, so the work is the sum over keys. The hint of an
//! operation is its place in the order in which the replicas executed: a right system is explained
//! by that order without a single step back, whatever the number of uncertain operations. Hints
//! only steer the search; what it finds is checked against the answers alone.

use super::Violation;
use crate::{
    history::{Fate, Recorded},
    machine::{Cell, Operation, Reply},
};
use foldhash::fast::FixedState;
use hashbrown::HashSet;
use smallvec::SmallVec;
use std::hash::Hash;

/// A sequential specification.
pub trait Model {
    /// The state of one key.
    type State: Clone + Eq + Hash;
    /// A request together with its answer; an uncertain operation has no answer.
    type Step;
    /// The state of a key that nothing was done to.
    fn initial(&self) -> Self::State;
    /// The state after the step, if the model can answer so.
    fn step(&self, state: &Self::State, step: &Self::Step) -> Option<Self::State>;
    /// Whether the step changes no state at all in which it is possible: a read, a comparison that
    /// failed. Never true of an uncertain operation.
    fn only_looks(&self, step: &Self::Step) -> bool;
}

/// One operation on one key.
#[derive(Clone, Debug)]
pub struct Interval<S> {
    /// When it was invoked. All times of a history differ.
    pub invoked: u64,
    /// When it was answered; `None` for an uncertain one.
    pub completed: Option<u64>,
    /// The operation.
    pub step: S,
    /// Where it may stand among those that change something; operations with smaller hints are
    /// tried first.
    pub hint: u64,
}

/// The result of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that explains all answers.
    Linearizable,
    /// There is none; the index of an operation that could not be placed in the longest try.
    Impossible(usize),
    /// The search was given up after this many steps.
    Undecided(u64),
}

type Chosen = SmallVec<[u64; 4]>;

const NONE: u32 = u32::MAX;

/// Calls and returns as a doubly linked list over two indices per operation.
struct Entries {
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl Entries {
    /// The head is the last index.
    fn head(&self) -> u32 {
        self.next.len() as u32 - 1
    }

    fn remove(&mut self, at: u32) {
        let (before, after) = (self.previous[at as usize], self.next[at as usize]);
        self.next[before as usize] = after;
        if after != NONE {
            self.previous[after as usize] = before;
        }
    }

    fn restore(&mut self, at: u32) {
        let (before, after) = (self.previous[at as usize], self.next[at as usize]);
        self.next[before as usize] = at;
        if after != NONE {
            self.previous[after as usize] = at;
        }
    }
}

/// A choice of the search, and what else could have been chosen there.
struct Choice<S> {
    /// The operations taken out here: first the choice, then those that only look.
    taken: SmallVec<[u32; 4]>,
    /// The state before the choice.
    before: S,
    /// Candidates in order, with the state after each.
    candidates: Vec<(u32, S)>,
    next: usize,
}

/// The search over one key.
struct Search<'a, M: Model> {
    model: &'a M,
    operations: &'a [Interval<M::Step>],
    entries: Entries,
    chosen: Chosen,
    /// Operations with an answer that are not chosen yet.
    left: usize,
    state: M::State,
    steps: u64,
    deepest: usize,
    culprit: usize,
}

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M, operations: &'a [Interval<M::Step>]) -> Self {
        let count = operations.len();
        // Index 2i is the call of operation i, 2i + 1 its return.
        let mut order: Vec<(u64, u32)> = Vec::with_capacity(2 * count);
        for (index, operation) in operations.iter().enumerate() {
            order.push((operation.invoked, 2 * index as u32));
            if let Some(completed) = operation.completed {
                order.push((completed, 2 * index as u32 + 1));
            }
        }
        order.sort_unstable();
        let links = vec![NONE; 2 * count + 1];
        let mut entries = Entries {
            next: links.clone(),
            previous: links,
        };
        let mut last = entries.head();
        for (_, entry) in &order {
            entries.next[last as usize] = *entry;
            entries.previous[*entry as usize] = last;
            last = *entry;
        }
        Self {
            model,
            operations,
            entries,
            chosen: SmallVec::from_elem(0, count.div_ceil(64)),
            left: operations
                .iter()
                .filter(|operation| operation.completed.is_some())
                .count(),
            state: model.initial(),
            steps: 0,
            deepest: 0,
            culprit: 0,
        }
    }

    fn take(&mut self, operation: u32) {
        let index = operation as usize;
        self.chosen[index / 64] |= 1 << (index % 64);
        self.entries.remove(2 * operation);
        if self.operations[index].completed.is_some() {
            self.entries.remove(2 * operation + 1);
            self.left -= 1;
        }
    }

    fn put_back(&mut self, operation: u32) {
        let index = operation as usize;
        self.chosen[index / 64] &= !(1 << (index % 64));
        if self.operations[index].completed.is_some() {
            self.entries.restore(2 * operation + 1);
            self.left += 1;
        }
        self.entries.restore(2 * operation);
    }

    /// Takes out every candidate that only looks, into `taken`; gives the
    /// other candidates in the order of their hints.
    fn candidates(&mut self, taken: &mut SmallVec<[u32; 4]>) -> Vec<(u32, M::State)> {
        let mut candidates = Vec::new();
        let mut entry = self.entries.next[self.entries.head() as usize];
        while entry != NONE && entry.is_multiple_of(2) {
            self.steps += 1;
            let operation = entry / 2;
            let interval = &self.operations[operation as usize];
            let after = self.model.step(&self.state, &interval.step);
            entry = self.entries.next[entry as usize];
            match after {
                Some(_) if self.model.only_looks(&interval.step) => {
                    self.take(operation);
                    taken.push(operation);
                    // Its return may have been the first: more calls are candidates now.
                    candidates.clear();
                    entry = self.entries.next[self.entries.head() as usize];
                }
                // An uncertain operation that would change nothing need not be placed here.
                Some(after) if after != self.state || interval.completed.is_some() => {
                    candidates.push((operation, after));
                }
                _ => {}
            }
        }
        if entry != NONE && taken.is_empty() {
            self.culprit = (entry / 2) as usize;
        }
        candidates.sort_by_key(|(operation, _)| self.operations[*operation as usize].hint);
        candidates
    }

    fn run(&mut self, steps_max: u64) -> Verdict {
        let mut seen: HashSet<(Chosen, M::State), FixedState> = HashSet::default();
        let mut taken = SmallVec::new();
        let candidates = self.candidates(&mut taken);
        let mut stack = vec![Choice {
            taken,
            before: self.state.clone(),
            candidates,
            next: 0,
        }];
        let mut culprit = self.culprit;
        while self.left > 0 {
            if self.steps > steps_max {
                return Verdict::Undecided(steps_max);
            }
            let depth = stack.len();
            let Some(top) = stack.last_mut() else {
                return Verdict::Impossible(culprit);
            };
            let Some((operation, after)) = top.candidates.get(top.next).cloned() else {
                if depth > self.deepest {
                    self.deepest = depth;
                    culprit = self.first_return().unwrap_or(culprit);
                }
                let Some(choice) = stack.pop() else {
                    return Verdict::Impossible(culprit);
                };
                for operation in choice.taken.iter().rev() {
                    self.put_back(*operation);
                }
                self.state = choice.before;
                continue;
            };
            top.next += 1;
            let before = std::mem::replace(&mut self.state, after);
            self.take(operation);
            if !seen.insert((self.chosen.clone(), self.state.clone())) {
                self.put_back(operation);
                self.state = before;
                continue;
            }
            let mut taken = SmallVec::from_slice(&[operation]);
            let candidates = self.candidates(&mut taken);
            stack.push(Choice {
                taken,
                before,
                candidates,
                next: 0,
            });
        }
        Verdict::Linearizable
    }

    fn first_return(&self) -> Option<usize> {
        let mut entry = self.entries.next[self.entries.head() as usize];
        while entry != NONE && entry.is_multiple_of(2) {
            entry = self.entries.next[entry as usize];
        }
        (entry != NONE).then_some((entry / 2) as usize)
    }
}

/// Searches for an order of the operations of one key. Gives up after `steps_max` steps.
pub fn check_key<M: Model>(model: &M, operations: &[Interval<M::Step>], steps_max: u64) -> Verdict {
    Search::new(model, operations).run(steps_max)
}

/// The registers, counters and lists of [`crate::machine`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Cells;

impl Model for Cells {
    type State = Cell;
    type Step = (Operation, Option<Reply>);

    fn initial(&self) -> Cell {
        Cell::default()
    }

    fn only_looks(&self, (operation, reply): &Self::Step) -> bool {
        match operation {
            Operation::Read => reply.is_some(),
            Operation::CompareAndSet { .. } => *reply == Some(Reply::Swapped(false)),
            _ => false,
        }
    }

    fn step(&self, state: &Cell, (operation, reply): &Self::Step) -> Option<Cell> {
        let mut after = *state;
        let given = after.apply(*operation);
        (reply.is_none() || *reply == Some(given)).then_some(after)
    }
}

/// Steps after which the search over one key is given up.
pub const STEPS_MAX: u64 = 400_000;

/// Checks a whole history, key by key. Operations that failed never happened; uncertain reads say
/// nothing; other uncertain ones may have happened at any time after their invocation. `executed`
/// gives the place of an operation in the order in which the replicas executed, if it has one.
///
/// # Errors
/// With the first key that has no order, or none that was found although the order of execution
/// was tried first.
pub fn check(
    history: &[Recorded],
    executed: impl Fn(usize) -> Option<u64>,
) -> Result<(), Violation> {
    let mut by_key: Vec<(u32, usize)> = history
        .iter()
        .enumerate()
        .filter(|(_, recorded)| match recorded.fate {
            Fate::Done(..) => true,
            Fate::Failed => false,
            Fate::Open | Fate::Uncertain => recorded.operation != Operation::Read,
        })
        .map(|(number, recorded)| (recorded.key, number))
        .collect();
    by_key.sort_unstable();
    for group in by_key.chunk_by(|a, b| a.0 == b.0) {
        let operations: Vec<_> = group
            .iter()
            .map(|(_, number)| {
                let recorded = &history[*number];
                let (completed, reply) = match recorded.fate {
                    Fate::Done(at, reply) => (Some(at), Some(reply)),
                    _ => (None, None),
                };
                let step = (recorded.operation, reply);
                let hint = executed(*number).unwrap_or(u64::MAX);
                Interval {
                    invoked: recorded.invoked,
                    completed,
                    step,
                    hint,
                }
            })
            .collect();
        let (key, count) = (group[0].0, group.len());
        let what = match check_key(&Cells, &operations, STEPS_MAX) {
            Verdict::Linearizable => continue,
            Verdict::Undecided(steps) => format!(
                "no order of the {count} operations on key {key} was found in {steps} steps, and \
                 the order in which they were executed does not explain their answers"
            ),
            Verdict::Impossible(index) => format!(
                "no order of the {count} operations on key {key} explains their answers; operation \
                 {} cannot be placed: {:?}",
                group[index].1, history[group[index].1]
            ),
        };
        return Err(Violation::new("linearizability", what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{history::History, random::Random};

    fn interval(
        invoked: u64,
        completed: Option<u64>,
        operation: Operation,
        reply: Option<Reply>,
    ) -> Interval<(Operation, Option<Reply>)> {
        Interval {
            invoked,
            completed,
            step: (operation, reply),
            hint: 0,
        }
    }

    fn verdict(operations: &[Interval<(Operation, Option<Reply>)>]) -> Verdict {
        check_key(&Cells, operations, STEPS_MAX)
    }

    fn read(value: u64) -> Option<Reply> {
        Some(Reply::Value(0, value))
    }

    #[test]
    fn overlapping_operations_may_take_effect_in_either_order() {
        let write = |from, to, value| {
            interval(
                from,
                Some(to),
                Operation::Write(value),
                Some(Reply::Written),
            )
        };
        let history = [
            write(1, 4, 7),
            write(2, 3, 8),
            interval(5, Some(6), Operation::Read, read(7)),
        ];
        assert_eq!(verdict(&history), Verdict::Linearizable);
        let history = [
            write(1, 4, 7),
            write(2, 3, 8),
            interval(5, Some(6), Operation::Read, read(8)),
        ];
        assert_eq!(verdict(&history), Verdict::Linearizable);
        let history = [
            write(1, 2, 7),
            write(3, 4, 8),
            interval(5, Some(6), Operation::Read, read(7)),
        ];
        assert!(matches!(verdict(&history), Verdict::Impossible(_)));
    }

    #[test]
    fn uncertain_write_may_appear_late_or_never_but_not_flicker() {
        let lost = interval(1, None, Operation::Write(9), None);
        let see = |from, value| interval(from, Some(from + 1), Operation::Read, read(value));
        assert_eq!(
            verdict(&[lost.clone(), see(2, 0), see(4, 0)]),
            Verdict::Linearizable
        );
        assert_eq!(
            verdict(&[lost.clone(), see(2, 0), see(4, 9)]),
            Verdict::Linearizable
        );
        assert!(matches!(
            verdict(&[lost, see(2, 9), see(4, 0)]),
            Verdict::Impossible(_)
        ));
    }

    #[test]
    fn failed_comparison_tells_of_an_uncertain_write() {
        let lost = interval(1, None, Operation::Write(9), None);
        let swap = Operation::CompareAndSet {
            expected: 0,
            new: 5,
        };
        let failed = interval(2, Some(3), swap, Some(Reply::Swapped(false)));
        assert_eq!(verdict(&[lost, failed.clone()]), Verdict::Linearizable);
        assert!(matches!(verdict(&[failed]), Verdict::Impossible(0)));
    }

    #[test]
    fn increment_applied_twice_is_seen() {
        let add = |at, sum| interval(at, Some(at + 1), Operation::Add(1), Some(Reply::Sum(sum)));
        assert_eq!(verdict(&[add(1, 1), add(3, 2)]), Verdict::Linearizable);
        assert!(matches!(
            verdict(&[add(1, 1), add(3, 3)]),
            Verdict::Impossible(_)
        ));
    }

    /// A history of `clients` that really was atomic: each operation takes effect at a drawn
    /// moment between its invocation and its completion.
    fn atomic(operations: usize, keys: u32, clients: usize, random: &mut Random) -> History {
        let mut history = History::default();
        let mut cells = vec![Cell::default(); keys as usize];
        let mut open: Vec<(usize, Option<Reply>)> = Vec::new();
        let mut begun = 0;
        while begun < operations || !open.is_empty() {
            if begun < operations && open.len() < clients && random.chance(500) {
                let key = random.below(keys.into()) as u32;
                let operation = match random.below(4) {
                    0 => Operation::Write(begun as u64 + 1),
                    1 => Operation::Add(1),
                    _ => Operation::Read,
                };
                open.push((history.invoke(0, key, operation), None));
                begun += 1;
            } else if !open.is_empty() {
                let index = random.index(open.len());
                let (number, reply) = &mut open[index];
                let recorded = *history.get(*number);
                match reply {
                    None => *reply = Some(cells[recorded.key as usize].apply(recorded.operation)),
                    Some(reply) => {
                        history.done(*number, *reply);
                        open.swap_remove(index);
                    }
                }
            }
        }
        history
    }

    #[test]
    fn atomic_histories_pass_and_a_changed_read_does_not() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let history = atomic(60, 2, 6, &mut random);
            assert_eq!(check(history.operations(), |_| None), Ok(()), "seed {seed}");
            let mut changed = history.operations().to_vec();
            let reads: Vec<usize> = (0..changed.len())
                .filter(|number| changed[*number].operation == Operation::Read)
                .collect();
            let number = reads[random.index(reads.len())];
            if let Fate::Done(at, _) = changed[number].fate {
                changed[number].fate = Fate::Done(at, Reply::Value(0, 1 << 40));
            }
            assert!(check(&changed, |_| None).is_err(), "seed {seed}");
        }
    }

    #[test]
    fn hints_find_the_order_of_many_uncertain_appends() {
        let mut history = History::default();
        let mut cell = Cell::default();
        let mut hints = std::collections::BTreeMap::new();
        let numbers: Vec<usize> = (0..40)
            .map(|value| history.invoke(0, 0, Operation::Append(value)))
            .collect();
        for (place, number) in numbers.iter().rev().enumerate() {
            hints.insert(*number, place as u64);
            cell.apply(Operation::Append(*number as u64));
        }
        let read = history.invoke(0, 0, Operation::Read);
        history.done(read, Reply::Value(cell.length, cell.value));
        let hint = |number: usize| hints.get(&number).copied();
        assert_eq!(check(history.operations(), hint), Ok(()));
        assert!(check(history.operations(), |_| None).is_err());
    }

    #[test]
    fn hundred_thousand_operations_over_a_thousand_keys_are_decided() {
        let history = atomic(100_000, 1000, 50, &mut Random::new(9));
        assert_eq!(check(history.operations(), |_| None), Ok(()));
    }
}

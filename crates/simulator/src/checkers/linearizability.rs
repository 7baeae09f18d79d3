//! Linearizability of a history, key by key.
//!
//! ```text
//!   calls and returns in order   c1 c2 r2 c3 r1 r3        (an uncertain operation has no return)
//!        │ choose a call before the first return that the model allows here
//!        ▼
//!   linearize it: take call and return out, go on from the beginning
//!        │ no call is left to choose: take the last choice back
//!        ▼
//!   done when no return is left; seen (set of chosen, state) pairs are not tried again
//! ```
//!
//! The search is that of Wing and Gong with Lowe's memory of visited configurations. Keys are
//! independent because linearizability is local, so the work is the sum over keys.

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
    /// What is asked together with what was answered; an uncertain operation has no answer.
    type Step;
    /// The state of a key that nothing was done to.
    fn initial(&self) -> Self::State;
    /// The state after the step, if the model can answer so.
    fn step(&self, state: &Self::State, step: &Self::Step) -> Option<Self::State>;
}

/// One operation on one key.
#[derive(Clone, Debug)]
pub struct Interval<S> {
    /// When it was invoked. All times of a history differ.
    pub invoked: u64,
    /// When it was answered; `None` for an uncertain one.
    pub completed: Option<u64>,
    /// What it was.
    pub step: S,
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
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

/// Searches for an order of the operations of one key. Gives up after `steps_max` steps.
pub fn check_key<M: Model>(
    model: &M,
    operations: &[Interval<M::Step>],
    steps_max: u64,
) -> Judgement {
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
    let mut entries = Entries {
        next: vec![NONE; 2 * count + 1],
        previous: vec![NONE; 2 * count + 1],
    };
    let mut last = entries.head();
    for (_, entry) in &order {
        entries.next[last as usize] = *entry;
        entries.previous[*entry as usize] = last;
        last = *entry;
    }

    let mut left = operations
        .iter()
        .filter(|operation| operation.completed.is_some())
        .count();
    let mut chosen: Chosen = SmallVec::from_elem(0, count.div_ceil(64));
    let mut seen: HashSet<(Chosen, M::State), FixedState> = HashSet::default();
    let mut stack: Vec<(u32, M::State)> = Vec::new();
    let mut state = model.initial();
    let mut steps = 0;
    let (mut deepest, mut culprit) = (0, 0);
    let mut entry = entries.next[entries.head() as usize];
    while left > 0 {
        steps += 1;
        if steps > steps_max {
            return Judgement::Undecided(steps_max);
        }
        // With a return left, the list has a return, so the end is never reached before one.
        let (operation, is_return) = ((entry / 2) as usize, entry % 2 == 1);
        if !is_return {
            if let Some(after) = model.step(&state, &operations[operation].step) {
                chosen[operation / 64] |= 1 << (operation % 64);
                if seen.insert((chosen.clone(), after.clone())) {
                    stack.push((entry, std::mem::replace(&mut state, after)));
                    entries.remove(entry);
                    if operations[operation].completed.is_some() {
                        entries.remove(entry + 1);
                        left -= 1;
                    }
                    entry = entries.next[entries.head() as usize];
                    continue;
                }
                chosen[operation / 64] &= !(1 << (operation % 64));
            }
            entry = entries.next[entry as usize];
            continue;
        }
        if stack.len() >= deepest {
            deepest = stack.len();
            culprit = operation;
        }
        let Some((undone, before)) = stack.pop() else {
            return Judgement::Impossible(culprit);
        };
        let operation = (undone / 2) as usize;
        state = before;
        chosen[operation / 64] &= !(1 << (operation % 64));
        if operations[operation].completed.is_some() {
            entries.restore(undone + 1);
            left += 1;
        }
        entries.restore(undone);
        entry = entries.next[undone as usize];
    }
    Judgement::Linearizable
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

    fn step(&self, state: &Cell, (operation, reply): &Self::Step) -> Option<Cell> {
        let mut after = *state;
        let given = after.apply(*operation);
        (reply.is_none() || *reply == Some(given)).then_some(after)
    }
}

/// What a history turned out to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Keys whose search was given up.
    pub undecided: u64,
}

/// Steps after which the search over one key is given up.
pub const STEPS_MAX: u64 = 3_000_000;

/// Checks a whole history, key by key. Operations that failed never happened; uncertain reads say
/// nothing; other uncertain ones may have happened at any time after their invocation.
///
/// # Errors
/// With the first key that has no order.
pub fn check(history: &[Recorded]) -> Result<Checked, Violation> {
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
    let mut checked = Checked::default();
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
                Interval {
                    invoked: recorded.invoked,
                    completed,
                    step,
                }
            })
            .collect();
        match check_key(&Cells, &operations, STEPS_MAX) {
            Judgement::Linearizable => {}
            Judgement::Undecided(_) => checked.undecided += 1,
            Judgement::Impossible(index) => {
                let (key, number) = group[index];
                return Err(Violation::new(
                    "linearizability",
                    format!(
                        "no order of the {} operations on key {key} explains their answers; \
                         operation {number} cannot be placed: {:?}",
                        group.len(),
                        history[number]
                    ),
                ));
            }
        }
    }
    Ok(checked)
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
        }
    }

    fn judge(operations: &[Interval<(Operation, Option<Reply>)>]) -> Judgement {
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
        assert_eq!(judge(&history), Judgement::Linearizable);
        let history = [
            write(1, 4, 7),
            write(2, 3, 8),
            interval(5, Some(6), Operation::Read, read(8)),
        ];
        assert_eq!(judge(&history), Judgement::Linearizable);
        let history = [
            write(1, 2, 7),
            write(3, 4, 8),
            interval(5, Some(6), Operation::Read, read(7)),
        ];
        assert!(matches!(judge(&history), Judgement::Impossible(_)));
    }

    #[test]
    fn an_uncertain_write_may_appear_late_or_never_but_not_flicker() {
        let lost = interval(1, None, Operation::Write(9), None);
        let see = |from, value| interval(from, Some(from + 1), Operation::Read, read(value));
        assert_eq!(
            judge(&[lost.clone(), see(2, 0), see(4, 0)]),
            Judgement::Linearizable
        );
        assert_eq!(
            judge(&[lost.clone(), see(2, 0), see(4, 9)]),
            Judgement::Linearizable
        );
        assert!(matches!(
            judge(&[lost, see(2, 9), see(4, 0)]),
            Judgement::Impossible(_)
        ));
    }

    #[test]
    fn a_failed_comparison_tells_of_an_uncertain_write() {
        let lost = interval(1, None, Operation::Write(9), None);
        let swap = Operation::CompareAndSet {
            expected: 0,
            new: 5,
        };
        let failed = interval(2, Some(3), swap, Some(Reply::Swapped(false)));
        assert_eq!(judge(&[lost, failed.clone()]), Judgement::Linearizable);
        assert!(matches!(judge(&[failed]), Judgement::Impossible(0)));
    }

    #[test]
    fn an_increment_applied_twice_is_seen() {
        let add = |at, sum| interval(at, Some(at + 1), Operation::Add(1), Some(Reply::Sum(sum)));
        assert_eq!(judge(&[add(1, 1), add(3, 2)]), Judgement::Linearizable);
        assert!(matches!(
            judge(&[add(1, 1), add(3, 3)]),
            Judgement::Impossible(_)
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
            assert_eq!(
                check(history.operations()),
                Ok(Checked::default()),
                "seed {seed}"
            );
            let mut changed = history.operations().to_vec();
            let reads: Vec<usize> = (0..changed.len())
                .filter(|number| changed[*number].operation == Operation::Read)
                .collect();
            let number = reads[random.index(reads.len())];
            if let Fate::Done(at, _) = changed[number].fate {
                changed[number].fate = Fate::Done(at, Reply::Value(0, 1 << 40));
            }
            assert!(check(&changed).is_err(), "seed {seed}");
        }
    }

    #[test]
    fn a_hundred_thousand_operations_over_a_thousand_keys_are_decided() {
        let history = atomic(100_000, 1000, 50, &mut Random::new(9));
        assert_eq!(check(history.operations()), Ok(Checked::default()));
    }
}

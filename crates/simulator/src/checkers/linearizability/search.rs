//! The search for an order that explains all answers.
//!
//! ```text
//!   calls and returns by time    c1 c2 c3 r2 c4 r1 …       (an unknown operation has no return)
//!                                └──┬───┘ ▲
//!            candidates: the calls before the first return, but only those that share a key, or a
//!            row of shared keys, with the operation that returns first
//!        │
//!        ▼
//!   one only looks and its answer fits? ──► take it: no order could be spoilt by that
//!   otherwise choose one, take call and return out, begin again
//!        │ no candidate is left: go back to the last choice that could matter
//!        ▼
//!   done when no return is left; what was found hopeless is not tried again
//! ```
//!
//! The frame is the search of Wing and Gong with Lowe's memory of visited configurations. Four
//! things keep it fast:
//!
//! - **Persistent sets.** Whatever is not connected to the first return by shared keys of the
//!   present candidates commutes with all that is, so its turn may come later. Transactions that
//!   join keys thereby cost only where they overlap in time.
//! - **Backjumping.** Every dead end knows the keys that it is about. A choice among operations on
//!   other keys cannot mend it and is skipped.
//! - **Dominance.** A configuration that was hopeless with some unknown operations used is hopeless
//!   with more of them used.
//! - **Symmetry.** Of unknown operations that ask for the same, the earliest is tried first.

use super::prepare::Prepared;
use crate::model::{Answer, KeyState, Watched};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use smallvec::{SmallVec, smallvec};

/// Bounds of a search.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Candidates looked at per group of keys, in millions of which one takes about a second.
    pub steps: u64,
    /// Bytes of memory per group of keys, about.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            steps: 100_000_000,
            memory: 2 << 30,
        }
    }
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Order,
    /// The operation that returned first where the search came furthest.
    Nothing(usize),
    GaveUp(String),
}

const NONE: u32 = u32::MAX;

/// Calls and returns as a doubly linked list over two indices per operation.
struct Entries {
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl Entries {
    fn new(operations: &[Prepared]) -> Self {
        // Index 2i is the call of operation i, 2i + 1 its return. At equal times calls come first:
        // who cannot say what was earlier must not claim it.
        let mut order: Vec<(u64, bool, u32)> = Vec::with_capacity(2 * operations.len());
        for (index, operation) in operations.iter().enumerate() {
            order.push((operation.invoked, false, 2 * index as u32));
            if let Some(returned) = operation.returned {
                order.push((returned, true, 2 * index as u32 + 1));
            }
        }
        order.sort_unstable();
        let links = vec![NONE; 2 * operations.len() + 1];
        let mut entries = Self {
            next: links.clone(),
            previous: links,
        };
        let mut last = entries.head();
        for (_, _, entry) in order {
            entries.next[last as usize] = entry;
            entries.previous[entry as usize] = last;
            last = entry;
        }
        entries
    }

    /// The head is the last index.
    fn head(&self) -> u32 {
        self.next.len() as u32 - 1
    }

    fn first(&self) -> u32 {
        self.next[self.head() as usize]
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

/// A few keys, ascending; beyond a bound, all of them.
#[derive(Clone, Debug, Default)]
struct KeySet {
    keys: SmallVec<[u32; 4]>,
    all: bool,
}

impl KeySet {
    const KEYS_MAX: usize = 256;

    fn add(&mut self, other: &Self) {
        self.all |= other.all;
        for key in &other.keys {
            if let Err(at) = self.keys.binary_search(key) {
                self.keys.insert(at, *key);
            }
        }
        if self.keys.len() > Self::KEYS_MAX {
            self.all = true;
            self.keys.clear();
        }
    }

    fn meets(&self, other: &Self) -> bool {
        self.all || other.all || self.keys.iter().any(|key| other.keys.contains(key))
    }
}

/// What an attempt changed: keys with their states before it.
type Before = SmallVec<[(u32, KeyState); 1]>;
/// Which unknown operations are used, as bits.
type Used = SmallVec<[u64; 1]>;

/// A configuration that was reached by a choice, and what can be chosen next.
struct Frame {
    /// The operations taken out here: first the choice, then those that only look.
    taken: SmallVec<[u32; 2]>,
    before: Before,
    /// What the configuration was when it was reached.
    name: u128,
    used: Used,
    /// Operations, each with the keys that expire just before it as bits.
    candidates: SmallVec<[(u32, u32); 4]>,
    next: usize,
    /// The keys of the candidates.
    keys: KeySet,
    /// The keys that the failures so far are about.
    reason: KeySet,
}

/// The search over operations that share keys, directly or through others.
pub(super) struct Search<'a> {
    operations: &'a [Prepared],
    entries: Entries,
    states: Vec<KeyState>,
    hashes: Vec<u128>,
    /// Operations with an answer that are not taken yet.
    left: usize,
    chosen: Vec<bool>,
    /// A hash of the states and of the set of answered operations taken.
    name: u128,
    used: Used,
    memory: HashMap<u128, SmallVec<[(Used, KeySet); 1]>, FixedState>,
    /// Bytes held by memory and path, about.
    held: usize,
    stamps: Vec<u32>,
    stamp: u32,
    steps: u64,
    furthest: (u64, usize),
}

/// How many frames of hopeless configurations are told apart by what unknown operations they used.
const USED_MAX: usize = 8;

fn name_of(operation: u32) -> u128 {
    use std::hash::BuildHasher;
    let one = |seed| foldhash::quality::FixedState::with_seed(seed).hash_one(operation);
    u128::from(one(5)) << 64 | u128::from(one(23))
}

impl<'a> Search<'a> {
    /// A search over operations whose keys are numbered below `keys`.
    pub fn new(operations: &'a [Prepared], keys: usize) -> Self {
        let unknown = operations
            .iter()
            .filter(|operation| operation.returned.is_none())
            .count();
        Self {
            operations,
            entries: Entries::new(operations),
            states: vec![KeyState::default(); keys],
            hashes: vec![0; keys],
            left: operations.len() - unknown,
            chosen: vec![false; operations.len()],
            name: 0,
            used: smallvec![0; unknown.div_ceil(64)],
            memory: HashMap::default(),
            held: 0,
            stamps: vec![0; keys],
            stamp: 0,
            steps: 0,
            furthest: (0, 0),
        }
    }

    /// How many candidates were looked at.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    fn take(&mut self, operation: u32) {
        let index = operation as usize;
        self.chosen[index] = true;
        self.entries.remove(2 * operation);
        if self.operations[index].returned.is_some() {
            self.entries.remove(2 * operation + 1);
            self.left -= 1;
            self.name ^= name_of(operation);
        } else {
            let bit = self.operations[index].unknown as usize;
            self.used[bit / 64] |= 1 << (bit % 64);
        }
    }

    fn put_back(&mut self, operation: u32) {
        let index = operation as usize;
        self.chosen[index] = false;
        if self.operations[index].returned.is_some() {
            self.entries.restore(2 * operation + 1);
            self.left += 1;
            self.name ^= name_of(operation);
        } else {
            let bit = self.operations[index].unknown as usize;
            self.used[bit / 64] &= !(1 << (bit % 64));
        }
        self.entries.restore(2 * operation);
    }

    /// Carries an operation out after the keys in `expires` have expired. Gives what stood there
    /// before when the answer fits, and leaves all as it was when it does not.
    fn attempt(&mut self, operation: u32, expires: u32) -> Option<Before> {
        let operations = self.operations;
        let operation = &operations[operation as usize];
        let keys = operation.keys.iter();
        let before: Before = keys
            .map(|key| (*key, self.states[*key as usize].clone()))
            .collect();
        for (bit, key) in operation.keys.iter().enumerate() {
            if expires & (1 << bit.min(31)) != 0 {
                self.states[*key as usize].expire();
            }
        }
        if self.carry_out(operation) {
            return Some(before);
        }
        self.undo(&before);
        None
    }

    /// Whether the answer fits.
    fn carry_out(&mut self, operation: &Prepared) -> bool {
        let states = &mut self.states;
        if let Some(transaction) = operation.watches {
            for key in &operation.keys {
                states[*key as usize].watch(transaction);
            }
        }
        let expected = operation.expected.as_ref();
        let mut watched = Watched::Fresh;
        for key in &operation.watched {
            match states[*key as usize].unwatch(operation.number) {
                Watched::Fresh => {}
                Watched::Changed => watched = Watched::Changed,
                Watched::Either if watched == Watched::Fresh => watched = Watched::Either,
                Watched::Either => {}
            }
        }
        match (watched, expected) {
            (Watched::Changed, expected) | (Watched::Either, expected @ Some(Answer::Nil)) => {
                return expected.is_none_or(|answer| *answer == Answer::Nil);
            }
            _ => {}
        }
        if let [group] = &operation.call.groups[..]
            && !operation.call.transaction
        {
            let answer = group.apply(states);
            return expected.is_none_or(|expected| answer.agrees(expected));
        }
        let answers = match expected {
            None => None,
            Some(Answer::List(answers)) if answers.len() == operation.call.groups.len() => {
                Some(answers)
            }
            Some(_) => return false,
        };
        for (index, group) in operation.call.groups.iter().enumerate() {
            let answer = group.apply(states);
            if answers.is_some_and(|answers| !answer.agrees(&answers[index])) {
                return false;
            }
        }
        true
    }

    fn undo(&mut self, before: &Before) {
        for (key, state) in before {
            self.states[*key as usize].clone_from(state);
        }
    }

    /// Takes the states of the keys of `before` into the configuration's name.
    fn rename(&mut self, before: &Before) {
        for (key, _) in before {
            let index = *key as usize;
            let hash = self.states[index].hash(*key);
            self.name ^= std::mem::replace(&mut self.hashes[index], hash) ^ hash;
        }
    }

    fn first_return(&self) -> Option<u32> {
        let mut entry = self.entries.first();
        while entry != NONE && entry.is_multiple_of(2) {
            entry = self.entries.next[entry as usize];
        }
        (entry != NONE).then_some(entry / 2)
    }

    /// Marks the keys that are connected with the operation that returns first; gives them.
    fn connect(&mut self, first: u32) -> KeySet {
        let mut set = KeySet::default();
        set.keys
            .extend_from_slice(&self.operations[first as usize].keys);
        if self.states.len() == 1 {
            return set;
        }
        self.stamp += 1;
        for key in &set.keys {
            self.stamps[*key as usize] = self.stamp;
        }
        loop {
            let mut grew = false;
            let mut entry = self.entries.first();
            while entry.is_multiple_of(2) && entry != NONE {
                let keys = &self.operations[entry as usize / 2].keys;
                if keys.len() > 1 {
                    let (mut inside, mut outside) = (false, false);
                    for key in keys {
                        match self.stamps[*key as usize] == self.stamp {
                            true => inside = true,
                            false => outside = true,
                        }
                    }
                    if inside && outside {
                        grew = true;
                        for key in keys {
                            if self.stamps[*key as usize] != self.stamp {
                                self.stamps[*key as usize] = self.stamp;
                                set.keys.push(*key);
                            }
                        }
                    }
                }
                entry = self.entries.next[entry as usize];
            }
            if !grew {
                break;
            }
        }
        let mut sorted = KeySet::default();
        set.keys.sort_unstable();
        sorted.add(&set);
        sorted
    }

    fn is_connected(&self, operation: &Prepared) -> bool {
        self.states.len() == 1
            || operation
                .keys
                .iter()
                .any(|key| self.stamps[*key as usize] == self.stamp)
    }

    /// Which keys may expire before an operation: every combination of the volatile ones, as long
    /// as they are few.
    fn expiries(&self, operation: &Prepared) -> SmallVec<[u32; 2]> {
        let mut masks: SmallVec<[u32; 2]> = smallvec![0];
        for (bit, key) in operation.keys.iter().enumerate().take(31) {
            if self.states[*key as usize].volatile {
                let more: SmallVec<[u32; 2]> = match masks.len() < 64 {
                    true => masks.iter().map(|mask| mask | 1 << bit).collect(),
                    false => smallvec![masks[masks.len() - 1] | 1 << bit],
                };
                masks.extend(more);
            }
        }
        masks
    }

    /// Takes out every candidate that only looks, into `frame`, and finds the others.
    fn fill(&mut self, frame: &mut Frame) {
        'again: loop {
            frame.candidates.clear();
            let Some(first) = self.first_return() else {
                return;
            };
            frame.keys = self.connect(first);
            let mut entry = self.entries.first();
            while entry != NONE && entry.is_multiple_of(2) {
                let number = entry / 2;
                entry = self.entries.next[entry as usize];
                let operations = self.operations;
                let operation = &operations[number as usize];
                if !self.is_connected(operation) {
                    continue;
                }
                if operation.same_before != NONE && !self.chosen[operation.same_before as usize] {
                    continue;
                }
                self.steps += 1;
                for expires in self.expiries(operation) {
                    let Some(before) = self.attempt(number, expires) else {
                        continue;
                    };
                    if operation.returned.is_none() || (operation.looks && expires == 0) {
                        let mut old = before.iter();
                        let same = old.all(|(key, state)| self.states[*key as usize] == *state);
                        self.undo(&before);
                        if !same {
                            frame.candidates.push((number, expires));
                        } else if operation.returned.is_some() {
                            self.take(number);
                            frame.taken.push(number);
                            if number == first {
                                continue 'again;
                            }
                            break;
                        }
                        // An unknown operation that would change nothing need not be placed here.
                        continue;
                    }
                    self.undo(&before);
                    frame.candidates.push((number, expires));
                }
            }
            let hint = |number: u32| self.operations[number as usize].hint;
            frame
                .candidates
                .sort_by_key(|(number, expires)| (hint(*number), *expires));
            if let Some(returned) = self.operations[first as usize].returned
                && returned >= self.furthest.0
            {
                self.furthest = (returned, first as usize);
            }
            return;
        }
    }

    fn is_hopeless(&self) -> Option<KeySet> {
        let tried = self.memory.get(&self.name)?;
        let covers = |used: &Used| {
            used.iter()
                .zip(&self.used)
                .all(|(old, now)| old & !now == 0)
        };
        tried
            .iter()
            .find(|(used, _)| covers(used))
            .map(|(_, reason)| reason.clone())
    }

    fn remember(&mut self, name: u128, used: Used, reason: &KeySet) {
        let tried = self.memory.entry(name).or_insert_with(|| {
            self.held += 160;
            SmallVec::new()
        });
        if tried.len() == USED_MAX {
            tried.remove(0);
        } else {
            self.held += 64 + 8 * used.len() + 4 * reason.keys.len();
        }
        tried.push((used, reason.clone()));
    }

    fn frame(&self, taken: SmallVec<[u32; 2]>, before: Before) -> Frame {
        Frame {
            taken,
            before,
            name: self.name,
            used: self.used.clone(),
            candidates: SmallVec::new(),
            next: 0,
            keys: KeySet::default(),
            reason: KeySet::default(),
        }
    }

    /// About how many bytes a frame keeps from being freed.
    fn weight(frame: &Frame) -> usize {
        let values = frame.before.iter().map(|(_, state)| state.bytes());
        size_of::<Frame>() + 8 * frame.used.len() + values.sum::<usize>()
    }

    /// Searches.
    pub fn run(&mut self, limits: &Limits) -> Found {
        let mut first = self.frame(SmallVec::new(), Before::new());
        self.fill(&mut first);
        let mut path = vec![first];
        while self.left > 0 {
            if self.steps > limits.steps {
                return Found::GaveUp(format!("no order was found in {} steps", limits.steps));
            }
            if self.held > limits.memory {
                let memory = limits.memory >> 20;
                return Found::GaveUp(format!("no order was found within {memory} MiB of memory"));
            }
            let Some(top) = path.last_mut() else {
                return Found::Nothing(self.furthest.1);
            };
            if let Some((operation, expires)) = top.candidates.get(top.next).copied() {
                top.next += 1;
                let Some(before) = self.attempt(operation, expires) else {
                    continue;
                };
                self.take(operation);
                self.rename(&before);
                if let Some(reason) = self.is_hopeless() {
                    self.put_back(operation);
                    self.undo(&before);
                    self.rename(&before);
                    Self::fail(top, &reason);
                    continue;
                }
                let mut frame = self.frame(smallvec![operation], before);
                self.fill(&mut frame);
                self.held += Self::weight(&frame);
                path.push(frame);
                continue;
            }
            let Some(mut failed) = path.pop() else {
                return Found::Nothing(self.furthest.1);
            };
            if failed.next != usize::MAX {
                failed.reason.add(&failed.keys);
            }
            self.held = self.held.saturating_sub(Self::weight(&failed));
            for operation in failed.taken.iter().rev() {
                self.put_back(*operation);
            }
            self.undo(&failed.before);
            self.rename(&failed.before);
            self.remember(failed.name, failed.used, &failed.reason);
            if let Some(top) = path.last_mut() {
                Self::fail(top, &failed.reason);
            }
        }
        Found::Order
    }

    /// A choice of `top` has failed for a reason; when the reason is about other keys than the
    /// choices here, none of them can do better.
    fn fail(top: &mut Frame, reason: &KeySet) {
        if top.keys.meets(reason) {
            top.reason.add(reason);
        } else {
            top.reason = reason.clone();
            top.next = usize::MAX;
        }
    }
}

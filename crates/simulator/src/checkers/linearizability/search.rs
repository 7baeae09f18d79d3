//! The search for an order that explains all answers.
//!
//! ```text
//!   calls and returns by time    c1 c2 c3 r2 c4 r1 …       (unknown ones wait beside their keys)
//!                                └──┬───┘ ▲
//!            candidates: the calls before the first return, but only those that share a key, or a
//!            row of shared keys, with the operation that returns first
//!        │
//!        ▼
//!   one only looks and its answer fits? ──► take it: no order could be corrupted by that
//!   otherwise choose one, take call and return out, begin again
//!        │ no candidate is left: go back to the last choice that could matter
//!        ▼
//!   done when no return is left; what was found hopeless is not tried again
//! ```
//!
//! The frame is the search of Wing and Gong with Lowe's memory of visited configurations. Four
//! things keep it fast:
//!
//! - **Persistent sets.** A candidate that shared keys of the present candidates do not connect to
//!   the first return commutes with all that they do connect, so its turn may come later.
//!   Transactions that join keys thereby cost only where they overlap in time. Unknown ones overlap
//!   with everything after them: what they join is looked at only when nothing else helps.
//! - **Backjumping.** Every dead end knows the keys that it is about: the operations on them have
//!   no order from there on, whatever is done elsewhere. A choice on other keys is to blame for
//!   nothing, and its alternatives are skipped.
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
    /// Candidates looked at for making a contradiction small.
    pub evidence: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            steps: 100_000_000,
            memory: 2 << 30,
            evidence: 2_000_000,
        }
    }
}

/// The result of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Order,
    /// The operation that returned first where the search came furthest.
    Nothing(usize),
    GaveUp(String),
}

const NONE: u32 = u32::MAX;

/// Calls and returns of answered operations as a doubly linked list over two indices each.
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
            if let Some(returned) = operation.returned {
                order.push((operation.invoked, false, 2 * index as u32));
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
}

/// The keys of the candidates.
type Marked = SmallVec<[u32; 4]>;
/// The changes of an attempt: keys with their states before it.
type Before = SmallVec<[(u32, KeyState); 1]>;
/// Which unknown operations are used, as bits.
type Used = SmallVec<[u64; 1]>;

/// A configuration that was reached by a choice, and what can be chosen next.
struct Frame {
    /// The operations taken out here: first the choice, then those that only look.
    taken: SmallVec<[u32; 2]>,
    before: Before,
    /// The name of the configuration when it was reached.
    name: u128,
    used: Used,
    /// Operations, each with the keys that expire just before it as bits.
    candidates: SmallVec<[(u32, u32); 4]>,
    next: usize,
    /// Whether unknown operations that join more keys have been looked at.
    widened: bool,
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
    /// By key, the unknown operations on it by the time of their invocation.
    unknown_at: Vec<Vec<u32>>,
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
        let mut unknown_at = vec![Vec::new(); keys];
        let mut unknown = 0;
        for (index, operation) in operations.iter().enumerate() {
            if operation.returned.is_none() {
                unknown += 1;
                for key in &operation.keys {
                    unknown_at[*key as usize].push(index as u32);
                }
            }
        }
        for at in &mut unknown_at {
            at.sort_by_key(|index| operations[*index as usize].invoked);
        }
        Self {
            operations,
            entries: Entries::new(operations),
            states: vec![KeyState::default(); keys],
            hashes: vec![0; keys],
            left: operations.len() - unknown,
            chosen: vec![false; operations.len()],
            name: 0,
            used: smallvec![0; unknown.div_ceil(64)],
            unknown_at,
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
        if self.operations[index].returned.is_some() {
            self.entries.remove(2 * operation);
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
            self.entries.restore(2 * operation);
            self.left += 1;
            self.name ^= name_of(operation);
        } else {
            let bit = self.operations[index].unknown as usize;
            self.used[bit / 64] &= !(1 << (bit % 64));
        }
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

    /// Marks the keys of an operation; says whether some of them were new.
    fn mark(&mut self, operation: u32, marked: &mut Marked) -> bool {
        let operations = self.operations;
        let mut grew = false;
        for key in &operations[operation as usize].keys {
            if self.stamps[*key as usize] != self.stamp {
                self.stamps[*key as usize] = self.stamp;
                marked.push(*key);
                grew = true;
            }
        }
        grew
    }

    fn is_marked(&self, operation: u32) -> bool {
        let keys = &self.operations[operation as usize].keys;
        self.states.len() == 1
            || keys
                .iter()
                .any(|key| self.stamps[*key as usize] == self.stamp)
    }

    /// The unknown operations on a key that may take effect before `first` returns.
    fn unknown_on(&self, key: u32, first: u32) -> impl Iterator<Item = u32> {
        let operations = self.operations;
        let end = operations[first as usize].returned.unwrap_or(u64::MAX);
        let all = self.unknown_at[key as usize].iter().copied();
        let chosen = &self.chosen;
        all.take_while(move |index| operations[*index as usize].invoked <= end)
            .filter(move |index| {
                let before = operations[*index as usize].same_before;
                !chosen[*index as usize] && (before == NONE || chosen[before as usize])
            })
    }

    /// Marks the keys that are connected with the operation that returns first, through unknown
    /// operations too if they are known to have happened, or when `wide`; gives them. `frame.widened` tells that there are no more.
    fn connect(&mut self, first: u32, wide: bool, frame: &mut Frame) -> Marked {
        let mut set = Marked::new();
        self.stamp += 1;
        self.mark(first, &mut set);
        frame.widened = true;
        if self.states.len() > 1 {
            let mut grew = true;
            while std::mem::take(&mut grew) {
                let mut entry = self.entries.first();
                while entry != NONE && entry.is_multiple_of(2) {
                    let operation = entry / 2;
                    if self.operations[operation as usize].keys.len() > 1
                        && self.is_marked(operation)
                    {
                        grew |= self.mark(operation, &mut set);
                    }
                    entry = self.entries.next[entry as usize];
                }
                let mut at = 0;
                while at < set.len() {
                    let joins =
                        |operation: &u32| wide || self.operations[*operation as usize].hinted;
                    let all: SmallVec<[u32; 8]> =
                        self.unknown_on(set[at], first).filter(joins).collect();
                    for operation in all {
                        grew |= self.mark(operation, &mut set);
                    }
                    at += 1;
                }
            }
            frame.widened = wide
                || !set.iter().any(|key| {
                    self.unknown_on(*key, first)
                        .any(|operation| !self.is_inside(operation))
                });
        }
        set.sort_unstable();
        frame.keys = KeySet::default();
        frame.keys.add(&KeySet {
            keys: set.iter().copied().collect(),
            all: false,
        });
        set
    }

    /// Whether all keys of an operation are marked.
    fn is_inside(&self, operation: u32) -> bool {
        let keys = &self.operations[operation as usize].keys;
        keys.iter()
            .all(|key| self.stamps[*key as usize] == self.stamp)
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

    /// Looks at one operation: a candidate, one that only looks and is taken at once (then true),
    /// or neither.
    fn look_at(&mut self, number: u32, frame: &mut Frame) -> bool {
        let operations = self.operations;
        let operation = &operations[number as usize];
        self.steps += 1;
        for expires in self.expiries(operation) {
            let Some(before) = self.attempt(number, expires) else {
                continue;
            };
            let mut old = before.iter();
            let same = old.all(|(key, state)| self.states[*key as usize] == *state);
            self.undo(&before);
            if operation.returned.is_none() && same {
                // An unknown operation that would change nothing need not be placed here.
                continue;
            }
            if operation.looks && expires == 0 && same {
                self.take(number);
                frame.taken.push(number);
                return true;
            }
            frame.candidates.push((number, expires));
        }
        false
    }

    /// Takes out every candidate that only looks, into `frame`, and finds the others; those that
    /// unknown operations join too when `wide`.
    fn fill(&mut self, frame: &mut Frame, wide: bool) {
        let tried = std::mem::take(&mut frame.candidates);
        frame.next = 0;
        let (first, marked) = 'again: loop {
            frame.candidates.clear();
            let Some(first) = self.first_return() else {
                return;
            };
            let marked = self.connect(first, wide, frame);
            let mut entry = self.entries.first();
            while entry != NONE && entry.is_multiple_of(2) {
                let number = entry / 2;
                entry = self.entries.next[entry as usize];
                if self.is_marked(number) && self.look_at(number, frame) && number == first {
                    continue 'again;
                }
            }
            break (first, marked);
        };
        for key in &marked {
            let all: SmallVec<[u32; 8]> = self.unknown_on(*key, first).collect();
            for number in all {
                let mut inside = self.operations[number as usize]
                    .keys
                    .iter()
                    .filter(|key| self.stamps[**key as usize] == self.stamp);
                // Each is looked at once, at the first of its keys.
                if inside.next() == Some(key) && self.is_inside(number) {
                    self.look_at(number, frame);
                }
            }
        }
        frame
            .candidates
            .retain(|candidate| !tried.contains(candidate));
        let hint = |number: u32| self.operations[number as usize].hint;
        frame
            .candidates
            .sort_by_key(|(number, expires)| (hint(*number), *expires));
        if let Some(returned) = self.operations[first as usize].returned
            && returned >= self.furthest.0
        {
            self.furthest = (returned, first as usize);
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
            widened: false,
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
        self.fill(&mut first, false);
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
                    let keys = &self.operations[operation as usize].keys;
                    Self::fail(top, keys, &reason);
                    continue;
                }
                let mut frame = self.frame(smallvec![operation], before);
                self.fill(&mut frame, false);
                self.held += Self::weight(&frame);
                path.push(frame);
                continue;
            }
            if !top.widened {
                if let Some(mut top) = path.pop() {
                    self.fill(&mut top, true);
                    path.push(top);
                }
                continue;
            }
            let Some(mut failed) = path.pop() else {
                return Found::Nothing(self.furthest.1);
            };
            if failed.next != usize::MAX {
                failed.reason.add(&failed.keys);
            }
            let choice = failed.taken.first().map(|operation| *operation as usize);
            self.held = self.held.saturating_sub(Self::weight(&failed));
            for operation in failed.taken.iter().rev() {
                self.put_back(*operation);
            }
            self.undo(&failed.before);
            self.rename(&failed.before);
            self.remember(failed.name, failed.used, &failed.reason);
            if let (Some(top), Some(choice)) = (path.last_mut(), choice) {
                Self::fail(top, &self.operations[choice].keys, &failed.reason);
            }
        }
        Found::Order
    }

    /// A choice of `top`, an operation on `keys`, has failed for a reason; when the reason is about
    /// other keys, the choice did not matter, and no other can do better.
    fn fail(top: &mut Frame, keys: &[u32], reason: &KeySet) {
        if reason.all
            || keys
                .iter()
                .any(|key| reason.keys.binary_search(key).is_ok())
        {
            top.reason.add(reason);
        } else {
            top.reason = reason.clone();
            top.next = usize::MAX;
            top.widened = true;
        }
    }
}

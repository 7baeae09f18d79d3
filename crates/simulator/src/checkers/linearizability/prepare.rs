//! From recorded operations to groups of keys that can be searched on their own.
//!
//! ```text
//!   operations ──► drop what failed or says nothing ──► match WATCH with its EXEC
//!        └──► keys joined by operations on several ──► one group of operations per set of keys
//! ```

use crate::{
    model::{Act, Answer, Compiled, Count, FewKeys, Group, Join, Keys, Only, compile},
    recording::{Operation, Outcome},
};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::sync::Arc;

/// An operation, ready for the search.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    pub call: Compiled,
    /// Its index among the recorded operations.
    pub number: u32,
    pub invoked: u64,
    /// `None` for an unknown one.
    pub returned: Option<u64>,
    pub expected: Option<Answer>,
    /// Every key that it looks at or changes, those it watched too.
    pub keys: FewKeys,
    /// It begins to watch its keys for this transaction.
    pub watches: Option<u32>,
    /// The keys that it watched before.
    pub watched: FewKeys,
    /// Whether with this answer it changes nothing, whatever the state.
    pub looks: bool,
    /// Operations with smaller hints are tried first.
    pub hint: u64,
    /// A client knows that it happened, and when.
    pub hinted: bool,
    /// Its number among the unknown ones.
    pub unknown: u32,
    /// The last unknown operation before it that asks for the same.
    pub same_before: u32,
}

/// Operations that share keys, directly or through others.
#[derive(Debug, Default)]
pub(super) struct Component {
    pub operations: Vec<Prepared>,
    pub keys: usize,
}

/// The comparable form of a command's answer: fields and members have no order, and of the time
/// left only its sign is known.
fn normal(group: &Group, answer: Answer) -> Answer {
    let act = group.parts.first().map(|part| &part.act);
    match (act, answer) {
        (Some(Act::Ttl), Answer::Number(left)) => Answer::Number(left.min(0)),
        (Some(Act::SetMembers), Answer::List(mut members)) => {
            members.sort_unstable_by(|a, b| text(a).cmp(text(b)));
            Answer::List(members)
        }
        (Some(Act::HashGetAll), Answer::List(flat)) if flat.len().is_multiple_of(2) => {
            let mut pairs: Vec<_> = flat.chunks_exact(2).map(<[Answer]>::to_vec).collect();
            pairs.sort_unstable_by(|a, b| text(&a[0]).cmp(text(&b[0])));
            Answer::List(pairs.concat())
        }
        (_, answer) => answer,
    }
}

fn text(answer: &Answer) -> &[u8] {
    match answer {
        Answer::Text(text) => text,
        _ => &[],
    }
}

fn normal_answer(call: &Compiled, answer: Answer) -> Answer {
    match (call.transaction, answer) {
        (true, Answer::List(answers)) if answers.len() == call.groups.len() => {
            let answers = call.groups.iter().zip(answers);
            Answer::List(
                answers
                    .map(|(group, answer)| normal(group, answer))
                    .collect(),
            )
        }
        (false, answer) => match &call.groups[..] {
            [group] => normal(group, answer),
            _ => answer,
        },
        (_, answer) => answer,
    }
}

/// Whether a command with this answer changes nothing in any state in which it gets this answer.
fn group_looks(group: &Group, answer: &Answer) -> bool {
    if matches!(answer, Answer::Error(_)) && group.join == Join::One {
        return true;
    }
    group.parts.iter().all(|part| match &part.act {
        Act::Watch => false,
        act if act.only_reads() => true,
        Act::Delete
        | Act::Expire
        | Act::Persist
        | Act::HashSetMissing(..)
        | Act::HashDelete(_)
        | Act::SetAdd(_)
        | Act::SetRemove(_)
        | Act::CompareAndSet { .. } => *answer == Answer::Number(0),
        Act::Set { only, count, .. } if *only != Only::Always => match count {
            Count::Done => *answer == Answer::Number(0),
            Count::OkOrNil => *answer == Answer::Nil,
            Count::Before => false,
        },
        Act::GetDelete | Act::Pop { .. } => *answer == Answer::Nil,
        _ => false,
    })
}

fn looks(operation: &Prepared) -> bool {
    if operation.watches.is_some() || !operation.watched.is_empty() {
        return false;
    }
    match (&operation.expected, operation.call.transaction) {
        (None, _) => false,
        (Some(Answer::List(answers)), true) => {
            let mut both = operation.call.groups.iter().zip(answers);
            both.all(|(group, answer)| group_looks(group, answer))
        }
        (Some(_), true) => false,
        (Some(answer), false) => operation
            .call
            .groups
            .iter()
            .all(|group| group_looks(group, answer)),
    }
}

/// For each WATCH the transaction that it was for, and for each transaction its watched keys.
#[derive(Default)]
struct Watches {
    of_watch: HashMap<u32, u32, FixedState>,
    of_transaction: HashMap<u32, FewKeys, FixedState>,
}

fn is_watch(call: &Compiled) -> bool {
    !call.transaction
        && call
            .groups
            .iter()
            .flat_map(|g| &g.parts)
            .any(|p| p.act == Act::Watch)
}

/// Follows each client through its operations, as its connection did.
fn match_watches(operations: &[Operation], compiled: &[Option<Compiled>]) -> Watches {
    let mut watches = Watches::default();
    let is_part = |call: &Compiled| call.transaction || is_watch(call) || call.keys.is_empty();
    let mut order: Vec<u32> = (0..operations.len() as u32)
        .filter(|number| compiled[*number as usize].as_ref().is_some_and(is_part))
        .collect();
    order.sort_by_key(|number| operations[*number as usize].invoked);
    let mut open: HashMap<&Arc<str>, Vec<u32>, FixedState> = HashMap::default();
    for number in order {
        let operation = &operations[number as usize];
        let Some(call) = &compiled[number as usize] else {
            continue;
        };
        let watching = open.entry(&operation.client).or_default();
        let failed = operation.outcome == Outcome::Failed;
        if is_watch(call) {
            if !failed {
                watching.push(number);
            }
            continue;
        }
        let keys: FewKeys = watching
            .iter()
            .filter_map(|watch| compiled[*watch as usize].as_ref())
            .flat_map(|call| call.keys.iter().copied())
            .collect();
        // One that failed had its keys unwatched all the same.
        if call.transaction && !keys.is_empty() && !failed {
            for watch in watching.iter() {
                watches.of_watch.insert(*watch, number);
            }
            watches.of_transaction.insert(number, keys);
        }
        watching.clear();
    }
    watches
}

struct Union(Vec<u32>);

impl Union {
    fn root(&mut self, mut key: u32) -> u32 {
        while self.0[key as usize] != key {
            let above = self.0[self.0[key as usize] as usize];
            self.0[key as usize] = above;
            key = above;
        }
        key
    }

    fn join(&mut self, keys: &[u32]) {
        for pair in keys.windows(2) {
            let (a, b) = (self.root(pair[0]), self.root(pair[1]));
            self.0[b as usize] = a;
        }
    }
}

/// Splits a history into what can be checked on its own; gives the number of keys, too.
pub(super) fn prepare(
    operations: &[Operation],
    hint: &dyn Fn(usize) -> Option<u64>,
) -> (Vec<Component>, usize) {
    let mut keys = Keys::default();
    let compiled: Vec<Option<Compiled>> = operations
        .iter()
        .map(|operation| compile(&operation.call, &mut keys).ok())
        .collect();
    let watches = match_watches(operations, &compiled);
    let mut prepared = Vec::new();
    for (number, (operation, call)) in operations.iter().zip(compiled).enumerate() {
        let Some(call) = call.filter(|_| operation.outcome != Outcome::Failed) else {
            continue;
        };
        let number = number as u32;
        let (returned, expected) = match &operation.outcome {
            Outcome::Answered { at, answer } => {
                (Some(*at), Some(normal_answer(&call, answer.clone())))
            }
            outcome => (outcome.at(), None),
        };
        let for_transaction = watches.of_watch.get(&number).copied();
        // The keys of a WATCH whose transaction never came, or a read without an answer.
        let reads = |group: &Group| group.parts.iter().all(|part| part.act.only_reads());
        let idle = for_transaction.is_none()
            && (is_watch(&call) || (expected.is_none() && call.groups.iter().all(reads)));
        if call.keys.is_empty() || idle {
            continue;
        }
        let watched = watches
            .of_transaction
            .get(&number)
            .cloned()
            .unwrap_or_default();
        let mut all = call.keys.clone();
        all.extend_from_slice(&watched);
        all.sort_unstable();
        all.dedup();
        let late = returned.unwrap_or(u64::MAX);
        let mut one = Prepared {
            call,
            number,
            invoked: operation.invoked,
            returned,
            expected,
            keys: all,
            watches: for_transaction,
            watched,
            looks: false,
            hint: hint(number as usize).unwrap_or(late),
            hinted: hint(number as usize).is_some(),
            unknown: 0,
            same_before: u32::MAX,
        };
        one.looks = looks(&one);
        prepared.push(one);
    }
    (split(prepared, keys.len()), keys.len())
}

fn split(prepared: Vec<Prepared>, keys: usize) -> Vec<Component> {
    let mut union = Union((0..keys as u32).collect());
    for operation in &prepared {
        union.join(&operation.keys);
    }
    let mut places: Vec<u32> = vec![u32::MAX; keys];
    let mut inside: Vec<u32> = vec![u32::MAX; keys];
    let mut components: Vec<Component> = Vec::new();
    for mut operation in prepared {
        let Some(first) = operation.keys.first() else {
            continue;
        };
        let root = union.root(*first) as usize;
        if places[root] == u32::MAX {
            places[root] = components.len() as u32;
            components.push(Component::default());
        }
        let component = &mut components[places[root] as usize];
        let mut rename = |key: &mut u32| {
            let place = &mut inside[*key as usize];
            if *place == u32::MAX {
                *place = component.keys as u32;
                component.keys += 1;
            }
            *key = *place;
        };
        operation.keys.iter_mut().for_each(&mut rename);
        operation.watched.iter_mut().for_each(&mut rename);
        for part in operation
            .call
            .groups
            .iter_mut()
            .flat_map(|group| &mut group.parts)
        {
            rename(&mut part.key);
        }
        operation.call.keys.clear();
        operation.keys.sort_unstable();
        component.operations.push(operation);
    }
    for component in &mut components {
        number_unknown(&mut component.operations);
    }
    components
}

pub(super) fn number_unknown(operations: &mut [Prepared]) {
    let mut order: Vec<u32> = (0..operations.len() as u32)
        .filter(|index| operations[*index as usize].returned.is_none())
        .collect();
    order.sort_by_key(|index| operations[*index as usize].invoked);
    let mut last: HashMap<Compiled, u32, FixedState> = HashMap::default();
    for (unknown, index) in order.into_iter().enumerate() {
        let operation = &mut operations[index as usize];
        operation.unknown = unknown as u32;
        // Of those that are known to have happened it is known which they were.
        if operation.watched.is_empty() && !operation.hinted {
            let before = last.insert(operation.call.clone(), index);
            operation.same_before = before.unwrap_or(u32::MAX);
        }
    }
}

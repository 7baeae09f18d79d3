//! Histories made by chance, right ones and corrupted ones: food for checkers, not for worlds.
//!
//! ```text
//!   Shape ──► clients invoke calls ──► each takes effect at a drawn moment before its answer
//!                                         │ some answers never arrive
//!                                         ▼
//!                                     operations ──► corrupt: one small lie, or none that shows
//! ```

use crate::{
    model::{Answer, Call, Machine},
    random::Random,
    recording::{Operation, Outcome},
};
use quintet_replica::Bytes;

/// How histories are generated.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many operations.
    pub operations: usize,
    /// How many keys.
    pub keys: u64,
    /// How many of them may be in progress at once.
    pub clients: usize,
    /// Of 1,000 operations, that many are never answered.
    pub unknown: u64,
    /// Of 1,000 operations, that many touch two keys.
    pub transactions: u64,
}

fn bytes(words: &[String]) -> Vec<Bytes> {
    words
        .iter()
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect()
}

/// A command on key `key`. Keys take turns in being texts, numbers and lists; now and then a
/// command meets the wrong kind.
fn draw_command(number: usize, key: u64, random: &mut Random) -> Vec<String> {
    let kind = if random.chance(30) {
        random.below(3)
    } else {
        key % 3
    };
    let name = format!("k{key}");
    let text = |verb: &str| vec![verb.to_owned(), name.clone()];
    let with = |verb: &str, value: String| vec![verb.to_owned(), name.clone(), value];
    match (kind, random.below(10)) {
        (0, 0) => text("DEL"),
        (0, 1) => with("SETNX", format!("n{number}")),
        (0, 2) => with("GETSET", format!("g{number}")),
        (0, 3) => vec![
            "CAS".to_owned(),
            name,
            format!("v{}", number / 2),
            format!("c{number}"),
        ],
        (0, 4..=6) => with("SET", format!("v{number}")),
        (1, 0) => with("SET", format!("{}", random.below(5))),
        (1, 1..=4) => text("INCR"),
        (1, 5) => text("EXISTS"),
        (2, 0..=3) => with("RPUSH", format!("e{number}")),
        (2, 4) => text("LPOP"),
        (2, _) => vec!["LRANGE".to_owned(), name, "0".to_owned(), "-1".to_owned()],
        _ => text("GET"),
    }
}

fn draw_call(number: usize, shape: Shape, random: &mut Random) -> Call {
    let one = random.below(shape.keys);
    let first = draw_command(number, one, random);
    let call = if random.chance(shape.transactions) {
        let other = random.below(shape.keys);
        match random.below(4) {
            0 => Call::new(bytes(&[
                "MGET".to_owned(),
                format!("k{one}"),
                format!("k{other}"),
            ])),
            1 => Call::new(bytes(&[
                "MSET".to_owned(),
                format!("k{one}"),
                format!("a{number}"),
                format!("k{other}"),
                format!("b{number}"),
            ])),
            _ => {
                let second = draw_command(number, other, random);
                Call::transaction(vec![bytes(&first), bytes(&second)])
            }
        }
    } else {
        Call::new(bytes(&first))
    };
    call.expect("only known commands are drawn")
}

/// A history of one perfect machine.
#[must_use]
pub fn history(shape: Shape, random: &mut Random) -> Vec<Operation> {
    let mut machine = Machine::default();
    let mut operations: Vec<Operation> = Vec::new();
    let mut open: Vec<(usize, Option<Answer>)> = Vec::new();
    let mut now = 0;
    while operations.len() < shape.operations || !open.is_empty() {
        now += 1;
        if operations.len() < shape.operations && open.len() < shape.clients && random.chance(500) {
            let number = operations.len();
            open.push((number, None));
            operations.push(Operation {
                client: format!("c{}", open.len()).into(),
                call: draw_call(number, shape, random),
                invoked: now,
                outcome: Outcome::Unknown,
            });
        } else if !open.is_empty() {
            let index = random.index(open.len());
            let (number, answer) = &mut open[index];
            let number = *number;
            if let Some(answer) = answer.take() {
                operations[number].outcome = Outcome::Answered { at: now, answer };
                open.swap_remove(index);
            } else if random.chance(shape.unknown) {
                // It is never answered, and half of these never happen.
                if random.chance(500) {
                    let _ = machine.answer(&operations[number].call);
                }
                open.swap_remove(index);
            } else {
                open[index].1 = Some(machine.answer(&operations[number].call));
            }
        }
    }
    operations
}

/// Tells a small lie in a history, of a kind that systems tell: a read of an older or newer value,
/// a write that is lost or doubled, two answers that change places. Some lies cannot be seen.
pub fn corrupt(operations: &mut [Operation], random: &mut Random) {
    let answered: Vec<usize> = (0..operations.len())
        .filter(|index| matches!(operations[*index].outcome, Outcome::Answered { .. }))
        .collect();
    if answered.len() < 2 {
        return;
    }
    let one = answered[random.index(answered.len())];
    let alike: Vec<usize> = answered
        .iter()
        .copied()
        .filter(|index| {
            let (a, b) = (&operations[*index].call, &operations[one].call);
            *index != one && a.name() == b.name() && a.is_transaction() == b.is_transaction()
        })
        .collect();
    let other = match alike.is_empty() {
        true => answered[random.index(answered.len())],
        false => alike[random.index(alike.len())],
    };
    match random.below(4) {
        // An acknowledged operation never happened: the others see it as failed.
        0 => operations[one].outcome = Outcome::Failed,
        // An answer is that of another operation of its kind.
        1 | 2 => {
            let answer = operations[other].outcome.clone();
            if let (Outcome::Answered { answer: new, .. }, Outcome::Answered { answer, .. }) =
                (answer, &mut operations[one].outcome)
            {
                *answer = new;
            }
        }
        // An answer came earlier than it could: the operation moves before what it depends on.
        _ => {
            let invoked = operations[one].invoked;
            let earlier = invoked.saturating_sub(random.between(2, 20));
            operations[one].invoked = earlier;
            if let Outcome::Answered { at, .. } = &mut operations[one].outcome {
                *at = earlier + 1;
            }
        }
    }
}

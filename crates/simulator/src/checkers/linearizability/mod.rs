//! Linearizability of a recorded history: is there one order of all operations, each between its
//! invocation and its answer, in which a single perfect machine would have given all the answers?
//!
//! ```text
//!   operations ──► prepare: what shares keys, directly or through transactions
//!                     │ one component after the other
//!                     ▼
//!                  search ──► an order                    linearizable
//!                     ├─────► none     ──► shrink ──►     impossible, and the smallest part that shows it
//!                     └─────► too dear ─────────────►     unknown, which is no pass
//! ```
//!
//! Keys that no operation joins are independent because linearizability is local, so the work is
//! the sum over components. An unknown operation may take effect at any time after its invocation,
//! or never; a failed one never does. A key with a deadline may be gone at any time.

mod prepare;
mod search;
mod shrink;

pub use search::Limits;

use crate::recording::{Operation, Outcome};
use prepare::{Component, prepare};
use search::{Found, Search};

/// Why a history cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The fewest answers that were found to contradict each other: indices of operations, by the
    /// time of their invocation. No order explains them, whatever the others did.
    pub core: Vec<usize>,
    /// How many other operations share keys with them. None of them can help.
    pub others: usize,
}

/// The verdict on a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order that explains all answers.
    Linearizable,
    /// There is none.
    Impossible(Evidence),
    /// Neither was found within the limits. Says why.
    Unknown(String),
}

/// A verdict, and what was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The verdict.
    pub verdict: Verdict,
    /// How many operations the history has.
    pub operations: usize,
    /// Answered ones.
    pub answered: usize,
    /// Ones of unknown outcome.
    pub unknown: usize,
    /// How many keys.
    pub keys: usize,
    /// How many sets of keys that nothing joins.
    pub components: usize,
    /// The operations of the largest of them.
    pub largest: usize,
    /// Candidates looked at.
    pub steps: u64,
}

/// Checks a history.
#[must_use]
pub fn check(operations: &[Operation], limits: &Limits) -> Report {
    check_with(operations, limits, &|_| None)
}

/// Checks a history of which an order is known that probably explains it: operations with smaller
/// hints are tried first. Hints only steer the search.
#[must_use]
pub fn check_with(
    operations: &[Operation],
    limits: &Limits,
    hint: &dyn Fn(usize) -> Option<u64>,
) -> Report {
    let (components, keys) = prepare(operations, hint);
    let count = |answered: bool| {
        let outcomes = operations.iter().map(|operation| &operation.outcome);
        outcomes
            .filter(|outcome| match outcome {
                Outcome::Answered { .. } | Outcome::Done { .. } => answered,
                Outcome::Unknown => !answered,
                Outcome::Failed => false,
            })
            .count()
    };
    let mut report = Report {
        verdict: Verdict::Linearizable,
        operations: operations.len(),
        answered: count(true),
        unknown: count(false),
        keys,
        components: components.len(),
        largest: components
            .iter()
            .map(|c| c.operations.len())
            .max()
            .unwrap_or(0),
        steps: 0,
    };
    for component in &components {
        let mut search = Search::new(&component.operations, component.keys);
        let found = search.run(limits);
        report.steps += search.steps();
        match found {
            Found::Order => {}
            Found::GaveUp(why) => {
                if report.verdict == Verdict::Linearizable {
                    report.verdict = Verdict::Unknown(gave_up(operations, component, &why));
                }
            }
            Found::Nothing(furthest) => {
                report.verdict =
                    Verdict::Impossible(shrink::evidence(component, furthest, limits.evidence));
                break;
            }
        }
    }
    report
}

fn gave_up(operations: &[Operation], component: &Component, why: &str) -> String {
    let unknown = component
        .operations
        .iter()
        .filter(|one| one.returned.is_none())
        .count();
    let example = component
        .operations
        .first()
        .map(|one| operations[one.number as usize].call.to_string());
    format!(
        "{why} for {} operations ({unknown} of unknown outcome) on {} key(s), among them '{}'",
        component.operations.len(),
        component.keys,
        example.unwrap_or_default()
    )
}

impl Evidence {
    /// The evidence for people, a line per operation; `line` names the place of an operation.
    #[must_use]
    pub fn describe(&self, operations: &[Operation], line: impl Fn(usize) -> String) -> String {
        let mut text = String::from("no order explains these answers:\n");
        let start = self
            .core
            .iter()
            .map(|index| operations[*index].invoked)
            .min();
        for index in &self.core {
            let operation = &operations[*index];
            let after = |at: u64| at - start.unwrap_or(0);
            let (until, answer) = match &operation.outcome {
                Outcome::Answered { at, answer } => {
                    (format!("+{}", after(*at)), answer.to_string())
                }
                Outcome::Done { at } => (format!("+{}", after(*at)), "done".to_owned()),
                _ => ("?".to_owned(), "?".to_owned()),
            };
            text.push_str(&format!(
                "  {}: client {} from +{} to {until}: {} -> {answer}\n",
                line(*index),
                operation.client,
                after(operation.invoked),
                operation.call,
            ));
        }
        text.push_str(&match self.others {
            0 => String::from("  and nothing else happened to their keys"),
            others => format!(
                "  whichever of {others} other operations on their keys took effect, and when"
            ),
        });
        text
    }
}

#[cfg(test)]
mod tests;

//! The verdict: what clients saw against what a single, perfect machine would have said.
//!
//! ```text
//!   in the end   every key read at every replica ──► same values everywhere? acknowledged ones there?
//!   recording ──► groups of keys ──► linearizability, transactions included
//!            └──► history file (JSON lines): 'quintet check' checks it again
//!   timeline ───► pauses
//! ```

use super::{
    Plan, Report, complaints, hostile,
    record::{Answer, Fate, Operation, Text},
    timeline::{Timeline, Window, pause, pauses},
    workload::{Shared, group_keys, once_key, read_all},
};
use quintet_replica::Bytes;
use quintet_simulator::{
    checkers::linearizability::{self, Limits, Verdict},
    model::{self, Call, CallError},
    recording::{self, Outcome},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{self, BufWriter, Write},
    sync::{Arc, PoisonError, atomic::Ordering},
};

/// A group of keys is in use for a short time; a check that takes longer than a few seconds is
/// given up.
const LIMITS: Limits = Limits {
    steps: 3_000_000,
    memory: 1 << 30,
    evidence: 2_000_000,
};
/// After that many groups without an order the rest says nothing new, and each takes long.
const DETECTED_MAX: u64 = 5;
/// The client that reads everything in the end; one per replica from here on.
const READER: u32 = 1_000_000;

/// Reads every key that was ever used at every replica. Acknowledged writes must be there, and all
/// replicas must agree.
pub fn read_everything(shared: &Arc<Shared>, replicas: u16, report: &mut Report) {
    let written: Vec<(u64, u64)> = shared
        .once
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let mut keys: Vec<String> = written
        .iter()
        .map(|(number, _)| once_key(*number))
        .collect();
    let groups = shared.groups();
    keys.extend((0..groups).flat_map(group_keys));
    report.keys = keys.len() as u64;
    let mut first: Option<Vec<Option<Text>>> = None;
    let mut lost = BTreeSet::new();
    for replica in 0..replicas {
        let number = READER + u32::from(replica);
        let found = match read_all(shared, number, replica, &keys) {
            Ok(found) => found,
            Err(error) => {
                report.violation(format!(
                    "not all keys could be read at replica {replica}: {error}"
                ));
                continue;
            }
        };
        for ((number, value), found) in written.iter().zip(&found) {
            let expected = format!("v{value}");
            if found.as_deref() != Some(expected.as_bytes()) {
                lost.insert(*number);
                let shown = found.as_deref().map(String::from_utf8_lossy);
                report.violation(format!(
                    "lost: {} was acknowledged as {expected}, replica {replica} says {shown:?}",
                    once_key(*number)
                ));
            }
        }
        match &first {
            None => first = Some(found),
            Some(first) => {
                for ((key, one), other) in keys.iter().zip(first).zip(&found) {
                    if one != other {
                        report.violation(format!(
                            "replicas 0 and {replica} differ at {key} with nothing in progress: \
                             {one:?}, {other:?}"
                        ));
                    }
                }
            }
        }
    }
    report.lost = lost.len() as u64;
}

/// Checks the whole recording; `proceed` is called between two groups of keys.
///
/// # Errors
/// When the history cannot be written.
pub fn check(
    plan: &Plan,
    shared: &Arc<Shared>,
    report: &mut Report,
    proceed: &mut dyn FnMut() -> bool,
) -> io::Result<()> {
    let operations = shared.recording.take();
    report.operations = operations.len() as u64;
    for operation in &operations {
        match operation.fate {
            Fate::Done(_) => report.acknowledged += 1,
            Fate::Failed => report.failed += 1,
            Fate::Uncertain => report.uncertain += 1,
        }
    }
    report.excused = shared.excused.load(Ordering::Relaxed);
    report.client_resets = shared.client_resets.load(Ordering::Relaxed);
    complaints(shared, report);
    let mut answers: Vec<(u64, u16)> = operations
        .iter()
        .filter(|operation| matches!(operation.fate, Fate::Done(_)) && operation.client < READER)
        .map(|operation| (operation.ended_at, operation.replica))
        .collect();
    answers.sort_unstable();
    let windows = shared.timeline.windows();
    report.pauses = pauses(&windows, &answers, plan.replicas + plan.proxies);
    write_faults(plan, &shared.timeline, &windows, &answers)?;
    let honest: Vec<_> = operations
        .iter()
        .filter(|it| it.client < READER)
        .cloned()
        .collect();
    hostile::check(plan, &shared.timeline, &honest, report);
    drop(honest);
    let operations: Result<Vec<_>, _> = operations.into_iter().map(recorded).collect();
    let operations = operations.map_err(io::Error::other)?;
    write(plan, &operations)?;
    linearizability(&operations, report, proceed);
    Ok(())
}

/// Writes the times of all faults, for comparison with the replicas' logs.
fn write_faults(
    plan: &Plan,
    timeline: &Timeline,
    windows: &[Window],
    answers: &[(u64, u16)],
) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(plan.directory.join("faults.jsonl"))?);
    for window in windows {
        let (longest, since) = pause(window, answers, plan.replicas + plan.proxies);
        let over = (window.to != u64::MAX).then(|| timeline.time_of_day(window.to));
        let line = serde_json::json!({
            "from": timeline.time_of_day(window.from), "to": over,
            "kind": window.kind, "what": window.what, "hit": window.hit,
            "pause_ms": longest / 1_000_000, "pause_from": timeline.time_of_day(since),
        });
        writeln!(file, "{line}")?;
    }
    file.flush()
}

/// As the checkers read it.
fn recorded(operation: Operation) -> Result<recording::Operation, CallError> {
    let words = |command: Vec<Text>| command.into_iter().map(Bytes::from).collect();
    let mut commands: Vec<Vec<Bytes>> = operation.commands.into_iter().map(words).collect();
    let call = match operation.transaction {
        true => Call::transaction(commands)?,
        false => Call::new(commands.pop().unwrap_or_default())?,
    };
    Ok(recording::Operation {
        client: operation.client.to_string().into(),
        call,
        invoked: operation.invoked,
        outcome: match operation.fate {
            Fate::Done(answer) => Outcome::Answered {
                at: operation.ended,
                answer: model(answer),
            },
            Fate::Failed => Outcome::Failed,
            Fate::Uncertain => Outcome::Unknown,
        },
    })
}

fn model(answer: Answer) -> model::Answer {
    match answer {
        Answer::Nil => model::Answer::Nil,
        Answer::Number(number) => model::Answer::Number(number),
        Answer::Text(text) => model::Answer::Text(text.into()),
        Answer::List(answers) => model::Answer::List(answers.into_iter().map(model).collect()),
        Answer::Error(text) => model::Answer::Error(text),
    }
}

/// The group that an operation's keys belong to: all that stands before the colon, so that keys
/// which are written once are together as well.
fn group(operation: &recording::Operation) -> &[u8] {
    let first = operation.call.commands().first();
    let key = first
        .and_then(|command| command.get(1))
        .map_or(&[][..], |key| &key[..]);
    match key.starts_with(b"once:") {
        true => key,
        false => key.split(|byte| *byte == b':').next().unwrap_or_default(),
    }
}

/// Whether there is one order of all operations that explains every answer, group by group.
fn linearizability(
    operations: &[recording::Operation],
    report: &mut Report,
    proceed: &mut dyn FnMut() -> bool,
) {
    let mut groups: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
    for (index, operation) in operations.iter().enumerate() {
        groups.entry(group(operation)).or_default().push(index);
    }
    report.groups = groups.len() as u64;
    for numbers in groups.values() {
        if report.non_linearizable >= DETECTED_MAX {
            break;
        }
        if !proceed() {
            report.interrupted = true;
            break;
        }
        let part: Vec<_> = numbers
            .iter()
            .map(|index| operations[*index].clone())
            .collect();
        report.checked += 1;
        match linearizability::check(&part, &LIMITS).verdict {
            Verdict::Linearizable => {}
            Verdict::Unknown(_) => report.undecided += 1,
            Verdict::Impossible(evidence) => {
                report.non_linearizable += 1;
                // The header is the file's first line.
                let line = |index: usize| format!("line {}", numbers[index] + 2);
                report.violation(evidence.describe(&part, line));
            }
        }
    }
}

/// The history as a file, see `docs/design/histories.md`.
fn write(plan: &Plan, operations: &[recording::Operation]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(&plan.history)?);
    writeln!(file, "{}", recording::header(""))?;
    for operation in operations {
        writeln!(file, "{}", operation.to_line())?;
    }
    file.flush()
}

//! Histories that are right and wrong, by hand and by the thousand.

use super::*;
use crate::{
    generate::{self, Shape},
    model::{Answer, Call, KeyState, Keys, compile},
    random::Random,
};
use quintet_replica::Bytes;

/// `(client, from, to, words, answer)`; 0 for "never answered".
type Line<'a> = (&'a str, u64, u64, &'a [&'a str], Answer);

fn call(words: &[&str]) -> Call {
    match words {
        ["MULTI", commands @ ..] => Call::transaction(
            commands
                .iter()
                .map(|line| {
                    line.split(' ')
                        .map(|w| Bytes::copy_from_slice(w.as_bytes()))
                        .collect()
                })
                .collect(),
        )
        .unwrap(),
        _ => Call::of(words),
    }
}

fn history(lines: &[Line<'_>]) -> Vec<Operation> {
    let operation = |(client, from, to, words, answer): &Line<'_>| Operation {
        client: (*client).into(),
        call: call(words),
        invoked: *from,
        outcome: match to {
            0 => Outcome::Unknown,
            at => Outcome::Answered {
                at: *at,
                answer: answer.clone(),
            },
        },
    };
    lines.iter().map(operation).collect()
}

fn verdict(lines: &[Line<'_>]) -> Verdict {
    check(&history(lines), &Limits::default()).verdict
}

fn passes(lines: &[Line<'_>]) {
    assert_eq!(verdict(lines), Verdict::Linearizable);
}

/// Is impossible, by the operations with these indices.
fn fails(lines: &[Line<'_>], core: &[usize]) {
    match verdict(lines) {
        Verdict::Impossible(evidence) => assert_eq!(evidence.core, core),
        other => panic!("{other:?}"),
    }
}

fn n(number: i64) -> Answer {
    Answer::Number(number)
}

fn t(text: &str) -> Answer {
    Answer::text(text)
}

const NIL: Answer = Answer::Nil;

fn ok() -> Answer {
    Answer::ok()
}

#[test]
fn overlapping_operations_may_take_effect_in_either_order() {
    for last in ["7", "8"] {
        passes(&[
            ("a", 1, 4, &["SET", "k", "7"], ok()),
            ("b", 2, 3, &["SET", "k", "8"], ok()),
            ("c", 5, 6, &["GET", "k"], t(last)),
        ]);
    }
    fails(
        &[
            ("a", 1, 2, &["SET", "k", "7"], ok()),
            ("b", 3, 4, &["SET", "k", "8"], ok()),
            ("c", 5, 6, &["GET", "k"], t("7")),
        ],
        &[0, 1, 2],
    );
}

#[test]
fn moment_that_two_share_puts_neither_first() {
    passes(&[
        ("a", 1, 5, &["SET", "k", "7"], ok()),
        ("b", 5, 6, &["GET", "k"], NIL),
    ]);
}

#[test]
fn read_may_not_go_back() {
    fails(
        &[
            ("a", 1, 9, &["SET", "k", "7"], ok()),
            ("b", 2, 3, &["GET", "k"], t("7")),
            ("c", 4, 5, &["GET", "k"], NIL),
        ],
        &[1, 2],
    );
}

#[test]
fn unknown_write_never_happens_before_its_invocation() {
    passes(&[
        ("a", 1, 0, &["SET", "k", "7"], NIL),
        ("b", 2, 3, &["GET", "k"], NIL),
        ("b", 4, 5, &["GET", "k"], t("7")),
    ]);
    passes(&[
        ("a", 1, 0, &["SET", "k", "7"], NIL),
        ("b", 2, 3, &["GET", "k"], NIL),
    ]);
    fails(
        &[
            ("b", 2, 3, &["GET", "k"], t("7")),
            ("a", 4, 0, &["SET", "k", "7"], NIL),
        ],
        &[0],
    );
}

#[test]
fn unknown_increment_happens_once_at_most() {
    passes(&[
        ("a", 1, 0, &["INCR", "k"], NIL),
        ("b", 2, 3, &["INCR", "k"], n(2)),
    ]);
    fails(
        &[
            ("a", 1, 0, &["INCR", "k"], NIL),
            ("b", 2, 3, &["INCR", "k"], n(3)),
        ],
        &[1],
    );
}

#[test]
fn failed_operation_never_happened() {
    let mut operations = history(&[
        ("a", 1, 0, &["SET", "k", "7"], NIL),
        ("b", 2, 3, &["GET", "k"], t("7")),
    ]);
    let verdict = |operations: &[Operation]| check(operations, &Limits::default()).verdict;
    assert_eq!(verdict(&operations), Verdict::Linearizable);
    operations[0].outcome = Outcome::Failed;
    assert!(matches!(verdict(&operations), Verdict::Impossible(_)));
}

#[test]
fn transaction_is_seen_whole_or_not_at_all() {
    let pair = |a: &str, b: &str| Answer::List(vec![t(a), t(b)]);
    let writes = |read: Answer| -> Verdict {
        verdict(&[
            ("a", 1, 2, &["MSET", "x", "0", "y", "0"], ok()),
            (
                "a",
                3,
                9,
                &["MULTI", "SET x 1", "SET y 1"],
                Answer::List(vec![ok(), ok()]),
            ),
            ("b", 4, 5, &["MGET", "x", "y"], read),
        ])
    };
    assert_eq!(writes(pair("0", "0")), Verdict::Linearizable);
    assert_eq!(writes(pair("1", "1")), Verdict::Linearizable);
    assert!(matches!(writes(pair("1", "0")), Verdict::Impossible(_)));
    assert!(matches!(writes(pair("0", "1")), Verdict::Impossible(_)));
    // Each key for itself could be explained; both together cannot.
    fails(
        &[
            ("a", 1, 9, &["SET", "x", "1"], ok()),
            ("b", 1, 9, &["SET", "y", "1"], ok()),
            (
                "c",
                2,
                8,
                &["MGET", "x", "y"],
                Answer::List(vec![t("1"), NIL]),
            ),
            (
                "d",
                2,
                8,
                &["MGET", "x", "y"],
                Answer::List(vec![NIL, t("1")]),
            ),
        ],
        &[2, 3],
    );
}

#[test]
fn watched_key_that_changed_undoes_its_transaction() {
    let watched = |between: &[&str], answer: Answer| -> Verdict {
        verdict(&[
            ("a", 1, 2, &["SET", "k", "1"], ok()),
            ("b", 3, 4, &["WATCH", "k"], ok()),
            ("a", 5, 6, between, ok()),
            ("b", 7, 8, &["MULTI", "SET k 3"], answer.clone()),
            (
                "c",
                9,
                10,
                &["GET", "k"],
                if answer == NIL { t("2") } else { t("3") },
            ),
        ])
    };
    let done = Answer::List(vec![ok()]);
    assert_eq!(watched(&["SET", "k", "2"], NIL), Verdict::Linearizable);
    assert!(matches!(
        watched(&["SET", "k", "2"], done.clone()),
        Verdict::Impossible(_)
    ));
    assert_eq!(watched(&["SET", "other", "2"], done), Verdict::Linearizable);
    // Nothing changed the key: the transaction had to be carried out.
    let alone = |answer: Answer| {
        verdict(&[
            ("b", 3, 4, &["WATCH", "k"], ok()),
            ("b", 7, 8, &["MULTI", "SET k 3"], answer),
        ])
    };
    assert_eq!(alone(Answer::List(vec![ok()])), Verdict::Linearizable);
    assert!(matches!(alone(NIL), Verdict::Impossible(_)));
    // A transaction that failed has used up what was watched.
    let mut operations = history(&[
        ("b", 3, 4, &["WATCH", "k"], ok()),
        ("a", 5, 6, &["SET", "k", "2"], ok()),
        ("b", 7, 8, &["MULTI", "SET k 3"], NIL),
        ("b", 9, 10, &["MULTI", "SET k 4"], Answer::List(vec![ok()])),
    ]);
    operations[2].outcome = Outcome::Failed;
    let verdict = check(&operations, &Limits::default()).verdict;
    assert_eq!(verdict, Verdict::Linearizable);
    // UNWATCH forgets.
    passes(&[
        ("b", 3, 4, &["WATCH", "k"], ok()),
        ("a", 5, 6, &["SET", "k", "2"], ok()),
        ("b", 7, 8, &["UNWATCH"], ok()),
        ("b", 9, 10, &["MULTI", "SET k 3"], Answer::List(vec![ok()])),
    ]);
}

#[test]
fn key_with_a_deadline_goes_once_and_does_not_come_back() {
    passes(&[
        ("a", 1, 2, &["SET", "k", "1", "PX", "5"], ok()),
        ("a", 3, 4, &["GET", "k"], t("1")),
        ("a", 5, 6, &["GET", "k"], NIL),
        ("a", 7, 8, &["EXISTS", "k"], n(0)),
    ]);
    fails(
        &[
            ("a", 1, 2, &["SET", "k", "1", "PX", "5"], ok()),
            ("a", 3, 4, &["GET", "k"], NIL),
            ("a", 5, 6, &["GET", "k"], t("1")),
        ],
        &[0, 1, 2],
    );
    fails(
        &[
            ("a", 1, 2, &["SET", "k", "1"], ok()),
            ("a", 3, 4, &["GET", "k"], NIL),
        ],
        &[0, 1],
    );
}

#[test]
fn too_dear_is_not_a_pass() {
    // Twenty concurrent appends and a read that none of their orders gives.
    let names: Vec<String> = (0..20)
        .map(|n| format!("{}", char::from(b'a' + n)))
        .collect();
    let words: Vec<[&str; 3]> = names
        .iter()
        .map(|name| ["APPEND", "k", name.as_str()])
        .collect();
    let mut lines: Vec<Line<'_>> = words.iter().map(|w| ("c", 1, 0, &w[..], NIL)).collect();
    lines.push(("r", 2, 3, &["GET", "k"], t("abcdefghijklmnopqrst!")));
    let limits = Limits {
        steps: 100_000,
        ..Limits::default()
    };
    let verdict = check(&history(&lines), &limits).verdict;
    let Verdict::Unknown(why) = verdict else {
        panic!("{verdict:?}");
    };
    assert!(
        why.contains("100000 steps") && why.contains("21 operations (20 of unknown"),
        "{why}"
    );
    let limits = Limits {
        memory: 1 << 20,
        ..Limits::default()
    };
    let verdict = check(&history(&lines), &limits).verdict;
    assert!(
        matches!(&verdict, Verdict::Unknown(why) if why.contains("memory")),
        "{verdict:?}"
    );
}

#[test]
fn evidence_is_told_with_its_places() {
    let operations = history(&[
        ("d", 50, 60, &["SET", "k", "6"], ok()),
        ("a", 100, 200, &["SET", "k", "7"], ok()),
        ("b", 300, 400, &["SET", "k", "8"], ok()),
        ("c", 500, 600, &["GET", "k"], t("7")),
    ]);
    let Verdict::Impossible(evidence) = check(&operations, &Limits::default()).verdict else {
        panic!("it is impossible");
    };
    let text = evidence.describe(&operations, |index| format!("line {}", index + 1));
    assert!(
        text.contains("line 3: client b from +200 to +300: SET k 8 -> OK"),
        "{text}"
    );
    assert!(
        text.contains("line 4: client c from +400 to +500: GET k -> 7"),
        "{text}"
    );
    assert!(text.contains("1 other operations"), "{text}");
}

/// Gives one answered GET another value that was written, or none. Most such changes, not all,
/// make a history impossible.
fn corrupt(operations: &mut [Operation], random: &mut Random) -> bool {
    let reads: Vec<usize> = (0..operations.len())
        .filter(|index| {
            let operation = &operations[*index];
            operation.call.name() == b"GET"
                && matches!(operation.outcome, Outcome::Answered { .. })
                && !operation.call.is_transaction()
        })
        .collect();
    if reads.is_empty() {
        return false;
    }
    let index = reads[random.index(reads.len())];
    if let Outcome::Answered { answer, .. } = &mut operations[index].outcome {
        *answer = Answer::text("no client wrote this");
    }
    true
}

#[test]
fn atomic_histories_pass_and_a_changed_answer_does_not() {
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let shape = Shape {
            operations: 50,
            keys: 1 + random.below(4),
            clients: 1 + random.index(7),
            unknown: [0, 60][random.index(2)],
            transactions: [0, 200][random.index(2)],
        };
        let mut operations = generate::history(shape, &mut random);
        let report = check(&operations, &Limits::default());
        assert_eq!(report.verdict, Verdict::Linearizable, "seed {seed}");
        if corrupt(&mut operations, &mut random) {
            let verdict = check(&operations, &Limits::default()).verdict;
            assert!(
                matches!(verdict, Verdict::Impossible(_)),
                "seed {seed}: {verdict:?}"
            );
        }
    }
}

/// Tries every order: slow, and too simple to be wrong.
fn by_brute_force(operations: &[Operation]) -> bool {
    fn place(operations: &[Operation], left: &mut Vec<usize>, states: &[KeyState]) -> bool {
        let returned = |index: &usize| match operations[*index].outcome {
            Outcome::Answered { at, .. } => at,
            _ => u64::MAX,
        };
        let first = left.iter().map(returned).min().unwrap_or(u64::MAX);
        if first == u64::MAX {
            return true;
        }
        for at in 0..left.len() {
            let index = left[at];
            let operation = &operations[index];
            if operation.invoked > first {
                continue;
            }
            // Keys are numbered by their names' last letter, so that every try agrees.
            let mut states = states.to_vec();
            let mut keys = Keys::default();
            for key in 0..states.len() {
                keys.number(&Bytes::from(format!("k{key}")));
            }
            let call = compile(&operation.call, &mut keys).unwrap();
            let mut answers: Vec<Answer> = call
                .groups
                .iter()
                .map(|group| group.apply(&mut states))
                .collect();
            let answer = match call.transaction {
                true => Answer::List(answers),
                false => answers.remove(0),
            };
            let fits = match &operation.outcome {
                Outcome::Answered { answer: got, .. } => answer.agrees(got),
                _ => true,
            };
            if fits {
                left.remove(at);
                if place(operations, left, &states) {
                    return true;
                }
                left.insert(at, index);
            }
        }
        false
    }
    let mut left: Vec<usize> = (0..operations.len()).collect();
    place(operations, &mut left, &vec![KeyState::default(); 3])
}

#[test]
fn small_histories_get_the_verdict_of_trying_every_order() {
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..3000 {
        let mut random = Random::new(seed);
        let shape = Shape {
            operations: 8,
            keys: 3,
            clients: 5,
            unknown: [0, 200][random.index(2)],
            transactions: [0, 500][random.index(2)],
        };
        let mut operations = generate::history(shape, &mut random);
        // Answers change places with one another: some such histories are possible all the same.
        let answered: Vec<usize> = (0..operations.len())
            .filter(|index| matches!(operations[*index].outcome, Outcome::Answered { .. }))
            .collect();
        if answered.len() > 1 {
            let (a, b) = (
                answered[random.index(answered.len())],
                answered[random.index(answered.len())],
            );
            let outcomes = (operations[a].outcome.clone(), operations[b].outcome.clone());
            if let (Outcome::Answered { answer: one, .. }, Outcome::Answered { answer: two, .. }) =
                outcomes
                && operations[a].call.is_transaction() == operations[b].call.is_transaction()
            {
                for (index, new) in [(a, two), (b, one)] {
                    if let Outcome::Answered { answer, .. } = &mut operations[index].outcome {
                        *answer = new;
                    }
                }
            }
        }
        let verdict = check(&operations, &Limits::default()).verdict;
        let possible = by_brute_force(&operations);
        assert_eq!(
            verdict == Verdict::Linearizable,
            possible,
            "seed {seed}: {verdict:?}"
        );
        assert!(!matches!(verdict, Verdict::Unknown(_)));
        if possible { right += 1 } else { wrong += 1 }
    }
    assert!(right > 300 && wrong > 300, "{right} right, {wrong} wrong");
}

#[test]
fn hints_find_the_order_of_many_unknown_appends() {
    let words: Vec<String> = (0..40).map(|n| format!("{n}.")).collect();
    let mut lines: Vec<[&str; 3]> = Vec::new();
    for word in &words {
        lines.push(["APPEND", "k", word]);
    }
    let mut all: Vec<Line<'_>> = lines
        .iter()
        .map(|words| ("c", 1, 0, &words[..], NIL))
        .collect();
    let whole: String = words.iter().rev().map(String::as_str).collect();
    all.push(("r", 2, 3, &["GET", "k"], t(&whole)));
    let operations = history(&all);
    let report = check_with(&operations, &Limits::default(), &|index| {
        Some(40 - index as u64)
    });
    assert_eq!(report.verdict, Verdict::Linearizable);
    assert!(report.steps < 2000, "{}", report.steps);
}

#[test]
fn hundred_thousand_operations_over_a_thousand_keys_are_decided() {
    let shape = Shape {
        operations: 100_000,
        keys: 1000,
        clients: 100,
        unknown: 20,
        transactions: 0,
    };
    let mut random = Random::new(9);
    let report = check(&generate::history(shape, &mut random), &Limits::default());
    assert_eq!(report.verdict, Verdict::Linearizable);
    assert_eq!((report.operations, report.components), (100_000, 1000));
    assert!(report.steps < 20_000_000, "{}", report.steps);
}

//! A recorded history: what clients asked, when, and what they got. As a file, JSON lines.
//!
//! ```text
//!   {"client":"c1","invoked":100,"completed":250,"command":["SET","k","v"],"reply":"OK"}
//!   {"client":"c2","invoked":120,"command":["INCR","n"]}                    never answered
//!   {"client":"c1","invoked":300,"completed":420,"transaction":[["GET","k"]],"reply":["v"]}
//!        │ read, with the number of the line that is invalid
//!        ▼
//!   Operation { client, call, invoked, outcome } ──► checkers::linearizability
//! ```
//!
//! The format is described for its users in `docs/design/histories.md`.

use crate::model::{Answer, Call, CallError};
use quintet_replica::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};
use std::{
    io::{self, BufRead, Read},
    sync::Arc,
};

/// The version of the format.
pub const VERSION: u64 = 1;
/// No line may be longer.
const LINE_MAX: u64 = 256 << 20;

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered.
    Answered {
        /// When.
        at: u64,
        /// The answer.
        answer: Answer,
    },
    /// It was carried out, and what was answered is not known.
    Done {
        /// When that was known.
        at: u64,
    },
    /// It was certainly not executed.
    Failed,
    /// The outcome is unknown: it may take effect at any time after its invocation, or never.
    Unknown,
}

impl Outcome {
    /// When it was known to be carried out.
    #[must_use]
    pub const fn at(&self) -> Option<u64> {
        match self {
            Self::Answered { at, .. } | Self::Done { at } => Some(*at),
            Self::Failed | Self::Unknown => None,
        }
    }
}

/// One operation of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The client.
    pub client: Arc<str>,
    /// The call.
    pub call: Call,
    /// When, by a clock that all clients share.
    pub invoked: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// A file that is no recorded history.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// A line is invalid.
    #[error("line {line}: {what}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// The error.
        what: String,
    },
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    client: Value,
    invoked: u64,
    completed: Option<u64>,
    command: Option<Vec<Value>>,
    transaction: Option<Vec<Vec<Value>>>,
    #[serde(default, deserialize_with = "present")]
    reply: Option<Value>,
    outcome: Option<String>,
}

/// Tells `"reply": null`, which is an answer, from no reply at all.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// `{"hex": "00ff"}`: bytes that are no text.
fn hex(object: &Map<String, Value>) -> Option<Bytes> {
    let text = object.get("hex")?.as_str()?;
    if object.len() != 1 || !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let byte = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(byte).collect()
}

fn word(value: &Value) -> Result<Bytes, String> {
    match value {
        Value::String(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
        Value::Number(number) => number.as_i64().map(|number| number.to_string().into()),
        Value::Object(object) => hex(object),
        _ => None,
    }
    .ok_or_else(|| format!("{value} is no argument: a text, an integer or {{\"hex\": \"00ff\"}}"))
}

fn answer(value: &Value) -> Result<Answer, String> {
    let refuse = || {
        format!(
            "{value} is no reply: null, an integer, a text, a list, {{\"hex\": \"00ff\"}} or \
             {{\"error\": \"ERR …\"}}"
        )
    };
    Ok(match value {
        Value::Null => Answer::Nil,
        Value::Number(number) => Answer::Number(number.as_i64().ok_or_else(refuse)?),
        Value::String(text) => Answer::text(text),
        Value::Array(values) => Answer::List(values.iter().map(answer).collect::<Result<_, _>>()?),
        Value::Object(object) => match object.get("error").and_then(Value::as_str) {
            Some(text) if object.len() == 1 => Answer::Error(text.to_owned()),
            _ => Answer::Text(hex(object).ok_or_else(refuse)?),
        },
        Value::Bool(_) => return Err(refuse()),
    })
}

fn bytes_value(bytes: &Bytes) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "hex": digits })
        }
    }
}

fn answer_value(answer: &Answer) -> Value {
    match answer {
        Answer::Nil => Value::Null,
        Answer::Number(number) => (*number).into(),
        Answer::Text(text) => bytes_value(text),
        Answer::List(answers) => answers.iter().map(answer_value).collect(),
        Answer::Error(text) => json!({ "error": text }),
    }
}

impl Line {
    fn operation(self) -> Result<Operation, String> {
        let client = match self.client {
            Value::String(name) => name.into(),
            Value::Number(number) => number.to_string().into(),
            other => return Err(format!("'client' is a text or a number, not {other}")),
        };
        let words = |command: &Vec<Value>| command.iter().map(word).collect::<Result<_, _>>();
        let call = match (&self.command, &self.transaction) {
            (Some(command), None) => Call::new(words(command)?),
            (None, Some(commands)) => {
                Call::transaction(commands.iter().map(words).collect::<Result<_, _>>()?)
            }
            _ => return Err("it needs either 'command' or 'transaction'".to_owned()),
        };
        let call = call.map_err(|error: CallError| error.to_string())?;
        let outcome = match (self.outcome.as_deref(), self.completed, &self.reply) {
            (Some("done"), Some(at), None) => Outcome::Done { at },
            (Some("done"), None, None) => return Err("done, but not when: 'completed'".to_owned()),
            (Some("failed"), _, None) => Outcome::Failed,
            (Some("unknown"), _, None) | (None, None, None) => Outcome::Unknown,
            (None | Some("answered"), Some(at), Some(reply)) => Outcome::Answered {
                at,
                answer: answer(reply)?,
            },
            (None | Some("answered"), None, _) => {
                return Err("a reply without 'completed': when did it come?".to_owned());
            }
            (None | Some("answered"), Some(_), None) => {
                return Err(
                    "it has completed without 'reply'; if there was none, say \"outcome\": \
                     \"done\", \"unknown\" or \"failed\""
                        .to_owned(),
                );
            }
            (Some("done" | "failed" | "unknown"), _, Some(_)) => {
                return Err("'reply' and an 'outcome' that says there was none".to_owned());
            }
            (Some(other), _, _) => {
                return Err(format!(
                    "outcome '{other}' is not 'answered', 'done', 'failed' or 'unknown'"
                ));
            }
        };
        if let Some(at) = outcome.at()
            && at < self.invoked
        {
            let invoked = self.invoked;
            return Err(format!(
                "it was completed at {at}, before it was invoked at {invoked}"
            ));
        }
        Ok(Operation {
            client,
            call,
            invoked: self.invoked,
            outcome,
        })
    }
}

/// The contents of a line.
enum Said {
    /// A history begins; its name, if it has one.
    Begins(String),
    Happened(Operation),
}

fn parse(text: &[u8]) -> Result<Said, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| {
        let text = error.to_string();
        // The line's number is told by the caller; serde's is always 1.
        text.split(" at line ").next().unwrap_or(&text).to_owned()
    })?;
    if let Some(version) = value.get("quintet_history") {
        let name = value
            .get("name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        return match version.as_u64() {
            Some(VERSION) => Ok(Said::Begins(name.to_owned())),
            _ => Err(format!(
                "format version {version}; this program reads {VERSION}"
            )),
        };
    }
    if !value.is_object() {
        return Err("it is no object".to_owned());
    }
    let line: Line = serde_json::from_value(value).map_err(|error| error.to_string())?;
    line.operation().map(Said::Happened)
}

/// A history as it was read.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The name in its header.
    pub name: String,
    /// Its operations, in the order of the file.
    pub operations: Vec<Operation>,
    /// The line of each.
    pub lines: Vec<usize>,
}

/// Reads all histories of a file; each but the first begins with a header. Empty lines are skipped.
///
/// # Errors
/// With the number of the first line that is invalid.
pub fn read_all(mut from: impl BufRead) -> Result<Vec<Recording>, RecordingError> {
    let mut recordings = Vec::new();
    let mut recording = Recording::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        if read == 0 {
            break;
        }
        let refuse = |what| RecordingError::Line { line: number, what };
        if read as u64 == LINE_MAX {
            return Err(refuse(format!("it is longer than {LINE_MAX} bytes")));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match parse(&line).map_err(refuse)? {
            Said::Happened(operation) => {
                recording.operations.push(operation);
                recording.lines.push(number);
            }
            Said::Begins(name) => {
                let whole = std::mem::take(&mut recording);
                recording.name = name;
                if !whole.name.is_empty() || !whole.operations.is_empty() {
                    recordings.push(whole);
                }
            }
        }
    }
    recordings.push(recording);
    Ok(recordings)
}

/// Reads a file that holds one history.
///
/// # Errors
/// With the number of the first line that is invalid, that of a second history's header too.
pub fn read(from: impl BufRead) -> Result<Recording, RecordingError> {
    let mut recordings = read_all(from)?.into_iter();
    let first = recordings.next().unwrap_or_default();
    match recordings.next() {
        None => Ok(first),
        Some(second) => Err(RecordingError::Line {
            line: second.lines.first().map_or(0, |line| line - 1),
            what: "a second history begins; one file holds one".to_owned(),
        }),
    }
}

impl Operation {
    /// The operation as a line of a file, without the end of line.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut line = json!({ "client": &*self.client, "invoked": self.invoked });
        let mut commands: Vec<Value> = self
            .call
            .commands()
            .iter()
            .map(|command| command.iter().map(bytes_value).collect())
            .collect();
        match (self.call.is_transaction(), commands.pop()) {
            (false, Some(command)) => line["command"] = command,
            (_, last) => {
                commands.extend(last);
                line["transaction"] = commands.into();
            }
        }
        match &self.outcome {
            Outcome::Answered { at, answer } => {
                line["completed"] = (*at).into();
                line["reply"] = answer_value(answer);
            }
            Outcome::Done { at } => {
                line["completed"] = (*at).into();
                line["outcome"] = "done".into();
            }
            Outcome::Failed => line["outcome"] = "failed".into(),
            Outcome::Unknown => line["outcome"] = "unknown".into(),
        }
        line.to_string()
    }
}

/// The line that a history begins with; only a second one in the same file must have it.
#[must_use]
pub fn header(name: &str) -> String {
    match name {
        "" => json!({ "quintet_history": VERSION }).to_string(),
        name => json!({ "quintet_history": VERSION, "name": name }).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        let text = format!("{}\n\n{line}\n", header(""));
        match read(text.as_bytes()) {
            Err(RecordingError::Line { line: 3, what }) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn operations_are_read_as_they_were_written() {
        let calls = [
            Call::of(&["SET", "k", "v", "PX", "5"]),
            Call::transaction(vec![]).unwrap(),
            Call::transaction(vec![
                vec![Bytes::from_static(b"GET"), Bytes::from_static(b"\xff\x00")],
                vec![Bytes::from_static(b"INCR"), Bytes::from_static(b"n")],
            ])
            .unwrap(),
        ];
        let answer = Answer::List(vec![
            Answer::Nil,
            Answer::Number(-3),
            Answer::text(b"\x80"),
            Answer::text("ü"),
            Answer::Error("WRONGTYPE of it".to_owned()),
        ]);
        let outcomes = [
            Outcome::Answered { at: 9, answer },
            Outcome::Done { at: 8 },
            Outcome::Failed,
            Outcome::Unknown,
        ];
        let mut text = header("");
        let mut written = Vec::new();
        for call in calls {
            for outcome in outcomes.clone() {
                let operation = Operation {
                    client: "c1".into(),
                    call: call.clone(),
                    invoked: 7,
                    outcome,
                };
                text.push('\n');
                text.push_str(&operation.to_line());
                written.push(operation);
            }
        }
        let read = read(text.as_bytes()).unwrap();
        assert_eq!(read.lines[0], 2);
        assert_eq!(read.operations, written);
    }

    #[test]
    fn histories_in_one_file_are_told_apart_and_one_is_expected() {
        let line = r#"{"client":"a","invoked":1,"command":["GET","k"]}"#;
        let text = format!("{line}\n{line}\n{}\n{line}\n{}\n", header("b"), header("c"));
        let all = read_all(text.as_bytes()).unwrap();
        let seen: Vec<_> = all
            .iter()
            .map(|r| (r.name.as_str(), r.lines.clone()))
            .collect();
        assert_eq!(seen, [("", vec![1, 2]), ("b", vec![4]), ("c", vec![])]);
        let error = read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("line 3: a second history"), "{error}");
    }

    #[test]
    fn each_mistake_is_named_with_its_line() {
        for (line, expected) in [
            ("{", "EOF"),
            ("[]", "no object"),
            (
                r#"{"invoked":1,"command":["GET","k"]}"#,
                "missing field `client`",
            ),
            (
                r#"{"client":"a","invoked":-1,"command":["GET","k"]}"#,
                "invalid value",
            ),
            (
                r#"{"client":"a","invoked":1}"#,
                "either 'command' or 'transaction'",
            ),
            (
                r#"{"client":"a","invoked":1,"command":["ZADD","k"]}"#,
                "the command 'ZADD'",
            ),
            (
                r#"{"client":"a","invoked":1,"command":["GET"]}"#,
                "arguments for 'GET'",
            ),
            (
                r#"{"client":"a","invoked":1,"command":[]}"#,
                "without a command",
            ),
            (
                r#"{"client":"a","invoked":1,"command":["GET",true]}"#,
                "no argument",
            ),
            (
                r#"{"client":"a","invoked":9,"completed":8,"command":["GET","k"],"reply":1}"#,
                "before it was invoked",
            ),
            (
                r#"{"client":"a","invoked":1,"completed":8,"command":["GET","k"]}"#,
                "without 'reply'",
            ),
            (
                r#"{"client":"a","invoked":1,"command":["GET","k"],"reply":1}"#,
                "without 'completed'",
            ),
            (
                r#"{"client":"a","invoked":1,"completed":8,"command":["GET","k"],"reply":{"a":1}}"#,
                "no reply",
            ),
            (
                r#"{"client":"a","invoked":1,"command":["GET","k"],"outcome":"lost"}"#,
                "outcome 'lost'",
            ),
            (
                r#"{"client":"a","invoked":1,"command":["GET","k"],"when":1}"#,
                "unknown field",
            ),
            (r#"{"quintet_history":2}"#, "format version 2"),
        ] {
            let what = refused(line);
            assert!(what.contains(expected), "{line}: {what}");
        }
    }
}

//! The replicated machine of a world, and its clients' interface to it.
//!
//! ```text
//!   Call ──► encode ──► a command's bytes ──► (protocol) ──► machine ──► reply ──► decode ──► Answer
//!             registers: fixed 29 bytes that begin with the operation's number
//!             store:     the request of quintet_store, as the server builds it
//! ```
//!
//! The store is what users run, so worlds run it too. The registers stay: their commands are all
//! different, their state is hashed in no time, and a bug of the store cannot hide in them.

use crate::{
    machine::{Operation, Registers, Reply, decode_reply, encode_command},
    model::{Answer, Call},
    world::Shape,
};
use quintet_replica::{Bytes, StateMachine};
use quintet_store::{Mode, RequestBuilder, Store, StoreOptions, Watched, lookup};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The replicated machine of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Registers, counters and lists made to be checked.
    #[default]
    Registers,
    /// The Redis data model.
    Store,
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "registers" => Ok(Self::Registers),
            "store" => Ok(Self::Store),
            other => Err(format!("'{other}' is no machine: registers or store")),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Registers => "registers",
            Self::Store => "store",
        })
    }
}

/// The name of key `key`.
pub(crate) fn key_name(key: u32) -> String {
    format!("k{key}")
}

/// The operation of the registers that a call means.
fn on_registers(call: &Call) -> Option<(u32, Operation)> {
    let [command] = call.commands() else {
        return None;
    };
    let word = |at: usize| std::str::from_utf8(command.get(at)?).ok();
    let number = |at: usize| word(at)?.parse::<u64>().ok();
    let key = word(1)?.strip_prefix('k')?.parse().ok()?;
    let operation = match word(0)? {
        "GET" | "LDIGEST" => Operation::Read,
        "SET" => Operation::Write(number(2)?),
        "CAS" => Operation::CompareAndSet {
            expected: number(2)?,
            new: number(3)?,
        },
        "RPUSH" => Operation::Append(number(2)?),
        "INCRBY" => Operation::Add(number(2)?),
        _ => return None,
    };
    Some((key, operation))
}

fn from_registers(call: &Call, reply: Reply) -> Answer {
    match reply {
        Reply::Value(length, hash) if call.name() == b"LDIGEST" => Answer::List(vec![
            Answer::Number(length as i64),
            Answer::Number(hash as i64),
        ]),
        Reply::Value(_, 0) => Answer::Nil,
        Reply::Value(_, value) => Answer::text(value.to_string()),
        Reply::Written => Answer::ok(),
        Reply::Swapped(yes) => Answer::Number(i64::from(yes)),
        Reply::Length(length) => Answer::Number(length as i64),
        Reply::Sum(sum) => Answer::Number(sum as i64),
    }
}

pub(crate) fn add(builder: &mut RequestBuilder, command: &[impl AsRef<[u8]>]) -> Option<()> {
    let (name, arguments) = command.split_first()?;
    let name = name.as_ref();
    let words: Vec<&[u8]> = arguments.iter().map(AsRef::as_ref).collect();
    if name.eq_ignore_ascii_case(b"WATCH") {
        builder.watch_versions(Mode::default(), &words);
        return Some(());
    }
    let spec = lookup(&name.to_ascii_lowercase())?;
    builder.command(spec, Mode::default(), &words);
    Some(())
}

/// One RESP2 reply from the front of `rest`.
fn resp(rest: &mut &[u8]) -> Option<Answer> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, tail) = rest.split_at(end);
    *rest = &tail[2..];
    let (kind, text) = line.split_first()?;
    let text = std::str::from_utf8(text).ok()?;
    Some(match kind {
        b'+' => Answer::text(text),
        b'-' => Answer::Error(text.to_owned()),
        b':' => Answer::Number(text.parse().ok()?),
        b'$' if text == "-1" => Answer::Nil,
        b'$' => {
            let length: usize = text.parse().ok()?;
            let bytes = rest.get(..length)?;
            *rest = rest.get(length..)?.strip_prefix(b"\r\n")?;
            Answer::text(bytes)
        }
        b'*' if text == "-1" => Answer::Nil,
        b'*' => {
            let length: usize = text.parse().ok()?;
            Answer::List((0..length).map(|_| resp(rest)).collect::<Option<_>>()?)
        }
        _ => return None,
    })
}

impl Service {
    /// A machine with nothing in it.
    pub(crate) fn machine(self, shape: &Shape) -> Box<dyn StateMachine> {
        self.machine_with(shape, StoreOptions::default())
    }

    /// A machine with nothing in it; a store with these limits.
    pub(crate) fn machine_with(
        self,
        shape: &Shape,
        options: StoreOptions,
    ) -> Box<dyn StateMachine> {
        match self {
            Self::Registers => Box::new(Registers::new(
                shape.keys,
                shape.snapshot_padding,
                shape.snapshot_chunk,
            )),
            Self::Store => Box::new(Store::new(options)),
        }
    }

    /// The bytes of a call as operation `number`; `watched` as [`Self::versions`] gave them, and
    /// `behind` a command of the store that follows.
    pub(crate) fn encode(
        self,
        number: u64,
        call: &Call,
        watched: &[(Bytes, u64)],
        behind: Option<&[&str]>,
    ) -> Vec<u8> {
        if self == Self::Registers {
            let (key, operation) = on_registers(call).unwrap_or((0, Operation::Read));
            return encode_command(number, key, operation).to_vec();
        }
        let mut builder = RequestBuilder::new();
        if call.is_transaction() {
            let mut queued = RequestBuilder::new();
            for command in call.commands() {
                add(&mut queued, command);
            }
            let watched: Vec<Watched<'_>> = watched
                .iter()
                .map(|(key, version)| Watched {
                    database: 0,
                    version: *version,
                    key,
                })
                .collect();
            builder.transaction(Mode::default(), &watched, &queued);
        } else {
            for command in call.commands() {
                add(&mut builder, command);
            }
        }
        behind.and_then(|command| add(&mut builder, command));
        builder.into_bytes()
    }

    /// Decodes a reply.
    pub(crate) fn decode(self, call: &Call, reply: &[u8]) -> Option<Answer> {
        match self {
            Self::Registers => Some(from_registers(call, decode_reply(reply)?)),
            Self::Store if call.name() == b"WATCH" => Some(Answer::ok()),
            Self::Store => {
                let mut rest = reply;
                let answer = resp(&mut rest)?;
                // A write may say behind its commands how much of the past is kept.
                (rest.is_empty() || rest == b"+OK\r\n").then_some(answer)
            }
        }
    }

    /// The watched keys with their versions, from the reply to a WATCH.
    pub(crate) fn versions(call: &Call, reply: &[u8]) -> Option<Vec<(Bytes, u64)>> {
        let keys = call.commands().first()?.get(1..)?;
        let mut rest = reply;
        let Answer::List(versions) = resp(&mut rest)? else {
            return None;
        };
        keys.iter()
            .zip(versions)
            .map(|(key, version)| match version {
                Answer::Text(text) => {
                    let text = std::str::from_utf8(&text).ok()?;
                    Some((key.clone(), u64::from_str_radix(text, 16).ok()?))
                }
                _ => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::{At, CommandId, CommandTime, Position, SessionId};

    fn at(sequence: u64) -> At {
        let session = SessionId {
            owner: 1,
            number: 1,
        };
        At {
            position: Position(sequence),
            time: CommandTime(sequence * 1_000_000_000),
            id: CommandId { session, sequence },
        }
    }

    #[test]
    fn store_answers_calls_and_undoes_transaction_whose_key_changed() {
        let mut store = Store::new(StoreOptions::default());
        let mut sequence = 0;
        let mut ask = |call: &Call, watched: &[(Bytes, u64)]| {
            sequence += 1;
            let mut reply = Vec::new();
            store.apply(
                &at(sequence),
                &Service::Store.encode(0, call, watched, None),
                &mut reply,
            );
            (Service::Store.decode(call, &reply).unwrap(), reply)
        };
        let set = Call::of(&["SET", "k1", "v"]);
        assert_eq!(ask(&set, &[]).0, Answer::ok());
        let watch = Call::of(&["WATCH", "k1", "k2"]);
        let (_, reply) = ask(&watch, &[]);
        let versions = Service::versions(&watch, &reply).unwrap();
        assert!(versions[0].1 != 0 && versions[1].1 == 0);
        let word = |text: &'static str| Bytes::from_static(text.as_bytes());
        let call = Call::transaction(vec![
            vec![word("GET"), word("k1")],
            vec![word("RPUSH"), word("k2"), word("a")],
        ]);
        let call = call.unwrap();
        let done = Answer::List(vec![Answer::text("v"), Answer::Number(1)]);
        assert_eq!(ask(&call, &versions).0, done);
        assert_eq!(ask(&call, &versions).0, Answer::Nil);
    }

    #[test]
    fn registers_take_what_is_drawn_for_them() {
        for (words, expected) in [
            (vec!["GET", "k3"], (3, Operation::Read)),
            (vec!["SET", "k3", "7"], (3, Operation::Write(7))),
            (vec!["RPUSH", "k4", "9"], (4, Operation::Append(9))),
            (vec!["INCRBY", "k5", "2"], (5, Operation::Add(2))),
        ] {
            assert_eq!(on_registers(&Call::of(&words)), Some(expected));
        }
        assert_eq!(on_registers(&Call::of(&["DEL", "k1"])), None);
    }
}

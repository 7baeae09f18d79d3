//! The clients' requests and the answers of a single, perfect machine: the specification against
//! which histories are checked.
//!
//! ```text
//!   Call     ["SET", "k", "v"]  or a transaction of several        what was asked
//!   Answer   OK, a number, a text, nothing, a list, an error       what came back
//!   Act      a command on one key, ready to be carried out         compiled from a call
//!   KeyState a key's value, whether it may expire, who watches it
//! ```
//!
//! The words are those of Redis, and the meaning was written again from its documentation: sharing
//! code with the store would let both be wrong in the same way. Only commands stand here that
//! clients use in histories; [`Call::new`] refuses any other by name.

mod act;
mod parse;
mod state;

pub(crate) use act::{Act, Count, Only};
pub(crate) use parse::{Compiled, Group, Join, Keys, compile};
pub(crate) use state::{KeyState, Watched, apply};

use quintet_replica::Bytes;
use smallvec::SmallVec;
use std::fmt;

/// A client's request: one command, or several as one transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    commands: Vec<Vec<Bytes>>,
    transaction: bool,
}

/// Why something is no call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The specification has no such command.
    #[error(
        "the checker does not know the command '{0}'; docs/design/histories.md lists those it knows"
    )]
    Unknown(String),
    /// The command is known, its arguments are not.
    #[error("wrong arguments for '{0}'")]
    Arguments(String),
    /// There is no command.
    #[error("a call without a command")]
    Empty,
}

impl Call {
    /// A single command: its name and arguments.
    ///
    /// # Errors
    /// When the specification does not know it.
    pub fn new(command: Vec<Bytes>) -> Result<Self, CallError> {
        Self::checked(vec![command], false)
    }

    /// The commands between MULTI and EXEC. Keys that the same client has watched before belong to
    /// it, see [`crate::recording`].
    ///
    /// # Errors
    /// When the specification does not know one of them.
    pub fn transaction(commands: Vec<Vec<Bytes>>) -> Result<Self, CallError> {
        Self::checked(commands, true)
    }

    fn checked(commands: Vec<Vec<Bytes>>, transaction: bool) -> Result<Self, CallError> {
        let call = Self {
            commands,
            transaction,
        };
        compile(&call, &mut Keys::default())?;
        Ok(call)
    }

    /// A command from words, for tests and generated histories.
    ///
    /// # Panics
    /// When the specification does not know it.
    #[must_use]
    pub fn of(words: &[&str]) -> Self {
        let words = words
            .iter()
            .map(|word| Bytes::copy_from_slice(word.as_bytes()));
        Self::new(words.collect()).expect("the caller wrote it down")
    }

    /// Its commands, each with its name first.
    #[must_use]
    pub fn commands(&self) -> &[Vec<Bytes>] {
        &self.commands
    }

    /// Whether it is a transaction, answered by a list.
    #[must_use]
    pub const fn is_transaction(&self) -> bool {
        self.transaction
    }

    /// Its first command's name as it was written.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        self.commands
            .first()
            .and_then(|command| command.first())
            .map_or(b"EXEC", |name| &name[..])
    }

    /// Whether nothing that it does could change a value: reads, and the watching of keys.
    #[must_use]
    pub fn is_read(&self) -> bool {
        compile(self, &mut Keys::default()).is_ok_and(|compiled| {
            let mut parts = compiled.groups.iter().flat_map(|group| &group.parts);
            parts.all(|part| part.act.only_reads())
        })
    }
}

/// A client's answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Nothing: no such key, or a transaction that was not carried out.
    Nil,
    /// A number.
    Number(i64),
    /// A text; `OK` too.
    Text(Bytes),
    /// Several.
    List(Vec<Answer>),
    /// An error. Its first word counts, see [`Answer::error_code`].
    Error(String),
}

impl Answer {
    /// A text.
    #[must_use]
    pub fn text(text: impl AsRef<[u8]>) -> Self {
        Self::Text(Bytes::copy_from_slice(text.as_ref()))
    }

    /// `OK`.
    #[must_use]
    pub const fn ok() -> Self {
        Self::Text(Bytes::from_static(b"OK"))
    }

    /// An error's first word: what it is, as programs tell errors apart.
    #[must_use]
    pub fn error_code(&self) -> Option<&str> {
        match self {
            Self::Error(text) => Some(text.split(' ').next().unwrap_or_default()),
            _ => None,
        }
    }

    /// Whether the specification's answer `self` is what the client got. Of errors the first word
    /// counts; of a TTL only its sign, because the exact time is unknown.
    pub(crate) fn agrees(&self, got: &Self) -> bool {
        match (self, got) {
            (Self::Error(_), Self::Error(_)) => self.error_code() == got.error_code(),
            (Self::List(ours), Self::List(theirs)) => {
                ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| a.agrees(b))
            }
            _ => self == got,
        }
    }
}

fn show_bytes(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const SHOWN: usize = 60;
    let cut = &bytes[..bytes.len().min(SHOWN)];
    write!(f, "{}", cut.escape_ascii())?;
    match bytes.len() > SHOWN {
        true => write!(f, "… ({} bytes)", bytes.len()),
        false => Ok(()),
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("(nil)"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => show_bytes(text, f),
            Self::Error(text) => write!(f, "error {text}"),
            Self::List(answers) => {
                f.write_str("[")?;
                for (index, answer) in answers.iter().enumerate() {
                    let comma = if index > 0 { ", " } else { "" };
                    write!(f, "{comma}{answer}")?;
                }
                f.write_str("]")
            }
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.transaction {
            f.write_str("MULTI ")?;
        }
        for (number, command) in self.commands.iter().enumerate() {
            if number > 0 {
                f.write_str(" ; ")?;
            }
            for (index, word) in command.iter().enumerate() {
                if index > 0 {
                    f.write_str(" ")?;
                }
                show_bytes(word, f)?;
            }
        }
        match self.transaction {
            true => f.write_str(" EXEC"),
            false => Ok(()),
        }
    }
}

/// The single, perfect machine: carries out one call after the other.
#[derive(Debug, Default)]
pub struct Machine {
    keys: Keys,
    states: Vec<KeyState>,
}

impl Machine {
    /// Carries a call out and answers it. Deadlines never come, and nothing is watched.
    #[must_use]
    pub fn answer(&mut self, call: &Call) -> Answer {
        let Ok(compiled) = compile(call, &mut self.keys) else {
            return Answer::Error("ERR a call that was refused".to_owned());
        };
        self.states.resize(self.keys.len(), KeyState::default());
        let groups = compiled.groups.iter();
        let mut answers: Vec<Answer> = groups.map(|group| group.apply(&mut self.states)).collect();
        match compiled.transaction {
            true => Answer::List(answers),
            false => answers.pop().unwrap_or(Answer::Nil),
        }
    }
}

/// Few keys, as most calls have.
pub(crate) type FewKeys = SmallVec<[u32; 2]>;

#[cfg(test)]
mod tests;

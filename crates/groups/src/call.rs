//! Calls and their answers as bytes, and the context of a service's methods.
//!
//! ```text
//!   call    kind, method, [floor or version] │ arguments (postcard)
//!           or 64, place │ call      or 65, loan │ call      or 66 │ call
//!   answer  0, version, time │ value │ hand-offs, their length in four bytes      or      1 │ fault
//! ```

use crate::{CallError, Time, Version, encoding};
use quintet_replica::CommandTime;
use serde::{Deserialize, Serialize};
use std::cell::Cell;

/// The kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// With the highest time that its caller has seen: its own is later.
    Ordered(u64),
    /// A query of the newest state.
    Query,
    /// As of the time that the read of the past was asked for.
    QueryAtTime,
    /// A query of the state of this version.
    QueryAtVersion(u64),
    /// As of the newest version, which is this one at least.
    QueryFrom(u64),
    /// Changes nothing: what a gather asks members for is at this place of the order. With the highest
    /// time that its caller has seen.
    Mark(u64),
    /// The notifications of a name, from a number on.
    Follow,
    /// The values that a field had; the method is the field.
    History,
    /// Of another shard, which has handed it off.
    Deliver,
    /// Hand-offs have been executed.
    Settle,
    /// The hand-offs that wait.
    Outbox,
    /// The shard has these members from here on, see [`view`](crate::view).
    View,
    /// The number of the last view.
    LastView,
}

/// A call that was handed off, as it is delivered.
#[derive(Debug, Serialize, Deserialize)]
pub struct Delivery<'a> {
    /// The shard that has handed it off, SUBGROUP/NUMBER.
    pub source: &'a str,
    /// Its number among those from that shard to this one, from 1.
    pub number: u64,
    /// The time of the command that made it.
    pub time: u64,
    /// As encoded by the macro's code.
    pub arguments: &'a [u8],
}

impl Kind {
    /// Whether only members send it, by their couriers and heralds.
    #[must_use]
    pub const fn is_of_members(self) -> bool {
        matches!(self, Self::Deliver | Self::Settle | Self::View)
    }

    const fn tag(self) -> u8 {
        match self {
            Self::Ordered(_) => 0,
            Self::Query => 1,
            Self::QueryAtTime => 2,
            Self::QueryAtVersion(_) => 3,
            Self::History => 4,
            Self::Deliver => 5,
            Self::Settle => 6,
            Self::Outbox => 7,
            Self::QueryFrom(_) => 8,
            Self::Mark(_) => 9,
            Self::Follow => 10,
            Self::View => 11,
            Self::LastView => 12,
        }
    }
}

/// A call as it travels.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The kind of call.
    pub kind: Kind,
    /// The method's number.
    pub method: u32,
    /// As encoded by the macro's code.
    pub arguments: &'a [u8],
}

impl<'a> Call<'a> {
    /// The bytes of a call.
    pub fn encode(kind: Kind, method: u32, arguments: &impl Serialize) -> Vec<u8> {
        Self::encode_with(kind, method, |out| encoding::append(arguments, out))
    }

    /// The same with arguments that `write` appends.
    pub fn encode_with(kind: Kind, method: u32, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = vec![kind.tag()];
        bytes.extend_from_slice(&method.to_le_bytes());
        if let Kind::Ordered(number)
        | Kind::QueryAtVersion(number)
        | Kind::QueryFrom(number)
        | Kind::Mark(number) = kind
        {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        write(&mut bytes);
        bytes
    }

    /// The call that these bytes are; `None` if they are none.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first()?;
        let (method, rest) = rest.split_first_chunk()?;
        let with = |kind: fn(u64) -> Kind| {
            let (number, rest) = rest.split_first_chunk()?;
            Some((kind(u64::from_le_bytes(*number)), rest))
        };
        let (kind, arguments) = match tag {
            0 => with(Kind::Ordered)?,
            1 => (Kind::Query, rest),
            2 => (Kind::QueryAtTime, rest),
            3 => with(Kind::QueryAtVersion)?,
            4 => (Kind::History, rest),
            5 => (Kind::Deliver, rest),
            6 => (Kind::Settle, rest),
            7 => (Kind::Outbox, rest),
            8 => with(Kind::QueryFrom)?,
            9 => with(Kind::Mark)?,
            10 => (Kind::Follow, rest),
            11 => (Kind::View, rest),
            12 => (Kind::LastView, rest),
            _ => return None,
        };
        Some(Self {
            kind,
            method: u32::from_le_bytes(*method),
            arguments,
        })
    }
}

/// The surroundings of a query that depends on the member that answers it.
#[derive(Debug, PartialEq, Eq)]
pub enum Around<'a> {
    /// Nothing: any member answers.
    Nothing,
    /// The method is told its place.
    Placed(Placed),
    /// The method is not called: the state is lent to a query of another shard at this member.
    Lent(Loan<'a>),
    /// The method is not called: the query does not come to this member, and what was lent to it there
    /// ends. Member and ticket.
    Returned(u16, u64),
    /// The method is a field, and the arguments are a [`Look`](crate::look::Look).
    Look,
}

/// The place of a query, as its caller knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Which member is to answer.
    pub member: u16,
    /// All members of the shard, ascending.
    pub members: Vec<u16>,
    /// The number of the shard in its subgroup.
    pub shard: u32,
    /// States of siblings were lent under this number, unless it is 0.
    pub ticket: u64,
}

/// A state that is lent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loan<'a> {
    /// At which member.
    pub member: u16,
    /// The query that it is lent to.
    pub ticket: u64,
    /// The subgroup whose shard lends it.
    pub subgroup: &'a str,
}

const PLACED: u8 = 64;
const LENT: u8 = 65;
const LOOK: u8 = 66;
const RETURNED: u8 = 67;

impl<'a> Around<'a> {
    /// A call with this around it.
    #[must_use]
    pub fn put(&self, call: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Nothing => {}
            Self::Placed(place) => {
                bytes.push(PLACED);
                encoding::append(place, &mut bytes);
            }
            Self::Lent(loan) => {
                bytes.push(LENT);
                encoding::append(loan, &mut bytes);
            }
            Self::Returned(member, ticket) => {
                bytes.push(RETURNED);
                encoding::append(&(member, ticket), &mut bytes);
            }
            Self::Look => bytes.push(LOOK),
        }
        bytes.extend_from_slice(call);
        bytes
    }

    /// The surroundings of a call, and the call.
    #[must_use]
    pub fn take(bytes: &'a [u8]) -> Option<(Self, Call<'a>)> {
        let (around, call) = match bytes.split_first()? {
            (&PLACED, rest) => {
                let (place, call) = encoding::split_first(rest)?;
                (Self::Placed(place), call)
            }
            (&LENT, rest) => {
                let (loan, call) = encoding::split_first(rest)?;
                (Self::Lent(loan), call)
            }
            (&RETURNED, rest) => {
                let ((member, ticket), call) = encoding::split_first(rest)?;
                (Self::Returned(member, ticket), call)
            }
            (&LOOK, call) => (Self::Look, call),
            _ => (Self::Nothing, bytes),
        };
        Some((around, Call::decode(call)?))
    }
}

/// Which hand-offs a call has made: destination and number.
pub type Made = Vec<(String, u64)>;

/// A value of a field's past: the version that made it, its time, its encoding.
pub type Told = (u64, u64, Option<Vec<u8>>);

/// Why the service itself did not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// It has no such method, or none that takes these arguments.
    Schema,
    /// Too many hand-offs of the shard wait.
    Busy,
    /// The arguments are longer than a service that hands calls off takes.
    TooLarge {
        /// Their length.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// An earlier hand-off of the same source has not been executed.
    Early {
        /// The last one that was.
        executed: u64,
    },
    /// A handler panicked.
    Panicked {
        /// Its method.
        method: String,
        /// The version before.
        version: u64,
        /// The text of the panic.
        message: String,
        /// Whether the shard has stopped for that; a query harms nothing.
        stopped: bool,
    },
    /// The caller has seen a time that is too far ahead of the log's clock.
    ClockSkew {
        /// By this many nanoseconds.
        ahead: u64,
    },
    /// That version is not kept any more.
    Trimmed {
        /// The oldest that is.
        version: u64,
        /// Its time.
        time: u64,
    },
    /// Another member answers than the one that was asked for.
    NotThere {
        /// The one that was asked for.
        member: u16,
    },
    /// Too many states are lent.
    NotLent,
    /// One read of the past read too much from the member's disk.
    TooMuchPast,
    /// The answer is longer than any may be. An ordered call was executed.
    LongAnswer {
        /// Its length.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
}

/// No answer of a shard is longer.
pub const ANSWER_BYTES_MAX: usize = 256 << 20;

/// The length of what stands before an answer's value: status, version, time.
const ANSWER_HEAD: usize = 17;

/// Where an answer that is being written begins.
pub struct Answer(usize);

/// Begins an answer; the value is appended to it.
pub fn begin_answer(reply: &mut Vec<u8>) -> Answer {
    let begins = reply.len();
    reply.resize(begins + ANSWER_HEAD, 0);
    Answer(begins)
}

impl Answer {
    /// Names version, time and hand-offs.
    pub fn end(self, reply: &mut Vec<u8>, version: u64, time: u64, made: &Made) {
        let value = reply.len();
        if !made.is_empty() {
            encoding::append(made, reply);
        }
        let length = (reply.len() - value) as u32;
        reply.extend_from_slice(&length.to_le_bytes());
        let head = &mut reply[self.0..self.0 + ANSWER_HEAD];
        head[1..9].copy_from_slice(&version.to_le_bytes());
        head[9..17].copy_from_slice(&time.to_le_bytes());
    }
}

/// Answers with a fault.
pub fn put_fault(reply: &mut Vec<u8>, fault: &Fault) {
    reply.push(1);
    encoding::append(fault, reply);
}

/// An answer that no shard gave.
#[must_use]
pub fn answer_of(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let answer = begin_answer(&mut bytes);
    encoding::append(value, &mut bytes);
    answer.end(&mut bytes, 0, 0, &Made::new());
    bytes
}

/// A value with the version and the time at which it was true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done<R> {
    /// The answer.
    pub value: R,
    /// The shard's newest version behind the call.
    pub version: Version,
    /// Its time by the log's clock; of a call that made no version the time of the call.
    pub time: Time,
}

/// Value and hand-offs of what stands behind an answer's head.
fn split_hand_offs(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (rest, length) = rest.split_last_chunk()?;
    let length = u32::from_le_bytes(*length) as usize;
    rest.split_at_checked(rest.len().checked_sub(length)?)
}

/// Whether the call has made any.
pub fn has_hand_offs(answer: &[u8]) -> bool {
    answer.len() > ANSWER_HEAD && answer[0] == 0 && !answer.ends_with(&[0; 4])
}

/// The hand-offs that a call has made, if it was answered.
pub fn hand_offs_of(answer: &[u8]) -> Made {
    let rest = answer.get(ANSWER_HEAD..).filter(|_| answer[0] == 0);
    let made = rest.and_then(split_hand_offs).map(|(_, made)| made);
    let made = made.filter(|made| !made.is_empty());
    made.and_then(encoding::decode).unwrap_or_default()
}

/// The time in an answer, if it is one.
pub fn time_of(answer: &[u8]) -> Option<u64> {
    let head = answer.get(..ANSWER_HEAD).filter(|head| head[0] == 0)?;
    head[9..]
        .first_chunk()
        .map(|time| u64::from_le_bytes(*time))
}

/// An answer whose value is of no interest, whatever it is.
#[derive(Debug)]
pub struct Anything;

impl<'de> Deserialize<'de> for Anything {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Ok(Self)
    }
}

/// An answer with its value.
///
/// # Errors
/// The call's own, or [`CallError::Schema`] when the bytes are no such answer.
pub fn read_answer<R: serde::de::DeserializeOwned>(
    bytes: &[u8],
    shard: &str,
) -> Result<Done<R>, CallError> {
    let Done {
        value,
        version,
        time,
    } = open_answer(bytes, shard)?;
    let value = encoding::decode_first(value).ok_or_else(|| CallError::Schema {
        shard: shard.to_owned(),
    })?;
    Ok(Done {
        value,
        version,
        time,
    })
}

/// An answer whose value is still encoded.
pub fn open_answer<'a>(bytes: &'a [u8], shard: &str) -> Result<Done<&'a [u8]>, CallError> {
    let malformed = || CallError::Schema {
        shard: shard.to_owned(),
    };
    match bytes.split_first() {
        Some((0, rest)) if rest.len() + 1 >= ANSWER_HEAD => {
            let (version, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
            let (time, rest) = rest.split_first_chunk().ok_or_else(malformed)?;
            let (value, _) = split_hand_offs(rest).ok_or_else(malformed)?;
            Ok(Done {
                value,
                version: Version(u64::from_le_bytes(*version)),
                time: Time(CommandTime(u64::from_le_bytes(*time))),
            })
        }
        Some((1, fault)) => {
            let fault = encoding::decode(fault).ok_or_else(malformed)?;
            Err(CallError::of_fault(fault, shard))
        }
        _ => Err(malformed()),
    }
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is executing a handler, which must not wait for another.
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// Executes a handler; a panic is given back as its text.
pub fn guarded<T>(handler: impl FnOnce() -> T) -> Result<T, String> {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _leave = Leave(INSIDE.replace(true));
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(handler));
    ended.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("without a text").to_owned()
    })
}

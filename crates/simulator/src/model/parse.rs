//! From a call's words to acts on numbered keys.
//!
//! ```text
//!   ["MSET", "a", "1", "b", "2"] ──► Group { join: AllOk, parts: [a: Set 1] [b: Set 2] }
//!   MULTI … EXEC                 ──► several groups, carried out together
//! ```

use super::{Act, Answer, Call, CallError, Count, FewKeys, KeyState, Only, apply};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quintet_replica::Bytes;
use smallvec::{SmallVec, smallvec};

/// Names of keys as numbers.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    numbers: HashMap<Bytes, u32, FixedState>,
}

impl Keys {
    pub fn number(&mut self, key: &Bytes) -> u32 {
        let next = self.numbers.len() as u32;
        *self.numbers.entry(key.clone()).or_insert(next)
    }

    pub fn len(&self) -> usize {
        self.numbers.len()
    }
}

/// How the answers of a command's parts become its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Join {
    One,
    List,
    Sum,
    Ok,
}

/// An act on a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub key: u32,
    pub act: Act,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    pub join: Join,
    pub parts: SmallVec<[Part; 1]>,
}

/// A whole call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Compiled {
    pub groups: SmallVec<[Group; 1]>,
    pub transaction: bool,
    /// Every key once.
    pub keys: FewKeys,
}

impl Group {
    /// Carries the command out on the states of all keys.
    pub fn apply(&self, states: &mut [KeyState]) -> Answer {
        if self.join == Join::One
            && let Some(part) = self.parts.first()
        {
            return apply(&mut states[part.key as usize], &part.act);
        }
        let mut sum = 0;
        let mut answers = Vec::new();
        for part in &self.parts {
            match (self.join, apply(&mut states[part.key as usize], &part.act)) {
                (Join::Sum, Answer::Number(number)) => sum += number,
                // MGET takes what is no text for nothing.
                (Join::List, Answer::Error(_)) => answers.push(Answer::Nil),
                (Join::List, answer) => answers.push(answer),
                _ => {}
            }
        }
        match self.join {
            Join::Sum => Answer::Number(sum),
            Join::List => Answer::List(answers),
            Join::One | Join::Ok => Answer::ok(),
        }
    }
}

fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A word in capitals, when it is short enough to be one.
fn capitals(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(24)]).to_ascii_uppercase()
}

fn pairs(words: &[Bytes]) -> Option<Vec<(Bytes, Bytes)>> {
    let whole = !words.is_empty() && words.len().is_multiple_of(2);
    let pairs = words
        .chunks_exact(2)
        .map(|pair| (pair[0].clone(), pair[1].clone()));
    whole.then(|| pairs.collect())
}

const fn plain_set(value: Bytes) -> Act {
    Act::Set {
        value,
        only: Only::Always,
        count: Count::OkOrNil,
        expires: Some(false),
    }
}

/// SET with its options.
fn set(words: &[Bytes]) -> Option<Act> {
    let (value, options) = words.split_first()?;
    let (mut only, mut count, mut expires) = (Only::Always, Count::OkOrNil, Some(false));
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match capitals(option).as_str() {
            "NX" => only = Only::IfMissing,
            "XX" => only = Only::IfPresent,
            "GET" => count = Count::Before,
            "KEEPTTL" => expires = None,
            "EX" | "PX" | "EXAT" | "PXAT" => {
                integer(options.next()?)?;
                expires = Some(true);
            }
            _ => return None,
        }
    }
    Some(Act::Set {
        value: value.clone(),
        only,
        count,
        expires,
    })
}

/// The act of a command on one key, `words` without name and key.
fn act(name: &str, words: &[Bytes]) -> Option<Option<Act>> {
    let none = words.is_empty();
    let one = || (words.len() == 1).then(|| words[0].clone());
    let two = || (words.len() == 2).then(|| (words[0].clone(), words[1].clone()));
    let many = || (!none).then(|| words.to_vec());
    let plain = |act: Act| none.then_some(act);
    Some(match name {
        "GET" => plain(Act::Get),
        "STRLEN" => plain(Act::StringLength),
        "TYPE" => plain(Act::Kind),
        "TTL" | "PTTL" => plain(Act::Ttl),
        "SET" => set(words),
        "SETNX" => one().map(|value| Act::Set {
            value,
            only: Only::IfMissing,
            count: Count::Done,
            expires: Some(false),
        }),
        "GETSET" => one().map(|value| Act::Set {
            value,
            only: Only::Always,
            count: Count::Before,
            expires: Some(false),
        }),
        "SETEX" | "PSETEX" => two().and_then(|(time, value)| {
            integer(&time)?;
            Some(Act::Set {
                value,
                only: Only::Always,
                count: Count::OkOrNil,
                expires: Some(true),
            })
        }),
        "CAS" => two().map(|(expected, new)| Act::CompareAndSet { expected, new }),
        "GETDEL" => plain(Act::GetDelete),
        "APPEND" => one().map(Act::Append),
        "INCR" => plain(Act::Add(1)),
        "DECR" => plain(Act::Add(-1)),
        "INCRBY" => one().and_then(|by| integer(&by)).map(Act::Add),
        "DECRBY" => one()
            .and_then(|by| integer(&by)?.checked_neg())
            .map(Act::Add),
        "EXPIRE" | "PEXPIRE" | "EXPIREAT" | "PEXPIREAT" => {
            // A deadline that has passed already deletes the key.
            let act = |time: i64| if time > 0 { Act::Expire } else { Act::Delete };
            one().and_then(|time| integer(&time)).map(act)
        }
        "PERSIST" => plain(Act::Persist),
        "HSET" => pairs(words).map(Act::HashSet),
        "HSETNX" => two().map(|(field, value)| Act::HashSetMissing(field, value)),
        "HGET" => one().map(Act::HashGet),
        "HDEL" => many().map(Act::HashDelete),
        "HLEN" => plain(Act::HashLength),
        "HEXISTS" => one().map(Act::HashExists),
        "HGETALL" => plain(Act::HashGetAll),
        "HINCRBY" => two().and_then(|(field, by)| Some(Act::HashAdd(field, integer(&by)?))),
        "RPUSH" | "LPUSH" => many().map(|values| Act::Push {
            front: name == "LPUSH",
            values,
        }),
        "RPOP" | "LPOP" => plain(Act::Pop {
            front: name == "LPOP",
        }),
        "LLEN" => plain(Act::ListLength),
        "LDIGEST" => plain(Act::ListDigest),
        "LRANGE" => {
            two().and_then(|(from, to)| Some(Act::ListRange(integer(&from)?, integer(&to)?)))
        }
        "LINDEX" => one().and_then(|at| integer(&at)).map(Act::ListIndex),
        "SADD" => many().map(Act::SetAdd),
        "SREM" => many().map(Act::SetRemove),
        "SMEMBERS" => plain(Act::SetMembers),
        "SISMEMBER" => one().map(Act::SetHas),
        "SCARD" => plain(Act::SetSize),
        _ => return None,
    })
}

fn group(command: &[Bytes], keys: &mut Keys) -> Result<Group, CallError> {
    let (name, words) = command.split_first().ok_or(CallError::Empty)?;
    let name = capitals(name);
    let wrong = || CallError::Arguments(name.clone());
    let mut each = |join, words: &[Bytes], act: &Act| {
        let parts: SmallVec<[Part; 1]> = words
            .iter()
            .map(|key| Part {
                key: keys.number(key),
                act: act.clone(),
            })
            .collect();
        (!parts.is_empty())
            .then_some(Group { join, parts })
            .ok_or_else(wrong)
    };
    match name.as_str() {
        "MGET" => each(Join::List, words, &Act::Get),
        "DEL" | "UNLINK" => each(Join::Sum, words, &Act::Delete),
        "EXISTS" => each(Join::Sum, words, &Act::Exists),
        "WATCH" => each(Join::Ok, words, &Act::Watch),
        "UNWATCH" if words.is_empty() => Ok(Group {
            join: Join::Ok,
            parts: SmallVec::new(),
        }),
        "MSET" => {
            let parts = pairs(words)
                .ok_or_else(wrong)?
                .into_iter()
                .map(|(key, value)| Part {
                    key: keys.number(&key),
                    act: plain_set(value),
                });
            Ok(Group {
                join: Join::Ok,
                parts: parts.collect(),
            })
        }
        _ => {
            let (key, words) = words.split_first().ok_or_else(|| match act(&name, &[]) {
                Some(_) => wrong(),
                None => CallError::Unknown(name.clone()),
            })?;
            let act = act(&name, words).ok_or_else(|| CallError::Unknown(name.clone()))?;
            Ok(Group {
                join: Join::One,
                parts: smallvec![Part {
                    key: keys.number(key),
                    act: act.ok_or_else(wrong)?,
                }],
            })
        }
    }
}

/// Compiles a call.
pub(crate) fn compile(call: &Call, keys: &mut Keys) -> Result<Compiled, CallError> {
    let groups: SmallVec<[Group; 1]> = call
        .commands
        .iter()
        .map(|command| group(command, keys))
        .collect::<Result<_, _>>()?;
    if groups.is_empty() && !call.transaction {
        return Err(CallError::Empty);
    }
    let parts = groups.iter().flat_map(|group| &group.parts);
    if call.transaction && parts.clone().any(|part| part.act == Act::Watch) {
        return Err(CallError::Arguments("MULTI".to_owned()));
    }
    let mut touched: FewKeys = groups
        .iter()
        .flat_map(|group| &group.parts)
        .map(|part| part.key)
        .collect();
    touched.sort_unstable();
    touched.dedup();
    Ok(Compiled {
        groups,
        transaction: call.transaction,
        keys: touched,
    })
}

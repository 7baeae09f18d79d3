//! Calls of which the types are known at run time only: methods by name, arguments in JSON.

use super::{
    CallError, Done, Pending, Replies, Shard, Time, Version, When, at_members, call,
    calls::Calls,
    entry::ShardEntry,
    follow::Following,
    service::{Method, MethodKind},
};
use quintet_runtime::layout;
use std::sync::Arc;

/// Calls of which the types are known at run time only.
#[derive(Clone, Debug)]
pub(super) struct Callers {
    pub shards: Arc<[ShardEntry]>,
    pub calls: Arc<Calls>,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum JsonError {
    #[error("{0}")]
    Wrong(String),
    #[error("{0}")]
    Call(#[from] CallError),
}

impl Callers {
    /// The shard that `SUBGROUP/NUMBER` or `SUBGROUP:KEY` names.
    pub(super) fn shard(&self, name: &str) -> Result<&ShardEntry, JsonError> {
        let mut shards = self.shards.iter();
        let found = match name.split_once(':') {
            Some((subgroup, key)) => {
                let first = shards.clone().find(|it| *it.known.subgroup == *subgroup);
                let number = first.map(|it| layout::shard_of(key.as_bytes(), it.known.count));
                shards.find(|it| *it.known.subgroup == *subgroup && Some(it.known.number) == number)
            }
            None => shards.find(|it| *it.known.name == *name),
        };
        found.ok_or_else(|| {
            JsonError::Wrong(format!(
                "there is no shard '{name}'; name one SUBGROUP/NUMBER, or SUBGROUP:KEY"
            ))
        })
    }

    /// The methods of a shard's service.
    pub fn methods(&self, shard: &str) -> Result<&'static [Method], JsonError> {
        Ok(self.shard(shard)?.service.methods)
    }

    /// Follows the notifications of a name in a shard, from a number on.
    pub fn follow(&self, shard: &str, name: &str, from: u64) -> Result<Following, JsonError> {
        let source = self.shard(shard)?.known.source();
        Ok(Following::new(&self.calls, &source, name, from))
    }

    /// Calls a method by name.
    pub fn call(
        &self,
        shard: &str,
        name: &str,
        arguments: &str,
        when: Option<When>,
    ) -> Result<JsonPending, JsonError> {
        let entry = self.shard(shard)?;
        let (service, wrong) = (&entry.service, JsonError::Wrong);
        let read = (service.call_of_json)(name, arguments);
        let read = read.ok_or_else(|| {
            let known: Vec<_> = service.methods.iter().map(|it| it.name).collect();
            let (of, known) = (service.name, known.join(", "));
            wrong(format!(
                "service {of} has no method '{name}'; it has {known}"
            ))
        })?;
        let call = read.map_err(wrong)?;
        let shard: Shard<()> = Shard::new(&self.calls, entry.known.source());
        let shard = shard.when(when);
        let method = at_members::Method {
            number: call.method,
            arguments: call.arguments.clone(),
            is_versioned: service.is_versioned,
        };
        let mut methods = service.methods.iter();
        let has_place = methods.any(|it| it.number == call.method && it.has_place);
        let pending: Asked = match (call.kind, when) {
            (MethodKind::Ordered, None) => {
                Asked::One(shard.order(call.method, |out| out.extend_from_slice(&call.arguments)))
            }
            (MethodKind::Gather, None) => Asked::All(shard.ask_all(method)),
            (MethodKind::Ordered | MethodKind::Gather, Some(_)) => {
                let why = format!("'{name}' is ordered: it is of the present only");
                return Err(wrong(why));
            }
            (MethodKind::View, _) => {
                return Err(wrong(format!("'{name}' is called by the members only")));
            }
            (MethodKind::Query, Some(_)) if !service.is_versioned => {
                return Err(CallError::NotKept.into());
            }
            (MethodKind::Query, _) if has_place => Asked::One(shard.ask_at_place(method)),
            (MethodKind::Query, _) => {
                Asked::One(shard.ask(call.method, |out| out.extend_from_slice(&call.arguments)))
            }
        };
        let (name, to_json) = (entry.known.name.clone(), service.answer_to_json);
        Ok(JsonPending {
            pending,
            name,
            method: call.method,
            to_json,
        })
    }
}

/// The answer or the replies that are waited for.
enum Asked {
    One(Pending<call::Anything>),
    All(Replies<call::Anything>),
}

/// The answer to such a call, on its way.
pub(super) struct JsonPending {
    pending: Asked,
    name: Arc<str>,
    method: u32,
    to_json: fn(u32, &[u8]) -> Option<String>,
}

impl JsonPending {
    /// Waits for it. The replies of members are an array of objects with `member`, and `value` or
    /// `error`.
    pub fn wait(self) -> Result<Done<String>, JsonError> {
        let mut replies = match self.pending {
            Asked::One(pending) => {
                return read(&pending.bytes()?, &self.name, self.method, self.to_json);
            }
            Asked::All(replies) => replies,
        };
        let ends = replies.ends();
        let mut all = Done {
            value: Vec::new(),
            version: Version(0),
            time: Time::default(),
        };
        let mut length = 0;
        while let Some((member, answer)) = replies.next_bytes(ends) {
            let read = answer
                .map_err(JsonError::from)
                .and_then(|bytes| read(&bytes, &self.name, self.method, self.to_json))
                .and_then(|done| {
                    let value = bounded(done.value, length, call::ANSWER_BYTES_MAX)?;
                    length += value.len();
                    Ok(Done { value, ..done })
                });
            let text = match read {
                Ok(done) => {
                    (all.version, all.time) = (done.version, done.time);
                    format!(r#"{{"member":{member},"value":{}}}"#, done.value)
                }
                Err(error) => {
                    let text = serde_json::Value::String(error.to_string());
                    format!(r#"{{"member":{member},"error":{text}}}"#)
                }
            };
            all.value.push((member, text));
        }
        all.value.sort_unstable();
        let texts: Vec<_> = all.value.into_iter().map(|(_, text)| text).collect();
        Ok(Done {
            value: format!("[{}]", texts.join(",")),
            version: all.version,
            time: all.time,
        })
    }
}

fn read(
    bytes: &[u8],
    name: &str,
    method: u32,
    to_json: fn(u32, &[u8]) -> Option<String>,
) -> Result<Done<String>, JsonError> {
    let done = call::open_answer(bytes, name)?;
    let value = to_json(method, done.value);
    let value =
        value.ok_or_else(|| JsonError::Wrong("the answer cannot be written in JSON".to_owned()))?;
    let value = bounded(value, 0, call::ANSWER_BYTES_MAX)?;
    Ok(Done {
        value,
        version: done.version,
        time: done.time,
    })
}

/// A text, unless it is too long together with as many bytes before it.
fn bounded(text: String, before: usize, bytes_max: usize) -> Result<String, CallError> {
    let bytes = before + text.len();
    match bytes > bytes_max {
        true => Err(CallError::LongAnswer { bytes, bytes_max }),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_bounded_together() {
        let text = || "[1]".to_owned();
        assert_eq!(bounded(text(), 0, 3), Ok(text()));
        let refused = CallError::LongAnswer {
            bytes: 4,
            bytes_max: 3,
        };
        assert_eq!(bounded(text(), 1, 3), Err(refused));
    }
}

//! Calls of which the types are known at run time only: methods by name, arguments in JSON.

use super::{
    CallError, Done, Pending, Shard, When, call,
    calls::Calls,
    entry::ShardEntry,
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
    fn shard(&self, name: &str) -> Result<&ShardEntry, JsonError> {
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

    /// Calls a method by name.
    pub fn call(
        &self,
        shard: &str,
        method: &str,
        arguments: &str,
        when: Option<When>,
    ) -> Result<JsonPending, JsonError> {
        let entry = self.shard(shard)?;
        let (service, wrong) = (&entry.service, JsonError::Wrong);
        let read = (service.call_of_json)(method, arguments);
        let read = read.ok_or_else(|| {
            let known: Vec<_> = service.methods.iter().map(|it| it.name).collect();
            let (of, known) = (service.name, known.join(", "));
            wrong(format!(
                "service {of} has no method '{method}'; it has {known}"
            ))
        })?;
        let call = read.map_err(wrong)?;
        let shard: Shard<()> = Shard::new(&self.calls, entry.known.source());
        let shard = shard.when(when);
        let pending: Pending<call::Anything> = match (call.kind, when) {
            (MethodKind::Ordered, None) => {
                shard.order(call.method, |out| out.extend_from_slice(&call.arguments))
            }
            (MethodKind::Ordered, Some(_)) => {
                let why = format!("'{method}' is ordered: it changes the present only");
                return Err(wrong(why));
            }
            (MethodKind::Query, Some(_)) if !service.is_versioned => {
                return Err(CallError::NotKept.into());
            }
            (MethodKind::Query, _) => {
                shard.ask(call.method, |out| out.extend_from_slice(&call.arguments))
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

/// The answer to such a call, on its way.
pub(super) struct JsonPending {
    pending: Pending<call::Anything>,
    name: Arc<str>,
    method: u32,
    to_json: fn(u32, &[u8]) -> Option<String>,
}

impl JsonPending {
    /// Waits for it.
    pub fn wait(self) -> Result<Done<String>, JsonError> {
        let bytes = self.pending.bytes()?;
        let done = call::open_answer(&bytes, &self.name)?;
        let value = (self.to_json)(self.method, done.value);
        let value = value
            .ok_or_else(|| JsonError::Wrong("the answer cannot be written in JSON".to_owned()))?;
        Ok(Done {
            value,
            version: done.version,
            time: done.time,
        })
    }
}

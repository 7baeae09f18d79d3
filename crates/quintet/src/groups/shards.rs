//! The shards of a group by their names, for its members and for clients elsewhere.

use super::{
    CallError, Follower, Shard, Time,
    calls::{Calls, Source},
};
use quintet_groups::{Methods, service::terms_of};
use quintet_replica::{CommandTime, GroupId};
use quintet_runtime::layout;
use std::{sync::Arc, time::SystemTime};

/// A shard as it is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub subgroup: Arc<str>,
    pub number: usize,
    /// How many shards its subgroup has.
    pub count: usize,
    /// SUBGROUP/NUMBER.
    pub name: Arc<str>,
    pub group: GroupId,
    /// The name of its service.
    pub service: String,
    /// A number of the signatures of its methods.
    pub terms: u32,
    /// The subgroups of which it reads the shards with its number.
    pub reads: Vec<String>,
}

impl Known {
    pub fn source(&self) -> Source {
        Source {
            name: self.name.clone(),
            group: self.group,
            number: self.number,
            reads: self.reads.clone().into(),
        }
    }

    pub fn new(subgroup: &str, (number, count): (usize, usize), group: GroupId) -> Self {
        Self {
            subgroup: subgroup.into(),
            number,
            count,
            name: format!("{subgroup}/{number}").into(),
            group,
            service: String::new(),
            terms: 0,
            reads: Vec::new(),
        }
    }
}

impl Known {
    /// As a server tells it to clients.
    pub fn to_text(&self) -> String {
        let Self {
            count,
            name,
            service,
            terms,
            reads,
            ..
        } = self;
        let mut text = format!("{} {name} {count} {service} {terms}", self.group.0);
        for subgroup in reads {
            text.push(' ');
            text.push_str(subgroup);
        }
        text
    }

    /// From such a text.
    pub fn from_text(text: &str) -> Option<Self> {
        let words: Vec<_> = text.split(' ').collect();
        let [group, name, count, service, terms, reads @ ..] = &words[..] else {
            return None;
        };
        let (subgroup, number) = name.rsplit_once('/')?;
        let numbers = (number.parse().ok()?, count.parse().ok()?);
        Some(Self {
            service: (*service).to_owned(),
            terms: terms.parse().ok()?,
            reads: reads.iter().map(|it| (*it).to_owned()).collect(),
            ..Self::new(subgroup, numbers, GroupId(group.parse().ok()?))
        })
    }
}

/// The shards of a group: handles by name, or by a key.
#[derive(Debug)]
pub struct Shards {
    pub(super) known: Vec<Known>,
    pub(super) calls: Arc<Calls>,
}

impl Shards {
    /// A handle of the shard `SUBGROUP/NUMBER`.
    ///
    /// # Errors
    /// [`CallError::NoSuchShard`], or [`CallError::Schema`] where its service has other methods.
    pub fn shard<S: Methods>(&self, subgroup: &str, number: usize) -> Result<Shard<S>, CallError> {
        let mut shards = self.of::<S>(subgroup);
        let known = shards.find(|known| known.number == number);
        let known = known.ok_or_else(|| CallError::NoSuchShard {
            shard: format!("{subgroup}/{number}"),
            service: S::NAME,
        })?;
        if known.terms != terms_of::<S>() {
            return Err(CallError::Schema {
                shard: known.name.to_string(),
            });
        }
        Ok(Shard::new(&self.calls, known.source()))
    }

    /// A handle of the shard of a subgroup that has this key: CRC-32C of the key modulo the number of
    /// shards.
    ///
    /// # Errors
    /// As [`Self::shard`].
    pub fn shard_of<S: Methods>(
        &self,
        subgroup: &str,
        key: impl AsRef<[u8]>,
    ) -> Result<Shard<S>, CallError> {
        let count = self.of::<S>(subgroup).next().map_or(1, |it| it.count);
        self.shard(subgroup, layout::shard_of(key.as_ref(), count))
    }

    /// Handles of all shards of a subgroup, in their order.
    ///
    /// # Errors
    /// As [`Self::shard`].
    pub fn all<S: Methods>(&self, subgroup: &str) -> Result<Vec<Shard<S>>, CallError> {
        let count = self.of::<S>(subgroup).count().max(1);
        let shards = (0..count).map(|number| self.shard(subgroup, number));
        shards.collect()
    }

    fn of<S: Methods>(&self, subgroup: &str) -> impl Iterator<Item = &Known> {
        let is_it = move |known: &&Known| *known.subgroup == *subgroup && known.service == S::NAME;
        self.known.iter().filter(is_it)
    }

    /// Follows the notifications of this name in all shards, from now on
    /// ([`CallContext::notify`](super::CallContext::notify)).
    ///
    /// # Errors
    /// See [`CallError`]: when no shard answers.
    pub fn follow(&self, name: &str) -> Result<Follower, CallError> {
        Follower::new(&self.calls, name)
    }

    /// A time for queries of several shards: everything that this program was told before is in their
    /// states at it. Queries of one time at all shards are one consistent cut.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::from(SystemTime::now()).max(Time(CommandTime(self.calls.seen())))
    }
}

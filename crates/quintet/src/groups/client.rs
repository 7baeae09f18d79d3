//! A client of a group that is no member of it.

use super::{
    calls::{self, Calls},
    remote::Remote,
    shards::{Known, Shards},
};
use crate::Error;
use std::{ops::Deref, time::Duration};

/// A client of a group elsewhere, by the servers of calls of its members
/// ([`Group::serve_calls`](super::Group::serve_calls)): the same handles of shards as a member has.
///
/// A call whose connection breaks is [`CallError::Uncertain`](super::CallError::Uncertain) if it is
/// ordered and was sent; queries, and calls that were not sent, go to the next server.
#[derive(Debug)]
pub struct Client {
    named: Shards,
}

impl Client {
    /// Connects to the servers at these addresses, and asks the first that answers for the shards.
    ///
    /// # Errors
    /// [`Error::System`] when none answers.
    pub fn connect(addresses: &[impl AsRef<str>]) -> Result<Self, Error> {
        Self::connect_with(addresses, Duration::from_secs(10))
    }

    /// The same with another deadline for a call, as the members have it.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_with(addresses: &[impl AsRef<str>], deadline: Duration) -> Result<Self, Error> {
        let answers_within = calls::timeout(deadline);
        let remotes = (addresses.iter()).map(|it| Remote::new(it.as_ref(), answers_within));
        let remotes: Vec<_> = remotes.collect();
        let mut failed = std::io::Error::other("there is no address");
        for remote in &remotes {
            match remote.shards() {
                Ok(texts) => {
                    let known: Option<Vec<_>> =
                        texts.iter().map(|it| Known::from_text(it)).collect();
                    let Some(known) = known else {
                        failed = std::io::Error::other("it is no server of calls");
                        continue;
                    };
                    let all = known.iter().map(Known::source).collect();
                    let calls = Calls::to_servers(remotes.clone(), all, deadline);
                    let named = Shards { known, calls };
                    return Ok(Self { named });
                }
                Err(error) => failed = error,
            }
        }
        Err(Error::System {
            what: "connecting to a group".to_owned(),
            error: failed,
        })
    }
}

/// Handles of shards.
impl Deref for Client {
    type Target = Shards;

    fn deref(&self) -> &Shards {
        &self.named
    }
}

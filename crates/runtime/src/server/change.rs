//! Changes of a cluster's epoch, as they are asked for over HTTP and by Redis clients.

use serde::{Deserialize, Deserializer, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// A caller waits for a change no longer than this.
pub const CHANGE_MAX: Duration = Duration::from_secs(400);

/// In the answer of a replica that cannot make a change, though another one can.
pub const ASK_ANOTHER: &str = "ask another";

/// The request of `POST /change`: another protocol, other options, or both; or fewer members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    /// The protocol's name; the present one where none is given.
    #[serde(default)]
    pub protocol: Option<String>,
    /// Options with their values. Others keep the values that they have, or where the protocol
    /// changes, have by default.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// The durability from then on: `disk` or `memory`.
    #[serde(default)]
    pub durability: Option<String>,
    /// Members that are removed, by their numbers.
    #[serde(default, deserialize_with = "one_or_more")]
    pub remove: Vec<u16>,
}

/// A number, or a list of them.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u16>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        One(u16),
        More(Vec<u16>),
        None(()),
    }
    Ok(match Given::deserialize(deserializer)? {
        Given::One(id) => vec![id],
        Given::More(ids) => ids,
        Given::None(()) => Vec::new(),
    })
}

impl ChangeRequest {
    /// Whether it only asks how the cluster works.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The contents of `POST /change` and `GET /change`: the cluster's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeReport {
    /// The epoch's number.
    pub epoch: u64,
    /// Its protocol.
    pub protocol: String,
    /// All options of the protocol.
    pub options: BTreeMap<String, String>,
    /// Its durability: `disk` or `memory`.
    #[serde(default)]
    pub durability: String,
    /// Tells what the members have agreed on from all else.
    pub fingerprint: String,
    /// The members.
    #[serde(default)]
    pub members: Vec<MemberReport>,
    /// A change as the replica that was asked knows it: `none`, `ordering` for one that was asked for
    /// here, or `sealed` when the next epoch is about to begin.
    #[serde(default)]
    pub change: String,
}

impl ChangeReport {
    /// Where the members are reached that a new replica may ask: all but the one in whose place it is.
    ///
    /// # Errors
    /// When there is no such member.
    pub fn seeds(&self, place: Option<u16>) -> Result<Vec<&str>, String> {
        if let Some(id) = place
            && !self.members.iter().any(|it| it.id == id)
        {
            let all: Vec<_> = self.members.iter().map(|it| it.id.to_string()).collect();
            let all = all.join(", ");
            return Err(format!("there is no replica {id}: they are {all}"));
        }
        let others = self.members.iter().filter(|it| Some(it.id) != place);
        Ok(others.map(|it| &it.peer[..]).collect())
    }

    /// The command line that starts a new replica: in the place of this member, or one more.
    ///
    /// # Errors
    /// When there is no such member.
    pub fn join_line(&self, place: Option<u16>) -> Result<String, String> {
        let mut line = "quintet join".to_owned();
        for seed in self.seeds(place)? {
            line.push_str(&format!(" --seed {seed}"));
        }
        if let Some(id) = place {
            line.push_str(&format!(" --replace {id}"));
        }
        line.push_str(" --dir DIR --peer-listen HOST:PORT");
        Ok(line)
    }
}

/// A member of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its number, which it keeps.
    pub id: u16,
    /// Its identity, which no other replica ever has.
    pub node: String,
    /// `voter`: it counts in quorums; `learner`: it gets the state to become one.
    pub role: String,
    /// Where its peers reach it.
    pub peer: String,
    /// Where its Redis clients connect, if that is known.
    pub redis: Option<String>,
    /// Whether it is known to have the state, so that it counts; a proxy does not know.
    #[serde(default)]
    pub has_state: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_to_be_removed_are_a_number_or_a_list() {
        let read = |text: &str| serde_json::from_str::<ChangeRequest>(text).map(|it| it.remove);
        assert_eq!(read(r#"{"remove": 4}"#).ok(), Some(vec![4]));
        assert_eq!(read(r#"{"remove": [1, 3]}"#).ok(), Some(vec![1, 3]));
        assert_eq!(read(r#"{"remove": null}"#).ok(), Some(Vec::new()));
        assert_eq!(read("{}").ok(), Some(Vec::new()));
        assert!(read(r#"{"remove": "4"}"#).is_err());
    }
}

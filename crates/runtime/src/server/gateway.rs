//! The Redis server without its sockets.

use super::{Counters, GatewayConfig, NodeView};
use bytes::BytesMut;
use quintet_replica::{BatchId, FrontendId, Outcome, Submission, Time};
use std::net::SocketAddr;

/// A connection's number; small, and used again after the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub usize);

/// See the module.
#[derive(Debug)]
pub struct Gateway {
    config: GatewayConfig,
    frontend: FrontendId,
    view: NodeView,
    counters: Counters,
    connections: Vec<Option<(BytesMut, BytesMut)>>,
    shutting_down: bool,
}

impl Gateway {
    /// A gateway without connections. `seed` must be different at every start of the process.
    #[must_use]
    pub fn new(config: GatewayConfig, frontend: FrontendId, seed: u64) -> Self {
        let _ = seed;
        Self {
            config,
            frontend,
            view: NodeView::default(),
            counters: Counters::default(),
            connections: Vec::new(),
            shutting_down: false,
        }
    }

    /// The id that it puts into its batches.
    #[must_use]
    pub const fn frontend(&self) -> FrontendId {
        self.frontend
    }

    /// A client has connected.
    ///
    /// # Errors
    /// What to write to it before closing, when it cannot be served.
    pub fn connect(&mut self, now: Time, peer: SocketAddr) -> Result<ConnectionId, Vec<u8>> {
        let _ = (now, peer);
        if self.connections.len() >= self.config.connections_max {
            return Err(b"-ERR max number of clients reached\r\n".to_vec());
        }
        self.connections.push(Some((BytesMut::new(), BytesMut::new())));
        Ok(ConnectionId(self.connections.len() - 1))
    }

    /// Where to append what the client sent; call [`Self::on_input`] afterwards.
    ///
    /// # Panics
    /// When the connection is not open.
    pub fn input(&mut self, id: ConnectionId) -> &mut BytesMut {
        &mut self.connections[id.0].as_mut().expect("the connection is open").0
    }

    /// Bytes were appended to the connection's input.
    pub fn on_input(&mut self, id: ConnectionId, now: Time) {
        let _ = (id, now);
    }

    /// The client has gone; its id is not used again before its request in flight has ended.
    pub fn on_closed(&mut self, id: ConnectionId) {
        self.connections[id.0] = None;
    }

    /// Builds at most one ordered and one linearizable batch from what clients have sent. Call
    /// it when all readable sockets have been read, and again after [`Self::on_done`]. `clock_ns`
    /// is nanoseconds since the Unix epoch.
    pub fn collect(&mut self, now: Time, clock_ns: u64, submissions: &mut Vec<Submission>) {
        let _ = (now, clock_ns, submissions);
    }

    /// A batch is finished.
    pub fn on_done(&mut self, batch: BatchId, outcome: Outcome, now: Time) {
        let _ = (batch, outcome, now);
    }

    /// What is to be written to the client; the event loop takes from its front.
    ///
    /// # Panics
    /// When the connection is not open.
    pub fn output(&mut self, id: ConnectionId) -> &mut BytesMut {
        &mut self.connections[id.0].as_mut().expect("the connection is open").1
    }

    /// Takes the connections whose output or state ([`Self::should_close`],
    /// [`Self::wants_read`]) has changed since the last call.
    pub fn take_dirty(&mut self, dirty: &mut Vec<ConnectionId>) {
        let _ = dirty;
    }

    /// Whether the connection is to be closed as soon as its output has been written.
    #[must_use]
    pub fn should_close(&self, id: ConnectionId) -> bool {
        let _ = id;
        false
    }

    /// Whether more input of this connection is welcome now.
    #[must_use]
    pub fn wants_read(&self, id: ConnectionId) -> bool {
        let _ = id;
        true
    }

    /// When [`Self::on_time`] has something to do at the latest.
    #[must_use]
    pub const fn next_deadline(&self) -> Time {
        Time::NEVER
    }

    /// Time has come; call [`Self::collect`] and [`Self::take_dirty`] afterwards.
    pub fn on_time(&mut self, now: Time) {
        let _ = now;
    }

    /// The node's state has changed.
    pub fn set_view(&mut self, view: NodeView) {
        self.view = view;
    }

    /// No new commands from now on; what is under way is finished, then connections are closed.
    pub fn begin_shutdown(&mut self) {
        self.shutting_down = true;
    }

    /// Whether nothing is under way and no reply waits to be written.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.shutting_down
    }

    /// What it has counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }
}

//! Whose connections are taken, and when those that are of no use end.
//!
//! ```text
//!   connect ──► all? one address's? ──► without a password yet? the oldest such one goes
//!   on_time ──► silent for too long, a half command, no password in time: closed
//! ```

use super::{
    connection::{Connection, Phase},
    gateway::Gateway,
    guesses::{Guesses, source_of},
};
use bytes::BytesMut;
use foldhash::quality::FixedState;
use hashbrown::HashMap;
use quintet_replica::Time;
use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Silent connections are looked for at most this often, however many there are.
const SCAN_EVERY: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub(super) struct Admission {
    /// Open connections by where they come from.
    by_address: HashMap<IpAddr, usize, FixedState>,
    /// Connections that had not authenticated when they came, oldest first, with the client's
    /// number: the place may be another's by now.
    unauthenticated: VecDeque<(usize, u64)>,
    pub guesses: Guesses,
}

impl Admission {
    pub fn new(seed: u64) -> Self {
        Self {
            by_address: HashMap::with_hasher(FixedState::with_seed(seed)),
            unauthenticated: VecDeque::new(),
            guesses: Guesses::new(seed),
        }
    }
}

impl Gateway {
    /// Whether a connection from there is taken now.
    pub(super) fn check_admission(&self, peer: SocketAddr) -> Result<(), &'static [u8]> {
        if self.shutting_down {
            return Err(b"-ERR the server is shutting down\r\n");
        }
        let most = self.config.connections_max;
        if self.counters.connections_open >= most as u64 {
            return Err(b"-ERR max number of clients reached\r\n");
        }
        let source = source_of(peer.ip());
        let most_of_one = match self.config.per_address_max {
            Some(0) => usize::MAX,
            Some(most) => most,
            None if source.is_loopback() => usize::MAX,
            None => (most / 2).max(1),
        };
        let of_one = self.admission.by_address.get(&source);
        if of_one.is_some_and(|count| *count >= most_of_one) {
            return Err(b"-ERR max number of clients reached for this address\r\n");
        }
        Ok(())
    }

    /// A connection has been taken.
    pub(super) fn on_admitted(&mut self, index: usize, client: u64, peer: SocketAddr) {
        let source = source_of(peer.ip());
        *self.admission.by_address.entry(source).or_insert(0) += 1;
        if self.config.password.is_none() {
            return;
        }
        self.expect_password();
        let most = self.config.unauthenticated_max;
        let most = most.min(self.config.connections_max / 2).max(1);
        if self.admission.unauthenticated.len() >= most {
            let mut waiting = std::mem::take(&mut self.admission.unauthenticated);
            waiting.retain(|(index, client)| self.is_unauthenticated(*index, *client));
            if waiting.len() >= most
                && let Some((oldest, _)) = waiting.pop_front()
                && let Some(mut connection) = self.connections[oldest].take()
            {
                self.close_useless(oldest, &mut connection);
                self.connections[oldest] = Some(connection);
            }
            self.admission.unauthenticated = waiting;
        }
        self.admission.unauthenticated.push_back((index, client));
    }

    fn is_unauthenticated(&self, index: usize, client: u64) -> bool {
        let connection = self.connections.get(index).and_then(Option::as_deref);
        connection.is_some_and(|connection| {
            let this = connection.client.id == client && !connection.client.authenticated;
            this && !connection.gone && !connection.closing
        })
    }

    /// A connection has ended.
    pub(super) fn on_left(&mut self, peer: SocketAddr) {
        let source = source_of(peer.ip());
        if let Some(count) = self.admission.by_address.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.admission.by_address.remove(&source);
            }
        }
    }

    /// From now on a connection has a limited time to authenticate.
    pub(super) fn expect_password(&mut self) {
        let deadline = self.config.auth_deadline;
        if self.config.password.is_some() && !deadline.is_zero() {
            self.scan_at = self.scan_at.min(self.now + deadline);
        }
    }

    fn close_useless(&mut self, index: usize, connection: &mut Connection) {
        connection.closing = true;
        connection.input = BytesMut::new();
        self.counters.connections_dropped += 1;
        self.mark_dirty(index, connection);
    }

    /// Closes connections that have said nothing, or not the password, for too long.
    pub(super) fn close_silent(&mut self, now: Time) {
        let idle_max = self.config.idle_max;
        self.scan_at = Time::NEVER;
        for index in 0..self.connections.len() {
            let Some(mut connection) = self.connections[index].take() else {
                continue;
            };
            if connection.phase == Phase::Free && !connection.gone && !connection.closing {
                let ends = self.ends_at(&connection);
                if ends <= now {
                    self.close_useless(index, &mut connection);
                } else {
                    self.scan_at = self.scan_at.min(ends);
                }
            } else if !idle_max.is_zero() {
                self.scan_at = self.scan_at.min(now + idle_max);
            }
            self.connections[index] = Some(connection);
        }
        self.scan_at = self.scan_at.max(now + SCAN_EVERY);
    }

    /// When a connection that waits for its client is closed.
    fn ends_at(&self, connection: &Connection) -> Time {
        let client = &connection.client;
        let after = |since: Time, limit: Duration| match limit.is_zero() {
            true => Time::NEVER,
            false => since + limit,
        };
        let mut ends = after(client.last_input, self.config.idle_max);
        if !connection.input.is_empty() || connection.parser.is_inside() {
            ends = ends.min(after(client.last_input, self.config.partial_max));
        }
        if !client.authenticated {
            ends = ends.min(after(
                client.unauthenticated_since,
                self.config.auth_deadline,
            ));
        }
        ends
    }

    /// After how much silence TCP asks whether a client still exists; zero is "never".
    #[must_use]
    pub const fn tcp_keepalive(&self) -> Duration {
        self.config.tcp_keepalive
    }
}

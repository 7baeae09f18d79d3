//! The sockets of Redis clients: bytes between them and the gateway, nothing else.

use crate::{
    mail::{Mail, Mailer, Waiter},
    server::{ConnectionId, Gateway, Output},
    system::read_into,
};
use mio::{
    Interest, Registry, Token,
    event::Event,
    net::{TcpListener, TcpStream},
};
use quintet_replica::{Submission, Time};
use rustix::net::sockopt;
use std::{
    io::{self, Write},
    time::Duration,
};

const PORTION_MIN: usize = 2 << 10;
const PORTION_MAX: usize = 64 << 10;
/// The most bytes taken from one client in one turn.
const TURN_BYTES_MAX: usize = 256 << 10;
/// The most bytes written to one client in one turn.
const TURN_WRITTEN_MAX: usize = 1 << 20;
/// The most connections accepted in one turn.
const ACCEPTS_MAX: usize = 64;
/// Memory of replies that have been written is given back when there was more of it than this.
const OUTPUT_KEPT: usize = 64 << 10;
/// When there is no descriptor for a connection, the next try comes after this …
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// … and the next line in the log after this.
const ACCEPT_LOG_EVERY: Duration = Duration::from_secs(10);
/// How many times TCP asks a silent client before it takes it for lost.
const KEEPALIVE_PROBES: u32 = 3;

struct Client {
    stream: TcpStream,
    /// Unread bytes may be there.
    readable: bool,
    /// It stands in the list of those to read.
    queued: bool,
    writable: bool,
    /// It stands in the list of those to write to, with more than could be written in one turn.
    paused: bool,
    /// Its output takes more memory than is kept.
    long_output: bool,
    /// The end of its bytes has been announced, perhaps in one edge with the last of them.
    end_near: bool,
    /// It sends nothing more, but may still read.
    ended: bool,
    /// How much is read at once: grows and shrinks with what the client sends.
    portion: usize,
}

/// See the module.
pub(super) struct Clients {
    pub gateway: Gateway,
    mailer: Mailer,
    listener: Option<TcpListener>,
    registry: Registry,
    first_token: usize,
    accepting: bool,
    accept_at: Time,
    accept_log_at: Time,
    clients: Vec<Option<Client>>,
    to_read: Vec<usize>,
    to_write: Vec<usize>,
    dirty: Vec<ConnectionId>,
    pub open: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub accepted: u64,
    pub refused: u64,
}

enum Writing {
    Done,
    /// The rest has to wait for the next turn.
    Paused,
    Blocked,
    Broken,
}

impl Clients {
    /// Serves `listener`; connections get tokens from `first_token` on, it the one below.
    pub fn new(
        (gateway, mailer): (Gateway, Mailer),
        listener: std::net::TcpListener,
        registry: Registry,
        first_token: usize,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        registry.register(&mut listener, Token(first_token - 1), Interest::READABLE)?;
        Ok(Self {
            gateway,
            mailer,
            listener: Some(listener),
            registry,
            first_token,
            accepting: true,
            accept_at: Time::NEVER,
            accept_log_at: Time(0),
            clients: Vec::new(),
            to_read: Vec::new(),
            to_write: Vec::new(),
            dirty: Vec::new(),
            open: 0,
            bytes_in: 0,
            bytes_out: 0,
            accepted: 0,
            refused: 0,
        })
    }

    /// Notes what has become possible.
    pub fn on_event(&mut self, event: &Event) {
        let Some(index) = event.token().0.checked_sub(self.first_token) else {
            self.accepting = true;
            return;
        };
        let Some(Some(client)) = self.clients.get_mut(index) else {
            return;
        };
        if event.is_writable() && !client.writable {
            client.writable = true;
            self.to_write.push(index);
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            client.readable = true;
            client.end_near |= event.is_read_closed() || event.is_error();
            self.queue_read(index);
        }
    }

    fn queue_read(&mut self, index: usize) {
        if let Some(client) = &mut self.clients[index]
            && client.readable
            && !client.ended
            && !client.queued
        {
            client.queued = true;
            self.to_read.push(index);
        }
    }

    /// Whether there is something to do without sleeping.
    pub fn busy(&self) -> bool {
        self.accepting || !self.to_read.is_empty() || !self.to_write.is_empty()
    }

    /// Accepts and reads what is there, a bounded amount per connection; how many had something.
    pub fn receive(&mut self, now: Time) -> usize {
        if self.accepting {
            self.accept(now);
        }
        let mut list = std::mem::take(&mut self.to_read);
        let mut count = 0;
        for index in list.drain(..) {
            if let Some(client) = &mut self.clients[index] {
                client.queued = false;
                count += usize::from(self.read(index, now));
            }
        }
        if self.to_read.is_empty() {
            self.to_read = list;
        }
        count
    }

    fn read(&mut self, index: usize, now: Time) -> bool {
        let id = ConnectionId(index);
        let Some(client) = &mut self.clients[index] else {
            return false;
        };
        let mut taken = 0;
        let mut broken = false;
        while client.readable {
            // It is looked at again when the gateway says that this has changed.
            if !self.gateway.wants_read(id) {
                break;
            }
            if taken >= TURN_BYTES_MAX {
                client.queued = true;
                self.to_read.push(index);
                break;
            }
            let wanted = client.portion;
            match read_into(&client.stream, self.gateway.input(id), wanted) {
                Ok(0) => {
                    client.ended = true;
                    client.readable = false;
                }
                Ok(count) => {
                    taken += count;
                    // After a short read the next edge tells of more bytes, and of the end unless
                    // this one has.
                    client.readable = count == wanted || client.end_near;
                    if count == wanted {
                        client.portion = (wanted * 4).min(PORTION_MAX);
                    } else if count < wanted / 8 {
                        client.portion = (wanted / 2).max(PORTION_MIN);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    client.readable = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        self.bytes_in += taken as u64;
        if broken {
            self.close(index);
        } else if client.ended {
            self.gateway.on_input_ended(id, now);
        } else if taken > 0 {
            self.gateway.on_input(id, now);
        }
        taken > 0
    }

    /// Collects batches of what clients want; what they want of the replica itself is asked for.
    pub fn collect(&mut self, now: Time, clock: u64, submissions: &mut Vec<Submission>) {
        self.gateway.collect(now, clock, submissions);
        while let Some((number, request)) = self.gateway.take_change() {
            self.mailer
                .send(Mail::Change(request, Waiter::Client(number)));
        }
    }

    fn accept(&mut self, now: Time) {
        let Some(listener) = &self.listener else {
            self.accepting = false;
            return;
        };
        for _ in 0..ACCEPTS_MAX {
            match listener.accept() {
                Ok((mut stream, address)) => {
                    // Neither changes what is possible, only how fast it is noticed.
                    let _ = stream.set_nodelay(true);
                    let _ = keep_alive(&stream, self.gateway.tcp_keepalive());
                    let id = match self.gateway.connect(now, address) {
                        Ok(id) => id,
                        Err(reason) => {
                            self.refused += 1;
                            // The socket is new, so a short text fits its buffer.
                            let _ = stream.write(&reason);
                            continue;
                        }
                    };
                    let token = Token(self.first_token + id.0);
                    let interest = Interest::READABLE | Interest::WRITABLE;
                    if let Err(error) = self.registry.register(&mut stream, token, interest) {
                        tracing::warn!(%error, "cannot watch a client connection");
                        self.gateway.on_closed(id);
                        continue;
                    }
                    if self.clients.len() <= id.0 {
                        self.clients.resize_with(id.0 + 1, || None);
                    }
                    self.accepted += 1;
                    self.open += 1;
                    self.clients[id.0] = Some(Client {
                        stream,
                        readable: false,
                        queued: false,
                        writable: true,
                        paused: false,
                        long_output: false,
                        end_near: false,
                        ended: false,
                        portion: PORTION_MIN,
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.accepting = false;
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // No descriptor, as a rule: the others keep theirs, and a client in the
                    // listener's queue is taken when one is free.
                    if now >= self.accept_log_at {
                        self.accept_log_at = now + ACCEPT_LOG_EVERY;
                        tracing::warn!(%error, "cannot accept client connections; tried again");
                    }
                    self.accepting = false;
                    self.accept_at = now + ACCEPT_PAUSE;
                    return;
                }
            }
        }
    }

    fn close(&mut self, index: usize) {
        let Some(Some(mut client)) = self.clients.get_mut(index).map(Option::take) else {
            return;
        };
        // The descriptor is closed right after; a failure changes nothing.
        let _ = self.registry.deregister(&mut client.stream);
        self.open -= 1;
        self.gateway.on_closed(ConnectionId(index));
    }

    /// Writes what the gateway has for clients, one write per connection.
    pub fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        self.gateway.take_dirty(&mut dirty);
        for id in dirty.drain(..) {
            // One with much to write has its turn below.
            if !(self.clients[id.0].as_ref()).is_some_and(|client| client.paused) {
                self.flush_client(id.0);
            }
        }
        self.dirty = dirty;
        let mut list = std::mem::take(&mut self.to_write);
        for index in list.drain(..) {
            self.flush_client(index);
        }
        if self.to_write.is_empty() {
            self.to_write = list;
        }
    }

    fn flush_client(&mut self, index: usize) {
        let id = ConnectionId(index);
        let Some(Some(client)) = self.clients.get_mut(index) else {
            return;
        };
        if client.writable {
            let output = self.gateway.output(id);
            let before = output.len();
            let result = write_some(&mut client.stream, output);
            self.bytes_out += (before - output.len()) as u64;
            client.paused = false;
            client.long_output |= before > OUTPUT_KEPT;
            match result {
                Writing::Done => {
                    if std::mem::take(&mut client.long_output) {
                        output.clear();
                    }
                }
                Writing::Paused => {
                    client.paused = true;
                    return self.to_write.push(index);
                }
                Writing::Blocked => client.writable = false,
                Writing::Broken => return self.close(index),
            }
        }
        if self.gateway.should_close(id) {
            return self.close(index);
        }
        let Some(Some(client)) = self.clients.get(index) else {
            return;
        };
        if client.readable && self.gateway.wants_read(id) {
            self.queue_read(index);
        }
    }

    /// When [`Self::on_time`] has something to do.
    pub const fn next_deadline(&self) -> Time {
        self.accept_at
    }

    pub fn on_time(&mut self, now: Time) {
        if self.accept_at <= now {
            self.accept_at = Time::NEVER;
            self.accepting = true;
        }
    }

    /// New clients are rejected from now on.
    pub fn begin_shutdown(&mut self) {
        if let Some(mut listener) = self.listener.take() {
            // It is closed right after; a failure changes nothing.
            let _ = self.registry.deregister(&mut listener);
        }
        self.gateway.begin_shutdown();
    }
}

/// Has TCP ask whether the client still exists after that much silence; zero for never.
fn keep_alive(stream: &TcpStream, after: Duration) -> rustix::io::Result<()> {
    if after.is_zero() {
        return Ok(());
    }
    // The kernel takes no longer times.
    let after = after.clamp(Duration::from_secs(1), Duration::from_secs(32_767));
    let between = (after / KEEPALIVE_PROBES).max(Duration::from_secs(1));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, after)?;
    sockopt::set_tcp_keepintvl(stream, between)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)
}

/// Writes what the client takes, a bounded amount: other clients wait meanwhile.
fn write_some(stream: &mut impl Write, output: &mut Output) -> Writing {
    let mut left = TURN_WRITTEN_MAX;
    while !output.is_empty() {
        if left == 0 {
            return Writing::Paused;
        }
        let first = output.first();
        match stream.write(&first[..first.len().min(left)]) {
            Ok(0) => return Writing::Broken,
            Ok(count) => {
                output.advance(count);
                left -= count;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Writing::Blocked,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Writing::Broken,
        }
    }
    Writing::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_takes_everything_is_written_a_share_per_turn() {
        let mut output = Output::default();
        output.push(&vec![b'x'; TURN_WRITTEN_MAX + 10]);
        let mut taken = Vec::new();
        assert!(matches!(
            write_some(&mut taken, &mut output),
            Writing::Paused
        ));
        assert_eq!(taken.len(), TURN_WRITTEN_MAX);
        assert!(matches!(write_some(&mut taken, &mut output), Writing::Done));
        assert_eq!(taken.len(), TURN_WRITTEN_MAX + 10);
    }
}

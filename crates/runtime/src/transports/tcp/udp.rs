//! Datagrams beside the connections: small frames of the control lane by UDP.
//!
//! ```text
//!   connection up ── Offer{port, place, longest} ──►        over the connection
//!                 ◄─────────── probe, as long as may be ──  datagram
//!                 ── Heard{number, received} ─────────►     over the connection
//!                 ◄══ frames, several to a datagram ══════  as long as probes are heard
//! ```
//!
//! Each side says where it takes datagrams and what they must carry; the other one uses that while
//! it knows that they arrive, and else the connection. So a firewall, a path that carries less than
//! it promised, or a peer that is told to use TCP cost nothing but what datagrams would have
//! saved. A datagram is never answered by a datagram, and without the right token by nothing. Both
//! sides derive the tokens, one for each direction, from the handshake of the connection.

use super::{Connection, HEADER, Kind, Stage, Tcp, exchange::Own};
use crate::{
    metrics::DatagramMetrics,
    system::read_into,
    transports::{
        Arrival,
        af_xdp::{Bypass, DATAGRAM_MAX},
        datagrams::{
            BYTES_MIN, ENVELOPE, Filling, Malformed, Opened, ReplayWindow, carries, probe,
        },
        handshake::LinkKey,
    },
};
use bytes::BytesMut;
use mio::{Interest, Registry, Token, net::UdpSocket};
use quintet_replica::{Frame, Lane, Peer, ReplicaId, Time};
use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

/// How often it is asked whether datagrams arrive.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// How often at first.
const PROBE_FIRST: Duration = Duration::from_millis(20);
/// This many probes go out that often.
const PROBES_FIRST: u32 = 10;
/// A peer that has heard none of this many probes gets no more datagrams.
const UNHEARD_MAX: u32 = 6;
/// The most datagrams taken in one turn.
const TURN_MAX: usize = 1024;
/// The most datagrams that wait to be sent.
const WAITING_MAX: usize = 64;
/// The kernel's buffer for this process in either direction, if it can be set.
const SOCKET_BYTES: usize = 8 << 20;
/// The most that waits of one link for frames of its connection; more would be overtaken by its
/// sender's timeout.
const EARLY_MAX: usize = 4 << 20;
/// Each read gets a part of a buffer of this size.
const READ: usize = 64 << 10;
/// Far above the tokens of all connections, below those of clients.
const TOKEN: usize = 1 << 20;

/// Where the other side takes datagrams.
#[derive(Clone, Copy, Debug)]
struct Far {
    address: SocketAddr,
    token: u128,
    /// The longest that it takes.
    takes: usize,
    /// The longest that it gets.
    most: usize,
}

/// The datagrams beside one connection, which is one of the control lane.
#[derive(Debug)]
pub(super) struct Way {
    /// The token that datagrams from the other side carry.
    token: u128,
    received: u64,
    window: ReplayWindow,
    far: Option<Far>,
    /// A probe was heard lately: frames may go this way.
    open: bool,
    probes: u32,
    /// Probes since one was last heard.
    unheard: u32,
    sent: u64,
    lost: u64,
    filling: Filling,
    /// Datagrams that came before the frames of the connection behind which they were sent.
    early: VecDeque<Opened>,
    early_bytes: usize,
}

/// The datagrams that wait to be sent.
#[derive(Debug)]
struct Waiting {
    connection: usize,
    address: SocketAddr,
    bytes: Vec<u8>,
}

/// The socket that all datagrams go through.
#[derive(Debug)]
pub(super) struct Datagrams {
    socket: UdpSocket,
    /// A way past the socket; what cannot go or come by it uses the socket.
    bypass: Option<Box<Bypass>>,
    address: SocketAddr,
    bytes_max: usize,
    readable: bool,
    incoming: BytesMut,
    /// Connections with something in the datagram that is being filled.
    filled: Vec<usize>,
    waiting: Vec<Waiting>,
    spare: Vec<Vec<u8>>,
    probe_at: Time,
}

impl Datagrams {
    fn new(
        at: SocketAddr,
        bytes_max: usize,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        // The port of TCP, so that one rule of a firewall serves both; another one if it is taken.
        let socket = std::net::UdpSocket::bind(at).or_else(|error| {
            let taken = error.kind() == io::ErrorKind::AddrInUse && at.port() != 0;
            let any = || std::net::UdpSocket::bind((at.ip(), 0));
            if taken { any() } else { Err(error) }
        })?;
        socket.set_nonblocking(true)?;
        // None of these changes what is possible, only how much is lost and how it is noticed.
        let reference = socket2::SockRef::from(&socket);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BYTES)
            .or_else(|_| reference.set_recv_buffer_size(SOCKET_BYTES));
        let _ = reference.set_send_buffer_size(SOCKET_BYTES);
        use rustix::net::sockopt::{Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
        let _ = rustix::net::sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO);
        let _ = rustix::net::sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO);
        let address = socket.local_addr()?;
        if at.port() != 0 && at.port() != address.port() {
            let (wanted, port) = (at.port(), address.port());
            tracing::warn!(
                wanted,
                port,
                "another process has the UDP port of that number"
            );
        }
        let mut socket = UdpSocket::from_std(socket);
        registry.register(&mut socket, token, Interest::READABLE)?;
        Ok(Self {
            socket,
            bypass: None,
            address,
            bytes_max,
            readable: true,
            incoming: BytesMut::new(),
            filled: Vec::new(),
            waiting: Vec::new(),
            spare: Vec::new(),
            probe_at: Time::NEVER,
        })
    }

    pub const fn readable(&self) -> bool {
        self.readable
    }

    /// One datagram that has come.
    fn receive(&mut self, counters: &mut DatagramMetrics) -> Option<BytesMut> {
        // One byte more than may be: what is cut off there is noticed.
        let length = self.bytes_max + 1;
        if self.incoming.capacity() - self.incoming.len() < length {
            self.incoming.reserve(READ.max(length));
        }
        if let Some(bypass) = &mut self.bypass {
            match bypass.receive(&mut self.incoming, length) {
                Some(Ok(())) => {
                    counters.bypassed_in += 1;
                    return Some(self.incoming.split());
                }
                // Not even a datagram; it counts as one that is empty.
                Some(Err(Malformed)) => return Some(BytesMut::new()),
                None => {}
            }
        }
        let mut read = || read_into(&self.socket, &mut self.incoming, length);
        let interrupted = |it: &io::Result<usize>| {
            (it.as_ref()).is_err_and(|error| error.kind() == io::ErrorKind::Interrupted)
        };
        let mut result = read();
        while interrupted(&result) {
            result = read();
        }
        match result {
            Ok(_) => Some(self.incoming.split()),
            Err(error) => {
                self.readable = false;
                if error.kind() != io::ErrorKind::WouldBlock {
                    tracing::debug!(%error, "cannot read datagrams");
                }
                None
            }
        }
    }

    /// An address as this socket has to name it.
    fn reachable(&self, ip: IpAddr, port: u16) -> Option<SocketAddr> {
        let ip = match (self.address.ip(), ip.to_canonical()) {
            (IpAddr::V4(_), ip @ IpAddr::V4(_)) => ip,
            (IpAddr::V4(_), IpAddr::V6(_)) => return None,
            (IpAddr::V6(_), IpAddr::V4(ip)) => ip.to_ipv6_mapped().into(),
            (IpAddr::V6(_), ip) => ip,
        };
        Some(SocketAddr::new(ip, port))
    }
}

/// The token that datagrams of one direction of a link carry: derived by both sides from the
/// handshake, with the receiver's place of the connection in its lowest bits.
fn token(link: &LinkKey, sends: bool, place: u64) -> u128 {
    link.derive("datagrams", sends) & !0xffff | u128::from(place & 0xffff)
}

/// The largest datagram on the path of a connection.
fn path_bytes(connection: &Connection) -> usize {
    use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
    let mtu = ip_mtu(&connection.stream).or_else(|_| ipv6_mtu(&connection.stream));
    mtu.map_or(BYTES_MIN, |mtu| {
        (mtu as usize).saturating_sub(ENVELOPE).max(BYTES_MIN)
    })
}

impl Connection {
    /// Whether a frame goes to the other side by a datagram.
    pub(super) fn goes_by_datagram(&self, header: &[u8; HEADER], frame: &Frame) -> bool {
        let Some(way) = &self.way else {
            return false;
        };
        header[9] == Kind::Node as u8
            && way.open
            && way.far.is_some_and(|far| carries(far.most, frame.len()))
    }

    /// One of the node's frames goes by the connection: what is packed went before it.
    pub(super) fn count_frame(&mut self, index: usize, datagrams: Option<&mut Datagrams>) {
        if let Some((way, datagrams)) = self.way.as_mut().zip(datagrams) {
            way.seal(index, self.frames_out, datagrams);
        }
        self.frames_out += 1;
    }
}

impl Tcp {
    /// From now on small frames go by datagrams of at most this many bytes to who takes them. The
    /// socket is bound where TCP listens; a frontend's when it first sends a datagram.
    ///
    /// # Errors
    /// When there is no socket to be had.
    pub fn use_datagrams(&mut self, bytes_max: usize) -> io::Result<()> {
        self.datagram_bytes_max = Some(bytes_max);
        match &self.listener {
            Some(listener) => self.bind_datagrams(listener.local_addr()?),
            None => Ok(()),
        }
    }

    fn bind_datagrams(&mut self, at: SocketAddr) -> io::Result<()> {
        let Some(bytes_max) = self.datagram_bytes_max else {
            return Ok(());
        };
        let token = self.datagram_token();
        let datagrams = Datagrams::new(at, bytes_max, &self.registry, token)?;
        let address = datagrams.address;
        tracing::info!(%address, "datagrams of peers");
        self.datagrams = Some(Box::new(datagrams));
        Ok(())
    }

    /// As [`Self::use_datagrams`], but past the kernel's sockets where that can be.
    ///
    /// # Errors
    /// When there is no socket to be had, or the kernel, the rights of this process or its interface
    /// do not allow it; the text says what is missing.
    pub fn use_af_xdp(&mut self, bytes_max: usize) -> io::Result<()> {
        self.use_datagrams(bytes_max.min(DATAGRAM_MAX))?;
        let token = self.datagram_token();
        if let Some(datagrams) = &mut self.datagrams {
            let bypass = Bypass::open(datagrams.address, &self.registry, token)?;
            datagrams.bypass = Some(Box::new(bypass));
        }
        Ok(())
    }

    pub(super) const fn datagram_token(&self) -> Token {
        Token(self.first_token + TOKEN)
    }

    /// The socket has something to read.
    pub(super) fn on_datagrams(&mut self) {
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.readable = true;
        }
    }

    // --- agreeing on it ----------------------------------------------------------------------

    /// A control connection has opened: tells the other side where datagrams are taken.
    pub(super) fn offer(&mut self, index: usize, now: Time) {
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        if self.datagrams.is_none() && self.datagram_bytes_max.is_some() {
            let any: IpAddr = match connection.address {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            if let Err(error) = self.bind_datagrams((any, 0).into()) {
                tracing::warn!(%error, "no datagrams: there is no socket to be had");
                self.datagram_bytes_max = None;
            }
        }
        let Some(datagrams) = &self.datagrams else {
            return;
        };
        let (port, takes) = (datagrams.address.port(), datagrams.bytes_max as u32);
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        let Some(link) = connection.handshake.link_key() else {
            return;
        };
        let token = token(link, false, index as u64);
        connection.way = Some(Box::new(Way {
            token,
            received: 0,
            window: ReplayWindow::default(),
            far: None,
            open: false,
            probes: 0,
            unheard: 0,
            sent: 0,
            lost: 0,
            filling: Filling::default(),
            early: VecDeque::new(),
            early_bytes: 0,
        }));
        let place = index as u64;
        self.send_own(index, Own::Offer { place, port, takes }, now);
    }

    /// The other side has said where it takes datagrams.
    pub(super) fn on_offer(
        &mut self,
        index: usize,
        place: u64,
        port: u16,
        takes: usize,
        now: Time,
    ) {
        let (Some(datagrams), Some(connection)) =
            (&mut self.datagrams, &mut self.connections[index])
        else {
            return;
        };
        let address = datagrams.reachable(connection.address.ip(), port);
        let Some(link) = connection.handshake.link_key() else {
            return;
        };
        let token = token(link, true, place);
        let (Some(way), Some(address)) = (&mut connection.way, address) else {
            return;
        };
        // One offer for one connection.
        if way.far.is_none() && port != 0 && takes >= BYTES_MIN {
            way.far = Some(Far {
                address,
                token,
                takes,
                most: BYTES_MIN,
            });
            datagrams.probe_at = now;
        }
    }

    /// The other side has heard a probe: it was the `number`th datagram to it, and `received` have
    /// come.
    pub(super) fn on_heard(&mut self, index: usize, number: u64, received: u64) {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        if let Some(way) = &mut connection.way
            && way.far.is_some()
            && number <= way.sent
        {
            way.open = true;
            way.unheard = 0;
            way.lost = way.lost.max(number.saturating_sub(received));
        }
    }

    /// When [`Self::probe`] has something to do.
    pub(super) fn probe_at(&self) -> Time {
        let datagrams = self.datagrams.as_ref();
        datagrams.map_or(Time::NEVER, |datagrams| datagrams.probe_at)
    }

    /// Asks everybody who takes datagrams whether they arrive, when it is time.
    pub(super) fn probe(&mut self, now: Time) {
        let Some(datagrams) = &mut self.datagrams else {
            return;
        };
        if datagrams.probe_at > now {
            return;
        }
        if let Some(bypass) = &mut datagrams.bypass {
            bypass.look_again();
        }
        let (mut any, mut quick) = (false, false);
        for (index, connection) in self.connections.iter_mut().enumerate() {
            let Some(connection) = connection else {
                continue;
            };
            let bytes = path_bytes(connection).min(datagrams.bytes_max);
            let Some(way) = &mut connection.way else {
                continue;
            };
            if way.open && way.unheard >= UNHEARD_MAX {
                way.open = false;
                let address = connection.address;
                tracing::warn!(%address, "datagrams do not arrive: everything goes by TCP");
            }
            let Some(far) = &mut way.far else {
                continue;
            };
            any = true;
            far.most = bytes.min(far.takes);
            way.probes = way.probes.saturating_add(1);
            way.unheard = way.unheard.saturating_add(1);
            quick |= !way.open && way.probes < PROBES_FIRST;
            way.sent += 1;
            datagrams.waiting.push(Waiting {
                connection: index,
                address: far.address,
                bytes: probe(far.most, far.token, way.sent),
            });
        }
        datagrams.probe_at = match (any, quick) {
            (false, _) => Time::NEVER,
            (true, true) => now + PROBE_FIRST,
            (true, false) => now + PROBE_EVERY,
        };
        self.send_datagrams();
    }

    // --- sending -----------------------------------------------------------------------------

    /// Puts a frame for which [`Connection::goes_by_datagram`] holds beside those that go the same way.
    pub(super) fn pack(&mut self, index: usize, frame: &Frame) {
        let (Some(datagrams), Some(Some(connection))) =
            (&mut self.datagrams, self.connections.get_mut(index))
        else {
            return;
        };
        let Some(way) = &mut connection.way else {
            return;
        };
        let Some(far) = way.far else {
            return;
        };
        if !way.filling.has_room(far.most, frame.len()) {
            way.seal(index, connection.frames_out, datagrams);
        }
        if way.filling.is_empty() {
            datagrams.filled.push(index);
        }
        way.filling.push(frame);
        self.datagram_counters.frames_out += 1;
        if datagrams.waiting.len() >= WAITING_MAX {
            self.send_datagrams();
        }
    }

    /// Sends what has been packed.
    pub(super) fn flush_datagrams(&mut self) {
        let Some(datagrams) = &mut self.datagrams else {
            return;
        };
        if datagrams.filled.is_empty() && datagrams.waiting.is_empty() {
            return;
        }
        let mut filled = std::mem::take(&mut datagrams.filled);
        for index in filled.drain(..) {
            // A connection that is gone has taken what it had with it.
            if let Some(Some(connection)) = self.connections.get_mut(index)
                && let Some(way) = &mut connection.way
            {
                way.seal(index, connection.frames_out, datagrams);
            }
        }
        datagrams.filled = filled;
        self.send_datagrams();
    }

    fn send_datagrams(&mut self) {
        let Some(datagrams) = &mut self.datagrams else {
            return;
        };
        for waiting in datagrams.waiting.drain(..) {
            let past = datagrams.bypass.as_mut();
            if past.is_some_and(|it| it.send(waiting.address, &waiting.bytes)) {
                self.datagram_counters.bypassed_out += 1;
                self.datagram_counters.sent += 1;
                self.datagram_counters.bytes_out += waiting.bytes.len() as u64;
                if datagrams.spare.len() < WAITING_MAX {
                    datagrams.spare.push(waiting.bytes);
                }
                continue;
            }
            match datagrams.socket.send_to(&waiting.bytes, waiting.address) {
                Ok(bytes) => {
                    self.datagram_counters.sent += 1;
                    self.datagram_counters.bytes_out += bytes as u64;
                }
                // Lost, as on any way; what is sent by datagrams is sent again by its protocol.
                Err(error) => {
                    self.datagram_counters.unsent += 1;
                    if let Some(Some(connection)) = self.connections.get_mut(waiting.connection)
                        && let Some(way) = &mut connection.way
                    {
                        way.on_unsent(&error);
                    }
                }
            }
            if datagrams.spare.len() < WAITING_MAX {
                datagrams.spare.push(waiting.bytes);
            }
        }
        if let Some(bypass) = &mut datagrams.bypass {
            bypass.flush();
        }
    }

    // --- receiving ---------------------------------------------------------------------------

    /// Takes what has come, a bounded number.
    pub(super) fn receive_datagrams(&mut self, now: Time) {
        for _ in 0..TURN_MAX {
            let Some(datagrams) = self.datagrams.as_mut().filter(|it| it.readable) else {
                return;
            };
            let Some(bytes) = datagrams.receive(&mut self.datagram_counters) else {
                return;
            };
            self.datagram_counters.received += 1;
            self.datagram_counters.bytes_in += bytes.len() as u64;
            match Opened::read(bytes.freeze()) {
                Ok(opened) => self.on_datagram(opened, now),
                Err(Malformed) => self.datagram_counters.malformed += 1,
            }
        }
    }

    fn on_datagram(&mut self, opened: Opened, now: Time) {
        let index = (opened.token & 0xffff) as usize;
        let (peer, received) = match self.connections.get_mut(index) {
            Some(Some(Connection {
                stage: Stage::Open,
                peer: Some(peer),
                way: Some(way),
                ..
            })) if way.token == opened.token => {
                if !way.window.admit(opened.number) {
                    self.datagram_counters.replayed += 1;
                    return;
                }
                way.received += 1;
                (*peer, way.received)
            }
            _ => {
                self.datagram_counters.stale += 1;
                return;
            }
        };
        // As by the connection: nothing before both lanes are there.
        if let Peer::Replica(id) = peer
            && !self.links[id.index()].up
        {
            self.datagram_counters.stale += 1;
            return;
        }
        if opened.probe {
            let number = opened.number;
            return self.send_own(index, Own::Heard { number, received }, now);
        }
        self.note_node(peer, now);
        if let Some(Some(connection)) = self.connections.get_mut(index)
            && let Some(way) = &mut connection.way
        {
            way.early_bytes += opened.bytes();
            way.early.push_back(opened);
        }
        self.hand_on_datagrams(index, peer);
    }

    /// Hands on the datagrams that wait for no frame of the connection any more.
    pub(super) fn hand_on_datagrams(&mut self, index: usize, peer: Peer) {
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return;
        };
        let come = connection.frames_in;
        let Some(way) = &mut connection.way else {
            return;
        };
        while let Some(first) = way.early.front()
            && (first.behind <= come || way.early_bytes > EARLY_MAX)
            && let Some(opened) = way.early.pop_front()
        {
            way.early_bytes -= opened.bytes();
            for frame in opened {
                self.counters.frames_in += 1;
                self.datagram_counters.frames_in += 1;
                self.arrivals.push_back(Arrival::Frame(peer, frame));
            }
        }
    }

    // --- what is shown -----------------------------------------------------------------------

    /// The counters of datagrams.
    pub const fn datagram_counters(&self) -> DatagramMetrics {
        self.datagram_counters
    }

    /// The datagrams beside the link to a member.
    pub(super) fn way(&self, id: ReplicaId) -> Option<&Way> {
        let control = self.links[id.index()].lanes[Lane::Control as usize]?;
        self.connections[control].as_ref()?.way.as_deref()
    }
}

impl Way {
    /// Whether frames may go this way.
    pub(super) const fn is_open(&self) -> bool {
        self.open
    }

    /// How many datagrams to the other side are known to be lost.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// Closes the datagram that is being filled, sent behind `behind` frames of the connection.
    fn seal(&mut self, index: usize, behind: u64, datagrams: &mut Datagrams) {
        let Some(far) = self.far else {
            return;
        };
        if self.filling.is_empty() {
            return;
        }
        self.sent += 1;
        let spare = datagrams.spare.pop().unwrap_or_default();
        datagrams.waiting.push(Waiting {
            connection: index,
            address: far.address,
            bytes: (self.filling).seal(far.token, self.sent, behind, spare),
        });
    }

    /// A datagram could not be sent.
    fn on_unsent(&mut self, error: &io::Error) {
        // The path carries less than it did: until a shorter probe has been heard, none.
        if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) {
            self.open = false;
        }
    }
}

#[cfg(test)]
#[path = "udp_tests.rs"]
mod tests;

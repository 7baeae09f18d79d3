//! Datagrams past the kernel's sockets: whole frames of the network in memory shared with it.
//!
//! ```text
//!   datagram ──► packet: Ethernet | IPv4 | UDP ──► Card ──► the interface
//!                   ▲ neighbours: whose MAC            │
//!   datagram ◄── packet: lengths, addresses, sums ◄────┘    what an XDP program picked out;
//!                                                           all else is the kernel's
//! ```
//!
//! A [`Card`] is a burst of frames in, a burst of frames out, and a descriptor to sleep on. This
//! module knows nothing else of it, so that another kind of bypass is another card. The one there
//! is, [`socket::Socket`], is an AF_XDP socket on the interface that has this replica's address.
//!
//! The UDP socket stays open beside it. It keeps the port, takes what comes by another queue of the
//! interface, and sends to whom the kernel knows no neighbour (other processes of this host, too).

mod neighbours;
mod packet;
mod program;
mod socket;

use super::datagrams::Malformed;
use bytes::{BufMut, BytesMut};
use mio::{Interest, Registry, Token, unix::SourceFd};
use neighbours::Neighbours;
use packet::{End, HEADERS};
use socket::{FRAME_MAX, Interface, Socket};
use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4},
    os::fd::{AsRawFd, BorrowedFd},
};

/// No datagram is longer: what a frame of the shared memory holds.
pub(crate) const DATAGRAM_MAX: usize = FRAME_MAX - HEADERS;

/// Peers without a neighbour entry that have been told of, at most; of others nothing is said.
const TOLD_MAX: usize = 1024;

/// A carrier of frames between an interface and this process.
trait Card: std::fmt::Debug {
    /// Lends the oldest frame that has come, if there is one, and takes its memory back afterwards.
    fn receive(&mut self, read: &mut dyn FnMut(&[u8])) -> bool;

    /// Lends memory for a frame of this many bytes, at most [`FRAME_MAX`], to be written and sent
    /// with the next [`Self::flush`]; false when there is none.
    fn send(&mut self, length: usize, write: &mut dyn FnMut(&mut [u8])) -> bool;

    /// Sends what has been written, and sees to memory for what comes.
    fn flush(&mut self);

    /// Readable when frames come.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// Datagrams of one UDP port of one interface, past the kernel's sockets.
#[derive(Debug)]
pub(crate) struct Bypass {
    card: Box<dyn Card + Send>,
    ours: End,
    neighbours: Neighbours,
    told: BTreeSet<Ipv4Addr>,
    identification: u16,
}

impl Bypass {
    /// Takes the datagrams for `address`, the address of a UDP socket that stays open, off its
    /// interface; `token` becomes readable when there are some.
    ///
    /// # Errors
    /// When the kernel, the rights of this process, the interface or the address do not allow it;
    /// the text says which of them.
    pub fn open(address: SocketAddr, registry: &Registry, token: Token) -> io::Result<Self> {
        let at = match (address.ip().to_canonical(), address.port()) {
            (IpAddr::V4(ip), port) if !ip.is_unspecified() && !ip.is_loopback() => {
                SocketAddrV4::new(ip, port)
            }
            _ => {
                return Err(io::Error::other(format!(
                    "transport: 'af-xdp' needs an IPv4 address of a network interface to listen \
                     on, and {address} is none; set peer_listen, or use transport = \"udp\""
                )));
            }
        };
        let interface = Interface::with(*at.ip())?;
        let ours = End {
            mac: interface.mac,
            at,
        };
        let neighbours = Neighbours::new(interface.name.clone());
        let card = Socket::open(&interface, at)?;
        let descriptor = card.descriptor().as_raw_fd();
        registry.register(&mut SourceFd(&descriptor), token, Interest::READABLE)?;
        tracing::info!(
            interface = interface.name,
            mode = card.mode(),
            "datagrams of peers go past the kernel's sockets"
        );
        Ok(Self::on(Box::new(card), ours, neighbours))
    }

    fn on(card: Box<dyn Card + Send>, ours: End, neighbours: Neighbours) -> Self {
        Self {
            card,
            ours,
            neighbours,
            told: BTreeSet::new(),
            identification: 0,
        }
    }

    /// Writes a datagram into a frame, which leaves with [`Self::flush`]. False when it has to go by
    /// the socket: no neighbour is known that it could go to, or no memory is free.
    pub fn send(&mut self, to: SocketAddr, datagram: &[u8]) -> bool {
        let IpAddr::V4(ip) = to.ip().to_canonical() else {
            return false;
        };
        if datagram.len() > DATAGRAM_MAX {
            return false;
        }
        let Some(mac) = self.neighbours.find(ip) else {
            if self.told.len() < TOLD_MAX && self.told.insert(ip) {
                let interface = self.neighbours.interface();
                tracing::info!(
                    %ip, interface,
                    "the kernel knows no such neighbour (yet): datagrams go by its UDP socket"
                );
            }
            return false;
        };
        let theirs = End {
            mac,
            at: SocketAddrV4::new(ip, to.port()),
        };
        self.identification = self.identification.wrapping_add(1);
        let (ours, identification) = (self.ours, self.identification);
        self.card
            .send(HEADERS + datagram.len(), &mut |frame: &mut [u8]| {
                frame[HEADERS..].copy_from_slice(datagram);
                packet::write(frame, &ours, &theirs, identification);
            })
    }

    /// Sends what has been written since.
    pub fn flush(&mut self) {
        self.card.flush();
    }

    /// Neighbours may have changed since they were last looked up.
    pub fn look_again(&mut self) {
        self.neighbours.forget();
    }

    /// Appends the next datagram to `buffer`, if there is one, at most `most` bytes of it.
    ///
    /// # Errors
    /// When a frame has come that is none for this port, or damaged. Nothing is appended then.
    pub fn receive(&mut self, buffer: &mut BytesMut, most: usize) -> Option<Result<(), Malformed>> {
        let ours = self.ours.at;
        let mut result = Err(Malformed);
        let mut read = |frame: &[u8]| {
            if let Some((_, datagram)) = packet::read(frame, ours) {
                buffer.put_slice(&datagram[..datagram.len().min(most)]);
                result = Ok(());
            }
        };
        self.card.receive(&mut read).then_some(result)
    }
}

/// For fuzzing: a frame that is one for this port holds a datagram that lies within it.
pub(crate) fn fuzz_packet(bytes: &[u8]) {
    packet::fuzz(bytes);
}

/// For fuzzing: a good frame.
pub(crate) fn fuzz_packet_sample() -> Vec<u8> {
    packet::sample(&[7; 60])
}

#[cfg(test)]
mod tests;

//! TCP: two connections per link, one for each lane, so that bulk never delays control.
//!
//! ```text
//!   replica 0 ──dials──► replica 1 ──dials──► replica 2      the lower id dials the higher
//!      └────────────────dials──────────────────►┘   the higher one the lower, if that does not help
//!   remote frontend ──dials──► every replica                  one connection, control lane
//!
//!   Connecting ─┐
//!               ├─► Handshake ─► Open ── both lanes open ──► link up
//!   accepted ───┘
//! ```
//!
//! Small frames may go by datagrams beside them (`udp.rs`), or all through memory that is shared
//! with processes of the same host (`shared.rs`).

mod exchange;
mod opening;
mod shared;
mod udp;

use super::{
    Arrival,
    emulator::{Emulator, Held},
    handshake::{Handshake, MAGIC, PeerIdentity, PeerKey},
    queue::{Got, HEADER, Incoming, Kind, Outgoing, frame_header},
};
use crate::terms::Rows;
use crate::{
    data::{Data, nonce, random},
    mail::{Mail, Mailer},
    metrics::{DatagramMetrics, HandshakeMetrics},
    peer_clock::Standing,
};
use exchange::Exchanges;
use mio::{
    Interest, Registry, Token,
    event::Event,
    net::{TcpListener, TcpStream},
};
use opening::{Complaints, Shaken, refused_backoff};
use quintet_replica::{
    Boot, Descriptor, Frame, FrontendId, Incarnation, Lane, Link, Peer, Recipients, ReplicaId,
    ReplicaSet, Time, limits,
};
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex},
    time::Duration,
};

/// The most bytes queued for one peer and lane before the link counts as down.
pub(crate) const QUEUE_MAX: usize = limits::LINK_QUEUE_BYTES;
/// With more than that waiting a large frame waits, too, and is told when there is less.
const QUEUE_LOW: usize = limits::LINK_QUEUE_LOW;
/// The most bytes taken from one connection in one turn.
const TURN_BYTES_MAX: usize = 1 << 20;
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
const BACKOFF_FIRST: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(500);
/// A name that could not be looked up is looked up again then.
const BACKOFF_UNRESOLVED: Duration = Duration::from_secs(1);
/// How long the replica with the higher id waits for the lower one to dial, which may not know where
/// it is, before it dials itself.
const REVERSED_AFTER: Duration = Duration::from_secs(1);
/// A link that broke and does not come back within this is down.
const RESET_MAX: Duration = Duration::from_millis(250);
/// How often it is told that a long frame is coming …
const ARRIVING_PAUSE: Duration = Duration::from_millis(20);
/// … and for how long: what takes longer is no better than silence, and another may lead.
const ARRIVING_MAX: Duration = Duration::from_secs(10);
const LANES: [Lane; 2] = [Lane::Control, Lane::Bulk];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Dialled; the operating system has not connected yet.
    Connecting,
    /// Both sides prove themselves and tell their identities.
    Handshake,
    Open,
    /// Closed as soon as what is queued has been written.
    Closing,
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    address: SocketAddr,
    stage: Stage,
    handshake: Handshake,
    /// Ascending from one connection to the next.
    number: u64,
    /// The dialled member, which may be an impostor until the handshake is done; or the proven
    /// peer that has dialled.
    peer: Option<Peer>,
    lane: Lane,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Unread bytes may be there.
    readable: bool,
    /// The end of its bytes has been announced, perhaps in one edge with the last of them.
    end_near: bool,
    /// It stands in the list of those to read.
    queued: bool,
    writable: bool,
    /// It stands in the list of those to write.
    dirty: bool,
    deadline: Time,
    /// How many of the node's frames it was given, and how many have come by it.
    frames_out: u64,
    frames_in: u64,
    /// Since when a long frame has been coming, and when its recipient was last told.
    arriving: Option<(Time, Time)>,
    /// The datagrams beside it, if it may have some.
    way: Option<Box<udp::Way>>,
}

impl Connection {
    /// Some bytes have come: whether to tell that they are of a long frame.
    fn is_arriving(&mut self, now: Time) -> bool {
        if !self.incoming.is_amid_large() {
            return false;
        }
        let (since, told) = self.arriving.get_or_insert((now, now));
        let tells = now.since(*since) < ARRIVING_MAX && now.since(*told) >= ARRIVING_PAUSE;
        if tells {
            *told = now;
        }
        tells
    }
}

/// The link to one member.
#[derive(Debug)]
struct MemberLink {
    name: String,
    address: Option<SocketAddr>,
    resolving: bool,
    /// It is another name that is being looked up.
    renamed: bool,
    /// The number of the newest link; both lanes share it.
    session: u64,
    /// The newest of the other side's numbers.
    session_theirs: u64,
    lanes: [Option<usize>; 2],
    up: bool,
    /// When something last came over it, and when something of the member's node.
    heard: Option<Time>,
    node_heard: Option<Time>,
    /// The protocol knows that it is not up.
    told_down: bool,
    down_at: Time,
    dial_at: Time,
    backoff: Duration,
    /// Attempts in a row that came to nothing by what answers at its address.
    refusals: u32,
    /// The link whose attempt was counted last.
    refused_session: u64,
    incarnation: Incarnation,
    boot: Boot,
    /// Where its Redis clients connect, as it was last told.
    redis: Option<String>,
    error: Option<String>,
    /// The queue has been more than half full since it was last told to have room.
    crowded: bool,
    /// The epoch has no such row.
    absent: bool,
}

impl MemberLink {
    /// A link to be made to the member at this address.
    fn to(name: String) -> Self {
        Self {
            address: name.parse().ok(),
            name,
            resolving: false,
            renamed: false,
            session: 0,
            session_theirs: 0,
            lanes: [None; 2],
            up: false,
            heard: None,
            node_heard: None,
            told_down: true,
            down_at: Time::NEVER,
            dial_at: Time(0),
            backoff: BACKOFF_FIRST,
            refusals: 0,
            refused_session: 0,
            incarnation: Incarnation(0),
            boot: Boot(0),
            redis: None,
            error: None,
            crowded: false,
            absent: false,
        }
    }
}

/// The state of a link, for users.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkReport {
    pub name: String,
    pub up: bool,
    /// When something last came over it, if ever, be it only the transport's answer …
    pub heard: Option<Time>,
    /// … and when something of the member's node.
    pub node_heard: Option<Time>,
    pub incarnation: Incarnation,
    /// Where its Redis clients connect, as it was last told.
    pub redis: Option<String>,
    pub queued: usize,
    pub error: Option<String>,
    /// How its clock stands to this one's.
    pub clock: Option<Standing>,
    /// Frames go to it and come from it through shared memory.
    pub memory: bool,
    /// Small frames go to it by datagrams.
    pub datagrams: bool,
    /// Datagrams to it that are known to have been lost.
    pub datagrams_lost: u64,
}

/// The counters of the transport.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TcpCounters {
    pub frames_in: u64,
    pub frames_out: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub frames_bad: u64,
    pub handshakes: HandshakeMetrics,
    pub queues_full: u64,
    pub links_up: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Tcp {
    me: PeerIdentity,
    key: PeerKey,
    complaints: Complaints,
    connections_made: u64,
    /// None of a frontend, which dials all members and which no member dials.
    id: Option<ReplicaId>,
    data: Option<Arc<Mutex<Data>>>,
    registry: Registry,
    listener: Option<TcpListener>,
    accepting: bool,
    /// Accepting failed for want of a resource; tried again then.
    accept_at: Time,
    first_token: usize,
    mailer: Mailer,
    links: Vec<MemberLink>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    frontends: BTreeMap<FrontendId, usize>,
    to_read: Vec<usize>,
    to_write: Vec<usize>,
    arrivals: VecDeque<Arrival>,
    session_next: u64,
    counters: TcpCounters,
    /// Holds frames for peers back; none on a network that is as it is.
    emulator: Option<Box<Emulator>>,
    exchanges: Exchanges,
    /// The longest datagram, where there are to be any.
    datagram_bytes_max: Option<usize>,
    datagrams: Option<Box<udp::Datagrams>>,
    datagram_counters: DatagramMetrics,
    memories: Option<Box<shared::Memories>>,
    /// The nodes that have the rows of this side's epoch.
    rows: Rows,
    /// Which of them vote; to a frontend, all count.
    voters: ReplicaSet,
}

impl Tcp {
    /// A transport that listens and dials; connections get tokens from `first_token` on, the
    /// listener the one below.
    pub fn new(
        (me, key): (PeerIdentity, PeerKey),
        data: Data,
        registry: Registry,
        listener: std::net::TcpListener,
        names: Vec<String>,
        first_token: usize,
        mailer: Mailer,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let mut listener = TcpListener::from_std(listener);
        registry.register(&mut listener, Token(first_token - 1), Interest::READABLE)?;
        Ok(Self {
            data: Some(Arc::new(Mutex::new(data))),
            listener: Some(listener),
            accepting: true,
            ..Self::of_frontend((me, key), registry, names, first_token, mailer)
        })
    }

    /// The same for a frontend outside of replicas: it only dials.
    pub fn of_frontend(
        (me, key): (PeerIdentity, PeerKey),
        registry: Registry,
        names: Vec<String>,
        first_token: usize,
        mailer: Mailer,
    ) -> Self {
        let id = match me.from {
            Peer::Replica(id) => Some(id),
            Peer::Frontend(_) => None,
        };
        let members = names.len();
        let links = names.into_iter().map(MemberLink::to).collect();
        let session_next = me.boot.0 << 32;
        Self {
            me,
            key,
            complaints: Complaints::default(),
            connections_made: 0,
            id,
            data: None,
            registry,
            listener: None,
            accepting: false,
            accept_at: Time::NEVER,
            first_token,
            mailer,
            links,
            connections: Vec::new(),
            free: Vec::new(),
            frontends: BTreeMap::new(),
            to_read: Vec::new(),
            to_write: Vec::new(),
            arrivals: VecDeque::new(),
            session_next,
            counters: TcpCounters::default(),
            emulator: None,
            exchanges: Exchanges::new(members),
            datagram_bytes_max: None,
            datagrams: None,
            datagram_counters: DatagramMetrics::default(),
            memories: None,
            rows: Rows::default(),
            voters: ReplicaSet::all(ReplicaSet::MEMBERS_MAX),
        }
    }

    /// Whether this side dials that member first.
    fn dials(&self, member: usize) -> bool {
        let higher = self.id.is_none_or(|id| member > id.index());
        higher && !self.links[member].absent
    }

    /// When this side dials that member, as long as nothing of a link is there.
    fn dial_at(&self, member: usize) -> Time {
        let link = &self.links[member];
        if link.absent || link.resolving || link.lanes != [None; 2] {
            return Time::NEVER;
        }
        match self.id {
            Some(id) if id.index() == member => Time::NEVER,
            Some(_) if !self.dials(member) && link.dial_at != Time::NEVER => {
                link.dial_at + REVERSED_AFTER
            }
            _ => link.dial_at,
        }
    }

    /// The lanes of a link to a member.
    fn lanes(&self) -> &'static [Lane] {
        match self.id {
            Some(_) => &LANES,
            None => &LANES[..1],
        }
    }

    /// From now on links to peers are as slow and as bad as the emulator makes them.
    pub fn emulate(&mut self, emulator: Emulator) {
        self.emulator = Some(Box::new(emulator));
    }

    pub const fn counters(&self) -> TcpCounters {
        self.counters
    }

    /// The next arrival, in order.
    pub fn take_arrival(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }

    /// Whether something can be read or handed on without sleeping.
    pub fn busy(&self) -> bool {
        let datagrams = self.datagrams.as_ref().is_some_and(|it| it.readable());
        let some = !self.to_read.is_empty() || !self.arrivals.is_empty();
        some || self.accepting || datagrams || self.memory_busy()
    }

    pub fn report(&self, id: ReplicaId, now: Time) -> LinkReport {
        let link = &self.links[id.index()];
        let way = self.way(id);
        LinkReport {
            clock: self.standing(id, now),
            name: link.name.clone(),
            up: link.up,
            heard: link.heard,
            node_heard: link.node_heard,
            incarnation: link.incarnation,
            redis: link.redis.clone(),
            queued: LANES.map(|lane| self.queued_of(id, lane)).iter().sum(),
            error: link.error.clone(),
            memory: self.by_memory(id),
            datagrams: way.is_some_and(udp::Way::is_open),
            datagrams_lost: way.map_or(0, udp::Way::lost),
        }
    }

    /// The same of all members, this one included, by their ids.
    pub fn reports(&self, now: Time) -> Vec<LinkReport> {
        let ids = (0..self.links.len()).map(|member| ReplicaId(member as u16));
        ids.map(|id| self.report(id, now)).collect()
    }

    /// The data directory, which knows the peers; a frontend has none.
    pub fn data(&self) -> Option<Arc<Mutex<Data>>> {
        self.data.clone()
    }

    /// How many rows there are links for.
    pub fn places(&self) -> usize {
        self.links.len()
    }

    pub fn links_up(&self) -> usize {
        self.links.iter().filter(|link| link.up).count()
    }

    /// How many bytes may be queued for a peer.
    pub fn room(&self, id: ReplicaId) -> usize {
        if !self.links.get(id.index()).is_some_and(|link| link.up) {
            return 0;
        }
        let [control, bulk] = LANES.map(|lane| self.queued_of(id, lane));
        limits::link_room(control, control + bulk)
    }

    /// How many bytes wait for a peer on a lane.
    fn queued_of(&self, id: ReplicaId, lane: Lane) -> usize {
        let index = self.links[id.index()].lanes[lane as usize];
        let connection = index.and_then(|index| self.connections[index].as_ref());
        let held = (self.emulator.as_ref()).map_or(0, |emulator| emulator.held_for(id, lane));
        connection.map_or(0, |it| it.outgoing.len()) + held + self.queued_in_memory(id, lane)
    }

    /// How many bytes for a peer its connections have not taken yet.
    fn written_later(&self, id: ReplicaId) -> usize {
        let connections = self.links[id.index()].lanes.iter().flatten();
        (connections.filter_map(|index| self.connections[*index].as_ref()))
            .map(|connection| connection.outgoing.len())
            .sum()
    }

    // --- sending ---------------------------------------------------------------------------

    /// Queues a frame for everybody it goes to; who is not linked does not get it.
    pub fn send(&mut self, to: Recipients, lane: Lane, frame: &Frame, now: Time) {
        let mut header = None;
        let mut header = || *header.get_or_insert_with(|| frame_header(lane, Kind::Node, frame));
        match to {
            Recipients::Replicas(replicas) => {
                for id in replicas.iter() {
                    let Some(link) = self.links.get(id.index()).filter(|link| link.up) else {
                        continue;
                    };
                    if let Some(index) = link.lanes[lane as usize]
                        && !self.queue_in_memory(id, lane, frame, now)
                    {
                        self.queue_frame(index, &header(), frame, now);
                    }
                }
            }
            Recipients::Frontend(id) => {
                if let Some(index) = self.frontends.get(&id) {
                    self.queue_frame(*index, &header(), frame, now);
                }
            }
        }
    }

    /// The one place through which every frame leaves.
    fn queue_frame(&mut self, index: usize, header: &[u8; HEADER], frame: &Frame, now: Time) {
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        let mut queued = connection.outgoing.len();
        let loose = connection.goes_by_datagram(header, frame);
        if let (Some(emulator), Some(Peer::Replica(to))) = (&mut self.emulator, connection.peer) {
            queued += emulator.held_for(to, connection.lane);
            if queued <= limits::LINK_QUEUE_HARD {
                let held = Held {
                    to,
                    session: self.links[to.index()].session,
                    lane: connection.lane,
                    loose,
                    header: *header,
                    frame: frame.clone(),
                    continues: false,
                };
                emulator.hold(held, now);
                return;
            }
        }
        if queued > QUEUE_MAX && matches!(connection.peer, Some(Peer::Frontend(_))) {
            // It asks again for what does not come; breaking the link would lose all the rest.
            self.counters.queues_full += 1;
            return;
        }
        if queued > limits::LINK_QUEUE_HARD {
            self.counters.queues_full += 1;
            let peer = connection.peer;
            self.close(index, "its queue is full", now);
            if let Some(Peer::Replica(id)) = peer {
                self.tell_down(id.index());
            }
            return;
        }
        self.push_frame(index, Some(header), frame);
    }

    /// Hands on the frames that have been held back long enough.
    fn release_frames(&mut self, now: Time) {
        while let Some(held) = self.emulator.as_mut().and_then(|held| held.release(now)) {
            let link = &self.links[held.to.index()];
            if let Some(index) = link.lanes[held.lane as usize]
                && link.up
                && link.session == held.session
            {
                let header = (!held.continues).then_some(&held.header);
                self.push_frame(index, header, &held.frame);
            }
        }
    }

    /// A frame, or what follows of one whose header went out with its first part.
    fn push_frame(&mut self, index: usize, header: Option<&[u8; HEADER]>, frame: &Frame) {
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        if let Some(header) = header {
            self.counters.frames_out += 1;
            if connection.goes_by_datagram(header, frame) {
                return self.pack(index, frame);
            }
            if header[9] == Kind::Node as u8 {
                connection.count_frame(index, self.datagrams.as_deref_mut());
            }
        }
        connection.outgoing.push(header, frame);
        if let Some(Peer::Replica(id)) = connection.peer {
            self.links[id.index()].crowded |= self.written_later(id) > QUEUE_LOW;
        }
        self.mark_dirty(index);
    }

    fn mark_dirty(&mut self, index: usize) {
        if let Some(connection) = &mut self.connections[index]
            && !connection.dirty
        {
            connection.dirty = true;
            self.to_write.push(index);
        }
    }

    /// Writes what is queued, one write per connection.
    pub fn flush(&mut self, now: Time) {
        self.flush_datagrams();
        self.flush_memory(now);
        while let Some(index) = self.to_write.pop() {
            if let Some(connection) = &mut self.connections[index] {
                connection.dirty = false;
                self.write(index, now);
            }
        }
    }

    fn write(&mut self, index: usize, now: Time) {
        let Some(connection) = &mut self.connections[index] else {
            return;
        };
        if !connection.writable || connection.stage == Stage::Connecting {
            return;
        }
        match connection.outgoing.write(&mut connection.stream) {
            Ok((written, more)) => {
                connection.writable = more;
                self.counters.bytes_out += written as u64;
                if connection.stage == Stage::Closing && connection.outgoing.is_empty() {
                    return self.close(index, "refused", now);
                }
                if let Some(peer @ Peer::Replica(id)) = connection.peer
                    && self.links[id.index()].crowded
                    && self.written_later(id) <= QUEUE_LOW
                {
                    self.links[id.index()].crowded = false;
                    let room = Link::Room(self.room(id));
                    self.arrivals.push_back(Arrival::Link(peer, room));
                }
            }
            Err(error) => self.close(index, &error.to_string(), now),
        }
    }

    // --- readiness -------------------------------------------------------------------------

    /// Whether the token is one of this transport's; notes what has become possible.
    pub fn on_event(&mut self, event: &Event, now: Time) -> bool {
        if event.token() == self.datagram_token() {
            self.on_datagrams();
            return true;
        }
        let Some(offset) = (event.token().0 + 1).checked_sub(self.first_token) else {
            return false;
        };
        let Some(index) = offset.checked_sub(1) else {
            self.accepting = true;
            return true;
        };
        let Some(Some(connection)) = self.connections.get_mut(index) else {
            return index < self.connections.len();
        };
        if event.is_writable() {
            connection.writable = true;
            if connection.stage == Stage::Connecting {
                match connection.stream.take_error() {
                    Ok(None) => connection.stage = Stage::Handshake,
                    Ok(Some(error)) | Err(error) => {
                        self.close(index, &error.to_string(), now);
                        return true;
                    }
                }
            }
            self.mark_dirty(index);
        }
        let Some(connection) = &mut self.connections[index] else {
            return true;
        };
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            connection.readable = true;
            connection.end_near |= event.is_read_closed() || event.is_error();
            self.queue_read(index);
        }
        true
    }

    fn queue_read(&mut self, index: usize) {
        if let Some(connection) = &mut self.connections[index]
            && !connection.queued
        {
            connection.queued = true;
            self.to_read.push(index);
        }
    }

    /// Accepts and reads whatever is there, a bounded amount per connection.
    pub fn receive(&mut self, now: Time) {
        if self.accepting {
            self.accept(now);
        }
        let mut list = std::mem::take(&mut self.to_read);
        for index in list.drain(..) {
            if let Some(connection) = &mut self.connections[index] {
                connection.queued = false;
                self.read(index, now);
            }
        }
        if self.to_read.is_empty() {
            self.to_read = list;
        }
        self.receive_datagrams(now);
        self.receive_memory(now);
    }

    fn add(
        &mut self,
        mut stream: TcpStream,
        address: SocketAddr,
        (stage, handshake): (Stage, Handshake),
        peer: Option<Peer>,
        lane: Lane,
        now: Time,
    ) -> Option<usize> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let token = Token(self.first_token + index);
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.registry.register(&mut stream, token, interest) {
            tracing::warn!(%error, "cannot watch a peer connection");
            self.free.push(index);
            return None;
        }
        // Neither changes what is possible, only how fast it is noticed.
        let _ = stream.set_nodelay(true);
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(5))
            .with_interval(Duration::from_secs(1));
        let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive);
        self.connections_made += 1;
        self.connections[index] = Some(Connection {
            stream,
            address,
            stage,
            handshake,
            number: self.connections_made,
            peer,
            lane,
            incoming: Incoming::default(),
            outgoing: Outgoing::default(),
            readable: false,
            end_near: false,
            queued: false,
            writable: false,
            dirty: false,
            deadline: now + HANDSHAKE_MAX,
            frames_out: 0,
            frames_in: 0,
            arriving: None,
            way: None,
        });
        Some(index)
    }

    fn read(&mut self, index: usize, now: Time) {
        let mut budget = TURN_BYTES_MAX;
        loop {
            if !self.hand_on(index, now) {
                return;
            }
            let Some(connection) = &mut self.connections[index] else {
                return;
            };
            if !connection.readable {
                return;
            }
            if budget == 0 {
                self.queue_read(index);
                return;
            }
            match connection.incoming.read(&connection.stream) {
                Ok(Got::Bytes(count, more)) => {
                    self.counters.bytes_in += count as u64;
                    if let (Stage::Open, Some(Peer::Replica(id))) =
                        (connection.stage, connection.peer)
                    {
                        let link = &mut self.links[id.index()];
                        link.heard = Some(now);
                        if connection.incoming.is_amid_large() {
                            link.node_heard = Some(now);
                        }
                        if connection.is_arriving(now) {
                            let peer = Peer::Replica(id);
                            self.arrivals.push_back(Arrival::Link(peer, Link::Arriving));
                        }
                    }
                    budget = budget.saturating_sub(count.max(1));
                    // After a short read the next edge tells of more bytes, and of the end unless
                    // this one has.
                    connection.readable = more || connection.end_near;
                }
                Ok(Got::Nothing) => connection.readable = false,
                Ok(Got::End) => {
                    self.close(index, "it closed the connection", now);
                    return;
                }
                Err(error) => {
                    self.close(index, &error.to_string(), now);
                    return;
                }
            }
        }
    }

    /// Handles what has been read; false when nothing more is to be read now.
    fn hand_on(&mut self, index: usize, now: Time) -> bool {
        loop {
            let Some(connection) = &mut self.connections[index] else {
                return false;
            };
            match connection.stage {
                Stage::Connecting | Stage::Closing => return false,
                Stage::Handshake => match self.shake_hands(index, now) {
                    Shaken::Waits => return true,
                    Shaken::Continues => {}
                    Shaken::Over => return false,
                },
                Stage::Open => {
                    let Some(peer) = connection.peer else {
                        return false;
                    };
                    // The other side may have found only in the answer that the two do not
                    // belong together. No frame begins like this.
                    if connection.incoming.peek().starts_with(&MAGIC.to_le_bytes()) {
                        return self.shake_hands(index, now) == Shaken::Waits;
                    }
                    if let Peer::Replica(id) = peer
                        && !self.links[id.index()].up
                    {
                        // Frames come after `Up`: when the other lane is there too.
                        return false;
                    }
                    match connection.incoming.next(connection.lane) {
                        Ok(Some((Kind::Own, frame))) => self.on_own(index, peer, frame, now),
                        Ok(Some((Kind::Node, frame))) => {
                            connection.frames_in += 1;
                            connection.arriving = None;
                            self.counters.frames_in += 1;
                            self.note_node(peer, now);
                            self.arrivals.push_back(Arrival::Frame(peer, frame));
                            self.hand_on_datagrams(index, peer);
                        }
                        Ok(Some((Kind::Lent, _))) => unreachable!("it comes through memory only"),
                        Ok(None) => return true,
                        Err(error) => {
                            self.counters.frames_bad += 1;
                            self.close(index, &error.to_string(), now);
                            return false;
                        }
                    }
                }
            }
        }
    }

    /// Something of a peer's node has come.
    fn note_node(&mut self, peer: Peer, now: Time) {
        if let Peer::Replica(id) = peer {
            self.links[id.index()].node_heard = Some(now);
        }
    }

    // --- ending and dialling ---------------------------------------------------------------

    fn close(&mut self, index: usize, reason: &str, now: Time) {
        let Some(mut connection) = self.connections[index].take() else {
            return;
        };
        // The descriptor is closed right after; a failure changes nothing.
        let _ = self.registry.deregister(&mut connection.stream);
        self.free.push(index);
        match connection.peer {
            Some(Peer::Replica(id)) => {
                let link = &mut self.links[id.index()];
                let lane = &mut link.lanes[connection.lane as usize];
                if *lane == Some(index) {
                    *lane = None;
                    self.drop_link(id.index(), reason, now);
                }
            }
            Some(Peer::Frontend(id)) if self.frontends.get(&id) == Some(&index) => {
                self.frontends.remove(&id);
                self.arrivals
                    .push_back(Arrival::Link(Peer::Frontend(id), Link::Down));
            }
            Some(Peer::Frontend(_)) | None => {}
        }
    }

    /// Links that are made from now on tell of this epoch; those to members that others
    /// replace are broken.
    pub fn enter_epoch(&mut self, descriptor: &Descriptor, now: Time) {
        self.me.epoch = descriptor.number;
        self.me.protocol.clone_from(&descriptor.protocol);
        self.me.descriptor = descriptor.public();
        self.me.members = descriptor.members.len() as u16;
        if self.id.is_some() {
            self.voters = descriptor.voters().set();
        }
        while self.links.len() < descriptor.members.len() {
            self.links.push(MemberLink::to(String::new()));
        }
        self.exchanges.grow(self.links.len());
        self.grow_memory();
        let rows = Rows::of(descriptor);
        for member in std::mem::replace(&mut self.rows, rows.clone()).changed(&rows) {
            let Some(link) = self.links.get_mut(member) else {
                continue;
            };
            let row = descriptor.members.get(member);
            let row = row.filter(|row| row.is_taken());
            link.absent = row.is_none();
            let Some(row) = row else {
                // Another member may be there one day.
                link.name.clear();
                (link.address, link.renamed) = (None, link.resolving);
                self.drop_link(member, "it is no member any more", now);
                continue;
            };
            link.name.clone_from(&row.peer);
            link.renamed = link.resolving;
            link.address = row.peer.parse().ok();
            link.error = None;
            // It counts its links from the beginning.
            (link.session, link.session_theirs) = (0, 0);
            (link.refused_session, link.refusals) = (0, 0);
            self.complaints.clear(member as u16);
            self.exchanges.forget(member);
            self.drop_link(member, "another replica has its place", now);
            let link = &mut self.links[member];
            (link.backoff, link.dial_at) = (BACKOFF_FIRST, now);
        }
    }

    /// Sets the nodes that have the rows of the epoch that this side begins in.
    pub fn set_rows(&mut self, descriptor: &Descriptor) {
        self.rows = Rows::of(descriptor);
        self.voters = descriptor.voters().set();
        for (link, row) in self.links.iter_mut().zip(&descriptor.members) {
            link.absent = !row.is_taken();
        }
    }

    /// Breaks the links to all members, which are made again.
    pub fn break_links(&mut self, reason: &str, now: Time) {
        for member in 0..self.links.len() {
            if self.links[member].up {
                self.drop_link(member, reason, now);
            }
        }
    }

    /// Closes what is left of a link and sees to the next.
    fn drop_link(&mut self, member: usize, reason: &str, now: Time) {
        for lane in 0..LANES.len() {
            let Some(index) = self.links[member].lanes[lane].take() else {
                continue;
            };
            if let Some(connection) = &mut self.connections[index] {
                // A refusal in progress still goes out.
                if connection.stage == Stage::Closing {
                    continue;
                }
                let _ = self.registry.deregister(&mut connection.stream);
                self.connections[index] = None;
                self.free.push(index);
            }
        }
        self.drop_memory(member);
        let link = &mut self.links[member];
        let jitter = Duration::from_micros(random() % 1000 * link.backoff.as_millis() as u64 / 2);
        let refused = match link.refusals {
            0 => Duration::ZERO,
            attempts => refused_backoff(attempts),
        };
        link.dial_at = now + link.backoff.max(refused) + jitter;
        link.backoff = (link.backoff * 2).min(BACKOFF_MAX);
        if link.error.is_none() {
            link.error = Some(reason.to_owned());
        }
        if link.up {
            link.up = false;
            link.down_at = now + RESET_MAX;
            if let Some(emulator) = &mut self.emulator {
                emulator.reset(ReplicaId(member as u16));
            }
            tracing::info!(peer = member, reason, "link broken");
            let peer = Peer::Replica(ReplicaId(member as u16));
            self.arrivals.push_back(Arrival::Link(peer, Link::Reset));
        } else if self.dials(member) {
            self.tell_down(member);
        }
    }

    fn tell_down(&mut self, member: usize) {
        let link = &mut self.links[member];
        link.down_at = Time::NEVER;
        if !link.told_down {
            link.told_down = true;
            let peer = Peer::Replica(ReplicaId(member as u16));
            self.arrivals.push_back(Arrival::Link(peer, Link::Down));
        }
    }

    fn dial(&mut self, member: usize, now: Time) {
        let Some(address) = self.links[member].address else {
            self.resolve(member);
            return;
        };
        self.session_next += 1;
        let session = self.session_next;
        let id = ReplicaId(member as u16);
        let link = &mut self.links[member];
        link.session = session;
        link.dial_at = Time::NEVER;
        for lane in self.lanes().iter().copied() {
            let opened = TcpStream::connect(address).and_then(|stream| Ok((stream, nonce()?)));
            let peer = Some(Peer::Replica(id));
            let added = opened.map(|(stream, nonce)| {
                let (handshake, challenge) = Handshake::initiate(self.key.clone(), nonce);
                let stage = (Stage::Connecting, handshake);
                let index = self.add(stream, address, stage, peer, lane, now)?;
                let connection = self.connections[index].as_mut()?;
                connection.outgoing.push_raw(&challenge);
                Some(index)
            });
            let index = match added {
                Ok(Some(index)) => index,
                Ok(None) => return self.drop_link(member, "cannot watch the connection", now),
                Err(error) => return self.drop_link(member, &error.to_string(), now),
            };
            self.links[member].lanes[lane as usize] = Some(index);
        }
    }

    fn resolve(&mut self, member: usize) {
        let link = &mut self.links[member];
        link.dial_at = Time::NEVER;
        if std::mem::replace(&mut link.resolving, true) {
            return;
        }
        let (name, mailer) = (link.name.clone(), self.mailer.clone());
        let lookup = move || {
            let found = name.to_socket_addrs().map(|mut addresses| addresses.next());
            let address = match found {
                Ok(Some(address)) => Ok(address),
                Ok(None) => Err(format!("'{name}' has no address")),
                Err(error) => Err(format!("'{name}': {error}")),
            };
            mailer.send(Mail::Resolved {
                peer: member,
                address,
            });
        };
        let started = std::thread::Builder::new()
            .name("name lookup".to_owned())
            .spawn(lookup);
        if let Err(error) = started {
            self.mailer.send(Mail::Resolved {
                peer: member,
                address: Err(error.to_string()),
            });
        }
    }

    /// A member's name was looked up.
    pub fn on_resolved(&mut self, peer: usize, address: Result<SocketAddr, String>, now: Time) {
        let Some(link) = self.links.get_mut(peer) else {
            return;
        };
        link.resolving = false;
        if std::mem::take(&mut link.renamed) {
            link.dial_at = now;
            return;
        }
        match address {
            Ok(address) => {
                link.address = Some(address);
                link.dial_at = now;
            }
            Err(error) => {
                link.error = Some(error);
                link.dial_at = now + BACKOFF_UNRESOLVED;
            }
        }
    }

    /// When [`Self::on_time`] has something to do.
    pub fn next_deadline(&self) -> Time {
        let links = self.links.iter().enumerate();
        let links = links.map(|(member, link)| link.down_at.min(self.dial_at(member)));
        let handshakes = self
            .connections
            .iter()
            .flatten()
            .map(|connection| connection.deadline);
        let emulator = self.emulator.as_ref();
        let release = emulator.map_or(Time::NEVER, |emulator| emulator.next_due());
        links
            .chain(handshakes)
            .min()
            .unwrap_or(Time::NEVER)
            .min(self.accept_at)
            .min(release)
            .min(self.exchange_at())
            .min(self.probe_at())
    }

    /// Dials, gives up handshakes, tells that links are down.
    pub fn on_time(&mut self, now: Time) {
        self.release_frames(now);
        self.exchange(now);
        self.probe(now);
        if self.accept_at <= now {
            self.accept_at = Time::NEVER;
            self.accepting = true;
        }
        for index in 0..self.connections.len() {
            if self.connections[index]
                .as_ref()
                .is_some_and(|c| c.deadline <= now)
            {
                self.on_expired(index, now);
            }
        }
        for member in 0..self.links.len() {
            let link = &mut self.links[member];
            if link.down_at <= now {
                self.tell_down(member);
            }
            if self.dial_at(member) <= now {
                let link = &mut self.links[member];
                // A name may have moved to another address since the last attempt.
                if link.error.is_some() && link.name.parse::<SocketAddr>().is_err() {
                    link.address = None;
                }
                self.dial(member, now);
            }
        }
    }
}

#[cfg(test)]
#[path = "tcp_tests.rs"]
mod tests;

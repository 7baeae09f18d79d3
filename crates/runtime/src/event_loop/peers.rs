//! The links to peers, on this thread or on one of their own.
//!
//! ```text
//!              protocol's thread   │             peers' thread
//!   Node ── frames, puts ──► ring ─┼─► Tcp ──► one write per connection and turn
//!   Node ◄───── arrivals ◄── ring ─┼─◄ Tcp ◄── sockets, checksums, greetings, clocks
//!               room, figures ◄────┼── shared, read at any time
//! ```
//!
//! The peers' thread takes what it is to send whatever else is full, so the protocol's thread may
//! wait for it. When the protocol's thread does not take arrivals, sockets are not read, and peers
//! see a slow replica, as they do with one thread.

use super::stage::{ITEM_BYTES, Orders, Rest, Setting, taken};
use crate::{
    data::Data,
    metrics::{DatagramMetrics, MemoryMetrics},
    peer_clock::Standing,
    rings::{Receiver, Sender},
    transports::{
        Arrival,
        handshake::JoinAnswer,
        tcp::{LinkReport, Tcp, TcpCounters},
    },
};
use mio::event::Event;
use quintet_replica::{
    Bytes, Descriptor, EpochNumber, Frame, GroupId, Lane, Link, Peer, Recipients, ReplicaId,
    ReplicaSet, Time, put_frame,
};
use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};

/// Figures are brought up to date so often while anything happens.
const FIGURES_EVERY: Duration = Duration::from_millis(50);

/// The state of the links, for users.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerFigures {
    pub tcp: TcpCounters,
    pub datagrams: DatagramMetrics,
    pub memory: MemoryMetrics,
    pub links: Vec<LinkReport>,
    pub links_up: usize,
    standings: Vec<Standing>,
}

fn figures(tcp: &Tcp, now: Time) -> PeerFigures {
    PeerFigures {
        tcp: tcp.counters(),
        datagrams: tcp.datagram_counters(),
        memory: tcp.memory_counters(),
        links: tcp.reports(now),
        links_up: tcp.links_up(),
        standings: tcp.standings(now),
    }
}

pub(super) const DISK_HUNG: &str = "the disk did not answer for seconds; it does again";

enum Order {
    /// With how many changes of links the protocol had seen then.
    Send(Recipients, Lane, Frame, u64),
    Put(ReplicaSet, EpochNumber, Bytes, u64),
    Resolved(usize, Result<SocketAddr, String>),
    /// How good this side's clock is.
    Clock(bool, u64),
    ForgetClocks,
    BreakLinks(&'static str),
    Epoch(Box<Descriptor>),
    Join(u64, JoinAnswer),
}

/// Which links have changed since the protocol last saw them. Messages that it sends before it
/// knows of a link are not for that link: earlier ones may have been lost with the link before it,
/// and the peer that receives the first frame of a link relies on there being no gap behind it.
#[derive(Debug)]
struct LinkChanges {
    told: u64,
    /// Per member: which change was its last.
    last: Vec<u64>,
}

impl LinkChanges {
    fn new(members: usize) -> Self {
        Self {
            told: 0,
            last: vec![0; members],
        }
    }

    /// This comes to the protocol next.
    fn note(&mut self, arrival: &Arrival) {
        if let Some(id) = changed_link(arrival) {
            self.told += 1;
            if let Some(last) = self.last.get_mut(id.index()) {
                *last = self.told;
            }
        }
    }

    /// Those of these replicas whose links the protocol knew when it had seen this number of changes.
    fn known(&self, to: ReplicaSet, seen: u64) -> ReplicaSet {
        let known = |id: &ReplicaId| self.last.get(id.index()).is_none_or(|last| *last <= seen);
        match self.told == seen {
            true => to,
            false => to
                .iter()
                .filter(known)
                .fold(ReplicaSet::EMPTY, ReplicaSet::with),
        }
    }
}

/// The replica whose link this says has changed.
const fn changed_link(arrival: &Arrival) -> Option<ReplicaId> {
    match arrival {
        // The same link has room again, or brings something.
        Arrival::Link(_, Link::Room(_) | Link::Arriving) => None,
        Arrival::Link(Peer::Replica(id), _) => Some(*id),
        _ => None,
    }
}

#[derive(Debug)]
struct Shared {
    rooms: Vec<AtomicUsize>,
    figures: Mutex<PeerFigures>,
    /// An exchange about clocks has ended.
    clock_news: AtomicBool,
    changed: AtomicBool,
}

impl Shared {
    fn figures(&self) -> MutexGuard<'_, PeerFigures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(super) enum Peers {
    Here(Box<Tcp>),
    Apart(Apart),
}

/// The protocol's end of the peers' thread.
pub(super) struct Apart {
    /// First, so that the thread has ended when the other ring goes.
    orders: Orders<Order>,
    arrivals: Receiver<(Time, Arrival)>,
    shared: Arc<Shared>,
    /// This many arrivals are taken in this turn; what comes meanwhile waits for the next.
    turn: usize,
    /// How many changes of links have been taken.
    seen: u64,
    data: Option<Arc<Mutex<Data>>>,
}

impl Peers {
    /// Links that are served by a thread of their own. `tcp` has been registered with the poll of
    /// `setting`, and serves `members`.
    ///
    /// # Errors
    /// When no thread or waker can be created.
    pub fn apart(tcp: Tcp, setting: Setting) -> io::Result<Self> {
        let (wakeup, (orders, given), (sender, arrivals)) = setting.rings()?;
        let data = tcp.data();
        let now = setting.clock.now();
        let figures = figures(&tcp, now);
        let shared = Arc::new(Shared {
            // Members may come.
            rooms: (0..ReplicaSet::MEMBERS_MAX)
                .map(|_| AtomicUsize::new(0))
                .collect(),
            figures: Mutex::new(figures),
            clock_news: AtomicBool::new(false),
            changed: AtomicBool::new(true),
        });
        let stage = Stage {
            changes: LinkChanges::new(shared.rooms.len()),
            tcp,
            orders: given,
            arrivals: sender,
            waiting: VecDeque::new(),
            shared: Arc::clone(&shared),
            rest: Rest::new(setting, wakeup),
            figures_at: Time(0),
            dirty: true,
        };
        let orders = Orders::start("peers", orders, move || stage.run())?;
        Ok(Self::Apart(Apart {
            orders,
            arrivals,
            shared,
            turn: 0,
            seen: 0,
            data,
        }))
    }

    /// Begins a turn, in which arrivals are taken if this replica `hears`.
    pub fn receive(&mut self, hears: bool, now: Time) {
        match self {
            Self::Here(tcp) if hears => tcp.receive(now),
            Self::Here(_) => {}
            Self::Apart(apart) => apart.turn = if hears { apart.arrivals.len() } else { 0 },
        }
    }

    /// The next arrival, in order, with its time.
    pub fn take_arrival(&mut self, now: Time) -> Option<(Time, Arrival)> {
        match self {
            Self::Here(tcp) => Some((now, tcp.take_arrival()?)),
            Self::Apart(apart) => {
                apart.turn = apart.turn.checked_sub(1)?;
                let (at, arrival) = apart.arrivals.pop()?;
                apart.seen += u64::from(changed_link(&arrival).is_some());
                Some((at, arrival))
            }
        }
    }

    /// Queues a frame for everybody it goes to; who is not linked does not get it.
    pub fn send(&mut self, to: Recipients, lane: Lane, frame: Frame, now: Time) {
        match self {
            Self::Here(tcp) => tcp.send(to, lane, &frame, now),
            Self::Apart(apart) => {
                let order = (frame.len(), Order::Send(to, lane, frame, apart.seen));
                apart.orders.give(order.0, order.1);
            }
        }
    }

    /// Puts words of this replica's row into the rows that the members in `to` hold of it.
    pub fn put(&mut self, to: ReplicaSet, epoch: EpochNumber, ranges: Bytes, now: Time) {
        match self {
            Self::Here(tcp) => put(tcp, to, epoch, ranges, now),
            Self::Apart(apart) => apart
                .orders
                .give(ranges.len(), Order::Put(to, epoch, ranges, apart.seen)),
        }
    }

    /// How many bytes may be queued for a peer.
    pub fn room(&self, id: ReplicaId) -> usize {
        match self {
            Self::Here(tcp) => tcp.room(id),
            Self::Apart(apart) => {
                let in_progress = apart.orders.bytes();
                let room = apart.shared.rooms.get(id.index());
                room.map_or(0, |room| room.load(Acquire).saturating_sub(in_progress))
            }
        }
    }

    /// Breaks the links to all members, which are made again.
    pub fn break_links(&mut self, reason: &'static str, now: Time) {
        match self {
            Self::Here(tcp) => tcp.break_links(reason, now),
            Self::Apart(apart) => apart.orders.give(0, Order::BreakLinks(reason)),
        }
    }

    /// Sets the epoch that peers are told when links to them are made.
    pub fn enter_epoch(&mut self, descriptor: &Descriptor, now: Time) {
        match self {
            Self::Here(tcp) => tcp.enter_epoch(descriptor, now),
            Self::Apart(apart) => {
                (apart.orders).give(0, Order::Epoch(Box::new(descriptor.clone())));
            }
        }
    }

    /// The directories of members that are known here.
    pub fn seen(&self) -> Vec<(u16, u64, u64)> {
        let data = match self {
            Self::Here(tcp) => tcp.data(),
            Self::Apart(apart) => apart.data.clone(),
        };
        data.map_or_else(Vec::new, |data| {
            data.lock().unwrap_or_else(PoisonError::into_inner).seen()
        })
    }

    /// Answers one that wants to become a member.
    pub fn answer_join(&mut self, connection: u64, answer: JoinAnswer, now: Time) {
        match self {
            Self::Here(tcp) => tcp.answer_join(connection, &answer, now),
            Self::Apart(apart) => apart.orders.give(0, Order::Join(connection, answer)),
        }
    }

    pub fn on_resolved(&mut self, peer: usize, address: Result<SocketAddr, String>, now: Time) {
        match self {
            Self::Here(tcp) => tcp.on_resolved(peer, address, now),
            Self::Apart(apart) => {
                apart.orders.give(0, Order::Resolved(peer, address));
                self.flush(now);
            }
        }
    }

    /// Writes what is queued, one write per connection.
    pub fn flush(&mut self, now: Time) {
        match self {
            Self::Here(tcp) => tcp.flush(now),
            Self::Apart(apart) => apart.orders.ring(),
        }
    }

    /// Notes what has become possible at a socket of this thread.
    pub fn on_event(&mut self, event: &Event, now: Time) {
        if let Self::Here(tcp) = self {
            tcp.on_event(event, now);
        }
    }

    /// Whether something can be taken without sleeping.
    pub fn busy(&self) -> bool {
        match self {
            Self::Here(tcp) => tcp.busy(),
            Self::Apart(apart) => !apart.arrivals.is_empty(),
        }
    }

    /// When [`Self::on_time`] has something to do on this thread.
    pub fn next_deadline(&self) -> Time {
        match self {
            Self::Here(tcp) => tcp.next_deadline(),
            Self::Apart(_) => Time::NEVER,
        }
    }

    pub fn on_time(&mut self, now: Time) {
        if let Self::Here(tcp) = self {
            tcp.on_time(now);
        }
    }

    /// Before sleeping: false when there is something after all.
    pub fn park(&mut self) -> bool {
        match self {
            Self::Here(tcp) => tcp.park(),
            Self::Apart(apart) => apart.arrivals.is_empty() && !apart.arrivals.closed(),
        }
    }

    pub fn awake(&mut self) {
        if let Self::Here(tcp) = self {
            tcp.awake();
        }
    }

    /// The thread has ended by itself: nothing works any more.
    pub fn ended(&self) -> bool {
        match self {
            Self::Here(_) => false,
            Self::Apart(apart) => apart.arrivals.closed(),
        }
    }

    // --- clocks ------------------------------------------------------------------------------

    /// Whether an exchange about clocks has ended since this was last asked.
    pub fn take_clock_news(&mut self) -> bool {
        match self {
            Self::Here(tcp) => tcp.take_clock_news(),
            Self::Apart(apart) => taken(&apart.shared.clock_news),
        }
    }

    /// How good this side's clock is: what peers are told.
    pub fn tell_clock(&mut self, disciplined: bool, error: u64) {
        match self {
            Self::Here(tcp) => tcp.tell_clock(disciplined, error),
            Self::Apart(apart) => apart.orders.give(0, Order::Clock(disciplined, error)),
        }
    }

    /// This side's clock was set: nothing that was measured counts any more.
    pub fn forget_clocks(&mut self) {
        match self {
            Self::Here(tcp) => tcp.forget_clocks(),
            Self::Apart(apart) => {
                apart.orders.give(0, Order::ForgetClocks);
                // Earlier measurements are not used while this is in progress.
                apart.shared.figures().standings.clear();
            }
        }
    }

    /// How the members' clocks stand that have told something that still counts.
    pub fn standings(&self, now: Time) -> Vec<Standing> {
        match self {
            Self::Here(tcp) => tcp.standings(now),
            Self::Apart(apart) => apart.shared.figures().standings.clone(),
        }
    }

    // --- what is shown -------------------------------------------------------------------------

    /// Whether figures have changed since this was last asked, as far as another thread tells.
    pub fn take_changed(&mut self) -> bool {
        match self {
            Self::Here(_) => false,
            Self::Apart(apart) => taken(&apart.shared.changed),
        }
    }

    pub fn links_up(&self) -> usize {
        match self {
            Self::Here(tcp) => tcp.links_up(),
            Self::Apart(apart) => apart.shared.figures().links_up,
        }
    }

    pub fn figures(&self, now: Time) -> PeerFigures {
        match self {
            Self::Here(tcp) => figures(tcp, now),
            Self::Apart(apart) => apart.shared.figures().clone(),
        }
    }
}

fn put(tcp: &mut Tcp, to: ReplicaSet, epoch: EpochNumber, ranges: Bytes, now: Time) {
    let to = tcp.put(to, &ranges, now);
    if !to.is_empty() {
        let frame = put_frame(GroupId(0), epoch, ranges);
        tcp.send(Recipients::Replicas(to), Lane::Control, &frame, now);
    }
}

fn weight(arrival: &Arrival) -> usize {
    let bytes = match arrival {
        Arrival::Frame(_, bytes) | Arrival::Put(_, bytes) => bytes.len(),
        Arrival::Booted(..) | Arrival::Link(..) | Arrival::Refused(_) | Arrival::Join(..) => 0,
    };
    bytes + ITEM_BYTES
}

/// The peers' thread.
struct Stage {
    tcp: Tcp,
    orders: Receiver<Order>,
    arrivals: Sender<(Time, Arrival)>,
    /// Arrivals that are not in the ring yet.
    waiting: VecDeque<(Time, Arrival)>,
    changes: LinkChanges,
    shared: Arc<Shared>,
    rest: Rest,
    figures_at: Time,
    /// Something has happened since figures were last shown.
    dirty: bool,
}

impl Stage {
    fn run(mut self) -> io::Result<()> {
        loop {
            let now = self.rest.now();
            let closed = self.orders.closed();
            let mut count = self.take_orders(now);
            if closed {
                self.tcp.flush(now);
                return Ok(());
            }
            if self.waiting.is_empty() {
                self.tcp.receive(now);
            }
            if self.tcp.next_deadline() <= now {
                self.tcp.on_time(now);
                self.dirty = true;
            }
            count += self.hand_on(now);
            self.tcp.flush(now);
            self.update_rooms();
            self.dirty |= count > 0;
            self.show(now);
            self.arrivals.ring();
            self.sleep(count)?;
        }
    }

    /// Sends what there is to send; what comes meanwhile waits for the next turn.
    fn take_orders(&mut self, now: Time) -> usize {
        let count = self.orders.len();
        for _ in 0..count {
            let Some(order) = self.orders.pop() else {
                break;
            };
            match order {
                Order::Send(to, lane, frame, seen) => {
                    let to = match to {
                        Recipients::Replicas(to) => {
                            Recipients::Replicas(self.changes.known(to, seen))
                        }
                        Recipients::Frontend(_) => to,
                    };
                    self.tcp.send(to, lane, &frame, now);
                }
                Order::Put(to, epoch, ranges, seen) => {
                    let to = self.changes.known(to, seen);
                    put(&mut self.tcp, to, epoch, ranges, now);
                }
                Order::Resolved(peer, address) => self.tcp.on_resolved(peer, address, now),
                Order::Clock(disciplined, error) => self.tcp.tell_clock(disciplined, error),
                Order::ForgetClocks => self.tcp.forget_clocks(),
                Order::BreakLinks(reason) => self.tcp.break_links(reason, now),
                Order::Epoch(descriptor) => self.tcp.enter_epoch(&descriptor, now),
                Order::Join(connection, answer) => self.tcp.answer_join(connection, &answer, now),
            }
        }
        count
    }

    fn hand_on(&mut self, now: Time) -> usize {
        // All of it is taken at once, so that links have not changed behind what is noted here.
        while let Some(arrival) = self.tcp.take_arrival() {
            self.changes.note(&arrival);
            self.waiting.push_back((now, arrival));
        }
        let mut count = 0;
        while let Some((at, arrival)) = self.waiting.pop_front() {
            if matches!(&arrival, Arrival::Link(Peer::Replica(_), _)) {
                // The protocol may answer at once and asks how much it may send.
                self.update_rooms();
                self.figures_at = now;
            }
            if let Err(item) = self.arrivals.push(weight(&arrival), (at, arrival)) {
                self.waiting.push_front(item);
                break;
            }
            count += 1;
        }
        count
    }

    fn update_rooms(&self) {
        let rooms = self.shared.rooms.iter().take(self.tcp.places());
        for (index, room) in rooms.enumerate() {
            room.store(self.tcp.room(ReplicaId(index as u16)), Release);
        }
    }

    fn show(&mut self, now: Time) {
        let news = self.tcp.take_clock_news();
        if !(news || self.dirty && now >= self.figures_at) {
            return;
        }
        *self.shared.figures() = figures(&self.tcp, now);
        self.dirty = false;
        self.figures_at = now + FIGURES_EVERY;
        self.shared.changed.store(true, Release);
        if news {
            self.shared.clock_news.store(true, Release);
        }
    }

    fn sleep(&mut self, count: usize) -> io::Result<()> {
        let now = self.rest.now();
        // With the ring full there is nothing to do for sockets until there is room.
        let reads = self.waiting.is_empty();
        let mut until = None;
        if !(self.rest.spins(now, count) || reads && self.tcp.busy()) {
            self.rest.park();
            let nothing = self.orders.is_empty() && !self.orders.closed();
            if nothing && self.has_no_room() && (!reads || self.tcp.park()) {
                let shown = if self.dirty {
                    self.figures_at
                } else {
                    Time::NEVER
                };
                until = Some(self.tcp.next_deadline().min(shown));
            }
        }
        let events = self.rest.sleep(now, until)?;
        self.tcp.awake();
        let now = self.rest.now();
        for event in &events {
            self.tcp.on_event(event, now);
        }
        self.rest.done(events);
        Ok(())
    }

    /// Nothing waits for room, or there still is none.
    fn has_no_room(&mut self) -> bool {
        let Some((at, arrival)) = self.waiting.pop_front() else {
            return true;
        };
        let pushed = self.arrivals.push(weight(&arrival), (at, arrival));
        match pushed {
            Ok(()) => {
                self.arrivals.ring();
                false
            }
            Err(item) => {
                self.waiting.push_front(item);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::FrontendId;

    #[test]
    fn frames_from_before_a_link_changed_are_not_for_the_next_one() {
        let mut changes = LinkChanges::new(3);
        let (one, two) = (ReplicaId(1), ReplicaId(2));
        let both = ReplicaSet::EMPTY.with(one).with(two);
        let link = |id, link| Arrival::Link(Peer::Replica(id), link);
        changes.note(&link(one, Link::Down));
        changes.note(&Arrival::Link(Peer::Frontend(FrontendId(4)), Link::Down));
        changes.note(&link(one, Link::Reset));
        changes.note(&link(one, Link::Room(7)));
        changes.note(&link(two, Link::Down));
        let known = |seen| changes.known(both, seen);
        assert_eq!(known(1), ReplicaSet::EMPTY, "neither");
        assert_eq!(known(2), ReplicaSet::EMPTY.with(one));
        assert_eq!(known(3), both);
    }
}

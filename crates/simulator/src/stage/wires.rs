//! The wires of a stage: connections, what is on its way, what is cut.
//!
//! ```text
//!   transmit ──► connected? ──no──► dropped
//!                   │ yes
//!                   ▼
//!                cut? ──yes──► held back until healed, or lost with the connection
//!                   │ no
//!                   ▼
//!                delay ──► Frame      stream: in order per lane; a loss breaks the connection
//!                                     datagram: lost, doubled, overtaken
//! ```

use super::{Event, Stage};
use crate::clock::MILLISECOND;
use quintet_replica::{Bytes, FrontendId, Incarnation, Lane, Link, Peer, ReplicaId};
use std::collections::{BTreeMap, BTreeSet};

/// Frontends of remote clients have this number plus their place.
pub(super) const REMOTE: u64 = 1 << 20;
/// Bytes that may be in progress on a link before it is declared down.
pub(crate) const CAPACITY: usize = 8 << 20;

/// A frame on its way.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub from: usize,
    pub to: usize,
    pub frame: Bytes,
}

/// See the module. Places are replicas, then remote clients.
pub(super) struct Wires {
    /// Connected pairs, the smaller place first.
    up: BTreeSet<(usize, usize)>,
    cut: BTreeSet<(usize, usize)>,
    stalled: BTreeMap<(usize, usize), Vec<(Lane, Bytes)>>,
    lane_last: BTreeMap<(usize, usize, u8), u64>,
    in_flight: BTreeMap<(usize, usize), usize>,
    pub in_flight_max: usize,
    /// A frame takes from this long …
    delay: u64,
    /// … to this much longer.
    jitter: u64,
    slow: BTreeMap<(usize, usize), u64>,
    /// Of 1,000 frames between replicas, that many are lost …
    loss: u64,
    /// … and that many doubled.
    duplicate: u64,
    datagram: bool,
    /// How many frames were lost, doubled, held back.
    pub lost: u64,
    pub doubled: u64,
    pub blocked: u64,
}

const fn pair(a: usize, b: usize) -> (usize, usize) {
    if a < b { (a, b) } else { (b, a) }
}

impl Wires {
    pub const fn new() -> Self {
        Self {
            up: BTreeSet::new(),
            cut: BTreeSet::new(),
            stalled: BTreeMap::new(),
            lane_last: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            in_flight_max: 0,
            delay: 100_000,
            jitter: 100_000,
            slow: BTreeMap::new(),
            loss: 0,
            duplicate: 0,
            datagram: false,
            lost: 0,
            doubled: 0,
            blocked: 0,
        }
    }

    /// Bytes that may still be queued.
    pub fn room(&self, from: usize, to: usize) -> usize {
        CAPACITY - self.in_flight.get(&(from, to)).copied().unwrap_or(0)
    }
}

impl Stage {
    /// How many places there are.
    pub fn places(&self) -> usize {
        self.hosts.len()
            + self
                .clients
                .iter()
                .filter(|client| client.is_remote())
                .count()
    }

    pub(super) fn peer(&self, place: usize) -> Peer {
        // A client of one of several groups is at a replica that is no member of it.
        if place < self.hosts.len() || self.setting.neighbour.is_some() {
            Peer::Replica(ReplicaId(place as u16))
        } else {
            Peer::Frontend(FrontendId(REMOTE + place as u64))
        }
    }

    pub(super) fn transmit(&mut self, from: usize, to: usize, lane: Lane, frame: Bytes) {
        if !self.wires.up.contains(&pair(from, to)) {
            return self.say(|| format!("{from}: no link to {to}"));
        }
        let length = frame.len();
        if self.wires.room(from, to) < length {
            self.mark("link overflow");
            self.break_link(from, to, Link::Down);
            return;
        }
        let in_flight = self.wires.in_flight.entry((from, to)).or_default();
        *in_flight += length;
        self.wires.in_flight_max = self.wires.in_flight_max.max(*in_flight);
        if self.wires.cut.contains(&(from, to)) {
            self.wires.blocked += 1;
            self.wires
                .stalled
                .entry((from, to))
                .or_default()
                .push((lane, frame));
        } else {
            self.put_on_wire(from, to, lane, frame);
        }
    }

    fn put_on_wire(&mut self, from: usize, to: usize, lane: Lane, frame: Bytes) {
        let replicas = self.hosts.len();
        let mut copies = 1;
        if from < replicas && to < replicas {
            if self.wires.loss > 0 && self.random.chance(self.wires.loss) {
                self.wires.lost += 1;
                if self.wires.datagram {
                    self.landed(from, to, frame.len());
                } else {
                    self.break_link(from, to, Link::Reset);
                }
                return;
            }
            if self.wires.datagram && self.random.chance(self.wires.duplicate) {
                self.wires.doubled += 1;
                copies = 2;
            }
        }
        for copy in 0..copies {
            let slow = self.wires.slow.get(&(from, to)).copied().unwrap_or(1);
            let jitter = self.random.below(self.wires.jitter + 1);
            let mut at = self.now + (self.wires.delay + jitter) * slow;
            if copy > 0 {
                at += self.random.below(20 * MILLISECOND);
                *self.wires.in_flight.entry((from, to)).or_default() += frame.len();
            }
            if !self.wires.datagram {
                let last = self
                    .wires
                    .lane_last
                    .entry((from, to, lane as u8))
                    .or_default();
                at = at.max(*last);
                *last = at;
            }
            let frame = frame.clone();
            self.at(at, Event::Frame(Packet { from, to, frame }));
        }
    }

    fn landed(&mut self, from: usize, to: usize, length: usize) {
        if let Some(in_flight) = self.wires.in_flight.get_mut(&(from, to)) {
            *in_flight = in_flight.saturating_sub(length);
        }
    }

    pub(super) fn arrive(&mut self, packet: Packet) {
        if self.hosts.get(packet.to).is_some_and(|host| host.paused) {
            return self.hosts[packet.to].held.push(Event::Frame(packet));
        }
        let Packet {
            from, to, frame, ..
        } = packet;
        self.landed(from, to, frame.len());
        if to < self.hosts.len() {
            let part = self.part_for(to, &frame);
            self.give_frame(part, from, frame);
        } else {
            self.client_frame(to, from, frame);
        }
    }

    fn is_alive(&self, place: usize) -> bool {
        self.hosts.get(place).is_none_or(|host| host.node.is_some())
    }

    fn tell_later(&mut self, at: usize, peer: usize, link: Link, after: u64) {
        let boot = self.hosts.get(at).map_or(0, |host| host.boot);
        self.at(
            self.now + after,
            Event::Told {
                at,
                boot,
                peer,
                link,
            },
        );
    }

    pub(super) fn tell(&mut self, at: usize, boot: u32, peer: usize, link: Link) {
        let up = self.wires.up.contains(&pair(at, peer));
        // A break is told late; a connection made meanwhile makes it old news.
        if up != matches!(link, Link::Up { .. } | Link::Room(_)) {
            return;
        }
        if at >= self.hosts.len() {
            return self.client_link(at, peer, link);
        }
        let host = &mut self.hosts[at];
        if host.boot != boot || host.node.is_none() {
            return;
        }
        if host.paused {
            return host.held.push(Event::Told {
                at,
                boot,
                peer,
                link,
            });
        }
        for part in self.parts_of(at) {
            self.give_link(part, peer, link);
        }
    }

    /// Breaks a connection with all that is on its way; both ends learn of it.
    pub fn break_link(&mut self, a: usize, b: usize, link: Link) {
        if !self.wires.up.remove(&pair(a, b)) {
            return;
        }
        self.forget_frames(a, b);
        self.forget_frames(b, a);
        for (at, peer) in [(a, b), (b, a)] {
            self.tell_later(at, peer, link, 0);
        }
        self.connect_later(a, b);
    }

    fn connect_later(&mut self, a: usize, b: usize) {
        if !self.setting.by_hand {
            let at = self.now + self.random.between(2, 20) * MILLISECOND;
            self.at(at, Event::Connect { a, b });
        }
    }

    /// Frames in flight are lost.
    pub(super) fn forget_frames(&mut self, from: usize, to: usize) {
        self.events.retain(|_, event| match event {
            Event::Frame(packet) => packet.from != from || packet.to != to,
            _ => true,
        });
        for host in self.hosts.iter_mut() {
            host.held.retain(|event| match event {
                Event::Frame(packet) => packet.from != from || packet.to != to,
                _ => true,
            });
        }
        self.wires.stalled.remove(&(from, to));
        self.wires.in_flight.remove(&(from, to));
    }

    /// The process at `place` died: what is on its way to it is lost, what it sent may arrive
    /// until there is a new connection.
    pub(super) fn lose_links(&mut self, place: usize, quietly: bool) {
        for other in (0..self.places()).filter(|other| *other != place) {
            if self.wires.up.remove(&pair(place, other)) {
                self.forget_frames(other, place);
                if !quietly {
                    // Behind what it still sent.
                    let after = match self.setting.by_hand {
                        true => 0,
                        false => 4 * (self.wires.delay + self.wires.jitter),
                    };
                    self.tell_later(other, place, Link::Reset, after);
                    self.connect_later(place, other);
                }
            }
        }
    }

    /// Makes a connection if both ends are there and nothing is cut between them.
    pub fn connect(&mut self, a: usize, b: usize) {
        if self.wires.up.contains(&pair(a, b)) {
            return;
        }
        let cut = self.wires.cut.contains(&(a, b)) || self.wires.cut.contains(&(b, a));
        if cut || !self.is_alive(a) || !self.is_alive(b) {
            for (at, peer) in [(a, b), (b, a)] {
                self.tell_later(at, peer, Link::Down, 0);
            }
            if cut {
                self.connect_later(a, b);
            }
            return;
        }
        self.forget_frames(a, b);
        self.forget_frames(b, a);
        self.wires.up.insert(pair(a, b));
        for (at, peer) in [(a, b), (b, a)] {
            let incarnation = self
                .hosts
                .get(peer)
                .map_or(Incarnation(0), |host| host.incarnation);
            self.tell_later(at, peer, Link::Up { incarnation }, 0);
        }
    }

    /// Nothing gets from the first of each pair to the second. With `resets` their connections
    /// break, too; else what is sent waits.
    pub fn cut(&mut self, pairs: &[(usize, usize)], resets: bool) {
        for (from, to) in pairs.iter().copied().filter(|(from, to)| from != to) {
            self.wires.cut.insert((from, to));
            if resets {
                self.break_link(from, to, Link::Down);
            }
        }
    }

    /// Nothing gets from one side to the other, in both directions.
    pub fn part(&mut self, one: &[usize], other: &[usize], resets: bool) {
        let pairs: Vec<_> = one
            .iter()
            .flat_map(|a| other.iter().flat_map(move |b| [(*a, *b), (*b, *a)]))
            .collect();
        self.cut(&pairs, resets);
    }

    /// Cuts a replica off from all other replicas and all remote clients.
    pub fn isolate(&mut self, host: usize, resets: bool) {
        let others: Vec<usize> = (0..self.places()).filter(|other| *other != host).collect();
        self.part(&[host], &others, resets);
    }

    /// All links work; waiting frames are sent.
    pub fn heal(&mut self) {
        self.wires.cut.clear();
        for ((from, to), frames) in std::mem::take(&mut self.wires.stalled) {
            for (lane, frame) in frames {
                if self.wires.up.contains(&pair(from, to)) {
                    self.put_on_wire(from, to, lane, frame);
                }
            }
        }
    }

    /// From now on frames take from `delay` to `jitter` nanoseconds longer.
    pub const fn distance(&mut self, delay: u64, jitter: u64) {
        self.wires.delay = delay;
        self.wires.jitter = jitter;
    }

    /// Frames to and from this replica take `times` as long.
    pub fn slow_links(&mut self, host: usize, times: u64) {
        for other in (0..self.places()).filter(|other| *other != host) {
            for way in [(host, other), (other, host)] {
                self.wires.slow.insert(way, times);
            }
        }
    }

    /// How many nanoseconds a frame takes on a link that is not slow.
    pub const fn delay(&self) -> u64 {
        self.wires.delay
    }

    /// Frames one way between two take `times` as long.
    pub fn slow_link(&mut self, from: usize, to: usize, times: u64) {
        self.wires.slow.insert((from, to), times);
    }

    /// Of 1,000 frames between replicas `loss` are lost and `duplicate` doubled. Where a
    /// protocol relies on streams a loss breaks the connection, and nothing is doubled.
    pub const fn weather(&mut self, loss: u64, duplicate: u64) {
        self.wires.loss = loss;
        self.wires.duplicate = duplicate;
        let neighbour = &self.setting.neighbour;
        let streams = self.setting.entry.needs_streams
            || matches!(neighbour, Some(neighbour) if neighbour.needs_streams);
        if !streams && (loss > 0 || duplicate > 0) {
            self.wires.datagram = true;
        }
    }

    /// Frames lost, doubled, and held back by a cut so far.
    pub const fn disturbances(&self) -> (u64, u64, u64) {
        (self.wires.lost, self.wires.doubled, self.wires.blocked)
    }

    /// The most bytes that ever were on one link.
    pub const fn in_flight_max(&self) -> usize {
        self.wires.in_flight_max
    }

    // --- by hand ---------------------------------------------------------------------------

    /// The frames in flight, in the order of sending, with a key for [`Self::take_frame`].
    pub fn frames(&self) -> impl Iterator<Item = ((u64, u64), &Packet)> {
        let mut frames: Vec<_> = (self.events.iter())
            .filter_map(|(key, event)| match event {
                Event::Frame(packet) => Some((*key, packet)),
                _ => None,
            })
            .collect();
        frames.sort_by_key(|((_, sequence), _)| *sequence);
        frames.into_iter()
    }

    /// Takes a frame off the wire.
    pub fn take_frame(&mut self, key: (u64, u64)) -> Option<Packet> {
        match self.events.remove(&key) {
            Some(Event::Frame(packet)) => Some(packet),
            _ => None,
        }
    }

    /// Puts a frame back where it was taken from.
    pub fn put_back(&mut self, key: (u64, u64), packet: Packet) {
        self.events.insert(key, Event::Frame(packet));
    }

    /// Delivers a frame now.
    pub fn deliver(&mut self, packet: Packet) {
        self.arrive(packet);
    }

    /// A frame that was taken off the wire is lost.
    pub fn lose(&mut self, packet: &Packet) {
        self.landed(packet.from, packet.to, packet.frame.len());
    }
}

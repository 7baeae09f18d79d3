//! The network: who can reach whom, how long bytes take, and which are lost.
//!
//! ```text
//!   place = replica 0..n, then clients
//!
//!   send ──► connection up? ──no──► dropped (retransmission is the protocol's)
//!               │ yes
//!               ▼
//!            direction blocked? ──yes──► held back until the partition heals or the
//!               │ no                     connection is reset
//!               ▼
//!            delay: base + jitter + rare tail + attack + length + retransmissions
//!               │ stream: first-in-first-out per lane; loss costs time
//!               │ datagram: loss loses, duplicates and overtaking happen
//!               ▼
//!            Deliver{session}: dropped when the connection was reset meanwhile
//! ```
//!
//! A reset loses all that is in flight behind a drawn point, in each direction by itself. A new
//! session begins with `Up` at both ends; no frame of an older one comes after it.

use crate::{event::Event, queue::Queue, random::Random};
use quintet_replica::{Bytes, Lane, Link};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, collections::VecDeque};

/// The promise of the transport below the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Like TCP: in order per lane, nothing lost within a session.
    #[default]
    Stream,
    /// Like UDP: frames are lost, duplicated and overtake each other.
    Datagram,
}

impl Transport {
    /// `stream` or `datagram`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stream => "stream",
            Self::Datagram => "datagram",
        }
    }
}

impl std::str::FromStr for Transport {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "stream" => Ok(Self::Stream),
            "datagram" => Ok(Self::Datagram),
            _ => Err("expected 'stream' or 'datagram'"),
        }
    }
}

/// How the links of a seed behave. Times are nanoseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LinkProfile {
    pub transport: Transport,
    /// The shortest delay of any link …
    pub delay_min: u64,
    /// … and how much slower single links may be.
    pub delay_spread: u64,
    /// Each frame takes about this much longer; how it varies is drawn per link.
    pub jitter: u64,
    /// Bytes that may be in progress on a link before it is declared down.
    pub capacity: usize,
    /// On all links a frame's delay has no bound that a protocol could wait for: half of them take up
    /// to the jitter longer, and of those that take longer than any time, half may take twice that.
    #[serde(default)]
    pub unbounded: bool,
}

/// Disturbances of one direction of a link while they last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weather {
    /// Of 1,000 frames, this many are lost.
    pub loss: u64,
    /// Of 1,000 frames, this many come twice (datagram only).
    pub duplicate: u64,
    /// Of 1,000 frames, this many take up to `tail` longer.
    pub late: u64,
    /// See `late`.
    pub tail: u64,
    /// Everything takes this much longer.
    pub attack: u64,
}

/// How much longer than its shortest time a frame takes.
#[derive(Clone, Copy, Debug, Default)]
enum Jitter {
    /// Anything up to the jitter.
    #[default]
    Even,
    /// Mostly little, rarely many times the jitter.
    Tailed,
    /// Nothing, or in one of ten cases several times the jitter.
    Twofold,
    /// See [`LinkProfile::unbounded`].
    Unbounded,
}

impl Jitter {
    fn draw(self, jitter: u64, random: &mut Random) -> u64 {
        match self {
            Self::Even => random.below(jitter + 1),
            Self::Tailed => {
                let doublings = random.draw().trailing_zeros().min(6);
                random.below(((jitter / 4) << doublings) + 1)
            }
            Self::Twofold if random.chance(100) => jitter * 3 + random.below(jitter + 1),
            Self::Twofold => 0,
            Self::Unbounded => {
                let doublings = random.draw().trailing_zeros().min(DOUBLINGS_MAX);
                random.below((jitter << doublings) + 1)
            }
        }
    }
}

#[derive(Default)]
struct Direction {
    base: u64,
    /// Frames take this many times longer.
    slow: u64,
    weather: Weather,
    jitter: Jitter,
    blocked: bool,
    /// Nothing on this lane arrives before this.
    lane_last: [u64; 2],
    in_flight: usize,
    /// Held back by a partition.
    stalled: VecDeque<(Lane, Bytes)>,
    /// Frames of the session before the present one still arrive up to this time.
    cut: u64,
    /// Sender was told that the room is short.
    short: bool,
}

#[derive(Default)]
struct Pair {
    session: u32,
    up: bool,
    /// A `Connect` is on its way.
    connecting: bool,
}

/// The outcome of a frame given to [`Network::send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It is in progress, held back, or lost by chance.
    Taken,
    /// The connection is not up.
    Dropped,
    /// The queue is full: the link must be declared down.
    Overflow,
}

/// See the module.
pub(crate) struct Network {
    places: usize,
    profile: LinkProfile,
    directions: Vec<Direction>,
    pairs: Vec<Pair>,
    random: Random,
    /// How often each disturbance happened.
    pub counts: BTreeMap<&'static str, u64>,
    /// The most bytes ever in progress on one link.
    pub in_flight_max: usize,
}

/// A stream waits for its latest frame, and a seed must end: beyond 512 times the jitter, hundreds
/// of times what a protocol under test waits, delays end after all.
const DOUBLINGS_MAX: u32 = 9;
const RETRANSMISSION: u64 = 20_000_000;
/// A frame so long …
const LONG: usize = 1024;
/// … that is so long in progress is told to be coming.
const ARRIVING_AFTER: u64 = 20_000_000;
/// Frames of a broken connection arrive for at most this long.
const STRAGGLE_MAX: u64 = 50_000_000;

impl Network {
    pub fn new(places: usize, profile: LinkProfile, mut random: Random) -> Self {
        let directions = (0..places * places)
            .map(|_| Direction {
                base: profile.delay_min + random.below(profile.delay_spread + 1),
                slow: 1,
                jitter: match [Jitter::Even, Jitter::Tailed, Jitter::Twofold][random.index(3)] {
                    _ if profile.unbounded => Jitter::Unbounded,
                    drawn => drawn,
                },
                ..Direction::default()
            })
            .collect();
        Self {
            places,
            profile,
            directions,
            pairs: (0..places * places).map(|_| Pair::default()).collect(),
            random,
            counts: BTreeMap::new(),
            in_flight_max: 0,
        }
    }

    pub const fn places(&self) -> usize {
        self.places
    }

    pub const fn capacity(&self) -> usize {
        self.profile.capacity
    }

    fn direction(&mut self, from: usize, to: usize) -> &mut Direction {
        &mut self.directions[from * self.places + to]
    }

    fn pair(&mut self, a: usize, b: usize) -> &mut Pair {
        &mut self.pairs[a.min(b) * self.places + a.max(b)]
    }

    pub fn is_up(&self, a: usize, b: usize) -> bool {
        self.pairs[a.min(b) * self.places + a.max(b)].up
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Bytes that may still be queued.
    pub fn room(&self, from: usize, to: usize) -> usize {
        self.profile
            .capacity
            .saturating_sub(self.directions[from * self.places + to].in_flight)
    }

    pub fn send(
        &mut self,
        (from, to): (usize, usize),
        lane: Lane,
        bytes: Bytes,
        now: u64,
        queue: &mut Queue<Event>,
    ) -> Sent {
        if !self.is_up(from, to) {
            return Sent::Dropped;
        }
        let (capacity, length) = (self.profile.capacity, bytes.len());
        let direction = self.direction(from, to);
        if direction.in_flight + length > capacity {
            return Sent::Overflow;
        }
        direction.in_flight += length;
        direction.short |= direction.in_flight > capacity / 2;
        let in_flight = direction.in_flight;
        let blocked = direction.blocked;
        self.in_flight_max = self.in_flight_max.max(in_flight);
        if blocked {
            self.count("frames_blocked");
            self.direction(from, to).stalled.push_back((lane, bytes));
        } else {
            self.transmit((from, to), lane, bytes, now, queue);
        }
        Sent::Taken
    }

    fn transmit(
        &mut self,
        (from, to): (usize, usize),
        lane: Lane,
        bytes: Bytes,
        now: u64,
        queue: &mut Queue<Event>,
    ) {
        let session = self.pair(from, to).session;
        let Direction {
            weather, jitter, ..
        } = *self.direction(from, to);
        let mut copies = 1;
        let mut retransmitted = 0;
        if weather.loss > 0 && self.random.chance(weather.loss) {
            self.count("loss");
            match self.profile.transport {
                Transport::Stream => {
                    retransmitted = RETRANSMISSION;
                    while retransmitted < 4 * RETRANSMISSION && self.random.chance(weather.loss) {
                        retransmitted *= 2;
                    }
                }
                Transport::Datagram => {
                    self.direction(from, to).in_flight -= bytes.len();
                    return;
                }
            }
        }
        if weather.duplicate > 0
            && self.profile.transport == Transport::Datagram
            && self.random.chance(weather.duplicate)
        {
            self.count("duplicate");
            copies = 2;
        }
        for copy in 0..copies {
            let mut delay = jitter.draw(self.profile.jitter, &mut self.random) + retransmitted;
            if weather.attack > 0 {
                delay += weather.attack;
                self.count("attack");
            }
            // 10 Gbit/s.
            delay += bytes.len() as u64 * 8 / 10;
            if weather.late > 0 && self.random.chance(weather.late) {
                delay += self.random.below(weather.tail + 1);
                self.count("delay");
            }
            let transport = self.profile.transport;
            let direction = &mut self.directions[from * self.places + to];
            let mut at = now + direction.base * direction.slow + delay;
            let last = &mut direction.lane_last[lane as usize];
            let overtakes = at < *last;
            match transport {
                Transport::Stream => at = at.max(*last),
                Transport::Datagram => {}
            }
            *last = at.max(*last);
            if copy > 0 {
                direction.in_flight += bytes.len();
            }
            if overtakes && transport == Transport::Datagram {
                self.count("reorder");
            }
            let (from, to, frame) = (from as u16, to as u16, bytes.clone());
            if transport == Transport::Stream && frame.len() >= LONG && at - now >= ARRIVING_AFTER {
                let told = Event::LinkTold {
                    at: to,
                    peer: from,
                    link: Link::Arriving,
                };
                queue.push(now.midpoint(at), told);
            }
            queue.push(
                at,
                Event::Deliver {
                    from,
                    to,
                    session,
                    frame,
                },
            );
        }
    }

    /// A frame comes to its end; false when its connection was reset before.
    pub fn arrives(
        &mut self,
        (from, to): (usize, usize),
        session: u32,
        length: usize,
        now: u64,
    ) -> bool {
        let current = self.pair(from, to).session;
        let direction = self.direction(from, to);
        if session == current {
            direction.in_flight -= length;
            return true;
        }
        let arrives = session + 1 == current && now <= direction.cut;
        if !arrives {
            self.count("frames_lost_by_reset");
        }
        arrives
    }

    /// Whether the sender should be told that there is room again, and how much.
    pub fn room_again(&mut self, from: usize, to: usize) -> Option<usize> {
        let (room, capacity) = (self.room(from, to), self.profile.capacity);
        let direction = self.direction(from, to);
        (direction.short && room > capacity * 3 / 4).then(|| {
            direction.short = false;
            room
        })
    }

    /// Breaks the connection. Frames in flight in each direction are lost behind a drawn point.
    /// Gives false when there was none, else by when the last frame will have arrived.
    pub fn reset(&mut self, a: usize, b: usize, now: u64) -> Option<u64> {
        let pair = self.pair(a, b);
        if !pair.up {
            return None;
        }
        pair.up = false;
        pair.session += 1;
        let mut last = now;
        for (from, to) in [(a, b), (b, a)] {
            let (choice, share) = (self.random.below(3), self.random.below(1000));
            let direction = self.direction(from, to);
            // Of what is in progress nothing, a part, or all still arrives.
            let latest = direction.lane_last[0].max(direction.lane_last[1]);
            let left = latest.saturating_sub(now).min(STRAGGLE_MAX);
            direction.cut = match choice {
                _ if direction.blocked => now,
                0 => now,
                1 => now + left * share / 1000,
                _ => now + left,
            };
            direction.in_flight = 0;
            direction.short = false;
            direction.stalled.clear();
            last = last.max(direction.cut);
        }
        Some(last)
    }

    /// Asks for a new connection at `at`, once.
    pub fn connect_at(&mut self, a: usize, b: usize, at: u64, queue: &mut Queue<Event>) {
        let pair = self.pair(a, b);
        if !pair.up && !pair.connecting {
            pair.connecting = true;
            queue.push(
                at,
                Event::Connect {
                    a: a as u16,
                    b: b as u16,
                },
            );
        }
    }

    /// A connection that was asked for is not made.
    pub fn refuse(&mut self, a: usize, b: usize) {
        self.pair(a, b).connecting = false;
    }

    /// Tries to make the connection now; false when it is up already or blocked.
    pub fn connect(&mut self, a: usize, b: usize, now: u64) -> bool {
        let blocked = self.direction(a, b).blocked || self.direction(b, a).blocked;
        let pair = self.pair(a, b);
        pair.connecting = false;
        if pair.up || blocked {
            return false;
        }
        pair.up = true;
        for (from, to) in [(a, b), (b, a)] {
            self.direction(from, to).lane_last = [now; 2];
        }
        true
    }

    /// Nothing gets from `from` to `to` from now on.
    pub fn block(&mut self, from: usize, to: usize) {
        self.direction(from, to).blocked = true;
    }

    /// Directions in which nothing gets through now.
    pub fn blocked(&self) -> Vec<(usize, usize)> {
        let blocked = |at: &usize| self.directions[*at].blocked;
        (0..self.directions.len())
            .filter(blocked)
            .map(|at| (at / self.places, at % self.places))
            .collect()
    }

    /// All frames that were held back are sent.
    pub fn unblock(&mut self, from: usize, to: usize, now: u64, queue: &mut Queue<Event>) {
        let direction = self.direction(from, to);
        direction.blocked = false;
        for (lane, bytes) in std::mem::take(&mut direction.stalled) {
            self.transmit((from, to), lane, bytes, now, queue);
        }
    }

    /// The weather on the way from `from` to `to`.
    pub fn weather(&mut self, from: usize, to: usize) -> &mut Weather {
        &mut self.direction(from, to).weather
    }

    /// Nothing of what is in progress or held back on a broken connection arrives any more.
    pub fn cut_now(&mut self, from: usize, to: usize, now: u64) {
        let direction = self.direction(from, to);
        direction.cut = direction.cut.min(now.saturating_sub(1));
    }

    /// Frames from `from` to `to` take `times` as long.
    pub fn slow(&mut self, from: usize, to: usize, times: u64) {
        self.direction(from, to).slow = times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(transport: Transport) -> (Network, Queue<Event>) {
        let profile = LinkProfile {
            transport,
            delay_min: 100,
            delay_spread: 0,
            jitter: 5_000_000,
            capacity: 1000,
            unbounded: false,
        };
        (Network::new(3, profile, Random::new(3)), Queue::new())
    }

    fn payloads(network: &mut Network, queue: &mut Queue<Event>) -> Vec<u8> {
        let mut got = Vec::new();
        while let Some((at, event)) = queue.pop() {
            if let Event::Deliver {
                from,
                to,
                session,
                frame,
            } = event
                && network.arrives((from.into(), to.into()), session, frame.len(), at)
            {
                got.push(frame[0]);
            }
        }
        got
    }

    fn send(network: &mut Network, queue: &mut Queue<Event>, byte: u8) -> Sent {
        network.send(
            (0, 1),
            Lane::Control,
            Bytes::copy_from_slice(&[byte; 10]),
            0,
            queue,
        )
    }

    #[test]
    fn stream_keeps_its_order_and_loses_nothing() {
        let (mut network, mut queue) = network(Transport::Stream);
        assert_eq!(send(&mut network, &mut queue, 0), Sent::Dropped);
        assert!(network.connect(0, 1, 0));
        network.weather(0, 1).loss = 300;
        for byte in 0..50 {
            assert_eq!(send(&mut network, &mut queue, byte), Sent::Taken);
        }
        assert_eq!(
            payloads(&mut network, &mut queue),
            (0..50).collect::<Vec<_>>()
        );
        assert!(network.counts["loss"] > 0);
    }

    #[test]
    fn datagrams_are_lost_doubled_and_overtake() {
        let (mut network, mut queue) = network(Transport::Datagram);
        assert!(network.connect(0, 1, 0));
        (network.weather(0, 1).loss, network.weather(0, 1).duplicate) = (200, 200);
        for byte in 0..80 {
            send(&mut network, &mut queue, byte);
        }
        let got = payloads(&mut network, &mut queue);
        assert!(!got.is_sorted());
        for what in ["loss", "duplicate", "reorder"] {
            assert!(network.counts[what] > 0, "{what}");
        }
    }

    #[test]
    fn reset_loses_what_is_behind_cut_and_nothing_comes_after_up() {
        let mut some_lost = false;
        for seed in 0..20 {
            let (mut network, mut queue) = network(Transport::Stream);
            network.random = Random::new(seed);
            network.connect(0, 1, 0);
            for byte in 0..20 {
                send(&mut network, &mut queue, byte);
            }
            assert!(network.reset(0, 1, 0).is_some());
            assert_eq!(send(&mut network, &mut queue, 99), Sent::Dropped);
            let got = payloads(&mut network, &mut queue);
            some_lost |= got.len() < 20;
            assert_eq!(got, (0..got.len() as u8).collect::<Vec<_>>());
        }
        assert!(some_lost);
    }

    #[test]
    fn frame_cut_in_flight_never_arrives() {
        let (mut network, mut queue) = network(Transport::Stream);
        network.connect(0, 1, 0);
        for byte in 0..20 {
            send(&mut network, &mut queue, byte);
        }
        assert!(network.reset(0, 1, 1).is_some());
        network.cut_now(0, 1, 1);
        assert!(payloads(&mut network, &mut queue).is_empty());
    }

    #[test]
    fn partition_holds_back_and_a_full_link_overflows() {
        let (mut network, mut queue) = network(Transport::Stream);
        network.connect(0, 1, 0);
        network.block(0, 1);
        for byte in 0..100 {
            assert_eq!(send(&mut network, &mut queue, byte), Sent::Taken);
        }
        assert_eq!(send(&mut network, &mut queue, 100), Sent::Overflow);
        assert!(payloads(&mut network, &mut queue).is_empty());
        network.unblock(0, 1, 0, &mut queue);
        assert_eq!(payloads(&mut network, &mut queue).len(), 100);
        assert!(network.room_again(0, 1).is_some());
    }
}

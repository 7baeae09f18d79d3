//! One clock that is wrong, at each role: what it costs the clients of a healthy sender, or those
//! of the sender whose clock it is.
//!
//! ```text
//!   sender ──50 µs──► leader, two followers ──50 µs──► each other, and the sender
//! ```

use super::epoch;
use super::logs::{BASE, Host, batch};
use crate::{
    group::Clock,
    nezha::{Config, Message, Nezha, Part, Timer},
};
use alloc::{collections::VecDeque, vec, vec::Vec};
use quintet_replica::{
    BatchId, Bytes, Client, ClientDriver, Durability, Effect, FrontendId, FrontendSetup, Level,
    Peer, Recipients, ReplicaId, Submission, Time, Wire,
};

const MICROS: u64 = 1000;
const DELAY: u64 = 50 * MICROS;
const STEP: u64 = 10 * MICROS;

/// Something on its way.
enum Packet {
    ToReplica(u16, Peer, Message),
    ToSender(u16, Message),
    Results(u16, BatchId, Bytes),
}

/// The first three clocks are the replicas', the last one the sender's; each is that many
/// nanoseconds ahead.
struct Scene {
    hosts: Vec<Host>,
    sender: ClientDriver<Nezha>,
    clock: Clock,
    ahead: [i64; 4],
    now: u64,
    network: VecDeque<(u64, Packet)>,
    effects: Vec<Effect>,
    done: usize,
}

impl Scene {
    fn new(ahead: [i64; 4]) -> Self {
        let config = Config::default();
        let setup = FrontendSetup {
            id: FrontendId(9),
            embedded: None,
            epoch: epoch(3),
            durability: Durability::Memory,
            options: config.clone(),
        };
        let mut scene = Self {
            hosts: (0..3).map(|id| Host::new(id, 3, &config)).collect(),
            sender: ClientDriver::new(setup, 1),
            clock: Clock {
                now: Time(BASE),
                room: 1 << 20,
            },
            ahead,
            now: BASE,
            network: VecDeque::new(),
            effects: Vec::new(),
            done: 0,
        };
        let status = Part::LogStatus {
            sync: quintet_replica::Slot(0),
            round: 0,
        };
        for id in [1, 2] {
            scene.hosts[0].hear(id, 0, &[1, 1, 1], status.clone());
            scene.hosts[usize::from(id)].hear(0, 0, &[1, 1, 1], Part::Suspect);
        }
        scene
    }

    fn put(&mut self, packet: Packet) {
        self.network.push_back((self.now + DELAY, packet));
    }

    /// Puts on its way what replicas and the sender have said.
    fn gather(&mut self) {
        for id in 0..3u16 {
            let host = &mut self.hosts[usize::from(id)];
            let said = core::mem::take(&mut host.said);
            let replied = core::mem::take(&mut host.replied);
            let headers = core::mem::take(&mut host.headers);
            for message in said {
                let to: &[u16] = match (&message, id) {
                    (_, 1 | 2) => &[0],
                    _ => &[1, 2],
                };
                for to in to {
                    let from = Peer::Replica(ReplicaId(id));
                    self.put(Packet::ToReplica(*to, from, message.clone()));
                }
            }
            for message in replied {
                self.put(Packet::ToSender(id, message));
            }
            for (batch, header) in headers {
                self.put(Packet::Results(id, batch, header.encode_to_bytes()));
            }
        }
        for effect in core::mem::take(&mut self.effects) {
            match effect {
                Effect::Send {
                    to: Recipients::Replicas(to),
                    frame,
                    ..
                } => {
                    let bytes = frame.into_bytes();
                    for to in to.iter() {
                        let message = Message::decode_all(bytes.clone()).expect("its own words");
                        let from = Peer::Frontend(FrontendId(9));
                        self.put(Packet::ToReplica(to.0, from, message));
                    }
                }
                Effect::Done { .. } => self.done += 1,
                _ => {}
            }
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        for id in 0..3 {
            self.hosts[id].clock.now = Time(self.now.wrapping_add_signed(self.ahead[id]));
        }
        self.clock.now = Time(self.now.wrapping_add_signed(self.ahead[3]));
        while self.network.front().is_some_and(|(at, _)| *at <= self.now) {
            let Some((_, packet)) = self.network.pop_front() else {
                break;
            };
            match packet {
                Packet::ToReplica(to, from, message) => {
                    self.hosts[usize::from(to)].message(from, &message);
                }
                Packet::ToSender(from, message) => {
                    let (from, bytes) = (ReplicaId(from), message.encode_to_bytes());
                    (self.sender)
                        .on_message(from, bytes, &self.clock, &mut self.effects)
                        .expect("well-formed");
                }
                Packet::Results(from, batch, header) => {
                    let reply = (header, Bytes::from_static(b"done"));
                    (self.sender)
                        .on_reply(
                            ReplicaId(from),
                            batch,
                            reply,
                            &self.clock,
                            &mut self.effects,
                        )
                        .expect("well-formed");
                }
            }
        }
        for host in &mut self.hosts {
            host.wakes(Timer::Release);
            host.idle();
        }
        self.gather();
    }

    /// How long a write takes, in microseconds, once the clocks' distances are measured.
    fn latency(&mut self) -> u64 {
        let mut latencies = vec![];
        for number in 1..=9 {
            let submission = Submission {
                id: BatchId(number),
                level: Level::Ordered,
                batch: batch(number, b"wa", Level::Ordered),
                deadline: Time(u64::MAX),
            };
            (self.sender).submit(submission, &self.clock, &mut self.effects);
            self.gather();
            let (began, before) = (self.now, self.done);
            while self.done == before && self.now < began + 100_000 * MICROS {
                self.step();
            }
            latencies.push((self.now - began) / MICROS);
        }
        latencies[8]
    }
}

fn latency(ahead: [i64; 4]) -> u64 {
    Scene::new(ahead).latency()
}

/// One clock is ahead or behind by this, in nanoseconds.
const ERRORS: [i64; 4] = [5_000_000, -5_000_000, 50_000_000, -50_000_000];

#[test]
fn writes_stay_fast_when_a_followers_clock_is_off() {
    assert!(latency([0; 4]) <= 200, "{} µs", latency([0; 4]));
    for error in ERRORS {
        let took = latency([0, 0, error, 0]);
        assert!(took <= 500, "{error}: {took} µs");
    }
}

#[test]
fn writes_stay_fast_when_the_leaders_clock_is_off() {
    for error in ERRORS {
        let took = latency([error, 0, 0, 0]);
        assert!(took <= 500, "{error}: {took} µs");
    }
}

#[test]
fn writes_stay_fast_when_the_senders_clock_is_off() {
    for error in ERRORS {
        let took = latency([0, 0, 0, error]);
        assert!(took <= 500, "{error}: {took} µs");
    }
}

//! Remote clients: the protocol's frontend in a client of its own, over the network.
//!
//! ```text
//!   invoke ──► batch ──► Client (the protocol's frontend) ──Send──► network ──► replicas
//!                             ▲   │ SetTimer                            │
//!              on_timer ──────┘   └──► timers          frames, links ◄──┘
//! ```

use crate::{
    checkers::Violation,
    event::Event,
    timers::Popped,
    workload::{Home, View},
    world::World,
};
use quintet_replica::{
    Bytes, ClientNode, Deadline, Effect, Link, Recipients, ReplicaId, Time, TimerKey,
    World as Outside,
};

impl World {
    pub fn drive(
        &mut self,
        index: usize,
        call: impl FnOnce(&mut ClientNode, &dyn Outside, &mut Vec<Effect>),
    ) {
        let Home::Remote(remote) = &mut self.clients[index].home else {
            return;
        };
        let Some(driver) = &mut remote.driver else {
            return;
        };
        let place = remote.place;
        let view = View {
            now: self.now,
            network: &self.network,
            place,
            uncertainty: self.shape.uncertainty,
        };
        let mut effects = Vec::new();
        call(driver, &view, &mut effects);
        for effect in effects {
            self.carry_out_remote(index, place, effect);
        }
    }

    fn carry_out_remote(&mut self, index: usize, place: usize, effect: Effect) {
        match effect {
            Effect::Send {
                to: Recipients::Replicas(set),
                lane,
                frame,
            } => {
                let frame = frame.into_bytes();
                for to in set.iter() {
                    self.transmit(place, to.index(), lane, frame.clone());
                }
            }
            Effect::SetTimer { key, at } => {
                let Home::Remote(remote) = &mut self.clients[index].home else {
                    return;
                };
                let due = match at {
                    Deadline::At(at) => at.0.max(self.now),
                    Deadline::Clock(at) => {
                        at.saturating_sub(1_700_000_000_000_000_000).max(self.now)
                    }
                };
                if let Some(at) = remote.timers.set(key, at, due) {
                    self.queue.push(
                        at,
                        Event::Timer {
                            place: place as u16,
                            boot: 0,
                            key,
                        },
                    );
                }
            }
            Effect::CancelTimer { key } => {
                if let Home::Remote(remote) = &mut self.clients[index].home {
                    remote.timers.cancel(key);
                }
            }
            Effect::Done { batch, outcome } => {
                let Home::Remote(remote) = &mut self.clients[index].home else {
                    return;
                };
                match remote.open.remove(&batch.0) {
                    Some(requests) => self.finish(requests, outcome),
                    None => self.violate(Violation::new(
                        "frontend",
                        format!("client {index} was told twice how batch {batch} ended"),
                    )),
                }
            }
            Effect::Mark(branch) => *self.branches.entry(branch).or_default() += 1,
            other => self.violate(Violation::new(
                "frontend",
                format!("a frontend cannot ask for {other:?}"),
            )),
        }
    }

    pub fn client_frame(&mut self, index: usize, from: usize, frame: Bytes) {
        if !self.clients[index].is_here() {
            return;
        }
        let from = ReplicaId(from as u16);
        self.trace.say(self.now, || {
            format!("c{index} ◄ {from} {}", self.setup.describe_frame(&frame))
        });
        let mut refused = None;
        self.drive(index, |driver, view, effects| {
            refused = driver.on_frame(from, frame, view, effects).err();
        });
        if let Some(error) = refused {
            let what = format!("client {index} refused a frame: {error}");
            self.violate(Violation::new("codec", what));
        }
    }

    pub fn client_link(&mut self, index: usize, peer: usize, link: Link) {
        if self.clients[index].is_here() {
            let peer = ReplicaId(peer as u16);
            self.drive(index, |driver, view, effects| {
                driver.on_link(peer, link, view, effects)
            });
        }
    }

    pub fn client_timer(&mut self, index: usize, place: u16, key: TimerKey) {
        let client = &mut self.clients[index];
        if client.gone {
            return;
        }
        let Home::Remote(remote) = &mut client.home else {
            return;
        };
        match remote.timers.popped(key, self.now) {
            Popped::Fired if client.away_until > self.now => {
                let due = client.away_until;
                if let Some(at) = remote.timers.set(key, Deadline::At(Time(due)), due) {
                    self.queue.push(
                        at,
                        Event::Timer {
                            place,
                            boot: 0,
                            key,
                        },
                    );
                }
            }
            Popped::Fired => {
                remote.timers.take_fired(key);
                self.drive(index, |driver, view, effects| {
                    driver.on_timer(key, view, effects)
                });
            }
            Popped::Later(at) => self.queue.push(
                at,
                Event::Timer {
                    place,
                    boot: 0,
                    key,
                },
            ),
            Popped::Nothing => {}
        }
    }
}

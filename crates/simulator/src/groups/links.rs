//! Links between processes: a line for each pair, which all their groups share.

use super::world::{Event, MILLISECOND, World, pair, peer};
use crate::checkers::Violation;
use quintet_replica::{Bytes, Incarnation, Input, Link, ReplicaId, ReplicaSet, Time, frame_group};

/// A connection of two processes.
#[derive(Clone, Copy, Default)]
pub(super) struct Line {
    up: bool,
    number: u32,
    blocked: u32,
    /// When the last frame of each direction arrives.
    last: [u64; 2],
    /// Until when nothing of a direction arrives, though the connection stands.
    held: [u64; 2],
    /// Until when all takes long.
    slow: u64,
}

impl Line {
    pub const fn block(&mut self) {
        self.blocked += 1;
    }

    pub const fn unblock(&mut self) {
        self.blocked = self.blocked.saturating_sub(1);
    }

    /// Until then nothing arrives at the one with the higher number, or the other way.
    pub const fn hold(&mut self, upwards: bool, until: u64) {
        self.held[upwards as usize] = until;
    }

    pub const fn slow_down(&mut self, until: u64) {
        self.slow = until;
    }

    pub const fn heal(&mut self) {
        self.blocked = 0;
        self.held = [0; 2];
        self.slow = 0;
    }
}

impl World {
    pub fn send(&mut self, from: usize, to: ReplicaSet, frame: &Bytes) {
        for to in to.iter().map(ReplicaId::index).filter(|to| *to != from) {
            let mut latency = self.random.between(30_000, 2 * MILLISECOND);
            let Some(line) = self.lines.get_mut(&pair(from, to)).filter(|l| l.up) else {
                continue;
            };
            if line.slow > self.now {
                latency *= 20;
            }
            let way = usize::from(from < to);
            let last = &mut line.last[way];
            *last = (*last + 1).max(self.now + latency).max(line.held[way]);
            let (at, link, frame) = (*last, line.number, frame.clone());
            let event = Event::Deliver {
                from,
                to,
                link,
                frame,
            };
            self.queue.push(at, event);
        }
    }

    pub fn deliver(&mut self, from: usize, to: usize, link: u32, frame: Bytes) {
        let line = self.lines[&pair(from, to)];
        if !line.up || line.number != link || !self.processes[to].up {
            return;
        }
        let group = frame_group(&frame);
        let place = group.and_then(|group| self.processes[to].place(&self.ids, group));
        let Some(place) = place else {
            let what = format!("process {to} got a frame of {group:?}");
            return self.violate(Violation::new("frame", what));
        };
        let input = Input::Frame {
            from: peer(from),
            arrived: Time(self.now),
            frame,
        };
        self.input(to, place, input);
    }

    /// The nodes of two processes that work together, by their places in both.
    fn shared(&self, a: usize, b: usize) -> Vec<(usize, usize)> {
        let hosts = self.processes[a].hosts.iter().enumerate();
        let shared = hosts.filter_map(|(here, host)| {
            let mut there = self.processes[b].hosts.iter();
            Some((here, there.position(|other| other.group == host.group)?))
        });
        shared.collect()
    }

    pub fn connect(&mut self, a: usize, b: usize) {
        let (a, b) = pair(a, b);
        let up = self.processes[a].up && self.processes[b].up;
        let Some(line) = self.lines.get_mut(&(a, b)) else {
            return;
        };
        if !up || line.up || line.blocked > 0 {
            return;
        }
        line.up = true;
        line.number += 1;
        line.last = [0; 2];
        for (here, there) in self.shared(a, b) {
            let incarnation =
                |at: usize, place: usize| Incarnation(self.processes[at].hosts[place].incarnation);
            let of = (incarnation(a, here), incarnation(b, there));
            let up = |incarnation| Link::Up { incarnation };
            self.input(a, here, Input::Link(peer(b), up(of.1)));
            self.input(b, there, Input::Link(peer(a), up(of.0)));
        }
    }

    pub fn break_line(&mut self, a: usize, b: usize) {
        let (a, b) = pair(a, b);
        let Some(line) = self.lines.get_mut(&(a, b)).filter(|line| line.up) else {
            return;
        };
        line.up = false;
        line.number += 1;
        for (here, there) in self.shared(a, b) {
            for (at, place, other) in [(a, here, b), (b, there, a)] {
                if self.processes[at].up {
                    self.input(at, place, Input::Link(peer(other), Link::Down));
                }
            }
        }
        let after = self.now + self.random.between(MILLISECOND, 30 * MILLISECOND);
        self.queue.push(after, Event::Connect(a, b));
    }
}

//! A leader that clients hear and the other replicas do not.
//!
//! ```text
//!   clients are hurried ──► often another replica crashes and is back at once, and votes again
//!     ──► nothing that the leader says reaches a replica any more, and clients continue
//!     ──► it crashes with what only clients have heard, and stays down for longer than the others
//!         wait for it
//! ```
//!
//! The remaining replicas must find a write that a client was told of, though the only replica that
//! knew where it stands is gone. Where one of them has just lost what it said, that counts no more.

use crate::{
    clock::MILLISECOND,
    event::Event,
    faults::Kind,
    heal::Partition,
    world::{Phase, World},
};

/// The time, in steps, to wait for a replica that crashed before.
const BACK_MAX: u64 = 300 * MILLISECOND;
const BACK_STEP: u64 = 4 * MILLISECOND;
/// Everything has ended after so long.
const LONGEST: u64 = 500 * MILLISECOND;

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// This one crashes, and is back before it is suspected.
    Blink(u16),
    /// Replicas hear the leader no more.
    Unheard,
    /// It crashes.
    Crash,
}

/// A leader on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orphan {
    injection: u16,
    leader: usize,
    boot: u32,
    /// The replica that must vote again before, and the limit of the wait for it.
    back: Option<(usize, u64)>,
}

impl World {
    /// The leader, or any where none leads, is heard by clients alone and then crashes.
    pub fn orphan_leader(&mut self, index: usize) -> Option<u64> {
        if self.orphan.is_some() {
            return None;
        }
        let leader = self.leader().or_else(|| self.draw_running())?;
        if self.processes[leader].is_dying() || !self.may_crash(&[leader]) {
            return None;
        }
        let boot = self.processes[leader].boot;
        let injection = index as u16;
        self.orphan = Some(Orphan {
            injection,
            leader,
            boot,
            back: None,
        });
        self.healing.partitions.push(Partition {
            injection: index,
            frames_blocked: self.frames_blocked(),
            links: Vec::new(),
        });
        self.hurry_clients();
        let mut wait = self.random.below(4 * MILLISECOND);
        let others: Vec<usize> = (0..self.replicas_max())
            .filter(|id| *id != leader && self.processes[*id].node.is_some())
            .collect();
        if !others.is_empty() && self.random.chance(500) {
            let other = others[self.random.index(others.len())] as u16;
            self.orphan_at(wait, Step::Blink(other));
            wait += self.random.between(2, 10) * MILLISECOND;
        }
        self.orphan_at(wait, Step::Unheard);
        Some(LONGEST)
    }

    fn orphan_at(&mut self, wait: u64, step: Step) {
        let Some(Orphan { injection, .. }) = self.orphan else {
            return;
        };
        let moves = Event::OrphanMoves { injection, step };
        self.queue.push(self.now + wait, moves);
    }

    /// The next step, unless the leader is gone already.
    pub fn orphan_moves(&mut self, injection: u16, step: Step) {
        let Some(orphan) = self.orphan.filter(|orphan| orphan.injection == injection) else {
            return;
        };
        let leader = orphan.leader;
        let runs = self.runs(leader as u16, orphan.boot) && !self.processes[leader].is_dying();
        if self.phase != Phase::Safety || !runs {
            return;
        }
        match step {
            Step::Blink(other) => {
                let other = usize::from(other);
                let runs = self.processes[other].node.is_some();
                if runs && !self.processes[other].is_dying() && self.may_crash(&[other]) {
                    let down = self.random.between(1, 4) * MILLISECOND;
                    self.crash_for(other, down);
                    let until = self.now + BACK_MAX;
                    self.orphan = Some(Orphan {
                        back: Some((other, until)),
                        ..orphan
                    });
                }
            }
            Step::Unheard if self.is_awaited(orphan) => self.orphan_at(BACK_STEP, Step::Unheard),
            Step::Unheard => {
                // The outcome does not matter: clients hear what replicas do not.
                self.effective(Kind::OrphanedLeader.name());
                let others = (0..self.replicas_max()).filter(|other| *other != leader);
                let links: Vec<_> = others.map(|other| (leader, other)).collect();
                for (from, to) in &links {
                    self.network.block(*from, *to);
                }
                self.trace
                    .say(self.now, || format!("no replica hears r{leader} any more"));
                let mut partitions = self.healing.partitions.iter_mut();
                let own =
                    partitions.find(|partition| partition.injection == usize::from(injection));
                if let Some(partition) = own {
                    partition.links = links;
                }
                self.hurry_clients();
                let longest = [5, 20, 100][self.random.index(3)];
                let wait = self.random.below(longest * MILLISECOND);
                self.orphan_at(wait, Step::Crash);
            }
            Step::Crash if self.may_crash(&[leader]) => {
                let down = self.random.between(600, 1500) * MILLISECOND;
                self.crash_for(leader, down);
            }
            Step::Crash => {}
        }
    }

    /// Whether a replica that crashed does not vote yet.
    fn is_awaited(&self, orphan: Orphan) -> bool {
        let votes = |id: usize| {
            let node = self.processes[id].node.as_ref();
            node.is_some_and(|node| node.protocol_status().voting)
        };
        (orphan.back).is_some_and(|(id, until)| self.now < until && !votes(id))
    }

    /// Replicas hear it again, or its next incarnation.
    pub fn orphan_ends(&mut self, index: usize) {
        let ends = |orphan: &mut Orphan| usize::from(orphan.injection) == index;
        let _ = self.orphan.take_if(ends);
        self.end_partition(index);
    }

    /// All clients invoke what they have within two milliseconds, or nearly at once.
    fn hurry_clients(&mut self) {
        let longest = [MILLISECOND / 10, 2 * MILLISECOND][self.random.index(2)];
        for client in 0..self.clients.len() as u16 {
            let at = self.now + self.random.below(longest);
            self.queue.push(at, Event::Turn { client });
        }
    }
}

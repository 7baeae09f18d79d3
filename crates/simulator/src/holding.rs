//! Votes that wait for their disks while others continue.
//!
//! ```text
//!   a replica crashes, or some come back at once ──► first vote handed to a disk
//!     ──► syncs of all others are held, some do not hear of it, and who voted first falls silent
//!     ──► second one stands: the held votes end now and its own is held, one voter is cut off
//!         bit by bit; or some who wait for their disks crash
//!     ──► everything ends
//! ```
//!
//! A vote is on its way to the disk for longer than its voter trusts the one that it is for: who
//! counts votes meanwhile must count it as none, and it must never be shown. Without a vote within
//! a while, syncs are held all the same, and some of those who wait for them crash.

use crate::{
    clock::MILLISECOND,
    event::Event,
    faults::Kind,
    heal::Partition,
    world::{Phase, World},
};

/// How long a vote is waited for before the leader falls silent.
const VOTE_MAX: u64 = 400 * MILLISECOND;
/// Everything has ended after so long.
const LONGEST: u64 = 3_000 * MILLISECOND;

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Votes are watched from now on.
    Watch,
    /// No replica has voted: the leader falls silent, and syncs are held.
    Silence,
    /// The first voter falls silent.
    First,
    /// The voter that is cut off hears nothing any more.
    Deaf,
    /// Some that wait for their disks crash.
    Crash,
    /// The second one's sync ends.
    Second,
    /// All is as before.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No replica has voted yet.
    Waiting,
    /// This one has voted first, and this one is to stand next.
    Voting { first: usize, next: Option<usize> },
    /// Another one stands.
    Standing { second: usize },
}

/// Syncs that are held.
#[derive(Debug)]
pub(crate) struct Holding {
    injection: u16,
    stage: Stage,
    watches: bool,
    /// The replicas that have handed over a vote since the first one did.
    voted: Vec<bool>,
    /// The voter that is cut off.
    victim: Option<usize>,
    down: u64,
}

impl World {
    /// A replica crashes, or several come back at once; the votes that follow wait for their disks.
    pub fn hold_syncs(&mut self, index: usize, down: u64) -> Option<u64> {
        if self.holding.is_some() {
            return None;
        }
        let injection = index as u16;
        let mut wait = 0;
        if self.random.chance(500) {
            wait = self.begin_wave()?;
        } else {
            let running: Vec<usize> = (0..self.replicas_max())
                .filter(|id| self.processes[*id].node.is_some())
                .collect();
            // The leader, the last one, or any.
            let chosen = match self.random.below(3) {
                0 => self.leader(),
                1 => running.last().copied(),
                _ => self.draw_running(),
            };
            let chosen = chosen.filter(|id| !self.processes[*id].is_dying())?;
            if !self.may_crash(&[chosen]) {
                return None;
            }
            self.crash_for(chosen, down + LONGEST / 2);
        }
        self.holding = Some(Holding {
            injection,
            stage: Stage::Waiting,
            watches: false,
            voted: vec![false; self.replicas_max()],
            victim: None,
            down,
        });
        self.healing.partitions.push(Partition {
            injection: index,
            frames_blocked: self.frames_blocked(),
            links: Vec::new(),
        });
        self.holding_at(wait, Step::Watch);
        self.holding_at(wait + VOTE_MAX, Step::Silence);
        Some(wait + LONGEST)
    }

    /// A minority crashes and comes back at once, when the others have gone on without it; gives
    /// when.
    fn begin_wave(&mut self) -> Option<u64> {
        let most = (self.voters.len() - 1) / 2;
        let mut wave: Vec<usize> = (0..self.replicas_max())
            .filter(|id| self.processes[*id].node.is_some() && !self.processes[*id].is_dying())
            .collect();
        if self.random.chance(500) {
            self.random.shuffle(&mut wave);
        } else {
            wave.reverse();
        }
        wave.truncate(most);
        while !wave.is_empty() && !self.may_crash(&wave) {
            wave.pop();
        }
        if wave.is_empty() {
            return None;
        }
        let wait = self.random.between(450, 900) * MILLISECOND;
        for node in wave {
            let apart = self.random.below(2 * MILLISECOND);
            self.crash_for(node, wait - apart);
        }
        Some(wait)
    }

    fn holding_at(&mut self, wait: u64, step: Step) {
        let Some(Holding { injection, .. }) = self.holding else {
            return;
        };
        let moves = Event::HoldingMoves { injection, step };
        self.queue.push(self.now + wait, moves);
    }

    /// Whether a sync that is done is kept from the replica.
    pub fn holds_sync(&mut self, index: usize) -> bool {
        let disk = &mut self.processes[index].disk;
        if !disk.held {
            return false;
        }
        disk.sync_waits = true;
        self.effective(Kind::HeldSync.name());
        true
    }

    fn release(&mut self, index: usize) {
        let process = &mut self.processes[index];
        process.disk.held = false;
        if std::mem::take(&mut process.disk.sync_waits) {
            let (node, boot) = (index as u16, process.boot);
            self.queue.push(self.now, Event::Synced { node, boot });
        }
    }

    /// All syncs end as they would.
    pub fn release_all(&mut self) {
        self.holding = None;
        for index in 0..self.replicas_max() {
            self.release(index);
        }
    }

    /// Nothing gets through in these directions until the injection ends.
    fn cut(&mut self, links: &[(usize, usize)]) {
        let Some(Holding { injection, .. }) = self.holding else {
            return;
        };
        for (from, to) in links {
            self.network.block(*from, *to);
        }
        let mut partitions = self.healing.partitions.iter_mut();
        let own = partitions.find(|partition| partition.injection == usize::from(injection));
        if let Some(partition) = own {
            partition.links.extend(links);
        }
    }

    fn cut_from(&mut self, from: usize) {
        let others = (0..self.replicas_max()).filter(|to| *to != from);
        let links: Vec<_> = others.map(|to| (from, to)).collect();
        self.cut(&links);
    }

    fn cut_to(&mut self, to: usize) {
        let others = (0..self.replicas_max()).filter(|from| *from != to);
        let links: Vec<_> = others.map(|from| (from, to)).collect();
        self.cut(&links);
    }

    /// A replica has handed a vote to its disk.
    pub fn has_voted(&mut self, voter: usize) {
        self.found_leader(voter, None);
        let Some(holding) = &mut self.holding else {
            return;
        };
        let again = std::mem::replace(&mut holding.voted[voter], true);
        match holding.stage {
            _ if !holding.watches || self.phase != Phase::Safety => {}
            Stage::Waiting => self.first_vote(voter),
            Stage::Voting { first, next } if voter != first && (again || next == Some(voter)) => {
                self.second_stands(voter);
            }
            _ => {}
        }
    }

    fn first_vote(&mut self, first: usize) {
        let others: Vec<usize> = (0..self.replicas_max())
            .filter(|id| *id != first && self.processes[*id].node.is_some())
            .collect();
        if others.is_empty() {
            return;
        }
        // Mostly one does not hear of it: the next in order, or any.
        let next = match self.random.below(4) {
            0 => None,
            1 => Some(others[self.random.index(others.len())]),
            _ => Some(others[0]),
        };
        if let Some(next) = next {
            self.cut(&[(first, next)]);
        }
        for id in others {
            self.processes[id].disk.held = true;
        }
        self.trace.say(self.now, || {
            format!("r{first} votes first, r{next:?} does not hear it, syncs are held")
        });
        if let Some(holding) = &mut self.holding {
            holding.stage = Stage::Voting { first, next };
            holding.voted.fill(false);
        }
        let wait = self.random.between(1, 40) * MILLISECOND;
        self.holding_at(wait, Step::First);
    }

    fn second_stands(&mut self, second: usize) {
        let Some(holding) = &mut self.holding else {
            return;
        };
        let Stage::Voting { first, .. } = holding.stage else {
            return;
        };
        holding.stage = Stage::Standing { second };
        let voters: Vec<usize> = (0..self.replicas_max())
            .filter(|id| *id != first && *id != second && self.processes[*id].disk.held)
            .collect();
        self.effective("held_until_another_stood");
        self.trace.say(self.now, || {
            format!("r{second} stands, {voters:?} were held")
        });
        self.processes[second].disk.held = true;
        if !voters.is_empty() && self.random.chance(700) {
            for voter in &voters {
                self.release(*voter);
            }
            let victim = voters[self.random.index(voters.len())];
            if let Some(holding) = &mut self.holding {
                holding.victim = Some(victim);
            }
            self.cut_from(victim);
            self.cut(&[(second, victim)]);
            let deaf = self.random.between(5, 150) * MILLISECOND;
            self.holding_at(deaf, Step::Deaf);
        } else {
            let soon = self.random.below(20 * MILLISECOND);
            self.holding_at(soon, Step::Crash);
        }
        let longest = [10, 100, 600][self.random.index(3)];
        let held = self.random.between(1, longest) * MILLISECOND;
        self.holding_at(held, Step::Second);
        let ends = self.random.between(500, 1500) * MILLISECOND;
        self.holding_at(ends, Step::End);
    }

    /// Syncs that are held come to their next step.
    pub fn holding_moves(&mut self, injection: u16, step: Step) {
        let Some(holding) = &mut self.holding else {
            return;
        };
        if holding.injection != injection || self.phase != Phase::Safety {
            return;
        }
        let (stage, victim) = (holding.stage, holding.victim);
        match (step, stage) {
            (Step::Watch, _) => holding.watches = true,
            (Step::Silence, Stage::Waiting) => self.silence_leader(),
            (Step::First, Stage::Voting { first, .. }) => {
                self.cut_from(first);
                self.cut_to(first);
            }
            (Step::Deaf, _) => {
                if let Some(victim) = victim {
                    self.cut_to(victim);
                }
            }
            (Step::Second, Stage::Standing { second }) => self.release(second),
            (Step::Crash, _) => self.crash_held(),
            (Step::End, _) => {
                if self.random.chance(300) {
                    self.crash_held();
                }
                self.release_all();
                let partitions = self.healing.partitions.iter_mut();
                let injection = usize::from(injection);
                let mut own = partitions.filter(|partition| partition.injection == injection);
                let links = own
                    .next()
                    .map(|partition| std::mem::take(&mut partition.links));
                for (from, to) in links.unwrap_or_default() {
                    let mut others = self.healing.partitions.iter();
                    if !others.any(|other| other.links.contains(&(from, to))) {
                        self.network.unblock(from, to, self.now, &mut self.queue);
                    }
                }
            }
            _ => {}
        }
    }

    /// No replica has voted: the leader, or any, falls silent, and all syncs are held for a while;
    /// some replicas that wait for them crash.
    fn silence_leader(&mut self) {
        let silent = self.leader().or_else(|| self.draw_running());
        if let Some(silent) = silent {
            self.cut_from(silent);
            if self.random.chance(500) {
                self.cut_to(silent);
            }
        }
        let share = [300, 1000][self.random.index(2)];
        for id in (0..self.replicas_max()).filter(|id| Some(*id) != silent) {
            self.processes[id].disk.held = self.random.chance(share);
        }
        let wait = self.random.between(20, 900) * MILLISECOND;
        self.holding_at(wait, Step::Crash);
        self.holding_at(wait + 200 * MILLISECOND, Step::End);
    }

    /// Some of those whose syncs are held crash.
    fn crash_held(&mut self) {
        let Some(Holding { down, .. }) = self.holding else {
            return;
        };
        let mut waiting: Vec<usize> = (0..self.replicas_max())
            .filter(|id| self.processes[*id].disk.held && self.processes[*id].node.is_some())
            .collect();
        self.random.shuffle(&mut waiting);
        let most = 1 + self.random.index(waiting.len().max(1));
        waiting.truncate(most);
        while !waiting.is_empty() && !self.may_crash(&waiting) {
            waiting.pop();
        }
        for node in waiting {
            self.effective("crash_while_held");
            self.crash_for(node, down);
        }
    }
}

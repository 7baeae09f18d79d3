//! Members that are replaced by others, in worlds that draw it.
//!
//! ```text
//!   an epoch is offered with another node in a row ──► it begins somewhere ──► a majority is in it
//!     ──► the replica that had the row is gone, and a new one starts there with an empty disk
//! ```
//!
//! A row's node is its number and, of one that has replaced another, its data directory.

use crate::{
    clock::MILLISECOND,
    event::Event,
    process::Process,
    stored_epoch,
    world::{Phase, World},
};
use quintet_replica::{Descriptor, Executed, ReplicaId, SuccessorPrefix};

/// Of a thousand offers, those with another member.
const SHARE: u64 = 250;
/// Directories that were not there at the beginning have numbers from here on.
const DIRECTORIES: u64 = 100;

/// The directory of the node that must have a row; none of a node that has had it from the beginning.
fn directory_in(descriptor: &Descriptor, row: usize) -> Option<u64> {
    let node = descriptor.members.get(row)?.node;
    Some(node >> 16).filter(|directory| *directory != 0)
}

impl World {
    /// Perhaps another member in the place of one that the others can do without.
    pub(crate) fn draw_replacement(&mut self, offers: usize, next: &mut Descriptor) {
        if !self.ending_random.chance(SHARE) || self.setup.replicas < 3 {
            return;
        }
        let row = self.ending_random.index(next.members.len());
        let waits = (self.processes.iter()).any(|process| process.replaced_in.is_some());
        let taken = next.members[row].is_taken();
        if row == offers || !taken || waits || !self.may_lose(row) {
            return;
        }
        next.members[row].node = self.new_node(row);
        self.trace
            .say(self.now, || format!("r{row} is to be replaced"));
    }

    /// Another node for a row, with a data directory of its own.
    pub(crate) const fn new_node(&mut self, row: usize) -> u64 {
        let directory = DIRECTORIES + self.directories;
        self.directories += 1;
        (row as u64 + 1) | directory << 16
    }

    /// An epoch has begun somewhere.
    pub(crate) fn note_members(&mut self, descriptor: &Descriptor, base: Executed) {
        for row in 0..self.replicas_max() {
            let process = &mut self.processes[row];
            let expected = directory_in(descriptor, row);
            let known = (process.replaced_in.as_ref()).map_or(process.epoch(), |(it, _)| it.number);
            // One that has lost its disk in an epoch comes back in a later one only.
            let newer = descriptor.number > known.max(process.met);
            if newer && !descriptor.all().contains(ReplicaId(row as u16)) {
                process.replaced_in = None;
            }
            if newer && expected.is_some_and(|it| it != process.directory) {
                process.replaced_in = Some((descriptor.clone(), base));
                let is_fresh = process.boot == 0;
                if is_fresh && self.is_out(row) {
                    self.healing.core.push(row);
                    self.reach(row);
                }
            }
        }
        self.replace_members();
    }

    /// Members that others replace are gone as soon as they are not needed.
    pub(crate) fn replace_members(&mut self) {
        let states = self.all_states();
        for row in 0..self.replicas_max() {
            let Some((descriptor, _)) = &self.processes[row].replaced_in else {
                continue;
            };
            let (number, voters) = (descriptor.number, descriptor.voters());
            let is_in = |process: &Process| stored_epoch::number(&process.disk.epoch) >= number;
            let others = voters.set().iter().map(ReplicaId::index);
            let others = others.map(|at| (at, &self.processes[at]));
            // One that has lost the state again cannot give it.
            let healed = self.phase != Phase::Safety;
            let inside = others.filter(|(at, process)| {
                // Nor can one that is cut off.
                let reached = !(healed && self.is_out(*at));
                *at != row && is_in(process) && states[*at].up && reached
            });
            let least = match self.phase {
                // An incarnation that was none is not needed.
                _ if self.processes[row].boot == 0 => 1,
                Phase::Safety => voters.len() / 2 + 1,
                // No replica is lost any more.
                _ => 1,
            };
            if inside.count() >= least {
                self.replace(row);
            }
        }
    }

    fn replace(&mut self, row: usize) {
        let Some((descriptor, base)) = self.processes[row].replaced_in.take() else {
            return;
        };
        let Some(directory) = directory_in(&descriptor, row) else {
            return;
        };
        self.crash(row);
        let process = &mut self.processes[row];
        process.wipe();
        process.damaged = None;
        process.directory = directory;
        (process.gone, process.refused, process.lacks) = (false, false, true);
        process.disk.epoch = Some((descriptor, base));
        self.monotone[row] = Default::default();
        self.trace
            .say(self.now, || format!("r{row} is another replica"));
        *self.branches.entry("member replaced").or_default() += 1;
        let at = self.now + self.ending_random.between(1, 300) * MILLISECOND;
        self.queue.push(at, Event::Restart { node: row as u16 });
    }

    /// The state of a row in the later one of two replicas' epochs: whether the replica in it is
    /// the one that belongs there. Nothing where it has been the same from the beginning.
    pub(crate) fn belongs(&self, at: usize, peer: usize) -> Option<bool> {
        let shown = [at, peer].map(|it| &self.processes[it].descriptor);
        let number = |bytes| SuccessorPrefix::read(bytes).map(|it| it.number);
        let later = shown.into_iter().max_by_key(|bytes| number(bytes))?;
        let later = Descriptor::decode(later.clone()).ok()?;
        let expected = directory_in(&later, peer)?;
        Some(expected == self.processes[peer].directory)
    }
}

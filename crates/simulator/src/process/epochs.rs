//! A process continues in another epoch.

use super::*;
use crate::stored_epoch;

impl World {
    /// Finds the epoch that a replica starts in. In memory durability no snapshot counts: it was not
    /// made to outlive the process. Gives whether that is so, and the durability that it had.
    pub(super) fn find_epoch(&mut self, index: usize) -> (bool, Durability) {
        let kept = self.durability_of(index);
        let process = &mut self.processes[index];
        let memory = kept == Durability::Memory && !process.fresh;
        if memory {
            process.disk.forget();
        }
        process.disk.find_epoch();
        (memory, kept)
    }

    /// The durability of the epoch that a replica's disk has.
    pub fn durability_of(&self, index: usize) -> Durability {
        let stored = &self.processes[index].disk.epoch;
        stored_epoch::durability(stored, self.setup.durability)
    }

    /// The replica is in another epoch from now on, whatever happens.
    pub(super) fn begin_epoch(&mut self, index: usize, descriptor: Bytes, base: Executed) {
        let Ok(descriptor) = Descriptor::decode(descriptor) else {
            let what = format!("replica {index} is in an epoch that cannot be read");
            return self.violate(Violation::new("epochs", what));
        };
        self.trace.say(self.now, || {
            format!(
                "r{index} begins epoch {} from {base:?} on",
                descriptor.number
            )
        });
        *self.branches.entry("epoch begun").or_default() += 1;
        // The beginning is a position of its own, at which nothing is executed.
        if let Some(node) = &self.processes[index].node
            && node.executed() == base
        {
            let (by, time) = (index as u16, node.log_time());
            let checked = self.agreement.executed(by, base.position.0, time, &[]);
            if let Err(violation) = checked {
                return self.violate(violation);
            }
        }
        let earlier = self.durability_of(index);
        if earlier != descriptor.durability {
            let change = match descriptor.durability {
                Durability::Disk => "epoch: from memory to disk",
                Durability::Memory => "epoch: from disk to memory",
            };
            *self.branches.entry(change).or_default() += 1;
        }
        let on_disk = [earlier, descriptor.durability].contains(&Durability::Disk);
        if on_disk && !self.processes[index].disk.has_saved(base) {
            let what =
                format!("replica {index} begins an epoch whose first state is in memory only");
            return self.violate(Violation::new("base held", what));
        }
        let epoch = stored_epoch::later(&descriptor, &epoch(self));
        let entry = stored_epoch::protocol(&descriptor, self.setup.entry);
        let seed = self.ending_random.draw();
        let (earlier, _) = self.members_known(index);
        self.note_epoch(&descriptor, base);
        if entry.info.name != self.setup.entry.info.name {
            *self
                .branches
                .entry("epoch of another protocol")
                .or_default() += 1;
        }
        let entered = descriptor.clone();
        let process = &mut self.processes[index];
        process.descriptor = descriptor.public();
        if let Some(latency) = process.disk.enter(descriptor, base, &mut self.random) {
            let (node, boot) = (index as u16, process.boot);
            self.queue
                .push(self.now + latency, Event::Synced { node, boot });
        }
        let begun = self.call(index, |node, view, outputs| {
            node.begin_epoch(&entry, epoch, seed, view, outputs)
        });
        if let Some(Err(error)) = begun {
            let what = format!("replica {index}: {error}");
            return self.violate(Violation::new("epochs", what));
        }
        self.note_members(&entered, base);
        self.link_members(index, earlier, entered.all());
    }
}

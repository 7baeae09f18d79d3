//! A process goes on in another epoch.

use super::*;
use quintet_replica::Entry;

impl World {
    /// A later epoch as a node is told of it. What is planted stays planted.
    pub(super) fn epoch_of(&self, descriptor: &Descriptor) -> Epoch {
        let first = epoch(self);
        let mut epoch = descriptor.epoch(first.secret);
        let planted = first.options.iter().filter(|(name, _)| name == "plant");
        epoch.options.extend(planted.cloned());
        epoch
    }

    /// The protocol of an epoch. (The rig's own toy is in no registry.)
    pub(super) fn entry_of(&self, descriptor: &Descriptor) -> Entry {
        let same = descriptor.protocol == self.setup.entry.info.name;
        let found = quintet_protocols::find(&descriptor.protocol).ok();
        found.filter(|_| !same).copied().unwrap_or(self.setup.entry)
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
        let (epoch, entry) = (self.epoch_of(&descriptor), self.entry_of(&descriptor));
        let seed = self.ending_random.draw();
        if descriptor.number > self.epoch_begun {
            self.epoch_begun = descriptor.number;
            // Who took part before says nothing of it.
            self.route.clear();
            self.routes_ahead.clear();
        }
        if entry.info.name != self.setup.entry.info.name {
            *self
                .branches
                .entry("epoch of another protocol")
                .or_default() += 1;
        }
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
            self.violate(Violation::new("epochs", what));
        }
    }
}

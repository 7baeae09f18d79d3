//! A process goes on in another epoch.

use super::*;
use crate::stored_epoch;

impl World {
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

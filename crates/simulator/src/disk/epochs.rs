//! In which epoch a replica is, as its disk has it.

use super::*;
use crate::stored_epoch;

impl Disk {
    /// The replica is in this epoch from now on. Gives how long a sync takes that is begun.
    pub fn enter(
        &mut self,
        descriptor: Descriptor,
        base: Executed,
        random: &mut Random,
    ) -> Option<u64> {
        let (number, epoch) = (descriptor.number, stored_epoch::number(&self.epoch));
        self.epoch = Some((descriptor, base));
        if number == epoch {
            return None;
        }
        self.trims.clear();
        self.waiting.push_back(Order::Enter(number));
        self.begin_sync(random)
    }

    /// See [`stored_epoch::find_newer`].
    pub fn find_epoch(&mut self) {
        let newest = self.snapshots.iter().rev().find(|kept| kept.is_whole());
        stored_epoch::find_newer(&mut self.epoch, newest.map(|kept| &kept.bytes));
        let epoch = &self.epoch;
        let leads_away = |kept: &Kept| {
            stored_epoch::leads_away(epoch, kept.info.id, &kept.bytes) && kept.bridges
        };
        self.snapshots.retain(|kept| !leads_away(kept));
    }
}

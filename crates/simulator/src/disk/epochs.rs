//! In which epoch a replica is, as its disk has it.

use super::*;
use quintet_replica::snapshot_header;

impl Disk {
    /// The replica is in this epoch from now on. Gives how long a sync takes that is begun.
    pub fn enter(
        &mut self,
        descriptor: Descriptor,
        base: Executed,
        random: &mut Random,
    ) -> Option<u64> {
        let (number, epoch) = (descriptor.number, self.epoch_number());
        self.epoch = Some((descriptor, base));
        if number == epoch {
            return None;
        }
        self.trims.clear();
        self.waiting.push_back(Order::Enter(number));
        self.begin_sync(random)
    }

    fn epoch_number(&self) -> EpochNumber {
        let epoch = self.epoch.as_ref();
        epoch.map_or(EpochNumber(1), |(descriptor, _)| descriptor.number)
    }

    /// A crash may have come between the first state of an epoch and its file.
    pub fn find_epoch(&mut self) {
        let newest = self.snapshots.iter().rev().find(|kept| kept.is_whole());
        let header = newest.and_then(|kept| {
            let from = |offset: u64| (offset as usize).min(kept.bytes.len());
            snapshot_header(|offset| Some(kept.bytes.slice(from(offset)..)))
        });
        if let Some(header) = header
            && header.epoch > self.epoch_number()
            && let Ok(descriptor) = Descriptor::decode(header.descriptor)
        {
            self.epoch = Some((descriptor, header.base));
        }
    }
}

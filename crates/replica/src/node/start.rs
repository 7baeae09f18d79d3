//! How a node starts from a snapshot and a journal.

use super::*;

impl Node {
    /// The descriptor of the node's epoch, encoded: it goes into the headers of snapshots.
    ///
    /// # Panics
    /// When it has no such member.
    #[must_use]
    pub fn with_descriptor(mut self, descriptor: Bytes) -> Self {
        if let Ok(told) = Descriptor::decode(descriptor.clone()) {
            self.members = ReplicaSet(self.members.0 | told.all().0);
            assert!(
                told.members.is_empty() || told.voters() == self.voters,
                "a node knows who votes"
            );
            self.executor.agree(&told.limits);
        }
        assert!(
            self.members.contains(self.id),
            "a node is one of the members"
        );
        self.executor.set_descriptor(descriptor);
        self
    }

    /// The node's epoch began here, behind the first one.
    #[must_use]
    pub fn with_base(mut self, base: Executed) -> Self {
        self.executor.set_base(base);
        let voters = match self.is_learner() {
            // Nothing runs that counts them.
            true => Voters::default(),
            false => self.voters,
        };
        self.replica = rebased::Rebased::over(self.replica, base.slot, self.written, 0, voters);
        self
    }

    /// Restores the world's newest snapshot, then starts the protocol with what the journal holds.
    /// `recovered.checkpoint` is ignored: it comes from the snapshot.
    ///
    /// # Errors
    /// When snapshot or journal are malformed; the node must not be used then.
    pub fn start(
        &mut self,
        mut recovered: RecoveredBytes,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> Result<(), StartError> {
        assert!(!self.started, "a node starts once");
        self.started = true;
        recovered.checkpoint = None;
        if self.is_learner() {
            self.start_without_state(recovered, world, out);
            return Ok(());
        }
        let base = self.executor.base().slot;
        let newest = world.snapshot_newest();
        let header = newest.and_then(|info| {
            crate::snapshot_header(|offset| world.snapshot_read(info.id, offset, transfer::PIECE))
        });
        // The state of an earlier epoch is not the one that this epoch began with, unless it is a bridge.
        let bridges = newest.is_some_and(|info| info.id == self.executor.base());
        let of_earlier = header.is_some_and(|header| header.epoch < self.epoch);
        let earlier = of_earlier && !bridges;
        if let Some(info) = newest.filter(|_| !earlier) {
            let read = |offset| world.snapshot_read(info.id, offset, transfer::PIECE);
            let header = match self.executor.restore(read) {
                Ok(header) => header,
                Err(_) if of_earlier => {
                    // The bridge was read back when it was written, and not executed: the others may
                    // have the state.
                    self.executor.forget();
                    self.arm_pace(world, out);
                    self.start_without_state(recovered, world, out);
                    return Ok(());
                }
                Err(error) => return Err(StartError::Snapshot(info.id.slot, error)),
            };
            self.executed_told = header.executed.slot;
            self.snapshot_last = self.executor.state_bytes();
            self.digests.restored();
            self.succession.bridged = of_earlier;
            if of_earlier {
                out.push(Output::Mark("state restored that was saved ahead"));
            }
            self.save_bridged_state(world, out);
            // The state that an epoch begins with is of no protocol: its log starts there.
            recovered.checkpoint =
                (header.executed.slot > base).then_some((header.executed.slot, header.summary));
        } else if base > Slot(0) {
            self.arm_pace(world, out);
            self.start_without_state(recovered, world, out);
            return Ok(());
        }
        let covered = recovered.checkpoint.as_ref().map(|(slot, _)| *slot);
        if base > Slot(0) {
            recovered.first_boot |= self.injected.is(Bug::FirstBootAgain);
            self.meet_peers(world, out);
        }
        self.start_protocol(recovered, world)?;
        let followed = newest.filter(|info| self.executor.stable() > info.id.slot);
        self.owes_state = followed.is_some() && self.speculates() && covered.is_some();
        if self.owes_state {
            // Before more is executed, which may not become final.
            self.ask_for_checkpoint(world, out);
        }
        // A crash may have come between the snapshot and the trimming of what it covers.
        self.events.extend(covered.map(Event::Checkpointed));
        self.arm_pace(world, out);
        self.carry_out(world, out);
        Ok(())
    }

    pub(super) fn start_protocol(
        &mut self,
        recovered: RecoveredBytes,
        world: &dyn World,
    ) -> Result<(), EventError> {
        let around = Surroundings {
            world,
            group: self.group,
            machine: Some(self.executor.machine()),
            from_outside: false,
        };
        let start = Event::Start(recovered);
        self.replica.on_event(start, around, &mut self.effects)
    }
}

//! A replica that leaves gives the members of the next epoch its state when they have lost theirs.
//!
//! ```text
//!   member that has entered    e+1 ──✗ it is lost, and what it had in memory
//!   member that has followed   e+1: nothing ──"nothing"──►┐    ▲ "it gives the state", pieces
//!   member that leaves         e, which has ended ────────┴──► e+1, as a guest ──settled──► ends
//! ```
//!
//! A replica that follows gives up its state of the earlier epoch. When all that it could follow
//! are lost, too, only the replicas that leave have the end of that epoch, and no protocol can
//! bring it anywhere any more. They take no part in the next one: they say that they give, which
//! counts nowhere.

use super::*;

impl Node {
    /// A member of the next epoch has nothing of its state. This replica leaves the protocol of its
    /// own epoch to give it, unless one that has it, too, is linked.
    pub(super) fn maybe_give(
        &mut self,
        word: &EpochWord,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let has_ended = matches!(self.succession.phase, Phase::Ended { .. });
        // From a disk, those that have followed end this epoch once more, with this replica.
        if !has_ended || !self.is_leaving() || self.saves_durably() {
            return;
        }
        let holders = ReplicaSet(self.succession.later.0 & self.linked().0);
        let is_busy = self.installing.is_some() || !self.deferred.is_empty();
        let next = self.sealed().map(|seal| &seal.successor);
        let is_next = next
            .is_some_and(|next| crate::public_part(next) == crate::public_part(&word.descriptor));
        if !holders.is_empty() || is_busy || !is_next {
            return;
        }
        self.leave_protocol("giving its state away", out);
        let next = match self.executor.enter() {
            Ok(next) => next,
            Err(error) => return self.halt(unreadable(&error), out),
        };
        out.push(Output::Mark("state given by one that leaves"));
        self.succession.phase = Phase::Giving;
        let all = self.peers();
        self.become_member_of(&next);
        self.save_given_state(world, out);
        self.tell_epoch(ReplicaSet(all.0 | self.peers().0), false, out);
    }

    /// Peers are given a file; one that could not be written is written again.
    pub(super) fn save_given_state(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let base = self.executor.base();
        let is_saved = world.snapshot_newest().is_some_and(|it| it.id == base);
        if !is_saved && self.unfinished.is_none() {
            self.begin_snapshot(base.slot, Bytes::new(), out);
        }
    }

    /// One that is no member has the state of this epoch's beginning.
    pub(super) fn on_giver(&mut self, from: ReplicaId, word: &EpochWord) {
        let is_this = word.base == self.executor.base() && self.is_descriptor(&word.descriptor);
        if is_this && self.lacks_state() {
            self.succession.givers.insert(from);
        }
    }
}

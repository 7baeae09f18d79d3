//! A hash of a node, by which the explorer of small worlds knows states that it has seen.
//!
//! ```text
//!   executor, snapshot, epochs, protocol ──► hasher; false: a part does not show itself
//! ```

use super::*;

impl Node {
    /// Feeds all that the node's future depends on into `hasher`, but for snapshots and state
    /// transfer in progress; false when the protocol does not show its part.
    pub fn fingerprint(&mut self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        use core::hash::Hash;
        self.executor.digest().hash(&mut hasher);
        self.executor.hash_waiting(hasher);
        (&self.held, &self.homes, self.executed_told).hash(&mut hasher);
        (self.persisted, self.written, self.batch_next, self.tick_at).hash(&mut hasher);
        (self.tick_open, self.tick_last).hash(&mut hasher);
        (self.epoch, self.members, self.voters, self.executor.base()).hash(&mut hasher);
        (self.fetched_at, self.donor_last, self.owes_state).hash(&mut hasher);
        (self.checkpoint_asked, self.snapshot_last).hash(&mut hasher);
        for (file, length) in &self.given {
            (file.id, file.origin, length).hash(&mut hasher);
        }
        let whole = self.fetch.is_none()
            && self.fingerprint_snapshot(hasher)
            && self.succession.fingerprint(hasher)
            && self.ring.is_none()
            && self.installing.is_none()
            && self.deferred.is_empty()
            && self.executor.digesting().is_none()
            && self.events.is_empty();
        whole && self.replica.fingerprint(hasher)
    }

    /// The snapshot that is being saved; false while its chunks are still made.
    fn fingerprint_snapshot(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        use core::hash::Hash;
        let Some(unfinished) = &self.unfinished else {
            return true;
        };
        let Under::Own {
            whole,
            finished,
            after,
        } = unfinished.kind
        else {
            return false;
        };
        (unfinished.id, unfinished.appended, unfinished.written).hash(&mut hasher);
        (whole, after).hash(&mut hasher);
        finished && unfinished.bridge.is_none()
    }
}

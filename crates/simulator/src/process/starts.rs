//! Whether a process starts, and who works with it.

use super::*;
use quintet_replica::journal::{GroupEpoch, Identity};

/// Whose a journal is, and in which epoch.
pub(super) fn owner(epoch: &Epoch, index: usize) -> (Identity, GroupEpoch) {
    let identity = Identity {
        cluster: epoch.cluster,
        node: ReplicaId(index as u16),
    };
    let group = GroupEpoch {
        group: GroupId(0),
        epoch: epoch.number,
    };
    (identity, group)
}

impl World {
    /// The process does not start, as its disk cannot be used. That is right when a fault has
    /// damaged the disk, and only then.
    pub(super) fn refuse(&mut self, index: usize, why: &dyn std::fmt::Display) {
        self.trace
            .say(self.now, || format!("r{index} does not start: {why}"));
        let process = &mut self.processes[index];
        match process.damaged {
            Some((kind, Harm::Permanent)) => {
                process.gone = true;
                process.disk.crash(&mut self.random);
                self.effective(kind.name());
            }
            _ => self.violate(Violation::new(
                "recovery",
                format!("replica {index}: {why}"),
            )),
        }
    }

    /// The process has started although its disk was damaged: what was damaged is repaired, will
    /// be, or is no longer needed.
    pub(super) fn forgive(
        &mut self,
        index: usize,
        promise_repaired: bool,
        lost: bool,
        snapshot_bad: bool,
    ) {
        let process = &mut self.processes[index];
        let Some((kind, _)) = process.damaged.take_if(|(kind, _)| *kind != Kind::Wipe) else {
            if lost {
                let what = format!("replica {index} lost something on a disk that nothing damaged");
                self.violate(Violation::new("recovery", what));
            }
            return;
        };
        let noticed = match kind {
            Kind::RotPromise => promise_repaired,
            Kind::RotSnapshot => snapshot_bad,
            _ => lost,
        };
        if lost {
            self.trace.say(self.now, || {
                format!("r{index} must be repaired by the others")
            });
            *self.branches.entry("journal begun again").or_default() += 1;
        }
        if noticed {
            self.effective(kind.name());
        }
    }

    /// Whether two places let each other in: a peer with another data directory than before has
    /// lost what it promised and must stop.
    pub fn admit(&mut self, a: usize, b: usize) -> bool {
        if !self.compare_configurations(a, b) {
            return false;
        }
        if a.max(b) >= self.replicas_max() {
            return true;
        }
        if [a, b].iter().any(|id| self.processes[*id].node.is_none()) {
            return true;
        }
        if !self.know_each_other(a, b) {
            return false;
        }
        for (at, peer) in [(a, b), (b, a)] {
            let directory = self.processes[peer].directory;
            if self.belongs(at, peer) == Some(true) {
                self.processes[at].peers.insert(peer, directory);
                continue;
            }
            let known = self.processes[at].peers.entry(peer).or_insert(directory);
            if *known != directory {
                self.trace.say(self.now, || {
                    format!("r{at} refuses r{peer}: it has voted before")
                });
                // Another may come in its place.
                self.network.refuse(a, b);
                self.crash(peer);
                self.processes[peer].gone = true;
                self.effective(Kind::Wipe.name());
                return false;
            }
        }
        true
    }

    /// The storage of a process failed: it stops, and is started again.
    pub(super) fn storage_failed(&mut self, index: usize, error: &JournalError<DiskError>) {
        self.trace
            .say(self.now, || format!("r{index} stops: {error}"));
        match error {
            JournalError::Disk(DiskError::SyncFailed) => self.effective(Kind::SyncFails.name()),
            other => {
                let what = format!("replica {index}: {other}");
                return self.violate(Violation::new("journal", what));
            }
        }
        let down = self.random.between(5, 800) * MILLISECOND;
        self.crash_for(index, down);
    }
}

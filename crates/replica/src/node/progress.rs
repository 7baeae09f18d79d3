//! How far the transfer of a state to this replica has come, as operators see it.

use super::*;

/// How much longer something takes that continues as it did so far.
fn left(bytes: u64, total: u64, elapsed: Duration) -> Option<Duration> {
    let known = bytes > 0 && total >= bytes && !elapsed.is_zero();
    known.then(|| {
        let rest = (total - bytes) as f64 / bytes as f64;
        Duration::try_from_secs_f64(elapsed.as_secs_f64() * rest).unwrap_or(Duration::MAX)
    })
}

impl Node {
    /// The transfer to this replica, if there is one.
    pub(super) fn transfer_status(&self, world: &dyn World) -> Option<TransferStatus> {
        let now = world.now();
        let since = |begun: Time| Duration::from_nanos(now.0.saturating_sub(begun.0));
        let saved = |it: &&Installing| it.source == Source::Saved;
        if let Some(installing) = self.installing.as_ref().filter(saved) {
            let id = installing.info.id;
            let (bytes, total) = (self.executor.restored_bytes(), installing.info.length);
            let elapsed = since(installing.begun);
            return Some(TransferStatus {
                phase: TransferPhase::Restoring,
                donor: self.donor_last?,
                wanted: installing.reach,
                snapshot: Some(id),
                reached: installing.reach,
                bytes,
                total,
                elapsed,
                left: left(bytes, total, elapsed),
            });
        }
        let fetch = self.fetch.as_ref()?;
        let fetched = |u: &&Unfinished| matches!(u.kind, Under::Fetched { .. });
        let file = self.unfinished.as_ref().filter(fetched);
        let whole = file.is_some_and(|u| u.kind == Under::Fetched { whole: true });
        let named = fetch.snapshot.map_or(Slot(0), |file| file.id.slot);
        let restored = self.executor.restored_bytes();
        let arriving = |it: &&Installing| it.source == Source::Arriving;
        let arriving = self.installing.as_ref().filter(arriving);
        let mut begun = fetch.begun;
        let (phase, reached, bytes, total) = match (&fetch.following, file) {
            (_, Some(file)) if whole => {
                let reached = named.max(fetch.fed_upto);
                (TransferPhase::Saving, reached, file.written, file.appended)
            }
            (Some(following), _) => match arriving {
                Some(installing) if restored < following.begin => {
                    begun = installing.begun;
                    let reached = following.after;
                    (TransferPhase::Restoring, reached, restored, following.begin)
                }
                _ => {
                    let executed = restored.saturating_sub(following.begin);
                    (
                        TransferPhase::Following,
                        following.after,
                        executed,
                        following.bytes,
                    )
                }
            },
            (None, Some(file)) if !fetch.is_new_to_donor() => {
                (TransferPhase::Receiving, named, fetch.offset, file.appended)
            }
            _ => (TransferPhase::Asking, named, fetch.promised(), 0),
        };
        let elapsed = since(begun);
        let known = matches!(phase, TransferPhase::Receiving | TransferPhase::Restoring);
        Some(TransferStatus {
            phase,
            donor: fetch.donor(),
            wanted: fetch.at_least,
            snapshot: fetch.snapshot.map(|file| file.id),
            reached,
            bytes,
            total,
            elapsed,
            left: left(bytes, total, elapsed).filter(|_| known),
        })
    }
}

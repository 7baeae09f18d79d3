//! Members that a shard waits for while nothing of them changes; see `slow_member.rs`.

use alloc::vec::Vec;
use core::time::Duration;
use quintet_replica::{ReplicaId, ReplicaSet, Time};

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Stalls {
    /// The members that are waited for, what each has done, and since when it has done no more.
    waited_for: Vec<(ReplicaId, u64, Time)>,
    looked_at: Time,
}

impl Stalls {
    /// Those that are waited for now, with what each has done. Gives those of them for which that was
    /// so, and no less, for longer than the limit. After a pause of `stood_still` this replica is to
    /// blame and no other.
    pub fn look(
        &mut self,
        now_waited_for: impl Iterator<Item = (ReplicaId, u64)>,
        (limit, stood_still): (Duration, Duration),
        now: Time,
    ) -> ReplicaSet {
        if now.since(self.looked_at) > stood_still {
            self.begin();
        }
        self.looked_at = now;
        let since = |id, done| {
            let mut same = (self.waited_for.iter()).filter(|it| (it.0, it.1) == (id, done));
            (id, done, same.next().map_or(now, |(.., since)| *since))
        };
        self.waited_for = now_waited_for.map(|(id, done)| since(id, done)).collect();
        let stalled = self.waited_for.iter();
        let stalled = stalled.filter(|(.., since)| now.since(*since) > limit);
        stalled.map(|(id, ..)| *id).collect()
    }

    /// A view begins.
    pub fn begin(&mut self) {
        self.waited_for.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Duration = Duration::from_millis(50);
    const LIMITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(300));

    /// Looks at each beat at members that have done this; gives who is found at the last one.
    fn beats(stalls: &mut Stalls, now: &mut Time, count: u32, done: &[(u16, u64)]) -> ReplicaSet {
        let mut found = ReplicaSet::EMPTY;
        for _ in 0..count {
            *now = *now + BEAT;
            let done = done.iter().map(|(id, done)| (ReplicaId(*id), *done));
            found = stalls.look(done, LIMITS, *now);
        }
        found
    }

    #[test]
    fn member_is_stalled_when_nothing_changes_for_longer_than_limit() {
        let (mut stalls, mut now) = (Stalls::default(), Time(1 << 40));
        assert_eq!(beats(&mut stalls, &mut now, 21, &[(1, 5), (2, 7)]).len(), 0);
        let found = beats(&mut stalls, &mut now, 1, &[(1, 5), (2, 8)]);
        assert_eq!(found, ReplicaSet::EMPTY.with(ReplicaId(1)));
        beats(&mut stalls, &mut now, 1, &[(2, 8)]);
        let found = beats(&mut stalls, &mut now, 1, &[(1, 5), (2, 8)]);
        assert!(found.is_empty(), "it was not waited for in between");
    }

    #[test]
    fn replica_that_stood_still_blames_no_other() {
        let (mut stalls, mut now) = (Stalls::default(), Time(1 << 40));
        beats(&mut stalls, &mut now, 2, &[(1, 5)]);
        now = now + Duration::from_secs(9);
        assert!(beats(&mut stalls, &mut now, 20, &[(1, 5)]).is_empty());
        assert!(!beats(&mut stalls, &mut now, 2, &[(1, 5)]).is_empty());
    }
}

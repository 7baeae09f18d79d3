//! Members that answer, but so slowly that everybody waits for them: removed at a view (D11, §3.6).
//!
//! ```text
//!   each turn: what does delivery wait for? ─┬─ only for X, the rest is a majority ─► waited[X]
//!                                            └─ for this member, or for many       ─► common
//!   after a while: waited[X] most of the time, 8 times what is common, long per message
//!     ─► the lowest rank of the rest suspects X; lets it in again after a pause that doubles
//! ```
//!
//! Delivery waits for all members, so one with a bad link or a dying disk would slow the group to
//! its own pace and never be silent enough to be suspected. Whoever is only somewhat slower than
//! the others stays: a smaller view tolerates fewer failures.

use super::{
    Derecho,
    sst::{self, PERSISTED},
    view_change::has_quorum,
};
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{Context, ReplicaId, ReplicaSet, Time};

/// How much longer than for all others the group must have waited for a member.
const FACTOR: u32 = 8;

/// The first pause of a member that was removed; it doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(64);

/// For whom delivery has waited since when.
pub(super) struct Waits {
    /// When this was looked at last, and what delivery waited for then.
    at: Time,
    behind: ReplicaSet,
    since: Time,
    delivered: u64,
    waited: Vec<Duration>,
    common: Duration,
    /// Until when those that were removed stay out, and for how long they did.
    pauses: Vec<(Time, Duration)>,
}

impl Waits {
    pub fn new(members: usize) -> Self {
        Self {
            at: Time(0),
            behind: ReplicaSet::EMPTY,
            since: Time(0),
            delivered: 0,
            waited: vec![Duration::ZERO; members],
            common: Duration::ZERO,
            pauses: vec![(Time(0), Duration::ZERO); members],
        }
    }

    /// Counts anew from here on.
    pub fn begin(&mut self, now: Time, delivered: u64) {
        self.at = now;
        self.behind = ReplicaSet::EMPTY;
        self.since = now;
        self.delivered = delivered;
        self.waited.fill(Duration::ZERO);
        self.common = Duration::ZERO;
    }

    /// Whether a member that was removed for its slowness may not come back yet.
    pub fn pauses(&self, id: ReplicaId, now: Time) -> bool {
        now < self.pauses[id.index()].0
    }

    fn pause(&mut self, id: ReplicaId, now: Time) {
        let (until, lasted) = self.pauses[id.index()];
        // Who behaved for long enough begins at the first pause again.
        let again = now.since(until) < PAUSE_MAX && lasted > Duration::ZERO;
        let pause = if again {
            (lasted * 2).min(PAUSE_MAX)
        } else {
            PAUSE_MIN
        };
        self.pauses[id.index()] = (now + pause, pause);
    }
}

impl Derecho {
    /// The end of a turn: for whom delivery waits from now on.
    pub(super) fn note_waiting(&mut self, now: Time) {
        let passed = now.since(self.waits.at);
        if passed > self.config.suspect_timeout {
            // This replica stood still: nobody else is to blame.
            self.waits.begin(now, self.delivered);
        } else if self.waits.behind.contains(self.id) {
            self.waits.common += passed;
        } else {
            for id in self.waits.behind.iter() {
                self.waits.waited[id.index()] += passed;
            }
        }
        self.waits.at = now;
        self.waits.behind = self.behind();
    }

    /// Without whom the next message would be delivered. This member stands for all causes that
    /// are not a minority's slowness; nobody when nothing waits.
    fn behind(&self) -> ReplicaSet {
        let own = ReplicaSet::EMPTY.with(self.id);
        let view = &self.promise.view;
        let behind = if self.wedging {
            return ReplicaSet::EMPTY;
        } else if self.ordered > self.delivered {
            let missing = |id: &ReplicaId| self.table.read(*id, PERSISTED) <= self.delivered;
            self.live().iter().filter(missing).collect()
        } else if sst::any(self.live(), |id| !self.streams[id.index()].queue.is_empty()) {
            let rank = (self.ordered % view.members.len() as u64) as usize;
            ReplicaSet::EMPTY.with(view.members[rank].id)
        } else {
            return ReplicaSet::EMPTY;
        };
        let rest = ReplicaSet(self.live().0 & !behind.0);
        if rest.contains(self.id) && has_quorum(view, rest) {
            behind
        } else {
            own
        }
    }

    /// Removes members that everybody has waited for, for most of the time.
    pub(super) fn look_for_sluggish(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let whole = now.since(self.waits.since);
        if self.config.sluggish.is_zero() || whole < self.config.suspect_timeout * 2 {
            return;
        }
        let messages = self.delivered.saturating_sub(self.waits.delivered).max(1);
        let per_message = u32::try_from(messages).unwrap_or(u32::MAX);
        let (waits, live) = (&self.waits, self.live());
        let slow = |id: &ReplicaId| {
            let waited = waits.waited[id.index()];
            waited > whole * 3 / 4
                && waited > waits.common * FACTOR
                && waited / per_message > self.config.sluggish
        };
        let slow: ReplicaSet = live.without(self.id).iter().filter(slow).collect();
        self.waits.begin(now, self.delivered);
        let rest = ReplicaSet(live.0 & !slow.0);
        // One judges: who leads the rest also decides when they come back.
        if !has_quorum(&self.promise.view, rest) || rest.iter().next() != Some(self.id) {
            return;
        }
        for id in slow.iter() {
            ctx.mark("sluggish member removed");
            self.waits.pause(id, now);
            self.suspect(id, ctx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_good_conduct() {
        let (id, mut waits) = (ReplicaId(1), Waits::new(2));
        let mut now = Time(0) + PAUSE_MAX * 2;
        let mut pause = PAUSE_MIN;
        for _ in 0..8 {
            waits.pause(id, now);
            let end = now + pause;
            assert!(waits.pauses(id, now) && !waits.pauses(id, end));
            assert!(!waits.pauses(ReplicaId(0), now), "another one's pause");
            now = end;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        now = now + PAUSE_MAX;
        waits.pause(id, now);
        assert!(!waits.pauses(id, now + PAUSE_MIN));
    }
}

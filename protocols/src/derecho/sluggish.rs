//! Members that answer, but so slowly that everybody waits for them: removed at a view (D11, §3.6).
//!
//! ```text
//!   one message at a time:  known here ──► X has sent its part ──┐ ordered ──► X holds it
//!                           └─────────── lag of X, part one ─────┘ └─ part two ─┘
//!     ─► X lags twice as long as the slowest of the fastest majority, and long: X is slow
//!   each turn: what does delivery wait for? ─┬─ only for X, the rest is a majority ─► waited[X]
//!                                            └─ for this member, or for many       ─► common
//!   twice in a row: waited[X] most of the time, 8 times what is common, slow with most messages
//!     ─► the lowest rank of the rest suspects X; lets it in again after a pause that doubles
//! ```
//!
//! Delivery waits for all members, so one with a bad link or a dying disk would slow the group to
//! its own pace and never be silent enough to be suspected. Members are compared with each other
//! and not with a clock: where all are far away, or all disks are busy, nobody stands out. Whoever
//! is only somewhat slower than the others stays, and the replica that stood still once: a smaller
//! view tolerates fewer failures.

use super::{Derecho, sst::PERSISTED, view_change::has_quorum};
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{Context, ReplicaId, ReplicaSet, Time};

/// How much longer than for all others the group must have waited for a member.
const FACTOR: u32 = 8;

/// How much later than a majority it must hold a message. Less than the above, because any
/// other replica that waits for a slow member's places in the order holds the message later, too.
const LAG_FACTOR: u32 = 2;

/// The fewest messages that a judgement is about, and how many judgements in a row it takes.
const SAMPLES_MIN: u32 = 8;
const STRIKES: u8 = 2;

/// The first pause of a member that was removed; it doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(64);

/// For whom delivery has waited since when.
#[derive(Hash)]
pub(super) struct Waits {
    /// When this was looked at last, and what delivery waited for then.
    at: Time,
    behind: ReplicaSet,
    since: Time,
    waited: Vec<Duration>,
    common: Duration,
    /// The message that is watched, how many took somebody long, and with how many of them
    /// each was slow.
    sample: Option<Sample>,
    /// How long each made the others wait for that message.
    lag: Vec<Duration>,
    sorted: Vec<Duration>,
    samples: u32,
    slow: Vec<u32>,
    /// How many judgements in a row found each slow.
    strikes: Vec<u8>,
    /// Until when those that were removed stay out, and for how long they did.
    pauses: Vec<(Time, Duration)>,
}

/// How long the members take to let one message be delivered.
#[derive(Hash)]
struct Sample {
    /// The message's number in the order, counted from one.
    target: u64,
    began: Time,
    ordered: Option<Time>,
    /// Who has not filled its places in the order up to the message, and who does not hold it.
    sending: ReplicaSet,
    holding: ReplicaSet,
}

impl Waits {
    pub fn new(members: usize) -> Self {
        Self {
            at: Time(0),
            behind: ReplicaSet::EMPTY,
            since: Time(0),
            waited: vec![Duration::ZERO; members],
            common: Duration::ZERO,
            sample: None,
            lag: vec![Duration::ZERO; members],
            sorted: Vec::with_capacity(members),
            samples: 0,
            slow: vec![0; members],
            strikes: vec![0; members],
            pauses: vec![(Time(0), Duration::ZERO); members],
        }
    }

    /// Counts again from here on, as if nobody had been slow before.
    pub fn begin(&mut self, now: Time) {
        self.next(now);
        self.strikes.fill(0);
        self.behind = ReplicaSet::EMPTY;
        self.sample = None;
    }

    /// The next judgement is about what happens from here on.
    fn next(&mut self, now: Time) {
        self.at = now;
        self.since = now;
        self.waited.fill(Duration::ZERO);
        self.common = Duration::ZERO;
        self.samples = 0;
        self.slow.fill(0);
    }

    /// Everybody holds the message that was watched: who of `live` took far longer than a
    /// majority of the `members` of the view, and longer than `least`?
    fn finish(&mut self, live: ReplicaSet, members: usize, least: Duration) {
        self.sample = None;
        self.sorted.clear();
        self.sorted
            .extend(live.iter().map(|id| self.lag[id.index()]));
        // The slowest of the fastest majority.
        if members / 2 >= self.sorted.len() {
            return;
        }
        let (_, common, _) = self.sorted.select_nth_unstable(members / 2);
        let common = *common;
        if !live.iter().any(|id| self.lag[id.index()] > least) {
            return;
        }
        let least = least.max(common * LAG_FACTOR);
        for id in live.iter().filter(|id| self.lag[id.index()] > least) {
            self.slow[id.index()] += 1;
        }
        self.samples += 1;
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
    /// The end of a turn: for whom delivery waits from now on, and for how long it did.
    pub(super) fn note_waiting(&mut self, now: Time) {
        let passed = now.since(self.waits.at);
        if passed > self.config.suspect_timeout {
            // This replica stood still: nobody else is to blame.
            self.waits.begin(now);
        } else if self.waits.behind.contains(self.id) {
            self.waits.common += passed;
        } else {
            for id in self.waits.behind.iter() {
                self.waits.waited[id.index()] += passed;
            }
        }
        self.waits.at = now;
        self.waits.behind = self.behind();
        self.watch(now);
    }

    /// Notes who lets the watched message pass by now, and chooses the next one.
    fn watch(&mut self, now: Time) {
        let (live, view) = (self.live(), &self.promise.view);
        let (table, streams) = (&self.table, &self.streams);
        let members = view.members.len() as u64;
        let waits = &mut self.waits;
        if let Some(sample) = &mut waits.sample {
            let last = sample.target - 1;
            let filled = |rank: u64| last / members + u64::from(rank <= last % members);
            let sent = |id: &ReplicaId| {
                let rank = view.rank(*id).unwrap_or(0) as u64;
                streams[id.index()].received >= filled(rank)
            };
            let sent: ReplicaSet = sample.sending.iter().filter(sent).collect();
            for id in sent.iter() {
                waits.lag[id.index()] = now.since(sample.began);
            }
            sample.sending = ReplicaSet(sample.sending.0 & live.0 & !sent.0);
            if sample.ordered.is_none() && self.ordered >= sample.target {
                sample.ordered = Some(now);
            }
            if let Some(ordered) = sample.ordered {
                let holds = |id: &ReplicaId| table.read(*id, PERSISTED) >= sample.target;
                let hold: ReplicaSet = sample.holding.iter().filter(holds).collect();
                for id in hold.iter() {
                    waits.lag[id.index()] += now.since(ordered);
                }
                sample.holding = ReplicaSet(sample.holding.0 & live.0 & !hold.0);
            }
            if sample.holding != ReplicaSet::EMPTY {
                return;
            }
            waits.finish(live, members as usize, self.config.sluggish);
        }
        if self.newest > self.delivered && !self.wedging {
            waits.lag.fill(Duration::ZERO);
            waits.sample = Some(Sample {
                target: self.newest,
                began: now,
                ordered: None,
                sending: live,
                holding: live,
            });
        }
    }

    /// Without whom the next message would be delivered. This member stands for all causes that
    /// are not a minority's slowness; nobody when nothing waits.
    fn behind(&self) -> ReplicaSet {
        let own = ReplicaSet::EMPTY.with(self.id);
        let view = &self.promise.view;
        let behind = if self.wedging {
            return ReplicaSet::EMPTY;
        } else if self.last_slot(self.ordered) > self.sure {
            // Nulls before the message count with it; nobody waits for those behind it.
            let before = self.marks.partition_point(|slot| *slot <= self.sure);
            let number = self.delivered + before as u64 + 1;
            let missing = |id: &ReplicaId| self.table.read(*id, PERSISTED) < number;
            self.live().iter().filter(missing).collect()
        } else if self.newest > self.ordered {
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
        let live = self.live();
        let waits = &mut self.waits;
        let alone = |id: usize| {
            waits.waited[id] > whole * 3 / 4 && waits.waited[id] > waits.common * FACTOR
        };
        let somebody = live.iter().any(|id| alone(id.index()));
        let enough = waits.samples >= SAMPLES_MIN;
        if somebody && !enough && whole < self.config.suspect_timeout * 2 * SAMPLES_MIN {
            return;
        }
        for id in live.without(self.id).iter().map(ReplicaId::index) {
            let slow = enough && alone(id) && waits.slow[id] > waits.samples * 3 / 4;
            waits.strikes[id] = if slow {
                waits.strikes[id].saturating_add(1)
            } else {
                0
            };
        }
        let slow = |id: &ReplicaId| waits.strikes[id.index()] >= STRIKES;
        let slow: ReplicaSet = live.iter().filter(slow).collect();
        waits.next(now);
        let rest = ReplicaSet(live.0 & !slow.0);
        // One judges: who leads the rest also decides when they come back.
        if !has_quorum(&self.promise.view, rest) || rest.iter().next() != Some(self.id) {
            return;
        }
        for id in slow.iter() {
            self.waits.strikes[id.index()] = 0;
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
    fn pauses_double_up_to_longest_and_begin_again_after_good_conduct() {
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

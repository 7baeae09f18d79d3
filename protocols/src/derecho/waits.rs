//! For whom delivery waits, and for how long; see `slow_member.rs`.

use super::stalls::Stalls;
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, ReplicaSet, Time};

/// How much longer than for all others the group must have waited for a member.
const FACTOR: u32 = 8;

/// How much later than a majority it must hold a message. Less than the above, because any
/// other replica that waits for a slow member's places in the order holds the message later, too.
const LAG_FACTOR: u32 = 2;

/// The fewest messages that an assessment is about, and how many assessments in a row it takes.
const SAMPLES_MIN: u32 = 8;
const SLOW_COUNT_MIN: u8 = 2;

/// The first pause of a member that was removed; it doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(64);

/// How much longer than for all others, if its pace is slow, too.
const PACE_FACTOR: u32 = 2;

/// In a new view a member is assessed by its pace only after this: it is of the time before.
const PACE_FROM: Duration = Duration::from_secs(4);

/// For whom delivery has waited since when.
#[derive(Hash)]
pub(super) struct Waits {
    /// When this was looked at last, and what delivery waited for then.
    at: Time,
    behind: ReplicaSet,
    since: Time,
    waited: Vec<Duration>,
    common: Duration,
    /// The watched message, how many took a member long, and with how many of them each was slow.
    sample: Option<Sample>,
    /// How long each made the others wait for that message.
    lag: Vec<Duration>,
    sorted: Vec<Duration>,
    samples: u32,
    slow: Vec<u32>,
    /// How many assessments in a row found each slow.
    slow_counts: Vec<u8>,
    /// Until when those that were removed stay out, and for how long they did.
    pauses: Vec<(Time, Duration)>,
    /// Members whose links or disks are far slower than a majority's, and from when that counts.
    slow_pace: ReplicaSet,
    pace_from: Time,
    stalls: Stalls,
}

/// How long the members take to let one message be delivered.
#[derive(Hash)]
struct Sample {
    /// The message's number in the order, counted from one.
    target: u64,
    began: Time,
    ordered: Option<Time>,
    /// Members that have not filled their places in the order up to the message, and those that do
    /// not hold it.
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
            slow_counts: vec![0; members],
            pauses: vec![(Time(0), Duration::ZERO); members],
            slow_pace: ReplicaSet::EMPTY,
            pace_from: Time(0),
            stalls: Stalls::default(),
        }
    }

    /// The members whose links or disks are far slower than a majority's.
    pub const fn set_slow_pace(&mut self, slow: ReplicaSet) {
        self.slow_pace = slow;
    }

    /// Counts again from here on, as if no member had been slow before.
    pub fn begin(&mut self, now: Time) {
        self.next(now);
        self.slow_counts.fill(0);
        self.behind = ReplicaSet::EMPTY;
        self.sample = None;
        self.pace_from = now + PACE_FROM;
        self.stalls.begin();
    }

    /// The next assessment is about what happens from here on.
    fn next(&mut self, now: Time) {
        self.at = now;
        self.since = now;
        self.waited.fill(Duration::ZERO);
        self.common = Duration::ZERO;
        self.samples = 0;
        self.slow.fill(0);
    }

    /// Everybody holds the message that was watched: who of `live` took far longer than a
    /// majority of the `members` of the order, and longer than `least`?
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

    /// The end of a turn: for whom delivery waits from now on, and for how long it did. After a
    /// pause of `stood_still` this replica is to blame and no other.
    pub fn turn(&mut self, own: ReplicaId, behind: ReplicaSet, stood_still: Duration, now: Time) {
        let passed = now.since(self.at);
        if passed > stood_still {
            self.begin(now);
        } else if self.behind.contains(own) {
            self.common += passed;
        } else {
            for id in self.behind.iter() {
                self.waited[id.index()] += passed;
            }
        }
        self.at = now;
        self.behind = behind;
    }

    /// Notes which members of `live` let the watched message pass by now: how much each has sent,
    /// and how much of the order each holds; here `ordered` messages are. True when none is watched
    /// any more.
    pub fn watch(
        &mut self,
        (live, senders): (ReplicaSet, &[ReplicaId]),
        ordered: u64,
        received: impl Fn(ReplicaId) -> u64,
        persisted: impl Fn(ReplicaId) -> u64,
        now: Time,
    ) -> bool {
        let Some(sample) = &mut self.sample else {
            return true;
        };
        let (last, count) = (sample.target - 1, senders.len() as u64);
        let filled = |rank: u64| last / count + u64::from(rank <= last % count);
        let sent = |id: &ReplicaId| {
            let rank = senders.iter().position(|sender| sender == id);
            rank.is_none_or(|rank| received(*id) >= filled(rank as u64))
        };
        let sent: ReplicaSet = sample.sending.iter().filter(sent).collect();
        for id in sent.iter() {
            self.lag[id.index()] = now.since(sample.began);
        }
        sample.sending = ReplicaSet(sample.sending.0 & live.0 & !sent.0);
        if sample.ordered.is_none() && ordered >= sample.target {
            sample.ordered = Some(now);
        }
        if let Some(ordered) = sample.ordered {
            let holds = |id: &ReplicaId| persisted(*id) >= sample.target;
            let hold: ReplicaSet = sample.holding.iter().filter(holds).collect();
            for id in hold.iter() {
                self.lag[id.index()] += now.since(ordered);
            }
            sample.holding = ReplicaSet(sample.holding.0 & live.0 & !hold.0);
        }
        sample.holding.is_empty()
    }

    /// The watched message is done with, and the next one is this, if there is one.
    pub fn watch_next(
        &mut self,
        target: Option<u64>,
        (live, members): (ReplicaSet, usize),
        least: Duration,
        now: Time,
    ) {
        if self.sample.is_some() {
            self.finish(live, members, least);
        }
        if let Some(target) = target {
            self.lag.fill(Duration::ZERO);
            self.sample = Some(Sample {
                target,
                began: now,
                ordered: None,
                sending: live,
                holding: live,
            });
        }
    }

    /// The others of `live` that all have waited for, for most of the time: once where their pace is
    /// slow, else at several assessments in a row; none while there is too little to assess by. One
    /// takes `period` at least.
    pub fn look(
        &mut self,
        live: ReplicaSet,
        own: ReplicaId,
        period: Duration,
        now: Time,
    ) -> ReplicaSet {
        let whole = now.since(self.since);
        if whole < period {
            return ReplicaSet::EMPTY;
        }
        let (waited, common) = (&self.waited, self.common);
        let alone = |id: usize| waited[id] > whole * 3 / 4 && waited[id] > common * FACTOR;
        // One whose pace is slow, and that all wait for, needs no more: unless this member is slow, too.
        let assesses = now >= self.pace_from && !self.slow_pace.contains(own);
        let held_up = |id: usize| waited[id] > whole / 2 && waited[id] > common * PACE_FACTOR;
        let paced =
            |id: &ReplicaId| assesses && self.slow_pace.contains(*id) && held_up(id.index());
        let slow: ReplicaSet = live.without(own).iter().filter(paced).collect();
        if !slow.is_empty() {
            self.next(now);
            return slow;
        }
        let any_alone = live.iter().any(|id| alone(id.index()));
        let enough = self.samples >= SAMPLES_MIN;
        if any_alone && !enough && whole < period * SAMPLES_MIN {
            return ReplicaSet::EMPTY;
        }
        for id in live.without(own).iter().map(ReplicaId::index) {
            let slow = enough && alone(id) && self.slow[id] > self.samples * 3 / 4;
            self.slow_counts[id] = if slow {
                self.slow_counts[id].saturating_add(1)
            } else {
                0
            };
        }
        let slow = |id: &ReplicaId| self.slow_counts[id.index()] >= SLOW_COUNT_MIN;
        let slow = live.iter().filter(slow).collect();
        self.next(now);
        slow
    }

    /// See [`Stalls::look`].
    pub fn look_for_stalled(
        &mut self,
        waited_for: impl Iterator<Item = (ReplicaId, u64)>,
        limits: (Duration, Duration),
        now: Time,
    ) -> ReplicaSet {
        self.stalls.look(waited_for, limits, now)
    }

    /// A slow member is removed: it pauses.
    pub fn removed(&mut self, id: ReplicaId, now: Time) {
        self.slow_counts[id.index()] = 0;
        self.pause(id, now);
    }

    /// Whether a member that was removed for its slowness may not come back yet.
    pub fn pauses(&self, id: ReplicaId, now: Time) -> bool {
        now < self.pauses[id.index()].0
    }

    fn pause(&mut self, id: ReplicaId, now: Time) {
        let (until, lasted) = self.pauses[id.index()];
        // A member that behaved for long enough begins at the first pause again.
        let again = now.since(until) < PAUSE_MAX && lasted > Duration::ZERO;
        let pause = if again {
            (lasted * 2).min(PAUSE_MAX)
        } else {
            PAUSE_MIN
        };
        self.pauses[id.index()] = (now + pause, pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_with_slow_pace_that_all_wait_for_is_slow_at_once() {
        let live: ReplicaSet = (0..3).map(ReplicaId).collect();
        let (own, other) = (ReplicaId(0), ReplicaSet::EMPTY.with(ReplicaId(2)));
        let period = Duration::from_millis(500);
        let looked = |slow_pace: ReplicaSet, behind: ReplicaSet, begins: Duration| {
            let mut waits = Waits::new(3);
            waits.begin(Time(0));
            let now = Time(0) + begins;
            waits.next(now);
            waits.behind = behind;
            waits.set_slow_pace(slow_pace);
            waits.turn(own, behind, PACE_FROM, now + period);
            waits.look(live, own, period, now + period)
        };
        assert_eq!(looked(other, other, PACE_FROM), other);
        let none = ReplicaSet::EMPTY;
        assert_eq!(
            looked(other, none, PACE_FROM),
            none,
            "no member waits for it"
        );
        assert_eq!(looked(other, other, period), none, "of the view before");
        assert_eq!(
            looked(other.with(own), other, PACE_FROM),
            none,
            "one assesses that is slow"
        );
        assert_eq!(looked(none, other, PACE_FROM), none, "not at once");
    }

    #[test]
    fn pauses_double_up_to_limit_and_reset_after_quick_period() {
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

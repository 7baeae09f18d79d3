//! Deadline-ordered multicast: a layer of its own that knows nothing of replication (§3).
//!
//! ```text
//!   sender                                    receiver
//!   deadline = sent + bound ───request──────► deadline above the last released?
//!       ▲                                       │ yes                  │ no
//!       │                                     early buffer          late buffer
//!       │                                       │ at its deadline, in the order of deadlines
//!       │                                       ▼
//!       └── max over receivers ◄── estimate   released
//!                                  per sender: percentile of its delays + β (σ sender + σ receiver)
//! ```
//!
//! Nothing here is needed for safety: whatever clocks say, requests are only released sooner or
//! later, in this order or in the late buffer.

use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use quintet_replica::{BatchId, Bytes, FrontendId, parts::Table, wire};

/// The name of a request: the paper's client id and request id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// The sender.
    pub frontend: FrontendId,
    /// The sender's number for it.
    pub batch: BatchId,
}

/// A request's place in the order of deadlines. Names break ties, so the order is total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Nanoseconds since the Unix epoch.
    pub deadline: u64,
    /// Whose.
    pub name: Name,
}

wire! { struct Name [16] { frontend, batch } }
wire! { struct Stamp [24] { deadline, name } }

/// How senders' latency bounds are estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Estimation {
    /// Which of the measured delays counts, in percent.
    pub percentile: u8,
    /// How many of the newest delays are looked at.
    pub window: usize,
    /// How often the clocks' deviations are added.
    pub beta: u64,
    /// The replacement for an estimate that is not between 0 and this, in nanoseconds.
    pub bound_max: u64,
}

/// The measured delays of one sender, newest last, and the same in order.
#[derive(Clone, Debug, Default, Hash)]
struct Delays {
    newest: VecDeque<i64>,
    sorted: Vec<i64>,
    /// The sender's deviation as it last told it.
    deviation: u64,
}

impl Delays {
    fn add(&mut self, delay: i64, window: usize) {
        if self.newest.len() >= window.max(1)
            && let Some(oldest) = self.newest.pop_front()
            && let Ok(at) = self.sorted.binary_search(&oldest)
        {
            self.sorted.remove(at);
        }
        self.newest.push_back(delay);
        let at = self.sorted.partition_point(|known| *known <= delay);
        self.sorted.insert(at, delay);
    }

    fn percentile(&self, percent: u8) -> Option<i64> {
        let last = self.sorted.len().checked_sub(1)?;
        self.sorted
            .get(last * usize::from(percent.min(100)) / 100)
            .copied()
    }
}

/// The most senders whose delays are remembered.
const SENDERS_MAX: usize = 1024;

/// A receiver's measurements of the delays of senders' messages.
#[derive(Clone, Debug, Hash)]
pub struct OneWayDelays {
    estimation: Estimation,
    senders: BTreeMap<FrontendId, Delays>,
}

impl OneWayDelays {
    /// Nothing measured yet.
    #[must_use]
    pub const fn new(estimation: Estimation) -> Self {
        Self {
            estimation,
            senders: BTreeMap::new(),
        }
    }

    /// From now on estimates are made so.
    pub const fn retune(&mut self, estimation: Estimation) {
        self.estimation = estimation;
    }

    /// A message of this sender took `arrived - sent`, by two clocks that may disagree.
    pub fn measure(&mut self, sender: FrontendId, sent: u64, arrived: u64, deviation: u64) {
        if !self.senders.contains_key(&sender) && self.senders.len() >= SENDERS_MAX {
            self.senders.pop_first();
        }
        let delay = i128::from(arrived) - i128::from(sent);
        let delay = i64::try_from(delay).unwrap_or(if delay < 0 { i64::MIN } else { i64::MAX });
        let delays = self.senders.entry(sender).or_default();
        delays.deviation = deviation;
        delays.add(delay, self.estimation.window);
    }

    /// The latency bound that this receiver asks of a sender, in nanoseconds; `None` before
    /// anything was measured. `deviation` is the receiver's own. A clock that tells nothing of
    /// its deviation (`u64::MAX`) adds nothing: the percentile alone holds then.
    #[must_use]
    pub fn estimate(&self, sender: FrontendId, deviation: u64) -> Option<u64> {
        let delays = self.senders.get(&sender)?;
        let known = |deviation: u64| if deviation == u64::MAX { 0 } else { deviation };
        let spread = known(delays.deviation).saturating_add(known(deviation));
        let estimate = i128::from(delays.percentile(self.estimation.percentile)?)
            + i128::from(spread) * i128::from(self.estimation.beta);
        let bound_max = self.estimation.bound_max;
        Some(match u64::try_from(estimate) {
            Ok(estimate) if estimate > 0 && estimate < bound_max => estimate,
            _ => bound_max,
        })
    }
}

/// How many of the newest holds are looked at …
const HOLDS_MAX: usize = 256;
/// … and how often, counted in holds: the median is asked for far more often than it moves.
const HOLDS_STEP: u64 = 64;

/// How long requests are held until their deadlines.
#[derive(Clone, Debug, Default, Hash)]
pub struct Holds {
    newest: VecDeque<u64>,
    added: u64,
    median: Option<u64>,
}

impl Holds {
    /// A request with this deadline came when the clock showed `clock`.
    pub fn add(&mut self, deadline: u64, clock: u64) {
        if self.newest.len() >= HOLDS_MAX {
            self.newest.pop_front();
        }
        self.newest.push_back(deadline.saturating_sub(clock));
        self.added += 1;
        if self.added < HOLDS_STEP || self.added.is_multiple_of(HOLDS_STEP) {
            let mut sorted: Vec<u64> = self.newest.iter().copied().collect();
            sorted.sort_unstable();
            self.median = sorted.get(sorted.len() / 2).copied();
        }
    }

    /// The median of the newest as it was lately, in nanoseconds; `None` before the first.
    #[must_use]
    pub const fn median(&self) -> Option<u64> {
        self.median
    }
}

/// Requests that wait for their deadline, each with what was found out about it when it came.
#[derive(Debug, Hash)]
pub struct EarlyBuffer<T = ()> {
    waiting: BTreeMap<Stamp, (Bytes, T)>,
    bytes: usize,
}

impl<T> Default for EarlyBuffer<T> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            bytes: 0,
        }
    }
}

impl<T> EarlyBuffer<T> {
    /// Takes a request.
    pub fn insert(&mut self, stamp: Stamp, request: Bytes, known: T) {
        self.bytes += request.len();
        if let Some((before, _)) = self.waiting.insert(stamp, (request, known)) {
            self.bytes -= before.len();
        }
    }

    /// Takes a request out before its time.
    pub fn remove(&mut self, stamp: Stamp) -> Option<(Bytes, T)> {
        let (request, known) = self.waiting.remove(&stamp)?;
        self.bytes -= request.len();
        Some((request, known))
    }

    /// A request that waits.
    #[must_use]
    pub fn get(&self, stamp: Stamp) -> Option<&Bytes> {
        self.waiting.get(&stamp).map(|(request, _)| request)
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        Some(self.waiting.first_key_value()?.0.deadline)
    }

    /// The first request if its deadline has come at `clock`.
    pub fn release(&mut self, clock: u64) -> Option<(Stamp, Bytes, T)> {
        if self.next_deadline()? > clock {
            return None;
        }
        let (stamp, (request, known)) = self.waiting.pop_first()?;
        self.bytes -= request.len();
        Some((stamp, request, known))
    }

    /// The stamps of those that wait, in order.
    pub fn stamps(&self) -> impl Iterator<Item = Stamp> + '_ {
        self.waiting.keys().copied()
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes that wait.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Empties the buffer.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Requests that came too late to be released in order; found by name, oldest dropped first.
#[derive(Debug, Default, Hash)]
pub struct LateBuffer {
    held: Table<Name, (u64, Bytes)>,
    order: BTreeMap<u64, Name>,
    next: u64,
    bytes: usize,
}

impl LateBuffer {
    /// Takes a request; the oldest ones go when it would hold more than `bytes_max`. Calls
    /// `dropped` for each of the dropped ones.
    pub fn insert(
        &mut self,
        name: Name,
        request: Bytes,
        bytes_max: usize,
        mut dropped: impl FnMut(Name),
    ) {
        self.remove(name);
        self.bytes += request.len();
        self.next += 1;
        self.order.insert(self.next, name);
        self.held.insert(name, (self.next, request));
        // The newest stays, however long it is.
        while self.held.len() > 1 && (self.bytes > bytes_max || self.held.len() > bytes_max / 64) {
            let Some((_, oldest)) = self.order.pop_first() else {
                return;
            };
            if let Some((_, request)) = self.held.remove(&oldest) {
                self.bytes -= request.len();
                dropped(oldest);
            }
        }
    }

    /// Takes a request out.
    pub fn remove(&mut self, name: Name) -> Option<Bytes> {
        let (order, request) = self.held.remove(&name)?;
        self.order.remove(&order);
        self.bytes -= request.len();
        Some(request)
    }

    /// A request that is held.
    #[must_use]
    pub fn get(&self, name: Name) -> Option<&Bytes> {
        Some(&self.held.get(&name)?.1)
    }

    /// The names of those that are held, oldest first.
    pub fn names(&self) -> impl Iterator<Item = Name> + '_ {
        self.order.values().copied()
    }

    /// How many are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Empties the buffer.
    pub fn clear(&mut self) {
        let next = self.next;
        *self = Self {
            next,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::Bytes;

    const ESTIMATION: Estimation = Estimation {
        percentile: 50,
        window: 5,
        beta: 3,
        bound_max: 1000,
    };
    const SENDER: FrontendId = FrontendId(7);

    fn measured(delays: &[i64]) -> OneWayDelays {
        let mut receiver = OneWayDelays::new(ESTIMATION);
        for delay in delays {
            let sent = 1_000_000u64;
            receiver.measure(SENDER, sent, sent.saturating_add_signed(*delay), 0);
        }
        receiver
    }

    /// A small generator: the tests must not depend on chance.
    fn numbers(seed: u64) -> impl Iterator<Item = u64> {
        let mut state = seed;
        core::iter::from_fn(move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            Some(state >> 33)
        })
    }

    #[test]
    fn estimate_is_the_percentile_of_the_newest_delays() {
        assert_eq!(measured(&[]).estimate(SENDER, 0), None);
        assert_eq!(measured(&[10, 30, 20]).estimate(SENDER, 0), Some(20));
        let slid = measured(&[900, 900, 900, 1, 2, 3, 4, 5]);
        assert_eq!(slid.estimate(SENDER, 0), Some(3), "old ones are dropped");
        assert_eq!(slid.estimate(SENDER, 10), Some(33), "β times the deviation");
        assert_eq!(
            slid.estimate(SENDER, u64::MAX),
            Some(3),
            "unknown adds none"
        );
        let mut both = slid;
        both.measure(SENDER, 1_000, 1_003, 7);
        assert_eq!(both.estimate(SENDER, 10), Some(54), "the sender's, too");
    }

    #[test]
    fn estimate_outside_range_becomes_bound() {
        for delay in [-50, 0, 1000, 5000] {
            assert_eq!(
                measured(&[delay]).estimate(SENDER, 0),
                Some(1000),
                "{delay}"
            );
        }
        let mut receiver = OneWayDelays::new(ESTIMATION);
        receiver.measure(SENDER, u64::MAX, 0, u64::MAX - 1);
        assert_eq!(receiver.estimate(SENDER, u64::MAX - 1), Some(1000));
    }

    #[test]
    fn window_agrees_with_a_sort_of_the_newest() {
        for seed in 0..50 {
            let delays: Vec<i64> = numbers(seed)
                .take(40)
                .map(|n| (n % 900) as i64 + 1)
                .collect();
            for upto in 1..=delays.len() {
                let mut newest = delays[upto.saturating_sub(5)..upto].to_vec();
                newest.sort_unstable();
                let expected = newest[(newest.len() - 1) / 2] as u64;
                let receiver = measured(&delays[..upto]);
                assert_eq!(receiver.estimate(SENDER, 0), Some(expected));
            }
        }
    }

    #[test]
    fn holds_are_told_by_median_of_newest_and_late_ones_are_none() {
        let mut holds = Holds::default();
        assert_eq!(holds.median(), None);
        for deadline in [5, 130, 120] {
            holds.add(deadline, 100);
        }
        assert_eq!(holds.median(), Some(20));
        for hold in [30, 7] {
            for _ in 0..HOLDS_MAX {
                holds.add(100 + hold, 100);
            }
        }
        assert_eq!(holds.median(), Some(7), "old ones are dropped");
    }

    fn stamp(deadline: u64, batch: u64) -> Stamp {
        let name = Name {
            frontend: SENDER,
            batch: BatchId(batch),
        };
        Stamp { deadline, name }
    }

    #[test]
    fn receivers_release_in_one_order_whatever_the_order_of_arrival() {
        for seed in 0..100 {
            let draws: Vec<u64> = numbers(seed).take(60).collect();
            let stamps: Vec<Stamp> = draws[..30]
                .iter()
                .zip(0..)
                .map(|(draw, batch)| stamp(draw % 20, batch))
                .collect();
            let released = |shuffle: &[u64]| {
                let mut arriving: Vec<(u64, Stamp)> = shuffle
                    .iter()
                    .copied()
                    .zip(stamps.iter().copied())
                    .collect();
                arriving.sort_unstable();
                let mut early = EarlyBuffer::default();
                for (_, stamp) in &arriving {
                    early.insert(*stamp, Bytes::from_static(b"four"), ());
                }
                assert_eq!(early.bytes(), 4 * early.len());
                let mut order = Vec::new();
                for clock in 0..=20 {
                    while let Some((stamp, ..)) = early.release(clock) {
                        assert_eq!(stamp.deadline, clock, "at its deadline, not before");
                        order.push(stamp);
                    }
                }
                assert_eq!(early.bytes(), 0);
                order
            };
            let order = released(&draws[30..]);
            assert_eq!(order.len(), stamps.len());
            assert!(order.is_sorted());
            let reversed: Vec<u64> = draws[30..].iter().map(|draw| u64::MAX - draw).collect();
            assert_eq!(released(&reversed), order);
        }
    }

    #[test]
    fn late_buffer_forgets_the_oldest_first() {
        let mut late = LateBuffer::default();
        let mut gone = Vec::new();
        for batch in 1..=5 {
            let request = Bytes::from(alloc::vec![0; 100]);
            late.insert(stamp(1, batch).name, request, 300, |name| {
                gone.push(name.batch.0)
            });
        }
        assert_eq!(gone, [1, 2]);
        assert_eq!(late.len(), 3);
        assert!(late.remove(stamp(1, 4).name).is_some());
        assert!(late.get(stamp(1, 1).name).is_none());
        assert!(late.get(stamp(1, 5).name).is_some());
    }
}

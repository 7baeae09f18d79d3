//! Batches in the making and in progress, and how many of them may be in progress at once.
//!
//! ```text
//!   requests ──► Pending ──window open──► InFlight ──► done
//!                   ▲                        │ how long it took at best
//!                   └──── window ◄───────────┘
//! ```
//!
//! On a fast network one batch at a time is best: what comes meanwhile becomes the next, and
//! batches grow with the load. Over a long way more must be in progress or the line stands idle.
//! The shortest recent duration of a batch counts: under load all take longer, and smaller batches
//! would only make it worse. But a batch that is full waits for no other, and what follows becomes
//! the next: a protocol that hands values on from replica to replica has only one replica at work
//! on what comes as one piece. So full batches have a limit of their own, which only keeps them
//! countable; what bounds their memory is the bytes in flight.

use super::group_queue::BatchKind;
use bytes::Bytes;
use quintet_replica::{BatchBuilder, CommandId, RequestKind, SessionId, Time};
use std::time::Duration;

/// A batch that has waited this long goes, whatever holds up those before it.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// Room made for a batch beforehand, at most: a full one, and the large request that filled it.
const RESERVE_MAX: usize = 2 << 20;
/// The shortest time is that of the last one to two such periods.
const PERIOD: Duration = Duration::from_secs(5);

/// The purpose of a request in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Opens the session of the connection whose command follows.
    Open(usize),
    /// A connection's commands, ordered.
    Command(usize),
    /// A connection's reads, or its question for versions.
    Read(usize),
    /// A connection's read of the past.
    Past(usize),
    /// The tick that closes the time of one.
    Tick(usize),
    Close(SessionId),
    Register,
    Renew,
    MemoryLimit,
}

/// A batch in progress.
#[derive(Debug)]
pub(super) struct InFlight {
    pub kind: BatchKind,
    pub batch: Bytes,
    pub entries: Vec<Entry>,
    pub submitted: Time,
    /// Its weight in the share of large requests; 0 unless it is one by itself.
    pub weight: usize,
}

/// The batch in the making of one kind.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub batch: BatchBuilder,
    pub entries: Vec<Entry>,
    /// When its first request came.
    pub since: Time,
    /// Batches of this kind in progress.
    pub in_flight: usize,
    /// Length of the batch before this one.
    pub bytes_last: usize,
    /// The shortest time that a batch took in this period and in the one before it.
    shortest: [Option<Duration>; 2],
    period: Time,
}

/// How many batches may be in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// At most this many, unless they are full.
    pub batches_max: usize,
    /// At most this many, full or not.
    pub full_batches_max: usize,
    /// One, and one more for each such interval that a batch takes; zero is "as many as may be".
    pub interval: Duration,
    /// A batch of this many bytes is full.
    pub bytes: usize,
    /// A batch of this many requests is full.
    pub requests: usize,
}

impl Pending {
    /// None yet, to be made with this builder.
    pub fn of(batch: BatchBuilder) -> Self {
        Self {
            batch,
            ..Self::default()
        }
    }

    pub fn push(
        &mut self,
        entry: Entry,
        id: CommandId,
        kind: RequestKind,
        payload: &[u8],
        now: Time,
    ) {
        if self.entries.is_empty() {
            self.since = now;
            self.batch.reserve(self.bytes_last.min(RESERVE_MAX));
        }
        self.entries.push(entry);
        self.batch.push(id, kind, 0, payload);
    }

    /// A batch has ended after this time.
    pub fn on_done(&mut self, took: Duration, now: Time) {
        self.in_flight -= 1;
        if now.since(self.period) >= PERIOD {
            self.period = now;
            self.shortest = [None, self.shortest[0]];
        }
        self.shortest[0] = Some(self.shortest[0].map_or(took, |shortest| shortest.min(took)));
    }

    /// The shortest time that a batch took lately.
    pub fn shortest(&self) -> Duration {
        let known = self.shortest.iter().flatten().min();
        known.copied().unwrap_or_default()
    }

    fn open(&self, window: Window) -> usize {
        if window.interval.is_zero() {
            return window.batches_max;
        }
        let intervals = self.shortest().as_nanos() / window.interval.as_nanos();
        window
            .batches_max
            .min(1 + usize::try_from(intervals).unwrap_or(usize::MAX - 1))
    }

    /// Whether it waits for no company any more, and need not wait for those before it.
    pub fn is_full(&self, window: Window) -> bool {
        let full = self.batch.len() >= window.bytes || self.entries.len() >= window.requests;
        full && !self.entries.is_empty() && self.in_flight < window.full_batches_max
    }

    /// Whether it is to be submitted now.
    pub fn may_go(&self, now: Time, window: Window) -> bool {
        !self.entries.is_empty()
            && (self.in_flight < self.open(window)
                || self.is_full(window)
                || now >= self.goes_at(window))
    }

    /// When it goes at the latest if nothing ends before.
    pub fn goes_at(&self, window: Window) -> Time {
        if self.entries.is_empty() || self.in_flight >= window.batches_max {
            Time::NEVER
        } else {
            self.since + WAIT_MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window {
        batches_max: 64,
        full_batches_max: 100,
        interval: Duration::from_micros(250),
        bytes: 1 << 10,
        requests: 3,
    };

    fn after(took: &[u64]) -> usize {
        let mut pending = Pending::default();
        let mut now = Time(0);
        for took in took {
            let took = Duration::from_micros(*took);
            now = now + took;
            pending.in_flight += 1;
            pending.on_done(took, now);
        }
        pending.open(WINDOW)
    }

    #[test]
    fn window_grows_with_the_way_and_not_with_the_load() {
        assert_eq!(after(&[]), 1);
        assert_eq!(after(&[100, 3000, 3000]), 1);
        assert_eq!(after(&[600, 900]), 3);
        assert_eq!(after(&[20_000; 10]), 64);
    }

    #[test]
    fn way_that_has_become_longer_is_noticed() {
        let longer = [vec![100; 10], vec![2_000_000; 2]].concat();
        assert_eq!(after(&longer), 1);
        let long = [vec![100; 10], vec![2_000_000; 8]].concat();
        assert_eq!(after(&long), 64);
    }

    #[test]
    fn full_batch_waits_for_none_before_it_while_there_is_room() {
        for (requests, payload) in [(3, 0), (1, 2 << 10)] {
            let mut pending = Pending {
                in_flight: 1,
                ..Pending::default()
            };
            for number in 1..=requests {
                assert!(!pending.may_go(Time(5), WINDOW));
                let (id, kind) = (CommandId::default(), RequestKind::Command);
                pending.push(Entry::Read(number), id, kind, &vec![0; payload], Time(5));
            }
            pending.in_flight = WINDOW.batches_max;
            assert!(pending.may_go(Time(5), WINDOW));
            pending.in_flight = WINDOW.full_batches_max;
            assert!(!pending.may_go(Time(5), WINDOW));
        }
    }

    #[test]
    fn batch_does_not_wait_forever() {
        let mut pending = Pending::default();
        assert!(!pending.may_go(Time(0), WINDOW));
        pending.push(
            Entry::Renew,
            CommandId::default(),
            RequestKind::Renew,
            &[],
            Time(5),
        );
        assert!(pending.may_go(Time(5), WINDOW));
        pending.in_flight = 1;
        assert!(!pending.may_go(Time(5), WINDOW));
        let at = pending.goes_at(WINDOW);
        assert!(pending.may_go(at, WINDOW) && at < Time(5) + Duration::from_millis(10));
        pending.in_flight = 64;
        assert!(!pending.may_go(at, WINDOW));
        assert_eq!(pending.goes_at(WINDOW), Time::NEVER);
    }
}

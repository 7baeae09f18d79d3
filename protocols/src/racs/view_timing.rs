//! How long a view may show no progress.
//!
//! ```text
//!   round trips that leaders report ──► base ──► doubled by each view without progress
//!   asynchronous modes: how long they take ─────► at least that, as long as it is known
//! ```

use super::Config;
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{ReplicaId, Time, parts::Timing};
use smallvec::SmallVec;

/// Members that timed out are missed for this many timeouts before their view is left.
const RENEWAL: u32 = 4;

/// The time between two such ends is doubled at most so often.
const RENEWALS_MAX: u32 = 6;

/// The price of the asynchronous mode counts up to this many timeouts: it may have been long for
/// want of a quorum.
const PRICE_MAX: u32 = 4;

/// The price of the asynchronous mode is dropped after this many times its length without one.
const PRICE_HOLDS: u32 = 64;

/// A view's timeout is doubled at most so often.
const FAILURES_MAX: u32 = 3;

/// The round trips that have been measured, the shortest first.
pub(super) fn known(trips: &[Duration]) -> SmallVec<[Duration; 16]> {
    let mut known: SmallVec<_> = (trips.iter().copied())
        .filter(|trip| !trip.is_zero())
        .collect();
    known.sort_unstable();
    known
}

/// See the module.
#[derive(Hash)]
pub(super) struct ViewTiming {
    round_trip: Duration,
    /// The same as each leader reported it last.
    leaders_trips: Vec<Duration>,
    /// How long asynchronous modes take, and when the last one ended; zero: long ago.
    price: Duration,
    priced_at: Time,
    /// How many views in a row have not decided a synchronous block.
    failures: u32,
    /// How often this replica has left a view that it led for those that had timed out, and when
    /// last.
    renewals: u32,
    renewed_at: Time,
    /// How many asynchronous modes there were, and how many of them elected a block here.
    fallbacks: Timing<u64>,
    elected: Timing<u64>,
}

impl ViewTiming {
    pub fn new(members: usize) -> Self {
        Self {
            round_trip: Duration::ZERO,
            leaders_trips: vec![Duration::ZERO; members],
            price: Duration::ZERO,
            priced_at: Time(0),
            failures: 0,
            renewals: 0,
            renewed_at: Time(0),
            fallbacks: Timing(0),
            elected: Timing(0),
        }
    }

    pub const fn round_trip(&self) -> Duration {
        self.round_trip
    }

    pub const fn price(&self) -> Duration {
        self.price
    }

    pub fn fallbacks(&self) -> u64 {
        *self.fallbacks
    }

    pub fn elected(&self) -> u64 {
        *self.elected
    }

    /// How long the view may show no progress.
    pub fn timeout(&self, config: &Config) -> Duration {
        if !config.view_timeout.is_zero() {
            // Progress does not need it to be right: the asynchronous mode decides, too.
            return config.view_timeout;
        }
        let base = config.view_timeout_min.max(self.usual_round_trip() * 4);
        let grown = base * (1 << self.failures.saturating_sub(1).min(FAILURES_MAX));
        grown.max(self.price.min(base * PRICE_MAX))
    }

    /// The round trip that most leaders measured: one that is late, or a minority of them, does
    /// not make the others wait for longer.
    fn usual_round_trip(&self) -> Duration {
        let trips = known(&self.leaders_trips);
        let middle = trips.len().saturating_sub(1) / 2;
        trips.get(middle).copied().unwrap_or_default()
    }

    pub fn measured(&mut self, leader: ReplicaId, round_trip: Duration) {
        self.round_trip = round_trip;
        self.leaders_trips[leader.index()] = round_trip;
    }

    /// An asynchronous mode begins.
    pub fn fell_back(&mut self) {
        *self.fallbacks += 1;
    }

    /// An asynchronous mode has elected a block.
    pub fn has_elected(&mut self) {
        *self.elected += 1;
    }

    /// An asynchronous mode is over. Its duration is the price of not waiting for a leader; to wait
    /// as long for one that may only be late costs at most twice what the best foresight would have
    /// cost.
    pub fn priced(&mut self, began_at: Time, now: Time) {
        let took = now.since(began_at);
        self.price = match self.price.is_zero() {
            true => took,
            false => (self.price + took) / 2,
        };
        self.priced_at = now;
    }

    pub const fn view_begins(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// A synchronous block of the view is decided.
    pub fn progressed(&mut self, now: Time) {
        self.failures = 0;
        // The durations of asynchronous modes long ago say nothing of now.
        if now.since(self.priced_at) > self.price * PRICE_HOLDS {
            self.price = Duration::ZERO;
        }
    }

    /// How long members must have been missed before their view is left for them.
    pub fn renewal_pause(&self, timeout: Duration, now: Time) -> Duration {
        let pause = timeout * RENEWAL * (1 << self.renewals.min(RENEWALS_MAX));
        if now.since(self.renewed_at) > pause * RENEWAL {
            return timeout * RENEWAL;
        }
        pause
    }

    pub fn renewed(&mut self, now: Time) {
        self.renewals = (self.renewals + 1).min(RENEWALS_MAX);
        self.renewed_at = now;
    }
}

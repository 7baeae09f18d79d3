//! The timer that asks for what is lacking when nothing moves.

use core::time::Duration;
use quintet_replica::{Slot, parts::Timing};

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Coordination {
    armed: bool,

    tries: u32,
    /// Where log and commit point stood when the timer was set; none when it fires in any case.
    saw: Option<(Slot, Slot)>,
    fetch_next: Timing<u64>,
}

impl Coordination {
    /// The first replica that is asked is a random one.
    pub fn start(&mut self, random: u64) {
        *self.fetch_next = random;
    }

    pub const fn is_armed(&self) -> bool {
        self.armed
    }

    /// The timer is set; gives after how much longer than usual.
    pub fn arm(&mut self, at: (Slot, Slot)) -> u32 {
        self.armed = true;
        self.saw = Some(at);
        1 << self.tries.min(4)
    }

    /// The timer is set to fire at once.
    pub const fn arm_now(&mut self) {
        self.armed = true;
        self.saw = None;
    }

    pub const fn fired(&mut self) {
        self.armed = false;
    }

    /// Whether something has moved since the timer was set.
    pub fn moved(&self, at: (Slot, Slot)) -> bool {
        self.saw.is_some_and(|saw| saw != at)
    }

    pub const fn reset(&mut self) {
        self.tries = 0;
    }

    /// Nothing has moved; gives how often in a row.
    pub const fn try_again(&mut self) -> u32 {
        self.tries += 1;
        self.tries
    }

    /// The next of `count` replicas to ask.
    pub fn next_source(&mut self, count: usize) -> usize {
        *self.fetch_next = self.fetch_next.wrapping_add(1);
        (*self.fetch_next % (count as u64).max(1)) as usize
    }

    /// The pause between two repetitions, longer than some rounds.
    pub fn pause(configured: Duration, round_length: Duration) -> Duration {
        configured.max(round_length * 4)
    }
}

//! The timer that asks for what is lacking when nothing moves.

use super::Timing;

/// See the module. `S` is where the replica stands.
#[derive(Debug, Hash)]
pub struct Coordination<S> {
    armed: bool,
    tries: u32,
    /// Where it stood when the timer was set; none when it fires in any case.
    saw: Option<S>,
    fetch_next: Timing<u64>,
}

impl<S> Default for Coordination<S> {
    fn default() -> Self {
        Self {
            armed: false,
            tries: 0,
            saw: None,
            fetch_next: Timing(0),
        }
    }
}

impl<S: Copy + PartialEq> Coordination<S> {
    /// The first replica that is asked is a random one.
    pub fn start(&mut self, random: u64) {
        *self.fetch_next = random;
    }

    /// Whether the timer is set.
    #[must_use]
    pub const fn is_armed(&self) -> bool {
        self.armed
    }

    /// The timer is set; gives after how much longer than usual.
    pub fn arm(&mut self, at: S) -> u32 {
        self.armed = true;
        self.saw = Some(at);
        1 << self.tries.min(4)
    }

    /// The timer is set to fire at once.
    pub fn arm_now(&mut self) {
        self.armed = true;
        self.saw = None;
    }

    /// The timer has fired.
    pub const fn fired(&mut self) {
        self.armed = false;
    }

    /// Whether something has moved since the timer was set.
    #[must_use]
    pub fn moved(&self, at: S) -> bool {
        self.saw.is_some_and(|saw| saw != at)
    }

    /// Something has moved.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_waits_longer_each_time_until_something_moves() {
        let mut timer = Coordination::default();
        assert_eq!(timer.arm(5), 1);
        timer.fired();
        assert!(!timer.moved(5) && !timer.is_armed());
        assert_eq!((timer.try_again(), timer.try_again()), (1, 2));
        assert_eq!(timer.arm(5), 4);
        assert!(timer.moved(6));
        timer.reset();
        timer.arm_now();
        assert!(!timer.moved(6), "it asks in any case");
        timer.start(7);
        assert_eq!((timer.next_source(3), timer.next_source(0)), (2, 0));
    }
}

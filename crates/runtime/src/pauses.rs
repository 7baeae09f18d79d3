//! Pauses between attempts, and who rests after it has failed.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Pauses between looks, each twice as long as the one before.
#[derive(Debug)]
pub struct Pauses {
    next: Duration,
    max: Duration,
}

impl Pauses {
    /// The first one, and the longest.
    #[must_use]
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { next: first, max }
    }

    /// The length of the next one.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Duration {
        let next = self.next;
        self.next = (next * 2).min(self.max);
        next
    }

    /// Makes the next one, no longer than this.
    pub fn make(&mut self, longest: Duration) {
        thread::sleep(self.next().min(longest));
    }
}

/// A server that has failed is left alone for this long at first, and at most.
const RESTS: Duration = Duration::from_millis(250);
const RESTS_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct State {
    rests_until: Option<Instant>,
    pauses: Pauses,
}

/// Whether a server has failed lately: others are asked before it, the longer the more often it has.
#[derive(Debug)]
pub struct Health(Mutex<State>);

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// One that has not failed.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(State {
            rests_until: None,
            pauses: Pauses::new(RESTS, RESTS_MAX),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It has failed: how long it rests.
    pub fn fails(&self) -> Duration {
        let mut state = self.lock();
        let pause = state.pauses.next();
        state.rests_until = Some(Instant::now() + pause);
        pause
    }

    /// Whether it has not answered since it failed.
    pub fn has_failed(&self) -> bool {
        self.lock().rests_until.is_some()
    }

    /// It can be asked, though it may fail again.
    pub fn can_be_asked(&self) {
        self.lock().rests_until = None;
    }

    /// It has answered.
    pub fn answers(&self) {
        let mut state = self.lock();
        state.rests_until = None;
        state.pauses = Pauses::new(RESTS, RESTS_MAX);
    }

    /// Whether others are asked before it.
    pub fn rests(&self) -> bool {
        let until = self.lock().rests_until;
        until.is_some_and(|until| Instant::now() < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_rests_longer_each_time_until_it_answers() {
        let health = Health::new();
        assert!(!health.rests() && !health.has_failed());
        assert_eq!(health.fails(), RESTS);
        assert!(health.rests() && health.has_failed());
        assert_eq!(health.fails(), RESTS * 2);
        health.can_be_asked();
        assert!(!health.rests() && !health.has_failed());
        assert_eq!(health.fails(), RESTS * 4);
        for _ in 0..5 {
            health.fails();
        }
        assert_eq!(health.fails(), RESTS_MAX);
        health.answers();
        assert!(!health.rests());
        assert_eq!(health.fails(), RESTS);
    }
}

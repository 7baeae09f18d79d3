//! The one source of chance in a world: seeded, forked by name, the same on every machine.
//!
//! ```text
//!   seed ──► Random::new ──► fork(NETWORK) ──► delays, resets
//!                       ├──► fork(WORKLOAD) ─► clients
//!                       └──► fork(FAULTS) ───► which faults, when
//! ```
//!
//! Separate streams keep a change in one part of a world from shifting the draws of another. Only
//! integers are drawn: floating-point functions differ between platforms.
//!
//! When a run is written down or follows a script, every draw is shown to
//! [`Decisions`](crate::decisions::Decisions) with the line of code that asked.

use crate::{
    decisions::{Ask, Decisions, Scope, Script, Turn},
    event::Event,
};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A seeded stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random {
    stream: ChaCha8Rng,
    decisions: Option<Arc<Mutex<Decisions>>>,
}

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            stream: ChaCha8Rng::seed_from_u64(seed),
            decisions: None,
        }
    }

    /// The same stream, whose decisions are noted; or made by `script`.
    pub(crate) fn noted(mut self, script: Option<Arc<Script>>) -> (Self, Arc<Mutex<Decisions>>) {
        let decisions = Arc::new(Mutex::new(Decisions::new(script)));
        self.decisions = Some(decisions.clone());
        (self, decisions)
    }

    fn decisions(&self) -> Option<MutexGuard<'_, Decisions>> {
        let decisions = self.decisions.as_ref()?;
        Some(decisions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The following decisions are made while `event` is handled.
    pub(crate) fn begin(&self, event: &Event) {
        if let Some(mut decisions) = self.decisions() {
            decisions.begin(event);
        }
    }

    /// The following decisions are made for `scope`; returns the scope before.
    pub(crate) fn enter(&self, scope: Scope) -> Scope {
        self.decisions()
            .map_or(scope, |mut decisions| decisions.enter(scope))
    }

    /// A value drawn as a whole: a script may list it under its name instead.
    pub(crate) fn profile<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        draw: impl FnOnce(&mut Self) -> T,
    ) -> T {
        if let Some(listed) = self.decisions().and_then(|mut it| it.profile(name)) {
            return listed;
        }
        if let Some(mut decisions) = self.decisions() {
            decisions.begin_profile();
        }
        let drawn = draw(self);
        if let Some(mut decisions) = self.decisions() {
            decisions.keep_profile(name, &drawn);
        }
        drawn
    }

    /// The actions of the turn in progress, for people who read the script.
    pub(crate) fn does(&self, what: impl FnOnce() -> Vec<String>) {
        if let Some(mut decisions) = self.decisions() {
            decisions.does(what());
        }
    }

    /// Whether a client may take its turn; `checked` once the faults are over.
    pub(crate) fn turn(&self, client: usize, now: u64, checked: bool) -> Turn {
        self.decisions().map_or(Turn::Now, |mut decisions| {
            decisions.turn(client as u16, now, checked)
        })
    }

    /// An independent stream; the same label gives the same stream for the same parent.
    #[must_use]
    pub fn fork(&self, label: u64) -> Self {
        let mut child = self.clone();
        child.stream.set_stream(label);
        child.stream.set_word_pos(0);
        child
    }

    /// 64 random bits.
    #[track_caller]
    pub fn draw(&mut self) -> u64 {
        let drawn = self.stream.next_u64();
        self.decided(Ask::Bits, drawn)
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is below 2⁻³² for the bounds used.
    #[track_caller]
    pub fn below(&mut self, bound: u64) -> u64 {
        let drawn = self.scaled(bound);
        self.decided(Ask::Below(bound), drawn)
    }

    /// A number from `low` to `high`, both included.
    #[track_caller]
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `per_mille` of 1,000 cases.
    #[track_caller]
    pub fn chance(&mut self, per_mille: u64) -> bool {
        let drawn = self.scaled(1000) < per_mille;
        // A certain outcome is no decision.
        if per_mille == 0 || per_mille >= 1000 {
            return drawn;
        }
        self.decided(Ask::Chance(per_mille), drawn.into()) != 0
    }

    fn scaled(&mut self, bound: u64) -> u64 {
        ((u128::from(self.stream.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    #[track_caller]
    fn decided(&self, ask: Ask, drawn: u64) -> u64 {
        match self.decisions() {
            None => drawn,
            Some(mut decisions) => decisions.decide(ask, Location::caller(), drawn),
        }
    }

    /// An index below `length`, which must not be 0.
    #[track_caller]
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Puts the items into a random order.
    #[track_caller]
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_are_reproducible_and_differ() {
        let root = Random::new(7);
        let draw = |label| {
            let mut random = root.fork(label);
            (random.draw(), random.draw())
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_ne!(draw(1), {
            let mut other = Random::new(8).fork(1);
            (other.draw(), other.draw())
        });
    }

    #[test]
    fn draws_stay_in_their_bounds() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            assert!((3..=5).contains(&random.between(3, 5)));
        }
        assert_eq!(random.below(0), 0);
    }
}

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

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// A seeded stream of random numbers.
#[derive(Clone, Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// An independent stream; the same label gives the same stream for the same parent.
    #[must_use]
    pub fn fork(&self, label: u64) -> Self {
        let mut child = self.clone();
        child.0.set_stream(label);
        child.0.set_word_pos(0);
        child
    }

    /// 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is below 2⁻³² for the bounds used.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `per_mille` of 1,000 cases.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// An index below `length`, which must not be 0.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Puts the items into a random order.
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

//! A value that only affects times.

use core::hash::{Hash, Hasher};

/// A value that decides when something happens, and never what: a measurement, or a cache of it.
/// It has no part in a state's hash, so that `#[derive(Hash)]` on a protocol tells its states
/// apart by the rest. The exhaustive search lets any timer fire at any moment, so two states that
/// differ only in such a value have the same future there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timing<T>(pub T);

/// Adds nothing, whatever the value is.
impl<T> Hash for Timing<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl<T> core::ops::Deref for Timing<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> core::ops::DerefMut for Timing<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> From<T> for Timing<T> {
    fn from(value: T) -> Self {
        Self(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Sum(u64);

    impl Hasher for Sum {
        fn write(&mut self, bytes: &[u8]) {
            self.0 += bytes.iter().map(|byte| u64::from(*byte) + 1).sum::<u64>();
        }
        fn finish(&self) -> u64 {
            self.0
        }
    }

    #[derive(Hash)]
    struct State {
        ballot: u64,
        measured: Timing<u64>,
    }

    fn hash(ballot: u64, measured: u64) -> u64 {
        let state = State {
            ballot,
            measured: Timing(measured),
        };
        assert_eq!(*state.measured, measured);
        let mut sum = Sum::default();
        state.hash(&mut sum);
        sum.finish()
    }

    #[test]
    fn timing_adds_nothing_to_hash_of_state() {
        assert_eq!(hash(3, 1), hash(3, 2));
        assert_ne!(hash(3, 1), hash(4, 1));
    }
}

//! Proposals that no majority has answered yet, and when the next may go.
//!
//! ```text
//!   sent(1) sent(2) sent(3) …   may: Now, At(newest + gap), Wait
//!      └─── answered(2) ──┘     a limited number, and limited bytes, are open
//! ```

use crate::Time;
use alloc::collections::VecDeque;
use core::time::Duration;

/// Messages of a leader that no majority has answered yet, each named by the newest thing that it
/// proposes, a slot or a round.
///
/// On a short link one at a time is best: what arrives meanwhile travels together. On a long one
/// the next may go as soon as the newest has been in progress for a while, so the number in flight
/// grows with the round trip by itself.
#[derive(Clone, Debug, Hash)]
pub struct Window<K> {
    open: VecDeque<(K, usize)>,
    bytes: usize,
    newest_at: Time,
}

/// Whether another message may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    /// At once.
    Now,
    /// At this time, if no answer comes before.
    At(Time),
    /// When an answer comes.
    Wait,
}

impl<K> Default for Window<K> {
    fn default() -> Self {
        Self {
            open: VecDeque::new(),
            bytes: 0,
            newest_at: Time(0),
        }
    }
}

impl<K: Copy + Ord> Window<K> {
    /// Whether another message may go at `now`, when it is to follow the newest by `gap`, and at
    /// most `messages_max` of `bytes_max` bytes together are to be open.
    #[must_use]
    pub fn may(&self, now: Time, gap: Duration, messages_max: usize, bytes_max: usize) -> May {
        if self.open.is_empty() {
            May::Now
        } else if self.open.len() >= messages_max || self.bytes >= bytes_max {
            May::Wait
        } else if now >= self.newest_at + gap {
            May::Now
        } else {
            May::At(self.newest_at + gap)
        }
    }

    /// A message of this length goes; `last` is beyond all before it.
    ///
    /// # Panics
    ///
    /// When it is not.
    pub fn sent(&mut self, last: K, bytes: usize, now: Time) {
        assert!(
            self.open.back().is_none_or(|(before, _)| *before < last),
            "proposals go up"
        );
        self.open.push_back((last, bytes));
        self.bytes += bytes;
        self.newest_at = now;
    }

    /// A majority has answered all up to `last`.
    pub fn answered(&mut self, last: K) {
        while let Some((open, bytes)) = self.open.front().copied() {
            if open > last {
                break;
            }
            self.open.pop_front();
            self.bytes -= bytes;
        }
    }

    /// When the newest went.
    #[must_use]
    pub const fn newest_at(&self) -> Time {
        self.newest_at
    }

    /// How many are open.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_grows_with_the_round_trip_and_is_bounded() {
        let gap = Duration::from_micros(250);
        let mut window = Window::default();
        assert_eq!(window.may(Time(0), gap, 3, 1000), May::Now);
        window.sent(1, 10, Time(0));
        assert_eq!(window.may(Time(1), gap, 3, 1000), May::At(Time(250_000)));
        assert_eq!(window.may(Time(250_000), gap, 3, 1000), May::Now);
        window.sent(2, 10, Time(250_000));
        window.sent(3, 10, Time(500_000));
        assert_eq!(window.may(Time(9_000_000), gap, 3, 1000), May::Wait);
        window.answered(3);
        assert_eq!(
            (window.len(), window.may(Time(9_000_000), gap, 3, 1000)),
            (0, May::Now)
        );
        window.sent(4, 1000, Time(9_000_000));
        assert_eq!(window.may(Time(99_000_000), gap, 3, 1000), May::Wait);
    }
}

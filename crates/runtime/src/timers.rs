//! The timers of a process's nodes, by both clocks.

use quintet_replica::{Deadline, GroupId, Time, TimerKey};
use std::collections::{BTreeMap, BTreeSet};

/// A timer of one group's node.
pub(crate) type GroupTimer = (GroupId, TimerKey);

/// Timers that are set.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    set: BTreeMap<GroupTimer, Deadline>,
    monotonic: BTreeSet<(Time, GroupTimer)>,
    clock: BTreeSet<(u64, GroupTimer)>,
}

impl Timers {
    pub fn set(&mut self, key: GroupTimer, at: Deadline) {
        self.cancel(key);
        self.set.insert(key, at);
        match at {
            Deadline::At(time) => self.monotonic.insert((time, key)),
            Deadline::Clock(time) => self.clock.insert((time, key)),
        };
    }

    pub fn cancel(&mut self, key: GroupTimer) {
        match self.set.remove(&key) {
            Some(Deadline::At(time)) => self.monotonic.remove(&(time, key)),
            Some(Deadline::Clock(time)) => self.clock.remove(&(time, key)),
            None => false,
        };
    }

    /// Takes a timer that is due.
    pub fn take_due(&mut self, now: Time, clock: impl FnOnce() -> u64) -> Option<GroupTimer> {
        let due = match self.monotonic.first() {
            Some((at, key)) if *at <= now => Some(*key),
            _ => match self.clock.first() {
                Some((at, key)) if *at <= clock() => Some(*key),
                _ => None,
            },
        };
        if let Some(key) = due {
            self.cancel(key);
        }
        due
    }

    /// When the next one is due; `clock` reads the synchronised clock, which may be stepped, so a
    /// far deadline is looked at again within a second.
    pub fn next(&self, now: Time, clock: impl FnOnce() -> u64) -> Time {
        let monotonic = self.monotonic.first().map_or(Time::NEVER, |(at, _)| *at);
        let synchronised = self.clock.first().map_or(Time::NEVER, |(at, _)| {
            let wait = at.saturating_sub(clock()).min(1_000_000_000);
            now + std::time::Duration::from_nanos(wait)
        });
        monotonic.min(synchronised)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::TimerOwner;

    #[test]
    fn timers_fire_once_in_order_and_can_be_moved() {
        let key = |timer| {
            let key = TimerKey {
                owner: TimerOwner::Replica,
                timer,
                generation: 0,
            };
            (GroupId(timer % 2), key)
        };
        let mut timers = Timers::default();
        timers.set(key(1), Deadline::At(Time(10)));
        timers.set(key(2), Deadline::At(Time(5)));
        timers.set(key(3), Deadline::Clock(1000));
        timers.set(key(1), Deadline::At(Time(7)));
        timers.set(key(4), Deadline::At(Time(6)));
        timers.cancel(key(4));
        assert_eq!(timers.next(Time(0), || 0), Time(5));
        assert_eq!(timers.take_due(Time(4), || 0), None);
        assert_eq!(timers.take_due(Time(20), || 0), Some(key(2)));
        assert_eq!(timers.take_due(Time(20), || 0), Some(key(1)));
        assert_eq!(timers.take_due(Time(20), || 999), None);
        assert_eq!(timers.next(Time(20), || 999), Time(21));
        assert_eq!(timers.take_due(Time(20), || 1000), Some(key(3)));
        assert_eq!(timers.next(Time(20), || 0), Time::NEVER);
    }
}

//! The timers of one actor. Moving a timer costs no new event while an earlier one is queued.
//!
//! ```text
//!   set(key, due) ──► an event is queued at or before due ──► nothing to do
//!                └──► none is ──► queue one at due
//!   popped ──► due is later ──► queue again at due
//!         └──► due ──► fired
//! ```

use quintet_replica::{Deadline, TimerKey};

#[derive(Debug)]
struct Timer {
    key: TimerKey,
    deadline: Deadline,
    due: Option<u64>,
    queued: Option<u64>,
    fired: bool,
}

/// The meaning of a popped timer event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Popped {
    /// The timer is due now.
    Fired,
    /// It was moved: queue the event again at this time.
    Later(u64),
    /// It was cancelled, or another event stands for it.
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Timers(Vec<Timer>);

impl Timers {
    /// Sets a timer; gives the time at which an event must be queued, if one must.
    pub fn set(&mut self, key: TimerKey, deadline: Deadline, due: u64) -> Option<u64> {
        let index = self
            .0
            .iter()
            .position(|timer| timer.key == key)
            .unwrap_or_else(|| {
                self.0.push(Timer {
                    key,
                    deadline,
                    due: None,
                    queued: None,
                    fired: false,
                });
                self.0.len() - 1
            });
        let timer = &mut self.0[index];
        (timer.deadline, timer.due, timer.fired) = (deadline, Some(due), false);
        if due == u64::MAX || timer.queued.is_some_and(|queued| queued <= due) {
            return None;
        }
        timer.queued = Some(due);
        Some(due)
    }

    fn find(&mut self, key: TimerKey) -> Option<&mut Timer> {
        self.0.iter_mut().find(|timer| timer.key == key)
    }

    pub fn cancel(&mut self, key: TimerKey) {
        if let Some(timer) = self.find(key) {
            (timer.due, timer.fired) = (None, false);
        }
    }

    /// An event queued at `now` has come.
    pub fn popped(&mut self, key: TimerKey, now: u64) -> Popped {
        let Some(timer) = self.find(key).filter(|timer| timer.queued == Some(now)) else {
            return Popped::Nothing;
        };
        timer.queued = None;
        match timer.due {
            Some(due) if due > now => {
                timer.queued = Some(due);
                Popped::Later(due)
            }
            Some(_) => {
                (timer.due, timer.fired) = (None, true);
                Popped::Fired
            }
            None => Popped::Nothing,
        }
    }

    /// Whether the timer fired and was neither moved nor cancelled since; forgets it.
    pub fn take_fired(&mut self, key: TimerKey) -> bool {
        self.find(key)
            .is_some_and(|timer| std::mem::take(&mut timer.fired))
    }

    /// Timers set in synchronised time, which a change of the clock moves.
    pub fn by_clock(&self) -> Vec<(TimerKey, u64)> {
        (self.0.iter())
            .filter(|timer| timer.due.is_some())
            .filter_map(|timer| match timer.deadline {
                Deadline::Clock(at) => Some((timer.key, at)),
                Deadline::At(_) => None,
            })
            .collect()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::{Time, TimerOwner};

    const KEY: TimerKey = TimerKey {
        owner: TimerOwner::Replica,
        timer: 1,
        generation: 0,
    };

    fn set(timers: &mut Timers, due: u64) -> Option<u64> {
        timers.set(KEY, Deadline::At(Time(due)), due)
    }

    #[test]
    fn timer_moved_later_fires_once_at_its_new_time() {
        let mut timers = Timers::default();
        assert_eq!(set(&mut timers, 10), Some(10));
        assert_eq!(set(&mut timers, 20), None);
        assert_eq!(timers.popped(KEY, 10), Popped::Later(20));
        assert_eq!(timers.popped(KEY, 20), Popped::Fired);
        assert!(timers.take_fired(KEY));
        assert!(!timers.take_fired(KEY));
    }

    #[test]
    fn timer_moved_earlier_fires_early_and_only_once() {
        let mut timers = Timers::default();
        set(&mut timers, 10);
        assert_eq!(set(&mut timers, 5), Some(5));
        assert_eq!(timers.popped(KEY, 5), Popped::Fired);
        assert_eq!(timers.popped(KEY, 10), Popped::Nothing);
    }

    #[test]
    fn cancelled_timer_does_not_fire() {
        let mut timers = Timers::default();
        set(&mut timers, 10);
        timers.cancel(KEY);
        assert_eq!(timers.popped(KEY, 10), Popped::Nothing);
        assert_eq!(set(&mut timers, 12), Some(12));
        assert_eq!(timers.popped(KEY, 12), Popped::Fired);
        timers.cancel(KEY);
        assert!(!timers.take_fired(KEY));
    }
}

//! Queries that read other shards, a few at a time: members keep few states that are lent.
//!
//! ```text
//!   query ──► 64 in progress? ── no ──► begins ──► answered: its turn ends ──► the next one begins
//!                     └── yes ──► waits
//! ```

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// No more from one process: a member keeps states for four times as many.
const IN_PROGRESS_MAX: usize = 64;
/// More do not wait.
const WAITING_MAX: usize = 1 << 14;

/// The beginning of a query; without a turn it is refused.
type Begin = Box<dyn FnOnce(Option<Turn>) + Send>;

#[derive(Default)]
struct State {
    in_progress: usize,
    waiting: VecDeque<Begin>,
    /// Some thread lets the next ones begin.
    is_beginning: bool,
}

/// See the module.
#[derive(Clone, Default)]
pub(super) struct Turns(Arc<Mutex<State>>);

/// A query in progress, until it is dropped.
pub(super) struct Turn(Turns);

impl fmt::Debug for Turns {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Turns")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.lock().in_progress -= 1;
        self.0.begin_next();
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a query when it is its turn.
    pub fn take(&self, begin: impl FnOnce(Option<Turn>) + Send + 'static) {
        let mut state = self.lock();
        if state.waiting.len() >= WAITING_MAX {
            drop(state);
            return begin(None);
        }
        state.waiting.push_back(Box::new(begin));
        drop(state);
        self.begin_next();
    }

    /// Lets those begin that may. One that ends at once does not come back here by itself: with many
    /// that do, there would be no end of calls within calls.
    fn begin_next(&self) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.is_beginning, true) {
            return;
        }
        while state.in_progress < IN_PROGRESS_MAX
            && let Some(begin) = state.waiting.pop_front()
        {
            state.in_progress += 1;
            drop(state);
            begin(Some(Turn(self.clone())));
            state = self.lock();
        }
        state.is_beginning = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn query_waits_until_one_before_it_has_ended() {
        let turns = Turns::default();
        let (told, begun) = mpsc::channel();
        for number in 0..IN_PROGRESS_MAX + 2 {
            let told = told.clone();
            turns.take(move |turn| told.send((number, turn)).expect("it listens"));
        }
        let mut first: Vec<_> = begun.try_iter().collect();
        assert_eq!(first.len(), IN_PROGRESS_MAX);
        drop(first.pop());
        let next = begun
            .try_iter()
            .map(|(number, turn)| (number, turn.is_some()));
        assert_eq!(
            next.collect::<Vec<_>>(),
            [(IN_PROGRESS_MAX, true), (IN_PROGRESS_MAX + 1, true)]
        );
    }

    #[test]
    fn queries_that_end_at_once_all_begin_and_too_many_are_refused() {
        let turns = Turns::default();
        let (told, begun) = mpsc::channel();
        let mut held = Vec::new();
        for _ in 0..IN_PROGRESS_MAX {
            let (give, turn) = mpsc::channel();
            turns.take(move |it| give.send(it).expect("it listens"));
            held.push(turn.recv().expect("its turn"));
        }
        for _ in 0..WAITING_MAX + 1 {
            let told = told.clone();
            turns.take(move |turn| told.send(turn.is_some()).expect("it listens"));
        }
        assert_eq!(begun.try_iter().collect::<Vec<_>>(), [false]);
        drop(held);
        let begun: Vec<_> = begun.try_iter().collect();
        assert_eq!(begun, vec![true; WAITING_MAX]);
    }
}

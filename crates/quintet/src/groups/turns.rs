//! Queries that read other shards, a few at a time: members keep few states that are lent.
//!
//! ```text
//!   query ──► 64 in progress? ── no ──► begins ──► answered: its turn ends ──► the next one begins
//!                     └── yes ──► waits
//! ```
//!
//! A query that is not answered soon holds no others up: it may have been sent to a process that has
//! stopped without a word, of which a connection does not tell. An alarm lets the next ones begin then.

use quintet_runtime::alarms::alarms;
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// No more from one process: a member keeps states for four times as many.
const IN_PROGRESS_MAX: usize = 64;
/// A query counts as one in progress for this long.
const COUNTS_FOR: Duration = Duration::from_secs(1);
/// More do not wait, nor with more bytes.
const WAITING_MAX: usize = 1 << 14;
const WAITING_BYTES_MAX: usize = 256 << 20;

/// The beginning of a query; without a turn it is refused.
type Begin = Box<dyn FnOnce(Option<Turn>) + Send>;

#[derive(Default)]
struct State {
    /// When those in progress began.
    in_progress: BTreeMap<u64, Instant>,
    /// The number of the last one.
    last: u64,
    waiting: VecDeque<(usize, Begin)>,
    waiting_bytes: usize,
    /// Some thread lets the next ones begin.
    is_beginning: bool,
    /// An alarm will look for queries that count no more.
    is_watched: bool,
}

/// See the module.
#[derive(Clone)]
pub(super) struct Turns {
    state: Arc<Mutex<State>>,
    counts_for: Duration,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            state: Arc::default(),
            counts_for: COUNTS_FOR,
        }
    }
}

/// A query in progress, until it is dropped.
pub(super) struct Turn(Turns, u64);

impl State {
    fn has_room(&mut self, counts_for: Duration) -> bool {
        if self.in_progress.len() >= IN_PROGRESS_MAX {
            let counts = |begun: &Instant| begun.elapsed() < counts_for;
            self.in_progress.retain(|_, begun| counts(begun));
        }
        self.in_progress.len() < IN_PROGRESS_MAX
    }

    fn next(&mut self) -> Option<(u64, Begin)> {
        let (bytes, begin) = self.waiting.pop_front()?;
        self.waiting_bytes -= bytes;
        self.last += 1;
        self.in_progress.insert(self.last, Instant::now());
        Some((self.last, begin))
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Turns")
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.lock().in_progress.remove(&self.1);
        self.0.begin_next();
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a query of this many bytes when it is its turn.
    pub fn take(&self, bytes: usize, begin: impl FnOnce(Option<Turn>) + Send + 'static) {
        let mut state = self.lock();
        let others = state.waiting_bytes;
        if state.waiting.len() >= WAITING_MAX || others > 0 && others + bytes > WAITING_BYTES_MAX {
            drop(state);
            return begin(None);
        }
        state.waiting.push_back((bytes, Box::new(begin)));
        state.waiting_bytes += bytes;
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
        while state.has_room(self.counts_for)
            && let Some((number, begin)) = state.next()
        {
            drop(state);
            begin(Some(Turn(self.clone(), number)));
            state = self.lock();
        }
        state.is_beginning = false;
        self.watch(&mut state);
    }

    /// Others wait: none of those in progress need end before they begin.
    fn watch(&self, state: &mut State) {
        let oldest = state.in_progress.values().min().copied();
        let oldest = oldest.filter(|_| !state.waiting.is_empty() && !state.is_watched);
        if let (Some(oldest), Some(alarms)) = (oldest, alarms()) {
            state.is_watched = true;
            let this = self.clone();
            let look = move || {
                this.lock().is_watched = false;
                this.begin_next();
            };
            alarms.set(oldest + self.counts_for, look).keep();
        }
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
            turns.take(1, move |turn| {
                told.send((number, turn)).expect("it listens")
            });
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
            turns.take(0, move |it| give.send(it).expect("it listens"));
            held.push(turn.recv().expect("its turn"));
        }
        for _ in 0..WAITING_MAX + 1 {
            let told = told.clone();
            turns.take(0, move |turn| {
                told.send(turn.is_some()).expect("it listens")
            });
        }
        assert_eq!(begun.try_iter().collect::<Vec<_>>(), [false]);
        drop(held);
        let begun: Vec<_> = begun.try_iter().collect();
        assert_eq!(begun, vec![true; WAITING_MAX]);
    }

    #[test]
    fn queries_without_an_answer_hold_no_others_up_for_long() {
        let turns = Turns {
            counts_for: Duration::from_millis(20),
            ..Turns::default()
        };
        let (told, begun) = mpsc::channel();
        for number in 0..3 * IN_PROGRESS_MAX {
            let told = told.clone();
            turns.take(1, move |turn| {
                told.send((number, turn)).expect("it listens")
            });
        }
        // They are held, so that none ends.
        let silent: Vec<_> = begun.iter().take(3 * IN_PROGRESS_MAX).collect();
        assert!(silent.iter().all(|(_, turn)| turn.is_some()));
        drop(silent);
        let state = turns.lock();
        assert_eq!((state.in_progress.len(), state.waiting_bytes), (0, 0));
    }

    #[test]
    fn queries_that_wait_are_bounded_by_their_bytes() {
        let turns = Turns::default();
        let (told, begun) = mpsc::channel();
        for number in 0..IN_PROGRESS_MAX + 2 {
            let told = told.clone();
            let begin = move |turn| told.send((number, turn)).expect("it listens");
            turns.take(WAITING_BYTES_MAX, begin);
        }
        let all: Vec<_> = begun.try_iter().collect();
        let refused = all.iter().filter(|(_, turn)| turn.is_none());
        assert_eq!(refused.count(), 1, "one waits, whatever its length");
    }
}

//! When which fault was in force, and what clients may therefore see.
//!
//! ```text
//!   window   kill leader   ├─ injected ────────── healed ── recovered ──┤
//!   excuse   replica 0: its connections break     ├─────────┤
//!   a client's error at replica 2 in that time ──► not excused: a violation
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// An error that a client may report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Trouble {
    /// The connection was refused, closed or reset.
    Connection,
    /// No answer, although the deadline after which the server gives up had long passed.
    Silence,
    /// `-CLUSTERDOWN`: certainly not executed.
    NoQuorum,
    /// `-UNCERTAIN`: perhaps executed.
    Uncertain,
    /// `-BUSY`: certainly not executed.
    Busy,
    /// The disk is full: certainly not executed.
    Full,
    /// Any other error.
    Other,
}

impl Trouble {
    /// The meaning of an error's text.
    #[must_use]
    pub fn of_error(text: &str) -> Self {
        match text.split(' ').next().unwrap_or_default() {
            "CLUSTERDOWN" => Self::NoQuorum,
            "UNCERTAIN" => Self::Uncertain,
            "BUSY" => Self::Busy,
            "READONLY" | "DISKFULL" | "MISCONF" => Self::Full,
            _ => Self::Other,
        }
    }

    /// Whether the command certainly was not executed.
    #[must_use]
    pub const fn is_definite(self) -> bool {
        matches!(self, Self::NoQuorum | Self::Busy | Self::Full)
    }
}

/// The errors that clients of a replica may see from one time to another, in nanoseconds of the
/// run.
#[derive(Clone, Copy, Debug)]
pub struct Excuse {
    /// Whose clients; `None`: everybody's.
    pub replica: Option<u16>,
    /// The permitted errors.
    pub troubles: &'static [Trouble],
    /// Since when.
    pub from: u64,
    /// Until when; not yet over while it is the largest number.
    pub to: u64,
}

/// One fault from its first injection until all was well again.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Window {
    /// Its kind.
    pub kind: &'static str,
    /// The exact action.
    pub what: String,
    /// Whom it hit.
    pub hit: BTreeSet<u16>,
    /// When it began, in nanoseconds of the run.
    pub from: u64,
    /// When all was well again.
    pub to: u64,
}

#[derive(Debug, Default)]
struct Inner {
    excuses: Vec<Excuse>,
    windows: Vec<Window>,
}

/// The driver of the faults writes it, the checker reads it.
#[derive(Debug)]
pub struct Timeline {
    began: Instant,
    /// The same moment by the wall clock, for comparison with logs.
    began_at: SystemTime,
    inner: Mutex<Inner>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            began_at: SystemTime::now(),
            inner: Mutex::default(),
        }
    }
}

impl Timeline {
    /// Nanoseconds since the run began.
    #[must_use]
    pub fn now(&self) -> u64 {
        // Five centuries fit.
        self.began.elapsed().as_nanos() as u64
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an excuse; its number closes it.
    pub fn excuse(&self, replica: Option<u16>, troubles: &'static [Trouble]) -> usize {
        let from = self.now();
        let mut inner = self.inner();
        inner.excuses.push(Excuse {
            replica,
            troubles,
            from,
            to: u64::MAX,
        });
        inner.excuses.len() - 1
    }

    /// The excuse holds for that many more nanoseconds.
    pub fn end_excuse(&self, number: usize, grace: u64) {
        let to = self.now() + grace;
        if let Some(excuse) = self.inner().excuses.get_mut(number) {
            excuse.to = to;
        }
    }

    /// A fault begins.
    pub fn begin(&self, kind: &'static str, what: String, hit: BTreeSet<u16>) -> usize {
        let from = self.now();
        let mut inner = self.inner();
        inner.windows.push(Window {
            kind,
            what,
            hit,
            from,
            to: u64::MAX,
        });
        inner.windows.len() - 1
    }

    /// A fault also hits this replica.
    pub fn also_hits(&self, number: usize, replica: u16) {
        if let Some(window) = self.inner().windows.get_mut(number) {
            window.hit.insert(replica);
        }
    }

    /// A fault is over and all is well again.
    pub fn end(&self, number: usize) {
        let to = self.now();
        if let Some(window) = self.inner().windows.get_mut(number) {
            window.to = to;
        }
    }

    /// Whether a client of `replica` may have had this trouble with something that it asked at
    /// `from` and that ended at `to`.
    #[must_use]
    pub fn excuses(&self, replica: u16, trouble: Trouble, from: u64, to: u64) -> bool {
        self.inner().excuses.iter().any(|excuse| {
            excuse.replica.is_none_or(|at| at == replica)
                && excuse.troubles.contains(&trouble)
                && excuse.from <= to
                && from <= excuse.to
        })
    }

    /// A moment of the run as the replicas' logs write it: the time of day, UTC.
    #[must_use]
    pub fn time_of_day(&self, at: u64) -> String {
        let began = self.began_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let milliseconds = began.as_millis() as u64 + at / 1_000_000;
        let (seconds, milliseconds) = (milliseconds / 1000 % 86_400, milliseconds % 1000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        format!("{hours:02}:{minutes:02}:{seconds:02}.{milliseconds:03}")
    }

    /// All faults, in order.
    #[must_use]
    pub fn windows(&self) -> Vec<Window> {
        self.inner().windows.clone()
    }
}

/// How long no request was answered in the windows of one kind of fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Pause {
    /// How many windows there were.
    pub faults: u64,
    /// The longest pause, in milliseconds.
    pub longest_ms: f64,
    /// The median of the windows' longest pauses, in milliseconds.
    pub median_ms: f64,
}

/// The longest pause within a window, and when it began; see [`pauses`].
#[must_use]
pub fn pause(window: &Window, answers: &[(u64, u16)], members: u16) -> (u64, u64) {
    let all_hit = window.hit.len() >= usize::from(members);
    let first = answers.partition_point(|(at, _)| *at < window.from);
    let mut last = window.from;
    let mut longest = (0, window.from);
    let inside = answers[first..]
        .iter()
        .take_while(|(at, _)| *at <= window.to)
        .filter(|(_, replica)| all_hit || !window.hit.contains(replica))
        .map(|(at, _)| *at);
    for at in inside.chain([window.to]) {
        if at - last > longest.0 {
            longest = (at - last, last);
        }
        last = at;
    }
    longest
}

/// The longest pause per kind and per exact fault: how long clients of replicas that were not hit
/// (of all, when all were) went without any acknowledgement. `answers` are (when, at which
/// replica), in order of time.
#[must_use]
pub fn pauses(windows: &[Window], answers: &[(u64, u16)], members: u16) -> BTreeMap<String, Pause> {
    let mut by_name: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for window in windows.iter().filter(|window| window.to != u64::MAX) {
        let (longest, _) = pause(window, answers, members);
        let exact = format!("{} {}", window.kind, window.what);
        for name in [window.kind.to_owned(), exact] {
            by_name.entry(name).or_default().push(longest);
        }
    }
    let shown = |nanoseconds: u64| (nanoseconds as f64 / 1e5).round() / 10.0;
    let summary = by_name.into_iter().map(|(name, mut pauses)| {
        pauses.sort_unstable();
        let pause = Pause {
            faults: pauses.len() as u64,
            longest_ms: pauses.last().map_or(0.0, |longest| shown(*longest)),
            median_ms: shown(pauses[pauses.len() / 2]),
        };
        (name, pause)
    });
    summary.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excuse_covers_its_replica_its_trouble_and_its_time_only() {
        let timeline = Timeline::default();
        let number = timeline.excuse(Some(1), &[Trouble::Connection]);
        let from = timeline.now();
        assert!(timeline.excuses(1, Trouble::Connection, from, from + 1));
        assert!(!timeline.excuses(0, Trouble::Connection, from, from + 1));
        assert!(!timeline.excuses(1, Trouble::Uncertain, from, from + 1));
        timeline.end_excuse(number, 10);
        let over = timeline.now() + 11;
        assert!(!timeline.excuses(1, Trouble::Connection, over, over + 1));
        assert!(timeline.excuses(1, Trouble::Connection, from, over));
    }

    #[test]
    fn pauses_are_those_of_replicas_that_were_not_hit() {
        let window = Window {
            kind: "kill",
            what: "leader".to_owned(),
            hit: [0].into(),
            from: 1_000_000,
            to: 9_000_000,
        };
        let answers = [
            (500_000, 1),
            (2_000_000, 1),
            (4_000_000, 0),
            (7_000_000, 2),
            (8_000_000, 1),
        ];
        let found = pauses(&[window], &answers, 3);
        assert_eq!(found["kill"].longest_ms, 5.0);
        assert_eq!(found["kill leader"].faults, 1);
    }
}

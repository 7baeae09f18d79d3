//! The effects of failures short of a crash: each failure at each replica of each protocol.
//!
//! ```text
//!   protocol x failure x replica ──► performance::run, in virtual time ──► answers per second
//!        before ──│── failing: the first seconds, then those that count ──│── after
//! ```
//!
//! Clients in a closed loop are at all replicas but the failing one. That a protocol survives shows
//! in how much of the throughput before is kept once it has had [`Times::grace`] to react.

use quintet_replica::{
    Durability, Entry,
    links::{Change, Jitter, Links, Model},
};
use quintet_simulator::performance::{self, Fault, FaultKind, Load, Placement, Profile, Setup};
use serde::Serialize;
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// A failure short of a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// Each synchronisation of the disk takes 50 ms longer.
    SlowDisk,
    /// No synchronisation of the disk ends.
    HungDisk,
    /// All that it sends and is sent comes 20 ms late.
    SlowLink,
    /// Messages to the next replica, and no others, come 20 ms late.
    OneLink,
    /// Nothing of what it sends arrives; it hears all others.
    OneWay,
    /// The process stands still.
    Pause,
    /// 5 Mbit/s for all that it sends to each member, and the same for what it is sent.
    FullLink,
}

impl Failure {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::SlowDisk,
        Self::HungDisk,
        Self::SlowLink,
        Self::OneLink,
        Self::OneWay,
        Self::Pause,
        Self::FullLink,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlowDisk => "slow-disk",
            Self::HungDisk => "hung-disk",
            Self::SlowLink => "slow-link",
            Self::OneLink => "one-link",
            Self::OneWay => "one-way",
            Self::Pause => "pause",
            Self::FullLink => "full-link",
        }
    }

    /// The failure as faults of one of `replicas` and changes of links.
    fn at(
        self,
        (replica, replicas): (u16, u16),
        from: Duration,
        until: Duration,
    ) -> (Option<Fault>, Vec<Change>) {
        let fault = |kind| Fault {
            at: from,
            until: Some(until),
            replica,
            kind,
        };
        let change = Change {
            at: from,
            until: Some(until),
            ..Change::default()
        };
        let both = |change: Change| {
            let sends = Change {
                from: vec![replica],
                ..change.clone()
            };
            let is_sent = Change {
                to: vec![replica],
                ..change
            };
            vec![sends, is_sent]
        };
        match self {
            Self::SlowDisk => (Some(fault(FaultKind::SlowDisk(SYNC_MORE))), Vec::new()),
            Self::HungDisk => (Some(fault(FaultKind::HungDisk)), Vec::new()),
            Self::Pause => (Some(fault(FaultKind::Pause)), Vec::new()),
            Self::SlowLink => {
                let late = Change {
                    delay_more: DELAY_MORE,
                    ..change
                };
                (None, both(late))
            }
            Self::OneLink => {
                let late = Change {
                    from: vec![replica],
                    to: vec![next_to((replica, replicas))],
                    delay_more: DELAY_MORE,
                    ..change
                };
                (None, vec![late])
            }
            Self::FullLink => {
                let narrow = Change {
                    bandwidth: Some(BANDWIDTH),
                    ..change
                };
                (None, both(narrow))
            }
            Self::OneWay => {
                let cut = Change {
                    from: vec![replica],
                    cut: true,
                    ..change
                };
                (None, vec![cut])
            }
        }
    }
}

const fn next_to((replica, replicas): (u16, u16)) -> u16 {
    (replica + 1) % replicas
}

const SYNC_MORE: Duration = Duration::from_millis(50);
const DELAY_MORE: Duration = Duration::from_millis(20);
const BANDWIDTH: u64 = 5_000_000;

/// When what happens, each part behind the one before.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Nothing fails.
    pub before: Duration,
    /// The failure lasts, and does not count yet.
    pub grace: Duration,
    /// It lasts and counts.
    pub failing: Duration,
    /// It is over.
    pub after: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            before: Duration::from_secs(2),
            grace: Duration::from_secs(5),
            failing: Duration::from_secs(3),
            after: Duration::from_secs(5),
        }
    }
}

/// The measurement to make.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The protocols, with the options of each.
    pub protocols: Vec<(&'static Entry, Vec<(String, String)>)>,
    /// The failures.
    pub failures: Vec<Failure>,
    /// How many replicas.
    pub replicas: u16,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// Clients in a closed loop, at all replicas but the failing one.
    pub clients: usize,
    /// Bytes per value.
    pub value_size: usize,
    /// When what happens.
    pub times: Times,
    /// Draws everything.
    pub seed: u64,
}

/// One protocol with one failure at one replica.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The protocol's name.
    pub protocol: &'static str,
    /// The failure.
    pub failure: Failure,
    /// Where.
    pub replica: u16,
    /// Answers per second before it.
    pub before: f64,
    /// While it lasts, once the time to react is over.
    pub failing: f64,
    /// In the last half of the time after it.
    pub after: f64,
    /// `failing` as a part of `before`.
    pub kept: f64,
    /// The same for clients at replicas that are no end of the slow link, with [`Failure::OneLink`].
    pub kept_elsewhere: f64,
    /// The longest time without an answer from its beginning on, in seconds.
    pub silent_s: f64,
    /// Why the run means nothing, if it does not.
    pub broken: Option<String>,
}

/// Runs all of it, as many runs at a time as there are cores; `done` is called after each. Rows
/// come in the order of the questions.
pub fn table(asked: &Asked, done: impl Fn() + Sync) -> Vec<Row> {
    let mut jobs = Vec::new();
    for (entry, options) in &asked.protocols {
        for failure in &asked.failures {
            // In memory the disk has no effect.
            let of_disk = matches!(failure, Failure::SlowDisk | Failure::HungDisk);
            if of_disk && asked.durability == Durability::Memory {
                continue;
            }
            jobs.extend((0..asked.replicas).map(|replica| (*entry, options, *failure, replica)));
        }
    }
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((entry, options, failure, replica)) = jobs.get(at) else {
                return;
            };
            let row = row(asked, entry, options, *failure, *replica);
            let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
            rows.push((at, row));
            done();
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_unstable_by_key(|(at, _)| *at);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn row(
    asked: &Asked,
    entry: &'static Entry,
    options: &[(String, String)],
    failure: Failure,
    replica: u16,
) -> Row {
    let times = &asked.times;
    let from = WARMUP + times.before;
    let until = from + times.grace + times.failing;
    let (fault, changes) = failure.at((replica, asked.replicas), from, until);
    let profile = Profile {
        placement: Placement::Own,
        ..Profile::default()
    };
    let load = Load {
        at: (0..asked.replicas).filter(|id| *id != replica).collect(),
        ..Load::closed(asked.clients, asked.value_size)
    };
    let setup = Setup {
        options: options.to_vec(),
        durability: asked.durability,
        links: Links {
            other: Model {
                delay: Duration::from_micros(50),
                jitter: Jitter::Exponential(Duration::from_micros(10)),
                ..Model::default()
            },
            changes,
            seed: asked.seed,
            ..Links::default()
        },
        faults: fault.into_iter().collect(),
        warmup: WARMUP,
        measured: times.before + times.grace + times.failing + times.after,
        seed: asked.seed,
        ..Setup::calm(entry, usize::from(asked.replicas), profile, load)
    };
    let mut found = performance::run(setup);
    let is_end = |at: u16| failure == Failure::OneLink && at == next_to((replica, asked.replicas));
    let places = found.answered.iter().zip(&found.answered_at);
    let elsewhere = places.filter(|(_, at)| !is_end(**at));
    let mut elsewhere: Vec<u64> = elsewhere.map(|(when, _)| *when).collect();
    elsewhere.sort_unstable();
    found.answered.sort_unstable();
    let rate_of = |answered: &[u64], from: Duration, until: Duration| {
        let place = |at: Duration| {
            let at = at.as_nanos() as u64;
            answered.partition_point(|when| *when < at)
        };
        (place(until) - place(from)) as f64 / (until - from).as_secs_f64()
    };
    let rate = |from, until| rate_of(&found.answered, from, until);
    let begins = times.before;
    let ends = begins + times.grace + times.failing;
    let whole = ends + times.after;
    let (before, failing) = (
        rate(Duration::ZERO, begins),
        rate(begins + times.grace, ends),
    );
    let kept = |before: f64, failing: f64| if before > 0.0 { failing / before } else { 0.0 };
    let kept_elsewhere = kept(
        rate_of(&elsewhere, Duration::ZERO, begins),
        rate_of(&elsewhere, begins + times.grace, ends),
    );
    let begins = begins.as_nanos() as u64;
    let answers = found.answered.iter().copied().filter(|at| *at > begins);
    let mut at = begins;
    let mut silent = 0;
    for answer in answers.chain([whole.as_nanos() as u64]) {
        silent = silent.max(answer - at);
        at = answer;
    }
    Row {
        protocol: entry.info.name,
        failure,
        replica,
        before,
        failing,
        after: rate(ends + times.after / 2, whole),
        kept: kept(before, failing),
        kept_elsewhere,
        silent_s: silent as f64 / 1e9,
        broken: found.broken,
    }
}

const WARMUP: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(protocol: &str, failure: Failure) -> Asked {
        Asked {
            protocols: vec![(quintet_protocols::find(protocol).unwrap(), Vec::new())],
            failures: vec![failure],
            replicas: 3,
            durability: Durability::Disk,
            clients: 4,
            value_size: 64,
            times: Times {
                before: Duration::from_millis(500),
                grace: Duration::from_secs(3),
                failing: Duration::from_millis(500),
                after: Duration::from_secs(1),
            },
            seed: 1,
        }
    }

    #[test]
    fn paused_follower_costs_little_and_row_names_it() {
        let found = table(&asked("multipaxos", Failure::Pause), || ());
        assert_eq!(found.len(), 3);
        let followers = found.iter().skip(1);
        for (row, replica) in followers.zip(1..) {
            assert_eq!((row.broken.as_ref(), row.replica), (None, replica));
            assert!(row.before > 0.0 && row.kept > 0.7, "{row:?}");
        }
    }

    #[test]
    fn hung_disk_costs_no_protocol_its_throughput() {
        for entry in quintet_protocols::PROTOCOLS {
            let mut asked = asked(entry.info.name, Failure::HungDisk);
            asked.times.grace = quintet_replica::DISK_HUNG_AFTER + Duration::from_secs(3);
            // Without one member of three a chain's way for some clients is longer.
            for row in table(&asked, || ()) {
                assert_eq!(row.broken, None, "{row:?}");
                assert!(
                    row.kept > 0.5 && row.after > 0.5 * row.before && row.silent_s < 5.0,
                    "{row:?}"
                );
            }
        }
    }

    #[test]
    fn slow_link_costs_no_protocol_its_throughput() {
        for protocol in ["multipaxos", "chain_paxos", "racs", "nezha", "mencius"] {
            for row in table(&asked(protocol, Failure::SlowLink), || ()) {
                assert_eq!(row.broken, None, "{row:?}");
                assert!(row.kept > 0.6 && row.silent_s < 1.0, "{row:?}");
            }
        }
    }

    #[test]
    fn throughput_is_kept_when_the_leader_has_one_slow_link() {
        for protocol in ["multipaxos", "nezha"] {
            for row in table(&asked(protocol, Failure::OneLink), || ()) {
                assert_eq!(row.broken, None, "{row:?}");
                let kept = row.kept.min(row.kept_elsewhere);
                assert!(kept > 0.7 && row.silent_s < 1.0, "{row:?}");
            }
        }
    }

    #[test]
    fn one_slow_link_costs_those_alone_whose_way_it_is() {
        // Each owner's word is needed by all, so that its clients wait who hears one late.
        for row in table(&asked("mencius", Failure::OneLink), || ()) {
            assert_eq!(row.broken, None, "{row:?}");
            assert!(row.kept < 0.8 && row.kept_elsewhere > 0.9, "{row:?}");
        }
    }

    #[test]
    fn slow_disk_costs_those_that_wait_for_all_owners_nothing() {
        for row in table(&asked("mencius", Failure::SlowDisk), || ()) {
            assert_eq!(row.broken, None, "{row:?}");
            assert!(row.kept > 0.7 && row.silent_s < 1.0, "{row:?}");
        }
    }

    #[test]
    fn disks_do_not_fail_in_memory_durability() {
        let memory = Asked {
            durability: Durability::Memory,
            ..asked("multipaxos", Failure::HungDisk)
        };
        assert!(table(&memory, || ()).is_empty());
    }
}

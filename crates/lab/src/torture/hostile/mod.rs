//! Hostile clients and strangers: what they do to a cluster while honest clients are served.
//!
//! ```text
//!   calm ──► p99 of the honest clients, the measure
//!   attack ──► a thread per target: giants │ pipelines │ idle │ slow │ garbage │ colliding │ long
//!              │                    transactions │ restore │ strangers │ passwords │ admin
//!              ├─ memory of every replica, sampled
//!              └─ honest answers, recorded and checked as always
//!   report ──► a row per attack; what went over a bound
//! ```
//!
//! Nothing that a client sends may stop a replica, grow it without bound, change an honest answer
//! or delay honest ones for long. Attacks have no faults beside them to excuse anything.

mod attacks;
mod raw;

use super::{
    Plan, Report,
    network::Addresses,
    record::{Fate, Operation},
    timeline::{Timeline, Window},
};
use hdrhistogram::Histogram;
use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// The kind under which attacks stand in the timeline.
pub const KIND: &str = "clients";
/// The time before the first attack.
pub const CALM: &str = "calm";
/// A calm 99th percentile below this counts as this: attackers and replicas share a machine.
const P99_MIN: Duration = Duration::from_millis(20);
const COMPLAINTS_MAX: usize = 10;

/// The bounds that the cluster must keep under attack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The most resident memory of a replica, in bytes.
    pub memory_max: u64,
    /// How many times as long as in the calm the 99th percentile of honest answers may be.
    pub slower_max: f64,
    /// The longest that an honest answer may take.
    pub pause_max: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            memory_max: 2 << 30,
            slower_max: 5.0,
            pause_max: Duration::from_secs(4),
        }
    }
}

/// The state's memory limit while clients are hostile.
pub const STATE_MAX: &str = "512MiB";
/// The soft limit of descriptors that replicas begin with, as shells give it.
pub const DESCRIPTORS: u32 = 1024;

/// The attacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attack {
    /// Values, keys and commands one byte below, at and above every limit.
    Giants,
    /// Many large replies asked for in one write.
    Pipelines,
    /// Thousands of connections that say nothing, or half a command.
    Idle,
    /// Large replies that the client does not read.
    Slow,
    /// Bytes that are not RESP.
    Garbage,
    /// Keys and fields that one seed of the hash puts into one place.
    Colliding,
    /// Commands that take long.
    Long,
    /// Transactions that grow and are never executed.
    Transactions,
    /// Payloads of RESTORE that were changed and have the right checksum.
    Restore,
    /// Strangers on the ports of peers, while links between replicas break.
    Strangers,
    /// Wrong passwords.
    Passwords,
    /// Strangers on the admin ports.
    Admin,
}

impl Attack {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Giants,
        Self::Pipelines,
        Self::Idle,
        Self::Slow,
        Self::Garbage,
        Self::Colliding,
        Self::Long,
        Self::Transactions,
        Self::Restore,
        Self::Strangers,
        Self::Passwords,
        Self::Admin,
    ];

    /// As in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Giants => "giants",
            Self::Pipelines => "pipelines",
            Self::Idle => "idle",
            Self::Slow => "slow",
            Self::Garbage => "garbage",
            Self::Colliding => "colliding",
            Self::Long => "long",
            Self::Transactions => "transactions",
            Self::Restore => "restore",
            Self::Strangers => "strangers",
            Self::Passwords => "passwords",
            Self::Admin => "admin",
        }
    }

    /// The attack of that name.
    ///
    /// # Errors
    /// With all names when there is none.
    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|attack| attack.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("'{name}' is no attack: {names}")
        })
    }

    /// How many attackers there are of it; each begins at a replica of its own.
    const fn attackers(self) -> u16 {
        match self {
            // One command of 64 MiB at a time is what one client can do.
            Self::Giants | Self::Pipelines => 1,
            _ => 3,
        }
    }
}

/// The result of one kind of attack.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Row {
    /// How often it was done.
    pub times: u64,
    /// For how long, in seconds.
    pub seconds: f64,
    /// Connections that attackers opened.
    pub connections: u64,
    /// Commands, greetings and requests that they sent.
    pub sent: u64,
    /// Answers without an error.
    pub answered: u64,
    /// Errors.
    pub refused: u64,
    /// Connections that the other side closed, or where nothing came.
    pub dropped: u64,
    /// Honest operations meanwhile.
    pub honest: u64,
    /// Their 99th percentile, in milliseconds.
    pub p99_ms: f64,
    /// The same, if clients had not waited for late answers before they asked again.
    pub p99_by_time_ms: f64,
    /// Their longest, in milliseconds.
    pub longest_ms: f64,
    /// The most resident memory of a replica, in MiB.
    pub memory_mib: u64,
}

/// The result of all attacks.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Outcome {
    /// Before the first of them.
    pub calm: Row,
    /// By name.
    pub attacks: BTreeMap<String, Row>,
    /// The 99th percentile of honest operations during all attacks, in milliseconds.
    pub p99_ms: f64,
    /// Its limit.
    pub p99_max_ms: f64,
    /// Memory limit of a replica, in MiB.
    pub memory_max_mib: u64,
    /// Remarks on attacks that were not carried out in full.
    pub notes: Vec<String>,
    /// Bounds that did not hold.
    pub exceeded: Vec<String>,
}

/// The attackers' counters.
#[derive(Debug, Default)]
pub struct Tally {
    connections: AtomicU64,
    sent: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
    rounds: AtomicU64,
    complaints: Mutex<Vec<String>>,
    notes: Mutex<Vec<String>>,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn push(list: &Mutex<Vec<String>>, what: String) {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    if list.len() < COMPLAINTS_MAX && !list.contains(&what) {
        list.push(what);
    }
}

fn drain(list: &Mutex<Vec<String>>) -> Vec<String> {
    std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Attackers at work.
#[derive(Debug)]
pub struct Attackers {
    attack: Attack,
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
    threads: Vec<thread::JoinHandle<()>>,
    began: Instant,
}

impl Attackers {
    /// Starts them against these processes.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(attack: Attack, targets: &[Addresses], seed: u64) -> std::io::Result<Self> {
        let mut attackers = Self {
            attack,
            stop: Arc::default(),
            tally: Arc::default(),
            threads: Vec::new(),
            began: Instant::now(),
        };
        for number in 0..attack.attackers() {
            let attacker = attacks::Attacker::new(
                number,
                targets.to_vec(),
                seed,
                Arc::clone(&attackers.stop),
                Arc::clone(&attackers.tally),
            );
            let builder = thread::Builder::new().name(format!("{} {number}", attack.name()));
            let thread = builder.spawn(move || attacker.run(attack))?;
            attackers.threads.push(thread);
        }
        Ok(attackers)
    }

    /// Ends them and adds up what they saw; what must not have been seen is given back.
    pub fn end(self, outcome: &mut Outcome) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut complaints = Vec::new();
        for thread in self.threads {
            if thread.join().is_err() {
                complaints.push(format!("the attacker '{}' panicked", self.attack.name()));
            }
        }
        let name = self.attack.name();
        let rounds = self.tally.rounds.load(Ordering::Relaxed);
        if rounds < u64::from(self.attack.attackers()) {
            let note = format!("{name}: not every attacker came to the end of its first round");
            push(&self.tally.notes, note);
        }
        let row = outcome.attacks.entry(name.to_owned()).or_default();
        row.times += 1;
        row.seconds += self.began.elapsed().as_secs_f64();
        let counters = [
            (&mut row.connections, &self.tally.connections),
            (&mut row.sent, &self.tally.sent),
            (&mut row.answered, &self.tally.answered),
            (&mut row.refused, &self.tally.refused),
            (&mut row.dropped, &self.tally.dropped),
        ];
        for (sum, counter) in counters {
            *sum += counter.load(Ordering::Relaxed);
        }
        for note in drain(&self.tally.notes) {
            if !outcome.notes.contains(&note) {
                outcome.notes.push(note);
            }
        }
        let seen = drain(&self.tally.complaints).into_iter();
        complaints.extend(seen.map(|complaint| format!("attack '{name}': {complaint}")));
        complaints
    }
}

/// The resident memory of a process, in bytes.
#[must_use]
pub fn memory_of(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

impl Outcome {
    /// A replica was seen to take so much memory.
    pub fn note_memory(&mut self, attack: Option<Attack>, bytes: u64) {
        let row = match attack {
            Some(attack) => self.attacks.entry(attack.name().to_owned()).or_default(),
            None => &mut self.calm,
        };
        row.memory_mib = row.memory_mib.max(bytes >> 20);
    }
}

struct Times {
    plain: Histogram<u64>,
    by_time: Histogram<u64>,
}

const MICROS_MAX: u64 = 600_000_000;

impl Times {
    fn of(operations: &[Operation], windows: &[&Window], interval: Duration) -> Option<Self> {
        let histogram = || Histogram::new_with_bounds(1, MICROS_MAX, 3).ok();
        let mut times = Self {
            plain: histogram()?,
            by_time: histogram()?,
        };
        let within = |at: u64| {
            let mut windows = windows.iter();
            windows.any(|window| (window.from..window.to).contains(&at))
        };
        let interval = interval.as_micros() as u64;
        for operation in operations.iter().filter(|it| within(it.began_at)) {
            if matches!(operation.fate, Fate::Failed) {
                continue;
            }
            let nanos = operation.ended_at.saturating_sub(operation.began_at);
            let micros = (nanos / 1000).clamp(1, MICROS_MAX);
            times.plain.saturating_record(micros);
            // Cannot fail: it is within the bounds.
            let _ = times.by_time.record_correct(micros, interval.max(1));
        }
        Some(times)
    }

    fn p99(&self) -> Duration {
        Duration::from_micros(self.plain.value_at_quantile(0.99))
    }

    fn into_row(self, row: &mut Row) {
        let ms = |micros: u64| micros as f64 / 1000.0;
        row.honest = self.plain.len();
        row.p99_ms = ms(self.plain.value_at_quantile(0.99));
        row.p99_by_time_ms = ms(self.by_time.value_at_quantile(0.99));
        row.longest_ms = ms(self.plain.max());
    }
}

/// Compares what was seen with the bounds. `operations` are those of the honest clients.
pub fn check(plan: &Plan, timeline: &Timeline, operations: &[Operation], report: &mut Report) {
    let Some(outcome) = &mut report.hostile else {
        return;
    };
    let windows: Vec<Window> = timeline.windows();
    let of = |what: Option<&str>| -> Vec<&Window> {
        let attacks = windows.iter().filter(|window| window.kind == KIND);
        let wanted = attacks.filter(|window| match what {
            Some(what) => window.what == what,
            None => window.what != CALM,
        });
        wanted.collect()
    };
    let interval = Duration::from_secs(1) * plan.clients / plan.rate;
    let times = |what| Times::of(operations, &of(what), interval);
    let (Some(calm), Some(all)) = (times(Some(CALM)), times(None)) else {
        return;
    };
    let max = calm.p99().max(P99_MIN).mul_f64(plan.bounds.slower_max);
    let p99 = all.p99();
    outcome.p99_ms = p99.as_secs_f64() * 1000.0;
    outcome.p99_max_ms = max.as_secs_f64() * 1000.0;
    outcome.memory_max_mib = plan.bounds.memory_max >> 20;
    if p99 > max {
        outcome.exceeded.push(format!(
            "the 99th percentile of honest answers was {:.1} ms during the attacks, {:.1} ms in \
             the calm before; accepted are {:.1} ms",
            outcome.p99_ms,
            calm.p99().as_secs_f64() * 1000.0,
            outcome.p99_max_ms
        ));
    }
    calm.into_row(&mut outcome.calm);
    for (name, row) in &mut outcome.attacks {
        if let Some(times) = times(Some(name)) {
            times.into_row(row);
        }
        let pause = plan.bounds.pause_max.as_secs_f64() * 1000.0;
        if row.longest_ms > pause {
            outcome.exceeded.push(format!(
                "attack '{name}': an honest answer took {:.0} ms; accepted are {pause:.0} ms",
                row.longest_ms
            ));
        }
        if row.memory_mib > outcome.memory_max_mib {
            outcome.exceeded.push(format!(
                "attack '{name}': a replica took {} MiB; accepted are {} MiB",
                row.memory_mib, outcome.memory_max_mib
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_process_is_read() {
        assert!(memory_of(std::process::id()).unwrap() > 1 << 20);
        assert_eq!(memory_of(u32::MAX), None);
    }

    #[test]
    fn late_answer_counts_for_the_time_that_it_took() {
        let operation = |began_at, ended_at| Operation {
            client: 0,
            replica: 0,
            commands: Vec::new(),
            transaction: false,
            invoked: 0,
            ended: 0,
            began_at,
            ended_at,
            fate: Fate::Uncertain,
        };
        let mut operations: Vec<_> = (0..999).map(|at| operation(at, at + 1_000_000)).collect();
        operations.push(operation(999, 1_000_000_999));
        let window = Window {
            kind: KIND,
            what: "idle".to_owned(),
            hit: std::collections::BTreeSet::new(),
            from: 0,
            to: u64::MAX,
        };
        let times = Times::of(&operations, &[&window], Duration::from_millis(10)).unwrap();
        let mut row = Row::default();
        times.into_row(&mut row);
        assert_eq!(row.honest, 1000);
        assert!(row.p99_ms < 2.0 && row.p99_by_time_ms > 800.0, "{row:?}");
        assert!(row.longest_ms > 999.0, "{row:?}");
    }
}

//! One measurement: workers started, their own CPU watched, their histograms added up.
//!
//! ```text
//!   Load ──► a worker per thread ──► warm-up │ measured │ stragglers ──► Summary
//!                                            └ own CPU ┘
//! ```

use super::{
    worker::{Measured, Orders, Target, Worker},
    workload::{Distribution, Keys, Mix, Workload},
};
use crate::figures::{MachineTime, cpu_of_this_process};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, atomic::AtomicU64},
    thread,
    time::{Duration, Instant},
};

/// The part of its threads' time from which on the generator counts as the bottleneck.
const BUSY: f64 = 0.9;
/// Time that each connection may need for its handshake; no request is sent before all are done.
const GREETING: Duration = Duration::from_millis(1);

/// The load for a system.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where to connect, connections taking turns.
    pub targets: Vec<Target>,
    /// Clients; each has one request in progress.
    pub clients: usize,
    /// How many clients share a connection.
    pub sharing: usize,
    /// Requests per second of all clients, due at random moments (Poisson); `None` for a closed
    /// loop.
    pub rate: Option<f64>,
    /// Which requests.
    pub mix: Mix,
    /// How many keys.
    pub keys: u64,
    /// How they are drawn.
    pub distribution: Distribution,
    /// Bytes per value.
    pub value_size: usize,
    /// Threads of the generator.
    pub threads: usize,
    /// Duration that is not counted.
    pub warmup: Duration,
    /// Duration that is counted.
    pub measured: Duration,
    /// Draws the keys.
    pub seed: u64,
}

/// Latency in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// 90% are below it.
    pub p90: f64,
    /// 99% are below it.
    pub p99: f64,
    /// 99.9% are below it.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

impl Latency {
    /// Of a histogram of nanoseconds.
    pub fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / 1e3,
        }
    }
}

/// The result of a measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Summary {
    /// Good answers in the measured time.
    pub answered: u64,
    /// The same per second.
    pub throughput: f64,
    /// From due (open loop) or sent (closed loop) to answered.
    pub latency: Latency,
    /// The longest time without any good answer, in milliseconds.
    pub pause_max_milliseconds: f64,
    /// Error answers and lost connections by their first word.
    pub errors: BTreeMap<String, u64>,
    /// Requests without an answer.
    pub unanswered: u64,
    /// Requests that were due but never sent.
    pub unsent: u64,
    /// Good answers in each tenth of a second of the measured time.
    pub timeline: Vec<u64>,
    /// Median and 99th percentile of latency of those, in microseconds; 0 where there were none.
    #[serde(default)]
    pub delays: Vec<[f64; 2]>,
    /// Cores that the generator used, where the system tells it.
    pub generator_cores: Option<f64>,
    /// Whether the generator and not the system was what limited the throughput.
    pub generator_bound: bool,
    /// Which part of the machine's CPU time its host took for others, where the system tells it.
    #[serde(default)]
    pub stolen: Option<f64>,
}

/// How long a load takes to connect that many clients, that many of which share a connection: its
/// first requests leave after that.
#[must_use]
pub fn greeting(clients: usize, sharing: usize) -> Duration {
    let connections = clients.div_ceil(sharing.max(1)).max(1);
    Duration::from_millis(20) + GREETING * connections as u32
}

/// Runs `load` and calls `edge` at the beginning and at the end of the measured time.
///
/// # Errors
/// When the operating system fails; what the servers do is counted instead.
pub fn run(load: &Load, mut edge: impl FnMut()) -> io::Result<Summary> {
    let keys = Keys::new(load.distribution, load.keys);
    let sharing = load.sharing.max(1);
    let connections = load.clients.div_ceil(sharing).max(1);
    let threads = load.threads.clamp(1, connections);
    let start = Instant::now() + greeting(load.clients, load.sharing);
    let done = Arc::new(AtomicU64::new(0));
    let mut workers = Vec::new();
    for thread in 0..threads {
        let share = connections / threads + usize::from(thread < connections % threads);
        let mut targets = load.targets.clone();
        let count = targets.len();
        targets.rotate_left(thread % count);
        let orders = Orders {
            targets,
            clients: share,
            pipeline: sharing,
            sliding: true,
            rate: load.rate.map(|rate| rate / threads as f64),
            random_arrivals: true,
            start,
            warmup: load.warmup,
            measured: load.measured,
        };
        let seed = load.seed.wrapping_mul(1_000).wrapping_add(thread as u64);
        let workload = Workload::new(keys.clone(), load.mix, load.value_size, seed);
        let worker = Worker::new(orders, workload, Arc::clone(&done))?;
        let builder = thread::Builder::new().name(format!("load-{thread}"));
        workers.push(builder.spawn(move || worker.run())?);
    }
    let begins = start + load.warmup;
    thread::sleep(begins.saturating_duration_since(Instant::now()));
    edge();
    let (since, before) = (Instant::now(), cpu_of_this_process());
    let machine = MachineTime::now();
    thread::sleep((begins + load.measured).saturating_duration_since(Instant::now()));
    let generator_cores = before.zip(cpu_of_this_process()).map(|(before, after)| {
        after.saturating_sub(before).as_secs_f64() / since.elapsed().as_secs_f64()
    });
    let ended = machine.zip(MachineTime::now());
    edge();
    let mut measured = Vec::new();
    for worker in workers {
        let result = worker.join();
        measured.push(result.map_err(|_| io::Error::other("a worker failed"))??);
    }
    let mut summary = Summary::of(&measured, load.measured)?;
    summary.generator_cores = generator_cores;
    summary.stolen = ended.map(|(before, after)| after.stolen_since(before));
    // Requests that were due and never sent waited for answers, not for the generator.
    summary.generator_bound = generator_cores.is_some_and(|cores| cores > BUSY * threads as f64);
    Ok(summary)
}

impl Summary {
    /// Adds up what the workers measured.
    ///
    /// # Errors
    /// When their histograms do not fit together.
    pub fn of(measured: &[Measured], time: Duration) -> io::Result<Self> {
        let mut latency =
            Histogram::<u64>::new(3).map_err(|error| io::Error::other(error.to_string()))?;
        let mut errors = BTreeMap::new();
        for one in measured {
            latency
                .add(&one.latency)
                .map_err(|error| io::Error::other(error.to_string()))?;
            for (word, count) in &one.errors {
                *errors.entry(word.clone()).or_default() += count;
            }
        }
        let sum = |part: fn(&Measured) -> u64| measured.iter().map(part).sum::<u64>();
        let mut steps: Vec<Histogram<u64>> = Vec::new();
        for one in measured {
            for (index, step) in one.timeline.iter().enumerate() {
                match steps.get_mut(index) {
                    Some(sum) => sum
                        .add(step)
                        .map_err(|error| io::Error::other(error.to_string()))?,
                    None => steps.push(step.clone()),
                }
            }
        }
        let delays = steps.iter().map(|step| {
            let latency = Latency::of(step);
            [latency.p50, latency.p99]
        });
        let pause = measured.iter().map(|one| one.pause_max).max();
        let answered = sum(|one| one.answered);
        Ok(Self {
            answered,
            throughput: answered as f64 / time.as_secs_f64(),
            latency: Latency::of(&latency),
            pause_max_milliseconds: pause.unwrap_or_default().as_secs_f64() * 1e3,
            errors,
            unanswered: sum(|one| one.unanswered),
            unsent: sum(|one| one.unsent),
            timeline: steps.iter().map(Histogram::len).collect(),
            delays: delays.collect(),
            generator_cores: None,
            generator_bound: false,
            stolen: None,
        })
    }
}

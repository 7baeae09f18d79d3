//! Results of runs: measured rows, and the table that is made of them.
//!
//! ```text
//!   run ──► Row, one per repetition and cell ──► Line, all repetitions of a cell ──► Results
//!                                                                       report, hybrid ◄──┘
//! ```

use crate::{
    figures::{Machine, Spread},
    load::Latency,
    scenario::{Axis, Backend, Parameter, Published, Shade},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The result of one repetition of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Where.
    #[serde(alias = "bed")]
    pub backend: Backend,
    /// The protocol.
    pub protocol: String,
    /// The sweep's value; 0 without one.
    pub value: u64,
    /// Which repetition, from 0.
    pub repetition: usize,
    /// How many replicas.
    pub replicas: usize,
    /// Clients.
    pub clients: usize,
    /// Requests per second that were due; 0 in a closed loop.
    pub rate: f64,
    /// Bytes per value.
    pub value_size: usize,
    /// Good answers per second.
    pub throughput: f64,
    /// Microseconds.
    pub latency: Latency,
    /// Errors and lost connections.
    pub failed: u64,
    /// Requests without an answer.
    pub unanswered: u64,
    /// CPU seconds of all replicas per million operations.
    pub cpu_per_million: Option<f64>,
    /// Bytes between replicas per operation; on real processes with the clients' bytes.
    pub bytes_per_operation: Option<f64>,
    /// Synchronisations of journals per thousand operations.
    pub syncs_per_thousand: Option<f64>,
    /// Resident memory of all replicas.
    pub resident: Option<u64>,
    /// Cores that the load generator used.
    pub generator_cores: Option<f64>,
    /// Whether the generator was the bottleneck.
    pub generator_bound: bool,
    /// Which part of the machine's CPU time its host took for others.
    #[serde(default)]
    pub stolen: Option<f64>,
    /// Good answers in each tenth of a second.
    pub timeline: Vec<u64>,
    /// How what was committed was committed, where a protocol has several ways.
    #[serde(default)]
    pub paths: BTreeMap<String, u64>,
    /// Rare branches that were taken: the first and the last time, in seconds since the measuring
    /// began, and how often.
    #[serde(default)]
    pub moments: BTreeMap<String, (f64, f64, u64)>,
    /// The leader's own statistics at the end.
    #[serde(default)]
    pub details: BTreeMap<String, String>,
    /// CPU seconds of the busiest replica per million operations.
    #[serde(default)]
    pub busiest_per_million: Option<f64>,
    /// CPU seconds of proxies and frontends on their own per million operations.
    #[serde(default)]
    pub frontends_per_million: Option<f64>,
    /// Median and 99th percentile of latency of those, in microseconds; 0 where there were none.
    #[serde(default)]
    pub delays: Vec<[f64; 2]>,
    /// Of the times of over a millisecond without any good answer: the 99th percentile and the
    /// longest, in microseconds. Commits at a lower rate than that are apart by these.
    #[serde(default)]
    pub silences: Option<[f64; 2]>,
}

/// Repetitions of one cell taken together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Where.
    #[serde(alias = "bed")]
    pub backend: Backend,
    /// The protocol.
    pub protocol: String,
    /// The sweep's value.
    pub value: u64,
    /// How many repetitions.
    pub repetitions: usize,
    /// Good answers per second.
    pub throughput: Spread,
    /// Microseconds.
    pub p50: Spread,
    /// Microseconds.
    pub p99: Spread,
    /// Microseconds.
    pub p999: Spread,
    /// CPU seconds of all replicas per million operations.
    pub cpu_per_million: Option<Spread>,
    /// Bytes between replicas per operation; on real processes with the clients' bytes.
    pub bytes_per_operation: Option<Spread>,
    /// Synchronisations of journals per thousand operations.
    pub syncs_per_thousand: Option<Spread>,
    /// Resident memory of all replicas, bytes.
    pub resident: Option<Spread>,
    /// The generator's own cores.
    pub generator_cores: Option<Spread>,
    /// In how many repetitions the generator was the bottleneck.
    pub generator_bound: usize,
    /// Which part of the machine's CPU time its host took for others.
    #[serde(default)]
    pub stolen: Option<Spread>,
    /// Errors, lost connections and requests without an answer.
    pub failed: u64,
    /// Per cent of the commands that were executed behind one that was submitted later.
    #[serde(default)]
    pub overtaken: Spread,
    /// How what was committed was committed, all repetitions together.
    #[serde(default)]
    pub paths: BTreeMap<String, u64>,
    /// CPU seconds of the busiest replica per million operations.
    #[serde(default)]
    pub busiest_per_million: Option<Spread>,
    /// CPU seconds of proxies and frontends on their own per million operations.
    #[serde(default)]
    pub frontends_per_million: Option<Spread>,
    /// The 99th percentile of times without an answer, microseconds.
    #[serde(default)]
    pub silence_p99: Option<Spread>,
    /// The longest of them.
    #[serde(default)]
    pub silence_max: Option<Spread>,
}

/// All that a run found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The scenario's name.
    pub name: String,
    /// The subject of the figure.
    pub about: String,
    /// The paper and figure that it answers to.
    pub paper: String,
    /// The parameter of the sweep.
    pub swept: Option<Parameter>,
    /// `disk` or `memory`.
    pub durability: String,
    /// Seconds measured.
    pub seconds: f64,
    /// Seconds of warm-up.
    pub warmup_seconds: f64,
    /// Repetitions asked for.
    pub repetitions: usize,
    /// Whether it was a quick run.
    pub quick: bool,
    /// Whether all was done.
    pub is_complete: bool,
    /// The seed.
    pub seed: u64,
    /// The command.
    pub command: String,
    /// The commit of the working directory, if it is one.
    pub commit: String,
    /// The machine that it ran on.
    pub machine: Machine,
    /// The machine that was simulated.
    pub profile: String,
    /// The plotted axes.
    pub plots: Vec<(Axis, Axis)>,
    /// Periods of faults at replicas and links.
    pub shades: Vec<Shade>,
    /// The values that a paper shows.
    pub published: Vec<Published>,
    /// The table.
    pub lines: Vec<Line>,
    /// Its rows.
    pub rows: Vec<Row>,
}

//! Scenarios: what is to be measured, as small TOML files.
//!
//! ```text
//!   lab/scenarios/*.toml ──read──► Scenario ──cells──► one Cell per protocol and value of the sweep
//!        │ a wrong key: file:line, and what was meant
//!        └ latencies = "aws" ──► lab/latencies/aws.toml
//! ```

mod attack;
mod read;

pub use attack::AttackKind;
pub use read::{BUILT_IN, load, parse};

use crate::{
    load::{Distribution, Mix},
    variant::{Variant, base},
};
use quintet_replica::{Durability, Entry, Level, links::Links};
use quintet_simulator::performance::{Cards, Clocks, Fault, Hunt, Pattern};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where a scenario runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// In virtual time, on a machine that a profile describes.
    Simulated,
    /// On real processes on this machine.
    Processes,
}

impl Backend {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Simulated => "simulated",
            Self::Processes => "processes",
        }
    }
}

/// The parameter of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parameter {
    /// Clients.
    Clients,
    /// Requests per second of an open loop.
    Rate,
    /// Replicas.
    Replicas,
    /// Bytes per value.
    ValueSize,
    /// Per cent of the requests that are reads.
    Reads,
    /// By how many microseconds clocks are wrong at most; simulated backend only.
    ClockError,
    /// Per cent of the turns that slowed replicas would have otherwise; simulated backend only.
    Efficiency,
    /// Per cent of the most that the same clients get in a closed loop in which nothing happens,
    /// which is measured first: the value 0.
    Load,
}

impl Parameter {
    /// Its name on axes and in columns.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Rate => "rate",
            Self::Replicas => "replicas",
            Self::ValueSize => "value_size",
            Self::Reads => "reads",
            Self::ClockError => "clock_error",
            Self::Efficiency => "efficiency",
            Self::Load => "load",
        }
    }
}

/// The quantity on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// The parameter of the sweep.
    Swept,
    /// Good answers per second.
    Throughput,
    /// Median latency.
    P50,
    /// 99th percentile.
    P99,
    /// Per cent of the commands that were executed behind one that was submitted later; simulated
    /// backend only.
    Overtaken,
    /// Seconds since the measuring began: a timeline.
    Time,
}

/// At which replicas clients are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the leader, or at all where there is none.
    Leader,
    /// At all, taking turns.
    All,
    /// At the first half of all, taking turns; the middle one of an odd number counts too.
    Half,
    /// At the one in the middle, by number: the last of the first majority.
    Middle,
    /// At the last one, by number.
    Last,
    /// At these.
    At(Vec<u16>),
    /// At that many proxies, each on a machine of its own; simulated backend only.
    Proxies(usize),
    /// On that many machines, each with a frontend of its own: clients that ask replicas
    /// themselves; simulated backend only.
    Frontends(usize),
}

/// How the clients ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Clients.
    pub clients: usize,
    /// How many of them share a connection to a real replica, as behind a proxy or a pool.
    pub sharing: usize,
    /// Requests per second; `None` for a closed loop.
    pub rate: Option<f64>,
    /// Bytes per value.
    pub value_size: usize,
    /// The most requests that a replica orders together; 0 for as many as there are.
    pub batch: usize,
    /// A batch of that many bytes is full: more requests become a further one at once.
    pub batch_bytes: usize,
    /// The same for that many requests.
    pub batch_requests: usize,
    /// Which requests.
    pub mix: Mix,
    /// How many keys.
    pub keys: u64,
    /// How they are drawn.
    pub distribution: Distribution,
    /// At which replicas.
    pub place: Place,
    /// The consistency that reads need.
    pub level: Level,
    /// Clients reach replicas and proxies over links like theirs, on the simulated backend.
    pub remote: bool,
    /// How unevenly the simulated backend draws keys, if requests have keys there: see
    /// `quintet_simulator::performance::Load`.
    pub skew: Option<u32>,
}

/// A point that a paper shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Which line of which figure.
    pub label: String,
    /// Where on the first axis.
    pub x: f64,
    /// Where on the second.
    pub y: f64,
}

/// A plot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plot {
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
}

/// An event at a replica or at links, for the plots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shade {
    /// When, in seconds since the measuring began.
    pub from: f64,
    /// Until when.
    pub until: f64,
    /// The event.
    pub what: String,
}

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// The subject of the scenario.
    pub about: String,
    /// The paper and the figure that it answers to; empty for none.
    pub paper: String,
    /// Where it can run.
    pub backends: Vec<Backend>,
    /// The protocols, or variants of theirs: see [`Variant`].
    pub protocols: Vec<String>,
    /// Protocols whose clients are elsewhere than the workload says.
    pub places: Vec<(String, Place)>,
    /// Options of protocols: protocol, option, value.
    pub options: Vec<(String, String, String)>,
    /// Protocols or variants whose clients are at shards: there a workload's clients are those at
    /// each member of each shard.
    pub shards: Vec<(String, Pattern)>,
    /// How many replicas.
    pub replicas: usize,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// How frames travel between real replicas: `tcp`, `udp` or `shared-memory`.
    pub transport: String,
    /// The clients.
    pub workload: Workload,
    /// How links behave.
    pub links: Links,
    /// How clocks are wrong, on the simulated backend.
    pub clocks: Clocks,
    /// The machines' network cards, on the simulated backend.
    pub cards: Cards,
    /// Which replicas are slow when the sweep is about that.
    pub slowed: Vec<u16>,
    /// Faults of replicas, with times counted from the beginning of the run.
    pub faults: Vec<Fault>,
    /// Faults of the present leader, on the simulated backend.
    pub hunt: Option<Hunt>,
    /// The same and what happens to links, counted from the beginning of the measuring.
    pub shades: Vec<Shade>,
    /// The parameter that changes from cell to cell.
    pub sweep: Option<(Parameter, Vec<u64>)>,
    /// Which of the values a quick run has.
    pub sweep_quick: Option<Vec<u64>>,
    /// The machine of the simulated backend.
    pub profile: String,
    /// Duration that is not counted.
    pub warmup: Duration,
    /// Duration that is counted.
    pub measured: Duration,
    /// The same in a quick run.
    pub measured_quick: Option<Duration>,
    /// Repetitions of a full run.
    pub repetitions: usize,
    /// Draws everything.
    pub seed: u64,
    /// The plots.
    pub plots: Vec<Plot>,
    /// The values that a paper shows.
    pub published: Vec<Published>,
}

/// One thing to be measured, repeatedly.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The protocol or variant, as the scenario calls it.
    pub protocol: String,
    /// The sweep's value; 0 without one.
    pub value: u64,
    /// How many replicas.
    pub replicas: usize,
    /// The clients.
    pub workload: Workload,
    /// How clocks are wrong.
    pub clocks: Clocks,
    /// Per cent of the turns that slowed replicas would have otherwise.
    pub efficiency: u64,
    /// Nothing happens to replicas, whatever the scenario says.
    pub calm: bool,
}

impl Scenario {
    /// All cells, in the order of the table; none where the shards of a protocol do not fit.
    pub fn cells(&self, quick: bool) -> Vec<Cell> {
        let mut swept = match (&self.sweep, &self.sweep_quick) {
            (Some(_), Some(values)) if quick => values.clone(),
            (Some((_, values)), _) => values.clone(),
            (None, _) => vec![0],
        };
        if matches!(self.sweep, Some((Parameter::Load, _))) {
            swept.insert(0, 0);
        }
        let mut cells = Vec::new();
        for protocol in &self.protocols {
            let pattern = self.pattern_of(protocol);
            for value in &swept {
                let mut cell = Cell {
                    protocol: protocol.clone(),
                    value: *value,
                    replicas: self.replicas,
                    workload: self.workload.clone(),
                    clocks: self.clocks,
                    efficiency: 100,
                    calm: false,
                };
                if let Ok(variant) = Variant::parse(protocol) {
                    if variant.reads != Level::Linearizable {
                        cell.workload.level = variant.reads;
                    }
                    let places = || self.places.iter();
                    let own = (places().find(|one| one.0 == variant.named))
                        .or_else(|| places().find(|one| one.0 == variant.protocol()));
                    if let Some((_, place)) = own {
                        cell.workload.place = place.clone();
                    }
                }
                match self.sweep.as_ref().map(|sweep| sweep.0) {
                    Some(Parameter::Clients) => cell.workload.clients = *value as usize,
                    Some(Parameter::Rate) => cell.workload.rate = Some(*value as f64),
                    Some(Parameter::Replicas) => cell.replicas = *value as usize,
                    Some(Parameter::ValueSize) => cell.workload.value_size = *value as usize,
                    Some(Parameter::Reads) => {
                        cell.workload.mix = Mix::reads(*value as f64 / 100.0);
                    }
                    Some(Parameter::ClockError) => {
                        cell.clocks.error = Duration::from_micros(*value);
                    }
                    Some(Parameter::Efficiency) => cell.efficiency = *value,
                    // The load of 100 % is known when the value 0 has been measured.
                    Some(Parameter::Load) => {
                        cell.workload.rate = None;
                        cell.calm = *value == 0;
                    }
                    None => {}
                }
                if let Some(pattern) = pattern {
                    if !pattern.fits(cell.replicas) {
                        continue;
                    }
                    cell.workload.clients *= pattern.memberships(cell.replicas);
                    cell.workload.place = Place::All;
                }
                cells.push(cell);
            }
        }
        cells
    }

    /// How the replicas of a protocol or a variant are divided, if they are.
    fn pattern_of(&self, protocol: &str) -> Option<Pattern> {
        let named = Variant::parse(protocol).ok()?.named;
        let found = self.shards.iter().find(|(of, _)| *of == named);
        found.map(|(_, pattern)| *pattern)
    }

    /// The faults of replicas in a cell.
    pub fn faults_of(&self, cell: &Cell) -> &[Fault] {
        match cell.calm {
            true => &[],
            false => &self.faults,
        }
    }

    /// The entry in the registry of a protocol, or of a variant's. [`parse`] has seen that it is
    /// there.
    pub fn entry(protocol: &str) -> Option<&'static Entry> {
        quintet_protocols::find(base(protocol)).ok()
    }

    /// The options in a cell: those of its protocol, and its shards.
    pub fn options_in(&self, cell: &Cell) -> Vec<(String, String)> {
        let pattern = self.pattern_of(&cell.protocol);
        let layout = pattern.map(|pattern| ("layout".to_owned(), pattern.layout(cell.replicas)));
        let options = self.options_of(&cell.protocol);
        options.into_iter().chain(layout).collect()
    }

    /// The options of one protocol, and what a variant says beside them.
    pub fn options_of(&self, protocol: &str) -> Vec<(String, String)> {
        let Ok(variant) = Variant::parse(protocol) else {
            return Vec::new();
        };
        let of = |option: &&(String, String, String)| option.0 == variant.named;
        let common = self.options.iter().filter(of);
        let common = common.map(|(_, name, value)| (name.clone(), value.clone()));
        // The last one counts.
        common.chain(variant.options).collect()
    }
}

//! The same load on several systems in one run.
//!
//! ```text
//!   round 1   A: wake, find the leader, write·64 write·256 read·64 read·256, stop │ B │ C │ …
//!   round 2   B │ C │ … │ A
//!   …                                        ──► Sample per round, system and cell ──► medians
//! ```
//!
//! All systems are started once, so that a virtual machine's compiler has had time to warm up, and
//! all but the one under load are stopped by a signal. Rounds alternate between the systems and
//! each begins with another, so that a slow minute of the machine affects all of them.

mod page;
pub(crate) mod processes;
mod systems;

pub use page::{HEADER, csv, html, row};
pub use systems::{Durability, Installed, Spec, System};

use crate::{
    figures::{self, Machine, Spread, Syncs},
    kept::{self, Kept},
    load::{Distribution, Load, Mix, Summary, fill, run},
};
use quintet_cli::{Failure, Outcome};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

const FILL_TIMEOUT: Duration = Duration::from_secs(30);

/// One load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Clients, one request each.
    pub clients: usize,
    /// Which part of the requests are reads.
    pub read_ratio: f64,
}

impl Cell {
    /// Its name, such as `write 64`.
    pub fn name(&self) -> String {
        let mix = match self.read_ratio {
            0.0 => "write".to_owned(),
            1.0 => "read".to_owned(),
            ratio => format!("{:.0}% reads", ratio * 100.0),
        };
        format!("{mix} {}", self.clients)
    }
}

/// A comparison to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The compared systems, in the order of the table.
    pub systems: Vec<Spec>,
    /// The loads.
    pub cells: Vec<Cell>,
    /// Bytes per value.
    pub value_size: usize,
    /// How many keys; all clients draw from the same.
    pub keys: u64,
    /// Repetitions.
    pub rounds: usize,
    /// Duration per cell that is not counted.
    pub warmup: Duration,
    /// Duration that is counted.
    pub measured: Duration,
    /// Threads of the load generator.
    pub threads: usize,
    /// How many of etcd's clients share a connection.
    pub etcd_sharing: usize,
    /// How long each system is loaded after its start: compilers at run time need it.
    pub prewarm: Duration,
    /// Members of the replicated systems.
    pub members: u16,
    /// Clients go to all members, taking turns, instead of to the leader.
    pub at_all: bool,
    /// Where data lies that is to be durable.
    pub disk: PathBuf,
    /// Where the others' data lies.
    pub memory: PathBuf,
    /// The first port; 300 for each ten systems are used.
    pub base_port: u16,
    /// Draws the keys.
    pub seed: u64,
    /// Whether this is a quick look: fewer and shorter repetitions.
    pub quick: bool,
    /// Where the programs are.
    pub installed: Installed,
    /// Where rounds are kept, for a later run that continues from there.
    pub out: Option<PathBuf>,
}

impl Plan {
    /// The properties that rounds must have in common to be compared.
    fn identity(&self) -> Outcome<String> {
        let names: Vec<_> = self.systems.iter().map(Spec::name).collect();
        let text = format!(
            "{names:?}{:?}{}{}{:?}{:?}{}{}{}{}{}{:?}",
            self.cells,
            self.value_size,
            self.keys,
            self.warmup,
            self.measured,
            self.threads,
            self.etcd_sharing,
            self.members,
            self.at_all,
            self.seed,
            Machine::this(),
        );
        kept::identity(&text, &self.installed.quintet)
    }

    /// How long it takes, about.
    pub fn duration(&self) -> Duration {
        let cells = self.systems.len() * self.cells.len() * self.rounds;
        (self.warmup + self.measured + Duration::from_millis(100)) * cells as u32
            + (self.prewarm + Duration::from_secs(4)) * self.systems.len() as u32
            + Duration::from_millis(900) * (self.systems.len() * self.rounds) as u32
    }
}

/// The result of one round of one cell on one system.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The system's name.
    pub system: String,
    /// The cell's name.
    pub cell: String,
    /// Which repetition, from 0.
    pub round: usize,
    /// The clients' observations.
    pub seen: Summary,
    /// CPU seconds of all members in the measured time.
    pub cpu_seconds: Option<f64>,
    /// Resident memory of all members at its end, in bytes.
    pub resident: Option<u64>,
    /// Bytes that went over loopback in the measured time, clients' included.
    pub loopback_bytes: Option<u64>,
    /// How often members waited in the measured time for writes to reach the disk.
    pub syncs: Option<u64>,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The system's name.
    pub system: String,
    /// The cell's name.
    pub cell: String,
    /// Good answers per second.
    pub throughput: Spread,
    /// Microseconds.
    pub p50: Spread,
    /// Microseconds.
    pub p99: Spread,
    /// Microseconds.
    pub p999: Spread,
    /// CPU seconds of all members per million operations.
    pub cpu_per_million: Spread,
    /// Resident memory of all members, bytes.
    pub resident: Spread,
    /// Bytes over loopback per operation, clients' included.
    pub bytes_per_operation: Spread,
    /// Synchronisations of all members' files per thousand operations; `None` where the system
    /// does not tell.
    pub syncs_per_thousand: Option<Spread>,
    /// The generator's own cores.
    pub generator_cores: Spread,
    /// In how many repetitions the generator was the bottleneck.
    pub generator_bound: usize,
    /// Which part of the machine's CPU time its host took for others.
    #[serde(default)]
    pub stolen: Spread,
    /// Errors, unanswered requests and lost connections over all repetitions.
    pub failed: u64,
}

/// The description of a system for readers of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Described {
    /// Its name.
    pub system: String,
    /// Version, settings, durability, and what its reads promise.
    pub description: String,
}

/// All that a comparison found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Comparison {
    /// The description of each system.
    pub systems: Vec<Described>,
    /// The machine.
    pub machine: Machine,
    /// Bytes per value.
    pub value_size: usize,
    /// How many keys.
    pub keys: u64,
    /// Repetitions that were asked for.
    pub rounds: usize,
    /// Seconds measured per cell.
    pub seconds: f64,
    /// Seconds of warm-up per cell.
    pub warmup_seconds: f64,
    /// Members of the replicated systems.
    pub members: u16,
    /// Clients were at all members.
    pub at_all: bool,
    /// Threads of the generator.
    pub threads: usize,
    /// Draws the keys.
    pub seed: u64,
    /// Whether it was a quick look.
    pub quick: bool,
    /// Whether all repetitions were done.
    pub is_complete: bool,
    /// The table.
    pub lines: Vec<Line>,
    /// The samples of the table.
    pub samples: Vec<Sample>,
}

/// How far a comparison is, for an observer.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Cells done.
    pub done: usize,
    /// All cells.
    pub all: usize,
    /// The current step.
    pub now: &'a str,
}

/// Runs a comparison, or what is left of it. `watch` is told each step and says whether to
/// continue; what was measured until then is kept, and rounds that are whole are not run again.
///
/// # Errors
/// When a system cannot be started, or loses its data or its leader permanently.
pub fn compare(plan: &Plan, mut watch: impl FnMut(Step<'_>) -> bool) -> Outcome<Comparison> {
    if plan.systems.is_empty() || plan.cells.is_empty() || plan.rounds == 0 {
        return Err(Failure::usage("nothing to compare"));
    }
    let all = plan.systems.len() * plan.cells.len() * plan.rounds;
    let syncs = Syncs::count();
    let mut running: Vec<System> = Vec::new();
    let mut kept: Kept<Sample> = Kept::open(plan.out.as_deref(), &plan.identity()?)?;
    // A round is whole or it is run again: systems within one belong together.
    let in_round = plan.systems.len() * plan.cells.len();
    let of_round = |rows: &[Sample], round| rows.iter().filter(|row| row.round == round).count();
    let first = (0..plan.rounds)
        .find(|round| of_round(&kept.rows, *round) < in_round)
        .unwrap_or(plan.rounds);
    kept.drop_where(|sample| sample.round >= first)?;
    let mut described = Vec::new();
    let mut continues = true;
    for (index, spec) in plan.systems.iter().enumerate() {
        continues = continues
            && watch(Step {
                done: kept.rows.len(),
                all,
                now: &format!("starting {}", spec.name()),
            });
        if !continues {
            break;
        }
        let mut system = System::start(spec, plan, index)?;
        let targets = system.targets()?;
        fill(
            &targets[0],
            plan.keys,
            plan.value_size,
            FILL_TIMEOUT,
            |_| {},
        )
        .map_err(|error| Failure::failed(format!("{}: filling: {error}", spec.name())))?;
        described.push(Described {
            system: spec.name(),
            description: system.description(),
        });
        for cell in &plan.cells {
            let load = load(plan, &mut system, cell, 0)?;
            let share = plan.prewarm / plan.cells.len() as u32;
            run(
                &Load {
                    warmup: Duration::ZERO,
                    measured: share,
                    ..load
                },
                || {},
            )?;
        }
        system.pause()?;
        running.push(system);
    }
    let mut done = kept.rows.len();
    'rounds: for round in first..plan.rounds {
        for turn in 0..running.len() {
            let index = (turn + round) % running.len();
            let system = &mut running[index];
            system.resume()?;
            for cell in &plan.cells {
                let now = format!("round {}: {}, {}", round + 1, system.name(), cell.name());
                continues = continues
                    && watch(Step {
                        done,
                        all,
                        now: &now,
                    });
                if !continues {
                    break 'rounds;
                }
                kept.append(measure(plan, system, cell, round, syncs.as_ref())?)?;
                done += 1;
            }
            system.pause()?;
        }
    }
    for system in running {
        system.stop();
    }
    let samples = kept.rows;
    let lines = lines(plan, &samples);
    Ok(Comparison {
        systems: described,
        machine: Machine::this(),
        value_size: plan.value_size,
        keys: plan.keys,
        rounds: plan.rounds,
        seconds: plan.measured.as_secs_f64(),
        warmup_seconds: plan.warmup.as_secs_f64(),
        members: plan.members,
        at_all: plan.at_all,
        threads: plan.threads,
        seed: plan.seed,
        quick: plan.quick,
        is_complete: done == all,
        lines,
        samples,
    })
}

fn load(plan: &Plan, system: &mut System, cell: &Cell, round: usize) -> Outcome<Load> {
    Ok(Load {
        // Asked again each time: a leader may have changed while all were stopped.
        targets: system.targets()?,
        clients: cell.clients,
        sharing: system.sharing(),
        rate: None,
        mix: Mix::reads(cell.read_ratio),
        keys: plan.keys,
        distribution: Distribution::Uniform,
        value_size: plan.value_size,
        threads: plan.threads,
        warmup: plan.warmup,
        measured: plan.measured,
        seed: plan.seed.wrapping_add(round as u64),
    })
}

fn measure(
    plan: &Plan,
    system: &mut System,
    cell: &Cell,
    round: usize,
    syncs: Option<&Syncs>,
) -> Outcome<Sample> {
    let load = load(plan, system, cell, round)?;
    let mut edges = Vec::new();
    let seen = run(&load, || {
        edges.push((
            system.cpu(),
            figures::wire_bytes(),
            syncs.and_then(|syncs| syncs.of(system.members())),
        ));
    })?;
    let [
        (cpu_before, bytes_before, syncs_before),
        (cpu_after, bytes_after, syncs_after),
    ] = edges.as_slice()
    else {
        return Err(Failure::failed("a measurement had no beginning or no end"));
    };
    let cpu = cpu_before.zip(*cpu_after);
    let bytes = bytes_before.zip(*bytes_after);
    Ok(Sample {
        system: system.name(),
        cell: cell.name(),
        round,
        seen,
        cpu_seconds: cpu.map(|(before, after)| after.saturating_sub(before).as_secs_f64()),
        resident: system.resident(),
        loopback_bytes: bytes.map(|(before, after)| after.saturating_sub(before)),
        syncs: syncs_before
            .zip(*syncs_after)
            .map(|(before, after)| after.saturating_sub(before)),
    })
}

/// The table: systems within cells, so that what is to be compared stands together.
fn lines(plan: &Plan, samples: &[Sample]) -> Vec<Line> {
    let mut lines = Vec::new();
    for cell in &plan.cells {
        for spec in &plan.systems {
            let own: Vec<&Sample> = samples
                .iter()
                .filter(|sample| sample.system == spec.name() && sample.cell == cell.name())
                .collect();
            if own.is_empty() {
                continue;
            }
            let spread = |figure: &dyn Fn(&Sample) -> Option<f64>| {
                Spread::of(own.iter().filter_map(|sample| figure(sample)))
            };
            let per_operation = |sample: &Sample, whole: Option<f64>| {
                let answered = sample.seen.answered as f64;
                whole
                    .filter(|_| answered > 0.0)
                    .map(|whole| whole / answered)
            };
            lines.push(Line {
                system: spec.name(),
                cell: cell.name(),
                throughput: spread(&|sample| Some(sample.seen.throughput)),
                p50: spread(&|sample| Some(sample.seen.latency.p50)),
                p99: spread(&|sample| Some(sample.seen.latency.p99)),
                p999: spread(&|sample| Some(sample.seen.latency.p999)),
                cpu_per_million: spread(&|sample| {
                    per_operation(sample, sample.cpu_seconds.map(|cpu| cpu * 1e6))
                }),
                resident: spread(&|sample| sample.resident.map(|bytes| bytes as f64)),
                bytes_per_operation: spread(&|sample| {
                    per_operation(sample, sample.loopback_bytes.map(|bytes| bytes as f64))
                }),
                syncs_per_thousand: own.iter().all(|sample| sample.syncs.is_some()).then(|| {
                    spread(&|sample| {
                        per_operation(sample, sample.syncs.map(|syncs| syncs as f64 * 1e3))
                    })
                }),
                generator_cores: spread(&|sample| sample.seen.generator_cores),
                generator_bound: own.iter().filter(|one| one.seen.generator_bound).count(),
                stolen: spread(&|sample| sample.seen.stolen),
                failed: own
                    .iter()
                    .map(|one| one.seen.errors.values().sum::<u64>() + one.seen.unanswered)
                    .sum(),
            });
        }
    }
    lines
}

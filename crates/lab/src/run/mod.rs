//! Runs scenarios: every cell on every backend, repetition by repetition, so that a slow minute
//! affects all alike.
//!
//! ```text
//!   Scenario ──► jobs: repetition × backend × cell ──► Row ──append──► DIR/NAME.rows
//!                  │ those already there are not run again             │
//!                  └──────────────── all ──► results.json, results.csv, report.html
//! ```

mod processes;
mod simulated;

use crate::{
    figures::{Machine, Spread},
    kept::{self, Kept},
    profile,
    results::{Line, Results, Row},
    scenario::{Backend, Parameter, Plot, Scenario},
};
use quintet_cli::{Failure, Outcome};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// How a run is done.
#[derive(Clone, Debug)]
pub struct Options {
    /// Fewer and shorter repetitions.
    pub quick: bool,
    /// Repetitions, if not the scenario's.
    pub repetitions: Option<usize>,
    /// One backend only.
    pub backend: Option<Backend>,
    /// The profile, if not the scenario's.
    pub profile: Option<String>,
    /// The `quintet` program.
    pub program: PathBuf,
    /// Where data of real replicas lies.
    pub data: PathBuf,
    /// The first port of real replicas.
    pub base_port: u16,
    /// Real replicas in network namespaces of their own; this process is in a sandbox.
    pub namespaces: bool,
    /// Threads of the real load generator.
    pub threads: usize,
    /// Where results are written.
    pub out: PathBuf,
    /// Measure all again, whatever is there already.
    pub fresh: bool,
    /// The command that was given.
    pub command: String,
}

/// Repetitions of a quick run.
pub const QUICK: usize = 3;

/// A run, and what was there before it.
#[derive(Clone, Debug)]
pub struct Ran {
    /// All that is known now.
    pub results: Results,
    /// That many rows of it were measured by an earlier run of the same.
    pub earlier: usize,
    /// The directory held another run, or one of another build, which is gone.
    pub replaced: bool,
}

/// How far a run is.
#[derive(Clone, Debug)]
pub struct Step<'a> {
    /// Jobs done, those of an earlier run included.
    pub done: usize,
    /// All jobs.
    pub all: usize,
    /// The current step.
    pub now: &'a str,
}

/// The scenario with what the options change.
#[derive(Debug)]
struct Job<'a> {
    scenario: &'a Scenario,
    cell: &'a crate::scenario::Cell,
    measured: Duration,
    repetition: usize,
}

/// Runs a scenario, or what is left of it. `watch` is told each step and says whether to continue;
/// what was measured until then is kept.
///
/// # Errors
/// When a backend cannot be set up or results cannot be written.
pub fn run(
    scenario: &Scenario,
    options: &Options,
    mut watch: impl FnMut(Step<'_>) -> bool,
) -> Outcome<Ran> {
    let backends: Vec<Backend> = (scenario.backends.iter().copied())
        .filter(|backend| options.backend.is_none_or(|only| only == *backend))
        .collect();
    if backends.is_empty() {
        let backend = options.backend.map_or("", Backend::name);
        return Err(Failure::usage(format!(
            "{}: it does not run on the backend '{backend}'",
            scenario.name
        )));
    }
    let named = options.profile.as_ref().unwrap_or(&scenario.profile);
    let (file, profile) = profile::load(named)?;
    let repetitions = options.repetitions.unwrap_or(if options.quick {
        QUICK.min(scenario.repetitions)
    } else {
        scenario.repetitions
    });
    let measured = scenario
        .measured_quick
        .filter(|_| options.quick)
        .unwrap_or(scenario.measured);
    let cells = scenario.cells(options.quick);
    let mut kept: Kept<Row> = Kept::open(
        Some(&options.out),
        &identity(scenario, measured, &file, options)?,
    )?;
    let replaced = kept.replaced;
    if options.fresh {
        kept.drop_where(|_| true)?;
    }
    let found = kept.rows.len();
    let all = repetitions * backends.len() * cells.len();
    let mut done = 0;
    'jobs: for repetition in 0..repetitions {
        for cell in &cells {
            for backend in &backends {
                let known = kept.rows.iter().any(|row| {
                    row.backend == *backend
                        && row.protocol == cell.protocol
                        && row.value == cell.value
                        && row.repetition == repetition
                });
                if known {
                    done += 1;
                    continue;
                }
                let swept = scenario.sweep.as_ref().map_or(String::new(), |(what, _)| {
                    format!(" {} {}", what.name(), cell.value)
                });
                let now = format!(
                    "{} {}{swept}, {} of {repetitions}",
                    backend.name(),
                    cell.protocol,
                    repetition + 1
                );
                let now = now.as_str();
                if !watch(Step { done, all, now }) {
                    break 'jobs;
                }
                let rows = kept.rows.iter().filter(|row| row.backend == *backend);
                let cell = &loaded(scenario, cell, rows);
                let job = Job {
                    scenario,
                    cell,
                    measured,
                    repetition,
                };
                let row = match backend {
                    Backend::Simulated => simulated::run(&job, &profile)?,
                    Backend::Processes => processes::run(&job, options)?,
                };
                kept.append(row)?;
                done += 1;
            }
        }
    }
    let mut rows = kept.rows;
    rows.retain(|row| {
        backends.contains(&row.backend)
            && row.repetition < repetitions
            && cells
                .iter()
                .any(|cell| cell.protocol == row.protocol && cell.value == row.value)
    });
    rows.sort_by_key(|row| (row.backend, row.repetition));
    let results = Results {
        name: scenario.name.clone(),
        about: scenario.about.clone(),
        paper: scenario.paper.clone(),
        swept: scenario.sweep.as_ref().map(|sweep| sweep.0),
        durability: scenario.durability.name().to_owned(),
        seconds: measured.as_secs_f64(),
        warmup_seconds: scenario.warmup.as_secs_f64(),
        repetitions,
        quick: options.quick,
        is_complete: done == all,
        seed: scenario.seed,
        command: options.command.clone(),
        commit: commit(),
        machine: Machine::this(),
        profile: file.machine,
        plots: (scenario.plots.iter())
            .map(|Plot { x, y }| (*x, *y))
            .collect(),
        shades: scenario.shades.clone(),
        published: scenario.published.clone(),
        lines: lines(&rows),
        rows,
    };
    crate::report::write(&results, &options.out)?;
    Ok(Ran {
        results,
        earlier: found,
        replaced,
    })
}

/// A cell whose rate is a part of what was measured before.
fn loaded<'a>(
    scenario: &Scenario,
    cell: &crate::scenario::Cell,
    rows: impl Iterator<Item = &'a Row>,
) -> crate::scenario::Cell {
    let mut cell = cell.clone();
    if matches!(scenario.sweep, Some((Parameter::Load, _))) && cell.value > 0 {
        let full = rows.filter(|row| row.protocol == cell.protocol && row.value == 0);
        let full = Spread::of(full.map(|row| row.throughput));
        cell.workload.rate = Some((full.median * cell.value as f64 / 100.0).max(1.0));
    }
    cell
}

/// The throughput of one cell in virtual time, operations per second, measured as long as in a
/// quick run.
pub(crate) fn simulate(
    scenario: &Scenario,
    cell: &crate::scenario::Cell,
    profile: &quintet_simulator::performance::Profile,
) -> Outcome<f64> {
    let job = Job {
        scenario,
        cell,
        measured: scenario.measured_quick.unwrap_or(scenario.measured),
        repetition: 0,
    };
    simulated::run(&job, profile).map(|row| row.throughput)
}

/// The properties that rows must share with a run to be part of it.
fn identity(
    scenario: &Scenario,
    measured: Duration,
    profile: &profile::ProfileFile,
    options: &Options,
) -> Outcome<String> {
    let profile = toml::to_string(profile).map_err(Failure::failed)?;
    let network = if options.namespaces { "namespaces" } else { "" };
    let machine = Machine::this();
    let text = format!(
        "{scenario:?}{measured:?}{profile}{network}{}{machine:?}",
        options.threads
    );
    kept::identity(&text, &options.program)
}

/// The commit of the working directory, if it is one.
pub fn commit() -> String {
    let output = std::process::Command::new("git")
        .args(["rev-parse", "--short=12", "HEAD"])
        .output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        }
        _ => String::new(),
    }
}

/// Repetitions taken together, in the order in which cells first appear.
fn lines(rows: &[Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in rows {
        let of_line = |one: &&Row| {
            (one.backend, &one.protocol, one.value) == (row.backend, &row.protocol, row.value)
        };
        let is_known = lines.iter().any(|line| {
            (line.backend, &line.protocol, line.value) == (row.backend, &row.protocol, row.value)
        });
        if is_known {
            continue;
        }
        let own: Vec<&Row> = rows.iter().filter(of_line).collect();
        let spread = |figure: fn(&Row) -> f64| Spread::of(own.iter().map(|row| figure(row)));
        let maybe = |figure: fn(&Row) -> Option<f64>| {
            let figures: Option<Vec<f64>> = own.iter().map(|row| figure(row)).collect();
            figures.map(Spread::of)
        };
        lines.push(Line {
            backend: row.backend,
            protocol: row.protocol.clone(),
            value: row.value,
            repetitions: own.len(),
            throughput: spread(|row| row.throughput),
            p50: spread(|row| row.latency.p50),
            p99: spread(|row| row.latency.p99),
            p999: spread(|row| row.latency.p999),
            cpu_per_million: maybe(|row| row.cpu_per_million),
            bytes_per_operation: maybe(|row| row.bytes_per_operation),
            syncs_per_thousand: maybe(|row| row.syncs_per_thousand),
            resident: maybe(|row| row.resident.map(|bytes| bytes as f64)),
            generator_cores: maybe(|row| row.generator_cores),
            generator_bound: own.iter().filter(|row| row.generator_bound).count(),
            stolen: maybe(|row| row.stolen),
            failed: own.iter().map(|row| row.failed + row.unanswered).sum(),
            overtaken: spread(|row| {
                let percent = row.details.get("overtaken_percent");
                percent.and_then(|text| text.parse().ok()).unwrap_or(0.0)
            }),
            paths: own.iter().fold(BTreeMap::new(), |mut all, row| {
                for (path, count) in &row.paths {
                    *all.entry(path.clone()).or_default() += count;
                }
                all
            }),
            busiest_per_million: maybe(|row| row.busiest_per_million),
            frontends_per_million: maybe(|row| row.frontends_per_million),
            silence_p99: maybe(|row| row.silences.map(|silences| silences[0])),
            silence_max: maybe(|row| row.silences.map(|silences| silences[1])),
        });
    }
    lines
}

//! One repetition on real processes.
//!
//! ```text
//!   Cluster::start ──► settle ──► fill ──► load ──► Row
//!                                   faults ┘ injected by a thread of their own, on time
//! ```

use super::{Job, Options};
use crate::{
    cluster::{Cluster, ClusterPlan},
    figures::{self, Syncs},
    load::{Load, fill, greeting, run as run_load},
    results::Row,
    scenario::Backend,
    variant::base,
};
use quintet_cli::{Failure, Outcome};
use quintet_simulator::performance::FaultKind;
use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

const FILL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a cluster may need to start, when changes of links need a known beginning.
const STARTS_WITHIN: Duration = Duration::from_secs(6);

pub(super) fn run(job: &Job<'_>, options: &Options) -> Outcome<Row> {
    let (scenario, cell) = (job.scenario, job.cell);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    let changes = !scenario.links.changes.is_empty();
    let greeting = greeting(cell.workload.clients, cell.workload.sharing);
    // The run begins when the clients' first requests leave.
    let within = STARTS_WITHIN + greeting;
    let began = if changes { now + within } else { now };
    let began_at = Instant::now() + within;
    // In namespaces the kernel limits what a replica sends, answers to clients included.
    let mut links = scenario.links.clone();
    let namespaces = options
        .namespaces
        .then(|| std::mem::take(&mut links.egress));
    let setting = |name: &str, value: usize| (format!("limits.{name}"), value.to_string());
    let cluster = Cluster::start(ClusterPlan {
        program: options.program.clone(),
        protocol: base(&cell.protocol).to_owned(),
        options: scenario.options_of(&cell.protocol),
        settings: vec![
            setting("batch_bytes", cell.workload.batch_bytes),
            setting("batch_requests", cell.workload.batch_requests),
            ("transport".to_owned(), scenario.transport.clone()),
        ],
        replicas: cell.replicas,
        durability: scenario.durability,
        links: (!links.is_plain()).then(|| quintet_cli::links::links_text(&links)),
        namespaces,
        began,
        parent: options.data.clone(),
        base_port: options.base_port,
    })?;
    let cluster = Mutex::new(cluster);
    let locked = || cluster.lock().unwrap_or_else(PoisonError::into_inner);
    let load = &cell.workload;
    let targets = locked().targets(&load.place, load.level)?;
    if load.mix.read_ratio > 0.0 {
        fill(
            &targets[0],
            load.keys,
            load.value_size,
            FILL_TIMEOUT,
            |_| {},
        )
        .map_err(|error| Failure::failed(format!("{}: filling: {error}", cell.protocol)))?;
    }
    if changes {
        let left = began_at.saturating_duration_since(Instant::now() + greeting);
        if left.is_zero() {
            return Err(Failure::failed(format!(
                "{}: the cluster was not ready within {} s, before links change",
                cell.protocol,
                STARTS_WITHIN.as_secs()
            )));
        }
        thread::sleep(left);
    }
    let plan = Load {
        targets,
        clients: load.clients,
        sharing: load.sharing,
        rate: load.rate,
        mix: load.mix,
        keys: load.keys,
        distribution: load.distribution,
        value_size: load.value_size,
        threads: options.threads,
        warmup: scenario.warmup,
        measured: job.measured,
        seed: scenario.seed.wrapping_mul(1_000) + job.repetition as u64,
    };
    let mut events: Vec<(Duration, usize, FaultKind, bool)> = Vec::new();
    for fault in scenario.faults_of(cell) {
        let id = usize::from(fault.replica);
        events.push((fault.at, id, fault.kind, true));
        events.extend(fault.until.map(|until| (until, id, fault.kind, false)));
    }
    events.sort_by_key(|event| event.0);
    let syncs = Syncs::count();
    let mut edges = Vec::new();
    let start = Instant::now() + greeting;
    let measures_at = SystemTime::now() + greeting + scenario.warmup;
    let (seen, injected) = thread::scope(|scope| {
        let injections = scope.spawn(|| -> Outcome<()> {
            for (at, id, kind, begins) in events {
                thread::sleep((start + at).saturating_duration_since(Instant::now()));
                if begins {
                    locked().inject(id, kind);
                } else {
                    locked().relent(id, kind)?;
                }
            }
            Ok(())
        });
        let seen = run_load(&plan, || {
            let cluster = locked();
            edges.push((
                cluster.cpu(),
                figures::wire_bytes(),
                syncs.as_ref().and_then(|syncs| syncs.of(&cluster.pids())),
            ));
        });
        let injected = injections.join();
        (seen, injected)
    });
    injected.map_err(|_| Failure::failed("injecting faults failed"))??;
    let seen = seen?;
    let [before, after] = edges.as_slice() else {
        return Err(Failure::failed("a measurement had no beginning or no end"));
    };
    let answered = seen.answered as f64;
    let per_operation = |whole: f64| (answered > 0.0).then_some(whole / answered);
    let cpu = before.0.zip(after.0);
    let bytes = before.1.zip(after.1);
    let syncs = before.2.zip(after.2);
    let of = |before: u64, after: u64| after.saturating_sub(before) as f64;
    let resident = locked().resident();
    Ok(Row {
        backend: Backend::Processes,
        protocol: cell.protocol.clone(),
        value: cell.value,
        repetition: job.repetition,
        replicas: cell.replicas,
        clients: load.clients,
        rate: load.rate.unwrap_or(0.0),
        value_size: load.value_size,
        throughput: seen.throughput,
        latency: seen.latency,
        failed: seen.errors.values().sum(),
        unanswered: seen.unanswered + seen.unsent,
        // A replica that died took its time with it.
        cpu_per_million: cpu
            .filter(|_| scenario.faults_of(cell).is_empty())
            .and_then(|(before, after)| {
                per_operation(after.saturating_sub(before).as_secs_f64() * 1e6)
            }),
        bytes_per_operation: bytes.and_then(|(before, after)| per_operation(of(before, after))),
        syncs_per_thousand: syncs
            .and_then(|(before, after)| per_operation(of(before, after) * 1e3)),
        resident,
        generator_cores: seen.generator_cores,
        generator_bound: seen.generator_bound,
        stolen: seen.stolen,
        paths: BTreeMap::new(),
        moments: locked().moments(measures_at),
        details: BTreeMap::new(),
        busiest_per_million: None,
        frontends_per_million: None,
        timeline: seen.timeline,
        delays: seen.delays,
        silences: None,
    })
}

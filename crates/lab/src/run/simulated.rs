//! One repetition in virtual time.
//!
//! ```text
//!   Job + Profile ──► performance::Setup ──► performance::run ──► latencies in nanoseconds ──► Row
//! ```

use super::Job;
use crate::{
    load::{Latency, TIMELINE_STEP},
    results::Row,
    scenario::{Backend, Place, Scenario},
};
use quintet_cli::{Failure, Outcome};
use quintet_simulator::performance::{self, Load, Placement, Profile, Setup, Slowed};

/// The part of the generator's thread from which on it counts as the bottleneck.
const BUSY: f64 = 0.9;

pub(super) fn run(job: &Job<'_>, profile: &Profile) -> Outcome<Row> {
    let (scenario, cell) = (job.scenario, job.cell);
    let entry = Scenario::entry(&cell.protocol)
        .ok_or_else(|| Failure::usage(format!("there is no protocol '{}'", cell.protocol)))?;
    let load = &cell.workload;
    let at = match &load.place {
        // The first leader; a protocol without one has clients at all.
        Place::Leader => vec![0],
        Place::All => (0..cell.replicas as u16).collect(),
        Place::Half => (0..(cell.replicas as u16).div_ceil(2)).collect(),
        Place::Middle => vec![cell.replicas as u16 / 2],
        Place::Last => vec![cell.replicas as u16 - 1],
        Place::At(ids) => ids.clone(),
        Place::Proxies(count) | Place::Frontends(count) => {
            let behind = cell.replicas as u16;
            (behind..behind + *count as u16).collect()
        }
    };
    let (frontends, here) = match load.place {
        Place::Proxies(count) => (count, false),
        Place::Frontends(count) => (count, true),
        _ => (0, false),
    };
    let found = performance::run(Setup {
        entry,
        options: scenario.options_in(cell),
        replicas: cell.replicas,
        durability: scenario.durability,
        links: scenario.links.clone(),
        datagrams: false,
        profile: profile.clone(),
        cards: scenario.cards,
        slowed: Slowed {
            replicas: scenario.slowed.clone(),
            efficiency: cell.efficiency,
        },
        load: Load {
            clients: load.clients,
            rate: load.rate.map(|rate| rate as u64),
            value_size: load.value_size,
            batch: load.batch,
            batch_bytes: load.batch_bytes,
            batch_requests: load.batch_requests,
            reads: (load.mix.reads_of_all() * 1e3).round() as u64,
            level: load.level,
            at,
            frontends,
            remote: load.remote && !here,
            keys: load.skew.map_or(0, |_| load.keys),
            skew: load.skew.unwrap_or(1),
        },
        faults: scenario.faults_of(cell).to_vec(),
        hunt: scenario.hunt,
        clocks: cell.clocks,
        warmup: scenario.warmup,
        measured: job.measured,
        seed: scenario.seed.wrapping_mul(1_000) + job.repetition as u64,
    });
    if let Some(why) = found.broken {
        return Err(Failure::failed(format!("{}: {why}", cell.protocol)));
    }
    let mut latencies = found.latencies;
    latencies.sort_unstable();
    let step = TIMELINE_STEP.as_nanos() as u64;
    let mut timeline = vec![0; job.measured.as_nanos().div_ceil(TIMELINE_STEP.as_nanos()) as usize];
    let mut delays = vec![Vec::new(); timeline.len()];
    for (when, took) in found.answered.iter().zip(&found.took) {
        let at = (when / step) as usize;
        if let Some(count) = timeline.get_mut(at) {
            *count += 1;
            delays[at].push(*took);
        }
    }
    let delays = delays.iter_mut().map(|answers| {
        answers.sort_unstable();
        let latency = latency_of(answers);
        [latency.p50, latency.p99]
    });
    let answered = found.answered.len() as f64;
    let seconds = job.measured.as_secs_f64();
    let per_operation = |whole: f64| (answered > 0.0).then_some(whole / answered);
    let busy: u64 = found.busy.iter().sum();
    let generator = found.generator as f64 / 1e9 / seconds;
    Ok(Row {
        backend: Backend::Simulated,
        protocol: cell.protocol.clone(),
        value: cell.value,
        repetition: job.repetition,
        replicas: cell.replicas,
        clients: load.clients,
        rate: load.rate.unwrap_or(0.0),
        value_size: load.value_size,
        throughput: answered / seconds,
        latency: latency_of(&latencies),
        failed: found.failed,
        unanswered: found.unanswered,
        cpu_per_million: per_operation(busy as f64 / 1e3),
        bytes_per_operation: per_operation(found.bytes as f64),
        syncs_per_thousand: per_operation(found.syncs as f64 * 1e3),
        resident: None,
        generator_cores: (profile.placement == Placement::Shared).then_some(generator),
        generator_bound: generator > BUSY,
        stolen: None,
        paths: (found.paths.iter())
            .map(|(path, count)| ((*path).to_owned(), *count))
            .collect(),
        moments: (found.moments.iter())
            .map(|(branch, moment)| {
                let seconds = |at: u64| at as f64 / 1e9;
                let moment = (seconds(moment.first), seconds(moment.last), moment.count);
                ((*branch).to_owned(), moment)
            })
            .collect(),
        details: found.details.iter().cloned().collect(),
        busiest_per_million: per_operation(
            found.busy.iter().max().copied().unwrap_or(0) as f64 / 1e3,
        ),
        frontends_per_million: match frontends {
            0 => None,
            _ => per_operation(found.frontends.iter().sum::<u64>() as f64 / 1e3),
        },
        delays: delays.collect(),
        silences: silences_of(&found.answered, job.measured.as_nanos() as u64),
        timeline,
    })
}

/// The 99th percentile and the longest of the times of over a millisecond without an answer, in
/// microseconds; answers that are nearer to each other belong together.
fn silences_of(answered: &[u64], measured: u64) -> Option<[f64; 2]> {
    let mut at: Vec<u64> = [0].iter().chain(answered).copied().collect();
    at.push(measured);
    at.sort_unstable();
    let between = at.windows(2).map(|pair| pair[1] - pair[0]);
    let mut silences: Vec<u64> = between.filter(|time| *time > 1_000_000).collect();
    silences.sort_unstable();
    let latency = latency_of(&silences);
    (!silences.is_empty()).then_some([latency.p99, latency.max])
}

/// Of sorted nanoseconds.
fn latency_of(sorted: &[u64]) -> Latency {
    let at = |part: f64| {
        let index = (part * sorted.len() as f64).ceil() as usize;
        let value = sorted.get(index.saturating_sub(1)).copied().unwrap_or(0);
        value as f64 / 1e3
    };
    let sum: u128 = sorted.iter().map(|value| u128::from(*value)).sum();
    Latency {
        mean: sum as f64 / sorted.len().max(1) as f64 / 1e3,
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        max: at(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let sorted: Vec<u64> = (1..=1_000).map(|value| value * 1_000).collect();
        let latency = latency_of(&sorted);
        assert_eq!(
            (latency.p50, latency.p99, latency.p999),
            (500.0, 990.0, 999.0)
        );
        assert_eq!((latency.max, latency.mean), (1_000.0, 500.5));
        assert_eq!(latency_of(&[]).p50, 0.0);
    }

    #[test]
    fn answers_that_are_near_to_each_other_leave_no_silence() {
        let millisecond = 1_000_000;
        let at = [5, 5, 6, 9].map(|at| at * millisecond);
        assert_eq!(
            silences_of(&at, 20 * millisecond),
            Some([11_000.0, 11_000.0])
        );
        assert_eq!(silences_of(&[], millisecond / 2), None, "too short to tell");
    }
}

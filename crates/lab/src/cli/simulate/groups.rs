//! `quintet simulate --groups`: worlds with several groups in each process.

use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format, grouped},
};
use quintet_simulator::groups::{self, GroupsSetup, Worlds};
use serde::Serialize;
use std::{collections::BTreeMap, ops::Range, time::Instant};

/// The worlds by their name on the command line.
pub(super) fn worlds(text: &str) -> Result<Worlds, String> {
    match text {
        "pinned" => Ok(Worlds::Pinned),
        "shards" => Ok(Worlds::Shards),
        "services" => Ok(Worlds::Services),
        _ => Err(format!("'{text}' is none of pinned, shards, services")),
    }
}

/// The outcome of all seeds.
#[derive(Debug, Default, Serialize)]
struct Report {
    seeds: u64,
    violations: u64,
    stalls: u64,
    acknowledged: u64,
    /// Seed and reason.
    failures: Vec<(u64, String)>,
    counts: BTreeMap<&'static str, u64>,
}

/// Runs the seeds, or shows one.
pub(super) fn run(setup: &GroupsSetup<'_>, seeds: Range<u64>, format: Format) -> Outcome {
    let trace = setup.tells;
    if let Some(count) = setup.processes.filter(|count| !(3..=9).contains(count)) {
        return Err(Failure::usage(format!(
            "--replicas: {count} processes; worlds with groups have 3 to 9"
        )));
    }
    if trace && seeds.end - seeds.start != 1 {
        return Err(Failure::usage("--trace: for one seed only")
            .help(format!("use --seeds {}", seeds.start)));
    }
    let (mut report, began) = (Report::default(), Instant::now());
    let bar = output::bar(
        seeds.end - seeds.start,
        "seeds [{bar:40}] {pos}/{len} {eta}",
    );
    for seed in seeds {
        let found = groups::run_seed(setup, seed);
        if trace {
            output::print(&(found.lines.join("\n") + "\n"))?;
        }
        report.seeds += 1;
        report.violations += u64::from(found.violation.is_some());
        report.stalls += u64::from(found.stall.is_some());
        report.acknowledged += found.acknowledged;
        let violation = found.violation.map(|violation| violation.to_string());
        let stall = found.stall.map(|stall| format!("stall: {stall}"));
        (report.failures).extend(violation.or(stall).map(|what| (seed, what)));
        for (name, count) in found.counts {
            *report.counts.entry(name).or_default() += count;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if format == Format::Table {
        let mut text = format!(
            "{} seeds in {:.1} s, {} violations, {} stalls, {} operations acknowledged\n",
            report.seeds,
            began.elapsed().as_secs_f64(),
            report.violations,
            report.stalls,
            grouped(report.acknowledged),
        );
        for (seed, what) in &report.failures {
            text.push_str(&format!("seed {seed}: {what}\n"));
        }
        output::print(&text)?;
    }
    output::print_json_line(&report)?;
    match report.failures.first() {
        None => Ok(()),
        Some((seed, what)) => {
            let message = format!("of {} seeds {seed} fails: {what}", report.seeds);
            let again = "replay it: the same command with --trace, and --seeds";
            Err(Failure::new(Exit::Violated, message).help(format!("{again} {seed}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worlds_are_named_and_run() {
        assert!(worlds("groups").is_err());
        for name in ["pinned", "shards"] {
            let setup = GroupsSetup::of(worlds(name).expect("a name"));
            assert!(run(&setup, 1..2, Format::Json).is_ok(), "{name}");
            let tells = GroupsSetup {
                tells: true,
                ..setup
            };
            let two = run(&tells, 1..3, Format::Json);
            assert_eq!(two.unwrap_err().exit, Exit::Usage);
            let many = GroupsSetup {
                processes: Some(10),
                ..setup
            };
            let two = run(&many, 1..2, Format::Json);
            assert_eq!(two.unwrap_err().exit, Exit::Usage);
        }
    }
}

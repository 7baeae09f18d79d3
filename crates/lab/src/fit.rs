//! Profiles of machines that are not here: fitted to one cell that a paper shows, then frozen.
//!
//! ```text
//!   profile with a baseline ──► simulate its cell ──► costs × simulated ÷ published, a few times
//! ```
//!
//! Only CPU time is scaled, all of it by one factor. Every other cell is a prediction.

use crate::{
    profile::{BaselineFile, ProfileFile},
    run,
    scenario::{self, Cell, Scenario},
};
use quintet_cli::{Failure, Outcome};
use quintet_simulator::performance::{Costs, Profile};

/// The result of fitting.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// The profile, its costs scaled.
    pub file: ProfileFile,
    /// The baseline's throughput in virtual time, operations per second.
    pub throughput: f64,
    /// The factor of all costs.
    pub factor: f64,
}

const FITS: usize = 8;
/// As near as this is near enough.
const NEAR: f64 = 0.01;
/// A difference above this has a cause other than CPU time.
const MET: f64 = 0.05;

fn scaled(costs: &Costs, by: f64) -> Costs {
    let of = |value: u64| (value as f64 * by).round() as u64;
    Costs {
        turn: of(costs.turn),
        receive: of(costs.receive),
        receive_kib: of(costs.receive_kib),
        send: of(costs.send),
        send_frame: of(costs.send_frame),
        send_kib: of(costs.send_kib),
        request: of(costs.request),
        reply: of(costs.reply),
        client_kib: of(costs.client_kib),
        batch: of(costs.batch),
        execute: of(costs.execute),
        execute_kib: of(costs.execute_kib),
        sync: of(costs.sync),
        sync_kib: of(costs.sync_kib),
        sleep: of(costs.sleep),
        generator: of(costs.generator),
        generator_turn: of(costs.generator_turn),
    }
}

fn cell(baseline: &BaselineFile) -> Outcome<(Scenario, Cell)> {
    let scenario = scenario::load(&baseline.scenario)?;
    let cells = scenario.cells(false);
    let is_it = |cell: &Cell| cell.protocol == baseline.protocol && cell.value == baseline.value;
    let found = cells.into_iter().find(is_it).ok_or_else(|| {
        Failure::usage(format!(
            "baseline: the scenario '{}' has no cell {} of {}",
            baseline.scenario, baseline.value, baseline.protocol
        ))
    })?;
    Ok((scenario, found))
}

/// The throughput of a profile's baseline in virtual time, operations per second.
///
/// # Errors
/// When the profile has no baseline, or its scenario has no such cell.
pub fn baseline(file: &ProfileFile) -> Outcome<f64> {
    let (scenario, cell) = cell(of(file)?)?;
    run::simulate(&scenario, &cell, &profile(file)?)
}

fn of(file: &ProfileFile) -> Outcome<&BaselineFile> {
    file.baseline.as_ref().ok_or_else(|| {
        Failure::usage("the profile has no [baseline]")
            .help("it names source, scenario, protocol, value and throughput of the cell to fit")
    })
}

fn profile(file: &ProfileFile) -> Outcome<Profile> {
    file.profile().map_err(Failure::usage)
}

/// Scales the costs of a profile until its baseline is met. `watch` is told each step and says
/// whether to continue.
///
/// # Errors
/// When there is no baseline, or it cannot be met by scaling.
pub fn fit(file: &ProfileFile, mut watch: impl FnMut(&str) -> bool) -> Outcome<Fitted> {
    let baseline = of(file)?;
    let (scenario, cell) = cell(baseline)?;
    let start = profile(file)?;
    let published = baseline.throughput as f64;
    let mut factor = 1.0;
    for turn in 0.. {
        let mut now = start.clone();
        now.costs = scaled(&start.costs, factor);
        let throughput = run::simulate(&scenario, &cell, &now)?;
        let off = throughput / published;
        if (off - 1.0).abs() < NEAR || turn == FITS {
            if (off - 1.0).abs() > MET {
                return Err(Failure::failed(format!(
                    "{}: {throughput:.0}/s is as near as scaling the costs comes",
                    baseline.source
                ))
                .help(
                    "what limits this cell is not CPU time: the network, the clients, the window",
                ));
            }
            let mut fitted = ProfileFile::of(&now, file.machine.clone());
            fitted.baseline = file.baseline.clone();
            return Ok(Fitted {
                file: fitted,
                throughput,
                factor,
            });
        }
        if !watch(&format!("{throughput:.0}/s of {published:.0}/s")) {
            return Err(Failure::failed("stopped before the baseline was met"));
        }
        factor *= off.clamp(0.1, 10.0);
    }
    Err(Failure::failed("the baseline was not met"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;

    #[test]
    fn every_fitted_profile_meets_the_cell_it_was_fitted_to() {
        for (name, _) in profile::BUILT_IN {
            let (file, _) = profile::load(name).unwrap();
            let Some(cell) = &file.baseline else { continue };
            let off = baseline(&file).unwrap() / cell.throughput as f64;
            assert!((0.95..1.05).contains(&off), "{name}: {off:.3}");
        }
    }

    #[test]
    fn wrong_costs_are_scaled_and_missing_baseline_is_rejected() {
        let (mut file, profile) = profile::load("racs-lan").unwrap();
        let wrong = Profile {
            costs: scaled(&profile.costs, 3.0),
            ..profile.clone()
        };
        let mut wrong = ProfileFile::of(&wrong, file.machine.clone());
        wrong.baseline = file.baseline.clone();
        let found = fit(&wrong, |_| true).unwrap();
        assert!((0.3..0.37).contains(&found.factor), "{}", found.factor);
        file.baseline = None;
        assert!(fit(&file, |_| true).is_err());
    }
}

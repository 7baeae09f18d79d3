//! `quintet demo --join`: the demo that runs gets one replica more, or another one in the place of
//! one that died.
//!
//! ```text
//!   running demo ◄─ who are the members? ─ demo --join ──exec──► quintet join, in this terminal
//! ```

use super::{Marker, Plan, Ports, check_last_port, check_ports_of, directory::Place};
use crate::cli::{change::ask_any, demo::supervisor::What, settings, status};
use quintet_cli::{Exit, Failure, Outcome, output, programs};
use std::{os::unix::process::CommandExt, path::Path, process::Command, time::Duration};

/// Becomes the new replica.
///
/// # Errors
/// Why there is none.
pub fn run(directory: &Path, replaces: Option<u16>) -> Outcome {
    let marker = Marker::read(directory)?.ok_or_else(|| no_demo(directory))?;
    let addresses = status::addresses_of_demo(directory)?;
    let report = ask_any(&addresses, None)
        .map_err(|failure| failure.help("only a demo that runs can grow: start it first"))?;
    let taken: Vec<u16> = report.members.iter().map(|it| it.id).collect();
    // The first number that no member has.
    let mut free = (0..).filter(|id| !taken.contains(id));
    let id = replaces.or(free.next()).unwrap_or_default();
    let seeds =
        (report.seeds(replaces)).map_err(|why| Failure::usage(format!("--replace: {why}")))?;
    let seeds: Vec<String> = seeds.into_iter().map(str::to_owned).collect();
    let first = taken.first().copied().unwrap_or_default();
    let first = directory.join(format!("replica-{first}"));
    let first = settings::load_own(&first.join("quintet.toml"))?.config;
    if first.layout.is_some() {
        return Err(Failure::usage(
            "a layout divides the keys of this demo: its members cannot change yet",
        ));
    }
    let rows = taken.iter().map(|id| id + 1).max().unwrap_or_default();
    let plan = Plan {
        replicas: rows.max(id + 1),
        vacant: Vec::new(),
        proxies: 0,
        protocol: report.protocol,
        options: report.options.into_iter().collect(),
        limits: marker.limits(),
        durability: first.durability,
        transport: first.transport,
        threads: first.threads,
        base_port: marker.base_port,
        layout: None,
    };
    check_last_port(plan.base_port, plan.replicas)?;
    Place::check(directory, id)?;
    check_ports_of(What::Replica(id), &plan, Duration::ZERO)?;
    let place = Place::prepare(directory, &marker, &plan, id)?;
    let ports = Ports::of(plan.base_port, id);
    output::print(&format!(
        "replica {id}  redis://127.0.0.1:{}  http://127.0.0.1:{}\n  data   {}\n\nCtrl-C stops it.\n",
        ports.redis,
        ports.admin,
        place.data.display()
    ))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("join").arg("--config").arg(&place.file);
    command.arg("--dir").arg(&place.data);
    for seed in &seeds {
        command.args(["--seed", seed]);
    }
    if let Some(id) = replaces {
        command.args(["--replace", &id.to_string()]);
    }
    programs::without_settings(&mut command);
    Err(Failure::new(Exit::Failed, command.exec().to_string()))
}

fn no_demo(directory: &Path) -> Failure {
    Failure::usage(format!("{}: no demo's directory", directory.display()))
        .help("start a demo first, or name its directory with --dir")
}

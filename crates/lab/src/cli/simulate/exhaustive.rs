//! `quintet simulate --exhaustive`: every world of a small scope.

use clap::Args;
use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format, grouped},
};
use quintet_simulator::{Bounds, Campaign, Exploration, ExploreProgress, Transport};
use std::{fs, path::Path};

/// How small the scope of an exhaustive search is.
#[derive(Args, Debug)]
#[command(next_help_heading = "Exhaustive search")]
pub(super) struct Scope {
    /// Search every world of a small scope instead of running seeds: all interleavings of
    /// deliveries, syncs, timers and crashes, breadth first
    #[arg(long, conflicts_with_all = ["seeds", "faults", "durability", "operations", "trace"])]
    pub exhaustive: bool,

    /// Commands, each of a client of its own, submitted at replica 0, 1, … at any moment
    #[arg(long, value_name = "N", default_value_t = 2, requires = "exhaustive")]
    commands: usize,

    /// How many of these are linearizable reads
    #[arg(long, value_name = "N", default_value_t = 0, requires = "exhaustive")]
    reads: usize,

    /// Crashes, each of any replica at any moment; it may start again at any later one
    #[arg(long, value_name = "N", default_value_t = 1, requires = "exhaustive")]
    crashes: usize,

    /// Firings of the protocol's timers, on all replicas together
    #[arg(long, value_name = "N", default_value_t = 1, requires = "exhaustive")]
    timers: usize,

    /// Ends of the epoch, each offered at replica 0 at any moment; the same protocol follows
    #[arg(long, value_name = "N", default_value_t = 0, requires = "exhaustive")]
    seals: usize,

    /// Begin at the first boot, not when the first leader is in place
    #[arg(long, requires = "exhaustive")]
    from_boot: bool,

    /// Submit all commands at the beginning instead of each at any moment
    #[arg(long, requires = "exhaustive")]
    at_once: bool,

    /// How far a replica's clock jumps when one of its timers fires, in milliseconds; by default
    /// beyond every deadline
    #[arg(long, value_name = "MS", default_value_t = quintet_simulator::LEAP_MS, requires = "exhaustive")]
    leap: u64,

    /// Replicas learn that one which crashed cannot be reached, not only that connections broke
    #[arg(long, requires = "exhaustive")]
    down: bool,

    /// Worlds to keep at most, about 100 bytes each; the search ends there
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20_000_000,
        requires = "exhaustive"
    )]
    states: usize,
}

/// Searches and tells.
pub(super) fn run(
    scope: &Scope,
    campaign: &Campaign,
    format: Format,
    directory: Option<&Path>,
) -> Outcome {
    let bounds = Bounds {
        replicas: campaign.replicas,
        commands: scope.commands,
        reads: scope.reads,
        crashes: scope.crashes,
        timers: scope.timers,
        seals: scope.seals,
        from_boot: scope.from_boot,
        at_once: scope.at_once,
        leap_ms: scope.leap,
        down: scope.down,
        in_order: campaign.transport != Some(Transport::Datagram),
        states_max: scope.states,
    };
    let bar = output::bar(0, "searching [{elapsed}] {msg}");
    let found = quintet_simulator::explore(campaign, bounds, |it: ExploreProgress| {
        bar.set_message(format!(
            "{} worlds, {} steps, depth {}, {} waiting, {} states of replicas",
            grouped(it.states as u64),
            grouped(it.transitions),
            it.depth,
            grouped(it.waiting as u64),
            grouped(it.replica_states as u64)
        ));
    });
    bar.finish_and_clear();
    let found = found.map_err(Failure::usage)?;
    if format == Format::Table {
        output::print(&shown(&found))?;
    }
    output::print_json_line(&found)?;
    verdict(&found, campaign, directory)
}

fn shown(found: &Exploration) -> String {
    let mut text = format!(
        "{} with {} replicas, {} commands, {} crashes, {} firings of timers: {} worlds, {} steps, \
         depth {}, {} states of replicas, in {:.1} s; {}\n",
        found.protocol,
        found.bounds.replicas,
        found.bounds.commands,
        found.bounds.crashes,
        found.bounds.timers,
        grouped(found.states as u64),
        grouped(found.transitions),
        found.depth,
        grouped(found.replica_states as u64),
        found.seconds,
        match (found.complete, found.violation.is_some()) {
            (true, _) => "all of them hold",
            (false, true) => "one does not hold",
            (false, false) => "there are more",
        }
    );
    for (answered, worlds) in found.answered.iter().enumerate() {
        let worlds = grouped(*worlds as u64);
        text.push_str(&format!(
            "{worlds} worlds with {answered} commands answered\n"
        ));
    }
    for line in &found.lines {
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn verdict(found: &Exploration, campaign: &Campaign, directory: Option<&Path>) -> Outcome {
    let Some(violation) = &found.violation else {
        return match found.complete {
            true => Ok(()),
            false => Err(Failure::new(
                Exit::Failed,
                format!(
                    "more than {} worlds: not all were seen",
                    found.bounds.states_max
                ),
            )
            .help("give it more with --states, or a smaller scope")),
        };
    };
    let failure = Failure::new(Exit::Violated, violation);
    let directory = directory.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let file = directory.join(format!("quintet-{}-exhaustive.html", campaign.protocol));
    let written = fs::create_dir_all(&directory).and_then(|()| fs::write(&file, &found.page));
    Err(match written {
        Ok(()) => failure.help(format!("the way there as a picture: {}", file.display())),
        Err(error) => failure.help(format!("no picture: {}: {error}", file.display())),
    })
}

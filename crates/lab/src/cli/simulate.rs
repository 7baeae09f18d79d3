//! `quintet simulate`: whole clusters in one thread, in virtual time, under faults.
//!
//! ```text
//!   seeds A..B ──► one world each ──► checkers ──► report: one JSON object, the last line
//!                                       └─ a violation: the seed, shrunk to a script, the command
//!                                          that replays it, exit 6
//!   --exhaustive ──► every world of a small scope
//!   --replay FILE ──► the script's world again ──► trace, picture, exit 6 or 0
//! ```

use clap::Args;
use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format, grouped},
    protocols,
};
use quintet_simulator::{
    Campaign, CampaignError, CampaignReport, FaultSet, OPERATIONS_DEFAULT, Progress, Service,
    Transport,
    groups::{GroupsSetup, Worlds},
};
use replay::ShrunkSeed;
use serde::Serialize;
use std::{
    ops::Range,
    path::PathBuf,
    time::{Duration, Instant},
};

mod exhaustive;
mod groups;
mod replay;

/// How long shrinking takes unless asked for otherwise, and at most.
const SHRINK_SECONDS: u64 = 20;
const SHRINK_SECONDS_MAX: u64 = 24 * 3600;

/// Run a protocol's code under faults, in virtual time, and check what it promises
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet simulate                                         100 seeds of multipaxos, all faults
  quintet simulate --replicas 5 --seeds 0..500 --faults network,crash
  quintet simulate --seeds 17..18 --trace                  everything that happens in one seed
  quintet simulate --replay multipaxos-17.toml             a shrunk script again, with a picture
  quintet simulate --exhaustive --set pre_vote=false       every world of a small scope
  quintet simulate --groups shards --seeds 0..200          shards that follow one view

One seed is one world, bit for bit: the same seed runs the same way on every machine. Checked are
agreement, linearizability, exactly-once, durability of what was acknowledged, and that a healed
cluster continues. The last line is one JSON object. Exit code 6 on a violation or a stall, with the
seed, a script of the little that is needed to see it again, and the command that replays that; 1
when more than a fifth of the seeds (give or take chance) proved nothing. --coverage exits with 6, too, when something was
never hit. --replay exits with 6 when the script still
ends in a violation, with 0 when it does not, with 2 when it is no script.")]
pub struct Simulate {
    /// The replication protocol, see 'quintet protocols'
    #[arg(long, value_name = "NAME", default_value = "multipaxos")]
    protocol: String,

    /// How many replicas [default: 3; with --groups 5 to 9, drawn per seed]
    #[arg(long, value_name = "N")]
    replicas: Option<usize>,

    /// Which seeds: A..B from A up to, not including, B; or a single one
    #[arg(long, value_name = "A..B", default_value = "0..100", value_parser = seeds)]
    seeds: Range<u64>,

    /// Faults that may be injected: none, network, crash, disk, clock, all of these, or several
    /// with commas. Not among all: asynchrony gives every message a delay without bound,
    /// configuration configures one replica otherwise than the others, held holds the syncs of
    /// votes in every seed, orphaned lets leaders crash in every seed that only clients heard,
    /// ended ends the epoch in every seed
    #[arg(long, value_name = "KINDS", default_value = "all")]
    faults: FaultSet,

    /// The promise of an acknowledgement [default: drawn per seed]
    #[arg(long, value_parser = ["disk", "memory"])]
    durability: Option<String>,

    /// The promise of the transport: 'stream' as TCP does, 'datagram' as UDP does [default: drawn
    /// per seed, if the protocol supports both]
    #[arg(long, value_parser = ["stream", "datagram"])]
    transport: Option<String>,

    /// An option of the protocol, see 'quintet protocols'; may be repeated
    #[arg(long, value_name = "OPTION=VALUE", value_parser = protocols::assignment)]
    set: Vec<(String, String)>,

    /// The replicated state machine: 'store', the Redis data model, or 'registers', a machine made
    /// for checking [default: drawn per seed]
    #[arg(long, value_name = "MACHINE")]
    machine: Option<Service>,

    /// Run worlds with several groups in each of 5 to 9 processes instead: 'pinned', whose members
    /// are fixed, of any protocol, 'shards', whose members follow the views of derecho, or
    /// 'services', both kinds with services that hand calls off. Protocols and faults are drawn per
    /// seed
    #[arg(long, value_name = "WORLDS", value_parser = groups::worlds, conflicts_with_all = [
        "protocol", "faults", "durability", "transport", "set", "machine", "operations", "coverage",
        "exhaustive"])]
    groups: Option<Worlds>,

    /// Client operations per seed, at least
    #[arg(long, value_name = "N", default_value_t = OPERATIONS_DEFAULT)]
    operations: u64,

    /// Print everything that happens; for a single seed
    #[arg(long)]
    trace: bool,

    /// Run a script that an earlier violation was shrunk to; prints what happens and draws it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["protocol", "replicas", "seeds", "faults",
        "durability", "transport", "set", "operations", "trace", "bug"])]
    replay: Option<PathBuf>,

    /// Where --replay draws the picture [default: beside the script, as .html]
    #[arg(long, value_name = "FILE", requires = "replay")]
    picture: Option<PathBuf>,

    /// How long to shrink the first seed that fails, in seconds; 0 leaves it as it is
    #[arg(long, value_name = "SECONDS", default_value_t = SHRINK_SECONDS)]
    shrink_for: u64,

    /// Where to write what it was shrunk to [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    save_to: Option<PathBuf>,

    /// Fail, too, when a fault that may be drawn never took effect, or a rare branch was never
    /// taken; short campaigns cannot hit all
    #[arg(long)]
    coverage: bool,

    /// Inject a known bug, to see that it is found; 'list' shows them. Only in builds made for that
    #[arg(long = "inject-bug", alias = "plant", value_name = "BUG", hide = !cfg!(feature = "bugs"))]
    bug: Option<String>,

    #[command(flatten)]
    scope: exhaustive::Scope,

    /// How to print: 'table' explains before the JSON line, 'json' prints that line alone
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let refuse = || format!("'{text}' is not a range like 0..100, or a single seed like 17");
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| refuse());
    let range = match text.split_once("..") {
        Some((first, end)) => number(first)?..number(end)?,
        None => {
            let one = number(text)?;
            one..one.checked_add(1).ok_or_else(refuse)?
        }
    };
    if range.is_empty() {
        return Err(format!("'{text}' holds no seed: the end is not included"));
    }
    Ok(range)
}

impl Simulate {
    /// Runs the campaign.
    pub fn run(self) -> Outcome {
        if let Some(file) = &self.replay {
            return replay::replay(file, self.picture.as_deref(), self.output);
        }
        let bug = self.bug.as_deref();
        if let Some(worlds) = self.groups {
            let setup = GroupsSetup {
                worlds,
                processes: self.replicas,
                bug,
                tells: self.trace,
            };
            return groups::run(&setup, self.seeds, self.output);
        }
        let entry = protocols::find(&self.protocol)?;
        if matches!(bug, Some("list" | "help")) {
            return list_bugs(&self.protocol, self.output);
        }
        protocols::check_options(entry, &self.set).map_err(|(_, failure)| failure)?;
        let transport = self.transport.as_deref().map(str::parse::<Transport>);
        let transport = transport.transpose();
        let durability = self.durability.as_deref().map(str::parse).transpose();
        let campaign = Campaign {
            protocol: self.protocol,
            replicas: self.replicas.unwrap_or(3),
            seeds: self.seeds,
            faults: self.faults,
            durability: durability.map_err(Failure::usage)?,
            transport: transport.map_err(Failure::usage)?,
            options: self.set,
            operations: self.operations,
            machine: self.machine,
            bug: self.bug,
        };
        campaign.check().map_err(refusal)?;
        if self.scope.exhaustive {
            let directory = self.save_to.as_deref();
            return exhaustive::run(&self.scope, &campaign, self.output, directory);
        }
        if self.trace {
            trace(&campaign)?;
        }
        let began = Instant::now();
        let bar = output::bar(
            campaign.seeds.end - campaign.seeds.start,
            "seeds [{bar:40}] {pos}/{len} {msg} {eta}",
        );
        let report = quintet_simulator::run(&campaign, |progress: Progress| {
            bar.set_position(progress.done);
            bar.set_message(format!(
                "{} count, {} violations, {} stalls",
                progress.counted, progress.violations, progress.stalls
            ));
        });
        bar.finish_and_clear();
        let report = report.map_err(refusal)?;
        let seconds = began.elapsed().as_secs_f64();
        let shrunk = match (self.shrink_for, report.failures.first()) {
            (0, _) | (_, None) => None,
            (seconds, Some(story)) => {
                let budget = Duration::from_secs(seconds.min(SHRINK_SECONDS_MAX));
                replay::shrink(&campaign, story, budget, self.save_to.as_deref())
            }
        };
        if self.output == Format::Table {
            output::print(&shown(&report, shrunk.as_ref(), seconds))?;
        }
        output::print_json_line(&Printed {
            report: &report,
            shrunk: shrunk.as_ref(),
        })?;
        verdict(&report, shrunk.as_ref())?;
        match self.coverage {
            true => covered(&campaign.missing(&report).map_err(refusal)?),
            false => Ok(()),
        }
    }
}

/// The last line.
#[derive(Serialize)]
struct Printed<'a> {
    #[serde(flatten)]
    report: &'a CampaignReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    shrunk: Option<&'a ShrunkSeed>,
}

fn refusal(error: CampaignError) -> Failure {
    Failure::usage(error)
}

#[derive(Serialize)]
struct BugReport {
    name: &'static str,
    scenario: Option<u8>,
    of: &'static str,
    what: &'static str,
    campaign: &'static str,
}

/// The bugs that can be injected in this build.
fn list_bugs(protocol: &str, format: Format) -> Outcome {
    let found = quintet_simulator::bugs(protocol).map_err(Failure::usage)?;
    let reports: Vec<_> = found
        .into_iter()
        .map(|(of, spec)| BugReport {
            name: spec.name,
            scenario: Some(spec.scenario).filter(|number| *number > 0),
            of,
            what: spec.what,
            campaign: spec.campaign,
        })
        .collect();
    if format == Format::Json {
        return output::print_json(&reports);
    }
    let mut table = output::table(&["name", "scenario", "of", "what is wrong", "campaign"]);
    for report in &reports {
        let scenario = report
            .scenario
            .map_or(String::new(), |number| number.to_string());
        table.add_row([
            report.name,
            &scenario,
            report.of,
            report.what,
            report.campaign,
        ]);
    }
    output::print_table(table)
}

fn trace(campaign: &Campaign) -> Outcome {
    if campaign.seeds.end - campaign.seeds.start != 1 {
        return Err(Failure::usage("--trace: for one seed only")
            .help(format!("use --seeds {}", campaign.seeds.start)));
    }
    let seed = quintet_simulator::trace(campaign, campaign.seeds.start).map_err(refusal)?;
    let mut text = seed.lines.join("\n");
    text.push('\n');
    output::print(&text)
}

fn shown(report: &CampaignReport, shrunk: Option<&ShrunkSeed>, seconds: f64) -> String {
    let mut text = format!(
        "{} with {} replicas: {} seeds in {seconds:.1} s, {} count, {} rejected, {} violations, \
         {} stalls\n{} client operations, {} acknowledged, {} events\n",
        report.protocol,
        report.replicas,
        report.seeds,
        report.counted,
        report.rejected,
        report.violations,
        report.stalls,
        grouped(report.operations),
        grouped(report.acknowledged),
        grouped(report.events),
    );
    let counted: Vec<_> = report
        .faults
        .iter()
        .map(|(kind, count)| format!("{kind} {}", grouped(*count)))
        .collect();
    if !counted.is_empty() {
        text.push_str(&format!("faults: {}\n", counted.join(", ")));
    }
    if let Some(seed) = report.longest_resumption_seed {
        text.push_str(&format!(
            "longest from the last fault to a new command: {:.0} ms (seed {seed})\n",
            report.longest_resumption_ms
        ));
    }
    for (reason, count) in &report.rejections {
        text.push_str(&format!("rejected {count}: {reason}\n"));
    }
    for story in &report.failures {
        text.push_str(&format!(
            "\nseed {}: {}\n  replay: {} --trace\n",
            story.seed, story.what, story.replay
        ));
        if let Some(shrunk) = shrunk.filter(|shrunk| shrunk.seed == story.seed) {
            text.push_str(&shrunk.shown());
        }
    }
    text
}

fn covered(missing: &[String]) -> Outcome {
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("never hit: {}", missing.join(", "));
    Err(Failure::new(Exit::Violated, message)
        .help("run more seeds; if that does not help, what should lead there no longer does"))
}

fn verdict(report: &CampaignReport, shrunk: Option<&ShrunkSeed>) -> Outcome {
    let first = report
        .first_violation
        .as_ref()
        .or(report.first_stall.as_ref());
    if let Some(story) = first {
        let message = format!(
            "{} violations and {} stalls in {} seeds; first, seed {}: {}",
            report.violations, report.stalls, report.seeds, story.seed, story.what
        );
        let replay = match shrunk {
            Some(shrunk) => shrunk.replay.clone(),
            None => format!("{} --trace", story.replay),
        };
        return Err(Failure::new(Exit::Violated, message).help(format!("replay it: {replay}")));
    }
    // A fifth, and in a small campaign what chance adds to it: three standard deviations.
    let seeds = report.seeds as f64;
    if report.rejected as f64 > seeds / 5.0 + 3.0 * (seeds * 0.16).sqrt() {
        return Err(Failure::new(
            Exit::Failed,
            format!(
                "{} of {} seeds proved nothing",
                report.rejected, report.seeds
            ),
        )
        .help("the report's 'rejections' says why"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_half_open() {
        assert_eq!(seeds("0..100"), Ok(0..100));
        assert_eq!(seeds("17"), Ok(17..18));
        for wrong in [
            "",
            "..",
            "5..5",
            "6..5",
            "a..b",
            "0..=3",
            "18446744073709551615",
        ] {
            assert!(seeds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn violation_ends_with_its_code_and_the_command_that_replays_it() {
        let story = quintet_simulator::Story {
            seed: 3,
            what: "two orders".to_owned(),
            replay: "quintet simulate --seeds 3..4".to_owned(),
        };
        let report = CampaignReport {
            seeds: 10,
            violations: 1,
            first_violation: Some(story.clone()),
            failures: vec![story],
            ..CampaignReport::default()
        };
        let failure = verdict(&report, None).unwrap_err();
        assert_eq!(failure.exit, Exit::Violated);
        assert!(
            failure
                .to_string()
                .contains("quintet simulate --seeds 3..4 --trace")
        );
        assert!(shown(&report, None, 1.0).contains("seed 3: two orders"));
        assert!(covered(&[]).is_ok());
        let failure = covered(&["fault wipe".to_owned()]).unwrap_err();
        assert_eq!(failure.exit, Exit::Violated);
        assert!(failure.to_string().contains("fault wipe"));
        // Of 100 seeds a fifth, and 12 more by chance.
        let report = CampaignReport {
            seeds: 100,
            rejected: 33,
            ..CampaignReport::default()
        };
        assert_eq!(verdict(&report, None).unwrap_err().exit, Exit::Failed);
        assert!(
            verdict(
                &CampaignReport {
                    rejected: 32,
                    ..report
                },
                None
            )
            .is_ok()
        );
    }
}

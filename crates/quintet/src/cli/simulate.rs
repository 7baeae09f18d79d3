//! `quintet simulate`: whole clusters in one thread, in virtual time, under faults.
//!
//! ```text
//!   seeds A..B ──► one world each ──► checkers ──► report: one JSON object, the last line
//!                                       └─ a violation: the seed, the command that replays it, exit 6
//! ```

use crate::cli::{
    failure::{Exit, Failure, Outcome},
    output::{self, Format, grouped},
    settings,
};
use clap::Args;
use quintet_simulator::{
    Campaign, CampaignError, CampaignReport, FaultSet, OPERATIONS_DEFAULT, Progress, Transport,
};
use std::{ops::Range, time::Instant};

/// Run a protocol's code under faults, in virtual time, and check what it promises
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet simulate                                         100 seeds of multipaxos, all faults
  quintet simulate --replicas 5 --seeds 0..500 --faults network,crash
  quintet simulate --seeds 17..18 --trace                  everything that happens in one seed

One seed is one world, bit for bit: the same seed runs the same way on every machine. Checked are
agreement, linearizability, exactly-once, durability of what was acknowledged, and that a healed
cluster goes on. The last line is one JSON object. Exit code 6 on a violation or a stall, with the
seed and the command that replays it; 1 when more than a fifth of the seeds proved nothing.")]
pub struct Simulate {
    /// The replication protocol, see 'quintet protocols'
    #[arg(long, value_name = "NAME", default_value = "multipaxos")]
    protocol: String,

    /// How many replicas
    #[arg(long, value_name = "N", default_value_t = 3)]
    replicas: usize,

    /// Which seeds: A..B from A up to, not including, B; or a single one
    #[arg(long, value_name = "A..B", default_value = "0..100", value_parser = seeds)]
    seeds: Range<u64>,

    /// Which faults may strike: none, network, crash, disk, clock, all, or several with commas
    #[arg(long, value_name = "KINDS", default_value = "all")]
    faults: FaultSet,

    /// What an acknowledgement promises [default: drawn per seed]
    #[arg(long, value_parser = ["disk", "memory"])]
    durability: Option<String>,

    /// What the transport promises: 'stream' as TCP does, 'datagram' as UDP does
    #[arg(long, default_value = "stream", value_parser = ["stream", "datagram"])]
    transport: String,

    /// An option of the protocol, see 'quintet protocols'; may be repeated
    #[arg(long, value_name = "OPTION=VALUE", value_parser = settings::assignment)]
    set: Vec<(String, String)>,

    /// Client operations per seed, at least
    #[arg(long, value_name = "N", default_value_t = OPERATIONS_DEFAULT)]
    operations: u64,

    /// Print everything that happens; for a single seed
    #[arg(long)]
    trace: bool,

    /// Plant a known bug, to see that it is found; only in builds made for that
    #[arg(long, value_name = "BUG", hide = !cfg!(feature = "plant"))]
    plant: Option<String>,

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
        let entry = settings::protocol(&self.protocol)?;
        settings::check_options(entry, &self.set).map_err(|(_, failure)| failure)?;
        let durability = self.durability.as_deref().map(str::parse).transpose();
        let campaign = Campaign {
            protocol: self.protocol,
            replicas: self.replicas,
            seeds: self.seeds,
            faults: self.faults,
            durability: durability.map_err(Failure::usage)?,
            transport: match self.transport.as_str() {
                "datagram" => Transport::Datagram,
                _ => Transport::Stream,
            },
            options: self.set,
            operations: self.operations,
            plant: self.plant,
        };
        campaign.check().map_err(refusal)?;
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
        if self.output == Format::Table {
            output::print(&shown(&report, began.elapsed().as_secs_f64()))?;
        }
        output::print_json_line(&report)?;
        verdict(&report)
    }
}

fn refusal(error: CampaignError) -> Failure {
    Failure::usage(error)
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

fn shown(report: &CampaignReport, seconds: f64) -> String {
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
    for (reason, count) in &report.rejections {
        text.push_str(&format!("rejected {count}: {reason}\n"));
    }
    for story in &report.failures {
        text.push_str(&format!(
            "\nseed {}: {}\n  replay: {} --trace\n",
            story.seed, story.what, story.replay
        ));
    }
    text
}

fn verdict(report: &CampaignReport) -> Outcome {
    let first = report
        .first_violation
        .as_ref()
        .or(report.first_stall.as_ref());
    if let Some(story) = first {
        let message = format!(
            "{} violations and {} stalls in {} seeds; first, seed {}: {}",
            report.violations, report.stalls, report.seeds, story.seed, story.what
        );
        return Err(Failure::new(Exit::Violated, message)
            .help(format!("replay it: {} --trace", story.replay)));
    }
    if report.rejected * 5 > report.seeds {
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
    fn a_violation_ends_with_its_code_and_the_command_that_replays_it() {
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
        let failure = verdict(&report).unwrap_err();
        assert_eq!(failure.exit, Exit::Violated);
        assert!(
            failure
                .to_string()
                .contains("quintet simulate --seeds 3..4 --trace")
        );
        assert!(shown(&report, 1.0).contains("seed 3: two orders"));
        let report = CampaignReport {
            seeds: 10,
            rejected: 3,
            ..CampaignReport::default()
        };
        assert_eq!(verdict(&report).unwrap_err().exit, Exit::Failed);
        assert!(
            verdict(&CampaignReport {
                seeds: 10,
                rejected: 2,
                ..report
            })
            .is_ok()
        );
    }
}

//! Injects every known bug, one at a time, and looks how many seeds the swarm takes to find it.
//!
//! ```text
//!   bugs   [PROTOCOL] [SEEDS] [NAME]…      a row per bug as it is done; exit 6 if one is missed
//! ```
//!
//! Only in a build with the feature `bugs`; `ci/bugs` makes one and runs this.

use quintet_simulator::{
    Campaign, OPERATIONS_DEFAULT, bugs, conformance,
    groups::{self, GroupsSetup, Worlds},
    run, transcript,
};
use std::{
    collections::BTreeMap,
    error::Error,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

/// The result of the search for one bug.
#[derive(Clone)]
struct Row {
    found: Option<(u64, String)>,
    /// The transcript that goes otherwise with the bug.
    transcript: Option<String>,
    campaign: String,
    seconds: f64,
}

/// The campaign that a bug's specification asks for, in the words of the command line.
fn campaign(protocol: &str, name: &str, words: &str) -> Result<Campaign, Box<dyn Error>> {
    let mut campaign = Campaign {
        protocol: protocol.to_string(),
        bug: Some(name.to_string()),
        operations: OPERATIONS_DEFAULT,
        ..Campaign::default()
    };
    let mut words = words.split_whitespace();
    while let Some(word) = words.next() {
        let value = words.next().ok_or("an option without a value")?;
        match word {
            "--replicas" => campaign.replicas = value.parse()?,
            "--faults" => campaign.faults = value.parse()?,
            "--machine" => campaign.machine = Some(value.parse()?),
            "--durability" => campaign.durability = Some(value.parse()?),
            "--set" => {
                let (name, value) = value.split_once('=').ok_or("--set NAME=VALUE")?;
                campaign.options.push((name.to_string(), value.to_string()));
            }
            other => return Err(format!("the campaign of an injected bug has {other}").into()),
        }
    }
    Ok(campaign)
}

/// Runs seeds until one fails.
fn search(mut campaign: Campaign, seeds: u64) -> Option<(u64, String)> {
    for seed in 0..seeds {
        campaign.seeds = seed..seed + 1;
        let report = run(&campaign, |_| ()).ok()?;
        if let Some(story) = report.failures.first() {
            return Some((seed + 1, story.what.clone()));
        }
    }
    None
}

/// Runs worlds of several groups until one fails, as `groups` or `shards` asks for.
fn world(worlds: Worlds, name: &str, seeds: u64) -> Option<(u64, String)> {
    let setup = GroupsSetup {
        bug: Some(name),
        ..GroupsSetup::of(worlds)
    };
    let report = groups::run(&setup, 0..seeds, true);
    let stall = report
        .stalls
        .first()
        .map(|(seed, what)| (*seed, what.clone()));
    let violation = (report.violations.first()).map(|(seed, what)| (*seed, what.to_string()));
    let (seed, what) = violation.into_iter().chain(stall).min()?;
    Some((seed + 1, what))
}

/// The result of a conformance scenario with the bug: `PROTOCOL SCENARIO`.
fn scenario(words: &str, name: &str) -> Option<(u64, String)> {
    let (protocol, scenario) = words.trim().split_once(' ')?;
    let options = [(String::from("bug"), name.to_string())];
    let verdict = conformance::verdict(protocol, scenario, &options, &[]).ok()?;
    let what = verdict.failures().into_iter().next()?;
    Some((0, format!("{protocol}, {what}")))
}

/// The first transcript that goes otherwise with the bug.
fn transcript(protocol: &str, name: &str) -> Option<String> {
    let options = [(String::from("bug"), name.to_string())];
    let differs = |file: &std::path::PathBuf| {
        transcript::check_file(protocol, file, &options, false).is_err()
    };
    let file = transcript::files(protocol).into_iter().find(differs)?;
    Some(file.file_stem()?.to_string_lossy().into_owned())
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let protocol = words.first().map_or("multipaxos", String::as_str);
    let seeds: u64 = words.get(1).map_or("2000", String::as_str).parse()?;
    let wanted = &words[words.len().min(2)..];
    let mut specs = bugs(protocol)?;
    specs.retain(|(_, spec)| wanted.is_empty() || wanted.iter().any(|name| name == spec.name));
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((home, spec)) = specs.get(index) else {
                        return;
                    };
                    let began = Instant::now();
                    let words = spec.campaign.trim_start_matches("transcript");
                    let found = match words.strip_prefix("conformance") {
                        Some(words) => scenario(words, spec.name),
                        None if words == "groups" => world(Worlds::Pinned, spec.name, seeds),
                        None if words == "services" => world(Worlds::Services, spec.name, seeds),
                        None if words == "tests" => Some((0, "the protocol's own tests".into())),
                        None if words == "shards" => world(Worlds::Shards, spec.name, seeds),
                        None => match campaign(protocol, spec.name, words) {
                            Ok(campaign) => search(campaign, seeds),
                            Err(error) => Some((0, error.to_string())),
                        },
                    };
                    let row = Row {
                        found,
                        transcript: transcript(protocol, spec.name),
                        campaign: words.trim().to_string(),
                        seconds: began.elapsed().as_secs_f64(),
                    };
                    let what = match &row.found {
                        None if row.transcript.is_some() => {
                            format!("transcript {:?}", row.transcript)
                        }
                        Some((seeds, what)) => {
                            format!(
                                "seed {seeds}: {}",
                                what.chars().take(150).collect::<String>()
                            )
                        }
                        None => String::from("not found"),
                    };
                    eprintln!("{home} {}: {what} ({:.1} s)", spec.name, row.seconds);
                    let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                    rows.insert(index, row);
                }
            });
        }
    });
    let rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!(
        "| injected bug | scenario | of | what is wrong | campaign | seeds | found by | transcript |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let mut missed = Vec::new();
    for (index, row) in &rows {
        let (home, spec) = specs[*index];
        let scenario = match spec.scenario {
            0 => String::from("–"),
            number => number.to_string(),
        };
        let (found, by) = match &row.found {
            Some((seeds, what)) => (
                seeds.to_string(),
                what.split(':').next().unwrap_or_default().to_string(),
            ),
            None if row.transcript.is_some() && spec.campaign.starts_with("transcript") => {
                (format!("> {seeds}"), String::from("the transcript"))
            }
            None => {
                missed.push(spec.name);
                (format!("> {seeds}"), String::from("nothing"))
            }
        };
        println!(
            "| `{}` | {scenario} | {home} | {} | {} | {found} | {by} | {} |",
            spec.name,
            spec.what,
            row.campaign,
            row.transcript.as_deref().unwrap_or("–")
        );
    }
    println!(
        "{} injected, {} missed {missed:?}",
        rows.len(),
        missed.len()
    );
    Ok(ExitCode::from(if missed.is_empty() { 0 } else { 6 }))
}

//! A campaign: many seeds of one protocol, checked and counted.
//!
//! ```text
//!   for each seed ──► World ──► violation ──► counted, with the command that replays it
//!                        │ └──► stall ──────► the same
//!                        ▼
//!                     whole? ──no──► rejected (with its reason)
//!                        │ yes
//!                        ▼
//!                     counted
//! ```

use crate::{
    bugs::UNCOMPARED,
    checkers::{Violation, determinism},
    configuration::CONFIGURATION,
    decisions::{Limits, Noting},
    faults::{FaultSet, Ground},
    heal::COMMITS_MIN,
    machine::mix,
    network::Transport,
    panics,
    service::Service,
    world::{World, WorldSetup},
};
use quintet_protocols::{UnknownProtocol, find};
use quintet_replica::{Durability, Entry, OptionError};
use serde::Serialize;
use std::{collections::BTreeMap, ops::Range};

/// Acknowledged operations without which a seed does not count.
const ACKNOWLEDGED_MIN: u64 = 100;
/// Client operations of a seed unless asked for otherwise, and the least that counts.
pub const OPERATIONS_DEFAULT: u64 = 300;
/// Every this many seeds one is run twice, and must be the same.
const TWICE_EVERY: u64 = 50;
/// Of how many violations a report tells the story.
const STORIES_MAX: usize = 20;

/// The simulation to run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The protocol's name in the registry.
    pub protocol: String,
    /// How many replicas.
    pub replicas: usize,
    /// The seeds, half-open.
    pub seeds: Range<u64>,
    /// Which faults may be drawn.
    pub faults: FaultSet,
    /// The promise of an acknowledgement; `None` draws it per seed.
    pub durability: Option<Durability>,
    /// The promise of the transport; `None` draws it per seed.
    pub transport: Option<Transport>,
    /// The protocol's options as `(name, value)`.
    pub options: Vec<(String, String)>,
    /// Client operations per seed, at least.
    pub operations: u64,
    /// The replicated machine; `None` draws it per seed.
    pub machine: Option<Service>,
    /// An injected bug, one of [`crate::bugs`]. Only in a build with the feature `bugs`.
    pub bug: Option<String>,
}

impl Default for Campaign {
    fn default() -> Self {
        Self {
            protocol: String::from("multipaxos"),
            replicas: 3,
            seeds: 0..100,
            faults: FaultSet::ALL,
            durability: None,
            transport: None,
            options: Vec::new(),
            operations: OPERATIONS_DEFAULT,
            machine: None,
            bug: None,
        }
    }
}

/// Why a campaign cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CampaignError {
    /// No such protocol.
    #[error(transparent)]
    Protocol(#[from] UnknownProtocol),
    /// Too few or too many replicas.
    #[error("{0} replicas: '{1}' takes {2} to 128")]
    Replicas(usize, &'static str, usize),
    /// An option that the protocol does not take.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// Injected bugs are not in this build.
    #[error("injected bugs are only in a build with the feature 'bugs'")]
    NoBugs,
}

/// How far a campaign has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Seeds done.
    pub done: u64,
    /// Seeds in all.
    pub total: u64,
    /// Seeds that count.
    pub counted: u64,
    /// Seeds that do not.
    pub rejected: u64,
    /// Seeds with a violation.
    pub violations: u64,
    /// Seeds with a stall.
    pub stalls: u64,
}

/// A seed that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Story {
    /// Which.
    pub seed: u64,
    /// The observation.
    pub what: String,
    /// The command that runs it again.
    pub replay: String,
}

/// The result of a campaign; as JSON the last line of `quintet simulate`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CampaignReport {
    /// The protocol.
    pub protocol: String,
    /// How many replicas.
    pub replicas: usize,
    /// All seeds drawn.
    pub seeds: u64,
    /// Those that count.
    pub counted: u64,
    /// Those that do not, for want of operations, acknowledgements or effects of faults.
    pub rejected: u64,
    /// Healed cores that did not converge.
    pub stalls: u64,
    /// Seeds in which a property did not hold.
    pub violations: u64,
    /// Client operations invoked.
    pub operations: u64,
    /// Client operations answered.
    pub acknowledged: u64,
    /// Effects of faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Rare branches by name.
    pub branches: BTreeMap<String, u64>,
    /// Why seeds were rejected.
    pub rejections: BTreeMap<String, u64>,
    /// Events handled.
    pub events: u64,
    /// A hash over all that happened: equal for two runs.
    pub trace_hash: String,
    /// The longest time from healing to a new command, of all seeds that count; milliseconds.
    pub longest_resumption_ms: f64,
    /// The seed with it.
    pub longest_resumption_seed: Option<u64>,
    /// The first seed with a violation.
    pub first_violation: Option<Story>,
    /// The first seed with a stall.
    pub first_stall: Option<Story>,
    /// The first seeds that failed either way.
    pub failures: Vec<Story>,
}

/// The result of one seed.
#[derive(Clone, Debug, Default)]
pub struct SeedReport {
    /// The property that does not hold, if one does not.
    pub violation: Option<Violation>,
    /// How the healed core failed to converge, if it did.
    pub stall: Option<String>,
    /// Why the seed does not count, if it does not.
    pub rejection: Option<String>,
    /// Client operations invoked.
    pub operations: u64,
    /// Client operations answered.
    pub acknowledged: u64,
    /// Effects of faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Rare branches by name.
    pub branches: BTreeMap<&'static str, u64>,
    /// From healing to the first new command, in nanoseconds.
    pub resumed_after: Option<u64>,
    /// Events handled.
    pub events: u64,
    /// A hash over all that happened.
    pub trace_hash: u64,
    /// Readable lines, when they were asked for.
    pub lines: Vec<String>,
}

impl SeedReport {
    const fn trace(&self) -> determinism::Trace {
        determinism::Trace {
            hash: self.trace_hash,
            events: self.events,
        }
    }
}

/// Quotes a word for a shell when it needs it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,/:".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

impl Campaign {
    /// Checks names and numbers before anything runs.
    ///
    /// # Errors
    /// As [`CampaignError`] says.
    pub fn check(&self) -> Result<Entry, CampaignError> {
        let entry = *find(&self.protocol)?;
        let min = entry.info.replicas_min;
        if self.replicas < min.max(1) || self.replicas > 128 {
            return Err(CampaignError::Replicas(self.replicas, entry.info.name, min));
        }
        if self.bug.is_some() && !cfg!(any(test, feature = "bugs")) {
            return Err(CampaignError::NoBugs);
        }
        (entry.check)(&self.all_options())?;
        Ok(entry)
    }

    /// The protocol's options, with an injected bug of its own among them.
    pub(crate) fn all_options(&self) -> Vec<(String, String)> {
        let mut options = self.options.clone();
        if let Some(bug) = &self.bug
            && !crate::bugs::RIG.iter().any(|spec| spec.name == bug)
        {
            options.push((String::from("bug"), bug.clone()));
        }
        options
    }

    /// The command that runs this seed alone.
    #[must_use]
    pub fn replay(&self, seed: u64) -> String {
        let mut line = format!(
            "quintet simulate --protocol {} --replicas {} --seeds {seed}..{} --faults {}",
            quoted(&self.protocol),
            self.replicas,
            seed + 1,
            self.faults
        );
        if let Some(durability) = self.durability {
            line.push_str(&format!(" --durability {}", durability.name()));
        }
        if let Some(transport) = self.transport {
            line.push_str(&format!(" --transport {}", transport.name()));
        }
        if self.operations != OPERATIONS_DEFAULT {
            line.push_str(&format!(" --operations {}", self.operations));
        }
        if let Some(machine) = self.machine {
            line.push_str(&format!(" --machine {machine}"));
        }
        for (name, value) in &self.options {
            line.push_str(&format!(" --set {}", quoted(&format!("{name}={value}"))));
        }
        if let Some(bug) = &self.bug {
            line.push_str(&format!(" --inject-bug {}", quoted(bug)));
        }
        line
    }

    pub(crate) fn setup(&self, entry: Entry, seed: u64, trace: bool) -> WorldSetup {
        let drawn = match mix(seed, 0x6475_7261) & 1 {
            0 => Durability::Disk,
            _ => Durability::Memory,
        };
        // Datagrams are lost, doubled and overtake each other: no weather, no difference.
        let unruly = self.faults.network || self.faults.asynchrony;
        let datagrams = unruly && !entry.needs_streams;
        let transport = match mix(seed, 0x7472_616e) % 5 {
            0 | 1 if datagrams => Transport::Datagram,
            _ => Transport::Stream,
        };
        WorldSetup {
            entry,
            replicas: self.replicas,
            seed,
            faults: self.faults,
            durability: self.durability.unwrap_or(drawn),
            transport: self.transport.unwrap_or(transport),
            options: self.all_options(),
            operations: self.operations,
            #[cfg(any(test, feature = "bugs"))]
            bug: self.bug.clone(),
            trace,
            picture: false,
            service: self.machine,
            noting: Noting::No,
            limits: Limits::default(),
        }
    }
}

/// Runs one seed of `entry`.
pub(crate) fn run_seed(setup: WorldSetup) -> SeedReport {
    report(run_world(setup))
}

/// Runs a world to its end.
pub(crate) fn run_world(setup: WorldSetup) -> World {
    let mut world = World::new(setup);
    let panicked = panics::catch(|| world.run());
    if let Err(what) = panicked {
        world.violation = Some(Violation::new("panic", what));
        let now = world.now;
        if let Some(violation) = world.violation.clone() {
            world.trace.say(now, || format!("VIOLATION {violation}"));
        }
    }
    world
}

/// The report of a finished world.
pub(crate) fn report(mut world: World) -> SeedReport {
    let operations = world.history.operations().len() as u64;
    let acknowledged = world.history.acknowledged;
    let mut faults = std::mem::take(&mut world.effects);
    for (name, count) in &world.network.counts {
        *faults.entry(name).or_default() += count;
    }
    let rejection = rejection(&world, operations, acknowledged, &faults);
    let violated = world.violation.is_some();
    SeedReport {
        violation: world.violation,
        // A world that ends early by a violation has not stalled.
        stall: world.stall.filter(|_| !violated),
        rejection,
        operations,
        acknowledged,
        faults,
        branches: world.branches,
        resumed_after: world.healing.resumed_after,
        events: world.events,
        trace_hash: world.trace.hash(),
        lines: world.trace.lines.unwrap_or_default(),
    }
}

fn rejection(
    world: &World,
    operations: u64,
    acknowledged: u64,
    faults: &BTreeMap<&'static str, u64>,
) -> Option<String> {
    if world.unrecoverable {
        return Some(String::from("stall of a core that is promised nothing"));
    }
    if operations < world.setup.operations.max(OPERATIONS_DEFAULT) {
        return Some(String::from("too few operations"));
    }
    if world.undecided {
        return Some(String::from("linearizability undecided"));
    }
    if acknowledged < ACKNOWLEDGED_MIN {
        return Some(String::from("too few acknowledged"));
    }
    if world.healing.commits < COMMITS_MIN {
        return Some(String::from("too few commits after healing"));
    }
    let refused = world.odd.is_none() || faults.contains_key(CONFIGURATION);
    if !refused && !world.setup.bug_is(UNCOMPARED) {
        return Some(format!("{CONFIGURATION} without effect"));
    }
    let idle = world
        .plan
        .kinds
        .iter()
        .filter(|kind| world.led || !kind.needs_leader())
        .find(|kind| !faults.contains_key(kind.name()));
    idle.map(|kind| format!("{} without effect", kind.name()))
}

/// Runs a campaign; `progress` is called after every seed.
///
/// # Errors
/// When the campaign is malformed.
pub fn run(
    campaign: &Campaign,
    mut progress: impl FnMut(Progress),
) -> Result<CampaignReport, CampaignError> {
    let entry = campaign.check()?;
    Ok(run_entry(campaign, entry, &mut progress))
}

/// The same for a protocol that is in no registry: the campaign's name of it is for its reports only,
/// and its options are not checked.
pub fn run_entry(
    campaign: &Campaign,
    entry: Entry,
    progress: &mut dyn FnMut(Progress),
) -> CampaignReport {
    let mut report = CampaignReport {
        protocol: campaign.protocol.clone(),
        replicas: campaign.replicas,
        ..CampaignReport::default()
    };
    let mut hash = 0;
    let total = campaign.seeds.end.saturating_sub(campaign.seeds.start);
    for seed in campaign.seeds.clone() {
        let mut one = run_seed(campaign.setup(entry, seed, false));
        if seed.is_multiple_of(TWICE_EVERY) && one.violation.is_none() {
            let other = run_seed(campaign.setup(entry, seed, false));
            one.violation = determinism::check(one.trace(), other.trace()).err();
            *one.branches.entry("run twice").or_default() += 1;
        }
        report.seeds += 1;
        report.operations += one.operations;
        report.acknowledged += one.acknowledged;
        report.events += one.events;
        hash = mix(hash, one.trace_hash);
        for (name, count) in one.faults {
            *report.faults.entry(name.to_string()).or_default() += count;
        }
        for (name, count) in one.branches {
            *report.branches.entry(name.to_string()).or_default() += count;
        }
        let story = |what| Story {
            seed,
            what,
            replay: campaign.replay(seed),
        };
        if let Some(violation) = one.violation {
            report.violations += 1;
            let story = story(violation.to_string());
            report.first_violation.get_or_insert(story.clone());
            report.failures.push(story);
        } else if let Some(stall) = one.stall {
            report.stalls += 1;
            let story = story(stall);
            report.first_stall.get_or_insert(story.clone());
            report.failures.push(story);
        } else if let Some(reason) = one.rejection {
            report.rejected += 1;
            *report.rejections.entry(reason).or_default() += 1;
        } else {
            report.counted += 1;
            let resumed = one.resumed_after.unwrap_or(0) as f64 / 1e6;
            if resumed > report.longest_resumption_ms {
                report.longest_resumption_ms = resumed;
                report.longest_resumption_seed = Some(seed);
            }
        }
        report.failures.truncate(STORIES_MAX);
        progress(Progress {
            done: report.seeds,
            total,
            counted: report.counted,
            rejected: report.rejected,
            violations: report.violations,
            stalls: report.stalls,
        });
    }
    report.trace_hash = format!("{hash:016x}");
    report
}

/// Runs one seed of a campaign and keeps a readable line for everything that happens.
///
/// # Errors
/// When the campaign is malformed.
pub fn trace(campaign: &Campaign, seed: u64) -> Result<SeedReport, CampaignError> {
    let entry = campaign.check()?;
    Ok(run_seed(campaign.setup(entry, seed, true)))
}

/// The effects of a crash on a disk, which a campaign with crashes must have shown.
const CONSEQUENCES: [&str; 2] = ["torn_tail", "writes_lost"];
/// Rare branches of the node, which every protocol must take.
const BRANCHES: [&str; 11] = [
    "client retry",
    "disk hung",
    "journal begun again",
    "journal repaired",
    "left uncertain",
    "log trimmed",
    "session lost",
    "snapshot saved",
    "state followed by what was executed since",
    "state installed",
    "state transfer",
];

impl Campaign {
    /// The required faults and rare branches that a campaign with all faults never hit.
    ///
    /// # Errors
    /// When the campaign is malformed.
    pub fn missing(&self, report: &CampaignReport) -> Result<Vec<String>, CampaignError> {
        let entry = self.check()?;
        let mut faults: Vec<&str> = Vec::new();
        for durability in [Durability::Disk, Durability::Memory] {
            if self.durability.is_some_and(|chosen| chosen != durability) {
                continue;
            }
            for transport in [Transport::Stream, Transport::Datagram] {
                let unused = transport == Transport::Datagram && entry.needs_streams;
                if self.transport.map_or(unused, |chosen| chosen != transport) {
                    continue;
                }
                let ground = Ground {
                    allowed: self.faults,
                    replicas: self.replicas,
                    transport,
                    durability,
                    changes_durability: false,
                    repairs: true,
                    sessions_expire: true,
                    horizon: 0,
                };
                faults.extend(ground.pool().iter().map(|kind| kind.name()));
                if transport == Transport::Datagram && self.faults.network {
                    faults.push("reorder");
                }
            }
            if durability == Durability::Disk && self.faults.crash {
                faults.extend(CONSEQUENCES);
            }
        }
        faults.sort_unstable();
        faults.dedup();
        let mut missing: Vec<String> = (faults.iter())
            .filter(|name| !report.faults.contains_key(**name))
            .map(|name| format!("fault {name}"))
            .collect();
        // Branches are asked for when everything may happen.
        if self.faults == FaultSet::ALL && self.durability.is_none() && self.replicas >= 3 {
            let branches = BRANCHES.iter().chain(entry.branches);
            missing.extend(
                branches
                    .filter(|name| !report.branches.contains_key(**name))
                    .map(|name| format!("branch '{name}'")),
            );
        }
        Ok(missing)
    }
}

impl CampaignReport {
    /// Whether the campaign found nothing wrong.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.violations == 0 && self.stalls == 0
    }
}

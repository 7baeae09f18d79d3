//! Reading a scenario file, and refusing a wrong one with its place and what was meant.
//!
//! ```text
//!   text ──toml──► Text ──check──► Scenario
//!          │ file:line: unknown key 'protocls'; did you mean 'protocols'?
//! ```

use super::{
    Axis, Backend, Parameter, Place, Plot, Published, Scenario, Shade, Workload,
    attack::{Attack, AttackText},
};
use crate::{
    load::{Distribution, Mix},
    variant::{Variant, base},
};
use quintet_cli::{
    Exit, Failure, Outcome,
    links::{Bandwidth, NetworkText, Span},
    suggest, toml_error,
};
use quintet_replica::{Durability, FULL_BATCH_BYTES, FULL_BATCH_REQUESTS, Level};
use quintet_simulator::performance::{Cards, ClockStep, Clocks, Fault, FaultKind, Pattern};
use serde::Deserialize;
use std::{collections::BTreeMap, fs, path::Path, time::Duration};

/// The scenarios that come with the program: name and text.
pub const BUILT_IN: [(&str, &str); 71] = [
    (
        "batch-growth",
        include_str!("../../../../lab/scenarios/batch-growth.toml"),
    ),
    (
        "chain-bandwidth",
        include_str!("../../../../lab/scenarios/chain-bandwidth.toml"),
    ),
    (
        "chain-geo",
        include_str!("../../../../lab/scenarios/chain-geo.toml"),
    ),
    (
        "chain-geo-three",
        include_str!("../../../../lab/scenarios/chain-geo-three.toml"),
    ),
    (
        "chain-latency",
        include_str!("../../../../lab/scenarios/chain-latency.toml"),
    ),
    (
        "chain-reads",
        include_str!("../../../../lab/scenarios/chain-reads.toml"),
    ),
    (
        "chain-reads-bandwidth",
        include_str!("../../../../lab/scenarios/chain-reads-bandwidth.toml"),
    ),
    (
        "chain-reads-replicas",
        include_str!("../../../../lab/scenarios/chain-reads-replicas.toml"),
    ),
    (
        "chain-reconfiguration",
        include_str!("../../../../lab/scenarios/chain-reconfiguration.toml"),
    ),
    (
        "chain-writes",
        include_str!("../../../../lab/scenarios/chain-writes.toml"),
    ),
    (
        "chain-writes-single",
        include_str!("../../../../lab/scenarios/chain-writes-single.toml"),
    ),
    (
        "chora-baseline",
        include_str!("../../../../lab/scenarios/chora-baseline.toml"),
    ),
    (
        "chora-crash",
        include_str!("../../../../lab/scenarios/chora-crash.toml"),
    ),
    (
        "chora-latency",
        include_str!("../../../../lab/scenarios/chora-latency.toml"),
    ),
    (
        "chora-mencius",
        include_str!("../../../../lab/scenarios/chora-mencius.toml"),
    ),
    (
        "chora-pulsing",
        include_str!("../../../../lab/scenarios/chora-pulsing.toml"),
    ),
    (
        "chora-responsive",
        include_str!("../../../../lab/scenarios/chora-responsive.toml"),
    ),
    (
        "derecho-100mb",
        include_str!("../../../../lab/scenarios/derecho-100mb.toml"),
    ),
    (
        "derecho-10kb",
        include_str!("../../../../lab/scenarios/derecho-10kb.toml"),
    ),
    (
        "derecho-128",
        include_str!("../../../../lab/scenarios/derecho-128.toml"),
    ),
    (
        "derecho-1mb",
        include_str!("../../../../lab/scenarios/derecho-1mb.toml"),
    ),
    (
        "derecho-disk-10kb",
        include_str!("../../../../lab/scenarios/derecho-disk-10kb.toml"),
    ),
    (
        "derecho-disk-1mb",
        include_str!("../../../../lab/scenarios/derecho-disk-1mb.toml"),
    ),
    (
        "derecho-latency-10kb",
        include_str!("../../../../lab/scenarios/derecho-latency-10kb.toml"),
    ),
    (
        "derecho-latency-1mb",
        include_str!("../../../../lab/scenarios/derecho-latency-1mb.toml"),
    ),
    (
        "derecho-raw-10kb",
        include_str!("../../../../lab/scenarios/derecho-raw-10kb.toml"),
    ),
    (
        "derecho-raw-1mb",
        include_str!("../../../../lab/scenarios/derecho-raw-1mb.toml"),
    ),
    (
        "derecho-shards",
        include_str!("../../../../lab/scenarios/derecho-shards.toml"),
    ),
    (
        "derecho-shards-10kb",
        include_str!("../../../../lab/scenarios/derecho-shards-10kb.toml"),
    ),
    (
        "derecho-shards-10kb-second",
        include_str!("../../../../lab/scenarios/derecho-shards-10kb-second.toml"),
    ),
    (
        "derecho-shards-second",
        include_str!("../../../../lab/scenarios/derecho-shards-second.toml"),
    ),
    (
        "derecho-slow-10kb",
        include_str!("../../../../lab/scenarios/derecho-slow-10kb.toml"),
    ),
    (
        "derecho-slow-10kb-all",
        include_str!("../../../../lab/scenarios/derecho-slow-10kb-all.toml"),
    ),
    (
        "derecho-slow-1mb",
        include_str!("../../../../lab/scenarios/derecho-slow-1mb.toml"),
    ),
    (
        "derecho-slow-1mb-all",
        include_str!("../../../../lab/scenarios/derecho-slow-1mb-all.toml"),
    ),
    (
        "derecho-tcp-10kb",
        include_str!("../../../../lab/scenarios/derecho-tcp-10kb.toml"),
    ),
    (
        "derecho-tcp-1mb",
        include_str!("../../../../lab/scenarios/derecho-tcp-1mb.toml"),
    ),
    (
        "derecho-view-200mb",
        include_str!("../../../../lab/scenarios/derecho-view-200mb.toml"),
    ),
    (
        "derecho-view-20mb",
        include_str!("../../../../lab/scenarios/derecho-view-20mb.toml"),
    ),
    (
        "leader-crash",
        include_str!("../../../../lab/scenarios/leader-crash.toml"),
    ),
    (
        "nezha-ablation",
        include_str!("../../../../lab/scenarios/nezha-ablation.toml"),
    ),
    (
        "nezha-batched",
        include_str!("../../../../lab/scenarios/nezha-batched.toml"),
    ),
    (
        "nezha-clients",
        include_str!("../../../../lab/scenarios/nezha-clients.toml"),
    ),
    (
        "nezha-clock-step-leader",
        include_str!("../../../../lab/scenarios/nezha-clock-step-leader.toml"),
    ),
    (
        "nezha-clock-step-sender",
        include_str!("../../../../lab/scenarios/nezha-clock-step-sender.toml"),
    ),
    (
        "nezha-clocks",
        include_str!("../../../../lab/scenarios/nezha-clocks.toml"),
    ),
    (
        "nezha-closed",
        include_str!("../../../../lab/scenarios/nezha-closed.toml"),
    ),
    (
        "nezha-conflicts",
        include_str!("../../../../lab/scenarios/nezha-conflicts.toml"),
    ),
    (
        "nezha-disk",
        include_str!("../../../../lab/scenarios/nezha-disk.toml"),
    ),
    (
        "nezha-exchange",
        include_str!("../../../../lab/scenarios/nezha-exchange.toml"),
    ),
    (
        "nezha-exchange-alone",
        include_str!("../../../../lab/scenarios/nezha-exchange-alone.toml"),
    ),
    (
        "nezha-one-client",
        include_str!("../../../../lab/scenarios/nezha-one-client.toml"),
    ),
    (
        "nezha-open",
        include_str!("../../../../lab/scenarios/nezha-open.toml"),
    ),
    (
        "nezha-percentiles",
        include_str!("../../../../lab/scenarios/nezha-percentiles.toml"),
    ),
    (
        "nezha-redis",
        include_str!("../../../../lab/scenarios/nezha-redis.toml"),
    ),
    (
        "nezha-replicas",
        include_str!("../../../../lab/scenarios/nezha-replicas.toml"),
    ),
    (
        "nezha-view-change",
        include_str!("../../../../lab/scenarios/nezha-view-change.toml"),
    ),
    (
        "nezha-view-change-here",
        include_str!("../../../../lab/scenarios/nezha-view-change-here.toml"),
    ),
    (
        "racs-lan",
        include_str!("../../../../lab/scenarios/racs-lan.toml"),
    ),
    (
        "racs-lan-baseline",
        include_str!("../../../../lab/scenarios/racs-lan-baseline.toml"),
    ),
    (
        "racs-wan-11",
        include_str!("../../../../lab/scenarios/racs-wan-11.toml"),
    ),
    (
        "racs-wan-265",
        include_str!("../../../../lab/scenarios/racs-wan-265.toml"),
    ),
    (
        "racs-wan-3",
        include_str!("../../../../lab/scenarios/racs-wan-3.toml"),
    ),
    (
        "racs-wan-5",
        include_str!("../../../../lab/scenarios/racs-wan-5.toml"),
    ),
    (
        "racs-wan-73",
        include_str!("../../../../lab/scenarios/racs-wan-73.toml"),
    ),
    (
        "racs-wan-attack",
        include_str!("../../../../lab/scenarios/racs-wan-attack.toml"),
    ),
    (
        "racs-wan-hunt",
        include_str!("../../../../lab/scenarios/racs-wan-hunt.toml"),
    ),
    (
        "racs-wan-hybrid",
        include_str!("../../../../lab/scenarios/racs-wan-hybrid.toml"),
    ),
    (
        "replicas",
        include_str!("../../../../lab/scenarios/replicas.toml"),
    ),
    (
        "value-size",
        include_str!("../../../../lab/scenarios/value-size.toml"),
    ),
    (
        "wan-five-sites",
        include_str!("../../../../lab/scenarios/wan-five-sites.toml"),
    ),
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WorkloadText {
    #[serde(default = "clients")]
    clients: usize,
    #[serde(default = "sharing")]
    sharing: usize,
    rate: Option<f64>,
    #[serde(default = "value_size")]
    value_size: usize,
    #[serde(default)]
    batch: usize,
    #[serde(default = "batch_bytes")]
    batch_bytes: usize,
    #[serde(default = "batch_requests")]
    batch_requests: usize,
    #[serde(default)]
    reads: f64,
    ycsb: Option<String>,
    #[serde(default = "keys")]
    keys: u64,
    distribution: Option<String>,
    at: Option<AtText>,
    #[serde(default)]
    stale: bool,
    #[serde(default)]
    remote: bool,
    skew: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum PlaceText {
    Named(String),
    Listed(Vec<u16>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum AtText {
    One(PlaceText),
    ByProtocol(BTreeMap<String, PlaceText>),
}

const fn clients() -> usize {
    64
}

const fn sharing() -> usize {
    1
}

const fn value_size() -> usize {
    128
}

const fn batch_bytes() -> usize {
    FULL_BATCH_BYTES
}

const fn batch_requests() -> usize {
    FULL_BATCH_REQUESTS
}

const fn keys() -> u64 {
    10_000
}

const fn repetitions() -> usize {
    5
}

const fn seed() -> u64 {
    1
}

fn transport() -> String {
    "tcp".to_owned()
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultText {
    kind: String,
    at: Span,
    until: Option<Span>,
    replica: u16,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepText {
    machine: u16,
    at: Span,
    until: Option<Span>,
    forward: Option<Span>,
    back: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClocksText {
    error: Option<Span>,
    step: Option<StepText>,
}

impl ClocksText {
    fn clocks(&self, begins: Duration) -> Result<Clocks, String> {
        let step = self.step.as_ref().map(|step| {
            let (by, forward) = match (step.forward, step.back) {
                (Some(by), None) => (by.0, true),
                (None, Some(by)) => (by.0, false),
                _ => return Err("step: either forward or back".to_owned()),
            };
            Ok(ClockStep {
                at: begins + step.at.0,
                until: step.until.map(|until| begins + until.0),
                machine: step.machine,
                forward,
                by,
            })
        });
        Ok(Clocks {
            error: self.error.map_or(Duration::ZERO, |error| error.0),
            step: step.transpose()?,
        })
    }
}

const fn once() -> u64 {
    1
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachinesText {
    ingress: Option<Bandwidth>,
    memory: Option<Bandwidth>,
    #[serde(default = "once")]
    stands_for: u64,
    #[serde(default)]
    slowed: Vec<u16>,
}

impl MachinesText {
    fn cards(&self) -> Cards {
        Cards {
            ingress: self.ingress.unwrap_or_default().0,
            memory: self.memory.unwrap_or_default().0,
            stands_for: self.stands_for,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepText {
    parameter: Parameter,
    values: Vec<u64>,
    quick: Option<Vec<u64>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlotText {
    x: Axis,
    y: Axis,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    name: String,
    about: String,
    #[serde(default)]
    paper: String,
    #[serde(alias = "beds")]
    backends: Vec<Backend>,
    protocols: Vec<String>,
    #[serde(default)]
    options: BTreeMap<String, BTreeMap<String, toml::Value>>,
    #[serde(default)]
    shards: BTreeMap<String, String>,
    replicas: usize,
    durability: String,
    #[serde(default = "transport")]
    transport: String,
    #[serde(default)]
    profile: String,
    warmup: Span,
    measured: Span,
    measured_quick: Option<Span>,
    #[serde(default = "repetitions")]
    repetitions: usize,
    #[serde(default = "seed")]
    seed: u64,
    workload: WorkloadText,
    #[serde(default)]
    network: NetworkText,
    #[serde(default)]
    clocks: ClocksText,
    #[serde(default)]
    machines: MachinesText,
    #[serde(default)]
    fault: Vec<FaultText>,
    attack: Option<AttackText>,
    sweep: Option<SweepText>,
    #[serde(default)]
    plot: Vec<PlotText>,
    #[serde(default)]
    published: Vec<Published>,
}

/// Reads a scenario by the name of one that comes with the program, or by its file.
///
/// # Errors
/// When there is none, or with where the mistake is and what was meant.
pub fn load(name: &str) -> Outcome<Scenario> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
        return parse(text, &format!("{name}.toml"));
    }
    let path = Path::new(name);
    let is_file = path
        .extension()
        .is_some_and(|extension| extension == "toml");
    if !is_file {
        let known: Vec<_> = BUILT_IN.iter().map(|(known, _)| *known).collect();
        let remedy = suggest::remedy(name, &known);
        return Err(
            Failure::usage(format!("there is no scenario '{name}'")).help(format!(
                "{remedy}; a scenario of your own is named by its file, FILE.toml"
            )),
        );
    }
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::new(Exit::Usage, format!("{name}: {error}")))?;
    parse(&text, name)
}

/// Reads a scenario's text.
///
/// # Errors
/// With where the mistake is and what was meant.
pub fn parse(text: &str, file: &str) -> Outcome<Scenario> {
    let read: Text =
        toml::from_str(text).map_err(|error| toml_error::failure(&error, text, file))?;
    check(read).map_err(|why| {
        // An error message begins with its key: find the line.
        let key = why.split([':', '.']).next().unwrap_or_default();
        let line = text.lines().position(|line| {
            let line = line.trim_start_matches(['[', ' ']);
            line.strip_prefix(key)
                .is_some_and(|rest| rest.trim_start().starts_with(['=', ']', '.']))
        });
        let place = line.map_or_else(|| file.to_owned(), |line| format!("{file}:{}", line + 1));
        Failure::usage(format!("{place}: {why}"))
    })
}

fn check(text: Text) -> Result<Scenario, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.name.is_empty() || !text.name.chars().all(is_plain) || text.name.starts_with('.') {
        return Err(format!(
            "name: '{}': letters, digits, '-', '_' and '.' only, as for a file",
            text.name
        ));
    }
    if text.backends.is_empty() || text.protocols.is_empty() {
        return Err("backends and protocols: at least one each".to_owned());
    }
    for protocol in &text.protocols {
        Variant::parse(protocol).map_err(|error| format!("protocols: {error}"))?;
        let entry = quintet_protocols::find(base(protocol))
            .map_err(|error| format!("protocols: {error}"))?;
        if text.replicas < entry.info.replicas_min {
            return Err(format!(
                "replicas: {protocol} needs at least {}",
                entry.info.replicas_min
            ));
        }
    }
    let durability = match text.durability.as_str() {
        "disk" => Durability::Disk,
        "memory" => Durability::Memory,
        other => {
            return Err(format!(
                "durability: '{other}' is neither 'disk' nor 'memory'"
            ));
        }
    };
    match text.transport.as_str() {
        "tcp" => {}
        other @ ("udp" | "shared-memory") if text.backends.contains(&Backend::Simulated) => {
            return Err(format!("transport: '{other}' is for real processes only"));
        }
        "shared-memory" => {}
        "udp" => {
            let needs_streams = |protocol: &&String| {
                quintet_protocols::find(base(protocol)).is_ok_and(|it| it.needs_streams)
            };
            if let Some(protocol) = text.protocols.iter().find(needs_streams) {
                return Err(format!(
                    "transport: {protocol} relies on links that lose and reorder nothing"
                ));
            }
        }
        other => {
            return Err(format!(
                "transport: '{other}' is none of 'tcp', 'udp' and 'shared-memory'"
            ));
        }
    }
    if !(1..=99).contains(&text.replicas) {
        return Err("replicas: accepted are 1 to 99".to_owned());
    }
    if text.measured.0.is_zero() || text.repetitions == 0 {
        return Err("measured: must be above 0, as must repetitions".to_owned());
    }
    let mut options = Vec::new();
    for (protocol, values) in text.options {
        let entry = quintet_protocols::find(base(&protocol))
            .map_err(|error| format!("options: {error}"))?;
        let text = |value| match value {
            toml::Value::String(text) => text,
            other => other.to_string(),
        };
        let given: Vec<(String, String)> = (values.into_iter())
            .map(|(name, value)| (name, text(value)))
            .collect();
        // All together: one may be in order only beside another.
        (entry.check)(&given).map_err(|error| format!("options.{protocol}: {error}"))?;
        let own = given.into_iter();
        options.extend(own.map(|(name, value)| (protocol.clone(), name, value)));
    }
    let mut shards = Vec::new();
    for (protocol, pattern) in text.shards {
        let pattern = shards_of(&protocol, &pattern).map_err(|why| format!("shards: {why}"))?;
        shards.push((protocol, pattern));
    }
    if !shards.is_empty() && (text.backends.contains(&Backend::Processes) || !text.fault.is_empty())
    {
        return Err("shards: simulated only, and without faults".to_owned());
    }
    if text.workload.batch > 0 && text.backends.contains(&Backend::Processes) {
        return Err(
            "workload: batch: real replicas always batch; backends = ['simulated']".to_owned(),
        );
    }
    let (workload, places) = workload(text.workload, text.replicas)?;
    let begins = text.warmup.0;
    let clocks = (text.clocks.clocks(begins)).map_err(|why| format!("clocks: {why}"))?;
    if text.backends.contains(&Backend::Processes) {
        let own = |place: &Place| matches!(place, Place::Proxies(_) | Place::Frontends(_));
        let places = places.iter().map(|(_, place)| place);
        if own(&workload.place) || places.into_iter().any(own) {
            return Err(
                "workload: at: proxies and frontends of their own are simulated only; \
                 backends = ['simulated']"
                    .to_owned(),
            );
        }
        if clocks != Clocks::default() {
            return Err("clocks: those of real machines are as they are; \
                 backends = ['simulated']"
                .to_owned());
        }
    }
    let (cards, slowed) = (text.machines.cards(), text.machines.slowed);
    let own = !cards.is_plain() || cards.stands_for > 1 || !slowed.is_empty();
    if text.backends.contains(&Backend::Processes) && own {
        return Err("machines: real ones are as they are; backends = ['simulated']".to_owned());
    }
    if cards.stands_for > 1_000 {
        return Err("machines: stands_for: accepted are 1 to 1000".to_owned());
    }
    if let Some(id) = slowed.iter().find(|id| usize::from(**id) >= text.replicas) {
        return Err(format!("machines: slowed: there is no replica {id}"));
    }
    let mut links = text
        .network
        .links(text.replicas, begins, text.seed)
        .map_err(|why| format!("network: {why}"))?;
    let mut faults = Vec::new();
    let mut shades = Vec::new();
    let shade = |from: Duration, until: Option<Duration>, what: String| Shade {
        from: from.as_secs_f64(),
        until: until.unwrap_or(text.measured.0).as_secs_f64(),
        what,
    };
    for fault in &text.fault {
        let kind = match fault.kind.as_str() {
            "crash" => FaultKind::Crash,
            "pause" => FaultKind::Pause,
            other => {
                let remedy = suggest::remedy(other, &["crash", "pause"]);
                return Err(format!("fault: kind '{other}': {remedy}"));
            }
        };
        if usize::from(fault.replica) >= text.replicas {
            return Err(format!("fault: there is no replica {}", fault.replica));
        }
        if fault.until.is_some_and(|until| until.0 <= fault.at.0) {
            return Err("fault: until is not after at".to_owned());
        }
        faults.push(Fault {
            at: begins + fault.at.0,
            until: fault.until.map(|until| begins + until.0),
            replica: fault.replica,
            kind,
        });
        let until = fault.until.map(|until| until.0);
        shades.push(shade(
            fault.at.0,
            until,
            format!("{} of {}", fault.kind, fault.replica),
        ));
    }
    for change in &links.changes {
        let until = change.until.map(|until| until.saturating_sub(begins));
        let what = if change.cut { "cut" } else { "links change" };
        shades.push(shade(
            change.at.saturating_sub(begins),
            until,
            what.to_owned(),
        ));
    }
    let attack = match &text.attack {
        Some(attack) => attack
            .attack(text.replicas, begins, text.measured.0, text.seed)
            .map_err(|why| format!("attack: {why}"))?,
        None => Attack::default(),
    };
    if attack.hunt.is_some() && text.backends.contains(&Backend::Processes) {
        return Err(
            "attack: kind: links of real replicas change as they were told before; \
             backends = ['simulated']"
                .to_owned(),
        );
    }
    if let Some((from, until, what)) = attack.shade {
        shades.push(shade(from, Some(until), what));
    }
    links.changes.extend(attack.changes);
    if let Some(sweep) = &text.sweep {
        for values in [Some(&sweep.values), sweep.quick.as_ref()]
            .into_iter()
            .flatten()
        {
            let slow = sweep.parameter == Parameter::Efficiency;
            if slow && (slowed.is_empty() || values.iter().any(|value| *value > 100)) {
                return Err("sweep: efficiency: per cent of the turns of replicas that \
                     machines.slowed names"
                    .to_owned());
            }
            let may_be_none = [Parameter::Reads, Parameter::ClockError];
            if values.is_empty() || values.contains(&0) && !may_be_none.contains(&sweep.parameter) {
                return Err("sweep: values: at least one, all above 0".to_owned());
            }
        }
    }
    let plots = text.plot.iter().map(|plot| Plot {
        x: plot.x,
        y: plot.y,
    });
    Ok(Scenario {
        name: text.name,
        about: text.about,
        paper: text.paper,
        backends: text.backends,
        protocols: text.protocols,
        places,
        options,
        shards,
        replicas: text.replicas,
        durability,
        transport: text.transport,
        workload,
        links,
        clocks,
        cards,
        slowed,
        faults,
        hunt: attack.hunt,
        shades,
        sweep_quick: text.sweep.as_ref().and_then(|sweep| sweep.quick.clone()),
        sweep: text.sweep.map(|sweep| (sweep.parameter, sweep.values)),
        profile: text.profile,
        warmup: text.warmup.0,
        measured: text.measured.0,
        measured_quick: text.measured_quick.map(|span| span.0),
        repetitions: text.repetitions,
        seed: text.seed,
        plots: plots.collect(),
        published: text.published,
    })
}

/// Reads `disjoint N` or `overlapping N`.
fn shards_of(protocol: &str, text: &str) -> Result<Pattern, String> {
    let entry = quintet_protocols::find(base(protocol)).map_err(|error| error.to_string())?;
    let words = text.split_once(' ');
    let size = words.and_then(|(_, size)| size.parse().ok());
    let size = size.filter(|size| (1..=128).contains(size));
    let (Some((kind @ ("disjoint" | "overlapping"), _)), Some(size)) = (words, size) else {
        return Err(format!(
            "'{text}' is neither 'disjoint N' nor 'overlapping N', with N members in each"
        ));
    };
    let pattern = Pattern {
        size,
        overlapping: kind == "overlapping",
    };
    let layout = ("layout".to_owned(), pattern.layout(size));
    (entry.check)(&[layout]).map_err(|error| error.to_string())?;
    Ok(pattern)
}

type Places = Vec<(String, Place)>;

/// The most proxies, or machines with a frontend of their own.
const FRONTENDS_MAX: usize = 64;

fn place(text: PlaceText, replicas: usize) -> Result<Place, String> {
    if let PlaceText::Named(name) = &text
        && let Some((count, what @ ("proxies" | "frontends"))) = name.split_once(' ')
    {
        let count = (count.parse().ok())
            .filter(|count| (1..=FRONTENDS_MAX).contains(count))
            .ok_or_else(|| format!("workload: at '{name}': accepted are 1 to {FRONTENDS_MAX}"))?;
        return Ok(match what {
            "proxies" => Place::Proxies(count),
            _ => Place::Frontends(count),
        });
    }
    Ok(match text {
        PlaceText::Named(name) => match name.as_str() {
            "leader" => Place::Leader,
            "all" => Place::All,
            "half" => Place::Half,
            "middle" => Place::Middle,
            "last" => Place::Last,
            other => {
                let known = [
                    "leader",
                    "all",
                    "half",
                    "middle",
                    "last",
                    "5 proxies",
                    "10 frontends",
                ];
                let remedy = suggest::remedy(other, &known);
                return Err(format!("workload: at '{other}': {remedy}"));
            }
        },
        PlaceText::Listed(ids) => {
            if let Some(id) = ids.iter().find(|id| usize::from(**id) >= replicas) {
                return Err(format!("workload: at: there is no replica {id}"));
            }
            Place::At(ids)
        }
    })
}

fn workload(text: WorkloadText, replicas: usize) -> Result<(Workload, Places), String> {
    let mut distribution = match text.distribution.as_deref() {
        None | Some("uniform") => Distribution::Uniform,
        Some("zipf") => Distribution::Zipf,
        Some(other) => {
            let remedy = suggest::remedy(other, &["uniform", "zipf"]);
            return Err(format!("workload: distribution '{other}': {remedy}"));
        }
    };
    if !(0.0..=1.0).contains(&text.reads) {
        return Err(format!(
            "workload: reads: {} is not a part of 1",
            text.reads
        ));
    }
    let mut mix = Mix::reads(text.reads);
    if let Some(name) = &text.ycsb {
        // The mixes of the Yahoo! Cloud Serving Benchmark, over keys that follow Zipf's law.
        (mix.read_ratio, mix.modify_ratio) = match name.as_str() {
            "a" => (0.5, 0.0),
            "b" => (0.95, 0.0),
            "c" => (1.0, 0.0),
            // Half reads, half read-modify-writes: each of those begins with a read.
            "f" => (1.0, 0.5),
            other => {
                let remedy = suggest::remedy(other, &["a", "b", "c", "f"]);
                return Err(format!("workload: ycsb '{other}': {remedy}"));
            }
        };
        if text.distribution.is_none() {
            distribution = Distribution::Zipf;
        }
    }
    let (mut common, mut places) = (Place::Leader, Places::new());
    match text.at {
        None => {}
        Some(AtText::One(text)) => common = place(text, replicas)?,
        Some(AtText::ByProtocol(texts)) => {
            for (protocol, text) in texts {
                quintet_protocols::find(base(&protocol))
                    .map_err(|error| format!("workload: at: {error}"))?;
                places.push((protocol, place(text, replicas)?));
            }
        }
    }
    if !(1..=1_000_000).contains(&text.clients) || text.keys == 0 {
        return Err("workload: clients: 1 to 1000000; keys: above 0".to_owned());
    }
    if !(1..=1_024).contains(&text.sharing) {
        return Err("workload: sharing: accepted are 1 to 1024".to_owned());
    }
    if !(1..=65_536).contains(&text.batch_requests) {
        return Err("workload: batch_requests: accepted are 1 to 65536".to_owned());
    }
    if !(4 << 10..=4 << 20).contains(&text.batch_bytes) {
        return Err("workload: batch_bytes: accepted are 4096 to 4194304".to_owned());
    }
    if text.rate.is_some_and(|rate| !(1.0..=1e8).contains(&rate)) {
        return Err("workload: rate: accepted are 1 to 100000000".to_owned());
    }
    let skew = match text.skew {
        None => None,
        Some(skew) if (0.0..=0.75).contains(&skew) => Some((1.0 / (1.0 - skew)).round() as u32),
        Some(skew) => {
            return Err(format!("workload: skew: {skew} is not between 0 and 0.75"));
        }
    };
    let workload = Workload {
        clients: text.clients,
        sharing: text.sharing,
        rate: text.rate,
        value_size: text.value_size,
        batch: text.batch,
        batch_bytes: text.batch_bytes,
        batch_requests: text.batch_requests,
        mix,
        keys: text.keys,
        distribution,
        place: common,
        level: if text.stale {
            Level::Stale
        } else {
            Level::Linearizable
        },
        remote: text.remote,
        skew,
    };
    Ok((workload, places))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Cell;

    const GOOD: &str = "name = 'x'\nabout = 'y'\nbackends = ['simulated']\n\
                        protocols = ['multipaxos']\nreplicas = 3\ndurability = 'disk'\n\
                        warmup = '100ms'\nmeasured = '1s'\n[workload]\nclients = 8\n";

    #[test]
    fn built_in_files_can_be_read() {
        for (name, text) in BUILT_IN {
            let scenario = parse(text, name).unwrap();
            assert_eq!(scenario.name, name);
            assert!(!scenario.cells(false).is_empty());
            assert!(scenario.cells(true).len() <= scenario.cells(false).len());
        }
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/scenarios");
        let mut files: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|file| file.unwrap().path().file_stem().unwrap().to_owned())
            .collect();
        files.sort();
        assert_eq!(files, BUILT_IN.map(|(name, _)| name), "all of them, sorted");
    }

    #[test]
    fn dependent_options_are_checked_together() {
        let options = "[options.chain_paxos]\nelection_timeout_ms = 5000\n";
        let pair = format!("{GOOD}{options}suspect_timeout_ms = 3000\n");
        assert_eq!(parse(&pair, "f").unwrap().options.len(), 2);
        let alone = pair.replace("election_timeout_ms = 5000\n", "");
        assert!(parse(&alone, "f").is_err());
    }

    #[test]
    fn clients_may_be_remote_with_weaker_reads_per_variant() {
        let text = GOOD.replace(
            "['multipaxos']",
            "['multipaxos', 'chain_paxos+reads=chain', 'chain_paxos+stale']",
        );
        let text = format!(
            "{text}at = {{ multipaxos = 'all', chain_paxos = 'middle' }}\n\
             [options.chain_paxos]\nreads = 'local'\nwindow = 8\n"
        );
        let scenario = parse(&text, "f").unwrap();
        let cells = scenario.cells(false);
        let seen = |cell: &Cell| (cell.workload.place.clone(), cell.workload.level);
        let seen: Vec<_> = cells.iter().map(seen).collect();
        let (all, middle, new) = (Place::All, Place::Middle, Level::Linearizable);
        assert_eq!(
            seen,
            [(all, new), (middle.clone(), new), (middle, Level::Stale)]
        );
        let last = |cell: &Cell| scenario.options_of(&cell.protocol).pop();
        let option = |name: &str, value: &str| Some((name.to_owned(), value.to_owned()));
        assert_eq!(last(&cells[0]), None);
        assert_eq!(last(&cells[1]), option("reads", "chain"));
        assert_eq!(last(&cells[2]), option("window", "8"));
        let wrong = text.replace("'middle'", "'midle'");
        let error = parse(&wrong, "f").unwrap_err().to_string();
        assert!(error.contains("did you mean 'middle'?"), "{error}");
    }

    #[test]
    fn earlier_name_of_backends_is_accepted() {
        let earlier = parse(&GOOD.replace("backends", "beds"), "f").unwrap();
        assert_eq!(earlier.backends, parse(GOOD, "f").unwrap().backends);
    }

    #[test]
    fn sweep_makes_a_cell_for_each_value_and_protocol() {
        let text = format!("{GOOD}[sweep]\nparameter = 'clients'\nvalues = [1, 8]\nquick = [8]\n");
        let scenario = parse(&text, "f").unwrap();
        let clients = |quick| -> Vec<usize> {
            let cells = scenario.cells(quick);
            cells.iter().map(|cell| cell.workload.clients).collect()
        };
        assert_eq!(clients(false), [1, 8]);
        assert_eq!(clients(true), [8]);
    }

    #[test]
    fn shards_make_cells_where_they_fit_and_clients_at_each_member() {
        let text = GOOD.replace("['multipaxos']", "['derecho', 'derecho/three']");
        let text = text.replace("'disk'", "'memory'").replace(
            "[workload]",
            "[shards]\nderecho = 'disjoint 2'\n'derecho/three' = 'overlapping 3'\n[workload]",
        );
        let text = format!("{text}[sweep]\nparameter = 'replicas'\nvalues = [2, 3, 4, 6]\n");
        let scenario = parse(&text, "f").unwrap();
        let cells = scenario.cells(false);
        let seen = |cell: &Cell| (cell.replicas, cell.workload.clients);
        let seen: Vec<_> = cells.iter().map(seen).collect();
        assert_eq!(seen, [(2, 16), (4, 32), (6, 48), (3, 72), (6, 144)]);
        assert!(cells.iter().all(|cell| cell.workload.place == Place::All));
        let options = scenario.options_in(&cells[1]);
        let layout = "s0 groups=1-2 pin=0,1|2,3 members=2 durability=memory";
        assert_eq!(options, [("layout".to_owned(), layout.to_owned())]);
        for (from, to, expected) in [
            ("disjoint 2", "two", "f:9: shards: 'two' is neither"),
            ("disjoint 2", "disjoint 0", "neither 'disjoint N'"),
            ("'derecho/three' =", "multipaxos =", "shards: "),
            ("['simulated']", "['processes']", "shards: simulated only"),
        ] {
            let error = parse(&text.replace(from, to), "f").unwrap_err();
            assert!(error.to_string().contains(expected), "{to}: {error}");
        }
    }

    #[test]
    fn mistakes_are_refused_with_their_line_and_what_was_meant() {
        for (from, to, expected) in [
            (
                "protocols",
                "protocls",
                "f:4: unknown key 'protocls' (did you mean 'protocols'?)",
            ),
            ("'simulated'", "'simulatde'", "did you mean 'simulated'?"),
            ("'multipaxos'", "'multipaxso'", "f:4: protocols:"),
            ("'disk'", "'tape'", "f:6: durability: 'tape'"),
            (
                "replicas = 3",
                "replicas = 3\ntransport = 'udp'",
                "transport: 'udp' is for real processes only",
            ),
            (
                "replicas = 3",
                "replicas = 3\ntransport = 'pigeon'",
                "transport: 'pigeon' is none of",
            ),
            ("'100ms'", "'100 parsecs'", "f:7:"),
            (
                "clients = 8",
                "client = 8",
                "f:10: unknown key 'client' (did you mean 'clients'?)",
            ),
            (
                "clients = 8",
                "distribution = 'zip'",
                "f:9: workload: distribution 'zip'",
            ),
            ("replicas = 3", "replicas = 'three'", "f:5:"),
            (
                "backends = ['simulated']",
                "backends = []",
                "backends and protocols",
            ),
            ("name = 'x'", "name = '../x'", "f:1: name: '../x'"),
            ("replicas = 3\n", "", "missing field `replicas`"),
        ] {
            let error = parse(&GOOD.replace(from, to), "f").unwrap_err();
            assert!(error.to_string().contains(expected), "{to}: {error}");
        }
        let error = load("wan-five-site").unwrap_err();
        assert!(
            error.to_string().contains("did you mean 'wan-five-sites'?"),
            "{error}"
        );
    }
}

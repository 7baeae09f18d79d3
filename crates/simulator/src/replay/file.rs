//! The file of a script: TOML that is written for reading, and read with the line of what is wrong.
//!
//! ```text
//!   format, protocol, seed …     what runs
//!   [expect]                     how it ended when it was written
//!   [limits]                     when it heals and ends
//!   [world.*]                    how links, disks and clients are made
//!   [[fault]] [[turn]]           what happens
//!   [choices]                    how chance fell elsewhere
//! ```

use super::{Case, Fault};
use crate::{
    Campaign, FaultSet, SeedReport,
    configuration::Odd,
    decisions::{Choices, Does, Limits, Scope, Site, TurnAt},
    disk::DiskProfile,
    drawing::Mix,
    event::EVENTS_MAX,
    faults::Injection,
    network::{LinkProfile, Transport},
    world::Shape,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};
use toml::Spanned;

/// The version of the format.
const FORMAT: u32 = 1;
/// Fields of faults that are times.
const TIMES: [&str; 4] = ["at", "duration", "until", "lasts"];
const REPLICAS_MAX: usize = 128;
/// The name of a stall where a property would stand.
const STALL: &str = "stall";

/// An error of a replay file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ReplayError {
    /// The line, from 1.
    pub line: usize,
    /// The error.
    pub what: String,
}

/// How a script ended when it was written down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    /// The property that did not hold, or `stall`.
    pub property: String,
    /// The observation.
    #[serde(default)]
    pub what: String,
    /// The hash over all that happened.
    pub trace: String,
}

impl Expect {
    /// The outcome of a run.
    pub fn of(report: &SeedReport) -> Self {
        let (property, what) = match (&report.violation, &report.stall) {
            (Some(violation), _) => (violation.property.to_string(), violation.what.clone()),
            (None, Some(stall)) => (STALL.to_string(), stall.clone()),
            (None, None) => (String::new(), String::new()),
        };
        Self {
            property,
            what,
            trace: format!("{:016x}", report.trace_hash),
        }
    }
}

/// A time as text: `312.004ms`.
fn time_text(nanos: u64) -> String {
    let (whole, rest) = (nanos / 1_000_000, nanos % 1_000_000);
    let rest = format!("{rest:06}");
    match rest.trim_end_matches('0') {
        "" => format!("{whole}ms"),
        digits => format!("{whole}.{digits}ms"),
    }
}

fn time(text: &str) -> Result<u64, String> {
    let refuse = || format!("'{text}' is not a time like \"312.5ms\" or \"2s\"");
    let trimmed = text.trim();
    let (number, unit) = match trimmed.strip_suffix("ms") {
        Some(number) => (number, 1_000_000_u64),
        None => (trimmed.strip_suffix('s').ok_or_else(refuse)?, 1_000_000_000),
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = unit.ilog10() as usize;
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !plain(whole) || !plain(part) || part.len() > digits {
        return Err(refuse());
    }
    let part: u64 = format!("{part:0<digits$}").parse().map_err(|_| refuse())?;
    (whole.parse::<u64>().ok())
        .and_then(|whole| whole.checked_mul(unit)?.checked_add(part))
        .ok_or_else(refuse)
}

/// A whole number that TOML's own may be too short for.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "toml::Value")]
struct Number(u64);

impl TryFrom<toml::Value> for Number {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let number = match &value {
            toml::Value::Integer(number) => u64::try_from(*number).ok(),
            toml::Value::String(text) => text.parse().ok(),
            _ => None,
        };
        number
            .map(Self)
            .ok_or_else(|| format!("{value} is not a whole number"))
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Moment(u64);

impl TryFrom<String> for Moment {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        time(&text).map(Self)
    }
}

/// One decision: `network.rs:186#14=31000`.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Choice {
    site: Site,
    nth: u32,
    value: u64,
}

impl TryFrom<String> for Choice {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts = || {
            let (name, value) = text.rsplit_once('=')?;
            let (site, nth) = name.rsplit_once('#')?;
            Some(Self {
                site: site.into(),
                nth: nth.parse().ok()?,
                value: value.parse().ok()?,
            })
        };
        parts().ok_or_else(|| format!("'{text}' is not a choice like \"network.rs:186#14=31000\""))
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsFile {
    heal: Option<Moment>,
    end: Option<Moment>,
    commits: Option<u64>,
    events: Option<u64>,
    #[serde(default)]
    #[serde(alias = "clients_go_on")]
    clients_continue: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultFile {
    number: u16,
    #[serde(alias = "strike")]
    inject: Spanned<toml::Table>,
    #[serde(default)]
    choices: Vec<Choice>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TurnFile {
    client: u16,
    turn: u32,
    at: Moment,
    /// For people.
    #[serde(default)]
    does: Vec<String>,
    #[serde(default)]
    choices: Vec<Choice>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: Spanned<u32>,
    #[serde(default, rename = "quintet")]
    _quintet: String,
    protocol: String,
    replicas: Spanned<usize>,
    seed: Number,
    durability: Spanned<String>,
    transport: Transport,
    operations: u64,
    faults: Spanned<String>,
    #[serde(default)]
    options: BTreeMap<String, String>,
    #[serde(alias = "plant")]
    bug: Option<String>,
    #[serde(default)]
    drawn: Vec<String>,
    expect: Expect,
    limits: LimitsFile,
    #[serde(default)]
    world: BTreeMap<String, Spanned<toml::Value>>,
    #[serde(default)]
    fault: Vec<FaultFile>,
    #[serde(default)]
    turn: Vec<TurnFile>,
    #[serde(default)]
    choices: BTreeMap<Spanned<String>, Vec<Choice>>,
}

fn line_at(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    1 + before.filter(|byte| **byte == b'\n').count()
}

struct Reader<'a>(&'a str);

impl Reader<'_> {
    fn wrong(&self, offset: usize, what: impl ToString) -> ReplayError {
        ReplayError {
            line: line_at(self.0, offset),
            what: what.to_string(),
        }
    }

    fn is<T: DeserializeOwned>(&self, value: &Spanned<toml::Value>) -> Result<(), ReplayError> {
        let read = value.get_ref().clone().try_into::<T>();
        read.map_err(|error| self.wrong(value.span().start, error.message()))?;
        Ok(())
    }

    fn inject(&self, listed: &Spanned<toml::Table>) -> Result<toml::Table, ReplayError> {
        let at = listed.span().start;
        let mut inject = listed.get_ref().clone();
        for name in TIMES {
            if let Some(toml::Value::String(text)) = inject.get(name) {
                let nanos = time(text).map_err(|what| self.wrong(at, what))?;
                let nanos = i64::try_from(nanos).map_err(|what| self.wrong(at, what))?;
                inject.insert(name.to_string(), nanos.into());
            }
        }
        let read: Injection = (inject.clone().try_into())
            .map_err(|error: toml::de::Error| self.wrong(at, error.message()))?;
        // A field that the fault does not have would be without effect.
        if let Ok(known) = toml::Table::try_from(read)
            && let Some(name) = inject.keys().find(|name| !known.contains_key(*name))
        {
            return Err(self.wrong(at, format!("a fault has no '{name}'")));
        }
        Ok(inject)
    }
}

fn insert(choices: &mut Choices, scope: Scope, listed: Vec<Choice>) {
    for Choice { site, nth, value } in listed {
        let sites = choices.entry(scope).or_default();
        sites.entry(site).or_default().insert(nth, value);
    }
}

impl Case {
    /// Reads a script.
    ///
    /// # Errors
    /// When it is not one; with the line.
    pub fn parse(text: &str) -> Result<(Self, Expect), ReplayError> {
        let reader = Reader(text);
        let file: File = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            reader.wrong(offset, error.message())
        })?;
        if *file.format.get_ref() != FORMAT {
            let what = format!(
                "format {} is not known here: this version reads format {FORMAT}",
                file.format.get_ref()
            );
            return Err(reader.wrong(file.format.span().start, what));
        }
        let replicas = *file.replicas.get_ref();
        if replicas == 0 || replicas > REPLICAS_MAX {
            let what = format!("{replicas} replicas: 1 to {REPLICAS_MAX} are possible");
            return Err(reader.wrong(file.replicas.span().start, what));
        }
        let durability = (file.durability.get_ref().parse())
            .map_err(|what: &str| reader.wrong(file.durability.span().start, what))?;
        let faults: FaultSet = (file.faults.get_ref().parse())
            .map_err(|what: String| reader.wrong(file.faults.span().start, what))?;
        let mut choices = Choices::new();
        for (name, listed) in file.choices {
            let scope = (name.get_ref().parse())
                .map_err(|what: String| reader.wrong(name.span().start, what))?;
            insert(&mut choices, scope, listed);
        }
        let mut injections = Vec::with_capacity(file.fault.len());
        for fault in file.fault {
            injections.push(Fault {
                number: fault.number,
                inject: reader.inject(&fault.inject)?,
            });
            insert(&mut choices, Scope::Fault(fault.number), fault.choices);
        }
        let mut turns = Vec::with_capacity(file.turn.len());
        let mut does = Does::new();
        for turn in file.turn {
            does.insert((turn.client, turn.turn), turn.does);
            turns.push(TurnAt {
                client: turn.client,
                turn: turn.turn,
                at: turn.at.0,
            });
            insert(
                &mut choices,
                Scope::Turn(turn.client, turn.turn),
                turn.choices,
            );
        }
        for (name, value) in &file.world {
            match name.as_str() {
                "shape" => reader.is::<Shape>(value)?,
                "links" => reader.is::<LinkProfile>(value)?,
                "disk" => reader.is::<DiskProfile>(value)?,
                "workload" => reader.is::<Mix>(value)?,
                "configuration" => reader.is::<Odd>(value)?,
                _ => {}
            }
        }
        let seed = file.seed.0;
        let limits = Limits::default();
        let case = Self {
            campaign: Campaign {
                protocol: file.protocol,
                replicas,
                seeds: seed..seed.saturating_add(1),
                faults,
                durability: Some(durability),
                transport: Some(file.transport),
                options: file.options.into_iter().collect(),
                operations: file.operations,
                // The workload's profile says it.
                machine: None,
                bug: file.bug,
            },
            limits: Limits {
                heal_at: Some(file.limits.heal.map_or(u64::MAX, |at| at.0)),
                end_at: file.limits.end.map_or(u64::MAX, |at| at.0),
                commits_min: file.limits.commits.unwrap_or(limits.commits_min),
                events_max: file.limits.events.unwrap_or(EVENTS_MAX).min(EVENTS_MAX),
            },
            continues: file.limits.clients_continue,
            faults: injections,
            turns,
            does,
            choices: Arc::new(choices),
            drawn: file.drawn.into_iter().map(Site::from).collect(),
            profiles: (file.world.into_iter())
                .map(|(name, value)| (name, value.into_inner()))
                .collect(),
        };
        Ok((case, file.expect))
    }

    fn choices_of(&self, scope: Scope) -> Vec<String> {
        let sites = self.choices.get(&scope).into_iter().flatten();
        sites
            .flat_map(|(site, values)| {
                (values.iter()).map(move |(nth, value)| format!("{site}#{nth}={value}"))
            })
            .collect()
    }

    /// The script as a file that `command` replays.
    pub fn write(&self, expect: &Expect, command: &str) -> String {
        let mut out = String::new();
        self.write_head(&mut out, expect, command);
        self.write_world(&mut out);
        for fault in &self.faults {
            let mut inject = fault.inject.clone();
            for name in TIMES {
                if let Some(toml::Value::Integer(nanos)) = inject.get(name) {
                    inject.insert(name.to_string(), time_text(*nanos as u64).into());
                }
            }
            line(
                &mut out,
                format_args!("\n[[fault]]\nnumber = {}", fault.number),
            );
            line(
                &mut out,
                format_args!("inject = {}", toml::Value::Table(inject)),
            );
            let choices = self.choices_of(Scope::Fault(fault.number));
            write_list(&mut out, "choices", &choices);
        }
        for turn in &self.turns {
            let (client, number) = (turn.client, turn.turn);
            line(
                &mut out,
                format_args!(
                    "\n[[turn]]\nclient = {client}\nturn = {number}\nat = {}",
                    text(&time_text(turn.at))
                ),
            );
            let does = self.does.get(&(client, number));
            write_list(&mut out, "does", does.map_or(&[], Vec::as_slice));
            let choices = self.choices_of(Scope::Turn(client, number));
            write_list(&mut out, "choices", &choices);
        }
        let apart = |scope: &Scope| matches!(scope, Scope::Fault(_) | Scope::Turn(..));
        let others: Vec<Scope> = self.choices.keys().copied().filter(|s| !apart(s)).collect();
        if !others.is_empty() {
            line(&mut out, format_args!("\n[choices]"));
        }
        for scope in others {
            let name = text(&scope.to_string());
            write_list(&mut out, &name, &self.choices_of(scope));
        }
        out
    }

    fn write_head(&self, out: &mut String, expect: &Expect, command: &str) {
        let campaign = &self.campaign;
        let number = |number: u64| match i64::try_from(number) {
            Ok(number) => number.to_string(),
            Err(_) => text(&number.to_string()),
        };
        line(
            out,
            format_args!(
                "# {}: {}\n# Replay it: {command}\n# What is not listed here does not happen; see \
                 docs/design/replay-scripts.md.\n",
                expect.property,
                expect.what.replace(['\n', '\r'], " ")
            ),
        );
        line(out, format_args!("format = {FORMAT}"));
        line(
            out,
            format_args!("quintet = {}", text(env!("CARGO_PKG_VERSION"))),
        );
        line(out, format_args!("protocol = {}", text(&campaign.protocol)));
        line(out, format_args!("replicas = {}", campaign.replicas));
        line(out, format_args!("seed = {}", number(self.seed())));
        let durability = campaign.durability.unwrap_or_default();
        line(
            out,
            format_args!("durability = {}", text(durability.name())),
        );
        let transport = campaign.transport.unwrap_or_default();
        line(out, format_args!("transport = {}", text(transport.name())));
        line(out, format_args!("operations = {}", campaign.operations));
        line(
            out,
            format_args!("faults = {}", text(&campaign.faults.to_string())),
        );
        if let Some(bug) = &campaign.bug {
            line(out, format_args!("bug = {}", text(bug)));
        }
        let drawn: Vec<String> = self.drawn.iter().map(ToString::to_string).collect();
        write_list(out, "drawn", &drawn);
        line(
            out,
            format_args!(
                "\n[expect]\nproperty = {}\nwhat = {}\ntrace = {}",
                text(&expect.property),
                text(&expect.what),
                text(&expect.trace)
            ),
        );
        line(out, format_args!("\n[limits]"));
        let Limits {
            heal_at,
            end_at,
            commits_min,
            events_max,
        } = self.limits;
        for (name, at) in [("heal", heal_at.unwrap_or(u64::MAX)), ("end", end_at)] {
            if at != u64::MAX {
                line(out, format_args!("{name} = {}", text(&time_text(at))));
            }
        }
        line(out, format_args!("commits = {commits_min}"));
        line(out, format_args!("events = {events_max}"));
        if self.continues {
            line(out, format_args!("clients_continue = true"));
        }
        if !campaign.options.is_empty() {
            line(out, format_args!("\n[options]"));
            for (name, value) in &campaign.options {
                line(out, format_args!("{} = {}", text(name), text(value)));
            }
        }
    }

    fn write_world(&self, out: &mut String) {
        for (name, value) in self.profiles.iter().filter(|(name, _)| *name != "plan") {
            match value {
                toml::Value::Table(table) => {
                    line(out, format_args!("\n[world.{}]", text(name)));
                    for (field, value) in table {
                        line(out, format_args!("{} = {value}", text(field)));
                    }
                }
                other => line(out, format_args!("\n[world]\n{} = {other}", text(name))),
            }
        }
    }
}

/// A string as TOML has it; plain words as keys need no quotes.
fn text(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
}

fn write_list(out: &mut String, name: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    let items: Vec<String> = items.iter().map(|item| text(item)).collect();
    let whole = items.join(", ");
    if whole.len() < 90 {
        return line(out, format_args!("{name} = [{whole}]"));
    }
    line(out, format_args!("{name} = ["));
    for item in items {
        line(out, format_args!("    {item},"));
    }
    line(out, format_args!("]"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back() {
        for nanos in [0, 1, 999_999, 1_000_000, 312_004_000, u64::MAX] {
            assert_eq!(time(&time_text(nanos)), Ok(nanos));
        }
        assert_eq!(time("2s"), Ok(2_000_000_000));
        assert_eq!(time("1.5s"), Ok(1_500_000_000));
        for wrong in [
            "",
            "ms",
            "5",
            "-1ms",
            "1.0000001ms",
            "9e9ms",
            "99999999999999999999s",
        ] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}

//! One run of a world as a script that a person can read and edit, and that runs again.
//!
//! ```text
//!   seed ──► noted run ──► Case: faults, turns of clients, choices, limits ──► file (TOML)
//!                           ▲ │                                                  │
//!            edited, shrunk ┘ └──► the same world again, bit for bit ◄───────────┘
//! ```
//!
//! An event that a script does not mention does not happen: no fault, no turn of a client. A
//! decision that it does not choose takes its calm value: no loss, the least delay, the first of
//! several. The format is described in `docs/design/replay-scripts.md`.

use crate::{
    campaign::{Campaign, CampaignError, SeedReport, report, run_world},
    decisions::{Choices, Does, Limits, Made, Noting, Script as Decided, TurnAt},
    picture::Scene,
};
use quintet_replica::Entry;
use std::{collections::BTreeSet, sync::Arc};

mod file;

pub(crate) use file::Expect;
pub use file::ReplayError;

/// A fault of a script.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fault {
    /// Its number in the plan that it was drawn in: its choices go by that.
    pub number: u16,
    /// The plan's entry for it.
    pub inject: toml::Table,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// The case to run. Its seeds are one.
    pub campaign: Campaign,
    pub limits: Limits,
    pub continues: bool,
    pub faults: Vec<Fault>,
    pub turns: Vec<TurnAt>,
    pub does: Does,
    pub choices: Arc<Choices>,
    /// Sites at which what is not listed is drawn from the seed.
    pub drawn: BTreeSet<crate::decisions::Site>,
    pub profiles: std::collections::BTreeMap<String, toml::Value>,
}

/// The result of a run of a case.
pub(crate) struct Outcome {
    pub report: SeedReport,
    pub made: Made,
    /// When the world ended.
    pub ended: u64,
    /// When the second phase began, if it did.
    pub healed: Option<u64>,
    pub scene: Option<Scene>,
}

fn run(setup: crate::world::WorldSetup) -> Outcome {
    let mut world = run_world(setup);
    let decisions = world.decisions.clone();
    let made = decisions.map_or_else(Made::default, |decisions| {
        let mut decisions = decisions
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        decisions.take()
    });
    let (ended, healed) = (world.now, world.healed_at);
    let scene = world.trace.scene.take();
    Outcome {
        report: report(world),
        made,
        ended,
        healed: (healed > 0).then_some(healed),
        scene,
    }
}

impl Case {
    /// Runs a seed of a campaign and writes down all that chance decided.
    pub fn record(campaign: &Campaign, entry: Entry, seed: u64) -> (Self, Outcome) {
        let mut setup = campaign.setup(entry, seed, false);
        setup.noting = Noting::Yes;
        let (durability, transport) = (setup.durability, setup.transport);
        let outcome = run(setup);
        let campaign = Campaign {
            seeds: seed..seed.saturating_add(1),
            durability: Some(durability),
            transport: Some(transport),
            ..campaign.clone()
        };
        let made = outcome.made.clone();
        let injections = (made.profiles.get("plan"))
            .and_then(|plan| plan.get("injections")?.as_array().cloned())
            .unwrap_or_default();
        let faults = (injections.into_iter().enumerate())
            .filter_map(|(number, inject)| match inject {
                toml::Value::Table(inject) => Some(Fault {
                    number: number as u16,
                    inject,
                }),
                _ => None,
            })
            .collect();
        let case = Self {
            campaign,
            limits: Limits {
                // A world that had not come to its second phase never does.
                heal_at: Some(outcome.healed.unwrap_or(u64::MAX)),
                end_at: outcome.ended,
                events_max: outcome.report.events * 2 + 20_000,
                ..Limits::default()
            },
            continues: false,
            faults,
            turns: made.turns,
            does: made.does,
            choices: Arc::new(made.choices),
            drawn: BTreeSet::new(),
            profiles: made.profiles,
        };
        (case, outcome)
    }

    pub fn seed(&self) -> u64 {
        self.campaign.seeds.start
    }

    /// The plan of faults as the world reads it.
    fn plan(&self) -> toml::Value {
        let mut plan = match self.profiles.get("plan") {
            Some(toml::Value::Table(plan)) => plan.clone(),
            _ => toml::Table::new(),
        };
        let mut kinds: Vec<toml::Value> = Vec::new();
        for kind in self
            .faults
            .iter()
            .filter_map(|fault| fault.inject.get("kind"))
        {
            if !kinds.contains(kind) {
                kinds.push(kind.clone());
            }
        }
        let injections = self.faults.iter().map(|fault| fault.inject.clone().into());
        plan.insert("kinds".into(), kinds.into());
        plan.insert(
            "injections".into(),
            toml::Value::Array(injections.collect()),
        );
        plan.into()
    }

    /// Runs the case.
    pub fn run(&self, entry: Entry, watched: bool) -> Outcome {
        let mut profiles = self.profiles.clone();
        profiles.insert("plan".into(), self.plan());
        let script = Decided {
            seed: self.seed(),
            profiles,
            choices: self.choices.clone(),
            drawn: self.drawn.clone(),
            turns: self.turns.clone(),
            faults: self.faults.iter().map(|fault| fault.number).collect(),
            continues: self.continues,
        };
        let mut setup = self.campaign.setup(entry, self.seed(), watched);
        setup.picture = watched;
        setup.noting = Noting::Script(Arc::new(script));
        setup.limits = self.limits;
        run(setup)
    }
}

/// A world as a script: every fault, every turn of a client, every choice that is not the calm
/// one.
#[derive(Clone, Debug)]
pub struct Script {
    pub(crate) case: Case,
    pub(crate) expect: Expect,
}

/// The result of a script's run.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The run, checked.
    pub report: SeedReport,
    /// Whether it went exactly as when the script was written.
    pub as_written: bool,
    /// The run as a picture: a page of HTML. Empty when it was not watched.
    pub page: String,
}

impl Script {
    /// Runs a seed of a campaign and writes it down whole.
    ///
    /// # Errors
    /// When the campaign is invalid.
    pub fn record(campaign: &Campaign, seed: u64) -> Result<(Self, SeedReport), CampaignError> {
        let entry = campaign.check()?;
        let (case, outcome) = Case::record(campaign, entry, seed);
        let expect = Expect::of(&outcome.report);
        Ok((Self { case, expect }, outcome.report))
    }

    /// Reads a script.
    ///
    /// # Errors
    /// When the text is not one; with the line.
    pub fn parse(text: &str) -> Result<Self, ReplayError> {
        let (case, expect) = Case::parse(text)?;
        Ok(Self { case, expect })
    }

    /// The script as a file that `command` replays.
    #[must_use]
    pub fn to_text(&self, command: &str) -> String {
        self.case.write(&self.expect, command)
    }

    /// The campaign to run.
    #[must_use]
    pub const fn campaign(&self) -> &Campaign {
        &self.case.campaign
    }

    /// The property that did not hold when the script was written; empty when all held.
    #[must_use]
    pub fn property(&self) -> &str {
        &self.expect.property
    }

    /// How many faults, how many operations of clients, how many other choices it lists.
    #[must_use]
    pub fn size(&self) -> Size {
        self.case.size()
    }

    /// Runs the script; `watched` for readable lines and a picture.
    ///
    /// # Errors
    /// When its protocol or an option of it is not known here.
    pub fn run(&self, watched: bool) -> Result<Replayed, CampaignError> {
        let entry = self.case.campaign.check()?;
        Ok(self.run_entry(entry, watched))
    }

    pub(crate) fn run_entry(&self, entry: Entry, watched: bool) -> Replayed {
        let outcome = self.case.run(entry, watched);
        let got = Expect::of(&outcome.report);
        let page = outcome.scene.map_or_else(String::new, |scene| {
            let campaign = &self.case.campaign;
            let ended = match got.property.as_str() {
                "" => "nothing was violated".to_string(),
                property => format!("{property}: {}", got.what),
            };
            let size = self.size();
            let facts = [
                ("found", ended),
                ("seed", self.case.seed().to_string()),
                (
                    "script",
                    format!(
                        "replicas: {}, faults: {}, operations of clients: {}, other choices: {}",
                        size.replicas, size.faults, size.operations, size.choices
                    ),
                ),
            ];
            let title = format!("{}, seed {}", campaign.protocol, self.case.seed());
            scene.page(&title, &facts, &outcome.report.lines)
        });
        Replayed {
            as_written: got == self.expect,
            report: outcome.report,
            page,
        }
    }
}

/// How much a script lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Size {
    /// Replicas.
    pub replicas: usize,
    /// Injections of faults.
    pub faults: usize,
    /// Operations of clients.
    pub operations: usize,
    /// Choices that are not the calm one.
    pub choices: usize,
    /// Events in the run; 0 when it is not known.
    pub events: u64,
}

impl Case {
    pub fn size(&self) -> Size {
        let listed = |sites: &std::collections::BTreeMap<_, std::collections::BTreeMap<_, _>>| {
            sites.values().map(|values| values.len()).sum::<usize>()
        };
        let invoked = |turn: &TurnAt| {
            let does = self.does.get(&(turn.client, turn.turn));
            does.map_or(1, |does| does.len().max(1))
        };
        Size {
            replicas: self.campaign.replicas,
            faults: self.faults.len(),
            operations: self.turns.iter().map(invoked).sum(),
            choices: self.choices.values().map(listed).sum(),
            events: 0,
        }
    }
}

#[cfg(test)]
mod tests;

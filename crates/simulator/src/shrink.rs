//! From a seed that fails to a script that fails with less: delta debugging over whole runs.
//!
//! ```text
//!   noted run ──► best ──► without some faults, turns, choices, replicas, time ──► run
//!                  ▲                                                               │
//!                  └──── fails in the same property: this is the best now ◄────────┘
//!                        otherwise: the next idea; none left, or time over: done
//! ```
//!
//! Parts that a run did not use are left out of the next: faults after its end, turns that never
//! came, choices that were never requested.

use crate::{
    Campaign, CampaignError,
    clock::MILLISECOND,
    decisions::{Choices, Scope, Site},
    replay::{Case, Expect, Outcome, Script, Size},
};
use quintet_replica::Entry;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// Single choices are tried one by one when there are at most that many.
const CHOICES_SINGLE_MAX: usize = 3000;
/// More runs than this are not spent on leaving out one kind of thing at a time.
const SWEEP_MAX: u64 = 2500;
/// Values that are made smaller, and by how many halvings.
const VALUES_MAX: usize = 200;
const HALVINGS_MAX: usize = 4;
/// Whose delays are made small. Other numbers would change what happens and explain nothing.
const EVEN: [&str; 2] = ["links", "disk"];
const DELAYS: [&str; 3] = ["delay", "jitter", "sync"];
/// Pauses of the script longer than this are cut.
const GAP_MAX: u64 = 20 * MILLISECOND;
const GAP_LEFT: u64 = 5 * MILLISECOND;

/// How far shrinking has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShrinkProgress {
    /// Runs tried.
    pub tries: u64,
    /// The size of the seed.
    pub before: Size,
    /// The size of the best script.
    pub now: Size,
    /// The part that is being left out.
    pub stage: &'static str,
}

/// A script that fails as its seed did, with less.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// The script.
    pub script: Script,
    /// The size of the seed.
    pub before: Size,
    /// The size of the script.
    pub after: Size,
    /// Runs tried.
    pub tries: u64,
    /// Whether nothing more could be left out; otherwise time was over.
    pub minimal: bool,
}

/// Shrinks a seed of a campaign for at most `budget`; nothing when the seed does not fail.
///
/// # Errors
/// When the campaign is invalid.
pub fn shrink(
    campaign: &Campaign,
    seed: u64,
    budget: Duration,
    mut progress: impl FnMut(ShrinkProgress),
) -> Result<Option<Shrunk>, CampaignError> {
    let entry = campaign.check()?;
    Ok(shrink_entry(campaign, entry, seed, budget, &mut progress))
}

pub(crate) fn shrink_entry(
    campaign: &Campaign,
    entry: Entry,
    seed: u64,
    budget: Duration,
    progress: &mut dyn FnMut(ShrinkProgress),
) -> Option<Shrunk> {
    let (case, outcome) = Case::record(campaign, entry, seed);
    let expect = Expect::of(&outcome.report);
    if expect.property.is_empty() {
        return None;
    }
    let before = Size {
        events: outcome.report.events,
        ..case.size()
    };
    let mut shrinker = Shrinker {
        entry,
        expect: expect.clone(),
        events: outcome.report.events,
        best: used(case, &outcome),
        before,
        tries: 0,
        deadline: Instant::now() + budget,
        stage: "",
        progress,
    };
    shrinker.run();
    let minimal = !shrinker.is_late();
    let (mut case, tries) = (shrinker.best, shrinker.tries);
    // The file holds the result of its own run.
    let last = case.run(entry, false);
    let expect = Expect::of(&last.report);
    case.does.extend(last.made.does);
    let after = Size {
        events: last.report.events,
        ..case.size()
    };
    Some(Shrunk {
        script: Script { case, expect },
        before,
        after,
        tries,
        minimal,
    })
}

/// The case without what its run did not use.
fn used(mut case: Case, outcome: &Outcome) -> Case {
    let made = &outcome.made;
    case.turns.clone_from(&made.turns);
    case.does.clone_from(&made.does);
    case.choices = Arc::new(made.choices.clone());
    (case.faults).retain(|fault| made.injected.contains(&fault.number));
    case.limits.end_at = outcome.ended;
    case.limits.heal_at = Some(outcome.healed.unwrap_or(u64::MAX));
    case.limits.events_max = outcome.report.events * 2 + 20_000;
    case
}

/// One choice.
type Name = (Scope, Site, u32);

fn names(choices: &Choices) -> Vec<Name> {
    let mut names = Vec::new();
    for (scope, sites) in choices {
        for (site, values) in sites {
            names.extend(values.keys().map(|nth| (*scope, site.clone(), *nth)));
        }
    }
    names
}

fn remove(choices: &mut Choices, mut is_gone: impl FnMut(Scope, &Site, u32) -> bool) {
    for (scope, sites) in choices.iter_mut() {
        for (site, values) in sites.iter_mut() {
            values.retain(|nth, _| !is_gone(*scope, site, *nth));
        }
        sites.retain(|_, values| !values.is_empty());
    }
    choices.retain(|_, sites| !sites.is_empty());
}

struct Shrinker<'a> {
    entry: Entry,
    expect: Expect,
    events: u64,
    best: Case,
    before: Size,
    tries: u64,
    deadline: Instant,
    stage: &'static str,
    progress: &'a mut dyn FnMut(ShrinkProgress),
}

impl Shrinker<'_> {
    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    fn is_stall(&self) -> bool {
        self.expect.property == "stall"
    }

    /// Whether a run failed as the seed did.
    fn is_same(&self, outcome: &Outcome) -> bool {
        let got = Expect::of(&outcome.report);
        if got.property != self.expect.property {
            return false;
        }
        let first = |what: &str| what.lines().next().unwrap_or_default().to_string();
        match got.property.as_str() {
            // The place in the code.
            "panic" => first(&got.what) == first(&self.expect.what),
            "stall" => {
                got.what.starts_with("more than") == self.expect.what.starts_with("more than")
            }
            _ => true,
        }
    }

    /// Runs a candidate; it becomes the best when it fails in the same way.
    fn attempt(&mut self, candidate: Case) -> bool {
        if self.is_late() {
            return false;
        }
        self.tries += 1;
        let outcome = candidate.run(self.entry, false);
        let same = self.is_same(&outcome);
        if same {
            self.events = outcome.report.events;
            self.best = used(candidate, &outcome);
        }
        (self.progress)(ShrinkProgress {
            tries: self.tries,
            before: self.before,
            now: Size {
                events: self.events,
                ..self.best.size()
            },
            stage: self.stage,
        });
        same
    }

    fn run(&mut self) {
        if self.is_stall() {
            // A cluster whose clients fell silent would seem to stall, too.
            let mut candidate = self.best.clone();
            candidate.continues = true;
            if !self.attempt(candidate) {
                return;
            }
        }
        // Steps that need few runs come first, until they bring nothing more; then choice by
        // choice.
        for round in 0..12 {
            let before = self.measure();
            self.limits();
            self.replicas();
            self.sites(round == 0);
            self.faults();
            self.clients();
            self.turns();
            self.times();
            self.gaps();
            self.profiles();
            if before == self.measure() {
                self.single_choices();
                self.values();
                if before == self.measure() {
                    return;
                }
            }
            if self.is_late() {
                return;
            }
        }
    }

    /// The measure that must get smaller from round to round, or shrinking is over.
    fn measure(&self) -> (Size, u64) {
        (self.best.size(), self.best.limits.end_at)
    }

    fn limits(&mut self) {
        self.stage = "time";
        if !self.is_stall() && self.best.limits.commits_min > 0 {
            let mut candidate = self.best.clone();
            candidate.limits.commits_min = 0;
            self.attempt(candidate);
        }
        // Checked earlier, against the observations up to then.
        if !self.is_stall() {
            for part in [2, 4, 8] {
                let end = self.best.limits.end_at;
                let mut candidate = self.best.clone();
                candidate.limits.end_at = end - end / part;
                self.attempt(candidate);
            }
        }
    }

    fn replicas(&mut self) {
        self.stage = "replicas";
        let least = self.entry.info.replicas_min.max(1);
        for replicas in least..self.best.campaign.replicas {
            let mut candidate = self.best.clone();
            candidate.campaign.replicas = replicas;
            if self.attempt(candidate) {
                return;
            }
        }
    }

    /// Leaves out what can be left out, in runs of halving length.
    fn sweep<K: Clone + Ord>(
        &mut self,
        keys: impl Fn(&Case) -> Vec<K>,
        without: impl Fn(&mut Case, &BTreeSet<K>),
    ) {
        let mut size = keys(&self.best).len();
        let last = self.tries + SWEEP_MAX;
        while size > 0 && self.tries < last {
            let mut at = 0;
            loop {
                let all = keys(&self.best);
                if at >= all.len() || self.tries >= last || self.is_late() {
                    break;
                }
                let some: BTreeSet<K> = all.iter().skip(at).take(size).cloned().collect();
                let mut candidate = self.best.clone();
                without(&mut candidate, &some);
                if !self.attempt(candidate) || keys(&self.best).len() >= all.len() {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    fn faults(&mut self) {
        self.stage = "faults";
        self.sweep(
            |case| case.faults.iter().map(|fault| fault.number).collect(),
            |case, some| case.faults.retain(|fault| !some.contains(&fault.number)),
        );
    }

    fn clients(&mut self) {
        self.stage = "clients";
        self.sweep(
            |case| {
                let clients: BTreeSet<u16> = case.turns.iter().map(|turn| turn.client).collect();
                clients.into_iter().collect()
            },
            |case, some| case.turns.retain(|turn| !some.contains(&turn.client)),
        );
    }

    fn turns(&mut self) {
        self.stage = "operations";
        self.sweep(
            |case| case.turns.clone(),
            |case, some| case.turns.retain(|turn| !some.contains(turn)),
        );
    }

    /// Whole sites take their calm value; or, where that hides the failure, are drawn again.
    fn sites(&mut self, draw: bool) {
        self.stage = "chance by kind";
        let all = |case: &Case| -> Vec<Site> {
            let sites: BTreeSet<Site> = (case.choices.values())
                .flat_map(|sites| sites.keys().cloned())
                .collect();
            sites.into_iter().collect()
        };
        let gone = |case: &mut Case, some: &BTreeSet<Site>| {
            remove(Arc::make_mut(&mut case.choices), |_, site, _| {
                some.contains(site)
            });
        };
        self.sweep(all, gone);
        for site in self.best.drawn.clone() {
            let mut candidate = self.best.clone();
            candidate.drawn.remove(&site);
            self.attempt(candidate);
        }
        self.stage = "chance by whom";
        self.sweep(
            |case| {
                let mut keys = Vec::new();
                for (scope, sites) in case.choices.iter() {
                    keys.extend(sites.keys().map(|site| (*scope, site.clone())));
                }
                keys
            },
            |case, some| {
                let choices = Arc::make_mut(&mut case.choices);
                remove(choices, |scope, site, _| {
                    some.contains(&(scope, site.clone()))
                });
            },
        );
        if !draw {
            return;
        }
        // Choices that are left in great numbers may do as well with another value.
        let mut counts: BTreeMap<Site, usize> = BTreeMap::new();
        for (_, site, _) in names(&self.best.choices) {
            *counts.entry(site).or_default() += 1;
        }
        for (site, _) in counts.into_iter().filter(|(_, count)| *count > 100) {
            let mut candidate = self.best.clone();
            gone(&mut candidate, &BTreeSet::from([site.clone()]));
            candidate.drawn.insert(site);
            self.attempt(candidate);
        }
    }

    fn single_choices(&mut self) {
        self.stage = "single choices";
        if names(&self.best.choices).len() > CHOICES_SINGLE_MAX {
            return;
        }
        self.sweep(
            |case| names(&case.choices),
            |case, some| {
                let choices = Arc::make_mut(&mut case.choices);
                remove(choices, |scope, site, nth| {
                    some.contains(&(scope, site.clone(), nth))
                });
            },
        );
    }

    /// Faults last shorter and are not injected again.
    fn times(&mut self) {
        self.stage = "durations";
        for index in 0..self.best.faults.len() {
            for (field, least) in [("again", 0), ("duration", MILLISECOND)] {
                for to in 0..=HALVINGS_MAX {
                    let Some(fault) = self.best.faults.get(index) else {
                        return;
                    };
                    let Some(now) = fault.inject.get(field).and_then(toml::Value::as_integer)
                    else {
                        break;
                    };
                    // The least first, then half of what it is, again and again.
                    let wanted = match to {
                        0 => least as i64,
                        _ => now / 2,
                    };
                    if wanted < least as i64 || wanted >= now {
                        break;
                    }
                    let mut candidate = self.best.clone();
                    let inject = &mut candidate.faults[index].inject;
                    inject.insert(field.to_string(), wanted.into());
                    if !self.attempt(candidate) && to > 0 {
                        break;
                    }
                }
            }
        }
    }

    /// Cuts the pauses in which the script does nothing.
    fn gaps(&mut self) {
        self.stage = "pauses";
        let mut after = 0;
        while !self.is_late() {
            let mut times: Vec<u64> = self.best.turns.iter().map(|turn| turn.at).collect();
            times.extend(self.best.faults.iter().filter_map(|fault| {
                let at = fault.inject.get("at")?.as_integer()?;
                u64::try_from(at).ok()
            }));
            times.extend(self.best.limits.heal_at.filter(|at| *at != u64::MAX));
            times.push(after);
            times.sort_unstable();
            let gap = times.windows(2).find_map(|pair| {
                let long = pair[0] >= after && pair[1] - pair[0] > GAP_MAX;
                long.then_some((pair[0], pair[1]))
            });
            let Some((from, to)) = gap else { return };
            let cut = to - from - GAP_LEFT;
            let earlier = |at: u64| if at >= to { at - cut } else { at };
            let mut candidate = self.best.clone();
            for turn in &mut candidate.turns {
                turn.at = earlier(turn.at);
            }
            for fault in &mut candidate.faults {
                let at = fault.inject.get("at").and_then(toml::Value::as_integer);
                if let Some(at) = at {
                    let at = earlier(at as u64) as i64;
                    fault.inject.insert("at".to_string(), at.into());
                }
            }
            let heal = candidate.limits.heal_at.filter(|at| *at != u64::MAX);
            candidate.limits.heal_at = heal.map(earlier).or(candidate.limits.heal_at);
            after = if self.attempt(candidate) {
                from + 1
            } else {
                to
            };
        }
    }

    /// Makes the values that are left smaller.
    fn values(&mut self) {
        self.stage = "values";
        let left = names(&self.best.choices);
        if left.len() > VALUES_MAX {
            return;
        }
        for (scope, site, nth) in left {
            for _ in 0..HALVINGS_MAX {
                let value = (self.best.choices.get(&scope))
                    .and_then(|sites| sites.get(&site)?.get(&nth))
                    .copied();
                let Some(value) = value.filter(|value| *value > 1) else {
                    break;
                };
                let mut candidate = self.best.clone();
                let choices = Arc::make_mut(&mut candidate.choices);
                if let Some(values) = choices.get_mut(&scope).and_then(|it| it.get_mut(&site)) {
                    values.insert(nth, value / 2);
                }
                if !self.attempt(candidate) {
                    break;
                }
            }
        }
    }

    /// Makes links and disks quick and even.
    fn profiles(&mut self) {
        self.stage = "delays of links and disks";
        for (name, profile) in self.best.profiles.clone() {
            let (true, Some(table)) = (EVEN.contains(&name.as_str()), profile.as_table()) else {
                continue;
            };
            for (field, value) in table {
                let delay = DELAYS.iter().any(|part| field.contains(part));
                let Some(number) = value.as_integer().filter(|number| delay && *number > 1) else {
                    continue;
                };
                for wanted in [1, number / 2] {
                    let mut candidate = self.best.clone();
                    if let Some(toml::Value::Table(table)) = candidate.profiles.get_mut(&name) {
                        table.insert(field.clone(), wanted.into());
                    }
                    if wanted < number && self.attempt(candidate) {
                        break;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

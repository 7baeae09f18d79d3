//! Every world of a small scope: all interleavings of deliveries, syncs, timers and crashes.
//!
//! ```text
//!   worlds found ──► next one ──► for everything that can happen in it:
//!        ▲                          deliver · sync · fire · submit · crash · restart
//!        │                             │
//!        │                             ▼ checked: agreement, exactly once, durable, monotone,
//!        └── not seen before ◄──── world       linearizable, invariants
//!                                      │ does not hold: the shortest way there
//! ```
//!
//! Breadth first, so what is found is found by a shortest way. The code is the shipped one, driven
//! as [`Node`](quintet_replica::Node)s; nothing is told to the protocol. See
//! `docs/design/small-scopes.md` for what is bounded, and what the bounds leave out.

mod live;
mod replica_state;
mod shards;
mod show;
mod world;

use crate::{Campaign, CampaignError, checkers::Violation, machine::Operation};
use quintet_replica::{Entry, Level};
use replica_state::{Cast, Command, Wide};
use serde::Serialize;
use std::{
    collections::{BTreeMap, HashSet},
    time::{Duration, Instant},
};
use world::{Tables, World};

/// Virtual time 0 as nanoseconds since the Unix epoch.
const EPOCH_CLOCK: u64 = 1_700_000_000_000_000_000;
/// How far clocks jump when nothing else is said: beyond every deadline.
pub const LEAP_MS: u64 = 1_000_000;
/// The most commands, replicas, crashes and firings of timers that a world is made for.
const COMMANDS_MAX: usize = 6;
const REPLICAS_MAX: usize = 7;

/// How small the scope is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bounds {
    /// Replicas.
    pub replicas: usize,
    /// Commands, each of a client of its own: additions to one counter, submitted at replica 0, 1 …,
    /// or where the protocol serves shards to one counter of each, in the last shard first.
    pub commands: usize,
    /// Of these, that many are reads: the last ones.
    pub reads: usize,
    /// Crashes, each of any replica at any moment, followed by at most one restart.
    pub crashes: usize,
    /// Firings of timers of the protocol, on all replicas together; of the node's own, too, where
    /// the epoch may end.
    pub timers: usize,
    /// Ends of the epoch, each offered at replica 0 at any moment: the same protocol follows.
    pub seals: usize,
    /// The search begins at the first boot; else when all that follows from it has happened, with
    /// the first leader in place.
    pub from_boot: bool,
    /// Commands are submitted at the beginning; else each at any moment.
    pub at_once: bool,
    /// Frames of one link and lane keep their order, as TCP has it; else they overtake each other.
    pub in_order: bool,
    /// When a timer fires, its replica's clock jumps by this, in milliseconds. By default every
    /// deadline that was set before is past then. Protocols that tell silence from having stood
    /// still themselves need a shorter jump.
    pub leap_ms: u64,
    /// When a replica crashes, the others learn that it cannot be reached, not only that their
    /// connections broke.
    pub down: bool,
    /// Worlds kept; when there are more, the search is not complete.
    pub states_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            replicas: 3,
            commands: 2,
            reads: 0,
            crashes: 1,
            timers: 1,
            seals: 0,
            from_boot: false,
            at_once: false,
            in_order: true,
            leap_ms: LEAP_MS,
            down: false,
            states_max: 20_000_000,
        }
    }
}

/// How far a search has come.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExploreProgress {
    /// Worlds found.
    pub states: usize,
    /// Things that happened.
    pub transitions: u64,
    /// Length of the ways looked at now.
    pub depth: usize,
    /// Worlds at this depth that wait.
    pub waiting: usize,
    /// States of single replicas.
    pub replica_states: usize,
}

/// The result of a search.
#[derive(Clone, Debug, Serialize)]
pub struct Exploration {
    /// The protocol.
    pub protocol: String,
    /// The scope.
    pub bounds: Bounds,
    /// Different worlds.
    pub states: usize,
    /// Things that happened in them.
    pub transitions: u64,
    /// The longest of the shortest ways to them.
    pub depth: usize,
    /// States of single replicas among them.
    pub replica_states: usize,
    /// Whether all worlds of the scope were seen.
    pub complete: bool,
    /// Whether worlds were told apart by their state (`state`), or by what each replica has seen
    /// so far (`history`), for protocols that do not show their whole state.
    pub told_apart_by: &'static str,
    /// Rare branches taken, in how many steps of single replicas.
    pub branches: BTreeMap<&'static str, u64>,
    /// How many worlds have that many commands answered.
    pub answered: Vec<usize>,
    /// The violated property, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub violation: Option<String>,
    /// The shortest way to it, a line for each thing that happens.
    #[serde(skip)]
    pub lines: Vec<String>,
    /// The same as a picture: a page of HTML.
    #[serde(skip)]
    pub page: String,
    /// How long the search took, in seconds.
    pub seconds: f64,
}

/// Why a search cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExploreError {
    /// The campaign is invalid.
    #[error(transparent)]
    Campaign(#[from] CampaignError),
    /// A bound is out of range.
    #[error("{0}")]
    Bounds(String),
}

impl Bounds {
    fn check(&self) -> Result<(), ExploreError> {
        let most = [
            ("replicas", self.replicas, REPLICAS_MAX),
            ("commands", self.commands, COMMANDS_MAX),
            ("reads", self.reads, self.commands),
            ("crashes", self.crashes, 4),
            ("timers", self.timers, 16),
            ("ends of the epoch", self.seals, 2),
            (
                "milliseconds of a jump",
                self.leap_ms as usize,
                1_000_000_000,
            ),
        ];
        match most.iter().find(|(_, given, most)| given > most) {
            Some((name, given, most)) => Err(ExploreError::Bounds(format!(
                "{given} {name}: at most {most} can be searched"
            ))),
            None => Ok(()),
        }
    }
}

/// Searches all worlds of a scope. Of the campaign the protocol, its options and an injected bug
/// count; durability is `disk`.
///
/// # Errors
/// When the protocol, an option or a bound is invalid.
pub fn explore(
    campaign: &Campaign,
    bounds: Bounds,
    mut progress: impl FnMut(ExploreProgress),
) -> Result<Exploration, ExploreError> {
    bounds.check()?;
    let entry = Campaign {
        replicas: bounds.replicas,
        ..campaign.clone()
    }
    .check()?;
    let layout = campaign.options.iter().find(|(name, _)| name == "layout");
    if bounds.seals > 0 && layout.is_some_and(|(_, layout)| !layout.is_empty()) {
        let what = "the epoch of shards does not end".to_string();
        return Err(ExploreError::Bounds(what));
    }
    Ok(explore_entry(campaign, entry, bounds, &mut progress))
}

fn commands(bounds: &Bounds, shards: usize) -> Vec<Command> {
    (0..bounds.commands)
        .map(|number| {
            let reads = number + bounds.reads >= bounds.commands;
            Command {
                at: (number % bounds.replicas) as u16,
                // In the shards in turn, the last one first, where there are any.
                place: (shards - number % shards.max(1)) as u8,
                operation: match reads {
                    true => Operation::Read,
                    false => Operation::Add(1 << number),
                },
                level: match reads {
                    true => Level::Linearizable,
                    false => Level::Ordered,
                },
            }
        })
        .collect()
}

/// A world's place in the search: how it was reached first.
#[derive(Clone, Copy)]
struct Found {
    parent: u32,
    /// Which of all that could happen in the parent.
    action: u16,
}

struct Search<'a> {
    cast: Cast,
    known: HashSet<u128, Unhashed>,
    found: Vec<Found>,
    transitions: u64,
    answered: Vec<usize>,
    progress: &'a mut dyn FnMut(ExploreProgress),
    told: Instant,
}

/// Keys are hashes already.
#[derive(Clone, Copy, Default)]
struct Unhashed;

impl std::hash::BuildHasher for Unhashed {
    type Hasher = First;
    fn build_hasher(&self) -> First {
        First(0)
    }
}

struct First(u64);

impl std::hash::Hasher for First {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }
    fn write_u128(&mut self, word: u128) {
        self.0 = word as u64;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

fn key(world: &World) -> u128 {
    let mut wide = Wide::new(7);
    for word in world.words() {
        wide.word(u64::from(*word));
    }
    wide.word(world.words().len() as u64);
    wide.value()
}

pub(crate) fn explore_entry(
    campaign: &Campaign,
    entry: Entry,
    bounds: Bounds,
    progress: &mut dyn FnMut(ExploreProgress),
) -> Exploration {
    let began = Instant::now();
    let mut search = Search::new(campaign, entry, bounds, progress);
    let (depth, complete, failed) = search.run();
    let way = failed.map(|(way, violation)| {
        let (lines, page) = show::show(&mut search.cast, campaign, &way, &violation);
        (violation.to_string(), lines, page)
    });
    let (violation, lines, page) = match way {
        Some((violation, lines, page)) => (Some(violation), lines, page),
        None => (None, Vec::new(), String::new()),
    };
    Exploration {
        protocol: campaign.protocol.clone(),
        bounds,
        states: search.found.len(),
        transitions: search.transitions,
        depth,
        replica_states: search.cast.replica_states.len(),
        complete: complete && violation.is_none(),
        told_apart_by: match search.cast.by_state {
            true => "state",
            false => "history",
        },
        branches: search.cast.branches,
        answered: search.answered,
        violation,
        lines,
        page,
        seconds: began.elapsed().as_secs_f64(),
    }
}

impl<'a> Search<'a> {
    fn new(
        campaign: &Campaign,
        entry: Entry,
        bounds: Bounds,
        progress: &'a mut dyn FnMut(ExploreProgress),
    ) -> Self {
        Self {
            cast: Cast::new(entry, bounds, campaign.all_options()),
            known: HashSet::default(),
            found: Vec::new(),
            transitions: 0,
            answered: vec![0; bounds.commands + 1],
            progress,
            told: Instant::now(),
        }
    }

    /// Adds a world unless it was seen before.
    fn add(&mut self, world: World, found: Found, next: &mut Vec<(u32, World)>) {
        if self.known.insert(key(&world)) {
            let number = self.found.len() as u32;
            self.found.push(found);
            self.answered[world.answered(&self.cast)] += 1;
            next.push((number, world));
        }
    }

    /// Gives the depth, whether all was seen, and the way to what does not hold.
    fn run(&mut self) -> (usize, bool, Option<(Vec<u16>, Violation)>) {
        let (first, wrong) = World::first(&mut self.cast);
        if let Some(wrong) = wrong {
            return (0, false, Some((Vec::new(), wrong)));
        }
        let root = Found {
            parent: u32::MAX,
            action: 0,
        };
        let mut level = Vec::new();
        self.add(first, root, &mut level);
        let mut depth = 0;
        loop {
            let mut next = Vec::new();
            let waiting = level.len();
            for (number, world) in level.drain(..) {
                let actions = world.actions(&self.cast);
                for (index, action) in actions.iter().enumerate() {
                    self.transitions += 1;
                    let found = Found {
                        parent: number,
                        action: index as u16,
                    };
                    match world.after(*action, &mut self.cast) {
                        Ok(world) => self.add(world, found, &mut next),
                        Err(violation) => {
                            return (depth + 1, false, Some((self.way(found), violation)));
                        }
                    }
                }
                if self.found.len() > self.cast.bounds.states_max {
                    return (depth, false, None);
                }
                self.tell(depth, waiting);
            }
            if next.is_empty() {
                return (depth, true, None);
            }
            depth += 1;
            level = next;
        }
    }

    fn tell(&mut self, depth: usize, waiting: usize) {
        if self.told.elapsed() < Duration::from_millis(200) {
            return;
        }
        self.told = Instant::now();
        (self.progress)(ExploreProgress {
            states: self.found.len(),
            transitions: self.transitions,
            depth,
            waiting,
            replica_states: self.cast.replica_states.len(),
        });
    }

    /// The actions that lead from the first world to here.
    fn way(&self, last: Found) -> Vec<u16> {
        let mut way = vec![last.action];
        let mut at = last.parent;
        while let Some(found) = self.found.get(at as usize)
            && found.parent != u32::MAX
        {
            way.push(found.action);
            at = found.parent;
        }
        way.reverse();
        way
    }
}

#[cfg(test)]
mod tests;

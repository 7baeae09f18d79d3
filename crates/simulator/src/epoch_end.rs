//! Epochs that end and follow each other, in worlds that draw it.
//!
//! ```text
//!   at a moment of the first phase ──► a member offers the end of its epoch ──► others do, again
//!     and again, while faults continue ──► healed: a last one, or none, and all continue as ever
//! ```
//!
//! [`crate::checkers::past_seal`] checks the replicas' reports of ends.

use crate::{
    bugs::UNCOMPARED,
    clock::MILLISECOND,
    event::Event,
    faults::FaultSet,
    process::Process,
    random::Random,
    world::{Phase, World, WorldSetup},
};
use quintet_protocols::PROTOCOLS;
use quintet_replica::{CommandTime, Descriptor, Durability, Entry, EpochNumber, ReplicaId};
use serde::{Deserialize, Serialize};

/// Of a thousand seeds with all faults, those in which the epoch ends.
const SHARE: u64 = 60;
/// Between two offers.
const AGAIN: (u64, u64) = (20 * MILLISECOND, 400 * MILLISECOND);
/// Of a thousand offers, those that are void soon.
const LATE: u64 = 150;
/// Of a thousand times that a member would offer it, those at which members save their state ahead.
const PREPARED: u64 = 600;
/// Of a thousand worlds, those in which durability changes, and of their offers, those that do it.
const DURABILITIES: u64 = 350;
const DURABILITY: u64 = 400;
/// The time after that until a member offers it, or asks again.
const SOON: (u64, u64) = (100_000, 20 * MILLISECOND);
/// No more epochs than these, so that most of a run is spent in some.
const EPOCHS_MAX: u64 = 5;
/// The same where members come and go: one that does is in several.
const EPOCHS_OF_MEMBERS_MAX: u64 = 8;

/// Whether and when the end of the epoch is offered; drawn apart.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Ending {
    /// When it is offered first.
    pub at: Option<u64>,
    /// How many replicas there are that are no members at first.
    #[serde(default)]
    pub spare: usize,
    /// Whether what acknowledgements promise changes, too.
    #[serde(skip)]
    pub changes_durability: bool,
}

/// Whether durability is to change; drawn before the faults.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Durabilities {
    pub change: bool,
}

impl Ending {
    /// Whether what acknowledgements promise is to change: every fault is then one that memories
    /// outlive.
    pub fn draw_durability(setup: &WorldSetup, random: &mut Random) -> Durabilities {
        let may = setup.faults.ended && setup.replicas >= 3;
        Durabilities {
            change: may && random.chance(DURABILITIES),
        }
    }

    pub fn draw(setup: &WorldSetup, horizon: u64, random: &mut Random) -> Self {
        let all = FaultSet {
            ended: setup.faults.ended,
            held: setup.faults.held,
            orphaned: setup.faults.orphaned,
            ..FaultSet::ALL
        };
        let drawn = random.chance(SHARE) && setup.faults == all;
        let at = random.between(horizon / 50, horizon);
        // A protocol without an order cannot end its epoch, nor one without a descriptor.
        let endless = (setup.entry.unordered)(&setup.options) || setup.bug_is(UNCOMPARED);
        // Frontends look a protocol up by its name.
        let known = quintet_protocols::find(setup.entry.info.name).is_ok();
        let ends = (setup.faults.ended || drawn) && !endless && known;
        let at = ends.then_some(at);
        let fixed = setup.replicas < 3 || setup.faults.configuration || random.chance(500);
        let spare = match at {
            Some(_) if !fixed => 1 + random.index(2),
            _ => 0,
        };
        Self {
            at,
            spare,
            changes_durability: false,
        }
    }
}

impl World {
    pub fn begin_ending(&mut self) {
        if let Some(at) = self.ending.at {
            self.queue.push(at, Event::OfferEnd);
        }
    }

    /// A member offers the end of its epoch.
    pub fn offer_end(&mut self) {
        // Healed, the core is asked for what every core is asked for.
        let most = match self.replicas_max() > self.setup.replicas {
            true => EPOCHS_OF_MEMBERS_MAX,
            false => EPOCHS_MAX,
        };
        if self.phase != Phase::Safety || self.epoch_newest() >= EpochNumber(most) {
            return;
        }
        let running = |node: &usize| self.processes[*node].node.is_some() && !self.is_out(*node);
        let running: Vec<usize> = (0..self.replicas_max()).filter(running).collect();
        if !running.is_empty() {
            let node = running[self.ending_random.index(running.len())];
            // An injected bug is one protocol's, and is looked for without what hides it.
            let buggy = self.setup.options.iter().any(|(name, _)| name == "bug");
            if !buggy && self.ending_random.chance(PREPARED) {
                // The end may come before all are ready, and another may offer it.
                let next = match self.ending.changes_durability {
                    true => Durability::Disk,
                    false => self.setup.durability,
                };
                self.call(node, |node, view, outputs| {
                    node.prepare_change(next, view, outputs);
                });
                let soon = self.ending_random.between(SOON.0, SOON.1);
                return self.queue.push(self.now + soon, Event::OfferEnd);
            }
            let shown = self.processes[node].descriptor.clone();
            if let Ok(descriptor) = Descriptor::decode(shown) {
                // Two that offer the end at once offer different ones.
                let mut next = Descriptor {
                    leader_first: ReplicaId(node as u16),
                    ..descriptor.successor()
                };
                if self.ending_random.chance(500) && !buggy {
                    let entry = self.draw_protocol();
                    next.protocol = entry.info.name.to_string();
                    next.options = (entry.complete)(&[]);
                    if self
                        .protocols
                        .iter()
                        .all(|it| it.info.name != entry.info.name)
                    {
                        self.protocols.push(entry);
                    }
                }
                let changes = self.ending.changes_durability && !buggy;
                if changes && self.ending_random.chance(DURABILITY) {
                    next.durability = match next.durability {
                        Durability::Disk => Durability::Memory,
                        Durability::Memory => Durability::Disk,
                    };
                    self.was_in_memory = true;
                }
                self.draw_replacement(node, &mut next);
                self.draw_members(node, &mut next);
                if self.ending_random.chance(LATE) {
                    let clock = self.processes[node].clock.raw(self.now);
                    let wait = self.ending_random.below(AGAIN.1);
                    next.not_after = CommandTime(clock.saturating_add(wait / 4));
                }
                self.trace
                    .say(self.now, || format!("r{node} offers the end of the epoch"));
                let next = next.encode();
                // Where it has ended, nothing is offered.
                self.call(node, |node, view, outputs| {
                    let _ = node.offer_seal(&next, view, outputs);
                });
            }
        }
        let again = self.ending_random.between(AGAIN.0, AGAIN.1);
        self.queue.push(self.now + again, Event::OfferEnd);
    }

    /// A protocol that can follow.
    fn draw_protocol(&mut self) -> Entry {
        let datagrams = self.setup.transport == crate::network::Transport::Datagram;
        let fits = |entry: &&Entry| {
            entry.info.replicas_min <= self.voters.len() && !(datagrams && entry.needs_streams)
        };
        let fitting: Vec<&Entry> = PROTOCOLS.iter().filter(fits).collect();
        *fitting[self.ending_random.index(fitting.len())]
    }

    fn epoch_newest(&self) -> EpochNumber {
        let epochs = self.processes.iter().map(Process::epoch);
        epochs.max().unwrap_or(EpochNumber(1))
    }
}

//! The way of the batches, chosen by the leader while it works (§5.5).
//!
//! ```text
//!   own requests: how long they took ── median of a second ── Vote ──► leader
//!   what was executed: commands of a second ─────────────────────────►   │ a table's two figures,
//!                                                                         ▼ three seconds in a row
//!   all: the way changes when it is decided ◄── the next block carries Switch{way}
//! ```
//!
//! The switch stands in the order like a command, and snapshots carry it, so all replicas are of
//! one mind about it, whichever replica leads. Nothing depends on the moment at which each learns
//! of it: a block may carry batches and name others, and what is ordered both ways is executed
//! once.
//!
//! *Hysteresis.* Two different figures decide: a median latency to leave the direct way, a
//! throughput to return. Each must hold for three seconds in a row, a way is kept for a while, and
//! for twice as long, up to sixteen times, when the one before it was left soon.

use super::Racs;
use crate::sadl::{Dissemination, Way};
use alloc::vec::Vec;
use core::time::Duration;
use quintet_replica::{BatchView, CommandTime, Context, ReplicaId, Time, parts::RequestKey};

/// How long is looked at together.
const WINDOW: Duration = Duration::from_secs(1);
/// That many windows in a row must ask for it.
const ASKED_MIN: u32 = 3;
/// How many latencies of a window are kept; more would not move the median.
const SAMPLES_MAX: usize = 1024;
/// A way that was left sooner than after that many times the least was chosen too soon.
const SOON: u32 = 2;
/// How often the least time doubles.
const DOUBLED_MAX: u32 = 4;

/// What is ordered about the way: the same at every replica that has executed as much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Course {
    /// The way now.
    pub way: Way,
    /// The time of the block that changed it last.
    pub since: CommandTime,
    /// How often it was changed.
    pub changes: u64,
    /// How often in a row it was changed soon.
    pub soon: u32,
}

/// What a replica sees of its own requests, and a leader of all.
#[derive(Hash)]
pub(super) struct Watch {
    begun: Time,
    commands: u64,
    samples: Vec<u32>,
    /// Of the last whole window: commands per second, median latency in microseconds (0: none).
    pub throughput: u64,
    pub median: u32,
    /// What the members told of theirs.
    told: Vec<u32>,
    /// How many windows in a row asked for the other way.
    asked: u32,
}

impl Watch {
    pub fn new(members: usize) -> Self {
        Self {
            begun: Time(0),
            commands: 0,
            samples: Vec::new(),
            throughput: 0,
            median: 0,
            told: alloc::vec![0; members],
            asked: 0,
        }
    }

    /// Ends the window if it is over. True when it did.
    fn roll(&mut self, now: Time) -> bool {
        let passed = now.since(self.begun);
        if passed < WINDOW {
            return false;
        }
        let micros = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX).max(1);
        self.throughput = self.commands.saturating_mul(1_000_000) / micros;
        self.samples.sort_unstable();
        self.median = self
            .samples
            .get(self.samples.len() / 2)
            .copied()
            .unwrap_or(0);
        self.begun = now;
        self.commands = 0;
        self.samples.clear();
        true
    }

    /// A batch was executed; `asked` says when this replica's frontend handed it in.
    pub fn executed(&mut self, batch: &[u8], asked: Option<Time>, now: Time) {
        self.commands += BatchView::new(batch).map_or(0, |view| u64::from(view.count()));
        if let Some(asked) = asked
            && self.samples.len() < SAMPLES_MAX
        {
            let took = now.since(asked).as_micros();
            self.samples
                .push(u32::try_from(took).unwrap_or(u32::MAX).max(1));
        }
    }

    /// The own median, for the leader.
    pub fn tell(&mut self, now: Time) -> u32 {
        self.roll(now);
        self.median
    }

    pub fn on_told(&mut self, from: ReplicaId, median: u32) {
        if let Some(known) = self.told.get_mut(from.index()) {
            *known = median;
        }
    }

    /// The median of what the members see, those without clients left out.
    fn everybody(&self, own: ReplicaId) -> u32 {
        let mut all: Vec<u32> = self.told.clone();
        all[own.index()] = self.median;
        all.retain(|median| *median > 0);
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or(0)
    }
}

impl Racs {
    /// The way of this replica's own requests.
    pub(super) const fn way(&self) -> Way {
        if self.config.hybrid {
            self.course.way
        } else {
            self.config.dissemination
        }
    }

    /// How long the way is kept at least.
    fn held_least(&self) -> Duration {
        self.config.hybrid_hold * (1 << self.course.soon.min(DOUBLED_MAX))
    }

    /// The leader looks whether the other way would be the better one.
    pub(super) fn look_at_way(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let rolled = self.watch.roll(now);
        if !self.config.hybrid || !rolled {
            return;
        }
        let median = Duration::from_micros(u64::from(self.watch.everybody(self.id)));
        let asks = match self.course.way {
            Way::Direct => median >= self.config.hybrid_latency,
            Way::Sadl => self.watch.throughput < self.config.hybrid_throughput,
        };
        self.watch.asked = if asks { self.watch.asked + 1 } else { 0 };
        let kept = CommandTime(ctx.clock().now)
            .0
            .saturating_sub(self.course.since.0);
        let may = self.course.changes == 0 || u128::from(kept) >= self.held_least().as_nanos();
        let Some(lead) = &mut self.lead else { return };
        if lead.open && self.watch.asked >= ASKED_MIN && may {
            ctx.mark("switch proposed");
            self.watch.asked = 0;
            lead.switch = Some(match self.course.way {
                Way::Direct => Way::Sadl,
                Way::Sadl => Way::Direct,
            });
        }
    }

    /// A block that changes the way is decided.
    pub(super) fn on_switch(&mut self, way: Way, at: CommandTime, ctx: &mut Context<'_, Self>) {
        if way == self.course.way {
            return;
        }
        let lasted = u128::from(at.0.saturating_sub(self.course.since.0));
        let soon = self.course.changes > 0 && lasted < (self.held_least() * SOON).as_nanos();
        self.course = Course {
            way,
            since: at,
            changes: self.course.changes + 1,
            soon: if soon { self.course.soon + 1 } else { 0 },
        };
        self.watch.asked = 0;
        if self.config.hybrid {
            self.on_dissemination(ctx);
        }
    }

    /// The way is another one: requests that wait continue that one.
    pub(super) fn on_dissemination(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.mark("dissemination changed");
        let waiting: Vec<(RequestKey, quintet_replica::Bytes)> = self
            .requests
            .iter()
            .map(|(key, batch)| (key, batch.clone()))
            .collect();
        if self.disseminates() {
            self.requests.pass_on_nothing();
            for (key, batch) in waiting {
                self.sadl.replicate(key, batch);
            }
            return;
        }
        // What has no name yet will not get one.
        self.sadl.drop_waiting(&|_| true);
        match &mut self.lead {
            Some(lead) if lead.open => {
                for (key, batch) in waiting {
                    lead.queue.push(key, batch);
                }
            }
            Some(_) => {}
            None if self.heard || self.introduced => self.requests.pass_on_all(),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn window_gives_commands_per_second_and_median_of_what_it_saw() {
        let mut watch = Watch::new(3);
        watch.roll(Time(5_000 * MS));
        for took in [30, 10, 20] {
            watch.executed(b"", Some(Time(5_100 * MS)), Time((5_100 + took) * MS));
        }
        watch.commands = 4_000;
        assert_eq!(watch.tell(Time(5_900 * MS)), 0, "not over yet");
        assert_eq!(watch.tell(Time(7_000 * MS)), 20_000);
        assert_eq!(watch.throughput, 2_000);
        assert_eq!(watch.tell(Time(8_000 * MS)), 0, "nothing came");
    }

    #[test]
    fn those_without_clients_do_not_count() {
        let mut watch = Watch::new(5);
        for (from, median) in [(1, 70), (3, 50), (4, 60), (9, 1)] {
            watch.on_told(ReplicaId(from), median);
        }
        assert_eq!(watch.everybody(ReplicaId(0)), 60);
        watch.median = 900;
        watch.on_told(ReplicaId(4), 800);
        assert_eq!(watch.everybody(ReplicaId(0)), 800);
        assert_eq!(Watch::new(3).everybody(ReplicaId(0)), 0);
    }
}

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

use super::{Config, Dissemination};
use crate::sadl::Way;
use alloc::{vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{BatchView, CommandTime, ReplicaId, Time, wire};

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

/// The ordered state of the mode: the same at every replica that has executed as much.
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

wire! { struct Course { way, since, changes, soon } }

/// The way, and the measurements by which a leader changes it: of a replica's own requests, and of
/// all.
#[derive(Hash)]
pub(super) struct Hybrid {
    course: Course,
    begun: Time,
    commands: u64,
    samples: Vec<u32>,
    /// Of the last whole window: commands per second, median latency in microseconds (0: none).
    throughput: u64,
    median: u32,
    /// The members' reports.
    told: Vec<u32>,
    /// How many windows in a row asked for the other way.
    asked: u32,
}

impl Hybrid {
    pub fn new(members: usize) -> Self {
        Self {
            course: Course::default(),
            begun: Time(0),
            commands: 0,
            samples: Vec::new(),
            throughput: 0,
            median: 0,
            told: vec![0; members],
            asked: 0,
        }
    }

    pub const fn course(&self) -> Course {
        self.course
    }

    pub const fn throughput(&self) -> u64 {
        self.throughput
    }

    pub const fn median(&self) -> u32 {
        self.median
    }

    /// The way of this replica's own requests.
    pub const fn way(&self, config: &Config) -> Way {
        match config.dissemination {
            Dissemination::Hybrid => self.course.way,
            Dissemination::Fixed(way) => way,
        }
    }

    /// A state has this.
    pub const fn install(&mut self, course: Course) {
        self.course = course;
    }

    /// How long the way is kept at least.
    fn held_least(&self, config: &Config) -> Duration {
        config.hybrid_hold * (1 << self.course.soon.min(DOUBLED_MAX))
    }

    /// Looks whether the other way would be the better one; `clock` is that of the commands. True
    /// when it is to be proposed, if the caller can.
    pub fn wants_other(&mut self, config: &Config, own: ReplicaId, now: Time, clock: u64) -> bool {
        let rolled = self.roll(now);
        if !config.is_hybrid() || !rolled {
            return false;
        }
        let median = Duration::from_micros(u64::from(self.everybody(own)));
        let asks = match self.course.way {
            Way::Direct => median >= config.hybrid_latency,
            Way::Sadl => self.throughput < config.hybrid_throughput,
        };
        self.asked = if asks { self.asked + 1 } else { 0 };
        let kept = u128::from(clock.saturating_sub(self.course.since.0));
        let may = self.course.changes == 0 || kept >= self.held_least(config).as_nanos();
        self.asked >= ASKED_MIN && may
    }

    /// The other way, which is proposed now.
    pub const fn other(&mut self) -> Way {
        self.asked = 0;
        match self.course.way {
            Way::Direct => Way::Sadl,
            Way::Sadl => Way::Direct,
        }
    }

    /// A block that changes the way is decided. True when it is another one.
    pub fn switch(&mut self, way: Way, at: CommandTime, config: &Config) -> bool {
        if way == self.course.way {
            return false;
        }
        let lasted = u128::from(at.0.saturating_sub(self.course.since.0));
        let least = self.held_least(config);
        let soon = self.course.changes > 0 && lasted < (least * SOON).as_nanos();
        self.course = Course {
            way,
            since: at,
            changes: self.course.changes + 1,
            soon: if soon { self.course.soon + 1 } else { 0 },
        };
        self.asked = 0;
        true
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn window_gives_commands_per_second_and_median_of_what_it_saw() {
        let mut watch = Hybrid::new(3);
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
        let mut watch = Hybrid::new(5);
        for (from, median) in [(1, 70), (3, 50), (4, 60), (9, 1)] {
            watch.on_told(ReplicaId(from), median);
        }
        assert_eq!(watch.everybody(ReplicaId(0)), 60);
        watch.median = 900;
        watch.on_told(ReplicaId(4), 800);
        assert_eq!(watch.everybody(ReplicaId(0)), 800);
        assert_eq!(Hybrid::new(3).everybody(ReplicaId(0)), 0);
    }
}

//! Whether the disk still answers, and what a node does when it does not.
//!
//! ```text
//!   Journal ──asked──► waits since … ──disk_hung_after without Persisted──► hung: hears and says nothing
//!                          ▲                                              │
//!                          └──────── Persisted: links are broken ◄────────┘
//! ```
//!
//! A replica whose disk hangs can vouch for nothing, but its timers still send heartbeats.
//! Protocols that need a word of each member, or of their leader, would wait for as long as the
//! disk does. So the node makes a failure of it that every protocol knows: a process that stands
//! still. Frames are dropped, timers wait, requests are answered "busy". The dropped frames are a
//! gap in every link, which therefore is broken before the node continues.

use super::*;

/// When a disk counts as one that hangs unless told otherwise: short of what clients wait, and
/// longer than a disk in order takes for the longest batch.
pub const DISK_HUNG_AFTER: Duration = Duration::from_secs(2);

/// How often a timer that fires meanwhile looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A disk in order writes this many bytes in a microsecond at least: what its next answer may wait
/// for has that much more time.
const BYTES_PER_MICROSECOND: u64 = 16;

/// Writes handed over so soon after the first write that waits may go with it.
const TOGETHER: Duration = Duration::from_millis(250);

/// A disk that was merely slow is given twice as long, unless that is so long ago.
const CALM: Duration = Duration::from_secs(60);

/// A disk counts as hanging after this many times the limit at most, whatever waits and whatever
/// has been: clients still wait then.
const TIMES_MAX: u32 = 3;

/// The measurements of the disk.
#[derive(Debug)]
pub(super) struct DiskWatch {
    /// Zero: the disk is not watched.
    hung_after: Duration,
    /// The disk has no room for more, and is not watched until it has.
    is_full: bool,
    /// Since when a write waits and none has been finished.
    since: Option<Time>,
    /// Bytes that the next answer may wait for. Bytes handed over later do not count, or a disk
    /// that hangs would never be late while writes continue.
    owed: u64,
    /// Bytes handed over since the last answer.
    recent: u64,
    /// It seemed to hang when it was looked at here. The completion of finished writes may wait to
    /// be delivered.
    suspected: Option<Time>,
    hung: bool,
    /// It answered soon after it had been found to hang, at that time.
    slow_at: Option<Time>,
    /// Those whose frames have a gap: nothing of them is heard before their link breaks.
    deaf_to: ReplicaSet,
}

impl DiskWatch {
    pub(super) const fn new(hung_after: Duration) -> Self {
        Self {
            hung_after,
            is_full: false,
            since: None,
            owed: 0,
            recent: 0,
            suspected: None,
            hung: false,
            slow_at: None,
            deaf_to: ReplicaSet::EMPTY,
        }
    }

    pub(super) const fn is_hung(&self) -> bool {
        self.hung
    }

    /// A write of this length is handed over.
    pub(super) fn asked(&mut self, bytes: usize, now: Time) {
        let since = *self.since.get_or_insert(now);
        self.recent += bytes as u64;
        if now <= since + TOGETHER.min(self.hung_after) {
            self.owed += bytes as u64;
        }
    }

    /// Writes are durable; `all`: none waits any more. Whether it had hung. The time is asked for
    /// only where it matters: this comes with every batch.
    fn answered(&mut self, all: bool, now: impl Fn() -> Time) -> bool {
        let hung = core::mem::take(&mut self.hung);
        if hung
            && self
                .since
                .is_some_and(|since| now() < since + self.longest())
        {
            self.slow_at = Some(now());
        }
        self.since = (!all).then(now);
        // Bytes handed over before the answer before this one have been written with it.
        self.owed = if all { 0 } else { self.recent };
        self.recent = 0;
        self.suspected = None;
        hung
    }

    /// A disk that has finished nothing for so long hangs, whatever waits.
    fn longest(&self) -> Duration {
        self.hung_after * TIMES_MAX
    }

    /// Whether it is found to hang now, at the second look: after a long turn what it has
    /// finished is still to be heard at the first.
    fn look(&mut self, now: Time) -> bool {
        let Some(since) = self.since else {
            return false;
        };
        if self.hung || self.is_full || self.hung_after.is_zero() {
            return false;
        }
        let slow = self.slow_at.is_some_and(|at| now <= at + CALM);
        let longer = Duration::from_micros(self.owed / BYTES_PER_MICROSECOND);
        let timeout = self.hung_after * (1 + u32::from(slow)) + longer;
        if now < since + timeout.min(self.longest()) {
            return false;
        }
        let suspected = *self.suspected.get_or_insert(now);
        self.hung = now >= suspected + LOOK_AGAIN.min(self.hung_after);
        self.hung
    }
}

impl Node {
    /// Whether the disk hangs: the node hears and says nothing until it answers.
    #[must_use]
    pub const fn is_disk_hung(&self) -> bool {
        self.disk.is_hung()
    }

    /// The disk has no room for more, or has it again: one that is full does not hang.
    pub const fn note_full_disk(&mut self, is_full: bool) {
        self.disk.is_full = is_full;
    }

    /// Whether nothing of this peer is heard yet: frames before were dropped.
    pub(super) fn is_deaf_to(&mut self, input: &Input) -> bool {
        match input {
            Input::Frame {
                from: Peer::Replica(from),
                ..
            }
            | Input::Put { from, .. } => self.disk.deaf_to.contains(*from),
            Input::Link(Peer::Replica(id), _) => {
                self.disk.deaf_to = self.disk.deaf_to.without(*id);
                false
            }
            _ => false,
        }
    }

    /// Looks at the disk between two inputs.
    pub(super) fn look_at_disk(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        if self.disk.since.is_some() && self.disk.look(world.now()) {
            out.push(Output::Mark("disk hung"));
        }
    }

    /// Writes up to this one are durable.
    pub(super) fn on_disk_answered(
        &mut self,
        upto: PersistId,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if self.disk.answered(upto >= self.written, || world.now()) {
            // Frames that have come in already are handled before the links are seen to break.
            self.disk.deaf_to = self.peers();
            out.push(Output::BreakLinks);
        }
    }

    /// Refuses an input while the disk hangs; gives back those that must be handled all the same:
    /// what concerns the disk and links.
    pub(super) fn refuse_while_hung(
        &self,
        input: Input,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> Option<Input> {
        match input {
            Input::Frame { .. } | Input::Put { .. } => None,
            Input::Submit(submission) => {
                out.push(Output::Done {
                    batch: submission.id,
                    outcome: Outcome::Busy,
                });
                None
            }
            // Frontends tell at the deadline that nothing is known.
            Input::Timer(key) if key.owner != TimerOwner::Frontend => {
                let at = Deadline::At(world.now() + LOOK_AGAIN);
                out.push(Output::SetTimer { key, at });
                None
            }
            other => Some(other),
        }
    }
}

/// No peer receives messages while the disk hangs.
pub(super) fn fall_silent(out: &mut Vec<Output>) {
    out.retain(|output| !matches!(output, Output::Send { .. } | Output::Put { .. }));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    const fn at(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    /// When a disk that says nothing from now on is found to hang, looked at every 50 ms while
    /// this much is written each time.
    fn found(disk: &mut DiskWatch, from: u64, bytes: usize) -> u64 {
        let mut ms = from;
        while !disk.look(at(ms)) {
            ms += 50;
            disk.asked(bytes, at(ms));
            assert!(ms < from + 60_000, "it is never found");
        }
        ms - from
    }

    #[test]
    fn disk_hangs_only_when_nothing_is_finished() {
        let mut disk = DiskWatch::new(Duration::from_secs(3));
        assert!(!disk.look(at(60_000)), "nothing was asked of it");
        disk.asked(16 * MIB, at(60_000));
        disk.asked(16 * MIB, at(60_000));
        // Two seconds more for these bytes.
        assert!(!disk.look(at(65_000)) && disk.suspected.is_none());
        // A part of what waits is finished: it is slow, and does not hang.
        assert!(!disk.answered(false, || at(65_000)));
        assert!(!disk.look(at(70_000)) && disk.suspected.is_none());
        assert!(!disk.look(at(72_000)), "it may have been a long turn");
        assert!(disk.look(at(72_250)) && disk.is_hung());
        assert!(!disk.look(at(73_000)), "it is found once");
        assert!(disk.answered(true, || at(73_000)) && !disk.is_hung());
        disk.asked(1, at(81_000));
        assert!(
            !disk.look(at(86_000)) && disk.suspected.is_none(),
            "twice as long"
        );
        assert!(!disk.answered(true, || at(87_000)));
        assert!(!disk.look(at(99_000)), "nothing waits");
    }

    #[test]
    fn hang_is_found_as_soon_while_writes_continue() {
        let mut disk = DiskWatch::new(Duration::from_secs(2));
        disk.asked(1, at(60_000));
        // As fast as, and much faster than, a disk in order is taken to write at least.
        assert!(found(&mut disk, 60_000, MIB) <= 2_700);
        assert!(disk.answered(true, || at(80_000)));
        disk.asked(1, at(90_000));
        assert!(found(&mut disk, 90_000, 64 * MIB) <= 6_300);
    }

    #[test]
    fn hang_is_found_as_soon_when_much_waited_before() {
        let mut disk = DiskWatch::new(Duration::from_secs(2));
        for ms in 60_000..61_000 {
            disk.asked(MIB, at(ms));
        }
        assert!(!disk.answered(false, || at(61_000)));
        assert!(found(&mut disk, 61_000, MIB) <= 6_300);
    }

    #[test]
    fn hang_is_found_as_soon_when_it_is_not_the_first() {
        let mut disk = DiskWatch::new(Duration::from_secs(2));
        for round in 1..6 {
            let began = round * 30_000;
            disk.asked(1, at(began));
            assert_eq!(found(&mut disk, began, 0), 2_250);
            assert!(disk.answered(true, || at(began + 20_000)));
        }
        // One that answers soon after it was found is slow, and has more time for a while.
        disk.asked(1, at(200_000));
        assert_eq!(found(&mut disk, 200_000, 0), 2_250);
        assert!(disk.answered(true, || at(203_000)));
        for began in [210_000, 220_000] {
            disk.asked(1, at(began));
            assert_eq!(found(&mut disk, began, 0), 4_250);
            assert!(disk.answered(true, || at(began + 5_000)));
        }
        disk.asked(1, at(300_000));
        assert_eq!(found(&mut disk, 300_000, 0), 2_250);
    }
}

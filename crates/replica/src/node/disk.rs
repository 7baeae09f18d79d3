//! Whether the disk still answers, and what a node does when it does not.
//!
//! ```text
//!   Journal ──asked──► waits since … ──disk_hung_after without Persisted──► hung: hears and says nothing
//!                          ▲                                              │
//!                          └──────── Persisted: links are broken ◄────────┘
//! ```
//!
//! A replica whose disk hangs can vouch for nothing, but its timers still send heartbeats. Protocols
//! that need a word of each member, or of their leader, would wait for as long as the disk does. So
//! the node makes a failure of it that every protocol knows: a process that stands still. Frames
//! are dropped, timers wait, requests are answered "busy". What was dropped is a gap in every
//! link, which therefore is broken before the node goes on.

use super::*;

/// When a disk counts as one that hangs unless told otherwise: short of what clients wait, and
/// longer than a disk in order takes for the longest batch.
pub const DISK_HUNG_AFTER: Duration = Duration::from_secs(2);

/// How often a timer that fires meanwhile looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A disk in order writes this many bytes in a microsecond at least: what waits has that much more
/// time.
const BYTES_PER_MICROSECOND: u64 = 16;

/// Who hung is given twice as long the next time, up to eight times, unless that is so long ago.
const CALM: Duration = Duration::from_secs(60);

/// What is known of the disk.
#[derive(Debug)]
pub(super) struct DiskWatch {
    /// Zero: the disk is not watched.
    hung_after: Duration,
    /// The disk has no room for more, and is not watched until it has.
    is_full: bool,
    /// Since when a write waits and none has been finished.
    since: Option<Time>,
    /// Bytes of writes: of those handed over since the last answer, and in the time before it,
    /// which may still wait.
    bytes: [u64; 2],
    /// It seemed to hang when it was looked at here. What it has finished may wait to be told.
    suspected: Option<Time>,
    hung: bool,
    /// How often it hung of late, and until when the last time.
    times: (u32, Time),
    /// Those whose frames have a gap: nothing of them is heard before their link breaks.
    deaf_to: ReplicaSet,
}

impl DiskWatch {
    pub(super) const fn new(hung_after: Duration) -> Self {
        Self {
            hung_after,
            is_full: false,
            since: None,
            bytes: [0; 2],
            suspected: None,
            hung: false,
            times: (0, Time(0)),
            deaf_to: ReplicaSet::EMPTY,
        }
    }

    pub(super) const fn is_hung(&self) -> bool {
        self.hung
    }

    /// A write of this length is handed over.
    pub(super) fn asked(&mut self, bytes: usize, now: Time) {
        self.since.get_or_insert(now);
        self.bytes[0] += bytes as u64;
    }

    /// Writes are durable; `all`: none waits any more. Whether it had hung.
    fn answered(&mut self, all: bool, now: Time) -> bool {
        self.since = (!all).then_some(now);
        self.bytes = [0, if all { 0 } else { self.bytes[0] }];
        self.suspected = None;
        if self.hung {
            self.times = (self.times.0 + 1, now);
        }
        core::mem::take(&mut self.hung)
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
        let times = match now > self.times.1 + CALM {
            true => 0,
            false => self.times.0.min(3),
        };
        let bytes = self.bytes[0] + self.bytes[1];
        let longer = Duration::from_micros(bytes / BYTES_PER_MICROSECOND);
        if now < since + self.hung_after * (1 << times) + longer {
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
        if self.disk.look(world.now()) {
            out.push(Output::Mark("disk hung"));
        }
    }

    /// Writes up to this one are durable.
    pub(super) fn on_disk_answered(&mut self, upto: PersistId, now: Time, out: &mut Vec<Output>) {
        if self.disk.answered(upto >= self.written, now) {
            // What has come in already is handled before the links are seen to break.
            self.disk.deaf_to = ReplicaSet::all(self.members).without(self.id);
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

/// Nobody hears what is said while the disk hangs.
pub(super) fn fall_silent(out: &mut Vec<Output>) {
    out.retain(|output| !matches!(output, Output::Send { .. } | Output::Put { .. }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_hangs_only_when_nothing_is_finished() {
        let mut disk = DiskWatch::new(Duration::from_secs(3));
        let at = |ms| Time(0) + Duration::from_millis(ms);
        assert!(!disk.look(at(60_000)), "nothing was asked of it");
        disk.asked(16 << 20, at(60_000));
        disk.asked(16 << 20, at(62_000));
        // Two seconds more for these bytes.
        assert!(!disk.look(at(65_000)) && disk.suspected.is_none());
        // A part of what waits is finished: it is slow, and does not hang.
        assert!(!disk.answered(false, at(65_000)));
        assert!(!disk.look(at(70_000)) && disk.suspected.is_none());
        assert!(!disk.look(at(72_000)), "it may have been a long turn");
        assert!(disk.look(at(72_250)) && disk.is_hung());
        assert!(!disk.look(at(73_000)), "it is found once");
        assert!(disk.answered(true, at(80_000)) && !disk.is_hung());
        disk.asked(1, at(81_000));
        assert!(
            !disk.look(at(86_000)) && disk.suspected.is_none(),
            "twice as long"
        );
        assert!(!disk.answered(true, at(87_000)));
        assert!(!disk.look(at(99_000)), "nothing waits");
    }
}

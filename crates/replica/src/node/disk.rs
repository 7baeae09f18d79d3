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

/// What is known of the disk.
#[derive(Debug)]
pub(super) struct DiskWatch {
    hung_after: Duration,
    /// Since when a write waits and none has been finished.
    since: Option<Time>,
    hung: bool,
}

impl DiskWatch {
    pub(super) const fn new(hung_after: Duration) -> Self {
        Self {
            hung_after,
            since: None,
            hung: false,
        }
    }

    pub(super) const fn is_hung(&self) -> bool {
        self.hung
    }

    /// A write is handed over.
    pub(super) fn asked(&mut self, now: Time) {
        self.since.get_or_insert(now);
    }

    /// Writes are durable; `all`: none waits any more. Whether it had hung.
    fn answered(&mut self, all: bool, now: Time) -> bool {
        self.since = (!all).then_some(now);
        core::mem::take(&mut self.hung)
    }

    /// Whether it is found to hang now.
    fn look(&mut self, now: Time) -> bool {
        let hangs = !self.hung
            && self
                .since
                .is_some_and(|since| now >= since + self.hung_after);
        self.hung |= hangs;
        hangs
    }
}

impl Node {
    /// Whether the disk hangs: the node hears and says nothing until it answers.
    #[must_use]
    pub const fn is_disk_hung(&self) -> bool {
        self.disk.is_hung()
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
            Input::Timer(key) => {
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
        disk.asked(at(60_000));
        disk.asked(at(62_000));
        assert!(!disk.look(at(62_999)));
        // A part of what waits is finished: it is slow, and does not hang.
        assert!(!disk.answered(false, at(62_999)));
        assert!(!disk.look(at(65_998)));
        assert!(disk.look(at(65_999)) && disk.is_hung());
        assert!(!disk.look(at(67_000)), "it is found once");
        assert!(disk.answered(true, at(70_000)) && !disk.is_hung());
        assert!(!disk.look(at(99_000)), "nothing waits");
    }
}

//! A stand-in for a protocol while none runs: it keeps submitted batches until one does.

use super::*;
use crate::{EventError, outcome_at_deadline};

/// No more batches wait for a protocol; their servers bound them, too.
const WAITING_MAX: usize = 4096;
const TIMER: u32 = 0;

struct Waiting {
    submission: Submission,
    /// A protocol that has ended may have ordered it.
    sent: bool,
}

/// See the module.
pub(super) struct Between {
    /// The replica's role meanwhile, as operators see it.
    role: &'static str,
    /// The last slot whose execution is final.
    executed: Slot,
    waiting: BTreeMap<BatchId, Waiting>,
}

impl Between {
    /// With what an earlier protocol had in progress.
    pub(super) fn new(role: &'static str, executed: Slot, sent: Vec<Submission>) -> Self {
        let waiting = |submission: Submission| {
            let id = submission.id;
            let sent = true;
            (id, Waiting { submission, sent })
        };
        Self {
            role,
            executed,
            waiting: sent.into_iter().map(waiting).collect(),
        }
    }

    fn arm(&self, effects: &mut Vec<Effect>) {
        let deadlines = self.waiting.values().map(|it| it.submission.deadline);
        if let Some(at) = deadlines.min() {
            effects.push(Effect::SetTimer {
                key: TimerKey {
                    owner: TimerOwner::Frontend,
                    timer: TIMER,
                    generation: 0,
                },
                at: Deadline::At(at),
            });
        }
    }

    fn give_up(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.waiting.retain(|id, it| {
            let over = it.submission.deadline <= now;
            if over {
                effects.push(Effect::Done {
                    batch: *id,
                    outcome: outcome_at_deadline(it.submission.level, it.sent),
                });
            }
            !over
        });
        self.arm(effects);
    }
}

impl Replica for Between {
    fn on_event(
        &mut self,
        event: Event,
        around: Surroundings<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), EventError> {
        match event {
            Event::Submit(submission) if self.waiting.len() >= WAITING_MAX => {
                effects.push(Effect::Done {
                    batch: submission.id,
                    outcome: Outcome::Busy,
                });
            }
            Event::Submit(submission) => {
                let sent = false;
                let id = submission.id;
                self.waiting.insert(id, Waiting { submission, sent });
                self.arm(effects);
            }
            Event::Timer(key) if key.owner == TimerOwner::Frontend => {
                self.give_up(around.world.now(), effects);
            }
            _ => {}
        }
        Ok(())
    }

    fn on_idle(&mut self, _: Surroundings<'_>, _: &mut Vec<Effect>) -> Wake {
        Wake::Sleep
    }

    fn status(&self, _: GroupId) -> Status {
        Status {
            role: self.role,
            accepted: self.executed,
            committed: self.executed,
            stable: self.executed,
            ..Status::default()
        }
    }

    fn open(&self, _: GroupId) -> usize {
        self.waiting.len()
    }

    fn take_open(&mut self, _: GroupId) -> Vec<Submission> {
        let waiting = core::mem::take(&mut self.waiting);
        waiting.into_values().map(|it| it.submission).collect()
    }

    fn digest(&self) -> u64 {
        0
    }

    fn fingerprint(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        use core::hash::Hash;
        (self.role, self.executed).hash(&mut hasher);
        for it in self.waiting.values() {
            (&it.submission, it.sent).hash(&mut hasher);
        }
        true
    }

    fn assert_invariants(&self) {}
}

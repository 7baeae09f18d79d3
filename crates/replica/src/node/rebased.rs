//! A protocol of an epoch behind the first: it counts slots and writes from 1, the node goes on.
//!
//! ```text
//!   protocol   1   2   3          write 1, 2            its own timers
//!              │ + base           │ + writes before     │ + generation
//!   node     base+1 …             n+1, n+2              those of earlier protocols are dropped
//! ```

use super::*;
use crate::EventError;

/// See the module.
pub(super) struct Rebased {
    inner: Box<dyn Replica>,
    /// The slot at which its epoch began.
    base: u64,
    /// The last write that an earlier protocol asked for.
    written: u64,
    /// See [`TimerKey::generation`].
    generation: u16,
}

impl Rebased {
    /// The protocol of an epoch that began at this slot; as it is when nothing was before.
    pub(super) fn over(
        inner: Box<dyn Replica>,
        base: Slot,
        written: PersistId,
        generation: u16,
    ) -> Box<dyn Replica> {
        if base == Slot(0) {
            return inner;
        }
        Box::new(Self {
            inner,
            base: base.0,
            written: written.0,
            generation,
        })
    }

    fn inward(&self, slot: Slot) -> Slot {
        let within = slot.0.checked_sub(self.base);
        Slot(within.expect("nothing before its epoch concerns a protocol"))
    }

    /// The event as the protocol knows it; none when it concerns an earlier one.
    fn event(&self, mut event: Event) -> Option<Event> {
        match &mut event {
            Event::Start(recovered) => {
                if let Some((slot, _)) = &mut recovered.checkpoint {
                    *slot = self.inward(*slot);
                }
            }
            Event::Executed(slot)
            | Event::RolledBack(slot)
            | Event::Checkpointed(slot)
            | Event::Installed { slot, .. } => *slot = self.inward(*slot),
            Event::Persisted(upto) => {
                upto.0 = upto.0.checked_sub(self.written).filter(|upto| *upto > 0)?;
            }
            Event::Timer(key) if key.owner != TimerOwner::Node => {
                if key.generation != self.generation {
                    return None;
                }
                key.generation = 0;
            }
            _ => {}
        }
        Some(event)
    }

    /// Effects behind the first `begun` as the node knows them.
    fn outward(&self, begun: usize, effects: &mut [Effect]) {
        let wait = |reply: &mut crate::ReplyRoute| {
            if let Some(after) = &mut reply.after {
                after.0 += self.written;
            }
        };
        for effect in &mut effects[begun..] {
            match effect {
                Effect::Persist { id, .. } => id.0 += self.written,
                Effect::SetTimer { key, .. } | Effect::CancelTimer { key } => {
                    key.generation = self.generation;
                }
                Effect::Execute { slot, reply, .. } => {
                    slot.0 += self.base;
                    reply.iter_mut().for_each(wait);
                }
                Effect::Unordered { reply, .. } => reply.iter_mut().for_each(wait),
                Effect::Query {
                    at_least, reply, ..
                }
                | Effect::Replay {
                    at_least, reply, ..
                } => {
                    at_least.0 += self.base;
                    wait(reply);
                }
                Effect::Stable { slot }
                | Effect::RollBack { slot }
                | Effect::Checkpoint { slot, .. }
                | Effect::Route { slot, .. } => slot.0 += self.base,
                Effect::FetchState { at_least, .. } => at_least.0 += self.base,
                // Records of the journal carry their epoch.
                Effect::Trim { .. }
                | Effect::Send { .. }
                | Effect::Request { .. }
                | Effect::Put { .. }
                | Effect::Recovered
                | Effect::Done { .. }
                | Effect::Mark(_)
                | Effect::Halt(_) => {}
            }
        }
    }
}

impl Replica for Rebased {
    fn on_event(
        &mut self,
        event: Event,
        around: Surroundings<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), EventError> {
        let Some(event) = self.event(event) else {
            return Ok(());
        };
        let begun = effects.len();
        let handled = self.inner.on_event(event, around, effects);
        self.outward(begun, effects);
        handled
    }

    fn on_idle(&mut self, around: Surroundings<'_>, effects: &mut Vec<Effect>) -> Wake {
        let begun = effects.len();
        let wake = self.inner.on_idle(around, effects);
        self.outward(begun, effects);
        wake
    }

    fn status(&self) -> Status {
        let mut status = self.inner.status();
        for slot in [
            &mut status.accepted,
            &mut status.committed,
            &mut status.stable,
        ] {
            slot.0 += self.base;
        }
        status
    }

    fn open(&self) -> usize {
        self.inner.open()
    }

    fn take_open(&mut self) -> Vec<Submission> {
        self.inner.take_open()
    }

    fn digest(&self) -> u64 {
        self.inner.digest()
    }

    fn fingerprint(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        use core::hash::Hash;
        (self.base, self.written, self.generation).hash(&mut hasher);
        self.inner.fingerprint(hasher)
    }

    fn assert_invariants(&self) {
        self.inner.assert_invariants();
    }
}

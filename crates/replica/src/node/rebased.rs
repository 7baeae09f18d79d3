//! A protocol of an epoch behind the first: it counts slots and writes from 1 and members from 0,
//! the node continues.
//!
//! ```text
//!   protocol   1   2   3        write 1, 2           its own timers          r0 r1 r2
//!              │ + base         │ + writes before    │ + generation          │  │  │
//!   node     base+1 …           n+1, n+2             those of earlier        r0 r2 r3: who votes,
//!                                                    protocols are dropped   by their numbers
//! ```
//!
//! Where the voters' numbers have no gap, they are what the protocol knows them by, and nothing
//! is renamed.

use super::*;
use crate::{ClockReading, EventError, SnapshotLeft};

/// Details of protocols that draw who takes part.
const PICTURES: [&str; 2] = ["chain", "members"];

/// See the module.
pub(super) struct Rebased {
    inner: Box<dyn Replica>,
    /// The slot at which its epoch began.
    base: u64,
    /// The last write that an earlier protocol asked for.
    written: u64,
    /// See [`TimerKey::generation`].
    generation: u16,
    /// The voters, where the protocol knows them by others than their numbers.
    ranked: Option<Voters>,
}

/// The world as a protocol sees it that knows members by their ranks.
struct RankedWorld<'a> {
    world: &'a dyn World,
    voters: Voters,
}

impl World for RankedWorld<'_> {
    fn now(&self) -> Time {
        self.world.now()
    }

    fn clock(&self) -> ClockReading {
        self.world.clock()
    }

    fn room(&self, peer: ReplicaId) -> usize {
        self.world.room(self.voters.number(peer))
    }

    fn takes(&self, peer: ReplicaId, bytes: usize) -> bool {
        self.world.takes(self.voters.number(peer), bytes)
    }

    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        self.world.snapshot_newest()
    }

    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        self.world.snapshot_read(id, offset, length)
    }

    fn snapshot_left(&self) -> Option<SnapshotLeft> {
        self.world.snapshot_left()
    }
}

/// Calls `handle` with the world as the protocol of an epoch sees it that these vote in.
pub(crate) fn in_ranked_world<T>(
    ranked: Option<Voters>,
    world: &dyn World,
    handle: impl FnOnce(&dyn World) -> T,
) -> T {
    match ranked {
        Some(voters) => handle(&RankedWorld { world, voters }),
        None => handle(world),
    }
}

/// An effect with the numbers of the members that a protocol names in it.
pub(crate) fn name_members(voters: Voters, effect: &mut Effect) {
    match effect {
        Effect::Send {
            to: Recipients::Replicas(to),
            ..
        }
        | Effect::Request { to, .. }
        | Effect::Put { to, .. }
        | Effect::FetchState { from: to, .. } => *to = voters.numbers(*to),
        Effect::Route { members, .. } => {
            for (member, _) in members {
                *member = voters.number(*member);
            }
        }
        Effect::View { members, .. } => *members = voters.numbers(*members),
        Effect::Roles { roles, .. } => {
            for role in roles {
                role.members = voters.numbers(role.members);
                role.senders = voters.numbers(role.senders);
            }
        }
        Effect::Halt(reason) | Effect::StartAgain(reason) => *reason = voters.in_text(reason, "r"),
        Effect::Send {
            to: Recipients::Frontend(_),
            ..
        }
        | Effect::Persist { .. }
        | Effect::Trim { .. }
        | Effect::SetTimer { .. }
        | Effect::CancelTimer { .. }
        | Effect::Execute { .. }
        | Effect::Unordered { .. }
        | Effect::Query { .. }
        | Effect::Replay { .. }
        | Effect::Stable { .. }
        | Effect::RollBack { .. }
        | Effect::Checkpoint { .. }
        | Effect::Recovered
        | Effect::Done { .. }
        | Effect::Mark(_) => {}
    }
}

/// The event with the ranks of the members that it names; none when it is of one that the protocol
/// does not know.
fn rank_members(voters: Voters, mut event: Event) -> Option<Event> {
    match &mut event {
        Event::Message {
            from: Peer::Replica(from),
            ..
        }
        | Event::ToFrontend { from, .. }
        | Event::Reply { from, .. }
        | Event::Link(Peer::Replica(from), _)
        | Event::Put { from, .. }
        | Event::Control(Control::ReportFailure(from)) => *from = voters.rank(*from)?,
        Event::Control(
            Control::Slow(members) | Control::Farther(members) | Control::SlowMembers(members),
        ) => {
            *members = voters.ranks(*members);
        }
        Event::Message {
            from: Peer::Frontend(_),
            ..
        }
        | Event::Link(Peer::Frontend(_), _)
        | Event::Control(
            Control::CheckpointDue
            | Control::HandOff
            | Control::EpochEnded
            | Control::Option { .. },
        )
        | Event::Start(_)
        | Event::Submit(_)
        | Event::Timer(_)
        | Event::Persisted(_)
        | Event::Executed(_)
        | Event::RolledBack(_)
        | Event::Checkpointed(_)
        | Event::Installed { .. }
        | Event::Idle => {}
    }
    Some(event)
}

impl Rebased {
    /// The protocol of an epoch that began at this slot, among these voters; as it is when nothing
    /// was before and all rows of the epoch have voters.
    pub(super) fn over(
        inner: Box<dyn Replica>,
        base: Slot,
        written: PersistId,
        generation: u16,
        voters: Voters,
    ) -> Box<dyn Replica> {
        let ranked = (!voters.is_dense()).then_some(voters);
        if base == Slot(0) && ranked.is_none() {
            return inner;
        }
        Box::new(Self {
            inner,
            base: base.0,
            written: written.0,
            generation,
            ranked,
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
        match self.ranked {
            Some(voters) => rank_members(voters, event),
            None => Some(event),
        }
    }

    /// Effects behind the first `begun` as the node knows them.
    fn outward(&self, begun: usize, effects: &mut [Effect]) {
        let wait = |reply: &mut crate::ReplyRoute| {
            if let Some(after) = &mut reply.after {
                after.0 += self.written;
            }
        };
        for effect in &mut effects[begun..] {
            if let Some(voters) = self.ranked {
                name_members(voters, effect);
            }
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
                | Effect::View { .. }
                | Effect::Roles { .. }
                | Effect::Recovered
                | Effect::Done { .. }
                | Effect::Mark(_)
                | Effect::Halt(_)
                | Effect::StartAgain(_) => {}
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
        let handled = in_ranked_world(self.ranked, around.world, |world| {
            let around = Surroundings { world, ..around };
            self.inner.on_event(event, around, effects)
        });
        self.outward(begun, effects);
        handled
    }

    fn on_idle(&mut self, around: Surroundings<'_>, effects: &mut Vec<Effect>) -> Wake {
        let begun = effects.len();
        let wake = in_ranked_world(self.ranked, around.world, |world| {
            let around = Surroundings { world, ..around };
            self.inner.on_idle(around, effects)
        });
        self.outward(begun, effects);
        wake
    }

    fn status(&self, group: GroupId) -> Status {
        let mut status = self.inner.status(group);
        for slot in [
            &mut status.accepted,
            &mut status.committed,
            &mut status.stable,
        ] {
            slot.0 += self.base;
        }
        if let Some(voters) = self.ranked {
            status.leader = status.leader.map(|leader| voters.number(leader));
            for (name, value) in &mut status.details {
                if PICTURES.contains(name) {
                    *value = voters.in_text(value, "");
                }
            }
        }
        status
    }

    fn open(&self, group: GroupId) -> usize {
        self.inner.open(group)
    }

    fn take_open(&mut self, group: GroupId) -> Vec<Submission> {
        self.inner.take_open(group)
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

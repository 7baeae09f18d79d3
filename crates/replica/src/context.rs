//! The interface of a handler: the typed face of the effect buffer.

use crate::{
    Access, BatchId, BatchView, ClockReading, CommandId, CommandTime, Deadline, Durability, Effect,
    FootprintVisitor, Frame, FrontendId, GroupId, Incarnation, Lane, Outcome, PersistId, Protocol,
    Recipients, ReplicaId, ReplicaSet, ReplyRoute, RequestKind, Role, SessionId, Slot,
    StateMachine, Time, TimerKey, TimerOwner, Wire, World, Write, Writer, put_ranges,
};
use alloc::{collections::VecDeque, string::String, vec::Vec};
use bytes::{Bytes, BytesMut};
use core::cell::Cell;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use smallvec::SmallVec;

/// A message that crosses between the two halves inside one node, without being encoded.
#[derive(Debug)]
pub(crate) enum Local<M> {
    ToReplica(M),
    ToFrontend(M),
    /// To the frontend of a group: its members, and those of them that take requests to be ordered.
    Members {
        members: ReplicaSet,
        senders: ReplicaSet,
    },
}

/// Bytes allocated for frames at a time; the remainder at which the next allocation is due.
const SCRATCH: usize = 4096;
const SCRATCH_MIN: usize = 256;

/// The state of one group that a driver keeps between events.
pub(crate) struct GroupState {
    pub id: GroupId,
    durability: Durability,
    /// The number of the next write.
    persist_next: u64,
    /// Writes that the world must complete, in order; in memory durability only promises.
    persist_waiting: VecDeque<PersistId>,
    /// All writes up to this one are known to be durable.
    persisted: PersistId,
    /// The last slot that the group's executor has told.
    pub executed: Slot,
}

impl GroupState {
    pub const fn new(id: GroupId, durability: Durability) -> Self {
        Self {
            id,
            durability,
            persist_next: 1,
            persist_waiting: VecDeque::new(),
            persisted: PersistId(0),
            executed: Slot(0),
        }
    }

    const fn persist_id(&mut self) -> PersistId {
        let id = PersistId(self.persist_next);
        self.persist_next += 1;
        id
    }

    /// The world has made all up to this write durable.
    pub fn on_persisted(&mut self, upto: PersistId) {
        while self.persist_waiting.front().is_some_and(|id| *id <= upto) {
            self.persist_waiting.pop_front();
        }
    }

    /// The last write that is durable, if that is news.
    pub fn newly_durable(&mut self) -> Option<PersistId> {
        let durable = match self.persist_waiting.front() {
            Some(first) => PersistId(first.0 - 1),
            None => PersistId(self.persist_next - 1),
        };
        let news = durable > self.persisted;
        self.persisted = durable;
        news.then_some(durable)
    }

    /// The write that the world must still complete before all up to `after` are durable; none
    /// when they are, which in memory durability holds of every record behind the promises.
    fn still_waiting(&self, after: PersistId) -> Option<PersistId> {
        let waiting = &self.persist_waiting;
        waiting
            .get(waiting.partition_point(|id| *id <= after).checked_sub(1)?)
            .copied()
    }

    pub fn fingerprint(&self, hasher: &mut dyn core::hash::Hasher) {
        hasher.write_u64(self.persisted.0);
        hasher.write_u64(self.executed.0);
        hasher.write_u64(self.persist_next);
        for id in &self.persist_waiting {
            hasher.write_u64(id.0);
        }
    }
}

/// A driver's state between events, shared by the contexts of both halves.
pub(crate) struct Shared<M> {
    pub id: ReplicaId,
    pub embedded: FrontendId,
    pub random: ChaCha8Rng,
    pub scratch: BytesMut,
    pub local: VecDeque<(GroupId, Local<M>)>,
    /// The group that the driver was made for; most serve no other.
    pub home: GroupState,
    pub others: Vec<GroupState>,
    /// Effects in groups other than that of the calling node.
    pub foreign: Vec<(GroupId, Effect)>,
}

impl<M> Shared<M> {
    pub fn new(id: ReplicaId, embedded: FrontendId, home: GroupState, seed: u64) -> Self {
        Self {
            id,
            embedded,
            random: ChaCha8Rng::seed_from_u64(seed),
            scratch: BytesMut::new(),
            local: VecDeque::new(),
            home,
            others: Vec::new(),
            foreign: Vec::new(),
        }
    }

    /// The place of a group among the others; none for the driver's own.
    ///
    /// # Panics
    /// When the driver serves no such group.
    pub fn place(&self, group: GroupId) -> Option<usize> {
        if group == self.home.id {
            return None;
        }
        let place = self.others.iter().position(|other| other.id == group);
        Some(place.expect("the driver serves this group"))
    }

    pub fn group(&mut self, group: GroupId) -> &mut GroupState {
        match self.place(group) {
            None => &mut self.home,
            Some(place) => &mut self.others[place],
        }
    }

    fn encode(&mut self, value: &impl Wire) -> Frame {
        if self.scratch.capacity() < SCRATCH_MIN {
            // Many small frames share one allocation, and none grows field by field.
            self.scratch.reserve(SCRATCH);
        }
        let mut writer = Writer::new(&mut self.scratch);
        value.encode(&mut writer);
        writer.finish()
    }
}

/// The environment of a protocol: the world, and the state machine for its knowledge of commands.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Time, clock, room.
    pub world: &'a dyn World,
    /// The group whose node calls: every event concerns it.
    pub group: GroupId,
    /// Asked only for footprints; where there is none, every two batches conflict.
    pub machine: Option<&'a dyn StateMachine>,
    /// The message being handled comes from a frontend that is part of no member.
    pub from_outside: bool,
}

impl<'a> Surroundings<'a> {
    /// A world without a state machine, for the first group.
    #[must_use]
    pub const fn of(world: &'a dyn World) -> Self {
        Self {
            world,
            group: GroupId(0),
            machine: None,
            from_outside: false,
        }
    }
}

/// The interface of the replica's half inside a handler.
pub struct Context<'a, P: Protocol> {
    pub(crate) shared: &'a mut Shared<P::Message>,
    pub(crate) world: &'a dyn World,
    /// The group whose node calls, and the group that effects concern.
    pub(crate) calls: GroupId,
    pub(crate) group: GroupId,
    pub(crate) machine: Option<&'a dyn StateMachine>,
    /// Of a message from outside; elsewhere the clock is only read on demand.
    pub(crate) arrived: Option<Time>,
    pub(crate) from_outside: bool,
    pub(crate) effects: &'a mut Vec<Effect>,
    /// The readings of the clocks, once there are any: a handler takes no time worth another.
    pub(crate) now: Cell<Option<Time>>,
    pub(crate) clock: Cell<Option<ClockReading>>,
}

impl<P: Protocol> Context<'_, P> {
    /// The group that the event concerns, and that effects go to; always the same one for a protocol
    /// that serves one.
    #[must_use]
    pub const fn group(&self) -> GroupId {
        self.group
    }

    /// Effects of `act` concern another group that this protocol serves: its log, executor, timers
    /// and frontend; messages arrive at that group of the peers. Their order is kept within a group,
    /// not between groups.
    ///
    /// # Panics
    /// When `act` writes, or answers the own frontend, in a group that is not in the options'
    /// [`layout`](crate::Options::layout).
    pub fn in_group<R>(&mut self, group: GroupId, act: impl FnOnce(&mut Self) -> R) -> R {
        let concerned = core::mem::replace(&mut self.group, group);
        let done = act(self);
        self.group = concerned;
        done
    }

    fn emit(&mut self, effect: Effect) {
        if self.group == self.calls {
            self.effects.push(effect);
        } else {
            self.shared.foreign.push((self.group, effect));
        }
    }

    /// Monotonic time, the same at every call within one handler.
    #[must_use]
    pub fn now(&self) -> Time {
        if let Some(now) = self.now.get() {
            return now;
        }
        let now = self.world.now();
        self.now.set(Some(now));
        now
    }

    /// When the bytes of the message being handled arrived; in other handlers, and for messages
    /// from within the node, the same as [`Self::now`].
    #[must_use]
    pub fn arrived(&self) -> Time {
        self.arrived.unwrap_or_else(|| self.now())
    }

    /// The synchronised clock, the same at every call within one handler. Its errors may cost speed,
    /// never safety.
    #[must_use]
    pub fn clock(&self) -> ClockReading {
        if let Some(clock) = self.clock.get() {
            return clock;
        }
        let clock = self.world.clock();
        self.clock.set(Some(clock));
        clock
    }

    /// 64 random bits from this replica's seeded source.
    pub fn random(&mut self) -> u64 {
        self.shared.random.next_u64()
    }

    /// A random number below `bound`, without bias; 0 when `bound` is 0.
    pub fn random_below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        let zone = u64::MAX - u64::MAX % bound;
        loop {
            let draw = self.random();
            if draw < zone {
                return draw % bound;
            }
        }
    }

    /// Tells `visit` what the requests of a batch touch. Requests of one session conflict, and
    /// those that order nothing but time conflict with everything. Bytes that are no batch
    /// conflict with everything, too.
    pub fn footprint(&self, batch: &[u8], visit: &mut dyn FootprintVisitor) {
        let machine = self.machine.filter(|_| self.group == self.calls);
        footprint(batch, machine, visit);
    }

    /// Whether this batch of a frontend may be ordered at all: a client, or a proxy, cannot end the
    /// epoch. To be asked of every batch that a frontend sends.
    #[must_use]
    pub fn may_order(&mut self, batch: &BatchView<'_>) -> bool {
        let may = !(batch.seals() && self.from_outside);
        if !may {
            self.mark("refused: only a member's node ends the epoch");
        }
        may
    }

    /// How many bytes may still be queued for this peer.
    #[must_use]
    pub fn room(&self, peer: ReplicaId) -> usize {
        self.world.room(peer)
    }

    /// Whether a message of this length may be queued for this peer. A message that is longer than
    /// any room passes, too, when there is much: ask this before a message with a batch in it is
    /// sent.
    #[must_use]
    pub fn takes(&self, peer: ReplicaId, bytes: usize) -> bool {
        self.world.takes(peer, bytes)
    }

    /// Sends a message to one replica; to itself is not possible.
    ///
    /// # Panics
    /// When `to` is this replica.
    pub fn send(&mut self, to: ReplicaId, lane: Lane, message: &P::Message) {
        self.multicast(ReplicaSet::EMPTY.with(to), lane, message);
    }

    /// Sends a message to each of these replicas; it is encoded once.
    ///
    /// # Panics
    /// When this replica is among them.
    pub fn multicast(&mut self, to: ReplicaSet, lane: Lane, message: &P::Message) {
        assert!(
            !to.contains(self.shared.id),
            "a replica does not send to itself"
        );
        if to.is_empty() {
            return;
        }
        let frame = self.shared.encode(message);
        self.emit(Effect::Send {
            to: Recipients::Replicas(to),
            lane,
            frame,
        });
    }

    /// Sends a message to a frontend; to the embedded one it goes without being encoded.
    pub fn send_frontend(&mut self, to: FrontendId, message: P::Message) {
        if to == self.shared.embedded {
            let message = Local::ToFrontend(message);
            self.shared.local.push_back((self.group, message));
        } else {
            let frame = self.shared.encode(&message);
            self.emit(Effect::Send {
                to: Recipients::Frontend(to),
                lane: Lane::Control,
                frame,
            });
        }
    }

    /// The id of the frontend embedded in this replica.
    #[must_use]
    pub const fn embedded(&self) -> FrontendId {
        self.shared.embedded
    }

    /// Writes words of this replica's row into the peers' copies of the shared table: ranges of
    /// (index of the first word, new values). They are applied in their order, and over a transport
    /// of frames all of them before the peer does anything else. Puts are never dropped behind the
    /// protocol's back: a protocol that wants newer values to replace unsent ones looks at
    /// [`Self::room`] and puts later.
    pub fn put(&mut self, to: ReplicaSet, ranges: &[(u32, &[u64])]) {
        if !to.is_empty() {
            let ranges = put_ranges(ranges);
            self.emit(Effect::Put { to, ranges });
        }
    }

    /// Makes the replica's promises durable, in every durability. Steps that depend on them wait
    /// for [`Protocol::on_persisted`] with at least the returned id.
    pub fn persist_promise(&mut self, promise: &P::Promise) -> PersistId {
        let bytes = self.shared.encode(promise).into_bytes();
        let group = self.shared.group(self.group);
        let id = group.persist_id();
        group.persist_waiting.push_back(id);
        self.emit(Effect::Persist {
            id,
            write: Write::Promise(bytes),
        });
        id
    }

    /// Appends a record to the log. In memory durability nothing is written and it counts as
    /// durable as soon as the promises before it are.
    pub fn persist(&mut self, slot: Slot, record: &P::Record) -> PersistId {
        let group = self.shared.group(self.group);
        let id = group.persist_id();
        if group.durability == Durability::Disk {
            group.persist_waiting.push_back(id);
            let record = self.shared.encode(record).into_bytes();
            self.emit(Effect::Persist {
                id,
                write: Write::Record { slot, record },
            });
        }
        id
    }

    /// Records below this slot are no longer needed; a durable snapshot covers them.
    pub fn trim(&mut self, below: Slot) {
        self.emit(Effect::Trim { below });
    }

    /// Fires `timer` once after `delay`; moves it when it is set.
    pub fn set_timer(&mut self, timer: P::Timer, delay: core::time::Duration) {
        let at = Deadline::At(self.now() + delay);
        self.emit(Effect::SetTimer {
            key: replica_timer(timer),
            at,
        });
    }

    /// Fires `timer` once at `at`; moves it when it is set.
    pub fn set_timer_at(&mut self, timer: P::Timer, at: Deadline) {
        self.emit(Effect::SetTimer {
            key: replica_timer(timer),
            at,
        });
    }

    /// Forgets a timer.
    pub fn cancel_timer(&mut self, timer: P::Timer) {
        self.emit(Effect::CancelTimer {
            key: replica_timer(timer),
        });
    }

    /// Executes a batch. Slots must ascend from one call to the next.
    pub fn execute(
        &mut self,
        slot: Slot,
        time: CommandTime,
        batch: Bytes,
        reply: Option<(FrontendId, P::ReplyHeader, Option<PersistId>)>,
    ) {
        let reply = reply.map(|(to, header, after)| self.route(to, &header, after));
        self.emit(Effect::Execute {
            slot,
            time,
            batch,
            reply,
        });
    }

    /// Executes a batch that has no place in the order, see [`Effect::Unordered`].
    pub fn deliver_unordered(
        &mut self,
        time: CommandTime,
        batch: Bytes,
        reply: Option<(FrontendId, P::ReplyHeader)>,
    ) {
        let reply = reply.map(|(to, header)| self.route(to, &header, None));
        self.emit(Effect::Unordered { time, batch, reply });
    }

    /// Runs a batch of reads once everything up to `at_least` has been executed.
    pub fn query(
        &mut self,
        batch: Bytes,
        at_least: Slot,
        stable: bool,
        to: FrontendId,
        header: &P::ReplyHeader,
    ) {
        let reply = self.route(to, header, None);
        self.emit(Effect::Query {
            batch,
            at_least,
            stable,
            reply,
        });
    }

    /// Answers a batch again that was ordered before, in `at_least` or an earlier slot, from its
    /// sessions and once that has been executed. Nothing is executed.
    pub fn replay(
        &mut self,
        batch: Bytes,
        at_least: Slot,
        to: FrontendId,
        header: &P::ReplyHeader,
        after: Option<PersistId>,
    ) {
        let reply = self.route(to, header, after);
        self.emit(Effect::Replay {
            batch,
            at_least,
            reply,
        });
    }

    fn route(
        &mut self,
        to: FrontendId,
        header: &P::ReplyHeader,
        after: Option<PersistId>,
    ) -> ReplyRoute {
        ReplyRoute {
            to,
            header: self.shared.encode(header).into_bytes(),
            after: after.and_then(|after| self.shared.group(self.group).still_waiting(after)),
        }
    }

    /// Everything up to this slot is final. Only for protocols that speculate.
    pub fn stable(&mut self, slot: Slot) {
        self.emit(Effect::Stable { slot });
    }

    /// Undoes what was executed above this slot, which must not lie below what is stable. Later
    /// calls to `execute` continue from there; [`Protocol::on_rolled_back`] follows. A protocol
    /// that wants a peer's state undoes its own speculation first.
    pub fn roll_back(&mut self, slot: Slot) {
        self.emit(Effect::RollBack { slot });
    }

    /// Takes a snapshot after the executions asked for so far, the last of which was `slot`.
    pub fn checkpoint(&mut self, slot: Slot, summary: &P::Summary) {
        let summary = self.shared.encode(summary).into_bytes();
        self.emit(Effect::Checkpoint { slot, summary });
    }

    /// Obtains a snapshot that covers `at_least`; ends in [`Protocol::on_installed`]. The node
    /// retries until then; a newer call replaces an older one.
    pub fn fetch_state(&mut self, from: ReplicaSet, at_least: Slot) {
        self.emit(Effect::FetchState { from, at_least });
    }

    /// Tells who takes part now.
    pub fn route_is(&mut self, slot: Slot, members: &[(ReplicaId, Incarnation)]) {
        self.emit(Effect::Route {
            slot,
            members: SmallVec::from_slice(members),
            agreed: true,
        });
    }

    /// Reports the possible next members that take part: a vote for them has been cast, and the
    /// replica that decides must assume that it counts. Until a route from that slot on is
    /// reported, the protocol promises progress only when the present route and this one could both
    /// progress.
    pub fn route_may_become(&mut self, slot: Slot, members: &[(ReplicaId, Incarnation)]) {
        self.emit(Effect::Route {
            slot,
            members: SmallVec::from_slice(members),
            agreed: false,
        });
    }

    /// Tells the group's users its members from this view on, at the start as well: a protocol of
    /// [`CHANGES_MEMBERS`](crate::Protocol::CHANGES_MEMBERS) does. A view is told once it can no more
    /// be lost. Its number says everywhere the same view, and later ones have higher numbers.
    pub fn view_is(&mut self, number: u64, members: ReplicaSet) {
        self.emit(Effect::View { number, members });
    }

    /// Tells the parts in all groups but the first, for hosts and status. Frontends of groups send
    /// to these senders from here on, and reads to their own replica where it is a member.
    pub fn roles_are(&mut self, view: u64, roles: Vec<Role>) {
        let told = roles.iter().map(|role| {
            let (members, senders) = (role.members, role.senders);
            (role.group, Local::Members { members, senders })
        });
        self.shared.local.extend(told);
        self.emit(Effect::Roles { view, roles });
    }

    /// Counts a rare branch. The simulator takes one whose name begins with `impossible` for a
    /// violation.
    pub fn mark(&mut self, branch: &'static str) {
        self.emit(Effect::Mark(branch));
    }

    /// A replica that started with `state_lost` holds again all that it may have acknowledged, and
    /// its votes count from here on. As soon as everything persisted so far is durable, a restart
    /// is an ordinary one again.
    pub fn recovered(&mut self) {
        self.emit(Effect::Recovered);
    }

    /// The replica must not continue; the message says what to do.
    pub fn halt(&mut self, reason: String) {
        self.emit(Effect::Halt(reason));
    }

    /// The contents of its memory count no more: its process ends and starts again, with what
    /// is on its disk. The message says why.
    pub fn start_again(&mut self, reason: String) {
        self.emit(Effect::StartAgain(reason));
    }

    /// The journal does not say what this replica has accepted: it stops.
    pub fn halt_damaged(&mut self) {
        self.halt(String::from(
            "the journal has records missing in its middle; restore this replica's data \
             directory from a backup or replace it by a new member",
        ));
    }

    /// A member told what contradicts something that this replica knows for certain: it stops,
    /// and nothing that it asks for from here on is carried out. The handler returns.
    pub fn contradicted(&mut self, what: core::fmt::Arguments<'_>) {
        self.halt(crate::parts::contradiction(what));
    }
}

fn replica_timer(timer: impl Into<u32>) -> TimerKey {
    TimerKey {
        owner: TimerOwner::Replica,
        timer: timer.into(),
        generation: 0,
    }
}

fn footprint(batch: &[u8], machine: Option<&dyn StateMachine>, visit: &mut dyn FootprintVisitor) {
    let (Ok(view), Some(machine)) = (BatchView::new(batch), machine) else {
        return visit.everything(Access::Write);
    };
    for request in view.requests() {
        let session = request.id.session;
        let owner = CommandId {
            session: SessionId {
                owner: session.owner,
                number: 0,
            },
            sequence: 0,
        };
        let own = CommandId {
            session,
            sequence: 0,
        };
        match request.kind {
            RequestKind::Command => {
                visit.key(own.mixed(1), Access::Write);
                machine.footprint(request.payload, visit);
            }
            RequestKind::Open | RequestKind::Close => {
                visit.key(owner.mixed(2), Access::Write);
                visit.key(own.mixed(1), Access::Write);
            }
            RequestKind::Renew => visit.key(owner.mixed(2), Access::Write),
            RequestKind::Past => visit.everything(Access::Read),
            RequestKind::Tick | RequestKind::Seal => visit.everything(Access::Write),
        }
    }
}

/// The interface of the client's half inside a handler.
pub struct FrontendContext<'a, P: Protocol> {
    pub(crate) shared: &'a mut Shared<P::Message>,
    pub(crate) world: &'a dyn World,
    /// The group whose node calls, and the group whose frontend this is.
    pub(crate) calls: GroupId,
    pub(crate) group: GroupId,
    pub(crate) effects: &'a mut Vec<Effect>,
}

impl<P: Protocol> FrontendContext<'_, P> {
    fn emit(&mut self, effect: Effect) {
        if self.group == self.calls {
            self.effects.push(effect);
        } else {
            self.shared.foreign.push((self.group, effect));
        }
    }

    /// Monotonic time, fresh at every call.
    #[must_use]
    pub fn now(&self) -> Time {
        self.world.now()
    }

    /// The synchronised clock.
    #[must_use]
    pub fn clock(&self) -> ClockReading {
        self.world.clock()
    }

    /// 64 random bits from the seeded source.
    pub fn random(&mut self) -> u64 {
        self.shared.random.next_u64()
    }

    /// Sends a message to a replica; to the one that it is embedded in without being encoded.
    pub fn send(&mut self, to: ReplicaId, message: P::Message) {
        self.multicast(ReplicaSet::EMPTY.with(to), message);
    }

    /// Sends a message to each of these replicas; it is encoded once. The one that the frontend
    /// is embedded in gets it without being encoded. All of them see it as the frontend's.
    pub fn multicast(&mut self, to: ReplicaSet, message: P::Message) {
        let embedded = self.shared.embedded != FrontendId::default();
        let own = embedded && to.contains(self.shared.id);
        let others = if own { to.without(self.shared.id) } else { to };
        if !others.is_empty() {
            let frame = self.shared.encode(&message);
            self.emit(if embedded {
                Effect::Request { to: others, frame }
            } else {
                Effect::Send {
                    to: Recipients::Replicas(others),
                    lane: Lane::Control,
                    frame,
                }
            });
        }
        if own {
            let message = Local::ToReplica(message);
            self.shared.local.push_back((self.group, message));
        }
    }

    /// Ends a submission.
    pub fn done(&mut self, batch: BatchId, outcome: Outcome) {
        self.emit(Effect::Done { batch, outcome });
    }

    /// Fires `timer` once at `at`; moves it when it is set.
    pub fn set_timer(&mut self, timer: u32, at: Time) {
        let key = TimerKey {
            owner: TimerOwner::Frontend,
            timer,
            generation: 0,
        };
        self.emit(Effect::SetTimer {
            key,
            at: Deadline::At(at),
        });
    }

    /// Forgets a timer.
    pub fn cancel_timer(&mut self, timer: u32) {
        let key = TimerKey {
            owner: TimerOwner::Frontend,
            timer,
            generation: 0,
        };
        self.emit(Effect::CancelTimer { key });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Keyed;

    impl StateMachine for Keyed {
        fn apply(&mut self, _: &crate::At, _: &[u8], _: &mut Vec<u8>) {}
        fn query(&self, _: &crate::At, _: &[u8], _: &mut Vec<u8>) {}
        fn snapshot_chunk(&mut self, _: &mut Vec<u8>, _: usize) -> crate::SnapshotProgress {
            crate::SnapshotProgress::Done
        }
        fn restore_chunk(&mut self, _: &[u8]) -> Result<(), crate::RestoreError> {
            Ok(())
        }
        fn finish_restore(&mut self) -> Result<(), crate::RestoreError> {
            Ok(())
        }
        fn footprint(&self, command: &[u8], visit: &mut dyn FootprintVisitor) {
            visit.key(u64::from(command[0]), Access::Read);
        }
        fn digest(&self) -> u128 {
            0
        }
    }

    #[derive(Default)]
    struct Keys(alloc::collections::BTreeSet<u64>, bool);

    impl FootprintVisitor for Keys {
        fn key(&mut self, hash: u64, _: Access) {
            self.0.insert(hash);
        }
        fn everything(&mut self, _: Access) {
            self.1 = true;
        }
    }

    fn keys_of(number: u64, kind: RequestKind, payload: &[u8]) -> Keys {
        let session = SessionId { owner: 7, number };
        let id = CommandId {
            session,
            sequence: 1,
        };
        let mut builder = crate::BatchBuilder::new();
        builder.push(id, kind, 0, payload);
        let batch = builder.finish(FrontendId(1), BatchId(1), crate::Level::Ordered);
        let mut keys = Keys::default();
        footprint(&batch, Some(&Keyed), &mut keys);
        keys
    }

    #[test]
    fn requests_conflict_by_key_by_session_and_by_owner() {
        let command = |number, key| keys_of(number, RequestKind::Command, &[key]);
        let meet = |a: &Keys, b: &Keys| a.1 || b.1 || !a.0.is_disjoint(&b.0);
        assert!(!meet(&command(1, 1), &command(2, 2)));
        assert!(meet(&command(1, 1), &command(2, 1)), "one key");
        assert!(meet(&command(1, 1), &command(1, 2)), "one session");
        let open = |number| keys_of(number, RequestKind::Open, &[0; 8]);
        assert!(meet(&open(1), &open(2)), "one owner");
        assert!(meet(&open(1), &command(1, 1)));
        assert!(!meet(&open(1), &command(2, 1)));
        assert!(meet(&keys_of(1, RequestKind::Tick, &[]), &command(2, 2)));
        assert!(meet(&keys_of(1, RequestKind::Seal, &[]), &command(2, 2)));
        let mut keys = Keys::default();
        footprint(b"no batch", Some(&Keyed), &mut keys);
        assert!(keys.1);
    }

    #[test]
    fn reply_waits_only_for_writes_that_the_world_completes() {
        let mut group = GroupState::new(GroupId(0), Durability::Memory);
        assert_eq!(group.still_waiting(PersistId(3)), None, "records only");
        group.persist_waiting.extend([PersistId(2), PersistId(5)]);
        assert_eq!(group.still_waiting(PersistId(1)), None);
        assert_eq!(group.still_waiting(PersistId(4)), Some(PersistId(2)));
        assert_eq!(group.still_waiting(PersistId(5)), Some(PersistId(5)));
    }
}

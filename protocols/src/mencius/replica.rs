//! One replica: its state, and how events reach the parts.

use super::{
    Config, Frontend, Message, Promised, Record, Summary, Value,
    plant::Plant,
    reads::Reads,
    recovery::Recovery,
    revoke::{Owed, Revocation},
};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::ToString,
    vec,
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::{
    CommandTime, Context, Control, Durability, Incarnation, Info, Link, Options, Peer, PersistId,
    Protocol, Recovered, ReplicaId, ReplicaSet, Setup, Slot, Status, Time, Wake,
    parts::{Ballot, KeptRequests, RequestKey, RequestQueue, SlotLog, StateFetch, Tally, Timing},
};

/// Slots further than this above the commit point are not kept.
pub(super) const SLOTS_MAX: u64 = 1 << 16;
/// An owner uses or skips no slot further than this above its commit point.
pub(super) const USED_MAX: u64 = SLOTS_MAX / 2;
/// Own slots are reserved on disk so many turns at a time.
pub(super) const RESERVED_TURNS: u64 = 64;
/// So many turns beyond what was suggested are revoked at a time.
pub(super) const REVOKED_AHEAD: u64 = 32;

/// What stands in a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub ballot: Ballot,
    pub value: Value,
    pub decided: bool,
    pub durable: bool,
}

/// An own suggestion that is not executed.
#[derive(Clone, Debug, Hash)]
pub(super) struct OwnSlot {
    pub tally: Tally,
    pub value: Value,
}

/// What is known of another replica.
#[derive(Clone, Debug, Hash)]
pub(super) struct Member {
    pub heard_at: Time,
    pub down_at: Option<Time>,
    /// It has said nothing since its link was made.
    pub is_new: bool,
    pub incarnation: Incarnation,
    pub committed: Slot,
    /// It has said how far it has come since this replica started.
    pub told: bool,
    pub forgot: bool,
}

quintet_replica::timers! {
    /// What wakes a replica.
    pub enum Timer {
        /// It is heard, and looks after the others.
        Heartbeat,
        /// Nothing has moved for a while.
        Coordination,
        /// Requests and reads under way are looked through.
        Housekeeping,
    }
}

const HOUSEKEEPING: Duration = Duration::from_millis(500);

/// One replica of Mencius; see the module.
#[derive(Hash)]
pub struct Mencius {
    pub(super) id: ReplicaId,
    pub(super) incarnation: Incarnation,
    pub(super) members: usize,
    pub(super) majority: usize,
    pub(super) others: ReplicaSet,
    pub(super) durability: Durability,
    pub(super) config: Config,

    pub(super) promised: Promised,
    pub(super) promises: VecDeque<(PersistId, Slot)>,
    pub(super) reserved_durable: Slot,
    pub(super) owed: VecDeque<Owed>,
    pub(super) ballots_seen: Vec<Ballot>,
    pub(super) revoking: BTreeMap<ReplicaId, Revocation>,
    pub(super) revoked_at: Time,
    /// Own slots up to here may be others' to decide.
    pub(super) revoked_until: Slot,
    pub(super) ahead_looked: Slot,
    pub(super) recovery: Option<Recovery>,
    /// Those that are far slower than a majority, as this replica sees it.
    pub(super) slow: ReplicaSet,
    /// Who orders what this replica's frontends ask for, if not this replica.
    pub(super) forward_to: Option<ReplicaId>,

    pub(super) log: SlotLog<Held>,
    pub(super) log_bytes: usize,
    pub(super) writes: VecDeque<(PersistId, Slot)>,
    /// Everything up to here is decided, and handed over to be executed.
    pub(super) committed: Slot,
    pub(super) executed_done: Slot,
    pub(super) time_seen: CommandTime,
    pub(super) time_executed: CommandTime,
    pub(super) fetching: StateFetch,

    pub(super) peers: Vec<Member>,
    pub(super) next_own: Slot,
    /// The highest slot that anybody is known to have suggested.
    pub(super) latest: Slot,
    pub(super) outstanding: BTreeMap<Slot, OwnSlot>,
    pub(super) learnt: Vec<Slot>,
    pub(super) votes_due: Vec<Slot>,
    pub(super) queue: RequestQueue,
    /// What others forwarded and has not been executed: it is suggested until it is.
    pub(super) forwarded: BTreeSet<RequestKey>,
    pub(super) requests: KeptRequests,
    pub(super) reads: Reads,
    pub(super) marker_wanted: bool,
    pub(super) said_due: bool,
    pub(super) leaving_until: Time,

    pub(super) coordination_armed: bool,
    pub(super) coordination_tries: u32,
    pub(super) coordination_saw: Slot,
    pub(super) fetch_next: Timing<u64>,
    pub(super) progress_at: Time,
    housekeeping: bool,
}

impl Mencius {
    pub(super) fn arm_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.housekeeping {
            self.housekeeping = true;
            ctx.set_timer(Timer::Housekeeping, HOUSEKEEPING);
        }
    }

    fn on_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        self.housekeeping = false;
        self.requests.expire(ctx.now());
        self.reads.expire(ctx.now());
        self.aim_reads();
        if !self.requests.is_empty() || !self.reads.is_empty() {
            self.arm_housekeeping(ctx);
        }
    }

    pub(super) fn persist_promise(&mut self, ctx: &mut Context<'_, Self>) -> PersistId {
        let id = ctx.persist_promise(&self.promised);
        self.promises.push_back((id, self.promised.reserved));
        id
    }

    pub(super) fn alive(&self, id: ReplicaId, now: Time) -> bool {
        let peer = &self.peers[id.index()];
        let down = peer
            .down_at
            .is_some_and(|at| now.since(at) >= self.config.heartbeat * 2);
        !down && now.since(peer.heard_at) < self.config.suspect
    }

    fn on_heartbeat(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
        self.said_due = true;
        self.watch_recovery(ctx);
        self.look_for_slow(ctx);
        self.revoke_blocked(ctx);
    }

    fn on_replica_message(
        &mut self,
        from: ReplicaId,
        message: Message,
        ctx: &mut Context<'_, Self>,
    ) {
        let peer = &mut self.peers[from.index()];
        peer.heard_at = ctx.arrived();
        peer.down_at = None;
        match message {
            Message::Said(said) => self.on_said(from, said, ctx),
            Message::Prepare(range) => self.on_prepare(from, range, ctx),
            Message::Promise { range, accepted } => self.on_promise(from, range, accepted, ctx),
            Message::Accept { range, values } => self.on_accept(from, range, &values, ctx),
            Message::Voted {
                range,
                incarnation,
                lives,
            } => {
                self.meet(from, incarnation, ctx);
                self.meet_all(&lives, ctx);
                self.on_voted(from, range, incarnation, ctx);
            }
            Message::Learn { range, values } => self.on_learn(range, &values, ctx),
            Message::Refused {
                owner,
                ballot,
                until,
            } => self.on_refused(owner, ballot, until, ctx),
            Message::Fetch { first } => self.on_fetch(from, first, ctx),
            Message::Known { committed, values } => self.on_known(from, committed, values, ctx),
            Message::Trimmed { first } => self.on_trimmed(from, first.previous(), ctx),
            Message::Recover { incarnation, nonce } => {
                self.on_recover(from, incarnation, nonce, ctx);
            }
            Message::RecoverOk { nonce, last } => self.on_recover_ok(from, nonce, last, ctx),
            Message::Forward { batches } => self.on_forward(batches, ctx),
            Message::ReadAsk { round } => self.on_read_ask(from, round, ctx),
            Message::ReadAt { round, slot } => self.on_read_at(round, slot, ctx),
            Message::Request { .. } | Message::Taken { .. } => {
                ctx.mark("ignored: not a replica's message");
            }
        }
    }

    /// Frames may be lost: what they said is said again.
    fn after_reset(&mut self, peer: ReplicaId, ctx: &mut Context<'_, Self>) {
        self.said_due = true;
        if self.forward_to == Some(peer) {
            self.forward_all();
        }
        self.coordination_armed = true;
        self.coordination_saw = self.committed;
        ctx.set_timer(Timer::Coordination, Duration::ZERO);
    }
}

/// The first of a queue, if it is ready.
fn pop_if<T>(queue: &mut VecDeque<T>, ready: impl FnOnce(&T) -> bool) -> Option<T> {
    if queue.front().is_some_and(ready) {
        queue.pop_front()
    } else {
        None
    }
}

impl Protocol for Mencius {
    type Message = Message;
    type Promise = Promised;
    type Record = Record;
    type Summary = Summary;
    type ReplyHeader = ();
    type Timer = Timer;
    type Options = Config;
    type Frontend = Frontend;

    const NEEDS_STREAMS: bool = true;
    #[cfg(feature = "plant")]
    const PLANTS: &'static [quintet_replica::PlantSpec] = Plant::SPECS;
    const RESUMES_WITHIN: Duration = Duration::from_secs(3);
    const BRANCHES: &'static [&'static str] = &[
        "own slots were revoked",
        "recovered",
        "revokes slots",
        "skips own slots",
        "slow member forwards its requests",
        "slots revoked",
        "state transfer chosen",
        "suggestion lost its slot",
        "suggestions sent again",
    ];

    const INFO: Info = Info {
        name: "mencius",
        paper: "Mao, Junqueira, Marzullo, Mencius: Building Efficient Replicated State Machines \
                for WANs",
        best_at: "spreading the work of ordering: every replica orders what its clients send",
        tolerates: "crashes, loss and partitions of a minority",
        stable: false,
        replicas_min: 1,
    };

    fn new(setup: Setup<Config>) -> Self {
        let Setup {
            id,
            incarnation,
            epoch,
            options,
            durability,
            ..
        } = setup;
        let members = epoch.members;
        let member = Member {
            heard_at: Time(0),
            down_at: None,
            is_new: false,
            incarnation: Incarnation(0),
            committed: Slot(0),
            told: false,
            forgot: false,
        };
        Self {
            id,
            incarnation,
            members,
            majority: epoch.majority(),
            others: epoch.others(id),
            durability,
            config: options,
            promised: Promised {
                leases: vec![(Ballot::default(), Slot(0)); members],
                reserved: Slot(0),
            },
            promises: VecDeque::new(),
            reserved_durable: Slot(0),
            owed: VecDeque::new(),
            ballots_seen: vec![Ballot::default(); members],
            revoking: BTreeMap::new(),
            revoked_at: Time(0),
            revoked_until: Slot(0),
            ahead_looked: Slot(0),
            recovery: None,
            slow: ReplicaSet::EMPTY,
            forward_to: None,
            log: SlotLog::default(),
            log_bytes: 0,
            writes: VecDeque::new(),
            committed: Slot(0),
            executed_done: Slot(0),
            time_seen: CommandTime(0),
            time_executed: CommandTime(0),
            fetching: StateFetch::default(),
            peers: vec![member; members],
            next_own: Slot(1 + u64::from(id.0)),
            latest: Slot(0),
            outstanding: BTreeMap::new(),
            learnt: Vec::new(),
            votes_due: Vec::new(),
            queue: RequestQueue::default(),
            forwarded: BTreeSet::new(),
            requests: KeptRequests::new(),
            reads: Reads::default(),
            marker_wanted: false,
            said_due: false,
            leaving_until: Time(0),
            coordination_armed: false,
            coordination_tries: 0,
            coordination_saw: Slot(0),
            fetch_next: Timing(0),
            progress_at: Time(0),
            housekeeping: false,
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        let now = ctx.now();
        *self.fetch_next = ctx.random();
        self.reads.start(ctx.random());
        self.progress_at = now;
        for peer in &mut self.peers {
            peer.heard_at = now;
        }
        let Recovered {
            first_boot, forgot, ..
        } = recovered;
        if !self.restore(recovered) && !forgot {
            return ctx.halt(
                "the journal has records missing in its middle; restore this replica's data \
                 directory from a backup or replace it by a new member"
                    .to_string(),
            );
        }
        self.executed_done = self.committed;
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
        // What it suggested before may have reached others and not its own disk.
        let used = self.promised.reserved;
        let revoked = self.promised.leases[self.id.index()].1;
        self.revoked_until = revoked;
        self.next_own = self.slot_of(self.id, used.max(revoked).max(self.committed));
        if self.planted(Plant::SlotReused) {
            self.next_own = self.slot_of(self.id, revoked.max(self.committed));
        }
        if first_boot {
            self.next_own = Slot(1 + u64::from(self.id.0));
        }
        self.latest = self.log.end().previous().max(self.committed);
        self.said_due = true;
        self.promised.reserved = Slot(self.next_own.0 + self.members as u64 * RESERVED_TURNS);
        self.persist_promise(ctx);

        self.advance(ctx);
        if forgot && !self.planted(Plant::RecoverySkipped) {
            return self.become_recovering(ctx);
        }
        self.arm_coordination(ctx);
    }

    fn on_message(&mut self, from: Peer, message: Message, ctx: &mut Context<'_, Self>) {
        match from {
            Peer::Frontend(frontend) => match message {
                Message::Request { level, batch } => self.on_request(frontend, level, batch, ctx),
                _ => ctx.mark("ignored: not a frontend's message"),
            },
            Peer::Replica(from) if self.others.contains(from) => {
                self.on_replica_message(from, message, ctx);
            }
            Peer::Replica(_) => ctx.mark("ignored: not a member"),
        }
    }

    fn on_timer(&mut self, timer: Timer, ctx: &mut Context<'_, Self>) {
        match timer {
            Timer::Heartbeat => self.on_heartbeat(ctx),
            Timer::Coordination => self.on_coordination(ctx),
            Timer::Housekeeping => self.on_housekeeping(ctx),
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        while let Some((_, reserved)) = pop_if(&mut self.promises, |(id, _)| *id <= upto) {
            self.reserved_durable = self.reserved_durable.max(reserved);
        }
        while let Some((_, slot)) = pop_if(&mut self.writes, |(id, _)| *id <= upto) {
            if let Some(held) = self.log.get_mut(slot) {
                held.durable = true;
                if held.ballot == Ballot::default() && self.recovery.is_none() {
                    self.vote_is_due(slot, ctx);
                }
            }
        }
        while let Some(owed) = pop_if(&mut self.owed, |owed| owed.write <= upto) {
            self.pay(&owed, ctx);
        }
    }

    fn on_executed(&mut self, slot: Slot, _ctx: &mut Context<'_, Self>) {
        self.executed_done = self.executed_done.max(slot);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        ctx.trim(slot.next());
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        self.executed_done = self.executed_done.max(slot);
        self.install(slot, summary, ctx);
    }

    fn on_link(&mut self, peer: Peer, link: Link, ctx: &mut Context<'_, Self>) {
        let Peer::Replica(peer) = peer else { return };
        if !self.others.contains(peer) {
            return;
        }
        let now = ctx.now();
        let member = &mut self.peers[peer.index()];
        match link {
            Link::Up { incarnation } => {
                (member.down_at, member.is_new) = (None, true);
                self.meet(peer, incarnation, ctx);
                self.after_reset(peer, ctx);
            }
            Link::Reset => self.after_reset(peer, ctx),
            Link::Down => {
                member.down_at.get_or_insert(now);
                self.look_for_slow(ctx);
            }
            Link::Arriving => member.heard_at = now,
            Link::Room(_) => {}
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            // Nobody leads.
            Control::Slow(_) | Control::EpochEnded => {}
            Control::SlowMembers(slow) => self.on_slow_members(slow, ctx),
            Control::CheckpointDue => self.checkpoint(ctx),
            Control::HandOff => {
                self.leaving_until = ctx.now() + self.config.suspect * 4;
                self.said_due = true;
            }
            Control::ReportFailure(peer) => {
                if self.others.contains(peer) {
                    self.peers[peer.index()].heard_at = Time(0);
                    self.revoke_blocked(ctx);
                }
            }
            Control::Option { name, value } => {
                let mut changed = self.config.clone();
                match changed.set(&name, &value).and_then(|()| changed.check()) {
                    Ok(()) => self.config = changed,
                    Err(_) => ctx.mark("ignored: option value"),
                }
            }
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.flush(ctx);
        self.arm_coordination(ctx);
        Wake::Sleep
    }

    fn takes_requests(&self, now: Time) -> bool {
        self.recovery.is_none() && now >= self.leaving_until
    }

    fn status(&self) -> Status {
        let last = self.log.end().previous().max(self.committed);
        Status {
            role: if self.recovery.is_some() {
                "recovering"
            } else {
                "proposer"
            },
            leader: None,
            view: 0,
            accepted: last,
            committed: self.committed,
            stable: self.committed,
            voting: self.recovery.is_none() && !self.fetching.under_way(),
            details: vec![
                ("log_first", self.log.first().to_string()),
                ("log_last", last.to_string()),
                ("log_bytes", self.log_bytes.to_string()),
                ("next_own", self.next_own.to_string()),
                ("outstanding", self.outstanding.len().to_string()),
                ("requests", self.requests.len().to_string()),
                ("revoking", self.revoking.len().to_string()),
                ("slow", self.slow.len().to_string()),
            ],
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for word in [
            u64::from(self.recovery.is_some()),
            self.log.first().0,
            self.log.end().0,
            self.log_bytes as u64,
            self.committed.0,
            self.latest.0,
            self.next_own.0,
            self.promised.reserved.0,
            self.outstanding.len() as u64,
            self.revoking.len() as u64,
            self.requests.len() as u64,
        ] {
            hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
        }
        hash
    }

    fn fingerprint(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        core::hash::Hash::hash(self, &mut hasher);
        true
    }

    fn assert_invariants(&self) {
        assert!(
            self.log.first() <= self.committed.next(),
            "what is not executed is kept"
        );
        assert!(
            self.executed_done <= self.committed,
            "executions were asked for"
        );
        assert!(self.owner(self.next_own) == self.id, "own slots only");
        let next = self.log.get(self.committed.next());
        assert!(
            !next.is_some_and(|held| held.decided),
            "what can be executed is"
        );
        for (slot, own) in self.outstanding.iter().take(4) {
            assert!(
                self.owner(*slot) == self.id && *slot < self.next_own,
                "suggested: {own:?}"
            );
        }
        let revoked = self.promised.leases[self.id.index()].1;
        assert!(
            self.next_own > revoked
                || self.recovery.is_some()
                || revoked.0 > self.committed.0 + SLOTS_MAX,
            "nothing is suggested where others decide"
        );
    }
}

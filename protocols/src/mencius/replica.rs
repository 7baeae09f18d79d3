//! One replica: its state, and how events reach the parts.

use super::{
    Config, Message, Promised, Record, Summary, bug::Bug, catch_up::CatchUp, leases::Leases,
    log::Log, outbox::Outbox, own_slots::OwnSlots, peers::Peers, read_queue::ReadQueue,
    relay::Relay, revocations::Revocations, turns::Turns,
};
use alloc::{string::ToString, vec};
use core::time::Duration;
use quintet_replica::{
    Context, Control, FrontendId, Info, Link, Options, PersistId, Protocol, Recovered, ReplicaId,
    Setup, Slot, Status, Time, Wake,
    parts::{
        Admitted, AttachedFrontend, Coordination, Housekeeping, Member, StateFetch, admit, digest,
    },
};

/// Replicas suggest and answer by themselves, so the shared frontend is all that is needed.
pub type Frontend = AttachedFrontend<Mencius>;

/// An owner uses or skips no slot further than this above its commit point.
pub(super) const USED_MAX: u64 = super::log::SLOTS_MAX / 2;
/// Own slots are reserved on disk for this number of turns at a time.
pub(super) const RESERVED_TURNS: u64 = 64;
/// This number of turns beyond what was suggested is revoked at a time.
pub(super) const REVOKED_AHEAD: u64 = 32;

quintet_replica::timers! {
    /// The timers of a replica.
    pub enum Timer {
        /// It is heard, and looks after the others.
        Heartbeat,
        /// Nothing has moved for a while.
        Coordination,
        /// Requests and reads in flight are looked through.
        Housekeeping,
    }
}

/// One replica of Mencius; see the module.
#[derive(Hash)]
pub struct Mencius {
    pub(super) me: Member,
    pub(super) turns: Turns,
    pub(super) config: Config,
    pub(super) leases: Leases,
    pub(super) revocations: Revocations,
    pub(super) log: Log,
    pub(super) own: OwnSlots,
    pub(super) outbox: Outbox,
    /// Watches the commit point.
    pub(super) coordination: Coordination<Slot>,
    pub(super) peers: Peers,
    pub(super) relay: Relay,
    pub(super) reads: ReadQueue,
    pub(super) recovery: Option<CatchUp>,
    pub(super) fetching: StateFetch,
    pub(super) housekeeping: Housekeeping<Timer>,
}

impl Mencius {
    fn on_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        self.housekeeping.fired();
        self.relay.kept.expire(ctx.now());
        self.reads.expire(ctx.now());
        self.aim_reads();
        if !self.relay.kept.is_empty() || !self.reads.is_empty() {
            self.housekeeping.arm(ctx);
        }
    }

    pub(super) fn persist_promise(&mut self, ctx: &mut Context<'_, Self>) -> PersistId {
        let id = ctx.persist_promise(self.leases.promised());
        self.leases.written(id);
        id
    }

    fn on_heartbeat(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
        self.outbox.want();
        self.watch_recovery(ctx);
        self.look_for_slow(ctx);
        self.revoke_blocked(ctx);
    }

    /// Frames may be lost: what they said is said again.
    fn after_reset(&mut self, peer: ReplicaId, ctx: &mut Context<'_, Self>) {
        self.outbox.want();
        if self.relay.to() == Some(peer) {
            self.forward_all();
        }
        self.coordination.arm(self.log.committed());
        ctx.set_timer(Timer::Coordination, Duration::ZERO);
    }
}

impl Protocol for Mencius {
    quintet_replica::usual_items!();
    type Record = Record;
    type ReplyHeader = ();

    const NEEDS_STREAMS: bool = true;
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
        stable: true,
        replicas_min: 1,
    };

    fn new(setup: Setup<Config>) -> Self {
        let me = Member::new(&setup);
        let members = me.members();
        let turns = Turns::new(members);
        Self {
            turns,
            config: setup.options,
            leases: Leases::new(members),
            revocations: Revocations::default(),
            log: Log::default(),
            own: OwnSlots::new(me.id(), turns),
            outbox: Outbox::default(),
            coordination: Coordination::default(),
            peers: Peers::new(members),
            relay: Relay::default(),
            reads: ReadQueue::default(),
            recovery: None,
            fetching: StateFetch::default(),
            housekeeping: Housekeeping::new(Timer::Housekeeping),
            me,
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.coordination.start(ctx.random());
        self.reads.start(ctx.random());
        self.revocations.progressed(ctx.now());
        self.peers.start(ctx.now());
        let Recovered {
            first_boot,
            state_lost,
            ..
        } = recovered;
        if !self.restore(recovered) && !state_lost {
            return ctx.halt_damaged();
        }
        let committed = self.log.committed();
        self.log.on_executed(committed);
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
        let revoked = self.leases.of(self.me.id()).1;
        let used = if first_boot {
            Slot(0)
        } else if self.injected(Bug::SlotReused) {
            revoked.max(committed)
        } else {
            // Its earlier suggestions may have reached others and not its own disk.
            self.leases.reserved().max(revoked).max(committed)
        };
        self.own.start(used, revoked);
        self.own.learn_latest(self.log.last());
        self.outbox.want();
        let reserved = self.turns.ahead(self.own.next(), RESERVED_TURNS);
        self.leases.reserve(reserved);
        self.persist_promise(ctx);

        self.advance(ctx);
        if state_lost && !self.injected(Bug::RecoverySkipped) {
            return self.become_recovering(ctx);
        }
        self.arm_coordination(ctx);
    }

    fn on_request(&mut self, from: FrontendId, message: Message, ctx: &mut Context<'_, Self>) {
        let takes = self.takes_requests(ctx.now());
        match admit(from, message, |_| !takes, ctx) {
            Some(Admitted::Read(key, batch)) => self.on_read(key, batch, ctx),
            Some(Admitted::Write(key, batch)) => self.on_write(key, batch, ctx),
            None => {}
        }
    }

    fn on_message(&mut self, from: ReplicaId, message: Message, ctx: &mut Context<'_, Self>) {
        self.peers.contact(from).received(ctx.arrived());
        match message {
            Message::Said(said) => self.on_said(from, said, ctx),
            Message::Prepare(range) => self.on_prepare(from, range, ctx),
            Message::Promise { range, accepted } => self.on_promise(from, range, accepted, ctx),
            Message::Accept { range, values } => self.on_accept(from, range, &values, ctx),
            Message::Voted {
                range,
                incarnation,
                incarnations,
            } => {
                self.meet(from, incarnation, ctx);
                self.meet_all(&incarnations, ctx);
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
            Message::Request(_) | Message::Taken(_) => {
                ctx.mark("ignored: not a replica's message");
            }
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
        self.leases.durable_up_to(upto);
        while let Some((slot, suggested)) = self.log.durable_up_to(upto) {
            if suggested && self.recovery.is_none() {
                self.vote_is_due(slot, ctx);
            }
        }
        while let Some(reply) = self.revocations.pop_reply(upto) {
            self.reply(&reply, ctx);
        }
    }

    fn on_executed(&mut self, slot: Slot, _ctx: &mut Context<'_, Self>) {
        self.log.on_executed(slot);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        ctx.trim(slot.next());
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        self.log.on_executed(slot);
        self.install(slot, summary, ctx);
    }

    fn on_link(&mut self, peer: ReplicaId, link: Link, ctx: &mut Context<'_, Self>) {
        match link {
            Link::Up { incarnation } => {
                self.peers.contact(peer).link_up();
                self.meet(peer, incarnation, ctx);
                self.after_reset(peer, ctx);
            }
            Link::Reset => self.after_reset(peer, ctx),
            Link::Down => {
                self.peers.contact(peer).link_down(ctx.now());
                self.look_for_slow(ctx);
            }
            Link::Arriving => self.peers.contact(peer).arriving(ctx.now()),
            Link::Room(_) => {}
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            // There is no leader.
            Control::Slow(_) | Control::Farther(_) | Control::EpochEnded => {}
            Control::SlowMembers(slow) => self.on_slow_members(slow, ctx),
            Control::CheckpointDue => self.checkpoint(ctx),
            Control::HandOff => {
                self.relay
                    .leave(ctx.now() + self.config.suspect_timeout * 4);
                self.outbox.want();
            }
            Control::ReportFailure(peer) => {
                if self.me.others().contains(peer) {
                    self.peers.contact(peer).arriving(Time(0));
                    self.revoke_blocked(ctx);
                }
            }
            Control::Option { name, value } => match self.config.changed(&name, &value) {
                Some(changed) => self.config = changed,
                None => ctx.mark("ignored: option value"),
            },
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.flush(ctx);
        self.arm_coordination(ctx);
        Wake::Sleep
    }

    fn takes_requests(&self, now: Time) -> bool {
        self.recovery.is_none() && !self.relay.is_leaving(now)
    }

    fn status(&self) -> Status {
        let last = self.log.last();
        Status {
            role: if self.recovery.is_some() {
                "recovering"
            } else {
                "proposer"
            },
            leader: None,
            view: 0,
            accepted: last,
            committed: self.log.committed(),
            stable: self.log.committed(),
            voting: self.recovery.is_none() && !self.fetching.in_progress(),
            details: vec![
                ("log_first", self.log.first().to_string()),
                ("log_last", last.to_string()),
                ("log_bytes", self.log.bytes().to_string()),
                ("next_own", self.own.next().to_string()),
                ("outstanding", self.own.len().to_string()),
                ("requests", self.relay.kept.len().to_string()),
                ("revoking", self.revocations.len().to_string()),
                ("slow", self.peers.slow().len().to_string()),
            ],
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        let words = [
            u64::from(self.recovery.is_some()),
            self.log.first().0,
            self.log.end().0,
            self.log.bytes() as u64,
            self.log.committed().0,
            self.own.latest().0,
            self.own.next().0,
            self.leases.reserved().0,
            self.own.len() as u64,
            self.revocations.len() as u64,
            self.relay.kept.len() as u64,
        ];
        digest(words)
    }

    fn assert_invariants(&self) {
        self.log.assert_invariants();
        self.own.assert_invariants();
        let revoked = self.leases.of(self.me.id()).1;
        assert!(
            self.own.next() > revoked || self.recovery.is_some() || revoked > self.log.far(),
            "nothing is suggested where others decide"
        );
    }
}

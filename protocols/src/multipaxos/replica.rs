//! One replica: its state, and how events reach the parts.

use super::{
    Config, Frontend, Message, Promised, Proposal, Record, Summary, Value, election::Candidate,
    leader::Lead, plant::Plant, reads::Reads, recovery::Recovery,
};
use crate::sadl::{Dissemination, Name, News, Sadl};
use alloc::{collections::VecDeque, format, string::ToString, vec, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    Bytes, CommandTime, Context, Control, Durability, Incarnation, Info, Link, Options, Peer,
    PersistId, Protocol, Recovered, ReplicaId, ReplicaSet, Setup, Slot, Status, Time, Wake,
    parts::{Ballot, KeptRequests, SlotLog, StateFetch},
};

/// What a replica keeps for a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    /// The ballot that it was accepted under.
    pub ballot: Ballot,
    pub proposal: Proposal,
}

impl Held {
    /// What it takes in memory, about.
    pub fn bytes(&self) -> usize {
        self.proposal.value.len() + size_of::<Self>()
    }
}

/// A replica's part.
#[derive(Hash)]
pub(super) enum Role {
    Follower,
    Candidate(Candidate),
    Leader(Lead),
    Recovering(Recovery),
}

quintet_replica::timers! {
    /// What wakes a replica.
    pub enum Timer {
        /// A follower's patience with its leader, or a candidate's with its voters.
        Election,
        /// A leader's heartbeat; a candidate or recovering replica asks again.
        Heartbeat,
        /// Requests and reads under way are looked through.
        Housekeeping,
        /// Disseminated batches are shown again.
        Show,
        /// Disseminated batches are asked for again.
        Fetch,
    }
}

/// How often requests and reads under way are looked through.
const HOUSEKEEPING: Duration = Duration::from_millis(500);

/// One replica of Multi-Paxos; see the module.
#[derive(Hash)]
pub struct MultiPaxos {
    pub(super) id: ReplicaId,
    pub(super) incarnation: Incarnation,
    pub(super) members: usize,
    pub(super) majority: usize,
    pub(super) others: ReplicaSet,
    pub(super) durability: Durability,
    pub(super) config: Config,
    /// The ballot that the first leader owns without phase 1: no lower one exists.
    pub(super) ballot_first: Ballot,

    pub(super) promised: Ballot,
    pub(super) promise_durable: Ballot,
    pub(super) promises: VecDeque<(PersistId, Ballot)>,
    pub(super) log: SlotLog<Held>,
    pub(super) log_bytes: usize,
    /// All slots up to here were accepted under `promised`, or are decided.
    pub(super) held: Slot,
    /// The same, and durable.
    pub(super) durable: Slot,
    pub(super) writes: VecDeque<(PersistId, Ballot, Slot)>,
    pub(super) committed: Slot,
    /// Asked to be executed.
    pub(super) executed: Slot,
    /// Reported as executed.
    pub(super) executed_done: Slot,
    pub(super) everywhere: Slot,
    pub(super) time_seen: CommandTime,
    pub(super) time_executed: CommandTime,
    pub(super) fetching: StateFetch,

    pub(super) role: Role,
    pub(super) leader: Option<ReplicaId>,
    pub(super) heard_at: Time,
    /// The leader cannot be reached from here.
    pub(super) leader_down: bool,
    pub(super) ballot_seen: Ballot,
    /// The longest round trip that a leader told of.
    pub(super) round_trip: Duration,
    /// The lives that the others are known to be in.
    pub(super) incarnations: Vec<Incarnation>,
    /// A candidate asked and waits until the promise is durable: who, and from which slot.
    pub(super) promise_owed: Option<(ReplicaId, Slot)>,

    pub(super) answer_due: bool,
    pub(super) confirm_seen: u64,
    pub(super) stamp_seen: u64,

    pub(super) requests: KeptRequests,
    pub(super) sadl: Sadl<Self>,
    /// The batch that must come before anything more can be executed.
    pub(super) stalled: Option<Name>,
    pub(super) reads: Reads,
    housekeeping: bool,
    /// Between the first event of a turn and its `on_idle`.
    in_turn: bool,
}

impl MultiPaxos {
    pub(super) fn arm_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.housekeeping {
            self.housekeeping = true;
            ctx.set_timer(Timer::Housekeeping, HOUSEKEEPING);
        }
    }

    fn on_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        self.housekeeping = false;
        self.requests.expire(ctx.now());
        self.sadl.drop_waiting(&|key| !self.requests.contains(key));
        self.reads.expire(ctx.now());
        self.repeat_reads(ctx);
        if !self.requests.is_empty() || !self.reads.is_empty() {
            self.arm_housekeeping(ctx);
        }
    }

    fn flush(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let create = self.disseminates() && !matches!(self.role, Role::Recovering(_));
        self.sadl.flush(create, self.executed.next(), ctx);
        match self.role {
            Role::Leader(_) => self.flush_leader(ctx),
            Role::Follower | Role::Candidate(_) | Role::Recovering(_) => {
                if self.answer_due {
                    self.send_accept_ok(ctx);
                }
                self.send_forward(ctx);
                self.send_read_index(ctx);
                Wake::Sleep
            }
        }
    }
}

impl Protocol for MultiPaxos {
    type Message = Message;
    type Promise = Promised;
    type Record = Record;
    type Summary = Summary;
    type ReplyHeader = ();
    type Timer = Timer;
    type Options = Config;
    type Frontend = Frontend;

    const BRANCHES: &'static [&'static str] = &[
        "candidate is behind a trimmed log",
        "does not stand while it fetches state",
        "election won",
        "first leader",
        "follower needs trimmed slots",
        "gap in accepted slots",
        "ignored: old ballot",
        "ignored: vote for another ballot",
        "leader lost its majority",
        "leader stepped down",
        "leadership handed off",
        "nobody to hand leadership to",
        "pre-vote refused",
        "proposals sent again",
        "read waits for the ballot's first commit",
        "recovered",
        "recovery quorum",
        "recovery starts over",
        "stands by hand-off",
        "state transfer chosen",
    ];

    const INFO: Info = Info {
        name: "multipaxos",
        paper: "Lamport, Paxos Made Simple, 2001",
        best_at: "the usual choice: one round trip from a stable leader to a majority",
        tolerates: "crashes, loss and partitions of a minority",
        stable: true,
        replicas_min: 1,
    };
    #[cfg(feature = "plant")]
    const PLANTS: &'static [quintet_replica::PlantSpec] = Plant::SPECS;

    fn new(setup: Setup<Config>) -> Self {
        let Setup {
            id,
            incarnation,
            epoch,
            options,
            durability,
            ..
        } = setup;
        let ballot_first = Ballot {
            round: 1,
            owner: epoch.leader_first,
        };
        let (members, majority) = (epoch.members, epoch.majority());
        let sadl = Sadl::new(id, incarnation, members, majority, Self::limits(&options));
        Self {
            id,
            incarnation,
            members: epoch.members,
            majority: epoch.majority(),
            others: epoch.others(id),
            durability,
            config: options,
            ballot_first,
            promised: Ballot::default(),
            promise_durable: Ballot::default(),
            promises: VecDeque::new(),
            log: SlotLog::default(),
            log_bytes: 0,
            held: Slot(0),
            durable: Slot(0),
            writes: VecDeque::new(),
            committed: Slot(0),
            executed: Slot(0),
            executed_done: Slot(0),
            everywhere: Slot(0),
            time_seen: CommandTime(0),
            time_executed: CommandTime(0),
            fetching: StateFetch::default(),
            role: Role::Follower,
            leader: None,
            heard_at: Time(0),
            leader_down: false,
            ballot_seen: ballot_first,
            round_trip: Duration::ZERO,
            incarnations: vec![Incarnation(0); epoch.members],
            promise_owed: None,
            answer_due: false,
            confirm_seen: 0,
            stamp_seen: 0,
            requests: KeptRequests::default(),
            sadl,
            stalled: None,
            reads: Reads::default(),
            housekeeping: false,
            in_turn: false,
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.in_turn = true;
        self.heard_at = ctx.now();
        self.reads.start(ctx.random());
        let Recovered {
            first_boot, forgot, ..
        } = recovered;
        if !self.restore(recovered) {
            return ctx.halt(
                "the journal has records missing in its middle; restore this replica's data \
                 directory from a backup or replace it by a new member"
                    .to_string(),
            );
        }
        self.begin_chain(ctx);
        if forgot && !self.planted(Plant::RecoverySkipped) {
            return self.become_recovering(ctx);
        }
        self.execute(ctx);
        if self.planted(Plant::BallotReused)
            && self.promised == self.ballot_first
            && self.id == self.ballot_first.owner
        {
            return self.become_leader(&[], ctx);
        }
        if first_boot && self.id == self.ballot_first.owner && self.promised < self.ballot_first {
            // Phase 1 of the lowest ballot is empty. The promise is durable before anything is
            // proposed under it, so no later start can take this branch.
            self.raise_promise(self.ballot_first, ctx);
            self.role = Role::Candidate(Candidate::first(self.members));
        } else {
            self.arm_election(ctx);
        }
    }

    fn on_message(&mut self, from: Peer, message: Message, ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
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
        self.in_turn = true;
        match timer {
            Timer::Election => self.on_election_timer(ctx),
            Timer::Heartbeat => self.on_heartbeat_timer(ctx),
            Timer::Housekeeping => self.on_housekeeping(ctx),
            Timer::Show => self.sadl.on_show_timer(ctx),
            Timer::Fetch => {
                self.sadl.on_fetch_timer(ctx);
                self.batches_arrived(ctx);
            }
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        self.sadl.on_persisted(upto, ctx);
        while let Some((id, ballot)) = self.promises.front().copied() {
            if id > upto {
                break;
            }
            self.promises.pop_front();
            self.promise_durable = ballot;
            if ballot == self.promised {
                self.on_promise_durable(ctx);
            }
        }
        let mut voted = false;
        while let Some((id, ballot, slot)) = self.writes.front().copied() {
            if id > upto {
                break;
            }
            self.writes.pop_front();
            if ballot == self.promised && slot > self.durable {
                self.durable = slot;
                voted = true;
            }
        }
        if voted {
            if matches!(self.role, Role::Leader(_)) {
                self.maybe_commit(ctx);
            } else {
                self.answer_due = true;
            }
        }
        if self.members == 1 && !self.in_turn {
            // Durable at once, after this turn's `on_idle`: a lone member in memory durability
            // would otherwise wait for an event that does not come.
            self.flush(ctx);
        }
    }

    fn on_executed(&mut self, slot: Slot, _ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        self.executed_done = self.executed_done.max(slot);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        self.sadl.trim(slot, ctx);
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        ctx.mark("state installed");
        self.fetching.reached(slot);
        self.executed_done = self.executed_done.max(slot);
        if slot <= self.executed {
            return;
        }
        if slot > self.committed && matches!(self.role, Role::Leader(_)) {
            // Others decided without this leader: its own proposals there may have lost.
            self.step_down(ctx);
        }
        self.restart_at(slot, summary);
        self.extend_held();
        self.sadl.trim(slot, ctx);
        self.answer_due = true;
        self.execute(ctx);
        self.maybe_recovered(ctx);
        self.forward_all();
    }

    fn on_link(&mut self, peer: Peer, link: Link, ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        let Peer::Replica(peer) = peer else { return };
        if !self.others.contains(peer) {
            return;
        }
        if let Link::Up { incarnation } = link {
            self.meet(peer, incarnation, ctx);
        }
        if matches!(link, Link::Up { .. } | Link::Reset) {
            self.sadl.renewed(peer);
        }
        if matches!(self.role, Role::Leader(_)) {
            self.on_follower_link(peer, link, ctx);
        } else if self.leader == Some(peer) {
            match link {
                // What was on its way may be lost.
                Link::Up { .. } | Link::Reset => {
                    self.forward_all();
                    self.repeat_reads(ctx);
                }
                Link::Down => self.on_leader_down(ctx),
                Link::Arriving => self.on_leader_arriving(ctx),
                Link::Room(_) => {}
            }
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        self.in_turn = true;
        match control {
            Control::CheckpointDue => {
                if self.executed > Slot(0) {
                    ctx.checkpoint(
                        self.executed,
                        &Summary {
                            time: self.time_executed,
                            heads: self.sadl.heads().to_vec(),
                        },
                    );
                }
            }
            Control::HandOff => self.hand_off(self.others, ctx),
            Control::Slow(quick) if !self.is_leaving() => self.hand_off(quick, ctx),
            // It hands over already; nobody waits for more than a quorum of the others.
            Control::Slow(_) | Control::SlowMembers(_) => {}
            Control::ReportFailure(peer) => {
                if self.leader == Some(peer) {
                    self.on_leader_down(ctx);
                }
            }
            Control::Option { name, value } => {
                let mut changed = self.config.clone();
                match changed.set(&name, &value).and_then(|()| changed.check()) {
                    Ok(()) => {
                        self.sadl.limit(Self::limits(&changed));
                        let other = changed.dissemination != self.config.dissemination;
                        self.config = changed;
                        if other {
                            self.on_dissemination(ctx);
                        }
                    }
                    Err(_) => ctx.mark("ignored: option value"),
                }
            }
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let wake = self.flush(ctx);
        self.in_turn = false;
        wake
    }

    fn status(&self) -> Status {
        let role = match &self.role {
            Role::Follower => "follower",
            Role::Candidate(_) => "candidate",
            Role::Leader(_) => "leader",
            Role::Recovering(_) => "recovering",
        };
        let mut details = vec![
            ("ballot", self.promised.to_string()),
            ("log_first", self.log.first().to_string()),
            ("log_bytes", self.log_bytes.to_string()),
            ("requests", self.requests.len().to_string()),
            ("reads", self.reads.len().to_string()),
            ("dissemination", self.config.dissemination.to_string()),
        ];
        if !self.sadl.silent() {
            let (batches, bytes) = self.sadl.held();
            details.push(("batches_held", batches.to_string()));
            details.push(("batches_bytes", bytes.to_string()));
        }
        if let Role::Leader(lead) = &self.role {
            details.push(("window", lead.window.len().to_string()));
            details.push((
                "round_trip",
                format!("{:?}", lead.round_trip(self.majority)),
            ));
        }
        Status {
            role,
            leader: self.leader,
            view: self.promised.round,
            accepted: self.held,
            committed: self.committed,
            stable: self.executed,
            voting: !matches!(self.role, Role::Recovering(_)) && !self.fetching.under_way(),
            details,
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        let role = match &self.role {
            Role::Follower => 1,
            Role::Candidate(_) => 2,
            Role::Leader(lead) => 3 + lead.digest(),
            Role::Recovering(_) => 4,
        };
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for word in [
            role,
            self.promised.round,
            u64::from(self.promised.owner.0),
            self.promise_durable.round,
            self.log.first().0,
            self.log.end().0,
            self.log_bytes as u64,
            self.held.0,
            self.durable.0,
            self.committed.0,
            self.executed.0,
            self.executed_done.0,
            self.time_seen.0,
            self.heard_at.0,
            self.leader.map_or(0, |leader| u64::from(leader.0) + 1),
            self.requests.len() as u64,
            self.requests.bytes() as u64,
            self.reads.len() as u64,
        ] {
            hash = (hash ^ word)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(23);
        }
        hash
    }

    fn fingerprint(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        core::hash::Hash::hash(self, &mut hasher);
        true
    }

    fn assert_invariants(&self) {
        self.sadl.assert_invariants();
        assert!(
            self.executed <= self.committed,
            "only decided slots are executed"
        );
        assert!(
            self.committed <= self.held,
            "a commit point never passes what is held"
        );
        assert!(self.durable <= self.held, "a vote is for something held");
        assert!(
            self.executed_done <= self.executed,
            "executions were asked for"
        );
        assert!(self.promise_durable <= self.promised, "promises only rise");
        assert!(
            self.log.first() <= self.executed.next(),
            "what is not executed is kept"
        );
        let recent = Slot(self.log.end().0.saturating_sub(16));
        for (slot, held) in self.log.iter_from(recent) {
            assert!(
                held.ballot <= self.promised,
                "accepting raises the promise, in {slot}"
            );
        }
        if let Role::Leader(lead) = &self.role {
            assert!(
                self.promised.owner == self.id,
                "a leader leads its own ballot"
            );
            assert!(self.promise_durable == self.promised, "and has it on disk");
            assert!(
                self.held.next() == self.log.end(),
                "a leader's log has no holes"
            );
            lead.assert_invariants(self.members, self.log.end());
        }
        if let Some(leader) = self.leader {
            assert!(
                self.promised.owner == leader,
                "the leader owns the promised ballot"
            );
        }
    }
}

impl MultiPaxos {
    fn on_replica_message(
        &mut self,
        from: ReplicaId,
        message: Message,
        ctx: &mut Context<'_, Self>,
    ) {
        match message {
            Message::Accept {
                ballot,
                first,
                committed,
                confirm,
                stamp,
                everywhere,
                proposals,
            } => {
                let values = (first, proposals);
                self.on_accept(
                    from, ballot, values, committed, confirm, stamp, everywhere, ctx,
                );
            }
            Message::Commit {
                ballot,
                committed,
                confirm,
                stamp,
                everywhere,
                round_trip,
                answer,
            } => {
                if self.heed(from, ballot, ctx) {
                    if answer || confirm > self.confirm_seen {
                        self.answer(confirm, stamp);
                    }
                    self.everywhere = self.everywhere.max(everywhere);
                    self.round_trip = Duration::from_micros(u64::from(round_trip));
                    self.sadl.measured(self.round_trip);
                    self.learn_committed(committed, ctx);
                }
            }
            Message::AcceptOk {
                ballot,
                incarnation,
                held,
                durable,
                executed,
                confirm,
                stamp,
            } => {
                self.meet(from, incarnation, ctx);
                self.on_accept_ok(
                    from,
                    (ballot, incarnation),
                    (held, durable, executed),
                    confirm,
                    stamp,
                    ctx,
                );
            }
            Message::Reject { ballot, promised } => self.on_reject(from, ballot, promised, ctx),
            Message::Trimmed { ballot, first } => self.on_trimmed(from, ballot, first, ctx),
            Message::Forward { batches } => self.on_forward(from, batches, ctx),
            Message::PreVote { ballot, committed } => {
                self.on_pre_vote(from, ballot, committed, ctx);
            }
            Message::PreVoteOk {
                ballot,
                granted,
                promised,
                first,
            } => {
                self.on_pre_vote_ok(from, ballot, granted, promised, first, ctx);
            }
            Message::Prepare { ballot, from: slot } => self.on_prepare(from, ballot, slot, ctx),
            Message::Promise {
                ballot,
                incarnation,
                from: page,
                until,
                committed,
                first,
                accepted,
            } => {
                self.meet(from, incarnation, ctx);
                self.on_promise(
                    from,
                    (ballot, incarnation),
                    (page, until, accepted),
                    committed,
                    first,
                    ctx,
                );
            }
            Message::Stand { ballot } => self.on_stand(from, ballot, ctx),
            Message::ReadIndex { round } => self.on_read_index(from, round, ctx),
            Message::ReadIndexOk { round, index } => self.on_read_index_ok(round, index, ctx),
            Message::Recover {
                incarnation,
                nonce,
                promised,
            } => {
                self.meet(from, incarnation, ctx);
                self.on_recover(from, incarnation, nonce, promised, ctx);
            }
            Message::RecoverOk {
                nonce,
                promised,
                part,
                held,
            } => {
                self.on_recover_ok(from, nonce, promised, (part, held), ctx);
            }
            Message::Sadl(message) => {
                let at = self.executed.next();
                match self.sadl.on_message(from, message, at, ctx) {
                    News::Nothing => {}
                    News::Arrived => self.batches_arrived(ctx),
                    News::Behind => self.fetch_state(at, ctx),
                }
            }
            Message::Request { .. } | Message::Taken { .. } => {
                ctx.mark("ignored: not a replica's message");
            }
        }
    }

    /// A peer is in this life of its, or in a later one.
    fn meet(&mut self, peer: ReplicaId, incarnation: Incarnation, ctx: &mut Context<'_, Self>) {
        let known = &mut self.incarnations[peer.index()];
        if incarnation <= *known {
            return;
        }
        let first = *known == Incarnation(0);
        *known = incarnation;
        self.sadl.meet(peer, incarnation);
        if self.planted(Plant::EarlierLifeCounts) {
            return;
        }
        match &mut self.role {
            Role::Leader(lead) => lead.replaced(peer, incarnation),
            Role::Candidate(candidate) => candidate.replaced(peer),
            Role::Follower | Role::Recovering(_) => {}
        }
        if !first {
            ctx.mark("peer came back in a new life");
        }
    }

    /// An empty proposal, for a slot in which nothing was accepted.
    pub(super) const fn nothing(time: CommandTime) -> Proposal {
        Proposal {
            time,
            value: Value::Batch(Bytes::new()),
        }
    }
}

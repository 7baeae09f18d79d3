//! One replica: its state, and how events reach the parts.

use super::{
    Config, Message, Promised, Proposal, Record, Summary, Value, acknowledgement::Acknowledgement,
    bug::Bug, leader_state::LeaderState, progress::Claim, read_queue::ReadQueue, source::Source,
};
use crate::sadl::{Dissemination, Name, News, Sadl};
use alloc::{format, string::ToString, vec};
use core::time::Duration;
use quintet_replica::{
    Bytes, CommandTime, Context, Control, FrontendId, Incarnation, Info, Level, Link, Options,
    PersistId, Protocol, Recovered, ReplicaId, Setup, Slot, Status, Time, Wake,
    parts::{
        AcceptorLog, Admitted, AttachedFrontend, Ballot, Ballots, Election, Housekeeping,
        Incarnations, KeptRequests, LeaderWatch, Member, Observed, PhaseOne, StateFetch, admit,
    },
};

/// Replicas forward and answer by themselves, so the shared frontend is all that is needed.
pub type Frontend = AttachedFrontend<MultiPaxos>;

/// A replica's part.
#[derive(Hash)]
pub(super) enum Role {
    Follower,
    Candidate(PhaseOne<Proposal>),
    Leader(LeaderState),
    Recovering(Source),
}

quintet_replica::timers! {
    /// The timers of a replica.
    pub enum Timer {
        /// A follower's timeout with its leader, or a candidate's with its voters.
        Election,
        /// A leader's heartbeat; a candidate or recovering replica asks again.
        Heartbeat,
        /// Requests and reads in flight are looked through.
        Housekeeping,
        /// Disseminated batches are shown again.
        Show,
        /// Disseminated batches are asked for again.
        Fetch,
    }
}

/// One replica of Multi-Paxos; see the module.
#[derive(Hash)]
pub struct MultiPaxos {
    pub(super) me: Member,
    pub(super) config: Config,
    pub(super) ballots: Ballots,
    pub(super) log: AcceptorLog<Proposal>,
    pub(super) fetching: StateFetch,
    pub(super) role: Role,
    pub(super) leader: LeaderWatch,
    pub(super) incarnations: Incarnations,
    pub(super) acknowledgement: Acknowledgement,
    pub(super) requests: KeptRequests,
    pub(super) sadl: Sadl<Self>,
    /// The batch that must come before anything more can be executed.
    pub(super) stalled: Option<Name>,
    pub(super) reads: ReadQueue,
    pub(super) housekeeping: Housekeeping<Timer>,
}

impl MultiPaxos {
    fn on_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        self.housekeeping.fired();
        self.requests.expire(ctx.now());
        self.sadl.drop_waiting(&|key| !self.requests.contains(key));
        self.reads.expire(ctx.now());
        self.repeat_reads(ctx);
        if !self.requests.is_empty() || !self.reads.is_empty() {
            self.housekeeping.arm(ctx);
        }
    }

    fn flush(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let create = self.disseminates() && !matches!(self.role, Role::Recovering(_));
        self.sadl.flush(create, self.log.executed().next(), ctx);
        match self.role {
            Role::Leader(_) => self.flush_leader(ctx),
            Role::Follower | Role::Candidate(_) | Role::Recovering(_) => {
                if self.acknowledgement.is_due() {
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
    quintet_replica::usual_items!();
    type Record = Record;
    type ReplyHeader = ();

    const BRANCHES: &'static [&'static str] = &[
        "candidate is behind a trimmed log",
        "decided as accepted under an earlier ballot",
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
        "no member to hand leadership to",
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

    fn new(setup: Setup<Config>) -> Self {
        let me = Member::new(&setup);
        let config = setup.options;
        let ballots = Ballots::new(Ballot {
            round: 1,
            owner: setup.epoch.leader_first,
        });
        let (id, incarnation) = (me.id(), me.incarnation());
        let (members, majority) = (me.members(), me.majority());
        let sadl = Sadl::new(id, incarnation, members, majority, Self::limits(&config));
        Self {
            me,
            config,
            ballots,
            log: AcceptorLog::default(),
            fetching: StateFetch::default(),
            role: Role::Follower,
            leader: LeaderWatch::default(),
            incarnations: Incarnations::new(members),
            acknowledgement: Acknowledgement::default(),
            requests: KeptRequests::default(),
            sadl,
            stalled: None,
            reads: ReadQueue::default(),
            housekeeping: Housekeeping::new(Timer::Housekeeping),
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.leader.received(ctx.now());
        self.reads.start(ctx.random());
        let Recovered {
            first_boot,
            state_lost,
            ..
        } = recovered;
        if !self.restore(recovered) {
            return ctx.halt_damaged();
        }
        self.begin_chain(ctx);
        if state_lost && !self.injected(Bug::RecoverySkipped) {
            return self.become_recovering(ctx);
        }
        self.execute(ctx);
        if self.injected(Bug::BallotReused)
            && self.ballots.promised() == self.ballots.first()
            && self.me.id() == self.ballots.first().owner
        {
            return self.become_leader(&[], ctx);
        }
        self.begin_elections(first_boot, ctx);
    }

    fn on_request(&mut self, from: FrontendId, message: Message, ctx: &mut Context<'_, Self>) {
        // Dissemination need not wait for a leader.
        let spread = self.disseminates();
        let waits = |level| !(self.has_leader() || spread && level == Level::Ordered);
        let rejects = |level| self.is_recovering() || waits(level);
        match admit(from, message, rejects, ctx) {
            Some(Admitted::Read(key, batch)) => self.on_read(key, batch, ctx),
            Some(Admitted::Write(key, batch)) => self.on_write(key, batch, ctx),
            None => {}
        }
    }

    fn on_message(&mut self, from: ReplicaId, message: Message, ctx: &mut Context<'_, Self>) {
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
                if self.accept_leader(from, ballot, ctx) {
                    if answer || confirm > self.acknowledgement.confirm() {
                        self.acknowledgement.request(confirm, stamp);
                    }
                    self.log.learn_needed_after(everywhere);
                    let round_trip = Duration::from_micros(u64::from(round_trip));
                    self.leader.measured(round_trip);
                    self.sadl.measured(round_trip);
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
                let claim = Claim {
                    held,
                    durable,
                    executed,
                    confirm,
                    stamp,
                };
                self.on_accept_ok(from, (ballot, incarnation), claim, ctx);
            }
            Message::Trimmed {
                ballot,
                first,
                decisions,
            } => self.on_trimmed(from, ballot, (first, &decisions), ctx),
            Message::Forward { batches } => self.on_forward(from, batches, ctx),
            Message::Election(message) => self.on_election(from, message, ctx),
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
                let at = self.log.executed().next();
                match self.sadl.on_message(from, message, at, ctx) {
                    News::Nothing => {}
                    News::Arrived => self.batches_arrived(ctx),
                    News::Behind => self.fetch_state(at, ctx),
                }
            }
            Message::Request(_) | Message::Taken(_) => {
                ctx.mark("ignored: not a replica's message");
            }
        }
    }

    fn on_timer(&mut self, timer: Timer, ctx: &mut Context<'_, Self>) {
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
        self.on_promises_persisted(upto, ctx);
        let voted = self.log.durable_up_to(upto, self.ballots.promised());
        if voted {
            if matches!(self.role, Role::Leader(_)) {
                self.maybe_commit(ctx);
            } else {
                self.acknowledgement.want();
            }
        }
    }

    fn on_executed(&mut self, slot: Slot, _ctx: &mut Context<'_, Self>) {
        self.log.on_executed(slot);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        self.sadl.trim(slot, ctx);
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        self.fetching.reached(slot);
        self.log.on_executed(slot);
        if slot <= self.log.executed() {
            return;
        }
        if slot > self.log.committed() && matches!(self.role, Role::Leader(_)) {
            // Others decided without this leader: its own proposals there may have lost.
            self.step_down(ctx);
        }
        self.restart_at(slot, summary);
        self.extend_held();
        self.sadl.trim(slot, ctx);
        self.acknowledgement.want();
        self.execute(ctx);
        self.maybe_recovered(ctx);
        self.forward_all();
    }

    fn on_link(&mut self, peer: ReplicaId, link: Link, ctx: &mut Context<'_, Self>) {
        if let Link::Up { incarnation } = link {
            self.meet(peer, incarnation, ctx);
        }
        if matches!(link, Link::Up { .. } | Link::Reset) {
            self.sadl.renewed(peer);
        }
        if matches!(self.role, Role::Leader(_)) {
            self.on_follower_link(peer, link, ctx);
        } else if self.leader.is(peer) {
            match link {
                // Messages in flight may be lost.
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
        match control {
            Control::CheckpointDue => {
                if self.log.executed() > Slot(0) {
                    ctx.checkpoint(
                        self.log.executed(),
                        &Summary {
                            time: self.log.time_executed(),
                            heads: self.sadl.heads().to_vec(),
                            decisions: self.log.decisions().clone(),
                        },
                    );
                }
            }
            Control::HandOff => self.hand_off(self.me.others(), ctx),
            Control::Slow(quick) | Control::Farther(quick) if !self.is_transferring() => {
                self.hand_off(quick, ctx);
            }
            // It transfers leadership already; no replica waits for more than a quorum of the
            // others.
            Control::Slow(_) | Control::Farther(_) | Control::SlowMembers(_) => {}
            Control::EpochEnded => self.send_commit_to(self.me.others(), false, ctx),
            Control::ReportFailure(peer) => {
                if self.leader.is(peer) {
                    self.on_leader_down(ctx);
                }
            }
            Control::Option { name, value } => match self.config.changed(&name, &value) {
                Some(changed) => {
                    self.sadl.limit(Self::limits(&changed));
                    let other = changed.dissemination != self.config.dissemination;
                    self.config = changed;
                    if other {
                        self.on_dissemination(ctx);
                    }
                }
                None => ctx.mark("ignored: option value"),
            },
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.flush(ctx)
    }

    fn takes_requests(&self, _now: Time) -> bool {
        self.takes_all()
    }

    fn status(&self) -> Status {
        let role = match &self.role {
            Role::Follower => "follower",
            Role::Candidate(_) => "candidate",
            Role::Leader(_) => "leader",
            Role::Recovering(_) => "recovering",
        };
        let mut details = vec![
            ("ballot", self.ballots.promised().to_string()),
            ("log_first", self.log.first().to_string()),
            ("log_bytes", self.log.bytes().to_string()),
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
                format!("{:?}", lead.round_trip(self.me.majority())),
            ));
        }
        Status {
            role,
            leader: self.leader.leader(),
            view: self.ballots.promised().round,
            accepted: self.log.held(),
            committed: self.log.committed(),
            stable: self.log.executed(),
            voting: !matches!(self.role, Role::Recovering(_)) && !self.fetching.in_progress(),
            details,
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        let role = match &self.role {
            Role::Follower => 1,
            Role::Candidate(_) => 2,
            Role::Leader(lead) => lead.digest(),
            Role::Recovering(_) => 4,
        };
        let own = [
            self.requests.len() as u64,
            self.requests.bytes() as u64,
            self.reads.len() as u64,
        ];
        self.election_digest(role, &own)
    }

    fn assert_invariants(&self) {
        self.sadl.assert_invariants();
        self.assert_leadership();
        assert!(
            self.log.first() <= self.log.executed().next(),
            "what is not executed is kept"
        );
        if let Role::Leader(lead) = &self.role {
            lead.assert_invariants(self.me.members(), self.log.end());
        }
    }
}

impl MultiPaxos {
    /// A peer is in this incarnation of its, or in a later one.
    pub(super) fn meet(
        &mut self,
        peer: ReplicaId,
        incarnation: Incarnation,
        ctx: &mut Context<'_, Self>,
    ) {
        let observed = self.incarnations.observe(peer, incarnation);
        if observed == Observed::Known {
            return;
        }
        self.sadl.meet(peer, incarnation);
        if self.injected(Bug::EarlierIncarnationCounts) {
            return;
        }
        match &mut self.role {
            Role::Leader(lead) => lead.replaced(peer, incarnation),
            Role::Candidate(candidate) => candidate.replaced(peer),
            Role::Follower | Role::Recovering(_) => {}
        }
        if observed == Observed::Restarted {
            ctx.mark("peer came back in a new incarnation");
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

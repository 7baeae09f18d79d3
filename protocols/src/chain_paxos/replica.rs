//! One replica: its state, and how events reach the parts.

use super::{
    Agreement, Config, Entry, Message, Promised, Record, Summary, bug::Bug, catch_up::CatchUp,
    chain_state::ChainState, downstream::Downstream, leader_state::LeaderState, peers::Peers,
    read_rounds::Reads, share::Share, votes::Vote,
};
use alloc::{format, string::ToString, vec};
use core::time::Duration;
use quintet_replica::{
    Context, Control, FrontendId, Incarnation, Info, Lane, Level, Link, Options, PersistId,
    Protocol, Recovered, ReplicaId, ReplicaSet, Setup, Slot, Status, Time, Wake,
    parts::{
        AcceptorLog, Admitted, AttachedFrontend, Ballot, Ballots, Election, Housekeeping,
        KeptRequests, LeaderWatch, Member, Observed, PhaseOne, admit,
    },
};

/// Any replica takes requests and answers them (§3.3), so the shared frontend is all it needs.
pub type Frontend = AttachedFrontend<ChainPaxos>;

/// A replica's part.
#[derive(Hash)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one per replica, and it is changed in place"
)]
pub(super) enum Role {
    Follower,
    /// With the leader before that went silent.
    Candidate(PhaseOne<Entry>, Option<ReplicaId>),
    Leader(LeaderState),
}

quintet_replica::timers! {
    /// The timers of a replica.
    pub enum Timer {
        /// Timeout for the leader, or a candidate's with its voters.
        Election,
        /// Keep-alives, suspicion, the leader's heartbeat, asking again.
        Beat,
        /// Requests and reads in progress are looked through.
        Housekeeping,
    }
}

/// One replica of ChainPaxos; see the module.
#[derive(Hash)]
pub struct ChainPaxos {
    pub(super) me: Member,
    pub(super) config: Config,
    pub(super) ballots: Ballots,
    pub(super) log: AcceptorLog<Entry>,
    pub(super) catch_up: CatchUp,
    pub(super) chain: ChainState,
    pub(super) downstream: Downstream,
    pub(super) agreement: Agreement,
    pub(super) role: Role,
    /// Its round trip is that of a round, as the leader measures it.
    pub(super) leader: LeaderWatch,
    pub(super) peers: Peers,
    pub(super) requests: KeptRequests,
    pub(super) reads: Reads,
    pub(super) share: Share,
    pub(super) housekeeping: Housekeeping<Timer>,
}

impl ChainPaxos {
    fn on_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        self.housekeeping.fired();
        self.requests.expire(ctx.now());
        self.reads.expire(ctx.now());
        self.reads.ask_again();
        if !self.requests.is_empty() || !self.reads.is_empty() {
            self.housekeeping.arm(ctx);
        }
    }

    /// A peer is in this incarnation of its, or in a later one.
    pub(super) fn meet(
        &mut self,
        peer: ReplicaId,
        incarnation: Incarnation,
        ctx: &mut Context<'_, Self>,
    ) {
        let observed = self.peers.observe(peer, incarnation);
        if observed == Observed::Known {
            return;
        }
        let vote = Vote {
            incarnation,
            upto: Slot(0),
        };
        self.agreement.raise(peer, vote);
        if let Role::Candidate(candidate, _) = &mut self.role {
            candidate.replaced(peer);
        }
        if observed == Observed::Restarted {
            ctx.mark("peer came back in a new incarnation");
        }
    }
}

impl Protocol for ChainPaxos {
    quintet_replica::usual_items!();
    type Record = Record;
    type ReplyHeader = ();

    const RESUMES_WITHIN: Duration = Duration::from_secs(3);
    const BRANCHES: &'static [&'static str] = &[
        "acknowledged from elsewhere than the tail",
        "asks the leader for what is missing",
        "chain changed",
        "decided as accepted under an earlier ballot",
        "does not stand without its state",
        "election won",
        "entries sent again",
        "first leader",
        "lost what it had accepted",
        "gap in the chain",
        "continues ahead of its state",
        "ignored: state lost",
        "ignored: old ballot",
        "ignored: vote for another ballot",
        "leader adds itself",
        "leader lost its majority",
        "leader stepped down",
        "leadership handed off",
        "next in the chain suspected",
        "peer came back in a new incarnation",
        "pre-vote refused",
        "re-admission proposed",
        "re-admitted",
        "read refused: it joins",
        "recovered",
        "removal proposed",
        "removal would leave no quorum",
        "removed although it is heard",
        "removed from the chain behind this one",
        "rounds do not pass a link",
        "slow replica moved behind the tail",
        "stands by hand-off",
        "state transfer chosen",
        "suspicion about one that is heard",
        "the next one needs trimmed entries",
        "the next one needs what is missing here",
    ];

    const INFO: Info = Info {
        name: "chain_paxos",
        paper: "Fouto, Preguiça, Leitão, High Throughput Replication with Integrated Membership \
                Management, USENIX ATC 2022",
        best_at: "large values on narrow links, and many reads: each replica sends every value \
                  once and answers reads from its own state",
        tolerates: "crashes, loss and partitions of a minority; the chain closes around them",
        stable: true,
        replicas_min: 1,
    };
    const CHANGES_MEMBERS: bool = true;

    fn new(setup: Setup<Config>) -> Self {
        let me = Member::new(&setup);
        let ballot_first = Ballot {
            round: 1,
            owner: setup.epoch.leader_first,
        };
        let members = me.members();
        Self {
            peers: Peers::new(&me),
            me,
            config: setup.options,
            ballots: Ballots::new(ballot_first),
            log: AcceptorLog::default(),
            catch_up: CatchUp::default(),
            chain: ChainState::new(members),
            downstream: Downstream::default(),
            agreement: Agreement::new(members),
            role: Role::Follower,
            leader: LeaderWatch::default(),
            requests: KeptRequests::default(),
            reads: Reads::default(),
            share: Share::default(),
            housekeeping: Housekeeping::new(Timer::Housekeeping),
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.leader.received(ctx.now());
        self.peers.start(ctx.now());
        self.reads.start(ctx.random());
        let Recovered {
            first_boot,
            state_lost,
            ..
        } = recovered;
        if !self.restore(recovered) {
            return ctx.halt_damaged();
        }
        if state_lost {
            let votes = self.injected(Bug::ReplacedIncarnationCounts);
            self.catch_up.lose_state(votes);
            ctx.mark("lost what it had accepted");
            if !self.me.can_recover() {
                return self.me.halt_lost(ctx);
            }
        }
        self.tell_view(ctx);
        self.rework(ctx);
        // A vote of an earlier incarnation of this replica no longer counts here.
        let vote = Vote {
            incarnation: self.me.incarnation(),
            upto: Slot(0),
        };
        self.agreement.raise(self.me.id(), vote);
        self.vote();
        self.execute(ctx);
        if self.hollow() {
            let base = self.catch_up.gap_end().unwrap_or_default();
            self.fetch_state(base.max(self.log.first().previous()), ctx);
        }
        ctx.set_timer(Timer::Beat, self.config.heartbeat);
        self.begin_elections(first_boot, ctx);
    }

    fn on_request(&mut self, from: FrontendId, message: Message, ctx: &mut Context<'_, Self>) {
        let takes = self.takes_all();
        let rejects = |level| level != Level::Stale && !takes;
        match admit(from, message, rejects, ctx) {
            Some(Admitted::Read(key, batch)) => self.on_read(key, batch, ctx),
            Some(Admitted::Write(key, batch)) => self.on_write(key, batch, ctx),
            None => {}
        }
    }

    fn on_message(&mut self, from: ReplicaId, message: Message, ctx: &mut Context<'_, Self>) {
        self.peers.received(from, ctx.arrived());
        match message {
            Message::Accept {
                header,
                first,
                entries,
            } => self.on_accept(from, &header, first, entries, ctx),
            Message::Ack { header, held } => self.on_ack(from, &header, held, ctx),
            Message::Skip {
                ballot,
                base,
                chain,
                decisions,
            } => self.on_skip(from, ballot, base, (chain, &decisions), ctx),
            Message::Missing { ballot, held } => self.on_missing(from, ballot, held, ctx),
            Message::Alive {
                ballot,
                incarnation,
                whole,
                able,
                held,
                round,
            } => {
                self.meet(from, incarnation, ctx);
                self.on_alive(from, (ballot, incarnation, whole, held), able, round, ctx);
            }
            Message::Suspect { ballot, about } if about.index() < self.me.members() => {
                if ballot == self.ballots.promised() {
                    self.on_suspect(from, about, ctx);
                }
            }
            Message::Suspect { .. } => ctx.mark("ignored: suspicion about no member"),
            Message::Ask { stamp, ordered } => self.on_ask(from, stamp, ordered, ctx),
            Message::Forward { batches } => self.on_forward(batches, ctx),
            Message::Election(message) => self.on_election(from, message, ctx),
            Message::Ping { stamp } => ctx.send(from, Lane::Control, &Message::Pong { stamp }),
            Message::Pong { stamp } => self.on_pong(from, stamp, ctx),
            Message::Request(_) | Message::Taken(_) => {
                ctx.mark("ignored: not a replica's message");
            }
        }
    }

    fn on_timer(&mut self, timer: Timer, ctx: &mut Context<'_, Self>) {
        match timer {
            Timer::Election => self.on_election_timer(ctx),
            Timer::Beat => self.on_beat(ctx),
            Timer::Housekeeping => self.on_housekeeping(ctx),
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        self.on_promises_persisted(upto, ctx);
        if self.log.durable_up_to(upto, self.ballots.promised()) {
            self.vote();
        }
    }

    fn on_executed(&mut self, slot: Slot, _ctx: &mut Context<'_, Self>) {
        self.log.on_executed(slot);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        ctx.trim(slot.next());
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        self.catch_up.fetching_mut().reached(slot);
        self.log.on_executed(slot);
        if slot <= self.log.executed() {
            return self.maybe_recovered(ctx);
        }
        if slot > self.log.committed() && matches!(self.role, Role::Leader(_)) {
            // Others decided without this leader: its own proposals there may have lost.
            self.step_down(ctx);
        }
        self.restart_at(slot, summary);
        self.tell_view(ctx);
        self.extend_held();
        self.look_for_this_incarnation(ctx);
        self.maybe_recovered(ctx);
        self.vote();
        self.rework(ctx);
        ctx.trim(slot.next());
        self.catch_up.progressed();
        self.execute(ctx);
        self.forward_all();
    }

    fn on_link(&mut self, peer: ReplicaId, link: Link, ctx: &mut Context<'_, Self>) {
        if let Link::Up { incarnation } = link {
            self.meet(peer, incarnation, ctx);
        }
        self.on_peer_link(peer, link, ctx);
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            Control::CheckpointDue => {
                if self.log.executed() > Slot(0) {
                    let summary = Summary {
                        time: self.log.time_executed(),
                        chain: self.chain.executed().clone(),
                        decisions: self.log.decisions().clone(),
                    };
                    ctx.checkpoint(self.log.executed(), &summary);
                }
            }
            Control::HandOff => self.hand_off(ReplicaSet::all(self.me.members()), ctx),
            Control::Slow(quick) if !self.is_transferring() => self.hand_off(quick, ctx),
            Control::SlowMembers(slow) => self.peers.set_slow(slow),
            // It hands over already.
            // Any order of a chain has links that matter.
            Control::Slow(_) | Control::Farther(_) | Control::EpochEnded => {}
            Control::ReportFailure(peer) => {
                if self.leader.is(peer) {
                    self.on_leader_down(ctx);
                } else {
                    self.maybe_remove(peer, ctx);
                }
            }
            Control::Option { name, value } => match self.config.changed(&name, &value) {
                Some(changed) => self.config = changed,
                None => ctx.mark("ignored: option value"),
            },
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let wake = self.lead(ctx);
        self.maybe_commit(ctx);
        // Forwarded before it is executed: no replica downstream waits for this replica's store.
        self.send_stream(ctx);
        self.send_forward(ctx);
        let (slots, reads) = (
            self.log.committed().0 - self.log.executed().0,
            self.reads.len() as u64,
        );
        let (slots, reads) = self.share.of(slots, reads, ctx.now());
        let wake = wake.min(self.execute_some(slots, ctx));
        let wake = wake.min(self.release_reads(reads, ctx));
        let wake = wake.min(self.ask_for_reads(ctx));
        let outside = self.chain.is_outside() || !self.catch_up.is_voting();
        if self.catch_up.take_progressed()
            && outside
            && let Some(leader) = self.leader.other_than(self.me.id())
        {
            // On its way into the chain: the leader need not wait for the next beat.
            let message = self.alive();
            ctx.send(leader, Lane::Control, &message);
        }
        wake
    }

    fn takes_requests(&self, _now: Time) -> bool {
        self.takes_all() && self.takes_reads()
    }

    fn status(&self) -> Status {
        let role = match &self.role {
            Role::Leader(_) => "leader",
            Role::Candidate(..) => "candidate",
            Role::Follower if !self.catch_up.is_voting() => "state lost",
            Role::Follower if self.leader.leader().is_none() => "follower",
            Role::Follower if self.chain.is_outside() => "out",
            Role::Follower if self.catch_up.fetching().in_progress() => "joining",
            Role::Follower if self.chain.is_tail() => "tail",
            Role::Follower => "middle",
        };
        let mut details = vec![
            ("ballot", self.ballots.promised().to_string()),
            ("chain", self.chain.picture(&self.me)),
            ("chain_changed", self.chain.decided().slot.to_string()),
            ("log_first", self.log.first().to_string()),
            ("log_bytes", self.log.bytes().to_string()),
            ("requests", self.requests.len().to_string()),
            ("reads", self.reads.len().to_string()),
            ("loop", format!("{:?}", self.leader.round_trip())),
        ];
        if let Role::Leader(lead) = &self.role {
            details.push(("window", lead.window.len().to_string()));
        }
        Status {
            role,
            leader: self.leader.leader(),
            view: self.ballots.promised().round,
            accepted: self.log.held().max(self.catch_up.known()),
            committed: self.log.committed().max(self.catch_up.known()),
            stable: self.log.executed(),
            voting: self.catch_up.is_voting() && !self.hollow(),
            details,
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        let role = match &self.role {
            Role::Follower => 1,
            Role::Candidate(..) => 2,
            Role::Leader(lead) => lead.digest(),
        };
        let own = [
            self.agreement.agreed().0,
            self.agreement.round().number,
            self.downstream.next().0,
            self.chain.working().slot.0,
            self.requests.len() as u64,
            self.requests.bytes() as u64,
            self.reads.len() as u64,
        ];
        self.election_digest(role, &own)
    }

    fn assert_invariants(&self) {
        self.assert_leadership();
        self.catch_up.assert_kept(&self.log);
        assert!(
            self.log.first() <= self.log.executed().next()
                || self.catch_up.fetching().in_progress(),
            "what is not executed is kept, or its state is on its way"
        );
        let own = self.agreement.votes().of(self.me.id());
        assert!(
            self.catch_up.is_voting() || own == Slot(0),
            "a replica without state does not vote"
        );
        assert!(
            self.chain.decided().members.len() >= self.me.majority(),
            "a chain below a quorum could never change again"
        );
        if let Role::Leader(_) = &self.role {
            assert!(self.chain.position() == Some(0), "it stands at the head");
        }
    }
}

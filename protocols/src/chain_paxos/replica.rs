//! One replica: its state, and how events reach the parts.

use super::{
    Config, Entry, Frontend, Message, Promised, Record, Round, Summary,
    chain::{Chain, Route},
    election::Candidate,
    leader::Lead,
    plant::Plant,
    reads::Reads,
    share::Share,
    stream::Stream,
    votes::{Vote, Votes},
    watch::Watch,
};
use alloc::{collections::VecDeque, format, string::String, string::ToString, vec, vec::Vec};
use core::{fmt::Write as _, time::Duration};
use quintet_replica::{
    CommandTime, Context, Control, Durability, Incarnation, Info, Lane, Link, Options, Peer,
    PersistId, Protocol, Recovered, ReplicaId, ReplicaSet, Setup, Slot, Status, Time, Wake,
    parts::{Admission, Ballot, KeptRequests, SlotLog, StateFetch},
};

/// What a replica keeps for a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    /// The ballot that it was accepted under.
    pub ballot: Ballot,
    pub entry: Entry,
}

impl Held {
    /// What it takes in memory, about.
    pub fn bytes(&self) -> usize {
        self.entry.op.bytes() + size_of::<Self>()
    }
}

/// A replica's part.
#[derive(Hash)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one per replica, and it is changed in place"
)]
pub(super) enum Role {
    Follower,
    Candidate(Candidate),
    Leader(Lead),
}

quintet_replica::timers! {
    /// What wakes a replica.
    pub enum Timer {
        /// Patience with the leader, or a candidate's with its voters.
        Election,
        /// Keep-alives, suspicion, the leader's heartbeat, asking again.
        Beat,
        /// Requests and reads in progress are looked through.
        Housekeeping,
    }
}

/// How often requests and reads in progress are looked through.
const HOUSEKEEPING: Duration = Duration::from_millis(500);

/// One replica of ChainPaxos; see the module.
#[derive(Hash)]
pub struct ChainPaxos {
    pub(super) id: ReplicaId,
    pub(super) life: Incarnation,
    pub(super) members: usize,
    pub(super) majority: usize,
    pub(super) others: ReplicaSet,
    pub(super) durability: Durability,
    pub(super) config: Config,
    /// The ballot that the first leader owns without phase 1: no lower one exists.
    ballot_first: Ballot,

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
    /// All up to here is decided, as votes and messages of the promised ballot show.
    pub(super) agreed: Slot,
    pub(super) committed: Slot,
    /// Up to here slots are known to be decided, although what stands in them may have to be asked
    /// for again; only shown.
    pub(super) known: Slot,
    /// Asked to be executed.
    pub(super) executed: Slot,
    /// Reported as executed.
    pub(super) executed_done: Slot,
    /// All members of the epoch have accepted everything up to here.
    pub(super) everywhere: Slot,
    pub(super) time_seen: CommandTime,
    pub(super) time_executed: CommandTime,
    pub(super) fetching: StateFetch,
    /// What is decided and not here: behind the first, up to the second. What was accepted there
    /// under lower ballots stays in the log, for candidates, until the state has come.
    pub(super) gap: Option<(Slot, Slot)>,
    /// Votes and promises count. False in a life that has forgotten, until it is re-admitted.
    pub(super) whole: bool,
    /// This life began without what an earlier one had accepted, and has not all of it again.
    pub(super) forgot: bool,

    /// The chain as executed, as decided, and with everything held.
    pub(super) done: Chain,
    /// How long others stayed in the chain while this replica led.
    pub(super) admission: Admission,
    pub(super) decided: Chain,
    pub(super) working: Chain,
    /// From the leader once around, and this replica's place in it.
    pub(super) route: Route,
    pub(super) position: Option<usize>,
    pub(super) stream: Stream,
    pub(super) votes: Votes,
    pub(super) round: Round,
    /// How long a round takes, as the leader measures it.
    pub(super) loop_time: Duration,
    /// Who answers the leader besides the tail.
    pub(super) turn: Option<ReplicaId>,

    pub(super) role: Role,
    pub(super) leader: Option<ReplicaId>,
    /// When the leader last showed that it was there.
    pub(super) heard_at: Time,
    pub(super) leader_down: bool,
    pub(super) ballot_seen: Ballot,
    /// The lives that the others are known to be in.
    pub(super) lives: Vec<Incarnation>,
    /// When each was last heard.
    pub(super) heard: Vec<Time>,
    /// When each last said that it has forgotten.
    pub(super) forgotten: Vec<Option<Time>>,
    pub(super) lost_since: Option<Time>,
    /// Who cannot be reached from here.
    pub(super) down: ReplicaSet,
    pub(super) watch: Watch,
    /// A candidate asked and waits until the promise is durable: who, and from which slot.
    pub(super) promise_owed: Option<(ReplicaId, Slot)>,
    /// When a gap was last reported, to whom, and behind what.
    pub(super) missing_at: Option<(Time, ReplicaId, Slot)>,
    /// Entries came in this turn.
    pub(super) progressed: bool,

    pub(super) requests: KeptRequests,
    pub(super) reads: Reads,
    pub(super) share: Share,
    housekeeping: bool,
}

impl ChainPaxos {
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
        self.reads.ask_again();
        if !self.requests.is_empty() || !self.reads.is_empty() {
            self.arm_housekeeping(ctx);
        }
    }

    /// The chain as a picture: from the leader to the tail, then who is left out.
    fn picture(&self) -> String {
        let mut picture = String::new();
        for id in &self.route {
            let arrow = if picture.is_empty() { "" } else { " > " };
            let here = if *id == self.id { "*" } else { "" };
            let leaving = if self.decided.contains(*id) { "" } else { "+" };
            let _ = write!(picture, "{arrow}{leaving}{}{here}", id.0);
        }
        let out = (0..self.members as u16).map(ReplicaId);
        for id in out.filter(|id| !self.route.contains(id)) {
            let marked = if self.decided.contains(id) { "-" } else { "" };
            let _ = write!(picture, " ({marked}{} out)", id.0);
        }
        picture
    }

    /// A peer is in this life of its, or in a later one.
    fn meet(&mut self, peer: ReplicaId, life: Incarnation, ctx: &mut Context<'_, Self>) {
        let known = &mut self.lives[peer.index()];
        if life <= *known {
            return;
        }
        let first = *known == Incarnation(0);
        *known = life;
        let vote = Vote {
            life,
            upto: Slot(0),
        };
        self.votes.raise(peer, vote);
        if let Role::Candidate(candidate) = &mut self.role {
            candidate.replaced(peer);
        }
        if !first {
            ctx.mark("peer came back in a new life");
        }
    }

    fn on_replica_message(
        &mut self,
        from: ReplicaId,
        message: Message,
        ctx: &mut Context<'_, Self>,
    ) {
        self.heard[from.index()] = ctx.arrived();
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
            } => self.on_skip(from, ballot, base, chain, ctx),
            Message::Missing { ballot, held } => self.on_missing(from, ballot, held, ctx),
            Message::Alive {
                ballot,
                life,
                whole,
                able,
                held,
                round,
            } => {
                self.meet(from, life, ctx);
                self.on_alive(from, (ballot, life, whole, held), able, round, ctx);
            }
            Message::Suspect { ballot, about } if about.index() < self.members => {
                if ballot == self.promised {
                    self.on_suspect(from, about, ctx);
                }
            }
            Message::Suspect { .. } => ctx.mark("ignored: suspicion about no member"),
            Message::Ask { stamp, ordered } => self.on_ask(from, stamp, ordered, ctx),
            Message::Reject { ballot, promised } => self.on_reject(ballot, promised, ctx),
            Message::Forward { batches } => self.on_forward(batches, ctx),
            Message::PreVote { ballot, committed } => {
                self.on_pre_vote(from, ballot, committed, ctx);
            }
            Message::PreVoteOk {
                ballot,
                granted,
                promised,
                first,
            } => self.on_pre_vote_ok(from, (ballot, granted), promised, first, ctx),
            Message::Prepare { ballot, from: slot } => self.on_prepare(from, ballot, slot, ctx),
            Message::Promise {
                ballot,
                life,
                from: page,
                until,
                committed,
                first,
                accepted,
            } => {
                self.meet(from, life, ctx);
                let pages = (page, until, accepted);
                self.on_promise(from, (ballot, life), pages, (committed, first), ctx);
            }
            Message::Stand { ballot } => self.on_stand(from, ballot, ctx),
            Message::Ping { stamp } => ctx.send(from, Lane::Control, &Message::Pong { stamp }),
            Message::Pong { stamp } => self.on_pong(from, stamp, ctx),
            Message::Request { .. } | Message::Taken { .. } => {
                ctx.mark("ignored: not a replica's message");
            }
        }
    }
}

impl Protocol for ChainPaxos {
    type Message = Message;
    type Promise = Promised;
    type Record = Record;
    type Summary = Summary;
    type ReplyHeader = ();
    type Timer = Timer;
    type Options = Config;
    type Frontend = Frontend;

    const RESUMES_WITHIN: Duration = Duration::from_secs(3);
    const BRANCHES: &'static [&'static str] = &[
        "acknowledged from elsewhere than the tail",
        "asks the leader for what is missing",
        "chain changed",
        "does not stand without its state",
        "election won",
        "entries sent again",
        "first leader",
        "forgot what it had accepted",
        "gap in the chain",
        "goes on ahead of its state",
        "ignored: forgot",
        "ignored: old ballot",
        "ignored: vote for another ballot",
        "leader adds itself",
        "leader lost its majority",
        "leader stepped down",
        "leadership handed off",
        "next in the chain suspected",
        "peer came back in a new life",
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
        let members = epoch.members;
        let ballot_first = Ballot {
            round: 1,
            owner: epoch.leader_first,
        };
        let chain = Chain::first(members);
        let mut lives = vec![Incarnation(0); members];
        lives[id.index()] = incarnation;
        Self {
            id,
            life: incarnation,
            members,
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
            agreed: Slot(0),
            known: Slot(0),
            committed: Slot(0),
            executed: Slot(0),
            executed_done: Slot(0),
            everywhere: Slot(0),
            time_seen: CommandTime(0),
            time_executed: CommandTime(0),
            fetching: StateFetch::default(),
            gap: None,
            whole: true,
            forgot: false,
            done: chain.clone(),
            admission: Admission::new(members),
            decided: chain.clone(),
            working: chain,
            route: Route::new(),
            position: None,
            stream: Stream::default(),
            votes: Votes::new(members),
            round: Round::default(),
            loop_time: Duration::ZERO,
            turn: None,
            role: Role::Follower,
            leader: None,
            heard_at: Time(0),
            leader_down: false,
            ballot_seen: ballot_first,
            lives,
            heard: vec![Time(0); members],
            forgotten: vec![None; members],
            lost_since: None,
            down: ReplicaSet::EMPTY,
            watch: Watch::default(),
            promise_owed: None,
            missing_at: None,
            progressed: false,
            requests: KeptRequests::default(),
            reads: Reads::default(),
            share: Share::default(),
            housekeeping: false,
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.heard_at = ctx.now();
        self.heard.fill(ctx.now());
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
        self.whole = !forgot || self.planted(Plant::ReplacedLifeCounts);
        self.forgot = forgot;
        if forgot {
            ctx.mark("forgot what it had accepted");
            if self.members - 1 < self.majority {
                return self.halt_lost(ctx);
            }
        }
        self.rework(ctx);
        // What an earlier life of this replica voted no longer counts here.
        let vote = Vote {
            life: self.life,
            upto: Slot(0),
        };
        self.votes.raise(self.id, vote);
        self.vote();
        self.execute(ctx);
        if self.hollow() {
            let base = self.gap.map_or(Slot(0), |(_, upto)| upto);
            self.fetch_state(base.max(self.log.first().previous()), ctx);
        }
        ctx.set_timer(Timer::Beat, self.config.heartbeat);
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
            Timer::Election => self.on_election_timer(ctx),
            Timer::Beat => self.on_beat(ctx),
            Timer::Housekeeping => self.on_housekeeping(ctx),
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
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
        while let Some((id, ballot, slot)) = self.writes.front().copied() {
            if id > upto {
                break;
            }
            self.writes.pop_front();
            if ballot == self.promised && slot > self.durable {
                self.durable = slot;
                self.vote();
            }
        }
    }

    fn on_executed(&mut self, slot: Slot, _ctx: &mut Context<'_, Self>) {
        self.executed_done = self.executed_done.max(slot);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        ctx.trim(slot.next());
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        self.fetching.reached(slot);
        self.executed_done = self.executed_done.max(slot);
        if slot <= self.executed {
            return self.maybe_recovered(ctx);
        }
        if slot > self.committed && matches!(self.role, Role::Leader(_)) {
            // Others decided without this leader: its own proposals there may have lost.
            self.step_down(ctx);
        }
        self.restart_at(slot, summary);
        self.extend_held();
        self.look_for_this_life(ctx);
        self.maybe_recovered(ctx);
        self.vote();
        self.rework(ctx);
        ctx.trim(slot.next());
        self.progressed = true;
        self.execute(ctx);
        self.forward_all();
    }

    fn on_link(&mut self, peer: Peer, link: Link, ctx: &mut Context<'_, Self>) {
        let Peer::Replica(peer) = peer else { return };
        if !self.others.contains(peer) {
            return;
        }
        if let Link::Up { incarnation } = link {
            self.meet(peer, incarnation, ctx);
        }
        self.on_peer_link(peer, link, ctx);
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            Control::CheckpointDue => {
                if self.executed > Slot(0) {
                    let summary = Summary {
                        time: self.time_executed,
                        chain: self.done.clone(),
                    };
                    ctx.checkpoint(self.executed, &summary);
                }
            }
            Control::HandOff => self.hand_off(ReplicaSet::all(self.members), ctx),
            Control::Slow(quick) if !self.is_leaving() => self.hand_off(quick, ctx),
            // It hands over already; who is slow in the chain its leader measures.
            Control::Slow(_) | Control::SlowMembers(_) => {}
            Control::ReportFailure(peer) => {
                if self.leader == Some(peer) {
                    self.on_leader_down(ctx);
                } else {
                    self.maybe_remove(peer, ctx);
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
        let wake = self.lead(ctx);
        self.learn(ctx);
        // Passed on before it is executed: nobody downstream waits for this replica's store.
        self.send_stream(ctx);
        self.send_forward(ctx);
        let (slots, reads) = (self.committed.0 - self.executed.0, self.reads.len() as u64);
        let (slots, reads) = self.share.of(slots, reads, ctx.now());
        let wake = wake.min(self.execute_some(slots, ctx));
        let wake = wake.min(self.release_reads(reads, ctx));
        let wake = wake.min(self.ask_for_reads(ctx));
        let outside = self.position.is_none() || !self.whole;
        if core::mem::take(&mut self.progressed)
            && outside
            && let Some(leader) = self.leader.filter(|leader| *leader != self.id)
        {
            // On its way into the chain: the leader need not wait for the next beat.
            let message = self.alive();
            ctx.send(leader, Lane::Control, &message);
        }
        wake
    }

    fn status(&self) -> Status {
        let role = match &self.role {
            Role::Leader(_) => "leader",
            Role::Candidate(_) => "candidate",
            Role::Follower if !self.whole => "forgot",
            Role::Follower if self.leader.is_none() => "follower",
            Role::Follower if self.position.is_none() => "out",
            Role::Follower if self.fetching.under_way() => "joining",
            Role::Follower if self.position == Some(self.route.len() - 1) => "tail",
            Role::Follower => "middle",
        };
        let mut details = vec![
            ("ballot", self.promised.to_string()),
            ("chain", self.picture()),
            ("chain_changed", self.decided.slot.to_string()),
            ("log_first", self.log.first().to_string()),
            ("log_bytes", self.log_bytes.to_string()),
            ("requests", self.requests.len().to_string()),
            ("reads", self.reads.len().to_string()),
            ("loop", format!("{:?}", self.loop_time)),
        ];
        if let Role::Leader(lead) = &self.role {
            details.push(("window", lead.window().to_string()));
        }
        Status {
            role,
            leader: self.leader,
            view: self.promised.round,
            accepted: self.held.max(self.known),
            committed: self.committed.max(self.known),
            stable: self.executed,
            voting: self.whole && !self.hollow(),
            details,
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        let role = match &self.role {
            Role::Follower => 1,
            Role::Candidate(_) => 2,
            Role::Leader(lead) => 3 + lead.digest(),
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
            self.agreed.0,
            self.committed.0,
            self.executed.0,
            self.executed_done.0,
            self.time_seen.0,
            self.heard_at.0,
            self.leader.map_or(0, |leader| u64::from(leader.0) + 1),
            self.round.number,
            self.stream.next.0,
            self.working.slot.0,
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
            self.log.first() <= self.executed.next() || self.fetching.under_way(),
            "what is not executed is kept, or its state is on its way"
        );
        let own = self.votes.of(self.id);
        assert!(self.whole || own == Slot(0), "who forgot does not vote");
        let recent = Slot(self.log.end().0.saturating_sub(16));
        for (slot, held) in self.log.iter_from(recent) {
            assert!(
                held.ballot <= self.promised,
                "accepting raises the promise, in {slot}"
            );
        }
        assert!(
            self.decided.members.len() >= self.majority,
            "a chain below a quorum could never change again"
        );
        if let Role::Leader(_) = &self.role {
            assert!(
                self.promised.owner == self.id,
                "a leader leads its own ballot"
            );
            assert!(self.promise_durable == self.promised, "and has it on disk");
            assert!(
                self.held.next() == self.log.end(),
                "a leader's log has no holes"
            );
            assert!(self.position == Some(0), "it stands at the head");
        }
        if let Some(leader) = self.leader {
            assert!(
                self.promised.owner == leader,
                "the leader owns the promised ballot"
            );
        }
    }
}

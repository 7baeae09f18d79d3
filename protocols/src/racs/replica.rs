//! One replica: its state, and how events reach the parts.
//!
//! ```text
//!   messages, timers ──► on_* note what they say ──► on_idle: evaluate, until nothing moves
//!   on_persisted ──────► votes and blocks leave       decide · leave views · enter modes · vote
//! ```

use super::{
    Block, BlockId, Certificate, Config, Course, Frontend, Mark, Message, Promised, Quote, Record,
    Summary,
    asynchronous::Fallback,
    coin::Coin,
    fetch::Asked,
    hybrid::Watch,
    plant::Plant,
    reads::Reads,
    recovery::{Answer, Recovery},
    sync::{Lead, Renewals},
    tree::{Tree, Unwritten},
};
use crate::sadl::{Dissemination, Name, Sadl};
use alloc::{
    collections::{BTreeMap, VecDeque},
    format,
    string::ToString,
    sync::Arc,
    vec,
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::{
    Context, Control, Durability, Incarnation, Info, Link, Options, Peer, PersistId, Protocol,
    Recovered, ReplicaId, ReplicaSet, Setup, Slot, Status, Time, Wake,
    parts::{KeptRequests, RequestQueue, StateFetch, Timing},
};

/// What a replica does in its view.
#[derive(Hash)]
pub(super) enum Mode {
    /// The view's leader proposes.
    Synchronous,
    /// Everybody proposes, the coin elects.
    Asynchronous(Fallback),
    /// It has forgotten what it acknowledged, and asks.
    Recovering(Recovery),
}

quintet_replica::timers! {
    /// What wakes a replica.
    pub enum Timer {
        /// Patience with the view.
        View,
        /// A leader is heard although idle.
        Beat,
        /// What was said last is said again.
        Repeat,
        /// Missing blocks are asked for again.
        Fetch,
        /// Requests and reads under way are looked through.
        Housekeeping,
        /// Batches are shown again.
        Show,
        /// Batches are asked for again.
        FetchBatches,
    }
}

/// How often requests and reads under way are looked through.
const HOUSEKEEPING: Duration = Duration::from_millis(500);

/// What is said once a write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Due {
    /// A vote for a block of the synchronous mode.
    Vote(BlockId),
    /// A vote for a block of the asynchronous mode.
    VoteAsync(BlockId),
    /// An own block of the asynchronous mode.
    Own(BlockId),
}

/// What a replica last said about a view: its number, its highest block, its reads.
pub(super) type Said = Option<(u64, BlockId, Option<Mark>)>;

/// Blocks of level 1 and 2 that came before this replica was in their view's asynchronous mode.
pub(super) type Early = [Option<Arc<Block>>; 2];

/// One replica of RACS; see the module.
#[derive(Hash)]
pub struct Racs {
    pub(super) id: ReplicaId,
    pub(super) incarnation: Incarnation,
    /// Tells the reads of this run from those of earlier ones.
    pub(super) life: u64,
    pub(super) members: usize,
    pub(super) quorum: usize,
    pub(super) others: ReplicaSet,
    /// The links to these are broken.
    pub(super) down: ReplicaSet,
    pub(super) durability: Durability,
    pub(super) config: Config,
    leader_first: ReplicaId,
    pub(super) coin: Coin,

    pub(super) view: u64,
    pub(super) mode: Mode,
    /// It sent a timeout in this view, or is about to: with this block, and it neither votes nor
    /// proposes in the view's synchronous mode any more.
    pub(super) stopped: Option<BlockId>,
    /// It came back without its memory and takes no part before the next view.
    pub(super) out: bool,
    /// The highest block (R1, R15): it is connected, and nothing that this replica voted for and
    /// that may be decided lies outside of what leads to it.
    pub(super) high: BlockId,
    pub(super) tree: Tree,
    /// The highest block known to be decided; it may not be here yet.
    pub(super) decided: BlockId,
    /// The newest certificate that can be handed out.
    pub(super) certificate: Option<Certificate>,
    /// A view's end that has been learnt; what it elected may not be here yet.
    pub(super) exit: Option<Certificate>,

    /// The newest timeout, new-view and completion of each member.
    pub(super) timeouts: Vec<Said>,
    pub(super) new_views: Vec<Said>,
    pub(super) completed: Vec<Option<BlockId>>,
    pub(super) early: Vec<Early>,
    /// Where the last batches of the newest own block of level 2 stand, too.
    pub(super) quotes: Vec<Quote>,
    /// Blocks of level 2 of which something that they quote is not here.
    pub(super) quoting: Vec<Option<(Arc<Block>, Vec<Quote>)>>,
    /// Blocks voted for in the mode before this one; only a planted bug looks at them.
    pub(super) fall_old: BTreeMap<ReplicaId, BlockId>,

    /// The lives that the members are known to be in.
    pub(super) lives: Vec<Incarnation>,
    /// The write that what is said of this view waits for.
    promise: Option<PersistId>,
    due: VecDeque<(PersistId, Due)>,

    pub(super) lead: Option<Lead>,
    /// The leader of this view has been heard.
    pub(super) heard: bool,
    /// It was told that this replica is in its view, and what its clients wait for.
    pub(super) introduced: bool,
    /// What was forwarded to this replica by those that are in a view that it is about to lead.
    pub(super) ahead: RequestQueue,
    pub(super) heard_at: Time,
    /// The highest block of this view that its leader told of.
    pub(super) tip: Option<BlockId>,
    /// The highest block of this view that was voted for, durably.
    pub(super) voted: Option<BlockId>,
    pub(super) answer_due: bool,
    pub(super) stamp_seen: u64,
    pub(super) round_trip: Duration,
    /// The same as each leader told it last.
    pub(super) leaders_trips: Vec<Duration>,
    /// How long asynchronous modes take, and when the last one ended; zero: long ago.
    pub(super) price: Duration,
    pub(super) priced_at: Time,
    /// How many views in a row have not decided a synchronous block.
    pub(super) failures: u32,
    /// How often this replica has left a view that it led, because too many had timed out.
    pub(super) renewals: Renewals,
    /// How many asynchronous modes there were, and how many of them elected a block here.
    pub(super) fallbacks: Timing<u64>,
    pub(super) elected: Timing<u64>,
    pub(super) leaving: bool,

    /// The highest block that is known to be decided and here, with all before it.
    pub(super) reached: BlockId,
    /// Missing blocks that are asked for.
    pub(super) wanted: BTreeMap<BlockId, Asked>,
    pub(super) decided_from: ReplicaId,
    pub(super) fetch_armed: bool,
    /// How often questions have been repeated since something came.
    pub(super) fetch_tries: u32,
    pub(super) fetching: StateFetch,
    executed_done: Slot,

    pub(super) requests: KeptRequests,
    pub(super) sadl: Sadl<Self>,
    /// Which way batches go, as it was ordered, and what the leader looks at to change it.
    pub(super) course: Course,
    pub(super) watch: Watch,
    /// The batch that must come before anything more can be executed.
    pub(super) stalled: Option<Name>,
    pub(super) reads: Reads,
    /// Since when something has waited while nothing was decided.
    pub(super) waiting_since: Option<Time>,
    pub(super) say_due: bool,
    repeat_armed: bool,
    /// How often the same has been said since the view or mode changed.
    pub(super) repeats: u32,
    housekeeping: bool,
}

impl Racs {
    /// Who leads a view's synchronous mode.
    pub(super) fn leader_of(&self, view: u64) -> ReplicaId {
        let members = self.members as u64;
        let turn = u64::from(self.leader_first.0) + view.saturating_sub(1) % members;
        ReplicaId((turn % members) as u16)
    }

    /// How blocks are compared (R9, R15).
    pub(super) fn rank(&self, id: BlockId) -> (u64, bool, u64) {
        let flat = self.planted(Plant::HighAsPrinted)
            || self.planted(Plant::KeepMaxOnly)
            || self.planted(Plant::KeepMaxAndStop);
        (id.view, id.level > 0 && !flat, id.round)
    }

    /// Whether a block can be counted upon: its ancestors are here, or all that it could add is.
    pub(super) fn delivered(&self, id: BlockId) -> bool {
        self.rank(id) <= self.rank(self.high) || self.tree.connected(id)
    }

    /// What is said of this view may be said: it is on disk.
    pub(super) const fn settled(&self) -> bool {
        self.promise.is_none()
    }

    pub(super) fn promise(&mut self, ctx: &mut Context<'_, Self>) {
        let promised = Promised {
            view: self.view,
            stopped: self.stopped,
            asynchronous: matches!(self.mode, Mode::Asynchronous(_)),
            high: self.high,
            certificate: self.certificate.clone(),
            chain: self.sadl.chain(),
        };
        let write = ctx.persist_promise(&promised);
        self.sadl.numbered(write);
        self.promise = Some(write);
    }

    /// Writes a connected block and what leads to it; `due` happens when all of it is durable.
    pub(super) fn write(
        &mut self,
        id: BlockId,
        why: super::Why,
        due: Option<Due>,
        ctx: &mut Context<'_, Self>,
    ) {
        let mut last = None;
        let mut said = false;
        for Unwritten { block, quotes } in self.tree.take_unwritten(id) {
            let why = if block.id == id {
                why
            } else {
                super::Why::Held
            };
            said |= block.id == id;
            let record = Record::Block {
                why,
                id: block.id,
                block: Some(block.clone()),
                quotes,
            };
            last = Some(ctx.persist(block.first, &record));
        }
        if !said && due.is_some() {
            let slot = self
                .tree
                .get(id)
                .map_or(self.tree.root().end, |block| block.first);
            let record = Record::Block {
                why,
                id,
                block: None,
                quotes: Vec::new(),
            };
            last = Some(ctx.persist(slot, &record));
        }
        if let (Some(write), Some(due)) = (last, due) {
            if self.planted(Plant::VoteNotDurable) {
                return self.on_due(due, ctx);
            }
            self.due.push_back((write, due));
        }
    }

    fn on_due(&mut self, due: Due, ctx: &mut Context<'_, Self>) {
        match due {
            Due::Vote(id) => self.on_vote_durable(id),
            Due::VoteAsync(id) => self.send_vote_async(id, ctx),
            Due::Own(id) => self.on_own_durable(id, ctx),
        }
    }

    /// A peer, or this replica, is in this life of its, or in a later one: what it acknowledged
    /// before no longer counts.
    pub(super) fn meet(&mut self, peer: ReplicaId, life: Incarnation, ctx: &mut Context<'_, Self>) {
        let Some(known) = self.lives.get_mut(peer.index()) else {
            return;
        };
        if life <= *known {
            return;
        }
        if *known != Incarnation(0) {
            ctx.mark("peer came back in a new life");
        }
        *known = life;
        self.sadl.meet(peer, life);
        if let Some(lead) = &mut self.lead {
            lead.votes[peer.index()] = None;
        }
        if let Mode::Asynchronous(fallback) = &mut self.mode {
            fallback.forget(peer);
        }
    }

    /// The lives that a voter knows of. False when the voter is in an older one itself.
    pub(super) fn meet_all(
        &mut self,
        from: ReplicaId,
        lives: &[Incarnation],
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if lives.len() != self.members {
            return false;
        }
        for (peer, life) in lives.iter().enumerate() {
            self.meet(ReplicaId(peer as u16), *life, ctx);
        }
        lives[from.index()] >= self.lives[from.index()]
    }

    pub(super) fn arm_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.housekeeping {
            self.housekeeping = true;
            ctx.set_timer(Timer::Housekeeping, HOUSEKEEPING);
        }
    }

    pub(super) fn arm_repeat(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.repeat_armed {
            self.repeat_armed = true;
            // Who timed out alone may go on saying so for long.
            let pause = Duration::from_millis(60).max(self.round_trip * 2);
            ctx.set_timer(Timer::Repeat, pause * (1 << (self.repeats / 8).min(4)));
        }
    }

    fn on_repeat(&mut self, ctx: &mut Context<'_, Self>) {
        self.repeat_armed = false;
        let steady = matches!(self.mode, Mode::Synchronous)
            && self.stopped.is_none()
            && !self.out
            && (self.heard || self.lead.as_ref().is_some_and(|lead| lead.open));
        if !steady {
            self.say_due = true;
            self.repeats = self.repeats.saturating_add(1);
            self.want_quoting(ctx);
            self.arm_repeat(ctx);
        }
    }

    fn on_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        self.housekeeping = false;
        self.requests.expire(ctx.now());
        self.sadl.drop_waiting(&|key| !self.requests.contains(key));
        self.reads.expire(ctx.now());
        self.reads.repeat();
        if self.requests.is_empty() && self.reads.is_empty() {
            self.waiting_since = None;
        } else {
            self.arm_housekeeping(ctx);
        }
    }

    fn flush(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.evaluate(ctx);
        if self.say_due && self.settled() {
            self.say_due = false;
            self.say(ctx);
        }
        self.flush_requests(ctx);
        self.flush_batches(ctx);
        let wake = self.flush_leader(ctx);
        if self.answer_due {
            self.send_vote(ctx);
        }
        // The own vote may be all that was missing.
        self.evaluate(ctx);
        wake
    }
}

impl Protocol for Racs {
    type Message = Message;
    type Promise = Promised;
    type Record = Record;
    type Summary = Summary;
    type ReplyHeader = ();
    type Timer = Timer;
    type Options = Config;
    type Frontend = Frontend;

    const RESUMES_WITHIN: Duration = Duration::from_secs(5);
    const BRANCHES: &'static [&'static str] = &[
        "another level 1 taken over",
        "asynchronous mode",
        "asynchronous mode for a later view",
        "block of level 2 voted for is elected",
        "coin elects nobody",
        "coin elects a block",
        "exit by another's certificate",
        "dissemination changed",
        "leadership handed off",
        "missing block asked for",
        "needs trimmed blocks",
        "recovered",
        "recovery quorum",
        "view entered by a proposal",
        "view opened",
        "batches fetched",
        "batches shown again",
        "quoting block written complete",
    ];

    const INFO: Info = Info {
        name: "racs",
        paper: "Tennage, Desjardins, Kokoris-Kogias, RACS and SADL, 2024",
        best_at: "one round trip while delays are known, and goes on when they are not",
        tolerates: "crashes of a minority; delays without bound",
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
        let mut coin = Coin::new(&epoch);
        if options.planted.is(Plant::CoinDiffers) {
            coin.spoil(id);
        }
        let limits = Self::limits(&options);
        let sadl = Sadl::new(id, incarnation, members, epoch.majority(), limits);
        let mut lives = vec![Incarnation(0); members];
        lives[id.index()] = incarnation;
        Self {
            id,
            incarnation,
            life: 0,
            members,
            quorum: epoch.majority(),
            others: epoch.others(id),
            down: ReplicaSet::EMPTY,
            durability,
            config: options,
            sadl,
            leader_first: epoch.leader_first,
            coin,
            view: 0,
            mode: Mode::Synchronous,
            stopped: None,
            out: false,
            high: BlockId::GENESIS,
            tree: Tree::default(),
            decided: BlockId::GENESIS,
            certificate: None,
            exit: None,
            timeouts: vec![None; members],
            new_views: vec![None; members],
            completed: vec![None; members],
            early: vec![[None, None]; members],
            quotes: Vec::new(),
            quoting: vec![None; members],
            fall_old: BTreeMap::new(),
            lives,
            promise: None,
            due: VecDeque::new(),
            lead: None,
            heard: false,
            introduced: false,
            ahead: RequestQueue::default(),
            heard_at: Time(0),
            tip: None,
            voted: None,
            answer_due: false,
            stamp_seen: 0,
            round_trip: Duration::ZERO,
            leaders_trips: vec![Duration::ZERO; members],
            price: Duration::ZERO,
            priced_at: Time(0),
            failures: 0,
            fallbacks: Timing(0),
            elected: Timing(0),
            leaving: false,
            reached: BlockId::GENESIS,
            wanted: BTreeMap::new(),
            decided_from: id,
            fetch_armed: false,
            fetch_tries: 0,
            fetching: StateFetch::default(),
            executed_done: Slot(0),
            requests: KeptRequests::new(),
            course: Course::default(),
            watch: Watch::new(members),
            stalled: None,
            reads: Reads::default(),
            renewals: Renewals::default(),
            waiting_since: None,
            say_due: false,
            repeat_armed: false,
            repeats: 0,
            housekeeping: false,
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.life = ctx.random();
        let (first_boot, forgot) = (recovered.first_boot, recovered.forgot);
        let Some(found) = self.restore(recovered) else {
            return ctx.halt(
                "the journal has records missing in its middle; restore this replica's data \
                 directory from a backup or replace it by a new member"
                    .to_string(),
            );
        };
        if forgot && !self.planted(Plant::RecoverySkipped) {
            return self.become_recovering(ctx);
        }
        self.start(first_boot, found, ctx);
    }

    fn on_message(&mut self, from: Peer, message: Message, ctx: &mut Context<'_, Self>) {
        match from {
            Peer::Frontend(frontend) => match message {
                Message::Request { level, batch } => self.on_request(frontend, level, batch, ctx),
                _ => ctx.mark("ignored: not a frontend's message"),
            },
            Peer::Replica(from) if self.others.contains(from) => {
                self.down = self.down.without(from);
                self.on_replica_message(from, message, ctx);
            }
            Peer::Replica(_) => ctx.mark("ignored: not a member"),
        }
    }

    fn on_timer(&mut self, timer: Timer, ctx: &mut Context<'_, Self>) {
        match timer {
            Timer::View => self.on_view_timer(ctx),
            Timer::Beat => self.on_beat_timer(ctx),
            Timer::Repeat => self.on_repeat(ctx),
            Timer::Fetch => self.on_fetch_timer(ctx),
            Timer::Housekeeping => self.on_housekeeping(ctx),
            Timer::Show => self.sadl.on_show_timer(ctx),
            Timer::FetchBatches => self.sadl.on_fetch_timer(ctx),
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        self.sadl.on_persisted(upto, ctx);
        if self.promise.is_some_and(|write| write <= upto) {
            self.promise = None;
            self.say_due = true;
        }
        while let Some((write, due)) = self.due.front().copied() {
            if write > upto {
                break;
            }
            self.due.pop_front();
            self.on_due(due, ctx);
        }
    }

    fn on_executed(&mut self, slot: Slot, _ctx: &mut Context<'_, Self>) {
        self.executed_done = self.executed_done.max(slot);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        self.sadl.trim(slot, ctx);
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
        match link {
            Link::Up { incarnation } => {
                self.down = self.down.without(peer);
                self.meet(peer, incarnation, ctx);
                self.on_link_renewed(peer, ctx);
            }
            Link::Reset => self.on_link_renewed(peer, ctx),
            Link::Down => {
                self.down = self.down.with(peer);
                if self.leader_of(self.view) == peer {
                    self.on_leader_lost(ctx);
                }
            }
            Link::Arriving => {
                let now = ctx.now();
                if self.leader_of(self.view) == peer && !self.starving(now) {
                    self.heard_at = now;
                }
            }
            Link::Room(_) => {}
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            Control::CheckpointDue => {
                let root = self.tree.root();
                if root.end > Slot(0) {
                    let summary = Summary {
                        decided: root.id,
                        time: root.time,
                        heads: self.sadl.heads().to_vec(),
                        course: self.course,
                    };
                    self.keep_undecided(ctx);
                    ctx.checkpoint(root.end, &summary);
                }
            }
            Control::HandOff => self.hand_off(ctx),
            Control::Slow(quick) => self.leave_if_slow(quick, ctx),
            // Nobody waits for more than a quorum of the others.
            Control::SlowMembers(_) | Control::EpochEnded => {}
            Control::ReportFailure(peer) => {
                if self.leader_of(self.view) == peer {
                    self.on_leader_lost(ctx);
                }
            }
            Control::Option { name, value } => {
                let mut changed = self.config.clone();
                match changed.set(&name, &value).and_then(|()| changed.check()) {
                    Ok(()) => {
                        let before = self.way();
                        self.sadl.limit(Self::limits(&changed));
                        self.config = changed;
                        if self.way() != before {
                            self.on_dissemination(ctx);
                        }
                    }
                    Err(_) => ctx.mark("ignored: option value"),
                }
            }
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.flush(ctx)
    }

    fn takes_requests(&self, _now: Time) -> bool {
        !matches!(self.mode, Mode::Recovering(_))
    }

    fn status(&self) -> Status {
        let leads = self.lead.as_ref().is_some_and(|lead| lead.open);
        let role = match &self.mode {
            Mode::Recovering(_) => "recovering",
            Mode::Asynchronous(_) => "asynchronous",
            Mode::Synchronous if self.out => "rejoining",
            Mode::Synchronous if self.stopped.is_some() => "timed out",
            Mode::Synchronous if leads => "leader",
            Mode::Synchronous => "follower",
        };
        let known = matches!(self.mode, Mode::Synchronous)
            && self.stopped.is_none()
            && (self.heard || leads);
        let accepted = self
            .tree
            .end_of(self.high)
            .map_or(self.tree.root().end, |(end, _)| end);
        Status {
            role,
            leader: known.then(|| self.leader_of(self.view)),
            view: self.view,
            accepted: accepted.max(self.tree.root().end),
            committed: self.tree.root().end,
            stable: self.executed_done,
            voting: !self.out && !matches!(self.mode, Mode::Recovering(_)),
            details: vec![
                ("round", self.tree.root().id.round.to_string()),
                ("high", self.high.to_string()),
                ("asynchronous_modes", self.fallbacks.to_string()),
                ("elected_blocks", self.elected.to_string()),
                ("view_timeout_ms", self.timeout().as_millis().to_string()),
                ("asynchronous_mode_ms", self.price.as_millis().to_string()),
                ("round_trip_us", self.round_trip.as_micros().to_string()),
                ("blocks_held", self.tree.len().to_string()),
                ("history_bytes", self.tree.history_bytes().to_string()),
                ("dissemination", self.way().to_string()),
                ("dissemination_chosen", self.config.hybrid.to_string()),
                ("dissemination_switches", self.course.changes.to_string()),
                ("request_median_us", self.watch.median.to_string()),
                ("commands_per_second", self.watch.throughput.to_string()),
                ("batches_held", self.sadl.held().0.to_string()),
                ("batches_bytes", self.sadl.held().1.to_string()),
                ("requests", self.requests.len().to_string()),
                ("requests_bytes", self.requests.bytes().to_string()),
                ("reads_waiting", self.reads.len().to_string()),
                ("incarnation", format!("{}", self.incarnation.0)),
            ],
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        let mode = match &self.mode {
            Mode::Synchronous => 1,
            Mode::Asynchronous(fallback) => 2 + fallback.digest(),
            Mode::Recovering(_) => 3,
        };
        let root = self.tree.root();
        let parts = [
            self.view,
            mode,
            self.high.round,
            self.high.view,
            root.id.round,
            root.end.0,
            u64::from(self.stopped.is_some()),
            u64::from(self.out),
            self.tree.len() as u64,
            self.requests.len() as u64,
            self.lead.as_ref().map_or(0, Lead::digest),
        ];
        parts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| {
            (hash ^ part).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }

    fn fingerprint(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        core::hash::Hash::hash(self, &mut hasher);
        true
    }

    fn assert_invariants(&self) {
        self.tree.assert_invariants();
        self.sadl.assert_invariants();
        let weak = self.weak();
        if !matches!(self.mode, Mode::Recovering(_)) && !weak {
            assert!(
                self.tree.connected(self.high),
                "the highest block {} extends what is decided, {}",
                self.high,
                self.tree.root().id
            );
            assert!(
                self.rank(self.high) >= self.rank(self.tree.root().id),
                "nothing decided ranks above the highest block"
            );
        }
        assert!(self.high.view <= self.view || self.decided.view > self.view || weak);
        assert!(
            self.executed_done <= self.tree.root().end,
            "executions were asked for"
        );
        if let Some(lead) = &self.lead {
            assert!(
                self.leader_of(self.view) == self.id,
                "a leader leads its own view"
            );
            assert!(
                matches!(self.mode, Mode::Synchronous),
                "nobody leads the asynchronous mode"
            );
            lead.assert_invariants(self.members, self.view, self.high);
        }
        if let Mode::Asynchronous(fallback) = &self.mode {
            assert!(
                self.stopped.is_some(),
                "no synchronous vote in the asynchronous mode"
            );
            fallback.assert_invariants(self.view, self.id);
        }
        if let Some(certificate) = &self.certificate {
            assert!(
                certificate.view < self.view,
                "certificates are of views that ended"
            );
        }
    }
}

impl Racs {
    fn on_replica_message(
        &mut self,
        from: ReplicaId,
        message: Message,
        ctx: &mut Context<'_, Self>,
    ) {
        match message {
            Message::Forward { mark, batches } => self.on_forward(from, mark, batches, ctx),
            Message::Propose {
                view,
                tip,
                decided,
                stamp,
                round_trip,
                answer,
                blocks,
            } => {
                self.learn(decided, from, ctx);
                let told = (stamp, round_trip, answer);
                self.on_propose(from, view, tip, told, blocks, ctx);
            }
            Message::Vote {
                view,
                tip,
                stamp,
                lives,
                median,
            } => {
                if self.meet_all(from, &lives, ctx) {
                    self.watch.on_told(from, median);
                    self.on_vote(from, view, tip, stamp, ctx);
                } else {
                    ctx.mark("ignored: vote of an earlier life");
                }
            }
            Message::Timeout {
                view,
                high,
                decided,
                leaving,
                mark,
            } => {
                self.learn(decided, from, ctx);
                self.on_timeout(from, view, (high, decided), leaving, mark, ctx);
            }
            Message::ProposeAsync { block, quotes } => {
                self.on_propose_async(from, block, quotes, ctx);
            }
            Message::VoteAsync { block, lives } => {
                if self.meet_all(from, &lives, ctx) {
                    self.on_vote_async(from, block);
                } else {
                    ctx.mark("ignored: vote of an earlier life");
                }
            }
            Message::Complete { block } => self.on_complete(from, block, ctx),
            Message::NewView {
                view,
                high,
                certificate,
            } => {
                if let Some(certificate) = certificate {
                    self.on_certificate(certificate);
                }
                self.on_new_view(from, view, high, ctx);
            }
            Message::Exit {
                certificate,
                decided,
            } => {
                if self.planted(Plant::ExitByHigh) {
                    return self.exit_by_high(certificate.view, decided, ctx);
                }
                self.learn(decided, from, ctx);
                if certificate.view >= self.view {
                    ctx.mark("exit by another's certificate");
                }
                self.on_certificate(certificate);
            }
            Message::Fetch { tip, have } => self.on_fetch(from, tip, &have, ctx),
            Message::Blocks {
                tip,
                blocks,
                decided,
            } => self.on_blocks(from, tip, blocks, decided, ctx),
            Message::Sadl(message) => self.on_sadl(from, message, ctx),
            Message::Trimmed { slot } => self.on_trimmed(slot, ctx),
            Message::Recover {
                incarnation,
                nonce,
                above,
            } => {
                self.meet(from, incarnation, ctx);
                self.on_recover(from, incarnation, nonce, above, ctx);
            }
            Message::RecoverOk {
                nonce,
                forgot,
                view,
                high,
                fall,
                decided,
                held,
            } => {
                let answer = Answer {
                    forgot,
                    view,
                    high,
                    fall,
                    held,
                };
                self.on_recover_ok(from, nonce, answer, decided, ctx);
            }
            Message::Request { .. } | Message::Taken { .. } => {
                ctx.mark("ignored: not a replica's message");
            }
        }
    }
}

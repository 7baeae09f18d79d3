//! One replica: its state, and how events reach the parts.

use super::{
    Config, Frontend, Lives, LogHash, Message, Part, Promised, Record, ReplyHeader, Summary,
    checks::Checks,
    conflict::{Footprint, Marks, SetHash, mixed_wide},
    dom::{EarlyBuffer, Holds, LateBuffer, Name, OneWayDelays, Stamp},
    plant::Plant,
    quorum::{leader_of, slow_quorum},
    recovery::Recovering,
    view::{Changing, Joining},
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    format, vec,
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::{
    BatchId, BatchView, Bytes, Context, Control, Durability, FrontendId, Incarnation, Info, Lane,
    Link, Options, Peer, PersistId, Protocol, Recovered, ReplicaId, ReplicaSet, Setup, Slot,
    Status, Time, Wake,
    parts::{SlotLog, StateFetch, Table, Timing},
};

/// A batch in the log.
#[derive(Clone, Debug, Hash)]
pub(super) struct Entry {
    pub stamp: Stamp,
    pub batch: Bytes,
    pub footprint: Footprint,
    /// What a fast reply says of the log as it was when this was appended: base, hash, known.
    pub hash: (Slot, u128, bool),
    /// The slot under which the journal holds it.
    pub journal: Slot,
    /// The write that makes it durable.
    pub written: PersistId,
}

impl Entry {
    /// A batch that is about to be appended.
    pub(super) const fn new(stamp: Stamp, batch: Bytes, footprint: Footprint) -> Self {
        Self {
            stamp,
            batch,
            footprint,
            hash: (Slot(0), 0, false),
            journal: Slot(0),
            written: PersistId(0),
        }
    }
}

/// Where a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Slot(Slot),
    Unsynced(Stamp),
    Early(Stamp),
    Late,
}

/// A read that waits until the leader is known to lead.
#[derive(Hash)]
pub(super) struct Read {
    pub round: u64,
    pub slot: Slot,
    pub frontend: FrontendId,
    pub batch: Bytes,
}

/// A follower as its leader sees it.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Follower {
    pub sync: Slot,
    pub round: u64,
    /// Its sync-point at the last tick: without progress it is told again.
    pub sync_before: Slot,
    /// It has said something in this view, and when it did last.
    pub heard: bool,
    pub heard_at: Time,
    /// The end of the page that was sent again last; 0 when none was.
    pub again: Slot,
}

/// What only a leader has.
#[derive(Hash)]
pub(super) struct Lead {
    pub followers: Vec<Follower>,
    /// All up to here has been told once.
    pub told: Slot,
    /// When it was told last, and how long what comes then waits for company.
    pub told_at: Time,
    pub gap: Duration,
    /// A slot, and when it was told: until a majority has it.
    pub timed: Option<(Slot, Time)>,
    pub round: u64,
    pub round_due: bool,
    pub reads: VecDeque<Read>,
    /// What followers appended, where the leader checks quorums.
    pub checks: Checks,
}

/// What a replica is doing.
#[derive(Hash)]
pub(super) enum Phase {
    Follower,
    Leader(Lead),
    Changing(Changing),
    Joining(Joining),
    Recovering(Recovering),
}

quintet_replica::timers! {
    /// What wakes a replica.
    pub enum Timer {
        /// Heartbeats, suspicion, asking again.
        Tick,
        /// The first deadline in the early buffer has come.
        Release,
        /// A batch that the leader placed is still missing.
        Fetch,
    }
}

/// One replica of Nezha; see the module.
#[derive(Hash)]
pub struct Nezha {
    pub(super) id: ReplicaId,
    pub(super) members: usize,
    pub(super) others: ReplicaSet,
    pub(super) leader_first: ReplicaId,
    pub(super) durability: Durability,
    pub(super) config: Config,

    pub(super) lives: Lives,
    pub(super) lives_hash: u64,
    pub(super) view: u64,
    /// The last view in which it took part.
    pub(super) view_normal: u64,
    pub(super) phase: Phase,

    /// What agrees with the leader's log, up to the sync-point; the leader's whole log.
    pub(super) log: SlotLog<Entry>,
    pub(super) sync: Slot,
    /// The same, and durable.
    pub(super) sync_durable: Slot,
    pub(super) sync_writes: VecDeque<(PersistId, Slot)>,
    pub(super) commit: Slot,
    /// Asked to be executed.
    pub(super) executed: Slot,
    pub(super) checkpointed: Slot,
    /// Appended by this follower and not yet placed by the leader.
    pub(super) unsynced: BTreeMap<Stamp, Entry>,
    /// Placed by the leader behind a gap.
    pub(super) pending: BTreeMap<Slot, Stamp>,
    /// The start of the gap before it that was asked for last.
    pub(super) gap_asked: Slot,
    pub(super) early: EarlyBuffer<Footprint>,
    /// For which deadline the timer is set; 0 when it is not.
    pub(super) release_at: u64,
    pub(super) late: LateBuffer,
    pub(super) known: Table<Name, Place>,
    /// Of all that is in the log.
    pub(super) marks: Marks,
    /// Of what the log no longer holds.
    pub(super) marks_trimmed: Marks,
    pub(super) hash: SetHash,
    /// Of the slots above the hashes' base that the log no longer holds.
    pub(super) hash_trimmed: SetHash,
    pub(super) delays: OneWayDelays,
    pub(super) holds: Timing<Holds>,
    /// The deviation of the own clock when it was last read.
    pub(super) deviation: u64,

    pub(super) persisted: PersistId,
    /// Nothing is ordered under this view before this write is durable.
    pub(super) ready_after: PersistId,
    /// Fast replies that wait until their batch is durable.
    pub(super) fast_waiting: VecDeque<(PersistId, FrontendId, BatchId, Stamp)>,
    /// What was appended in this turn, by who sent it.
    pub(super) fast_replies: BTreeMap<FrontendId, Vec<(BatchId, LogHash)>>,
    /// Who waits for slow replies, and for which slot.
    pub(super) slow_waiting: VecDeque<(Slot, FrontendId)>,
    pub(super) status_due: bool,
    pub(super) round_heard: u64,
    pub(super) commit_heard: Slot,
    pub(super) fetch_armed: bool,
    pub(super) fetch_from: u16,

    pub(super) heard_at: Time,
    pub(super) patience: Duration,
    pub(super) leader_down: bool,
    /// When each replica last said that it does not hear the leader of this view.
    pub(super) suspects: Vec<Option<Time>>,
    pub(super) fetching: StateFetch,
    pub(super) paths: Timing<(u64, u64)>,
}

impl Nezha {
    pub(super) const fn leader(&self) -> ReplicaId {
        leader_of(self.view, self.leader_first, self.members)
    }

    pub(super) const fn majority(&self) -> usize {
        slow_quorum(self.members)
    }

    pub(super) const fn is_normal(&self) -> bool {
        matches!(self.phase, Phase::Follower | Phase::Leader(_))
    }

    pub(super) const fn is_ready(&self) -> bool {
        self.is_normal() && self.persisted.0 >= self.ready_after.0
    }

    pub(super) const fn is_leader(&self) -> bool {
        matches!(self.phase, Phase::Leader(_))
    }

    pub(super) fn between(&self, part: Part) -> Message {
        Message::Between {
            view: self.view,
            lives: self.lives.clone(),
            part,
        }
    }

    pub(super) fn send(&self, to: ReplicaId, part: Part, ctx: &mut Context<'_, Self>) {
        let lane = match part {
            Part::Bodies(_) | Part::LogPage { .. } => Lane::Bulk,
            _ => Lane::Control,
        };
        ctx.send(to, lane, &self.between(part));
    }

    pub(super) fn tell_others(&self, part: Part, ctx: &mut Context<'_, Self>) {
        ctx.multicast(self.others, Lane::Control, &self.between(part));
    }

    pub(super) fn promised(&self) -> Promised {
        Promised {
            view: self.view,
            view_normal: self.view_normal,
            lives: self.lives.clone(),
        }
    }

    /// What a batch touches, as far as this configuration looks.
    pub(super) fn footprint(&self, batch: &Bytes, ctx: &Context<'_, Self>) -> Footprint {
        if !self.config.commutativity {
            return Footprint::of_everything();
        }
        let mut footprint = Footprint::default();
        ctx.footprint(batch, &mut footprint);
        footprint
    }

    /// A batch as an entry; `None` when the bytes are no batch.
    pub(super) fn entry_of(
        &self,
        deadline: u64,
        batch: Bytes,
        ctx: &Context<'_, Self>,
    ) -> Option<Entry> {
        let name = name_of(&batch)?;
        let footprint = self.footprint(&batch, ctx);
        Some(Entry::new(Stamp { deadline, name }, batch, footprint))
    }

    pub(super) fn draw_patience(&mut self, ctx: &mut Context<'_, Self>) {
        let half = u64::try_from(self.config.suspect_after.as_nanos() / 2).unwrap_or(u64::MAX);
        let more = Duration::from_nanos(ctx.random_below(half));
        self.patience = self.config.suspect_after + more;
        self.heard_at = ctx.now();
        self.leader_down = false;
        self.suspects.fill(None);
    }

    pub(super) fn hash_lives(&mut self) {
        self.lives_hash = mixed_wide(&self.lives) as u64;
    }

    /// Takes over what a peer knows of the members' lives. False when the message comes from a
    /// life that is over.
    fn merge_lives(&mut self, from: ReplicaId, lives: &Lives, ctx: &mut Context<'_, Self>) -> bool {
        if lives.len() != self.members {
            return false;
        }
        if lives[from.index()] < self.lives[from.index()] && !self.planted(Plant::LivesIgnored) {
            ctx.mark("ignored: message of an earlier life");
            return false;
        }
        let mut newer = ReplicaSet::EMPTY;
        for (index, life) in lives.iter().enumerate() {
            if *life > self.lives[index] && index != self.id.index() {
                self.lives[index] = *life;
                newer.insert(ReplicaId(index as u16));
            }
        }
        self.note_restarted(newer, ctx);
        true
    }

    /// Members are in other lives than they were known to be in.
    fn note_restarted(&mut self, newer: ReplicaSet, ctx: &mut Context<'_, Self>) {
        if newer.is_empty() || self.planted(Plant::LivesIgnored) {
            return;
        }
        self.hash_lives();
        let _ = ctx.persist_promise(&self.promised());
        for id in newer.iter() {
            if let Phase::Leader(lead) = &mut self.phase {
                lead.followers[id.index()] = Follower::default();
            }
            self.suspects[id.index()] = None;
        }
        self.filter_votes(ctx);
    }

    /// A link tells in which life a member is before it says so itself: replies whose senders know
    /// of other lives do not make a quorum.
    fn meet(&mut self, peer: ReplicaId, incarnation: Incarnation, ctx: &mut Context<'_, Self>) {
        if incarnation.0 > self.lives[peer.index()] {
            self.lives[peer.index()] = incarnation.0;
            self.note_restarted(ReplicaSet::EMPTY.with(peer), ctx);
        }
    }

    fn on_part(&mut self, from: ReplicaId, view: u64, part: Part, ctx: &mut Context<'_, Self>) {
        match part {
            Part::LogModification {
                first,
                stamps,
                commit,
                round,
            } => self.on_log_modification(from, view, (first, stamps), commit, round, ctx),
            Part::LogStatus { sync, round } => self.on_log_status(from, view, sync, round, ctx),
            Part::Lacks { first, upto } => self.on_lacks(from, view, (first, upto), ctx),
            Part::Fetch(names) => self.on_fetch(from, &names, ctx),
            Part::Bodies(batches) => self.on_bodies(batches, ctx),
            Part::GetLog(first) => self.on_get_log(from, view, first, ctx),
            Part::LogPage {
                first,
                entries,
                end,
            } => self.on_log_page(from, view, (first, entries), end, ctx),
            Part::Trimmed(below) => self.on_trimmed(from, view, below, ctx),
            Part::Suspect => self.on_suspect(from, view, ctx),
            Part::ViewChange(commit) => self.on_view_change(from, view, commit, ctx),
            Part::Vote(vote) => self.on_vote(from, view, vote, ctx),
            Part::Recover(nonce) => self.on_recover(from, view, nonce, ctx),
            Part::RecoverOk(nonce, standing) => {
                self.on_recover_ok(from, view, nonce, standing, ctx);
            }
            Part::Appended(name, hash) => self.on_appended(from, view, name, hash, ctx),
        }
    }

    fn on_tick(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Tick, self.config.heartbeat);
        match self.phase {
            Phase::Leader(_) => self.tick_leader(ctx),
            Phase::Follower => self.tick_follower(ctx),
            Phase::Changing(_) => self.tick_changing(ctx),
            Phase::Joining(_) => self.tick_joining(ctx),
            Phase::Recovering(_) => self.ask_to_recover(ctx),
        }
    }
}

/// A batch's name; `None` when the bytes are no batch.
pub(super) fn name_of(batch: &Bytes) -> Option<Name> {
    let view = BatchView::checked(batch).ok()?;
    Some(Name {
        frontend: view.frontend(),
        batch: view.id(),
    })
}

impl Protocol for Nezha {
    type Message = Message;
    type Promise = Promised;
    type Record = Record;
    type Summary = Summary;
    type ReplyHeader = ReplyHeader;
    type Timer = Timer;
    type Options = Config;
    type Frontend = Frontend;

    const SPECULATES: bool = true;

    const INFO: Info = Info {
        name: "nezha",
        paper: "Geng, Sivaraman, Prabhakar, Rosenblum, Nezha, VLDB 2023",
        best_at: "one round trip from clients to all replicas where clocks are synchronised",
        tolerates: "crashes, loss and partitions of a minority; clocks may be wrong",
        stable: false,
        replicas_min: 1,
    };
    #[cfg(feature = "plant")]
    const PLANTS: &'static [quintet_replica::PlantSpec] = Plant::SPECS;

    const RESUMES_WITHIN: Duration = Duration::from_secs(3);
    const BRANCHES: &'static [&'static str] = &[
        "a deadline lay too far ahead",
        "an entry with another deadline was taken over",
        "ignored: message of an earlier life",
        "late at a follower",
        "late at the leader",
        "missing batch fetched",
        "placed from the late buffer",
        "recovered",
        "recovery quorum",
        "speculation undone",
        "survivor of a view change",
        "view changed",
        "view joined",
    ];

    fn new(setup: Setup<Config>) -> Self {
        let Setup {
            id,
            incarnation,
            epoch,
            options,
            durability,
            ..
        } = setup;
        let mut lives: Lives = (0..epoch.members).map(|_| 0).collect();
        lives[id.index()] = incarnation.0;
        let same = options.planted.is(Plant::OneHashForAllKeys);
        let mut replica = Self {
            id,
            members: epoch.members,
            others: epoch.others(id),
            leader_first: epoch.leader_first,
            durability,
            delays: OneWayDelays::new(options.estimation),
            holds: Timing::default(),
            deviation: u64::MAX,
            config: options,
            lives,
            lives_hash: 0,
            view: 0,
            view_normal: 0,
            phase: Phase::Follower,
            log: SlotLog::default(),
            sync: Slot(0),
            sync_durable: Slot(0),
            sync_writes: VecDeque::new(),
            commit: Slot(0),
            executed: Slot(0),
            checkpointed: Slot(0),
            unsynced: BTreeMap::new(),
            pending: BTreeMap::new(),
            gap_asked: Slot(0),
            early: EarlyBuffer::default(),
            release_at: 0,
            late: LateBuffer::default(),
            known: Table::default(),
            marks: Marks::default(),
            marks_trimmed: Marks::default(),
            hash: SetHash::above(Slot(0), same),
            hash_trimmed: SetHash::above(Slot(0), same),
            persisted: PersistId(0),
            ready_after: PersistId(0),
            fast_waiting: VecDeque::new(),
            fast_replies: BTreeMap::new(),
            slow_waiting: VecDeque::new(),
            status_due: false,
            round_heard: 0,
            commit_heard: Slot(0),
            fetch_armed: false,
            fetch_from: 0,
            heard_at: Time(0),
            patience: Duration::ZERO,
            leader_down: false,
            suspects: vec![None; epoch.members],
            fetching: StateFetch::default(),
            paths: Timing((0, 0)),
        };
        replica.hash_lives();
        replica
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Record, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        self.draw_patience(ctx);
        ctx.set_timer(Timer::Tick, self.config.heartbeat);
        let (first_boot, forgot) = (recovered.first_boot, recovered.forgot);
        self.restore(recovered, ctx);
        let leads = self.leader() == self.id;
        if forgot {
            self.become_recovering(ctx);
        } else if first_boot {
            if leads {
                // Durable before anything is ordered, so that no later start is a first one.
                self.ready_after = ctx.persist_promise(&self.promised());
                self.phase = Phase::Leader(self.lead());
            }
        } else if leads {
            // What it told others under this view may not be on its disk: never the same twice.
            self.start_view_change(self.view + 1, ctx);
        } else if self.view_normal < self.view {
            self.start_view_change(self.view, ctx);
        }
    }

    fn on_message(&mut self, from: Peer, message: Message, ctx: &mut Context<'_, Self>) {
        match (from, message) {
            (
                Peer::Frontend(frontend),
                Message::Request {
                    sent,
                    bound,
                    deviation,
                    level,
                    batch,
                },
            ) => self.on_request(frontend, (sent, bound, deviation), level, batch, ctx),
            (Peer::Frontend(frontend), Message::Paths { fast, slow })
                if frontend == ctx.embedded() =>
            {
                *self.paths = (fast, slow);
            }
            (Peer::Replica(from), Message::Between { view, lives, part })
                if self.others.contains(from) =>
            {
                if self.merge_lives(from, &lives, ctx) {
                    self.on_part(from, view, part, ctx);
                }
            }
            _ => ctx.mark("ignored: not for a replica"),
        }
    }

    fn on_timer(&mut self, timer: Timer, ctx: &mut Context<'_, Self>) {
        match timer {
            Timer::Tick => self.on_tick(ctx),
            Timer::Release => {
                self.release_at = 0;
                self.release(ctx);
            }
            Timer::Fetch => self.fetch_missing(ctx),
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        self.persisted = self.persisted.max(upto);
        while let Some((id, slot)) = self.sync_writes.front().copied() {
            if id > upto {
                break;
            }
            self.sync_writes.pop_front();
            self.sync_durable = self.sync_durable.max(slot);
            self.status_due = true;
        }
        self.send_fast_replies(ctx);
        if self.is_leader() {
            self.count_syncs(ctx);
        }
        self.on_promise_durable(ctx);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        self.checkpointed = self.checkpointed.max(slot);
        self.trim(ctx);
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        self.install(slot, summary, ctx);
    }

    fn on_link(&mut self, peer: Peer, link: Link, ctx: &mut Context<'_, Self>) {
        if let (Peer::Replica(id), Link::Up { incarnation }) = (peer, link)
            && self.others.contains(id)
        {
            self.meet(id, incarnation, ctx);
        }
        if peer == Peer::Replica(self.leader()) {
            match link {
                Link::Down => self.leader_down = true,
                Link::Up { .. } => self.leader_down = false,
                Link::Arriving => self.heard_at = ctx.now(),
                Link::Room(_) | Link::Reset => {}
            }
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            Control::CheckpointDue => self.checkpoint(ctx),
            Control::HandOff => {
                if self.members > 1 {
                    self.hand_off(self.others, ctx);
                }
            }
            Control::Slow(quick) => self.hand_off(quick, ctx),
            // Nobody waits for more than a quorum of the others.
            Control::SlowMembers(_) => {}
            Control::EpochEnded => self.begin_round(ctx),
            Control::Option { name, value } => {
                let _ = self.config.set(&name, &value);
                self.delays.retune(self.config.estimation);
            }
            Control::ReportFailure(id) => {
                if id == self.leader() {
                    self.leader_down = true;
                }
            }
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.flush(ctx)
    }

    fn takes_requests(&self, _now: Time) -> bool {
        self.is_ready() && (self.config.multicast || self.is_leader())
    }

    fn status(&self) -> Status {
        let role = match self.phase {
            Phase::Follower => "follower",
            Phase::Leader(_) => "leader",
            Phase::Changing(_) => "changing view",
            Phase::Joining(_) => "joining",
            Phase::Recovering(_) => "recovering",
        };
        let (fast, slow) = *self.paths;
        let mut details = vec![
            ("sync_point", format!("{}", self.sync_durable.0)),
            ("early_buffer", format!("{}", self.early.len())),
            ("late_buffer", format!("{}", self.late.len())),
        ];
        if let Some(share) = (fast * 100).checked_div(fast + slow) {
            details.push(("fast_percent", format!("{share}")));
        }
        if let Some(hold) = self.holds.median() {
            details.push(("hold_us", format!("{}", hold / 1000)));
        }
        Status {
            multicasts: Vec::new(),
            role,
            leader: self.is_normal().then(|| self.leader()),
            view: self.view,
            accepted: self.sync.max(self.executed),
            committed: self.commit,
            stable: self.commit.min(self.executed),
            voting: self.is_normal(),
            paths: vec![("fast", fast), ("slow", slow)],
            details,
        }
    }

    fn digest(&self) -> u64 {
        let phase = match self.phase {
            Phase::Follower => 0,
            Phase::Leader(_) => 1,
            Phase::Changing(_) => 2,
            Phase::Joining(_) => 3,
            Phase::Recovering(_) => 4,
        };
        mixed_wide(&[
            self.view,
            self.view_normal,
            phase,
            self.sync.0,
            self.sync_durable.0,
            self.commit.0,
            self.executed.0,
            self.unsynced.len() as u64,
            self.early.len() as u64,
            self.late.len() as u64,
            self.lives_hash,
            self.known.len() as u64,
        ]) as u64
    }

    fn fingerprint(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        core::hash::Hash::hash(self, &mut hasher);
        true
    }

    fn assert_invariants(&self) {
        assert!(self.commit <= self.sync, "committed is agreed");
        assert!(self.sync_durable <= self.sync, "durable is held");
        assert!(self.view_normal <= self.view);
        assert_eq!(self.log.end(), self.sync.next(), "the log has no gaps");
        if !self.is_leader() && !self.planted(Plant::NoRollBack) {
            assert!(self.executed <= self.commit, "only a leader speculates");
        }
        if self.is_normal() {
            assert_eq!(self.view_normal, self.view);
            self.assert_hash();
        }
    }
}

//! The leader, at the head of the chain: proposes what arrived in a turn, makes rounds, and keeps
//! the chain whole.
//!
//! ```text
//!   queue ──(window open?)──┐
//!   AddNode, RemoveNode ────┼─► log + journal ─► round ─► Accept to the next in the chain
//!   ordered reads ──────────┘                     ▲                     ┆
//!                                 heartbeat, Ask ─┘      Ack ◄── tail ◄─┘
//! ```

use super::{
    Entry, Message, Op, Round,
    chain::Route,
    replica::{ChainPaxos, Held, Role, Timer},
    slow::Distances,
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::{
    Bytes, CommandTime, Context, Incarnation, Lane, PersistId, ReplicaId, ReplicaSet, Slot, Time,
    Wake,
    parts::{Ballot, RequestQueue, Waiting, request_key},
};
use smallvec::SmallVec;

/// Rounds in progress whose time is remembered.
const ROUNDS_MAX: usize = 256;

/// For how long two replicas whose link was broken are not placed behind each other.
const AVOID: Duration = Duration::from_secs(30);

/// What only a leader keeps.
#[derive(Hash)]
pub(super) struct Lead {
    pub queue: RequestQueue,
    /// Undecided Accept messages: their last slot and bytes.
    window: VecDeque<(Slot, usize)>,
    window_bytes: usize,
    proposed_at: Time,
    /// Changes of the chain and ordered reads, to be proposed at once.
    pub ops: Vec<Op>,
    /// Questions since the last round.
    pub asked: SmallVec<[(ReplicaId, u64); 2]>,
    /// A round is due although nothing is proposed.
    pub round_due: bool,
    /// A reader before the middle waits for word that a round came back.
    echo_after: u64,
    round_at: Time,
    rounds: VecDeque<(u64, Time)>,
    looped: u64,
    looped_by: ReplicaSet,
    /// What the tail said that it holds.
    pub tail_held: Slot,
    /// Who should leave the chain as soon as enough others are in it.
    pub unwanted: ReplicaSet,
    /// Who complained about whom, although the leader hears that one: since when, and last.
    complaints: BTreeMap<(ReplicaId, ReplicaId), (Time, Time)>,
    /// What joiners have been sent.
    pages: BTreeMap<ReplicaId, Pages>,
    /// Who should not follow whom for a while, and since when: their link was what was broken.
    avoid: BTreeMap<(ReplicaId, ReplicaId), Time>,
    /// Members that say that they could not lead.
    pub unable: ReplicaSet,
    /// Leadership is being handed over since then.
    pub leaving: Option<Time>,
    pub distances: Distances,
    /// The newest round that each has said to have seen.
    pub seen: Vec<u64>,
    /// A round that everyone in the route should have seen: which, since when, and the route.
    due: (u64, Time, Route),
}

/// What a joiner has been sent.
#[derive(Clone, Copy, Debug, Hash)]
struct Pages {
    /// What it holds, by its own word.
    held: Slot,
    /// The last slot that it was sent.
    upto: Slot,
    /// Since when it has held no more than that.
    since: Time,
}

impl Lead {
    /// A round has come back; gives how long the newest took.
    pub fn came_round(&mut self, round: &Round, now: Time) -> Option<Duration> {
        if round.number < self.looped {
            return None;
        }
        if round.number > self.looped {
            self.looped = round.number;
            self.looped_by = ReplicaSet::EMPTY;
        }
        self.looped_by.0 |= round.path.0;
        let mut sent_at = None;
        while let Some((number, at)) = self.rounds.front().copied() {
            if number > round.number {
                break;
            }
            sent_at = Some(at);
            self.rounds.pop_front();
        }
        sent_at.map(|at| now.since(at))
    }

    fn decided(&mut self, committed: Slot) {
        while let Some((last, bytes)) = self.window.front().copied() {
            if last > committed {
                break;
            }
            self.window.pop_front();
            self.window_bytes -= bytes;
        }
    }

    /// Whether the link from one to the other was what had failed.
    pub fn avoids(&self, from: ReplicaId, to: ReplicaId) -> bool {
        self.avoid.contains_key(&(from, to))
    }

    pub fn window(&self) -> usize {
        self.window.len()
    }

    pub fn digest(&self) -> u64 {
        (self.looped ^ (self.queue.bytes() as u64) << 20 ^ self.window.len() as u64)
            .wrapping_mul(0x0000_0100_0000_01b3)
    }
}

impl ChainPaxos {
    /// The ballot is this replica's: everything that may have been decided is in the log, under
    /// this ballot.
    pub(super) fn become_leader(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let tail = self.log.iter_from(self.committed.next());
        let in_flight = tail.filter_map(|(_, held)| match &held.entry.op {
            Op::Batch(batch) => request_key(batch),
            _ => None,
        });
        let lead = Lead {
            queue: RequestQueue::proposed(in_flight),
            window: VecDeque::new(),
            window_bytes: 0,
            proposed_at: Time(0),
            ops: Vec::new(),
            asked: SmallVec::new(),
            round_due: true,
            echo_after: 0,
            round_at: Time(0),
            rounds: VecDeque::new(),
            looped: 0,
            looped_by: ReplicaSet::EMPTY,
            tail_held: Slot(0),
            unwanted: ReplicaSet::EMPTY,
            complaints: BTreeMap::new(),
            pages: BTreeMap::new(),
            avoid: BTreeMap::new(),
            unable: ReplicaSet::EMPTY,
            leaving: None,
            distances: Distances::new(self.members),
            seen: alloc::vec![0; self.members],
            due: (0, now, Route::new()),
        };
        self.turn = None;
        self.role = Role::Leader(lead);
        self.leader = Some(self.id);
        self.heard = self.heard.iter().map(|at| (*at).max(now)).collect();
        self.unlink();
        self.reroute(ctx);
        ctx.cancel_timer(Timer::Election);
        self.forward_all();
        self.reads.ask_again();
        if !self.working.contains(self.id) {
            // It was removed while it was away and still had to lead, since nobody else could.
            ctx.mark("leader adds itself");
            let after = self.route.last().copied().unwrap_or(self.id);
            let (id, life) = (self.id, self.life);
            self.propose_op(Op::Add { id, life, after });
        }
    }

    pub(super) const fn leaving(&self) -> bool {
        matches!(&self.role, Role::Leader(lead) if lead.leaving.is_some())
    }

    pub(super) fn propose_op(&mut self, op: Op) {
        if let Role::Leader(lead) = &mut self.role
            && !lead.ops.contains(&op)
        {
            lead.ops.push(op);
        }
    }

    fn gap(&self) -> Duration {
        let window = u32::try_from(self.config.window).unwrap_or(u32::MAX).max(1);
        self.config.window_gap.max(self.loop_time / window)
    }

    /// The leader's part of a turn, before anything is sent.
    pub(super) fn lead(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let committed = self.committed;
        let Role::Leader(lead) = &mut self.role else {
            return Wake::Sleep;
        };
        lead.decided(committed);
        let before = self.held;
        self.propose_ops(ctx);
        let proposals = self.propose(ctx);
        let rounds = self.maybe_make_round(self.held > before, ctx);
        proposals.min(rounds)
    }

    fn propose_one(&mut self, op: Op, clock: u64, ctx: &mut Context<'_, Self>) -> PersistId {
        let time = CommandTime(clock.max(self.time_seen.0 + 1));
        let slot = self.held.next();
        self.append(slot, Entry { time, op }, ctx)
    }

    /// Changes of the chain wait for no window: they are what opens it again.
    fn propose_ops(&mut self, ctx: &mut Context<'_, Self>) {
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let ops = core::mem::take(&mut lead.ops);
        let clock = ctx.clock().now;
        let mut write = None;
        for op in ops {
            write = Some(self.propose_one(op, clock, ctx));
        }
        if let Some(write) = write {
            self.vote_after(write);
        }
    }

    /// Takes all that is queued into the log, as far as the window is open.
    fn propose(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let (now, gap, clock) = (ctx.now(), self.gap(), ctx.clock().now);
        let (messages_max, bytes_max) = (self.config.window, self.config.window_bytes);
        loop {
            let Role::Leader(lead) = &self.role else {
                return Wake::Sleep;
            };
            if lead.queue.is_empty() || lead.leaving.is_some() {
                return Wake::Sleep;
            }
            if lead.window.len() >= messages_max || lead.window_bytes >= bytes_max {
                return Wake::Sleep;
            }
            // A full message need not wait for company: the gap only serves to gather it.
            let gathered = lead.proposed_at == now;
            if !lead.window.is_empty() && !gathered && now < lead.proposed_at + gap {
                return Wake::At(lead.proposed_at + gap);
            }
            let (mut bytes, mut write) = (0, None);
            loop {
                let Role::Leader(lead) = &mut self.role else {
                    return Wake::Sleep;
                };
                let next = lead.queue.peek().map_or(0, Bytes::len);
                if bytes > 0 && bytes + next > self.config.batch_bytes_max {
                    break;
                }
                let Some(batch) = lead.queue.pop() else {
                    break;
                };
                bytes += batch.len();
                write = Some(self.propose_one(Op::Batch(batch), clock, ctx));
            }
            if let Some(write) = write {
                self.vote_after(write);
            }
            let last = self.held;
            if let Role::Leader(lead) = &mut self.role {
                lead.window.push_back((last, bytes));
                lead.window_bytes += bytes;
                lead.proposed_at = now;
            }
        }
    }

    /// A round goes with everything proposed; without, when somebody waits for one.
    fn maybe_make_round(&mut self, proposed: bool, ctx: &mut Context<'_, Self>) -> Wake {
        let (id, end, majority) = (self.id, self.held, self.majority);
        let reads = self.reads.wants_round();
        let (now, gap) = (ctx.now(), self.loop_time / 32);
        let alone = self.route.len() == 1;
        let Role::Leader(lead) = &mut self.role else {
            return Wake::Sleep;
        };
        let echo = lead.echo_after > 0
            && lead.looped >= lead.echo_after
            && lead.looped_by.len() >= majority;
        let wanted = reads || echo || !lead.asked.is_empty();
        if !proposed && !lead.round_due {
            if !wanted {
                return Wake::Sleep;
            }
            // Rounds for reads alone leave each other a little room, so that more reads share one.
            if !alone && now < lead.round_at + gap {
                return Wake::At(lead.round_at + gap);
            }
        }
        let number = self.round.number + 1;
        let upstream = &self.route[..majority.min(self.route.len()) - 1];
        if lead.asked.iter().any(|(by, _)| upstream.contains(by)) {
            lead.echo_after = number;
        } else if echo {
            lead.echo_after = 0;
        }
        lead.round_due = false;
        lead.round_at = now;
        if lead.rounds.len() < ROUNDS_MAX {
            lead.rounds.push_back((number, now));
        }
        self.round = Round {
            number,
            end,
            path: ReplicaSet::EMPTY.with(id),
            looped: lead.looped,
            looped_by: lead.looped_by,
            asked: core::mem::take(&mut lead.asked),
        };
        if alone {
            lead.looped = number;
            lead.looped_by = self.round.path;
        }
        self.reads.bind_all(number, end);
        Wake::Sleep
    }

    /// The newest round that is known to have been passed on by a quorum: at that time nobody
    /// else can have decided anything.
    pub(super) fn confirmed(&self) -> u64 {
        let (mut looped, mut looped_by) = (self.round.looped, self.round.looped_by);
        if let Role::Leader(lead) = &self.role {
            (looped, looped_by) = (lead.looped, lead.looped_by);
        } else if self.round.path.len() >= self.majority {
            return self.round.number;
        }
        if looped_by.len() >= self.majority {
            looped
        } else {
            0
        }
    }

    pub(super) fn on_ask(
        &mut self,
        from: ReplicaId,
        stamp: u64,
        ordered: bool,
        ctx: &mut Context<'_, Self>,
    ) {
        let Role::Leader(lead) = &mut self.role else {
            return ctx.mark("ignored: reads asked of a follower");
        };
        if ordered {
            return self.propose_op(Op::Read { by: from, stamp });
        }
        match lead.asked.iter_mut().find(|(by, _)| *by == from) {
            Some((_, before)) => *before = stamp.max(*before),
            None => lead.asked.push((from, stamp)),
        }
    }

    /// Fills the slots above the commit point under this replica's new ballot (Alg. 4, l. 15-17).
    pub(super) fn propose_again(
        &mut self,
        mut gathered: BTreeMap<Slot, Held>,
        ctx: &mut Context<'_, Self>,
    ) {
        let last_gathered = gathered.last_key_value().map_or(Slot(0), |(slot, _)| *slot);
        let end = self.log.end().max(last_gathered.next());
        let mut write = None;
        let mut slot = self.committed.next();
        while slot < end {
            let own = self.log.get(slot).cloned();
            let best = match (own, gathered.remove(&slot)) {
                (Some(own), Some(other)) if other.ballot > own.ballot => Some(other),
                (Some(own), _) => Some(own),
                (None, other) => other,
            };
            let entry = best.map(|held| held.entry).unwrap_or_else(|| {
                ctx.mark("gap filled with nothing");
                Entry {
                    time: self.time_seen,
                    op: Op::Nothing,
                }
            });
            write = Some(self.append(slot, entry, ctx));
            slot = slot.next();
        }
        if let Some(write) = write {
            self.vote_after(write);
        }
    }

    /// Proposes that a replica leave the chain, if enough others stay: below a quorum the chain
    /// could decide nothing, not even that somebody comes back (A.5, the minimum quorum).
    pub(super) fn maybe_remove(&mut self, id: ReplicaId, ctx: &mut Context<'_, Self>) {
        let leaving = |op: &Op| matches!(op, Op::Remove { .. });
        let (me, majority) = (self.id, self.majority);
        let members = self.working.set();
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        if id == me || !members.contains(id) {
            lead.unwanted = lead.unwanted.without(id);
            return;
        }
        if lead.ops.contains(&Op::Remove { id }) {
            return;
        }
        let pending = lead.ops.iter().filter(|op| leaving(op)).count();
        if members.len() < majority + 1 + pending {
            ctx.mark("removal would leave no quorum");
            lead.unwanted.insert(id);
            return;
        }
        lead.unwanted = lead.unwanted.without(id);
        ctx.mark("removal proposed");
        self.propose_op(Op::Remove { id });
    }

    /// A member says that another is silent. The leader does not remove whom it hears (A.5),
    /// unless the complaint continues: then the link between the two is what is broken.
    pub(super) fn on_suspect(
        &mut self,
        by: ReplicaId,
        about: ReplicaId,
        ctx: &mut Context<'_, Self>,
    ) {
        let (now, patience) = (ctx.now(), self.config.suspect_timeout);
        let known = self.working.contains(by) && self.working.contains(about);
        let heard = now.since(self.heard[about.index()]) < patience;
        let Role::Leader(lead) = &mut self.role else {
            return ctx.mark("ignored: suspicion told to a follower");
        };
        if !known || about == self.id || by == about {
            return ctx.mark("ignored: suspicion by or about no member");
        }
        if heard {
            let complaint = lead.complaints.entry((by, about)).or_insert((now, now));
            if now.since(complaint.1) > patience {
                complaint.0 = now;
            }
            complaint.1 = now;
            if now.since(complaint.0) < self.config.heartbeat {
                return ctx.mark("suspicion about one that is heard");
            }
            ctx.mark("removed although it is heard");
            lead.avoid.insert((by, about), now);
        }
        lead.complaints.remove(&(by, about));
        self.maybe_remove(about, ctx);
    }

    /// A replica that is not in the chain, or not in this life, is there: it is brought near and
    /// then added at the tail.
    pub(super) fn admit(
        &mut self,
        id: ReplicaId,
        (ballot, life, whole, held): (Ballot, Incarnation, bool, Slot),
        ctx: &mut Context<'_, Self>,
    ) {
        let member = self.working.position(id);
        let known = member.is_some_and(|at| whole || self.working.members[at].life >= life);
        if known {
            return;
        }
        if member.is_some() {
            // Its earlier stay has ended, even if it is let in at once.
            self.admission.restarted(id, ctx.now());
        }
        if ballot > self.promised {
            // It has promised a ballot that came to nothing, and may not go below it. Pages of this
            // ballot would be rejected, and the rejection would depose this leader.
            ctx.mark("leader raises its ballot for a joiner");
            self.step_down(ctx);
            return self.become_candidate(ctx);
        }
        let waits = self.must_wait(id, whole, ctx);
        if ballot < self.promised && (waits || member.is_none()) {
            // It learns of this ballot, and says where it stands.
            self.send_page(id, self.held, ctx);
            return;
        }
        if waits {
            // An empty page, too: it names the leader and the commit point.
            ctx.mark("joiner waits: it failed again and again");
            return self.send_next_page(id, held, ctx);
        }
        if member.is_none() {
            let near = self.config.batch_bytes_max / 2;
            if self.bytes_behind(held).is_some_and(|bytes| bytes > near) {
                ctx.mark("joiner is brought nearer");
                return self.send_next_page(id, held, ctx);
            }
        }
        ctx.mark("re-admission proposed");
        let after = self.place_for(id);
        self.propose_op(Op::Add { id, life, after });
    }

    /// Each time that a member is let in and fails, the chain stands still until it is removed. So
    /// a member that fails again and again waits, if the chain has a margin without it. With its
    /// state it is an acceptor meanwhile; the leader keeps it near and orders its clients'
    /// requests.
    fn must_wait(&mut self, id: ReplicaId, whole: bool, ctx: &mut Context<'_, Self>) -> bool {
        let now = ctx.now();
        let recent = self.config.heartbeat * 4;
        let Role::Leader(lead) = &self.role else {
            return false;
        };
        let counts = |other: &ReplicaId| {
            let forgot = self.forgotten[other.index()].is_some_and(|at| now.since(at) < recent);
            *other != id && !lead.unwanted.contains(*other) && !forgot
        };
        // Nothing passes a broken link whose end could not be removed.
        let broken = |link: &[ReplicaId]| lead.avoids(link[0], link[1]);
        let reached = self.route.windows(2).position(broken);
        let reached = reached.map_or(self.route.len(), |at| at + 1);
        let others = self.route[..reached].iter().copied().filter(counts).count();
        let waiting = if whole { Waiting::Votes } else { Waiting::Lost };
        if !(self.admission).pauses(id, now, (others, self.majority), waiting) {
            return false;
        }
        // Its earlier incarnation may still be a member.
        self.maybe_remove(id, ctx);
        !matches!(&self.role, Role::Leader(lead) if lead.unwanted.contains(id))
    }

    /// The page after those that are on their way to a joiner that holds so much. What it says of
    /// itself is as old as the way is long: a slow link that is sent the same pages again each time
    /// has room for nothing else. Only when nothing has arrived for a while do they begin again.
    fn send_next_page(&mut self, id: ReplicaId, held: Slot, ctx: &mut Context<'_, Self>) {
        let (now, patience) = (
            ctx.now(),
            self.config.suspect_timeout.max(self.loop_time * 4),
        );
        let Role::Leader(lead) = &self.role else {
            return;
        };
        let known = lead.pages.get(&id);
        let going_on = known.filter(|pages| {
            held <= pages.upto && (held > pages.held || now.since(pages.since) < patience)
        });
        let first = going_on.map_or(held, |pages| pages.upto);
        let since = going_on.filter(|pages| pages.held == held);
        let since = since.map_or(now, |pages| pages.since);
        let upto = self.send_page(id, first, ctx).unwrap_or(first);
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        lead.pages.insert(id, Pages { held, upto, since });
    }

    /// Behind the tail, unless the tail has just complained about it.
    fn place_for(&self, id: ReplicaId) -> ReplicaId {
        let tail = self.route.last().copied().unwrap_or(self.id);
        match &self.role {
            Role::Leader(lead) if lead.avoids(tail, id) => self.id,
            _ => tail,
        }
    }

    /// A link may be broken one way, so that its sender is heard and nothing passes it. Whom rounds
    /// no longer reach, although they reach the one before it, is removed; both are remembered,
    /// so that it comes back behind another one.
    fn watch_links(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, patience, id) = (ctx.now(), self.patience(), self.id);
        let made = self.round.number;
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let (number, since, route) = &lead.due;
        let (seen, number) = (&lead.seen, *number);
        let lacks = |of: &ReplicaId| *of != id && seen[of.index()] < number;
        let first = self.route.iter().position(lacks);
        let Some(at) = first.filter(|_| *route == self.route) else {
            lead.due = (made, now, self.route.clone());
            return;
        };
        if now.since(*since) < patience {
            return;
        }
        let (before, about) = (self.route[at - 1], self.route[at]);
        ctx.mark("rounds do not pass a link");
        lead.avoid.insert((before, about), now);
        lead.due = (made, now, self.route.clone());
        self.maybe_remove(about, ctx);
    }

    /// The leader's part of the beat.
    pub(super) fn beat_leader(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let patience = self.patience();
        let heard = |id: &ReplicaId| now.since(self.heard[id.index()]) < patience;
        let enough = 1 + self.others.iter().filter(heard).count() >= self.majority;
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        if !enough {
            ctx.mark("leader lost its majority");
            self.step_down(ctx);
            return;
        }
        lead.round_due = true;
        lead.avoid.retain(|_, since| now.since(*since) < AVOID);
        self.watch_links(ctx);
        self.watch_distances(ctx);
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        if lead
            .leaving
            .is_some_and(|since| now.since(since) > patience)
        {
            ctx.mark("hand-off was not taken up");
            lead.leaving = None;
            self.forward_all();
        }
        let Role::Leader(lead) = &self.role else {
            return;
        };
        for id in lead.unwanted.iter() {
            if now.since(self.heard[id.index()]) < self.config.suspect_timeout {
                if let Role::Leader(lead) = &mut self.role {
                    lead.unwanted = lead.unwanted.without(id);
                }
            } else {
                self.maybe_remove(id, ctx);
            }
        }
    }

    /// Whether it hands leadership over.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(&self.role, Role::Leader(lead) if lead.leaving.is_some())
    }

    /// The replica is about to stop: the next one in the chain that could lead, and so holds most,
    /// takes over. One that has joined ahead of its state would refuse.
    pub(super) fn hand_off(&mut self, to: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let recent = self.config.heartbeat * 3;
        let unable = match &self.role {
            Role::Leader(lead) => lead.unable,
            _ => ReplicaSet::EMPTY,
        };
        let reachable = |id: &&ReplicaId| {
            let heard = now.since(self.heard[id.index()]) < recent;
            heard && to.contains(**id) && !self.down.contains(**id) && !unable.contains(**id)
        };
        let target = self.route.iter().skip(1).find(reachable).copied();
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let Some(target) = target else {
            return ctx.mark("nobody to hand leadership to");
        };
        ctx.mark("leadership handed off");
        lead.leaving = Some(now);
        // Their owners keep them and send them to the next leader.
        lead.queue.drop_waiting();
        let ballot = self.promised;
        ctx.send(target, Lane::Control, &Message::Stand { ballot });
    }
}

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
    Entry, Op,
    leader_state::LeaderState,
    replica::{ChainPaxos, Role, Timer},
};
use alloc::collections::BTreeMap;
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, Incarnation, PersistId, ReplicaId, ReplicaSet, Slot, Wake,
    parts::{Ballot, Election, Held, May, RequestQueue, Waiting, request_key},
};

impl ChainPaxos {
    /// The ballot is this replica's: everything that may have been decided is in the log, under
    /// this ballot.
    pub(super) fn become_leader(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let tail = self.log.iter_from(self.log.committed().next());
        let in_flight = tail.filter_map(|(_, held)| match &held.entry.op {
            Op::Batch(batch) => request_key(batch),
            _ => None,
        });
        let queue = RequestQueue::proposed(in_flight);
        self.agreement.set_turn(None);
        self.role = Role::Leader(LeaderState::new(queue, self.me.members(), now));
        self.leader.follow(self.me.id());
        self.peers.restart(now);
        self.downstream.unlink();
        self.reroute(ctx);
        ctx.cancel_timer(Timer::Election);
        self.forward_all();
        self.reads.ask_again();
        if !self.chain.working().contains(self.me.id()) {
            // It was removed while it was away and still had to lead, since no other replica could.
            ctx.mark("leader adds itself");
            let after = self.chain.tail().unwrap_or(self.me.id());
            let (id, incarnation) = (self.me.id(), self.me.incarnation());
            self.propose_op(Op::Add {
                id,
                incarnation,
                after,
            });
        }
    }

    pub(super) fn propose_op(&mut self, op: Op) {
        if let Role::Leader(lead) = &mut self.role {
            lead.propose(op);
        }
    }

    fn gap(&self) -> Duration {
        let window = u32::try_from(self.config.window).unwrap_or(u32::MAX).max(1);
        self.config
            .window_gap
            .max(self.leader.round_trip() / window)
    }

    /// The leader's part of a turn, before anything is sent.
    pub(super) fn lead(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let committed = self.log.committed();
        let Role::Leader(lead) = &mut self.role else {
            return Wake::Sleep;
        };
        lead.window.answered(committed);
        let before = self.log.held();
        self.propose_ops(ctx);
        let proposals = self.propose(ctx);
        let rounds = self.maybe_make_round(self.log.held() > before, ctx);
        proposals.min(rounds)
    }

    fn propose_one(&mut self, op: Op, clock: u64, ctx: &mut Context<'_, Self>) -> PersistId {
        let time = self.log.next_time(clock);
        let slot = self.log.held().next();
        self.append(slot, Entry { time, op }, ctx)
    }

    /// Changes of the chain wait for no window: they are what opens it again.
    fn propose_ops(&mut self, ctx: &mut Context<'_, Self>) {
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let ops = lead.take_ops();
        let added = ops.iter().any(|op| matches!(op, Op::Add { .. }));
        if added {
            // It may be sent more than its link carries.
            lead.tail.doubt();
        }
        let clock = ctx.clock().now;
        let mut write = None;
        for op in ops {
            write = Some(self.propose_one(op, clock, ctx));
        }
        if let Some(write) = write {
            self.vote_after(write);
        }
        if added {
            self.choose_turn(ctx);
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
            if lead.queue.is_empty() || lead.is_transferring() {
                return Wake::Sleep;
            }
            // A full message need not wait for company: the gap only serves to gather it.
            let gap = match lead.window.newest_at() {
                newest if newest == now => Duration::ZERO,
                _ => gap,
            };
            match lead.window.may(now, gap, messages_max, bytes_max) {
                May::Now => {}
                May::At(time) => return Wake::At(time),
                May::Wait => return Wake::Sleep,
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
            let last = self.log.held();
            if let Role::Leader(lead) = &mut self.role {
                lead.window.sent(last, bytes, now);
            }
        }
    }

    /// A round goes with every proposal; without a proposal, when a read waits for one.
    fn maybe_make_round(&mut self, proposed: bool, ctx: &mut Context<'_, Self>) -> Wake {
        let (own, end, majority) = (self.me.id(), self.log.held(), self.me.majority());
        let reads = self.reads.wants_round();
        let now = ctx.now();
        let route = self.chain.route();
        let alone = route.len() == 1;
        let gap = if alone {
            Duration::ZERO
        } else {
            self.leader.round_trip() / 32
        };
        let Role::Leader(lead) = &mut self.role else {
            return Wake::Sleep;
        };
        if !proposed && let Some(wake) = lead.rounds.wanted(reads, gap, now, majority) {
            return wake;
        }
        let number = self.agreement.round().number + 1;
        let upstream = &route[..majority.min(route.len()) - 1];
        let rounds = &mut lead.rounds;
        let round = rounds.make((number, end), own, upstream, majority, now);
        if alone {
            rounds.loop_alone(&round);
        }
        lead.tail.made(number, now);
        self.agreement.make(round);
        self.reads.bind_all(number, end);
        Wake::Sleep
    }

    /// The newest round that is known to have been forwarded by a quorum: at that time no other
    /// leader can have decided anything.
    pub(super) fn confirmed(&self) -> u64 {
        let round = self.agreement.round();
        let (mut looped, mut looped_by) = (round.looped, round.looped_by);
        if let Role::Leader(lead) = &self.role {
            (looped, looped_by) = lead.rounds.looped();
        } else if round.path.len() >= self.me.majority() {
            return round.number;
        }
        if looped_by.len() >= self.me.majority() {
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
        lead.rounds.ask(from, stamp);
    }

    /// Fills the slots above the commit point under this replica's new ballot (Alg. 4, l. 15-17).
    pub(super) fn propose_again(
        &mut self,
        gathered: BTreeMap<Slot, Held<Entry>>,
        ctx: &mut Context<'_, Self>,
    ) {
        let mut write = None;
        let merged = self.log.merged(gathered, true, |other, own| other > own);
        for (slot, entry) in merged {
            let entry = entry.unwrap_or_else(|| {
                ctx.mark("gap filled with nothing");
                Entry {
                    time: self.log.time_seen(),
                    op: Op::Nothing,
                }
            });
            write = Some(self.append(slot, entry, ctx));
        }
        if let Some(write) = write {
            self.vote_after(write);
        }
    }

    /// Proposes that a replica leave the chain, if enough others stay: below a quorum the chain
    /// could decide nothing, not even that a replica comes back (A.5, the minimum quorum).
    pub(super) fn maybe_remove(&mut self, id: ReplicaId, ctx: &mut Context<'_, Self>) {
        let leaving = |op: &Op| matches!(op, Op::Remove { .. });
        let (me, majority) = (self.me.id(), self.me.majority());
        let members = self.chain.working().set();
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        if id == me || !members.contains(id) {
            lead.want_removed(id, false);
            return;
        }
        if lead.ops().contains(&Op::Remove { id }) {
            return;
        }
        let pending = lead.ops().iter().filter(|op| leaving(op)).count();
        if members.len() < majority + 1 + pending {
            ctx.mark("removal would leave no quorum");
            lead.want_removed(id, true);
            return;
        }
        lead.want_removed(id, false);
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
        let (now, timeout) = (ctx.now(), self.config.suspect_timeout);
        let known = self.chain.working().contains(by) && self.chain.working().contains(about);
        let receives = self.peers.silence(about, now) < timeout;
        let Role::Leader(lead) = &mut self.role else {
            return ctx.mark("ignored: suspicion told to a follower");
        };
        if !known || about == self.me.id() || by == about {
            return ctx.mark("ignored: suspicion by or about no member");
        }
        let links = &mut lead.links;
        if receives {
            if !links.complain((by, about), now, timeout, self.config.heartbeat) {
                return ctx.mark("suspicion about one that is heard");
            }
            ctx.mark("removed although it is heard");
        }
        links.settle((by, about));
        self.maybe_remove(about, ctx);
    }

    /// A replica that is not in the chain, or not in this incarnation, is there: it is brought near
    /// and then added at the tail.
    pub(super) fn admit(
        &mut self,
        id: ReplicaId,
        (ballot, incarnation, whole, held): (Ballot, Incarnation, bool, Slot),
        ctx: &mut Context<'_, Self>,
    ) {
        let member = self.chain.working().position(id);
        let known = member
            .is_some_and(|at| whole || self.chain.working().members[at].incarnation >= incarnation);
        if known {
            return;
        }
        if member.is_some() {
            // Its earlier stay has ended, even if it is let in at once.
            self.chain.restarted(id, ctx.now());
        }
        if ballot > self.ballots.promised() {
            // It has promised a ballot that came to nothing, and may not go below it. Pages of this
            // ballot would be rejected, and the rejection would depose this leader.
            ctx.mark("leader raises its ballot for a joiner");
            self.step_down(ctx);
            return self.become_candidate(ctx);
        }
        let waits = self.must_wait(id, whole, ctx);
        if ballot < self.ballots.promised() && (waits || member.is_none()) {
            // It learns of this ballot, and says where it stands.
            self.send_page(id, self.log.held(), ctx);
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
        self.propose_op(Op::Add {
            id,
            incarnation,
            after,
        });
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
            let lost = self.peers.has_recently_lost_state(*other, now, recent);
            *other != id && !lead.unwanted().contains(*other) && !lost
        };
        // Nothing passes a broken link whose end could not be removed.
        let broken = |link: &[ReplicaId]| lead.links.avoids(link[0], link[1]);
        let reached = self.chain.route().windows(2).position(broken);
        let reached = reached.map_or(self.chain.route().len(), |at| at + 1);
        let others = self.chain.route()[..reached]
            .iter()
            .copied()
            .filter(counts)
            .count();
        let waiting = if whole { Waiting::Votes } else { Waiting::Lost };
        let group = (others, self.me.majority());
        if !self.chain.pauses(id, now, group, waiting) {
            return false;
        }
        // Its earlier incarnation may still be a member.
        self.maybe_remove(id, ctx);
        !matches!(&self.role, Role::Leader(lead) if lead.unwanted().contains(id))
    }

    /// The page after those that are on their way to a joiner that holds so much.
    fn send_next_page(&mut self, id: ReplicaId, held: Slot, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let timeout = self.config.suspect_timeout;
        let timeout = timeout.max(self.leader.round_trip() * 4);
        let Role::Leader(lead) = &self.role else {
            return;
        };
        let (first, since) = lead.joiners.next_page(id, held, now, timeout);
        let upto = self.send_page(id, first, ctx).unwrap_or(first);
        if let Role::Leader(lead) = &mut self.role {
            lead.joiners.sent(id, (held, since), upto);
        }
    }

    /// Behind the tail, unless the tail has just complained about it.
    fn place_for(&self, id: ReplicaId) -> ReplicaId {
        let tail = self.chain.tail().unwrap_or(self.me.id());
        match &self.role {
            Role::Leader(lead) if lead.links.avoids(tail, id) => self.me.id(),
            _ => tail,
        }
    }

    /// A link may be broken one way, so that its sender is heard and nothing passes it. Whom rounds
    /// no longer reach, although they reach the one before it, is removed; both are remembered,
    /// so that it comes back behind another one.
    fn watch_links(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, timeout, own) = (ctx.now(), self.leader_timeout(), self.me.id());
        let (made, route) = (self.agreement.round().number, self.chain.route());
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let link = lead.links.find_broken(route, own, made, now, timeout);
        if let Some((_, about)) = link {
            ctx.mark("rounds do not pass a link");
            self.maybe_remove(about, ctx);
        }
    }

    /// The leader's part of the beat.
    pub(super) fn beat_leader(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let timeout = self.leader_timeout();
        let heard = |id: &ReplicaId| self.peers.silence(*id, now) < timeout;
        let enough = 1 + self.me.others().iter().filter(heard).count() >= self.me.majority();
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        if !enough {
            ctx.mark("leader lost its majority");
            self.step_down(ctx);
            return;
        }
        lead.rounds.make_due();
        lead.links.expire(now);
        self.watch_links(ctx);
        self.watch_distances(ctx);
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        if lead.transfer.give_up(now, timeout) {
            ctx.mark("hand-off was not taken up");
            self.forward_all();
        }
        let Role::Leader(lead) = &self.role else {
            return;
        };
        for id in lead.unwanted().iter() {
            if self.peers.silence(id, now) < self.config.suspect_timeout {
                if let Role::Leader(lead) = &mut self.role {
                    lead.want_removed(id, false);
                }
            } else {
                self.maybe_remove(id, ctx);
            }
        }
    }

    /// The replica is about to stop: the next one in the chain that could lead, and so holds most,
    /// takes over. One that has joined ahead of its state would refuse.
    pub(super) fn hand_off(&mut self, to: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let recent = self.config.heartbeat * 3;
        let unable = match &self.role {
            Role::Leader(lead) => lead.unable(),
            _ => ReplicaSet::EMPTY,
        };
        let reachable = |id: &&ReplicaId| {
            let receives = self.peers.silence(**id, now) < recent;
            receives
                && to.contains(**id)
                && !self.peers.down().contains(**id)
                && !unable.contains(**id)
        };
        let target = self.chain.route().iter().skip(1).find(reachable).copied();
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let Some(target) = target else {
            return ctx.mark("no member to hand leadership to");
        };
        ctx.mark("leadership handed off");
        lead.hand_over(now);
        self.send_stand(target, ctx);
    }
}

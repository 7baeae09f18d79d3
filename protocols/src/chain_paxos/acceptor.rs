//! The acceptor and learner: what every replica does with the entries that come down the chain.
//!
//! ```text
//!   Accept{ballot, entries, votes} ──► old ballot? Reject
//!        │                             higher?     promise it, on disk before any vote
//!        ├─ gap? ──► Missing to the sender
//!        ▼
//!   log + journal ──────────────► passed on at once (stream.rs)      the payload never waits
//!        │
//!        └──(durable)──► own vote ──► passed on with the next message
//!   a quorum's votes ──► decided ──► executed, in order              held ≥ committed ≥ executed
//! ```

use super::{
    Entry, Message, Op, Promised, Record, Summary,
    chain::Chain,
    message::Header,
    plant::Plant,
    replica::{ChainPaxos, Held, Role},
    votes::{Vote, Votes},
};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, Context, Durability, Lane, PersistId, Recovered, ReplicaId, Slot, Time, Wake,
    parts::{Ballot, request_key},
};

/// Over a hole of more slots the log is begun again: room is kept for each.
const HOLE_MAX: u64 = 1 << 16;

impl ChainPaxos {
    /// Writes down a promise; what depends on it waits for `promise_durable`.
    pub(super) fn raise_promise(&mut self, ballot: Ballot, ctx: &mut Context<'_, Self>) {
        assert!(ballot > self.promised, "promises only rise");
        self.promised = ballot;
        self.ballot_seen = self.ballot_seen.max(ballot);
        let id = ctx.persist_promise(&Promised(ballot));
        self.promises.push_back((id, ballot));
        // What was accepted before counts for nothing under this ballot until it comes again,
        // except what is decided.
        self.held = self.committed;
        self.durable = self.committed;
        self.agreed = Slot(0);
        self.votes = Votes::new(self.members);
        for (id, life) in self.lives.iter().enumerate() {
            let vote = Vote {
                life: *life,
                upto: Slot(0),
            };
            self.votes.raise(ReplicaId(id as u16), vote);
        }
        self.vote();
        self.round = super::Round::default();
        self.unlink();
        self.leader = None;
        self.leader_down = false;
        self.promise_owed = None;
        // Alg. 3, l. 20-21: the replica that was marked for removal is back until the new leader's
        // log removes it again.
        self.rework(ctx);
        self.reads.forget_rounds();
    }

    /// This replica's own vote, as far as it is durable.
    pub(super) fn vote(&mut self) {
        if self.whole {
            let vote = Vote {
                life: self.life,
                upto: self.durable.min(self.held),
            };
            self.votes.raise(self.id, vote);
        }
    }

    /// Puts an entry into the log and the journal.
    pub(super) fn append(
        &mut self,
        slot: Slot,
        entry: Entry,
        ctx: &mut Context<'_, Self>,
    ) -> PersistId {
        assert!(slot > self.committed, "a decided slot is not decided again");
        self.time_seen = self.time_seen.max(entry.time);
        let ballot = self.promised;
        let record = Record::Entry {
            ballot,
            committed: self.committed,
            entry,
        };
        let id = ctx.persist(slot, &record);
        let Record::Entry { entry, .. } = record else {
            unreachable!("made above");
        };
        if entry.op.is_membership() {
            if let Op::Add { id, life, .. } = entry.op
                && (id, life) == (self.id, self.life)
            {
                self.become_whole(ctx);
            }
            if self.working.apply(slot, &entry.op, self.majority) {
                self.reroute(ctx);
            }
        }
        let held = Held { ballot, entry };
        self.log_bytes += held.bytes();
        if let Some(old) = self.log.set(slot, held) {
            self.log_bytes -= old.bytes();
        }
        self.held = slot;
        id
    }

    /// This life is re-admitted: all that the leader's log held when it had learned of it is here,
    /// or known to be decided. Whatever an earlier life voted for is among it.
    fn become_whole(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.whole {
            ctx.mark("re-admitted");
            self.whole = true;
            if let Some(base) = self.fetching.asked() {
                ctx.mark("state transfer chosen");
                ctx.fetch_state(self.others, base);
            }
            self.maybe_recovered(ctx);
        }
    }

    /// A life that has forgotten is as good as any other once it is re-admitted and has the state.
    pub(super) fn maybe_recovered(&mut self, ctx: &mut Context<'_, Self>) {
        if self.forgot && self.whole && !self.fetching.under_way() && !self.hollow() {
            ctx.mark("recovered");
            ctx.recovered();
            self.forgot = false;
        }
    }

    /// A decided chain may show that this life was re-admitted by an entry that is not here.
    pub(super) fn look_for_this_life(&mut self, ctx: &mut Context<'_, Self>) {
        let at = self.decided.position(self.id);
        if at.is_some_and(|at| self.decided.members[at].life == self.life) {
            self.become_whole(ctx);
        }
    }

    /// Everything held becomes this replica's vote when that write is durable.
    pub(super) fn vote_after(&mut self, write: PersistId) {
        let in_memory = self.durability == Durability::Memory;
        let now = in_memory && self.promise_durable == self.promised;
        if now || self.planted(Plant::VoteNotDurable) {
            self.durable = self.held;
            self.vote();
        } else {
            self.writes.push_back((write, self.promised, self.held));
        }
    }

    /// Whether to continue with a message sent under `ballot`. Takes a new leader for granted.
    pub(super) fn heed(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if ballot.owner.index() >= self.members {
            ctx.mark("ignored: ballot of no member");
            return false;
        }
        if ballot < self.promised {
            ctx.mark("ignored: old ballot");
            let promised = self.promised;
            let message = Message::Reject { ballot, promised };
            ctx.send(from, Lane::Control, &message);
            if ballot.owner != from && ballot.owner != self.id {
                ctx.send(ballot.owner, Lane::Control, &message);
            }
            return false;
        }
        if ballot.owner == self.id {
            ctx.mark("ignored: own ballot");
            return false;
        }
        if ballot > self.promised {
            self.step_down(ctx);
            self.raise_promise(ballot, ctx);
        }
        if self.leader != Some(ballot.owner) {
            self.become_follower_of(ballot.owner, ctx);
        }
        true
    }

    /// Takes over what a message of the promised ballot tells besides entries.
    fn absorb(&mut self, header: &Header, ctx: &mut Context<'_, Self>) {
        self.votes.merge(&header.votes);
        self.agreed = self.agreed.max(header.committed);
        self.everywhere = self.everywhere.max(header.everywhere);
        self.loop_time = core::time::Duration::from_micros(u64::from(header.loop_micros));
        if header.round.number > self.round.number {
            // Only the leader makes rounds: a new one shows that it was there.
            self.heard_at = ctx.arrived();
            self.leader_down = false;
            self.turn = header.turn;
            self.round = header.round.clone();
            self.round.path.insert(self.id);
            self.bind_reads(header);
        } else if header.round.number == self.round.number {
            self.round.path.0 |= header.round.path.0;
        }
    }

    pub(super) fn on_accept(
        &mut self,
        from: ReplicaId,
        header: &Header,
        first: Slot,
        entries: Vec<Entry>,
        ctx: &mut Context<'_, Self>,
    ) {
        if header.votes.0.len() != self.members {
            return ctx.mark("ignored: votes of another group");
        }
        if !self.heed(from, header.ballot, ctx) {
            return;
        }
        self.absorb(header, ctx);
        let gap = first > self.held.next();
        let hidden = self.planted(Plant::RepropagateOffByOne)
            && first == self.held.next().next()
            && !entries.is_empty();
        if hidden {
            self.held = self.held.next();
        } else if gap {
            ctx.mark("gap in the chain");
            return self.ask_missing(from, ctx);
        }
        let mut write = None;
        for (slot, entry) in (first.0..).map(Slot).zip(entries) {
            if slot <= self.held {
                if !self.is_same(slot, &entry, from, ctx) {
                    return;
                }
            } else {
                write = Some(self.append(slot, entry, ctx));
            }
        }
        if let Some(write) = write {
            self.missing_at = None;
            self.vote_after(write);
            self.progressed = true;
        }
    }

    /// A slot is proposed once per ballot, and decided once: false, and the replica stops, where
    /// this is another value. What lies in a gap may never have been decided: it is kept for
    /// candidates only.
    fn is_same(
        &self,
        slot: Slot,
        entry: &Entry,
        from: ReplicaId,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        let Some(held) = self.log.get(slot) else {
            return true;
        };
        let decided = slot <= self.committed && !self.lacks(slot);
        if held.ballot == self.promised && held.entry != *entry {
            let ballot = held.ballot;
            ctx.contradicted(format_args!(
                "two values for slot {slot} in ballot {ballot}, the second from {from}"
            ));
            false
        } else if held.ballot != self.promised && decided && held.entry.op != entry.op {
            ctx.contradicted(format_args!(
                "two decisions for slot {slot}, the second from {from}"
            ));
            false
        } else {
            true
        }
    }

    /// Tells the sender where to continue; not again before something has come of it.
    pub(super) fn ask_missing(&mut self, from: ReplicaId, ctx: &mut Context<'_, Self>) {
        let (now, patience) = (ctx.now(), self.config.heartbeat / 2);
        let held = self.held;
        let recent = |(at, to, _)| to == from && now.since(at) < patience;
        if self.missing_at.is_some_and(recent) || self.planted(Plant::NoResend) {
            return;
        }
        // The one before may lack the same, and continue ahead of its own state.
        let in_vain = |(_, to, lacked)| to == from && lacked == held;
        let in_vain = self.missing_at.is_some_and(in_vain);
        self.missing_at = Some((now, from, held));
        let ballot = self.promised;
        let message = Message::Missing { ballot, held };
        ctx.send(from, Lane::Control, &message);
        if let Some(leader) = self.leader.filter(|leader| in_vain && *leader != from) {
            ctx.mark("asks the leader for what is missing");
            ctx.send(leader, Lane::Control, &message);
        }
    }

    /// What this replica lacks is no longer kept by the one before it: it continues behind `base`,
    /// passes on what comes, and fetches the state meanwhile (§3.4, "Adding a new replica").
    pub(super) fn on_skip(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        base: Slot,
        chain: Chain,
        ctx: &mut Context<'_, Self>,
    ) {
        let impossible = chain.members.iter().any(|it| it.id.index() >= self.members);
        if impossible || chain.members.is_empty() {
            return ctx.mark("ignored: impossible chain");
        }
        if !self.heed(from, ballot, ctx) || base <= self.held {
            return;
        }
        ctx.mark("goes on ahead of its state");
        // What is held under this ballot up to there is decided as it is held here: executed, it
        // stays, whatever becomes of the replica that sends the state.
        self.agreed = self.agreed.max(base);
        self.learn(ctx);
        self.execute(ctx);
        self.skip_to(base, chain, ctx);
    }

    fn skip_to(&mut self, base: Slot, chain: Chain, ctx: &mut Context<'_, Self>) {
        let record = Record::Skip {
            from: self.executed,
            chain,
        };
        let write = ctx.persist(base, &record);
        let Record::Skip { chain, .. } = record else {
            unreachable!("made above");
        };
        let full = self.log_bytes > self.config.log_memory_bytes.saturating_mul(4);
        if full || base.0 > self.log.end().0 + HOLE_MAX {
            self.drop_log(base.next());
        }
        self.gap = Some((self.executed, base));
        self.committed = base;
        // A second gap may begin below what is held, and voted for, already.
        self.held = self.held.max(base);
        self.decided = chain;
        self.missing_at = None;
        self.look_for_this_life(ctx);
        self.rework(ctx);
        self.vote_after(write);
        self.progressed = true;
        self.fetching.give_up();
        self.fetching.expect(base, ctx.now());
        // A life that has forgotten comes back into the chain first, and then has its state: as
        // long as it has none, nobody takes it for one that is level with the others.
        if self.whole {
            ctx.mark("state transfer chosen");
            ctx.fetch_state(self.others, base);
        }
    }

    /// Whether the state is behind what is decided, and not to be had from the own log.
    pub(super) fn hollow(&self) -> bool {
        self.gap.is_some() || self.log.first() > self.executed.next()
    }

    /// Whether it could lead: its votes count, and it has the state up to its log.
    pub(super) fn able(&self) -> bool {
        self.whole && !self.hollow()
    }

    /// Whether what the log holds in this slot, if anything, is not what was decided there.
    pub(super) fn lacks(&self, slot: Slot) -> bool {
        self.gap
            .is_some_and(|(from, upto)| from < slot && slot <= upto)
    }

    /// The first slot from which on this replica can tell a candidate all that it ever accepted. A
    /// life that forgot, and was let in ahead of its state, can say nothing of what lies below: an
    /// earlier life may have been one of the few who voted there.
    pub(super) fn vouches_from(&self) -> Slot {
        let first = self.log.first();
        match self.gap {
            Some((_, upto)) if self.forgot => first.max(upto.next()),
            _ => first,
        }
    }

    fn drop_log(&mut self, below: Slot) {
        let mut bytes = self.log_bytes;
        self.log.trim(below, |held| bytes -= held.bytes());
        self.log_bytes = bytes;
    }

    /// Moves the commit point to what a quorum has voted for under the promised ballot, as far as
    /// it is held here. Strictly in order, and only by counting acceptors: what comes back from
    /// the tail decides nothing by itself (against Alg. 2, l. 27-28).
    pub(super) fn learn(&mut self, ctx: &mut Context<'_, Self>) {
        let mut agreed = self.agreed.max(self.votes.reached(self.majority));
        if self.planted(Plant::AckDecides)
            && let Role::Leader(lead) = &self.role
        {
            agreed = agreed.max(lead.tail_held);
        }
        self.agreed = agreed;
        let committed = agreed.min(self.held);
        if committed <= self.committed {
            return;
        }
        let mut changed = false;
        for (slot, held) in self.log.iter_from(self.committed.next()) {
            if slot > committed {
                break;
            }
            changed |= held.entry.op.is_membership()
                && self.decided.apply(slot, &held.entry.op, self.majority);
        }
        if changed {
            ctx.mark("chain changed");
        }
        self.committed = committed;
        self.durable = self.durable.max(committed);
        self.vote();
    }

    /// Executes what is decided and held, all of it.
    pub(super) fn execute(&mut self, ctx: &mut Context<'_, Self>) {
        let due = self.committed.0 - self.executed.0;
        let _ = self.execute_some(due, ctx);
    }

    /// Executes that many slots of what is decided and held, and what this moment has room for
    /// besides; says when to continue.
    pub(super) fn execute_some(&mut self, least: u64, ctx: &mut Context<'_, Self>) -> Wake {
        let least = Slot(self.executed.0 + least);
        let mut wake = Wake::Sleep;
        while self.executed < self.committed {
            let slot = self.executed.next();
            if slot > least && self.share.is_spent() {
                wake = self.share.next();
                break;
            }
            let Some(held) = self.log.get(slot).filter(|_| !self.lacks(slot)) else {
                break;
            };
            // A slot re-proposed after its successor was first proposed may carry a later time;
            // every replica executes the same slots, so all of them smooth it the same way.
            let time = held.entry.time.max(self.time_executed);
            let (mut reply, mut batch) = (None, Bytes::new());
            match held.entry.op.clone() {
                Op::Batch(bytes) => {
                    if let Some(key) = request_key(&bytes) {
                        if let Role::Leader(lead) = &mut self.role {
                            lead.queue.finished(key);
                        }
                        if self.requests.executed(key) || key.0 == ctx.embedded() {
                            reply = Some((key.0, (), None));
                        }
                    }
                    batch = bytes;
                }
                Op::Read { by, stamp } if by == self.id => self.reads.ordered(stamp, slot),
                Op::Nothing | Op::Read { .. } => {}
                op => self.change_chain(slot, &op, ctx.now()),
            }
            self.executed = slot;
            self.time_executed = time;
            self.share.execute(batch.len());
            ctx.execute(slot, time, batch, reply);
        }
        if self.fetching.reached(self.executed) {
            ctx.mark("log overtook the state transfer");
            self.maybe_recovered(ctx);
        }
        self.trim_log(ctx);
        wake
    }

    /// Forgets executed entries beyond what may be kept for those that lag.
    pub(super) fn trim_log(&mut self, ctx: &mut Context<'_, Self>) {
        let most = self.config.log_memory_bytes;
        // What everyone has accepted is kept for a little longer: a replica that restarts knows
        // the last few decisions only from others.
        let least = most / 16;
        let (mut below, mut bytes) = (self.log.first(), self.log_bytes);
        while bytes > least && below <= self.executed {
            if bytes <= most && below > self.everywhere {
                break;
            }
            bytes -= self.log.get(below).map_or(0, Held::bytes);
            below = below.next();
        }
        self.drop_log(below);
        if self.gap.is_some() && self.log_bytes > most.saturating_mul(4) {
            // The chain is faster than the state transfer. The log must not grow without bound,
            // so a newer state is needed.
            ctx.mark("state transfer overtaken");
            self.skip_to(self.committed, self.decided.clone(), ctx);
        }
    }

    /// Restores log and pointers from the journal. False when it contradicts itself.
    pub(super) fn restore(&mut self, recovered: Recovered<Promised, Record, Summary>) -> bool {
        if let Some(Promised(ballot)) = recovered.promise {
            self.promised = ballot;
        }
        if let Some((slot, summary)) = recovered.checkpoint {
            self.restart_at(slot, summary);
            self.executed_done = slot;
        }
        let mut decided_at = self.committed;
        // One that is alone can get nothing from anybody.
        let mut taken = self.others.is_empty();
        for (slot, record) in recovered.records {
            match record {
                Record::Skip { from, chain } if slot >= self.log.first() => {
                    if slot.0 > self.log.end().0 + HOLE_MAX {
                        self.drop_log(slot.next());
                    }
                    self.gap = Some((from.max(self.executed), slot));
                    taken = true;
                    self.decided = chain;
                    decided_at = slot;
                    self.committed = self.committed.max(slot);
                }
                Record::Skip { .. } => {}
                Record::Entry { .. } if slot < self.log.first() => {}
                Record::Entry { .. } if slot > self.log.end().max(decided_at.next()) && taken => {
                    return false;
                }
                Record::Entry {
                    ballot,
                    committed,
                    entry,
                } => {
                    if slot > self.log.end().max(decided_at.next()) {
                        // What was trimmed is decided, and a newer snapshot had it that can no
                        // longer be read. The chain as decided comes with the state.
                        decided_at = slot.previous();
                        self.drop_log(slot);
                        self.gap = Some((self.executed, decided_at));
                        self.committed = self.committed.max(decided_at);
                    }
                    taken = true;
                    self.promised = self.promised.max(ballot);
                    self.committed = self.committed.max(committed);
                    self.time_seen = self.time_seen.max(entry.time);
                    let held = Held { ballot, entry };
                    self.log_bytes += held.bytes();
                    if let Some(old) = self.log.set(slot, held) {
                        self.log_bytes -= old.bytes();
                    }
                }
            }
        }
        if self.committed >= self.log.end() && self.committed > decided_at {
            return false;
        }
        for (slot, held) in self.log.iter_from(decided_at.next()) {
            if slot <= self.committed {
                self.decided.apply(slot, &held.entry.op, self.majority);
            }
        }
        self.promise_durable = self.promised;
        self.ballot_seen = self.ballot_seen.max(self.promised);
        self.held = self.committed;
        self.extend_held();
        self.durable = self.held;
        true
    }

    /// Entries above `held` that were accepted under the promised ballot count again.
    pub(super) fn extend_held(&mut self) {
        while self
            .log
            .get(self.held.next())
            .is_some_and(|held| held.ballot == self.promised)
        {
            self.held = self.held.next();
        }
    }

    /// An entry that changes the chain is executed. What is only caught up with says nothing about
    /// how long members stay: a leader has seen it happen.
    fn change_chain(&mut self, slot: Slot, op: &Op, now: Time) {
        let before = self.done.clone();
        self.done.apply(slot, op, self.majority);
        if let (Role::Leader(_), Op::Add { id, .. } | Op::Remove { id }) = (&self.role, op) {
            // The others' stays continue, or have ended with a removal that is not executed yet.
            let life = |chain: &Chain, of| chain.life(of).filter(|_| of == *id);
            let (own, after) = (self.id, &self.done);
            self.admission
                .note(own, now, |of| life(&before, of), |of| life(after, of));
        }
    }

    /// The state machine stands at `slot`; nothing at or below it is kept.
    pub(super) fn restart_at(&mut self, slot: Slot, summary: Summary) {
        self.drop_log(slot.next());
        if self.gap.is_some_and(|(_, upto)| upto <= slot) {
            self.gap = None;
        }
        self.executed = self.executed.max(slot);
        self.time_executed = self.time_executed.max(summary.time);
        self.time_seen = self.time_seen.max(summary.time);
        if self.gap.is_none() {
            self.committed = self.committed.max(slot);
            self.decided = summary.chain.clone();
            for (slot, held) in self.log.iter_from(slot.next()) {
                if slot <= self.committed {
                    self.decided.apply(slot, &held.entry.op, self.majority);
                }
            }
        }
        self.done = summary.chain;
        self.held = self.held.max(slot);
        self.durable = self.durable.max(slot);
    }

    /// Fetches a state that covers `at_least`, and whatever was gone over.
    pub(super) fn fetch_state(&mut self, at_least: Slot, ctx: &mut Context<'_, Self>) {
        let at_least = self.gap.map_or(at_least, |(_, upto)| upto.max(at_least));
        self.fetching.ask(at_least, self.executed, self.others, ctx);
    }

    /// Recomputes the working chain: as decided, with every entry held under the promised ballot.
    pub(super) fn rework(&mut self, ctx: &mut Context<'_, Self>) {
        self.working = self.decided.clone();
        for (slot, held) in self.log.iter_from(self.committed.next()) {
            if slot > self.held {
                break;
            }
            self.working.apply(slot, &held.entry.op, self.majority);
        }
        self.reroute(ctx);
    }
}

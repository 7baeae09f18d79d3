//! The acceptor and learner: what every replica does with the entries that come down the chain.
//!
//! ```text
//!   Accept{ballot, entries, votes} ──► old ballot? Reject
//!        │                             higher?     promise it, on disk before any vote
//!        ├─ gap? ──► Missing to the sender
//!        ▼
//!   log + journal ──────────────► forwarded at once (stream.rs)      the payload never waits
//!        │
//!        └──(durable)──► own vote ──► forwarded with the next message
//!   a quorum's votes ──► decided ──► executed, in order              held ≥ committed ≥ executed
//! ```

use super::{
    Entry, Message, Op, Promised, Record, Summary,
    bug::Bug,
    chain::Chain,
    message::Header,
    replica::{ChainPaxos, Role},
    votes::Vote,
};
use alloc::vec::Vec;
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, Durability, Lane, PersistId, Recovered, ReplicaId, Slot, Wake,
    parts::{Ballot, Decisions, Election, request_key},
};

/// Over a hole of more slots the log is begun again: room is kept for each.
const HOLE_MAX: u64 = 1 << 16;

impl ChainPaxos {
    /// Writes down a promise; what depends on it waits until it is durable.
    pub(super) fn raise_promise(&mut self, ballot: Ballot, ctx: &mut Context<'_, Self>) {
        self.ballots.raise(ballot);
        let id = ctx.persist_promise(&Promised(ballot));
        self.ballots.written(id);
        // Entries accepted before count for nothing under this ballot until they come again, except
        // the decided ones.
        self.log.withdraw();
        self.agreement.reset(self.peers.incarnations());
        self.vote();
        self.downstream.unlink();
        self.leader.reset();
        // Alg. 3, l. 20-21: the replica that was marked for removal is back until the new leader's
        // log removes it again.
        self.rework(ctx);
        self.reads.forget_rounds();
    }

    /// This replica's own vote, as far as it is durable.
    pub(super) fn vote(&mut self) {
        if self.catch_up.is_voting() {
            let vote = Vote {
                incarnation: self.me.incarnation(),
                upto: self.log.give_vote(),
            };
            self.agreement.raise(self.me.id(), vote);
        }
    }

    /// Puts an entry into the log and the journal.
    pub(super) fn append(
        &mut self,
        slot: Slot,
        entry: Entry,
        ctx: &mut Context<'_, Self>,
    ) -> PersistId {
        let ballot = self.ballots.promised();
        let record = Record::Entry {
            ballot,
            committed: self.log.committed(),
            entry,
        };
        let id = ctx.persist(slot, &record);
        let Record::Entry { entry, .. } = record else {
            unreachable!("made above");
        };
        if entry.op.is_membership() {
            if let Op::Add {
                id, incarnation, ..
            } = entry.op
                && (id, incarnation) == (self.me.id(), self.me.incarnation())
            {
                self.become_whole(ctx);
            }
            if self.chain.hold(slot, &entry.op, self.me.majority()) {
                self.reroute(ctx);
            }
        }
        self.log.accept(slot, ballot, entry);
        id
    }

    /// This incarnation is re-admitted: all that the leader's log held when it had learned of it is
    /// here, or known to be decided. The entries for which an earlier incarnation voted are among
    /// them.
    fn become_whole(&mut self, ctx: &mut Context<'_, Self>) {
        if self.catch_up.admit() {
            ctx.mark("re-admitted");
            self.log.keep_held();
            if let Some(base) = self.catch_up.fetching().asked() {
                ctx.mark("state transfer chosen");
                ctx.fetch_state(self.me.others(), base);
            }
            self.maybe_recovered(ctx);
        }
    }

    /// An incarnation that has lost its state is as good as any other once it is re-admitted and
    /// has the state.
    pub(super) fn maybe_recovered(&mut self, ctx: &mut Context<'_, Self>) {
        if self.catch_up.recover(&self.log) {
            ctx.mark("recovered");
            ctx.recovered();
        }
    }

    /// A decided chain may show that this incarnation was re-admitted by an entry that is not here.
    pub(super) fn look_for_this_incarnation(&mut self, ctx: &mut Context<'_, Self>) {
        if self.chain.has(self.me.id(), self.me.incarnation()) {
            self.become_whole(ctx);
        }
    }

    /// Everything held becomes this replica's vote when that write is durable.
    pub(super) fn vote_after(&mut self, write: PersistId) {
        let in_memory = self.me.durability() == Durability::Memory;
        let now = in_memory && self.ballots.is_durable();
        if now || self.injected(Bug::VoteNotDurable) {
            self.log.vote_now();
            self.vote();
        } else {
            self.log.vote_after(write, self.ballots.promised());
        }
    }

    /// Whether to continue with a message sent under `ballot`. Takes a new leader for granted.
    pub(super) fn accept_leader(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        if ballot.owner.index() >= self.me.members() {
            ctx.mark("ignored: ballot of no member");
            return false;
        }
        if ballot < self.ballots.promised() {
            ctx.mark("ignored: old ballot");
            self.send_reject(from, ballot, ctx);
            if ballot.owner != from && ballot.owner != self.me.id() {
                self.send_reject(ballot.owner, ballot, ctx);
            }
            return false;
        }
        if ballot.owner == self.me.id() {
            ctx.mark("ignored: own ballot");
            return false;
        }
        if ballot > self.ballots.promised() {
            self.step_down(ctx);
            self.raise_promise(ballot, ctx);
        }
        if !self.leader.is(ballot.owner) {
            self.become_follower_of(ballot.owner, ctx);
        }
        true
    }

    /// Takes over what a message of the promised ballot tells besides entries.
    fn absorb(&mut self, header: &Header, ctx: &mut Context<'_, Self>) {
        self.agreement.merge(header);
        self.log.learn_needed_after(header.everywhere);
        self.leader
            .measured(Duration::from_micros(u64::from(header.loop_micros)));
        if self.agreement.on_round(header, self.me.id()) {
            // Only the leader makes rounds: a new one shows that it was there.
            self.leader.received(ctx.arrived());
            self.reads.on_round(&header.round, self.me.id());
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
        if header.votes.0.len() != self.me.members() {
            return ctx.mark("ignored: votes of another group");
        }
        if !self.accept_leader(from, header.ballot, ctx) {
            return;
        }
        self.absorb(header, ctx);
        let gap = first > self.log.held().next();
        let hidden = self.injected(Bug::RepropagateOffByOne)
            && first == self.log.held().next().next()
            && !entries.is_empty();
        if hidden {
            self.log.assume_held(self.log.held().next());
        } else if gap {
            ctx.mark("gap in the chain");
            return self.ask_missing(from, ctx);
        }
        let mut write = None;
        for (slot, entry) in (first.0..).map(Slot).zip(entries) {
            if slot <= self.log.held() {
                if !self.is_same(slot, &entry, from, ctx) {
                    return;
                }
            } else {
                write = Some(self.append(slot, entry, ctx));
            }
        }
        if let Some(write) = write {
            self.catch_up.continued();
            self.vote_after(write);
        }
    }

    /// A slot is proposed once per ballot, and decided once: false, and the replica stops, where
    /// this is another value. An entry in a gap may never have been decided: it is kept for
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
        let decided = slot <= self.log.committed() && !self.catch_up.lacks(slot);
        if held.ballot == self.ballots.promised() && held.entry != *entry {
            let ballot = held.ballot;
            ctx.contradicted(format_args!(
                "two values for slot {slot} in ballot {ballot}, the second from {from}"
            ));
            false
        } else if held.ballot != self.ballots.promised() && decided && held.entry.op != entry.op {
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
        if self.injected(Bug::NoResend) {
            return;
        }
        let (held, pause) = (self.log.held(), self.config.heartbeat / 2);
        let asked = self.catch_up.ask_missing(from, held, ctx.now(), pause);
        let Some(without_effect) = asked else {
            return;
        };
        let ballot = self.ballots.promised();
        let message = Message::Missing { ballot, held };
        ctx.send(from, Lane::Control, &message);
        // The one before may lack the same, and continue ahead of its own state.
        let leader = self.leader.other_than(from);
        if let Some(leader) = leader.filter(|_| without_effect) {
            ctx.mark("asks the leader for what is missing");
            ctx.send(leader, Lane::Control, &message);
        }
    }

    /// The one before it no longer keeps what this replica lacks: this replica continues behind
    /// `base`, forwards what comes, and fetches the state meanwhile (§3.4, "Adding a new replica").
    pub(super) fn on_skip(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        base: Slot,
        (chain, decisions): (Chain, &Decisions),
        ctx: &mut Context<'_, Self>,
    ) {
        let impossible = chain
            .members
            .iter()
            .any(|it| it.id.index() >= self.me.members());
        if impossible || chain.members.is_empty() {
            return ctx.mark("ignored: impossible chain");
        }
        if !self.accept_leader(from, ballot, ctx) || base <= self.log.held() {
            return;
        }
        if self.learn_decisions(decisions, ctx) && base <= self.log.held() {
            self.catch_up.continued();
            return;
        }
        ctx.mark("continues ahead of its state");
        // From the leader, what is held under its ballot up to there is decided as it is held here:
        // executed, it stays, whatever becomes of the replica that sends the state. Another one
        // may have a state from under a higher ballot, where other values were decided.
        if from == ballot.owner {
            self.agreement.learn(base);
            self.maybe_commit(ctx);
            self.execute(ctx);
        }
        self.skip_to(base, chain, ctx);
    }

    fn skip_to(&mut self, base: Slot, chain: Chain, ctx: &mut Context<'_, Self>) {
        let record = Record::Skip {
            from: self.log.executed(),
            chain,
        };
        let write = ctx.persist(base, &record);
        let Record::Skip { chain, .. } = record else {
            unreachable!("made above");
        };
        if self.is_full() || base.0 > self.log.end().0 + HOLE_MAX {
            self.log.begin_behind(base);
        }
        self.catch_up.skip(self.log.executed(), base);
        self.log.skip_to(base);
        self.chain.skip_to(chain);
        self.look_for_this_incarnation(ctx);
        self.rework(ctx);
        self.vote_after(write);
        self.catch_up.progressed();
        let fetching = self.catch_up.fetching_mut();
        fetching.give_up();
        fetching.expect(base, ctx.now());
        // An incarnation that has lost its state comes back into the chain first, and then has its
        // state: as long as it has none, no replica takes it for one that is level with the others.
        if self.catch_up.is_voting() {
            ctx.mark("state transfer chosen");
            ctx.fetch_state(self.me.others(), base);
        }
    }

    /// Whether the state is behind what is decided, and not to be had from the own log.
    pub(super) fn hollow(&self) -> bool {
        self.catch_up.is_hollow(&self.log)
    }

    /// Whether it could lead: its votes count, and it has the state up to its log.
    pub(super) fn able(&self) -> bool {
        self.catch_up.is_voting() && !self.hollow()
    }

    /// Another replica tells which ballots decided how much: what was accepted under these is
    /// decided, whatever is promised now, behind the commit point and in what was gone over. True
    /// when that is new.
    pub(super) fn learn_decisions(
        &mut self,
        told: &Decisions,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        self.log.merge_decisions(told);
        let filled = self.catch_up.fill_gap(&self.log);
        let upto = self.log.known_decided();
        if upto <= self.log.committed() && !filled {
            return false;
        }
        ctx.mark("decided as accepted under an earlier ballot");
        self.log.hold_decided(upto);
        self.commit(upto, ctx);
        self.extend_held();
        self.vote();
        self.rework(ctx);
        self.execute(ctx);
        self.maybe_recovered(ctx);
        true
    }

    /// Moves the commit point to what a quorum has voted for under the promised ballot, as far as
    /// it is held here. Strictly in order, and only by counting acceptors: what comes back from
    /// the tail decides nothing by itself (against Alg. 2, l. 27-28).
    pub(super) fn maybe_commit(&mut self, ctx: &mut Context<'_, Self>) {
        let mut agreed = self.agreement.count(self.me.majority());
        if self.injected(Bug::AckDecides)
            && let Role::Leader(lead) = &self.role
        {
            self.agreement.learn(lead.tail_held());
            agreed = self.agreement.agreed();
        }
        self.log.learn_decided(self.ballots.promised(), agreed);
        self.commit(agreed.min(self.log.held()), ctx);
    }

    /// All up to here is decided, and held.
    fn commit(&mut self, committed: Slot, ctx: &mut Context<'_, Self>) {
        if committed <= self.log.committed() {
            return;
        }
        let mut changed = false;
        for (slot, held) in self.log.iter_from(self.log.committed().next()) {
            if slot > committed {
                break;
            }
            let op = &held.entry.op;
            changed |= op.is_membership() && self.chain.decide(slot, op, self.me.majority());
        }
        if changed {
            ctx.mark("chain changed");
        }
        self.log.commit(committed);
        self.vote();
    }

    /// Executes what is decided and held, all of it.
    pub(super) fn execute(&mut self, ctx: &mut Context<'_, Self>) {
        let due = self.log.committed().0 - self.log.executed().0;
        let _ = self.execute_some(due, ctx);
    }

    /// Executes that many slots of what is decided and held, and what this moment has room for
    /// besides; says when to continue.
    pub(super) fn execute_some(&mut self, least: u64, ctx: &mut Context<'_, Self>) -> Wake {
        let least = Slot(self.log.executed().0 + least);
        let mut wake = Wake::Sleep;
        while self.log.executed() < self.log.committed() {
            let slot = self.log.executed().next();
            if slot > least && self.share.is_spent() {
                wake = self.share.next();
                break;
            }
            let held = self.log.get(slot);
            let Some(held) = held.filter(|_| !self.catch_up.lacks(slot)) else {
                break;
            };
            let time = self.log.time_of(&held.entry);
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
                Op::Read { by, stamp } if by == self.me.id() => self.reads.ordered(stamp, slot),
                Op::Nothing | Op::Read { .. } => {}
                op => {
                    let leads = matches!(self.role, Role::Leader(_));
                    self.chain.execute(slot, &op, &self.me, leads, ctx.now());
                    self.tell_view(ctx);
                }
            }
            self.log.executing(slot, time);
            self.share.execute(batch.len());
            ctx.execute(slot, time, batch, reply);
        }
        if self.catch_up.fetching_mut().reached(self.log.executed()) {
            ctx.mark("log overtook the state transfer");
            self.maybe_recovered(ctx);
        }
        self.trim_log(ctx);
        wake
    }

    /// Whether more than is kept for those that lag lies behind what was voted for.
    fn is_full(&self) -> bool {
        self.log.bytes_behind_votes() > self.config.log_memory_bytes.saturating_mul(4)
    }

    /// Forgets executed entries beyond what may be kept for those that lag.
    pub(super) fn trim_log(&mut self, ctx: &mut Context<'_, Self>) {
        let most = self.config.log_memory_bytes;
        self.log.trim(most);
        if self.catch_up.gap_end().is_none() {
            return;
        }
        // The chain is faster than the state transfer, and the log must not grow without bound.
        // This replica has to keep the entries that it votes for, since the voters may be the only
        // ones that still have them: so it forwards what comes, and votes again with its state.
        if self.log.bytes() > most.saturating_mul(2) && !self.log.has_stopped_votes() {
            ctx.mark("votes wait for the state");
            self.log.stop_votes();
        }
        if self.is_full() && self.log.committed() > self.catch_up.gap_end().unwrap_or_default() {
            // Others decided what comes now, and a newer state is needed.
            ctx.mark("state transfer overtaken");
            let chain = self.chain.decided().clone();
            self.skip_to(self.log.committed(), chain, ctx);
        }
    }

    /// Restores log and pointers from the journal. False when it contradicts itself.
    pub(super) fn restore(&mut self, recovered: Recovered<Promised, Record, Summary>) -> bool {
        if let Some(Promised(ballot)) = recovered.promise {
            self.ballots.restore(ballot);
        }
        if let Some((slot, summary)) = recovered.checkpoint {
            self.restart_at(slot, summary);
            self.log.on_executed(slot);
        }
        let mut decided_at = self.log.committed();
        // One that is alone can get nothing from anybody.
        let mut taken = self.me.others().is_empty();
        for (slot, record) in recovered.records {
            match record {
                Record::Skip { from, chain } if slot >= self.log.first() => {
                    if slot.0 > self.log.end().0 + HOLE_MAX {
                        self.log.begin_behind(slot);
                    }
                    self.catch_up.skip(from.max(self.log.executed()), slot);
                    taken = true;
                    self.chain.skip_to(chain);
                    decided_at = slot;
                    self.log.restore_committed(slot);
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
                        // The trimmed part is decided, and a newer snapshot that can no longer be
                        // read had it. The chain as decided comes with the state.
                        decided_at = slot.previous();
                        self.log.drop_below(slot);
                        self.catch_up.kept_from(slot);
                        self.catch_up.skip(self.log.executed(), decided_at);
                        self.log.restore_committed(decided_at);
                    }
                    taken = true;
                    self.ballots.restore(ballot);
                    self.log.restore_committed(committed);
                    self.log.restore(slot, ballot, entry);
                }
            }
        }
        if self.log.committed() >= self.log.end() && self.log.committed() > decided_at {
            return false;
        }
        self.catch_up.fill_gap(&self.log);
        self.log.restore_committed(self.log.known_decided());
        self.decide_from(decided_at.next());
        self.ballots.restored();
        let promised = self.ballots.promised();
        self.log.restored(|held| held.ballot == promised);
        true
    }

    /// Entries above `held` that were accepted under the promised ballot count again.
    pub(super) fn extend_held(&mut self) {
        let promised = self.ballots.promised();
        self.log.extend_held(|held| held.ballot == promised);
    }

    /// Applies the decided entries from this slot on to the decided chain.
    fn decide_from(&mut self, from: Slot) {
        for (slot, held) in self.log.iter_from(from) {
            if slot <= self.log.committed() {
                self.chain.decide(slot, &held.entry.op, self.me.majority());
            }
        }
    }

    /// The state machine stands at `slot`; nothing at or below it is kept.
    pub(super) fn restart_at(&mut self, slot: Slot, summary: Summary) {
        self.log.install(slot, summary.time);
        self.log.merge_decisions(&summary.decisions);
        if self.catch_up.install(slot) {
            self.log.restore_committed(slot);
            self.chain.skip_to(summary.chain.clone());
            self.decide_from(slot.next());
        }
        self.chain.install(summary.chain);
    }

    /// Fetches a state that covers `at_least`, and whatever was gone over.
    pub(super) fn fetch_state(&mut self, at_least: Slot, ctx: &mut Context<'_, Self>) {
        let gap = self.catch_up.gap_end();
        let at_least = gap.map_or(at_least, |upto| upto.max(at_least));
        let (executed, others) = (self.log.executed(), self.me.others());
        self.catch_up
            .fetching_mut()
            .ask(at_least, executed, others, ctx);
    }

    /// Recomputes the working chain: as decided, with every entry held under the promised ballot.
    pub(super) fn rework(&mut self, ctx: &mut Context<'_, Self>) {
        self.chain.restart_working();
        for (slot, held) in self.log.iter_from(self.log.committed().next()) {
            if slot > self.log.held() {
                break;
            }
            self.chain.hold(slot, &held.entry.op, self.me.majority());
        }
        self.reroute(ctx);
    }
}

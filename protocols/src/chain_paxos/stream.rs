//! The stream to the next replica in the chain: what is forwarded, and what the next one knows.
//!
//! ```text
//!   held here   ……… 41 42 43 44 45 46
//!   sent        ……………………┘ next       one Accept per turn, the payloads' bytes as they came
//!   told          votes, agreed, round        without new entries only what is news to the next
//!
//!   route   leader ─► … ─► this one ─► next ─► … ─► tail ──Ack──► leader
//! ```
//!
//! Nothing travels by itself: every message is sent once per turn at most, by `on_idle`, when
//! everything that had arrived was taken in. Messages lost with a connection are requested by the
//! receiver (`Missing`), because only it knows what came.

use super::{
    Entry, Message,
    bug::Bug,
    chain::Next,
    message::Header,
    replica::{ChainPaxos, Role},
    votes::Vote,
};
use alloc::vec::Vec;
use quintet_replica::{
    Context, Lane, ReplicaId, Slot,
    parts::{Ballot, Election},
};

impl ChainPaxos {
    /// The route has changed, or may have.
    pub(super) fn reroute(&mut self, ctx: &mut Context<'_, Self>) {
        self.chain.reroute(self.leader.leader(), self.me.id());
        if self.leader.leader().is_some() {
            let members = self.chain.route_members(self.me.incarnation());
            ctx.route_is(self.log.held(), &members);
        }
    }

    /// Tells the members of the chain as executed, by the entry that made it: it cannot be lost, and
    /// is the same at all replicas.
    pub(super) fn tell_view(&self, ctx: &mut Context<'_, Self>) {
        let chain = self.chain.executed();
        ctx.view_is(chain.slot.0, chain.set());
    }

    fn successor(&self) -> Option<Next> {
        self.chain.successor(self.me.id(), self.leader.leader()?)
    }

    /// The replica that is watched from here; the tail watches the leader.
    pub(super) fn watched(&self) -> Option<ReplicaId> {
        match self.successor()? {
            Next::Peer(id) | Next::Leader(id) => Some(id),
        }
    }

    pub(super) fn header(&self) -> Header {
        Header {
            ballot: self.ballots.promised(),
            committed: self.agreement.agreed(),
            everywhere: self.log.needed_after(),
            loop_micros: u32::try_from(self.leader.round_trip().as_micros()).unwrap_or(u32::MAX),
            turn: self.agreement.turn(),
            round: self.agreement.round().clone(),
            votes: self.agreement.votes().clone(),
        }
    }

    /// Sends the next replica what it lacks.
    pub(super) fn send_stream(&mut self, ctx: &mut Context<'_, Self>) {
        let to = self.successor();
        if to != self.downstream.to() {
            self.link_to(to, ctx);
        }
        match to {
            Some(Next::Peer(next)) => {
                self.send_accepts(next, ctx);
                let own_turn = self.agreement.turn() == Some(self.me.id());
                if let Some(leader) = self.leader.leader().filter(|_| own_turn) {
                    self.send_ack(leader, ctx);
                }
            }
            Some(Next::Leader(leader)) => self.send_ack(leader, ctx),
            None => {}
        }
    }

    /// Another replica is next: it gets everything that it may lack, in order, before anything
    /// new (Alg. 3, l. 3-6).
    fn link_to(&mut self, to: Option<Next>, ctx: &mut Context<'_, Self>) {
        if let Some(Next::Peer(old)) = self.downstream.to()
            && !self.chain.working().contains(old)
            && !self.chain.is_outside()
        {
            // The entry that removes it is the last that it gets (A.5), so that it learns of it.
            ctx.mark("removed from the chain behind this one");
            self.send_accepts(old, ctx);
        }
        let known = match to {
            Some(Next::Peer(next)) => self.agreement.votes().of(next),
            Some(Next::Leader(_)) | None => Slot(0),
        };
        // From the first entry that is not known to be there: "max_ack + 1", not the prose's
        // "from max_ack". Where more is missing, the next one says so.
        let mut next = known.max(self.log.committed()).next();
        if self.injected(Bug::RepropagateOffByOne) {
            next = next.next();
        }
        self.downstream.link(to, next, self.me.members());
    }

    /// Whether there is anything that the next replica should receive although no entry goes to it.
    fn has_news(&self, next: ReplicaId) -> bool {
        let upstream = self.chain.position().map_or(0, |at| at + 1);
        let upstream = &self.chain.route()[..upstream];
        self.downstream
            .has_news(next, &self.agreement, upstream, self.me.majority())
    }

    fn send_accepts(&mut self, to: ReplicaId, ctx: &mut Context<'_, Self>) {
        loop {
            let first = self.downstream.next();
            if first <= self.log.held()
                && (self.catch_up.lacks(first) || self.log.get(first).is_none())
            {
                if first > self.log.committed() {
                    return;
                }
                if self.hollow() {
                    // A replica without the state sends no other ahead of it; the next one asks the
                    // leader, which has the state.
                    ctx.mark("the next one needs what is missing here");
                    self.downstream.continue_at(self.log.committed().next());
                } else {
                    self.send_skip(to, ctx);
                }
                continue;
            }
            if first > self.log.held() && !self.has_news(to) {
                return;
            }
            let mut entries = self.downstream.take_scratch();
            let bytes = self.gather(first, &mut entries);
            if !ctx.takes(to, bytes + self.message_bytes()) {
                self.downstream.give_scratch(entries);
                ctx.mark("the next one waits for room");
                if !self.has_news(to) || !ctx.takes(to, self.message_bytes()) {
                    return;
                }
                // Rounds, votes and what is decided are small: they do not wait for values.
                return self.send_header(first, to, ctx);
            }
            let header = self.header();
            self.downstream
                .continue_at(Slot(first.0 + entries.len() as u64));
            let message = Message::Accept {
                header,
                first,
                entries,
            };
            ctx.send(to, Lane::Control, &message);
            if let Message::Accept { entries, .. } = message {
                self.downstream.give_scratch(entries);
            }
            self.downstream.sent(&self.agreement);
        }
    }

    /// Sends the next one the header, ahead of the entries from `first` on.
    fn send_header(&mut self, first: Slot, to: ReplicaId, ctx: &mut Context<'_, Self>) {
        let (header, entries) = (self.header(), Vec::new());
        let message = Message::Accept {
            header,
            first,
            entries,
        };
        ctx.send(to, Lane::Control, &message);
        self.downstream.sent(&self.agreement);
    }

    /// Entries from `first` on, as many as fit into a message; gives their bytes.
    fn gather(&self, first: Slot, entries: &mut Vec<Entry>) -> usize {
        let mut bytes = 0;
        for (expected, (slot, held)) in (first.0..).map(Slot).zip(self.log.iter_from(first)) {
            let full = bytes > 0 && bytes + held.bytes() > self.config.batch_bytes_max;
            // A message has the slot of its first entry only: nothing behind a hole goes with it.
            if full || slot > self.log.held() || slot != expected || self.catch_up.lacks(slot) {
                break;
            }
            bytes += held.bytes();
            entries.push(held.entry.clone());
        }
        bytes
    }

    fn send_skip(&mut self, to: ReplicaId, ctx: &mut Context<'_, Self>) {
        self.tell_to_skip(to, ctx);
        self.downstream.continue_at(self.log.committed().next());
    }

    fn tell_to_skip(&self, to: ReplicaId, ctx: &mut Context<'_, Self>) {
        ctx.mark("the next one needs trimmed entries");
        let message = Message::Skip {
            ballot: self.ballots.promised(),
            base: self.log.committed(),
            chain: self.chain.decided().clone(),
            decisions: self.log.decisions().clone(),
        };
        ctx.send(to, Lane::Control, &message);
    }

    fn send_ack(&mut self, leader: ReplicaId, ctx: &mut Context<'_, Self>) {
        let held = self.log.held();
        let news = self.downstream.has_news_for(leader, &self.agreement, held);
        if leader == self.me.id() || !news || ctx.room(leader) < self.message_bytes() {
            return;
        }
        let header = self.header();
        ctx.send(leader, Lane::Control, &Message::Ack { header, held });
        self.downstream.acked(&self.agreement, held);
    }

    /// The successor lacks the entries behind `held`.
    pub(super) fn on_missing(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        held: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if ballot != self.ballots.promised() || held > self.log.held() {
            return ctx.mark("ignored: gap under another ballot");
        }
        if self.injected(Bug::NoResend) {
            return;
        }
        if self.downstream.to() == Some(Next::Peer(from)) {
            ctx.mark("entries sent again");
            self.downstream.continue_at(held.next());
        } else if matches!(self.role, Role::Leader(_)) {
            self.send_page(from, held, ctx);
        }
    }

    /// Brings a replica that is not in the chain nearer, so that it lacks little when it comes in:
    /// sends it what comes after `held`. The last slot that it was sent; none when nothing was.
    pub(super) fn send_page(
        &mut self,
        to: ReplicaId,
        held: Slot,
        ctx: &mut Context<'_, Self>,
    ) -> Option<Slot> {
        let first = held.next();
        if first < self.log.first() || self.catch_up.lacks(first) {
            self.tell_to_skip(to, ctx);
            return None;
        }
        let mut entries = Vec::new();
        self.gather(first, &mut entries);
        let bytes: usize = entries.iter().map(|entry| entry.op.bytes() + 32).sum();
        if !ctx.takes(to, bytes + self.message_bytes()) {
            ctx.mark("a joiner waits for room");
            return None;
        }
        let last = Slot(held.0 + entries.len() as u64);
        let header = self.header();
        let message = Message::Accept {
            header,
            first,
            entries,
        };
        ctx.send(to, Lane::Control, &message);
        Some(last)
    }

    /// How many bytes of entries lie behind `held`; none when they are no longer all kept.
    pub(super) fn bytes_behind(&self, held: Slot) -> Option<usize> {
        if held.next() < self.log.first() {
            return None;
        }
        let most = self.config.batch_bytes_max;
        let mut bytes = 0;
        for (_, held) in self.log.iter_from(held.next()) {
            bytes += held.bytes();
            if bytes > most {
                break;
            }
        }
        Some(bytes)
    }

    /// The connection to the next replica is new: it is asked what it lacks.
    pub(super) fn on_next_link_up(&mut self) {
        if !self.injected(Bug::NoResend) {
            // It has heard nothing for sure, so that the next turn sends it a message, from which
            // it sees what it lacks.
            self.downstream.forget_sent(self.me.members());
        }
    }

    /// The leader receives an acknowledgement of the tail.
    pub(super) fn on_ack(
        &mut self,
        from: ReplicaId,
        header: &Header,
        held: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if header.ballot < self.ballots.promised() {
            return self.send_reject(from, header.ballot, ctx);
        }
        let (end, now) = (self.log.end(), ctx.arrived());
        let Role::Leader(lead) = &mut self.role else {
            return ctx.mark("ignored: acknowledgement to a follower");
        };
        let nothing = held >= end || header.round.number > self.agreement.round().number;
        if header.ballot != self.ballots.promised()
            || nothing
            || header.votes.0.len() != self.me.members()
        {
            return ctx.mark("ignored: acknowledgement of nothing that was sent");
        }
        lead.on_tail(held);
        let by_tail = self.chain.route().last() == Some(&from);
        lead.tail.answered(header.round.number, by_tail, now);
        if let Some(sample) = lead.rounds.came_round(&header.round, now) {
            let known = self.leader.round_trip();
            self.leader.measured(if known.is_zero() {
                sample
            } else {
                (known * 7 + sample) / 8
            });
        }
        self.agreement.merge(header);
        let all = self.agreement.votes().0.iter().map(|vote: &Vote| vote.upto);
        self.log.learn_needed_after(all.min().unwrap_or_default());
    }
}

//! The stream to the next replica in the chain: what is passed on, and what the next one knows.
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
//! everything that had arrived was taken in. What was lost with a connection is asked for by the
//! receiver (`Missing`), because only it knows what came.

use super::{
    Entry, Message,
    chain::Chain,
    message::Header,
    plant::Plant,
    replica::{ChainPaxos, Held, Role},
    votes::{Vote, Votes},
};
use alloc::vec::Vec;
use quintet_replica::{Context, Lane, ReplicaId, Slot, parts::Ballot};

/// Where messages go from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Next {
    /// To this replica.
    Peer(ReplicaId),
    /// Around, to the leader: this is the tail.
    Leader(ReplicaId),
}

#[derive(Default, Hash)]
struct Acked {
    held: Slot,
    votes: Votes,
    round: u64,
}

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Stream {
    pub to: Option<Next>,
    /// The next entry to send; for the tail, the one after what it last acknowledged.
    pub next: Slot,
    /// What the next one has been told.
    votes: Votes,
    agreed: Slot,
    round: u64,
    /// What the leader has been told.
    acked: Acked,
    /// Reused from message to message.
    scratch: Vec<Entry>,
}

impl ChainPaxos {
    /// The route has changed, or may have.
    pub(super) fn reroute(&mut self, ctx: &mut Context<'_, Self>) {
        self.route = match self.leader {
            Some(leader) => self.working.route(leader),
            None => Chain::default().route(self.id),
        };
        self.position = match self.leader {
            Some(_) => self.route.iter().position(|id| *id == self.id),
            None => None,
        };
        if self.leader.is_some() {
            let life = |id: &ReplicaId| {
                let at = self.working.position(*id);
                (
                    *id,
                    at.map_or(self.life, |at| self.working.members[at].life),
                )
            };
            let members: smallvec::SmallVec<[_; 8]> = self.route.iter().map(life).collect();
            ctx.route_is(self.held, &members);
        }
    }

    fn successor(&self) -> Option<Next> {
        let (leader, at) = (self.leader?, self.position?);
        match self.route.get(at + 1) {
            Some(next) => Some(Next::Peer(*next)),
            None if leader == self.id => None,
            None => Some(Next::Leader(leader)),
        }
    }

    /// The replica before this one in the chain; before the leader stands the tail.
    pub(super) fn predecessor(&self) -> Option<ReplicaId> {
        let at = self.position?;
        let before = if at == 0 { self.route.len() } else { at } - 1;
        self.route.get(before).copied().filter(|id| *id != self.id)
    }

    /// The replica that is watched from here; the tail watches the leader.
    pub(super) fn watched(&self) -> Option<ReplicaId> {
        match self.successor()? {
            Next::Peer(id) | Next::Leader(id) => Some(id),
        }
    }

    pub(super) fn header(&self) -> Header {
        Header {
            ballot: self.promised,
            committed: self.agreed,
            everywhere: self.everywhere,
            loop_micros: u32::try_from(self.loop_time.as_micros()).unwrap_or(u32::MAX),
            turn: self.turn,
            round: self.round.clone(),
            votes: self.votes.clone(),
        }
    }

    /// Sends the next replica what it lacks.
    pub(super) fn send_stream(&mut self, ctx: &mut Context<'_, Self>) {
        let to = self.successor();
        if to != self.stream.to {
            self.link_to(to, ctx);
        }
        match to {
            Some(Next::Peer(next)) => {
                self.send_accepts(next, ctx);
                if let Some(leader) = self.leader.filter(|_| self.turn == Some(self.id)) {
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
        if let Some(Next::Peer(old)) = self.stream.to
            && !self.working.contains(old)
            && self.position.is_some()
        {
            // The entry that removes it is the last that it gets (A.5), so that it learns of it.
            ctx.mark("removed from the chain behind this one");
            self.send_accepts(old, ctx);
        }
        self.stream.to = to;
        let known = match to {
            Some(Next::Peer(next)) => self.votes.of(next),
            Some(Next::Leader(_)) | None => Slot(0),
        };
        // From the first entry that is not known to be there: "max_ack + 1", not the prose's
        // "from max_ack". Where more is missing, the next one says so.
        self.stream.next = known.max(self.committed).next();
        if self.planted(Plant::RepropagateOffByOne) {
            self.stream.next = self.stream.next.next();
        }
        self.forget_told();
    }

    fn forget_told(&mut self) {
        self.stream.votes = Votes::new(self.members);
        self.stream.agreed = Slot(0);
        self.stream.round = 0;
        self.stream.acked = Acked {
            held: Slot(0),
            votes: Votes::new(self.members),
            round: 0,
        };
    }

    /// A new ballot, or a new link: nothing is known of what the next one has been told.
    pub(super) fn unlink(&mut self) {
        self.stream.to = None;
    }

    /// What the next replica can already count for itself.
    fn known_there(&self, next: ReplicaId) -> Slot {
        let mut votes = self.stream.votes.clone();
        votes.raise(next, self.votes.0[next.index()]);
        votes.reached(self.majority)
    }

    /// Whether there is anything that the next replica should hear now although no entry goes to
    /// it: a round, votes from before it, or a decision that it cannot count for itself.
    fn has_news(&self, next: ReplicaId) -> bool {
        let news = |id: &ReplicaId| self.votes.of(*id) > self.stream.votes.of(*id);
        let upstream = self.position.map_or(0, |at| at + 1);
        self.round.number > self.stream.round
            || self.route[..upstream].iter().any(news)
            || self.agreed > self.stream.agreed.max(self.known_there(next))
    }

    fn told(&mut self) {
        self.stream.votes.merge(&self.votes);
        self.stream.agreed = self.agreed;
        self.stream.round = self.round.number;
    }

    fn send_accepts(&mut self, to: ReplicaId, ctx: &mut Context<'_, Self>) {
        loop {
            let first = self.stream.next;
            if first <= self.held && (self.lacks(first) || self.log.get(first).is_none()) {
                if first > self.committed {
                    return;
                }
                if self.hollow() {
                    // Who has not the state sends nobody ahead of it; the next one asks the
                    // leader, who has.
                    ctx.mark("the next one needs what is missing here");
                    self.stream.next = self.committed.next();
                } else {
                    self.send_skip(to, ctx);
                }
                continue;
            }
            if first > self.held && !self.has_news(to) {
                return;
            }
            let mut entries = core::mem::take(&mut self.stream.scratch);
            let bytes = self.gather(first, &mut entries);
            if !ctx.takes(to, bytes + self.message_bytes()) {
                entries.clear();
                self.stream.scratch = entries;
                ctx.mark("the next one waits for room");
                if !self.has_news(to) || !ctx.takes(to, self.message_bytes()) {
                    return;
                }
                // Rounds, votes and what is decided are small: they do not wait for values.
                return self.send_header(first, to, ctx);
            }
            let header = self.header();
            self.stream.next = Slot(first.0 + entries.len() as u64);
            let message = Message::Accept {
                header,
                first,
                entries,
            };
            ctx.send(to, Lane::Control, &message);
            if let Message::Accept { mut entries, .. } = message {
                entries.clear();
                self.stream.scratch = entries;
            }
            self.told();
        }
    }

    /// What the next one should hear besides entries, ahead of those from `first` on.
    fn send_header(&mut self, first: Slot, to: ReplicaId, ctx: &mut Context<'_, Self>) {
        let (header, entries) = (self.header(), Vec::new());
        let message = Message::Accept {
            header,
            first,
            entries,
        };
        ctx.send(to, Lane::Control, &message);
        self.told();
    }

    /// Entries from `first` on, as many as fit into a message; gives their bytes.
    fn gather(&self, first: Slot, entries: &mut Vec<Entry>) -> usize {
        let mut bytes = 0;
        for (expected, (slot, held)) in (first.0..).map(Slot).zip(self.log.iter_from(first)) {
            let full = bytes > 0 && bytes + held.bytes() > self.config.batch_bytes_max;
            // A message has the slot of its first entry only: nothing behind a hole goes with it.
            if full || slot > self.held || slot != expected || self.lacks(slot) {
                break;
            }
            bytes += held.bytes();
            entries.push(held.entry.clone());
        }
        bytes
    }

    fn send_skip(&mut self, to: ReplicaId, ctx: &mut Context<'_, Self>) {
        self.tell_to_skip(to, ctx);
        self.stream.next = self.committed.next();
    }

    fn tell_to_skip(&self, to: ReplicaId, ctx: &mut Context<'_, Self>) {
        ctx.mark("the next one needs trimmed entries");
        let message = Message::Skip {
            ballot: self.promised,
            base: self.committed,
            chain: self.decided.clone(),
        };
        ctx.send(to, Lane::Control, &message);
    }

    fn send_ack(&mut self, leader: ReplicaId, ctx: &mut Context<'_, Self>) {
        let acked = &self.stream.acked;
        // The leader knows its own votes.
        let told = self.votes.0.iter().zip(&acked.votes.0).enumerate();
        let mut others = told.filter(|(id, _)| *id != leader.index());
        let news = self.round.number > acked.round
            || others.any(|(_, (now, told))| now != told)
            || self.held > acked.held;
        if leader == self.id || !news || ctx.room(leader) < self.message_bytes() {
            return;
        }
        let (header, held) = (self.header(), self.held);
        ctx.send(leader, Lane::Control, &Message::Ack { header, held });
        self.stream.acked = Acked {
            held,
            votes: self.votes.clone(),
            round: self.round.number,
        };
    }

    /// Somebody that this replica sends to lacks what follows `held`.
    pub(super) fn on_missing(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        held: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if ballot != self.promised || held > self.held {
            return ctx.mark("ignored: gap under another ballot");
        }
        if self.planted(Plant::NoResend) {
            return;
        }
        if self.stream.to == Some(Next::Peer(from)) {
            ctx.mark("entries sent again");
            self.stream.next = held.next();
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
        if first < self.log.first() || self.lacks(first) {
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
            bytes += Held::bytes(held);
            if bytes > most {
                break;
            }
        }
        Some(bytes)
    }

    /// The connection to the next replica is new: it is asked what it lacks.
    pub(super) fn on_next_link_up(&mut self) {
        if !self.planted(Plant::NoResend) {
            // It has heard nothing for sure, so that the next turn sends it a message, from which
            // it sees what it lacks.
            self.forget_told();
        }
    }

    /// What the leader learns from the tail.
    pub(super) fn on_ack(
        &mut self,
        from: ReplicaId,
        header: &Header,
        held: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        if header.ballot < self.promised {
            let (ballot, promised) = (header.ballot, self.promised);
            return ctx.send(from, Lane::Control, &Message::Reject { ballot, promised });
        }
        let (end, now) = (self.log.end(), ctx.arrived());
        let Role::Leader(lead) = &mut self.role else {
            return ctx.mark("ignored: acknowledgement to a follower");
        };
        let nothing = held >= end || header.round.number > self.round.number;
        if header.ballot != self.promised || nothing || header.votes.0.len() != self.members {
            return ctx.mark("ignored: acknowledgement of nothing that was sent");
        }
        lead.tail_held = lead.tail_held.max(held);
        if let Some(sample) = lead.came_round(&header.round, now) {
            self.loop_time = if self.loop_time.is_zero() {
                sample
            } else {
                (self.loop_time * 7 + sample) / 8
            };
        }
        self.votes.merge(&header.votes);
        self.agreed = self.agreed.max(header.committed);
        let all = self.votes.0.iter().map(|vote: &Vote| vote.upto);
        self.everywhere = self.everywhere.max(all.min().unwrap_or_default());
    }
}

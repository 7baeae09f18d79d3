//! The beat: keep-alives, suspicion of the next one in the chain, and asking to be let in.
//!
//! ```text
//!   every heartbeat:   Alive ──► the one before, and the leader (everyone, when out of the chain)
//!   next one silent:   Suspect ──► leader ──► RemoveNode      (§3.4, the first detector)
//!   the leader, if that is the next one:  stand               (the tail's part)
//!   no rounds at all:  stand, after a random time             (the second; see election.rs)
//!   rounds come up to one and not to the next, and both are there: their link is broken, one way;
//!                      the leader removes the latter, and takes it in behind another
//! ```

use super::{
    Message,
    replica::{ChainPaxos, Role, Timer},
};
use quintet_replica::{
    Context, Incarnation, Lane, Link, ReplicaId, ReplicaSet, Slot, parts::Ballot, parts::Election,
};

impl ChainPaxos {
    pub(super) fn on_beat(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Beat, self.config.heartbeat);
        self.send_alive(ctx);
        self.watch_next(ctx);
        match &self.role {
            Role::Leader(_) => self.beat_leader(ctx),
            Role::Candidate(..) => self.request_promises(ctx),
            Role::Follower => {}
        }
        if !self.catch_up.is_voting() {
            self.look_for_lost_memories(ctx);
        }
    }

    pub(super) fn alive(&self) -> Message {
        Message::Alive {
            ballot: self.ballots.promised(),
            incarnation: self.me.incarnation(),
            whole: self.catch_up.is_voting(),
            able: self.able(),
            held: self.log.held(),
            round: self.agreement.round().number,
        }
    }

    pub(super) fn send_alive(&mut self, ctx: &mut Context<'_, Self>) {
        let lost = ctx.now().since(self.leader.received_at()) > self.config.suspect_timeout;
        let mut to = ReplicaSet::EMPTY;
        match self.leader.leader() {
            Some(leader) if !self.chain.is_outside() && self.catch_up.is_voting() => {
                to.insert(leader);
                let before = self.chain.predecessor(self.me.id());
                to = before.map_or(to, |before| to.with(before));
            }
            _ => to = self.me.others(),
        }
        if lost && !matches!(self.role, Role::Leader(_)) {
            to = self.me.others();
        }
        let message = self.alive();
        ctx.multicast(to.without(self.me.id()), Lane::Control, &message);
    }

    pub(super) fn on_alive(
        &mut self,
        from: ReplicaId,
        (ballot, incarnation, whole, held): (Ballot, Incarnation, bool, Slot),
        able: bool,
        round: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        if ballot == self.ballots.promised()
            && let Role::Leader(lead) = &mut self.role
        {
            lead.on_alive(from, able, round, ctx.arrived());
        }
        self.ballots.observe(ballot);
        self.peers.on_report(from, !whole, ctx.arrived());
        if matches!(self.role, Role::Leader(_)) && incarnation == self.peers.incarnations().of(from)
        {
            self.admit(from, (ballot, incarnation, whole, held), ctx);
        }
    }

    /// Whether the next one in the chain has been silent for too long.
    fn watch_next(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let watched = self.peers.watch(self.watched(), now);
        let Some((of, silence)) = watched else {
            return;
        };
        let broken = self.peers.down().contains(of) && silence >= self.config.heartbeat;
        if silence < self.config.suspect_timeout && !broken {
            return;
        }
        ctx.mark("next in the chain suspected");
        match self.leader.leader() {
            Some(leader) if leader == of => self.on_leader_down(ctx),
            Some(leader) if leader == self.me.id() => self.maybe_remove(of, ctx),
            Some(leader) => {
                let (ballot, about) = (self.ballots.promised(), of);
                ctx.send(leader, Lane::Control, &Message::Suspect { ballot, about });
            }
            None => {}
        }
    }

    pub(super) fn on_peer_link(
        &mut self,
        peer: ReplicaId,
        link: Link,
        ctx: &mut Context<'_, Self>,
    ) {
        match link {
            Link::Up { .. } | Link::Reset => {
                self.peers.link_up(peer);
                if self.chain.is_outside() || !self.catch_up.is_voting() {
                    // The leader learns at once that this replica wants to come in.
                    let message = self.alive();
                    ctx.send(peer, Lane::Control, &message);
                }
                // Messages in flight may be lost (K3): this replica asks the next one, and tells
                // the leader again.
                if self.watched() == Some(peer) {
                    self.on_next_link_up();
                }
                if self.leader.is(peer) {
                    self.forward_all();
                    self.reads.ask_again();
                }
            }
            Link::Down => {
                self.peers.link_down(peer);
                if self.leader.is(peer) && !matches!(self.role, Role::Leader(_)) {
                    self.on_leader_down(ctx);
                }
            }
            Link::Arriving => {
                self.peers.received(peer, ctx.now());
                if self.leader.is(peer) {
                    self.leader.arriving(ctx.now());
                }
            }
            Link::Room(_) => {}
        }
    }

    /// A replica that lost its state looks whether too many others did too: then what they
    /// acknowledged is gone, and only the operator can say that this is accepted.
    fn look_for_lost_memories(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, recent) = (ctx.now(), self.config.heartbeat * 4);
        let since = self.peers.too_many_lost(&self.me, now, recent);
        if since > self.leader_timeout() * 4 {
            self.me.halt_lost(ctx);
        }
    }
}

//! The beat: keep-alives, suspicion of the next one in the chain, and asking to be let in.
//!
//! ```text
//!   every heartbeat:   Alive ──► the one before, and the leader (everyone, when out of the chain)
//!   next one silent:   Suspect ──► leader ──► RemoveNode      (§3.4, the first detector)
//!   the leader, if that is the next one:  stand               (the tail's part)
//!   no rounds at all:  stand, after a random time             (the second; see election.rs)
//!   rounds come up to one and not to the next, and both are there: their link is broken, one way;
//!                      the leader removes the latter, and takes it in behind somebody else
//! ```

use super::{
    Message,
    replica::{ChainPaxos, Role, Timer},
};
use quintet_replica::{
    Context, Incarnation, Lane, Link, ReplicaId, ReplicaSet, Slot, Time,
    parts::{Ballot, too_many_forgot},
};

/// Whom this replica watches.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Watch {
    of: Option<ReplicaId>,
    since: Time,
}

impl ChainPaxos {
    pub(super) fn on_beat(&mut self, ctx: &mut Context<'_, Self>) {
        ctx.set_timer(Timer::Beat, self.config.heartbeat);
        self.send_alive(ctx);
        self.watch_next(ctx);
        match &self.role {
            Role::Leader(_) => self.beat_leader(ctx),
            Role::Candidate(_) => self.ask_for_promises(ctx),
            Role::Follower => {}
        }
        if !self.whole {
            self.look_for_lost_memories(ctx);
        }
    }

    pub(super) fn alive(&self) -> Message {
        Message::Alive {
            ballot: self.promised,
            life: self.life,
            whole: self.whole,
            able: self.able(),
            held: self.held,
            round: self.round.number,
        }
    }

    pub(super) fn send_alive(&mut self, ctx: &mut Context<'_, Self>) {
        let lost = ctx.now().since(self.heard_at) > self.config.suspect_timeout;
        let mut to = ReplicaSet::EMPTY;
        match self.leader {
            Some(leader) if self.position.is_some() && self.whole => {
                to.insert(leader);
                to = self.predecessor().map_or(to, |before| to.with(before));
            }
            _ => to = self.others,
        }
        if lost && !matches!(self.role, Role::Leader(_)) {
            to = self.others;
        }
        let message = self.alive();
        ctx.multicast(to.without(self.id), Lane::Control, &message);
    }

    pub(super) fn on_alive(
        &mut self,
        from: ReplicaId,
        (ballot, life, whole, held): (Ballot, Incarnation, bool, Slot),
        able: bool,
        round: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        if ballot == self.promised
            && let Role::Leader(lead) = &mut self.role
        {
            lead.seen[from.index()] = round;
            lead.unable = lead.unable.without(from);
            if !able {
                lead.unable.insert(from);
            }
        }
        self.ballot_seen = self.ballot_seen.max(ballot);
        self.forgotten[from.index()] = (!whole).then_some(ctx.arrived());
        if matches!(self.role, Role::Leader(_)) && life == self.lives[from.index()] {
            self.admit(from, (ballot, life, whole, held), ctx);
        }
    }

    /// Whether the next one in the chain has been silent for too long.
    fn watch_next(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let of = self.watched();
        if of != self.watch.of {
            self.watch = Watch { of, since: now };
        }
        let Some(of) = of else { return };
        let last = self.watch.since.max(self.heard[of.index()]);
        let broken = self.down.contains(of) && now.since(last) >= self.config.heartbeat;
        if now.since(last) < self.config.suspect_timeout && !broken {
            return;
        }
        ctx.mark("next in the chain suspected");
        match self.leader {
            Some(leader) if leader == of => self.on_leader_down(ctx),
            Some(leader) if leader == self.id => self.maybe_remove(of, ctx),
            Some(leader) => {
                let (ballot, about) = (self.promised, of);
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
                self.down = self.down.without(peer);
                if self.position.is_none() || !self.whole {
                    // Whoever leads learns at once that this replica wants to come in.
                    let message = self.alive();
                    ctx.send(peer, Lane::Control, &message);
                }
                // What was on its way may be lost (K3): the next one is asked, the leader is told
                // again.
                if self.watched() == Some(peer) {
                    self.on_next_link_up();
                }
                if self.leader == Some(peer) {
                    self.forward_all();
                    self.reads.ask_again();
                }
            }
            Link::Down => {
                self.down.insert(peer);
                if self.leader == Some(peer) && !matches!(self.role, Role::Leader(_)) {
                    self.on_leader_down(ctx);
                }
            }
            Link::Arriving => {
                self.heard[peer.index()] = ctx.now();
                if self.leader == Some(peer) {
                    self.heard_at = ctx.now();
                }
            }
            Link::Room(_) => {}
        }
    }

    /// A replica that forgot looks whether too many others did too: then what they acknowledged
    /// is gone, and only the operator can say that this is accepted.
    fn look_for_lost_memories(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let recent = self.config.heartbeat * 4;
        let too = |at: &&Option<Time>| at.is_some_and(|at| now.since(at) < recent);
        let forgotten = 1 + self.forgotten.iter().filter(too).count();
        if forgotten <= self.members - self.majority {
            self.lost_since = None;
            return;
        }
        let since = *self.lost_since.get_or_insert(now);
        if now.since(since) > self.patience() * 4 {
            self.halt_lost(ctx);
        }
    }

    pub(super) fn halt_lost(&self, ctx: &mut Context<'_, Self>) {
        ctx.halt(too_many_forgot(self.members, self.durability));
    }
}

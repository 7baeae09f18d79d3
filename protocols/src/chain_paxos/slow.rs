//! Replicas that are up but slow: they go behind the middle of the chain, and the acknowledgement
//! turns around before them.
//!
//! ```text
//!   leader ── Ping ──► each ── Pong ──► leader          every heartbeat, not through the chain
//!
//!   head ─► slow ─► r2        one before the middle holds everybody up: its RemoveNode and its
//!     ▲               │       AddNode behind the tail are proposed together
//!     └───── Ack ─────┘
//!   head ─► r2 ─► slow        behind the middle it delays only the leader, who hears of
//!     ▲      │       ┆        decisions from the tail: `turn` names the last one before it, who
//!     ├─ Ack ┘       ┆        answers too
//!     └╌╌╌╌ Ack ╌╌╌╌╌┘
//! ```
//!
//! The paper knows replicas that work and replicas that are removed. One that answers every
//! keep-alive at a hundredth of the others' speed is neither. A replica's speed is assessed in
//! comparison with the others, so that a chain around the world is not torn apart.

use super::{
    Message, Op,
    replica::{ChainPaxos, Role},
};
use quintet_replica::{Context, Incarnation, Lane, ReplicaId, ReplicaSet, Time};

impl ChainPaxos {
    pub(super) fn on_pong(&mut self, from: ReplicaId, stamp: u64, ctx: &mut Context<'_, Self>) {
        let (sent, now) = (Time(stamp), ctx.arrived());
        let Role::Leader(lead) = &mut self.role else {
            return ctx.mark("ignored: measured by a follower");
        };
        if sent > now {
            return ctx.mark("ignored: answer from the future");
        }
        lead.distances.answered(from, sent, now);
    }

    /// One slow link to the leader makes no member slow, and all entries go over it.
    fn slow(&self) -> ReplicaSet {
        match &self.role {
            Role::Leader(lead) => ReplicaSet(lead.distances.slow().0 | self.peers.slow().0),
            _ => self.peers.slow(),
        }
    }

    /// Has another replica answer the leader besides the tail, or none.
    pub(super) fn choose_turn(&mut self, ctx: &mut Context<'_, Self>) {
        let (slow, majority) = (self.slow(), self.me.majority());
        let Role::Leader(lead) = &self.role else {
            return;
        };
        let route = self.chain.route();
        // The last one before the replica that is slow at the end; the tail itself needs no word.
        let last = match lead.tail.is_doubted() {
            true => Some(majority - 1),
            false => route.iter().rposition(|id| !slow.contains(*id)),
        };
        let turn = last.filter(|at| *at + 1 < route.len() && *at + 1 >= majority);
        let turn = turn.map(|at| route[at]);
        if self.agreement.set_turn(turn) {
            ctx.mark("acknowledged from elsewhere than the tail");
        }
    }

    /// The leader's beat: who is slow, where it stands, and the next question to everybody.
    pub(super) fn watch_distances(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, majority) = (ctx.now(), self.me.majority());
        let quiet = self.chain.working().slot == self.chain.decided().slot;
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let route = self.chain.route();
        lead.distances.compare(route, now);
        lead.tail.beat(self.leader.round_trip(), now);
        self.choose_turn(ctx);
        let slow = self.slow();
        let route = self.chain.route();
        let behind = route.get(majority..).unwrap_or_default();
        let Role::Leader(lead) = &self.role else {
            return;
        };
        // A leader that is slow hands over.
        let early = route.iter().take(majority).skip(1);
        let early = early.copied().find(|id| slow.contains(*id));
        let tail = self.chain.tail().unwrap_or(self.me.id());
        if let Some(id) = early
            && behind.iter().any(|id| !slow.contains(*id))
            && quiet
            && lead.ops().is_empty()
            && !lead.is_transferring()
            && !lead.links.avoids(tail, id)
            && !self.peers.has_lost_state(id)
        {
            ctx.mark("slow replica moved behind the tail");
            let known = self.peers.incarnations().of(id);
            let incarnation = self.chain.working().incarnation(id).map(Incarnation);
            let incarnation = incarnation.map_or(known, |incarnation| incarnation.max(known));
            self.propose_op(Op::Remove { id });
            let after = tail;
            self.propose_op(Op::Add {
                id,
                incarnation,
                after,
            });
        }
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        for id in &self.chain.route()[1..] {
            lead.distances.ask(*id, now);
            let stamp = now.0;
            ctx.send(*id, Lane::Control, &Message::Ping { stamp });
        }
    }
}

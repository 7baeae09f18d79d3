//! Coming back without what was acknowledged: memory durability, or a damaged journal.
//!
//! ```text
//!   Recover{incarnation, nonce} ──► all
//!   ◄── RecoverOk{promised, part} from a majority of others, none of them recovering, none with
//!       a higher promise than the leader among them, whose ballot is not below the own promise
//!   ◄── Accept (or state transfer) until all is here that the leader's log held when it answered,
//!       and Found, until so are the disseminated batches that a majority of others held
//!   voter again
//! ```
//!
//! Why this is enough. Before it lost its state, the replica can have voted only under ballots up
//! to its durable promise `p`. The leader of a ballot `b >= p` answers after it learned of the new
//! incarnation: from then on it counts no vote of the old one for an undecided slot. Entries that
//! it had decided with such a vote before stand in its log, below the `end` that it names. Entries
//! that a ballot below `b` may have decided stand there too, because phase 1 of `b` found them. So
//! once the replica holds that log up to `end`, it again holds every value that its old votes
//! helped to decide. Until then it neither votes nor promises. Promises given by the old
//! incarnation are on disk and stay in force. Why the batches that it may have voted for are here
//! again: see [`crate::sadl`].

use super::{
    Message, MultiPaxos, Part,
    replica::{Role, Timer},
    source::Source,
};
use crate::sadl::{Dissemination, Range};
use alloc::vec::Vec;
use quintet_replica::{
    Context, Incarnation, Lane, ReplicaId, ReplicaSet, parts::Ballot, parts::Election,
};

impl MultiPaxos {
    pub(super) fn become_recovering(&mut self, ctx: &mut Context<'_, Self>) {
        if !self.me.can_recover() {
            return self.me.halt_lost(ctx);
        }
        ctx.mark("recovers what it lost");
        self.start_asking(ctx);
    }

    fn start_asking(&mut self, ctx: &mut Context<'_, Self>) {
        self.leader.lose();
        self.role = Role::Recovering(Source::new(ctx.random(), self.me.members()));
        self.ask_to_recover(ctx);
    }

    /// By timer: asks again, or waits for the leader that answered.
    pub(super) fn ask_to_recover(&mut self, ctx: &mut Context<'_, Self>) {
        let (now, timeout) = (ctx.now(), self.leader_timeout());
        let Role::Recovering(recovery) = &self.role else {
            return;
        };
        if recovery.found().is_some() {
            if now.since(self.leader.received_at()) > timeout {
                ctx.mark("recovery starts over");
                return self.start_asking(ctx);
            }
            if !self.has_batches(ctx) {
                // Of another majority all may be had.
                self.send_recover(ctx);
            }
        } else {
            if recovery.loss().is_lost(now, timeout * 4) {
                return self.me.halt_lost(ctx);
            }
            self.send_recover(ctx);
        }
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
    }

    fn send_recover(&self, ctx: &mut Context<'_, Self>) {
        let Role::Recovering(recovery) = &self.role else {
            return;
        };
        let message = Message::Recover {
            incarnation: self.me.incarnation(),
            nonce: recovery.loss().nonce(),
            promised: self.ballots.promised(),
        };
        ctx.multicast(self.me.others(), Lane::Control, &message);
    }

    /// Whether all disseminated batches are here, or executed, that each of a majority of others
    /// held; what is missing is asked for.
    fn has_batches(&mut self, ctx: &mut Context<'_, Self>) -> bool {
        let Role::Recovering(recovery) = &self.role else {
            return true;
        };
        let mut complete = 0;
        for (from, held) in recovery.inventories() {
            let mut ranges = held.iter().copied();
            complete += usize::from(self.sadl.fetch_causal(&mut ranges, from, ctx));
        }
        complete >= self.me.majority()
    }

    /// Whether a recovering replica follows this ballot's leader already.
    pub(super) fn accept_leader_while_recovering(
        &mut self,
        ballot: Ballot,
        ctx: &mut Context<'_, Self>,
    ) -> bool {
        let Role::Recovering(recovery) = &self.role else {
            return true;
        };
        match recovery.found() {
            Some((source, _)) if ballot == source => true,
            Some((source, _)) if ballot > source => {
                ctx.mark("recovery starts over");
                self.start_asking(ctx);
                false
            }
            _ => false,
        }
    }

    pub(super) fn on_recover(
        &mut self,
        from: ReplicaId,
        incarnation: Incarnation,
        nonce: u64,
        theirs: Ballot,
        ctx: &mut Context<'_, Self>,
    ) {
        self.ballots.observe(theirs);
        if incarnation < self.incarnations.of(from) {
            return ctx.mark("ignored: question of an earlier incarnation");
        }
        let part = match &self.role {
            Role::Recovering(_) => Part::Recovering,
            Role::Leader(_) => Part::Leader {
                end: self.log.end(),
            },
            Role::Follower | Role::Candidate(_) => Part::Intact,
        };
        let promised = self.ballots.promised();
        ctx.send(
            from,
            Lane::Control,
            &Message::RecoverOk {
                nonce,
                promised,
                part,
                held: self.sadl.inventory(),
            },
        );
        if !matches!(part, Part::Leader { .. }) {
            return;
        }
        if theirs > promised {
            // It once promised a ballot that came to nothing, and may not go below it.
            ctx.mark("leader raises its ballot for a recovering replica");
            self.step_down(ctx);
            self.become_candidate(ctx);
        } else {
            self.send_commit_to(ReplicaSet::EMPTY.with(from), true, ctx);
        }
    }

    pub(super) fn on_recover_ok(
        &mut self,
        from: ReplicaId,
        nonce: u64,
        promised: Ballot,
        (part, held): (Part, Vec<Range>),
        ctx: &mut Context<'_, Self>,
    ) {
        let (own, now) = (self.ballots.promised(), ctx.now());
        let Role::Recovering(recovery) = &mut self.role else {
            return;
        };
        recovery.on_inventory(from, nonce, part, held);
        if !recovery.asks(nonce) {
            return ctx.mark("ignored: answer to another question");
        }
        if matches!(part, Part::Leader { .. }) && promised.owner != from {
            return ctx.mark("ignored: ballot of another");
        }
        let source = recovery.on_answer(from, (promised, part), own, &self.me, now);
        let Some(ballot) = source else {
            return;
        };
        ctx.mark("recovery quorum");
        if ballot > own {
            self.raise_promise(ballot, ctx);
        }
        self.leader.follow(ballot.owner);
        self.leader.arriving(now);
        self.maybe_recovered(ctx);
    }

    /// All that the leader's log held when it answered is here: votes count again.
    pub(super) fn maybe_recovered(&mut self, ctx: &mut Context<'_, Self>) {
        let Role::Recovering(recovery) = &self.role else {
            return;
        };
        let Some((_, end)) = recovery.found() else {
            return;
        };
        let log = self.log.held().next() >= end;
        if log && self.has_batches(ctx) {
            ctx.mark("recovered");
            self.sadl.ask_no_more();
            ctx.recovered();
            self.role = Role::Follower;
            ctx.cancel_timer(Timer::Heartbeat);
            self.arm_election(ctx);
        }
    }
}

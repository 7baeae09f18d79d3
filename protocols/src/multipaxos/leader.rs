//! The leader: proposes what arrived in a turn, counts votes, keeps followers supplied.
//!
//! ```text
//!   queue ──(window open?)──► log + journal ──► Accept to all that are up to date
//!                                                  │            └► others: from where they are
//!   committed ◄── the majority's smallest vote ◄── AcceptOk, and the leader's own write
//! ```

use super::{
    Message, MultiPaxos, Proposal,
    bug::Bug,
    leader_state::LeaderState,
    message::MESSAGE_BYTES,
    progress::{Claim, Progress},
    replica::{Role, Timer},
};
use core::time::Duration;
use quintet_replica::{
    Context, Incarnation, Lane, Link, ReplicaId, ReplicaSet, Slot, Wake,
    parts::{Ballot, Election, Held, May, RequestQueue},
};
use smallvec::SmallVec;

impl MultiPaxos {
    /// The ballot is this replica's: everything that may have been decided is in the log below
    /// `ready_at`, under this ballot.
    pub(super) fn become_leader(&mut self, next: &[Option<Slot>], ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        // Its clients' requests may be among those that a predecessor proposed.
        let held = self.log.held();
        let peers = self.incarnations.iter().map(|(peer, incarnation)| {
            let mut progress = Progress::new(incarnation, held, now);
            if let Some(slot) = next.get(peer.index()).copied().flatten() {
                progress.rewind(slot.min(held));
            }
            progress
        });
        let tail = self.log.iter_from(self.log.committed().next());
        let in_flight = tail.filter_map(|(_, held)| held.entry.value.key());
        let lead = LeaderState::new(
            peers.collect(),
            RequestQueue::proposed(in_flight),
            self.heads_ahead(),
            (held, self.log.committed()),
        );
        self.role = Role::Leader(lead);
        self.leader.follow(self.me.id());
        ctx.cancel_timer(Timer::Election);
        self.forward_all();
        self.repeat_reads(ctx);
        self.send_heartbeat(ctx);
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
    }

    fn gap(&self, round_trip: Duration) -> Duration {
        let window = u32::try_from(self.config.window).unwrap_or(u32::MAX).max(1);
        self.config.window_gap.max(round_trip / window)
    }

    /// The end of a leader's turn. Its proposals may reopen nothing, so one pass is enough.
    pub(super) fn flush_leader(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.gather_names();
        let proposals = self.propose(ctx);
        if let Role::Leader(lead) = &mut self.role {
            let more = lead.waiting();
            for peer in &mut lead.peers {
                peer.proposed(self.log.held(), more);
            }
        }
        // An answer of this turn may end a round and so let the next begin.
        self.finish_confirmations(ctx);
        let reads = self.begin_confirmation(ctx);
        self.send_accepts(ctx);
        let repeat = self.send_commit(ctx);
        // A lone member needs no answer.
        self.finish_confirmations(ctx);
        proposals.min(reads).min(repeat)
    }

    /// Takes all that is queued into the log, as far as the window is open.
    fn propose(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let majority = self.me.majority();
        let Role::Leader(lead) = &self.role else {
            return Wake::Sleep;
        };
        if !lead.waiting() || lead.is_transferring() {
            return Wake::Sleep;
        }
        let (now, gap) = (ctx.now(), self.gap(lead.round_trip(majority)));
        let may = lead
            .window
            .may(now, gap, self.config.window, self.config.window_bytes);
        match may {
            May::Now => {}
            May::At(time) => return Wake::At(time),
            May::Wait => return Wake::Sleep,
        }
        let clock = ctx.clock().now;
        loop {
            let (mut bytes, mut slots) = (0, 0);
            let mut write = None;
            while slots < self.config.slots_max {
                let Role::Leader(lead) = &mut self.role else {
                    return Wake::Sleep;
                };
                let room = match bytes {
                    0 => usize::MAX,
                    _ => self.config.batch_bytes_max.saturating_sub(bytes),
                };
                let Some(value) = lead.next_value(room) else {
                    break;
                };
                bytes += value.len();
                slots += 1;
                let time = self.log.next_time(clock);
                let slot = self.log.end();
                let proposal = Proposal { time, value };
                write = Some(self.append(slot, self.ballots.promised(), proposal, ctx));
            }
            let Some(write) = write else {
                return Wake::Sleep;
            };
            self.vote_after(write);
            let Role::Leader(lead) = &mut self.role else {
                return Wake::Sleep;
            };
            lead.window.sent(self.log.held(), bytes, now);
            // A full message need not wait for company: the gap only serves to gather it.
            let more = lead.window.may(
                now,
                Duration::ZERO,
                self.config.window,
                self.config.window_bytes,
            );
            if !lead.waiting() || more != May::Now {
                return Wake::Sleep;
            }
        }
    }

    /// Sends every follower what it lacks: one message for all that are at the same slot.
    fn send_accepts(&mut self, ctx: &mut Context<'_, Self>) {
        let (end, first) = (self.log.end(), self.log.first());
        let flight_max = self.config.batch_bytes_max.saturating_mul(4);
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let mut todo = ReplicaSet::EMPTY;
        for id in self.me.others().iter() {
            let peer = &lead.peers[id.index()];
            if peer.replicates() && peer.next() < end {
                todo.insert(id);
            }
        }
        while let Some(next) = todo.iter().map(|id| lead.peers[id.index()].next()).min() {
            let mut group: ReplicaSet = todo
                .iter()
                .filter(|id| lead.peers[id.index()].next() == next)
                .collect();
            if next < first {
                let message = Message::Trimmed {
                    ballot: self.ballots.promised(),
                    first,
                    decisions: self.log.decisions().clone(),
                };
                ctx.mark("follower needs trimmed slots");
                ctx.multicast(group, Lane::Control, &message);
                for id in group.iter() {
                    lead.peers[id.index()].fetch();
                    todo = todo.without(id);
                }
                continue;
            }
            let mut bytes = 0;
            let mut last = next;
            let mut proposals = lead.take_scratch();
            for (slot, held) in self.log.iter_from(next).take(self.config.slots_max) {
                if bytes > 0 && bytes + held.bytes() > self.config.batch_bytes_max {
                    break;
                }
                bytes += held.bytes();
                last = slot;
                proposals.push(held.entry.clone());
            }
            for id in group.iter() {
                let peer = &lead.peers[id.index()];
                let full = peer.is_full(bytes, flight_max);
                if full || !ctx.takes(id, bytes + MESSAGE_BYTES) {
                    ctx.mark("follower waits for room");
                    group = group.without(id);
                    todo = todo.without(id);
                }
            }
            let stamp = lead.next_stamp(ctx.now());
            let message = Message::Accept {
                ballot: self.ballots.promised(),
                first: next,
                committed: self.log.committed(),
                confirm: lead.reads.number(),
                stamp,
                everywhere: self.log.needed_after(),
                proposals,
            };
            ctx.multicast(group, Lane::Control, &message);
            if let Message::Accept { proposals, .. } = message {
                lead.give_scratch(proposals);
            }
            let confirm = lead.reads.number();
            for id in group.iter() {
                let peer = &mut lead.peers[id.index()];
                peer.sent(last, bytes, stamp);
                peer.told(self.log.committed(), confirm);
                if last.next() == end {
                    todo = todo.without(id);
                }
            }
        }
    }

    /// Tells followers what is newly decided, where no Accept did: at once those whose clients
    /// wait for it, the others a little later, since the next Accept may say it by then. Asks as
    /// many of them as it takes to confirm reads.
    fn send_commit(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let (confirmers, mut wake) = self.confirmers(ctx);
        let committed = self.log.committed();
        let Role::Leader(lead) = &mut self.role else {
            return Wake::Sleep;
        };
        let lacks = |peer: &Progress| peer.lacks_commit(committed);
        let mut ids = self.me.others().iter();
        let mut late = false;
        if ids.any(|id| lacks(&lead.peers[id.index()])) {
            let at = lead.unsent_since(ctx.now()) + self.config.commit_notice;
            late = ctx.now() >= at;
            if late {
                lead.all_sent();
            } else {
                wake = wake.min(Wake::At(at));
            }
        } else {
            lead.all_sent();
        }
        let told = |id: &ReplicaId| {
            let peer = &lead.peers[id.index()];
            let waits = peer.waits_for_commit();
            confirmers.contains(*id) || (lacks(peer) && (late || waits))
        };
        let to = self.me.others().iter().filter(told).collect();
        self.send_commit_to(to, false, ctx);
        wake
    }

    pub(super) fn send_commit_to(
        &mut self,
        to: ReplicaSet,
        answer: bool,
        ctx: &mut Context<'_, Self>,
    ) {
        let majority = self.me.majority();
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        if to.is_empty() {
            return;
        }
        let round_trip = lead.round_trip(majority).as_micros();
        let message = Message::Commit {
            ballot: self.ballots.promised(),
            committed: self.log.committed(),
            confirm: lead.reads.number(),
            stamp: lead.next_stamp(ctx.now()),
            everywhere: self.log.needed_after(),
            round_trip: u32::try_from(round_trip).unwrap_or(u32::MAX),
            answer,
        };
        ctx.multicast(to, Lane::Control, &message);
        for id in to.iter() {
            let confirm = lead.reads.number();
            lead.peers[id.index()].told(self.log.committed(), confirm);
        }
    }

    pub(super) fn send_heartbeat(&mut self, ctx: &mut Context<'_, Self>) {
        self.send_commit_to(self.me.others(), true, ctx);
    }

    /// The leader's part of the heartbeat timer.
    pub(super) fn on_leader_heartbeat(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let timeout = self.leader_timeout();
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let heard = |id: &ReplicaId| now.since(lead.peers[id.index()].received_at()) < timeout;
        if 1 + self.me.others().iter().filter(heard).count() < self.me.majority() {
            ctx.mark("leader lost its majority");
            self.step_down(ctx);
            return self.arm_election(ctx);
        }
        if lead.transfer.give_up(now, timeout) {
            ctx.mark("hand-off was not taken up");
            self.forward_all();
        }
        self.send_heartbeat(ctx);
        let first = self.log.first();
        if let Role::Leader(lead) = &self.role {
            let fetching = |id: &ReplicaId| lead.peers[id.index()].fetches();
            let fetching: ReplicaSet = self.me.others().iter().filter(fetching).collect();
            let message = Message::Trimmed {
                ballot: self.ballots.promised(),
                first,
                decisions: self.log.decisions().clone(),
            };
            ctx.multicast(fetching, Lane::Control, &message);
        }
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
    }

    pub(super) fn on_accept_ok(
        &mut self,
        from: ReplicaId,
        (ballot, incarnation): (Ballot, Incarnation),
        claim: Claim,
        ctx: &mut Context<'_, Self>,
    ) {
        let earlier = self.injected(Bug::EarlierIncarnationCounts);
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        if ballot != self.ballots.promised() {
            return ctx.mark("ignored: answer to another ballot");
        }
        if !lead.peers[from.index()].is(incarnation) && !earlier {
            return ctx.mark("ignored: answer of an earlier incarnation");
        }
        if !lead.has_sent(claim.stamp) || claim.held >= self.log.end() {
            return ctx.mark("ignored: answer to nothing that was asked");
        }
        let peer = &mut lead.peers[from.index()];
        if peer.on_claim(claim, self.log.first(), ctx.arrived()) {
            ctx.mark("proposals sent again");
        }
        let done = self.log.executed_done();
        let others = self.me.others().iter();
        let others = others.map(|id| lead.peers[id.index()].executed());
        self.log
            .learn_needed_after(others.min().unwrap_or(done).min(done));
        self.maybe_commit(ctx);
    }

    /// Moves the commit point to the largest slot that a majority voted for.
    pub(super) fn maybe_commit(&mut self, ctx: &mut Context<'_, Self>) {
        let quorum = self.me.majority() - usize::from(self.injected(Bug::MinorityCommits));
        let Role::Leader(lead) = &self.role else {
            return;
        };
        let mut votes: SmallVec<[Slot; 16]> = self
            .me
            .others()
            .iter()
            .map(|id| lead.peers[id.index()].durable())
            .collect();
        votes.push(match self.injected(Bug::OwnVoteNotDurable) {
            true => self.log.held(),
            false => self.log.durable(),
        });
        votes.sort_unstable();
        let committed = votes[self.me.members() - quorum];
        if self.log.commit(committed) {
            let (ballot, committed) = (self.ballots.promised(), self.log.committed());
            self.log.learn_decided(ballot, committed);
            if let Role::Leader(lead) = &mut self.role {
                lead.committed(committed);
            }
            self.execute(ctx);
        }
    }

    /// Fills the slots between the commit point and `end` under this replica's new ballot.
    pub(super) fn propose_again(
        &mut self,
        gathered: alloc::collections::BTreeMap<Slot, Held<Proposal>>,
        ctx: &mut Context<'_, Self>,
    ) {
        let lowest = self.injected(Bug::LowestBallotWins);
        let own_counts = !self.injected(Bug::OwnLogIgnored);
        let better = |other, own| (other > own) != lowest;
        let mut write = None;
        for (slot, proposal) in self.log.merged(gathered, own_counts, better) {
            let proposal = proposal.unwrap_or_else(|| {
                ctx.mark("gap filled with nothing");
                Self::nothing(self.log.time_seen())
            });
            write = Some(self.append(slot, self.ballots.promised(), proposal, ctx));
        }
        if let Some(write) = write {
            self.vote_after(write);
        }
    }

    pub(super) fn on_follower_link(
        &mut self,
        peer: ReplicaId,
        link: Link,
        ctx: &mut Context<'_, Self>,
    ) {
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let progress = &mut lead.peers[peer.index()];
        match link {
            Link::Up { .. } | Link::Reset => {
                // Something may be lost: its next answer tells what.
                progress.link_up();
                self.send_commit_to(ReplicaSet::EMPTY.with(peer), true, ctx);
            }
            Link::Down => progress.link_down(),
            Link::Arriving => progress.arriving(ctx.now()),
            Link::Room(_) => {}
        }
    }

    /// The replica is about to stop: the follower that holds most takes over.
    pub(super) fn hand_off(&mut self, to: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let recent = self.config.heartbeat * 3;
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let target = ReplicaSet(self.me.others().0 & to.0)
            .iter()
            .filter(|id| {
                let peer = &lead.peers[id.index()];
                peer.replicates() && now.since(peer.received_at()) < recent
            })
            .max_by_key(|id| lead.peers[id.index()].held());
        let Some(target) = target else {
            return ctx.mark("no member to hand leadership to");
        };
        ctx.mark("leadership handed off");
        lead.hand_over(now);
        self.send_stand(target, ctx);
    }
}

//! The leader: proposes what arrived in a turn, counts votes, keeps followers supplied.
//!
//! ```text
//!   queue ──(window open?)──► log + journal ──► Accept to all that are up to date
//!                                                  │            └► others: from where they are
//!   committed ◄── the majority's smallest vote ◄── AcceptOk, and the leader's own write
//! ```

use super::{
    Message, MultiPaxos, Proposal, Value,
    plant::Plant,
    progress::{Flow, Progress},
    replica::{Held, Role, Timer},
    requests::MESSAGE_BYTES,
};
use crate::sadl::{Heads, Name};
use alloc::{boxed::Box, collections::VecDeque, vec::Vec};
use core::time::Duration;
use quintet_replica::{
    CommandTime, Context, Incarnation, Lane, Link, ReplicaId, ReplicaSet, Slot, Time, Wake,
    parts::{Ballot, May, RequestQueue, Window},
};
use smallvec::SmallVec;

/// A round of read confirmation under way.
#[derive(Hash)]
pub(super) struct Confirmation {
    /// Its number; a follower that echoes it had not promised a higher ballot when it began.
    pub confirm: u64,
    /// When it began.
    pub began_at: Time,
    /// What was committed when it began.
    pub index: Slot,
    /// Who waits for it, with the number of their question.
    pub asked: SmallVec<[(ReplicaId, u64); 4]>,
}

/// What a leader is to order of what is disseminated.
#[derive(Hash)]
pub(super) struct Naming {
    /// The next ones.
    pub names: VecDeque<Name>,
    /// How far each member's batches have come with what is in the log and in `names`.
    pub heads: Heads,
}

/// What only a leader keeps.
#[derive(Hash)]
pub(super) struct Lead {
    /// Own element unused.
    pub peers: Vec<Progress>,
    /// All that a predecessor may have decided lies at or below this slot: reads wait for it.
    pub ready_at: Slot,
    pub window: Window<Slot>,
    pub queue: RequestQueue,
    pub naming: Box<Naming>,
    pub stamp: u64,
    /// The number of the newest round of read confirmation.
    pub confirm: u64,
    pub confirm_at: Time,
    pub confirmations: VecDeque<Confirmation>,
    /// Questions not yet in a round, by replica.
    pub questions: Vec<Option<u64>>,
    /// Leadership is being handed over since then.
    pub leaving: Option<Time>,
    /// Since when something is decided of which a follower has not been told.
    untold_since: Option<Time>,
    /// Reused from message to message.
    scratch: Vec<Proposal>,
    committed_before: Slot,
}

impl Lead {
    /// The peer started a new life.
    pub fn replaced(&mut self, peer: ReplicaId, incarnation: Incarnation) {
        self.peers[peer.index()].replace(incarnation);
        self.questions[peer.index()] = None;
    }

    /// The round trip to the slowest member of the fastest majority.
    pub fn round_trip(&self, majority: usize) -> Duration {
        let mut trips: SmallVec<[Duration; 8]> = self
            .peers
            .iter()
            .map(|peer| peer.round_trip)
            .filter(|trip| !trip.is_zero())
            .collect();
        trips.sort_unstable();
        let wanted = majority
            .saturating_sub(2)
            .min(trips.len().saturating_sub(1));
        trips.get(wanted).copied().unwrap_or_default()
    }

    /// Whether something is to be proposed.
    pub fn waiting(&self) -> bool {
        !self.queue.is_empty() || !self.naming.names.is_empty()
    }

    /// The next value to propose, if it has no more bytes than that.
    fn next_value(&mut self, bytes_max: usize) -> Option<Value> {
        let names = &mut self.naming.names;
        if !names.is_empty() && Name::SIZE <= bytes_max {
            return names.pop_front().map(Value::Named);
        }
        if self.queue.peek()?.len() > bytes_max {
            return None;
        }
        self.queue.pop().map(Value::Batch)
    }

    fn next_stamp(&mut self, now: Time) -> u64 {
        self.stamp = now.0.max(self.stamp + 1);
        self.stamp
    }

    pub fn digest(&self) -> u64 {
        self.peers.iter().fold(self.confirm, |hash, peer| {
            (hash ^ peer.next.0 ^ (peer.durable.0 << 20)).wrapping_mul(0x0000_0100_0000_01b3)
        }) ^ (self.queue.bytes() as u64)
    }

    pub fn assert_invariants(&self, members: usize, end: Slot) {
        assert!(self.peers.len() == members && self.questions.len() == members);
        for peer in &self.peers {
            assert!(
                peer.durable < end && peer.held < end,
                "votes are for what was proposed"
            );
            assert!(peer.next <= end, "nothing is sent beyond the log");
        }
        let rounds = self.confirmations.iter().map(|round| round.confirm);
        assert!(rounds.is_sorted() && self.confirmations.len() <= CONFIRMATIONS_MAX);
    }
}

/// The most rounds of read confirmation under way.
const CONFIRMATIONS_MAX: usize = 64;

impl MultiPaxos {
    /// The ballot is this replica's: everything that may have been decided is in the log below
    /// `ready_at`, under this ballot.
    pub(super) fn become_leader(&mut self, next: &[Option<Slot>], ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let peers = (0..self.members)
            .map(|peer| {
                let mut progress = Progress::new(self.incarnations[peer], now);
                if let Some(slot) = next.get(peer).copied().flatten() {
                    progress.rewind(slot.min(self.held));
                }
                // Its clients' requests may be among those that a predecessor proposed.
                progress.waits = self.held;
                progress
            })
            .collect();
        let tail = self.log.iter_from(self.committed.next());
        let in_flight = tail.filter_map(|(_, held)| held.proposal.value.key());
        let lead = Lead {
            peers,
            ready_at: self.held,
            window: Window::default(),
            queue: RequestQueue::proposed(in_flight),
            naming: Box::new(Naming {
                names: VecDeque::new(),
                heads: self.heads_ahead(),
            }),
            stamp: 0,
            confirm: 0,
            confirm_at: Time(0),
            confirmations: VecDeque::new(),
            questions: alloc::vec![None; self.members],
            leaving: None,
            untold_since: None,
            scratch: Vec::new(),
            committed_before: self.committed,
        };
        self.role = Role::Leader(lead);
        self.leader = Some(self.id);
        ctx.cancel_timer(Timer::Election);
        self.forward_all();
        self.repeat_reads(ctx);
        self.send_heartbeat(ctx);
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
    }

    pub(super) const fn leaving(&self) -> bool {
        matches!(&self.role, Role::Leader(lead) if lead.leaving.is_some())
    }

    fn gap(&self, round_trip: Duration) -> Duration {
        let window = u32::try_from(self.config.window).unwrap_or(u32::MAX).max(1);
        self.config.window_gap.max(round_trip / window)
    }

    /// The end of a leader's turn. What it proposes may reopen nothing, so one pass is enough.
    pub(super) fn flush_leader(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.gather_names();
        let proposals = self.propose(ctx);
        if let Role::Leader(lead) = &mut self.role {
            let more = lead.waiting();
            for peer in &mut lead.peers {
                peer.proposed(self.held, more);
            }
        }
        // An answer of this turn may end a round and so let the next begin.
        self.finish_confirmations(ctx);
        let reads = self.begin_confirmation(ctx);
        self.send_accepts(ctx);
        let repeat = self.send_commit(ctx);
        // A lone member needs nobody's answer.
        self.finish_confirmations(ctx);
        proposals.min(reads).min(repeat)
    }

    /// Takes all that is queued into the log, as far as the window is open.
    fn propose(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let majority = self.majority;
        let Role::Leader(lead) = &self.role else {
            return Wake::Sleep;
        };
        if !lead.waiting() || lead.leaving.is_some() {
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
                let time = CommandTime(clock.max(self.time_seen.0 + 1));
                let slot = self.log.end();
                write = Some(self.append(slot, self.promised, Proposal { time, value }, ctx));
                self.held = slot;
            }
            let Some(write) = write else {
                return Wake::Sleep;
            };
            self.vote_after(write, self.held);
            let Role::Leader(lead) = &mut self.role else {
                return Wake::Sleep;
            };
            lead.window.sent(self.held, bytes, now);
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
        for id in self.others.iter() {
            let peer = &lead.peers[id.index()];
            if peer.flow == Flow::Replicate && !peer.down && peer.next < end {
                todo.insert(id);
            }
        }
        while let Some(next) = todo.iter().map(|id| lead.peers[id.index()].next).min() {
            let mut group: ReplicaSet = todo
                .iter()
                .filter(|id| lead.peers[id.index()].next == next)
                .collect();
            if next < first {
                let message = Message::Trimmed {
                    ballot: self.promised,
                    first,
                };
                ctx.mark("follower needs trimmed slots");
                ctx.multicast(group, Lane::Control, &message);
                for id in group.iter() {
                    lead.peers[id.index()].flow = Flow::Fetching;
                    todo = todo.without(id);
                }
                continue;
            }
            let mut bytes = 0;
            let mut last = next;
            let mut proposals = core::mem::take(&mut lead.scratch);
            for (slot, held) in self.log.iter_from(next).take(self.config.slots_max) {
                if bytes > 0 && bytes + held.bytes() > self.config.batch_bytes_max {
                    break;
                }
                bytes += held.bytes();
                last = slot;
                proposals.push(held.proposal.clone());
            }
            for id in group.iter() {
                let peer = &lead.peers[id.index()];
                let full = peer.flight_bytes > 0 && peer.flight_bytes + bytes > flight_max;
                if full || !ctx.takes(id, bytes + MESSAGE_BYTES) {
                    ctx.mark("follower waits for room");
                    group = group.without(id);
                    todo = todo.without(id);
                }
            }
            let stamp = lead.next_stamp(ctx.now());
            let message = Message::Accept {
                ballot: self.promised,
                first: next,
                committed: self.committed,
                confirm: lead.confirm,
                stamp,
                everywhere: self.everywhere,
                proposals,
            };
            ctx.multicast(group, Lane::Control, &message);
            if let Message::Accept { mut proposals, .. } = message {
                proposals.clear();
                lead.scratch = proposals;
            }
            for id in group.iter() {
                let peer = &mut lead.peers[id.index()];
                peer.sent(last, bytes, stamp, self.committed);
                peer.confirm_sent = lead.confirm;
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
        let committed = self.committed;
        let Role::Leader(lead) = &mut self.role else {
            return Wake::Sleep;
        };
        let news = |peer: &Progress| {
            peer.commit_sent < committed && peer.flow == Flow::Replicate && !peer.down
        };
        let untold = self.others.iter().any(|id| news(&lead.peers[id.index()]));
        let mut late = false;
        if untold {
            let since = *lead.untold_since.get_or_insert(ctx.now());
            let at = since + self.config.commit_notice;
            late = ctx.now() >= at;
            if !late {
                wake = wake.min(Wake::At(at));
            }
        }
        if late || !untold {
            lead.untold_since = None;
        }
        let told = |id: &ReplicaId| {
            let peer = &lead.peers[id.index()];
            let waits = peer.commit_sent < peer.waits;
            confirmers.contains(*id) || (news(peer) && (late || waits))
        };
        let to = self.others.iter().filter(told).collect();
        self.send_commit_to(to, false, ctx);
        wake
    }

    pub(super) fn send_commit_to(
        &mut self,
        to: ReplicaSet,
        answer: bool,
        ctx: &mut Context<'_, Self>,
    ) {
        let majority = self.majority;
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        if to.is_empty() {
            return;
        }
        let round_trip = lead.round_trip(majority).as_micros();
        let message = Message::Commit {
            ballot: self.promised,
            committed: self.committed,
            confirm: lead.confirm,
            stamp: lead.next_stamp(ctx.now()),
            everywhere: self.everywhere,
            round_trip: u32::try_from(round_trip).unwrap_or(u32::MAX),
            answer,
        };
        ctx.multicast(to, Lane::Control, &message);
        for id in to.iter() {
            let peer = &mut lead.peers[id.index()];
            peer.commit_sent = peer.commit_sent.max(self.committed);
            peer.confirm_sent = lead.confirm;
        }
    }

    pub(super) fn send_heartbeat(&mut self, ctx: &mut Context<'_, Self>) {
        self.send_commit_to(self.others, true, ctx);
    }

    /// The leader's part of the heartbeat timer.
    pub(super) fn on_leader_heartbeat(&mut self, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let patience = self.patience();
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let heard = |id: &ReplicaId| now.since(lead.peers[id.index()].heard_at) < patience;
        if 1 + self.others.iter().filter(heard).count() < self.majority {
            ctx.mark("leader lost its majority");
            self.step_down(ctx);
            return self.arm_election(ctx);
        }
        if lead
            .leaving
            .is_some_and(|since| now.since(since) > patience)
        {
            ctx.mark("hand-off was not taken up");
            lead.leaving = None;
            self.forward_all();
        }
        self.send_heartbeat(ctx);
        let first = self.log.first();
        if let Role::Leader(lead) = &self.role {
            let fetching = |id: &ReplicaId| lead.peers[id.index()].flow == Flow::Fetching;
            let fetching: ReplicaSet = self.others.iter().filter(fetching).collect();
            let message = Message::Trimmed {
                ballot: self.promised,
                first,
            };
            ctx.multicast(fetching, Lane::Control, &message);
        }
        ctx.set_timer(Timer::Heartbeat, self.config.heartbeat);
    }

    pub(super) fn on_accept_ok(
        &mut self,
        from: ReplicaId,
        (ballot, incarnation): (Ballot, Incarnation),
        (held, durable, executed): (Slot, Slot, Slot),
        confirm: u64,
        stamp: u64,
        ctx: &mut Context<'_, Self>,
    ) {
        let (end, first, promised) = (self.log.end(), self.log.first(), self.promised);
        let earlier = self.planted(Plant::EarlierLifeCounts);
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        if ballot != promised {
            return ctx.mark("ignored: answer to another ballot");
        }
        let peer = &mut lead.peers[from.index()];
        if incarnation != peer.incarnation && !earlier {
            return ctx.mark("ignored: answer of an earlier life");
        }
        if stamp > lead.stamp || held >= end {
            return ctx.mark("ignored: answer to nothing that was asked");
        }
        peer.heard_at = ctx.arrived();
        peer.down = false;
        if stamp > 0 {
            peer.measured(ctx.arrived().since(Time(stamp)));
        }
        peer.durable = peer.durable.max(durable.min(held));
        peer.executed = peer.executed.max(executed);
        peer.confirm = peer.confirm.max(confirm);
        match peer.flow {
            Flow::Probe => peer.rewind(held),
            Flow::Fetching if held.next() >= first => peer.rewind(held),
            Flow::Fetching => {}
            // The answer came after everything that was sent, and some of it is missing there.
            Flow::Replicate if stamp >= peer.sent_stamp && held.next() < peer.next => {
                ctx.mark("proposals sent again");
                peer.rewind(held);
            }
            Flow::Replicate => peer.landed(held),
        }
        let done = self.executed_done;
        let others = self.others.iter().map(|id| lead.peers[id.index()].executed);
        self.everywhere = self.everywhere.max(others.min().unwrap_or(done).min(done));
        self.maybe_commit(ctx);
    }

    /// Moves the commit point to the largest slot that a majority voted for.
    pub(super) fn maybe_commit(&mut self, ctx: &mut Context<'_, Self>) {
        let quorum = self.majority - usize::from(self.planted(Plant::MinorityCommits));
        let Role::Leader(lead) = &self.role else {
            return;
        };
        let mut votes: SmallVec<[Slot; 16]> = self
            .others
            .iter()
            .map(|id| lead.peers[id.index()].durable)
            .collect();
        votes.push(match self.planted(Plant::OwnVoteNotDurable) {
            true => self.held,
            false => self.durable,
        });
        votes.sort_unstable();
        let committed = votes[self.members - quorum];
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        assert!(
            lead.committed_before <= self.committed,
            "a commit point never goes back"
        );
        if committed > self.committed {
            self.committed = committed;
            lead.committed_before = committed;
            self.durable = self.durable.max(committed);
            lead.window.answered(committed);
            self.execute(ctx);
        }
    }

    /// Fills the slots between the commit point and `end` under this replica's new ballot.
    pub(super) fn propose_again(
        &mut self,
        mut gathered: alloc::collections::BTreeMap<Slot, Held>,
        ctx: &mut Context<'_, Self>,
    ) {
        let last_gathered = gathered.last_key_value().map_or(Slot(0), |(slot, _)| *slot);
        let end = self.log.end().max(last_gathered.next());
        let mut write = None;
        let mut slot = self.committed.next();
        while slot < end {
            let mut own = self.log.get(slot).cloned();
            if self.planted(Plant::OwnLogIgnored) {
                own = None;
            }
            let lowest = self.planted(Plant::LowestBallotWins);
            let best = match (own, gathered.remove(&slot)) {
                (Some(own), Some(other)) if (other.ballot > own.ballot) != lowest => Some(other),
                (Some(own), _) => Some(own),
                (None, other) => other,
            };
            let proposal = best.map(|held| held.proposal).unwrap_or_else(|| {
                ctx.mark("gap filled with nothing");
                Self::nothing(self.time_seen)
            });
            write = Some(self.append(slot, self.promised, proposal, ctx));
            slot = slot.next();
        }
        self.held = end.previous();
        if let Some(write) = write {
            self.vote_after(write, self.held);
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
                progress.down = false;
                progress.probe();
                self.send_commit_to(ReplicaSet::EMPTY.with(peer), true, ctx);
            }
            Link::Down => {
                progress.down = true;
                progress.probe();
            }
            Link::Arriving => progress.heard_at = ctx.now(),
            Link::Room(_) => {}
        }
    }

    /// Whether it hands leadership over.
    pub(super) fn is_leaving(&self) -> bool {
        matches!(&self.role, Role::Leader(lead) if lead.leaving.is_some())
    }

    /// The replica is about to stop: the follower that holds most takes over.
    pub(super) fn hand_off(&mut self, to: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let now = ctx.now();
        let recent = self.config.heartbeat * 3;
        let Role::Leader(lead) = &mut self.role else {
            return;
        };
        let target = ReplicaSet(self.others.0 & to.0)
            .iter()
            .filter(|id| {
                let peer = &lead.peers[id.index()];
                peer.flow == Flow::Replicate && !peer.down && now.since(peer.heard_at) < recent
            })
            .max_by_key(|id| lead.peers[id.index()].held);
        let Some(target) = target else {
            return ctx.mark("nobody to hand leadership to");
        };
        ctx.mark("leadership handed off");
        lead.leaving = Some(now);
        // Their owners keep them and send them to the next leader.
        lead.queue.drop_waiting();
        ctx.send(
            target,
            Lane::Control,
            &Message::Stand {
                ballot: self.promised,
            },
        );
    }
}

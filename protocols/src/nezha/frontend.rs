//! The client's half, the paper's proxy: stamps batches, multicasts them, and checks quorums.
//!
//! ```text
//!   submit ──► Request{sent, bound, batch} ──► all replicas
//!                 leader's results {view, slot, hash} ─┐
//!               followers' FastReplies {view, hash} ───┼─► fast: same view and hash, and leader
//!                 followers' SlowReply {view, sync} ───┘   slow: sync ≥ slot on a majority
//! ```
//!
//! It keeps nothing that another could not find out: any number of them may work, and any may die.

use super::{
    Config, LogHash, Message, Nezha, ReplyHeader,
    bug::Bug,
    quorum::{fast_quorum, leader_of, slow_quorum},
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    vec,
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::{
    BatchId, Bytes, ClockReading, FrontendContext, FrontendSetup, Level, Link, Outcome, ReplicaId,
    ReplicaSet, Reply, Slot, Submission, Time, outcome_at_deadline, parts::Taken,
};
use smallvec::SmallVec;

/// A frontend needs no notice of a new view: it finds the new leader by asking, so the time between
/// two questions grows to this many times the first at most.
const BACKOFF_MAX: u32 = 4;
/// A refused read is offered to another replica after this.
const RETRY_REFUSED: Duration = Duration::from_millis(10);
const TIMER: u32 = 0;
/// A bound of a replica that has been silent for longer than others is not waited for.
const BOUND_AGE: Duration = Duration::from_secs(1);
/// A fast quorum is waited for where that takes no longer than this many times what a majority
/// needs, and this many nanoseconds more.
const FAR_FACTOR: u64 = 4;
const FAR_LEAST: u64 = 200_000;
/// The replica is told of the paths taken after this many batches.
const PATHS_EVERY: u64 = 64;

#[derive(Hash)]
struct Open {
    submission: Submission,
    retry_at: Time,
    retry_after: Duration,
    /// How often it was refused.
    refused: u32,
    /// The replica that this frontend is embedded in has refused it since it was last sent.
    waits: bool,
    /// The leader's results, with what they stand on.
    leader: Option<(ReplicaId, ReplyHeader, Bytes)>,
    /// Followers' fast replies, the newest of each.
    fast: Vec<(ReplicaId, u64, LogHash)>,
}

impl Open {
    /// It is sent again soon, and the less soon the more often that was so; gives when.
    fn retry_soon(&mut self, now: Time) -> Time {
        let wait = RETRY_REFUSED * (1 << self.refused.min(4));
        if now + wait < self.retry_at {
            self.retry_at = now + wait;
            if self.submission.level == Level::Ordered {
                self.refused += 1;
            }
        }
        self.retry_at.min(self.submission.deadline)
    }
}

/// Deadlines are a thirty-second part of the bound apart, or they are the same: receivers wake up
/// once for all batches that have one deadline.
const STEPS: u64 = 32;

/// The bound, or a little more, so that the deadline is one of those that others have, too.
fn in_step(sent: u64, bound: u64) -> u64 {
    let step = match bound / STEPS {
        0 => return bound,
        part => 1 << part.ilog2(),
    };
    let late = sent.wrapping_add(bound) % step;
    if late == 0 {
        bound
    } else {
        bound + (step - late)
    }
}

/// See the module.
#[derive(Hash)]
pub struct Frontend {
    embedded: Option<ReplicaId>,
    members: usize,
    leader_first: ReplicaId,
    config: Config,
    /// The latency bound that each replica asked for, in nanoseconds, and when.
    bounds: Vec<(u64, Time)>,
    /// Per replica, how far it agrees with its leader: view, incarnations, slot.
    syncs: Vec<(u64, u64, Slot)>,
    view: u64,
    /// Some batch waits until the replica here takes it.
    waits: bool,
    open: BTreeMap<BatchId, Open>,
    /// Batches whose results are here and which no quorum holds yet, by slot.
    unheld: BTreeSet<(Slot, BatchId)>,
    timer_at: Time,
    fast: u64,
    slow: u64,
}

impl Frontend {
    fn replicas(&self) -> ReplicaSet {
        ReplicaSet::all(self.members)
    }

    /// How long a batch may take to all whom a fast quorum needs. A replica that measures no delay
    /// between zero and the largest bound has a clock that differs from all others, or is too far
    /// away: the frontend does not wait for it. Without a fast quorum the bound is what a majority
    /// needs, and so it is where a fast quorum needs far more: the slow path is faster then.
    fn bound(&self) -> u64 {
        let most = self.config.estimation().bound_max;
        let newest = self.bounds.iter().map(|(_, at)| *at).max();
        let newest = newest.unwrap_or(Time(0));
        let measured = |(_, (bound, _)): &(usize, &(u64, Time))| *bound < most;
        let fresh = |(index, (_, at)): &(usize, &(u64, Time))| {
            self.embedded.map(ReplicaId::index) == Some(*index) || newest.since(*at) < BOUND_AGE
        };
        let all = || self.bounds.iter().enumerate().filter(measured);
        let bounds = |it: (usize, &(u64, Time))| it.1.0;
        let mut known: SmallVec<[u64; 9]> = all().filter(fresh).map(bounds).collect();
        let (slow, fast) = (slow_quorum(self.members), fast_quorum(self.members));
        if known.len() < slow {
            known = all().map(bounds).collect();
        }
        known.sort_unstable();
        let enough = match known.len() {
            all if all >= fast => fast,
            all if all >= slow => slow,
            // No clock agrees with this one, or all are that far away.
            _ => return most,
        };
        let leader = leader_of(self.view, self.leader_first, self.members);
        let leader = self
            .bounds
            .get(leader.index())
            .map_or(0, |(bound, _)| *bound);
        let leader = if leader < most { leader } else { 0 };
        let (near, wanted) = (known[slow - 1], known[enough - 1].max(leader));
        let worth = near.saturating_mul(FAR_FACTOR).saturating_add(FAR_LEAST);
        if wanted > worth { near } else { wanted }
    }

    fn send(&self, id: BatchId, everybody: bool, ctx: &mut FrontendContext<'_, Nezha>) {
        let Some(open) = self.open.get(&id) else {
            return;
        };
        let message = self.request(open, ctx.clock());
        let submission = &open.submission;
        match submission.level {
            Level::Linearizable | Level::Ordered
                if !everybody && self.asks_leader(submission.level) =>
            {
                ctx.send(
                    leader_of(self.view, self.leader_first, self.members),
                    message,
                );
            }
            Level::Stale => {
                let some = submission.id.0 % self.members as u64;
                ctx.send(self.embedded.unwrap_or(ReplicaId(some as u16)), message);
            }
            _ => ctx.multicast(self.replicas(), message),
        }
    }

    fn request(&self, open: &Open, clock: ClockReading) -> Message {
        Message::Request {
            sent: clock.now,
            bound: in_step(clock.now, self.bound()),
            deviation: clock.deviation,
            level: open.submission.level,
            batch: open.submission.batch.clone(),
        }
    }

    /// Whether only the leader can take it.
    fn asks_leader(&self, level: Level) -> bool {
        level == Level::Linearizable || !self.config.multicast
    }

    fn arm(&mut self, at: Time, ctx: &mut FrontendContext<'_, Nezha>) {
        if at < self.timer_at {
            self.timer_at = at;
            ctx.set_timer(TIMER, at);
        }
    }

    fn finish(&mut self, id: BatchId, outcome: Outcome, ctx: &mut FrontendContext<'_, Nezha>) {
        if let Some(open) = self.open.remove(&id) {
            if let Some((_, header, _)) = open.leader {
                self.unheld.remove(&(header.slot, id));
            }
            ctx.done(id, outcome);
        }
    }

    fn note_bound(&mut self, from: ReplicaId, bound: u64, now: Time) {
        if bound > 0
            && let Some(known) = self.bounds.get_mut(from.index())
        {
            *known = (bound, now);
        }
    }

    /// Whether a quorum holds the batch where its leader has it.
    fn assess(&mut self, id: BatchId, ctx: &mut FrontendContext<'_, Nezha>) {
        let Some(open) = self.open.get(&id) else {
            return;
        };
        let Some((leader, header, _)) = &open.leader else {
            return;
        };
        let (mut slow, mut fast) = (1, 1);
        // A replica started again after the leader had answered: its replies now never fit that
        // answer, and the leader gives another one when it is asked again.
        let mut outdated = false;
        for index in 0..self.members {
            let replica = ReplicaId(index as u16);
            if replica == *leader {
                continue;
            }
            let (view, incarnations, sync) = self.syncs[index];
            let same_incarnation = incarnations == header.hash.incarnations
                || self.config.injected.is(Bug::IncarnationsIgnored);
            outdated |= view == header.view && !same_incarnation && sync >= header.slot;
            let synced = view == header.view && same_incarnation && sync >= header.slot;
            let said = open.fast.iter().find(|(from, ..)| *from == replica);
            let appended = said.is_some_and(|(_, view, hash)| {
                let same = if self.config.injected.is(Bug::IncarnationsIgnored) {
                    (hash.base, hash.hash, hash.known)
                        == (header.hash.base, header.hash.hash, header.hash.known)
                } else {
                    *hash == header.hash
                };
                outdated |= *view == header.view && hash.incarnations != header.hash.incarnations;
                *view == header.view && hash.known && same
            });
            let any_reply = self.config.injected.is(Bug::FastReplyCountsAsSlow)
                && said.is_some_and(|(_, view, _)| *view == header.view);
            // A slow reply may stand in for a fast one, never the other way round.
            slow += usize::from(synced || any_reply);
            fast += usize::from(synced || appended);
        }
        let fast_needed = if self.config.injected.is(Bug::FastQuorumIsMajority) {
            slow_quorum(self.members)
        } else {
            fast_quorum(self.members)
        };
        if slow >= slow_quorum(self.members) {
            self.slow += 1;
        } else if fast >= fast_needed {
            self.fast += 1;
        } else {
            if outdated && let Some(open) = self.open.get_mut(&id) {
                let at = open.retry_soon(ctx.now());
                self.arm(at, ctx);
            }
            return;
        }
        if let Some(replica) = self.embedded
            && (self.fast + self.slow).is_multiple_of(PATHS_EVERY)
        {
            let (fast, slow) = (self.fast, self.slow);
            ctx.send(replica, Message::Paths { fast, slow });
        }
        let results = open.leader.as_ref().map(|(_, _, results)| results.clone());
        self.finish(id, Outcome::Results(results.unwrap_or_default()), ctx);
    }

    /// A new leader may take what the one before did not, however long that kept it waiting.
    fn note_view(&mut self, view: u64, ctx: &mut FrontendContext<'_, Nezha>) {
        if view <= self.view {
            return;
        }
        self.view = view;
        let now = ctx.now();
        let soonest = self
            .open
            .values_mut()
            .map(|open| open.retry_soon(now))
            .min();
        if let Some(at) = soonest {
            self.arm(at, ctx);
        }
    }

    fn next_due(&self) -> Option<Time> {
        let due = |open: &Open| open.retry_at.min(open.submission.deadline);
        self.open.values().map(due).min()
    }
}

impl quintet_replica::Frontend<Nezha> for Frontend {
    fn new(setup: FrontendSetup<Config>) -> Self {
        let members = setup.epoch.members;
        let first = u64::try_from(setup.options.bound_first.as_nanos()).unwrap_or(u64::MAX);
        let mut bounds = vec![(first, Time(0)); members];
        if let Some(own) = setup.embedded {
            bounds[own.index()].0 = 0;
        }
        Self {
            embedded: setup.embedded,
            members,
            leader_first: setup.epoch.leader_first,
            bounds,
            config: setup.options,
            syncs: vec![(0, 0, Slot(0)); members],
            view: 0,
            waits: false,
            open: BTreeMap::new(),
            unheld: BTreeSet::new(),
            timer_at: Time::NEVER,
            fast: 0,
            slow: 0,
        }
    }

    fn submit(&mut self, submission: Submission, ctx: &mut FrontendContext<'_, Nezha>) {
        let retry_at = ctx.now() + self.config.retry;
        self.arm(retry_at.min(submission.deadline), ctx);
        let id = submission.id;
        let open = Open {
            submission,
            retry_at,
            retry_after: self.config.retry,
            refused: 0,
            waits: false,
            leader: None,
            fast: Vec::new(),
        };
        self.open.insert(id, open);
        self.send(id, false, ctx);
    }

    fn on_message(
        &mut self,
        from: ReplicaId,
        message: Message,
        ctx: &mut FrontendContext<'_, Nezha>,
    ) {
        if from.index() >= self.members {
            return;
        }
        match message {
            Message::FastReplies {
                view,
                bound,
                appended,
            } => {
                self.note_bound(from, bound, ctx.now());
                self.note_view(view, ctx);
                for (batch, hash) in appended {
                    if let Some(open) = self.open.get_mut(&batch) {
                        open.fast.retain(|(known, ..)| *known != from);
                        open.fast.push((from, view, hash));
                        self.assess(batch, ctx);
                    }
                }
            }
            Message::SlowReply {
                view,
                incarnations,
                sync,
                bound,
            } => {
                self.note_bound(from, bound, ctx.now());
                self.note_view(view, ctx);
                let known = &mut self.syncs[from.index()];
                if view < known.0 || (view == known.0 && incarnations == known.1 && sync <= known.2)
                {
                    return;
                }
                *known = (view, incarnations, sync);
                let upto = (sync, BatchId(u64::MAX));
                let held: Vec<BatchId> = self.unheld.range(..=upto).map(|(_, id)| *id).collect();
                for id in held {
                    self.assess(id, ctx);
                }
            }
            Message::Taken { batch, taken, view } => {
                self.note_view(view, ctx);
                let now = ctx.now();
                let Some(open) = self.open.get_mut(&batch) else {
                    return;
                };
                let old = (open.leader.as_ref()).is_none_or(|(_, known, _)| known.view < view);
                if taken != Taken::Accepted && old {
                    let here = self.embedded == Some(from) && taken == Taken::Refused;
                    open.waits |= here && open.submission.level == Level::Ordered;
                    self.waits |= open.waits;
                    let at = open.retry_soon(now);
                    self.arm(at, ctx);
                }
            }
            Message::Request { .. } | Message::Between { .. } | Message::Paths { .. } => {}
        }
    }

    fn on_reply(
        &mut self,
        from: ReplicaId,
        reply: Reply<ReplyHeader>,
        ctx: &mut FrontendContext<'_, Nezha>,
    ) {
        if from.index() >= self.members {
            return;
        }
        let Reply {
            batch,
            header,
            results,
        } = reply;
        self.note_bound(from, header.bound, ctx.now());
        self.note_view(header.view, ctx);
        let Some(open) = self.open.get_mut(&batch) else {
            return;
        };
        if open.submission.level != Level::Ordered || self.config.leader_checks {
            return self.finish(batch, Outcome::Results(results), ctx);
        }
        if let Some((_, known, _)) = &open.leader {
            // Of one view the first answer stands: a later one may come from an earlier
            // incarnation.
            if header.view < known.view {
                return;
            }
            self.unheld.remove(&(known.slot, batch));
        }
        self.unheld.insert((header.slot, batch));
        open.leader = Some((from, header, results));
        self.assess(batch, ctx);
    }

    fn on_timer(&mut self, _: u32, ctx: &mut FrontendContext<'_, Nezha>) {
        let now = ctx.now();
        self.timer_at = Time::NEVER;
        let due: Vec<BatchId> = self
            .open
            .iter()
            .filter(|(_, open)| open.retry_at.min(open.submission.deadline) <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let Some(open) = self.open.get_mut(&id) else {
                continue;
            };
            if open.submission.deadline <= now {
                let outcome = outcome_at_deadline(open.submission.level, true);
                self.finish(id, outcome, ctx);
                continue;
            }
            open.retry_after = (open.retry_after * 2).min(self.config.retry * BACKOFF_MAX);
            open.retry_at = now + open.retry_after;
            self.send(id, true, ctx);
        }
        if let Some(at) = self.next_due() {
            self.arm(at, ctx);
        }
    }

    /// Requests sent to it before may be lost, and with them the fast quorum.
    fn on_link(&mut self, replica: ReplicaId, link: Link, ctx: &mut FrontendContext<'_, Nezha>) {
        let leads = replica == leader_of(self.view, self.leader_first, self.members);
        let made = matches!(link, Link::Up { .. } | Link::Reset);
        if made && (leads || !self.asks_leader(Level::Ordered)) {
            let ordered = |open: &&Open| open.submission.level == Level::Ordered;
            for open in self.open.values().filter(ordered) {
                ctx.send(replica, self.request(open, ctx.clock()));
            }
        }
    }

    fn is_refused(&self) -> bool {
        self.waits
    }

    fn offer_again(&mut self, ctx: &mut FrontendContext<'_, Nezha>) {
        self.waits = false;
        let waits = self.open.iter_mut().filter(|(_, open)| open.waits);
        let batches: Vec<BatchId> = waits
            .map(|(id, open)| {
                open.waits = false;
                *id
            })
            .collect();
        for id in batches {
            self.send(id, true, ctx);
        }
    }

    fn open(&self) -> usize {
        self.open.len()
    }

    fn take_open(&mut self) -> Vec<Submission> {
        let open = core::mem::take(&mut self.open);
        open.into_values().map(|open| open.submission).collect()
    }

    fn paths(&self) -> Vec<(&'static str, u64)> {
        vec![("fast", self.fast), ("slow", self.slow)]
    }

    fn fingerprint(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        core::hash::Hash::hash(self, &mut hasher);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nezha::tests::epoch;
    use quintet_replica::{Durability, Frontend as _, FrontendId};

    fn frontend(members: usize) -> Frontend {
        Frontend::new(FrontendSetup {
            id: FrontendId(1),
            embedded: Some(ReplicaId(0)),
            epoch: epoch(members),
            durability: Durability::Memory,
            options: Config::default(),
        })
    }

    /// Replicas 1, 2, … ask for these bounds, in microseconds.
    fn bound_of(asked: &[u64]) -> u64 {
        let mut frontend = frontend(asked.len() + 1);
        for (replica, bound) in (1..).zip(asked) {
            frontend.note_bound(ReplicaId(replica), bound * 1000, Time(1));
        }
        frontend.bound() / 1000
    }

    #[test]
    fn bound_leaves_out_a_replica_with_a_clock_far_off() {
        assert_eq!(bound_of(&[50, 10_000]), 50, "no fast quorum without it");
        assert_eq!(bound_of(&[50, 60, 70, 10_000]), 70, "a fast quorum");
        assert_eq!(bound_of(&[50, 400]), 400);
        assert_eq!(bound_of(&[50, 401]), 50, "the slow path takes less");
        assert_eq!(bound_of(&[50, 60, 70, 80]), 70, "the slowest is not needed");
        assert_eq!(bound_of(&[50, 60, 10_000, 10_000]), 60);
        assert_eq!(bound_of(&[50, 10_000, 10_000, 10_000]), 10_000);
        assert_eq!(bound_of(&[10_000, 10_000]), 10_000, "the own one is off");
    }

    #[test]
    fn bound_of_a_silent_replica_is_dropped() {
        let mut frontend = frontend(3);
        frontend.note_bound(ReplicaId(1), 50_000, Time(1));
        frontend.note_bound(ReplicaId(2), 300_000, Time(1));
        assert_eq!(frontend.bound(), 300_000);
        frontend.note_bound(ReplicaId(1), 50_000, Time(1) + BOUND_AGE);
        assert_eq!(frontend.bound(), 50_000);
        frontend.note_bound(ReplicaId(2), 300_000, Time(1) + BOUND_AGE);
        assert_eq!(frontend.bound(), 300_000, "it is heard again");
    }

    #[test]
    fn bound_is_largest_of_remote_replicas_requests() {
        let mut frontend = Frontend::new(FrontendSetup {
            id: FrontendId(1),
            embedded: Some(ReplicaId(0)),
            epoch: epoch(3),
            durability: Durability::Memory,
            options: Config::default(),
        });
        assert_eq!(frontend.bound(), 200_000, "before anything was measured");
        for (replica, bound) in [(0, 0), (1, 50_000), (2, 60_000)] {
            frontend.note_bound(ReplicaId(replica), bound, Time(1));
        }
        assert_eq!(frontend.bound(), 60_000);
    }

    #[test]
    fn close_deadlines_merge_and_none_fires_early() {
        for bound in [0, 1, 31, 32, 60_000, 3_000_000, u64::MAX / 2] {
            for sent in [0, 1, 999, 1_700_000_000_123_456_789] {
                let more = in_step(sent, bound) - bound;
                assert!(more <= bound / STEPS, "{sent} {bound} {more}");
            }
        }
        let sent = 1_700_000_000_000_000_000;
        let deadlines = (0..900).map(|later| sent + later + in_step(sent + later, 60_000));
        let mut deadlines: Vec<u64> = deadlines.collect();
        deadlines.dedup();
        assert!(deadlines.len() <= 2, "{deadlines:?}");
    }
}

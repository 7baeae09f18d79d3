//! Linearizable reads from the local state, at every replica (§4), and reads through the chain.
//!
//! ```text
//!   read arrives ── here: rounds up to 7 were seen
//!        │
//!        ├─ a round that says "round 8 came back, forwarded by you too" ─┐ both were made by the
//!        └─ or: Ask ──► leader ──► a round that says "I was asked"      ─┤ leader after the read
//!                                                                        ▼ had arrived
//!   that round, forwarded by a quorum (on its way to here, or as a later round tells):
//!   by then none had promised a higher ballot, so all that was decided before the read lies
//!   at or below that round's `end` ──► executed up to there? answer
//! ```
//!
//! A round is a message of the leader on its way around the chain; under load each carries
//! entries, so that reads cost no message of their own. No clock is looked at but to decide
//! whether to ask. An earlier run of the process may have asked and forwarded, too: questions are
//! told apart by their numbers, and rounds forwarded count from the one on that answered a question
//! of this run, so that the first read under a ballot always asks.

use super::{
    Message,
    bug::Bug,
    config::ReadsBy,
    read_rounds::Question,
    replica::{ChainPaxos, Role},
};
use core::time::Duration;
use quintet_replica::{
    Bytes, Context, Lane, Slot, Wake,
    parts::{RequestKey, Taken, reject, reject_read},
};

/// The longest time of four loops that reads are given to come by rounds.
const LOOPS_MAX: Duration = Duration::from_secs(5);

impl ChainPaxos {
    /// Refused while joining: what it knows of the chain may be old (§4, property ii).
    pub(super) fn takes_reads(&self) -> bool {
        !self.catch_up.fetching().in_progress() && self.catch_up.is_voting()
    }

    pub(super) fn on_read(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        if !self.takes_reads() {
            ctx.mark("read refused: it joins");
            return reject(key, Taken::Refused, ctx);
        }
        if self.injected(Bug::ReadServedAtOnce) {
            return ctx.query(batch, Slot(0), false, key.0, &());
        }
        if !self.reads.takes(batch.len(), self.config.queue_bytes) {
            return reject_read(key, ctx);
        }
        let (round, end) = (self.agreement.round().number, self.log.end());
        self.reads.push(key, batch, round, end, ctx.arrived());
        self.housekeeping.arm(ctx);
    }

    /// Runs the reads that may run: that many, and what this moment has room for besides; says when
    /// to continue.
    pub(super) fn release_reads(&mut self, least: u64, ctx: &mut Context<'_, Self>) -> Wake {
        if self.reads.is_empty() {
            return Wake::Sleep;
        }
        if let Some((stamp, slot)) = self.reads.take_ordered() {
            while let Some(read) = self.reads.pop_upto(stamp) {
                ctx.query(read.batch().clone(), slot, false, read.frontend(), &());
            }
        }
        if self.injected(Bug::PaperReadRule) {
            while let Some(read) = self.reads.pop_seen(self.agreement.agreed()) {
                ctx.query(read.batch().clone(), Slot(0), false, read.frontend(), &());
            }
            return Wake::Sleep;
        }
        let (confirmed, mut run) = (self.confirmed(), 0);
        while let Some(bound) = self.reads.pop_bound(confirmed) {
            while let Some(read) = self.reads.pop_under(&bound) {
                if run >= least && self.share.is_spent() {
                    self.reads.put_back(read, bound);
                    return self.share.next();
                }
                run += 1;
                self.share.read(read.batch().len());
                let batch = read.batch().clone();
                ctx.query(batch, bound.end(), false, read.frontend(), &());
            }
        }
        Wake::Sleep
    }

    /// The end of a turn: asks the leader when reads wait, once for all, and again for later ones
    /// when it has answered. Under load the round that answers carries entries, and the question
    /// goes with what this replica has to say to the leader anyway; rounds that entries bring
    /// unasked come later, since they must have begun after an earlier one had come back.
    pub(super) fn ask_for_reads(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        // No rounds pass a replica that waits outside the chain: its reads go through the log.
        let local = self.config.reads == ReadsBy::Local
            && !self.chain.is_outside()
            && self.chain.decided().contains(self.me.id())
            && !self.injected(Bug::PaperReadRule);
        let leads = matches!(self.role, Role::Leader(_));
        let times = (self.read_limit(), self.leader.round_trip());
        let (question, wake) = self.reads.next_question(local, leads, times, ctx.now());
        if let Some(Question { stamp, ordered }) = question {
            self.ask(stamp, ordered, ctx);
        }
        wake
    }

    /// How long a read waits for its answer to come by rounds: four times around the chain where
    /// that takes longer than is configured.
    fn read_limit(&self) -> Duration {
        let loops = (self.leader.round_trip() * 4).min(LOOPS_MAX);
        self.config.read_timeout.max(loops)
    }

    fn ask(&mut self, stamp: u64, ordered: bool, ctx: &mut Context<'_, Self>) {
        match self.leader.leader() {
            Some(leader) if leader == self.me.id() => self.on_ask(leader, stamp, ordered, ctx),
            Some(leader) => {
                let message = Message::Ask { stamp, ordered };
                ctx.send(leader, Lane::Control, &message);
            }
            None => {}
        }
    }
}

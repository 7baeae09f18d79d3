//! The decided entries that a replica lacks, and whether its votes count.

use super::Entry;
use core::time::Duration;
use quintet_replica::{
    ReplicaId, Slot, Time,
    parts::{AcceptorLog, StateFetch},
};

/// See the module.
#[derive(Hash)]
pub(super) struct CatchUp {
    fetching: StateFetch,
    /// The decided entries that are not here: behind the first slot, up to the second. Entries
    /// accepted there under lower ballots stay in the log, for candidates, until the state has
    /// come.
    gap: Option<(Slot, Slot)>,
    /// Up to here slots are known to be decided, although what stands in them may have to be asked
    /// for again; only shown.
    known: Slot,
    /// The journal begins here, behind a snapshot that can no longer be read.
    journal_from: Slot,
    /// When a gap was last reported, to which replica, and behind what.
    missing: Option<(Time, ReplicaId, Slot)>,
    /// Votes and promises count. False in an incarnation that has lost its state, until it is
    /// admitted again.
    voting: bool,
    /// This incarnation began without what an earlier one had accepted, and has not all of it
    /// again.
    state_lost: bool,
    /// This one cannot tell the votes of an earlier one up to here.
    unknown: Slot,
    /// Entries came in this turn.
    progressed: bool,
}

impl Default for CatchUp {
    fn default() -> Self {
        Self {
            fetching: StateFetch::default(),
            gap: None,
            known: Slot(0),
            journal_from: Slot(0),
            missing: None,
            voting: true,
            state_lost: false,
            unknown: Slot(0),
            progressed: false,
        }
    }
}

impl CatchUp {
    /// The replica starts without what it had accepted before.
    pub const fn lose_state(&mut self, votes: bool) {
        self.voting = votes;
        self.state_lost = true;
    }

    pub const fn is_voting(&self) -> bool {
        self.voting
    }

    /// Its votes count from now on. True when they did not before.
    pub fn admit(&mut self) -> bool {
        let admitted = !core::mem::replace(&mut self.voting, true);
        if admitted {
            self.unknown = self.gap_end().unwrap_or_default();
        }
        admitted
    }

    /// It has again what an earlier incarnation had accepted. True when that is new.
    pub fn recover(&mut self, log: &AcceptorLog<Entry>) -> bool {
        let complete = self.voting && !self.fetching.in_progress() && !self.is_hollow(log);
        complete && core::mem::take(&mut self.state_lost)
    }

    /// Whether the state is behind what is decided, and not to be had from the own log.
    pub fn is_hollow(&self, log: &AcceptorLog<Entry>) -> bool {
        self.gap.is_some() || log.first() > log.executed().next()
    }

    /// Whether what the log holds in this slot, if anything, is not what was decided there.
    pub fn lacks(&self, slot: Slot) -> bool {
        self.gap
            .is_some_and(|(from, upto)| from < slot && slot <= upto)
    }

    /// The gap begins behind the slots that hold what was decided there after all. True when that
    /// is new.
    pub fn fill_gap(&mut self, log: &AcceptorLog<Entry>) -> bool {
        let Some((before, upto)) = self.gap else {
            return false;
        };
        let mut from = before;
        while from < upto && log.is_decided(from.next()) {
            from = from.next();
        }
        self.gap = (from < upto).then_some((from, upto));
        from > before
    }

    /// The last slot of the gap.
    pub fn gap_end(&self) -> Option<Slot> {
        Some(self.gap?.1)
    }

    /// The first slot from which on this replica can tell a candidate all that it ever accepted. An
    /// incarnation that lost its state, and was let in ahead of it, can say nothing of what lies
    /// below: an earlier one may have been one of the few that voted there. Of what came after it
    /// was let in it says all, however far it has gone ahead since.
    pub fn vouches_from(&self, log: &AcceptorLog<Entry>) -> Slot {
        let first = log.first();
        match self.gap {
            Some(_) if self.state_lost => first.max(self.unknown.next()),
            _ => first,
        }
    }

    /// The journal begins here, behind a snapshot that can no longer be read.
    pub const fn kept_from(&mut self, slot: Slot) {
        self.journal_from = slot;
    }

    /// Checks that the log keeps what this replica voted for and has not executed.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_kept(&self, log: &AcceptorLog<Entry>) {
        assert!(
            log.first() <= log.executed().next().max(self.journal_from),
            "what was voted for is kept until it is executed"
        );
    }

    /// It continues behind `upto`.
    pub const fn skip(&mut self, executed: Slot, upto: Slot) {
        self.gap = Some((executed, upto));
        self.missing = None;
    }

    /// The state machine stands at `slot`. True when no gap is left.
    pub fn install(&mut self, slot: Slot) -> bool {
        self.gap.take_if(|(_, upto)| *upto <= slot);
        self.gap.is_none()
    }

    /// It takes back that it went ahead of its state; `committed` stays decided.
    pub fn go_back(&mut self, committed: Slot) {
        self.gap = None;
        self.known = self.known.max(committed);
        self.fetching.give_up();
    }

    /// Up to here slots are known to be decided.
    pub const fn known(&self) -> Slot {
        self.known
    }

    pub const fn fetching(&self) -> &StateFetch {
        &self.fetching
    }

    pub const fn fetching_mut(&mut self) -> &mut StateFetch {
        &mut self.fetching
    }

    /// Entries came in this turn.
    pub const fn progressed(&mut self) {
        self.progressed = true;
    }

    pub fn take_progressed(&mut self) -> bool {
        core::mem::take(&mut self.progressed)
    }

    /// Entries came that were missing.
    pub const fn continued(&mut self) {
        self.missing = None;
        self.progressed = true;
    }

    /// The entries behind `held` are missing. None when this replica was asked for it a short while
    /// ago; otherwise whether it was asked before without effect.
    pub fn ask_missing(
        &mut self,
        from: ReplicaId,
        held: Slot,
        now: Time,
        pause: Duration,
    ) -> Option<bool> {
        let recent = |(at, to, _)| to == from && now.since(at) < pause;
        if self.missing.is_some_and(recent) {
            return None;
        }
        let without_effect = |(_, to, lacked)| to == from && lacked == held;
        let without_effect = self.missing.is_some_and(without_effect);
        self.missing = Some((now, from, held));
        Some(without_effect)
    }
}

//! The log of an acceptor with one leader per ballot: entries, and how far each step has come.
//!
//! ```text
//!   first ………… executed ≤ committed ≤ held ………… end
//!     │ kept for       │           │         └ accepted under an earlier ballot, for candidates
//!     │ those behind   │           └ accepted under the promised ballot without gaps, or decided
//!     └ trimmed before └ decided   durable ≤ held: this replica's vote
//! ```
//!
//! **What a replica voted for, it keeps until it has executed it**, or a state that covers it has
//! come. Those who voted for a slot may be the only ones that still have what was decided there:
//! the one that counted the votes executes it, and may be lost. So a log that must not grow any
//! more, while the state is missing, gives no more votes, and drops only what came after them.

use super::{Ballot, Decisions, SlotLog};
use crate::{CommandTime, PersistId, Slot, wire};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};

/// A value that is proposed for a slot.
pub trait LogEntry: Clone {
    /// The time given to its commands.
    fn time(&self) -> CommandTime;

    /// About what it takes besides its fixed fields.
    fn bytes(&self) -> usize;
}

/// A log entry, with the ballot that it was accepted under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held<E> {
    /// The ballot.
    pub ballot: Ballot,
    /// The entry.
    pub entry: E,
}

wire! { struct Held<E> [10 + E::SIZE_MIN] { ballot, entry } }

impl<E: LogEntry> Held<E> {
    /// About what it takes in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entry.bytes() + size_of::<Self>()
    }
}

/// A part of a log for a candidate.
#[derive(Debug)]
pub struct LogPage<E> {
    /// The entries.
    pub entries: Vec<(Slot, Held<E>)>,
    /// Their bytes.
    pub bytes: usize,
    /// The next page begins here; none when this is the last one.
    pub until: Option<Slot>,
}

/// See the module.
#[derive(Debug, Hash)]
pub struct AcceptorLog<E> {
    /// Nothing below was kept.
    first: Slot,
    /// Entries voted for before the slots begin, ahead of the state, with their bytes.
    early: BTreeMap<Slot, Held<E>>,
    early_bytes: usize,
    slots: SlotLog<Held<E>>,
    bytes: usize,
    held: Slot,
    durable: Slot,
    /// The last slot that this replica ever voted for, under whichever ballot.
    voted: Slot,
    /// It gives no votes behind this slot before it has executed that.
    votes_until: Option<Slot>,
    writes: VecDeque<(PersistId, Ballot, Slot)>,
    committed: Slot,
    /// Up to here the executor was asked to execute.
    executed: Slot,
    /// Up to here the executor has reported it.
    executed_done: Slot,
    /// Up to here no member needs the entries any more.
    needed_after: Slot,
    decisions: Decisions,
    time_seen: CommandTime,
    time_executed: CommandTime,
}

impl<E> Default for AcceptorLog<E> {
    fn default() -> Self {
        Self {
            first: Slot(1),
            early: BTreeMap::new(),
            early_bytes: 0,
            slots: SlotLog::default(),
            bytes: 0,
            held: Slot(0),
            durable: Slot(0),
            voted: Slot(0),
            votes_until: None,
            writes: VecDeque::new(),
            committed: Slot(0),
            executed: Slot(0),
            executed_done: Slot(0),
            needed_after: Slot(0),
            decisions: Decisions::default(),
            time_seen: CommandTime(0),
            time_executed: CommandTime(0),
        }
    }
}

/// Where it stands.
impl<E: LogEntry> AcceptorLog<E> {
    /// The first slot that is kept: all that was voted for from there on is in the log.
    #[must_use]
    pub const fn first(&self) -> Slot {
        self.first
    }

    /// The slot after the last one.
    #[must_use]
    pub fn end(&self) -> Slot {
        self.slots.end()
    }

    /// About what the entries take in memory.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entry of a slot.
    #[must_use]
    pub fn get(&self, slot: Slot) -> Option<&Held<E>> {
        if slot < self.slots.first() {
            return self.early.get(&slot);
        }
        self.slots.get(slot)
    }

    /// The entries from this slot on.
    pub fn iter_from(&self, from: Slot) -> impl Iterator<Item = (Slot, &Held<E>)> {
        let early = self.early.range(from..).map(|(slot, held)| (*slot, held));
        early.chain(self.slots.iter_from(from))
    }

    /// All slots up to here were accepted under the promised ballot, or are decided.
    #[must_use]
    pub const fn held(&self) -> Slot {
        self.held
    }

    /// The same, and durable.
    #[must_use]
    pub const fn durable(&self) -> Slot {
        self.durable
    }

    /// This replica's vote.
    #[must_use]
    pub fn vote(&self) -> Slot {
        let until = self.votes_until.unwrap_or(Slot(u64::MAX));
        self.durable.min(self.held).min(until)
    }

    /// All slots up to here are decided.
    #[must_use]
    pub const fn committed(&self) -> Slot {
        self.committed
    }

    /// Up to here the executor was asked to execute.
    #[must_use]
    pub const fn executed(&self) -> Slot {
        self.executed
    }

    /// Up to here the executor has reported it.
    #[must_use]
    pub const fn executed_done(&self) -> Slot {
        self.executed_done
    }

    /// Up to here no member needs the entries any more.
    #[must_use]
    pub const fn needed_after(&self) -> Slot {
        self.needed_after
    }

    /// The time of what was executed last.
    #[must_use]
    pub const fn time_executed(&self) -> CommandTime {
        self.time_executed
    }

    /// The newest time of any entry.
    #[must_use]
    pub const fn time_seen(&self) -> CommandTime {
        self.time_seen
    }

    /// A time above those of all entries.
    #[must_use]
    pub fn next_time(&self, clock: u64) -> CommandTime {
        CommandTime(clock.max(self.time_seen.0 + 1))
    }

    /// As many entries from this slot on as fit into a message, one at least.
    #[must_use]
    pub fn page(&self, from: Slot, bytes_max: usize) -> LogPage<E> {
        let mut page = LogPage {
            entries: Vec::new(),
            bytes: 0,
            until: None,
        };
        for (slot, held) in self.iter_from(from) {
            if page.bytes > 0 && page.bytes + held.bytes() > bytes_max {
                page.until = Some(slot);
                break;
            }
            page.bytes += held.bytes();
            page.entries.push((slot, held.clone()));
        }
        page
    }
}

/// Accepting and voting.
impl<E: LogEntry> AcceptorLog<E> {
    /// Puts an entry into the slot, which is held from now on. The caller writes it.
    ///
    /// # Panics
    /// When the slot is decided.
    pub fn accept(&mut self, slot: Slot, ballot: Ballot, entry: E) {
        assert!(slot > self.committed, "a decided slot is not decided again");
        self.put(slot, ballot, entry);
        self.held = slot;
    }

    fn put(&mut self, slot: Slot, ballot: Ballot, entry: E) {
        assert!(slot >= self.first, "a trimmed slot is never set again");
        self.time_seen = self.time_seen.max(entry.time());
        let held = Held { ballot, entry };
        let bytes = held.bytes();
        self.bytes += bytes;
        let old = if slot < self.slots.first() {
            self.early_bytes += bytes;
            self.early.insert(slot, held)
        } else {
            self.slots.set(slot, held)
        };
        let old = old.map_or(0, |old| old.bytes());
        self.bytes -= old;
        if slot < self.slots.first() {
            self.early_bytes -= old;
        }
    }

    /// Everything held becomes this replica's vote under the ballot when that write is durable.
    pub fn vote_after(&mut self, write: PersistId, ballot: Ballot) {
        self.writes.push_back((write, ballot, self.held));
    }

    /// Everything held is this replica's vote.
    pub const fn vote_now(&mut self) {
        self.durable = self.held;
    }

    /// Gives this replica's vote, to be told.
    pub fn give_vote(&mut self) -> Slot {
        let vote = self.vote();
        self.voted = self.voted.max(vote);
        vote
    }

    /// Gives no further votes until all that was voted for is executed: what comes now need not
    /// be kept.
    pub fn stop_votes(&mut self) {
        self.votes_until.get_or_insert(self.voted);
    }

    /// An earlier incarnation may have voted for all that is held. It is kept like what this one
    /// voted for, and so votes for it may be given.
    pub fn keep_held(&mut self) {
        self.voted = self.voted.max(self.held);
        let voted = self.voted;
        self.votes_until = self.votes_until.map(|until| until.max(voted));
    }

    /// Whether it has stopped to vote.
    #[must_use]
    pub const fn has_stopped_votes(&self) -> bool {
        self.votes_until.is_some()
    }

    fn resume_votes(&mut self) {
        self.votes_until.take_if(|until| *until <= self.executed);
    }

    /// All writes up to this one are durable. True when there are new votes under the ballot.
    pub fn durable_up_to(&mut self, upto: PersistId, promised: Ballot) -> bool {
        let mut voted = false;
        while let Some((id, ballot, slot)) = self.writes.front().copied() {
            if id > upto {
                break;
            }
            self.writes.pop_front();
            if ballot == promised && slot > self.durable {
                self.durable = slot;
                voted = true;
            }
        }
        voted
    }

    /// Another ballot is promised: entries of earlier ones do not count under it until they come
    /// again, except decided ones.
    pub const fn withdraw(&mut self) {
        self.held = self.committed;
        self.durable = self.committed;
    }

    /// Entries above what is held count again if they were accepted under the promised ballot.
    pub fn extend_held(&mut self, counts: impl Fn(&Held<E>) -> bool) {
        while self.get(self.held.next()).is_some_and(&counts) {
            self.held = self.held.next();
        }
    }

    /// Counts slots as held up to here that are not; for injected bugs.
    pub fn assume_held(&mut self, upto: Slot) {
        self.held = self.held.max(upto);
    }

    /// Drops all entries that are not known to be decided; for injected bugs.
    pub fn drop_undecided(&mut self) {
        self.slots.truncate(self.committed.next());
        let kept = self.iter_from(self.first);
        self.bytes = kept.map(|(_, held)| held.bytes()).sum();
    }
}

/// Deciding, executing and trimming.
impl<E: LogEntry> AcceptorLog<E> {
    /// All up to `upto` is decided, which holds here as far as it is held. True when that is new.
    pub fn commit(&mut self, upto: Slot) -> bool {
        let upto = upto.min(self.held);
        if upto <= self.committed {
            return false;
        }
        self.committed = upto;
        self.durable = self.durable.max(upto);
        true
    }

    /// Under this ballot all up to `upto` is decided, whether it is here or not: its leader knew it,
    /// or a quorum's votes showed it.
    pub fn learn_decided(&mut self, ballot: Ballot, upto: Slot) {
        self.decisions.learn(ballot, upto);
    }

    /// Another replica knows this of what ballots decided.
    pub fn merge_decisions(&mut self, told: &Decisions) {
        self.decisions.merge(told);
    }

    /// The commit points of ballots, as far as they are known.
    #[must_use]
    pub const fn decisions(&self) -> &Decisions {
        &self.decisions
    }

    /// Whether the slot holds what was decided there, as is known of the ballot that it was
    /// accepted under.
    #[must_use]
    pub fn is_decided(&self, slot: Slot) -> bool {
        let covers = |held: &Held<E>| self.decisions.covers(slot, held.ballot);
        self.get(slot).is_some_and(covers)
    }

    /// The slot up to which that holds, behind the commit point.
    #[must_use]
    pub fn known_decided(&self) -> Slot {
        let mut upto = self.committed;
        while self.is_decided(upto.next()) {
            upto = upto.next();
        }
        upto
    }

    /// All slots up to here are decided as they were accepted, whatever is promised now: they can
    /// be committed.
    ///
    /// # Panics
    /// When that is not known.
    pub fn hold_decided(&mut self, upto: Slot) {
        assert!(
            upto <= self.known_decided(),
            "only what is known to be decided"
        );
        self.held = self.held.max(upto);
    }

    /// The time at which this entry is executed after those before it. A slot that was proposed
    /// again after its successor may carry a later time than the successor. Every replica executes
    /// the same slots, so all of them adjust it in the same way.
    #[must_use]
    pub fn time_of(&self, entry: &E) -> CommandTime {
        entry.time().max(self.time_executed)
    }

    /// The executor is asked to execute the next slot.
    ///
    /// # Panics
    /// When it is another slot, or is not decided.
    pub fn executing(&mut self, slot: Slot, time: CommandTime) {
        assert!(slot == self.executed.next(), "slots are executed in order");
        assert!(slot <= self.committed, "only decided slots are executed");
        self.executed = slot;
        self.time_executed = time;
        self.resume_votes();
    }

    /// The executor has executed all up to here.
    pub fn on_executed(&mut self, slot: Slot) {
        self.executed_done = self.executed_done.max(slot);
    }

    /// No member needs the entries up to here any more.
    pub fn learn_needed_after(&mut self, slot: Slot) {
        self.needed_after = self.needed_after.max(slot);
    }

    /// Drops executed entries beyond `bytes_max`. Of those that no member needs a part is kept a
    /// little longer: a replica that restarts knows the last few decisions from others only.
    pub fn trim(&mut self, bytes_max: usize) {
        let least = bytes_max / 16;
        let (mut below, mut bytes) = (self.first(), self.bytes);
        while bytes > least && below <= self.executed {
            if bytes <= bytes_max && below > self.needed_after {
                break;
            }
            bytes -= self.get(below).map_or(0, Held::bytes);
            below = below.next();
        }
        self.drop_below(below);
    }

    /// Drops all entries below this slot: a state covers them.
    pub fn drop_below(&mut self, below: Slot) {
        self.first = self.first.max(below);
        let mut bytes = self.bytes;
        self.slots.trim(below, |held| bytes -= held.bytes());
        self.bytes = bytes;
        if !self.early.is_empty() {
            let kept = self.early.split_off(&below);
            let dropped = core::mem::replace(&mut self.early, kept);
            let dropped: usize = dropped.values().map(Held::bytes).sum();
            self.early_bytes -= dropped;
            self.bytes -= dropped;
        }
    }
}

/// Restoring, from the journal and from states of others.
impl<E: LogEntry> AcceptorLog<E> {
    /// The state machine stands at `slot`; nothing at or below it is kept.
    pub fn install(&mut self, slot: Slot, time: CommandTime) {
        self.drop_below(slot.next());
        self.executed = self.executed.max(slot);
        self.resume_votes();
        self.held = self.held.max(slot);
        self.durable = self.durable.max(slot);
        self.time_executed = self.time_executed.max(time);
        self.time_seen = self.time_seen.max(time);
    }

    /// All up to here is decided, whether it is held here or not.
    pub fn restore_committed(&mut self, slot: Slot) {
        self.committed = self.committed.max(slot);
    }

    /// The journal has this entry, and this replica may have voted for it.
    pub fn restore(&mut self, slot: Slot, ballot: Ballot, entry: E) {
        self.voted = self.voted.max(slot);
        self.put(slot, ballot, entry);
    }

    /// The journal is read. All entries that were accepted under the promised ballot are votes.
    pub fn restored(&mut self, counts: impl Fn(&Held<E>) -> bool) {
        self.held = self.committed;
        self.extend_held(counts);
        self.durable = self.held;
    }

    /// Continues behind `base`: all up to there is decided, and may not be here.
    pub fn skip_to(&mut self, base: Slot) {
        self.committed = base;
        // A second gap may begin below what is held, and voted for, already.
        self.held = self.held.max(base);
    }

    /// The slots begin behind `base`, so that no room is needed for those up to there. Entries that
    /// are executed, or were never voted for, are dropped; the others are kept.
    pub fn begin_behind(&mut self, base: Slot) {
        let last = self.voted.min(base);
        for (slot, held) in self.slots.iter_from(self.executed.next()) {
            if slot > last {
                break;
            }
            self.early_bytes += held.bytes();
            self.bytes += held.bytes();
            self.early.insert(slot, held.clone());
        }
        let mut bytes = self.bytes;
        self.slots.trim(base.next(), |held| bytes -= held.bytes());
        self.bytes = bytes;
        self.drop_below(self.executed.next());
    }

    /// About what the entries take that [`Self::begin_behind`] could drop, at most.
    #[must_use]
    pub const fn bytes_behind_votes(&self) -> usize {
        self.bytes - self.early_bytes
    }

    /// Takes back that it continued ahead of its state: only executed slots count as decided.
    ///
    /// # Panics
    /// When slots behind the executed ones are no longer kept.
    pub fn return_to_executed(&mut self) {
        assert!(
            self.first() <= self.executed.next(),
            "all that was accepted behind the state is kept"
        );
        self.committed = self.executed;
        self.votes_until = None;
    }

    /// Each slot behind the commit point with what a new leader proposes there: of the own entry,
    /// if those count, and the gathered one that which has the better ballot; none where nothing
    /// is known.
    pub fn merged(
        &self,
        mut gathered: BTreeMap<Slot, Held<E>>,
        own_counts: bool,
        better: impl Fn(Ballot, Ballot) -> bool,
    ) -> Vec<(Slot, Option<E>)> {
        let last_gathered = gathered.last_key_value().map_or(Slot(0), |(slot, _)| *slot);
        let end = self.end().max(last_gathered.next());
        let slots = (self.committed.next().0..end.0).map(Slot);
        let merge = |slot| {
            let own = self.get(slot).filter(|_| own_counts);
            let best = match (own, gathered.remove(&slot)) {
                (Some(own), Some(other)) if better(other.ballot, own.ballot) => Some(other),
                (Some(own), _) => Some(own.clone()),
                (None, other) => other,
            };
            (slot, best.map(|held| held.entry))
        };
        slots.map(merge).collect()
    }

    /// Checks what always holds under the promised ballot.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_invariants(&self, promised: Ballot) {
        assert!(
            self.executed <= self.committed,
            "only decided slots are executed"
        );
        assert!(
            self.committed <= self.held,
            "a commit point never passes what is held"
        );
        assert!(self.durable <= self.held, "a vote is for something held");
        assert!(
            self.early_bytes <= self.bytes && self.early.is_empty() == (self.early_bytes == 0),
            "each entry is counted once"
        );
        assert!(
            self.executed_done <= self.executed,
            "executions were asked for"
        );
        let recent = Slot(self.end().0.saturating_sub(16));
        for (slot, held) in self.iter_from(recent) {
            assert!(
                held.ballot <= promised,
                "accepting raises the promise, in {slot}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplicaId;

    #[derive(Clone)]
    struct Entry(u64, usize);

    impl LogEntry for Entry {
        fn time(&self) -> CommandTime {
            CommandTime(self.0)
        }
        fn bytes(&self) -> usize {
            self.1
        }
    }

    const B: Ballot = Ballot {
        round: 2,
        owner: ReplicaId(1),
    };

    fn log(slots: u64) -> AcceptorLog<Entry> {
        let mut log = AcceptorLog::default();
        for slot in 1..=slots {
            log.accept(Slot(slot), B, Entry(slot * 10, 100));
        }
        log
    }

    #[test]
    fn vote_counts_when_durable_and_under_the_promised_ballot() {
        let mut log = log(2);
        log.vote_after(PersistId(1), B);
        log.accept(Slot(3), B, Entry(1, 1));
        log.vote_after(PersistId(2), B);
        assert!(log.durable_up_to(PersistId(1), B));
        assert_eq!(log.vote(), Slot(2));
        log.withdraw();
        let higher = B.next(ReplicaId(0));
        assert!(!log.durable_up_to(PersistId(2), higher));
        assert_eq!((log.vote(), log.held()), (Slot(0), Slot(0)));
        log.extend_held(|held| held.ballot == B);
        assert_eq!(log.held(), Slot(3));
    }

    #[test]
    fn commit_point_passes_only_held_slots() {
        let mut log = log(3);
        assert!(log.commit(Slot(9)) && !log.commit(Slot(9)));
        assert_eq!((log.committed(), log.durable()), (Slot(3), Slot(3)));
        assert_eq!(log.next_time(5), CommandTime(31));
        log.executing(Slot(1), CommandTime(99));
        assert_eq!(log.time_of(&Entry(20, 0)), CommandTime(99));
        log.assert_invariants(B);
    }

    #[test]
    #[should_panic(expected = "a decided slot is not decided again")]
    fn decided_slot_is_not_accepted_again() {
        let mut log = log(1);
        log.commit(Slot(1));
        log.accept(Slot(1), B, Entry(1, 1));
    }

    #[test]
    fn trimming_keeps_undecided_and_some_executed_entries() {
        let mut log = log(8);
        log.commit(Slot(6));
        for slot in 1..=6 {
            log.executing(Slot(slot), CommandTime(slot));
        }
        let one = log.bytes() / 8;
        log.trim(4 * one);
        assert_eq!((log.first(), log.bytes()), (Slot(5), 4 * one));
        log.learn_needed_after(Slot(5));
        log.trim(4 * one);
        assert_eq!(log.first(), Slot(6));
        log.trim(0);
        assert_eq!((log.first(), log.bytes()), (Slot(7), 2 * one));
    }

    #[test]
    fn log_that_begins_behind_its_state_keeps_what_was_voted_for() {
        let mut log = log(9);
        log.vote_now();
        log.commit(Slot(2));
        log.executing(Slot(1), CommandTime(10));
        let one = log.bytes() / 9;
        assert_eq!(log.give_vote(), Slot(9));
        log.stop_votes();
        for slot in 10..=12 {
            log.accept(Slot(slot), B, Entry(slot * 10, 100));
        }
        log.vote_now();
        assert_eq!(
            log.give_vote(),
            Slot(9),
            "what may be dropped is not voted for"
        );
        log.skip_to(Slot(11));
        log.begin_behind(Slot(11));
        let slots: Vec<u64> = log.iter_from(Slot(1)).map(|(slot, _)| slot.0).collect();
        assert_eq!(slots, [2, 3, 4, 5, 6, 7, 8, 9, 12]);
        assert_eq!((log.first(), log.bytes()), (Slot(2), 9 * one));
        assert_eq!(log.bytes_behind_votes(), one);
        log.accept(Slot(100_000_000), B, Entry(1, 100));
        log.skip_to(Slot(200_000_000));
        log.begin_behind(Slot(200_000_000));
        let page = log.page(Slot(2), usize::MAX);
        assert_eq!((page.entries.len(), log.bytes()), (8, 8 * one));
        log.install(Slot(5), CommandTime(50));
        assert_eq!((log.first(), log.bytes()), (Slot(6), 4 * one));
        assert!(log.has_stopped_votes());
        log.install(Slot(200_000_000), CommandTime(60));
        assert!(!log.has_stopped_votes());
        assert_eq!((log.give_vote(), log.bytes()), (Slot(200_000_000), 0));
        log.assert_invariants(B);
    }

    #[test]
    fn log_that_goes_back_to_its_state_is_filled_again() {
        let mut log = log(3);
        log.vote_now();
        log.give_vote();
        log.skip_to(Slot(6));
        log.begin_behind(Slot(6));
        log.return_to_executed();
        log.withdraw();
        let higher = B.next(ReplicaId(0));
        for slot in 1..=8 {
            log.accept(Slot(slot), higher, Entry(slot * 10, 100));
        }
        log.vote_now();
        assert_eq!((log.give_vote(), log.end()), (Slot(8), Slot(9)));
        log.commit(Slot(8));
        for slot in 1..=8 {
            assert!(
                log.get(Slot(slot))
                    .is_some_and(|held| held.ballot == higher)
            );
            log.executing(Slot(slot), CommandTime(slot));
        }
        log.assert_invariants(higher);
        let one = log.bytes() / 8;
        log.trim(4 * one);
        assert_eq!((log.first(), log.bytes()), (Slot(5), 4 * one));
        log.trim(0);
        assert_eq!((log.first(), log.bytes()), (Slot(9), 0));
        log.assert_invariants(higher);
    }

    #[test]
    fn page_has_at_least_one_entry_and_names_the_next() {
        let log = log(3);
        let one = log.bytes() / 3;
        let page = log.page(Slot(1), 1);
        assert_eq!((page.entries.len(), page.until), (1, Some(Slot(2))));
        let page = log.page(Slot(2), 2 * one);
        assert_eq!((page.bytes, page.until), (2 * one, None));
    }
}

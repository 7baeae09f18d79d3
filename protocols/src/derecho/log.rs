//! The log of what is ordered: written, agreed, executed.
//!
//! ```text
//!   first ..= executed ..= sure ..= durable, end
//! ```

use super::message::{Entry, Summary};
use alloc::collections::VecDeque;
use quintet_replica::{Bytes, CommandTime, Context, PersistId, Protocol, Slot, parts::SlotLog};

/// A write in progress.
#[derive(Debug, Hash)]
struct Writing {
    id: PersistId,
    /// The view that it belongs to; 0 when it was fetched.
    view: u64,
    /// Everything up to here in the order of the view, once it is durable.
    ordered: u64,
    slot: Slot,
}

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Log {
    entries: SlotLog<Entry>,
    bytes: usize,
    /// Everything up to here is durable.
    durable: Slot,
    writes: VecDeque<Writing>,
    /// Everything up to here is delivered: agreed permanently.
    sure: Slot,
    executed: Slot,
    executed_done: Slot,
    time_seen: CommandTime,
    time_executed: CommandTime,
}

const fn bytes_of(entry: &Entry) -> usize {
    entry.batch.len() + size_of::<Entry>()
}

impl Log {
    pub const fn first(&self) -> Slot {
        self.entries.first()
    }

    /// The last slot.
    pub fn end(&self) -> Slot {
        self.entries.end().previous()
    }

    pub fn iter_from(&self, slot: Slot) -> impl Iterator<Item = (Slot, &Entry)> {
        self.entries.iter_from(slot)
    }

    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    pub const fn durable(&self) -> Slot {
        self.durable
    }

    pub const fn sure(&self) -> Slot {
        self.sure
    }

    pub const fn executed(&self) -> Slot {
        self.executed
    }

    pub const fn time_seen(&self) -> CommandTime {
        self.time_seen
    }

    /// A time above all that is in the log.
    pub fn next_time(&mut self, clock: u64) -> CommandTime {
        self.time_seen = CommandTime(clock.max(self.time_seen.0 + 1));
        self.time_seen
    }

    // ------------------------------------------------------------------------------- writing

    /// Keeps an entry at the end and writes it. It is fetched: of no view here, and no client waits
    /// for it.
    pub fn append_fetched<P: Protocol<Record = Entry>>(
        &mut self,
        entry: Entry,
        ctx: &mut Context<'_, P>,
    ) {
        let id = self.append(entry, ctx);
        self.wrote(Some(id), 0, 0);
    }

    /// Keeps an entry at the end and writes it.
    pub fn append<P: Protocol<Record = Entry>>(
        &mut self,
        entry: Entry,
        ctx: &mut Context<'_, P>,
    ) -> PersistId {
        let slot = self.entries.end();
        let id = ctx.persist(slot, &entry);
        self.keep(slot, entry);
        id
    }

    fn keep(&mut self, slot: Slot, entry: Entry) {
        self.bytes += bytes_of(&entry);
        self.time_seen = self.time_seen.max(entry.time);
        self.entries.set(slot, entry);
    }

    /// All messages of a view's order up to `ordered` are in the log, the last entry by this write;
    /// without one they are nulls. False when nothing of the view is being written that would make
    /// them count.
    pub fn wrote(&mut self, id: Option<PersistId>, view: u64, ordered: u64) -> bool {
        let slot = self.end();
        match (id, self.writes.back_mut()) {
            (Some(id), _) => self.writes.push_back(Writing {
                id,
                view,
                ordered,
                slot,
            }),
            (None, Some(write)) if write.view == view => write.ordered = ordered,
            (None, _) => return false,
        }
        true
    }

    /// Whether something of this view is being written.
    pub fn is_writing(&self, view: u64) -> bool {
        self.writes.iter().any(|write| write.view == view)
    }

    /// All writes up to `upto` are durable. Gives how much of this view's order is since now.
    pub fn on_persisted(&mut self, upto: PersistId, view: u64) -> Option<u64> {
        let mut persisted = None;
        while self.writes.front().is_some_and(|write| write.id <= upto) {
            let Some(write) = self.writes.pop_front() else {
                break;
            };
            self.durable = self.durable.max(write.slot);
            if write.view == view {
                persisted = persisted.max(Some(write.ordered));
            }
        }
        persisted
    }

    /// Drops what lies above `last`: it was not delivered, and never will be in these slots.
    pub fn cut(&mut self, last: Slot) {
        for (_, entry) in self.entries.iter_from(last.next()) {
            self.bytes -= bytes_of(entry);
        }
        self.entries.truncate(last.next());
        self.durable = self.durable.min(last);
        for write in &mut self.writes {
            write.slot = write.slot.min(last);
        }
    }

    // ------------------------------------------------------------------- what is delivered

    /// All up to this slot is delivered.
    pub fn deliver(&mut self, slot: Slot) {
        self.sure = self.sure.max(slot);
    }

    /// All that is held is delivered.
    pub fn deliver_all(&mut self) {
        self.sure = self.end();
    }

    /// The next entry to be executed, with its slot and the time that it is executed at.
    pub fn execute_next(&mut self) -> Option<(Slot, CommandTime, Bytes)> {
        let slot = self.executed.next();
        if slot > self.sure {
            return None;
        }
        let entry = self.entries.get(slot)?;
        self.time_executed = self.time_executed.max(entry.time);
        self.executed = slot;
        Some((slot, self.time_executed, entry.batch.clone()))
    }

    /// All up to this slot has been executed. Entries that are executed go when they are more than
    /// these bytes.
    pub fn on_executed(&mut self, slot: Slot, bytes_max: usize) {
        self.executed_done = self.executed_done.max(slot);
        while self.bytes > bytes_max && self.entries.first() <= self.executed_done {
            let bytes = &mut self.bytes;
            let below = self.entries.first().next();
            self.entries.trim(below, |entry| *bytes -= bytes_of(&entry));
        }
    }

    /// The summary for a snapshot; none while there is nothing in it.
    pub fn summary(&self) -> Option<Summary> {
        let time = self.time_executed;
        (self.executed > Slot(0)).then_some(Summary { time })
    }

    /// A state is installed that covers all up to `slot`. False when that was executed before.
    pub fn install(&mut self, slot: Slot, summary: Summary) -> bool {
        self.executed_done = self.executed_done.max(slot);
        if slot <= self.executed {
            return false;
        }
        self.time_executed = self.time_executed.max(summary.time);
        self.time_seen = self.time_seen.max(summary.time);
        self.executed = slot;
        if slot > self.end() {
            self.entries.reset(slot.next());
            self.bytes = 0;
            self.durable = slot;
            for write in &mut self.writes {
                write.slot = slot;
            }
        }
        self.deliver(slot);
        true
    }

    // ----------------------------------------------------------------------------- restoring

    /// Takes over what the journal holds. A gap is an error, unless the state is lost: then the
    /// others have the rest. False when there is one.
    pub fn restore(
        &mut self,
        checkpoint: Option<(Slot, Summary)>,
        records: impl IntoIterator<Item = (Slot, Entry)>,
        state_lost: bool,
    ) -> bool {
        if let Some((slot, summary)) = checkpoint {
            self.entries.reset(slot.next());
            self.executed = slot;
            self.executed_done = slot;
            self.sure = slot;
            self.time_executed = summary.time;
            self.time_seen = summary.time;
        }
        for (slot, entry) in records {
            if slot < self.first() {
                continue;
            }
            if slot > self.entries.end() {
                // If the state is lost, an older snapshot stood in for a damaged one.
                return state_lost;
            }
            self.cut(slot.previous());
            self.keep(slot, entry);
        }
        true
    }

    /// Everything up to the base of this view is held: above it only what was sent in this view
    /// counts, for the trim has dropped the rest. False when it is not held.
    pub fn restored_complete(&mut self, view: u64, base: Slot) -> bool {
        let stale = |(slot, entry): (Slot, &Entry)| (entry.view < view).then_some(slot);
        let stale = self.entries.iter_from(base.next()).find_map(stale);
        if let Some(slot) = stale {
            self.cut(slot.previous());
        }
        self.durable = self.end();
        let holds = self.end() >= base;
        if holds {
            self.deliver(base);
        }
        holds
    }

    /// Only what is `sure` is certain to be delivered.
    pub fn restored_partly(&mut self, sure: Slot) {
        self.deliver(sure.min(self.end()));
        self.cut(self.sure);
        self.durable = self.end();
    }

    pub fn assert_invariants(&self) {
        assert!(self.executed <= self.sure, "only what is sure is executed");
        assert!(self.sure <= self.end(), "what is sure is held");
        assert!(
            self.executed_done <= self.executed,
            "executions were asked for"
        );
        assert!(self.durable <= self.end(), "what is durable is held");
        assert!(
            self.first() <= self.executed.next(),
            "what is not executed is kept"
        );
    }
}

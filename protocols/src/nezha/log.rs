//! The log of a replica, and the batches that are on their way into it.
//!
//! ```text
//!   early, late ──► unsynced ──► slots ..= durable ..= sync     a follower
//!              └───────────────► slots                          the leader: all is agreed
//!                                  └─ ..= commit: final, trimmed when a snapshot covers it
//! ```

use super::{
    Record, Summary, Vote,
    bug::{Bug, Injected},
    conflict::{Footprint, Marks, time_of},
    conflict_index::ConflictIndex,
    dom::{EarlyBuffer, LateBuffer, Name, Stamp},
    entry::{Entry, Place, name_of},
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec::Vec,
};
use quintet_replica::{
    Bytes, Context, PersistId, Protocol, Slot, limits,
    parts::{SlotLog, Table},
};

/// See the module.
#[derive(Hash)]
pub(super) struct Log {
    injected: Injected,
    /// The part that agrees with the leader's log, up to the sync-point; at the leader, its whole
    /// log.
    slots: SlotLog<Entry>,
    sync: Slot,
    /// The same, and durable.
    durable: Slot,
    writes: VecDeque<(PersistId, Slot)>,
    commit: Slot,
    /// Asked to be executed.
    executed: Slot,
    checkpointed: Slot,
    /// Appended by this follower and not yet placed by the leader.
    unsynced: BTreeMap<Stamp, Entry>,
    early: EarlyBuffer<Footprint>,
    late: LateBuffer,
    /// Where each batch is.
    known: Table<Name, Place>,
    conflicts: ConflictIndex,
}

impl Log {
    pub fn new(injected: Injected) -> Self {
        Self {
            injected,
            slots: SlotLog::default(),
            sync: Slot(0),
            durable: Slot(0),
            writes: VecDeque::new(),
            commit: Slot(0),
            executed: Slot(0),
            checkpointed: Slot(0),
            unsynced: BTreeMap::new(),
            early: EarlyBuffer::default(),
            late: LateBuffer::default(),
            known: Table::default(),
            conflicts: ConflictIndex::new(injected.is(Bug::OneHashForAllKeys)),
        }
    }

    /// The last slot that agrees with the leader's log.
    pub const fn sync(&self) -> Slot {
        self.sync
    }

    /// The last one that is durable, too.
    pub const fn durable(&self) -> Slot {
        self.durable
    }

    pub const fn commit(&self) -> Slot {
        self.commit
    }

    pub const fn executed(&self) -> Slot {
        self.executed
    }

    /// The first slot that is kept.
    pub const fn first(&self) -> Slot {
        self.slots.first()
    }

    pub fn get(&self, slot: Slot) -> Option<&Entry> {
        self.slots.get(slot)
    }

    pub fn iter_from(&self, slot: Slot) -> impl Iterator<Item = (Slot, &Entry)> {
        self.slots.iter_from(slot)
    }

    pub fn unsynced_len(&self) -> usize {
        self.unsynced.len()
    }

    /// How many batches wait in the early buffer, and in the late one.
    pub fn buffered(&self) -> (usize, usize) {
        (self.early.len(), self.late.len())
    }

    pub fn known_len(&self) -> usize {
        self.known.len()
    }

    pub fn place_of(&self, name: Name) -> Option<Place> {
        self.known.get(&name).copied()
    }

    pub fn knows(&self, name: &Name) -> bool {
        self.known.contains_key(name)
    }

    /// The slot of a batch that has one.
    pub fn slot_of(&self, name: Name) -> Option<Slot> {
        match self.known.get(&name)? {
            Place::Slot(slot) => Some(*slot),
            _ => None,
        }
    }

    /// A batch that is in the log with this stamp.
    pub fn find(&self, stamp: Stamp) -> Option<&Entry> {
        let entry = match self.known.get(&stamp.name)? {
            Place::Slot(slot) => self.slots.get(*slot),
            Place::Unsynced(stamp) => self.unsynced.get(stamp),
            Place::Early(_) | Place::Late => None,
        };
        entry.filter(|entry| entry.stamp == stamp)
    }

    /// A batch that is held, in the log or in a buffer.
    pub fn body(&self, name: Name) -> Option<&Bytes> {
        match self.known.get(&name)? {
            Place::Slot(slot) => self.slots.get(*slot).map(|entry| &entry.batch),
            Place::Unsynced(stamp) => self.unsynced.get(stamp).map(|entry| &entry.batch),
            Place::Early(stamp) => self.early.get(*stamp),
            Place::Late => self.late.get(name),
        }
    }

    // ------------------------------------------------------------------------------ buffers

    /// Whether the early buffer takes a batch of this length.
    pub fn takes_early(&self, bytes: usize, bytes_max: usize) -> bool {
        limits::queue_takes(self.early.bytes(), bytes, bytes_max)
    }

    /// Keeps a batch until its deadline.
    pub fn keep_early(&mut self, entry: Entry) {
        let Entry {
            stamp,
            batch,
            footprint,
            ..
        } = entry;
        self.known.insert(stamp.name, Place::Early(stamp));
        self.early.insert(stamp, batch, footprint);
    }

    /// Keeps a batch until the leader places it; the oldest ones go when there are too many.
    pub fn keep_late(&mut self, name: Name, batch: Bytes, bytes_max: usize) {
        self.known.insert(name, Place::Late);
        let known = &mut self.known;
        self.late.insert(name, batch, bytes_max, |dropped| {
            known.remove(&dropped);
        });
    }

    /// A batch in the late buffer comes again.
    pub fn drop_late(&mut self, name: Name) {
        self.late.remove(name);
        self.known.remove(&name);
    }

    /// The deadline of the first batch in the early buffer.
    pub fn next_deadline(&self) -> Option<u64> {
        self.early.next_deadline()
    }

    /// Takes it out if its deadline has come at `clock`.
    pub fn release(&mut self, clock: u64) -> Option<Entry> {
        let (stamp, batch, footprint) = self.early.release(clock)?;
        Some(Entry::new(stamp, batch, footprint))
    }

    /// The batches that are held here alone; a leader's log decides about them.
    pub fn unplaced(&self) -> Vec<Name> {
        let unsynced = self.unsynced.keys().map(|stamp| stamp.name);
        let early = self.early.stamps().map(|stamp| stamp.name);
        unsynced.chain(early).chain(self.late.names()).collect()
    }

    // ---------------------------------------------------------------------------- appending

    /// Whether a batch may be put behind all that is in the log.
    pub fn admits(&self, entry: &Entry) -> bool {
        self.conflicts.admits(entry.stamp, &entry.footprint)
    }

    /// Gives a late batch the deadline that the leader gives it: the lowest above all that
    /// conflicts with it.
    pub fn set_late_deadline(&self, entry: &mut Entry) {
        if !self.injected.is(Bug::LateKeepsDeadline) {
            entry.stamp.deadline = self.conflicts.deadline_min(&entry.footprint);
        }
    }

    /// The lowest deadline above all that is in the log.
    pub const fn deadline_past(&self) -> u64 {
        self.conflicts.deadline_past()
    }

    /// The leader gives a batch the next slot.
    pub fn append<P: Protocol<Record = Record>>(
        &mut self,
        mut entry: Entry,
        ctx: &mut Context<'_, P>,
    ) {
        if !self.admits(&entry) {
            self.set_late_deadline(&mut entry);
        }
        let crowded = self.conflicts.deadline_crowded();
        entry.stamp.deadline = entry.stamp.deadline.max(crowded);
        let slot = self.sync.next();
        self.write(slot, &mut entry, ctx);
        self.conflicts.append(&mut entry);
        self.put(slot, entry);
    }

    /// Writes a batch for this slot, which is in the log from now on.
    fn write<P: Protocol<Record = Record>>(
        &mut self,
        slot: Slot,
        entry: &mut Entry,
        ctx: &mut Context<'_, P>,
    ) {
        entry.journal = slot;
        entry.written = ctx.persist(slot, &Record::Entry(slot, entry.placed()));
        self.writes.push_back((entry.written, slot));
    }

    /// An entry takes the next slot.
    fn put(&mut self, slot: Slot, entry: Entry) {
        assert_eq!(slot, self.sync.next(), "slots are filled in order");
        self.conflicts.note(&entry);
        self.known.insert(entry.stamp.name, Place::Slot(slot));
        self.slots.set(slot, entry);
        self.sync = slot;
    }

    /// A follower appends a batch beyond its sync-point; gives the write that makes it durable.
    pub fn append_unsynced<P: Protocol<Record = Record>>(
        &mut self,
        mut entry: Entry,
        ctx: &mut Context<'_, P>,
    ) -> PersistId {
        entry.journal = self.sync.next();
        entry.written = ctx.persist(entry.journal, &Record::Entry(Slot(0), entry.placed()));
        self.conflicts.note(&entry);
        self.conflicts.append(&mut entry);
        let (stamp, written) = (entry.stamp, entry.written);
        self.known.insert(stamp.name, Place::Unsynced(stamp));
        self.unsynced.insert(stamp, entry);
        written
    }

    /// A follower gives the next slot to what the leader placed there, and gives what is barred
    /// from the log by it. None when the batch is not here.
    pub fn place<P: Protocol<Record = Record>>(
        &mut self,
        stamp: Stamp,
        commutativity: bool,
        ctx: &mut Context<'_, P>,
    ) -> Option<Vec<Entry>> {
        let (slot, name) = (self.sync.next(), stamp.name);
        let mut entry = match self.known.get(&name).copied()? {
            Place::Unsynced(before) => {
                let mut entry = self.unsynced.remove(&before)?;
                entry.stamp = stamp;
                if before != stamp {
                    ctx.mark("an entry with another deadline was taken over");
                    if !self.injected.is(Bug::DeadlineNotInHash) {
                        self.conflicts.moved(before, &entry);
                    }
                }
                entry.written = ctx.persist(slot, &Record::Moved(slot, stamp));
                self.writes.push_back((entry.written, slot));
                let barred_by = (stamp, entry.footprint.clone());
                self.put(slot, entry);
                return Some(self.take_barred(barred_by));
            }
            Place::Early(before) => {
                let (batch, footprint) = self.early.remove(before)?;
                Entry::new(stamp, batch, footprint)
            }
            Place::Late => {
                ctx.mark("placed from the late buffer");
                let batch = self.late.remove(name)?;
                Entry::read(stamp.deadline, batch, commutativity, ctx)?
            }
            Place::Slot(before) => {
                // The leader no longer knew that it had placed it; sessions run it once.
                let batch = self.slots.get(before)?.batch.clone();
                Entry::read(stamp.deadline, batch, commutativity, ctx)?
            }
        };
        self.conflicts.append(&mut entry);
        self.write(slot, &mut entry, ctx);
        let barred_by = (stamp, entry.footprint.clone());
        self.put(slot, entry);
        Some(self.take_barred(barred_by))
    }

    /// Entries that the leader can no longer put before the entry that it just placed leave the
    /// log.
    fn take_barred(&mut self, (stamp, footprint): (Stamp, Footprint)) -> Vec<Entry> {
        let time = time_of(stamp.deadline);
        let barred: Vec<Stamp> = self
            .unsynced
            .range(..stamp)
            .filter(|(known, entry)| {
                time_of(known.deadline) < time || entry.footprint.conflicts(&footprint)
            })
            .map(|(known, _)| *known)
            .collect();
        let taken = barred.iter().filter_map(|stamp| {
            let entry = self.unsynced.remove(stamp)?;
            self.conflicts.remove(&entry);
            self.known.remove(&stamp.name);
            Some(entry)
        });
        taken.collect()
    }

    // -------------------------------------------------- what is durable, executed, committed

    /// All writes up to `upto` are durable. True when more of what is synced is.
    pub fn on_persisted(&mut self, upto: PersistId) -> bool {
        let done = self.writes.partition_point(|(id, _)| *id <= upto);
        for (_, slot) in self.writes.drain(..done) {
            self.durable = self.durable.max(slot);
        }
        done > 0
    }

    /// The first slot that is not executed.
    pub fn next_to_execute(&self) -> Option<(Slot, &Entry)> {
        let slot = self.executed.next();
        Some((slot, self.slots.get(slot)?))
    }

    pub const fn executing(&mut self, slot: Slot) {
        self.executed = slot;
    }

    /// The next slot is committed, and executed if it was not before; gives it.
    pub fn commit_next<P: Protocol>(&mut self, ctx: &mut Context<'_, P>) -> Slot {
        self.commit = self.commit.next();
        if self.executed < self.commit
            && let Some(entry) = self.slots.get(self.commit)
        {
            let time = time_of(entry.stamp.deadline);
            ctx.execute(self.commit, time, entry.batch.clone(), None);
            self.executed = self.commit;
        }
        self.commit
    }

    /// Leaves what is committed out of the hashes.
    pub fn raise_hash_base(&mut self) {
        let commit = self.commit;
        self.conflicts
            .raise_base(&self.slots, &self.unsynced, commit);
    }

    /// A deposed leader undoes what is not committed.
    pub fn roll_back<P: Protocol>(&mut self, ctx: &mut Context<'_, P>) {
        if self.executed > self.commit && !self.injected.is(Bug::NoRollBack) {
            ctx.mark("speculation undone");
            ctx.roll_back(self.commit);
            self.executed = self.commit;
        }
    }

    // ------------------------------------------------------------------------ changing views

    /// The part that a new leader is told, which has committed so much.
    pub fn vote(&self, view_normal: u64, leader_commit: Slot) -> Vote {
        let kept = self.slots.first();
        let first = self.commit.min(leader_commit).next().max(kept);
        let synced = self.slots.iter_from(first);
        Vote {
            view_normal,
            commit: self.commit,
            kept,
            first,
            synced: synced.map(|(_, entry)| entry.stamp).collect(),
            unsynced: self.unsynced.keys().copied().collect(),
        }
    }

    /// The watermarks of what is committed.
    pub fn marks_committed(&self) -> Marks {
        self.conflicts.marks_upto(&self.slots, self.commit)
    }

    /// Behind the commit point the log is this from now on, as written by `written`: nothing of
    /// what this replica held there counts any more.
    pub fn begin(&mut self, entries: Vec<Entry>, written: PersistId) {
        let keep = self.commit;
        let journal = keep.next();
        self.unsynced.clear();
        self.early.clear();
        self.late.clear();
        let short = self.slots.end() < journal;
        self.conflicts.cut(&self.slots, keep, short);
        self.slots.truncate(journal);
        if short {
            self.slots.reset(journal);
        }
        self.sync = keep;
        self.durable = self.durable.min(keep);
        self.writes.clear();
        self.conflicts.count(&self.slots, &self.unsynced);
        self.know_slots();
        for mut entry in entries {
            entry.journal = journal;
            entry.written = written;
            self.conflicts.append(&mut entry);
            self.put(self.sync.next(), entry);
        }
        self.writes.push_back((written, self.sync));
    }

    /// Only what has a slot is known.
    fn know_slots(&mut self) {
        self.known.clear();
        for (slot, entry) in self.slots.iter_from(self.slots.first()) {
            self.known.insert(entry.stamp.name, Place::Slot(slot));
        }
    }

    // ---------------------------------------------------------------- snapshots and trimming

    /// The summary for a snapshot of all that is executed; `leads` when nothing is unsynced.
    pub fn summary(&self, leads: bool) -> Option<Summary> {
        let whole = leads && self.executed == self.sync;
        let may = whole || self.executed == self.commit;
        may.then(|| self.conflicts.summary(&self.slots, self.executed, whole))
    }

    pub fn on_checkpointed(&mut self, slot: Slot) {
        self.checkpointed = self.checkpointed.max(slot);
    }

    /// Drops what a durable snapshot covers; what hashes are still about stays in them.
    pub fn trim<P: Protocol>(&mut self, ctx: &mut Context<'_, P>) {
        let upto = self.checkpointed.min(self.commit);
        if upto >= self.slots.first() {
            self.conflicts.trim(&self.slots, upto);
        }
        self.drop_upto(upto);
        let kept = self.slots.iter_from(self.checkpointed.next());
        let journals = kept.map(|(_, entry)| entry.journal);
        let unsynced = self.unsynced.values().map(|entry| entry.journal);
        let oldest = journals.chain(unsynced).min();
        let below = self.checkpointed.next();
        ctx.trim(oldest.map_or(below, |oldest| oldest.min(below)));
    }

    fn drop_upto(&mut self, upto: Slot) {
        let (known, conflicts) = (&mut self.known, &mut self.conflicts);
        let mut slot = self.slots.first();
        self.slots.trim(upto.next().max(slot), |entry| {
            conflicts.trimmed(slot, &entry);
            if known.get(&entry.stamp.name) == Some(&Place::Slot(slot)) {
                known.remove(&entry.stamp.name);
            }
            slot = slot.next();
        });
    }

    /// A peer's state covers all up to `slot`, which is committed. False when that is no news.
    pub fn install(&mut self, slot: Slot, summary: Summary) -> bool {
        if slot <= self.commit {
            return false;
        }
        self.drop_upto(slot);
        if self.sync <= slot {
            self.slots.reset(slot.next());
            self.sync = slot;
        }
        self.durable = self.durable.max(slot);
        self.commit = slot;
        self.executed = slot;
        self.checkpointed = slot;
        self.conflicts
            .restart(&self.slots, &self.unsynced, summary, slot);
        true
    }

    // ----------------------------------------------------------------------------- restoring

    /// Takes back what the disk holds.
    pub fn restore<P: Protocol>(
        &mut self,
        checkpoint: Option<(Slot, Summary)>,
        records: Vec<(Slot, Record)>,
        commutativity: bool,
        ctx: &Context<'_, P>,
    ) {
        let mut summary = Summary::default();
        if let Some((slot, told)) = checkpoint {
            summary = told;
            self.slots = SlotLog::new(slot.next());
            self.sync = slot;
            self.commit = slot;
            self.executed = slot;
            self.checkpointed = slot;
        }
        let mut bodies: BTreeMap<Name, Bytes> = BTreeMap::new();
        let read = |deadline, batch, journal| {
            let mut entry = Entry::read(deadline, batch, commutativity, ctx)?;
            entry.journal = journal;
            Some(entry)
        };
        for (journal, record) in records {
            match record {
                Record::Entry(slot, placed) => {
                    let Some(name) = name_of(&placed.batch) else {
                        continue;
                    };
                    bodies.insert(name, placed.batch.clone());
                    let Some(entry) = read(placed.deadline, placed.batch, journal) else {
                        continue;
                    };
                    if slot > Slot(0) {
                        self.restore_slot(slot, entry);
                        continue;
                    }
                    // An earlier entry of this name had left the log.
                    match self.known.get(&name) {
                        Some(Place::Unsynced(before)) => drop(self.unsynced.remove(before)),
                        Some(_) => continue,
                        None => {}
                    }
                    self.known.insert(name, Place::Unsynced(entry.stamp));
                    self.unsynced.insert(entry.stamp, entry);
                }
                Record::Moved(slot, stamp) => {
                    let Some(batch) = bodies.get(&stamp.name).cloned() else {
                        continue;
                    };
                    let before = match self.known.get(&stamp.name) {
                        Some(Place::Unsynced(before)) => self.unsynced.get(before),
                        _ => None,
                    };
                    let journal = before.map_or(journal, |before| before.journal);
                    if let Some(entry) = read(stamp.deadline, batch, journal) {
                        self.restore_slot(slot, entry);
                    }
                }
                Record::Begin { keep, entries, .. } => {
                    let kept = keep.max(self.checkpointed);
                    if kept > self.sync {
                        continue;
                    }
                    self.unsynced.clear();
                    self.slots.truncate(kept.next());
                    self.sync = kept;
                    self.know_slots();
                    for (slot, placed) in (keep.next().0..).map(Slot).zip(entries) {
                        if let Some(entry) = read(placed.deadline, placed.batch, journal) {
                            bodies.insert(entry.stamp.name, entry.batch.clone());
                            self.restore_slot(slot, entry);
                        }
                    }
                }
            }
        }
        self.durable = self.sync;
        self.conflicts
            .restart(&self.slots, &self.unsynced, summary, self.commit);
    }

    fn restore_slot(&mut self, slot: Slot, entry: Entry) {
        if slot > self.sync.next() {
            return;
        }
        let barred_by = (entry.stamp, entry.footprint.clone());
        if let Some(Place::Unsynced(before)) = self.known.get(&entry.stamp.name) {
            self.unsynced.remove(before);
            self.known.remove(&entry.stamp.name);
        }
        // Else the snapshot covers it; but not what it barred.
        if slot == self.sync.next() {
            self.put(slot, entry);
        }
        let _ = self.take_barred(barred_by);
    }

    // ---------------------------------------------------------------------------- invariants

    pub fn assert_invariants(&self, leads: bool) {
        assert!(self.commit <= self.sync, "committed is agreed");
        assert!(self.durable <= self.sync, "durable is held");
        assert_eq!(self.slots.end(), self.sync.next(), "the log has no gaps");
        if !leads && !self.injected.is(Bug::NoRollBack) {
            assert!(self.executed <= self.commit, "only a leader speculates");
        }
    }

    /// The hash is of what is held, looked at now and then.
    pub fn assert_hash(&self) {
        self.conflicts.assert_hash(&self.slots, &self.unsynced);
    }
}

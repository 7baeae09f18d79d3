//! A process with a node per group and one journal for all of them.

use super::clients::Who;
use crate::{
    disk::{Damage, DiskError, Files},
    machine::Record,
    random::Random,
};
use quintet::place::Lending;
use quintet_replica::{
    Bytes, ClockReading, ClusterId, Executed, GroupId, GroupIndex, Injected, Node, PersistId,
    ReplicaId, Slot, SnapshotInfo, Time, TimerKey, World, Write,
    journal::{
        Beginning, Found, GroupEpoch, Identity, Journal, JournalError, JournalOrder, inspect,
        salvage,
    },
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

const SEGMENT: u64 = 16 << 10;

/// An order to the journal.
#[derive(Debug)]
pub(super) enum Order {
    /// The group's number of the write, and the write.
    Write(GroupIndex, PersistId, Write),
    Trim(GroupIndex, Slot),
    /// A snapshot came from a peer.
    Skip(GroupIndex),
}

/// A snapshot on the disk.
#[derive(Debug)]
pub(super) struct Kept {
    pub info: SnapshotInfo,
    pub bytes: Bytes,
    pub fetched: bool,
    pub durable: bool,
}

/// A group of a process.
pub(super) struct Host {
    /// Its place among the world's groups.
    pub group: usize,
    pub node: Option<Node>,
    pub timers: BTreeMap<TimerKey, u64>,
    pub idle_at: u64,
    /// Oldest first.
    pub snapshots: Vec<Kept>,
    /// The one being written.
    pub writing: Option<Kept>,
    pub written: Vec<u8>,
    /// Trims that wait for a snapshot behind the one named.
    pub trims: Vec<(Executed, Slot)>,
    pub record: Record,
    pub incarnation: u64,
    pub fresh: bool,
    /// It lost its state and has not recovered yet.
    pub repairing: bool,
    /// It lost it with the disk.
    disk_lost: bool,
    /// Its operator begins it again, in the place of what all had in memory.
    pub begins_again: bool,
    /// It has recovered when this number of orders is carried out.
    repaired_at: Option<u64>,
    /// The last slot of its log on the disk.
    pub end: Slot,
    pub batch_next: u64,
    /// By batch: who waits for it, and the number of its try.
    pub batches: BTreeMap<u64, (Who, u64)>,
}

/// See the module.
pub(super) struct Process {
    files: Files,
    journal: Option<Journal<Files>>,
    order: JournalOrder,
    waiting: VecDeque<(PersistId, Order)>,
    /// By group: its newest write on the disk.
    committed: Vec<PersistId>,
    /// How many of `waiting` the present sync covers.
    syncing: Option<usize>,
    /// Its journal is lost.
    begins_again: bool,
    /// The groups whose records were set aside at the last start, if there were any.
    pub salvaged: Option<Vec<bool>>,
    /// The number of orders that were ever handed to the journal, and are carried out.
    handed: u64,
    carried_out: u64,
    pub hosts: Vec<Host>,
    /// The states that its shards lend each other.
    pub lending: Arc<Lending>,
    pub up: bool,
    pub boot: u64,
    pub syncs: u64,
    /// Syncs take this many times longer.
    pub slow: u64,
    /// How far its clock is ahead, which it does not know.
    pub ahead: u64,
}

/// The newest durable write of each group, and the length of the next sync.
pub(super) type Synced = (Vec<(GroupIndex, PersistId)>, Option<u64>);

impl Process {
    pub fn new(hosts: Vec<Host>) -> Self {
        Self {
            files: Files::default(),
            journal: None,
            order: JournalOrder::new(hosts.len().max(1)),
            waiting: VecDeque::new(),
            committed: Vec::new(),
            syncing: None,
            begins_again: false,
            salvaged: None,
            handed: 0,
            carried_out: 0,
            hosts,
            lending: Arc::default(),
            up: false,
            boot: 0,
            syncs: 0,
            slow: 1,
            ahead: 0,
        }
    }

    /// Reads the journal; gives what it has of each group. A damaged one is begun again, as at a
    /// start of a real process: with the groups that lack nothing. `keeps`, for each group: it is
    /// kept on the disk.
    pub fn open(
        &mut self,
        cluster: ClusterId,
        node: ReplicaId,
        (groups, keeps): (&[GroupEpoch], &[bool]),
        bug: Injected,
    ) -> Result<Vec<Found>, JournalError<DiskError>> {
        let identity = Identity { cluster, node };
        self.files.recovers(true);
        let files = || self.files.clone();
        let opened = match std::mem::take(&mut self.begins_again) {
            true => {
                let empty = |_: &GroupEpoch| Beginning::Empty { complete: true };
                let empty = groups.iter().map(empty).collect();
                Journal::begin_again(files(), identity, groups, SEGMENT, empty)
            }
            false => Journal::open_injected(files(), identity, groups, SEGMENT, bug),
        };
        let mut lost = vec![false; groups.len()];
        let opened = match opened {
            Err(error) if error.is_damage() => {
                let salvaged = salvage(&mut files(), &identity, groups, bug)?;
                let of_hosts = salvaged.groups.into_iter().zip(&self.hosts).enumerate();
                let beginnings = of_hosts.map(|(at, (found, host))| {
                    let begins = |found: &Found| found.complete || !host.snapshots.is_empty();
                    match found.filter(|found| keeps[at] && begins(found)) {
                        Some(found) => Beginning::Kept(found),
                        None => {
                            lost[at] = keeps[at];
                            Beginning::Empty {
                                complete: host.snapshots.is_empty(),
                            }
                        }
                    }
                });
                let beginnings = beginnings.collect();
                Journal::begin_again(files(), identity, groups, SEGMENT, beginnings)?
            }
            opened => opened?,
        };
        self.files.recovers(false);
        let is_repairing = lost.contains(&true) || self.hosts.iter().any(|host| host.disk_lost);
        for ((host, lost), keeps) in self.hosts.iter_mut().zip(&lost).zip(keeps) {
            if *lost {
                // The log that led from an older snapshot to the newest one is gone.
                let older = host.snapshots.len().saturating_sub(1);
                host.snapshots.drain(..older);
                host.disk_lost = true;
            }
            if *keeps {
                host.repairing = host.disk_lost;
            }
            // The process counts them, for all its groups.
            host.incarnation += u64::from(is_repairing);
        }
        self.salvaged = lost.contains(&true).then_some(lost);
        self.journal = Some(opened.journal);
        self.order = JournalOrder::new(groups.len().max(1)).with_injected(bug);
        self.committed = vec![PersistId(0); groups.len()];
        (self.up, self.boot) = (true, self.boot + 1);
        for (host, found) in self.hosts.iter_mut().zip(&opened.groups) {
            let snapshot = host.snapshots.last().map(|kept| kept.info.id.slot);
            let last = found.records.last().map(|(slot, _)| *slot);
            host.end = snapshot.max(last).unwrap_or_default();
        }
        Ok(opened.groups)
    }

    /// Hands an order to the journal. Gives the length of the sync that begins, if one does.
    pub fn hand(&mut self, order: Order, random: &mut Random) -> Option<u64> {
        let number = match &order {
            Order::Write(group, id, _) => self.order.assign(*group, *id),
            Order::Trim(..) | Order::Skip(_) => PersistId(0),
        };
        self.waiting.push_back((number, order));
        self.handed += 1;
        self.begin_sync(random)
    }

    fn begin_sync(&mut self, random: &mut Random) -> Option<u64> {
        if self.syncing.is_some() || self.waiting.is_empty() {
            return None;
        }
        self.syncing = Some(self.waiting.len());
        Some(random.between(20_000, 400_000) * self.slow)
    }

    /// The sync is done: what is durable now of each group, and the length of the next sync.
    pub fn synced(&mut self, random: &mut Random) -> Result<Synced, JournalError<DiskError>> {
        let count = self.syncing.take().unwrap_or(0);
        let upto = self.carry_out(count)?;
        let told = upto.map(|upto| self.order.durable(upto).to_vec());
        Ok((told.unwrap_or_default(), self.begin_sync(random)))
    }

    fn carry_out(&mut self, count: usize) -> Result<Option<PersistId>, JournalError<DiskError>> {
        let Some(journal) = &mut self.journal else {
            return Ok(None);
        };
        let (mut upto, mut trims) = (None, Vec::new());
        let mut ends = Vec::new();
        for (number, order) in self.waiting.drain(..count.min(self.waiting.len())) {
            self.carried_out += 1;
            match order {
                Order::Write(group, id, write) => {
                    journal.append(group, &write)?;
                    upto = Some(number);
                    self.committed[group.index()] = id;
                    if let Write::Record { slot, .. } = write {
                        ends.push((group, slot));
                    }
                }
                Order::Trim(group, below) => trims.push((group, below)),
                Order::Skip(group) => journal.skip(group)?,
            }
        }
        journal.commit()?;
        self.syncs += u64::from(upto.is_some());
        for (group, slot) in ends {
            self.hosts[group.index()].end = slot;
        }
        for (group, below) in trims {
            journal.trim(group, below)?;
        }
        self.note_repaired();
        Ok(upto)
    }

    /// Whether this write of a group is on the disk.
    pub fn has_committed(&self, group: GroupIndex, id: PersistId) -> bool {
        id <= self.committed[group.index()]
    }

    /// Brings the records of each group forward that is idle and needs more segments than this.
    pub fn release(&mut self, segments: u64) -> Result<u64, JournalError<DiskError>> {
        let Some(journal) = &mut self.journal else {
            return Ok(0);
        };
        let mut done = 0;
        for group in (0..self.hosts.len()).map(GroupIndex::new) {
            let held = journal.held(group);
            if held.bytes > segments * SEGMENT && 4 * held.own < held.bytes {
                done += u64::from(journal.bring_forward(group)?);
            }
        }
        Ok(done)
    }

    /// The process dies; a drawn part of a sync in progress reaches the disk.
    pub fn crash(&mut self, random: &mut Random) {
        self.up = false;
        if let Some(count) = self.syncing.take() {
            self.files.blow(DiskError::PowerLost, random);
            // The next start sees the outcome.
            let _ = self.carry_out(count);
        }
        self.files.died(random);
        self.journal = None;
        self.carried_out = self.handed;
        self.waiting.clear();
        for host in &mut self.hosts {
            host.repaired_at = None;
            host.node = None;
            host.timers.clear();
            host.writing = None;
            host.written.clear();
            host.trims.clear();
            host.batches.clear();
            host.snapshots.retain(|kept| kept.durable);
        }
    }

    /// Logs and states on the disk of a process that is down are gone. Its promises, of which there are
    /// two, are not: without them it would be refused. `keeps`, for each group: it is kept there.
    pub fn lose_disk(&mut self, keeps: &[bool]) {
        self.begins_again = true;
        for (host, keeps) in self.hosts.iter_mut().zip(keeps) {
            host.snapshots.clear();
            host.end = Slot(0);
            host.incarnation += 1;
            (host.disk_lost, host.repairing) = (*keeps, true);
        }
    }

    /// Damages the journal of a process that is down: a record or a few of one group, some blocks, or a
    /// whole segment. False when there is nothing of which the loss would be noticed.
    pub fn rot(&self, identity: &Identity, random: &mut Random) -> bool {
        match random.index(8) {
            0..=4 => {
                let mut records = Vec::new();
                let read = inspect(&mut self.files.clone(), identity, |it| records.push(*it));
                if read.is_err() || records.is_empty() {
                    return false;
                }
                let of = records[random.index(records.len())].group;
                records.retain(|record| record.group == of);
                let count = random.between(1, 3);
                (0..count).fold(false, |any, _| {
                    let record = &records[random.index(records.len())];
                    self.files.damage_record(record, random) || any
                })
            }
            5 => self.files.lose_segment(random),
            _ => {
                let damage = [Damage::Rot, Damage::Lost, Damage::Misdirected][random.index(3)];
                self.files.damage(damage, random)
            }
        }
    }

    /// Lends the protocol of the first group's node to that of a shard, or takes it back; false where
    /// one of them is not there.
    pub fn lend_protocol(&mut self, place: usize) -> bool {
        let (first, rest) = self.hosts.split_at_mut(1);
        let shard = place.checked_sub(1).and_then(|at| rest.get_mut(at));
        match (
            &mut first[0].node,
            shard.and_then(|host| host.node.as_mut()),
        ) {
            (Some(top), Some(shard)) => {
                top.lend_protocol(shard);
                true
            }
            _ => false,
        }
    }

    /// A node's loss is made good when all that it has asked for so far is on the disk.
    pub fn is_repaired(&mut self, place: usize) {
        let at = (self.handed > self.carried_out).then_some(self.handed);
        self.hosts[place].repaired_at = at.or(Some(0));
        self.note_repaired();
    }

    /// The disk's loss is noted as made good for each group, as the process does.
    fn note_repaired(&mut self) {
        let upto = self.carried_out;
        for host in &mut self.hosts {
            if host.repaired_at.is_some_and(|at| at <= upto) {
                (host.repairing, host.disk_lost, host.repaired_at) = (false, false, None);
            }
        }
    }

    /// The place of a group.
    pub fn place(&self, groups: &[GroupId], group: GroupId) -> Option<usize> {
        let mut hosts = self.hosts.iter();
        hosts.position(|host| groups[host.group] == group)
    }
}

impl Host {
    pub fn new(group: usize) -> Self {
        Self {
            group,
            node: None,
            timers: BTreeMap::new(),
            idle_at: u64::MAX,
            snapshots: Vec::new(),
            writing: None,
            written: Vec::new(),
            trims: Vec::new(),
            record: Record::default(),
            incarnation: 1,
            fresh: true,
            repairing: false,
            disk_lost: false,
            begins_again: false,
            repaired_at: None,
            end: Slot(0),
            batch_next: 1,
            batches: BTreeMap::new(),
        }
    }

    /// Its disk was lost, and it has not recovered since.
    pub const fn lost_disk(&self) -> bool {
        self.disk_lost
    }

    /// A state was restored from the disk: a snapshot's file has what follows its state, too.
    pub fn reach(&mut self) {
        let restored = self.node.as_ref().map(|node| node.executed().slot);
        self.end = self.end.max(restored.unwrap_or_default());
    }

    /// The snapshot that comes from a peer, as far as it is here.
    pub fn arriving<'a>(
        writing: Option<&'a Kept>,
        written: &'a [u8],
    ) -> Option<(Executed, &'a [u8])> {
        let kept = writing.filter(|kept| kept.fetched)?;
        let bytes = match kept.info.length {
            0 => written,
            _ => &kept.bytes[..],
        };
        Some((kept.info.id, bytes))
    }

    /// The trim that is due.
    pub fn trim_due(&mut self) -> Option<Slot> {
        let newest = self.snapshots.last()?;
        let (id, fetched) = (newest.info.id, newest.fetched);
        let due = (self.trims.iter())
            .filter(|(of, _)| fetched || id > *of)
            .map(|(_, below)| *below)
            .max();
        self.trims.retain(|(of, _)| !fetched && id <= *of);
        due
    }
}

/// The process, as its nodes see it.
pub(super) struct View<'a> {
    pub now: u64,
    /// How far its clock is ahead.
    pub ahead: u64,
    pub snapshots: &'a [Kept],
    /// The one that comes from a peer, as far as it is here.
    pub arriving: Option<(Executed, &'a [u8])>,
}

impl World for View<'_> {
    fn now(&self) -> Time {
        Time(self.now)
    }

    fn clock(&self) -> ClockReading {
        let now = self.now + self.ahead;
        ClockReading {
            now,
            earliest: now.saturating_sub(1_000),
            latest: now + 1_000,
            deviation: 300,
        }
    }

    fn room(&self, _: ReplicaId) -> usize {
        64 << 20
    }

    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        self.snapshots.last().map(|kept| kept.info)
    }

    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        let from = usize::try_from(offset).ok()?;
        let part = |length_of: usize| from.min(length_of)..length_of.min(from + length);
        if let Some((_, bytes)) = self.arriving.filter(|(of, _)| *of == id) {
            return Some(Bytes::copy_from_slice(&bytes[part(bytes.len())]));
        }
        let kept = self.snapshots.iter().rfind(|kept| kept.info.id == id)?;
        Some(kept.bytes.slice(part(kept.bytes.len())))
    }
}

//! Algorithm 2 by itself: who holds which batches, and what is completed.
//!
//! ```text
//!   submit ──► queue ─ extend ─► own chain ─ on_durable ─► own vote ─┐
//!              others' chains ◄─ on_new      on_vote ────────────────┴► complete ──► ranges
//!              executed ──► history (for others) ─ trim_history ─► gone, covered by snapshots
//! ```
//!
//! An inner machine: it has no timers, sends nothing and writes nothing by itself.

use super::name::{Head, Heads, Message, Name, RANGE_MAX, Range};
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec,
    vec::Vec,
};
use quintet_replica::{
    Bytes, ReplicaId, Slot,
    parts::{RequestKey, request_key},
};

#[derive(Hash)]
struct Held {
    batch: Bytes,
    /// The slot under which the journal has it.
    written: Option<Slot>,
    durable: bool,
    /// The slot that it was executed in.
    executed: Option<Slot>,
}

/// State of one member's chain.
#[derive(Clone, Copy, Default, Hash)]
struct Chain {
    /// The newest chain that was heard of.
    number: u64,
    /// Up to where it is held here, durably.
    held: u64,
    /// Up to where a quorum holds it, as its creator says.
    completed: u64,
    /// It is owed a vote.
    vote_due: bool,
}

/// One replica's part in Algorithm 2; see the module above.
#[derive(Hash)]
pub struct Chains {
    id: ReplicaId,
    quorum: usize,
    chains: Vec<Chain>,
    /// The executed part of each member's chains.
    covered: Heads,
    held: BTreeMap<Name, Held>,
    held_bytes: usize,
    /// Executed ones, oldest first.
    history: VecDeque<Name>,
    history_bytes: usize,
    /// Executed ones that are not held any more, and that no snapshot of this replica covers:
    /// where they were executed and where they stand in the journal.
    dropped: Vec<(Slot, Slot)>,
    /// Own batches that wait for the window.
    queue: VecDeque<Bytes>,
    /// Own batches that wait, or that are in the chain and not executed.
    in_flight: BTreeSet<RequestKey>,
    /// The last own round.
    newest: u64,
    own_bytes: usize,
    /// Up to where each member holds the own chain.
    votes: Vec<u64>,
    announce: bool,
}

impl Chains {
    /// Nothing yet, in a group of that many members.
    #[must_use]
    pub fn new(id: ReplicaId, members: usize, quorum: usize) -> Self {
        Self {
            id,
            quorum,
            chains: vec![Chain::default(); members],
            covered: vec![Head::default(); members],
            held: BTreeMap::new(),
            held_bytes: 0,
            history: VecDeque::new(),
            history_bytes: 0,
            dropped: Vec::new(),
            queue: VecDeque::new(),
            in_flight: BTreeSet::new(),
            newest: 0,
            own_bytes: 0,
            votes: vec![0; members],
            announce: false,
        }
    }

    /// Begins the own chain of this start. Its number must be durable before the first batch of it
    /// is shown, and higher than that of any start before.
    pub fn begin(&mut self, chain: u64) {
        let own = &mut self.chains[self.id.index()];
        *own = Chain {
            number: chain,
            ..Chain::default()
        };
    }

    /// The number of the own chain.
    #[must_use]
    pub fn chain(&self) -> u64 {
        self.chains[self.id.index()].number
    }

    /// The executed part of each member's chains.
    #[must_use]
    pub fn covered(&self) -> &[Head] {
        &self.covered
    }

    /// How many batches are held, executed or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True when nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// True when no member is known to have completed anything.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.chains.iter().all(|chain| chain.completed == 0)
    }

    /// The last own round.
    #[must_use]
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// The bytes of what is held.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.held_bytes
    }

    /// Own rounds that are not executed yet, or that wait.
    #[must_use]
    pub fn unfinished(&self) -> bool {
        !self.queue.is_empty() || self.newest > self.own_done()
    }

    /// The last own round that was executed.
    fn own_done(&self) -> u64 {
        self.done(self.id)
    }

    /// The last round of a member's newest chain that was executed.
    fn done(&self, creator: ReplicaId) -> u64 {
        let covered = self.covered[creator.index()];
        if covered.chain == self.chains[creator.index()].number {
            covered.round
        } else {
            0
        }
    }

    /// An own batch is to be replicated. A batch in progress is not begun again.
    pub fn submit(&mut self, key: RequestKey, batch: Bytes) {
        if self.in_flight.insert(key) {
            self.queue.push_back(batch);
        }
    }

    /// Forgets those of the batches that wait of which this is true.
    pub fn drop_waiting(&mut self, gone: &dyn Fn(RequestKey) -> bool) {
        let in_flight = &mut self.in_flight;
        self.queue.retain(|batch| {
            let key = request_key(batch).filter(|key| gone(*key));
            key.is_none_or(|key| !in_flight.remove(&key))
        });
    }

    /// Moves what waits into the chain, as far as a window of this many rounds and bytes allows:
    /// the names of what is new. The host writes and sends them.
    pub fn extend(&mut self, window: u64, bytes_max: usize) -> Vec<Name> {
        let mut new = Vec::new();
        while let Some(batch) = self.queue.front() {
            let outstanding = self.newest - self.own_done();
            let full = outstanding >= window
                || (outstanding > 0 && self.own_bytes + batch.len() > bytes_max);
            if full {
                break;
            }
            let Some(batch) = self.queue.pop_front() else {
                break;
            };
            self.newest += 1;
            self.own_bytes += batch.len();
            let name = self.own_name(self.newest);
            self.hold(name, batch);
            new.push(name);
        }
        new
    }

    fn own_name(&self, round: u64) -> Name {
        Name {
            creator: self.id,
            chain: self.chain(),
            round,
        }
    }

    fn hold(&mut self, name: Name, batch: Bytes) {
        self.held_bytes += batch.len();
        let held = Held {
            batch,
            written: None,
            durable: false,
            executed: None,
        };
        self.held.insert(name, held);
    }

    fn let_go(&mut self, name: Name) {
        if let Some(held) = self.held.remove(&name) {
            self.held_bytes -= held.batch.len();
        }
    }

    /// A member shows batches of its chain, and how much of it is completed. The names that the
    /// host has to write; then it says [`Self::on_durable`]. Not more than that many bytes are held
    /// before they are executed: what is left out is fetched when it is needed.
    pub fn on_new(
        &mut self,
        first: Name,
        batches: Vec<Bytes>,
        completed: u64,
        bytes_max: usize,
    ) -> Vec<Name> {
        let Some(chain) = self.chains.get_mut(first.creator.index()) else {
            return Vec::new();
        };
        if first.creator == self.id || first.chain < chain.number {
            return Vec::new();
        }
        if first.chain > chain.number {
            *chain = Chain {
                number: first.chain,
                ..Chain::default()
            };
        }
        chain.completed = chain.completed.max(completed);
        chain.vote_due = true;
        let done = self.done(first.creator);
        let behind = self.covered[first.creator.index()].chain > first.chain;
        let mut write = Vec::new();
        for (round, batch) in (first.round..).zip(batches) {
            let name = Name { round, ..first };
            if behind || round <= done || round > done + RANGE_MAX {
                continue;
            }
            match self.held.get(&name) {
                Some(held) if held.written.is_some() => {}
                Some(_) => write.push(name),
                None => {
                    let waiting = self.held_bytes.saturating_sub(self.history_bytes);
                    if waiting + batch.len() > bytes_max {
                        break;
                    }
                    self.hold(name, batch);
                    write.push(name);
                }
            }
        }
        write
    }

    /// The journal has been asked to keep this batch under that slot.
    pub fn written(&mut self, name: Name, slot: Slot) {
        if let Some(held) = self.held.get_mut(&name) {
            held.written = Some(slot);
        }
    }

    /// A batch is durable here.
    pub fn on_durable(&mut self, name: Name) {
        if let Some(held) = self.held.get_mut(&name) {
            held.durable = true;
        }
        if self.chains[name.creator.index()].number == name.chain {
            self.chains[name.creator.index()].vote_due = true;
        }
    }

    /// From the journal, at a restart.
    pub fn restore(&mut self, name: Name, batch: Bytes, slot: Slot) {
        if name.creator.index() >= self.covered.len() || self.is_covered(name) {
            return;
        }
        self.let_go(name);
        self.hold(name, batch);
        if let Some(held) = self.held.get_mut(&name) {
            held.written = Some(slot);
            held.durable = true;
        }
        let chain = &mut self.chains[name.creator.index()];
        chain.number = chain.number.max(name.chain);
    }

    fn is_covered(&self, name: Name) -> bool {
        let covered = self.covered[name.creator.index()];
        (name.chain, name.round) <= (covered.chain, covered.round)
    }

    /// How far a member's newest chain is held here without a gap, durably.
    fn advance(&mut self, creator: ReplicaId) -> u64 {
        let done = self.done(creator);
        let chain = &mut self.chains[creator.index()];
        let mut round = chain.held.max(done);
        let name = |round| Name {
            creator,
            chain: chain.number,
            round,
        };
        while self
            .held
            .get(&name(round + 1))
            .is_some_and(|held| held.durable)
        {
            round += 1;
        }
        chain.held = round;
        round
    }

    /// The votes that are owed: to whom, for which chain, up to which round; 0 is no vote.
    pub fn take_votes(&mut self) -> Vec<(ReplicaId, u64, u64)> {
        let mut votes = Vec::new();
        for index in 0..self.chains.len() {
            let creator = ReplicaId(index as u16);
            if !core::mem::take(&mut self.chains[index].vote_due) {
                continue;
            }
            let round = self.advance(creator);
            if creator == self.id {
                self.votes[index] = round;
            } else {
                votes.push((creator, self.chains[index].number, round));
            }
        }
        votes
    }

    /// A member holds the own chain up to there.
    pub fn on_vote(&mut self, from: ReplicaId, chain: u64, round: u64) {
        if chain == self.chain()
            && round <= self.newest
            && let Some(vote) = self.votes.get_mut(from.index())
        {
            *vote = (*vote).max(round);
        }
    }

    /// A member has lost what it held.
    pub fn forget(&mut self, peer: ReplicaId) {
        if peer != self.id
            && let Some(vote) = self.votes.get_mut(peer.index())
        {
            *vote = 0;
        }
    }

    /// Counts the votes. True when the own head has risen: the others are to be told.
    pub fn complete(&mut self) -> bool {
        let mut votes = self.votes.clone();
        votes.sort_unstable_by(|a, b| b.cmp(a));
        let quorum = votes.get(self.quorum - 1).copied().unwrap_or(0);
        let own = &mut self.chains[self.id.index()];
        let risen = quorum > own.completed;
        own.completed = own.completed.max(quorum);
        self.announce |= risen;
        risen
    }

    /// Whether the others do not know yet how far the own chain is completed.
    pub fn take_announcement(&mut self) -> bool {
        core::mem::take(&mut self.announce)
    }

    /// The own batches above `round` and up to `last`, about this many bytes of them: the message
    /// that shows them, or only how much is completed.
    #[must_use]
    pub fn show(&self, round: u64, last: u64, bytes_max: usize) -> Message {
        let first = self.own_name(round.max(self.own_done()).min(self.newest) + 1);
        let mut batches = Vec::new();
        let mut bytes = 0;
        for round in first.round..=self.newest.min(last) {
            let name = self.own_name(round);
            let Some(held) = self.held.get(&name) else {
                break;
            };
            bytes += held.batch.len() + 4;
            if !batches.is_empty() && bytes > bytes_max {
                break;
            }
            batches.push(held.batch.clone());
        }
        Message::New {
            first,
            batches,
            completed: self.chains[self.id.index()].completed,
            stamp: 0,
        }
    }

    /// Up to where a member holds the own chain.
    #[must_use]
    pub fn vote_of(&self, peer: ReplicaId) -> u64 {
        self.votes.get(peer.index()).copied().unwrap_or(0)
    }

    /// The completed rounds behind `from`, at most that many: what a block with these heads below
    /// it may name.
    #[must_use]
    pub fn ranges(&self, from: &[Head], count_max: u64) -> Vec<Range> {
        let mut left = count_max.min(RANGE_MAX);
        let mut ranges = Vec::new();
        for (index, (chain, below)) in self.chains.iter().zip(from).enumerate() {
            let round = match below.chain.cmp(&chain.number) {
                core::cmp::Ordering::Less => 0,
                core::cmp::Ordering::Equal => below.round,
                core::cmp::Ordering::Greater => continue,
            };
            let last = chain.completed.min(round + left);
            if last <= round {
                continue;
            }
            left -= last - round;
            let first = Name {
                creator: ReplicaId(index as u16),
                chain: chain.number,
                round: round + 1,
            };
            ranges.push(Range { first, last });
        }
        ranges
    }

    /// A batch that is held.
    #[must_use]
    pub fn batch(&self, name: Name) -> Option<&Bytes> {
        self.held.get(&name).map(|held| &held.batch)
    }

    /// The part of a range that is neither held nor executed.
    #[must_use]
    pub fn missing(&self, range: Range) -> Option<Range> {
        if range.first.creator.index() >= self.covered.len() {
            return None;
        }
        let first = range
            .names()
            .find(|name| !self.held.contains_key(name) && !self.is_covered(*name))?;
        Some(Range { first, ..range })
    }

    /// Accepts batches that this replica requested. Returns the names that the host has to write:
    /// a recovering replica must hold such a batch like a replica that voted for it.
    pub fn on_found(&mut self, first: Name, batches: Vec<Bytes>) -> Vec<Name> {
        let mut new = Vec::new();
        for (round, batch) in (first.round..).zip(batches) {
            let name = Name { round, ..first };
            if name.creator.index() < self.covered.len()
                && !self.is_covered(name)
                && !self.held.contains_key(&name)
            {
                self.hold(name, batch);
                new.push(name);
            }
        }
        new
    }

    /// The first batches of a requested range, about that many bytes. None when they were held once
    /// and are not any more.
    #[must_use]
    pub fn find(&self, range: Range, bytes_max: usize) -> Option<Vec<Bytes>> {
        let mut batches = Vec::new();
        let mut bytes = 0;
        for name in range.names() {
            let Some(held) = self.held.get(&name) else {
                break;
            };
            bytes += held.batch.len() + 4;
            if !batches.is_empty() && bytes > bytes_max {
                break;
            }
            batches.push(held.batch.clone());
        }
        let gone = batches.is_empty()
            && range.first.creator.index() < self.covered.len()
            && self.is_covered(range.first);
        (!gone).then_some(batches)
    }

    /// A batch is executed in this slot; its turn came in the order of its chain.
    pub fn executed(&mut self, name: Name, slot: Slot) {
        let Some(covered) = self.covered.get_mut(name.creator.index()) else {
            return;
        };
        let head = Head {
            chain: name.chain,
            round: name.round,
        };
        assert!(
            head > *covered,
            "batch {name:?} is executed after {covered:?}"
        );
        let newer = head.chain > covered.chain;
        *covered = head;
        if let Some(held) = self.held.get_mut(&name) {
            held.executed = Some(slot);
            self.history_bytes += held.batch.len();
            self.history.push_back(name);
            let key = request_key(&held.batch);
            if name.creator == self.id {
                self.finished(name, key);
            }
        }
        if newer {
            self.drop_older(name);
        }
    }

    fn finished(&mut self, name: Name, key: Option<RequestKey>) {
        if let Some(key) = key {
            self.in_flight.remove(&key);
        }
        if name.chain == self.chain()
            && let Some(held) = self.held.get(&name)
        {
            self.own_bytes -= held.batch.len();
        }
    }

    /// Batches of a creator's older chains that were not ordered never will be.
    fn drop_older(&mut self, than: Name) {
        let from = Name {
            chain: 0,
            round: 0,
            ..than
        };
        let to = Name { round: 0, ..than };
        let old: Vec<Name> = self
            .held
            .range(from..to)
            .filter(|(_, held)| held.executed.is_none())
            .map(|(name, _)| *name)
            .collect();
        for name in old {
            self.let_go(name);
        }
    }

    /// A state was installed that covers these heads.
    pub fn install(&mut self, heads: &[Head]) {
        let own_before = self.own_done();
        for (covered, head) in self.covered.iter_mut().zip(heads) {
            *covered = (*covered).max(*head);
        }
        let own = self.own_done().min(self.newest);
        for round in own_before + 1..=own {
            let name = self.own_name(round);
            let key = self.batch(name).and_then(|batch| request_key(batch));
            self.finished(name, key);
        }
        let gone: Vec<Name> = self
            .held
            .keys()
            .copied()
            .filter(|name| self.is_covered(*name))
            .collect();
        for name in gone {
            self.let_go(name);
        }
        self.history.clear();
        self.history_bytes = 0;
        self.dropped.clear();
        for chain in &mut self.chains {
            chain.vote_due = true;
        }
    }

    /// Keeps at most that many bytes of executed batches.
    pub fn trim_history(&mut self, bytes_max: usize) {
        while self.history_bytes > bytes_max {
            let Some(name) = self.history.pop_front() else {
                break;
            };
            let Some(held) = self.held.get(&name) else {
                continue;
            };
            self.history_bytes -= held.batch.len();
            if let (Some(executed), Some(written)) = (held.executed, held.written) {
                self.dropped.push((executed, written));
            }
            self.let_go(name);
        }
    }

    /// A snapshot of this replica covers everything up to `slot`: which batches the host must write
    /// again before the journal is trimmed, because no snapshot has them yet.
    pub fn rewrite(&mut self, slot: Slot) -> Vec<Name> {
        self.dropped.retain(|(executed, _)| *executed > slot);
        self.held
            .iter()
            .filter(|(_, held)| held.written.is_some_and(|written| written <= slot))
            .filter(|(_, held)| held.executed.is_none_or(|executed| executed > slot))
            .map(|(name, _)| *name)
            .collect()
    }

    /// Below which slot the journal may be trimmed after [`Self::rewrite`].
    #[must_use]
    pub fn trim_below(&self, slot: Slot) -> Slot {
        let dropped = self.dropped.iter().map(|(_, written)| *written).min();
        slot.next().min(dropped.unwrap_or(slot.next()))
    }

    /// The batches that are held and not executed: a replica that lost its state must have them
    /// before it counts.
    #[must_use]
    pub fn inventory(&self) -> Vec<Range> {
        let mut ranges: Vec<Range> = Vec::new();
        for (name, held) in &self.held {
            if held.executed.is_some() {
                continue;
            }
            if let Some(range) = ranges.last_mut()
                && (range.first.creator, range.first.chain) == (name.creator, name.chain)
                && range.last + 1 == name.round
                && range.count() < RANGE_MAX
            {
                range.last += 1;
            } else {
                let last = name.round;
                ranges.push(Range { first: *name, last });
            }
        }
        ranges
    }

    /// The invariants.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_invariants(&self) {
        let own = &self.chains[self.id.index()];
        assert!(
            own.completed <= self.newest,
            "only what was made is completed"
        );
        assert!(
            self.votes.iter().all(|vote| *vote <= self.newest),
            "votes are for what was made"
        );
        assert!(self.own_done() <= self.newest, "and so is what is executed");
        let bytes: usize = self.held.values().map(|held| held.batch.len()).sum();
        assert!(bytes == self.held_bytes, "what is held is counted");
    }
}

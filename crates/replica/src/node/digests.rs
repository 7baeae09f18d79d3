//! Comparing this replica's state with the others', at positions that ordered ticks name.
//!
//! ```text
//!   leader ──► Tick{digest} ──ordered──► every replica begins to hash its state as of there
//!                                           │ a slice a millisecond, between batches
//!              frames, all to all ◄─────────┘ when it cannot be undone any more
//!                     │
//!                     ▼
//!   same position: a majority agrees, this one differs ──► not ready until its state is replaced
//!                  a majority agrees, a peer differs ────► alarm that names it
//!                  they differ without a majority ───────► alarm, after a while for late digests
//! ```
//!
//! The node keeps a few digests of each replica.

use super::*;
use crate::{DIGEST_TICK, Position, StateDigest};
use alloc::string::ToString;
use core::fmt;

/// Digests kept of each replica.
const KEPT_MAX: usize = 8;
/// About this many bytes are hashed in a slice: a tenth of a millisecond or two.
const SLICE: usize = 256 * 1024;
/// Between two slices, so that commands have most of the time.
const SLICE_PAUSE: Duration = Duration::from_millis(1);
/// Digests that differ without a majority may be decided by one that is late.
const GRACE: Duration = Duration::from_secs(10);
/// After this a tick that the leader should have ordered is asked for by the others, one after
/// another.
const STEP_IN_AFTER: Duration = Duration::from_secs(2);

/// The consequence for a replica in the minority.
const FETCH_AGAIN: &str = "Stop it, delete 'journal' and 'snapshots' in its data directory and \
                           nothing else, and start it again: it fetches the state from the others";

/// How states differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// A majority of the replicas has another state than this one.
    Minority,
    /// A majority has one state, and these replicas have others.
    Peers(ReplicaSet),
    /// No state is that of a majority.
    NoMajority,
}

/// States that differ at the same position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// How.
    pub difference: Difference,
    /// At which position.
    pub position: Position,
    /// This replica's digest there; 0 when it has none.
    pub own: u128,
    /// The majority's; where there is none, that of another replica.
    pub other: u128,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (position, own, other) = (self.position.0, self.own, self.other);
        match self.difference {
            Difference::Minority => write!(
                f,
                "this replica's state differs from that of a majority: at position {position} its \
                 digest is {own:032x}, the majority's {other:032x}. {FETCH_AGAIN}"
            ),
            Difference::Peers(peers) => {
                let ids = peers.iter().map(|id| id.0.to_string());
                let ids = ids.collect::<Vec<_>>().join(", ");
                write!(
                    f,
                    "the state of replica {ids} differs from that of a majority: at position \
                     {position} the majority's digest is {other:032x}. {FETCH_AGAIN}"
                )
            }
            Difference::NoMajority => write!(
                f,
                "the replicas' states differ and no majority agrees: at position {position} this \
                 replica's digest is {own:032x}, another's {other:032x}. Compare what the replicas \
                 answer, save a snapshot of one that is right, and restore it into a new cluster"
            ),
        }
    }
}

/// The state of a node's digests, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestStatus {
    /// The newest one that is final.
    pub newest: Option<StateDigest>,
    /// The newest position at which a majority, this replica among them, has one state.
    pub agreed: Option<Position>,
    /// The present divergence, until a later position shows that it has ended. A replica that is in
    /// the minority stays there until its state is replaced.
    pub divergence: Option<Divergence>,
    /// How many were finished since the process began.
    pub finished: u64,
}

impl DigestStatus {
    /// Whether this replica's state is known to be another than the majority's.
    #[must_use]
    pub fn is_minority(&self) -> bool {
        let difference = self.divergence.map(|divergence| divergence.difference);
        difference == Some(Difference::Minority)
    }
}

/// Digests by position, as they go from one replica to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept(BTreeMap<Position, u128>);

impl Kept {
    fn keep(&mut self, position: Position, digest: u128) {
        self.0.insert(position, digest);
        while self.0.len() > KEPT_MAX {
            self.0.pop_first();
        }
    }
}

impl Wire for Kept {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.length(self.0.len());
        for (position, digest) in &self.0 {
            writer.u64(position.0);
            writer.u128(*digest);
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let mut kept = Self::default();
        for _ in 0..reader.length(24, "digests")? {
            kept.keep(Position(reader.u64("position")?), reader.u128("digest")?);
        }
        Ok(kept)
    }
}

/// A node's part in comparing states.
pub(super) struct Digests {
    /// Between two digests; zero: this replica asks for none.
    interval: Duration,
    /// When the next one is to be asked for; `None` until the first turn.
    due: Option<Time>,
    /// The state has just been restored: a digest shows whether it is the others'.
    wanted: bool,
    /// A tick that is to be ordered, and one that failed.
    open: Option<BatchId>,
    failed: bool,
    asking_at: Option<Time>,
    /// The digest that slices are set for.
    slicing: Option<Executed>,
    /// Finished, of a state that may still be undone.
    waiting: VecDeque<StateDigest>,
    own: Kept,
    theirs: BTreeMap<ReplicaId, Kept>,
    /// Digests that differ without a majority, which is an alarm when none is late.
    undecided: Option<Divergence>,
    status: DigestStatus,
}

impl Digests {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval,
            due: None,
            wanted: false,
            open: None,
            failed: false,
            asking_at: None,
            slicing: None,
            waiting: VecDeque::new(),
            own: Kept::default(),
            theirs: BTreeMap::new(),
            undecided: None,
            status: DigestStatus::default(),
        }
    }

    pub(super) const fn status(&self) -> DigestStatus {
        self.status
    }

    /// The timer for the next tick fired: it is looked at on this turn.
    pub(super) fn ask_again(&mut self) {
        self.asking_at = None;
    }

    /// The state has been replaced by a snapshot's.
    pub(super) fn restored(&mut self) {
        self.waiting.clear();
        self.own = Kept::default();
        self.wanted = true;
        if self.status.is_minority() {
            self.status.divergence = None;
        }
    }

    /// The epoch has ended: what was asked for in it will not come.
    pub(super) fn epoch_ended(&mut self) {
        (self.open, self.failed, self.asking_at) = (None, false, None);
        self.slicing = None;
    }

    /// These are the members from now on: of others nothing is known, and none of them differs.
    pub(super) fn keep_members(&mut self, members: ReplicaSet) {
        self.theirs.retain(|id, _| members.contains(*id));
        let gone = |divergence: &mut Divergence| match &mut divergence.difference {
            Difference::Peers(peers) => {
                *peers = ReplicaSet(peers.0 & members.0);
                peers.is_empty()
            }
            Difference::Minority | Difference::NoMajority => false,
        };
        self.status.divergence.take_if(gone);
    }

    /// Execution above `slot` is undone.
    pub(super) fn rolled_back(&mut self, slot: Slot) {
        self.waiting.retain(|digest| digest.executed.slot <= slot);
    }

    /// Whether it was a tick of these; then it is finished.
    pub(super) fn done(&mut self, batch: BatchId, outcome: &Outcome) -> bool {
        let own = self.open.take_if(|open| *open == batch).is_some();
        self.failed |= own && !matches!(outcome, Outcome::Results(_));
        own
    }

    /// The known digests of a position, each with the replicas that have it.
    fn known(&self, position: Position, me: ReplicaId) -> BTreeMap<u128, ReplicaSet> {
        let mut known = BTreeMap::<u128, ReplicaSet>::new();
        let own = [(&me, &self.own)].into_iter();
        for (id, kept) in own.chain(&self.theirs) {
            if let Some(digest) = kept.0.get(&position) {
                let set = known.entry(*digest).or_insert(ReplicaSet::EMPTY);
                *set = set.with(*id);
            }
        }
        known
    }
}

impl Node {
    /// Takes part in comparing states: asks for digests, and hashes.
    pub(super) fn step_digests(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        self.begin_slices(world, out);
        if self.maybe_ask_for_digest(world, out) {
            self.carry_out(world, out);
            // It may have been ordered and executed at once.
            self.begin_slices(world, out);
        }
        self.carry_out(world, out);
    }

    /// Begins to hash where a tick has named the position.
    pub(super) fn begin_slices(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let begun = self.executor.digesting();
        if begun == self.digests.slicing {
            return;
        }
        self.digests.slicing = begun;
        if begun.is_some() {
            self.digests.due = Some(world.now() + self.digests.interval);
            self.digests.wanted = false;
            self.digest_slice(world, out);
        }
    }

    /// Hashes a slice of the state, and sets the time for the next.
    pub(super) fn digest_slice(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        if let Some(digest) = self.executor.digest_step(SLICE) {
            self.digests.slicing = None;
            self.digests.waiting.push_back(digest);
            if self.digests.waiting.len() > KEPT_MAX {
                self.digests.waiting.pop_front();
            }
            self.finish_digests(world, out);
        } else if self.executor.digesting().is_some() {
            out.push(Output::SetTimer {
                key: node_timer(TIMER_DIGEST_SLICE),
                at: Deadline::At(world.now() + SLICE_PAUSE),
            });
        }
    }

    /// Tells the others of digests whose state cannot be undone any more.
    pub(super) fn finish_digests(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let stable = self.executor.stable();
        while let Some(digest) = self.digests.waiting.front().copied()
            && digest.executed.slot <= stable
        {
            self.digests.waiting.pop_front();
            let position = digest.executed.position;
            self.digests.own.keep(position, digest.digest);
            self.digests.status.newest = Some(digest);
            self.digests.status.finished += 1;
            out.push(Output::Digest(digest));
            let mut writer = Writer::new(&mut self.scratch);
            self.digests.own.encode(&mut writer);
            let frame = writer.finish();
            let others = match self.is_learner() {
                true => ReplicaSet::EMPTY,
                false => self.voters.set().without(self.id),
            };
            let others = self.succession.running(others);
            if !others.is_empty() {
                out.push(Output::Send {
                    to: Recipients::Replicas(others),
                    lane: Lane::Control,
                    frame: self.wrap(FrameKind::Digests, frame),
                });
            }
            self.compare_digests(position, world, out);
        }
    }

    /// A peer's digests.
    pub(super) fn on_digests(
        &mut self,
        from: ReplicaId,
        theirs: Kept,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let before = self.digests.theirs.insert(from, theirs.clone());
        let before = before.unwrap_or_default();
        for (position, digest) in theirs.0 {
            // Digests compared before may have been repaired since.
            if before.0.get(&position) != Some(&digest) {
                self.compare_digests(position, world, out);
            }
        }
    }

    fn compare_digests(&mut self, position: Position, world: &dyn World, out: &mut Vec<Output>) {
        let known = self.digests.known(position, self.id);
        let own = self.digests.own.0.get(&position).copied();
        let majority = (known.iter())
            .find(|(_, who)| self.voters.is_majority(**who))
            .map(|(digest, who)| (*digest, *who));
        let found = match majority {
            Some((digest, _)) if own.is_some_and(|own| own != digest) => {
                Some((Difference::Minority, digest))
            }
            Some((digest, _)) if known.len() > 1 => {
                let others = known.iter().filter(|(other, _)| **other != digest);
                let peers =
                    others.fold(ReplicaSet::EMPTY, |all, (_, who)| ReplicaSet(all.0 | who.0));
                Some((Difference::Peers(peers), digest))
            }
            Some(_) => None,
            None if known.len() > 1 => {
                if self.digests.undecided.is_none() {
                    let other = known.keys().copied().find(|digest| Some(*digest) != own);
                    self.digests.undecided = Some(Divergence {
                        difference: Difference::NoMajority,
                        position,
                        own: own.unwrap_or_default(),
                        other: other.unwrap_or_default(),
                    });
                    out.push(Output::SetTimer {
                        key: node_timer(TIMER_DIGEST_GRACE),
                        at: Deadline::At(world.now() + GRACE),
                    });
                }
                return;
            }
            None => return,
        };
        let undecided = &mut self.digests.undecided;
        undecided.take_if(|undecided| undecided.position <= position);
        if let (Some((digest, who)), Some(own)) = (majority, own)
            && digest == own
        {
            let agreed = self.digests.status.agreed.max(Some(position));
            self.digests.status.agreed = agreed;
            self.clear_divergence(position, who);
        }
        if let Some((difference, other)) = found {
            let own = own.unwrap_or_default();
            let found = Divergence {
                difference,
                position,
                own,
                other,
            };
            self.diverged(found, out);
        }
    }

    /// A divergence at an earlier position may have been repaired.
    fn clear_divergence(&mut self, position: Position, agree: ReplicaSet) {
        let repaired = |divergence: &mut Divergence| match divergence.difference {
            Difference::Minority => false,
            Difference::Peers(peers) => peers.iter().all(|peer| agree.contains(peer)),
            Difference::NoMajority => true,
        };
        let divergence = &mut self.digests.status.divergence;
        divergence.take_if(|earlier| earlier.position <= position && repaired(earlier));
    }

    /// Digests still differ without a majority.
    pub(super) fn on_digest_grace(&mut self, out: &mut Vec<Output>) {
        if let Some(undecided) = self.digests.undecided.take() {
            self.diverged(undecided, out);
        }
    }

    fn diverged(&mut self, found: Divergence, out: &mut Vec<Output>) {
        let earlier = self.digests.status.divergence;
        let is_known = earlier.is_some_and(|earlier| {
            earlier.difference == Difference::Minority
                || earlier.position > found.position
                || (earlier.position, earlier.difference) == (found.position, found.difference)
        });
        if is_known {
            return;
        }
        self.digests.status.divergence = Some(found);
        // Said once: one that stays different at each position is no news.
        if earlier.is_none_or(|earlier| earlier.difference != found.difference) {
            out.push(Output::Diverged(found));
        }
        if found.difference == Difference::Minority
            && self.replica.status(self.group).leader == Some(self.id)
        {
            self.events.push_back(Event::Control(Control::HandOff));
        }
    }

    /// Has a tick ordered when it is time; whether it was submitted.
    fn maybe_ask_for_digest(&mut self, world: &dyn World, out: &mut Vec<Output>) -> bool {
        let interval = self.digests.interval;
        let open = self.digests.open.is_some() || self.executor.has_seal();
        if interval.is_zero() || self.voters.len() < 2 || open {
            return false;
        }
        let now = world.now();
        let mut due = *self.digests.due.get_or_insert(now + interval);
        if core::mem::take(&mut self.digests.failed) {
            due = now + STEP_IN_AFTER;
            self.digests.due = Some(due);
        } else if self.digests.wanted {
            due = due.min(now);
        } else if now >= due {
            // The leader asks; the others step in one after another when it does not.
            let turn = match self.replica.status(self.group).leader {
                Some(leader) if leader == self.id => 0,
                Some(_) => u32::from(self.id.0) + 1,
                None => u32::from(self.id.0),
            };
            due = due + STEP_IN_AFTER * turn;
        }
        if now < due {
            if self.digests.asking_at != Some(due) {
                self.digests.asking_at = Some(due);
                out.push(Output::SetTimer {
                    key: node_timer(TIMER_DIGEST_ASK),
                    at: Deadline::At(due),
                });
            }
            return false;
        }
        self.digests.due = Some(now + interval);
        self.digests.wanted = false;
        let id = self.submit_tick(DIGEST_TICK, world);
        self.digests.open = Some(id);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_that_is_none_any_more_does_not_differ() {
        let (one, two) = (ReplicaId(1), ReplicaId(2));
        let both = ReplicaSet::EMPTY.with(one).with(two);
        let mut digests = Digests::new(Duration::ZERO);
        digests.theirs.insert(one, Kept::default());
        digests.theirs.insert(two, Kept::default());
        digests.status.divergence = Some(Divergence {
            difference: Difference::Peers(both),
            position: Position(7),
            own: 1,
            other: 1,
        });
        digests.keep_members(ReplicaSet::all(4).without(one));
        let left = digests.status.divergence.map(|it| it.difference);
        let alone = ReplicaSet::EMPTY.with(two);
        assert_eq!(left, Some(Difference::Peers(alone)), "the other one does");
        assert_eq!(digests.theirs.keys().collect::<Vec<_>>(), [&two]);
        digests.keep_members(ReplicaSet::all(2));
        assert_eq!(digests.status.divergence, None);
    }
}

//! From one epoch into the next, in place: the same node, executor, links and clients.
//!
//! ```text
//!   Serving(e) ──the end is final──► Ended(e) ──a majority of e+1 has it──► Saving(e+1)
//!       ▲                              the protocol of e continues             │ its first state is
//!       │                                                                      ▼ a durable snapshot
//!       └──begin_epoch: the protocol of e+1 starts ◄──EpochBegins── Beginning(e+1)
//!                                                                              ▲
//!   a peer is further by an epoch or more ──► Following ──a state of it is here┘
//!                                                 ▲ asks
//!   Ended(e), and no member of e+1 ──all that have entered are lost──► Giving: until it is settled
//! ```
//!
//! No single member decides when an epoch begins: each member enters by itself. It leaves the epoch
//! that has ended only when a majority of the next one's members has its end, too. So no replica
//! left behind is needed: one that has missed the end takes a state of the next epoch from a
//! member. From its first message on, the next epoch needs nothing of its predecessor, as its first
//! state is durable here, and so is the fact that this replica is in it.
//!
//! Unanswered batches of clients are submitted again in the next epoch, whole, as the same bytes:
//! sessions answer what was executed before the end, and nothing is executed behind it. Therefore
//! no client gets the end of the epoch as an answer. Of a batch that an earlier protocol had, no
//! answer may claim any more that it was certainly not executed.
//!
//! Links outlive epochs. A protocol sees a link to a peer whose protocol runs in the same epoch,
//! and no other: messages to a protocol that has not begun are lost, and would not be sent again.

mod giving;
mod word;

pub(super) use word::EpochWord;

use super::{between::Between, learning::Learning, rebased::Rebased, *};
use crate::{DescriptorError, FeedEnd, carried::Carried};
use word::Holds;

/// How often peers are told where this replica is that may not know it.
const TELL_EVERY: Duration = Duration::from_millis(50);
/// A frame of another epoch is answered no more often than this.
const ANSWER_EVERY: Duration = Duration::from_millis(20);
/// Members that are linked and have not seen the end yet are waited for so long: they would have
/// to take a whole state otherwise.
const TIMEOUT: Duration = Duration::from_millis(500);
/// A first state that could not be saved is written again after this.
const SAVE_AGAIN: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// The epoch's protocol runs.
    Serving,
    /// It continues, behind the end.
    Ended { since: Time },
    /// The next epoch's first state is being saved; not before this time when that has failed.
    Saving { again: Option<Time> },
    /// The state is here, and the world writes down that this replica is in the epoch.
    Beginning,
    /// A state of the epoch is fetched.
    Following,
    /// It has the state and no vote: it executes what the voters have executed.
    Learning,
    /// It is no member, and has the state that the epoch began with for those that are.
    Giving,
}

/// Where a node is between epochs, and where its peers are.
pub(super) struct Succession {
    phase: Phase,
    /// Peers that are not known to be in this node's epoch.
    elsewhere: ReplicaSet,
    /// Peers whose protocol is not known to run in it.
    idle: ReplicaSet,
    /// Peers that have the end of this node's epoch, or a state of a later one.
    past: ReplicaSet,
    /// Peers that have the state of a later epoch.
    later: ReplicaSet,
    /// Peers in this node's epoch that have nothing of its state.
    empty: ReplicaSet,
    /// Those of them that have lost it.
    lost: ReplicaSet,
    /// Some that are no members, and have the state that this epoch began with.
    givers: ReplicaSet,
    /// A member has entered a later epoch, so a majority had the end of this one then.
    is_over: bool,
    /// The epoch before was kept on disk. Its acknowledgements hold through a loss of power until this
    /// one has begun, whatever this one promises.
    was_on_disk: bool,
    /// Peers that are linked.
    links: BTreeMap<ReplicaId, Incarnation>,
    /// Frontends that are linked and embedded in no member.
    frontends: BTreeMap<FrontendId, Incarnation>,
    /// When peers were answered last that they are in another epoch.
    answered: BTreeMap<ReplicaId, Time>,
    pub(super) carried: Carried,
    /// There is one snapshot of the epoch only: should it be damaged, nothing replaces it.
    young: bool,
    /// The newest one is of the epoch before, and leads into this one.
    pub(super) bridged: bool,
    /// Nothing is saved ahead of a change before this: it has failed.
    pub(super) bridges_from: Time,
    /// The members' latest reports about their bridges.
    pub(super) told: BTreeMap<ReplicaId, super::bridge::Told>,
    /// Since when a majority is ready for a change.
    pub(super) enough_since: Option<Time>,
    /// The recovered state with which the protocol will start once its state is here.
    recovered: Option<RecoveredBytes>,
    generation: u16,
    pub(super) learning: Learning,
    timer_set: bool,
}

impl Succession {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Serving,
            elsewhere: ReplicaSet::EMPTY,
            idle: ReplicaSet::EMPTY,
            past: ReplicaSet::EMPTY,
            later: ReplicaSet::EMPTY,
            empty: ReplicaSet::EMPTY,
            lost: ReplicaSet::EMPTY,
            givers: ReplicaSet::EMPTY,
            is_over: false,
            was_on_disk: false,
            links: BTreeMap::new(),
            frontends: BTreeMap::new(),
            answered: BTreeMap::new(),
            carried: Carried::default(),
            young: false,
            bridged: false,
            bridges_from: Time(0),
            told: BTreeMap::new(),
            enough_since: None,
            recovered: None,
            generation: 0,
            learning: Learning::default(),
            timer_set: false,
        }
    }

    /// Feeds all of it into `hasher`; false while something is in progress that is not shown.
    pub(super) fn fingerprint(&self, mut hasher: &mut dyn core::hash::Hasher) -> bool {
        use core::hash::Hash;
        let peers = [self.elsewhere, self.idle, self.past, self.later, self.empty];
        (self.phase, peers.map(|set| set.0), self.is_over).hash(&mut hasher);
        (self.lost.0, self.givers.0).hash(&mut hasher);
        self.was_on_disk.hash(&mut hasher);
        (&self.links, &self.frontends, &self.answered, &self.carried).hash(&mut hasher);
        (self.young, self.bridged, self.bridges_from).hash(&mut hasher);
        (self.enough_since, self.generation, self.timer_set).hash(&mut hasher);
        self.recovered.hash(&mut hasher);
        self.told.is_empty() && !self.is_learning()
    }

    /// Those of `to` that are in this node's epoch, as far as is known.
    const fn present(&self, to: ReplicaSet) -> ReplicaSet {
        ReplicaSet(to.0 & !self.elsewhere.0)
    }

    /// Those of `to` whose protocol runs in this node's epoch, as far as is known.
    pub(super) const fn running(&self, to: ReplicaSet) -> ReplicaSet {
        ReplicaSet(to.0 & !self.idle.0)
    }

    pub(super) const fn is_present(&self, peer: ReplicaId) -> bool {
        !self.elsewhere.contains(peer)
    }

    pub(super) const fn runs(&self, peer: ReplicaId) -> bool {
        !self.idle.contains(peer)
    }

    /// The frontends that are linked and embedded in no member.
    pub(super) fn frontends(&self) -> impl Iterator<Item = FrontendId> {
        self.frontends.keys().copied()
    }

    /// No peer is known to be in this epoch.
    const fn be_apart_from(&mut self, peers: ReplicaSet) {
        (self.elsewhere, self.idle) = (peers, peers);
    }

    pub(super) fn is_learning(&self) -> bool {
        self.phase == Phase::Learning
    }

    /// Whether a peer is linked.
    pub(super) fn is_linked(&self, peer: ReplicaId) -> bool {
        self.links.contains_key(&peer)
    }

    /// The state is here, and there is no vote.
    pub(super) fn begin_to_learn(&mut self, after: Slot) {
        self.phase = Phase::Learning;
        self.recovered = None;
        self.learning = Learning::after(after);
    }

    /// The donors do not keep the batches any more: the state is fetched again.
    pub(super) fn follow_again(&mut self) {
        self.phase = Phase::Following;
        self.recovered = Some(RecoveredBytes::default());
    }

    /// Whether such a replica may be asked for the state.
    pub(super) const fn gives(&self, peer: ReplicaId) -> bool {
        self.givers.contains(peer)
    }

    /// Whether nothing of this epoch's state is at that peer.
    pub(super) const fn is_empty(&self, peer: ReplicaId) -> bool {
        self.empty.contains(peer)
    }

    /// Whether a snapshot that is saved now is the epoch's first.
    const fn saves(&self) -> bool {
        matches!(self.phase, Phase::Saving { .. })
    }
}

impl Node {
    /// The epoch that the node is in.
    #[must_use]
    pub const fn epoch(&self) -> EpochNumber {
        self.epoch
    }

    /// Where that epoch began.
    #[must_use]
    pub const fn base(&self) -> Executed {
        self.executor.base()
    }

    /// Whether the state that this replica's epoch began with is missing here.
    #[must_use]
    pub const fn lacks_state(&self) -> bool {
        matches!(self.succession.phase, Phase::Following)
    }

    /// Whether snapshots must outlive the process now: this epoch is kept on disk, or the one before
    /// was and this one has not begun yet.
    pub(super) fn saves_durably(&self) -> bool {
        let was_on_disk = self.succession.was_on_disk && !self.injected.is(Bug::EntersInMemory);
        self.durability == Durability::Disk || was_on_disk
    }

    /// Whether a second snapshot of the epoch is due: there is something new in it, or the first one
    /// is no state that a peer could be given.
    pub(super) fn is_young(&self) -> bool {
        let is_new = self.executor.bytes_since_snapshot() > 0;
        let has_begun = self.executor.progress() > self.executor.base().slot;
        self.succession.young && is_new || self.succession.bridged && has_begun
    }

    /// Whether no protocol runs, because the next epoch has not begun here.
    #[must_use]
    pub const fn is_between_epochs(&self) -> bool {
        let has_protocol = matches!(self.succession.phase, Phase::Serving | Phase::Ended { .. });
        !has_protocol || self.is_learner()
    }

    fn word(&self, asks: bool) -> EpochWord {
        let descriptor = self.executor.descriptor();
        let told = Descriptor::decode(descriptor.clone()).map(|it| it.told());
        EpochWord {
            number: self.epoch,
            ended: matches!(self.succession.phase, Phase::Ended { .. }),
            holds: match self.succession.phase {
                Phase::Serving | Phase::Ended { .. } | Phase::Learning => Holds::State,
                Phase::Saving { .. } | Phase::Beginning => Holds::Soon,
                Phase::Following if self.succession.recovered.is_none() => Holds::Awaits,
                Phase::Following => Holds::Nothing,
                Phase::Giving => Holds::Gives,
            },
            base: self.executor.base(),
            descriptor: told.unwrap_or_default(),
            asks,
        }
    }

    pub(super) fn tell_epoch(&mut self, to: ReplicaSet, asks: bool, out: &mut Vec<Output>) {
        if to.is_empty() || self.executor.descriptor().is_empty() {
            return;
        }
        let frame = self.epoch_frame(asks);
        out.push(Output::Send {
            to: Recipients::Replicas(to),
            lane: Lane::Control,
            frame,
        });
    }

    fn epoch_frame(&mut self, asks: bool) -> Frame {
        let word = self.word(asks);
        let mut writer = Writer::new(&mut self.scratch);
        word.encode(&mut writer);
        let frame = writer.finish();
        self.wrap(FrameKind::Epoch, frame)
    }

    pub(super) fn peers(&self) -> ReplicaSet {
        self.members.without(self.id)
    }

    /// Those that vote.
    pub(super) const fn voters_of(&self, members: ReplicaSet) -> ReplicaSet {
        self.voters.among(members)
    }

    pub(super) fn linked(&self) -> ReplicaSet {
        self.succession
            .links
            .keys()
            .fold(ReplicaSet::EMPTY, |set, id| set.with(*id))
    }

    /// A frame of another epoch has come.
    pub(super) fn on_stray_frame(
        &mut self,
        from: ReplicaId,
        theirs: EpochNumber,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let now = world.now();
        let last = self.succession.answered.get(&from);
        if last.is_some_and(|last| now < *last + ANSWER_EVERY) {
            return;
        }
        self.succession.answered.insert(from, now);
        self.tell_epoch(ReplicaSet::EMPTY.with(from), theirs > self.epoch, out);
    }

    /// A frame of this epoch has come from a peer: it is in it.
    pub(super) fn note_present(&mut self, from: ReplicaId) {
        self.succession.elsewhere = self.succession.elsewhere.without(from);
    }

    /// A peer's protocol runs in this epoch.
    pub(super) fn note_running(
        &mut self,
        from: ReplicaId,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        self.note_present(from);
        if self.succession.runs(from) {
            return;
        }
        self.succession.idle = self.succession.idle.without(from);
        if let Some(incarnation) = self.succession.links.get(&from)
            && self.votes(from)
        {
            let up = link_up(Peer::Replica(from), *incarnation);
            self.events.push_back(up);
            self.carry_out(world, out);
        }
    }

    /// A peer's protocol does not run in this epoch, or not any more.
    fn note_idle(&mut self, from: ReplicaId) {
        let ran = self.succession.runs(from);
        self.succession.idle.insert(from);
        if ran && self.votes(from) {
            let down = Event::Link(Peer::Replica(from), Link::Down);
            self.events.push_back(down);
        }
    }

    /// Something happened to a link; true when the protocol is to know.
    pub(super) fn on_link(&mut self, peer: Peer, link: Link, out: &mut Vec<Output>) -> bool {
        let id = match peer {
            // It is a member no more.
            Peer::Replica(id) if !self.members.contains(id) => return false,
            Peer::Replica(id) => id,
            Peer::Frontend(frontend) => {
                self.on_frontend_link(frontend, link, out);
                return true;
            }
        };
        match link {
            Link::Up { incarnation } => {
                let before = self.succession.links.insert(id, incarnation);
                if before != Some(incarnation) {
                    // It may have lost what it had.
                    self.succession.past = self.succession.past.without(id);
                    self.succession.later = self.succession.later.without(id);
                    self.note_emptiness(id, Holds::State);
                }
                let (away, first) = (!self.succession.runs(id), EpochNumber(1));
                if away || self.epoch > first {
                    self.tell_epoch(ReplicaSet::EMPTY.with(id), away, out);
                }
            }
            Link::Down => {
                self.succession.links.remove(&id);
            }
            Link::Room(_) | Link::Arriving | Link::Reset => {}
        }
        self.succession.runs(id) && self.votes(id)
    }

    fn on_frontend_link(&mut self, frontend: FrontendId, link: Link, out: &mut Vec<Output>) {
        match link {
            Link::Up { incarnation } => {
                self.succession.frontends.insert(frontend, incarnation);
                if self.epoch > EpochNumber(1) {
                    self.tell_frontend(frontend, out);
                }
            }
            Link::Down => {
                self.succession.frontends.remove(&frontend);
            }
            Link::Room(_) | Link::Arriving | Link::Reset => {}
        }
    }

    /// A frontend outside may be in an earlier epoch, and is told where this replica serves.
    pub(super) fn tell_frontend(&mut self, frontend: FrontendId, out: &mut Vec<Output>) {
        if !self.is_between_epochs() && self.executor.sealed().is_none() {
            let frame = self.epoch_frame(false);
            out.push(Output::Send {
                to: Recipients::Frontend(frontend),
                lane: Lane::Control,
                frame,
            });
        }
    }

    /// Tells frontends outside whether this replica has lost its quorum, as its world finds: they
    /// hear nothing of the other members' links.
    pub fn tell_quorum(&self, lost: bool, out: &mut Vec<Output>) {
        if self.halted || self.disk.is_hung() {
            return;
        }
        for frontend in self.succession.frontends() {
            let word = Frame::from(Bytes::from_static(if lost { &[1] } else { &[0] }));
            out.push(Output::Send {
                to: Recipients::Frontend(frontend),
                lane: Lane::Control,
                frame: self.wrap(FrameKind::Quorum, word),
            });
        }
    }

    pub(super) fn on_epoch_word(
        &mut self,
        from: ReplicaId,
        word: EpochWord,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if word.asks {
            self.tell_epoch(ReplicaSet::EMPTY.with(from), false, out);
        }
        let is_member = self.members.contains(from);
        if word.number < self.epoch {
            if is_member {
                self.succession.elsewhere.insert(from);
                self.note_idle(from);
            }
            if !word.asks {
                self.on_stray_frame(from, word.number, world, out);
            }
            return self.look_at_succession(world, out);
        }
        if word.number == self.epoch && word.holds == Holds::Gives {
            return self.on_giver(from, &word);
        }
        if word.number == self.epoch && !is_member {
            return self.malformed += 1;
        }
        if word.number == self.epoch {
            return self.on_word_of_this_epoch(from, &word, world, out);
        }
        self.succession.is_over = true;
        if word.holds.is_nothing() {
            self.succession.later = self.succession.later.without(from);
            self.maybe_give(&word, world, out);
            return self.look_at_succession(world, out);
        }
        if self.succession.phase == Phase::Giving {
            // They had the end of this epoch.
            return self.end_membership(word.number, out);
        }
        if is_member {
            self.succession.past.insert(from);
        }
        self.look_at_succession(world, out);
        let holds = word.holds.may_be_taken();
        if word.holds == Holds::State {
            self.succession.later.insert(from);
        }
        if self.is_leaving() && self.is_settled_without() {
            return self.end_membership(EpochNumber(self.epoch.0 + 1), out);
        }
        if holds && word.number > self.epoch && self.may_follow(&word) {
            self.follow(from, &word, world, out);
        }
    }

    fn on_word_of_this_epoch(
        &mut self,
        from: ReplicaId,
        word: &EpochWord,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        if word.base != self.executor.base() || !self.is_descriptor(&word.descriptor) {
            let reason = format!(
                "replica {} is in another epoch of the same number: it began at {:?}, this one at \
                 {:?}. Their histories have parted; keep the data directories of both",
                from.0,
                word.base,
                self.executor.base()
            );
            return self.halt(reason, out);
        }
        if word.ended {
            self.succession.past.insert(from);
            self.learn_at_once(world, out);
        }
        self.note_emptiness(from, word.holds);
        match word.holds {
            Holds::State => self.note_running(from, world, out),
            Holds::Nothing | Holds::Awaits | Holds::Soon | Holds::Gives => {
                self.note_present(from);
                self.note_idle(from);
            }
        }
        self.look_at_succession(world, out);
    }

    fn note_emptiness(&mut self, from: ReplicaId, holds: Holds) {
        let succession = &mut self.succession;
        succession.empty = succession.empty.without(from);
        succession.lost = succession.lost.without(from);
        if holds.is_nothing() {
            succession.empty.insert(from);
        }
        if holds == Holds::Nothing {
            succession.lost.insert(from);
        }
    }

    /// A frame has come from a replica: whether it may send such, and what that says of its epoch.
    pub(super) fn note_sender(
        &mut self,
        from: ReplicaId,
        kind: u8,
        epoch: EpochNumber,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> Result<(), DecodeError> {
        let word = kind == FrameKind::Epoch as u8;
        let given = kind == FrameKind::Transfer as u8 && self.succession.givers.contains(from);
        // Of another epoch there may be other members, and one that gives its state is none.
        let may_be = epoch != self.epoch || word || given;
        let is_member = self.members.contains(from);
        if !(is_member || may_be && from.index() < ReplicaSet::MEMBERS_MAX) {
            // Where there are several groups, a replica of the process's other groups forwards to
            // this one.
            let is_guest = kind == FrameKind::Request as u8 && self.group != GroupId(0);
            return match is_guest && from.index() < ReplicaSet::MEMBERS_MAX {
                true => Ok(()),
                false => Err(DecodeError::Bad("sender")),
            };
        }
        if word || given {
            return Ok(());
        }
        if epoch != self.epoch {
            self.on_stray_frame(from, epoch, world, out);
        } else if NODES_OWN.contains(&kind) {
            // It may be on its way into the epoch, and its protocol not begun.
            self.note_present(from);
        } else if !self.succession.runs(from) {
            self.note_running(from, world, out);
        }
        let may_be_a_learners = [FrameKind::Transfer, FrameKind::Bridge].map(|it| it as u8);
        let is_heard = self.votes(from) || may_be_a_learners.contains(&kind);
        if epoch == self.epoch && !is_heard {
            return Err(DecodeError::Bad("sender"));
        }
        Ok(())
    }

    fn is_descriptor(&self, told: &[u8]) -> bool {
        crate::public_part(self.executor.descriptor()) == crate::public_part(told)
    }

    /// Whether another member has this replica's row in the next epoch.
    fn is_replaced_by(&self, next: &Descriptor) -> bool {
        let ours = Descriptor::decode(self.executor.descriptor().clone());
        let lacks = !next.all().contains(self.id);
        lacks || ours.is_ok_and(|ours| next.replaces(&ours, self.id))
    }

    fn end_membership(&mut self, since: EpochNumber, out: &mut Vec<Output>) {
        self.halt_as(HaltKind::NoMember, no_member(self.id, since), out);
    }

    /// Whether a majority has a state of a later epoch: what is here is not needed any more.
    fn is_settled_without(&self) -> bool {
        let next = self.successor().map(|next| next.voters());
        // Where several leave, no majority of those that vote here may be left.
        let voters = next.unwrap_or(self.voters);
        voters.is_majority(self.succession.later)
    }

    /// The epoch that this one has ended for.
    fn successor(&self) -> Option<Descriptor> {
        let next = self.sealed().map(|seal| seal.successor.clone());
        next.and_then(|next| Descriptor::decode(next).ok())
    }

    /// The members whose protocol runs in this epoch, as far as is known: they hold its state.
    #[must_use]
    pub fn runs_in_epoch(&self) -> ReplicaSet {
        self.succession.running(self.peers()).with(self.id)
    }

    /// Peers that are in this epoch and have its state.
    #[must_use]
    pub fn holders(&self) -> ReplicaSet {
        let present = self.succession.present(self.peers());
        ReplicaSet(present.0 & !self.succession.empty.0)
    }

    /// Whether this replica is none of the epoch that its own has ended for.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        let gives = self.succession.phase == Phase::Giving;
        let next = self.successor();
        gives || next.is_some_and(|next| self.is_replaced_by(&next))
    }

    /// Whether the end of this epoch is missing here, or was reached too late.
    fn may_follow(&self, word: &EpochWord) -> bool {
        match self.succession.phase {
            Phase::Serving | Phase::Following | Phase::Learning => true,
            // It may have the end, and another state that is half restored.
            Phase::Ended { .. } => word.number.0 > self.epoch.0 + 1 || self.installing.is_some(),
            Phase::Saving { .. } | Phase::Beginning | Phase::Giving => false,
        }
    }

    /// Looks after what is to be done next on the way into another epoch.
    pub(super) fn look_at_succession(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        if self.halted {
            return;
        }
        let now = world.now();
        let has_not_ended = matches!(self.succession.phase, Phase::Serving | Phase::Learning);
        if has_not_ended && self.sealed().is_some() {
            self.succession.phase = Phase::Ended { since: now };
            out.push(Output::Mark("epoch ended"));
            self.events.push_back(Event::Control(Control::EpochEnded));
            self.tell_epoch(self.peers(), true, out);
        }
        if let Phase::Ended { since } = self.succession.phase {
            self.maybe_enter(since, world, out);
        }
        let running = self.voters_of(self.succession.running(self.peers()));
        if self.succession.phase == Phase::Giving && self.voters.is_majority(running) {
            return self.end_membership(self.epoch, out);
        }
        self.arm_succession(world, out);
    }

    pub(super) fn arm_succession(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let serves = self.succession.phase == Phase::Serving;
        if self.succession.timer_set || serves && self.succession.idle.is_empty() {
            return;
        }
        self.succession.timer_set = true;
        out.push(Output::SetTimer {
            key: node_timer(TIMER_EPOCH),
            at: Deadline::At(world.now() + TELL_EVERY),
        });
    }

    pub(super) fn on_epoch_timer(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        self.succession.timer_set = false;
        let ignorant = match self.succession.phase {
            Phase::Ended { .. } => {
                let past = self.succession.past;
                ReplicaSet(self.peers().0 & !past.0)
            }
            _ => self.succession.idle,
        };
        let linked = ReplicaSet(ignorant.0 & self.linked().0);
        self.tell_epoch(linked, true, out);
        let now = world.now();
        match self.succession.phase {
            Phase::Saving { again: Some(at) } if now >= at => self.save_first_state(out),
            Phase::Following => self.fetch_on(world, out),
            Phase::Learning => self.learn(world, out),
            Phase::Giving => self.save_given_state(world, out),
            _ => {}
        }
        self.look_at_succession(world, out);
    }

    /// A member that has come into the epoch meanwhile may give its state, too.
    fn fetch_on(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let peers = self.voters_of(self.peers());
        let present = self.succession.present(peers);
        let givers = self.succession.givers;
        let lost = self.voters_of(self.succession.lost);
        if self.succession.recovered.is_some() && lost == peers && givers.is_empty() {
            let reason = "no member has the state of this epoch any more: all have lost what they \
                          had in memory. Begin a new cluster with a snapshot (quintet snapshot \
                          restore), or with nothing (--bootstrap-again)";
            return self.halt(String::from(reason), out);
        }
        let known = self.voters_of(self.holders());
        // It has given up what it had in memory of the earlier epoch, not what is on its disk.
        let has_earlier = self.succession.was_on_disk && self.succession.recovered.is_none();
        if has_earlier && known.is_empty() && givers.is_empty() && !present.is_empty() {
            let reason = format!(
                "no member has the state of epoch {} any more: start this replica again, to end \
                 the epoch before with those that are still in it",
                self.epoch
            );
            return self.halt_as(HaltKind::StartAgain, reason, out);
        }
        let have = ReplicaSet(known.0 | givers.0);
        let from = if have.is_empty() { peers } else { have };
        self.fetch_first_state(from, world, out);
    }

    /// Enters the next epoch once those that it needs have the end of this one.
    fn maybe_enter(&mut self, since: Time, world: &dyn World, out: &mut Vec<Output>) {
        let past = self.succession.past.with(self.id);
        // A member without the state of this epoch takes one of the next.
        let awaited = ReplicaSet(self.linked().0 & !self.succession.empty.0);
        let all = ReplicaSet(awaited.0 & !past.0).is_empty();
        // The one that has entered may be lost, and all that have followed it need this state.
        // Where many leave that are lost, no majority of those that vote here may ever have it.
        let next = self.successor().map(|next| next.voters());
        let enough = self.voters.is_majority(past)
            || next.is_some_and(|next| next.is_majority(past))
            || self.succession.is_over;
        if !enough || !all && world.now() < since + TIMEOUT {
            return;
        }
        if self.installing.is_some() || !self.deferred.is_empty() {
            return;
        }
        if self.is_leaving() {
            // Its protocol continues for those that need it, until the next epoch is settled.
            return;
        }
        // Peers are given the first state of an epoch in memory at once, and people the last one
        // before it: no bridge will do.
        let next = self.successor().map(|next| next.durability);
        let bridge = match next {
            Some(Durability::Disk) => self.take_bridge(),
            _ => None,
        };
        let end = self.sealed().map(|seal| seal.base).unwrap_or_default();
        self.leave_protocol("entering an epoch", out);
        let next = match self.executor.enter() {
            Ok(next) => next,
            Err(error) => return self.halt(unreadable(&error), out),
        };
        out.push(Output::Mark("epoch entered"));
        // Those that are members no more are told, too, as long as they are linked.
        let all = self.peers();
        self.become_member_of(&next);
        match bridge {
            Some(file) => {
                self.succession.phase = Phase::Saving { again: None };
                let end = FeedEnd {
                    executed: end,
                    time: self.executor.time(),
                    summary: Bytes::new(),
                };
                self.finish_bridge(file, end, out);
            }
            None => self.save_first_state(out),
        }
        // In memory, what is saved serves peers only.
        if !self.saves_durably() || self.injected.is(Bug::BeginsBeforeItIsDurable) {
            self.state_is_here(None, out);
        }
        self.tell_epoch(ReplicaSet(all.0 | self.peers().0), false, out);
        self.arm_succession(world, out);
    }

    /// The protocol ends; what it had in progress is kept.
    fn leave_protocol(&mut self, role: &'static str, out: &mut Vec<Output>) {
        if let Some(unfinished) = self.unfinished.take() {
            if !matches!(unfinished.kind, Under::Fetched { .. }) {
                self.executor.abandon_snapshot();
            }
            out.push(Output::SnapshotAbandon);
        }
        if self.fetch.take().is_some() {
            out.push(Output::CancelTimer {
                key: node_timer(TIMER_FETCH),
            });
        }
        self.installing = None;
        self.deferred = Deferred::default();
        self.effects.clear();
        self.view = None;
        // The rest is the earlier protocol's, except for the clients' batches.
        let mut open = self.replica.take_open(self.group);
        for event in self.events.drain(..) {
            if let Event::Submit(submission) = event {
                open.push(submission);
            }
        }
        let dropped = self.injected.is(Bug::RequestsInFlightAreDropped);
        open.retain(|submission| submission.id.0 < OWN_BATCHES && !dropped);
        self.replica = Box::new(Between::new(role, self.executor.stable(), open));
        let key = TimerKey {
            owner: TimerOwner::Frontend,
            timer: 0,
            generation: 0,
        };
        self.events.push_back(Event::Timer(key));
        self.held.clear();
        self.homes.clear();
        self.ring = None;
        self.summing_up = false;
        self.checkpoint_asked = false;
        (self.tick_at, self.tick_open, self.tick_last) = (None, None, None);
        self.digests.epoch_ended();
    }

    fn become_member_of(&mut self, next: &Descriptor) {
        self.epoch = next.number;
        // Several may pass before one begins here.
        self.succession.was_on_disk |= self.durability == Durability::Disk;
        self.durability = next.durability;
        if !self.injected.is(Bug::RowsOfTheOldEpoch) {
            (self.members, self.voters) = (next.all(), next.voters());
        }
        let members = self.members;
        let gives = self.succession.phase == Phase::Giving;
        assert!(gives || members.contains(self.id), "a node is a member");
        self.succession.links.retain(|id, _| members.contains(*id));
        self.digests.keep_members(members);
        self.envelopes = FRAME_KINDS.map(|kind| envelope(kind, self.group, self.epoch));
        self.executed_told = self.executor.progress();
        self.pace = Pace::new(self.voters.len());
        // Until they say that they are in it.
        self.succession.be_apart_from(self.peers());
        self.succession.past = ReplicaSet::EMPTY;
        self.succession.later = ReplicaSet::EMPTY;
        self.succession.empty = ReplicaSet::EMPTY;
        self.succession.lost = ReplicaSet::EMPTY;
        self.succession.givers = ReplicaSet::EMPTY;
        self.succession.is_over = false;
        self.succession.bridged = false;
        self.forget_preparations();
    }

    fn save_first_state(&mut self, out: &mut Vec<Output>) {
        self.succession.phase = Phase::Saving { again: None };
        self.begin_snapshot(self.executor.base().slot, Bytes::new(), out);
    }

    /// A snapshot of this replica's own state is saved; true when it is the first of an epoch, of
    /// which protocols know nothing.
    pub(super) fn first_state_saved(&mut self, slot: Slot, out: &mut Vec<Output>) -> bool {
        let base = self.executor.base().slot;
        let bridged = core::mem::take(&mut self.succession.bridged);
        if base == Slot(0) || slot != base {
            self.succession.young = false;
            return false;
        }
        // The bridge stands in for it should it be damaged.
        self.succession.young &= !bridged;
        if self.succession.saves() {
            self.state_is_here(None, out);
        }
        true
    }

    /// The bridge into this epoch is durable.
    pub(super) fn bridge_saved(&mut self, out: &mut Vec<Output>) {
        self.succession.bridged = true;
        if self.succession.saves() {
            self.state_is_here(None, out);
        }
    }

    /// Whether the state that this epoch begins with is being saved.
    fn saves_base(&self) -> bool {
        let file = self.unfinished.as_ref();
        let is_own = |kind: &Under| matches!(kind, Under::Own { .. } | Under::Bridge);
        file.is_some_and(|it| it.id == self.executor.base() && is_own(&it.kind))
    }

    pub(super) fn first_state_failed(&mut self, now: Time) {
        if self.succession.saves() {
            let again = Some(now + SAVE_AGAIN);
            self.succession.phase = Phase::Saving { again };
        }
    }

    /// The state of the epoch is here, durably, with what its protocol said of it.
    fn state_is_here(&mut self, checkpoint: Option<(Slot, Bytes)>, out: &mut Vec<Output>) {
        self.succession.phase = Phase::Beginning;
        let first_boot = checkpoint.is_none() && self.succession.recovered.is_none();
        let recovered = self.succession.recovered.get_or_insert_default();
        recovered.first_boot = first_boot;
        recovered.checkpoint = checkpoint;
        out.push(Output::EpochBegins {
            number: self.epoch,
            descriptor: self.executor.descriptor().clone(),
            base: self.executor.base(),
        });
    }

    /// The state that this replica needs to be in its epoch has come.
    pub(super) fn followed(&mut self, slot: Slot, summary: Bytes, out: &mut Vec<Output>) -> bool {
        if self.succession.phase != Phase::Following {
            return false;
        }
        out.push(Output::Mark("epoch followed"));
        let past_base = slot > self.executor.base().slot;
        self.state_is_here(past_base.then_some((slot, summary)), out);
        true
    }

    /// A peer is in a later epoch, whose beginning is missing here.
    fn follow(
        &mut self,
        from: ReplicaId,
        word: &EpochWord,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let ours = Descriptor::decode(self.executor.descriptor().clone());
        let next = match Descriptor::decode(word.descriptor.clone()) {
            Ok(next) => next,
            Err(error @ DescriptorError::Level(_)) => return self.halt(unreadable(&error), out),
            Err(DescriptorError::Malformed(_)) => return self.malformed += 1,
        };
        let Ok(ours) = ours else { return };
        let follows_ours = next.predecessor == ours.fingerprint();
        // One that has executed nothing has no history: its settings were mistaken for the first
        // epoch's.
        let has_history = self.executor.executed() != Executed::default();
        if word.number.0 == self.epoch.0 + 1 && !follows_ours && has_history {
            let reason = format!(
                "replica {} is in an epoch that does not follow this one: their histories have \
                 parted; keep the data directories of both",
                from.0
            );
            return self.halt(reason, out);
        }
        let fits = next.cluster == ours.cluster
            && next.group == self.group
            && next.number == word.number
            && word.base.slot > self.executor.executed().slot.min(self.executor.stable());
        if !fits {
            return self.malformed += 1;
        }
        if self.is_replaced_by(&next) {
            // One without the end knows from others alone who votes next.
            let settled = next.voters().is_majority(self.succession.later);
            if settled || self.is_settled_without() {
                self.end_membership(next.number, out);
            }
            return;
        }
        out.push(Output::Mark("epoch missed"));
        self.leave_protocol("following an epoch", out);
        let next = next.with_private_part_of(&ours);
        self.executor.follow(&next, word.base);
        self.become_member_of(&next);
        self.succession.recovered = None;
        self.succession.phase = Phase::Following;
        if word.holds == Holds::Gives {
            self.succession.givers.insert(from);
        } else {
            self.note_present(from);
            self.succession.idle = self.succession.idle.without(from);
        }
        self.fetch_first_state(ReplicaSet::EMPTY.with(from), world, out);
        self.arm_succession(world, out);
    }

    pub(super) fn fetch_first_state(
        &mut self,
        from: ReplicaSet,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        let base = self.executor.base().slot;
        self.begin_fetch(from, base, world, out);
    }

    /// A replica starts in an epoch behind the first: its peers may be in others.
    pub(super) fn meet_peers(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        self.succession.be_apart_from(self.peers());
        self.arm_succession(world, out);
    }

    /// This replica was in its epoch and has not the state that it began with: it takes one of a
    /// peer's before its protocol starts.
    pub(super) fn start_without_state(
        &mut self,
        recovered: RecoveredBytes,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) {
        self.replica = Box::new(Between::new("following an epoch", Slot(0), Vec::new()));
        self.succession.recovered = Some(recovered);
        self.succession.phase = Phase::Following;
        self.meet_peers(world, out);
        if self.injected.is(Bug::BeginsWithoutTheState) {
            return self.state_is_here(None, out);
        }
        self.fetch_first_state(self.peers(), world, out);
    }

    /// It is durable that this replica is in the epoch of [`Output::EpochBegins`]: its protocol
    /// starts, or the world is told again when it can. `seed` as in [`NodeSetup`].
    ///
    /// # Errors
    /// When the options are not the protocol's, or it cannot use its state; the node must not be used
    /// then.
    ///
    /// # Panics
    /// When no epoch waits to begin.
    pub fn begin_epoch(
        &mut self,
        protocol: &Entry,
        epoch: Epoch,
        seed: u64,
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> Result<(), StartError> {
        assert!(
            self.succession.phase == Phase::Beginning && epoch.number == self.epoch,
            "an epoch begins once"
        );
        if protocol.speculates && self.saves_base() {
            // It undoes from there.
            self.succession.recovered = None;
            self.succession.phase = Phase::Saving { again: None };
            return Ok(());
        }
        self.succession.was_on_disk = false;
        let open = self.replica.take_open(self.group);
        if self.is_learner() {
            self.begin_to_learn(open, world, out);
            return Ok(());
        }
        self.succession.carried = Carried::default();
        for submission in &open {
            self.succession.carried.carry(submission);
        }
        self.injected = Injected::of(&epoch.options);
        let base = self.executor.base().slot;
        let inner = self.protocol(protocol, epoch, seed)?;
        self.succession.generation = self.succession.generation.wrapping_add(1);
        let generation = self.succession.generation;
        let written = match self.injected.is(Bug::WritesCountFromZero) {
            true => PersistId(0),
            false => self.written,
        };
        let voters = match self.injected.is(Bug::NumbersAreRanks) {
            true => Voters::dense(self.voters.len()),
            false => self.voters,
        };
        self.replica = Rebased::over(inner, base, written, generation, voters);
        self.view = first_view(protocol, voters);
        if protocol.speculates {
            let newest = world.snapshot_newest();
            let position = self.executor.base().position;
            assert!(
                newest.is_some_and(|it| it.id.position >= position),
                "there is a state to undo from"
            );
            self.executor.speculate();
        }
        self.executed_told = self.executor.progress();
        self.succession.young = true;
        self.succession.bridges_from = Time(0);
        self.save_bridged_state(world, out);
        self.succession.phase = Phase::Serving;
        let recovered = self.succession.recovered.take().unwrap_or_default();
        let covered = recovered.checkpoint.as_ref().map(|(slot, _)| *slot);
        if !recovered.state_lost {
            // It has acknowledged nothing in this epoch, so that it misses nothing.
            out.push(Output::Recovered);
        }
        self.start_protocol(recovered, world)?;
        self.events.extend(covered.map(Event::Checkpointed));
        let succession = &self.succession;
        for (id, incarnation) in &succession.links {
            if succession.runs(*id) && self.votes(*id) {
                let up = link_up(Peer::Replica(*id), *incarnation);
                self.events.push_back(up);
            }
        }
        for (frontend, incarnation) in &succession.frontends {
            let up = link_up(Peer::Frontend(*frontend), *incarnation);
            self.events.push_back(up);
        }
        self.events.extend(open.into_iter().map(Event::Submit));
        out.push(Output::Mark("epoch begun"));
        if self.learner().is_some() {
            // It needs what is executed from here on.
            self.keep_feed(world);
        }
        self.arm_pace(world, out);
        self.tell_epoch(self.peers(), true, out);
        let frontends: Vec<FrontendId> = self.succession.frontends().collect();
        for frontend in frontends {
            self.tell_frontend(frontend, out);
        }
        self.carry_out(world, out);
        self.look_at_succession(world, out);
        Ok(())
    }
}

const fn link_up(peer: Peer, incarnation: Incarnation) -> Event {
    Event::Link(peer, Link::Up { incarnation })
}

/// The reason that a replica is told that was removed, or whose row another member has.
#[must_use]
pub fn no_member(id: ReplicaId, since: EpochNumber) -> String {
    format!(
        "replica {} is no member any more since epoch {since}: it was removed, or replaced by \
         another. To take part again, start it with an empty data directory (quintet join)",
        id.0
    )
}

fn unreadable(error: &DescriptorError) -> String {
    format!("this program cannot continue in the next epoch of the cluster: {error}")
}

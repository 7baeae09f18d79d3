//! The view that a replica is in: its promise, its part, and the view's beginning.

use super::{Promised, ViewInit};
use alloc::collections::VecDeque;
use quintet_replica::{PersistId, ReplicaId, ReplicaSet, Slot, Time, parts::Tally};

/// A replica's part in its view.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    Follower,
    Candidate(Tally),
    Initiator,
}

/// See the module.
#[derive(Hash)]
pub(super) struct ViewState {
    number: u64,
    voted_for: Option<ReplicaId>,
    durable: Option<Promised>,
    writes: VecDeque<(PersistId, Promised)>,
    role: Role,
    /// The view's VIEW-INIT, once it stands in the log behind a verified prefix.
    init: Option<ViewInit>,
    /// The last VIEW-INIT that is committed here.
    init_committed: ViewInit,
    /// Before its restart this replica may have proposed in this view.
    mute: Option<u64>,
    since: Time,
    /// How often this replica was a candidate since a view was established.
    tries: u32,
}

impl ViewState {
    /// View 0, which begins by itself.
    pub const fn new(init_first: ViewInit) -> Self {
        Self {
            number: 0,
            voted_for: None,
            durable: None,
            writes: VecDeque::new(),
            role: Role::Follower,
            init: None,
            init_committed: init_first,
            mute: None,
            since: Time(0),
            tries: 0,
        }
    }

    pub const fn number(&self) -> u64 {
        self.number
    }

    pub const fn voted_for(&self) -> Option<ReplicaId> {
        self.voted_for
    }

    pub const fn promised(&self) -> Promised {
        Promised {
            view: self.number,
            voted_for: self.voted_for,
        }
    }

    /// Whether view and vote are on disk.
    pub fn is_durable(&self) -> bool {
        self.durable == Some(self.promised())
    }

    /// Whether any view was ever written.
    pub const fn was_written(&self) -> bool {
        self.durable.is_some()
    }

    /// View and vote are being written.
    pub fn written(&mut self, id: PersistId) {
        self.writes.push_back((id, self.promised()));
    }

    /// The next write that is durable when all up to `upto` are; true when it is that of the
    /// present view and vote.
    pub fn durable_up_to(&mut self, upto: PersistId) -> Option<bool> {
        let (_, promised) = *self.writes.front().filter(|(id, _)| *id <= upto)?;
        self.writes.pop_front();
        self.durable = Some(promised);
        Some(promised == self.promised())
    }

    pub const fn role(&self) -> &Role {
        &self.role
    }

    pub fn set_role(&mut self, role: Role) {
        self.role = role;
    }

    pub const fn is_candidate(&self) -> bool {
        matches!(self.role, Role::Candidate(_))
    }

    /// The votes that a candidate has.
    pub const fn votes_mut(&mut self) -> Option<&mut Tally> {
        match &mut self.role {
            Role::Candidate(votes) => Some(votes),
            Role::Follower | Role::Initiator => None,
        }
    }

    pub const fn init(&self) -> Option<&ViewInit> {
        self.init.as_ref()
    }

    /// The view's beginning stands in the log behind a verified prefix.
    pub fn begin(&mut self, init: ViewInit) {
        self.init = Some(init);
    }

    /// The view's beginning is not known to stand in the log any more.
    pub fn unbegin(&mut self) {
        self.init = None;
    }

    pub const fn init_committed(&self) -> &ViewInit {
        &self.init_committed
    }

    /// A view's beginning is committed.
    pub fn commit_init(&mut self, init: ViewInit) {
        self.init_committed = init;
    }

    /// The replicas that take part in the rounds.
    pub fn live(&self) -> ReplicaSet {
        self.init
            .as_ref()
            .map_or(ReplicaSet::EMPTY, |init| init.live)
    }

    /// Whether the view's beginning is committed when all up to this slot is.
    pub fn is_established(&self, committed: Slot) -> bool {
        self.init
            .as_ref()
            .is_some_and(|init| committed >= init.base)
    }

    /// The replica may have proposed in this view before it was started.
    pub const fn mute(&mut self) {
        self.mute = Some(self.number);
    }

    pub fn is_mute(&self) -> bool {
        self.mute == Some(self.number)
    }

    pub const fn since(&self) -> Time {
        self.since
    }

    pub const fn restart(&mut self, now: Time) {
        self.since = now;
    }

    pub const fn tries(&self) -> u32 {
        self.tries
    }

    /// Another candidacy.
    pub const fn try_again(&mut self) {
        self.tries += 1;
    }

    /// A view is established.
    pub const fn succeeded(&mut self) {
        self.tries = 0;
    }

    /// Enters a view that is higher, or votes in the present one. True when it is higher.
    pub fn enter(&mut self, view: u64, voted_for: Option<ReplicaId>, now: Time) -> bool {
        assert!(
            view > self.number || (self.voted_for.is_none() && self.init.is_none()),
            "one vote per view"
        );
        let higher = view > self.number;
        if higher {
            self.since = now;
            self.init = None;
        }
        self.number = view;
        self.voted_for = voted_for;
        self.role = Role::Follower;
        higher
    }

    /// View and vote were read from disk.
    pub const fn restore(&mut self, promised: Promised) {
        self.number = promised.view;
        self.voted_for = promised.voted_for;
        self.durable = Some(promised);
    }

    /// The log is of this view. It was faster on its way to the disk than the view's own promise,
    /// on which nothing that was sent can rest, then.
    pub const fn restore_from_log(&mut self, view: u64) {
        if view > self.number {
            self.number = view;
            self.voted_for = None;
        }
    }
}

//! The chain at one replica: as executed, as decided, with everything held, and its own place.

use super::{
    Chain, Op,
    chain::{Next, Route},
};
use alloc::string::String;
use core::fmt::Write as _;
use quintet_replica::{
    Incarnation, ReplicaId, ReplicaSet, Slot, Time,
    parts::{Admission, Member, Waiting},
};
use smallvec::SmallVec;

/// See the module.
#[derive(Hash)]
pub(super) struct ChainState {
    executed: Chain,
    decided: Chain,
    working: Chain,
    /// From the leader once around, and this replica's place in it.
    route: Route,
    position: Option<usize>,
    /// How long others stayed in the chain while this replica led.
    admission: Admission,
}

impl ChainState {
    pub fn new(members: usize) -> Self {
        let chain = Chain::first(members);
        Self {
            executed: chain.clone(),
            decided: chain.clone(),
            working: chain,
            route: Route::new(),
            position: None,
            admission: Admission::new(members),
        }
    }

    pub const fn executed(&self) -> &Chain {
        &self.executed
    }

    pub const fn decided(&self) -> &Chain {
        &self.decided
    }

    /// With every entry that is held under the promised ballot.
    pub const fn working(&self) -> &Chain {
        &self.working
    }

    pub fn route(&self) -> &[ReplicaId] {
        &self.route
    }

    pub const fn position(&self) -> Option<usize> {
        self.position
    }

    /// Whether this replica is not in the route of a leader.
    pub const fn is_outside(&self) -> bool {
        self.position.is_none()
    }

    pub fn is_tail(&self) -> bool {
        self.position == Some(self.route.len() - 1)
    }

    pub fn tail(&self) -> Option<ReplicaId> {
        self.route.last().copied()
    }

    /// The replica before this one in the chain; before the leader stands the tail.
    pub fn predecessor(&self, own: ReplicaId) -> Option<ReplicaId> {
        let at = self.position?;
        let before = if at == 0 { self.route.len() } else { at } - 1;
        self.route.get(before).copied().filter(|id| *id != own)
    }

    /// Where this replica's messages go.
    pub fn successor(&self, own: ReplicaId, leader: ReplicaId) -> Option<Next> {
        let at = self.position?;
        match self.route.get(at + 1) {
            Some(next) => Some(Next::Peer(*next)),
            None if leader == own => None,
            None => Some(Next::Leader(leader)),
        }
    }

    /// Whether an incarnation is a member of the decided chain.
    pub fn has(&self, id: ReplicaId, incarnation: Incarnation) -> bool {
        self.decided.incarnation(id) == Some(incarnation.0)
    }

    /// The route follows the working chain from the leader on.
    pub fn reroute(&mut self, leader: Option<ReplicaId>, own: ReplicaId) {
        self.route = match leader {
            Some(leader) => self.working.route(leader),
            None => Chain::default().route(own),
        };
        self.position = match leader {
            Some(_) => self.route.iter().position(|id| *id == own),
            None => None,
        };
    }

    /// The route with incarnations; `own` stands for one that is not a member.
    pub fn route_members(&self, own: Incarnation) -> SmallVec<[(ReplicaId, Incarnation); 8]> {
        let incarnation =
            |id: &ReplicaId| (*id, self.working.incarnation(*id).map_or(own, Incarnation));
        self.route.iter().map(incarnation).collect()
    }

    /// An entry is held. True when it changes the working chain.
    pub fn hold(&mut self, slot: Slot, op: &Op, least: usize) -> bool {
        self.working.apply(slot, op, least)
    }

    /// An entry is decided. True when it changes the chain.
    pub fn decide(&mut self, slot: Slot, op: &Op, least: usize) -> bool {
        self.decided.apply(slot, op, least)
    }

    /// An entry that changes the chain is executed. An entry that comes with catching up says
    /// nothing about how long members stay: a leader has seen it happen.
    pub fn execute(&mut self, slot: Slot, op: &Op, me: &Member, leads: bool, now: Time) {
        let before = self.executed.clone();
        self.executed.apply(slot, op, me.majority());
        if let (true, Op::Add { id, .. } | Op::Remove { id }) = (leads, op) {
            // The others' stays continue, or have ended with a removal that is not executed yet.
            let incarnation = |chain: &Chain, of| chain.incarnation(of).filter(|_| of == *id);
            let after = &self.executed;
            self.admission.note(
                me.id(),
                now,
                |of| incarnation(&before, of),
                |of| incarnation(after, of),
            );
        }
    }

    /// The decided chain comes from elsewhere.
    pub fn skip_to(&mut self, chain: Chain) {
        self.decided = chain;
    }

    /// Only executed entries count as decided.
    pub fn go_back(&mut self) {
        self.decided = self.executed.clone();
    }

    /// The state machine stands where this chain was executed.
    pub fn install(&mut self, chain: Chain) {
        self.executed = chain;
    }

    /// The working chain begins again as decided; entries that are held follow.
    pub fn restart_working(&mut self) {
        self.working = self.decided.clone();
    }

    /// A member was started again.
    pub fn restarted(&mut self, id: ReplicaId, now: Time) {
        self.admission.restarted(id, now);
    }

    /// Whether a replica may not join yet.
    pub fn pauses(
        &self,
        id: ReplicaId,
        now: Time,
        group: (usize, usize),
        waiting: Waiting,
    ) -> bool {
        self.admission.pauses(id, now, group, waiting)
    }

    /// The chain for status pages: from the leader to the tail, then the replicas left out.
    pub fn picture(&self, me: &Member) -> String {
        let mut picture = String::new();
        for id in &self.route {
            let arrow = if picture.is_empty() { "" } else { " > " };
            let here = if *id == me.id() { "*" } else { "" };
            let leaving = if self.decided.contains(*id) { "" } else { "+" };
            let _ = write!(picture, "{arrow}{leaving}{}{here}", id.0);
        }
        for id in ReplicaSet::all(me.members()).iter() {
            if !self.route.contains(&id) {
                let marked = if self.decided.contains(id) { "-" } else { "" };
                let _ = write!(picture, " ({marked}{} out)", id.0);
            }
        }
        picture
    }
}

//! State of a replica under its promised ballot besides entries: votes, and the newest round.

use super::{
    Header, Round,
    votes::{Vote, Votes},
};
use quintet_replica::{ReplicaId, Slot, parts::Incarnations};

/// See the module.
#[derive(Hash)]
pub(super) struct Agreement {
    votes: Votes,
    /// All up to here is decided, as votes and messages of the promised ballot show.
    agreed: Slot,
    /// The newest round that this replica has received, or made as the leader.
    round: Round,
    /// The replica that answers the leader besides the tail.
    turn: Option<ReplicaId>,
}

impl Agreement {
    pub fn new(members: usize) -> Self {
        Self {
            votes: Votes::new(members),
            agreed: Slot(0),
            round: Round::default(),
            turn: None,
        }
    }

    /// Another ballot is promised: the votes of these incarnations begin again.
    pub fn reset(&mut self, incarnations: &Incarnations) {
        let members = incarnations.iter().count();
        self.agreed = Slot(0);
        self.votes = Votes::new(members);
        for (id, incarnation) in incarnations.iter() {
            let upto = Slot(0);
            self.votes.raise(id, Vote { incarnation, upto });
        }
        self.round = Round::default();
    }

    pub const fn votes(&self) -> &Votes {
        &self.votes
    }

    /// Takes a vote into account.
    pub fn raise(&mut self, id: ReplicaId, vote: Vote) {
        self.votes.raise(id, vote);
    }

    /// Votes and decisions that a message of the promised ballot carries.
    pub fn merge(&mut self, header: &Header) {
        self.votes.merge(&header.votes);
        self.learn(header.committed);
    }

    /// All up to here is decided.
    pub fn learn(&mut self, slot: Slot) {
        self.agreed = self.agreed.max(slot);
    }

    /// Counts votes; gives up to where all is decided.
    pub fn count(&mut self, majority: usize) -> Slot {
        let reached = self.votes.reached(majority);
        self.learn(reached);
        self.agreed
    }

    pub const fn agreed(&self) -> Slot {
        self.agreed
    }

    pub const fn round(&self) -> &Round {
        &self.round
    }

    pub const fn turn(&self) -> Option<ReplicaId> {
        self.turn
    }

    /// Another replica is to answer the leader besides the tail. True when that is new.
    pub fn set_turn(&mut self, turn: Option<ReplicaId>) -> bool {
        core::mem::replace(&mut self.turn, turn) != turn
    }

    /// A message carries a round on its way to `own`. True when it is a new one.
    pub fn on_round(&mut self, header: &Header, own: ReplicaId) -> bool {
        let (new, known) = (header.round.number, self.round.number);
        if new > known {
            self.turn = header.turn;
            self.round = header.round.clone();
            self.round.path.insert(own);
        } else if new == known {
            self.round.path.0 |= header.round.path.0;
        }
        new > known
    }

    /// The leader makes a round.
    pub fn make(&mut self, round: Round) {
        self.round = round;
    }
}

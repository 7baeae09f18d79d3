//! Which ballots decided how much, told to those that know only what they accepted.
//!
//! ```text
//!   replica that trimmed its log     (ballot 3: all up to 40), (ballot 7: all up to 95)
//!        │ told with its refusal
//!        ▼
//!   replica that lacks the decision  slot 41 accepted under 7 ─► decided    under 5 ─► not known
//! ```
//!
//! **What a pair says**: the leader of the ballot knew, under that ballot, that all slots up to
//! this one are decided.
//!
//! **What follows**: an entry accepted under *that very* ballot in such a slot is the decided one.
//! Under a ballot at most one value is proposed for a slot. The leader that counted a quorum's
//! votes counted them for the value it had proposed; in a slot that it knew to be decided before
//! its election, it proposes nothing but what was decided. So this is no more than the commit
//! point that the leader told, come late: the receiver may have promised a higher ballot since,
//! and the pair may have come from anybody, by a message or a state, after any time.
//!
//! **What does not follow**: an entry of a *lower* ballot may have lost, and so may one of a
//! higher ballot that another leader proposed without knowing of the decision's votes, as long as
//! some members only vouch for what they know from states. Neither counts.

use super::Ballot;
use crate::{DecodeError, Reader, Slot, Wire, Writer};
use smallvec::SmallVec;

/// The decisions of that number of ballots are kept, the newest. Entries of older ones may
/// have to be fetched.
const BALLOTS_MAX: usize = 8;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Decisions(SmallVec<[(Ballot, Slot); 2]>);

impl Decisions {
    /// Under this ballot all up to `upto` is decided.
    pub fn learn(&mut self, ballot: Ballot, upto: Slot) {
        if upto == Slot(0) {
            return;
        }
        match self.0.binary_search_by_key(&ballot, |pair| pair.0) {
            Ok(at) => self.0[at].1 = self.0[at].1.max(upto),
            Err(at) => self.0.insert(at, (ballot, upto)),
        }
        if self.0.len() > BALLOTS_MAX {
            self.0.remove(0);
        }
    }

    /// Everything that another replica knows.
    pub fn merge(&mut self, other: &Self) {
        for (ballot, upto) in &other.0 {
            self.learn(*ballot, *upto);
        }
    }

    /// Whether an entry that was accepted for the slot under this ballot is the decided one.
    #[must_use]
    pub fn covers(&self, slot: Slot, ballot: Ballot) -> bool {
        let at = self.0.binary_search_by_key(&ballot, |pair| pair.0);
        at.is_ok_and(|at| slot <= self.0[at].1)
    }

    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Wire for Decisions {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u8(self.0.len() as u8);
        for (ballot, upto) in &self.0 {
            ballot.encode(writer);
            writer.u64(upto.0);
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let count = usize::from(reader.u8("decisions")?);
        if count > BALLOTS_MAX {
            return Err(DecodeError::Bad("decisions"));
        }
        let mut pairs: SmallVec<[(Ballot, Slot); 2]> = SmallVec::new();
        for _ in 0..count {
            let pair = (Ballot::decode(reader)?, reader.slot("decided slot")?);
            if pairs.last().is_some_and(|last| last.0 >= pair.0) || pair.1 == Slot(0) {
                return Err(DecodeError::Bad("decisions"));
            }
            pairs.push(pair);
        }
        Ok(Self(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, ReplicaId};

    fn ballot(round: u64) -> Ballot {
        let owner = ReplicaId(1);
        Ballot { round, owner }
    }

    #[test]
    fn entry_of_the_very_ballot_counts_and_no_other() {
        let mut decisions = Decisions::default();
        decisions.learn(ballot(7), Slot(95));
        decisions.learn(ballot(3), Slot(40));
        decisions.learn(ballot(3), Slot(30));
        assert!(decisions.covers(Slot(95), ballot(7)) && !decisions.covers(Slot(96), ballot(7)));
        assert!(decisions.covers(Slot(40), ballot(3)) && !decisions.covers(Slot(41), ballot(3)));
        for other in [2, 5, 8] {
            assert!(!decisions.covers(Slot(1), ballot(other)));
        }
    }

    #[test]
    fn newest_ballots_are_kept_and_read_back() {
        let mut decisions = Decisions::default();
        decisions.learn(ballot(1), Slot(0));
        assert!(decisions.is_empty());
        for round in (1..=12).rev() {
            decisions.learn(ballot(round), Slot(round));
        }
        assert!(!decisions.covers(Slot(1), ballot(4)) && decisions.covers(Slot(1), ballot(5)));
        let bytes = decisions.encode_to_bytes();
        assert_eq!(Decisions::decode_all(bytes.clone()), Ok(decisions.clone()));
        for at in 0..bytes.len() {
            let mut bad = bytes.to_vec();
            bad[at] ^= 0xff;
            let _ = Decisions::decode_all(Bytes::from(bad));
        }
        let mut merged = Decisions::default();
        merged.merge(&decisions);
        assert_eq!(merged, decisions);
    }
}

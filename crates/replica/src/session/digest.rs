//! Hashing all sessions as they are at one moment, in steps between which commands continue.
//!
//! ```text
//!   begin ──► owners hashed at once, being few ──► sessions: one owner's after another's
//!   a session about to change or end ──► hashed at once, as it is; its mark says so
//! ```

use super::{Owner, Session, SessionId, Sessions};
use crate::digest::{StateSum, put_bytes};
use alloc::vec::Vec;

/// A digest of sessions in progress.
#[derive(Debug)]
pub(super) struct SessionDigest {
    mark: u32,
    sum: StateSum,
    /// Owners whose sessions have not been listed yet; sessions opened since carry the mark.
    owners: Vec<u64>,
    owner: u64,
    /// Of that owner, the sessions still to be looked at.
    numbers: Vec<u64>,
}

impl SessionDigest {
    pub(super) fn add(&mut self, id: SessionId, session: &mut Session) {
        if session.mark == self.mark {
            return;
        }
        session.mark = self.mark;
        let part = self.sum.begin_part();
        part.extend_from_slice(&id.owner.to_le_bytes());
        part.extend_from_slice(&id.number.to_le_bytes());
        part.extend_from_slice(&session.executed.to_le_bytes());
        let mut apart = 0;
        for (sequence, reply) in &session.replies {
            part.extend_from_slice(&sequence.to_le_bytes());
            apart += put_bytes(part, reply);
        }
        self.sum.count_work(apart);
        self.sum.end_part();
    }

    /// All sessions of an owner, which end.
    pub(super) fn add_all(&mut self, owner: u64, of: &mut Owner) {
        for (number, session) in &mut of.sessions {
            let number = *number;
            self.add(SessionId { owner, number }, session);
        }
    }

    fn add_owner(&mut self, id: u64, owner: &Owner) {
        let part = self.sum.begin_part();
        part.extend_from_slice(&id.to_le_bytes());
        part.extend_from_slice(&owner.renewed.0.to_le_bytes());
        part.extend_from_slice(&owner.opened_floor.to_le_bytes());
        for number in &owner.opened_above {
            part.extend_from_slice(&number.to_le_bytes());
        }
        self.sum.end_part();
    }
}

impl Sessions {
    /// Begins to hash the sessions as they are now; one in progress is dropped.
    pub(crate) fn begin_digest(&mut self) {
        self.digest_mark = self.digest_mark.wrapping_add(1).max(1);
        let mut digest = SessionDigest {
            mark: self.digest_mark,
            sum: StateSum::default(),
            owners: Vec::with_capacity(self.owners.len()),
            owner: 0,
            numbers: Vec::new(),
        };
        if self.opens_from > crate::CommandTime(0) {
            let part = digest.sum.begin_part();
            part.extend_from_slice(&self.opens_from.0.to_le_bytes());
            digest.sum.end_part();
        }
        for (id, owner) in &self.owners {
            digest.add_owner(*id, owner);
            digest.owners.push(*id);
        }
        self.digest = Some(digest);
    }

    /// Continues for about `budget` bytes; gives the digest at the end.
    pub(crate) fn digest_step(&mut self, budget: usize) -> Option<u128> {
        let digest = self.digest.as_mut()?;
        let stop = digest.sum.work().saturating_add(budget);
        while digest.sum.work() < stop {
            let Some(number) = digest.numbers.pop() else {
                let Some(next) = digest.owners.pop() else {
                    return self.digest.take().map(|digest| digest.sum.finish());
                };
                digest.owner = next;
                if let Some(owner) = self.owners.get(&next) {
                    digest.numbers.extend(owner.sessions.keys());
                }
                continue;
            };
            let owner = digest.owner;
            let found = self.owners.get_mut(&owner);
            if let Some(session) = found.and_then(|owner| owner.sessions.get_mut(&number)) {
                digest.add(SessionId { owner, number }, session);
            }
        }
        None
    }

    /// Drops the digest in progress.
    pub(crate) fn abandon_digest(&mut self) {
        self.digest = None;
    }

    /// Must be called before a session changes.
    #[inline]
    pub(super) fn before_change(&mut self, id: SessionId) {
        if let Some(digest) = &mut self.digest {
            let owner = self.owners.get_mut(&id.owner);
            if let Some(session) = owner.and_then(|owner| owner.sessions.get_mut(&id.number)) {
                digest.add(id, session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use proptest::prelude::*;

    fn whole(sessions: &mut Sessions) -> u128 {
        sessions.begin_digest();
        sessions.digest_step(usize::MAX).expect("all at once")
    }

    #[derive(Clone, Debug)]
    enum Step {
        Open(u8, u8),
        Execute(u8, u8, u8),
        Close(u8, u8),
        Renew(u8),
        Pass(u8),
        Hash,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1u8..4, 1u8..6).prop_map(|(owner, number)| Step::Open(owner, number)),
            6 => (1u8..4, 1u8..6, any::<u8>()).prop_map(|(o, n, byte)| Step::Execute(o, n, byte)),
            1 => (1u8..4, 1u8..6).prop_map(|(owner, number)| Step::Close(owner, number)),
            1 => (1u8..4).prop_map(Step::Renew),
            1 => (1u8..40).prop_map(Step::Pass),
            2 => Just(Step::Hash),
        ]
    }

    fn apply(sessions: &mut Sessions, time: &mut u64, step: &Step) {
        let id = |owner, number| SessionId {
            owner: u64::from(owner),
            number: u64::from(number),
        };
        let now = CommandTime(*time);
        match *step {
            Step::Open(owner, number) => {
                sessions.open(id(owner, number), now, now);
            }
            Step::Execute(owner, number, byte) => {
                let id = id(owner, number);
                let known = sessions.owners.get(&id.owner);
                let known = known.and_then(|owner| owner.sessions.get(&id.number));
                let next = known.map_or(1, |session| session.executed + 1);
                let open = u16::from(byte % 3);
                let dropping = sessions.admit(id, next, open, now).is_ok_and(|admitted| {
                    let reply = alloc::vec![byte; usize::from(byte) * 9];
                    admitted.executed(Some(&reply))
                });
                if dropping {
                    sessions.drop_largest();
                }
            }
            Step::Close(owner, number) => sessions.close(id(owner, number), now),
            Step::Renew(owner) => {
                sessions.renew(u64::from(owner), now);
            }
            Step::Pass(seconds) => *time += u64::from(seconds) * 1_000_000_000,
            Step::Hash => {}
        }
    }

    proptest! {
        /// A digest taken in steps, with changes between them, is that of its beginning.
        #[test]
        fn digest_is_of_its_beginning_whatever_changes(
            steps in prop::collection::vec(step(), 1..80),
            begin in 0usize..80,
        ) {
            // Replies that are dropped because all are too many change sessions, too.
            let mut sessions = Sessions::new(Duration::from_secs(60)).keeping(KeptReplies {
                reply_bytes_max: 2000,
                bytes_max: 3000,
            });
            let (mut time, mut expected, mut got) = (0, None, None);
            for (at, step) in steps.iter().enumerate() {
                if at == begin {
                    expected = Some(whole(&mut sessions));
                    sessions.begin_digest();
                }
                apply(&mut sessions, &mut time, step);
                if matches!(step, Step::Hash) && got.is_none() {
                    got = sessions.digest_step(1);
                }
            }
            if expected.is_some() && got.is_none() {
                got = sessions.digest_step(usize::MAX);
            }
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn digest_shows_every_kept_reply_and_survives_a_snapshot() {
        let make = |reply: &[u8]| {
            let mut sessions = Sessions::new(Duration::from_secs(60));
            let id = SessionId {
                owner: 5,
                number: 1,
            };
            sessions.open(id, CommandTime(0), CommandTime(10));
            assert!(sessions.execute(id, 1, CommandTime(11), Some(reply)));
            sessions
        };
        let mut one = make(b"one");
        assert_ne!(whole(&mut one), whole(&mut make(b"two")));
        let mut scratch = bytes::BytesMut::new();
        let mut writer = Writer::new(&mut scratch);
        one.encode(&mut writer);
        let mut copy = Sessions::new(Duration::from_secs(60));
        copy.decode(&mut Reader::new(writer.finish().into_bytes()))
            .expect("it decodes");
        assert_eq!(whole(&mut copy), whole(&mut one));
    }
}

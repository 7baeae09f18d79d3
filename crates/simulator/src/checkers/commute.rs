//! Commuting pairs: two commands whose footprints do not conflict give the same replies and the
//! same state in both orders.
//!
//! ```text
//!   prefix ──┬─► one, other ──► replies, state
//!            └─► other, one ──► the same replies, the same state
//! ```
//!
//! A protocol that orders only what conflicts relies on nothing else: a footprint that leaves a key
//! out makes its replicas differ.

use super::Violation;
use quintet_replica::{
    Access, At, CommandId, CommandTime, FootprintVisitor, Position, SessionId, StateMachine,
};

/// Which keys a command touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    keys: Vec<(u64, Access)>,
    everything: Option<Access>,
}

impl FootprintVisitor for Footprint {
    fn key(&mut self, hash: u64, access: Access) {
        self.keys.push((hash, access));
    }

    fn everything(&mut self, access: Access) {
        if self.everything != Some(Access::Write) {
            self.everything = Some(access);
        }
    }
}

impl Footprint {
    /// The footprint of `command`.
    #[must_use]
    pub fn of(machine: &dyn StateMachine, command: &[u8]) -> Self {
        let mut footprint = Self::default();
        machine.footprint(command, &mut footprint);
        footprint
    }

    fn writes(&self) -> bool {
        self.everything == Some(Access::Write)
            || self.keys.iter().any(|(_, access)| *access == Access::Write)
    }

    /// Whether the order of two commands with these footprints matters.
    #[must_use]
    pub fn conflicts(&self, other: &Self) -> bool {
        if self.everything.is_some() || other.everything.is_some() {
            return self.writes() || other.writes();
        }
        self.keys.iter().any(|(hash, access)| {
            let mut same = other.keys.iter().filter(|(theirs, _)| theirs == hash);
            same.any(|(_, theirs)| *access == Access::Write || *theirs == Access::Write)
        })
    }
}

/// The `number`th command's place; times ascend with the numbers.
fn at(number: u64) -> At {
    let session = SessionId {
        owner: 1,
        number: 1,
    };
    At {
        position: Position(number),
        time: CommandTime(1_700_000_000_000_000_000 + number * 1_000_000),
        id: CommandId {
            session,
            sequence: number,
        },
    }
}

/// Applies the pair after `prefix` in both orders to machines made by `fresh`. False when the
/// footprints conflict, and so nothing is to be shown.
///
/// # Errors
/// When a reply or the state depends on the order.
pub fn check(
    fresh: &dyn Fn() -> Box<dyn StateMachine>,
    prefix: &[Vec<u8>],
    pair: [&[u8]; 2],
) -> Result<bool, Violation> {
    let machine = fresh();
    let footprints = pair.map(|command| Footprint::of(&*machine, command));
    if footprints[0].conflicts(&footprints[1]) {
        return Ok(false);
    }
    let run = |order: [usize; 2]| {
        let mut machine = fresh();
        let mut reply = Vec::new();
        for (number, command) in prefix.iter().enumerate() {
            reply.clear();
            machine.apply(&at(number as u64 + 1), command, &mut reply);
        }
        let mut replies = [Vec::new(), Vec::new()];
        for index in order {
            // A command keeps its time and its id in whichever order it comes.
            let place = at((prefix.len() + index) as u64 + 1);
            machine.apply(&place, pair[index], &mut replies[index]);
        }
        (replies, machine.digest())
    };
    let (one, other) = (run([0, 1]), run([1, 0]));
    if one == other {
        return Ok(true);
    }
    let differ = if one.0 == other.0 { "state" } else { "replies" };
    Err(Violation::new(
        "commute",
        format!(
            "the {differ} of two commands with footprints {footprints:?} depend on their order: \
             {} and {}",
            pair[0].escape_ascii(),
            pair[1].escape_ascii()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        drawing::draw_any,
        machine::{Operation, Registers, encode_command},
        random::Random,
        service::Service,
    };
    use quintet_replica::{RestoreError, SnapshotProgress};
    use quintet_store::{Store, StoreOptions};

    /// How many of `tries` drawn pairs commute, as they must.
    fn commuting(
        fresh: &dyn Fn() -> Box<dyn StateMachine>,
        draw: &mut dyn FnMut(u64) -> Vec<u8>,
        tries: u64,
    ) -> u64 {
        let mut shown = 0;
        for number in 0..tries {
            let prefix: Vec<Vec<u8>> = (0..12).map(|step| draw(number * 20 + step)).collect();
            let (one, other) = (draw(number * 20 + 18), draw(number * 20 + 19));
            shown += u64::from(check(fresh, &prefix, [&one, &other]).unwrap());
        }
        shown
    }

    #[test]
    fn commands_of_the_store_commute_when_their_footprints_do() {
        let mut random = Random::new(7);
        let mut draw =
            |number| Service::Store.encode(number, &draw_any(6, number, &mut random), &[], None);
        let fresh = || Box::new(Store::new(StoreOptions::default())) as Box<dyn StateMachine>;
        let shown = commuting(&fresh, &mut draw, 2000);
        assert!(shown > 500, "{shown}");
    }

    #[test]
    fn registers_commute_when_their_keys_differ() {
        let mut random = Random::new(8);
        let mut draw = |number| {
            let operation = match random.below(3) {
                0 => Operation::Read,
                1 => Operation::Write(number),
                _ => Operation::Append(number),
            };
            encode_command(number, random.below(3) as u32, operation).to_vec()
        };
        let fresh = || Box::new(Registers::new(3, 0, 100)) as Box<dyn StateMachine>;
        assert!(commuting(&fresh, &mut draw, 500) > 200);
    }

    /// Counts all commands, whatever key they say that they touch.
    #[derive(Default)]
    struct Liar(u64);

    impl StateMachine for Liar {
        fn apply(&mut self, _: &At, _: &[u8], reply: &mut Vec<u8>) {
            self.0 += 1;
            reply.push(self.0 as u8);
        }
        fn query(&self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
        fn snapshot_chunk(&mut self, _: &mut Vec<u8>, _: usize) -> SnapshotProgress {
            SnapshotProgress::Done
        }
        fn restore_chunk(&mut self, _: &[u8]) -> Result<(), RestoreError> {
            Ok(())
        }
        fn finish_restore(&mut self) -> Result<(), RestoreError> {
            Ok(())
        }
        fn footprint(&self, command: &[u8], visit: &mut dyn FootprintVisitor) {
            visit.key(command[0].into(), Access::Write);
        }
        fn digest(&self) -> u128 {
            self.0.into()
        }
    }

    #[test]
    fn footprint_that_leaves_something_out_is_seen() {
        let fresh = || Box::new(Liar::default()) as Box<dyn StateMachine>;
        assert_eq!(check(&fresh, &[], [b"a", b"a"]), Ok(false));
        let violation = check(&fresh, &[], [b"a", b"b"]).unwrap_err();
        assert!(violation.what.contains("replies"), "{violation}");
    }

    #[test]
    fn whole_state_footprint_conflicts_with_every_write() {
        let of = |keys: &[(u64, Access)], everything| Footprint {
            keys: keys.to_vec(),
            everything,
        };
        let (read, write) = (
            of(&[(1, Access::Read)], None),
            of(&[(1, Access::Write)], None),
        );
        let all = of(&[], Some(Access::Read));
        assert!(!read.conflicts(&read) && read.conflicts(&write) && write.conflicts(&write));
        assert!(all.conflicts(&write) && write.conflicts(&all) && !all.conflicts(&read));
        assert!(of(&[], Some(Access::Write)).conflicts(&read));
    }
}

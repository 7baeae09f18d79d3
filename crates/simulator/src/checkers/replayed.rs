//! Snapshot equals replay: a fresh machine that executes the agreed order one command after the
//! other comes to the same states and gives the same replies as the replicas, which restarted,
//! restored and caught up on the way.
//!
//! ```text
//!   agreed order ──► fresh machine ──┬─ state before position p ◄──► what replicas had there
//!                                    ├─ reply to each command   ◄──► what its client was answered
//!                                    └─ reply to each read      ◄──► what the replica said that
//!                                                                    had executed up to there
//! ```
//!
//! The last one is what a stale read promises: it may be old, but it was true once.

use super::{Violation, agreement::Agreement, state_hash::StateHash};
use crate::machine::{Queried, hash_bytes};
use quintet_replica::{At, CommandId, Position, StateMachine};

const PROPERTY: &str = "replayed";

/// A reply of the fresh machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed<'a> {
    /// To which operation.
    pub number: u64,
    /// The replica that answered it from its state, if it was a read out of order.
    pub read_at: Option<u16>,
    /// The bytes.
    pub reply: &'a [u8],
}

/// Executes `order` on `machine`, which is fresh. `payload` gives an operation's bytes; `replied`
/// compares a reply with what the client got. `queries` are sorted by position.
///
/// # Errors
/// With the first state or reply that differs.
pub fn check(
    order: &Agreement,
    states: &StateHash,
    queries: &[(u16, Queried)],
    machine: &mut dyn StateMachine,
    payload: impl Fn(u64) -> Vec<u8>,
    mut replied: impl FnMut(Replayed<'_>) -> Result<(), Violation>,
) -> Result<u64, Violation> {
    let mut queries = queries.iter().peekable();
    let mut reply = Vec::new();
    let mut last = 0;
    loop {
        while let Some((by, queried)) = queries.next_if(|(_, queried)| queried.position == last) {
            let number = queried.id.sequence.wrapping_sub(1);
            let at = At {
                position: Position(last),
                time: queried.time,
                id: queried.id,
            };
            reply.clear();
            machine.query(&at, &payload(number), &mut reply);
            if reply != queried.reply {
                return Err(Violation::new(
                    PROPERTY,
                    format!(
                        "replica {by} answered read {number} at position {last} with {}, a fresh \
                         machine with {}",
                        queried.reply.escape_ascii(),
                        reply.escape_ascii()
                    ),
                ));
            }
            replied(Replayed {
                number,
                read_at: Some(*by),
                reply: &reply,
            })?;
        }
        // A hole in the order: no watched replica executed it. The following positions are unknown.
        let Some((time, commands)) = order.at(last + 1) else {
            return Ok(last);
        };
        last += 1;
        if let Some((by, hash)) = states.machine_before(last) {
            let fresh = machine.digest();
            if fresh != hash {
                return Err(Violation::new(
                    PROPERTY,
                    format!(
                        "before position {last} replica {by} had state {hash:x}, a fresh machine \
                         has {fresh:x}"
                    ),
                ));
            }
        }
        let mut at = At {
            position: Position(last),
            time,
            id: CommandId::default(),
        };
        machine.tick(&at);
        for command in commands {
            let bytes = payload(command.number);
            if hash_bytes(&bytes) != command.hash {
                let what = format!("operation {} was not executed as sent", command.number);
                return Err(Violation::new(PROPERTY, what));
            }
            at.id = command.id;
            reply.clear();
            machine.apply(&at, &bytes, &mut reply);
            replied(Replayed {
                number: command.number,
                read_at: None,
                reply: &reply,
            })?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        checkers::agreement::Applied,
        machine::{Operation, Registers, encode_command},
    };
    use quintet_replica::CommandTime;

    fn payload(number: u64) -> Vec<u8> {
        let operation = match number {
            2 => Operation::Read,
            add => Operation::Add(add + 1),
        };
        encode_command(number, 0, operation).to_vec()
    }

    /// The results of operations 0 and 1 at a replica, and a read after the first.
    fn watched() -> (Agreement, StateHash, Vec<(u16, Queried)>) {
        let mut machine = Registers::new(1, 0, 100);
        let (mut order, mut states) = (Agreement::default(), StateHash::default());
        let mut queries = Vec::new();
        for number in 0..2 {
            let position = number + 1;
            states.before(0, position, machine.digest()).unwrap();
            let applied = Applied {
                id: CommandId::default(),
                number,
                hash: hash_bytes(&payload(number)),
            };
            order
                .executed(0, position, CommandTime(position), &[applied])
                .unwrap();
            machine.apply(&At::default(), &payload(number), &mut Vec::new());
            if number == 0 {
                let mut reply = Vec::new();
                machine.query(&At::default(), &payload(2), &mut reply);
                let id = CommandId {
                    sequence: 3,
                    ..CommandId::default()
                };
                let queried = Queried {
                    id,
                    position,
                    time: CommandTime(1),
                    reply,
                };
                queries.push((0, queried));
            }
        }
        (order, states, queries)
    }

    fn verdict(
        order: &Agreement,
        states: &StateHash,
        queries: &[(u16, Queried)],
    ) -> Result<usize, Violation> {
        let mut replies = 0;
        let mut machine = Registers::new(1, 0, 100);
        check(order, states, queries, &mut machine, payload, |_| {
            replies += 1;
            Ok(())
        })?;
        Ok(replies)
    }

    #[test]
    fn executions_of_replica_match_fresh_machine() {
        let (order, states, queries) = watched();
        assert_eq!(verdict(&order, &states, &queries), Ok(3));
    }

    #[test]
    fn read_that_was_never_true_is_seen() {
        let (order, states, mut queries) = watched();
        queries[0].1.reply[9] ^= 1;
        assert!(verdict(&order, &states, &queries).is_err());
    }

    #[test]
    fn state_that_does_not_follow_is_seen() {
        let (order, _, queries) = watched();
        let mut states = StateHash::default();
        states.before(0, 2, 7).unwrap();
        assert!(verdict(&order, &states, &queries).is_err());
    }

    #[test]
    fn reply_that_differs_is_told() {
        let (order, states, queries) = watched();
        let mut machine = Registers::new(1, 0, 100);
        let refuse = |replayed: Replayed<'_>| match replayed.number {
            1 => Err(Violation::new(PROPERTY, "another reply")),
            _ => Ok(()),
        };
        assert!(check(&order, &states, &queries, &mut machine, payload, refuse).is_err());
    }
}

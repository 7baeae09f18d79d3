//! Acknowledged is durable: what a client was told is done is in the state of every replica of the
//! healed core.
//!
//! ```text
//!   acknowledged write ──► its position in the agreed order ≤ executed position of each replica
//! ```
//!
//! With agreement and equal state hashes this puts the write's effect into every state.

use super::{Violation, exactly_once::ExactlyOnce};
use crate::history::{Asked, Fate, Recorded};
use std::fmt::Debug;

/// Checks the history's acknowledged writes against the replicas `core` as `(id, executed
/// position)`.
///
/// # Errors
/// With the first write that is missing somewhere.
pub fn check<O: Asked + Debug, R: Debug>(
    history: &[Recorded<O, R>],
    order: &ExactlyOnce,
    core: &[(u16, u64)],
) -> Result<(), Violation> {
    for (number, recorded) in history.iter().enumerate() {
        if !matches!(recorded.fate, Fate::Done(..)) || recorded.operation.is_read() {
            continue;
        }
        let Some(position) = order.position(number) else {
            let what =
                format!("operation {number} was acknowledged and nowhere executed: {recorded:?}");
            return Err(Violation::new("durable", what));
        };
        if let Some((id, executed)) = core.iter().find(|(_, executed)| *executed < position) {
            return Err(Violation::new(
                "durable",
                format!(
                    "operation {number} was acknowledged at position {position}; after healing \
                     replica {id} stands at {executed}: {recorded:?}"
                ),
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        checkers::agreement::Applied,
        history::History,
        machine::{Operation, Reply},
    };
    use quintet_replica::{CommandId, SessionId};

    #[test]
    fn acknowledged_write_must_be_everywhere() {
        let mut history = History::default();
        let number = history.invoke(0, 0, Operation::Write(1));
        let mut order = ExactlyOnce::default();
        assert_eq!(check(history.operations(), &order, &[(0, 0)]), Ok(()));
        history.done(number, Reply::Written);
        assert!(check(history.operations(), &order, &[(0, 9)]).is_err());
        let session = SessionId {
            owner: 1,
            number: 1,
        };
        let id = CommandId {
            session,
            sequence: 1,
        };
        order
            .executed(
                4,
                &Applied {
                    id,
                    number: 0,
                    hash: 0,
                },
            )
            .unwrap();
        assert_eq!(
            check(history.operations(), &order, &[(0, 4), (1, 5)]),
            Ok(())
        );
        assert!(check(history.operations(), &order, &[(0, 4), (1, 3)]).is_err());
    }
}

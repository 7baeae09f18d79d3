//! Agreement: every replica executes the same batch at the same position.
//!
//! ```text
//!   replica 0   1:a  2:b  3:c
//!   replica 1   1:a  2:b            first to execute a position writes it down,
//!   replica 2   1:a  2:X ◄─ violation      all others must do the same there
//! ```

use super::Violation;
use quintet_replica::{CommandId, CommandTime};

/// One command as it stands in the agreed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Which.
    pub id: CommandId,
    /// Its operation number.
    pub number: u64,
    /// A hash of its bytes.
    pub hash: u64,
}

#[derive(Debug, Default)]
struct Position {
    time: CommandTime,
    first: u16,
    commands: Vec<Applied>,
}

/// The agreed order, as far as any replica has executed it.
#[derive(Debug, Default)]
pub struct Agreement {
    /// Index = position - 1. Snapshots let a replica begin anywhere, so holes are possible.
    positions: Vec<Option<Position>>,
}

impl Agreement {
    /// Replica `by` has executed `commands` at `position`. True when it is the first to do so.
    ///
    /// # Errors
    /// When another replica, or this one before a restart, executed something else there.
    pub fn executed(
        &mut self,
        by: u16,
        position: u64,
        time: CommandTime,
        commands: &[Applied],
    ) -> Result<bool, Violation> {
        let index = position as usize - 1;
        if index >= self.positions.len() {
            self.positions.resize_with(index + 1, || None);
        }
        match &self.positions[index] {
            None => {
                let commands = commands.to_vec();
                self.positions[index] = Some(Position {
                    time,
                    first: by,
                    commands,
                });
                Ok(true)
            }
            Some(agreed) if agreed.time == time && agreed.commands == commands => Ok(false),
            Some(agreed) => Err(Violation::new(
                "agreement",
                format!(
                    "at position {position} replica {by} executed {commands:?} at {}, replica {} \
                     {:?} at {}",
                    time.0, agreed.first, agreed.commands, agreed.time.0
                ),
            )),
        }
    }
}

impl Agreement {
    /// The batch executed at a position, if a replica was seen to execute it.
    #[must_use]
    pub fn at(&self, position: u64) -> Option<(CommandTime, &[Applied])> {
        let index = usize::try_from(position.checked_sub(1)?).ok()?;
        let agreed = self.positions.get(index)?.as_ref()?;
        Some((agreed.time, &agreed.commands))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(number: u64) -> Applied {
        Applied {
            id: CommandId::default(),
            number,
            hash: number,
        }
    }

    #[test]
    fn same_batch_everywhere_is_agreement_and_another_is_not() {
        let mut agreement = Agreement::default();
        let time = CommandTime(5);
        assert_eq!(agreement.executed(0, 1, time, &[command(1)]), Ok(true));
        assert_eq!(agreement.executed(1, 1, time, &[command(1)]), Ok(false));
        assert_eq!(agreement.executed(1, 2, time, &[]), Ok(true));
        assert!(agreement.executed(2, 1, time, &[command(2)]).is_err());
        assert!(agreement.executed(2, 2, CommandTime(6), &[]).is_err());
    }
}

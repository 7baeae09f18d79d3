//! How much of what may be executed and read is done at one moment.
//!
//! ```text
//!   a turn:   take in what came ─► pass it on ─► execute, answer reads: a share ─► the turn ends,
//!                                                        │ the rest                and all leaves
//!   next:     take in what came ─► pass it on ─► ◄───────┘ …
//! ```
//!
//! Messages that a turn forwards leave when the turn is over. A replica that ran all that had
//! gathered would hold up everyone behind it for as long, each in its turn, and meanwhile as much
//! would gather with them: a round would take as long as all replicas' work together.

use core::time::Duration;
use quintet_replica::{Time, Wake};

/// Commands executed at once whatever other work there is, in bytes.
const BYTES: usize = 4 << 10;
/// A read costs as much as a command that is that many times as long: its answer goes to a client.
const READ: usize = 4;
/// Of the slots that wait, such a part is run at one moment at least: who falls behind runs more
/// at a time, so that what waits stays in proportion to what comes.
const SLOTS: u64 = 4;
/// The same of reads, which delay no other replica.
const READS: u64 = 32;
/// A moment that is not this one.
const SOON: Duration = Duration::from_nanos(1);

/// The executed part.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Share {
    moment: Time,
    spent: usize,
}

impl Share {
    /// The part of that many slots and reads that is executed now however long they are.
    pub fn of(&mut self, slots: u64, reads: u64, now: Time) -> (u64, u64) {
        if now == self.moment && self.spent > 0 {
            return (0, 0);
        }
        *self = Self {
            moment: now,
            spent: 0,
        };
        (slots.div_ceil(SLOTS), reads.div_ceil(READS))
    }

    /// A command of that many bytes is run.
    pub const fn execute(&mut self, bytes: usize) {
        self.spent += bytes;
    }

    /// A read of that many bytes is run.
    pub const fn read(&mut self, bytes: usize) {
        self.spent += bytes * READ;
    }

    /// Whether the rest waits for the next moment.
    pub const fn is_spent(&self) -> bool {
        self.spent >= BYTES
    }

    /// When that is.
    pub fn next(&self) -> Wake {
        Wake::At(self.moment + SOON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_has_one_share_and_the_next_another() {
        let mut share = Share::default();
        assert_eq!(share.of(100, 100, Time(5)), (25, 4));
        assert!(!share.is_spent());
        share.execute(BYTES - 1);
        assert!(!share.is_spent());
        share.read(1);
        assert!(share.is_spent());
        assert_eq!(share.of(100, 100, Time(5)), (0, 0), "the same moment");
        assert!(share.is_spent());
        assert_eq!(share.next(), Wake::At(Time(6)));
        assert_eq!(share.of(3, 1, Time(6)), (1, 1));
        assert!(!share.is_spent());
    }
}

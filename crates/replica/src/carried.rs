//! Batches that continue from an epoch into the next one.

use crate::{BatchId, Level, Outcome, Submission};
use alloc::collections::BTreeSet;

/// The ordered batches that the protocol of an earlier epoch had in progress. It may have ordered
/// them, so that of none of them can be said any more that it was certainly not executed.
#[derive(Default, Hash)]
pub(crate) struct Carried(BTreeSet<BatchId>);

impl Carried {
    /// The batch is submitted again, in a later epoch.
    pub fn carry(&mut self, submission: &Submission) {
        if submission.level == Level::Ordered {
            self.0.insert(submission.id);
        }
    }

    /// How a batch ended, as far as its earlier protocols leave that certain; it is over then.
    pub fn end(&mut self, batch: BatchId, outcome: &mut Outcome) {
        let certain = matches!(outcome, Outcome::NoQuorum | Outcome::Busy);
        if self.0.remove(&batch) && certain {
            *outcome = Outcome::Uncertain;
        }
    }
}

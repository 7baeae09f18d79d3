//! A node's side of the end of an epoch: who may offer it, and who sees that it has come.
//!
//! ```text
//!   offer_seal ──► a batch of its own ──► ordered like any other ──► executor ──► sealed()
//!   a batch of clients that would do the same ──► refused, see `refuse_seal`
//! ```

use super::*;
use crate::{Descriptor, DescriptorError, Seal};

/// An end of the epoch that is offered for longer than this is given up; it may come all the same.
const SEAL_TIMEOUT: Duration = Duration::from_secs(4);
/// Descriptors are far shorter, and every batch takes so much.
const SEAL_BYTES_MAX: usize = 1 << 20;

/// Why the end of an epoch is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Nothing has an order, so nothing can end it.
    #[error("with these options nothing has an order, so that the epoch cannot end in it")]
    Unordered,
    /// The epoch has ended.
    #[error("the epoch has ended already")]
    Ended,
    /// It has ended here unless that is undone.
    #[error("another end of the epoch is being ordered")]
    Pending,
    /// Behind what decides whether it is valid, no program could read it.
    #[error("it is no whole description of an epoch")]
    Unreadable,
    /// No batch takes so much.
    #[error("a description of {0} bytes is too long to be ordered")]
    TooLong(usize),
    /// It would be refused wherever it is executed.
    #[error(
        "it does not describe an epoch that follows this one and may still begin, or this epoch \
         is of a feature level at which none can end"
    )]
    NoSuccessor,
}

impl Node {
    /// Offers the end of this epoch: the next one's descriptor is ordered as a batch of its own,
    /// and where the first such batch is executed, the epoch ends ([`Self::sealed`]). The caller
    /// gets no outcome; it may offer the end again.
    ///
    /// # Errors
    /// When it can be seen here that it would end nothing.
    pub fn offer_seal(
        &mut self,
        next: &[u8],
        world: &dyn World,
        out: &mut Vec<Output>,
    ) -> Result<(), SealError> {
        if self.unordered {
            return Err(SealError::Unordered);
        }
        if self.sealed().is_some() {
            return Err(SealError::Ended);
        }
        if self.executor.has_seal() || self.is_between_epochs() {
            return Err(SealError::Pending);
        }
        if !self.executor.is_successor(next) {
            return Err(SealError::NoSuccessor);
        }
        if next.len() > SEAL_BYTES_MAX {
            return Err(SealError::TooLong(next.len()));
        }
        match Descriptor::decode(Bytes::copy_from_slice(next)) {
            // A later program's can be ordered by an earlier one, which stops there.
            Ok(_) | Err(DescriptorError::Level(_)) => {}
            Err(DescriptorError::Malformed(_)) => return Err(SealError::Unreadable),
        }
        if !self.halted && !self.disk.is_hung() {
            self.submit_own(RequestKind::Seal, next, SEAL_TIMEOUT, world);
            self.carry_out(world, out);
        }
        Ok(())
    }

    /// How the epoch has ended, once that cannot be undone any more.
    #[must_use]
    pub fn sealed(&self) -> Option<&Seal> {
        self.executor.sealed()
    }
}

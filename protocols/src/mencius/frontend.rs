//! The client's half: hand a batch to one replica, take the first results.

use super::{Mencius, Message};
use quintet_replica::{
    BatchId, Bytes, Level,
    parts::{AttachedFrontend, RequestMessage, Taken},
};

/// Replicas suggest and answer by themselves, so the shared frontend is all that is
/// needed.
pub type Frontend = AttachedFrontend<Mencius>;

impl RequestMessage for Message {
    fn request(level: Level, batch: Bytes) -> Self {
        Self::Request { level, batch }
    }

    fn taken(&self) -> Option<(BatchId, Taken)> {
        match self {
            Self::Taken { batch, taken } => Some((*batch, *taken)),
            _ => None,
        }
    }
}

//! The client's half: hand a batch to one replica, take the first results.

use super::{ChainPaxos, Message};
use quintet_replica::{
    BatchId, Bytes, Level,
    parts::{AttachedFrontend, RequestMessage, Taken},
};

/// Any replica takes requests and answers them (§3.3), so the shared frontend is all it needs.
pub type Frontend = AttachedFrontend<ChainPaxos>;

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

//! The bounds of an executor, and those that its replicas agree on.

use crate::{KeptReplies, limits};
use alloc::string::ToString;
use core::time::Duration;

/// The bounds of an executor.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorLimits {
    /// An owner's sessions end when it is silent for this long.
    pub session_lifetime: Duration,
    /// The most batches of reads that wait for a slot; more are answered "busy" by silence, and
    /// the frontend tries again.
    pub queries_max: usize,
    /// About this many bytes of a fetched snapshot are restored in one turn: a few milliseconds'
    /// work, between which peers are answered.
    pub restore_step: usize,
    /// While a peer fetches this replica's state, this many bytes of the batches it executes are
    /// kept for the peer at most, and no more than its last snapshot had; see [`crate::Feed`].
    pub feed_bytes_max: u64,
    /// A state of this number of bytes in memory is saved ahead of a change of the epoch; a smaller
    /// one when the epoch has ended.
    pub bridge_bytes_min: u64,
    /// The most bytes of a peer's state that are asked for in a second; 0 for any number.
    pub transfer_rate_max: u64,
    /// The same while the peer executes commands, whose clients share disks and links with it.
    pub transfer_rate_busy: u64,
    /// A disk that has finished nothing for so long while a write waits hangs: the node hears and
    /// says nothing until it answers. Zero: none ever does.
    pub disk_hung_after: Duration,
    /// How often the members' paces are measured, so that a slow leader hands over; zero: never.
    pub pace_beat: Duration,
    /// Once the results of a batch have this many bytes, its further commands are not executed and
    /// answered [`RequestStatus::NotExecuted`](crate::RequestStatus::NotExecuted). Replicas must
    /// agree on it.
    pub batch_reply_bytes_max: usize,
    /// A longer reply of a request is dropped, and its client gets none. A state machine that keeps
    /// to the limit itself, before it changes anything, comes never so far. Replicas must agree on
    /// it.
    pub request_reply_bytes_max: usize,
    /// How much of the replies is kept. Replicas must agree on it.
    pub kept_replies: KeptReplies,
    /// How often this replica asks for digests of all replicas' states to be compared; zero for
    /// never. It takes part whenever another one asks.
    pub digest_interval: Duration,
}

impl ExecutorLimits {
    /// Takes over those that an epoch's members have agreed on; others stay as they are.
    pub fn agree(&mut self, terms: &crate::Terms) {
        let kept = &mut self.kept_replies;
        for (name, value) in terms {
            let size = usize::try_from(*value).unwrap_or(usize::MAX);
            match &name[..] {
                "session_lifetime_ms" => self.session_lifetime = Duration::from_millis(*value),
                "batch_reply_bytes_max" => self.batch_reply_bytes_max = size,
                "request_reply_bytes_max" => self.request_reply_bytes_max = size,
                "kept_reply_bytes_max" => kept.reply_bytes_max = size,
                "kept_replies_bytes_max" => kept.bytes_max = size,
                // The node's or the state machine's.
                _ => {}
            }
        }
    }

    /// Those that results depend on, by name: equal at all replicas.
    #[must_use]
    pub fn terms(&self) -> crate::Terms {
        let lifetime = u64::try_from(self.session_lifetime.as_millis()).unwrap_or(u64::MAX);
        let kept = &self.kept_replies;
        [
            ("session_lifetime_ms", lifetime),
            ("batch_reply_bytes_max", self.batch_reply_bytes_max as u64),
            (
                "request_reply_bytes_max",
                self.request_reply_bytes_max as u64,
            ),
            ("kept_reply_bytes_max", kept.reply_bytes_max as u64),
            ("kept_replies_bytes_max", kept.bytes_max as u64),
        ]
        .map(|(name, value)| (name.to_string(), value))
        .to_vec()
    }
}

/// The default of [`ExecutorLimits::feed_bytes_max`].
pub const FEED_BYTES_MAX: u64 = 1 << 30;

/// The default of [`ExecutorLimits::transfer_rate_busy`].
pub const TRANSFER_RATE_BUSY: u64 = 100 << 20;

impl Default for ExecutorLimits {
    fn default() -> Self {
        Self {
            session_lifetime: Duration::from_secs(120),
            queries_max: 65_536,
            restore_step: 512 * 1024,
            disk_hung_after: crate::DISK_HUNG_AFTER,
            pace_beat: crate::parts::PACE_BEAT,
            feed_bytes_max: FEED_BYTES_MAX,
            bridge_bytes_min: 16 << 20,
            transfer_rate_max: 0,
            transfer_rate_busy: TRANSFER_RATE_BUSY,
            batch_reply_bytes_max: limits::BATCH_REPLY_BYTES,
            request_reply_bytes_max: limits::REQUEST_REPLY_BYTES_MAX,
            kept_replies: KeptReplies::default(),
            digest_interval: Duration::ZERO,
        }
    }
}

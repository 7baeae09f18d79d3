//! How long things may be: one chain, so that whatever is accepted passes through all that follows.
//!
//! ```text
//!   value < command < request < batch < message < frame         on the way in
//!   reply of a command < results of a request < of a batch < frame    on the way out
//! ```
//!
//! The part that sees a value first rejects one that is too long, with an error that names the
//! limit. The first link, the longest value, is configured (at most [`VALUE_BYTES_LIMIT`]); the
//! others follow from it. The assertions at the end hold the chain together at the largest value.

const MIB: usize = 1 << 20;

/// No configuration may allow longer values.
pub const VALUE_BYTES_LIMIT: usize = 256 * MIB;
/// The default limit of a value's length.
pub const VALUE_BYTES_MAX: usize = 64 * MIB;
/// A command may have so much besides its longest value: keys, further arguments, their lengths.
const COMMAND_ROOM: usize = MIB;
/// A connection's commands are gathered into one request up to so much; the one that exceeds it is
/// still taken.
pub const REQUEST_GATHERED: usize = MIB;
/// Room in a request besides its commands: watched keys, a reply made by the server.
const REQUEST_ROOM: usize = 2 * MIB;
/// Requests are gathered into one batch up to so much; the one that exceeds it is still taken.
pub const BATCH_GATHERED: usize = 4 * MIB;
/// Room in a batch besides its requests: its header, sessions opened and ended.
const BATCH_ROOM: usize = MIB;
/// Batches that follow a fetched state are sent in parts of about so much.
pub(crate) const FEED_PART: usize = MIB;
/// Protocols gather batches into one message up to their `batch_bytes_max`, which is no more than
/// this; a batch that exceeds it is still taken.
pub const MESSAGE_GATHERED: usize = 64 * MIB;
/// More than any message has besides its batches.
const MESSAGE_ROOM: usize = MIB;
/// No frame is longer, whatever it carries and by whichever transport.
pub const FRAME_BYTES_MAX: usize = 512 * MIB;
/// A link's queue has room for this many bytes, which is what protocols keep to …
pub const LINK_QUEUE_BYTES: usize = 64 * MIB;
/// … but while it has at most this many it takes one message of any length.
pub const LINK_QUEUE_LOW: usize = LINK_QUEUE_BYTES / 4;
/// Room for short messages on the control lane, however much waits on the bulk lane.
pub const LINK_RESERVE: usize = MIB;
/// A link is broken when more bytes than this are queued and another message comes: the sender does
/// not look at the room. A handler that sends two of the longest messages in one turn, before the
/// room shows it, and a proxy with as much in progress as may be, stay below.
pub const LINK_QUEUE_HARD: usize = 384 * MIB;

/// Once the results of a batch have this many bytes, its further commands are not executed in it.
pub const BATCH_REPLY_BYTES: usize = 64 * MIB;
/// Once the replies of a request have this many bytes, its further commands are executed only if
/// they answer with a line.
pub const REQUEST_REPLY_BYTES: usize = 128 * MIB;
/// A large answer does not wait beside answers that have more bytes than that together: it is
/// dropped, and asked for again.
pub(crate) const HELD_BYTES: usize = 256 * MIB;
/// No further read waits for a state that is being restored beside reads that have more bytes than
/// that: it is dropped, and asked for again.
pub(crate) const DEFERRED_READ_BYTES: usize = 64 * MIB;
/// An answer up to so long is not a large one.
pub(crate) const HELD_SMALL: usize = MIB;
/// The replies of a request have no more bytes.
pub const REQUEST_REPLY_BYTES_MAX: usize = 392 * MIB;

/// The longest command, all its arguments together, where values may have this many bytes.
#[must_use]
pub const fn command_bytes_max(value_bytes_max: usize) -> usize {
    let value = if value_bytes_max > VALUE_BYTES_MAX {
        value_bytes_max
    } else {
        VALUE_BYTES_MAX
    };
    value + COMMAND_ROOM
}

/// The longest request: one connection's commands that are ordered as one.
#[must_use]
pub const fn request_bytes_max(value_bytes_max: usize) -> usize {
    command_bytes_max(value_bytes_max) + REQUEST_GATHERED + REQUEST_ROOM
}

/// The longest batch of requests.
#[must_use]
pub const fn batch_bytes_max(value_bytes_max: usize) -> usize {
    request_bytes_max(value_bytes_max) + BATCH_GATHERED + BATCH_ROOM
}

/// The longest batch that any configuration makes.
pub const BATCH_BYTES_LIMIT: usize = batch_bytes_max(VALUE_BYTES_LIMIT);

/// The longest reply to one command, where values may have this many bytes.
#[must_use]
pub const fn reply_bytes_max(value_bytes_max: usize) -> usize {
    let least = 128 * MIB;
    let value = value_bytes_max + MIB;
    if value > least { value } else { least }
}

/// The room of a link whose queues have this many bytes, on the control lane and on all together:
/// who sends large answers must see those that are still queued, on whatever lane.
#[must_use]
pub const fn link_room(control: usize, all: usize) -> usize {
    let room = LINK_QUEUE_BYTES.saturating_sub(all);
    let own = LINK_QUEUE_BYTES.saturating_sub(control);
    let short = if own < LINK_RESERVE {
        own
    } else {
        LINK_RESERVE
    };
    if room > short { room } else { short }
}

/// Whether a link whose queue has room for this many bytes takes a message of this length: one that
/// is longer than all of the room could otherwise never be sent.
#[must_use]
pub const fn link_takes(room: usize, bytes: usize) -> bool {
    room >= bytes || room >= LINK_QUEUE_BYTES - LINK_QUEUE_LOW && bytes <= FRAME_BYTES_MAX
}

/// Whether a queue of requests that may have `bytes_max` bytes, and has `queued`, takes one of this
/// length. One that is nearly empty takes any, as a link does: what could never be taken must not
/// be told to come again. Where requests count as [`queue_share`] says, one that is longer than
/// half of the queue leaves room for others.
#[must_use]
pub const fn queue_takes(queued: usize, bytes: usize, bytes_max: usize) -> bool {
    queued.saturating_add(bytes) <= bytes_max || queued < bytes_max / 4 && bytes > bytes_max / 2
}

/// The weight of a request of this length in a queue that may have `bytes_max` bytes.
#[must_use]
pub const fn queue_share(bytes: usize, bytes_max: usize) -> usize {
    let most = bytes_max / 2;
    if bytes < most { bytes } else { most }
}

/// The most bytes in a queue of requests that count for at most `bytes_max`.
#[must_use]
pub const fn queued_bytes_max(bytes_max: usize) -> usize {
    bytes_max.saturating_add(BATCH_BYTES_LIMIT)
}

const _: () = {
    let message = MESSAGE_GATHERED + BATCH_BYTES_LIMIT + MESSAGE_ROOM;
    assert!(message <= FRAME_BYTES_MAX, "a message is a frame");
    let before = LINK_QUEUE_BYTES + BATCH_BYTES_LIMIT;
    assert!(
        before <= LINK_QUEUE_HARD,
        "two messages in a turn break no link"
    );
    let request = REQUEST_REPLY_BYTES + reply_bytes_max(VALUE_BYTES_LIMIT) + 2 * MIB;
    assert!(request <= REQUEST_REPLY_BYTES_MAX, "a command's reply fits");
    let results = BATCH_REPLY_BYTES + REQUEST_REPLY_BYTES_MAX + BATCH_ROOM;
    assert!(results <= FRAME_BYTES_MAX, "results are a frame");
};

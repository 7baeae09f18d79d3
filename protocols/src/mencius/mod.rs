//! Mencius: every replica is the coordinator of its own slots, dealt out in turn.
//!
//! ```text
//!   slot:   1   2   3   4   5   6        r0 suggests in 1 and 4, r1 in 2, r2 has nothing to do
//!   owner:  r0  r1  r2  r0  r1  r2
//!
//!   r0 ── SUGGEST 4 ──► all          r1, r2 ── accepted 4, SKIP own slots below ──► r0
//!   r0 ── a majority accepted ──► LEARN 4, with whatever it says next
//!   r2 is silent: r0 ── PREPARE(r2's slots) ──► majority ── ACCEPT nothing ──► LEARN (revocation)
//! ```
//!
//! **Paper.** Yanhua Mao, Flavio P. Junqueira, Keith Marzullo, "Mencius: Building Efficient
//! Replicated State Machines for WANs", OSDI 2008. It is the baseline that Chora's evaluation
//! measures itself by.
//!
//! **Assumes** crashes, not lies, and links that keep their order while they are up. Of n members a
//! minority may be down at a time; in memory durability a replica that comes back counts as down
//! until it has recovered. No clock matters for safety.
//!
//! # Safety
//!
//! 1. Each slot is an instance of Paxos in which ballot 0 belongs to the slot's owner. In ballot 0
//!    an owner suggests one value, or says that it suggests nothing (SKIP), never both: slots are
//!    used in their order, in blocks that are reserved on disk before, so that a restart continues
//!    behind the last block.
//! 2. In a higher ballot, the replica that revokes proposes the value of the highest ballot that a
//!    majority of promises tells, and nothing where none does. So a slot that its owner skipped can
//!    hold nothing else, and is decided as soon as the SKIP is heard.
//! 3. A promise covers all undecided slots of one owner up to a slot; it is on disk before it is
//!    told, in every durability. A vote is durable before it is told.
//! 4. Slots are executed without holes.
//! 5. A replica that lost its state: see `recovery.rs`. Reads: see `reads.rs`.
//!
//! # Deviations
//!
//! - Failure detection is silence and broken links; a wrong suspicion costs an owner the slots that
//!   were revoked, and it suggests again what stood there.
//! - An owner too far behind to use or skip the slots that are needed counts as failed, although it
//!   is heard, until it has caught up.
//! - One message says all that a replica has to say at the end of a turn: suggestions, votes,
//!   LEARN, SKIP. The paper holds SKIPs for others back for a while; here they go at once when
//!   something of this replica stands before a suggestion.
//! - Revocation covers `REVOKED_AHEAD` turns beyond what was suggested, and continues before they
//!   are used up, as long as the owner is silent.
//! - So does one that is up and far slower than a majority, while a majority is not: see
//!   `bypass.rs`. The paper knows replicas that work and replicas that have failed. Members may
//!   differ for about a minute in whom they find slow, which costs suggestions that lose their
//!   slots.
//! - A restarted owner revokes its own undecided slots: it does not know what it suggested there.
//! - Recovery from lost memory, snapshots, catching up and linearizable reads are not in the paper.

// One replica: its state, and which handler each event reaches.
mod replica;

// The handlers, as `impl Mencius`, in the order of a request's way.
mod acceptor;
mod bypass;
mod normal;
mod reads;
mod recovery;
mod requests;
mod revoke;

// Its parts: each has private fields and knows nothing of the replica.
mod bug;
mod catch_up;
mod config;
mod leases;
mod log;
mod message;
mod outbox;
mod own_slots;
mod peers;
mod read_queue;
mod relay;
mod revocations;
mod turns;

#[cfg(test)]
mod tests;

pub use config::Config;
pub use message::{Known, Message, Promised, Range, Record, Said, Summary, Value};
pub use replica::{Frontend, Mencius, Timer};

//! Multi-Paxos: a sequence of Paxos decisions under one stable leader.
//!
//! ```text
//!   client     leader           followers
//!     │ Request  │                 │  │
//!     ├─────────►│ append, persist │  │
//!     │          ├─ Accept ───────►│  │      all requests of a turn in one message
//!     │          ├─ Accept ───────────►│
//!     │          │◄─ AcceptOk ─────┤  │      when it is durable there
//!     │          │ majority: decided, execute
//!     │◄─ reply ─┤                 │  │
//!     │          ├─ Commit ───────►│─►│      or inside the next Accept
//! ```
//!
//! **Paper.** Leslie Lamport, "Paxos Made Simple", 2001, section 3 (a state machine from a
//! sequence of instances). The pre-vote, the leader that steps down without a majority, and the
//! recovery of replicas that forget are not in the paper; see "Deviations".
//!
//! **Assumes** crashes, not lies: a replica stops or does what is written here. Messages may be
//! lost, doubled, delayed and overtake each other. Of n members a minority may be down at a time;
//! in memory durability a replica that comes back counts as down until it has recovered. No clock
//! matters for safety; a leader is found when delays stay below the election timeout for long
//! enough.
//!
//! # Messages
//!
//! | message | from, to | says |
//! |---|---|---|
//! | `Request`, `Taken` | frontend, replica | order this batch; I could not take it |
//! | `Forward` | replica, leader | batches of my frontends, one message per turn |
//! | `Accept` | leader, followers | consecutive slots under my ballot; all is decided up to … |
//! | `Commit` | leader, followers | the same without slots: heartbeat, commit notice, read round |
//! | `AcceptOk` | follower, leader | I hold up to …, durably up to …, executed up to …; echoes |
//! | `Reject` | any | that ballot is out of date, I promised … |
//! | `Trimmed` | leader, follower | what you need is no longer kept: fetch state, or see what is decided |
//! | `PreVote`, `PreVoteOk` | follower, all | would you promise? promises nothing |
//! | `Prepare`, `Promise` | candidate, all | phase 1 over all slots above a commit point, in pages |
//! | `Stand` | leader, follower | I am about to stop: stand at once |
//! | `ReadIndex`, `ReadIndexOk` | replica, leader | how far must a state have come for my reads? |
//! | `Recover`, `RecoverOk` | restarted, all | I lost my state; what part do you play? |
//! | `Sadl` | replica, replica | batches before they are ordered: see [`crate::sadl`] |
//!
//! # Safety
//!
//! 1. A ballot has one owner, who uses it in one incarnation only: its promise is on disk before
//!    the first message under it, and a restart always takes a higher one.
//! 2. Hence at most one value is ever proposed per slot and ballot.
//! 3. A replica accepts only under its promised ballot; accepting a higher one promises it.
//! 4. A promise is on disk before it is told, in every durability; so is the vote for a value in
//!    disk durability. In memory durability votes are held in memory, see `recovery.rs`.
//! 5. `AcceptOk{held}` claims slots from its ballot's leader without gaps, or known to be decided;
//!    so counting the majority's smallest claim decides every slot below it.
//! 6. A winner has a majority's promises with everything they accepted above its own commit point.
//!    It proposes, per slot, the value of the highest ballot among them. A value decided earlier
//!    was accepted by a majority, which meets this one; by induction over ballots the highest
//!    ballot there carries that value. In slots where no replica accepted a value, nothing can be
//!    decided below the new ballot, and "nothing" may be proposed.
//! 7. The promise of a voter that no longer keeps what the candidate lacks does not count. When no
//!    majority is left without it, the candidate fetches the state.
//! 8. A follower takes the leader's commit point only as far as it holds that leader's slots, so
//!    it never executes a value that lost. The pair (ballot, commit point) stays true afterwards,
//!    whichever replica tells it: it decides what was accepted under that very ballot, although a higher one
//!    is promised by now. So a restart of all replicas needs no state for what all journals have.
//! 9. Reads: see `reads.rs`. The commit point they use is confirmed by a majority after they came,
//!    and it covers all earlier ballots.
//! 10. Times go up along the log: proposals take a time above all seen, and executing takes the
//!     maximum along the way, which is the same on all replicas.
//!
//! 11. With `dissemination=sadl` a slot may name a batch instead of carrying it. Only what a majority
//!     holds durably is named. A name counts if it follows what was executed of its creator's chain
//!     in the slots before, which is the same on all replicas; see `dissemination.rs`.
//!
//! # Deviations
//!
//! - The first leader's first ballot needs no phase 1: no lower ballot exists.
//! - `Promise` is paged and starts at the candidate's commit point; slots that a voter has trimmed
//!   come as a snapshot.
//! - Votes are cumulative per follower instead of one message per slot.
//! - Pre-vote, check-quorum and hand-off only decide who stands when; phase 1 and 2 do not depend
//!   on them.
//! - A slot holds a batch as its frontend encoded it; sessions, not Paxos, find duplicates.
//! - Read confirmation and memory recovery follow the ideas of read-index and of viewstamped
//!   replication's recovery, with the durable promise in place of a view number.

// One replica: its state, and which handler each event reaches.
mod replica;

// The handlers, as `impl MultiPaxos`, in the order of a request's way.
mod acceptor;
mod dissemination;
mod election;
mod leader;
mod reads;
mod recovery;
mod requests;

// Its parts: each has private fields and knows nothing of the replica.
mod acknowledgement;
mod bug;
mod config;
mod confirmations;
mod leader_state;
mod message;
mod progress;
mod read_queue;
mod source;

#[cfg(test)]
mod tests;

#[cfg(feature = "bugs")]
pub use bug::Bug;
pub use config::Config;
pub use message::{Message, Part, Promised, Proposal, Record, Summary, Value};
pub use replica::{Frontend, MultiPaxos, Timer};

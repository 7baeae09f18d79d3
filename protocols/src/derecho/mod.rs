//! Derecho: virtually synchronous Paxos over a shared table.
//!
//! ```text
//!   client     A (rank 0)          B (rank 1)          C (rank 2)
//!     │ Request │                   │                   │
//!     ├────────►│ slot of A's ring ─┼─────── put ───────┤
//!     │         ├──────────────────►├──────────────────►│ order: A:0 B:0 C:0 A:1 B:1 …
//!     │         │ journal           │ journal           │ journal        (nulls for the idle)
//!     │         │◄── PERSISTED ────►│◄── PERSISTED ────►│  put by each to all
//!     │◄─ reply ┤ min of all rows: delivered, at each by itself
//! ```
//!
//! Every member multicasts what its own clients ask for; everything is in the order index by index,
//! rank by rank. Members tell each other by counters in a table how far they have come, and each
//! deduces alone what is delivered. There is no leader while nothing fails. When a member fails,
//! the view wedges, the lowest rank that is not suspected proposes where it ends (the ragged trim)
//! and who continues, and a majority of the view logs that before anybody acts on it.
//!
//! **Paper.** Sagar Jha, Jonathan Behrens, Theo Gkountouvas, Matthew Milano, Weijia Song, Edward
//! Tremel, Robbert van Renesse, Sydney Zink, Kenneth Birman, "Derecho: Fast State Machine
//! Replication for Cloud Services", ACM TOCS 36(2), 2019: the table (§3.4, §3.5), multicast (§3.3),
//! protocols (§3.6, Appendices A, B), progress (Appendix C). Shards, if there are any: `shards.rs`.
//!
//! **Assumes** crashes, not lies, and links that say when they break. A minority of the *present
//! view* may fail at a time, and views shrink and grow among the epoch's members. No clock matters
//! for safety.
//!
//! # What travels
//!
//! | | from, to | says |
//! |---|---|---|
//! | put: ring slots | sender, members | a small message, a run of nulls, or that a large one comes |
//! | put: RECEIVED | each, sender | how many of its messages |
//! | put: PERSISTED | each, all | how far in the order |
//! | put: SUSPECTED, WEDGED | each, all not suspected | whom; this row is final |
//! | put: PROPOSED, proposal | leader; then each as its echo | trim, next members, whose rank |
//! | put: BARRIER, ECHO | reader, others | reads wait; I had not wedged after that |
//! | `Bulk` | sender, members | a message too large for a slot |
//! | `Block` | the replica that the schedule says, member | a part of one that is large even for that |
//! | `Request`, `Taken` | frontend, replica | order this; I could not take it |
//! | `Join`, `Views` | outsider, anyone | I am here and hold up to …; what was agreed since |
//! | `Fetch`, `Tail`, `Behind` | outsider, donor | entries; or fetch a snapshot |
//! | `Holds`, `Whole` | member, members | how far logs of shards go; a copy is complete |
//! | `Keep`, `Kept` | old process, members | I would end with copies of shards; I hold them and stay |
//! | `Prepare`, `Promise`, `Accept`, `Accepted` | inspector, last view | total restart |
//!
//! Words: `starts` counts a replica's starts; a member is a replica with one such count.
//! *Base* is the last slot of the view before, so the ragged trim. *Sure* is delivered forever. A
//! replica is
//! *complete* in a view when it holds everything up to its base, and above it only what is of that
//! view.
//!
//! # Safety
//!
//! 1. Within a view the order is fixed by sender and index alone, and a message has one sender; so
//!    what stands in a slot is the same wherever the messages before it are all there.
//! 2. A row says PERSISTED = k when the first k of the order are durable there (in memory
//!    durability: held). Delivered is what *every* row of the view says, suspected ones too.
//! 3. A wedged row is final. The trim is the smallest PERSISTED of all rows that are not suspected:
//!    it covers everything that anyone has delivered or will.
//! 4. A view ends by one agreement, the paper's Synod in disguise: a ballot is a rank; to suspect
//!    all lower ranks, with their rows frozen, is the promise to it; to echo is to accept; the
//!    leader proposes when all rows that are not suspected have promised, and adopts the proposal
//!    of the highest rank in any row. No member acts before a majority of the view has echoed, and
//!    a trim is on disk before it is echoed. So one trim and one next view per view.
//! 5. An inspector is a leader above all ranks: its rounds need a majority's logged promises, it
//!    adopts the highest accepted proposal, and the replica that answers it has left the table's
//!    agreement. A restart never votes as the member that it was: its incarnation is counted on
//!    disk first.
//! 6. Without an accepted proposal the longest complete log of that majority is the end: what was
//!    delivered was persisted by all members, so it is in every complete log, and answers are given
//!    by logs that grow no more. It is accepted only by those who hold it durably.
//! 7. Two successive views are joined by a majority of the first; a member acts in the second only
//!    when it is on its disk. So the last view that acted is known to any majority of its members.
//! 8. Reads: see `reads.rs`.
//! 9. Times go up along the order: executing takes the maximum along the way.
//!
//! # Deviations
//!
//! - **D1, scope of the trim**: one agreement over the group's trim and those of all shards.
//! - **D2, the trim's rule**: rows count messages in the round-robin order and not per sender, so
//!   the smallest count *is* the paper's per-sender minimum cut at the first gap. Restarts compare
//!   the same thing, slots of that order.
//! - **D3, which rows**: those not suspected, wedged and final; WEDGED follows the last count,
//!   after everything received is in the order and on disk.
//! - **D4, D5, who must echo, and what is a majority**: all that are not suspected *and* a strict
//!   majority of the view; [`view_change`](self) has the one function that trim, install and
//!   restart use. An even split halts both halves.
//! - **D6, takeover**: a leader waits until all rows it sees suspect all that it suspects, and
//!   adopts trim and members together; what was suspected since then is a second view change.
//! - **A vote whose disk answers late** is not shown when its proposer has been suspected here
//!   meanwhile: the row that showed the suspicion and no vote was the promise to the next leader.
//!   (In the paper an echo is a write to memory, which takes no time.) A member that counts echoes
//!   counts only a proposal whose proposer it does not suspect, and installs what stands in the row
//!   that it counted; what an earlier leader proposed, the next one adopts and proposes again.
//! - **D7, joins**: a joiner first catches up from the log or a snapshot; the leader lets it in
//!   when it lacks at most `join_lag` slots and all of them are in the log; it fetches the rest
//!   while the new view waits for it. No more join at a time than leave those who remain a
//!   majority.
//! - **D8, total restart**: a majority of the newest view known to any of them; its longest
//!   complete log; a logged trim of that view binds, one of an older view does not count; accepted
//!   only by those who hold it, so the state is copied before the view begins. A replica that has
//!   no log joins afterwards. A vote whose voter no longer holds its reason is left aside when a
//!   majority without it did not vote so: any majority of promises will do, and no member could
//!   follow that vote. Where complete logs are a majority they continue by themselves, and the
//!   others join afterwards. A member that has not begun in a view within `restart_timeout_ms` is
//!   left out of the next one.
//! - **Joiners that fail again and again** are let in after pauses that double (`Admission`), if
//!   the view has more members than a majority of the group; the paper has no such rule.
//! - **D9, a shard with all members dead**: see `shards.rs`; for the group itself, total restart.
//! - **D10, two steps**: the pending version is the journal's and is not visible. Delivered means
//!   persisted everywhere, and only then it is executed and answered.
//! - **D11, slow senders** stay senders: their nulls cost one counter. A crashed one is removed
//!   with its view. (§3.6 removes them from the senders at a view; the public code does not.) That
//!   would not help against a member that is slow and not silent, because delivery waits for all:
//!   such a one leaves the view altogether, and comes back after a pause (`slow_member.rs`).
//! - **D12, window**: a slot is written again when all members have taken it; otherwise requests
//!   wait, and beyond `queue_bytes` they are refused as busy. Nothing blocks.
//! - **D13**: views and counts are 64 bits.
//! - **D14**: a put is a frame with ranges applied in order, all of them before the receiver does
//!   anything else. Over shared memory it is written one-sidedly and read as what the row was at
//!   one moment; guards follow what they guard, for transports that promise neither.
//! - **D15, the order's number** is g = k·|senders| + i: index k, rank i.
//! - **D16, raw mode** (`delivery=raw`) executes a message where it is received, in its sender's
//!   order, by an effect of its own: no slots, no nulls, no log. It is for state machines that
//!   allow it, in memory durability, never for the store. A view change may lose it to some and
//!   repeats nothing. With an order: when a majority of the last view has lost its state (memory
//!   durability) and no replica with its state is heard, replicas stop with the remedy; they never
//!   serve an empty state. A replica that lost its state counts as complete only in a later view
//!   than the one in which it did.
//! - **D17, reads**: by the barrier, from any member.
//! - **D18**: views are subsets of the epoch's members; `viable_in` asks for a majority of the
//!   newest view, not of the epoch. From the first vote for a next view on it asks for one of both:
//!   the replica that restarts the group cannot know who else voted for it, and must take it over.
//!   (B.6 takes over the trim alone and counts the members again; that may give one view two
//!   memberships.) Half of the next view is enough when it has an even number of members: no member
//!   can act in it without one of them, so a third view of all that answered follows at once
//!   (`restart.rs`).
//! - **Nulls** are sent by the rule of the public code, a run of them in one slot of the ring, and
//!   are not written. Received or persisted nulls without a message are reported with the next put,
//!   a heartbeat at the latest: no member waits for them, and n³ puts for a message among n members
//!   would report them at once. A null is never put between a request and its place: messages are
//!   formed whole at the end of a turn, so what #78 of the public code shows cannot happen.
//! - **Durable from the first step**: messages are written ahead of delivery, so a total failure
//!   cannot lose what was delivered (#74 of the public code).
//! - **Retransmission**: the paper has none, a lost packet is a failure. Here a broken connection
//!   is repaired: the replica that reconnects gets the whole row and all slots that it has not
//!   taken. A member fails by silence, or when it comes back as another incarnation.
//! - **A member that others suspect** and that is alive leaves at once and joins again in the same
//!   incarnation; the paper kills the process (G13 of the boundary: a member is a replica and an
//!   number of starts, which is counted on disk).
//! - **Failure detection** is by heartbeats through the same puts, by the operator's report, and by
//!   what a peer says of itself: a Join of a later start is a failure of the earlier one.
//! - **The SST's lambdas** are a table of plain functions with the columns they look at
//!   (`triggers.rs`); a reducer's result is not stored in the table, because no other member reads
//!   it.
//! - **RDMC**: messages above `rdmc_bytes_min` go in blocks; what lies between that and a slot of
//!   the ring goes whole from its sender to each member. The schedule is the binomial pipeline
//!   wherever it saves a step (`schedule.rs`); blocks are sent as soon as they are there and may
//!   go, not in lock step. A block says whose it is, so that one that a broken connection lost is
//!   sent again on the same way instead of failing a member (`rdmc.rs`). Hybrids are not built.
//! - **Handing off**: a member about to stop suspects itself, when the rest is a majority.

// One replica: its state, and which handler each event reaches.
mod replica;

// The handlers, as `impl Derecho`, in the order of a message's way; then views and restarts.
mod delivery;
mod generations;
mod push;
mod rdmc;
mod reads;
mod reshape;
mod restart;
mod shards;
mod slow_member;
mod triggers;
mod view_change;

// Its parts: each has private fields and knows nothing of the replica.
mod bug;
mod catch_up;
mod config;
mod failures;
mod incoming;
mod inspection;
mod joins;
mod log;
mod membership;
mod message;
mod order;
mod outgoing;
mod read_queue;
mod relay;
mod restart_state;
mod rows;
mod schedule;
mod sst;
mod stalls;
mod stream;
mod transfers;
mod waits;

#[cfg(test)]
mod tests;

#[cfg(feature = "bugs")]
pub use bug::Bug;
pub use config::Config;
pub use message::{
    Ballot, Body, Entry, Held, Holding, Join, Large, Member, Message, Promised, Proposal,
    ShardView, Summary, View,
};
pub use replica::{Derecho, Frontend, Timer};
pub use schedule::{Hop, Schedule};

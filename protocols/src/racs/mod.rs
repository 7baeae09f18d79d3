//! RACS: consensus that decides in one round trip while delays are known, and keeps deciding
//! when they are not.
//!
//! ```text
//!   synchronous                                     asynchronous
//!   client   leader of v      others                everybody at once
//!     │ Request  │ block        │ │   n-f Timeout    │ block of level 1 ─► all
//!     ├─────────►├─ Propose ───►│►│ ───────────────► │ n-f VoteAsync: level 2 ─► all
//!     │          │◄─ Vote ──────┤ │                  │ n-f VoteAsync: Complete ─► all
//!     │          │ n-f: decided │ │ ◄─────────────── │ n-f Complete: the coin elects one,
//!     │◄─ reply ─┤ with all that│ │  NewView, v+1    │ decided with all that leads to it
//! ```
//!
//! Blocks form a chain by parent links; deciding one decides all before it. A block's *rank* is
//! (view, asynchronous?, round). Each replica keeps its *highest block*: the one of highest rank
//! that it voted for in the synchronous mode, took from a quorum's reports, or that the coin
//! elected.
//!
//! **Paper.** Pasindu Tennage, Antoine Desjardins, Lefteris Kokoris-Kogias, "RACS and SADL:
//! Towards Robust SMR in the Wide-Area Network", 2024. Section 4, Algorithm 1.
//!
//! **Assumes** crashes, not lies: a replica stops or does what is written here. Messages may be
//! lost, doubled, delayed without bound and overtake each other. Of n members a minority f may be
//! down at a time; in memory durability a replica that comes back counts as down until it has
//! recovered. No clock matters for safety. Progress does not need timeouts to be right: each
//! asynchronous mode decides with probability above one half, as long as the adversary that delays
//! messages cannot tell before what the coin will show.
//!
//! # Messages
//!
//! | message | from, to | says |
//! |---|---|---|
//! | `Request`, `Taken` | frontend, replica | order this batch; I could not take it |
//! | `Forward` | replica, leader | batches of my frontends; a marker for my reads |
//! | `Propose` | leader, all | new blocks, or only my highest one; this one is decided |
//! | `Vote` | replica, leader | I hold this block of yours and all before it, durably; how long my requests take |
//! | `Timeout` | replica, all | I vote no more in this view's synchronous mode; my highest block |
//! | `ProposeAsync`, `VoteAsync` | replica, all; back | my block of level 1 or 2; I hold it, durably |
//! | `Complete` | replica, all | my level 2 has n-f votes |
//! | `NewView` | replica, next leader | I am in your view; my highest block; how the last one ended |
//! | `Exit` | replica, one behind | how that view ended: n-f completions |
//! | `Fetch`, `Blocks`, `Trimmed` | replica, replica | what leads to this block? these; no longer kept |
//! | `Sadl` | replica, replica | batches before they are ordered: see [`crate::sadl`] |
//! | `Recover`, `RecoverOk` | restarted, all; back | I lost my state; what I hold |
//!
//! # Safety
//!
//! 1. At most one block has a given id. A leader makes one per round of its view and, once
//!    restarted, none in that view; own blocks of the asynchronous mode are on disk before they
//!    are shown, and shown again after a restart.
//! 2. A replica is in a view only after its promise of that view is on disk, in every durability,
//!    and never goes back.
//! 3. A vote says that the block and all undecided ones before it are held, durably.
//! 4. A timeout ends the sender's synchronous votes in its view, and carries a block that is at
//!    least as high as each of them.
//! 5. Hence a block decided in the synchronous mode of v has n-f voters, of which one is in every
//!    set of n-f timeouts of v, and in every set of n-f new-views of later views: all blocks of
//!    level 1 of v, and all later first blocks, extend it.
//! 6. A block elected in v has n-f voters with it in their B_fall, and the replica that leaves v's
//!    asynchronous mode, in whatever way, first looks whether the coin elected something there.
//!    It outranks every synchronous block of v. So it is in every later quorum's reports, as the
//!    highest of its view or below a later one that extends it.
//! 7. A leader proposes in its view only after n-f new-views, and continues from the highest block
//!    among them and its own.
//! 8. A reported block counts only once it is here with all that leads to it. So a report of a
//!    block that died with its holder can stop nothing: n-f others have reports that count.
//! 9. With `dissemination=sadl` blocks name batches instead of carrying them. Only what n-f hold is
//!    named; what a block names follows what its ancestors name, so each batch has one slot. A
//!    decided block is executed when all that it names is here.
//! 10. A replica that lost its state: see `recovery.rs`. Reads: see `reads.rs`.
//!
//! # Deviations
//!
//! From Algorithm 1, which loses decided blocks and may come to rest as it is printed. Each weaker
//! rule is kept as an injected bug.
//!
//! - *Line 35* (R1). `block_high` is replaced only by a higher one, and is the block that the own
//!   round continues. After a timeout in v nothing of v is voted for or proposed synchronously,
//!   and a repeated timeout carries the same block. With the rank below, all three are needed.
//! - *Rank* (R9, R15). An elected block outranks all synchronous blocks of its view, whatever
//!   their rounds; a new view starts with no round voted for.
//! - *Leaving the asynchronous mode* (R2). A replica that has left answers messages of older views
//!   with the certificate, n-f completions, and nothing else; the receiver runs lines 57-64 with it
//!   and its own B_fall. The certificate is part of the durable promise and of each new-view, so
//!   that it cannot be lost while its holder matters. A certificate of any later view serves as
//!   well.
//! - *Catching up* (R3). Votes go to one replica only, so others take over a level 1 when they see
//!   a level 2 upon it. A missing level 1 is fetched by id.
//! - *Sets* (R4, R13). B_fall, votes and completions are kept per view; distinct senders count,
//!   and each block's maker must be its sender.
//! - *Line 26* (R5). A block known to be decided never goes back, and is executed when all of it is
//!   here. Missing blocks are asked for by id, of the sender first and then of all others in turn;
//!   what others no longer keep comes as a state.
//! - *Line 13* (R6). A view's leader waits for n-f new-views, in the first view too; line 12 sets
//!   the round.
//! - *Timers* (R7). The leader watches its own progress; timeouts, new-views and asynchronous
//!   blocks are said again until they are answered; measured timeouts grow up to eight times, fixed
//!   ones stay. They follow the round trip that most leaders measured, so that one that is late
//!   does not buy itself time, and are at least what an asynchronous mode took lately: while those
//!   are dear, because a random minority is late, it is cheaper to wait; while they are cheap,
//!   because leaders alone are late, it is cheaper not to. A follower whose clients wait while
//!   nothing is decided stops believing a leader that it only hears.
//! - *Timeouts of few.* A timeout binds for its whole view, while the others continue. Where they
//!   are no more than a quorum, and those that timed out keep up, the leader leaves for the next
//!   view. That is a timeout as in lines 31-32, which may expire at any time, and its followers'
//!   timeouts follow it; those who timed out before say nothing new. So the view ends as any other,
//!   by n-f timeouts (line 33) and n-f completions (lines 56-67). A replica that timed out in v
//!   takes its timeout back only where it raises its view (line 65, or by hearing of a later view),
//!   hence every vote after it is of a view above v, as line 22 wants it: B.rank > (v_cur, r_cur).
//!   No vote of v or below follows a timeout of v, and what Theorem C.10 takes from the timeouts of
//!   v holds: each carries a block at least as high as all that its sender voted for in v.
//! - *Later views* (R7). A replica that hears of a later view, by a timeout, a decided block or the
//!   question of one that recovers, enters it: n-f have left those before. The algorithm leaves a
//!   view by its own end or by a leader's proposal only, so an idle leader that missed its view's
//!   end would stay in it, and two others wait for it in a view whose leader died. So it enters the
//!   view after one whose elected block it learns to be decided. For the same reason a replica times
//!   out when it hears a block or a completion of its own view's asynchronous mode, which n-f
//!   timeouts began.
//! - *Idle* (R8). An idle leader sends proposals without a block, which write nothing. An empty
//!   block is made where one is needed: to decide what a view inherited, and to mark reads.
//! - *Future views* (R9). Of each member the newest timeout, new-view, completion and the newest
//!   blocks of level 1 and 2 are kept; nothing else waits, nothing blocks a queue.
//! - *What is decided with something above it* may lie beside the highest block: one page of what
//!   was elected has come, and a block of a later view that was voted for here and lost outranks
//!   it. Then the decided one is the highest, and the view's synchronous mode is over here.
//! - *Votes for level 1 and 2* (R10) change neither view, round nor highest block. Commands of
//!   blocks that lost stay with the replica whose clients sent them, which forwards or proposes
//!   them again unless the chain has them; sessions find what was ordered twice all the same.
//! - *The coin* (R11, R18) is a pseudo-random function of the cluster's secret, the epoch and the
//!   view, drawn without bias; leaders take turns. A holder of the secret can predict it.
//! - *Restarts* (R12). Promise and blocks are on disk before they are spoken of; a restarted
//!   leader stands back for the rest of its view. In memory durability see `recovery.rs`; a
//!   replica that comes back costs the others one view.
//! - *Pipelining* (R14). A vote is cumulative, so it is given only when all before it is here and
//!   durable; what is proposed and undecided is bounded in blocks and bytes.
//! - *Whose commands the coin elects* (R10, R16). The paper's clients send to all replicas, so any
//!   elected block has what all wait for. Here each asks one; a block of level 2 takes along what
//!   stands in the others' blocks of level 1, and an old leader's what it had been sent and could
//!   not propose, within half a block, and only where what they stand upon is there. Batches that
//!   went to all in a level 1 are quoted, not sent again: see `quotes.rs`.
//! - *Repeats.* Blocks and batches are large: what nothing was lost of is sent again only after
//!   four timers, and then ever more rarely. Whose votes are late is late in all.
//! - *Commands at other replicas* (R16) are forwarded to the leader, right behind the new-view, or
//!   disseminated. A block may
//!   carry batches and name others; the option can be changed at run time, for each replica's own
//!   requests.
//! - *Hybrid* (§5.5). The leader changes the way of all by a switch in a block, no joint mode is
//!   needed; see `hybrid.rs` for what it looks at, and for its hysteresis.
//! - *Reads* (R17) are ordered by one marker per replica and turn.
//! - A round is a place in the chain, as in Theorem C.8; several batches of a block take
//!   consecutive slots.

// One replica: its state, and which handler each event reaches.
mod replica;

// The handlers, as `impl Racs`, in the order of a request's way.
mod asynchronous;
mod dissemination;
mod fetch;
mod reads;
mod recovery;
mod requests;
mod synchronous;
mod views;

// Its parts: each has private fields and knows nothing of the replica.
mod block;
mod bug;
mod coin;
mod config;
mod fallback;
mod hybrid;
mod leader_state;
mod message;
mod missing;
mod outbox;
mod peers;
mod quotes;
mod read_queue;
mod relay;
mod sync_state;
mod tree;
mod view_state;
mod view_timing;

#[cfg(test)]
mod tests;

pub use block::{Block, BlockId, Mark};
#[cfg(feature = "bugs")]
pub use bug::Bug;
pub use config::{Config, Dissemination};
pub use hybrid::Course;
pub use message::{Certificate, Message, Promised, Record, Summary, Why};
pub use quotes::Quote;
pub use replica::{Frontend, Racs, Timer};

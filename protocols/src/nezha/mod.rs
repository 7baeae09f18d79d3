//! Nezha: an order by deadlines in synchronised time, and one round trip to all replicas.
//!
//! ```text
//!   frontend (proxy)          leader                       followers
//!     │ Request{sent, bound}    │                             │
//!     ├────────────────────────►│ early buffer                │ early buffer
//!     ├────────────────────────────────────────────────────── ►
//!     │                         │ at sent + bound: append,    │ at sent + bound: append
//!     │◄─ results {view, hash} ─┤ execute                     │
//!     │◄─────────────────────────── FastReplies {view, hash} ─┤     fast: all hashes agree
//!     │                         ├─ LogModification ──────────►│ same slots as the leader
//!     │◄───────────────────────────── SlowReply {view, sync} ─┤     slow: a majority has synced
//!     │                         │◄─ LogStatus {sync} ─────────┤ committed: executed everywhere
//! ```
//!
//! **Paper.** Jinkun Geng, Anirudh Sivaraman, Balaji Prabhakar, Mendel Rosenblum, "Nezha:
//! Deployable and High-Performance Consensus Using Synchronized Clocks", VLDB 2023. Sections are
//! cited as (§5.3).
//!
//! **Assumes** crashes, not lies. Messages may be lost, doubled, delayed and overtake each other.
//! Of n members a minority may be down at a time; in memory durability a replica that comes back
//! counts as down until it has recovered. Clocks may be wrong in any way: deadlines decide who
//! is fast, never what is right.
//!
//! # Messages
//!
//! | message | from, to | says |
//! |---|---|---|
//! | `Request` | frontend, all | order this batch at `sent + bound` |
//! | results with `ReplyHeader` | leader, frontend | executed in this slot of this view, over this log |
//! | `FastReplies` | follower, frontend | appended, over this log: those of a turn together |
//! | `SlowReply` | follower, frontend | I agree with my leader up to this slot |
//! | `Taken` | replica, frontend | not taken: I am busy, or I do not lead |
//! | `LogModification` | leader, followers | these stamps stand in these slots; commit point; heartbeat |
//! | `LogStatus` | follower, leader | I agree durably up to … |
//! | `Appended` | follower, leader | a fast reply, where the leader checks quorums |
//! | `Lacks` | follower, leader | these slots did not come, later ones did |
//! | `Fetch`, `Bodies` | any | batches by name |
//! | `Suspect` | follower, all | I do not hear the leader |
//! | `ViewChange`, `Vote` | all, new leader | a new view; my log |
//! | `GetLog`, `LogPage`, `Trimmed` | follower, leader | the log that the view begins with |
//! | `Recover`, `RecoverOk` | restarted, all | I lost my state; what is going on? |
//!
//! # Safety
//!
//! 1. In one view one leader fills slots, each once; a restarted leader never continues under the
//!    same view. Followers take over slots in order, so synced logs are prefixes of the leader's.
//! 2. A follower appends beyond its sync-point only behind everything it holds that conflicts
//!    (`Marks`), so of any two conflicting batches all logs that hold both at the same deadlines
//!    hold them in the order of deadlines.
//! 3. Slow: f + 1 logs hold the leader's slots up to the batch. The next view's majority meets
//!    them; the replica that took part in the latest view among its voters with the longest synced
//!    log holds the batch in its slot.
//! 4. Fast: f + ⌈f/2⌉ + 1 logs hold the batch at one deadline, with the same set of all that
//!    conflicts with it. At least ⌈f/2⌉ + 1 of any majority do, and fewer than that can hold
//!    anything that would have to stand before it. So the merge keeps it, and nothing else
//!    conflicting before it (`view.rs`).
//! 5. Committed slots are the same in all later views; only behind them anything is ever undone.
//!    A leader that leaves its view undoes all that is not committed, results included.
//! 6. A follower takes part in a view only when it holds the log that the view began with; until
//!    then it votes with the log of the view before.
//! 7. Everything is durable before it is told, in disk durability. In memory durability a new
//!    incarnation has a new number; all that is compared carries the numbers, and what an older
//!    incarnation said is dropped, from quorums already collected too (`recovery.rs`).
//! 8. Batches that commute are executed at the same time in either order: time is cut into quanta
//!    (`conflict.rs`), and no log goes back to an earlier one.
//! 9. Reads wait until a majority has confirmed, after they came, that the leader leads, and until
//!    all that they saw is committed.
//!
//! # Deviations
//!
//! - **Crash vectors** (N1, N2): `incarnations` stands in every message between replicas, and its
//!   hash in every fast and slow reply. A replica's own number is its incarnation, durable before
//!   it starts. News of an incarnation empties the votes collected so far and forgets what the
//!   leader knows of that follower.
//! - **Hash** (N3): 128 bits of deadline and name, mixed once more with each key that the batch
//!   writes, so that a batch on two keys does not cancel out of one that reads both. Batches are
//!   unique by name before they are hashed; a changed deadline is a removal and an addition.
//!   Committed entries are left out in steps of 4,096 slots, and the step stands beside the hash.
//!   The log may be trimmed to the commit point before: what is trimmed stays in the hash, and the
//!   hash goes with every snapshot, so that who comes back with a peer's state takes part in fast
//!   quorums from its first batch on.
//! - **Order** (N4): deadline, then frontend, then batch number. A leader gives a late batch the
//!   lowest deadline above all that conflicts with it.
//! - **Quorums** (N5): sync-points are kept per replica with view and incarnations, and count only
//!   with the leader's own results of that view and those incarnations. For even numbers of
//!   replicas the fast quorum is the smallest that leaves fewer outside than survive a merge.
//! - **Merge** (N6): survivors are told from the copied log by name and by conflict, not by the
//!   sync-point's deadline; the new leader's own log counts, each replica once.
//! - **Watermarks** (N7): per key the last write and the last access, of the current quantum only;
//!   after a change of view those of the new log. Both buffers are emptied then.
//! - **Repair** (N8): what the leader barred leaves the follower's log for the late buffer; slots
//!   are filled without gaps; missing batches are fetched by name.
//! - **Duplicates** (N9) in the early buffer are ignored, in the log answered again. A batch in
//!   the late buffer that comes again with a better deadline may still enter the early one. One
//!   whose slot was trimmed may be ordered again: sessions execute it once.
//! - **Deadlines** (N10): only the leader shortens one that lies more than four times
//!   `bound_max_us` ahead; followers put it into the late buffer. An estimate outside (0, D)
//!   becomes D. A clock that does not tell its deviation adds nothing to the percentile.
//! - **Commit point** (N11): of reports of this view, never going back; followers execute to it,
//!   snapshots are taken there, and log, names and hashes below are dropped.
//! - **First boot** (N12) is the world's to tell; too many that lost its state stop with the
//!   remedy.
//! - **Durable variant** (N13): every entry, every slot it takes and the log that a view begins
//!   with (one record, whole or not there) are on disk before any reply rests on them.
//! - **Deposed leaders** (N14) roll back to the commit point. One whose snapshot is damaged cannot;
//!   it stops, and comes back as after any damage.
//! - **A recovering leader** (N15) does not lead its view again; others move on without it.
//! - **Reads** (N16) take no slot: the leader confirms that it leads and answers when all that the
//!   read saw is committed.
//! - **Votes** (N17) carry names and deadlines, no batches; a joining follower gets the batches of
//!   what is not committed.
//! - **Positions** (N18): slots are the leader's order of release, so committed logs are totally
//!   ordered; commutativity loosens eligibility and hashes only.
//! - **After a disturbance** (N19): what one misordered batch pushes off the fast path is bounded
//!   by its keys and its quantum; status tells fast and slow commits apart. A clock that is set by
//!   a second and back leaves nothing behind after a tenth of a second (`nezha-clock-step-leader`
//!   of the lab).
//! - A leader whose clock was set back does not wait until the clock has come where its log is:
//!   what its log has passed is released at once. The log's time itself never goes back: a leader
//!   whose clock ran far ahead leaves all later requests to the slow path until clocks have come
//!   there.
//! - **For comparisons** (Fig. 8) there are `multicast=false` (No-DOM: the leader orders what comes
//!   and sends it on), `quorum_checks=leader` (No-QC-Offloading) and `commutativity=false`.
//! - **Bounds**: a frontend takes the bound that a fast quorum needs, and not the largest of all as
//!   in §3; a replica whose estimate is out of range, or that is silent, is left out of it.
//! - **Gaps**: a follower asks at once for what the leader placed before something that came.
//! - **Company**: deadlines are a thirty-second part of the bound apart (`frontend.rs`), so that
//!   receivers wake up once for several; what a turn appended is told in one message to each
//!   frontend; and the leader tells its log at most eight times in a round trip
//!   (`leader_state.rs`), which nothing on the fast path waits for.
//! - View changes need a majority that suspects; the paper lets each follower begin one.
//! - Execution at a follower is at the commit point, so a new leader executes only what is behind.

// One replica: its state, and which handler each event reaches.
mod replica;

// The handlers, as `impl Nezha`, in the order of a request's way; and the client's half.
mod checks;
mod follower;
mod frontend;
mod leader;
mod reads;
mod recovery;
mod requests;
mod view;

// Its parts: each has private fields and knows nothing of the replica.
mod appended;
mod bug;
mod changing;
mod config;
mod conflict;
mod conflict_index;
mod crash_vector;
mod dom;
mod entry;
mod joining;
mod leader_state;
mod log;
mod message;
mod placements;
mod quorum;
mod receiver;
mod replies;
mod view_state;

#[cfg(test)]
mod tests;

#[cfg(feature = "bugs")]
pub use bug::Bug;
pub use config::Config;
pub use conflict::{Footprint, Marks, SetHash};
pub use dom::{EarlyBuffer, Estimation, Holds, Name, OneWayDelays, Stamp};
pub use frontend::Frontend;
pub use message::{
    Incarnations, LogHash, Message, Part, Placed, Promised, Record, ReplyHeader, Standing, Summary,
    Vote,
};
pub use replica::{Nezha, Timer};

//! ChainPaxos: Multi-Paxos along a chain, with the chain's membership in the log.
//!
//! ```text
//!   client    head (leader)     r1             r2             r3          tail
//!     │ Request   │             │              │              │            │
//!     ├──────────►│ Accept[r0]  │              │              │            │
//!     │           ├────────────►│ Accept[r0,r1]│              │            │
//!     │           │             ├─────────────►│ decided here │            │
//!     │           │             │              ├─────────────►│ decided    │
//!     │           │             │              │              ├───────────►│ decided
//!     │           │◄─────────────────────────── Ack[r0..r4] ──┼────────────┤
//!     │◄── reply ─┤ decided     │              │              │            │
//!     │           ├─ next Accept ─► decided (or a header alone, when nothing follows)
//! ```
//!
//! Each replica receives and sends every value once, whatever the number of replicas; the replica
//! that took a request answers it. When a neighbour fails, an ordinary entry of the log,
//! RemoveNode, closes the chain around it, and AddNode lets it in again.
//!
//! **Paper.** Pedro Fouto, Nuno Preguiça, João Leitão, "High Throughput Replication with Integrated
//! Membership Management", USENIX ATC 2022: the chain and Alg. 1-2 (§3.2-3.3), faults (§3.4,
//! Alg. 3-4), local reads (§4), correctness (Appendix A).
//!
//! **Assumes** crashes, not lies. Messages may be lost, doubled, delayed and overtake each other.
//! Of n members of the epoch a minority may be down at a time, whatever the chain looks like then;
//! in memory durability a replica that comes back counts as down until it was re-admitted and has
//! the state again. No clock matters for safety.
//!
//! # Messages
//!
//! | message | paper | from, to | says |
//! |---|---|---|---|
//! | `Request`, `Taken` | NEW_REQUEST | frontend, replica | order this; I could not take it |
//! | `Forward` | REDIRECT_REQUEST | replica, leader | batches of my frontends, one message a turn |
//! | `Accept` | ACCEPT | each, the next | entries; votes, round, commit point; heartbeat |
//! | `Ack` | ACCEPT_ACK | tail, leader | the same without entries |
//! | `Missing`, `Skip` | (none) | next, and back | I hold up to …; that is gone, continue behind … |
//! | `Alive` | keep-alive | each, the one before and the leader | I am here, and hold up to … |
//! | `Suspect` | (named in §3.4) | each, leader | the next one is silent |
//! | `Ask` | (none) | each, leader | reads wait: make a round, or an entry |
//! | `PreVote`, `PreVoteOk` | (none) | candidate, all | would you promise? promises nothing |
//! | `Prepare`, `Promise`, `Reject` | PREPARE, PREPARE_OK | candidate, all | phase 1, in pages |
//! | `Stand` | (none) | leader, next | I am about to stop |
//! | `Ping`, `Pong` | (none) | leader, each, and back | how far away are you? |
//!
//! Words: the paper's *instance* is a slot, its *prepare number* a ballot, a node's *incarnation*
//! an incarnation, its `max_ack` is `everywhere`, and its `marked` is what the working chain leaves
//! out.
//!
//! # Safety
//!
//! 1. A ballot has one owner, who uses it in one incarnation only: its promise is on disk before
//!    the first message under it, and a restart always takes a higher one. So at most one value is
//!    ever proposed per slot and ballot.
//! 2. The acceptors are the epoch's n members, always, and both phases need floor(n/2)+1 of them.
//!    The chain says who is sent what and who may read; it never says how many votes decide.
//! 3. A replica accepts a ballot's entries without gaps, so "durably up to here" is its vote for
//!    each; it counts entries that it knows to be decided, and tells a candidate that it lacks
//!    them (`first`), who then fetches the state instead of leading.
//! 4. Votes are counted per acceptor and ballot; a quorum's smallest decides, wherever it is seen:
//!    at the middle, at the tail, at the head (`maybe_commit` in `acceptor.rs`). Nothing else
//!    decides.
//! 5. A promise is on disk before it is told, in every durability; so is a vote in disk durability.
//! 6. A winner proposes, per slot, the value of the highest ballot among a majority's promises. A
//!    value decided earlier was accepted by a majority, which meets this one; by induction over
//!    ballots the highest ballot there carries that value. In slots where no replica accepted a
//!    value, it may propose nothing.
//! 7. A commit point learnt with a message holds for the ballot of that message and for what was
//!    accepted under it; a commit point known otherwise (a fetched state) is not told. That of
//!    a `Skip` may be such a one: only from the leader it decides what is held here. The pair
//!    (ballot, commit point) stays true afterwards, whichever replica tells it: with a `Skip`, a
//!    refusal or a state it decides the entries accepted under that very ballot, although a higher
//!    one is promised by now. So a restart of all needs no state for what their journals have.
//! 8. An incarnation that lost its state neither promises nor votes until it holds an AddNode of
//!    its own: the leader proposed that after it had learned of the incarnation, so before it in
//!    the log, or decided, is everything that an earlier incarnation voted for (under lower
//!    ballots: phase 1 found it; under higher ones: the promise is on disk, and forbids following
//!    this leader).
//! 9. Reads: see `reads.rs`. A replica that passed a round on had promised no higher ballot by
//!    then; a quorum of such shows that nothing was decided elsewhere when the leader made the
//!    round.
//! 10. Times go up along the log: proposals take a time above all seen, and executing takes the
//!     maximum along the way, which is the same on all replicas.
//!
//! # Deviations
//!
//! Points that the paper, its pseudo-code and its program leave open or state differently, with the
//! choice made here. Readings that are unsafe as printed can be switched on in a build with the
//! feature `bugs` (`bug.rs`), and a transcript tells each apart: the rule for reads (K10), an
//! acknowledgement that decides (K15), a candidate that decides its own copies (K6), a replaced
//! incarnation that promises (K2), forwarding from one entry too late (K3), nothing sent again
//! after a reset (K3).
//!
//! - **K1, marked nodes** (Alg. 3 sends only to `cnextok`; A.5 sends RemoveNode to both). The entry
//!   that removes a node is the last that is sent to it; later ones go to the next working one.
//! - **K1, a count of acceptors** (Alg. 2, l. 17-22) could count one twice when re-propagation
//!   takes another path. Votes are kept per acceptor, and merged by the larger.
//! - **K2, quorum under membership change** (§3: the membership affects the quorum; A.5: a minimum
//!   quorum). A majority of the present members is unsafe for a candidate that has not learned of
//!   an addition, and blocks when two removals are in flight. The quorum is pinned to a majority of
//!   the epoch's members, who all stay acceptors, in the chain or not. The paper's minimum is this
//!   quorum: a removal is not proposed, and does nothing if it is decided all the same, when fewer
//!   members would be left.
//! - **K3, re-propagation** (Alg. 3, l. 5, against "from m_ack" in the prose): from the first entry
//!   not known to be held by the next one, in order, before the entry that removes; also after a
//!   connection was made again, after a new leader's chain, and whenever the next one reports a
//!   gap.
//! - **K4, where a new node goes**: behind the tail as the leader sees it when it proposes, and the
//!   entry says behind whom, because another leader would see another tail. Behind the leader when
//!   it was the link from the tail that had failed.
//! - **K5, a joiner** first catches up from the leader's log when it lacks much that is still kept;
//!   then AddNode puts it into the chain, where it forwards at once. When the one before it no
//!   longer keeps what it lacks, it continues behind a decided slot and fetches a snapshot from any
//!   replica, in pieces, from another one when the first fails. It neither reads, stands nor
//!   executes until then. AddNode itself travels the working chain, in which a silent joiner is
//!   removed like anyone else; its vote counts as soon as it holds AddNode in an incarnation that
//!   lost its state, and always in an incarnation that did not. One that fails soon after it was
//!   let in, again and again, waits longer each time (`Admission`), until the chain needs it. If it
//!   has lost its state, it waits only while the chain has more members than a quorum. The leader
//!   keeps it near meanwhile, and its clients' requests and reads go through the log.
//! - **K6, `max_ack` and garbage collection**: entries stay in memory until all members of the
//!   epoch have accepted them, or a bound is reached; the replica that needs older ones takes the
//!   state. Phase 1 begins behind the candidate's own commit point. A candidate below what an
//!   acceptor keeps never decides its own copies: that promise does not count, and when no majority
//!   is left without it, the candidate fetches the state.
//! - **K7, an Accept of a decided slot under a higher ballot** keeps the value (asserted to be the
//!   same) and is forwarded like any other: votes are cumulative, so the round completes.
//! - **K8, Alg. 4, l. 6** names `n_a` for `n_p`; l. 13 leaves the quorum open (see above); l. 15-17
//!   leave gaps, which are filled with nothing.
//! - **K9, marks are cleared** by every higher ballot (l. 20-21), and what is not acknowledged is
//!   forwarded again to the replica that is next then; the paper recomputes the next node and sends
//!   nothing.
//! - **K10, local reads** as printed are stale after a change of the leader, and with a lagging
//!   executor even without: what comes round may be older than what others decided. The read waits
//!   for a message made by the leader *after* it had arrived, for a quorum to have passed that on,
//!   and for everything proposed by then to be executed here. A round is a message, not an
//!   instance, so reads cost no slot and no write to disk; when the chain is idle the leader is
//!   asked for one, once for all reads of a turn.
//! - **K11, retries**: what is forwarded again to a new leader may be ordered twice; sessions find
//!   it.
//! - **K12, failure of the next, of several in a row, of the head, of the tail, chains of two**:
//!   one rule, see `watch.rs`. When fewer than a quorum are left, the chain waits.
//! - **K13, who may complain**: members, about the one that follows them. The leader ignores it
//!   while it hears that one itself, unless the complaint continues: then the link between the two
//!   is broken. A replica that is not in the chain stands only when no leader was heard for several
//!   timeouts, and then adds itself; an answer "removed" to its Prepare would leave an epoch
//!   without a candidate when the only intact majority holds no member that knows that it is one.
//! - **A replica ahead of its state** keeps what it had accepted until the state is there, for
//!   candidates, and sends no other replica ahead: a replica that lacks the same entries asks the
//!   leader. So a vote is never taken back by dropping what it was for: the one that counted the
//!   votes may be lost, and those who gave them are all that is left. When entries ahead of the
//!   state take twice `log_memory_bytes`, the replica votes for no more until it has the state,
//!   forwards what comes, and drops what others decided without it. The same holds when trimmed
//!   entries were in a snapshot that can no longer be read. When the state does not come for long
//!   and there is no leader (the replica that had it may have lost it), it stands from what it has
//!   executed on. If something was decided behind the state, one of any majority has accepted it,
//!   and a replica that does not keep all that it accepted there says so.
//! - **K14, durability** (none in the paper): entries travel ahead of the disk, votes follow when
//!   the write is durable, so n disks work at the same time and not one after the other. Promise,
//!   entries with their ballot, and membership (it is in the log and in snapshots) are on disk.
//! - **K15, an acknowledgement decides** (Alg. 2, l. 27-28) whatever the number of acceptors: in a
//!   chain of two whose second node is marked, the leader alone. Here it carries votes like any
//!   message.
//! - **K16, two failure detectors**: the next one's keep-alive, and no new rounds from the leader,
//!   with random waits and a pre-vote. Neither sees a link that is broken one way, behind which
//!   everyone is heard and nothing arrives: keep-alives name the last round seen, and the leader
//!   removes whom rounds no longer reach. The window bounds what is proposed and not decided;
//!   changes of the chain and a new leader's recovered entries are exempt.
//! - **A replica that is up and slow** is neither working nor to be removed: the leader measures
//!   how far away each one is, moves it behind the middle, and takes the acknowledgement from the
//!   last one before it as well; see `slow.rs`. So it does from the middle, for a trial, when rounds
//!   take long and when one was let in at the end; see `tail.rs`.
//! - Pre-vote, check-quorum and hand-off only decide who stands when.

// One replica: its state, and which handler each event reaches.
mod replica;

// The handlers, as `impl ChainPaxos`, in the order of a request's way.
mod acceptor;
mod election;
mod leader;
mod reads;
mod requests;
mod slow;
mod stream;
mod watch;

// Its parts: each has private fields and knows nothing of the replica.
mod agreement;
mod bug;
mod catch_up;
mod chain;
mod chain_state;
mod config;
mod distances;
mod downstream;
mod entry;
mod leader_state;
mod links;
mod message;
mod peers;
mod read_rounds;
mod rounds;
mod share;
mod tail;
mod votes;
mod wire;

#[cfg(test)]
mod tests;

use agreement::Agreement;

#[cfg(feature = "bugs")]
pub use bug::Bug;
pub use chain::{Chain, Member};
pub use config::{Config, ReadsBy};
pub use entry::{Entry, Op};
pub use message::{Header, Message, Round};
pub use replica::{ChainPaxos, Frontend, Timer};
pub use votes::{Vote, Votes};
pub use wire::{Promised, Record, Summary};

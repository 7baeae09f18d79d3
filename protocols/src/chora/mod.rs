//! Chora: all replicas propose, in rounds on a network that is mostly synchronous.
//!
//! ```text
//!              round i                 round i+1               round i+2
//!   r0   ─ 1:a ack 0 ────┐        ┌─ 4:d ack 3 ────┐       ┌─ 7:g ack 6 ───
//!   r1   ─ 2:b ack 0 ────┼──────► ├─ 5:e ack 3 ────┼─────► ├─ 8:h ack 6 ───   all to all
//!   r2   ─ 3:c ack 0 ────┘        └─ 6:f ack 3 ────┘       └─ 9:i ack 6 ───
//!                        slots 1..3 are acknowledged          slots 1..3 are committed
//! ```
//!
//! **Paper.** Yiliang Wan, Nitin Shivaraman, Akshaye Shenoi, Xiang Liu, Tao Luo, Jialin Li,
//! "Building State Machine Replication Using Practical Network Synchrony".
//!
//! **Assumes** crashes, not lies. Messages may be lost, doubled, delayed and overtake each other.
//! Of n members a minority may be down at a time; in memory durability a replica that comes back
//! counts as down until it has recovered. No clock matters for safety, and neither do rounds.
//!
//! # Safety
//!
//! The proof is Appendix A's; these are its pillars as they stand here.
//!
//! 1. View and vote are on disk before anything is acknowledged or a vote is given in the view, in
//!    every durability; so a view has one initiator and one VIEW-INIT (Claims 2, 3).
//! 2. A slot behind VIEW-INIT belongs to one proposer, who proposes one value there (Fact 1). A
//!    restarted replica proposes in a later view only, because a proposal does not wait for the
//!    disk.
//! 3. The log has no holes, and an entry keeps the view that it was proposed in. VIEW-INIT is
//!    appended behind a prefix that was compared with the initiator's, entry by entry by its view;
//!    nothing of the view stands in the log before (Claims 5 to 12: two logs that hold an entry of
//!    the same slot and view are the same up to there).
//! 4. A vote goes to a candidate whose log ends in a higher view, or in the same and not before the
//!    voter's. Everything that a majority acknowledged in a view is therefore in every later
//!    initiator's log (Claims 13, 14).
//! 5. Acknowledgements count in their view only, and commit VIEW-INIT and all before it together
//!    with what follows; nothing is committed by acknowledgements before VIEW-INIT is.
//! 6. A replica that lost its state: see `recovery.rs`. Reads: see `reads.rs`.
//!
//! # Deviations
//!
//! Numbered as questions that the paper leaves open.
//!
//! - C1. VIEW-INIT is staged: it and what is proposed in its view wait outside the log until every
//!   slot before it is verified. The suffix of an old view stays until it is replaced, and counts
//!   for being up to date; VIEW-INIT does not before it is in. Bug `init_before_prefix`.
//! - C2. `view-base` is the slot behind the initiator's log at its election. VIEW-INIT names view,
//!   initiator, base, proposers in order, and the live replicas.
//! - C3. Slots are `base + 1 + n·P + index`, P proposers; view 0 begins by itself at slot 0.
//! - C4. The quorum is a majority of the static members, whichever replica is live. Bug
//!   `quorum_shrinks`.
//! - C5. The own acknowledgement is one of the list; the majority-th largest counts, within the
//!   view.
//! - C6. Own proposals of the view are repeated to the caller that asks; a piece of the log
//!   (`Entries`) is given by replicas that have VIEW-INIT appended, and so verified.
//! - C7. A message of a higher view makes a replica enter it (durably, without a vote) and ask the
//!   sender for the view's log; it acknowledges nothing before VIEW-INIT is in. A candidate does
//!   so, too. `ViewRequest` may still be granted in that view if no vote was given and nothing
//!   began.
//! - C8. Acknowledgements are tagged with view and incarnation and start at none in a view.
//!   Bug `old_view_ack_counts`.
//! - C9. Requests are kept by the replica that received them until they are executed, and proposed
//!   or forwarded again in a new view; sessions in the replicated state find duplicates.
//! - C10. SKIP names both ends, covers the sender's own slots from its next one on, and repeats as
//!   empty proposals when asked for. An idle proposer skips one turn further than the latest
//!   proposal, so that a lone busy one needs one round trip. Bug `skip_over_proposed`.
//! - C11. Rounds run while requests wait, something is uncommitted, or a live replica has not
//!   acknowledged the latest proposal. Otherwise there are heartbeats, and the first request goes
//!   out at once. A NACK for an own slot that was not proposed is answered by SKIP, in both modes.
//! - C12. The latest proposal counts slots with something in them, empty ones that reads asked for,
//!   and VIEW-INIT; not what was skipped, else skipping would chase itself.
//! - C13. A round ends early when every live peer was heard, counted as peers. Bug
//!   `early_exit_counts_messages`.
//! - C14. Heartbeats also in pulsing mode, at a fixed interval; silence beyond `suspect_timeout_ms`
//!   changes the view, staggered by rank with a random part; a view that does not begin is given up
//!   with growing timeout, and soon by one of two candidates that hear of each other; the mode
//!   changes by the shares of rounds that time out and of NACKs, with hysteresis. A replica that
//!   does not hear a majority does not stand.
//! - C15. One set of names: `ViewRequest`, `Vote`, VIEW-INIT; the initiator is the view's leader.
//!   The actor of the verification is the follower.
//! - C16. View and vote are durable in every mode. A restarted replica says so in its pulses; if it
//!   is a proposer, the others begin a new view with it. An excluded one learns from the others,
//!   and when it is near, a new view takes it in. Bugs `slot_reused_after_restart`,
//!   `diskless_recovery_amnesia`.
//! - C17. The log is trimmed below what everybody has committed, or by memory; who needs less
//!   fetches a snapshot.
//! - C18. Reads: see `reads.rs`. Bug `stale_read_paused_leader`.
//! - C19. The coefficient of synchrony has the sign of Eq. 4. A round is as long as the links to the
//!   quickest majority need; the paper's is bound by the slowest replica. See `synchrony.rs`.
//! - C20. The coordination timer also repeats votes asked for, VIEW-INIT, and questions for the
//!   log, with back-off.
//! - C21. A NACK rides on the pulse that proposes.
//! - C22. A proposal's size is bounded; large ones are the transport's. `recv` never waits. Any
//!   number of members.
//!
//! Further: an acknowledgement goes out when a replica waits for it: not for slots that were only
//! skipped, and a SKIP that goes further than what was proposed rides on the next pulse. Rounds
//! that only wait for a member become longer, up to the coordination timer. Commit points are also
//! learnt from pulses of the same view, as far as the own log is verified. VIEW-INIT comes with the
//! views of the initiator's log, so that a follower verifies without asking when it holds the same.
//! The number of proposers changes at run time by the option `proposers`, through a view change, or
//! follows the load by itself (see `demand.rs`), but for replicas that make the others wait (see
//! `drag.rs`): the paper leaves open how it is chosen. Replicas that fail again and again are left
//! out of views for longer each time (`Admission`), as far as a majority remains.
//!
//! Left to the world: the pipelined threads of §5 (`threads = "pipelined"`, without a thread for
//! execution), and kernel bypass, which is the transport's (`af-xdp`).

// One replica: its state, and which handler each event reaches.
mod replica;

// The handlers, as `impl Chora`, in the order of a request's way.
mod acceptor;
mod load;
mod pulse;
mod reads;
mod recovery;
mod requests;
mod view;

// Its parts: each has private fields and knows nothing of the replica.
mod bug;
mod catch_up;
mod config;
mod demand;
mod drag;
mod election;
mod load_state;
mod message;
mod peers;
mod proposer;
mod pulse_state;
mod read_queue;
mod relay;
mod rounds;
mod synchrony;
mod view_log;
mod view_state;

#[cfg(test)]
mod tests;

#[cfg(feature = "bugs")]
pub use bug::Bug;
pub use config::{Config, Drive, Proposers};
pub use message::{Batches, Fitness, Message, Promised, Pulse, Record, Summary, Value, ViewInit};
pub use replica::{Chora, Frontend, Timer};
pub use rounds::{Ended, RoundTaken, Rounds};

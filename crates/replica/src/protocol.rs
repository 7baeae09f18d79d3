//! The two halves of a replication protocol, as its author writes them.
//!
//! ```text
//!             submit                 Message                      Message
//!   server ───────────► Frontend ───────────────► Protocol ◄──────────────────► Protocol
//!          ◄───────────          ◄───────────────    │   ▲
//!              Done       Message, or the executor's │   │ on_executed, on_persisted,
//!                         results with a ReplyHeader ▼   │ on_checkpointed, on_installed …
//!                                                  effects
//! ```
//!
//! Both halves are deterministic state machines: events in, effects out, no sockets, clocks,
//! threads or randomness of their own. The same code runs in the runtime and in the simulator.

use crate::{
    BatchId, BugSpec, Context, Control, Durability, Epoch, FrontendContext, FrontendId, GroupId,
    Incarnation, Layout, Link, PersistId, Recovered, ReplicaId, ReplicaSet, Setup, Slot,
    Submission, Time, Wake, Wire,
};
use alloc::{format, string::String, vec::Vec};
use bytes::Bytes;
use core::time::Duration;

/// The consistency of a batch of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Level {
    /// Put it into the replicated order (all writes; reads mixed with them).
    #[default]
    Ordered = 0,
    /// Reads only: answer from a state at least as new as all that was acknowledged before.
    Linearizable = 1,
    /// Reads only: answer from this replica's state, however old.
    Stale = 2,
}

impl Level {
    /// The level that is written as this byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Ordered,
            1 => Self::Linearizable,
            2 => Self::Stale,
            _ => return None,
        })
    }
}

/// How a batch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// One result per request, see [`crate::Results`].
    Results(Bytes),
    /// Certainly not executed: it never reached a replica that could order it in time.
    NoQuorum,
    /// It may or may not have been executed.
    Uncertain,
    /// Certainly not executed: a queue is full. Try again later.
    Busy,
}

/// A replica's state for users. The words are the field's: leader, follower, head, tail …
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Its part in the protocol now.
    pub role: &'static str,
    /// The leader, if there is one and the protocol has leaders.
    pub leader: Option<ReplicaId>,
    /// The protocol's view, ballot or round number.
    pub view: u64,
    /// The last slot accepted here.
    pub accepted: Slot,
    /// The last slot known to be decided, with all before it.
    pub committed: Slot,
    /// The last slot whose execution is final.
    pub stable: Slot,
    /// Whether it takes part in quorums (false while it recovers or catches up).
    pub voting: bool,
    /// How what its own frontend submitted was committed, by path, since it began; empty where
    /// there is one path only.
    pub paths: Vec<(&'static str, u64)>,
    /// The messages that it has multicast, by path, since it began; empty where there is one path
    /// only.
    pub multicasts: Vec<(&'static str, u64)>,
    /// More, by name; shown as they are.
    pub details: Vec<(&'static str, String)>,
}

/// The state of a node for the question whether a set of nodes may make progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Which.
    pub id: ReplicaId,
    /// It runs and reaches the others of the set.
    pub up: bool,
    /// It has lost what it acknowledged.
    pub state_lost: bool,
}

/// One option of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionSpec {
    /// Its name, in snake case; that of a time ends with its unit.
    pub name: &'static str,
    /// Its default as text.
    pub default: &'static str,
    /// Its meaning, its unit and its range, in one line.
    pub help: &'static str,
}

/// A protocol's options: defaults, names and parsing.
pub trait Options: Clone + Default + Send + core::fmt::Debug + 'static {
    /// All of them.
    const SPECS: &'static [OptionSpec];
    /// Options that the simulator draws for each seed, with the values that it draws from, so that
    /// every way of a protocol is tried. Options that users set are not drawn.
    const DRAWN: &'static [(&'static str, &'static [&'static str])] = &[];
    /// Earlier names of options as `(earlier, today's)`; accepted for one minor version.
    const ALIASES: &'static [(&'static str, &'static str)] = &[];
    /// Sets one from text.
    ///
    /// # Errors
    /// With the accepted values when the value does not parse. `name` is one of [`Self::SPECS`].
    fn set(&mut self, name: &str, value: &str) -> Result<(), String>;
    /// Checks the values against each other, once all of them are set.
    ///
    /// # Errors
    /// Says which rule is broken and what would do.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// These with one of them changed; none when the value does not parse, or not go with the
    /// others.
    #[must_use]
    fn changed(&self, name: &str, value: &str) -> Option<Self> {
        let mut changed = self.clone();
        let set = changed.set(name, value).and_then(|()| changed.check());
        set.is_ok().then_some(changed)
    }

    /// Whether, set so, the protocol delivers by [`Effect::Unordered`](crate::Effect::Unordered):
    /// no order, no log, no agreement among replicas. For state machines that allow it
    /// ([`StateMachine::takes_unordered`](crate::StateMachine::takes_unordered)), in memory
    /// durability; a node with anything else is not made.
    fn unordered(&self) -> bool {
        false
    }

    /// The groups that a replica serves besides its own; none for most protocols.
    fn layout(&self) -> Option<&Layout> {
        None
    }
}

/// Declares a protocol's timers: an enumeration that converts to the numbers by which the world
/// knows them, and back.
///
/// ```
/// quintet_replica::timers! {
///     /// What wakes a replica.
///     pub enum Timer {
///         /// Timeout for the leader.
///         Election,
///         /// A leader is heard although idle.
///         Heartbeat,
///     }
/// }
/// assert_eq!(Timer::try_from(u32::from(Timer::Heartbeat)), Ok(Timer::Heartbeat));
/// assert_eq!(Timer::try_from(2), Err(()));
/// ```
#[macro_export]
macro_rules! timers {
    (
        $(#[$about:meta])*
        $visible:vis enum $name:ident {
            $($(#[$each:meta])* $timer:ident,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        $visible enum $name {
            $($(#[$each])* $timer,)+
        }

        impl From<$name> for u32 {
            fn from(timer: $name) -> Self {
                timer as Self
            }
        }

        impl TryFrom<u32> for $name {
            type Error = ();
            fn try_from(number: u32) -> Result<Self, ()> {
                let all = [$(Self::$timer),+];
                all.get(number as usize).copied().ok_or(())
            }
        }
    };
}

/// The items of a [`Protocol`] that are alike in most: its types by their usual names, its injected
/// bugs, and a fingerprint of all that it derives `Hash` for. `Record` and `ReplyHeader` are left.
///
/// | item | is |
/// | --- | --- |
/// | `Message`, `Summary`, `Timer`, `Frontend` | the type of that name |
/// | `Promise`, `Options` | `Promised`, `Config` |
/// | `BUGS` | those of `Bug`, with the feature `bugs` |
#[macro_export]
macro_rules! usual_items {
    () => {
        type Message = Message;
        type Promise = Promised;
        type Summary = Summary;
        type Timer = Timer;
        type Options = Config;
        type Frontend = Frontend;

        #[cfg(feature = "bugs")]
        const BUGS: &'static [$crate::BugSpec] = Bug::SPECS;

        fn fingerprint(&self, mut hasher: &mut dyn ::core::hash::Hasher) -> bool {
            ::core::hash::Hash::hash(self, &mut hasher);
            true
        }
    };
}

impl Options for () {
    const SPECS: &'static [OptionSpec] = &[];
    fn set(&mut self, name: &str, _: &str) -> Result<(), String> {
        Err(format!("there is no option '{name}'"))
    }
}

/// The description of a protocol for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Its name on the command line: lower case with underscores.
    pub name: &'static str,
    /// Where it is described.
    pub paper: &'static str,
    /// Its strength, in a few words.
    pub best_at: &'static str,
    /// Which failures it survives, in a few words.
    pub tolerates: &'static str,
    /// Whether it passes the whole conformance kit.
    pub stable: bool,
    /// The fewest members that it works with.
    pub replicas_min: usize,
}

/// The replicas' half of a replication protocol.
///
/// Handlers must be deterministic. They must never panic on a message that a correct or crashed
/// peer, or a stranger, could send. They assert their own invariants.
pub trait Protocol: Sized + Send + 'static {
    /// Between replicas, and between frontends and replicas.
    type Message: Wire + Send + core::fmt::Debug;
    /// State that must survive a crash whatever the durability: ballots promised, votes given.
    /// Small; written whole each time.
    type Promise: Wire + Send;
    /// The log's record of a slot.
    type Record: Wire + Send;
    /// The protocol's part of a snapshot, from which it continues.
    type Summary: Wire + Send;
    /// The replica's addition to the results of a batch that it executed.
    type ReplyHeader: Wire + Send;
    /// Its timers.
    type Timer: Copy + Into<u32> + TryFrom<u32> + core::fmt::Debug;
    /// Its options.
    type Options: Options;
    /// The client's half.
    type Frontend: Frontend<Self>;

    /// For the registry and for people.
    const INFO: Info;
    /// Whether it executes before it knows that an order is final.
    const SPECULATES: bool = false;
    /// Whether it relies on links that lose, double and reorder nothing while they are up. Those
    /// that do not may run over datagrams.
    const NEEDS_STREAMS: bool = false;
    /// Whether members leave and return inside an epoch; then it tells its views, see
    /// [`Context::view_is`](crate::Context::view_is). Else all voters are members permanently.
    const CHANGES_MEMBERS: bool = false;
    /// Its injected bugs; empty in a build without the feature `bugs`.
    const BUGS: &'static [BugSpec] = &[];

    /// The rare branches ([`Context::mark`]) that a long campaign of the simulator must have taken.
    const BRANCHES: &'static [&'static str] = &[];

    /// A set of nodes that may make progress ([`Self::viable`]) acknowledges a new command so soon
    /// after the last fault has ended, with the usual timeouts and a network that is synchronous.
    /// The simulator asserts it.
    const RESUMES_WITHIN: Duration = Duration::from_secs(5);

    /// A replica before its start. Never I/O.
    fn new(setup: Setup<Self::Options>) -> Self;

    /// The first call. First boot and restart are one path. A protocol that serves several groups is
    /// called for each of them, for its own first, which has the promise.
    fn on_start(
        &mut self,
        recovered: Recovered<Self::Promise, Self::Record, Self::Summary>,
        ctx: &mut Context<'_, Self>,
    );

    /// A message of a frontend.
    fn on_request(&mut self, from: FrontendId, message: Self::Message, ctx: &mut Context<'_, Self>);

    /// A message of another member.
    fn on_message(&mut self, from: ReplicaId, message: Self::Message, ctx: &mut Context<'_, Self>);

    /// A timer that was set has fired.
    fn on_timer(&mut self, timer: Self::Timer, ctx: &mut Context<'_, Self>);

    /// All writes up to this one are durable (or need not be, in memory durability).
    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>);

    /// All batches up to this slot have been executed here.
    fn on_executed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        let _ = (slot, ctx);
    }

    /// The execution above this slot has been undone, as requested by `roll_back`.
    fn on_rolled_back(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        let _ = (slot, ctx);
    }

    /// The snapshot taken by a `Checkpoint` is durable: the log below may be trimmed.
    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        let _ = (slot, ctx);
    }

    /// The executor holds a peer's state that covers `slot`, asked for by `FetchState`. Effects
    /// to execute slots at or below it are no longer possible.
    fn on_installed(&mut self, slot: Slot, summary: Self::Summary, ctx: &mut Context<'_, Self>);

    /// Something happened to the link to another member.
    fn on_link(&mut self, peer: ReplicaId, link: Link, ctx: &mut Context<'_, Self>) {
        let _ = (peer, link, ctx);
    }

    /// A peer changed words of its row in the shared table; `on_idle` follows.
    fn on_put(&mut self, from: ReplicaId, offset: u32, words: &[u64], ctx: &mut Context<'_, Self>) {
        let _ = (from, offset, words, ctx);
    }

    /// An instruction of the operator or the node.
    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>);

    /// The inbox is empty: flush batches, evaluate predicates, end rounds.
    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake;

    /// Whether a request of the embedded frontend that was refused would be taken now. The frontend
    /// offers it again as soon as it is, and after some time by itself.
    fn takes_requests(&self, now: Time) -> bool {
        let _ = now;
        false
    }

    /// The same of one of several groups.
    fn takes_requests_in(&self, group: GroupId, now: Time) -> bool {
        let _ = group;
        self.takes_requests(now)
    }

    /// Its state for users.
    fn status(&self) -> Status;

    /// Its state for users in one of several groups.
    fn status_in(&self, group: GroupId) -> Status {
        let _ = group;
        self.status()
    }

    /// Whether this set of nodes may make progress, by the protocol's promise.
    #[must_use]
    fn viable(members: usize, nodes: &[NodeState]) -> bool {
        nodes
            .iter()
            .filter(|node| node.up && !node.state_lost)
            .count()
            > members / 2
    }

    /// The same, for protocols whose promise depends on who takes part now: `route` is the newest
    /// one reported by `route_is`, empty when none was.
    #[must_use]
    fn viable_in(members: usize, nodes: &[NodeState], route: &[(ReplicaId, Incarnation)]) -> bool {
        let _ = route;
        Self::viable(members, nodes)
    }

    /// The groups of whose logs no other replica has a copy, as this replica's promise says: by
    /// their places among those that the protocol serves beside the first.
    #[must_use]
    fn kept_alone(promise: &Self::Promise, me: ReplicaId) -> Vec<usize> {
        let _ = (promise, me);
        Vec::new()
    }

    /// A hash of the replica's whole state, for the simulator's trace.
    fn digest(&self) -> u64;

    /// Feeds all that the replica's future depends on into `hasher`, whatever led to it; false when
    /// the protocol does not show that much. The exhaustive search tells states apart by it;
    /// without it, by everything that a replica has seen, which is many more. Values that only
    /// affect times ([`parts::Timing`](crate::parts::Timing)), and sources of randomness, may be
    /// left out. A protocol derives `Hash` and calls it here.
    fn fingerprint(&self, hasher: &mut dyn core::hash::Hasher) -> bool {
        let _ = hasher;
        false
    }

    /// Checks what must always hold; called after every event in the simulator.
    ///
    /// # Panics
    /// When something does not hold.
    fn assert_invariants(&self) {}
}

/// The setup of a frontend.
#[derive(Clone, Debug)]
pub struct FrontendSetup<O> {
    /// Its own address for replies.
    pub id: FrontendId,
    /// The replica that it is embedded in; `None` in a client library or proxy.
    pub embedded: Option<ReplicaId>,
    /// The epoch that it talks to.
    pub epoch: Epoch,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// The protocol's options.
    pub options: O,
}

/// The results of a batch as one replica gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<H> {
    /// The batch.
    pub batch: BatchId,
    /// The protocol's addition: view, log hash.
    pub header: H,
    /// One result per request.
    pub results: Bytes,
}

/// The client's half of a protocol: how a batch reaches replicas, and when its reply is final.
/// Runs embedded in a replica's server, in a client library or as a process of its own.
///
/// Every submission must end in exactly one `done`, at its deadline at the latest. A batch is
/// retried as the same bytes, so that sessions see duplicates.
pub trait Frontend<P: Protocol>: Sized + Send + 'static {
    /// A frontend with nothing in progress.
    fn new(setup: FrontendSetup<P::Options>) -> Self;
    /// A batch of requests to carry out.
    fn submit(&mut self, submission: Submission, ctx: &mut FrontendContext<'_, P>);
    /// A message from a replica.
    fn on_message(
        &mut self,
        from: ReplicaId,
        message: P::Message,
        ctx: &mut FrontendContext<'_, P>,
    );
    /// Results from a replica's executor.
    fn on_reply(
        &mut self,
        from: ReplicaId,
        reply: Reply<P::ReplyHeader>,
        ctx: &mut FrontendContext<'_, P>,
    );
    /// A timer that was set has fired.
    fn on_timer(&mut self, timer: u32, ctx: &mut FrontendContext<'_, P>);
    /// Something happened to the link to a replica.
    fn on_link(&mut self, replica: ReplicaId, link: Link, ctx: &mut FrontendContext<'_, P>) {
        let _ = (replica, link, ctx);
    }
    /// Whether the replica refused what would now be in progress.
    fn is_refused(&self) -> bool {
        false
    }
    /// The replica that it is embedded in takes requests again.
    fn offer_again(&mut self, ctx: &mut FrontendContext<'_, P>) {
        let _ = ctx;
    }
    /// In a group of several, whose members change: these answer reads from here on, and those of
    /// them that are senders take requests that are to be ordered.
    fn members_are(
        &mut self,
        members: ReplicaSet,
        senders: ReplicaSet,
        ctx: &mut FrontendContext<'_, P>,
    ) {
        let _ = (members, senders, ctx);
    }
    /// How many batches are in flight.
    fn open(&self) -> usize;
    /// Gives the batches in flight away, as the epoch has ended: they are submitted again, whole,
    /// in the next one. The frontend is not used any more.
    fn take_open(&mut self) -> Vec<Submission>;
    /// How batches were committed, by path, if the protocol has several; as [`Status::paths`].
    fn paths(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
    /// As [`Protocol::fingerprint`], for a frontend.
    fn fingerprint(&self, hasher: &mut dyn core::hash::Hasher) -> bool {
        let _ = hasher;
        false
    }
}

//! The driver: one generic piece that turns a typed protocol into an object that the runtime and
//! the simulator hold without knowing which protocol it is.
//!
//! ```text
//!   Event (bytes) ──► decode ──► handler ──► Effect (bytes) ──► world
//!                                  │ ▲
//!                                  ▼ │ messages between the two halves of one node:
//!                               local queue, never encoded
//! ```
//!
//! Most protocols serve one group. One that serves several is called by a node of each, named in
//! [`Surroundings`]; its effects in another group wait in [`Replica::take_foreign`].

use crate::{
    BatchId, BatchView, Bytes, Context, DecodeError, Durability, Effect, Event, Frontend,
    FrontendContext, FrontendId, FrontendSetup, GroupId, Layout, Level, Link, Options, Outcome,
    Peer, PersistId, Protocol, Reader, Recovered, RecoveredBytes, ReplicaId, Reply, RequestStatus,
    ResultsBuilder, Setup, Slot, Status, Submission, Time, TimerOwner, Wake, Wire, World,
    context::{GroupState, Local, Shared, Surroundings},
    holds_seal,
    wire::{NUMBER_END, next_range},
};
use alloc::{
    boxed::Box,
    string::{String, ToString},
    vec::Vec,
};
use core::cell::Cell;

/// Why an event was not handled. The node counts it and continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// The bytes are not a message of this protocol.
    #[error("{0}")]
    Decode(#[from] DecodeError),
    /// A record, promise or summary on disk is not one of this protocol's.
    #[error("what was recovered is not this protocol's: {0}")]
    Recovered(DecodeError),
}

/// One replica of some protocol with its embedded frontend, behind bytes.
pub trait Replica: Send {
    /// Handles one event; effects are appended in order.
    ///
    /// # Errors
    /// When bytes from outside are malformed. Nothing has changed then.
    fn on_event(
        &mut self,
        event: Event,
        around: Surroundings<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), EventError>;

    /// The inbox is empty.
    fn on_idle(&mut self, around: Surroundings<'_>, effects: &mut Vec<Effect>) -> Wake;

    /// Effects in groups other than that of the calling node, in order. To be carried out after
    /// every call, before the next.
    fn take_foreign(&mut self, into: &mut Vec<(GroupId, Effect)>) {
        let _ = into;
    }

    /// Its status in a group.
    fn status(&self, group: GroupId) -> Status;

    /// The number of open batches of the embedded frontend of a group.
    fn open(&self, group: GroupId) -> usize;

    /// As [`Frontend::take_open`].
    fn take_open(&mut self, group: GroupId) -> Vec<Submission>;

    /// A hash of the replica's state.
    fn digest(&self) -> u64;

    /// As [`Protocol::fingerprint`], with the embedded frontend.
    fn fingerprint(&self, hasher: &mut dyn core::hash::Hasher) -> bool;

    /// Checks what must always hold.
    ///
    /// # Panics
    /// When something does not hold.
    fn assert_invariants(&self);
}

/// See [`Replica`].
pub struct Driver<P: Protocol> {
    replica: P,
    frontend: P::Frontend,
    /// Those of the other groups, in the order of `shared.others`.
    frontends: Vec<P::Frontend>,
    shared: Shared<P::Message>,
    members: usize,
}

/// Reads input from outside: of this protocol, and within an epoch of this many members. Every
/// message, record, promise and summary is read here, so that no protocol can omit the check.
fn read<T: Wire>(bytes: Bytes, members: usize) -> Result<T, DecodeError> {
    T::decode_within(bytes, members)
}

/// Only members speak as replicas.
fn check_sender(from: ReplicaId, members: usize) -> Result<(), EventError> {
    if from.index() < members {
        Ok(())
    } else {
        Err(DecodeError::Bad("sender").into())
    }
}

impl<P: Protocol> Driver<P> {
    /// A replica and the frontend embedded in it.
    #[must_use]
    pub fn new(setup: Setup<P::Options>, embedded: FrontendId) -> Self {
        let frontend = |durability| {
            P::Frontend::new(FrontendSetup {
                id: embedded,
                embedded: Some(setup.id),
                epoch: setup.epoch.clone(),
                durability,
                options: setup.options.clone(),
            })
        };
        let layout = setup.options.layout();
        let groups: Vec<(GroupId, Durability)> = layout.map(Layout::groups).unwrap_or_default();
        let home = GroupState::new(setup.group, setup.durability);
        let mut shared = Shared::new(setup.id, embedded, home, setup.seed);
        let others = groups.iter();
        shared.others = others.map(|(id, of)| GroupState::new(*id, *of)).collect();
        Self {
            members: setup.epoch.members,
            frontend: frontend(setup.durability),
            frontends: groups.iter().map(|(_, of)| frontend(*of)).collect(),
            shared,
            replica: P::new(setup),
        }
    }

    /// The protocol itself, for tests that look inside.
    #[must_use]
    pub const fn replica(&self) -> &P {
        &self.replica
    }

    /// The same, to change what only tests do.
    #[must_use]
    pub const fn replica_mut(&mut self) -> &mut P {
        &mut self.replica
    }

    fn with_replica<R>(
        &mut self,
        around: Surroundings<'_>,
        arrived: Option<Time>,
        effects: &mut Vec<Effect>,
        handle: impl FnOnce(&mut P, &mut Context<'_, P>) -> R,
    ) -> R {
        self.with_replica_in(around.group, around, arrived, effects, handle)
    }

    /// The same for another group than that of the calling node.
    fn with_replica_in<R>(
        &mut self,
        group: GroupId,
        around: Surroundings<'_>,
        arrived: Option<Time>,
        effects: &mut Vec<Effect>,
        handle: impl FnOnce(&mut P, &mut Context<'_, P>) -> R,
    ) -> R {
        let mut context = Context {
            shared: &mut self.shared,
            world: around.world,
            calls: around.group,
            group,
            machine: around.machine,
            arrived,
            from_outside: around.from_outside && arrived.is_some(),
            effects,
            now: Cell::new(None),
            clock: Cell::new(None),
        };
        handle(&mut self.replica, &mut context)
    }

    fn with_frontend(
        &mut self,
        around: Surroundings<'_>,
        effects: &mut Vec<Effect>,
        handle: impl FnOnce(&mut P::Frontend, &mut FrontendContext<'_, P>),
    ) {
        self.with_frontend_in(around.group, around, effects, handle);
    }

    fn with_frontend_in(
        &mut self,
        group: GroupId,
        around: Surroundings<'_>,
        effects: &mut Vec<Effect>,
        handle: impl FnOnce(&mut P::Frontend, &mut FrontendContext<'_, P>),
    ) {
        let frontend = match self.shared.place(group) {
            None => &mut self.frontend,
            Some(place) => &mut self.frontends[place],
        };
        let mut context = FrontendContext {
            shared: &mut self.shared,
            world: around.world,
            calls: around.group,
            group,
            effects,
        };
        handle(frontend, &mut context);
    }

    fn frontend(&self, group: GroupId) -> &P::Frontend {
        match self.shared.place(group) {
            None => &self.frontend,
            Some(place) => &self.frontends[place],
        }
    }

    /// Offers refused requests again, if the replica would take them now.
    fn offer_again(
        &mut self,
        group: GroupId,
        around: Surroundings<'_>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let offers = self.frontend(group).is_refused()
            && self.replica.takes_requests_in(group, around.world.now());
        if offers {
            self.with_frontend_in(group, around, effects, |frontend, ctx| {
                frontend.offer_again(ctx);
            });
        }
        offers
    }

    fn start(
        &mut self,
        recovered: RecoveredBytes,
        around: Surroundings<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), EventError> {
        let (refuse, members) = (EventError::Recovered, self.members);
        let recovered = Recovered {
            first_boot: recovered.first_boot,
            state_lost: recovered.state_lost,
            promise: recovered
                .promise
                .map(|promise| read::<P::Promise>(promise, members))
                .transpose()
                .map_err(refuse)?,
            checkpoint: recovered
                .checkpoint
                .map(|(slot, summary)| Ok((slot, read::<P::Summary>(summary, members)?)))
                .transpose()
                .map_err(refuse)?,
            records: recovered
                .records
                .into_iter()
                .map(|(slot, record)| match slot {
                    Slot(NUMBER_END..) => Err(DecodeError::Bad("slot of a record")),
                    slot => Ok((slot, read::<P::Record>(record, members)?)),
                })
                .collect::<Result<_, _>>()
                .map_err(refuse)?,
        };
        self.with_replica(around, None, effects, |replica, ctx| {
            replica.on_start(recovered, ctx)
        });
        Ok(())
    }

    fn handle(
        &mut self,
        event: Event,
        around: Surroundings<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), EventError> {
        match event {
            Event::Start(recovered) => self.start(recovered, around, effects)?,
            Event::Message {
                from,
                arrived,
                message,
            } => {
                if let Peer::Replica(from) = from {
                    check_sender(from, self.members)?;
                }
                let message: P::Message = read(message, self.members)?;
                let own = self.shared.id;
                self.with_replica(around, Some(arrived), effects, |replica, ctx| match from {
                    Peer::Frontend(from) => replica.on_request(from, message, ctx),
                    Peer::Replica(from) if from != own => replica.on_message(from, message, ctx),
                    Peer::Replica(_) => ctx.mark("ignored: in this replica's own name"),
                });
            }
            Event::ToFrontend { from, message } => {
                check_sender(from, self.members)?;
                let message: P::Message = read(message, self.members)?;
                self.with_frontend(around, effects, |frontend, ctx| {
                    frontend.on_message(from, message, ctx);
                });
            }
            Event::Reply {
                from,
                batch,
                header,
                results,
            } => {
                check_sender(from, self.members)?;
                let header = read(header, self.members)?;
                let reply = Reply {
                    batch,
                    header,
                    results,
                };
                self.with_frontend(around, effects, |frontend, ctx| {
                    frontend.on_reply(from, reply, ctx);
                });
            }
            Event::Submit(submission) => {
                self.with_frontend(around, effects, |frontend, ctx| {
                    frontend.submit(submission, ctx);
                });
            }
            Event::Timer(key) => match key.owner {
                TimerOwner::Replica => {
                    let Ok(timer) = P::Timer::try_from(key.timer) else {
                        unreachable!("only timers that the protocol set can fire");
                    };
                    self.with_replica(around, None, effects, |replica, ctx| {
                        replica.on_timer(timer, ctx);
                    });
                }
                TimerOwner::Frontend => {
                    self.with_frontend(around, effects, |frontend, ctx| {
                        frontend.on_timer(key.timer, ctx);
                    });
                }
                TimerOwner::Node => unreachable!("the node keeps its own timers"),
            },
            Event::Persisted(upto) => self.shared.group(around.group).on_persisted(upto),
            Event::Executed(slot) => {
                let group = self.shared.group(around.group);
                assert!(slot >= group.executed, "execution does not go back");
                group.executed = slot;
                self.with_replica(around, None, effects, |replica, ctx| {
                    replica.on_executed(slot, ctx);
                });
            }
            Event::RolledBack(slot) => {
                self.shared.group(around.group).executed = slot;
                self.with_replica(around, None, effects, |replica, ctx| {
                    replica.on_rolled_back(slot, ctx);
                });
            }
            Event::Checkpointed(slot) => {
                self.with_replica(around, None, effects, |replica, ctx| {
                    replica.on_checkpointed(slot, ctx);
                })
            }
            Event::Installed { slot, summary } => {
                let summary = read(summary, self.members)?;
                self.shared.group(around.group).executed = slot;
                self.with_replica(around, None, effects, |replica, ctx| {
                    replica.on_installed(slot, summary, ctx);
                });
            }
            Event::Link(peer, link) => {
                if let Peer::Replica(id) = peer {
                    if id != self.shared.id && id.index() < self.members {
                        self.with_replica(around, None, effects, |replica, ctx| {
                            replica.on_link(id, link, ctx);
                        });
                    }
                    self.with_frontend(around, effects, |frontend, ctx| {
                        frontend.on_link(id, link, ctx);
                    });
                }
            }
            Event::Put { from, ranges } => {
                check_sender(from, self.members)?;
                let mut words = Vec::new();
                let mut reader = Reader::new(ranges);
                while reader.remaining() > 0 {
                    let offset = next_range(&mut reader, &mut words)?;
                    self.with_replica(around, None, effects, |replica, ctx| {
                        replica.on_put(from, offset, &words, ctx);
                    });
                }
            }
            Event::Control(control) => self.with_replica(around, None, effects, |replica, ctx| {
                replica.on_control(control, ctx);
            }),
            Event::Idle => {
                self.on_idle(around, effects);
            }
        }
        Ok(())
    }

    /// A group with more durable writes than were told, and the last of them.
    fn newly_durable(&mut self) -> Option<(GroupId, PersistId)> {
        let Shared { home, others, .. } = &mut self.shared;
        let mut groups = core::iter::once(home).chain(others);
        groups.find_map(|group| Some((group.id, group.newly_durable()?)))
    }

    /// Delivers what crossed between the halves and tells what became durable, until neither
    /// brings anything new; true when the replica was told something.
    fn settle(&mut self, around: Surroundings<'_>, effects: &mut Vec<Effect>) -> bool {
        let mut told = false;
        loop {
            if let Some((group, durable)) = self.newly_durable() {
                told = true;
                self.with_replica_in(group, around, None, effects, |replica, ctx| {
                    replica.on_persisted(durable, ctx);
                });
                continue;
            }
            match self.shared.local.pop_front() {
                Some((group, Local::ToReplica(message))) => {
                    told = true;
                    let from = self.shared.embedded;
                    self.with_replica_in(group, around, None, effects, |replica, ctx| {
                        replica.on_request(from, message, ctx);
                    });
                }
                Some((group, Local::ToFrontend(message))) => {
                    let from = self.shared.id;
                    self.with_frontend_in(group, around, effects, |frontend, ctx| {
                        frontend.on_message(from, message, ctx);
                    });
                }
                Some((group, Local::Members { members, senders })) => {
                    self.with_frontend_in(group, around, effects, |frontend, ctx| {
                        frontend.members_are(members, senders, ctx);
                    });
                }
                None => return told,
            }
        }
    }
}

impl<P: Protocol> Replica for Driver<P> {
    fn on_event(
        &mut self,
        event: Event,
        around: Surroundings<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), EventError> {
        self.handle(event, around, effects)?;
        self.settle(around, effects);
        Ok(())
    }

    fn on_idle(&mut self, around: Surroundings<'_>, effects: &mut Vec<Effect>) -> Wake {
        let mut offered = self.offer_again(self.shared.home.id, around, effects);
        for place in 0..self.shared.others.len() {
            offered |= self.offer_again(self.shared.others[place].id, around, effects);
        }
        if offered {
            self.settle(around, effects);
        }
        let wake = self.with_replica(around, None, effects, |replica, ctx| replica.on_idle(ctx));
        if !self.settle(around, effects) {
            return wake;
        }
        // Without a disk, what it has just written is durable at once: there may be more to do now,
        // and no event comes for it.
        let wake = self.with_replica(around, None, effects, |replica, ctx| replica.on_idle(ctx));
        self.settle(around, effects);
        wake
    }

    fn take_foreign(&mut self, into: &mut Vec<(GroupId, Effect)>) {
        into.append(&mut self.shared.foreign);
    }

    fn status(&self, group: GroupId) -> Status {
        self.replica.status_in(group)
    }

    fn open(&self, group: GroupId) -> usize {
        self.frontend(group).open()
    }

    fn take_open(&mut self, group: GroupId) -> Vec<Submission> {
        match self.shared.place(group) {
            None => self.frontend.take_open(),
            Some(place) => self.frontends[place].take_open(),
        }
    }

    fn digest(&self) -> u64 {
        self.replica.digest()
    }

    fn fingerprint(&self, hasher: &mut dyn core::hash::Hasher) -> bool {
        self.shared.home.fingerprint(hasher);
        for group in &self.shared.others {
            group.fingerprint(hasher);
        }
        let mut frontends = self.frontends.iter();
        self.replica.fingerprint(hasher)
            && self.frontend.fingerprint(hasher)
            && frontends.all(|frontend| frontend.fingerprint(hasher))
    }

    fn assert_invariants(&self) {
        self.replica.assert_invariants();
    }
}

/// A frontend that runs without a replica: in a client library, a proxy, a simulated client.
pub trait Client: Send {
    /// A batch to carry out; ends in [`Effect::Done`].
    fn submit(&mut self, submission: Submission, world: &dyn World, effects: &mut Vec<Effect>);
    /// A message of the protocol from a replica.
    ///
    /// # Errors
    /// When the bytes are malformed.
    fn on_message(
        &mut self,
        from: ReplicaId,
        message: Bytes,
        world: &dyn World,
        effects: &mut Vec<Effect>,
    ) -> Result<(), EventError>;
    /// Results from a replica's executor.
    ///
    /// # Errors
    /// When the header is malformed.
    fn on_reply(
        &mut self,
        from: ReplicaId,
        batch: BatchId,
        reply: (Bytes, Bytes),
        world: &dyn World,
        effects: &mut Vec<Effect>,
    ) -> Result<(), EventError>;
    /// A timer fired.
    fn on_timer(&mut self, timer: u32, world: &dyn World, effects: &mut Vec<Effect>);
    /// Something happened to a link.
    fn on_link(&mut self, to: ReplicaId, link: Link, world: &dyn World, effects: &mut Vec<Effect>);
    /// How many batches are in flight.
    fn open(&self) -> usize;
    /// As [`Frontend::take_open`].
    fn take_open(&mut self) -> Vec<Submission>;
    /// How batches were committed, by path, if the protocol has several.
    fn paths(&self) -> Vec<(&'static str, u64)>;
}

/// See [`Client`].
pub struct ClientDriver<P: Protocol> {
    frontend: P::Frontend,
    shared: Shared<P::Message>,
    members: usize,
}

impl<P: Protocol> ClientDriver<P> {
    /// A frontend on its own; `setup.embedded` must be `None`.
    #[must_use]
    pub fn new(setup: FrontendSetup<P::Options>, seed: u64) -> Self {
        let nowhere = ReplicaId(u16::MAX);
        let home = GroupState::new(GroupId(0), setup.durability);
        let shared = Shared::new(nowhere, FrontendId::default(), home, seed);
        Self {
            members: setup.epoch.members,
            frontend: P::Frontend::new(setup),
            shared,
        }
    }

    fn with(
        &mut self,
        world: &dyn World,
        effects: &mut Vec<Effect>,
        handle: impl FnOnce(&mut P::Frontend, &mut FrontendContext<'_, P>),
    ) {
        let group = self.shared.home.id;
        let mut context = FrontendContext {
            shared: &mut self.shared,
            world,
            calls: group,
            group,
            effects,
        };
        handle(&mut self.frontend, &mut context);
    }
}

impl<P: Protocol> Client for ClientDriver<P> {
    fn submit(&mut self, submission: Submission, world: &dyn World, effects: &mut Vec<Effect>) {
        if let Some(outcome) = refuse_seal(&submission) {
            let batch = submission.id;
            return effects.push(Effect::Done { batch, outcome });
        }
        self.with(world, effects, |frontend, ctx| {
            frontend.submit(submission, ctx)
        });
    }

    fn on_message(
        &mut self,
        from: ReplicaId,
        message: Bytes,
        world: &dyn World,
        effects: &mut Vec<Effect>,
    ) -> Result<(), EventError> {
        check_sender(from, self.members)?;
        let message = read(message, self.members)?;
        self.with(world, effects, |frontend, ctx| {
            frontend.on_message(from, message, ctx)
        });
        Ok(())
    }

    fn on_reply(
        &mut self,
        from: ReplicaId,
        batch: BatchId,
        (header, results): (Bytes, Bytes),
        world: &dyn World,
        effects: &mut Vec<Effect>,
    ) -> Result<(), EventError> {
        check_sender(from, self.members)?;
        let reply = Reply {
            batch,
            header: read(header, self.members)?,
            results,
        };
        self.with(world, effects, |frontend, ctx| {
            frontend.on_reply(from, reply, ctx)
        });
        Ok(())
    }

    fn on_timer(&mut self, timer: u32, world: &dyn World, effects: &mut Vec<Effect>) {
        self.with(world, effects, |frontend, ctx| {
            frontend.on_timer(timer, ctx)
        });
    }

    fn on_link(&mut self, to: ReplicaId, link: Link, world: &dyn World, effects: &mut Vec<Effect>) {
        self.with(world, effects, |frontend, ctx| {
            frontend.on_link(to, link, ctx)
        });
    }

    fn open(&self) -> usize {
        self.frontend.open()
    }

    fn take_open(&mut self) -> Vec<Submission> {
        self.frontend.take_open()
    }

    fn paths(&self) -> Vec<(&'static str, u64)> {
        self.frontend.paths()
    }
}

/// Options as `(name, value)` in text.
pub type OptionTexts = [(String, String)];
/// Makes a replica with its embedded frontend.
pub type MakeReplica = fn(Setup<()>, FrontendId) -> Result<Box<dyn Replica>, OptionError>;
/// Makes a frontend on its own.
pub type MakeClient = fn(FrontendSetup<()>, u64) -> Result<Box<dyn Client>, OptionError>;
/// [`Protocol::viable_in`].
pub type ViableIn =
    fn(usize, &[crate::NodeState], &[(crate::ReplicaId, crate::Incarnation)]) -> bool;
/// Checks options without making anything.
pub type CheckOptions = fn(&OptionTexts) -> Result<(), OptionError>;

/// A protocol's entry in the registry: how to make its two halves, by name and text options.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The description for users.
    pub info: &'static crate::Info,
    /// Its options.
    pub options: &'static [crate::OptionSpec],
    /// Options that the simulator draws, and from which values.
    pub drawn: &'static [(&'static str, &'static [&'static str])],
    /// Makes a replica with its embedded frontend.
    pub replica: MakeReplica,
    /// Makes a frontend on its own.
    pub client: MakeClient,
    /// Checks options without making anything.
    pub check: CheckOptions,
    /// Every option with its value, sorted by name, whatever was given of them.
    pub complete: fn(&OptionTexts) -> Vec<(String, String)>,
    /// Whether these options deliver without an order, see [`crate::Options::unordered`]; not so
    /// for options that [`check`](Self::check) refuses.
    pub unordered: fn(&OptionTexts) -> bool,
    /// The groups that these options add to the first, see [`crate::Options::layout`].
    pub layout: fn(&OptionTexts) -> Option<Layout>,
    /// Whether this set of nodes may make progress.
    pub viable: fn(usize, &[crate::NodeState]) -> bool,
    /// [`Protocol::viable_in`].
    pub viable_in: ViableIn,
    /// [`Protocol::kept_alone`]; none where the promise cannot be read.
    pub kept_alone: fn(Bytes, ReplicaId) -> Vec<usize>,
    /// Whether it executes before the order is final.
    pub speculates: bool,
    /// Whether it relies on links that lose, double and reorder nothing while they are up.
    pub needs_streams: bool,
    /// [`Protocol::CHANGES_MEMBERS`].
    pub changes_members: bool,
    /// The rare branches that a long campaign must have taken.
    pub branches: &'static [&'static str],
    /// A viable core acknowledges a new command so soon after the last fault.
    pub resumes_within: core::time::Duration,
    /// Shows a message of the protocol as text, for traces.
    pub describe: fn(Bytes) -> String,
    /// Its injected bugs; none in a build without them.
    pub bugs: &'static [crate::BugSpec],
    /// The name of a timer of the replica's half; none when it has no such timer.
    pub timer_name: fn(u32) -> Option<String>,
}

impl core::fmt::Debug for Entry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Entry").field(&self.info.name).finish()
    }
}

/// An option that a protocol does not have, or a value that it does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No option of that name.
    #[error("protocol '{protocol}' has no option '{name}'")]
    Unknown {
        /// The protocol.
        protocol: &'static str,
        /// The requested name.
        name: String,
    },
    /// The value does not do.
    #[error("option '{name}': {reason}")]
    Value {
        /// Which option.
        name: String,
        /// Why, with the accepted values.
        reason: String,
    },
    /// Every replica would execute in an order of its own, and the state machine needs one order.
    #[error(
        "with these options protocol '{0}' delivers without an order, so that every replica would \
         end in a state of its own, which this state machine does not allow"
    )]
    Unordered(&'static str),
    /// A batch without an order is not kept.
    #[error(
        "with these options protocol '{0}' delivers without an order and keeps nothing: \
         durability 'memory' only"
    )]
    UnorderedOnDisk(&'static str),
    /// Two options contradict each other.
    #[error("{0}")]
    Together(String),
}

fn name_today<P: Protocol>(name: &str) -> &str {
    use crate::Options;
    let mut aliases = P::Options::ALIASES.iter();
    aliases
        .find(|(earlier, _)| *earlier == name)
        .map_or(name, |(_, today)| today)
}

/// Every option with its value, sorted by name: defaults written out, numbers in one form. Bugs
/// that a build injects are no option.
fn complete<P: Protocol>(given: &OptionTexts) -> Vec<(String, String)> {
    use crate::Options;
    let mut all: Vec<_> = P::Options::SPECS
        .iter()
        .filter(|spec| spec.name != "bug")
        .map(|spec| {
            let mut given = given.iter().rev();
            let value = given
                .find(|(name, _)| name_today::<P>(name) == spec.name)
                .map_or(spec.default, |(_, value)| value);
            let number = value.parse::<u64>().map(|number| number.to_string());
            (
                spec.name.to_string(),
                number.unwrap_or_else(|_| value.to_string()),
            )
        })
        .collect();
    all.sort();
    all
}

fn parse<P: Protocol>(given: &OptionTexts) -> Result<P::Options, OptionError> {
    use crate::Options;
    let mut options = P::Options::default();
    for (name, value) in given {
        #[cfg(feature = "bugs")]
        if name == "bug" && crate::Bug::named(value).is_some() {
            // The node's, not the protocol's.
            continue;
        }
        let today = name_today::<P>(name);
        if !P::Options::SPECS.iter().any(|spec| spec.name == today) {
            return Err(OptionError::Unknown {
                protocol: P::INFO.name,
                name: name.clone(),
            });
        }
        options
            .set(today, value)
            .map_err(|reason| OptionError::Value {
                name: name.clone(),
                reason,
            })?;
    }
    options.check().map_err(OptionError::Together)?;
    Ok(options)
}

impl Entry {
    /// The entry of protocol `P`.
    #[must_use]
    pub const fn of<P: Protocol>() -> Self {
        use crate::Options;
        Self {
            info: &P::INFO,
            options: P::Options::SPECS,
            drawn: P::Options::DRAWN,
            replica: |setup, embedded| {
                let options = parse::<P>(&setup.epoch.options)?;
                let setup = Setup {
                    id: setup.id,
                    incarnation: setup.incarnation,
                    group: setup.group,
                    epoch: setup.epoch,
                    durability: setup.durability,
                    options,
                    seed: setup.seed,
                };
                Ok(Box::new(Driver::<P>::new(setup, embedded)))
            },
            client: |setup, seed| {
                let options = parse::<P>(&setup.epoch.options)?;
                let setup = FrontendSetup {
                    id: setup.id,
                    embedded: None,
                    epoch: setup.epoch,
                    durability: setup.durability,
                    options,
                };
                Ok(Box::new(ClientDriver::<P>::new(setup, seed)))
            },
            check: |options| parse::<P>(options).map(|_| ()),
            complete: complete::<P>,
            unordered: |options| parse::<P>(options).is_ok_and(|options| options.unordered()),
            layout: |options| parse::<P>(options).ok()?.layout().cloned(),
            viable: P::viable,
            viable_in: P::viable_in,
            kept_alone: |promise, me| {
                let promise = P::Promise::decode_all(promise);
                promise.map_or_else(|_| Vec::new(), |promise| P::kept_alone(&promise, me))
            },
            speculates: P::SPECULATES,
            needs_streams: P::NEEDS_STREAMS,
            changes_members: P::CHANGES_MEMBERS,
            branches: P::BRANCHES,
            resumes_within: P::RESUMES_WITHIN,
            describe: |message| match P::Message::decode_all(message) {
                Ok(message) => alloc::format!("{message:?}"),
                Err(error) => alloc::format!("unreadable: {error}"),
            },
            bugs: P::BUGS,
            timer_name: |number| {
                let timer = P::Timer::try_from(number).ok()?;
                Some(alloc::format!("{timer:?}"))
            },
        }
    }
}

/// Makes the registry: one line per protocol, `folder::Type`, gives its entry by name. The folder
/// is the protocol's name.
#[macro_export]
macro_rules! registry {
    ($($folder:ident :: $protocol:ident),* $(,)?) => {
        /// All registered protocols.
        pub const PROTOCOLS: &[$crate::Entry] = &[$($crate::Entry::of::<$folder::$protocol>()),*];

        /// Calls a macro with the names of all registered protocols, separated by spaces: what
        /// makes one named test per protocol.
        #[macro_export]
        macro_rules! for_each_protocol {
            ($callback:ident) => { $callback! { $($folder)* } };
        }
    };
}

/// Answers a batch that a server or a client submits to end the epoch, which only a member's node
/// may do: each of its requests is rejected. None for every other batch.
#[must_use]
pub fn refuse_seal(submission: &Submission) -> Option<Outcome> {
    if !holds_seal(&submission.batch) {
        return None;
    }
    let view = BatchView::new(&submission.batch).ok()?;
    let mut results = ResultsBuilder::default();
    results.fill(&view, RequestStatus::Refused);
    Some(Outcome::Results(results.finish()))
}

/// The level that a protocol's default outcome at a deadline depends on: a read changes nothing,
/// so giving up on one is never uncertain.
#[must_use]
pub const fn outcome_at_deadline(level: Level, sent: bool) -> Outcome {
    match (level, sent) {
        (Level::Ordered, true) => Outcome::Uncertain,
        _ => Outcome::NoQuorum,
    }
}

//! A frontend that is embedded in no replica, in whatever epoch its cluster is.
//!
//! ```text
//!   submit ──► Client of epoch e ──frames──► replicas
//!                    │  ◄── "I am in epoch e + 3: this is what it is"
//!                    ▼
//!              Client of epoch e + 3 ◄── submitted again: all that was in progress
//! ```
//!
//! It needs no chain of epochs: the newest that a member tells is enough, however old its own is.
//! Batches in progress are submitted again as the same bytes, so that sessions answer those that
//! were executed. From then on no answer may claim that such a batch was certainly not executed.

use crate::{
    Bytes, Client, ClientFrame, Descriptor, Durability, Effect, Entry, Epoch, EventError,
    FrontendId, FrontendSetup, GroupId, Incarnation, Link, OptionError, Recipients, ReplicaId,
    ReplicaSet, Submission, Time, TimerKey, Voters, World,
    carried::Carried,
    client_frame, guest_frame,
    node::{in_ranked_world, name_members, read_guest_frame},
    read_client_frame,
};
use alloc::{boxed::Box, collections::BTreeMap, vec::Vec};
use core::time::Duration;

/// Gives a protocol's entry by its name.
pub type FindProtocol = fn(&str) -> Option<&'static Entry>;

/// See the module.
pub struct ClientNode {
    id: FrontendId,
    group: GroupId,
    /// It is part of a replica's process, whose links it uses.
    is_guest: bool,
    epoch: Epoch,
    seed: u64,
    find: FindProtocol,
    protocol: &'static str,
    client: Box<dyn Client>,
    links: BTreeMap<ReplicaId, Incarnation>,
    /// The epoch's description, if this frontend did not begin with it.
    descriptor: Option<Descriptor>,
    voters: Voters,
    /// See [`TimerKey::generation`].
    generation: u16,
    carried: Carried,
    /// Members that said that they have lost their quorum, and when.
    lost: BTreeMap<ReplicaId, Time>,
}

/// After this what a member said of its quorum counts no more.
const SAID: Duration = Duration::from_millis(1_500);

impl ClientNode {
    /// A frontend on its own; `setup.embedded` must be `None`, and `seed` differ from that of every
    /// other one.
    ///
    /// # Errors
    /// When the options are not the protocol's.
    pub fn new(
        setup: FrontendSetup<()>,
        entry: &Entry,
        find: FindProtocol,
        seed: u64,
    ) -> Result<Self, OptionError> {
        let (id, epoch) = (setup.id, setup.epoch.clone());
        let members = epoch.members;
        Ok(Self {
            id,
            group: GroupId(0),
            is_guest: false,
            epoch,
            seed,
            find,
            protocol: entry.info.name,
            client: (entry.client)(setup, seed)?,
            links: BTreeMap::new(),
            descriptor: None,
            voters: Voters::dense(members),
            generation: 0,
            carried: Carried::default(),
            lost: BTreeMap::new(),
        })
    }

    /// The same for one of several groups, which has these voters, in the process of a replica that
    /// is no member of it.
    ///
    /// # Panics
    /// When the epoch has another number of voters.
    #[must_use]
    pub fn as_guest(mut self, group: GroupId, voters: Voters) -> Self {
        assert_eq!(voters.len(), self.epoch.members, "an epoch has its voters");
        (self.group, self.voters, self.is_guest) = (group, voters, true);
        self
    }

    /// The members that say of late that they have lost their quorum.
    #[must_use]
    pub fn without_quorum(&self, now: Time) -> ReplicaSet {
        let said = self.lost.iter().filter(|(_, at)| now.since(**at) < SAID);
        said.map(|(id, _)| *id).collect()
    }

    /// The epoch that it talks to.
    #[must_use]
    pub const fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// The description of that epoch, if this frontend did not begin with it.
    #[must_use]
    pub const fn descriptor(&self) -> Option<&Descriptor> {
        self.descriptor.as_ref()
    }

    /// The protocol of that epoch.
    #[must_use]
    pub const fn protocol(&self) -> &'static str {
        self.protocol
    }

    /// How many batches are in flight.
    #[must_use]
    pub fn open(&self) -> usize {
        self.client.open()
    }

    /// As [`Client::paths`].
    #[must_use]
    pub fn paths(&self) -> Vec<(&'static str, u64)> {
        self.client.paths()
    }

    /// A batch to carry out; ends in [`Effect::Done`]. Frames of all effects are whole.
    pub fn submit(&mut self, submission: Submission, world: &dyn World, effects: &mut Vec<Effect>) {
        let begun = effects.len();
        in_ranked_world(self.ranked(), world, |world| {
            self.client.submit(submission, world, effects);
        });
        self.outward(begun, effects);
    }

    /// The voters, where its protocol knows them by others than their numbers.
    fn ranked(&self) -> Option<Voters> {
        Some(self.voters).filter(|voters| !voters.is_dense())
    }

    /// A frame from a replica.
    ///
    /// # Errors
    /// When its bytes are malformed.
    pub fn on_frame(
        &mut self,
        from: ReplicaId,
        frame: Bytes,
        world: &dyn World,
        effects: &mut Vec<Effect>,
    ) -> Result<(), EventError> {
        let begun = effects.len();
        let read = match self.is_guest {
            true => read_guest_frame(self.id, frame)?,
            false => Some(read_client_frame(frame)?),
        };
        let Some((epoch, frame)) = read else {
            return Ok(());
        };
        let handled = match frame {
            ClientFrame::Epoch(descriptor) if epoch > self.epoch.number => {
                self.enter(&descriptor, world, effects);
                return Ok(());
            }
            // Of an epoch whose protocol this is not, or perhaps not yet.
            ClientFrame::Epoch(_) => return Ok(()),
            _ if epoch != self.epoch.number => return Ok(()),
            ClientFrame::Quorum { lost } => {
                self.lost.remove(&from);
                self.lost.extend(lost.then(|| (from, world.now())));
                return Ok(());
            }
            ClientFrame::Message(_) | ClientFrame::Reply(..)
                if self.voters.rank(from).is_none() =>
            {
                return Ok(());
            }
            frame => {
                let from = self.voters.rank(from).unwrap_or(from);
                in_ranked_world(self.ranked(), world, |world| match frame {
                    ClientFrame::Message(message) => {
                        self.client.on_message(from, message, world, effects)
                    }
                    ClientFrame::Reply(batch, header, results) => {
                        let reply = (header, results);
                        self.client.on_reply(from, batch, reply, world, effects)
                    }
                    ClientFrame::Epoch(_) | ClientFrame::Quorum { .. } => Ok(()),
                })
            }
        };
        self.outward(begun, effects);
        handled
    }

    /// A timer fired.
    pub fn on_timer(&mut self, key: TimerKey, world: &dyn World, effects: &mut Vec<Effect>) {
        if key.generation == self.generation {
            let begun = effects.len();
            in_ranked_world(self.ranked(), world, |world| {
                self.client.on_timer(key.timer, world, effects);
            });
            self.outward(begun, effects);
        }
    }

    /// Something happened to a link.
    pub fn on_link(
        &mut self,
        to: ReplicaId,
        link: Link,
        world: &dyn World,
        effects: &mut Vec<Effect>,
    ) {
        match link {
            Link::Up { incarnation } => {
                self.links.insert(to, incarnation);
            }
            Link::Down => {
                self.links.remove(&to);
                self.lost.remove(&to);
            }
            Link::Room(_) | Link::Arriving | Link::Reset => {}
        }
        let begun = effects.len();
        self.tell_link(to, link, world, effects);
        self.outward(begun, effects);
    }

    /// Links also lead to nodes that are not members of this epoch: of those its protocol knows
    /// nothing.
    fn tell_link(
        &mut self,
        to: ReplicaId,
        link: Link,
        world: &dyn World,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(to) = self.voters.rank(to) {
            in_ranked_world(self.ranked(), world, |world| {
                self.client.on_link(to, link, world, effects);
            });
        }
    }

    /// A member is in a later epoch.
    fn enter(&mut self, descriptor: &Bytes, world: &dyn World, effects: &mut Vec<Effect>) {
        // One that this program cannot read, or whose protocol it has not, it cannot talk to.
        let Ok(next) = Descriptor::decode(descriptor.clone()) else {
            return effects.push(Effect::Mark("epoch that cannot be read"));
        };
        let Some(entry) = (self.find)(&next.protocol) else {
            return effects.push(Effect::Mark("epoch of an unknown protocol"));
        };
        if next.cluster != self.epoch.cluster || next.number <= self.epoch.number {
            return;
        }
        let mut epoch = next.epoch(self.epoch.secret);
        epoch.inject_bugs_of(&self.epoch.options);
        let Ok(client) = self.client_of(entry, epoch.clone(), next.durability) else {
            return effects.push(Effect::Mark("epoch of an unknown protocol"));
        };
        let mut earlier = core::mem::replace(&mut self.client, client);
        self.epoch = epoch;
        self.protocol = entry.info.name;
        self.voters = next.voters();
        self.descriptor = Some(next);
        self.generation = self.generation.wrapping_add(1);
        // A member that said so may have been replaced.
        self.lost.clear();
        effects.push(Effect::Mark("epoch entered by a frontend"));
        let begun = effects.len();
        for (to, incarnation) in self.links.clone() {
            let up = Link::Up { incarnation };
            self.tell_link(to, up, world, effects);
        }
        for submission in earlier.take_open() {
            self.carried.carry(&submission);
            in_ranked_world(self.ranked(), world, |world| {
                self.client.submit(submission, world, effects);
            });
        }
        self.outward(begun, effects);
    }

    fn client_of(
        &self,
        entry: &Entry,
        epoch: Epoch,
        durability: Durability,
    ) -> Result<Box<dyn Client>, OptionError> {
        let setup = FrontendSetup {
            id: self.id,
            embedded: None,
            epoch,
            durability,
            options: (),
        };
        (entry.client)(setup, self.seed)
    }

    /// Effects behind the first `begun` as the world knows them.
    fn outward(&mut self, begun: usize, effects: &mut [Effect]) {
        for effect in &mut effects[begun..] {
            if let Some(voters) = self.ranked() {
                name_members(voters, effect);
            }
            match effect {
                Effect::Send {
                    to: Recipients::Replicas(_),
                    frame,
                    ..
                } => {
                    let bare = core::mem::take(frame);
                    let (group, epoch) = (self.group, self.epoch.number);
                    *frame = match self.is_guest {
                        true => guest_frame(group, epoch, self.id, bare),
                        false => client_frame(group, epoch, bare),
                    };
                }
                Effect::SetTimer { key, .. } | Effect::CancelTimer { key } => {
                    key.generation = self.generation;
                }
                Effect::Done { batch, outcome } => {
                    self.carried.end(*batch, outcome);
                }
                _ => {}
            }
        }
    }
}

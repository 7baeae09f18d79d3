//! A replica's side of changes of its cluster's epoch: what is written down, and who offers one.

use super::EventLoop;
use crate::{
    ExitReason, announce,
    data::{SecondCopy, random},
    join,
    mail::{Mail, Mailer, Waiter},
    server::{ChangeReport, ChangeRequest},
    terms,
    transports::handshake::{JoinAnswer, JoinPlace, JoinRequest, PeerKey},
};
use quintet_protocols::find;
use quintet_replica::{
    Bytes, CommandTime, Descriptor, Durability, Epoch, EpochNumber, Executed, FEATURE_LEVEL,
    GroupIndex, MemberRole, MemberRow, ReplicaId, ReplicaSet, Time, World as _, no_member,
};
use std::{
    cell::Cell,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

/// Why a learner changes nothing.
const NO_VOTE: &str = "this replica is a learner, which has no vote yet: ask another member";
/// Why nothing changes where keys are divided.
const FIXED_BY_LAYOUT: &str = "a layout divides the keys of this cluster: its members, protocols and \
                               durabilities cannot change yet";
/// Why links through shared memory are made again.
const NEXT_EPOCH: &str = "the cluster continues in another epoch";
/// A change that is ordered later than this, by the log's clock, is void.
const VOID_AFTER: Duration = Duration::from_secs(30);
/// A replica without a quorum, or that leaves, asks so often whether it is a member still.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(3);
/// A learner that has caught up asks so often for its vote.
pub(crate) const VOTE_EVERY: Duration = Duration::from_millis(200);
/// A learner that is not linked for this long is lost: another one may have its place.
const LEARNER_LOST: Duration = Duration::from_secs(30);
/// A learner asks quickly this often, and then as seldom as others ask.
const VOTES_QUICKLY: u32 = 10;
/// Members save their state ahead of a change for so long at most.
const PREPARES_FOR: Duration = Duration::from_secs(300);
/// How far they are is asked so often.
const PREPARE_EVERY: Duration = Duration::from_millis(20);
/// An end that is offered and has not come is offered again after this.
const OFFER_AGAIN: Duration = Duration::from_secs(5);

/// The event loop's means to begin an epoch.
pub(crate) struct Epochs {
    pub me: ReplicaId,
    /// The data directory.
    pub path: PathBuf,
    pub secret: [u8; 32],
    /// The options as configured: a test build injects bugs by them.
    pub configured: Vec<(String, String)>,
    pub descriptor: Descriptor,
    pub second_copy: SecondCopy,
    /// Frames to peers may be lost and reordered.
    pub datagrams: bool,
    /// Words of other members' rows are read from memory.
    pub shares_memory: bool,
    /// Why there are always as many members.
    pub fixed: Option<&'static str>,
    pub changing: Option<Changing>,
    /// The number of this replica's data directory.
    pub directory: u64,
    pub mailer: Mailer,
    /// When it asks next whether it is a member still.
    pub ask_at: Time,
    /// The replica that asked here to become a member.
    pub joining: Option<Joining>,
    /// When this replica came into the epoch.
    pub began_at: Time,
    /// How often this learner has asked for its vote in this epoch.
    pub votes_asked: u32,
    pub asking: Arc<Asking>,
}

/// The thread that asks other members.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    runs: AtomicBool,
    /// Why there is no vote yet, as it was logged.
    logged: Mutex<String>,
}

/// One that wants to become a member.
pub(crate) struct Joining {
    directory: u64,
    answer: mpsc::Receiver<Result<ChangeReport, String>>,
}

/// A change that was asked for here.
pub(crate) struct Changing {
    next: Descriptor,
    /// It is done when a majority has the state on its disk, which no earlier epoch promised.
    to_disk: bool,
    /// All that have asked for it.
    waiters: Vec<Waiter>,
    /// Until then members save their state ahead; none once they have.
    prepares_until: Option<Time>,
    offer_at: Time,
    ends_at: Time,
}

impl Epochs {
    /// An epoch as a node is told of it.
    pub fn epoch(&self, descriptor: &Descriptor) -> Epoch {
        let mut epoch = descriptor.epoch(self.secret);
        epoch.inject_bugs_of(&self.configured);
        epoch
    }

    /// The next epoch with one more member, or one in the place of another.
    fn with_member(&self, request: &JoinRequest) -> Result<Descriptor, String> {
        let mut next = self.descriptor.successor();
        let row = MemberRow {
            node: request.directory,
            // It gets the state first.
            role: MemberRole::Learner,
            peer: request.peer.clone(),
        };
        if request.level < next.level || request.semantics != next.semantics {
            let (level, theirs) = (next.level, request.level);
            let (semantics, other) = (next.semantics, request.semantics);
            return Err(format!(
                "its program is of another version than the members': it knows feature levels up \
                 to {theirs} and executes commands by rules {other}, they are at level {level} and \
                 rules {semantics}; start the members' version"
            ));
        }
        let at = self.place_of(request)?;
        let mut others = next.members.iter().enumerate();
        let taken = others.find(|(other, it)| *other != at && it.peer == row.peer);
        if let Some((other, _)) = taken {
            return Err(format!("{} is the address of replica {other}", row.peer));
        }
        let held = next.members.get(at).filter(|held| held.is_taken());
        let role = held.map_or(row.role, |held| held.role);
        next.place(at, MemberRow { role, ..row });
        Ok(next)
    }

    /// The row of one that wants to become a member.
    fn place_of(&self, request: &JoinRequest) -> Result<usize, String> {
        let current = &self.descriptor;
        let members = current.members.len();
        match request.place {
            JoinPlace::Of(id) if current.all().contains(id) => Ok(id.index()),
            JoinPlace::Of(id) if id.index() < members => {
                self.may_change_number()?;
                match self.learner() {
                    Some(learner) => Err(format!(
                        "replica {} has no vote yet: remove it first, or wait",
                        learner.0
                    )),
                    None => Ok(id.index()),
                }
            }
            JoinPlace::Of(id) => Err(format!(
                "there is no replica {} to replace: they are {}",
                id.0,
                listed(current.all())
            )),
            JoinPlace::Still(..) | JoinPlace::Vote | JoinPlace::New => {
                self.may_change_number()?;
                if let Some(learner) = self.learner() {
                    return Ok(learner.index());
                }
                let row = current.row_for_new();
                match row < ReplicaSet::MEMBERS_MAX {
                    true => Ok(row),
                    false => Err(format!("there are {members} members, which is the most")),
                }
            }
        }
    }

    /// Whether there would be a member more.
    fn is_one_more(&self, request: &JoinRequest) -> bool {
        match request.place {
            JoinPlace::New => true,
            JoinPlace::Of(id) => !self.descriptor.all().contains(id),
            JoinPlace::Still(..) | JoinPlace::Vote => false,
        }
    }

    /// The one that has no vote yet: there is never more than one.
    fn learner(&self) -> Option<ReplicaId> {
        let voters = self.descriptor.voters();
        let mut all = self.descriptor.all().iter();
        all.find(|id| !voters.contains(*id))
    }

    /// The next epoch with a vote for the learner.
    fn with_vote(&self, request: &JoinRequest) -> Result<Descriptor, String> {
        let mut next = self.descriptor.successor();
        let mut rows = next.members.iter_mut();
        let row = rows.find(|row| row.node == request.directory);
        let row = row.ok_or_else(|| "it is no member".to_owned())?;
        row.role = MemberRole::Voter;
        Ok(next)
    }

    fn may_change_number(&self) -> Result<(), String> {
        match self.fixed {
            Some(why) => Err(format!("the number of members stays as it is: {why}")),
            None => Ok(()),
        }
    }

    /// The next epoch without these members.
    fn without_members(&self, gone: &[u16]) -> Result<Descriptor, String> {
        self.may_change_number()?;
        let mut next = self.descriptor.successor();
        let all = next.all();
        if let Some(id) = gone.iter().find(|id| !all.contains(ReplicaId(**id))) {
            let all = listed(all);
            return Err(format!(
                "there is no replica {id}, perhaps any more: they are {all}"
            ));
        }
        next.vacate(gone.iter().map(|id| ReplicaId(*id)).collect());
        let entry = find(&next.protocol).map_err(|error| error.to_string())?;
        let least = entry.info.replicas_min.max(1);
        if next.voters().len() < least {
            return Err(format!(
                "protocol '{}' needs {least} members with votes at least, and there are {}",
                next.protocol,
                self.descriptor.voters().len()
            ));
        }
        Ok(next)
    }

    /// The next epoch with another protocol, or with other options.
    fn with_settings(&self, request: &ChangeRequest) -> Result<Descriptor, String> {
        let now = &self.descriptor;
        let name = request.protocol.as_ref().unwrap_or(&now.protocol);
        let entry = find(name).map_err(|error| error.to_string())?;
        let mut options: Vec<(String, String)> = match now.protocol == *name {
            true => now.options.clone(),
            false => Vec::new(),
        };
        let asked = request.options.iter();
        options.extend(asked.map(|(name, value)| (name.clone(), value.clone())));
        let durability = match &request.durability {
            Some(name) => (name.parse())
                .map_err(|accepted: &str| format!("durability '{name}': {accepted}"))?,
            None => now.durability,
        };
        (entry.check)(&options).map_err(|error| error.to_string())?;
        if (entry.unordered)(&options) {
            return Err(format!(
                "with these options protocol '{name}' delivers without an order, in which no epoch \
                 can end again: begin a new cluster for that"
            ));
        }
        if now.voters().len() < entry.info.replicas_min {
            return Err(format!(
                "protocol '{name}' needs {} members at least, and there are {}",
                entry.info.replicas_min,
                now.voters().len()
            ));
        }
        if self.datagrams && entry.needs_streams {
            return Err(format!(
                "protocol '{name}' relies on links that lose and reorder nothing, and this cluster \
                 sends datagrams: set transport = \"tcp\" at every member first"
            ));
        }
        let options = (entry.complete)(&options);
        Ok(Descriptor {
            protocol: name.clone(),
            options,
            durability,
            ..now.successor()
        })
    }
}

/// Members by their numbers, for people.
fn listed(members: ReplicaSet) -> String {
    let all: Vec<String> = members.iter().map(|id| id.0.to_string()).collect();
    all.join(", ")
}

/// Whether nothing would change.
fn is_same(next: &Descriptor, current: &Descriptor) -> bool {
    let nodes = |descriptor: &Descriptor| -> Vec<(u64, MemberRole)> {
        let rows = descriptor.members.iter();
        rows.map(|row| (row.node, row.role)).collect()
    };
    next.protocol == current.protocol
        && next.options == current.options
        && next.durability == current.durability
        && nodes(next) == nodes(current)
}

/// Asks members until one has an answer; gives the reason if this replica is no member any more.
fn ask_in_turn(
    addresses: &[String],
    key: &PeerKey,
    request: &JoinRequest,
    still: JoinPlace,
    asking: &Asking,
) -> Option<String> {
    let wants_vote = request.place == JoinPlace::Vote;
    let still = JoinRequest {
        place: still,
        ..request.clone()
    };
    for address in addresses {
        match join::ask(address, key, request) {
            Ok(JoinAnswer::Refused(reason)) if !wants_vote => return Some(reason),
            Ok(JoinAnswer::Refused(reason)) => {
                if let Ok(JoinAnswer::Refused(reason)) = join::ask(address, key, &still) {
                    return Some(reason);
                }
                let mut logged = asking.logged.lock().unwrap_or_else(PoisonError::into_inner);
                if *logged != reason {
                    tracing::info!(reason, "this replica has no vote yet");
                    *logged = reason;
                }
            }
            Ok(_) if wants_vote => return None,
            _ => {}
        }
    }
    None
}

impl EventLoop {
    /// The state of another epoch is here: this replica is in it from now on.
    pub(super) fn begin_epoch(&mut self, number: EpochNumber, bytes: Bytes, base: Executed) {
        let begun = self.try_begin_epoch(number, bytes, base);
        if let Err(reason) = begun {
            tracing::error!(reason = %reason, "the next epoch cannot begin here");
            self.exit = Some(reason);
        }
    }

    fn try_begin_epoch(
        &mut self,
        number: EpochNumber,
        bytes: Bytes,
        base: Executed,
    ) -> Result<(), ExitReason> {
        let refused = |error: &dyn std::fmt::Display| ExitReason::DataRefused(error.to_string());
        let descriptor = Descriptor::decode(bytes).map_err(|error| refused(&error))?;
        let entry = find(&descriptor.protocol).map_err(|error| refused(&error))?;
        // Before anything is said or written in it.
        let epochs = &mut self.epochs;
        let stored = (epochs.second_copy).store_epoch(&epochs.path, &descriptor, base);
        stored.map_err(|error| {
            ExitReason::StorageFailed(format!("cannot write the file 'epoch': {error}"))
        })?;
        let earlier = std::mem::replace(&mut self.epochs.descriptor, descriptor);
        self.evictions
            .enter_epoch(&earlier, &self.epochs.descriptor);
        let now = self.now();
        (self.epochs.began_at, self.epochs.votes_asked) = (now, 0);
        let descriptor = &self.epochs.descriptor;
        tracing::info!(
            epoch = number.0,
            protocol = descriptor.protocol,
            from = earlier.protocol,
            "the cluster continues in another epoch"
        );
        if earlier.number < number {
            let reserve = descriptor.durability == Durability::Disk;
            self.journal.enter(GroupIndex(0), number, reserve);
            self.trims.clear();
        }
        self.about.durability = descriptor.durability.name();
        self.about.members = descriptor.voters().len();
        self.changes.enter_epoch(descriptor.voters());
        let rows = descriptor.members.len();
        self.world.rooms.resize_with(rows, Cell::default);
        (self.about.options, self.about.limits) = terms::shown(descriptor);
        self.about.epoch = number.0;
        self.about.protocol.clone_from(&descriptor.protocol);
        self.about.fingerprint = descriptor.fingerprint().to_string();
        self.shell.enter_epoch(descriptor, entry.viable_in, now);
        if self.epochs.shares_memory {
            // The tables hold values of the earlier epoch.
            self.shell.peers.break_links(NEXT_EPOCH, now);
        }
        let epoch = self.epochs.epoch(descriptor);
        self.route.clear();
        self.node
            .begin_epoch(entry, epoch, random(), &self.world, &mut self.outputs)
            .map_err(|error| refused(&error))?;
        self.shell.changed = true;
        Ok(())
    }

    /// One that is no member wants to become one. It asks again and again until it is, or is told
    /// why not.
    pub(super) fn on_join(&mut self, connection: u64, request: JoinRequest, now: Time) {
        let answer = self.answer_to(&request, now);
        self.shell.peers.answer_join(connection, answer, now);
    }

    fn answer_to(&mut self, request: &JoinRequest, now: Time) -> JoinAnswer {
        // One that asks whether it is a member still takes a refusal for a no.
        if !self.shards.is_empty() && !matches!(request.place, JoinPlace::Still(..)) {
            return JoinAnswer::Refused(FIXED_BY_LAYOUT.to_owned());
        }
        let asks_still = matches!(request.place, JoinPlace::Still(..));
        if self.node.is_learner() && !asks_still {
            return JoinAnswer::Refused(NO_VOTE.to_owned());
        }
        if self.node.is_between_epochs() {
            // Descriptor and beginning are not of the same epoch now.
            return JoinAnswer::Waits;
        }
        self.note_addresses(now);
        let current = &self.epochs.descriptor;
        if let JoinPlace::Still(id, epoch) = request.place {
            let rows = terms::Rows::of(current);
            let other = rows.directory(id).is_some_and(|it| it != request.directory);
            let gone = other || !current.all().contains(id);
            // This one has the state.
            let holders = self.node.holders().with(self.epochs.me);
            let settled = current.voters().is_majority(holders);
            return match epoch < current.number && gone && settled {
                true => JoinAnswer::Refused(no_member(id, current.number)),
                false => JoinAnswer::Waits,
            };
        }
        let is_learner = |id: ReplicaId| !current.voters().contains(id);
        let row = current.row_of(request.directory);
        let wants_vote = request.place == JoinPlace::Vote && row.is_none_or(is_learner);
        if row.is_some() && !wants_vote {
            return JoinAnswer::Member {
                // Without a secret, the new one cannot find out the seed by itself.
                descriptor: match self.epochs.secret == [0; 32] {
                    true => current.encode(),
                    false => current.told(),
                },
                base: self.node.base(),
                seen: self.shell.peers.seen(),
            };
        }
        let is_own = |it: &Joining| it.directory == request.directory;
        if let Some(joining) = self.epochs.joining.take_if(|it| is_own(it)) {
            return match joining.answer.try_recv() {
                Ok(Err(reason)) => JoinAnswer::Refused(reason),
                Ok(Ok(_)) | Err(mpsc::TryRecvError::Disconnected) => JoinAnswer::Waits,
                Err(mpsc::TryRecvError::Empty) => {
                    self.epochs.joining = Some(joining);
                    JoinAnswer::Waits
                }
            };
        }
        let learner = self.epochs.learner();
        let is_next = self.epochs.is_one_more(request)
            && learner.is_some_and(|learner| !self.is_lost(learner, now));
        if self.epochs.changing.is_some() || is_next {
            return JoinAnswer::Waits;
        }
        let next = match wants_vote {
            true => self.epochs.with_vote(request),
            false => self.next_with_member(request),
        };
        let next = match next.and_then(|next| self.may_begin(next, now)) {
            Ok(next) => next,
            Err(reason) => return JoinAnswer::Refused(reason),
        };
        let (waiter, answer) = mpsc::channel();
        self.begin_change(next, Waiter::Caller(waiter), now);
        let directory = request.directory;
        self.epochs.joining = Some(Joining { directory, answer });
        JoinAnswer::Waits
    }

    /// Members may have said since the epoch began that they are reached elsewhere.
    fn note_addresses(&mut self, now: Time) {
        let links = self.shell.peers.figures(now).links;
        for (row, link) in self.epochs.descriptor.members.iter_mut().zip(links) {
            if row.is_taken() && !link.name.is_empty() {
                row.peer = link.name;
            }
        }
    }

    /// The next epoch with a new member.
    fn next_with_member(&self, request: &JoinRequest) -> Result<Descriptor, String> {
        announce::check(&request.peer)?;
        let next = self.epochs.with_member(request)?;
        let leaves = match request.place {
            JoinPlace::Of(id) => Some(id),
            JoinPlace::New => self.epochs.learner(),
            JoinPlace::Vote | JoinPlace::Still(..) => None,
        };
        if leaves == Some(self.epochs.me) {
            return Err(format!(
                "this is replica {}, the one to be replaced: ask another member (--seed)",
                self.epochs.me.0
            ));
        }
        Ok(next)
    }

    /// The next epoch without these members, if they can be removed now.
    pub(super) fn next_without_members(
        &self,
        gone: &[u16],
        now: Time,
    ) -> Result<Descriptor, String> {
        if gone.contains(&self.epochs.me.0) {
            let reason = "this is the replica to be removed: ask another one (--admin)";
            return Err(reason.to_owned());
        }
        self.may_begin(self.epochs.without_members(gone)?, now)
    }

    /// Whether a learner has not been there for long.
    fn is_lost(&self, learner: ReplicaId, now: Time) -> bool {
        let (up, heard) = self.link(learner, now);
        let since = heard.unwrap_or(Time(0)).max(self.epochs.began_at);
        !up && now >= since + LEARNER_LOST
    }

    fn is_linked(&self, id: ReplicaId, now: Time) -> bool {
        self.link(id, now).0
    }

    /// Whether a member is linked, and when something last came from it.
    fn link(&self, id: ReplicaId, now: Time) -> (bool, Option<Time>) {
        let links = self.shell.peers.figures(now).links;
        let link = links.get(id.index());
        link.map_or((false, None), |link| (link.up, link.heard))
    }

    /// The next epoch, if those that stay and have the state are a quorum of it.
    fn would_serve(&self, next: Descriptor, now: Time) -> Result<Descriptor, String> {
        let (me, holders) = (self.epochs.me, self.node.holders());
        let figures = self.shell.peers.figures(now);
        let stays = |id: &ReplicaId| {
            let link = figures.links.get(id.index());
            let up = *id == me || holders.contains(*id) && link.is_some_and(|link| link.up);
            up && !next.replaces(&self.epochs.descriptor, *id)
        };
        let voters = next.voters();
        let staying = voters.set().iter().filter(stays).count();
        let (voters, least) = (voters.len(), voters.len() / 2 + 1);
        if staying >= least {
            return Ok(next);
        }
        Err(format!(
            "there would be no quorum: {staying} of the members that stay are connected and have the \
             state, and it takes {least} of {voters}; start the others first"
        ))
    }

    /// The next epoch, if no member that is linked loses its place and it would have a quorum.
    fn may_begin(&self, next: Descriptor, now: Time) -> Result<Descriptor, String> {
        let current = &self.epochs.descriptor;
        for id in next.all().iter() {
            if next.replaces(current, id) && self.is_linked(id, now) {
                return Err(format!(
                    "replica {} is connected: only a lost member is replaced; stop it first",
                    id.0
                ));
            }
        }
        self.would_serve(next, now)
    }

    /// A change is asked for over admin HTTP or by the program around the replica.
    pub(super) fn on_change(&mut self, request: &ChangeRequest, waiter: Waiter, now: Time) {
        if !self.shards.is_empty() && !request.changes_nothing() {
            return self
                .shell
                .answer_change(waiter, Err(FIXED_BY_LAYOUT.to_owned()));
        }
        if self.node.is_learner() && !request.changes_nothing() {
            return self.shell.answer_change(waiter, Err(NO_VOTE.to_owned()));
        }
        let settings = ChangeRequest {
            remove: Vec::new(),
            ..request.clone()
        };
        let has_settings = !settings.changes_nothing();
        let next = match &request.remove[..] {
            [] => self.epochs.with_settings(request),
            _ if has_settings => {
                Err("one change at a time: members, or protocol, options and durability".to_owned())
            }
            gone => self.next_without_members(gone, now),
        };
        match next {
            Ok(next) => self.begin_change(next, waiter, now),
            Err(reason) => self.shell.answer_change(waiter, Err(reason)),
        }
    }

    pub(super) fn begin_change(&mut self, next: Descriptor, waiter: Waiter, now: Time) {
        let current = &self.epochs.descriptor;
        if is_same(&next, current) {
            let report = self.change_report();
            return self.shell.answer_change(waiter, Ok(report));
        }
        if let Some(changing) = &mut self.epochs.changing {
            if is_same(&next, &changing.next) {
                return changing.waiters.push(waiter);
            }
            let reason = "another change is being made at this replica; wait until it is done";
            return self.shell.answer_change(waiter, Err(reason.to_owned()));
        }
        self.node.forget_preparations();
        let current = &self.epochs.descriptor;
        let leader = self.node.protocol_status().leader;
        let leader = leader.unwrap_or(current.leader_first);
        // A new member leads nothing before it has the state.
        let leader_first = match next.replaces(current, leader) {
            true => self.epochs.me,
            false => leader,
        };
        self.epochs.changing = Some(Changing {
            next: Descriptor {
                leader_first,
                ..next
            },
            to_disk: current.durability == Durability::Memory
                && next.durability == Durability::Disk,
            waiters: vec![waiter],
            prepares_until: Some(now + PREPARES_FOR),
            offer_at: now,
            ends_at: now + PREPARES_FOR,
        });
        self.step_change(now);
    }

    /// Continues with a change that was asked for here, until it is made or void.
    pub(super) fn step_change(&mut self, now: Time) {
        let Some(changing) = &mut self.epochs.changing else {
            return;
        };
        let current = &self.epochs.descriptor;
        if current.number >= changing.next.number {
            let ours = is_same(&changing.next, current);
            let voters = current.voters();
            if ours && changing.to_disk && !voters.is_majority(self.node.runs_in_epoch()) {
                // Those whose disk has no state yet would lose it with the power.
                changing.offer_at = now + PREPARE_EVERY;
                return;
            }
            let report = match ours {
                true => Ok(self.change_report()),
                false => Err(format!(
                    "epoch {} came first, with protocol '{}' and {} members: look at it, and ask \
                     again if the change is still wanted",
                    current.number.0,
                    current.protocol,
                    current.all().len()
                )),
            };
            return self.end_change(report);
        }
        if self.node.sealed().is_some() || self.node.is_between_epochs() {
            // It is ordered, be it this one or another: the state is being saved or fetched.
            return;
        }
        if now >= changing.ends_at && changing.prepares_until.is_none() {
            let reason = "the change was not ordered in time: is there a quorum? Look at the \
                          cluster's status; nothing has changed so far, and the change may still \
                          come for some seconds";
            return self.end_change(Err(reason.to_owned()));
        }
        if now < changing.offer_at {
            return;
        }
        if let Some(until) = changing.prepares_until {
            let durability = changing.next.durability;
            let prepared = (self.node).prepare_change(durability, &self.world, &mut self.outputs);
            if !prepared && now < until {
                changing.offer_at = now + PREPARE_EVERY;
                return;
            }
            changing.prepares_until = None;
            changing.ends_at = now + VOID_AFTER;
        }
        changing.offer_at = now + OFFER_AGAIN;
        // Members may have come and gone since it was asked for.
        let next = changing.next.clone();
        if let Err(reason) = self.may_begin(next, now) {
            return self.end_change(Err(reason));
        }
        let Some(changing) = &mut self.epochs.changing else {
            return;
        };
        // The log's time stands still without writes, and leaps to the clock's with the next
        // batch.
        let clock = self.world.clock().now.max(self.node.log_time().0);
        let void_after = u64::try_from(VOID_AFTER.as_nanos()).unwrap_or(u64::MAX);
        changing.next.not_after = CommandTime(clock.saturating_add(void_after));
        let next = changing.next.told();
        match self.node.offer_seal(&next, &self.world, &mut self.outputs) {
            Ok(())
            | Err(quintet_replica::SealError::Ended | quintet_replica::SealError::Pending) => {}
            Err(error) => self.end_change(Err(error.to_string())),
        }
    }

    /// A replica that leaves, or that has no quorum, asks the others whether it is a member still.
    pub(super) fn ask_membership(&mut self, now: Time) {
        if now < self.epochs.ask_at {
            return;
        }
        self.epochs.ask_at = now + ASK_EVERY;
        let (reachable, _) = self.shell.reachable(now);
        let voters = self.epochs.descriptor.voters().len();
        let has_quorum = 2 * reachable > voters;
        let still = JoinPlace::Still(self.epochs.me, self.epochs.descriptor.number);
        let place = match self.node.has_caught_up(now) {
            true => JoinPlace::Vote,
            false => still,
        };
        let votes_asked = &mut self.epochs.votes_asked;
        if self.node.is_learner() && *votes_asked < VOTES_QUICKLY {
            self.epochs.ask_at = now + VOTE_EVERY;
        }
        if place != JoinPlace::Vote && !self.node.is_leaving() && has_quorum {
            return;
        }
        let asking = Arc::clone(&self.epochs.asking);
        if asking.runs.swap(true, Ordering::AcqRel) {
            return;
        }
        *votes_asked += u32::from(place == JoinPlace::Vote);
        let links = self.shell.peers.figures(now).links;
        let addresses = links.into_iter().enumerate();
        let members = self.epochs.descriptor.all().without(self.epochs.me);
        let addresses = addresses.filter(|(id, _)| members.contains(ReplicaId(*id as u16)));
        let addresses: Vec<String> = addresses.map(|(_, link)| link.name).collect();
        let request = JoinRequest {
            directory: self.epochs.directory,
            place,
            peer: String::new(),
            level: FEATURE_LEVEL,
            semantics: self.epochs.descriptor.semantics,
        };
        let key = PeerKey::new(&self.epochs.secret, self.epochs.descriptor.cluster);
        let mailer = self.epochs.mailer.clone();
        let asks = move || {
            if let Some(reason) = ask_in_turn(&addresses, &key, &request, still, &asking) {
                mailer.send(Mail::NoMember(reason));
            }
            asking.runs.store(false, Ordering::Release);
        };
        let started = std::thread::Builder::new()
            .name("membership".to_owned())
            .spawn(asks);
        if let Err(error) = started {
            self.epochs.asking.runs.store(false, Ordering::Release);
            tracing::debug!(%error, "cannot ask whether this is a member still");
        }
    }

    /// When a change that was asked for here is to be looked at again.
    pub(super) fn change_due(&self) -> Option<Time> {
        let changing = self.epochs.changing.as_ref()?;
        if self.node.sealed().is_some() || self.node.is_between_epochs() {
            return None;
        }
        Some(changing.offer_at.min(changing.ends_at))
    }

    fn end_change(&mut self, report: Result<ChangeReport, String>) {
        if let Some(changing) = self.epochs.changing.take() {
            let report = report.map(|report| ChangeReport {
                change: self.change_phase().to_owned(),
                ..report
            });
            // The answer is true of what is published when it comes.
            self.publish(self.now());
            for waiter in changing.waiters {
                self.shell.answer_change(waiter, report.clone());
            }
        }
    }

    fn is_preparing(&self) -> bool {
        let changing = self.epochs.changing.as_ref();
        changing.is_some_and(|changing| changing.prepares_until.is_some())
    }

    /// The state of a change of the epoch, as reports say it.
    pub(super) fn change_phase(&self) -> &'static str {
        match () {
            () if self.node.sealed().is_some() || self.node.is_between_epochs() => "sealed",
            () if self.is_preparing() => "preparing",
            () if self.epochs.changing.is_some() => "ordering",
            () => "none",
        }
    }

    fn change_report(&self) -> ChangeReport {
        ChangeReport {
            epoch: self.about.epoch,
            protocol: self.about.protocol.clone(),
            options: self.about.options.clone(),
            durability: self.about.durability.to_owned(),
            fingerprint: self.about.fingerprint.clone(),
            members: self.member_rows(self.now()),
            change: self.change_phase().to_owned(),
        }
    }
}

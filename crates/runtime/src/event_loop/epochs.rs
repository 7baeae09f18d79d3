//! A replica's side of changes of its cluster's epoch: what is written down, and who offers one.

use super::EventLoop;
use crate::{
    ExitReason, data,
    data::random,
    server::{ChangeReport, ChangeRequest},
    terms,
};
use quintet_protocols::find;
use quintet_replica::{
    Bytes, CommandTime, Descriptor, Epoch, EpochNumber, Executed, ReplicaId, Time, World as _,
};
use std::{path::PathBuf, sync::mpsc, time::Duration};

/// Why links through shared memory are made again.
const NEXT_EPOCH: &str = "the cluster continues in another epoch";
/// A change that is ordered later than this, by the log's clock, is void.
const VOID_AFTER: Duration = Duration::from_secs(30);
/// An end that is offered and has not come is offered again after this.
const OFFER_AGAIN: Duration = Duration::from_secs(5);

/// What the event loop needs to begin an epoch.
pub(crate) struct Epochs {
    /// The data directory.
    pub path: PathBuf,
    pub secret: [u8; 32],
    /// The options as configured: a test build injects bugs by them.
    pub configured: Vec<(String, String)>,
    pub descriptor: Descriptor,
    /// Frames to peers may be lost and reordered.
    pub datagrams: bool,
    /// Words of other members' rows are read from memory.
    pub shares_memory: bool,
    pub changing: Option<Changing>,
}

/// A change that was asked for here.
pub(crate) struct Changing {
    next: Descriptor,
    waiter: mpsc::Sender<Result<ChangeReport, String>>,
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

    /// The epoch that follows with what is asked for.
    fn next(
        &self,
        request: &ChangeRequest,
        leader: Option<ReplicaId>,
    ) -> Result<Descriptor, String> {
        let now = &self.descriptor;
        let name = request.protocol.as_ref().unwrap_or(&now.protocol);
        let entry = find(name).map_err(|error| error.to_string())?;
        let mut options: Vec<(String, String)> = match now.protocol == *name {
            true => now.options.clone(),
            false => Vec::new(),
        };
        let asked = request.options.iter();
        options.extend(asked.map(|(name, value)| (name.clone(), value.clone())));
        (entry.check)(&options).map_err(|error| error.to_string())?;
        if (entry.unordered)(&options) {
            return Err(format!(
                "with these options protocol '{name}' delivers without an order, in which no epoch \
                 can end again: begin a new cluster for that"
            ));
        }
        if now.members.len() < entry.info.replicas_min {
            return Err(format!(
                "protocol '{name}' needs {} members at least, and there are {}",
                entry.info.replicas_min,
                now.members.len()
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
            leader_first: leader.unwrap_or(now.leader_first),
            ..now.successor()
        })
    }
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
        data::store_epoch(&self.epochs.path, &descriptor, base).map_err(|error| {
            ExitReason::StorageFailed(format!("cannot write the file 'epoch': {error}"))
        })?;
        let earlier = std::mem::replace(&mut self.epochs.descriptor, descriptor);
        let descriptor = &self.epochs.descriptor;
        tracing::info!(
            epoch = number.0,
            protocol = descriptor.protocol,
            from = earlier.protocol,
            "the cluster goes on in another epoch"
        );
        if earlier.number < number {
            self.journal.enter(number);
            self.trims.clear();
        }
        (self.about.options, self.about.limits) = terms::shown(descriptor);
        self.about.epoch = number.0;
        self.about.protocol.clone_from(&descriptor.protocol);
        self.about.fingerprint = descriptor.fingerprint().to_string();
        let public = descriptor.public();
        let now = self.now();
        let name = self.about.protocol.clone();
        self.shell
            .enter_epoch(number, name, public, entry.viable_in);
        if self.epochs.shares_memory {
            // What is in the tables is of the earlier epoch.
            self.shell.peers.break_links(NEXT_EPOCH, now);
        }
        let epoch = self.epochs.epoch(&self.epochs.descriptor);
        self.route.clear();
        self.node
            .begin_epoch(entry, epoch, random(), &self.world, &mut self.outputs)
            .map_err(|error| refused(&error))?;
        self.shell.changed = true;
        Ok(())
    }

    /// Somebody wants another protocol or other options.
    pub(super) fn on_change(
        &mut self,
        request: &ChangeRequest,
        waiter: mpsc::Sender<Result<ChangeReport, String>>,
        now: Time,
    ) {
        let answer = |waiter: &mpsc::Sender<_>, answer| {
            // Who waited may have given up.
            let _ = waiter.send(answer);
        };
        let leader = self.node.protocol_status().leader;
        let next = self.epochs.next(request, leader);
        let next = match next {
            Ok(next) => next,
            Err(reason) => return answer(&waiter, Err(reason)),
        };
        let current = &self.epochs.descriptor;
        if next.protocol == current.protocol && next.options == current.options {
            return answer(&waiter, Ok(self.change_report()));
        }
        if self.epochs.changing.is_some() {
            let reason = "another change is being made at this replica; wait until it is done";
            return answer(&waiter, Err(reason.to_owned()));
        }
        self.epochs.changing = Some(Changing {
            next,
            waiter,
            offer_at: now,
            ends_at: now + VOID_AFTER,
        });
        self.step_change(now);
    }

    /// Goes on with a change that was asked for here, until it is made or void.
    pub(super) fn step_change(&mut self, now: Time) {
        let Some(changing) = &mut self.epochs.changing else {
            return;
        };
        let current = &self.epochs.descriptor;
        if current.number >= changing.next.number {
            let ours = current.protocol == changing.next.protocol
                && current.options == changing.next.options;
            let report = match ours {
                true => Ok(self.change_report()),
                false => Err(format!(
                    "epoch {} came first, with protocol '{}': look at it, and ask again if the \
                     change is still wanted",
                    current.number.0, current.protocol
                )),
            };
            return self.end_change(report);
        }
        if self.node.sealed().is_some() || self.node.is_between_epochs() {
            // It is ordered, be it this one or another: the state is being saved or fetched.
            return;
        }
        if now >= changing.ends_at {
            let reason = "the change was not ordered in time: is there a quorum? Look at the \
                          cluster's status; nothing has changed so far, and the change may still \
                          come for some seconds";
            return self.end_change(Err(reason.to_owned()));
        }
        if now < changing.offer_at {
            return;
        }
        changing.offer_at = now + OFFER_AGAIN;
        // The log's time stands still without writes, and leaps to the clock's with the next
        // batch.
        let clock = self.world.clock().now.max(self.node.log_time().0);
        let void_after = u64::try_from(VOID_AFTER.as_nanos()).unwrap_or(u64::MAX);
        changing.next.not_after = CommandTime(clock.saturating_add(void_after));
        let next = changing.next.public();
        match self.node.offer_seal(&next, &self.world, &mut self.outputs) {
            Ok(())
            | Err(quintet_replica::SealError::Ended | quintet_replica::SealError::Pending) => {}
            Err(error) => self.end_change(Err(error.to_string())),
        }
    }

    /// When a change that was asked for here is to be looked at again.
    pub(super) fn change_due(&self) -> Option<Time> {
        let changing = self.epochs.changing.as_ref()?;
        Some(changing.offer_at.min(changing.ends_at))
    }

    fn end_change(&mut self, answer: Result<ChangeReport, String>) {
        if let Some(changing) = self.epochs.changing.take() {
            // Who waited may have given up.
            let _ = changing.waiter.send(answer);
        }
    }

    fn change_report(&self) -> ChangeReport {
        ChangeReport {
            epoch: self.about.epoch,
            protocol: self.about.protocol.clone(),
            options: self.about.options.clone(),
            fingerprint: self.about.fingerprint.clone(),
        }
    }
}

//! A replica that runs, in a search: a node, or one for each group that its protocol serves.
//!
//! ```text
//!   move ──► node ──► outputs, each with the place of its group
//!              └─ effects in other groups ──► their nodes, with the protocol lent to them
//! ```

use super::replica_state::{Cast, DiskImage, Move, ReplicaState, frontend};
use crate::{
    checkers::Violation,
    configuration::first_descriptor,
    explore::EPOCH_CLOCK,
    machine::{Record, Recorder, Registers},
    stored_epoch,
};
use quintet_replica::{
    BatchBuilder, BatchId, Boot, Bytes, ClockReading, ClusterId, CommandId, Descriptor, Durability,
    Epoch, EpochNumber, Executed, ExecutorLimits, FrameError, GroupId, Incarnation, Input, Level,
    Link, Node, NodeSetup, Output, Peer, RecoveredBytes, ReplicaId, RequestKind, SessionId,
    SnapshotInfo, Submission, Time, Wake, World as Outside, frame_group, next_foreign,
};
use std::{sync::Arc, time::Duration};

/// A replica that wants to be called again at once is, so often.
const SPINS_MAX: usize = 16;

/// An output, with the place of its group.
pub(super) type Out = (u8, Output);

pub(super) struct View {
    now: u64,
    disk: Arc<DiskImage>,
}

impl Outside for View {
    fn now(&self) -> Time {
        Time(self.now)
    }
    fn clock(&self) -> ClockReading {
        // Sessions would expire by the leaps of the other clock.
        ClockReading {
            earliest: EPOCH_CLOCK,
            now: EPOCH_CLOCK,
            latest: EPOCH_CLOCK,
            deviation: 1,
        }
    }
    fn room(&self, _: ReplicaId) -> usize {
        1 << 30
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        let newest = self.disk.snapshots.last();
        newest.map(|(id, bytes)| SnapshotInfo {
            id: *id,
            length: bytes.len() as u64,
        })
    }
    fn snapshot_read(&self, id: Executed, offset: u64, length: usize) -> Option<Bytes> {
        let mut kept = self.disk.snapshots.iter();
        let (_, bytes) = kept.find(|(kept, _)| *kept == id)?;
        let begin = (offset as usize).min(bytes.len());
        let end = begin.saturating_add(length).min(bytes.len());
        Some(bytes.slice(begin..end))
    }
}

/// See the module.
pub(super) struct Live {
    /// That of the first group has the protocol.
    pub nodes: Vec<Node>,
    pub records: Vec<Record>,
    view: View,
    /// Bytes of the snapshot that is being written.
    written: u64,
}

impl Live {
    pub fn node(&self) -> &Node {
        &self.nodes[0]
    }

    /// Calls the node at a place, with the protocol lent to it.
    fn call_one<R>(
        &mut self,
        place: usize,
        out: &mut Vec<Out>,
        call: impl FnOnce(&mut Node, &View, &mut Vec<Output>) -> R,
    ) -> R {
        let mut outputs = Vec::new();
        self.lend(place);
        let result = call(&mut self.nodes[place], &self.view, &mut outputs);
        self.lend(place);
        out.extend(outputs.into_iter().map(|output| (place as u8, output)));
        result
    }

    fn lend(&mut self, place: usize) {
        if let (first, [shard, ..]) = self.nodes.split_at_mut(place)
            && let Some(first) = first.first_mut()
        {
            first.lend_protocol(shard);
        }
    }

    /// The same, and what the protocol does in other groups.
    fn call<R>(
        &mut self,
        place: usize,
        groups: &[GroupId],
        out: &mut Vec<Out>,
        call: impl FnOnce(&mut Node, &View, &mut Vec<Output>) -> R,
    ) -> R {
        let result = self.call_one(place, out, call);
        while self.nodes.len() > 1 {
            let mut foreign = Vec::new();
            self.nodes[0].take_foreign(&mut foreign);
            if foreign.is_empty() {
                break;
            }
            let mut foreign = foreign.into_iter().peekable();
            while let Some((group, run)) = next_foreign(&mut foreign) {
                let at = groups.iter().position(|of| *of == group);
                let at = at.expect("a group of the layout");
                self.call_one(at, out, |node, view, outputs| {
                    node.carry_out_foreign(run, view, outputs);
                });
            }
        }
        result
    }

    fn assert_invariants(&mut self) {
        for place in 0..self.nodes.len() {
            self.lend(place);
            self.nodes[place].assert_invariants();
            self.lend(place);
        }
    }
}

impl Cast {
    fn first_epoch(&self) -> Epoch {
        Epoch {
            cluster: ClusterId(1),
            number: EpochNumber(1),
            members: self.bounds.replicas,
            options: self.options.clone(),
            secret: [7; 32],
            leader_first: ReplicaId(0),
        }
    }

    /// The descriptor of the first epoch, and that of the epoch on a disk with its base.
    fn descriptor_on(&self, disk: &DiskImage) -> (Descriptor, Executed) {
        let first = || {
            let epoch = self.first_epoch();
            first_descriptor(&self.entry, &self.options, Durability::Disk, &epoch)
        };
        disk.stored_epoch()
            .unwrap_or_else(|| (first(), Executed::default()))
    }

    fn epoch_of(&self, descriptor: &Descriptor) -> Epoch {
        match descriptor.number {
            EpochNumber(1) => self.first_epoch(),
            _ => stored_epoch::later(descriptor, &self.first_epoch()),
        }
    }

    fn node_with(
        &self,
        before: &ReplicaState,
        boot: u32,
        place: usize,
        record: Record,
    ) -> Option<Node> {
        let id = before.id;
        let (descriptor, base) = self.descriptor_on(&before.disk);
        let setup = NodeSetup {
            id: ReplicaId(id),
            incarnation: Incarnation(1),
            boot: Boot(boot.into()),
            group: self.groups[place],
            epoch: self.epoch_of(&descriptor),
            durability: Durability::Disk,
            seed: u64::from(id) << 32 | u64::from(boot),
            frontend: frontend(id, boot),
            snapshot_bytes_min: 1 << 40,
            limits: ExecutorLimits {
                disk_hung_after: Duration::ZERO,
                pace_beat: Duration::ZERO,
                ..ExecutorLimits::default()
            },
        };
        let machine = Box::new(Recorder::new(
            Box::new(Registers::new(3, 0, 1 << 20)),
            record,
        ));
        if place > 0 {
            return Node::sharing(setup, &self.entry, machine).ok();
        }
        let node = Node::new(setup, &self.entry, machine).ok()?;
        // Without a descriptor an epoch cannot end, and nodes do not speak of it.
        Some(match self.bounds.seals {
            0 => node,
            _ => node.with_descriptor(descriptor.encode()).with_base(base),
        })
    }

    /// A timer that fires moves its replica's clock on by so much.
    const fn leap(&self) -> u64 {
        self.bounds.leap_ms * 1_000_000
    }

    /// A replica in the state that the last move led to, by everything that happened since its boot.
    pub(super) fn revive(&self, last: Option<(u32, Move)>) -> Option<Live> {
        let mut chain = Vec::new();
        let mut next = last;
        while let Some((parent, happened)) = next {
            chain.push((parent, happened));
            if matches!(happened, Move::Boot { .. }) {
                break;
            }
            next = self.replica_states[parent as usize].parent;
        }
        let mut live: Option<Live> = None;
        let mut outputs = Vec::new();
        for (from, happened) in chain.into_iter().rev() {
            outputs.clear();
            self.happen(&mut live, from, happened, &mut outputs).ok()?;
        }
        for record in live.iter().flat_map(|live| &live.records) {
            super::replica_state::take(record);
        }
        live
    }

    fn boot(
        &self,
        before: &ReplicaState,
        up: u16,
        outputs: &mut Vec<Out>,
    ) -> Result<Live, Violation> {
        let mut started = Live {
            nodes: Vec::new(),
            records: Vec::new(),
            view: View {
                now: u64::from(before.firings) * self.leap(),
                disk: before.disk.clone(),
            },
            written: 0,
        };
        for place in 0..self.groups.len() {
            let record = Record::default();
            let node = self.node_with(before, before.boot + 1, place, record.clone());
            let node = node.ok_or_else(|| Violation::new("options", "cannot be made"))?;
            started.nodes.push(node);
            started.records.push(record);
        }
        let of = started.node().epoch();
        for place in 0..self.groups.len() {
            let (promise, records) = before.disk.of(place as u8, of);
            let recovered = RecoveredBytes {
                first_boot: before.boot == 0,
                state_lost: false,
                promise,
                checkpoint: None,
                records,
            };
            let begun = started.call(place, &self.groups, outputs, |node, view, outputs| {
                node.start(recovered, view, outputs)
            });
            begun.map_err(|error| Violation::new("recovery", error.to_string()))?;
        }
        self.settle(&mut started, outputs, 0)?;
        for peer in (0..self.bounds.replicas as u16).filter(|peer| up & (1 << peer) != 0) {
            let begun = outputs.len();
            let incarnation = Incarnation(1);
            self.link(&mut started, peer, Link::Up { incarnation }, outputs);
            self.settle(&mut started, outputs, begun)?;
        }
        Ok(started)
    }

    fn link(&self, live: &mut Live, peer: u16, link: Link, outputs: &mut Vec<Out>) {
        for place in 0..self.groups.len() {
            let input = Input::Link(Peer::Replica(ReplicaId(peer)), link);
            live.call(place, &self.groups, outputs, |node, view, outputs| {
                // Only frames can be refused.
                let _ = node.on_input(input, view, outputs);
            });
        }
    }

    /// Lets a move happen to a running replica.
    pub(super) fn happen(
        &self,
        live: &mut Option<Live>,
        replica_state: u32,
        happens: Move,
        outputs: &mut Vec<Out>,
    ) -> Result<(), Violation> {
        let before = &self.replica_states[replica_state as usize];
        if let Move::Boot { up } = happens {
            *live = Some(self.boot(before, up, outputs)?);
            return Ok(());
        }
        let Some(running) = live else {
            return Err(Violation::new(
                "rig",
                "a node that is down was to do something",
            ));
        };
        running.view.disk = before.disk.clone();
        let begun = outputs.len();
        let mut inputs = Vec::new();
        match happens {
            Move::Seal => {
                let (descriptor, _) = self.descriptor_on(&before.disk);
                let next = descriptor.successor().encode();
                running.call(0, &self.groups, outputs, |node, view, outputs| {
                    // Where it cannot end, nothing is offered.
                    let _ = node.offer_seal(&next, view, outputs);
                });
                return self.settle(running, outputs, begun);
            }
            Move::Saved => {
                let Some((id, bytes)) = before.saving.first().cloned() else {
                    return Err(Violation::new("rig", "no snapshot to become durable"));
                };
                let length = bytes.len() as u64;
                let mut disk = (*before.disk).clone();
                disk.save((id, bytes));
                running.view.disk = Arc::new(disk);
                inputs.push((0, Input::SnapshotSaved(SnapshotInfo { id, length })));
            }
            Move::Frame { from, message } => {
                let frame = self.messages[message as usize].clone();
                let group = frame_group(&frame);
                let place = self.groups.iter().position(|of| Some(*of) == group);
                let Some(place) = place else {
                    return Err(Violation::new("codec", format!("a frame of {group:?}")));
                };
                let input = Input::Frame {
                    from: Peer::Replica(ReplicaId(from)),
                    arrived: Time(running.view.now),
                    frame,
                };
                inputs.push((place, input));
            }
            Move::Persisted => {
                let group = before.pending.first().map(|it| it.step);
                let durable = (before.pending.iter()).take_while(|it| Some(it.step) == group);
                for write in durable {
                    let place = usize::from(write.place);
                    inputs.retain(|(of, _)| *of != place);
                    inputs.push((place, Input::Persisted(write.id)));
                }
                if inputs.is_empty() {
                    return Err(Violation::new("rig", "nothing to become durable"));
                }
            }
            Move::Timer((place, key)) => {
                running.view.now = u64::from(before.firings + 1) * self.leap();
                inputs.push((place.into(), Input::Timer(key)));
            }
            Move::Submit(command) => {
                let place = self.commands[usize::from(command)].place;
                let submission = self.submission(command, before);
                inputs.push((place.into(), Input::Submit(submission)));
            }
            Move::LinkUp(peer) => {
                let incarnation = Incarnation(1);
                self.link(running, peer, Link::Up { incarnation }, outputs);
            }
            Move::LinkReset(peer) => self.link(running, peer, Link::Reset, outputs),
            Move::LinkDown(peer) => self.link(running, peer, Link::Down, outputs),
            Move::Crash { .. } | Move::Boot { .. } => {
                return Err(Violation::new("rig", "handled elsewhere"));
            }
        }
        for (place, input) in inputs {
            let taken = running.call(place, &self.groups, outputs, |node, view, outputs| {
                node.on_input(input, view, outputs)
            });
            match taken {
                Ok(()) | Err(FrameError::Epoch { .. }) => {}
                Err(error) => return Err(Violation::new("codec", error.to_string())),
            }
        }
        running.assert_invariants();
        self.settle(running, outputs, begun)
    }

    /// The replica works until it has nothing to do; what it asked for from output `begun` on and
    /// the world does at once, is done.
    fn settle(
        &self,
        live: &mut Live,
        outputs: &mut Vec<Out>,
        mut begun: usize,
    ) -> Result<(), Violation> {
        loop {
            for _ in 0..SPINS_MAX {
                let before = outputs.len();
                let mut spins = false;
                for place in 0..self.groups.len() {
                    let wake = live.call(place, &self.groups, outputs, |node, view, outputs| {
                        node.on_idle(view, outputs)
                    });
                    spins |= wake == Wake::Spin;
                }
                // An effect of one group's node may concern another's.
                spins |= self.groups.len() > 1 && outputs.len() > before;
                if !spins {
                    break;
                }
            }
            let mut is_done = true;
            while let Some((place, output)) = outputs.get(begun).cloned() {
                begun += 1;
                is_done &= !self.do_at_once(live, place.into(), output, outputs)?;
            }
            if is_done {
                break;
            }
        }
        live.assert_invariants();
        Ok(())
    }

    /// True when the node has been told of it.
    fn do_at_once(
        &self,
        live: &mut Live,
        place: usize,
        output: Output,
        outputs: &mut Vec<Out>,
    ) -> Result<bool, Violation> {
        match output {
            Output::SnapshotBegin { .. } => {
                if place > 0 {
                    return Err(Violation::new("rig", "a snapshot of a shard"));
                }
                live.written = 0;
                return Ok(false);
            }
            Output::SnapshotAppend(chunk) => {
                live.written += chunk.len() as u64;
                let written = Input::SnapshotWritten(live.written);
                live.call(place, &self.groups, outputs, |node, view, outputs| {
                    // Only frames can be refused.
                    let _ = node.on_input(written, view, outputs);
                });
            }
            Output::SnapshotTruncate(length) => {
                live.written = length;
                return Ok(false);
            }
            Output::EpochBegins { descriptor, .. } => {
                let unreadable = |error: &dyn std::fmt::Display| {
                    Violation::new("epochs", format!("an epoch that cannot begin: {error}"))
                };
                let next = Descriptor::decode(descriptor).map_err(|error| unreadable(&error))?;
                let (epoch, seed) = (self.epoch_of(&next), next.number.0);
                let begun = live.call(place, &self.groups, outputs, |node, view, outputs| {
                    node.begin_epoch(&self.entry, epoch, seed, view, outputs)
                });
                begun.map_err(|error| unreadable(&error))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn submission(&self, command: u8, replica_state: &ReplicaState) -> Submission {
        let session = SessionId {
            owner: u64::from(command) + 1,
            number: 1,
        };
        let asked = &self.commands[usize::from(command)];
        let level = asked.level;
        let mut batch = BatchBuilder::of(self.groups[usize::from(asked.place)]);
        let mut id = CommandId {
            session,
            sequence: 0,
        };
        if level == Level::Ordered {
            batch.push(id, RequestKind::Open, 0, &EPOCH_CLOCK.to_le_bytes());
            id.sequence = 1;
        }
        batch.push(id, RequestKind::Command, 0, &self.payload(command));
        let number = BatchId(u64::from(command) + 1);
        Submission {
            id: number,
            level,
            batch: batch.finish(
                frontend(replica_state.id, replica_state.boot),
                number,
                level,
            ),
            deadline: Time(u64::MAX / 2),
        }
    }
}

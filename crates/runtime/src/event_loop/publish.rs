//! The event loop's state for other threads and for the gateway.

use super::{EventLoop, shards::ShardStatuses, storage::DiskState};
use crate::{
    clock::{ClockState, unix_time},
    metrics::Taken,
    peer_clock::Standing,
    server::{
        BranchReport, ClockReport, DigestReport, GroupReport, MemberReport, NodeView,
        PeerClockReport, ShardLoad, SnapshotReport, StatusReport, TransferReport,
    },
};
use quintet_replica::{Divergence, NodeStatus, ReplicaId, Time};
use std::collections::BTreeMap;

/// The values that do not change while a replica runs.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub cluster: String,
    pub protocol: String,
    pub durability: &'static str,
    pub threads: &'static str,
    /// Those that vote.
    pub members: usize,
    pub epoch: u64,
    pub incarnation: u64,
    pub boot: u64,
    /// The lost data that is being repaired from the peers.
    pub repairing: Option<String>,
    /// The epoch's fingerprint.
    pub fingerprint: String,
    /// The protocol's options, all of them.
    pub options: BTreeMap<String, String>,
    /// The replicated limits.
    pub limits: BTreeMap<String, u64>,
    /// Where Redis clients connect, as it is told to the other members.
    pub redis: Option<String>,
}

impl From<ClockState> for ClockReport {
    fn from(clock: ClockState) -> Self {
        Self {
            disciplined: clock.disciplined,
            correction_ns: clock.correction,
            deviation_ns: Some(clock.deviation).filter(|known| *known != u64::MAX),
            bound_ns: clock.bound,
        }
    }
}

impl From<Standing> for PeerClockReport {
    fn from(clock: Standing) -> Self {
        Self {
            offset_ns: clock.offset,
            deviation_ns: clock.deviation,
            bound_ns: clock.bound,
            disciplined: clock.disciplined,
        }
    }
}

impl EventLoop {
    fn others(&self) -> impl Iterator<Item = ReplicaId> {
        let others = self.epochs.descriptor.all().without(self.node.id());
        others.iter()
    }

    pub(super) fn publish(&mut self, now: Time) {
        let mut node = self.node.status(&self.world);
        let shards = self.shards.statuses(&self.world);
        if !self.shards.is_empty() {
            let sums = shards.sums();
            node.commands += sums.commands;
            (node.entries, node.memory) = (sums.entries, sums.memory);
            node.sessions += sums.sessions;
            self.step_down_in_shards(&shards, self.disk == DiskState::Full, now);
        }
        self.note_disk(self.is_disk_hung());
        let leader = node.protocol.leader;
        if leader != self.leader {
            self.leader = leader;
            self.shell.metrics.leader_changes += 1;
        }
        let route: Vec<u16> = self.route.iter().map(|(id, _)| id.0).collect();
        if let Some(line) = self.changes.observe(&node.protocol, &route, now) {
            tracing::info!("{line}");
        }
        self.update_metrics(&node, now);
        self.maybe_step_down(leader, node.digests.is_minority(), now);
        let report = self.report(&node, (route, shards), now);
        let me = self.node.id();
        let connected = report.peers.iter().filter(|peer| peer.connected);
        let lowest = connected.map(|peer| ReplicaId(peer.id)).min();
        let preferred = leader.unwrap_or_else(|| lowest.map_or(me, |lowest| lowest.min(me)));
        let leads = preferred == me;
        let (reachable, silent) = self.shell.reachable(now);
        let load = |of: &GroupReport| ShardLoad {
            leads: of.leads,
            memory: of.memory,
            refuses: of.refuses_writes,
        };
        let shards = report.groups.iter().map(load).collect();
        let view = NodeView {
            node,
            reachable,
            silent,
            leads,
            shards,
            preferred: Some(preferred),
            members: self.about.members,
            epoch: self.about.epoch,
            protocol: self.about.protocol.clone(),
            durability: self.about.durability.parse().ok(),
            incarnation: self.about.incarnation,
            disk_state: self.disk.name(),
            repairing: self.about.repairing.is_some(),
            journal_bytes: self.journal_on_disk,
            journal_syncs: self.shell.metrics.journal_syncs,
            ..NodeView::default()
        };
        self.shell.publish(report, self.views(), view);
    }

    /// The replicas' states differ: an operator must know at once.
    pub(super) fn on_diverged(&mut self, found: &Divergence, shard: &str) {
        tracing::error!(position = found.position.0, shard, "{found}");
        self.shell.metrics.divergences += 1;
        self.shell.changed = true;
    }

    fn update_metrics(&mut self, node: &NodeStatus, now: Time) {
        self.shell.begin_report(now);
        let metrics = &mut self.shell.metrics;
        metrics.commands = node.commands;
        metrics.journal_queued = self.journal.queued() as u64;
        metrics.disk_full = u64::from(self.disk == DiskState::Full);
        metrics.repairing = u64::from(self.about.repairing.is_some());
    }

    /// The members, with what is known of where they are.
    pub(super) fn member_rows(&self, now: Time) -> Vec<MemberReport> {
        let mut rows = self
            .shell
            .member_reports(&self.epochs.descriptor.members, now);
        let holders = self.node.holders();
        for row in &mut rows {
            row.has_state = Some(holders.contains(ReplicaId(row.id)));
        }
        let me = self.node.id().0;
        if let Some(own) = rows.iter_mut().find(|row| row.id == me) {
            own.has_state = Some(!self.node.is_between_epochs());
            own.redis.clone_from(&self.about.redis);
        }
        rows
    }

    fn report(
        &self,
        node: &NodeStatus,
        (route, shards): (Vec<u16>, ShardStatuses),
        now: Time,
    ) -> StatusReport {
        let protocol = &node.protocol;
        let details = protocol.details.iter();
        StatusReport {
            clock: ClockReport::from(self.world.clock.state()),
            id: self.node.id().0,
            cluster: self.about.cluster.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: self.about.incarnation,
            boot: self.about.boot,
            epoch: self.about.epoch,
            fingerprint: self.about.fingerprint.clone(),
            options: self.about.options.clone(),
            limits: self.about.limits.clone(),
            protocol: self.about.protocol.clone(),
            role: protocol.role.to_owned(),
            leader: protocol.leader.map(|leader| leader.0),
            view: protocol.view,
            voting: protocol.voting,
            stopping: self.stopping.is_some(),
            accepted: protocol.accepted.0,
            committed: protocol.committed.0,
            executed: node.executed.slot.0,
            stable: protocol.stable.0,
            position: node.executed.position.0,
            lag: protocol.committed.0.saturating_sub(node.progress.0),
            durability: self.about.durability.to_owned(),
            threads: self.about.threads.to_owned(),
            disk_state: self.disk.name().to_owned(),
            repairing: self.about.repairing.clone(),
            uptime_seconds: now.0 / 1_000_000_000,
            pid: std::process::id(),
            members: self.about.members,
            rows: self.member_rows(now),
            change: self.change_phase(),
            redis: self.about.redis.clone(),
            entries: node.entries,
            memory: node.memory,
            sessions: node.sessions,
            open: node.open,
            snapshot: node.snapshot.map(|info| SnapshotReport {
                path: String::new(),
                slot: info.id.slot.0,
                bytes: info.length,
            }),
            snapshot_in_progress: node.snapshot_in_progress,
            fetching: node.fetching,
            transfer: node.transfer.clone().map(TransferReport::from),
            state_bytes_received: node.state_bytes_received,
            state_bytes_sent: node.state_bytes_sent,
            frames_malformed: node.frames_malformed,
            frames_foreign: node.frames_foreign,
            digests: DigestReport::from(node.digests),
            route,
            paths: protocol.paths.iter().copied().collect(),
            multicasts: protocol.multicasts.iter().copied().collect(),
            details: details
                .map(|(name, value)| (*name, value.clone()))
                .collect(),
            groups: self.group_reports(shards, now),
            branches: self.branches(now),
            peers: self.shell.peer_reports(self.others(), now),
        }
    }

    /// Rare branches, by the system's clock.
    fn branches(&self, now: Time) -> BTreeMap<&'static str, BranchReport> {
        let clock = unix_time();
        let at = |then: u64| clock.saturating_sub(now.0.saturating_sub(then));
        let marks = self.shell.metrics.marks.iter();
        let report = |(name, taken): (&&'static str, &Taken)| {
            let report = BranchReport {
                count: taken.count,
                first_ns: at(taken.first),
                last_ns: at(taken.last),
            };
            (*name, report)
        };
        marks.map(report).collect()
    }
}

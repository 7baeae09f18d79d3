//! What the event loop shows of itself to other threads and to the gateway.

use super::{EventLoop, PUBLISH_EVERY, storage::DiskState};
use crate::{
    clock::ClockState,
    peer_clock::Standing,
    server::{ClockReport, NodeView, PeerClockReport, PeerReport, SnapshotReport, StatusReport},
    status::Snapshot,
};
use quintet_replica::{NodeStatus, ReplicaId, Time};

/// What does not change while a replica runs.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub cluster: String,
    pub protocol: String,
    pub durability: &'static str,
    pub members: usize,
    pub epoch: u64,
    pub incarnation: u64,
    pub boot: u64,
    /// What was lost and is being repaired from the peers.
    pub repairing: Option<String>,
}

/// Resident memory of the process in bytes; 0 where the system does not tell.
pub(super) fn memory_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
    kilobytes.unwrap_or(0u64) * 1024
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
        let me = self.node.id();
        (0..self.about.members as u16)
            .map(ReplicaId)
            .filter(move |id| *id != me)
    }

    pub(super) fn publish(&mut self, now: Time) {
        self.changed = false;
        self.publish_at = now + PUBLISH_EVERY;
        let node = self.node.status(&self.world);
        let leader = node.protocol.leader;
        if leader != self.leader {
            self.leader = leader;
            self.metrics.leader_changes += 1;
        }
        self.update_metrics(&node);
        self.maybe_step_down(leader, now);
        let report = self.report(&node, now);
        let counters = match &mut self.clients {
            None => crate::server::Counters::default(),
            Some(clients) => {
                let reachable = self.tcp.links_up() + 1;
                let me = self.node.id();
                let lowest = report
                    .peers
                    .iter()
                    .filter(|peer| peer.connected)
                    .map(|peer| peer.id);
                let leads = match leader {
                    Some(leader) => leader == me,
                    None => lowest.min().is_none_or(|lowest| me.0 < lowest),
                };
                let peers = report.peers.iter();
                clients.gateway.set_view(NodeView {
                    node,
                    reachable,
                    leads,
                    peers: peers
                        .map(|peer| (ReplicaId(peer.id), peer.address.clone(), peer.connected))
                        .collect(),
                    epoch: self.about.epoch,
                    incarnation: self.about.incarnation,
                    memory_resident: memory_resident(),
                    disk_state: self.disk.name(),
                    repairing: self.about.repairing.is_some(),
                    journal_bytes: self.journal_on_disk,
                    journal_syncs: self.metrics.journal_syncs,
                });
                clients.gateway.counters()
            }
        };
        let metrics = self.metrics.clone();
        self.published.publish(Snapshot {
            report,
            metrics,
            counters,
        });
    }

    fn update_metrics(&mut self, node: &NodeStatus) {
        let tcp = self.tcp.counters();
        let metrics = &mut self.metrics;
        metrics.frames_in = tcp.frames_in;
        metrics.frames_out = tcp.frames_out;
        metrics.peer_bytes_in = tcp.bytes_in;
        metrics.peer_bytes_out = tcp.bytes_out;
        metrics.frames_bad = tcp.frames_bad;
        metrics.hellos_refused = tcp.hellos_refused;
        metrics.queues_full = tcp.queues_full;
        metrics.links_up = tcp.links_up;
        metrics.commands = node.commands;
        metrics.journal_queued = self.journal.queued() as u64;
        metrics.disk_full = u64::from(self.disk == DiskState::Full);
        metrics.repairing = u64::from(self.about.repairing.is_some());
        if let Some(clients) = &self.clients {
            metrics.client_bytes_in = clients.bytes_in;
            metrics.client_bytes_out = clients.bytes_out;
            metrics.clients_accepted = clients.accepted;
            metrics.clients_refused = clients.refused;
            metrics.clients = clients.open;
        }
    }

    fn report(&self, node: &NodeStatus, now: Time) -> StatusReport {
        let protocol = &node.protocol;
        let peers = self.others().map(|id| {
            let link = self.tcp.report(id, now);
            PeerReport {
                clock: link.clock.map(PeerClockReport::from),
                id: id.0,
                address: link.name,
                connected: link.up,
                incarnation: link.incarnation.0,
                queued_bytes: link.queued as u64,
                error: link.error,
            }
        });
        let details = protocol.details.iter();
        StatusReport {
            clock: ClockReport::from(self.world.clock.state()),
            id: self.node.id().0,
            cluster: self.about.cluster.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: self.about.incarnation,
            boot: self.about.boot,
            epoch: self.about.epoch,
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
            lag: protocol.committed.0.saturating_sub(node.executed.slot.0),
            durability: self.about.durability.to_owned(),
            disk_state: self.disk.name().to_owned(),
            repairing: self.about.repairing.clone(),
            uptime_seconds: now.0 / 1_000_000_000,
            pid: std::process::id(),
            members: self.about.members,
            entries: node.entries,
            memory: node.memory,
            sessions: node.sessions,
            open: node.open,
            snapshot: node.snapshot.map(|info| SnapshotReport {
                slot: info.id.slot.0,
                bytes: info.length,
            }),
            snapshot_under_way: node.snapshot_under_way,
            fetching: node.fetching,
            frames_malformed: node.frames_malformed,
            frames_foreign: node.frames_foreign,
            route: self.route.clone(),
            paths: protocol.paths.iter().copied().collect(),
            details: details
                .map(|(name, value)| (*name, value.clone()))
                .collect(),
            peers: peers.collect(),
        }
    }
}

//! Counters of one replica, kept by its event loop and published with every status report.

use crate::server::{Exposition, MetricKind};
use quintet_replica::Time;
use serde::Serialize;
use std::collections::BTreeMap;

/// Handshakes of peers that have failed, by why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HandshakeMetrics {
    /// Other bytes than a handshake's: a client, a scanner, a damaged packet.
    pub malformed: u64,
    /// Another format of the peers' protocol.
    pub format: u64,
    /// A wrong proof, on either side: the secrets differ.
    pub proof: u64,
    /// Not done in time.
    pub expired: u64,
    /// Unproven connections that made room for newer ones.
    pub displaced: u64,
    /// Proven peers that do not fit together, found by either side.
    pub refused: u64,
}

/// The counters of datagrams between peers. A datagram is received or dropped, not both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DatagramMetrics {
    /// Received from peers.
    pub received: u64,
    /// Sent to peers.
    pub sent: u64,
    /// Frames in those received.
    pub frames_in: u64,
    /// Frames in those sent.
    pub frames_out: u64,
    /// Bytes of those received.
    pub bytes_in: u64,
    /// Bytes of those sent.
    pub bytes_out: u64,
    /// Dropped: no datagrams of Quintet, or damaged ones.
    pub malformed: u64,
    /// Dropped: of a link that is gone or not there yet, or of a stranger.
    pub stale: u64,
    /// Dropped: come before, or overtaken by too many.
    pub replayed: u64,
    /// Not sent: the operating system did not take them.
    pub unsent: u64,
    /// Of those received, how many came past the kernel's sockets.
    pub bypassed_in: u64,
    /// Of those sent, how many went past the kernel's sockets.
    pub bypassed_out: u64,
}

/// The counters of memory that is shared with peers on the same host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryMetrics {
    /// Frames that came through it.
    pub frames_in: u64,
    /// Frames that went through it.
    pub frames_out: u64,
    /// Bytes of those that came.
    pub bytes_in: u64,
    /// Bytes of those that went, but for payloads that were lent.
    pub bytes_out: u64,
    /// Frames whose large parts were read where the sender has them.
    pub borrowed: u64,
    /// Times that a peer's row was found changed.
    pub puts_in: u64,
    /// Puts written into a peer's memory.
    pub puts_out: u64,
    /// Times that a peer had to be woken.
    pub wakes: u64,
}

/// Everything that a replica counts since its process began. Only ever grows, but for the gauges
/// that say so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// Turns of the event loop.
    pub turns: u64,
    /// The longest of them, in nanoseconds (a gauge).
    pub turn_longest: u64,
    /// Those that were long enough for others to notice.
    pub turns_long: u64,
    /// Times that the event loop slept.
    pub sleeps: u64,
    /// Frames received from peers.
    pub frames_in: u64,
    /// Frames handed to peers' queues.
    pub frames_out: u64,
    /// Bytes received from peers.
    pub peer_bytes_in: u64,
    /// Bytes written to peers.
    pub peer_bytes_out: u64,
    /// Peer connections dropped because of bytes that made no sense.
    pub frames_bad: u64,
    /// Handshakes of peers that have failed.
    pub handshakes: HandshakeMetrics,
    /// Links that went down because their queue was full.
    pub queues_full: u64,
    /// Links that came up.
    pub links_up: u64,
    /// Datagrams between peers.
    pub datagrams: DatagramMetrics,
    /// Memory shared with peers.
    pub memory: MemoryMetrics,
    /// Bytes received from clients.
    pub client_bytes_in: u64,
    /// Bytes written to clients.
    pub client_bytes_out: u64,
    /// Client connections accepted.
    pub clients_accepted: u64,
    /// Client connections refused.
    pub clients_refused: u64,
    /// Client connections open now (a gauge).
    pub clients: u64,
    /// Batches handed to the protocol.
    pub batches: u64,
    /// Batches that ended with results.
    pub batches_done: u64,
    /// Batches that ended without: no quorum, uncertain or busy.
    pub batches_failed: u64,
    /// Commands and reads executed.
    pub commands: u64,
    /// Writes handed to the journal.
    pub journal_writes: u64,
    /// Bytes that the journal wrote.
    pub journal_bytes: u64,
    /// Times that the journal made something durable.
    pub journal_syncs: u64,
    /// Bytes handed to the journal and not yet durable (a gauge).
    pub journal_queued: u64,
    /// Whether there is no room for the next journal segment (a gauge, 0 or 1).
    pub disk_full: u64,
    /// Whether something lost is being repaired from the peers (a gauge, 0 or 1).
    pub repairing: u64,
    /// Snapshots saved.
    pub snapshots: u64,
    /// Snapshots that could not be written, or not be read back.
    pub snapshots_failed: u64,
    /// Times that replicas' states were found to differ.
    pub divergences: u64,
    /// Members removed that had been gone for long.
    pub evictions: u64,
    /// Times that the leader as seen here changed.
    pub leader_changes: u64,
    /// Rare branches taken, by name.
    pub marks: BTreeMap<&'static str, Taken>,
}

/// A rare branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Taken {
    /// How often it was taken.
    pub count: u64,
    /// The first time, in nanoseconds since the process began to serve.
    pub first: u64,
    /// The last time.
    pub last: u64,
}

impl Metrics {
    /// Counts a rare branch.
    pub fn mark(&mut self, branch: &'static str, now: Time) {
        tracing::trace!("{branch}");
        let taken = self.marks.entry(branch).or_insert(Taken {
            first: now.0,
            ..Taken::default()
        });
        taken.count += 1;
        taken.last = now.0;
    }

    /// Adds them to the metrics of a node.
    pub fn render_into(&self, out: &mut Exposition) {
        out.gauge(
            "loop_turn_seconds_max",
            "The longest turn of the event loop since the process began.",
            self.turn_longest as f64 / 1e9,
        );
        let counters = [
            ("turns_total", "Turns of the event loop.", self.turns),
            (
                "turns_long_total",
                "Turns of the event loop of 0.1 s or more.",
                self.turns_long,
            ),
            (
                "sleeps_total",
                "Times that the event loop slept.",
                self.sleeps,
            ),
            (
                "frames_received_total",
                "Frames received from peers.",
                self.frames_in,
            ),
            (
                "frames_sent_total",
                "Frames queued for peers.",
                self.frames_out,
            ),
            (
                "peer_received_bytes_total",
                "Bytes received from peers.",
                self.peer_bytes_in,
            ),
            (
                "peer_sent_bytes_total",
                "Bytes written to peers.",
                self.peer_bytes_out,
            ),
            (
                "frames_bad_total",
                "Peer connections dropped for bad bytes.",
                self.frames_bad,
            ),
            (
                "queues_full_total",
                "Links dropped because of a full queue.",
                self.queues_full,
            ),
            ("links_up_total", "Links that came up.", self.links_up),
            (
                "datagrams_received_total",
                "Datagrams received from peers.",
                self.datagrams.received,
            ),
            (
                "datagrams_sent_total",
                "Datagrams sent to peers.",
                self.datagrams.sent,
            ),
            (
                "datagram_frames_received_total",
                "Frames received in datagrams.",
                self.datagrams.frames_in,
            ),
            (
                "datagram_frames_sent_total",
                "Frames sent in datagrams.",
                self.datagrams.frames_out,
            ),
            (
                "datagram_received_bytes_total",
                "Bytes of datagrams received.",
                self.datagrams.bytes_in,
            ),
            (
                "datagram_sent_bytes_total",
                "Bytes of datagrams sent.",
                self.datagrams.bytes_out,
            ),
            (
                "datagrams_bypassed_received_total",
                "Datagrams received past the kernel's sockets.",
                self.datagrams.bypassed_in,
            ),
            (
                "datagrams_bypassed_sent_total",
                "Datagrams sent past the kernel's sockets.",
                self.datagrams.bypassed_out,
            ),
            (
                "shared_memory_frames_received_total",
                "Frames received through shared memory.",
                self.memory.frames_in,
            ),
            (
                "shared_memory_frames_sent_total",
                "Frames sent through shared memory.",
                self.memory.frames_out,
            ),
            (
                "shared_memory_received_bytes_total",
                "Bytes of frames received through shared memory.",
                self.memory.bytes_in,
            ),
            (
                "shared_memory_sent_bytes_total",
                "Bytes of frames sent through shared memory.",
                self.memory.bytes_out,
            ),
            (
                "shared_memory_borrowed_frames_total",
                "Frames whose large parts were read where the sender has them.",
                self.memory.borrowed,
            ),
            (
                "shared_memory_puts_seen_total",
                "Times that a peer's row in shared memory was found changed.",
                self.memory.puts_in,
            ),
            (
                "shared_memory_puts_total",
                "Puts written into memory shared with a peer.",
                self.memory.puts_out,
            ),
            (
                "shared_memory_wakes_total",
                "Times that a peer had to be woken for shared memory.",
                self.memory.wakes,
            ),
            (
                "datagrams_unsent_total",
                "Datagrams that the operating system did not take.",
                self.datagrams.unsent,
            ),
            (
                "batches_submitted_total",
                "Batches given to the protocol.",
                self.batches,
            ),
            (
                "batches_done_total",
                "Batches that ended with results.",
                self.batches_done,
            ),
            (
                "batches_failed_total",
                "Batches that ended without results.",
                self.batches_failed,
            ),
            (
                "executed_commands_total",
                "Commands and reads executed.",
                self.commands,
            ),
            (
                "journal_writes_total",
                "Writes handed to the journal.",
                self.journal_writes,
            ),
            (
                "journal_bytes_total",
                "Bytes that the journal wrote.",
                self.journal_bytes,
            ),
            (
                "journal_syncs_total",
                "Durable writes of the journal.",
                self.journal_syncs,
            ),
            ("snapshots_total", "Snapshots saved.", self.snapshots),
            (
                "snapshots_failed_total",
                "Snapshots that could not be written or read back.",
                self.snapshots_failed,
            ),
            (
                "state_divergences_total",
                "Times that replicas' states were found to differ.",
                self.divergences,
            ),
            (
                "evictions_total",
                "Members removed at this replica's request because they had been gone for long.",
                self.evictions,
            ),
            (
                "leader_changes_total",
                "Changes of the leader seen.",
                self.leader_changes,
            ),
        ];
        for (name, help, value) in counters {
            out.counter(name, help, value);
        }
        let dropped = [
            ("malformed", self.datagrams.malformed),
            ("stale", self.datagrams.stale),
            ("replayed", self.datagrams.replayed),
        ];
        let dropped = dropped.map(|(why, count)| (format!("reason=\"{why}\""), count as f64));
        let help = "Datagrams dropped: no datagrams, of no link, come before.";
        out.add(
            MetricKind::Counter,
            "datagrams_dropped_total",
            help,
            dropped.to_vec(),
        );
        let failed = [
            ("malformed", self.handshakes.malformed),
            ("format", self.handshakes.format),
            ("proof", self.handshakes.proof),
            ("expired", self.handshakes.expired),
            ("displaced", self.handshakes.displaced),
            ("refused", self.handshakes.refused),
        ];
        let failed = failed.map(|(why, count)| (format!("reason=\"{why}\""), count as f64));
        out.add(
            MetricKind::Counter,
            "handshakes_failed_total",
            "Handshakes of peers that have failed, by reason.",
            failed.to_vec(),
        );
        let gauges = [
            (
                "journal_queued_bytes",
                "Bytes handed over and not yet durable.",
                self.journal_queued,
            ),
            (
                "disk_full",
                "1 while there is no room for the next journal segment.",
                self.disk_full,
            ),
            (
                "repairing",
                "1 while something lost is being repaired from the peers.",
                self.repairing,
            ),
        ];
        for (name, help, value) in gauges {
            out.gauge(name, help, value as f64);
        }
        let marks = self.marks.iter();
        let samples = marks.map(|(name, taken)| (format!("branch=\"{name}\""), taken.count as f64));
        let help = "Times that a rare branch was taken.";
        out.add(MetricKind::Counter, "branch_total", help, samples.collect());
    }
}

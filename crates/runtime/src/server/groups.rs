//! The shards of a layout in `/status` and `/metrics`.

use super::{Exposition, MetricKind, SnapshotReport};
use serde::Serialize;

/// A shard of a layout, as a replica sees it. Slots and positions are of its own log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupReport {
    /// The number of its group.
    pub group: u32,
    /// Its name.
    pub name: String,
    /// Its protocol.
    pub protocol: String,
    /// `disk` or `memory`.
    pub durability: &'static str,
    /// Its members, by the replicas' numbers.
    pub members: Vec<u16>,
    /// This replica's part in it; `none` where it is no member and forwards to the members, `halted`
    /// where the shard has stopped here.
    pub role: String,
    /// Why it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub halted: Option<String>,
    /// `active` or `lost`, where the members follow the views of the cluster's protocol; a shard that
    /// is lost has too few members with its log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    /// The reason why a lost one waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// The number of the view that says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub view: Option<u64>,
    /// The leader, if there is one.
    pub leader: Option<u16>,
    /// Whether this replica takes part in its quorums.
    pub voting: bool,
    /// The last slot known to be decided, with all before it.
    pub committed: u64,
    /// The last slot executed.
    pub executed: u64,
    /// The last position executed.
    pub position: u64,
    /// Keys in the store.
    pub entries: u64,
    /// Memory of the store in bytes, estimated.
    pub memory: u64,
    /// Whether the store refuses what needs memory.
    pub refuses_writes: bool,
    /// Whether this replica does what one member of the shard has to.
    #[serde(skip)]
    pub leads: bool,
    /// Batches in flight here.
    pub open: usize,
    /// Whether a member's state is being fetched.
    pub fetching: bool,
    /// The newest durable snapshot.
    pub snapshot: Option<SnapshotReport>,
}

/// Adds the shards to the metrics; nothing where keys are not divided.
pub(super) fn describe(groups: &[GroupReport], out: &mut Exposition) {
    if groups.is_empty() {
        return;
    }
    type Value = fn(&GroupReport) -> f64;
    let member: Value = |group| f64::from(u8::from(group.role != "none"));
    let voting: Value = |group| f64::from(u8::from(group.voting));
    let halted: Value = |group| f64::from(u8::from(group.halted.is_some()));
    let gauges: [(&'static str, &'static str, Value); 8] = [
        (
            "group_member",
            "Whether this replica is a member of the shard.",
            member,
        ),
        (
            "group_voting",
            "Whether it takes part in the shard's quorums.",
            voting,
        ),
        (
            "group_halted",
            "1 when the shard cannot continue here.",
            halted,
        ),
        (
            "group_committed",
            "The last slot of the shard known to be decided.",
            |it| it.committed as f64,
        ),
        (
            "group_executed",
            "The last slot of the shard executed here.",
            |it| it.executed as f64,
        ),
        ("group_keys", "Keys of the shard.", |it| it.entries as f64),
        (
            "group_memory_bytes",
            "Memory of the shard, estimated.",
            |it| it.memory as f64,
        ),
        (
            "group_batches_open",
            "Batches for the shard in flight here.",
            |it| it.open as f64,
        ),
    ];
    for (name, help, value) in gauges {
        let samples = groups
            .iter()
            .map(|group| (format!("group=\"{}\"", group.name), value(group)));
        out.add(MetricKind::Gauge, name, help, samples.collect());
    }
}

//! INFO and ROLE: the server as monitoring tools for Redis expect to see it, and as it is.

use super::{answers::is, gateway::Gateway, local::REDIS_VERSION};
use quintet_replica::{Durability, ReplicaId};
use quintet_store::Reply;
use std::fmt::Write as _;

const SECTIONS: [&str; 9] = [
    "server",
    "clients",
    "memory",
    "persistence",
    "stats",
    "replication",
    "cluster",
    "keyspace",
    "quintet",
];

macro_rules! lines {
    ($out:expr, $($name:literal = $value:expr;)*) => {{
        // Writing to a string cannot fail.
        $(let _ = write!($out, concat!($name, ":{}\r\n"), $value);)*
    }};
}

fn human(bytes: u64) -> String {
    let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    for (unit, shift) in units {
        if bytes >> shift > 0 {
            return format!("{:.2}{unit}", bytes as f64 / (1u64 << shift) as f64);
        }
    }
    format!("{bytes}B")
}

impl Gateway {
    /// The text of these sections; of all when none is named.
    pub(super) fn info(&self, sections: &[&[u8]]) -> String {
        let all = sections.is_empty()
            || sections
                .iter()
                .any(|name| is(name, "all") || is(name, "default") || is(name, "everything"));
        let mut out = String::with_capacity(4096);
        for name in SECTIONS {
            if all || sections.iter().any(|given| is(given, name)) {
                if !out.is_empty() {
                    out.push_str("\r\n");
                }
                let _ = write!(
                    out,
                    "# {}{}\r\n",
                    name[..1].to_ascii_uppercase(),
                    &name[1..]
                );
                self.write_section(name, &mut out);
            }
        }
        out
    }

    /// The present epoch's durability.
    pub(super) fn durability(&self) -> Durability {
        self.view.durability.unwrap_or(self.config.durability)
    }

    /// The present epoch's protocol.
    pub(super) fn protocol(&self) -> &str {
        match self.view.protocol.is_empty() {
            true => &self.config.protocol,
            false => &self.view.protocol,
        }
    }

    fn write_section(&self, name: &str, out: &mut String) {
        let (config, view, counters) = (&self.config, &self.view, &self.counters);
        let node = &view.node;
        let uptime = self.now.since(self.started).as_secs();
        match name {
            "server" => lines! { out,
                "redis_version" = REDIS_VERSION;
                "redis_mode" = "standalone";
                "quintet_version" = env!("CARGO_PKG_VERSION");
                "os" = std::env::consts::OS;
                "arch_bits" = usize::BITS;
                "process_id" = std::process::id();
                "run_id" = format_args!("{:040x}", self.frontend().0);
                "tcp_port" = config.port;
                "server_time_usec" = self.clock / 1000;
                "uptime_in_seconds" = uptime;
                "uptime_in_days" = uptime / 86_400;
            },
            "clients" => lines! { out,
                "connected_clients" = counters.connections_open;
                "maxclients" = config.connections_max;
                "blocked_clients" = 0;
                "tracking_clients" = 0;
            },
            "memory" => lines! { out,
                "used_memory" = node.memory;
                "used_memory_human" = human(node.memory);
                "used_memory_rss" = view.memory_resident;
                "used_memory_rss_human" = human(view.memory_resident);
                "used_memory_dataset" = node.memory;
                "maxmemory" = config.memory_max;
                "maxmemory_human" = human(config.memory_max);
                "maxmemory_policy" = "noeviction";
                "in_flight_bytes" = counters.bytes_in_flight;
            },
            "persistence" => lines! { out,
                "loading" = 0;
                "aof_enabled" = u8::from(self.durability() == Durability::Disk);
                "rdb_bgsave_in_progress" = u8::from(node.snapshot_in_progress);
                "rdb_last_bgsave_status" = "ok";
                "journal_bytes" = view.journal_bytes;
                "journal_syncs" = view.journal_syncs;
                "snapshot_slot" = node.snapshot.map_or(0, |snapshot| snapshot.id.slot.0);
                "snapshot_bytes" = node.snapshot.map_or(0, |snapshot| snapshot.length);
                "disk_state" = if view.disk_state.is_empty() { "ok" } else { view.disk_state };
            },
            "stats" => lines! { out,
                "total_connections_received" = counters.connections_total;
                "total_commands_processed" = counters.commands;
                "total_net_input_bytes" = counters.input_bytes;
                "total_net_output_bytes" = counters.output_bytes;
                "rejected_connections" = counters.connections_rejected;
                "total_error_replies" = counters.errors;
                "acl_access_denied_auth" = counters.auth_failures;
                "ordered_batches" = counters.batches_ordered;
                "linearizable_batches" = counters.batches_linearizable;
                "stale_batches" = counters.batches_stale;
            },
            "replication" => {
                let offset = node.executed.slot.0;
                if let Some(master) = self.master() {
                    let (host, port) = parts(&master.1);
                    lines! { out,
                        "role" = "slave";
                        "master_host" = host;
                        "master_port" = port;
                        "master_link_status" = if master.2 { "up" } else { "down" };
                        "master_last_io_seconds_ago" = if master.2 { 0 } else { -1 };
                        "master_sync_in_progress" = u8::from(node.fetching);
                    }
                    if let Some(transfer) = &node.transfer {
                        lines! { out,
                            "master_sync_total_bytes" = transfer.total;
                            "master_sync_read_bytes" = transfer.bytes;
                            "master_sync_left_bytes" = transfer.total.saturating_sub(transfer.bytes);
                        }
                    }
                    lines! { out,
                        "slave_read_repl_offset" = offset;
                        "slave_repl_offset" = offset;
                        "slave_priority" = 100;
                        "slave_read_only" = 0;
                        "replica_announced" = 1;
                        "connected_slaves" = 0;
                    }
                } else {
                    lines! { out,
                        "role" = "master";
                        "connected_slaves" = self.replicas().count();
                    }
                    for (index, address) in self.replicas().enumerate() {
                        let (host, port) = parts(address);
                        let _ = write!(
                            out,
                            "slave{index}:ip={host},port={port},state=online,offset={offset},lag=0\r\n"
                        );
                    }
                }
                lines! { out,
                    "master_replid" = config.cluster;
                    "master_repl_offset" = offset;
                }
            }
            "cluster" => lines! { out, "cluster_enabled" = 0; },
            "keyspace" if node.entries > 0 => {
                lines! { out, "db0" = format_args!("keys={},expires=0,avg_ttl=0", node.entries); }
            }
            "quintet" => {
                lines! { out,
                    "id" = config.replica.0;
                    "cluster" = config.cluster;
                    "members" = config.members;
                    "reachable" = view.reachable;
                    "incarnation" = view.incarnation;
                    "epoch" = view.epoch;
                    "protocol" = self.protocol();
                    "quintet_role" = node.protocol.role;
                }
                if let Some(leader) = node.protocol.leader {
                    lines! { out, "leader" = leader.0; }
                }
                lines! { out,
                    "view" = node.protocol.view;
                    "voting" = u8::from(node.protocol.voting);
                    "accepted" = node.protocol.accepted.0;
                    "committed" = node.protocol.committed.0;
                    "executed" = node.executed.slot.0;
                    "stable" = node.protocol.stable.0;
                    "durability" = self.durability().name();
                    "threads" = config.threads;
                    "repairing" = u8::from(view.repairing);
                    "sessions" = node.sessions;
                }
            }
            _ => {}
        }
    }

    /// The preferred replica, when it is another one and where its clients connect is known. Every
    /// replica takes writes; tools that look for a master are sent to where they cost least.
    fn master(&self) -> Option<&(ReplicaId, String, bool)> {
        let preferred = self.view.preferred.filter(|_| !self.view.leads)?;
        let mut peers = self.view.peers.iter();
        peers.find(|(id, address, _)| *id == preferred && !address.is_empty())
    }

    /// Where the clients of the other members connect that are linked.
    fn replicas(&self) -> impl Iterator<Item = &str> {
        let peers = self.view.peers.iter();
        let linked = peers.filter(|(_, address, linked)| *linked && !address.is_empty());
        linked.map(|(_, address, _)| address.as_str())
    }

    pub(super) fn role(&self, reply: &mut Reply<'_>) {
        let offset = self.view.node.executed.slot.0;
        if let Some((_, address, linked)) = self.master() {
            let (host, port) = parts(address);
            reply.array(5);
            reply.bulk(b"slave");
            reply.bulk(host.as_bytes());
            reply.integer(port.parse().unwrap_or_default());
            reply.bulk(if *linked { b"connected" } else { b"connect" });
            reply.integer(offset as i64);
            return;
        }
        let replicas: Vec<_> = self.replicas().collect();
        reply.array(3);
        reply.bulk(b"master");
        reply.integer(offset as i64);
        reply.array(replicas.len());
        for address in replicas {
            let (host, port) = parts(address);
            reply.array(3);
            reply.bulk(host.as_bytes());
            reply.bulk(port.as_bytes());
            reply.bulk(offset.to_string().as_bytes());
        }
    }
}

/// Host and port of an address; of one of version 6 without the brackets, as Redis shows it.
fn parts(address: &str) -> (&str, &str) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    (host.trim_start_matches('[').trim_end_matches(']'), port)
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn sizes_are_short() {
        assert_eq!(human(5), "5B");
        assert_eq!(human(1536), "1.50K");
        assert_eq!(human(3 << 30), "3.00G");
    }
}

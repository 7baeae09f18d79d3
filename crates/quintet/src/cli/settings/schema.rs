//! Every key of the configuration, once: its name, what it means, how it is read and shown.
//!
//! ```text
//!   "limits.memory_max" ──► [limits] memory_max = … in the file
//!                       ──► QUINTET_LIMITS_MEMORY_MAX in the environment
//!                       ──► --limits-memory-max on the command line
//! ```

use crate::cli::layout;
use quintet_cli::units;
use quintet_replica::{ClusterId, ReplicaId};
use quintet_runtime::{Config, Member};
use std::net::SocketAddr;

/// One key of the configuration.
pub struct Key {
    /// Its name, `section.key` or `key`.
    pub name: &'static str,
    /// Its meaning, its unit and the accepted values, in one line.
    pub help: &'static str,
    /// Whether there is no default.
    pub required: bool,
    /// Whether its value is not to be shown.
    pub secret: bool,
    /// Reads a value from text.
    pub set: fn(&mut Config, &str) -> Result<(), String>,
    /// The value as text that [`Self::set`] reads.
    pub get: fn(&Config) -> String,
}

impl Key {
    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("QUINTET_{}", self.name.to_uppercase().replace('.', "_"))
    }

    /// The flag that sets it, without the dashes.
    pub fn flag(&self) -> String {
        self.name.replace(['.', '_'], "-")
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Key").field(&self.name).finish()
    }
}

const fn key(
    name: &'static str,
    help: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
    get: fn(&Config) -> String,
) -> Key {
    Key {
        name,
        help,
        required: false,
        secret: false,
        set,
        get,
    }
}

/// The key of that name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// All keys, in the order in which they are shown.
pub const KEYS: &[Key] = &[
    Key {
        required: true,
        ..key(
            "cluster",
            "The cluster's identity, 32 hexadecimal digits, the same at every member",
            |config, text| {
                let id = u128::from_str_radix(text, 16)
                    .ok()
                    .filter(|_| text.len() == 32);
                config.cluster = ClusterId(id.ok_or_else(|| not(text, "32 hexadecimal digits"))?);
                Ok(())
            },
            |config| config.cluster.to_string(),
        )
    },
    Key {
        secret: true,
        ..key(
            "secret",
            "A secret that all members share, 64 hexadecimal digits",
            |config, text| {
                config.secret = units::bytes_of_hex(text)
                    .ok_or_else(|| "it is not 64 hexadecimal digits".to_owned())?;
                Ok(())
            },
            |config| units::hex_of_bytes(&config.secret),
        )
    },
    Key {
        required: true,
        ..key(
            "id",
            "This replica's place among the members, from 0",
            |config, text| {
                config.id = ReplicaId(text.parse().map_err(|_| not(text, "a number from 0"))?);
                Ok(())
            },
            |config| config.id.0.to_string(),
        )
    },
    Key {
        required: true,
        ..key(
            "members",
            "Where the members' peers reach them, host:port in the order of their ids",
            |config, text| {
                let names = text
                    .split(',')
                    .map(str::trim)
                    .filter(|name| !name.is_empty());
                config.members = names
                    .map(|name| Member {
                        peer: name.to_owned(),
                    })
                    .collect();
                Ok(())
            },
            |config| {
                let peers: Vec<_> = config.members.iter().map(|m| m.peer.as_str()).collect();
                peers.join(", ")
            },
        )
    },
    key(
        "protocol",
        "The replication protocol, see 'quintet protocols'; the same at every member",
        |config, text| {
            text.clone_into(&mut config.protocol);
            Ok(())
        },
        |config| config.protocol.clone(),
    ),
    key(
        "durability",
        "What an acknowledgement promises: disk or memory; the same at every member",
        |config, text| {
            config.durability = text.parse().map_err(|_| not(text, "'disk' or 'memory'"))?;
            Ok(())
        },
        |config| config.durability.name().to_owned(),
    ),
    key(
        "layout",
        "A file that divides the keys among groups, or 'none'; the same at every member",
        |config, text| {
            config.layout = match text {
                "none" => None,
                path => Some(layout::read(path.as_ref()).map_err(|error| error.to_string())?),
            };
            Ok(())
        },
        |config| match &config.layout {
            Some(layout) => layout.path.display().to_string(),
            None => "none".to_owned(),
        },
    ),
    Key {
        required: true,
        ..key(
            "data",
            "The data directory; made if it does not exist",
            |config, text| {
                if text.is_empty() {
                    return Err("it is empty".to_owned());
                }
                config.data = text.into();
                Ok(())
            },
            |config| config.data.display().to_string(),
        )
    },
    key(
        "redis_listen",
        "Where Redis clients connect, host:port, or 'none'",
        |config, text| {
            config.redis_listen = listen_maybe(text)?;
            Ok(())
        },
        |config| shown(config.redis_listen),
    ),
    key(
        "redis_announce",
        "Where clients reach this replica, host:port, as the others show it in INFO and ROLE; \
         'listen' for redis_listen",
        |config, text| {
            config.redis_announce = Some(text.to_owned()).filter(|text| text != "listen");
            Ok(())
        },
        |config| {
            config
                .redis_announce
                .clone()
                .unwrap_or_else(|| "listen".to_owned())
        },
    ),
    key(
        "admin_listen",
        "Where admin HTTP listens, host:port, or 'none'",
        |config, text| {
            config.admin_listen = listen_maybe(text)?;
            Ok(())
        },
        |config| shown(config.admin_listen),
    ),
    key(
        "peer_listen",
        "Where the other members connect, host:port; by default this member's own entry",
        |config, text| {
            config.peer_listen = address(text)?;
            Ok(())
        },
        |config| config.peer_listen.to_string(),
    ),
    key(
        "transport",
        "How frames travel between members: tcp, udp or af-xdp (small ones), shared-memory",
        |config, text| {
            config.transport = text
                .parse()
                .map_err(|_| not(text, "'tcp', 'udp', 'af-xdp' or 'shared-memory'"))?;
            Ok(())
        },
        |config| config.transport.name().to_owned(),
    ),
    key(
        "threads",
        "One thread for all work, or pipelined: peers' and clients' sockets have their own",
        |config, text| {
            config.threads = text
                .parse()
                .map_err(|_| not(text, "'one' or 'pipelined'"))?;
            Ok(())
        },
        |config| config.threads.name().to_owned(),
    ),
    key(
        "datagram_bytes_max",
        "The longest datagram in bytes, 512 to 65000; shorter where the path carries less",
        |config, text| {
            config.datagram_bytes_max = number(text)?;
            Ok(())
        },
        |config| config.datagram_bytes_max.to_string(),
    ),
    Key {
        secret: true,
        ..key(
            "password",
            "What Redis clients and admin HTTP must be given; empty for none",
            |config, text| {
                config.password = Some(text.to_owned()).filter(|text| !text.is_empty());
                Ok(())
            },
            |config| config.password.clone().unwrap_or_default(),
        )
    },
    key(
        "clients_max",
        "The most client connections",
        |config, text| {
            config.clients_max = number(text)?;
            Ok(())
        },
        |config| config.clients_max.to_string(),
    ),
    key(
        "admin_connections_max",
        "The most connections to admin HTTP, 1 to 4096; a further one closes the oldest idle one",
        |config, text| {
            config.admin_connections_max = number(text)?;
            Ok(())
        },
        |config| config.admin_connections_max.to_string(),
    ),
    key(
        "client_deadline",
        "When a request is given up, such as 10s",
        |config, text| {
            config.client_deadline = units::duration(text)?;
            Ok(())
        },
        |config| units::show_duration(config.client_deadline),
    ),
    key(
        "session_lifetime",
        "A server's sessions end when it is silent for this long, such as 2m",
        |config, text| {
            config.session_lifetime = units::duration(text)?;
            Ok(())
        },
        |config| units::show_duration(config.session_lifetime),
    ),
    key(
        "digest_interval",
        "How often all replicas compare digests of their states, such as 10m; 0s for never",
        |config, text| {
            config.digest_interval = units::duration(text)?;
            Ok(())
        },
        |config| units::show_duration(config.digest_interval),
    ),
    key(
        "evict_after",
        "A member that does not answer for this long is removed, 10s or more, such as 1h; 0s for \
         never",
        |config, text| {
            config.evict_after = units::duration(text)?;
            Ok(())
        },
        |config| units::show_duration(config.evict_after),
    ),
    key(
        "spin_max",
        "How long to look for work before sleeping while nearly idle; 0s for never",
        |config, text| {
            config.spin_max = units::duration(text)?;
            Ok(())
        },
        |config| units::show_duration(config.spin_max),
    ),
    key(
        "snapshot_bytes_min",
        "A snapshot is due after this many bytes of executed commands, such as 256MiB",
        |config, text| {
            config.snapshot_bytes_min = units::bytes(text)?;
            Ok(())
        },
        |config| units::show_bytes(config.snapshot_bytes_min),
    ),
    key(
        "transfer.feed_bytes_max",
        "While a peer fetches this replica's state, what is executed is kept in memory up to this, \
         such as 1GiB, or up to the size of the last snapshot if that is less",
        |config, text| {
            config.transfer.feed_bytes_max = units::bytes(text)?;
            Ok(())
        },
        |config| units::show_bytes(config.transfer.feed_bytes_max),
    ),
    key(
        "transfer.rate_max",
        "How much of a peer's state this replica asks for in a second, such as 50MiB; 0 for no limit",
        |config, text| {
            config.transfer.rate_max = units::bytes(text)?;
            Ok(())
        },
        |config| units::show_bytes(config.transfer.rate_max),
    ),
    key(
        "transfer.rate_busy",
        "The same while that peer executes more than 100 commands per second; 0 for `rate_max`",
        |config, text| {
            config.transfer.rate_busy = units::bytes(text)?;
            Ok(())
        },
        |config| units::show_bytes(config.transfer.rate_busy),
    ),
    key(
        "limits.key_bytes_max",
        "The longest key, such as 64KiB",
        |config, text| {
            config.limits.key_bytes_max = units::length(text)?;
            Ok(())
        },
        |config| units::show_bytes(config.limits.key_bytes_max as u64),
    ),
    key(
        "limits.value_bytes_max",
        "The longest value, such as 64MiB",
        |config, text| {
            config.limits.value_bytes_max = units::length(text)?;
            Ok(())
        },
        |config| units::show_bytes(config.limits.value_bytes_max as u64),
    ),
    key(
        "limits.memory_max",
        "The most memory that the data may take, such as 4GiB; 0 for no limit",
        |config, text| {
            config.limits.memory_max = units::bytes(text)?;
            Ok(())
        },
        |config| units::show_bytes(config.limits.memory_max),
    ),
    key(
        "limits.batch_bytes",
        "Requests are ordered together up to that many bytes, 4KiB to 4MiB",
        |config, text| {
            config.limits.batch_bytes = units::length(text)?;
            Ok(())
        },
        |config| units::show_bytes(config.limits.batch_bytes as u64),
    ),
    key(
        "limits.batch_requests",
        "Requests of that many connections are ordered together, 1 to 65536",
        |config, text| {
            config.limits.batch_requests = number(text)?;
            Ok(())
        },
        |config| config.limits.batch_requests.to_string(),
    ),
    key(
        "clients.timeout",
        "A client silent for this long is disconnected, such as 10m; 0s for never",
        |config, text| {
            config.clients.timeout = units::duration(text)?;
            Ok(())
        },
        |config| units::show_duration(config.clients.timeout),
    ),
    key(
        "clients.partial_timeout",
        "The same for one that has sent half a command; 0s for never",
        |config, text| {
            config.clients.partial_timeout = units::duration(text)?;
            Ok(())
        },
        |config| units::show_duration(config.clients.partial_timeout),
    ),
    key(
        "clients.tcp_keepalive",
        "TCP asks a client silent for this long whether it still exists; 0s for never",
        |config, text| {
            config.clients.tcp_keepalive = units::duration(text)?;
            Ok(())
        },
        |config| units::show_duration(config.clients.tcp_keepalive),
    ),
    key(
        "clients.auth_deadline",
        "With a password: a client that has not sent it by then is disconnected; 0s for never",
        |config, text| {
            config.clients.auth_deadline = units::duration(text)?;
            Ok(())
        },
        |config| units::show_duration(config.clients.auth_deadline),
    ),
    key(
        "clients.unauthenticated_max",
        "With a password: more clients that have not sent it disconnect the oldest of them",
        |config, text| {
            config.clients.unauthenticated_max = number(text)?;
            Ok(())
        },
        |config| config.clients.unauthenticated_max.to_string(),
    ),
    key(
        "clients.per_address_max",
        "The most clients of one address, 0 for no limit; auto: half of all, none on loopback",
        |config, text| {
            config.clients.per_address_max = match text {
                "auto" => None,
                _ => Some(
                    text.parse()
                        .map_err(|_| not(text, "a whole number or 'auto'"))?,
                ),
            };
            Ok(())
        },
        |config| {
            let most = config.clients.per_address_max;
            most.map_or_else(|| "auto".to_owned(), |most| most.to_string())
        },
    ),
    key(
        "journal.segment_bytes",
        "The size of a preallocated journal file, 1MiB to 1GiB",
        |config, text| {
            config.journal.segment_bytes = units::bytes(text)?;
            Ok(())
        },
        |config| units::show_bytes(config.journal.segment_bytes),
    ),
    key(
        "journal.direct",
        "Write the journal past the page cache where the file system can: true or false",
        |config, text| {
            config.journal.direct = text.parse().map_err(|_| not(text, "true or false"))?;
            Ok(())
        },
        |config| config.journal.direct.to_string(),
    ),
    key(
        "journal.queue_bytes_max",
        "The most bytes waiting to become durable, such as 256MiB",
        |config, text| {
            config.journal.queue_bytes_max = units::length(text)?;
            Ok(())
        },
        |config| units::show_bytes(config.journal.queue_bytes_max as u64),
    ),
];

fn not(text: &str, accepted: &str) -> String {
    format!("'{text}' is not {accepted}")
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| not(text, "a whole number"))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let unreadable = || not(text, "an address like 127.0.0.1:7001");
    crate::cli::resolve(text).ok_or_else(unreadable)
}

fn listen_maybe(text: &str) -> Result<Option<SocketAddr>, String> {
    match text {
        "none" => Ok(None),
        _ => address(text).map(Some),
    }
}

fn shown(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "none".to_owned(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::settings::blank;

    #[test]
    fn key_reads_its_own_representation() {
        for key in KEYS {
            let mut config = blank();
            config.cluster = ClusterId(7);
            config.data = "somewhere".into();
            let shown = (key.get)(&config);
            (key.set)(&mut config, &shown).unwrap_or_else(|error| panic!("{}: {error}", key.name));
            assert_eq!((key.get)(&config), shown, "{}", key.name);
        }
    }

    #[test]
    fn names_do_not_collide_as_flags_or_variables() {
        for (i, key) in KEYS.iter().enumerate() {
            for other in &KEYS[..i] {
                assert_ne!(key.flag(), other.flag());
                assert_ne!(key.variable(), other.variable());
            }
        }
    }

    #[test]
    fn refusals_say_what_is_accepted() {
        let mut config = blank();
        let mut refusal =
            |name: &str, text: &str| (find(name).unwrap().set)(&mut config, text).unwrap_err();
        assert!(refusal("cluster", "xyz").contains("32 hexadecimal"));
        assert!(refusal("durability", "tape").contains("'disk' or 'memory'"));
        assert!(refusal("transport", "pigeon").contains("'tcp', 'udp', 'af-xdp' or"));
        assert!(refusal("threads", "many").contains("'one' or 'pipelined'"));
        assert!(refusal("redis_listen", "7001").contains("127.0.0.1:7001"));
        assert!(refusal("client_deadline", "10 parsecs").contains("10s"));
        assert!(refusal("limits.memory_max", "much").contains("64MiB"));
        assert!(!refusal("secret", "hunter2").contains("hunter2"));
    }
}

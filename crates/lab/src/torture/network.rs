//! The network between the replicas: links on loopback, or a bridge between network namespaces.
//!
//! ```text
//!   loopback     replica 0 ── proxy ── replica 1            no rights needed
//!   namespaces   [qt0 10.77.0.1] ─┐
//!                [qt1 10.77.0.2] ─┼─ bridge 10.77.0.254 ── clients
//!                [qt2 10.77.0.3] ─┘
//!                cut a → b: in a's namespace b gets an unused hardware address
//!                reset: the kernel destroys the sockets (ss -K)
//! ```
//!
//! A wrong neighbour loses packets silently and in one direction, existing connections included,
//! and needs no packet filter. The namespaces live in a sandbox of their own (see
//! [`super::sandbox`]), so that nothing of them is left when the process is gone, however it ends.

use super::{
    proxy::{Cable, Cuts, Proxy},
    sandbox::command,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
    str::FromStr,
};

/// Which of the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkKind {
    /// All on 127.0.0.1, with a proxy between the replicas.
    #[default]
    Loopback,
    /// A network namespace for each replica.
    Namespaces,
}

impl FromStr for NetworkKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "loopback" => Ok(Self::Loopback),
            "namespaces" => Ok(Self::Namespaces),
            other => Err(format!("'{other}' is not 'loopback' or 'namespaces'")),
        }
    }
}

/// A replica's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For clients.
    pub redis: SocketAddr,
    /// For admin HTTP.
    pub admin: SocketAddr,
    /// For its peers.
    pub peer: SocketAddr,
}

/// The network between the replicas; removed when dropped.
#[derive(Debug)]
pub enum Network {
    /// A proxy on loopback, and the first of its ports.
    Loopback {
        /// The cables; none where members change, who tell the others where they are.
        proxy: Option<Proxy>,
        /// The first port of all.
        base: u16,
        /// How many replicas there are.
        replicas: u16,
    },
    /// Namespaces with a bridge between them.
    Namespaces {
        /// The first port of all.
        base: u16,
        /// How many replicas there are.
        replicas: u16,
        /// The current cuts.
        cuts: Cuts,
    },
}

const PEER: u16 = 40;
const ADMIN: u16 = 20;
const CABLES: u16 = 60;
/// The most replicas and proxies that a torture can have: ports are counted with it.
pub const REPLICAS_MAX: u16 = 9;
/// Ports from the first one on that a torture may use.
pub const PORTS: u16 = CABLES + REPLICAS_MAX * REPLICAS_MAX;

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn cable_port(base: u16, from: u16, to: u16) -> u16 {
    base + CABLES + from * REPLICAS_MAX + to
}

/// The address of replica `id` between namespaces.
pub(crate) fn host(id: u16) -> Ipv4Addr {
    // REPLICAS_MAX keeps it below 254.
    Ipv4Addr::new(10, 77, 0, id as u8 + 1)
}

fn namespace(id: u16) -> String {
    format!("qt{id}")
}

/// An unused hardware address: locally administered, and none of the bridge's.
const UNUSED_ADDRESS: &str = "02:00:00:00:00:ff";

fn ip(arguments: &str) -> io::Result<()> {
    let words: Vec<&str> = arguments.split(' ').collect();
    command("ip", &words)
}

impl Network {
    /// Lays the network for `replicas` replicas from port `base` on; on loopback with cables between
    /// them, or not.
    ///
    /// # Errors
    /// When a port is taken or a right is missing.
    pub fn start(kind: NetworkKind, base: u16, replicas: u16, cables: bool) -> io::Result<Self> {
        match kind {
            NetworkKind::Loopback if !cables => Ok(Self::Loopback {
                proxy: None,
                base,
                replicas,
            }),
            NetworkKind::Loopback => {
                let pairs = (0..replicas)
                    .flat_map(|from| (0..replicas).map(move |to| (from, to)))
                    .filter(|(from, to)| from != to);
                let cables: Vec<Cable> = pairs
                    .map(|(from, to)| Cable {
                        from,
                        to,
                        listen: local(cable_port(base, from, to)),
                        target: local(base + PEER + to),
                    })
                    .collect();
                Ok(Self::Loopback {
                    proxy: Some(Proxy::start(&cables)?),
                    base,
                    replicas,
                })
            }
            NetworkKind::Namespaces => {
                lay(replicas)?;
                Ok(Self::Namespaces {
                    base,
                    replicas,
                    cuts: Cuts::new(),
                })
            }
        }
    }

    /// Where replica `id` listens; proxies, which are where the clients are, are numbered behind
    /// the replicas.
    #[must_use]
    pub fn addresses(&self, id: u16) -> Addresses {
        let (ip, base) = match self {
            Self::Namespaces { base, replicas, .. } if id < *replicas => {
                (IpAddr::V4(host(id)), base)
            }
            Self::Loopback { base, .. } | Self::Namespaces { base, .. } => {
                (IpAddr::V4(Ipv4Addr::LOCALHOST), base)
            }
        };
        let at = |port| SocketAddr::from((ip, port));
        Addresses {
            redis: at(base + id),
            admin: at(base + ADMIN + id),
            peer: at(base + PEER + id),
        }
    }

    /// The members as replica `id` shall see them; nothing lies between them and a proxy.
    #[must_use]
    pub fn members(&self, id: u16) -> Vec<String> {
        let (Self::Loopback { replicas, .. } | Self::Namespaces { replicas, .. }) = self;
        let seen = (0..*replicas).map(|to| match self {
            Self::Loopback {
                base,
                replicas,
                proxy: Some(_),
            } if to != id && id < *replicas => local(cable_port(*base, id, to)),
            _ => self.addresses(to).peer,
        });
        seen.map(|address| address.to_string()).collect()
    }

    /// A command that runs `program` in the namespace of replica `id`, or of a proxy.
    #[must_use]
    pub fn command(&self, id: u16, program: &Path) -> Command {
        match self {
            Self::Namespaces { replicas, .. } if id < *replicas => inside(id, program),
            Self::Loopback { .. } | Self::Namespaces { .. } => Command::new(program),
        }
    }

    /// From now on exactly these directions are cut.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn cut(&mut self, wanted: &Cuts) -> io::Result<()> {
        match self {
            Self::Loopback { proxy, .. } => {
                if let Some(proxy) = proxy {
                    proxy.cut(wanted);
                }
            }
            Self::Namespaces { cuts, .. } => {
                for (from, to) in wanted.difference(cuts) {
                    let (at, peer) = (namespace(*from), host(*to));
                    ip(&format!(
                        "-n {at} neigh replace {peer} lladdr {UNUSED_ADDRESS} dev eth0 nud permanent"
                    ))?;
                }
                for (from, to) in cuts.difference(wanted) {
                    let (at, peer) = (namespace(*from), host(*to));
                    ip(&format!("-n {at} neigh del {peer} dev eth0"))?;
                }
                cuts.clone_from(wanted);
            }
        }
        Ok(())
    }

    /// Resets every connection between two replicas.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn reset(&self, one: u16, other: u16) -> io::Result<()> {
        match self {
            Self::Loopback { proxy, .. } => {
                if let Some(proxy) = proxy {
                    proxy.reset(one, other);
                }
            }
            Self::Namespaces { .. } => {
                let (at, peer) = (namespace(one), host(other).to_string());
                let net = format!("--net=/run/netns/{at}");
                // It prints what it destroyed, and complains about what it cannot destroy.
                let output = Command::new("nsenter")
                    .args([net.as_str(), "--", "ss", "-K", "dst", peer.as_str()])
                    .output()?;
                drop(output);
            }
        }
        Ok(())
    }
}

/// A command that runs `program` in the namespace of replica `id`.
pub(crate) fn inside(id: u16, program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", namespace(id)));
    command.arg("--").arg(program);
    command
}

/// Lets everything that replica `id` sends pass a token bucket of that many bits per second, not 0.
pub(crate) fn limit(id: u16, bits_per_second: u64) -> io::Result<()> {
    let name = namespace(id);
    // The burst that passes at once: 2 ms at this rate, at least a few packets of the largest size.
    let burst = (bits_per_second / 8 / 500).max(256 * 1024).to_string();
    let rate = format!("{bits_per_second}bit");
    let words = [
        "-n", &name, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", &rate, "burst",
        &burst, "latency", "200ms",
    ];
    command("tc", &words)
}

/// Namespaces, cables and bridge for that many replicas, in a sandbox. Leftovers of an earlier call
/// are removed.
pub(crate) fn lay(replicas: u16) -> io::Result<()> {
    for id in 0..REPLICAS_MAX {
        let left = Path::new("/run/netns").join(namespace(id));
        if left.exists() {
            ip(&format!("netns del {}", namespace(id)))?;
        }
    }
    // Absent the first time.
    let _ = ip("link del qtb");
    ip("link set lo up")?;
    ip("link add qtb type bridge")?;
    ip("addr add 10.77.0.254/24 dev qtb")?;
    ip("link set qtb up")?;
    for id in 0..replicas {
        let (name, at) = (namespace(id), host(id));
        ip(&format!("netns add {name}"))?;
        ip(&format!(
            "link add qtv{id} type veth peer name eth0 netns {name}"
        ))?;
        ip(&format!("link set qtv{id} master qtb up"))?;
        ip(&format!("-n {name} addr add {at}/24 dev eth0"))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("-n {name} link set lo up"))?;
    }
    Ok(())
}

/// A first port whose whole range is free now, from `from` on. Where the search begins depends on
/// the process, so that two that search at the same time do not find the same.
#[must_use]
pub fn free_base(from: u16) -> Option<u16> {
    let free = |port| std::net::TcpListener::bind(local(port)).is_ok();
    let bases: Vec<u16> = (from..30_000 - PORTS).step_by(usize::from(PORTS)).collect();
    let start = std::process::id() as usize % bases.len().max(1);
    let (before, after) = bases.split_at(start.min(bases.len()));
    after
        .iter()
        .chain(before)
        .copied()
        .find(|base| (*base..base + PORTS).all(free))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_sees_itself_at_its_address_and_others_by_links() {
        let base = free_base(24_200).unwrap();
        let network = Network::start(NetworkKind::Loopback, base, 3, true).unwrap();
        let mut all = std::collections::BTreeSet::new();
        for id in 0..3 {
            let members = network.members(id);
            assert_eq!(
                members[usize::from(id)],
                network.addresses(id).peer.to_string()
            );
            all.extend(members);
        }
        assert_eq!(all.len(), 9, "three listeners and six cables");
    }
}

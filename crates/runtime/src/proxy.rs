//! Starting a proxy: a server and a frontend without a replica.
//!
//! ```text
//!   Proxy::start(config) ──► Running, as of a replica: addresses, handle, stop, join
//! ```

use crate::{
    Addresses, Config, Listeners, Published, Running, StartError, StatusReport, Transport,
    clock::{Clock, unix_time},
    data::random,
    descriptors,
    event_loop::{self, Apart, ProxyParts, ProxyWorld, ShellParts, TOKEN_MAIL, TOKEN_PEERS},
    mail::Mailbox,
    port::{Port, Ports},
    replica::{Handle, gateway_config, guarded, listen_to_clients},
    server::{AdminOptions, Gateway},
    terms,
    transports::{
        handshake::{PeerIdentity, PeerKey},
        tcp::Tcp,
    },
};
use quintet_replica::{
    Boot, ClientNode, FrontendId, FrontendSetup, Incarnation, Lane, Peer, ReplicaId, StateMachine,
};
use std::{cell::Cell, net::TcpListener, sync::Arc};

/// A process that serves clients of a cluster and is no member of it. Any number may run; their
/// state is lost with them, and no member needs it.
#[derive(Debug)]
pub struct Proxy;

impl Proxy {
    /// Binds the sockets and starts the threads. Of the configuration the cluster's part counts,
    /// and what concerns clients; id, data directory and journal do not. `machine` is one as the
    /// members have it: members refuse a proxy whose limits are not theirs.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running then.
    pub fn start(config: &Config, machine: &dyn StateMachine) -> Result<Running, StartError> {
        Self::start_on(config, machine, Listeners::default())
    }

    /// The same on sockets that listen already.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left running then.
    pub fn start_on(
        config: &Config,
        machine: &dyn StateMachine,
        listeners: Listeners,
    ) -> Result<Running, StartError> {
        let entry = config.check()?;
        if config.layout.is_some() {
            let why = "layout: a proxy does not serve keys that are divided yet; ask a replica";
            return Err(StartError::Config(why.to_owned()));
        }
        let config = &Config {
            clients_max: descriptors::grant(config.clients_max, config.descriptors_reserved()),
            ..config.clone()
        };
        let (redis, admin) = listen_to_clients(config, listeners.redis, listeners.admin)?;
        let addresses = Addresses {
            redis: redis.as_ref().map(TcpListener::local_addr).transpose()?,
            admin: admin.as_ref().map(TcpListener::local_addr).transpose()?,
            peer: (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        };
        let poll = mio::Poll::new()?;
        let (mailbox, mailer) = Mailbox::new(poll.registry(), mio::Token(TOKEN_MAIL))?;
        let published = Arc::new(Published::default());
        let handle = Handle::new(
            mailer.clone(),
            Arc::clone(&published),
            config.client_deadline,
        );
        let members = config.members.len();
        let descriptor = terms::first_epoch(config, entry, machine);
        let epoch = descriptor.epoch(config.secret);
        let (options, limits) = terms::shown(&descriptor);
        let frontend = FrontendId(random().max(1));
        let me = PeerIdentity {
            cluster: config.cluster,
            epoch: epoch.number,
            groups: 1,
            members: members as u16,
            protocol: config.protocol.clone(),
            from: Peer::Frontend(frontend),
            to: ReplicaId(0),
            incarnation: Incarnation(0),
            boot: Boot(0),
            directory: 0,
            session: 0,
            lane: Lane::Control,
            redis: String::new(),
            address: String::new(),
            descriptor: descriptor.public(),
        };
        let about = StatusReport {
            cluster: config.cluster.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            epoch: epoch.number.0,
            options,
            limits,
            protocol: config.protocol.clone(),
            role: "proxy".to_owned(),
            change: "unknown",
            durability: config.durability.name().to_owned(),
            threads: config.threads.name().to_owned(),
            disk_state: "none".to_owned(),
            pid: std::process::id(),
            members,
            ..StatusReport::default()
        };
        let setup = FrontendSetup {
            id: frontend,
            embedded: None,
            epoch,
            durability: config.durability,
            options: (),
        };
        let found = |name: &str| quintet_protocols::find(name).ok();
        let client = ClientNode::new(setup, entry, found, random())
            .map_err(|error| StartError::Config(error.to_string()))?;
        let names = config.members.iter().map(|member| member.peer.clone());
        let apart = Apart::of(config)?;
        let registry = apart.as_ref().map_or(&poll, |apart| &apart.peers);
        let registry = registry.registry().try_clone()?;
        let key = PeerKey::new(&config.secret, config.cluster);
        let mut tcp = Tcp::of_frontend(
            (me, key),
            registry,
            names.collect(),
            TOKEN_PEERS,
            mailer.clone(),
        );
        tcp.set_rows(&descriptor);
        tcp.skew_clock(config.clock_skew);
        if config.transport == Transport::AfXdp {
            return Err(StartError::Config(
                "transport: only members go past the kernel's sockets; a proxy speaks to them \
                 with 'udp' or 'tcp'"
                    .to_owned(),
            ));
        }
        if config.transport == Transport::Udp {
            tcp.use_datagrams(config.datagram_bytes_max)?;
        }
        let server = redis.zip(addresses.redis).map(|(listener, address)| {
            let config = gateway_config(config, address);
            (Gateway::new(config, frontend, random()), listener)
        });
        let ports = Ports::new(0, || {
            let owner = (random(), unix_time());
            let (deadline, lifetime) = (config.client_deadline, config.session_lifetime);
            Port::new(frontend, owner, deadline, lifetime)
                .with_values(config.limits.value_bytes_max)
        });
        let shell = ShellParts {
            poll,
            mailbox,
            mailer,
            tcp,
            server,
            ports,
            published,
            spin_max: config.spin_max,
            apart,
        };
        let parts = ProxyParts {
            shell,
            client,
            world: ProxyWorld {
                clock: Clock::new(config.clock_skew),
                rooms: vec![Cell::new(0); members],
            },
            about,
            rows: descriptor.members,
            viable: entry.viable_in,
        };
        let proxy = event_loop::Proxy::new(parts)?;
        let thread = std::thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || guarded(|| proxy.run()))?;
        Running::of(addresses, handle, admin, AdminOptions::of(config), thread)
    }
}

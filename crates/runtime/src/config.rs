//! The configuration of a replica: plain values, checked by [`Config::check`].
//!
//! ```text
//!   flags, environment, TOML (the command line's affair) ──► Config ──► Replica::start
//! ```

use crate::{
    StartError, descriptors,
    layout::{Defaults, Layout, LayoutFile, Subgroup},
    transports::datagrams::{BYTES_MAX, BYTES_MIN},
};
use quintet_replica::{
    ClusterId, Descriptor, Durability, Entry, FEED_BYTES_MAX, FULL_BATCH_BYTES,
    FULL_BATCH_REQUESTS, ReplicaId, ReplicaSet, SNAPSHOT_BYTES_MIN, TRANSFER_RATE_BUSY, limits,
    links::Links,
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

/// One member of the cluster as all others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where its peers reach it: `host:port`. A name is looked up at every attempt.
    pub peer: String,
}

/// Bounds on what clients may store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest key in bytes.
    pub key_bytes_max: usize,
    /// The longest value in bytes.
    pub value_bytes_max: usize,
    /// The most memory that the state may take, in bytes; 0 for no limit. Replicated: the same on
    /// every member.
    pub memory_max: u64,
    /// Clients' requests are ordered together up to this many bytes; more of them become a further
    /// batch at once.
    pub batch_bytes: usize,
    /// The same by the number of connections whose requests are ordered together.
    pub batch_requests: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            key_bytes_max: 64 << 10,
            value_bytes_max: limits::VALUE_BYTES_MAX,
            memory_max: 0,
            batch_bytes: FULL_BATCH_BYTES,
            batch_requests: FULL_BATCH_REQUESTS,
        }
    }
}

/// How clients' connections are treated. Each duration of zero stands for never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// A connection that has sent nothing for this long is closed.
    pub timeout: Duration,
    /// A connection that has sent a part of a command and then nothing for this long is closed.
    pub partial_timeout: Duration,
    /// A connection that says nothing is asked by TCP whether its client still exists after this.
    pub tcp_keepalive: Duration,
    /// With a password, a connection that has not authenticated within this time is closed.
    pub auth_deadline: Duration,
    /// With a password, this many connections may be open that have not authenticated; a further
    /// one closes the oldest of them. At most half of all.
    pub unauthenticated_max: usize,
    /// The most connections from one address; 0 for no limit. `None` is half of all from another
    /// machine, and no limit from this one.
    pub per_address_max: Option<usize>,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::ZERO,
            partial_timeout: Duration::from_secs(60),
            tcp_keepalive: Duration::from_secs(300),
            auth_deadline: Duration::from_secs(10),
            unauthenticated_max: 1024,
            per_address_max: None,
        }
    }
}

/// How the journal uses the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// The size of a preallocated segment file in bytes; rounded up to whole blocks.
    pub segment_bytes: u64,
    /// Write past the page cache where the file system can; otherwise write, then `fdatasync`.
    pub direct: bool,
    /// The most bytes handed to the journal that are not yet durable. Beyond it clients are told
    /// to come back later.
    pub queue_bytes_max: usize,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            segment_bytes: 32 << 20,
            direct: true,
            queue_bytes_max: 256 << 20,
        }
    }
}

/// How a replica that is far behind obtains a peer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferOptions {
    /// While a peer fetches this replica's state, this many bytes of what it executes are kept in
    /// memory for the peer at most, and no more than its last snapshot had. A replica that fetches
    /// keeps up to four times as many bytes, or four times the state's, in the state's file.
    pub feed_bytes_max: u64,
    /// This many bytes of a peer's state are asked for in a second at most; 0 for no limit.
    pub rate_max: u64,
    /// The same while that peer executes more than a hundred commands per second.
    pub rate_busy: u64,
}

impl Default for TransferOptions {
    fn default() -> Self {
        Self {
            feed_bytes_max: FEED_BYTES_MAX,
            rate_max: 0,
            rate_busy: TRANSFER_RATE_BUSY,
        }
    }
}

/// How small frames travel between replicas, and between them and proxies. Large ones and bulk
/// always go by connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// By connections: in order, nothing lost while they last.
    #[default]
    Tcp,
    /// By datagrams where these arrive: some are lost, doubled or overtaken, and the protocol sees
    /// to it.
    Udp,
    /// As `Udp`, but datagrams go past the kernel's sockets where they can: as frames in memory that
    /// the kernel and this process share. Needs the cargo feature `af-xdp`, and rights.
    AfXdp,
    /// Through memory that is shared with members on the same host, and by connections to others:
    /// all frames, whatever their size, and puts as what they are. In order, nothing lost.
    SharedMemory,
}

impl Transport {
    /// `tcp`, `udp`, `af-xdp` or `shared-memory`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::AfXdp => "af-xdp",
            Self::SharedMemory => "shared-memory",
        }
    }

    /// Whether small frames go by datagrams, which are lost and reordered.
    #[must_use]
    pub const fn uses_datagrams(self) -> bool {
        matches!(self, Self::Udp | Self::AfXdp)
    }
}

impl std::str::FromStr for Transport {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            "af-xdp" => Ok(Self::AfXdp),
            "shared-memory" => Ok(Self::SharedMemory),
            _ => Err("expected 'tcp', 'udp', 'af-xdp' or 'shared-memory'"),
        }
    }
}

/// How a replica or proxy divides its work. The journal and snapshots have threads of their own in
/// any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threads {
    /// One thread for sockets, protocol and execution.
    #[default]
    One,
    /// Protocol and execution; the sockets of peers; those of clients: a thread each, joined by
    /// bounded rings.
    Pipelined,
}

impl Threads {
    /// `one` or `pipelined`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Pipelined => "pipelined",
        }
    }
}

impl std::str::FromStr for Threads {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "one" => Ok(Self::One),
            "pipelined" => Ok(Self::Pipelined),
            _ => Err("expected 'one' or 'pipelined'"),
        }
    }
}

/// Links between replicas that are slower or worse than the network is, for measuring and for
/// trying out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulation {
    /// How they behave; the same at every member.
    pub links: Links,
    /// When the run began from which changes are counted, since the Unix epoch; the same at every
    /// member.
    pub began: Duration,
}

/// Everything that a replica needs to know. Plain data: where values come from is the caller's
/// affair.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster's identity; the same at every member, different for every cluster.
    pub cluster: ClusterId,
    /// This replica's place among the members.
    pub id: ReplicaId,
    /// All members in the order of their ids, this one included.
    pub members: Vec<Member>,
    /// The protocol's name in the registry.
    pub protocol: String,
    /// The protocol's options as `(name, value)`; the same at every member.
    pub options: Vec<(String, String)>,
    /// The promise of an acknowledgement.
    pub durability: Durability,
    /// How keys are divided among groups; the same at every member. `None` for one group with all
    /// keys.
    pub layout: Option<LayoutFile>,
    /// The data directory; made if it does not exist.
    pub data: PathBuf,
    /// Where Redis clients connect; port 0 for any free one, `None` for no server.
    pub redis_listen: Option<SocketAddr>,
    /// Where clients reach this replica's Redis server, `host:port`, as the others show it in INFO
    /// and ROLE; `None` for `redis_listen`, with the address that the others see where it names
    /// none.
    pub redis_announce: Option<String>,
    /// Where the other members reach this replica, as `host:port`: they are told when they are linked,
    /// so it may be another address than the one that they know.
    pub peer_announce: Option<String>,
    /// Where the admin HTTP listens; port 0 for any free one, `None` for none.
    pub admin_listen: Option<SocketAddr>,
    /// Where peers connect.
    pub peer_listen: SocketAddr,
    /// How small frames travel; who sends them decides. Not every protocol stands datagrams.
    pub transport: Transport,
    /// The longest datagram in bytes, at most what the path carries.
    pub datagram_bytes_max: usize,
    /// How the work is divided.
    pub threads: Threads,
    /// How many items a ring between two threads holds, where there are several; at least one.
    pub ring_slots: usize,
    /// The password of clients.
    pub password: Option<String>,
    /// The most client connections. Fewer where this process may not open that many files.
    pub clients_max: usize,
    /// How clients' connections are treated.
    pub clients: ClientLimits,
    /// The most connections to the admin HTTP; a further one closes the oldest idle one.
    pub admin_connections_max: usize,
    /// Bounds on what clients store.
    pub limits: Limits,
    /// A snapshot is due after this many bytes of executed batches, or as many as the last one
    /// had.
    pub snapshot_bytes_min: u64,
    /// When a request is given up; a long one later, by a second for each 4 MiB of it.
    pub client_deadline: Duration,
    /// A server's sessions end when it is silent for this long.
    pub session_lifetime: Duration,
    /// How often this replica asks all to compare digests of their states, where the leader does
    /// not before. Zero for never; it takes part when another one asks.
    pub digest_interval: Duration,
    /// A member that does not answer for this long is removed, as long as three are left. Zero for
    /// never.
    pub evict_after: Duration,
    /// How long the event loop keeps looking for work before it sleeps, while nearly idle. Zero
    /// for never.
    pub spin_max: Duration,
    /// How the journal uses the disk.
    pub journal: JournalOptions,
    /// How a replica that is far behind obtains a peer's state.
    pub transfer: TransferOptions,
    /// Start a `memory` cluster again after the memories of a majority were lost. The data in those
    /// memories is gone.
    pub bootstrap_again: bool,
    /// Links that are slower or worse than the network is; `None` for the network as it is.
    pub emulation: Option<Emulation>,
    /// By how many nanoseconds this replica's clock is set wrong, for measuring and for trying
    /// out.
    pub clock_skew: i64,
    /// A secret that all members share; protocols derive common randomness from it. The peers
    /// prove to each other that they have it, and never send it.
    pub secret: [u8; 32],
}

/// The option of a protocol that serves several groups.
const LAYOUT: &str = "layout";

/// A member is not removed sooner: a restart takes as long.
const EVICT_AFTER_MIN: Duration = Duration::from_secs(10);

impl Config {
    /// A configuration with defaults for all that has one: loopback, any free port, disk
    /// durability.
    #[must_use]
    pub fn new(cluster: ClusterId, id: ReplicaId, members: Vec<Member>, data: PathBuf) -> Self {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self {
            cluster,
            id,
            members,
            protocol: "multipaxos".to_owned(),
            options: Vec::new(),
            durability: Durability::Disk,
            layout: None,
            data,
            redis_listen: Some(any),
            redis_announce: None,
            peer_announce: None,
            admin_listen: Some(any),
            peer_listen: any,
            transport: Transport::Tcp,
            threads: Threads::One,
            ring_slots: 1024,
            datagram_bytes_max: 1400,
            password: None,
            clients_max: 10_000,
            clients: ClientLimits::default(),
            admin_connections_max: 64,
            limits: Limits::default(),
            snapshot_bytes_min: SNAPSHOT_BYTES_MIN,
            client_deadline: Duration::from_secs(10),
            session_lifetime: Duration::from_secs(120),
            digest_interval: Duration::from_secs(600),
            evict_after: Duration::ZERO,
            spin_max: Duration::from_micros(100),
            journal: JournalOptions::default(),
            transfer: TransferOptions::default(),
            bootstrap_again: false,
            emulation: None,
            clock_skew: 0,
            secret: [0; 32],
        }
    }

    /// Takes over what the members of an epoch have agreed on, for its member `id`.
    pub(crate) fn adopt(&mut self, id: ReplicaId, descriptor: &Descriptor) {
        self.cluster = descriptor.cluster;
        self.id = id;
        // The address of a vacant row is not used: the epoch says that it is one.
        let members = descriptor
            .members
            .iter()
            .zip(1..)
            .map(|(row, port)| Member {
                peer: match row.is_taken() {
                    true => row.peer.clone(),
                    false => format!("vacant:{port}"),
                },
            });
        self.members = members.collect();
        self.protocol.clone_from(&descriptor.protocol);
        self.options.clone_from(&descriptor.options);
        self.durability = descriptor.durability;
        if let Some(lifetime) = descriptor.number_of("session_lifetime_ms") {
            self.session_lifetime = Duration::from_millis(lifetime);
        }
        if let Some(bytes) = descriptor.number_of("memory_max") {
            self.limits.memory_max = bytes;
        }
        let length = |name| descriptor.number_of(name).and_then(|it| it.try_into().ok());
        if let Some(bytes) = length("key_bytes_max") {
            self.limits.key_bytes_max = bytes;
        }
        if let Some(bytes) = length("value_bytes_max") {
            self.limits.value_bytes_max = bytes;
        }
    }

    /// Checks what can be checked without touching disk or network, and finds the protocol.
    ///
    /// # Errors
    /// [`StartError::Config`] naming the setting and what it accepts.
    pub fn check(&self) -> Result<&'static Entry, StartError> {
        let refuse = |reason: String| Err(StartError::Config(reason));
        if self.cluster == ClusterId(0) {
            return refuse("cluster: an id of zero stands for none; draw a random one".to_owned());
        }
        let announced = [
            ("redis_announce", &self.redis_announce),
            ("peer_announce", &self.peer_announce),
        ];
        for (name, address) in announced {
            if let Some(Err(why)) = address.as_deref().map(crate::announce::check) {
                return refuse(format!("{name}: {why}"));
            }
        }
        if self.members.is_empty() || self.members.len() > ReplicaSet::MEMBERS_MAX {
            let (count, most) = (self.members.len(), ReplicaSet::MEMBERS_MAX);
            return refuse(format!(
                "members: there are {count}; accepted are 1 to {most}"
            ));
        }
        if self.id.index() >= self.members.len() {
            let (id, last) = (self.id.0, self.members.len() - 1);
            return refuse(format!(
                "id: {id} is not a member; accepted are 0 to {last}"
            ));
        }
        for (index, member) in self.members.iter().enumerate() {
            if !member
                .peer
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
            {
                return refuse(format!("members: '{}' is not host:port", member.peer));
            }
            if self.members[..index].contains(member) {
                return refuse(format!("members: '{}' is there twice", member.peer));
            }
        }
        if self.clients_max == 0 {
            return refuse("clients_max: must be at least 1".to_owned());
        }
        if self.clients.unauthenticated_max == 0 || self.admin_connections_max == 0 {
            return refuse(
                "clients.unauthenticated_max and admin_connections_max must be at least 1"
                    .to_owned(),
            );
        }
        if self.admin_connections_max > 4096 {
            return refuse("admin_connections_max: accepted are 1 to 4096".to_owned());
        }
        let values = 1..=limits::VALUE_BYTES_LIMIT;
        for (name, bytes) in [
            ("key_bytes_max", self.limits.key_bytes_max),
            ("value_bytes_max", self.limits.value_bytes_max),
        ] {
            if !values.contains(&bytes) {
                return refuse(format!("limits.{name}: accepted are 1 byte to 256 MiB"));
            }
        }
        if !(4 << 10..=limits::BATCH_GATHERED).contains(&self.limits.batch_bytes) {
            return refuse("limits.batch_bytes: accepted are 4 KiB to 4 MiB".to_owned());
        }
        if !(1..=65_536).contains(&self.limits.batch_requests) {
            return refuse("limits.batch_requests: accepted are 1 to 65536".to_owned());
        }
        if self.client_deadline.is_zero() || self.session_lifetime < Duration::from_secs(1) {
            return refuse(
                "client_deadline must be above zero and session_lifetime at least one second"
                    .to_owned(),
            );
        }
        if !self
            .session_lifetime
            .subsec_nanos()
            .is_multiple_of(1_000_000)
        {
            // Members agree on it in these units.
            return refuse("session_lifetime: accepted are whole milliseconds".to_owned());
        }
        if !self.digest_interval.is_zero() && self.digest_interval < Duration::from_secs(1) {
            return refuse("digest_interval: accepted are 0s and at least one second".to_owned());
        }
        if !self.evict_after.is_zero() && self.evict_after < EVICT_AFTER_MIN {
            return refuse("evict_after: accepted are 0s and at least 10s".to_owned());
        }
        if self.journal.segment_bytes < 1 << 20 || self.journal.segment_bytes > 1 << 30 {
            return refuse("journal.segment_bytes: accepted are 1 MiB to 1 GiB".to_owned());
        }
        let entry = quintet_protocols::find(&self.protocol)
            .map_err(|error| StartError::Config(format!("protocol: {error}")))?;
        if self.members.len() < entry.info.replicas_min {
            return refuse(format!(
                "members: protocol '{}' needs at least {}",
                self.protocol, entry.info.replicas_min
            ));
        }
        if self.transport.uses_datagrams() && entry.needs_streams {
            let name = &self.protocol;
            return refuse(format!(
                "transport: protocol '{name}' relies on links that lose and reorder nothing; \
                 accepted is 'tcp'"
            ));
        }
        if self.transport == Transport::SharedMemory && self.emulation.is_some() {
            return refuse(
                "transport: links that are emulated are connections or datagrams; accepted are \
                 'tcp' and 'udp'"
                    .to_owned(),
            );
        }
        if !(BYTES_MIN..=BYTES_MAX).contains(&self.datagram_bytes_max) {
            return refuse(format!(
                "datagram_bytes_max: accepted are {BYTES_MIN} to {BYTES_MAX}"
            ));
        }
        (entry.check)(&self.options).map_err(|error| StartError::Config(error.to_string()))?;
        self.shards()?;
        Ok(entry)
    }

    /// Writes the layout's defaults into it, and gives group 0 the durability that no
    /// shard goes beyond: it has all replicas' word on who they are, and must outlive what outlives the
    /// processes.
    pub(crate) fn settle_layout(&mut self) -> Result<(), StartError> {
        let Some(layout) = self.shards()? else {
            return Ok(());
        };
        let of_view = layout.of_the_view();
        if !of_view.is_empty() && !self.options.iter().any(|(name, _)| name == LAYOUT) {
            let mut options = self.options.clone();
            options.push((LAYOUT.to_owned(), of_view));
            let entry = quintet_protocols::find(&self.protocol)
                .map_err(|error| StartError::Config(error.to_string()))?;
            (entry.check)(&options).map_err(|error| {
                StartError::Config(format!(
                    "layout: shards whose members follow the view need a protocol that serves \
                     several groups: {error}"
                ))
            })?;
            self.options = options;
        }
        let files = self.layout.iter_mut().flat_map(|file| &mut file.subgroup);
        for (file, subgroup) in files.zip(&layout.subgroups) {
            file.protocol = Some(subgroup.protocol.clone());
            file.durability = Some(subgroup.durability.name().to_owned());
            let options = subgroup.options.iter();
            let options = options.map(|(name, value)| (name.clone(), value.clone().into()));
            file.options = options.collect();
        }
        let on_disk = |it: &Subgroup| it.durability == Durability::Disk;
        self.durability = match layout.subgroups.iter().any(on_disk) {
            true => Durability::Disk,
            false => Durability::Memory,
        };
        Ok(())
    }

    /// Checks the layout, also against the protocol that is to serve its shards.
    ///
    /// # Errors
    /// [`StartError::Config`] with the fault.
    pub fn check_layout(&self) -> Result<(), StartError> {
        self.clone().settle_layout()
    }

    /// Whether some shard is kept in memory.
    pub(crate) fn has_shards_in_memory(&self) -> bool {
        let shards = self.shards().ok().flatten();
        let in_memory = |it: &Subgroup| it.durability == Durability::Memory;
        shards.is_some_and(|it| it.subgroups.iter().any(in_memory))
    }

    /// The layout, completed by the rest of the configuration.
    ///
    /// # Errors
    /// [`StartError::Config`] with the fault.
    pub fn shards(&self) -> Result<Option<Layout>, StartError> {
        let Some(file) = &self.layout else {
            return Ok(None);
        };
        let refuse = |why: String| {
            let path = file.path.display();
            StartError::Config(format!("layout {path}: {why}"))
        };
        let layout = file.layout(&Defaults {
            replicas: self.members.len(),
            protocol: &self.protocol,
            options: &self.options,
            durability: self.durability,
        });
        let mut layout = layout.map_err(refuse)?;
        let mut subgroups = layout.subgroups.iter();
        let of_service = subgroups.find_map(|it| Some((&it.name, it.service.as_ref()?)));
        if let (Some((name, service)), Some(_)) = (of_service, self.redis_listen) {
            return Err(refuse(format!(
                "subgroup '{name}': service '{service}' runs in a program of its own, and this one \
                 serves Redis clients; leave 'service' away, or set no redis_listen"
            )));
        }
        for subgroup in &mut layout.subgroups {
            let (name, protocol) = (&subgroup.name, &subgroup.protocol);
            let wrong = |why: String| refuse(format!("subgroup '{name}': {why}"));
            let entry = quintet_protocols::find(protocol).map_err(|it| wrong(it.to_string()))?;
            (entry.check)(&subgroup.options).map_err(|it| wrong(it.to_string()))?;
            let fewest = subgroup.shards.iter().map(Vec::len).min().unwrap_or(0);
            if fewest < entry.info.replicas_min {
                let least = entry.info.replicas_min;
                return Err(wrong(format!(
                    "protocol '{protocol}' needs at least {least} members"
                )));
            }
            if self.transport.uses_datagrams() && entry.needs_streams {
                return Err(wrong(format!(
                    "protocol '{protocol}' relies on links that lose and reorder nothing; accepted \
                     is transport 'tcp'"
                )));
            }
            // A later build may have other defaults. The cluster's options are compared as its own.
            subgroup.options = match subgroup.view {
                Some(_) => Vec::new(),
                None => (entry.complete)(&subgroup.options),
            };
            if subgroup.view.is_some() && *protocol != self.protocol {
                return Err(wrong(format!(
                    "its members follow the views of the cluster's protocol, which is '{}', not \
                     '{protocol}'",
                    self.protocol
                )));
            }
            if (entry.unordered)(&subgroup.options) {
                return Err(wrong(
                    "the store needs an order; options say that there is none".into(),
                ));
            }
        }
        let mut subgroups = layout.subgroups.iter();
        if let Some(of) = subgroups.find(|it| it.service.is_some() && self.limits.memory_max > 0) {
            return Err(refuse(format!(
                "limits.memory_max is for keys, and subgroup '{}' has a service; leave it away",
                of.name
            )));
        }
        if !self.evict_after.is_zero() {
            return Err(refuse(
                "evict_after is not offered with a layout yet".into(),
            ));
        }
        Ok(Some(layout))
    }

    /// Descriptors that are kept for others than clients.
    pub(crate) fn descriptors_reserved(&self) -> usize {
        let admin = self.admin_listen.map_or(0, |_| self.admin_connections_max);
        descriptors::reserved(self.members.len(), admin)
    }
}
/// Within a second this many bytes of a request come through the slowest way and onto the slowest
/// disk that are counted with.
const BYTES_PER_SECOND: usize = 4 << 20;

/// How much later than a short one a request of this many bytes is given up.
pub(crate) const fn time_for(bytes: usize) -> Duration {
    Duration::from_secs((bytes / BYTES_PER_SECOND) as u64)
}

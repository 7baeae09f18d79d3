//! The configuration of a replica, and the check that the two ends of a link make of it.
//!
//! ```text
//!   world: options, limits, machine ──────────────────┬─► Configuration ──► descriptor
//!   seed ──(a stream of its own)──► Odd: one replica, ┘                        │ a link opens
//!                                   one value                                  ▼
//!          linked ◄── equal ───────────────── compared by what the runtime compares with
//!          both refuse, with the name and both values ◄── different ───────────┘
//! ```
//!
//! One replica that differs is refused by all others: to them it has never been there, and the
//! rest must continue. Each refusal must name the value, and no other, with what either side has.

use crate::{
    bugs::UNCOMPARED,
    checkers::Violation,
    clock::MILLISECOND,
    drawing::Mix,
    machine::mix,
    process::epoch,
    random::Random,
    service::Service,
    world::{World, WorldSetup},
};
use quintet_replica::{
    Bytes, Descriptor, Durability, Entry, Epoch, ExecutorLimits, Link, MemberRole, MemberRow,
    StateMachine, check_peer,
};
use quintet_store::StoreOptions;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Its name among the effects of faults.
pub(crate) const CONFIGURATION: &str = "configuration";

/// Limits of every node, and values that are met within a world.
const LIMITS: [(&str, &[u64]); 5] = [
    ("session_lifetime_ms", &[300, 700]),
    ("batch_reply_bytes_max", &[1, 64, 512]),
    ("request_reply_bytes_max", &[4, 64]),
    ("kept_reply_bytes_max", &[0, 16]),
    ("kept_replies_bytes_max", &[0, 1000]),
];
/// Limits of the store, likewise.
const STORE: [(&str, &[u64]); 5] = [
    ("databases", &[1, 2]),
    ("key_bytes_max", &[1]),
    ("reply_bytes_max", &[1, 16]),
    ("replies_bytes_max", &[1, 100]),
    ("value_bytes_max", &[1, 8]),
];

/// The kind of value that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// An option of the protocol.
    Option,
    /// A limit of the node or of the state machine.
    Limit,
    /// The version of the state machine, which behaves otherwise.
    Semantics,
    /// The seed of the hash tables.
    HashSeed,
}

/// A replica that is configured otherwise than the others, in one value.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Odd {
    replica: u16,
    kind: Kind,
    /// Of the option or limit.
    name: String,
    value: String,
}

/// The configuration of one replica, or of a proxy.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    pub options: Vec<(String, String)>,
    pub limits: ExecutorLimits,
    pub store: StoreOptions,
    /// Its state machine is of another version.
    pub other_machine: bool,
}

/// These options with another value for one of them.
fn with_option(options: &[(String, String)], name: &str, value: &str) -> Vec<(String, String)> {
    let others = options.iter().filter(|(known, _)| known != name).cloned();
    others
        .chain([(name.to_owned(), value.to_owned())])
        .collect()
}

/// Every option with values that it does not have and could have.
fn other_options(setup: &WorldSetup) -> Vec<(String, String)> {
    let entry = &setup.entry;
    let mut others = Vec::new();
    for (name, value) in (entry.complete)(&setup.options) {
        let drawn = entry.drawn.iter().filter(|(known, _)| *known == name);
        let mut values: Vec<String> = drawn
            .flat_map(|(_, values)| values.iter().map(|value| (*value).to_owned()))
            .collect();
        match (value.as_str(), value.parse::<u64>()) {
            ("true", _) => values.push(String::from("false")),
            ("false", _) => values.push(String::from("true")),
            (_, Ok(number)) => values.extend([number / 2, number + 1].map(|it| it.to_string())),
            _ => {}
        }
        values.retain(|other| {
            let options = with_option(&setup.options, &name, other);
            *other != value && name != "bug" && (entry.check)(&options).is_ok()
        });
        others.extend(values.into_iter().map(|value| (name.clone(), value)));
    }
    others
}

impl Odd {
    /// Which replica differs, and in what.
    pub fn draw(setup: &WorldSetup, mix: &Mix, random: &mut Random) -> Self {
        let replica = random.index(setup.replicas) as u16;
        let kinds = [
            Kind::Option,
            Kind::Option,
            Kind::Limit,
            Kind::Limit,
            Kind::Semantics,
            Kind::HashSeed,
        ];
        let kind = kinds[random.index(kinds.len())];
        let limits: Vec<_> = match mix.service {
            Service::Registers => LIMITS.to_vec(),
            Service::Store => LIMITS.into_iter().chain(STORE).collect(),
        };
        let (name, values) = limits[random.index(limits.len())];
        let limit = (name.to_owned(), values[random.index(values.len())]);
        let options = other_options(setup);
        let option = options.get(random.index(options.len().max(1))).cloned();
        let (kind, (name, value)) = match (kind, option) {
            (Kind::Option, Some(option)) => (kind, option),
            (Kind::Option | Kind::Limit, _) => (Kind::Limit, (limit.0, limit.1.to_string())),
            (Kind::Semantics | Kind::HashSeed, _) => (kind, Default::default()),
        };
        Self {
            replica,
            kind,
            name,
            value,
        }
    }

    /// The replica that differs.
    pub fn replica(&self) -> usize {
        self.replica.into()
    }

    fn change(&self, configuration: &mut Configuration) {
        match self.kind {
            Kind::Option => {
                let options = with_option(&configuration.options, &self.name, &self.value);
                configuration.options = options;
            }
            Kind::Limit => {
                let (limits, store) = (&mut configuration.limits, &mut configuration.store);
                let value: u64 = self.value.parse().unwrap_or_default();
                let bytes = usize::try_from(value).unwrap_or(usize::MAX);
                match self.name.as_str() {
                    "session_lifetime_ms" => limits.session_lifetime = Duration::from_millis(value),
                    "batch_reply_bytes_max" => limits.batch_reply_bytes_max = bytes,
                    "request_reply_bytes_max" => limits.request_reply_bytes_max = bytes,
                    "kept_reply_bytes_max" => limits.kept_replies.reply_bytes_max = bytes,
                    "kept_replies_bytes_max" => limits.kept_replies.bytes_max = bytes,
                    "databases" => store.databases = u8::try_from(value).unwrap_or(1),
                    "key_bytes_max" => store.max_key_bytes = bytes,
                    "reply_bytes_max" => store.max_reply_bytes = bytes,
                    "replies_bytes_max" => store.max_request_reply_bytes = bytes,
                    "value_bytes_max" => store.max_value_bytes = bytes,
                    _ => {}
                }
            }
            Kind::Semantics => configuration.other_machine = true,
            Kind::HashSeed => configuration.store.hash_seed ^= 1,
        }
    }

    /// How a refusal names the difference, given both descriptors.
    fn named(&self, ours: &Descriptor, theirs: &Descriptor) -> String {
        let label = match self.kind {
            Kind::HashSeed => {
                return "hash_seed: ours one that is not shown, theirs another one".to_owned();
            }
            Kind::Option => format!("option '{}'", self.name),
            Kind::Limit => format!("limit '{}'", self.name),
            Kind::Semantics => "version of the state machine".to_owned(),
        };
        let value = |of: &Descriptor| match self.kind {
            Kind::Option => {
                let mut options = of.options.iter();
                let found = options.find(|(known, _)| *known == self.name);
                found.map_or_else(|| "none".to_owned(), |(_, value)| value.clone())
            }
            Kind::Limit => of.number_of(&self.name).unwrap_or_default().to_string(),
            Kind::Semantics | Kind::HashSeed => of.semantics.to_string(),
        };
        format!("{label}: ours {}, theirs {}", value(ours), value(theirs))
    }
}

/// The descriptor that all replicas of a group's first epoch have in common, without machine and
/// limits.
pub(crate) fn first_descriptor(
    entry: &Entry,
    options: &[(String, String)],
    durability: Durability,
    epoch: &Epoch,
) -> Descriptor {
    let row = |id: usize| MemberRow {
        node: id as u64 + 1,
        role: MemberRole::Voter,
        peer: format!("r{id}"),
    };
    Descriptor {
        number: epoch.number,
        options: (entry.complete)(options),
        members: (0..epoch.members).map(row).collect(),
        leader_first: epoch.leader_first,
        ..Descriptor::first(epoch.cluster, entry.info.name, durability)
    }
}

impl World {
    /// The configuration of a replica, or of a proxy.
    pub fn configuration(&self, replica: Option<usize>) -> Configuration {
        let mut configuration = Configuration {
            options: self.setup.options.clone(),
            limits: ExecutorLimits {
                session_lifetime: Duration::from_nanos(self.shape.session_lifetime),
                // A state is restored in pieces as small as those that it is made in.
                restore_step: self.shape.snapshot_chunk,
                bridge_bytes_min: 0,
                transfer_rate_max: self.shape.transfer_rate,
                digest_interval: Duration::from_nanos(self.shape.digest_interval),
                disk_hung_after: Duration::from_nanos(self.shape.disk_hung_after),
                pace_beat: Duration::from_nanos(self.shape.pace_beat),
                ..ExecutorLimits::default()
            },
            store: StoreOptions::default(),
            other_machine: false,
        };
        if let Some(odd) = &self.odd
            && Some(odd.replica()) == replica
        {
            odd.change(&mut configuration);
        }
        configuration
    }

    /// The descriptor of a replica with this configuration and machine.
    pub fn descriptor(
        &self,
        configuration: &Configuration,
        machine: &dyn StateMachine,
    ) -> Descriptor {
        let epoch = epoch(self);
        let (mut terms, mut limits) = (machine.terms(), configuration.limits.terms());
        terms.sort();
        limits.sort();
        let hash_seed = configuration.store.hash_seed;
        let WorldSetup {
            entry, durability, ..
        } = &self.setup;
        Descriptor {
            semantics: machine.semantics() + u32::from(configuration.other_machine),
            terms,
            limits,
            seed_commitment: mix(hash_seed, 1).into(),
            hash_seed,
            ..first_descriptor(entry, &configuration.options, *durability, &epoch)
        }
    }

    /// The descriptor that a place shows to its peers. Proxies are configured as most replicas are.
    fn shown(&self, place: usize) -> Bytes {
        if let Some(process) = self.processes.get(place) {
            return process.descriptor.clone();
        }
        let odd = self.odd.as_ref().map(Odd::replica);
        let usual = self.processes.iter().enumerate();
        let mut usual = usual.filter(|(id, process)| {
            let differs = Some(*id) == odd;
            !differs && !process.descriptor.is_empty()
        });
        usual
            .next()
            .map_or_else(Bytes::new, |(_, process)| process.descriptor.clone())
    }

    /// Whether two places may work together: as the runtime does, they compare what they are
    /// configured with before anything else.
    pub fn compare_configurations(&mut self, a: usize, b: usize) -> bool {
        let shown = [self.shown(a), self.shown(b)];
        if shown.iter().any(Bytes::is_empty) || self.bug_is(UNCOMPARED) {
            return true;
        }
        let with_proxy = a.max(b) >= self.replicas_max();
        let found = [(0, 1), (1, 0)].map(|(at, peer): (usize, usize)| {
            let (ours, theirs) = (&shown[at], &shown[peer]);
            let compared = check_peer(ours, theirs, with_proxy);
            (compared, self.expected([a, b], ours, theirs, with_proxy))
        });
        for ((compared, expected), at) in found.iter().zip([a, b]) {
            if *compared != *expected {
                let what = format!("place {at} says {compared:?}, and should {expected:?}");
                self.violate(Violation::new(CONFIGURATION, what));
            }
        }
        let [(Err(why), _), _] = &found else {
            return true;
        };
        self.trace
            .say(self.now, || format!("{a} and {b} refuse each other: {why}"));
        self.effective(CONFIGURATION);
        self.network.refuse(a, b);
        let again = self.now + self.random.between(200, 1000) * MILLISECOND;
        self.network.connect_at(a, b, again, &mut self.queue);
        for (at, peer) in [(a, b), (b, a)] {
            self.tell_link(at, peer, Link::Down);
        }
        false
    }

    /// The outcome that one end of a link between these places must have for the other.
    fn expected(
        &self,
        places: [usize; 2],
        ours: &Bytes,
        theirs: &Bytes,
        with_proxy: bool,
    ) -> Result<(), String> {
        let Some(odd) = self.odd.as_ref() else {
            return Ok(());
        };
        // A proxy knows no hash seed.
        let unknown = with_proxy && odd.kind == Kind::HashSeed;
        if !places.contains(&odd.replica()) || unknown {
            return Ok(());
        }
        let read = |bytes: &Bytes| Descriptor::decode(bytes.clone()).map_err(|e| e.to_string());
        let named = odd.named(&read(ours)?, &read(theirs)?);
        Err(format!("configuration mismatch: {named}"))
    }

    /// A replica that all others reject takes no part: it executes nothing.
    pub fn check_refused(&self) -> Result<(), Violation> {
        let executed = |process: &crate::process::Process| {
            process
                .node
                .as_ref()
                .map_or(0, |node| node.executed().slot.0)
        };
        let refused = self.processes.iter().filter(|process| process.refused);
        match refused.map(executed).max() {
            Some(slot) if slot > 0 && !self.setup.entry.speculates => Err(Violation::new(
                CONFIGURATION,
                format!("a replica that all others refuse has executed slot {slot}"),
            )),
            _ => Ok(()),
        }
    }
}

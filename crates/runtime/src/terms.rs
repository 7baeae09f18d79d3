//! The terms that the members of a cluster must have in common: made from a configuration, kept in
//! the data directory, compared with peers and proxies.
//!
//! ```text
//!   configuration, machine ──► descriptor ──first start──► DIR/epoch, epoch-2 ──► headers of snapshots
//!                                  │ later starts: equal, or refused                     │
//!   a peer's descriptor ───────────┴─ equal, or the link is refused                      ▼
//!                                                                    a new cluster begins with a state
//! ```

use crate::{Config, StartError, data::Data, data::random};
use hmac::{Hmac, KeyInit, Mac};
use quintet_replica::{
    Bytes, ClusterId, Descriptor, Entry, ExecutorLimits, GroupId, MemberRole, MemberRow, Position,
    ReplicaId, ReplicaSet, StateMachine,
};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// 32 bytes that tell nothing of `key`, for one purpose.
fn derive(key: &[u8], purpose: &str, input: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length does");
    mac.update(purpose.as_bytes());
    mac.update(&[0]);
    mac.update(input);
    mac.finalize().into_bytes().into()
}

fn first<const N: usize>(bytes: &[u8; 32]) -> [u8; N] {
    std::array::from_fn(|at| bytes[at])
}

/// The seed of a cluster's hash tables. The same at every member; clients cannot know it where
/// there is a secret, and where the only member draws it.
fn hash_seed(config: &Config) -> u64 {
    if config.secret == [0; 32] && config.members.len() == 1 {
        return random();
    }
    shared_seed(&config.secret, config.cluster)
}

fn shared_seed(secret: &[u8; 32], cluster: ClusterId) -> u64 {
    let seed = derive(secret, "hash seed", &cluster.0.to_le_bytes());
    u64::from_le_bytes(first(&seed))
}

/// Completes a descriptor that was told without the hash seed.
///
/// # Errors
/// When the members' seed is not made of this secret.
pub(crate) fn find_hash_seed(secret: &[u8; 32], descriptor: &mut Descriptor) -> Result<(), String> {
    if descriptor.hash_seed == 0 {
        descriptor.hash_seed = shared_seed(secret, descriptor.cluster);
    }
    match commitment(descriptor.hash_seed, descriptor.cluster) == descriptor.seed_commitment {
        true => Ok(()),
        false => Err(
            "the cluster's hash seed is not made of this secret: save the data (quintet snapshot \
             save) and begin a new cluster with it (quintet snapshot restore)"
                .to_owned(),
        ),
    }
}

/// The secret of one group, of which that of another tells nothing.
pub(crate) fn secret_of_group(secret: &[u8; 32], group: GroupId) -> [u8; 32] {
    derive(secret, "group", &group.0.to_le_bytes())
}

/// Commits to a seed without telling it.
fn commitment(seed: u64, cluster: ClusterId) -> u128 {
    let tag = derive(&cluster.0.to_le_bytes(), "commitment", &seed.to_le_bytes());
    u128::from_le_bytes(first(&tag))
}

/// A member of the first epoch, whose id is there before its data directory is.
fn first_node(cluster: ClusterId, row: u64) -> u64 {
    let id = derive(&cluster.0.to_le_bytes(), "node", &row.to_le_bytes());
    u64::from_le_bytes(first(&id)).max(1)
}

/// The nodes that have the rows of an epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows(Vec<Row>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    /// 0 in a vacant row.
    node: u64,
    /// The number of its data directory, unless it has been a member from the beginning; 0, which
    /// no directory has, in a vacant row.
    directory: Option<u64>,
}

impl Rows {
    pub fn of(descriptor: &Descriptor) -> Self {
        let first = |node: u64| {
            let mut rows = 0..ReplicaSet::MEMBERS_MAX as u64;
            rows.any(|row| first_node(descriptor.cluster, row) == node)
        };
        let rows = descriptor.members.iter().map(|member| Row {
            node: member.node,
            directory: Some(member.node).filter(|node| !first(*node)),
        });
        Self(rows.collect())
    }

    /// The directory of the node that must have this row; none of a node that has had it from the
    /// beginning.
    pub fn directory(&self, id: ReplicaId) -> Option<u64> {
        self.0.get(id.index())?.directory
    }

    /// The rows that others have there.
    pub fn changed(&self, other: &Self) -> Vec<usize> {
        let rows = 0..self.0.len().max(other.0.len());
        rows.filter(|row| self.0.get(*row) != other.0.get(*row))
            .collect()
    }
}

/// The executor's limits of a configuration.
pub(crate) fn executor_limits(config: &Config) -> ExecutorLimits {
    ExecutorLimits {
        session_lifetime: config.session_lifetime,
        digest_interval: config.digest_interval,
        feed_bytes_max: config.transfer.feed_bytes_max,
        transfer_rate_max: config.transfer.rate_max,
        transfer_rate_busy: config.transfer.rate_busy,
        ..ExecutorLimits::default()
    }
}

/// A number that tells texts apart.
fn fingerprint(text: &str) -> u64 {
    u64::from_le_bytes(first(&Sha256::digest(text).into()))
}

/// The first epoch of a cluster as a configuration and a machine have it.
pub(crate) fn first_epoch(
    config: &Config,
    entry: &Entry,
    machine: &dyn StateMachine,
) -> Descriptor {
    let mut limits = executor_limits(config).terms();
    limits.push(("memory_max".to_owned(), config.limits.memory_max));
    limits.sort();
    let mut terms = machine.terms();
    if let Ok(Some(layout)) = config.shards() {
        terms.push(("layout".to_owned(), fingerprint(&layout.text())));
    }
    terms.sort();
    let hash_seed = hash_seed(config);
    let members = config.members.iter().enumerate();
    let row = |(row, member): (usize, &crate::Member)| MemberRow {
        node: first_node(config.cluster, row as u64),
        role: MemberRole::Voter,
        peer: member.peer.clone(),
    };
    Descriptor {
        options: (entry.complete)(&config.options),
        semantics: machine.semantics(),
        terms,
        limits,
        members: members.map(row).collect(),
        seed_commitment: commitment(hash_seed, config.cluster),
        hash_seed,
        ..Descriptor::first(config.cluster, &config.protocol, config.durability)
    }
}

/// The remedy for a configuration that differs from the terms of the members.
const REMEDY: &str = "give every member the values that the cluster began with; protocol, \
                      options and durability change while it runs (quintet protocol switch), for \
                      all else save the data (quintet snapshot save) and begin a new cluster with it \
                      (quintet snapshot restore)";

/// The same when the program is another one, which no configuration can change.
const OTHER_PROGRAM: &str = "this program executes commands otherwise than the one that wrote the \
                             data: save the data with the earlier one (quintet snapshot save) and \
                             begin a new cluster with it (quintet snapshot restore)";

/// Whether a configuration is that of the stored epoch.
///
/// # Errors
/// Every difference with both values, and what to do.
pub(crate) fn check_stored(configured: &Descriptor, stored: &Descriptor) -> Result<(), String> {
    // An epoch continues at the level that it began with.
    let mut configured = Descriptor {
        level: stored.level,
        ..configured.clone()
    };
    if stored.number > configured.number {
        // The members have agreed on another protocol, other options or another durability since.
        let same = configured.protocol == stored.protocol
            && configured.options == stored.options
            && configured.durability == stored.durability;
        if !same {
            tracing::warn!(
                epoch = stored.number.0,
                protocol = stored.protocol,
                durability = stored.durability.name(),
                "the members have changed protocol, options or durability since the cluster began: \
                 what the configuration says of them is ignored"
            );
        }
        configured.number = stored.number;
        configured.protocol.clone_from(&stored.protocol);
        configured.options.clone_from(&stored.options);
        configured.durability = stored.durability;
        configured.members.clone_from(&stored.members);
    }
    let differences = configured.differences_in_settings(stored);
    if differences.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = differences
        .iter()
        .map(|it| {
            format!(
                "{}: configured {}, agreed on {}",
                it.name, it.ours, it.theirs
            )
        })
        .collect();
    let remedy = match configured.semantics == stored.semantics {
        true => REMEDY,
        false => OTHER_PROGRAM,
    };
    Err(format!(
        "this configuration is not what the members of the cluster agreed on when it began: {}; \
         {remedy}",
        all.join("; ")
    ))
}

/// Where members are reached: as they have said themselves, or else as the configuration has it for
/// those that it names.
pub(crate) fn addresses(configured: &Descriptor, agreed: &Descriptor, data: &Data) -> Vec<String> {
    let (known, rows) = (
        agreed.clone().with_private_part_of(configured),
        Rows::of(agreed),
    );
    let members = known.members.into_iter().zip(0..).map(|(row, id)| {
        let said = data.address_of(ReplicaId(id), rows.directory(ReplicaId(id)));
        said.cloned().unwrap_or(row.peer)
    });
    members.collect()
}

/// A replica's descriptor for users: options, and limits and terms. Never the hash seed.
pub(crate) fn shown(descriptor: &Descriptor) -> (BTreeMap<String, String>, BTreeMap<String, u64>) {
    let numbers = descriptor.limits.iter().chain(&descriptor.terms);
    (
        descriptor.options.iter().cloned().collect(),
        numbers.cloned().collect(),
    )
}

/// The limits that the executor works by.
pub(crate) fn agreed_limits(config: &Config, descriptor: &Descriptor) -> ExecutorLimits {
    let mut limits = executor_limits(config);
    // Limits that the descriptor does not name keep the value of this build.
    limits.agree(&descriptor.limits);
    limits
}

/// Makes the data directory of a member of a new cluster that begins with a state which is kept,
/// and gives what the header of its snapshot must hold.
///
/// # Errors
/// See [`StartError`].
pub fn begin_with_state(
    config: &Config,
    machine: &dyn StateMachine,
    position: Position,
    digest: u128,
) -> Result<Bytes, StartError> {
    let entry = config.check()?;
    let descriptor = Descriptor {
        base: position,
        base_digest: digest,
        ..first_epoch(config, entry, machine)
    };
    let mut data = Data::open(config)?;
    Ok(data.agree(descriptor, None)?.0.encode())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_of_earlier_level_continues_at_that_level() {
        let configured = Descriptor::first(
            ClusterId(7),
            "multipaxos",
            quintet_replica::Durability::Disk,
        );
        let mut stored = configured.clone();
        stored.level = 1;
        assert_eq!(check_stored(&configured, &stored), Ok(()));
        stored.semantics = 2;
        let refused = check_stored(&configured, &stored).expect_err("another machine");
        assert!(!refused.contains("feature level"), "{refused}");
    }
}

//! The data directory: its replica, the process that uses it, and the replica's incarnation.
//!
//! ```text
//!   lock        held by the running process, holds its process id
//!   identity    cluster, replica, durability, incarnation, boot; written again at every start,
//!   identity-2  twice, one after the other, so that one of them is always whole
//!   epoch       what the members of the cluster have agreed on, and where that began;
//!   epoch-2     twice, as the identity
//!   peers       the highest boot seen of every peer, so that a wiped one is recognised
//!   promises    the two slots of the journal's promises
//!   marks       how far the journal is known to be durable
//!   journal/    segments            snapshots/    the two newest
//!   damaged-N/  what could not be read at boot N, until it has been repaired from the peers
//! ```

mod epoch;

use epoch::read_epoch;
pub use epoch::stored_epoch;
pub(crate) use epoch::{SecondCopy, StoredEpoch, store_epoch};

use crate::{
    Config, StartError, directories::sync_directory, later::Later, terms,
    transports::handshake::Refusal,
};
use quintet_replica::{
    Boot, ClusterId, Descriptor, Durability, Executed, GroupId, Incarnation, ReplicaId, checksum,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions, TryLockError},
    hash::{BuildHasher, RandomState},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Format 1 knew no files `epoch`. It is read; its first start here writes them.
const FORMAT: u32 = 2;

/// 64 unpredictable bits, different at every call.
pub(crate) fn random() -> u64 {
    // Every `RandomState` has keys that come from the operating system.
    RandomState::new().hash_one(std::process::id())
}

/// 32 unpredictable bytes from the operating system.
///
/// # Errors
/// When the operating system has none to give.
pub(crate) fn nonce() -> io::Result<[u8; 32]> {
    let mut nonce = [0; 32];
    let mut filled = 0;
    while filled < nonce.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        match rustix::rand::getrandom(&mut nonce[filled..], flags) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(nonce)
}

/// No peer restarts more often than this between two links: a boot further ahead is a lie or an
/// error, and believing it would keep the true peer out.
const BOOTS_AHEAD_MAX: u64 = 1 << 24;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct IdentityFile {
    format: u32,
    cluster: String,
    node: u16,
    durability: String,
    incarnation: u64,
    boot: u64,
    directory: u64,
    /// Something durable was lost, and what was acknowledged is not all here again.
    #[serde(default)]
    repairing: bool,
    /// The groups that this concerns; all when there is none. An earlier version takes it for all.
    #[serde(default)]
    repairing_groups: Vec<u32>,
    /// The fingerprint of the epoch that is stored here; none until one is.
    #[serde(default)]
    epoch: Option<String>,
}

impl IdentityFile {
    fn is_repairing(&self, group: GroupId) -> bool {
        let of = &self.repairing_groups;
        self.repairing && (of.is_empty() || of.contains(&group.0))
    }
}

/// The peers that were seen, and by whom.
#[derive(Debug, Serialize, Deserialize)]
struct PeersFile {
    cluster: String,
    node: u16,
    peers: BTreeMap<u16, PeerSeen>,
}

/// The permanent knowledge of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PeerSeen {
    /// Drawn when the peer's directory was made.
    pub directory: u64,
    /// The highest boot number that it has told.
    pub boot: u64,
    /// Where it is reached, if it has said so.
    #[serde(default)]
    pub address: Option<String>,
}

/// An open data directory; locked until it is dropped.
#[derive(Debug)]
pub(crate) struct Data {
    /// The pending writes; they are done before the directory is unlocked.
    later: Later,
    path: PathBuf,
    _lock: File,
    /// Drawn when the directory was made.
    pub directory: u64,
    pub incarnation: Incarnation,
    pub boot: Boot,
    /// Nothing was ever written here before.
    pub first_boot: bool,
    /// Acknowledged entries of group 0 may have been lost.
    pub state_lost: bool,
    /// The incarnation is that of a start without some state.
    is_renewed: bool,
    /// An earlier run's snapshots and journal count: it was in an epoch that is kept on disk.
    pub keeps: bool,
    /// The journal is of epochs that are given up.
    pub journal_begins_again: bool,
    /// The data that all members had in memory is given up.
    begins_again: bool,
    identity: IdentityFile,
    peers: BTreeMap<u16, PeerSeen>,
}

/// Why a cluster cannot be begun again.
pub(crate) const BEGUN_AGAIN_ON_DISK: &str = "bootstrap_again: only a cluster with durability 'memory' can be begun again; remove this setting";

/// The findings of [`lock`] about a directory, which it does not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub cluster: ClusterId,
    pub node: ReplicaId,
    pub durability: String,
    pub incarnation: u64,
    pub boot: u64,
    pub repairing: bool,
    /// The flaw of one of the two copies of this.
    pub damaged: Option<String>,
}

/// Locks a directory that is not used and tells whose it is; changes nothing.
///
/// # Errors
/// Why it cannot be looked at, and what to do.
pub(crate) fn look(path: &Path) -> Result<(File, Owner), String> {
    let lock = match File::open(path.join("lock")) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(
                "it is not a replica's data directory (there is no file 'lock' in it)".to_owned(),
            );
        }
        Err(error) => return Err(error.to_string()),
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = fs::read_to_string(path.join("lock")).unwrap_or_default();
            return Err(in_use(&holder));
        }
        Err(TryLockError::Error(error)) => return Err(error.to_string()),
    }
    let found = read_identity(path).map_err(|error| error.to_string())?;
    let Some((identity, damaged)) = found? else {
        return Err(NO_IDENTITY.to_owned());
    };
    if identity.format > FORMAT {
        return Err(newer(identity.format));
    }
    let cluster = u128::from_str_radix(&identity.cluster, 16)
        .map_err(|error| unreadable(&error.to_string()))?;
    let owner = Owner {
        cluster: ClusterId(cluster),
        node: ReplicaId(identity.node),
        durability: match read_epoch(path).map_err(|error| error.to_string())? {
            Ok((Some((epoch, _)), _)) => epoch.durability.name().to_owned(),
            _ => identity.durability,
        },
        incarnation: identity.incarnation,
        boot: identity.boot,
        repairing: identity.repairing,
        damaged,
    };
    Ok((lock, owner))
}

const NO_IDENTITY: &str = "there is no identity file; restore it from a copy, or choose an empty \
                           directory";

fn in_use(holder: &str) -> String {
    format!(
        "it is in use by process {}; stop that process or choose another directory",
        holder.trim()
    )
}

fn unreadable(reason: &str) -> String {
    format!(
        "neither copy of its identity can be read ({reason}): it could count for an incarnation that has \
         not kept its promises. Restore the files 'identity' or 'identity-2' as they were when it \
         last ran, or remove this replica from the cluster and add a new member"
    )
}

/// The two copies of the identity.
const COPIES: [&str; 2] = ["identity", "identity-2"];
/// Reads the identity: `None` when there is none, else with what is wrong with one of its copies.
/// The inner error tells why none of them can be used.
#[expect(
    clippy::type_complexity,
    reason = "each layer is another kind of answer"
)]
fn read_identity(
    path: &Path,
) -> io::Result<Result<Option<(IdentityFile, Option<String>)>, String>> {
    let (mut whole, mut damaged) = (Vec::new(), None);
    for name in COPIES {
        match read_file::<IdentityFile>(&path.join(name))? {
            Some(Ok(identity)) => whole.push(identity),
            Some(Err(reason)) => damaged = Some(format!("{name}: {reason}")),
            None => {}
        }
    }
    if let [one, two] = whole.as_slice()
        && (&one.cluster, one.node, one.directory) != (&two.cluster, two.node, two.directory)
    {
        return Ok(Err(
            "its files 'identity' and 'identity-2' are of different directories; remove \
                       the one that was put there"
                .to_owned(),
        ));
    }
    // A process that died between writing the two copies has done nothing with the newer one, but
    // may not count as less than it. Where they differ in nothing else, a repair has not been noted
    // in both.
    let newest = (whole.into_iter())
        .max_by_key(|identity| (identity.boot, identity.incarnation, identity.repairing));
    Ok(match (newest, damaged) {
        (Some(newest), damaged) => Ok(Some((newest, damaged))),
        (None, Some(reason)) => Err(unreadable(&reason)),
        (None, None) => Ok(None),
    })
}

/// Writes both copies of the identity in place, one after the other: neither a crash nor a full
/// disk leaves less than one whole.
fn write_identity(path: &Path, identity: &IdentityFile) -> io::Result<()> {
    write_copies(path, COPIES, identity)
}

/// Writes two copies of a value in place, one after the other.
fn write_copies<T: Serialize>(path: &Path, names: [&str; 2], value: &T) -> io::Result<()> {
    let text = text_of(value)?;
    names
        .iter()
        .try_for_each(|name| write_copy(path, name, &text))
}

fn write_copy(path: &Path, name: &str, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let file = path.join(name);
    let is_new = !file.exists();
    // The contents are for this user only.
    let file = (options.create(true).truncate(false).write(true).mode(0o600)).open(file)?;
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)?;
    file.sync_all()?;
    if is_new {
        sync_directory(path)?;
    }
    Ok(())
}

/// Whether the replica of this data directory became a member of a running cluster, or is to.
#[must_use]
pub fn has_joined(path: &Path) -> bool {
    matches!(joining(path), Ok(Some(_)))
}

fn newer(format: u32) -> String {
    format!("it is of format {format}, this program knows up to {FORMAT}; start a newer version")
}

/// Of a directory whose replica is to become a member: who it is.
#[derive(Debug, Serialize, Deserialize)]
struct JoiningFile {
    directory: u64,
}

fn joining(path: &Path) -> io::Result<Option<u64>> {
    let file = read_file::<JoiningFile>(&path.join("joining"))?;
    Ok(file.and_then(Result::ok).map(|file| file.directory))
}

/// The directory of a replica that is to become a member, or is one; locked until this is dropped.
pub(crate) struct Joiner {
    _lock: File,
    pub directory: u64,
    /// Its row and its epoch, once it is a member.
    pub member: Option<(ReplicaId, Descriptor)>,
}

/// Makes or finds the directory of a replica that is to become a member.
///
/// # Errors
/// See [`StartError`].
pub(crate) fn join(path: &Path) -> Result<Joiner, StartError> {
    let (failed, refused) = (StartError::failed(path), StartError::refused(path));
    fs::create_dir_all(path).map_err(|error| unwritable(path, error))?;
    let lock = lock(path)?;
    let identity = read_identity(path).map_err(failed)?.map_err(refused)?;
    let stored = read_epoch(path).map_err(failed)?.map_err(refused)?.0;
    let stored = stored.map(|(descriptor, _)| descriptor);
    if let Some((identity, _)) = identity {
        let stored = stored.ok_or_else(|| {
            refused("what its members agreed on cannot be read; start it with its file".to_owned())
        })?;
        return Ok(Joiner {
            _lock: lock,
            directory: identity.directory,
            member: Some((ReplicaId(identity.node), stored)),
        });
    }
    if !never_used(path).map_err(failed)? {
        return Err(refused(NO_IDENTITY.to_owned()));
    }
    let directory = match joining(path).map_err(failed)? {
        Some(directory) => directory,
        None => {
            let directory = random();
            replace_file(path, "joining", &JoiningFile { directory }).map_err(failed)?;
            directory
        }
    };
    let member = stored.and_then(|stored| Some((stored.row_of(directory)?, stored)));
    Ok(Joiner {
        _lock: lock,
        directory,
        member,
    })
}

/// Writes down what a new member is told: its epoch, and which directories the others have.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn store_member(
    path: &Path,
    (id, descriptor, base): (ReplicaId, &Descriptor, Executed),
    seen: &[(u16, u64, u64)],
) -> io::Result<()> {
    let others = seen.iter().filter(|(row, ..)| *row != id.0);
    let peers = others.map(|(row, directory, boot)| {
        let (directory, boot) = (*directory, *boot);
        let seen = PeerSeen {
            directory,
            boot,
            address: None,
        };
        (*row, seen)
    });
    let file = PeersFile {
        cluster: descriptor.cluster.to_string(),
        node: id.0,
        peers: peers.collect(),
    };
    replace_file(path, "peers", &file)?;
    store_epoch(path, descriptor, base)
}

/// Whether nothing that a replica could rely on was ever written here: a first start may have
/// been interrupted.
fn never_used(path: &Path) -> io::Result<bool> {
    for name in ["journal", "snapshots"] {
        match fs::read_dir(path.join(name)) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    for name in ["promises", "marks"] {
        match fs::read(path.join(name)) {
            Ok(bytes) if bytes.iter().all(|byte| *byte == 0) => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// A value with its checksum.
fn text_of<T: Serialize>(value: &T) -> io::Result<String> {
    let body = serde_json::to_string(value)?;
    Ok(format!(
        "{body}\ncrc32c {:08x}\n",
        checksum(body.as_bytes())
    ))
}

/// Replaces a small file so that a crash leaves the old or the new one, whole.
fn replace_file<T: Serialize>(directory: &Path, name: &str, value: &T) -> io::Result<()> {
    let text = text_of(value)?;
    let temporary = directory.join(format!("{name}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, directory.join(name))?;
    sync_directory(directory)
}

/// Reads what [`text_of`] gave; `None` when the file does not exist.
fn read_file<T: DeserializeOwned>(path: &Path) -> io::Result<Option<Result<T, String>>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Ok(Some(Err("it is not text".to_owned())));
        }
        Err(error) => return Err(error),
    };
    let Some((body, rest)) = text.split_once('\n') else {
        return Ok(Some(Err("it ends early".to_owned())));
    };
    if rest != format!("crc32c {:08x}\n", checksum(body.as_bytes())) {
        return Ok(Some(Err("its checksum is wrong".to_owned())));
    }
    Ok(Some(
        serde_json::from_str(body).map_err(|error| error.to_string()),
    ))
}

impl Data {
    /// Opens or makes the directory of `config` and begins a new boot.
    pub fn open(config: &Config) -> Result<Self, StartError> {
        let path = &config.data;
        let (failed, refused) = (StartError::failed(path), StartError::refused(path));
        fs::create_dir_all(path).map_err(|error| unwritable(path, error))?;
        let lock = lock(path)?;
        let found = read_identity(path).map_err(failed)?;
        // The members may have agreed on another durability since the configuration was written.
        let (stored, _) = read_epoch(path).map_err(failed)?.map_err(refused)?;
        let epoch = stored.as_ref().map(|(epoch, _)| epoch);
        let durability = epoch.map_or(config.durability, |epoch| epoch.durability);
        let mut first_boot = false;
        let mut identity = match found.map_err(refused)? {
            Some((identity, damaged)) => {
                check(&identity, config, stored.as_ref()).map_err(refused)?;
                if let Some(damaged) = damaged {
                    tracing::warn!(
                        damaged,
                        "a copy of the identity was repaired from the other"
                    );
                }
                identity
            }
            None => {
                if !never_used(path).map_err(failed)? {
                    return Err(refused(NO_IDENTITY.to_owned()));
                }
                first_boot = true;
                IdentityFile {
                    format: FORMAT,
                    cluster: config.cluster.to_string(),
                    node: config.id.0,
                    durability: config.durability.name().to_owned(),
                    incarnation: 0,
                    boot: 0,
                    directory: joining(path).map_err(failed)?.unwrap_or_else(random),
                    repairing: false,
                    repairing_groups: Vec::new(),
                    epoch: None,
                }
            }
        };
        identity.format = FORMAT;
        identity.boot += 1;
        let memory = durability == Durability::Memory;
        // Shards in memory begin again, and nothing else does.
        if config.bootstrap_again && !memory && !config.has_shards_in_memory() {
            return Err(refused(BEGUN_AGAIN_ON_DISK.to_owned()));
        }
        let is_renewed = memory || identity.repairing;
        identity.incarnation += u64::from(first_boot || is_renewed);
        let peers = match read_file::<PeersFile>(&path.join("peers")).map_err(failed)? {
            Some(Ok(file)) if (&file.cluster, file.node) == (&identity.cluster, identity.node) => {
                file.peers
            }
            Some(Ok(_)) => {
                return Err(refused(
                    "its file 'peers' belongs to another replica; was it copied?".to_owned(),
                ));
            }
            // Only a guard against operators' mistakes is lost with it.
            Some(Err(_)) | None => BTreeMap::new(),
        };
        for name in ["journal", "snapshots"] {
            fs::create_dir_all(path.join(name)).map_err(failed)?;
        }
        if first_boot {
            // Before anything is relied upon: later, a file that is missing has been lost.
            crate::journal_files::reserve(path).map_err(failed)?;
        }
        write_identity(path, &identity).map_err(failed)?;
        if let Some(parent) = path.parent().filter(|_| first_boot) {
            let parent = if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            };
            sync_directory(parent).map_err(failed)?;
        }
        Ok(Self {
            later: Later::default(),
            path: path.clone(),
            _lock: lock,
            directory: identity.directory,
            incarnation: Incarnation(identity.incarnation),
            boot: Boot(identity.boot),
            first_boot,
            state_lost: (memory && !first_boot && !config.bootstrap_again)
                || identity.is_repairing(GroupId(0)),
            is_renewed: is_renewed && !first_boot,
            keeps: !memory,
            journal_begins_again: false,
            begins_again: config.bootstrap_again && memory,
            identity,
            peers,
        })
    }

    /// Compares what this replica is configured with to what is stored here, and gives that; at
    /// the first start, and when a cluster in memory is begun again, it is stored. `saved` is the
    /// epoch of the newest snapshot: a crash may have come before its file was written.
    ///
    /// # Errors
    /// [`StartError::DataRefused`] with every difference, or when what is stored cannot be read.
    pub fn agree(
        &mut self,
        configured: Descriptor,
        saved: Option<StoredEpoch>,
    ) -> Result<StoredEpoch, StartError> {
        let path = self.path.clone();
        let (failed, refused) = (StartError::failed(&path), StartError::refused(&path));
        let (mut stored, mut damaged) = read_epoch(&path).map_err(failed)?.map_err(refused)?;
        if let (Some(file), Some(saved)) = (&stored, saved)
            && saved.0.number > file.0.number
        {
            damaged = Some("an epoch has begun since".to_owned());
            stored = Some(saved);
        }
        let first = Executed::default();
        let on_file = stored.clone();
        let agreed = match (stored, &self.identity.epoch) {
            (Some((stored, base)), _) => match terms::check_stored(&configured, &stored) {
                // Of later epochs nothing is left where all memories are given up.
                Ok(()) if self.begins_again && stored.number > configured.number => {
                    self.journal_begins_again = true;
                    crate::journal_files::forget_promises(&path).map_err(failed)?;
                    (configured, first)
                }
                Ok(()) => (stored, base),
                // Nothing is left of what was executed by the earlier ones.
                Err(differences) if self.begins_again => {
                    tracing::warn!(differences, "the cluster begins again with other settings");
                    crate::journal_files::forget_promises(&path).map_err(failed)?;
                    (configured, first)
                }
                Err(differences) => return Err(refused(differences)),
            },
            (None, Some(_)) => {
                let reason = damaged.unwrap_or_else(|| "they are missing".to_owned());
                return Err(refused(format!(
                    "what the members agreed on cannot be read from 'epoch' or 'epoch-2': \
                     {reason}. Copy the file 'epoch' of the member with the highest epoch to both, or restore them \
                     from a backup"
                )));
            }
            (None, None) => (configured, first),
        };
        let rows = terms::Rows::of(&agreed.0);
        let expected = rows.directory(ReplicaId(self.identity.node));
        if expected.is_some_and(|expected| expected != self.identity.directory) {
            return Err(refused(
                "its file 'epoch' names another directory in this replica's place; was it copied?"
                    .to_owned(),
            ));
        }
        let fingerprint = agreed.0.fingerprint().to_string();
        if let (Some(damaged), Some(_)) = (&damaged, &self.identity.epoch) {
            tracing::warn!(damaged, "a copy of the epoch's descriptor was repaired");
        }
        // First the files, then the identity's word that they are there.
        let other = on_file.as_ref() != Some(&agreed);
        if other || damaged.is_some() || self.identity.epoch.as_ref() != Some(&fingerprint) {
            store_epoch(&path, &agreed.0, agreed.1).map_err(failed)?;
            self.identity.epoch = Some(fingerprint);
            write_identity(&path, &self.identity).map_err(failed)?;
        }
        Ok(agreed)
    }

    /// Something durable of these groups has been lost: from now on, whatever happens, they start as
    /// groups that have lost their state, until [`Self::repaired`]. The replica is in a new
    /// incarnation, in all its groups; those that have their state may be in it, too.
    pub fn begin_repair(&mut self, groups: &[GroupId]) -> io::Result<()> {
        if !core::mem::replace(&mut self.is_renewed, true) {
            self.identity.incarnation += 1;
        }
        let identity = &mut self.identity;
        if !identity.repairing || !identity.repairing_groups.is_empty() {
            let all = groups.iter().map(|group| group.0);
            identity.repairing_groups.extend(all);
            identity.repairing_groups.sort_unstable();
            identity.repairing_groups.dedup();
        }
        identity.repairing = true;
        write_identity(&self.path, &self.identity)?;
        self.incarnation = Incarnation(self.identity.incarnation);
        self.state_lost |= self.is_repairing(GroupId(0));
        Ok(())
    }

    /// The directories that are known, with the boots they were last seen in, this one's too.
    pub fn seen(&self) -> Vec<(u16, u64, u64)> {
        let peers = self.peers.iter();
        let others = peers.map(|(row, seen)| (*row, seen.directory, seen.boot));
        let this = (self.identity.node, self.directory, self.boot.0);
        others.chain([this]).collect()
    }

    /// Where a member has said that it is reached; `directory` is that of the one that must have the
    /// row, where it is known.
    pub fn address_of(&self, id: ReplicaId, directory: Option<u64>) -> Option<&String> {
        let seen = self.peers.get(&id.0)?;
        let is_it = directory.is_none_or(|directory| directory == seen.directory);
        seen.address.as_ref().filter(|_| is_it)
    }

    /// Where damaged files are put.
    pub fn aside(&self) -> PathBuf {
        self.path.join(format!("damaged-{}", self.boot.0))
    }

    /// No group lacks anything: a damaged journal that was set aside is of no use.
    pub fn drop_damaged_journals(&self) {
        for damaged in damaged(&self.path).unwrap_or_default() {
            let _ = fs::remove_dir_all(damaged.join("journal"));
            // Unless it holds something else.
            let _ = fs::remove_dir(damaged);
        }
    }

    /// Whether this is so of some group.
    pub const fn repairing(&self) -> bool {
        self.identity.repairing
    }

    /// Whether something durable of this group was lost and is not here again.
    pub fn is_repairing(&self, group: GroupId) -> bool {
        self.identity.is_repairing(group)
    }

    /// All that may have been acknowledged is durable here again, or kept by others, but for these
    /// groups. That is written down before long.
    pub fn repaired_but(&mut self, waiting: &[GroupId]) {
        let identity = &mut self.identity;
        let waiting: Vec<u32> = waiting.iter().map(|group| group.0).collect();
        if !identity.repairing || !waiting.is_empty() && identity.repairing_groups == waiting {
            return;
        }
        identity.repairing = !waiting.is_empty();
        identity.repairing_groups = waiting;
        let (path, identity) = (self.path.clone(), self.identity.clone());
        self.later.run("repair", move || {
            if let Err(error) = note_repair(&path, &identity) {
                // It counts as one that lost its state, which is safe; the next start repairs it again.
                tracing::warn!(%error, "cannot note that the repair is done");
            }
        });
    }

    /// The pending writes are done.
    #[cfg(test)]
    pub fn finish_writing(&mut self) {
        drop(core::mem::take(&mut self.later));
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks what a peer tells of itself against what it told before, and remembers it; durably
    /// before long, because no link should wait for a disk. `replaces`: the directory of the
    /// one that has this row in place of another.
    ///
    /// # Errors
    /// The difference from the peer.
    pub fn check_peer(
        &mut self,
        id: ReplicaId,
        mut told: PeerSeen,
        replaces: Option<u64>,
    ) -> Result<(), Refusal> {
        if replaces == Some(told.directory) {
            // The entry is that of the node that it replaced.
            self.peers
                .retain(|row, seen| *row != id.0 || seen.directory == told.directory);
        }
        let fatal = |reason| {
            Err(Refusal {
                fatal: true,
                reason,
            })
        };
        match self.peers.get(&id.0) {
            Some(seen) if seen.directory != told.directory => {
                return fatal(format!(
                    "this node id has voted before: replica {} was seen with another data \
                     directory; add it as a new member",
                    id.0
                ));
            }
            Some(seen) if seen.boot > told.boot => {
                return fatal(format!(
                    "this node id has voted before: replica {} was seen in boot {}, and its data \
                     directory is an older copy, of boot {}; add it as a new member",
                    id.0, seen.boot, told.boot
                ));
            }
            Some(seen) => {
                // One that says nothing of its address is where it was.
                told.address = told.address.or_else(|| seen.address.clone());
                if *seen == told {
                    return Ok(());
                }
            }
            None => {}
        }
        let seen = self.peers.get(&id.0).map_or(0, |seen| seen.boot);
        if told.boot > seen.saturating_add(BOOTS_AHEAD_MAX) {
            return Err(Refusal {
                fatal: false,
                reason: format!(
                    "the boot of replica {} is too far ahead to be true: it was {seen}, and is \
                     said to be {}",
                    id.0, told.boot
                ),
            });
        }
        self.peers.insert(id.0, told);
        let file = PeersFile {
            cluster: self.identity.cluster.clone(),
            node: self.identity.node,
            peers: self.peers.clone(),
        };
        let path = self.path.clone();
        self.later.run("peers", move || {
            if let Err(error) = replace_file(&path, "peers", &file) {
                // A guard against operators' mistakes is no reason to go without peers.
                tracing::warn!(%error, "cannot record the incarnations of the peers");
            }
        });
        Ok(())
    }
}

fn note_repair(path: &Path, identity: &IdentityFile) -> io::Result<()> {
    write_identity(path, identity)?;
    if !identity.repairing {
        for damaged in damaged(path)? {
            // It is of no use any more; what cannot be deleted takes space, no more.
            let _ = fs::remove_dir_all(damaged);
        }
    }
    Ok(())
}

/// The directories of damaged files.
fn damaged(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
    let is_one = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("damaged-")
    };
    let those = entries.iter().filter(|entry| is_one(entry));
    Ok(those.map(fs::DirEntry::path).collect())
}

/// A directory that cannot be had at all is a mistake in a setting, not a failure of the disk.
fn unwritable(path: &Path, error: io::Error) -> StartError {
    match error.kind() {
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::AlreadyExists
        | io::ErrorKind::ReadOnlyFilesystem => StartError::Config(format!(
            "data: {} cannot be written: {error}; choose a directory that this user may write",
            path.display()
        )),
        _ => StartError::failed(path)(error),
    }
}

fn lock(path: &Path) -> Result<File, StartError> {
    let failed = StartError::failed(path);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path.join("lock"))
        .map_err(|error| unwritable(path, error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            return Err(StartError::refused(path)(in_use(&holder)));
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    // Over what is there, which takes no room; whose lock it is only helps people.
    let holder = format!("{:<10}\n", std::process::id());
    let written = file.write_all_at(holder.as_bytes(), 0);
    if let Err(error) = written.and_then(|()| file.set_len(holder.len() as u64)) {
        tracing::debug!(%error, "cannot note who holds the lock");
    }
    Ok(file)
}

fn check(
    identity: &IdentityFile,
    config: &Config,
    stored: Option<&StoredEpoch>,
) -> Result<(), String> {
    if identity.format > FORMAT {
        return Err(newer(identity.format));
    }
    let ours = config.cluster;
    let theirs = u128::from_str_radix(&identity.cluster, 16).map(ClusterId);
    if theirs != Ok(ours) {
        return Err(format!(
            "it belongs to another cluster: ours {ours}, its {}; choose the right directory or \
             cluster id",
            identity.cluster
        ));
    }
    if identity.node != config.id.0 {
        return Err(format!(
            "it belongs to replica {}, this is replica {}; choose the right directory or id",
            identity.node, config.id.0
        ));
    }
    let is_first = stored.is_none_or(|(epoch, _)| epoch.number.0 == 1);
    if is_first && identity.durability != config.durability.name() {
        return Err(format!(
            "it was made with durability '{}', not '{}'; choose that durability or another \
             directory",
            identity.durability,
            config.durability.name()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Member;

    fn config(path: &Path, durability: Durability) -> Config {
        let members = vec![Member {
            peer: "127.0.0.1:1".to_owned(),
        }];
        let mut config = Config::new(ClusterId(5), ReplicaId(0), members, path.join("data"));
        config.durability = durability;
        config
    }

    fn reason(result: Result<Data, StartError>) -> String {
        let error = result.expect_err("refused");
        assert_eq!(error.exit_code(), 7);
        error.to_string()
    }

    #[test]
    fn restart_keeps_incarnation_on_disk_and_raises_it_in_memory() {
        let directory = tempfile::tempdir().expect("a directory");
        for (durability, second) in [(Durability::Disk, 1), (Durability::Memory, 2)] {
            let mut config = config(&directory.path().join(durability.name()), durability);
            let first = Data::open(&config).expect("opens");
            assert!(first.first_boot && !first.state_lost);
            assert_eq!((first.incarnation, first.boot), (Incarnation(1), Boot(1)));
            let made = first.directory;
            drop(first);
            let again = Data::open(&config).expect("opens");
            assert_eq!(
                (again.incarnation, again.boot),
                (Incarnation(second), Boot(2))
            );
            assert_eq!(again.directory, made);
            assert!(!again.first_boot);
            assert_eq!(again.state_lost, durability == Durability::Memory);
            drop(again);
            config.bootstrap_again = true;
            match Data::open(&config) {
                Ok(again) => assert!(!again.state_lost && durability == Durability::Memory),
                refused => assert!(reason(refused).contains("bootstrap_again")),
            }
        }
    }

    #[test]
    fn directory_in_use_foreign_or_newer_is_refused_with_what_to_do() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = config(directory.path(), Durability::Disk);
        let open = Data::open(&config).expect("opens");
        let text = reason(Data::open(&config));
        assert!(
            text.contains(&format!("in use by process {}", std::process::id())),
            "{text}"
        );
        drop(open);
        let foreign = Config {
            cluster: ClusterId(6),
            ..config.clone()
        };
        assert!(reason(Data::open(&foreign)).contains("another cluster"));
        let foreign = Config {
            id: ReplicaId(1),
            ..config.clone()
        };
        assert!(reason(Data::open(&foreign)).contains("belongs to replica 0"));
        let foreign = Config {
            durability: Durability::Memory,
            ..config.clone()
        };
        assert!(reason(Data::open(&foreign)).contains("durability 'disk'"));
        let files = COPIES.map(|name| config.data.join(name));
        let text = fs::read_to_string(&files[0]).expect("there");
        for file in &files {
            fs::write(file, text.replace("\"boot\":1", "\"boot\":9")).expect("writes");
        }
        let refusal = reason(Data::open(&config));
        assert!(refusal.contains("neither copy") && refusal.contains("checksum is wrong"));
        let mut newer: IdentityFile =
            serde_json::from_str(text.lines().next().expect("a line")).expect("reads");
        newer.format = FORMAT + 1;
        write_identity(&config.data, &newer).expect("writes");
        assert!(reason(Data::open(&config)).contains("newer version"));
        // As long as nothing else was written, an interrupted first start may be repeated.
        let remove = || {
            files
                .iter()
                .for_each(|file| fs::remove_file(file).expect("there"))
        };
        remove();
        assert!(Data::open(&config).expect("opens").first_boot);
        remove();
        fs::write(config.data.join("promises"), b"mine").expect("writes");
        assert!(reason(Data::open(&config)).contains("no identity file"));
    }

    #[test]
    fn repair_of_a_group_leaves_others_with_their_state() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = config(directory.path(), Durability::Disk);
        drop(Data::open(&config).expect("opens"));
        let mut data = Data::open(&config).expect("opens");
        data.begin_repair(&[GroupId(3)]).expect("writes");
        let of = |data: &Data| [0, 3, 5].map(|group| data.is_repairing(GroupId(group)));
        assert_eq!((of(&data), data.state_lost), ([false, true, false], false));
        assert_eq!(data.incarnation, Incarnation(2));
        drop(data);
        let mut data = Data::open(&config).expect("opens");
        assert_eq!((of(&data), data.state_lost), ([false, true, false], false));
        assert_eq!(data.incarnation, Incarnation(3));
        data.begin_repair(&[GroupId(0), GroupId(5)])
            .expect("writes");
        assert_eq!((of(&data), data.state_lost), ([true; 3], true));
        assert_eq!(data.incarnation, Incarnation(3));
        data.repaired_but(&[GroupId(3)]);
        assert_eq!(of(&data), [false, true, false]);
        data.finish_writing();
        drop(data);
        let mut data = Data::open(&config).expect("opens");
        assert_eq!((of(&data), data.state_lost), ([false, true, false], false));
        assert_eq!(data.incarnation, Incarnation(4));
        data.repaired_but(&[]);
        assert_eq!(of(&data), [false; 3]);
        data.finish_writing();
        drop(data);
        let data = Data::open(&config).expect("opens");
        assert_eq!((of(&data), data.incarnation), ([false; 3], Incarnation(4)));
    }

    #[test]
    fn one_intact_identity_suffices_and_incarnations_are_unique() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = config(directory.path(), Durability::Memory);
        let files = COPIES.map(|name| config.data.join(name));
        let mut incarnations = 0;
        let mut open = || {
            incarnations += 1;
            let data = Data::open(&config).expect("opens");
            assert_eq!(
                (data.boot, data.incarnation),
                (Boot(incarnations), Incarnation(incarnations))
            );
        };
        open();
        for file in &files {
            // Damaged, cut off in the middle of being written, lost, or of an earlier program.
            let text = fs::read_to_string(file).expect("there");
            fs::write(file, text.replace("memory", "menory")).expect("writes");
            open();
            fs::write(file, &text[..40]).expect("writes");
            open();
            fs::write(file, format!("{text} ")).expect("writes");
            open();
            fs::remove_file(file).expect("there");
            open();
            // The process died between writing the two: the other one is an incarnation behind.
            let text = fs::read_to_string(file).expect("there");
            open();
            fs::write(file, text).expect("writes");
            open();
        }
        let mut foreign: IdentityFile = read_file(&files[1])
            .expect("reads")
            .expect("there")
            .expect("whole");
        foreign.directory += 1;
        fs::write(&files[1], text_of(&foreign).expect("written")).expect("writes");
        assert!(reason(Data::open(&config)).contains("different directories"));
    }

    #[test]
    fn replica_with_losses_starts_without_state_until_repaired() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = config(directory.path(), Durability::Disk);
        let mut data = Data::open(&config).expect("opens");
        data.begin_repair(&[GroupId(0)]).expect("writes");
        assert!(data.state_lost && data.repairing());
        assert_eq!(data.incarnation, Incarnation(2));
        fs::create_dir(data.aside()).expect("made");
        drop(data);
        // The process dies in the middle: another incarnation that counts for nothing yet.
        let mut data = Data::open(&config).expect("opens");
        assert!(data.state_lost && data.repairing() && !data.first_boot);
        assert_eq!(data.incarnation, Incarnation(3));
        data.begin_repair(&[GroupId(0)]).expect("writes");
        assert_eq!(data.incarnation, Incarnation(3));
        data.repaired_but(&[]);
        drop(data);
        let data = Data::open(&config).expect("opens");
        assert!(!data.state_lost && !data.repairing());
        assert_eq!(data.incarnation, Incarnation(3));
        assert!(!config.data.join("damaged-1").exists());
    }

    #[test]
    fn peer_with_other_or_older_directory_is_rejected() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = config(directory.path(), Durability::Disk);
        let mut data = Data::open(&config).expect("opens");
        let seen = |directory, boot| PeerSeen {
            directory,
            boot,
            address: None,
        };
        assert_eq!(data.check_peer(ReplicaId(2), seen(11, 4), None), Ok(()));
        drop(data);
        let mut data = Data::open(&config).expect("opens");
        assert_eq!(data.check_peer(ReplicaId(2), seen(11, 5), None), Ok(()));
        for (told, part) in [(seen(12, 1), "voted before"), (seen(11, 4), "older copy")] {
            let error = data
                .check_peer(ReplicaId(2), told, None)
                .expect_err("refused");
            assert!(error.fatal && error.reason.contains(part), "{error:?}");
        }
    }

    #[test]
    fn peer_boot_too_far_ahead_is_refused_and_not_stored() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut data = Data::open(&config(directory.path(), Durability::Disk)).expect("opens");
        let seen = |boot| PeerSeen {
            directory: 11,
            boot,
            address: None,
        };
        for boot in [u64::MAX, BOOTS_AHEAD_MAX + 1] {
            let refusal = data
                .check_peer(ReplicaId(2), seen(boot), None)
                .expect_err("refused");
            assert!(!refusal.fatal && refusal.reason.contains("too far ahead"));
        }
        assert_eq!(data.check_peer(ReplicaId(2), seen(4), None), Ok(()));
        assert!(data.check_peer(ReplicaId(2), seen(u64::MAX), None).is_err());
        assert_eq!(data.check_peer(ReplicaId(2), seen(5), None), Ok(()));
    }
}

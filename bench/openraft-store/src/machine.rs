//! The values, and snapshots of them.
//!
//! ```text
//!   committed entries ──apply──► values (in memory) ──build──► snapshot (a file, fsynced)
//! ```

use crate::{Failure, Types};
use bytes::Bytes;
use openraft::{
    BasicNode, Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot,
    SnapshotMeta, StorageError, StorageIOError, StoredMembership, storage::RaftStateMachine,
};
use std::{
    collections::HashMap,
    fs::{self, File},
    io::{Cursor, Write},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

/// All keys with their values; readers share it with the machine.
pub type Values = Arc<RwLock<HashMap<Bytes, Bytes>>>;

type Meta = SnapshotMeta<u64, BasicNode>;

/// The newest snapshot, and its file in durable members.
#[derive(Clone, Default)]
struct Newest {
    kept: Arc<RwLock<Option<(Meta, Vec<u8>)>>>,
    directory: Option<PathBuf>,
}

/// See the module.
pub struct Machine {
    values: Values,
    applied: Option<LogId<u64>>,
    membership: StoredMembership<u64, BasicNode>,
    newest: Newest,
}

/// The values as they were when it was made.
pub struct Builder {
    values: HashMap<Bytes, Bytes>,
    meta: Meta,
    newest: Newest,
}

const FILE: &str = "snapshot";

/// Replaces a file so that a crash leaves the old one or the new one.
pub fn replace(directory: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = directory.join(format!("{name}.new"));
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, directory.join(name))?;
    File::open(directory)?.sync_all()
}

impl Newest {
    fn save(&self, meta: Meta, bytes: Vec<u8>) -> Result<(), StorageError<u64>> {
        let failed = |error: std::io::Error| StorageIOError::write_snapshot(None, &error);
        let current = (meta, bytes);
        if let Some(directory) = &self.directory {
            let file = postcard::to_stdvec(&current).map_err(std::io::Error::other);
            let saved = file.and_then(|file| replace(directory, FILE, &file));
            saved.map_err(failed)?;
        }
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        *kept = Some(current);
        Ok(())
    }

    fn get(&self) -> Option<Snapshot<Types>> {
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
        let (meta, bytes) = kept.clone()?;
        let snapshot = Box::new(Cursor::new(bytes));
        Some(Snapshot { meta, snapshot })
    }
}

impl Machine {
    /// As the last snapshot has it.
    pub fn open(directory: Option<PathBuf>) -> Result<Self, Failure> {
        let file = directory.as_ref().map(|path| path.join(FILE));
        let mut machine = Self {
            values: Values::default(),
            applied: None,
            membership: StoredMembership::default(),
            newest: Newest {
                kept: Arc::default(),
                directory,
            },
        };
        if let Some(file) = file.filter(|file| file.exists()) {
            let (meta, bytes): (Meta, Vec<u8>) = postcard::from_bytes(&fs::read(file)?)?;
            machine.become_as_in(&meta, &bytes)?;
            machine.newest.save(meta, bytes)?;
        }
        Ok(machine)
    }

    /// The values that readers see.
    pub fn values(&self) -> Values {
        Arc::clone(&self.values)
    }

    fn become_as_in(&mut self, meta: &Meta, bytes: &[u8]) -> Result<(), postcard::Error> {
        let values = postcard::from_bytes(bytes)?;
        *self.values.write().unwrap_or_else(PoisonError::into_inner) = values;
        self.applied = meta.last_log_id;
        self.membership = meta.last_membership.clone();
        Ok(())
    }
}

impl RaftSnapshotBuilder<Types> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<u64>> {
        let failed = |error| StorageIOError::write_snapshot(None, &std::io::Error::other(error));
        let (values, meta, newest) = (
            std::mem::take(&mut self.values),
            self.meta.clone(),
            self.newest.clone(),
        );
        // Off the threads that serve.
        let saved = tokio::task::spawn_blocking(move || {
            let bytes = postcard::to_stdvec(&values).map_err(failed)?;
            newest.save(meta, bytes)
        });
        let saved = saved.await;
        saved.map_err(|error| StorageIOError::write_snapshot(None, &error))??;
        let nothing = std::io::Error::other("the snapshot is gone");
        let missing = || StorageIOError::read_snapshot(None, &nothing).into();
        self.newest.get().ok_or_else(missing)
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>), StorageError<u64>> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut answers = Vec::new();
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            self.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(batch) => {
                    for (key, value) in batch.0.iter() {
                        values.insert(key.clone(), value.clone());
                    }
                }
                EntryPayload::Membership(members) => {
                    self.membership = StoredMembership::new(Some(entry.log_id), members);
                }
            }
            answers.push(());
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        let index = self.applied.map_or(0, |id| id.index);
        Builder {
            values: values.clone(),
            meta: Meta {
                last_log_id: self.applied,
                last_membership: self.membership.clone(),
                snapshot_id: index.to_string(),
            },
            newest: self.newest.clone(),
        }
    }

    async fn begin_receiving_snapshot(
        &mut self,
    ) -> Result<Box<Cursor<Vec<u8>>>, StorageError<u64>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &Meta,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError<u64>> {
        let bytes = snapshot.into_inner();
        let read = self.become_as_in(meta, &bytes);
        read.map_err(|error| {
            let error = std::io::Error::other(error);
            StorageIOError::read_snapshot(Some(meta.signature()), &error)
        })?;
        self.newest.save(meta.clone(), bytes)
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError<u64>> {
        Ok(self.newest.get())
    }
}

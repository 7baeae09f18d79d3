//! Looks through the snapshots of a data directory at a start.

use crate::{
    directories::sync_directory,
    kept::Kept,
    snapshots::{Flaw, epoch_of, list, name, verify},
};
use quintet_replica::{ClusterId, EpochNumber};
use std::{fs, io, path::Path};

/// The data on which a start can rely.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The newest one that can be read.
    pub good: Option<Kept>,
    /// Newer ones that cannot, and why.
    pub bad: Vec<(Kept, String)>,
}

impl Survey {
    /// Looks through `directory`, newest first. Files of an earlier epoch cannot be relied on, nor
    /// bridges into a later one. Without an epoch all count.
    ///
    /// # Errors
    /// The inner error tells of a file that belongs elsewhere.
    pub fn of(
        directory: &Path,
        cluster: ClusterId,
        epoch: Option<EpochNumber>,
    ) -> io::Result<Result<Self, String>> {
        let mut survey = Self::default();
        for kept in list(directory)?.into_iter().rev() {
            let of = epoch.and(epoch_of(directory, &kept));
            match verify(directory, &kept, cluster)? {
                None if of < epoch => break,
                None if of > epoch => {}
                None => {
                    survey.good = Some(kept);
                    break;
                }
                Some(Flaw::Foreign(reason)) => return Ok(Err(reason)),
                Some(Flaw::Damaged(reason)) => survey.bad.push((kept, reason)),
            }
        }
        Ok(Ok(survey))
    }

    /// Why the good snapshot, or the beginning, and the log are not all that there was. `complete`:
    /// the log goes back to the beginning.
    pub fn lost(&self, complete: bool) -> Option<String> {
        let gap = self.bad.iter().find(|(kept, _)| kept.is_fetched());
        if let Some((_, reason)) = gap {
            return Some(reason.clone());
        }
        if self.good.is_some() || complete {
            return None;
        }
        Some(match self.bad.first() {
            Some((_, reason)) => reason.clone(),
            None => "the snapshot that the journal continues from is missing".to_owned(),
        })
    }

    /// Moves the bad ones out of the way.
    pub fn set_aside(&self, directory: &Path, aside: &Path) -> io::Result<()> {
        move_aside(self.bad.iter().map(|(kept, _)| *kept), directory, aside)
    }

    /// Moves those that are older than the good one out of the way, before the journal is begun
    /// again: the log that led from them to the good one goes with it, so that they could never
    /// stand in for it.
    pub fn set_older_aside(&self, directory: &Path, aside: &Path) -> io::Result<()> {
        let Some(good) = self.good else {
            return Ok(());
        };
        let older = list(directory)?.into_iter();
        move_aside(
            older.filter(|kept| kept.info.id < good.info.id),
            directory,
            aside,
        )
    }
}

fn move_aside(kept: impl Iterator<Item = Kept>, directory: &Path, aside: &Path) -> io::Result<()> {
    let mut kept = kept.peekable();
    if kept.peek().is_none() {
        return Ok(());
    }
    fs::create_dir_all(aside)?;
    for kept in kept {
        let name = name(kept.info.id, kept.origin);
        fs::rename(directory.join(&name), aside.join(&name))?;
    }
    sync_directory(aside)?;
    sync_directory(directory)
}

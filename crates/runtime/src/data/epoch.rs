//! The files in which a replica has the epoch that it is in.

use super::{
    Deserialize, FORMAT, Path, Serialize, io, newer, read_file, text_of, write_copies, write_copy,
};
use quintet_replica::{Descriptor, DescriptorError, Executed, Position, Slot};
use std::thread::JoinHandle;

/// The two copies of the epoch's descriptor.
const EPOCH_COPIES: [&str; 2] = ["epoch", "epoch-2"];

/// The epoch's descriptor, in hexadecimal digits.
#[derive(Debug, Serialize, Deserialize)]
struct EpochFile {
    format: u32,
    fingerprint: String,
    descriptor: String,
    /// The slot and the position at which it began; nothing in a cluster's first epoch.
    #[serde(default)]
    base: (u64, u64),
}

/// An epoch that a replica is in, and where it began.
pub(crate) type StoredEpoch = (Descriptor, Executed);

fn epoch_file(descriptor: &Descriptor, base: Executed) -> EpochFile {
    EpochFile {
        format: FORMAT,
        fingerprint: descriptor.fingerprint().to_string(),
        descriptor: hex(&descriptor.encode()),
        base: (base.slot.0, base.position.0),
    }
}

/// Writes down, durably, that the replica of this directory is in this epoch.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn store_epoch(path: &Path, descriptor: &Descriptor, base: Executed) -> io::Result<()> {
    let [first, second] = EPOCH_COPIES;
    // The copy that is newer, and whole, is written over last.
    let names = match copy_number(path, first) > copy_number(path, second) {
        true => [second, first],
        false => [first, second],
    };
    write_copies(path, names, &epoch_file(descriptor, base))
}

/// The epoch of a copy that is whole.
fn copy_number(path: &Path, name: &str) -> Option<u64> {
    let file = read_file::<EpochFile>(&path.join(name)).ok()??.ok()?;
    epoch_of(&file)
        .ok()
        .map(|(descriptor, _)| descriptor.number.0)
}

/// The second copy of the stored epoch. An epoch begins without waiting for it.
#[derive(Debug, Default)]
pub(crate) struct SecondCopy(Option<JoinHandle<io::Result<()>>>);

impl SecondCopy {
    /// As [`store_epoch`]. The first copy is durable when this returns, and the second soon after:
    /// a start finds the newer of two and makes them equal.
    ///
    /// # Errors
    /// When the first copy cannot be written.
    pub fn store_epoch(
        &mut self,
        path: &Path,
        descriptor: &Descriptor,
        base: Executed,
    ) -> io::Result<()> {
        // A copy that is written over must not be the only one that is whole.
        if self.finish().is_err() {
            return store_epoch(path, descriptor, base);
        }
        let text = text_of(&epoch_file(descriptor, base))?;
        let [first, second] = EPOCH_COPIES;
        write_copy(path, first, &text)?;
        let (to, own) = (path.to_owned(), text.clone());
        let writes = move || {
            let written = write_copy(&to, second, &own);
            if let Err(error) = &written {
                tracing::error!(%error, "the second copy of the epoch's descriptor is not written");
            }
            written
        };
        let thread = std::thread::Builder::new().name("epoch".to_owned());
        match thread.spawn(writes) {
            Ok(thread) => self.0 = Some(thread),
            Err(_) => write_copy(path, second, &text)?,
        }
        Ok(())
    }

    /// Waits until both copies are written.
    ///
    /// # Errors
    /// When the second is not.
    pub fn finish(&mut self) -> io::Result<()> {
        let failed = |_| Err(io::Error::other("the thread that wrote it has failed"));
        let result = self.0.take().map(|it| it.join().unwrap_or_else(failed));
        result.unwrap_or(Ok(()))
    }
}

impl Drop for SecondCopy {
    fn drop(&mut self) {
        // It has been logged.
        let _ = self.finish();
    }
}

/// Why a copy of the epoch's descriptor cannot be used.
enum EpochFlaw {
    Damaged(String),
    /// A newer program wrote it: nothing is wrong with it.
    Newer(String),
}

fn epoch_of(file: &EpochFile) -> Result<StoredEpoch, EpochFlaw> {
    if file.format > FORMAT {
        return Err(EpochFlaw::Newer(newer(file.format)));
    }
    let damaged = |reason: &str| EpochFlaw::Damaged(reason.to_owned());
    let bytes =
        unhex(&file.descriptor).ok_or_else(|| damaged("it is not in hexadecimal digits"))?;
    let descriptor = Descriptor::decode(bytes.into()).map_err(|error| match error {
        DescriptorError::Level(_) => EpochFlaw::Newer(error.to_string()),
        DescriptorError::Malformed(_) => EpochFlaw::Damaged(error.to_string()),
    })?;
    if descriptor.fingerprint().to_string() != file.fingerprint {
        return Err(damaged("its fingerprint is another one"));
    }
    let base = Executed {
        slot: Slot(file.base.0),
        position: Position(file.base.1),
    };
    Ok((descriptor, base))
}

/// Reads the stored epoch: none when no copy can be read, and with what is wrong with a copy. The
/// inner error tells why the directory cannot be used.
#[expect(
    clippy::type_complexity,
    reason = "each layer is another kind of answer"
)]
pub(super) fn read_epoch(
    path: &Path,
) -> io::Result<Result<(Option<StoredEpoch>, Option<String>), String>> {
    let (mut found, mut damaged) = (None::<StoredEpoch>, None);
    for name in EPOCH_COPIES {
        let read = read_file::<EpochFile>(&path.join(name))?;
        let read = read.map(|file| {
            file.map_err(EpochFlaw::Damaged)
                .and_then(|file| epoch_of(&file))
        });
        match read {
            // A crash came between the two: nothing has been done in the newer one yet.
            Some(Ok(epoch))
                if found
                    .as_ref()
                    .is_some_and(|it| it.0.number != epoch.0.number) =>
            {
                damaged = Some(format!("{name} is of another epoch"));
                let other = found.take().filter(|it| it.0.number > epoch.0.number);
                found = Some(other.unwrap_or(epoch));
            }
            Some(Ok(epoch)) if found.as_ref().is_some_and(|other| *other != epoch) => {
                return Ok(Err(
                    "its files 'epoch' and 'epoch-2' differ; remove the one that was \
                               put there"
                        .to_owned(),
                ));
            }
            Some(Ok(epoch)) => found = Some(epoch),
            Some(Err(EpochFlaw::Newer(reason))) => return Ok(Err(reason)),
            Some(Err(EpochFlaw::Damaged(reason))) => damaged = Some(format!("{name}: {reason}")),
            None if damaged.is_none() => damaged = Some(format!("{name} is missing")),
            None => {}
        }
    }
    Ok(Ok((found, damaged)))
}

/// The epoch that the replica of this data directory is in, as far as it can be read.
#[must_use]
pub fn stored_epoch(path: &Path) -> Option<Descriptor> {
    let (stored, _) = read_epoch(path).ok()?.ok()?;
    stored.map(|(descriptor, _)| descriptor)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() {
        return None;
    }
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::{ClusterId, Durability};
    use std::fs;

    #[test]
    fn one_copy_of_the_epoch_is_whole_whichever_write_fails() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        let numbered = |number| Descriptor {
            number: quintet_replica::EpochNumber(number),
            ..Descriptor::first(ClusterId(5), "chora", Durability::Disk)
        };
        let store = |copy: &mut SecondCopy, number| {
            copy.store_epoch(path, &numbered(number), Executed::default())
        };
        let stored = || stored_epoch(path).map(|it| it.number.0);
        let mut copy = SecondCopy::default();
        store(&mut copy, 2).expect("both");
        store(&mut copy, 3).expect("both");
        assert!(copy.finish().is_ok());
        let [first, second] = EPOCH_COPIES.map(|name| fs::read(path.join(name)).expect("a copy"));
        assert_eq!(first, second);
        // The second cannot be written: that is found at the next epoch, and the first stays.
        fs::remove_file(path.join("epoch-2")).expect("it is there");
        fs::create_dir(path.join("epoch-2")).expect("a directory in its place");
        store(&mut copy, 4).expect("the first is written");
        assert!(store(&mut copy, 5).is_err());
        fs::remove_dir(path.join("epoch-2")).expect("it is empty");
        assert_eq!(stored(), Some(4));
        store(&mut copy, 5).expect("both");
        drop(copy);
        assert_eq!(stored(), Some(5));
    }
}

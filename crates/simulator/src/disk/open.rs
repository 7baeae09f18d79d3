//! Snapshots that peers fetch: as in the runtime they stay readable when newer ones replace them.

use quintet_replica::{Bytes, Executed, SNAPSHOT_OPEN_FOR, SNAPSHOTS_OPEN_MAX, Time};
use std::cell::RefCell;

/// Those that were read lately, the one read longest ago first.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(RefCell<Vec<Open>>);

#[derive(Debug)]
struct Open {
    id: Executed,
    bytes: Bytes,
    read_at: Time,
}

impl OpenFiles {
    /// The content of a file, which the directory has or which is still open.
    pub fn read(&self, id: Executed, listed: Option<&Bytes>, now: Time) -> Option<Bytes> {
        let mut open = self.0.borrow_mut();
        open.retain(|file| now < file.read_at + SNAPSHOT_OPEN_FOR);
        let at = open.iter().position(|file| file.id == id);
        let opened = at.map(|at| open.remove(at).bytes);
        let bytes = listed.cloned().or(opened)?;
        if open.len() >= SNAPSHOTS_OPEN_MAX {
            open.remove(0);
        }
        open.push(Open {
            id,
            bytes: bytes.clone(),
            read_at: now,
        });
        Some(bytes)
    }

    /// Another file has this name now.
    pub fn replaced(&mut self, id: Executed) {
        self.0.get_mut().retain(|file| file.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::Slot;
    use std::time::Duration;

    #[test]
    fn file_that_is_read_outlives_its_entry_for_a_while() {
        let id = |slot| Executed {
            slot: Slot(slot),
            ..Executed::default()
        };
        let bytes = Bytes::from_static(b"abc");
        let mut files = OpenFiles::default();
        let second = |second| Time(0) + Duration::from_secs(second);
        assert_eq!(files.read(id(1), None, second(0)), None);
        let listed = files.read(id(1), Some(&bytes), second(0));
        assert_eq!(listed.as_ref(), Some(&bytes));
        for now in [14, 28] {
            assert_eq!(files.read(id(1), None, second(now)), Some(bytes.clone()));
        }
        assert_eq!(
            files.read(id(1), None, second(43)),
            None,
            "read too long ago"
        );
        for slot in 1..=5 {
            files.read(id(slot), Some(&bytes), second(43));
        }
        assert_eq!(
            files.read(id(1), None, second(43)),
            None,
            "too many are open"
        );
        files.replaced(id(2));
        assert_eq!(files.read(id(2), None, second(43)), None);
        assert!(files.read(id(3), None, second(43)).is_some());
    }
}

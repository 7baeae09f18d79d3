//! Snapshot files as they are written, found again and read.

use super::*;
use crate::mail::Mailbox;
use quintet_replica::{
    CommandTime, EpochNumber, GroupId, RestoreError, SnapshotHeader, Wire, framed,
};

const OF: (ClusterId, EpochNumber) = (ClusterId(1), EpochNumber(1));

fn id(slot: u64) -> Executed {
    Executed {
        slot: Slot(slot),
        position: Position(slot),
    }
}

fn mailbox() -> (Mailbox, Mailer) {
    let poll = mio::Poll::new().expect("a poll");
    Mailbox::new(poll.registry(), mio::Token(0)).expect("a mailbox")
}

#[test]
fn names_sort_by_slot_and_read_back() {
    let id = |slot| Executed {
        slot: Slot(slot),
        position: Position(3),
    };
    let name = |slot| super::name(id(slot), Origin::Own);
    assert!(name(9) < name(10) && name(10) < name(u64::MAX));
    assert_eq!(parse(&name(10)), Some((id(10), Origin::Own)));
    assert_eq!(
        parse(&super::name(id(10), Origin::Fetched)),
        Some((id(10), Origin::Fetched))
    );
    assert_eq!(parse("incoming"), None);
}

/// Also `snapshot_reaping_order`: 10 is newer than 9, whatever the order of the files is.
#[test]
fn two_newest_snapshots_are_kept_and_found_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_path_buf();
    let (mailbox, mailer) = mailbox();
    let start = |counts| Snapshots::start(path.clone(), OF, counts, mailer.clone());
    let mut snapshots = start(true).expect("starts");
    for slot in [8, 9, 10] {
        let id = id(slot);
        snapshots.begin(id, (false, true), 0);
        snapshots.append(stream(slot, b"state"));
        snapshots.finish_file();
    }
    let id = id(11);
    snapshots.begin(id, (false, true), 0);
    snapshots.append(Bytes::from("unfinished"));
    snapshots.finish();
    let saved = std::iter::from_fn(|| mailbox.take())
        .filter(|mail| matches!(mail, Mail::SnapshotSaved(_)))
        .count();
    assert_eq!(saved, 3);
    assert_eq!(list(&path).expect("lists").len(), 2);
    let snapshots = start(true).expect("starts");
    let newest = snapshots.newest().expect("there is one");
    let whole = stream(10, b"state");
    assert_eq!(newest.id.slot, Slot(10));
    assert_eq!(newest.length, whole.len() as u64);
    let tail = snapshots.read(newest.id, newest.length - 13, 100);
    assert_eq!(tail, Some(whole.slice(whole.len() - 13..)));
    let nothing = snapshots.read(newest.id, newest.length, 100);
    assert_eq!(nothing.as_deref(), Some(&b""[..]));
    drop(snapshots);
    // Where nothing counts, the last that was durable is left to people.
    let snapshots = start(false);
    assert_eq!(snapshots.expect("starts").newest(), None);
    assert_eq!(list(&path).expect("lists").len(), 0);
    let left = fs::read(path.join(LAST_ON_DISK)).expect("there");
    assert_eq!(left, whole);
}

#[test]
fn snapshot_is_saved_where_files_have_one_name_only() {
    let (mailbox, mailer) = mailbox();
    for (durability, free, saves, kept) in [
        (Durability::Disk, true, true, false),
        (Durability::Disk, false, true, false),
        // All that is left when memory is lost.
        (Durability::Memory, true, true, true),
        (Durability::Memory, false, false, false),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().to_path_buf();
        if !free {
            fs::create_dir(path.join("last-on-disk.new")).expect("created");
        }
        let mut writer = Writer {
            directory: path.clone(),
            cluster: OF.0,
            mailer: mailer.clone(),
            begun: 0,
            in_progress: None,
            state: None,
            link: |_, _| Err(io::Error::from_raw_os_error(libc::EPERM)),
            warned: false,
        };
        let descriptor = Descriptor::first(OF.0, "multipaxos", durability).encode();
        let whole = stream_of(descriptor, 7, b"state");
        let (orders, queue) = channel();
        for order in [
            Order::Begin {
                file: 1,
                id: id(7),
                fetched: false,
                durable: true,
                kept: 0,
            },
            Order::Append(whole.clone()),
            Order::Finish,
        ] {
            orders.send(order).expect("sent");
        }
        drop(orders);
        writer.run(&queue);
        let mut mails = std::iter::from_fn(|| mailbox.take());
        assert_eq!(
            mails.any(|mail| matches!(mail, Mail::SnapshotSaved(_))),
            saves
        );
        assert_eq!(list(&path).expect("lists").len(), usize::from(saves));
        let left = fs::read(path.join(LAST_ON_DISK)).ok();
        assert_eq!(left, kept.then(|| whole.to_vec()));
    }
}

/// A whole snapshot with no sessions.
fn stream(slot: u64, state: &[u8]) -> Bytes {
    stream_of(Bytes::new(), slot, state)
}

fn stream_of(descriptor: Bytes, slot: u64, state: &[u8]) -> Bytes {
    let header = SnapshotHeader {
        cluster: ClusterId(1),
        group: GroupId(0),
        epoch: EpochNumber(1),
        executed: Executed {
            slot: Slot(slot),
            position: Position(slot),
        },
        time: CommandTime(5),
        summary: Bytes::new(),
        descriptor,
        session_chunks: Some(1),
        origin: 9,
        base: Executed::default(),
        seal: None,
    };
    let header = header.encode_to_bytes();
    [&header, &[0; 4][..], state, b""]
        .map(framed)
        .concat()
        .into()
}

#[test]
fn snapshots_stay_readable_to_two_fetchers_when_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_path_buf();
    let (_mailbox, mailer) = mailbox();
    for slot in [1, 2] {
        fs::write(
            path.join(name(id(slot), Origin::Own)),
            stream(slot, b"state"),
        )
        .expect("written");
    }
    let snapshots = Snapshots::start(path.clone(), OF, true, mailer).expect("starts");
    let whole = |slot| snapshots.read(id(slot), 0, 1 << 10);
    let given = [whole(1), whole(2)];
    for slot in [1, 2] {
        fs::remove_file(path.join(name(id(slot), Origin::Own))).expect("removed");
    }
    assert_eq!(given, [1, 2].map(|slot| Some(stream(slot, b"state"))));
    assert_eq!([whole(1), whole(2)], given);
    snapshots.close_unused(Instant::now());
    assert_eq!([whole(1), whole(2)], given, "they have just been read");
    snapshots.close_unused(Instant::now() + SNAPSHOT_OPEN_FOR);
    assert_eq!(
        [whole(1), whole(2)],
        [None, None],
        "their space is given back"
    );
}

#[test]
fn snapshot_that_replaces_one_of_same_name_is_one_that_is_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_path_buf();
    let (mailbox, mailer) = mailbox();
    let mut snapshots = Snapshots::start(path, OF, true, mailer).expect("starts");
    for state in [&b"state"[..], b"as another summary makes it"] {
        let whole = stream(7, state);
        snapshots.begin(id(7), (false, true), 0);
        snapshots.append(whole.clone());
        snapshots.finish_file();
        let kept = loop {
            match mailbox.take() {
                Some(Mail::SnapshotSaved(kept)) => break kept,
                Some(_) => {}
                None => std::thread::yield_now(),
            }
        };
        snapshots.saved(kept);
        assert_eq!(snapshots.read(id(7), 0, 1 << 10), Some(whole));
    }
}

#[test]
fn snapshot_being_read_stays_open_when_others_are_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_path_buf();
    let (_mailbox, mailer) = mailbox();
    let open = 1..=SNAPSHOTS_OPEN_MAX as u64 + 1;
    for slot in open.clone() {
        fs::write(
            path.join(name(id(slot), Origin::Own)),
            stream(slot, b"state"),
        )
        .expect("written");
    }
    let snapshots = Snapshots::start(path.clone(), OF, true, mailer).expect("starts");
    let read = |slot| snapshots.read(id(slot), 0, 1 << 10);
    let first = read(1);
    fs::remove_file(path.join(name(id(1), Origin::Own))).expect("removed");
    for slot in open {
        assert!(read(slot).is_some());
        assert_eq!(read(1), first, "after {slot}");
    }
}

#[test]
fn fetched_snapshot_is_read_while_it_is_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_path_buf();
    let (mailbox, mailer) = mailbox();
    let mut snapshots = Snapshots::start(path, OF, true, mailer).expect("starts");
    let id = id(7);
    let whole = stream(7, &[3; 9 << 20]);
    let (state, end) = whole.split_at(whole.len() - 8);
    let wait_for = |wanted: &dyn Fn(&Mail) -> bool| {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match mailbox.take() {
                Some(mail) if wanted(&mail) => return mail,
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(Instant::now() < until, "it does not come");
        }
    };
    snapshots.begin(id, (true, true), 0);
    snapshots.append(Bytes::from("abandoned"));
    snapshots.abandon();
    snapshots.begin(id, (true, true), 0);
    snapshots.append(Bytes::copy_from_slice(state));
    let came = wait_for(
        &|mail| matches!(mail, Mail::SnapshotWritten { file, .. } if snapshots.is_current(*file)),
    );
    let all = state.len() as u64;
    assert!(matches!(came, Mail::SnapshotWritten { bytes, .. } if bytes == all));
    let read = |snapshots: &Snapshots, from| snapshots.read(id, from, 1 << 20);
    assert_eq!(
        read(&snapshots, all - 4),
        Some(whole.slice(state.len() - 4..state.len()))
    );
    snapshots.append(Bytes::from("what is cut off again"));
    snapshots.truncate(all);
    snapshots.append(Bytes::copy_from_slice(end));
    snapshots.finish_file();
    let saved =
        wait_for(&|mail| matches!(mail, Mail::SnapshotSaved(_) | Mail::SnapshotFailed { .. }));
    let Mail::SnapshotSaved(kept) = saved else {
        panic!("it is not saved");
    };
    snapshots.saved(kept);
    assert_eq!(kept.info.length, whole.len() as u64);
    assert_eq!(read(&snapshots, all), Some(Bytes::copy_from_slice(end)));
}

#[test]
fn unfinished_file_is_closed_and_deleted_when_given_up() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_path_buf();
    let (mailbox, mailer) = mailbox();
    let mut snapshots = Snapshots::start(path.clone(), OF, true, mailer).expect("starts");
    let begun = |snapshots: &mut Snapshots, slot| {
        snapshots.begin(id(slot), (true, true), 0);
        snapshots.append(Bytes::from("unfinished"));
        let until = Instant::now() + Duration::from_secs(60);
        while !matches!(mailbox.take(), Some(Mail::SnapshotWritten { .. })) {
            assert!(Instant::now() < until, "it is not written");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(snapshots.read(id(slot), 0, 4).is_some());
        assert_eq!(snapshots.open.borrow().len(), 1);
    };
    begun(&mut snapshots, 1);
    // Its replacement is written into the same file.
    begun(&mut snapshots, 2);
    assert_eq!(snapshots.read(id(1), 0, 4), None);
    snapshots.failed();
    assert_eq!(snapshots.open.borrow().len(), 0, "it holds no space");
    begun(&mut snapshots, 3);
    snapshots.abandon();
    assert_eq!(snapshots.open.borrow().len(), 0, "nor does this one");
    snapshots.finish();
    assert_eq!(fs::read_dir(&path).expect("lists").count(), 0);
}

#[test]
fn snapshot_that_cannot_be_read_back_is_not_saved() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_path_buf();
    let (mailbox, mailer) = mailbox();
    let whole = stream(7, b"state");
    let mut damaged = whole.to_vec();
    let middle = damaged.len() - 10;
    damaged[middle] ^= 1;
    // Sessions that are no sessions, with right checksums; and a chunk longer than any.
    let header = whole.slice(..8 + u32::from_le_bytes([whole[0], 0, 0, 0]) as usize);
    let sessions = [&header[..], &framed(&[9; 4]), &framed(b"")].concat();
    let endless = [&header[..], &framed(&[0; 4]), &[255; 8], b"state"].concat();
    for bytes in [
        damaged,
        whole[..whole.len() - 8].to_vec(),
        sessions,
        endless,
    ] {
        let mut snapshots =
            Snapshots::start(path.clone(), OF, true, mailer.clone()).expect("starts");
        let id = id(7);
        snapshots.begin(id, (false, true), 0);
        snapshots.append(Bytes::from(bytes));
        snapshots.finish_file();
        snapshots.finish();
        let told: Vec<Mail> = std::iter::from_fn(|| mailbox.take()).collect();
        let saved = |mail: &Mail| matches!(mail, Mail::SnapshotSaved(_));
        assert!(!told.iter().any(saved), "{told:?}");
        let reason = told.iter().find_map(|mail| match mail {
            Mail::SnapshotFailed { file, reason } if snapshots.is_current(*file) => {
                Some(reason.as_str())
            }
            _ => None,
        });
        let reason = reason.expect("it failed");
        assert!(reason.contains("cannot be read back"), "{reason}");
        assert_eq!(fs::read_dir(&path).expect("lists").count(), 0);
    }
}

/// Takes states that say "good" alone.
#[derive(Default)]
struct Readable(Vec<u8>);

impl StateCheck for Readable {
    fn begin(&mut self) {
        self.0.clear();
    }

    fn chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        self.0.extend_from_slice(chunk);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), RestoreError> {
        match self.0 == b"good" {
            true => Ok(()),
            false => Err(RestoreError("it is not good".to_owned())),
        }
    }
}

#[test]
fn own_snapshot_whose_state_cannot_be_read_back_is_not_saved() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_path_buf();
    let (mailbox, mailer) = mailbox();
    let mut snapshots = Snapshots::start(path, OF, true, mailer).expect("starts");
    snapshots.check_states(Box::new(Readable::default()));
    // A peer's is restored from as it is; its restore finds what is wrong with it.
    for (slot, state, fetched) in [(1, "bad", false), (2, "good", false), (3, "bad", true)] {
        snapshots.begin(id(slot), (fetched, true), 0);
        snapshots.append(stream(slot, state.as_bytes()));
        snapshots.finish_file();
    }
    snapshots.finish();
    let told: Vec<Mail> = std::iter::from_fn(|| mailbox.take()).collect();
    let saved: Vec<Slot> = (told.iter())
        .filter_map(|mail| match mail {
            Mail::SnapshotSaved(kept) => Some(kept.info.id.slot),
            _ => None,
        })
        .collect();
    assert_eq!(saved, [Slot(2), Slot(3)]);
    let reason = told.iter().find_map(|mail| match mail {
        Mail::SnapshotFailed { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    let reason = reason.expect("one failed");
    assert!(
        reason.contains("its state: snapshot refused: it is not good"),
        "{reason}"
    );
}

#[test]
fn failure_of_an_earlier_file_is_not_taken_for_one_of_the_next() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_path_buf();
    let (mailbox, mailer) = mailbox();
    let mut snapshots = Snapshots::start(path, OF, true, mailer).expect("starts");
    let broken = |snapshots: &mut Snapshots| {
        snapshots.begin(id(1), (true, true), 0);
        snapshots.append(Bytes::from("no snapshot"));
        snapshots.finish_file();
    };
    broken(&mut snapshots);
    broken(&mut snapshots);
    snapshots.abandon();
    broken(&mut snapshots);
    snapshots.finish();
    let current: Vec<bool> = std::iter::from_fn(|| mailbox.take())
        .filter_map(|mail| match mail {
            Mail::SnapshotFailed { file, .. } => Some(snapshots.is_current(file)),
            _ => None,
        })
        .collect();
    assert_eq!(current, [false, false, true]);
}

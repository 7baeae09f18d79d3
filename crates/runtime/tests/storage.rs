//! Damaged files: what a replica does about each, with real bytes on a real disk.

mod common;

use common::{Cluster, Counter};
use quintet_replica::{Durability, Level};
use quintet_runtime::{
    Replica, StartError,
    inspect::{RecordInfo, Remedy, Report, inspect},
};
use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

fn data(cluster: &Cluster, id: usize) -> PathBuf {
    cluster.configs[id].data.clone()
}

fn look(directory: &Path) -> (Report, Vec<RecordInfo>) {
    let mut records = Vec::new();
    let report = inspect(directory, |record| records.push(*record)).expect("can be read");
    (report, records)
}

fn corrupt(path: &Path, offset: u64) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("it is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).expect("it is there");
    byte[0] ^= 0x10;
    file.write_all_at(&byte, offset).expect("writes");
}

/// Corrupts a byte in the payload of the `nth` record.
fn damage_record(directory: &Path, nth: usize) -> RecordInfo {
    let (report, records) = look(directory);
    let record = records[nth];
    let file = report.segments.iter().find(|s| s.segment == record.segment);
    let file = directory.join(&file.expect("there").file);
    corrupt(&file, record.offset + 48 + record.length / 2);
    record
}

fn refusal(cluster: &Cluster, id: usize) -> String {
    let error = Replica::start(cluster.configs[id].clone(), Box::<Counter>::default())
        .expect_err("it must not start");
    assert_eq!(error.exit_code(), 7, "{error}");
    assert!(matches!(error, StartError::DataRefused { .. }));
    error.to_string()
}

/// Three replicas with `commands` in the log, stopped one after the other, 0 first.
fn stopped(root: &Path, commands: u64) -> Cluster {
    let mut cluster = Cluster::start(root, 3, Durability::Disk);
    for _ in 0..commands {
        cluster.add(1, 1);
    }
    for id in 0..3 {
        cluster.read(id);
    }
    for id in 0..3 {
        cluster.stop(id);
    }
    cluster
}

/// The damaged replica is started, and comes back with everything by way of the others.
fn is_repaired(cluster: &mut Cluster, damaged: usize, sum: u64) {
    for id in 0..3 {
        cluster.restart(id);
    }
    let handle = cluster.handle(damaged);
    assert!(handle.status().repairing.is_some() || handle.status().incarnation == 2);
    cluster.wait(damaged, "its data back", |status| {
        status.repairing.is_none() && status.voting
    });
    assert_eq!(handle.status().incarnation, 2);
    assert_eq!(cluster.read(damaged), format!("{sum} {sum}"));
    let directory = data(cluster, damaged);
    assert!(!directory.join("damaged-2").exists());
    // Its votes count again: with one of the others gone, nothing works without it.
    let other = (damaged + 1) % 3;
    cluster.stop(other);
    assert_eq!(cluster.add(damaged, 1), sum + 1);
    // From now on it is a replica like any other.
    cluster.stop(damaged);
    let (report, _) = look(&directory);
    assert!(report.is_sound() && !report.repairing, "{report:?}");
    cluster.restart(damaged);
    assert_eq!(cluster.handle(damaged).status().incarnation, 2);
    assert_eq!(cluster.read(damaged), format!("{0} {0}", sum + 1));
}

#[test]
fn damaged_record_is_repaired_from_the_peers_wherever_it_stands() {
    // The first, one in the middle, and the last, which nothing in the journal proves.
    for nth in [0, 10, usize::MAX] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut cluster = stopped(directory.path(), 20);
        let path = data(&cluster, 0);
        let nth = nth.min(look(&path).1.len() - 1);
        let record = damage_record(&path, nth);
        let (report, _) = look(&path);
        let [problem] = &report.problems[..] else {
            panic!("{report:?}")
        };
        assert_eq!(problem.remedy, Remedy::RepairedFromPeers);
        assert_eq!(problem.segment, Some(record.segment));
        assert_eq!(problem.offset, Some(record.offset));
        is_repaired(&mut cluster, 0, 20);
    }
}

#[test]
fn lost_journal_is_repaired_from_the_peers() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = stopped(directory.path(), 5);
    fs::remove_dir_all(data(&cluster, 2).join("journal")).expect("it is there");
    is_repaired(&mut cluster, 2, 5);
}

/// Three replicas whose logs and snapshots differ: every one damaged in turn, and none may lead
/// the others into forgetting.
#[test]
fn corrupt_minority_becomes_leader() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = stopped(directory.path(), 12);
    // Replica 2 lags: what it lacks stands on 0 and 1 alone.
    for id in [0, 1] {
        cluster.restart(id);
    }
    for _ in 0..8 {
        cluster.add(0, 1);
    }
    for id in [0, 1] {
        cluster.stop(id);
    }
    // 1 loses a record that was acknowledged by 0 and 1: only 0 has it now.
    let path = data(&cluster, 1);
    damage_record(&path, look(&path).1.len() - 2);
    // 1 and 2 are a majority, and must decide nothing: together they have lost their state.
    for id in [1, 2] {
        cluster.restart(id);
    }
    cluster.wait(1, "a link to 2", |status| {
        status
            .peers
            .iter()
            .any(|peer| peer.id == 2 && peer.connected)
    });
    cluster.wait(2, "a few elections", |status| status.uptime_seconds >= 2);
    let (one, two) = (cluster.handle(1).status(), cluster.handle(2).status());
    assert!(!one.voting && one.repairing.is_some());
    assert_eq!((one.leader, two.leader), (None, None));
    cluster.restart(0);
    for id in 0..3 {
        assert_eq!(cluster.read(id), "20 20");
    }
    cluster.wait(1, "its data back", |status| status.repairing.is_none());
}

#[test]
fn single_replica_start_error_names_segment_and_remedy() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::start(directory.path(), 1, Durability::Disk);
    for _ in 0..9 {
        cluster.add(0, 1);
    }
    cluster.stop(0);
    let path = data(&cluster, 0);
    let record = damage_record(&path, 4);
    let before = fs::read(path.join("journal/00000000000000000001.segment")).expect("there");
    let text = refusal(&cluster, 0);
    let place = format!(
        "segment {} is damaged at offset {}",
        record.segment, record.offset
    );
    assert!(text.contains(&place), "{text}");
    assert!(
        text.contains("Restore") && text.contains("Nothing was changed"),
        "{text}"
    );
    let after = fs::read(path.join("journal/00000000000000000001.segment")).expect("there");
    assert!(before == after);
}

#[test]
fn unfinished_write_at_the_end_is_cut_off_and_nothing_else() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = Cluster::start(directory.path(), 1, Durability::Disk);
    for _ in 0..9 {
        cluster.add(0, 1);
    }
    cluster.stop(0);
    let path = data(&cluster, 0);
    let (report, records) = look(&path);
    let (segment, last) = (&report.segments[0], records.last().expect("there"));
    // The beginning of a record that was never finished.
    let file = path.join(&segment.file);
    let bytes = fs::read(&file).expect("there");
    let (start, end) = (last.offset as usize, segment.end as usize);
    let mut torn = bytes[start..end - 20].to_vec();
    torn[8..16].copy_from_slice(&(last.sequence + 1).to_le_bytes());
    let out = OpenOptions::new().write(true).open(&file).expect("there");
    out.write_all_at(&torn, segment.end).expect("writes");
    let (report, _) = look(&path);
    assert!(report.torn && report.is_sound(), "{report:?}");
    cluster.restart(0);
    assert_eq!(cluster.read(0), "9 9");
    assert_eq!(cluster.add(0, 1), 10);
    cluster.stop(0);
    let (report, _) = look(&path);
    assert!(!report.torn && report.is_sound(), "{report:?}");
    cluster.restart(0);
    assert_eq!(cluster.read(0), "10 10");
}

#[test]
fn one_damaged_copy_of_promises_is_repaired_two_are_rejected() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = stopped(directory.path(), 3);
    let promises = data(&cluster, 0).join("promises");
    corrupt(&promises, 20);
    cluster.restart(0);
    cluster.stop(0);
    let (report, _) = look(&data(&cluster, 0));
    assert!(report.promises.iter().all(Option::is_some), "{report:?}");
    corrupt(&promises, 20);
    corrupt(&promises, (1 << 20) + 20);
    assert!(refusal(&cluster, 0).contains("promises"));
    assert!(!look(&data(&cluster, 0)).0.is_sound());
    fs::remove_file(&promises).expect("there");
    assert!(refusal(&cluster, 0).contains("promises"));
}

#[test]
fn files_of_another_replica_cluster_or_format_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let cluster = stopped(directory.path(), 3);
    let segment = "journal/00000000000000000001.segment";
    let (ours, theirs) = (data(&cluster, 0), data(&cluster, 1));
    let original = fs::read(ours.join(segment)).expect("there");
    fs::copy(theirs.join(segment), ours.join(segment)).expect("copies");
    let text = refusal(&cluster, 0);
    assert!(
        text.contains("replica 1") && text.contains("wrong directory"),
        "{text}"
    );
    let mut newer = original.clone();
    newer[8] = 9;
    // The header's checksum covers its version: one that only rotted is damage.
    let fields = 8 + 4 + 16 + 2 + 8 + 8;
    let checksum = quintet_replica::checksum(&newer[..fields]).to_le_bytes();
    newer[fields..fields + 4].copy_from_slice(&checksum);
    fs::write(ours.join(segment), &newer).expect("writes");
    let text = refusal(&cluster, 0);
    assert!(
        text.contains("format 9") && text.contains("newer version"),
        "{text}"
    );
    fs::write(ours.join(segment), &original).expect("writes");
    for name in ["promises", "marks", "peers"] {
        let original = fs::read(ours.join(name)).expect("there");
        fs::copy(theirs.join(name), ours.join(name)).expect("copies");
        let text = refusal(&cluster, 0);
        assert!(text.contains("belongs to"), "{name}: {text}");
        fs::write(ours.join(name), original).expect("writes");
    }
    Replica::start(cluster.configs[0].clone(), Box::<Counter>::default()).expect("starts");
}

/// One replica with two snapshots and a log behind them.
fn with_snapshots(root: &Path, replicas: usize) -> Cluster {
    let (mut cluster, listeners) = Cluster::prepare(root, replicas, Durability::Disk);
    cluster.padding = 1000;
    cluster.start_on(listeners);
    for _ in 0..3 {
        for _ in 0..10 {
            // More than a segment between two snapshots, so that some are trimmed.
            let one = format!("{}1", "0".repeat(150_000));
            let reply = cluster.handle(0).submit(Level::Ordered, one.as_bytes());
            reply.expect("a quorum is there");
        }
        for id in 0..replicas {
            cluster.read(id);
            let taken = cluster.handle(id).snapshot_now(common::TIMEOUT);
            taken.expect("a snapshot");
        }
    }
    for _ in 0..5 {
        cluster.add(0, 1);
    }
    for id in 0..replicas {
        cluster.read(id);
    }
    for id in 0..replicas {
        cluster.stop(id);
    }
    cluster
}

fn snapshot_files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory.join("snapshots"))
        .expect("there")
        .map(|entry| entry.expect("there").path())
        .filter(|path: &PathBuf| !path.ends_with("last-on-disk"))
        .collect();
    files.sort();
    files
}

#[test]
fn damaged_newest_snapshot_is_replaced_by_older_one_and_log() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = with_snapshots(directory.path(), 1);
    let path = data(&cluster, 0);
    let [_, newest] = &snapshot_files(&path)[..] else {
        panic!("two are kept")
    };
    corrupt(newest, 700);
    let (report, _) = look(&path);
    assert!(report.is_sound(), "{report:?}");
    assert!(report.snapshots[1].problem.is_some());
    cluster.restart(0);
    assert_eq!(cluster.read(0), "35 35");
    assert_eq!(cluster.handle(0).status().incarnation, 1);
    cluster.stop(0);
    // Without the other one, too, the log does not go back far enough.
    let files = snapshot_files(&path);
    assert_eq!(files.len(), 1);
    corrupt(&files[0], 700);
    let text = refusal(&cluster, 0);
    assert!(
        text.contains("snapshot") && text.contains("damaged near offset"),
        "{text}"
    );
    fs::remove_file(&files[0]).expect("there");
    let text = refusal(&cluster, 0);
    assert!(
        text.contains("missing") && text.contains("Restore"),
        "{text}"
    );
}

#[test]
fn without_any_snapshot_left_replica_is_repaired_from_its_peers() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = with_snapshots(directory.path(), 3);
    for file in snapshot_files(&data(&cluster, 1)) {
        corrupt(&file, 700);
    }
    is_repaired(&mut cluster, 1, 35);
}

/// Together with the damaged journal goes the log between the two snapshots: should the newer one
/// be damaged later, the older one and the new log would not be all that there was.
#[test]
fn snapshot_that_a_journal_was_begun_again_on_has_no_substitute() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = with_snapshots(directory.path(), 3);
    let path = data(&cluster, 1);
    damage_record(&path, 0);
    is_repaired(&mut cluster, 1, 35);
    cluster.stop(1);
    let files = snapshot_files(&path);
    corrupt(files.last().expect("there is one"), 700);
    let (report, _) = look(&path);
    assert!(!report.is_sound(), "{report:?}");
    cluster.restart(2);
    cluster.restart(1);
    cluster.wait(1, "its data back", |status| {
        status.repairing.is_none() && status.voting
    });
    assert_eq!(cluster.handle(1).status().incarnation, 3);
    assert_eq!(cluster.read(1), "36 36");
}

/// A crash may come at any step of saving a snapshot and trimming the log that it covers.
#[test]
fn snapshot_log_gap_on_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut cluster = with_snapshots(directory.path(), 1);
    let path = data(&cluster, 0);
    let files = snapshot_files(&path);
    // Before the rename: an unfinished file is of no account.
    fs::write(path.join("snapshots/incoming"), b"unfinished").expect("writes");
    cluster.restart(0);
    assert_eq!(cluster.read(0), "35 35");
    cluster.stop(0);
    // After the rename, before the oldest is deleted: a third is there, and the log untrimmed.
    let old = fs::read(&files[0]).expect("there");
    let older = path.join(format!("snapshots/{:020}-{:020}.snapshot", 1, 1));
    fs::write(older, old).expect("writes");
    let (report, _) = look(&path);
    assert_eq!(report.snapshots.len(), 3);
    cluster.restart(0);
    assert_eq!(cluster.read(0), "35 35");
}

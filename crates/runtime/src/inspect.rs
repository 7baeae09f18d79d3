//! Looking into the data directory of a replica that does not run, without changing anything.
//!
//! ```text
//!   lock (held meanwhile) ─► identity ─► journal: segments, records, promises, marks ─┐
//!                                        snapshots: every checksum ───────────────────┴─► Report
//! ```

use crate::{
    data,
    journal_files::{FileDisk, FileError},
    snapshots::{self, Flaw},
    survey::Survey,
};
pub use quintet_replica::journal::RecordInfo;
use quintet_replica::{
    Durability,
    journal::{Chain, Identity, Inspection, JournalError, inspect as inspect_journal},
};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Why a data directory cannot be looked into.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// It is no data directory, of a newer format, or a replica runs on it.
    #[error("data directory {path}: {reason}", path = .path.display())]
    Refused {
        /// The directory.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The storage failed.
    #[error("storage at {path} failed: {reason}", path = .path.display())]
    Failed {
        /// The file that was read.
        path: PathBuf,
        /// How.
        reason: String,
    },
}

/// A segment of the journal.
#[derive(Clone, Debug, Serialize)]
pub struct Segment {
    /// Its number.
    pub segment: u64,
    /// Its file's name.
    pub file: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// The sequence that its header begins with; none when the header cannot be read.
    pub first: Option<u64>,
    /// Records that follow one another from its beginning.
    pub records: u64,
    /// The lowest of their slots.
    pub slot_min: Option<u64>,
    /// The highest of their slots.
    pub slot_max: Option<u64>,
    /// Where they end.
    pub end: u64,
}

/// One of the two copies of the promises.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PromiseCopy {
    /// Counts promises.
    pub number: u64,
    /// Bytes of the protocol's promise.
    pub bytes: u64,
}

/// A snapshot file.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotFile {
    /// The slot that it covers.
    pub slot: u64,
    /// The position that it covers.
    pub position: u64,
    /// Its length.
    pub bytes: u64,
    /// It came from a peer.
    pub fetched: bool,
    /// Its flaw, if it has one.
    pub problem: Option<String>,
}

/// The remedy that a start would apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Remedy {
    /// Nothing needs to be done: it is repaired at the next start.
    Repaired,
    /// It is repaired from the other replicas, if there are at least two others.
    RepairedFromPeers,
    /// The replica will not start.
    Refused,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// The flaw, its place, and the remedy for operators.
    pub what: String,
    /// The journal's segment, when it is one.
    pub segment: Option<u64>,
    /// The offset in it.
    pub offset: Option<u64>,
    /// The step that the next start takes.
    pub remedy: Remedy,
}

/// All that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The directory.
    pub directory: PathBuf,
    /// The cluster that it belongs to.
    pub cluster: String,
    /// The replica that it belongs to.
    pub replica: u16,
    /// `disk` or `memory`.
    pub durability: String,
    /// The incarnation as quorums count it.
    pub incarnation: u64,
    /// The last run of its process.
    pub boot: u64,
    /// Whether something lost is still being repaired from the peers.
    pub repairing: bool,
    /// The journal, oldest first.
    pub segments: Vec<Segment>,
    /// The sequence up to which all is known to have been durable.
    pub durable: Option<u64>,
    /// The journal goes back to the replica's first start.
    pub complete: bool,
    /// The last write was unfinished and never acknowledged. Crashes leave that; it is no damage.
    pub torn: bool,
    /// The two copies of the promises; none where nothing was written or nothing can be read.
    pub promises: [Option<PromiseCopy>; 2],
    /// The snapshots, oldest first.
    pub snapshots: Vec<SnapshotFile>,
    /// The flaws.
    pub problems: Vec<Problem>,
}

impl Report {
    /// Whether a start would lose nothing and need no peer.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.iter().all(|p| p.remedy == Remedy::Repaired)
    }
}

/// Whose records are missing in a damaged journal of several groups.
fn whose(found: &Inspection<FileError>) -> Option<String> {
    let list = |is: &dyn Fn(Chain) -> bool| {
        let of = found.chains.iter().filter(|(_, chain)| is(*chain));
        let of: Vec<_> = of.map(|(group, _)| group.0.to_string()).collect();
        (!of.is_empty()).then(|| of.join(", "))
    };
    if found.chains.len() < 2 {
        return None;
    }
    let said = [
        ("lack records", list(&|it| matches!(it, Chain::Lacks(_)))),
        ("may lack some", list(&|it| it == Chain::Unknown)),
        ("are whole", list(&|it| it == Chain::Whole)),
    ];
    let said = said
        .into_iter()
        .filter_map(|(what, groups)| Some(format!("{} {what}", groups?)));
    let said = said.collect::<Vec<_>>().join("; ");
    let others = if found.all_told {
        ""
    } else {
        "; groups without records may lack some, too"
    };
    Some(format!("Of its groups {said}{others}."))
}

/// The flaws of a group's snapshots. `complete`: its log goes back to the beginning.
fn of_survey(survey: &Survey, complete: bool) -> impl Iterator<Item = Problem> + use<> {
    let lost = survey.lost(complete);
    let remedy = match lost {
        Some(_) => Remedy::RepairedFromPeers,
        None => Remedy::Repaired,
    };
    let reasons = survey.bad.iter().map(|(_, reason)| reason.clone());
    let all: Vec<String> = match survey.bad.is_empty() {
        true => lost.into_iter().collect(),
        false => reasons.collect(),
    };
    all.into_iter().map(move |what| Problem {
        what,
        segment: None,
        offset: None,
        remedy,
    })
}

fn problem(error: &JournalError<FileError>) -> Problem {
    let (segment, offset) = match error {
        JournalError::Damaged {
            segment, offset, ..
        } => (Some(*segment), Some(*offset)),
        JournalError::Gap { segment, .. } => (Some(*segment), None),
        _ => (None, None),
    };
    Problem {
        what: error.to_string(),
        segment,
        offset,
        remedy: if error.is_damage() {
            Remedy::RepairedFromPeers
        } else {
            Remedy::Refused
        },
    }
}

/// Reads everything in a data directory. Every record of the journal is given to `record`.
///
/// # Errors
/// When it is none, belongs to a running replica, or cannot be read. Damage is no error here: it
/// is told in the report.
pub fn inspect(path: &Path, record: impl FnMut(&RecordInfo)) -> Result<Report, InspectError> {
    let refused = |reason: String| InspectError::Refused {
        path: path.to_path_buf(),
        reason,
    };
    let failed = |path: PathBuf, error: std::io::Error| InspectError::Failed {
        path,
        reason: error.to_string(),
    };
    let (lock, owner) = data::look(path).map_err(refused)?;
    let identity = Identity {
        cluster: owner.cluster,
        node: owner.node,
    };
    let mut disk = FileDisk::new(path, false, path.join("aside"));
    let found = inspect_journal(&mut disk, &identity, record)
        .map_err(|FileError { path, error }| failed(path, error))?;
    let mut problems: Vec<Problem> = found.verdict.iter().map(problem).collect();
    for damage in problems.iter_mut().filter(|it| it.segment.is_some()) {
        if let Some(whose) = whose(&found) {
            damage.what += &format!(" {whose}");
        }
    }
    if found.marks_lost && found.verdict.is_none() {
        let what = "neither mark of the journal can be read: whether its last records, or its \
                    first segments, are missing is not known. A start continues with what it finds, \
                    where there is a snapshot, too; a log without one counts as incomplete";
        problems.push(Problem {
            what: what.to_owned(),
            segment: None,
            offset: None,
            remedy: Remedy::Repaired,
        });
    }
    problems.extend(owner.damaged.map(|what| Problem {
        what: format!("one copy of the identity is damaged: {what}"),
        segment: None,
        offset: None,
        remedy: Remedy::Repaired,
    }));
    for (group, complete) in &found.groups {
        let directory = path.join(format!("groups/{}/snapshots", group.0));
        if !found.chains.iter().any(|(of, _)| of == group) || !directory.exists() {
            continue;
        }
        let survey = Survey::of(&directory, owner.cluster, None);
        match survey.map_err(|error| failed(directory, error))? {
            Err(foreign) => problems.push(Problem {
                what: foreign,
                segment: None,
                offset: None,
                remedy: Remedy::Refused,
            }),
            Ok(survey) => {
                let problem = |what: Problem| Problem {
                    what: format!("group {}: {}", group.0, what.what),
                    ..what
                };
                let those = of_survey(&survey, *complete || found.verdict.is_some());
                problems.extend(those.map(problem));
            }
        }
    }
    let directory = path.join("snapshots");
    let mut files = Vec::new();
    for kept in snapshots::list(&directory).map_err(|error| failed(directory.clone(), error))? {
        let flaw = snapshots::verify(&directory, &kept, owner.cluster).map_err(|error| {
            failed(
                directory.join(snapshots::name(kept.info.id, kept.origin)),
                error,
            )
        })?;
        if let Some(Flaw::Foreign(reason)) = &flaw {
            problems.push(Problem {
                what: reason.clone(),
                segment: None,
                offset: None,
                remedy: Remedy::Refused,
            });
        }
        files.push(SnapshotFile {
            slot: kept.info.id.slot.0,
            position: kept.info.id.position.0,
            bytes: kept.info.length,
            fetched: kept.is_fetched(),
            problem: flaw.map(|flaw| match flaw {
                Flaw::Foreign(reason) | Flaw::Damaged(reason) => reason,
            }),
        });
    }
    // In memory durability nothing but the promises outlives the process.
    if owner.durability == Durability::Disk.name()
        && let Ok(survey) =
            Survey::of(&directory, owner.cluster, None).map_err(|error| failed(directory, error))?
    {
        problems.extend(of_survey(
            &survey,
            found.complete || found.verdict.is_some(),
        ));
    }
    drop(lock);
    let segments = found.segments.iter().map(|info| Segment {
        segment: info.number,
        file: format!("journal/{:020}.segment", info.number),
        bytes: info.length,
        first: info.first,
        records: info.records,
        slot_min: info.slots.map(|(low, _)| low.0),
        slot_max: info.slots.map(|(_, high)| high.0),
        end: info.end,
    });
    Ok(Report {
        directory: path.to_path_buf(),
        cluster: owner.cluster.to_string(),
        replica: owner.node.0,
        durability: owner.durability,
        incarnation: owner.incarnation,
        boot: owner.boot,
        repairing: owner.repairing,
        segments: segments.collect(),
        durable: found.durable,
        complete: found.complete,
        torn: found.torn,
        promises: found
            .promises
            .map(|copy| copy.map(|(number, bytes)| PromiseCopy { number, bytes })),
        snapshots: files,
        problems,
    })
}

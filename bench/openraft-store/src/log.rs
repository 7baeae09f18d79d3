//! The log: in memory for readers, and in files that a thread of its own synchronises.
//!
//! ```text
//!   append ──► entries (in memory)
//!          └─► journal's thread: all that waits, one write, one fdatasync ──► told durable
//!
//!   DIR/log-N   length u32 │ checksum u32 │ Record      preallocated; zeros end it
//!   DIR/vote    replaced as a whole
//! ```

use crate::{Failure, Types, machine::replace};
use openraft::{
    Entry, LogId, LogState, OptionalSend, RaftLogReader, StorageError, StorageIOError, Vote,
    storage::{LogFlushed, RaftLogStorage},
};
use rustix::fs::{FallocateFlags, fallocate};
use std::{
    collections::BTreeMap,
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    ops::RangeBounds,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

/// A record of the log's files.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(bound = "")]
enum Record {
    Append(Entry<Types>),
    /// From this index on nothing counts any more.
    Truncate(u64),
    Purge(LogId<u64>),
}

/// A task for the journal's thread.
enum Job {
    Append(Vec<u8>, u64, Option<LogFlushed<Types>>),
    /// Files that hold nothing beyond this index can go.
    Purge(Vec<u8>, u64),
}

#[derive(Default)]
struct State {
    entries: BTreeMap<u64, Entry<Types>>,
    purged: Option<LogId<u64>>,
    vote: Option<Vote<u64>>,
    committed: Option<LogId<u64>>,
}

/// See the module. All clones are the same log.
#[derive(Clone)]
pub struct Log {
    state: Arc<Mutex<State>>,
    /// `None` in memory.
    journal: Option<(mpsc::Sender<Job>, PathBuf)>,
}

const SEGMENT: u64 = 64 << 20;
const RECORD_MAX: usize = 64 << 20;
const HEADER: usize = 8;
const VOTE: &str = "vote";

fn encode(out: &mut Vec<u8>, record: &Record) -> io::Result<()> {
    let bytes = postcard::to_stdvec(record).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    out.extend_from_slice(&bytes);
    Ok(())
}

/// The records of a file up to its end or to one that was not written whole.
fn decode(mut bytes: &[u8]) -> Result<Vec<Record>, postcard::Error> {
    let mut records = Vec::new();
    while let Some((header, rest)) = bytes.split_at_checked(HEADER) {
        let word = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
        let length = u32::from_le_bytes(word(0)) as usize;
        let whole = rest.split_at_checked(length);
        let Some((record, rest)) = whole.filter(|_| (1..=RECORD_MAX).contains(&length)) else {
            break;
        };
        if crc32fast::hash(record) != u32::from_le_bytes(word(4)) {
            break;
        }
        records.push(postcard::from_bytes(record)?);
        bytes = rest;
    }
    Ok(records)
}

impl State {
    fn take(&mut self, record: Record) {
        match record {
            Record::Append(entry) => {
                self.entries.insert(entry.log_id.index, entry);
            }
            Record::Truncate(from) => {
                self.entries.split_off(&from);
            }
            Record::Purge(upto) => {
                self.entries = self.entries.split_off(&(upto.index + 1));
                self.purged = Some(upto);
            }
        }
    }
}

/// The files, used by the journal's thread alone.
struct Files {
    directory: PathBuf,
    current: File,
    number: u64,
    length: u64,
    /// The last index of the current file and of those before it.
    last: u64,
    old: Vec<(u64, u64)>,
}

fn segment(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("log-{number:08}"))
}

impl Files {
    fn begin(directory: PathBuf, number: u64, old: Vec<(u64, u64)>) -> io::Result<Self> {
        let path = segment(&directory, number);
        let mut options = OpenOptions::new();
        let current = options.create_new(true).write(true).open(path)?;
        fallocate(&current, FallocateFlags::empty(), 0, SEGMENT)?;
        current.sync_all()?;
        File::open(&directory)?.sync_all()?;
        let (length, last) = (0, 0);
        Ok(Self {
            directory,
            current,
            number,
            length,
            last,
            old,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.current.write_all(bytes)?;
        self.length += bytes.len() as u64;
        self.current.sync_data()
    }

    fn purge(&mut self, record: &[u8], upto: u64) -> io::Result<()> {
        if self.length > SEGMENT {
            let mut old = std::mem::take(&mut self.old);
            old.push((self.number, self.last));
            *self = Self::begin(self.directory.clone(), self.number + 1, old)?;
        }
        self.write(record)?;
        while let Some((number, _)) = self.old.first().filter(|(_, last)| *last <= upto) {
            fs::remove_file(segment(&self.directory, *number))?;
            self.old.remove(0);
        }
        Ok(())
    }

    /// Writes all queued jobs together until every sender is dropped.
    fn run(mut self, jobs: &mpsc::Receiver<Job>) {
        let mut failed: Option<String> = None;
        while let Ok(first) = jobs.recv() {
            let (mut bytes, mut told, mut purges) = (Vec::new(), Vec::new(), Vec::new());
            for job in std::iter::once(first).chain(jobs.try_iter()) {
                match job {
                    Job::Append(more, last, flushed) => {
                        bytes.extend_from_slice(&more);
                        self.last = self.last.max(last);
                        told.extend(flushed);
                    }
                    Job::Purge(record, upto) => purges.push((record, upto)),
                }
            }
            // After one failure, the rest cannot be trusted to be on disk.
            let written = match &failed {
                None => self.write(&bytes),
                Some(error) => Err(io::Error::other(error.clone())),
            };
            let written = purges.iter().fold(written, |written, (record, upto)| {
                written.and_then(|()| self.purge(record, *upto))
            });
            if let Err(error) = &written {
                failed = Some(error.to_string());
            }
            for flushed in told {
                flushed.log_io_completed(match &written {
                    Ok(()) => Ok(()),
                    Err(error) => Err(io::Error::other(error.to_string())),
                });
            }
        }
    }
}

impl Log {
    /// As the files in `directory` have it; without one, empty and in memory.
    pub fn open(directory: Option<&Path>) -> Result<Self, Failure> {
        let mut state = State::default();
        let Some(directory) = directory else {
            let state = Arc::new(Mutex::new(state));
            let journal = None;
            return Ok(Self { state, journal });
        };
        let mut numbers = Vec::new();
        for file in fs::read_dir(directory)? {
            let name = file?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("log-"));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        let mut old = Vec::new();
        for number in &numbers {
            for record in decode(&fs::read(segment(directory, *number))?)? {
                state.take(record);
            }
            let last = state.entries.last_key_value().map(|(index, _)| *index);
            old.push((*number, last.unwrap_or(0)));
        }
        let vote = directory.join(VOTE);
        if vote.exists() {
            (state.vote, state.committed) = (Some(postcard::from_bytes(&fs::read(vote)?)?), None);
        }
        let number = numbers.last().map_or(0, |last| last + 1);
        let files = Files::begin(directory.to_owned(), number, old)?;
        let (sender, jobs) = mpsc::channel();
        thread::spawn(move || files.run(&jobs));
        Ok(Self {
            state: Arc::new(Mutex::new(state)),
            journal: Some((sender, directory.to_owned())),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn job(&self, job: Job) -> io::Result<()> {
        match &self.journal {
            Some((sender, _)) => sender
                .send(job)
                .map_err(|_| io::Error::other("the journal has ended")),
            None => Ok(()),
        }
    }
}

fn failed(error: &io::Error) -> StorageError<u64> {
    StorageIOError::write_logs(error).into()
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<Types>>, StorageError<u64>> {
        let state = self.state();
        Ok(state
            .entries
            .range(range)
            .map(|entry| entry.1.clone())
            .collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<u64>> {
        let state = self.state();
        let last = state
            .entries
            .last_key_value()
            .map(|(_, entry)| entry.log_id);
        Ok(LogState {
            last_purged_log_id: state.purged,
            last_log_id: last.or(state.purged),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), StorageError<u64>> {
        if let Some((_, directory)) = &self.journal {
            let bytes = postcard::to_stdvec(vote).map_err(io::Error::other);
            bytes
                .and_then(|bytes| replace(directory, VOTE, &bytes))
                .map_err(|error| StorageIOError::write_vote(&error))?;
        }
        self.state().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, StorageError<u64>> {
        Ok(self.state().vote)
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<Types>,
    ) -> Result<(), StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut bytes = Vec::new();
        let mut last = 0;
        {
            let mut state = self.state();
            for entry in entries {
                last = entry.log_id.index;
                if self.journal.is_some() {
                    encode(&mut bytes, &Record::Append(entry.clone())).map_err(|e| failed(&e))?;
                }
                state.entries.insert(last, entry);
            }
        }
        if self.journal.is_none() {
            callback.log_io_completed(Ok(()));
            return Ok(());
        }
        self.job(Job::Append(bytes, last, Some(callback)))
            .map_err(|error| failed(&error))
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Result<(), StorageError<u64>> {
        let record = Record::Truncate(log_id.index);
        let mut bytes = Vec::new();
        encode(&mut bytes, &record).map_err(|error| failed(&error))?;
        self.state().take(record);
        self.job(Job::Append(bytes, 0, None))
            .map_err(|error| failed(&error))
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Result<(), StorageError<u64>> {
        let record = Record::Purge(log_id);
        let mut bytes = Vec::new();
        encode(&mut bytes, &record).map_err(|error| failed(&error))?;
        self.state().take(record);
        self.job(Job::Purge(bytes, log_id.index))
            .map_err(|error| failed(&error))
    }
}

//! File descriptors: how many this process may have, whom they are for, and what happens when none
//! is left.
//!
//! ```text
//!   limit (RLIMIT_NOFILE, raised up to the hard one)
//!     ├── open already: listeners, the data directory, what embeds the replica
//!     ├── reserved: files of the journal and of snapshots, links to peers, admin HTTP, and what the
//!     │             program keeps for itself
//!     └── the rest: clients, clients_max at most
//! ```

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// For segments, snapshots, small files and their directories, all threads together.
const FILES: usize = 64;
/// For connections to the peers' port that have not proved yet who they are: no more are open …
pub(crate) const STRANGERS: usize = 128;
/// … beside this number for each member, all of which may be on one host.
pub(crate) const STRANGERS_PER_PEER: usize = 2;
/// For connections from proxies, which have proved it.
const PROXIES: usize = 64;
/// For the links to one peer: each lane in each direction, and those that replace them.
const PER_PEER: usize = 8;
/// A server for fewer clients than this is of no use to anybody.
const CLIENTS_MIN: usize = 16;

/// How long an operation is tried again while there is no descriptor for it.
const RETRY_MAX: Duration = Duration::from_secs(60);
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Descriptors that the program keeps for files of its own, see [`keep`].
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Keeps descriptors for this many files that the program will open, `uses` in words: replicas that start
/// afterwards leave them away from clients. Raises the process's limit as far as is needed and may be,
/// and warns where that is too little. The largest number counts, not the sum.
pub fn keep(files: usize, uses: &str) {
    let files = files.max(KEPT.fetch_max(files, Ordering::Relaxed));
    let needed = open_now() + files;
    let most = raise(needed);
    if most < needed {
        tracing::warn!(
            "this process may open {most} files, which is too few for {files} of {uses} beside those that \
             are open; raise the hard limit (ulimit -Hn, or LimitNOFILE of its service) to {needed}"
        );
    }
}

/// Whether an error says that there is no descriptor left, and nothing else is wrong.
pub(crate) fn are_exhausted(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE) | Some(libc::ENFILE)
    )
}

/// Descriptors that must be left for uses other than clients, in a group of that many members.
pub(crate) const fn reserved(members: usize, admin_connections: usize) -> usize {
    let peers = (PER_PEER + STRANGERS_PER_PEER) * members;
    FILES + STRANGERS + PROXIES + peers + admin_connections
}

/// How many clients may connect at once of the `wanted` ones, when `reserved` more descriptors
/// than are open now must be left for others. Raises the process's limit as far as is needed and
/// may be.
pub(crate) fn grant(wanted: usize, reserved: usize) -> usize {
    let open = open_now();
    let reserved = reserved + KEPT.load(Ordering::Relaxed);
    let needed = (open + reserved).saturating_add(wanted);
    let most = raise(needed);
    let granted = most.saturating_sub(open + reserved);
    if granted >= wanted {
        return wanted;
    }
    let granted = granted.max(CLIENTS_MIN).min(wanted);
    tracing::warn!(
        "clients_max is {granted} instead of {wanted}: this process may open {most} files, of which \
         {open} are open and {reserved} are kept for peers, files and admin HTTP; raise the hard \
         limit (ulimit -Hn, or LimitNOFILE of its service) to {needed}"
    );
    granted
}

/// Raises the soft limit to `needed` as far as the hard one allows; gives what it is then.
fn raise(needed: usize) -> usize {
    let count = |limit: Option<u64>| limit.map_or(usize::MAX, |limit| limit as usize);
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (count(limit.current), count(limit.maximum));
    let new = needed.min(hard);
    if soft >= new {
        return soft;
    }
    let raised = Rlimit {
        current: Some(new as u64),
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => {
            tracing::debug!(soft, new, "the limit of open files is raised");
            new
        }
        Err(error) => {
            tracing::warn!(%error, soft, new, "the limit of open files cannot be raised");
            soft
        }
    }
}

/// How many descriptors this process has.
fn open_now() -> usize {
    // The listing has one itself.
    std::fs::read_dir("/proc/self/fd").map_or(32, |entries| entries.count())
}

/// Opens something; while there is no descriptor for it, waits and tries again. Only for threads
/// that may wait.
///
/// # Errors
/// As `open`; and when there was no descriptor for a minute, with what to do.
pub(crate) fn retried<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut begun = None;
    let mut pause = PAUSE_MIN;
    loop {
        match open() {
            Err(error) if are_exhausted(&error) => {
                let begun = *begun.get_or_insert_with(|| {
                    tracing::warn!(%error, "no file can be opened; it is tried again");
                    Instant::now()
                });
                if begun.elapsed() >= RETRY_MAX {
                    return Err(explained(&error));
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
            result => return result,
        }
    }
}

/// The disk is not to blame: says what is.
fn explained(error: &io::Error) -> io::Error {
    io::Error::other(format!(
        "{error}, for {} s; nothing is wrong with the disk: raise the limit of open files \
         (ulimit -n, or LimitNOFILE of its service; fs.file-max for the whole system) or lower \
         clients_max, then start the replica again",
        RETRY_MAX.as_secs()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_is_retried_while_there_are_no_descriptors() {
        let mut tries = 0;
        let opened = retried(|| {
            tries += 1;
            match tries {
                1 => Err(io::Error::from_raw_os_error(libc::EMFILE)),
                2 => Err(io::Error::from_raw_os_error(libc::ENFILE)),
                _ => Ok(7),
            }
        });
        assert_eq!((opened.ok(), tries), (Some(7), 3));
        let refused = retried(|| Err::<(), _>(io::Error::from_raw_os_error(libc::EACCES)));
        assert_eq!(
            refused.map_err(|error| error.kind()),
            Err(io::ErrorKind::PermissionDenied)
        );
    }

    #[test]
    fn error_names_the_limit_and_clears_the_disk() {
        let text = explained(&io::Error::from_raw_os_error(libc::EMFILE)).to_string();
        assert!(text.contains("ulimit -n") && text.contains("nothing is wrong with the disk"));
    }

    #[test]
    fn clients_get_what_is_left_of_the_limit() {
        let hard = getrlimit(Resource::Nofile).maximum;
        let hard = hard.map_or(usize::MAX, |hard| hard as usize);
        assert_eq!(grant(10, 10), 10);
        let granted = grant(hard.saturating_sub(1), 100);
        assert!(granted <= hard.saturating_sub(100), "{granted} of {hard}");
    }
}

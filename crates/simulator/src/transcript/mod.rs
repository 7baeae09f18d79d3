//! Transcripts: hand-made cases as text, with what happens written below each step.
//!
//! ```text
//!   # A promise that comes twice counts once.        ◄ comments
//!   quietly cluster 5                                 ◄ commands, one a line
//!   deliver 2->1 type=Promise
//!   ----                                              ◄ what happened, up to an empty line
//!   1: gets Promise from 2
//! ```
//!
//! The commands drive any registered protocol through its erased half: messages and timers are
//! called by the names of the protocol's own types. The events are compared; with
//! `QUINTET_REWRITE=1`, or `--rewrite` of the example `transcript`, they are written into the file
//! instead, to be read before it is kept. [`COMMANDS`] lists the language.
//!
//! Files stand beside the protocol that they are about, in `protocols/src/NAME/tests/transcripts`.

mod commands;
mod words;

use crate::panics;
use commands::Player;
use quintet_protocols::find;
use std::path::{Path, PathBuf};

/// The language, one command a line.
pub const COMMANDS: &str = "\
cluster N [memory] [empty] [OPTION=VALUE]…   N replicas, started unless `empty`; by hand from now on
start R                   starts a replica, for the first time or again
crash R [keep=N] [quietly]
                          it dies; of its writes that are not durable the first N survive; quietly:
                          the others do not notice
restart R                 crash and start
request R [as=NAME] OPERATION [; OPERATION]…
                          a client at replica R asks, in one batch: write K V, append K V, add K V,
                          compare K OLD NEW, read K, look K (a linearizable read), glance K (a stale
                          one)
retry NAME [at=R] [all]   the client sends what is unanswered again, there; all: the answered, too
deliver A->B [type=T] [all|COUNT]
                          frames on their way from A to B arrive, oldest first; * stands for any
drop A->B …               they are lost
double A->B …             they arrive, and will arrive once more
network                   what is on its way
fire R TIMER              a timer of the replica's half fires
timers R                  those that are set
disk R hold|go            writes wait for `persist`, or become durable at once
persist R [COUNT]         the oldest writes become durable
cut A->B | cut A,B|C,D    nothing gets through, one way or between two sides; it waits
heal                      everything gets through, and all that run are connected
link A B up|reset|down    a connection is made, or breaks with all that is on it
pause R, resume R         it stands still, it continues
checkpoint R, handoff R, suspect R OTHER
                          instructions to the protocol
clock R SECONDS           its synchronised clock is off by so much
stabilize                 everything happens that needs no time
run TIME                  everything happens, timers too, for 300ms, 2s …
state [R]…                what the replicas show
show [FIELD]…             from now on messages are shown with these fields
history                   what became of the clients' operations
marks [PART]              how often the branches with this part in their names were taken
check                     the checkers look at what has happened so far
settle                    everything heals; all must converge, and the checkers look at it
quietly COMMAND           the same, and nothing is written";

/// One paragraph of a transcript: its lines up to `----`, and whether that stands there. The lines
/// below it are the events of an earlier run.
struct Step<'a> {
    head: Vec<&'a str>,
    compared: bool,
}

fn steps(text: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    let mut step = Step {
        head: Vec::new(),
        compared: false,
    };
    for line in text.lines() {
        if line.is_empty() {
            steps.push(step);
            step = Step {
                head: Vec::new(),
                compared: false,
            };
        } else if line == "----" {
            step.compared = true;
        } else if !step.compared {
            step.head.push(line);
        }
    }
    steps.push(step);
    steps
}

/// Plays a transcript and gives its text with what happened this time.
///
/// # Errors
/// When there is no such protocol.
pub fn perform(
    protocol: &str,
    text: &str,
    options: &[(String, String)],
) -> Result<String, quintet_protocols::UnknownProtocol> {
    let entry = *find(protocol)?;
    let mut player = Player::new(entry, options.to_vec());
    let mut out = String::new();
    for step in steps(text) {
        let mut lines = Vec::new();
        for line in &step.head {
            out.push_str(line);
            out.push('\n');
            let command = line.trim();
            if command.starts_with('#') {
                continue;
            }
            if let Err(what) = panics::catch(|| player.perform(command, &mut lines)) {
                // Where it was says the message; the line of the source would change too often.
                let what = what.lines().last().unwrap_or_default().to_string();
                player.over(&what, &mut lines);
            }
        }
        if step.compared || !lines.is_empty() {
            out.push_str("----\n");
        }
        for line in lines {
            out.push_str(&line);
            out.push('\n');
        }
        out.push('\n');
    }
    // A file ends with one line break.
    while out.ends_with("\n\n") {
        out.pop();
    }
    Ok(out)
}

/// The first line in which two texts differ, with its number, what was expected, and what came.
fn difference(expected: &str, found: &str) -> Option<(usize, String, String)> {
    let (mut expected, mut found) = (expected.lines(), found.lines());
    for number in 1.. {
        match (expected.next(), found.next()) {
            (None, None) => return None,
            (one, other) if one == other => {}
            (one, other) => {
                let text = |line: Option<&str>| line.unwrap_or("(nothing)").to_string();
                return Some((number, text(one), text(other)));
            }
        }
    }
    None
}

/// Plays a file and compares; with `rewrite` writes what happened into it.
///
/// # Errors
/// Says where what happened differs from what is written, or why the file cannot be read.
pub fn check_file(
    protocol: &str,
    path: &Path,
    options: &[(String, String)],
    rewrite: bool,
) -> Result<(), String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    let found = perform(protocol, &text, options).map_err(|error| error.to_string())?;
    let Some((line, expected, came)) = difference(&text, &found) else {
        return Ok(());
    };
    if rewrite {
        return std::fs::write(path, found).map_err(|error| format!("{name}: {error}"));
    }
    Err(format!(
        "{name}:{line}:\n  expected: {expected}\n  happened: {came}\n  QUINTET_REWRITE=1 writes \
         what happens into the file"
    ))
}

/// The transcripts of a protocol, below the sources of this workspace.
#[must_use]
pub fn files(protocol: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocols/src");
    let folder = root.join(protocol).join("tests/transcripts");
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All transcripts of a protocol.
    fn play(protocol: &str) {
        let rewrite = std::env::var_os("QUINTET_REWRITE").is_some();
        let mut wrong = Vec::new();
        for file in files(protocol) {
            println!("{}", file.display());
            if let Err(what) = check_file(protocol, &file, &[], rewrite) {
                wrong.push(what);
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    macro_rules! play_all {
        ($($protocol:ident)*) => {
            $(#[test]
            fn $protocol() {
                play(stringify!($protocol));
            })*
        };
    }

    quintet_protocols::for_each_protocol! { play_all }

    #[test]
    fn rewriting_replaces_only_recorded_events() {
        let text = "# A comment.\n\nquietly cluster 1\nquietly stabilize\nstate\n----\nwrong\n";
        let found = perform("multipaxos", text, &[]).unwrap();
        assert!(
            found.starts_with("# A comment.\n\nquietly cluster 1\n"),
            "{found}"
        );
        assert!(found.contains("----\n0: leader in 1"), "{found}");
        assert_eq!(perform("multipaxos", &found, &[]).unwrap(), found);
        let (line, expected, _) = difference(text, &found).unwrap();
        assert_eq!((line, expected.as_str()), (7, "wrong"));
    }

    #[test]
    fn command_that_is_invalid_is_told() {
        let text = "dance\ncluster 2 speed=9\nstate\n";
        let found = perform("multipaxos", text, &[]).unwrap();
        assert!(found.contains("there is no command 'dance'"), "{found}");
        assert!(found.contains("no option 'speed'"), "{found}");
        assert!(found.contains("there is no cluster yet"), "{found}");
    }
}

//! Scripts of failing seeds: shrinking them to a file, and running such a file again.
//!
//! ```text
//!   failing seed ──► shrunk ──► PROTOCOL-SEED.toml ──► --replay ──► trace, PROTOCOL-SEED.html
//! ```

use quintet_cli::{
    Exit, Failure, Outcome,
    output::{self, Format, grouped},
};
use quintet_simulator::{Campaign, Script, ShrinkProgress, Size, Story};
use serde::Serialize;
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    time::Duration,
};

/// A script longer than this is not read.
const SCRIPT_MAX: u64 = 64 << 20;

/// The result of a failing seed.
#[derive(Serialize)]
pub(super) struct ShrunkSeed {
    pub seed: u64,
    /// The script.
    pub file: PathBuf,
    pub before: Size,
    pub after: Size,
    /// Runs tried.
    tries: u64,
    /// Whether nothing more could be left out, or time was over.
    minimal: bool,
    /// The command that runs the script.
    pub replay: String,
}

impl ShrunkSeed {
    pub fn shown(&self) -> String {
        let (before, after) = (self.before, self.after);
        format!(
            "  shrunk in {} runs{}: faults {} to {}, operations {} to {}, events {} to {}, replicas \
             {} to {}\n  script: {}\n  replay: {}\n",
            self.tries,
            if self.minimal {
                ", nothing more can be left out"
            } else {
                " until time was over"
            },
            before.faults,
            after.faults,
            before.operations,
            after.operations,
            grouped(before.events),
            grouped(after.events),
            before.replicas,
            after.replicas,
            self.file.display(),
            self.replay,
        )
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,/:".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Shrinks the seed and writes the script. The campaign's own result stands whatever happens here.
pub(super) fn shrink(
    campaign: &Campaign,
    story: &Story,
    budget: Duration,
    directory: Option<&Path>,
) -> Option<ShrunkSeed> {
    let bar = output::bar(0, "shrinking [{elapsed}] {msg}");
    let found = quintet_simulator::shrink(campaign, story.seed, budget, |it: ShrinkProgress| {
        bar.set_message(format!(
            "seed {}: run {}, faults {} to {}, operations {} to {}, choices {} to {}; {}",
            story.seed,
            it.tries,
            it.before.faults,
            it.now.faults,
            it.before.operations,
            it.now.operations,
            grouped(it.before.choices as u64),
            grouped(it.now.choices as u64),
            it.stage
        ));
    });
    bar.finish_and_clear();
    let shrunk = found.ok().flatten()?;
    let directory = directory.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let file = directory.join(format!("quintet-{}-{}.toml", campaign.protocol, story.seed));
    let replay = format!("quintet simulate --replay {}", quoted(&file));
    let text = shrunk.script.to_text(&replay);
    let written = fs::create_dir_all(&directory).and_then(|()| fs::write(&file, text));
    if let Err(error) = written {
        eprintln!("warning: {}: {error}", file.display());
        return None;
    }
    Some(ShrunkSeed {
        seed: story.seed,
        file,
        before: shrunk.before,
        after: shrunk.after,
        tries: shrunk.tries,
        minimal: shrunk.minimal,
        replay,
    })
}

fn read(file: &Path) -> Outcome<Script> {
    let refuse = |what: String| Failure::usage(format!("{}: {what}", file.display()));
    let mut text = String::new();
    let opened = fs::File::open(file).map_err(|error| refuse(error.to_string()))?;
    (opened.take(SCRIPT_MAX + 1))
        .read_to_string(&mut text)
        .map_err(|error| refuse(error.to_string()))?;
    if text.len() as u64 > SCRIPT_MAX {
        return Err(refuse(format!("longer than {SCRIPT_MAX} bytes")));
    }
    Script::parse(&text).map_err(|error| refuse(error.to_string()))
}

#[derive(Serialize)]
struct Printed<'a> {
    file: &'a Path,
    /// The property that did not hold, `stall`, or nothing.
    property: &'a str,
    what: &'a str,
    /// Whether the run was the one that the script was written of, event by event.
    as_written: bool,
    events: u64,
    trace_hash: String,
    picture: Option<&'a Path>,
}

/// Runs a script.
pub(super) fn replay(file: &Path, picture: Option<&Path>, format: Format) -> Outcome {
    let script = read(file)?;
    let replayed = script
        .run(true)
        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    let picture = picture.map_or_else(|| file.with_extension("html"), Path::to_path_buf);
    let drawn = match fs::write(&picture, &replayed.page) {
        Ok(()) => Some(picture.as_path()),
        Err(error) => {
            eprintln!("warning: {}: {error}", picture.display());
            None
        }
    };
    let report = &replayed.report;
    let (property, what) = match (&report.violation, &report.stall) {
        (Some(violation), _) => (violation.property, violation.what.as_str()),
        (None, Some(stall)) => ("stall", stall.as_str()),
        (None, None) => ("", ""),
    };
    if format == Format::Table {
        let mut text = report.lines.join("\n");
        text.push_str("\n\n");
        if !replayed.as_written {
            text.push_str(
                "this is not the run that the script was written of: the script or the program \
                 has changed\n",
            );
        }
        if let Some(picture) = drawn {
            text.push_str(&format!("picture: {}\n", picture.display()));
        }
        output::print(&text)?;
    }
    output::print_json_line(&Printed {
        file,
        property,
        what,
        as_written: replayed.as_written,
        events: report.events,
        trace_hash: format!("{:016x}", report.trace_hash),
        picture: drawn,
    })?;
    if property.is_empty() {
        return Ok(());
    }
    let message = format!("{property}: {what}");
    Err(Failure::new(Exit::Violated, message))
}

//! The trace of a world: a hash always, readable lines when asked for.
//!
//! ```text
//!   every event ──► hash ──► equal for two runs of one seed, or something is not deterministic
//!              └──► line, for people: "  1.204512s r1 ◄ r0 frame 87 bytes"
//! ```

use crate::{
    machine::mix,
    picture::{Scene, Tone},
};

/// See the module.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    pub lines: Option<Vec<String>>,
    /// The scene of a picture, when one is wanted.
    pub scene: Option<Scene>,
}

impl Trace {
    /// A trace; with readable lines or without.
    pub fn new(lines: bool) -> Self {
        Self {
            hash: 0,
            lines: lines.then(Vec::new),
            scene: None,
        }
    }

    pub fn feed(&mut self, word: u64) {
        self.hash = mix(self.hash, word);
    }

    pub const fn hash(&self) -> u64 {
        self.hash
    }

    /// Adds a line if lines are wanted.
    pub fn say(&mut self, now: u64, line: impl FnOnce() -> String) {
        if self.lines.is_none() && self.scene.is_none() {
            return;
        }
        let line = line();
        if let Some(scene) = &mut self.scene {
            note(scene, now, &line);
        }
        if let Some(lines) = &mut self.lines {
            let (seconds, micros) = (now / 1_000_000_000, now / 1_000 % 1_000_000);
            lines.push(format!("{seconds:3}.{micros:06}s {line}"));
        }
    }
}

/// Lines that a picture shows otherwise, or that would only fill it.
const LEFT_OUT: [&str; 8] = [
    "of its frontend",
    "◄",
    "═",
    "─╳",
    " ╳ ",
    "link to",
    "faults: ",
    "seed ",
];

/// A line becomes a note on the lane that it is about.
fn note(scene: &mut Scene, now: u64, line: &str) {
    if LEFT_OUT.iter().any(|part| line.contains(part)) {
        return;
    }
    let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
    let numbered = first.strip_prefix(['r', 'c']).is_some_and(|number| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    let loud = [
        "CRASHES",
        "FAULT",
        "HEALED",
        "cut off",
        "goes away",
        "boots",
    ];
    let tone = match () {
        () if first == "VIOLATION" => Tone::Violation,
        () if loud.iter().any(|word| line.contains(word)) => Tone::Fault,
        () if numbered && first.starts_with('c') => Tone::Client,
        () => Tone::Plain,
    };
    let (lane, text) = match numbered {
        true => (Some(scene.lane(first)), rest),
        false => (None, line),
    };
    scene.note(now, lane, tone, text);
}

//! The trace of a world: a hash always, readable lines when asked for.
//!
//! ```text
//!   every event ──► hash ──► equal for two runs of one seed, or something is not deterministic
//!              └──► line, for people: "  1.204512s r1 ◄ r0 frame 87 bytes"
//! ```

use crate::machine::mix;

/// See the module.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    pub lines: Option<Vec<String>>,
}

impl Trace {
    /// A trace; with readable lines or without.
    pub fn new(lines: bool) -> Self {
        Self {
            hash: 0,
            lines: lines.then(Vec::new),
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
        if let Some(lines) = &mut self.lines {
            let (seconds, micros) = (now / 1_000_000_000, now / 1_000 % 1_000_000);
            lines.push(format!("{seconds:3}.{micros:06}s {}", line()));
        }
    }
}

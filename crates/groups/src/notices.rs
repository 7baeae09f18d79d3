//! Notifications: short texts that commands leave for those who follow their shard.
//!
//! ```text
//!   command ──► context.notify("stock-out", text) ──► 41 42 43 44   the last ones, part of the state
//!                                                          │
//!   follower: all from 43 on ──► a linearizable query ─────┘──► 43, 44, next: 45
//!   follower: all from 12 on ──► missed 12 to 40, then 41 …
//! ```
//!
//! They are numbered in the order of the commands, whatever their names. A query sees executed commands
//! that are final, so a follower is told of these only.

use quintet_replica::RestoreError;
use serde::{Deserialize, Serialize};
use std::{collections::VecDeque, sync::Arc};

/// More are not kept, nor more bytes of them.
const KEPT_MAX: usize = 1024;
const KEPT_BYTES_MAX: usize = 1 << 20;
/// A command leaves no more, with names and texts of no more bytes.
pub(crate) const PER_COMMAND_MAX: usize = 64;
pub(crate) const NAME_MAX: usize = 64;
pub(crate) const TEXT_MAX: usize = 16 << 10;
/// Bytes that are told at once, and one more.
const TOLD_BYTES: usize = 64 << 10;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// Counted per shard, from 1.
    pub number: u64,
    /// The newest version behind the command.
    pub version: u64,
    /// The time of the command.
    pub time: u64,
    /// Followed by this name.
    pub name: String,
    /// As the command has it.
    pub text: String,
}

impl Notice {
    const fn bytes(&self) -> usize {
        64 + self.name.len() + self.text.len()
    }
}

/// An answer to a follower.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The oldest number that is kept; the next one to come where there is none.
    pub oldest: u64,
    /// The number to ask for next.
    pub next: u64,
    /// In their order.
    pub notices: Vec<Notice>,
}

/// Those of a shard, part of its state. A copy shares them.
#[derive(Clone, Debug, Default)]
pub struct Notices {
    kept: Arc<VecDeque<Arc<Notice>>>,
    bytes: usize,
    /// The last number.
    last: u64,
}

impl Notices {
    /// The last number.
    #[must_use]
    pub const fn last(&self) -> u64 {
        self.last
    }

    /// Bytes of those that are kept.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Numbers what a command leaves; the oldest make room.
    pub fn add(&mut self, wanted: Vec<(String, String)>, version: u64, time: u64) {
        for (name, text) in wanted {
            self.last += 1;
            self.put(Notice {
                number: self.last,
                version,
                time,
                name,
                text,
            });
        }
    }

    fn put(&mut self, notice: Notice) {
        self.bytes += notice.bytes();
        let kept = Arc::make_mut(&mut self.kept);
        kept.push_back(Arc::new(notice));
        while kept.len() > KEPT_MAX || self.bytes > KEPT_BYTES_MAX {
            self.bytes -= kept.pop_front().map_or(0, |it| it.bytes());
        }
    }

    /// Those of this name from this number on; none from 0 on, which stands for the next one.
    #[must_use]
    pub fn told(&self, name: &str, from: u64) -> Told {
        let after = self.last + 1;
        let mut told = Told {
            oldest: self.kept.front().map_or(after, |it| it.number),
            next: if from == 0 { after } else { from.max(after) },
            notices: Vec::new(),
        };
        if from == 0 {
            return told;
        }
        let mut bytes = 0;
        for notice in self.kept.iter().filter(|it| it.number >= from) {
            if notice.name != name {
                continue;
            }
            if bytes >= TOLD_BYTES {
                told.next = notice.number;
                break;
            }
            bytes += notice.bytes();
            told.notices.push(Notice::clone(notice));
        }
        told
    }

    /// The one at this place, for snapshots.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<&Notice> {
        self.kept.get(place).map(|it| &**it)
    }

    /// A snapshot's: those that are kept follow.
    pub fn restore_last(&mut self, last: u64) {
        *self = Self {
            last,
            ..Self::default()
        };
    }

    /// The next one of a snapshot.
    ///
    /// # Errors
    /// When its number cannot be the next.
    pub fn restore(&mut self, notice: Notice) -> Result<(), RestoreError> {
        let before = self.kept.back().map(|it| it.number);
        let follows = before.is_none_or(|before| notice.number == before + 1);
        if !follows || notice.number > self.last {
            return Err(RestoreError(
                "a notification that was never made".to_owned(),
            ));
        }
        self.put(notice);
        Ok(())
    }
}

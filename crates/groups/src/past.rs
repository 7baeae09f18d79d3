//! Past values of a field, in memory or put away.

use crate::{
    archive::{Archive, Away, Put},
    encoding,
};
use elsa::sync::FrozenMap;
use serde::{Serialize, de::DeserializeOwned};
use std::{cell::Cell, collections::VecDeque, sync::Arc};

/// A value of the past.
#[derive(Clone, Debug)]
pub(crate) struct Past<V> {
    pub since: u64,
    pub ends: u64,
    pub value: Option<Kept<V>>,
    /// Its weight for retention: the same at every member, wherever the value is.
    pub bytes: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Kept<V> {
    Here(Arc<V>),
    /// Here permanently.
    Stays(Arc<V>),
    Away(Away),
}

/// Bytes for a past value besides its encoding.
const PAST_WEIGHT: u64 = 48;
/// A command puts away as many values as it has added and this number of earlier ones. For each of
/// them it passes over `PASSED_PER_MOVE` values that stay.
const MOVED_PER_COMMAND: usize = 16;
const PASSED_PER_MOVE: usize = 64;

/// The work that is left to one command.
pub(crate) struct Steps {
    moves: usize,
    passes: usize,
}

impl Steps {
    /// Of a command that has added this many past values.
    pub const fn behind(added: usize) -> Self {
        let moves = MOVED_PER_COMMAND + added;
        let passes = moves * PASSED_PER_MOVE;
        Self { moves, passes }
    }
}

impl<V> Past<V> {
    /// `length` is that of the value's encoding, if there is one.
    pub fn new(since: u64, ends: u64, value: Option<Arc<V>>, length: u64) -> Self {
        let bytes = PAST_WEIGHT + value.as_ref().map_or(0, |_| length);
        Self {
            since,
            ends,
            value: value.map(Kept::Here),
            bytes,
        }
    }

    /// That of its encoding.
    pub const fn length(&self) -> u64 {
        self.bytes - PAST_WEIGHT
    }

    /// Bytes that were put away.
    fn away(&self) -> u64 {
        match self.value {
            Some(Kept::Away(_)) => self.length(),
            _ => 0,
        }
    }

    /// Bytes in memory that can be put away.
    fn movable(&self, archive: &dyn Archive) -> u64 {
        match self.value {
            Some(Kept::Here(_)) if archive.takes(self.length()) => self.length(),
            _ => 0,
        }
    }
}

impl<V: Serialize> Past<V> {
    /// Puts its value away, if it can be; false when the archive takes none now.
    fn put_away(&mut self, archive: &dyn Archive, waits: bool) -> bool {
        if let Some(Kept::Here(value)) = &self.value
            && let length @ 1.. = self.movable(archive)
        {
            self.value = Some(match Away::put(&**value, length, archive, waits) {
                Put::Away(away) => Kept::Away(away),
                Put::Never => Kept::Stays(value.clone()),
                Put::NotNow => return false,
            });
        }
        true
    }

    /// Appends its value's encoding as that of an `Option`.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.value.is_some()));
        match &self.value {
            Some(Kept::Here(value) | Kept::Stays(value)) => encoding::append(&**value, out),
            Some(Kept::Away(away)) => out.extend_from_slice(&away.bytes()),
            None => {}
        }
    }

    /// The encoding of its value.
    pub fn encoding(&self) -> Option<Vec<u8>> {
        self.value.as_ref().map(|kept| match kept {
            Kept::Here(value) | Kept::Stays(value) => encoding::encode(&**value),
            Kept::Away(away) => away.bytes().to_vec(),
        })
    }
}

/// One read of the past takes no more values from the disk, and no more bytes: the shards of the member
/// wait for it.
pub(crate) const VALUES_MAX: u64 = 8192;
pub(crate) const BYTES_MAX: u64 = 128 << 20;

thread_local! {
    /// Values and bytes that the read on this thread may take; no number where it has taken more.
    static LEFT: Cell<Option<(u64, u64)>> = const { Cell::new(Some((u64::MAX, u64::MAX))) };
}

/// Lets a read take a bounded number of values from the disk, and says whether it wanted more. It ends
/// by a panic then, which it must catch.
pub(crate) fn bounded<T>(read: impl FnOnce() -> T) -> (T, bool) {
    let before = LEFT.replace(Some((VALUES_MAX, BYTES_MAX)));
    let read = read();
    let is_too_much = LEFT.replace(before).is_none();
    (read, is_too_much)
}

fn count_read(bytes: u64) {
    let left = LEFT.get().and_then(|(values, left)| {
        let values = values.checked_sub(1)?;
        Some((values, left.checked_sub(bytes)?))
    });
    LEFT.set(left);
    if left.is_none() {
        // No fault of a handler: nothing is reported as a panic.
        std::panic::resume_unwind(Box::new("too much of the past"));
    }
}

fn read<V: DeserializeOwned>(away: &Away) -> Arc<V> {
    count_read(away.length());
    let value = encoding::decode(&away.bytes());
    Arc::new(value.expect("the encoding of a value, by its hash"))
}

impl<V: DeserializeOwned> Kept<V> {
    pub fn value(&self) -> Arc<V> {
        match self {
            Self::Here(value) | Self::Stays(value) => value.clone(),
            Self::Away(away) => read(away),
        }
    }
}

/// Values that were put away and have been read since, while a fork of a map answers.
pub(crate) struct Loaded<V>(FrozenMap<usize, Arc<V>>);

impl<V> Default for Loaded<V> {
    fn default() -> Self {
        Self(FrozenMap::new())
    }
}

impl<V: DeserializeOwned> Loaded<V> {
    pub fn value<'a>(&'a self, kept: &'a Kept<V>) -> &'a V {
        match kept {
            Kept::Here(value) | Kept::Stays(value) => value,
            Kept::Away(away) => {
                let found = self.0.get(&away.id());
                found.unwrap_or_else(|| self.0.insert(away.id(), read(away)))
            }
        }
    }
}

/// How far the past values of a field have been put away: the oldest first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// The first ones, which were looked at.
    looked_at: usize,
    /// Bytes of those in memory that can be put away.
    movable: u64,
    /// Bytes of those that were put away.
    away: u64,
}

impl Progress {
    /// Another one, behind all there are.
    pub fn add<V>(&mut self, past: &Past<V>, archive: &dyn Archive) {
        self.movable += past.movable(archive);
        self.away += past.away();
    }

    /// One that a snapshot had, with as many behind it as it had: to be put away at once.
    pub fn restore<V: Serialize>(&mut self, past: &mut Past<V>, archive: &dyn Archive) {
        past.put_away(archive, true);
        self.add(past, archive);
    }

    /// The last of them has been read: there are this many.
    pub const fn finish_restore(&mut self, all: usize) {
        if self.movable == 0 {
            self.looked_at = all;
        }
    }

    /// The place among them of the next that is to be put away, if there is one.
    pub fn next(&self, all: usize, archive: &dyn Archive) -> Option<usize> {
        let is_due = self.movable > archive.in_memory() && self.looked_at < all;
        is_due.then_some(self.looked_at)
    }

    /// Puts it away, or passes over it if it stays; false when the archive takes none now, or the
    /// command has done enough.
    pub fn put_away<V: Serialize>(
        &mut self,
        past: &mut Past<V>,
        archive: &dyn Archive,
        steps: &mut Steps,
    ) -> bool {
        let (movable, away) = (past.movable(archive), past.away());
        let left = match movable {
            0 => &mut steps.passes,
            _ => &mut steps.moves,
        };
        if *left == 0 || !past.put_away(archive, false) {
            return false;
        }
        *left -= 1;
        self.movable -= movable;
        self.away += past.away() - away;
        self.looked_at += 1;
        true
    }

    /// The first one of all is over.
    pub fn drop_first(&mut self) {
        self.looked_at = self.looked_at.saturating_sub(1);
    }

    /// This one is over.
    pub fn dropped<V>(&mut self, past: &Past<V>, archive: &dyn Archive) {
        self.movable -= past.movable(archive);
        self.away -= past.away();
    }

    /// Bytes that are not in memory.
    pub const fn away(&self) -> u64 {
        self.away
    }
}

/// Drops what ends up to `horizon`, tells of each, and gives the bytes that it counted for.
pub(crate) fn drop_until<V>(
    past: &mut VecDeque<Past<V>>,
    horizon: u64,
    mut dropped: impl FnMut(&Past<V>),
) -> u64 {
    let mut bytes = 0;
    while past.front().is_some_and(|first| first.ends <= horizon) {
        let first = past.pop_front().expect("the front");
        dropped(&first);
        bytes += first.bytes;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::{Archived, Encode, WhimsicalArchive};

    fn past(since: u64, length: u64) -> Past<u8> {
        Past::new(since, since + 1, Some(Arc::new(7)), length)
    }

    #[test]
    fn value_behind_restored_ones_is_the_next_to_be_put_away() {
        let (archive, mut progress) = (WhimsicalArchive::new(0), Progress::default());
        let mut all: Vec<_> = (0..99).map(|since| past(since, 1)).collect();
        for restored in &mut all {
            progress.restore(restored, &archive);
        }
        progress.finish_restore(all.len());
        progress.add(&past(99, 1), &archive);
        assert_eq!(progress.next(100, &archive), Some(99));
    }

    /// Takes values of two bytes and more, and never one of three.
    #[derive(Debug)]
    struct Large;

    #[derive(Debug)]
    struct Lost;

    impl Archived for Lost {
        fn read(&self) -> std::io::Result<crate::Bytes> {
            unreachable!("not read")
        }
    }

    impl Archive for Large {
        fn in_memory(&self) -> u64 {
            10
        }
        fn takes(&self, length: u64) -> bool {
            length >= 2
        }
        fn put(&self, length: u64, encode: Encode<'_>, _: bool) -> Put {
            encode();
            match length {
                3 => Put::Never,
                _ => Put::Away(Arc::new(Lost)),
            }
        }
    }

    /// Commands that each add past values of these lengths; gives the bytes that stay in memory and
    /// can be put away.
    fn left_in_memory(commands: &[Vec<u64>]) -> u64 {
        let (mut all, mut progress) = (Vec::new(), Progress::default());
        for command in commands {
            for length in command {
                all.push(past(all.len() as u64, *length));
                progress.add(&all[all.len() - 1], &Large);
            }
            let mut steps = Steps::behind(command.len());
            while let Some(next) = progress.next(all.len(), &Large)
                && progress.put_away(&mut all[next], &Large, &mut steps)
            {}
        }
        let movable: u64 = all.iter().map(|past| past.movable(&Large)).sum();
        let away: u64 = all.iter().map(Past::away).sum();
        assert_eq!((progress.movable, progress.away), (movable, away));
        movable
    }

    #[test]
    fn command_puts_as_many_values_away_as_it_adds() {
        assert_eq!(left_in_memory(&vec![vec![5; 100]; 9]), 10);
    }

    #[test]
    fn values_that_stay_do_not_keep_others_in_memory() {
        let small = vec![1; 500];
        assert_eq!(
            left_in_memory(&[small.clone(), small, vec![20], vec![5]]),
            5
        );
        let unsteady = vec![3; 4];
        assert_eq!(left_in_memory(&[unsteady, vec![5], vec![5]]), 10);
    }
}

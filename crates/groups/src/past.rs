//! Past values of a field, in memory or put away.

use crate::{
    archive::{Archive, Away},
    encoding,
};
use elsa::sync::FrozenMap;
use serde::{Serialize, de::DeserializeOwned};
use std::{collections::VecDeque, sync::Arc};

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
    Away(Away),
}

/// Bytes for a past value besides its encoding.
const PAST_WEIGHT: u64 = 48;
/// One command puts no more values away.
const MOVED_PER_COMMAND: usize = 16;

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

    fn length(&self) -> u64 {
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
            match Away::put(&**value, length, archive, waits) {
                Some(away) => self.value = Some(Kept::Away(away)),
                None => return false,
            }
        }
        true
    }

    /// Appends its value's encoding as that of an `Option`.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.value.is_some()));
        match &self.value {
            Some(Kept::Here(value)) => encoding::append(&**value, out),
            Some(Kept::Away(away)) => out.extend_from_slice(&away.bytes()),
            None => {}
        }
    }

    /// The encoding of its value.
    pub fn encoding(&self) -> Option<Vec<u8>> {
        self.value.as_ref().map(|kept| match kept {
            Kept::Here(value) => encoding::encode(&**value),
            Kept::Away(away) => away.bytes().to_vec(),
        })
    }
}

fn read<V: DeserializeOwned>(away: &Away) -> Arc<V> {
    let value = encoding::decode(&away.bytes());
    Arc::new(value.expect("the encoding of a value, by its hash"))
}

impl<V: DeserializeOwned> Kept<V> {
    pub fn value(&self) -> Arc<V> {
        match self {
            Self::Here(value) => value.clone(),
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
            Kept::Here(value) => value,
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

    /// Puts it away; false when the archive takes none now.
    pub fn put_away<V: Serialize>(&mut self, past: &mut Past<V>, archive: &dyn Archive) -> bool {
        let bytes = past.movable(archive);
        let is_done = past.put_away(archive, false);
        if is_done {
            self.movable -= bytes;
            self.away += bytes;
            self.looked_at += 1;
        }
        is_done
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

    /// Places that one command puts away at most.
    pub fn steps() -> std::ops::Range<usize> {
        0..MOVED_PER_COMMAND
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
    use crate::archive::WhimsicalArchive;

    #[test]
    fn value_behind_restored_ones_is_the_next_to_be_put_away() {
        let (archive, mut progress) = (WhimsicalArchive::new(0), Progress::default());
        let past = |since| Past::new(since, since + 1, Some(Arc::new(7u8)), 1);
        let mut all: Vec<_> = (0..99).map(past).collect();
        for restored in &mut all {
            progress.restore(restored, &archive);
        }
        progress.finish_restore(all.len());
        progress.add(&past(99), &archive);
        assert_eq!(progress.next(100, &archive), Some(99));
    }
}

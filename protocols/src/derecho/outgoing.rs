//! Own messages: what was sent in the view and not yet taken by all, and the slots that it fills.

use alloc::{collections::VecDeque, vec, vec::Vec};
use quintet_replica::{Frame, parts::Timing};

/// Kinds of slots of the ring: its kind above, a length or count below.
pub(super) const KIND_SMALL: u64 = 0;
pub(super) const KIND_NULLS: u64 = 1;
pub(super) const KIND_BULK: u64 = 2;
pub(super) const KIND_SHIFT: u32 = 48;

/// A slot that was sent and not yet taken by all.
#[derive(Debug, Hash)]
pub(super) struct Sent {
    pub slot: u64,
    pub first: u64,
    pub count: u64,
    pub body: Frame,
    pub path: Path,
}

/// On which way the bytes of a message go to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Path {
    /// In its slot of the ring (SMC).
    Slot,
    /// On the lane for bulk, whole.
    Whole,
    /// On the lane for bulk, in blocks that members forward (RDMC).
    Blocks,
}

impl Sent {
    /// The slot's words: its guard, its kind and length, the message.
    pub fn words(&self) -> Vec<u64> {
        let guard = self.slot + 1;
        if self.body.is_empty() {
            return vec![guard, KIND_NULLS << KIND_SHIFT | self.count];
        }
        let length = self.body.len() as u64;
        if self.path != Path::Slot {
            return vec![guard, KIND_BULK << KIND_SHIFT | length];
        }
        let mut words = Vec::with_capacity(2 + self.body.len().div_ceil(8));
        words.extend([guard, KIND_SMALL << KIND_SHIFT | length]);
        for chunk in self.body.slice(0..self.body.len()).chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            words.push(u64::from_le_bytes(word));
        }
        words
    }
}

/// See the module.
#[derive(Debug, Default, Hash)]
pub(super) struct Outgoing {
    /// Messages sent, nulls included, and slots filled.
    sent: u64,
    slots: u64,
    /// Slots that were put to all.
    slots_put: u64,
    unacked: VecDeque<Sent>,
    /// Messages by the way they went.
    multicasts: Timing<[u64; 3]>,
}

impl Outgoing {
    /// A view begins.
    pub fn begin(&mut self) {
        let multicasts = self.multicasts;
        *self = Self {
            multicasts,
            ..Self::default()
        };
    }

    pub const fn sent(&self) -> u64 {
        self.sent
    }

    pub fn multicasts(&self) -> [u64; 3] {
        *self.multicasts
    }

    /// The number of slots that not all have taken.
    pub fn len(&self) -> usize {
        self.unacked.len()
    }

    pub fn is_empty(&self) -> bool {
        self.unacked.is_empty()
    }

    /// Sends a message, or a run of `count` nulls without a body.
    pub fn push(&mut self, count: u64, body: Frame, path: Path) {
        if !body.is_empty() {
            self.multicasts[path as usize] += 1;
        }
        self.unacked.push_back(Sent {
            slot: self.slots,
            first: self.sent,
            count,
            body,
            path,
        });
        self.slots += 1;
        self.sent += count;
    }

    /// Of an injected bug: the last two slots change places.
    pub fn swap_last(&mut self) {
        let mut last = self.unacked.iter_mut().rev();
        if let (Some(null), Some(sent)) = (last.next(), last.next()) {
            core::mem::swap(&mut null.body, &mut sent.body);
            core::mem::swap(&mut null.path, &mut sent.path);
        }
    }

    /// Slots that were not put yet. They ascend, so the others need not be looked through.
    pub fn unput(&self) -> impl Iterator<Item = &Sent> {
        let put = self.slots_put;
        let first = self.unacked.partition_point(|sent| sent.slot < put);
        self.unacked.range(first..)
    }

    /// Bytes of whole messages that go with the next put.
    pub fn unput_bytes(&self) -> usize {
        let whole = self.unput().filter(|sent| sent.path == Path::Whole);
        whole.map(|sent| sent.body.len()).sum()
    }

    pub const fn is_put(&self) -> bool {
        self.slots_put == self.slots
    }

    pub const fn put(&mut self) {
        self.slots_put = self.slots;
    }

    /// Slots that a peer has not said to have received, which has `taken` this many messages.
    pub fn missing(&self, taken: u64) -> impl Iterator<Item = &Sent> {
        let unacked = self.unacked.iter();
        unacked.filter(move |sent| sent.first + sent.count > taken)
    }

    /// The bytes that it takes to send all of that which goes as a whole: to some of it, nothing
    /// would bring the rest.
    pub fn bodies_missing(&self, taken: u64) -> usize {
        let whole = self.missing(taken).filter(|sent| sent.path == Path::Whole);
        whole.map(|sent| sent.body.len() + 1024).sum()
    }

    /// Bytes of messages in the ring, and of those besides it.
    pub fn bytes(&self) -> (usize, usize) {
        let (mut ring, mut large) = (0, 0);
        for sent in &self.unacked {
            match sent.path {
                Path::Slot => ring += sent.body.len() + 64,
                Path::Whole | Path::Blocks => large += sent.body.len(),
            }
        }
        (ring, large)
    }

    /// All members have `taken` this many messages: their slots may be written again.
    pub fn taken_by_all(&mut self, taken: u64) {
        let put = self.slots_put;
        let done = |sent: &Sent| sent.first + sent.count <= taken && sent.slot < put;
        while self.unacked.front().is_some_and(done) {
            self.unacked.pop_front();
        }
    }
}

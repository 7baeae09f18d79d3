//! Words that wait: for the disk, for the end of a turn, or to be said again.

use super::BlockId;
use alloc::collections::VecDeque;
use quintet_replica::PersistId;

/// A word that is due when a write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Due {
    /// A vote for a block of the synchronous mode.
    Vote(BlockId),
    /// A vote for a block of the asynchronous mode.
    VoteAsync(BlockId),
    /// An own block of the asynchronous mode.
    Own(BlockId),
}

/// See the module.
#[derive(Default, Hash)]
pub(super) struct Outbox {
    /// The write that all words of this view wait for.
    promise: Option<PersistId>,
    due: VecDeque<(PersistId, Due)>,
    wanted: bool,
    repeat_armed: bool,
    /// How often the same has been said since the view or mode changed.
    repeats: u32,
}

impl Outbox {
    /// Whether words of this view may be said: the view is on disk.
    pub const fn is_settled(&self) -> bool {
        self.promise.is_none()
    }

    /// The view is being written.
    pub const fn promised(&mut self, write: PersistId) {
        self.promise = Some(write);
    }

    pub fn say_after(&mut self, write: PersistId, due: Due) {
        self.due.push_back((write, due));
    }

    /// All writes up to this one are durable: perhaps that of the view, too.
    pub fn durable_up_to(&mut self, upto: PersistId) {
        if self.promise.take_if(|write| *write <= upto).is_some() {
            self.wanted = true;
        }
    }

    /// The next word that is due when all writes up to this one are durable.
    pub fn pop_due(&mut self, upto: PersistId) -> Option<Due> {
        self.due.front().filter(|(write, _)| *write <= upto)?;
        self.due.pop_front().map(|(_, due)| due)
    }

    /// The others are to know of this replica's place in its view.
    pub const fn want(&mut self) {
        self.wanted = true;
    }

    /// Whether they are told now.
    pub const fn take_wanted(&mut self) -> bool {
        let now = self.wanted && self.is_settled();
        self.wanted &= !now;
        now
    }

    /// The view or mode has changed: there is something new to say.
    pub const fn renew(&mut self) {
        self.repeats = 0;
    }

    /// The timer is to be set, after this many times the usual pause: a replica that timed out
    /// alone may repeat its words for long. None when it is set.
    pub fn arm(&mut self) -> Option<u32> {
        let longer = 1 << (self.repeats / 8).min(4);
        (!core::mem::replace(&mut self.repeat_armed, true)).then_some(longer)
    }

    /// The timer has fired.
    pub const fn fired(&mut self) {
        self.repeat_armed = false;
    }

    /// The same is said again.
    pub const fn repeat(&mut self) {
        self.wanted = true;
        self.repeats = self.repeats.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_wait_for_view_and_for_their_writes() {
        let mut outbox = Outbox::default();
        outbox.promised(PersistId(1));
        outbox.want();
        let vote = Due::Vote(BlockId::GENESIS);
        outbox.say_after(PersistId(2), vote);
        assert!(!outbox.take_wanted(), "the view is not durable");
        outbox.durable_up_to(PersistId(1));
        assert!(outbox.take_wanted() && !outbox.take_wanted());
        assert_eq!(outbox.pop_due(PersistId(1)), None);
        assert_eq!(outbox.pop_due(PersistId(2)), Some(vote));
    }

    #[test]
    fn repeated_words_become_rarer_until_view_changes() {
        let mut outbox = Outbox::default();
        assert_eq!((outbox.arm(), outbox.arm()), (Some(1), None));
        outbox.fired();
        (0..8).for_each(|_| outbox.repeat());
        assert_eq!(outbox.arm(), Some(2));
        outbox.fired();
        outbox.renew();
        assert_eq!(outbox.arm(), Some(1));
    }
}

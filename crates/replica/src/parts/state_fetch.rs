//! A peer's state that a replica waits for, and how much it has to cover.
//!
//! ```text
//!   what is needed is no longer kept ── ask ──► FetchState{at_least} ──► a peer's state, or
//!        │                                                               the log after all
//!        └─ less would do, says another: asked again, for less              │
//!                                                                  reached ◄┘
//! ```
//!
//! Of two peers each says what it no longer keeps. The one that needs more to be covered may be
//! gone permanently, and no other may have come as far, while the others wait for this very
//! replica. So it is always the least of what was asked for that counts: any newer state helps, and
//! what lies behind it is asked for when that one is here.

use crate::{Context, Protocol, ReplicaSet, Slot, Time};

/// The requested state; see the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StateFetch {
    asked: Option<(Slot, Time)>,
}

impl StateFetch {
    /// The slot that the state must cover; none when nothing is waited for.
    #[must_use]
    pub fn asked(&self) -> Option<Slot> {
        self.asked.map(|(slot, _)| slot)
    }

    /// Whether a state is waited for.
    #[must_use]
    pub const fn in_progress(&self) -> bool {
        self.asked.is_some()
    }

    /// Since when, although the slot may have changed meanwhile.
    #[must_use]
    pub fn since(&self) -> Option<Time> {
        self.asked.map(|(_, since)| since)
    }

    /// Whether a state that covers `at_least` is to be asked for now, by a replica that has
    /// executed so much: not when it has that much, or waits for as little already.
    fn lowers(&mut self, at_least: Slot, executed: Slot, now: Time) -> bool {
        let asked = self.asked();
        if at_least <= executed || asked.is_some_and(|asked| asked <= at_least) {
            return false;
        }
        self.expect(at_least, now);
        true
    }

    /// Asks these peers for a state that covers `at_least`, for a replica that has executed so
    /// much, unless it waits for as little already.
    pub fn ask<P: Protocol>(
        &mut self,
        at_least: Slot,
        executed: Slot,
        from: ReplicaSet,
        ctx: &mut Context<'_, P>,
    ) {
        if self.lowers(at_least, executed, ctx.now()) {
            ctx.mark("state transfer chosen");
            ctx.fetch_state(from, at_least);
        }
    }

    /// A state that covers `at_least`, and no less, is waited for; the host asks for it itself.
    pub fn expect(&mut self, at_least: Slot, now: Time) {
        let since = self.since().unwrap_or(now);
        self.asked = Some((at_least, since));
    }

    /// Everything up to this slot is here, by a state or by the log. True when that is what was
    /// waited for.
    pub fn reached(&mut self, slot: Slot) -> bool {
        self.asked
            .take_if(|(at_least, _)| *at_least <= slot)
            .is_some()
    }

    /// Nothing is waited for any more; should it come after all, it is installed all the same.
    pub const fn give_up(&mut self) {
        self.asked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_asked_for_when_less_will_do_and_never_more() {
        let mut fetch = StateFetch::default();
        assert!(
            !fetch.lowers(Slot(3), Slot(3), Time(1)),
            "all of it is here"
        );
        assert!(fetch.lowers(Slot(9), Slot(3), Time(1)));
        assert!(!fetch.lowers(Slot(9), Slot(3), Time(2)), "asked already");
        assert!(
            !fetch.lowers(Slot(12), Slot(3), Time(2)),
            "any donor has it"
        );
        assert!(fetch.lowers(Slot(5), Slot(3), Time(3)), "another has that");
        assert_eq!(fetch.asked(), Some(Slot(5)));
        assert_eq!(fetch.since(), Some(Time(1)), "it has waited since then");
    }

    #[test]
    fn state_or_the_log_ends_it() {
        let mut fetch = StateFetch::default();
        assert!(!fetch.reached(Slot(9)), "nothing was waited for");
        assert!(fetch.lowers(Slot(5), Slot(0), Time(1)));
        assert!(!fetch.reached(Slot(4)) && fetch.in_progress());
        assert!(fetch.reached(Slot(5)) && !fetch.in_progress());
        assert!(fetch.lowers(Slot(8), Slot(5), Time(7)));
        assert_eq!(fetch.since(), Some(Time(7)));
        fetch.give_up();
        assert!(!fetch.in_progress());
    }
}

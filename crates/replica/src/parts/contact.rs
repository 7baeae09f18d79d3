//! Whether a peer can be reached, by its messages and its link.

use crate::Time;
use core::time::Duration;

/// See the module.
#[derive(Clone, Debug, Default, Hash)]
pub struct Contact {
    received_at: Time,
    down_at: Option<Time>,
    /// Nothing has come over its link since that was made.
    is_new: bool,
}

impl Contact {
    /// A message of it has come.
    pub const fn received(&mut self, now: Time) {
        self.received_at = now;
        self.down_at = None;
    }

    /// It is there, although none of its messages is complete; or counts as silent since then.
    pub const fn arriving(&mut self, now: Time) {
        self.received_at = now;
    }

    /// There is a link to it again.
    pub const fn link_up(&mut self) {
        self.down_at = None;
        self.is_new = true;
    }

    /// The link to it is broken.
    pub fn link_down(&mut self, now: Time) {
        self.down_at.get_or_insert(now);
    }

    /// Whether its link is broken.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        self.down_at.is_some()
    }

    /// Whether this is the first word over a new link: words sent before it may be missing here.
    pub const fn is_first_word(&mut self) -> bool {
        core::mem::replace(&mut self.is_new, false)
    }

    /// How long nothing has come from it.
    #[must_use]
    pub fn silence(&self, now: Time) -> Duration {
        now.since(self.received_at)
    }

    /// Whether it has neither been silent nor unreachable for as long as this.
    #[must_use]
    pub fn is_alive(&self, now: Time, silence: Duration, down: Duration) -> bool {
        let is_down = self.down_at.is_some_and(|at| now.since(at) >= down);
        !is_down && self.silence(now) < silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_is_alive_until_silent_or_unreachable() {
        let (silence, down) = (Duration::from_nanos(10), Duration::from_nanos(4));
        let mut contact = Contact::default();
        contact.received(Time(5));
        assert!(contact.is_alive(Time(14), silence, down));
        assert!(!contact.is_alive(Time(15), silence, down));
        contact.link_down(Time(8));
        contact.link_down(Time(11));
        assert!(contact.is_alive(Time(11), silence, down) && contact.is_down());
        assert!(!contact.is_alive(Time(12), silence, down));
        contact.link_up();
        contact.arriving(Time(12));
        assert!(contact.is_alive(Time(12), silence, down));
        assert!(contact.is_first_word() && !contact.is_first_word());
    }
}

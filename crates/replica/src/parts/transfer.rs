//! A leader that has asked another replica to lead in its place.

use crate::Time;
use core::time::Duration;

/// Since when another is asked, if one is.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub struct Transfer(Option<Time>);

impl Transfer {
    /// Another replica is asked to lead.
    pub const fn begin(&mut self, now: Time) {
        self.0 = Some(now);
    }

    /// Whether one is asked.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.0.is_some()
    }

    /// Leads on when that has taken longer than this. True when it did.
    pub fn give_up(&mut self, now: Time, timeout: Duration) -> bool {
        let over = |since: &mut Time| now.since(*since) > timeout;
        self.0.take_if(over).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_ends_when_it_takes_too_long() {
        let (mut transfer, second) = (Transfer::default(), Duration::from_secs(1));
        transfer.begin(Time(5));
        assert!(!transfer.give_up(Time(5) + second, second) && transfer.has_begun());
        assert!(transfer.give_up(Time(6) + second, second) && !transfer.has_begun());
        assert!(!transfer.give_up(Time::NEVER, second), "none is asked");
    }
}

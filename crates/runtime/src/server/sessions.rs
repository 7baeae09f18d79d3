//! The server's half of sessions: who owns them, which numbers are used, when they lapse.
//!
//! ```text
//!   New ──Open of number 1──► Registering ──done──► Registered ──silent for long──► New, other id
//!    ▲                            │                     │
//!    └── refused: other id, the log's clock             └── the log knows it no more: New, other id
//! ```
//!
//! An owner is registered by a session of its own before any command depends on it: a refusal
//! because of a wrong clock then meets nothing that could already have been executed.

use quintet_replica::{SessionId, Time};
use std::time::Duration;

/// How far an owner is known to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    New,
    Registering,
    Registered,
}

/// The owner of this server's sessions.
#[derive(Debug)]
pub(super) struct Owner {
    /// Drawn at random; never 0.
    pub id: u64,
    /// When it began, in command time as far as known; set when it is registered.
    pub started: u64,
    pub standing: Standing,
    /// When the last batch was submitted that is known to have been executed for it: the log
    /// cannot have lost it before a lifetime after that.
    pub confirmed: Time,
    /// Sessions of connections that have been opened and not closed.
    pub open: usize,
    /// Do not renew before this.
    pub renew_after: Time,
    number: u64,
    random: u64,
}

/// The owner's own session: it registers the owner and carries the server's own commands.
const OWN: u64 = 1;

impl Owner {
    pub fn new(seed: u64) -> Self {
        let mut owner = Self {
            id: 0,
            started: 0,
            standing: Standing::New,
            confirmed: Time(0),
            open: 0,
            renew_after: Time(0),
            number: OWN,
            random: seed,
        };
        owner.replace();
        owner
    }

    /// Another owner, unknown to the log.
    pub fn replace(&mut self) {
        loop {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut id = self.random;
            id = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            id = (id ^ (id >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            self.id = id ^ (id >> 31);
            if self.id != 0 {
                break;
            }
        }
        self.started = 0;
        self.standing = Standing::New;
        self.open = 0;
        self.number = OWN;
    }

    /// The session that registers the owner.
    pub const fn own(&self) -> SessionId {
        SessionId {
            owner: self.id,
            number: OWN,
        }
    }

    /// A session that has not been used.
    pub fn next(&mut self) -> SessionId {
        self.number += 1;
        SessionId {
            owner: self.id,
            number: self.number,
        }
    }

    /// Whether the owner's start is neither too old nor too far ahead by the log's clock.
    pub const fn fits(&self, clock: u64, lifetime: Duration) -> bool {
        self.started.abs_diff(clock) as u128 <= lifetime.as_nanos()
    }

    /// Whether the log may no longer know it by now.
    pub fn may_have_lapsed(&self, now: Time, lifetime: Duration) -> bool {
        self.standing == Standing::Registered && now.since(self.confirmed) >= lifetime / 4 * 3
    }

    /// When it has to be renewed.
    pub fn renew_at(&self, lifetime: Duration) -> Time {
        if self.standing == Standing::Registered && self.open > 0 {
            (self.confirmed + lifetime / 4).max(self.renew_after)
        } else {
            Time::NEVER
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_differ_and_numbers_ascend() {
        let mut owner = Owner::new(1);
        let first = owner.id;
        assert_ne!(first, 0);
        assert_ne!(first, Owner::new(2).id);
        assert_eq!(owner.own().number, 1);
        assert_eq!((owner.next().number, owner.next().number), (2, 3));
        owner.replace();
        assert_ne!(owner.id, first);
        assert_eq!((owner.next().number, owner.standing), (2, Standing::New));
    }

    #[test]
    fn owner_with_sessions_is_renewed_before_it_may_lapse() {
        let lifetime = Duration::from_secs(120);
        let mut owner = Owner::new(1);
        assert_eq!(owner.renew_at(lifetime), Time::NEVER);
        owner.standing = Standing::Registered;
        owner.confirmed = Time(0) + Duration::from_secs(10);
        assert_eq!(owner.renew_at(lifetime), Time::NEVER);
        owner.open = 1;
        assert_eq!(owner.renew_at(lifetime), Time(0) + Duration::from_secs(40));
        assert!(!owner.may_have_lapsed(Time(0) + Duration::from_secs(99), lifetime));
        assert!(owner.may_have_lapsed(Time(0) + Duration::from_secs(100), lifetime));
    }
}

//! A follower's view of its leader, and how long the leader may be silent.

use crate::{Context, Protocol, ReplicaId, Time};
use core::time::Duration;

/// The leader as this replica knows it.
#[derive(Debug, Default, Hash)]
pub struct LeaderWatch {
    leader: Option<ReplicaId>,
    received_at: Time,
    link_down: bool,
    round_trip: Duration,
}

impl LeaderWatch {
    /// The leader of the promised ballot, which may be this replica.
    #[must_use]
    pub const fn leader(&self) -> Option<ReplicaId> {
        self.leader
    }

    /// The leader, unless it is this replica.
    #[must_use]
    pub fn other_than(&self, own: ReplicaId) -> Option<ReplicaId> {
        self.leader.filter(|leader| *leader != own)
    }

    /// Whether this member leads.
    #[must_use]
    pub fn is(&self, id: ReplicaId) -> bool {
        self.leader == Some(id)
    }

    /// This member leads the promised ballot.
    pub const fn follow(&mut self, leader: ReplicaId) {
        self.leader = Some(leader);
    }

    /// No leader is known.
    pub const fn lose(&mut self) {
        self.leader = None;
    }

    /// Another ballot is promised: its leader is not known, and neither is its link.
    pub const fn reset(&mut self) {
        self.leader = None;
        self.link_down = false;
    }

    /// A message of the leader has been received.
    pub const fn received(&mut self, at: Time) {
        self.received_at = at;
        self.link_down = false;
    }

    /// The leader is there, although none of its messages is complete.
    pub const fn arriving(&mut self, at: Time) {
        self.received_at = at;
    }

    /// When the leader last showed that it is there.
    #[must_use]
    pub const fn received_at(&self) -> Time {
        self.received_at
    }

    /// The leader cannot be reached. True when that is new.
    pub const fn link_down(&mut self) -> bool {
        !core::mem::replace(&mut self.link_down, true)
    }

    /// Whether a leader is known that has not been silent for as long as this.
    #[must_use]
    pub fn is_alive(&self, now: Time, timeout: Duration) -> bool {
        self.leader.is_some() && !self.link_down && now.since(self.received_at) < timeout
    }

    /// The round trip that the leader has reported.
    #[must_use]
    pub const fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// The leader reports its round trip, or has measured it here.
    pub const fn measured(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }
}

/// How long a leader may be silent: longer than configured, up to 20 times, when several round
/// trips take that long.
#[must_use]
pub fn election_timeout(configured: Duration, round_trips: Duration) -> Duration {
    configured.max(round_trips.min(configured * 20))
}

/// A random duration below this one.
pub fn random_duration<P: Protocol>(below: Duration, ctx: &mut Context<'_, P>) -> Duration {
    let nanos = u64::try_from(below.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(ctx.random_below(nanos))
}

/// A delay after which one of the replicas becomes a candidate soon, but not all at once.
pub fn soon<P: Protocol>(heartbeat: Duration, ctx: &mut Context<'_, P>) -> Duration {
    heartbeat / 10 + random_duration(heartbeat * 2, ctx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_is_alive_while_its_messages_arrive() {
        let timeout = Duration::from_nanos(10);
        let mut watch = LeaderWatch::default();
        watch.received(Time(5));
        assert!(!watch.is_alive(Time(5), timeout), "no leader is known");
        watch.follow(ReplicaId(1));
        assert!(watch.is_alive(Time(14), timeout));
        assert!(!watch.is_alive(Time(15), timeout));
        assert!(watch.link_down() && !watch.link_down());
        assert!(!watch.is_alive(Time(6), timeout));
        watch.arriving(Time(16));
        assert!(!watch.is_alive(Time(16), timeout), "its link is down");
        watch.received(Time(16));
        assert!(watch.is_alive(Time(17), timeout));
        assert_eq!(watch.other_than(ReplicaId(1)), None);
    }

    #[test]
    fn timeout_follows_round_trips_up_to_a_limit() {
        let millis = Duration::from_millis;
        assert_eq!(election_timeout(millis(100), millis(30)), millis(100));
        assert_eq!(election_timeout(millis(100), millis(300)), millis(300));
        assert_eq!(election_timeout(millis(100), millis(9000)), millis(2000));
    }
}

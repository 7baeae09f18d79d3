//! The network primitive: rounds on a network that is mostly synchronous (Chora §4.2, §4.4, §5.4).
//!
//! ```text
//!   register(peers)                    the group
//!   send, multicast ──► at most one per round, else refused ──► out
//!   arrived(peer, message) ──► inbox ──► recv: all that came, without waiting
//!   check(now) ──► the round ended: by its timeout, or every live peer has been heard
//! ```
//!
//! A node multicasts at the beginning of a round and then processes messages that its peers sent in
//! earlier rounds of theirs, whichever; so a round need not be as long as messages travel, only as
//! long as their delays vary. Nothing interrupts the processing of a message: the timeout is looked
//! at after each one and when there is nothing to do. Rounds have nothing to do with safety.
//!
//! This layer asks the world for nothing: the caller passes times in and carries frames out.

use alloc::collections::VecDeque;
use core::time::Duration;
use quintet_replica::{ReplicaId, ReplicaSet, Time, parts::Timing};

/// Something was sent in this round already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RoundTaken;

/// Why a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Every live peer has been heard.
    Early,
    /// Its time was over.
    Timeout,
}

/// Messages that wait to be received; more are not kept, as if the network had lost them.
const INBOX_MAX: usize = 1024;

/// One node's rounds; see the module.
#[derive(Clone, Debug, Hash)]
pub struct Rounds<M> {
    peers: ReplicaSet,
    round: u64,
    began: Time,
    timeout: Duration,
    running: bool,
    early_exit: bool,
    sent: bool,
    heard: ReplicaSet,
    messages: usize,
    /// Count messages instead of peers: an injected bug.
    counts_messages: bool,
    inbox: VecDeque<(ReplicaId, M)>,
    dropped: Timing<u64>,
}

impl<M> Rounds<M> {
    /// No member is in the group yet, and no round runs.
    #[must_use]
    pub const fn new(timeout: Duration) -> Self {
        Self {
            peers: ReplicaSet::EMPTY,
            round: 0,
            began: Time(0),
            timeout,
            running: false,
            early_exit: true,
            sent: false,
            heard: ReplicaSet::EMPTY,
            messages: 0,
            counts_messages: false,
            inbox: VecDeque::new(),
            dropped: Timing(0),
        }
    }

    /// Joins the group of these live peers, without oneself; again whenever they change.
    pub const fn register(&mut self, peers: ReplicaSet) {
        self.peers = peers;
    }

    /// Lets the layer count messages where it should count peers.
    pub const fn bug_counts_messages(&mut self) {
        self.counts_messages = true;
    }

    /// The live peers.
    #[must_use]
    pub const fn peers(&self) -> ReplicaSet {
        self.peers
    }

    /// The number of this round.
    #[must_use]
    pub const fn round(&self) -> u64 {
        self.round
    }

    /// How long a round lasts at most.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Another length, from this round on.
    pub const fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Whether a round ends as soon as every live peer has been heard (§5.4), from this round on.
    pub const fn set_early_exit(&mut self, early_exit: bool) {
        self.early_exit = early_exit;
    }

    /// Whether rounds run; they stop when there is nothing to say.
    #[must_use]
    pub const fn running(&self) -> bool {
        self.running
    }

    /// When this round's time is over.
    #[must_use]
    pub fn ends_at(&self) -> Time {
        self.began + self.timeout
    }

    /// How long this round has lasted.
    #[must_use]
    pub const fn lasted(&self, now: Time) -> Duration {
        now.since(self.began)
    }

    /// The number of messages that were dropped because the receiver did not receive.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped.0
    }

    /// The members heard since the round began.
    #[must_use]
    pub const fn heard(&self) -> ReplicaSet {
        self.heard
    }

    /// The next round begins.
    pub const fn begin(&mut self, now: Time) {
        self.round += 1;
        self.began = now;
        self.running = true;
        self.sent = false;
        self.heard = ReplicaSet::EMPTY;
        self.messages = 0;
    }

    /// No round runs until the next [`Self::begin`].
    pub const fn rest(&mut self) {
        self.running = false;
    }

    /// Takes the round's one transmission, to all peers.
    ///
    /// # Errors
    /// When something was sent in this round already.
    pub const fn multicast(&mut self) -> Result<ReplicaSet, RoundTaken> {
        if self.sent {
            return Err(RoundTaken);
        }
        self.sent = true;
        Ok(self.peers)
    }

    /// Takes the round's one transmission, to one peer.
    ///
    /// # Errors
    /// When something was sent in this round already.
    pub const fn send(&mut self, to: ReplicaId) -> Result<ReplicaSet, RoundTaken> {
        match self.multicast() {
            Ok(_) => Ok(ReplicaSet::EMPTY.with(to)),
            Err(taken) => Err(taken),
        }
    }

    /// A message came, sent by a live peer in some earlier round of its own, or by another node.
    pub fn arrived(&mut self, from: ReplicaId, message: M) {
        self.hear(from);
        if self.inbox.len() >= INBOX_MAX {
            *self.dropped += 1;
        } else {
            self.inbox.push_back((from, message));
        }
    }

    /// A peer has been heard, by a message that does not go through the inbox.
    pub const fn hear(&mut self, from: ReplicaId) {
        self.messages += 1;
        self.heard.insert(from);
    }

    /// The next message of those that came; none when all were received. Never waits.
    pub fn recv(&mut self) -> Option<(ReplicaId, M)> {
        self.inbox.pop_front()
    }

    /// Whether every live peer has been heard since the round began.
    #[must_use]
    pub fn all_heard(&self) -> bool {
        if self.counts_messages {
            self.messages >= self.peers.len()
        } else {
            self.peers.iter().all(|peer| self.heard.contains(peer))
        }
    }

    /// Whether the round has ended: looked at after each message and when idle.
    #[must_use]
    pub fn check(&self, now: Time) -> Option<Ended> {
        if !self.running {
            return None;
        }
        if self.early_exit && self.all_heard() {
            Some(Ended::Early)
        } else if now >= self.ends_at() {
            Some(Ended::Timeout)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) % bound
        }
    }

    const LENGTH: Duration = Duration::from_micros(100);

    /// Any row of events; what must hold is checked against a plain account of them.
    #[test]
    fn round_ends_with_all_live_peers_heard_or_at_its_time() {
        for seed in 1..2000 {
            let mut random = Random(seed * 0x9e37_79b9);
            let peers = ReplicaSet(u128::from(random.below(64)) << 1);
            let mut rounds: Rounds<u64> = Rounds::new(LENGTH);
            rounds.register(peers);
            let (mut now, mut began, mut running) = (Time(0), Time(0), false);
            let (mut heard, mut waiting) = (ReplicaSet::EMPTY, VecDeque::new());
            let mut sent = false;
            for event in 0..200 {
                now = now + Duration::from_micros(random.below(20));
                match random.below(5) {
                    0 => {
                        rounds.begin(now);
                        (began, running, sent, heard) = (now, true, false, ReplicaSet::EMPTY);
                    }
                    1 => {
                        let from = ReplicaId(1 + random.below(7) as u16);
                        rounds.arrived(from, event);
                        heard.insert(from);
                        waiting.push_back((from, event));
                    }
                    2 => {
                        let taken = rounds.multicast();
                        assert_eq!(taken.is_err(), sent, "one transmission per round");
                        assert!(sent || taken == Ok(peers));
                        sent = true;
                    }
                    3 => assert_eq!(rounds.recv(), waiting.pop_front(), "in order, none twice"),
                    _ => {}
                }
                let all = peers.iter().all(|peer| heard.contains(peer));
                let over = now >= began + LENGTH;
                let expected = match (running, all, over) {
                    (false, ..) => None,
                    (_, true, _) => Some(Ended::Early),
                    (_, _, true) => Some(Ended::Timeout),
                    _ => None,
                };
                assert_eq!(rounds.check(now), expected, "seed {seed}, event {event}");
            }
        }
    }

    #[test]
    fn one_loud_peer_does_not_end_a_round_for_the_others() {
        let mut rounds: Rounds<()> = Rounds::new(LENGTH);
        rounds.register(ReplicaSet(0b110));
        rounds.begin(Time(0));
        rounds.arrived(ReplicaId(1), ());
        rounds.arrived(ReplicaId(1), ());
        assert_eq!(rounds.check(Time(1)), None, "peers count, not messages");
        rounds.arrived(ReplicaId(2), ());
        assert_eq!(rounds.check(Time(1)), Some(Ended::Early));
    }

    #[test]
    fn without_early_exit_a_round_lasts_its_whole_length() {
        let mut rounds: Rounds<()> = Rounds::new(LENGTH);
        rounds.register(ReplicaSet(0b10));
        rounds.set_early_exit(false);
        rounds.begin(Time(0));
        rounds.arrived(ReplicaId(1), ());
        assert!(rounds.all_heard());
        assert_eq!(rounds.check(Time(1)), None);
        let over = Time(0) + LENGTH;
        assert_eq!(rounds.check(over), Some(Ended::Timeout));
        assert_eq!(rounds.lasted(over), LENGTH);
    }

    #[test]
    fn second_send_in_round_fails_and_next_round_allows_one_again() {
        let mut rounds: Rounds<()> = Rounds::new(LENGTH);
        rounds.register(ReplicaSet(0b110));
        rounds.begin(Time(0));
        assert_eq!(rounds.send(ReplicaId(2)), Ok(ReplicaSet(0b100)));
        assert_eq!(rounds.multicast(), Err(RoundTaken));
        assert_eq!(rounds.send(ReplicaId(1)), Err(RoundTaken));
        rounds.begin(Time(1));
        assert_eq!(rounds.multicast(), Ok(ReplicaSet(0b110)));
    }

    #[test]
    fn unreceived_messages_are_bounded() {
        let mut rounds: Rounds<usize> = Rounds::new(LENGTH);
        for message in 0..INBOX_MAX + 5 {
            rounds.arrived(ReplicaId(1), message);
        }
        assert_eq!(rounds.dropped(), 5);
        assert_eq!(rounds.recv(), Some((ReplicaId(1), 0)));
    }
}

//! How quick each member is beside the others, as each of them measures it.
//!
//! ```text
//!   a beat ──► question with a stamp ──► every peer ──► the stamp again ──► a round trip
//!
//!   pace of a member = its round trip to the nearest majority, its disk's synchronisation
//!        └── goes with every question and answer, so that all members know all paces;
//!            who takes no part in quorums tells none
//! ```
//!
//! No timeout finds a leader that is up, and far slower than another would be. It is compared with
//! the others as they are now and not with its own past, so that a group over wide distances keeps
//! the leader that it has. How fast a member is may depend on what it does: who leads sends the
//! most. So a peer counts as no quicker than it was when it last led, and leadership does not go
//! round for a load that is too much for any leader.
//!
//! One slow link is not seen in the way to a majority, and all clients behind it wait for a leader at
//! its other end. A leader is slow, too, when its farthest peer is far farther than another's farthest.
//! Distances alone cannot make it so: no farthest peer is more than twice as far as another's, as the
//! way over that one is no longer. Only speed depends on any of this.

use super::slow_members::{Heard, SlowMembers};
use crate::{DecodeError, Reader, ReplicaId, ReplicaSet, Time, Wire, Writer};
use alloc::{vec, vec::Vec};
use core::time::Duration;
use smallvec::SmallVec;

/// Between two questions to all peers.
pub const PACE_BEAT: Duration = Duration::from_millis(250);
/// Slow is a member that takes this many times as long as another one, and so much longer. Behind a
/// full link a question waits for a few batches only, which is short, and many times as long.
const SLOWER: [(u32, Duration); 2] = [(4, Duration::from_millis(5)), (8, Duration::from_millis(2))];
/// It is slow when it was so at this many beats in a row.
const BEATS: u32 = 4;
/// Between two times that a member is found slow, and after a change of leader.
const PAUSE: Duration = Duration::from_secs(10);
/// After this what was measured counts no more.
const STALE: Duration = Duration::from_secs(3);
/// A peer that has told nothing for so long may be down.
const TOLD: Duration = Duration::from_millis(750);
/// After this it counts no more how slow a peer was as the leader.
const LED: Duration = Duration::from_secs(600);
/// This many samples are kept: one at each beat.
const SAMPLES: usize = 5;
/// Padding of questions and answers, by which a narrow link is slow without a load, too …
const PADDING: [u8; 900] = [0; 900];
/// Its bytes that say how far the farthest peer is: a program that does not know them skips them.
const FARTHEST: usize = 8;
/// … but to all peers together, at a beat, no more than this.
const PADDING_ALL: usize = 16 << 10;

/// How quick a member is. One that has not written lately has no time of its disk, and is compared
/// by its round trip alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// To the nearest majority and back.
    pub trip: Duration,
    /// The duration of a synchronisation of the disk.
    pub sync: Option<Duration>,
    /// To the farthest peer that is not slow, and back.
    pub farthest: Option<Duration>,
}

impl Figures {
    /// Whether another one is far quicker.
    pub(super) fn is_beaten_by(self, other: Self) -> bool {
        let (own, other) = match (self.sync, other.sync) {
            (Some(own), Some(others)) => (self.trip + own, other.trip + others),
            _ => (self.trip, other.trip),
        };
        is_slower(own, other)
    }

    /// Whether it has a peer far farther than another one has, which is not slower.
    fn is_farther_than(self, other: Self) -> bool {
        let farther = self.farthest.zip(other.farthest);
        farther.is_some_and(|(own, other)| is_slower(own, other)) && !other.is_beaten_by(self)
    }

    /// The slower of two in each.
    fn slowest(self, other: Self) -> Self {
        Self {
            trip: self.trip.max(other.trip),
            sync: self.sync.max(other.sync),
            farthest: self.farthest.max(other.farthest),
        }
    }
}

fn is_slower(own: Duration, other: Duration) -> bool {
    let times = |times| other.saturating_mul(times);
    let mut slower = SLOWER.iter();
    slower.any(|(many, longer)| own >= times(*many) && own >= other.saturating_add(*longer))
}

/// The members that would be far quicker leaders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quicker {
    /// These: all takes them less time.
    All(ReplicaSet),
    /// These: they are at no end of a slow link.
    OneLink(ReplicaSet),
}

/// A question or its answer, with the sender's own pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PaceMessage {
    /// When the question was asked, by the clock of who asks.
    pub stamp: Time,
    /// Whether it is the answer.
    pub is_answer: bool,
    /// The sender's pace, once it knows it and while it takes part in quorums.
    pub pace: Option<Figures>,
    /// The number of bytes that follow: the first ones are the way to the farthest peer, and the rest
    /// mean nothing.
    pub padding: u16,
}

/// Stands for a time that is not known.
const NONE: u64 = u64::MAX;

fn nanos(time: Option<Duration>) -> u64 {
    time.map_or(NONE, |time| u64::try_from(time.as_nanos()).unwrap_or(NONE))
}

impl Wire for PaceMessage {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.u64(self.stamp.0);
        writer.bool(self.is_answer);
        writer.u64(nanos(self.pace.map(|pace| pace.trip)));
        writer.u64(nanos(self.pace.and_then(|pace| pace.sync)));
        let mut padding = PADDING;
        let farthest = self
            .pace
            .and_then(|pace| pace.farthest)
            .map(|it| nanos(Some(it)));
        padding[..FARTHEST].copy_from_slice(&farthest.unwrap_or(0).to_le_bytes());
        writer.slice(&padding[..PADDING.len().min(self.padding.into())]);
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (stamp, is_answer) = (Time(reader.u64("stamp")?), reader.bool("answer")?);
        let known = |nanos| (nanos != NONE).then_some(Duration::from_nanos(nanos));
        let (trip, sync) = (known(reader.u64("trip")?), known(reader.u64("sync")?));
        let padding = reader.blob("padding")?;
        let farthest = padding.first_chunk::<FARTHEST>();
        let farthest = farthest.map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let farthest = (farthest > 0).then_some(Duration::from_nanos(farthest));
        let pace = trip.map(|trip| Figures {
            trip,
            sync,
            farthest,
        });
        Ok(Self {
            stamp,
            is_answer,
            pace,
            padding: u16::try_from(padding.len()).map_err(|_| DecodeError::Bad("padding"))?,
        })
    }
}

/// The newest samples of one thing.
#[derive(Clone, Copy, Debug, Default)]
struct Samples {
    kept: [Duration; SAMPLES],
    count: usize,
    newest: Time,
}

impl Samples {
    fn add(&mut self, sample: Duration, now: Time) {
        if now.since(self.newest) > STALE {
            self.count = 0;
        }
        self.kept[self.count % SAMPLES] = sample;
        // Twice as many stand for any more.
        self.count = if self.count + 1 < SAMPLES * 2 {
            self.count + 1
        } else {
            SAMPLES
        };
        self.newest = now;
    }

    /// The one in the middle, unless there are none of late.
    fn middle(&self, now: Time) -> Option<Duration> {
        let mut kept = self.kept;
        let kept = &mut kept[..self.count.min(SAMPLES)];
        if now.since(self.newest) > STALE {
            return None;
        }
        kept.sort_unstable();
        kept.get(kept.len() / 2).copied()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    trips: Samples,
    heard_at: Option<Time>,
    told: Option<(Figures, Time)>,
    /// Its report when it last led.
    led: Option<(Figures, Time)>,
}

impl Peer {
    /// How quick it would be as the leader.
    fn pace(&self, now: Time) -> Option<Figures> {
        let recent = |(pace, at): (Figures, Time), age| (now.since(at) <= age).then_some(pace);
        let told = self.told.and_then(|told| recent(told, TOLD))?;
        let led = self.led.and_then(|led| recent(led, LED));
        Some(led.map_or(told, |led| led.slowest(told)))
    }
}

/// One member's view of the paces of all.
#[derive(Clone, Debug)]
pub struct Pace {
    peers: Vec<Peer>,
    syncs: Samples,
    /// A write that is being measured, if it is to be, and since when.
    write: Option<(u64, Time)>,
    measures: bool,
    /// Takes part in quorums.
    votes: bool,
    beats: u32,
    leader: Option<ReplicaId>,
    changed_at: Option<Time>,
    told_at: Option<Time>,
    slow: SlowMembers,
}

impl Pace {
    /// Of a group of this size, none of which is known yet.
    #[must_use]
    pub fn new(members: usize) -> Self {
        Self {
            peers: vec![Peer::default(); members],
            syncs: Samples::default(),
            write: None,
            measures: true,
            votes: false,
            beats: 0,
            leader: None,
            changed_at: None,
            told_at: None,
            slow: SlowMembers::new(members),
        }
    }

    /// A write was handed to the disk.
    pub const fn wrote(&mut self, id: u64, now: Time) {
        if self.measures {
            self.measures = false;
            self.write = Some((id, now));
        }
    }

    /// Writes up to this one are durable.
    pub fn synced(&mut self, upto: u64, now: impl FnOnce() -> Time) {
        if let Some((_, at)) = self.write.take_if(|(id, _)| *id <= upto) {
            let now = now();
            self.syncs.add(now.since(at), now);
        }
    }

    /// A message of this peer; gives back what answers it.
    pub fn heard(
        &mut self,
        from: ReplicaId,
        message: PaceMessage,
        arrived: Time,
    ) -> Option<PaceMessage> {
        let peer = self.peers.get_mut(from.index())?;
        peer.heard_at = Some(arrived);
        peer.told = message.pace.map(|pace| (pace, arrived));
        if self.leader == Some(from) {
            peer.led = peer.told.or(peer.led);
        }
        if !message.is_answer {
            return Some(PaceMessage {
                stamp: message.stamp,
                is_answer: true,
                pace: self.own(arrived).filter(|_| self.votes),
                padding: message.padding,
            });
        }
        if message.stamp <= arrived {
            peer.trips.add(arrived.since(message.stamp), arrived);
        }
        None
    }

    /// The peers that have told a pace of late: each hears a majority and takes part in quorums.
    #[must_use]
    pub fn quorate(&self, now: Time) -> ReplicaSet {
        let told = |peer: &Peer| (peer.told).is_some_and(|(_, at)| now.since(at) <= STALE);
        let ids = (0..).map(ReplicaId).zip(&self.peers);
        let told = ids.filter(|(_, peer)| told(peer));
        told.map(|(id, _)| id).collect()
    }

    /// The way to the nearest majority and back, and the disk's.
    fn own(&self, now: Time) -> Option<Figures> {
        let mut trips: SmallVec<[Duration; 8]> = (self.peers.iter())
            .filter_map(|peer| peer.trips.middle(now))
            .collect();
        let ids = (0..).map(ReplicaId).zip(&self.peers);
        let quick = ids.filter(|(id, _)| !self.slow.contains(*id));
        let farthest = quick.filter_map(|(_, peer)| peer.trips.middle(now)).max();
        trips.sort_unstable();
        // This member and half of all others are one.
        let others = self.peers.len() / 2;
        let trip = *trips.get(others.checked_sub(1)?)?;
        let sync = self.syncs.middle(now);
        Some(Figures {
            trip,
            sync,
            farthest,
        })
    }

    /// A beat, with who leads as far as `me` knows, and whether `me` takes part in quorums: the
    /// question to all peers, and, when `me` leads and is far slower than others, who these are.
    pub fn beat(
        &mut self,
        me: ReplicaId,
        leader: Option<ReplicaId>,
        votes: bool,
        now: Time,
    ) -> (PaceMessage, Option<Quicker>) {
        self.measures = self.write.is_none();
        self.votes = votes;
        if leader.is_some() && leader != self.leader {
            if self.leader.is_some() {
                self.changed_at = Some(now);
            }
            self.leader = leader;
        }
        let own = self.own(now);
        let question = PaceMessage {
            stamp: now,
            is_answer: false,
            pace: own.filter(|_| votes),
            padding: (PADDING_ALL / self.peers.len()).min(PADDING.len()) as u16,
        };
        let those = |is_quicker: fn(Figures, Figures) -> bool| -> ReplicaSet {
            let is_quick = |peer: &Peer| {
                let both = own.zip(peer.pace(now));
                both.is_some_and(|(own, pace)| is_quicker(own, pace))
            };
            let ids = (0..).map(ReplicaId).zip(&self.peers);
            let quick = ids.filter(|(id, peer)| *id != me && is_quick(peer));
            quick.map(|(id, _)| id).collect()
        };
        let quick = match those(Figures::is_beaten_by) {
            all if !all.is_empty() => Quicker::All(all),
            _ => Quicker::OneLink(those(Figures::is_farther_than)),
        };
        if quick == Quicker::OneLink(ReplicaSet::EMPTY) || leader != Some(me) {
            self.beats = 0;
            return (question, None);
        }
        self.beats = self.beats.saturating_add(1);
        let rests = [self.told_at, self.changed_at];
        let rests = rests.iter().flatten().any(|at| now.since(*at) < PAUSE);
        if self.beats < BEATS || rests {
            return (question, None);
        }
        self.told_at = Some(now);
        (question, Some(quick))
    }

    /// At a beat: the members that are far slower than a majority, `me` perhaps among them, when
    /// they are others than before.
    pub fn slow_members(&mut self, me: ReplicaId, now: Time) -> Option<ReplicaSet> {
        let is_recent = |at: Time| now.since(at) <= TOLD;
        let ids = (0..).map(ReplicaId).zip(&self.peers);
        let heard = ids.map(|(id, peer)| {
            let pace = if id == me {
                self.own(now).filter(|_| self.votes)
            } else if peer.heard_at.is_some_and(is_recent) {
                peer.told.map(|(pace, _)| pace)
            } else {
                return Heard::Nothing;
            };
            pace.map_or(Heard::NoPace, Heard::Pace)
        });
        let heard: SmallVec<[Heard; 8]> = heard.collect();
        self.slow.look(&heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    const fn figures(trip: Duration) -> Figures {
        Figures {
            trip,
            sync: None,
            farthest: None,
        }
    }

    /// Members with given ways between them, each of which beats; what they found, with when.
    struct Group {
        members: Vec<Pace>,
        trips: fn(usize, usize) -> Duration,
        now: Time,
        leader: usize,
        votes: Vec<bool>,
        found: Vec<(usize, ReplicaSet, Time)>,
        slow: Vec<ReplicaSet>,
    }

    impl Group {
        fn new(members: usize, trips: fn(usize, usize) -> Duration) -> Self {
            Self {
                members: vec![Pace::new(members); members],
                trips,
                now: Time(1_000_000_000),
                leader: 0,
                votes: vec![true; members],
                found: Vec::new(),
                slow: vec![ReplicaSet::EMPTY; members],
            }
        }

        /// So long, in which the leader hands over to the first one that is quick.
        fn run(&mut self, time: Duration) {
            let until = self.now + time;
            while self.now < until {
                self.now = self.now + PACE_BEAT;
                for id in 0..self.members.len() {
                    let leader = Some(ReplicaId(self.leader as u16));
                    let me = ReplicaId(id as u16);
                    let (question, quick) =
                        self.members[id].beat(me, leader, self.votes[id], self.now);
                    if let Some(slow) = self.members[id].slow_members(me, self.now) {
                        self.slow[id] = slow;
                    }
                    for peer in (0..self.members.len()).filter(|peer| *peer != id) {
                        let answer = self.members[peer].heard(me, question, self.now);
                        let answer = answer.expect("an answer");
                        let arrived = self.now + (self.trips)(id, peer);
                        let from = ReplicaId(peer as u16);
                        assert_eq!(self.members[id].heard(from, answer, arrived), None);
                    }
                    if let Some(Quicker::All(quick) | Quicker::OneLink(quick)) = quick {
                        self.found.push((id, quick, self.now));
                        self.leader = quick.iter().next().expect("not empty").index();
                    }
                }
            }
        }
    }

    const LOCAL: fn(usize, usize) -> Duration = |_, _| Duration::from_micros(200);

    #[test]
    fn leader_behind_slow_link_hands_over_once() {
        let mut group = Group::new(3, LOCAL);
        group.run(MS * 5_000);
        assert_eq!(group.found, []);
        group.trips = |from, to| match from.min(to) {
            0 => MS * 40,
            _ => Duration::from_micros(200),
        };
        let began = group.now;
        group.run(MS * 60_000);
        assert_eq!(group.found.len(), 1, "{:?}", group.found);
        let (id, quick, at) = group.found[0];
        assert_eq!((id, quick), (0, ReplicaSet(0b110)));
        assert!(at.since(began) < MS * 2_500, "{:?}", at.since(began));
    }

    #[test]
    fn leader_at_an_end_of_one_slow_link_hands_over_to_one_at_none() {
        for members in [3, 5] {
            let mut group = Group::new(members, LOCAL);
            group.run(MS * 5_000);
            group.trips = |from, to| match (from.min(to), from.max(to)) {
                (0, 1) => MS * 20,
                _ => Duration::from_micros(200),
            };
            group.run(MS * 60_000);
            assert_eq!(group.found.len(), 1, "{:?}", group.found);
            let (id, quick, _) = group.found[0];
            let others = ReplicaSet((1 << members) - 4);
            assert_eq!((id, quick), (0, others));
            assert!(group.slow.iter().all(|slow| slow.is_empty()));
        }
    }

    #[test]
    fn leader_at_no_end_of_the_slow_link_stays() {
        let mut group = Group::new(3, |from, to| match from.min(to) {
            1 => MS * 20,
            _ => Duration::from_micros(200),
        });
        group.run(MS * 60_000);
        assert_eq!(group.found, []);
    }

    #[test]
    fn way_to_the_farthest_peer_is_told() {
        let message = PaceMessage {
            stamp: Time(7),
            is_answer: false,
            pace: Some(Figures {
                farthest: Some(MS * 3),
                ..figures(MS)
            }),
            padding: 165,
        };
        assert_eq!(
            PaceMessage::decode_all(message.encode_to_bytes()),
            Ok(message)
        );
    }

    #[test]
    fn all_members_find_the_same_one_slow_and_find_it_quick_again() {
        let mut group = Group::new(3, LOCAL);
        group.run(MS * 5_000);
        group.trips = |from, to| match from.max(to) {
            2 => MS * 40,
            _ => Duration::from_micros(200),
        };
        group.run(MS * 3_000);
        assert_eq!(group.slow, [ReplicaSet(0b100); 3]);
        group.trips = LOCAL;
        group.run(MS * 5_000);
        assert_eq!(group.slow, [ReplicaSet::EMPTY; 3]);
    }

    #[test]
    fn slow_follower_changes_nothing() {
        let mut group = Group::new(3, |from, to| match from.max(to) {
            2 => MS * 40,
            _ => Duration::from_micros(200),
        });
        group.run(MS * 60_000);
        assert_eq!(group.found, []);
    }

    #[test]
    fn leader_stays_where_distances_are_wide_and_unequal() {
        // Milliseconds between five regions of the world.
        const WAYS: [[u64; 5]; 5] = [
            [0, 62, 76, 220, 160],
            [62, 0, 140, 170, 105],
            [76, 140, 0, 180, 220],
            [220, 170, 180, 0, 70],
            [160, 105, 220, 70, 0],
        ];
        for leader in 0..5 {
            let mut group = Group::new(5, |from, to| MS * WAYS[from][to] as u32);
            group.leader = leader;
            group.run(MS * 120_000);
            assert_eq!(group.found, [], "{leader}");
        }
    }

    #[test]
    fn load_that_slows_any_leader_sends_leadership_round_once() {
        let mut group = Group::new(3, LOCAL);
        // A leader has full queues.
        for _ in 0..480 {
            group.trips = match group.leader {
                0 => |from, _| MS * if from == 0 { 50 } else { 1 },
                1 => |from, _| MS * if from == 1 { 50 } else { 1 },
                _ => |from, _| MS * if from == 2 { 50 } else { 1 },
            };
            group.run(PACE_BEAT);
        }
        assert!(group.found.len() <= 2, "{:?}", group.found);
        let times = group.found.windows(2);
        assert!(
            times
                .into_iter()
                .all(|two| two[1].2.since(two[0].2) >= PAUSE)
        );
    }

    #[test]
    fn slow_disk_counts_like_a_slow_link() {
        let mut group = Group::new(3, LOCAL);
        for at in 0..40 {
            for (id, sync) in [(0, 50), (1, 1), (2, 1)] {
                let now = group.now;
                group.members[id].wrote(at, now);
                // Another write meanwhile is not measured.
                group.members[id].wrote(at + 1_000, now + MS);
                group.members[id].synced(at, || now + MS * sync);
            }
            group.run(PACE_BEAT);
        }
        let found: Vec<_> = group
            .found
            .iter()
            .map(|(id, quick, _)| (*id, *quick))
            .collect();
        assert_eq!(found, [(0, ReplicaSet(0b110))]);
    }

    #[test]
    fn member_that_writes_or_votes_not_is_no_quicker() {
        for votes in [true, false] {
            let mut group = Group::new(3, LOCAL);
            if !votes {
                group.trips = |from, _| match from {
                    0 => MS * 50,
                    _ => Duration::from_micros(200),
                };
            }
            group.votes = vec![true, votes, votes];
            // A quick link with a disk whose speed is unknown, or both quick and of no use.
            for at in 0..80 {
                let now = group.now;
                group.members[0].wrote(at, now);
                group.members[0].synced(at, || now + MS * 20);
                group.run(PACE_BEAT);
            }
            assert_eq!(group.found, [], "{votes}");
        }
    }

    #[test]
    fn leadership_is_not_transferred_without_leader() {
        let mut group = Group::new(3, |from, _| match from {
            0 => MS * 50,
            _ => MS,
        });
        group.run(PACE_BEAT * 2);
        for _ in 0..40 {
            group.now = group.now + PACE_BEAT;
            let slow = &mut group.members[0];
            let (question, quick) = slow.beat(ReplicaId(0), None, true, group.now);
            assert_eq!(quick, None);
            let answer = group.members[1].heard(ReplicaId(0), question, group.now);
            let arrived = group.now + MS * 50;
            group.members[0].heard(ReplicaId(1), answer.expect("an answer"), arrived);
        }
    }

    #[test]
    fn peers_that_hear_a_majority_say_so() {
        let (mut pace, now) = (Pace::new(3), Time(1_000_000_000));
        let message = |trip: Option<Duration>| PaceMessage {
            stamp: now,
            is_answer: true,
            pace: trip.map(figures),
            padding: 0,
        };
        for (id, trip) in [(1, Some(MS)), (2, None)] {
            let _ = pace.heard(ReplicaId(id), message(trip), now);
        }
        assert_eq!(pace.quorate(now), ReplicaSet::EMPTY.with(ReplicaId(1)));
        assert!(pace.quorate(now + STALE + MS).is_empty());
        let _ = pace.heard(ReplicaId(1), message(None), now);
        assert!(pace.quorate(now).is_empty());
    }

    #[test]
    fn silent_peer_and_answer_from_the_future_count_nothing() {
        let mut pace = Pace::new(3);
        let answer = |stamp| PaceMessage {
            stamp,
            is_answer: true,
            pace: Some(figures(MS)),
            padding: 0,
        };
        let own = |pace: &Pace, now| pace.own(now).map(|pace| pace.trip);
        let now = Time(10_000_000_000);
        assert_eq!(pace.heard(ReplicaId(1), answer(now + MS), now), None);
        assert_eq!(own(&pace, now), None);
        assert_eq!(pace.heard(ReplicaId(1), answer(now), now + MS), None);
        assert_eq!(own(&pace, now + MS), Some(MS));
        assert_eq!(own(&pace, now + STALE + MS * 2), None);
        assert_eq!(pace.heard(ReplicaId(7), answer(now), now), None);
    }
}

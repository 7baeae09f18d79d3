//! One or two replicas by hand: what stands in their logs, what they say of it, and what a new
//! leader makes of it. Every case tells what was seen, so that injected bugs can be tried on it.
//!
//! ```text
//!   request, peers' messages ──► Host: one Driver<Nezha>, writes durable at once
//!                                  └──► said (to replicas), replied (to frontends), executed
//! ```

use super::epoch;
use crate::{
    group::Clock,
    nezha::{
        Config, Incarnations, LogHash, Message, Name, Nezha, Part, Placed, Record, ReplyHeader,
        Stamp, Timer, Vote, conflict::QUANTUM,
    },
};
use alloc::{vec, vec::Vec};
use quintet_replica::{
    Access, At, BatchBuilder, BatchId, BatchView, Bytes, CommandId, Control, Driver, Durability,
    Effect, Event, FootprintVisitor, FrontendId, GroupId, Incarnation, Level, Peer, Recipients,
    RecoveredBytes, Replica, ReplicaId, RequestKind, RestoreError, SessionId, Setup, Slot,
    SnapshotProgress, StateMachine, Surroundings, Time, TimerKey, TimerOwner, Wire,
};

const FRONTEND: FrontendId = FrontendId(9);
/// Deadlines are told from here; all of them lie in one quantum.
pub const BASE: u64 = 1000 * QUANTUM;

/// Its commands are the letter `r` or `w`, and the keys that are read or written.
struct Keys;

impl StateMachine for Keys {
    fn apply(&mut self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn query(&self, _: &At, _: &[u8], _: &mut Vec<u8>) {}
    fn snapshot_chunk(&mut self, _: &mut Vec<u8>, _: usize) -> SnapshotProgress {
        SnapshotProgress::Done
    }
    fn restore_chunk(&mut self, _: &[u8]) -> Result<(), RestoreError> {
        Ok(())
    }
    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        Ok(())
    }
    fn footprint(&self, command: &[u8], visit: &mut dyn FootprintVisitor) {
        let access = match command[0] {
            b'w' => Access::Write,
            _ => Access::Read,
        };
        for key in &command[1..] {
            visit.key(u64::from(*key), access);
        }
    }
    fn digest(&self) -> u128 {
        0
    }
}

/// A batch of one command in a session of its own.
pub fn batch(number: u64, command: &[u8], level: Level) -> Bytes {
    let mut builder = BatchBuilder::new();
    let session = SessionId { owner: 1, number };
    let id = CommandId {
        session,
        sequence: 1,
    };
    builder.push(id, RequestKind::Command, 0, command);
    builder.finish(FRONTEND, BatchId(number), level)
}

pub fn stamp(after: u64, number: u64) -> Stamp {
    let name = Name {
        frontend: FRONTEND,
        batch: BatchId(number),
    };
    let deadline = BASE + after;
    Stamp { deadline, name }
}

/// One replica.
pub struct Host {
    pub driver: Driver<Nezha>,
    pub clock: Clock,
    /// Its messages to other replicas, oldest first.
    pub said: Vec<Message>,
    /// The log summary in its newest snapshot.
    pub summary: Bytes,
    /// Its messages to frontends.
    pub replied: Vec<Message>,
    pub executed: Vec<(Slot, BatchId)>,
    pub headers: Vec<(BatchId, ReplyHeader)>,
    pub rolled_back: Vec<Slot>,
    /// From which slot on a peer's state would do.
    pub fetched: Vec<Slot>,
    pub queries: usize,
    pub marks: Vec<&'static str>,
    /// Whom it asked for batches.
    pub asked_of: Vec<ReplicaId>,
    /// Batches that it answered behind their execution.
    pub replayed: Vec<BatchId>,
}

impl Host {
    pub fn new(id: u16, members: usize, config: &Config) -> Self {
        let first = RecoveredBytes {
            first_boot: true,
            ..RecoveredBytes::default()
        };
        Self::started(id, members, config, first)
    }

    pub fn started(id: u16, members: usize, config: &Config, from: RecoveredBytes) -> Self {
        let setup = Setup {
            id: ReplicaId(id),
            incarnation: Incarnation(1),
            group: GroupId(0),
            epoch: epoch(members),
            durability: Durability::Memory,
            options: config.clone(),
            seed: 1,
        };
        let mut host = Self {
            driver: Driver::new(setup, FrontendId(100 + u64::from(id))),
            clock: Clock {
                now: Time(BASE),
                room: 1 << 20,
            },
            said: Vec::new(),
            summary: Bytes::new(),
            replied: Vec::new(),
            executed: Vec::new(),
            headers: Vec::new(),
            rolled_back: Vec::new(),
            fetched: Vec::new(),
            queries: 0,
            marks: Vec::new(),
            asked_of: Vec::new(),
            replayed: Vec::new(),
        };
        host.event(Event::Start(from));
        host
    }

    pub fn event(&mut self, event: Event) {
        let around = Surroundings {
            world: &self.clock,
            group: GroupId(0),
            machine: Some(&Keys),
            from_outside: false,
        };
        let mut effects = Vec::new();
        self.driver
            .on_event(event, around, &mut effects)
            .expect("well-formed");
        self.carry_out(effects);
    }

    pub fn idle(&mut self) {
        let around = Surroundings {
            world: &self.clock,
            group: GroupId(0),
            machine: Some(&Keys),
            from_outside: false,
        };
        let mut effects = Vec::new();
        let _ = self.driver.on_idle(around, &mut effects);
        self.driver.assert_invariants();
        self.carry_out(effects);
    }

    pub fn carry_out(&mut self, effects: Vec<Effect>) {
        let (mut durable, mut saved) = (None, None);
        for effect in effects {
            match effect {
                Effect::Send { to, frame, .. } => {
                    let message = Message::decode_all(frame.into_bytes()).expect("its own words");
                    match to {
                        Recipients::Replicas(to) => {
                            if let Message::Between {
                                part: Part::Fetch(_),
                                ..
                            } = &message
                            {
                                self.asked_of.extend(to.iter());
                            }
                            self.said.push(message);
                        }
                        Recipients::Frontend(_) => self.replied.push(message),
                    }
                }
                Effect::Persist { id, .. } => durable = Some(id),
                Effect::Execute {
                    slot, batch, reply, ..
                } => {
                    let id = BatchView::new(&batch).expect("a batch").id();
                    self.executed.push((slot, id));
                    if let Some(reply) = reply {
                        let header = ReplyHeader::decode_all(reply.header).expect("its own words");
                        self.headers.push((id, header));
                    }
                }
                Effect::Checkpoint { slot, summary } => {
                    self.summary = summary;
                    saved = Some(slot);
                }
                Effect::RollBack { slot } => self.rolled_back.push(slot),
                Effect::FetchState { at_least, .. } => self.fetched.push(at_least),
                Effect::Query { .. } => self.queries += 1,
                Effect::Replay { batch, .. } => {
                    let id = BatchView::new(&batch).expect("a batch").id();
                    self.replayed.push(id);
                }
                Effect::Mark(mark) => self.marks.push(mark),
                _ => {}
            }
        }
        if let Some(id) = durable {
            self.event(Event::Persisted(id));
        }
        if let Some(slot) = saved {
            self.event(Event::Checkpointed(slot));
        }
    }

    pub fn message(&mut self, from: Peer, message: &Message) {
        self.event(Event::Message {
            from,
            arrived: self.clock.now,
            message: message.encode_to_bytes(),
        });
    }

    /// A request that comes now, with its deadline that much behind the base.
    pub fn request(&mut self, number: u64, deadline: u64, command: &[u8]) {
        let request = Message::Request {
            sent: BASE,
            bound: deadline,
            deviation: 0,
            level: Level::Ordered,
            batch: batch(number, command, Level::Ordered),
        };
        self.message(Peer::Frontend(FRONTEND), &request);
    }

    pub fn at(&mut self, after: u64) {
        self.clock.now = Time(BASE + after);
        self.wakes(Timer::Release);
        self.idle();
    }

    pub fn wakes(&mut self, timer: Timer) {
        self.event(Event::Timer(TimerKey {
            owner: TimerOwner::Replica,
            timer: timer.into(),
            generation: 0,
        }));
    }

    pub fn hear(&mut self, from: u16, view: u64, incarnations: &[u64], part: Part) {
        let incarnations: Incarnations = incarnations.iter().copied().collect();
        let message = Message::Between {
            view,
            incarnations,
            part,
        };
        self.message(Peer::Replica(ReplicaId(from)), &message);
    }

    /// The leader's first message that holds stamps after this input.
    pub fn placed(&self) -> Vec<Stamp> {
        let stamps = self.said.iter().find_map(|message| match message {
            Message::Between {
                part: Part::LogModification { stamps, .. },
                ..
            } if !stamps.is_empty() => Some(stamps.clone()),
            _ => None,
        });
        stamps.unwrap_or_default()
    }

    pub fn fast_reply(&self, number: u64) -> Option<LogHash> {
        self.replied.iter().find_map(|message| match message {
            Message::FastReplies { appended, .. } => {
                let of = appended.iter().find(|(batch, _)| batch.0 == number);
                of.map(|(_, hash)| *hash)
            }
            _ => None,
        })
    }

    pub fn results(&self, number: u64) -> Option<LogHash> {
        let of = |(id, _): &&(BatchId, ReplyHeader)| id.0 == number;
        Some(self.headers.iter().find(of)?.1.hash)
    }

    pub fn follows(&mut self, stamps: Vec<Stamp>) {
        self.follows_to(stamps, Slot(0));
    }

    pub fn follows_to(&mut self, stamps: Vec<Stamp>, commit: Slot) {
        let part = Part::LogModification {
            first: Slot(1),
            stamps,
            commit,
            round: 1,
        };
        let mut incarnations = vec![0; 3];
        incarnations[0] = 1;
        self.hear(0, 0, &incarnations, part);
        self.idle();
    }

    /// Which slots of the log it asked its leader for, oldest first.
    pub fn asked(&self) -> Vec<Slot> {
        let asked = self.said.iter().filter_map(|message| match message {
            Message::Between {
                part: Part::GetLog(first),
                ..
            } => Some(*first),
            _ => None,
        });
        asked.collect()
    }
}

/// Leader and follower of the first view, as far as incarnations go: both know both.
pub fn pair(config: &Config) -> (Host, Host) {
    let (mut leader, mut follower) = (Host::new(0, 3, config), Host::new(1, 3, config));
    let status = Part::LogStatus {
        sync: Slot(0),
        round: 0,
    };
    leader.hear(1, 0, &[1, 1, 0], status);
    follower.hear(0, 0, &[1, 1, 0], Part::Suspect);
    (leader, follower)
}

/// The leader got a batch only when it came again, with a later deadline; the follower had it
/// before. Whether their fast replies agree on what comes next.
pub fn hashes_agree_after_a_changed_deadline(config: &Config) -> bool {
    let (mut leader, mut follower) = pair(config);
    follower.request(1, 10, b"wa");
    follower.at(20);
    leader.request(1, 30, b"wa");
    leader.at(35);
    follower.clock.now = Time(BASE + 35);
    assert_eq!(leader.placed(), [stamp(30, 1)]);
    follower.follows(leader.placed());
    assert!(
        follower
            .marks
            .contains(&"an entry with another deadline was taken over")
    );
    for host in [&mut leader, &mut follower] {
        host.request(2, 40, b"wa");
        host.at(50);
    }
    let (leads, follows) = (leader.results(2), follower.fast_reply(2));
    assert!(leads.is_some() && follows.is_some(), "both hold it");
    leads == follows
}

/// The leader has appended a write of two keys that the follower lacks. Whether their replies to
/// a read of both keys agree.
pub fn a_missing_write_of_both_keys_goes_unnoticed(config: &Config) -> bool {
    let (mut leader, mut follower) = pair(config);
    leader.request(1, 10, b"wab");
    for host in [&mut leader, &mut follower] {
        host.request(2, 20, b"rab");
        host.at(30);
    }
    let (leads, follows) = (leader.results(2), follower.fast_reply(2));
    assert!(leads.is_some() && follows.is_some(), "both hold it");
    leads == follows
}

/// Batch 1 on one key has its slot; batch 2 on another key came later with a lower deadline, and
/// everybody appended it: it is committed. Then the leader is gone. The batches that the next
/// leader executes.
pub fn merged(config: &Config) -> Vec<u64> {
    let mut new = Host::new(1, 3, config);
    new.request(1, 10, b"wa");
    new.at(12);
    new.follows(vec![stamp(10, 1)]);
    new.request(2, 8, b"wb");
    new.at(14);
    assert!(new.fast_reply(2).is_some(), "it commutes, so it is in time");
    new.hear(2, 1, &[1, 1, 1], Part::ViewChange(Slot(0)));
    let vote = Vote {
        view_normal: 0,
        commit: Slot(0),
        kept: Slot(1),
        first: Slot(1),
        synced: vec![stamp(10, 1)],
        unsynced: vec![stamp(8, 2)],
    };
    new.hear(2, 1, &[1, 1, 1], Part::Vote(vote));
    assert!(new.marks.contains(&"view changed"));
    new.executed.iter().map(|(_, id)| id.0).collect()
}

/// A deadline lies too far ahead. Whether a follower appends the batch before anybody told it to.
pub fn a_follower_appends_what_lies_too_far_ahead(config: &Config) -> bool {
    let (_, mut follower) = pair(config);
    follower.request(1, 1_000_000_000, b"wa");
    follower.at(1);
    follower.fast_reply(1).is_some()
}

/// A batch comes to its leader after a later one on the same key has its slot. Whether it is put
/// behind that under a lower deadline, so that the next leader would put it before.
pub fn a_late_batch_is_placed_before_another(config: &Config) -> bool {
    let (mut leader, _) = pair(config);
    leader.request(1, 20, b"wa");
    leader.at(25);
    leader.request(2, 10, b"wa");
    leader.at(30);
    let orders = |message: &Message| match message {
        Message::Between {
            part: Part::LogModification { stamps, .. },
            ..
        } => stamps.clone(),
        _ => Vec::new(),
    };
    let placed: Vec<Stamp> = leader.said.iter().flat_map(orders).collect();
    assert_eq!(placed.len(), 2, "both have their slots");
    placed[1] < placed[0]
}

/// Of five, replica 2 votes, forgets, and asks to recover; then replica 3 votes. Whether the view
/// begins, though only two logs count.
pub fn a_vote_of_an_earlier_incarnation_counts(config: &Config) -> bool {
    let mut new = Host::new(1, 5, config);
    let empty = || Vote {
        view_normal: 0,
        commit: Slot(0),
        kept: Slot(1),
        first: Slot(1),
        synced: Vec::new(),
        unsynced: Vec::new(),
    };
    new.hear(2, 1, &[1, 1, 1, 1, 1], Part::ViewChange(Slot(0)));
    new.hear(2, 1, &[1, 1, 1, 1, 1], Part::Vote(empty()));
    new.hear(2, 0, &[0, 0, 2, 0, 0], Part::Recover(7));
    new.hear(3, 1, &[1, 1, 1, 1, 1], Part::Vote(empty()));
    // A copy of the old vote that was long on its way is no better.
    new.hear(2, 1, &[1, 1, 1, 1, 1], Part::Vote(empty()));
    new.marks.contains(&"view changed")
}

/// A leader has executed a batch that no other replica has, and a higher view comes. The slots that
/// it undoes.
pub fn undone_by_a_deposed_leader(config: &Config) -> Vec<Slot> {
    let (mut leader, _) = pair(config);
    leader.request(1, 10, b"wa");
    leader.at(20);
    assert_eq!(leader.executed.len(), 1);
    leader.hear(1, 1, &[1, 1, 0], Part::ViewChange(Slot(0)));
    leader.rolled_back
}

/// A read comes to a leader that has received no message since. How many are answered.
pub fn reads_answered_unconfirmed(config: &Config) -> usize {
    let (mut leader, _) = pair(config);
    let request = Message::Request {
        sent: BASE,
        bound: 0,
        deviation: 0,
        level: Level::Linearizable,
        batch: batch(1, b"ra", Level::Linearizable),
    };
    leader.message(Peer::Frontend(FRONTEND), &request);
    leader.idle();
    let unconfirmed = leader.queries;
    let status = Part::LogStatus {
        sync: Slot(0),
        round: 9,
    };
    leader.hear(1, 0, &[1, 1, 0], status);
    assert_eq!(leader.queries, 1, "a majority has echoed the round");
    unconfirmed
}

/// A follower hears of a new view that began with a slot it does not hold. Whether it takes part.
pub fn takes_part_before_the_log_is_here(config: &Config) -> bool {
    let mut follower = Host::new(2, 3, config);
    let part = Part::LogModification {
        first: Slot(2),
        stamps: Vec::new(),
        commit: Slot(0),
        round: 1,
    };
    follower.hear(1, 1, &[1, 1, 1], part);
    follower.idle();
    follower.driver.status(GroupId(0)).voting
}

/// A page of a log of view 3, from `first` on: batches that write key `a`, the numbers of which are
/// their slots'.
fn page(first: u64, numbers: core::ops::Range<u64>, end: u64) -> Part {
    let entries = numbers.map(|number| Placed {
        deadline: BASE + 10 * number,
        batch: batch(number, b"wa", Level::Ordered),
    });
    Part::LogPage {
        first: Slot(first),
        entries: entries.collect(),
        end: Slot(end),
    }
}

fn heartbeat() -> Part {
    Part::LogModification {
        first: Slot(1),
        stamps: Vec::new(),
        commit: Slot(0),
        round: 1,
    }
}

#[test]
fn trimmed_entries_stay_in_hash_through_view_change() {
    let (mut leader, mut follower) = pair(&Config::default());
    for host in [&mut leader, &mut follower] {
        host.request(1, 10, b"wa");
        host.at(20);
    }
    follower.follows_to(leader.placed(), Slot(1));
    follower.event(Event::Control(Control::CheckpointDue));
    assert!(
        !follower.summary.is_empty(),
        "the log is trimmed to its end"
    );

    let incarnations = [1, 1, 0];
    leader.hear(1, 3, &incarnations, Part::ViewChange(Slot(1)));
    let vote = Vote {
        view_normal: 0,
        commit: Slot(1),
        kept: Slot(2),
        first: Slot(2),
        synced: Vec::new(),
        unsynced: Vec::new(),
    };
    leader.hear(1, 3, &incarnations, Part::Vote(vote));
    assert!(leader.marks.contains(&"view changed"));
    follower.hear(0, 3, &incarnations, heartbeat());
    follower.hear(0, 3, &incarnations, page(2, 0..0, 1));
    assert!(follower.marks.contains(&"view joined"));

    follower.request(3, 5, b"wa");
    assert!(
        follower.marks.contains(&"late at a follower"),
        "what was trimmed bars what conflicts with it"
    );
    for host in [&mut leader, &mut follower] {
        host.request(2, 40, b"wa");
        host.at(50);
    }
    let (leads, follows) = (leader.results(2), follower.fast_reply(2));
    assert!(leads.is_some_and(|hash| hash.known));
    assert_eq!(leads, follows, "the trimmed write is in both");
}

#[test]
fn state_received_while_joining_replaces_earlier_pages() {
    let (_, mut donor) = pair(&Config::default());
    for number in 1..=4 {
        donor.request(number, 10 * number, b"wa");
    }
    donor.at(50);
    donor.follows_to((1..=4).map(|n| stamp(10 * n, n)).collect(), Slot(4));
    donor.event(Event::Control(Control::CheckpointDue));

    let mut joins = Host::new(2, 3, &Config::default());
    let incarnations = [1, 1, 1];
    joins.hear(0, 3, &incarnations, heartbeat());
    joins.hear(0, 3, &incarnations, page(1, 1..3, 6));
    joins.hear(0, 3, &incarnations, Part::Trimmed(Slot(5)));
    joins.event(Event::Installed {
        slot: Slot(4),
        summary: donor.summary.clone(),
    });
    assert_eq!(joins.asked(), [1, 3, 5].map(Slot));
    joins.hear(0, 3, &incarnations, page(5, 5..7, 6));
    assert!(joins.marks.contains(&"view joined"));
    assert_eq!(joins.driver.status(GroupId(0)).accepted, Slot(6));
    let part = Part::LogModification {
        first: Slot(7),
        stamps: Vec::new(),
        commit: Slot(6),
        round: 2,
    };
    joins.hear(0, 3, &incarnations, part);
    let executed = joins.executed.iter().map(|(slot, id)| (slot.0, id.0));
    assert_eq!(executed.collect::<Vec<_>>(), [(5, 5), (6, 6)]);
}

#[test]
fn replica_with_fetched_state_agrees_on_next_batch() {
    let (mut leader, mut donor) = pair(&Config::default());
    for host in [&mut leader, &mut donor] {
        host.request(1, 10, b"wa");
        host.request(2, 20, b"wb");
        host.at(50);
    }
    donor.follows_to(leader.placed(), Slot(2));
    donor.event(Event::Control(Control::CheckpointDue));

    let incarnations = [1, 1, 1];
    let mut back = Host::new(2, 3, &Config::default());
    back.hear(0, 0, &incarnations, Part::Trimmed(Slot(3)));
    let summary = donor.summary.clone();
    let slot = Slot(2);
    back.event(Event::Installed { slot, summary });
    let status = Part::LogStatus {
        sync: Slot(2),
        round: 0,
    };
    leader.hear(2, 0, &incarnations, status);
    for host in [&mut leader, &mut back] {
        host.request(3, 60, b"wab");
        host.at(70);
    }
    let (leads, follows) = (leader.results(3), back.fast_reply(3));
    assert!(leads.is_some_and(|hash| hash.known));
    assert_eq!(leads, follows, "what the state covers is in both");
}

/// Follower 1 of three, with this on its disk.
fn restarted(from: RecoveredBytes) -> Host {
    Host::started(1, 3, &Config::default(), from)
}

#[test]
fn replica_restarted_from_snapshot_agrees_on_next_batch() {
    let (mut leader, mut follower) = pair(&Config::default());
    for replica in [&mut leader, &mut follower] {
        replica.request(1, 10, b"wa");
        replica.at(50);
    }
    follower.follows_to(leader.placed(), Slot(1));
    follower.event(Event::Control(Control::CheckpointDue));
    let checkpoint = Some((Slot(1), follower.summary.clone()));

    let mut back = restarted(RecoveredBytes {
        checkpoint,
        ..RecoveredBytes::default()
    });
    back.hear(0, 0, &[1, 1, 0], heartbeat());
    for host in [&mut leader, &mut back] {
        host.request(2, 60, b"wa");
        host.at(70);
    }
    let (leads, follows) = (leader.results(2), back.fast_reply(2));
    assert!(leads.is_some_and(|hash| hash.known));
    assert_eq!(leads, follows, "what the snapshot covers is in both");
}

/// The leader placed another batch before it, which barred it from the log, and it came again.
#[test]
fn batch_appended_again_is_restored_as_it_was_last() {
    let (mut leader, mut follower) = pair(&Config::default());
    for replica in [&mut leader, &mut follower] {
        replica.request(2, 20, b"wa");
        replica.at(50);
    }
    follower.follows_to(leader.placed(), Slot(1));
    follower.event(Event::Control(Control::CheckpointDue));
    let placed = |number, deadline| Placed {
        deadline: BASE + deadline,
        batch: batch(number, b"wa", Level::Ordered),
    };
    let records = [
        Record::Entry(Slot(0), placed(1, 10)),
        Record::Entry(Slot(0), placed(2, 20)),
        Record::Moved(Slot(1), stamp(20, 2)),
        Record::Entry(Slot(0), placed(1, 60)),
    ];
    for (covered, end) in [(true, 4), (false, 4), (true, 3), (false, 3)] {
        let records = records[..end].iter();
        let records = records.map(|record| (Slot(1), record.encode_to_bytes()));
        let from = RecoveredBytes {
            checkpoint: covered.then(|| (Slot(1), follower.summary.clone())),
            records: records.collect(),
            ..RecoveredBytes::default()
        };
        let mut back = restarted(from);
        back.hear(2, 2, &[1, 1, 1], Part::ViewChange(Slot(1)));
        let votes = back.said.iter().filter_map(|said| match said {
            Message::Between {
                part: Part::Vote(vote),
                ..
            } => Some(&vote.unsynced[..]),
            _ => None,
        });
        let again = [stamp(60, 1)];
        let expected = &again[..end - 3];
        assert_eq!(
            votes.last(),
            Some(expected),
            "covered {covered}, {end} records"
        );
    }
}

#[test]
fn state_that_covers_less_will_do_when_new_leader_asks_for_less() {
    let mut joins = Host::new(2, 3, &Config::default());
    let incarnations = [1, 1, 1];
    joins.hear(0, 3, &incarnations, heartbeat());
    joins.hear(0, 3, &incarnations, Part::Trimmed(Slot(61)));
    joins.hear(0, 3, &incarnations, Part::Trimmed(Slot(62)));
    assert_eq!(joins.fetched, [Slot(60)], "what is on its way will do");
    // The replica that had that much is gone; the next leader alone has no more than this.
    joins.hear(1, 4, &incarnations, heartbeat());
    joins.hear(1, 4, &incarnations, Part::Trimmed(Slot(32)));
    assert_eq!(joins.fetched, [60, 31].map(Slot));
}

#[test]
fn changed_deadline_changes_the_hash() {
    assert!(hashes_agree_after_a_changed_deadline(&Config::default()));
}

#[test]
fn write_of_two_keys_that_is_missing_is_noticed_by_read_of_both() {
    assert!(!a_missing_write_of_both_keys_goes_unnoticed(
        &Config::default()
    ));
}

#[test]
fn entry_appended_by_all_survives_any_deadline() {
    assert_eq!(merged(&Config::default()), [1, 2]);
}

#[test]
fn only_a_leader_shortens_deadlines() {
    assert!(!a_follower_appends_what_lies_too_far_ahead(
        &Config::default()
    ));
}

#[test]
fn late_batch_gets_a_deadline_behind_what_it_conflicts_with() {
    assert!(!a_late_batch_is_placed_before_another(&Config::default()));
}

#[test]
fn vote_ends_with_the_incarnation_that_gave_it() {
    assert!(!a_vote_of_an_earlier_incarnation_counts(&Config::default()));
}

#[test]
fn deposed_leader_undoes_what_is_not_committed() {
    let undone = undone_by_a_deposed_leader(&Config::default());
    assert_eq!(undone, [Slot(0)]);
}

#[test]
fn reads_wait_until_the_leader_knows_that_it_leads() {
    assert_eq!(reads_answered_unconfirmed(&Config::default()), 0);
}

#[test]
fn no_replica_joins_view_without_its_log() {
    assert!(!takes_part_before_the_log_is_here(&Config::default()));
}

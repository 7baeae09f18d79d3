//! Two protocols that are only sketched, to see that the boundary can carry their kind: a chain,
//! and replicas that share a table of words. Compiled for tests, never registered.

mod chain;
mod shared_table;

use alloc::{collections::VecDeque, vec::Vec};
use quintet_replica::{
    BatchBuilder, BatchId, BatchView, Bytes, ClockReading, ClusterId, CommandId, Driver,
    Durability, Effect, Epoch, EpochNumber, Event, Executed, FrontendId, GroupId, Incarnation,
    Level, Outcome, Peer, Protocol, Recipients, RecoveredBytes, Replica, ReplicaId, RequestKind,
    SessionId, Setup, Slot, SnapshotInfo, Submission, Surroundings, Time, World, Write,
};

struct Still;

impl World for Still {
    fn now(&self) -> Time {
        Time(1)
    }
    fn clock(&self) -> ClockReading {
        ClockReading::default()
    }
    fn room(&self, _: ReplicaId) -> usize {
        1 << 20
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        None
    }
    fn snapshot_read(&self, _: Executed, _: u64, _: usize) -> Option<Bytes> {
        None
    }
}

/// A few drivers, with every effect carried to the others at once.
struct Bed<P: Protocol> {
    drivers: Vec<Driver<P>>,
    events: VecDeque<(u16, Event)>,
    executed: Vec<Vec<(Slot, Bytes)>>,
    routes: Vec<Vec<ReplicaId>>,
    promises: Vec<Vec<Bytes>>,
    done: Vec<Vec<BatchId>>,
}

impl<P: Protocol> Bed<P> {
    fn new(members: usize) -> Self {
        let driver = |id: usize| {
            let setup = Setup {
                id: ReplicaId(id as u16),
                incarnation: Incarnation(1),
                group: GroupId(0),
                epoch: Epoch {
                    cluster: ClusterId(1),
                    number: EpochNumber(1),
                    members,
                    options: Vec::new(),
                    secret: [0; 32],
                    leader_first: ReplicaId(0),
                },
                durability: Durability::Disk,
                options: P::Options::default(),
                seed: id as u64,
            };
            Driver::new(setup, FrontendId(id as u64 + 1))
        };
        let mut bed = Self {
            drivers: (0..members).map(driver).collect(),
            events: VecDeque::new(),
            executed: alloc::vec![Vec::new(); members],
            routes: alloc::vec![Vec::new(); members],
            promises: alloc::vec![Vec::new(); members],
            done: alloc::vec![Vec::new(); members],
        };
        for id in 0..members as u16 {
            let recovered = RecoveredBytes {
                first_boot: true,
                ..RecoveredBytes::default()
            };
            bed.events.push_back((id, Event::Start(recovered)));
        }
        bed.settle();
        bed
    }

    fn submit(&mut self, id: u16, number: u64) {
        let mut builder = BatchBuilder::new();
        let session = SessionId {
            owner: 1,
            number: 1,
        };
        let request = CommandId {
            session,
            sequence: number,
        };
        builder.push(request, RequestKind::Command, 0, b"x");
        let (batch, level) = (BatchId(number), Level::Ordered);
        let bytes = builder.finish(FrontendId(u64::from(id) + 1), batch, level);
        let submission = Submission {
            id: batch,
            level,
            batch: bytes,
            deadline: Time::NEVER,
        };
        self.events.push_back((id, Event::Submit(submission)));
    }

    fn settle(&mut self) {
        for _ in 0..1000 {
            while let Some((id, event)) = self.events.pop_front() {
                let mut effects = Vec::new();
                let driver = &mut self.drivers[usize::from(id)];
                driver
                    .on_event(event, Surroundings::of(&Still), &mut effects)
                    .expect("well formed");
                driver.assert_invariants();
                effects
                    .into_iter()
                    .for_each(|effect| self.carry_out(id, effect));
            }
            for id in 0..self.drivers.len() as u16 {
                let mut effects = Vec::new();
                self.drivers[usize::from(id)].on_idle(Surroundings::of(&Still), &mut effects);
                effects
                    .into_iter()
                    .for_each(|effect| self.carry_out(id, effect));
            }
            if self.events.is_empty() {
                return;
            }
        }
        panic!("the group does not come to rest");
    }

    fn carry_out(&mut self, id: u16, effect: Effect) {
        let (me, from) = (usize::from(id), ReplicaId(id));
        match effect {
            Effect::Send {
                to: Recipients::Replicas(to),
                frame,
                ..
            } => {
                let (from, arrived, message) = (Peer::Replica(from), Time(1), frame.into_bytes());
                for to in to.iter() {
                    let message = message.clone();
                    self.events.push_back((
                        to.0,
                        Event::Message {
                            from,
                            arrived,
                            message,
                        },
                    ));
                }
            }
            Effect::Put { to, ranges } => {
                for to in to.iter() {
                    let ranges = ranges.clone();
                    self.events.push_back((to.0, Event::Put { from, ranges }));
                }
            }
            Effect::Persist {
                id: write,
                write: what,
            } => {
                if let Write::Promise(bytes) = what {
                    self.promises[me].push(bytes);
                }
                self.events.push_back((id, Event::Persisted(write)));
            }
            Effect::Execute {
                slot, batch, reply, ..
            } => {
                if let Some(route) = reply {
                    let batch = BatchView::new(&batch).expect("a batch").id();
                    let (header, results) = (route.header, Bytes::from_static(b"ok"));
                    let reply = Event::Reply {
                        from,
                        batch,
                        header,
                        results,
                    };
                    self.events.push_back((id, reply));
                }
                self.executed[me].push((slot, batch));
                self.events.push_back((id, Event::Executed(slot)));
            }
            Effect::Route { members, .. } => {
                self.routes[me] = members.iter().map(|(id, _)| *id).collect();
            }
            Effect::Done { batch, outcome } => {
                assert!(matches!(outcome, Outcome::Results(_)));
                self.done[me].push(batch);
            }
            Effect::SetTimer { .. } | Effect::CancelTimer { .. } => {}
            other => panic!("unexpected effect {other:?}"),
        }
    }
}

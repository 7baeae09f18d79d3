//! A protocol that serves several groups: nodes that call it, and where its effects go.

mod common;
#[path = "common/outside.rs"]
mod outside;

use bytes::Bytes;
use common::NoTimer;
use outside::Outside;
use quintet_replica::*;
use quintet_replica::{
    parts::{AttachedFrontend, Receipt, Request, Taken},
    request_message, wire,
};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
enum Spoken {
    Request(Request),
    Taken(Receipt),
}

struct Kept {
    batch: Bytes,
}

request_message!(Spoken);
wire! { struct Kept { batch } }
wire! { enum Spoken { 0 = Request(request), 1 = Taken(receipt), } }

#[derive(Clone, Debug, Default)]
struct Groups(Layout);

impl Options for Groups {
    const SPECS: &'static [OptionSpec] = &[];
    fn set(&mut self, _: &str, value: &str) -> Result<(), String> {
        self.0 = value.parse()?;
        Ok(())
    }
    fn layout(&self) -> Option<&Layout> {
        Some(&self.0)
    }
}

/// Writes what it is asked, in the group where it was asked, and copies it to group 1.
#[derive(Default)]
struct Scribe {
    started: Vec<GroupId>,
    persisted: Vec<(GroupId, PersistId)>,
    executed: Vec<(GroupId, Slot)>,
    refuses: bool,
    roles: Vec<Role>,
}

impl Protocol for Scribe {
    type Message = Spoken;
    type Promise = ();
    type Record = Kept;
    type Summary = ();
    type ReplyHeader = ();
    type Timer = NoTimer;
    type Options = Groups;
    type Frontend = AttachedFrontend<Self>;

    const INFO: Info = Info {
        name: "scribe",
        paper: "",
        best_at: "",
        tolerates: "",
        stable: false,
        replicas_min: 1,
    };

    fn new(_: Setup<Groups>) -> Self {
        Self::default()
    }
    fn on_start(&mut self, _: Recovered<(), Kept, ()>, ctx: &mut Context<'_, Self>) {
        self.started.push(ctx.group());
    }
    fn on_message(&mut self, _: ReplicaId, _: Spoken, _: &mut Context<'_, Self>) {}
    fn on_request(&mut self, from: FrontendId, message: Spoken, ctx: &mut Context<'_, Self>) {
        let Spoken::Request(Request { batch, .. }) = message else {
            return;
        };
        if self.refuses {
            let batch = BatchView::new(&batch).expect("a batch").id();
            let taken = Taken::Refused;
            return ctx.send_frontend(from, Spoken::Taken(Receipt { batch, taken }));
        }
        let record = Kept { batch };
        ctx.persist(Slot(1), &record);
        ctx.in_group(ONE, |ctx| ctx.persist(Slot(2), &record));
        ctx.persist(Slot(3), &record);
    }
    fn on_timer(&mut self, timer: NoTimer, _: &mut Context<'_, Self>) {
        match timer {}
    }
    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        self.persisted.push((ctx.group(), upto));
    }
    fn on_executed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        self.executed.push((ctx.group(), slot));
    }
    fn on_installed(&mut self, _: Slot, (): (), _: &mut Context<'_, Self>) {}
    fn on_control(&mut self, _: Control, ctx: &mut Context<'_, Self>) {
        ctx.roles_are(7, self.roles.clone());
    }
    fn on_idle(&mut self, _: &mut Context<'_, Self>) -> Wake {
        Wake::Sleep
    }
    fn takes_requests_in(&self, group: GroupId, _: Time) -> bool {
        group == GroupId(2) && !self.refuses
    }
    fn takes_requests(&self, _: Time) -> bool {
        false
    }
    fn status(&self) -> Status {
        Status::default()
    }
    fn digest(&self) -> u64 {
        0
    }
}

const HOME: GroupId = GroupId(0);
const ONE: GroupId = GroupId(1);
const TWO: GroupId = GroupId(2);

/// Groups 0 and 1 on disk, 2 in memory.
fn driver() -> Driver<Scribe> {
    let layout = "a groups=1 nodes=0-2;b groups=2 nodes=0-2 durability=memory";
    let setup = Setup {
        id: ReplicaId(0),
        incarnation: Incarnation(1),
        group: HOME,
        epoch: Epoch {
            cluster: ClusterId(7),
            number: EpochNumber(1),
            members: 3,
            options: Vec::new(),
            secret: [0; 32],
            leader_first: ReplicaId(0),
        },
        durability: Durability::Disk,
        options: Groups(layout.parse().expect("a layout")),
        seed: 1,
    };
    Driver::new(setup, FrontendId(9))
}

/// The input of this group's node, and the outputs of others.
fn tell(
    driver: &mut Driver<Scribe>,
    group: GroupId,
    event: Event,
) -> (Vec<Effect>, Vec<(GroupId, Effect)>) {
    let (mut effects, mut foreign) = (Vec::new(), Vec::new());
    let outside = Outside::default();
    let around = Surroundings {
        group,
        ..Surroundings::of(&outside)
    };
    driver
        .on_event(event, around, &mut effects)
        .expect("well-formed");
    driver.take_foreign(&mut foreign);
    (effects, foreign)
}

fn submission(number: u64) -> Event {
    let request = CommandId {
        session: SessionId {
            owner: 1,
            number: 1,
        },
        sequence: number,
    };
    let mut builder = BatchBuilder::new();
    builder.push(request, RequestKind::Command, 0, b"do");
    let (id, level) = (BatchId(number), Level::Ordered);
    Event::Submit(Submission {
        id,
        level,
        batch: builder.finish(FrontendId(9), id, level),
        deadline: Time(1) + Duration::from_secs(60),
    })
}

fn writes(effects: &[Effect]) -> Vec<(u64, u64)> {
    let write = |effect: &Effect| match effect {
        Effect::Persist {
            id,
            write: Write::Record { slot, .. },
        } => Some((id.0, slot.0)),
        _ => None,
    };
    effects.iter().filter_map(write).collect()
}

fn of_group(foreign: Vec<(GroupId, Effect)>, group: GroupId) -> Vec<Effect> {
    let foreign = foreign.into_iter();
    let of = foreign.filter_map(|(of, effect)| (of == group).then_some(effect));
    of.collect()
}

#[test]
fn every_group_starts_and_counts_its_own_writes() {
    let mut driver = driver();
    for group in [HOME, ONE, TWO] {
        tell(&mut driver, group, Event::Start(RecoveredBytes::default()));
    }
    assert_eq!(driver.replica().started, [HOME, ONE, TWO]);
    // Asked by the first group's node: the copy is another's.
    let (own, foreign) = tell(&mut driver, HOME, submission(1));
    assert_eq!(writes(&own), [(1, 1), (2, 3)]);
    assert!(foreign.iter().all(|(group, _)| *group == ONE));
    assert_eq!(writes(&of_group(foreign, ONE)), [(1, 2)]);
    // Asked by that other's: all of it is its own, behind what it has already.
    let (own, foreign) = tell(&mut driver, ONE, submission(1));
    assert_eq!(writes(&own), [(2, 1), (3, 2), (4, 3)]);
    assert!(foreign.is_empty(), "{foreign:?}");
    assert!(driver.replica().persisted.is_empty());
    tell(&mut driver, ONE, Event::Persisted(PersistId(3)));
    tell(&mut driver, HOME, Event::Persisted(PersistId(2)));
    let told = [(ONE, PersistId(3)), (HOME, PersistId(2))];
    assert_eq!(driver.replica().persisted, told);
}

#[test]
fn group_in_memory_writes_nothing_and_is_durable_at_once() {
    let mut driver = driver();
    let (own, foreign) = tell(&mut driver, TWO, submission(1));
    assert_eq!(writes(&own), []);
    assert_eq!(writes(&of_group(foreign, ONE)), [(1, 2)]);
    assert_eq!(driver.replica().persisted, [(TWO, PersistId(2))]);
}

#[test]
fn executions_are_those_of_the_group_whose_node_tells() {
    let mut driver = driver();
    tell(&mut driver, TWO, Event::Executed(Slot(5)));
    tell(&mut driver, ONE, Event::Executed(Slot(2)));
    assert_eq!(driver.replica().executed, [(TWO, Slot(5)), (ONE, Slot(2))]);
}

#[test]
fn frontend_of_a_group_sends_to_the_members_that_it_is_told() {
    let mut driver = driver();
    let role = |members: &[u16]| Role {
        group: TWO,
        state: RoleState::Active,
        members: members.iter().copied().map(ReplicaId).collect(),
        senders: members.iter().copied().map(ReplicaId).collect(),
    };
    let roles = |driver: &mut Driver<Scribe>, members: &[u16]| {
        driver.replica_mut().roles = vec![role(members)];
        let event = Event::Control(Control::CheckpointDue);
        tell(driver, HOME, event)
    };
    let asked = |effects: &[Effect]| {
        let asked = effects.iter().filter_map(|effect| match effect {
            Effect::Request { to, .. } => to.iter().next(),
            _ => None,
        });
        asked.collect::<Vec<_>>()
    };
    let (own, foreign) = roles(&mut driver, &[2]);
    assert!(matches!(own[..], [Effect::Roles { view: 7, .. }]));
    assert!(foreign.is_empty());
    let (own, _) = tell(&mut driver, TWO, submission(1));
    assert_eq!(asked(&own), [ReplicaId(2)]);
    assert_eq!((driver.open(TWO), driver.open(ONE)), (1, 0));
    // Now this replica is a member: open batches are offered to it, and no more to others.
    let (_, foreign) = roles(&mut driver, &[0]);
    let due = of_group(foreign, TWO);
    let key = due.iter().find_map(|effect| match effect {
        Effect::SetTimer { key, .. } => Some(*key),
        _ => None,
    });
    let key = key.expect("it is sent again");
    let (own, _) = tell(&mut driver, TWO, Event::Timer(key));
    assert_eq!(asked(&own), []);
    assert_eq!(driver.replica().persisted, [(TWO, PersistId(2))]);
}

#[test]
fn refused_request_is_offered_when_its_group_takes_it() {
    let mut driver = driver();
    driver.replica_mut().refuses = true;
    tell(&mut driver, TWO, submission(1));
    tell(&mut driver, ONE, submission(2));
    let idle = |driver: &mut Driver<Scribe>| {
        let mut effects = Vec::new();
        driver.on_idle(Surroundings::of(&Outside::default()), &mut effects);
        let mut foreign = Vec::new();
        driver.take_foreign(&mut foreign);
        foreign
    };
    idle(&mut driver);
    assert!(driver.replica().persisted.is_empty());
    driver.replica_mut().refuses = false;
    let foreign = idle(&mut driver);
    // Group 1 takes none: what stands in its log is the copy.
    assert_eq!(writes(&of_group(foreign, ONE)), [(1, 2)]);
    assert_eq!(driver.replica().persisted, [(TWO, PersistId(2))]);
}

//! A world of the search: the state of each replica, what is in progress, what clients saw.
//!
//! ```text
//!   words: states · firings, crashes · decided · client events … · frames in progress …
//! ```
//!
//! A world is a row of numbers, the same for the same world however it was reached: frames that
//! may overtake each other are sorted, and so are client events between which no real time passes.

use super::{
    replica_state::{Alarm, Cast, End, Item, KEY, Move, Step},
    shards::Known,
};
use crate::{
    checkers::{Violation, cells},
    history::{Fate, Recorded},
};
use quintet_replica::{NodeState, ReplicaId};
use std::sync::Arc;

/// The limit of the steps that follow booting.
const SETTLING_MAX: usize = 10_000;
/// A client event is an ended command when this is set; then how it ended stands above.
const ENDED: u32 = 1 << 7;

/// The next possible event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// The frame at this place of those in progress arrives.
    Deliver(u16),
    Persist(u16),
    Fire(u16, Alarm),
    Submit(u8),
    /// The end of the epoch is offered at replica 0.
    Seal,
    /// A snapshot becomes durable.
    Save(u16),
    Crash(u16, u8),
    Restart(u16),
}

/// A frame in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flight {
    pub from: u8,
    pub to: u8,
    pub lane: u8,
    pub message: u32,
}

impl Flight {
    fn word(self) -> u32 {
        let link = u32::from(self.from) << 4 | u32::from(self.to) << 1 | u32::from(self.lane);
        link << 25 | self.message
    }

    fn of(word: u32) -> Self {
        let link = word >> 25;
        Self {
            from: (link >> 4) as u8,
            to: (link >> 1 & 7) as u8,
            lane: (link & 1) as u8,
            message: word & ((1 << 25) - 1),
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct World(Box<[u32]>);

/// A world taken apart.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub replica_states: Vec<u32>,
    fired: u32,
    crashed: u32,
    sealed: u32,
    /// The number of the order that was executed so far, anywhere.
    decided: u32,
    /// The number of what was seen of the shards so far.
    pub known: u32,
    pub events: Vec<u32>,
    pub flights: Vec<Flight>,
}

/// Orders and ends, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub known: Known,
    orders: Vec<Arc<Vec<Item>>>,
    ends: Vec<(u8, End)>,
}

impl Tables {
    fn order(&mut self, order: Vec<Item>) -> u32 {
        let known = self.orders.iter().position(|known| **known == order);
        let number = known.unwrap_or_else(|| {
            self.orders.push(Arc::new(order));
            self.orders.len() - 1
        });
        number as u32
    }

    fn end(&mut self, end: (u8, End)) -> u32 {
        let known = self.ends.iter().position(|known| *known == end);
        let number = known.unwrap_or_else(|| {
            self.ends.push(end);
            self.ends.len() - 1
        });
        number as u32
    }

    /// How a command ended, by the number in a client event.
    pub fn ended(&self, event: u32) -> Option<(u8, End)> {
        self.ends.get((event >> 8) as usize).copied()
    }
}

impl World {
    pub fn words(&self) -> &[u32] {
        &self.0
    }

    /// All replicas have booted and are linked.
    pub fn first(cast: &mut Cast) -> (Self, Option<Violation>) {
        let replicas = cast.bounds.replicas as u16;
        let mut parts = Parts {
            replica_states: (0..replicas).map(|id| cast.unborn(id)).collect(),
            fired: 0,
            crashed: 0,
            sealed: 0,
            decided: cast.tables.order(Vec::new()),
            known: cast.tables.known.nothing(&cast.layout),
            events: Vec::new(),
            flights: Vec::new(),
        };
        let mut wrong = None;
        for id in 0..replicas {
            if let Err(violation) = parts.boot(id, cast) {
                wrong.get_or_insert(violation);
            }
        }
        let mut world = parts.pack(cast);
        for _ in 0..SETTLING_MAX {
            let calm = |action: &Action| {
                matches!(
                    action,
                    Action::Deliver(_) | Action::Persist(_) | Action::Save(_)
                )
            };
            let next = world.actions(cast).into_iter().find(calm);
            let (false, Some(next)) = (cast.bounds.from_boot, next) else {
                break;
            };
            match world.after(next, cast) {
                Ok(after) => world = after,
                Err(violation) => return (world, wrong.or(Some(violation))),
            }
        }
        if cast.bounds.at_once {
            for number in 0..cast.commands.len() as u8 {
                match world.after(Action::Submit(number), cast) {
                    Ok(after) => world = after,
                    Err(violation) => return (world, wrong.or(Some(violation))),
                }
            }
        }
        (world, wrong)
    }

    pub fn parts(&self, cast: &Cast) -> Parts {
        let replicas = cast.bounds.replicas;
        let (replica_states, rest) = self.0.split_at(replicas);
        let events = rest[3] as usize;
        Parts {
            replica_states: replica_states.to_vec(),
            fired: rest[0] >> 16,
            sealed: rest[0] >> 8 & 0xff,
            crashed: rest[0] & 0xff,
            decided: rest[1],
            known: rest[2],
            events: rest[4..4 + events].to_vec(),
            flights: rest[4 + events..]
                .iter()
                .map(|word| Flight::of(*word))
                .collect(),
        }
    }

    /// How many commands were answered.
    pub fn answered(&self, cast: &Cast) -> usize {
        let parts = self.parts(cast);
        (parts.events.iter())
            .filter(|event| **event & ENDED != 0)
            .filter(|event| matches!(cast.tables.ended(**event), Some((_, End::Done(_)))))
            .count()
    }

    /// All that may happen, in an order that does not change.
    pub fn actions(&self, cast: &Cast) -> Vec<Action> {
        let parts = self.parts(cast);
        let bounds = &cast.bounds;
        let mut actions = Vec::new();
        let mut before: Option<Flight> = None;
        for (at, flight) in parts.flights.iter().enumerate() {
            let same = |a: &Flight| match bounds.in_order {
                // Behind another on its link.
                true => (a.from, a.to, a.lane) == (flight.from, flight.to, flight.lane),
                // A second copy leads nowhere new.
                false => a == flight,
            };
            if !before.as_ref().is_some_and(same) {
                actions.push(Action::Deliver(at as u16));
            }
            before = Some(*flight);
        }
        for (id, replica_state) in parts.replica_states.iter().enumerate() {
            let (id, replica_state) = (id as u16, &cast.replica_states[*replica_state as usize]);
            if !replica_state.alive {
                actions.push(Action::Restart(id));
                continue;
            }
            let groups = replica_state.pending_groups();
            if groups > 0 {
                actions.push(Action::Persist(id));
            }
            if replica_state.saves() {
                actions.push(Action::Save(id));
            }
            if id == 0 && (parts.sealed as usize) < bounds.seals {
                actions.push(Action::Seal);
            }
            if (parts.fired as usize) < bounds.timers {
                actions.extend(
                    replica_state
                        .timers
                        .iter()
                        .map(|key| Action::Fire(id, *key)),
                );
            }
            if (parts.crashed as usize) < bounds.crashes {
                actions.extend((0..=groups).map(|kept| Action::Crash(id, kept)));
            }
        }
        for (number, command) in cast.commands.iter().enumerate() {
            let replica_state = parts.replica_states[usize::from(command.at)];
            let number = number as u8;
            let new = !parts.events.contains(&u32::from(number));
            if new && cast.replica_states[replica_state as usize].alive {
                actions.push(Action::Submit(number));
            }
        }
        actions
    }

    /// The world after `action`.
    pub fn after(&self, action: Action, cast: &mut Cast) -> Result<Self, Violation> {
        let mut parts = self.parts(cast);
        match action {
            Action::Deliver(at) => {
                let flight = parts.flights.remove(at.into());
                let happens = Move::Frame {
                    from: flight.from.into(),
                    message: flight.message,
                };
                parts.happen(flight.to.into(), happens, cast)?;
            }
            Action::Persist(id) => parts.happen(id, Move::Persisted, cast)?,
            Action::Fire(id, key) => {
                parts.fired += 1;
                parts.happen(id, Move::Timer(key), cast)?;
            }
            Action::Submit(command) => {
                parts.events.push(command.into());
                let at = cast.commands[usize::from(command)].at;
                parts.happen(at, Move::Submit(command), cast)?;
            }
            Action::Seal => {
                parts.sealed += 1;
                parts.happen(0, Move::Seal, cast)?;
            }
            Action::Save(id) => parts.happen(id, Move::Saved, cast)?,
            Action::Crash(id, kept) => {
                parts.crashed += 1;
                parts.happen(id, Move::Crash { kept }, cast)?;
                let touches =
                    |flight: &Flight| u16::from(flight.from) == id || u16::from(flight.to) == id;
                parts.flights.retain(|flight| !touches(flight));
                for other in parts.living(id, cast) {
                    parts.happen(other, Move::LinkReset(id), cast)?;
                    if cast.bounds.down {
                        parts.happen(other, Move::LinkDown(id), cast)?;
                    }
                }
            }
            Action::Restart(id) => parts.boot(id, cast)?,
        }
        Ok(parts.pack(cast))
    }
}

impl Parts {
    fn living(&self, but: u16, cast: &Cast) -> Vec<u16> {
        (0..self.replica_states.len() as u16)
            .filter(|id| *id != but)
            .filter(|id| cast.replica_states[self.replica_states[usize::from(*id)] as usize].alive)
            .collect()
    }

    fn boot(&mut self, id: u16, cast: &mut Cast) -> Result<(), Violation> {
        let others = self.living(id, cast);
        let up = others.iter().fold(0, |up, other| up | 1 << other);
        self.happen(id, Move::Boot { up }, cast)?;
        for other in others {
            self.happen(other, Move::LinkUp(id), cast)?;
        }
        Ok(())
    }

    /// Something happens to a replica, and what follows at once.
    fn happen(&mut self, id: u16, happens: Move, cast: &mut Cast) -> Result<(), Violation> {
        let replica_state = self.replica_states[usize::from(id)];
        let step: Arc<Step> = cast.step(replica_state, happens);
        if let Some(violation) = &step.violation {
            return Err(violation.clone());
        }
        self.replica_states[usize::from(id)] = step.next;
        if let Some(seen) = step.seen {
            self.known = self.see(id, seen, cast)?;
        }
        for sent in &step.sends {
            let to = &cast.replica_states[self.replica_states[usize::from(sent.to)] as usize];
            if to.alive && sent.to != id && sent.boot.is_none_or(|boot| boot == to.boot) {
                self.flights.push(Flight {
                    from: id as u8,
                    to: sent.to as u8,
                    lane: sent.lane,
                    message: sent.message,
                });
            }
        }
        if !step.executed.is_empty() {
            self.executed(id, &step.executed, cast)?;
        }
        for (command, end) in &step.ends {
            self.ended(*command, *end, cast)?;
        }
        Ok(())
    }

    fn executed(&mut self, id: u16, items: &[Item], cast: &mut Cast) -> Result<(), Violation> {
        let order = cast.tables.orders[self.decided as usize].clone();
        let mut longer: Option<Vec<Item>> = None;
        for item in items {
            let mut known = order.iter();
            if let Some(known) =
                known.find(|known| (known.place, known.position) == (item.place, item.position))
            {
                if known != item {
                    let what = format!(
                        "replica {id} executes operations {:?} in place {}, another one executed \
                         {:?} there",
                        item.commands, item.position, known.commands
                    );
                    return Err(Violation::new("agreement", what));
                }
                continue;
            }
            let longer = longer.get_or_insert_with(|| order.to_vec());
            for command in &item.commands {
                if longer.iter().any(|item| item.commands.contains(command)) {
                    let what = format!("operation {command} is executed twice, by replica {id}");
                    return Err(Violation::new("exactly_once", what));
                }
                let failed = self.events.iter().any(|event| {
                    event & ENDED != 0
                        && cast.tables.ended(*event) == Some((*command as u8, End::Failed))
                });
                if failed {
                    let what = format!("operation {command}, called not executed, is executed");
                    return Err(Violation::new("exactly_once", what));
                }
            }
            let at = longer.partition_point(|known| {
                (known.place, known.position) < (item.place, item.position)
            });
            longer.insert(at, item.clone());
        }
        if let Some(longer) = longer {
            self.decided = cast.tables.order(longer);
        }
        Ok(())
    }

    fn ended(&mut self, command: u8, end: End, cast: &mut Cast) -> Result<(), Violation> {
        let number = cast.tables.end((command, end));
        self.events.push(number << 8 | ENDED | u32::from(command));
        match end {
            End::Done(_) => {
                self.check_durable(command, cast)?;
                self.check_linearizable(cast)
            }
            End::Failed => {
                let order = &cast.tables.orders[self.decided as usize];
                let executed =
                    (order.iter()).any(|item| item.commands.contains(&u64::from(command)));
                match executed {
                    true => Err(Violation::new(
                        "exactly_once",
                        format!("operation {command} was executed, and is called not executed"),
                    )),
                    false => Ok(()),
                }
            }
            End::Uncertain => Ok(()),
        }
    }

    /// No set that may continue by itself is without a durable copy of what was acknowledged.
    fn check_durable(&self, command: u8, cast: &Cast) -> Result<(), Violation> {
        if cast.commands[usize::from(command)].operation == crate::machine::Operation::Read {
            return Ok(());
        }
        let payload = cast.payload(command);
        let mut order = cast.tables.orders[self.decided as usize].iter();
        let number = u64::from(command);
        let item = order.find(|item| item.commands.contains(&number));
        let position = item.map(|item| item.position);
        let holds = |replica_state: &u32| {
            cast.replica_states[*replica_state as usize]
                .disk
                .holds(&payload, position)
        };
        let holders: Vec<bool> = self.replica_states.iter().map(holds).collect();
        let on: Vec<usize> = (0..holders.len()).filter(|id| holders[*id]).collect();
        let place = usize::from(cast.commands[usize::from(command)].place);
        if let Some(shard) = place.checked_sub(1) {
            let min = cast.layout.subgroup(shard).min;
            if on.len() < min {
                let what = format!(
                    "operation {command} is acknowledged and durable on replicas {on:?} alone: \
                     its shard has at least {min}"
                );
                return Err(Violation::new("durable", what));
            }
            return Ok(());
        }
        let without: Vec<NodeState> = (holders.iter().enumerate())
            .map(|(id, holds)| NodeState {
                id: ReplicaId(id as u16),
                up: !holds,
                state_lost: false,
            })
            .collect();
        if (cast.entry.viable)(self.replica_states.len(), &without) {
            let what = format!(
                "operation {command} is acknowledged and durable on replicas {on:?} alone: the \
                 others may continue without it"
            );
            return Err(Violation::new("durable", what));
        }
        Ok(())
    }

    fn check_linearizable(&self, cast: &Cast) -> Result<(), Violation> {
        let mut history: Vec<Recorded> = Vec::new();
        let mut numbers = Vec::new();
        for (ordinal, event) in self.events.iter().enumerate() {
            let ordinal = ordinal as u64 + 1;
            if event & ENDED == 0 {
                numbers.push(*event as u8);
                history.push(Recorded {
                    client: *event as u16,
                    // The register of each group is another one.
                    key: KEY + 3 * u32::from(cast.commands[*event as usize].place),
                    operation: cast.commands[*event as usize].operation,
                    invoked: ordinal,
                    fate: Fate::Open,
                    id: None,
                });
            } else if let Some((command, end)) = cast.tables.ended(*event)
                && let Some(at) = numbers.iter().position(|number| *number == command)
            {
                history[at].fate = match end {
                    End::Done(reply) => Fate::Done(ordinal, reply),
                    End::Failed => Fate::Failed,
                    End::Uncertain => Fate::Uncertain,
                };
            }
        }
        let order = &cast.tables.orders[self.decided as usize];
        cells::check(&history, |at| {
            let number = u64::from(*numbers.get(at)?);
            let place = order
                .iter()
                .position(|item| item.commands.contains(&number))?;
            Some(place as u64)
        })
    }

    fn pack(mut self, cast: &Cast) -> World {
        if cast.bounds.in_order {
            // Stable: those of one link keep their order.
            self.flights
                .sort_by_key(|flight| (flight.from, flight.to, flight.lane));
        } else {
            self.flights.sort_unstable();
        }
        // Between two ends, or two beginnings, no order is seen by anybody.
        for run in self.events.chunk_by_mut(|a, b| (a & ENDED) == (b & ENDED)) {
            run.sort_unstable();
        }
        let mut words = self.replica_states;
        words.extend([
            self.fired << 16 | self.sealed << 8 | self.crashed,
            self.decided,
            self.known,
            self.events.len() as u32,
        ]);
        words.extend(self.events);
        words.extend(self.flights.into_iter().map(Flight::word));
        World(words.into_boxed_slice())
    }
}

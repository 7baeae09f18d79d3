//! The answers of a world, compared with the agreed order at the end.

use super::{
    ledger::Content,
    machine,
    notices::{self, AllTold},
    places::Contents,
    views::Views,
};
use crate::{checkers::Violation, groups::world::World, machine::hash_bytes};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quintet::{Retention, call::read_answer, machine::Here};
use quintet_replica::{At, CommandId, CommandTime, Injected, PastAnswer, Position};
use std::collections::BTreeMap;

/// Which state was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum When {
    Time(u64),
    Version(u64),
}

/// All answers of a world's services.
#[derive(Debug, Default)]
pub(in crate::groups) struct Answers {
    /// Commands by the hash of their bytes.
    commands: HashMap<u64, Vec<u8>, FixedState>,
    ordered: HashMap<(usize, CommandId), Vec<u8>, FixedState>,
    past: HashMap<(usize, When), Vec<u8>, FixedState>,
    /// Two answers for the same time or version that differ.
    differing: Option<String>,
    /// By shard: when a courier asked that found nothing to deliver.
    pub(super) emptied: BTreeMap<usize, u64>,
    /// By source and destination: the last hand-off that was certainly executed.
    pub(super) delivered: BTreeMap<(usize, usize), u64>,
    contents: Contents,
    pub(super) notices: AllTold,
    /// Those that shards are told of.
    pub(super) views: Views,
    /// When every caller had called every shard since the last fault.
    pub(super) called_at: Option<u64>,
}

fn is_trimmed(reply: &[u8]) -> bool {
    reply.first() == Some(&1)
}

impl Answers {
    pub(super) fn sent(&mut self, payload: &[u8]) {
        let hash = hash_bytes(payload);
        self.commands
            .entry(hash)
            .or_insert_with(|| payload.to_vec());
    }

    pub(super) fn ordered(&mut self, place: usize, id: CommandId, reply: &[u8]) {
        self.ordered.insert((place, id), reply.to_vec());
    }

    pub(super) fn past(&mut self, place: usize, when: When, reply: &[u8]) {
        if is_trimmed(reply) {
            return;
        }
        let before = self.past.insert((place, when), reply.to_vec());
        if before.is_some_and(|before| before != reply) {
            let what = format!("shard {place} at {when:?} has two answers");
            self.differing.get_or_insert(what);
        }
    }
}

impl Answers {
    /// A member's content at a version.
    pub(super) fn content(
        &mut self,
        place: usize,
        version: u64,
        content: Content,
    ) -> Result<(), Violation> {
        let key = (place, version);
        let known = self.contents.entry(key).or_insert_with(|| content.clone());
        match *known == content {
            true => Ok(()),
            false => {
                let what = format!("shard {place}, version {version}: {content:?}, not {known:?}");
                Err(Violation::new("gathers", what))
            }
        }
    }
}

impl Answers {
    /// Calls that were answered.
    pub fn acknowledged(&self) -> u64 {
        (self.ordered.len() + self.past.len()) as u64
    }
}

impl World {
    /// The answers of the service at this place are those of its agreed order.
    pub(in crate::groups) fn check_service(&self, place: usize) -> Result<(), Violation> {
        if let Some(what) = &self.answers.differing {
            return Err(Violation::new("cuts", what.clone()));
        }
        let group = &self.groups[place];
        if !group.is_final() {
            return Ok(());
        }
        let all = Retention {
            versions: u64::MAX,
            bytes: u64::MAX,
            age: None,
        };
        let destinations = self.destinations_of(place);
        let mut machine = machine(all, &destinations, Injected::default(), Here::default());
        let (mut left, mut next) = (BTreeMap::new(), 1);
        let mut reply = Vec::new();
        let (mut answered, mut sequences) = (0, BTreeMap::new());
        let mut end = CommandTime(0);
        for position in 1.. {
            let Some((time, commands)) = group.agreement.at(position) else {
                break;
            };
            end = time;
            for command in commands {
                let Some(payload) = self.answers.commands.get(&command.hash) else {
                    let what = format!("shard {place} executed {command:?}, which no actor sent");
                    return Err(Violation::new("exactly_once", what));
                };
                let last = sequences.insert(command.id.session, command.id.sequence);
                if last.is_some_and(|last| last >= command.id.sequence) {
                    let what = format!("shard {place} executed {command:?} behind {last:?}");
                    return Err(Violation::new("exactly_once", what));
                }
                reply.clear();
                let at = At {
                    position: Position(position),
                    time,
                    id: command.id,
                };
                machine.apply(&at, payload, &mut reply);
                let told = notices::told_by(&*machine, next);
                next = next.max(told.next);
                left.extend(told.notices.into_iter().map(|it| (it.number, it)));
                if let Some(told) = self.answers.ordered.get(&(place, command.id)) {
                    answered += 1;
                    if *told != reply {
                        let what = format!("shard {place}, {command:?}: {told:?}, not {reply:?}");
                        return Err(Violation::new("history", what));
                    }
                }
            }
        }
        let acknowledged = self.answers.ordered.keys();
        let acknowledged = acknowledged.filter(|(of, _)| *of == place).count();
        if answered != acknowledged {
            let what = format!("shard {place} acknowledged {acknowledged}, executed {answered}");
            return Err(Violation::new("durability", what));
        }
        for ((of, when), told) in &self.answers.past {
            if *of != place {
                continue;
            }
            let (payload, time) = super::actors::question(*when, end);
            let at = At {
                position: Position(0),
                time,
                id: CommandId::default(),
            };
            reply.clear();
            let asked = machine.query_at(&at, &payload, &mut reply);
            if asked != PastAnswer::Done || *told != reply {
                let what =
                    format!("shard {place} at {when:?}: {told:?}, not {reply:?} ({asked:?})");
                return Err(Violation::new("history", what));
            }
        }
        reply.clear();
        machine.query(&At::default(), &super::actors::content(), &mut reply);
        let content = read_answer::<Content>(&reply, "");
        let content = content.map_err(|error| Violation::new("views", error.to_string()))?;
        self.check_last_view(place, &content.value.views)?;
        self.check_notices(place, &left)?;
        for ((_, version), content) in self.answers.contents.range((place, 0)..=(place, u64::MAX)) {
            let (payload, time) = super::actors::question(When::Version(*version), end);
            let at = At {
                time,
                ..At::default()
            };
            reply.clear();
            machine.query_at(&at, &payload, &mut reply);
            let of = read_answer::<Content>(&reply, "").map(|done| done.value);
            if of.as_ref() != Ok(content) {
                let what = format!("shard {place}, version {version}: {content:?}, not {of:?}");
                return Err(Violation::new("gathers", what));
            }
        }
        Ok(())
    }
}

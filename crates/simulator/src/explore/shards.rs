//! The knowledge of shards in a world of the search: the checks of `roles`, with a number for each
//! state of what they have seen.

use super::{live::Live, replica_state::Cast, world::Parts};
use crate::checkers::{
    Violation,
    roles::{Roles, ShardSeen, Stand, read},
};
use quintet_replica::{Layout, ReplicaSet, Slot, Status};
use std::collections::HashMap;

/// A replica's account of its shards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Seen {
    view: u64,
    shards: Vec<ShardSeen>,
    /// By shard: what it orders if it takes part, and up to where it has delivered.
    parts: Vec<(Option<ReplicaSet>, Slot)>,
}

/// Numbers of what was seen, and what it has added up to.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    seen: Vec<Seen>,
    roles: Vec<Roles>,
    numbers: HashMap<Roles, u32>,
    seen_numbers: HashMap<Seen, u32>,
    /// Its next value when a replica shows this.
    steps: HashMap<(u32, u16, u32), Result<u32, Violation>>,
}

impl Known {
    pub fn nothing(&mut self, layout: &Layout) -> u32 {
        self.number(Roles::new(layout.clone()))
    }

    fn number(&mut self, roles: Roles) -> u32 {
        let next = self.roles.len() as u32;
        let number = *self.numbers.entry(roles.clone()).or_insert(next);
        if number == next {
            self.roles.push(roles);
        }
        number
    }
}

impl Cast {
    /// The number of what a replica shows.
    pub fn see(&mut self, live: &Live) -> Option<u32> {
        let groups = self.groups.get(1..).filter(|groups| !groups.is_empty())?;
        let statuses: Vec<Status> = groups
            .iter()
            .map(|group| live.node().status_in(*group))
            .collect();
        let nodes = live.nodes[1..].iter();
        let seen = Seen {
            view: statuses[0].view,
            shards: statuses.iter().map(|status| read(status).0).collect(),
            parts: (nodes.zip(&statuses))
                .map(|(node, status)| {
                    let Stand { ordered_from, .. } = read(status).1;
                    let takes_part = status.role == "member";
                    (takes_part.then_some(ordered_from), node.executed().slot)
                })
                .collect(),
        };
        let known = &mut self.tables.known;
        let next = known.seen.len() as u32;
        let number = *known.seen_numbers.entry(seen.clone()).or_insert(next);
        if number == next {
            known.seen.push(seen);
        }
        Some(number)
    }
}

impl Parts {
    /// The number of what is known now that a replica shows this.
    pub fn see(&self, id: u16, seen: u32, cast: &mut Cast) -> Result<u32, Violation> {
        let step = (self.known, id, seen);
        if let Some(known) = cast.tables.known.steps.get(&step) {
            return known.clone();
        }
        let mut roles = cast.tables.known.roles[self.known as usize].clone();
        let shown = cast.tables.known.seen[seen as usize].clone();
        let next = Self::add(&mut roles, id, &shown);
        let next = next.map(|()| cast.tables.known.number(roles));
        cast.tables.known.steps.insert(step, next.clone());
        next
    }

    fn add(roles: &mut Roles, id: u16, seen: &Seen) -> Result<(), Violation> {
        roles.saw(id, seen.view, &seen.shards)?;
        for (shard, (takes_part, slot)) in seen.parts.iter().enumerate() {
            if let Some(from) = takes_part {
                roles.begins(id, shard, seen.view, *from, None)?;
                roles.delivered(id, shard, seen.view, *slot)?;
            }
        }
        Ok(())
    }
}

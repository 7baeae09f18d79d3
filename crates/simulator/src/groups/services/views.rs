//! Heralds: each looks at what some process knows of a shard's members, and tells the shard. Several do so
//! at once, some of them by what processes know that are cut off.

use super::actors::Asked;
use crate::{
    checkers::Violation,
    groups::{
        draw::Part,
        world::{EPOCH, World},
    },
};
use quintet::view::{self, Told};
use std::collections::BTreeMap;

/// A herald's knowledge.
#[derive(Debug, Default)]
pub(super) struct Herald {
    /// By shard: the number of the last view that was taken.
    told: BTreeMap<usize, (u64, u64)>,
    /// The view that it is telling.
    telling: Option<(usize, Told)>,
}

/// Views as they were told.
#[derive(Debug, Default)]
pub(super) struct Views {
    /// By shard and number: the members, as some process knew them.
    known: BTreeMap<(usize, (u64, u64)), Vec<u16>>,
    /// By shard: the number of the last view that is certainly executed.
    told: BTreeMap<usize, (u64, u64)>,
}

impl Views {
    fn note(&mut self, place: usize, view: &Told) -> Result<(), Violation> {
        let key = (place, view.number);
        let known = self
            .known
            .entry(key)
            .or_insert_with(|| view.members.clone());
        match *known == view.members {
            true => Ok(()),
            false => {
                let what = format!("shard {place}: {view:?}, and elsewhere {known:?}");
                Err(Violation::new("views", what))
            }
        }
    }

    /// The views that a shard was told of are such that there were.
    pub fn check(
        &self,
        place: usize,
        told: &BTreeMap<(u64, u64), Vec<u16>>,
    ) -> Result<(), Violation> {
        for (number, members) in told {
            let known = self.known.get(&(place, *number));
            if known != Some(members) {
                let what = format!("shard {place}: view {number:?} is {members:?}, not {known:?}");
                return Err(Violation::new("views", what));
            }
        }
        Ok(())
    }
}

impl Herald {
    /// Its last view was taken.
    pub fn on_told(&mut self) -> Option<(usize, (u64, u64))> {
        let (place, view) = self.telling.take()?;
        let told = self.told.entry(place).or_default();
        *told = view.number.max(*told);
        Some((place, view.number))
    }
}

impl World {
    /// The members of a group, as a process knows them.
    pub(super) fn view_at(&self, at: usize, place: usize) -> Option<Told> {
        let group = &self.groups[place];
        let mut hosts = self.processes[at].hosts.iter();
        let host = hosts.find(|host| host.group == place)?;
        let node = host.node.as_ref()?;
        let (number, members) = match group.part {
            Part::Own => node.view()?,
            Part::Top => return None,
            Part::Shard(_) => {
                let top = self.processes[at].hosts.first()?.node.as_ref()?;
                top.view_in(group.id)?
            }
        };
        Some(Told {
            number: (EPOCH.0, number),
            members: members.iter().map(|id| id.0).collect(),
        })
    }

    /// A herald looks at some process.
    pub(super) fn begin_telling(&mut self, actor: usize, places: &[usize]) -> Option<Asked> {
        let place = places[self.random.index(places.len())];
        let members = &self.groups[place].members;
        let at = members[self.random.index(members.len())];
        let view = self.view_at(at, place)?;
        let noted = self.answers.views.note(place, &view);
        self.demand(noted);
        let again = self.random.chance(50);
        let herald = self.actors[actor].herald()?;
        let is_new = herald
            .told
            .get(&place)
            .is_none_or(|told| *told < view.number);
        if !is_new && !again {
            return None;
        }
        let payload = view::tell(&view);
        herald.telling = Some((place, view));
        Some(Asked::order(place, payload))
    }

    /// A shard has been told of a view.
    pub(super) fn on_view_told(&mut self, (place, number): (usize, (u64, u64))) {
        let told = self.answers.views.told.entry(place).or_default();
        *told = number.max(*told);
    }

    /// The newest view that some process knows.
    fn newest_view(&self, place: usize) -> Option<Told> {
        let members = self.groups[place].members.iter();
        let views = members.filter_map(|at| self.view_at(*at, place));
        views.max_by_key(|view| view.number)
    }

    /// Whether every shard that is to serve has been told of its newest view.
    pub(in crate::groups) fn views_are_told(&self) -> bool {
        let mut places = self.service_places().into_iter();
        places.all(|place| {
            let newest = self.newest_view(place).map(|view| view.number);
            let told = self.answers.views.told.get(&place).copied();
            !self.promised[place] || newest <= told
        })
    }

    /// At the end, a shard knows of the members that it has.
    pub(super) fn check_last_view(
        &self,
        place: usize,
        told: &BTreeMap<(u64, u64), Vec<u16>>,
    ) -> Result<(), Violation> {
        self.answers.views.check(place, told)?;
        let last = told.values().last();
        let newest = self.newest_view(place).map(|view| view.members);
        let Some(newest) = newest.filter(|_| self.promised[place]) else {
            return Ok(());
        };
        let of_shard = match self.groups[place].part {
            Part::Shard(shard) => self.views.members(shard),
            Part::Own | Part::Top => None,
        };
        let of_shard: Option<Vec<u16>> =
            of_shard.map(|all| all.into_iter().map(|at| at as u16).collect());
        if last != Some(&newest) || of_shard.is_some_and(|of_shard| of_shard != newest) {
            let what =
                format!("shard {place} was told of {last:?} at last, its members are {newest:?}");
            return Err(Violation::new("views", what));
        }
        Ok(())
    }
}

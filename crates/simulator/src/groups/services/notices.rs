//! Followers: each caller follows what is told of payments, shard by shard.

use super::actors::{Asked, What};
use crate::{checkers::Violation, groups::world::World};
use quintet::{
    call::{Call, Kind, read_answer},
    notices::{Notice, Told},
};
use quintet_replica::{At, StateMachine};
use std::collections::BTreeMap;

/// Followed by all.
const NAME: &str = "paid";

/// A follower of one shard.
#[derive(Clone, Debug, Default)]
pub(super) struct Following {
    /// The first number that it follows from; 0 before it knows one.
    first: u64,
    next: u64,
    told: Vec<u64>,
    /// First and last of those that it missed.
    missed: Vec<(u64, u64)>,
}

/// All that was told, by shard and number.
pub(super) type AllTold = BTreeMap<(usize, u64), Notice>;

fn ask(from: u64) -> Vec<u8> {
    Call::encode(Kind::Follow, 0, &(NAME, from))
}

/// The notices of a machine from a number on.
pub(super) fn told_by(machine: &dyn StateMachine, from: u64) -> Told {
    let mut reply = Vec::new();
    machine.query(&At::default(), &ask(from), &mut reply);
    let told = read_answer::<Told>(&reply, "");
    told.expect("a follower is answered").value
}

impl Following {
    fn take(&mut self, told: &Told) -> Result<bool, String> {
        let from = std::mem::replace(&mut self.next, told.next);
        if from == 0 {
            self.first = told.next;
            return match told.notices.is_empty() && told.next > 0 {
                true => Ok(false),
                false => Err(format!("the first answer is {told:?}")),
            };
        }
        let missed = from < told.oldest;
        if missed {
            self.missed.push((from, told.oldest - 1));
        }
        let mut least = from.max(told.oldest);
        for notice in &told.notices {
            if notice.number < least || notice.number >= told.next || notice.name != NAME {
                return Err(format!("from {from} on, told {told:?}"));
            }
            least = notice.number + 1;
            self.told.push(notice.number);
        }
        match told.next >= least.max(from) {
            true => Ok(missed),
            false => Err(format!("from {from} on, told {told:?}")),
        }
    }

    /// It was told each of these once and in order, or that it missed it.
    fn check(&self, all: &BTreeMap<u64, Notice>) -> Result<(), String> {
        let missed = |number: &u64| {
            let mut ranges = self.missed.iter();
            ranges.any(|(first, last)| (first..=last).contains(&number))
        };
        let expected = all.range(self.first..self.next.max(self.first));
        let expected: Vec<u64> = (expected.map(|(number, _)| *number))
            .filter(|number| !missed(number))
            .collect();
        match self.next == 0 || expected == self.told {
            true => Ok(()),
            false => Err(format!("{self:?}, there were {expected:?}")),
        }
    }
}

impl World {
    pub(super) fn begin_following(&mut self, actor: usize, place: usize) -> Asked {
        let following = self.actors[actor].following.entry(place).or_default();
        Asked::query(place, ask(following.next)).of(What::Notices)
    }

    pub(super) fn on_notices(
        &mut self,
        actor: usize,
        place: usize,
        reply: &[u8],
    ) -> Result<(), Violation> {
        let wrong =
            |what: String| Violation::new("notices", format!("{actor} in shard {place}: {what}"));
        let told = read_answer::<Told>(reply, "").map_err(|error| wrong(error.to_string()))?;
        let told = told.value;
        let following = self.actors[actor].following.entry(place).or_default();
        if following.take(&told).map_err(wrong)? {
            self.count("notices missed");
        }
        if !told.notices.is_empty() {
            self.count("notices told");
        }
        for notice in told.notices {
            let key = (place, notice.number);
            let known = self
                .answers
                .notices
                .entry(key)
                .or_insert_with(|| notice.clone());
            if *known != notice {
                return Err(wrong(format!("{notice:?}, and elsewhere {known:?}")));
            }
        }
        Ok(())
    }

    /// Followers were told what commands have left.
    pub(super) fn check_notices(
        &self,
        place: usize,
        all: &BTreeMap<u64, Notice>,
    ) -> Result<(), Violation> {
        let wrong = |what: String| Violation::new("notices", format!("shard {place}: {what}"));
        for ((of, number), told) in &self.answers.notices {
            if *of == place && all.get(number) != Some(told) {
                return Err(wrong(format!("{told:?}, not {:?}", all.get(number))));
            }
        }
        let followings = self.actors.iter().filter_map(|it| it.following.get(&place));
        (followings.into_iter()).try_for_each(|following| following.check(all).map_err(wrong))
    }
}

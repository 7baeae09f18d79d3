//! Sends the questions of calls that depend on the member that answers, see
//! [`quintet_groups::at_members`].

use super::{
    CallError, When,
    answering::Answering,
    call,
    calls::{Calls, Source},
    replies::Arrivals,
};
pub(super) use quintet_groups::at_members::Method;
use quintet_groups::at_members::{Answer, Ask, AtPlace, Caller, Gather, GatherStep, Target};
use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    sync::{Arc, atomic::Ordering},
};

fn target(source: &Source, only: Option<usize>) -> Target {
    Target {
        name: source.name.to_string(),
        number: source.number as u32,
        only,
    }
}

struct Ours<'a>(&'a Calls);

impl Caller for Ours<'_> {
    fn number(&mut self) -> u64 {
        // No other process draws it.
        RandomState::new().hash_one(0)
    }
    fn turn(&mut self) -> usize {
        self.0.placed.fetch_add(1, Ordering::Relaxed)
    }
    fn rests(&self, member: u16) -> bool {
        self.0.rests(member.into())
    }
}

impl Calls {
    fn send_to(self: &Arc<Self>, source: &Source, ask: Ask, done: Answering) {
        let to = self.to(source, ask.member.map(usize::from));
        self.send(to, ask.wanted, ask.payload, done);
    }

    /// Has each member of a shard, or one of them, answer as of one place of the order.
    pub fn gather(
        self: &Arc<Self>,
        source: &Source,
        only: Option<usize>,
        method: Method,
        arrivals: Arc<Arrivals>,
    ) {
        let (gather, ask) = Gather::begin(target(source, only), method);
        self.gather_next(source.clone(), gather, ask, arrivals);
    }

    fn gather_next(
        self: &Arc<Self>,
        source: Source,
        mut gather: Gather,
        ask: Ask,
        arrivals: Arc<Arrivals>,
    ) {
        let calls = self.clone();
        let of = source.clone();
        let on_answer = move |answer| match gather.on_answer(answer, calls.seen()) {
            GatherStep::Ask(ask) => {
                arrivals.expect(gather.asked());
                calls.gather_next(source, gather, ask, arrivals);
            }
            GatherStep::Parts(parts) => {
                for (member, ask) in parts {
                    let arrivals = arrivals.clone();
                    let put = move |answer| arrivals.put(member, answer);
                    calls.send_to(&source, ask, Answering::next(put));
                }
            }
            GatherStep::Fail(error) => match gather.asked() {
                [] => arrivals.fail(&calls.all(), &error),
                asked => arrivals.fail(asked, &error),
            },
        };
        self.send_to(&of, ask, Answering::next(on_answer));
    }

    /// Asks one member, with the states of the siblings there.
    pub fn ask_at_place(
        self: &Arc<Self>,
        source: &Source,
        only: Option<usize>,
        when: (Option<When>, bool),
        method: Method,
        done: Answering,
    ) {
        let siblings = source.reads.iter().map(|subgroup| {
            let name = format!("{subgroup}/{}", source.number);
            let mut shards = self.shards.iter();
            shards.find(|it| *it.name == *name).cloned()
        });
        let Some(siblings) = siblings.collect::<Option<Vec<_>>>() else {
            let shard = source.name.to_string();
            return done.answer(Err(CallError::Schema { shard }));
        };
        let bytes = method.arguments.len();
        let names = siblings.iter().map(|it| it.name.to_string()).collect();
        let begun = AtPlace::begin(target(source, only), names, when, method);
        let (query, ask) = match begun {
            Ok(begun) => begun,
            Err(error) => return done.answer(Err(error)),
        };
        if call::is_inside() {
            // It could begin on a thread that executes no handler.
            return done.answer(Err(CallError::InsideHandler));
        }
        let placing = Placing {
            calls: self.clone(),
            source: source.clone(),
            siblings,
            query,
        };
        if placing.siblings.is_empty() {
            return placing.ask(ask, done);
        }
        self.turns.take(bytes, move |turn| {
            let Some(turn) = turn else {
                return done.answer(Err(CallError::Busy));
            };
            let done = Answering::next(move |answer| {
                drop(turn);
                done.answer(answer);
            });
            placing.ask(ask, done);
        });
    }
}

/// A query that is on its way to a member at which all shards are that it reads.
struct Placing {
    calls: Arc<Calls>,
    source: Source,
    siblings: Vec<Source>,
    query: AtPlace,
}

impl Placing {
    fn send(&self, ask: Ask, done: Answering) {
        let sibling = ask.sibling.map(|nth| &self.siblings[nth]);
        self.calls
            .send_to(sibling.unwrap_or(&self.source), ask, done);
    }

    fn ask(self, ask: Ask, done: Answering) {
        let calls = self.calls.clone();
        let source = ask
            .sibling
            .map_or_else(|| self.source.clone(), |nth| self.siblings[nth].clone());
        let on_answer = move |answer| self.on_answer(answer, done);
        calls.send_to(&source, ask, Answering::next(on_answer));
    }

    fn on_answer(mut self, answer: Answer, done: Answering) {
        let step = self.query.on_answer(answer, &mut Ours(&self.calls));
        if let Some(ask) = step.aside {
            self.send(ask, Answering::next(drop));
        }
        match step.next {
            Ok(ask) => self.ask(ask, done),
            Err(answer) => done.answer(answer),
        }
    }
}

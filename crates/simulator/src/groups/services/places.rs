//! Calls that depend on the member that answers: gathers, and queries that read sibling shards. Their steps
//! are those of `quintet::groups`.
//!
//! ```text
//!   gather   mark, ordered ──► each member: its rank and the content as of the mark ──► all the same
//!                └─ one reply of each member of the view, or an error of one that is silent or gone
//!   beside   siblings at member 3 lend their states ──► query of the shard at member 3
//!                ├─ a member is silent, is gone, or has no such shard: the next one
//!                └─► nothing acknowledged is missing in any, and no hand-off that was delivered
//! ```

use super::{
    actors::{Asked, What, number_of},
    ledger::Content,
    shard, subgroup,
};
use crate::{checkers::Violation, groups::world::World, random::Random};
use quintet::{
    CallError,
    at_members::{Answer, Ask, AtPlace, Caller, Gather, GatherStep, Inbox, Method, Target, Wanted},
    call::{answer_of, read_answer},
    encoding::encode,
};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// A gather in progress.
#[derive(Debug)]
pub(super) struct Gathering {
    place: usize,
    /// Those of the view by which it asks, and those that are asked.
    view: Vec<u16>,
    asked: Vec<u16>,
    gather: Gather,
    inbox: Inbox,
    left: VecDeque<(u16, Ask)>,
    /// That of the mark.
    version: u64,
}

/// A query that reads siblings.
#[derive(Debug)]
pub(super) struct Beside {
    place: usize,
    siblings: Vec<usize>,
    query: AtPlace,
    /// These are to be in the shard and its first sibling: payments of the caller, receipts.
    floors: [(u64, u64); 2],
    /// Of what the shard has handed off to the first sibling.
    delivered: u64,
}

/// A member's part of a gather.
type Part = (u16, Vec<u16>, Content);

/// Draws of a caller.
struct Draws<'a> {
    random: &'a mut Random,
    actor: usize,
    tickets: &'a mut u64,
}

impl Caller for Draws<'_> {
    fn number(&mut self) -> u64 {
        *self.tickets += 1;
        (self.actor as u64) << 32 | *self.tickets
    }
    fn turn(&mut self) -> usize {
        self.random.index(8)
    }
    fn rests(&self, _: u16) -> bool {
        false
    }
}

fn target(place: usize, only: Option<usize>) -> Target {
    let (name, number) = (shard(place), 0);
    Target { name, number, only }
}

fn method(name: &str, arguments: &impl Serialize) -> Method {
    Method {
        number: number_of(name),
        arguments: encode(arguments),
        is_versioned: true,
    }
}

fn no_quorum(place: usize) -> CallError {
    let shard = shard(place);
    CallError::NoQuorum { shard }
}

impl World {
    /// The members as some process knows them.
    fn view_of_some(&mut self, place: usize) -> Option<Vec<u16>> {
        let members = &self.groups[place].members;
        let at = members[self.random.index(members.len())];
        self.view_at(at, place).map(|view| view.members)
    }

    /// Now and then one process of the group is asked for, whether it is a member or not.
    fn only_one(&mut self, place: usize) -> Option<usize> {
        let members = &self.groups[place].members;
        let chosen = members[self.random.index(members.len())];
        self.random.chance(200).then_some(chosen)
    }

    pub(super) fn begin_gather(&mut self, actor: usize, place: usize) -> Option<Asked> {
        let view = self.view_of_some(place)?;
        let only = self.only_one(place);
        let (mut gather, _) = Gather::begin(target(place, only), method("part", &()));
        let seen = self.actors[actor].seen;
        let mark = match gather.on_answer(Ok(answer_of(&view)), seen) {
            GatherStep::Ask(ask) => ask,
            GatherStep::Fail(CallError::NotThere { .. }) => {
                self.count("gather at no member");
                return None;
            }
            other => {
                let violation = Violation::new("gathers", format!("{view:?}, {only:?}: {other:?}"));
                self.violate(violation);
                return None;
            }
        };
        let mut inbox = Inbox::with_injected(self.bug);
        inbox.expect(gather.asked());
        let asked = match only {
            Some(only) => vec![only as u16],
            None => view.clone(),
        };
        self.actors[actor].gather = Some(Gathering {
            place,
            view,
            asked,
            gather,
            inbox,
            left: VecDeque::new(),
            version: 0,
        });
        Some(Asked::of_ask(place, mark).of(What::Mark))
    }

    pub(super) fn on_mark(
        &mut self,
        actor: usize,
        reply: &[u8],
    ) -> Result<Option<Asked>, Violation> {
        let this = &mut self.actors[actor];
        let gathering = this.gather.as_mut().expect("the actor gathers");
        let mark = read_answer::<()>(reply, "");
        match gathering.gather.on_answer(Ok(reply.to_vec()), this.seen) {
            GatherStep::Parts(parts) => gathering.left = parts.into(),
            GatherStep::Fail(CallError::ClockSkew { .. }) => {
                this.gather = None;
                return Ok(None);
            }
            other => return Err(Violation::new("gathers", format!("{other:?}"))),
        }
        gathering.version = mark.map_or(0, |done| done.version.0);
        self.next_part(actor)
    }

    /// A member has replied.
    pub(super) fn on_part(
        &mut self,
        actor: usize,
        member: u16,
        reply: &[u8],
    ) -> Result<Option<Asked>, Violation> {
        let gathering = self.actors[actor].gather.as_mut();
        let inbox = &mut gathering.expect("the actor gathers").inbox;
        inbox.put(member, Ok(reply.to_vec()));
        if self.random.chance(100) {
            // It comes twice.
            inbox.put(member, Ok(reply.to_vec()));
        }
        self.next_part(actor)
    }

    /// Asks the next member for its part; behind the last one, all have replied or are silent.
    pub(super) fn next_part(&mut self, actor: usize) -> Result<Option<Asked>, Violation> {
        let Some(gathering) = &mut self.actors[actor].gather else {
            return Ok(None);
        };
        if let Some((member, ask)) = gathering.left.pop_front() {
            let asked = Asked::of_ask(gathering.place, ask);
            return Ok(Some(asked.of(What::Part(member))));
        }
        let mut gathering = self.actors[actor].gather.take().expect("it gathers");
        let mut replies = Vec::new();
        loop {
            match gathering.inbox.next_reply() {
                Some(Some(reply)) => replies.push(reply),
                Some(None) => break,
                None => {
                    let error = no_quorum(gathering.place);
                    gathering.inbox.give_up(&[], &error);
                }
            }
        }
        self.check_gather(&gathering, replies)?;
        Ok(None)
    }

    /// The replies are those of the members: one of each that was asked, as of one place of the order.
    fn check_gather(
        &mut self,
        gathering: &Gathering,
        replies: Vec<(u16, Answer)>,
    ) -> Result<(), Violation> {
        let wrong = |what: String| Err(Violation::new("gathers", what));
        let mut from: Vec<u16> = replies.iter().map(|(member, _)| *member).collect();
        from.sort_unstable();
        if from != gathering.asked {
            return wrong(format!("replies of {from:?} in {gathering:?}"));
        }
        let (mut lacks, mut content) = (false, None);
        for (member, reply) in replies {
            let part = reply.and_then(|bytes| read_answer::<Part>(&bytes, ""));
            let done = match part {
                Ok(done) => done,
                // It is no member any more, the version is not kept, or it is silent.
                Err(
                    CallError::NotThere { .. }
                    | CallError::Trimmed { .. }
                    | CallError::NoQuorum { .. },
                ) => {
                    lacks = true;
                    continue;
                }
                Err(error) => return wrong(format!("{member}: {error}")),
            };
            let (rank, members, its) = done.value;
            if done.version.0 != gathering.version
                || members != gathering.view
                || members.get(usize::from(rank)) != Some(&member)
            {
                return wrong(format!(
                    "{member} is {rank} of {members:?} at {}, in {gathering:?}",
                    done.version
                ));
            }
            if let Some(other) = content.replace(its.clone())
                && other != its
            {
                return wrong(format!("{member} has {its:?}, another one {other:?}"));
            }
        }
        if let Some(content) = content {
            let (place, version) = (gathering.place, gathering.version);
            self.answers.content(place, version, content)?;
        }
        self.count(match lacks {
            true => "gather without a member",
            false => "gather",
        });
        Ok(())
    }
}

impl World {
    pub(super) fn begin_beside(&mut self, actor: usize, place: usize) -> Option<Asked> {
        let mut siblings = self.destinations_of(place);
        self.random.shuffle(&mut siblings);
        siblings.truncate(if self.random.chance(300) { 2 } else { 1 });
        let sibling = *siblings.first()?;
        let view = self.view_of_some(place)?;
        let delivered = self.answers.delivered.get(&(place, sibling)).copied();
        let only = self.only_one(place);
        let names = siblings.iter().map(|it| shard(*it)).collect();
        let method = method("beside", &(subgroup(sibling),));
        let begun = AtPlace::begin(target(place, only), names, (None, false), method);
        let (query, _) = begun.expect("it asks for no version");
        let this = &mut self.actors[actor];
        let floors = [place, sibling].map(|place| {
            let known = this.known.get(&place).copied().unwrap_or_default();
            (known.acknowledged, known.received)
        });
        this.beside = Some(Beside {
            place,
            siblings,
            query: query.with_injected(self.bug),
            floors,
            delivered: delivered.unwrap_or_default(),
        });
        let next = self.on_place(actor, Ok(answer_of(&view)));
        next.unwrap_or_else(|violation| {
            self.violate(violation);
            None
        })
    }

    /// Takes the next step of a query that reads siblings; nothing has come where that is an error.
    pub(super) fn on_place(
        &mut self,
        actor: usize,
        answer: Answer,
    ) -> Result<Option<Asked>, Violation> {
        let this = &mut self.actors[actor];
        let Some(mut beside) = this.beside.take() else {
            return Ok(None);
        };
        let mut draws = Draws {
            random: &mut self.random,
            actor,
            tickets: &mut this.tickets,
        };
        let step = beside.query.on_answer(answer, &mut draws);
        let of = |sibling: Option<usize>| sibling.map_or(beside.place, |nth| beside.siblings[nth]);
        if let Some(ask) = step.aside {
            self.count("state given back");
            self.submit_aside(actor, Asked::of_ask(of(ask.sibling), ask));
        }
        match step.next {
            Ok(ask) => {
                let asked = Asked::of_ask(of(ask.sibling), ask).of(What::Place);
                self.actors[actor].beside = Some(beside);
                Ok(Some(asked))
            }
            Err(answer) => self.check_beside(actor, &beside, answer).map(|()| None),
        }
    }

    /// The query of this actor has no answer.
    pub(super) fn on_silence(&mut self, actor: usize) -> Result<Option<Asked>, Violation> {
        let place = self.actors[actor].beside.as_ref().map_or(0, |it| it.place);
        self.count("member silent for a query");
        self.on_place(actor, Err(no_quorum(place)))
    }

    fn check_beside(
        &mut self,
        actor: usize,
        beside: &Beside,
        answer: Answer,
    ) -> Result<(), Violation> {
        let wrong = |what: String| Err(Violation::new("beside", format!("{beside:?}: {what}")));
        let answer = answer.and_then(|bytes| read_answer::<Option<(Content, Content)>>(&bytes, ""));
        let contents = match answer {
            Ok(done) => done.value,
            Err(
                CallError::NotThere { .. }
                | CallError::NoQuorum { .. }
                | CallError::Busy
                | CallError::Stopped,
            ) => {
                self.count("query answered by no member");
                return Ok(());
            }
            Err(error) => return wrong(error.to_string()),
        };
        let Some((own, sibling)) = contents else {
            return wrong("no state was lent".to_owned());
        };
        for (content, (paid, received)) in [&own, &sibling].into_iter().zip(beside.floors) {
            let has = content.paid.get(&(actor as u64));
            if has.map_or(0, |(_, count)| *count) < paid || content.receipts() < received {
                return wrong(format!("{content:?}"));
            }
        }
        let sent = own.sent.get(&subgroup(beside.siblings[0])).copied();
        let received = sibling.received.get(&shard(beside.place)).copied();
        let (sent, received) = (sent.unwrap_or_default(), received.unwrap_or_default());
        if received < beside.delivered || received > sent {
            return wrong(format!("received {received} of {sent}"));
        }
        self.count("query beside a sibling");
        Ok(())
    }
}

impl Asked {
    /// The question of a step.
    fn of_ask(place: usize, ask: Ask) -> Self {
        let asked = match ask.wanted {
            Wanted::Level(quintet_replica::Level::Ordered) => Self::order(place, ask.payload),
            Wanted::Level(level) => Self::read(place, level, ask.payload),
            Wanted::Past(asking) => Self::past(place, asking, ask.payload),
            Wanted::Members => unreachable!("members are known to the world"),
        };
        match ask.member {
            Some(member) => asked.at(member),
            None => asked,
        }
    }
}

/// Contents by shard and version.
pub(super) type Contents = BTreeMap<(usize, u64), Content>;

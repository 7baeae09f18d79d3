//! Calls that depend on the member that answers: gathers, and queries that read a sibling shard.
//!
//! ```text
//!   gather   mark, ordered ──► each member: its rank and the content as of the mark ──► all the same
//!   beside   sibling at member 3 lends its state ──► query of the shard at member 3
//!                ──► nothing acknowledged is missing in either, and no hand-off that was delivered
//! ```

use super::{
    actors::{Asked, What, number_of},
    ledger::Content,
    shard, subgroup,
};
use crate::{checkers::Violation, groups::world::World};
use quintet::{
    CallError,
    call::{Around, Call, Kind, Loan, Placed, read_answer},
};
use quintet_replica::{Bug, past::Asking};
use std::collections::{BTreeMap, VecDeque};

/// A gather in progress.
#[derive(Debug)]
pub(super) struct Gather {
    place: usize,
    members: Vec<u16>,
    left: VecDeque<u16>,
    /// Some member has not answered.
    lacks: bool,
    /// That of the mark.
    version: u64,
    content: Option<Content>,
}

/// A query that reads a sibling.
#[derive(Debug)]
pub(super) struct Beside {
    place: usize,
    sibling: usize,
    at: u16,
    members: Vec<u16>,
    ticket: u64,
    /// These are to be in both: payments of the caller, receipts.
    floors: [(u64, u64); 2],
    /// Of what the shard has handed off to the sibling.
    delivered: u64,
}

/// A member's part of a gather.
type Part = (u16, Vec<u16>, Content);

impl World {
    fn view_of_some(&mut self, place: usize) -> Option<Vec<u16>> {
        let members = &self.groups[place].members;
        let at = members[self.random.index(members.len())];
        self.view_at(at, place).map(|view| view.members)
    }

    pub(super) fn begin_gather(&mut self, actor: usize, place: usize) -> Option<Asked> {
        let members = self.view_of_some(place)?;
        let this = &mut self.actors[actor];
        this.gather = Some(Gather {
            place,
            left: members.iter().copied().collect(),
            members,
            lacks: false,
            version: 0,
            content: None,
        });
        let mark = Call::encode_with(Kind::Mark(this.seen), 0, |_| {});
        Some(Asked::order(place, mark).of(What::Mark))
    }

    /// Asks the next member for its part.
    fn next_part(&mut self, actor: usize) -> Option<Asked> {
        let gather = self.actors[actor].gather.as_mut()?;
        let Some(member) = gather.left.pop_front() else {
            let lacks = gather.lacks;
            self.actors[actor].gather = None;
            self.count(match lacks {
                true => "gather without a member",
                false => "gather",
            });
            return None;
        };
        let call = Call::encode(Kind::QueryAtVersion(gather.version), number_of("part"), &());
        let placed = Around::Placed(Placed {
            member,
            members: gather.members.clone(),
            shard: 0,
            ticket: 0,
        });
        let asked = Asked::past(gather.place, Asking::here(), placed.put(&call));
        Some(asked.of(What::Part(member)).at(member))
    }

    pub(super) fn on_mark(
        &mut self,
        actor: usize,
        reply: &[u8],
    ) -> Result<Option<Asked>, Violation> {
        match read_answer::<()>(reply, "") {
            Ok(done) => {
                let gather = self.actors[actor].gather.as_mut();
                let gather = gather.expect("the actor gathers");
                gather.version = done.version.0;
                Ok(self.next_part(actor))
            }
            Err(CallError::ClockSkew { .. }) => Ok(None),
            Err(error) => Err(Violation::new("gathers", error.to_string())),
        }
    }

    pub(super) fn on_part(
        &mut self,
        actor: usize,
        member: u16,
        reply: &[u8],
    ) -> Result<Option<Asked>, Violation> {
        let gather = self.actors[actor].gather.as_mut();
        let gather = gather.expect("the actor gathers");
        let wrong = |what: String| Err(Violation::new("gathers", what));
        match read_answer::<Part>(reply, "") {
            Ok(done) => {
                let (rank, members, content) = done.value;
                if done.version.0 != gather.version
                    || members != gather.members
                    || members.get(usize::from(rank)) != Some(&member)
                {
                    return wrong(format!(
                        "{member} is {rank} of {members:?} at {}, in {gather:?}",
                        done.version
                    ));
                }
                if let Some(other) = gather.content.replace(content.clone())
                    && other != content
                {
                    return wrong(format!("{member} has {content:?}, another one {other:?}"));
                }
                let (place, version) = (gather.place, gather.version);
                self.answers.content(place, version, content)?;
            }
            // It is no member any more, or the version is not kept.
            Err(CallError::NotThere { .. } | CallError::Trimmed { .. }) => gather.lacks = true,
            Err(error) => return wrong(error.to_string()),
        }
        Ok(self.next_part(actor))
    }
}

impl World {
    pub(super) fn begin_beside(&mut self, actor: usize, place: usize) -> Option<Asked> {
        let destinations = self.destinations_of(place);
        let sibling = *destinations.get(self.random.index(destinations.len().max(1)))?;
        let (members, others) = (self.view_of_some(place)?, self.view_of_some(sibling)?);
        let both: Vec<u16> = (members.iter().copied())
            .filter(|at| others.contains(at))
            .collect();
        let at = *both.get(self.random.index(both.len().max(1)))?;
        let delivered = self.answers.delivered.get(&(place, sibling)).copied();
        let this = &mut self.actors[actor];
        let floors = [place, sibling].map(|place| {
            let known = this.known.get(&place).copied().unwrap_or_default();
            (known.acknowledged, known.received)
        });
        this.beside = Some(Beside {
            place,
            sibling,
            at,
            members,
            ticket: 0,
            floors,
            delivered: delivered.unwrap_or_default(),
        });
        self.borrow_state(actor)
    }

    /// Asks the sibling for its state.
    fn borrow_state(&mut self, actor: usize) -> Option<Asked> {
        let stale = self.bug.is(Bug::LendsStale);
        let this = &mut self.actors[actor];
        this.tickets += 1;
        let beside = this.beside.as_mut()?;
        beside.ticket = (actor as u64) << 32 | this.tickets;
        let subgroup = subgroup(beside.sibling);
        let loan = Around::Lent(Loan {
            member: beside.at,
            ticket: beside.ticket,
            subgroup: &subgroup,
        });
        let payload = loan.put(&Call::encode_with(Kind::Query, 0, |_| {}));
        let asked = match stale {
            true => Asked::stale(beside.sibling, payload),
            false => Asked::query(beside.sibling, payload),
        };
        Some(asked.of(What::Loan).at(beside.at))
    }

    /// The state is lent; the shard is asked.
    pub(super) fn on_loan(
        &mut self,
        actor: usize,
        reply: &[u8],
    ) -> Result<Option<Asked>, Violation> {
        let Some(beside) = &self.actors[actor].beside else {
            return Ok(None);
        };
        match read_answer::<quintet::call::Anything>(reply, "") {
            Ok(_) => {}
            Err(CallError::NotThere { .. }) => {
                self.actors[actor].beside = None;
                self.count("state lent elsewhere");
                return Ok(None);
            }
            Err(error) => return Err(Violation::new("beside", error.to_string())),
        }
        let placed = Around::Placed(Placed {
            member: beside.at,
            members: beside.members.clone(),
            shard: 0,
            ticket: beside.ticket,
        });
        let name = subgroup(beside.sibling);
        let call = Call::encode(Kind::Query, number_of("beside"), &(name,));
        let asked = Asked::query(beside.place, placed.put(&call));
        Ok(Some(asked.of(What::Beside).at(beside.at)))
    }

    pub(super) fn on_beside(
        &mut self,
        actor: usize,
        reply: &[u8],
    ) -> Result<Option<Asked>, Violation> {
        let answer = read_answer::<Option<(Content, Content)>>(reply, "");
        if let Err(CallError::Busy) = answer {
            // An earlier try has taken the state.
            return Ok(self.borrow_state(actor));
        }
        let Some(beside) = self.actors[actor].beside.take() else {
            return Ok(None);
        };
        let wrong = |what: String| Err(Violation::new("beside", format!("{beside:?}: {what}")));
        let contents = match answer {
            Ok(done) => done.value,
            Err(CallError::NotThere { .. }) => {
                self.count("query answered elsewhere");
                return Ok(None);
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
        let sent = own.sent.get(&subgroup(beside.sibling)).copied();
        let received = sibling.received.get(&shard(beside.place)).copied();
        let (sent, received) = (sent.unwrap_or_default(), received.unwrap_or_default());
        if received < beside.delivered || received > sent {
            return wrong(format!("received {received} of {sent}"));
        }
        self.count("query beside a sibling");
        Ok(None)
    }
}

/// Contents by shard and version.
pub(super) type Contents = BTreeMap<(usize, u64), Content>;

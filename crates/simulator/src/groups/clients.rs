//! Clients: one operation at a time each, in a session per group.

use super::{
    draw::Part,
    world::{AFTERWARDS, Event, KEYS, MILLISECOND, World, frontend},
};
use crate::{
    checkers::Violation,
    history::Fate,
    machine::{Operation, decode_reply, encode_command},
    random::Random,
};
use quintet_replica::{
    BatchBuilder, BatchId, CommandId, Input, Level, Outcome, RequestKind, RequestStatus, Results,
    SessionId, Submission, Time,
};

/// A client asks again after this time.
pub(super) const RETRY: u64 = 400 * MILLISECOND;

/// The client or actor that waits for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Client(usize),
    /// Of the services.
    Actor(usize),
}

/// A session in a group.
#[derive(Debug)]
pub(super) struct Session {
    number: u64,
    opened: bool,
    /// The batch on its way opens it.
    opening: bool,
    pub sequence: u64,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            number: 1,
            opened: false,
            opening: false,
            sequence: 0,
        }
    }
}

impl Session {
    pub const fn id(&self, owner: u64) -> CommandId {
        let session = SessionId {
            owner,
            number: self.number,
        };
        CommandId {
            session,
            sequence: self.sequence,
        }
    }

    /// Puts its next command into a batch, and opens it where it is not open.
    pub fn put(&mut self, owner: u64, batch: &mut BatchBuilder, payload: &[u8], now: u64) {
        let id = self.id(owner);
        self.opening = !self.opened;
        if self.opening {
            let first = CommandId { sequence: 0, ..id };
            batch.push(first, RequestKind::Open, 0, &now.to_le_bytes());
        }
        batch.push(id, RequestKind::Command, 0, payload);
    }

    /// A result of that batch: whether the command was executed.
    ///
    /// # Errors
    /// When the session has ended; the next one begins.
    pub fn on_result(&mut self, status: RequestStatus) -> Result<bool, ()> {
        let opening = std::mem::take(&mut self.opening);
        match status {
            RequestStatus::Done => {
                self.opened = true;
                Ok(!opening)
            }
            RequestStatus::OutOfOrder => Ok(false),
            _ => {
                self.end();
                Err(())
            }
        }
    }

    /// The next one begins.
    pub fn end(&mut self) {
        *self = Self {
            number: self.number + 1,
            ..Self::default()
        };
    }
}

/// A group that a client works with.
struct Home {
    group: usize,
    session: Session,
    /// Operations answered since the last fault.
    afterwards: u64,
}

/// See the module.
pub(super) struct Client {
    homes: Vec<Home>,
    /// The group of the operation in progress, or of the last one.
    home: usize,
    /// The operation in progress.
    number: Option<usize>,
    level: Level,
    tries: u64,
}

impl Client {
    fn of(groups: impl Iterator<Item = usize>) -> Self {
        let homes = groups.map(|group| Home {
            group,
            session: Session::default(),
            afterwards: 0,
        });
        Self {
            homes: homes.collect(),
            home: 0,
            number: None,
            level: Level::Ordered,
            tries: 0,
        }
    }

    /// The clients of this many groups.
    pub fn draw(follows_view: bool, groups: &[usize], random: &mut Random) -> Vec<Self> {
        let own = |group| Self::of([group].into_iter());
        let all = groups.iter().copied();
        match follows_view {
            false => all.flat_map(|it| [own(it), own(it)]).collect(),
            true => {
                let mut clients: Vec<Self> = all.map(own).collect();
                for _ in 0..if groups.len() > 1 { 3 } else { 0 } {
                    let mut several = groups.to_vec();
                    random.shuffle(&mut several);
                    several.truncate(random.between(2, 4) as usize);
                    clients.push(Self::of(several.into_iter()));
                }
                clients
            }
        }
    }

    /// Whether it has done enough since the last fault.
    pub fn is_done(&self, promised: &[bool]) -> bool {
        let mut homes = self.homes.iter();
        homes.all(|home| home.afterwards >= AFTERWARDS || !promised[home.group])
    }

    /// Counts from here on, and gives up an operation in a group that promises nothing any more.
    pub fn begin_again(&mut self, promised: &[bool]) {
        for home in &mut self.homes {
            home.afterwards = 0;
        }
        let home = &mut self.homes[self.home];
        if !promised[home.group] && self.number.is_some() {
            self.number = None;
            self.tries += 1;
            home.session.end();
        }
    }

    /// A group was begun again: the operation in progress there, if it has one, is given up.
    pub fn give_up(&mut self, group: usize) -> Option<usize> {
        let homes = self.homes.iter_mut().filter(|home| home.group == group);
        homes.for_each(|home| home.session.end());
        let waits = self.homes[self.home].group == group;
        let number = self.number.take_if(|_| waits)?;
        self.tries += 1;
        Some(number)
    }

    /// How many operations in a group it has not done since.
    pub fn lacks(&self, group: usize) -> u64 {
        let homes = self.homes.iter().filter(|home| home.group == group);
        homes
            .map(|home| AFTERWARDS.saturating_sub(home.afterwards))
            .sum()
    }
}

impl World {
    pub fn ask(&mut self, client: usize) {
        let calm = self.calm;
        let this = &mut self.clients[client];
        if this.number.is_some() || calm && this.is_done(&self.promised) {
            return;
        }
        if this.homes.len() > 1 {
            let promised = &self.promised;
            let open = |home: &usize| {
                let home = &this.homes[*home];
                !calm || home.afterwards < AFTERWARDS && promised[home.group]
            };
            let open: Vec<usize> = (0..this.homes.len()).filter(open).collect();
            this.home = open[self.random.index(open.len())];
        }
        let key = self.random.below(KEYS.into()) as u32;
        let value = self.random.below(1_000);
        let operation = match key % 3 {
            _ if self.random.chance(300) => Operation::Read,
            0 => Operation::Write(value),
            1 => Operation::Append(value),
            _ => Operation::Add(value),
        };
        let level = match operation {
            Operation::Read if self.random.chance(500) => Level::Linearizable,
            _ => Level::Ordered,
        };
        let home = &mut this.homes[this.home];
        home.session.sequence += u64::from(level == Level::Ordered);
        this.level = level;
        let group = &mut self.groups[home.group];
        let number = group.history.invoke(client as u16, key, operation);
        group.invoked.push(self.now);
        this.number = Some(number);
        self.submit(client);
    }

    pub fn retry(&mut self, client: usize, tries: u64) {
        let this = &self.clients[client];
        if this.tries == tries && this.number.is_some() {
            self.submit(client);
        }
    }

    /// Sends the operation of a client to some member, perhaps again.
    fn submit(&mut self, client: usize) {
        let this = &mut self.clients[client];
        this.tries += 1;
        self.queue
            .push(self.now + RETRY, Event::Retry(client, this.tries));
        let Some(number) = this.number else {
            return;
        };
        let home = &mut this.homes[this.home];
        let place = home.group;
        let group = &mut self.groups[place];
        let at = group.members[self.random.index(group.members.len())];
        let owner = 1_000 + client as u64;
        let mut batch = BatchBuilder::of(group.id);
        let recorded = *group.history.get(number);
        let payload = encode_command(number as u64, recorded.key, recorded.operation);
        let id = home.session.id(owner);
        if this.level == Level::Ordered {
            group.history.sent(number, id);
            home.session.put(owner, &mut batch, &payload, self.now);
        } else {
            let sequence = number as u64 + 1;
            let id = CommandId { sequence, ..id };
            batch.push(id, RequestKind::Command, 0, &payload);
        }
        let (level, tries) = (this.level, this.tries);
        self.submit_to(at, place, Who::Client(client), tries, level, batch);
    }

    /// Submits a batch to a process, if it has a node of this group.
    pub fn submit_to(
        &mut self,
        at: usize,
        place: usize,
        who: Who,
        tries: u64,
        level: Level,
        mut batch: BatchBuilder,
    ) {
        let shares = self.groups[place].part != Part::Own;
        let Some(here) = self.processes[at].place(&self.ids, self.ids[place]) else {
            return;
        };
        let boot = self.processes[at].boot;
        let host = &mut self.processes[at].hosts[here];
        if host.node.is_none() {
            return;
        }
        let id = host.batch_next;
        host.batch_next += 1;
        host.batches.insert(id, (who, tries));
        let frontend = frontend(at, if shares { 0 } else { here }, boot);
        let submission = Submission {
            id: BatchId(id),
            level,
            batch: batch.finish(frontend, BatchId(id), level),
            deadline: Time(self.now + RETRY * 3 / 4),
        };
        self.input(at, here, Input::Submit(submission));
    }

    pub fn done(&mut self, at: usize, place: usize, batch: BatchId, outcome: Outcome) {
        let host = &mut self.processes[at].hosts[place];
        let Some((who, tries)) = host.batches.remove(&batch.0) else {
            return;
        };
        let client = match who {
            Who::Client(client) => client,
            Who::Actor(actor) => return self.actor_done(actor, tries, &outcome),
        };
        let this = &mut self.clients[client];
        if this.tries != tries {
            return;
        }
        let Some(number) = this.number else {
            return;
        };
        let Outcome::Results(bytes) = outcome else {
            return;
        };
        let is_command = this.level == Level::Ordered;
        let home = &mut this.homes[this.home];
        let (place, mut answered) = (home.group, false);
        let group = &mut self.groups[place];
        for (status, reply) in Results::new(&bytes) {
            let executed = match is_command {
                true => home.session.on_result(status),
                false => Ok(status == RequestStatus::Done),
            };
            match executed.map(|executed| executed.then(|| decode_reply(reply))) {
                Ok(None) => {}
                Ok(Some(reply)) => {
                    this.number = None;
                    home.afterwards += u64::from(self.calm);
                    group
                        .history
                        .done(number, reply.expect("a reply of the registers"));
                    answered = true;
                }
                Err(()) => {
                    // A session that cannot be used any more.
                    this.number = None;
                    group.history.end(number, Fate::Uncertain);
                    if status != RequestStatus::OpenRefused {
                        let what = format!("operation {number} was answered {status:?}");
                        self.violation
                            .get_or_insert(Violation::new("results", what));
                    }
                }
            }
        }
        if answered {
            let invoked = self.groups[place].invoked[number];
            self.answered(place, invoked, is_command);
        }
        let after = self.now + self.random.between(100_000, 10 * MILLISECOND);
        if self.clients[client].number.is_none() {
            self.queue.push(after, Event::Ask(client));
        }
    }
}

//! How operations end, and what their clients do next.
//!
//! ```text
//!   Done(batch, outcome) ─┬─ Results ──► per request: answered, session lost, out of order
//!                         ├─ NoQuorum, Busy ──► certainly not executed: failed
//!                         └─ Uncertain ──► sent again under the same number, or given up
//!   replica crashes ──► its clients are uncertain of all that was in progress
//! ```

use crate::{
    checkers::Violation,
    clock::MILLISECOND,
    event::Event,
    faults::Kind,
    history::Fate,
    model::{Answer, Call},
    process::Process,
    service::Service,
    workload::{Client, Home, Request, STEADY_THINK, Session, TRIES_MAX},
    world::{Phase, World},
};
use quintet_replica::{
    Durability, Level, Link, Node, Outcome, ReplicaId, RequestKind, RequestStatus, Results,
    SessionId,
};

impl World {
    /// A batch is finished.
    pub fn finish(&mut self, requests: Vec<Request>, outcome: Outcome) {
        match outcome {
            Outcome::Results(bytes) => {
                let mut results = Results::new(&bytes);
                for request in &requests {
                    let Some((status, reply)) = results.next() else {
                        let what =
                            format!("a batch of {} requests got fewer results", requests.len());
                        return self.violate(Violation::new("results", what));
                    };
                    self.on_result(request, status, reply);
                }
                self.crash_answered();
            }
            Outcome::NoQuorum | Outcome::Busy => {
                for request in &requests {
                    self.give_up(request, true);
                }
            }
            Outcome::Uncertain => {
                for request in &requests {
                    self.give_up(request, false);
                }
            }
        }
    }

    fn session_of(&mut self, request: &Request) -> Option<&mut Session> {
        let session = self.clients[usize::from(request.client)].session.as_mut()?;
        (session.id == request.id.session).then_some(session)
    }

    fn on_result(&mut self, request: &Request, status: RequestStatus, reply: &[u8]) {
        let index = usize::from(request.client);
        if self.clients[index].gone {
            return;
        }
        let Some(number) = request.number else {
            if matches!(request.kind, RequestKind::Past | RequestKind::Tick) {
                return self.on_past_result(request, status, reply);
            }
            if request.kind == RequestKind::Renew {
                let renewed = status == RequestStatus::Done;
                let branch = ["client: session outlived", "client: session renewed"];
                *self
                    .branches
                    .entry(branch[usize::from(renewed)])
                    .or_default() += 1;
            }
            if request.kind != RequestKind::Open {
                return;
            }
            if status == RequestStatus::Done {
                if let Some(session) = self.session_of(request) {
                    session.opened = true;
                }
                return;
            }
            *self.branches.entry("session not opened").or_default() += 1;
            if self.session_of(request).is_some() {
                self.clients[index].session = None;
            }
            if let (RequestStatus::OpenRefused, Some(clock)) = (status, reply.first_chunk()) {
                self.renew_owner(index, u64::from_le_bytes(*clock));
            }
            return;
        };
        match status {
            RequestStatus::Done => match self.read_answer(index, number, reply) {
                Some(answer) => self.complete(request, number, answer),
                None => self.violate(Violation::new(
                    "results",
                    format!("operation {number} got {reply:02x?} for a reply"),
                )),
            },
            RequestStatus::OutOfOrder => {
                *self.branches.entry("request out of order").or_default() += 1;
                self.give_up(request, false);
            }
            RequestStatus::SessionUnknown
            | RequestStatus::ReplyLost
            | RequestStatus::NotExecuted
            | RequestStatus::Sealed => {
                *self.branches.entry("session lost").or_default() += 1;
                if self.session_of(request).is_some() {
                    self.clients[index].session = None;
                }
                self.end(request, number, Fate::Uncertain);
            }
            RequestStatus::Malformed
            | RequestStatus::Refused
            | RequestStatus::OpenRefused
            | RequestStatus::NotYet
            | RequestStatus::NotKept => {
                self.violate(Violation::new(
                    "results",
                    format!("operation {number} was answered {status:?}"),
                ));
            }
        }
    }

    /// Decodes a reply; the versions of watched keys are kept.
    fn read_answer(&mut self, index: usize, number: u32, reply: &[u8]) -> Option<Answer> {
        let call = &self.history.get(number as usize).operation;
        let answer = self.mix.service.decode(call, reply)?;
        if call.name() == b"WATCH" {
            let versions = Service::versions(call, reply)?;
            let client = &mut self.clients[index];
            if client.connection == self.manners[number as usize].connection {
                client.watching = versions;
            }
        }
        Some(answer)
    }

    /// An owner that the log's clock has outlived starts over under another id.
    fn renew_owner(&mut self, index: usize, clock: u64) {
        let owner = self.random.draw() | 1;
        match &mut self.clients[index].home {
            Home::Server { node, .. } => {
                let server = &mut self.processes[*node].server;
                (server.owner, server.started, server.sessions) = (owner, clock, 0);
                let node = *node;
                for client in &mut self.clients {
                    if matches!(client.home, Home::Server { node: at, .. } if at == node)
                        && client.open.is_empty()
                    {
                        client.session = None;
                    }
                }
            }
            Home::Remote(remote) => {
                (remote.owner, remote.sessions, remote.started) = (owner, 0, clock);
            }
            Home::Nowhere => {}
        }
    }

    fn complete(&mut self, request: &Request, number: u32, answer: Answer) {
        let answer = self.injected(number, answer);
        if let Some(session) = self.session_of(request) {
            session
                .unanswered
                .retain(|sequence| *sequence != request.id.sequence);
        }
        if !self.history.done(number as usize, answer.clone()) {
            return;
        }
        self.trace.feed(u64::from(number));
        self.trace.say(self.now, || {
            format!("c{} got {number}: {answer}", request.client)
        });
        self.check_held(request, number);
        let call = self.history.get(number as usize).operation.clone();
        let watched = !self.manners[number as usize].watched.is_empty();
        self.note_value(&call, &answer);
        self.mark_answer(&call, &answer, watched);
        self.mark_level(number);
        if self.phase == Phase::Liveness && number >= self.healing.first_operation {
            self.healing.on_done(!call.is_read(), self.now);
        }
        self.ended(request.client.into(), number);
    }

    /// Acknowledged writes must be on enough disks by now.
    fn check_held(&mut self, request: &Request, number: u32) {
        let read = request.id.session == SessionId::default();
        let position = self.once.position(number as usize);
        // A disk that loses what it held is repaired from the others; what was acknowledged before
        // may be acknowledged again meanwhile, with one copy less.
        let loses = |kind: &Kind| {
            matches!(
                kind,
                Kind::Wipe
                    | Kind::RotJournal
                    | Kind::RotSnapshot
                    | Kind::LostWrite
                    | Kind::MisdirectedWrite
            )
        };
        let memory = self.was_in_memory || self.setup.durability == Durability::Memory;
        let Some(position) = position.filter(|_| !read && !memory) else {
            return;
        };
        if self.plan.kinds.iter().any(loses) {
            return;
        }
        let newest = |process: &Process| process.disk.snapshot_newest();
        let snapshots: Vec<u64> = (self.processes.iter())
            .map(|process| newest(process).map_or(0, |snapshot| snapshot.id.position.0))
            .collect();
        let viable = |without: &[usize]| self.continue_without(position, without);
        let checked = self
            .held
            .acknowledged(request.id, position, &snapshots, viable);
        if let Err(violation) = checked {
            self.violate(violation);
        }
    }

    fn mark_level(&mut self, number: u32) {
        let manner = &self.manners[number as usize];
        let read = self.history.get(number as usize).operation.is_read();
        let leads = |node: usize| {
            let status = self.processes[node]
                .node
                .as_ref()
                .map(Node::protocol_status);
            status.is_some_and(|status| status.leader == Some(ReplicaId(node as u16)))
        };
        let branch = match (read, manner.level, manner.server) {
            (false, ..) => return,
            (_, Level::Stale, _) => "client: stale read",
            (_, Level::Ordered, _) => "client: ordered read",
            (_, Level::Linearizable, Some((node, _))) if leads(node) => {
                "client: read at the leader"
            }
            (_, Level::Linearizable, Some(_)) => "client: read at a follower",
            (_, Level::Linearizable, None) => "client: read by a remote frontend",
        };
        *self.branches.entry(branch).or_default() += 1;
    }

    /// Remembers a register's value, for comparisons that have a chance.
    fn note_value(&mut self, call: &Call, answer: &Answer) {
        let [command] = call.commands() else { return };
        let number = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<u64>().ok();
        let key = command
            .get(1)
            .and_then(|key| number(key.strip_prefix(b"k")?));
        let value = match (call.name(), answer) {
            (b"SET", _) => command.get(2).and_then(|value| number(value)),
            (b"CAS", Answer::Number(1)) => command.get(3).and_then(|value| number(value)),
            (b"GET", Answer::Text(value)) => number(value),
            _ => None,
        };
        if let (Some(key), Some(value)) = (key, value)
            && let Some(hint) = self.hints.get_mut(key as usize)
        {
            *hint = value;
        }
    }

    fn injected(&self, _number: u32, answer: Answer) -> Answer {
        #[cfg(any(test, feature = "bugs"))]
        if self.setup.bug.as_deref() == Some("canary") && self.history.acknowledged == 50 {
            return Answer::text("canary");
        }
        answer
    }

    fn end(&mut self, request: &Request, number: u32, fate: Fate<Answer>) {
        if self.history.end(number as usize, fate.clone()) {
            self.trace.say(self.now, || {
                format!("c{} gives {number} up: {fate:?}", request.client)
            });
            self.clients[usize::from(request.client)].unwatch();
            self.ended(request.client.into(), number);
        }
    }

    fn ended(&mut self, index: usize, number: u32) {
        let client = &mut self.clients[index];
        client.open.retain(|open| *open != number);
        if client.open.is_empty() {
            // A phase that lasts longer than it was meant to needs no more operations.
            let enough = self.history.operations().len() as u64 > 2 * self.setup.operations;
            let think = match self.phase {
                Phase::Safety if enough => 4 * self.shape.think,
                Phase::Liveness if self.shape.steady => STEADY_THINK,
                _ => self.shape.think,
            };
            let at = self.now + self.random.below(think + 1) + 1000;
            self.turn_at(index, at);
        }
    }

    /// The frontend gave up on a request; `certain` when it says that it was not executed.
    fn give_up(&mut self, request: &Request, certain: bool) {
        let index = usize::from(request.client);
        if self.clients[index].gone {
            return;
        }
        let Some(number) = request.number else { return };
        let tries = self.tries[number as usize];
        if certain && tries == 1 {
            if self.session_of(request).is_some() {
                self.clients[index].session = None;
            }
            *self.branches.entry("told not executed").or_default() += 1;
            return self.end(request, number, Fate::Failed);
        }
        let client = &self.clients[index];
        let same = client
            .session
            .as_ref()
            .is_some_and(|s| s.id == request.id.session);
        if same && client.retries && tries < TRIES_MAX && self.healing.wants_retries() {
            let client = &mut self.clients[index];
            client.again.push(number);
            if !client.again_queued {
                client.again_queued = true;
                let at = self.now + self.random.between(1, 100) * MILLISECOND;
                self.queue.push(
                    at,
                    Event::Resubmit {
                        client: index as u16,
                    },
                );
            }
            return;
        }
        if same {
            self.clients[index].session = None;
        }
        *self.branches.entry("left uncertain").or_default() += 1;
        self.end(request, number, Fate::Uncertain);
    }

    /// The client sends what it is uncertain of again, under the same sequence numbers.
    pub fn resubmit(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.again_queued = false;
        if client.gone {
            return;
        }
        if client.away_until > self.now {
            client.again_queued = true;
            let at = client.away_until;
            return self.queue.push(
                at,
                Event::Resubmit {
                    client: index as u16,
                },
            );
        }
        let mut again = std::mem::take(&mut client.again);
        again.retain(|number| self.history.get(*number as usize).fate == Fate::Open);
        again.sort_by_key(|number| self.history.get(*number as usize).id.map(|id| id.sequence));
        again.dedup();
        // The session may have been lost, or replaced, since.
        let session = client.session.as_ref().map(|session| session.id);
        let injected = self.bug_is("retry_under_new_session");
        for number in &again {
            let id = self.history.get(*number as usize).id;
            if id.map(|id| id.session) != session {
                let request = Request {
                    client: index as u16,
                    number: Some(*number),
                    id: id.unwrap_or_default(),
                    open: 0,
                    started: 0,
                    kind: RequestKind::Command,
                };
                self.end(&request, *number, Fate::Uncertain);
            }
        }
        again.retain(|number| self.history.get(*number as usize).fate == Fate::Open);
        if again.is_empty() {
            return;
        }
        if injected {
            self.clients[index].session = None;
        }
        *self.branches.entry("client retry").or_default() += 1;
        self.send(index, Level::Ordered, &again);
    }

    /// Whether a bug of the rig's own is switched on.
    pub fn bug_is(&self, name: &str) -> bool {
        self.setup.bug_is(name)
    }

    /// Breaks the links of a replica to the others of the first few places.
    pub fn break_links(&mut self, index: usize, places: usize) {
        for other in 0..places {
            if other != index {
                self.break_link(index, other, Link::Reset);
            }
        }
    }

    /// The server of a replica is gone, and with it the sessions of its clients.
    pub fn disconnect_clients(&mut self, node: usize) {
        for index in 0..self.clients.len() {
            if !matches!(self.clients[index].home, Home::Server { node: at, .. } if at == node) {
                continue;
            }
            let client = &mut self.clients[index];
            client.home = Home::Nowhere;
            client.session = None;
            client.unwatch();
            client.again.clear();
            for number in std::mem::take(&mut client.open) {
                self.history.end(number as usize, Fate::Uncertain);
            }
            let at = self.now + self.random.between(1, 100) * MILLISECOND;
            self.turn_at(index, at);
        }
    }

    /// A client goes away permanently.
    pub fn abandon(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.gone = true;
        client.open.clear();
    }

    /// A remote client goes away until `until`.
    pub fn send_away(&mut self, index: usize, until: u64) {
        self.clients[index].away_until = until;
        if let Some(place) = self.clients[index].place() {
            for node in 0..self.replicas_max() {
                self.break_link(node, place, Link::Down);
            }
        }
    }

    /// It comes back.
    pub fn come_back(&mut self, index: usize) {
        if self.clients[index].away_until == 0 {
            return;
        }
        self.clients[index].away_until = 0;
        if let Some(place) = self.clients[index].place() {
            for node in 0..self.replicas_max() {
                let at = self.now + self.random.between(1, 20) * MILLISECOND;
                self.network.connect_at(node, place, at, &mut self.queue);
            }
        }
        let at = self.now + MILLISECOND;
        self.turn_at(index, at);
    }

    /// A client for the last reads, at the server of `node`.
    pub fn client_at(&mut self, node: usize) -> usize {
        let boot = self.processes[node].boot;
        self.clients.push(Client {
            home: Home::Server { node, boot },
            session: None,
            open: Vec::new(),
            pipeline_max: 1,
            retries: true,
            gone: false,
            away_until: 0,
            turn_queued: true,
            again: Vec::new(),
            again_queued: false,
            watching: Vec::new(),
            sends_watched: false,
            connection: 0,
        });
        self.clients.len() - 1
    }

    /// Whether a client that is still here waits for an answer.
    pub fn clients_wait(&self) -> bool {
        self.clients
            .iter()
            .any(|client| !client.gone && !client.open.is_empty())
    }
}

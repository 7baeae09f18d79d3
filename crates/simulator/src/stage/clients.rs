//! The clients of a stage: each with a session of its own, at a replica or away from all.
//!
//! ```text
//!   invoke ──► batch ──► embedded frontend of a replica ──┐
//!                   └──► a frontend of its own, remote ───┴──► answers ──► history
//!                              ▲ no answer, or an uncertain one: the same numbers again,
//!                              └ at a replica that is up
//! ```
//!
//! A client keeps its session wherever it goes, as a library does. It gives up only when told to.

use super::{EPOCH, Stage, wires::REMOTE};
use crate::clock::MILLISECOND;
use crate::{
    history::Fate,
    machine::{Operation, Reply, decode_reply, encode_command},
};
use quintet_replica::{
    BatchBuilder, BatchId, Bytes, ClientNode, ClockReading, CommandId, Deadline, Effect, Executed,
    FrontendId, FrontendSetup, Level, Link, Outcome, Recipients, ReplicaId, RequestKind,
    RequestStatus, Results, SessionId, SnapshotInfo, Submission, Time, TimerKey, World as Outside,
};
use std::{collections::BTreeMap, time::Duration};

/// Where a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the server of this replica.
    At(usize),
    /// On its own, with the protocol's frontend inside.
    Remote,
}

/// One request on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    client: usize,
    /// `None` for the opening of a session.
    number: Option<usize>,
    id: CommandId,
    open: u16,
}

struct Remote {
    place: usize,
    driver: ClientNode,
    batches: u64,
    open: BTreeMap<u64, Vec<Request>>,
    timers: BTreeMap<TimerKey, u64>,
}

/// See the module.
pub(crate) struct Client {
    home: Place,
    remote: Option<Remote>,
    session: SessionId,
    opened: bool,
    started: u64,
    next: u64,
    /// Operations without an answer, in session order, with their levels.
    open: Vec<(usize, Level)>,
    resend_queued: bool,
    /// It sends again by itself.
    pub patient: bool,
}

impl Client {
    pub const fn is_remote(&self) -> bool {
        self.remote.is_some()
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.remote.as_ref()?.timers.values().copied().min()
    }
}

/// The same frame with the first request of its batch made one that ends the epoch, as no frontend
/// would send it.
fn forged(frame: &Bytes, frontend: FrontendId) -> Bytes {
    let mut seal = BatchBuilder::new();
    let of_one = |builder: &mut BatchBuilder, kind| {
        builder.push(CommandId::default(), kind, 0, &[]);
        builder.finish(frontend, BatchId(0), Level::Ordered)
    };
    let (plain, seal) = (
        of_one(&mut seal, RequestKind::Open),
        of_one(&mut BatchBuilder::new(), RequestKind::Seal),
    );
    let mut bytes = frame.to_vec();
    let name = frontend.0.to_le_bytes();
    let starts = (8..bytes.len()).filter(|at| bytes[*at..].starts_with(&name));
    // The name stands eight bytes into the batch, and first in some messages, too.
    let batch = starts
        .map(|at| at - 8)
        .filter(|at| bytes[*at..].starts_with(&plain[..4]));
    let batches: Vec<usize> = batch.collect();
    for start in batches {
        for at in (0..plain.len()).filter(|at| plain[*at] != seal[*at]) {
            if let Some(byte) = bytes.get_mut(start + at) {
                *byte = seal[at];
            }
        }
    }
    bytes.into()
}

/// How long a batch may take before its frontend gives up.
const TIMEOUT: Duration = Duration::from_secs(4);

struct View<'a> {
    stage: &'a Stage,
    place: usize,
}

impl Outside for View<'_> {
    fn now(&self) -> Time {
        Time(self.stage.now)
    }
    fn clock(&self) -> ClockReading {
        let now = EPOCH + self.stage.now;
        ClockReading {
            earliest: now,
            now,
            latest: now,
            deviation: 1_000_000,
        }
    }
    fn room(&self, peer: ReplicaId) -> usize {
        self.stage.wires.room(self.place, peer.index())
    }
    fn snapshot_newest(&self) -> Option<SnapshotInfo> {
        None
    }
    fn snapshot_read(&self, _: Executed, _: u64, _: usize) -> Option<Bytes> {
        None
    }
}

impl Stage {
    /// A new client.
    pub fn client(&mut self, home: Place) -> usize {
        let index = self.clients.len();
        let remote = match home {
            Place::At(_) => None,
            Place::Remote => self.remote(),
        };
        let place = remote.as_ref().map(|remote| remote.place);
        self.clients.push(Client {
            home,
            remote,
            session: SessionId {
                owner: 1000 + index as u64,
                number: 1,
            },
            opened: false,
            started: EPOCH + self.now,
            next: 0,
            open: Vec::new(),
            resend_queued: false,
            patient: true,
        });
        if let Some(place) = place {
            for host in self.up() {
                self.connect(host, place);
            }
        }
        index
    }

    fn remote(&mut self) -> Option<Remote> {
        let place = self.places();
        let setup = FrontendSetup {
            id: FrontendId(REMOTE + place as u64),
            embedded: None,
            epoch: self.first_epoch(),
            durability: self.setting.durability,
            options: (),
        };
        let seed = self.random.draw();
        let found = |name: &str| quintet_protocols::find(name).ok();
        match ClientNode::new(setup, &self.setting.entry, found, seed) {
            Ok(driver) => Some(Remote {
                place,
                driver: match self.setting.neighbour {
                    Some(_) => driver.as_guest(self.group_of(0), self.voters()),
                    None => driver,
                },
                batches: 0,
                open: BTreeMap::new(),
                timers: BTreeMap::new(),
            }),
            Err(error) => {
                self.violate("options", error.to_string());
                None
            }
        }
    }

    /// A client invokes operations, in one batch; gives their numbers.
    pub fn invoke(
        &mut self,
        client: usize,
        level: Level,
        operations: &[(u32, Operation)],
    ) -> Vec<usize> {
        let mut numbers = Vec::new();
        for (key, operation) in operations {
            let number = self.history.invoke(client as u16, *key, *operation);
            if level == Level::Ordered {
                let home = &mut self.clients[client];
                home.next += 1;
                let id = CommandId {
                    session: home.session,
                    sequence: home.next,
                };
                self.history.sent(number, id);
            }
            if level == Level::Stale {
                self.stale.push(number);
            }
            self.clients[client].open.push((number, level));
            numbers.push(number);
        }
        self.send(client, level, &numbers);
        numbers
    }

    /// A client writes or reads one key.
    pub fn ask(&mut self, client: usize, level: Level, key: u32, operation: Operation) -> usize {
        self.invoke(client, level, &[(key, operation)])[0]
    }

    /// The answer to an operation, once it is there.
    pub fn reply(&self, number: usize) -> Option<Reply> {
        match self.history.get(number).fate {
            Fate::Done(_, reply) => Some(reply),
            _ => None,
        }
    }

    /// Whether all of these operations have been answered.
    pub fn answered(&self, numbers: &[usize]) -> bool {
        numbers.iter().all(|number| self.reply(*number).is_some())
    }

    /// Whether no client waits.
    pub fn quiet(&self) -> bool {
        self.clients.iter().all(|client| client.open.is_empty())
    }

    /// The client goes to another replica's server, with its session.
    pub fn move_client(&mut self, client: usize, host: usize) {
        if self.clients[client].remote.is_none() {
            self.clients[client].home = Place::At(host);
        }
    }

    /// The client sends all that is unanswered once more, and whatever of `also` was answered
    /// already: as a library does whose answer was lost.
    pub fn repeat(&mut self, client: usize, also: &[usize]) {
        let mut ordered: Vec<usize> = also.to_vec();
        let open = &self.clients[client].open;
        ordered.extend(
            open.iter()
                .filter(|(_, level)| *level == Level::Ordered)
                .map(|(n, _)| *n),
        );
        ordered.sort_unstable();
        ordered.dedup();
        self.send(client, Level::Ordered, &ordered);
    }

    /// A client whose answer was lost by hand asks again.
    pub fn remind(&mut self) {
        for client in 0..self.clients.len() {
            self.resend_later(client);
        }
    }

    pub(super) fn resend(&mut self, client: usize) {
        self.clients[client].resend_queued = false;
        if let Place::At(host) = self.clients[client].home
            && self.hosts[host].node.is_none()
        {
            let up = self.up();
            if up.is_empty() {
                return self.resend_later(client);
            }
            self.clients[client].home = Place::At(up[self.random.index(up.len())]);
        }
        for level in [Level::Ordered, Level::Linearizable, Level::Stale] {
            let open = self.clients[client].open.iter();
            let numbers: Vec<usize> = open
                .filter(|(_, of)| *of == level)
                .map(|(number, _)| *number)
                .collect();
            self.send(client, level, &numbers);
        }
    }

    fn resend_later(&mut self, client: usize) {
        let waits = self.clients[client].resend_queued || !self.clients[client].patient;
        if !waits && !self.setting.by_hand {
            self.clients[client].resend_queued = true;
            self.at(self.now + 20 * MILLISECOND, super::Event::Resend { client });
        }
    }

    fn send(&mut self, client: usize, level: Level, numbers: &[usize]) {
        if numbers.is_empty() {
            return;
        }
        let home = &self.clients[client];
        let mut requests = Vec::new();
        if level == Level::Ordered && !home.opened {
            let id = CommandId {
                session: home.session,
                sequence: 0,
            };
            requests.push(Request {
                client,
                number: None,
                id,
                open: 0,
            });
        }
        let first = home
            .open
            .iter()
            .find_map(|(number, _)| self.history.get(*number).id);
        for number in numbers {
            let id = self.history.get(*number).id.unwrap_or_default();
            let first = first.map_or(id.sequence, |first| first.sequence.min(id.sequence));
            let open = (id.sequence - first) as u16;
            requests.push(Request {
                client,
                number: Some(*number),
                id,
                open,
            });
        }
        match (home.home, &home.remote) {
            (Place::At(host), None) if self.hosts[host].node.is_some() => {
                self.submit_at(host, level, requests);
            }
            (_, Some(_)) => self.submit_remote(client, level, requests),
            _ => self.resend_later(client),
        }
    }

    fn encode(&self, requests: &[Request], from: FrontendId, id: BatchId, level: Level) -> Bytes {
        let mut batch = BatchBuilder::of(self.group_of(0));
        for request in requests {
            match request.number {
                None => {
                    let started = self.clients[request.client].started.to_le_bytes();
                    batch.push(request.id, RequestKind::Open, 0, &started);
                }
                Some(number) => {
                    let recorded = self.history.get(number);
                    let mut payload =
                        encode_command(number as u64, recorded.key, recorded.operation).to_vec();
                    payload.resize(payload.len() + self.payload_extra, 0);
                    batch.push(request.id, RequestKind::Command, request.open, &payload);
                }
            }
        }
        batch.finish(from, id, level)
    }

    fn submit_at(&mut self, host: usize, level: Level, requests: Vec<Request>) {
        let Some(node) = &self.hosts[host].node else {
            return;
        };
        let frontend = node.frontend();
        let home = &mut self.hosts[host];
        home.batches += 1;
        let id = BatchId(home.batches);
        let deadline = home.local(self.now) + TIMEOUT;
        let batch = self.encode(&requests, frontend, id, level);
        self.hosts[host].open.insert(id.0, requests);
        self.submit(
            host,
            Submission {
                id,
                level,
                batch,
                deadline,
            },
        );
        self.want_of_neighbour(host);
    }

    fn submit_remote(&mut self, client: usize, level: Level, requests: Vec<Request>) {
        let Some(remote) = &mut self.clients[client].remote else {
            return;
        };
        remote.batches += 1;
        let id = BatchId(remote.batches);
        let frontend = FrontendId(REMOTE + remote.place as u64);
        let batch = self.encode(&requests, frontend, id, level);
        if let Some(remote) = &mut self.clients[client].remote {
            remote.open.insert(id.0, requests);
        }
        let deadline = Time(self.now) + TIMEOUT;
        let submission = Submission {
            id,
            level,
            batch,
            deadline,
        };
        self.drive(client, |driver, view, effects| {
            driver.submit(submission, view, effects)
        });
    }

    fn drive(
        &mut self,
        client: usize,
        call: impl FnOnce(&mut ClientNode, &dyn Outside, &mut Vec<Effect>),
    ) {
        let Some(mut remote) = self.clients[client].remote.take() else {
            return;
        };
        let place = remote.place;
        let mut effects = Vec::new();
        call(
            &mut remote.driver,
            &View { stage: self, place },
            &mut effects,
        );
        self.clients[client].remote = Some(remote);
        for effect in effects {
            self.carry_out_remote(client, place, effect);
        }
    }

    fn carry_out_remote(&mut self, client: usize, place: usize, effect: Effect) {
        match effect {
            Effect::Send {
                to: Recipients::Replicas(to),
                lane,
                frame,
            } => {
                let mut frame = frame.into_bytes();
                if self.forge_seals {
                    frame = forged(&frame, FrontendId(REMOTE + place as u64));
                }
                for to in to.iter() {
                    self.transmit(place, to.index(), lane, frame.clone());
                }
            }
            Effect::SetTimer { key, at } => {
                let due = match at {
                    Deadline::At(at) => at.0,
                    Deadline::Clock(at) => at.saturating_sub(EPOCH),
                };
                if let Some(remote) = &mut self.clients[client].remote {
                    remote.timers.insert(key, due.max(self.now));
                }
            }
            Effect::CancelTimer { key } => {
                if let Some(remote) = &mut self.clients[client].remote {
                    remote.timers.remove(&key);
                }
            }
            Effect::Done { batch, outcome } => {
                let remote = self.clients[client].remote.as_mut();
                match remote.and_then(|remote| remote.open.remove(&batch.0)) {
                    Some(requests) => self.finish(&requests, outcome),
                    None => self.violate("frontend", format!("{batch} ended twice")),
                }
            }
            Effect::Mark(branch) => self.mark(branch),
            other => self.violate("frontend", format!("a frontend cannot ask for {other:?}")),
        }
    }

    fn remote_at(&self, place: usize) -> Option<usize> {
        let at = |client: &Client| client.remote.as_ref().is_some_and(|it| it.place == place);
        self.clients.iter().position(at)
    }

    pub(super) fn client_frame(&mut self, place: usize, from: usize, frame: Bytes) {
        let Some(client) = self.remote_at(place) else {
            return;
        };
        let from = ReplicaId(from as u16);
        let mut refused = None;
        self.drive(client, |driver, view, effects| {
            refused = driver.on_frame(from, frame, view, effects).err();
        });
        if let Some(error) = refused {
            self.violate("codec", format!("client {client} refused a frame: {error}"));
        }
    }

    pub(super) fn client_link(&mut self, place: usize, peer: usize, link: Link) {
        if let Some(client) = self.remote_at(place) {
            let peer = ReplicaId(peer as u16);
            self.drive(client, |driver, view, effects| {
                driver.on_link(peer, link, view, effects)
            });
        }
    }

    pub(super) fn fire_client(&mut self, client: usize) {
        let now = self.now;
        let Some(remote) = &mut self.clients[client].remote else {
            return;
        };
        let due = remote
            .timers
            .iter()
            .find(|(_, at)| **at <= now)
            .map(|(key, _)| *key);
        if let Some(key) = due {
            remote.timers.remove(&key);
            self.drive(client, |driver, view, effects| {
                driver.on_timer(key, view, effects)
            });
        }
    }

    // --- how operations end ----------------------------------------------------------------

    pub(super) fn finish(&mut self, requests: &[Request], outcome: Outcome) {
        match outcome {
            Outcome::Results(bytes) => {
                let mut results = Results::new(&bytes);
                for request in requests {
                    match results.next() {
                        Some((status, reply)) => self.on_result(request, status, reply),
                        None => self.violate("results", "fewer results than requests"),
                    }
                }
            }
            // A request that is sent again under its own number cannot be executed twice.
            Outcome::NoQuorum | Outcome::Busy | Outcome::Uncertain => {
                self.say(|| format!("a client is told {outcome:?}"));
                self.left_uncertain(requests);
            }
        }
    }

    pub(super) fn left_uncertain(&mut self, requests: &[Request]) {
        for request in requests {
            self.resend_later(request.client);
        }
    }

    fn on_result(&mut self, request: &Request, status: RequestStatus, bytes: &[u8]) {
        let client = request.client;
        let Some(number) = request.number else {
            match status {
                RequestStatus::Done => self.clients[client].opened = true,
                _ => self.violate("results", format!("a session was answered {status:?}")),
            }
            return;
        };
        match (status, decode_reply(bytes)) {
            (RequestStatus::Done, Some(reply)) => self.complete(client, number, reply),
            (RequestStatus::OutOfOrder, _) => self.resend_later(client),
            // An answer that its owner has acknowledged is not kept.
            (RequestStatus::ReplyLost, _) if self.reply(number).is_some() => {
                self.mark("answered again: reply lost");
            }
            _ => self.violate(
                "results",
                format!("operation {number} was answered {status:?} {bytes:?}"),
            ),
        }
    }

    fn complete(&mut self, client: usize, number: usize, reply: Reply) {
        let recorded = *self.history.get(number);
        if let Fate::Done(_, before) = recorded.fate {
            self.mark("answered again");
            if recorded.id.is_some() && before != reply {
                let what = format!("operation {number} got {before:?}, and then {reply:?}");
                self.violate("exactly_once", what);
            }
            return;
        }
        self.history.done(number, reply);
        self.clients[client]
            .open
            .retain(|(open, _)| *open != number);
        self.say(|| format!("client {client}: {number} is answered {reply:?}"));
    }
}

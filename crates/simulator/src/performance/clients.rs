//! The load generator in the performance model.
//!
//! ```text
//!   closed: replies ──► generator's turn: reads all, then writes one request after the other
//!   open:   Due (Poisson) ──► generator's turn ──► a client that has room, or the backlog
//! ```

use super::{
    Placement, Setup,
    cores::Task,
    replica::{Item, Request},
    world::{Event, World, mixed},
};
use quintet_replica::{Layout, ReplicaId, links::exponential};
use std::collections::VecDeque;

#[derive(Clone, Debug, Default)]
struct Client {
    replica: usize,
    /// The group there, by its place among the replica's parts.
    part: usize,
    /// The request in progress and when it was due.
    in_progress: Option<(u64, u64)>,
    number: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Clients {
    all: Vec<Client>,
    /// Clients that may ask, in an open loop.
    free: VecDeque<usize>,
    /// When requests were due that found no client, in an open loop.
    backlog: VecDeque<u64>,
    /// The work of the generator's next turn: a client, and when its next request was due.
    inbox: Vec<(usize, u64)>,
    busy: bool,
}

/// When the first client begins, and how far the others are apart.
const START: u64 = 5_000_000;
const APART: u64 = 7_000;
/// Requests that are due but find no client; beyond it they are given up.
const BACKLOG_MAX: usize = 1 << 20;

impl Clients {
    /// Clients take turns at the replicas of the load, or at each shard's members among those.
    pub fn new(setup: &Setup, layout: &Layout) -> Self {
        let at = &setup.load.at;
        let shards = layout.shards().iter().zip(1..);
        let in_shards = shards.flat_map(|(shard, part)| {
            let here = |id: &&u16| shard.nodes.contains(ReplicaId(**id));
            at.iter().filter(here).map(move |id| (*id, part))
        });
        let homes: Vec<(u16, usize)> = match layout.is_empty() {
            true => at.iter().map(|id| (*id, 0)).collect(),
            false => in_shards.collect(),
        };
        let client = |index: usize| {
            let home = homes.get(index % homes.len().max(1));
            let (replica, part) = home.copied().unwrap_or_default();
            Client {
                replica: replica.into(),
                part,
                ..Client::default()
            }
        };
        Self {
            all: (0..setup.load.clients).map(client).collect(),
            free: VecDeque::new(),
            backlog: VecDeque::new(),
            inbox: Vec::new(),
            busy: false,
        }
    }

    /// Requests without an answer, those in the backlog included.
    pub fn in_progress(&self) -> u64 {
        let open = self
            .all
            .iter()
            .filter(|client| client.in_progress.is_some());
        (open.count() + self.backlog.len()) as u64
    }

    /// The replica died: its clients, whose requests are lost.
    pub fn lost(&mut self, replica: usize) -> Vec<usize> {
        let mut lost = Vec::new();
        for (index, client) in self.all.iter_mut().enumerate() {
            if client.replica == replica {
                client.in_progress = None;
                lost.push(index);
            }
        }
        lost
    }
}

impl World {
    pub fn start_clients(&mut self) {
        if self.setup.load.rate.is_some() {
            self.clients.free = (0..self.clients.all.len()).collect();
            self.queue.push(START, Event::Due);
            return;
        }
        for client in 0..self.clients.all.len() {
            let at = START + APART * client as u64;
            self.queue.push(at, Event::Retry { client });
        }
    }

    /// The generator has something to do for a client.
    fn for_client(&mut self, client: usize, due: u64) {
        self.clients.inbox.push((client, due));
        self.want_generator();
    }

    fn want_generator(&mut self) {
        if std::mem::replace(&mut self.clients.busy, true) {
            return;
        }
        if self.is_crowded(Task::Generator) {
            self.ask(Task::Generator);
        } else {
            // It sleeps as soon as there is nothing to do.
            let at = self.now + self.setup.profile.wake;
            self.queue.push(at, Event::Enqueue(Task::Generator));
        }
    }

    /// A turn of the generator; gives what it cost.
    pub fn generate(&mut self) -> u64 {
        let mut requests = std::mem::take(&mut self.clients.inbox);
        let (turn, each) = match self.setup.profile.placement {
            Placement::Shared => {
                let costs = &self.setup.profile.costs;
                (costs.generator_turn, costs.generator)
            }
            // As many machines as it takes.
            Placement::Own => (0, 0),
        };
        // It reads all replies before it writes the first request; one is as dear as the other.
        let read = self.now + turn + each * requests.len() as u64 / 2;
        let mut leaves = read;
        for (index, due) in requests.drain(..) {
            leaves += each / 2;
            // A client of a closed loop sends its next request now; the others were due when they
            // were due.
            let open = self.setup.load.rate.is_some();
            let since = if open { due } else { read };
            if read >= self.ends() && !open {
                continue;
            }
            let client = &mut self.clients.all[index];
            client.number += 1;
            client.in_progress = Some((client.number, since));
            let request = Event::Request {
                client: index,
                number: client.number,
            };
            let replica = client.replica;
            let at = self.reaches_client(leaves, replica, self.setup.load.value_size);
            self.queue.push(at, request);
        }
        self.clients.inbox = requests;
        leaves - self.now
    }

    pub fn generated(&mut self) {
        self.clients.busy = false;
        if !self.clients.inbox.is_empty() {
            // It has just worked: no need to wake it.
            self.clients.busy = true;
            self.ask(Task::Generator);
        }
    }

    pub fn on_request(&mut self, client: usize, number: u64) {
        let read = self.draw() % 1_000 < self.setup.load.reads;
        let Client { replica, part, .. } = self.clients.all[client];
        let request = Request {
            part,
            client,
            number,
            read,
            key: self.key(client, number),
        };
        if self.clients.all[client].in_progress.map(|one| one.0) == Some(number) {
            self.give(replica, Item::Request(request));
        }
    }

    pub fn on_reply(&mut self, index: usize, number: u64, good: bool) {
        let client = &mut self.clients.all[index];
        let Some((_, since)) = client.in_progress.take_if(|one| one.0 == number) else {
            return;
        };
        let replica = client.replica;
        let (begins, ends) = (self.begins(), self.ends());
        let open = self.setup.load.rate.is_some();
        // Throughput is what was answered in the measured time. The latency of an open loop is that
        // of what was due in it: a late answer must not slip out.
        let when = if open { since } else { self.now };
        if !good {
            self.found.failed += 1;
        } else {
            if (begins..ends).contains(&self.now) {
                self.found.answered.push(self.now - begins);
                self.found.answered_at.push(replica as u16);
                self.found.took.push(self.now - since);
            }
            if (begins..ends).contains(&when) {
                self.found.latencies.push(self.now - since);
            }
        }
        if !open {
            self.for_client(index, self.now);
        } else if let Some(due) = self.clients.backlog.pop_front() {
            self.for_client(index, due);
        } else {
            self.clients.free.push_back(index);
        }
    }

    /// The key that a request touches; 0 when there are none.
    fn key(&self, client: usize, number: u64) -> u64 {
        let (keys, skew) = (self.setup.load.keys, self.setup.load.skew);
        if keys == 0 {
            return 0;
        }
        let own = mixed(self.setup.seed ^ (client as u64) << 40 ^ number);
        let times = |part: u64| ((u128::from(part) * u128::from(own)) >> 64) as u64;
        let part = (1..skew.max(1)).fold(own, |part, _| times(part));
        1 + ((u128::from(part) * u128::from(keys)) >> 64) as u64
    }

    /// A request of an open loop is due.
    pub fn on_due(&mut self) {
        let Some(rate) = self.setup.load.rate.filter(|_| self.now < self.ends()) else {
            return;
        };
        match self.clients.free.pop_front() {
            Some(client) => self.for_client(client, self.now),
            None if self.clients.backlog.len() < BACKLOG_MAX => {
                self.clients.backlog.push_back(self.now);
            }
            None => self.found.failed += 1,
        }
        let draw = self.draw();
        let next = exponential(1_000_000_000 / rate.max(1), draw);
        self.queue.push(self.now + next.max(1), Event::Due);
    }

    /// A client begins, or goes to the next replica after its own has died.
    pub fn on_retry(&mut self, index: usize) {
        let replicas = self.setup.replicas;
        let here = self.clients.all[index].replica;
        if here < replicas {
            let part = self.clients.all[index].part;
            let alive = |offset: &usize| {
                let id = (here + offset) % replicas;
                let serves = &self.replicas[id].parts[part].nodes;
                self.replicas[id].is_up() && serves.contains(ReplicaId(id as u16))
            };
            let Some(offset) = (0..replicas).find(alive) else {
                return;
            };
            self.clients.all[index].replica = (here + offset) % replicas;
        }
        if self.setup.load.rate.is_none() {
            self.for_client(index, self.now);
        } else if let Some(due) = self.clients.backlog.pop_front() {
            self.for_client(index, due);
        } else if !self.clients.free.contains(&index) {
            self.clients.free.push_back(index);
        }
    }
}

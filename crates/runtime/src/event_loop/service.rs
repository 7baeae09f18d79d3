//! The clients, on the protocol's thread or on one of their own.
//!
//! ```text
//!              protocol's thread   │          clients' thread
//!   Node ◄──── batches ◄─── ring ──┼─◄ Gateway ◄── commands ◄── sockets
//!   Node ── outcomes ──► ring ─────┼─► Gateway ──► replies  ──► one write per client and turn
//!              figures, idle ◄─────┼── shared, read at any time
//! ```
//!
//! The clients' thread takes outcomes whatever else is full, so the protocol's thread may wait for
//! it. When the protocol's thread takes no batches, no more are made, and the gateway's own bounds
//! hold the clients back.

use super::{
    clients::Clients,
    stage::{ITEM_BYTES, Orders, Rest, Setting, WAKEUP, taken},
};
use crate::{
    rings::{Receiver, Sender},
    server::{ChangeReport, Counters, NodeView},
};
use mio::event::Event;
use quintet_replica::{BatchId, Outcome, Submission, Time};
use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

/// Stands for "something is in progress" where a number of orders means that nothing is.
const BUSY: u64 = u64::MAX;

/// The state of the clients, for users.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServiceFigures {
    pub gateway: Counters,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub accepted: u64,
    pub refused: u64,
    pub open: u64,
}

fn figures(clients: &Clients) -> ServiceFigures {
    ServiceFigures {
        gateway: clients.gateway.counters(),
        bytes_in: clients.bytes_in,
        bytes_out: clients.bytes_out,
        accepted: clients.accepted,
        refused: clients.refused,
        open: clients.open,
    }
}

enum Order {
    Done(BatchId, Outcome),
    Changed(u64, Box<Result<ChangeReport, String>>),
    View(Box<NodeView>),
    Shutdown,
}

#[derive(Debug)]
struct Shared {
    figures: Mutex<ServiceFigures>,
    changed: AtomicBool,
    /// By how much the synchronised clock is ahead of the monotonic one, in nanoseconds.
    clock_ahead: AtomicU64,
    /// After this many orders nothing was in progress.
    idle_at: AtomicU64,
}

impl Shared {
    fn figures(&self) -> MutexGuard<'_, ServiceFigures> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(super) enum Service {
    /// No server runs.
    None,
    Here(Box<Clients>),
    Apart(Apart),
}

/// The protocol's end of the clients' thread.
pub(super) struct Apart {
    /// First, so that the thread has ended when the other ring goes.
    orders: Orders<Order>,
    ordered: u64,
    batches: Receiver<Submission>,
    shared: Arc<Shared>,
}

impl Apart {
    fn order(&mut self, bytes: usize, order: Order) {
        self.ordered += 1;
        self.orders.give(bytes, order);
    }
}

impl Service {
    /// Clients that are served by a thread of their own; `clients` has been registered with the
    /// poll of `setting`. `clock` is the synchronised clock now.
    ///
    /// # Errors
    /// When no thread or waker can be created.
    pub fn apart(clients: Clients, setting: Setting, clock: u64) -> io::Result<Self> {
        let (wakeup, (orders, given), (sender, batches)) = setting.rings()?;
        let shared = Arc::new(Shared {
            figures: Mutex::default(),
            changed: AtomicBool::new(true),
            clock_ahead: AtomicU64::new(clock.saturating_sub(setting.clock.now().0)),
            idle_at: AtomicU64::new(BUSY),
        });
        let stage = Stage {
            clients,
            orders: given,
            taken: 0,
            batches: sender,
            waiting: VecDeque::new(),
            collected: Vec::new(),
            shared: Arc::clone(&shared),
            rest: Rest::new(setting, wakeup),
        };
        let orders = Orders::start("clients", orders, move || stage.run())?;
        Ok(Self::Apart(Apart {
            orders,
            ordered: 0,
            batches,
            shared,
        }))
    }

    /// Reads what clients have sent on this thread; how many had something.
    pub fn receive(&mut self, now: Time) -> usize {
        match self {
            Self::Here(clients) => clients.receive(now),
            Self::None | Self::Apart(_) => 0,
        }
    }

    /// Collects batches of what clients want; `clock` is the synchronised clock.
    pub fn collect(&mut self, now: Time, clock: u64, submissions: &mut Vec<Submission>) {
        match self {
            Self::None => {}
            Self::Here(clients) => clients.collect(now, clock, submissions),
            Self::Apart(apart) => {
                let ahead = clock.saturating_sub(now.0);
                apart.shared.clock_ahead.store(ahead, Relaxed);
                for _ in 0..apart.batches.len() {
                    submissions.extend(apart.batches.pop());
                }
            }
        }
    }

    /// Hands on the outcome of a batch.
    pub fn done(&mut self, batch: BatchId, outcome: Outcome, now: Time) {
        match self {
            Self::None => {}
            Self::Here(clients) => clients.gateway.on_done(batch, outcome, now),
            Self::Apart(apart) => {
                let bytes = match &outcome {
                    Outcome::Results(bytes) => bytes.len(),
                    _ => 0,
                };
                apart.order(bytes, Order::Done(batch, outcome));
            }
        }
    }

    /// Tells a client how the change with this number has ended.
    pub fn changed(&mut self, number: u64, report: Result<ChangeReport, String>) {
        match self {
            Self::None => {}
            Self::Here(clients) => clients.gateway.on_changed(number, &report),
            Self::Apart(apart) => apart.order(0, Order::Changed(number, Box::new(report))),
        }
    }

    /// Writes what there is for clients, one write per connection.
    pub fn flush(&mut self) {
        match self {
            Self::None => {}
            Self::Here(clients) => clients.flush(),
            Self::Apart(apart) => apart.orders.ring(),
        }
    }

    /// Notes what has become possible at a socket of this thread.
    pub fn on_event(&mut self, event: &Event) {
        if let Self::Here(clients) = self {
            clients.on_event(event);
        }
    }

    /// Whether there is something to do without sleeping.
    pub fn busy(&self, hears_clients: bool) -> bool {
        match self {
            Self::None => false,
            Self::Here(clients) => clients.busy(),
            Self::Apart(apart) => hears_clients && !apart.batches.is_empty(),
        }
    }

    /// When the sockets have something to do, and when batches or deadlines have, on this thread.
    pub fn next_deadlines(&self) -> (Time, Time) {
        match self {
            Self::None | Self::Apart(_) => (Time::NEVER, Time::NEVER),
            Self::Here(clients) => (clients.next_deadline(), clients.gateway.next_deadline()),
        }
    }

    pub fn on_time(&mut self, now: Time) {
        if let Self::Here(clients) = self {
            on_time(clients, now);
        }
    }

    /// The thread has ended by itself: nothing works any more.
    pub fn ended(&self) -> bool {
        match self {
            Self::None | Self::Here(_) => false,
            Self::Apart(apart) => apart.batches.closed(),
        }
    }

    /// Whether figures have changed since this was last asked, as far as another thread tells.
    pub fn take_changed(&mut self) -> bool {
        match self {
            Self::None | Self::Here(_) => false,
            Self::Apart(apart) => taken(&apart.shared.changed),
        }
    }

    pub fn figures(&self) -> ServiceFigures {
        match self {
            Self::None => ServiceFigures::default(),
            Self::Here(clients) => figures(clients),
            Self::Apart(apart) => *apart.shared.figures(),
        }
    }

    /// Shows the gateway its node.
    pub fn set_view(&mut self, view: NodeView) {
        match self {
            Self::None => {}
            Self::Here(clients) => clients.gateway.set_view(view),
            Self::Apart(apart) => apart.order(0, Order::View(Box::new(view))),
        }
    }

    /// Whether a view is looked at by anybody.
    pub const fn serves(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Takes no more requests.
    pub fn begin_shutdown(&mut self) {
        match self {
            Self::None => {}
            Self::Here(clients) => clients.begin_shutdown(),
            Self::Apart(apart) => apart.order(0, Order::Shutdown),
        }
    }

    /// No client waits for anything.
    pub fn idle(&self) -> bool {
        match self {
            Self::None => true,
            Self::Here(clients) => clients.gateway.idle(),
            Self::Apart(apart) => {
                apart.shared.idle_at.load(Acquire) == apart.ordered && apart.batches.is_empty()
            }
        }
    }
}

fn on_time(clients: &mut Clients, now: Time) {
    if clients.next_deadline() <= now {
        clients.on_time(now);
    }
    if clients.gateway.next_deadline() <= now {
        clients.gateway.on_time(now);
    }
}

/// The clients' thread.
struct Stage {
    clients: Clients,
    orders: Receiver<Order>,
    taken: u64,
    batches: Sender<Submission>,
    /// Submissions that found the ring full.
    waiting: VecDeque<Submission>,
    collected: Vec<Submission>,
    shared: Arc<Shared>,
    rest: Rest,
}

impl Stage {
    fn run(mut self) -> io::Result<()> {
        loop {
            let now = self.rest.now();
            let closed = self.orders.closed();
            let mut count = self.take_orders(now);
            if closed {
                self.clients.flush();
                return Ok(());
            }
            count += self.clients.receive(now);
            on_time(&mut self.clients, now);
            self.hand_on();
            if self.waiting.is_empty() {
                let clock = now.0 + self.shared.clock_ahead.load(Relaxed);
                self.clients.collect(now, clock, &mut self.collected);
                count += self.collected.len();
                self.waiting.extend(self.collected.drain(..));
                self.hand_on();
            }
            self.batches.ring();
            self.clients.flush();
            if count > 0 {
                *self.shared.figures() = figures(&self.clients);
                self.shared.changed.store(true, Release);
            }
            let idle = self.clients.gateway.idle() && self.waiting.is_empty();
            let idle_at = if idle { self.taken } else { BUSY };
            self.shared.idle_at.store(idle_at, Release);
            self.sleep(count)?;
        }
    }

    /// Takes what was there when it began; what comes meanwhile waits for the next turn.
    fn take_orders(&mut self, now: Time) -> usize {
        let count = self.orders.len();
        for _ in 0..count {
            let Some(order) = self.orders.pop() else {
                break;
            };
            self.taken += 1;
            match order {
                Order::Done(batch, outcome) => self.clients.gateway.on_done(batch, outcome, now),
                Order::Changed(number, report) => self.clients.gateway.on_changed(number, &report),
                Order::View(view) => self.clients.gateway.set_view(*view),
                Order::Shutdown => self.clients.begin_shutdown(),
            }
        }
        count
    }

    /// Hands on what waits, as far as there is room; whether all of it went.
    fn hand_on(&mut self) -> bool {
        while let Some(submission) = self.waiting.pop_front() {
            let bytes = submission.batch.len() + ITEM_BYTES;
            if let Err(submission) = self.batches.push(bytes, submission) {
                self.waiting.push_front(submission);
                return false;
            }
        }
        true
    }

    fn sleep(&mut self, count: usize) -> io::Result<()> {
        let now = self.rest.now();
        let mut until = None;
        if !self.rest.spins(now, count) && !self.clients.busy() {
            self.rest.park();
            let waited = !self.waiting.is_empty();
            let all_went = self.hand_on();
            if waited {
                self.batches.ring();
            }
            let something = !self.orders.is_empty() || self.orders.closed();
            if !(something || waited && all_went) {
                let gateway = &self.clients.gateway;
                // While batches wait for room, none are made, however due they are.
                let due = if all_went {
                    gateway.next_deadline()
                } else {
                    Time::NEVER
                };
                until = Some(self.clients.next_deadline().min(due));
            }
        }
        let events = self.rest.sleep(now, until)?;
        for event in events.iter().filter(|event| event.token() != WAKEUP) {
            self.clients.on_event(event);
        }
        self.rest.done(events);
        Ok(())
    }
}

//! Shared by the threads beside the protocol's: when they sleep, and how they end.
//!
//! ```text
//!   turn ─► something done? ── a little, just now ──► look again (spin, yielding)
//!      ▲                   └── nothing for a while, or a lot ──► park ─► look once more ─► poll
//!      └─────────────────────────────── socket, wakeup or deadline ◄─────────────────────────┘
//! ```

use crate::{
    clock::Ticker,
    rings::{Receiver, Sender, Wakeup, ring},
};
use mio::{Events, Poll, Token};
use quintet_replica::Time;
use std::{
    io,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Relaxed},
        },
    },
    thread::JoinHandle,
    time::Duration,
};

/// The token of wakers; an event of theirs only ends the sleep.
pub(super) const WAKEUP: Token = Token(0);
const EVENTS_MAX: usize = 1024;
/// A turn with more requests than this is followed by sleep, not by spinning: batches grow.
pub(super) const NEARLY_IDLE: usize = 8;
/// Events that are due sooner are waited for by the nanosecond.
pub(super) const PRECISE_MAX: Duration = Duration::from_millis(10);
/// Longer than any deadline that is one.
pub(super) const FOREVER: Duration = Duration::from_secs(1 << 30);
/// The most bytes between two threads.
const RING_BYTES_MAX: usize = 64 << 20;

/// The parts of a stage.
pub(super) struct Setting {
    pub poll: Poll,
    /// Wakes the protocol's thread.
    pub protocol: Arc<Wakeup>,
    pub slots: usize,
    pub clock: Ticker,
    pub spin_max: Duration,
}

impl Setting {
    /// A waker for the thread that polls this, and two rings between it and the protocol's thread.
    ///
    /// # Errors
    /// When the operating system can create no waker.
    #[expect(clippy::type_complexity, reason = "two rings have four ends")]
    pub fn rings<O, A>(
        &self,
    ) -> io::Result<(
        Arc<Wakeup>,
        (Sender<O>, Receiver<O>),
        (Sender<A>, Receiver<A>),
    )> {
        let waker = mio::Waker::new(self.poll.registry(), WAKEUP)?;
        let wakeup = Arc::new(Wakeup::new(Arc::new(waker)));
        let orders = ring(self.slots, RING_BYTES_MAX, &self.protocol, &wakeup);
        let answers = ring(self.slots, RING_BYTES_MAX, &wakeup, &self.protocol);
        Ok((wakeup, orders, answers))
    }
}

/// Sleeping between the turns of a stage.
pub(super) struct Rest {
    poll: Poll,
    events: Option<Events>,
    wakeup: Arc<Wakeup>,
    clock: Ticker,
    spin_max: Duration,
    last_work: Time,
    last_count: usize,
}

impl Rest {
    pub fn new(setting: Setting, wakeup: Arc<Wakeup>) -> Self {
        Self {
            poll: setting.poll,
            events: Some(Events::with_capacity(EVENTS_MAX)),
            wakeup,
            clock: setting.clock,
            spin_max: setting.spin_max,
            last_work: Time(0),
            last_count: 0,
        }
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// After a turn at `now` that did `count` things: whether to look again without sleeping.
    pub fn spins(&mut self, now: Time, count: usize) -> bool {
        if count > 0 {
            self.last_work = now;
            self.last_count = count;
        }
        let spins = self.last_count <= NEARLY_IDLE && now.since(self.last_work) < self.spin_max;
        if spins && count == 0 {
            // Threads that could bring work must get the processor.
            rustix::thread::sched_yield();
        }
        spins
    }

    /// Says that this thread is about to sleep. Rings are looked at once more after this.
    pub fn park(&self) {
        self.wakeup.park();
    }

    /// Sleeps until something happens or `until` has come; not at all without `until`. Gives what
    /// the sockets tell, to be given back with [`Self::done`].
    ///
    /// # Errors
    /// When the operating system fails to wait.
    pub fn sleep(&mut self, now: Time, until: Option<Time>) -> io::Result<Events> {
        let mut events = self
            .events
            .take()
            .unwrap_or_else(|| Events::with_capacity(1));
        events.clear();
        let wait = until.map_or(Duration::ZERO, |until| until.since(now));
        let result = if wait < PRECISE_MAX {
            let waited = match wait.is_zero() {
                true => Ok(()),
                false => crate::system::wait(&self.poll, wait),
            };
            waited.and_then(|()| self.poll.poll(&mut events, Some(Duration::ZERO)))
        } else {
            let timeout = (wait < FOREVER).then_some(wait);
            self.poll.poll(&mut events, timeout)
        };
        self.wakeup.awake();
        match result {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(events),
        }
    }

    pub fn done(&mut self, events: Events) {
        self.events = Some(events);
    }
}

/// The weight of an item in a ring besides its bytes.
pub(super) const ITEM_BYTES: usize = 64;

/// The protocol's end of a stage: what it is told to do, and its thread. When this is dropped, the
/// stage executes its pending orders, and ends; no other thread may wait for it meanwhile.
pub(super) struct Orders<O> {
    /// None only while it ends.
    ring: Option<Sender<O>>,
    thread: Option<JoinHandle<()>>,
}

impl<O> Orders<O> {
    /// Starts a stage that takes its orders from the other end of `ring`.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(
        name: &'static str,
        ring: Sender<O>,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        Ok(Self {
            ring: Some(ring),
            thread: Some(start(name, run)?),
        })
    }

    /// Adds an order with this many bytes, waiting for room; heard of with [`Self::ring`].
    pub fn give(&mut self, bytes: usize, order: O) {
        if let Some(ring) = &mut self.ring {
            ring.push_waiting(bytes + ITEM_BYTES, order);
        }
    }

    /// Wakes the stage if it sleeps and there are new orders.
    pub fn ring(&mut self) {
        if let Some(ring) = &mut self.ring {
            ring.ring();
        }
    }

    /// The bytes of orders that it has not taken.
    pub fn bytes(&self) -> usize {
        self.ring.as_ref().map_or(0, Sender::bytes)
    }
}

impl<O> Drop for Orders<O> {
    fn drop(&mut self) {
        self.ring = None;
        if let Some(thread) = self.thread.take() {
            // It has told why, if it panicked.
            let _ = thread.join();
        }
    }
}

/// Whether this was set since it was last asked.
pub(super) fn taken(flag: &AtomicBool) -> bool {
    flag.load(Relaxed) && flag.swap(false, AcqRel)
}

/// Starts a stage; what ends it is told to the log and noticed by the protocol's thread.
///
/// # Errors
/// When there is no thread to be had.
fn start(
    name: &'static str,
    run: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            crate::system::prefer_throughput();
            if let Err(error) = run() {
                tracing::error!(%error, thread = name, "cannot wait for events");
            }
        })
}

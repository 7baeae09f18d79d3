//! Rings between the threads of a replica: one thread fills, one empties, neither ever takes a lock.
//!
//! ```text
//!   Sender ── push ──► [ item | item | item |   |   ] ──► pop ── Receiver
//!     ▲                    slots, and bytes, bounded              │
//!     └──── full: says so, waits ◄── room again: wakes it ────────┤
//!            Wakeup::ring ──────────── something is there ─────────►│ asleep: woken; awake: nothing
//! ```
//!
//! A consumer sets its sleeping flag, checks the ring once more, and only then sleeps. A producer
//! pushes, then checks the flag. With a fence between the two steps on either side, one of them
//! sees what the other did. The same holds for a sender that waits for room.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release, SeqCst},
        fence,
    },
};
use std::thread::Thread;

/// How often a sender that has to wait looks for room before it parks.
const LOOKS: usize = 64;

/// Ends a thread's sleep in its poll, when it sleeps.
#[derive(Debug)]
pub(crate) struct Wakeup {
    waker: Arc<mio::Waker>,
    asleep: AtomicBool,
}

impl Wakeup {
    /// A waker for the thread that polls the poll of `waker`.
    pub const fn new(waker: Arc<mio::Waker>) -> Self {
        Self {
            waker,
            asleep: AtomicBool::new(false),
        }
    }

    /// Its owner is about to sleep, and looks at its rings once more after this.
    pub fn park(&self) {
        self.asleep.store(true, Relaxed);
        fence(SeqCst);
    }

    /// Its owner is awake.
    pub fn awake(&self) {
        self.asleep.store(false, Relaxed);
    }

    /// Something was brought: wakes the owner if it sleeps.
    pub fn ring(&self) {
        fence(SeqCst);
        if self.asleep.load(Relaxed) && self.asleep.swap(false, Relaxed) {
            // A poll whose waker fails has ended, and so has its thread.
            let _ = self.waker.wake();
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// The bytes taken so far, counted around.
    taken: AtomicUsize,
    /// The sender waits for room.
    full: AtomicBool,
    /// It waits in no poll but here.
    parked: Mutex<Option<Thread>>,
    sender_gone: AtomicBool,
    receiver_gone: AtomicBool,
}

/// The end that fills a ring.
#[derive(Debug)]
pub(crate) struct Sender<T> {
    ring: rtrb::Producer<(usize, T)>,
    sent: usize,
    bytes_max: usize,
    /// The sender pushed an item after it last woke the receiver.
    unheard: bool,
    shared: Arc<Shared>,
    to: Arc<Wakeup>,
}

/// The end that empties it.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    ring: rtrb::Consumer<(usize, T)>,
    taken: usize,
    shared: Arc<Shared>,
    from: Arc<Wakeup>,
}

/// A ring of this many slots (at least one), whose items together count for no more than
/// `bytes_max` bytes, unless there is only one. `from` wakes the sender, `to` the receiver.
pub(crate) fn ring<T>(
    slots: usize,
    bytes_max: usize,
    from: &Arc<Wakeup>,
    to: &Arc<Wakeup>,
) -> (Sender<T>, Receiver<T>) {
    let (producer, consumer) = rtrb::RingBuffer::new(slots.max(1));
    let shared = Arc::<Shared>::default();
    let sender = Sender {
        ring: producer,
        sent: 0,
        bytes_max,
        unheard: false,
        shared: Arc::clone(&shared),
        to: Arc::clone(to),
    };
    let receiver = Receiver {
        ring: consumer,
        taken: 0,
        shared,
        from: Arc::clone(from),
    };
    (sender, receiver)
}

impl<T> Sender<T> {
    /// The bytes that are in the ring.
    pub fn bytes(&self) -> usize {
        self.sent.wrapping_sub(self.shared.taken.load(Acquire))
    }

    fn try_push(&mut self, bytes: usize, item: T) -> Result<(), T> {
        let there = self.bytes();
        if there > 0 && there + bytes > self.bytes_max {
            return Err(item);
        }
        match self.ring.push((bytes, item)) {
            Ok(()) => {
                self.sent = self.sent.wrapping_add(bytes);
                self.unheard = true;
                Ok(())
            }
            Err(rtrb::PushError::Full((_, item))) => Err(item),
        }
    }

    /// Adds an item that counts for this many bytes. Wakes no thread: [`Self::ring`] does, once for
    /// all pushed items.
    ///
    /// # Errors
    /// Gives the item back when there is no room; the waker of this end wakes it when there is. A
    /// sender that sleeps for that reason tries once more after [`Wakeup::park`].
    pub fn push(&mut self, bytes: usize, item: T) -> Result<(), T> {
        self.try_push(bytes, item).or_else(|item| {
            self.shared.full.store(true, Relaxed);
            fence(SeqCst);
            self.try_push(bytes, item)
        })
    }

    /// The same, waiting for room. The receiver must not wait for the calling thread. Without a
    /// receiver the item is dropped.
    pub fn push_waiting(&mut self, bytes: usize, item: T) {
        let Err(mut item) = self.try_push(bytes, item) else {
            return;
        };
        for _ in 0..LOOKS {
            self.ring();
            std::thread::yield_now();
            match self.try_push(bytes, item) {
                Ok(()) => return,
                Err(back) => item = back,
            }
        }
        loop {
            let me = std::thread::current();
            *(self.shared.parked.lock()).unwrap_or_else(PoisonError::into_inner) = Some(me);
            match self.push(bytes, item) {
                Ok(()) => return,
                Err(back) => item = back,
            }
            if self.shared.receiver_gone.load(Acquire) {
                return;
            }
            self.ring();
            std::thread::park();
        }
    }

    /// Wakes the receiver if it sleeps and something was pushed since this was last done.
    pub fn ring(&mut self) {
        if std::mem::take(&mut self.unheard) {
            self.to.ring();
        }
    }
}

impl<T> Receiver<T> {
    /// The oldest item.
    pub fn pop(&mut self) -> Option<T> {
        let (bytes, item) = self.ring.pop().ok()?;
        self.taken = self.taken.wrapping_add(bytes);
        self.shared.taken.store(self.taken, Release);
        fence(SeqCst);
        if self.shared.full.load(Relaxed) {
            self.shared.full.store(false, Relaxed);
            self.wake_sender();
        }
        Some(item)
    }

    fn wake_sender(&self) {
        self.from.ring();
        let parked = (self.shared.parked.lock())
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = parked {
            thread.unpark();
        }
    }

    /// How many items there are at least.
    pub fn len(&self) -> usize {
        self.ring.slots()
    }

    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Nothing comes any more but what is there already.
    pub fn closed(&self) -> bool {
        self.shared.sender_gone.load(Acquire)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.shared.sender_gone.store(true, Release);
        self.to.ring();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receiver_gone.store(true, Release);
        fence(SeqCst);
        self.wake_sender();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Events, Poll, Token, Waker};
    use std::{thread, time::Duration};

    fn polled() -> (Poll, Arc<Wakeup>) {
        let poll = Poll::new().expect("a poll");
        let waker = Waker::new(poll.registry(), Token(0)).expect("a waker");
        (poll, Arc::new(Wakeup::new(Arc::new(waker))))
    }

    /// Sleeps until there is something to do: the waker must end it.
    fn sleep(poll: &mut Poll, wakeup: &Wakeup, nothing: impl FnOnce() -> bool) {
        wakeup.park();
        if nothing() {
            poll.poll(&mut Events::with_capacity(4), None)
                .expect("polls");
        }
        wakeup.awake();
    }

    /// A thread that waits for room and a thread that never does, each filling a ring that the
    /// other empties: what goes round is all there, in order, however small the rings.
    #[test]
    fn small_rings_lose_no_item_and_no_wakeup() {
        const ITEMS: u64 = 20_000;
        for (there, back) in [(1, 1), (1, 2), (2, 1), (7, 3)] {
            let (mut near_poll, near) = polled();
            let (mut far_poll, far) = polled();
            let (mut orders, mut taken) = ring::<u64>(there, 1 << 20, &near, &far);
            let (mut answers, mut heard) = ring::<u64>(back, 1 << 20, &far, &near);
            let stage = thread::spawn(move || {
                let mut waiting = None;
                let mut held = std::collections::VecDeque::new();
                loop {
                    let closed = taken.closed();
                    while let Some(item) = taken.pop() {
                        held.push_back(item);
                    }
                    while let Some(item) = waiting.take().or_else(|| held.pop_front()) {
                        if let Err(back) = answers.push(1, item) {
                            waiting = Some(back);
                            break;
                        }
                    }
                    answers.ring();
                    if closed && waiting.is_none() && taken.is_empty() {
                        return;
                    }
                    sleep(&mut far_poll, &far, || {
                        let again = waiting.take().map(|item| answers.push(1, item));
                        if let Some(Err(back)) = again {
                            waiting = Some(back);
                        }
                        answers.ring();
                        let went = matches!(again, Some(Ok(())));
                        !went && taken.is_empty() && !taken.closed()
                    });
                }
            });
            let mut next = 0;
            for item in 0..ITEMS {
                orders.push_waiting(1, item);
                orders.ring();
                while let Some(answer) = heard.pop() {
                    assert_eq!(answer, next);
                    next += 1;
                }
            }
            while next < ITEMS {
                match heard.pop() {
                    Some(answer) => {
                        assert_eq!(answer, next);
                        next += 1;
                    }
                    None => sleep(&mut near_poll, &near, || heard.is_empty()),
                }
            }
            drop(orders);
            stage.join().expect("it ends");
            assert!(heard.closed() && heard.is_empty());
        }
    }

    #[test]
    fn bytes_bound_a_ring_that_has_slots_and_one_item_always_fits() {
        let (_, wakeup) = polled();
        let (mut sender, mut receiver) = ring::<u8>(8, 10, &wakeup, &wakeup);
        assert_eq!(sender.push(100, 1), Ok(()));
        assert_eq!(sender.push(1, 2), Err(2));
        assert_eq!((receiver.pop(), sender.bytes()), (Some(1), 0));
        assert_eq!(sender.push(6, 2), Ok(()));
        assert_eq!(sender.push(5, 3), Err(3));
        assert_eq!(sender.push(4, 3), Ok(()));
        assert_eq!((receiver.pop(), receiver.pop()), (Some(2), Some(3)));
    }

    #[test]
    fn blocked_sender_resumes_when_receiver_closes() {
        let (_, wakeup) = polled();
        let (mut sender, receiver) = ring::<u8>(1, 10, &wakeup, &wakeup);
        sender.push_waiting(1, 1);
        let waits = thread::spawn(move || sender.push_waiting(1, 2));
        while !receiver.shared.full.load(SeqCst) {
            thread::sleep(Duration::from_micros(100));
        }
        drop(receiver);
        waits.join().expect("it continues");
    }
}

//! Reads of the past from other threads: none of them waits on a thread of its own.
//!
//! ```text
//!   query_past_with ──► Read, Tick ──► the replica ──► answered ──► done
//!                           ▲                └─ not yet ──► an alarm for the time when it is
//!                           └───────────────────────────────┘ asked again
//! ```
//!
//! Those that wait are bounded, by number and bytes. Parts of gathers, which one replica has to answer,
//! have a bound of their own: they keep no other reads away.

use crate::{SubmitError, alarms::alarms, clock::unix_time, mail::Done, replica::Handle};
use quintet_replica::{
    Bytes, Level, RequestKind, RequestStatus,
    past::{self, Asking, Step},
};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// More reads do not wait at once in this process, nor with more bytes.
const WAITING_MAX: usize = 4096;
const WAITING_BYTES_MAX: usize = 256 << 20;
/// A read that one replica has to answer waits twice as long each time, so often.
const LONGER_MAX: u32 = 5;

/// Those of a kind that wait.
#[derive(Debug, Default)]
struct Room {
    reads: AtomicUsize,
    bytes: AtomicUsize,
}

/// By whether one replica has to answer.
static ROOMS: [Room; 2] = [const {
    Room {
        reads: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
    }
}; 2];

/// A place among those that wait; given back when dropped.
struct Place {
    room: &'static Room,
    bytes: usize,
}

impl Place {
    fn take(room: &'static Room, bytes: usize) -> Option<Self> {
        let place = Self { room, bytes };
        let reads = room.reads.fetch_add(1, Ordering::Relaxed);
        let others = room.bytes.fetch_add(bytes, Ordering::Relaxed);
        // One goes whatever its length.
        let fits = reads < WAITING_MAX && (others == 0 || others + bytes <= WAITING_BYTES_MAX);
        fits.then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.reads.fetch_sub(1, Ordering::Relaxed);
        self.room.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A read in progress.
pub(crate) struct PastRead {
    handle: Handle,
    asking: Asking,
    read: Bytes,
    ends: Instant,
    done: Done,
    /// Once it waits.
    place: Option<Place>,
    /// How often it has waited.
    waits: u32,
}

impl PastRead {
    /// Begins with the first step.
    pub fn begin(handle: Handle, asking: Asking, read: Bytes, ends: Instant, done: Done) {
        let step = asking.begin();
        let this = Self {
            handle,
            asking,
            read,
            ends,
            done,
            place: None,
            waits: 0,
        };
        this.take(step);
    }

    /// Whether one replica has to answer.
    fn asks_one(&self) -> bool {
        self.asking == Asking::here()
    }

    fn end(self, answer: Result<Vec<u8>, SubmitError>) {
        // Room for others before the answer, which may be what they wait for.
        drop(self.place);
        (self.done)(answer);
    }

    fn take(mut self, step: Step) {
        let left = self.ends.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return self.end(Err(SubmitError::NoQuorum));
        }
        let reads_at_once = matches!(step, Step::Read(Level::Stale));
        if self.place.is_none() && !reads_at_once {
            let room = &ROOMS[usize::from(self.asks_one())];
            self.place = Place::take(room, self.read.len());
            if self.place.is_none() {
                return self.end(Err(SubmitError::Busy));
            }
        }
        let handle = self.handle.clone();
        match step {
            Step::Read(level) => {
                let read = self.read.clone();
                handle.request(level, RequestKind::Past, &read, move |answer| {
                    self.on_read(answer)
                });
            }
            Step::Tick => {
                let (kind, tick) = (RequestKind::Tick, past::CLOSING_TICK);
                handle.request(Level::Ordered, kind, tick, move |answer| {
                    self.on_tick(answer)
                });
            }
            Step::Wait(nanoseconds) => {
                let mut wait = Duration::from_nanos(nanoseconds);
                if self.asks_one() {
                    // With many that wait for one replica, the questions are not its load.
                    wait *= 1 << self.waits.min(LONGER_MAX);
                }
                self.waits += 1;
                match wait > left {
                    true => self.end(Err(SubmitError::NotYet)),
                    false => self.sleep(wait),
                }
            }
            Step::Missing => self.end(Err(SubmitError::NotYet)),
        }
    }

    fn on_read(self, answer: Result<Vec<u8>, SubmitError>) {
        let next = match answer {
            Err(SubmitError::NotYet) => self.asking.on_read(RequestStatus::NotYet, unix_time()),
            answer => return self.end(answer),
        };
        match next {
            Some(step) => self.take(step),
            None => self.end(Err(SubmitError::NotYet)),
        }
    }

    fn on_tick(mut self, answer: Result<Vec<u8>, SubmitError>) {
        match answer {
            Ok(_) => {
                let step = self.asking.on_tick();
                self.take(step);
            }
            // A tick is nothing that may have been executed.
            Err(SubmitError::Uncertain) => self.end(Err(SubmitError::NoQuorum)),
            Err(error) => self.end(Err(error)),
        }
    }

    fn sleep(self, wait: Duration) {
        let Some(alarms) = alarms() else {
            return self.end(Err(SubmitError::Busy));
        };
        alarms
            .set(Instant::now() + wait, move || self.on_waited())
            .keep();
    }

    fn on_waited(mut self) {
        let step = self.asking.on_waited(unix_time());
        self.take(step);
    }
}

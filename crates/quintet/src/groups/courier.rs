//! Delivers hand-offs, see [`super::hand_off`].
//!
//! ```text
//!   an answer with hand-offs, or a second later ──► outbox of the shard
//!        for each destination: Deliver 7, 8, 9 ──► executed up to 8 ──► Settle 8
//! ```
//!
//! Each process of a group has a courier, and all of them may deliver the same: the numbers make
//! that harmless. One that stops in the middle is replaced by the others.

use super::{
    CallError, Pending,
    call::{self, Call, Delivery, Kind},
    calls::{Calls, To},
    hand_off::{HandOff, Made},
};
use quintet_replica::{GroupId, Level};
use serde::de::DeserializeOwned;
use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

/// Hand-offs to one destination that are delivered at once.
pub(super) const DELIVERED_AT_ONCE: u64 = 64;
/// The outboxes are looked through this often, also without a sign.
const LOOKS_EVERY: Duration = Duration::from_secs(1);

/// Wakes the courier.
#[derive(Debug, Default)]
pub(super) struct Bag {
    state: Mutex<BagState>,
    woken: Condvar,
}

#[derive(Debug, Default)]
struct BagState {
    has_mail: bool,
    stops: bool,
}

impl Bag {
    fn set(&self, change: impl FnOnce(&mut BagState)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.woken.notify_all();
    }

    /// Some shard has made hand-offs.
    pub fn wake(&self) {
        self.set(|state| state.has_mail = true);
    }

    /// Waits for mail, or for the time to look; false at the end.
    fn wait(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .woken
            .wait_timeout_while(state, LOOKS_EVERY, |state| !state.has_mail && !state.stops);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.has_mail = false;
        !state.stops
    }
}

/// A shard that hands calls off.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub name: Arc<str>,
    pub group: GroupId,
}

/// The thread that delivers.
#[derive(Debug)]
pub(super) struct Courier {
    calls: Arc<Calls>,
    thread: Option<JoinHandle<()>>,
}

impl Courier {
    /// Delivers for these shards; none has no thread.
    pub fn start(calls: &Arc<Calls>, sources: Vec<Source>) -> std::io::Result<Self> {
        let mut courier = Self {
            calls: calls.clone(),
            thread: None,
        };
        if sources.is_empty() {
            return Ok(courier);
        }
        let calls = calls.clone();
        let run = move || {
            while calls.bag.wait() {
                for source in &sources {
                    // The next look tries again.
                    let _ = calls.deliver(source);
                }
            }
        };
        let thread = std::thread::Builder::new().name("courier".to_owned());
        courier.thread = Some(thread.spawn(run)?);
        Ok(courier)
    }

    /// It delivers no more; does not wait.
    pub fn stop(&self) {
        self.calls.bag.set(|state| state.stops = true);
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // A panic there is no reason for one here.
            let _ = thread.join();
        }
    }
}

impl Calls {
    fn ask<R: DeserializeOwned>(
        self: &Arc<Self>,
        source: &Source,
        level: Level,
        payload: Vec<u8>,
    ) -> Pending<R> {
        let timeout = self.deadline + Duration::from_secs(5);
        let is_ordered = level == Level::Ordered;
        let (pending, answering) = Pending::new(source.name.clone(), timeout, is_ordered);
        let to = To {
            shard: source.name.clone(),
            group: source.group,
            members: self.in_turn(),
        };
        self.send(to, level, payload, answering);
        pending
    }

    /// Delivers what waits in a shard, and gives what could not be.
    pub(super) fn deliver(self: &Arc<Self>, source: &Source) -> Result<Made, CallError> {
        loop {
            let payload = Call::encode(Kind::Outbox, 0, &DELIVERED_AT_ONCE);
            let asked: Pending<Vec<HandOff>> = self.ask(source, Level::Linearizable, payload);
            let waiting = asked.wait()?;
            let mut left: Made = Vec::new();
            let mut of: BTreeMap<&str, Vec<&HandOff>> = BTreeMap::new();
            for hand_off in &waiting {
                left.push((hand_off.destination.clone(), hand_off.number));
                of.entry(&hand_off.destination).or_default().push(hand_off);
            }
            if !self.has_member() {
                // The couriers of the members deliver.
                return Ok(left);
            }
            let mut settled = false;
            for (destination, hand_offs) in of {
                settled |= self.deliver_to(source, destination, &hand_offs)?;
            }
            if !settled {
                return Ok(left);
            }
        }
    }

    /// Delivers to one shard; whether some were executed.
    fn deliver_to(
        self: &Arc<Self>,
        source: &Source,
        destination: &str,
        hand_offs: &[&HandOff],
    ) -> Result<bool, CallError> {
        let Some(target) = self.shards.iter().find(|it| *it.name == *destination) else {
            return Ok(false);
        };
        let pending = hand_offs.iter().map(|hand_off| {
            let delivery = Delivery {
                source: &source.name,
                number: hand_off.number,
                time: hand_off.time,
                arguments: &hand_off.arguments,
            };
            let payload = Call::encode(Kind::Deliver, hand_off.method, &delivery);
            (
                hand_off.number,
                self.ask::<call::Anything>(target, Level::Ordered, payload),
            )
        });
        let mut upto = None;
        for (number, pending) in pending.collect::<Vec<_>>() {
            match pending.wait() {
                Ok(_) => upto = Some(number),
                Err(_) => break,
            }
        }
        let Some(upto) = upto else {
            return Ok(false);
        };
        let payload = Call::encode(Kind::Settle, 0, &(destination, upto));
        let settled: Pending<call::Anything> = self.ask(source, Level::Ordered, payload);
        settled.wait().map(|_| true)
    }
}

//! Delivers hand-offs, see [`quintet_groups::hand_off`].
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
    call::{self, Made},
    calls::{Calls, Source, To},
    hand_off::HandOff,
    pending::end_of,
    remote::Wanted,
};
use quintet_groups::delivery;
use quintet_replica::Level;
use quintet_runtime::pauses::Pauses;
use serde::de::DeserializeOwned;
use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Hand-offs that have not been executed are looked for again after this.
const LOOKS_AGAIN: Duration = Duration::from_millis(2);
const LOOKS_AGAIN_MAX: Duration = Duration::from_millis(200);

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
                // In turn, so that none waits behind another that makes more and more.
                let more = sources.iter().map(|source| calls.deliver(source));
                // The next look tries again where one failed.
                if more.fold(false, |some, more| some | more.unwrap_or(false)) {
                    calls.bag.wake();
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
        to: To,
        level: Level,
        payload: Vec<u8>,
    ) -> Pending<R> {
        Pending::send(self, to, Wanted::Level(level), payload)
    }

    /// The first hand-off that waits for each destination.
    pub(super) fn waiting(self: &Arc<Self>, source: &Source) -> Result<Made, CallError> {
        let level = Level::Linearizable;
        self.ask(self.to(source, None), level, delivery::waiting())
            .wait()
    }

    /// Delivers some of what waits in a shard, to every destination; whether any was executed.
    fn deliver(self: &Arc<Self>, source: &Source) -> Result<bool, CallError> {
        let mut some = false;
        for (destination, _) in self.waiting(source)? {
            // The others do not wait for one that cannot be reached.
            some |= self.deliver_to(source, &destination).unwrap_or(false);
        }
        Ok(some)
    }

    /// Delivers the next ones to one shard; whether any was executed.
    pub(super) fn deliver_to(
        self: &Arc<Self>,
        source: &Source,
        destination: &str,
    ) -> Result<bool, CallError> {
        let Some(target) = self.shards.iter().find(|it| *it.name == *destination) else {
            return Ok(false);
        };
        let payload = delivery::first_of(destination);
        let asked = self.ask(self.to(source, None), Level::Linearizable, payload);
        let hand_offs: Vec<HandOff> = asked.wait()?;
        // All to the same member: it keeps their order.
        let to = self.to(target, None);
        let pending = hand_offs.iter().map(|hand_off| {
            let payload = delivery::deliver(&source.name, hand_off);
            let pending: Pending<call::Anything> = self.ask(to.clone(), Level::Ordered, payload);
            (hand_off.number, pending)
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
        let payload = delivery::settle(destination, upto);
        let settled: Pending<call::Anything> =
            self.ask(self.to(source, None), Level::Ordered, payload);
        settled.wait().map(|_| true)
    }
}

impl<R: DeserializeOwned> Pending<R> {
    /// Waits until all that the call has handed off has been executed, too.
    ///
    /// # Errors
    /// See [`CallError`]: of the call, or [`CallError::NotHandedOff`] where the call was executed and
    /// its hand-offs have not been within the deadline. They will be.
    pub fn handed_off(self) -> Result<R, CallError> {
        let ends = end_of(self.timeout);
        let (calls, source) = (self.calls.clone(), self.source.clone());
        let answer = self.bytes()?;
        let done = call::read_answer(&answer, &source.name)?;
        let mut made = call::hand_offs_of(&answer);
        let mut pauses = Pauses::new(LOOKS_AGAIN, LOOKS_AGAIN_MAX);
        while !made.is_empty() {
            if let Ok(waiting) = calls.waiting(&source) {
                // Those before the first that waits have been executed.
                made.retain(|(shard, number)| {
                    waiting
                        .iter()
                        .any(|(it, first)| it == shard && number >= first)
                });
            }
            let mut shards: Vec<String> = made.iter().map(|(shard, _)| shard.clone()).collect();
            shards.dedup();
            if shards.is_empty() {
                break;
            }
            if Instant::now() >= ends {
                return Err(CallError::NotHandedOff { shards });
            }
            let delivers = calls.has_member();
            let deliver = |shard: &String| calls.deliver_to(&source, shard).unwrap_or(false);
            if !(delivers
                && shards
                    .iter()
                    .map(deliver)
                    .fold(false, |some, one| some | one))
            {
                // A courier elsewhere delivers, or a shard cannot be reached.
                pauses.make(LOOKS_AGAIN_MAX);
            }
        }
        Ok(done.value)
    }
}

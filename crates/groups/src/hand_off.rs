//! Hand-offs: calls that a command of one shard makes in another one, each executed exactly once.
//!
//! ```text
//!   command ──► handler: context.then("cache", 2, call) ──► outbox of this shard, replicated
//!                                                              │ a courier in some process
//!   Deliver(source, number, call) ──► inbox: number = last + 1? ── yes ──► executed, last + 1
//!                                                              └─ no ───► executed already
//!   Settle(destination, number)   ──► out of the outbox
//! ```
//!
//! Numbers are counted per source and destination, and are part of both states: so it does not matter
//! how often, and from how many processes, a hand-off is delivered. The outbox is bounded; where it is
//! full, commands are refused before their handlers run. The destinations of a subgroup are declared in
//! the layout, without cycles, because two full outboxes could refuse each other.

use crate::call::Made;
use quintet_replica::RestoreError;
use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, sync::Arc};

/// More hand-offs do not wait in a shard.
pub const WAITING_MAX: usize = 4096;
/// Hand-offs to one destination that are delivered at once, and their bytes.
const DELIVERED_AT_ONCE: usize = 64;
const DELIVERED_BYTES: u64 = 32 << 20;
/// Nor more bytes.
const WAITING_BYTES_MAX: u64 = 64 << 20;

/// Where a shard may hand calls off to: the subgroups, with their services and numbers of shards.
#[derive(Clone, Debug, Default)]
pub struct Destinations(pub Vec<Destination>);

/// A subgroup that calls are handed off to.
#[derive(Clone, Debug)]
pub struct Destination {
    /// Its name.
    pub subgroup: String,
    /// Its service's name.
    pub service: &'static str,
    /// The number of its shards.
    pub shards: usize,
}

impl Destinations {
    /// The name of a shard, if calls of this service may be handed off to it.
    pub fn name(&self, service: &str, subgroup: &str, shard: usize) -> Option<String> {
        let mut all = self.0.iter();
        let is_it = |it: &&Destination| it.subgroup == subgroup && it.service == service;
        let found = all.find(is_it).filter(|it| shard < it.shards)?;
        Some(format!("{}/{shard}", found.subgroup))
    }
}

/// A hand-off that waits to be delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOff {
    /// SUBGROUP/NUMBER.
    pub destination: String,
    /// Counted per destination, from 1.
    pub number: u64,
    /// The time of the command that made it.
    pub time: u64,
    /// The method's number.
    pub method: u32,
    /// As encoded by the macro's code.
    pub arguments: Vec<u8>,
}

/// The hand-offs of a shard, part of its state.
#[derive(Clone, Debug)]
pub(crate) struct HandOffs {
    waiting: RedBlackTreeMapSync<(String, u64), Arc<HandOff>>,
    waiting_bytes: u64,
    numbers: Numbers,
}

/// The small part, written at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbers {
    /// The last number to each destination.
    made: BTreeMap<String, u64>,
    /// The last one from each source that was executed here.
    executed: BTreeMap<String, u64>,
}

impl Default for HandOffs {
    fn default() -> Self {
        Self {
            waiting: RedBlackTreeMapSync::new_sync(),
            waiting_bytes: 0,
            numbers: Numbers::default(),
        }
    }
}

fn weight(hand_off: &HandOff) -> u64 {
    128 + hand_off.arguments.len() as u64
}

impl HandOffs {
    pub const fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    pub const fn bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Whether no more commands are taken until some are delivered.
    pub fn is_full(&self) -> bool {
        self.waiting.size() >= WAITING_MAX || self.waiting_bytes >= WAITING_BYTES_MAX
    }

    /// Numbers what a command hands off.
    pub fn add(&mut self, wanted: Vec<(String, u32, Vec<u8>)>, time: u64) -> Made {
        let mut made = Made::new();
        for (destination, method, arguments) in wanted {
            let number = self.numbers.made.entry(destination.clone()).or_default();
            *number += 1;
            let hand_off = HandOff {
                destination: destination.clone(),
                number: *number,
                time,
                method,
                arguments,
            };
            made.push((destination, *number));
            self.put(hand_off);
        }
        made
    }

    fn put(&mut self, hand_off: HandOff) {
        self.waiting_bytes += weight(&hand_off);
        let key = (hand_off.destination.clone(), hand_off.number);
        self.waiting.insert_mut(key, Arc::new(hand_off));
    }

    /// Those to this destination up to this number were executed there.
    pub fn settle(&mut self, destination: &str, upto: u64) {
        let first = (destination.to_owned(), 0);
        let last = (destination.to_owned(), upto);
        let settled = self.waiting.range(first..=last);
        let settled: Vec<_> = settled.map(|(key, it)| (key.clone(), weight(it))).collect();
        for (key, bytes) in settled {
            self.waiting.remove_mut(&key);
            self.waiting_bytes -= bytes;
        }
    }

    /// The first number that waits for each destination.
    pub fn first_numbers(&self) -> Made {
        let mut first = Made::new();
        for (destination, number) in self.waiting.keys() {
            if first.last().is_none_or(|(last, _)| last != destination) {
                first.push((destination.clone(), *number));
            }
        }
        first
    }

    /// The first that wait for a destination, in their order: as many as are delivered at once.
    pub fn first_of(&self, destination: &str) -> Vec<&HandOff> {
        let from = (destination.to_owned(), 0);
        let mut bytes = 0;
        let waiting = self.waiting.range(from..).map(|(_, it)| &**it);
        let waiting = waiting.take_while(|it| {
            let is_first = bytes == 0;
            bytes += weight(it);
            it.destination == destination && (is_first || bytes <= DELIVERED_BYTES)
        });
        waiting.take(DELIVERED_AT_ONCE).collect()
    }

    /// How many of a source have been executed here.
    pub fn executed(&self, source: &str) -> u64 {
        self.numbers
            .executed
            .get(source)
            .copied()
            .unwrap_or_default()
    }

    pub fn set_executed(&mut self, source: &str, number: u64) {
        self.numbers.executed.insert(source.to_owned(), number);
    }

    /// The first that waits behind this key, for snapshots.
    pub fn behind(&self, key: Option<&(String, u64)>) -> Option<&HandOff> {
        use std::ops::Bound::{Excluded, Unbounded};
        let mut rest = match key {
            Some(key) => self.waiting.range((Excluded(key), Unbounded)),
            None => self.waiting.range((Unbounded::<&(String, u64)>, Unbounded)),
        };
        rest.next().map(|(_, it)| &**it)
    }

    pub fn restore_numbers(&mut self, numbers: Numbers) {
        self.numbers = numbers;
    }

    /// # Errors
    /// When it has no number that was made.
    pub fn restore(&mut self, hand_off: HandOff) -> Result<(), RestoreError> {
        let made = self.numbers.made.get(&hand_off.destination);
        if made.is_none_or(|last| hand_off.number > *last) {
            return Err(RestoreError("a hand-off that was never made".to_owned()));
        }
        self.put(hand_off);
        Ok(())
    }
}

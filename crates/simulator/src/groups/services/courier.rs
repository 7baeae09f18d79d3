//! A courier: carries hand-offs from a shard to the others, and dies in the middle now and then.

use super::{actors::Asked, place_of, shard};
use quintet::{call::read_answer, delivery, hand_off::HandOff};
use std::collections::VecDeque;

/// Its next step.
#[derive(Debug, Default)]
pub(super) enum Courier {
    /// It begins with some shard.
    #[default]
    Rests,
    /// It has asked what waits in this one.
    Looks { source: usize },
    /// It has asked for what waits for the first of these shards.
    Takes { source: usize, to: VecDeque<String> },
    /// It delivers to the first of these shards.
    Delivers {
        source: usize,
        to: VecDeque<String>,
        load: VecDeque<HandOff>,
        upto: u64,
    },
    /// It has said what is delivered to the first of these shards.
    Settles { source: usize, to: VecDeque<String> },
}

impl Courier {
    /// Begins with this shard.
    pub fn begin(&mut self, source: usize) -> Asked {
        *self = Self::Looks { source };
        Asked::query(source, delivery::waiting())
    }

    fn take(&mut self, source: usize, to: VecDeque<String>) -> Option<Asked> {
        let Some(first) = to.front() else {
            *self = Self::Rests;
            return None;
        };
        let asked = Asked::query(source, delivery::first_of(first));
        *self = Self::Takes { source, to };
        Some(asked)
    }

    fn deliver(
        &mut self,
        source: usize,
        mut to: VecDeque<String>,
        load: VecDeque<HandOff>,
        upto: u64,
    ) -> Option<Asked> {
        let target = place_of(to.front()?)?;
        if let Some(next) = load.front() {
            let asked = Asked::order(target, delivery::deliver(&shard(source), next));
            *self = Self::Delivers {
                source,
                to,
                load,
                upto,
            };
            return Some(asked);
        }
        if upto == 0 {
            to.pop_front();
            return self.take(source, to);
        }
        let asked = Asked::order(source, delivery::settle(to.front()?, upto));
        *self = Self::Settles { source, to };
        Some(asked)
    }

    /// The hand-off on its way: source, destination, number.
    pub fn delivers(&self) -> Option<(usize, usize, u64)> {
        let Self::Delivers {
            source, to, load, ..
        } = self
        else {
            return None;
        };
        Some((*source, place_of(to.front()?)?, load.front()?.number))
    }

    /// It was answered. Gives what it asks for next, and the shard in which nothing waits.
    pub fn on_answer(&mut self, reply: &[u8]) -> (Option<Asked>, Option<usize>) {
        match std::mem::take(self) {
            Self::Rests => (None, None),
            Self::Looks { source } => {
                let told = read_answer::<Vec<(String, u64)>>(reply, "");
                let Ok(waiting) = told else {
                    return (None, None);
                };
                let empty = waiting.value.is_empty().then_some(source);
                let to = waiting.value.into_iter().map(|(to, _)| to).collect();
                (self.take(source, to), empty)
            }
            Self::Takes { source, to } => match read_answer::<Vec<HandOff>>(reply, "") {
                Ok(told) => (self.deliver(source, to, told.value.into(), 0), None),
                Err(_) => (None, None),
            },
            Self::Delivers {
                source,
                to,
                mut load,
                upto,
            } => match read_answer::<()>(reply, "") {
                Ok(_) => {
                    let upto = load.pop_front().map_or(upto, |done| done.number);
                    (self.deliver(source, to, load, upto), None)
                }
                Err(_) => (self.deliver(source, to, VecDeque::new(), upto), None),
            },
            Self::Settles { source, mut to } => {
                to.pop_front();
                (self.take(source, to), None)
            }
        }
    }
}

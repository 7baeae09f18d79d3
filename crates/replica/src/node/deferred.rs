//! Effects that wait for the state.

use super::*;
use crate::limits;

/// Effects in their order. Those that change the state are as many as the protocol's own log holds;
/// requests to read it are bounded here, because nothing else bounds them: more of them are dropped,
/// and their frontends try again.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    effects: VecDeque<Effect>,
    reads: usize,
    read_bytes: usize,
}

/// How many bytes an effect that only reads the state keeps in memory.
fn read_bytes(effect: &Effect) -> Option<usize> {
    match effect {
        Effect::Query { batch, reply, .. } | Effect::Replay { batch, reply, .. } => {
            Some(batch.len() + reply.header.len())
        }
        _ => None,
    }
}

impl Deferred {
    pub fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }

    /// Keeps an effect; false when it is dropped because it is one read too many.
    pub fn push(&mut self, effect: Effect, reads_max: usize) -> bool {
        if let Some(bytes) = read_bytes(&effect) {
            if self.reads >= reads_max || self.read_bytes > limits::DEFERRED_READ_BYTES {
                return false;
            }
            self.reads += 1;
            self.read_bytes += bytes;
        }
        self.effects.push_back(effect);
        true
    }

    pub fn pop(&mut self) -> Option<Effect> {
        let effect = self.effects.pop_front()?;
        if let Some(bytes) = read_bytes(&effect) {
            self.reads -= 1;
            self.read_bytes -= bytes;
        }
        Some(effect)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Effect> {
        self.effects.iter()
    }
}

impl Node {
    /// Keeps an effect that concerns the state for the next turn.
    pub(super) fn defer(&mut self, effect: Effect) {
        // A snapshot is of no use later; a protocol that follows asks again.
        if !(self.summing_up && matches!(effect, Effect::Checkpoint { .. })) {
            let reads_max = self.executor.queries_max();
            self.deferred.push(effect, reads_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplyRoute;

    fn read(bytes: usize) -> Effect {
        Effect::Query {
            batch: Bytes::from(alloc::vec![0; bytes]),
            at_least: Slot(0),
            stable: false,
            reply: ReplyRoute {
                to: FrontendId(1),
                header: Bytes::new(),
                after: None,
            },
        }
    }

    #[test]
    fn deferred_reads_are_bounded_in_number_and_bytes() {
        let mut deferred = Deferred::default();
        assert!(deferred.push(read(1), 2) && deferred.push(read(1), 2));
        assert!(!deferred.push(read(1), 2));
        let stable = Effect::Stable { slot: Slot(1) };
        assert!(deferred.push(stable.clone(), 2), "what is no read stays");
        while deferred.pop().is_some() {}
        let large = read(limits::DEFERRED_READ_BYTES + 1);
        assert!(deferred.push(large, 2), "one alone may be of any length");
        assert!(!deferred.push(read(1), 2));
        assert!(deferred.push(stable, 2));
        deferred.pop();
        assert!(deferred.push(read(1), 2), "there is room again");
    }
}

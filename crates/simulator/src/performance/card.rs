//! Network cards, and the memory behind them.
//!
//! ```text
//!   memory ── egress ──► way ──► ingress ── memory ──► replica
//!     └ what comes in and what goes out share it: `memory`
//!              └ [`Links::egress`]      └ what all senders together get in: `ingress`
//! ```
//!
//! Bytes pass all of them at once: each stage holds a frame back only until its own queue is done
//! with it, so that a frame on an idle way takes no longer than its slowest stage.
//!
//! [`Links::egress`]: quintet_replica::links::Links::egress

use quintet_replica::Lane;

/// The limits of every machine's NIC for incoming data, and of its memory for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cards {
    /// The limit of a NIC's input from all senders together, in bits per second; 0 for no limit.
    pub ingress: u64,
    /// The limit between NIC and memory, in both directions together, in bits per second; 0 for no
    /// limit.
    pub memory: u64,
    /// For that many bytes each one of the bulk lane stands, on its whole way: large messages that
    /// are not to take as much memory here as they would there. 0 is 1.
    pub stands_for: u64,
}

/// How far one machine's card is, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Card {
    ingress_free: u64,
    memory_free: u64,
}

impl Cards {
    /// Whether they limit anything.
    pub const fn is_plain(&self) -> bool {
        self.ingress == 0 && self.memory == 0
    }

    /// For how many bytes a frame of that many stands.
    pub const fn weight(&self, lane: Lane, bytes: usize) -> usize {
        match lane {
            Lane::Bulk if self.stands_for > 1 => bytes * self.stands_for as usize,
            _ => bytes,
        }
    }
}

impl Card {
    /// That many bytes are to leave: when the memory has given them out.
    pub fn leaves(&mut self, cards: Cards, now: u64, bytes: usize) -> u64 {
        if cards.memory == 0 {
            return now;
        }
        self.memory_free = self.memory_free.max(now) + transmission(bytes, cards.memory);
        self.memory_free
    }

    /// The last of that many bytes arrives: when they are in memory.
    pub fn arrives(&mut self, cards: Cards, now: u64, bytes: usize) -> u64 {
        let mut at = now;
        for (free, speed) in [
            (&mut self.ingress_free, cards.ingress),
            (&mut self.memory_free, cards.memory),
        ] {
            if speed > 0 {
                // They came while they were sent: an idle card has nothing left to do.
                *free = (*free + transmission(bytes, speed)).max(now);
                at = at.max(*free);
            }
        }
        at
    }
}

/// How long `bytes` take at `speed` bits per second.
fn transmission(bytes: usize, speed: u64) -> u64 {
    let bits = bytes as u128 * 8 * 1_000_000_000;
    u64::try_from(bits / u128::from(speed.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A byte takes a nanosecond.
    const SPEED: u64 = 8_000_000_000;

    #[test]
    fn card_that_is_idle_costs_nothing_and_a_busy_one_its_time() {
        let cards = Cards {
            ingress: SPEED,
            ..Cards::default()
        };
        let mut card = Card::default();
        assert_eq!(card.arrives(cards, 5_000, 1_000), 5_000);
        // Two senders at once: the second waits for the first.
        assert_eq!(card.arrives(cards, 5_000, 1_000), 6_000);
        assert_eq!(card.arrives(cards, 5_500, 1_000), 7_000);
        assert_eq!(card.arrives(cards, 9_000, 1_000), 9_000);
        assert_eq!(card.leaves(cards, 9_000, 1_000), 9_000, "no limit");
        let stands_for = 16;
        let cards = Cards {
            stands_for,
            ..cards
        };
        assert_eq!(cards.weight(Lane::Bulk, 10), 160);
        assert_eq!(cards.weight(Lane::Control, 10), 10);
    }

    #[test]
    fn incoming_and_outgoing_bytes_share_memory() {
        let cards = Cards {
            memory: SPEED,
            ..Cards::default()
        };
        let mut card = Card::default();
        assert_eq!(card.leaves(cards, 5_000, 1_000), 6_000);
        assert_eq!(card.arrives(cards, 5_000, 1_000), 7_000);
        assert_eq!(card.leaves(cards, 5_000, 1_000), 8_000);
    }
}

//! Which block of a large message goes from whom to whom in which step (§3.3, Fig. 8).
//!
//! ```text
//!   members, counted from the sender (0) ─┐
//!   how many blocks ──────────────────────┼──► hops: (step, from, to, block), ascending by step
//!   which schedule ───────────────────────┘
//!
//!   sequential  0 ═► 1, then 0 ═► 2, …        one whole message after the other
//!   tree        0 ═► 1, then 0 ═► 2 and 1 ═► 3, …   the replica that has it all passes it on
//!   chain       0 ─► 1 ─► 2 ─► …              each block moves on in the next step
//!   binomial    a hypercube; in each step all its edges of one direction carry a block each way
//! ```
//!
//! A pure function of three values that all members know, so everybody knows which block comes from
//! whom next, and no block carries a route. In a step a member sends at most one block and receives
//! at most one. Steps are no clock: a member sends what it has as soon as it may.

use alloc::{vec, vec::Vec};
use quintet_replica::wire;

/// How a large message spreads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Schedule {
    /// The sender gives the whole message to one member after the other.
    Sequential,
    /// A replica that has the whole message gives it to another that lacks it.
    Tree = 1,
    /// Each member passes each block on to the next one.
    Chain = 2,
    /// A binomial tree per block, laid over each other on a hypercube, so that all members send
    /// and receive all the time.
    Binomial = 3,
}

wire! { enum Schedule { 0 = Sequential, 1 = Tree, 2 = Chain, 3 = Binomial } }

/// One block on its way from one member to another. Members are counted from the message's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// In which step, from 0.
    pub step: usize,
    /// The sender; it has had the block before this step.
    pub from: usize,
    /// The receiver, for the first and only time.
    pub to: usize,
    /// Which block.
    pub block: usize,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sequential, Self::Tree, Self::Chain, Self::Binomial];

    /// Its name in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Tree => "tree",
            Self::Chain => "chain",
            Self::Binomial => "binomial",
        }
    }

    /// The one that needs the fewest steps; the sender itself when no other saves it any.
    #[must_use]
    pub const fn for_message(members: usize, blocks: usize) -> Self {
        if Self::Sequential.steps(members, blocks) <= Self::Binomial.steps(members, blocks) {
            Self::Sequential
        } else {
            Self::Binomial
        }
    }

    /// How many steps it takes until all members have all blocks.
    #[must_use]
    pub const fn steps(self, members: usize, blocks: usize) -> usize {
        if members < 2 || blocks == 0 {
            return 0;
        }
        let doublings = members.next_power_of_two().trailing_zeros() as usize;
        match self {
            Self::Sequential => (members - 1) * blocks,
            Self::Tree => doublings * blocks,
            Self::Chain => members + blocks - 2,
            Self::Binomial => doublings + blocks - 1,
        }
    }

    /// The whole schedule, step by step.
    #[must_use]
    pub fn hops(self, members: usize, blocks: usize) -> Vec<Hop> {
        if members < 2 {
            return Vec::new();
        }
        let mut hops = Vec::with_capacity((members - 1) * blocks);
        match self {
            Self::Sequential => {
                for to in 1..members {
                    let start = (to - 1) * blocks;
                    hops.extend(whole(start, 0, to, blocks));
                }
            }
            Self::Tree => {
                for to in 1..members {
                    let round = to.ilog2() as usize;
                    let from = to - (1 << round);
                    hops.extend(whole(round * blocks, from, to, blocks));
                }
            }
            Self::Chain => {
                for to in 1..members {
                    hops.extend(whole(to - 1, to - 1, to, blocks));
                }
            }
            Self::Binomial => return binomial(members, blocks),
        }
        hops.sort_by_key(|hop| (hop.step, hop.from));
        hops
    }
}

/// All blocks from one member to another, one a step.
fn whole(start: usize, from: usize, to: usize, blocks: usize) -> impl Iterator<Item = Hop> {
    (0..blocks).map(move |block| Hop {
        step: start + block,
        from,
        to,
        block,
    })
}

/// The occupant of one corner of the hypercube: a member, or two that act as one.
#[derive(Hash)]
struct Corner {
    first: usize,
    second: Option<usize>,
    /// The newest block that the corner has.
    newest: Option<usize>,
    /// The second of the two received the last block from outside.
    second_received: bool,
}

impl Corner {
    /// The one of the two that sends `out`: the one that received last, unless only the other has
    /// it. The other one receives.
    fn roles(&self, out: Option<usize>, held: &[Vec<bool>]) -> (usize, usize) {
        let Some(second) = self.second else {
            return (self.first, self.first);
        };
        let (last, other) = if self.second_received {
            (second, self.first)
        } else {
            (self.first, second)
        };
        match out {
            Some(block) if !held[last][block] => (other, last),
            _ => (last, other),
        }
    }
}

/// The corners of the largest hypercube that the members fill; those left over double corners, but
/// never the sender's. In each step the corners exchange blocks along one direction: the sender
/// gives the next block away, everybody else the newest it has. In a doubled corner one of the two
/// receives, and gives the other what that one lacks, while the other sends.
fn binomial(members: usize, blocks: usize) -> Vec<Hop> {
    let directions = members.ilog2() as usize;
    let size = 1 << directions;
    let mut corners: Vec<Corner> = (0..size)
        .map(|first| Corner {
            first,
            second: (first > 0 && size + first - 1 < members).then(|| size + first - 1),
            newest: None,
            second_received: true,
        })
        .collect();
    let mut held = vec![vec![false; blocks]; members];
    held[0].fill(true);
    let (mut hops, wanted) = (Vec::new(), (members - 1) * blocks);
    let mut step = 0;
    while hops.len() < wanted && step < Schedule::Binomial.steps(members, blocks) {
        let edge = 1 << (step % directions);
        let gives = |corner: usize| {
            let block = match corner {
                0 => Some(step.min(blocks - 1)),
                _ => corners[corner].newest,
            }?;
            let to = &corners[corner ^ edge];
            let has = |member: usize| held[member][block];
            let lacks = to.first != 0 && !has(to.first) && !to.second.is_some_and(has);
            lacks.then_some(block)
        };
        let given: Vec<Option<usize>> = (0..size).map(gives).collect();
        let roles: Vec<(usize, usize)> = corners
            .iter()
            .zip(&given)
            .map(|(corner, out)| corner.roles(*out, &held))
            .collect();
        let begun = hops.len();
        for (corner, (sends, receives)) in roles.iter().copied().enumerate() {
            let mut hop = |from: usize, to: usize, block: Option<usize>| {
                hops.extend(block.map(|block| Hop {
                    step,
                    from,
                    to,
                    block,
                }));
            };
            let (out, incoming) = (given[corner], given[corner ^ edge]);
            hop(roles[corner ^ edge].0, receives, incoming);
            if sends != receives {
                let lacking = |from: usize, to: usize| {
                    (0..blocks).find(|block| held[from][*block] && !held[to][*block])
                };
                hop(receives, sends, lacking(receives, sends));
                if out.is_none() && incoming.is_none() {
                    hop(sends, receives, lacking(sends, receives));
                }
            }
            if incoming.is_some() {
                let at = &mut corners[corner];
                at.newest = at.newest.max(incoming);
                at.second_received = Some(receives) == at.second;
            }
        }
        for hop in &hops[begun..] {
            held[hop.to][hop.block] = true;
        }
        step += 1;
    }
    hops
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a schedule. Gives in which step each member had everything.
    fn play(kind: Schedule, members: usize, blocks: usize) -> Vec<usize> {
        let hops = kind.hops(members, blocks);
        let what = alloc::format!("{kind:?}, {members} members, {blocks} blocks");
        assert!(hops.is_sorted_by_key(|hop| hop.step), "{what}");
        let mut held = vec![vec![None; blocks]; members];
        held[0].fill(Some(0));
        for (index, hop) in hops.iter().enumerate() {
            assert_ne!(hop.from, hop.to, "{what}");
            assert!(held[hop.to][hop.block].is_none(), "twice: {hop:?}, {what}");
            held[hop.to][hop.block] = Some(hop.step + 1);
            let has = held[hop.from][hop.block];
            assert!(
                has.is_some_and(|since| since <= hop.step),
                "{hop:?}, {what}"
            );
            let same = hops[..index].iter().filter(|other| other.step == hop.step);
            let busy = |other: &Hop| other.from == hop.from || other.to == hop.to;
            assert!(!same.clone().any(busy), "two at a time: {hop:?}, {what}");
        }
        let last = |blocks: &Vec<Option<usize>>| {
            let all = blocks.iter().copied().collect::<Option<Vec<_>>>();
            all.expect("everybody has everything").into_iter().max()
        };
        held.iter().filter_map(last).collect()
    }

    #[test]
    fn each_receiver_gets_each_block_once_in_announced_steps() {
        for kind in Schedule::ALL {
            for members in 2..=17 {
                for blocks in 1..=40 {
                    let done = play(kind, members, blocks);
                    let last = done.iter().max().copied();
                    let steps = kind.steps(members, blocks);
                    assert_eq!(last, Some(steps), "{kind:?} {members} {blocks}");
                }
            }
        }
    }

    #[test]
    fn binomial_pipeline_ends_within_one_step_everywhere() {
        for members in 2..=17_usize {
            for blocks in 1..=40 {
                let done = play(Schedule::Binomial, members, blocks);
                let receivers = &done[1..];
                let (first, last) = (receivers.iter().min(), receivers.iter().max());
                let (first, last) = (first.expect("one"), last.expect("one"));
                let doublings = members.ilog2() as usize;
                if members.is_power_of_two() && blocks >= doublings {
                    assert_eq!(*last, doublings + blocks - 1);
                    assert_eq!(first, last, "{members} members, {blocks} blocks");
                } else if blocks >= doublings {
                    assert_eq!(*last, doublings + blocks);
                    assert!(
                        last - first <= 1,
                        "{members} members, {blocks} blocks: {done:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn large_groups_and_long_messages_have_a_schedule_too() {
        for (members, blocks) in [(64, 9), (100, 17), (128, 30), (3, 1024)] {
            let done = play(Schedule::Binomial, members, blocks);
            let steps = Schedule::Binomial.steps(members, blocks);
            assert_eq!(done.into_iter().max(), Some(steps));
        }
    }

    #[test]
    fn with_many_blocks_every_member_of_pipeline_sends_its_share() {
        for members in [3, 4, 5, 8, 11] {
            let blocks = 64;
            let hops = Schedule::Binomial.hops(members, blocks);
            for member in 1..members {
                let sent = hops.iter().filter(|hop| hop.from == member).count();
                assert!(sent >= blocks / 4, "{member} of {members} sends {sent}");
            }
            let sent = hops.iter().filter(|hop| hop.from == 0).count();
            assert!(sent <= blocks + 8, "the sender of {members} sends {sent}");
        }
    }

    #[test]
    fn relays_are_used_where_they_save_a_step() {
        assert_eq!(Schedule::for_message(2, 40), Schedule::Sequential);
        assert_eq!(Schedule::for_message(3, 1), Schedule::Sequential);
        assert_eq!(Schedule::for_message(3, 2), Schedule::Binomial);
        assert_eq!(Schedule::for_message(16, 1), Schedule::Binomial);
        assert_eq!(Schedule::for_message(1, 9), Schedule::Sequential);
    }
}

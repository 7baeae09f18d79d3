//! All of one order of messages: where they come from, the log that they become, and the requests
//! and reads for it.

use super::{
    catch_up::{CatchUp, Lately},
    incoming::{Incoming, Item},
    log::Log,
    message::{Entry, Message},
    order::Order,
    outgoing::Outgoing,
    read_queue::ReadQueue,
    relay::Relay,
    sst::Block,
    transfers::Transfers,
    waits::Waits,
};
use alloc::vec::Vec;
use quintet_replica::{Context, Durability, GroupId, Protocol, ReplicaId, ReplicaSet, Slot, Time};

/// The members and senders of an order in a view, ascending.
#[derive(Default, Hash)]
struct Ranks {
    members: Vec<ReplicaId>,
    senders: Vec<ReplicaId>,
}

/// See the module.
#[derive(Hash)]
pub(super) struct Stream {
    /// The group whose order it is, and where the table has its columns.
    pub group: GroupId,
    pub block: Block,
    pub durability: Durability,
    ranks: Ranks,
    /// The view in which this replica takes part; 0 while it does not.
    pub begun: u64,
    /// That this replica holds a complete log of the shard is on disk.
    pub holds: bool,
    /// The part of a shard's log that this replica fetches, and how far others may lag that do.
    pub catch_up: CatchUp,
    pub log: Log,
    pub order: Order,
    pub incoming: Incoming,
    pub outgoing: Outgoing,
    pub rdmc: Transfers,
    pub relay: Relay,
    pub reads: ReadQueue,
    pub waits: Waits,
}

impl Stream {
    pub fn new(group: GroupId, block: Block, durability: Durability, members: usize) -> Self {
        Self {
            group,
            block,
            durability,
            ranks: Ranks::default(),
            begun: 0,
            holds: false,
            catch_up: CatchUp::default(),
            log: Log::default(),
            order: Order::default(),
            incoming: Incoming::new(members),
            outgoing: Outgoing::default(),
            rdmc: Transfers::default(),
            relay: Relay::default(),
            reads: ReadQueue::default(),
            waits: Waits::new(members),
        }
    }

    /// A view begins with these members and senders: nothing is sent or received in it. Gives the
    /// messages of it that came before.
    pub fn begin(
        &mut self,
        view: u64,
        (members, senders): (ReplicaSet, ReplicaSet),
        own: ReplicaId,
        now: Time,
    ) -> Vec<(ReplicaId, Message)> {
        self.begun = view;
        self.ranks.members = members.iter().collect();
        self.ranks.senders = senders.iter().collect();
        self.order = Order::default();
        self.outgoing.begin();
        self.rdmc = Transfers::new(self.incoming.senders());
        self.waits.begin(now);
        self.incoming.begin(view, members.without(own))
    }

    /// The view has ended.
    pub fn end(&mut self) {
        self.begun = 0;
        self.catch_up.lately = Lately::default();
        self.rdmc = Transfers::default();
    }

    /// Whether nothing is here of its log, and nothing can still come.
    pub fn is_empty(&self) -> bool {
        self.log.end() == Slot(0) && !self.catch_up.has_asked
    }

    /// The members, as they are ranked.
    pub fn members(&self) -> &[ReplicaId] {
        &self.ranks.members
    }

    /// Its members, as a set.
    pub fn set(&self) -> ReplicaSet {
        self.ranks.members.iter().copied().collect()
    }

    /// The senders, as they are ranked.
    pub fn senders(&self) -> &[ReplicaId] {
        &self.ranks.senders
    }

    pub fn sends(&self, id: ReplicaId) -> bool {
        self.ranks.senders.contains(&id)
    }

    /// The place in the round-robin order, counted from one, of what a member sends as its
    /// message number `index`.
    pub fn number_of(&self, sender: ReplicaId, index: u64) -> u64 {
        let rank = self.ranks.senders.iter().position(|id| *id == sender);
        index * self.ranks.senders.len() as u64 + rank.unwrap_or(0) as u64 + 1
    }

    /// The last slot after that many messages of the order.
    pub fn last_slot(&self, ordered: u64) -> Slot {
        self.order.last_slot(ordered, self.log.sure())
    }

    /// How many nulls this member owes the others, whose messages wait behind its places: rank i is
    /// behind rank j when it has sent no more than j (i < j), or less than one fewer (i > j).
    pub fn nulls_owed(&self, own: ReplicaId) -> u64 {
        let Some(mine) = self.ranks.senders.iter().position(|id| *id == own) else {
            return 0;
        };
        let others = self.ranks.senders.iter().enumerate();
        let others = others.filter(|(rank, _)| *rank != mine);
        let owed = others.map(|(rank, sender)| {
            let theirs = self.incoming.from(*sender).received();
            theirs.saturating_sub(u64::from(mine > rank))
        });
        owed.max().unwrap_or(0).saturating_sub(self.outgoing.sent())
    }

    /// Gives everything that is next in the round-robin order its slots, and writes it (the first
    /// step of durable delivery: the pending version, which is not visible).
    pub fn put_in_order<P: Protocol<Record = Entry>>(&mut self, ctx: &mut Context<'_, P>) {
        let view = self.begun;
        while !self.ranks.senders.is_empty() {
            let rank = self.order.next_rank(self.ranks.senders.len());
            let sender = self.incoming.sender(self.ranks.senders[rank]);
            let Some(item) = sender.pop() else {
                return;
            };
            let mut last = None;
            if let Item::Body(body) = item {
                let time = body.time;
                for batch in body.batches {
                    last = Some(self.log.append(Entry { view, time, batch }, ctx));
                }
            }
            let ordered = self.order.push(self.log.end());
            if !self.log.wrote(last, view, ordered) {
                self.order.persist_all();
            }
        }
    }

    /// Notes how far the members of `live` let the watched message pass by now; see [`Waits::watch`].
    pub fn watch(
        &mut self,
        live: ReplicaSet,
        persisted: impl Fn(ReplicaId) -> u64,
        now: Time,
    ) -> bool {
        let received = |id| self.incoming.from(id).received();
        let (live, ordered) = ((live, &self.ranks.senders[..]), self.order.ordered());
        (self.waits).watch(live, ordered, received, persisted, now)
    }

    /// Asks for the execution of what is sure.
    pub fn execute<P: Protocol<ReplyHeader = ()>>(&mut self, ctx: &mut Context<'_, P>) {
        while let Some((slot, time, batch)) = self.log.execute_next() {
            let reply = self.relay.done(&batch).map(|to| (to, (), None));
            ctx.execute(slot, time, batch, reply);
        }
    }
}

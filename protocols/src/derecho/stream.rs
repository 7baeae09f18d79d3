//! All of one order of messages: where they come from, the log that they become, and the requests
//! and reads for it.

use super::{
    incoming::{Incoming, Item},
    log::Log,
    message::{Entry, Message, View},
    order::Order,
    outgoing::Outgoing,
    read_queue::ReadQueue,
    relay::Relay,
    transfers::Transfers,
    waits::Waits,
};
use alloc::vec::Vec;
use quintet_replica::{Context, Protocol, ReplicaId, ReplicaSet, Slot, Time};

/// See the module.
#[derive(Hash)]
pub(super) struct Stream {
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
    pub fn new(members: usize) -> Self {
        Self {
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

    /// A view begins: nothing is sent or received in it. Gives the messages of it that came before.
    pub fn begin(&mut self, view: u64, peers: ReplicaSet, now: Time) -> Vec<(ReplicaId, Message)> {
        self.order = Order::default();
        self.outgoing.begin();
        self.rdmc = Transfers::new(self.incoming.senders());
        self.waits.begin(now);
        self.incoming.begin(view, peers)
    }

    /// The last slot after that many messages of the order.
    pub fn last_slot(&self, ordered: u64) -> Slot {
        self.order.last_slot(ordered, self.log.sure())
    }

    /// How many nulls this member owes the others, whose messages wait behind its places: rank i is
    /// behind rank j when it has sent no more than j (i < j), or less than one fewer (i > j).
    pub fn nulls_owed(&self, view: &View, own: ReplicaId) -> u64 {
        let Some(mine) = view.rank(own) else {
            return 0;
        };
        let others = view.members.iter().enumerate();
        let others = others.filter(|(rank, _)| *rank != mine);
        let owed = others.map(|(rank, member)| {
            let theirs = self.incoming.from(member.id).received();
            theirs.saturating_sub(u64::from(mine > rank))
        });
        owed.max().unwrap_or(0).saturating_sub(self.outgoing.sent())
    }

    /// Gives everything that is next in the round-robin order its slots, and writes it (the first
    /// step of durable delivery: the pending version, which nobody sees).
    pub fn put_in_order<P: Protocol<Record = Entry>>(
        &mut self,
        view: &View,
        ctx: &mut Context<'_, P>,
    ) {
        loop {
            let rank = self.order.next_rank(view.members.len());
            let sender = self.incoming.sender(view.members[rank].id);
            let Some(item) = sender.pop() else {
                return;
            };
            let mut last = None;
            if let Item::Body(body) = item {
                let (view, time) = (view.number, body.time);
                for batch in body.batches {
                    last = Some(self.log.append(Entry { view, time, batch }, ctx));
                }
            }
            let ordered = self.order.push(self.log.end());
            if !self.log.wrote(last, view.number, ordered) {
                self.order.persist_all();
            }
        }
    }

    /// Asks for the execution of what is sure.
    pub fn execute<P: Protocol<ReplyHeader = ()>>(&mut self, ctx: &mut Context<'_, P>) {
        while let Some((slot, time, batch)) = self.log.execute_next() {
            let reply = self.relay.done(&batch).map(|to| (to, (), None));
            ctx.execute(slot, time, batch, reply);
        }
    }
}

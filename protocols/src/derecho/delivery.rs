//! From a request to its delivery: SMC (§3.3, A.2), the round-robin order, stability (A.3, B.2).
//!
//! ```text
//!   requests ─► one message a turn ─► slot of the own ring ── put ──► peers
//!   their rings ─► streams ─► order: index 0 of rank 0, 1, 2 …, index 1 of rank 0, …
//!     ─► log, journal ─► PERSISTED ── put ──► all; min over all rows ─► delivered
//! ```
//!
//! A replica that has nothing to send fills its places with nulls, as far as others are ahead: rank
//! i is behind rank j when it has sent no more than j (i < j), or less than one fewer (i > j). A
//! run of nulls takes one slot of the ring, and nulls are never written to disk.

use super::{
    Derecho,
    config::Delivery,
    incoming::Item,
    message::{Body, Message},
    outgoing::{KIND_BULK, KIND_NULLS, KIND_SHIFT, KIND_SMALL, Path},
    plant::Plant,
    sst::{self, PERSISTED},
};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, Context, Durability, Frame, ReplicaId, ReplicaSet, Wire, parts::RequestKey,
};

/// The length or count in what a slot of the ring holds.
const LENGTH: u64 = (1 << KIND_SHIFT) - 1;

/// The most nulls in one slot of the ring: what a receiver does because of one is bounded.
const NULLS_MAX: u64 = 4096;

impl Derecho {
    pub(super) fn on_write(&mut self, key: RequestKey, batch: Bytes, ctx: &mut Context<'_, Self>) {
        let (relay, bytes_max) = (&mut self.stream.relay, self.config.queue_bytes);
        if relay.kept.take(key, &batch, bytes_max, ctx) {
            relay.queue.push(key, batch);
            self.housekeeping.arm(ctx);
        }
    }

    /// Requests that piled up go out as few messages, and nulls where others wait for this sender.
    pub(super) fn send_messages(&mut self, ctx: &mut Context<'_, Self>) {
        while !self.membership.wedging() {
            if self.stream.outgoing.len() >= self.config.window {
                return ctx.mark("window full");
            }
            let Some(next) = self.stream.relay.queue.peek().map(Bytes::len) else {
                let behind = self.nulls_owed();
                if behind == 0 {
                    return;
                }
                ctx.mark("nulls sent");
                self.send(Item::Nulls(behind.min(NULLS_MAX)), ctx);
                continue;
            };
            let small = self.sst.layout.slot_bytes();
            let peers = self.membership.peers();
            let room = peers.iter().map(|peer| ctx.room(peer)).min();
            let room = room.unwrap_or(usize::MAX) / 2;
            let window = self.config.bulk_window_bytes;
            let full = |(_, large): (usize, usize)| next > room || large + next > window;
            let outgoing = &self.stream.outgoing;
            if next > small && !outgoing.is_empty() && full(outgoing.bytes()) {
                return ctx.mark("a large message waits for room");
            }
            let bytes_max = self.config.batch_bytes_max.min(room).max(small);
            let (mut batches, mut bytes) = (Vec::new(), 0);
            while let Some(batch) = self.stream.relay.queue.peek() {
                if bytes > 0 && bytes + batch.len() > bytes_max {
                    break;
                }
                bytes += batch.len() + 4;
                batches.extend(self.stream.relay.queue.pop());
            }
            let time = self.stream.log.next_time(ctx.clock().now);
            self.send(Item::Body(Body { time, batches }), ctx);
            if self.planted(Plant::NullInside) {
                self.send_null_before(ctx);
            }
        }
    }

    /// The planted bug: peers see a null where this member has its last message, and that behind
    /// it.
    fn send_null_before(&mut self, ctx: &mut Context<'_, Self>) {
        if self.stream.outgoing.len() >= self.config.window || self.nulls_owed() == 0 {
            return;
        }
        self.send(Item::Nulls(1), ctx);
        self.stream.outgoing.swap_last();
    }

    /// Raw delivery (§3.3, §3.6): what was received is executed at once, in its sender's order and
    /// nobody else's; no slot, no log, no trim. Gives back what is to wait for its place instead.
    fn deliver_raw(&mut self, item: Item, ctx: &mut Context<'_, Self>) -> Option<Item> {
        if self.config.delivery == Delivery::Ordered {
            return Some(item);
        }
        if let Item::Body(body) = item {
            for batch in body.batches {
                let reply = self.stream.relay.done(&batch).map(|to| (to, ()));
                ctx.deliver_unordered(body.time, batch, reply);
            }
        }
        None
    }

    fn nulls_owed(&self) -> u64 {
        match self.config.delivery {
            Delivery::Raw => 0,
            Delivery::Ordered => (self.stream).nulls_owed(self.membership.view(), self.me.id()),
        }
    }

    /// Multicasts one message, or a run of nulls: into the own ring, from where the end of the turn
    /// puts it into everybody's copy.
    fn send(&mut self, item: Item, ctx: &mut Context<'_, Self>) {
        let (count, body) = match &item {
            Item::Nulls(count) => (*count, Frame::default()),
            Item::Body(body) => (1, body.encode_to_frame()),
        };
        let path = self.path(&body);
        let first = self.stream.outgoing.sent();
        match path {
            Path::Slot => {}
            Path::Whole => ctx.mark("multicast whole"),
            Path::Blocks => {
                ctx.mark("multicast by rdmc");
                self.start_blocks(first, &body);
            }
        }
        self.stream.outgoing.push(count, body, path);
        let own = self.me.id();
        if matches!(item, Item::Body(_)) {
            let number = self.membership.view().number_of(own, first);
            self.stream.order.know(number);
        }
        self.stream.incoming.sender(own).take_own(count);
        if let Some(item) = self.deliver_raw(item, ctx) {
            self.stream.incoming.sender(own).push(item);
        }
        let column = self.sst.layout.received(own);
        self.sst.set(column, first + count);
        self.order(ctx);
    }

    /// On which way a message goes to the others.
    fn path(&self, body: &Frame) -> Path {
        if body.len() <= self.sst.layout.slot_bytes() {
            Path::Slot
        } else if body.len() > self.config.rdmc_bytes_min && !self.membership.peers().is_empty() {
            Path::Blocks
        } else {
            Path::Whole
        }
    }

    pub(super) fn on_bulk(&mut self, from: ReplicaId, index: u64, body: Bytes) {
        let sender = self.stream.incoming.sender(from);
        if sender.may_take_bulk(index, self.config.window) {
            sender.take_bulk(index, body);
        }
        self.stream.incoming.came(from);
        self.sst.touch(sst::ON_RING);
    }

    /// Takes a message of a view that is not at work here yet to wait until it is.
    pub(super) fn wait_for_view(&mut self, from: ReplicaId, view: u64, message: Message) {
        let mine = self.membership.number();
        let most = (self.config.window + self.config.rdmc_credits) * self.me.members();
        if view == mine + 1 || view == mine && !self.membership.is_active() {
            (self.stream.incoming).wait_for_view(from, (view, message), mine, most);
        }
    }

    /// Takes what has come into the rings, and puts it into the order.
    pub(super) fn receive(&mut self, ctx: &mut Context<'_, Self>) {
        let fresh = self.stream.incoming.take_fresh();
        let senders = ReplicaSet(self.membership.live_peers().0 & fresh.0);
        for sender in senders.iter() {
            if !self.sst.valid(sender) {
                continue;
            }
            let mut waited_for = false;
            while let Some((item, count)) = self.next_from(sender, ctx) {
                let from = self.stream.incoming.sender(sender);
                if matches!(item, Item::Body(_)) {
                    waited_for = true;
                    let number = (self.membership.view()).number_of(sender, from.received());
                    self.stream.order.know(number);
                }
                from.take_slot(count, matches!(item, Item::Nulls(_)));
                if let Some(item) = self.deliver_raw(item, ctx) {
                    self.stream.incoming.sender(sender).push(item);
                }
            }
            let column = self.sst.layout.received(sender);
            let from = self.stream.incoming.sender(sender);
            let received = from.received();
            if from.must_acknowledge(waited_for, self.config.window) {
                self.sst.set(column, received);
            } else {
                self.sst.set_quietly(column, received);
            }
        }
        self.order(ctx);
    }

    fn next_from(&mut self, sender: ReplicaId, ctx: &mut Context<'_, Self>) -> Option<(Item, u64)> {
        let from = self.stream.incoming.sender(sender);
        let at = self.sst.layout.slot(from.next_slot());
        if self.sst.get(sender, at) != from.next_slot() + 1 {
            return None;
        }
        let meta = self.sst.get(sender, at + 1);
        let length = meta & LENGTH;
        let body = match meta >> KIND_SHIFT {
            KIND_NULLS if (1..=NULLS_MAX).contains(&length) => {
                return Some((Item::Nulls(length), length));
            }
            KIND_BULK => from.next_bulk()?,
            KIND_SMALL if length as usize <= self.sst.layout.slot_bytes() => {
                let words = (length as usize).div_ceil(8);
                let words = self.sst.words(sender, at + 2, words).iter();
                let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
                bytes.truncate(length as usize);
                Bytes::from(bytes)
            }
            _ => Bytes::new(),
        };
        match Body::decode_all(body) {
            Ok(body) => Some((Item::Body(body), 1)),
            Err(_) => {
                ctx.mark("ignored: a message that makes no sense");
                Some((Item::Nulls(1), 1))
            }
        }
    }

    /// Puts what has come into the order.
    fn order(&mut self, ctx: &mut Context<'_, Self>) {
        self.stream.put_in_order(self.membership.view(), ctx);
        // In memory, when no promise is in progress, what is held counts. Said in this turn, and
        // not when something else happens.
        if self.me.durability() == Durability::Memory && self.membership.is_durable()
            || self.planted(Plant::PersistedEarly)
        {
            self.stream.order.persist_all();
        }
        self.announce_persisted();
    }

    /// Says how far this member holds the order: at once when a message is among what is new, and
    /// with the next put when only nulls are, which nobody waits for.
    fn announce_persisted(&mut self) {
        let (before, persisted) = (self.sst.own(PERSISTED), self.stream.order.persisted());
        if self.stream.last_slot(before) < self.stream.last_slot(persisted) {
            self.sst.set(PERSISTED, persisted);
        } else {
            self.sst.set_quietly(PERSISTED, persisted);
        }
    }

    /// The messages that all members have persisted (all of them, suspected ones too: without them
    /// the view ends by a trim).
    fn stable(&self) -> u64 {
        let (all, of) = (self.membership.set(), |id| self.sst.read(id, PERSISTED));
        if self.planted(Plant::DeliverBeforeAll) {
            let mut counts: Vec<u64> = all.iter().map(of).collect();
            counts.sort_unstable();
            return counts[(counts.len() - 1) / 2].min(self.stream.order.ordered());
        }
        sst::min(all, of)
    }

    pub(super) fn may_deliver(&self) -> bool {
        let order = &self.stream.order;
        self.stable() > order.delivered() || self.sst.own(PERSISTED) < order.persisted()
    }

    pub(super) fn deliver(&mut self, ctx: &mut Context<'_, Self>) {
        // A frozen row: what was announced as final stays.
        if self.sst.own(sst::WEDGED) == 0 {
            self.announce_persisted();
        }
        let stable = self.stable();
        if let Some(slot) = self.stream.order.deliver(stable) {
            self.stream.log.deliver(slot);
        }
        self.stream.execute(ctx);
    }

    /// Slots of the ring that all members have taken may be written again.
    pub(super) fn drop_acknowledged(&mut self) {
        let column = self.sst.layout.received(self.me.id());
        let peers = self.membership.peers();
        let taken = match peers.is_empty() {
            true => self.stream.outgoing.sent(),
            false => sst::min(peers, |id| self.sst.read(id, column)),
        };
        self.stream.outgoing.taken_by_all(taken);
    }
}

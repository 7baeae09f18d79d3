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
    shards::{At, Bug, one_of},
    sst,
    stream::Stream,
};
use alloc::vec::Vec;
use quintet_replica::{
    Bytes, Context, Durability, Frame, ReplicaId, ReplicaSet, Wire, parts::RequestKey,
};

/// The columns to look at when something of a ring came by a message.
const fn ring_of(at: At) -> sst::Columns {
    match at {
        None => sst::ON_RING,
        Some(_) => sst::ON_SHARD,
    }
}

/// The length or count in what a slot of the ring holds.
const LENGTH: u64 = (1 << KIND_SHIFT) - 1;

/// The most nulls in one slot of the ring: what a receiver does because of one is bounded.
const NULLS_MAX: u64 = 4096;

impl Derecho {
    pub(super) fn on_write(
        &mut self,
        at: At,
        key: RequestKey,
        batch: Bytes,
        ctx: &mut Context<'_, Self>,
    ) {
        let bytes_max = self.queue_bytes_max(at, |stream| stream.relay.kept.bytes());
        let relay = &mut self.of_mut(at).relay;
        if relay.kept.take(key, &batch, bytes_max, ctx) {
            relay.queue.push(key, batch);
            self.arm_housekeeping(ctx);
        }
    }

    /// The most bytes of requests or reads that one order keeps: those of others count, too, beyond a
    /// share that each may always have.
    pub(super) fn queue_bytes_max(&self, at: At, kept: impl Fn(&Stream) -> usize) -> usize {
        let all: usize = self.streams().map(&kept).sum();
        let (others, most) = (all - kept(self.of(at)), self.config.queue_bytes);
        let share = most / (1 + self.shards.len());
        most.saturating_sub(others).max(share)
    }

    /// Requests that piled up go out as few messages, and nulls where others wait for this sender.
    pub(super) fn send_messages(&mut self, at: At, ctx: &mut Context<'_, Self>) {
        if !self.of(at).sends(self.me.id()) {
            return;
        }
        let unput = |stream: &Stream| stream.outgoing.unput_bytes();
        let pending = self.streams().map(unput).sum::<usize>() - unput(self.of(at));
        while !self.membership.wedging() {
            if self.of(at).outgoing.len() >= self.config.window {
                return ctx.mark("window full");
            }
            let Some(next) = self.of(at).relay.queue.peek().map(Bytes::len) else {
                let behind = self.nulls_owed(at);
                if behind == 0 {
                    return;
                }
                ctx.mark("nulls sent");
                self.send(at, Item::Nulls(behind.min(NULLS_MAX)), ctx);
                continue;
            };
            let small = self.sst.layout.slot_bytes();
            let peers = self.peers(at);
            let room = peers.iter().map(|peer| ctx.room(peer)).min();
            // Messages of other orders of this turn go first.
            let room = room.unwrap_or(usize::MAX).saturating_sub(pending) / 2;
            let window = self.config.bulk_window_bytes;
            let full = |(_, large): (usize, usize)| next > room || large + next > window;
            let outgoing = &self.of(at).outgoing;
            let alone = outgoing.is_empty() && pending == 0;
            if next > small && !alone && full(outgoing.bytes()) {
                return ctx.mark("a large message waits for room");
            }
            let bytes_max = self.config.batch_bytes_max.min(room).max(small);
            let (mut batches, mut bytes) = (Vec::new(), 0);
            while let Some(batch) = self.of(at).relay.queue.peek() {
                if bytes > 0 && bytes + batch.len() > bytes_max {
                    break;
                }
                bytes += batch.len() + 4;
                batches.extend(self.of_mut(at).relay.queue.pop());
            }
            let time = self.of_mut(at).log.next_time(ctx.clock().now);
            self.send(at, Item::Body(Body { time, batches }), ctx);
            if self.injected(Bug::NullInside) {
                self.send_null_before(at, ctx);
            }
        }
    }

    /// The injected bug: peers see a null where this member has its last message, and that behind
    /// it.
    fn send_null_before(&mut self, at: At, ctx: &mut Context<'_, Self>) {
        if self.of(at).outgoing.len() >= self.config.window || self.nulls_owed(at) == 0 {
            return;
        }
        self.send(at, Item::Nulls(1), ctx);
        self.of_mut(at).outgoing.swap_last();
    }

    /// Raw delivery (§3.3, §3.6): a received message is executed at once, in its sender's order and
    /// no other; no slot, no log, no trim. Gives back what is to wait for its place instead.
    fn deliver_raw(&mut self, at: At, item: Item, ctx: &mut Context<'_, Self>) -> Option<Item> {
        if self.config.delivery == Delivery::Ordered || at.is_some() {
            return Some(item);
        }
        if let Item::Body(body) = item {
            for batch in body.batches {
                let reply = self.of_mut(at).relay.done(&batch).map(|to| (to, ()));
                ctx.deliver_unordered(body.time, batch, reply);
            }
        }
        None
    }

    fn nulls_owed(&self, at: At) -> u64 {
        match self.config.delivery {
            Delivery::Raw if at.is_none() => 0,
            _ => self.of(at).nulls_owed(self.me.id()),
        }
    }

    /// Multicasts one message, or a run of nulls: into the own ring, from where the end of the turn
    /// puts it into everybody's copy.
    fn send(&mut self, at: At, item: Item, ctx: &mut Context<'_, Self>) {
        let (count, body) = match &item {
            Item::Nulls(count) => (*count, Frame::default()),
            Item::Body(body) => (1, body.encode_to_frame()),
        };
        let path = self.path(at, &body);
        let first = self.of(at).outgoing.sent();
        match path {
            Path::Slot => {}
            Path::Whole => ctx.mark("multicast whole"),
            Path::Blocks => {
                ctx.mark("multicast by rdmc");
                self.start_blocks(at, first, &body);
            }
        }
        self.of_mut(at).outgoing.push(count, body, path);
        let own = self.me.id();
        if matches!(item, Item::Body(_)) {
            let number = self.of(at).number_of(own, first);
            self.of_mut(at).order.know(number);
        }
        self.of_mut(at).incoming.sender(own).take_own(count);
        if let Some(item) = self.deliver_raw(at, item, ctx) {
            self.of_mut(at).incoming.sender(own).push(item);
        }
        let column = self.sst.layout.received(self.of(at).block, own);
        self.sst.set(column, first + count);
        self.order(at, ctx);
    }

    /// On which way a message goes to the others.
    fn path(&self, at: At, body: &Frame) -> Path {
        if body.len() <= self.sst.layout.slot_bytes() {
            Path::Slot
        } else if body.len() > self.config.rdmc_bytes_min && !self.peers(at).is_empty() {
            Path::Blocks
        } else {
            Path::Whole
        }
    }

    pub(super) fn on_bulk(&mut self, at: At, from: ReplicaId, index: u64, body: Bytes) {
        let window = self.config.window;
        let incoming = &mut self.of_mut(at).incoming;
        let sender = incoming.sender(from);
        if sender.may_take_bulk(index, window) {
            sender.take_bulk(index, body);
        }
        incoming.came(from);
        self.sst.touch(ring_of(at));
    }

    /// Takes a message of a view that is not at work here yet to wait until it is.
    pub(super) fn wait_for_view(&mut self, at: At, from: ReplicaId, view: u64, message: Message) {
        let mine = self.membership.number();
        let most = (self.config.window + self.config.rdmc_credits) * self.me.members();
        if view == mine + 1 || view == mine && !self.takes_part(at) {
            (self.of_mut(at).incoming).wait_for_view(from, (view, message), mine, most);
        }
    }

    /// Takes what has come into the rings, and puts it into the order.
    pub(super) fn receive(&mut self, at: At, ctx: &mut Context<'_, Self>) {
        let fresh = self.of_mut(at).incoming.take_fresh();
        let block = self.of(at).block;
        let senders = ReplicaSet(self.live_peers(at).0 & fresh.0);
        for sender in senders.iter() {
            if !self.sst.valid(sender) {
                continue;
            }
            let mut waited_for = false;
            while let Some((item, count)) = self.next_from(at, sender, ctx) {
                let stream = self.of_mut(at);
                if matches!(item, Item::Body(_)) {
                    waited_for = true;
                    let received = stream.incoming.from(sender).received();
                    stream.order.know(stream.number_of(sender, received));
                }
                let from = stream.incoming.sender(sender);
                from.take_slot(count, matches!(item, Item::Nulls(_)));
                if let Some(item) = self.deliver_raw(at, item, ctx) {
                    self.of_mut(at).incoming.sender(sender).push(item);
                }
            }
            let column = self.sst.layout.received(block, sender);
            let window = self.config.window;
            let from = self.of_mut(at).incoming.sender(sender);
            let received = from.received();
            if from.must_acknowledge(waited_for, window) {
                self.sst.set(column, received);
            } else {
                self.sst.set_quietly(column, received);
            }
        }
        self.order(at, ctx);
    }

    fn next_from(
        &mut self,
        at: At,
        sender: ReplicaId,
        ctx: &mut Context<'_, Self>,
    ) -> Option<(Item, u64)> {
        let Self {
            stream,
            shards,
            sst,
            ..
        } = self;
        let stream = one_of(stream, shards, at);
        let block = stream.block;
        let from = stream.incoming.sender(sender);
        let place = sst.layout.slot(block, from.next_slot());
        if sst.get(sender, place) != from.next_slot() + 1 {
            return None;
        }
        let meta = sst.get(sender, place + 1);
        let length = meta & LENGTH;
        let body = match meta >> KIND_SHIFT {
            KIND_NULLS if (1..=NULLS_MAX).contains(&length) => {
                return Some((Item::Nulls(length), length));
            }
            KIND_BULK => from.next_bulk()?,
            KIND_SMALL if length as usize <= sst.layout.slot_bytes() => {
                let words = (length as usize).div_ceil(8);
                let words = sst.words(sender, place + 2, words).iter();
                let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
                bytes.truncate(length as usize);
                Bytes::from(bytes)
            }
            _ => Bytes::new(),
        };
        match Body::decode_all(body) {
            Ok(body) => Some((Item::Body(body), 1)),
            Err(_) => {
                ctx.mark("ignored: an invalid message");
                Some((Item::Nulls(1), 1))
            }
        }
    }

    /// Puts what has come into the order.
    fn order(&mut self, at: At, ctx: &mut Context<'_, Self>) {
        let group = self.of(at).group;
        ctx.in_group(group, |ctx| self.of_mut(at).put_in_order(ctx));
        // In memory, when no promise is in progress, what is held counts. Said in this turn, and
        // not when something else happens.
        let in_memory = self.of(at).durability == Durability::Memory;
        if in_memory && self.membership.is_durable() || self.injected(Bug::PersistedEarly) {
            self.of_mut(at).order.persist_all();
        }
        self.announce_persisted(at);
    }

    /// Reports how far this member holds the order: at once when a message is among the new
    /// entries, and with the next put when only nulls are, for which no member waits.
    fn announce_persisted(&mut self, at: At) {
        let stream = self.of(at);
        let (block, column) = (stream.block, self.sst.layout.persisted(stream.block));
        let (before, persisted) = (self.sst.own(column), stream.order.persisted());
        let last = stream.last_slot(persisted);
        if stream.last_slot(before) < last {
            self.sst.set(column, persisted);
        } else {
            self.sst.set_quietly(column, persisted);
        }
        if let Some(block) = block {
            let end = self.sst.layout.end(block);
            let last = last.0.max(self.sst.own(end));
            self.sst.set_quietly(end, last);
        }
    }

    /// The messages that all members have persisted (all of them, suspected ones too: without them
    /// the view ends by a trim).
    fn stable(&self, at: At) -> u64 {
        let (all, column) = (
            self.of(at).set(),
            self.sst.layout.persisted(self.of(at).block),
        );
        let of = |id| self.sst.read(id, column);
        if self.injected(Bug::DeliverBeforeAll)
            || self.injected(Bug::DeliveredByShardMajority) && at.is_some()
        {
            let mut counts: Vec<u64> = all.iter().map(of).collect();
            counts.sort_unstable();
            return counts[(counts.len() - 1) / 2].min(self.of(at).order.ordered());
        }
        sst::min(all, of)
    }

    pub(super) fn may_deliver(&self, at: At) -> bool {
        let (order, column) = (
            &self.of(at).order,
            self.sst.layout.persisted(self.of(at).block),
        );
        self.stable(at) > order.delivered() || self.sst.own(column) < order.persisted()
    }

    pub(super) fn deliver(&mut self, at: At, ctx: &mut Context<'_, Self>) {
        // A frozen row: what was announced as final stays.
        if self.sst.own(sst::WEDGED) == 0 {
            self.announce_persisted(at);
        }
        let stable = self.stable(at);
        let stream = self.of_mut(at);
        if let Some(slot) = stream.order.deliver(stable) {
            stream.log.deliver(slot);
        }
        ctx.in_group(stream.group, |ctx| stream.execute(ctx));
    }

    /// Slots of the ring that all members have taken may be written again.
    pub(super) fn drop_acknowledged(&mut self, at: At) {
        let column = self.sst.layout.received(self.of(at).block, self.me.id());
        let peers = self.peers(at);
        let taken = match peers.is_empty() {
            true => self.of(at).outgoing.sent(),
            false => sst::min(peers, |id| self.sst.read(id, column)),
        };
        self.of_mut(at).outgoing.taken_by_all(taken);
    }
}

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
    message::{Body, Entry, Message},
    plant::Plant,
    replica::{Item, Path, Phase, Sent, Writing},
    sst::{self, PERSISTED},
};
use alloc::{vec, vec::Vec};
use quintet_replica::{
    Bytes, CommandTime, Context, Durability, Frame, FrontendId, Level, Protocol as _, ReplicaId,
    ReplicaSet, Slot, Wire,
    parts::{RequestKey, Taken, own_request},
};

/// What a slot of the ring holds: its kind above, a length or count below.
const KIND_SMALL: u64 = 0;
const KIND_NULLS: u64 = 1;
const KIND_BULK: u64 = 2;
const KIND_SHIFT: u32 = 48;
const LENGTH: u64 = (1 << KIND_SHIFT) - 1;

/// The most nulls in one slot of the ring: what a receiver does because of one is bounded.
const NULLS_MAX: u64 = 4096;

impl Derecho {
    pub(super) fn on_request(
        &mut self,
        from: FrontendId,
        level: Level,
        batch: Bytes,
        ctx: &mut Context<'_, Self>,
    ) {
        let Some(key) = own_request(from, &batch, ctx) else {
            return;
        };
        if level == Level::Stale {
            return ctx.query(batch, Slot(0), false, from, &());
        }
        if !self.takes_requests(ctx.now()) {
            return Self::refuse(key, Taken::Refused, ctx);
        }
        if level == Level::Linearizable {
            return self.on_read(key, batch, ctx);
        }
        let kept = self
            .requests
            .keep(key, batch.clone(), self.config.queue_bytes, ctx.arrived());
        if let Err(taken) = kept {
            ctx.mark("request refused: queue full");
            return Self::refuse(key, taken, ctx);
        }
        self.arm_housekeeping(ctx);
        self.queue.push(key, batch);
    }

    pub(super) fn refuse(key: RequestKey, taken: Taken, ctx: &mut Context<'_, Self>) {
        let batch = key.1;
        ctx.send_frontend(key.0, Message::Taken { batch, taken });
    }

    /// What piled up goes out as few messages, and nulls where others wait for this sender.
    pub(super) fn send_messages(&mut self, ctx: &mut Context<'_, Self>) {
        while !self.wedging {
            if self.unacked.len() >= self.config.window {
                return ctx.mark("window full");
            }
            if self.queue.peek().is_none() {
                let behind = self.nulls_wanted();
                if behind == 0 {
                    return;
                }
                ctx.mark("nulls sent");
                self.send(Item::Nulls(behind.min(NULLS_MAX)), ctx);
                continue;
            }
            let small = self.table.layout.slot_bytes();
            let peers = self.peers().iter();
            let room = peers.map(|peer| ctx.room(peer)).min();
            let room = room.unwrap_or(usize::MAX) / 2;
            let next = self.queue.peek().map_or(0, Bytes::len);
            let window = self.config.bulk_window_bytes;
            let full = |under_way: usize| next > room || under_way + next > window;
            if next > small && !self.unacked.is_empty() && full(self.large_bytes()) {
                return ctx.mark("a large message waits for room");
            }
            let bytes_max = self.config.batch_bytes_max.min(room).max(small);
            let (mut batches, mut bytes) = (Vec::new(), 0);
            while let Some(batch) = self.queue.peek() {
                if bytes > 0 && bytes + batch.len() > bytes_max {
                    break;
                }
                bytes += batch.len() + 4;
                batches.extend(self.queue.pop());
            }
            let time = CommandTime(ctx.clock().now.max(self.time_seen.0 + 1));
            self.time_seen = time;
            self.send(Item::Body(Body { time, batches }), ctx);
            if self.planted(Plant::NullInside) {
                self.send_null_before(ctx);
            }
        }
    }

    /// The planted bug: peers see a null where this member has its last message, and that behind
    /// it.
    fn send_null_before(&mut self, ctx: &mut Context<'_, Self>) {
        if self.unacked.len() >= self.config.window || self.nulls_wanted() == 0 {
            return;
        }
        self.send(Item::Nulls(1), ctx);
        let mut last = self.unacked.iter_mut().rev();
        if let (Some(null), Some(sent)) = (last.next(), last.next()) {
            core::mem::swap(&mut null.body, &mut sent.body);
            core::mem::swap(&mut null.path, &mut sent.path);
        }
    }

    /// Raw delivery (§3.3, §3.6): what was received is executed at once, in its sender's order and
    /// nobody else's; no slot, no log, no trim. Gives back what is to wait for its place instead.
    fn deliver_raw(&mut self, item: Item, ctx: &mut Context<'_, Self>) -> Option<Item> {
        if self.config.delivery == Delivery::Ordered {
            return Some(item);
        }
        if let Item::Body(body) = item {
            for batch in body.batches {
                let reply = self.request_done(&batch).map(|to| (to, ()));
                ctx.deliver_unordered(body.time, batch, reply);
            }
        }
        None
    }

    fn nulls_wanted(&self) -> u64 {
        if self.config.delivery == Delivery::Raw {
            return 0;
        }
        let view = &self.promise.view;
        let Some(mine) = view.rank(self.id) else {
            return 0;
        };
        let wanted = |(rank, member): (usize, &super::message::Member)| {
            let theirs = self.streams[member.id.index()].received;
            if mine < rank {
                theirs
            } else {
                theirs.saturating_sub(1)
            }
        };
        let others = view.members.iter().enumerate();
        let others = others.filter(|(rank, _)| *rank != mine);
        others
            .map(wanted)
            .max()
            .unwrap_or(0)
            .saturating_sub(self.sent)
    }

    /// Multicasts one message, or a run of nulls: into the own ring, from where the end of the turn
    /// puts it into everybody's copy.
    fn send(&mut self, item: Item, ctx: &mut Context<'_, Self>) {
        let (count, body) = match &item {
            Item::Nulls(count) => (*count, Frame::default()),
            Item::Body(body) => (1, body.encode_to_frame()),
        };
        let path = self.path(&body);
        match path {
            Path::Slot => {}
            Path::Whole => ctx.mark("multicast whole"),
            Path::Blocks => {
                ctx.mark("multicast by rdmc");
                self.start_blocks(self.sent, &body);
            }
        }
        if !body.is_empty() {
            self.multicasts[path as usize] += 1;
        }
        self.unacked.push_back(Sent {
            slot: self.slots_sent,
            first: self.sent,
            count,
            body,
            path,
        });
        self.slots_sent += 1;
        if matches!(item, Item::Body(_)) {
            let number = self.promise.view.number_of(self.id, self.sent);
            self.newest = self.newest.max(number);
        }
        self.sent += count;
        let own = &mut self.streams[self.id.index()];
        own.received += count;
        if let Some(item) = self.deliver_raw(item, ctx) {
            self.streams[self.id.index()].queue.push_back(item);
        }
        let column = self.table.layout.received(self.id);
        self.set_own(column, self.sent);
        self.order(ctx);
    }

    /// On which way a message goes to the others.
    fn path(&self, body: &Frame) -> Path {
        if body.len() <= self.table.layout.slot_bytes() {
            Path::Slot
        } else if body.len() > self.config.rdmc_bytes_min && !self.peers().is_empty() {
            Path::Blocks
        } else {
            Path::Whole
        }
    }

    /// Bytes of own messages besides the ring that not all members have taken.
    fn large_bytes(&self) -> usize {
        let large = self.unacked.iter().filter(|sent| sent.path != Path::Slot);
        large.map(|sent| sent.body.len()).sum()
    }

    /// A slot's words: its guard, its kind and length, the message.
    pub(super) fn slot_words(&self, sent: &Sent) -> Vec<u64> {
        let guard = sent.slot + 1;
        if sent.body.is_empty() {
            return vec![guard, KIND_NULLS << KIND_SHIFT | sent.count];
        }
        let length = sent.body.len() as u64;
        if sent.path != Path::Slot {
            return vec![guard, KIND_BULK << KIND_SHIFT | length];
        }
        let mut words = Vec::with_capacity(2 + sent.body.len().div_ceil(8));
        words.extend([guard, KIND_SMALL << KIND_SHIFT | length]);
        for chunk in sent.body.slice(0..sent.body.len()).chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            words.push(u64::from_le_bytes(word));
        }
        words
    }

    /// HEAD, then each slot's words and its guard behind them.
    pub(super) fn ring_ranges<'a>(&'a self, slots: &'a [(u64, Vec<u64>)]) -> Vec<(u32, &'a [u64])> {
        let layout = &self.table.layout;
        let area = layout.area(self.promise.view.number);
        let mut ranges = vec![self.table.own_range(self.id, sst::HEAD)];
        for (slot, words) in slots {
            let at = area + layout.slot(*slot);
            ranges.push((at + 1, &words[1..]));
            ranges.push((at, &words[..1]));
        }
        ranges
    }

    pub(super) fn on_bulk(&mut self, from: ReplicaId, index: u64, body: Bytes) {
        let stream = &mut self.streams[from.index()];
        if index >= stream.received && stream.bulk.len() < self.config.window {
            stream.bulk.insert(index, body);
        }
        self.fresh.insert(from);
        self.dirty |= sst::ON_RING;
    }

    /// Takes a message of a view that is not at work here yet to wait until it is.
    pub(super) fn wait_for_view(&mut self, from: ReplicaId, view: u64, message: Message) {
        let mine = self.promise.view.number;
        let ahead_max = (self.config.window + self.config.rdmc_credits) * self.members;
        if view == mine + 1 || view == mine && self.phase != Phase::Active {
            self.early.retain(|(_, of, _)| *of >= mine);
            if self.early.len() < ahead_max {
                self.early.push_back((from, view, message));
            }
        }
    }

    /// Takes what has come into the rings, and puts it into the order.
    pub(super) fn receive(&mut self, ctx: &mut Context<'_, Self>) {
        let fresh = core::mem::take(&mut self.fresh);
        let senders = ReplicaSet(self.live().without(self.id).0 & fresh.0);
        for sender in senders.iter() {
            if !self.table.valid(sender) {
                continue;
            }
            let mut waited_for = false;
            while let Some((item, count)) = self.next_from(sender, ctx) {
                let stream = &mut self.streams[sender.index()];
                match &item {
                    Item::Nulls(_) => stream.unsaid += 1,
                    Item::Body(_) => {
                        waited_for = true;
                        let number = self.promise.view.number_of(sender, stream.received);
                        self.newest = self.newest.max(number);
                    }
                }
                stream.slots += 1;
                stream.received += count;
                if let Some(item) = self.deliver_raw(item, ctx) {
                    self.streams[sender.index()].queue.push_back(item);
                }
            }
            let column = self.table.layout.received(sender);
            let stream = &mut self.streams[sender.index()];
            let received = stream.received;
            // Nulls are acknowledged by the way, but before they fill their sender's ring.
            if waited_for || stream.unsaid * 2 >= self.config.window {
                stream.unsaid = 0;
                self.set_own(column, received);
            } else {
                self.set_own_quietly(column, received);
            }
        }
        self.order(ctx);
    }

    fn next_from(&mut self, sender: ReplicaId, ctx: &mut Context<'_, Self>) -> Option<(Item, u64)> {
        let stream = &mut self.streams[sender.index()];
        let at = self.table.layout.slot(stream.slots);
        if self.table.get(sender, at) != stream.slots + 1 {
            return None;
        }
        let meta = self.table.get(sender, at + 1);
        let length = meta & LENGTH;
        let body = match meta >> KIND_SHIFT {
            KIND_NULLS if (1..=NULLS_MAX).contains(&length) => {
                return Some((Item::Nulls(length), length));
            }
            KIND_BULK => stream.bulk.remove(&stream.received)?,
            KIND_SMALL if length as usize <= self.table.layout.slot_bytes() => {
                let words = self
                    .table
                    .words(sender, at + 2, (length as usize).div_ceil(8));
                let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
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

    /// Gives everything that is next in the round-robin order its slots, and writes it (the first
    /// step of durable delivery: the pending version, which nobody sees).
    fn order(&mut self, ctx: &mut Context<'_, Self>) {
        let members = self.promise.view.members.len() as u64;
        loop {
            let rank = (self.ordered % members) as usize;
            let sender = self.promise.view.members[rank].id;
            let queue = &mut self.streams[sender.index()].queue;
            let mut last = None;
            match queue.front_mut() {
                None => break,
                Some(Item::Nulls(count)) => {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        queue.pop_front();
                    }
                }
                Some(Item::Body(body)) => {
                    let body = core::mem::replace(
                        body,
                        Body {
                            time: CommandTime(0),
                            batches: Vec::new(),
                        },
                    );
                    queue.pop_front();
                    let (view, time) = (self.promise.view.number, body.time);
                    for batch in body.batches {
                        last = Some(self.append(Entry { view, time, batch }, ctx));
                    }
                }
            }
            self.ordered += 1;
            let slot = self.end();
            self.marks.push_back(slot);
            let (view, ordered) = (self.promise.view.number, self.ordered);
            match (last, self.writes.back_mut()) {
                (Some(id), _) => self.writes.push_back(Writing {
                    id,
                    view,
                    ordered,
                    slot,
                }),
                (None, Some(write)) if write.view == view => write.ordered = ordered,
                (None, _) => self.persisted = ordered,
            }
            if self.planted(Plant::PersistedEarly) {
                self.persisted = self.ordered;
            }
        }
        if self.durability == Durability::Memory && self.acts.is_empty() {
            // Nothing is written and no promise is in progress: what is held counts. Said in this
            // turn, and not when something else happens.
            self.persisted = self.ordered;
        }
        self.announce_persisted();
    }

    /// Says how far this member holds the order: at once when a message is among what is new, and
    /// with the next put when only nulls are, which nobody waits for.
    fn announce_persisted(&mut self) {
        let before = self.table.get(self.id, PERSISTED);
        if self.last_slot(before) < self.last_slot(self.persisted) {
            self.set_own(PERSISTED, self.persisted);
        } else {
            self.set_own_quietly(PERSISTED, self.persisted);
        }
    }

    /// The last slot after that many messages of the order.
    pub(super) fn last_slot(&self, ordered: u64) -> Slot {
        let undelivered = ordered.saturating_sub(self.delivered) as usize;
        let last = undelivered.checked_sub(1);
        let mark = last.and_then(|last| self.marks.get(last).copied());
        mark.unwrap_or(self.sure)
    }

    /// What all members have persisted (all of them, suspected ones too: without them the view
    /// ends by a trim).
    fn stable(&self) -> u64 {
        let of = |id| self.table.read(id, PERSISTED);
        if self.planted(Plant::DeliverBeforeAll) {
            let mut counts: Vec<u64> = self.view_set().iter().map(of).collect();
            counts.sort_unstable();
            return counts[(counts.len() - 1) / 2].min(self.ordered);
        }
        sst::min(self.view_set(), of)
    }

    pub(super) fn may_deliver(&self) -> bool {
        self.stable() > self.delivered || self.table.get(self.id, PERSISTED) < self.persisted
    }

    pub(super) fn deliver(&mut self, ctx: &mut Context<'_, Self>) {
        // A frozen row: what was announced as final stays.
        if self.table.get(self.id, sst::WEDGED) == 0 {
            self.announce_persisted();
        }
        let stable = self.stable();
        while self.delivered < stable {
            let Some(slot) = self.marks.pop_front() else {
                break;
            };
            self.delivered += 1;
            self.sure = self.sure.max(slot);
        }
        self.execute(ctx);
    }

    /// Slots of the ring that all members have taken may be written again.
    pub(super) fn forget_acknowledged(&mut self) {
        let column = self.table.layout.received(self.id);
        let taken = sst::min(self.peers(), |id| self.table.read(id, column));
        let taken = if self.peers().is_empty() {
            self.sent
        } else {
            taken
        };
        while self
            .unacked
            .front()
            .is_some_and(|sent| sent.first + sent.count <= taken && sent.slot < self.slots_put)
        {
            self.unacked.pop_front();
        }
    }
}

//! The layer between the chains and the world: messages, timers, the journal.
//!
//! ```text
//!   replicate ──► Chains ──► journal; New ──► all ──► Vote ──► completed: New{nothing}
//!   fetch_causal: missing ── Fetch ──► its creator, then all others ── Found ──► journal
//!                                      └─ Trimmed: a state is needed
//! ```

use super::{
    Chains, Dissemination, Head, Host, Message, Name, News, Range, Spread,
    healthy::Healthy,
    journal::{Due, Journal},
    questions::Questions,
    showing::Showing,
};
use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::{marker::PhantomData, time::Duration};
use quintet_replica::{
    Bytes, Context, Incarnation, Lane, PersistId, ReplicaId, ReplicaSet, Slot, Time,
    parts::RequestKey,
};

/// About how many bytes of batches are sent at a time.
const PAGE_BYTES: usize = 1 << 20;
/// No more batches are asked for together.
const TOGETHER_MAX: u64 = 4096;
/// More than any message takes besides its batches.
const MESSAGE_BYTES: usize = 512;

/// How much there may be of what; the host's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Own batches that are not executed yet.
    pub window: u64,
    /// To whom they are shown.
    pub spread: Spread,
    /// Their bytes.
    pub window_bytes: usize,
    /// Bytes sent at a time to one that asks.
    pub page_bytes: usize,
    /// Bytes of executed batches that are kept for others.
    pub history_bytes: usize,
    /// An injected bug: batches are voted for before they are durable.
    pub hasty: bool,
}

/// One replica's part in dissemination; see the module above.
#[derive(Hash)]
pub struct Sadl<H> {
    id: ReplicaId,
    members: usize,
    others: ReplicaSet,
    limits: Limits,
    chains: Chains,
    journal: Journal,
    /// The known incarnations of the members.
    incarnations: Vec<Incarnation>,
    round_trip: Duration,
    /// Something has happened since the last flush.
    stirred: bool,
    /// Own batches could be begun then.
    creating: bool,
    showing: Showing,
    /// How soon the members answer, and the newest stamp of each that waits to go back.
    healthy: Healthy,
    stamps: Vec<u64>,
    questions: Questions,
    host: PhantomData<fn() -> H>,
}

/// The member that is asked after this one.
const fn next_peer(after: ReplicaId, own: ReplicaId, members: usize) -> ReplicaId {
    let members = members as u16;
    let next = ReplicaId((after.0 + 1) % members);
    if next.0 == own.0 {
        ReplicaId((next.0 + 1) % members)
    } else {
        next
    }
}

impl<H: Host> Sadl<H> {
    /// Nothing yet, in a group of that many members; `incarnation` is the own one.
    #[must_use]
    pub fn new(
        id: ReplicaId,
        incarnation: Incarnation,
        members: usize,
        quorum: usize,
        limits: Limits,
    ) -> Self {
        let mut incarnations = vec![Incarnation(0); members];
        incarnations[id.index()] = incarnation;
        let others = (0..members as u16).map(ReplicaId);
        Self {
            id,
            members,
            others: others.filter(|peer| *peer != id).collect(),
            limits,
            chains: Chains::new(id, members, quorum),
            journal: Journal::default(),
            incarnations,
            round_trip: Duration::ZERO,
            stirred: false,
            creating: false,
            showing: Showing::new(members),
            healthy: Healthy::new(id, members, quorum),
            stamps: vec![0; members],
            questions: Questions::default(),
            host: PhantomData,
        }
    }

    /// The options have changed.
    pub const fn limit(&mut self, limits: Limits) {
        self.limits = limits;
        self.stirred = true;
    }

    /// A round trip that a leader measured; the repetition of questions adapts to it.
    pub const fn measured(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// Begins the own chain of this start, of a number higher than that of any start before.
    pub fn begin(&mut self, chain: u64) {
        self.chains.begin(chain);
        self.journal.begin();
    }

    /// The connection to this member broke: what was on its way may be lost.
    pub fn renewed(&mut self, peer: ReplicaId) {
        self.showing.lost(peer);
    }

    /// The number of the own chain.
    #[must_use]
    pub fn chain(&self) -> u64 {
        self.chains.chain()
    }

    /// The number of the own chain stands in this write. Before it is durable, no batch is shown.
    pub fn numbered(&mut self, write: PersistId) {
        self.journal.numbered(write);
    }

    /// From the journal, at a restart.
    pub fn restore(&mut self, name: Name, batch: Bytes, slot: Slot) {
        self.chains.restore(name, batch, slot);
    }

    /// Whether no member has ever disseminated anything, as far as is known here.
    #[must_use]
    pub fn silent(&self) -> bool {
        self.chains.is_empty() && self.chains.idle()
    }

    /// How many batches are held, and their bytes.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.chains.len(), self.chains.bytes())
    }

    /// The questions for missing batches are dropped: they were for something that is over.
    pub fn ask_no_more(&mut self) {
        self.questions.clear();
    }

    /// The invariants.
    ///
    /// # Panics
    /// When it does not.
    pub fn assert_invariants(&self) {
        self.chains.assert_invariants();
    }

    fn write(&mut self, name: Name, at: Slot, ctx: &mut Context<'_, H>) -> Option<PersistId> {
        let batch = self.chains.batch(name).cloned()?;
        self.chains.written(name, at);
        Some(ctx.persist(at, &H::record(name, batch)))
    }

    fn store(&mut self, names: Vec<Name>, at: Slot, ctx: &mut Context<'_, H>) {
        for name in names {
            let Some(write) = self.write(name, at, ctx) else {
                continue;
            };
            if self.limits.hasty {
                self.chains.on_durable(name);
            } else {
                self.journal.push(write, Due::Batch(name));
            }
        }
    }

    /// Whether a quorum's worth of members is enough for now.
    fn selective(&self) -> bool {
        self.limits.spread == Spread::Majority && !self.showing.is_stuck()
    }

    /// To whom new batches are shown.
    fn audience(&self) -> ReplicaSet {
        if self.selective() {
            self.healthy.chosen()
        } else {
            self.others
        }
    }

    /// A message to these, stamped when response times are being measured.
    fn said(&mut self, message: Message, to: ReplicaSet, now: Time) -> H::Message {
        let mut message = message;
        if let (Spread::Majority, Message::New { stamp, .. }) = (self.limits.spread, &mut message) {
            *stamp = now.0;
            self.healthy.asked(to, self.chains.newest(), now);
        }
        H::message(message)
    }

    /// Shows these the own batches above this round, page by page.
    fn show(&mut self, above: u64, whom: ReplicaSet, ctx: &mut Context<'_, H>) {
        let mut above = above;
        loop {
            let message = self.chains.show(above, u64::MAX, PAGE_BYTES);
            let (last, bytes) = message.extent();
            let room = |peer: &ReplicaId| ctx.takes(*peer, bytes + MESSAGE_BYTES);
            let to: ReplicaSet = whom.iter().filter(room).collect();
            let message = self.said(message, to, ctx.now());
            ctx.multicast(to, Lane::Control, &message);
            if last >= self.chains.newest() || bytes == 0 {
                return;
            }
            above = last;
        }
    }

    fn arm_show(&mut self, ctx: &mut Context<'_, H>) {
        if !self.chains.unfinished() {
            return;
        }
        let (chains, others) = (&self.chains, self.others.iter());
        let votes = others.map(|peer| (peer, chains.vote_of(peer)));
        if let Some(pause) = (self.showing).arm(chains.newest(), votes, self.round_trip) {
            ctx.set_timer(H::SHOW, pause);
        }
    }

    fn answer(&self, from: ReplicaId, range: Range, at: Slot, ctx: &mut Context<'_, H>) {
        let room = ctx.room(from).saturating_sub(MESSAGE_BYTES);
        let page = PAGE_BYTES.min(self.limits.page_bytes).min(room / 2);
        match self.chains.find(range, page) {
            Some(batches) if batches.is_empty() => {}
            Some(batches) => {
                let bytes: usize = batches.iter().map(|batch| batch.len() + 4).sum();
                if ctx.takes(from, bytes + MESSAGE_BYTES) {
                    let first = range.first;
                    let found = Message::Found { first, batches };
                    ctx.send(from, Lane::Bulk, &H::message(found));
                }
            }
            None => {
                let slot = at.previous();
                ctx.send(
                    from,
                    Lane::Control,
                    &H::message(Message::Trimmed { range, slot }),
                );
            }
        }
    }

    fn want(&mut self, missing: Range, from: ReplicaId, ctx: &mut Context<'_, H>) {
        if !self.questions.may_ask(missing.first) || self.others.is_empty() {
            return;
        }
        let creator = missing.first.creator;
        // To all went what the creator sent: if it has not come, the creator is late or attacked,
        // and another has it. Of those that are not sent it, none needs to have it but the creator.
        let first = match self.limits.spread {
            Spread::All => [from, creator],
            Spread::Majority => [creator, from],
        };
        let from = first.into_iter().find(|peer| self.others.contains(*peer));
        let from = from.unwrap_or_else(|| next_peer(self.id, self.id, self.members));
        self.questions.ask(missing, from);
        let fetch = Message::Fetch { range: missing };
        ctx.send(from, Lane::Control, &H::message(fetch));
        self.arm_fetch(ctx);
    }

    fn arm_fetch(&mut self, ctx: &mut Context<'_, H>) {
        if let Some(pause) = self.questions.arm(self.round_trip) {
            ctx.set_timer(H::FETCH, pause);
        }
    }

    /// Drops questions of which something was answered, or that all members were asked twice.
    fn drop_found(&mut self) -> bool {
        (self.questions).drop_found(&self.chains, 2 * self.members as u32)
    }

    fn arrived(&mut self, ctx: &mut Context<'_, H>) -> News {
        if self.drop_found() {
            self.questions.answered();
            self.arm_fetch(ctx);
        }
        News::Arrived
    }
}

impl<H: Host> Dissemination<H> for Sadl<H> {
    fn replicate(&mut self, key: RequestKey, batch: Bytes) {
        self.chains.submit(key, batch);
        self.stirred = true;
    }

    fn completed(&self, behind: &[Head], count_max: u64) -> Vec<Range> {
        self.chains.ranges(behind, count_max)
    }

    fn fetch(&self, name: Name) -> Option<&Bytes> {
        self.chains.batch(name)
    }

    fn fetch_causal(
        &mut self,
        ranges: &mut dyn Iterator<Item = Range>,
        from: ReplicaId,
        ctx: &mut Context<'_, H>,
    ) -> bool {
        let mut needs: BTreeMap<(ReplicaId, u64), Range> = BTreeMap::new();
        for range in ranges {
            let Some(missing) = self.chains.missing(range) else {
                continue;
            };
            let key = (missing.first.creator, missing.first.chain);
            let need = needs.entry(key).or_insert(missing);
            let follows = need.last + 1 == missing.first.round;
            if follows && need.count() + missing.count() <= TOGETHER_MAX {
                need.last = missing.last;
            }
        }
        let complete = needs.is_empty();
        for need in needs.into_values() {
            self.want(need, from, ctx);
        }
        complete
    }

    fn missing(&self, range: Range) -> Option<Range> {
        self.chains.missing(range)
    }

    fn awaits(&self, name: Name) -> bool {
        self.questions.concern(name) && self.chains.missing(name.into()).is_some()
    }

    fn executed(&mut self, name: Name, slot: Slot) {
        self.chains.executed(name, slot);
        self.chains.trim_history(self.limits.history_bytes);
        self.showing.executed();
        self.stirred = true;
    }

    fn heads(&self) -> &[Head] {
        self.chains.covered()
    }

    fn install(&mut self, heads: &[Head]) {
        self.chains.install(heads);
        self.drop_found();
        self.stirred = true;
    }

    fn inventory(&self) -> Vec<Range> {
        self.chains.inventory()
    }

    fn drop_waiting(&mut self, gone: &dyn Fn(RequestKey) -> bool) {
        self.chains.drop_waiting(gone);
    }

    fn meet(&mut self, peer: ReplicaId, incarnation: Incarnation) {
        if let Some(known) = self.incarnations.get_mut(peer.index())
            && incarnation > *known
        {
            *known = incarnation;
            self.chains.forget(peer);
            self.healthy.forget(peer);
        }
    }

    fn on_message(
        &mut self,
        from: ReplicaId,
        message: Message,
        at: Slot,
        ctx: &mut Context<'_, H>,
    ) -> News {
        self.stirred = true;
        match message {
            Message::New {
                first,
                batches,
                completed,
                stamp,
            } => {
                if first.creator != from {
                    ctx.mark("ignored: batches of another");
                    return News::Nothing;
                }
                self.stamps[from.index()] = stamp;
                // A member that lags leaves new batches to those that do not, and fetches what it
                // needs.
                let bytes_max = self.limits.window_bytes.saturating_mul(4 * self.members);
                let new = self.chains.on_new(first, batches, completed, bytes_max);
                self.store(new, at, ctx);
                self.arrived(ctx)
            }
            Message::Vote {
                chain,
                round,
                incarnations,
                stamp,
            } => {
                if incarnations.len() != self.members {
                    return News::Nothing;
                }
                for (peer, incarnation) in incarnations.iter().enumerate() {
                    self.meet(ReplicaId(peer as u16), *incarnation);
                }
                if incarnations[from.index()] >= self.incarnations[from.index()] {
                    self.chains.on_vote(from, chain, round);
                    self.healthy.answered(from, stamp, round, ctx.now());
                } else {
                    ctx.mark("ignored: vote of an earlier incarnation");
                }
                News::Nothing
            }
            Message::Fetch { range } => {
                self.answer(from, range, at, ctx);
                News::Nothing
            }
            Message::Found { first, batches } => {
                if !self.questions.fits(first, batches.len()) {
                    ctx.mark("ignored: batches that were not asked for");
                    return News::Nothing;
                }
                ctx.mark("batches fetched");
                let new = self.chains.on_found(first, batches);
                self.store(new, at, ctx);
                self.arrived(ctx)
            }
            Message::Trimmed { range, slot } => {
                if slot < at || self.chains.missing(range).is_none() {
                    return News::Nothing;
                }
                ctx.mark("needs trimmed batches");
                News::Behind
            }
        }
    }

    fn on_show_timer(&mut self, ctx: &mut Context<'_, H>) {
        let Some(upto) = self.showing.fired(self.chains.unfinished()) else {
            return;
        };
        self.stirred = true;
        let audience = self.audience();
        for peer in self.others.iter() {
            let vote = self.chains.vote_of(peer);
            let message = if self.showing.again(peer, vote) && audience.contains(peer) {
                ctx.mark("batches shown again");
                self.chains.show(vote, upto, PAGE_BYTES)
            } else {
                self.chains.show(u64::MAX, u64::MAX, 0)
            };
            let (_, bytes) = message.extent();
            if ctx.takes(peer, bytes + MESSAGE_BYTES) {
                let message = self.said(message, ReplicaSet::EMPTY.with(peer), ctx.now());
                ctx.send(peer, Lane::Control, &message);
            }
        }
    }

    fn on_fetch_timer(&mut self, ctx: &mut Context<'_, H>) {
        self.questions.fired();
        self.stirred = true;
        self.drop_found();
        let (own, members) = (self.id, self.members);
        for (to, range) in self
            .questions
            .repeat(|after| next_peer(after, own, members))
        {
            ctx.send(to, Lane::Control, &H::message(Message::Fetch { range }));
        }
        self.arm_fetch(ctx);
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, H>) {
        self.stirred |= self.journal.on_persisted(upto);
        while let Some(due) = self.journal.next_due(upto) {
            self.stirred = true;
            match due {
                Due::Batch(name) => self.chains.on_durable(name),
                Due::Trim(slot) => ctx.trim(self.chains.trim_below(slot)),
            }
        }
    }

    fn flush(&mut self, create: bool, at: Slot, ctx: &mut Context<'_, H>) {
        let stirred = core::mem::take(&mut self.stirred);
        let creating = core::mem::replace(&mut self.creating, create);
        if !stirred && create == creating {
            return;
        }
        if create && self.journal.is_numbered() {
            let before = self.chains.newest();
            let (window, bytes) = (self.limits.window, self.limits.window_bytes);
            let new = self.chains.extend(window, bytes);
            if !new.is_empty() {
                self.store(new, at, ctx);
                let audience = self.audience();
                // The others hear of it when it is completed.
                if audience == self.others {
                    self.chains.take_announcement();
                }
                self.show(before, audience, ctx);
            }
        }
        if self.selective()
            && let Some(peer) = self.healthy.choose(ctx.now())
        {
            ctx.mark("batches go to another quorum");
            let missed = self.chains.vote_of(peer);
            self.show(missed, ReplicaSet::EMPTY.with(peer), ctx);
        }
        for (creator, chain, round) in self.chains.take_votes() {
            let incarnations = self.incarnations.clone();
            let stamp = self.stamps[creator.index()];
            if round == 0 && stamp == 0 {
                continue;
            }
            let vote = Message::Vote {
                chain,
                round,
                incarnations,
                stamp,
            };
            ctx.send(creator, Lane::Control, &H::message(vote));
        }
        self.chains.complete();
        if self.chains.take_announcement() {
            self.show(u64::MAX, self.others, ctx);
        }
        self.arm_show(ctx);
    }

    fn trim(&mut self, slot: Slot, ctx: &mut Context<'_, H>) {
        let mut last = None;
        for name in self.chains.rewrite(slot) {
            last = self.write(name, slot.next(), ctx).or(last);
        }
        match last {
            Some(write) => self.journal.push(write, Due::Trim(slot)),
            None => ctx.trim(self.chains.trim_below(slot)),
        }
    }
}

//! What stands between the chains and the world: messages, timers, the journal.
//!
//! ```text
//!   replicate ──► Chains ──► journal; New ──► all ──► Vote ──► completed: New{nothing}
//!   fetch_causal: missing ── Fetch ──► its creator, then all others ── Found ──► journal
//!                                      └─ Trimmed: a state is needed
//! ```

use super::{
    Chains, Dissemination, Head, Host, Message, Name, News, Range, Spread, healthy::Healthy,
};
use alloc::{
    collections::{BTreeMap, VecDeque},
    vec,
    vec::Vec,
};
use core::{marker::PhantomData, time::Duration};
use quintet_replica::{
    Bytes, Context, Incarnation, Lane, PersistId, ReplicaId, ReplicaSet, Slot, Time,
    parts::RequestKey,
};

/// About how many bytes of batches are sent at a time.
const PAGE_BYTES: usize = 1 << 20;
/// The most ranges that are asked for at a time, each of another chain.
const WANTED_MAX: usize = 64;
/// No more batches are asked for together.
const TOGETHER_MAX: u64 = 4096;
/// A question's patience is doubled at most so often.
const TRIES_MAX: u32 = 3;
/// The pause before batches are shown again is doubled at most so often.
const SHOWN_MAX: u32 = 4;
/// Batches that nothing was lost of are shown again when a member's vote has not moved so often.
const PATIENCE: u32 = 4;
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
    /// A planted bug: batches are voted for before they are durable.
    pub hasty: bool,
}

/// Batches that are asked for.
#[derive(Clone, Copy, Debug, Hash)]
struct Asked {
    range: Range,
    /// Whom last.
    from: ReplicaId,
    tries: u32,
}

/// What is done once a write is durable.
#[derive(Clone, Copy, Debug, Hash)]
enum Due {
    /// The batch may be voted for.
    Batch(Name),
    /// What stood in the journal up to this slot stands in it again, or in a snapshot.
    Trim(Slot),
}

/// Whether the number of the own chain is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Number {
    Unwritten,
    Written(PersistId),
    Durable,
}

/// One replica's part in dissemination; see the module above.
#[derive(Hash)]
pub struct Sadl<H> {
    id: ReplicaId,
    members: usize,
    others: ReplicaSet,
    limits: Limits,
    chains: Chains,
    number: Number,
    /// The lives that the members are known to be in.
    lives: Vec<Incarnation>,
    round_trip: Duration,
    due: VecDeque<(PersistId, Due)>,
    /// Something has happened since the last flush.
    stirred: bool,
    /// Own batches could be begun then.
    creating: bool,
    show_armed: bool,
    /// How often batches have been shown again since some were executed.
    shown: u32,
    /// How soon the members answer, and the newest stamp of each that waits to go back.
    healthy: Healthy,
    stamps: Vec<u64>,
    /// When [`Host::SHOW`] was set: the last own round, and up to where each member had voted.
    shown_upto: u64,
    votes_then: Vec<u64>,
    /// How often in a row each member's vote had not moved when it fired.
    stuck: Vec<u32>,
    /// By creator and chain.
    wanted: BTreeMap<(ReplicaId, u64), Asked>,
    fetch_armed: bool,
    /// How often questions have been repeated since something came.
    tries: u32,
    host: PhantomData<fn() -> H>,
}

impl<H: Host> Sadl<H> {
    /// Nothing yet, in a group of that many members; `life` is the own one.
    #[must_use]
    pub fn new(
        id: ReplicaId,
        life: Incarnation,
        members: usize,
        quorum: usize,
        limits: Limits,
    ) -> Self {
        let mut lives = vec![Incarnation(0); members];
        lives[id.index()] = life;
        let others = (0..members as u16).map(ReplicaId);
        Self {
            id,
            members,
            others: others.filter(|peer| *peer != id).collect(),
            limits,
            chains: Chains::new(id, members, quorum),
            number: Number::Unwritten,
            lives,
            round_trip: Duration::ZERO,
            due: VecDeque::new(),
            stirred: false,
            creating: false,
            show_armed: false,
            shown: 0,
            healthy: Healthy::new(id, members, quorum),
            stamps: vec![0; members],
            shown_upto: 0,
            votes_then: vec![0; members],
            stuck: vec![0; members],
            wanted: BTreeMap::new(),
            fetch_armed: false,
            tries: 0,
            host: PhantomData,
        }
    }

    /// The options have changed.
    pub const fn limit(&mut self, limits: Limits) {
        self.limits = limits;
        self.stirred = true;
    }

    /// What a leader measured; questions are patient accordingly.
    pub const fn measured(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// Begins the own chain of this start, of a number higher than that of any start before.
    pub fn begin(&mut self, chain: u64) {
        self.chains.begin(chain);
        self.number = Number::Unwritten;
    }

    /// The connection to this member broke: what was on its way may be lost.
    pub fn renewed(&mut self, peer: ReplicaId) {
        if let Some(stuck) = self.stuck.get_mut(peer.index()) {
            *stuck = (*stuck).max(PATIENCE - 1);
        }
    }

    /// The number of the own chain.
    #[must_use]
    pub fn chain(&self) -> u64 {
        self.chains.chain()
    }

    /// The number of the own chain stands in this write. Before it is durable, no batch is shown.
    pub fn numbered(&mut self, write: PersistId) {
        if self.number == Number::Unwritten {
            self.number = Number::Written(write);
        }
    }

    /// From the journal, at a restart.
    pub fn restore(&mut self, name: Name, batch: Bytes, slot: Slot) {
        self.chains.restore(name, batch, slot);
    }

    /// Whether nobody has ever disseminated anything, as far as is known here.
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
        self.wanted.clear();
    }

    /// What always holds.
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
                self.due.push_back((write, Due::Batch(name)));
            }
        }
    }

    /// Whether a quorum's worth of members is enough for now.
    fn selective(&self) -> bool {
        self.limits.spread == Spread::Majority && self.shown < PATIENCE
    }

    /// To whom new batches are shown.
    fn audience(&self) -> ReplicaSet {
        if self.selective() {
            self.healthy.chosen()
        } else {
            self.others
        }
    }

    /// What to say to these, stamped when somebody looks at how soon they answer.
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
        if self.chains.unfinished() && !self.show_armed {
            self.show_armed = true;
            self.shown_upto = self.chains.newest();
            for peer in self.others.iter() {
                self.votes_then[peer.index()] = self.chains.vote_of(peer);
            }
            let pause = Duration::from_millis(60).max(self.round_trip * 2);
            ctx.set_timer(H::SHOW, pause * (1 << (self.shown / 2).min(SHOWN_MAX)));
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

    fn next_peer(&self, after: ReplicaId) -> ReplicaId {
        let members = self.members as u16;
        let next = ReplicaId((after.0 + 1) % members);
        if next == self.id {
            ReplicaId((next.0 + 1) % members)
        } else {
            next
        }
    }

    fn want(&mut self, missing: Range, from: ReplicaId, ctx: &mut Context<'_, H>) {
        let creator = missing.first.creator;
        let key = (creator, missing.first.chain);
        let full = self.wanted.len() >= WANTED_MAX;
        if full || self.wanted.contains_key(&key) || self.others.is_empty() {
            return;
        }
        // To all went what the creator sent: if it has not come, the creator is late or attacked,
        // and another has it. Of those that are not sent it, none needs to have it but the creator.
        let first = match self.limits.spread {
            Spread::All => [from, creator],
            Spread::Majority => [creator, from],
        };
        let asked = Asked {
            range: missing,
            from: first
                .into_iter()
                .find(|peer| self.others.contains(*peer))
                .unwrap_or_else(|| self.next_peer(self.id)),
            tries: 0,
        };
        self.wanted.insert(key, asked);
        let fetch = Message::Fetch { range: missing };
        ctx.send(asked.from, Lane::Control, &H::message(fetch));
        self.arm_fetch(ctx);
    }

    fn arm_fetch(&mut self, ctx: &mut Context<'_, H>) {
        if !self.fetch_armed && !self.wanted.is_empty() {
            self.fetch_armed = true;
            let patience = Duration::from_millis(40).max(self.round_trip * 2);
            ctx.set_timer(H::FETCH, patience * (1 << self.tries.min(TRIES_MAX)));
        }
    }

    /// Forgets questions of which something was answered, or that everybody was asked twice: the
    /// host looks again at what it needs. True when there were any.
    fn drop_found(&mut self) -> bool {
        let (chains, tries_max) = (&self.chains, 2 * self.members as u32);
        let before = self.wanted.len();
        self.wanted.retain(|_, asked| {
            let left = chains.missing(asked.range);
            asked.tries <= tries_max && left.is_some_and(|left| left == asked.range)
        });
        self.wanted.len() < before
    }

    fn arrived(&mut self, ctx: &mut Context<'_, H>) -> News {
        if self.drop_found() {
            self.tries = 0;
            self.fetch_armed = false;
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
        self.wanted.contains_key(&(name.creator, name.chain))
            && self.chains.missing(name.into()).is_some()
    }

    fn executed(&mut self, name: Name, slot: Slot) {
        self.chains.executed(name, slot);
        self.chains.trim_history(self.limits.history_bytes);
        self.shown = 0;
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

    fn meet(&mut self, peer: ReplicaId, life: Incarnation) {
        if let Some(known) = self.lives.get_mut(peer.index())
            && life > *known
        {
            *known = life;
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
                // Who lags leaves what is new to those who do not, and fetches what it needs.
                let bytes_max = self.limits.window_bytes.saturating_mul(4 * self.members);
                let new = self.chains.on_new(first, batches, completed, bytes_max);
                self.store(new, at, ctx);
                self.arrived(ctx)
            }
            Message::Vote {
                chain,
                round,
                lives,
                stamp,
            } => {
                if lives.len() != self.members {
                    return News::Nothing;
                }
                for (peer, life) in lives.iter().enumerate() {
                    self.meet(ReplicaId(peer as u16), *life);
                }
                if lives[from.index()] >= self.lives[from.index()] {
                    self.chains.on_vote(from, chain, round);
                    self.healthy.answered(from, stamp, round, ctx.now());
                } else {
                    ctx.mark("ignored: vote of an earlier life");
                }
                News::Nothing
            }
            Message::Fetch { range } => {
                self.answer(from, range, at, ctx);
                News::Nothing
            }
            Message::Found { first, batches } => {
                let asked = self.wanted.get(&(first.creator, first.chain));
                let fits = |asked: &Asked| {
                    asked.range.first.round <= first.round
                        && first.round + batches.len() as u64 <= asked.range.last + 1
                };
                if !asked.is_some_and(fits) {
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
        self.show_armed = false;
        if !self.chains.unfinished() {
            self.shown = 0;
            return;
        }
        self.stirred = true;
        self.shown = self.shown.saturating_add(1);
        let audience = self.audience();
        for peer in self.others.iter() {
            let vote = self.chains.vote_of(peer);
            let stuck = &mut self.stuck[peer.index()];
            *stuck = if vote >= self.shown_upto || vote > self.votes_then[peer.index()] {
                0
            } else {
                stuck.saturating_add(1)
            };
            // What was just sent is on its way, and a member that is late is late with its votes.
            let again = *stuck >= PATIENCE && stuck.is_power_of_two() && audience.contains(peer);
            let message = if again {
                ctx.mark("batches shown again");
                self.chains.show(vote, self.shown_upto, PAGE_BYTES)
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
        self.fetch_armed = false;
        self.stirred = true;
        self.tries = self.tries.saturating_add(1);
        self.drop_found();
        let keys: Vec<(ReplicaId, u64)> = self.wanted.keys().copied().collect();
        for key in keys {
            let Some(asked) = self.wanted.get(&key).copied() else {
                continue;
            };
            let again = Asked {
                range: asked.range,
                from: self.next_peer(asked.from),
                tries: asked.tries + 1,
            };
            self.wanted.insert(key, again);
            let fetch = Message::Fetch { range: asked.range };
            ctx.send(again.from, Lane::Control, &H::message(fetch));
        }
        if self.wanted.is_empty() {
            self.tries = 0;
        }
        self.arm_fetch(ctx);
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, H>) {
        if matches!(self.number, Number::Written(write) if write <= upto) {
            self.number = Number::Durable;
            self.stirred = true;
        }
        while let Some((write, due)) = self.due.front().copied() {
            if write > upto {
                break;
            }
            self.due.pop_front();
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
        if create && self.number == Number::Durable {
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
            let lives = self.lives.clone();
            let stamp = self.stamps[creator.index()];
            if round == 0 && stamp == 0 {
                continue;
            }
            let vote = Message::Vote {
                chain,
                round,
                lives,
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
            Some(write) => self.due.push_back((write, Due::Trim(slot))),
            None => ctx.trim(self.chains.trim_below(slot)),
        }
    }
}

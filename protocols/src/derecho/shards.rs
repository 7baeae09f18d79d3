//! Shards: groups of their own logs among the members of one view (§2.3, B.1, B.3, B.6).
//!
//! ```text
//!   one view, one agreement ──┬── group 0: all members         stream, as without shards
//!                             ├── shard 1: A B      active     a stream each, its own block of the
//!                             ├── shard 2: C D      active     table, order, log and base
//!                             └── shard 3: E F      lost       logs of the last active view: kept,
//!                                                              copied, and nothing is ordered
//!
//!   wedge: every block to all, then WEDGED ──► proposer: for each shard
//!     a member alive that holds its log ──► base = smallest END of those; active, if they are enough
//!     otherwise ──► lost; `active_in` says whose logs count
//!   lost: targets copy a complete log ── Holds ──► the leader: enough have one ──► next view: active
//! ```
//!
//! Shards never vote: members of the view do, with or without a part in a shard, over members, parts
//! and all bases at once.
//!
//! # Safety
//!
//! 1. In a view a shard is active or lost as the view says. Only in the view in which it is active
//!    are its messages ordered, and a message is delivered when *all* its members in that view have
//!    it durably.
//! 2. A log is *complete* for the shard's last active view when it is a prefix of that view's log
//!    with everything in it that was, or ever will be, delivered. A member's own log is, as soon as
//!    the member has left that view: nothing is delivered that it does not hold, and it takes no
//!    more. A replica that knows a later view has left. So one such log does, no matter which of the
//!    others continue, or come back (B.6; the paper takes it from any log, too).
//! 3. A copy of a complete log is complete. A log that is complete stays so until the shard is active
//!    again, however many views pass: a view names the last active one (`active_in`), and what a
//!    replica holds is compared with that, never with the number of a view that follows.
//! 4. A base is the smallest end of complete logs that are durable: those of wedged rows, or those
//!    of a lost shard that live members of the view have told of. It covers all that was delivered.
//! 5. A shard is active only where as many members as the layout asks for hold everything up to the
//!    base durably. Members that fetch it say nothing, so that nothing is delivered without them,
//!    and do not count.
//! 6. A promise by such a count outlives a restart: the completeness of a log is on disk before it
//!    is reported or its row says HELD; and the log before that, which is a write of another group.
//! 7. Reads: see `reads.rs`. The next active view needs a complete log, of a member that had wedged,
//!    or left. (An answer of all members that have not says that there is none.)
//!
//! # Deviations
//!
//! - **An inadequate shard stops alone**: the paper stops the whole group when one durable shard is
//!   below its minimum. It orders nothing here; the others continue.
//! - **B.6 in two views**: copies first, in a view in which the shard is lost; then the view in which
//!   it is active. The paper records the trim and copies before the one view begins.
//! - **Total restart**: all shards are lost in the first view after it, and taken up again as lost
//!   ones are. A vote that was accepted before binds, with its shards.
//! - **The group itself** has a log, too, with all members of the view; it may stay empty.
//! - **A block per subgroup**, not per shard, as §4.2 announces. All its columns go to the members
//!   of the shard; at the wedge to all.
//! - **Members that do not send** refuse what is to be ordered, and their frontends turn to those
//!   that do; they answer reads. The public code lets them send by RPC.
//! - **In memory** a log ends with the process. When all copies have, the shard is lost until the
//!   operator begins it again (`--bootstrap-again`), each replica with an empty log. Such logs count
//!   as complete together when every member of the present view has told what it holds, none joins,
//!   no replica has told of a complete log, and a majority of the members of the view in which the shard was
//!   last active (`among`) begins it again. So one replica that was begun again by mistake takes
//!   nothing away. A majority of all replicas is not needed: the members of that view have agreed to
//!   be without the others, none of which has its log, and those of them that still run with it are a
//!   minority that decides nothing. A part of the log, at a replica that was a member before or
//!   was copying, keeps none from it: it could not be completed. Nothing needs no copy, so every member
//!   of the view with nothing may become one of the shard, whether it begins it again or not. One with
//!   a part may not, and starts again.
//! - **Generations**: a log that is begun again has a new number in the view that takes it up. A
//!   process that was cut off with the log of before has slots of the same numbers with other
//!   contents. Its log counts as nothing from when it hears of that view: it takes no part, gives
//!   none of it, and refuses reads of the past, too. Neither log nor state can become those of the
//!   others, so its process starts again, as soon as other shards in memory do not need it
//!   (`generations.rs`); until then the shard gets other members. If it is heard before that view, its
//!   log is what the shard continues from, and nothing is begun.
//! - **Slow members** (D11) are found in each shard, too: by comparison in one of three members or
//!   more, by the pace of disks and links in any. A member of a shard that stands still for
//!   `restart_timeout` (its log does not become durable, or it never comes to hold it) leaves the
//!   view, if the shard continues without it; so does one that does not follow the end of a view for
//!   as long.

pub(super) use super::bug::Bug;
use super::{
    Derecho,
    membership::Act,
    message::{Entry, Holding, Member, Message, View},
    reads::refuse_all,
    sst::WEDGED,
    stream::Stream,
};
use alloc::{vec, vec::Vec};
use quintet_replica::{
    Context, Durability, GroupId, Lane, ReplicaId, ReplicaSet, Role, RoleState, Slot,
};

/// Which order of messages: the group's own, or a shard's by its place in the layout.
pub(super) type At = Option<usize>;

/// Slots of a ring, with their words.
type SlotWords = Vec<(u64, Vec<u64>)>;

/// More than any slot: everything that there is.
const ALL: Slot = Slot(u64::MAX >> 2);

/// Logs of shards as others have told of them.
#[derive(Debug, Default, Hash)]
pub(super) struct Holdings {
    /// By replica: in which view.
    told: Vec<(u64, Vec<Holding>)>,
    /// By replica: the shards of which it has an old log, in which of its starts.
    old: Vec<(u64, Vec<u32>)>,
}

impl Holdings {
    pub fn new(members: usize) -> Self {
        Self {
            told: vec![(0, Vec::new()); members],
            old: vec![(0, Vec::new()); members],
        }
    }

    pub fn heard(&mut self, from: ReplicaId, view: u64, logs: Vec<Holding>) {
        self.told[from.index()] = (view, logs);
    }

    /// A replica has told which of its logs are of before a shard was begun again. They stay so as
    /// long as its process does.
    pub fn has_old(&mut self, from: ReplicaId, starts: u64, shards: Vec<u32>) {
        self.old[from.index()] = (starts, shards);
    }

    pub fn is_old(&self, of: Member, shard: usize) -> bool {
        let (starts, shards) = &self.old[of.id.index()];
        *starts == of.starts && shards.contains(&(shard as u32))
    }

    pub fn forget(&mut self, from: ReplicaId) {
        self.told[from.index()] = (0, Vec::new());
    }

    /// Whether a replica has told in this view what it has.
    pub fn is_heard(&self, id: ReplicaId, view: u64) -> bool {
        self.told[id.index()].0 == view
    }

    /// The log of a shard as a replica told of it in this view.
    pub fn of(&self, id: ReplicaId, view: u64, shard: usize) -> Option<&Holding> {
        let (told, logs) = &self.told[id.index()];
        let mut logs = logs.iter().filter(|_| *told == view);
        logs.find(|log| log.shard as usize == shard)
    }
}

/// One of a replica's streams, beside its other parts.
pub(super) fn one_of<'a>(home: &'a mut Stream, shards: &'a mut [Stream], at: At) -> &'a mut Stream {
    match at {
        None => home,
        Some(shard) => &mut shards[shard],
    }
}

pub(super) fn both(a: ReplicaSet, b: ReplicaSet) -> ReplicaSet {
    ReplicaSet(a.0 & b.0)
}

pub(super) fn less(a: ReplicaSet, b: ReplicaSet) -> ReplicaSet {
    ReplicaSet(a.0 & !b.0)
}

impl Derecho {
    pub(super) fn of(&self, at: At) -> &Stream {
        match at {
            None => &self.stream,
            Some(shard) => &self.shards[shard],
        }
    }

    /// All orders, the group's first.
    pub(super) fn streams(&self) -> impl Iterator<Item = &Stream> {
        core::iter::once(&self.stream).chain(&self.shards)
    }

    pub(super) fn of_mut(&mut self, at: At) -> &mut Stream {
        one_of(&mut self.stream, &mut self.shards, at)
    }

    /// The order of a group.
    pub(super) fn at(&self, group: GroupId) -> At {
        if self.shards.is_empty() {
            return None;
        }
        self.shards.iter().position(|shard| shard.group == group)
    }

    /// The other members of an order.
    pub(super) fn peers(&self, at: At) -> ReplicaSet {
        match at {
            None => self.membership.peers(),
            Some(_) => self.of(at).set().without(self.me.id()),
        }
    }

    /// Those of them that are not suspected.
    pub(super) fn live_peers(&self, at: At) -> ReplicaSet {
        match at {
            None => self.membership.live_peers(),
            Some(_) => both(self.peers(at), self.membership.live_peers()),
        }
    }

    /// Whether this replica is a member at work.
    pub(super) fn takes_part(&self, at: At) -> bool {
        let active = self.membership.is_active();
        active && (at.is_none() || self.of(at).begun == self.membership.number())
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = usize> + use<> {
        let part = |shard: &usize| self.takes_part(Some(*shard));
        let parts: Vec<usize> = (0..self.shards.len()).filter(part).collect();
        parts.into_iter()
    }

    // ----------------------------------------------------------------------------- one turn

    /// Looks at all shards that this replica is a member of.
    pub(super) fn run_shards(&mut self, ctx: &mut Context<'_, Self>) {
        for shard in self.parts() {
            let at = Some(shard);
            if !self.membership.wedging() {
                self.receive(at, ctx);
            }
            if self.may_deliver(at) {
                self.deliver(at, ctx);
            }
            if !self.of(at).outgoing.is_empty() {
                self.drop_acknowledged(at);
            }
            if !self.membership.wedging() && self.of(at).rdmc.is_busy() {
                self.send_blocks(at, ctx);
            }
            if !self.of(at).reads.is_empty() {
                self.release_reads(at, ctx);
            }
        }
    }

    /// Sends what requests have come for, in each shard.
    pub(super) fn send_in_shards(&mut self, ctx: &mut Context<'_, Self>) {
        for shard in self.parts() {
            self.send_messages(Some(shard), ctx);
        }
    }

    /// Something of a row has come: perhaps slots of its rings.
    pub(super) fn came_in_shards(&mut self, from: ReplicaId) {
        for shard in self.parts() {
            self.shards[shard].incoming.came(from);
        }
    }

    /// Puts what has changed in the blocks of the own row, to the members of each shard.
    pub(super) fn push_shards(&mut self, to: ReplicaSet, ctx: &mut Context<'_, Self>) {
        let view = [self.membership.number()];
        for shard in self.parts() {
            let at = Some(shard);
            let to = both(to, self.peers(at));
            let slots = self.slots(at, self.of(at).outgoing.unput(), to, ctx);
            let mut ranges = self.ring_ranges(at, &view, &slots);
            let block = self.of(at).block.unwrap_or(0);
            let changed = self.sst.take_changes(block);
            ranges.extend(self.sst.dirty_ranges(self.me.id(), &changed));
            if ranges.len() > 1 && !to.is_empty() {
                ctx.put(to, &ranges);
            }
            self.of_mut(at).outgoing.put();
        }
    }

    /// The columns of all own blocks besides their rings.
    pub(super) fn block_ranges(&self) -> Vec<(u32, Vec<u64>)> {
        let blocks = self.parts().filter_map(|shard| self.shards[shard].block);
        let range = |block| {
            let (at, words) = self.sst.block_range(self.me.id(), block);
            (at, words.to_vec())
        };
        blocks.map(range).collect()
    }

    /// The slots that a peer has not taken of the rings of shards that it is in, too.
    pub(super) fn slots_of_shards(
        &self,
        peer: ReplicaId,
        ctx: &mut Context<'_, Self>,
    ) -> Vec<(At, SlotWords)> {
        let only = ReplicaSet::EMPTY.with(peer);
        let with = self
            .parts()
            .filter(|shard| self.peers(Some(*shard)).contains(peer));
        let slots = with.map(|shard| {
            let (at, stream) = (Some(shard), &self.shards[shard]);
            let column = self.sst.layout.received(stream.block, self.me.id());
            let missing = stream.outgoing.missing(self.sst.read(peer, column));
            (at, self.slots(at, missing, only, ctx))
        });
        slots.collect()
    }

    /// Whether all that was taken in shards is written.
    pub(super) fn shards_are_written(&self) -> bool {
        let view = self.membership.number();
        self.parts().all(|shard| {
            let stream = &self.shards[shard];
            stream.order.persisted() == stream.order.ordered() && !stream.log.is_writing(view)
        })
    }

    /// The row is final now, with these blocks.
    pub(super) fn set_blocks_final(&mut self) {
        for shard in self.parts() {
            let stream = &self.shards[shard];
            let persisted = stream.order.persisted();
            let Some(block) = stream.block else {
                continue;
            };
            let last = stream.last_slot(persisted).0;
            let (column, end) = (
                self.sst.layout.persisted(Some(block)),
                self.sst.layout.end(block),
            );
            self.sst.set(column, persisted);
            self.sst.set(end, last.max(self.sst.own(end)));
        }
    }

    // -------------------------------------------------------------------------- a view begins

    /// A view that was agreed: the logs of shards that count from here on.
    pub(super) fn learn_shards(&mut self, view: &View, ctx: &mut Context<'_, Self>) {
        let own = self.me.id();
        let stays = self.injected(Bug::RoleKeptAfterView);
        for (shard, next) in view.shards.iter().enumerate() {
            let old = &self.membership.view().shards[shard];
            let complete = self.membership.is_held(shard);
            let (before, ignored) = (old.generation, self.injected(Bug::GenerationIgnored));
            let stream = &mut self.shards[shard];
            stream.end();
            stream.catch_up.begin();
            if next.generation > before && !stream.is_empty() && !ignored {
                ctx.mark("log of an earlier generation");
                stream.catch_up.old.get_or_insert(before);
            }
            if stream.catch_up.old.is_some() {
                // The log here stays as it is, and counts as nothing.
                (stream.holds, stream.catch_up.begun_again) = (false, false);
                refuse_all(stream, ctx);
                self.membership.set_held(shard, false);
                continue;
            }
            if next.active_in == old.active_in {
                // A log that was complete still is.
                continue;
            }
            let log = &mut stream.log;
            let mut holds = false;
            if complete && next.before == old.active_in {
                if log.end() >= next.base {
                    log.deliver(next.base);
                    log.cut(log.sure());
                    // Else the promise that says so might be on disk without it.
                    let part = next.members.contains(own) || stays;
                    holds = part && log.durable() >= next.base;
                } else {
                    log.deliver_all();
                }
            } else {
                log.cut(log.sure());
            }
            (stream.holds, stream.catch_up.begun_again) = (false, false);
            self.membership.set_held(shard, holds);
            let stream = &mut self.shards[shard];
            ctx.in_group(stream.group, |ctx| stream.execute(ctx));
            stream.reads.rebind(next.base);
            let out = !next.members.contains(own) && !stays;
            if out || next.active_in != view.number {
                refuse_all(stream, ctx);
            }
        }
    }

    /// The view is on disk, with what this replica holds.
    pub(super) fn begin_shards(&mut self, ctx: &mut Context<'_, Self>) {
        for shard in 0..self.shards.len() {
            self.shards[shard].holds = self.membership.is_held(shard);
            self.note_log_found(shard, ctx);
            self.after_shard_catching_up(shard, ctx);
            self.maybe_begin(shard, ctx);
        }
        self.send_holds(ctx);
        self.fetch_shards(ctx);
    }

    /// That this replica holds a shard's log is on disk.
    pub(super) fn on_held(&mut self, shard: usize, view: u64, ctx: &mut Context<'_, Self>) {
        if self.membership.number() == view && self.membership.is_held(shard) {
            self.shards[shard].holds = true;
            self.note_log_found(shard, ctx);
            self.maybe_begin(shard, ctx);
            self.send_holds(ctx);
        }
    }

    /// A log that was lost on this disk is made good once it is here again, or where members of the
    /// view have it without this replica. The promise that says so is on the disk.
    fn note_log_found(&mut self, shard: usize, ctx: &mut Context<'_, Self>) {
        let view = self.membership.view();
        let others = view.shards[shard].members.without(self.me.id());
        let stream = &mut self.shards[shard];
        let is_found = stream.holds || view.is_active(shard) && !others.is_empty();
        if is_found && core::mem::take(&mut stream.catch_up.is_lost) {
            ctx.in_group(stream.group, |ctx| ctx.recovered());
        }
    }

    /// Takes part in a shard as soon as all up to its base is here, durably.
    pub(super) fn maybe_begin(&mut self, shard: usize, ctx: &mut Context<'_, Self>) {
        let (own, now, number) = (self.me.id(), ctx.now(), self.membership.number());
        let view = self.membership.view();
        let of = &view.shards[shard];
        let stream = &self.shards[shard];
        let part = of.members.contains(own) || self.injected(Bug::RoleKeptAfterView);
        let due = view.is_active(shard) && part && stream.holds;
        if !self.membership.is_active()
            || !due
            || stream.begun == number
            || stream.log.durable() < of.base
            || self.sst.own(WEDGED) > 0
        {
            return;
        }
        ctx.mark("shard begun");
        let senders = match self.injected(Bug::AllMembersSend) {
            true => of.members,
            false => of.senders,
        };
        let (members, base) = ((of.members, senders), of.base);
        let stream = &mut self.shards[shard];
        let (group, block) = (stream.group, stream.block.unwrap_or(0));
        let early = stream.begin(number, members, own, now);
        stream.relay.send_again();
        self.sst.set(self.sst.layout.end(block), base.0);
        self.sst.set(self.sst.layout.held(block), 1);
        self.sst.touch(super::sst::ON_SHARD);
        ctx.in_group(group, |ctx| {
            for (from, message) in early {
                self.on_shard_message(shard, from, message, ctx);
            }
            let incarnation = |id| {
                let members = self.membership.view().members.iter();
                let mut member = members.filter(|member| member.id == id);
                member.next().map(|member| (id, member.incarnation))
            };
            let route: Vec<_> = members.0.iter().filter_map(incarnation).collect();
            ctx.route_is(Slot(number), &route);
        });
    }

    /// Tells hosts and frontends the parts.
    pub(super) fn tell_roles(&self, ctx: &mut Context<'_, Self>) {
        let view = self.membership.view();
        if view.shards.is_empty() {
            return;
        }
        let roles = view.shards.iter().enumerate().map(|(shard, of)| {
            let active = view.is_active(shard);
            Role {
                group: self.shards[shard].group,
                state: if active {
                    RoleState::Active
                } else {
                    RoleState::Lost
                },
                members: of.members,
                senders: of.senders,
            }
        });
        let roles = roles.collect();
        ctx.in_group(self.stream.group, |ctx| ctx.roles_are(view.number, roles));
    }

    // ------------------------------------------------------------------- copies of the logs

    pub(super) fn holding(&self, shard: usize) -> Holding {
        let stream = &self.shards[shard];
        let present = self.membership.view().shards[shard].generation;
        Holding {
            shard: shard as u32,
            generation: stream.catch_up.old.unwrap_or(present),
            complete: stream.holds && self.membership.is_held(shard),
            begun_again: stream.catch_up.begun_again,
            first: stream.log.first(),
            sure: stream.log.sure(),
            end: stream.log.durable(),
        }
    }

    /// Tells of the logs that others may be interested in.
    pub(super) fn send_holds(&self, ctx: &mut Context<'_, Self>) {
        let (view, own) = (self.membership.view(), self.me.id());
        let active = self.membership.is_active();
        let tells = |shard: &usize| {
            let of = &view.shards[*shard];
            let open = !view.is_active(*shard)
                || !less(of.targets, of.members).is_empty()
                || of.members.contains(own) && !self.membership.is_held(*shard);
            let part = of.targets.contains(own) || of.members.contains(own);
            let stream = &self.shards[*shard];
            // Before a shard in memory is begun again, each says that it holds nothing else.
            let lost = !view.is_active(*shard) && stream.durability == Durability::Memory;
            let part = part || lost;
            stream.catch_up.old.is_some()
                || open && (part || self.membership.is_held(*shard))
                || !active && self.membership.is_held(*shard)
        };
        let logs = (0..view.shards.len()).filter(tells);
        let logs: Vec<Holding> = logs.map(|shard| self.holding(shard)).collect();
        if logs.is_empty() && !self.knows_old() {
            return;
        }
        let to = match active {
            true => self.membership.live_peers(),
            false => self.me.others(),
        };
        let message = Message::Holds {
            view: view.number,
            logs,
        };
        ctx.in_group(self.stream.group, |ctx| {
            ctx.multicast(to, Lane::Control, &message);
        });
    }

    pub(super) fn on_holds(&mut self, from: ReplicaId, view: u64, logs: Vec<Holding>) {
        let present = self.membership.view();
        let starts = present.starts(from).max(self.joins.starts(from));
        if let Some(starts) = starts.filter(|_| view == present.number) {
            let is_old = |told: &&Holding| {
                let shard = present.shards.get(told.shard as usize);
                shard.is_some_and(|shard| told.generation < shard.generation)
            };
            let old = logs.iter().filter(is_old).map(|told| told.shard);
            self.holdings.has_old(from, starts, old.collect());
        }
        self.holdings.heard(from, view, logs);
    }

    /// The replicas that this one fetches the log of a shard from; none when it needs none.
    fn donors(&self, shard: usize) -> ReplicaSet {
        let (view, own) = (self.membership.view(), self.me.id());
        let of = &view.shards[shard];
        let wants = of.targets.contains(own) || view.is_active(shard) && of.members.contains(own);
        let wants = wants && self.shards[shard].catch_up.old.is_none();
        if !wants || self.membership.is_held(shard) || !self.membership.is_active() {
            return ReplicaSet::EMPTY;
        }
        let live = self.membership.live_peers();
        if view.is_active(shard) {
            return both(live, of.members);
        }
        let complete = |id: &ReplicaId| {
            let told = self.holdings.of(*id, view.number, shard);
            told.is_some_and(|told| told.complete && !told.begun_again && self.is_present(told))
        };
        live.iter().filter(complete).collect()
    }

    /// A beat: replicas that lack the log of a shard ask for it.
    pub(super) fn fetch_shards(&mut self, ctx: &mut Context<'_, Self>) {
        for shard in 0..self.shards.len() {
            if self.holds_too_little(shard) {
                ctx.mark("shard begun again by one replica alone");
                self.membership.set_held(shard, false);
                let stream = &mut self.shards[shard];
                (stream.holds, stream.catch_up.begun_again) = (false, false);
            }
            let donors = self.donors(shard);
            let (own, members) = (self.me.id(), self.me.members());
            let stream = &mut self.shards[shard];
            let end = stream.log.end();
            if donors.is_empty() {
                continue;
            }
            stream.catch_up.on_beat(end, own, members, donors);
            stream.catch_up.reached(end);
            let lacks = stream
                .catch_up
                .donor()
                .filter(|donor| donors.contains(*donor));
            if lacks.is_none() {
                stream.catch_up.next_donor(own, members, donors);
            }
            self.ask_for_shard(shard, ctx);
        }
    }

    /// Whether a member of an active shard shows in its row that it holds the log.
    pub(super) fn shows_log(&self, id: ReplicaId, shard: usize) -> bool {
        let block = self.shards[shard].block.unwrap_or(0);
        self.sst.read(id, self.sst.layout.held(block)) > 0
    }

    /// Whether a replica is on its way to hold the log of a shard.
    pub(super) fn shard_has_joiners(&self, shard: usize) -> bool {
        let (view, live) = (self.membership.view(), self.membership.live());
        let of = &view.shards[shard];
        if !view.is_active(shard) {
            return !both(of.targets, live).is_empty();
        }
        let lacks = |id: ReplicaId| !of.members.contains(id) || !self.shows_log(id, shard);
        let all = ReplicaSet(of.targets.0 | of.members.0);
        both(all, live).iter().any(lacks)
    }

    /// Whether a log counts as complete that was begun again where not all had lost it.
    fn holds_too_little(&self, shard: usize) -> bool {
        let view = self.membership.view();
        let mut all = self.me.others().iter();
        let more = |id| {
            let told = self.holdings.of(id, view.number, shard);
            told.is_some_and(|told| told.complete && !told.begun_again && self.is_present(told))
        };
        self.shards[shard].catch_up.begun_again && (view.is_active(shard) || all.any(more))
    }

    fn ask_for_shard(&mut self, shard: usize, ctx: &mut Context<'_, Self>) {
        let stream = &self.shards[shard];
        let Some(donor) = stream.catch_up.donor() else {
            return;
        };
        if stream.catch_up.is_fetching() {
            return;
        }
        let view = self.membership.view();
        let message = Message::Fetch {
            view: view.number,
            have: stream.log.end(),
            upto: if view.is_active(shard) { Slot(0) } else { ALL },
        };
        ctx.in_group(stream.group, |ctx| ctx.send(donor, Lane::Control, &message));
        self.shards[shard].catch_up.has_asked = true;
    }

    /// A message within a shard.
    pub(super) fn on_shard_message(
        &mut self,
        shard: usize,
        from: ReplicaId,
        message: Message,
        ctx: &mut Context<'_, Self>,
    ) {
        let at = Some(shard);
        let (number, active) = (self.membership.number(), self.membership.is_active());
        match message {
            Message::Bulk { view, .. } | Message::Block { view, .. }
                if view != number || !self.takes_part(at) =>
            {
                self.wait_for_view(at, from, view, message);
            }
            Message::Bulk { index, body, .. } => self.on_bulk(at, from, index, body.into_bytes()),
            Message::Block {
                number,
                large,
                block,
                bytes,
                ..
            } => self.on_block(at, from, number, large, (block, bytes), ctx),
            _ if !active => {}
            Message::Fetch { view, have, upto } if view == number => {
                self.on_shard_fetch(shard, from, have, upto, ctx);
            }
            Message::Tail {
                view,
                first,
                sure,
                entries,
            } if view == number => self.on_shard_tail(shard, (first, sure), entries, ctx),
            Message::Whole { view, end } if view == number => {
                self.on_whole(shard, end, ctx);
            }
            Message::Behind { at_least } if !self.donors(shard).is_empty() => {
                let (donors, stream) = (self.donors(shard), &mut self.shards[shard]);
                if at_least > stream.log.end() {
                    stream.catch_up.fetch(at_least, donors, ctx);
                }
            }
            _ => ctx.mark("ignored: not a message of a shard in this view"),
        }
    }

    fn on_shard_fetch(
        &self,
        shard: usize,
        from: ReplicaId,
        have: Slot,
        upto: Slot,
        ctx: &mut Context<'_, Self>,
    ) {
        let (view, stream) = (self.membership.view(), &self.shards[shard]);
        let log = &stream.log;
        if stream.catch_up.old.is_some() {
            return;
        }
        // Of a shard at work only what is delivered is certain.
        let whole = !view.is_active(shard) && stream.holds && !stream.catch_up.begun_again;
        let last = match whole {
            true => log.sure().max(upto.min(log.durable())),
            false => log.sure(),
        };
        if have.next() < log.first() {
            let at_least = log.first().previous();
            return ctx.send(from, Lane::Control, &Message::Behind { at_least });
        }
        if have >= last {
            if whole {
                let (view, end) = (view.number, last);
                ctx.send(from, Lane::Control, &Message::Whole { view, end });
            }
            return;
        }
        self.send_tail(log, from, have, last, ctx);
    }

    fn on_shard_tail(
        &mut self,
        shard: usize,
        (first, sure): (Slot, Slot),
        entries: Vec<Entry>,
        ctx: &mut Context<'_, Self>,
    ) {
        if self.donors(shard).is_empty() {
            return;
        }
        let lost = !self.membership.view().is_active(shard);
        let log = &mut self.shards[shard].log;
        let before = log.end();
        for (slot, entry) in (first.0..).map(Slot).zip(entries) {
            if slot == log.end().next() && (lost || slot <= sure) {
                log.append_fetched(entry, ctx);
            }
        }
        log.deliver(sure.min(log.end()));
        let progress = log.end() > before;
        self.shards[shard].execute(ctx);
        self.after_shard_catching_up(shard, ctx);
        if progress && !self.donors(shard).is_empty() {
            ctx.mark("entries of a shard fetched");
            self.ask_for_shard(shard, ctx);
        }
    }

    /// A member of an active shard that holds everything up to the base: it takes part as soon as
    /// that is on disk.
    pub(super) fn after_shard_catching_up(&mut self, shard: usize, ctx: &mut Context<'_, Self>) {
        let view = self.membership.view();
        let (of, own) = (&view.shards[shard], self.me.id());
        let copies = of.targets.contains(own) && self.injected(Bug::LogOfOneThatStayed);
        let member = view.is_active(shard) && (of.members.contains(own) || copies);
        if member
            && self.shards[shard].catch_up.old.is_none()
            && self.membership.is_active()
            && !self.membership.is_held(shard)
            && self.shards[shard]
                .log
                .sure()
                .min(self.shards[shard].log.durable())
                >= of.base
        {
            self.hold(shard, ctx);
        }
    }

    /// A copy of a lost shard's log reaches as far as a complete one.
    fn on_whole(&mut self, shard: usize, end: Slot, ctx: &mut Context<'_, Self>) {
        let log = &self.shards[shard].log;
        let lost = !self.membership.view().is_active(shard);
        if lost && !self.donors(shard).is_empty() && log.durable() >= end {
            ctx.mark("log of a lost shard copied");
            self.hold(shard, ctx);
        }
    }

    fn hold(&mut self, shard: usize, ctx: &mut Context<'_, Self>) {
        self.membership.set_held(shard, true);
        self.save(Act::Held(shard, self.membership.number()), ctx);
    }

    /// A beat of a member: tells, asks, and looks whether the shards need another view.
    pub(super) fn beat_shards(&mut self, ctx: &mut Context<'_, Self>) {
        if self.shards.is_empty() {
            return;
        }
        self.send_holds(ctx);
        self.fetch_shards(ctx);
        for shard in 0..self.shards.len() {
            self.maybe_begin(shard, ctx);
        }
        self.look_at_shards();
        self.note_shards();
        self.give_up_old(ctx);
    }
}

//! One replica: its state, and how events reach the parts.

use super::{
    Config,
    bug::Bug,
    catch_up::CatchUp,
    failures::Failures,
    generations::Keeping,
    inspection::Answer,
    joins::Joins,
    membership::{Act, Membership, Phase},
    message::{Entry, Message, Promised, Summary},
    reshape,
    restart_state::RestartState,
    rows::Rows,
    shards::Holdings,
    sst::{Layout, ON_RING, ON_SELF, ON_SHARD, ON_VIEW, Table},
    stream::Stream,
};
use alloc::{
    format,
    string::{String, ToString},
    vec,
    vec::Vec,
};
use core::time::Duration;
use quintet_replica::{
    Context, Control, Durability, FrontendId, GroupId, Incarnation, Info, Level, Link, NodeState,
    Options, PersistId, Protocol, Recovered, ReplicaId, ReplicaSet, Setup, Slot, Status, Time,
    Wake,
    parts::{Admitted, AttachedFrontend, Housekeeping, Member, admit, digest},
};

/// Any member takes requests and answers them, so the shared frontend is all it needs.
pub type Frontend = AttachedFrontend<Derecho>;

quintet_replica::timers! {
    /// The timers of a replica.
    pub enum Timer {
        /// Heartbeats, suspicion, asking again.
        Beat,
        /// Requests and reads in flight are looked through.
        Housekeeping,
    }
}

/// One replica of Derecho; see the module.
#[derive(Hash)]
pub struct Derecho {
    pub(super) me: Member,
    pub(super) config: Config,
    pub(super) membership: Membership,
    pub(super) failures: Failures,
    pub(super) joins: Joins,
    pub(super) catch_up: CatchUp,
    pub(super) restart: RestartState,
    pub(super) sst: Rows,
    /// The order of all members, and a stream for each shard.
    pub(super) stream: Stream,
    pub(super) shards: Vec<Stream>,
    pub(super) holdings: Holdings,
    pub(super) keeping: Keeping,
    /// The members that shards would have in the next view, when they need one.
    pub(super) coming: Option<Vec<ReplicaSet>>,
    /// Groups that have not started.
    starting: usize,
    pub(super) housekeeping: Housekeeping<Timer>,
}

impl Derecho {
    /// Writes the promise; what `act` says follows when it is durable.
    pub(super) fn save(&mut self, act: Act, ctx: &mut Context<'_, Self>) {
        let (sure, shards) = (self.stream.log.sure(), &self.shards);
        let in_shards = shards.iter().map(|shard| shard.log.sure());
        let membership = &mut self.membership;
        ctx.in_group(self.stream.group, |ctx| {
            membership.save(act, sure, in_shards, ctx)
        });
    }

    fn act(&mut self, act: Act, ctx: &mut Context<'_, Self>) {
        match act {
            Act::Begin => self.begin(ctx),
            Act::Echo(proposal) => self.on_echo_durable(&proposal, ctx),
            Act::Promise { to, ballot } => self.send_promise(to, ballot, ctx),
            Act::Accepted { to, ballot } => self.send_accepted(to, ballot, ctx),
            Act::Activate(view) => self.activated(view, ctx),
            Act::Held(shard, view) => self.on_held(shard, view, ctx),
        }
    }

    fn begin(&mut self, ctx: &mut Context<'_, Self>) {
        self.membership.begin();
        self.restart.out(ctx.now());
        ctx.set_timer(Timer::Beat, self.config.heartbeat);
        self.tell_roles(ctx);
        if self.membership.is_complete() && self.membership.belongs() {
            self.become_active(ctx);
        } else {
            self.send_join(self.me.others(), ctx);
        }
    }

    pub(super) fn arm_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        let housekeeping = &mut self.housekeeping;
        ctx.in_group(self.stream.group, |ctx| housekeeping.arm(ctx));
    }

    fn on_housekeeping(&mut self, ctx: &mut Context<'_, Self>) {
        self.housekeeping.fired();
        let (now, mut open) = (ctx.now(), false);
        for stream in core::iter::once(&mut self.stream).chain(&mut self.shards) {
            stream.relay.kept.expire(now);
            stream.reads.expire(now);
            open |= !stream.relay.kept.is_empty() || !stream.reads.is_empty();
        }
        if open {
            self.arm_housekeeping(ctx);
        }
    }

    /// Takes over the state that was durable before this start.
    fn restore(&mut self, recovered: Recovered<Promised, Entry, Summary>) -> bool {
        let Recovered {
            state_lost,
            first_boot,
            promise,
            checkpoint,
            records,
        } = recovered;
        let (membership, log) = (&mut self.membership, &mut self.stream.log);
        let again = membership.restore(promise, state_lost);
        if !membership.has_shards(self.shards.len()) {
            return false;
        }
        let state_lost = membership.state_lost();
        if !log.restore(checkpoint, records, state_lost) {
            return false;
        }
        let in_memory = self.me.durability() == Durability::Memory;
        if in_memory && again && !state_lost && !first_boot {
            membership.bootstrap(log.end());
        }
        if !membership.is_complete() {
            log.restored_partly(membership.sure());
        } else if !log.restored_complete(membership.number(), membership.view().base) {
            return false;
        }
        membership.restored(again, self.config.injected.is(Bug::RestartAsMember));
        true
    }

    /// The same of a shard, whose promise is the group's.
    fn restore_shard(
        &mut self,
        shard: usize,
        recovered: Recovered<Promised, Entry, Summary>,
    ) -> bool {
        let Recovered {
            state_lost,
            first_boot,
            checkpoint,
            records,
            ..
        } = recovered;
        let (membership, stream) = (&mut self.membership, &mut self.shards[shard]);
        let log = &mut stream.log;
        if stream.durability == Durability::Memory && !state_lost && !first_boot {
            // The operator begins again with nothing, in the place of all that was lost.
            membership.set_held(shard, true);
            (stream.holds, stream.catch_up.begun_again) = (true, true);
            return true;
        }
        if state_lost {
            membership.set_held(shard, false);
            stream.catch_up.is_lost = stream.durability == Durability::Disk;
        }
        // Of a log that is being copied the others have what is missing.
        if !log.restore(checkpoint, records, !membership.is_held(shard)) {
            return false;
        }
        if !membership.is_held(shard) {
            log.restored_partly(membership.sure_in(shard));
            return true;
        }
        let of = &membership.view().shards[shard];
        let whole = log.restored_complete(of.active_in, of.base);
        self.shards[shard].holds = true;
        whole
    }
}

impl Protocol for Derecho {
    quintet_replica::usual_items!();
    type Record = Entry;
    type ReplyHeader = ();

    const INFO: Info = Info {
        name: "derecho",
        paper: "Jha, Behrens, Gkountouvas, Milano, Song, Tremel, van Renesse, Zink, Birman, \
                Derecho: Fast State Machine Replication for Cloud Services, ACM TOCS 36(2), 2019",
        best_at: "steady streams from several replicas at once: every member multicasts what its \
                  clients ask for, and no member waits for a leader",
        tolerates: "crashes and partitions of a minority of the present view; views shrink and \
                    grow",
        stable: true,
        replicas_min: 1,
    };

    const NEEDS_STREAMS: bool = true;
    const CHANGES_MEMBERS: bool = true;

    const RESUMES_WITHIN: Duration = Duration::from_secs(3);
    const BRANCHES: &'static [&'static str] = &[
        "member suspected",
        "slow member removed",
        "restart without an incomplete log",
        "ragged trim computed",
        "ragged trim adopted",
        "view installed",
        "minority halts",
        "suspected by another",
        "member admitted",
        "restart inspected",
        "restart agreed",
        "restart around a view",
        "state installed",
        "nulls sent",
        "multicast by rdmc",
        "read waits for the next view",
    ];

    fn new(setup: Setup<Config>) -> Self {
        let me = Member::new(&setup);
        let (config, members) = (setup.options, me.members());
        let blocks = config.layout.subgroups().len();
        let places = config.layout.shards();
        let layout = Layout::new(members, config.window, config.smc_bytes_max)
            .with_shards(blocks, places.len());
        let shards = places.iter().zip(config.layout.groups());
        let shards: Vec<Stream> = shards
            .map(|(place, (group, durability))| {
                Stream::new(group, Some(place.subgroup as u32), durability, members)
            })
            .collect();
        Self {
            membership: Membership::new(&me, reshape::first(&config.layout, members)),
            starting: shards.len(),
            shards,
            holdings: Holdings::new(members),
            keeping: Keeping::new(members),
            coming: None,
            failures: Failures::new(members),
            joins: Joins::new(members),
            catch_up: CatchUp::default(),
            restart: RestartState::default(),
            sst: Rows::new(&me, Table::new(members, layout)),
            stream: Stream::new(setup.group, None, me.durability(), members),
            me,
            config,
            housekeeping: Housekeeping::new(Timer::Housekeeping),
        }
    }

    fn on_start(
        &mut self,
        recovered: Recovered<Promised, Entry, Summary>,
        ctx: &mut Context<'_, Self>,
    ) {
        if let Some(shard) = self.at(ctx.group()) {
            if !self.restore_shard(shard, recovered) {
                return ctx.halt_damaged();
            }
            self.shards[shard].execute(ctx);
            self.starting -= 1;
            if self.starting == 0 {
                self.save(Act::Begin, ctx);
            }
            return;
        }
        self.failures.start(ctx.now());
        if !self.restore(recovered) {
            return ctx.halt_damaged();
        }
        if self.membership.state_lost() {
            ctx.mark("lost what it had acknowledged");
            if self.me.members() == 1 {
                return self.halt_lost(ctx);
            }
        }
        self.stream.execute(ctx);
        if self.starting == 0 {
            self.save(Act::Begin, ctx);
        }
    }

    fn on_request(&mut self, from: FrontendId, message: Message, ctx: &mut Context<'_, Self>) {
        let at = self.at(ctx.group());
        let takes = self.takes_requests_in(ctx.group(), ctx.now());
        // A member that does not send reads all the same.
        let reads = takes || at.is_some() && self.takes_part(at);
        let rejects = |level| match level {
            Level::Stale => at.is_some() && self.of(at).catch_up.old.is_some(),
            Level::Linearizable => !reads,
            Level::Ordered => !takes,
        };
        match admit(from, message, rejects, ctx) {
            Some(Admitted::Read(key, batch)) => self.on_read(at, key, batch, ctx),
            Some(Admitted::Write(key, batch)) => self.on_write(at, key, batch, ctx),
            None => {}
        }
    }

    fn on_message(&mut self, from: ReplicaId, message: Message, ctx: &mut Context<'_, Self>) {
        self.failures.heard(from, ctx.arrived());
        if self.membership.phase() == Phase::Starting {
            return;
        }
        if let Some(shard) = self.at(ctx.group()) {
            return self.on_shard_message(shard, from, message, ctx);
        }
        match message {
            Message::Bulk { view, .. } | Message::Block { view, .. } if !self.active_in(view) => {
                self.wait_for_view(None, from, view, message);
            }
            Message::Bulk { index, body, .. } => {
                self.on_bulk(None, from, index, body.into_bytes());
            }
            Message::Block {
                number,
                large,
                block,
                bytes,
                ..
            } => self.on_block(None, from, number, large, (block, bytes), ctx),
            Message::Join(join) => self.on_join(from, join, ctx),
            Message::Views { views, active } => self.on_views(from, views, active, ctx),
            Message::Fetch { view, have, upto } => self.on_fetch(from, view, have, upto, ctx),
            Message::Tail {
                view,
                first,
                sure,
                entries,
            } => self.on_tail(from, view, (first, sure), entries, ctx),
            Message::Behind { at_least } => self.on_behind(at_least, ctx),
            Message::Prepare { view, ballot } => self.on_prepare(from, view, ballot, ctx),
            Message::Promise {
                view,
                ballot,
                member,
                complete,
                end,
                accepted,
            } => {
                let answer = Answer {
                    member,
                    complete,
                    end,
                    accepted,
                };
                if member.id == from {
                    self.on_promise((view, ballot), answer, ctx);
                }
            }
            Message::Accept {
                view,
                proposal,
                source,
            } => self.on_accept(from, view, proposal, source, ctx),
            Message::Accepted { view, ballot } => self.on_accepted(from, view, ballot, ctx),
            Message::Holds { view, logs } => self.on_holds(from, view, logs),
            Message::Keep {
                view,
                number,
                shards,
            } => self.on_keep(from, (view, number), shards, ctx),
            Message::Kept {
                view,
                number,
                shards,
            } => self.on_kept((view, number), &shards, ctx),
            Message::Whole { .. } => ctx.mark("ignored: a shard's message in the group itself"),
            Message::Request(_) | Message::Taken(_) => {
                ctx.mark("ignored: not a replica's message");
            }
        }
    }

    fn on_put(&mut self, from: ReplicaId, offset: u32, words: &[u64], ctx: &mut Context<'_, Self>) {
        if !self.me.others().contains(from) || self.at(ctx.group()).is_some() {
            return;
        }
        self.failures.heard(from, ctx.arrived());
        // A suspected member's row is frozen (§3.5).
        if self.membership.is_active() && self.membership.suspected().contains(from) {
            return;
        }
        let merged = self.sst.merge(from, offset, words);
        if merged.dirty & (ON_RING | ON_VIEW) != 0 {
            self.stream.incoming.came(from);
        }
        if merged.dirty & (ON_SHARD | ON_VIEW) != 0 {
            self.came_in_shards(from);
        }
        if merged.dirty & ON_VIEW != 0 {
            self.tell_route(ctx);
        }
        if merged.refused > 0 {
            ctx.mark("ignored: a column went back");
        }
    }

    fn on_timer(&mut self, timer: Timer, ctx: &mut Context<'_, Self>) {
        match timer {
            Timer::Beat => self.on_beat(ctx),
            Timer::Housekeeping => self.on_housekeeping(ctx),
        }
    }

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        if let Some(shard) = self.at(ctx.group()) {
            let number = self.membership.number();
            let persisted = self.shards[shard].log.on_persisted(upto, number);
            if let Some(number) = persisted.filter(|_| self.takes_part(Some(shard))) {
                self.shards[shard].order.persist(number);
                self.sst.touch(ON_SELF);
            }
            let group = self.stream.group;
            return ctx.in_group(group, |ctx| {
                self.after_shard_catching_up(shard, ctx);
                self.maybe_begin(shard, ctx);
            });
        }
        let persisted = self.stream.log.on_persisted(upto, self.membership.number());
        if let Some(number) = persisted.filter(|_| self.membership.is_active()) {
            self.stream.order.persist(number);
            self.sst.touch(ON_SELF);
        }
        while let Some(act) = self.membership.next_act(upto) {
            self.act(act, ctx);
        }
        if self.membership.is_out() {
            self.maybe_accept(ctx);
        }
    }

    fn on_executed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        // While a replica is on its way to be a member, twice as many entries may stay: what is
        // delivered while it fetches a state, it needs.
        let at = self.at(ctx.group());
        let joiners = match at {
            None => self.has_joiners(),
            Some(shard) => self.shard_has_joiners(shard),
        };
        // The logs of all shards that this replica is a member of share them.
        let number = self.membership.number();
        let parts = self.shards.iter().filter(|shard| shard.begun == number);
        let bytes_max = self.config.log_memory_bytes / (1 + parts.count());
        let bytes_max = bytes_max << u32::from(joiners);
        self.of_mut(at).log.on_executed(slot, bytes_max);
    }

    fn on_checkpointed(&mut self, slot: Slot, ctx: &mut Context<'_, Self>) {
        ctx.trim(slot.next());
    }

    fn on_installed(&mut self, slot: Slot, summary: Summary, ctx: &mut Context<'_, Self>) {
        ctx.mark("state installed");
        if let Some(shard) = self.at(ctx.group()) {
            let stream = &mut self.shards[shard];
            stream.catch_up.reached(slot);
            if stream.log.install(slot, summary) {
                ctx.trim(slot.next());
                stream.execute(ctx);
                self.after_shard_catching_up(shard, ctx);
            }
            return;
        }
        self.catch_up.reached(slot);
        if !self.stream.log.install(slot, summary) {
            return;
        }
        ctx.trim(slot.next());
        self.stream.execute(ctx);
        self.after_catching_up(ctx);
    }

    fn on_link(&mut self, peer: ReplicaId, link: Link, ctx: &mut Context<'_, Self>) {
        if self.at(ctx.group()).is_some() {
            return;
        }
        match link {
            Link::Up { .. } => {
                self.failures.link_up(peer);
                self.sst.link_up(peer);
                self.stream.rdmc.on_link_up(peer);
                for shard in &mut self.shards {
                    shard.rdmc.on_link_up(peer);
                }
                if self.membership.is_out() {
                    self.send_join(ReplicaSet::EMPTY.with(peer), ctx);
                }
            }
            Link::Reset => self.sst.lost(peer),
            Link::Down => self.failures.link_down(peer),
            Link::Arriving => self.failures.heard(peer, ctx.now()),
            Link::Room(_) => {}
        }
    }

    fn on_control(&mut self, control: Control, ctx: &mut Context<'_, Self>) {
        match control {
            Control::SlowMembers(slow) => {
                for stream in core::iter::once(&mut self.stream).chain(&mut self.shards) {
                    stream.waits.set_slow_pace(slow);
                }
            }
            // There is no leader for whom the others could wait.
            Control::Slow(_) | Control::Farther(_) | Control::EpochEnded => {}
            Control::CheckpointDue => {
                let log = &self.of(self.at(ctx.group())).log;
                if let Some(summary) = log.summary() {
                    ctx.checkpoint(log.executed(), &summary);
                }
            }
            Control::HandOff => self.hand_off(ctx),
            Control::ReportFailure(peer) => {
                if self.membership.is_active() && self.membership.peers().contains(peer) {
                    self.suspect(peer, ctx);
                }
            }
            Control::Option { name, value } => match self.config.changed(&name, &value) {
                Some(changed)
                    if !["window", "smc_bytes_max", "layout"].contains(&name.as_str()) =>
                {
                    self.config = changed;
                }
                _ => ctx.mark("ignored: option value"),
            },
        }
    }

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        if ctx.group() != self.stream.group {
            return ctx.in_group(self.stream.group, |ctx| self.on_idle(ctx));
        }
        if self.membership.is_active() {
            self.sst.touch(ON_SELF | ON_RING);
            self.run_triggers(ctx);
        }
        if self.membership.is_active() {
            self.send_messages(None, ctx);
            self.send_in_shards(ctx);
            self.raise_barrier();
            self.run_triggers(ctx);
        }
        if self.membership.is_active() {
            self.push(ctx);
            self.note_waiting(ctx.now());
        }
        Wake::Sleep
    }

    fn takes_requests(&self, _now: Time) -> bool {
        self.membership.is_active()
    }

    fn takes_requests_in(&self, group: GroupId, now: Time) -> bool {
        match self.at(group) {
            None => self.takes_requests(now),
            at => {
                let sends = self.of(at).sends(self.me.id());
                self.takes_part(at) && (sends || self.injected(Bug::RoleKeptAfterView))
            }
        }
    }

    fn status_in(&self, group: GroupId) -> Status {
        let Some(shard) = self.at(group) else {
            return self.status();
        };
        let (view, stream) = (self.membership.view(), &self.shards[shard]);
        let (of, takes_part) = (&view.shards[shard], self.takes_part(Some(shard)));
        let list = |set: ReplicaSet| {
            let ids: Vec<String> = set.iter().map(|id| id.0.to_string()).collect();
            ids.join(" ")
        };
        let mut details = vec![
            ("members", list(of.members)),
            ("senders", list(of.senders)),
            ("targets", list(of.targets)),
            ("active_in", of.active_in.to_string()),
            ("base", of.base.to_string()),
            ("generation", of.generation.to_string()),
            ("complete", self.holds_content(shard).to_string()),
        ];
        if takes_part {
            details.push((
                "ordered from",
                list(stream.senders().iter().copied().collect()),
            ));
        }
        if !view.is_active(shard) {
            details.push(("lacks", self.lacks(shard)));
        }
        Status {
            role: match (view.is_active(shard), of.members.contains(self.me.id())) {
                _ if takes_part => "member",
                (false, _) => "lost",
                (true, true) => "joining",
                (true, false) => "out",
            },
            view: view.number,
            accepted: stream.log.end(),
            committed: stream.log.sure(),
            stable: stream.log.executed(),
            voting: takes_part,
            details,
            ..Status::default()
        }
    }

    fn status(&self) -> Status {
        let (membership, stream) = (&self.membership, &self.stream);
        let leader = membership.leader().filter(|_| membership.is_active());
        let role = match membership.phase() {
            Phase::Starting => "starting",
            Phase::Active if membership.wedging() => "wedged",
            Phase::Active if leader == Some(self.me.id()) => "leader",
            Phase::Active => "member",
            Phase::Activating => "joining",
            Phase::Out if membership.lacks_state() => "state lost",
            Phase::Out if membership.belongs() => "joining",
            Phase::Out => "out",
        };
        let details = vec![
            ("members", self.picture()),
            ("starts", membership.member().starts.to_string()),
            ("base", membership.view().base.to_string()),
            ("ordered", stream.order.ordered().to_string()),
            ("persisted", stream.order.persisted().to_string()),
            ("delivered", stream.order.delivered().to_string()),
            ("log_first", stream.log.first().to_string()),
            ("log_bytes", stream.log.bytes().to_string()),
            ("requests", stream.relay.kept.len().to_string()),
            ("reads", stream.reads.len().to_string()),
            ("unacknowledged", stream.outgoing.len().to_string()),
            ("block_bytes", stream.rdmc.bytes().to_string()),
        ];
        let [slot, whole, blocks] = stream.outgoing.multicasts();
        Status {
            role,
            leader,
            paths: vec![("smc", slot), ("whole", whole), ("rdmc", blocks)],
            multicasts: vec![("smc", slot), ("whole", whole), ("rdmc", blocks)],
            view: membership.number(),
            accepted: stream.log.end(),
            committed: stream.log.sure(),
            stable: stream.log.executed(),
            voting: membership.is_active(),
            details,
        }
    }

    fn viable_in(members: usize, nodes: &[NodeState], route: &[(ReplicaId, Incarnation)]) -> bool {
        if route.is_empty() {
            return Self::viable(members, nodes);
        }
        let there = |node: &&NodeState| {
            node.up && !node.state_lost && route.iter().any(|(id, _)| *id == node.id)
        };
        nodes.iter().filter(there).count() > route.len() / 2
    }

    fn kept_alone(promise: &Promised, me: ReplicaId) -> Vec<usize> {
        let only = ReplicaSet::EMPTY.with(me);
        let shards = promise.view.shards.iter().zip(&promise.shards);
        let alone = shards
            .enumerate()
            .filter(|(_, (of, held))| held.complete && of.active_in > 0 && of.members == only);
        alone.map(|(shard, _)| shard).collect()
    }

    fn digest(&self) -> u64 {
        let (membership, stream) = (&self.membership, &self.stream);
        let words = [
            membership.phase() as u64,
            membership.number(),
            membership.member().starts,
            membership.promised().round,
            stream.log.first().0,
            stream.log.end().next().0,
            stream.log.bytes() as u64,
            stream.log.durable().0,
            stream.log.sure().0,
            stream.log.executed().0,
            stream.order.ordered(),
            stream.order.persisted(),
            stream.order.delivered(),
            stream.outgoing.sent(),
            membership.suspected().0 as u64,
            stream.log.time_seen().0,
            stream.relay.kept.len() as u64,
            stream.relay.kept.bytes() as u64,
            stream.reads.len() as u64,
            self.failures.digest(),
        ];
        let in_shards = self.shards.iter().flat_map(|shard| {
            let (log, order) = (&shard.log, &shard.order);
            [
                shard.begun,
                u64::from(shard.holds) | shard.catch_up.old.map_or(0, |old| 2 | old << 2),
                log.end().0,
                log.durable().0,
                log.sure().0,
                log.executed().0,
                order.ordered(),
                order.persisted(),
                order.delivered(),
                shard.outgoing.sent(),
            ]
        });
        let words = words.into_iter().chain(self.sst.control_words());
        digest(words.chain(in_shards))
    }

    fn assert_invariants(&self) {
        self.stream.log.assert_invariants();
        for shard in &self.shards {
            shard.log.assert_invariants();
        }
        let membership = &self.membership;
        if !membership.is_active() {
            return;
        }
        assert!(
            membership.is_complete(),
            "a member at work holds everything up to the base"
        );
        assert!(membership.belongs(), "it is a member in this incarnation");
        let early = self.injected(Bug::DeliverBeforeAll);
        (self.stream.order).assert_invariants(early);
        let own = self.me.id();
        for shard in self.parts() {
            let early = early || self.injected(Bug::DeliveredByShardMajority);
            let stream = &self.shards[shard];
            stream.order.assert_invariants(early);
            assert!(
                stream.holds && self.membership.is_held(shard),
                "a member at work in a shard holds its log, as its disk says"
            );
            assert!(
                stream.outgoing.len() <= self.config.window,
                "the window bounds what is sent in a shard"
            );
        }
        assert!(
            !self.sst.valid(own) || !membership.is_vote_unlogged(self.sst.proposed(own)),
            "a trim is echoed when it is on disk"
        );
        assert!(
            self.stream.outgoing.len() <= self.config.window,
            "the window bounds what is sent"
        );
        assert!(
            membership.has_quorum() || self.injected(Bug::MinorityContinues),
            "a minority halts"
        );
    }
}

impl Derecho {
    /// Whether all of a shard's content is here, and not an empty log in its place.
    pub(super) fn holds_content(&self, shard: usize) -> bool {
        self.membership.is_held(shard) && !self.shards[shard].catch_up.begun_again
    }

    /// The reason why a lost shard waits.
    fn lacks(&self, shard: usize) -> String {
        let of = &self.membership.view().shards[shard];
        let least = self.config.layout.subgroup(shard).min;
        let (last, view) = (&of.members, of.active_in);
        let with_log = self.holders(shard, self.membership.set()).len();
        let ids = |set: &ReplicaSet| {
            let ids: Vec<String> = set.iter().map(|id| id.0.to_string()).collect();
            ids.join(", ")
        };
        let mut text = match with_log {
            _ if view == 0 => format!("it needs {least} members and never had them"),
            0 => format!(
                "no replica here has its log, which {} had in view {view}",
                ids(last)
            ),
            _ => format!("{with_log} of at least {least} members have its log"),
        };
        if with_log == 0 && view > 0 && self.shards[shard].durability == Durability::Memory {
            text += "; when all of them have ended since, stop all replicas and start each with \
                     --bootstrap-again, which begins it with nothing";
        } else if of.targets.len() < least {
            let nodes = self.config.layout.shards()[shard].nodes;
            text += &format!("; of replicas {} too few are here", ids(&nodes));
        }
        text
    }

    fn picture(&self) -> String {
        let mut picture = String::new();
        for member in &self.membership.view().members {
            let (open, close) = if self.membership.suspected().contains(member.id) {
                ("(", ")")
            } else {
                ("", "")
            };
            let here = if member.id == self.me.id() { "*" } else { "" };
            let space = if picture.is_empty() { "" } else { " " };
            picture += &format!("{space}{open}{}{here}{close}", member.id.0);
        }
        picture
    }

    fn active_in(&self, view: u64) -> bool {
        self.membership.is_active() && self.membership.number() == view
    }
}

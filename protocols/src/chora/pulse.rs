//! The normal case: what a replica tells the others, and when (§6.2 to §6.4, §6.6, §6.7).
//!
//! ```text
//!              pulsing: one per round                  responsive: when there is something to say
//!   on_idle ──► round over? ──► Pulse ──► all     on_idle ──► due? ──► Pulse ──► all
//!
//!   Pulse = proposal for the own next slot + cumulative acknowledgement
//!         + SKIP to what others have proposed + NACK of what is missing + RECOVER of what is asked
//! ```
//!
//! A message means the same in both modes; only what lets a replica send differs, so each replica
//! may change at any time. Without load no replica pulses: there are heartbeats, and the first
//! request goes out at once.

use super::{
    Chora, Message, Value, ViewInit,
    acceptor::SLOTS_MAX,
    bug::Bug,
    message::{Batches, Fitness, Pulse},
    peers::Report,
    replica::Timer,
    rounds::Ended,
    view_state::Role,
};
use alloc::vec::Vec;
use core::time::Duration;
use quintet_replica::{
    ClockReading, CommandTime, Context, Lane, ReplicaId, ReplicaSet, Slot, Time, Wake,
};

/// More than a pulse takes besides its values.
const PULSE_BYTES: usize = 256;
/// At most that many slots are asked for at a time, and at most that many requests kept.
const NACK_MAX: u64 = 64;
/// Behind by more than this, a replica fetches pieces of the log instead of asking slot by slot.
const BEHIND_MAX: u64 = 256;

impl Chora {
    pub(super) fn fitness(&self, now: Time) -> Fitness {
        if self.catch_up.is_lost_in(self.view.number()) {
            Fitness::StateLost
        } else if self.catch_up.is_recovering() {
            Fitness::Recovering
        } else if self.election.is_leaving(now) {
            Fitness::Leaving
        } else if self.view.is_mute() {
            Fitness::Restarted
        } else {
            Fitness::Fit
        }
    }

    /// Everything that was learned in this turn goes out, if its time has come.
    pub(super) fn flush(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        self.send_forward(ctx);
        self.send_read_asks(ctx);
        let now = ctx.now();
        let pulsing = self.pulsing() && self.view.init().is_some();
        self.look_at_ack();
        if self.due() {
            self.pulse.note(false);
        }
        // Rounds that only wait for a replica become longer, up to when what is lacking is asked
        // for.
        self.pulse.set_timeout(self.config.coordination);
        self.pulse.rounds.set_early_exit(self.config.early_exit);
        // A round that ended early continues to its full length while there is nothing new to say:
        // else replicas that wait for something would tell each other so as fast as they can.
        let ended = self.pulse.rounds.check(now);
        let over = |ended: &Ended| !pulsing || *ended == Ended::Timeout || self.due();
        let lasts = self.busy() && now < self.pulse.rounds.ends_at();
        if ended.is_some_and(|ended| over(&ended) || !lasts) {
            let in_time = self.pulse.rounds.all_heard();
            self.pulse
                .synchrony
                .ended(in_time, self.pulse.rounds.lasted(now));
            self.pulse.rounds.rest();
            if let Some(pulsing) = self.pulse.synchrony.reconsider() {
                self.pulse.set_auto_pulsing(pulsing);
                ctx.mark(if pulsing {
                    "mode: pulsing"
                } else {
                    "mode: responsive"
                });
            }
            let round = self.config.round;
            let length = if round == Duration::ZERO {
                self.pulse
                    .synchrony
                    .round(self.view.live().len().saturating_sub(1))
            } else {
                round
            };
            self.pulse.set_round_length(length);
        }
        if pulsing {
            if !self.pulse.rounds.running() && self.busy() {
                if !self.due() {
                    self.pulse.note(true);
                }
                self.pulse.rounds.begin(now);
                self.send_pulse(now, ctx);
            } else if !self.pulse.rounds.running() && self.pulse.is_wanted() {
                self.send_pulse(now, ctx);
            }
        } else {
            let mut most = self.config.window;
            while most > 0 && (self.due() || self.pulse.is_wanted()) {
                if !self.pulse.rounds.running() && self.view.init().is_some() && self.busy() {
                    self.pulse.rounds.begin(now);
                }
                self.send_pulse(now, ctx);
                most -= 1;
            }
        }
        self.arm_coordination(ctx);
        if pulsing && self.pulse.rounds.running() {
            return Wake::At(self.pulse.rounds.ends_at());
        }
        Wake::Sleep
    }

    /// Looks at what is acknowledged since it was looked last. No replica waits for the
    /// acknowledgement of skipped slots, unless they lie before a proposal: the acknowledgement of
    /// the later slots is enough.
    fn look_at_ack(&mut self) {
        let (ack, init) = (self.ack(), self.view.init());
        let Some(init) = init.filter(|_| ack > Slot(0)) else {
            return;
        };
        let from = init.base.max(self.log.first()).previous();
        while let Some(slot) = self.pulse.look(from, ack) {
            let held = self.log.get(slot);
            self.pulse
                .want_ack(held.is_some_and(|held| held.value != Value::Noop));
        }
        let latest = self.proposer.latest();
        let waits = self.pulse.ack_sent() < latest && latest <= ack;
        self.pulse.want_ack(waits);
    }

    /// Whether there is something new that a replica waits for.
    fn due(&self) -> bool {
        self.pulse.has_news()
            || (self.can_propose() && self.proposer.is_wanted())
            || self.skip_due()
    }

    /// Whether others wait for a SKIP. One that goes further than what was proposed rides on the
    /// next pulse, which mostly is the acknowledgement.
    fn skip_due(&self) -> bool {
        let waited = self.proposer.latest().max(self.proposer.skip_demanded());
        self.proposer.next().is_some_and(|next| next <= waited) && self.skip_until().is_some()
    }

    /// Whether rounds must continue: something is to be said, or to be heard.
    fn busy(&self) -> bool {
        let live = self.view.live().without(self.me.id());
        self.due()
            || self.log.committed() < self.proposer.latest()
            || live.iter().any(|id| {
                let peer = &self.peers[id.index()];
                peer.acked() < self.proposer.latest() && !peer.contact.is_down()
            })
    }

    fn can_propose(&self) -> bool {
        let near = |slot: Slot| slot.0 <= self.log.committed().0 + SLOTS_MAX / 2;
        self.may_propose()
            && self.proposer.next().is_some_and(near)
            && self.proposer.outstanding().len() < self.config.window
    }

    /// The last own slot without a future proposal, so that no replica waits for it: those before
    /// the latest proposal, one turn more while there is nothing to propose, and slots that others
    /// asked for.
    fn skip_until(&self) -> Option<Slot> {
        let next = self.proposer.next().filter(|_| self.may_propose())?;
        let init = self.view.init()?;
        let turn = init.proposers.len() as u64;
        let mut until = self.proposer.skip_demanded().0;
        if self.proposer.latest() > init.base {
            let idle = !self.proposer.is_wanted();
            until = until.max(self.proposer.latest().0 + if idle { turn - 1 } else { 0 });
        }
        until = until.min(self.log.committed().0 + SLOTS_MAX / 2);
        let turns = until.checked_sub(next.0)? / turn;
        Some(Slot(next.0 + turns * turn))
    }

    fn time_of(clock: ClockReading, after: CommandTime) -> CommandTime {
        CommandTime(clock.now).max(after)
    }

    /// One message with all that there is to say.
    fn send_pulse(&mut self, now: Time, ctx: &mut Context<'_, Self>) {
        let mut pulse = Pulse {
            view: self.view.number(),
            incarnation: self.me.incarnation(),
            round: self.pulse.rounds.round(),
            stamp: now.0,
            fitness: self.fitness(now),
            loaded: self.load.demand.is_loaded(),
            slow: self.load.drag.slow(),
            ..Pulse::default()
        };
        if self.can_propose() && self.proposer.is_wanted() {
            let slot = self.proposer.next().expect("it can propose");
            let value = self.next_value(ctx);
            self.proposer.propose(slot);
            self.take_own(slot, value.clone(), ctx);
            self.proposer.advance(self.own_after(slot));
            pulse.proposal = Some((slot, value));
        }
        if let Some(until) = self.skip_until() {
            ctx.mark("skips to what was proposed");
            let mut from = self.proposer.next().expect("it may propose");
            let mut slot = Some(from);
            while let Some(own) = slot.filter(|own| *own <= until) {
                self.take_own(own, Value::Noop, ctx);
                slot = self.own_after(own);
            }
            self.proposer.advance(slot);
            if self.injected(Bug::SkipOverProposed)
                && let Some(init) = self.view.init()
            {
                from.0 = from.0.saturating_sub(init.proposers.len() as u64);
            }
            pulse.skip = Some((from, until));
        }
        pulse.nack = self.pulse.take_nack();
        let mut bytes = PULSE_BYTES;
        let mut lacking = ReplicaSet::EMPTY;
        while let Some((slot, to)) = self.pulse.take_repeated() {
            let held = self
                .log
                .get(slot)
                .filter(|held| held.view == self.view.number());
            let value = held.map(|held| &held.value).or(self.log.buffered(slot));
            if let Some(value) = value {
                bytes += value.bytes();
                pulse.recover.push((slot, value.clone()));
                lacking = ReplicaSet(lacking.0 | to.0);
            }
            if bytes > self.config.batch_bytes_max {
                break;
            }
        }
        if !pulse.recover.is_empty() {
            ctx.mark("proposals sent again");
        }
        self.maybe_commit(ctx);
        pulse.ack = self.ack();
        pulse.committed = self.log.committed();
        pulse.latest = self.proposer.latest();
        self.pulse.acknowledged(pulse.ack);
        let proposed = pulse.proposal.as_ref();
        let new = PULSE_BYTES + proposed.map_or(0, |(_, value)| value.bytes());
        // A replica that no other waits for hears of it by heartbeats only.
        let everyone = self.pulse.take_wanted();
        let recent = self.config.suspect_timeout * 2;
        let reachable = |id: &ReplicaId| {
            let peer = &self.peers[id.index()];
            everyone || (!peer.contact.is_down() && peer.contact.silence(now) < recent)
        };
        let audience: ReplicaSet = self.me.others().iter().filter(reachable).collect();
        if self.pulse.rounds.running() {
            // The one transmission of this round; in the responsive mode rounds only measure.
            let _ = self.pulse.rounds.multicast();
        }
        // Repeated values go to those that lack them. Where there is no room for values,
        // acknowledgements and requests go all the same: the others wait for them.
        let (mut whole, mut again, mut short) = Default::default();
        for id in audience.iter() {
            let repair = lacking.contains(id) && ctx.takes(id, bytes + new - PULSE_BYTES);
            let to: &mut ReplicaSet = if repair {
                &mut again
            } else if ctx.takes(id, new) {
                &mut whole
            } else {
                ctx.mark("pulse waits for room");
                &mut short
            };
            *to = to.with(id);
        }
        let mut message = Message::Pulse(pulse);
        if !again.is_empty() {
            ctx.multicast(again, Lane::Control, &message);
        }
        if let Message::Pulse(pulse) = &mut message {
            pulse.recover.clear();
        }
        ctx.multicast(whole, Lane::Control, &message);
        let room = |id: &ReplicaId| ctx.takes(*id, PULSE_BYTES);
        let short: ReplicaSet = short.iter().filter(room).collect();
        if let Message::Pulse(pulse) = &mut message
            && !short.is_empty()
        {
            pulse.proposal = None;
            ctx.multicast(short, Lane::Control, &message);
        }
    }

    /// Adaptive batching: all that waits becomes one proposal.
    fn next_value(&mut self, ctx: &Context<'_, Self>) -> Value {
        let mut batches = Batches::new();
        let mut bytes = 0;
        while let Some(batch) = self.proposer.queue.peek() {
            let full = self.config.batches_max != 0 && batches.len() >= self.config.batches_max;
            let large = bytes + batch.len() > self.config.batch_bytes_max;
            if full || (large && !batches.is_empty()) {
                break;
            }
            bytes += batch.len();
            batches.extend(self.proposer.queue.pop());
        }
        if batches.is_empty() {
            return Value::Noop;
        }
        let time = Self::time_of(ctx.clock(), self.log.time_seen());
        Value::Commands { time, batches }
    }

    fn own_after(&self, slot: Slot) -> Option<Slot> {
        self.view.init()?.next_slot(self.me.id(), slot)
    }

    fn take_own(&mut self, slot: Slot, value: Value, ctx: &mut Context<'_, Self>) {
        self.proposer.use_slot(slot);
        self.buffer_or_append(slot, value, ctx);
    }

    pub(super) fn on_pulse(&mut self, from: ReplicaId, pulse: Pulse, ctx: &mut Context<'_, Self>) {
        self.pulse
            .synchrony
            .arrived(from, pulse.stamp, ctx.arrived());
        self.peers[from.index()].on_report(Report {
            incarnation: pulse.incarnation,
            view: pulse.view,
            committed: pulse.committed,
            fitness: pulse.fitness,
            loaded: pulse.loaded,
            slow: pulse.slow,
        });
        if !self.in_view(from, pulse.view, ctx) {
            return;
        }
        self.pulse.rounds.arrived(from, pulse);
        while let Some((from, pulse)) = self.pulse.rounds.recv() {
            self.take_pulse(from, pulse, ctx);
        }
        if self.peers[from.index()].contact.is_first_word() && self.log.last() < self.target() {
            self.coordinate_now(ctx);
        }
    }

    fn take_pulse(&mut self, from: ReplicaId, pulse: Pulse, ctx: &mut Context<'_, Self>) {
        if pulse.incarnation != self.peers[from.index()].incarnation() {
            return ctx.mark("ignored: pulse of an earlier incarnation");
        }
        let far = Slot(self.log.committed().0 + SLOTS_MAX);
        if let Some((slot, value)) = pulse.proposal {
            self.proposer.learn_latest(slot.min(far));
            self.offer_from(from, slot, value, ctx);
        }
        if let Some((first, last)) = pulse.skip
            && let Some(init) = self.view.init().cloned()
        {
            let after = Slot(first.0.saturating_sub(1)).max(self.log.committed());
            let mut slot = init.next_slot(from, after);
            while let Some(own) = slot.filter(|own| *own <= last.min(far)) {
                self.offer(own, Value::Noop, ctx);
                slot = init.next_slot(from, own);
            }
        }
        for (slot, value) in pulse.recover {
            self.offer(slot, value, ctx);
        }
        self.proposer.learn_latest(pulse.latest.min(far));
        self.peers[from.index()].acknowledges(pulse.ack);
        if let Some((first, last)) = pulse.nack {
            self.on_nack(from, first, last, ctx);
        }
        self.maybe_commit(ctx);
        if self.view.init().is_some() {
            // Of this view's log the sender speaks as far as it acknowledges it.
            self.commit(pulse.committed.min(pulse.ack), ctx);
        }
    }

    fn offer_from(
        &mut self,
        from: ReplicaId,
        slot: Slot,
        value: Value,
        ctx: &mut Context<'_, Self>,
    ) {
        if let Some(init) = self.view.init()
            && init.owner(slot) != Some(from)
        {
            return ctx.mark("ignored: proposal for another's slot");
        }
        self.offer(slot, value, ctx);
    }

    /// A replica lacks these slots. Its proposer answers for each; in a new view, and when the
    /// proposer does not, whichever replica is asked (see `recovery.rs`).
    fn on_nack(&mut self, from: ReplicaId, first: Slot, last: Slot, ctx: &mut Context<'_, Self>) {
        let Some(init) = self.view.init().cloned() else {
            return;
        };
        self.pulse.synchrony.nacked();
        let last = last.min(Slot(first.0 + NACK_MAX));
        for slot in (first.0..=last.0).map(Slot) {
            let own = init.owner(slot) == Some(self.me.id());
            let next = self.proposer.next().unwrap_or(Slot(u64::MAX));
            if own && slot >= next {
                self.proposer.demand_skip(slot);
            } else if own || !self.config.accountable {
                self.pulse.repeat(slot, from);
            }
        }
        while self.pulse.drop_repeated(NACK_MAX as usize * 4) {
            ctx.mark("ignored: too many slots asked for");
        }
    }

    /// The last slot of the view that is known to hold something.
    fn target(&self) -> Slot {
        let of_view = self
            .peers
            .iter()
            .filter(|peer| peer.view() == self.view.number());
        let known = of_view.map(|peer| peer.acked().max(peer.committed())).max();
        let waits = self.log.last_buffered();
        self.proposer
            .latest()
            .max(known.unwrap_or_default())
            .max(waits.unwrap_or_default())
    }

    /// Whether something is outstanding that will not come by itself when a message was lost.
    fn wants_coordination(&self) -> bool {
        match self.view.init() {
            None => true,
            Some(init) => {
                self.log.committed() < self.proposer.latest().max(init.base)
                    || self.log.last() < self.target()
            }
        }
    }

    fn arm_coordination(&mut self, ctx: &mut Context<'_, Self>) {
        if self.coordination.is_armed() || !self.wants_coordination() {
            return;
        }
        let at = (self.log.last(), self.log.committed());
        let longer = self.coordination.arm(at);
        let pause = self.config.coordination.max(self.pulse.round_length() * 4);
        let delay = pause.saturating_mul(longer);
        ctx.set_timer(Timer::Coordination, delay.min(self.config.suspect_timeout));
    }

    /// Frames may be lost: what they said is said again, without waiting.
    pub(super) fn after_reset(&mut self, ctx: &mut Context<'_, Self>) {
        self.pulse.want();
        self.relay.kept.forward_all();
        self.repeat_reads(ctx);
        if self.wants_coordination() {
            self.coordinate_now(ctx);
        }
    }

    fn coordinate_now(&mut self, ctx: &mut Context<'_, Self>) {
        self.coordination.arm_now();
        ctx.set_timer(Timer::Coordination, Duration::ZERO);
    }

    /// See §6.6: what is missing is asked for, what may have been missed is repeated.
    pub(super) fn on_coordination(&mut self, ctx: &mut Context<'_, Self>) {
        self.coordination.fired();
        if !self.wants_coordination() {
            self.coordination.reset();
            return;
        }
        let now_at = (self.log.last(), self.log.committed());
        if self.coordination.moved(now_at) {
            // Something moved; that is what the timer waits for.
            self.coordination.reset();
            return;
        }
        let tries = self.coordination.try_again();
        let Some(init) = self.view.init().cloned() else {
            return match self.view.role() {
                Role::Candidate(_) if !self.is_behind(ctx.now()) => self.request_votes(ctx),
                _ => self.fetch_from_any(ctx),
            };
        };
        let (last, target) = (self.log.last(), self.target());
        if last < target {
            ctx.mark("asks for missing proposals");
            let accounted = tries < 2 && target.0 - last.0 < BEHIND_MAX;
            if accounted {
                let until = target.min(Slot(last.0 + NACK_MAX));
                self.pulse.ask(last.next(), until);
                self.pulse.synchrony.nacked();
            } else {
                self.fetch_from_any(ctx);
            }
        }
        if *self.view.role() == Role::Initiator {
            self.send_init(ctx);
        }
        self.repeat_own(&init, ctx.now());
        self.pulse.want();
    }

    /// Own proposals that not everybody has: acknowledgements tell who lacks them. A replica that
    /// acknowledges nothing more has no use for them, or they are on their way behind much else:
    /// it is sent them ever more rarely.
    fn repeat_own(&mut self, init: &ViewInit, now: Time) {
        let own: Vec<Slot> = self
            .proposer
            .outstanding()
            .iter()
            .copied()
            .take(OWN_REPEATED)
            .collect();
        for id in init.live.without(self.me.id()).iter() {
            let peer = &mut self.peers[id.index()];
            if !peer.may_repeat(now) {
                continue;
            }
            let acked = peer.acked();
            let lacks = own.iter().filter(|slot| **slot > acked);
            if lacks.clone().next().is_none() {
                continue;
            }
            peer.repeated(now, self.config.coordination);
            for slot in lacks {
                self.pulse.repeat(*slot, id);
            }
        }
    }
}

/// The most own proposals that are sent again at a time.
const OWN_REPEATED: usize = 8;

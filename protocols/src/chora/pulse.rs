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
//! may change at any time. Without load nobody pulses: there are heartbeats, and the first request
//! goes out at once.

use super::{
    Chora, Message, Value, ViewInit,
    log::SLOTS_MAX,
    message::{Batches, Fitness, Pulse},
    plant::Plant,
    replica::{Role, Timer},
    rounds::Ended,
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
        if let Some(recovery) = &self.recovery {
            if self.view <= recovery.floor {
                Fitness::Forgot
            } else {
                Fitness::Recovering
            }
        } else if self.leaving(now) {
            Fitness::Leaving
        } else if self.mute == Some(self.view) {
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
        let pulsing = self.pulsing() && self.init.is_some();
        self.look_at_ack();
        if self.due() {
            *self.rounds_quiet = 0;
        }
        // Rounds that only wait for somebody become longer, up to when what is lacking is asked
        // for.
        let length = self
            .round_length
            .saturating_mul(1 << (*self.rounds_quiet).min(8));
        let most = self.config.coordination.max(*self.round_length);
        self.rounds.set_timeout(length.min(most));
        self.rounds.set_early_exit(self.config.early_exit);
        // A round that ended early continues to its full length while there is nothing new to say:
        // else replicas that wait for something would tell each other so as fast as they can.
        let ended = self.rounds.check(now);
        let over = |ended: &Ended| !pulsing || *ended == Ended::Timeout || self.due();
        let lasts = self.busy() && now < self.rounds.ends_at();
        if ended.is_some_and(|ended| over(&ended) || !lasts) {
            let in_time = self.rounds.all_heard();
            self.synchrony.ended(in_time, self.rounds.lasted(now));
            self.rounds.rest();
            if let Some(pulsing) = self.synchrony.reconsider() {
                self.auto_pulsing = pulsing;
                ctx.mark(if pulsing {
                    "mode: pulsing"
                } else {
                    "mode: responsive"
                });
            }
            let round = self.config.round;
            *self.round_length = if round == Duration::ZERO {
                self.synchrony.round(self.live().len().saturating_sub(1))
            } else {
                round
            };
            if *self.rounds_quiet == 0 {
                self.rounds.set_timeout(*self.round_length);
            }
        }
        if pulsing {
            if !self.rounds.running() && self.busy() {
                if !self.due() {
                    *self.rounds_quiet += 1;
                }
                self.rounds.begin(now);
                self.send_pulse(now, ctx);
            } else if !self.rounds.running() && self.pulse_due {
                self.send_pulse(now, ctx);
            }
        } else {
            let mut most = self.config.window;
            while most > 0 && (self.due() || self.pulse_due) {
                if !self.rounds.running() && self.init.is_some() && self.busy() {
                    self.rounds.begin(now);
                }
                self.send_pulse(now, ctx);
                most -= 1;
            }
        }
        self.arm_coordination(ctx);
        if pulsing && self.rounds.running() {
            return Wake::At(self.rounds.ends_at());
        }
        Wake::Sleep
    }

    /// Looks at what is acknowledged since it was looked last. Nobody waits for the acknowledgement
    /// of slots that were skipped, unless they lie before something: that of what follows will do.
    fn look_at_ack(&mut self) {
        let (ack, init) = (self.ack(), self.init.as_ref());
        let Some(init) = init.filter(|_| ack > Slot(0)) else {
            return;
        };
        let from = init.base.max(self.log.first()).previous();
        self.ack_looked = self.ack_looked.max(from).min(ack);
        while self.ack_looked < ack {
            self.ack_looked = self.ack_looked.next();
            let held = self.log.get(self.ack_looked);
            self.ack_wanted |= held.is_some_and(|held| held.value != Value::Noop);
        }
        self.ack_wanted |= self.ack_sent < self.latest && self.latest <= ack;
    }

    /// Whether there is anything new that somebody waits for.
    fn due(&self) -> bool {
        self.ack_wanted
            || self.nack_due.is_some()
            || !self.recover_due.is_empty()
            || (self.can_propose() && (!self.queue.is_empty() || self.noop_wanted))
            || self.skip_due()
    }

    /// Whether others wait for a SKIP. One that goes further than what was proposed rides on the
    /// next pulse, which mostly is the acknowledgement.
    fn skip_due(&self) -> bool {
        let waited = self.latest.max(self.skip_demanded);
        self.next_propose.is_some_and(|next| next <= waited) && self.skip_until().is_some()
    }

    /// Whether rounds must continue: something is to be said, or to be heard.
    fn busy(&self) -> bool {
        let live = self.live().without(self.id);
        self.due()
            || self.committed < self.latest
            || live.iter().any(|id| {
                let peer = &self.peers[id.index()];
                peer.acked < self.latest && peer.down_at.is_none()
            })
    }

    fn can_propose(&self) -> bool {
        let near = |slot: Slot| slot.0 <= self.committed.0 + SLOTS_MAX / 2;
        self.may_propose()
            && self.next_propose.is_some_and(near)
            && self.outstanding.len() < self.config.window
    }

    /// The last own slot that nothing will be proposed in, so that nobody waits for it: those
    /// before the latest proposal, one turn more while there is nothing to propose, and what others
    /// asked for.
    fn skip_until(&self) -> Option<Slot> {
        let next = self.next_propose.filter(|_| self.may_propose())?;
        let init = self.init.as_ref()?;
        let turn = init.proposers.len() as u64;
        let mut until = self.skip_demanded.0;
        if self.latest > init.base {
            let idle = self.queue.is_empty() && !self.noop_wanted;
            until = until.max(self.latest.0 + if idle { turn - 1 } else { 0 });
        }
        until = until.min(self.committed.0 + SLOTS_MAX / 2);
        let turns = until.checked_sub(next.0)? / turn;
        Some(Slot(next.0 + turns * turn))
    }

    fn time_of(clock: ClockReading, after: CommandTime) -> CommandTime {
        CommandTime(clock.now).max(after)
    }

    /// One message with all that there is to say.
    fn send_pulse(&mut self, now: Time, ctx: &mut Context<'_, Self>) {
        let mut pulse = Pulse {
            view: self.view,
            incarnation: self.incarnation,
            round: self.rounds.round(),
            stamp: now.0,
            fitness: self.fitness(now),
            loaded: self.demand.loaded,
            slow: self.drag.slow,
            ..Pulse::default()
        };
        if self.can_propose() && (!self.queue.is_empty() || self.noop_wanted) {
            let slot = self.next_propose.expect("it can propose");
            let value = self.next_value(ctx);
            self.latest = self.latest.max(slot);
            self.outstanding.push_back(slot);
            self.take_own(slot, value.clone(), ctx);
            self.next_propose = self.own_after(slot);
            pulse.proposal = Some((slot, value));
            self.noop_wanted = false;
        }
        if let Some(until) = self.skip_until() {
            ctx.mark("skips to what was proposed");
            let mut from = self.next_propose.expect("it may propose");
            let mut slot = Some(from);
            while let Some(own) = slot.filter(|own| *own <= until) {
                self.take_own(own, Value::Noop, ctx);
                slot = self.own_after(own);
            }
            self.next_propose = slot;
            if self.planted(Plant::SkipOverProposed)
                && let Some(init) = &self.init
            {
                from.0 = from.0.saturating_sub(init.proposers.len() as u64);
            }
            pulse.skip = Some((from, until));
        }
        pulse.nack = self.nack_due.take();
        let mut bytes = PULSE_BYTES;
        let mut lacking = ReplicaSet::EMPTY;
        while let Some((slot, to)) = self.recover_due.pop_first() {
            let held = self.log.get(slot).filter(|held| held.view == self.view);
            let value = held.map(|held| &held.value).or(self.buffer.get(&slot));
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
        pulse.committed = self.committed;
        pulse.latest = self.latest;
        self.ack_sent = pulse.ack;
        self.ack_wanted = false;
        let proposed = pulse.proposal.as_ref();
        let new = PULSE_BYTES + proposed.map_or(0, |(_, value)| value.bytes());
        // A replica that nobody waits for hears of it by heartbeats only.
        let everyone = self.pulse_due;
        self.pulse_due = false;
        let recent = self.config.suspect * 2;
        let reachable = |id: &ReplicaId| {
            let peer = &self.peers[id.index()];
            everyone || (peer.down_at.is_none() && now.since(peer.heard_at) < recent)
        };
        let audience: ReplicaSet = self.others.iter().filter(reachable).collect();
        if self.rounds.running() {
            // The one transmission of this round; in the responsive mode rounds only measure.
            let _ = self.rounds.multicast();
        }
        // What is sent again goes to those that lack it, and where there is no room for values,
        // what is acknowledged and asked for goes all the same: the others wait for that.
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
        while let Some(batch) = self.queue.peek() {
            let full = self.config.batches_max != 0 && batches.len() >= self.config.batches_max;
            let large = bytes + batch.len() > self.config.batch_bytes_max;
            if full || (large && !batches.is_empty()) {
                break;
            }
            bytes += batch.len();
            batches.extend(self.queue.pop());
        }
        if batches.is_empty() {
            return Value::Noop;
        }
        let time = Self::time_of(ctx.clock(), self.time_seen);
        Value::Commands { time, batches }
    }

    fn own_after(&self, slot: Slot) -> Option<Slot> {
        self.init.as_ref()?.next_slot(self.id, slot)
    }

    fn take_own(&mut self, slot: Slot, value: Value, ctx: &mut Context<'_, Self>) {
        assert!(slot > self.own_used, "a slot is proposed in once");
        self.own_used = slot;
        self.buffer_or_append(slot, value, ctx);
    }

    pub(super) fn on_pulse(&mut self, from: ReplicaId, pulse: Pulse, ctx: &mut Context<'_, Self>) {
        self.synchrony.arrived(from, pulse.stamp, ctx.arrived());
        let peer = &mut self.peers[from.index()];
        if pulse.incarnation == peer.incarnation {
            peer.committed = peer.committed.max(pulse.committed);
        }
        peer.fitness = pulse.fitness;
        peer.loaded = pulse.loaded;
        peer.slow = pulse.slow;
        peer.view = pulse.view;
        if !self.in_view(from, pulse.view, ctx) {
            return;
        }
        self.rounds.arrived(from, pulse);
        while let Some((from, pulse)) = self.rounds.recv() {
            self.take_pulse(from, pulse, ctx);
        }
    }

    fn take_pulse(&mut self, from: ReplicaId, pulse: Pulse, ctx: &mut Context<'_, Self>) {
        if pulse.incarnation != self.peers[from.index()].incarnation {
            return ctx.mark("ignored: pulse of an earlier life");
        }
        let far = Slot(self.committed.0 + SLOTS_MAX);
        if let Some((slot, value)) = pulse.proposal {
            self.latest = self.latest.max(slot.min(far));
            self.offer_from(from, slot, value, ctx);
        }
        if let Some((first, last)) = pulse.skip
            && let Some(init) = self.init.clone()
        {
            let after = Slot(first.0.saturating_sub(1)).max(self.committed);
            let mut slot = init.next_slot(from, after);
            while let Some(own) = slot.filter(|own| *own <= last.min(far)) {
                self.offer(own, Value::Noop, ctx);
                slot = init.next_slot(from, own);
            }
        }
        for (slot, value) in pulse.recover {
            self.offer(slot, value, ctx);
        }
        self.latest = self.latest.max(pulse.latest.min(far));
        let peer = &mut self.peers[from.index()];
        peer.acked = peer.acked.max(pulse.ack);
        if let Some((first, last)) = pulse.nack {
            self.on_nack(from, first, last, ctx);
        }
        self.maybe_commit(ctx);
        if self.init.is_some() {
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
        if let Some(init) = &self.init
            && init.owner(slot) != Some(from)
        {
            return ctx.mark("ignored: proposal for another's slot");
        }
        self.offer(slot, value, ctx);
    }

    /// Somebody lacks these slots. Its proposer answers for each; in a new view, and when the
    /// proposer does not, whichever replica is asked (see `recovery.rs`).
    fn on_nack(&mut self, from: ReplicaId, first: Slot, last: Slot, ctx: &mut Context<'_, Self>) {
        let Some(init) = self.init.clone() else {
            return;
        };
        self.synchrony.nacked();
        let last = last.min(Slot(first.0 + NACK_MAX));
        for slot in (first.0..=last.0).map(Slot) {
            let own = init.owner(slot) == Some(self.id);
            let next = self.next_propose.unwrap_or(Slot(u64::MAX));
            if own && slot >= next {
                self.skip_demanded = self.skip_demanded.max(slot);
            } else if own || !self.config.accountable {
                let lacking = self.recover_due.entry(slot).or_default();
                *lacking = lacking.with(from);
            }
        }
        while self.recover_due.len() as u64 > NACK_MAX * 4 {
            self.recover_due.pop_last();
            ctx.mark("ignored: too many slots asked for");
        }
    }

    /// The last slot of the view that is known to hold something.
    fn target(&self) -> Slot {
        let of_view = self.peers.iter().filter(|peer| peer.view == self.view);
        let known = of_view.map(|peer| peer.acked.max(peer.committed)).max();
        let waits = self.buffer.keys().next_back().copied();
        self.latest
            .max(known.unwrap_or_default())
            .max(waits.unwrap_or_default())
    }

    /// Whether something is outstanding that will not come by itself when a message was lost.
    fn wants_coordination(&self) -> bool {
        match &self.init {
            None => true,
            Some(init) => {
                self.committed < self.latest.max(init.base) || self.last_append() < self.target()
            }
        }
    }

    fn arm_coordination(&mut self, ctx: &mut Context<'_, Self>) {
        if self.coordination_armed || !self.wants_coordination() {
            return;
        }
        self.coordination_armed = true;
        self.coordination_saw = (self.last_append(), self.committed);
        let delay = self
            .config
            .coordination
            .max(*self.round_length * 4)
            .saturating_mul(1 << self.coordination_tries.min(4));
        ctx.set_timer(Timer::Coordination, delay.min(self.config.suspect));
    }

    /// Frames may be lost: what they said is said again, without waiting.
    pub(super) fn after_reset(&mut self, ctx: &mut Context<'_, Self>) {
        self.pulse_due = true;
        self.requests.pass_on_all();
        self.repeat_reads(ctx);
        if self.wants_coordination() {
            self.coordination_armed = true;
            self.coordination_saw = (Slot(u64::MAX), Slot(u64::MAX));
            ctx.set_timer(Timer::Coordination, Duration::ZERO);
        }
    }

    /// See §6.6: what is missing is asked for, what may have been missed is repeated.
    pub(super) fn on_coordination(&mut self, ctx: &mut Context<'_, Self>) {
        self.coordination_armed = false;
        if !self.wants_coordination() {
            self.coordination_tries = 0;
            return;
        }
        let now_at = (self.last_append(), self.committed);
        if now_at != self.coordination_saw && self.coordination_saw.0 != Slot(u64::MAX) {
            // Something moved; that is what the timer waits for.
            self.coordination_tries = 0;
            return;
        }
        self.coordination_tries += 1;
        let Some(init) = self.init.clone() else {
            return match self.role {
                Role::Candidate(_) if !self.is_behind(ctx.now()) => self.request_votes(ctx),
                _ => self.fetch_from_somebody(ctx),
            };
        };
        let (last, target) = (self.last_append(), self.target());
        if last < target {
            ctx.mark("asks for missing proposals");
            let accounted = self.coordination_tries < 2 && target.0 - last.0 < BEHIND_MAX;
            if accounted {
                let until = target.min(Slot(last.0 + NACK_MAX));
                self.nack_due = Some((last.next(), until));
                self.synchrony.nacked();
            } else {
                self.fetch_from_somebody(ctx);
            }
        }
        if self.role == Role::Initiator {
            self.send_init(ctx);
        }
        self.repeat_own(&init, ctx.now());
        self.pulse_due = true;
    }

    /// Own proposals that not everybody has: acknowledgements tell who lacks them. A replica that
    /// acknowledges nothing more has no use for them, or they are on their way behind much else:
    /// it is sent them ever more rarely.
    fn repeat_own(&mut self, init: &ViewInit, now: Time) {
        let own: Vec<Slot> = self
            .outstanding
            .iter()
            .copied()
            .take(OWN_REPEATED)
            .collect();
        for id in init.live.without(self.id).iter() {
            let peer = &mut self.peers[id.index()];
            let repair = &mut peer.repair;
            if repair.acked != peer.acked {
                *repair = Repair {
                    acked: peer.acked,
                    ..Repair::default()
                };
            }
            if now < repair.not_before {
                continue;
            }
            let acked = peer.acked;
            let lacks = own.iter().filter(|slot| **slot > acked);
            if lacks.clone().next().is_none() {
                continue;
            }
            let pause = self.config.coordination * (1 << repair.tries.min(REPEATS_MAX));
            repair.tries += 1;
            repair.not_before = now + pause;
            for slot in lacks {
                let lacking = self.recover_due.entry(*slot).or_default();
                *lacking = lacking.with(id);
            }
        }
    }
}

/// The most own proposals that are sent again at a time.
const OWN_REPEATED: usize = 8;
/// The time between two of them is doubled at most so often.
const REPEATS_MAX: u32 = 6;

/// How often a replica has been sent again what it lacks.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Repair {
    /// What it acknowledged when it was.
    acked: Slot,
    tries: u32,
    not_before: Time,
}

//! A node's own timers, and the empty batches that carry time forward.

use super::*;
use crate::parts::Quicker;

/// A replica that executes more commands per second is busy.
const BUSY_FROM: u128 = 100;

impl Node {
    pub(super) fn on_timer(&mut self, key: TimerKey, world: &dyn World, out: &mut Vec<Output>) {
        match key.timer {
            TIMER_FETCH => {
                let saving = matches!(
                    self.unfinished,
                    Some(Unfinished {
                        kind: Under::Fetched { whole: true },
                        ..
                    })
                );
                // Batches executed ahead of their commit may still be undone.
                let stable = self.executor.stable();
                if saving {
                    // It may yet fail to be saved, and is asked for again then.
                    let at = Deadline::At(world.now() + transfer::RETRY);
                    out.push(Output::SetTimer {
                        key: node_timer(TIMER_FETCH),
                        at,
                    });
                } else if !self.installs_arriving()
                    && (self.fetch.as_ref()).is_some_and(|fetch| fetch.at_least <= stable)
                {
                    self.end_fetch(out);
                } else if self.follows() {
                    self.on_follow_timer(world, out);
                } else {
                    self.on_fetch_timer(world, out);
                }
            }
            TIMER_TICK => {
                self.tick_at = None;
                self.maybe_tick(world, out);
            }
            TIMER_DIGEST_SLICE => self.digest_slice(world, out),
            TIMER_DIGEST_ASK => self.digests.ask_again(),
            TIMER_DIGEST_GRACE => self.on_digest_grace(out),
            TIMER_PACE => self.on_pace_timer(world, out),
            TIMER_EPOCH => self.on_epoch_timer(world, out),
            _ => unreachable!("the node has seven timers"),
        }
    }

    /// Sets the time of the next beat.
    pub(super) fn arm_pace(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let beats = !self.pace_beat.is_zero() && self.voters.len() > 1 && !self.is_learner();
        if beats && !core::mem::replace(&mut self.pace_armed, true) {
            out.push(Output::SetTimer {
                key: node_timer(TIMER_PACE),
                at: Deadline::At(world.now() + self.pace_beat),
            });
        }
    }

    /// Asks all peers how far they are, has the protocol hand over where this replica leads and is
    /// far slower than others, and tells it which members are slow.
    fn on_pace_timer(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        self.pace_armed = false;
        if self.is_between_epochs() {
            // The next one sets it again.
            return;
        }
        let status = self.replica.status(self.group);
        let now = world.now();
        self.note_commands(now);
        let Some(rank) = self.voters.rank(self.id) else {
            return;
        };
        let leader = status.leader.and_then(|leader| self.voters.rank(leader));
        let (question, quick) = self.pace.beat(rank, leader, status.voting, now);
        self.send_pace(
            (self.succession).running(self.voters.set().without(self.id)),
            question,
            out,
        );
        if let Some(quick) = quick {
            let (mark, control) = match quick {
                Quicker::All(by) => ("slow beside others", Control::Slow(self.voters.numbers(by))),
                Quicker::OneLink(by) => {
                    let by = self.voters.numbers(by);
                    ("at an end of a slow link", Control::Farther(by))
                }
            };
            out.push(Output::Mark(mark));
            self.events.push_back(Event::Control(control));
        }
        if let Some(slow) = self.pace.slow_members(rank, now) {
            out.push(Output::Mark("other members are slow"));
            let control = Control::SlowMembers(self.voters.numbers(slow));
            self.events.push_back(Event::Control(control));
        }
        self.arm_pace(world, out);
    }

    /// Whether clients have had commands executed since the last beat: more than a few.
    fn note_commands(&mut self, now: Time) {
        let commands = self.executor.commands();
        let (before, since) = core::mem::replace(&mut self.beat_last, (commands, now));
        let executed = u128::from(commands.saturating_sub(before));
        self.busy = executed * 1000 > now.since(since).as_millis() * BUSY_FROM;
    }

    pub(super) fn send_pace(
        &mut self,
        to: ReplicaSet,
        message: PaceMessage,
        out: &mut Vec<Output>,
    ) {
        let mut writer = Writer::new(&mut self.scratch);
        message.encode(&mut writer);
        let frame = writer.finish();
        out.push(Output::Send {
            to: Recipients::Replicas(to),
            lane: Lane::Control,
            frame: self.wrap(FrameKind::Pace, frame),
        });
    }

    fn leads(&self) -> bool {
        let leader = self.replica.status(self.group).leader;
        leader.is_none_or(|leader| leader == self.id)
    }

    /// When the state changes by itself and no batch comes by, the leader orders an empty one, so
    /// that expiry happens at the same place on every replica.
    pub(super) fn maybe_tick(&mut self, world: &dyn World, out: &mut Vec<Output>) {
        let Some(deadline) = self.executor.next_deadline() else {
            return;
        };
        if self.executor.has_seal() || self.is_between_epochs() {
            // Nothing ends any more in this epoch.
            return;
        }
        if self.tick_at == Some(deadline.0) || self.tick_open.is_some() {
            return;
        }
        let clock = world.clock().now;
        let mut due = deadline.0;
        // The leader matters, and is looked up, only once the time has come.
        if clock >= due && !self.leads() {
            // Others step in when the leader does not.
            let timeout = u64::try_from(TICK_TIMEOUT.as_nanos()).unwrap_or(u64::MAX);
            due = due.saturating_add(timeout);
        }
        if clock < due {
            self.tick_at = Some(deadline.0);
            let mut wait = Duration::from_nanos(due - clock);
            if clock < self.executor.time().0 {
                // Right after a start the clock may not be known yet.
                wait = wait.min(TICK_TIMEOUT);
            }
            let at = Deadline::At(world.now() + wait);
            out.push(Output::SetTimer {
                key: node_timer(TIMER_TICK),
                at,
            });
            return;
        }
        if let Some((last, submitted)) = self.tick_last {
            // The log's time is that of the replica that orders. Where it is behind this clock, the
            // deadline stands after the batch as before, and another one at once would change
            // nothing either. Where it has come, one batch was not enough for all that ends then.
            let came = self.executor.time() >= deadline;
            let pause = match (self.leads(), last == deadline.0) {
                (true, true) if came => TICK_PAUSE,
                (true, false) => Duration::ZERO,
                _ => TICK_TIMEOUT,
            };
            let again = submitted + pause;
            if world.now() < again {
                self.tick_at = Some(deadline.0);
                out.push(Output::SetTimer {
                    key: node_timer(TIMER_TICK),
                    at: Deadline::At(again),
                });
                return;
            }
        }
        self.tick_last = Some((deadline.0, world.now()));
        let id = self.submit_tick(&[], world);
        self.tick_open = Some(id);
        self.carry_out(world, out);
    }

    /// Submits a batch of nothing but a tick.
    pub(super) fn submit_tick(&mut self, payload: &[u8], world: &dyn World) -> BatchId {
        self.submit_own(RequestKind::Tick, payload, TICK_TIMEOUT, world)
    }

    /// Submits a batch of the node's own, with one request.
    pub(super) fn submit_own(
        &mut self,
        kind: RequestKind,
        payload: &[u8],
        timeout: Duration,
        world: &dyn World,
    ) -> BatchId {
        let id = BatchId(self.batch_next);
        self.batch_next += 1;
        self.batches.push(CommandId::default(), kind, 0, payload);
        let batch = self.batches.finish(self.frontend, id, Level::Ordered);
        let deadline = world.now() + timeout;
        self.events.push_back(Event::Submit(Submission {
            id,
            level: Level::Ordered,
            batch,
            deadline,
        }));
        id
    }
}

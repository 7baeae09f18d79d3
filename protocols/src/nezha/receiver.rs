//! The times that a receiver of deadlines knows: its clock, and how long senders' messages take.

use super::dom::{Estimation, Holds, OneWayDelays};
use quintet_replica::{Context, FrontendId, Protocol, parts::Timing};

/// See the module.
#[derive(Hash)]
pub(super) struct Receiver {
    delays: OneWayDelays,
    holds: Timing<Holds>,
    /// The deviation of the own clock when it was last read.
    deviation: u64,
    /// For which deadline the timer is set; 0 when it is not.
    release_at: u64,
}

impl Receiver {
    pub fn new(estimation: Estimation) -> Self {
        Self {
            delays: OneWayDelays::new(estimation),
            holds: Timing::default(),
            deviation: u64::MAX,
            release_at: 0,
        }
    }

    pub const fn retune(&mut self, estimation: Estimation) {
        self.delays.retune(estimation);
    }

    /// Reading a clock is a good part of what a batch costs, so that it is read once for each.
    pub fn read_clock<P: Protocol>(&mut self, ctx: &Context<'_, P>) -> u64 {
        let clock = ctx.clock();
        self.deviation = clock.deviation;
        clock.now
    }

    /// A request came that was sent at this time, by a clock with this deviation; gives what the
    /// own clock shows.
    pub fn on_request<P: Protocol>(
        &mut self,
        frontend: FrontendId,
        (sent, deviation): (u64, u64),
        ctx: &Context<'_, P>,
    ) -> u64 {
        let clock = self.read_clock(ctx);
        let since = u64::try_from(ctx.now().since(ctx.arrived()).as_nanos()).unwrap_or(0);
        let arrived = clock.saturating_sub(since);
        self.delays.measure(frontend, sent, arrived, deviation);
        clock
    }

    /// The latency bound that is asked of a sender.
    pub fn bound_for<P: Protocol>(&self, frontend: FrontendId, ctx: &Context<'_, P>) -> u64 {
        if frontend == ctx.embedded() {
            // Nothing lies between the two, and a delay of nothing is not one that went wrong.
            return 0;
        }
        self.delays.estimate(frontend, self.deviation).unwrap_or(0)
    }

    /// A request with this deadline came when the clock showed `clock`.
    pub fn holds(&mut self, deadline: u64, clock: u64) {
        self.holds.add(deadline, clock);
    }

    /// How long requests are held of late, in nanoseconds.
    pub fn hold(&self) -> Option<u64> {
        self.holds.median()
    }

    /// Whether the timer is to be set for this deadline.
    pub const fn arm_release(&mut self, deadline: u64) -> bool {
        core::mem::replace(&mut self.release_at, deadline) != deadline
    }

    pub const fn release_fired(&mut self) {
        self.release_at = 0;
    }
}

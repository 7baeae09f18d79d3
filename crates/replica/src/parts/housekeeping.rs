//! The timer that looks through requests and reads while there are any.

use crate::{Context, Protocol};
use core::time::Duration;

/// How often they are looked through.
const EVERY: Duration = Duration::from_millis(500);

/// Whether the timer is set.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub struct Housekeeping(bool);

impl Housekeeping {
    /// Sets the timer, unless it is set.
    pub fn arm<P: Protocol>(&mut self, timer: P::Timer, ctx: &mut Context<'_, P>) {
        if !self.0 {
            self.0 = true;
            ctx.set_timer(timer, EVERY);
        }
    }

    /// The timer has fired; the caller arms it again while there is something to look through.
    pub const fn fired(&mut self) {
        self.0 = false;
    }
}

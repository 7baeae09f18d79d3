//! The timer that looks through requests and reads while there are any.

use crate::{Context, Protocol};
use core::{
    hash::{Hash, Hasher},
    time::Duration,
};

/// How often they are looked through.
const EVERY: Duration = Duration::from_millis(500);

/// The timer, and whether it is set.
#[derive(Clone, Copy, Debug)]
pub struct Housekeeping<T> {
    timer: T,
    armed: bool,
}

impl<T> Hash for Housekeeping<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.armed.hash(hasher);
    }
}

impl<T: Copy> Housekeeping<T> {
    /// By this timer, which is not set.
    #[must_use]
    pub const fn new(timer: T) -> Self {
        Self {
            timer,
            armed: false,
        }
    }

    /// Sets the timer, unless it is set.
    pub fn arm<P: Protocol<Timer = T>>(&mut self, ctx: &mut Context<'_, P>) {
        if !self.armed {
            self.armed = true;
            ctx.set_timer(self.timer, EVERY);
        }
    }

    /// The timer has fired; the caller arms it again while there is something to look through.
    pub const fn fired(&mut self) {
        self.armed = false;
    }
}

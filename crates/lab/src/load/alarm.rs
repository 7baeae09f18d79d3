//! Waking up on time: an event loop's own time-out counts whole milliseconds, which is too coarse
//! for thousands of requests per second.

use mio::{Registry, Token};
use std::{
    io,
    time::{Duration, Instant},
};

#[cfg(target_os = "linux")]
mod system {
    use super::{Duration, Instant, Registry, Token, io};
    use mio::{Interest, unix::SourceFd};
    use rustix::{
        fd::OwnedFd,
        time::{
            Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
            timerfd_settime,
        },
    };
    use std::os::fd::AsRawFd;

    /// A timer of the kernel that wakes the event loop.
    #[derive(Debug)]
    pub struct Alarm {
        timer: OwnedFd,
        set: Option<Instant>,
    }

    impl Alarm {
        /// An alarm that is not set.
        ///
        /// # Errors
        /// When the kernel has no more timers.
        pub fn new(registry: &Registry, token: Token) -> io::Result<Self> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
            Ok(Self { timer, set: None })
        }

        /// Wakes the event loop at `at`; gives what its own time-out shall be.
        ///
        /// # Errors
        /// When the kernel refuses.
        pub fn set(&mut self, now: Instant, at: Instant) -> io::Result<Option<Duration>> {
            let left = at.saturating_duration_since(now);
            if left.is_zero() {
                return Ok(Some(Duration::ZERO));
            }
            if self.set != Some(at) {
                let value = Timespec {
                    tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                    tv_nsec: left.subsec_nanos().into(),
                };
                let zero = Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                let value = Itimerspec {
                    it_interval: zero,
                    it_value: value,
                };
                timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &value)?;
                self.set = Some(at);
            }
            Ok(None)
        }

        /// It has rung.
        pub fn clear(&mut self) {
            self.set = None;
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{Duration, Instant, Registry, Token, io};

    /// Nothing but the event loop's own time-out.
    #[derive(Debug)]
    pub struct Alarm;

    impl Alarm {
        /// An alarm.
        ///
        /// # Errors
        /// Never.
        pub fn new(_: &Registry, _: Token) -> io::Result<Self> {
            Ok(Self)
        }

        /// The event loop's time-out.
        ///
        /// # Errors
        /// Never.
        pub fn set(&mut self, now: Instant, at: Instant) -> io::Result<Option<Duration>> {
            Ok(Some(at.saturating_duration_since(now)))
        }

        /// It has rung.
        pub fn clear(&mut self) {}
    }
}

pub use system::Alarm;

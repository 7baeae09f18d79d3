//! Shared by the test protocols of several files.

/// The timers of a protocol that sets none.
#[derive(Clone, Copy, Debug)]
pub enum NoTimer {}

impl From<NoTimer> for u32 {
    fn from(timer: NoTimer) -> Self {
        match timer {}
    }
}

impl TryFrom<u32> for NoTimer {
    type Error = ();
    fn try_from(_: u32) -> Result<Self, ()> {
        Err(())
    }
}

//! The contents that a follower's next `AcceptOk` echoes.

/// The newest numbers that the leader asked for; all of them start again with every ballot.
#[derive(Debug, Default, Hash)]
pub(super) struct Acknowledgement {
    due: bool,
    confirm: u64,
    stamp: u64,
}

impl Acknowledgement {
    /// A message of the leader with these numbers is to be answered.
    pub fn request(&mut self, confirm: u64, stamp: u64) {
        self.due = true;
        self.confirm = self.confirm.max(confirm);
        self.stamp = self.stamp.max(stamp);
    }

    /// There is something new to report.
    pub const fn want(&mut self) {
        self.due = true;
    }

    /// It has been sent.
    pub const fn sent(&mut self) {
        self.due = false;
    }

    pub const fn is_due(&self) -> bool {
        self.due
    }

    /// The newest round of read confirmation.
    pub const fn confirm(&self) -> u64 {
        self.confirm
    }

    /// The stamp of the newest message, by which the leader measures the round trip.
    pub const fn stamp(&self) -> u64 {
        self.stamp
    }
}

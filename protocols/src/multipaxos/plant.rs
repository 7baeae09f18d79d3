//! Old bugs of other systems, to be switched back on one at a time: what the simulator must find.
//! Without the feature `plant` all of this is constant false.

use super::MultiPaxos;

macro_rules! plants {
    ($($(#[$doc:meta])* $plant:ident = $name:literal,)*) => {
        /// A planted bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Plant {
            $($(#[$doc])* $plant,)*
        }

        #[cfg(feature = "plant")]
        impl Plant {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$plant),*];

            /// Its name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$plant => $name,)*
                }
            }
        }
    };
}

plants! {
    /// One vote fewer than a majority decides.
    MinorityCommits = "minority_commits",
    /// A new leader takes the value of the lowest ballot.
    LowestBallotWins = "lowest_ballot_wins",
    /// A promise is told before it is on disk.
    PromiseNotDurable = "vote_lost_on_restart",
    /// What was accepted under an old ballot is acknowledged under the new one.
    HeldSurvivesBallot = "held_survives_ballot",
    /// A promise that comes twice counts as two.
    DuplicatePromiseCounts = "duplicate_vote_counted",
    /// Promises of other ballots count.
    StalePromiseCounts = "stale_promise_reply_counted",
    /// A restarted first leader goes on under the ballot that it used before.
    BallotReused = "ballot_reuse_after_restart",
    /// Reads are answered without asking whether this is still the leader.
    ReadsUnconfirmed = "stale_read_paused_leader",
    /// Reads are answered before the ballot's first commit.
    ReadsBeforeReady = "read_before_first_commit_of_term",
    /// A replica that forgot votes at once.
    RecoverySkipped = "diskless_recovery_amnesia",
    /// Followers answer before their vote is durable.
    VoteNotDurable = "lazy_fsync_power_loss",
}

impl MultiPaxos {
    #[cfg(feature = "plant")]
    pub(super) fn planted(&self, plant: Plant) -> bool {
        self.config.plant == Some(plant)
    }

    #[cfg(not(feature = "plant"))]
    pub(super) const fn planted(&self, _: Plant) -> bool {
        false
    }
}

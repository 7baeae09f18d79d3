//! The paper's unsafe readings and old bugs, to be switched on one at a time: what the simulator
//! must find. Without the feature `plant` all of this is constant false.

use super::ChainPaxos;

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
    /// A read is answered as soon as something new has come round, from whatever has been executed
    /// here by then (§4 as printed); a change of the leader does not matter to it.
    PaperReadRule = "paper_read_rule",
    /// A read is answered from the local state at once.
    ReadServedAtOnce = "read_served_at_once",
    /// What comes back from the tail is decided, whoever has voted for it (Alg. 2, l. 27-28).
    AckDecides = "ack_decides_without_quorum",
    /// A candidate takes its own copies for decided as far as another says that all is decided.
    CandidateDecidesCopies = "candidate_decides_own_copies",
    /// A replica that forgot promises and votes before it is re-admitted.
    ReplacedLifeCounts = "promise_of_replaced_life_counted",
    /// What is passed on after a removal begins one entry too late (the prose of §3.4).
    RepropagateOffByOne = "repropagation_off_by_one",
    /// Nothing is sent again after a connection was reset.
    NoResend = "no_resend_after_reset",
    /// A promise is told before it is on disk.
    PromiseNotDurable = "vote_lost_on_restart",
    /// A new leader takes the value of the lowest ballot.
    LowestBallotWins = "lowest_ballot_wins",
    /// A vote is told before it is durable.
    VoteNotDurable = "lazy_fsync_power_loss",
}

impl ChainPaxos {
    #[cfg(feature = "plant")]
    pub(super) fn planted(&self, plant: Plant) -> bool {
        self.config.plant == Some(plant)
    }

    #[cfg(not(feature = "plant"))]
    pub(super) const fn planted(&self, _: Plant) -> bool {
        false
    }
}

//! Injected bugs: old bugs of other systems, to be switched back on one at a time, so that it can
//! be seen that the simulator finds them. Without the feature `bugs` nothing of this is there:
//! what asks whether a bug is injected asks a constant.
//!
//! ```text
//!   --inject-bug NAME ► option `bug` of the epoch ┬─► Injected of the node: executor, sessions,
//!                                                  │   snapshots, state transfer
//!                                                  └─► Injected of the protocol
//! ```

/// An injected bug: its name and how it is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BugSpec {
    /// Its name on the command line.
    pub name: &'static str,
    /// The number of the regression scenario that it brings back; 0 when it has none.
    pub scenario: u8,
    /// The defect, in one line.
    pub what: &'static str,
    /// The additions of its campaign to the ordinary one, as words of the command line. A word
    /// `transcript` says that chance hardly reaches it and a script does; `conformance PROTOCOL
    /// SCENARIO` that no campaign does what a scenario of the conformance kit does; `groups` or
    /// `shards` that worlds with several groups do; `tests` that a test of the protocol's own does.
    pub campaign: &'static str,
}

/// Declares the injected bugs of a crate or protocol: an enum `Bug`, and a type `Injected` that
/// knows which one is switched on. Both ask for the feature `bugs` of the crate they are in. After
/// `of Replica;` the protocol's replica can ask whether a bug is injected.
#[macro_export]
macro_rules! bugs {
    (of $replica:path; $($bugs:tt)*) => {
        impl $replica {
            /// Whether this bug is injected.
            pub(super) fn injected(&self, bug: Bug) -> bool {
                self.config.injected.is(bug)
            }
        }

        $crate::bugs! { $($bugs)* }
    };
    ($($bug:ident $name:literal $scenario:literal $campaign:literal $what:literal;)*) => {
        /// An injected bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Bug {
            $(#[doc = $what] $bug,)*
        }

        #[cfg(feature = "bugs")]
        impl Bug {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$bug),*];
            /// Their descriptions.
            pub const SPECS: &'static [$crate::BugSpec] = &[$($crate::BugSpec {
                name: $name,
                scenario: $scenario,
                what: $what,
                campaign: $campaign,
            }),*];

            /// Its name on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$bug => $name,)*
                }
            }

            /// The bug of that name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|bug| bug.name() == name)
            }
        }

        /// Which bug is switched on, if one is. In a build without the feature `bugs`, none.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct Injected {
            #[cfg(feature = "bugs")]
            bug: Option<Bug>,
        }

        impl Injected {
            /// The option that switches one on.
            #[cfg(feature = "bugs")]
            pub const SPEC: $crate::OptionSpec = $crate::OptionSpec {
                name: "bug",
                default: "none",
                help: "an old bug to switch on, or none",
            };

            /// The bug of that name, switched on.
            #[cfg(feature = "bugs")]
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Bug::named(name).map(|bug| Self { bug: Some(bug) })
            }

            /// The bug that the option's value names.
            ///
            /// # Errors
            /// When nothing is called so.
            #[cfg(feature = "bugs")]
            pub fn parse(value: &str) -> Result<Self, ::alloc::string::String> {
                match Self::named(value) {
                    None if value != "none" => {
                        Err(::alloc::format!("'{value}' is not an injected bug"))
                    },
                    found => Ok(found.unwrap_or_default()),
                }
            }

            /// Whether it is this one.
            #[cfg(feature = "bugs")]
            #[must_use]
            pub fn is(self, bug: Bug) -> bool {
                self.bug == Some(bug)
            }

            /// Whether it is this one.
            #[cfg(not(feature = "bugs"))]
            #[must_use]
            pub const fn is(self, _: Bug) -> bool {
                false
            }
        }
    };
}

crate::bugs! {
    RetryExecutesTwice "retry_executes_twice" 42 ""
        "a command that is sent again is executed again";
    SessionsNotInSnapshot "sessions_not_in_snapshot" 42 ""
        "a state that comes from a snapshot knows no sessions";
    SessionOrderIgnored "session_order_ignored" 0 ""
        "a session's commands are executed as they come";
    UnknownSessionIsRemade "unknown_session_is_remade" 42 ""
        "a command of a session that ended or never was makes it again";
    NondeterministicApply "nondeterministic_apply" 43 ""
        "replies are dropped when this process, and not the log, finds it time";
    EmptyReadsWhileLoading "empty_reads_while_loading" 41 ""
        "reads do not wait until execution has come far enough";
    OldSnapshotReplacesState "old_snapshot_truncates_live_log" 21 ""
        "a fetched state is installed though the log has overtaken it";
    IndexAndDataNotAtomic "index_and_data_not_atomic" 27 ""
        "a snapshot's header is taken before its state, with commands between the two";
    JournalEndsAtDamage "rollback_committed_after_corruption" 29 ""
        "a journal ends at its first bad record, whatever was written behind it";
    JournalTrustsItsEnd "misdirected_and_lost_write" 32 ""
        "a journal knows of no mark outside of it: the last write may be lost unnoticed";
    SnapshotCountsEarly "snapshot_log_gap_on_start" 23 ""
        "a snapshot counts, and the log is trimmed, before it is durable";
    ExecutesPastSeal "executes_past_the_seal" 0 "conformance multipaxos epochs_follow_each_other"
        "what comes behind the end of an epoch is executed";
    LastSealWins "last_seal_wins" 0 "conformance multipaxos epochs_follow_each_other"
        "of two ends of an epoch the last one executed counts";
    TellsProvisionalSeal "tells_of_a_provisional_seal" 0 "conformance nezha epochs_follow_each_other"
        "the end of an epoch is told, and answered by, before it is final";
    SessionsEndWithTheEpoch "sessions_end_with_the_epoch" 0 "--faults all,ended"
        "the next epoch knows no sessions of the one before";
    BeginsBeforeItIsDurable "begins_before_it_is_durable" 0 "--faults all,ended --durability disk"
        "an epoch begins before its first state is durable";
    FirstBootAgain "first_boot_again" 0 "--faults all,ended"
        "a protocol that starts again in its epoch is told that nothing was ever written";
    FeedSkipsABatch "feed_skips_a_batch" 0 "--faults all"
        "of the batches behind a state that is given, some are not kept";
    FeedIsNotKept "feed_is_not_kept" 0
        "conformance multipaxos laggard_catches_up_under_load_with_short_logs"
        "the batches behind a state that is given are not kept";
    RowsOfTheOldEpoch "rows_of_the_old_epoch" 0 "--faults all,ended"
        "the members of the epoch before are taken for those of the next";
    VotesOfAnotherEpoch "votes_of_another_epoch" 0
        "conformance multipaxos words_of_an_earlier_epoch_count_for_nothing"
        "what replicas say in another epoch counts in this one";
    RequestsInFlightAreDropped "requests_in_flight_are_dropped" 0 "--faults all,ended"
        "requests of clients in flight do not continue in the next epoch";
    WritesCountFromZero "writes_count_from_zero" 0 "--faults all,ended --durability disk"
        "writes of the next epoch's protocol have the numbers of earlier ones";
    BeginsWithoutTheState "begins_without_the_state" 0 "--faults all,ended"
        "a newcomer takes part before it has the state that its epoch began with";
    NumbersAreRanks "numbers_are_ranks" 0 "conformance multipaxos any_member_is_removed"
        "where a member was removed, the others' numbers are taken for their ranks";
    EntersInMemory "enters_in_memory" 0 "conformance multipaxos durability_changes"
        "the first state of an epoch in memory is not saved, though the one before promised a disk";
    AnsweredBeforeClosed "answered_before_closed" 0 "--faults all"
        "the past is answered though commands with earlier times may come";
    UndonePastIsTold "undone_past_is_told" 0 "--faults all"
        "the past is answered from what may still be undone";
    TicksByLocalClock "ticks_by_local_clock" 0 "--faults all"
        "what is dropped of the past, and what expires, goes by a replica's own clock";
    SegmentTrimmedForAnotherGroup "segment_trimmed_for_another_group" 0 "groups"
        "a segment of the journal goes when one group needs it no more";
    PersistedOfAnotherDriver "persisted_of_another_driver" 0 "groups"
        "a group is told that its writes are durable when those of another group are";
    DamagedGroupContinues "damaged_group_continues" 0 "groups"
        "a group whose records are damaged continues without them";
    FloorIgnored "floor_ignored" 0 "services"
        "a call may be earlier than what its caller has seen";
    EffectBeforeItsCause "effect_before_its_cause" 0 "services"
        "a hand-off may be executed at a time before that of its command";
    HandOffExecutedTwice "hand_off_executed_twice" 0 "services"
        "a shard does not remember which hand-offs it has executed";
    HandOffSettledEarly "hand_off_settled_early" 0 "services"
        "a shard forgets one hand-off more than was delivered";
    HandOffsNotInSnapshot "hand_offs_not_in_snapshot" 0 "services"
        "a state that comes from a snapshot has no hand-offs that wait";
    GatherAtNewest "gather_at_newest" 0 "services"
        "a member answers its part of a gather from its newest state";
    GatherForgetsSilent "gather_forgets_silent" 0 "services"
        "members that do not answer a gather are missing in its replies";
    FollowerSkipsOne "follower_skips_one" 0 "services"
        "a follower is not told of the notification that it asks for first";
    LendsStale "lends_stale" 0 "services"
        "the state that a query of another shard reads may be an old one";
    ViewsInAnyOrder "views_in_any_order" 0 "services"
        "a shard is told of a view though it knows a later one";
    PastWithoutRewind "past_without_rewind" 0 "services"
        "a query of an earlier version sees the newest state";
    LateSealCounts "late_seal_counts" 0 "--faults all,ended"
        "an epoch ends though the end came too late";
}

#[cfg(feature = "bugs")]
impl Injected {
    /// The bugs that the options of an epoch switch on in a node.
    #[must_use]
    pub fn of(options: &[(alloc::string::String, alloc::string::String)]) -> Self {
        let named = options.iter().find(|(name, _)| name == "bug");
        named
            .and_then(|(_, name)| Self::named(name))
            .unwrap_or_default()
    }
}

#[cfg(not(feature = "bugs"))]
impl Injected {
    /// The bugs that the options of an epoch switch on in a node: none.
    #[must_use]
    pub const fn of(_: &[(alloc::string::String, alloc::string::String)]) -> Self {
        Self {}
    }
}

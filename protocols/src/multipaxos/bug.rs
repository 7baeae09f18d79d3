//! Old bugs of other systems, to be switched back on one at a time: what the simulator must find.
//! Without the feature `bugs` all of this is constant false.

quintet_replica::bugs! {
    of super::MultiPaxos;

    MinorityCommits "minority_commits" 0 ""
        "one vote fewer than a majority decides";
    LowestBallotWins "lowest_ballot_wins" 0 ""
        "a new leader takes the value of the lowest ballot";
    PromiseNotDurable "vote_lost_on_restart" 3 "transcript"
        "a promise is told before it is on disk";
    PromiseLost "term_regression_on_restart" 4 ""
        "a restart does not read its promise back";
    RefusalCounts "higher_vote_counts_as_granted" 5 ""
        "a refusal counts as a promise";
    DuplicatePromiseCounts "duplicate_vote_counted" 7 "transcript --replicas 5"
        "a promise that comes twice counts as two";
    StalePromiseCounts "stale_promise_reply_counted" 8 "transcript --replicas 5"
        "promises of other ballots count";
    BallotReused "ballot_reuse_after_restart" 9 ""
        "a restarted first leader continues under the ballot that it used before";
    AcceptRaisesNothing "accept_must_raise_promise" 10 ""
        "accepting a higher ballot promises it in memory only";
    RecoverySkipped "diskless_recovery_amnesia" 12 ""
        "a replica that lost its state votes at once";
    LogLostOnStepDown "commit_loss_on_step_down" 13 ""
        "a higher ballot makes a replica forget what it accepted and does not know to be decided";
    CommitUnmatched "async_heartbeat_race" 14 ""
        "a commit notice decides slots that were not accepted from this leader";
    StaleAcceptCounts "nack_as_ack_or_stale_nack" 15 ""
        "a refusal of a proposal counts as a vote for it";
    EarlierIncarnationCounts "rejoin_same_term_progress" 17 "transcript --replicas 5 --durability memory"
        "votes of an earlier incarnation of a replica that lost its state still count";
    TailKept "snapshot_conflicting_tail" 20 ""
        "slots behind a snapshot count as accepted under the present ballot, whatever they are";
    GhostEntries "wal_ghost_entries" 22 ""
        "of several records for a slot a restart takes the oldest";
    OwnVoteNotDurable "applied_before_durable" 26 "transcript --durability disk"
        "a leader counts its own vote before it is durable";
    LaggardLeads "corrupt_minority_becomes_leader" 28 "transcript"
        "a candidate that lacks what its voters no longer keep wins all the same";
    VoteNotDurable "lazy_fsync_power_loss" 30 ""
        "replicas vote for values before these are durable";
    ReadsUnconfirmed "stale_read_paused_leader" 33 ""
        "reads are answered without asking whether this is still the leader";
    ReadsBeforeReady "read_before_first_commit_of_term" 34 ""
        "reads are answered before the ballot's first commit";
    ReadsByLease "lease_wall_clock_or_stalled_thread" 35 ""
        "reads are answered while a majority was heard in the last two seconds";
    HeldSurvivesBallot "held_survives_ballot" 0 ""
        "what was accepted under an old ballot is acknowledged under the new one";
    OwnLogIgnored "own_log_ignored" 0 ""
        "a new leader looks at what others accepted and not at what it accepted itself";
}

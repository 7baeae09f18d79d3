//! Bugs to be switched on one at a time: what the simulator must find. Without the feature `bugs`
//! all of this is constant false.

quintet_replica::bugs! {
    of super::Chora;

    MinorityCommits "minority_commits" 0 ""
        "one acknowledgement fewer than a majority commits";
    InitBeforePrefix "init_before_prefix" 0 "transcript"
        "VIEW-INIT is appended before the slots before it are verified";
    OldViewAckCounts "old_view_ack_counts" 0 "transcript --replicas 5"
        "acknowledgements of the view before still count";
    QuorumShrinks "quorum_shrinks" 0 ""
        "the quorum is a majority of those who take part in the view";
    SkipOverProposed "skip_over_proposed" 0 ""
        "SKIP covers slots that were proposed already";
    EarlyExitCountsMessages "early_exit_counts_messages" 0 "transcript"
        "a round ends when as many messages as peers came, whichever replica sent them";
    SlotReused "slot_reused_after_restart" 0 ""
        "a restarted proposer continues in the view in which it proposed before";
    VoteNotDurable "vote_lost_on_restart" 3 ""
        "a vote is sent before it is on disk";
    PromiseLost "term_regression_on_restart" 4 ""
        "a restart does not read its view and vote back";
    AckNotDurable "lazy_fsync_power_loss" 30 ""
        "slots are acknowledged before they are durable";
    OldLogElected "old_log_elected" 0 ""
        "a candidate gets votes from replicas with a newer log";
    RecoverySkipped "diskless_recovery_amnesia" 12 ""
        "a replica that lost its state votes and acknowledges at once";
    ReadsUnordered "stale_read_paused_leader" 33 ""
        "reads do not wait for the proposer's own slot";
    GhostEntries "wal_ghost_entries" 22 "transcript"
        "a restart takes records for what was cleared before";
}

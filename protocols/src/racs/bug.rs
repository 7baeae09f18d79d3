//! Weaker rules, to be switched on one at a time: what the simulator must find. Without the
//! feature `bugs` all of this is constant false.

quintet_replica::bugs! {
    of super::Racs;

    HighAsPrinted "racs_line_35_as_printed" 0 ""
        "timeouts replace the highest block even when the own one is higher";
    KeepMaxOnly "racs_keep_max_only" 0 ""
        "a replica that timed out keeps voting in the view, and an elected block has no higher rank";
    KeepMaxAndStop "racs_keep_max_and_stop" 0 ""
        "an elected block does not outrank the synchronous blocks of its view";
    KeepMaxAndRank "racs_keep_max_and_rank" 0 ""
        "a replica that timed out keeps voting in the view";
    NoGate "racs_no_new_view_gate" 0 ""
        "a leader proposes in its view without a quorum of new-views";
    ExitByHigh "racs_exit_by_high" 0 ""
        "the replica that left a view hands out its highest block instead of the certificate";
    FallLost "racs_fall_lost" 0 ""
        "a replica that leaves the asynchronous mode does not look at the blocks that it voted for";
    FallKept "racs_fall_of_other_views" 0 ""
        "the blocks voted for in the asynchronous mode of one view are taken for those of the next";
    CoinDiffers "racs_coin_differs" 0 ""
        "every replica has a coin of its own";
    MinorityCommits "racs_minority_commits" 0 ""
        "one vote fewer than the quorum decides";
    VoteNotDurable "racs_vote_not_durable" 30 ""
        "replicas vote for blocks before these are durable";
    PromiseLost "racs_view_lost" 4 ""
        "a restart does not read its promise back";
    LeaderContinues "racs_leader_continues_after_restart" 9 ""
        "a restarted leader proposes again in the view that it led before";
    RecoverySkipped "racs_recovery_skipped" 12 ""
        "a replica that lost its state takes part at once";
    BatchVoteNotDurable "racs_batch_vote_not_durable" 30 "--set dissemination=sadl"
        "replicas vote for disseminated batches before they hold them durably";
    ChainReused "racs_chain_reused" 9 "--set dissemination=sadl"
        "a restarted replica gives names to its batches that it has given before";
    BatchesNotRecovered "racs_batches_not_recovered" 12 "--set dissemination=sadl"
        "a replica that lost its state does not ask for the batches that it had voted for";
    SwitchUnsaved "racs_switch_not_in_states" 0 "--set dissemination=hybrid"
        "a state that is fetched says nothing about the way of the batches";
    LostBranchHalts "racs_lost_branch_halts" 0 "transcript"
        "a restart halts when the highest block in the journal has lost and is trimmed in part";
    ReadsUnmarked "racs_reads_unmarked" 33 ""
        "reads are answered without an ordered marker";
}

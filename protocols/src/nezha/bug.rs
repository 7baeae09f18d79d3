//! Bugs to be switched on one at a time: what the simulator must find. Without the feature
//! `bugs` all of this is constant false.

quintet_replica::bugs! {
    of super::Nezha;

    FastQuorumIsMajority "fast_quorum_is_majority" 0 ""
        "a majority with the same hash commits, the leader among it";
    IncarnationsIgnored "crash_vector_ignored" 0 "transcript"
        "messages of an earlier incarnation of a replica that lost its state still count";
    FastReplyCountsAsSlow "fast_reply_counts_as_slow" 0 ""
        "a follower's fast reply stands for its slow reply, whatever its hash";
    OwnLogUncounted "own_log_uncounted" 0 ""
        "a new leader does not count what it holds itself beyond its sync-point";
    DeadlineNotInHash "deadline_change_without_hash" 0 ""
        "a follower that takes over a changed deadline leaves its hash as it was";
    OneHashForAllKeys "one_hash_for_all_keys" 0 ""
        "a batch contributes the same hash to each of its keys";
    SurvivorsAboveSyncPoint "survivors_by_sync_point_deadline" 0
        "--faults orphaned --machine registers --set percentile=1 --set beta=0 --set bound_max_us=1000000"
        "a new leader drops what has a lower deadline than the sync-point's entry";
    LateKeepsDeadline "late_keeps_its_deadline" 0 "--faults all,orphaned"
        "a leader puts a late batch behind what conflicts with it under the deadline that it came with";
    NoRollBack "deposed_leader_keeps_its_state" 0 ""
        "a deposed leader does not undo what it executed";
    ReadsUnconfirmed "reads_unconfirmed" 0 ""
        "a leader answers reads without asking whether it still leads";
    JoinsAtOnce "joins_before_the_log_is_here" 0 ""
        "a follower takes part in a new view before it holds that view's first log";
}

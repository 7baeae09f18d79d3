//! Bugs to be switched on one at a time: what the simulator must find. Without the feature `bugs`
//! all of this is constant false.

quintet_replica::bugs! {
    of super::Mencius;

    MinorityDecides "minority_decides" 0 ""
        "an owner decides with one vote fewer than a majority";
    PromiseIgnored "promise_ignored" 0 ""
        "an owner's suggestions are accepted in slots that were promised to who revokes them";
    RevokedToNothing "revoked_to_nothing" 0 ""
        "who revokes proposes nothing, whatever was accepted before";
    SkipOverSuggested "skip_over_suggested" 0 ""
        "SKIP covers slots in which this owner suggested something";
    SlotReused "slot_reused_after_restart" 0 ""
        "a restarted owner continues behind the last slot that it decided";
    OldIncarnationCounts "vote_of_earlier_incarnation_counts" 0 ""
        "votes of a replica that lost its state still count";
    VoteNotDurable "vote_lost_on_restart" 3 ""
        "a vote is sent before it is on disk";
    RecoverySkipped "diskless_recovery_amnesia" 12 ""
        "a replica that lost its state votes at once";
    ReadsUnordered "stale_read_paused_leader" 33 ""
        "reads do not wait for a majority";
}

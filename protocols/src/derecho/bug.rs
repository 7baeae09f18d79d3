//! Old bugs and unsafe readings, to be switched on one at a time: what the simulator must find.
//! Without the feature `bugs` all of this is constant false.

quintet_replica::bugs! {
    of super::Derecho;

    DeliverBeforeAll "deliver_before_all_received" 0 ""
        "a message is delivered when a majority has it, not when all have";
    TrimRecomputed "trim_recomputed" 0
        "--replicas 6 --durability disk --set heartbeat_ms=8 --set suspect_timeout_ms=25 --set restart_timeout_ms=150"
        "a leader that takes over computes a trim of its own instead of adopting an earlier one";
    MinorityContinues "minority_continues" 0 ""
        "the replica that suspects a majority continues by itself";
    PersistedEarly "persisted_before_fsync" 0 ""
        "a message counts as persisted before it is";
    ReadsLocal "read_without_barrier" 0 ""
        "a read is answered from the local state without the barrier";
    EchoAfterSuspicion "echo_after_suspicion" 0 "--replicas 7 --faults held --durability disk"
        "a vote that ends on disk after its proposer is suspected is shown all the same";
    EchoNotDurable "trim_echoed_before_logged" 0 ""
        "a ragged trim is echoed before it is on disk";
    NullInside "null_inside_send" 0 ""
        "a null takes the place that a message was given before it";
    PutTorn "put_torn" 0 ""
        "a slot's guard is put before its words";
    BlocksByArrival "blocks_in_order_of_arrival" 0 ""
        "a block of a large message takes the next free place and not its own";
    RestartWaitsForAll "restart_waits_for_incomplete_logs" 0
        "conformance derecho replica_with_a_damaged_journal_delays_no_other"
        "members whose logs are complete restart together with one whose log is not";
    BaseOfOneShardForAll "base_of_one_shard_for_all" 0 "shards"
        "the end of one shard's log is taken for that of all shards";
    DeliveredByShardMajority "delivered_by_shard_majority" 0 "shards"
        "a message in a shard is delivered when a majority of its members has it, not when all have";
    LostShardBeginsEmpty "lost_shard_begins_empty" 0 "shards"
        "a shard whose members are all gone begins again without its log";
    ActiveBelowMinimum "active_below_minimum" 0 "shards"
        "a shard orders with fewer members that hold its log than its minimum";
    LogOfOneThatStayed "log_of_a_member_that_stayed" 0 "shards"
        "a copy of a shard's log counts as complete though its members have not left their view";
    RoleKeptAfterView "role_kept_after_view" 0 "shards"
        "a member that a view takes out of a shard answers there as before";
    GenerationIgnored "generation_ignored" 0 "shards"
        "a log of before its shard was begun again counts as one of what was begun";
    OldEndsUnasked "old_process_ends_unasked" 0 "tests"
        "a process with an old log ends without asking whether others hold what else it has";
    AllMembersSend "all_members_send" 0 "shards"
        "members of a shard that are not to send do so, and the others take what they send";
    WedgedBeforeBlocksArePut "wedged_before_blocks_are_put" 0 "shards"
        "a row is said to be final before others have its counts of shards";
    RestartAsMember "restart_counts_as_member" 0 ""
        "a restarted replica continues as the member that it was";
}

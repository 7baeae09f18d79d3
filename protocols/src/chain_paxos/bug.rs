//! The paper's unsafe readings and old bugs, to be switched on one at a time: what the simulator
//! must find. Without the feature `bugs` all of this is constant false.

quintet_replica::bugs! {
    of super::ChainPaxos;

    PaperReadRule "paper_read_rule" 0 ""
        "a read is answered when something new has come round, from what is executed by then (§4)";
    ReadServedAtOnce "read_served_at_once" 0 ""
        "a read is answered from the local state at once";
    AckDecides "ack_decides_without_quorum" 0 ""
        "what comes back from the tail is decided, whichever replica voted for it (Alg. 2, l. 27-28)";
    CandidateDecidesCopies "candidate_decides_own_copies" 0 ""
        "a candidate takes its own copies for decided as far as another knows a decision";
    ReplacedIncarnationCounts "promise_of_replaced_incarnation_counted" 0 ""
        "a replica that lost its state promises and votes before it is re-admitted";
    RepropagateOffByOne "repropagation_off_by_one" 0 ""
        "what is forwarded after a removal begins one entry too late (the prose of §3.4)";
    NoResend "no_resend_after_reset" 0 ""
        "nothing is sent again after a connection was reset";
    PromiseNotDurable "vote_lost_on_restart" 3 "transcript"
        "a promise is told before it is on disk";
    LowestBallotWins "lowest_ballot_wins" 0 "transcript"
        "a new leader takes the value of the lowest ballot";
    VoteNotDurable "lazy_fsync_power_loss" 0 ""
        "a vote is told before it is durable";
}

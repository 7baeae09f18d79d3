//! Each old bug is switched on, and the case that was made for it ends otherwise. Chance hardly
//! reaches most of them: with a bug on, what a cluster says stays right until a leader dies at the
//! one moment that matters.

use super::{logs, quorums};
use crate::nezha::{Bug, Config};
use alloc::vec::Vec;
use quintet_replica::{Options, Slot};

fn with(bug: Bug) -> Config {
    let mut config = Config::default();
    config.set("bug", bug.name()).expect("its own name");
    config
}

#[test]
fn each_injected_bug_fails_its_own_test() {
    for bug in Bug::ALL {
        let config = with(*bug);
        // The invariant that compares the hash with the log may notice the bug first.
        let case = || match bug {
            Bug::FastQuorumIsMajority => quorums::three_of_five_commit(&config),
            Bug::IncarnationsIgnored => {
                logs::a_vote_of_an_earlier_incarnation_counts(&config)
                    && quorums::another_incarnation_counts(&config)
            }
            Bug::FastReplyCountsAsSlow => quorums::a_fast_reply_is_a_slow_one(&config),
            Bug::OwnLogUncounted | Bug::SurvivorsAboveSyncPoint => logs::merged(&config) == [1],
            Bug::DeadlineNotInHash => !logs::hashes_agree_after_a_changed_deadline(&config),
            Bug::OneHashForAllKeys => logs::a_missing_write_of_both_keys_goes_unnoticed(&config),
            Bug::LateKeepsDeadline => logs::a_late_batch_is_placed_before_another(&config),
            Bug::NoRollBack => logs::undone_by_a_deposed_leader(&config) == Vec::<Slot>::new(),
            Bug::ReadsUnconfirmed => logs::reads_answered_unconfirmed(&config) == 1,
            Bug::JoinsAtOnce => logs::takes_part_before_the_log_is_here(&config),
        };
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(case))
            .unwrap_or_else(|panic| panic.downcast_ref() == Some(&"the hash is of what is held"));
        assert!(found, "{bug:?}");
    }
}

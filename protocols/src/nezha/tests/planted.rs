//! Each old bug is switched on, and the case that was made for it ends otherwise. Chance hardly
//! reaches most of them: with a bug on, what a cluster says stays right until a leader dies at the
//! one moment that matters.

use super::{logs, quorums};
use crate::nezha::{Config, Plant};
use alloc::vec::Vec;
use quintet_replica::{Options, Slot};

fn with(plant: Plant) -> Config {
    let mut config = Config::default();
    config.set("plant", plant.name()).expect("its own name");
    config
}

#[test]
fn every_planted_bug_is_convicted_by_a_case_of_its_own() {
    for plant in Plant::ALL {
        let config = with(*plant);
        // The invariant that compares the hash with the log may notice the bug first.
        let case = || match plant {
            Plant::FastQuorumIsMajority => quorums::three_of_five_commit(&config),
            Plant::LivesIgnored => {
                logs::a_vote_of_an_earlier_life_counts(&config)
                    && quorums::another_life_counts(&config)
            }
            Plant::FastReplyCountsAsSlow => quorums::a_fast_reply_is_a_slow_one(&config),
            Plant::OwnLogUncounted | Plant::SurvivorsAboveSyncPoint => logs::merged(&config) == [1],
            Plant::DeadlineNotInHash => !logs::hashes_agree_after_a_changed_deadline(&config),
            Plant::OneHashForAllKeys => logs::a_missing_write_of_both_keys_goes_unnoticed(&config),
            Plant::LateKeepsDeadline => logs::a_late_batch_is_placed_before_another(&config),
            Plant::NoRollBack => logs::undone_by_a_deposed_leader(&config) == Vec::<Slot>::new(),
            Plant::ReadsUnconfirmed => logs::reads_answered_unconfirmed(&config) == 1,
            Plant::JoinsAtOnce => logs::takes_part_before_the_log_is_here(&config),
        };
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(case))
            .unwrap_or_else(|panic| panic.downcast_ref() == Some(&"the hash is of what is held"));
        assert!(found, "{plant:?}");
    }
}

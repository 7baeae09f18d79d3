use super::*;

#[test]
fn worlds_with_groups_hold_all_properties() {
    let report = run(0..12, None, false);
    assert!(report.violations.is_empty(), "{:?}", report.violations);
    assert!(report.stalls.is_empty(), "{:?}", report.stalls);
    assert!(report.acknowledged > 1_000, "{}", report.acknowledged);
    for seen in ["crash", "partition", "one sync for several groups"] {
        assert!(report.counts.contains_key(seen), "{seen}");
    }
}

#[test]
fn seed_is_the_same_world_each_time() {
    let lines = |seed| run_seed(seed, None, true);
    let (first, second) = (lines(3), lines(3));
    assert_eq!(first.lines, second.lines);
    assert_eq!(first.counts, second.counts);
}

#[cfg(feature = "plant")]
#[test]
fn injected_bugs_of_several_groups_are_found() {
    for bug in [
        "segment_trimmed_for_another_group",
        "persisted_of_another_driver",
    ] {
        let report = run(0..100, Some(bug), true);
        assert_eq!(report.violations.len(), 1, "{bug}");
    }
}

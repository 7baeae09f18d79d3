//! Members that answer, and for which alone everybody waits.

use super::*;
use alloc::vec::Vec;

/// That many messages, each of which waits 100 ms for the disks of `slow`.
fn write_slowly(group: &mut Group<Derecho>, slow: &[u16], messages: usize) {
    for id in slow {
        group.members[usize::from(*id)].slow_disk = true;
    }
    for _ in 0..messages {
        group.write(0);
        group.run(MS * 100);
        for id in slow {
            group.sync(*id);
        }
        group.settle();
    }
    for id in slow {
        group.members[usize::from(*id)].slow_disk = false;
    }
}

#[test]
fn member_that_delays_all_is_excluded_and_returns_later() {
    let mut group = group(3);
    write_slowly(&mut group, &[2], 10);
    let early = group.marked("slow member removed");
    assert_eq!(early, 0, "once in a row is not enough");
    write_slowly(&mut group, &[2], 10);
    assert_eq!(group.marked("slow member removed"), 1);
    assert_eq!(group.members[0].route, [0, 1]);
    group.run(MS * 500);
    assert_eq!(group.members[0].route, [0, 1], "its pause is not over");
    group.run(MS * 4000);
    assert_eq!(group.members[0].route, [0, 1, 2]);
    let batch = group.write(2);
    group.run(MS * 500);
    assert!(group.answered(2, batch));
    assert_converged(&group, 21);
}

#[test]
fn member_as_slow_as_others_stays() {
    for slow in [&[0, 1, 2][..], &[1, 2]] {
        let mut group = group(3);
        write_slowly(&mut group, slow, 30);
        assert_eq!(group.marked("slow member removed"), 0, "{slow:?}");
        assert_eq!(group.status(0).view, 1);
        let states: Vec<_> = (0..3).map(|id| group.batches(id).len()).collect();
        assert_eq!(states, [30; 3]);
    }
}

#[test]
fn no_member_is_excluded_when_off_or_without_majority() {
    let config = Config {
        slow_member: core::time::Duration::ZERO,
        ..Config::default()
    };
    let mut group = Group::<Derecho>::new(3, Durability::Disk, config);
    write_slowly(&mut group, &[2], 30);
    assert_eq!(group.marked("slow member removed"), 0);
    let mut group = Group::<Derecho>::new(2, Durability::Disk, Config::default());
    write_slowly(&mut group, &[1], 30);
    assert_eq!(group.marked("slow member removed"), 0);
    assert_eq!(group.status(1).view, 1);
}

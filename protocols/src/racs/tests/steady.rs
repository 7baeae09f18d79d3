//! Groups with nothing wrong, and with one thing wrong.

use super::group::{Group, MS, assert_converged, small};
use quintet_replica::{Durability, Level};

#[test]
fn every_replica_answers_writes_and_reads_of_its_own_clients() {
    for members in [1, 2, 3, 5, 7] {
        for durability in [Durability::Disk, Durability::Memory] {
            let mut group = Group::new(members, durability, small());
            group.run(MS * 100);
            let mut asked = alloc::vec::Vec::new();
            for round in 0..10 {
                for id in 0..members as u16 {
                    asked.push((id, group.write(id)));
                    if round % 3 == 0 {
                        asked.push((id, group.submit(id, Level::Linearizable)));
                    }
                }
                group.settle();
            }
            group.run(MS * 200);
            for (id, batch) in asked {
                assert!(
                    group.answered(id, batch),
                    "{members} members, {batch} at {id}"
                );
            }
            assert_converged(&group, 10);
            assert_eq!(group.marked("asynchronous mode"), 0);
        }
    }
}

#[test]
fn a_leader_that_is_cut_off_is_replaced_by_way_of_the_asynchronous_mode() {
    let mut group = Group::new(3, Durability::Disk, small());
    group.run(MS * 100);
    let leader = group.leaders()[0];
    group.isolate(leader);
    let other = (leader + 1) % 3;
    let batch = group.write(other);
    group.run(MS * 3000);
    assert!(group.answered(other, batch));
    assert!(group.marked("asynchronous mode") > 0);
    group.heal();
    group.run(MS * 3000);
    assert_converged(&group, 1);
    assert_eq!(group.leaders().len(), 1);
}

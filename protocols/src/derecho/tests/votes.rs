//! Votes for a next view whose disks answer late, after suspicions that forbid them.

use super::*;
use alloc::{collections::BTreeMap, vec::Vec};
use quintet_replica::{Control, Event, ReplicaId};

/// Several turns of all, in which only what is on some links arrives; the rest waits in its order.
fn play(group: &mut Group<Derecho>, arrives: impl Fn(u16, u16) -> bool) {
    for _ in 0..12 {
        for id in 0..group.members.len() as u16 {
            if !group.members[usize::from(id)].slow_disk {
                group.sync(id);
            }
            group.idle(id);
        }
        let (due, held): (Vec<_>, Vec<_>) = core::mem::take(&mut group.network)
            .into_iter()
            .partition(|packet| arrives(packet.from.0, packet.to.0));
        group.network = held.into();
        for packet in due {
            group.deliver(packet);
        }
    }
}

fn report(group: &mut Group<Derecho>, at: u16, of: u16) {
    group.event(at, Event::Control(Control::ReportFailure(ReplicaId(of))));
}

/// Leader 0 proposes a next view to `voters` alone, whose disks answer only when all of them have
/// shown leader 1 that they left 0, without a vote. Then 2 hears the voters and not 1, and 1 hears
/// the others and not 2. Gives the memberships of each view that anybody has installed.
fn vote_late(group: &mut Group<Derecho>, voters: &[u16]) -> Vec<Vec<Vec<u16>>> {
    let votes = |id: u16| voters.contains(&id);
    let at_work = |id: u16| id < 2 || votes(id);
    for id in voters {
        group.members[usize::from(*id)].slow_disk = true;
    }
    // A replica joins or is suspected: 0 proposes.
    play(group, |from, to| {
        (from, to) != (0, 1) && at_work(to) && (at_work(from) || to == 0)
    });
    for id in voters {
        assert_eq!(
            group.replica(*id).membership.proposing(),
            1,
            "{id} waits for its disk"
        );
    }
    report(group, 1, 0);
    play(group, |from, to| from == 1 && votes(to));
    play(group, |from, to| votes(from) && (to == 1 || votes(to)));
    assert_eq!(
        group.replica(1).membership.proposing(),
        2,
        "all have left 0"
    );
    for id in voters {
        group.members[usize::from(*id)].slow_disk = false;
    }
    play(group, |from, to| votes(from) && votes(to));
    report(group, 2, 1);
    play(group, |_, _| false);
    report(group, 1, 2);
    let rest = |id: u16| id == 1 || votes(id) && id != 2;
    play(group, |from, to| rest(from) && rest(to));
    let mut views = BTreeMap::<u64, Vec<Vec<u16>>>::new();
    for id in [1, 2] {
        for view in group.replica(id).membership.views() {
            let members: Vec<u16> = view.members.iter().map(|member| member.id.0).collect();
            let all = views.entry(view.number).or_default();
            if !all.contains(&members) {
                all.push(members);
            }
        }
    }
    views.into_values().collect()
}

/// Members 0 to 4 with 5 to 8 about to join.
pub fn five_and_four(config: Config) -> Vec<Vec<Vec<u16>>> {
    let mut group = Group::<Derecho>::new(9, Durability::Disk, config);
    group.write(0);
    group.settle();
    for id in 5..9 {
        group.crash(id);
    }
    group.run(MS * 1500);
    assert_eq!(group.replica(0).membership.set().len(), 5);
    for id in 5..9 {
        group.cut.extend([(id, 0), (0, id), (id, 1), (1, id)]);
        group.start(id);
    }
    group.run(MS * 400);
    // All four say at once that they are here.
    group.cut.retain(|(_, to)| *to != 0);
    for id in 5..9 {
        group.fire(id, super::super::Timer::Beat);
    }
    vote_late(&mut group, &[2, 3, 4])
}

/// Seven members of which the last has failed.
pub fn seven(config: Config) -> Vec<Vec<Vec<u16>>> {
    let mut group = Group::<Derecho>::new(7, Durability::Disk, config);
    group.write(0);
    group.settle();
    group.crash(6);
    report(&mut group, 0, 6);
    vote_late(&mut group, &[2, 3, 4, 5])
}

#[test]
fn view_has_one_membership_when_votes_end_after_suspicion() {
    for views in [five_and_four(Config::default()), seven(Config::default())] {
        assert!(views.len() > 1, "some view has ended: {views:?}");
        for memberships in &views {
            assert_eq!(memberships.len(), 1, "{memberships:?} under one number");
        }
    }
}

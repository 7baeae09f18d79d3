//! Views are told in ascending order, once each, and are part of the state.

use super::*;
use crate::{ShardView, view};

/// Keeps what it was told of views.
#[derive(Default, Service)]
struct Crew {
    members: Persistent<Vec<usize>>,
    told: Persistent<Vec<(u64, u64)>>,
    changes: Persistent<(Vec<usize>, Vec<usize>)>,
}

#[service]
impl Crew {
    #[ordered]
    fn rest(&mut self) {}
    #[query]
    fn told(&self) -> (Vec<usize>, Vec<(u64, u64)>) {
        (self.members.clone(), self.told.clone())
    }
    #[query]
    fn changes(&self) -> (Vec<usize>, Vec<usize>) {
        self.changes.clone()
    }
    #[view]
    fn crew_is(&mut self, context: &mut CallContext, view: &ShardView) {
        assert!(!view.members().contains(&13), "an unlucky member");
        *self.members = view.members().to_vec();
        self.told.push((view.epoch(), view.number()));
        *self.changes = (view.joined().collect(), view.left().collect());
        context.notify("crew", format!("{:?}", view.members()));
    }
}

fn tell(rig: &mut Rig<Crew>, number: (u64, u64), members: &[u16]) -> Result<Done<()>, CallError> {
    let told = view::Told {
        number,
        members: members.to_vec(),
    };
    let mut reply = Vec::new();
    rig.machine.apply(&rig.at(), &view::tell(&told), &mut reply);
    call::read_answer(&reply, "it/0")
}

#[test]
fn views_are_told_once_in_ascending_order() {
    let mut rig = Rig::<Crew>::new(Retention::default());
    let versions = [
        ((1, 3), &[0, 4][..], 1),
        ((1, 3), &[0, 4], 1),
        // Late.
        ((1, 2), &[0, 4, 7], 1),
        // The same members.
        ((1, 5), &[0, 4], 1),
        ((1, 4), &[4], 1),
        ((1, 6), &[4, 7], 2),
        // The next epoch.
        ((2, 0), &[4, 7, 8], 3),
        ((1, 9), &[4], 3),
    ];
    for (number, members, version) in versions {
        let done = tell(&mut rig, number, members).expect("executed");
        assert_eq!(done.version, Version(version), "{number:?}");
    }
    let told = (vec![4usize, 7, 8], vec![(1u64, 3u64), (1, 6), (2, 0)]);
    assert_eq!(rig.query("told", &()), Ok(told.clone()));
    assert_eq!(
        rig.query("changes", &()),
        Ok((vec![8usize], Vec::<usize>::new()))
    );
    assert_eq!(rig.machine.notices.last(), 3);
    let (_, before) = rig.past::<(Vec<usize>, Vec<usize>)>(Kind::QueryAtVersion(2), 0, "changes");
    assert_eq!(before.expect("kept").value, (vec![7], vec![0]));
    // A member that has it by a snapshot continues in the same way.
    let mut copy = rig.copied(5);
    assert_eq!(copy.machine.digest(), rig.machine.digest());
    tell(&mut copy, (1, 8), &[0]).expect("executed");
    assert_eq!(copy.query("told", &()), Ok(told));
    let mut last = Vec::new();
    copy.machine.query(&copy.at(), &view::last(), &mut last);
    let last = call::read_answer::<(u64, u64)>(&last, "it/0").expect("told");
    assert_eq!(last.value, (2, 0));
}

#[test]
fn view_handler_that_panics_stops_its_shard() {
    let mut rig = Rig::<Crew>::new(Retention::default());
    tell(&mut rig, (1, 1), &[0, 1]).expect("executed");
    let failed = tell(&mut rig, (1, 2), &[0, 13]);
    assert!(
        matches!(&failed, Err(CallError::Panicked { method, stopped: true, .. }) if method == "crew_is"),
        "{failed:?}"
    );
    assert!(rig.ordered::<()>("rest", &()).is_err());
    assert!(tell(&mut rig, (1, 3), &[0]).is_err());
}

#[test]
fn service_without_a_view_method_refuses_views() {
    let mut rig = Rig::<Ledger>::new(Retention::default());
    let told = view::Told {
        number: (1, 1),
        members: vec![0],
    };
    let mut reply = Vec::new();
    rig.machine.apply(&rig.at(), &view::tell(&told), &mut reply);
    let refused = call::read_answer::<()>(&reply, "it/0");
    let shard = "it/0".to_owned();
    assert_eq!(refused, Err(CallError::Schema { shard }));
    let with = ServiceMachine::<Crew>::new(Retention::default()).terms();
    assert!(with.iter().any(|(name, _)| name == "Crew.crew_is"));
}

//! Snapshots of earlier formats, as the builds of their time wrote them.

use super::*;

/// Of the first format: `a` was 3 and `b` 5, `a` became 4, `b` was closed.
const LEDGER_1: &str = "\
    00000000000500000001040078000100000000060000000500646e787802fd92d0040300000000010002fd92d0\
    040300000001010602fd92d0040300000002011002fd92d0040300000003011202fd92d0040300000004010802\
    fd8e9637040000000161000002fd8e963705000000016101010602fd8e963705000000016103010802fd8e9637\
    040000000162000002fd8e963705000000016202010a02fd8e9637040000000162040004000000000200000000\
    00030000000000000000";

/// Of the first format: hand-offs of 7 to account/0 and twice to account/1; one of it/9 was executed.
const ACCOUNT_1: &str = "\
    00000000000500000001020065000100000000040000000300646502fd92d0040300000000010002fd92d00403\
    00000001010702fd92d0040300000002010e0297102c73030000000001000297102c7304000000020101070400\
    0000001e00000002096163636f756e742f3001096163636f756e742f3102010469742f39010500000000130000\
    00096163636f756e742f3001649e8fb0a8070107050000000013000000096163636f756e742f3101649e8fb0a8\
    070107050000000013000000096163636f756e742f3102649e8fb0a8070107030000000000000000";

fn restore<S: Methods>(rig: &mut Rig<S>, hex: &str) {
    let digits = hex.as_bytes().chunks(2);
    let bytes = digits.map(|two| {
        let two = std::str::from_utf8(two).expect("digits");
        u8::from_str_radix(two, 16).expect("a byte")
    });
    let bytes: Vec<u8> = bytes.collect();
    rig.machine.begin_restore();
    for part in bytes.chunks(17) {
        rig.machine.restore_chunk(part).expect("it is read");
    }
    rig.machine.finish_restore().expect("it is complete");
}

#[test]
fn snapshot_of_the_first_format_has_state_and_past() {
    let mut rig = Rig::<Ledger>::new(Retention::default());
    restore(&mut rig, LEDGER_1);
    rig.time = 140;
    let all: Result<All, _> = rig.query("all", &());
    assert_eq!(all, Ok((4, vec![("a".to_owned(), 4)], 1)));
    let (_, past) = rig.past::<All>(Kind::QueryAtVersion(2), 0, "all");
    let past = past.expect("kept");
    let both = vec![("a".to_owned(), 3), ("b".to_owned(), 5)];
    assert_eq!((past.value, past.time.0.0), ((8, both, 2), 110));
    // The next commands and snapshots are as ever.
    let put = rig.ordered::<Option<i64>>("put", &("c", 1i64));
    assert_eq!(put.expect("executed").version, Version(5));
    assert_eq!(rig.machine.notices.last(), 0);
    let copy = rig.copied(9);
    assert_eq!(copy.machine.digest(), rig.machine.digest());
}

#[test]
fn snapshot_of_the_first_format_has_hand_offs() {
    let mut rig = payer();
    restore(&mut rig, ACCOUNT_1);
    let waiting: Vec<_> = (rig.outbox().iter())
        .map(|it| (it.destination.clone(), it.number))
        .collect();
    let account = |shard: usize| format!("account/{shard}");
    assert_eq!(waiting, [(account(0), 1), (account(1), 1), (account(1), 2)]);
    assert_eq!(rig.query::<Vec<u64>>("order", &()), Ok(vec![7]));
    // It is not executed again.
    let hand_off = rig.outbox()[0].clone();
    let again = crate::delivery::deliver("it/9", &hand_off);
    rig.order::<()>(&again).expect("answered");
    assert_eq!(rig.query::<Vec<u64>>("order", &()), Ok(vec![7]));
}

//! Nothing fails.

use super::{Skip, cast};
use crate::clock::{MILLISECOND, SECOND};
use crate::stage::{Setting, Stage};

pub(super) fn normal_case(setting: Setting) -> Result<(), Skip> {
    let mut stage = Stage::new(setting);
    stage.talk(3);
    let numbers = stage.load(9, 20);
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    stage.final_phase();
    assert_eq!(stage.marked("state transfer"), 0, "no replica lagged");
    Ok(())
}

pub(super) fn large_commands(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    stage.payload_extra = 100_000;
    let numbers = stage.load(6, 10);
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    stage.payload_extra = 0;
    stage.final_phase();
    Ok(())
}

pub(super) fn long_distance(setting: Setting) -> Result<(), Skip> {
    let mut stage = Stage::new(setting);
    stage.distance(40 * MILLISECOND, 20 * MILLISECOND);
    stage.talk(2);
    let numbers = stage.load(6, 20);
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    stage.final_phase();
    Ok(())
}

pub(super) fn clocks_apart(setting: Setting) -> Result<(), Skip> {
    let mut stage = Stage::empty(setting);
    let off = [7, -5, 0, 60, -60, 1, -1];
    for (host, seconds) in (0..stage.hosts.len()).zip(off) {
        stage.set_clock(host, seconds * 1_000_000_000);
        stage.start(host);
    }
    stage.talk(2);
    for host in 0..stage.hosts.len() {
        let numbers = stage.load(3, 10);
        stage.run(MILLISECOND);
        stage.set_clock(host, [-30, 30][host % 2] * 1_000_000_000);
        stage.until("the load is answered", |stage| stage.answered(&numbers));
    }
    stage.final_phase();
    Ok(())
}

pub(super) fn clock_far_ahead(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    for host in cast::leader_last(&stage) {
        stage.set_clock(host, 3 * 3_600 * SECOND as i64);
        let numbers = stage.load(6, 10);
        stage.until("the load is answered", |stage| stage.answered(&numbers));
        let ahead = stage.log_ahead();
        assert!(
            ahead <= 2 * SECOND as i64,
            "the log's time is {} s ahead of most clocks",
            ahead / SECOND as i64
        );
        stage.set_clock(host, 0);
    }
    stage.final_phase();
    Ok(())
}

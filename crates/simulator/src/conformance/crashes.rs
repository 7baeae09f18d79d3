//! Processes die, stop, and stand still.

use super::{Skip, cast};
use crate::clock::{MILLISECOND, SECOND};
use crate::stage::{Setting, Stage};
use quintet_replica::{Control, Durability};

/// The replica dies under load; the others continue; it comes back.
fn dies_and_comes_back(mut stage: Stage, host: usize) -> Result<(), Skip> {
    cast::dispensable(&stage, host)?;
    let numbers = stage.load(6, 20);
    stage.run(MILLISECOND / 2);
    stage.crash(host);
    stage.until("the others answer the load", |stage| {
        stage.answered(&numbers)
    });
    stage.talk(1);
    stage.start(host);
    stage.until("it comes level", Stage::level);
    stage.final_phase();
    Ok(())
}

pub(super) fn leader_crash(setting: Setting) -> Result<(), Skip> {
    let stage = cast::open(setting);
    let host = cast::leader(&stage);
    dies_and_comes_back(stage, host)
}

pub(super) fn member_crash(setting: Setting) -> Result<(), Skip> {
    let stage = cast::open(setting);
    let host = cast::member(&stage)?;
    dies_and_comes_back(stage, host)
}

pub(super) fn head_crash(setting: Setting) -> Result<(), Skip> {
    let stage = cast::open(setting);
    let host = stage.route()[0];
    dies_and_comes_back(stage, host)
}

pub(super) fn tail_crash(setting: Setting) -> Result<(), Skip> {
    let stage = cast::open(setting);
    let host = stage.route().last().copied().unwrap_or(0);
    dies_and_comes_back(stage, host)
}

/// Waits until those that came back take part again: where memory is lost, only then may others
/// be lost.
fn back(stage: &mut Stage) {
    stage.until("all are back", |stage| {
        let mut replicas = 0..stage.hosts.len();
        stage.level() && replicas.all(|replica| stage.votes(replica))
    });
}

pub(super) fn minority_then_another(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    for round in 0..3 {
        let mut order = cast::leader_last(&stage);
        order.rotate_right(round);
        let lost = stage.expendable(&order);
        let numbers = stage.load(6, 10);
        stage.run(MILLISECOND / 2);
        for host in &lost {
            stage.crash(*host);
        }
        stage.until("the others answer the load", |stage| {
            stage.answered(&numbers)
        });
        for host in &lost {
            stage.start(*host);
        }
        back(&mut stage);
    }
    stage.final_phase();
    Ok(())
}

pub(super) fn rolling_restart(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let mut numbers = Vec::new();
    for host in 0..stage.hosts.len() {
        cast::dispensable(&stage, host)?;
        numbers.extend(stage.load(3, 10));
        stage.run(MILLISECOND);
        stage.control(host, Control::HandOff);
        stage.run(50 * MILLISECOND);
        stage.crash(host);
        stage.run(200 * MILLISECOND);
        stage.start(host);
        back(&mut stage);
    }
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    stage.final_phase();
    Ok(())
}

pub(super) fn crash_again_and_again(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let host = cast::dispensable(&stage, cast::member(&stage)?)?;
    let numbers = stage.load(6, 10);
    for round in 0..12 {
        stage.crash(host);
        stage.run(round * MILLISECOND);
        stage.start(host);
        stage.run(round * round * MILLISECOND / 4);
    }
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    stage.final_phase();
    Ok(())
}

pub(super) fn stopped_leader_hands_over(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    for _ in 0..3 {
        let host = cast::dispensable(&stage, cast::leader(&stage))?;
        let numbers = stage.load(6, 10);
        stage.run(MILLISECOND);
        stage.control(host, Control::HandOff);
        stage.run(100 * MILLISECOND);
        stage.crash(host);
        stage.until("the others answer the load", |stage| {
            stage.answered(&numbers)
        });
        stage.start(host);
        back(&mut stage);
    }
    stage.final_phase();
    Ok(())
}

pub(super) fn pause_and_resume(setting: Setting) -> Result<(), Skip> {
    let memory = setting.durability == Durability::Memory;
    let mut stage = cast::open(setting);
    for host in cast::leader_last(&stage) {
        cast::dispensable(&stage, host)?;
        let numbers = stage.load(6, 10);
        stage.run(MILLISECOND / 2);
        stage.pause(host);
        stage.run(if memory { 2 } else { 5 } * SECOND);
        stage.resume(host);
        stage.until("the load is answered", |stage| stage.answered(&numbers));
    }
    stage.final_phase();
    Ok(())
}

//! Processes die, stop, and stand still.

use super::{Skip, cast};
use crate::clock::{MILLISECOND, SECOND};
use crate::stage::{Setting, Stage};
use quintet_replica::{Control, Durability};

/// The replica dies under load; the others continue; it comes back.
fn dies_and_comes_back(mut stage: Stage, seat: usize) -> Result<(), Skip> {
    cast::dispensable(&stage, seat)?;
    let numbers = stage.load(6, 20);
    stage.run(MILLISECOND / 2);
    stage.crash(seat);
    stage.until("the others answer the load", |stage| {
        stage.answered(&numbers)
    });
    stage.talk(1);
    stage.start(seat);
    stage.until("it comes level", Stage::level);
    stage.final_phase();
    Ok(())
}

pub(super) fn leader_crash(setting: Setting) -> Result<(), Skip> {
    let stage = cast::open(setting);
    let seat = cast::leader(&stage);
    dies_and_comes_back(stage, seat)
}

pub(super) fn member_crash(setting: Setting) -> Result<(), Skip> {
    let stage = cast::open(setting);
    let seat = cast::member(&stage)?;
    dies_and_comes_back(stage, seat)
}

pub(super) fn head_crash(setting: Setting) -> Result<(), Skip> {
    let stage = cast::open(setting);
    let seat = stage.route()[0];
    dies_and_comes_back(stage, seat)
}

pub(super) fn tail_crash(setting: Setting) -> Result<(), Skip> {
    let stage = cast::open(setting);
    let seat = stage.route().last().copied().unwrap_or(0);
    dies_and_comes_back(stage, seat)
}

/// Waits until those that came back take part again: where memory is lost, only then may others
/// be lost.
fn back(stage: &mut Stage) {
    stage.until("all are back", |stage| {
        let mut replicas = 0..stage.seats.len();
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
        for seat in &lost {
            stage.crash(*seat);
        }
        stage.until("the others answer the load", |stage| {
            stage.answered(&numbers)
        });
        for seat in &lost {
            stage.start(*seat);
        }
        back(&mut stage);
    }
    stage.final_phase();
    Ok(())
}

pub(super) fn rolling_restart(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let mut numbers = Vec::new();
    for seat in 0..stage.seats.len() {
        cast::dispensable(&stage, seat)?;
        numbers.extend(stage.load(3, 10));
        stage.run(MILLISECOND);
        stage.control(seat, Control::HandOff);
        stage.run(50 * MILLISECOND);
        stage.crash(seat);
        stage.run(200 * MILLISECOND);
        stage.start(seat);
        back(&mut stage);
    }
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    stage.final_phase();
    Ok(())
}

pub(super) fn crash_again_and_again(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let seat = cast::dispensable(&stage, cast::member(&stage)?)?;
    let numbers = stage.load(6, 10);
    for round in 0..12 {
        stage.crash(seat);
        stage.run(round * MILLISECOND);
        stage.start(seat);
        stage.run(round * round * MILLISECOND / 4);
    }
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    stage.final_phase();
    Ok(())
}

pub(super) fn stopped_leader_hands_over(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    for _ in 0..3 {
        let seat = cast::dispensable(&stage, cast::leader(&stage))?;
        let numbers = stage.load(6, 10);
        stage.run(MILLISECOND);
        stage.control(seat, Control::HandOff);
        stage.run(100 * MILLISECOND);
        stage.crash(seat);
        stage.until("the others answer the load", |stage| {
            stage.answered(&numbers)
        });
        stage.start(seat);
        back(&mut stage);
    }
    stage.final_phase();
    Ok(())
}

pub(super) fn pause_and_resume(setting: Setting) -> Result<(), Skip> {
    let memory = setting.durability == Durability::Memory;
    let mut stage = cast::open(setting);
    for seat in cast::leader_last(&stage) {
        cast::dispensable(&stage, seat)?;
        let numbers = stage.load(6, 10);
        stage.run(MILLISECOND / 2);
        stage.pause(seat);
        stage.run(if memory { 2 } else { 5 } * SECOND);
        stage.resume(seat);
        stage.until("the load is answered", |stage| stage.answered(&numbers));
    }
    stage.final_phase();
    Ok(())
}

//! Slowness and bounds.

use super::{Skip, cast};
use crate::{
    clock::MILLISECOND,
    machine::Operation,
    stage::{Place, Setting, Stage},
};
use quintet_replica::Level;
use std::time::Duration;

/// Writes at all but `seat`, a few at a time; gives how long the whole took.
fn work(stage: &mut Stage, without: usize, rounds: u64) -> u64 {
    let began = stage.now;
    let seats: Vec<usize> = (0..stage.seats.len())
        .filter(|seat| *seat != without)
        .collect();
    let clients: Vec<usize> = seats
        .iter()
        .map(|seat| stage.client(Place::At(*seat)))
        .collect();
    for round in 0..rounds {
        let numbers: Vec<usize> = (clients.iter())
            .map(|client| {
                stage.ask(
                    *client,
                    Level::Ordered,
                    (round % 12) as u32,
                    Operation::Add(1),
                )
            })
            .collect();
        stage.until("the others continue", |stage| stage.answered(&numbers));
    }
    stage.now - began
}

pub(super) fn slow_replica_isolated(mut setting: Setting) -> Result<(), Skip> {
    setting.pace_beat = Duration::from_millis(20);
    let mut stage = cast::open(setting);
    let seat = cast::dispensable(&stage, cast::member(&stage)?)?;
    stage.slow_links(seat, 100);
    stage.seats[seat].disk.latency *= 100;
    // A protocol that waits for all must notice first.
    work(&mut stage, seat, 100);
    let slow = work(&mut stage, seat, 100);
    stage.slow_links(seat, 1);
    stage.seats[seat].disk.latency /= 100;
    stage.recover();
    let even = work(&mut stage, seat, 100);
    assert!(
        slow < 5 * even,
        "with one slow replica 100 rounds take {} ms, without {} ms",
        slow / MILLISECOND,
        even / MILLISECOND
    );
    stage.final_phase();
    Ok(())
}

pub(super) fn bounded_memory(mut setting: Setting) -> Result<(), Skip> {
    cast::short_logs(&mut setting);
    setting.snapshot_bytes_min = 64 << 10;
    let mut stage = cast::open(setting);
    let seat = cast::dispensable(&stage, cast::member(&stage)?)?;
    stage.isolate(seat, false);
    stage.payload_extra = 1000;
    work(&mut stage, seat, 400);
    let (written, bytes) = (800, 800 * 1100);
    for (index, held) in stage.seats.iter().enumerate() {
        let records = held.disk.records_max;
        assert!(
            index == seat || records < written,
            "the journal of replica {index} held {records} records for {written} commands"
        );
    }
    let most = stage.in_flight_max();
    assert!(
        most < crate::stage::CAPACITY.min(8 * bytes),
        "{most} bytes waited on one link, {bytes} were written"
    );
    stage.payload_extra = 0;
    stage.final_phase();
    Ok(())
}

//! Slowness and bounds.

use super::{Skip, cast};
use crate::{
    clock::MILLISECOND,
    machine::Operation,
    stage::{Place, Setting, Stage},
};
use quintet_replica::Level;
use std::time::Duration;

/// Writes at all but these, a few at a time; gives how long the whole took.
fn work(stage: &mut Stage, without: &[usize], rounds: u64) -> u64 {
    let began = stage.now;
    let others: Vec<usize> = (0..stage.hosts.len())
        .filter(|replica| !without.contains(replica))
        .collect();
    let clients: Vec<usize> = others
        .iter()
        .map(|replica| stage.client(Place::At(*replica)))
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
    let host = cast::dispensable(&stage, cast::member(&stage)?)?;
    stage.slow_links(host, 100);
    stage.hosts[host].disk.latency *= 100;
    // A protocol that waits for all must notice first.
    work(&mut stage, &[host], 100);
    let slow = work(&mut stage, &[host], 100);
    stage.slow_links(host, 1);
    stage.hosts[host].disk.latency /= 100;
    stage.recover();
    let even = work(&mut stage, &[host], 100);
    assert!(
        slow < 5 * even,
        "with one slow replica 100 rounds take {} ms, without {} ms",
        slow / MILLISECOND,
        even / MILLISECOND
    );
    stage.final_phase();
    Ok(())
}

/// How much longer a slow link takes.
const SLOW_TIMES: u64 = 100;
const ROUNDS: u64 = 50;

/// Where every message passes the link, as in a chain or when all have to receive it, and nothing
/// shows that its ends are slow beside others, a round may take a few times the link's delay.
pub(super) fn one_slow_link(mut setting: Setting) -> Result<(), Skip> {
    setting.pace_beat = Duration::from_millis(20);
    let mut stage = cast::open(setting);
    let (leader, member) = (cast::leader(&stage), cast::member(&stage)?);
    cast::dispensable(&stage, member)?;
    let route = stage.route();
    let third = stage
        .members()
        .into_iter()
        .find(|replica| ![leader, member].contains(replica));
    let third = third.ok_or(Skip("every link is one of the leader's"))?;
    let mut ways = vec![
        (leader, member),
        (member, leader),
        (member, third),
        (third, member),
    ];
    // Where messages go along a route, each of its links is another case.
    ways.extend(route.iter().copied().zip(route.iter().copied().skip(1)));
    ways.sort_unstable();
    ways.dedup();
    for (from, to) in ways {
        let even = work(&mut stage, &[from, to], ROUNDS);
        stage.slow_link(from, to, SLOW_TIMES);
        // A protocol that waits for all must notice first.
        work(&mut stage, &[from, to], ROUNDS);
        let slow = work(&mut stage, &[from, to], ROUNDS);
        assert!(
            slow < 5 * even + ROUNDS * 3 * SLOW_TIMES * stage.delay(),
            "with a slow link from {from} to {to} {ROUNDS} rounds take {} ms, without {} ms; {}",
            slow / MILLISECOND,
            even / MILLISECOND,
            stage.describe()
        );
        stage.slow_link(from, to, 1);
        stage.recover();
    }
    stage.final_phase();
    Ok(())
}

pub(super) fn bounded_memory(mut setting: Setting) -> Result<(), Skip> {
    cast::short_logs(&mut setting);
    setting.snapshot_bytes_min = 64 << 10;
    let mut stage = cast::open(setting);
    let host = cast::dispensable(&stage, cast::member(&stage)?)?;
    stage.isolate(host, false);
    stage.payload_extra = 1000;
    work(&mut stage, &[host], 400);
    let (written, bytes) = (800, 800 * 1100);
    for (index, held) in stage.hosts.iter().enumerate() {
        let records = held.disk.records_max;
        assert!(
            index == host || records < written,
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

//! Messages are late, lost, doubled; replicas are cut off from each other.

use super::{Skip, cast};
use crate::clock::{MILLISECOND, SECOND};
use crate::machine::Operation;
use crate::stage::{Place, Setting, Stage};
use quintet_replica::{Level, Link};

/// How often a load is repeated while too little was lost.
const ROUNDS_MIN: usize = 4;
const ROUNDS_MAX: usize = 40;

pub(super) fn duplicates(setting: Setting) -> Result<(), Skip> {
    let doubles = !setting.entry.needs_streams;
    let mut stage = cast::open(setting);
    stage.weather(0, 250);
    for _ in 0..3 {
        let client = stage.client(Place::At(0));
        let write = stage.ask(client, Level::Ordered, 2, Operation::Add(1));
        stage.until("a write is answered", |stage| stage.answered(&[write]));
        stage.repeat(client, &[write]);
        let numbers = stage.load(6, 20);
        stage.until("the load is answered", |stage| stage.answered(&numbers));
    }
    assert!(stage.marked("answered again") > 0, "clients repeated");
    assert!(
        !doubles || stage.disturbances().1 > 10,
        "messages were doubled"
    );
    stage.final_phase();
    Ok(())
}

pub(super) fn loss(setting: Setting) -> Result<(), Skip> {
    let per_mille = if setting.entry.needs_streams { 10 } else { 100 };
    let mut stage = cast::open(setting);
    stage.weather(per_mille, 0);
    // A protocol that needs streams loses connections instead, and says much in few messages.
    for round in 0..ROUNDS_MAX {
        if round >= ROUNDS_MIN && stage.disturbances().0 > 3 {
            break;
        }
        let numbers = stage.load(6, 15);
        stage.until("the load is answered", |stage| stage.answered(&numbers));
    }
    assert!(stage.disturbances().0 > 3, "messages were lost");
    stage.final_phase();
    Ok(())
}

pub(super) fn resets(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let numbers = stage.load(6, 40);
    let places = stage.places();
    for round in 0..30 {
        stage.run((round % 7) * MILLISECOND / 3);
        for a in 0..stage.hosts.len() {
            let b = (a + 1 + round as usize) % places;
            if a != b {
                stage.break_link(a, b, Link::Reset);
            }
        }
    }
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    stage.final_phase();
    Ok(())
}

/// Writes somewhere until one is answered: the rest continues. The load may hang at those that are
/// cut off.
fn continues(stage: &mut Stage, at: &[usize]) {
    for host in at {
        let client = stage.client(Place::At(*host));
        let write = stage.ask(client, Level::Ordered, 5, Operation::Add(1));
        let read = stage.ask(client, Level::Linearizable, 5, Operation::Read);
        stage.until("those that reach each other continue", |stage| {
            stage.answered(&[write, read])
        });
    }
}

pub(super) fn partition_full(setting: Setting) -> Result<(), Skip> {
    for resets in [false, true] {
        for leader_lost in [false, true] {
            let mut stage = cast::open(setting.clone());
            let mut order = cast::leader_last(&stage);
            if leader_lost {
                order.rotate_right(1);
            }
            let lost = stage.expendable(&order);
            let left: Vec<usize> = order
                .into_iter()
                .filter(|host| !lost.contains(host))
                .collect();
            stage.load(6, 10);
            stage.run(MILLISECOND);
            stage.part(&lost, &left, resets);
            continues(&mut stage, &left);
            stage.run(3 * SECOND);
            stage.final_phase();
        }
    }
    Ok(())
}

pub(super) fn partition_one_way(setting: Setting) -> Result<(), Skip> {
    for heard in [false, true] {
        for leader in [false, true] {
            let mut stage = cast::open(setting.clone());
            let host = if leader {
                cast::leader(&stage)
            } else {
                cast::member(&stage)?
            };
            cast::dispensable(&stage, host)?;
            let others: Vec<usize> = (0..stage.hosts.len()).filter(|it| *it != host).collect();
            let pairs: Vec<_> = (others.iter())
                .map(|other| {
                    if heard {
                        (*other, host)
                    } else {
                        (host, *other)
                    }
                })
                .collect();
            stage.load(6, 10);
            stage.run(MILLISECOND);
            stage.cut(&pairs, false);
            stage.run(5 * SECOND);
            stage.final_phase();
        }
    }
    Ok(())
}

/// Cuts all pairs that `apart` names, places in the order of the route; the load and the end
/// are the same for all shapes.
fn shape(setting: &Setting, apart: impl Fn(usize, usize) -> bool, progress: bool) {
    for resets in [false, true] {
        for turn in 0..setting.replicas {
            let mut stage = cast::open(setting.clone());
            let mut order = stage.route();
            order.rotate_left(turn);
            let mut pairs = Vec::new();
            for (i, a) in order.iter().enumerate() {
                for (j, b) in order.iter().enumerate() {
                    if i != j && apart(i, j) {
                        pairs.push((*a, *b));
                    }
                }
            }
            stage.load(4, 6);
            stage.run(MILLISECOND);
            stage.cut(&pairs, resets);
            stage.run(4 * SECOND);
            if progress {
                // The first of the order reaches enough others, and so do its clients.
                continues(&mut stage, &order[..1]);
            }
            stage.final_phase();
        }
    }
}

pub(super) fn partition_bridge(setting: Setting) -> Result<(), Skip> {
    let half = setting.replicas / 2;
    shape(
        &setting,
        |i, j| i != 0 && j != 0 && (i <= half) != (j <= half),
        false,
    );
    Ok(())
}

pub(super) fn partition_ring(setting: Setting) -> Result<(), Skip> {
    let last = setting.replicas - 1;
    shape(
        &setting,
        |i, j| i.abs_diff(j) > 1 && i.abs_diff(j) < last,
        false,
    );
    Ok(())
}

pub(super) fn partition_chained(setting: Setting) -> Result<(), Skip> {
    shape(&setting, |i, j| i.abs_diff(j) > 1, false);
    Ok(())
}

pub(super) fn lost_majority_acknowledges_nothing(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let order = cast::leader_last(&stage);
    // One more than may be lost, so that neither side is viable alone.
    let mut lost = stage.expendable(&order);
    let left: Vec<usize> = order
        .into_iter()
        .filter(|host| !lost.contains(host))
        .collect();
    let Some((alone, more)) = left.split_last() else {
        return Err(Skip("the protocol needs no peer"));
    };
    lost.extend(more);
    if stage.expendable(&lost).len() == lost.len() {
        return Err(Skip("the protocol can do with one"));
    }
    for a in 0..stage.hosts.len() {
        stage.isolate(a, false);
    }
    // Commands that were in flight before may still be answered; new ones may not.
    stage.run(3 * SECOND);
    let client = stage.client(Place::At(*alone));
    let write = stage.ask(client, Level::Ordered, 2, Operation::Add(1));
    let read = stage.ask(client, Level::Linearizable, 2, Operation::Read);
    stage.run(10 * SECOND);
    assert!(
        stage.reply(write).is_none(),
        "one replica alone acknowledged a write"
    );
    assert!(
        stage.reply(read).is_none(),
        "one replica alone answered a linearizable read"
    );
    stage.final_phase();
    Ok(())
}

pub(super) fn liveness_after_healing(setting: Setting) -> Result<(), Skip> {
    for resets in [false, true] {
        let mut stage = cast::open(setting.clone());
        let numbers = stage.load(6, 10);
        stage.run(MILLISECOND / 2);
        for host in 0..stage.hosts.len() {
            stage.isolate(host, resets);
        }
        stage.run(30 * SECOND);
        stage.heal();
        stage.until("the load is answered", |stage| stage.answered(&numbers));
        stage.final_phase();
    }
    Ok(())
}

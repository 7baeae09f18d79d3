//! Restarts, forgetting, snapshots, disks.

use super::{Skip, cast};
use crate::clock::{MILLISECOND, SECOND};
use crate::{
    machine::Operation,
    stage::{Place, Setting, Stage},
};
use quintet_replica::{Control, Level};

pub(super) fn total_restart_from_disk(mut setting: Setting) -> Result<(), Skip> {
    for snapshots in [false, true] {
        if snapshots {
            setting.snapshot_bytes_min = 2048;
        }
        let mut stage = cast::open(setting.clone());
        for round in 0..3 {
            stage.load(6, 10);
            stage.run((1 + round) * MILLISECOND / 2);
            for host in 0..stage.hosts.len() {
                // Of what was not durable a few writes reach the disk, elsewhere more.
                stage.crash_keeping(host, host * round as usize, false);
            }
            stage.run(MILLISECOND);
            for host in 0..stage.hosts.len() {
                stage.start(host);
            }
            stage.until("all is answered", |stage| stage.quiet() && stage.level());
        }
        stage.final_phase();
    }
    Ok(())
}

pub(super) fn memory_rejoin(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    for host in cast::leader_last(&stage) {
        cast::dispensable(&stage, host)?;
        let numbers = stage.load(6, 10);
        stage.run(MILLISECOND / 2);
        stage.crash(host);
        stage.run(20 * MILLISECOND);
        stage.start(host);
        stage.until("it takes part again", |stage| {
            stage.level() && stage.votes(host)
        });
        stage.until("the load is answered", |stage| stage.answered(&numbers));
    }
    stage.final_phase();
    Ok(())
}

pub(super) fn lagging_replica_past_a_trimmed_log(mut setting: Setting) -> Result<(), Skip> {
    cast::short_logs(&mut setting);
    let shortened = !setting.options.is_empty();
    setting.snapshot_bytes_min = 32 << 10;
    setting.snapshot_padding = 300_000;
    for down in [false, true] {
        let mut stage = cast::open(setting.clone());
        let host = cast::dispensable(&stage, cast::member(&stage)?)?;
        if down {
            stage.crash(host);
        } else {
            stage.isolate(host, true);
        }
        cast::outgrow_logs(&mut stage, host);
        if down {
            stage.start(host);
        }
        stage.final_phase();
        if shortened {
            assert!(
                stage.marked("state installed") > 0,
                "it was too far behind for a log"
            );
        }
    }
    Ok(())
}

/// Within that many rounds of writes a replica must be back.
const ROUNDS: usize = 1500;
/// Back is who is no further behind than that many rounds.
const NEAR: usize = 25;

pub(super) fn laggard_catches_up_when_restoring_outlasts_the_log(
    mut setting: Setting,
) -> Result<(), Skip> {
    // 32,768 turns, or 328 ms: some twenty times what the log holds.
    setting.restore_step = 256;
    laggard_catches_up_under_load_with_short_logs(setting)
}

pub(super) fn laggard_catches_up_under_load_with_short_logs(
    mut setting: Setting,
) -> Result<(), Skip> {
    cast::short_logs(&mut setting);
    if setting.options.is_empty() {
        return Err(Skip("its log has no bound to set"));
    }
    setting.snapshot_bytes_min = 256 << 10;
    setting.snapshot_padding = 8 << 20;
    let mut stage = cast::open(setting);
    let host = cast::dispensable(&stage, cast::member(&stage)?)?;
    stage.crash(host);
    stage.distance(MILLISECOND / 2, 0);
    stage.payload_extra = 4000;
    let clients: Vec<usize> = (0..stage.hosts.len())
        .filter(|at| *at != host)
        .map(|at| stage.client(Place::At(at)))
        .collect();
    let executed = |stage: &Stage, host: usize| {
        let node = stage.hosts[host].node.as_ref();
        node.map_or(0, |node| node.executed().slot.0)
    };
    let (mut behind, mut back) = (Vec::new(), None);
    for round in 0..ROUNDS {
        if round == 50 {
            stage.start(host);
        }
        for client in &clients {
            for key in 0..2 {
                let add = Operation::Add(1);
                let level = Level::Ordered;
                stage.ask(*client, level, 2 + 3 * key, add);
            }
        }
        stage.run(4 * MILLISECOND);
        stage.assert_sound();
        behind.push((0..stage.hosts.len()).map(|at| executed(&stage, at)).max());
        let near = round >= 50 + NEAR && Some(executed(&stage, host)) >= behind[round - NEAR];
        if near && behind[round - NEAR] > behind[50] {
            back = Some(round);
            break;
        }
    }
    stage.payload_extra = 0;
    assert!(
        back.is_some(),
        "it is still behind while writes continue: {}",
        stage.describe()
    );
    stage.final_phase();
    Ok(())
}

pub(super) fn snapshot_under_load(mut setting: Setting) -> Result<(), Skip> {
    setting.snapshot_bytes_min = 1024;
    setting.snapshot_padding = 20_000;
    let disk = setting.durability == quintet_replica::Durability::Disk;
    let mut stage = cast::open(setting);
    for round in 0..4 {
        let numbers = stage.load(6, 20);
        stage.run(round * MILLISECOND);
        stage.control(0, Control::CheckpointDue);
        stage.until("the load is answered", |stage| stage.answered(&numbers));
        stage.run(50 * MILLISECOND);
    }
    assert!(stage.marked("snapshot saved") > 3);
    assert!(
        stage.marked("log trimmed") > 0,
        "what a snapshot covers goes"
    );
    for host in 0..stage.hosts.len() {
        if (disk || !stage.expendable(&[host]).is_empty()) && stage.hosts[host].disk.snapshots() > 0
        {
            stage.crash(host);
            stage.run(MILLISECOND);
            stage.start(host);
            // With the state a memory need not be back: the next one may only go when it is.
            stage.until("it comes level and votes", |stage| {
                stage.level() && stage.votes(host)
            });
        }
    }
    stage.final_phase();
    Ok(())
}

pub(super) fn replica_with_a_damaged_journal_delays_no_other(
    mut setting: Setting,
) -> Result<(), Skip> {
    cast::short_logs(&mut setting);
    setting.snapshot_bytes_min = 32 << 10;
    setting.snapshot_padding = 1 << 20;
    // A state that is fetched takes seconds to restore.
    setting.restore_step = 16;
    let mut stage = cast::open(setting);
    let damaged = cast::dispensable(&stage, cast::member(&stage)?)?;
    cast::outgrow_logs(&mut stage, usize::MAX);
    let all = stage.up();
    for replica in &all {
        stage.crash(*replica);
    }
    stage.hosts[damaged].disk.damage();
    let began = stage.now;
    for replica in &all {
        stage.start(*replica);
    }
    let others = all.iter().filter(|replica| **replica != damaged);
    let asked: Vec<usize> = others
        .map(|replica| {
            let client = stage.client(Place::At(*replica));
            stage.ask(client, Level::Ordered, 2, Operation::Add(1))
        })
        .collect();
    stage.until("the others answer", |stage| stage.answered(&asked));
    assert!(
        !stage.level(),
        "they wait for the one that lost its journal, {} ms; {}",
        (stage.now - began) / MILLISECOND,
        stage.describe()
    );
    stage.final_phase();
    Ok(())
}

pub(super) fn restart_in_the_middle_of_a_snapshot(mut setting: Setting) -> Result<(), Skip> {
    setting.snapshot_padding = 200_000;
    let mut stage = cast::open(setting);
    let host = cast::dispensable(&stage, cast::member(&stage)?)?;
    for moment in 0..12 {
        let numbers = stage.load(3, 10);
        stage.run(2 * MILLISECOND);
        stage.control(host, Control::CheckpointDue);
        stage.run(moment * 20_000);
        stage.crash_keeping(host, moment as usize % 3, false);
        stage.run(MILLISECOND);
        stage.start(host);
        stage.until("the load is answered", |stage| {
            stage.answered(&numbers) && stage.level()
        });
    }
    stage.final_phase();
    Ok(())
}

pub(super) fn slow_disks(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    for host in cast::leader_last(&stage) {
        cast::dispensable(&stage, host)?;
        let numbers = stage.load(6, 10);
        stage.run(MILLISECOND / 2);
        stage.hold_disk(host, true);
        stage.run(3 * SECOND);
        stage.crash(host);
        stage.hold_disk(host, false);
        stage.start(host);
        stage.until("the load is answered", |stage| {
            stage.answered(&numbers) && stage.level()
        });
    }
    stage.final_phase();
    Ok(())
}

//! Linearizable reads.

use super::{Skip, cast};
use crate::{
    clock::{MILLISECOND, SECOND},
    machine::{Operation, Reply},
    stage::{Place, Setting, Stage},
};
use quintet_replica::Level;

pub(super) fn linearizable_reads_at_every_replica(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let remote = stage.client(Place::Remote);
    let count = stage.hosts.len();
    for round in 0..3 * count as u64 {
        let writer = stage.client(Place::At(round as usize % count));
        let write = stage.ask(writer, Level::Ordered, 0, Operation::Write(100 + round));
        stage.until("a write is answered", |stage| stage.answered(&[write]));
        let mut reads = Vec::new();
        for host in 0..count {
            let reader = stage.client(Place::At(host));
            reads.push(stage.ask(reader, Level::Linearizable, 0, Operation::Read));
        }
        reads.push(stage.ask(remote, Level::Linearizable, 0, Operation::Read));
        stage.until("reads are answered", |stage| stage.answered(&reads));
        for read in reads {
            assert_eq!(stage.reply(read), Some(Reply::Value(0, 100 + round)));
        }
    }
    stage.final_phase();
    Ok(())
}

/// Others write while `host` knows nothing of it; then what it reads is compared.
fn writes_behind_its_back(stage: &mut Stage, host: usize, value: u64) -> usize {
    let other = (0..stage.hosts.len()).find(|it| *it != host).unwrap_or(0);
    let writer = stage.client(Place::At(other));
    let write = stage.ask(writer, Level::Ordered, 0, Operation::Write(value));
    stage.until("the others continue", |stage| stage.answered(&[write]));
    write
}

pub(super) fn no_stale_read_when_cut_off(setting: Setting) -> Result<(), Skip> {
    for leads in [false, true] {
        for wait in [0, 300, 2000] {
            let mut stage = cast::open(setting.clone());
            let host = if leads {
                cast::leader(&stage)
            } else {
                cast::member(&stage)?
            };
            cast::dispensable(&stage, host)?;
            stage.isolate(host, false);
            writes_behind_its_back(&mut stage, host, 77);
            let reader = stage.client(Place::At(host));
            let read = stage.ask(reader, Level::Linearizable, 0, Operation::Read);
            stage.run(wait * MILLISECOND);
            if let Some(reply) = stage.reply(read) {
                assert_eq!(reply, Reply::Value(0, 77), "read while cut off");
            }
            stage.final_phase();
            assert_eq!(stage.reply(read), Some(Reply::Value(0, 77)));
        }
    }
    Ok(())
}

pub(super) fn no_stale_read_after_a_pause(setting: Setting) -> Result<(), Skip> {
    for seconds in [1, 3, 10] {
        let mut stage = cast::open(setting.clone());
        let host = cast::dispensable(&stage, cast::leader(&stage))?;
        stage.pause(host);
        stage.run(seconds * SECOND);
        writes_behind_its_back(&mut stage, host, 78);
        // The first thing that it handles is the read, before any news.
        let reader = stage.client(Place::At(host));
        let read = stage.ask(reader, Level::Linearizable, 0, Operation::Read);
        stage.resume(host);
        stage.until("the read is answered", |stage| stage.answered(&[read]));
        assert_eq!(stage.reply(read), Some(Reply::Value(0, 78)));
        stage.final_phase();
    }
    Ok(())
}

pub(super) fn reads_in_a_change_of_leader(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    for round in 0..4 {
        let host = cast::dispensable(&stage, cast::leader(&stage))?;
        let mut numbers = stage.load(6, 5);
        stage.run((1 + round) * MILLISECOND / 4);
        stage.crash(host);
        for step in 0..40 {
            stage.run(40 * MILLISECOND);
            let up = stage.up();
            let client = stage.client(Place::At(up[step % up.len()]));
            numbers.push(stage.ask(client, Level::Linearizable, 2, Operation::Read));
            if step % 4 == 0 {
                numbers.push(stage.ask(client, Level::Ordered, 2, Operation::Add(1)));
            }
        }
        stage.until("everything is answered", |stage| stage.answered(&numbers));
        stage.start(host);
        stage.until("it is back", |stage| stage.level() && stage.votes(host));
    }
    stage.final_phase();
    Ok(())
}

//! The roles: leaders, members, heads and tails of whatever protocol is on the stage.

use super::Skip;
use crate::{
    clock::SECOND,
    machine::Operation,
    stage::{Place, Setting, Stage},
};
use quintet_replica::Level;

/// Starts a stage and waits until its replicas answer.
pub(super) fn open(setting: Setting) -> Stage {
    let mut stage = Stage::new(setting);
    stage.talk(1);
    stage
}

/// The orderer; the first of the route if no replica reports itself as one.
pub(super) fn leader(stage: &Stage) -> usize {
    stage.leader().unwrap_or_else(|| stage.route()[0])
}

/// One that runs and does not order.
pub(super) fn member(stage: &Stage) -> Result<usize, Skip> {
    let leader = leader(stage);
    let mut others = stage.up().into_iter().rev().filter(|host| *host != leader);
    others.next().ok_or(Skip("there is only the leader"))
}

/// The replica, if the protocol can do without it.
pub(super) fn dispensable(stage: &Stage, host: usize) -> Result<usize, Skip> {
    match stage.expendable(&[host]).is_empty() {
        false => Ok(host),
        true => Err(Skip("the protocol cannot do without it")),
    }
}

/// All replicas, the leader last.
pub(super) fn leader_last(stage: &Stage) -> Vec<usize> {
    let leader = leader(stage);
    let mut order: Vec<usize> = (0..stage.hosts.len())
        .filter(|host| *host != leader)
        .collect();
    order.push(leader);
    order
}

/// Makes logs so short that a few hundred commands outgrow them, where the protocol has an option
/// for that.
pub(super) fn short_logs(setting: &mut Setting) {
    for (name, value) in [("log_memory_bytes", "65536"), ("batch_bytes_max", "16384")] {
        if setting
            .entry
            .options
            .iter()
            .any(|option| option.name == name)
        {
            setting.options.push((name.to_string(), value.to_string()));
        }
    }
}

/// All replicas but one answer more commands than short logs keep.
pub(super) fn outgrow_logs(stage: &mut Stage, without: usize) {
    stage.payload_extra = 2000;
    for _ in 0..4 {
        let mut numbers = Vec::new();
        for at in (0..stage.hosts.len()).filter(|at| *at != without) {
            let client = stage.client(Place::At(at));
            for key in 0..30 {
                let add = Operation::Add(1);
                numbers.push(stage.ask(client, Level::Ordered, 2 + 3 * (key % 4), add));
            }
        }
        stage.until("the others answer the load", |stage| {
            stage.answered(&numbers)
        });
        stage.run(SECOND);
    }
    stage.payload_extra = 0;
}

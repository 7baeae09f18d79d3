//! Exactly once, and what commutes.

use super::{Skip, cast};
use crate::{
    clock::MILLISECOND,
    machine::Operation,
    stage::{Place, Setting, Stage},
};
use quintet_replica::{Level, Node};

pub(super) fn exactly_once_across_retries(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let count = stage.hosts.len();
    for round in 0..4 {
        let clients: Vec<usize> = (0..4)
            .map(|it| stage.client(Place::At(it % count)))
            .collect();
        let mut numbers = Vec::new();
        for client in &clients {
            let adds = [
                (2, Operation::Add(1)),
                (5, Operation::Add(1)),
                (1, Operation::Append(9)),
            ];
            numbers.push((*client, stage.invoke(*client, Level::Ordered, &adds)));
        }
        stage.run(round * MILLISECOND / 5);
        // Everybody sends everything again, somewhere else, while the first copy is in progress.
        for (client, _) in &numbers {
            stage.move_client(*client, (client + 1) % count);
            stage.repeat(*client, &[]);
        }
        let host = cast::leader(&stage);
        let dies = round % 2 == 1 && !stage.expendable(&[host]).is_empty();
        if dies {
            stage.crash(host);
        }
        let all: Vec<usize> = numbers
            .iter()
            .flat_map(|(_, numbers)| numbers.clone())
            .collect();
        stage.until("everything is answered", |stage| stage.answered(&all));
        if dies {
            stage.start(host);
            // Another one may die only when it counts again.
            stage.until("it is back", |stage| stage.level() && stage.votes(host));
        }
        // And once more, long after the answer.
        for (client, numbers) in &numbers {
            stage.move_client(*client, (client + 2) % count);
            stage.repeat(*client, numbers);
        }
        stage.run(20 * MILLISECOND);
    }
    assert!(stage.marked("answered again") > 0);
    stage.final_phase();
    Ok(())
}

pub(super) fn retries_after_a_snapshot(mut setting: Setting) -> Result<(), Skip> {
    cast::short_logs(&mut setting);
    setting.snapshot_bytes_min = 4096;
    let mut stage = cast::open(setting);
    let host = cast::dispensable(&stage, cast::member(&stage)?)?;
    let client = stage.client(Place::At(cast::leader(&stage)));
    stage.isolate(host, true);
    stage.payload_extra = 3000;
    let numbers = stage.invoke(client, Level::Ordered, &[(2, Operation::Add(1)); 4]);
    stage.until("answered", |stage| stage.answered(&numbers));
    let left: Vec<usize> = (0..stage.hosts.len()).filter(|it| *it != host).collect();
    let writer = stage.client(Place::At(left[0]));
    let fill: Vec<usize> = (0..60)
        .map(|_| stage.ask(writer, Level::Ordered, 5, Operation::Add(1)))
        .collect();
    stage.until("the others answer the load", |stage| stage.answered(&fill));
    stage.payload_extra = 0;
    stage.heal();
    stage.until("it comes level", Stage::level);
    // The others go; the one that got the state has to know the command.
    stage.move_client(client, host);
    stage.repeat(client, &numbers);
    stage.run(100 * MILLISECOND);
    assert!(stage.marked("answered again") > 0);
    stage.final_phase();
    Ok(())
}

/// Two commands, submitted at the same moment at different replicas; the replies and the state.
fn both(setting: &Setting, first: (u32, Operation), second: (u32, Operation)) -> Vec<u128> {
    let mut stage = cast::open(setting.clone());
    let prepare = stage.client(Place::At(0));
    let writes: Vec<_> = (0..6).map(|key| (key, Operation::Add(3))).collect();
    let numbers = stage.invoke(prepare, Level::Ordered, &writes);
    stage.until("prepared", |stage| stage.answered(&numbers));
    let last = stage.hosts.len() - 1;
    let (one, other) = (stage.client(Place::At(0)), stage.client(Place::At(last)));
    // A client's name stands in its session, so each command keeps its client in both orders.
    let mut numbers = Vec::new();
    for (key, operation) in [first, second] {
        let client = if key < 3 { one } else { other };
        numbers.push(stage.ask(client, Level::Ordered, key, operation));
    }
    stage.until("both are answered", |stage| stage.answered(&numbers));
    stage.final_phase();
    numbers.sort_by_key(|number| stage.history.get(*number).key);
    let mut seen: Vec<u128> = (numbers.iter())
        .map(|number| crate::machine::reply_hash(stage.reply(*number)))
        .collect();
    for host in 0..stage.hosts.len() {
        let digest = stage.hosts[host]
            .node
            .as_ref()
            .map(Node::machine)
            .map(|it| it.digest());
        seen.push(digest.unwrap_or_default());
    }
    seen
}

pub(super) fn commuting_pairs_in_both_orders(setting: Setting) -> Result<(), Skip> {
    let kinds = [
        Operation::Write(9),
        Operation::CompareAndSet {
            expected: 3,
            new: 4,
        },
        Operation::Append(7),
        Operation::Add(5),
        Operation::Read,
    ];
    for one in kinds {
        for other in kinds {
            let (a, b) = ((0, one), (3, other));
            assert_eq!(
                both(&setting, a, b),
                both(&setting, b, a),
                "{one:?} and {other:?}"
            );
        }
    }
    Ok(())
}

//! Epochs end, and the next begin.

use super::{Skip, cast};
use crate::clock::{MILLISECOND, SECOND};
use crate::machine::Operation;
use crate::stage::{Place, Setting, Stage};
use quintet_protocols::PROTOCOLS;
use quintet_replica::{Durability, EpochNumber, Level};

/// These offer the end of an epoch, again and again, each another one, until all of them serve in
/// the next.
fn change(stage: &mut Stage, seats: &[usize], from: EpochNumber) {
    let next = EpochNumber(from.0 + 1);
    for _ in 0..30 {
        if seats
            .iter()
            .all(|seat| stage.serves_in(*seat) == Some(next))
        {
            return;
        }
        for seat in seats {
            if stage.serves_in(*seat) == Some(from) {
                // It may be ordered already.
                let _ = stage.offer_seal(*seat, *seat);
            }
        }
        stage.run(SECOND);
        stage.assert_sound();
    }
    panic!("epoch {from} does not end everywhere; {}", stage.describe());
}

/// Waits until these serve in the epoch.
fn serve(stage: &mut Stage, seats: &[usize], number: EpochNumber) {
    stage.until("all serve in the epoch", |stage| {
        let mut seats = seats.iter();
        seats.all(|seat| stage.serves_in(*seat) == Some(number))
    });
}

/// New commands and reads are answered at every replica that runs.
fn goes_on(stage: &mut Stage) {
    let mut numbers = Vec::new();
    for seat in stage.up() {
        for (level, operation) in [
            (Level::Ordered, Operation::Add(1)),
            (Level::Linearizable, Operation::Read),
        ] {
            let client = stage.client(Place::At(seat));
            numbers.push(stage.ask(client, level, 2, operation));
        }
    }
    stage.until("all are answered", |stage| stage.answered(&numbers));
}

/// All that run have died; these start again and serve in the epoch.
fn start(stage: &mut Stage, seats: &[usize], number: EpochNumber) {
    for seat in seats {
        stage.start(*seat);
    }
    serve(stage, seats, number);
    goes_on(stage);
}

/// Ends the epoch under load while the replica that offers it dies.
fn follows(
    mut setting: Setting,
    proposer: impl Fn(&Stage) -> Result<usize, Skip>,
) -> Result<(), Skip> {
    const FIRST: EpochNumber = EpochNumber(1);
    const SECOND_EPOCH: EpochNumber = EpochNumber(2);
    let disk = setting.durability == Durability::Disk;
    setting.snapshot_bytes_min = 4 << 10;
    let mut stage = cast::open(setting);
    let proposer = cast::dispensable(&stage, proposer(&stage)?)?;
    let mut numbers = stage.load(6, 20);
    stage.run(MILLISECOND / 4);
    for (leader, seat) in [proposer].into_iter().chain(stage.up()).enumerate() {
        let offered = stage.offer_seal(seat, leader);
        assert_eq!(offered, Ok(()), "replica {seat}");
    }
    numbers.extend(stage.load(6, 20));
    stage.run(MILLISECOND / 2);
    stage.crash(proposer);
    let up = stage.up();
    change(&mut stage, &up, FIRST);
    start(&mut stage, &[proposer], SECOND_EPOCH);
    stage.until("the load is answered", Stage::quiet);
    assert!(stage.answered(&numbers));
    let all: Vec<usize> = (0..stage.seats.len()).collect();
    if disk {
        for seat in &all {
            stage.crash(*seat);
        }
        start(&mut stage, &all, SECOND_EPOCH);
    } else {
        // One that has forgotten takes part again, so that others may be lost.
        for seat in all.clone() {
            if cast::dispensable(&stage, seat).is_ok() {
                stage.crash(seat);
                stage.run(SECOND);
                start(&mut stage, &[seat], SECOND_EPOCH);
            }
        }
    }
    change(&mut stage, &all, SECOND_EPOCH);
    goes_on(&mut stage);
    stage.finale();
    Ok(())
}

pub(super) fn epochs_follow_each_other(setting: Setting) -> Result<(), Skip> {
    follows(setting.clone(), cast::member)?;
    follows(setting, |stage| Ok(cast::leader(stage)))
}

/// One that was away while logs were trimmed comes into the next epoch by a state of it, and into
/// the one after that.
pub(super) fn laggard_past_a_trimmed_log_comes_into_the_next_epoch(
    mut setting: Setting,
) -> Result<(), Skip> {
    cast::short_logs(&mut setting);
    let rare = setting.snapshot_bytes_min;
    for (down, snapshot_bytes_min) in [
        (false, 32 << 10),
        (true, 32 << 10),
        (false, rare),
        (true, rare),
    ] {
        for epochs in 1..=2 {
            let setting = Setting {
                snapshot_bytes_min,
                ..setting.clone()
            };
            laggard_comes_into(setting, down, epochs)?;
        }
    }
    Ok(())
}

fn laggard_comes_into(setting: Setting, down: bool, epochs: u64) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let seat = cast::dispensable(&stage, cast::member(&stage)?)?;
    if down {
        stage.crash(seat);
    } else {
        stage.isolate(seat, true);
    }
    cast::outgrow_logs(&mut stage, seat);
    let others: Vec<usize> = (0..stage.seats.len()).filter(|at| *at != seat).collect();
    for number in 1..=epochs {
        change(&mut stage, &others, EpochNumber(number));
        cast::outgrow_logs(&mut stage, seat);
    }
    if down {
        stage.start(seat);
    } else {
        stage.heal();
    }
    serve(&mut stage, &[seat], EpochNumber(epochs + 1));
    goes_on(&mut stage);
    let followed = stage.marked("epoch followed");
    assert!(followed > 0, "it has missed the end");
    stage.finale();
    Ok(())
}

/// The protocol changes to each of the others, and back, under load.
pub(super) fn switch_to_every_other(setting: Setting) -> Result<(), Skip> {
    for other in PROTOCOLS {
        let fits = other.info.replicas_min <= setting.replicas;
        if other.info.name == setting.entry.info.name || !fits {
            continue;
        }
        let mut stage = cast::open(setting.clone());
        let first = setting.entry;
        for (number, entry) in [(1, other), (2, &first), (3, other)] {
            let numbers = stage.load(6, 20);
            stage.run(MILLISECOND / 4);
            let from = EpochNumber(number);
            for _ in 0..30 {
                let seats = stage.up();
                if seats
                    .iter()
                    .all(|seat| stage.serves_in(*seat) == Some(EpochNumber(number + 1)))
                {
                    break;
                }
                for seat in seats {
                    if stage.serves_in(seat) == Some(from) {
                        let _ = stage.offer_protocol(seat, entry);
                    }
                }
                stage.run(SECOND / 4);
                stage.assert_sound();
            }
            let all = stage.up();
            serve(&mut stage, &all, EpochNumber(number + 1));
            stage.until("the load is answered", |stage| stage.answered(&numbers));
            goes_on(&mut stage);
        }
        stage.finale();
    }
    Ok(())
}

/// What clients send asks for the end of the epoch: nobody orders it, and the others go on.
pub(super) fn clients_cannot_end_the_epoch(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    stage.forge_seals = true;
    for _ in 0..3 {
        let client = stage.client(Place::Remote);
        stage.run(MILLISECOND);
        stage.ask(client, Level::Ordered, 2, Operation::Add(1));
    }
    stage.until("what asks for the end is refused", |stage| {
        stage.marked("refused: only a member's node ends the epoch") > 2
    });
    stage.forge_seals = false;
    stage.talk(1);
    for seat in stage.up() {
        assert_eq!(stage.serves_in(seat), Some(EpochNumber(1)));
    }
    stage.finale();
    Ok(())
}

#[cfg(all(test, feature = "plant"))]
mod tests {
    use super::*;
    use crate::panics;
    use quintet_protocols::find;

    /// What the scenario says of a protocol with this bug, in one of its settings.
    fn found(protocol: &str, bug: &str) -> String {
        for durability in [Durability::Memory, Durability::Disk] {
            let mut setting = Setting::new(*find(protocol).expect("registered"), 3, durability);
            setting
                .options
                .push((String::from("plant"), bug.to_owned()));
            let played = panics::catch(|| {
                let _ = epochs_follow_each_other(setting);
            });
            if let Err(what) = played {
                return what;
            }
        }
        panic!("{bug} is not found");
    }

    #[test]
    fn execution_past_the_seal_is_found() {
        let what = found("multipaxos", "executes_past_the_seal");
        assert!(what.contains("past_seal"), "{what}");
    }

    #[test]
    fn last_seal_that_wins_is_found() {
        let what = found("multipaxos", "last_seal_wins");
        assert!(what.contains("past_seal"), "{what}");
    }

    #[test]
    fn provisional_seal_that_is_told_is_found() {
        let what = found("nezha", "tells_of_a_provisional_seal");
        assert!(what.contains("may still be undone"), "{what}");
    }
}

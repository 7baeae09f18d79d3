//! Epochs end.

use super::{Skip, cast};
use crate::clock::{MILLISECOND, SECOND};
use crate::machine::Operation;
use crate::stage::{Place, Setting, Stage};
use quintet_replica::{Durability, Level};

/// These offer an end, again and again, each another one, until all of them have executed the
/// first.
fn end(stage: &mut Stage, seats: &[usize]) {
    for _ in 0..30 {
        if seats.iter().all(|seat| stage.sealed(*seat).is_some()) {
            return;
        }
        for seat in seats {
            // Where it has ended already, nothing is offered.
            let _ = stage.offer_seal(*seat, *seat);
        }
        stage.run(SECOND);
        stage.assert_sound();
    }
    panic!("the epoch does not end; {}", stage.describe());
}

/// New commands and reads are answered that the epoch has ended, at every replica that runs.
fn is_over(stage: &mut Stage) {
    for seat in stage.up() {
        let client = stage.client(Place::At(seat));
        let write = stage.ask(client, Level::Ordered, 2, Operation::Add(1));
        let reader = stage.client(Place::At(seat));
        let read = stage.ask(reader, Level::Linearizable, 2, Operation::Read);
        let old = stage.client(Place::At(seat));
        let stale = stage.ask(old, Level::Stale, 2, Operation::Read);
        stage.until("all are answered behind the end", Stage::quiet);
        assert!(
            stage.ended.contains(&write),
            "a write at {seat} behind the end"
        );
        assert!(
            stage.ended.contains(&read),
            "a read at {seat} behind the end"
        );
        assert!(stage.answered(&[stale]), "what may be old can be read");
    }
}

/// All that run have stopped at one base, whatever their protocol has gone on to.
fn is_level(stage: &Stage) {
    for seat in stage.up() {
        let seal = stage.sealed(seat).expect("it has ended everywhere");
        assert_eq!(stage.seats[seat].executed(), seal.base, "replica {seat}");
        let halted = &stage.seats[seat].halted;
        assert!(halted.is_none(), "replica {seat} halted: {halted:?}");
    }
}

/// All that run have died; these start again and come to the end.
fn start(stage: &mut Stage, seats: &[usize]) {
    for seat in seats {
        stage.start(*seat);
    }
    stage.until("they come to the end again", |stage| {
        let mut seats = seats.iter();
        seats.all(|seat| stage.sealed(*seat).is_some())
    });
    is_over(stage);
    is_level(stage);
}

/// Ends the epoch under load while the replica that offers it dies.
fn ends(
    mut setting: Setting,
    proposer: impl Fn(&Stage) -> Result<usize, Skip>,
) -> Result<(), Skip> {
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
    end(&mut stage, &up);
    start(&mut stage, &[proposer]);
    stage.until("the load is answered", Stage::quiet);
    for number in numbers {
        let known = stage.answered(&[number]) || stage.ended.contains(&number);
        assert!(known, "operation {number} is neither answered nor ended");
    }
    is_over(&mut stage);
    is_level(&stage);
    let all: Vec<usize> = (0..stage.seats.len()).collect();
    if disk {
        for seat in &all {
            stage.crash(*seat);
        }
        start(&mut stage, &all);
    } else {
        // One that has forgotten takes part again behind the end, so that others may be lost.
        for seat in all {
            if cast::dispensable(&stage, seat).is_ok() {
                stage.crash(seat);
                stage.run(SECOND);
                start(&mut stage, &[seat]);
            }
        }
    }
    let judged = stage.judge();
    assert_eq!(judged, Ok(()));
    stage.assert_sound();
    Ok(())
}

pub(super) fn seal_ends_the_epoch(setting: Setting) -> Result<(), Skip> {
    ends(setting.clone(), cast::member)?;
    ends(setting, |stage| Ok(cast::leader(stage)))
}

/// One that was away while logs were trimmed comes to the end by a state from before it or, where
/// snapshots are rare, from behind it.
pub(super) fn laggard_past_a_trimmed_log_comes_to_the_end(
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
        laggard_comes_to_the_end(
            Setting {
                snapshot_bytes_min,
                ..setting.clone()
            },
            down,
        )?;
    }
    Ok(())
}

fn laggard_comes_to_the_end(setting: Setting, down: bool) -> Result<(), Skip> {
    let shortened = !setting.options.is_empty();
    let mut stage = cast::open(setting);
    let seat = cast::dispensable(&stage, cast::member(&stage)?)?;
    if down {
        stage.crash(seat);
    } else {
        stage.isolate(seat, true);
    }
    cast::outgrow_logs(&mut stage, seat);
    let others: Vec<usize> = (0..stage.seats.len()).filter(|at| *at != seat).collect();
    end(&mut stage, &others);
    if down {
        stage.start(seat);
    } else {
        stage.heal();
    }
    stage.until("it comes to the end", |stage| stage.sealed(seat).is_some());
    is_over(&mut stage);
    is_level(&stage);
    if shortened {
        let installed = stage.marked("state installed");
        assert!(installed > 0, "it was too far behind for a log");
    }
    assert_eq!(stage.judge(), Ok(()));
    stage.assert_sound();
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
    assert!(
        stage
            .up()
            .into_iter()
            .all(|seat| stage.sealed(seat).is_none())
    );
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
                let _ = seal_ends_the_epoch(setting);
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

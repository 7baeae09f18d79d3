//! Epochs end, and the next begin.

use super::{Skip, cast};
use crate::clock::{MILLISECOND, SECOND};
use crate::machine::Operation;
use crate::stage::{Packet, Place, Setting, Stage};
use quintet_protocols::PROTOCOLS;
use quintet_replica::{Durability, EpochNumber, Level};
use std::time::Duration;

/// These offer the end of an epoch, again and again, each another one, until all of them serve in
/// the next.
fn change(stage: &mut Stage, replicas: &[usize], from: EpochNumber) {
    // It may be ordered already.
    change_by(stage, replicas, from, |stage, replica| {
        let _ = stage.offer_seal(replica, replica);
    });
}

/// The same with ends that `offer` offers.
fn change_by(
    stage: &mut Stage,
    replicas: &[usize],
    from: EpochNumber,
    offer: impl Fn(&mut Stage, usize),
) {
    let next = EpochNumber(from.0 + 1);
    for _ in 0..30 {
        if replicas
            .iter()
            .all(|replica| stage.serves_in(*replica) == Some(next))
        {
            return;
        }
        for replica in replicas {
            if stage.serves_in(*replica) == Some(from) {
                offer(stage, *replica);
            }
        }
        stage.run(SECOND);
        stage.assert_sound();
    }
    panic!("epoch {from} does not end everywhere; {}", stage.describe());
}

/// Waits until the load is over, and checks everything.
fn end(stage: &mut Stage) {
    stage.until("the load is over", Stage::quiet);
    stage.final_phase();
}

/// Waits until these serve in the epoch.
fn serve(stage: &mut Stage, replicas: &[usize], number: EpochNumber) {
    stage.until("all serve in the epoch", |stage| {
        let mut replicas = replicas.iter();
        replicas.all(|replica| stage.serves_in(*replica) == Some(number))
    });
}

/// New commands and reads are answered at every replica that runs.
fn continues(stage: &mut Stage) {
    let mut numbers = Vec::new();
    for replica in stage.up() {
        for (level, operation) in [
            (Level::Ordered, Operation::Add(1)),
            (Level::Linearizable, Operation::Read),
        ] {
            let client = stage.client(Place::At(replica));
            numbers.push(stage.ask(client, level, 2, operation));
        }
    }
    stage.until("all are answered", |stage| stage.answered(&numbers));
}

/// These have died; they start again, serve in the epoch and vote, so that others may die.
fn start(stage: &mut Stage, replicas: &[usize], number: EpochNumber) {
    for replica in replicas {
        stage.start(*replica);
    }
    serve(stage, replicas, number);
    stage.until("those that came back vote", |stage| {
        replicas.iter().all(|replica| stage.votes(*replica))
    });
    continues(stage);
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
    for (leader, replica) in [proposer].into_iter().chain(stage.up()).enumerate() {
        let offered = stage.offer_seal(replica, leader);
        assert_eq!(offered, Ok(()), "replica {replica}");
    }
    numbers.extend(stage.load(6, 20));
    stage.run(MILLISECOND / 2);
    stage.crash(proposer);
    let up = stage.up();
    change(&mut stage, &up, FIRST);
    start(&mut stage, &[proposer], SECOND_EPOCH);
    stage.until("the load is answered", Stage::quiet);
    assert!(stage.answered(&numbers));
    let all: Vec<usize> = (0..stage.hosts.len()).collect();
    if disk {
        for replica in &all {
            stage.crash(*replica);
        }
        start(&mut stage, &all, SECOND_EPOCH);
    } else {
        // One that has lost its state takes part again, so that others may be lost.
        for replica in all.clone() {
            if cast::dispensable(&stage, replica).is_ok() {
                stage.crash(replica);
                stage.run(SECOND);
                start(&mut stage, &[replica], SECOND_EPOCH);
            }
        }
    }
    change(&mut stage, &all, SECOND_EPOCH);
    continues(&mut stage);
    stage.final_phase();
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
    let replica = cast::dispensable(&stage, cast::member(&stage)?)?;
    if down {
        stage.crash(replica);
    } else {
        stage.isolate(replica, true);
    }
    cast::outgrow_logs(&mut stage, replica);
    let others: Vec<usize> = (0..stage.hosts.len()).filter(|at| *at != replica).collect();
    for number in 1..=epochs {
        change(&mut stage, &others, EpochNumber(number));
        cast::outgrow_logs(&mut stage, replica);
    }
    if down {
        stage.start(replica);
    } else {
        stage.heal();
    }
    serve(&mut stage, &[replica], EpochNumber(epochs + 1));
    continues(&mut stage);
    let followed = stage.marked("epoch followed");
    assert!(followed > 0, "it has missed the end");
    stage.final_phase();
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
                let replicas = stage.up();
                if replicas
                    .iter()
                    .all(|replica| stage.serves_in(*replica) == Some(EpochNumber(number + 1)))
                {
                    break;
                }
                for replica in replicas {
                    if stage.serves_in(replica) == Some(from) {
                        let _ = stage.offer_protocol(replica, entry);
                    }
                }
                stage.run(SECOND / 4);
                stage.assert_sound();
            }
            let all = stage.up();
            serve(&mut stage, &all, EpochNumber(number + 1));
            stage.until("the load is answered", |stage| stage.answered(&numbers));
            continues(&mut stage);
        }
        stage.final_phase();
    }
    Ok(())
}

/// A replica whose disk is lost is replaced by another, while clients work; then that one, and the
/// one that leads, which runs until it is told.
pub(super) fn lost_replica_is_replaced(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let mut number = EpochNumber(1);
    for (runs, pick) in [
        (false, cast::member as fn(&Stage) -> Result<usize, Skip>),
        (false, cast::member),
        (true, |stage| Ok(cast::leader(stage))),
    ] {
        let lost = cast::dispensable(&stage, pick(&stage)?)?;
        let numbers = stage.load(6, 20);
        stage.run(MILLISECOND / 4);
        if !runs {
            stage.crash(lost);
        }
        let others: Vec<usize> = (0..stage.hosts.len()).filter(|at| *at != lost).collect();
        change_by(&mut stage, &others, number, |stage, replica| {
            let _ = stage.offer_replacement(replica, lost);
        });
        number = EpochNumber(number.0 + 1);
        if runs {
            stage.until("the replica that is replaced is told so", |stage| {
                stage.hosts[lost].halted.is_some()
            });
        } else {
            // Its directory is found again: it is no member any more.
            stage.start(lost);
            stage.until("the replica that was replaced is told so", |stage| {
                stage.hosts[lost].halted.is_some()
            });
        }
        let why = stage.hosts[lost].halted.clone().unwrap_or_default();
        assert!(why.contains("no member any more since epoch"), "{why}");
        stage.join(lost, others[0]);
        let all: Vec<usize> = (0..stage.hosts.len()).collect();
        serve(&mut stage, &all, number);
        continues(&mut stage);
        // Clients of the one that died are not answered any more.
        stage.until("the load is over", Stage::quiet);
        assert!(!numbers.is_empty());
        // It counts: others may be lost now.
        for replica in others {
            if cast::dispensable(&stage, replica).is_ok() {
                stage.crash(replica);
                stage.talk(1);
                start(&mut stage, &[replica], number);
            }
        }
    }
    stage.final_phase();
    Ok(())
}

/// Members come, one after the other, and go again, while clients work.
pub(super) fn members_come_and_go(mut setting: Setting) -> Result<(), Skip> {
    let first = setting.replicas;
    setting.spare = 2;
    let mut stage = cast::open(setting);
    let mut number = EpochNumber(1);
    let mut change_to = |stage: &mut Stage, members: usize| {
        let numbers = stage.load(6, 20);
        stage.run(MILLISECOND / 4);
        let stay: Vec<usize> = stage.up().into_iter().filter(|at| *at < members).collect();
        change_by(stage, &stay, number, |stage, replica| {
            let _ = stage.offer_members(replica, members);
        });
        number = EpochNumber(number.0 + 1);
        if let Some(new) = (stay.len() < members).then_some(members - 1) {
            stage.join(new, stay[0]);
            serve(stage, &[new], number);
            stage.until("the load is answered", |stage| stage.answered(&numbers));
        } else {
            let removed = &stage.hosts[members];
            let why = removed.halted.clone().unwrap_or_default();
            assert!(why.contains("no member any more since epoch"), "{why}");
        }
        continues(stage);
        // Each replica that the protocol can do without may be lost, old or new.
        for replica in 0..members {
            if cast::dispensable(stage, replica).is_ok() {
                stage.crash(replica);
                stage.talk(1);
                start(stage, &[replica], number);
            }
        }
        number
    };
    for members in [first + 1, first + 2, first + 1, first] {
        change_to(&mut stage, members);
    }
    end(&mut stage);
    Ok(())
}

/// One more member, in the first vacant row.
fn grow(stage: &mut Stage, number: &mut EpochNumber) {
    let numbers = stage.load(6, 20);
    stage.run(MILLISECOND / 4);
    let members = stage.members();
    change_by(stage, &members, *number, |stage, replica| {
        let _ = stage.offer_addition(replica);
    });
    number.0 += 1;
    let now = stage.members().into_iter();
    let new = now.filter(|it| !members.contains(it)).collect::<Vec<_>>();
    assert_eq!(new.len(), 1, "{members:?}");
    stage.join(new[0], members[0]);
    serve(stage, &new, *number);
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    continues(stage);
}

/// Fewer members; those that stay keep their numbers, and those that do not are told so.
fn shrink(stage: &mut Stage, number: &mut EpochNumber, gone: &[usize]) {
    stage.load(6, 20);
    stage.run(MILLISECOND / 4);
    let mut stay = stage.members();
    stay.retain(|it| !gone.contains(it));
    change_by(stage, &stay, *number, |stage, replica| {
        let _ = stage.offer_removal(replica, gone);
    });
    number.0 += 1;
    assert_eq!(stage.members(), stay);
    stage.until("those that were removed stop", |stage| {
        let up = stage.up();
        gone.iter().all(|replica| !up.contains(replica))
    });
    continues(stage);
    // One that was removed and starts again is told so, too.
    for replica in gone {
        stage.start(*replica);
        stage.until("it stops again", |stage| stage.has_left(*replica));
    }
    // Each that the protocol can do without may be lost.
    for replica in stay {
        if cast::dispensable(stage, replica).is_ok() {
            stage.crash(replica);
            stage.talk(1);
            start(stage, &[replica], *number);
        }
    }
}

/// Any members are removed under load: the leader, one that is dead, two at once. Others get their
/// numbers, and all restart.
pub(super) fn any_member_is_removed(mut setting: Setting) -> Result<(), Skip> {
    setting.spare = 2;
    let disk = setting.durability == Durability::Disk;
    let mut stage = cast::open(setting);
    let mut number = EpochNumber(1);
    grow(&mut stage, &mut number);
    grow(&mut stage, &mut number);
    let leader = stage.leader().unwrap_or(0);
    shrink(&mut stage, &mut number, &[leader]);
    let middle = stage.members()[1];
    let dead = cast::dispensable(&stage, middle)?;
    stage.crash(dead);
    stage.talk(1);
    shrink(&mut stage, &mut number, &[dead]);
    if disk {
        let all = stage.members();
        for replica in &all {
            stage.crash(*replica);
        }
        start(&mut stage, &all, number);
    }
    grow(&mut stage, &mut number);
    grow(&mut stage, &mut number);
    shrink(&mut stage, &mut number, &[0, 2]);
    assert_eq!(stage.members(), [1, 3, 4]);
    end(&mut stage);
    Ok(())
}

/// Durability changes under load, there and back, in both orders. Once acknowledgements promise a
/// disk, all replicas may die at once; while they promise memory, one after the other may.
pub(super) fn durability_changes(mut setting: Setting) -> Result<(), Skip> {
    setting.snapshot_bytes_min = 4 << 10;
    let mut disk = setting.durability == Durability::Disk;
    let mut stage = cast::open(setting);
    let mut number = EpochNumber(1);
    let all = stage.members();
    for _ in 0..3 {
        let _ = stage.load(6, 20);
        stage.run(MILLISECOND / 4);
        change_by(&mut stage, &all, number, |stage, replica| {
            let _ = stage.offer_durability(replica);
        });
        (disk, number) = (!disk, EpochNumber(number.0 + 1));
        if disk {
            // Before anything else: the epoch began with a state that is on the disks.
            all.iter().for_each(|replica| stage.crash(*replica));
            start(&mut stage, &all, number);
        } else {
            for replica in &all {
                if cast::dispensable(&stage, *replica).is_ok() {
                    stage.crash(*replica);
                    stage.run(SECOND);
                    start(&mut stage, &[*replica], number);
                }
            }
        }
        stage.until("the load is over", Stage::quiet);
    }
    end(&mut stage);
    Ok(())
}

/// As many as the protocol can do without are lost, one after the other, and removed at once: those
/// that are left are few beside those that voted, and suffice.
pub(super) fn all_that_are_lost_are_removed_at_once(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let number = EpochNumber(1);
    let mut lost = Vec::new();
    // A view that shrinks leaves fewer than any count of members tells: it is tried.
    while let Some(next) = stage.up().last().copied().filter(|next| *next > 0) {
        stage.crash(next);
        let probe = stage.load(1, 1);
        stage.run(10_000 * MILLISECOND);
        if !stage.answered(&probe) {
            stage.start(next);
            stage.until("it is answered again", |stage| stage.answered(&probe));
            break;
        }
        lost.push(next);
    }
    let mut stay = stage.members();
    stay.retain(|it| !lost.contains(it));
    if stay.len() < stage.setting.entry.info.replicas_min {
        return Err(Skip("it needs more members than are left"));
    }
    let numbers = stage.load(6, 20);
    stage.run(MILLISECOND / 4);
    change_by(&mut stage, &stay, number, |stage, replica| {
        let _ = stage.offer_removal(replica, &lost);
    });
    assert_eq!(stage.members(), stay);
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    stage.talk(1);
    for replica in lost {
        stage.start(replica);
        stage.until("it is told that it is no member", |stage| {
            stage.has_left(replica)
        });
    }
    end(&mut stage);
    Ok(())
}

/// A member is replaced. Another one enters the next epoch and is lost with what it had in memory, when
/// the third has given up its state of the earlier epoch to follow it: the one that leaves gives its
/// own.
pub(super) fn state_is_given_by_one_that_leaves(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let (first, next) = (EpochNumber(1), EpochNumber(2));
    let behind = cast::dispensable(&stage, cast::member(&stage)?)?;
    let mut others = stage.members();
    others.retain(|it| *it != behind);
    let (leaves, enters) = (others[0], others[1]);
    stage.talk(2);
    stage.isolate(behind, true);
    change_by(&mut stage, &[enters], first, |stage, replica| {
        let _ = stage.offer_replacement(replica, leaves);
    });
    stage.heal();
    stage.cut(&[(leaves, behind), (behind, leaves)], true);
    stage.until("it follows", |stage| stage.marked("epoch missed") > 0);
    stage.crash(enters);
    stage.heal();
    serve(&mut stage, &[behind], next);
    assert!(stage.marked("state given by one that leaves") > 0);
    stage.crash(leaves);
    stage.join(leaves, behind);
    serve(&mut stage, &[leaves], next);
    start(&mut stage, &[enters], next);
    end(&mut stage);
    Ok(())
}

/// One more replica gets the state while it has no vote, over the end of an epoch and a restart, and
/// then has its vote at once: without another transfer of the state.
pub(super) fn learner_has_the_state_when_it_gets_its_vote(
    mut setting: Setting,
) -> Result<(), Skip> {
    let (first, new) = (setting.replicas, setting.replicas);
    setting.spare = 1;
    setting.pace_beat = Duration::from_millis(250);
    let mut stage = cast::open(setting);
    let voters: Vec<usize> = (0..first).collect();
    let learns = |stage: &mut Stage| {
        stage.until("the learner has caught up", |stage| {
            let node = stage.hosts[new].node.as_ref();
            node.is_some_and(|node| node.has_caught_up(stage.local_time(new)))
        });
    };
    let mut number = EpochNumber(1);
    let mut change = |stage: &mut Stage, offer: fn(&mut Stage, usize)| {
        let numbers = stage.load(6, 20);
        stage.run(MILLISECOND / 4);
        change_by(stage, &voters, number, offer);
        number = EpochNumber(number.0 + 1);
        (numbers, number)
    };
    let (numbers, _) = change(&mut stage, |stage, host| {
        let _ = stage.offer_learner(host);
    });
    // It counts nowhere: as many voters may be lost without it as before.
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    for replica in 0..first {
        if cast::dispensable(&stage, replica).is_ok() {
            stage.crash(replica);
            stage.talk(1);
            start(&mut stage, &[replica], EpochNumber(2));
        }
    }
    stage.join(new, 0);
    learns(&mut stage);
    stage.talk(3);
    stage.crash(new);
    stage.talk(3);
    stage.start(new);
    learns(&mut stage);
    // It is away for longer than others keep what it needs.
    stage.isolate(new, true);
    stage.run(SECOND);
    stage.talk(3);
    stage.run(12 * SECOND);
    stage.talk(3);
    stage.heal();
    learns(&mut stage);
    assert!(stage.marked("learner fetches the state again") > 0);
    stage.talk(3);
    learns(&mut stage);
    // In another epoch it is a learner still.
    let fetched = stage.marked("state transfer");
    let (numbers, _) = change(&mut stage, |stage, host| {
        let _ = stage.offer_seal(host, host);
    });
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    learns(&mut stage);
    assert_eq!(stage.serves_in(new), None);
    let (numbers, number) = change(&mut stage, |stage, host| {
        let _ = stage.offer_vote(host);
    });
    serve(&mut stage, &[new], number);
    stage.until("the load is answered", |stage| stage.answered(&numbers));
    assert_eq!(stage.marked("state transfer"), fetched);
    stage.talk(2);
    stage.run(5 * SECOND);
    for replica in 0..=first {
        let now = stage.local_time(replica);
        let node = stage.hosts[replica].node.as_ref().expect("it runs");
        let others = node.quorate_peers(now).len();
        assert_eq!(
            others, first,
            "replica {replica} hears of the others' quorum"
        );
    }
    for replica in 0..=first {
        if cast::dispensable(&stage, replica).is_ok() {
            stage.crash(replica);
            stage.talk(1);
            start(&mut stage, &[replica], number);
        }
    }
    end(&mut stage);
    Ok(())
}

/// All disks take so long for a sync and for a snapshot.
fn set_latency(stage: &mut Stage, latency: u64) {
    let all = stage.hosts.iter_mut();
    all.for_each(|it| it.disk.latency = latency);
}

/// The same for the disk of one replica.
fn set_latency_of(stage: &mut Stage, replica: usize, latency: u64) {
    stage.hosts[replica].disk.latency = latency;
}

/// All that run save their state ahead of a change.
fn prepare(stage: &mut Stage) {
    for _ in 0..200 {
        if stage.prepare(0) {
            return;
        }
        stage.run(10 * MILLISECOND);
    }
    panic!("members do not become ready; {}", stage.describe());
}

/// All members save their state ahead of the end and none writes it when the end comes. When all die
/// then, they restore from their bridges.
pub(super) fn state_saved_ahead_leads_into_the_next_epoch(
    mut setting: Setting,
) -> Result<(), Skip> {
    const AHEAD: &str = "epoch begins with a state saved ahead";
    (setting.bridge_bytes_min, setting.snapshot_padding) = (0, 200 << 10);
    let mut stage = cast::open(setting);
    let all: Vec<usize> = stage.up();
    let members = all.len() as u64;
    for number in [EpochNumber(1), EpochNumber(2), EpochNumber(3)] {
        let next = EpochNumber(number.0 + 1);
        let mut numbers = stage.load(6, 20);
        stage.run(MILLISECOND);
        prepare(&mut stage);
        numbers.extend(stage.load(6, 20));
        // It takes a while until the state is saved as any other.
        set_latency(&mut stage, 20 * MILLISECOND);
        let _ = stage.offer_seal(all[0], all[0]);
        serve(&mut stage, &all, next);
        assert_eq!(stage.marked(AHEAD), number.0 * members);
        if number == EpochNumber(2) {
            stage.until("the load is over", Stage::quiet);
            stage.run(SECOND);
        }
        set_latency(&mut stage, MILLISECOND / 10);
        for replica in &all {
            stage.crash(*replica);
        }
        start(&mut stage, &all, next);
        stage.until("the load is over", Stage::quiet);
        // The stage does not wait for replicas that are not ready.
        stage.talk(1);
    }
    assert!(stage.marked("state restored that was saved ahead") > 0);
    end(&mut stage);
    Ok(())
}

/// Frames of an epoch that has ended come late: no replica hears them in the next one.
pub(super) fn words_of_an_earlier_epoch_count_for_nothing(setting: Setting) -> Result<(), Skip> {
    let mut stage = cast::open(setting);
    let all = stage.up();
    stage.load(6, 20);
    let mut late = Vec::new();
    for _ in 0..40 {
        stage.run(MILLISECOND / 20);
        let between = |packet: &&Packet| packet.from.max(packet.to) < 3;
        let frames = stage.frames().map(|(_, packet)| packet);
        late.extend(frames.filter(between).cloned());
    }
    stage.until("the load is over", Stage::quiet);
    change(&mut stage, &all, EpochNumber(1));
    stage.load(6, 20);
    for packet in late {
        stage.deliver(packet);
        stage.run(MILLISECOND / 50);
    }
    end(&mut stage);
    Ok(())
}

/// No client waits for a timer when an epoch begins, not even where it begins later than elsewhere.
pub(super) fn clients_wait_for_no_timer_when_an_epoch_begins(
    mut setting: Setting,
) -> Result<(), Skip> {
    // Nodes ask each other how far they are also while one is on its way.
    setting.pace_beat = Duration::from_millis(2);
    for (late, slow) in (0..3).flat_map(|late| [(late, false), (late, true)]) {
        let mut stage = cast::open(setting.clone());
        stage.talk(3);
        if slow {
            set_latency_of(&mut stage, late, 5 * MILLISECOND);
        }
        let all = stage.up();
        // One is lost where leadership moves from a slow leader.
        while stage.serves_in(late) == Some(EpochNumber(1)) {
            let _ = stage.offer_seal(0, 0);
            stage.run(MILLISECOND / 20);
        }
        let asked = all.iter().map(|replica| {
            let client = stage.client(Place::At(*replica));
            stage.ask(client, Level::Ordered, 2, Operation::Add(1))
        });
        let asked: Vec<usize> = asked.collect();
        serve(&mut stage, &[late], EpochNumber(2));
        // Writes in progress take as long as they would have.
        set_latency_of(&mut stage, late, MILLISECOND / 10);
        let most = if slow { 15 } else { 5 };
        stage.run(most * MILLISECOND);
        assert!(
            stage.answered(&asked),
            "replica {late} is late (slow: {slow}), and clients wait for {most} ms"
        );
        end(&mut stage);
    }
    Ok(())
}

/// The first state of an epoch that began by bridges cannot be saved at first. It is saved later, so
/// that one who missed the end gets it from the only member that is there, with and without writes.
pub(super) fn first_state_that_could_not_be_saved_is_saved_later(
    setting: Setting,
) -> Result<(), Skip> {
    for writes in [false, true] {
        let mut setting = setting.clone();
        (setting.bridge_bytes_min, setting.snapshot_padding) = (0, 200 << 10);
        let mut stage = cast::open(setting);
        let away = cast::dispensable(&stage, 2)?;
        stage.load(6, 20);
        prepare(&mut stage);
        stage.until("the load is over", Stage::quiet);
        stage.crash(away);
        stage.run(SECOND);
        set_latency(&mut stage, 20 * MILLISECOND);
        let next = EpochNumber(2);
        let _ = stage.offer_seal(0, 0);
        serve(&mut stage, &[0, 1], next);
        for replica in [0, 1] {
            assert!(stage.fail_snapshot(replica), "it was being written");
        }
        set_latency(&mut stage, MILLISECOND / 10);
        let saved = stage.marked("snapshot saved");
        if writes {
            stage.talk(1);
        }
        stage.run(2 * SECOND);
        assert!(stage.marked("snapshot saved") >= saved + 2);
        stage.start(away);
        serve(&mut stage, &[away], next);
        end(&mut stage);
    }
    Ok(())
}

/// Clients send requests to end the epoch: no replica orders them, and the others continue.
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
    for replica in stage.up() {
        assert_eq!(stage.serves_in(replica), Some(EpochNumber(1)));
    }
    stage.final_phase();
    Ok(())
}

#[cfg(all(test, feature = "bugs"))]
mod tests {
    use super::*;
    use crate::panics;
    use quintet_protocols::find;

    type Scenario = fn(Setting) -> Result<(), Skip>;

    fn found(protocol: &str, bug: &str) -> String {
        found_by(protocol, bug, epochs_follow_each_other)
    }

    /// The scenario's report of a protocol with this bug, in one of its settings.
    fn found_by(protocol: &str, bug: &str, scenario: Scenario) -> String {
        for durability in [Durability::Memory, Durability::Disk] {
            let mut setting = Setting::new(*find(protocol).expect("registered"), 3, durability);
            setting.options.push((String::from("bug"), bug.to_owned()));
            let played = panics::catch(|| {
                let _ = scenario(setting);
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
    fn numbers_taken_for_ranks_are_found() {
        let what = found_by("multipaxos", "numbers_are_ranks", any_member_is_removed);
        assert!(!what.is_empty());
    }

    #[test]
    fn epoch_entered_in_memory_is_found() {
        let what = found_by("multipaxos", "enters_in_memory", durability_changes);
        assert!(what.contains("base held"), "{what}");
    }

    #[test]
    fn votes_of_another_epoch_are_found() {
        let bug = "votes_of_another_epoch";
        let what = found_by(
            "multipaxos",
            bug,
            words_of_an_earlier_epoch_count_for_nothing,
        );
        assert!(!what.is_empty());
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

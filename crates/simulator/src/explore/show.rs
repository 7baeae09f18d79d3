//! The shortest way to what does not hold, as lines and as a picture.

use super::{
    replica_state::{Alarm, Cast, End},
    world::{Action, World},
};
use crate::{
    Campaign,
    checkers::Violation,
    picture::{Scene, Tone},
};
use quintet_replica::{Bytes, ClientFrame, TimerOwner, read_client_frame};

fn frame(cast: &Cast, message: u32) -> String {
    let bytes: &Bytes = &cast.messages[message as usize];
    match read_client_frame(bytes.clone()).map(|(_, frame)| frame) {
        Ok(ClientFrame::Message(message)) => (cast.entry.describe)(message),
        Ok(ClientFrame::Reply(batch, ..)) => format!("Reply to {batch}"),
        Ok(ClientFrame::Epoch(_)) => String::from("Epoch"),
        Ok(ClientFrame::Quorum { .. }) => String::from("Quorum"),
        Err(_) => String::from("node's own"),
    }
}

fn timer(cast: &Cast, (_, key): Alarm) -> String {
    let name = (cast.entry.timer_name)(key.timer).filter(|_| key.owner == TimerOwner::Replica);
    name.unwrap_or_else(|| format!("{:?} {}", key.owner, key.timer))
}

/// Walks the way again and tells of it.
pub(super) fn show(
    cast: &mut Cast,
    campaign: &Campaign,
    way: &[u16],
    violation: &Violation,
) -> (Vec<String>, String) {
    let replicas = cast.bounds.replicas;
    let lanes = (0..replicas).map(|id| format!("r{id}"));
    let clients = (0..cast.commands.len()).map(|id| format!("c{id}"));
    let mut scene = Scene::new(lanes.chain(clients).collect());
    let mut lines = Vec::new();
    let (mut world, _) = World::first(cast);
    for flight in world.parts(cast).flights {
        let ends = (usize::from(flight.from), usize::from(flight.to));
        let text = frame(cast, flight.message);
        scene.send(0, ends, (flight.message as usize, 0), text);
    }
    for (step, index) in way.iter().enumerate() {
        let now = (step as u64 + 1) * 1_000_000;
        let before = world.parts(cast);
        let Some(action) = world.actions(cast).get(usize::from(*index)).copied() else {
            break;
        };
        let line = match action {
            Action::Deliver(at) => {
                let flight = before.flights[usize::from(at)];
                let (from, to) = (usize::from(flight.from), usize::from(flight.to));
                scene.arrive(now, (from, to), (flight.message as usize, 0), false);
                format!("r{to} ◄ r{from} {}", frame(cast, flight.message))
            }
            Action::Persist(id) => {
                scene.note(now, Some(id.into()), Tone::Plain, "is durable");
                format!("r{id} what it wrote is durable")
            }
            Action::Save(id) => {
                scene.note(now, Some(id.into()), Tone::Plain, "has saved a snapshot");
                format!("r{id} a snapshot is durable")
            }
            Action::Seal => {
                scene.note(now, Some(0), Tone::Plain, "offers the end of the epoch");
                String::from("r0 offers the end of the epoch")
            }
            Action::Fire(id, key) => {
                let name = timer(cast, key);
                scene.note(now, Some(id.into()), Tone::Fault, format!("timer {name}"));
                format!("r{id} timer {name} fires")
            }
            Action::Submit(command) => {
                let asked = &cast.commands[usize::from(command)];
                let text = format!("{:?} at r{}", asked.operation, asked.at);
                let line = format!("c{command} invokes {text}");
                scene.note(
                    now,
                    Some(replicas + usize::from(command)),
                    Tone::Client,
                    format!("invokes {text}"),
                );
                line
            }
            Action::Crash(id, kept) => {
                for flight in &before.flights {
                    let (from, to) = (usize::from(flight.from), usize::from(flight.to));
                    if from == usize::from(id) || to == usize::from(id) {
                        scene.arrive(now, (from, to), (flight.message as usize, 0), true);
                    }
                }
                let text = format!("CRASHES, {kept} unsynced steps reached the disk");
                scene.note(now, Some(id.into()), Tone::Fault, text.clone());
                scene.shade(now, Some(id.into()), "down");
                format!("r{id} {text}")
            }
            Action::Restart(id) => {
                scene.unshade(now, Some(id.into()), "down");
                scene.note(now, Some(id.into()), Tone::Fault, "boots");
                format!("r{id} boots")
            }
        };
        lines.push(format!("{:3} {line}", step + 1));
        let Ok(after) = world.after(action, cast) else {
            break;
        };
        let parts = after.parts(cast);
        let mut known = before.flights.clone();
        if let Action::Deliver(at) = action {
            known.remove(at.into());
        }
        for flight in &parts.flights {
            if let Some(at) = known.iter().position(|old| old == flight) {
                known.remove(at);
                continue;
            }
            let ends = (usize::from(flight.from), usize::from(flight.to));
            let text = frame(cast, flight.message);
            scene.send(now, ends, (flight.message as usize, 0), text);
        }
        for event in parts
            .events
            .iter()
            .filter(|event| !before.events.contains(event))
        {
            if let Some((command, end)) = cast.tables.ended(*event).filter(|_| event & 0x80 != 0) {
                let text = match end {
                    End::Done(reply) => format!("got {reply:?}"),
                    other => format!("{other:?}"),
                };
                scene.note(
                    now,
                    Some(replicas + usize::from(command)),
                    Tone::Client,
                    text.clone(),
                );
                lines.push(format!("    c{command} {text}"));
            }
        }
        world = after;
    }
    let now = (way.len() as u64 + 1) * 1_000_000;
    scene.note(now, None, Tone::Violation, violation.to_string());
    lines.push(format!("    VIOLATION {violation}"));
    let facts = [
        ("found", violation.to_string()),
        ("way", format!("{} steps, a shortest one", way.len())),
        ("scope", format!("{:?}", cast.bounds)),
    ];
    let title = format!("{}, all worlds of a small scope", campaign.protocol);
    (lines.clone(), scene.page(&title, &facts, &lines))
}

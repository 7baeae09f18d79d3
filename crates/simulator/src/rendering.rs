//! The parts of a running world that go into its picture.
//!
//! ```text
//!   transmit ──► arrow leaves ──► on_deliver ──► arrow arrives, or is lost
//!   after every event: who is down or stands still, which links are cut ──► shades
//!   lines of the trace ──► notes
//! ```
//!
//! States are looked at instead of being told, so that a new kind of fault is in the picture
//! without a word here.

use crate::world::World;
use quintet_replica::Bytes;

/// The present state of the picture.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rendered {
    shades: Vec<(Option<usize>, String)>,
}

fn key(frame: &Bytes) -> (usize, usize) {
    (frame.as_ptr() as usize, frame.len())
}

impl World {
    fn place_name(&self, place: usize) -> String {
        match place.checked_sub(self.replicas_max()) {
            None => format!("r{place}"),
            Some(remote) => format!("c{}", self.remotes[remote]),
        }
    }

    fn losses(&self) -> u64 {
        self.network.counts.get("loss").copied().unwrap_or(0)
    }

    /// A frame leaves. Gives how many were lost before it.
    pub fn render_send(&mut self, from: usize, to: usize, frame: &Bytes) -> u64 {
        if self.trace.scene.is_some() && self.network.is_up(from, to) {
            let text = self.setup.describe_frame(frame);
            let (sender, receiver) = (self.place_name(from), self.place_name(to));
            if let Some(scene) = &mut self.trace.scene {
                let ends = (scene.lane(&sender), scene.lane(&receiver));
                scene.send(self.now, ends, key(frame), text);
            }
        }
        self.losses()
    }

    /// Datagrams that are lost are lost at once.
    pub fn render_loss(&mut self, from: usize, to: usize, losses: u64) {
        let datagram = self.setup.transport == crate::Transport::Datagram;
        if datagram && self.trace.scene.is_some() && self.losses() > losses {
            let (sender, receiver) = (self.place_name(from), self.place_name(to));
            if let Some(scene) = &mut self.trace.scene {
                let ends = (scene.lane(&sender), scene.lane(&receiver));
                scene.lose_last(self.now, ends);
            }
        }
    }

    /// A frame comes to its end.
    pub fn render_arrival(&mut self, from: usize, to: usize, frame: &Bytes, lost: bool) {
        if self.trace.scene.is_none() {
            return;
        }
        let (sender, receiver) = (self.place_name(from), self.place_name(to));
        if let Some(scene) = &mut self.trace.scene {
            let ends = (scene.lane(&sender), scene.lane(&receiver));
            scene.arrive(self.now, ends, key(frame), lost);
        }
    }

    /// Looks at what is down, stands still, or cut off.
    pub fn render_state(&mut self) {
        if self.trace.scene.is_none() {
            return;
        }
        let mut shades = Vec::new();
        for (id, process) in self.processes.iter().enumerate() {
            if process.node.is_none() {
                shades.push((Some(id), "down".to_string()));
            } else if process.paused_until > self.now {
                shades.push((Some(id), "stands still".to_string()));
            }
        }
        let blocked = self.network.blocked();
        if !blocked.is_empty() {
            let links: Vec<String> = (blocked.iter())
                .map(|(from, to)| format!("{}↛{}", self.place_name(*from), self.place_name(*to)))
                .collect();
            shades.push((None, format!("cut: {}", links.join(" "))));
        }
        let before = std::mem::take(&mut self.rendered.shades);
        if let Some(scene) = &mut self.trace.scene {
            for (lane, text) in before.iter().filter(|shade| !shades.contains(shade)) {
                scene.unshade(self.now, *lane, text);
            }
            for (lane, text) in shades.iter().filter(|shade| !before.contains(shade)) {
                scene.shade(self.now, *lane, text.clone());
            }
        }
        self.rendered.shades = shades;
    }
}

//! A slower, worse network than the one there is, for measuring and for trying out.
//!
//! ```text
//!   queue_frame ──hold──► [due │ link, session, lane │ frame] ──release when due──► the connection
//! ```
//!
//! Frames wait here until they would have arrived, then go out over the real network, whose own
//! delay comes on top, and the time that a sleeping replica takes to wake. Long ones go out part by
//! part, as a network brings them: receivers look at whether they come.

use super::queue::HEADER;
use quintet_replica::{
    Bytes, Frame, Lane, ReplicaId, Time,
    links::{Departures, Links},
};
use std::{collections::BTreeMap, time::Duration};

/// So much of a long frame goes out at once.
const PART: usize = 64 << 10;

/// A frame that waits, or a part of it.
#[derive(Debug)]
pub(crate) struct Held {
    pub to: ReplicaId,
    /// The link that it was sent on; a newer one does not get it.
    pub session: u64,
    pub lane: Lane,
    /// It leaves as a datagram, which may be lost and overtaken.
    pub loose: bool,
    pub header: [u8; HEADER],
    pub frame: Frame,
    /// It is a later part of a frame: the header has been sent already.
    pub continues: bool,
}

/// The parts of a frame, none longer than [`PART`].
fn parts(frame: &Frame) -> impl Iterator<Item = Bytes> {
    frame.parts().iter().flat_map(|part| {
        let starts = (0..part.len()).step_by(PART);
        starts.map(|at| part.slice(at..part.len().min(at + PART)))
    })
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Emulator {
    departures: Departures,
    /// How much later than the run this replica's clock began; negative: earlier.
    ahead: i128,
    held: BTreeMap<(Time, u64), Held>,
    sequence: u64,
    /// Bytes that wait for each member, by lane.
    bytes: Vec<[usize; 2]>,
    lost: u64,
}

impl Emulator {
    /// The links of replica `id`; `now` on its clock is `since` the beginning of the run.
    pub fn new(links: &Links, id: ReplicaId, now: Time, since: Duration) -> Self {
        Self {
            departures: links.departures(id.0),
            ahead: since.as_nanos() as i128 - i128::from(now.0),
            held: BTreeMap::new(),
            sequence: 0,
            bytes: Vec::new(),
            lost: 0,
        }
    }

    /// How many frames it has dropped.
    #[cfg(test)]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Takes a frame that leaves now.
    pub fn hold(&mut self, held: Held, now: Time) {
        if held.loose || held.frame.len() <= PART {
            return self.hold_part(held, now);
        }
        for (number, part) in parts(&held.frame).enumerate() {
            let part = Held {
                frame: part.into(),
                continues: number > 0,
                ..held
            };
            self.hold_part(part, now);
        }
    }

    fn hold_part(&mut self, held: Held, now: Time) {
        let run = u64::try_from(i128::from(now.0) + self.ahead).unwrap_or(0);
        let length = HEADER + held.frame.len();
        let to = held.to.index();
        let lane = held.lane as usize;
        // A frame that never arrives is dropped here; a protocol that relies on it must notice by
        // itself.
        let arrival = match held.loose {
            true => (self.departures).depart_loose(Time(run), held.to.0, length),
            false => (self.departures).depart(Time(run), held.to.0, lane, length),
        };
        let Some(arrival) = arrival else {
            self.lost += 1;
            return;
        };
        if self.bytes.len() <= to {
            self.bytes.resize(to + 1, [0; 2]);
        }
        self.bytes[to][lane] += length;
        self.sequence += 1;
        let due = now + Duration::from_nanos(arrival.0.saturating_sub(run));
        self.held.insert((due, self.sequence), held);
    }

    /// The next frame that is due.
    pub fn release(&mut self, now: Time) -> Option<Held> {
        let first = self.held.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        let held = first.remove();
        self.bytes[held.to.index()][held.lane as usize] -= HEADER + held.frame.len();
        Some(held)
    }

    /// When the next frame is due.
    pub fn next_due(&self) -> Time {
        self.held.keys().next().map_or(Time::NEVER, |key| key.0)
    }

    /// Bytes that wait for a member on a lane.
    pub fn held_for(&self, to: ReplicaId, lane: Lane) -> usize {
        (self.bytes.get(to.index())).map_or(0, |lanes| lanes[lane as usize])
    }

    /// A link broke: what waits for it is never delivered.
    pub fn reset(&mut self, to: ReplicaId) {
        self.departures.reset(to.0);
        self.held.retain(|_, held| held.to != to);
        if let Some(bytes) = self.bytes.get_mut(to.index()) {
            *bytes = [0; 2];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_replica::links::Change;

    const MS: u64 = 1_000_000;

    fn held(to: u16, lane: Lane, byte: u8) -> Held {
        Held {
            to: ReplicaId(to),
            session: 1,
            lane,
            loose: false,
            header: [0; HEADER],
            continues: false,
            frame: Frame::from(Bytes::copy_from_slice(&[byte; 88])),
        }
    }

    fn released(emulator: &mut Emulator, now: u64) -> Vec<u8> {
        std::iter::from_fn(|| emulator.release(Time(now)))
            .map(|held| held.frame.into_bytes()[0])
            .collect()
    }

    #[test]
    fn frames_wait_until_they_would_have_arrived() {
        let mut links = Links::default();
        links.other.delay = Duration::from_millis(10);
        links.single.push((0, 2, Default::default()));
        // The run began 3 ms before this replica's clock.
        let mut emulator = Emulator::new(&links, ReplicaId(0), Time(0), Duration::from_millis(3));
        emulator.hold(held(1, Lane::Control, 1), Time(MS));
        emulator.hold(held(1, Lane::Control, 2), Time(2 * MS));
        emulator.hold(held(2, Lane::Bulk, 3), Time(2 * MS));
        assert_eq!(emulator.held_for(ReplicaId(1), Lane::Control), 200);
        assert_eq!(released(&mut emulator, 2 * MS), [3]);
        assert_eq!(emulator.next_due(), Time(11 * MS));
        assert_eq!(released(&mut emulator, 11 * MS), [1]);
        assert_eq!(emulator.held_for(ReplicaId(1), Lane::Control), 100);
        assert_eq!(released(&mut emulator, 20 * MS), [2]);
        assert_eq!(emulator.next_due(), Time::NEVER);
    }

    #[test]
    fn changes_count_from_the_beginning_of_the_run() {
        let cut = Change {
            at: Duration::from_millis(100),
            until: Some(Duration::from_millis(200)),
            cut: true,
            ..Change::default()
        };
        let links = Links {
            changes: vec![cut],
            ..Links::default()
        };
        let mut emulator = Emulator::new(&links, ReplicaId(0), Time(0), Duration::from_millis(90));
        emulator.hold(held(1, Lane::Control, 1), Time(5 * MS));
        emulator.hold(held(1, Lane::Control, 2), Time(20 * MS));
        assert_eq!(released(&mut emulator, 5 * MS), [1]);
        assert_eq!(emulator.next_due(), Time(110 * MS));
    }

    #[test]
    fn changes_wait_for_a_run_that_begins_later() {
        let late = Change {
            at: Duration::from_millis(100),
            until: Some(Duration::from_millis(200)),
            delay_more: Duration::from_millis(50),
            ..Change::default()
        };
        let links = Links {
            changes: vec![late],
            ..Links::default()
        };
        let links = links.postponed(Duration::from_millis(10));
        let mut emulator = Emulator::new(&links, ReplicaId(0), Time(0), Duration::ZERO);
        emulator.hold(held(1, Lane::Control, 1), Time(105 * MS));
        assert_eq!(released(&mut emulator, 105 * MS), [1]);
        emulator.hold(held(1, Lane::Control, 2), Time(115 * MS));
        assert_eq!(emulator.next_due(), Time(165 * MS));
        emulator.hold(held(2, Lane::Control, 3), Time(205 * MS));
        emulator.hold(held(2, Lane::Control, 4), Time(215 * MS));
        assert_eq!(released(&mut emulator, 260 * MS), [2, 3, 4]);
    }

    #[test]
    fn link_that_breaks_loses_what_waits_for_it() {
        let mut links = Links::default();
        links.other.delay = Duration::from_millis(10);
        let mut emulator = Emulator::new(&links, ReplicaId(0), Time(0), Duration::ZERO);
        emulator.hold(held(1, Lane::Control, 1), Time(0));
        emulator.hold(held(2, Lane::Control, 2), Time(0));
        emulator.reset(ReplicaId(1));
        assert_eq!(emulator.held_for(ReplicaId(1), Lane::Control), 0);
        assert_eq!(released(&mut emulator, 10 * MS), [2]);
    }
}

//! Exchanges with the members about clocks, over the control lanes of their links.
//!
//! ```text
//!   exchange: now and then ── Probe{number} ────────────────────────────► on_own
//!   on_own ◄── Echo{number, when it came and left, how good that clock is} ┘
//!     └──► PeerClock ──► standings ──► the event loop corrects its clock
//! ```
//!
//! Written at once and not at the end of the turn, because the measurement cannot tell the time
//! that a frame waits here from the network's. Frontends ask as replicas do; they are answered and
//! not asked.

use super::{Kind, Stage, Tcp, frame_header};
use crate::{
    clock::skewed,
    peer_clock::{PeerClock, Readings, Standing},
    transports::memory::Token,
};
use quintet_replica::{
    Bytes, DecodeError, Frame, Lane, Peer, Reader, ReplicaId, Time, Wire, Writer,
};
use std::time::{Duration, Instant};

/// How often a peer is asked.
const INTERVAL: Duration = Duration::from_millis(500);
/// How often at first, and for how many rounds.
const INTERVAL_FIRST: Duration = Duration::from_millis(20);
const ROUNDS_FIRST: u32 = 10;

/// Frames of the transport's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    Probe {
        number: u64,
    },
    Echo {
        number: u64,
        came: u64,
        left: u64,
        disciplined: bool,
        error: u64,
    },
    /// Datagrams are taken at this port, and so long at most; their token ends with this place.
    Offer {
        place: u64,
        port: u16,
        takes: u32,
    },
    /// Memory to be shared stands there; see [`Token`].
    Memory(Token),
    /// That with this number is open.
    Opened {
        number: u64,
    },
    /// The following bytes of this lane go through it.
    Begun {
        number: u64,
    },
    /// Something stands in the memory, or there is room in it again.
    Wake,
    /// A probe has come, the `number`th datagram sent, when `received` had come.
    Heard {
        number: u64,
        received: u64,
    },
}

impl Wire for Own {
    fn encode(&self, writer: &mut Writer<'_>) {
        match *self {
            Self::Probe { number } => {
                writer.u8(1);
                writer.u64(number);
            }
            Self::Echo {
                number,
                came,
                left,
                disciplined,
                error,
            } => {
                writer.u8(2);
                writer.u64(number);
                writer.u64(came);
                writer.u64(left);
                writer.bool(disciplined);
                writer.u64(error);
            }
            Self::Offer { place, port, takes } => {
                writer.u8(3);
                writer.u64(place);
                writer.u16(port);
                writer.u32(takes);
            }
            Self::Heard { number, received } => {
                writer.u8(4);
                writer.u64(number);
                writer.u64(received);
            }
            Self::Memory(token) => {
                writer.u8(5);
                writer.u64(token.number);
                writer.u32(token.process);
                writer.u32(token.descriptor);
            }
            Self::Opened { number } => {
                writer.u8(6);
                writer.u64(number);
            }
            Self::Begun { number } => {
                writer.u8(7);
                writer.u64(number);
            }
            Self::Wake => {
                writer.u8(8);
                writer.u64(0);
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let kind = reader.u8("kind of exchange")?;
        let number = reader.u64("number of exchange")?;
        Ok(match kind {
            1 => Self::Probe { number },
            2 => Self::Echo {
                number,
                came: reader.u64("arrival")?,
                left: reader.u64("departure")?,
                disciplined: reader.bool("disciplined")?,
                error: reader.u64("error")?,
            },
            3 => Self::Offer {
                place: number,
                port: reader.u16("port")?,
                takes: reader.u32("longest datagram")?,
            },
            4 => Self::Heard {
                number,
                received: reader.u64("received")?,
            },
            5 => Self::Memory(Token {
                number,
                process: reader.u32("process")?,
                descriptor: reader.u32("descriptor")?,
            }),
            6 => Self::Opened { number },
            7 => Self::Begun { number },
            8 => Self::Wake,
            _ => return Err(DecodeError::Bad("kind of exchange")),
        })
    }
}

/// A question in progress.
#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u64,
    sent: u64,
    since: Instant,
}

/// The measurements of the members' clocks, and the exchanges in progress.
#[derive(Debug)]
pub(super) struct Exchanges {
    peers: Vec<(PeerClock, Option<Asked>)>,
    number: u64,
    ask_at: Time,
    /// This many rounds follow each other quickly.
    quick: u32,
    /// By how much this side's clock is set wrong on purpose.
    skew: i64,
    /// Whether this side's clock is disciplined, as told to peers.
    disciplined: bool,
    error: u64,
    news: bool,
}

impl Exchanges {
    /// Earlier measurements of this member's clock count no more.
    pub fn forget(&mut self, member: usize) {
        if let Some((clock, asked)) = self.peers.get_mut(member) {
            clock.forget();
            *asked = None;
        }
    }

    /// Makes room for this number of members.
    pub fn grow(&mut self, members: usize) {
        let members = members.max(self.peers.len());
        self.peers.resize_with(members, Default::default);
    }

    pub fn new(members: usize) -> Self {
        Self {
            peers: vec![Default::default(); members],
            number: 0,
            ask_at: Time(0),
            quick: 0,
            skew: 0,
            disciplined: false,
            error: u64::MAX,
            news: false,
        }
    }

    /// A link has come up.
    pub fn begin(&mut self, now: Time) {
        self.quick = ROUNDS_FIRST;
        self.ask_at = self.ask_at.min(now);
    }
}

impl Tcp {
    /// This side's clock is set wrong on purpose, by this many nanoseconds.
    pub const fn skew_clock(&mut self, skew: i64) {
        self.exchanges.skew = skew;
    }

    /// How good this side's clock is: what peers are told.
    pub const fn tell_clock(&mut self, disciplined: bool, error: u64) {
        self.exchanges.disciplined = disciplined;
        self.exchanges.error = error;
    }

    /// Whether an exchange has ended since this was last asked.
    pub const fn take_clock_news(&mut self) -> bool {
        std::mem::replace(&mut self.exchanges.news, false)
    }

    /// This side's clock was set: nothing that was measured counts any more.
    pub fn forget_clocks(&mut self) {
        for member in 0..self.exchanges.peers.len() {
            self.exchanges.forget(member);
        }
        self.exchanges.quick = ROUNDS_FIRST;
    }

    /// How a member's clock stands to this one.
    pub fn standing(&self, id: ReplicaId, now: Time) -> Option<Standing> {
        self.exchanges.peers.get(id.index())?.0.standing(now)
    }

    /// The same of all members that have told something that still counts.
    pub fn standings(&self, now: Time) -> Vec<Standing> {
        // The clocks of those that vote count.
        let peers = (0..).map(ReplicaId).zip(&self.exchanges.peers);
        let peers = peers.filter(|(id, _)| self.voters.contains(*id));
        peers
            .filter_map(|(_, (clock, _))| clock.standing(now))
            .collect()
    }

    pub(super) fn exchange_at(&self) -> Time {
        match self.links.iter().any(|link| link.up) {
            true => self.exchanges.ask_at,
            false => Time::NEVER,
        }
    }

    /// Asks everybody who is linked, when it is time.
    pub(super) fn exchange(&mut self, now: Time) {
        if self.exchange_at() > now {
            return;
        }
        self.exchanges.quick = self.exchanges.quick.saturating_sub(1);
        let quick = self.exchanges.quick > 0;
        self.exchanges.ask_at = now + if quick { INTERVAL_FIRST } else { INTERVAL };
        for member in 0..self.links.len() {
            let link = &self.links[member];
            let Some(index) = link.lanes[Lane::Control as usize].filter(|_| link.up) else {
                continue;
            };
            self.exchanges.number += 1;
            let asked = Asked {
                number: self.exchanges.number,
                sent: skewed(self.exchanges.skew),
                since: Instant::now(),
            };
            self.exchanges.peers[member].1 = Some(asked);
            let number = asked.number;
            self.send_own(index, Own::Probe { number }, now);
        }
    }

    pub(super) fn send_own(&mut self, index: usize, own: Own, now: Time) {
        let Some(lane) = self.connections[index].as_ref().map(|c| c.lane) else {
            return;
        };
        let frame = Frame::from(own.encode_to_bytes());
        let header = frame_header(lane, Kind::Own, &frame);
        self.queue_frame(index, &header, &frame, now);
        self.write(index, now);
    }

    /// A frame of the transport's own; one that is malformed is counted and dropped.
    pub(super) fn on_own(&mut self, index: usize, peer: Peer, frame: Bytes, now: Time) {
        let arrived = skewed(self.exchanges.skew);
        match (Own::decode_all(frame), peer) {
            (Ok(Own::Probe { number }), _) => {
                let open = |c: &super::Connection| c.stage == Stage::Open;
                if !self.connections[index].as_ref().is_some_and(open) {
                    return;
                }
                let echo = Own::Echo {
                    number,
                    came: arrived,
                    left: skewed(self.exchanges.skew),
                    disciplined: self.exchanges.disciplined,
                    error: self.exchanges.error,
                };
                self.send_own(index, echo, now);
            }
            (
                Ok(Own::Echo {
                    number,
                    came,
                    left,
                    disciplined,
                    error,
                }),
                Peer::Replica(id),
            ) => {
                let Some((clock, asked)) = self.exchanges.peers.get_mut(id.index()) else {
                    return;
                };
                let Some(asked) = asked.take_if(|asked| asked.number == number) else {
                    return;
                };
                let readings = Readings {
                    sent: asked.sent,
                    came,
                    left,
                    back: arrived,
                    took: u64::try_from(asked.since.elapsed().as_nanos()).unwrap_or(u64::MAX),
                };
                self.exchanges.news |= clock.add(now, readings, disciplined, error);
            }
            (Ok(Own::Echo { .. }), Peer::Frontend(_)) => {}
            (Ok(Own::Offer { place, port, takes }), _) => {
                self.on_offer(index, place, port, takes as usize, now);
            }
            (Ok(Own::Heard { number, received }), _) => self.on_heard(index, number, received),
            (Ok(Own::Memory(token)), Peer::Replica(id)) => self.on_memory(index, id, token, now),
            (Ok(Own::Opened { number }), Peer::Replica(id)) => self.on_opened(id, number, now),
            (Ok(Own::Begun { number }), Peer::Replica(id)) => self.on_begun(index, id, number),
            (Ok(Own::Memory(_) | Own::Opened { .. } | Own::Begun { .. } | Own::Wake), _) => {}
            (Err(_), _) => self.counters.frames_bad += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_read_back_and_no_part_of_them_does() {
        let echo = Own::Echo {
            number: 7,
            came: u64::MAX,
            left: 2,
            disciplined: true,
            error: 9,
        };
        let offer = Own::Offer {
            place: 5,
            port: 7201,
            takes: 1_400,
        };
        let heard = Own::Heard {
            number: 9,
            received: 8,
        };
        let memory = Own::Memory(Token {
            process: 3,
            descriptor: 7,
            number: 1 << 60,
        });
        let (opened, begun) = (Own::Opened { number: 1 }, Own::Begun { number: 2 });
        let probe = Own::Probe { number: 3 };
        for own in [probe, echo, offer, heard, memory, opened, begun, Own::Wake] {
            let bytes = own.encode_to_bytes();
            assert_eq!(Own::decode_all(bytes.clone()), Ok(own));
            for length in 0..bytes.len() {
                assert!(Own::decode_all(bytes.slice(..length)).is_err());
            }
        }
        assert!(Own::decode_all(Bytes::from_static(&[5; 9])).is_err());
    }
}

//! Shared memory instead of the connections: to and from members on the same host.
//!
//! ```text
//!   link up ── Memory{where it is} ──►              over the control connection
//!            ◄── Opened{number} ──                  it could be opened: the same host
//!            ── Begun{number} ──► ── Begun{…} ──►   over both: what follows of the lane …
//!            ══ frames, puts ══════════════════►    … comes through the memory
//!            ◄── large payloads ────────────────    … or is read where the sender has it
//!            ── Wake ──►                            only to who sleeps, or waits for room
//! ```
//!
//! Each side makes the memory that it writes to, and uses it when the other one has opened it; until
//! then, or forever, everything goes by the connections. These stay in any case: they tell who is
//! who and who is alive, and the memory goes when the link does.

use super::{Incoming, Outgoing, QUEUE_LOW, TURN_BYTES_MAX, Tcp, exchange::Own};
use crate::{
    metrics::MemoryMetrics,
    transports::{
        Arrival,
        memory::{
            self, ASLEEP, LENT_MIN, Lender, Lending, Loan, Mad, Poll, Put, RingPlace, RingReader,
            RingWriter, Segment, TablePlace, TableReader, TableWriter, Token, WAITS,
        },
        queue::{FRAME_MAX, FrameBroken, Kind, MEMORY_AHEAD, memory_header},
    },
};
use quintet_replica::{Bytes, Frame, Lane, Link, Peer, ReplicaId, ReplicaSet, Time, limits};
use std::{io, os::fd::OwnedFd, sync::Arc};

type Memory = Arc<Segment>;

/// The part that this side writes.
#[derive(Debug)]
struct Outbound {
    token: Token,
    memory: Memory,
    /// Open until the other side has opened it.
    file: Option<OwnedFd>,
    /// Everything goes this way.
    open: bool,
    table: TableWriter<Memory>,
    /// Puts go in frames, because the row is too long for the table.
    framed: bool,
    /// By lane.
    rings: [RingWriter<Memory>; 2],
    queues: [Outgoing; 2],
    lenders: [Lender<Memory>; 2],
    /// The other side reads this one's memory.
    lends: bool,
    /// Something was written of which the other side may not know.
    brought: bool,
    /// The queue has been more than half full since there was last said to be room.
    crowded: bool,
}

/// The part that the other side writes.
#[derive(Debug)]
struct Inbound {
    number: u64,
    memory: Memory,
    table: TableReader<Memory>,
    /// By lane.
    rings: [RingReader<Memory>; 2],
    incoming: [Incoming; 2],
    /// Whose memory can be read, if it can.
    lending: Option<Lending>,
    /// A frame that is being read there, by lane.
    loans: [Option<Loan>; 2],
    /// Whether the following bytes come this way, by lane.
    open: [bool; 2],
}

/// The memory shared with one member.
#[derive(Debug, Default)]
struct Way {
    outbound: Option<Box<Outbound>>,
    inbound: Option<Box<Inbound>>,
}

/// The memory shared with all members.
#[derive(Debug)]
pub(super) struct Memories {
    ways: Vec<Way>,
    counters: MemoryMetrics,
    /// The others have been told that this side sleeps.
    dozing: bool,
}

/// Why the memory of a link is of no use any more.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Mad(#[from] Mad),
    #[error(transparent)]
    Frame(#[from] FrameBroken),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Outbound {
    fn new(memory: Segment, file: OwnedFd, token: Token) -> Self {
        let memory = Arc::new(memory);
        let ring = |lane| RingWriter::new(memory.clone(), RingPlace::of(lane));
        Self {
            token,
            file: Some(file),
            open: false,
            table: TableWriter::new(memory.clone(), TablePlace::SEGMENT),
            framed: false,
            rings: [ring(Lane::Control), ring(Lane::Bulk)],
            queues: Default::default(),
            lenders: [Lane::Control, Lane::Bulk].map(|lane| Lender::new(memory.clone(), lane)),
            lends: false,
            brought: false,
            crowded: false,
            memory,
        }
    }

    /// The bytes of a lane that the other side has not taken.
    fn queued_of(&self, lane: Lane) -> usize {
        self.queues[lane as usize].len() + self.lenders[lane as usize].bytes()
    }

    fn queued(&self) -> usize {
        super::LANES.iter().map(|lane| self.queued_of(*lane)).sum()
    }

    /// Something is to be done when the other side has taken more.
    fn waits(&self) -> bool {
        self.crowded || self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// The other side has taken something that was waited for.
    fn may_write(&self) -> bool {
        let returned = || self.lenders.iter().any(|it| it.returned() != Ok(0));
        let lanes = self.queues.iter().zip(&self.rings);
        (self.crowded && returned())
            || lanes
                .filter(|(queue, _)| !queue.is_empty())
                .any(|(_, ring)| ring.room() != Ok(0))
    }

    fn push(&mut self, lane: Lane, frame: &Frame) {
        let queue = &mut self.queues[lane as usize];
        let told = self.lends.then(|| memory::describe(frame)).flatten();
        let Some(told) = told else {
            queue.push(&memory_header(lane, Kind::Node, frame.len()), frame);
            return;
        };
        for part in frame.parts().iter().filter(|part| part.len() >= LENT_MIN) {
            self.lenders[lane as usize].keep(part.clone());
        }
        let header = memory_header(lane, Kind::Lent, told.len());
        queue.push(&header, &Frame::from(told));
    }

    /// Writes what there is room for: how many bytes.
    fn write(&mut self) -> io::Result<usize> {
        for lender in &mut self.lenders {
            lender.let_go()?;
        }
        let mut written = 0;
        for (queue, ring) in self.queues.iter_mut().zip(&mut self.rings) {
            if !queue.is_empty() {
                written += queue.write(ring)?.0;
            }
        }
        self.brought |= written > 0;
        Ok(written)
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        memory::withdraw(&self.memory);
    }
}

impl Inbound {
    fn new(memory: Segment, number: u64, lending: Option<Lending>) -> Self {
        let memory = Arc::new(memory);
        let ring = |lane| RingReader::new(memory.clone(), RingPlace::of(lane));
        Self {
            number,
            table: TableReader::new(memory.clone(), TablePlace::SEGMENT),
            rings: [ring(Lane::Control), ring(Lane::Bulk)],
            incoming: [Incoming::of_memory(), Incoming::of_memory()],
            lending,
            loans: [None, None],
            open: [false; 2],
            memory,
        }
    }

    fn may_read(&self) -> bool {
        let [control, bulk] = [0, 1].map(|lane| {
            let ready = || self.rings[lane].ready() != Ok(0);
            self.loans[lane].is_some() || (self.open[lane] && ready())
        });
        control || bulk || (self.open[0] && self.table.ready() != Ok(0))
    }

    /// Takes `most` bytes of a lane, of which its ring has told, and of what is lent no more than
    /// is good for a turn. How many bytes came.
    fn read(
        &mut self,
        lane: Lane,
        most: usize,
        mut taken: impl FnMut(Kind, Bytes),
    ) -> Result<usize, Broken> {
        let (ring, incoming, loan) = (
            &mut self.rings[lane as usize],
            &mut self.incoming[lane as usize],
            &mut self.loans[lane as usize],
        );
        let (mut left, mut budget) = (most, TURN_BYTES_MAX);
        loop {
            if let (Some(open), Some(lending)) = (loan.as_mut(), &self.lending) {
                budget -= open.proceed(lending, budget)?.min(budget);
                let Some(whole) = loan.take_if(|loan| loan.is_whole()) else {
                    break;
                };
                taken(Kind::Lent, whole.end(&self.memory, lane, lending)?);
            }
            match incoming.next(lane)? {
                Some((Kind::Lent, _)) if self.lending.is_none() => {
                    return Err(FrameBroken::Kind(Kind::Lent as u8).into());
                }
                Some((Kind::Lent, told)) => {
                    *loan = Some(Loan::new(told, FRAME_MAX, MEMORY_AHEAD)?);
                }
                Some((kind, frame)) => taken(kind, frame),
                None if left == 0 => break,
                None => {
                    let (buffer, wanted) = incoming.wants();
                    left -= ring.pop(wanted.min(left), buffer);
                }
            }
        }
        Ok(most - left + TURN_BYTES_MAX - budget)
    }
}

impl Tcp {
    /// From now on members on this host are reached through shared memory.
    pub fn use_memory(&mut self) {
        self.memories = Some(Box::new(Memories {
            ways: Vec::new(),
            counters: MemoryMetrics::default(),
            dozing: false,
        }));
        self.grow_memory();
    }

    /// There may be more members than before.
    pub(super) fn grow_memory(&mut self) {
        if let Some(memories) = &mut self.memories {
            memories.ways.resize_with(self.links.len(), Way::default);
        }
    }

    fn way_by_memory(&mut self, id: ReplicaId) -> Option<&mut Way> {
        self.memories.as_mut()?.ways.get_mut(id.index())
    }

    fn outbound(&self, id: ReplicaId) -> Option<&Outbound> {
        let way = self.memories.as_ref()?.ways.get(id.index())?;
        way.outbound.as_deref().filter(|outbound| outbound.open)
    }

    // --- agreeing on it ----------------------------------------------------------------------

    /// The link is up: tells the other side where it may find what this one will write.
    pub(super) fn offer_memory(&mut self, id: ReplicaId, now: Time) {
        let control = self.links[id.index()].lanes[Lane::Control as usize];
        let Some(control) = control.filter(|_| self.memories.is_some()) else {
            return;
        };
        let Some(number) = self.memory_number(control, true) else {
            return;
        };
        let Some(way) = self.way_by_memory(id) else {
            return;
        };
        match Segment::create(number) {
            Ok((memory, file, token)) => {
                way.outbound = Some(Box::new(Outbound::new(memory, file, token)));
                self.send_own(control, Own::Memory(token), now);
            }
            Err(error) => tracing::warn!(%error, "no memory to share: everything goes by TCP"),
        }
    }

    /// The number of a segment of this connection's link: an older link's, or one that was not
    /// named by the proven peer, has another.
    fn memory_number(&self, index: usize, sends: bool) -> Option<u64> {
        let connection = self.connections[index].as_ref()?;
        let link = connection.handshake.link_key()?;
        Some(link.derive("memory", sends) as u64)
    }

    /// The other side has told where it will write.
    pub(super) fn on_memory(&mut self, index: usize, id: ReplicaId, token: Token, now: Time) {
        let expected = self.memory_number(index, false);
        let Some(way) = self.way_by_memory(id) else {
            return;
        };
        // One for a link, this link's, and never this process's own.
        if way.inbound.is_some() || token.process == 0 || Some(token.number) != expected {
            return;
        }
        match Segment::open(token) {
            Ok(memory) => {
                let number = token.number;
                let peer = id.0;
                let lending = match Lending::open(token, &memory) {
                    Ok(lending) => {
                        memory::will_read(&memory);
                        Some(lending)
                    }
                    Err(error) => {
                        tracing::info!(peer, %error, "large payloads are copied twice: the other process's memory cannot be read");
                        None
                    }
                };
                way.inbound = Some(Box::new(Inbound::new(memory, number, lending)));
                self.send_own(index, Own::Opened { number }, now);
            }
            Err(error) => {
                let peer = id.0;
                tracing::info!(peer, %error, "no memory is shared: it is not on this host");
            }
        }
    }

    /// The other side reads what this one writes.
    pub(super) fn on_opened(&mut self, id: ReplicaId, number: u64, now: Time) {
        let lanes = self.links[id.index()].lanes;
        let Some(Way {
            outbound: Some(outbound),
            ..
        }) = self.way_by_memory(id)
        else {
            return;
        };
        if outbound.token.number != number || outbound.open {
            return;
        }
        outbound.open = true;
        outbound.lends = memory::reads(&outbound.memory);
        outbound.file = None;
        tracing::info!(peer = id.0, "frames go through shared memory");
        for index in lanes.into_iter().flatten() {
            self.send_own(index, Own::Begun { number }, now);
        }
    }

    /// The following bytes on this connection's lane come through memory.
    pub(super) fn on_begun(&mut self, index: usize, id: ReplicaId, number: u64) {
        let Some(lane) = self.connections[index].as_ref().map(|c| c.lane) else {
            return;
        };
        if let Some(Way {
            inbound: Some(inbound),
            ..
        }) = self.way_by_memory(id)
            && inbound.number == number
        {
            inbound.open[lane as usize] = true;
        }
    }

    /// The link has broken.
    pub(super) fn drop_memory(&mut self, member: usize) {
        if let Some(memories) = &mut self.memories {
            memories.ways[member] = Way::default();
        }
    }

    fn break_memory(&mut self, id: ReplicaId, reason: &Broken, now: Time) {
        self.counters.frames_bad += 1;
        if let Some(index) = self.links[id.index()].lanes[Lane::Control as usize] {
            self.close(index, &reason.to_string(), now);
        }
    }

    // --- sending -----------------------------------------------------------------------------

    /// Queues a frame for a member that is reached through memory; false if it is not.
    pub(super) fn queue_in_memory(
        &mut self,
        id: ReplicaId,
        lane: Lane,
        frame: &Frame,
        now: Time,
    ) -> bool {
        let Some(memories) = &mut self.memories else {
            return false;
        };
        let Some(outbound) = &mut memories.ways[id.index()].outbound else {
            return false;
        };
        if !outbound.open {
            return false;
        }
        let queued = outbound.queued_of(lane);
        if queued > limits::LINK_QUEUE_HARD {
            self.counters.queues_full += 1;
            if let Some(index) = self.links[id.index()].lanes[lane as usize] {
                self.close(index, "its queue is full", now);
            }
            self.tell_down(id.index());
            return true;
        }
        outbound.push(lane, frame);
        outbound.crowded |= outbound.queued() > QUEUE_LOW;
        memories.counters.frames_out += 1;
        self.counters.frames_out += 1;
        true
    }

    /// Writes words of this replica's row into the memory of the members in `to`; gives those that
    /// are to get them in a frame.
    pub fn put(&mut self, to: ReplicaSet, ranges: &Bytes, now: Time) -> ReplicaSet {
        let Some(memories) = &mut self.memories else {
            return to;
        };
        let mut left = ReplicaSet::default();
        let mut broken: Option<(ReplicaId, Broken)> = None;
        for id in to.iter() {
            let way = memories.ways.get_mut(id.index());
            let outbound = way.and_then(|way| way.outbound.as_mut());
            let Some(outbound) = outbound.filter(|it| it.open && !it.framed) else {
                left.insert(id);
                continue;
            };
            match outbound.table.put(ranges) {
                Ok(Put::Done) => {
                    outbound.brought = true;
                    memories.counters.puts_out += 1;
                }
                // Permanently: later puts must not be seen sooner.
                Ok(Put::TooLong) => {
                    outbound.framed = true;
                    left.insert(id);
                }
                Ok(Put::Full) => {
                    self.counters.queues_full += 1;
                    broken = Some((id, Mad("too much was put that is not taken").into()));
                }
                Err(mad) => broken = Some((id, mad.into())),
            }
        }
        if let Some((id, reason)) = broken {
            self.break_memory(id, &reason, now);
        }
        left
    }

    /// Writes what is queued, and wakes those who sleep.
    pub(super) fn flush_memory(&mut self, now: Time) {
        for member in 0..self.links.len() {
            let id = ReplicaId(member as u16);
            let Some(memories) = &mut self.memories else {
                return;
            };
            let Some(outbound) = &mut memories.ways[member].outbound else {
                continue;
            };
            if !outbound.open {
                continue;
            }
            match outbound.write() {
                Ok(written) => {
                    memories.counters.bytes_out += written as u64;
                    if outbound.crowded && outbound.queued() <= QUEUE_LOW {
                        outbound.crowded = false;
                        let all = outbound.queued();
                        let room = limits::link_room(outbound.queued_of(Lane::Control), all);
                        let room = Link::Room(room);
                        self.arrivals
                            .push_back(Arrival::Link(Peer::Replica(id), room));
                    }
                    if std::mem::take(&mut outbound.brought) && ASLEEP.wanted(&outbound.memory) {
                        self.wake(id, now);
                    }
                }
                Err(error) => self.break_memory(id, &error.into(), now),
            }
        }
    }

    fn wake(&mut self, id: ReplicaId, now: Time) {
        if let Some(memories) = &mut self.memories {
            memories.counters.wakes += 1;
        }
        if let Some(index) = self.links[id.index()].lanes[Lane::Control as usize] {
            self.send_own(index, Own::Wake, now);
        }
    }

    // --- receiving ---------------------------------------------------------------------------

    /// Takes what has been written, a bounded amount for each member.
    pub(super) fn receive_memory(&mut self, now: Time) {
        for member in 0..self.links.len() {
            let id = ReplicaId(member as u16);
            if !self.links[member].up || self.memories.is_none() {
                continue;
            }
            match self.receive_memory_of(id, now) {
                Ok(false) => {}
                Ok(true) => self.wake(id, now),
                Err(reason) => self.break_memory(id, &reason, now),
            }
        }
    }

    /// The same of one member; whether it waits for the room that there is now.
    fn receive_memory_of(&mut self, id: ReplicaId, now: Time) -> Result<bool, Broken> {
        let Some(memories) = &mut self.memories else {
            return Ok(false);
        };
        let Some(inbound) = &mut memories.ways[id.index()].inbound else {
            return Ok(false);
        };
        let counters = &mut memories.counters;
        let arrivals = &mut self.arrivals;
        let (mut any, mut put) = (false, false);
        let (mut frames, mut borrowed) = (0, 0);
        for lane in super::LANES {
            if !inbound.open[lane as usize] {
                continue;
            }
            // Words put before a frame was written are seen before it: the ring is looked at first,
            // the table then, and no frame is taken that was not there.
            let mut ready = inbound.rings[lane as usize].ready()?.min(TURN_BYTES_MAX);
            if lane == Lane::Control {
                match inbound.table.poll()? {
                    Poll::Nothing => {}
                    Poll::Changing => ready = 0,
                    Poll::Put(ranges) => {
                        counters.puts_in += 1;
                        put = true;
                        arrivals.push_back(Arrival::Put(id, ranges));
                    }
                }
            }
            let came = inbound.read(lane, ready, |kind, frame| {
                frames += 1;
                borrowed += u64::from(kind == Kind::Lent);
                arrivals.push_back(Arrival::Frame(Peer::Replica(id), frame));
            })?;
            any |= came > 0;
            counters.bytes_in += came as u64;
        }
        if any || put {
            self.links[id.index()].node_heard = Some(now);
        }
        counters.borrowed += borrowed;
        counters.frames_in += frames;
        self.counters.frames_in += frames;
        Ok(any && WAITS.wanted(&inbound.memory))
    }

    // --- sleeping ----------------------------------------------------------------------------

    /// Whether something can be read or written without sleeping.
    pub(super) fn memory_busy(&self) -> bool {
        let Some(memories) = &self.memories else {
            return false;
        };
        memories.ways.iter().any(|way| {
            let reads = way.inbound.as_ref().is_some_and(|it| it.may_read());
            reads
                || way
                    .outbound
                    .as_ref()
                    .is_some_and(|it| it.open && it.may_write())
        })
    }

    /// Before sleeping: has everybody who shares memory wake this side. False when there is
    /// something to do first.
    pub fn park(&mut self) -> bool {
        let Some(memories) = &mut self.memories else {
            return true;
        };
        memories.dozing = true;
        for way in &memories.ways {
            if let Some(inbound) = &way.inbound {
                ASLEEP.listen(&inbound.memory);
            }
            if let Some(outbound) = way.outbound.as_ref().filter(|it| it.waits()) {
                WAITS.listen(&outbound.memory);
            }
        }
        let sleeps = !self.memory_busy();
        if !sleeps {
            self.awake();
        }
        sleeps
    }

    /// After sleeping.
    pub fn awake(&mut self) {
        let Some(memories) = self.memories.as_mut().filter(|it| it.dozing) else {
            return;
        };
        memories.dozing = false;
        for way in &memories.ways {
            if let Some(inbound) = &way.inbound {
                ASLEEP.ignore(&inbound.memory);
            }
            if let Some(outbound) = &way.outbound {
                WAITS.ignore(&outbound.memory);
            }
        }
    }

    // --- what is shown -----------------------------------------------------------------------

    /// The counters of shared memory.
    pub fn memory_counters(&self) -> MemoryMetrics {
        self.memories
            .as_ref()
            .map_or_else(MemoryMetrics::default, |it| it.counters)
    }

    /// How many bytes of a lane wait for room in the memory shared with a member.
    pub(super) fn queued_in_memory(&self, id: ReplicaId, lane: Lane) -> usize {
        self.outbound(id).map_or(0, |it| it.queued_of(lane))
    }

    /// Whether frames go to a member and come from it through memory.
    pub(super) fn by_memory(&self, id: ReplicaId) -> bool {
        let ways = self.memories.as_ref().map(|memories| &memories.ways);
        let inbound = ways.and_then(|ways| ways.get(id.index())?.inbound.as_ref());
        self.outbound(id).is_some() && inbound.is_some_and(|inbound| inbound.open == [true; 2])
    }
}

#[cfg(test)]
#[path = "shared_tests.rs"]
mod tests;

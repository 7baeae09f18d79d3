//! A chain: the head orders, every member passes on, the tail's acknowledgement decides.
//!
//! ```text
//!   head ── Pass ──► middle ── Pass ──► tail
//!     ◄──── Ack ────   ◄────── Ack ──────┘
//! ```

use super::Bed;
use alloc::{collections::BTreeMap, vec::Vec};
use quintet_replica::{
    BatchId, BatchView, Bytes, CommandTime, Context, Control, DecodeError, Incarnation, Info, Lane,
    Level, Peer, PersistId, Protocol, Reader, Recovered, ReplicaId, Setup, Slot, Status, Wake,
    Wire, Writer,
    parts::{AttachedFrontend, RequestMessage, SlotLog, Taken},
};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    Request { level: Level, batch: Bytes },
    Forward { batch: Bytes },
    Pass { slot: Slot, batch: Bytes },
    Ack { slot: Slot },
}

impl Wire for Message {
    fn encode(&self, writer: &mut Writer<'_>) {
        let (tag, number, batch) = match self {
            Self::Request { level, batch } => (0, *level as u64, batch.clone()),
            Self::Forward { batch } => (1, 0, batch.clone()),
            Self::Pass { slot, batch } => (2, slot.0, batch.clone()),
            Self::Ack { slot } => (3, slot.0, Bytes::new()),
        };
        writer.u8(tag);
        writer.u64(number);
        writer.blob(&batch);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (tag, number) = (reader.u8("tag")?, reader.u64("number")?);
        let batch = reader.blob("batch")?;
        Ok(match tag {
            0 => Self::Request {
                level: Level::Ordered,
                batch,
            },
            1 => Self::Forward { batch },
            2 => Self::Pass {
                slot: Slot(number),
                batch,
            },
            3 => Self::Ack { slot: Slot(number) },
            _ => return Err(DecodeError::Bad("tag")),
        })
    }
}

impl RequestMessage for Message {
    fn request(level: Level, batch: Bytes) -> Self {
        Self::Request { level, batch }
    }
    fn taken(&self) -> Option<(BatchId, Taken)> {
        None
    }
}

struct Batch(Bytes);

impl Wire for Batch {
    fn encode(&self, writer: &mut Writer<'_>) {
        writer.blob(&self.0);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.blob("batch").map(Self)
    }
}

struct Chain {
    id: ReplicaId,
    members: u16,
    incarnation: Incarnation,
    log: SlotLog<Bytes>,
    writes: BTreeMap<PersistId, Slot>,
    committed: Slot,
    executed: Slot,
    /// Batches of this turn, ordered together in `on_idle`.
    inbox: Vec<Bytes>,
}

impl Chain {
    fn next(&self) -> Option<ReplicaId> {
        Some(ReplicaId(self.id.0 + 1)).filter(|next| next.0 < self.members)
    }

    fn append(&mut self, slot: Slot, batch: Bytes, ctx: &mut Context<'_, Self>) {
        let write = ctx.persist(slot, &Batch(batch.clone()));
        self.log.set(slot, batch);
        self.writes.insert(write, slot);
    }

    fn commit(&mut self, upto: Slot, ctx: &mut Context<'_, Self>) {
        self.committed = self.committed.max(upto);
        while self.executed < self.committed {
            let slot = self.executed.next();
            let Some(batch) = self.log.get(slot).cloned() else {
                break;
            };
            let to = BatchView::new(&batch).map(|view| view.frontend()).ok();
            let reply = to
                .filter(|to| *to == ctx.embedded())
                .map(|to| (to, (), None));
            self.executed = slot;
            ctx.execute(slot, CommandTime(slot.0), batch, reply);
        }
        if self.id.0 > 0 {
            ctx.send(
                ReplicaId(self.id.0 - 1),
                Lane::Control,
                &Message::Ack { slot: upto },
            );
        }
    }
}

impl Protocol for Chain {
    type Message = Message;
    type Promise = ();
    type Record = Batch;
    type Summary = ();
    type ReplyHeader = ();
    type Timer = u32;
    type Options = ();
    type Frontend = AttachedFrontend<Self>;

    const INFO: Info = Info {
        name: "chain_stub",
        paper: "none",
        best_at: "trying the boundary",
        tolerates: "nothing",
        stable: false,
        replicas_min: 1,
    };

    fn new(setup: Setup<()>) -> Self {
        Self {
            id: setup.id,
            members: setup.epoch.members as u16,
            incarnation: setup.incarnation,
            log: SlotLog::default(),
            writes: BTreeMap::new(),
            committed: Slot(0),
            executed: Slot(0),
            inbox: Vec::new(),
        }
    }

    fn on_start(&mut self, _: Recovered<(), Batch, ()>, ctx: &mut Context<'_, Self>) {
        let route: Vec<_> = (0..self.members)
            .map(|id| (ReplicaId(id), self.incarnation))
            .collect();
        ctx.route_is(Slot(1), &route);
    }

    fn on_message(&mut self, _: Peer, message: Message, ctx: &mut Context<'_, Self>) {
        match message {
            Message::Request { batch, .. } | Message::Forward { batch } if self.id.0 == 0 => {
                self.inbox.push(batch);
            }
            Message::Request { batch, .. } | Message::Forward { batch } => {
                ctx.send(ReplicaId(0), Lane::Control, &Message::Forward { batch });
            }
            Message::Pass { slot, batch } => self.append(slot, batch, ctx),
            Message::Ack { slot } => self.commit(slot, ctx),
        }
    }

    fn on_timer(&mut self, _: u32, _: &mut Context<'_, Self>) {}

    fn on_persisted(&mut self, upto: PersistId, ctx: &mut Context<'_, Self>) {
        while let Some(write) = self
            .writes
            .first_entry()
            .filter(|write| *write.key() <= upto)
        {
            let slot = write.remove();
            let batch = self.log.get(slot).cloned().unwrap_or_default();
            match self.next() {
                Some(next) => ctx.send(next, Lane::Control, &Message::Pass { slot, batch }),
                None => self.commit(slot, ctx),
            }
        }
    }

    fn on_installed(&mut self, _: Slot, (): (), _: &mut Context<'_, Self>) {}
    fn on_control(&mut self, _: Control, _: &mut Context<'_, Self>) {}

    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        for batch in core::mem::take(&mut self.inbox) {
            self.append(self.log.end(), batch, ctx);
        }
        Wake::Sleep
    }

    fn status(&self) -> Status {
        let role = match (self.id.0, self.next()) {
            (0, _) => "head",
            (_, None) => "tail",
            _ => "middle",
        };
        Status {
            role,
            committed: self.committed,
            stable: self.executed,
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        self.log.end().0 ^ (self.committed.0 << 32)
    }

    fn assert_invariants(&self) {
        assert!(self.executed <= self.committed && self.committed < self.log.end());
    }
}

#[test]
fn chain_fits_the_boundary() {
    let mut bed = Bed::<Chain>::new(4);
    for number in 1..=8 {
        bed.submit(number as u16 % 4, number);
    }
    bed.settle();
    for id in 0..4 {
        assert_eq!(bed.executed[id].len(), 8);
        assert_eq!(bed.executed[id], bed.executed[0]);
        assert_eq!(bed.done[id].len(), 2, "each frontend has its replies");
        assert_eq!(bed.routes[id], [0, 1, 2, 3].map(ReplicaId));
    }
}

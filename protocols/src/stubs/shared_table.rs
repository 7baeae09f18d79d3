//! A shared table: every member multicasts its own batches, in rounds, and tells by one-sided
//! writes into its row how much it has received. What all rows cover is delivered.
//!
//! ```text
//!   row of member i:   received from 0 | received from 1 | received from 2 | …
//!   round r, sender s: slot = r * members + s + 1, delivered once every row's word s > r
//! ```

use super::Bed;
use alloc::{vec, vec::Vec};
use quintet_replica::{
    BatchId, BatchView, Bytes, CommandTime, Context, Control, DecodeError, Info, Lane, Level, Peer,
    PersistId, Protocol, Reader, Recovered, ReplicaId, ReplicaSet, Setup, Slot, Status, Wake, Wire,
    Writer,
    parts::{AttachedFrontend, RequestMessage, Taken},
};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    Request {
        batch: Bytes,
    },
    /// One round of one sender; an empty batch when it has nothing and others wait for it.
    Data {
        batch: Bytes,
    },
}

impl Wire for Message {
    fn encode(&self, writer: &mut Writer<'_>) {
        let (tag, batch) = match self {
            Self::Request { batch } => (0, batch),
            Self::Data { batch } => (1, batch),
        };
        writer.u8(tag);
        writer.blob(batch);
    }
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        let (tag, batch) = (reader.u8("tag")?, reader.blob("batch")?);
        match tag {
            0 => Ok(Self::Request { batch }),
            1 => Ok(Self::Data { batch }),
            _ => Err(DecodeError::Bad("tag")),
        }
    }
}

impl RequestMessage for Message {
    fn request(_: Level, batch: Bytes) -> Self {
        Self::Request { batch }
    }
    fn taken(&self) -> Option<(BatchId, Taken)> {
        None
    }
}

struct SharedTable {
    id: ReplicaId,
    members: usize,
    others: ReplicaSet,
    /// This member's copy of all rows; its own row is the one it may change.
    table: Vec<Vec<u64>>,
    /// What came from each sender, by round.
    received: Vec<Vec<Bytes>>,
    inbox: Vec<Bytes>,
    delivered: Slot,
}

impl SharedTable {
    fn receive(&mut self, sender: usize, batch: Bytes) {
        self.received[sender].push(batch);
    }

    /// Tells what this member has received, if it is more than its row says.
    fn publish(&mut self, ctx: &mut Context<'_, Self>) {
        let row = &mut self.table[self.id.index()];
        for (sender, received) in self.received.iter().enumerate() {
            let count = received.len() as u64;
            if row[sender] < count {
                row[sender] = count;
                ctx.put(self.others, &[(sender as u32, &[count])]);
            }
        }
    }

    fn deliver(&mut self, ctx: &mut Context<'_, Self>) {
        loop {
            let (round, sender) = (
                self.delivered.0 / self.members as u64,
                self.delivered.0 as usize % self.members,
            );
            if self.table.iter().any(|row| row[sender] <= round) {
                return;
            }
            let Some(batch) = self.received[sender].get(round as usize).cloned() else {
                return;
            };
            self.delivered = self.delivered.next();
            let own = sender == self.id.index() && BatchView::new(&batch).is_ok();
            let reply = own.then(|| (ctx.embedded(), (), None));
            ctx.execute(self.delivered, CommandTime(self.delivered.0), batch, reply);
        }
    }
}

impl Protocol for SharedTable {
    type Message = Message;
    type Promise = ();
    type Record = ();
    type Summary = ();
    type ReplyHeader = ();
    type Timer = u32;
    type Options = ();
    type Frontend = AttachedFrontend<Self>;

    const INFO: Info = Info {
        name: "shared_table_stub",
        paper: "none",
        best_at: "trying the boundary",
        tolerates: "nothing",
        stable: false,
        replicas_min: 1,
    };

    fn new(setup: Setup<()>) -> Self {
        let members = setup.epoch.members;
        Self {
            id: setup.id,
            members,
            others: setup.epoch.others(setup.id),
            table: vec![vec![0; members]; members],
            received: vec![Vec::new(); members],
            inbox: Vec::new(),
            delivered: Slot(0),
        }
    }

    fn on_start(&mut self, _: Recovered<(), (), ()>, _: &mut Context<'_, Self>) {}

    fn on_message(&mut self, from: Peer, message: Message, _: &mut Context<'_, Self>) {
        match (from, message) {
            (Peer::Frontend(_), Message::Request { batch }) => self.inbox.push(batch),
            (Peer::Replica(from), Message::Data { batch }) => self.receive(from.index(), batch),
            _ => {}
        }
    }

    fn on_put(&mut self, from: ReplicaId, offset: u32, words: &[u64], _: &mut Context<'_, Self>) {
        for (cell, word) in self.table[from.index()]
            .iter_mut()
            .skip(offset as usize)
            .zip(words)
        {
            *cell = (*cell).max(*word);
        }
    }

    fn on_timer(&mut self, _: u32, _: &mut Context<'_, Self>) {}
    fn on_persisted(&mut self, _: PersistId, _: &mut Context<'_, Self>) {}
    fn on_installed(&mut self, _: Slot, (): (), _: &mut Context<'_, Self>) {}
    fn on_control(&mut self, _: Control, _: &mut Context<'_, Self>) {}

    /// All predicates: send, fill rounds that others wait for, publish, deliver.
    fn on_idle(&mut self, ctx: &mut Context<'_, Self>) -> Wake {
        let me = self.id.index();
        for batch in core::mem::take(&mut self.inbox) {
            self.receive(me, batch.clone());
            ctx.multicast(self.others, Lane::Bulk, &Message::Data { batch });
        }
        let furthest = self.received.iter().map(Vec::len).max().unwrap_or(0);
        while self.received[me].len() < furthest {
            self.receive(me, Bytes::new());
            ctx.multicast(
                self.others,
                Lane::Bulk,
                &Message::Data {
                    batch: Bytes::new(),
                },
            );
        }
        self.publish(ctx);
        self.deliver(ctx);
        Wake::Sleep
    }

    fn status(&self) -> Status {
        let (committed, stable) = (self.delivered, self.delivered);
        Status {
            role: "member",
            committed,
            stable,
            accepted: stable,
            ..Status::default()
        }
    }

    fn digest(&self) -> u64 {
        self.table
            .iter()
            .flatten()
            .fold(self.delivered.0, |hash, word| {
                (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3)
            })
    }

    fn assert_invariants(&self) {
        for (sender, received) in self.received.iter().enumerate() {
            assert!(self.table[self.id.index()][sender] <= received.len() as u64);
        }
    }
}

#[test]
fn shared_table_fits_the_boundary() {
    let mut bed = Bed::<SharedTable>::new(3);
    for number in 1..=7 {
        bed.submit(if number < 6 { 1 } else { 2 }, number);
    }
    bed.settle();
    for id in 0..3 {
        let batches = bed.executed[id]
            .iter()
            .filter(|(_, batch)| !batch.is_empty())
            .count();
        assert_eq!(batches, 7);
        assert_eq!(bed.executed[id], bed.executed[0]);
        assert!(bed.executed[id].is_sorted_by_key(|(slot, _)| *slot));
    }
    assert_eq!(
        (bed.done[0].len(), bed.done[1].len(), bed.done[2].len()),
        (0, 5, 2)
    );
}

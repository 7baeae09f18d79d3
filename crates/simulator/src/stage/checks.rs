//! The invariants of a stage: after every execution, and at the end.

use super::{Host, KEYS, Place, Stage, neighbour::process_of};
use crate::clock::SECOND;
use crate::{
    checkers::{
        Violation,
        agreement::{Agreement, Applied},
        cells, durable,
        exactly_once::ExactlyOnce,
        monotone::Monotone,
        past_seal::PastSeal,
        state_hash::StateHash,
    },
    history::Fate,
    machine::{Executed as Recorded, Operation, Reply},
};
use quintet_replica::{CommandTime, EpochNumber, Level};

/// The knowledge of one group.
#[derive(Default)]
pub(super) struct Group {
    agreement: Agreement,
    pub once: ExactlyOnce,
    pub states: StateHash,
    pub monotone: Vec<Monotone>,
    pub past_seal: PastSeal,
}

impl Group {
    pub fn new(replicas: usize) -> Self {
        Self {
            monotone: vec![Monotone::default(); replicas],
            ..Self::default()
        }
    }

    fn executed(
        &mut self,
        replica: usize,
        epoch: EpochNumber,
        position: u64,
        time: CommandTime,
        digest: u128,
        applied: &[Applied],
    ) -> Result<(), Violation> {
        let by = process_of(replica) as u16;
        let first = self.agreement.executed(by, position, time, applied)?;
        self.past_seal.executed(by, epoch, position)?;
        self.states.before(by, position, digest)?;
        if first {
            for command in applied {
                self.once.executed(position, command)?;
            }
        }
        Ok(())
    }
}

impl Stage {
    /// Compares what a replica has executed with what the others have.
    pub(super) fn check_record(&mut self, index: usize, recorded: &[Recorded]) {
        let epoch = self.hosts[index].epoch_shown;
        let mut rest = recorded;
        while let Some((
            Recorded::Batch {
                position,
                time,
                digest,
            },
            tail,
        )) = rest.split_first()
        {
            let commands = tail.iter().map_while(|executed| match executed {
                Recorded::Command { id, number, hash } => Some(Applied {
                    id: *id,
                    number: *number,
                    hash: *hash,
                }),
                Recorded::Batch { .. } => None,
            });
            let applied: Vec<Applied> = commands.collect();
            rest = &tail[applied.len()..];
            self.say(|| {
                let numbers: Vec<u64> = applied.iter().map(|command| command.number).collect();
                format!("{index}: executes {numbers:?} at position {position}")
            });
            let checked = self
                .checked(index)
                .executed(index, epoch, *position, *time, *digest, &applied);
            self.demand(checked);
        }
    }

    /// Whether a replica was told that it is no member.
    pub fn has_left(&self, replica: usize) -> bool {
        let why = self.hosts[replica].halted.as_deref().unwrap_or_default();
        why.contains("no member any more since epoch")
    }

    /// Whether all replicas are up and have executed equally far, in the neighbour's group, too.
    pub fn level(&self) -> bool {
        let members = self.members();
        let own: Vec<&Host> = members.iter().map(|member| &self.hosts[*member]).collect();
        let beside: Vec<&Host> = self.hosts.beside().iter().collect();
        [own, beside].iter().all(|group| {
            let first = group.first().map(|it| it.executed().slot);
            (group.iter()).all(|it| it.node.is_some() && Some(it.executed().slot) == first)
        })
    }

    /// Heals and starts everything, and waits until all replicas have executed the same and no
    /// client waits any more.
    ///
    /// # Panics
    /// When that does not come.
    pub fn recover(&mut self) {
        self.weather(0, 0);
        self.heal();
        for host in self.members() {
            self.hold_disk(host, false);
            if self.hosts[host].paused {
                self.resume(host);
            }
            if self.hosts[host].node.is_none() && self.hosts[host].halted.is_none() {
                self.start(host);
            }
        }
        for a in 0..self.places() {
            for b in 0..a {
                self.connect(b, a);
            }
        }
        self.until(
            "everything is answered and all replicas are level",
            |stage| stage.quiet() && stage.level(),
        );
    }

    /// The end of every play: everything heals, new commands commit, reads everywhere see them,
    /// and the whole history makes sense.
    ///
    /// # Panics
    /// With what does not hold.
    pub fn final_phase(&mut self) {
        self.recover();
        for host in self.members() {
            let client = self.client(Place::At(host));
            self.ask(client, Level::Ordered, 2, Operation::Add(1));
        }
        self.until("new commands commit at every replica", |stage| {
            stage.quiet() && stage.level()
        });
        for host in self.members() {
            let client = self.client(Place::At(host));
            let reads: Vec<_> = (0..KEYS).map(|key| (key, Operation::Read)).collect();
            self.invoke(client, Level::Linearizable, &reads);
        }
        self.until("every replica answers reads", |stage| {
            stage.quiet() && stage.level()
        });
        self.neighbour_answers();
        let checked = self.verdict();
        self.demand(checked);
        self.assert_sound();
        for index in self.members() {
            let host = &self.hosts[index];
            assert!(
                host.halted.is_none(),
                "replica {index} halted: {:?}",
                host.halted
            );
        }
    }

    /// Whether the history makes sense as far as it has come.
    ///
    /// # Errors
    /// With what does not hold.
    pub fn verdict(&self) -> Result<(), Violation> {
        let mut operations = self.history.operations().to_vec();
        // Reads that may be stale may see anything older.
        for number in &self.stale {
            operations[*number].fate = Fate::Open;
        }
        let operations = &operations;
        let once = &self.own.once;
        cells::check(operations, |number| once.position(number))?;
        once.check_failed(operations)?;
        let standing: Vec<(u16, u64)> = (self.hosts.iter().enumerate())
            .filter(|(_, host)| host.node.is_some())
            .map(|(index, host)| (index as u16, host.executed().position.0))
            .collect();
        if self.quiet() && self.level() {
            durable::check(operations, once, &standing)?;
        }
        Ok(())
    }

    /// Writes and reads at all replicas that run and answer, one after the other, each answered before the
    /// next; every read must see the write before it.
    pub fn talk(&mut self, rounds: u32) {
        for round in 0..rounds {
            for host in self.answering() {
                let client = self.client(Place::At(host));
                let key = round % KEYS;
                let operation = match key % 3 {
                    0 => Operation::Write(self.history.operations().len() as u64 + 1),
                    1 => Operation::Append(u64::from(round) + 1),
                    _ => Operation::Add(1),
                };
                let write = self.ask(client, Level::Ordered, key, operation);
                self.until("a write is answered", |stage| stage.answered(&[write]));
                let read = self.ask(client, Level::Linearizable, key, Operation::Read);
                self.until("a read is answered", |stage| stage.answered(&[read]));
                if let (Operation::Write(value), Some(Reply::Value(_, seen))) =
                    (operation, self.reply(read))
                {
                    assert_eq!(value, seen, "a read sees the write before it");
                }
            }
        }
        debug_assert!(self.now < 3600 * SECOND, "sessions live as long as a play");
    }

    /// A steady load from `clients` clients at all running replicas in turn, some of them remote:
    /// each invokes `count` operations, all at once, and the call does not wait for them.
    pub fn load(&mut self, clients: usize, count: usize) -> Vec<usize> {
        let up = self.answering();
        let mut numbers = Vec::new();
        for index in 0..clients {
            let place = match index % 3 {
                2 => Place::Remote,
                _ => Place::At(up[index % up.len()]),
            };
            let client = self.client(place);
            for _ in 0..count {
                let key = self.random.below(KEYS.into()) as u32;
                let value = self.history.operations().len() as u64 + 1;
                let operation = match key % 3 {
                    0 => Operation::Write(value),
                    1 => Operation::Append(value),
                    _ => Operation::Add(value),
                };
                numbers.push(self.ask(client, Level::Ordered, key, operation));
            }
            let key = self.random.below(KEYS.into()) as u32;
            numbers.push(self.ask(client, Level::Linearizable, key, Operation::Read));
        }
        numbers
    }
}

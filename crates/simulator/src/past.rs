//! Reads of the past by clients of a world, and what they must have been answered.
//!
//! ```text
//!   turn of a client ──► QUINTET.AT t GET k ──► Asking: read, tick, wait ──► reply
//!   at the end: the agreed order ──► a machine that keeps no past, stopped at t ──► GET k ◄──► reply
//!
//!   QUINTET.DIFF from t ◄──► the same of a machine that was never stopped, restored or rolled back
//! ```
//!
//! They are no part of the history. The answer for a time must be permanently the same, at each
//! replica and behind any crash.

use crate::{
    checkers::Violation,
    clock::MILLISECOND,
    drawing::Mix,
    event::Event,
    model::Call,
    random::Random,
    service::{Service, add, key_name},
    workload::{Home, Request},
    world::{Shape, World},
};
use quintet_replica::{
    At, CommandId, CommandTime, Level, Position, RequestKind, RequestStatus, SessionId,
    StateMachine,
    past::{self, Asking, Step},
};
use quintet_store::{RequestBuilder, Store, StoreOptions};

/// Of 1,000 turns of clients, that many ask about the past.
const ASKED: u64 = 250;
/// No more reads are asked for in a world.
const ASKS_MAX: usize = 120;
/// How far back they go, in nanoseconds.
const BACK: u64 = 3_000 * MILLISECOND;
/// A read that would have to wait longer is given up.
const WAIT_MAX: u64 = 500 * MILLISECOND;
/// The clock of the worlds' beginning.
const EPOCH: u64 = 1_700_000_000_000_000_000;
/// The bytes that are kept where much is kept.
const MUCH: u64 = 1 << 30;

/// Of 1,000 reads, that many ask what changed between two times.
const DIFFS: u64 = 250;
/// In worlds that change how much is kept, one in this number of writes does.
const RETAINS: u64 = 12;

/// The reads of a key.
const LOOKS: [&str; 3] = ["DUMP", "TYPE", "PEXPIRETIME"];

/// How much of the past the stores of a world keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    Nothing,
    Little,
    All,
    /// Writes change it.
    Changing,
}

impl Mix {
    /// How much a world keeps follows from the mix of its clients.
    const fn keeps(&self) -> Keeps {
        match (
            self.service,
            (self.transactions + self.stale + self.watches) / 50 % 4,
        ) {
            (Service::Registers, _) | (_, 1) => Keeps::Nothing,
            (_, 2) => Keeps::Changing,
            (_, 3) => Keeps::Little,
            _ => Keeps::All,
        }
    }

    /// The machine of a replica, with these limits of a store.
    pub fn machine_with(&self, shape: &Shape, options: StoreOptions) -> Box<dyn StateMachine> {
        let (seconds, bytes) = match self.keeps() {
            Keeps::Nothing => return self.service.machine_with(shape, options),
            Keeps::Little => (1, 20_000),
            Keeps::All | Keeps::Changing => (0, MUCH),
        };
        let mut store = Store::new(options);
        let (seconds, bytes) = (u64::to_string(&seconds), u64::to_string(&bytes));
        let words = ["QUINTET.RETAIN", "SECONDS", &seconds, "BYTES", &bytes];
        let retain = command(&words);
        store.apply(&At::default(), &retain, &mut Vec::new());
        Box::new(store)
    }

    /// A command behind those of a write: now and then it says how much is kept from there on.
    pub fn retains(&self, number: u64, call: &Call) -> Option<[&'static str; 5]> {
        let is_drawn = self.keeps() == Keeps::Changing && number % RETAINS == 3;
        if !is_drawn || call.is_read() || call.name() == b"WATCH" {
            return None;
        }
        let (seconds, bytes) =
            [("0", "0"), ("0", "1073741824"), ("1", "20000")][(number / RETAINS % 3) as usize];
        Some(["QUINTET.RETAIN", "SECONDS", seconds, "BYTES", bytes])
    }
}

fn command(words: &[&str]) -> Vec<u8> {
    let mut builder = RequestBuilder::new();
    add(&mut builder, words);
    builder.into_bytes()
}

/// A read of the past.
#[derive(Debug)]
struct Ask {
    asking: Asking,
    key: String,
    look: &'static str,
    /// It asks for what changed since this time, in microseconds.
    from: Option<u64>,
    reply: Option<Vec<u8>>,
}

impl Ask {
    fn command(&self) -> Vec<u8> {
        let micros = format!("us:{}", self.asking.time().0 / 1000);
        match self.from {
            Some(from) => command(&["QUINTET.DIFF", &format!("us:{from}"), &micros]),
            None => command(&["QUINTET.AT", &micros, self.look, &self.key]),
        }
    }
}

/// See the module.
pub(crate) struct PastReads {
    random: Random,
    asks: Vec<Ask>,
}

impl PastReads {
    pub const fn new(random: Random) -> Self {
        Self {
            random,
            asks: Vec::new(),
        }
    }

    /// The payload of a request of one of the reads.
    pub fn payload(&self, request: &Request) -> Vec<u8> {
        if request.kind == RequestKind::Tick {
            return past::CLOSING_TICK.to_vec();
        }
        let ask = &self.asks[request.id.sequence as usize];
        past::payload(ask.asking.time(), &ask.command())
    }
}

impl World {
    /// The client may ask about the past.
    pub fn ask_about_past(&mut self, index: usize) {
        let reads = &mut self.past;
        if self.mix.keeps() == Keeps::Nothing
            || reads.asks.len() >= ASKS_MAX
            || !reads.random.chance(ASKED)
        {
            return;
        }
        // Mostly times that are not closed, or not everywhere.
        let near = reads.random.chance(600);
        let back = reads
            .random
            .below(if near { 20 * MILLISECOND } else { BACK });
        let ahead = reads.random.below(5 * MILLISECOND);
        let micros = (EPOCH + self.now + ahead).saturating_sub(back) / 1000;
        let key = reads.random.below(u64::from(self.shape.keys)) as u32;
        let from = (reads.random.chance(DIFFS))
            .then(|| micros.saturating_sub(reads.random.below(BACK) / 1000));
        reads.asks.push(Ask {
            asking: Asking::new(CommandTime(micros * 1000)),
            key: key_name(key),
            look: LOOKS[reads.random.index(LOOKS.len())],
            from,
            reply: None,
        });
        let ask = reads.asks.len() - 1;
        let step = reads.asks[ask].asking.begin();
        self.take_past_step(index, ask, step);
    }

    fn take_past_step(&mut self, index: usize, ask: usize, step: Step) {
        let session = SessionId::default();
        let sequence = ask as u64;
        let mut request = Request {
            client: index as u16,
            number: None,
            id: CommandId { session, sequence },
            open: 0,
            started: 0,
            kind: RequestKind::Past,
        };
        let level = match step {
            Step::Read(level) => level,
            Step::Tick => {
                request.kind = RequestKind::Tick;
                Level::Ordered
            }
            Step::Wait(time) if time <= WAIT_MAX => {
                let (client, ask) = (index as u16, ask as u32);
                return self
                    .queue
                    .push(self.now + time, Event::Past { client, ask });
            }
            Step::Wait(_) | Step::Missing => return,
        };
        match self.clients[index].home {
            Home::Server { node, .. } => self.give_requests(node, level, vec![request]),
            Home::Remote(_) => self.submit_remote(index, level, vec![request]),
            Home::Nowhere => {}
        }
    }

    /// A read of the past has waited.
    pub fn continue_past(&mut self, index: usize, ask: usize) {
        let step = self.past.asks[ask].asking.on_waited(EPOCH + self.now);
        self.take_past_step(index, ask, step);
    }

    /// A request of a read of the past was answered.
    pub fn on_past_result(&mut self, request: &Request, status: RequestStatus, reply: &[u8]) {
        let index = usize::from(request.client);
        let place = request.id.sequence as usize;
        let ask = &mut self.past.asks[place];
        if ask.reply.is_some() {
            return;
        }
        let step = match (request.kind, status) {
            (RequestKind::Tick, RequestStatus::Done) => ask.asking.on_tick(),
            (RequestKind::Past, RequestStatus::Done) => {
                let branch = match ask.asking.ticked() {
                    true => "past: closed by a tick",
                    false => "past: closed",
                };
                *self.branches.entry(branch).or_default() += 1;
                ask.reply = Some(reply.to_vec());
                return;
            }
            (RequestKind::Past, status) => match ask.asking.on_read(status, EPOCH + self.now) {
                Some(step) => step,
                None => return,
            },
            _ => return,
        };
        self.take_past_step(index, place, step);
    }

    /// Answers to reads of the past are those of the agreed order.
    pub fn check_past(&self) -> Result<(), Violation> {
        let mut asks: Vec<&Ask> = self.past.asks.iter().collect();
        asks.retain(|ask| ask.reply.is_some());
        asks.sort_by_key(|ask| ask.asking.time());
        let mut asks = asks.into_iter().peekable();
        let mut machine = self.mix.service.machine(&self.shape);
        let mut kept = self.mix.machine_with(&self.shape, StoreOptions::default());
        let all = self.mix.keeps() == Keeps::All;
        let mut look = Vec::new();
        // A hole in the order: what was at later times cannot be known.
        for position in 1.. {
            let Some((time, commands)) = self.agreement.at(position) else {
                return Ok(());
            };
            while let Some(ask) = asks.next_if(|ask| ask.asking.time() < time) {
                let at = At {
                    position: Position(position),
                    time: ask.asking.time(),
                    id: CommandId::default(),
                };
                look.clear();
                if ask.from.is_some() {
                    kept.query_at(&at, &ask.command(), &mut look);
                } else {
                    machine.tick(&at);
                    machine.query(&at, &command(&[ask.look, &ask.key]), &mut look);
                }
                let told = ask.reply.as_deref().unwrap_or_default();
                if told != look && (all || !told.starts_with(b"-NOHISTORY")) {
                    let what = match ask.from {
                        Some(from) => format!("the difference since us:{from}"),
                        None => format!("{} {}", ask.look, ask.key),
                    };
                    return Err(Violation::new(
                        "undo",
                        format!(
                            "{what} at {} was answered {}, it was {}",
                            ask.asking.time().0,
                            told.escape_ascii(),
                            look.escape_ascii()
                        ),
                    ));
                }
            }
            let mut at = At {
                position: Position(position),
                time,
                id: CommandId::default(),
            };
            machine.tick(&at);
            kept.tick(&at);
            for command in commands {
                at.id = command.id;
                let payload = self.payload(command.number);
                machine.apply(&at, &payload, &mut Vec::new());
                kept.apply(&at, &payload, &mut Vec::new());
            }
        }
        Ok(())
    }
}

//! A fair-access exchange (Nezha §9): a price-time matching engine on three replicas, ordered by
//! deadlines. Orders on one symbol are matched in the order in which they were submitted, wherever
//! they came in, as well as synchronised clocks allow; each that was not is counted.
//!
//! ```text
//!   participants ──order {symbol, side, price, quantity, submitted}──► Cluster ──► Exchange
//!        ▲                                                              book per symbol:
//!        └──────── fills, what rests, and whether it was overtaken ──── best price, then first come
//! ```
//!
//! `cargo run --release --example matching_engine [PROTOCOL …]` compares protocols, and one replica
//! alone.

use quintet::{
    Access, At, Cluster, DigestBegun, Error, FootprintVisitor, RestoreError, SnapshotProgress,
    StateMachine,
};
use std::{
    collections::{BTreeMap, VecDeque},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Buy,
    Sell,
}

/// A participant's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    symbol: u16,
    side: Side,
    price: u32,
    quantity: u32,
    participant: u32,
    /// When it was submitted, in nanoseconds since the Unix epoch.
    submitted: u64,
}

const ORDER_BYTES: usize = 23;

impl Order {
    fn encode(&self) -> [u8; ORDER_BYTES] {
        let mut out = [0; ORDER_BYTES];
        out[..2].copy_from_slice(&self.symbol.to_le_bytes());
        out[2] = u8::from(self.side == Side::Sell);
        out[3..7].copy_from_slice(&self.price.to_le_bytes());
        out[7..11].copy_from_slice(&self.quantity.to_le_bytes());
        out[11..15].copy_from_slice(&self.participant.to_le_bytes());
        out[15..].copy_from_slice(&self.submitted.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let order = Self {
            symbol: reader.u32(2)? as u16,
            side: match reader.u32(1)? {
                0 => Side::Buy,
                1 => Side::Sell,
                _ => return None,
            },
            price: reader.u32(4)?,
            quantity: reader.u32(4)?,
            participant: reader.u32(4)?,
            submitted: reader.u64()?,
        };
        (reader.0.is_empty() && order.quantity > 0).then_some(order)
    }
}

/// Numbers from bytes, lowest byte first.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self, bytes: usize) -> Option<u32> {
        let mut word = [0; 4];
        word.get_mut(..bytes)?.copy_from_slice(self.take(bytes)?);
        Some(u32::from_le_bytes(word))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }
}

/// The outcome of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Report {
    /// One on the same symbol that was submitted later has been matched before it.
    overtaken: bool,
    /// The remaining quantity in the book.
    resting: u32,
    /// Price, quantity and the other participant of each trade.
    fills: Vec<(u32, u32, u32)>,
}

impl Report {
    fn encode_into(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.overtaken));
        out.extend_from_slice(&self.resting.to_le_bytes());
        for (price, quantity, participant) in &self.fills {
            for number in [price, quantity, participant] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let mut report = Self {
            overtaken: reader.u32(1)? == 1,
            resting: reader.u32(4)?,
            fills: Vec::new(),
        };
        while !reader.0.is_empty() {
            let fill = (reader.u32(4)?, reader.u32(4)?, reader.u32(4)?);
            report.fills.push(fill);
        }
        Some(report)
    }
}

/// Participant and quantity, at one price: first come, first served.
type Level = VecDeque<(u32, u32)>;

/// The orders that wait for a counterpart on one symbol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Book {
    buys: BTreeMap<u32, Level>,
    sells: BTreeMap<u32, Level>,
    /// When the newest order that was matched here had been submitted.
    newest: u64,
    orders: u64,
    overtaken: u64,
}

impl Book {
    fn take(&mut self, order: &Order) -> Report {
        let mut report = Report {
            overtaken: order.submitted < self.newest,
            resting: order.quantity,
            fills: Vec::new(),
        };
        self.newest = self.newest.max(order.submitted);
        self.orders += 1;
        self.overtaken += u64::from(report.overtaken);
        while report.resting > 0 {
            let best = match order.side {
                Side::Buy => self.sells.first_entry(),
                Side::Sell => self.buys.last_entry(),
            };
            let Some(mut level) = best.filter(|level| match order.side {
                Side::Buy => *level.key() <= order.price,
                Side::Sell => *level.key() >= order.price,
            }) else {
                break;
            };
            let price = *level.key();
            if let Some((participant, waiting)) = level.get_mut().front_mut() {
                let traded = report.resting.min(*waiting);
                report.resting -= traded;
                *waiting -= traded;
                report.fills.push((price, traded, *participant));
                if *waiting == 0 {
                    level.get_mut().pop_front();
                }
            }
            if level.get().is_empty() {
                level.remove();
            }
        }
        if report.resting > 0 {
            let side = match order.side {
                Side::Buy => &mut self.buys,
                Side::Sell => &mut self.sells,
            };
            let level = side.entry(order.price).or_default();
            level.push_back((order.participant, report.resting));
        }
        report
    }
}

/// The replicated state: a book per symbol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Exchange {
    books: BTreeMap<u16, Book>,
    restored: Vec<u8>,
}

impl Exchange {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (symbol, book) in &self.books {
            out.extend_from_slice(&symbol.to_le_bytes());
            for number in [book.newest, book.orders, book.overtaken] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            for side in [&book.buys, &book.sells] {
                out.extend_from_slice(&(side.len() as u32).to_le_bytes());
                for (price, level) in side {
                    out.extend_from_slice(&price.to_le_bytes());
                    out.extend_from_slice(&(level.len() as u32).to_le_bytes());
                    for (participant, quantity) in level {
                        out.extend_from_slice(&participant.to_le_bytes());
                        out.extend_from_slice(&quantity.to_le_bytes());
                    }
                }
            }
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<BTreeMap<u16, Book>> {
        let mut reader = Reader(bytes);
        let mut books = BTreeMap::new();
        while !reader.0.is_empty() {
            let symbol = reader.u32(2)? as u16;
            let mut book = Book {
                newest: reader.u64()?,
                orders: reader.u64()?,
                overtaken: reader.u64()?,
                ..Book::default()
            };
            for side in [&mut book.buys, &mut book.sells] {
                for _ in 0..reader.u32(4)? {
                    let price = reader.u32(4)?;
                    let level: &mut Level = side.entry(price).or_default();
                    for _ in 0..reader.u32(4)? {
                        level.push_back((reader.u32(4)?, reader.u32(4)?));
                    }
                }
            }
            books.insert(symbol, book);
        }
        Some(books)
    }
}

impl StateMachine for Exchange {
    fn apply(&mut self, _: &At, command: &[u8], reply: &mut Vec<u8>) {
        // A command that is no order has an empty answer.
        if let Some(order) = Order::decode(command) {
            let book = self.books.entry(order.symbol).or_default();
            book.take(&order).encode_into(reply);
        }
    }

    /// How many orders were matched, and how many of them were overtaken.
    fn query(&self, _: &At, _: &[u8], reply: &mut Vec<u8>) {
        let sum = |of: fn(&Book) -> u64| self.books.values().map(of).sum::<u64>();
        for number in [sum(|book| book.orders), sum(|book| book.overtaken)] {
            reply.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// Orders on different symbols have nothing to do with each other.
    fn footprint(&self, command: &[u8], visit: &mut dyn FootprintVisitor) {
        match Order::decode(command) {
            Some(order) => visit.key(u64::from(order.symbol) + 1, Access::Write),
            None => visit.everything(Access::Read),
        }
    }

    fn snapshot_chunk(&mut self, out: &mut Vec<u8>, _: usize) -> SnapshotProgress {
        out.extend_from_slice(&self.encode());
        SnapshotProgress::Done
    }

    fn begin_restore(&mut self) {
        self.restored.clear();
    }

    fn restore_chunk(&mut self, chunk: &[u8]) -> Result<(), RestoreError> {
        self.restored.extend_from_slice(chunk);
        Ok(())
    }

    fn finish_restore(&mut self) -> Result<(), RestoreError> {
        let bytes = std::mem::take(&mut self.restored);
        let broken = || RestoreError("these are no books".to_owned());
        self.books = Self::decode(&bytes).ok_or_else(broken)?;
        Ok(())
    }

    fn digest(&self) -> u128 {
        let spread = |hash: u128, byte: &u8| {
            (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        };
        self.encode().iter().fold(1, spread)
    }

    fn begin_digest(&mut self) -> DigestBegun {
        DigestBegun::Done(self.digest())
    }
}

/// The result of one protocol.
#[derive(Clone, Debug)]
struct Outcome {
    per_second: f64,
    median: Duration,
    slow: Duration,
    orders: u64,
    overtaken: u64,
    trades: u64,
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// Participants that trade a few symbols around one price, each with one order in progress.
fn trade(cluster: &Cluster, participants: u32, orders: u32) -> Result<Outcome, Error> {
    let begun = Instant::now();
    let one = |participant: u32| -> Result<(Vec<Duration>, u64), Error> {
        let (mut took, mut trades) = (Vec::new(), 0);
        let mut draw = u64::from(participant) * 2 + 1;
        for _ in 0..orders {
            draw = draw
                .wrapping_mul(0x5851_f42d_4c95_7f2d)
                .wrapping_add(0x1405_7b7e);
            let order = Order {
                symbol: (draw >> 40) as u16 % 100,
                side: if draw >> 63 == 0 {
                    Side::Buy
                } else {
                    Side::Sell
                },
                price: 1_000 + (draw >> 33) as u32 % 20,
                quantity: 1 + (draw >> 56) as u32 % 100,
                participant,
                submitted: now(),
            };
            let sent = Instant::now();
            let report = Report::decode(&cluster.apply(&order.encode())?);
            took.push(sent.elapsed());
            trades += report.map_or(0, |report| report.fills.len() as u64);
        }
        Ok((took, trades))
    };
    let all = thread::scope(|scope| {
        let all: Vec<_> = (0..participants)
            .map(|participant| scope.spawn(move || one(participant)))
            .collect();
        let ended = all
            .into_iter()
            .map(|one| one.join().unwrap_or(Err(Error::Stopped)));
        ended.collect::<Result<Vec<_>, Error>>()
    })?;
    let elapsed = begun.elapsed();
    let trades = all.iter().map(|(_, trades)| trades).sum();
    let mut took: Vec<Duration> = all.into_iter().flat_map(|(took, _)| took).collect();
    took.sort_unstable();
    let at = |part: usize| {
        took.get(took.len() * part / 100)
            .copied()
            .unwrap_or_default()
    };
    let (orders, overtaken) = counted(&cluster.query(b"")?);
    Ok(Outcome {
        per_second: took.len() as f64 / elapsed.as_secs_f64(),
        median: at(50),
        slow: at(99),
        orders,
        overtaken,
        trades,
    })
}

fn counted(reply: &[u8]) -> (u64, u64) {
    let mut reader = Reader(reply);
    let mut next = || reader.u64().unwrap_or(0);
    (next(), next())
}

fn main() -> Result<(), Error> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let protocols = match named.is_empty() {
        true => vec!["nezha".to_owned(), "multipaxos".to_owned()],
        false => named,
    };
    println!("                          orders/s   median us      p99 us   overtaken   trades");
    let alone = core::iter::once(("multipaxos".to_owned(), 1));
    for (protocol, replicas) in alone.chain(protocols.into_iter().map(|name| (name, 3))) {
        let cluster = Cluster::local(replicas)
            .protocol(protocol.as_str())
            .start(Exchange::default())?;
        let found = trade(&cluster, 48, 400)?;
        let what = match replicas {
            1 => "unreplicated".to_owned(),
            _ => protocol,
        };
        println!(
            "{what:<24} {:>9.0} {:>11} {:>11} {:>9.2} % {:>8}",
            found.per_second,
            found.median.as_micros(),
            found.slow.as_micros(),
            found.overtaken as f64 * 100.0 / found.orders.max(1) as f64,
            found.trades,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(side: Side, price: u32, quantity: u32, submitted: u64) -> Order {
        Order {
            symbol: 7,
            side,
            price,
            quantity,
            participant: submitted as u32,
            submitted,
        }
    }

    fn taken(exchange: &mut Exchange, order: Order) -> Report {
        let mut reply = Vec::new();
        exchange.apply(&At::default(), &order.encode(), &mut reply);
        Report::decode(&reply).expect("a report")
    }

    #[test]
    fn best_price_comes_first_and_at_one_price_the_first_that_came() {
        let mut exchange = Exchange::default();
        for (price, quantity, submitted) in [(102, 5, 1), (101, 5, 2), (101, 5, 3)] {
            let report = taken(&mut exchange, order(Side::Sell, price, quantity, submitted));
            assert_eq!((report.resting, report.fills.len()), (quantity, 0));
        }
        let report = taken(&mut exchange, order(Side::Buy, 101, 12, 4));
        assert_eq!(report.fills, [(101, 5, 2), (101, 5, 3)]);
        assert_eq!(report.resting, 2);
        let report = taken(&mut exchange, order(Side::Sell, 100, 1, 5));
        assert_eq!(report.fills, [(101, 1, 4)], "at the price of who waited");
    }

    #[test]
    fn overtaken_reader_is_notified() {
        let mut exchange = Exchange::default();
        assert!(!taken(&mut exchange, order(Side::Buy, 1, 1, 10)).overtaken);
        assert!(taken(&mut exchange, order(Side::Buy, 1, 1, 9)).overtaken);
        let mut other = order(Side::Buy, 1, 1, 8);
        other.symbol = 8;
        assert!(!taken(&mut exchange, other).overtaken, "another book");
        let mut reply = Vec::new();
        exchange.query(&At::default(), b"", &mut reply);
        assert_eq!(counted(&reply), (3, 1));
    }

    #[test]
    fn snapshot_holds_all_books_and_no_part_of_one_is_taken_for_it() {
        let mut exchange = Exchange::default();
        for number in 1..200 {
            let mut next = order(Side::Buy, 90 + number % 20, number, u64::from(number));
            next.symbol = (number % 5) as u16;
            next.side = if number % 3 == 0 {
                Side::Sell
            } else {
                Side::Buy
            };
            taken(&mut exchange, next);
        }
        let bytes = exchange.encode();
        let mut copy = Exchange::default();
        copy.restore_chunk(&bytes[..100]).expect("bytes");
        copy.restore_chunk(&bytes[100..]).expect("bytes");
        copy.finish_restore().expect("books");
        assert_eq!(copy, exchange);
        assert_eq!(copy.digest(), exchange.digest());
        copy.restore_chunk(&bytes[..bytes.len() - 1])
            .expect("bytes");
        assert!(copy.finish_restore().is_err());
    }

    #[test]
    fn handshake_rejects_any_bytes_without_panic() {
        let mut exchange = Exchange::default();
        let good = order(Side::Buy, 1, 1, 1).encode();
        let mut side = good;
        side[2] = 9;
        let mut nothing = good;
        nothing[7..11].fill(0);
        for bad in [&good[..22], &side, &nothing, b"".as_slice()] {
            let mut reply = Vec::new();
            exchange.apply(&At::default(), bad, &mut reply);
            assert!(reply.is_empty());
        }
        assert_eq!(exchange, Exchange::default());
    }

    /// Every order is matched once, the caller that asks for it, and a replica that stops costs
    /// nothing.
    #[test]
    fn three_replicas_trade_as_one_would() {
        let mut cluster = Cluster::local(3)
            .protocol("nezha")
            .deadline(Duration::from_secs(60))
            .start(Exchange::default())
            .expect("a cluster");
        trade(&cluster, 4, 20).expect("orders are matched");
        cluster.stop(2);
        let found = trade(&cluster, 4, 20).expect("two of three continue");
        assert_eq!(found.orders, 160);
        assert!(found.overtaken <= found.orders);
    }
}

//! The attacks, one function each: a round of it, repeated until told to stop.

use super::{
    super::{
        client::{Connection, Value, encode},
        cluster::PASSWORD,
        network::Addresses,
    },
    Attack, Tally, add, push,
    raw::{Raw, auth},
};
use quintet_replica::checksum;
use quintet_simulator::Random;
use quintet_store::sealed_dump;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const MIB: usize = 1 << 20;
/// The longest value, the longest command, and what is ordered as one request, as configured by
/// default; what the room of a peer's queue was once left to a batch stands beside them.
const VALUE_MAX: usize = 64 * MIB;
const COMMAND_MAX: usize = 128 * MIB;
const REQUEST_MAX: usize = MIB;
const BATCH_MAX: usize = 4 * MIB;
const QUEUE_ROOM: usize = 67_108_650;
const KEY_MAX: usize = 64 << 10;
/// The longest name of a client.
const NAME_MAX: usize = 1 << 10;
/// Open transactions of one attacker.
const TRANSACTIONS: usize = 24;

/// How long an attacker waits for an answer.
const ANSWER: Duration = Duration::from_secs(10);
const CONNECT: Duration = Duration::from_secs(5);
/// How long it holds what it has opened before it begins again.
const HOLD: Duration = Duration::from_secs(3);
/// Connections of all attackers together.
const IDLE: u64 = 10_000;
/// That many that are not accepted are enough.
const REFUSED_MAX: u64 = 30;
/// Descriptors that the torture needs beside them.
const SPARE: u64 = 700;

/// One of those who attack.
#[derive(Debug)]
pub struct Attacker {
    number: u16,
    targets: Vec<Addresses>,
    random: Random,
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
}

impl Attacker {
    /// An attacker that does nothing yet.
    #[must_use]
    pub fn new(
        number: u16,
        targets: Vec<Addresses>,
        seed: u64,
        stop: Arc<AtomicBool>,
        tally: Arc<Tally>,
    ) -> Self {
        Self {
            number,
            targets,
            random: Random::new(seed).fork(70_000 + u64::from(number)),
            stop,
            tally,
        }
    }

    /// Attacks until told to stop.
    pub fn run(mut self, attack: Attack) {
        let mut round = usize::from(self.number);
        while !self.stopped() {
            let target = self.targets[round % self.targets.len()];
            match attack {
                Attack::Giants => self.giants(target.redis),
                Attack::Pipelines => self.pipelines(target.redis),
                Attack::Idle => self.idle(),
                Attack::Slow => self.slow(target.redis),
                Attack::Garbage => self.garbage(target.redis),
                Attack::Colliding => self.colliding(target.redis),
                Attack::Long => self.long(target.redis),
                Attack::Transactions => self.transactions(target.redis),
                Attack::Restore => self.restore(target.redis),
                Attack::Strangers => self.strangers(target.peer),
                Attack::Passwords => self.passwords(target.redis),
                Attack::Admin => self.admin(target.admin),
            }
            add(&self.tally.rounds);
            round += 1;
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn complain(&self, what: String) {
        push(&self.tally.complaints, what);
    }

    fn hold(&self) {
        let end = Instant::now() + HOLD;
        while Instant::now() < end && !self.stopped() {
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn connect(&self, address: SocketAddr) -> Option<Connection> {
        match Connection::open(address, PASSWORD, CONNECT) {
            Ok(mut connection) => {
                connection.stop_with(Arc::clone(&self.stop));
                add(&self.tally.connections);
                Some(connection)
            }
            Err(_) => {
                add(&self.tally.dropped);
                thread::sleep(Duration::from_millis(20));
                None
            }
        }
    }

    fn raw(&self, address: SocketAddr) -> Option<Raw> {
        match Raw::open(address) {
            Ok(raw) => {
                add(&self.tally.connections);
                Some(raw)
            }
            Err(_) => {
                add(&self.tally.dropped);
                thread::sleep(Duration::from_millis(20));
                None
            }
        }
    }

    /// Sends and waits for that many answers.
    fn ask(&self, connection: &mut Connection, bytes: &[u8], count: u64) -> io::Result<Vec<Value>> {
        // A request that was rejected half-way may have been answered all the same.
        let sent = connection.send(bytes);
        let deadline = Instant::now() + ANSWER;
        let mut answers = Vec::new();
        for _ in 0..count {
            add(&self.tally.sent);
            match connection.reply(deadline) {
                Ok(answer) => {
                    add(match answer {
                        Value::Error(_) => &self.tally.refused,
                        _ => &self.tally.answered,
                    });
                    answers.push(answer);
                }
                Err(error) => {
                    add(&self.tally.dropped);
                    return Err(sent.err().unwrap_or(error));
                }
            }
        }
        Ok(answers)
    }

    fn command(&self, connection: &mut Connection, words: &[&[u8]]) -> io::Result<Value> {
        let mut out = Vec::new();
        encode(&mut out, words);
        let answers = self.ask(connection, &out, 1)?;
        answers
            .into_iter()
            .next()
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// A command of this size is carried out or refused permanently; what is beyond the limits may
    /// also end the connection.
    fn definite(&self, address: SocketAddr, what: &str, within: bool, words: &[&[u8]]) -> bool {
        let Some(mut connection) = self.connect(address) else {
            return false;
        };
        match self.command(&mut connection, words) {
            Ok(Value::Error(error)) => {
                let word = error.split(' ').next().unwrap_or_default();
                if ["UNCERTAIN", "CLUSTERDOWN", "BUSY", "TRYAGAIN"].contains(&word) {
                    self.complain(format!("{what} was answered -{error}"));
                }
                false
            }
            Ok(_) => true,
            Err(_) if self.stopped() => false,
            Err(error) if within || error.kind() == io::ErrorKind::TimedOut => {
                self.complain(format!("{what} was not answered: {error}"));
                false
            }
            Err(_) => false,
        }
    }

    fn giants(&mut self, address: SocketAddr) {
        let mut sizes = vec![QUEUE_ROOM];
        for limit in [REQUEST_MAX, BATCH_MAX, VALUE_MAX] {
            sizes.extend([limit - 1, limit, limit + 1]);
        }
        self.random.shuffle(&mut sizes);
        let bytes = vec![b'x'; VALUE_MAX + 1];
        for size in sizes {
            if self.stopped() {
                return;
            }
            let what = format!("SET of {size} bytes");
            let within = size <= VALUE_MAX;
            if self.definite(address, &what, within, &[b"SET", b"giant", &bytes[..size]]) {
                self.has_length(address, &what, size);
            }
            self.definite(address, "DEL", true, &[b"DEL", b"giant"]);
        }
        for size in [KEY_MAX - 1, KEY_MAX, KEY_MAX + 1] {
            let what = format!("SET of a key of {size} bytes");
            self.definite(
                address,
                &what,
                size <= KEY_MAX,
                &[b"SET", &bytes[..size], b"v"],
            );
            self.definite(address, "DEL", size <= KEY_MAX, &[b"DEL", &bytes[..size]]);
        }
        for more in [-1i64, 0, 1] {
            if self.stopped() {
                return;
            }
            // Two values in one command of about the longest length.
            let rest = (COMMAND_MAX - VALUE_MAX - 20).saturating_add_signed(more as isize);
            let half = &bytes[..rest.min(VALUE_MAX)];
            let what = format!("MSET of {} bytes", VALUE_MAX + half.len());
            let words: [&[u8]; 5] = [b"MSET", b"giant", &bytes[..VALUE_MAX], b"giant2", half];
            self.definite(address, &what, false, &words);
            self.definite(address, "DEL", true, &[b"DEL", b"giant", b"giant2"]);
        }
    }

    fn has_length(&self, address: SocketAddr, what: &str, size: usize) {
        let Some(mut connection) = self.connect(address) else {
            return;
        };
        match self.command(&mut connection, &[b"STRLEN", b"giant"]) {
            Ok(Value::Number(length)) if length == size as i64 => {}
            Err(_) if self.stopped() => {}
            other => self.complain(format!("{what} was accepted; its STRLEN is {other:?}")),
        }
    }

    /// One write, replies of gibibytes.
    fn pipelines(&mut self, address: SocketAddr) {
        let large = (VALUE_MAX - 64).to_string();
        for shape in 0..3 {
            if self.stopped() {
                return;
            }
            let Some(mut raw) = self.raw(address) else {
                continue;
            };
            let mut out = auth();
            encode(&mut out, &[b"SETRANGE", b"big", large.as_bytes(), b"x"]);
            let many: Vec<&[u8]> = std::iter::once(&b"MGET"[..])
                .chain(std::iter::repeat_n(&b"big"[..], 65))
                .collect();
            match shape {
                0 => (0..65).for_each(|_| encode(&mut out, &[b"GET", b"big"])),
                1 => {
                    encode(&mut out, &[b"MULTI"]);
                    (0..65).for_each(|_| encode(&mut out, &[b"GET", b"big"]));
                    encode(&mut out, &[b"EXEC"]);
                }
                _ => encode(&mut out, &many),
            }
            add(&self.tally.sent);
            raw.write(&out, ANSWER, &self.stop);
            // Half of the rounds read nothing at all.
            let most = if self.random.chance(500) { 5 << 30 } else { 1 };
            let came = raw.read(most, HOLD, &self.stop);
            add(match (came.first, came.closed) {
                (None, _) => &self.tally.dropped,
                (_, true) => &self.tally.refused,
                _ => &self.tally.answered,
            });
        }
        if let Some(mut connection) = self.connect(address) {
            // The reply does not matter: the next round begins with a SETRANGE.
            let _ = self.command(&mut connection, &[b"DEL", b"big"]);
        }
    }

    /// Connections at all replicas, half of them in the middle of a command.
    fn idle(&mut self) {
        let limit = raise_descriptors();
        let room = limit.saturating_sub(SPARE).min(IDLE);
        if room < IDLE && self.number == 0 {
            let what = format!("idle: {room} of {IDLE} connections, for want of descriptors");
            push(&self.tally.notes, what);
        }
        let attackers = u64::from(Attack::Idle.attackers());
        let (mut open, mut refused) = (Vec::new(), 0);
        for index in 0..room / attackers {
            // One that takes no more need not be asked thousands of times.
            if self.stopped() || refused > REFUSED_MAX {
                break;
            }
            let target = self.targets[index as usize % self.targets.len()];
            let Some(mut raw) = self.raw(target.redis) else {
                refused += 1;
                continue;
            };
            let said = match index % 4 {
                0 => Vec::new(),
                1 => auth(),
                2 => b"*3\r\n$3\r\nSET\r\n$10\r\nhalf".to_vec(),
                _ => [auth(), b"*2\r\n$3\r\nGET\r\n$100\r\n".to_vec()].concat(),
            };
            add(&self.tally.sent);
            raw.write(&said, CONNECT, &self.stop);
            open.push(raw);
        }
        self.hold();
    }

    /// Replies of hundreds of mebibytes, asked for and left there.
    fn slow(&mut self, address: SocketAddr) {
        let Some(mut connection) = self.connect(address) else {
            return;
        };
        let value = vec![b's'; MIB];
        if self
            .command(&mut connection, &[b"SET", b"slow", &value])
            .is_err()
        {
            return;
        }
        let mut out = auth();
        for _ in 0..300 {
            encode(&mut out, &[b"GET", b"slow"]);
        }
        let mut open = Vec::new();
        for _ in 0..20 {
            let Some(mut raw) = self.raw(address) else {
                continue;
            };
            add(&self.tally.sent);
            raw.write(&out, CONNECT, &self.stop);
            // A few bytes now and then.
            if self.random.chance(300) {
                raw.read(10, Duration::from_millis(300), &self.stop);
            }
            open.push(raw);
        }
        self.hold();
    }

    fn garbage(&mut self, address: SocketAddr) {
        let heads: [&[u8]; 16] = [
            b"*1000000000\r\n",
            b"*-7\r\n",
            b"*3\r\n$-5\r\n",
            b"*2\r\n$3\r\nGET\r\n$536870913\r\n",
            b"*2\r\n$99999999999999999999\r\n",
            b"*1048577\r\n$1\r\na\r\n",
            b"$5\r\nhello\r\n",
            b"*1\r\n*1\r\n*1\r\n",
            b"\0\0\0\0\r\n",
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"POST /status\r\n",
            b"\"unbalanced 'quotes\r\n",
            b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n:5\r\n",
            b"\r\n\r\n\r\n",
            b"%1\r\n+a\r\n:1\r\n",
            b"QUINTET\n\x01\0\x01\0",
        ];
        for _ in 0..20 {
            if self.stopped() {
                return;
            }
            let Some(mut raw) = self.raw(address) else {
                continue;
            };
            let mut out = if self.random.chance(700) {
                auth()
            } else {
                Vec::new()
            };
            out.extend_from_slice(heads[self.random.index(heads.len())]);
            match self.random.below(4) {
                // A line that does not end.
                0 => out.extend(std::iter::repeat_n(b'z', 200_000)),
                1 => {
                    let count = self.random.below(2000);
                    out.extend((0..count).map(|_| self.random.below(256) as u8));
                }
                2 => {
                    let at = self.random.index(out.len());
                    out[at] = self.random.below(256) as u8;
                }
                _ => {}
            }
            add(&self.tally.sent);
            raw.write(&out, CONNECT, &self.stop);
            let came = raw.read(1 << 20, Duration::from_millis(50), &self.stop);
            add(match (came.closed, came.first) {
                (true, _) => &self.tally.dropped,
                (_, Some(b'-')) => &self.tally.refused,
                _ => &self.tally.answered,
            });
        }
    }

    /// Fields whose hashes are one as long as the seed is not the cluster's own.
    fn colliding(&mut self, address: SocketAddr) {
        let Some(mut connection) = self.connect(address) else {
            return;
        };
        let field = |index: u64| {
            let mut field = [7; 32];
            field[..8].copy_from_slice(&[0x36, 0x7c, 0x68, 0x1f, 0x97, 0x28, 0xfe, 0x49]);
            field[8..16].copy_from_slice(&index.to_le_bytes());
            field
        };
        let keys: [&[u8]; 3] = [b"collide:hash", b"collide:set", b"collide:zset"];
        for part in 0..40u64 {
            if self.stopped() {
                break;
            }
            let fields: Vec<_> = (part * 500..(part + 1) * 500).map(field).collect();
            let mut hash: Vec<&[u8]> = vec![b"HSET", keys[0]];
            let mut set: Vec<&[u8]> = vec![b"SADD", keys[1]];
            let mut sorted: Vec<&[u8]> = vec![b"ZADD", keys[2]];
            let mut plain: Vec<&[u8]> = vec![b"MSET"];
            for field in &fields {
                hash.extend([&field[..], b"v"]);
                set.push(field);
                sorted.extend([b"1", &field[..]]);
                plain.extend([&field[..], b"v"]);
            }
            let mut out = Vec::new();
            for words in [hash, set, sorted, plain] {
                encode(&mut out, &words);
            }
            if self.ask(&mut connection, &out, 4).is_err() {
                return;
            }
        }
        // The reply does not matter: nothing depends on it.
        let _ = self.command(&mut connection, &[&[&b"DEL"[..]], &keys[..]].concat());
    }

    fn long(&mut self, address: SocketAddr) {
        let Some(mut connection) = self.connect(address) else {
            return;
        };
        let text = |random: &mut Random| -> Vec<u8> {
            (0..20_000).map(|_| b'a' + random.below(4) as u8).collect()
        };
        let (one, other) = (text(&mut self.random), text(&mut self.random));
        let numbers: Vec<String> = (0..20_000)
            .map(|at| (at * 7919 % 20_011).to_string())
            .collect();
        let list = |command: &'static [u8], key: &'static [u8]| {
            let words: [&[u8]; 2] = [command, key];
            let mut words = words.to_vec();
            words.extend(numbers.iter().map(|number| number.as_bytes()));
            words
        };
        let glob = b"*a*a*a*a*a*a*a*b".to_vec();
        let name = vec![b'a'; 5000];
        let mut out = Vec::new();
        encode(
            &mut out,
            &[b"MSET", b"long:1", &one, b"long:2", &other, &name, b"v"],
        );
        encode(&mut out, &[b"DEL", b"long:list", b"long:set"]);
        encode(&mut out, &list(b"RPUSH", b"long:list"));
        encode(&mut out, &list(b"SADD", b"long:set"));
        if self.ask(&mut connection, &out, 4).is_err() {
            return;
        }
        let commands: [&[&[u8]]; 6] = [
            &[b"LCS", b"long:1", b"long:2", b"LEN"],
            &[
                b"SORT",
                b"long:list",
                b"BY",
                b"*",
                b"GET",
                b"*",
                b"LIMIT",
                b"0",
                b"10",
            ],
            &[b"KEYS", &glob],
            &[b"SORT", b"long:list", b"STORE", b"long:sorted"],
            &[b"SINTER", b"long:set", b"long:set", b"long:set"],
            &[b"LREM", b"long:list", b"0", b"nothing"],
        ];
        let words = commands[self.random.index(commands.len())];
        let count = self.random.between(1, 100);
        let mut out = Vec::new();
        let whole = self.random.chance(500);
        if whole {
            encode(&mut out, &[b"MULTI"]);
        }
        (0..count).for_each(|_| encode(&mut out, words));
        if whole {
            encode(&mut out, &[b"EXEC"]);
        }
        // Some do not wait for the end.
        if self.random.chance(300) {
            let _ = connection.send(&out);
            add(&self.tally.sent);
        } else {
            let answers = if whole { count + 2 } else { count };
            let _ = self.ask(&mut connection, &out, answers);
        }
    }

    /// Many that queue large values and replies made by the server, and leave it at that.
    fn transactions(&mut self, address: SocketAddr) {
        let (value, name) = (vec![b'x'; MIB], vec![b'n'; NAME_MAX]);
        let mut begin = Vec::new();
        encode(&mut begin, &[b"CLIENT", b"SETNAME", &name]);
        encode(&mut begin, &[b"CLIENT", b"SETINFO", b"lib-name", &name]);
        encode(&mut begin, &[b"WATCH", b"once:1", &value[..KEY_MAX]]);
        encode(&mut begin, &[b"MULTI"]);
        encode(&mut begin, &[b"CLIENT", b"LIST"]);
        let mut set = Vec::new();
        encode(&mut set, &[b"SET", b"giant", &value]);
        let mut open = Vec::new();
        for nth in 0..TRANSACTIONS {
            if self.stopped() {
                return;
            }
            let Some(mut connection) = self.connect(address) else {
                continue;
            };
            // Names longer than any, which must be refused.
            let long = [&b"CLIENT"[..], b"SETNAME", &value];
            match self.command(&mut connection, &long) {
                Ok(Value::Error(_)) | Err(_) => {}
                Ok(_) => self.complain("a name of 1 MiB was accepted".to_owned()),
            }
            if self.ask(&mut connection, &begin, 5).is_err() {
                continue;
            }
            let (most, executed) = match nth % 8 {
                7 => (40, true),
                _ => (60, false),
            };
            let queued = (0..most)
                .take_while(|_| !self.stopped())
                .all(|_| self.ask(&mut connection, &set, 1).is_ok());
            if queued && executed {
                let mut exec = Vec::new();
                encode(&mut exec, &[b"EXEC"]);
                encode(&mut exec, &[b"DEL", b"giant"]);
                // The reply depends on what the others hold.
                let _ = self.ask(&mut connection, &exec, 2);
            }
            open.push(connection);
        }
        self.hold();
    }

    fn restore(&mut self, address: SocketAddr) {
        let Some(mut connection) = self.connect(address) else {
            return;
        };
        let mut out = Vec::new();
        encode(&mut out, &[b"SET", b"dump:s", b"a text that is no number"]);
        encode(
            &mut out,
            &[b"HSET", b"dump:h", b"a", b"1", b"b", b"2", b"c", b"3"],
        );
        encode(
            &mut out,
            &[b"SADD", b"dump:e", b"a", b"1", b"b", b"2", b"c"],
        );
        encode(
            &mut out,
            &[b"ZADD", b"dump:z", b"1", b"a", b"2.5", b"b", b"-inf", b"c"],
        );
        encode(&mut out, &[b"RPUSH", b"dump:l", b"a", b"b", b"c", b"4"]);
        if self.ask(&mut connection, &out, 5).is_err() {
            return;
        }
        let keys: [&[u8]; 5] = [b"dump:s", b"dump:h", b"dump:e", b"dump:z", b"dump:l"];
        for key in keys {
            let Ok(Value::Bulk(payload)) = self.command(&mut connection, &[b"DUMP", key]) else {
                continue;
            };
            let value = &payload[..payload.len().saturating_sub(10)];
            for _ in 0..40 {
                if self.stopped() {
                    return;
                }
                let mut changed = value.to_vec();
                for _ in 0..self.random.between(1, 4) {
                    if changed.is_empty() {
                        break;
                    }
                    let at = self.random.index(changed.len());
                    match self.random.below(4) {
                        0 => changed.truncate(at),
                        1 => changed[at] = 0xff,
                        2 => changed[at] = self.random.below(256) as u8,
                        // A length of gibibytes.
                        _ => drop(changed.splice(at..at, [0xff, 0xff, 0xff, 0xff, 0x0f])),
                    }
                }
                let sealed = sealed_dump(&changed);
                let mut out = Vec::new();
                encode(
                    &mut out,
                    &[b"RESTORE", b"dump:new", b"0", &sealed, b"REPLACE"],
                );
                encode(&mut out, &[b"DUMP", b"dump:new"]);
                encode(&mut out, &[b"SORT", b"dump:new", b"ALPHA"]);
                encode(&mut out, &[b"MEMORY", b"USAGE", b"dump:new"]);
                if self.ask(&mut connection, &out, 4).is_err() {
                    return;
                }
            }
        }
    }

    /// Attacks the port of the peers: many silent connections, half a handshake, a handshake of an
    /// unknown member.
    fn strangers(&mut self, address: SocketAddr) {
        let mut open = Vec::new();
        for index in 0..120 {
            if self.stopped() {
                return;
            }
            let Some(mut raw) = self.raw(address) else {
                continue;
            };
            let mut out = b"QUINTET\n\x01\0\x01\0".to_vec();
            let body: Vec<u8> = (0..self.random.below(120))
                .map(|_| self.random.below(256) as u8)
                .collect();
            match index % 5 {
                0 => out.clear(),
                1 => out.truncate(self.random.index(out.len())),
                2 => {
                    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
                    out.extend_from_slice(&checksum(&body).to_le_bytes());
                    out.extend_from_slice(&body);
                }
                3 => out.extend_from_slice(&[0xff; 12]),
                _ => out = body,
            }
            add(&self.tally.sent);
            raw.write(&out, CONNECT, &self.stop);
            open.push(raw);
        }
        for raw in &mut open {
            let came = raw.read(4096, Duration::from_millis(2), &self.stop);
            add(match (came.closed, came.first) {
                (true, _) => &self.tally.dropped,
                (false, Some(_)) => &self.tally.answered,
                (false, None) => continue,
            });
        }
        self.hold();
    }

    fn passwords(&mut self, address: SocketAddr) {
        for _ in 0..20 {
            let Some(mut raw) = self.raw(address) else {
                continue;
            };
            let mut out = Vec::new();
            for _ in 0..self.random.between(1, 50) {
                if self.stopped() {
                    return;
                }
                let guess = self.random.draw().to_string();
                match self.random.below(3) {
                    0 => encode(&mut out, &[b"AUTH", guess.as_bytes()]),
                    1 => encode(&mut out, &[b"AUTH", b"default", guess.as_bytes()]),
                    _ => encode(&mut out, &[b"HELLO", b"3", b"AUTH", b"a", guess.as_bytes()]),
                }
                // Commands before the right password must not be executed.
                encode(&mut out, &[b"SET", b"once:1", b"stolen"]);
                add(&self.tally.sent);
            }
            raw.write(&out, CONNECT, &self.stop);
            let came = raw.read(1 << 20, Duration::from_millis(30), &self.stop);
            match came.first {
                Some(b'-') => add(&self.tally.refused),
                Some(other) => {
                    let what = format!("a wrong password was answered {:?}", char::from(other));
                    self.complain(what);
                }
                None => add(&self.tally.dropped),
            }
        }
    }

    fn admin(&mut self, address: SocketAddr) {
        let mut open = Vec::new();
        for index in 0..150 {
            if self.stopped() {
                return;
            }
            let Some(mut raw) = self.raw(address) else {
                continue;
            };
            let out: &[u8] = match index % 6 {
                0 => b"",
                1 => b"GET /status HTTP/1.1\r\nHost: x\r\n",
                2 => b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                3 => b"POST /snapshot HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
                4 => b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
                _ => b"\0\xff\0\xff GARBAGE\r\n\r\n",
            };
            add(&self.tally.sent);
            raw.write(out, CONNECT, &self.stop);
            open.push(raw);
        }
        for raw in &mut open {
            let came = raw.read(1 << 20, Duration::from_millis(2), &self.stop);
            add(match (came.closed, came.first) {
                (true, _) => &self.tally.dropped,
                (false, Some(_)) => &self.tally.answered,
                (false, None) => continue,
            });
        }
        self.hold();
    }
}

/// As many descriptors as this process may have; gives how many that are.
fn raise_descriptors() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(1 << 20);
    let raised = Rlimit {
        current: Some(most),
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => most,
        Err(_) => limit.current.unwrap_or(most),
    }
}

//! The clients' requests: calls drawn per turn, fit for the machine of the world.
//!
//! ```text
//!   key k0 k1 k2 …   a key's number says what it mostly holds: a text, a number, a list, a hash,
//!                    a text with a deadline
//!   turn ──► one pipeline of calls: single commands │ MSET, MGET, DEL of several │ transactions
//!   turn ──► WATCH and a look ──► next turn: the transaction that depends on it, or none
//! ```
//!
//! Every value written is unique to its operation, so that what is read tells who wrote it.

use crate::{
    model::{Answer, Call},
    random::Random,
    service::{Service, key_name},
    workload::Client,
    world::World,
};
use quintet_replica::Bytes;
use serde::{Deserialize, Serialize};

/// The most frequent kind of value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Text,
    Number,
    List,
    Hash,
    Deadline,
}

const fn holds(key: u32) -> Holds {
    match key % 5 {
        0 => Holds::Text,
        1 => Holds::Number,
        2 => Holds::List,
        3 => Holds::Hash,
        _ => Holds::Deadline,
    }
}

/// The clients' most frequent actions in a world.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Mix {
    /// The service that they use.
    pub service: Service,
    /// Of 1,000 calls, that many are about several keys.
    pub transactions: u64,
    /// Of 1,000 turns, that many begin to watch keys.
    pub watches: u64,
    /// Some values are large, so that snapshots take several pieces.
    pub big_values: bool,
    /// Of 1,000 pipelines that only look, that many are content with what their replica has …
    pub stale: u64,
    /// … and that many are put into the order.
    pub ordered: u64,
    /// Of 1,000 turns, that many end the session before them.
    pub ends: u64,
}

impl Mix {
    /// Draws the actions of a seed's clients; `service` when it is given.
    pub fn draw(service: Option<Service>, random: &mut Random) -> Self {
        let drawn = match random.chance(700) {
            true => Service::Store,
            false => Service::Registers,
        };
        Self {
            service: service.unwrap_or(drawn),
            transactions: [0, 100, 400][random.index(3)],
            watches: [0, 50, 200][random.index(3)],
            big_values: random.chance(150),
            stale: [0, 100, 300][random.index(3)],
            ordered: 200,
            ends: [0, 0, 50][random.index(3)],
        }
    }
}

fn words(all: &[&str]) -> Vec<Bytes> {
    all.iter()
        .map(|word| Bytes::copy_from_slice(word.as_bytes()))
        .collect()
}

/// A command of the store on `key`.
fn draw_command(key: u32, number: u64, random: &mut Random) -> Vec<Bytes> {
    let name = key_name(key);
    let (k, v) = (name.as_str(), format!("v{number}"));
    let n = number.to_string();
    // Now and then a command meets a key of another kind.
    let kind = match random.chance(25) {
        true => holds(random.below(5) as u32),
        false => holds(key),
    };
    let field = ["f0", "f1", "f2"][random.index(3)];
    match (kind, random.below(16)) {
        (Holds::Text, 0..=3) => words(&["SET", k, &v]),
        (Holds::Text, 4) => words(&["SETNX", k, &v]),
        (Holds::Text, 5) => words(&["SET", k, &v, "NX"]),
        (Holds::Text, 6) => words(&["SET", k, &v, "XX", "GET"]),
        (Holds::Text, 7) => words(&["GETSET", k, &v]),
        (Holds::Text, 8) => words(&["GETDEL", k]),
        (Holds::Text, 9) => words(&["DEL", k]),
        (Holds::Text, 10) => words(&["APPEND", k, &v]),
        (Holds::Text, 11) => words(&["STRLEN", k]),
        (Holds::Number, 0..=5) => words(&["INCR", k]),
        (Holds::Number, 6) => words(&["INCRBY", k, &n]),
        (Holds::Number, 7) => words(&["DECRBY", k, "3"]),
        (Holds::Number, 8) => words(&["DEL", k]),
        (Holds::List, 0..=4) => words(&["RPUSH", k, &v]),
        (Holds::List, 5) => words(&["LPUSH", k, &v, &n]),
        (Holds::List, 6..=7) => words(&["LPOP", k]),
        (Holds::List, 8) => words(&["RPOP", k]),
        (Holds::List, 9) => words(&["LLEN", k]),
        (Holds::List, 10) => words(&["LINDEX", k, "-1"]),
        (Holds::List, _) => words(&["LRANGE", k, "0", "-1"]),
        (Holds::Hash, 0..=3) => words(&["HSET", k, field, &v]),
        (Holds::Hash, 4..=5) => words(&["HINCRBY", k, "n", "1"]),
        (Holds::Hash, 6) => words(&["HDEL", k, field]),
        (Holds::Hash, 7) => words(&["HSETNX", k, field, &v]),
        (Holds::Hash, 8) => words(&["HGET", k, field]),
        (Holds::Hash, 9) => words(&["HLEN", k]),
        (Holds::Hash, _) => words(&["HGETALL", k]),
        (Holds::Deadline, 0..=3) => {
            let time = (1 + random.below(400)).to_string();
            words(&["SET", k, &v, "PX", &time])
        }
        (Holds::Deadline, 4) => words(&["SET", k, &v, "NX", "PX", "50"]),
        (Holds::Deadline, 5) => words(&["PEXPIRE", k, "30"]),
        (Holds::Deadline, 6) => words(&["PERSIST", k]),
        (Holds::Deadline, 7) => words(&["SET", k, &v, "KEEPTTL"]),
        (Holds::Deadline, 8) => words(&["EXISTS", k]),
        (Holds::Deadline, 9) => words(&["PTTL", k]),
        _ => words(&["GET", k]),
    }
}

/// A look at the whole value of `key`.
pub(crate) fn look(service: Service, key: u32) -> Call {
    let name = key_name(key);
    let command: &[&str] = match (service, holds(key)) {
        (Service::Registers, _) if key % 3 == 1 => &["LDIGEST", &name],
        (Service::Registers, _) => &["GET", &name],
        (Service::Store, Holds::List) => &["LRANGE", &name, "0", "-1"],
        (Service::Store, Holds::Hash) => &["HGETALL", &name],
        (Service::Store, _) => &["GET", &name],
    };
    Call::of(command)
}

/// Any call of the store over `keys` keys.
#[cfg(test)]
pub(crate) fn draw_any(keys: u64, number: u64, random: &mut Random) -> Call {
    let (one, other) = (random.below(keys) as u32, random.below(keys) as u32);
    let (a, b) = (key_name(one), key_name(other));
    match random.below(10) {
        0 => Call::of(&["MSET", &a, "1", &b, "2"]),
        1 => Call::of(&["MGET", &a, &b]),
        2..=3 => {
            let both = [one, other].map(|key| draw_command(key, number, random));
            known(Call::transaction(both.to_vec()))
        }
        _ => known(Call::new(draw_command(one, number, random))),
    }
}

fn known(call: Result<Call, crate::model::CallError>) -> Call {
    call.expect("only known commands are drawn")
}

impl World {
    fn draw_key(&mut self) -> u32 {
        self.random.below(self.shape.keys.into()) as u32
    }

    /// A key to watch: seldom one with a deadline, because no reply tells whether it had expired
    /// already when it was watched, and checking must guess.
    fn draw_watched(&mut self) -> u32 {
        let key = self.draw_key();
        match holds(key) == Holds::Deadline && !self.random.chance(50) {
            true => key - 1,
            false => key,
        }
    }

    /// The calls of a client in its turn.
    pub(crate) fn draw_calls(&mut self, index: usize) -> Vec<Call> {
        let count = self.random.between(1, self.clients[index].pipeline_max);
        let number = self.history.operations().len() as u64;
        if self.mix.service == Service::Registers {
            return (0..count)
                .map(|more| self.draw_register(number + more))
                .collect();
        }
        let client = &mut self.clients[index];
        if !client.watching.is_empty() && self.random.chance(900) {
            let mut call = self.draw_transaction(number);
            // Mostly the transaction writes what it looked at.
            if self.random.chance(700)
                && let Some((key, _)) = self.clients[index].watching.first()
            {
                let value = format!("w{number}");
                call.insert(
                    0,
                    vec![Bytes::from_static(b"SET"), key.clone(), value.into()],
                );
            }
            self.clients[index].sends_watched = true;
            return vec![known(Call::transaction(call))];
        }
        client.unwatch();
        if self.random.chance(self.mix.watches) {
            let (one, other) = (self.draw_watched(), self.draw_watched());
            let mut calls = vec![Call::of(&["WATCH", &key_name(one), &key_name(other)])];
            calls.push(look(Service::Store, one));
            return calls;
        }
        (0..count)
            .map(|more| self.draw_call(number + more))
            .collect()
    }

    fn draw_register(&mut self, number: u64) -> Call {
        let key = self.draw_key();
        let (name, value) = (key_name(key), (number << 8 | 1).to_string());
        match (key % 3, self.random.below(10)) {
            (_, 0..=3) => look(Service::Registers, key),
            // An unwritten register is missing, and nothing is compared with that.
            (0, 4..=5) if self.hints[key as usize] != 0 => {
                let expected = self.hints[key as usize].to_string();
                Call::of(&["CAS", &name, &expected, &value])
            }
            (0, _) => Call::of(&["SET", &name, &value]),
            (1, _) => Call::of(&["RPUSH", &name, &value]),
            _ => {
                let by = 1 + self.random.below(3);
                Call::of(&["INCRBY", &name, &by.to_string()])
            }
        }
    }

    fn draw_transaction(&mut self, number: u64) -> Vec<Vec<Bytes>> {
        let count = self.random.between(1, 4);
        (0..count)
            .map(|_| {
                let key = self.draw_key();
                draw_command(key, number, &mut self.random)
            })
            .collect()
    }

    fn draw_call(&mut self, number: u64) -> Call {
        let (one, other) = (self.draw_key(), self.draw_key());
        let (a, b) = (key_name(one), key_name(other));
        if self.random.chance(self.mix.transactions) {
            let value = format!("m{number}");
            return match self.random.below(8) {
                0 => Call::of(&["MSET", &a, &value, &b, &value]),
                1 => Call::of(&["DEL", &a, &b]),
                2..=3 => Call::of(&["MGET", &a, &b, &key_name(self.draw_key())]),
                _ => known(Call::transaction(self.draw_transaction(number))),
            };
        }
        if self.mix.big_values && self.random.chance(30) {
            let value = "x".repeat(1000 + self.random.index(20_000));
            return Call::of(&["SET", &a, &value]);
        }
        match self.random.chance(350) {
            true => look(Service::Store, one),
            false => known(Call::new(draw_command(one, number, &mut self.random))),
        }
    }

    /// Counts what a client was answered, so that a campaign shows what its worlds really did.
    pub(crate) fn mark_answer(&mut self, call: &Call, answer: &Answer, watched: bool) {
        let branch = match (call.is_transaction(), answer) {
            (true, Answer::Nil) => "client: transaction undone, watched key changed",
            (true, _) if watched => "client: transaction on watched keys",
            (true, _) => "client: transaction",
            (false, Answer::Error(text)) if text.starts_with("WRONGTYPE") => "client: wrong type",
            (false, Answer::Error(_)) => "client: refused by the store",
            _ => match call.name() {
                b"MSET" | b"MGET" => "client: several keys at once",
                b"WATCH" => "client: watch",
                b"SET" if call.commands()[0].len() > 4 => "client: deadline set",
                b"PEXPIRE" | b"PERSIST" => "client: deadline changed",
                b"LPOP" | b"RPOP" | b"RPUSH" | b"LPUSH" => "client: list changed",
                b"HSET" | b"HDEL" | b"HINCRBY" | b"HSETNX" => "client: hash changed",
                b"INCR" | b"INCRBY" | b"DECRBY" => "client: number changed",
                b"SETNX" | b"CAS" | b"GETSET" | b"GETDEL" => "client: changed on condition",
                b"SET" | b"APPEND" | b"DEL" => "client: text changed",
                _ => "client: looked",
            },
        };
        *self.branches.entry(branch).or_default() += 1;
    }
}

impl Client {
    /// Watches nothing any more, as after a new connection.
    pub(crate) fn unwatch(&mut self) {
        if !self.watching.is_empty() || self.sends_watched {
            self.sends_watched = false;
            self.watching.clear();
            self.connection += 1;
        }
    }
}

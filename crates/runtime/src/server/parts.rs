//! A pipeline over several groups: a request for each, and the replies in the order of the commands.
//!
//! ```text
//!   SET a │ GET b │ INCR a │ GET a        a: group 0, b: group 1
//!        ├──► request of group 0: SET a, INCR a, GET a ──► replies ─┐  cut at the commands,
//!        ├──► request of group 1: GET b ─────────────────► replies ─┴► in order to the client
//!        └──► runs: 0 × 1, 1 × 1, 0 × 2
//! ```
//!
//! All requests of a pipeline are in progress at the same time, and none of the next before all have
//! ended: a session has one at a time, and commands for one group keep their order.

use super::{
    connection::{Connection, Phase},
    gateway::{BUFFER_KEPT, Gateway, Parked},
    group_queue::BatchKind,
    sessions::Standing,
};
use crate::config::time_for;
use bytes::Bytes;
use quintet_replica::{Level, Time};
use quintet_store::RequestBuilder;
use std::ops::Range;

/// Shorter replies are copied.
const SHARED_MIN: usize = 64 << 10;

/// Commands for one group that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    group: usize,
    commands: usize,
}

/// The requests of a pipeline in the making, but for the one that is being added to; nothing unless
/// there are several.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// By group.
    builders: Vec<RequestBuilder>,
    /// The groups that have one, in the order of their first commands.
    groups: Vec<usize>,
    runs: Vec<Run>,
    /// Commands of the request being added to that stand in `runs`.
    listed: usize,
    /// Commands and bytes of the other requests.
    commands: usize,
    bytes: usize,
    /// A transaction is among the commands: they are all for one group.
    is_bound: bool,
}

impl Parts {
    /// Forgets what has been taken.
    pub fn clear(&mut self) {
        for group in self.groups.drain(..) {
            match self.builders[group].len() > BUFFER_KEPT {
                true => self.builders[group] = RequestBuilder::new(),
                false => self.builders[group].clear(),
            }
        }
        self.runs.clear();
        (self.listed, self.commands, self.bytes, self.is_bound) = (0, 0, 0, false);
    }

    /// Whether commands are for several groups.
    pub const fn are_several(&self) -> bool {
        !self.groups.is_empty()
    }

    pub const fn commands(&self) -> usize {
        self.commands
    }

    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// A transaction is executed between the commands before and those after it.
    pub const fn bind(&mut self) {
        self.is_bound = true;
    }

    pub const fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// The commands so far in `builder` are for the group `from`; those that follow are for `to`.
    pub fn turn(&mut self, builder: &mut RequestBuilder, from: usize, to: usize) {
        let most = from.max(to);
        if self.builders.len() <= most {
            self.builders.resize_with(most + 1, RequestBuilder::new);
        }
        self.end_run(builder, from);
        for group in [from, to] {
            if !self.groups.contains(&group) {
                self.groups.push(group);
            }
        }
        self.commands += builder.commands();
        self.bytes += builder.len();
        std::mem::swap(builder, &mut self.builders[from]);
        std::mem::swap(builder, &mut self.builders[to]);
        self.commands -= builder.commands();
        self.bytes -= builder.len();
        self.listed = builder.commands();
    }

    fn end_run(&mut self, builder: &RequestBuilder, group: usize) {
        let commands = builder.commands() - self.listed;
        if commands > 0 {
            self.runs.push(Run { group, commands });
        }
    }
}

/// The reply to a request, until those before it are here.
#[derive(Debug)]
enum Kept {
    /// It has not come, or the client has left.
    Nothing,
    /// In the bytes that were copied.
    Copied(Range<usize>),
    Shared(Bytes),
}

#[derive(Debug)]
struct Part {
    group: usize,
    reply: Kept,
    /// How much of it has been given to the client.
    given: usize,
}

/// The requests of a connection's pipeline that are in progress.
#[derive(Debug)]
pub(super) struct Spread {
    parts: Vec<Part>,
    runs: Vec<Run>,
    /// Requests that have not ended.
    missing: usize,
    copied: Vec<u8>,
    /// Bytes of replies to commands that were executed.
    replied: usize,
}

impl Spread {
    /// A request for each of these groups.
    fn new(groups: &[usize], runs: &[Run]) -> Self {
        let part = |group: &usize| Part {
            group: *group,
            reply: Kept::Nothing,
            given: 0,
        };
        Self {
            parts: groups.iter().map(part).collect(),
            runs: runs.to_vec(),
            missing: groups.len(),
            copied: Vec::new(),
            replied: 0,
        }
    }

    fn set(&mut self, group: usize, reply: Kept) {
        if let Some(part) = self.parts.iter_mut().find(|part| part.group == group) {
            part.reply = reply;
        }
    }

    /// The reply to the group's request.
    pub fn keep(&mut self, group: usize, reply: &[u8]) {
        let begin = self.copied.len();
        self.copied.extend_from_slice(reply);
        self.set(group, Kept::Copied(begin..self.copied.len()));
    }

    /// The same with a part of `results`, of commands that were executed.
    pub fn keep_part(&mut self, group: usize, results: &Bytes, reply: &[u8]) {
        self.replied += reply.len();
        if reply.len() < SHARED_MIN || reply.len() < results.len() / 2 {
            return self.keep(group, reply);
        }
        self.set(group, Kept::Shared(results.slice_ref(reply)));
    }

    /// A request has ended; whether all have.
    pub const fn ended(&mut self) -> bool {
        self.missing -= 1;
        self.missing == 0
    }

    /// The replies, in the order of the commands; false if a reply is owed that is not there.
    fn give(&mut self, connection: &mut Connection) -> bool {
        for Run { group, commands } in std::mem::take(&mut self.runs) {
            let part = self.parts.iter_mut().find(|part| part.group == group);
            let Some(part) = part else {
                return false;
            };
            let all = match &part.reply {
                Kept::Nothing => return false,
                Kept::Copied(range) => &self.copied[range.clone()],
                Kept::Shared(bytes) => &bytes[..],
            };
            let begin = part.given;
            for _ in 0..commands {
                let Some(length) = reply_length(&all[part.given..]) else {
                    return false;
                };
                part.given += length;
            }
            let replies = &all[begin..part.given];
            match &part.reply {
                Kept::Shared(bytes) => connection.answer_from(bytes, replies),
                _ => connection.answer(replies),
            }
        }
        true
    }
}

/// The length of the first of these RESP replies; nothing if it is not complete.
fn reply_length(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut owed) = (0_usize, 1_usize);
    while owed > 0 {
        let rest = bytes.get(at..)?;
        let line = rest.iter().position(|byte| *byte == b'\n')?;
        let kind = rest.first()?;
        // Those that are null have -1.
        let count = || -> Option<usize> {
            let digits = std::str::from_utf8(rest.get(1..line.checked_sub(1)?)?).ok()?;
            Some(usize::try_from(digits.parse::<i64>().ok()?).unwrap_or(0))
        };
        let is_null = rest.get(1) == Some(&b'-');
        at += line + 1;
        owed -= 1;
        match kind {
            b'$' | b'=' | b'!' if !is_null => at = at.checked_add(count()?)?.checked_add(2)?,
            b'*' | b'~' | b'>' => owed = owed.checked_add(count()?)?,
            b'%' => owed = owed.checked_add(count()?.checked_mul(2)?)?,
            // Attributes come before the reply that they belong to.
            b'|' => owed = owed.checked_add(count()?.checked_mul(2)?.checked_add(1)?)?,
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}

impl Connection {
    /// Appends the reply to its request in a group, or keeps it until those of others are here.
    pub fn answer_in(&mut self, group: usize, reply: &[u8]) {
        match &mut self.spread {
            Some(spread) => spread.keep(group, reply),
            None => self.answer(reply),
        }
    }
}

impl Gateway {
    /// A pipeline over several groups has been taken in: its requests go, each to its group.
    #[cold]
    pub(super) fn push_parts(&mut self, index: usize, connection: &mut Connection) {
        let (mut parts, mut builder) = (
            std::mem::take(&mut self.parts),
            std::mem::take(&mut self.builder),
        );
        let last = connection.group;
        parts.end_run(&builder, last);
        std::mem::swap(&mut builder, &mut parts.builders[last]);
        self.builder = builder;
        connection.phase = Phase::Request;
        connection.spread = Some(Box::new(Spread::new(&parts.groups, &parts.runs)));
        let weight = connection.weight_in_flight.div_ceil(parts.groups.len());
        for &group in &parts.groups {
            let part = &parts.builders[group];
            connection.group = group;
            let level = match part.is_query() {
                false => Level::Ordered,
                true if connection.client.stale => Level::Stale,
                true => Level::Linearizable,
            };
            self.push_request(index, connection, level, part.as_bytes(), weight);
        }
        parts.clear();
        self.parts = parts;
    }

    /// A request of a connection goes into a batch of its group, or waits for the owner's
    /// registration there.
    pub(super) fn push_request(
        &mut self,
        index: usize,
        connection: &mut Connection,
        level: Level,
        payload: &[u8],
        weight: usize,
    ) {
        let group = connection.group;
        let kind = BatchKind { group, level };
        if level != Level::Ordered {
            return self.push_read(kind, index, payload);
        }
        self.replace_lapsed_owner(group);
        if self.groups[group].owner.standing == Standing::Registered {
            return self.push_ordered(index, connection, group, payload);
        }
        connection.parked += payload.len();
        self.visit(group);
        self.parked.push_back(Parked {
            connection: index,
            kind,
            payload: Bytes::copy_from_slice(payload),
            deadline: self.now + self.config.client_deadline + time_for(payload.len()),
            not_before: Time(0),
            weight,
            busy: false,
        });
    }

    /// A request of a pipeline over several groups has ended; whether all have, and their replies
    /// stand in the output.
    pub(super) fn end_part(&mut self, connection: &mut Connection) -> bool {
        let Some(spread) = &mut connection.spread else {
            return true;
        };
        if !spread.ended() {
            return false;
        }
        if let Some(mut spread) = connection.spread.take()
            && !connection.gone
        {
            if spread.replied > 0 {
                connection.note_reply(spread.replied, self.config.output_bytes_soft);
            }
            // Without it the replies behind it would be taken for others.
            connection.closing |= !spread.give(connection);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_of_a_reply_is_that_of_all_it_holds() {
        let replies = [
            "+OK\r\n",
            "-ERR no\r\n",
            ":12\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "$5\r\na\r\nbc\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            "%1\r\n+a\r\n*2\r\n:1\r\n_\r\n",
            "~2\r\n+a\r\n,1.5\r\n",
            "|1\r\n+a\r\n:1\r\n$1\r\nb\r\n",
            "=5\r\ntxt:a\r\n",
            "!3\r\nERR\r\n",
            "#t\r\n",
            "(12345678901234567890\r\n",
        ];
        for reply in replies {
            let more = format!("{reply}+next\r\n");
            assert_eq!(
                reply_length(more.as_bytes()),
                Some(reply.len()),
                "{reply:?}"
            );
            for end in 0..reply.len() {
                assert_eq!(
                    reply_length(&reply.as_bytes()[..end]),
                    None,
                    "{reply:?} {end}"
                );
            }
        }
        assert_eq!(reply_length(b"$x\r\n"), None);
    }
}

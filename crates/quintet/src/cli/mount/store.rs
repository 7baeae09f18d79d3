//! The store as a tree: `db0/KEY`, and as it was, `db0@TIME/KEY`.

use super::{
    files::{Listing, Stat, Tree, too_many},
    names::{key_of, name_of},
    server::{Ask, Refused, list, some, text, unexpected},
};
use crate::cli::resp::Reply;
use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Changes of a key that are looked through for the time of one of them.
const CHANGES_MAX: &[u8] = b"1000";

/// A store behind this server.
pub struct Store<A>(pub A);

/// A file or directory: its time as asked for, and its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    Root,
    Database(Option<String>),
    Key(Option<String>, Vec<u8>),
}

impl<A: Ask> Tree for Store<A> {
    type Node = Node;
    const ROOT: Node = Node::Root;

    fn is_directory(node: &Node) -> bool {
        !matches!(node, Node::Key(..))
    }

    fn is_past(node: &Node) -> bool {
        matches!(node, Node::Database(Some(_)) | Node::Key(Some(_), _))
    }

    fn child(&self, parent: &Node, name: &[u8]) -> Result<Node, Refused> {
        match parent {
            Node::Root => {
                let time = match name.strip_prefix(b"db0").ok_or(Refused::Missing)? {
                    b"" => None,
                    rest => Some(rest.strip_prefix(b"@").ok_or(Refused::Missing)?),
                };
                let time = time.map(|time| String::from_utf8(time.to_vec()));
                let time = time.transpose().map_err(|_| Refused::Missing)?;
                if let Some(time) = &time {
                    // The present is no time that stays.
                    if time.eq_ignore_ascii_case("now") {
                        return Err(Refused::Missing);
                    }
                    let asked = self.ask_at(Some(time), &[b"EXISTS", b""]);
                    asked.map_err(|error| match error {
                        Refused::Error(text) if text.starts_with("ERR ") => Refused::Missing,
                        error => error,
                    })?;
                }
                Ok(Node::Database(time))
            }
            Node::Database(time) => {
                let key = key_of(name).ok_or(Refused::Missing)?;
                Ok(Node::Key(time.clone(), key))
            }
            Node::Key(..) => Err(Refused::Missing),
        }
    }

    fn entries(&self, directory: &Node) -> Result<Listing<Node>, Refused> {
        let Node::Database(time) = directory else {
            return Ok(vec![(b"db0".to_vec(), Node::Database(None))]);
        };
        let keys = self.keys(time.as_deref())?.into_iter();
        let entries = keys.map(|key| (name_of(&key), Node::Key(time.clone(), key)));
        Ok(entries.collect())
    }

    fn content(&self, file: &Node) -> Result<Vec<u8>, Refused> {
        match file {
            Node::Key(time, key) => self.held(time.as_deref(), key)?.ok_or(Refused::Missing),
            _ => Err(unexpected()),
        }
    }

    fn stat(&self, file: &Node) -> Result<Stat, Refused> {
        let size = self.content(file)?.len() as u64;
        let changed = match file {
            Node::Key(time, key) => self.changed_at(time.as_deref(), key),
            _ => None,
        };
        Ok(Stat {
            size,
            changed: changed.unwrap_or(UNIX_EPOCH),
        })
    }
}

impl<A: Ask> Store<A> {
    /// Asks of the present, or of a time.
    fn ask_at(&self, time: Option<&str>, words: &[&[u8]]) -> Result<Reply, Refused> {
        match time {
            None => self.0.ask(words),
            Some(time) => {
                let words = [&[&b"QUINTET.AT"[..], time.as_bytes()], words].concat();
                self.0.ask(&words)
            }
        }
    }

    /// The content of a key as a file; `None` where there is no such key.
    fn held(&self, time: Option<&str>, key: &[u8]) -> Result<Option<Vec<u8>>, Refused> {
        let kind = text(self.ask_at(time, &[b"TYPE", key])?)?;
        let words: &[&[u8]] = match &kind[..] {
            b"none" => return Ok(None),
            b"string" => &[b"GET", key],
            b"list" => &[b"LRANGE", key, b"0", b"-1"],
            b"set" => &[b"SMEMBERS", key],
            b"hash" => &[b"HGETALL", key],
            b"zset" => &[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"],
            _ => return Err(Refused::Error("a type without a form as a file".to_owned())),
        };
        let all = match self.ask_at(time, words)? {
            Reply::Nil => return Ok(None),
            Reply::Text(bytes) => return Ok(Some(bytes)),
            Reply::List(all) => all
                .into_iter()
                .map(text)
                .collect::<Result<Vec<_>, Refused>>()?,
            _ => return Err(unexpected()),
        };
        let mut lines: Vec<Vec<u8>> = match &kind[..] {
            b"hash" => all.chunks_exact(2).map(|two| two.join(&b'\t')).collect(),
            b"zset" => all
                .chunks_exact(2)
                .map(|two| [&two[1][..], &two[0]].join(&b'\t'))
                .collect(),
            _ => all,
        };
        if matches!(&kind[..], b"hash" | b"set") {
            lines.sort();
        }
        let mut file = lines.join(&b'\n');
        if !lines.is_empty() {
            file.push(b'\n');
        }
        Ok(Some(file))
    }

    /// The keys now, or then.
    fn keys(&self, time: Option<&str>) -> Result<BTreeSet<Vec<u8>>, Refused> {
        let (mut keys, mut cursor) = (BTreeSet::new(), b"0".to_vec());
        loop {
            let [next, page] = some(self.0.ask(&[b"SCAN", &cursor, b"COUNT", b"1000"])?)?;
            for key in list(page)? {
                keys.insert(text(key)?);
            }
            cursor = text(next)?;
            if cursor == b"0" {
                break;
            }
            too_many(keys.len())?;
        }
        let Some(time) = time else {
            return Ok(keys);
        };
        let mut cursor = b"0".to_vec();
        loop {
            let words: [&[u8]; 5] = [b"QUINTET.DIFF", time.as_bytes(), b"now", b"CURSOR", &cursor];
            let [next, page] = some(self.0.ask(&words)?)?;
            for change in list(page)? {
                let [key, change] = some(change)?;
                match &text(change)?[..] {
                    b"created" => drop(keys.remove(&text(key)?)),
                    b"deleted" => drop(keys.insert(text(key)?)),
                    _ => {}
                }
            }
            cursor = text(next)?;
            if cursor == b"0" {
                return Ok(keys);
            }
        }
    }

    /// When a key was last changed, as far as that is kept.
    fn changed_at(&self, time: Option<&str>, key: &[u8]) -> Option<SystemTime> {
        let changes = self
            .0
            .ask(&[b"QUINTET.HISTORY", key, b"LIMIT", CHANGES_MAX])
            .ok()?;
        let until = time.map(|time| {
            let told = self.0.ask(&[b"QUINTET.AT", time.as_bytes(), b"TIME"]);
            let [seconds, micros] = some(told.ok()?).ok()?;
            let number = |reply: Reply| {
                let digits = text(reply).ok()?;
                std::str::from_utf8(&digits).ok()?.parse::<i64>().ok()
            };
            Some(number(seconds)? * 1_000_000 + number(micros)?)
        });
        let until = until.map_or(Some(i64::MAX), |until| until)?;
        list(changes).ok()?.into_iter().find_map(|change| {
            let Reply::List(row) = change else {
                return None;
            };
            match row[..] {
                [_, Reply::Number(micros), ..] if micros <= until => {
                    Some(UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).ok()?))
                }
                _ => None,
            }
        })
    }
}

//! The shards of services as a tree: `store/3/items/KEY`, `counter/0/value`, and as they were:
//! `store/3/items@TIME/KEY`, `store/3@TIME/items/KEY`, `counter/0/value@v:17`.
//!
//! The server is asked each time which shards and fields there are, so a group that has started again
//! with others is shown as it is.

use super::{
    files::{Listing, Stat, Tree, too_many},
    names::{key_of, name_of},
    server::{Ask, Refused, list, some, text, unexpected},
};
use crate::cli::resp::Reply;
use quintet::groups::{Time, When};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Clocks that differ by no more than this let a time be asked for.
const CLOCKS_DIFFER: Duration = Duration::from_secs(2);

/// Services behind this server.
pub struct Services<A>(pub A);

/// A file or directory, and the time that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    place: Place,
    when: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Root,
    Subgroup(String),
    /// `SUBGROUP/NUMBER`
    Shard(String),
    Field(Field),
    Key(Field, Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Field {
    shard: String,
    name: String,
    is_map: bool,
}

/// A value as it is read.
struct Value {
    text: Vec<u8>,
    changed: SystemTime,
}

fn utf8(bytes: Vec<u8>) -> Result<String, Refused> {
    String::from_utf8(bytes).map_err(|_| unexpected())
}

/// A name and what stands behind its @.
fn split(name: &[u8]) -> Result<(&str, Option<&str>), Refused> {
    let name = std::str::from_utf8(name).map_err(|_| Refused::Missing)?;
    Ok(match name.split_once('@') {
        Some((name, when)) => (name, Some(when)),
        None => (name, None),
    })
}

/// Whether a state is asked for that stays, and that may have come.
fn stays(when: &str) -> bool {
    if when.eq_ignore_ascii_case("now") {
        return false;
    }
    match When::read(when) {
        Ok(When::Version(_)) => true,
        Ok(When::Time(time)) => time <= Time::from(SystemTime::now() + CLOCKS_DIFFER),
        Err(_) => false,
    }
}

impl<A: Ask> Tree for Services<A> {
    type Node = Node;
    const ROOT: Node = Node {
        place: Place::Root,
        when: None,
    };

    fn is_directory(node: &Node) -> bool {
        match &node.place {
            Place::Field(field) => field.is_map,
            Place::Key(..) => false,
            _ => true,
        }
    }

    fn is_past(node: &Node) -> bool {
        node.when.is_some()
    }

    fn child(&self, parent: &Node, name: &[u8]) -> Result<Node, Refused> {
        let is_it = |(known, _): &(Vec<u8>, Node)| *known == name;
        let (name, when) = match &parent.place {
            Place::Root | Place::Subgroup(_) if !name.contains(&b'@') => {
                let found = self.entries(parent)?.into_iter().find(is_it);
                return found.map(|(_, node)| node).ok_or(Refused::Missing);
            }
            Place::Field(field) if field.is_map => {
                let key = key_of(name).ok_or(Refused::Missing)?;
                return Ok(Node {
                    place: Place::Key(field.clone(), key),
                    when: parent.when.clone(),
                });
            }
            Place::Subgroup(_) | Place::Shard(_) => split(name)?,
            _ => return Err(Refused::Missing),
        };
        let entries = self.entries(parent)?.into_iter();
        let mut node = entries
            .map(|(known, node)| (known == name.as_bytes(), node))
            .find_map(|(is_it, node)| is_it.then_some(node))
            .ok_or(Refused::Missing)?;
        if let Some(when) = when {
            // A past has no other.
            if parent.when.is_some() || !stays(when) {
                return Err(Refused::Missing);
            }
            let (Place::Shard(shard) | Place::Field(Field { shard, .. })) = &node.place else {
                return Err(Refused::Missing);
            };
            let words: [&[u8]; 4] = [b"QUINTET.VERSION", shard.as_bytes(), b"AT", when.as_bytes()];
            self.0.ask(&words)?;
            node.when = Some(when.to_owned());
        }
        Ok(node)
    }

    fn entries(&self, directory: &Node) -> Result<Listing<Node>, Refused> {
        let entry = |name: &[u8], place| {
            let when = directory.when.clone();
            (name_of(name), Node { place, when })
        };
        Ok(match &directory.place {
            Place::Root => {
                let mut names: Vec<_> = self.shards()?.into_iter().map(|(name, _)| name).collect();
                names.dedup();
                let entries = names.into_iter();
                entries
                    .map(|name| entry(name.as_bytes(), Place::Subgroup(name.clone())))
                    .collect()
            }
            Place::Subgroup(subgroup) => {
                let shards = self.shards()?.into_iter();
                let own = shards.filter(|(name, _)| name == subgroup);
                own.map(|(name, number)| {
                    let shard = format!("{name}/{number}");
                    entry(number.as_bytes(), Place::Shard(shard))
                })
                .collect()
            }
            Place::Shard(shard) => {
                let fields = self.fields(shard)?.into_iter();
                fields
                    .map(|field| entry(field.name.clone().as_bytes(), Place::Field(field)))
                    .collect()
            }
            Place::Field(field) if field.is_map => {
                let keys = self.keys(field, directory.when.as_deref())?.into_iter();
                keys.map(|key| entry(&key.clone(), Place::Key(field.clone(), key)))
                    .collect()
            }
            _ => return Err(unexpected()),
        })
    }

    fn content(&self, file: &Node) -> Result<Vec<u8>, Refused> {
        self.value(file).map(|value| value.text)
    }

    fn stat(&self, file: &Node) -> Result<Stat, Refused> {
        let value = self.value(file)?;
        Ok(Stat {
            size: value.text.len() as u64,
            changed: value.changed,
        })
    }
}

impl<A: Ask> Services<A> {
    /// Subgroup and number of each shard, as they are told.
    fn shards(&self) -> Result<Vec<(String, String)>, Refused> {
        let told = list(self.0.ask(&[b"QUINTET.SHARDS"])?)?.into_iter();
        told.map(|told| {
            let told = utf8(text(told)?)?;
            let name = told.split(' ').nth(1).ok_or_else(unexpected)?;
            let (subgroup, number) = name.rsplit_once('/').ok_or_else(unexpected)?;
            Ok((subgroup.to_owned(), number.to_owned()))
        })
        .collect()
    }

    fn fields(&self, shard: &str) -> Result<Vec<Field>, Refused> {
        let told = list(self.0.ask(&[b"QUINTET.FIELDS", shard.as_bytes()])?)?;
        let fields = told.into_iter().map(|told| {
            let [kind, name] = some(told)?;
            Ok(Field {
                shard: shard.to_owned(),
                name: utf8(text(name)?)?,
                is_map: text(kind)? == b"map",
            })
        });
        fields.collect()
    }

    /// Asks of a field, now or then.
    fn ask(
        &self,
        command: &[u8],
        field: &Field,
        options: &[&[u8]],
        when: Option<&str>,
    ) -> Result<Reply, Refused> {
        let mut words = vec![command, field.shard.as_bytes(), field.name.as_bytes()];
        words.extend_from_slice(options);
        if let Some(when) = when {
            words.extend_from_slice(&[b"AT", when.as_bytes()]);
        }
        self.0.ask(&words)
    }

    fn keys(&self, field: &Field, when: Option<&str>) -> Result<Vec<Vec<u8>>, Refused> {
        let mut keys = Vec::new();
        let mut from: Option<Vec<u8>> = None;
        loop {
            let options: &[&[u8]] = match &from {
                Some(from) => &[b"FROM", from],
                None => &[],
            };
            let [next, page] = some(self.ask(b"QUINTET.KEYS", field, options, when)?)?;
            for key in list(page)? {
                keys.push(text(key)?);
            }
            too_many(keys.len())?;
            match next {
                Reply::Nil => return Ok(keys),
                next => from = Some(text(next)?),
            }
        }
    }

    fn value(&self, file: &Node) -> Result<Value, Refused> {
        let when = file.when.as_deref();
        let told = match &file.place {
            Place::Field(field) if !field.is_map => self.ask(b"QUINTET.VALUE", field, &[], when)?,
            Place::Key(field, key) => self.ask(b"QUINTET.VALUE", field, &[b"KEY", key], when)?,
            _ => return Err(unexpected()),
        };
        if matches!(told, Reply::Nil) {
            return Err(Refused::Missing);
        }
        let [content, _, time] = some(told)?;
        let Reply::Number(time) = time else {
            return Err(unexpected());
        };
        let since = Duration::from_nanos(u64::try_from(time).unwrap_or(0));
        Ok(Value {
            text: text(content)?,
            changed: UNIX_EPOCH + since,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::mount::server::{lock, told};
    use std::sync::Mutex;

    /// The beginning of a request, and its reply.
    type Scripted = (&'static str, fn() -> Reply);

    /// Replies, and the requests so far.
    struct Script {
        replies: Vec<Scripted>,
        asked: Mutex<Vec<String>>,
    }

    fn bulk(text: &str) -> Reply {
        Reply::Text(text.as_bytes().to_vec())
    }

    fn error(text: &str) -> Reply {
        Reply::Error(text.to_owned())
    }

    impl Ask for Script {
        fn ask(&self, words: &[&[u8]]) -> Result<Reply, Refused> {
            let words = String::from_utf8_lossy(&words.join(&b' ')).into_owned();
            let mut replies = self.replies.iter();
            let found = replies.find(|(begins, _)| words.starts_with(begins));
            lock(&self.asked).push(words.clone());
            let (_, reply) = found.unwrap_or_else(|| panic!("{words}"));
            told(reply())
        }
    }

    fn services() -> Services<Script> {
        let replies: Vec<Scripted> = vec![
            ("QUINTET.SHARDS", || {
                let shards = [
                    "7 store/0 2 Store 9",
                    "8 store/1 2 Store 9",
                    "9 odd%/0 1 Odd 9",
                ];
                Reply::List(shards.map(bulk).into())
            }),
            ("QUINTET.FIELDS store/1", || {
                let field = |kind, name| Reply::List(vec![bulk(kind), bulk(name)]);
                Reply::List(vec![field("map", "items"), field("value", "count")])
            }),
            ("QUINTET.VERSION store/1 AT v:17", || {
                Reply::List(vec![Reply::Number(17), Reply::Number(5)])
            }),
            ("QUINTET.VERSION store/1 AT v:99", || {
                error("NOTYET it has not come")
            }),
            ("QUINTET.VERSION store/1 AT v:2", || {
                error("NOHISTORY from version 3 on")
            }),
            ("QUINTET.VERSION store/1 AT 2026-11-21T12:00:00Z", || {
                Reply::List(vec![Reply::Number(3), Reply::Number(5)])
            }),
            ("QUINTET.KEYS store/1 items FROM b", || {
                Reply::List(vec![Reply::Nil, Reply::List(vec![bulk("b/c")])])
            }),
            ("QUINTET.KEYS store/1 items", || {
                Reply::List(vec![bulk("b"), Reply::List(vec![bulk("a")])])
            }),
            ("QUINTET.VALUE store/1 items KEY a", || {
                Reply::List(vec![bulk("one"), Reply::Number(17), Reply::Number(1_500)])
            }),
            ("QUINTET.VALUE store/1 items KEY none", || Reply::Nil),
            ("QUINTET.VALUE store/1 items KEY odd", || {
                error("BADKEY 'odd' is no key")
            }),
            ("QUINTET.VALUE store/1 items KEY big", || {
                error("TOOLARGE 99 bytes")
            }),
            ("QUINTET.VALUE store/1 count", || {
                Reply::List(vec![bulk("2\n"), Reply::Number(4), Reply::Number(7)])
            }),
        ];
        Services(Script {
            replies,
            asked: Mutex::default(),
        })
    }

    fn walk(tree: &Services<Script>, path: &str) -> Result<Node, Refused> {
        let mut names = path.split('/');
        names.try_fold(Services::<Script>::ROOT, |node, name| {
            tree.child(&node, name.as_bytes())
        })
    }

    fn names(tree: &Services<Script>, path: &str) -> Vec<String> {
        let directory = match path {
            "" => Services::<Script>::ROOT,
            path => walk(tree, path).expect(path),
        };
        let entries = tree.entries(&directory).expect(path).into_iter();
        entries
            .map(|(name, _)| String::from_utf8(name).expect("text"))
            .collect()
    }

    #[test]
    fn shards_fields_and_keys_are_directories_and_files() {
        let tree = services();
        assert_eq!(names(&tree, ""), ["store", "odd%25"]);
        assert_eq!(names(&tree, "store"), ["0", "1"]);
        assert_eq!(names(&tree, "odd%25"), ["0"]);
        assert_eq!(names(&tree, "store/1"), ["items", "count"]);
        assert_eq!(names(&tree, "store/1/items"), ["a", "b%2Fc"]);
        let file = walk(&tree, "store/1/items/a").expect("a file");
        assert!(!Services::<Script>::is_directory(&file));
        assert_eq!(tree.content(&file).expect("read"), b"one");
        let stat = tree.stat(&file).expect("told");
        assert_eq!(stat.size, 3);
        assert_eq!(stat.changed, UNIX_EPOCH + Duration::from_nanos(1_500));
        let count = walk(&tree, "store/1/count").expect("a file");
        assert!(!Services::<Script>::is_directory(&count));
        assert_eq!(tree.content(&count).expect("read"), b"2\n");
    }

    #[test]
    fn past_stands_behind_shards_and_fields_and_is_asked_for() {
        for (path, asked) in [
            (
                "store/1/items@v:17/a",
                "QUINTET.VALUE store/1 items KEY a AT v:17",
            ),
            (
                "store/1@v:17/items/a",
                "QUINTET.VALUE store/1 items KEY a AT v:17",
            ),
            ("store/1/count@v:17", "QUINTET.VALUE store/1 count AT v:17"),
            (
                "store/1/count@2026-11-21T12:00:00Z",
                "QUINTET.VALUE store/1 count AT 2026-11-21T12:00:00Z",
            ),
        ] {
            let tree = services();
            let file = walk(&tree, path).expect(path);
            assert!(Services::<Script>::is_past(&file), "{path}");
            tree.content(&file).expect(path);
            assert_eq!(lock(&tree.0.asked).last().map(String::as_str), Some(asked));
        }
        let tree = services();
        assert!(!Services::<Script>::is_past(
            &walk(&tree, "store/1/items/a").expect("a file")
        ));
        assert_eq!(names(&tree, "store/1/items@v:17"), ["a", "b%2Fc"]);
        let last = lock(&tree.0.asked).last().cloned();
        assert_eq!(
            last.as_deref(),
            Some("QUINTET.KEYS store/1 items FROM b AT v:17")
        );
    }

    #[test]
    fn names_of_nothing_are_missing() {
        let tree = services();
        for path in [
            "cache",
            "store/2",
            "store/01",
            "store@v:17",
            "store/1/prices",
            "store/1/items@now",
            "store/1/items@yesterday",
            "store/1/items@",
            // Hours ahead of any clock.
            "store/1/items@2999-11-21T12:00:00Z",
            "store/1/items@v:99",
            "store/1@v:17/items@v:17",
            "store/1/items/b%2fc",
            "store/1/items/a/b",
        ] {
            let found = walk(&tree, path);
            assert!(matches!(found, Err(Refused::Missing)), "{path}: {found:?}");
        }
        assert!(
            !lock(&tree.0.asked)
                .iter()
                .any(|asked| asked.contains("2999"))
        );
        let trimmed = walk(&tree, "store/1/items@v:2");
        assert!(matches!(trimmed, Err(Refused::NotKept(_))), "{trimmed:?}");
        for (key, is_missing) in [("none", true), ("odd", true), ("big", false)] {
            let file = walk(&tree, &format!("store/1/items/{key}")).expect("a name");
            match tree.content(&file) {
                Err(Refused::Missing) => assert!(is_missing, "{key}"),
                Err(Refused::TooLarge(_)) => assert!(!is_missing, "{key}"),
                other => panic!("{key}: {other:?}"),
            }
        }
    }
}

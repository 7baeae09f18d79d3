//! A warehouse on 16 processes: balancers, a cache and a durable store, after Fig. 1 of Jha et al.,
//! "Derecho: Fast State Machine Replication for Cloud Services" (TOCS 2019).
//!
//! ```text
//!   balancers 0 to 3 ── read ──► cache/K ── not there, or older ──► store/K
//!                    │             └─ reads notice/K at the same member
//!                    └─ write ─► store/K ── handed off ──► notice/K: the key has a newer version
//! ```
//!
//! `cargo run --release -p quintet --example warehouse` starts the processes, kills each of them in
//! turn with SIGKILL while the balancers work, starts it again, and checks that no acknowledged write
//! is lost and no read is older than the last write. `--kills N` kills the first N only.

use quintet::groups::{
    Bytes, CallContext, CallError, Group, Persistent, PersistentMap, Place, Service, Version,
    VolatileMap, service,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// A pallet: its revision and its picture.
#[derive(Clone, Serialize, Deserialize)]
struct Item {
    revision: u64,
    picture: Bytes,
}

#[derive(Default, Service)]
struct Store {
    items: PersistentMap<String, Item>,
    writes: Persistent<u64>,
}

#[service]
impl Store {
    /// Puts an item under a key; the cache's notices tell that it has another version now.
    #[ordered]
    fn put(&mut self, context: &mut CallContext, shard: usize, key: String, item: Item) -> Version {
        let version = context.version();
        let changed = Notice::calls().changed(key.clone(), version);
        context.then("notice", shard, changed);
        self.items.insert(key, item);
        *self.writes += 1;
        version
    }
    #[query]
    fn get(&self, key: &str) -> Option<(Version, Item)> {
        let (version, item) = self.items.get_versioned(key)?;
        Some((version, item.clone()))
    }
}

/// The newest version of each key.
#[derive(Default, Service)]
struct Notice {
    newest: VolatileMap<String, Version>,
}

#[service]
impl Notice {
    #[ordered]
    fn changed(&mut self, key: String, version: Version) {
        self.newest.insert(key, version);
    }
}

#[derive(Default, Service)]
struct Cache {
    filled: VolatileMap<String, (Version, Item)>,
}

#[service]
impl Cache {
    #[ordered]
    fn fill(&mut self, key: String, version: Version, item: Item) {
        let filled = self.filled.get(&key);
        if filled.is_none_or(|(filled, _)| *filled < version) {
            self.filled.insert(key, (version, item));
        }
    }
    /// The item, unless the store has a newer one.
    #[query]
    fn get(&self, place: &Place, key: &str) -> Option<Item> {
        let (version, item) = self.filled.get(key)?;
        let newest = place.sibling::<Notice>("notice")?.newest.get(key);
        newest
            .is_none_or(|newest| newest <= version)
            .then(|| item.clone())
    }
}

const LAYOUT: &str = include_str!("layout.toml");
const MEMBERS: u16 = 16;
const BALANCERS: u16 = 4;
const SHARDS: usize = 4;
const KEYS: u64 = 8;

fn shard_of(key: &str) -> usize {
    quintet::runtime::layout::shard_of(key.as_bytes(), SHARDS)
}

/// The item, and whether the cache had it.
fn read(group: &Group, key: &str) -> Result<Option<(Item, bool)>, CallError> {
    let cache = group.shard_of::<Cache>("cache", key)?;
    // Without its cache a shard is slower, and not wrong.
    if let Ok(Some(item)) = cache
        .query()
        .get(key)
        .deadline(Duration::from_secs(2))
        .wait()
    {
        return Ok(Some((item, true)));
    }
    let store = group.shard_of::<Store>("store", key)?;
    let Some((version, item)) = store.query().get(key).wait()? else {
        return Ok(None);
    };
    drop(cache.ordered().fill(key.to_owned(), version, item.clone()));
    Ok(Some((item, false)))
}

fn write(group: &Group, key: &str, item: Item) -> Result<Version, CallError> {
    let store = group.shard_of::<Store>("store", key)?;
    let put = store.ordered().put(shard_of(key), key.to_owned(), item);
    // Until the notice is there, the cache may answer with the item before.
    put.handed_off()
}

/// One process.
fn member(id: u16, addresses: &[String], directory: &str) -> Outcome {
    let (peers, calls) = addresses.split_at(addresses.len() / 2);
    let group = Group::member("warehouse", id, peers, directory)
        .calls_at(calls)
        .layout(LAYOUT)
        .deadline(Duration::from_secs(5))
        .serve::<Store>()
        .serve::<Notice>()
        .serve::<Cache>()
        .start()?;
    if id < BALANCERS {
        return balance(id, &Arc::new(group));
    }
    // Until the other end is closed.
    for line in std::io::stdin().lines() {
        line?;
    }
    Ok(())
}

/// Writes and reads keys of its own, and tells what was acknowledged, until it is told to stop. Then
/// it answers questions.
fn balance(id: u16, group: &Arc<Group>) -> Outcome {
    let stops = Arc::new(AtomicBool::new(false));
    let work = {
        let (group, stops) = (group.clone(), stops.clone());
        thread::spawn(move || {
            let keys: Vec<String> = (0..KEYS).map(|number| format!("{id}/{number}")).collect();
            let mut revision = 0;
            for key in &keys {
                revision = revision.max(known(&group, key, &stops));
            }
            while !stops.load(Ordering::Relaxed) {
                revision += 1;
                let key = &keys[(revision % KEYS) as usize];
                let picture = Bytes::from(vec![revision as u8; 1024]);
                if write(&group, key, Item { revision, picture }).is_err() {
                    thread::sleep(Duration::from_millis(50));
                    continue;
                }
                println!("written {key} {revision}");
                // From the store, as a rule, and then from the cache.
                for _ in 0..2 {
                    let Ok(found) = read(&group, key) else {
                        continue;
                    };
                    let cached = u8::from(found.as_ref().is_some_and(|(_, cached)| *cached));
                    let found = found.map_or(0, |(item, _)| item.revision);
                    if found != revision {
                        println!("wrong {key}: revision {found}, and {revision} was written");
                    }
                    println!("read {key} {cached}");
                }
            }
        })
    };
    let mut work = Some(work);
    for line in std::io::stdin().lines() {
        let line = line?;
        if line == "stop" {
            stops.store(true, Ordering::Relaxed);
            work.take().map(thread::JoinHandle::join);
            println!("stopped");
        } else if let Some(key) = line.strip_prefix("ask ") {
            println!("found {key} {}", known(group, key, &AtomicBool::new(false)));
        }
    }
    Ok(())
}

/// The revision of a key, asked until there is an answer.
fn known(group: &Group, key: &str, stops: &AtomicBool) -> u64 {
    while !stops.load(Ordering::Relaxed) {
        match read(group, key) {
            Ok(found) => return found.map_or(0, |(item, _)| item.revision),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
    0
}

/// The words of the balancers, summed up.
#[derive(Default)]
struct Told {
    written: HashMap<String, u64>,
    found: HashMap<String, u64>,
    writes: u64,
    reads: u64,
    cached: u64,
    stopped: usize,
    wrong: Vec<String>,
}

impl Told {
    fn take(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| {
            words
                .get(at)
                .and_then(|word| word.parse().ok())
                .unwrap_or(0)
        };
        match words[..] {
            ["written", key, _] => {
                self.written.insert(key.to_owned(), number(2));
                self.writes += 1;
            }
            ["read", _, _] => {
                self.reads += 1;
                self.cached += number(2);
            }
            ["found", key, _] => {
                self.found.insert(key.to_owned(), number(2));
            }
            ["stopped"] => self.stopped += 1,
            _ => self.wrong.push(line.to_owned()),
        }
    }
}

struct Warehouse {
    addresses: Vec<String>,
    directory: tempfile::TempDir,
    children: Vec<(Child, ChildStdin)>,
    told: Arc<Mutex<Told>>,
}

impl Warehouse {
    fn open() -> Outcome<Self> {
        // Where the members talk to each other, and where they serve calls.
        let listeners: Vec<_> = (0..2 * MEMBERS)
            .map(|_| TcpListener::bind("127.0.0.1:0"))
            .collect::<Result<_, _>>()?;
        let addresses = listeners.iter().map(|it| Ok(it.local_addr()?.to_string()));
        let addresses = addresses.collect::<Outcome<Vec<_>>>()?;
        drop(listeners);
        let mut warehouse = Self {
            addresses,
            directory: tempfile::tempdir()?,
            children: Vec::new(),
            told: Arc::default(),
        };
        for id in 0..MEMBERS {
            let child = warehouse.start(id)?;
            warehouse.children.push(child);
        }
        Ok(warehouse)
    }

    fn start(&self, id: u16) -> Outcome<(Child, ChildStdin)> {
        let directory = self.directory.path().join(format!("member-{id}"));
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("member").arg(id.to_string()).arg(directory);
        command.args(&self.addresses);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdin = child.stdin.take().ok_or("a pipe")?;
        let stdout = BufReader::new(child.stdout.take().ok_or("a pipe")?);
        let told = self.told.clone();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                told.lock().expect("no panic with the lock").take(&line);
            }
        });
        Ok((child, stdin))
    }

    /// Waits until the balancers have written so much more, whichever works.
    fn wait_for_writes(&self, more: u64, what: &str) -> Outcome<Duration> {
        let begun = Instant::now();
        let before = self.told().writes;
        while self.told().writes < before + more {
            if begun.elapsed() > Duration::from_secs(60) {
                return Err(format!("{what}: nothing was written for a minute").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(begun.elapsed())
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().expect("no panic with the lock")
    }

    fn kill(&mut self, id: u16) -> Outcome {
        let (child, _) = &mut self.children[usize::from(id)];
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    fn check(&mut self) -> Outcome {
        for id in 0..usize::from(BALANCERS) {
            writeln!(self.children[id].1, "stop")?;
        }
        self.wait_until("the balancers stop", |told| {
            told.stopped == usize::from(BALANCERS)
        })?;
        let written = self.told().written.clone();
        for key in written.keys() {
            writeln!(self.children[0].1, "ask {key}")?;
        }
        self.wait_until("the store answers", |told| {
            told.found.len() == written.len()
        })?;
        let told = self.told();
        for (key, revision) in &written {
            let found = told.found[key];
            // A write without an answer may have been executed.
            if found < *revision {
                return Err(format!("{key}: revision {found} is there, {revision} is lost").into());
            }
        }
        match told.wrong.first() {
            Some(wrong) => Err(wrong.clone().into()),
            None => Ok(()),
        }
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Told) -> bool) -> Outcome {
        let begun = Instant::now();
        while !is_so(&self.told()) {
            if begun.elapsed() > Duration::from_secs(60) {
                return Err(format!("not within a minute: {what}").into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Warehouse {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, id, directory, addresses @ ..] = &arguments[..]
        && first == "member"
    {
        return member(id.parse()?, addresses, directory);
    }
    let kills = match &arguments[..] {
        [] => MEMBERS,
        [flag, kills] if flag == "--kills" => kills.parse::<u16>()?.min(MEMBERS),
        _ => return Err("usage: warehouse [--kills N]".into()),
    };
    let mut warehouse = Warehouse::open()?;
    warehouse.wait_for_writes(20, "at the start")?;
    println!("{MEMBERS} members work");
    for nth in 0..kills {
        // Some of each kind, however few are killed.
        let id = nth * 5 % MEMBERS;
        warehouse.kill(id)?;
        let pause = warehouse.wait_for_writes(20, &format!("without member {id}"))?;
        println!(
            "killed member {id}: 20 writes took {} ms",
            pause.as_millis()
        );
        warehouse.children[usize::from(id)] = warehouse.start(id)?;
        warehouse.wait_for_writes(20, &format!("with member {id} again"))?;
    }
    warehouse.check()?;
    let told = warehouse.told();
    println!(
        "{} writes and {} reads, {} of them from the cache; all acknowledged writes are there",
        told.writes, told.reads, told.cached
    );
    drop(told);
    Ok(())
}

//! `quintet mount`: the store as files, also as it was.
//!
//! ```text
//!   DIRECTORY/db0/KEY               what the key holds
//!   DIRECTORY/db0@TIME/KEY          what it held then: permanently the same
//!
//!   kernel ──► lookup, read ──► QUINTET.AT TIME … ──► any replica or proxy
//! ```
//!
//! Read only. A directory of a time need not be listed to be entered. An open file keeps what it had
//! when it was opened.

use crate::cli::{
    password::Password,
    resp::{Client, Reply},
};
use clap::Args;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};
use quintet_cli::{
    Exit, Failure, Outcome, output,
    signals::{Hangup, channel_of_stops},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc::RecvTimeoutError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Longer than a replica waits for a time to come.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The present changes at any moment; the past never does.
const PRESENT: Duration = Duration::ZERO;
const PAST: Duration = Duration::from_secs(3600);
const OPEN_MAX: usize = 1024;
/// Changes of a key that are looked through for the time of one of them.
const CHANGES_MAX: &[u8] = b"1000";

/// Mount the store as a directory of files, also as it was at a time
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  quintet mount /mnt/store                              the demo
  quintet mount /mnt/store --server 10.0.0.1:6379 --server 10.0.0.2:6379
  cat /mnt/store/db0/greeting
  diff -r /mnt/store/db0@2026-11-21T12:00:00Z /mnt/store/db0

Read only. A directory db0@TIME need not be listed to be entered; a time is as of QUINTET.AT. The
cluster must keep the past for it: redis-cli -p 7001 QUINTET.RETAIN SECONDS 3600 BYTES 268435456.
Names of keys are percent-encoded where a file's name needs it. Ctrl-C or umount ends it.")]
pub struct Mount {
    /// An empty directory
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,

    /// Where a replica or a proxy serves Redis clients; repeated, another one when it fails
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7001")]
    server: Vec<String>,

    #[command(flatten)]
    password: Password,
}

impl Mount {
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    pub fn run(self) -> Outcome {
        let server = Server {
            addresses: self.server.clone(),
            password: self.password.as_deref().map(str::to_owned),
            client: Mutex::new(None),
        };
        server.ask(&[b"PING"]).map_err(|error| {
            Failure::new(
                Exit::Unreachable,
                format!("{}: {error}", self.server.join(", ")),
            )
            .help("name a replica that runs with --server HOST:PORT")
        })?;
        let mut options = Config::default();
        options.mount_options = vec![
            MountOption::RO,
            MountOption::FSName(self.server.join(",")),
            MountOption::Subtype("quintet".to_owned()),
        ];
        let files = Files {
            server,
            nodes: Mutex::default(),
            open: Mutex::default(),
        };
        let (_sender, stops) = channel_of_stops(Hangup::Stops)?;
        let directory = self.directory.display();
        let session = fuser::spawn_mount(files, &self.directory, &options).map_err(|error| {
            let help =
                "the directory must exist, /dev/fuse too, and mounting takes root or fusermount3";
            Failure::new(Exit::Refused, format!("{directory}: {error}")).help(help)
        })?;
        output::print(&format!(
            "{} is mounted on {directory}\n",
            self.server.join(", ")
        ))?;
        loop {
            match stops.recv_timeout(Duration::from_millis(100)) {
                Err(RecvTimeoutError::Timeout) if is_mounted(&session) => {}
                _ => break,
            }
        }
        if !is_mounted(&session) {
            // Another program has unmounted it.
            return Ok(());
        }
        let ended = session.umount_and_join();
        ended.map_err(|error| {
            Failure::new(Exit::Failed, format!("{directory}: {error}"))
                .help("close the files that are open there, then: umount the directory")
        })
    }
}

fn is_mounted(session: &BackgroundSession) -> bool {
    !session.guard.is_finished()
}

/// A file or directory: its time as asked for, and its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Node {
    Root,
    Database(Option<String>),
    Key(Option<String>, Vec<u8>),
}

impl Node {
    fn time_to_live(&self) -> Duration {
        match self {
            Self::Root | Self::Database(None) | Self::Key(None, _) => PRESENT,
            Self::Database(Some(_)) | Self::Key(Some(_), _) => PAST,
        }
    }
}

/// The numbers that the kernel knows nodes by, and how often it was told each.
#[derive(Debug)]
struct Nodes {
    numbers: HashMap<Node, u64>,
    nodes: HashMap<u64, (Node, u64)>,
    last: u64,
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            numbers: HashMap::from([(Node::Root, 1)]),
            nodes: HashMap::from([(1, (Node::Root, 1))]),
            last: 1,
        }
    }
}

impl Nodes {
    fn number(&mut self, node: &Node, told: u64) -> u64 {
        let number = *self.numbers.entry(node.clone()).or_insert_with(|| {
            self.last += 1;
            self.last
        });
        let entry = self.nodes.entry(number);
        entry.or_insert_with(|| (node.clone(), 0)).1 += told;
        number
    }

    fn forget(&mut self, number: u64, told: u64) {
        if number != 1
            && let Some((node, count)) = self.nodes.get_mut(&number)
        {
            *count = count.saturating_sub(told);
            if *count == 0 {
                self.numbers.remove(node);
                self.nodes.remove(&number);
            }
        }
    }
}

/// The replica that is asked.
struct Server {
    addresses: Vec<String>,
    password: Option<String>,
    client: Mutex<Option<Client>>,
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Connects to the first that answers.
    fn connect(&self) -> io::Result<Client> {
        let mut tried = self
            .addresses
            .iter()
            .map(|address| self.connect_to(address));
        let first = tried.next().unwrap_or_else(|| Err(unexpected()));
        first.or_else(|error| tried.find_map(Result::ok).ok_or(error))
    }

    fn connect_to(&self, address: &str) -> io::Result<Client> {
        let mut client = Client::connect(address, TIMEOUT)?;
        if let Some(password) = &self.password
            && let Reply::Error(text) = client.ask(&[b"AUTH", password.as_bytes()])?
        {
            return Err(io::Error::other(text));
        }
        Ok(client)
    }

    /// Asks, once more on a new connection where the old one has ended.
    fn ask(&self, words: &[&[u8]]) -> io::Result<Reply> {
        let mut slot = lock(&self.client);
        if let Some(client) = &mut *slot {
            match client.ask(words) {
                Ok(reply) => return told(reply),
                Err(_) => *slot = None,
            }
        }
        let mut client = self.connect()?;
        let reply = client.ask(words)?;
        *slot = Some(client);
        told(reply)
    }

    /// Asks of the present, or of a time.
    fn ask_at(&self, time: Option<&str>, words: &[&[u8]]) -> io::Result<Reply> {
        match time {
            None => self.ask(words),
            Some(time) => self.ask(&[&[&b"QUINTET.AT"[..], time.as_bytes()], words].concat()),
        }
    }

    /// The content of a key as a file; `None` where there is no such key.
    fn content(&self, time: Option<&str>, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let kind = text(self.ask_at(time, &[b"TYPE", key])?)?;
        let words: &[&[u8]] = match &kind[..] {
            b"none" => return Ok(None),
            b"string" => &[b"GET", key],
            b"list" => &[b"LRANGE", key, b"0", b"-1"],
            b"set" => &[b"SMEMBERS", key],
            b"hash" => &[b"HGETALL", key],
            b"zset" => &[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"],
            _ => return Err(io::Error::other("a type without a form as a file")),
        };
        let all = match self.ask_at(time, words)? {
            Reply::Nil => return Ok(None),
            Reply::Text(bytes) => return Ok(Some(bytes)),
            Reply::List(all) => all.into_iter().map(text).collect::<io::Result<Vec<_>>>()?,
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
    fn keys(&self, time: Option<&str>) -> io::Result<BTreeSet<Vec<u8>>> {
        let (mut keys, mut cursor) = (BTreeSet::new(), b"0".to_vec());
        loop {
            let (next, page) = pair(self.ask(&[b"SCAN", &cursor, b"COUNT", b"1000"])?)?;
            for key in list(page)? {
                keys.insert(text(key)?);
            }
            cursor = text(next)?;
            if cursor == b"0" {
                break;
            }
        }
        let Some(time) = time else {
            return Ok(keys);
        };
        let mut cursor = b"0".to_vec();
        loop {
            let words: [&[u8]; 5] = [b"QUINTET.DIFF", time.as_bytes(), b"now", b"CURSOR", &cursor];
            let (next, page) = pair(self.ask(&words)?)?;
            for change in list(page)? {
                let (key, change) = pair(change)?;
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
            .ask(&[b"QUINTET.HISTORY", key, b"LIMIT", CHANGES_MAX])
            .ok()?;
        let until = time.map(|time| {
            let told = self.ask(&[b"QUINTET.AT", time.as_bytes(), b"TIME"]);
            let (seconds, micros) = pair(told.ok()?).ok()?;
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

fn unexpected() -> io::Error {
    io::Error::other("an answer of another form")
}

/// A reply that is no error.
fn told(reply: Reply) -> io::Result<Reply> {
    match reply {
        Reply::Error(text) if text.starts_with("NOHISTORY") => {
            Err(io::Error::new(io::ErrorKind::NotFound, text))
        }
        Reply::Error(text) => Err(io::Error::other(text)),
        reply => Ok(reply),
    }
}

fn text(reply: Reply) -> io::Result<Vec<u8>> {
    match reply {
        Reply::Text(bytes) => Ok(bytes),
        Reply::Number(number) => Ok(number.to_string().into_bytes()),
        _ => Err(unexpected()),
    }
}

fn list(reply: Reply) -> io::Result<Vec<Reply>> {
    match reply {
        Reply::List(all) => Ok(all),
        _ => Err(unexpected()),
    }
}

fn pair(reply: Reply) -> io::Result<(Reply, Reply)> {
    let two: [Reply; 2] = list(reply)?.try_into().map_err(|_| unexpected())?;
    Ok(two.into())
}

/// A key as a file's name.
fn name_of(key: &[u8]) -> Vec<u8> {
    let mut name = Vec::new();
    let is_dots = key == b"." || key == b"..";
    for byte in key {
        match byte {
            b'/' | b'%' | 0..=31 | 127 => name.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            b'.' if is_dots => name.extend_from_slice(b"%2E"),
            byte => name.push(*byte),
        }
    }
    match name.is_empty() {
        true => b"%".to_vec(),
        false => name,
    }
}

/// The key of such a name; `None` where no key has it.
fn key_of(name: &[u8]) -> Option<Vec<u8>> {
    if name == b"%" {
        return Some(Vec::new());
    }
    let (mut key, mut rest) = (Vec::new(), name);
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'%' {
            key.push(*byte);
            continue;
        }
        let (digits, behind) = rest.split_at_checked(2)?;
        key.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = behind;
    }
    // Another spelling of the same key is none.
    (name_of(&key) == name).then_some(key)
}

struct Files {
    server: Server,
    nodes: Mutex<Nodes>,
    open: Mutex<BTreeMap<u64, Arc<Vec<u8>>>>,
}

fn errno(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::NotFound => Errno::ENODATA,
        _ => {
            tracing::warn!(%error, "a file cannot be read");
            Errno::EIO
        }
    }
}

impl Files {
    fn node(&self, number: INodeNo) -> Result<Node, Errno> {
        let nodes = lock(&self.nodes);
        let found = nodes.nodes.get(&number.0).map(|(node, _)| node.clone());
        found.ok_or(Errno::ESTALE)
    }

    /// The node of a name, if it exists.
    fn child(&self, parent: &Node, name: &OsStr) -> Result<Node, Errno> {
        let name = name.as_bytes();
        match parent {
            Node::Root => {
                let time = match name.strip_prefix(b"db0").ok_or(Errno::ENOENT)? {
                    b"" => None,
                    rest => Some(rest.strip_prefix(b"@").ok_or(Errno::ENOENT)?),
                };
                let time = time.map(|time| String::from_utf8(time.to_vec()));
                let time = time.transpose().map_err(|_| Errno::ENOENT)?;
                if let Some(time) = &time {
                    // The present is no time that stays.
                    let stays = !time.eq_ignore_ascii_case("now");
                    let asked = || self.server.ask_at(Some(time), &[b"EXISTS", b""]);
                    if !stays || asked().is_err() {
                        return Err(Errno::ENOENT);
                    }
                }
                Ok(Node::Database(time))
            }
            Node::Database(time) => {
                let key = key_of(name).ok_or(Errno::ENOENT)?;
                Ok(Node::Key(time.clone(), key))
            }
            Node::Key(..) => Err(Errno::ENOTDIR),
        }
    }

    fn attributes(&self, node: &Node, number: u64, of: &Request) -> Result<FileAttr, Errno> {
        let (mut size, mut changed) = (0, UNIX_EPOCH);
        if let Node::Key(time, key) = node {
            let content = self.server.content(time.as_deref(), key);
            let content = content.map_err(|error| errno(&error))?;
            size = content.ok_or(Errno::ENOENT)?.len() as u64;
            changed = self
                .server
                .changed_at(time.as_deref(), key)
                .unwrap_or(UNIX_EPOCH);
        }
        let (kind, perm) = match node {
            Node::Key(..) => (FileType::RegularFile, 0o444),
            _ => (FileType::Directory, 0o555),
        };
        Ok(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: changed,
            mtime: changed,
            ctime: changed,
            crtime: changed,
            kind,
            perm,
            nlink: 1,
            uid: of.uid(),
            gid: of.gid(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn look_up(
        &self,
        of: &Request,
        parent: INodeNo,
        name: &OsStr,
    ) -> Result<(Node, FileAttr), Errno> {
        let node = self.child(&self.node(parent)?, name)?;
        let mut attributes = self.attributes(&node, 0, of)?;
        attributes.ino = INodeNo(lock(&self.nodes).number(&node, 1));
        Ok((node, attributes))
    }

    fn listed(&self, number: INodeNo) -> Result<Vec<(Node, Vec<u8>, FileType)>, Errno> {
        match self.node(number)? {
            Node::Root => Ok(vec![(
                Node::Database(None),
                b"db0".to_vec(),
                FileType::Directory,
            )]),
            Node::Database(time) => {
                let keys = self.server.keys(time.as_deref());
                let keys = keys.map_err(|error| errno(&error))?.into_iter();
                let listed = keys.map(|key| {
                    let name = name_of(&key);
                    (Node::Key(time.clone(), key), name, FileType::RegularFile)
                });
                Ok(listed.collect())
            }
            Node::Key(..) => Err(Errno::ENOTDIR),
        }
    }

    fn opened(&self, number: INodeNo) -> Result<u64, Errno> {
        let Node::Key(time, key) = self.node(number)? else {
            return Err(Errno::EISDIR);
        };
        let content = self.server.content(time.as_deref(), &key);
        let content = content
            .map_err(|error| errno(&error))?
            .ok_or(Errno::ENOENT)?;
        let mut open = lock(&self.open);
        if open.len() >= OPEN_MAX {
            return Err(Errno::ENFILE);
        }
        let handle = open.last_key_value().map_or(1, |(last, _)| last + 1);
        open.insert(handle, Arc::new(content));
        Ok(handle)
    }
}

impl Filesystem for Files {
    fn lookup(&self, of: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(of, parent, name) {
            Ok((node, attributes)) => {
                reply.entry(&node.time_to_live(), &attributes, Generation(0));
            }
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, told: u64) {
        lock(&self.nodes).forget(number.0, told);
    }

    fn getattr(&self, of: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let node = self.node(number);
        let found = node.and_then(|node| {
            let attributes = self.attributes(&node, number.0, of)?;
            Ok((node, attributes))
        });
        match found {
            Ok((node, attributes)) => reply.attr(&node.time_to_live(), &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.opened(number) {
            // Its length may differ from the one that the kernel was told before.
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let content = lock(&self.open).get(&handle.0).cloned();
        match content {
            Some(content) => {
                let from = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(content.len());
                let upto = from.saturating_add(size as usize).min(content.len());
                reply.data(&content[from..upto]);
            }
            None => reply.error(Errno::EBADF),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        lock(&self.open).remove(&handle.0);
        reply.ok();
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = match self.listed(number) {
            Ok(listed) => listed,
            Err(error) => return reply.error(error),
        };
        let own = [(number.0, &b"."[..]), (1, b"..")];
        let own = own.map(|(number, name)| (number, name.to_vec(), FileType::Directory));
        let known = lock(&self.nodes);
        // A number that the kernel was not told by a lookup is a placeholder.
        let number_of = |node: &Node| known.numbers.get(node).copied().unwrap_or(u64::MAX);
        let all = own.into_iter().chain(
            listed
                .into_iter()
                .map(|(node, name, kind)| (number_of(&node), name, kind)),
        );
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (number, name, kind)) in all.enumerate().skip(from) {
            let name = OsStr::from_bytes(&name);
            if reply.add(INodeNo(number), place as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_their_keys() {
        let keys: [&[u8]; 9] = [
            b"",
            b"a",
            b".",
            b"..",
            b"...",
            b"a/b",
            b"100%",
            b"\x00\n\x7f",
            b"\xff\xfe",
        ];
        for key in keys {
            let name = name_of(key);
            assert!(!name.contains(&b'/') && !name.contains(&0) && !name.is_empty());
            assert_eq!(key_of(&name).as_deref(), Some(key));
        }
        for name in [&b"%2"[..], b"%zz", b"%41", b"a%", b"%2e"] {
            assert_eq!(key_of(name), None);
        }
    }

    #[test]
    fn node_is_known_until_the_kernel_forgets_it() {
        let mut nodes = Nodes::default();
        let node = Node::Key(None, b"a".to_vec());
        let number = nodes.number(&node, 1);
        assert_eq!(nodes.number(&node, 1), number);
        nodes.forget(number, 1);
        assert!(nodes.nodes.contains_key(&number));
        nodes.forget(number, 1);
        assert!(!nodes.nodes.contains_key(&number) && nodes.numbers.len() == 1);
        nodes.forget(1, 9);
        assert_eq!(nodes.number(&Node::Root, 0), 1);
    }
}

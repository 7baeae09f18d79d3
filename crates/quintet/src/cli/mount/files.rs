//! A tree as the kernel sees it: numbers of files, open files, listings.

use super::{
    names::NAME_BYTES_MAX,
    server::{Refused, lock},
};
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, Request,
};
use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsStr,
    fmt::Debug,
    hash::Hash,
    os::unix::ffi::OsStrExt,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The present changes at any moment; the past never does.
const PRESENT: Duration = Duration::ZERO;
const PAST: Duration = Duration::from_secs(3600);
/// Files, and directories, that are open at once.
const OPEN_MAX: usize = 1024;
/// A directory with more is not listed; its files can be read.
pub const LISTED_MAX: usize = 1_000_000;

/// Names in a directory.
pub type Listing<N> = Vec<(Vec<u8>, N)>;

/// A tree that is mounted.
pub trait Tree: Send + Sync + 'static {
    /// A file or directory.
    type Node: Clone + Debug + Eq + Hash + Send + Sync + 'static;
    const ROOT: Self::Node;

    fn is_directory(node: &Self::Node) -> bool;
    /// Whether it never changes.
    fn is_past(node: &Self::Node) -> bool;
    /// The node of this name in a directory. Of a file it is found out by `stat` whether it is there.
    fn child(&self, parent: &Self::Node, name: &[u8]) -> Result<Self::Node, Refused>;
    /// The names in a directory.
    fn entries(&self, directory: &Self::Node) -> Result<Listing<Self::Node>, Refused>;
    fn content(&self, file: &Self::Node) -> Result<Vec<u8>, Refused>;
    fn stat(&self, file: &Self::Node) -> Result<Stat, Refused>;
}

/// Size and time of a file.
#[derive(Clone, Copy, Debug)]
pub struct Stat {
    pub size: u64,
    pub changed: SystemTime,
}

/// Refuses a list that is longer than is shown.
pub fn too_many(names: usize) -> Result<(), Refused> {
    match names > LISTED_MAX {
        true => Err(Refused::TooLarge(format!(
            "it has more than {LISTED_MAX} names"
        ))),
        false => Ok(()),
    }
}

/// The numbers that the kernel knows nodes by, and how often it was told each.
#[derive(Debug)]
struct Nodes<N> {
    numbers: HashMap<N, u64>,
    nodes: HashMap<u64, (N, u64)>,
    last: u64,
}

impl<N: Clone + Eq + Hash> Nodes<N> {
    fn new(root: N) -> Self {
        Self {
            numbers: HashMap::from([(root.clone(), 1)]),
            nodes: HashMap::from([(1, (root, 1))]),
            last: 1,
        }
    }

    fn number(&mut self, node: &N, told: u64) -> u64 {
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

/// Open files or directories, by the handles that the kernel was told.
#[derive(Debug)]
struct Opened<T> {
    all: BTreeMap<u64, Arc<T>>,
    last: u64,
}

impl<T> Default for Opened<T> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            last: 0,
        }
    }
}

impl<T> Opened<T> {
    fn add(&mut self, it: T) -> Result<FileHandle, Errno> {
        if self.all.len() >= OPEN_MAX {
            return Err(Errno::ENFILE);
        }
        self.last += 1;
        self.all.insert(self.last, Arc::new(it));
        Ok(FileHandle(self.last))
    }

    fn get(&self, handle: FileHandle) -> Result<Arc<T>, Errno> {
        self.all.get(&handle.0).cloned().ok_or(Errno::EBADF)
    }
}

/// See the module.
pub struct Files<T: Tree> {
    tree: T,
    nodes: Mutex<Nodes<T::Node>>,
    files: Mutex<Opened<Vec<u8>>>,
    directories: Mutex<Opened<Listing<T::Node>>>,
}

fn errno(refused: &Refused) -> Errno {
    match refused {
        Refused::Missing => Errno::ENOENT,
        Refused::NotKept(_) => Errno::ENODATA,
        Refused::TooLarge(_) => {
            tracing::warn!("{refused}");
            Errno::EFBIG
        }
        Refused::NotOffered(_) => {
            tracing::warn!("{refused}");
            Errno::EOPNOTSUPP
        }
        Refused::Error(_) | Refused::Failed(_) => {
            tracing::warn!("a file cannot be read: {refused}");
            Errno::EIO
        }
    }
}

fn kind_of<T: Tree>(node: &T::Node) -> FileType {
    match T::is_directory(node) {
        true => FileType::Directory,
        false => FileType::RegularFile,
    }
}

fn time_to_live<T: Tree>(node: &T::Node) -> Duration {
    match T::is_past(node) {
        true => PAST,
        false => PRESENT,
    }
}

impl<T: Tree> Files<T> {
    pub fn new(tree: T) -> Self {
        Self {
            tree,
            nodes: Mutex::new(Nodes::new(T::ROOT)),
            files: Mutex::default(),
            directories: Mutex::default(),
        }
    }

    fn node(&self, number: INodeNo) -> Result<T::Node, Errno> {
        let nodes = lock(&self.nodes);
        let found = nodes.nodes.get(&number.0).map(|(node, _)| node.clone());
        found.ok_or(Errno::ESTALE)
    }

    fn attributes(
        &self,
        node: &T::Node,
        number: u64,
        (uid, gid): (u32, u32),
    ) -> Result<FileAttr, Errno> {
        let is_directory = T::is_directory(node);
        let stat = match is_directory {
            true => Stat {
                size: 0,
                changed: UNIX_EPOCH,
            },
            false => self.tree.stat(node).map_err(|error| errno(&error))?,
        };
        Ok(FileAttr {
            ino: INodeNo(number),
            size: stat.size,
            blocks: stat.size.div_ceil(512),
            atime: stat.changed,
            mtime: stat.changed,
            ctime: stat.changed,
            crtime: stat.changed,
            kind: kind_of::<T>(node),
            perm: if is_directory { 0o555 } else { 0o444 },
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn look_up(
        &self,
        of: (u32, u32),
        parent: INodeNo,
        name: &OsStr,
    ) -> Result<(T::Node, FileAttr), Errno> {
        let parent = self.node(parent)?;
        if !T::is_directory(&parent) {
            return Err(Errno::ENOTDIR);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let node = self.tree.child(&parent, name.as_bytes());
        let node = node.map_err(|error| errno(&error))?;
        let mut attributes = self.attributes(&node, 0, of)?;
        attributes.ino = INodeNo(lock(&self.nodes).number(&node, 1));
        Ok((node, attributes))
    }

    fn open_file(&self, number: INodeNo) -> Result<(FileHandle, FopenFlags), Errno> {
        let node = self.node(number)?;
        if T::is_directory(&node) {
            return Err(Errno::EISDIR);
        }
        let content = self.tree.content(&node).map_err(|error| errno(&error))?;
        let flags = match T::is_past(&node) {
            true => FopenFlags::FOPEN_KEEP_CACHE,
            // Its length may differ from the one that the kernel was told before.
            false => FopenFlags::FOPEN_DIRECT_IO,
        };
        Ok((lock(&self.files).add(content)?, flags))
    }

    fn read_file(&self, handle: FileHandle, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let content = lock(&self.files).get(handle)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let from = from.min(content.len());
        let upto = from.saturating_add(size as usize).min(content.len());
        Ok(content[from..upto].to_vec())
    }

    /// Lists a directory once: what comes and goes while it is read moves no other name.
    fn open_directory(&self, number: INodeNo) -> Result<FileHandle, Errno> {
        let node = self.node(number)?;
        if !T::is_directory(&node) {
            return Err(Errno::ENOTDIR);
        }
        let mut entries = self.tree.entries(&node).map_err(|error| errno(&error))?;
        let all = entries.len();
        entries.retain(|(name, _)| name.len() <= NAME_BYTES_MAX);
        if entries.len() < all {
            let hidden = all - entries.len();
            tracing::warn!("{hidden} names above {NAME_BYTES_MAX} bytes are not listed");
        }
        lock(&self.directories).add(entries)
    }

    /// The names of an open directory from a place on, with its own: number, kind, name.
    fn listed(
        &self,
        number: INodeNo,
        handle: FileHandle,
        from: u64,
        mut add: impl FnMut(INodeNo, u64, FileType, &[u8]) -> bool,
    ) -> Result<(), Errno> {
        let entries = lock(&self.directories).get(handle)?;
        let known = lock(&self.nodes);
        let own: [(INodeNo, &[u8]); 2] = [(number, b"."), (INodeNo(1), b"..")];
        let own = own.map(|(number, name)| (number, FileType::Directory, name));
        let all = own.into_iter().chain(entries.iter().map(|(name, node)| {
            // A number that the kernel was not told by a lookup is a placeholder.
            let number = known.numbers.get(node).copied().unwrap_or(u64::MAX);
            (INodeNo(number), kind_of::<T>(node), &name[..])
        }));
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        for (place, (number, kind, name)) in all.enumerate().skip(from) {
            if add(number, place as u64 + 1, kind, name) {
                break;
            }
        }
        Ok(())
    }
}

fn owner(of: &Request) -> (u32, u32) {
    (of.uid(), of.gid())
}

impl<T: Tree> Filesystem for Files<T> {
    fn lookup(&self, of: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.look_up(owner(of), parent, name) {
            Ok((node, attributes)) => {
                reply.entry(&time_to_live::<T>(&node), &attributes, Generation(0));
            }
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, told: u64) {
        lock(&self.nodes).forget(number.0, told);
    }

    fn getattr(&self, of: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.node(number).and_then(|node| {
            let attributes = self.attributes(&node, number.0, owner(of))?;
            Ok((node, attributes))
        });
        match found {
            Ok((node, attributes)) => reply.attr(&time_to_live::<T>(&node), &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open_file(number) {
            Ok((handle, flags)) => reply.opened(handle, flags),
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
        match self.read_file(handle, offset, size) {
            Ok(content) => reply.data(&content),
            Err(error) => reply.error(error),
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
        lock(&self.files).all.remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.open_directory(number) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.listed(number, handle, offset, |number, place, kind, name| {
            reply.add(number, place, kind, OsStr::from_bytes(name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        lock(&self.directories).all.remove(&handle.0);
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// Files in one directory, which can be changed, and one that is past.
    #[derive(Default)]
    struct Plain(Mutex<BTreeMap<Vec<u8>, Vec<u8>>>);

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    enum Node {
        Root,
        File(Vec<u8>),
    }

    impl Tree for Plain {
        type Node = Node;
        const ROOT: Node = Node::Root;

        fn is_directory(node: &Node) -> bool {
            *node == Node::Root
        }
        fn is_past(node: &Node) -> bool {
            matches!(node, Node::File(name) if name == b"past")
        }
        fn child(&self, _: &Node, name: &[u8]) -> Result<Node, Refused> {
            match name {
                b"trimmed" => Err(Refused::NotKept(String::new())),
                b"large" => Err(Refused::TooLarge(String::new())),
                b"far" => Err(Refused::Failed(io::ErrorKind::TimedOut.into())),
                name => Ok(Node::File(name.to_vec())),
            }
        }
        fn entries(&self, _: &Node) -> Result<Listing<Node>, Refused> {
            let names: Vec<_> = lock(&self.0).keys().cloned().collect();
            let entries = names.into_iter();
            Ok(entries.map(|it| (it.clone(), Node::File(it))).collect())
        }
        fn content(&self, file: &Node) -> Result<Vec<u8>, Refused> {
            match file {
                Node::File(name) => lock(&self.0).get(name).cloned().ok_or(Refused::Missing),
                Node::Root => Err(Refused::Missing),
            }
        }
        fn stat(&self, file: &Node) -> Result<Stat, Refused> {
            let size = self.content(file)?.len() as u64;
            let changed = UNIX_EPOCH + Duration::from_secs(9);
            Ok(Stat { size, changed })
        }
    }

    const ROOT: INodeNo = INodeNo(1);

    fn files() -> Files<Plain> {
        let files = Files::new(Plain::default());
        for (name, content) in [("a", "one"), ("b", "two"), ("past", "before")] {
            set(&files, name, content);
        }
        files
    }

    fn set(files: &Files<Plain>, name: &str, content: &str) {
        lock(&files.tree.0).insert(name.into(), content.into());
    }

    fn find(files: &Files<Plain>, name: &str) -> Result<(Node, FileAttr), i32> {
        let found = files.look_up((0, 0), ROOT, OsStr::new(name));
        found.map_err(Errno::code)
    }

    fn listed(files: &Files<Plain>, handle: FileHandle, from: u64, most: usize) -> Vec<String> {
        let mut names = Vec::new();
        let add = |_: INodeNo, _: u64, _: FileType, name: &[u8]| {
            names.push(String::from_utf8_lossy(name).into_owned());
            names.len() >= most
        };
        files.listed(ROOT, handle, from, add).expect("it is open");
        names
    }

    #[test]
    fn present_is_asked_for_each_time_and_the_past_is_kept() {
        let files = files();
        let (node, attributes) = find(&files, "a").expect("it is there");
        assert_eq!(time_to_live::<Plain>(&node), Duration::ZERO);
        assert_eq!((attributes.size, attributes.perm), (3, 0o444));
        assert_eq!(attributes.mtime, UNIX_EPOCH + Duration::from_secs(9));
        let (_, flags) = files.open_file(attributes.ino).expect("opened");
        assert_eq!(flags, FopenFlags::FOPEN_DIRECT_IO);
        let (node, attributes) = find(&files, "past").expect("it is there");
        assert_eq!(time_to_live::<Plain>(&node), PAST);
        let (_, flags) = files.open_file(attributes.ino).expect("opened");
        assert_eq!(flags, FopenFlags::FOPEN_KEEP_CACHE);
    }

    #[test]
    fn open_file_keeps_what_it_had() {
        let files = files();
        let number = find(&files, "a").expect("it is there").1.ino;
        let (handle, _) = files.open_file(number).expect("opened");
        set(&files, "a", "changed");
        let read = |offset, size| files.read_file(handle, offset, size).expect("read");
        assert_eq!(read(0, 100), b"one");
        assert_eq!(read(1, 1), b"n");
        assert_eq!(read(7, 1), b"");
        let (later, _) = files.open_file(number).expect("opened");
        assert_eq!(files.read_file(later, 0, 100).expect("read"), b"changed");
    }

    #[test]
    fn listing_in_parts_loses_no_name_while_others_come_and_go() {
        let files = files();
        let handle = files.open_directory(ROOT).expect("opened");
        let mut names = listed(&files, handle, 0, 3);
        lock(&files.tree.0).remove(&b"a"[..]);
        set(&files, "0", "new");
        names.extend(listed(&files, handle, 3, 100));
        assert_eq!(names, [".", "..", "a", "b", "past"]);
    }

    #[test]
    fn each_refusal_has_its_error_number() {
        let files = files();
        let refused = |name: &str| find(&files, name).expect_err(name);
        assert_eq!(refused("none"), Errno::ENOENT.code());
        assert_eq!(refused("trimmed"), Errno::ENODATA.code());
        assert_eq!(refused("large"), Errno::EFBIG.code());
        assert_eq!(refused("far"), Errno::EIO.code());
        let long = "a".repeat(256);
        assert_eq!(refused(&long), Errno::ENAMETOOLONG.code());
        set(&files, &long, "hidden");
        let handle = files.open_directory(ROOT).expect("opened");
        assert_eq!(listed(&files, handle, 2, 100), ["a", "b", "past"]);
        let number = find(&files, "a").expect("it is there").1.ino;
        let below = files.look_up((0, 0), number, OsStr::new("b"));
        assert_eq!(below.expect_err("a file").code(), Errno::ENOTDIR.code());
        let opened = files.open_directory(number).map_err(Errno::code);
        assert_eq!(opened.err(), Some(Errno::ENOTDIR.code()));
        let opened = files.open_file(ROOT).map_err(Errno::code);
        assert_eq!(opened.err(), Some(Errno::EISDIR.code()));
        assert!(too_many(LISTED_MAX).is_ok() && too_many(LISTED_MAX + 1).is_err());
    }

    #[test]
    fn files_open_at_once_are_bounded() {
        let files = files();
        let number = find(&files, "a").expect("it is there").1.ino;
        for _ in 0..OPEN_MAX {
            files.open_file(number).expect("opened");
        }
        let refused = files.open_file(number).map_err(Errno::code);
        assert_eq!(refused.err(), Some(Errno::ENFILE.code()));
    }

    #[test]
    fn node_is_known_until_the_kernel_forgets_it() {
        let mut nodes = Nodes::new(Node::Root);
        let node = Node::File(b"a".to_vec());
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

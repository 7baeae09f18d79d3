//! The store and services as files, with ls, cat and diff; skipped where nothing can be mounted.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use quintet::groups::{
    Bytes, Group, Persistent, PersistentMap, Retention, Service, Time, Volatile, service,
};
use rustix::{io::Errno, process::Signal};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};
use support::{Client, Demo, Guard, base_port, eventually, fails, signal, stdout};

/// The output of a program in this directory.
fn shell(directory: &Path, program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .output();
    stdout(&output.unwrap())
}

/// Mounts what these servers have, and where; `None` where nothing can be mounted.
fn mount(directory: &Path, servers: &[String], first: &str) -> Option<(Guard, PathBuf)> {
    let mounted = directory.join("mounted");
    fs::create_dir(&mounted).unwrap();
    let mut mount = support::quintet();
    mount.arg("mount").arg(&mounted);
    for server in servers {
        mount.args(["--server", server]);
    }
    let mount = mount.stdin(Stdio::null()).stdout(Stdio::null());
    let log = directory.join("log");
    let mount = mount.stderr(fs::File::create(&log).unwrap());
    let mut mount = Guard(mount.spawn().unwrap());
    let is_mounted = eventually("it is mounted, or says why not", || {
        match mount.0.try_wait().unwrap() {
            Some(_) => Some(false),
            None => mounted.join(first).exists().then_some(true),
        }
    });
    if !is_mounted {
        println!("skipped: {}", fs::read_to_string(log).unwrap());
        return None;
    }
    Some((mount, mounted))
}

#[test]
fn store_is_a_directory_of_files_now_and_then() {
    let directory = tempfile::tempdir().unwrap();
    let demo = Demo::start(&directory.path().join("demo"), base_port(3), &[]);
    let servers = [1, 2].map(|at: usize| demo.replicas[at].redis.clone());
    let Some((mut mount, mounted)) = mount(directory.path(), &servers, "db0") else {
        return;
    };
    let db0 = mounted.join("db0");
    let ask = |words: &[&str]| demo.replicas[0].client().ask(words).unwrap();
    ask(&["QUINTET.RETAIN", "SECONDS", "3600", "BYTES", "1000000"]);
    ask(&["SET", "greeting", "hello"]);
    ask(&["HSET", "a/b", "y", "2", "x", "1"]);
    ask(&["RPUSH", "list", "one", "two"]);
    ask(&["ZADD", "scores", "1.5", "m"]);
    let time = demo.replicas[0].client().ask_all(&["TIME"]).unwrap();
    let [seconds, micros] = [0, 1].map(|at: usize| time[at].parse::<u64>().unwrap());
    let then = format!("db0@us:{}", seconds * 1_000_000 + micros);
    ask(&["SET", "greeting", "changed"]);
    ask(&["DEL", "list"]);
    ask(&["SET", "new", "1"]);
    assert_eq!(
        shell(&mounted, "ls", &["db0"]),
        "a%2Fb\ngreeting\nnew\nscores\n"
    );
    assert_eq!(
        shell(&mounted, "ls", &[&then]),
        "a%2Fb\ngreeting\nlist\nscores\n"
    );
    let read = |path: &str| fs::read_to_string(mounted.join(path)).unwrap();
    assert_eq!(read("db0/greeting"), "changed");
    assert_eq!(read("db0/a%2Fb"), "x\t1\ny\t2\n");
    assert_eq!(read("db0/scores"), "1.5\tm\n");
    assert_eq!(read(&format!("{then}/greeting")), "hello");
    assert_eq!(read(&format!("{then}/list")), "one\ntwo\n");
    let differs = shell(&mounted, "diff", &["-qr", &then, "db0"]);
    let lines: Vec<_> = differs.lines().collect();
    assert_eq!(lines.len(), 3, "{differs}");
    assert!(differs.contains("Only in db0: new"), "{differs}");
    let changed = fs::metadata(db0.join("new")).unwrap().modified().unwrap();
    assert!(changed.elapsed().unwrap().as_secs() < 600 && changed > SystemTime::UNIX_EPOCH);
    for missing in ["db0/none", "db0@yesterday", "db1", "db0@now", "db0/a%2fb"] {
        assert!(!mounted.join(missing).exists(), "{missing}");
    }
    assert!(fs::write(db0.join("greeting"), "x").is_err(), "read only");
    // An open file keeps what it had; the replica that is asked stops, and comes back.
    let open = fs::File::open(db0.join("greeting")).unwrap();
    ask(&["SET", "greeting", "again"]);
    assert_eq!(std::io::read_to_string(open).unwrap(), "changed");
    assert_eq!(read("db0/greeting"), "again");
    signal(demo.replicas[1].pid, Signal::KILL);
    eventually("the other replica is asked", || {
        fs::read_to_string(db0.join("greeting"))
            .ok()
            .filter(|it| it == "again")
    });
    signal(mount.0.id(), Signal::INT);
    assert!(mount.wait().success());
    assert!(!db0.exists());
}

#[test]
fn store_of_a_layout_is_read_by_name_and_not_listed() {
    let directory = tempfile::tempdir().unwrap();
    let layout = directory.path().join("layout.toml");
    let text = "[[subgroup]]\nname = \"ledger\"\nshards = 2\n";
    fs::write(&layout, text).unwrap();
    let layout = ["--layout", layout.to_str().unwrap()];
    let demo = Demo::start(&directory.path().join("demo"), base_port(3), &layout);
    let servers = [demo.replicas[1].redis.clone()];
    let Some((_mount, mounted)) = mount(directory.path(), &servers, "db0") else {
        return;
    };
    let set = ["SET", "greeting", "hello"];
    assert_eq!(demo.replicas[0].client().ask(&set).unwrap(), "OK");
    let greeting = fs::read_to_string(mounted.join("db0/greeting"));
    assert_eq!(greeting.unwrap(), "hello");
    let listed = fs::read_dir(mounted.join("db0")).and_then(|mut all| all.next().transpose());
    assert_eq!(error_of(listed), Some(Errno::OPNOTSUPP));
    let log = fs::read_to_string(directory.path().join("log")).unwrap();
    assert!(log.contains("the keys of all 2 shards"), "{log}");
}

#[test]
fn mount_without_a_server_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let address = "127.0.0.1:1";
    fails(
        &["mount", path, "--server", address],
        3,
        &[address, "--server HOST:PORT"],
    );
}

/// A shelf of things.
#[derive(Default, Service)]
struct Shelf {
    items: PersistentMap<String, Bytes>,
    prices: PersistentMap<u64, (String, u32)>,
    count: Persistent<u64>,
    title: Persistent<String>,
}

#[service]
impl Shelf {
    #[ordered]
    fn put(&mut self, key: String, content: &[u8]) {
        self.items.insert(key, Bytes::copy_from_slice(content));
        *self.count += 1;
    }
    #[ordered]
    fn take(&mut self, key: &str) -> bool {
        self.items.remove(key)
    }
    #[ordered]
    fn price(&mut self, number: u64, price: u32) {
        self.prices.insert(number, ("EUR".to_owned(), price));
    }
    #[ordered]
    fn name(&mut self, title: String) {
        *self.title = title;
    }
    /// With a content of this length.
    #[ordered]
    fn fill(&mut self, key: String, length: u32) {
        let content = vec![b'x'; length as usize];
        self.items.insert(key, content.into());
    }
}

/// The same without a past.
#[derive(Default, Service)]
struct Board {
    newest: Volatile<Vec<u8>>,
}

#[service]
impl Board {
    #[ordered]
    fn set(&mut self, value: u8) {
        *self.newest = vec![value];
    }
}

const LAYOUT: &str = r#"
    [[subgroup]]
    name = "shelf"
    service = "Shelf"
    shards = 2
    [[subgroup]]
    name = "board"
    service = "Board"
"#;
const LONG: Duration = Duration::from_secs(30);
/// Number, data and addresses of a member that is to run in this process.
const MEMBER: &str = "QUINTET_TEST_MEMBER";

#[test]
fn member_runs_until_it_is_killed_where_a_test_says_so() {
    let Ok(words) = std::env::var(MEMBER) else {
        return;
    };
    let words: Vec<_> = words.split(' ').collect();
    let [id, data, calls, peers @ ..] = &words[..] else {
        panic!("{words:?}");
    };
    let group = Group::member("files", id.parse().unwrap(), peers, data).protocol("multipaxos");
    let group = group
        .layout(LAYOUT)
        .serve::<Shelf>()
        .serve::<Board>()
        .start()
        .unwrap();
    group.wait_ready(LONG).unwrap();
    let _server = group.serve_calls(*calls).unwrap();
    loop {
        std::thread::park();
    }
}

fn error_of<T>(read: std::io::Result<T>) -> Option<Errno> {
    read.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn services_are_directories_of_files_now_and_then() {
    let directory = tempfile::tempdir().unwrap();
    let base = base_port(6);
    let address = |offset: u16| format!("127.0.0.1:{}", base + offset);
    let peers: Vec<_> = (0..3).map(address).collect();
    let calls: Vec<_> = (3..6).map(address).collect();
    let start = |id: usize| {
        let data = directory.path().join(format!("member-{id}"));
        let words = format!("{id} {} {} {}", data.display(), calls[id], peers.join(" "));
        let mut member = Command::new(std::env::current_exe().unwrap());
        member.args([
            "--exact",
            "member_runs_until_it_is_killed_where_a_test_says_so",
        ]);
        let member = member.env(MEMBER, words).stdout(Stdio::null());
        Guard(member.spawn().unwrap())
    };
    let mut members: Vec<_> = (0..3).map(start).collect();
    for server in &calls {
        eventually("it serves calls", || {
            Client::connect(server).ok()?.ask(&["PING"]).ok()
        });
    }
    let ask = |words: &[&str]| {
        let mut client = Client::connect(&calls[0]).unwrap();
        let words = [&["QUINTET.CALL", "shelf/1"], words].concat();
        let reply = client.ask(&words).unwrap();
        assert!(!reply.starts_with('-'), "{words:?}: {reply}");
        reply
    };
    ask(&["put", r#"["pallet", "one"]"#]);
    ask(&["put", r#"["a/b", [0, 255, 10]]"#]);
    ask(&["name", r#"["Nuts & bolts"]"#]);
    let Some((mut mount, mounted)) = mount(directory.path(), &calls[1..], "shelf") else {
        return;
    };
    let read = |path: &str| fs::read(mounted.join(path));
    let text = |path: &str| fs::read_to_string(mounted.join(path)).unwrap();
    let then = Time::from(SystemTime::now()).to_string();
    ask(&["put", r#"["pallet", "two"]"#]);
    ask(&["put", r#"["crate", "new"]"#]);
    ask(&["take", r#"["a/b"]"#]);
    ask(&["price", "[17, 5]"]);

    assert_eq!(shell(&mounted, "ls", &["."]), "board\nshelf\n");
    assert_eq!(shell(&mounted, "ls", &["shelf"]), "0\n1\n");
    let fields = shell(&mounted, "ls", &["shelf/1"]);
    assert_eq!(fields, "count\nitems\nprices\ntitle\n");
    assert_eq!(shell(&mounted, "ls", &["shelf/1/items"]), "crate\npallet\n");
    let items = format!("shelf/1/items@{then}");
    assert_eq!(shell(&mounted, "ls", &[&items]), "a%2Fb\npallet\n");
    assert_eq!(shell(&mounted, "cat", &["shelf/1/items/pallet"]), "two");
    assert_eq!(text(&format!("{items}/pallet")), "one");
    assert_eq!(read(&format!("{items}/a%2Fb")).unwrap(), b"\0\xff\n");
    assert_eq!(text("shelf/1/title"), "Nuts & bolts");
    assert_eq!(text("shelf/1/count"), "4\n");
    assert_eq!(text(&format!("shelf/1/count@{then}")), "2\n");
    assert_eq!(text("shelf/1/count@v:1"), "1\n");
    assert_eq!(text("shelf/1@v:1/items/pallet"), "one");
    assert_eq!(text("shelf/1/prices/17"), "[\"EUR\",5]\n");
    assert_eq!(text("board/0/newest"), "[]\n");
    let differs = shell(&mounted, "diff", &["-qr", &items, "shelf/1/items"]);
    let lines: Vec<_> = differs.lines().collect();
    assert_eq!(lines.len(), 3, "{differs}");
    assert!(
        differs.contains("Only in shelf/1/items: crate"),
        "{differs}"
    );
    assert!(
        differs.contains(&format!("Only in {items}: a%2Fb")),
        "{differs}"
    );

    // The time of a file is that of the version that made it.
    let made = |path: &str| {
        fs::metadata(mounted.join(path))
            .unwrap()
            .modified()
            .unwrap()
    };
    let first = made("shelf/1/items@v:1/pallet");
    assert_eq!(first, made(&format!("{items}/pallet")));
    assert!(first < made("shelf/1/items/pallet"));
    assert!(first.elapsed().unwrap().as_secs() < 600);

    for missing in [
        "none",
        "shelf/2",
        "shelf/1/none",
        "shelf/1/items/none",
        "shelf/1/items/a%2fb",
        "shelf/1/prices/abc",
        "shelf/1/prices/017",
        "shelf/1/items@now",
        "shelf/1/items@yesterday",
        "shelf/1/items@2999-01-01T00:00:00Z",
        "shelf/1/items@v:999",
    ] {
        assert_eq!(error_of(read(missing)), Some(Errno::NOENT), "{missing}");
    }
    assert_eq!(error_of(read("board/0/newest@v:0")), Some(Errno::NODATA));
    assert_eq!(error_of(read("shelf/1/count/x")), Some(Errno::NOTDIR));
    let written = fs::write(mounted.join("shelf/1/count"), "9");
    assert_eq!(error_of(written), Some(Errno::ROFS));
    let large = format!(r#"["large", {}]"#, 33 << 20);
    ask(&["fill", &large]);
    assert_eq!(error_of(read("shelf/1/items/large")), Some(Errno::FBIG));
    // It hides no other.
    assert!(shell(&mounted, "ls", &["shelf/1/items"]).contains("large\npallet"));

    // An open file keeps what it had; the member that is asked dies.
    let open = fs::File::open(mounted.join("shelf/1/items/pallet")).unwrap();
    ask(&["put", r#"["pallet", "three"]"#]);
    assert_eq!(std::io::read_to_string(open).unwrap(), "two");
    assert_eq!(text("shelf/1/items/pallet"), "three");
    signal(members[1].0.id(), Signal::KILL);
    members[1].wait();
    assert_eq!(text(&format!("{items}/pallet")), "one");
    assert_eq!(text("shelf/1/items/pallet"), "three");
    signal(mount.0.id(), Signal::INT);
    assert!(mount.wait().success());
}

#[test]
fn clients_of_redis_read_fields_by_name() {
    let group = Group::local(3).protocol("multipaxos").layout(LAYOUT);
    let group = group.retain(Retention {
        versions: 4,
        ..Retention::default()
    });
    let group = group.serve::<Shelf>().serve::<Board>().start().unwrap();
    group.wait_ready(LONG).unwrap();
    let server = group.serve_calls("127.0.0.1:0").unwrap();
    let mut client = Client::connect(&server.address().to_string()).unwrap();
    let mut ask = |command: &str| -> Vec<String> {
        client
            .ask_all(&command.split(' ').collect::<Vec<_>>())
            .unwrap()
    };
    for key in ["c", "a", "b"] {
        ask(&format!(r#"QUINTET.CALL shelf/0 put ["{key}","of-{key}"]"#));
    }
    ask("QUINTET.CALL shelf/0 price [17,5]");
    ask("QUINTET.CALL shelf/0 price [3,5]");
    let fields = [
        "map", "items", "map", "prices", "value", "count", "value", "title",
    ];
    assert_eq!(ask("QUINTET.FIELDS shelf/0"), fields);
    assert_eq!(ask("QUINTET.KEYS shelf/0 items"), ["nil", "a", "b", "c"]);
    let some = ask("quintet.keys shelf/0 items from b count 1");
    assert_eq!(some, ["c", "b"]);
    assert_eq!(ask("QUINTET.KEYS shelf/0 items AT v:2"), ["nil", "a", "c"]);
    assert_eq!(ask("QUINTET.KEYS shelf/0 prices"), ["nil", "3", "17"]);
    let value = ask("QUINTET.VALUE shelf/0 items KEY a");
    assert_eq!(value[..2], ["of-a", "2"]);
    assert_eq!(ask("QUINTET.VALUE shelf/0 items KEY a AT v:2"), value);
    let version = ask("QUINTET.VERSION shelf/0 AT v:2");
    assert_eq!(version, ["2", &value[2]]);
    assert_eq!(ask("QUINTET.VERSION shelf/0")[0], "5");
    assert_eq!(ask("QUINTET.VALUE shelf/0 items KEY none"), ["nil"]);
    assert_eq!(ask("QUINTET.VALUE shelf/0 count")[..2], ["3\n", "3"]);
    assert_eq!(ask("QUINTET.VALUE board/0 newest")[0], "[]\n");
    for (command, why) in [
        ("QUINTET.FIELDS shelf/2", "there is no shard 'shelf/2'"),
        ("QUINTET.FIELDS", "usage: QUINTET.FIELDS SHARD"),
        ("QUINTET.VERSION shelf/0 AT", "usage: QUINTET.VERSION"),
        ("QUINTET.VERSION shelf/0 AT yesterday", "is not a time"),
        ("QUINTET.VERSION shelf/0 AT v:0", "-NOHISTORY"),
        ("QUINTET.VERSION shelf/0 AT v:9", "-NOTYET"),
        ("QUINTET.VERSION board/0 AT v:0", "-NOHISTORY"),
        (
            "QUINTET.KEYS shelf/0 none",
            "it has items, prices, count, title",
        ),
        ("QUINTET.KEYS shelf/0 count", "'count' is no map"),
        ("QUINTET.KEYS shelf/0 items COUNT 0", "usage: QUINTET.KEYS"),
        ("QUINTET.KEYS shelf/0 items KEY a", "usage: QUINTET.KEYS"),
        (
            "QUINTET.KEYS shelf/0 prices FROM a",
            "-BADKEY 'a' is no key",
        ),
        ("QUINTET.VALUE shelf/0 prices KEY 017", "-BADKEY"),
        ("QUINTET.VALUE shelf/0 items", "name a key with KEY"),
        ("QUINTET.VALUE shelf/0 count KEY a", "-BADKEY"),
        ("QUINTET.VALUE shelf/0 items FROM a", "usage: QUINTET.VALUE"),
    ] {
        let refused = ask(command).join(" ");
        assert!(
            refused.starts_with('-') && refused.contains(why),
            "{command}: {refused}"
        );
    }
}

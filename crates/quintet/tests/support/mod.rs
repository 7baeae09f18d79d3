//! Shared by the end-to-end tests: programs, ports, a demo, a bare Redis client.
#![allow(dead_code, reason = "every test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod load;
pub mod served;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Long enough for anything on a busy machine; nothing waits that long when all is well.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The program: this package's, or the one beside `quintet-lab`.
pub fn program() -> PathBuf {
    let built = option_env!("CARGO_BIN_EXE_quintet").or(option_env!("CARGO_BIN_EXE_quintet-lab"));
    let program = Path::new(built.unwrap()).with_file_name("quintet");
    assert!(
        program.is_file(),
        "{} is not built: run `cargo build -p quintet`",
        program.display()
    );
    program
}

/// The program, free of the caller's own settings.
pub fn quintet() -> Command {
    let mut command = Command::new(program());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUINTET_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs the program to its end.
pub fn run(arguments: &[&str]) -> Output {
    quintet()
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs the program and checks that it ends with this code and these words on standard error.
pub fn fails(arguments: &[&str], code: i32, parts: &[&str]) {
    let output = run(arguments);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    for part in parts {
        assert!(text.contains(part), "{arguments:?}: no '{part}' in: {text}");
    }
}

/// Waits until `check` gives something.
pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = check() {
            return value;
        }
        assert!(Instant::now() < deadline, "never happened: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether no process listens there. Asked by connecting: a listener opened to find out would live
/// on in each child that another test starts at that moment, until the child is the program it was
/// started for.
pub fn is_unused(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err()
}

/// A base port whose demo of `replicas` finds all its ports free; no two callers in this process
/// get the same.
pub fn base_port(replicas: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = 12_000 + (std::process::id() % 40) as u16 * 450;
    for _ in 0..200 {
        let next = NEXT.fetch_add(replicas, Ordering::Relaxed) % 1_000;
        // A demo's ports lie at three places a hundred apart: hundreds are dealt out by threes.
        let (block, place) = (next / 100, next % 100);
        let base = start + block * 300 + place;
        let ports = (0..replicas).flat_map(|id| [0, 100, 200].map(|offset| base + offset + id));
        if place + replicas <= 100
            && ports
                .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
                .all(is_unused)
        {
            return base;
        }
    }
    panic!("no free ports");
}

/// Closes a listener and waits until its port is free: [`is_unused`] says which other process may
/// hold it.
pub fn let_go(listener: TcpListener) {
    let address = listener.local_addr().unwrap();
    drop(listener);
    eventually("the port is free", || is_unused(address).then_some(()));
}

pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// A process that does not outlive its test.
pub struct Guard(pub Child);

impl Guard {
    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        eventually("the process ends", || self.0.try_wait().unwrap())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A line that `quintet demo --json` printed: a replica, or a proxy, which has no directory.
#[derive(Clone, Debug)]
pub struct Replica {
    /// Among its kind.
    pub id: u64,
    pub pid: u32,
    pub redis: String,
    pub admin: String,
    pub dir: PathBuf,
    pub serve: Vec<String>,
}

impl Replica {
    /// Whether it is a proxy, and its line.
    fn parse(line: &str) -> (bool, Self) {
        let value: Value = serde_json::from_str(line).unwrap();
        let is_proxy = value["id"].is_null();
        let text = |name: &str| value[name].as_str().unwrap().to_owned();
        let serve = value["serve"].as_array().unwrap().iter();
        let kind = if is_proxy { "proxy" } else { "id" };
        let one = Self {
            id: value[kind].as_u64().unwrap(),
            pid: value["pid"].as_u64().unwrap().try_into().unwrap(),
            redis: text("redis").strip_prefix("redis://").unwrap().to_owned(),
            admin: text("admin").strip_prefix("http://").unwrap().to_owned(),
            dir: value["dir"].as_str().unwrap_or_default().into(),
            serve: serve
                .map(|word| word.as_str().unwrap().to_owned())
                .collect(),
        };
        (is_proxy, one)
    }

    /// Starts it again by its line, from another directory.
    pub fn start_by_hand(&self) -> Guard {
        let mut command = Command::new(&self.serve[0]);
        command
            .args(&self.serve[1..])
            .current_dir("/")
            .stdin(Stdio::null());
        Guard(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    pub fn status(&self) -> Option<Value> {
        serde_json::from_str(&http_get(&self.admin, "/status")?.1).ok()
    }

    pub fn is_ready(&self) -> bool {
        http_get(&self.admin, "/readyz").is_some_and(|(code, _)| code == 200)
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.redis).unwrap()
    }
}

/// A running demo.
pub struct Demo {
    pub process: Guard,
    pub replicas: Vec<Replica>,
    pub proxies: Vec<Replica>,
    said: Arc<Mutex<String>>,
}

impl Demo {
    /// Starts `quintet demo --json` and waits until all of it is ready.
    pub fn start(dir: &Path, base: u16, more: &[&str]) -> Self {
        let base = base.to_string();
        let mut arguments = vec!["--base-port", &base];
        arguments.extend_from_slice(more);
        Self::start_at_its_ports(dir, &arguments)
    }

    /// The same with the ports that the directory remembers.
    pub fn start_at_its_ports(dir: &Path, more: &[&str]) -> Self {
        let mut command = quintet();
        command.arg("demo").arg("--json").arg("--dir").arg(dir);
        command.args(more).stdin(Stdio::null());
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut process = Guard(child);
        let said = Arc::new(Mutex::new(String::new()));
        let errors = BufReader::new(process.0.stderr.take().unwrap());
        let sink = Arc::clone(&said);
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                let mut said = sink.lock().unwrap();
                said.push_str(&line);
                said.push('\n');
            }
        });
        let count = |flag: &str, otherwise: usize| {
            let at = more.iter().position(|word| *word == flag);
            at.map_or(otherwise, |at| more[at + 1].parse().unwrap())
        };
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let lines = lines.take(count("--replicas", 3) + count("--proxies", 0));
        let all = lines.map(|line| Replica::parse(&line.unwrap()));
        let (proxies, replicas): (Vec<_>, Vec<_>) = all.partition(|(is_proxy, _)| *is_proxy);
        let lines_of = |kind: Vec<(bool, Replica)>| kind.into_iter().map(|(_, it)| it).collect();
        let demo = Self {
            process,
            replicas: lines_of(replicas),
            proxies: lines_of(proxies),
            said,
        };
        assert!(
            !demo.replicas.is_empty(),
            "the demo started: {}",
            demo.said()
        );
        demo
    }

    /// The text on standard error so far.
    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    pub fn waits_for(&self, words: &str) {
        eventually(words, || self.said().contains(words).then_some(()));
    }

    /// The replica that all living ones take for the leader.
    pub fn leader(&self) -> Replica {
        eventually("one leader", || {
            let mut leaders = self.replicas.iter().filter_map(Replica::status);
            let first = leaders.next()?["leader"].as_u64()?;
            let agreed = leaders.all(|status| status["leader"].as_u64() == Some(first));
            let leader = self.replicas.iter().find(|replica| replica.id == first)?;
            agreed.then(|| leader.clone())
        })
    }

    /// As Ctrl-C does; gives the exit code.
    pub fn interrupt(mut self) -> Option<i32> {
        signal(self.process.0.id(), Signal::INT);
        self.process.wait().code()
    }
}

/// A connection that speaks just enough of the Redis protocol.
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: &str) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a command and reads its reply: the text of a simple or bulk one, an error with its
    /// `-`, `nil`.
    pub fn ask(&mut self, words: &[&str]) -> std::io::Result<String> {
        self.send(words)?;
        self.read(&mut Vec::new())
    }

    /// The same with a reply that is an array or a map: all texts in it, however deep.
    pub fn ask_all(&mut self, words: &[&str]) -> std::io::Result<Vec<String>> {
        self.send(words)?;
        let mut texts = Vec::new();
        let text = self.read(&mut texts)?;
        Ok(if texts.is_empty() { vec![text] } else { texts })
    }

    fn send(&mut self, words: &[&str]) -> std::io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(bytes.as_bytes())
    }

    /// Reads one reply; the texts in an array are added to `texts`.
    fn read(&mut self, texts: &mut Vec<String>) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        Ok(match line.split_at(1) {
            ("+" | ":", text) => text.to_owned(),
            ("$", "-1") | ("_", _) => "nil".to_owned(),
            ("$", length) => {
                let mut text = vec![0; length.parse::<usize>().unwrap() + 2];
                self.stream.read_exact(&mut text)?;
                text.truncate(text.len() - 2);
                String::from_utf8(text).unwrap()
            }
            ("*", count) => {
                for _ in 0..count.parse::<usize>().unwrap() {
                    let text = self.read(texts)?;
                    texts.extend(Some(text).filter(|text| !text.starts_with('*')));
                }
                line.to_owned()
            }
            _ => line.to_owned(),
        })
    }
}

pub fn http_get(address: &str, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

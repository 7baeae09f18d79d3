//! Replicas that are started one by one with `quintet serve`, with any settings and surroundings.

use super::{Client, Guard, base_port, eventually, http_get, quintet, run, stderr};
use serde_json::Value;
use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

/// The configuration of a cluster, and where its replicas are.
pub struct Setup {
    directory: tempfile::TempDir,
    base: u16,
    pub replicas: u16,
    common: Vec<String>,
}

impl Setup {
    pub fn new(replicas: u16) -> Self {
        // One place more than there are replicas, for a proxy.
        let base = base_port(replicas + 1);
        let members: Vec<_> = (0..replicas)
            .map(|id| format!("127.0.0.1:{}", base + 200 + id))
            .collect();
        let common = [
            "--cluster",
            "000000000000000000000000000000c1",
            "--secret",
            &"5a".repeat(32),
            "--members",
            &members.join(","),
            "--journal-segment-bytes",
            "1MiB",
        ];
        Self {
            directory: tempfile::tempdir().unwrap(),
            base,
            replicas,
            common: common.iter().map(|word| (*word).to_owned()).collect(),
        }
    }

    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    pub fn data(&self, id: u16) -> PathBuf {
        self.root().join(format!("data-{id}"))
    }

    pub fn redis(&self, id: u16) -> String {
        format!("127.0.0.1:{}", self.base + id)
    }

    pub fn peer(&self, id: u16) -> String {
        format!("127.0.0.1:{}", self.base + 200 + id)
    }

    /// The arguments of `quintet` for a replica; later ones win.
    pub fn arguments(&self, id: u16, more: &[&str]) -> Vec<String> {
        let own = [
            "--id".to_owned(),
            id.to_string(),
            "--data".to_owned(),
            self.data(id).display().to_string(),
            "--redis-listen".to_owned(),
            self.redis(id),
            "--admin-listen".to_owned(),
            format!("127.0.0.1:{}", self.base + 100 + id),
        ];
        let mut all = vec!["serve".to_owned()];
        let given = |name: &str| more.contains(&name);
        for pair in self.common.chunks(2).chain(own.chunks(2)) {
            if !given(&pair[0]) {
                all.extend_from_slice(pair);
            }
        }
        all.extend(more.iter().map(|word| (*word).to_owned()));
        all
    }

    /// Starts a replica; does not wait for it.
    pub fn start_with(&self, id: u16, more: &[&str], surroundings: &[(&str, &str)]) -> Served {
        let log = self.root().join(format!("log-{id}"));
        let mut command = quintet();
        command
            .args(self.arguments(id, more))
            .envs(surroundings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(
                File::options()
                    .create(true)
                    .append(true)
                    .open(&log)
                    .unwrap(),
            );
        Served {
            process: Guard(command.spawn().unwrap()),
            redis: self.redis(id),
            admin: format!("127.0.0.1:{}", self.base + 100 + id),
            data: self.data(id),
            log,
        }
    }

    /// The same for a process that gets no more than that many descriptors.
    pub fn start_with_descriptors(&self, id: u16, most: usize, more: &[&str]) -> Served {
        let arguments = self.arguments(id, more);
        self.start_limited(&format!("ulimit -n {most}"), &arguments, id)
    }

    /// The same for one that has that many at its start and may ask for more.
    pub fn start_with_soft_descriptors(&self, id: u16, at_first: usize, more: &[&str]) -> Served {
        let arguments = self.arguments(id, more);
        self.start_limited(&format!("ulimit -S -n {at_first}"), &arguments, id)
    }

    /// A proxy that gets no more than that many descriptors. It takes the place of a replica with
    /// the id after the last one.
    pub fn start_proxy_with_descriptors(&self, most: usize, more: &[&str]) -> Served {
        let id = self.replicas;
        let mut arguments = self.arguments(id, more);
        "proxy".clone_into(&mut arguments[0]);
        self.start_limited(&format!("ulimit -n {most}"), &arguments, id)
    }

    fn start_limited(&self, limit: &str, arguments: &[String], id: u16) -> Served {
        let log = self.root().join(format!("log-{id}"));
        let program = quintet();
        let mut command = Command::new("sh");
        for (name, value) in program.get_envs() {
            if value.is_none() {
                command.env_remove(name);
            }
        }
        command
            .arg("-c")
            .arg(format!("{limit} && exec \"$0\" \"$@\""))
            .arg(program.get_program())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap());
        Served {
            process: Guard(command.spawn().unwrap()),
            redis: self.redis(id),
            admin: format!("127.0.0.1:{}", self.base + 100 + id),
            data: self.data(id),
            log,
        }
    }

    /// Starts a replica and waits until it answers on its port.
    pub fn start(&self, id: u16, more: &[&str]) -> Served {
        let served = self.start_with(id, more, &[]);
        eventually("the replica answers", || http_get(&served.admin, "/livez"));
        served
    }

    /// Starts all and waits until they serve.
    pub fn start_all(&self, more: &[&str]) -> Vec<Served> {
        let all: Vec<_> = (0..self.replicas)
            .map(|id| self.start_with(id, more, &[]))
            .collect();
        all.iter().for_each(Served::ready);
        all
    }

    /// A start that must fail: its exit code and what it says.
    pub fn refusal(&self, id: u16, more: &[&str]) -> (Option<i32>, String) {
        let arguments = self.arguments(id, more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = run(&arguments);
        (output.status.code(), stderr(&output))
    }
}

/// A running replica.
pub struct Served {
    pub process: Guard,
    pub redis: String,
    pub admin: String,
    pub data: PathBuf,
    log: PathBuf,
}

impl Served {
    pub fn status(&self) -> Option<Value> {
        serde_json::from_str(&http_get(&self.admin, "/status")?.1).ok()
    }

    pub fn ready(&self) {
        eventually("the replica serves", || {
            assert!(!self.has_ended(), "it has ended: {}", self.said());
            http_get(&self.admin, "/readyz").filter(|(code, _)| *code == 200)
        });
    }

    /// Whether the process has ended and its exit status was not read yet.
    fn has_ended(&self) -> bool {
        let path = format!("/proc/{}/stat", self.process.0.id());
        let stat = fs::read_to_string(path).unwrap_or_default();
        let state = stat.rsplit(") ").next().unwrap_or_default();
        state.is_empty() || state.starts_with('Z')
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.redis).unwrap()
    }

    /// A field of INFO.
    pub fn info(&self, name: &str) -> String {
        let info = self.client().ask(&["INFO"]).unwrap();
        let prefix = format!("{name}:");
        let line = info.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_default().to_owned()
    }

    /// A metric without labels.
    pub fn metric(&self, name: &str) -> f64 {
        let text = http_get(&self.admin, "/metrics").unwrap().1;
        let prefix = format!("quintet_{name} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&prefix));
        line.unwrap_or_else(|| panic!("no metric {name}"))
            .parse()
            .unwrap()
    }

    /// Resident memory in bytes.
    pub fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.process.0.id());
        let text = fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.unwrap().trim().strip_suffix("kB").unwrap();
        kilobytes.trim().parse::<u64>().unwrap() * 1024
    }

    /// The text on standard error.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Stops it as SIGSTOP does; when this returns, none of its threads runs any more.
    pub fn freeze(&self) {
        let pid = self.process.0.id();
        super::signal(pid, rustix::process::Signal::STOP);
        eventually("every thread stands still", || {
            let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let stopped = tasks.all(|task| {
                let stat = fs::read_to_string(task.unwrap().path().join("stat"));
                // A thread may end meanwhile. The state comes after the name in brackets.
                stat.is_ok_and(|stat| stat.rsplit_once(')').unwrap().1.starts_with(" T"))
            });
            stopped.then_some(())
        });
    }

    /// Lets it continue after `freeze`.
    pub fn thaw(&self) {
        super::signal(self.process.0.id(), rustix::process::Signal::CONT);
    }

    /// Asks it to stop and waits; gives the exit code.
    pub fn stop(mut self) -> Option<i32> {
        super::signal(self.process.0.id(), rustix::process::Signal::TERM);
        self.process.wait().code()
    }
}

/// A connection for bytes that no client would send.
pub struct Raw(pub TcpStream);

impl Raw {
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(super::TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The other side may have closed already.
        let _ = self.0.write_all(bytes.as_ref());
    }

    /// Reads until the other side closes.
    pub fn read_all(&mut self) -> String {
        let mut bytes = Vec::new();
        // A reset is an end, too.
        let _ = self.0.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Reads up to and including `end`.
    pub fn until(&mut self, end: &str) -> String {
        let mut text = Vec::new();
        let mut byte = [0];
        while !text.ends_with(end.as_bytes()) {
            match self.0.read(&mut byte) {
                Ok(1) => text.push(byte[0]),
                other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&text)),
            }
        }
        String::from_utf8(text).unwrap()
    }

    /// Whether it is still open: nothing to read, and no end.
    pub fn is_open(&self) -> bool {
        self.0
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        let open = matches!(self.0.peek(&mut [0]), Err(error)
            if error.kind() == std::io::ErrorKind::WouldBlock);
        self.0.set_read_timeout(Some(super::TIMEOUT)).unwrap();
        open
    }
}

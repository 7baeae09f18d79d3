//! A system's processes: started with their logs in files, stopped and woken by signals, ended.

use crate::figures;
use quintet_cli::{Exit, Failure, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// How long a process may take to leave when asked.
const STOP: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(2);
const ANSWER_MAX: u64 = 1 << 20;

/// The processes of one system.
#[derive(Debug, Default)]
pub struct Processes {
    children: Vec<Child>,
    /// Those whose CPU and memory count.
    pub members: Vec<u32>,
    /// Those that are no children of this process but must be stopped with it.
    pub others: Vec<u32>,
}

impl Processes {
    /// Starts `command`, with what it says in `log`.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn start(&mut self, mut command: Command, log: &Path) -> Outcome<&mut Child> {
        let file = OpenOptions::new().create(true).append(true).open(log)?;
        let program = command.get_program().to_string_lossy().into_owned();
        let piped = command.get_args().any(|word| word == "--json");
        command
            .stdin(Stdio::null())
            .stdout(if piped {
                Stdio::piped()
            } else {
                Stdio::from(file.try_clone()?)
            })
            .stderr(file)
            // Ctrl-C in a terminal reaches the whole process group: this process alone shall get
            // it.
            .process_group(0);
        let child = command.spawn().map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                Failure::new(Exit::Unreachable, format!("{program}: not installed"))
                    .help("'just peers' installs the other systems; docs/guide/measuring.md says what it does")
            }
            _ => Failure::failed(format!("{program}: {error}")),
        })?;
        self.children.push(child);
        let last = self.children.len() - 1;
        Ok(&mut self.children[last])
    }

    /// Counts the last process started as a member.
    pub fn count_last(&mut self) {
        let pid = self.children.last().map(Child::id);
        self.members.extend(pid);
    }

    fn signal(&self, signal: Signal) {
        let own = self.children.iter().map(Child::id);
        for pid in own.chain(self.others.iter().copied()) {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                // One that has ended needs no signal.
                let _ = kill_process(pid, signal);
            }
        }
    }

    /// Stops them where they are.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets them continue.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// The CPU time that the members have used.
    pub fn cpu(&self) -> Option<Duration> {
        self.members.iter().map(|pid| figures::cpu_of(*pid)).sum()
    }

    /// The memory that the members hold.
    pub fn resident(&self) -> Option<u64> {
        let resident = |pid: &u32| figures::resident_of(*pid);
        self.members.iter().map(resident).sum()
    }

    /// Why it cannot continue, if a process has ended.
    pub fn ended(&mut self, name: &str, log: &Path) -> Option<Failure> {
        let ended = |child: &mut Child| child.try_wait().ok().flatten();
        let status = self.children.iter_mut().find_map(ended)?;
        let said = fs::read_to_string(log).unwrap_or_default();
        let last = said.lines().rev().find(|line| !line.trim().is_empty());
        let message = format!("{name}: a process ended with {status}");
        Some(match last {
            Some(last) => Failure::failed(format!("{message}; it said: {last}")),
            None => Failure::failed(message),
        })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.resume();
        self.signal(Signal::TERM);
        let deadline = Instant::now() + STOP;
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() > deadline {
                    // Asked politely for long enough.
                    let _ = child.kill();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Asks over HTTP/1.0, whose answers end with the connection; gives the body.
///
/// # Errors
/// When no server answers in time, or not with code 200.
pub fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> std::io::Result<String> {
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = ask(address, request.as_bytes())?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or(std::io::Error::from(ErrorKind::InvalidData))?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        code => Err(std::io::Error::other(format!("code {code:?}"))),
    }
}

/// Sends `request` and gives all that comes back until the other side closes.
///
/// # Errors
/// When no server answers in time.
pub fn ask(address: SocketAddr, request: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(request)?;
    let mut answer = String::new();
    stream.take(ANSWER_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

//! The demo's replicas and proxies as processes: started, waited for, watched, stopped.
//!
//! ```text
//!   Runs ──exit──► Dead ──answers again──► ByHand ──silent──► Dead
//! ```

use super::{
    Plan, Ports,
    directory::{Prepared, data_in},
};
use indicatif::ProgressBar;
use quintet_cli::{Exit, Failure, Outcome, http, output, programs};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{Read, Seek, SeekFrom},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// How often children are looked after.
const LOOK: Duration = Duration::from_millis(50);
/// How often the address of one that died is asked.
const ASK: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_secs(1);
/// How long to look for a leader; a protocol may have none.
const LEADER: Duration = Duration::from_millis(500);
const STOP: Duration = Duration::from_secs(15);
const LOG_MAX: u64 = 16 << 20;

#[derive(Debug)]
enum State {
    /// Our child.
    Runs(Child),
    /// It ended, and no process answers at its address.
    Dead,
    /// The user started it again.
    ByHand { pid: Option<u64> },
}

/// The kind of a process of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A replica: its number among the members.
    Replica(u16),
    /// A proxy: its number among the proxies.
    Proxy(u16),
}

impl What {
    /// All that a demo starts, replicas first.
    pub fn all(plan: &Plan) -> impl Iterator<Item = Self> {
        let replicas = plan.ids().map(Self::Replica);
        replicas.chain((0..plan.proxies).map(Self::Proxy))
    }

    /// Where it listens.
    pub const fn ports(self, plan: &Plan) -> Ports {
        match self {
            Self::Replica(id) => Ports::of(plan.base_port, id),
            Self::Proxy(number) => Ports::of(plan.base_port, plan.replicas + number),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replica(id) => write!(f, "replica {id}"),
            Self::Proxy(number) => write!(f, "proxy {number}"),
        }
    }
}

/// One process of the demo.
#[derive(Debug)]
pub struct Managed {
    /// Its kind.
    pub what: What,
    /// The process that the demo started.
    pub pid: u32,
    /// Its data directory; a proxy has none.
    pub data: Option<PathBuf>,
    /// The argument vector that starts it again, from any directory.
    pub serve: Vec<String>,
    ports: Ports,
    log: PathBuf,
    state: State,
    asked: Instant,
}

/// All processes of the demo.
#[derive(Debug)]
pub struct Supervisor {
    /// Replicas first.
    processes: Vec<Managed>,
    /// As the person wrote it.
    directory: PathBuf,
}

fn url(scheme: &str, port: u16) -> String {
    format!("{scheme}://127.0.0.1:{port}")
}

impl Managed {
    /// Where Redis clients connect.
    pub fn redis_url(&self) -> String {
        url("redis", self.ports.redis)
    }

    /// Where admin HTTP is.
    pub fn admin_url(&self) -> String {
        url("http", self.ports.admin)
    }

    /// [`Self::serve`] as a line for a shell.
    pub fn serve_line(&self) -> String {
        let words: Vec<_> = self.serve.iter().map(|word| shell_word(word)).collect();
        words.join(" ")
    }

    fn start(prepared: &Prepared, program: &Path, what: What) -> Outcome<Self> {
        let ports = what.ports(&prepared.plan);
        let replica = |id: u16| prepared.path.join(format!("replica-{id}"));
        let (command, file, log, data) = match what {
            What::Replica(id) => {
                let directory = replica(id);
                let log = directory.join("quintet.log");
                let data = data_in(&prepared.path, id);
                let command = match quintet_runtime::has_joined(&data) {
                    true => "join",
                    false => "serve",
                };
                (command, directory, log, Some(data))
            }
            What::Proxy(number) => {
                let log = prepared.path.join(format!("proxy-{number}.log"));
                ("proxy", replica(0), log, None)
            }
        };
        let file = file.join("quintet.toml");
        let text = |path: &Path| {
            path.to_str()
                .map(str::to_owned)
                .ok_or_else(|| Failure::usage(format!("{}: the path is not UTF-8", path.display())))
        };
        let mut serve = vec![
            text(program)?,
            command.to_owned(),
            "--config".to_owned(),
            text(&file)?,
        ];
        if let (What::Replica(id), "join", Some(data)) = (what, command, &data) {
            serve.extend(["--dir".to_owned(), text(data)?]);
            if quintet_runtime::stored_epoch(data).is_none() {
                // It was stopped before it was a member.
                serve.extend(["--replace".to_owned(), id.to_string()]);
                for other in prepared.plan.ids().filter(|other| *other != id) {
                    let peer = Ports::of(prepared.plan.base_port, other).peer;
                    serve.extend(["--seed".to_owned(), format!("127.0.0.1:{peer}")]);
                }
            }
        }
        if let What::Proxy(_) = what {
            let listen = [
                ("--redis-listen", ports.redis),
                ("--admin-listen", ports.admin),
            ];
            for (flag, port) in listen {
                serve.extend([flag.to_owned(), format!("127.0.0.1:{port}")]);
            }
        }
        if fs::metadata(&log).is_ok_and(|log| log.len() > LOG_MAX) {
            fs::rename(&log, log.with_extension("log.old"))?;
        }
        let logs = OpenOptions::new().create(true).append(true).open(&log)?;
        let mut command = Command::new(program);
        command
            .args(&serve[1..])
            .arg("--stop-with-stdin")
            .stdin(Stdio::piped())
            .stdout(logs.try_clone()?)
            .stderr(logs)
            // Ctrl-C in a terminal reaches the whole process group: the demo alone shall get it.
            .process_group(0);
        programs::without_settings(&mut command);
        let child = command.spawn().map_err(|error| {
            Failure::new(Exit::Failed, format!("{}: {error}", program.display()))
        })?;
        Ok(Self {
            what,
            pid: child.id(),
            data,
            serve,
            ports,
            log,
            state: State::Runs(child),
            asked: Instant::now(),
        })
    }

    fn admin(&self) -> String {
        format!("127.0.0.1:{}", self.ports.admin)
    }

    fn is_ready(&self) -> bool {
        http::get(&self.admin(), "/readyz", ANSWER).is_ok_and(|answer| answer.code == 200)
    }

    fn status(&self) -> Option<serde_json::Value> {
        let answer = http::get(&self.admin(), "/status", ANSWER).ok()?;
        serde_json::from_slice(&answer.body).ok()
    }

    /// How our child ended, if it has since we last looked.
    fn ended(&mut self) -> Option<ExitStatus> {
        let State::Runs(child) = &mut self.state else {
            return None;
        };
        let status = child.try_wait().ok().flatten()?;
        self.state = State::Dead;
        Some(status)
    }

    fn exit_message(&self, status: ExitStatus) -> String {
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(signal)) => format!("was killed by signal {signal}{}", name_of(signal)),
            (None, None) => "ended".to_owned(),
        };
        let mut text = format!("{} (pid {}) {how}", self.what, self.pid);
        if status.code().is_some()
            && let Some(words) = exit_message(&self.log)
        {
            text.push_str(&format!("\n  it said: {words}"));
        }
        text.push_str(&format!("\n  its log: {}", self.log.display()));
        text
    }

    /// Asks one that is not our child whether it is there.
    fn ask(&mut self) {
        if self.asked.elapsed() < ASK {
            return;
        }
        self.asked = Instant::now();
        match self.state {
            State::Runs(_) => {}
            State::Dead => {
                if self.is_ready() {
                    let pid = self.status().and_then(|status| status.get("pid")?.as_u64());
                    let shown = pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
                    eprintln!("{} is back (started by hand{shown})", self.what);
                    self.state = State::ByHand { pid };
                }
            }
            State::ByHand { .. } => {
                if http::get(&self.admin(), "/livez", ANSWER).is_err() {
                    eprintln!("{} (started by hand) is gone", self.what);
                    self.state = State::Dead;
                }
            }
        }
    }

    fn signal(&self, signal: Signal) {
        if let State::Runs(child) = &self.state
            && let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        {
            // It was not yet waited for, so the id is still its own; a process that has ended
            // needs no signal.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Supervisor {
    /// Starts one process per replica and proxy.
    ///
    /// # Errors
    /// When one cannot be started; those that were are stopped.
    pub fn start(prepared: &Prepared, directory: PathBuf) -> Outcome<Self> {
        let program = std::env::current_exe()?;
        let mut supervisor = Self {
            processes: Vec::new(),
            directory,
        };
        for what in What::all(&prepared.plan) {
            let started = Managed::start(prepared, &program, what)?;
            supervisor.processes.push(started);
        }
        Ok(supervisor)
    }

    /// All processes, replicas first.
    pub fn processes(&self) -> &[Managed] {
        &self.processes
    }

    fn replicas(&self) -> impl Iterator<Item = &Managed> {
        let is_replica = |one: &&Managed| matches!(one.what, What::Replica(_));
        self.processes.iter().filter(is_replica)
    }

    /// Waits until every `/readyz` answers 200. `false`: asked to stop before that.
    ///
    /// # Errors
    /// When one ends instead, or the time is over.
    pub fn wait_until_ready(&mut self, stops: &Receiver<()>, timeout: Duration) -> Outcome<bool> {
        let began = Instant::now();
        let mut ready = vec![false; self.processes.len()];
        let bar = output::bar(
            ready.len() as u64,
            "starting [{bar:20}] {pos}/{len} ready {msg}",
        );
        loop {
            for (process, ready) in self.processes.iter_mut().zip(&mut ready) {
                if let Some(status) = process.ended() {
                    bar.finish_and_clear();
                    let exit_message = process.exit_message(status);
                    let exit = status.code().map_or(Exit::Failed, Exit::from_code);
                    self.kill();
                    return Err(Failure::new(exit, format!("cannot start: {exit_message}")));
                }
                *ready = *ready || process.is_ready();
            }
            bar.set_position(ready.iter().filter(|ready| **ready).count() as u64);
            if ready.iter().all(|ready| *ready) {
                bar.finish_and_clear();
                return Ok(true);
            }
            if began.elapsed() > timeout {
                bar.finish_and_clear();
                return Err(self.give_up(&ready, timeout));
            }
            self.say_who_is_missing(&bar, &ready);
            if stop_asked(stops, LOOK) {
                bar.finish_and_clear();
                return Ok(false);
            }
        }
    }

    fn say_who_is_missing(&self, bar: &ProgressBar, ready: &[bool]) {
        let missing: Vec<_> = self
            .processes
            .iter()
            .zip(ready)
            .filter(|(_, ready)| !**ready)
            .map(|(process, _)| process.what.to_string())
            .collect();
        bar.set_message(format!("(waiting for {})", missing.join(", ")));
    }

    fn give_up(&mut self, ready: &[bool], timeout: Duration) -> Failure {
        let missing: Vec<_> = self
            .processes
            .iter()
            .zip(ready)
            .filter(|(_, ready)| !**ready)
            .map(|(process, _)| process.log.display().to_string())
            .collect();
        self.kill();
        Failure::new(
            Exit::NoQuorum,
            format!(
                "{} of {} processes were not ready within {}",
                missing.len(),
                ready.len(),
                humantime::format_duration(timeout)
            ),
        )
        .help(format!(
            "see {}; a longer --timeout waits longer",
            missing.join(", ")
        ))
    }

    /// A replica to kill for a try, and what it is.
    pub fn victim(&self) -> (&Managed, &'static str) {
        let leader = || {
            self.replicas().find_map(|replica| {
                let leader = replica.status()?.get("leader")?.as_u64()?;
                let leader = What::Replica(u16::try_from(leader).ok()?);
                self.replicas().find(|other| other.what == leader)
            })
        };
        // Replicas publish their state now and then: right after the start it may be old.
        let deadline = Instant::now() + LEADER;
        let mut found = leader();
        while found.is_none() && Instant::now() < deadline {
            thread::sleep(LOOK);
            found = leader();
        }
        let leader = found;
        let first = self.processes.first();
        let first = first.expect("a demo has at least one replica");
        match leader {
            _ if self.replicas().count() == 1 => (
                first,
                "the only replica: the store is gone until it is back",
            ),
            Some(leader) => (leader, "the leader; the store continues"),
            None => (first, "a replica; the store continues"),
        }
    }

    /// Reports deaths and returns until asked to stop.
    pub fn watch(&mut self, stops: &Receiver<()>) {
        while !stop_asked(stops, LOOK) {
            for process in &mut self.processes {
                if let Some(status) = process.ended() {
                    let exit_message = process.exit_message(status);
                    eprintln!("{exit_message}\n  bring it back: {}", process.serve_line());
                }
                process.ask();
            }
        }
    }

    /// Stops all that the demo started.
    ///
    /// # Errors
    /// When one had to be killed or failed.
    pub fn stop(&mut self, stops: &Receiver<()>) -> Outcome {
        let began = Instant::now();
        for process in &mut self.processes {
            // One that has died since the last look was not stopped by us.
            if let Some(status) = process.ended() {
                eprintln!("{}", process.exit_message(status));
            }
            process.signal(Signal::TERM);
        }
        let mut failed = None;
        while self
            .processes
            .iter()
            .any(|process| matches!(process.state, State::Runs(_)))
        {
            for process in &mut self.processes {
                if let Some(status) = process.ended()
                    && !status.success()
                {
                    failed = Some(process.exit_message(status));
                }
            }
            if began.elapsed() > STOP || stop_asked(stops, Duration::from_millis(10)) {
                self.kill();
                return Err(Failure::new(
                    Exit::Failed,
                    "not all processes stopped by themselves; the rest was killed",
                ));
            }
        }
        for process in &self.processes {
            if let State::ByHand { pid } = process.state {
                let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
                eprintln!("{}{pid} was started by hand and continues", process.what);
            }
        }
        match failed {
            None => {
                eprintln!("stopped; the data is in {}", self.directory.display());
                Ok(())
            }
            Some(exit_message) => Err(Failure::new(Exit::Failed, exit_message)),
        }
    }

    fn kill(&mut self) {
        for process in &self.processes {
            process.signal(Signal::KILL);
        }
        for process in &mut self.processes {
            if let State::Runs(child) = &mut process.state {
                // Killed above, so this does not block; an error means that it is gone already.
                let _ = child.wait();
                process.state = State::Dead;
            }
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for `timeout` and says whether to stop.
fn stop_asked(stops: &Receiver<()>, timeout: Duration) -> bool {
    !matches!(stops.recv_timeout(timeout), Err(RecvTimeoutError::Timeout))
}

const fn name_of(signal: i32) -> &'static str {
    match signal {
        6 => " (SIGABRT)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

/// The last error in a log, or its last line.
fn exit_message(log: &Path) -> Option<String> {
    let mut file = fs::File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(8 << 10)))
        .ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = || text.lines().rev().filter(|line| !line.trim().is_empty());
    let words = lines()
        .find(|line| line.starts_with("error: "))
        .or_else(|| lines().next())?;
    Some(words.trim_start_matches("error: ").to_owned())
}

/// A word that a shell reads as it is.
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_spaces_are_quoted() {
        assert_eq!(shell_word("/usr/bin/quintet"), "/usr/bin/quintet");
        assert_eq!(shell_word("/my files/it's"), r"'/my files/it'\''s'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn last_error_counts_more_than_the_last_line() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        std::fs::write(&log, "one\nerror: two\n  help: three\n\n").unwrap();
        assert_eq!(exit_message(&log).as_deref(), Some("two"));
        std::fs::write(&log, "one\n").unwrap();
        assert_eq!(exit_message(&log).as_deref(), Some("one"));
        assert_eq!(exit_message(&directory.path().join("none")), None);
    }
}

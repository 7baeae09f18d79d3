//! Every command that README, documents and `--help` show is one that works.
//!
//! ```text
//!   README, docs: lines of console blocks, commands in backquotes ┐
//!   --help of each command: the lines under "Examples:"           ┘──► run ─ in a sandbox, to its end
//!                                                                     start ─ until it serves
//!                                                                     parse ─ up to its last argument
//! ```
//!
//! A command whose program takes minutes (`lab`, `torture`, campaigns) is parsed and not run: it
//! gets `--help` as its last argument, which ends with 0 if all that stands before is accepted.
//! Those commands have end-to-end tests of their own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../quintet/tests/support/mod.rs"]
mod support;

use quintet_store::{Kind, command::COMMANDS};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, panic,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use support::{Client, Demo, Guard, TIMEOUT, base_port, eventually, http_get, run, stderr, stdout};

/// Below the repository's root.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The documents, by their path below the root.
fn documents() -> Vec<(String, String)> {
    let root = root();
    let mut paths = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    let mut directories = vec![root.join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                paths.push(path);
            }
        }
    }
    paths.retain(|path| path.extension().is_some_and(|kind| kind == "md"));
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        (name, fs::read_to_string(&path).unwrap())
    };
    paths.into_iter().map(read).collect()
}

/// A command and where it is shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shown {
    place: String,
    line: String,
}

/// Without the comment behind it: a `#`, or what stands two blanks away.
fn without_comment(line: &str) -> String {
    let line = line.split(" # ").next().unwrap();
    line.trim().split("  ").next().unwrap().to_owned()
}

/// The commands in blocks of a document.
fn in_blocks(place: &str, text: &str) -> Vec<Shown> {
    let (mut found, mut block) = (Vec::new(), None);
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("```") {
            block = block.is_none().then(|| kind.to_owned());
            continue;
        }
        let command = match block.as_deref() {
            Some("console") => line.strip_prefix("$ "),
            Some("sh") => Some(line),
            _ => None,
        };
        found.extend(command.map(|line| Shown {
            place: place.to_owned(),
            line: without_comment(line),
        }));
    }
    found
}

/// The commands of this repository that a document names in its sentences.
fn in_sentences(place: &str, text: &str) -> Vec<Shown> {
    let prose = text.split("```").step_by(2).collect::<Vec<_>>().join("\n");
    let quoted = prose
        .lines()
        .flat_map(|line| line.split('`').skip(1).step_by(2));
    let begins = ["quintet ", "just ", "ci/", "bench/", "cargo "];
    quoted
        .filter(|words| begins.iter().any(|begin| words.starts_with(begin)))
        .filter(|words| !words.starts_with("quintet = "))
        .map(|words| Shown {
            place: place.to_owned(),
            line: words.replace("\\|", "|"),
        })
        .collect()
}

/// The names of a command's own commands, as its help lists them.
fn commands_of(words: &[&str]) -> Vec<String> {
    let help = stdout(&run(&[words, &["--help"]].concat()));
    let listed = help.split("Commands:\n").nth(1).unwrap_or_default();
    let listed = listed.lines().take_while(|line| line.starts_with("  "));
    let names = listed.filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// The examples of a command and of all below it.
fn in_help(words: &[&str], found: &mut Vec<Shown>) {
    let output = run(&[words, &["--help"]].concat());
    assert!(output.status.success(), "quintet {words:?} --help");
    let help = stdout(&output);
    let examples = help.split("Examples:\n").nth(1).unwrap_or_default();
    let lines = examples.lines().take_while(|line| line.starts_with("  "));
    found.extend(lines.map(|line| Shown {
        place: format!("quintet {} --help", words.join(" ")),
        line: without_comment(line),
    }));
    for name in commands_of(words) {
        in_help(&[words, &[name.as_str()]].concat(), found);
    }
}

/// How a command is checked.
#[derive(Debug, PartialEq, Eq)]
enum Check {
    /// Runs it, and what stands before and behind its `&&`, `|` and `>`.
    Run,
    /// Starts it and waits until it serves.
    Start,
    /// Looks whether its arguments are accepted.
    Parse,
    /// Nothing: says why.
    Skip(&'static str),
}

fn check_of(line: &str) -> Check {
    let words: Vec<_> = line.split_whitespace().collect();
    match words.as_slice() {
        ["cargo", "test", ..] => Check::Skip("it is what runs this test"),
        ["kill", ..] => Check::Skip("the tests of the demo kill replicas"),
        [first, ..] if first.starts_with('{') => Check::Skip("a line of a file"),
        _ if ["&& quintet serve", "&& quintet demo"]
            .iter()
            .any(|then| line.contains(then)) =>
        {
            Check::Start
        }
        ["quintet", "demo", "--join", ..] => Check::Parse,
        // They need a layout; the tests of groups do it for real.
        ["quintet", "groups", ..] => Check::Parse,
        ["quintet", "demo", ..] if line.contains("--layout") => Check::Parse,
        ["quintet", "serve" | "proxy" | "demo", ..] => Check::Start,
        ["QUINTET_PASSWORD=…", "quintet", "serve", ..] => Check::Start,
        ["quintet", "lab", "list", ..] => Check::Run,
        ["quintet", "lab" | "torture", ..] => Check::Parse,
        // Addresses of other machines; the tests of members do it for real.
        ["quintet", "join", ..] | ["quintet", "member", "remove", ..] => Check::Parse,
        ["quintet", "member", .., "--wait"] => Check::Parse,
        ["quintet", "member", "add", "--wait", ..] => Check::Parse,
        ["quintet", "bench", "reconfigure", ..] => Check::Parse,
        // It needs a layout; the tests of groups do it for real.
        ["quintet", "snapshot", "save", "--shard", ..] => Check::Parse,
        // The tests of quintet mount do it for real.
        ["quintet", "mount", ..] => Check::Parse,
        [_, rest @ ..] if rest.iter().any(|word| word.starts_with("/mnt/")) => {
            Check::Skip("it reads what quintet mount has mounted")
        }
        ["quintet", "simulate", rest @ ..] if !rest.contains(&"--seeds") => Check::Parse,
        _ => Check::Run,
    }
}

/// Directories, files and a running cluster for the commands; where these name the usual ports and
/// places, they get those of the sandbox.
struct Sandbox {
    directory: tempfile::TempDir,
    demo: Demo,
    base: u16,
    /// Of processes that an example starts.
    spare: u16,
}

impl Sandbox {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let (base, spare) = (base_port(3), base_port(6));
        let bin = at.join("bin");
        for name in [
            "bin",
            ".zfunc",
            ".local/share/bash-completion/completions",
            ".config/fish/completions",
        ] {
            fs::create_dir_all(at.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(support::program(), bin.join("quintet")).unwrap();

        // The files of a replica that was stopped.
        let stopped = Demo::start(&at.join("stopped"), spare, &["--replicas", "1"]);
        stopped.replicas[0]
            .client()
            .ask(&["SET", "k", "v"])
            .unwrap();
        assert_eq!(stopped.interrupt(), Some(0));

        let demo = Demo::start(&at.join("quintet-demo"), base, &[]);
        demo.leader();
        for words in [
            &["QUINTET.RETAIN", "BYTES", "1000000000"][..],
            &["SET", "k", "v"],
        ] {
            demo.replicas[0].client().ask(words).unwrap();
        }
        let member = format!("127.0.0.1:{}", spare + 200);
        let new = run(&["config", "new", "--members", &member]);
        for name in ["replica-0.toml", "replica.toml"] {
            let mut text = String::new();
            for line in stdout(&new).lines() {
                // Their digits are drawn, and no ports.
                let drawn = line.starts_with("secret") || line.starts_with("cluster");
                text.push_str(&match drawn {
                    true => line.to_owned(),
                    false => Self::elsewhere(line, spare),
                });
                text.push('\n');
            }
            let text = text.replace("data-0", &format!("data-of-{name}"));
            fs::write(at.join(name), text).unwrap();
        }
        let help = stdout(&run(&["check", "--help"]));
        let lines = help.lines().map(str::trim);
        let lines: Vec<_> = lines.filter(|line| line.starts_with('{')).collect();
        fs::write(at.join("history.jsonl"), lines.join("\n")).unwrap();
        Self {
            directory,
            demo,
            base,
            spare,
        }
    }

    /// The usual ports, moved.
    fn elsewhere(line: &str, base: u16) -> String {
        let usual_at = |word: &str| {
            [(700, 0), (710, 100), (720, 200), (790, 0), (791, 100)]
                .into_iter()
                .flat_map(|(usual, offset)| {
                    (1..=5).map(move |id| (usual * 10 + id, offset + id - 1))
                })
                .find(|(usual, _)| word == usual.to_string())
        };
        // Whole words only: the digits of a port may also stand in a random name or secret.
        line.split_inclusive(|c: char| !c.is_ascii_alphanumeric())
            .map(|piece| {
                let word = piece.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
                match usual_at(word) {
                    Some((_, offset)) => format!("{}{}", base + offset, &piece[word.len()..]),
                    None => piece.to_owned(),
                }
            })
            .collect()
    }

    /// The command as it can be run here.
    fn adapt(&self, line: &str, base: u16) -> String {
        let stopped = self.directory.path().join("stopped/replica-0/data");
        let stopped = stopped.to_str().unwrap();
        let line = Self::elsewhere(line, base)
            .replace("cargo run --release -- ", "quintet ")
            .replace("/var/lib/quintet", stopped)
            .replace("json DIR", &format!("json {stopped}"))
            .replace(
                "inspect quintet-demo/replica-0/data",
                &format!("inspect {stopped}"),
            )
            .replace("| less", "| cat")
            .replace("> replica-0.toml", "> new.toml")
            .replace("--seeds 0..500", "--seeds 0..5")
            .replace("--seeds 0..100", "--seeds 0..5")
            .replace("10.0.0.1", "127.0.0.1")
            .replace("10.0.0.2", "127.0.0.2")
            .replace("10.0.0.3", "127.0.0.3")
            .replace("10.0.1.9", "127.0.0.1")
            .replace("QUINTET_PASSWORD=…", "QUINTET_PASSWORD=secret")
            .replace("0.0.0.0:", "127.0.0.1:");
        if line.starts_with("quintet bench") {
            let line = line.replace("--seconds 30", "").replace("20000", "200");
            let url = format!("redis://127.0.0.1:{base}");
            let url = if line.contains("redis://") { "" } else { &url };
            return format!("{line} {url} --seconds 1");
        }
        if line.starts_with("quintet diff") {
            // Times that this demo has.
            let line = line
                .replace("2026-11-21T12:00:00Z", "v:0")
                .replace("us:1795750073995765", "v:0")
                .replace("v:1000", "v:0")
                .replace("v:2000", "v:1")
                .replace("--server 127.0.0.1:6379", "");
            return format!("{line} --server 127.0.0.1:{base}");
        }
        if line.starts_with("quintet snapshot save") {
            // Each example saves; none overwrites.
            let line = line.replace(stopped, "quintet-demo/replica-0/data");
            return format!("rm -f backup.snapshot; {line}");
        }
        line
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("QUINTET_") {
                command.env_remove(name);
            }
        }
        let path = std::env::var("PATH").unwrap();
        let here = self.directory.path();
        command
            .args(["-c", &format!("set -e\n{line}")])
            .current_dir(here)
            .env("HOME", here)
            .env("PATH", format!("{}:{path}", here.join("bin").display()))
            .stdin(Stdio::null());
        command
    }

    /// Runs a command to its end, which comes soon.
    fn run(&self, line: &str) -> Result<(), String> {
        self.end(&self.adapt(line, self.base))
    }

    fn end(&self, line: &str) -> Result<(), String> {
        let said = self.directory.path().join("said");
        let file = fs::File::create(&said).unwrap();
        let mut command = self.shell(line);
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let mut process = Guard(command.spawn().unwrap());
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            match process.0.try_wait().unwrap() {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let said = fs::read(&said).unwrap();
                    return Err(format!("{status}: {}", String::from_utf8_lossy(&said)));
                }
                None => thread::sleep(Duration::from_millis(10)),
            }
        }
        Err("does not end".to_owned())
    }

    /// Runs what stands before the program that serves, then starts this, and stops it once it
    /// answers.
    fn start(&self, line: &str) -> Result<(), String> {
        let (before, last) = line.rsplit_once("&& ").unwrap_or(("", line));
        // Only what was prepared for the command; a demo of its own finds an empty directory.
        if last.starts_with("quintet demo") {
            if !before.is_empty() {
                self.run(before)?;
            }
            return self.start_demo(last);
        }
        if !before.is_empty() {
            let before = self.adapt(before.trim(), self.spare);
            self.end(&before)?;
            // The output of `config new` names the usual ports.
            let file = self.directory.path().join("one.toml");
            if let Ok(text) = fs::read_to_string(&file) {
                fs::write(file, Self::elsewhere(&text, self.spare)).unwrap();
            }
        }
        let mut last = self.adapt(last, self.spare);
        let is_proxy = last.contains("quintet proxy");
        if is_proxy {
            let file = self.demo.replicas[0].serve.iter();
            let file = file.skip_while(|word| *word != "--config").nth(1).unwrap();
            last = last.replace("replica-0.toml", file);
        }
        let has_admin = !last.contains("--admin-listen none");
        let mut child = self.shell(&format!("exec {last}").replace(
            "exec QUINTET_PASSWORD=secret",
            "QUINTET_PASSWORD=secret exec",
        ));
        let said = self.directory.path().join("said");
        let child = child
            .stdout(Stdio::null())
            .stderr(fs::File::create(&said).unwrap());
        let mut process = Guard(child.spawn().unwrap());
        let ports = [self.spare, self.spare + 100];
        eventually(&format!("'{last}' serves"), || {
            if let Some(status) = process.0.try_wait().unwrap() {
                let said = fs::read(&said).unwrap();
                let said = String::from_utf8_lossy(&said);
                return Some(Err(format!("ended with {status}: {said}")));
            }
            let [redis, admin] = ports.map(|port| format!("127.0.0.1:{port}"));
            let serves = if has_admin {
                http_get(&admin, "/readyz").is_some_and(|(code, _)| code == 200)
            } else {
                support::Client::connect(&redis)
                    .and_then(|mut client| client.ask(&["PING"]))
                    .is_ok_and(|answer| answer == "PONG")
            };
            serves.then_some(Ok(()))
        })?;
        support::signal(process.0.id(), rustix::process::Signal::TERM);
        let status = process.wait();
        status
            .success()
            .then_some(())
            .ok_or(format!("ended with {status}"))
    }

    fn start_demo(&self, line: &str) -> Result<(), String> {
        let words = line
            .strip_prefix("quintet demo")
            .unwrap()
            .split_whitespace();
        let words: Vec<_> = words.collect();
        let (mut more, mut directory) = (Vec::new(), None);
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word {
                "--base-port" => drop(words.next()),
                "--json" => {}
                "--dir" => directory = words.next().map(|name| self.directory.path().join(name)),
                _ => more.push(word),
            }
        }
        let own = tempfile::tempdir().unwrap();
        let directory = directory.unwrap_or_else(|| own.path().join("demo"));
        let demo = Demo::start(&directory, base_port(6), &more);
        let code = demo.interrupt();
        (code == Some(0))
            .then_some(())
            .ok_or(format!("ended with {code:?}"))
    }
}

fn check_end(output: &Output) -> Result<(), String> {
    let said = || format!("{}: {}{}", output.status, stdout(output), stderr(output));
    output.status.success().then_some(()).ok_or_else(said)
}

/// The words of a command up to the first that stands for something else.
fn before_placeholder(line: &str) -> Vec<&str> {
    let stands_for = |word: &str| {
        let shouts = word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || c == '|');
        shouts
            || word.contains('…')
            || word.contains('[')
            || word.contains('|')
            || word.contains('=') && word.chars().any(|c| c.is_ascii_uppercase())
    };
    let mut words: Vec<_> = line
        .split_whitespace()
        .take_while(|word| !stands_for(word) && *word != "&&" && *word != ">" && *word != "<")
        .collect();
    // A flag whose value was cut off.
    if words.len() < line.split_whitespace().count()
        && words.last().is_some_and(|word| word.starts_with("--"))
    {
        words.pop();
    }
    words
}

/// Whether the program accepts all arguments of the command.
fn parse(line: &str) -> Result<(), String> {
    let words = before_placeholder(line);
    let words = words.strip_prefix(&["quintet"]).ok_or("not this program")?;
    let mut words = words.to_vec();
    // `quintet config new|show`: each of them.
    let last = line
        .split_whitespace()
        .nth(words.len() + 1)
        .unwrap_or_default();
    let choices: Vec<&str> = match last.split_once('|') {
        Some(_) => last.split('|').collect(),
        None => vec![""],
    };
    for choice in choices {
        let kept = words.len();
        words.extend((!choice.is_empty()).then_some(choice));
        words.push("--help");
        check_end(&run(&words))?;
        words.truncate(kept);
    }
    Ok(())
}

/// Whether a recipe, script, package, example or benchmark of that name exists.
fn exists(line: &str) -> Result<(), String> {
    let root = root();
    let words: Vec<_> = line.split_whitespace().collect();
    let (first, rest) = words.split_first().ok_or("empty")?;
    let value_of = |flag: &str| {
        let at = rest.iter().position(|word| *word == flag);
        at.and_then(|at| rest.get(at + 1)).copied()
    };
    let there = |path: PathBuf| {
        path.exists()
            .then_some(())
            .ok_or(format!("no {}", path.display()))
    };
    match *first {
        "just" => {
            let recipes = fs::read_to_string(root.join("justfile")).unwrap();
            let name = rest.first().ok_or("no recipe")?;
            let is_recipe = |line: &str| {
                let head = line.split([' ', ':']).next();
                head == Some(*name) && line.contains(':')
            };
            recipes
                .lines()
                .any(is_recipe)
                .then_some(())
                .ok_or(format!("no recipe {name}"))
        }
        "cargo" => {
            let package = value_of("-p").map(|name| name.strip_prefix("quintet-").unwrap_or(name));
            if let Some(name) = package {
                there(root.join("crates").join(name)).or_else(|_| there(root.join(name)))?;
            }
            let example = value_of("--example").map(|name| format!("{name}.rs"));
            let places = [
                "examples",
                "crates/quintet/examples",
                "crates/simulator/examples",
            ];
            example.map_or(Ok(()), |file| {
                let found = places
                    .iter()
                    .any(|place| root.join(place).join(&file).exists());
                found.then_some(()).ok_or(format!("no example {file}"))
            })
        }
        _ => there(root.join(first.trim_end_matches('/'))),
    }
}

#[test]
fn every_command_in_a_block_or_in_help_works() {
    let mut all = Vec::new();
    for (place, text) in documents() {
        all.extend(in_blocks(&place, &text));
    }
    in_help(&[], &mut all);
    assert!(all.len() > 60, "found only {}: {all:#?}", all.len());
    let sandbox = Sandbox::new();
    let (mut done, mut failed) = (BTreeSet::new(), Vec::new());
    for shown in all {
        let line = shown.line.replace("cargo run --release -- ", "quintet ");
        if !done.insert(line.clone()) {
            continue;
        }
        let has_placeholder = before_placeholder(&line).len() < before_placeholder_free(&line);
        eprintln!("{line}");
        let result = match check_of(&line) {
            Check::Skip(why) => {
                eprintln!("skipped: {line}: {why}");
                Ok(())
            }
            Check::Parse => parse(&line),
            _ if has_placeholder => parse(&line),
            Check::Run if needs_missing(&line) => {
                eprintln!("skipped: {line}: its program is not installed");
                Ok(())
            }
            Check::Run => sandbox.run(&line),
            // A demo that does not start panics: the other commands are still tried.
            Check::Start => panic::catch_unwind(panic::AssertUnwindSafe(|| sandbox.start(&line)))
                .unwrap_or_else(|_| Err("panicked, see above".to_owned())),
        };
        if let Err(why) = result {
            failed.push(format!("{}: {}\n    {why}", shown.place, shown.line));
        }
    }
    assert!(
        failed.is_empty(),
        "{} fail:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

/// How many words the command has up to a pipe, a redirection or a second command.
fn before_placeholder_free(line: &str) -> usize {
    let known = line
        .replace("QUINTET_PASSWORD=…", "")
        .replace(" DIR", " dir");
    let words = known.split_whitespace();
    let skipped = line.split_whitespace().count() - known.split_whitespace().count();
    let free = words
        .take_while(|word| !["&&", ">", "<", "|"].contains(word))
        .count();
    // A command with its password before it, or with a directory to fill in, is adapted and run.
    if skipped > 0 || known != line {
        0
    } else {
        free
    }
}

/// Whether the command needs a third-party program that is not here.
fn needs_missing(line: &str) -> bool {
    let there = |name: &str| {
        let path = std::env::var_os("PATH").unwrap();
        std::env::split_paths(&path).any(|place| place.join(name).exists())
    };
    ["redis-cli", "jq"]
        .iter()
        .any(|name| line.split_whitespace().any(|word| word == *name) && !there(name))
}

#[test]
fn every_command_in_a_sentence_exists() {
    let mut failed = Vec::new();
    let mut count = 0;
    for (place, text) in documents() {
        for shown in in_sentences(&place, &text) {
            count += 1;
            let result = match shown.line.split_whitespace().next() {
                Some("quintet") if shown.line.contains('→') => Ok(()),
                Some("quintet") => parse(&shown.line),
                _ => exists(&shown.line),
            };
            if let Err(why) = result {
                failed.push(format!("{}: {}\n    {why}", shown.place, shown.line));
            }
        }
    }
    assert!(count > 60, "found only {count}");
    assert!(
        failed.is_empty(),
        "{} fail:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

/// The page has exactly these rows in its only table.
fn table_agrees(page: &str, rows: &[String]) {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let table = text.lines().filter(|line| line.starts_with('|')).skip(2);
    let table: Vec<_> = table.map(str::to_owned).collect();
    assert!(table == rows, "{page} should have:\n{}", rows.join("\n"));
}

#[test]
fn metrics_and_commands_of_a_replica_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let base = base_port(3);
    let demo = Demo::start(&directory.path().join("demo"), base, &[]);
    let admin = format!("127.0.0.1:{}", base + 100);
    // Some are there once the members' clocks are known.
    let begun = Instant::now();
    let metrics = loop {
        let (_, metrics) = http_get(&admin, "/metrics").unwrap();
        if metrics.contains("quintet_peer_clock_offset_seconds") {
            break metrics;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{metrics}");
        thread::sleep(Duration::from_millis(20));
    };
    let words = |mark: &str| -> BTreeMap<String, String> {
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(mark));
        let pairs = lines.filter_map(|line| line.trim().split_once(' '));
        pairs
            .map(|(name, rest)| (name.into(), rest.into()))
            .collect()
    };
    let (helps, kinds) = (words("# HELP"), words("# TYPE"));
    assert!(helps.len() > 100, "found only {}", helps.len());
    let rows = helps
        .iter()
        .map(|(name, help)| format!("| `{name}` | {} | {help} |", kinds[name]));
    table_agrees("docs/operations/metrics.md", &rows.collect::<Vec<_>>());

    // Offered is what gets another answer than that it is not.
    let mut groups: Vec<(String, [Vec<String>; 2])> = Vec::new();
    for spec in COMMANDS.iter().filter(|spec| spec.kind != Kind::Internal) {
        let mut client = Client::connect(&format!("127.0.0.1:{base}")).unwrap();
        let arguments = usize::from(spec.arity.unsigned_abs()) - 1;
        let words = [vec![spec.name], vec!["x"; arguments]].concat();
        let reply = client.ask(&words).unwrap_or_default();
        let (name, group) = (spec.name.to_uppercase(), format!("{:?}", spec.group));
        let is_missing = reply.contains(&format!("'{name}' is not supported"))
            || reply.contains("support disabled");
        let at = groups.iter().position(|(name, _)| *name == group);
        let at = at.unwrap_or(groups.len());
        if at == groups.len() {
            groups.push((group, Default::default()));
        }
        let (_, lists) = &mut groups[at];
        lists[usize::from(is_missing)].push(format!("`{name}`"));
    }
    let rows = groups.into_iter().map(|(group, lists)| {
        let [offered, missing] = lists.map(|mut names| {
            names.sort();
            match names.is_empty() {
                true => "–".to_owned(),
                false => names.join(", "),
            }
        });
        format!("| {group} | {offered} | {missing} |")
    });
    table_agrees("docs/guide/command-list.md", &rows.collect::<Vec<_>>());
    assert_eq!(demo.interrupt(), Some(0));
}

/// The first block of a kind on a page.
fn block(page: &str, kind: &str) -> String {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let begin = format!("```{kind}\n");
    let rest = text.split_once(&begin).unwrap().1;
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn files_in_documents_are_accepted() {
    let directory = tempfile::tempdir().unwrap();
    for (page, kind, words) in [
        (
            "docs/guide/configuration.md",
            "toml",
            &["config", "check", "--config"][..],
        ),
        ("docs/design/histories.md", "json", &["check"]),
    ] {
        let path = directory.path().join(kind);
        fs::write(&path, block(page, kind)).unwrap();
        let output = run(&[words, &[path.to_str().unwrap()]].concat());
        assert!(output.status.success(), "{page}: {}", stderr(&output));
    }
}

#[test]
fn rust_of_readme_is_part_of_the_example() {
    let bare = |text: String| {
        text.replace("quintet::", "")
            .replace(char::is_whitespace, "")
            .replace(",)", ")")
    };
    let example = bare(fs::read_to_string(root().join("examples/counter.rs")).unwrap());
    let block = block("README.md", "rust");
    assert!(block.lines().count() > 3);
    for line in block.lines() {
        assert!(example.contains(&bare(line.to_owned())), "{line}");
    }
}

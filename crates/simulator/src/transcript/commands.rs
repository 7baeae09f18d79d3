//! The commands of transcripts, carried out on a stage.

use super::words;
use crate::{
    clock::{MILLISECOND, SECOND},
    history::Fate,
    machine::Operation,
    stage::{Packet, Place, Setting, Stage},
};
use quintet_replica::{
    Control, Durability, Entry, Incarnation, Level, Link, ReplicaId, TimerKey, TimerOwner,
};
use std::collections::BTreeMap;

/// Plays one transcript.
pub(super) struct Player {
    entry: Entry,
    options: Vec<(String, String)>,
    stage: Option<Stage>,
    clients: BTreeMap<String, usize>,
    fields: Vec<String>,
    over: bool,
}

type Done<T = ()> = Result<T, String>;

fn number<T: std::str::FromStr>(word: &str) -> Done<T> {
    word.parse()
        .map_err(|_| format!("'{word}' is not a number"))
}

fn time(word: &str) -> Done<u64> {
    let units = [("ms", MILLISECOND), ("us", 1000), ("s", SECOND)];
    for (unit, length) in units {
        if let Some(count) = word.strip_suffix(unit)
            && let Ok(count) = count.parse::<u64>()
        {
            return Ok(count * length);
        }
    }
    Err(format!("'{word}' is not a time like 300ms or 2s"))
}

fn operation(words: &[&str]) -> Done<(Level, u32, Operation)> {
    let value = |index: usize| match words.get(index) {
        Some(word) => number::<u64>(word),
        None => Err(format!("'{}' lacks a value", words.join(" "))),
    };
    let key = value(1)? as u32;
    let (level, operation) = match words[0] {
        "write" => (Level::Ordered, Operation::Write(value(2)?)),
        "append" => (Level::Ordered, Operation::Append(value(2)?)),
        "add" => (Level::Ordered, Operation::Add(value(2)?)),
        "compare" => {
            let (expected, new) = (value(2)?, value(3)?);
            (Level::Ordered, Operation::CompareAndSet { expected, new })
        }
        "read" => (Level::Ordered, Operation::Read),
        "look" => (Level::Linearizable, Operation::Read),
        "glance" => (Level::Stale, Operation::Read),
        other => return Err(format!("there is no operation '{other}'")),
    };
    Ok((level, key, operation))
}

/// Which frames a command means.
struct Which {
    from: Option<usize>,
    to: Option<usize>,
    name: Option<String>,
    count: usize,
}

impl Which {
    fn parse(words: &[&str]) -> Done<Self> {
        let way = words.first().and_then(|way| way.split_once("->"));
        let (from, to) = way.ok_or("say which frames, for example 0->1")?;
        let place = |word: &str| match word {
            "*" => Ok(None),
            _ => number(word).map(Some),
        };
        let mut which = Self {
            from: place(from)?,
            to: place(to)?,
            name: None,
            count: 1,
        };
        for word in &words[1..] {
            match word.split_once('=') {
                Some(("type", name)) => which.name = Some(name.to_string()),
                _ if *word == "all" => which.count = usize::MAX,
                _ => which.count = number(word)?,
            }
        }
        Ok(which)
    }

    fn is(&self, packet: &Packet, stage: &Stage) -> bool {
        let text = || stage.describe_frame(&packet.frame);
        self.from.is_none_or(|from| from == packet.from)
            && self.to.is_none_or(|to| to == packet.to)
            && (self.name.as_ref()).is_none_or(|name| words::name(&text()) == name)
    }
}

impl Player {
    pub fn new(entry: Entry, options: Vec<(String, String)>) -> Self {
        Self {
            entry,
            options,
            stage: None,
            clients: BTreeMap::new(),
            fields: Vec::new(),
            over: false,
        }
    }

    /// Something panicked: nothing that follows can be believed.
    pub fn over(&mut self, what: &str, out: &mut Vec<String>) {
        self.over = true;
        if let Some(log) = self.stage.as_mut().and_then(|stage| stage.log.as_mut()) {
            out.append(log);
        }
        out.push(format!("PANIC {what}"));
    }

    /// Carries out one command; appends what happened.
    pub fn perform(&mut self, command: &str, out: &mut Vec<String>) {
        if self.over {
            return;
        }
        let words: Vec<&str> = command.split_whitespace().collect();
        let quietly = words.first() == Some(&"quietly");
        let words = if quietly { &words[1..] } else { &words[..] };
        let mut told = Vec::new();
        let done = match words.split_first() {
            Some((name, rest)) => self.command(name, rest, &mut told),
            None => Err(String::from("a command is missing")),
        };
        if let Some(log) = self.stage.as_mut().and_then(|stage| stage.log.as_mut()) {
            let lines = std::mem::take(log);
            if !quietly {
                out.extend(lines.iter().map(|line| self.shorten(line)));
            } else {
                out.extend(
                    lines
                        .into_iter()
                        .filter(|line| line.starts_with("VIOLATION")),
                );
            }
        }
        if !quietly {
            out.append(&mut told);
        }
        if let Err(what) = done {
            out.push(format!("error: {what}"));
        }
    }

    /// Messages in lines of the log are shown short.
    fn shorten(&self, line: &str) -> String {
        for verb in [": sends ", ": gets "] {
            if let Some((who, rest)) = line.split_once(verb) {
                let end = if verb == ": gets " { " from " } else { " to " };
                if let Some((message, whom)) = rest.rsplit_once(end) {
                    let message = words::short(message, &self.fields);
                    return format!("{who}{verb}{message}{end}{whom}");
                }
            }
        }
        line.to_string()
    }

    fn stage(&mut self) -> Done<&mut Stage> {
        self.stage
            .as_mut()
            .ok_or_else(|| String::from("there is no cluster yet"))
    }

    /// A replica of the cluster that runs, or any with `any`.
    fn host(&mut self, words: &[&str], any: bool) -> Done<usize> {
        let stage = self.stage()?;
        let host: usize = number(words.first().ok_or("say which replica")?)?;
        match stage.hosts.get(host) {
            None => Err(format!("there is no replica {host}")),
            Some(found) if found.node.is_none() && !any => Err(format!("replica {host} is down")),
            Some(_) => Ok(host),
        }
    }

    fn command(&mut self, name: &str, words: &[&str], told: &mut Vec<String>) -> Done {
        match name {
            "cluster" => return self.cluster(words),
            "show" => {
                self.fields = words.iter().map(|word| (*word).to_string()).collect();
                return Ok(());
            }
            "request" => self.request(words, told)?,
            "retry" => self.retry(words)?,
            "deliver" | "drop" | "double" => self.frames(name, words)?,
            "network" => self.network(told)?,
            "fire" => self.fire(words)?,
            "timers" => {
                let host = self.host(words, false)?;
                let stage = self.stage()?;
                let names = stage.timers(host);
                let names: Vec<String> = names
                    .into_iter()
                    .map(|(_, key)| stage.timer_name(key))
                    .collect();
                told.push(format!("{host}: {}", names.join(" ")));
            }
            "cut" => self.cut(words)?,
            "link" => self.link(words)?,
            "run" => {
                let length = time(words.first().ok_or("say how long")?)?;
                let stage = self.stage()?;
                stage.setting.by_hand = false;
                stage.run(length);
                stage.setting.by_hand = true;
            }
            "stabilize" => self.stage()?.stabilize(),
            "heal" => {
                let stage = self.stage()?;
                stage.heal();
                for a in 0..stage.places() {
                    for b in 0..a {
                        stage.connect(b, a);
                    }
                }
            }
            "state" => self.state(words, told)?,
            "history" => self.history(told)?,
            "marks" => {
                let part = words.join(" ");
                let marks = &self.stage()?.marks;
                let marks = marks.iter().filter(|(mark, _)| mark.contains(&part));
                told.extend(marks.map(|(mark, count)| format!("{mark}: {count}")));
            }
            "check" => {
                let checked = self.stage()?.verdict();
                told.push(checked.map_or_else(|what| what.to_string(), |()| String::from("sound")));
            }
            "settle" => {
                let stage = self.stage()?;
                let log = stage.log.take();
                stage.setting.by_hand = false;
                stage.remind();
                stage.final_phase();
                stage.setting.by_hand = true;
                stage.log = log;
                told.push(String::from("sound"));
            }
            _ => self.instruct(name, words)?,
        }
        self.stage()?.settle();
        Ok(())
    }

    /// Commands that begin with one replica.
    fn instruct(&mut self, name: &str, words: &[&str]) -> Done {
        let known = [
            "start",
            "crash",
            "restart",
            "disk",
            "persist",
            "pause",
            "resume",
            "checkpoint",
            "handoff",
            "suspect",
            "clock",
        ];
        if !known.contains(&name) {
            return Err(format!("there is no command '{name}'"));
        }
        let any = ["start", "restart", "disk", "clock"].contains(&name);
        let host = self.host(words, any)?;
        let stage = self.stage()?;
        let rest = &words[1..];
        let word = rest.first().copied();
        match (name, word) {
            ("start", _) if stage.hosts[host].node.is_some() => {
                return Err(format!("replica {host} runs"));
            }
            ("start", _) => stage.start(host),
            ("restart", _) => {
                stage.crash(host);
                stage.settle();
                stage.start(host);
            }
            ("crash", _) => {
                let keep = rest.iter().find_map(|word| word.strip_prefix("keep="));
                let keep = keep.map_or(Ok(0), number)?;
                stage.crash_keeping(host, keep, rest.contains(&"quietly"));
            }
            ("disk", Some("hold")) => stage.hold_disk(host, true),
            ("disk", Some("go")) => stage.hold_disk(host, false),
            ("persist", count) => stage.sync(host, count.map_or(Ok(usize::MAX), number)?),
            ("pause", _) => stage.pause(host),
            ("resume", _) => stage.resume(host),
            ("checkpoint", _) => stage.control(host, Control::CheckpointDue),
            ("handoff", _) => stage.control(host, Control::HandOff),
            ("suspect", Some(other)) => {
                stage.control(host, Control::ReportFailure(ReplicaId(number(other)?)));
            }
            ("clock", Some(seconds)) => {
                stage.set_clock(host, number::<i64>(seconds)? * SECOND as i64);
            }
            _ => return Err(format!("'{name} {}' says too little", words.join(" "))),
        }
        Ok(())
    }

    fn cluster(&mut self, words: &[&str]) -> Done {
        let replicas: usize = number(words.first().ok_or("say how many replicas")?)?;
        if replicas < self.entry.info.replicas_min.max(1) || replicas > 128 {
            return Err(format!("{replicas} replicas are too few or too many"));
        }
        let mut setting = Setting::new(self.entry, replicas, Durability::Disk);
        (setting.by_hand, setting.options) = (true, self.options.clone());
        let mut empty = false;
        for word in &words[1..] {
            match (word.split_once('='), *word) {
                (Some((name, value)), _) => {
                    setting.options.push((name.to_string(), value.to_string()));
                }
                (None, "memory") => setting.durability = Durability::Memory,
                (None, "empty") => empty = true,
                (None, other) => return Err(format!("what is '{other}'?")),
            }
        }
        (self.entry.check)(&setting.options).map_err(|error| error.to_string())?;
        self.clients.clear();
        let mut stage = Stage::empty(setting);
        stage.log = Some(Vec::new());
        if !empty {
            for host in 0..replicas {
                stage.start(host);
            }
        }
        stage.settle();
        self.stage = Some(stage);
        Ok(())
    }

    fn client(&mut self, name: String, host: usize) -> Done<usize> {
        if let Some(client) = self.clients.get(&name) {
            let client = *client;
            self.stage()?.move_client(client, host);
            return Ok(client);
        }
        let client = self.stage()?.client(Place::At(host));
        self.clients.insert(name, client);
        Ok(client)
    }

    fn request(&mut self, words: &[&str], told: &mut Vec<String>) -> Done {
        let host = self.host(words, false)?;
        let mut rest = &words[1..];
        let mut name = format!("client of {host}");
        if let Some(given) = rest.first().and_then(|word| word.strip_prefix("as=")) {
            name = given.to_string();
            rest = &rest[1..];
        }
        let mut operations = Vec::new();
        let mut level = None;
        for words in rest.split(|word| *word == ";") {
            if words.is_empty() {
                return Err(String::from("say what is asked for"));
            }
            let (wanted, key, operation) = operation(words)?;
            if level.is_some_and(|level| level != wanted) {
                return Err(String::from("one batch has one level"));
            }
            level = Some(wanted);
            operations.push((key, operation));
        }
        let client = self.client(name, host)?;
        let level = level.unwrap_or(Level::Ordered);
        let numbers = self.stage()?.invoke(client, level, &operations);
        told.push(format!("operations {numbers:?}"));
        Ok(())
    }

    fn retry(&mut self, words: &[&str]) -> Done {
        let name = words.first().ok_or("say which client")?;
        let found = self.clients.get(*name).copied();
        let client = found.ok_or_else(|| format!("there is no client '{name}'"))?;
        let at = words.iter().find_map(|word| word.strip_prefix("at="));
        if let Some(at) = at {
            let host = self.host(&[at], false)?;
            self.stage()?.move_client(client, host);
        }
        let stage = self.stage()?;
        let mut numbers = Vec::new();
        if words.contains(&"all") {
            let operations = stage.history.operations().iter().enumerate();
            numbers = operations
                .filter(|(_, it)| usize::from(it.client) == client && it.id.is_some())
                .map(|(number, _)| number)
                .collect();
        }
        stage.repeat(client, &numbers);
        Ok(())
    }

    fn frames(&mut self, name: &str, words: &[&str]) -> Done {
        let which = Which::parse(words)?;
        let stage = self.stage()?;
        let keys: Vec<_> = stage
            .frames()
            .filter(|(_, packet)| which.is(packet, stage))
            .map(|(key, _)| key)
            .take(which.count)
            .collect();
        if keys.is_empty() && name != "drop" {
            return Err(String::from("no such frame is on its way"));
        }
        for key in keys {
            let Some(packet) = stage.take_frame(key) else {
                continue;
            };
            match name {
                "drop" => stage.lose(&packet),
                "double" => {
                    stage.deliver(packet.clone());
                    stage.put_back(key, packet);
                }
                _ => stage.deliver(packet),
            }
            // One frame, one turn: what a frame leads to is written below it.
            stage.settle();
        }
        Ok(())
    }

    fn network(&mut self, told: &mut Vec<String>) -> Done {
        let fields = self.fields.clone();
        let stage = self.stage()?;
        for (_, packet) in stage.frames() {
            let text = words::short(&stage.describe_frame(&packet.frame), &fields);
            told.push(format!("{}->{} {text}", packet.from, packet.to));
        }
        Ok(())
    }

    fn fire(&mut self, words: &[&str]) -> Done {
        let host = self.host(words, false)?;
        let wanted = words.get(1).ok_or("say which timer")?;
        let name = self.entry.timer_name;
        let plain = |text: &str| text.to_lowercase().replace('_', "");
        let timer =
            (0..256).find(|timer| name(*timer).is_some_and(|name| plain(&name) == plain(wanted)));
        let timer = timer.ok_or_else(|| format!("there is no timer '{wanted}'"))?;
        let key = TimerKey {
            owner: TimerOwner::Replica,
            timer,
            generation: 0,
        };
        self.stage()?.fire(host, key);
        Ok(())
    }

    fn cut(&mut self, words: &[&str]) -> Done {
        let text = words.concat();
        let side = |text: &str| text.split(',').map(number).collect::<Done<Vec<usize>>>();
        if let Some((from, to)) = text.split_once("->") {
            let (from, to) = (side(from)?, side(to)?);
            let pairs: Vec<_> = from
                .iter()
                .flat_map(|a| to.iter().map(move |b| (*a, *b)))
                .collect();
            self.stage()?.cut(&pairs, false);
        } else if let Some((one, other)) = text.split_once('|') {
            let (one, other) = (side(one)?, side(other)?);
            self.stage()?.part(&one, &other, false);
        } else {
            return Err(String::from("say what is cut: 0->1, or 0|1,2"));
        }
        Ok(())
    }

    fn link(&mut self, words: &[&str]) -> Done {
        let [a, b, what] = words else {
            return Err(String::from("say which link, and up, reset or down"));
        };
        let (a, b) = (number(a)?, number(b)?);
        let stage = self.stage()?;
        match *what {
            "up" => stage.connect(a, b),
            "reset" => stage.break_link(a, b, Link::Reset),
            "down" => stage.break_link(a, b, Link::Down),
            other => return Err(format!("a link cannot be '{other}'")),
        }
        Ok(())
    }

    fn state(&mut self, words: &[&str], told: &mut Vec<String>) -> Done {
        let stage = self.stage()?;
        let hosts: Vec<usize> = match words.is_empty() {
            true => (0..stage.hosts.len()).collect(),
            false => words.iter().map(|word| number(word)).collect::<Done<_>>()?,
        };
        for host in hosts.into_iter().filter(|host| *host < stage.hosts.len()) {
            let incarnation = stage.hosts[host].incarnation;
            let incarnation_text = match incarnation {
                Incarnation(1) => String::new(),
                later => format!(", incarnation {}", later.0),
            };
            told.push(format!("{}{incarnation_text}", stage.describe_host(host)));
        }
        Ok(())
    }

    fn history(&mut self, told: &mut Vec<String>) -> Done {
        for (number, recorded) in self.stage()?.history.operations().iter().enumerate() {
            let fate = match recorded.fate {
                Fate::Open => String::from("is open"),
                Fate::Done(_, reply) => format!("gave {reply:?}"),
                Fate::Failed => String::from("failed"),
                Fate::Uncertain => String::from("is uncertain"),
            };
            told.push(format!(
                "{number}: {:?} on {} {fate}",
                recorded.operation, recorded.key
            ));
        }
        Ok(())
    }
}

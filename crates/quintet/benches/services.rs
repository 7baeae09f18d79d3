//! Figures 16 to 18, 20 and 21 of the Derecho paper for services: members in this process, for `disk`
//! in processes of their own.
//!
//! ```text
//!   cargo bench -p quintet --bench services -- COMMAND [DIRECTORY]
//!
//!   calls    marshalled calls beside handlers that do nothing    Fig. 16(a)
//!   events   small calls per second, thousands of them in progress
//!   disk     versions on the disk beside plain writers           Fig. 16(b)
//!   stable   update to closed, query at the present time         Fig. 17
//!   latency  update to executed, by members and senders          Fig. 18, left
//!   shards   queries of 1 to 6 shards at one time                Fig. 18, right
//!   change   bandwidth while a member leaves and comes back      Fig. 20
//!   steps    steps of these two changes of view                  Fig. 21
//! ```

use quintet::groups::{Bytes, CallError, Group, Persistent, Service, Time, Volatile, service};
use std::{
    collections::VecDeque,
    fmt::Debug,
    fs::File,
    io::{self, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Bytes that one measurement sends.
const BYTES: usize = 256 << 20;
/// Calls in progress.
const WINDOW: usize = 16;

#[derive(Default, Service)]
struct Nothing {
    calls: Volatile<u64>,
}

#[service]
impl Nothing {
    #[ordered]
    fn put(&mut self, _object: &[u8]) -> u64 {
        *self.calls
    }
}

#[derive(Default, Service)]
struct InMemory {
    object: Volatile<Bytes>,
}

#[service]
impl InMemory {
    #[ordered]
    fn put(&mut self, object: &[u8]) -> u64 {
        *self.object = Bytes::copy_from_slice(object);
        object.len() as u64
    }
}

#[derive(Default, Service)]
struct Versions {
    object: Persistent<Bytes>,
}

#[service]
impl Versions {
    #[ordered]
    fn put(&mut self, object: &[u8]) -> u64 {
        *self.object = Bytes::copy_from_slice(object);
        object.len() as u64
    }
    #[query]
    fn object(&self) -> Bytes {
        self.object.clone()
    }
    #[query]
    fn length(&self) -> u64 {
        self.object.len() as u64
    }
}

fn mib_per_second(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / f64::from(1 << 20) / time.as_secs_f64()
}

/// Sends objects with several calls in progress; the rate in MiB/s.
macro_rules! rate {
    ($group:expr, $service:ty, $size:expr, $total:expr) => {{
        let shard = $group.shard::<$service>("it", 0)?;
        let object = vec![7; $size];
        let count = ($total / $size).clamp(64, 20_000);
        let mut waiting = VecDeque::new();
        let began = Instant::now();
        for _ in 0..count {
            waiting.push_back(shard.ordered().put(&object));
            if waiting.len() >= WINDOW
                && let Some(first) = waiting.pop_front()
            {
                first.wait()?;
            }
        }
        for pending in waiting {
            pending.wait()?;
        }
        mib_per_second(count * $size, began.elapsed())
    }};
}

fn copy_rate(size: usize) -> f64 {
    let (from, mut to) = (vec![7_u8; size], vec![0_u8; size]);
    let count = (4 * BYTES / size).max(1);
    let began = Instant::now();
    for _ in 0..count {
        std::hint::black_box(&mut to).copy_from_slice(std::hint::black_box(&from));
    }
    mib_per_second(count * size, began.elapsed())
}

/// MiB/s of each of these writers together, which append and sync pieces.
fn write_rate(
    directory: &Path,
    writers: usize,
    size: usize,
    total: usize,
) -> Result<f64, std::io::Error> {
    let piece = vec![7_u8; size];
    let count = (total / size).max(1);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|writer| {
                let (piece, path) = (&piece, directory.join(format!("plain-{writer}")));
                scope.spawn(move || {
                    let mut file = File::create(&path)?;
                    for _ in 0..count {
                        file.write_all(piece)?;
                        file.sync_data()?;
                    }
                    std::fs::remove_file(path)
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no writer panics"))
    })?;
    Ok(mib_per_second(writers * count * size, began.elapsed()))
}

fn calls() -> Outcome {
    println!("| members | bytes | does nothing, MiB/s | volatile | persistent | copy in memory |");
    println!("|---|---|---|---|---|---|");
    for members in [2, 3] {
        for size in [10 << 10, 1 << 20] {
            let group = Group::local(members).one::<Nothing>("it").start()?;
            let nothing = rate!(group, Nothing, size, BYTES);
            drop(group);
            let group = Group::local(members).one::<InMemory>("it").start()?;
            let in_memory = rate!(group, InMemory, size, BYTES);
            drop(group);
            let group = Group::local(members).one::<Versions>("it").start()?;
            let versions = rate!(group, Versions, size, BYTES);
            let copied = copy_rate(size);
            println!(
                "| {members} | {size} | {nothing:.0} | {in_memory:.0} | {versions:.0} | {copied:.0} |"
            );
        }
    }
    Ok(())
}

/// Calls of 16 bytes per second, from one thread.
fn events() -> Outcome {
    println!("| members | in progress | calls/s |");
    println!("|---|---|---|");
    for members in [2, 3] {
        for window in [64, 4096] {
            let group = Group::local(members).one::<Nothing>("it").start()?;
            let shard = group.shard::<Nothing>("it", 0)?;
            let count = 1_000_000;
            let mut waiting = VecDeque::with_capacity(window);
            let began = Instant::now();
            for _ in 0..count {
                waiting.push_back(shard.ordered().put(&[7; 16]));
                if waiting.len() >= window
                    && let Some(first) = waiting.pop_front()
                {
                    first.wait()?;
                }
            }
            for pending in waiting {
                pending.wait()?;
            }
            let rate = f64::from(count) / began.elapsed().as_secs_f64();
            println!("| {members} | {window} | {rate:.0} |");
        }
    }
    Ok(())
}

/// Members on disk: the first one here, the others in processes of their own.
struct Processes {
    group: Group,
    others: Vec<Child>,
}

impl Processes {
    fn start(members: usize, directory: &Path) -> Result<Self, Box<dyn std::error::Error>> {
        let reserved = (0..members).map(|_| TcpListener::bind("127.0.0.1:0"));
        let reserved = reserved.collect::<io::Result<Vec<_>>>()?;
        let addresses = reserved.iter().map(|it| Ok(it.local_addr()?.to_string()));
        let addresses = addresses.collect::<io::Result<Vec<_>>>()?;
        drop(reserved);
        let others = (1..members).map(|id| {
            Command::new(std::env::current_exe()?)
                .args(["member", &id.to_string()])
                .arg(directory)
                .args(&addresses)
                .stdin(Stdio::piped())
                .spawn()
        });
        let others = others.collect::<io::Result<_>>()?;
        let group = member(0, directory, &addresses)?;
        group.wait_ready(Duration::from_secs(30))?;
        Ok(Self { group, others })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for other in &mut self.others {
            // It ends when nothing can come from here any more.
            drop(other.stdin.take());
            let _ = other.wait();
        }
    }
}

fn member(id: u16, directory: &Path, addresses: &[String]) -> Result<Group, quintet::Error> {
    let own = directory.join(id.to_string());
    let group = Group::member("bench", id, addresses, own);
    group.one::<Versions>("it").start()
}

impl Processes {
    /// Bytes that the members have sent to the disk; none where the system does not count them.
    fn written(&self) -> Option<u64> {
        let others = self.others.iter().map(Child::id);
        let each = others.chain([std::process::id()]).map(|pid| {
            let counts = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
            let line = counts
                .lines()
                .find(|line| line.starts_with("write_bytes:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        });
        each.sum()
    }
}

fn disk(directory: &Path) -> Outcome {
    println!(
        "| members | bytes | members' writes, MiB/s | times each byte | plain writers before | after | share |"
    );
    println!("|---|---|---|---|---|---|---|");
    for members in [2, 3] {
        for size in [10 << 10, 1 << 20] {
            let total = if size > 1 << 16 { BYTES } else { BYTES / 16 };
            let before = write_rate(directory, members, size, total)?;
            let kept = tempfile::tempdir_in(directory)?;
            let processes = Processes::start(members, kept.path())?;
            let written = processes.written();
            let each = rate!(processes.group, Versions, size, total);
            let written = processes.written().zip(written);
            drop(processes);
            let after = write_rate(directory, members, size, total)?;
            // Every member writes every object to its journal, and the older ones to a file, too.
            let times = written.map_or(1.0, |(end, begin)| {
                (end - begin) as f64 / (total * members) as f64
            });
            let all = each * members as f64 * times;
            let share = all / before.midpoint(after);
            println!(
                "| {members} | {size} | {all:.0} | {times:.2} | {before:.0} | {after:.0} | {share:.2} |"
            );
        }
    }
    Ok(())
}

fn quantile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let at = ((times.len() - 1) as f64 * share) as usize;
    times[at].as_secs_f64() * 1e3
}

/// Median and 99 of 100.
fn shown(times: &mut [Duration]) -> String {
    format!("{:.2} ({:.2})", quantile(times, 0.5), quantile(times, 0.99))
}

fn stable() -> Outcome {
    println!(
        "| members | bytes | update to executed, ms (99 %) | to closed | query at the present time |"
    );
    println!("|---|---|---|---|---|");
    for members in [2, 3] {
        for size in [10 << 10, 1 << 20] {
            let group = Group::local(members).one::<Versions>("it").start()?;
            let shard = group.shard::<Versions>("it", 0)?;
            let object = vec![7; size];
            let (mut executed, mut closed, mut present) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..200 {
                let began = Instant::now();
                let done = shard.ordered().put(&object).done()?;
                executed.push(began.elapsed());
                shard.at(done.time).length().wait()?;
                closed.push(began.elapsed());
                let began = Instant::now();
                shard.at(SystemTime::now()).length().wait()?;
                present.push(began.elapsed());
            }
            println!(
                "| {members} | {size} | {} | {} | {} |",
                shown(&mut executed),
                shown(&mut closed),
                shown(&mut present)
            );
        }
    }
    Ok(())
}

/// Updates of some senders, at a low rate, until each is executed.
fn latency() -> Outcome {
    println!("| members | bytes | all send, ms (99 %) | half | one |");
    println!("|---|---|---|---|---|");
    for members in [2, 4, 8] {
        for (size, rate) in [(10 << 10, 1_000), (1 << 20, 100)] {
            let group = Group::local(members).one::<Versions>("it").start()?;
            let shard = group.shard::<Versions>("it", 0)?;
            let object = vec![7; size];
            let mut row = Vec::new();
            for senders in [members, members / 2, 1] {
                let pause = Duration::from_secs(1) * senders as u32 / rate;
                let mut times = std::thread::scope(|scope| {
                    let threads: Vec<_> = (0..senders)
                        .map(|sender| {
                            let (shard, object) = (shard.member(sender), &object);
                            scope.spawn(move || -> Result<Vec<Duration>, CallError> {
                                let mut times = Vec::new();
                                for _ in 0..2 * rate as usize / senders {
                                    let began = Instant::now();
                                    shard.ordered().put(object).wait()?;
                                    times.push(began.elapsed());
                                    std::thread::sleep(pause.saturating_sub(began.elapsed()));
                                }
                                Ok(times)
                            })
                        })
                        .collect();
                    let joined = threads.into_iter();
                    joined
                        .map(|thread| thread.join().expect("no sender panics"))
                        .collect::<Result<Vec<_>, _>>()
                })?
                .concat();
                row.push(shown(&mut times));
            }
            println!("| {members} | {size} | {} |", row.join(" | "));
        }
    }
    Ok(())
}

const SHARDS: &str = r#"
[[subgroup]]
name = "it"
service = "Versions"
shards = 6
members = { min = 1, max = 2 }
"#;

fn shards() -> Outcome {
    println!("| bytes | updates/s | of | 1 shard, ms (99 %) | 2 | 3 | 4 | 5 | 6 |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for size in [10 << 10, 1 << 20] {
        let start = || -> Result<_, Box<dyn std::error::Error>> {
            let group = Group::local(12).layout(SHARDS);
            let group = group.serve::<Versions>().start()?;
            group.wait_ready(Duration::from_secs(30))?;
            let all = group.all::<Versions>("it")?;
            Ok((group, all))
        };
        let (group, all) = start()?;
        let object = vec![7; size];
        for _ in 0..5 {
            for shard in &all {
                shard.ordered().put(&object).wait()?;
            }
        }
        let past: Time = group.now();
        for shard in &all {
            shard.at(past).object().wait()?;
        }
        // Updates of a group that is not asked take no more than the processor's time.
        let mut other = None;
        for (rate, of) in [
            (0, "it"),
            (100, "it"),
            (500, "it"),
            (0, "another"),
            (500, "another"),
        ] {
            if of == "another" && other.is_none() {
                other = Some(start()?);
            }
            let updates = other.as_ref().map_or(&all, |(_, all)| all);
            let (stop, updated) = (AtomicBool::new(false), AtomicU64::new(0));
            let mut row = Vec::new();
            let mut asked = Duration::ZERO;
            std::thread::scope(|scope| -> Outcome {
                if rate > 0 {
                    // Small updates: their number is of interest, not their bytes.
                    scope.spawn(|| {
                        let pause = Duration::from_secs(1) / rate;
                        while !stop.load(Ordering::Relaxed) {
                            let next = Instant::now() + pause;
                            let number = updated.fetch_add(1, Ordering::Relaxed);
                            let shard = &updates[number as usize % 6];
                            drop(shard.ordered().put(&[7; 100]));
                            std::thread::sleep(next.saturating_duration_since(Instant::now()));
                        }
                    });
                }
                let began = Instant::now();
                let measured = (1..=6).try_for_each(|count| -> Outcome {
                    let mut times = Vec::new();
                    for _ in 0..300 {
                        let began = Instant::now();
                        let pending: Vec<_> = all[..count]
                            .iter()
                            .map(|shard| shard.at(past).object())
                            .collect();
                        for answer in pending {
                            answer.wait()?;
                        }
                        times.push(began.elapsed());
                    }
                    row.push(shown(&mut times));
                    Ok(())
                });
                asked = began.elapsed();
                stop.store(true, Ordering::Relaxed);
                measured
            })?;
            let rate = updated.load(Ordering::Relaxed) as f64 / asked.as_secs_f64();
            println!("| {size} | {rate:.0} | {of} | {} |", row.join(" | "));
        }
    }
    Ok(())
}

fn change() -> Outcome {
    println!(
        "| bytes | MiB/s before | longest pause as a member dies, ms | as it comes back | MiB/s after |"
    );
    println!("|---|---|---|---|---|");
    for size in [10 << 10, 1 << 20] {
        let group = Group::local(3).one::<InMemory>("it").start()?;
        let shard = group.shard::<InMemory>("it", 0)?;
        let object = vec![7; size];
        let (mut waiting, mut ends) = (VecDeque::new(), Vec::new());
        let began = Instant::now();
        let (mut stopped, mut restarted) = (None, None);
        while began.elapsed() < Duration::from_secs(9) {
            waiting.push_back(shard.ordered().put(&object));
            if waiting.len() >= WINDOW
                && let Some(first) = waiting.pop_front()
            {
                first.wait()?;
                ends.push(began.elapsed());
            }
            if stopped.is_none() && began.elapsed() > Duration::from_secs(3) {
                stopped = Some(began.elapsed());
                group.stop_member(2);
            }
            if restarted.is_none() && began.elapsed() > Duration::from_secs(6) {
                restarted = Some(began.elapsed());
                group.restart_member(2)?;
            }
        }
        let (stopped, restarted) = (stopped.unwrap_or_default(), restarted.unwrap_or_default());
        let pause = |from: Duration, to: Duration| {
            let inside = ends
                .windows(2)
                .filter(|pair| pair[1] >= from && pair[0] < to);
            let pauses = inside.map(|pair| pair[1] - pair[0]);
            pauses.max().unwrap_or_default().as_secs_f64() * 1e3
        };
        let rate = |from: Duration, to: Duration| {
            let inside = ends
                .iter()
                .filter(|end| **end >= from && **end < to)
                .count();
            mib_per_second(inside * size, to - from)
        };
        let end = Duration::from_secs(9);
        println!(
            "| {size} | {:.0} | {:.0} | {:.0} | {:.0} |",
            rate(Duration::from_secs(1), stopped),
            pause(stopped, restarted),
            pause(restarted, end),
            rate(end - Duration::from_secs(1), end),
        );
    }
    Ok(())
}

/// When members told in their log of a step of a change of view.
static TOLD: Mutex<Vec<(Instant, &str)>> = Mutex::new(Vec::new());
const STEPS: [&str; 4] = [
    "member suspected",
    "view wedged",
    "ragged trim computed",
    "view installed",
];

struct Recorder;

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "quintet_runtime::metrics"
    }
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Self);
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Visit for Recorder {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        if let Some(step) = STEPS.iter().find(|step| **step == text) {
            let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
            told.push((Instant::now(), step));
        }
    }
}

/// Steps as a member of four stops and comes back while one caller sends.
fn steps() -> Outcome {
    const REST: Duration = Duration::from_secs(2);
    tracing::subscriber::set_global_default(Recorder)?;
    println!("ms since the member was told to stop or start: first, last (how often)");
    println!("| bytes | member | suspected | wedged | trim | installed | longest pause |");
    println!("|---|---|---|---|---|---|---|");
    for size in [10 << 10, 10 << 10, 10 << 10, 1 << 20, 1 << 20, 1 << 20] {
        let group = Group::local(4).one::<InMemory>("it").start()?;
        let shard = group.shard::<InMemory>("it", 0)?;
        let object = vec![7; size];
        let (mut waiting, mut ends) = (VecDeque::new(), Vec::new());
        let ended = AtomicBool::new(false);
        let changes = std::thread::scope(|scope| -> Result<_, Box<dyn std::error::Error>> {
            let changes = scope.spawn(|| {
                std::thread::sleep(REST);
                let stopped = Instant::now();
                group.stop_member(3);
                std::thread::sleep(REST);
                let started = Instant::now();
                let result = group.restart_member(3);
                std::thread::sleep(REST);
                ended.store(true, Ordering::Relaxed);
                result.map(|()| [("stops", stopped), ("starts", started)])
            });
            while !ended.load(Ordering::Relaxed) {
                waiting.push_back(shard.ordered().put(&object));
                if waiting.len() >= WINDOW
                    && let Some(first) = waiting.pop_front()
                {
                    first.wait()?;
                    ends.push(Instant::now());
                }
            }
            Ok(changes.join().expect("it does not panic")?)
        })?;
        let told = std::mem::take(&mut *TOLD.lock().unwrap_or_else(PoisonError::into_inner));
        for (change, began) in changes {
            let ms = |at: Instant| at.duration_since(began).as_secs_f64() * 1e3;
            let inside = |at: Instant| at >= began && at < began + REST;
            let step = |step| {
                let at = told
                    .iter()
                    .filter(|(at, it)| *it == step && inside(*at))
                    .map(|(at, _)| ms(*at));
                let at: Vec<_> = at.collect();
                match at[..] {
                    [first, .., last] => format!("{first:.1}, {last:.1} ({})", at.len()),
                    [only] => format!("{only:.1}"),
                    [] => String::new(),
                }
            };
            let pauses = ends.windows(2).filter(|pair| inside(pair[1]));
            let longest = pauses.max_by_key(|pair| pair[1] - pair[0]);
            let pause = longest.map_or(String::new(), |pair| {
                format!(
                    "{:.1} to {:.1}",
                    ms(pair[1]) - (pair[1] - pair[0]).as_secs_f64() * 1e3,
                    ms(pair[1])
                )
            });
            let steps = STEPS.map(step).join(" | ");
            println!("| {size} | {change} | {steps} | {pause} |");
        }
    }
    Ok(())
}

fn main() -> Outcome {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    if let [member, id, directory, addresses @ ..] = &words[..]
        && member == "member"
    {
        let _group = self::member(id.parse()?, Path::new(directory), addresses)?;
        io::copy(&mut io::stdin(), &mut io::sink())?;
        return Ok(());
    }
    let directory = words.get(1).map_or_else(std::env::temp_dir, PathBuf::from);
    match words.first().map_or("", String::as_str) {
        "calls" => calls(),
        "disk" => disk(&directory),
        "stable" => stable(),
        "shards" => shards(),
        "change" => change(),
        "steps" => steps(),
        "events" => events(),
        "latency" => latency(),
        "" => calls()
            .and_then(|()| events())
            .and_then(|()| disk(&directory))
            .and_then(|()| stable())
            .and_then(|()| latency())
            .and_then(|()| shards())
            .and_then(|()| change())
            .and_then(|()| steps()),
        other => Err(format!(
            "'{other}' is none of calls, events, disk, stable, latency, shards, change, steps"
        )
        .into()),
    }
}

//! Measuring this machine: what the simulated backend charges for.
//!
//! ```text
//!   wake-up, write, read, per KiB   two sockets over loopback        ─┐
//!   synchronisation                 a preallocated file              ─┤
//!   each KiB executed               the store, alone                 ─┼─► ProfileFile
//!   what the replica itself costs   one real cell, fitted, frozen    ─┘
//! ```
//!
//! One cell is fitted: three replicas, 128-byte values, a closed loop of many clients and of few.
//! One factor scales a replica's cost of sleeping and synchronising, another all its other costs,
//! until the simulated CPU time per operation is the measured one under both loads. The generator's
//! costs are scaled together under the greater load. Every other cell is then a prediction.

use crate::{
    cluster::{Cluster, ClusterPlan},
    figures::{Machine, stolen_note},
    load::{Distribution, Load, Mix, run as run_load},
    profile::ProfileFile,
    scenario::{Place, Scenario},
};
use quintet_cli::{Failure, Outcome};
use quintet_replica::{
    At, CommandId, CommandTime, Durability, Level, Position, SessionId, StateMachine,
};
use quintet_simulator::performance::{self, Costs, Placement, Profile};
use quintet_store::{Mode, RequestBuilder, Store, StoreOptions, lookup};
use rustix::{
    fd::AsFd,
    fs::{FallocateFlags, OFlags, fallocate},
    time::{ClockId, clock_gettime},
};
use std::{
    fs::{File, OpenOptions},
    hint::black_box,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// How to calibrate.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `quintet` program.
    pub program: PathBuf,
    /// Where the disk is.
    pub data: PathBuf,
    /// The first port; 300 are used.
    pub base_port: u16,
    /// Clients of the cell that is fitted.
    pub clients: usize,
    /// How long it is measured.
    pub measured: Duration,
}

/// The measurements, for people.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The profile.
    pub file: ProfileFile,
    /// The measured values and the source of each constant, a line each.
    pub notes: Vec<String>,
}

const MESSAGE: usize = 128;
const LARGE: usize = 16 << 10;
const PINGS: usize = 3_000;
const WRITES: usize = 20_000;
/// More than caches hold.
const MEMORY: usize = 128 << 20;
const SYNCS: usize = 400;
/// Where a buffer must begin that goes past the page cache.
const ALIGNED: usize = 4096;
const SMALL: usize = 4 << 10;
const LARGE_SYNC: usize = 64 << 10;
const REPLICAS: usize = 3;
const VALUE: usize = 128;
const LARGE_VALUE: usize = 4 << 10;
const KEYS: u64 = 10_000;
const FITS: usize = 8;
/// The lesser load has this part of the greater one's clients.
const FEW: usize = 16;
/// How far one step of the fit goes, as a factor.
const STEP: (f64, f64) = (0.25, 4.0);

fn pair() -> Outcome<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    for stream in [&one, &other] {
        stream.set_nodelay(true)?;
    }
    Ok((one, other))
}

fn quantile(sorted: &[u64], part: f64) -> u64 {
    let index = (part * (sorted.len().saturating_sub(1)) as f64).round() as usize;
    sorted.get(index).copied().unwrap_or(0)
}

/// The median of round trips, asleep or awake, in nanoseconds.
fn round_trip(awake: bool) -> Outcome<u64> {
    let (mut one, mut other) = pair()?;
    one.set_nonblocking(awake)?;
    other.set_nonblocking(awake)?;
    let read = |stream: &mut TcpStream, bytes: &mut [u8]| loop {
        match stream.read_exact(bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    };
    let echo = thread::spawn(move || -> std::io::Result<()> {
        let mut bytes = [0; MESSAGE];
        for _ in 0..PINGS {
            read(&mut other, &mut bytes)?;
            other.write_all(&bytes)?;
        }
        Ok(())
    });
    let mut bytes = [0; MESSAGE];
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        if !awake {
            // Long enough for the other core to fall asleep.
            thread::sleep(Duration::from_micros(150));
        }
        let begun = Instant::now();
        one.write_all(&bytes)?;
        read(&mut one, &mut bytes)?;
        times.push(begun.elapsed().as_nanos() as u64);
    }
    echo.join()
        .map_err(|_| Failure::failed("the echo failed"))??;
    times.sort_unstable();
    Ok(quantile(&times, 0.5))
}

/// The cost of writing and reading a message of `length`, in nanoseconds: medians. Messages are
/// `apart` bytes from each other in memory: far apart, none is in a cache.
fn system_calls(length: usize, apart: usize) -> Outcome<(u64, u64)> {
    let (mut one, mut other) = pair()?;
    let mut bytes = vec![7; MEMORY];
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for turn in 0..WRITES {
        let half = MEMORY / 2;
        let at = turn * apart % (half - length);
        let (from, to) = bytes.split_at_mut(half);
        let begun = Instant::now();
        one.write_all(&from[at..at + length])?;
        let written = Instant::now();
        other.read_exact(&mut to[at..at + length])?;
        reads.push(written.elapsed().as_nanos() as u64);
        writes.push(written.duration_since(begun).as_nanos() as u64);
        black_box(&to[at]);
    }
    writes.sort_unstable();
    reads.sort_unstable();
    Ok((quantile(&writes, 0.5), quantile(&reads, 0.5)))
}

/// Durations of synchronised writes.
struct Synchronised {
    /// Of each, sorted, in nanoseconds.
    latencies: Vec<u64>,
    /// CPU time of each.
    cpu: u64,
    /// The time of all, divided by their number: what the disk needs when it is kept busy.
    each: u64,
}

/// Writes `length` bytes at a time to preallocated files, as many at once as there are journals on
/// the machine.
fn synchronisations(directory: &Path, length: usize, journals: usize) -> Outcome<Synchronised> {
    let begins = Barrier::new(journals);
    let one = |journal: usize| {
        let path = directory.join(format!("quintet-lab-{}-{journal}", std::process::id()));
        let measured = synchronise(&path, length, &begins);
        // It may never have been made.
        let _ = std::fs::remove_file(&path);
        measured.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
    };
    let found: Vec<Outcome<(Vec<u64>, u64, u64)>> = thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..journals)
            .map(|journal| scope.spawn(move || one(journal)))
            .collect();
        let ended = |thread: thread::ScopedJoinHandle<'_, _>| {
            let failed = || Err(Failure::failed("measuring the disk failed"));
            thread.join().unwrap_or_else(|_| failed())
        };
        threads.into_iter().map(ended).collect()
    });
    let (mut latencies, mut cpu, mut elapsed) = (Vec::new(), 0, 0);
    for one in found {
        let (own, own_cpu, own_elapsed) = one?;
        latencies.extend(own);
        cpu += own_cpu;
        elapsed = elapsed.max(own_elapsed);
    }
    latencies.sort_unstable();
    let count = latencies.len().max(1) as u64;
    Ok(Synchronised {
        latencies,
        cpu: cpu / count,
        each: elapsed / count,
    })
}

/// Latencies, CPU time and time of one journal's writes.
fn synchronise(
    path: &Path,
    length: usize,
    begins: &Barrier,
) -> std::io::Result<(Vec<u64>, u64, u64)> {
    let prepared = (|| -> std::io::Result<File> {
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            let options = options.create(true).truncate(false).write(true);
            options.custom_flags(flags.bits() as i32).open(path)
        };
        let plain = open(OFlags::empty())?;
        let all = (SYNCS * length) as u64;
        fallocate(plain.as_fd(), FallocateFlags::empty(), 0, all)?;
        // Written once: what is measured is overwriting, as a preallocated journal does.
        plain.write_all_at(&vec![0; SYNCS * length], 0)?;
        plain.sync_all()?;
        // Past the page cache where the file system can, as the journal writes.
        open(OFlags::DSYNC | OFlags::DIRECT).or_else(|_| open(OFlags::DSYNC))
    })();
    // A thread that failed must not keep the others waiting.
    begins.wait();
    let file = prepared?;
    let buffer = vec![7; length + ALIGNED];
    let begin = buffer.as_ptr().align_offset(ALIGNED);
    let bytes = &buffer[begin..begin + length];
    let cpu = || {
        let used = clock_gettime(ClockId::ThreadCPUTime);
        used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64
    };
    let mut times = Vec::with_capacity(SYNCS);
    let (cpu_begun, all_begun) = (cpu(), Instant::now());
    for at in 0..SYNCS {
        let begun = Instant::now();
        file.write_all_at(bytes, (at * length) as u64)?;
        times.push(begun.elapsed().as_nanos() as u64);
    }
    let elapsed = all_begun.elapsed().as_nanos() as u64;
    Ok((times, cpu() - cpu_begun, elapsed))
}

/// The cost per KiB of a value for the replica that executes a SET, in nanoseconds: the store has
/// as many keys as the fitted cell, which are written in turn.
fn executed_kib() -> Outcome<u64> {
    let set = lookup(b"SET").ok_or_else(|| Failure::failed("the store has no SET"))?;
    let session = SessionId {
        owner: 1,
        number: 1,
    };
    let each = |length: usize| {
        let mut store = Store::new(StoreOptions::default());
        let (value, mut reply) = (vec![7; length], Vec::new());
        let mut took = Duration::ZERO;
        for sequence in 1..=2 * KEYS {
            let key = format!("key:{:012}", sequence % KEYS);
            let mut request = RequestBuilder::new();
            request.command(set, Mode::default(), &[key.as_bytes(), &value]);
            let at = At {
                position: Position(sequence),
                time: CommandTime(sequence),
                id: CommandId { session, sequence },
            };
            let begun = Instant::now();
            store.apply(&at, request.as_bytes(), &mut reply);
            // The first time, memory comes from the system.
            if sequence > KEYS {
                took += begun.elapsed();
            }
            reply.clear();
        }
        took.as_nanos() as u64 / KEYS
    };
    let more = ((LARGE_VALUE - VALUE) / 128) as u64;
    Ok(each(LARGE_VALUE).saturating_sub(each(VALUE)) * 8 / more)
}

/// The measurements of the fitted cell.
#[derive(Clone, Copy, Debug)]
struct Baseline {
    throughput: f64,
    /// Nanoseconds of all replicas per operation.
    replicas: f64,
    /// The part of it for falling asleep, being woken and synchronising, where it is known.
    idle: f64,
    /// Nanoseconds of the generator per operation.
    generator: f64,
    /// The part of the machine's CPU time that its host took for others; 0 where the kernel does
    /// not report it.
    stolen: f64,
}

impl Options {
    /// Clients of both loads: few, many.
    fn loads(&self) -> [usize; 2] {
        [(self.clients / FEW).max(1), self.clients.max(2)]
    }
}

fn cluster(options: &Options) -> Outcome<Cluster> {
    Cluster::start(ClusterPlan {
        namespaces: None,
        program: options.program.clone(),
        protocol: "multipaxos".to_owned(),
        options: Vec::new(),
        // Looking for work while there is none would count as work.
        settings: vec![("spin_max".to_owned(), "0s".to_owned())],
        replicas: REPLICAS,
        durability: Durability::Disk,
        links: None,
        began: Duration::ZERO,
        parent: options.data.clone(),
        base_port: options.base_port,
    })
}

/// Measures the real cell under one load.
fn baseline(cluster: &mut Cluster, clients: usize, measured: Duration) -> Outcome<Baseline> {
    let targets = cluster.targets(&Place::Leader, Level::Linearizable)?;
    let load = Load {
        targets,
        clients,
        sharing: 1,
        rate: None,
        mix: Mix::reads(0.0),
        keys: KEYS,
        distribution: Distribution::Uniform,
        value_size: VALUE,
        threads: 1,
        warmup: Duration::from_secs(1),
        measured,
        seed: 1,
    };
    let mut edges = Vec::new();
    let seen = run_load(&load, || edges.push(cluster.cpu()))?;
    let (Some(Some(before)), Some(Some(after))) = (edges.first(), edges.get(1)) else {
        return Err(Failure::failed(
            "this system does not tell what processes use",
        ));
    };
    if seen.answered == 0 {
        return Err(Failure::failed("nothing was answered while calibrating"));
    }
    let answered = seen.answered as f64;
    let cores = seen.generator_cores.unwrap_or(0.0);
    Ok(Baseline {
        throughput: seen.throughput,
        replicas: after.saturating_sub(*before).as_nanos() as f64 / answered,
        idle: 0.0,
        generator: cores * 1e9 / seen.throughput,
        stolen: seen.stolen.unwrap_or(0.0),
    })
}

fn scaled(value: u64, by: f64) -> u64 {
    (value as f64 * by).round() as u64
}

/// The factors of the costs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Factors {
    /// Those of falling asleep, being woken, and synchronising …
    idle: f64,
    /// … those of all else that replicas do …
    work: f64,
    /// … and the generator's.
    generator: f64,
}

/// The costs, scaled; costs per KiB are as measured.
fn scale(costs: &Costs, by: Factors) -> Costs {
    Costs {
        sleep: scaled(costs.sleep, by.idle),
        sync: scaled(costs.sync, by.idle),
        turn: scaled(costs.turn, by.work),
        receive: scaled(costs.receive, by.work),
        send: scaled(costs.send, by.work),
        send_frame: scaled(costs.send_frame, by.work),
        batch: scaled(costs.batch, by.work),
        request: scaled(costs.request, by.work),
        reply: scaled(costs.reply, by.work),
        execute: scaled(costs.execute, by.work),
        generator: scaled(costs.generator, by.generator),
        generator_turn: scaled(costs.generator_turn, by.generator),
        ..*costs
    }
}

/// How far what was simulated is from what was measured, under both loads: 0 is not at all.
fn off(real: [Baseline; 2], simulated: [Baseline; 2]) -> f64 {
    let one = |measured: f64, found: f64| (found / measured).ln().abs();
    let load = |real: Baseline, simulated: Baseline| one(real.replicas, simulated.replicas);
    load(real[0], simulated[0])
        + load(real[1], simulated[1])
        + one(real[1].generator, simulated[1].generator)
}

/// By what the costs of idleness and those of work are to be multiplied, so that what was simulated
/// under few and many clients, of which so much was idleness, becomes what was measured. Where no
/// such factors are to be had, the load of many clients decides.
fn step(measured: [f64; 2], simulated: [f64; 2], idle: [f64; 2]) -> (f64, f64) {
    let within = |factor: f64| factor.clamp(STEP.0, STEP.1);
    let work = [simulated[0] - idle[0], simulated[1] - idle[1]];
    let apart = idle[0] * work[1] - idle[1] * work[0];
    let of_idle = within((measured[0] * work[1] - measured[1] * work[0]) / apart.max(1.0));
    let of_work = within((measured[1] - of_idle * idle[1]) / work[1].max(1.0));
    let left = measured[1] - of_work * work[1];
    match idle[1] > 1.0 {
        true => (within(left / idle[1]), of_work),
        false => (of_idle, of_work),
    }
}

/// The simulated result of the fitted cell.
fn simulate(profile: &Profile, clients: usize) -> Outcome<Baseline> {
    let measured = Duration::from_millis(300);
    // As the real cell is told: a thread that finds nothing to do sleeps.
    let profile = Profile {
        spin: 0,
        ..profile.clone()
    };
    let entry = Scenario::entry("multipaxos")
        .ok_or_else(|| Failure::failed("multipaxos is not registered"))?;
    let load = performance::Load::closed(clients, VALUE);
    let found = performance::run(performance::Setup {
        durability: Durability::Disk,
        warmup: Duration::from_millis(200),
        measured,
        ..performance::Setup::calm(entry, REPLICAS, profile.clone(), load)
    });
    let answered = found.answered.len().max(1) as f64;
    Ok(Baseline {
        throughput: answered / measured.as_secs_f64(),
        replicas: found.busy.iter().sum::<u64>() as f64 / answered,
        idle: (found.sleeps * profile.costs.sleep + found.syncs * profile.costs.sync) as f64
            / answered,
        generator: found.generator as f64 / answered,
        stolen: 0.0,
    })
}

/// Measures this machine. `watch` is told what is measured and says whether to continue.
///
/// # Errors
/// When something cannot be measured, or it was told to stop.
pub fn calibrate(options: &Options, mut watch: impl FnMut(&str) -> bool) -> Outcome<Calibration> {
    let mut proceed = |what: &str| match watch(what) {
        true => Ok(()),
        false => Err(Failure::failed("stopped before all was measured")),
    };
    proceed("round trips between sleeping and waking cores")?;
    let (asleep, awake) = (round_trip(false)?, round_trip(true)?);
    proceed("writing to and reading from sockets")?;
    let (write, read) = system_calls(MESSAGE, 0)?;
    let (write_large, read_large) = system_calls(LARGE, LARGE)?;
    let kib =
        |large: u64, small: u64| large.saturating_sub(small) * 1024 / (LARGE - MESSAGE) as u64;
    let (write_kib, read_kib) = (kib(write_large, write), kib(read_large, read));
    proceed("the store")?;
    let execute_kib = executed_kib()?;
    proceed("synchronising files")?;
    // As many at once as there are replicas in the cell that is fitted: they share the disk.
    let small = synchronisations(&options.data, SMALL, REPLICAS)?;
    let large = synchronisations(&options.data, LARGE_SYNC, REPLICAS)?;
    let more = ((LARGE_SYNC - SMALL) / 1024) as u64;
    let sync_kib = large.each.saturating_sub(small.each) / more;
    let sync_cpu_kib = large.cpu.saturating_sub(small.cpu) / more;
    let syncs = &small.latencies;
    // The very last are hiccups of the machine, not of its disk.
    let quantiles: Vec<u64> = (0..=8)
        .map(|step| quantile(syncs, f64::from(step) / 8.0 * 0.98))
        .collect();
    let machine = Machine::this();
    let start = Costs {
        turn: 1_000,
        receive: read + 500,
        receive_kib: read_kib,
        send: write,
        send_frame: 200,
        send_kib: write_kib,
        request: read + 500,
        reply: write,
        client_kib: read_kib.midpoint(write_kib),
        batch: 1_000,
        execute: 300,
        execute_kib,
        sync: small.cpu,
        sync_kib: sync_cpu_kib,
        sleep: 5_000,
        generator: write + read + 500,
        generator_turn: 1_000,
    };
    let mut profile = Profile {
        cores: machine.cores,
        placement: Placement::Shared,
        costs: start,
        wake: asleep.saturating_sub(awake) / 2,
        spin: 100_000,
        hop: 500,
        sync: quantiles,
        sync_kib,
    };
    proceed("three replicas under load")?;
    let loads = options.loads();
    let real = {
        let mut cluster = cluster(options)?;
        let few = baseline(&mut cluster, loads[0], options.measured)?;
        [few, baseline(&mut cluster, loads[1], options.measured)?]
    };
    proceed("fitting")?;
    let mut by = Factors {
        idle: 1.0,
        work: 1.0,
        generator: 1.0,
    };
    let both = |profile: &Profile| -> Outcome<[Baseline; 2]> {
        Ok([simulate(profile, loads[0])?, simulate(profile, loads[1])?])
    };
    // A step may lead away again: how many requests share a batch changes with the costs.
    let mut best: Option<(f64, Factors, [Baseline; 2])> = None;
    for _ in 0..FITS {
        profile.costs = scale(&start, by);
        let simulated = both(&profile)?;
        let off = off(real, simulated);
        if best.is_none_or(|(least, ..)| off < least) {
            best = Some((off, by, simulated));
        }
        let cpu = |of: [Baseline; 2]| of.map(|load| load.replicas);
        let idle = simulated.map(|load| load.idle);
        let (of_idle, of_work) = step(cpu(real), cpu(simulated), idle);
        by.idle *= of_idle;
        by.work *= of_work;
        by.generator *= (real[1].generator / simulated[1].generator).clamp(STEP.0, STEP.1);
    }
    let (_, by, fitted) = best.ok_or_else(|| Failure::failed("nothing was fitted"))?;
    profile.costs = scale(&start, by);
    let name = format!(
        "{} cores, {}, Linux {}; calibrated with 3 replicas, {VALUE} B, {} and {} clients",
        machine.cores, machine.processor, machine.kernel, loads[0], loads[1]
    );
    let mut notes = vec![
        format!(
            "wake: half the difference of the round trips of a {MESSAGE} B message, {:.1} us \
             asleep and {:.1} us awake",
            asleep as f64 / 1e3,
            awake as f64 / 1e3
        ),
        format!(
            "send, reply: write() of {MESSAGE} B, {write} ns, receive, request: read(), {read} ns, \
             and 500 ns, times {:.2}",
            by.work
        ),
        format!(
            "per KiB: write() {write_kib} ns, read() {read_kib} ns, measured at {LARGE} B that are \
             in no cache"
        ),
        format!(
            "sync: direct, synchronous writes of 4 KiB to preallocated files, {REPLICAS} at once, \
             median {:.0} us, {:.1} us of CPU; of 64 KiB, median {:.0} us, {:.1} us of CPU; per KiB \
             from how long the disk needs for each when kept busy, {:.0} us and {:.0} us; CPU times \
             {:.2}",
            quantile(syncs, 0.5) as f64 / 1e3,
            small.cpu as f64 / 1e3,
            quantile(&large.latencies, 0.5) as f64 / 1e3,
            large.cpu as f64 / 1e3,
            small.each as f64 / 1e3,
            large.each as f64 / 1e3,
            by.idle,
        ),
        format!(
            "turn, send_frame, batch, execute: assumed in proportion, times {:.2}; sleep: assumed, \
             times {:.2}; execute_kib: SETs of {LARGE_VALUE} B beside {VALUE} B; hop: assumed",
            by.work, by.idle
        ),
    ];
    for ((clients, real), fitted) in loads.into_iter().zip(real).zip(fitted) {
        notes.push(format!(
            "3 replicas on disk, {VALUE} B, {clients} clients: fitted: replicas {:.2} us of CPU \
             per operation (simulated {:.2}); generator {:.2} us (simulated {:.2}); not fitted: \
             throughput {:.0}/s, simulated {:.0}/s",
            real.replicas / 1e3,
            fitted.replicas / 1e3,
            real.generator / 1e3,
            fitted.generator / 1e3,
            real.throughput,
            fitted.throughput
        ));
        notes.extend(stolen_note(real.stolen).map(|note| format!("not quiet: {note}")));
    }
    Ok(Calibration {
        file: ProfileFile::of(&profile, name),
        notes,
    })
}

/// The profile as a file: what was measured as comments, then the numbers.
///
/// # Errors
/// When it cannot be written down, which is a mistake of this program.
pub fn text(calibration: &Calibration) -> Outcome<String> {
    let mut text = String::from("# Written by 'quintet lab calibrate'. Times in nanoseconds.\n");
    for note in &calibration.notes {
        text.push_str(&format!("# {note}\n"));
    }
    text.push_str(&toml::to_string(&calibration.file).map_err(Failure::failed)?);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_without_cluster_can_be_measured() {
        let directory = tempfile::tempdir().unwrap();
        let (write, read) = system_calls(MESSAGE, 0).unwrap();
        assert!(write > 0 && read > 0);
        let syncs = synchronisations(directory.path(), 4096, 2).unwrap();
        assert_eq!(syncs.latencies.len(), 2 * SYNCS);
        assert!(syncs.latencies.is_sorted());
        assert!(syncs.cpu > 0 && syncs.each > 0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn scaling_leaves_what_was_measured_per_byte() {
        let costs = Profile::default().costs;
        let by = Factors {
            idle: 2.0,
            work: 4.0,
            generator: 3.0,
        };
        let scaled = scale(&costs, by);
        assert_eq!(
            (scaled.sync, scaled.turn, scaled.generator),
            (costs.sync * 2, costs.turn * 4, costs.generator * 3)
        );
        assert_eq!(scaled.send_kib, costs.send_kib);
    }

    #[test]
    fn two_factors_fit_both_loads_or_else_greater_one() {
        // Idleness 80 of 100 and 4 of 14; what is wanted is half of that and twice the rest.
        let (idle, work) = step([80.0, 22.0], [100.0, 14.0], [80.0, 4.0]);
        assert!((idle - 0.5).abs() < 1e-9 && (work - 2.0).abs() < 1e-9);
        // More is idleness than there is at all: work goes down as far as it may.
        let (idle, work) = step([800.0, 15.0], [100.0, 14.0], [80.0, 4.0]);
        assert!(
            (idle * 4.0 + work * 10.0 - 15.0).abs() < 1e-9,
            "{idle} {work}"
        );
    }
}

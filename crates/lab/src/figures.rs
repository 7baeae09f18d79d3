//! The kernel's statistics of processes and of this machine.
//!
//! ```text
//!   /proc/PID/stat ──► CPU time     /proc/PID/status ──► resident memory
//!   /sys/class/net/lo ──► bytes that went over loopback
//!   /sys/kernel/tracing ──► synchronisations of files (needs root)
//! ```

use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// From which part of the CPU time on it is said that the host took it.
const STOLEN_NOTED: f64 = 0.03;

/// The CPU time that a process has used, all its threads together; `None` where it is gone or the
/// system does not tell.
pub fn cpu_of(pid: u32) -> Option<Duration> {
    cpu_in(Path::new(&format!("/proc/{pid}/stat")))
}

/// The CPU time that this process has used.
pub fn cpu_of_this_process() -> Option<Duration> {
    cpu_in(Path::new("/proc/self/stat"))
}

fn cpu_in(path: &Path) -> Option<Duration> {
    let stat = fs::read_to_string(path).ok()?;
    // The name, in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    Some(Duration::from_secs_f64((ticks()? + ticks()?) / per_second))
}

/// CPU time of the whole machine since it started, in its own ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineTime {
    all: u64,
    stolen: u64,
}

impl MachineTime {
    /// Until now; `None` where the system does not tell.
    pub fn now() -> Option<Self> {
        Self::read(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn read(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?;
        // User, nice, system, idle, waiting for disks, two kinds of interrupts, stolen; what guests
        // use is in the first two already.
        let ticks = fields.split_whitespace().take(8).map(str::parse);
        let ticks: Vec<u64> = ticks.collect::<Result<_, _>>().ok()?;
        let stolen = *ticks.get(7)?;
        let all = ticks.iter().sum();
        Some(Self { all, stolen })
    }

    /// Which part of the CPU time since then the host of this virtual machine took for others.
    pub fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

/// A remark on figures for which the host took this part of the CPU time; none where it hardly did.
pub fn stolen_note(part: f64) -> Option<String> {
    (part >= STOLEN_NOTED).then(|| format!("host took {:.0} % of the cores", part * 100.0))
}

/// The memory that a process holds, in bytes.
pub fn resident_of(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}

/// The bytes that have gone over loopback, or between the namespaces of a sandbox: what replicas
/// and clients have sent.
pub fn wire_bytes() -> Option<u64> {
    sent_bytes(&fs::read_to_string("/proc/self/net/dev").ok()?)
}

/// Of the kernel's table of devices, whose columns 0 and 8 are bytes received and sent.
fn sent_bytes(table: &str) -> Option<u64> {
    let (mut loopback, mut cables) = (None, None);
    for line in table.lines() {
        let Some((name, figures)) = line.split_once(':') else {
            continue;
        };
        let column =
            |at: usize| -> Option<u64> { figures.split_ascii_whitespace().nth(at)?.parse().ok() };
        match name.trim() {
            "lo" => loopback = column(8),
            // The bridge's end of the cable receives what a replica sends.
            cable if cable.starts_with("qtv") => cables = Some(cables.unwrap_or(0) + column(0)?),
            "qtb" => cables = Some(cables.unwrap_or(0) + column(8)?),
            _ => {}
        }
    }
    cables.or(loopback)
}

const TRACING: &str = "/sys/kernel/tracing";
const EVENT: &str = "events/ext4/ext4_sync_file_enter";
const COUNT: &str = "hist:keys=common_pid";

/// Counts how often threads wait for their writes to reach the disk: `fsync`, `fdatasync` and
/// writes to files that were opened to be synchronous, on ext4.
#[derive(Debug)]
pub struct Syncs {
    by: By,
}

#[derive(Debug)]
enum By {
    /// The kernel counts by thread.
    Thread(PathBuf),
    /// This kernel cannot: it keeps the events of some threads in a ring, and counts those it
    /// overwrites.
    Ring {
        instance: PathBuf,
        filter: Mutex<String>,
    },
}

impl Syncs {
    /// Begins to count; `None` without root's rights, without a mounted tracefs, or without ext4.
    pub fn count() -> Option<Self> {
        let event = Path::new(TRACING).join(EVENT);
        if fs::write(event.join("trigger"), COUNT).is_ok() {
            let by = By::Thread(event);
            return Some(Self { by });
        }
        let name = format!("instances/quintet-lab-{}", std::process::id());
        let instance = Path::new(TRACING).join(name);
        fs::create_dir(&instance).ok()?;
        let filter = Mutex::default();
        let by = By::Ring { instance, filter };
        // From here on it is removed again.
        let syncs = Self { by };
        syncs.enable().ok()?;
        Some(syncs)
    }

    fn enable(&self) -> std::io::Result<()> {
        if let By::Ring { instance, .. } = &self.by {
            fs::write(instance.join("buffer_size_kb"), "16")?;
            fs::write(instance.join(EVENT).join("enable"), "1")?;
        }
        Ok(())
    }

    /// How often the threads of these processes have done so, since some time that stays the same
    /// while the same processes are asked for.
    pub fn of(&self, pids: &[u32]) -> Option<u64> {
        let mut processes = Vec::new();
        for pid in pids {
            let mut threads = BTreeSet::new();
            for entry in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
                let name = entry.file_name();
                threads.extend(name.to_str().and_then(|tid| tid.parse::<u32>().ok()));
            }
            processes.push(threads);
        }
        match &self.by {
            By::Thread(event) => {
                let text = fs::read_to_string(event.join("hist")).ok()?;
                let threads = processes.into_iter().flatten().collect();
                Some(counted(&text, &threads))
            }
            By::Ring { instance, filter } => {
                // As far as a filter may be long: from the first thread of each to its last.
                let wanted = filter_of(&processes);
                let mut current = filter.lock().unwrap_or_else(PoisonError::into_inner);
                if *current != wanted {
                    fs::write(instance.join(EVENT).join("filter"), &wanted).ok()?;
                    *current = wanted;
                }
                let mut all = 0;
                for cpu in fs::read_dir(instance.join("per_cpu")).ok()?.flatten() {
                    all += kept_in(&fs::read_to_string(cpu.path().join("stats")).ok()?);
                }
                Some(all)
            }
        }
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        match &self.by {
            // Counting on costs next to nothing.
            By::Thread(event) => {
                let _ = fs::write(event.join("trigger"), format!("!{COUNT}"));
            }
            // As does an instance that stays.
            By::Ring { instance, .. } => {
                let _ = fs::remove_dir(instance);
            }
        }
    }
}

fn filter_of(processes: &[BTreeSet<u32>]) -> String {
    let range = |threads: &BTreeSet<u32>| {
        let (first, last) = (threads.first()?, threads.last()?);
        Some(format!("(common_pid >= {first} && common_pid <= {last})"))
    };
    let ranges: Vec<String> = processes.iter().filter_map(range).collect();
    ranges.join(" || ")
}

/// Events that are in a ring or were overwritten in it.
fn kept_in(stats: &str) -> u64 {
    let line = |line: &str| {
        let (name, count) = line.split_once(": ")?;
        let counts = matches!(name, "entries" | "overrun");
        counts.then(|| count.trim().parse::<u64>().ok()).flatten()
    };
    stats.lines().filter_map(line).sum()
}

/// Adds up lines such as `{ common_pid:  4711 } hitcount:  12`.
fn counted(text: &str, threads: &BTreeSet<u32>) -> u64 {
    let line = |line: &str| {
        let rest = line.trim().strip_prefix("{ common_pid:")?;
        let (thread, count) = rest.split_once("} hitcount:")?;
        let thread: u32 = thread.trim().parse().ok()?;
        let count: u64 = count.trim().parse().ok()?;
        threads.contains(&thread).then_some(count)
    };
    text.lines().filter_map(line).sum()
}

/// The machine that something was measured on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// How many threads run at once.
    pub cores: usize,
    /// Bytes of memory.
    pub memory: u64,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// This one.
    pub fn this() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let after = |text: &str, name: &str| {
            text.lines()
                .find(|line| line.starts_with(name))
                .and_then(|line| line.split_once(':'))
                .map(|(_, value)| value.trim().to_owned())
                .unwrap_or_default()
        };
        let memory = after(&read("/proc/meminfo"), "MemTotal");
        let kilobytes = memory.split_whitespace().next().unwrap_or_default();
        Self {
            processor: after(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory: kilobytes.parse::<u64>().unwrap_or(0) << 10,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// The middle of some figures; the mean of the two in the middle when they are even in number.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

/// A figure over several repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The one in the middle.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of some figures.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let figures: Vec<f64> = figures.into_iter().collect();
        Self {
            min: figures.iter().copied().reduce(f64::min).unwrap_or(0.0),
            median: median(&figures),
            max: figures.iter().copied().reduce(f64::max).unwrap_or(0.0),
        }
    }

    /// The same in another unit.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            min: self.min * factor,
            median: self.median * factor,
            max: self.max * factor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        let spread = Spread::of([2.0, 9.0, 1.0]);
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.0, 9.0));
    }

    #[test]
    fn stolen_time_is_part_of_cpu_time() {
        let at = |stolen: u64| {
            let stat = format!(
                "cpu  100 0 50 {} 0 0 0 {stolen} 7 0\ncpu0 1 2\n",
                200 - stolen
            );
            MachineTime::read(&stat).unwrap()
        };
        assert_eq!(at(0).stolen_since(at(0)), 0.0);
        let later = MachineTime::read("cpu  150 0 60 230 0 0 0 10 7 0\n").unwrap();
        assert_eq!(later.stolen_since(at(0)), 0.1);
        assert_eq!(stolen_note(0.1).unwrap(), "host took 10 % of the cores");
        assert_eq!(stolen_note(0.01), None);
        assert_eq!(MachineTime::read("cpu  1 2 3"), None);
    }

    #[test]
    fn sent_bytes_count_once_on_loopback_and_in_namespaces() {
        let lo = "Inter-| Receive\n face |bytes\n    lo: 70 1 0 0 0 0 0 0 70 1 0 0 0 0 0 0\n";
        assert_eq!(sent_bytes(lo), Some(70));
        // Two replicas sent 5 and 6; the clients, beyond the bridge, 7.
        let cables = "  qtb: 11 0 0 0 0 0 0 0 7 0 0 0\n qtv0: 5 0 0 0 0 0 0 0 9 0 0 0\n\
                       qtv1: 6 0 0 0 0 0 0 0 9 0 0 0\n";
        assert_eq!(sent_bytes(&format!("{lo}{cables}")), Some(18));
        assert_eq!(sent_bytes(""), None);
    }

    #[test]
    fn only_the_threads_asked_for_are_counted() {
        let text = "# trigger info: hist:keys=common_pid\n\n\
                    { common_pid:        163 } hitcount:         10\n\
                    { common_pid:       4711 } hitcount:        400\n\
                    { common_pid:       4712 } hitcount:          2\n\nTotals:\n    Hits: 412\n";
        assert_eq!(counted(text, &BTreeSet::from([4711, 4712, 9])), 402);
    }

    #[test]
    fn events_count_whether_they_are_still_in_the_ring_or_not() {
        let stats = "entries: 3\noverrun: 40\ncommit overrun: 7\nbytes: 9\ndropped events: 5\n";
        assert_eq!(kept_in(stats), 43);
        let processes = [BTreeSet::from([8, 7, 12]), BTreeSet::from([20])];
        assert_eq!(
            filter_of(&processes),
            "(common_pid >= 7 && common_pid <= 12) || (common_pid >= 20 && common_pid <= 20)"
        );
    }

    #[test]
    fn this_process_uses_memory() {
        if !Path::new("/proc/self/stat").exists() {
            println!("skipped: no /proc here");
            return;
        }
        assert!(resident_of(std::process::id()).unwrap() > 100_000);
        assert!(cpu_of(std::process::id()).is_some());
        assert_eq!(cpu_of(u32::MAX), None);
    }
}

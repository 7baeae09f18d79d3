//! Injects one fault after another, within what the cluster promises to survive.
//!
//! ```text
//!   draw a kind ──► inject ──► hold (look after the processes; perhaps a second, small fault)
//!        ▲                       │
//!        │                       ▼
//!        └── rest ◄── wait until all take part again ◄── heal
//! ```
//!
//! The next fault waits until every replica has caught up with the last one: what a minority
//! lost its state or data must be whole again before another minority may lose something.

use super::{
    Plan, TortureError,
    cluster::{Cluster, Replica, shown},
    faults::Kind,
    files::{Damage, Filler, Storm, Target, damage},
    hostile::{self, Attack, Attackers, Outcome},
    proxy::Cuts,
    timeline::Trouble,
    workload::Shared,
};
use quintet_replica::Durability;
use quintet_simulator::Random;
use rustix::process::Signal;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitStatus,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long anything may take on a busy machine before it counts as never happening.
pub const TIMEOUT: Duration = Duration::from_secs(90);
const LOOK: Duration = Duration::from_millis(10);
/// No attack is shorter.
const ATTACK_MIN: Duration = Duration::from_millis(500);
/// How long a disk stays full at most while the replica does not need more room.
const FILL_MAX: Duration = Duration::from_secs(20);
/// Requests that were in progress when a fault ended are excused for this long.
const GRACE: u64 = 3_000_000_000;

pub(super) const BREAKS: &[Trouble] = &[Trouble::Connection];
const SILENT: &[Trouble] = &[Trouble::Silence];
const NO_QUORUM: &[Trouble] = &[Trouble::NoQuorum, Trouble::Uncertain];
const FULL: &[Trouble] = &[Trouble::Full, Trouble::Connection];

/// Why the driver stops early.
#[derive(Debug)]
pub enum Halt {
    /// The user interrupted the run.
    Asked,
    /// Something happened that must not happen.
    Violation(String),
    /// The torture itself cannot continue.
    Broken(TortureError),
}

impl From<std::io::Error> for Halt {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(TortureError::System(error))
    }
}

pub(super) type Step<T = ()> = Result<T, Halt>;

/// Called now and then; `false` stops the run.
pub type Watch<'a> = &'a mut dyn FnMut(&Driver<'_>) -> bool;

/// See the module.
pub struct Driver<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The replicas.
    pub cluster: Cluster,
    /// The state shared with the clients.
    pub shared: Arc<Shared>,
    /// How often each fault was done, by kind and by kind and variant.
    pub counts: BTreeMap<String, u64>,
    /// How processes ended that were meant to.
    pub exits: BTreeMap<String, u64>,
    /// When the faults began.
    pub began: Instant,
    /// The current step, in words.
    pub now: String,
    /// Replicas whose data lie on a small file system of their own.
    pub small_disks: BTreeSet<u16>,
    pub(super) random: Random,
    cuts: Cuts,
    /// The window of the fault that is in force.
    window: Option<usize>,
    /// The result of hostile clients.
    pub hostile: Option<Outcome>,
    /// Attacks that are still to be made.
    attacks: Vec<Attack>,
}

impl std::fmt::Debug for Driver<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl<'a> Driver<'a> {
    /// Nothing is done yet.
    #[must_use]
    pub fn new(
        plan: &'a Plan,
        cluster: Cluster,
        shared: Arc<Shared>,
        small_disks: BTreeSet<u16>,
    ) -> Self {
        Self {
            plan,
            cluster,
            shared,
            counts: BTreeMap::new(),
            exits: BTreeMap::new(),
            began: Instant::now(),
            now: "starting".to_owned(),
            small_disks,
            random: Random::new(plan.seed).fork(1),
            cuts: Cuts::new(),
            window: None,
            hostile: None,
            attacks: Vec::new(),
        }
    }

    /// The members of the cluster, be it that some have come later.
    pub(super) fn members(&self) -> Vec<u16> {
        (0..self.cluster.replicas.len() as u16).collect()
    }

    fn proxies(&self) -> Vec<u16> {
        (self.plan.replicas..self.plan.replicas + self.plan.proxies).collect()
    }

    fn minority(&self) -> usize {
        (self.cluster.replicas.len() - 1) / 2
    }

    // --- time passes ----------------------------------------------------------------------

    /// Checks the processes; an unintended end is a violation.
    pub(super) fn look(&mut self, watch: Watch<'_>) -> Step {
        for replica in self.cluster.all_mut() {
            if let Some(status) = replica.look()
                && !replica.may_end
            {
                let what = format!("{} without being asked to", replica.exit_message());
                let log = replica.log();
                return Err(Halt::Violation(format!(
                    "{what} ({}; its log: {})",
                    shown(status),
                    log.display()
                )));
            }
        }
        if watch(self) {
            Ok(())
        } else {
            Err(Halt::Asked)
        }
    }

    pub(super) fn wait(&mut self, duration: Duration, watch: Watch<'_>) -> Step {
        let end = Instant::now() + duration;
        loop {
            self.look(watch)?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            thread::sleep(left.min(LOOK));
        }
    }

    /// Waits until `holds`.
    pub(super) fn until<T>(
        &mut self,
        what: &str,
        watch: Watch<'_>,
        mut holds: impl FnMut(&mut Self) -> Option<T>,
    ) -> Step<T> {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = holds(self) {
                return Ok(found);
            }
            if Instant::now() > end {
                let states =
                    self.cluster.replicas.iter().map(|replica| {
                        format!("{}: {:?}", replica.exit_message(), replica.status())
                    });
                return Err(Halt::Violation(format!(
                    "not within {} s: {what} ({})",
                    TIMEOUT.as_secs(),
                    states.collect::<Vec<_>>().join("; ")
                )));
            }
            self.look(watch)?;
            thread::sleep(LOOK);
        }
    }

    /// Milliseconds drawn from a range.
    pub(super) fn draw_ms(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.random.between(low, high))
    }

    /// Waits until every replica serves, takes part and has executed what the others had when
    /// this began.
    ///
    /// # Errors
    /// When one does not.
    pub fn recover(&mut self, watch: Watch<'_>) -> Step {
        let statuses = self
            .cluster
            .replicas
            .iter()
            .filter_map(|replica| replica.status());
        let target = statuses.map(|status| status.executed).max().unwrap_or(0);
        for id in self.members() {
            let what = format!("replica {id} takes part again and has caught up to {target}");
            self.until(&what, watch, |driver| {
                let replica = &driver.cluster.replicas[usize::from(id)];
                let status = replica.status()?;
                let whole = status.voting && status.disk_state == "ok";
                (whole && status.executed >= target && replica.is_ready()).then_some(())
            })?;
        }
        for (number, id) in self.proxies().into_iter().enumerate() {
            self.until(&format!("proxy {id} serves"), watch, |driver| {
                driver.cluster.proxies[number].is_ready().then_some(())
            })?;
        }
        Ok(())
    }

    /// Starts all replicas and waits until they serve.
    ///
    /// # Errors
    /// When they do not.
    pub fn start(&mut self, watch: Watch<'_>) -> Step {
        for id in self.members().into_iter().chain(self.proxies()) {
            self.cluster.start(id)?;
        }
        self.recover(watch)
    }

    /// Injects faults until the time is over.
    ///
    /// # Errors
    /// When something happened that must not.
    pub fn inject(&mut self, kinds: &[Kind], watch: Watch<'_>) -> Step {
        self.began = Instant::now();
        // Each kind once in drawn order, then by chance: a short run has all of them, too, and
        // takes longer than it was told if it must.
        let mut first: Vec<Kind> = kinds.to_vec();
        for index in (1..first.len()).rev() {
            let other = self.random.index(index + 1);
            first.swap(index, other);
        }
        if kinds.contains(&Kind::Clients) {
            self.calm(watch)?;
            first.extend((1..self.all_attacks().len()).map(|_| Kind::Clients));
        }
        loop {
            let left = self.plan.duration.saturating_sub(self.began.elapsed());
            if first.is_empty() && left.is_zero() {
                break;
            }
            self.now = "resting".to_owned();
            if first.is_empty() && (kinds.is_empty() || left < Duration::from_secs(2)) {
                self.wait(left.min(Duration::from_secs(1)), watch)?;
                continue;
            }
            let rest = match kinds.contains(&Kind::Clients) {
                // Attackers leave at once, and the time is theirs.
                true => Duration::from_millis(20),
                false => self.draw_ms(200, 1500),
            };
            self.wait(rest, watch)?;
            let kind = match first.last() {
                Some(kind) => *kind,
                None => kinds[self.random.index(kinds.len())],
            };
            match kind {
                Kind::Kill => self.kill(watch)?,
                Kind::Stop => self.stop(watch)?,
                Kind::Partition => self.partition(watch)?,
                Kind::Reset => self.reset(watch)?,
                Kind::Disk => self.disk(watch)?,
                Kind::Slow => self.slow(watch)?,
                Kind::Corrupt => self.corrupt(watch)?,
                Kind::Rolling => self.rolling(watch)?,
                Kind::Members => self.change_members(watch)?,
                Kind::Protocol => self.change_protocol(watch)?,
                Kind::Clients => self.attack(watch)?,
            }
            // The drawn fault may have been impossible here: a ring of three cuts nothing.
            if self.counts.contains_key(kind.name())
                && let Some(at) = first.iter().rposition(|other| *other == kind)
            {
                first.remove(at);
            }
        }
        self.now = "healed".to_owned();
        Ok(())
    }

    // --- bookkeeping ------------------------------------------------------------------------

    pub(super) fn begin(&mut self, kind: Kind, variant: &str, hit: &BTreeSet<u16>) {
        let name = kind.name();
        *self.counts.entry(name.to_owned()).or_default() += 1;
        *self.counts.entry(format!("{name} {variant}")).or_default() += 1;
        self.now = format!("{name} {variant} {hit:?}");
        let window = self
            .shared
            .timeline
            .begin(name, variant.to_owned(), hit.clone());
        self.window = Some(window);
    }

    pub(super) fn end(&mut self, watch: Watch<'_>) -> Step {
        self.now.push_str(", recovering");
        self.recover(watch)?;
        if let Some(window) = self.window.take() {
            self.shared.timeline.end(window);
        }
        Ok(())
    }

    /// Clients of these may see this until the fault is over; those of proxies, too, when it hits
    /// more replicas than may fail.
    pub(super) fn excuse(&self, hit: &BTreeSet<u16>, troubles: &'static [Trouble]) -> Vec<usize> {
        let timeline = &self.shared.timeline;
        let proxies = match hit.len() > self.minority() && troubles == NO_QUORUM {
            true => self.proxies(),
            false => Vec::new(),
        };
        (hit.iter().chain(&proxies))
            .map(|id| timeline.excuse(Some(*id), troubles))
            .collect()
    }

    pub(super) fn end_excuses(&self, excuses: &[usize]) {
        for excuse in excuses {
            self.shared.timeline.end_excuse(*excuse, GRACE);
        }
    }

    /// A minority of at least one, drawn.
    fn draw_minority(&mut self) -> BTreeSet<u16> {
        let count = self.random.between(1, self.minority().max(1) as u64) as usize;
        self.draw_set(count, &self.members())
    }

    pub(super) fn draw_set(&mut self, count: usize, from: &[u16]) -> BTreeSet<u16> {
        let mut from = from.to_vec();
        let mut set = BTreeSet::new();
        while set.len() < count && !from.is_empty() {
            let index = self.random.index(from.len());
            set.insert(from.swap_remove(index));
        }
        set
    }

    pub(super) fn leader_or_any(&mut self) -> u16 {
        match self.cluster.leader() {
            Some(leader) => leader,
            None => self.random.below(self.cluster.replicas.len() as u64) as u16,
        }
    }

    /// The fault is in force for a while; perhaps something small happens meanwhile.
    fn hold(&mut self, duration: Duration, hit: &BTreeSet<u16>, watch: Watch<'_>) -> Step {
        if !self.plan.faults.has(Kind::Reset) || !self.random.chance(300) {
            return self.wait(duration, watch);
        }
        self.wait(duration / 2, watch)?;
        let well: Vec<_> = self
            .members()
            .into_iter()
            .filter(|id| !hit.contains(id))
            .collect();
        let pair: Vec<_> = self.draw_set(2, &well).into_iter().collect();
        if let [one, other] = pair[..] {
            *self
                .counts
                .entry("reset during another fault".to_owned())
                .or_default() += 1;
            self.cluster.network.reset(one, other)?;
        }
        self.wait(duration / 2, watch)
    }

    pub(super) fn note_exit(&mut self, fault: &str, status: ExitStatus) {
        let name = format!("{fault}: {}", shown(status));
        *self.exits.entry(name).or_default() += 1;
    }

    // --- the faults -------------------------------------------------------------------------

    /// A proxy keeps nothing, so that only its own clients may notice.
    fn kill_proxy(&mut self, watch: Watch<'_>) -> Step {
        let hit = self.draw_set(1, &self.proxies());
        self.begin(Kind::Kill, "proxy", &hit);
        let excuses = self.excuse(&hit, BREAKS);
        let killed = |cluster: &mut Cluster| {
            let of = |process: &&mut Replica| hit.contains(&process.id);
            cluster.all_mut().filter(of).for_each(Replica::kill);
        };
        killed(&mut self.cluster);
        let down = self.draw_ms(50, 3000);
        self.hold(down, &hit, watch)?;
        for id in &hit {
            self.cluster.start(*id)?;
        }
        self.end(watch)?;
        self.end_excuses(&excuses);
        Ok(())
    }

    fn kill(&mut self, watch: Watch<'_>) -> Step {
        if self.plan.proxies > 0 && self.random.chance(300) {
            self.kill_proxy(watch)?;
        }
        let (variant, hit) = match self.random.below(100) {
            0..40 => ("leader", BTreeSet::from([self.leader_or_any()])),
            40..60 => ("one", self.draw_set(1, &self.members())),
            60..80 => ("minority", self.draw_minority()),
            _ if self.plan.durability == Durability::Disk => {
                ("all", self.members().into_iter().collect())
            }
            _ => ("leader", BTreeSet::from([self.leader_or_any()])),
        };
        if hit.len() > self.minority() && self.plan.durability == Durability::Memory {
            // A single replica, or two of which none may forget.
            return Ok(());
        }
        self.begin(Kind::Kill, variant, &hit);
        let mut excuses = self.excuse(&hit, BREAKS);
        if hit.len() > self.minority() {
            excuses.extend(self.excuse(&hit, NO_QUORUM));
        }
        for id in &hit {
            self.cluster.replicas[usize::from(*id)].kill();
        }
        let down = self.draw_ms(50, 3000);
        self.hold(down, &hit, watch)?;
        for id in &hit {
            self.cluster.start(*id)?;
            if self.random.chance(200) {
                // Again, in the middle of its recovery.
                let moment = self.draw_ms(0, 400);
                self.wait(moment, watch)?;
                *self
                    .counts
                    .entry("kill during recovery".to_owned())
                    .or_default() += 1;
                self.cluster.replicas[usize::from(*id)].kill();
                self.cluster.start(*id)?;
            }
        }
        self.end(watch)?;
        self.end_excuses(&excuses);
        Ok(())
    }

    fn stop(&mut self, watch: Watch<'_>) -> Step {
        let majority = self.minority() + 1;
        let (variant, hit) = match self.random.below(100) {
            0..45 => ("leader", BTreeSet::from([self.leader_or_any()])),
            45..65 => ("one", self.draw_set(1, &self.members())),
            65..80 => ("minority", self.draw_minority()),
            _ => ("majority", self.draw_set(majority, &self.members())),
        };
        self.begin(Kind::Stop, variant, &hit);
        let mut excuses = self.excuse(&hit, SILENT);
        if hit.len() > self.minority() {
            let all = self.members().into_iter().collect();
            excuses.extend(self.excuse(&all, NO_QUORUM));
        }
        for id in &hit {
            self.cluster.replicas[usize::from(*id)].signal(Signal::STOP);
        }
        let pause = self.draw_ms(100, 5000);
        let held = self.hold(pause, &hit, watch);
        for id in &hit {
            self.cluster.replicas[usize::from(*id)].signal(Signal::CONT);
        }
        held?;
        self.end(watch)?;
        self.end_excuses(&excuses);
        Ok(())
    }

    /// Cuts, and whose clients may be told that there is no quorum.
    fn draw_cuts(&mut self) -> (&'static str, Cuts, BTreeSet<u16>) {
        let members = self.members();
        let between = |these: &BTreeSet<u16>, there: bool, back: bool| {
            let mut cuts = Cuts::new();
            for one in these {
                for other in members.iter().filter(|other| !these.contains(other)) {
                    if there {
                        cuts.insert((*one, *other));
                    }
                    if back {
                        cuts.insert((*other, *one));
                    }
                }
            }
            cuts
        };
        match self.random.below(100) {
            0..25 => {
                let hit = BTreeSet::from([self.leader_or_any()]);
                ("leader alone", between(&hit, true, true), hit)
            }
            25..40 => {
                let hit = self.draw_minority();
                ("minority apart", between(&hit, true, true), hit)
            }
            40..55 => {
                let hit = BTreeSet::from([self.leader_or_any()]);
                ("leader cannot send", between(&hit, true, false), hit)
            }
            55..70 => {
                let hit = BTreeSet::from([self.leader_or_any()]);
                ("leader cannot hear", between(&hit, false, true), hit)
            }
            70..80 => {
                let hit = self.draw_set(1, &members);
                let there = self.random.chance(500);
                ("one way", between(&hit, there, !there), hit)
            }
            80..90 => {
                let hit = self.draw_set(2, &members);
                let pair: Vec<_> = hit.iter().copied().collect();
                let mut cuts = Cuts::new();
                if let [one, other] = pair[..] {
                    cuts.extend([(one, other), (other, one)]);
                }
                ("one link", cuts, hit)
            }
            90..95 => {
                // Everybody hears its neighbours only.
                let count = members.len() as u16;
                let far = |one: u16, other: u16| {
                    let apart = one.abs_diff(other);
                    apart > 1 && apart < count - 1
                };
                let pairs = members
                    .iter()
                    .flat_map(|one| members.iter().map(|other| (*one, *other)));
                let cuts = pairs.filter(|(one, other)| far(*one, *other)).collect();
                ("ring", cuts, members.iter().copied().collect())
            }
            _ => {
                let all: BTreeSet<u16> = members.iter().copied().collect();
                let pairs = members
                    .iter()
                    .flat_map(|one| members.iter().map(|other| (*one, *other)));
                let cuts = pairs.filter(|(one, other)| one != other).collect();
                ("all apart", cuts, all)
            }
        }
    }

    fn partition(&mut self, watch: Watch<'_>) -> Step {
        let (variant, cuts, hit) = self.draw_cuts();
        if cuts.is_empty() {
            return Ok(());
        }
        self.begin(Kind::Partition, variant, &hit);
        let excuses = self.excuse(&hit, NO_QUORUM);
        self.cluster.network.cut(&cuts)?;
        self.cuts = cuts;
        let duration = self.draw_ms(300, 6000);
        let held = self.hold(duration, &hit, watch);
        self.heal_cuts()?;
        held?;
        self.end(watch)?;
        self.end_excuses(&excuses);
        Ok(())
    }

    fn heal_cuts(&mut self) -> Step {
        self.cuts.clear();
        self.cluster.network.cut(&self.cuts)?;
        Ok(())
    }

    fn reset(&mut self, watch: Watch<'_>) -> Step {
        let (variant, times) = match self.random.below(3) {
            0 => ("one link", 1),
            1 => ("leader's links", 1),
            _ => ("storm", self.random.between(5, 30)),
        };
        self.begin(Kind::Reset, variant, &BTreeSet::new());
        let leader = self.leader_or_any();
        for _ in 0..times {
            let members = self.members();
            if variant == "leader's links" {
                for other in members.into_iter().filter(|other| *other != leader) {
                    self.cluster.network.reset(leader, other)?;
                }
            } else {
                let pair: Vec<_> = self.draw_set(2, &members).into_iter().collect();
                if let [one, other] = pair[..] {
                    self.cluster.network.reset(one, other)?;
                }
            }
            if times > 1 {
                let gap = self.draw_ms(5, 150);
                self.wait(gap, watch)?;
            }
        }
        self.end(watch)
    }

    fn disk(&mut self, watch: Watch<'_>) -> Step {
        let disks: Vec<u16> = self.small_disks.iter().copied().collect();
        let hit = self.draw_set(1, &disks);
        let Some(id) = hit.first().copied() else {
            return Ok(());
        };
        self.begin(Kind::Disk, "full", &hit);
        let excuses = self.excuse(&hit, FULL);
        let at = usize::from(id);
        self.cluster.replicas[at].may_end = true;
        let data = self.cluster.replicas[at].data();
        let mut filler = Filler::start(&data)?;
        // Until the replica has noticed and a while longer; journal and snapshots had room of
        // their own before.
        let (last, mut longer) = (Instant::now() + FILL_MAX, None);
        while Instant::now() < longer.unwrap_or(last) && self.cluster.replicas[at].runs() {
            // Files that the replica deletes make room again.
            filler.more()?;
            let status = self.cluster.replicas[at].status();
            if longer.is_none() && status.is_some_and(|status| status.disk_state == "full") {
                *self
                    .counts
                    .entry("disk full and noticed".to_owned())
                    .or_default() += 1;
                longer = Some(Instant::now() + self.draw_ms(500, 4000));
            }
            self.wait(Duration::from_millis(50), watch)?;
        }
        drop(filler);
        // A replica that stops because of it says so by its exit code.
        self.wait(Duration::from_millis(200), watch)?;
        if let Some(status) = self.cluster.replicas[at].ended {
            self.note_exit("disk full", status);
            if status.code().is_some_and(|code| code != 8) {
                let text = self.cluster.replicas[at].exit_message();
                return Err(Halt::Violation(format!(
                    "{text}; a full disk ends with code 8"
                )));
            }
            self.cluster.start(id)?;
        } else {
            *self
                .exits
                .entry("disk full: continued".to_owned())
                .or_default() += 1;
            self.cluster.replicas[at].may_end = false;
        }
        self.end(watch)?;
        self.end_excuses(&excuses);
        Ok(())
    }

    fn slow(&mut self, watch: Watch<'_>) -> Step {
        let writers = self.random.between(1, 3);
        self.begin(Kind::Slow, "disk", &BTreeSet::new());
        let storm = Storm::start(&self.plan.directory, writers as u32)?;
        let duration = self.draw_ms(1000, 4000);
        let held = self.hold(duration, &BTreeSet::new(), watch);
        drop(storm);
        held?;
        self.end(watch)
    }

    fn corrupt(&mut self, watch: Watch<'_>) -> Step {
        let targets = [Target::Journal, Target::Promise, Target::Snapshot];
        let target = targets[self.random.index(targets.len())];
        let hit = self.draw_minority();
        if hit.len() > self.minority() {
            // The data of a single replica has no other copy.
            return Ok(());
        }
        self.begin(Kind::Corrupt, target.name(), &hit);
        let excuses = self.excuse(&hit, BREAKS);
        let mut done: Vec<(u16, Damage)> = Vec::new();
        for id in &hit {
            let replica = &mut self.cluster.replicas[usize::from(*id)];
            replica.kill();
            let data = replica.data();
            if let Some(damage) = damage(&data, target, &mut self.random)? {
                done.push((*id, damage));
            }
        }
        let down = self.draw_ms(50, 1000);
        self.hold(down, &hit, watch)?;
        for id in &hit {
            self.cluster.start(*id)?;
            let damage = done.iter().find(|(of, _)| of == id);
            self.cluster.replicas[usize::from(*id)].may_end = damage.is_some();
        }
        for (id, damage) in &done {
            self.repaired_or_refused(*id, damage, target, watch)?;
        }
        if done.is_empty() {
            let name = format!("corrupt {}: nothing to damage", target.name());
            *self.exits.entry(name).or_default() += 1;
        }
        self.end(watch)?;
        self.end_excuses(&excuses);
        Ok(())
    }

    /// A damaged replica comes back by itself, or refuses with code 7 and names the file.
    fn repaired_or_refused(
        &mut self,
        id: u16,
        damage: &Damage,
        target: Target,
        watch: Watch<'_>,
    ) -> Step {
        let at = usize::from(id);
        let what = format!("replica {id} repairs or refuses {}", damage.path.display());
        self.until(&what, watch, |driver| {
            let replica = &driver.cluster.replicas[at];
            let serves = replica.status().is_some_and(|status| status.voting);
            (!replica.runs() || serves && replica.is_ready()).then_some(())
        })?;
        let Some(status) = self.cluster.replicas[at].ended else {
            let name = format!("corrupt {}: came back by itself", target.name());
            *self.exits.entry(name).or_default() += 1;
            self.cluster.replicas[at].may_end = false;
            return Ok(());
        };
        self.note_exit(&format!("corrupt {}", target.name()), status);
        if status.code() != Some(7) {
            let text = self.cluster.replicas[at].exit_message();
            return Err(Halt::Violation(format!(
                "{text}; damaged data (byte {} of {}) must be repaired or refused with code 7",
                damage.offset,
                damage.path.display()
            )));
        }
        damage.undo()?;
        self.cluster.start(id)?;
        Ok(())
    }

    fn rolling(&mut self, watch: Watch<'_>) -> Step {
        self.begin(Kind::Rolling, "restart", &BTreeSet::new());
        let mut left = self.members();
        while !left.is_empty() {
            let index = self.random.index(left.len());
            let id = left.swap_remove(index);
            let at = usize::from(id);
            let excuses = self.excuse(&BTreeSet::from([id]), BREAKS);
            if let Some(window) = self.window {
                self.shared.timeline.also_hits(window, id);
            }
            self.cluster.replicas[at].may_end = true;
            self.cluster.replicas[at].signal(Signal::TERM);
            let what = format!("replica {id} stops after SIGTERM");
            let status = self.until(&what, watch, |driver| driver.cluster.replicas[at].ended)?;
            self.note_exit("SIGTERM", status);
            if !status.success() {
                let text = self.cluster.replicas[at].exit_message();
                return Err(Halt::Violation(format!("{text}; SIGTERM ends with code 0")));
            }
            self.cluster.start(id)?;
            self.recover(watch)?;
            self.end_excuses(&excuses);
        }
        self.end(watch)
    }

    // --- hostile clients --------------------------------------------------------------------

    /// A tenth of the time, 3 s at least, without attackers: what honest clients are used to.
    fn calm(&mut self, watch: Watch<'_>) -> Step {
        "calm".clone_into(&mut self.now);
        self.hostile = Some(Outcome::default());
        let time = self.plan.duration / 10;
        let time = time.clamp(Duration::from_secs(3), Duration::from_secs(30));
        let timeline = &self.shared.timeline;
        let window = timeline.begin(hostile::KIND, hostile::CALM.to_owned(), BTreeSet::new());
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.note_memory(None);
            self.wait(LOOK, watch)?;
        }
        self.shared.timeline.end(window);
        Ok(())
    }

    fn all_attacks(&self) -> Vec<Attack> {
        match self.plan.attacks.is_empty() {
            true => Attack::ALL.to_vec(),
            false => self.plan.attacks.clone(),
        }
    }

    fn note_memory(&mut self, attack: Option<Attack>) {
        let pids = self.cluster.replicas.iter().filter_map(Replica::pid);
        let most = pids.filter_map(hostile::memory_of).max();
        if let (Some(outcome), Some(bytes)) = (&mut self.hostile, most) {
            outcome.note_memory(attack, bytes);
        }
    }

    fn attack(&mut self, watch: Watch<'_>) -> Step {
        if self.attacks.is_empty() {
            self.attacks = self.all_attacks();
            self.random.shuffle(&mut self.attacks);
        }
        let Some(attack) = self.attacks.pop() else {
            return Ok(());
        };
        self.begin(Kind::Clients, attack.name(), &BTreeSet::new());
        let targets = self
            .cluster
            .replicas
            .iter()
            .map(|replica| replica.addresses);
        let targets: Vec<_> = targets.collect();
        let attackers = Attackers::start(attack, &targets, self.random.draw())?;
        // Whether it goes well or not, the attackers leave.
        let injected = self.under_attack(attack, watch);
        let outcome = self.hostile.get_or_insert_default();
        let complaints = attackers.end(outcome);
        injected?;
        self.end(watch)?;
        self.note_memory(Some(attack));
        match complaints.first() {
            // The others say the same of other sizes, and stand in the report.
            Some(first) => {
                let outcome = self.hostile.get_or_insert_default();
                outcome.exceeded.extend(complaints.iter().cloned());
                self.now.clone_from(first);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn under_attack(&mut self, attack: Attack, watch: Watch<'_>) -> Step {
        // The remaining time is shared by the attacks that have not run; later ones take as long as
        // a share.
        let all = self.all_attacks().len();
        let left = self.plan.duration.saturating_sub(self.began.elapsed());
        let share = match self.counts.get(Kind::Clients.name()) {
            Some(count) if *count <= all as u64 => left / (all as u64 + 1 - count) as u32,
            _ => left.min(self.plan.duration / all as u32),
        };
        let (begun, least) = (Instant::now(), share.max(ATTACK_MIN));
        let mut reset = 0;
        loop {
            let time = begun.elapsed();
            if time > least {
                return Ok(());
            }
            self.note_memory(Some(attack));
            if attack == Attack::Strangers && time.as_millis() / 500 > reset {
                reset += 1;
                let pair: Vec<_> = self.draw_set(2, &self.members()).into_iter().collect();
                if let [one, other] = pair[..] {
                    self.cluster.network.reset(one, other)?;
                }
            }
            self.wait(LOOK, watch)?;
        }
    }

    // --- the end ----------------------------------------------------------------------------

    /// Nothing is broken any more and everybody runs, whatever state the faults were left in.
    ///
    /// # Errors
    /// When a replica cannot be started.
    pub fn heal(&mut self) -> Step {
        self.now = "healing".to_owned();
        self.heal_cuts()?;
        for replica in self.cluster.all_mut() {
            replica.signal(Signal::CONT);
            replica.look();
        }
        let all: Vec<_> = (self.cluster.all())
            .map(|process| (process.id, process.runs()))
            .collect();
        for (id, _) in all.into_iter().filter(|(_, runs)| !runs) {
            self.cluster.start(id)?;
        }
        Ok(())
    }

    /// Waits until all replicas stand at the same position with the same number of keys; gives
    /// that position.
    ///
    /// # Errors
    /// When they do not.
    pub fn converge(&mut self, watch: Watch<'_>) -> Step<u64> {
        self.now = "converging".to_owned();
        self.recover(watch)?;
        self.until("all replicas stand at the same position", watch, |driver| {
            let statuses: Option<Vec<_>> = driver
                .cluster
                .replicas
                .iter()
                .map(|replica| replica.status())
                .collect();
            let statuses = statuses?;
            let first = statuses.first()?;
            statuses
                .iter()
                .all(|other| {
                    other.position == first.position
                        && other.executed == first.executed
                        && other.entries == first.entries
                })
                .then_some(first.position)
        })
    }

    /// Stops all replicas gracefully and sees them end with 0.
    ///
    /// # Errors
    /// When one does not.
    pub fn stop_all(&mut self, watch: Watch<'_>) -> Step {
        self.now = "stopping".to_owned();
        for replica in self.cluster.all_mut() {
            replica.may_end = true;
            replica.signal(Signal::TERM);
        }
        self.until("all replicas stop after SIGTERM", watch, |driver| {
            for replica in driver.cluster.all_mut() {
                replica.look();
            }
            driver.cluster.running().is_empty().then_some(())
        })?;
        let ended = self.cluster.all();
        let ended: Vec<_> = ended.map(|it| (it.ended, it.exit_message())).collect();
        for (status, text) in ended {
            let Some(status) = status else {
                continue;
            };
            self.note_exit("SIGTERM to all", status);
            if !status.success() {
                return Err(Halt::Violation(format!("{text}; SIGTERM ends with code 0")));
            }
        }
        Ok(())
    }
}

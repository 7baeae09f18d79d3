//! One world: replicas, clients, network, disks and clocks of one seed, in one thread.
//!
//! ```text
//!               ┌──────────────── queue of events by (time, sequence) ───────────────┐
//!               ▼                                                                    │
//!   Step ──► replica handles one input ──► outputs ──► network, disk, timers ────────┤
//!   Deliver ─► inbox of a replica, or a remote client's frontend ────────────────────┤
//!   Turn ───► a client invokes operations ───────────────────────────────────────────┤
//!   Inject ─► a fault begins or ends ────────────────────────────────────────────────┘
//!               │
//!               ▼ after every input: invariants, agreement, state hashes, pointers
//! ```
//!
//! Replicas have the first places, those that may become members later among them, and remote clients
//! those after them.

use crate::{
    bugs::{APPLIED_TWICE, UNCOMPARED},
    checkers::{
        Violation, agreement::Agreement, agreement::Applied, bounded, digests::Digests,
        exactly_once::ExactlyOnce, held::Held, monotone::Monotone, past_seal::PastSeal,
        state_hash::StateHash,
    },
    clock::{MILLISECOND, SECOND},
    configuration::Odd,
    decisions::{Decisions, Limits, Noting, Scope},
    disk::DiskProfile,
    drawing::Mix,
    epoch_end::Ending,
    event::Event,
    faults::{FaultSet, Ground, Kind, Plan},
    heal::Healing,
    history::History,
    holding::Holding,
    machine::{self, Queried},
    model::{Answer, Call},
    network::{LinkProfile, Network, Sent, Transport},
    orphan::Orphan,
    past::PastReads,
    picture::Scene,
    process::Process,
    queue::Queue,
    random::Random,
    rendering::Rendered,
    routes::Routes,
    service::Service,
    timers::Popped,
    trace::Trace,
    workload::{Client, Manner},
};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use quintet_replica::{
    Bytes, ClientFrame, CommandId, Durability, Entry, EpochNumber, Incarnation, Lane, Link, Output,
    Peer, ReplicaId, ReplicaSet, StateDigest, TimerKey, TimerOwner, Voters, option_is_time,
    read_client_frame,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Frontends of remote clients have this number plus their place.
pub(crate) const REMOTE: u64 = 1 << 20;
/// Frontends embedded in replicas are numbered from here, each run with a new one.
pub(crate) const EMBEDDED: u64 = 1 << 30;
/// A session with at most this lifetime may expire within a world.
const SESSION_SHORT_MAX: u64 = 3 * SECOND;
/// The time that deadlines lie ahead of a clock, and that a drifting clock gains between two
/// comparisons.
const AHEAD_SLACK: u64 = SECOND / 2;
/// How often replicas compare their clocks.
const COMPARE_EVERY: u64 = 20 * MILLISECOND;
/// In about how many pieces a replica takes its snapshot at most.
const SNAPSHOT_PIECES_MAX: usize = 1_000;

/// The parts of a world.
#[derive(Clone, Debug)]
pub(crate) struct WorldSetup {
    pub entry: Entry,
    pub replicas: usize,
    pub seed: u64,
    pub faults: FaultSet,
    pub durability: Durability,
    pub transport: Transport,
    pub options: Vec<(String, String)>,
    pub operations: u64,
    #[cfg(any(test, feature = "bugs"))]
    pub bug: Option<String>,
    pub trace: bool,
    /// Whether a picture is wanted.
    pub picture: bool,
    /// The replicated service; drawn per seed when it is not given.
    pub service: Option<Service>,
    /// Whether chance is noted, or follows a script.
    pub noting: Noting,
    pub limits: Limits,
}

impl WorldSetup {
    /// Whether a bug of the rig's own is switched on.
    pub fn bug_is(&self, _name: &str) -> bool {
        #[cfg(any(test, feature = "bugs"))]
        return self.bug.as_deref() == Some(_name);
        #[cfg(not(any(test, feature = "bugs")))]
        false
    }

    /// Whether the protocol waits as long as it does by default: bounds on time hold then, whatever
    /// else is set.
    pub fn has_usual_times(&self) -> bool {
        !(self.options.iter()).any(|(name, _)| option_is_time(name))
    }

    /// A frame as a person reads it.
    pub fn describe_frame(&self, frame: &Bytes) -> String {
        let length = frame.len();
        let mut text = match read_client_frame(frame.clone()).map(|(_, frame)| frame) {
            Ok(ClientFrame::Message(message)) => (self.entry.describe)(message),
            Ok(ClientFrame::Reply(batch, ..)) => format!("reply to {batch}"),
            Ok(ClientFrame::Epoch(_)) => String::from("its epoch"),
            Ok(ClientFrame::Quorum { .. }) => String::from("its quorum"),
            Err(_) => String::from("node's own"),
        };
        if let Some((cut, _)) = text.char_indices().nth(400) {
            text.truncate(cut);
        }
        format!("{text} ({length} bytes)")
    }
}

impl WorldSetup {
    /// A timer as a person reads it.
    pub fn describe_timer(&self, key: TimerKey) -> String {
        let named = (self.entry.timer_name)(key.timer);
        match key.owner {
            TimerOwner::Replica => named.unwrap_or_else(|| key.timer.to_string()),
            TimerOwner::Frontend => format!("{} of its frontend", key.timer),
            TimerOwner::Node => format!("{} of its node", key.timer),
        }
    }
}

/// The properties of a seed's shape that are drawn once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub keys: u32,
    pub snapshot_bytes_min: u64,
    pub snapshot_padding: usize,
    pub snapshot_chunk: usize,
    pub session_lifetime: u64,
    /// How often the replicas compare digests of their states.
    #[serde(skip)]
    pub digest_interval: u64,
    /// After healing, writes continue until everybody is near, though logs are shorter than the
    /// transfer of a state takes.
    #[serde(skip)]
    pub steady: bool,
    /// This many bytes of a state are asked for in a second; 0 for any number.
    #[serde(skip)]
    pub transfer_rate: u64,
    /// When a disk counts as one that hangs.
    #[serde(skip)]
    pub disk_hung_after: u64,
    /// How often the members' paces are measured; 0 for never.
    #[serde(skip)]
    pub pace_beat: u64,
    /// By how much clocks say at least that they may be off.
    #[serde(skip)]
    pub uncertainty: u64,
    /// A handled input takes from this …
    pub cost_min: u64,
    /// … to this long.
    pub cost_max: u64,
    /// Of 1,000 steps with more in the inbox, this many are followed by an idle call all the same.
    pub idle_early: u64,
    /// The safety phase lasts at least this long.
    pub horizon: u64,
    /// Of 1,000 faults of one replica, this many affect the leader.
    pub aim: u64,
    /// Of 1,000 faults, this many come when all clients have just invoked something.
    pub wake_rate: u64,
    /// How long clients think between two turns, at most.
    pub think: u64,
}

/// How often the replicas compare digests; drawn apart, so that all else of a seed's shape is as it
/// would be without.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Comparing {
    interval: u64,
}

/// Whether writes continue after healing until everybody is near, and then how much is added to the
/// state and how slowly it is fetched, so that it is longer on its way than logs reach back; drawn
/// apart, too.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Steady {
    padding: Option<usize>,
    rate: u64,
}

impl Steady {
    fn draw(setup: &WorldSetup, random: &mut Random) -> Self {
        let injected = setup.faults != FaultSet::NONE && !setup.faults.asynchrony;
        let padding = (injected && setup.replicas > 2 && random.chance(120))
            .then(|| random.between(1 << 20, 6 << 20) as usize);
        let rate = random.between(2 << 20, 8 << 20);
        Self { padding, rate }
    }
}

/// When a disk counts as one that hangs; drawn apart, too.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Hanging {
    after: u64,
}

/// How often paces are measured; drawn apart, too.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Pacing {
    beat: u64,
}

/// How well clocks are disciplined where nothing is wrong with them; drawn apart, too. A protocol
/// that waits as long as two clocks may differ waits longer than any frame takes, or hardly at all.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct ClockQuality {
    uncertainty: u64,
}

/// Where a world stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Faults are injected.
    Safety,
    /// The core is healed and must converge.
    Liveness,
    /// Everything has been seen.
    Over,
}

/// See the module.
pub(crate) struct World {
    pub setup: WorldSetup,
    pub shape: Shape,
    pub now: u64,
    pub queue: Queue<Event>,
    pub random: Random,
    /// The random decisions, when they are recorded.
    pub decisions: Option<Arc<Mutex<Decisions>>>,
    pub network: Network,
    pub processes: Vec<Process>,
    pub clients: Vec<Client>,
    /// The client behind each place after the replicas'.
    pub remotes: Vec<u16>,
    pub history: History<Call, Answer>,
    /// How each operation was asked for.
    pub manners: Vec<Manner>,
    /// Which operation each command is.
    pub numbers: HashMap<CommandId, u64, FixedState>,
    /// The reads of replicas, by replica.
    pub queries: Vec<(u16, Queried)>,
    pub mix: Mix,
    pub past: PastReads,
    /// The parts of the clients' requests on the disks.
    pub held: Held,
    /// Members may have acknowledged something in an epoch that promises memory only.
    pub was_in_memory: bool,
    /// Whether clients were answered rightly could not be found out.
    pub undecided: bool,
    /// How often each operation was sent.
    pub tries: Vec<u8>,
    /// The value last written to each key as clients know it.
    pub hints: Vec<u64>,
    pub plan: Plan,
    pub injections_open: usize,
    /// The replica that is configured otherwise, and in what.
    pub odd: Option<Odd>,
    /// The most that a majority's clocks have ever shown.
    pub clock_most: u64,
    pub phase: Phase,
    pub healing: Healing,
    /// When the second phase began.
    pub healed_at: u64,
    pub effects: BTreeMap<&'static str, u64>,
    pub branches: BTreeMap<&'static str, u64>,
    pub violation: Option<Violation>,
    pub stall: Option<String>,
    /// The core stalled, and the protocol does not promise that such a core continues.
    pub unrecoverable: bool,
    pub trace: Trace,
    pub rendered: Rendered,
    pub largest: bounded::Largest,
    pub embedded_next: u64,
    pub embedded: BTreeMap<u64, u16>,
    pub outputs: Vec<Output>,
    /// The members that take part in the protocols of the epochs.
    pub routes: Routes,
    /// The next leader, in a later view than this, crashes and stays down for so long; without a
    /// view, the next replica that promises something.
    pub hunted: Option<(Option<u64>, u64)>,
    /// Syncs that are held until another replica stands.
    pub holding: Option<Holding>,
    /// A leader that replicas hear no more.
    pub orphan: Option<Orphan>,
    /// Some replica has called one a leader.
    pub led: bool,
    pub events: u64,
    pub agreement: Agreement,
    pub once: ExactlyOnce,
    pub past_seal: PastSeal,
    /// When the epoch is to end.
    pub ending: Ending,
    /// The protocols that epochs may have by now, the first one's first.
    pub protocols: Vec<Entry>,
    pub ending_random: Random,
    /// How many data directories were made later.
    pub directories: u64,
    /// The newest epoch that has begun anywhere.
    pub epoch_begun: EpochNumber,
    /// How many rows that epoch has, vacant ones among them.
    pub members: usize,
    /// Its members, one without a vote among them.
    pub all: ReplicaSet,
    pub voters: Voters,
    /// The voters of epochs that were offered as the next one, where these are others.
    pub sizes: Vec<Voters>,
    pub states: StateHash,
    pub digests: Digests,
    pub monotone: Vec<Monotone>,
    record: Vec<machine::Executed>,
    applied: Vec<Applied>,
}

fn draw_shape(setup: &WorldSetup, random: &mut Random) -> Shape {
    let slow = random.chance(200);
    let horizon = random.between(1500, 4000) * MILLISECOND;
    let mut shape = Shape {
        keys: random.between(2, 24) as u32,
        snapshot_bytes_min: [1 << 11, 1 << 13, 1 << 15, 1 << 30][random.index(4)],
        snapshot_padding: if random.chance(150) {
            random.index(700_000)
        } else {
            0
        },
        snapshot_chunk: [64, 4096, 1 << 20][random.index(3)],
        session_lifetime: if random.chance(300) {
            random.between(SECOND, SESSION_SHORT_MAX)
        } else {
            120 * SECOND
        },
        digest_interval: 0,
        steady: false,
        transfer_rate: 0,
        disk_hung_after: 0,
        pace_beat: 0,
        uncertainty: 0,
        cost_min: if slow { 10_000 } else { 500 },
        cost_max: if slow { 60_000 } else { 5_000 },
        idle_early: [0, 50, 500, 1000][random.index(4)],
        horizon,
        aim: [0, 300, 700][random.index(3)],
        wake_rate: [0, 500, 900][random.index(3)],
        // About eight clients with two operations a turn fill the phase.
        think: horizon * 16 * 2 / setup.operations.max(1),
    };
    // Each piece is a turn of the replica: dozens of large snapshots in tiny pieces would use up
    // the events of a seed.
    let piece_min = shape.snapshot_padding / SNAPSHOT_PIECES_MAX;
    shape.snapshot_chunk = shape.snapshot_chunk.max(piece_min);
    shape
}

fn draw_links(setup: &WorldSetup, random: &mut Random) -> LinkProfile {
    let (delay_min, delay_spread, jitter) = match random.below(4) {
        0 => (20_000, 20_000, 10_000),
        1 => (50_000, 200_000, 100_000),
        2 => (200_000, 2_000_000, 1_000_000),
        _ => (1_000_000, 8_000_000, 5_000_000),
    };
    let capacity = if random.chance(100) { 1 << 20 } else { 8 << 20 };
    let unbounded = setup.faults.asynchrony;
    let (delay_min, delay_spread, jitter) = match unbounded {
        true => (8 * MILLISECOND, 24 * MILLISECOND, 4 * MILLISECOND),
        false => (delay_min, delay_spread, jitter),
    };
    LinkProfile {
        transport: setup.transport,
        delay_min,
        delay_spread,
        jitter,
        capacity,
        unbounded,
    }
}

/// An option by this name bounds what a protocol keeps for those that lag. The less it keeps, the
/// more often states are transferred.
const LOG_MEMORY: &str = "log_memory_bytes";

/// Draws options that a protocol wants tried, and some that no operator would choose, unless they
/// were asked for. `lags`: states must be
/// transferred.
fn draw_options(setup: &WorldSetup, lags: bool, random: &mut Random) -> Vec<(String, String)> {
    let is_chosen = |option: &str| setup.options.iter().any(|(name, _)| name == option);
    let mut drawn = Vec::new();
    for (name, values) in setup.entry.drawn {
        if !is_chosen(name) && random.chance(500) {
            let value = values[random.index(values.len())];
            drawn.push(((*name).to_owned(), value.to_owned()));
        }
    }
    let known = setup.entry.options.iter().any(|o| o.name == LOG_MEMORY);
    if !known || is_chosen(LOG_MEMORY) {
        return drawn;
    }
    // Each protocol has its own least value.
    let takes = |bytes: &u64| {
        let mut options = setup.options.clone();
        options.push((LOG_MEMORY.to_owned(), bytes.to_string()));
        (setup.entry.check)(&options).is_ok()
    };
    let small = [1 << 10, 1 << 12, 1 << 14, 1 << 16]
        .into_iter()
        .filter(takes);
    let small: Vec<u64> = small.take(3).collect();
    let at = random.index(if lags { 3 } else { 4 });
    if at < 3 && !small.is_empty() {
        let bytes = small[at.min(small.len() - 1)];
        drawn.push((LOG_MEMORY.to_owned(), bytes.to_string()));
    }
    drawn
}

/// The logs keep as little as the protocol allows.
fn shorten_log(setup: &mut WorldSetup) {
    let known = setup.entry.options.iter().any(|o| o.name == LOG_MEMORY);
    for bytes in [1 << 10, 1 << 12, 1 << 14, 1 << 16] {
        let mut options = setup.options.clone();
        options.retain(|(name, _)| name != LOG_MEMORY);
        options.push((LOG_MEMORY.to_owned(), u32::to_string(&bytes)));
        if known && (setup.entry.check)(&options).is_ok() {
            setup.options = options;
            return;
        }
    }
}

impl World {
    /// A world before its first event.
    pub fn new(mut setup: WorldSetup) -> Self {
        let (root, decisions) = setup.noting.random(setup.seed);
        let mut shaping = root.fork(1);
        let mut shape = shaping.profile("shape", |random| draw_shape(&setup, random));
        let mut comparing = root.fork(6);
        let comparing = comparing.profile("digests", |random| Comparing {
            interval: random.between(20, 1000) * MILLISECOND,
        });
        shape.digest_interval = comparing.interval;
        let mut steady = root.fork(8);
        let steady = steady.profile("steady", |random| Steady::draw(&setup, random));
        if let Some(padding) = steady.padding {
            shape.steady = true;
            shape.transfer_rate = steady.rate;
            shape.snapshot_padding = padding;
            shape.snapshot_chunk = shape.snapshot_chunk.max(padding / SNAPSHOT_PIECES_MAX);
        }
        // Often one that is merely slow for a while.
        let hanging = root.fork(10).profile("hanging", |random| Hanging {
            after: [30, 100, 300, 2_000][random.index(4)] * MILLISECOND,
        });
        shape.disk_hung_after = hanging.after;
        // Often, because so little time passes here; where messages take hundreds of times as long
        // as others, each of these would hold up what comes behind it: there as in a real cluster.
        let often = match setup.faults.asynchrony {
            true => 250,
            false => 10,
        };
        let pacing = root.fork(11).profile("pacing", |random| Pacing {
            beat: [0, 0, often, 0][random.index(4)] * MILLISECOND,
        });
        shape.pace_beat = pacing.beat;
        let quality = root.fork(14).profile("clocks", |random| ClockQuality {
            uncertainty: [1_000_000, 1_000_000, 20_000, 1_000][random.index(4)],
        });
        shape.uncertainty = quality.uncertainty;
        let mut mix = root
            .fork(5)
            .profile("workload", |random| Mix::draw(setup.service, random));
        if shape.steady && setup.service.is_none() {
            // Theirs can be made large at once.
            mix.service = Service::Registers;
        }
        let links = shaping.profile("links", |random| draw_links(&setup, random));
        let disk = shaping.profile("disk", |random| DiskProfile {
            sync_min: 20_000,
            sync_max: [50_000, 500_000, 3_000_000, 15_000_000][random.index(4)],
            segment_length: [8 << 10, 16 << 10, 64 << 10][random.index(3)],
        });
        let mut clients = Client::draw_all(&mut shaping);
        let mut remotes = Vec::new();
        // One that all others refuse is missing from the start.
        let odd_wanted = setup.faults.configuration && setup.replicas >= 3;
        let durabilities = root.fork(22).profile("durabilities", |random| {
            Ending::draw_durability(&setup, random)
        });
        let changes_durability = durabilities.change;
        let ground = Ground {
            allowed: setup.faults,
            replicas: setup.replicas - usize::from(odd_wanted),
            transport: setup.transport,
            durability: match changes_durability {
                true => Durability::Memory,
                false => setup.durability,
            },
            changes_durability,
            // The toy of the rig's own tests is the one protocol that cannot be repaired.
            repairs: !cfg!(test) || setup.entry.info.name != "toy",
            sessions_expire: shape.session_lifetime <= SESSION_SHORT_MAX,
            horizon: shape.horizon,
        };
        let (mut holding, mut orphaning) = (root.fork(12), root.fork(13));
        let plan = root.fork(2).profile("plan", |random| {
            let mut plan = Plan::draw(&ground, random);
            plan.draw_held(&ground, &mut holding);
            plan.draw_orphaned(&ground, &mut orphaning);
            plan
        });
        let lags = plan.kinds.contains(&Kind::CrashInTransfer);
        let options = root
            .fork(5)
            .profile("options", |random| draw_options(&setup, lags, random));
        setup.options.extend(options);
        if shape.steady {
            shorten_log(&mut setup);
        }
        let mut ending = root.fork(20).profile("ending", |random| {
            Ending::draw(&setup, shape.horizon, random)
        });
        ending.changes_durability = changes_durability && ending.at.is_some();
        let replicas_max = setup.replicas + ending.spare;
        for (index, client) in clients.iter_mut().enumerate() {
            client.place_remote(replicas_max, index as u16, &mut remotes);
        }
        let places = replicas_max + remotes.len();
        let odd = odd_wanted.then(|| {
            let mut random = root.fork(7);
            random.profile("configuration", |random| Odd::draw(&setup, &mix, random))
        });
        let mut processes: Vec<Process> = (0..replicas_max)
            .map(|_| Process::new(disk.clone()))
            .collect();
        for spare in &mut processes[setup.replicas..] {
            spare.lacks = true;
        }
        if let Some(odd) = odd.as_ref().filter(|_| !setup.bug_is(UNCOMPARED)) {
            processes[odd.replica()].refused = true;
        }
        for process in &mut processes {
            process.clock.uncertainty = shape.uncertainty;
        }
        let mut trace = Trace::new(setup.trace);
        if setup.picture {
            let replicas = (0..replicas_max).map(|id| format!("r{id}"));
            let clients = (0..clients.len()).map(|id| format!("c{id}"));
            trace.scene = Some(Scene::new(replicas.chain(clients).collect()));
        }
        Self {
            now: 0,
            queue: Queue::new(),
            random: root.fork(3),
            decisions,
            network: Network::new(places, links, root.fork(4)),
            processes,
            clients,
            remotes,
            history: History::default(),
            manners: Vec::new(),
            numbers: HashMap::default(),
            queries: Vec::new(),
            mix,
            held: Held::new(replicas_max),
            was_in_memory: false,
            undecided: false,
            tries: Vec::new(),
            hints: vec![0; shape.keys as usize],
            injections_open: plan.injections.len(),
            odd,
            clock_most: 0,
            plan,
            phase: Phase::Safety,
            healing: Healing::default(),
            healed_at: 0,
            effects: BTreeMap::new(),
            branches: BTreeMap::new(),
            violation: None,
            stall: None,
            unrecoverable: false,
            trace,
            rendered: Rendered::default(),
            largest: bounded::Largest::default(),
            embedded_next: EMBEDDED,
            embedded: BTreeMap::new(),
            outputs: Vec::new(),
            routes: Routes::new(setup.entry, setup.replicas),
            hunted: None,
            holding: None,
            orphan: None,
            led: false,
            events: 0,
            agreement: Agreement::default(),
            once: ExactlyOnce::default(),
            past_seal: PastSeal::default(),
            ending,
            protocols: vec![setup.entry],
            ending_random: root.fork(21),
            past: PastReads::new(root.fork(22)),
            directories: 0,
            epoch_begun: EpochNumber(1),
            members: setup.replicas,
            all: ReplicaSet::all(setup.replicas),
            voters: Voters::dense(setup.replicas),
            sizes: Vec::new(),
            states: StateHash::default(),
            digests: Digests::default(),
            monotone: vec![Monotone::default(); replicas_max],
            record: Vec::new(),
            applied: Vec::new(),
            setup,
            shape,
        }
    }

    /// Runs the world to its end, a violation, or a stall.
    pub fn run(&mut self) {
        self.random.enter(Scope::World);
        let (seed, shape, plan) = (self.setup.seed, &self.shape, &self.plan);
        self.trace.say(0, || format!("seed {seed}: {shape:?}"));
        self.trace.say(0, || format!("faults: {plan:?}"));
        if let Some(odd) = &self.odd {
            self.trace
                .say(0, || format!("configured otherwise: {odd:?}"));
        }
        for node in 0..self.setup.replicas {
            self.boot(node);
        }
        self.start_clients();
        for injection in 0..self.plan.injections.len() {
            let at = self.plan.injections[injection].at;
            self.queue.push(
                at,
                Event::Injection {
                    injection: injection as u16,
                    tries: 0,
                },
            );
        }
        self.begin_ending();
        self.queue.push(self.shape.horizon, Event::Look);
        self.queue.push(COMPARE_EVERY, Event::CompareClocks);
        while self.phase != Phase::Over && self.violation.is_none() && self.stall.is_none() {
            let Some((at, event)) = self.queue.pop() else {
                break;
            };
            if at > self.setup.limits.end_at {
                break;
            }
            self.now = at;
            self.events += 1;
            self.trace.feed(at);
            self.on_event(event);
            self.render_state();
            if self.events > self.setup.limits.events_max {
                self.stall = Some(format!(
                    "more than {} events: {}",
                    self.setup.limits.events_max,
                    self.describe()
                ));
            }
        }
        if self.violation.is_none() {
            self.check_end();
        }
    }

    /// How many places replicas have: members, and those that may become members.
    pub const fn replicas_max(&self) -> usize {
        self.processes.len()
    }

    /// Whether the replica is in the run that the event was meant for.
    pub fn runs(&self, node: u16, boot: u32) -> bool {
        let process = &self.processes[node as usize];
        process.boot == boot && process.node.is_some()
    }

    fn on_event(&mut self, event: Event) {
        self.random.begin(&event);
        match event {
            Event::Step { node, boot } => {
                if self.runs(node, boot) {
                    self.step(node.into());
                }
            }
            Event::IdleWake { node, boot, at } => {
                let process = &mut self.processes[node as usize];
                if process.boot == boot && process.idle_at == at {
                    process.idle_at = u64::MAX;
                    self.wake(node.into());
                }
            }
            Event::Deliver {
                from,
                to,
                session,
                frame,
            } => self.on_deliver(from, to, session, frame),
            Event::Connect { a, b } => self.on_connect(a.into(), b.into()),
            Event::LinkTold { at, peer, link } => self.tell_link(at.into(), peer.into(), link),
            Event::Timer { place, boot, key } => self.on_timer(place, boot, key),
            Event::Synced { node, boot } => {
                if self.runs(node, boot) && !self.holds_sync(node.into()) {
                    self.on_synced(node.into());
                }
            }
            Event::SnapshotWritten { node, boot, bytes } => {
                if self.runs(node, boot) {
                    self.on_snapshot_written(node.into(), bytes);
                }
            }
            Event::SnapshotSaved { node, boot, id } => {
                if self.runs(node, boot) {
                    self.on_snapshot_saved(node.into(), id);
                }
            }
            Event::Stopped { node, boot, down } => {
                if self.runs(node, boot) {
                    self.crash_for(node.into(), down);
                }
            }
            Event::CrashNow {
                node,
                boot,
                kind,
                down,
            } => {
                if self.runs(node, boot) {
                    self.crash_now(node.into(), kind, down);
                }
            }
            Event::SnapshotWanted { node } => self.ask_for_snapshot(node.into()),
            Event::HoldingMoves { injection, step } => self.holding_moves(injection, step),
            Event::OrphanMoves { injection, step } => self.orphan_moves(injection, step),
            Event::AttackMoves { moves, ends } => self.attack_moves(moves, ends),
            Event::StandStill { node, until } => {
                if self.phase == Phase::Safety {
                    self.processes[node as usize].paused_until = until;
                }
            }
            Event::Restart { node } => {
                let process = &self.processes[node as usize];
                if process.node.is_none() && !process.gone && !self.is_out(node.into()) {
                    self.boot(node.into());
                }
            }
            Event::Turn { client } => self.turn(client.into()),
            Event::Past { client, ask } => self.continue_past(client.into(), ask as usize),
            Event::Resubmit { client } => self.resubmit(client.into()),
            Event::Injection { injection, tries } => self.inject(injection.into(), tries),
            Event::InjectionEnds { injection } => self.injection_ends(injection.into()),
            Event::OfferEnd => self.offer_end(),
            Event::Look => self.look(),
            Event::CompareClocks => {
                self.compare_clocks();
                self.queue
                    .push(self.now + COMPARE_EVERY, Event::CompareClocks);
            }
        }
    }

    /// Ends the world with a violation; the first one stands.
    pub fn violate(&mut self, violation: Violation) {
        self.trace
            .say(self.now, || format!("VIOLATION {violation}"));
        self.violation.get_or_insert(violation);
    }

    /// Counts one effect of a fault.
    pub fn effective(&mut self, what: &'static str) {
        *self.effects.entry(what).or_default() += 1;
    }

    // --- network ---------------------------------------------------------------------------

    /// How the place `at` calls the place `other`.
    fn peer(&self, other: usize) -> Peer {
        match u16::try_from(other) {
            Ok(id) if other < self.replicas_max() => Peer::Replica(ReplicaId(id)),
            _ => Peer::Frontend(quintet_replica::FrontendId(REMOTE + other as u64)),
        }
    }

    pub fn transmit(&mut self, from: usize, to: usize, lane: Lane, frame: Bytes) {
        let length = frame.len();
        let losses = self.render_send(from, to, &frame);
        match self
            .network
            .send((from, to), lane, frame, self.now, &mut self.queue)
        {
            Sent::Taken => self.render_loss(from, to, losses),
            Sent::Dropped => {
                self.trace.say(self.now, || {
                    format!("{from} ─╳ {to} {length} bytes, no link")
                });
            }
            Sent::Overflow => {
                *self.branches.entry("link overflow").or_default() += 1;
                self.break_link(from, to, Link::Down);
            }
        }
    }

    fn on_deliver(&mut self, from: u16, to: u16, session: u32, frame: Bytes) {
        let (from, to) = (usize::from(from), usize::from(to));
        self.trace
            .feed(from as u64 ^ (to as u64) << 8 ^ (frame.len() as u64) << 16);
        if !self
            .network
            .arrives((from, to), session, frame.len(), self.now)
        {
            return self.render_arrival(from, to, &frame, true);
        }
        self.render_arrival(from, to, &frame, false);
        if from < self.replicas_max()
            && let Some(room) = self.network.room_again(from, to)
        {
            let peer = self.peer(to);
            self.give_link(from, peer, Link::Room(room));
        }
        if to < self.replicas_max() {
            let from = self.peer(from);
            self.give_frame(to, from, frame);
        } else {
            let client = self.remotes[to - self.replicas_max()];
            self.client_frame(client.into(), from, frame);
        }
    }

    /// Breaks a connection if there is one; both ends learn of it and a new one is tried.
    pub fn break_link(&mut self, a: usize, b: usize, link: Link) -> bool {
        let Some(last) = self.network.reset(a, b, self.now) else {
            return false;
        };
        self.trace
            .say(self.now, || format!("{a} ╳ {b} connection broken"));
        for (at, peer) in [(a, b), (b, a)] {
            let when = self.now + self.random.below(last - self.now + 200_000);
            let (at, peer) = (at as u16, peer as u16);
            self.queue.push(when, Event::LinkTold { at, peer, link });
        }
        let again = last + self.random.between(1, 40) * MILLISECOND;
        self.network.connect_at(a, b, again, &mut self.queue);
        true
    }

    fn on_connect(&mut self, a: usize, b: usize) {
        if !self.admit(a, b) {
            return;
        }
        let reachable = [a, b].iter().all(|place| self.can_connect(*place));
        if !self.network.connect(a, b, self.now) || !reachable {
            if reachable && !self.network.is_up(a, b) {
                // Blocked for now. The event that removes the block may be quicker.
                let again = self.now + self.random.between(5, 60) * MILLISECOND;
                self.network.connect_at(a, b, again, &mut self.queue);
            } else if !reachable {
                self.network.reset(a, b, self.now);
                for (at, peer) in [(a, b), (b, a)] {
                    self.tell_link(at, peer, Link::Down);
                }
            }
            return;
        }
        self.trace.say(self.now, || format!("{a} ═ {b} connected"));
        for (at, peer) in [(a, b), (b, a)] {
            let incarnation = match self.processes.get(peer) {
                Some(process) => process.incarnation,
                None => Incarnation(0),
            };
            self.tell_link(at, peer, Link::Up { incarnation });
        }
    }

    fn can_connect(&self, place: usize) -> bool {
        match self.processes.get(place) {
            Some(process) => process.node.is_some(),
            None => self.clients[usize::from(self.remotes[place - self.replicas_max()])].is_here(),
        }
    }

    pub fn tell_link(&mut self, at: usize, peer: usize, link: Link) {
        // A break is told late; a connection made meanwhile makes it old news.
        if matches!(link, Link::Reset | Link::Down) && self.network.is_up(at, peer) {
            return;
        }
        let both = at.max(peer) < self.replicas_max();
        if link == Link::Arriving && !(both && self.network.is_up(at, peer)) {
            return;
        }
        if at < self.replicas_max() {
            let peer = self.peer(peer);
            self.give_link(at, peer, link);
        } else {
            let client = self.remotes[at - self.replicas_max()];
            self.client_link(client.into(), peer, link);
        }
    }

    fn on_timer(&mut self, place: u16, boot: u32, key: TimerKey) {
        let index = usize::from(place);
        if index >= self.replicas_max() {
            let client = self.remotes[index - self.replicas_max()];
            return self.client_timer(client.into(), place, key);
        }
        if !self.runs(place, boot) {
            return;
        }
        match self.processes[index].timers.popped(key, self.now) {
            Popped::Fired => self.give_timer(index, key),
            Popped::Later(at) => self.queue.push(at, Event::Timer { place, boot, key }),
            Popped::Nothing => {}
        }
    }

    // --- checking --------------------------------------------------------------------------

    /// Gives what replica `by` has executed since the last call to the checkers.
    pub fn check_executed(&mut self, by: usize) {
        let mut record = std::mem::take(&mut self.record);
        self.processes[by].take_record(&mut record);
        self.check_record(by, &record);
        record.clear();
        self.record = record;
    }

    /// Gives what replica `by` has executed permanently to the checkers.
    pub fn check_record(&mut self, by: usize, record: &[machine::Executed]) {
        let id = by as u16;
        let mut rest = record;
        while let Some((
            machine::Executed::Batch {
                position,
                time,
                digest,
            },
            tail,
        )) = rest.split_first()
        {
            let mut applied = std::mem::take(&mut self.applied);
            applied.clear();
            let commands = tail.iter().map_while(|executed| match executed {
                machine::Executed::Command { id, hash, .. } => Some(Applied {
                    id: *id,
                    number: self.numbers.get(id).copied().unwrap_or(u64::MAX),
                    hash: *hash,
                }),
                machine::Executed::Batch { .. } => None,
            });
            applied.extend(commands);
            rest = &tail[applied.len()..];
            let checked = self.check_batch(id, *position, *time, *digest, &applied);
            self.applied = applied;
            if let Err(violation) = checked {
                self.violate(violation);
            }
        }
    }

    /// Checks a replica's report of the end of the epoch.
    pub fn check_seal(&mut self, by: usize) {
        let Some(node) = &mut self.processes[by].node else {
            return;
        };
        let twice = self.setup.bug_is(APPLIED_TWICE);
        let by = by as u16;
        let shown = (self.past_seal.shows(by, node)).and_then(|()| match twice {
            // Another checker is to find that.
            true => Ok(()),
            false => self.past_seal.shows_state(by, node),
        });
        if let Err(violation) = shown {
            self.violate(violation);
        }
    }

    fn check_batch(
        &mut self,
        by: u16,
        position: u64,
        time: quintet_replica::CommandTime,
        digest: u128,
        applied: &[Applied],
    ) -> Result<(), Violation> {
        self.trace.feed(position ^ digest as u64);
        self.check_time(by, position, time)?;
        let first = self.agreement.executed(by, position, time, applied)?;
        let epoch = self.processes[usize::from(by)].epoch();
        self.past_seal.executed(by, epoch, position)?;
        if !self.bug_is(APPLIED_TWICE) {
            self.states.before(by, position, digest)?;
        }
        if first {
            for command in applied {
                self.once.executed(position, command)?;
            }
        }
        self.trace.say(self.now, || {
            let numbers: Vec<u64> = applied.iter().map(|command| command.number).collect();
            format!("r{by} executes position {position}: operations {numbers:?}")
        });
        Ok(())
    }

    /// The reading of a majority's clocks.
    fn majority_clock(&self) -> u64 {
        let mut clocks = self.clocks();
        clocks.sort_unstable_by(|a, b| b.cmp(a));
        clocks[self.voters.len() / 2]
    }

    fn clocks(&self) -> Vec<u64> {
        let clocks = self.voters.set().iter();
        let clocks = clocks.map(|id| &self.processes[id.index()].clock);
        clocks.map(|clock| clock.raw(self.now)).collect()
    }

    /// The replicas learn how their clocks stand to each other.
    pub fn compare_clocks(&mut self) {
        self.clock_most = self.clock_most.max(self.majority_clock());
        let mut clocks = self.clocks();
        for index in 0..self.replicas_max() {
            let clock = &mut self.processes[index].clock;
            let now = clock.now(self.now);
            let was_ahead = clock.is_ahead(self.now);
            clock.limit.note(now, &mut clocks, self.voters.len());
            if was_ahead || clock.is_ahead(self.now) {
                self.recheck_clock_timers(index);
            }
        }
    }

    /// The log's time runs hardly ahead of what a majority's clocks have shown.
    fn check_time(
        &mut self,
        by: u16,
        position: u64,
        time: quintet_replica::CommandTime,
    ) -> Result<(), Violation> {
        self.clock_most = self.clock_most.max(self.majority_clock());
        let most = self.clock_most + quintet_replica::AHEAD_MAX + AHEAD_SLACK;
        if time.0 <= most {
            return Ok(());
        }
        let what = format!(
            "replica {by} executed position {position} at {}, {} ms after the most that a \
             majority's clocks allow",
            time.0,
            (time.0 - most) / MILLISECOND
        );
        Err(Violation::new("log_time", what))
    }

    /// Compares the whole state of replica `by` after `slot` with that of the others there.
    pub fn check_state(&mut self, by: usize, epoch: EpochNumber, slot: u64, hash: Option<u128>) {
        let Some(hash) = hash else { return };
        // The digests alone are to find it.
        if self.bug_is(APPLIED_TWICE) {
            return;
        }
        if let Err(violation) = self.states.after(by as u16, epoch, slot, hash) {
            self.violate(violation);
        }
    }

    /// Compares a digest that replica `by` has finished with those of the others.
    pub fn check_digest(&mut self, by: usize, digest: StateDigest) {
        let position = digest.executed.position.0;
        self.trace
            .say(self.now, || format!("r{by} digest at position {position}"));
        match self.digests.finished(by as u16, position, digest.digest) {
            Ok(true) => *self.branches.entry("digests compared").or_default() += 1,
            Ok(false) => {}
            Err(violation) => self.violate(violation),
        }
    }

    /// One line on every replica, for stalls.
    pub fn describe(&self) -> String {
        let mut out = String::new();
        for (id, process) in self.processes.iter().enumerate() {
            let line = match &process.node {
                None if process.gone => format!("r{id} lost; "),
                None => format!("r{id} down; "),
                Some(node) => {
                    let status = node.protocol_status();
                    format!(
                        "r{id} {} leader {:?} view {} accepted {} committed {} executed {} voting \
                         {}{}; ",
                        status.role,
                        status.leader.map(|leader| leader.0),
                        status.view,
                        status.accepted,
                        status.committed,
                        node.executed().slot,
                        status.voting,
                        if self.is_out(id) {
                            " (outside the core)"
                        } else {
                            ""
                        },
                    )
                }
            };
            out.push_str(&line);
        }
        out
    }
}

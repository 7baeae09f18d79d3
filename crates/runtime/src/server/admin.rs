//! The admin HTTP server of a replica, on a thread of its own.
//!
//! ```text
//!   GET /livez /healthz /readyz ── open to all; with a password set the others ask for it:
//!   GET /status /metrics, POST /snapshot, GET and POST /change
//!     │ one thread serves all connections
//!     ├── what is published ──────────────► NodePort::status, metrics      at once
//!     └── what must go through the node ──► NodePort::probe, snapshot …    on waiting threads
//! ```

use super::{
    ChangeReport, ChangeRequest, Exposition, GroupReport, MemberReport, MetricKind,
    admin_connections::{AdminOptions, Door, serve},
    change::CHANGE_MAX,
    groups,
};
use axum::{
    Json, Router, extract,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use quintet_replica::{Difference, DigestStatus, TransferStatus};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{Semaphore, oneshot};

/// The part of `/status` about a member's clock compared with this one's, in nanoseconds; both as
/// their systems show them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerClockReport {
    /// How far it is ahead.
    pub offset_ns: i64,
    /// Standard deviation of that estimate.
    pub deviation_ns: u64,
    /// The offset is off by no more than this: half the shortest round trip, and what drifted
    /// since.
    pub bound_ns: u64,
    /// Whether something better than its own crystal disciplines it.
    pub disciplined: bool,
}

/// The part of `/status` about this replica's synchronised clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClockReport {
    /// Whether the system's clock is disciplined (chrony, ptp4l); it is not corrected then.
    pub disciplined: bool,
    /// The addition to the system's clock, by the peers' clocks.
    pub correction_ns: i64,
    /// How far, as a standard deviation, it is off; nothing when that is unknown.
    pub deviation_ns: Option<u64>,
    /// It is off by no more than this.
    pub bound_ns: u64,
}

/// The part of `/status` about one other member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerReport {
    /// Its place among the members.
    pub id: u16,
    /// Where it is reached.
    pub address: String,
    /// Whether a link is up.
    pub connected: bool,
    /// Milliseconds since something last came from it; nothing if nothing ever did.
    pub silent_ms: Option<u64>,
    /// Its incarnation as it last told it.
    pub incarnation: u64,
    /// Where its Redis clients connect, as it last told it.
    pub redis: Option<String>,
    /// Bytes queued for it.
    pub queued_bytes: u64,
    /// Why it is not connected, if that is known.
    pub error: Option<String>,
    /// How its clock stands to this one's, once that is known.
    pub clock: Option<PeerClockReport>,
    /// Whether frames go to it and come from it through shared memory.
    pub memory: bool,
    /// Whether small frames go to it by datagrams.
    pub datagrams: bool,
    /// Datagrams to it of this link that are known to be lost.
    pub datagrams_lost: u64,
}

/// The newest snapshot on a replica's disk; also what `POST /snapshot` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SnapshotReport {
    /// The slot that it covers.
    pub slot: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its file on the replica's machine, where it was asked for; empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
}

/// The part of `/status` about a peer's state that is being fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TransferReport {
    /// `asking`, `receiving` the snapshot, `following` with what was executed since, `saving` or
    /// `restoring`.
    pub phase: &'static str,
    /// The donor.
    pub donor: u16,
    /// The slot that the protocol wants at least.
    pub wanted: u64,
    /// The slot and the position that the snapshot covers, once the donor has named one.
    pub slot: Option<u64>,
    /// See `slot`.
    pub position: Option<u64>,
    /// The slot that is reached with what was executed after the snapshot.
    pub reached: u64,
    /// Bytes of the phase that are done.
    pub bytes: u64,
    /// Of how many; 0 while that is unknown.
    pub total: u64,
    /// Milliseconds since the phase began.
    pub elapsed_ms: u64,
    /// Milliseconds until it ends, if it continues as before.
    pub left_ms: Option<u64>,
}

impl From<TransferStatus> for TransferReport {
    fn from(status: TransferStatus) -> Self {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            phase: status.phase.name(),
            donor: status.donor.0,
            wanted: status.wanted.0,
            slot: status.snapshot.map(|id| id.slot.0),
            position: status.snapshot.map(|id| id.position.0),
            reached: status.reached.0,
            bytes: status.bytes,
            total: status.total,
            elapsed_ms: ms(status.elapsed),
            left_ms: status.left.map(ms),
        }
    }
}

/// The part of `/status` about the digests that replicas compare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DigestReport {
    /// The newest position of which this replica has a digest; 0 for none.
    pub position: u64,
    /// That digest, as 32 hexadecimal digits; empty for none.
    pub digest: String,
    /// The newest position at which a majority, this replica among them, had one state.
    pub agreed: u64,
    /// How many digests this process has finished.
    pub finished: u64,
    /// Where states differ, until they do not any more.
    pub differ: Option<DifferReport>,
}

/// States that differ at the same position.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DifferReport {
    /// `minority`: this replica's state is not that of a majority, so it is not ready. `peers`:
    /// other replicas' are not. `no majority`: it is unknown which one is right.
    pub kind: &'static str,
    /// At which position.
    pub position: u64,
    /// This replica's digest there.
    pub own: String,
    /// The majority's, or another one.
    pub other: String,
    /// Its meaning and the remedy.
    pub text: String,
}

impl From<DigestStatus> for DigestReport {
    fn from(status: DigestStatus) -> Self {
        let newest = status.newest.unwrap_or_default();
        Self {
            position: newest.executed.position.0,
            digest: (status.newest).map_or(String::new(), |newest| hex(newest.digest)),
            agreed: status.agreed.map_or(0, |position| position.0),
            finished: status.finished,
            differ: status.divergence.map(|found| DifferReport {
                kind: match found.difference {
                    Difference::Minority => MINORITY,
                    Difference::Peers(_) => "peers",
                    Difference::NoMajority => "no majority",
                },
                position: found.position.0,
                own: hex(found.own),
                other: hex(found.other),
                text: found.to_string(),
            }),
        }
    }
}

const MINORITY: &str = "minority";

fn hex(digest: u128) -> String {
    format!("{digest:032x}")
}

/// How often a rare branch was taken, and when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BranchReport {
    /// How often.
    pub count: u64,
    /// The first time, in nanoseconds since the Unix epoch by the system's clock.
    pub first_ns: u64,
    /// The last time.
    pub last_ns: u64,
}

/// The contents of `/status`. Slots count the protocol's log; positions count what was executed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StatusReport {
    /// The replica's place among the members.
    pub id: u16,
    /// The cluster, as 32 hexadecimal digits.
    pub cluster: String,
    /// The version of this program.
    pub version: String,
    /// Which of its incarnations this is.
    pub incarnation: u64,
    /// Which run of its process.
    pub boot: u64,
    /// The current epoch.
    pub epoch: u64,
    /// The fingerprint of what the epoch's members have in common.
    pub fingerprint: String,
    /// The protocol's options, all of them with their values.
    pub options: BTreeMap<String, String>,
    /// The limits that every member has in common.
    pub limits: BTreeMap<String, u64>,
    /// The protocol's name.
    pub protocol: String,
    /// The replica's part in it, in the field's words.
    pub role: String,
    /// The leader, if there is one.
    pub leader: Option<u16>,
    /// The protocol's view, ballot or round.
    pub view: u64,
    /// Whether it takes part in quorums.
    pub voting: bool,
    /// Whether it is stopping.
    pub stopping: bool,
    /// The last slot accepted here.
    pub accepted: u64,
    /// The last slot known to be decided, with all before it.
    pub committed: u64,
    /// The last slot executed.
    pub executed: u64,
    /// The last slot whose execution is final.
    pub stable: u64,
    /// The last position executed.
    pub position: u64,
    /// How many decided slots are not yet executed here.
    pub lag: u64,
    /// `disk` or `memory`.
    pub durability: String,
    /// `one` thread for all work, or `pipelined`.
    pub threads: String,
    /// `ok`, `full` (writes are refused here), `hung` (all is refused here) or `failed`.
    pub disk_state: String,
    /// The data that was lost here and is being repaired from the other replicas.
    pub repairing: Option<String>,
    /// Whole seconds since the process began to serve.
    pub uptime_seconds: u64,
    /// The process id.
    pub pid: u32,
    /// How many members the cluster has.
    pub members: usize,
    /// Which.
    pub rows: Vec<MemberReport>,
    /// A change of the epoch: `none`, `ordering` or `sealed`; a proxy shows `unknown`.
    pub change: &'static str,
    /// Where Redis clients connect, as it is told to the other members.
    pub redis: Option<String>,
    /// Keys in the store.
    pub entries: u64,
    /// Memory of the store in bytes, estimated.
    pub memory: u64,
    /// Open sessions in the replicated state.
    pub sessions: usize,
    /// Batches in progress here.
    pub open: usize,
    /// The newest durable snapshot.
    pub snapshot: Option<SnapshotReport>,
    /// Whether a snapshot is being written.
    pub snapshot_in_progress: bool,
    /// Whether a peer's state is being fetched.
    pub fetching: bool,
    /// How far that has come.
    pub transfer: Option<TransferReport>,
    /// Bytes of peers' states received since the process began.
    pub state_bytes_received: u64,
    /// Bytes of this replica's state given to peers since the process began.
    pub state_bytes_sent: u64,
    /// Frames dropped because they could not be read.
    pub frames_malformed: u64,
    /// Frames dropped because they were of another epoch or group.
    pub frames_foreign: u64,
    /// Digests of the state, as replicas compare them.
    pub digests: DigestReport,
    /// The members that take part in the protocol, in its order; empty when it does not report
    /// them.
    pub route: Vec<u16>,
    /// How what was submitted here was committed, by path, if the protocol has several.
    pub paths: BTreeMap<&'static str, u64>,
    /// Messages multicast here, by path; empty where there is one path only.
    pub multicasts: BTreeMap<&'static str, u64>,
    /// The synchronised clock.
    pub clock: ClockReport,
    /// The shards of the layout, in the order of their groups; empty where keys are not divided.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupReport>,
    /// Rare branches that were taken, by name.
    pub branches: BTreeMap<&'static str, BranchReport>,
    /// More of the protocol's own, by name.
    pub details: BTreeMap<&'static str, String>,
    /// All members but this one.
    pub peers: Vec<PeerReport>,
}

/// The admin server's interface to a node. Called on threads other than the node's; may block for
/// as long as it says.
pub trait NodePort: Send + Sync + 'static {
    /// The newest status that the node has published; does not wait for the node.
    fn status(&self) -> StatusReport;
    /// Sends an empty linearizable batch through the node and says whether it was answered
    /// within `deadline`; waits that long at most.
    fn probe(&self, deadline: Duration) -> bool;
    /// The counters of the event loop and the gateway; the admin server adds those of the status
    /// report. Does not wait for the node.
    fn metrics(&self) -> Exposition;
    /// Asks for a snapshot, of the shard of this name where a layout divides the keys, and waits until
    /// it is durable, `deadline` at most.
    ///
    /// # Errors
    /// Why there is none.
    fn snapshot(&self, shard: &str, deadline: Duration) -> Result<SnapshotReport, String>;
    /// Has the cluster continue with another protocol or other options, and waits until this
    /// replica does, `deadline` at most.
    ///
    /// # Errors
    /// Why it does not.
    fn change(&self, request: ChangeRequest, deadline: Duration) -> Result<ChangeReport, String>;
}

/// A running admin server; stops when dropped.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Admin {
    /// Serves on `listener` from a thread of its own.
    ///
    /// # Errors
    /// When the listener cannot be used or the thread cannot be started.
    pub fn start(
        listener: std::net::TcpListener,
        port: Arc<dyn NodePort>,
        options: AdminOptions,
    ) -> std::io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(WAITING_MAX)
            .thread_name("admin waits")
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let door = Arc::new(Door::new(options.password));
        let service = router(State {
            port,
            door: Arc::clone(&door),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
        });
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = serve(listener, service, door, options.connections_max) => {}
                        _ = stopped => {}
                    }
                });
                // Threads that still wait for the node are not waited for.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the admin server had panicked");
        }
    }
}

/// The most requests that may wait for the node at once; more are told to come back.
const WAITING_MAX: usize = 8;
/// How long `/readyz` waits for an answer.
const PROBE_MAX: Duration = Duration::from_secs(1);
/// How long `POST /snapshot` waits.
const SNAPSHOT_MAX: Duration = Duration::from_secs(600);

const PATHS: &str = "GET  /livez     200 while the process runs; also /healthz\n\
                     GET  /readyz    200 while linearizable requests are served\n\
                     GET  /status    what the replica knows of itself, as JSON\n\
                     GET  /metrics   counters and gauges for Prometheus\n\
                     POST /snapshot  take a snapshot now and wait until it is durable\n\
                     GET  /change    the epoch with its protocol and options, as JSON\n\
                     POST /change    {\"protocol\": NAME, \"options\": {…}}: continue with these; waits;\n\
                                {\"remove\": [ID, …]}: continue without them\n";

#[derive(Clone)]
struct State {
    port: Arc<dyn NodePort>,
    waiting: Arc<Semaphore>,
    door: Arc<Door>,
}

type Text = (StatusCode, [(header::HeaderName, &'static str); 1], String);

fn plain(code: StatusCode, text: impl Into<String>) -> Text {
    (
        code,
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8")],
        text.into(),
    )
}

fn router(state: State) -> Router {
    let unknown = async || {
        plain(
            StatusCode::NOT_FOUND,
            format!("not found; there are\n{PATHS}"),
        )
    };
    let wrong = async || {
        plain(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("method not allowed; there are\n{PATHS}"),
        )
    };
    Router::new()
        .route("/livez", get(async || plain(StatusCode::OK, "ok\n")))
        .route("/healthz", get(async || plain(StatusCode::OK, "ok\n")))
        .route("/readyz", get(readyz))
        .route("/status", get(status))
        .route("/metrics", get(metrics))
        .route("/snapshot", post(snapshot))
        .route("/change", get(shown).post(change))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong)
        .with_state(state)
}

impl State {
    /// Runs what may block apart from the thread that serves; `None` when too many wait already.
    async fn wait<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn NodePort) -> T + Send + 'static,
    ) -> Option<T> {
        let permit = Arc::clone(&self.waiting).try_acquire_owned().ok()?;
        let port = Arc::clone(&self.port);
        let answer = tokio::task::spawn_blocking(move || {
            let answer = ask(&*port);
            drop(permit);
            answer
        });
        answer.await.ok()
    }
}

fn busy() -> Text {
    plain(
        StatusCode::SERVICE_UNAVAILABLE,
        "too many requests wait for the replica already\n",
    )
}

async fn readyz(extract::State(state): extract::State<State>) -> Text {
    let differ = state.port.status().digests.differ;
    if let Some(differ) = differ.filter(|differ| differ.kind == MINORITY) {
        let text = format!("not ready: {}\n", differ.text);
        return plain(StatusCode::SERVICE_UNAVAILABLE, text);
    }
    match state.wait(|port| port.probe(PROBE_MAX)).await {
        None => busy(),
        Some(true) => plain(StatusCode::OK, "ready\n"),
        Some(false) => {
            let report = state.port.status();
            let linked = report.peers.iter().filter(|peer| peer.connected).count() + 1;
            let leader = report
                .leader
                .map_or("none known".to_owned(), |id| id.to_string());
            let text = format!(
                "not ready: no linearizable read was answered within {PROBE_MAX:?} (role {}, \
                 leader {leader}, {linked} of {} members reachable)\n",
                report.role, report.members
            );
            plain(StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}

async fn status(extract::State(state): extract::State<State>) -> Json<StatusReport> {
    Json(state.port.status())
}

async fn metrics(extract::State(state): extract::State<State>) -> impl IntoResponse {
    let mut exposition = Exposition::default();
    describe(&state.port.status(), &mut exposition);
    exposition.families.extend(state.port.metrics().families);
    describe_door(&state.door, &mut exposition);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], exposition.render())
}

async fn snapshot(extract::State(state): extract::State<State>, shard: String) -> Response {
    let taken = state.wait(move |port| port.snapshot(shard.trim(), SNAPSHOT_MAX));
    match taken.await {
        None => busy().into_response(),
        Some(Ok(report)) => Json(report).into_response(),
        Some(Err(why)) => plain(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("no snapshot: {why}\n"),
        )
        .into_response(),
    }
}

async fn shown(extract::State(state): extract::State<State>) -> Json<ChangeReport> {
    let report = state.port.status();
    Json(ChangeReport {
        epoch: report.epoch,
        protocol: report.protocol,
        options: report.options,
        durability: report.durability,
        fingerprint: report.fingerprint,
        members: report.rows,
        change: report.change.to_owned(),
    })
}

async fn change(extract::State(state): extract::State<State>, body: String) -> Response {
    let request: ChangeRequest = match serde_json::from_str(&body) {
        Ok(request) => request,
        Err(error) => {
            let text = format!(
                "not a change: {error}; it looks like \
                 {{\"protocol\": \"nezha\", \"options\": {{\"NAME\": \"VALUE\"}}}}\n"
            );
            return plain(StatusCode::BAD_REQUEST, text).into_response();
        }
    };
    match state.wait(|port| port.change(request, CHANGE_MAX)).await {
        None => busy().into_response(),
        Some(Ok(report)) => Json(report).into_response(),
        Some(Err(why)) => plain(StatusCode::CONFLICT, format!("{why}\n")).into_response(),
    }
}

fn describe_door(door: &Door, out: &mut Exposition) {
    let counted = |counter: &AtomicU64| counter.load(Relaxed);
    out.counter(
        "admin_connections_dropped_total",
        "Connections to the admin HTTP closed or refused because there were too many.",
        counted(&door.counters.connections_dropped),
    );
    out.counter(
        "admin_auth_failures_total",
        "Wrong passwords at the admin HTTP.",
        counted(&door.counters.auth_failures),
    );
    out.counter(
        "admin_auth_throttled_total",
        "Passwords at the admin HTTP not looked at: too many wrong ones from that address.",
        counted(&door.counters.auth_throttled),
    );
}

/// The status report as metrics.
fn describe(report: &StatusReport, out: &mut Exposition) {
    let label = |text: &str| {
        text.replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('\n', "\\n")
    };
    let about = format!(
        "id=\"{}\",cluster=\"{}\",protocol=\"{}\",durability=\"{}\",version=\"{}\"",
        report.id,
        label(&report.cluster),
        label(&report.protocol),
        label(&report.durability),
        label(&report.version)
    );
    let one = |labels: String| vec![(labels, 1.0)];
    out.add(
        MetricKind::Gauge,
        "info",
        "What this replica is.",
        one(about),
    );
    let role = format!("role=\"{}\"", label(&report.role));
    out.add(
        MetricKind::Gauge,
        "role",
        "The replica's part in the protocol.",
        one(role),
    );
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    let differ = report.digests.differ.as_ref();
    let wrong = differ.is_some_and(|differ| differ.kind == MINORITY);
    let gauges: [(&'static str, &'static str, f64); 24] = [
        (
            "clock_disciplined",
            "1 when something (chrony, ptp4l) disciplines the system's clock.",
            f64::from(u8::from(report.clock.disciplined)),
        ),
        (
            "clock_correction_seconds",
            "What is added to the system's clock, by what the peers' clocks show.",
            report.clock.correction_ns as f64 / 1e9,
        ),
        (
            "clock_bound_seconds",
            "The synchronised clock is off by no more than this.",
            seconds(report.clock.bound_ns),
        ),
        (
            "uptime_seconds",
            "Seconds since the process began to serve.",
            report.uptime_seconds as f64,
        ),
        (
            "voting",
            "Whether it takes part in quorums.",
            f64::from(u8::from(report.voting)),
        ),
        ("members", "Members of the cluster.", report.members as f64),
        ("epoch", "The current epoch.", report.epoch as f64),
        (
            "incarnation",
            "Which of its incarnations this is.",
            report.incarnation as f64,
        ),
        (
            "view",
            "The protocol's view, ballot or round.",
            report.view as f64,
        ),
        (
            "slot_accepted",
            "The last slot accepted here.",
            report.accepted as f64,
        ),
        (
            "slot_committed",
            "The last slot known to be decided.",
            report.committed as f64,
        ),
        (
            "slot_executed",
            "The last slot executed.",
            report.executed as f64,
        ),
        (
            "slot_stable",
            "The last slot whose execution is final.",
            report.stable as f64,
        ),
        (
            "slots_behind",
            "Decided slots that are not yet executed here.",
            report.lag as f64,
        ),
        ("keys", "Keys in the store.", report.entries as f64),
        (
            "store_memory_bytes",
            "Memory of the store, estimated.",
            report.memory as f64,
        ),
        (
            "sessions",
            "Open sessions in the replicated state.",
            report.sessions as f64,
        ),
        (
            "snapshot_slot",
            "The slot that the newest durable snapshot covers.",
            report
                .snapshot
                .as_ref()
                .map_or(0.0, |snapshot| snapshot.slot as f64),
        ),
        (
            "snapshot_in_progress",
            "Whether a snapshot is being written.",
            f64::from(u8::from(report.snapshot_in_progress)),
        ),
        (
            "fetching",
            "Whether a peer's state is being fetched.",
            f64::from(u8::from(report.fetching)),
        ),
        (
            "digest_position",
            "The newest position of which this replica has a digest of its state.",
            report.digests.position as f64,
        ),
        (
            "digest_agreed_position",
            "The newest position at which a majority, this replica among them, had one state.",
            report.digests.agreed as f64,
        ),
        (
            "states_differ",
            "1 while replicas are known to have different states.",
            f64::from(u8::from(differ.is_some())),
        ),
        (
            "state_wrong",
            "1 when this replica's state is not that of a majority.",
            f64::from(u8::from(wrong)),
        ),
    ];
    for (name, help, value) in gauges {
        out.gauge(name, help, value);
    }
    describe_transfer(report, out);
    if !report.paths.is_empty() {
        let samples = (report.paths.iter())
            .map(|(path, count)| (format!("path=\"{}\"", label(path)), *count as f64));
        out.add(
            MetricKind::Counter,
            "commits_total",
            "Batches submitted here that were committed, by the path they took.",
            samples.collect(),
        );
    }
    if !report.multicasts.is_empty() {
        let samples = (report.multicasts.iter())
            .map(|(path, count)| (format!("path=\"{}\"", label(path)), *count as f64));
        out.add(
            MetricKind::Counter,
            "multicast_total",
            "Messages multicast by this replica, by the path they took.",
            samples.collect(),
        );
    }
    if let Some(deviation) = report.clock.deviation_ns {
        out.gauge(
            "clock_deviation_seconds",
            "Standard deviation of the synchronised clock.",
            seconds(deviation),
        );
    }
    type Of = fn(&PeerClockReport) -> f64;
    let clocks: [(&'static str, &'static str, Of); 3] = [
        (
            "peer_clock_offset_seconds",
            "How far a peer's clock is ahead of this one.",
            |clock| clock.offset_ns as f64 / 1e9,
        ),
        (
            "peer_clock_deviation_seconds",
            "Standard deviation of that offset.",
            |clock| clock.deviation_ns as f64 / 1e9,
        ),
        (
            "peer_clock_bound_seconds",
            "That offset is off by no more than this.",
            |clock| clock.bound_ns as f64 / 1e9,
        ),
    ];
    for (name, help, value) in clocks {
        let told = report.peers.iter().filter_map(|peer| {
            let clock = peer.clock.as_ref()?;
            Some((format!("peer=\"{}\"", peer.id), value(clock)))
        });
        let samples: Vec<_> = told.collect();
        if !samples.is_empty() {
            out.add(MetricKind::Gauge, name, help, samples);
        }
    }
    let per_peer = |value: fn(&PeerReport) -> f64| {
        let label = |peer: &PeerReport| format!("peer=\"{}\"", peer.id);
        report
            .peers
            .iter()
            .map(|peer| (label(peer), value(peer)))
            .collect()
    };
    let linked = per_peer(|peer| f64::from(u8::from(peer.connected)));
    out.add(
        MetricKind::Gauge,
        "peer_linked",
        "Whether there is a link to the peer.",
        linked,
    );
    let queued = per_peer(|peer| peer.queued_bytes as f64);
    out.add(
        MetricKind::Gauge,
        "peer_queued_bytes",
        "Bytes queued for the peer.",
        queued,
    );
    let memory = per_peer(|peer| f64::from(u8::from(peer.memory)));
    out.add(
        MetricKind::Gauge,
        "peer_shared_memory",
        "Whether frames go to the peer and come from it through shared memory.",
        memory,
    );
    let datagrams = per_peer(|peer| f64::from(u8::from(peer.datagrams)));
    out.add(
        MetricKind::Gauge,
        "peer_datagrams",
        "Whether small frames go to the peer by datagrams.",
        datagrams,
    );
    let lost = per_peer(|peer| peer.datagrams_lost as f64);
    out.add(
        MetricKind::Gauge,
        "peer_datagrams_lost",
        "Datagrams to the peer that were lost on the way, of the present link.",
        lost,
    );
    groups::describe(&report.groups, out);
}

/// The transfer of a peer's state to this replica, and of this one's to peers.
fn describe_transfer(report: &StatusReport, out: &mut Exposition) {
    let transfer = report.transfer.clone().unwrap_or_default();
    out.gauge(
        "transfer_bytes",
        "Bytes of a peer's state that have been received, saved or restored.",
        transfer.bytes as f64,
    );
    out.gauge(
        "transfer_length_bytes",
        "Of how many; 0 while there is no transfer or that is unknown.",
        transfer.total as f64,
    );
    out.gauge(
        "transfer_left_seconds",
        "How long it takes yet if it continues as before; 0 when that is unknown.",
        transfer.left_ms.unwrap_or_default() as f64 / 1e3,
    );
    out.counter(
        "state_received_bytes_total",
        "Bytes of peers' states received.",
        report.state_bytes_received,
    );
    out.counter(
        "state_sent_bytes_total",
        "Bytes of this replica's state given to peers.",
        report.state_bytes_sent,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        sync::atomic::{AtomicBool, Ordering},
    };

    #[derive(Default)]
    struct Fake {
        ready: AtomicBool,
    }

    impl NodePort for Fake {
        fn change(&self, request: ChangeRequest, _: Duration) -> Result<ChangeReport, String> {
            match request.protocol {
                Some(protocol) => Ok(ChangeReport {
                    epoch: 2,
                    protocol,
                    options: request.options,
                    ..ChangeReport::default()
                }),
                None => Err("nothing is asked for".to_owned()),
            }
        }
        fn status(&self) -> StatusReport {
            let clock = PeerClockReport {
                offset_ns: -2_500_000_000,
                deviation_ns: 1_500,
                bound_ns: 40_000,
                disciplined: false,
            };
            let peer = PeerReport {
                id: 1,
                connected: true,
                clock: Some(clock),
                memory: true,
                datagrams: true,
                datagrams_lost: 3,
                ..PeerReport::default()
            };
            StatusReport {
                role: "leader".to_owned(),
                members: 3,
                executed: 7,
                paths: [("fast", 5), ("slow", 1)].into(),
                multicasts: [("rdmc", 7)].into(),
                clock: ClockReport {
                    disciplined: false,
                    correction_ns: -250_000_000,
                    deviation_ns: Some(2_000),
                    bound_ns: 1_000_000,
                },
                peers: vec![
                    peer,
                    PeerReport {
                        id: 2,
                        ..PeerReport::default()
                    },
                ],
                ..StatusReport::default()
            }
        }

        fn probe(&self, _: Duration) -> bool {
            self.ready.load(Ordering::SeqCst)
        }

        fn metrics(&self) -> Exposition {
            let mut exposition = Exposition::default();
            super::super::Counters::default().render_into(&mut exposition);
            exposition
        }

        fn snapshot(&self, _: &str, _: Duration) -> Result<SnapshotReport, String> {
            match self.ready.load(Ordering::SeqCst) {
                true => Ok(SnapshotReport {
                    slot: 7,
                    bytes: 9,
                    path: "/d/7-1.snapshot".to_owned(),
                }),
                false => Err("the disk is full".to_owned()),
            }
        }
    }

    fn start() -> (Admin, Arc<Fake>) {
        start_with(None, 64)
    }

    fn start_with(password: Option<&str>, connections_max: usize) -> (Admin, Arc<Fake>) {
        let options = AdminOptions {
            password: password.map(str::to_owned),
            connections_max,
        };
        let fake = Arc::new(Fake::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (
            Admin::start(listener, Arc::clone(&fake) as Arc<dyn NodePort>, options).unwrap(),
            fake,
        )
    }

    fn ask(admin: &Admin, what: &str) -> (u16, String) {
        ask_with(admin, what, "")
    }

    fn ask_with(admin: &Admin, what: &str, more: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(admin.address()).unwrap();
        write!(
            stream,
            "{what} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), body.to_owned())
    }

    #[test]
    fn health_is_told_by_status_codes() {
        let (admin, fake) = start();
        assert_eq!(ask(&admin, "GET /livez"), (200, "ok\n".to_owned()));
        let (code, why) = ask(&admin, "GET /readyz");
        assert_eq!(code, 503);
        assert!(
            why.contains("role leader") && why.contains("2 of 3 members"),
            "{why}"
        );
        fake.ready.store(true, Ordering::SeqCst);
        assert_eq!(ask(&admin, "GET /readyz"), (200, "ready\n".to_owned()));
    }

    #[test]
    fn status_is_json() {
        let (admin, _) = start();
        let (code, body) = ask(&admin, "GET /status");
        let status: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (code, &status["role"], &status["executed"]),
            (200, &"leader".into(), &7.into())
        );
        for field in [
            "id",
            "incarnation",
            "epoch",
            "protocol",
            "leader",
            "accepted",
            "committed",
            "stable",
            "durability",
            "threads",
            "uptime_seconds",
        ] {
            assert!(status.get(field).is_some(), "{field}");
        }
        assert_eq!(status["peers"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn metrics_have_the_prefix_and_each_name_once() {
        let (admin, _) = start();
        let (code, body) = ask(&admin, "GET /metrics");
        assert_eq!(code, 200);
        assert!(body.contains("quintet_slot_executed 7\n"), "{body}");
        let by_path = "quintet_commits_total{path=\"fast\"} 5\n\
                       quintet_commits_total{path=\"slow\"} 1\n";
        assert!(body.contains(by_path), "{body}");
        assert!(
            body.contains("quintet_peer_linked{peer=\"2\"} 0\n"),
            "{body}"
        );
        for line in [
            "clock_disciplined 0",
            "clock_correction_seconds -0.25",
            "clock_deviation_seconds 0.000002",
            "clock_bound_seconds 0.001",
            "peer_clock_offset_seconds{peer=\"1\"} -2.5",
            "peer_clock_deviation_seconds{peer=\"1\"} 0.0000015",
            "peer_clock_bound_seconds{peer=\"1\"} 0.00004",
            "multicast_total{path=\"rdmc\"} 7",
            "peer_shared_memory{peer=\"1\"} 1",
            "peer_datagrams{peer=\"1\"} 1",
            "peer_datagrams{peer=\"2\"} 0",
            "peer_datagrams_lost{peer=\"1\"} 3",
        ] {
            assert!(
                body.contains(&format!("\nquintet_{line}\n")),
                "{line}: {body}"
            );
        }
        assert!(!body.contains("peer_clock_offset_seconds{peer=\"2\"}"));
        let mut names: Vec<_> = body
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .collect();
        assert!(names.iter().all(|name| name.starts_with("quintet_")));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn snapshots_are_taken_on_request() {
        let (admin, fake) = start();
        assert_eq!(
            ask(&admin, "POST /snapshot"),
            (503, "no snapshot: the disk is full\n".into())
        );
        fake.ready.store(true, Ordering::SeqCst);
        assert_eq!(
            ask(&admin, "POST /snapshot"),
            (
                200,
                r#"{"slot":7,"bytes":9,"path":"/d/7-1.snapshot"}"#.into()
            )
        );
    }

    #[test]
    fn unknown_path_is_answered_with_known_ones() {
        let (admin, _) = start();
        for (what, code) in [("GET /nope", 404), ("GET /snapshot", 405), ("GET /", 404)] {
            let (given, body) = ask(&admin, what);
            assert_eq!(given, code);
            assert!(
                body.contains("/readyz") && body.contains("POST /snapshot"),
                "{body}"
            );
        }
    }

    #[test]
    fn all_but_health_needs_the_password_when_one_is_set() {
        let (admin, fake) = start_with(Some("secret"), 64);
        fake.ready.store(true, Ordering::SeqCst);
        for open in ["GET /livez", "GET /healthz", "GET /readyz"] {
            assert_eq!(ask(&admin, open).0, 200, "{open}");
        }
        let right = "Authorization: Basic ZGVmYXVsdDpzZWNyZXQ=\r\n";
        for guarded in ["GET /status", "GET /metrics", "POST /snapshot"] {
            assert_eq!(ask(&admin, guarded).0, 401, "{guarded}");
            let wrong = "Authorization: Bearer wrong\r\n";
            assert_eq!(ask_with(&admin, guarded, wrong).0, 401, "{guarded}");
            assert_eq!(ask_with(&admin, guarded, right).0, 200, "{guarded}");
        }
        let body = ask_with(&admin, "GET /metrics", right).1;
        assert!(
            body.contains("\nquintet_admin_auth_failures_total 3\n"),
            "{body}"
        );
    }

    #[test]
    fn idle_connections_make_room_when_there_are_too_many() {
        let (admin, _) = start_with(None, 4);
        let mut idle: Vec<_> = (0..20)
            .map(|_| TcpStream::connect(admin.address()).unwrap())
            .collect();
        assert_eq!(ask(&admin, "GET /livez").0, 200);
        idle[0]
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        assert_eq!(idle[0].read(&mut [0; 1]).unwrap(), 0, "it was closed");
    }

    #[test]
    fn it_stops_with_a_connection_open() {
        let (admin, _) = start();
        let address = admin.address();
        let _open = TcpStream::connect(address).unwrap();
        drop(admin);
        assert!(TcpStream::connect(address).is_err());
    }
}

use super::*;
use crate::{
    Config, Member,
    mail::Mailbox,
    transports::handshake::{Refusal, Step},
};
use mio::{Events, Poll};
use quintet_replica::{Boot, Bytes, ClusterId, EpochNumber};
use std::{
    io::{Read, Write},
    net::Ipv4Addr,
    path::Path,
    time::Instant,
};

const FIRST_TOKEN: usize = 2;

/// One transport with its own poll, driven by the test.
pub(super) struct Side {
    poll: Poll,
    pub tcp: Tcp,
    _mailbox: Mailbox,
    started: Instant,
    /// How far its time is ahead.
    pub ahead: Duration,
    pub links: Vec<(Peer, Link)>,
    pub frames: Vec<(Peer, Bytes)>,
    pub puts: Vec<(ReplicaId, Bytes)>,
    pub refused: Option<String>,
}

pub(super) const SECRET: [u8; 32] = [5; 32];

fn identity(config: &Config, data: &Data) -> PeerIdentity {
    PeerIdentity {
        cluster: config.cluster,
        epoch: EpochNumber(1),
        groups: 1,
        members: config.members.len() as u16,
        protocol: "multipaxos".to_owned(),
        from: Peer::Replica(config.id),
        to: config.id,
        incarnation: Incarnation(data.incarnation.0),
        boot: Boot(data.boot.0),
        directory: data.directory,
        session: 0,
        lane: Lane::Control,
        redis: "0.0.0.0:7001".to_owned(),
        address: String::new(),
        descriptor: Bytes::new(),
    }
}

impl Side {
    pub fn new(
        config: &Config,
        listener: std::net::TcpListener,
        change: impl Fn(&mut PeerIdentity, &mut PeerKey),
    ) -> Self {
        let poll = Poll::new().expect("a poll");
        let registry = poll.registry().try_clone().expect("a registry");
        let (mailbox, mailer) = Mailbox::new(&registry, Token(0)).expect("a mailbox");
        let data = Data::open(config).expect("opens");
        let mut me = identity(config, &data);
        let mut key = PeerKey::new(&SECRET, config.cluster);
        change(&mut me, &mut key);
        let names = config
            .members
            .iter()
            .map(|member| member.peer.clone())
            .collect();
        let me = (me, key);
        let tcp = Tcp::new(me, data, registry, listener, names, FIRST_TOKEN, mailer)
            .expect("a transport");
        Self {
            poll,
            tcp,
            _mailbox: mailbox,
            started: Instant::now(),
            ahead: Duration::ZERO,
            links: Vec::new(),
            frames: Vec::new(),
            puts: Vec::new(),
            refused: None,
        }
    }

    pub fn of_frontend(id: FrontendId, like: &Tcp, names: Vec<String>) -> Self {
        Self::of_frontend_with(id, (like.me.clone(), like.key.clone()), names)
    }

    fn of_frontend_with(
        id: FrontendId,
        (me, key): (PeerIdentity, PeerKey),
        names: Vec<String>,
    ) -> Self {
        let poll = Poll::new().expect("a poll");
        let registry = poll.registry().try_clone().expect("a registry");
        let (mailbox, mailer) = Mailbox::new(&registry, Token(0)).expect("a mailbox");
        let me = PeerIdentity {
            from: Peer::Frontend(id),
            ..me
        };
        Self {
            poll,
            tcp: Tcp::of_frontend((me, key), registry, names, FIRST_TOKEN, mailer),
            _mailbox: mailbox,
            started: Instant::now(),
            ahead: Duration::ZERO,
            links: Vec::new(),
            frames: Vec::new(),
            puts: Vec::new(),
            refused: None,
        }
    }

    pub fn address(&self) -> SocketAddr {
        let listener = self.tcp.listener.as_ref().expect("it listens");
        listener.local_addr().expect("bound")
    }

    pub fn now(&self) -> Time {
        Time((self.started.elapsed() + self.ahead).as_nanos() as u64)
    }

    pub fn turn(&mut self) {
        let mut events = Events::with_capacity(64);
        let wait = if self.tcp.busy() {
            Duration::ZERO
        } else {
            Duration::from_millis(1)
        };
        self.poll.poll(&mut events, Some(wait)).expect("polls");
        let now = self.now();
        for event in &events {
            self.tcp.on_event(event, now);
        }
        self.tcp.on_time(now);
        self.tcp.receive(now);
        while let Some(arrival) = self.tcp.take_arrival() {
            match arrival {
                Arrival::Frame(from, frame) => self.frames.push((from, frame)),
                Arrival::Put(from, ranges) => self.puts.push((from, ranges)),
                Arrival::Link(peer, link) => self.links.push((peer, link)),
                Arrival::Booted(..) => {}
                Arrival::Refused(reason) => self.refused = Some(reason),
                Arrival::Join(..) => {}
            }
        }
        self.tcp.flush(now);
    }

    pub fn error(&self, id: u16) -> String {
        let report = self.tcp.report(ReplicaId(id), self.now());
        report.error.unwrap_or_default()
    }

    pub fn send(&mut self, to: u16, lane: Lane, bytes: &[u8]) {
        let to = Recipients::Replicas([ReplicaId(to)].into_iter().collect());
        let now = self.now();
        self.tcp
            .send(to, lane, &Frame::from(Bytes::copy_from_slice(bytes)), now);
    }
}

/// Turns all sides until `done`.
pub(super) fn until(what: &str, sides: &mut [&mut Side], done: impl Fn(&[&mut Side]) -> bool) {
    let begun = Instant::now();
    while !done(sides) {
        assert!(begun.elapsed() < Duration::from_secs(20), "never: {what}");
        sides.iter_mut().for_each(|side| side.turn());
    }
}

pub(super) fn listeners() -> (Vec<std::net::TcpListener>, Vec<Member>) {
    let listeners: Vec<_> = (0..2)
        .map(|_| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port"))
        .collect();
    let members = listeners
        .iter()
        .map(|l| Member {
            peer: l.local_addr().expect("bound").to_string(),
        })
        .collect();
    (listeners, members)
}

pub(super) fn config(root: &Path, id: u16, members: &[Member]) -> Config {
    let data = root.join(format!("r{id}"));
    Config::new(ClusterId(0xa), ReplicaId(id), members.to_vec(), data)
}

/// Two sides on loopback; `change` is what the second one tells differently.
pub(super) fn pair(root: &Path, change: impl Fn(&mut PeerIdentity)) -> (Side, Side) {
    pair_with(root, |me, _| change(me))
}

/// The same; what is changed may be the second one's secret, too.
pub(super) fn pair_with(
    root: &Path,
    change: impl Fn(&mut PeerIdentity, &mut PeerKey),
) -> (Side, Side) {
    let (mut listeners, members) = listeners();
    let second = listeners.pop().expect("two");
    let first = listeners.pop().expect("two");
    let a = Side::new(&config(root, 0, &members), first, |_, _| {});
    let b = Side::new(&config(root, 1, &members), second, change);
    (a, b)
}

/// A connection to a side from outside, driven by the test step by step.
pub(super) struct Raw {
    pub stream: std::net::TcpStream,
    handshake: Handshake,
    read: Vec<u8>,
}

impl Raw {
    /// Dials with the right key.
    pub fn dial(address: SocketAddr) -> Self {
        Self::dial_with(address, &SECRET)
    }

    pub fn dial_with(address: SocketAddr, secret: &[u8; 32]) -> Self {
        let key = PeerKey::new(secret, ClusterId(0xa));
        let (handshake, challenge) = Handshake::initiate(key, nonce().expect("randomness"));
        let mut raw = Self::over(
            std::net::TcpStream::connect(address).expect("connects"),
            handshake,
        );
        raw.stream.write_all(&challenge).expect("writes");
        raw
    }

    /// Answers what was accepted from a side.
    pub fn accept_with(stream: std::net::TcpStream, secret: &[u8; 32]) -> Self {
        let key = PeerKey::new(secret, ClusterId(0xa));
        Self::over(stream, Handshake::accept(key, nonce().expect("randomness")))
    }

    fn over(stream: std::net::TcpStream, handshake: Handshake) -> Self {
        stream.set_nonblocking(true).expect("non-blocking");
        Self {
            stream,
            handshake,
            read: Vec::new(),
        }
    }

    /// The next step, while the side takes its turns.
    pub fn step(&mut self, side: &mut Side) -> Step {
        let begun = Instant::now();
        loop {
            match self.handshake.advance(&self.read).expect("a handshake") {
                Some((step, length)) => {
                    self.read.drain(..length);
                    if let Step::Send(bytes) | Step::Proven(bytes) = &step {
                        self.stream.write_all(bytes).expect("writes");
                    }
                    return step;
                }
                None => assert!(begun.elapsed() < Duration::from_secs(20), "no step"),
            }
            side.turn();
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => panic!("it was closed"),
                Ok(count) => self.read.extend_from_slice(&bytes[..count]),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
    }

    /// Until both sides are proven.
    pub fn prove(&mut self, side: &mut Side) {
        while !self.handshake.is_proven() {
            self.step(side);
        }
    }

    pub fn tell(&mut self, identity: &PeerIdentity) {
        let packet = self.handshake.identity(identity).expect("proven");
        self.stream.write_all(&packet).expect("writes");
    }

    pub fn refuse(&mut self, refusal: &Refusal) {
        let packet = self.handshake.refusal(refusal).expect("proven");
        self.stream.write_all(&packet).expect("writes");
    }

    /// Whether the side has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
    }
}

pub(super) const ZERO: Peer = Peer::Replica(ReplicaId(0));
pub(super) const ONE: Peer = Peer::Replica(ReplicaId(1));

#[test]
fn answers_of_the_transport_do_not_count_as_its_nodes() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    let times = |side: &Side| {
        let report = side.tcp.report(ReplicaId(1), side.now());
        (report.heard, report.node_heard)
    };
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
    let (_, up) = times(&a);
    assert!(up.is_some(), "it was there");
    until("its clock", &mut [&mut a, &mut b], |s| times(s[0]).0 > up);
    assert_eq!(times(&a).1, up);
    b.send(0, Lane::Control, b"a word");
    until("a frame", &mut [&mut a, &mut b], |s| {
        !s[0].frames.is_empty()
    });
    assert!(times(&a).1 > up);
}

#[test]
fn sides_that_dial_at_once_have_one_link_that_carries_frames() {
    let directory = tempfile::tempdir().expect("a directory");
    for turns in 0..6 {
        let root = directory.path().join(turns.to_string());
        let (mut a, mut b) = pair(&root, |_| {});
        // The lower one is this many steps ahead.
        a.tcp.on_time(a.now());
        for _ in 0..turns {
            a.turn();
            if turns % 2 == 0 {
                b.turn();
            }
        }
        if b.tcp.links[0].lanes == [None; 2] {
            b.tcp.dial(0, b.now());
        }
        until("up", &mut [&mut a, &mut b], |s| {
            s[0].tcp.links_up() + s[1].tcp.links_up() == 2
        });
        for lane in LANES {
            a.send(1, lane, b"there");
            b.send(0, lane, b"back");
        }
        until("frames", &mut [&mut a, &mut b], |s| {
            s[0].frames.len() == 2 && s[1].frames.len() == 2
        });
    }
}

#[test]
fn frames_of_both_lanes_arrive_in_order_after_the_link_is_up() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
    let up = Link::Up {
        incarnation: Incarnation(1),
    };
    assert_eq!((a.links[0], b.links[0]), ((ONE, up), (ZERO, up)));
    let big = vec![9; 3_000_000];
    for round in 0..10u8 {
        a.send(1, Lane::Control, &[round; 100]);
        b.send(0, Lane::Control, &[round; 70_000]);
    }
    a.send(1, Lane::Bulk, &big);
    until("frames", &mut [&mut a, &mut b], |s| {
        s[0].frames.len() == 10 && s[1].frames.len() == 11
    });
    assert!(
        a.frames
            .iter()
            .enumerate()
            .all(|(i, (from, f))| *from == ONE && f[0] == i as u8)
    );
    let control: Vec<u8> = b
        .frames
        .iter()
        .filter(|(_, f)| f.len() == 100)
        .map(|(_, f)| f[0])
        .collect();
    assert_eq!(control, (0..10).collect::<Vec<u8>>());
    assert!(b.frames.iter().any(|(_, frame)| *frame == big));
}

#[test]
fn frames_over_an_emulated_link_arrive_whole_and_in_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    let mut links = quintet_replica::links::Links::default();
    links.other.delay = Duration::from_millis(5);
    links.other.jitter = quintet_replica::links::Jitter::Uniform(Duration::from_millis(5));
    links.other.loss = 200_000;
    let emulator = |id| Emulator::new(&links, ReplicaId(id), Time(0), Duration::ZERO);
    a.tcp.emulate(emulator(0));
    b.tcp.emulate(emulator(1));
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
    let room = a.tcp.room(ReplicaId(1));
    for round in 0..50u8 {
        a.send(1, Lane::Control, &[round; 100]);
    }
    assert!(
        a.tcp.room(ReplicaId(1)) < room,
        "what is held back takes room"
    );
    assert!(b.frames.is_empty());
    until("frames", &mut [&mut a, &mut b], |s| s[1].frames.len() == 50);
    let order: Vec<u8> = b.frames.iter().map(|(_, frame)| frame[0]).collect();
    assert_eq!(order, (0..50).collect::<Vec<u8>>());
    // But for a question about clocks that may be in progress.
    assert!(a.tcp.room(ReplicaId(1)).abs_diff(room) < 100);
}

#[test]
fn long_frame_counts_as_heartbeat_for_limited_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
    // 64 MiB in 27 s.
    let mut links = quintet_replica::links::Links::default();
    links.other.bandwidth = 20_000_000;
    let emulator = Emulator::new(&links, ReplicaId(0), a.now(), Duration::ZERO);
    a.tcp.emulate(emulator);
    let began = a.now();
    a.send(1, Lane::Control, &vec![1; 64 << 20]);
    a.send(1, Lane::Control, b"behind it");
    let mut told = Vec::new();
    while b.frames.len() < 2 {
        for side in [&mut a, &mut b] {
            side.ahead += Duration::from_millis(20);
            side.turn();
        }
        let arriving = b
            .links
            .drain(..)
            .filter(|(_, link)| *link == Link::Arriving);
        told.extend(arriving.map(|_| a.now().since(began)));
    }
    assert_eq!(b.frames[1].1, "behind it");
    assert!(a.now().since(began) > Duration::from_secs(20));
    assert!(told.len() > 100, "{}", told.len());
    let last = told.last().copied().unwrap_or_default();
    assert!(last < ARRIVING_MAX * 2, "{last:?}");
}

#[test]
fn broken_link_is_reset_and_made_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
    let control = b.tcp.links[0].lanes[0].expect("open");
    let now = b.now();
    b.tcp.close(control, "the test wants it", now);
    until("up again", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| s.links.len() == 3)
    });
    for side in [&a, &b] {
        assert_eq!(side.links[1].1, Link::Reset);
        assert!(matches!(side.links[2].1, Link::Up { .. }));
    }
    drop(b);
    until("down", &mut [&mut a], |s| s[0].links.len() == 5);
    assert_eq!([a.links[3].1, a.links[4].1], [Link::Reset, Link::Down]);
}

#[test]
fn mismatches_are_told_to_both_sides_and_no_link_comes_up() {
    type Change = fn(&mut PeerIdentity);
    let cases: [(Change, &str); 3] = [
        (
            |it| it.cluster = ClusterId(0xb),
            "cluster id mismatch: ours",
        ),
        (|it| it.from = ZERO, "duplicate node id"),
        (
            |it| it.protocol = "other".to_owned(),
            "protocol mismatch: ours",
        ),
    ];
    for (change, text) in cases {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut a, mut b) = pair(directory.path(), change);
        until("refused", &mut [&mut a, &mut b], |s| {
            s[0].error(1).contains("refuses this replica")
                && s[1].tcp.counters().handshakes.refused > 0
        });
        assert!(a.error(1).contains(text), "{}", a.error(1));
        assert!(a.links.is_empty() && b.links.is_empty());
        assert_eq!(a.refused, None, "a setting can be corrected");
    }
}

#[test]
fn peer_without_directory_is_stopped_from_either_side() {
    for wiped_id in [0, 1] {
        let directory = tempfile::tempdir().expect("a directory");
        let (mut a, mut b) = pair(directory.path(), |_| {});
        until("up", &mut [&mut a, &mut b], |s| {
            s.iter().all(|s| !s.links.is_empty())
        });
        let names = a.tcp.links.iter().map(|link| link.name.clone());
        let members: Vec<Member> = names.map(|peer| Member { peer }).collect();
        let (lost, mut kept) = if wiped_id == 0 { (a, b) } else { (b, a) };
        let address = lost.address();
        drop(lost);
        let config = config(directory.path(), wiped_id, &members);
        std::fs::remove_dir_all(&config.data).expect("wiped");
        let listener = std::net::TcpListener::bind(address).expect("free again");
        let mut wiped = Side::new(&config, listener, |_, _| {});
        until("refused", &mut [&mut wiped, &mut kept], |s| {
            s[0].refused.is_some()
        });
        let reason = wiped.refused.unwrap_or_default();
        assert!(reason.contains("voted before"), "{reason}");
    }
}

#[test]
fn strangers_and_damaged_frames_cost_their_connection_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
    let address = b.address();
    let mut stranger = std::net::TcpStream::connect(address).expect("connects");
    stranger.write_all(b"*1\r\n$4\r\nPING\r\n").expect("writes");
    until("counted", &mut [&mut b], |s| {
        s[0].tcp.counters().handshakes.malformed == 1
    });
    let mut answer = Vec::new();
    // Closed, or reset because of what was not read.
    let _ = stranger.read_to_end(&mut answer);
    assert!(answer.is_empty(), "a stranger is told nothing: {answer:?}");
    // A byte that no frame can begin with, on an open connection.
    let control = a.tcp.links[1].lanes[0].expect("open");
    let connection = a.tcp.connections[control].as_mut().expect("open");
    connection.outgoing.push_raw(&[0xff; 12]);
    a.tcp.mark_dirty(control);
    until("dropped", &mut [&mut a, &mut b], |s| {
        s[1].tcp.counters().frames_bad == 1
    });
    until("up again", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| s.links.len() == 3)
    });
}

#[test]
fn frames_of_any_lane_take_room_that_is_told_when_all_have_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
    let one = ReplicaId(1);
    a.send(1, Lane::Bulk, &vec![1; QUEUE_MAX]);
    let room = a.tcp.room(one);
    assert_eq!(room, limits::LINK_RESERVE, "for what is short");
    assert!(!limits::link_takes(room, QUEUE_MAX), "but no second one");
    a.send(1, Lane::Control, &vec![1; QUEUE_MAX]);
    assert_eq!(a.tcp.room(one), 0);
    until("frames", &mut [&mut a, &mut b], |s| s[1].frames.len() == 2);
    let told = |(_, link): &&(Peer, Link)| matches!(link, Link::Room(_));
    assert_eq!(a.links.iter().filter(told).count(), 1);
    assert!(a.tcp.room(one) >= QUEUE_MAX - QUEUE_LOW);
    // Neither lane has so much, and both together have.
    for lane in LANES {
        a.send(1, lane, &vec![1; QUEUE_LOW * 3 / 4]);
    }
    until("frames", &mut [&mut a, &mut b], |s| s[1].frames.len() == 4);
    assert_eq!(a.links.iter().filter(told).count(), 2);
}

#[test]
fn full_queue_takes_the_link_down_instead_of_losing_one_frame() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
    let frame = Frame::from(Bytes::from(vec![1; 8 << 20]));
    let peer = Recipients::Replicas([ReplicaId(1)].into_iter().collect());
    for _ in 0..60 {
        let now = a.now();
        a.tcp.send(peer, Lane::Control, &frame, now);
    }
    assert_eq!(a.tcp.counters().queues_full, 1);
    assert_eq!(a.tcp.room(ReplicaId(1)), 0);
    until("told", &mut [&mut a], |s| s[0].links.len() >= 3);
    assert_eq!([a.links[1].1, a.links[2].1], [Link::Reset, Link::Down]);
    until("up again", &mut [&mut a, &mut b], |s| {
        s.iter()
            .all(|s| matches!(s.links.last(), Some((_, Link::Up { .. }))))
    });
    assert!(b.frames.is_empty(), "nothing of a link that is gone");
}

#[test]
fn peers_tell_how_their_clocks_stand_to_each_other() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    let skew = 3_600_000_000_000;
    b.tcp.skew_clock(skew);
    b.tcp.tell_clock(true, 77);
    let known = |side: &Side, of: u16| side.tcp.standing(ReplicaId(of), side.now());
    until("both have measured", &mut [&mut a, &mut b], |s| {
        known(s[0], 1).is_some() && known(s[1], 0).is_some()
    });
    let (ahead, behind) = (known(&a, 1), known(&b, 0));
    let (ahead, behind) = (ahead.expect("measured"), behind.expect("measured"));
    assert!(ahead.offset.abs_diff(skew) <= ahead.bound, "{ahead:?}");
    assert!(behind.offset.abs_diff(-skew) <= behind.bound, "{behind:?}");
    assert_eq!((ahead.disciplined, ahead.error), (true, 77));
    assert!(!behind.disciplined);
    assert!(a.tcp.take_clock_news() && !a.tcp.take_clock_news());
    assert!(
        a.frames.is_empty() && b.frames.is_empty(),
        "none is the node's"
    );
    a.tcp.forget_clocks();
    assert_eq!(known(&a, 1), None);
}

#[test]
fn frontend_links_to_all_members_and_gets_answers_and_clocks() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    let id = FrontendId(77);
    let names = [&a, &b].map(|side| side.address().to_string());
    let mut far = Side::of_frontend(id, &a.tcp, names.to_vec());
    until("linked", &mut [&mut a, &mut b, &mut far], |s| {
        s[2].links.len() == 2 && known_all(s[2])
    });
    for to in [0, 1] {
        far.send(to, Lane::Control, b"request");
    }
    until("requests", &mut [&mut a, &mut b, &mut far], |s| {
        s[..2].iter().all(|s| !s.frames.is_empty())
    });
    assert_eq!(b.frames[0].0, Peer::Frontend(id));
    let now = b.now();
    let reply = Frame::from(Bytes::from_static(b"reply"));
    b.tcp
        .send(Recipients::Frontend(id), Lane::Control, &reply, now);
    until("a reply", &mut [&mut a, &mut b, &mut far], |s| {
        !s[2].frames.is_empty()
    });
    assert_eq!(
        far.frames,
        [(Peer::Replica(ReplicaId(1)), Bytes::from_static(b"reply"))]
    );
    // It is gone: the replicas hear of it.
    drop(far);
    until("down", &mut [&mut a, &mut b], |s| {
        let down = (Peer::Frontend(id), Link::Down);
        s.iter().all(|s| s.links.contains(&down))
    });
}

fn known_all(side: &Side) -> bool {
    (0..2).all(|of| side.tcp.standing(ReplicaId(of), side.now()).is_some())
}

#[test]
fn frontend_without_the_secret_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, b) = pair(directory.path(), |_| {});
    let name = a.address().to_string();
    let other = PeerKey::new(&[6; 32], a.tcp.me.cluster);
    let me = (a.tcp.me.clone(), other);
    let mut far = Side::of_frontend_with(FrontendId(77), me, vec![name]);
    until("refused", &mut [&mut a, &mut far], |s| {
        s[1].error(0).contains("secret")
    });
    assert!(
        a.links
            .iter()
            .all(|(peer, _)| *peer != Peer::Frontend(FrontendId(77)))
    );
    drop(b);
}

#[test]
fn frontend_on_the_bulk_lane_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, b) = pair(directory.path(), |_| {});
    let told = PeerIdentity {
        from: Peer::Frontend(FrontendId(77)),
        to: ReplicaId(0),
        lane: Lane::Bulk,
        ..b.tcp.me.clone()
    };
    let mut frontend = Raw::dial(a.address());
    frontend.prove(&mut a);
    frontend.tell(&told);
    let Step::Refusal(refusal) = frontend.step(&mut a) else {
        panic!("it is not refused");
    };
    assert!(refusal.reason.contains("lane") && !refusal.fatal);
    assert_eq!(a.tcp.counters().handshakes.refused, 1);
    assert!(a.links.is_empty());
    drop(b);
}

#[test]
fn remote_frontend_is_linked_answered_and_told_down() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, b) = pair(directory.path(), |_| {});
    let id = FrontendId(77);
    let peer = Peer::Frontend(id);
    let told = PeerIdentity {
        from: peer,
        to: ReplicaId(0),
        ..b.tcp.me.clone()
    };
    let mut raw = Raw::dial(a.address());
    raw.prove(&mut a);
    raw.tell(&told);
    let mut frontend = raw.stream.try_clone().expect("a second handle");
    let mut out = Outgoing::default();
    let request = Frame::from(Bytes::from_static(b"request"));
    out.push(&frame_header(Lane::Control, Kind::Node, &request), &request);
    out.write(&mut frontend).expect("writes");
    until("a request", &mut [&mut a], |s| !s[0].frames.is_empty());
    let up = Link::Up {
        incarnation: Incarnation(0),
    };
    assert_eq!(a.links, [(peer, up)]);
    assert_eq!(a.frames, [(peer, Bytes::from_static(b"request"))]);
    let reply = Frame::from(Bytes::from_static(b"reply"));
    let now = a.now();
    a.tcp
        .send(Recipients::Frontend(id), Lane::Control, &reply, now);
    a.turn();
    let mut answer = vec![0; 4096];
    let mut filled = 0;
    while !answer[..filled].ends_with(b"reply") {
        a.turn();
        match frontend.read(&mut answer[filled..]) {
            Ok(count) => {
                assert!(count > 0, "it was closed");
                filled += count;
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
    }
    drop((raw, frontend));
    until("down", &mut [&mut a], |s| s[0].links.len() == 2);
    assert_eq!(a.links[1], (peer, Link::Down));
    drop(b);
}

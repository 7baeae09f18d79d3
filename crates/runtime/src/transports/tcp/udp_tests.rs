use super::super::tests::{ONE, Side, ZERO, pair, until};
use super::*;
use crate::transports::emulator::Emulator;
use quintet_replica::{Bytes, FrontendId, Recipients, links::Links};
use std::path::Path;

const MOST: usize = 1_400;

fn way(side: &mut Side, member: usize) -> Option<&mut Way> {
    let index = side.tcp.links[member].lanes[Lane::Control as usize]?;
    side.tcp.connections[index].as_mut()?.way.as_deref_mut()
}

fn is_open(side: &Side, member: u16) -> bool {
    let report = side.tcp.report(ReplicaId(member), side.now());
    report.datagrams
}

/// Two sides that know that datagrams arrive.
fn pair_with_datagrams(root: &Path) -> (Side, Side) {
    let (mut a, mut b) = pair(root, |_| {});
    for side in [&mut a, &mut b] {
        side.tcp.use_datagrams(MOST).expect("a socket");
    }
    heard(&mut a, &mut b);
    (a, b)
}

fn heard(a: &mut Side, b: &mut Side) {
    until("probes are heard", &mut [a, b], |s| {
        is_open(s[0], 1) && is_open(s[1], 0)
    });
}

/// A way from one side to the other that the test has in its hands.
struct Relay {
    socket: std::net::UdpSocket,
    to: SocketAddr,
}

impl Relay {
    /// On the way from `a` to `b`.
    fn between(a: &mut Side, b: &Side) -> Self {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
        socket.set_nonblocking(true).expect("non-blocking");
        let to = b.tcp.datagrams.as_ref().expect("it has one").address;
        let relay = Self { socket, to };
        relay.enter(a);
        relay
    }

    fn enter(&self, a: &mut Side) {
        let address = self.socket.local_addr().expect("bound");
        let far = way(a, 1).and_then(|way| way.far.as_mut());
        far.expect("it takes datagrams").address = address;
    }

    fn leave(&self, a: &mut Side) {
        let far = way(a, 1).and_then(|way| way.far.as_mut());
        far.expect("it takes datagrams").address = self.to;
    }

    /// The datagrams without the probes, which are delivered.
    fn take(&self) -> Vec<Vec<u8>> {
        let mut taken = Vec::new();
        let mut bytes = [0; 2 * MOST];
        while let Ok(length) = self.socket.recv(&mut bytes) {
            let datagram = bytes[..length].to_vec();
            let opened = Opened::read(Bytes::from(datagram.clone())).expect("a datagram");
            if opened.probe {
                self.pass(&datagram);
            } else {
                taken.push(datagram);
            }
        }
        taken
    }

    fn pass(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.to).expect("sent");
    }
}

/// Sends frames of one number each, every one in a datagram of its own.
fn send_one_by_one(a: &mut Side, numbers: std::ops::Range<u8>) {
    for number in numbers {
        a.send(1, Lane::Control, &[number; 40]);
        a.tcp.flush(a.now());
    }
}

fn numbers(side: &Side) -> Vec<u8> {
    side.frames.iter().map(|(_, frame)| frame[0]).collect()
}

#[test]
fn small_frames_share_datagrams_and_others_go_by_the_connection() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair_with_datagrams(directory.path());
    let before = a.tcp.datagram_counters();
    for number in 0..50u8 {
        a.send(1, Lane::Control, &[number; 100]);
    }
    a.tcp.flush(a.now());
    let after = a.tcp.datagram_counters();
    assert_eq!(after.frames_out - before.frames_out, 50);
    // 13 frames of 102 bytes fit beside a header of 40.
    assert_eq!(after.sent - before.sent, 4);
    a.send(1, Lane::Control, &[200; 2_000]);
    a.send(1, Lane::Bulk, &[201; 100]);
    until("frames", &mut [&mut a, &mut b], |s| s[1].frames.len() == 52);
    assert_eq!(a.tcp.datagram_counters().frames_out, after.frames_out);
    assert_eq!(b.tcp.datagram_counters().frames_in, 50);
    assert!(b.frames.iter().all(|(from, _)| *from == ZERO));
    assert_eq!(b.tcp.counters().frames_in, 52);
}

#[test]
fn datagram_does_not_overtake_earlier_frame_by_connection() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair_with_datagrams(directory.path());
    a.send(1, Lane::Control, &[1; 40]);
    a.send(1, Lane::Control, &vec![2; 24 << 20]);
    a.send(1, Lane::Control, &[3; 40]);
    a.send(1, Lane::Control, &vec![4; 24 << 20]);
    a.send(1, Lane::Control, &[5; 40]);
    until("frames", &mut [&mut a, &mut b], |s| s[1].frames.len() == 5);
    assert_eq!(numbers(&b), [1, 2, 3, 4, 5]);
    assert_eq!(b.tcp.datagram_counters().frames_in, 3);
}

#[test]
fn datagrams_wait_no_longer_for_connection_than_there_is_room() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair_with_datagrams(directory.path());
    let index = b.tcp.links[0].lanes[Lane::Control as usize].expect("a connection");
    // By the connection comes nothing: its bytes are not read.
    a.send(1, Lane::Control, &vec![1; 2_000]);
    let count = EARLY_MAX / 1_000 + 10;
    let mut sent = 0;
    let relay = Relay::between(&mut a, &b);
    while sent < count {
        a.send(1, Lane::Control, &[2; 1_000]);
        a.tcp.flush_datagrams();
        sent += 1;
        for datagram in relay.take() {
            let opened = Opened::read(Bytes::from(datagram)).expect("a datagram");
            b.tcp.on_datagram(opened, b.now());
        }
    }
    let way = b.tcp.connections[index]
        .as_ref()
        .and_then(|it| it.way.as_ref());
    let (waiting, bytes) = way
        .map(|it| (it.early.len(), it.early_bytes))
        .expect("a way");
    assert!(bytes <= EARLY_MAX && waiting < count, "{waiting}, {bytes}");
    until("frames", &mut [&mut a, &mut b], |s| {
        s[1].frames.len() == count + 1
    });
}

#[test]
fn damaged_or_reordered_datagrams_harm_no_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair_with_datagrams(directory.path());
    let relay = Relay::between(&mut a, &b);
    send_one_by_one(&mut a, 0..10);
    let mut taken = relay.take();
    assert_eq!(taken.len(), 10);
    // Overtaken: all of them. Then number 2 is lost, 3 comes twice, 5 is cut, 7 damaged.
    taken.reverse();
    let at = |number: usize| 9 - number;
    let twice = taken[at(3)].clone();
    taken[at(5)].truncate(50);
    taken[at(7)][60] ^= 1;
    taken.remove(at(2));
    taken.push(twice);
    for datagram in &taken {
        relay.pass(datagram);
    }
    until("what is left", &mut [&mut a, &mut b], |s| {
        s[1].frames.len() == 7
    });
    assert_eq!(numbers(&b), [9, 8, 6, 4, 3, 1, 0]);
    until("the rest is counted", &mut [&mut a, &mut b], |s| {
        s[1].tcp.datagram_counters().replayed == 1
    });
    assert_eq!(b.tcp.datagram_counters().malformed, 2);
    assert_eq!((a.links.len(), b.links.len()), (1, 1), "the link stays");
    // Three of ten did not arrive; that one came twice makes up for none of them.
    until("the loss is told", &mut [&mut a, &mut b], |s| {
        drop(relay.take());
        s[0].tcp.report(ReplicaId(1), s[0].now()).datagrams_lost == 3
    });
}

#[test]
fn strangers_are_counted_and_neither_heard_nor_answered() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair_with_datagrams(directory.path());
    let stranger = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    stranger.set_nonblocking(true).expect("non-blocking");
    let to = b.tcp.datagrams.as_ref().expect("it has one").address;
    let token = way(&mut b, 0).expect("a way").token;
    let frame = Frame::from(Bytes::from_static(b"let me in"));
    let datagram = |token| {
        let mut filling = Filling::default();
        filling.push(&frame);
        filling.seal(token, 1, 0, Vec::new())
    };
    let all = [
        Vec::new(),
        b"*1\r\n$4\r\nPING\r\n".to_vec(),
        vec![0; 3 * MOST],
        datagram(token ^ 1 << 127),
        datagram(token ^ 1 << 40),
        datagram(token ^ 1),
        datagram(u128::MAX),
        probe(MOST, token ^ 1 << 20, 1),
    ];
    let before = b.tcp.datagram_counters();
    for datagram in &all {
        stranger.send_to(datagram, to).expect("sent");
    }
    until("all counted", &mut [&mut a, &mut b], |s| {
        let now = s[1].tcp.datagram_counters();
        let dropped = now.malformed + now.stale;
        dropped - before.stale == all.len() as u64
    });
    let now = b.tcp.datagram_counters();
    assert_eq!(now.malformed, 3);
    assert!(b.frames.is_empty());
    b.turn();
    let nothing = stranger.recv(&mut [0; 64]).map_err(|error| error.kind());
    assert_eq!(nothing, Err(io::ErrorKind::WouldBlock));
    assert_eq!((a.links.len(), b.links.len()), (1, 1), "the link stays");
}

#[test]
fn datagrams_of_a_link_that_is_gone_are_dropped() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair_with_datagrams(directory.path());
    let relay = Relay::between(&mut a, &b);
    send_one_by_one(&mut a, 0..3);
    let mut late = relay.take();
    assert_eq!(late.len(), 3);
    let earlier = way(&mut b, 0).expect("a way").token;
    let control = b.tcp.links[0].lanes[0].expect("open");
    b.tcp.close(control, "the test wants it", b.now());
    until("up again", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| s.links.len() == 3)
    });
    heard(&mut a, &mut b);
    // Also one that would be this link's if it stood in the same place.
    let token = way(&mut b, 0).expect("a way").token;
    let mut filling = Filling::default();
    filling.push(&Frame::from(Bytes::from_static(b"late")));
    late.push(filling.seal(earlier & !0xffff | token & 0xffff, 1, 0, Vec::new()));
    let before = b.tcp.datagram_counters().stale;
    for datagram in &late {
        relay.pass(datagram);
    }
    until("counted", &mut [&mut a, &mut b], |s| {
        s[1].tcp.datagram_counters().stale == before + 4
    });
    assert!(b.frames.is_empty());
    // The new link has its own.
    heard(&mut a, &mut b);
    send_one_by_one(&mut a, 7..8);
    until("a frame", &mut [&mut a, &mut b], |s| {
        !s[1].frames.is_empty()
    });
    assert_eq!(numbers(&b), [7]);
    assert!(b.tcp.datagram_counters().frames_in == 1);
}

#[test]
fn frames_use_connection_until_datagrams_arrive() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair_with_datagrams(directory.path());
    let relay = Relay::between(&mut a, &b);
    // From now on everything that leaves ends here; `a` does not know yet.
    send_one_by_one(&mut a, 0..1);
    assert!(is_open(&a, 1));
    for _ in 0..100 {
        a.ahead += PROBE_EVERY;
        a.turn();
        b.turn();
    }
    assert!(!is_open(&a, 1), "it is noticed");
    send_one_by_one(&mut a, 1..2);
    until("by TCP", &mut [&mut a, &mut b], |s| s[1].frames.len() == 1);
    assert_eq!(numbers(&b), [1]);
    assert_eq!(b.tcp.datagram_counters().frames_in, 0);
    assert!(is_open(&b, 0), "the other direction is as it was");
    relay.leave(&mut a);
    heard(&mut a, &mut b);
    send_one_by_one(&mut a, 2..3);
    until("by UDP", &mut [&mut a, &mut b], |s| s[1].frames.len() == 2);
    assert_eq!(b.tcp.datagram_counters().frames_in, 1);
    assert_eq!((a.links.len(), b.links.len()), (1, 1), "the link stays");
}

#[test]
fn peer_that_declines_datagrams_gets_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    a.tcp.use_datagrams(MOST).expect("a socket");
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
    for number in 0..10 {
        a.send(1, Lane::Control, &[number; 40]);
        b.send(0, Lane::Control, &[number; 40]);
    }
    until("frames", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| s.frames.len() == 10)
    });
    assert_eq!(a.tcp.datagram_counters().sent, 0);
    assert!(b.frames.iter().all(|(from, _)| *from == ZERO));
    assert!(a.frames.iter().all(|(from, _)| *from == ONE));
}

#[test]
fn no_datagram_is_longer_than_the_other_side_takes() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    a.tcp.use_datagrams(MOST).expect("a socket");
    b.tcp.use_datagrams(600).expect("a socket");
    heard(&mut a, &mut b);
    let before = a.tcp.datagram_counters().frames_out;
    for length in [500, 700, 558, 559] {
        a.send(1, Lane::Control, &vec![1; length]);
    }
    assert_eq!(a.tcp.datagram_counters().frames_out - before, 2);
    until("frames", &mut [&mut a, &mut b], |s| s[1].frames.len() == 4);
    assert_eq!(b.tcp.datagram_counters().frames_in, 2);
    assert_eq!(b.tcp.datagram_counters().malformed, 0);
}

#[test]
fn frontend_asks_and_is_answered_by_datagrams() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair_with_datagrams(directory.path());
    let id = FrontendId(77);
    let names = [&a, &b].map(|side| side.address().to_string());
    let mut far = Side::of_frontend(id, &a.tcp, names.to_vec());
    far.tcp.use_datagrams(MOST).expect("a socket");
    let asked = Frame::from(Bytes::from_static(b"request"));
    let reply = Frame::from(Bytes::from_static(b"reply"));
    until("linked", &mut [&mut a, &mut b, &mut far], |s| {
        let index = s[1].tcp.frontends.get(&id).copied();
        let way = index.and_then(|index| s[1].tcp.connections[index].as_ref()?.way.as_ref());
        is_open(s[2], 0) && is_open(s[2], 1) && way.is_some_and(|way| way.open)
    });
    let both = Recipients::Replicas([ReplicaId(0), ReplicaId(1)].into_iter().collect());
    // Two requests of one turn to each replica.
    let before = far.tcp.datagram_counters();
    for _ in 0..2 {
        far.tcp.send(both, Lane::Control, &asked, far.now());
    }
    far.tcp.flush(far.now());
    let after = far.tcp.datagram_counters();
    assert_eq!(after.frames_out - before.frames_out, 4);
    assert_eq!(after.sent - before.sent, 2);
    until("requests", &mut [&mut a, &mut b, &mut far], |s| {
        s[..2].iter().all(|s| s.frames.len() == 2)
    });
    assert_eq!(b.frames[0].0, Peer::Frontend(id));
    let before = far.tcp.datagram_counters().frames_in;
    b.tcp
        .send(Recipients::Frontend(id), Lane::Control, &reply, b.now());
    until("a reply", &mut [&mut a, &mut b, &mut far], |s| {
        !s[2].frames.is_empty()
    });
    assert_eq!(far.frames, [(ONE, Bytes::from_static(b"reply"))]);
    assert_eq!(far.tcp.datagram_counters().frames_in, before + 1);
}

#[test]
fn emulated_links_lose_datagrams_and_let_them_overtake() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair_with_datagrams(directory.path());
    let mut links = Links::default();
    links.other.delay = Duration::from_millis(2);
    links.other.jitter = quintet_replica::links::Jitter::Uniform(Duration::from_millis(20));
    links.other.loss = 300_000;
    let now = a.now();
    a.tcp
        .emulate(Emulator::new(&links, ReplicaId(0), now, Duration::ZERO));
    for number in 0..200 {
        a.send(1, Lane::Control, &[number; 40]);
    }
    let lost = |side: &Side| side.tcp.emulator.as_ref().map_or(0, |it| it.lost()) as usize;
    assert!((20..180).contains(&lost(&a)), "{}", lost(&a));
    until("what is left", &mut [&mut a, &mut b], |s| {
        s[1].frames.len() + lost(s[0]) == 200
    });
    let found = numbers(&b);
    assert!(!found.is_sorted(), "{found:?}");
    assert_eq!(b.tcp.datagram_counters().frames_in as usize, found.len());
}

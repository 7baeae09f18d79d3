use super::*;
use std::{
    collections::VecDeque,
    net::UdpSocket,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const TOKEN: Token = Token(7);
const PORT: u16 = 7201;

// --- without a network -----------------------------------------------------------------------

/// A wire with two ends, whose frames arrive when they are flushed.
#[derive(Debug)]
struct Wire {
    written: Vec<Vec<u8>>,
    room: usize,
    there: Arc<Mutex<VecDeque<Vec<u8>>>>,
    here: Arc<Mutex<VecDeque<Vec<u8>>>>,
}

impl Card for Wire {
    fn receive(&mut self, read: &mut dyn FnMut(&[u8])) -> bool {
        let frame = self
            .here
            .lock()
            .expect("no test panics with it")
            .pop_front();
        frame.map(|frame| read(&frame)).is_some()
    }

    fn send(&mut self, length: usize, write: &mut dyn FnMut(&mut [u8])) -> bool {
        if self.written.len() == self.room {
            return false;
        }
        // Old contents of the memory must not show.
        let mut frame = vec![0xaa; length];
        write(&mut frame);
        self.written.push(frame);
        true
    }

    fn flush(&mut self) {
        let mut there = self.there.lock().expect("no test panics with it");
        there.extend(self.written.drain(..));
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        unreachable!("no thread sleeps on it")
    }
}

fn end(number: u8) -> End {
    End {
        mac: [2, 0, 0, 0, 0, number],
        at: SocketAddrV4::new([10, 0, 0, number].into(), PORT),
    }
}

/// Two ends that know each other's cards, with room for this many frames between flushes.
fn wired(room: usize) -> (Bypass, Bypass) {
    let ways: [Arc<Mutex<VecDeque<Vec<u8>>>>; 2] = Default::default();
    let side = |number: u8, here: usize| {
        let wire = Wire {
            written: Vec::new(),
            room,
            there: ways[1 - here].clone(),
            here: ways[here].clone(),
        };
        let mut neighbours = Neighbours::new("none".to_owned());
        let other = end(3 - number);
        neighbours.know(*other.at.ip(), Some(other.mac));
        neighbours.know([10, 0, 0, 9].into(), None);
        Bypass::on(Box::new(wire), end(number), neighbours)
    };
    (side(1, 0), side(2, 1))
}

fn received(side: &mut Bypass) -> Option<Result<Vec<u8>, Malformed>> {
    let mut buffer = BytesMut::new();
    let result = side.receive(&mut buffer, 100)?;
    Some(result.map(|()| buffer.to_vec()))
}

#[test]
fn flushed_datagrams_arrive_and_others_go_to_socket() {
    let (mut a, mut b) = wired(2);
    let to = SocketAddr::from(end(2).at);
    assert!(a.send(to, b"first") && a.send(to, b"second"));
    assert!(!a.send(to, b"third"), "no room");
    assert_eq!(received(&mut b), None);
    a.flush();
    assert_eq!(received(&mut b), Some(Ok(b"first".to_vec())));
    assert_eq!(received(&mut b), Some(Ok(b"second".to_vec())));
    assert_eq!(received(&mut b), None);
    assert!(!a.send(SocketAddr::from(([10, 0, 0, 9], PORT)), b"to no peer"));
    assert!(!a.send("[2001:db8::1]:7201".parse().expect("an address"), b"IPv6"));
    assert!(!a.send(to, &vec![0; DATAGRAM_MAX + 1]));
    // Cut off a byte behind what may be, so that it is noticed.
    assert!(a.send(to, &[7; 300]));
    a.flush();
    assert_eq!(received(&mut b), Some(Ok(vec![7; 100])));
    // Another port's.
    assert!(a.send(SocketAddr::from(([10, 0, 0, 2], PORT + 1)), b"astray"));
    a.flush();
    assert_eq!(received(&mut b), Some(Err(Malformed)));
}

#[test]
fn address_that_no_card_has_is_refused_with_what_to_do() {
    let poll = mio::Poll::new().expect("a poll");
    for address in [
        "0.0.0.0:7201",
        "127.0.0.1:7201",
        "[::1]:7201",
        "192.0.2.77:7201",
    ] {
        let address = address.parse().expect("an address");
        let refused = Bypass::open(address, poll.registry(), TOKEN).expect_err("no card");
        let text = refused.to_string();
        assert!(
            text.contains("'af-xdp'") && text.contains("peer_listen"),
            "{text}"
        );
    }
}

// --- two networks with a cable between them --------------------------------------------------

/// Two network namespaces joined by a pair of veth, gone when this goes.
struct Networks([String; 2]);

impl Networks {
    fn make(test: &str) -> Result<Self, String> {
        let id = std::process::id();
        let made = Self(["a", "b"].map(|side| format!("quintet-{id}-{test}-{side}")));
        let [a, b] = &made.0;
        for line in [
            format!("netns add {a}"),
            format!("netns add {b}"),
            format!("-n {a} link add card type veth peer name card netns {b}"),
            format!("-n {a} address add 10.210.0.1/24 dev card"),
            format!("-n {b} address add 10.210.0.2/24 dev card"),
            format!("-n {a} link set card up"),
            format!("-n {b} link set card up"),
        ] {
            let done = Command::new("ip").args(line.split(' ')).output();
            let done = done.map_err(|error| format!("ip {line}: {error}"))?;
            if !done.status.success() {
                let error = String::from_utf8_lossy(&done.stderr).into_owned();
                return Err(format!("ip {line}: {}", error.trim()));
            }
        }
        Ok(made)
    }

    /// Descriptors that this thread opens from now on are in one of the two.
    fn enter(&self, side: usize) {
        use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
        let path = format!("/var/run/netns/{}", self.0[side]);
        let file = std::fs::File::open(path).expect("it was made");
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), kind).expect("it may");
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

/// One end: the bypass of a port, the socket of that port, and one of another port.
struct Side {
    poll: mio::Poll,
    bypass: Option<Bypass>,
    socket: UdpSocket,
    plain: UdpSocket,
}

impl Side {
    fn open(address: [u8; 4]) -> io::Result<Self> {
        let poll = mio::Poll::new()?;
        let socket = UdpSocket::bind((Ipv4Addr::from(address), PORT))?;
        let plain = UdpSocket::bind((Ipv4Addr::from(address), PORT + 1))?;
        for socket in [&socket, &plain] {
            socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        }
        let bypass = Bypass::open(socket.local_addr()?, poll.registry(), TOKEN)?;
        Ok(Self {
            poll,
            bypass: Some(bypass),
            socket,
            plain,
        })
    }

    fn bypass(&mut self) -> &mut Bypass {
        self.bypass.as_mut().expect("open")
    }

    /// Sleeps until a datagram has come past the sockets.
    fn await_datagram(&mut self) -> Vec<u8> {
        let mut events = mio::Events::with_capacity(4);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            if let Some(datagram) = received(self.bypass()) {
                return datagram.expect("whole");
            }
            let wait = Some(Duration::from_secs(1));
            self.poll.poll(&mut events, wait).expect("it may");
        }
        panic!("nothing comes past the sockets");
    }
}

fn heard(socket: &UdpSocket) -> Vec<u8> {
    let mut bytes = [0; 64];
    let length = socket.recv(&mut bytes).expect("it arrives");
    bytes[..length].to_vec()
}

/// Runs a test on a thread of its own, whose network it may change. Says why when it cannot run.
fn between_networks(test: &str, play: impl FnOnce(&Networks, Side, Side) + Send) {
    let networks = match Networks::make(test) {
        Ok(networks) => networks,
        Err(reason) => return eprintln!("skipped: no networks to be had: {reason}"),
    };
    let play = || {
        networks.enter(0);
        let a = Side::open([10, 210, 0, 1]);
        networks.enter(1);
        let b = Side::open([10, 210, 0, 2]);
        match (a, b) {
            (Ok(a), Ok(b)) => play(&networks, a, b),
            (Err(reason), _) | (_, Err(reason)) => {
                // A kernel without it, or a process without rights; anything else is a mistake.
                let kind = reason.kind();
                let may = [io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported];
                let code = reason.to_string().contains("os error 97");
                assert!(may.contains(&kind) || code, "{reason}");
                eprintln!("skipped: {reason}");
            }
        }
    };
    let played = std::thread::scope(|scope| scope.spawn(play).join());
    played.expect("the test passes");
}

/// Both sides ask for each other's card, as TCP connections make the kernel do.
fn meet(networks: &Networks, a: &mut Side, b: &mut Side) {
    let (at, to) = (&a.plain, b.plain.local_addr().expect("bound"));
    at.send_to(b"another port", to).expect("sent");
    assert_eq!(heard(&b.plain), b"another port", "all else is the kernel's");
    b.plain
        .send_to(b"back", at.local_addr().expect("bound"))
        .expect("sent");
    assert_eq!(heard(&a.plain), b"back");
    for (side, sender, to) in [(0, &mut *a, 2), (1, b, 1)] {
        networks.enter(side);
        let ip = [10, 210, 0, to].into();
        assert!(
            sender.bypass().neighbours.find(ip).is_some(),
            "the kernel knows it"
        );
    }
}

#[test]
fn datagrams_go_past_the_kernels_sockets_and_all_else_to_them() {
    between_networks("pass", |networks, mut a, mut b| {
        let (to_a, to_b) = (a.socket.local_addr(), b.socket.local_addr());
        let (to_a, to_b) = (to_a.expect("bound"), to_b.expect("bound"));
        assert!(
            !a.bypass().send(to_b, b"too soon"),
            "the owner of the card is unknown"
        );
        a.bypass().look_again();
        meet(networks, &mut a, &mut b);
        // More at once than the kernel sends when it is asked once.
        for number in 0..200u8 {
            assert!(a.bypass().send(to_b, &[number; 60]));
        }
        a.bypass().flush();
        for number in 0..200u8 {
            assert_eq!(b.await_datagram(), [number; 60]);
        }
        assert!(b.bypass().send(to_a, b"answer"));
        b.bypass().flush();
        assert_eq!(a.await_datagram(), b"answer");
        // Packets of a socket come this way, too, though veth leaves their sum out.
        a.socket.send_to(b"from a socket", to_b).expect("sent");
        assert_eq!(b.await_datagram(), b"from a socket");
        let again = Bypass::open(to_b, b.poll.registry(), Token(9)).expect_err("taken");
        assert!(again.to_string().contains("XDP program already"), "{again}");
        // When it goes everything is as it was.
        b.bypass = None;
        assert!(a.bypass().send(to_b, b"to a socket"));
        a.bypass().flush();
        assert_eq!(heard(&b.socket), b"to a socket");
    });
}

/// Frames are taken back however many there have been.
#[test]
fn more_datagrams_than_there_is_memory_for_go_through_in_turn() {
    between_networks("many", |networks, mut a, mut b| {
        let to_b = b.socket.local_addr().expect("bound");
        meet(networks, &mut a, &mut b);
        for round in 0..400u32 {
            for number in 0..32u32 {
                let datagram = (round * 32 + number).to_le_bytes();
                assert!(a.bypass().send(to_b, &datagram), "round {round}");
            }
            a.bypass().flush();
            for number in 0..32u32 {
                assert_eq!(b.await_datagram(), (round * 32 + number).to_le_bytes());
            }
        }
    });
}

/// Prints what a round trip takes on either way; nothing is asserted about it.
#[test]
fn round_trips_are_measured() {
    const ROUNDS: u32 = 20_000;
    between_networks("time", |networks, mut a, mut b| {
        meet(networks, &mut a, &mut b);
        let (to_a, to_b) = (a.socket.local_addr(), b.socket.local_addr());
        let (to_a, to_b) = (to_a.expect("bound"), to_b.expect("bound"));
        let pass = |from: &mut Side, to: &mut Side, at: SocketAddr| {
            assert!(from.bypass().send(at, &[7; 100]));
            from.bypass().flush();
            let begun = Instant::now();
            while received(to.bypass()).is_none() {
                assert!(begun.elapsed() < Duration::from_secs(10), "nothing comes");
            }
        };
        for lap in 0..3 {
            let begun = Instant::now();
            for _ in 0..ROUNDS {
                pass(&mut a, &mut b, to_b);
                pass(&mut b, &mut a, to_a);
            }
            let bypassed = begun.elapsed() / ROUNDS;
            let begun = Instant::now();
            let mut bytes = [0; 200];
            for _ in 0..ROUNDS {
                // By the ports that no program takes.
                let (near, far) = (&a.plain, &b.plain);
                near.send_to(&[7; 100], far.local_addr().expect("bound"))
                    .expect("sent");
                let (_, from) = far.recv_from(&mut bytes).expect("it comes");
                far.send_to(&[7; 100], from).expect("sent");
                near.recv_from(&mut bytes).expect("it comes");
            }
            let sockets = begun.elapsed() / ROUNDS;
            println!(
                "lap {lap}: round trip of 100 bytes: AF_XDP {bypassed:?}, sockets {sockets:?}"
            );
        }
    });
}

use super::super::tests::{Raw, SECRET, Side, config, listeners, pair, pair_with, until};
use super::*;
use crate::transports::handshake::PeerKey;
use quintet_replica::{Boot, ClusterId};
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Instant,
};

/// A side that dials, and the address of the member that it dials, where the test listens.
fn dialler(root: &std::path::Path) -> (Side, std::net::TcpListener) {
    let (mut listeners, members) = listeners();
    let second = listeners.pop().expect("two");
    let first = listeners.pop().expect("two");
    second.set_nonblocking(true).expect("non-blocking");
    (
        Side::new(&config(root, 0, &members), first, |_, _| {}),
        second,
    )
}

/// The connection that a side dials next.
fn accepted(side: &mut Side, listener: &std::net::TcpListener) -> TcpStream {
    let begun = Instant::now();
    loop {
        side.turn();
        match listener.accept() {
            Ok((stream, _)) => return stream,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "no side dials");
    }
}

fn turns(side: &mut Side, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        side.turn();
    }
}

fn fatal() -> Refusal {
    Refusal {
        fatal: true,
        reason: "stop".to_owned(),
    }
}

#[test]
fn stranger_at_a_members_address_stops_no_replica() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, listener) = dialler(directory.path());
    // It answers with another secret, and sends what that makes a proven refusal.
    let mut stream = accepted(&mut a, &listener);
    let key = PeerKey::new(&[6; 32], ClusterId(0xa));
    let (mut fake, challenge) = Handshake::initiate(key.clone(), [1; 32]);
    let mut other = Handshake::accept(key, [2; 32]);
    let next = |side: &mut Handshake, bytes: &[u8]| match side.advance(bytes) {
        Ok(Some((Step::Send(bytes) | Step::Proven(bytes), _))) => bytes,
        other => panic!("{other:?}"),
    };
    let answer = next(&mut other, &challenge);
    let proof = next(&mut fake, &answer);
    next(&mut other, &proof);
    let refusal = other.refusal(&fatal()).expect("proven to itself");
    stream.write_all(&answer).expect("writes");
    stream.write_all(&refusal).expect("writes");
    until("refused", &mut [&mut a], |s| {
        s[0].tcp.counters().handshakes.proof > 0
    });
    assert!(a.error(1).contains("secret"), "{}", a.error(1));
    // Without any answer, too, on the next attempt; nothing is believed of it.
    drop(accepted(&mut a, &listener));
    let mut stream = accepted(&mut a, &listener);
    stream.write_all(&refusal).expect("writes");
    until("refused", &mut [&mut a], |s| {
        s[0].tcp.counters().handshakes.malformed > 0
    });
    assert_eq!(a.refused, None);
    assert!(a.links.is_empty());
}

#[test]
fn fatal_refusal_of_a_proven_member_stops_the_replica() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, listener) = dialler(directory.path());
    let mut peer = Raw::accept_with(accepted(&mut a, &listener), &SECRET);
    peer.prove(&mut a);
    peer.refuse(&fatal());
    until("told", &mut [&mut a], |s| s[0].refused.is_some());
    assert_eq!(a.refused.as_deref(), Some("stop"));
}

#[test]
fn recorded_session_replayed_byte_by_byte_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, listener) = dialler(directory.path());
    // A recorder between the two keeps what the dialler sends to the true member.
    let members: Vec<crate::Member> = a
        .tcp
        .links
        .iter()
        .map(|link| crate::Member {
            peer: link.name.clone(),
        })
        .collect();
    let hidden = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let mut b = Side::new(&config(directory.path(), 1, &members), hidden, |_, _| {});
    let mut pipes = Vec::new();
    let begun = Instant::now();
    while a.links.is_empty() || b.links.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(20), "no link");
        a.turn();
        b.turn();
        if let Ok((near, _)) = listener.accept() {
            let far = TcpStream::connect(b.address()).expect("connects");
            for stream in [&near, &far] {
                stream.set_nonblocking(true).expect("non-blocking");
            }
            pipes.push((near, far, Vec::new()));
        }
        for (near, far, recorded) in &mut pipes {
            let mut bytes = [0; 4096];
            if let Ok(count) = near.read(&mut bytes) {
                recorded.extend_from_slice(&bytes[..count]);
                far.write_all(&bytes[..count]).expect("writes");
            }
            if let Ok(count) = far.read(&mut bytes) {
                near.write_all(&bytes[..count]).expect("writes");
            }
        }
    }
    let known = |b: &Side| {
        let data = b.tcp.data().expect("it has a directory");
        data.lock().expect("no panic").finish_writing();
        std::fs::read(directory.path().join("r1/peers")).expect("known")
    };
    let peers = known(&b);
    let failed = b.tcp.counters().handshakes.proof;
    for (_, _, recorded) in &pipes {
        assert!(recorded.len() > 100, "a whole session");
        let mut replay = TcpStream::connect(b.address()).expect("connects");
        for byte in recorded {
            let _ = replay.write_all(&[*byte]);
        }
        turns(&mut b, Duration::from_millis(50));
    }
    until("refused", &mut [&mut b], |s| {
        s[0].tcp.counters().handshakes.proof == failed + 2
    });
    assert_eq!(b.links.len(), 1, "the true link stays: {:?}", b.links);
    assert_eq!(peers, known(&b), "nothing is written for a stranger");
}

#[test]
fn identity_from_the_far_future_locks_no_peer_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    for (boot, session, text) in [
        (u64::MAX, u64::MAX, "number of its link"),
        (1, u64::MAX, "number of its link"),
        (1 << 30, 1 << 62 | 1, "too far ahead"),
    ] {
        let mut raw = Raw::dial(b.address());
        raw.prove(&mut b);
        raw.tell(&PeerIdentity {
            to: ReplicaId(1),
            session,
            boot: Boot(boot),
            ..a.tcp.me.clone()
        });
        let Step::Refusal(refusal) = raw.step(&mut b) else {
            panic!("it is believed");
        };
        assert!(refusal.reason.contains(text), "{}", refusal.reason);
        assert!(!refusal.fatal);
    }
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
}

#[test]
fn member_is_let_in_past_idle_connections() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair(directory.path(), |_| {});
    let dial = |b: &Side| TcpStream::connect(b.address()).expect("connects");
    let mut idle: Vec<_> = (0..100).map(|_| dial(&b)).collect();
    // Half a handshake, and one byte of one.
    for stream in idle.iter_mut().skip(50) {
        stream.write_all(b"Q").expect("writes");
    }
    for _ in 0..20 {
        b.turn();
    }
    let begun = Instant::now();
    until("up", &mut [&mut a, &mut b], |s| {
        s.iter().all(|s| !s.links.is_empty())
    });
    assert!(begun.elapsed() < UNPROVEN_MAX, "it need not wait for them");
    assert!(b.tcp.counters().handshakes.displaced > 0);
    let open = |b: &Side| b.tcp.connections.iter().flatten().count();
    assert!(
        open(&b) <= UNPROVEN_OF_SOURCE_MAX + 2 * 2 + 2,
        "{}",
        open(&b)
    );
    // After a while they are gone, and the link is not.
    b.ahead = UNPROVEN_MAX;
    until("closed", &mut [&mut b], |s| open(s[0]) == 2);
    assert!(b.tcp.counters().handshakes.expired > 0);
    assert_eq!((a.links.len(), b.links.len()), (1, 1));
}

#[test]
fn slow_handshake_is_closed_in_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let (_a, mut b) = pair(directory.path(), |_| {});
    let mut slow = Raw::dial(b.address());
    until("there", &mut [&mut b], |s| {
        s[0].tcp.connections.iter().flatten().count() == 1
    });
    b.ahead = UNPROVEN_MAX;
    until("expired", &mut [&mut b], |s| {
        s[0].tcp.counters().handshakes.expired == 1
    });
    assert!(slow.is_closed());
}

#[test]
fn wrong_secret_is_retried_at_growing_intervals() {
    let directory = tempfile::tempdir().expect("a directory");
    let (mut a, mut b) = pair_with(directory.path(), |_, key| {
        *key = PeerKey::new(&[6; 32], ClusterId(0xa));
    });
    let mut failed = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        a.turn();
        b.turn();
        let now = a.tcp.links[1].refusals;
        if failed.len() < now as usize {
            failed.push(begun.elapsed());
        }
    }
    assert!(failed.len() <= 3, "{failed:?}");
    assert!(
        a.error(1).contains("'secret' must be the same"),
        "{}",
        a.error(1)
    );
    assert_eq!(a.tcp.complaints.0[&Some(1)].len(), 1);
    assert!(b.tcp.counters().handshakes.proof > 0);
    assert!(a.links.is_empty() && b.links.is_empty());
    let waits: Vec<_> = (0..6)
        .map(|attempts| refused_backoff(attempts).as_secs())
        .collect();
    assert_eq!(waits, [1, 1, 2, 4, 8, 8]);
}

#[test]
fn same_reason_is_logged_once_a_minute_with_a_count() {
    let mut complaints = Complaints::default();
    let at = |seconds: u64| Time(0) + Duration::from_secs(seconds);
    assert_eq!(complaints.admit(Some(1), "no", at(1)), Some(0));
    for second in 2..61 {
        assert_eq!(complaints.admit(Some(1), "no", at(second)), None);
    }
    assert_eq!(complaints.admit(Some(1), "another", at(30)), Some(0));
    assert_eq!(complaints.admit(Some(2), "no", at(30)), Some(0));
    assert_eq!(complaints.admit(Some(1), "no", at(61)), Some(59));
    // However many reasons a stranger thinks of.
    let logged =
        (0..1000).filter(|index| complaints.admit(None, &index.to_string(), at(70)).is_some());
    assert_eq!(logged.count(), REASONS_MAX);
    complaints.clear(1);
    assert_eq!(complaints.admit(Some(1), "no", at(62)), Some(0));
}

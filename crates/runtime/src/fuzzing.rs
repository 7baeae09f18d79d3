//! The parts that outsiders' bytes meet first, for fuzzing: they are otherwise private to the
//! runtime.
//!
//! ```text
//!   bytes ──► handshake ──► frames
//!         ├─► datagram ──► frames
//!         ├─► packet ──► datagram (with AF_XDP)
//!         ├─► memory that a peer shares
//!         └─► files of a data directory
//! ```

use crate::{
    Config, Member, StartError,
    data::Data,
    terms::first_epoch,
    transports::{
        datagrams::{Filling, HEADER, Opened, checksum},
        handshake::{Handshake, PeerIdentity, PeerKey, Refusal, Step},
    },
};
use quintet_replica::{
    Boot, Bytes, ClusterId, Entry, EpochNumber, Frame, Incarnation, Lane, Peer, ReplicaId,
    StateMachine, checksum as crc,
};
use std::path::Path;

/// Takes a datagram apart; the frames of one that is whole, packed again, come out as the same.
/// Bytes are tried as they are, and with the checksum that they should have.
pub fn datagram(bytes: &[u8]) {
    let mut repaired = bytes.to_vec();
    if repaired.len() >= HEADER {
        let sum = checksum(&repaired);
        repaired[4..8].copy_from_slice(&sum.to_le_bytes());
    }
    for bytes in [bytes, &repaired] {
        let Ok(opened) = Opened::read(Bytes::copy_from_slice(bytes)) else {
            continue;
        };
        let (token, number, behind) = (opened.token, opened.number, opened.behind);
        let frames: Vec<Bytes> = opened.collect();
        let mut filling = Filling::default();
        for frame in &frames {
            assert!(filling.has_room(bytes.len().max(HEADER), frame.len()));
            filling.push(&Frame::from(frame.clone()));
        }
        let again = filling.seal(token, number, behind, Vec::new());
        assert!(
            again.len() <= bytes.len(),
            "no more comes out than is there"
        );
        let again = Opened::read(again.into()).expect("what was packed is whole");
        assert!(again.eq(frames));
    }
}

/// A good datagram, to begin from.
#[must_use]
pub fn datagram_sample() -> Vec<u8> {
    let mut filling = Filling::default();
    for length in [1, 40, 300] {
        filling.push(&Frame::from(Bytes::from(vec![length as u8; length])));
    }
    filling.seal(9, 1, 3, Vec::new())
}

/// Takes a frame of Ethernet apart that may hold a datagram.
#[cfg(feature = "af-xdp")]
pub fn packet(bytes: &[u8]) {
    crate::transports::af_xdp::fuzz_packet(bytes);
}

/// A good frame of Ethernet, to begin from.
#[cfg(feature = "af-xdp")]
#[must_use]
pub fn packet_sample() -> Vec<u8> {
    crate::transports::af_xdp::fuzz_packet_sample()
}

/// The secret of both sides of a handshake in these targets.
const SECRET: [u8; 32] = [7; 32];

fn fuzz_identity() -> PeerIdentity {
    PeerIdentity {
        cluster: ClusterId(1),
        epoch: EpochNumber(1),
        groups: 1,
        members: 3,
        protocol: "multipaxos".to_owned(),
        from: Peer::Replica(ReplicaId(0)),
        to: ReplicaId(1),
        incarnation: Incarnation(1),
        boot: Boot(1),
        directory: 5,
        session: 1 << 32,
        lane: Lane::Control,
        redis: "127.0.0.1:7001".to_owned(),
        address: String::new(),
        descriptor: Bytes::from_static(b"options"),
    }
}

/// A stranger's bytes, at a handshake in each of its states. The first byte tells the side and how
/// far it has come with a true peer; the rest are the stranger's. He proves nothing, and once the
/// true peer is proven no identity or refusal of his is believed.
///
/// # Panics
/// When one is.
pub fn handshake(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else {
        return;
    };
    let key = PeerKey::new(&SECRET, ClusterId(1));
    let (mut initiator, challenge) = Handshake::initiate(key.clone(), [1; 32]);
    let mut acceptor = Handshake::accept(key, [2; 32]);
    let send = |side: &mut Handshake, bytes: &[u8]| match side.advance(bytes) {
        Ok(Some((Step::Send(bytes) | Step::Proven(bytes), _))) => bytes,
        other => panic!("a true peer's packet: {other:?}"),
    };
    let steps = choice / 2 % 4;
    if steps > 0 {
        let answer = send(&mut acceptor, &challenge);
        if steps > 1 {
            let proof = send(&mut initiator, &answer);
            if steps > 2 {
                send(&mut acceptor, &proof);
            }
        }
    }
    let side = match choice % 2 {
        0 => &mut initiator,
        _ => &mut acceptor,
    };
    let proven = side.is_proven();
    let mut rest = bytes;
    while let Ok(Some((step, length))) = side.advance(rest) {
        assert!(matches!(step, Step::Send(_)), "a stranger is believed");
        rest = &rest[length..];
    }
    assert_eq!(side.is_proven(), proven, "a stranger has proved himself");
}

/// Packets of true peers with the same nonces, before each state of each side, and that of a proven
/// one: with another key, so that none of them is right.
#[must_use]
pub fn handshake_samples() -> Vec<Vec<u8>> {
    let key = PeerKey::new(&[8; 32], ClusterId(1));
    let (mut initiator, challenge) = Handshake::initiate(key.clone(), [1; 32]);
    let mut acceptor = Handshake::accept(key, [2; 32]);
    let send = |side: &mut Handshake, bytes: &[u8]| match side.advance(bytes) {
        Ok(Some((Step::Send(bytes) | Step::Proven(bytes), _))) => bytes,
        _ => Vec::new(),
    };
    let answer = send(&mut acceptor, &challenge);
    let proof = send(&mut initiator, &answer);
    send(&mut acceptor, &proof);
    let refusal = Refusal {
        fatal: true,
        reason: "stop".to_owned(),
    };
    let identity = initiator.identity(&fuzz_identity()).unwrap_or_default();
    let refusal = acceptor.refusal(&refusal).unwrap_or_default();
    let of = |choice: u8, bytes: &[u8]| [&[choice], bytes].concat();
    vec![
        of(1, &challenge),
        of(0, &answer),
        of(3, &proof),
        of(7, &identity),
        of(4, &refusal),
        of(7, &Handshake::denied()),
    ]
}

/// A writer of shared memory that has lost its way, or was stopped in the middle of something: the
/// bytes say what stands in the words and when the other ends look. A reader and a writer beside it
/// accept valid words, and report an error for everything else.
pub fn memory(bytes: &[u8]) {
    crate::transports::fuzz_memory::run(bytes);
}

/// Scripts to begin from: what is written is read.
#[must_use]
pub fn memory_samples() -> Vec<Vec<u8>> {
    crate::transports::fuzz_memory::samples()
}

/// A data directory in which one of these files holds these bytes: the first byte says which, and
/// whether they get the checksum that they should have. It opens, or is refused with a reason.
/// `place` is an empty directory.
pub fn directory(place: &Path, entry: &Entry, machine: &dyn StateMachine, bytes: &[u8]) {
    const FILES: [&str; 6] = [
        "identity",
        "identity-2",
        "peers",
        "epoch",
        "epoch-2",
        "repair",
    ];
    let config = of_one(place);
    start(&config, entry, machine).expect("an empty place");
    let Some((which, bytes)) = bytes.split_first() else {
        return;
    };
    let sealed = (bytes.split(|byte| *byte == b'\n').next())
        .filter(|_| which / 12 % 2 == 1)
        .map(|body| [body, format!("\ncrc32c {:08x}\n", crc(body)).as_bytes()].concat());
    let bytes = sealed.as_deref().unwrap_or(bytes);
    // One bad copy of two is repaired, both are refused: so both are tried.
    let at = usize::from(which % 12);
    for file in &FILES[at % 6..=(at % 6 + at / 6).min(5)] {
        if std::fs::write(config.data.join(file), bytes).is_err() {
            return;
        }
    }
    match start(&config, entry, machine) {
        Ok(()) => start(&config, entry, machine).expect("what opened once opens again"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn of_one(place: &Path) -> Config {
    let members = vec![Member {
        peer: "127.0.0.1:1".to_owned(),
    }];
    Config::new(ClusterId(5), ReplicaId(0), members, place.join("data"))
}

/// The first steps of a replica in its directory.
fn start(config: &Config, entry: &Entry, machine: &dyn StateMachine) -> Result<(), StartError> {
    let mut data = Data::open(config)?;
    data.agree(first_epoch(config, entry, machine), None)
        .map(drop)
}

/// The files of a directory that is in order, made in an empty one.
#[must_use]
pub fn directory_samples(place: &Path, entry: &Entry, machine: &dyn StateMachine) -> Vec<Vec<u8>> {
    let mut samples = Vec::new();
    let config = of_one(place);
    drop(start(&config, entry, machine));
    for (number, file) in ["identity", "identity-2", "peers", "epoch", "epoch-2"]
        .into_iter()
        .enumerate()
    {
        if let Ok(bytes) = std::fs::read(config.data.join(file)) {
            samples.push([&[number as u8][..], &bytes].concat());
            samples.push([&[number as u8 + 6][..], &bytes].concat());
            samples.push([&[number as u8 + 12][..], &bytes].concat());
            samples.push([&[number as u8 + 18][..], &bytes].concat());
        }
    }
    samples
}

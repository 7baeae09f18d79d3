//! What outsiders' bytes meet first, for fuzzing: parts that are otherwise private to the runtime.
//!
//! ```text
//!   bytes ──► greeting ──► frames
//!         ├─► datagram ──► frames
//!         └─► packet ──► datagram (with AF_XDP)
//! ```

use crate::transports::{
    datagrams::{Filling, HEADER, Opened, checksum},
    hello::Greeting,
};
use quintet_replica::{Bytes, Frame};

const CLUSTER: u64 = 7;

/// Takes a datagram apart; the frames of one that is whole, packed again, come out as the same.
/// Bytes are tried as they are, and with the checksum that they should have.
pub fn datagram(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    if mended.len() >= HEADER {
        let sum = checksum(&mended);
        mended[4..8].copy_from_slice(&sum.to_le_bytes());
    }
    for bytes in [bytes, &mended] {
        let Ok(opened) = Opened::read(Bytes::copy_from_slice(bytes), CLUSTER) else {
            continue;
        };
        let (token, number) = (opened.token, opened.number);
        let frames: Vec<Bytes> = opened.collect();
        let mut filling = Filling::default();
        for frame in &frames {
            assert!(filling.has_room(bytes.len().max(HEADER), frame.len()));
            filling.push(&Frame::from(frame.clone()));
        }
        let again = filling.seal(CLUSTER, token, number, Vec::new());
        assert!(
            again.len() <= bytes.len(),
            "no more comes out than is there"
        );
        let again = Opened::read(again.into(), CLUSTER).expect("what was packed is whole");
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
    filling.seal(CLUSTER, 9, 1, Vec::new())
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

/// Decodes a peer's first bytes; what can be read must be written and read again as the same.
pub fn greeting(bytes: &[u8]) {
    if let Ok(Some((greeting, length))) = Greeting::decode(bytes) {
        assert!(length <= bytes.len(), "no more is taken than is there");
        let again = greeting.encode();
        assert!(matches!(Greeting::decode(&again), Ok(Some((same, _))) if same == greeting));
    }
}

/// A good greeting, to begin from.
#[must_use]
pub fn greeting_sample() -> Vec<u8> {
    use crate::transports::hello::Refusal;
    Greeting::Refusal(Refusal {
        fatal: true,
        reason: "cluster id mismatch".to_owned(),
    })
    .encode()
}

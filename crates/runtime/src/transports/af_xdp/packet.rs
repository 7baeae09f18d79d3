//! Datagrams in frames of Ethernet, and out of them again.
//!
//! ```text
//!   0             12     14            34                42
//!   | to, from MAC | type | IPv4, no options | UDP ports, length, sum | datagram | padding
//! ```
//!
//! Incoming packets may come from any sender: every length, address, port and sum is checked. RFC
//! 791 and 768 say what they mean, RFC 1071 how the sums are made.

use std::net::{Ipv4Addr, SocketAddrV4};

/// The length of the headers before a datagram.
pub(super) const HEADERS: usize = UDP + 8;
const IP: usize = 14;
const UDP: usize = IP + 20;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
/// Version 4, five words of header.
const VERSION: u8 = 0x45;
const PROTOCOL_UDP: u8 = 17;
const HOPS: u8 = 64;
/// Neither cut into fragments nor one.
const DO_NOT_FRAGMENT: u16 = 0x4000;

/// The address of a network card.
pub(super) type Mac = [u8; 6];

/// One end of a datagram's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub mac: Mac,
    pub at: SocketAddrV4,
}

/// Adds the bytes as words of 16 bits, the first byte the higher one, to a sum without carries.
fn sum(bytes: &[u8], start: u64) -> u64 {
    let words = bytes.chunks_exact(2);
    let odd = words
        .remainder()
        .first()
        .map_or(0, |byte| u64::from(u16::from_be_bytes([*byte, 0])));
    words.fold(start + odd, |sum, word| {
        sum + u64::from(u16::from_be_bytes([word[0], word[1]]))
    })
}

/// A sum in ones' complement of 16 bits.
fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The sum over what UDP adds of IP's header.
fn pseudo_header(from: Ipv4Addr, to: Ipv4Addr, length: u16) -> u64 {
    let addresses = sum(&to.octets(), sum(&from.octets(), 0));
    addresses + u64::from(PROTOCOL_UDP) + u64::from(length)
}

/// Writes all headers of a frame whose datagram is in its place. The frame must be longer than
/// [`HEADERS`], and shorter than 64 KiB.
pub(super) fn write(frame: &mut [u8], from: &End, to: &End, identification: u16) {
    let ip_length = (frame.len() - IP) as u16;
    let udp_length = (frame.len() - UDP) as u16;
    frame[..6].copy_from_slice(&to.mac);
    frame[6..12].copy_from_slice(&from.mac);
    frame[12..14].copy_from_slice(&ETHERTYPE_IPV4);
    let ip = &mut frame[IP..UDP];
    ip.fill(0);
    ip[0] = VERSION;
    ip[2..4].copy_from_slice(&ip_length.to_be_bytes());
    ip[4..6].copy_from_slice(&identification.to_be_bytes());
    ip[6..8].copy_from_slice(&DO_NOT_FRAGMENT.to_be_bytes());
    ip[8] = HOPS;
    ip[9] = PROTOCOL_UDP;
    ip[12..16].copy_from_slice(&from.at.ip().octets());
    ip[16..20].copy_from_slice(&to.at.ip().octets());
    let ip_sum = !folded(sum(ip, 0));
    ip[10..12].copy_from_slice(&ip_sum.to_be_bytes());
    let udp = &mut frame[UDP..];
    udp[..2].copy_from_slice(&from.at.port().to_be_bytes());
    udp[2..4].copy_from_slice(&to.at.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
    udp[6..8].fill(0);
    let start = pseudo_header(*from.at.ip(), *to.at.ip(), udp_length);
    let udp_sum = match !folded(sum(udp, start)) {
        // Zero says that there is none.
        0 => u16::MAX,
        sum => sum,
    };
    udp[6..8].copy_from_slice(&udp_sum.to_be_bytes());
}

/// The datagram of a frame, and who sent it; `None` when it is not a whole and sound one for `ours`.
pub(super) fn read(frame: &[u8], ours: SocketAddrV4) -> Option<(End, &[u8])> {
    let (headers, after) = frame.split_first_chunk::<HEADERS>()?;
    let word = |at: usize| u16::from_be_bytes([headers[at], headers[at + 1]]);
    let address = |at: usize| {
        Ipv4Addr::new(
            headers[at],
            headers[at + 1],
            headers[at + 2],
            headers[at + 3],
        )
    };
    let plain = headers[12..14] == ETHERTYPE_IPV4
        && headers[IP] == VERSION
        && headers[IP + 9] == PROTOCOL_UDP
        && word(IP + 6) & !DO_NOT_FRAGMENT == 0
        && folded(sum(&headers[IP..UDP], 0)) == u16::MAX;
    if !plain || address(IP + 16) != *ours.ip() || word(UDP + 2) != ours.port() {
        return None;
    }
    // Short frames are padded: the lengths say where the datagram ends, and must agree.
    let udp_length = word(UDP + 4);
    let length = usize::from(udp_length).checked_sub(HEADERS - UDP)?;
    if usize::from(word(IP + 2)) != length + HEADERS - IP {
        return None;
    }
    let datagram = after.get(..length)?;
    let from = address(IP + 12);
    let start = pseudo_header(from, *ours.ip(), udp_length);
    let whole = sum(datagram, sum(&headers[UDP..], start));
    let stated = word(UDP + 6);
    // None; the right one; or the start of one, which a sender on the same machine has left to a
    // card that there is none of. Datagrams have a sum of their own besides.
    if stated != 0 && folded(whole) != u16::MAX && stated != folded(start) {
        return None;
    }
    let mut mac = [0; 6];
    mac.copy_from_slice(&headers[6..12]);
    let at = SocketAddrV4::new(from, word(UDP));
    Some((End { mac, at }, datagram))
}

/// One of two ends.
fn end(number: u8) -> End {
    End {
        mac: [2, 0, 0, 0, 0, number],
        at: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, number), 7000 + u16::from(number)),
    }
}

/// A frame from one to the other, as fuzzing begins with.
pub(super) fn sample(datagram: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADERS];
    frame.extend_from_slice(datagram);
    write(&mut frame, &end(1), &end(2), 1);
    frame
}

/// Reads what may be anything; what can be read comes out again when it is written.
pub(super) fn fuzz(bytes: &[u8]) {
    let ours = end(2);
    let Some((from, datagram)) = read(bytes, ours.at) else {
        return;
    };
    assert!(HEADERS + datagram.len() <= bytes.len());
    let mut again = vec![0; HEADERS];
    again.extend_from_slice(datagram);
    write(&mut again, &from, &ours, 9);
    assert_eq!(read(&again, ours.at), Some((from, datagram)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn datagram_comes_out_as_it_went_in_whatever_pads_the_frame(
            datagram in prop::collection::vec(any::<u8>(), 0..1_500),
            padding in 0usize..20,
        ) {
            let mut frame = sample(&datagram);
            frame.resize(frame.len() + padding, 0xee);
            prop_assert_eq!(read(&frame, end(2).at), Some((end(1), &datagram[..])));
            prop_assert_eq!(read(&frame, end(3).at), None);
        }

        #[test]
        fn no_bytes_make_the_reader_fall(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz(&bytes);
        }

        #[test]
        fn nor_does_a_good_frame_with_some_bytes_changed(
            changes in prop::collection::vec((0usize..HEADERS + 60, any::<u8>()), 1..6),
            length in 0usize..HEADERS + 80,
        ) {
            let mut frame = sample(&[7; 60]);
            changes.iter().for_each(|(at, byte)| frame[*at] = *byte);
            frame.resize(length, 0);
            fuzz(&frame);
        }
    }

    #[test]
    fn every_changed_byte_behind_the_cards_addresses_is_noticed() {
        let whole = sample(b"a datagram");
        for at in 12..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            assert_eq!(read(&changed, end(2).at), None, "byte {at}");
        }
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length], end(2).at), None, "{length} bytes");
        }
    }

    /// The example of RFC 1071, and a header whose sum is known from elsewhere.
    #[test]
    fn sums_are_those_of_the_standards() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(folded(sum(&bytes, 0)), 0xddf2);
        assert_eq!(folded(sum(&bytes[..7], 0)), 0xdcfb);
    }

    #[test]
    fn absent_or_offloaded_sums_pass_and_wrong_ones_do_not() {
        let whole = sample(b"what is sent");
        let length = (whole.len() - UDP) as u16;
        let start = folded(pseudo_header(*end(1).at.ip(), *end(2).at.ip(), length));
        for (stated, taken) in [(0, true), (start, true), (start ^ 1, false)] {
            let mut frame = whole.clone();
            frame[UDP + 6..UDP + 8].copy_from_slice(&u16::to_be_bytes(stated));
            assert_eq!(read(&frame, end(2).at).is_some(), taken, "{stated}");
        }
    }

    #[test]
    fn contradictory_packets_are_rejected_despite_valid_sums() {
        let change = |at: usize, bytes: &[u8]| {
            let mut frame = sample(&[1; 40]);
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            frame[IP + 10..IP + 12].fill(0);
            let repaired = !folded(sum(&frame[IP..UDP], 0));
            frame[IP + 10..IP + 12].copy_from_slice(&repaired.to_be_bytes());
            frame[UDP + 6..UDP + 8].fill(0);
            read(&frame, end(2).at).is_some()
        };
        assert!(change(IP + 8, &[1]), "any number of hops");
        assert!(!change(IP, &[0x46]), "options");
        assert!(!change(IP + 6, &[0x20, 0]), "more fragments follow");
        assert!(!change(IP + 6, &[0, 1]), "not the first fragment");
        assert!(
            !change(IP + 2, &69u16.to_be_bytes()),
            "longer than UDP says"
        );
        assert!(
            !change(UDP + 4, &49u16.to_be_bytes()),
            "longer than IP says"
        );
        assert!(
            !change(UDP + 4, &7u16.to_be_bytes()),
            "shorter than a header"
        );
    }
}

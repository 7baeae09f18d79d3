//! Frames in datagrams: several of them packed into one, and taken out again.
//!
//! ```text
//!   datagram = magic u32 | crc32c u32 (of all that follows) | token u128 | number u64 | behind u64
//!            | (length u16 | payload)* | zeros
//! ```
//!
//! The token comes out of the handshake of one connection, for one direction: it stands for the
//! cluster, both nodes, their incarnations and the link at once, never travels but in datagrams, and
//! cannot be guessed. Each number is taken once. So only who reads what one host sends to the other
//! can make a datagram that counts, and neither an older link's nor a recorded one does. Only frames
//! of the node's control lane travel like this; a length of zero ends a datagram.
//!
//! A frame that is too long for a datagram goes by the connection, and takes thousands of times as
//! long. Frames sent behind it would overtake it, and its receiver would take it for lost and have
//! it sent again. So a datagram tells how many frames went by the connection before it, and waits
//! for them where it arrives.

use quintet_replica::{Bytes, Frame};

/// The length of a datagram's header: its frames begin there.
pub(crate) const HEADER: usize = 40;
/// The overhead of each frame besides its bytes.
const LENGTH: usize = 2;
/// No datagram is longer, nor any limit.
pub(crate) const BYTES_MAX: usize = 65_000;
/// No limit is lower: every path carries as much.
pub(crate) const BYTES_MIN: usize = 512;
/// The overhead of a datagram on the wire besides its bytes: addresses of the longer kind, and
/// ports.
pub(crate) const ENVELOPE: usize = 48;

const MAGIC: [u8; 4] = *b"QTD\x02";
/// Set in the number of a datagram that asks for an answer over the connection.
const PROBE: u64 = 1 << 63;

/// The bytes are no datagram, or a damaged one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The numbers of the datagrams that have come, as far back as one may be overtaken: none counts
/// twice.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplayWindow {
    highest: u64,
    /// A bit for each of the newest numbers, by the number modulo their count.
    seen: [u64; ReplayWindow::NUMBERS as usize / 64],
}

impl ReplayWindow {
    const NUMBERS: u64 = 1024;

    /// Whether this number has not come before; from now on it has.
    pub fn admit(&mut self, number: u64) -> bool {
        if number == 0 || self.highest.saturating_sub(number) >= Self::NUMBERS {
            return false;
        }
        if number > self.highest {
            let first = self.highest + 1;
            if number - self.highest >= Self::NUMBERS {
                self.seen.fill(0);
            } else {
                for passed in first..=number {
                    *self.word(passed) &= !Self::bit(passed);
                }
            }
            self.highest = number;
        }
        let bit = Self::bit(number);
        let word = self.word(number);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    const fn bit(number: u64) -> u64 {
        1 << (number % 64)
    }

    const fn word(&mut self, number: u64) -> &mut u64 {
        &mut self.seen[(number % Self::NUMBERS / 64) as usize]
    }
}

/// Whether a frame of this many bytes can travel in a datagram of at most `most`.
pub(super) const fn carries(most: usize, frame: usize) -> bool {
    frame > 0 && HEADER + LENGTH + frame <= most
}

/// A datagram that is being filled.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    bytes: Vec<u8>,
    frames: u64,
}

impl Filling {
    /// Whether nothing is in it.
    pub const fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// Whether a frame of this many bytes fits beside what is in it.
    pub const fn has_room(&self, most: usize, frame: usize) -> bool {
        let used = if self.is_empty() {
            HEADER
        } else {
            self.bytes.len()
        };
        used + LENGTH + frame <= most
    }

    /// Adds a frame, which must not be empty and must have room.
    pub fn push(&mut self, frame: &Frame) {
        if self.is_empty() {
            self.bytes.resize(HEADER, 0);
        }
        let length = u16::try_from(frame.len()).expect("what has room in a datagram is shorter");
        self.bytes.extend_from_slice(&length.to_le_bytes());
        for part in frame.parts() {
            self.bytes.extend_from_slice(part);
        }
        self.frames += 1;
    }

    /// The datagram with what is in it, the `number`th with this token, sent behind `behind`
    /// frames of the connection. Empty afterwards, with the memory of `spare`.
    pub fn seal(&mut self, token: u128, number: u64, behind: u64, mut spare: Vec<u8>) -> Vec<u8> {
        spare.clear();
        self.frames = 0;
        let mut bytes = std::mem::replace(&mut self.bytes, spare);
        bytes.resize(bytes.len().max(HEADER), 0);
        close(&mut bytes, token, number, behind);
        bytes
    }
}

/// A datagram of `length` bytes without frames that is to be answered over the connection.
pub(super) fn probe(length: usize, token: u128, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; length.max(HEADER)];
    close(&mut bytes, token, number | PROBE, 0);
    bytes
}

/// Fills the header in.
fn close(bytes: &mut [u8], token: u128, number: u64, behind: u64) {
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[8..24].copy_from_slice(&token.to_le_bytes());
    bytes[24..32].copy_from_slice(&number.to_le_bytes());
    bytes[32..40].copy_from_slice(&behind.to_le_bytes());
    let sum = checksum(bytes);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// The right checksum of a datagram.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[8..]) as u32
}

/// A datagram that is whole: its frames one after the other.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Of which link and direction it claims to be.
    pub token: u128,
    /// How many its sender has sent with this token, this one included.
    pub number: u64,
    /// Whether it is to be answered over the connection.
    pub probe: bool,
    /// How many frames went by the connection before it.
    pub behind: u64,
    frames: Bytes,
}

impl Opened {
    /// Reads a datagram.
    ///
    /// # Errors
    /// When it is none; nothing of it counts then.
    pub fn read(mut bytes: Bytes) -> Result<Self, Malformed> {
        let Some(header) = bytes.first_chunk::<HEADER>() else {
            return Err(Malformed);
        };
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let sum = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
        if header[..4] != MAGIC || sum != checksum(&bytes) {
            return Err(Malformed);
        }
        let token = u128::from(word(8)) | u128::from(word(16)) << 64;
        let (number, behind) = (word(24), word(32));
        let frames = bytes.split_off(HEADER);
        let mut rest = &frames[..];
        while let Some((length, after)) = first_length(rest) {
            rest = after.get(length..).ok_or(Malformed)?;
        }
        if rest.iter().any(|byte| *byte != 0) {
            return Err(Malformed);
        }
        Ok(Self {
            token,
            number: number & !PROBE,
            probe: number & PROBE != 0,
            behind,
            frames,
        })
    }
}

impl Opened {
    /// How much memory it takes.
    pub const fn bytes(&self) -> usize {
        size_of::<Self>() + HEADER + self.frames.len()
    }
}

/// The length of the first frame and what comes after it; `None` at the end.
fn first_length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (length, after) = bytes.split_first_chunk::<LENGTH>()?;
    let length = usize::from(u16::from_le_bytes(*length));
    (length > 0).then_some((length, after))
}

impl Iterator for Opened {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let (length, _) = first_length(&self.frames)?;
        if self.frames.len() < LENGTH + length {
            return None;
        }
        let mut frame = self.frames.split_to(LENGTH + length);
        Some(frame.split_off(LENGTH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(bytes: &[u8]) -> Frame {
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        Frame::from(Bytes::copy_from_slice(tail)).prefixed(Bytes::copy_from_slice(head))
    }

    /// The datagrams, of at most this many bytes, that these frames are packed into.
    fn packed(frames: &[Vec<u8>], most: usize) -> Vec<Vec<u8>> {
        let mut filling = Filling::default();
        let mut datagrams = Vec::new();
        for bytes in frames {
            assert!(carries(most, bytes.len()));
            if !filling.has_room(most, bytes.len()) {
                datagrams.push(filling.seal(9, datagrams.len() as u64 + 1, 4, Vec::new()));
            }
            filling.push(&frame(bytes));
        }
        if !filling.is_empty() {
            datagrams.push(filling.seal(9, datagrams.len() as u64 + 1, 4, Vec::new()));
        }
        datagrams
    }

    fn read(bytes: &[u8]) -> Result<Opened, Malformed> {
        Opened::read(Bytes::copy_from_slice(bytes))
    }

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in_and_no_datagram_is_too_long(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..400), 0..40),
            most in 512usize..2_000,
        ) {
            let datagrams = packed(&frames, most);
            let mut found = Vec::new();
            for (index, datagram) in datagrams.iter().enumerate() {
                prop_assert!(datagram.len() <= most);
                let opened = read(datagram).expect("whole");
                prop_assert_eq!((opened.token, opened.probe, opened.behind), (9, false, 4));
                prop_assert_eq!(opened.number, index as u64 + 1);
                found.extend(opened.map(|frame| frame.to_vec()));
            }
            prop_assert_eq!(found, frames);
        }
    }

    #[test]
    fn small_frames_share_a_datagram() {
        let frames = vec![vec![1; 100]; 20];
        assert_eq!(packed(&frames, 1_400).len(), 2);
        assert!(carries(1_400, 1_358) && !carries(1_400, 1_359) && !carries(1_400, 0));
    }

    #[test]
    fn no_part_of_a_datagram_and_no_damaged_one_is_taken_for_one() {
        let whole = packed(&[vec![1; 40], vec![2; 50]], 1_400).remove(0);
        assert_eq!(read(&whole).expect("whole").count(), 2);
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]).err(), Some(Malformed));
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x20;
            assert_eq!(read(&damaged).err(), Some(Malformed), "byte {at}");
        }
    }

    #[test]
    fn lengths_beyond_end_are_rejected_despite_valid_checksum() {
        let mut bytes = packed(&[vec![1; 40]], 1_400).remove(0);
        for length in [41u16, 4_000, u16::MAX] {
            bytes[HEADER..HEADER + 2].copy_from_slice(&length.to_le_bytes());
            close(&mut bytes, 9, 1, 0);
            assert_eq!(read(&bytes).err(), Some(Malformed));
        }
        // Zero ends a datagram, and behind the end there is nothing.
        bytes[HEADER..HEADER + 2].copy_from_slice(&[0, 0]);
        close(&mut bytes, 9, 1, 0);
        assert_eq!(read(&bytes).err(), Some(Malformed));
    }

    #[test]
    fn no_number_is_taken_twice() {
        let mut window = ReplayWindow::default();
        for number in [1, 2, 5, 3, 4, 1_000, 6, 999] {
            assert!(window.admit(number), "{number}");
        }
        for number in [0, 1, 2, 3, 4, 5, 6, 999, 1_000] {
            assert!(!window.admit(number), "{number} again");
        }
        // Overtaken by as many as are remembered, and by one more.
        assert!(window.admit(2_000) && window.admit(977) && !window.admit(976));
        assert!(!window.admit(1_000) && window.admit(1_001));
        assert!(window.admit(1 << 60) && !window.admit(2_001));
        assert!(window.admit((1 << 60) - 1) && !window.admit((1 << 60) - 1));
        assert!(window.admit(u64::MAX) && !window.admit(u64::MAX));
    }

    #[test]
    fn probe_is_as_long_as_asked_for_and_holds_nothing() {
        for length in [0, HEADER, 513, 1_400] {
            let bytes = probe(length, 9, 5);
            assert_eq!(bytes.len(), length.max(HEADER));
            let opened = read(&bytes).expect("whole");
            assert_eq!((opened.number, opened.probe), (5, true));
            assert_eq!(opened.count(), 0);
        }
    }
}

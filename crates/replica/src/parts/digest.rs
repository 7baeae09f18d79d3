//! A hash of a replica's state in a few words, for the simulator's trace.

const BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// Hashes words, one after the other (FNV-1a by words; the rotation brings what high bits tell into
/// the low ones).
#[must_use]
pub fn digest(words: impl IntoIterator<Item = u64>) -> u64 {
    words.into_iter().fold(BASIS, |hash, word| {
        let mixed = (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        mixed.rotate_left(23)
    })
}

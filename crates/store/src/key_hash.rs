//! A hash that is part of the replicated state: SCAN's order and footprints follow from it.
//!
//! ```text
//!   key ──16 bytes at a time──► multiply two halves, fold the 128-bit product ──► 64 bits
//! ```
//!
//! It is written down here rather than taken from a library because it must never change: two
//! replicas of different builds have to agree on it.

const KEYS: [u64; 3] = [
    0x9e37_79b9_7f4a_7c15,
    0xd1b5_4a32_d192_ed03,
    0x8bb8_4b93_962e_acc9,
];

#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = (a as u128).wrapping_mul(b as u128);
    (product as u64) ^ ((product >> 64) as u64)
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[inline]
fn half(bytes: &[u8], at: usize) -> u64 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u64::from(u32::from_le_bytes(half))
}

/// 64 well-mixed bits of `bytes`, different for each `seed`.
#[inline]
#[must_use]
pub fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let mut state = seed ^ KEYS[0] ^ (len as u64).wrapping_mul(KEYS[2]);
    let (a, b) = if len <= 16 {
        if len >= 8 {
            (word(bytes, 0), word(bytes, len - 8))
        } else if len >= 4 {
            (half(bytes, 0), half(bytes, len - 4))
        } else if len > 0 {
            let ends = u64::from(bytes[0]) | u64::from(bytes[len - 1]) << 8;
            (ends | u64::from(bytes[len / 2]) << 16, 0)
        } else {
            (0, 0)
        }
    } else {
        let mut at = 0;
        while len - at > 16 {
            state = fold(
                word(bytes, at) ^ state ^ KEYS[1],
                word(bytes, at + 8) ^ state.rotate_left(32) ^ KEYS[2],
            );
            at += 16;
        }
        (word(bytes, len - 16), word(bytes, len - 8))
    };
    let mixed = fold(a ^ state ^ KEYS[1], b ^ state.rotate_left(32) ^ KEYS[2]);
    fold(mixed ^ KEYS[0], state ^ KEYS[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_never_changes() {
        let bytes: Vec<u8> = (0..100).collect();
        let sum = (0..=100).fold(0u64, |sum, len| {
            sum.rotate_left(7) ^ hash_bytes(7, &bytes[..len])
        });
        assert_eq!(sum, 0x07ab_2257_c4d9_73b0);
    }

    #[test]
    fn close_keys_differ() {
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..100_000u32 {
            seen.insert(hash_bytes(0, format!("key:{number}").as_bytes()) >> 16);
        }
        assert_eq!(seen.len(), 100_000);
    }
}

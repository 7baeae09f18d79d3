//! Digests: what replicas themselves compare while running agrees at every position.
//!
//! ```text
//!   digest at position p    every replica's, when it is final; however often it comes to p
//! ```

use super::Violation;
use std::collections::BTreeMap;

/// The first digest seen at each position.
#[derive(Debug, Default)]
pub struct Digests(BTreeMap<u64, (u16, u128)>);

impl Digests {
    /// Replica `by` has this digest at `position`. True when another replica had it before.
    ///
    /// # Errors
    /// When another replica had another digest there.
    pub fn finished(&mut self, by: u16, position: u64, digest: u128) -> Result<bool, Violation> {
        let (first, agreed) = *self.0.entry(position).or_insert((by, digest));
        if agreed == digest {
            return Ok(first != by);
        }
        Err(Violation::new(
            "digests",
            format!(
                "at position {position} replica {by} has digest {digest:x}, replica {first} \
                 {agreed:x}"
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_digest_at_the_same_position_is_seen() {
        let mut digests = Digests::default();
        assert_eq!(digests.finished(0, 3, 7), Ok(false));
        assert_eq!(digests.finished(0, 3, 7), Ok(false));
        assert_eq!(digests.finished(1, 3, 7), Ok(true));
        assert_eq!(digests.finished(1, 5, 8), Ok(false));
        assert!(digests.finished(2, 3, 8).is_err());
    }
}

//! What outsiders' bytes meet first, for fuzzing: parts that are otherwise private to the runtime.
//!
//! ```text
//!   bytes ──► greeting ──► frames
//! ```

use crate::transports::hello::Greeting;

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
